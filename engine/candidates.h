/* candidates.h - the best of a vocabulary's logits, without putting all of them in order; private to the engine.
 *
 * A text's every token looks at all logits, with a large vocabulary some 100,000 to 260,000, to find the few that
 * count. So the largest of each group of them is found first, by compares that compilers make vector code of; what is
 * asked for is then counted among those, and only groups that hold some of it are looked at again.
 *
 * Logits that are -INFINITY or no numbers are forbidden, and never among the best. Larger logits come first, of equal
 * ones the smaller token: the order is total, so the answers hang on nothing but the logits. */
#ifndef PP_ENGINE_CANDIDATES_H
#define PP_ENGINE_CANDIDATES_H

#include <stdint.h>

#include "engine/base/error.h"

struct pp_candidate {
    int32_t token;
    float logit;
};

/* Logits come in blocks, the last one shorter, and a block in groups: its every 64th. */
enum { PP_LOGIT_BLOCK = 1024, PP_LOGIT_GROUPS = 64 };

struct pp_candidates {
    const float *logits;       /* [n], not owned: what was looked at */
    int32_t n, n_blocks;
    float *group_tops;         /* [n_blocks, PP_LOGIT_GROUPS]: the largest of each, -INFINITY where all are forbidden */
    float *block_tops;         /* [n_blocks] */
    float largest;             /* of all */
    struct pp_candidate *list; /* what was found last */
};

/* Behind the last logit of a block that begins at `first`. */
static inline int32_t pp_candidates_block_end(const struct pp_candidates *c, int32_t first)
{
    return c->n - first < PP_LOGIT_BLOCK ? c->n : first + PP_LOGIT_BLOCK;
}

/* Makes its arrays for up to `room` logits; PP_ERR_NOMEM leaves nothing to be freed. Later calls allocate nothing. */
enum pp_code pp_candidates_init(struct pp_candidates *c, int32_t room, struct pp_error *err);
void pp_candidates_free(struct pp_candidates *c);

/* Looks at logits [n], which must stay as they are: all other calls are about them. */
void pp_candidates_look(struct pp_candidates *c, const float *logits, int32_t n);

/* The k >= 1 best, into list, best first. Returns how many: fewer where the others are forbidden. */
int32_t pp_candidates_best(struct pp_candidates *c, int32_t k);

/* The least logit of the nucleus: of the fewest that together are as likely as p, 0 to 1, of the whole, by a softmax of
 * all logits (arXiv 1904.09751). At least one is not forbidden. Changes list. */
float pp_candidates_nucleus(struct pp_candidates *c, float p);

#endif
