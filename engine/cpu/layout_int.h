/* layout_int.h - the inside of struct pp_weights: shared by layout.c, layout_file.c and layout_keeper.c. */
#ifndef PP_CPU_LAYOUT_INT_H
#define PP_CPU_LAYOUT_INT_H

#include <pthread.h>

#include "engine/cpu/layout.h"

enum { PP_LAYOUT_ALIGN = 4096 }; /* of matrices in the region: whole pages, so that each can be mapped alone */

struct pp_weights {
    const struct pp_model *model;
    struct pp_weight **list;     /* [n] */
    int n, cap;
    int64_t n_groups;            /* of all */
    atomic_uchar *states;        /* [n_groups] */
    uint64_t *sums;              /* [n_groups]: pp_hash64 of each packed group; written by who makes it */
    size_t region_bytes;
    uint8_t *region;             /* NULL: nothing is packed */
    int watch;                   /* of the region, see pp_map_watch; -1: none */
    _Atomic(const struct pp_tensor *) bad;
    atomic_ullong mapped;        /* bytes of the region that are pages of a file */
    atomic_ullong repaired;
    bool from_cache;             /* the region was mapped from a file when it was placed */
};

static inline uint8_t *pp_weight_group(const struct pp_weight *m, int64_t group)
{
    return m->owner->region + m->offset + (size_t)group * m->group_bytes;
}

#endif
