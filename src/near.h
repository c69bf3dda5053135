/* near.h - suggests the known names nearest to a mistyped one: "did you mean". */
#ifndef PP_SRC_NEAR_H
#define PP_SRC_NEAR_H

#include <stdbool.h>

#include "engine/base/buf.h"

enum { PP_NEAR_MORE = 2 };

/* Keeps the best of several candidates. Zero-initialise all but `wanted`, which must stay valid. */
struct pp_near {
    const char *wanted;
    char best[256];               /* "" while no candidate is near enough */
    int distance;                 /* of best */
    char more[PP_NEAR_MORE][256]; /* the next best, or "" */
    int more_distance[PP_NEAR_MORE];
};

/* The number of insertions, deletions, replacements and transpositions that turn a into b. Case is ignored, and so
 * is the difference of '-' and '_'. Only the first 64 bytes count. */
int pp_edit_distance(const char *a, const char *b);
/* Whether the candidate is now among those that are kept. */
bool pp_near_try(struct pp_near *n, const char *candidate);
/* Writes the candidates that were kept, nearest first: "a", "b" or "c". folder[0..n_folder) precedes each name. */
void pp_near_list(const struct pp_near *n, const char *folder, int n_folder, struct pp_buf *b);

#endif
