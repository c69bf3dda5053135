/* source_int.h - a source from inside: source.c opens files and answers what is asked, source_folder.c opens folders,
 * source_fill.c makes tensors that are not used as they lie there. Private to them. */
#ifndef PP_ENGINE_SOURCE_INT_H
#define PP_ENGINE_SOURCE_INT_H

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stddef.h>

#include "engine/arch/arch.h"
#include "engine/hf_quant.h"
#include "engine/hparams.h"
#include "engine/name_index.h"
#include "engine/source.h"
#include "engine/tensor_list.h"

struct pp_gguf;
struct pp_hf;
struct pp_imatrix;

struct pp_source {
    char *path;
    struct pp_gguf *gguf;       /* of a file */
    struct pp_gguf **parts;     /* [n_parts] further files, if the model is in several */
    int n_parts;
    struct pp_hf *hf;           /* of a folder */
    const struct pp_arch_wrapper *wrapper; /* of a folder: what stands around the language model; or NULL */
    bool left_out[PP_MAX_LAYERS]; /* layers of that which only look at pictures */
    bool leaves_layers;
    int64_t rows_behind;        /* of the embeddings, behind those of the vocabulary, which are left out */
    cJSON *text_config;         /* of a folder: what config.json says of the language model, completed */
    struct pp_hparams hp;
    char *chat_template, *tool_template;
    int32_t *suppressed;        /* [n_suppressed] */
    size_t n_suppressed;
    struct pp_tensor_list list; /* under their GGUF names; of one file that has them as they are used: none */
    uint8_t *room;              /* for their data: mapped, nothing is there before it is written */
    size_t room_size;
    pthread_mutex_t fill_lock;
    bool filled;                /* -- protected by fill_lock */
    struct pp_hf_quant quant;   /* of a folder */
    const char *quantized;      /* "Q4_K_M": what it is made into; or NULL */
    char *imatrix_path;         /* what that is weighed by; or NULL */
    struct pp_imatrix *imatrix;
    struct pp_name_index names; /* of those */
};

/* That pippin does not run such a model, and what it would need for it, if that is known. family: clean text. */
enum pp_code pp_source_fail_family(const char *path, const char *family, struct pp_error *err);
/* Adds a tensor under its GGUF name. made: its data become ours, also if it cannot be added. */
enum pp_code pp_source_add(struct pp_source *s, const struct pp_tensor *t, const char *name, bool made,
                           struct pp_error *err);
/* Once there are no more of them: a tensor is found by its name. PP_ERR_FORMAT: two have the same. */
enum pp_code pp_source_index(struct pp_source *s, struct pp_error *err);
/* Opens the folder at s->path. */
enum pp_code pp_source_open_folder(struct pp_source *s, struct pp_error *err);
/* Reads which tokens are never to be written. */
enum pp_code pp_source_find_suppressed(struct pp_source *s, struct pp_error *err);
/* What pippin quantize would make of the folder, its matrices are made into when they are loaded. quant: as
 * pp_quantize_name takes it. */
enum pp_code pp_source_quantize(struct pp_source *s, const char *quant, struct pp_error *err);
/* Those that become blocks are weighed by an importance matrix. path: of its file. */
enum pp_code pp_source_weigh(struct pp_source *s, const char *path, struct pp_error *err);
/* Gives the tensors that are still to be made their place in memory, which takes none before it is written. */
enum pp_code pp_source_reserve(struct pp_source *s, struct pp_error *err);

#endif
