/* layout.h - the weights of an engine in the form that its kernels read, packed group by group when a pass first needs
 * them.
 *
 * Quantised matrices are packed (pack.h); float matrices are read where the model's file is mapped. Both are checked
 * once, because a single NaN among the weights would spoil every result. Packing a model takes about as long as reading
 * it, so it is done lazily: an item of a projection packs the groups of 16 rows that it is about to multiply by, unless
 * that was done before. The packed form is kept in a cache file (layout_file.h), which the next engine maps. A group of
 * a mapped file is compared with its checksum when it is first needed; if it differs, it is packed again from the
 * model, in private memory. So neither a damaged nor a missing cache file changes a result.
 *
 * All packed weights are in one memory region. It is a mapping of the cache file; or anonymous pages, which a thread of
 * the engine, the keeper, replaces by pages of the file as it writes them (layout_keeper.c); or, if the file has only
 * small pages, a copy in huge pages (layout_large.c).
 *
 * The states of a group: NEW -> BUSY (a thread has claimed it) -> READY, or BAD (settle_group() in layout.c). A thread
 * that needs a BUSY group waits, no longer than packing it would take. */
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
    size_t offset, bytes;       /* its place in the region; 0 bytes: it is read in the model's file */
    size_t group_bytes;
    bool from_file;             /* mapped when it was placed: a group's checksum is compared before it is READY */
    int64_t n_groups;
    int64_t first_group;        /* its index among the groups of all the owner's matrices */
    atomic_uchar *state;        /* [n_groups]: enum pp_group_state */
    atomic_llong n_left;        /* groups that are not READY */
};

/* An empty list of weights of a model, which must outlive it. PP_ERR_NOMEM. */
enum pp_code pp_weights_new(const struct pp_model *m, struct pp_weights **out, struct pp_error *err);
void pp_weights_free(struct pp_weights *w); /* NULL is fine */
/* The weight of this tensor, added if it is not there yet; NULL: out of memory. Before pp_weights_place. */
struct pp_weight *pp_weights_add(struct pp_weights *w, const struct pp_tensor *t);
/* Adds it without looking for it first. */
struct pp_weight *pp_weights_add_new(struct pp_weights *w, const struct pp_tensor *t);
/* Reserves memory for all weights, the cache's file or anonymous pages, and sets their data. cache_dir: NULL for none;
 * quota: as in struct pp_engine_options. Packs nothing yet. PP_ERR_NOMEM. */
enum pp_code pp_weights_place(struct pp_weights *w, const char *cache_dir, uint64_t quota, struct pp_error *err);
/* Starts the keeper, if there is a cache: the thread that packs what no pass has needed yet, writes it to the cache,
 * and moves it to huge pages if it is not in such. */
void pp_weights_keep(struct pp_weights *w);

/* Makes the groups that hold rows [row0, row1) READY. false: not all are, because *stop is set or cancel requested, or
 * because a group is BAD (see pp_weights_check). Any thread. */
bool pp_weight_make(struct pp_weight *w, int64_t row0, int64_t row1, const atomic_bool *stop,
                    const struct pp_cancel *cancel);
static inline bool pp_weight_ready(struct pp_weight *w, int64_t row0, int64_t row1, const atomic_bool *stop,
                                   const struct pp_cancel *cancel)
{
    return atomic_load_explicit(&w->n_left, memory_order_acquire) == 0 || pp_weight_make(w, row0, row1, stop, cancel);
}
/* Records that `t` holds NaN or a value that overflows. Any thread. */
void pp_weights_bad(struct pp_weights *w, const struct pp_tensor *t);
/* PP_ERR_FORMAT: such a value was found, and the text names the tensor; PP_ERR_IO: the cache's file shrank while it was
 * mapped. Cheap. Any thread. */
enum pp_code pp_weights_check(const struct pp_weights *w, struct pp_error *err);
/* The error of such a tensor: PP_ERR_FORMAT. */
enum pp_code pp_fail_values(const struct pp_tensor *t, struct pp_error *err);

struct pp_pool;
/* Packs everything that is not packed yet, on all threads, and waits until the keeper has finished. For measurements.
 * PP_ERR_CANCELLED, or as pp_weights_check. */
enum pp_code pp_weights_finish(struct pp_weights *w, struct pp_pool *pool, const struct pp_cancel *cancel,
                               struct pp_error *err);

struct pp_weights_state {
    uint64_t bytes;             /* of all packed weights */
    uint64_t mapped;            /* of those, in a file of the cache */
    uint64_t anonymous;         /* of those, in anonymous memory */
    uint64_t repaired;          /* groups of a mapped file that were damaged */
    uint64_t book_keeping;      /* bytes besides the weights */
    bool from_cache;            /* all were mapped when the engine was made */
};
/* A snapshot, which may be slightly stale while other threads pack weights. Any thread. */
struct pp_weights_state pp_weights_state(const struct pp_weights *w);

#endif
