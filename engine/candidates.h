/* candidates.h - the best of a vocabulary's logits, without sorting all of them; private to the engine.
 *
 * Each token looks at all logits, 100,000 to 260,000 with a large vocabulary, to find the few that count. So first the
 * largest of each group of them is found, with compares that compilers vectorise; a threshold is then chosen among
 * those, and only groups that reach it are looked at again.
 *
 * Logits that are -INFINITY or NaN are forbidden, and never among the best. Larger logits come first, of equal ones the
 * smaller token: the order is total, so results depend on nothing but the logits. */
#ifndef PP_ENGINE_CANDIDATES_H
#define PP_ENGINE_CANDIDATES_H

#include <stdint.h>

#include "engine/base/error.h"

struct pp_candidate {
    int32_t token;
    float logit;
};

/* Logits are in blocks, the last one shorter; a group is every 64th logit of a block. */
enum { PP_LOGIT_BLOCK = 1024, PP_LOGIT_GROUPS = 64 };

struct pp_candidates {
    const float *logits;       /* [n], not owned: those last looked at */
    int32_t n, n_blocks;
    float *group_tops;         /* [n_blocks, PP_LOGIT_GROUPS]: the largest of each, -INFINITY where all are forbidden */
    float *block_tops;         /* [n_blocks] */
    float largest;             /* of all */
    struct pp_candidate *list; /* the last result */
};

/* The end of a block that begins at `first`. */
static inline int32_t pp_candidates_block_end(const struct pp_candidates *c, int32_t first)
{
    return c->n - first < PP_LOGIT_BLOCK ? c->n : first + PP_LOGIT_BLOCK;
}

/* Makes its arrays for up to `room` logits; PP_ERR_NOMEM leaves nothing to be freed. Later calls allocate nothing. */
enum pp_code pp_candidates_init(struct pp_candidates *c, int32_t room, struct pp_error *err);
void pp_candidates_free(struct pp_candidates *c);

/* Looks at logits [n], which must stay unchanged: all other calls refer to them. */
void pp_candidates_set(struct pp_candidates *c, const float *logits, int32_t n);

/* Writes the k >= 1 best to list, best first. Returns how many: fewer if the others are forbidden. */
int32_t pp_candidates_best(struct pp_candidates *c, int32_t k);

/* The smallest logit of the nucleus: of the fewest tokens whose probabilities, by a softmax of all logits, add up to p,
 * 0 to 1 (arXiv 1904.09751). At least one must not be forbidden. Changes list. */
float pp_candidates_nucleus(struct pp_candidates *c, float p);

#endif
