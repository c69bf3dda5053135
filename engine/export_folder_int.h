/* export_folder_int.h - shared by the files that write a model as a folder. */
#ifndef PP_ENGINE_EXPORT_FOLDER_INT_H
#define PP_ENGINE_EXPORT_FOLDER_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/arch/arch.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/rows.h"
#include "engine/tensor_forms.h"

struct cJSON;

enum { NAME = 240 };

/* How the rows of our tensors are arranged in one of the file. */
enum order {
    UNCHANGED,
    BY_HALVES,  /* rows of q and k are permuted from GGUF's order to Hugging Face's; also elements of their biases and
                   of norms of heads */
    BY_HEAD,    /* rows of q, k and v grouped by KV heads; also elements of biases */
    TRANSPOSED,
    CONCATENATED, /* all rows of the gate, then all of the value */
    KEYS_VALUES, /* for each head the rows of the key, then those of the value */
    QKV,        /* rows of q, k and v, arranged by `form` */
    RESERVED,   /* zeros come first, for rows that we do not have */
    BY_KEY,     /* inputs of states (`from`) and gates (`with`), grouped by keys; or beta and decays */
};

/* A tensor of the file; if it is quantised three. */
struct item {
    const struct pp_tensor *from;
    const struct pp_tensor *with; /* rows (or elements, in rows of biases) of this one alternate with those of `from`,
                                     or follow them; or NULL */
    int64_t mix_rows;           /* TRANSPOSED: pieces of this many of our rows are swapped (rows.h) */
    bool side_by_side;          /* TRANSPOSED: in each row the values of `with` follow, instead of alternating */
    const struct pp_tensor *qkv[3]; /* QKV */
    enum pp_hf_form form;
    bool reordered;             /* heads of states are permuted from GGUF's order to the folder's */
    struct pp_state_order heads;
    bool halves;                /* QKV, KEYS_VALUES: rows of q and k are permuted from GGUF's order to Hugging Face's */
    char name[NAME];            /* without ".weight" if it is quantised */
    uint32_t type;              /* of the floats; quantised: of scales and biases */
    int bits;                   /* 0: floats */
    enum order order;
    bool unit_dims;             /* with dimensions of 1: [1, 1, rows, 1, columns] */
    int64_t head_dim, n_head, n_head_kv; /* BY_HALVES, BY_HEAD */
    int64_t first_row;          /* first row of `from`, or first element of a vector: an expert's, or of q, k or v */
    bool ones;                  /* all values are 1 */
    float add;                  /* added to every value */
    float times;                /* a factor of every value; 0: none */
    float log_sign;             /* -1: log(-x) of every value; 1: log(x); 0: neither */
    int n_dims;                 /* as written, the fastest first */
    int64_t ne[PP_MAX_DIMS];
    int64_t row;                /* a vector that becomes a matrix: length of its rows; 0: it does not */
    bool taps;                  /* rows of n values with two taps each become [n, 2, 1], */
    bool taps_last;             /* or [n, 2] */
    bool taps_then_one;         /* [n, 1, taps] becomes [n, taps, 1] */
    uint64_t at, scales_at, biases_at; /* offsets in the data */
};

struct folder {
    const struct pp_source *s;
    const struct pp_arch *arch;
    const struct pp_convert_options *opt;
    const char *dst;
    int64_t group;              /* MLX */
    struct item *items;
    size_t n;
    bool tied;                  /* the output is the embedding table */
    struct cJSON *modules;      /* sentence-transformers' modules.json; or NULL */
    char **made;                /* [n_made]: paths written so far, in order, to be removed on failure */
    size_t n_made, made_cap;
    bool made_folder;
    int lock;                   /* on the folder, or -1 */
    struct joined {
        struct pp_tensor t;
        struct pp_rows rows;
    } *joined;                  /* [n_joined]: matrices of heads, joined from two of ours */
    size_t n_joined;
    struct cJSON *config;
    uint64_t data_size, data_at;
    char *temp, *path;
    int fd;
    struct pp_error *err;
};

static inline int64_t n_rows_of(const struct item *item)
{
    return item->ne[1] * item->ne[2];
}

/* Make a folder or write a file in the new folder; copy a file of the source's folder, if it is there. */
enum pp_code pp_folder_make(struct folder *f, const char *name);
enum pp_code pp_folder_write(struct folder *f, const char *name, const char *text, size_t n);
enum pp_code pp_folder_copy(struct folder *f, const char *name);
/* export_folder_modules.c: the first fills f->modules; the second writes them and what belongs to each. */
enum pp_code pp_folder_find_modules(struct folder *f);
enum pp_code pp_folder_write_modules(struct folder *f);
/* export_folder_list.c: fills f->items, with their offsets in the file. */
enum pp_code pp_folder_list(struct folder *f);
/* The type that a tensor's floats have in the folder. */
uint32_t pp_folder_float_type(const struct folder *f, const struct pp_tensor *t);
/* export_folder_tensors.c: writes model.safetensors completely, or not at all. */
enum pp_code pp_folder_write_tensors(struct folder *f);

#endif
