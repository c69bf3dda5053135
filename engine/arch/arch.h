/* arch.h - what a model family looks like in files: its names on both sides and where its numbers stand.
 *
 * One struct pp_arch per family, in a file of its own (engine/arch/NAME_names.c), listed in engine/arch/arch.c. */
#ifndef PP_ENGINE_ARCH_ARCH_H
#define PP_ENGINE_ARCH_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/source.h"

struct cJSON;

/* Whether a GGUF file of the family holds a matrix's rows in another order than the Hugging Face folder. GGUF's llama
 * rotates neighbours, so that the rows of each head of q and k are interleaved; the same holds for their biases. */
enum pp_row_order {
    PP_ROWS_SAME,
    PP_ROWS_Q, /* interleaved within each of n_head heads */
    PP_ROWS_K, /* interleaved within each of n_head_kv heads */
};

/* "model.layers.{}.self_attn.q_proj" and "blk.{}.attn_q"; {} stands for the layer's number. ".weight" or ".bias"
 * follows on both sides. */
struct pp_arch_name {
    const char *hf;
    const char *gguf;
    enum pp_row_order rows;
};

struct pp_arch {
    const char *name;                 /* general.architecture */
    const char *const *hf_classes;    /* what config.json may call it under `architectures`; NULL at the end */
    const struct pp_arch_name *names; /* hf NULL at the end */
    const char *const *ignored;       /* ends of Hugging Face tensor names that carry nothing; NULL at the end */
    bool gguf_neox;                   /* rope_neox of the family's GGUF files */
    /* Fill what the family adds to the common fields, and refuse what its plan cannot compute. May be NULL. */
    enum pp_code (*from_config)(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
    enum pp_code (*from_gguf)(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err);
};

/* All families; i from 0, NULL at the end. */
const struct pp_arch *pp_arch_at(size_t i);
const struct pp_arch *pp_arch_by_name(const char *name);     /* GGUF name, or NULL */
const struct pp_arch *pp_arch_by_class(const char *hf_class); /* or NULL */
/* "llama, ..." for errors. */
void pp_arch_list(struct pp_buf *out);

enum pp_name_match { PP_NAME_UNKNOWN, PP_NAME_IGNORED, PP_NAME_FOUND };
/* Translates a Hugging Face tensor name, appending the GGUF name to *gguf (emptied first). rows may be NULL. */
enum pp_name_match pp_arch_gguf_name(const struct pp_arch *a, const char *hf, struct pp_buf *gguf,
                                     enum pp_row_order *rows);
/* The row order of a tensor by its GGUF name. */
enum pp_row_order pp_arch_rows(const struct pp_arch *a, const char *gguf_name);

/* Row r of an interleaved matrix (GGUF) is row pp_hf_row(r) of the Hugging Face one; pp_gguf_row is the inverse. */
int64_t pp_hf_row(int64_t gguf_row, int64_t head_dim);
int64_t pp_gguf_row(int64_t hf_row, int64_t head_dim);

#endif
