/* fit.h - whether a model fits in memory, with numbers, before its weights are read. Public header of libpippin.
 *
 * What counts is what every token uses: weights as kernels read them, the pages of one conversation, the engine's work
 * space. All of that must be in memory at once, whether it belongs to the process or is in the page cache: a system
 * that reads part of it from disk again for every token is hundreds of times slower. What is read only once, to be
 * packed, need not stay. */
#ifndef PP_ENGINE_FIT_H
#define PP_ENGINE_FIT_H

#include "engine/engine.h"

struct pp_memory_need {
    uint64_t weights;        /* packed, or in the model's file where they are used in place */
    uint64_t weights_least;  /* the same, with only as many experts as a token uses: others can stay on disk */
    uint64_t own_weights;    /* the part of `weights` that is not in the model's file, and takes address space
                                besides */
    uint64_t kv;             /* of one conversation with n_ctx tokens */
    uint64_t work;           /* an estimate */
};

/* max_rows: of a batch; 0: the engine's default. */
struct pp_memory_need pp_model_memory(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx, int max_rows);
/* weights, kv and work together: what should be free. */
uint64_t pp_memory_sum(const struct pp_memory_need *need);
/* PP_ERR_NOMEM if so much is not available: the text has the numbers, and advice. PP_OK if the check is off
 * (pp_memory_check). */
enum pp_code pp_model_check_fits(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx, int max_rows,
                                 struct pp_error *err);
/* What weights and work space leave for KV pages; UINT64_MAX if the check is off. */
uint64_t pp_model_room_for_kv(const struct pp_model *m, enum pp_kv_type type, int max_rows);

#endif
