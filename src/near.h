/* near.h - suggests the known name nearest to a mistyped one: "did you mean". */
#ifndef PP_SRC_NEAR_H
#define PP_SRC_NEAR_H

/* Keeps the best of several candidates. Zero-initialise all but `wanted`, which must stay valid. */
struct pp_near {
    const char *wanted;
    char best[256]; /* "" while no candidate is near enough */
    int distance;   /* of best */
};

/* The number of insertions, deletions, replacements and transpositions that turn a into b. Case is ignored, and so
 * is the difference of '-' and '_'. Only the first 64 bytes count. */
int pp_edit_distance(const char *a, const char *b);
void pp_near_try(struct pp_near *n, const char *candidate);

#endif
