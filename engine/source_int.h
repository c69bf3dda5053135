/* source_int.h - the inside of a source: source.c opens files and answers queries, source_folder.c opens folders,
 * source_fill.c makes tensors that are not used as they are stored. Private to them. */
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
    struct pp_gguf *gguf;       /* of a GGUF file */
    struct pp_gguf **parts;     /* [n_parts]: further files of a model that is split */
    int n_parts;
    struct pp_hf *hf;           /* of a folder */
    const struct pp_arch_wrapper *wrapper; /* of a folder: the multimodal model around the language model; or NULL */
    bool left_out[PP_MAX_LAYERS]; /* the folder's layers that only look at pictures */
    bool drops_layers;
    int64_t n_dropped_rows;     /* rows of the embeddings after the vocabulary, which are dropped */
    cJSON *text_config;         /* of a folder: config.json of the language model, completed */
    struct pp_hparams hp;
    char *chat_template, *tool_template;
    int32_t *suppressed;        /* [n_suppressed] */
    size_t n_suppressed;
    struct pp_tensor_list list; /* under their GGUF names; empty if a single file has all in the forms that we use */
    uint8_t *room;              /* memory for data that are made: mapped, and not allocated before it is written */
    size_t room_size;
    pthread_mutex_t fill_lock;
    bool filled;                /* protected by fill_lock */
    struct pp_hf_quant quant;   /* of a folder */
    const char *quantized;      /* "Q4_K_M": the type to which it is quantised; or NULL */
    char *imatrix_path;         /* path of the imatrix; or NULL */
    struct pp_imatrix *imatrix;
    struct pp_name_index names; /* of `list` */
};

/* The error that pippin does not run such a model, and what it would need for that, if known. family: clean text. */
enum pp_code pp_source_fail_family(const char *path, const char *family, struct pp_error *err);
/* Adds a tensor under its GGUF name. made: takes over its data, even if it cannot be added. */
enum pp_code pp_source_add(struct pp_source *s, const struct pp_tensor *t, const char *name, bool made,
                           struct pp_error *err);
/* Builds the index of names once all tensors are added. PP_ERR_FORMAT: two have the same name. */
enum pp_code pp_source_index(struct pp_source *s, struct pp_error *err);
/* Opens the folder at s->path. */
enum pp_code pp_source_open_folder(struct pp_source *s, struct pp_error *err);
/* Reads the tokens that must never be written. */
enum pp_code pp_source_find_suppressed(struct pp_source *s, struct pp_error *err);
/* Gives the folder's matrices the types that pippin quantize would choose; they are quantised when they are filled.
 * quant: as pp_quantize_name takes it. */
enum pp_code pp_source_quantize(struct pp_source *s, const char *quant, struct pp_error *err);
/* Reads an importance matrix, by which those that become blocks are quantised. path: its file. */
enum pp_code pp_source_read_imatrix(struct pp_source *s, const char *path, struct pp_error *err);
/* Reserves memory for tensors that are made later; it is not allocated before it is written. */
enum pp_code pp_source_reserve(struct pp_source *s, struct pp_error *err);

#endif
