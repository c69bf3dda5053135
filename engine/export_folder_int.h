/* export_folder_int.h - what the files that make a folder of a model share. */
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

/* How the values of a tensor of ours go into one of the file. */
enum order {
    AS_THEY_ARE,
    BY_HALVES,  /* rows of q and k, from GGUF's order to Hugging Face's; of a bias and of norms of heads elements */
    BY_HEAD,    /* rows of q, k and v of one head after the other; likewise */
    TURNED,     /* columns become rows */
    ONE_BEHIND, /* the rows of a gate, then those of the value */
    KEYS_VALUES, /* of each head those of keys, then those of values */
    QKV,        /* those of q, k and v, in the order that `form` says */
    RESERVED,   /* the first are not there, and become zeros */
    BY_KEY,     /* of what goes into states, `from`, and of the gates, `with`, those of one key after the other; or of
                   beta and decays */
};

/* One tensor of the file, or three of it if it is quantised. */
struct item {
    const struct pp_tensor *from;
    const struct pp_tensor *with; /* whose rows, or in rows of biases elements, take turns with those, or come behind
                                     them; or NULL */
    int64_t ways;               /* TURNED: pieces of so many rows of ours change places (rows.h) */
    bool side_by_side;          /* TURNED: they come behind them in each row, and do not take turns */
    const struct pp_tensor *qkv[3]; /* QKV */
    enum pp_hf_form form;
    bool reordered;             /* heads of states go from GGUF's order to the folder's */
    struct pp_state_order heads;
    bool halves;                /* QKV, KEYS_VALUES: whose rows of q and k go from GGUF's order to Hugging Face's */
    char name[NAME];            /* without ".weight" if it is quantised */
    uint32_t type;              /* of floats; quantised: of scales and biases */
    int bits;                   /* 0: floats */
    enum order order;
    bool between;               /* dimensions of one are: [1, 1, rows, 1, columns] */
    int64_t head_dim, n_head, n_head_kv; /* BY_HALVES, BY_HEAD */
    int64_t first_row;          /* of `from`, of a vector the first element: an expert's, or of q, k or v */
    bool ones;                  /* every value is 1 */
    float add;                  /* to every value */
    float times;                /* what every value is multiplied by, or 0 */
    float logs;                 /* -1: of every value, without its minus, the logarithm; 1: the same of what has none */
    int n_dims;                 /* as it is written, the fastest first */
    int64_t ne[PP_MAX_DIMS];
    int64_t row;                /* of a vector that is a matrix in the new folder: values of its rows; 0: it is none */
    bool taps;                  /* rows of n values of two taps each are [n, 2, 1], */
    bool taps_last;             /* or [n, 2] */
    bool last_of_one;           /* of [n, 1, taps] the last two dimensions change places */
    uint64_t at, scales_at, biases_at; /* in the data */
};

struct folder {
    const struct pp_source *s;
    const struct pp_arch *arch;
    const struct pp_convert_options *opt;
    const char *dst;
    int64_t group;              /* MLX */
    struct item *items;
    size_t n;
    bool tied;                  /* the output is the embeddings */
    struct cJSON *modules;      /* sentence-transformers' list of what it computes; or NULL */
    char **made;                /* [n_made]: what was written, in this order, which goes again if not all could be */
    size_t n_made, made_cap;
    bool made_folder;
    int lock;                   /* on the folder, or -1 */
    struct joined {
        struct pp_tensor t;
        struct pp_rows rows;
    } *joined;                  /* [n_joined]: matrices of heads, of two of ours each */
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

/* Makes such a folder, writes such a file, copies one of the source's folder if it is there. */
enum pp_code pp_folder_make(struct folder *f, const char *name);
enum pp_code pp_folder_write(struct folder *f, const char *name, const char *text, size_t n);
enum pp_code pp_folder_copy(struct folder *f, const char *name);
/* export_folder_modules.c: fills f->modules; writes them and what belongs to each. */
enum pp_code pp_folder_find_modules(struct folder *f);
enum pp_code pp_folder_write_modules(struct folder *f);
/* export_folder_list.c: fills f->items, and where each lies in the file. */
enum pp_code pp_folder_list(struct folder *f);
/* The type that a tensor's floats have in the folder. */
uint32_t pp_folder_float_type(const struct folder *f, const struct pp_tensor *t);
/* export_folder_tensors.c: writes model.safetensors, all of it or nothing. */
enum pp_code pp_folder_write_tensors(struct folder *f);

#endif
