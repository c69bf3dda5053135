/* layout.h - the weights of an engine in the form its kernels read, made group by group when a pass first needs them.
 *
 * Quantised matrices are packed (pack.h), float matrices are read where they lie in the model's file; both are looked
 * at once, because a weight that is no number would poison every result. To pack a model takes about as long as to
 * read it, so nobody waits for the whole: an item of a projection makes the 16 rows of each group it is about to
 * multiply with, unless that was done before. What was made is kept in a file of the cache (layout_file.h) and mapped
 * by the next engine; a group of a mapped file is compared with its checksum when it is first needed, and made again
 * from the model, in private memory, if it differs. So neither a damaged nor a missing file changes a result.
 *
 * Memory is one region: a mapping of the file, or pages of our own that a thread of the engine, the keeper, replaces by
 * the file's as it writes them (layout_keeper.c); or, where the file has only small pages, copies in large ones.
 *
 * The states of a group: NEW -> BUSY (a thread has claimed it) -> READY, or BAD. A thread that needs a BUSY group
 * waits: it takes no longer than to make one. */
#ifndef PP_CPU_LAYOUT_H
#define PP_CPU_LAYOUT_H

#include <stdatomic.h>

#include "engine/base/cancel.h"
#include "engine/model.h"

struct pp_weights;

enum pp_group_state { PP_GROUP_NEW = 0, PP_GROUP_BUSY, PP_GROUP_READY, PP_GROUP_BAD };

/* One matrix. */
struct pp_weight {
    struct pp_weights *owner;
    const struct pp_tensor *t;
    const uint8_t *data;        /* what kernels read; set by pp_weights_place */
    size_t offset, bytes;       /* in the region; 0 bytes: used in place */
    size_t group_bytes;
    bool from_file;             /* mapped when it was placed: groups are compared before they are READY */
    int64_t n_groups;
    int64_t first_group;        /* in the owner's sums */
    atomic_uchar *state;        /* [n_groups]: enum pp_group_state */
    atomic_llong n_left;        /* groups that are not READY */
};

/* An empty list of weights of a model, which must outlive it. PP_ERR_NOMEM. */
enum pp_code pp_weights_new(const struct pp_model *m, struct pp_weights **out, struct pp_error *err);
void pp_weights_free(struct pp_weights *w); /* NULL is fine */
/* The weight of this tensor, added if it is not there yet; NULL: out of memory. Before pp_weights_place. */
struct pp_weight *pp_weights_add(struct pp_weights *w, const struct pp_tensor *t);
struct pp_weight *pp_weights_add_new(struct pp_weights *w, const struct pp_tensor *t); /* it is not there yet */
/* Finds memory for all: the cache's file, or pages of their own. cache_dir: NULL for none; quota: as in struct
 * pp_engine_options. Reads no weights. */
enum pp_code pp_weights_place(struct pp_weights *w, const char *cache_dir, uint64_t quota, struct pp_error *err);
/* Starts the thread that makes what nobody has needed yet, writes it to the cache, and sees to it that it lies in large
 * pages, if that is to be done. */
void pp_weights_keep(struct pp_weights *w);

/* Makes the groups that hold rows [row0, row1), unless they are READY. false: they are not all, because *stop or cancel
 * asked to go, or because a weight is BAD (pp_weights_check tells). Any thread. */
bool pp_weight_make(struct pp_weight *w, int64_t row0, int64_t row1, const atomic_bool *stop,
                    const struct pp_cancel *cancel);
static inline bool pp_weight_ready(struct pp_weight *w, int64_t row0, int64_t row1, const atomic_bool *stop,
                                   const struct pp_cancel *cancel)
{
    return atomic_load_explicit(&w->n_left, memory_order_acquire) == 0 || pp_weight_make(w, row0, row1, stop, cancel);
}
/* Remembers that `t` holds a value that is no number. */
void pp_weights_bad(struct pp_weights *w, const struct pp_tensor *t);
/* PP_ERR_FORMAT names the tensor that is BAD; PP_ERR_IO: the layout's file shrank while it was mapped. Cheap. */
enum pp_code pp_weights_check(const struct pp_weights *w, struct pp_error *err);
/* PP_ERR_FORMAT: that a tensor holds such a value. */
enum pp_code pp_fail_values(const struct pp_tensor *t, struct pp_error *err);

struct pp_pool;
/* Makes everything that is missing, now, and waits until it is written, if it is kept. For who measures. */
enum pp_code pp_weights_finish(struct pp_weights *w, struct pp_pool *pool, const struct pp_cancel *cancel,
                               struct pp_error *err);

struct pp_weights_state {
    uint64_t bytes;             /* of all packed weights */
    uint64_t mapped;            /* of those, in a file of the cache */
    uint64_t anonymous;         /* of those, in memory of their own */
    uint64_t repaired;          /* groups of a mapped file that were damaged */
    uint64_t book_keeping;      /* memory besides */
    bool from_cache;            /* mapped from the start */
};
/* As it is at this moment; while others make weights, of a moment ago. */
struct pp_weights_state pp_weights_state(const struct pp_weights *w);

#endif
