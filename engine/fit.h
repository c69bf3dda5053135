/* fit.h - whether a model fits in memory, with the numbers, before anything of it is read. Public header of libpippin.
 *
 * What counts is what every token goes through again: weights as kernels read them, the pages of one conversation, the
 * engine's work space. All of that must be in memory at once, whether it is the process's own or pages of a file: a
 * system that has to read part of it anew for every token is hundreds of times slower. What is read once to be packed
 * need not stay. */
#ifndef PP_ENGINE_FIT_H
#define PP_ENGINE_FIT_H

#include "engine/engine.h"

struct pp_memory_need {
    uint64_t weights;        /* packed, or in the model's file where they are used as they lie there */
    uint64_t weights_least;  /* the same, but of experts only as many as a token uses: the others can wait on a disk */
    uint64_t own_weights;    /* of `weights`, what is not in the model's file: address space besides */
    uint64_t kv;             /* of one conversation of n_ctx tokens */
    uint64_t work;           /* about */
};

/* max_rows: of a batch; 0: an engine's default. */
struct pp_memory_need pp_model_memory(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx, int max_rows);
/* weights, kv and work together: what should be free. */
uint64_t pp_memory_sum(const struct pp_memory_need *need);
/* PP_ERR_NOMEM if that cannot be had: the text has the numbers, and what to do. PP_OK also if nobody wants to know
 * (pp_memory_check). */
enum pp_code pp_model_check_fits(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx, int max_rows,
                                 struct pp_error *err);
/* What is left for pages of KV beside weights and work space; UINT64_MAX if nobody wants to know. */
uint64_t pp_model_room_for_kv(const struct pp_model *m, enum pp_kv_type type, int max_rows);

#endif
