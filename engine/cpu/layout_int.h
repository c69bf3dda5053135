/* layout_int.h - the inside of struct pp_weights: shared by layout.c, layout_file.c and layout_keeper.c. */
#ifndef PP_CPU_LAYOUT_INT_H
#define PP_CPU_LAYOUT_INT_H

#include <pthread.h>

#include "engine/cpu/layout.h"

enum { PP_LAYOUT_ALIGN = 65536 }; /* of matrices in the region and in the file: whole pages on every machine */

/* Where the packed weights are kept. */
struct pp_layout_store {
    char folder[512];            /* CACHE/layouts; "": nowhere */
    uint64_t quota;              /* bytes; 0: a share of the free disk space */
    struct pp_hash128 file_key;  /* of the model's file */
    bool identity_known;
    struct pp_sha256 identity;   /* of the model, if known */
    int fd;                      /* of the unfinished file, locked by us; -1: none */
    size_t data_offset;          /* of the region in the file */
    size_t file_bytes;
    int n_done;                  /* how many matrices, from the first of the list on, are packed and part of the file */
    size_t written;              /* bytes of the region that are in the file and mapped from it */
};

struct pp_weights {
    const struct pp_model *model;
    struct pp_weight **list;     /* [n] */
    int n, cap;
    int64_t n_groups;            /* of all */
    atomic_uchar *states;        /* [n_groups] */
    uint64_t *sums;              /* [n_groups]: pp_hash64 of each packed group; 0 for matrices that are used in place */
    size_t region_bytes;
    size_t least_enlarged;       /* see pp_layout_enlarge: not worth it for smaller regions */
    uint8_t *region;             /* NULL: nothing is packed */
    void *room;                  /* what was mapped for it, region_bytes + PP_LARGE_PAGE */
    int watch;                   /* of the region, see pp_map_watch; -1: no file may be mapped there */
    _Atomic(const struct pp_tensor *) bad;
    atomic_ullong mapped;        /* bytes of the region that are pages of a file */
    atomic_ullong repaired;
    bool from_cache;             /* all of the region was mapped from a file when it was placed */
    struct pp_layout_store store;

    /* the keeper */
    bool keeps;                  /* there is to be a keeper, since there is a cache folder */
    bool started;
    pthread_t keeper;
    atomic_bool stop;
    atomic_bool finished;        /* the keeper has nothing left to do */
};

/* Copies what is mapped from a file in small pages to huge pages, if memory is plentiful (layout_large.c). Called by
 * the keeper when it has nothing else to do. */
void pp_layout_enlarge(struct pp_weights *w);
/* Stops the keeper. What it has written stays, so that another engine can continue. */
void pp_weights_stop_keeping(struct pp_weights *w);
/* Waits until the keeper has nothing left to do. false: cancelled. */
bool pp_weights_wait_saved(struct pp_weights *w, const struct pp_cancel *cancel);

static inline uint8_t *pp_weight_group(const struct pp_weight *m, int64_t group)
{
    return m->owner->region + m->offset + (size_t)group * m->group_bytes;
}

static inline size_t pp_weight_span(const struct pp_weight *m)
{
    return (m->bytes + PP_LAYOUT_ALIGN - 1) / PP_LAYOUT_ALIGN * PP_LAYOUT_ALIGN;
}

#endif
