/* near.h - "did you mean": the known name that is nearest to a mistyped one. */
#ifndef PP_SRC_NEAR_H
#define PP_SRC_NEAR_H

/* Collects candidates and keeps the best. Zero-initialise all but `wanted`, which must outlive it. */
struct pp_near {
    const char *wanted;
    char best[256]; /* "" as long as nothing is near enough */
    int distance;   /* of best */
};

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b; letter case costs nothing, and
 * neither do '-' against '_'. Only the first 64 bytes count. */
int pp_edit_distance(const char *a, const char *b);
void pp_near_try(struct pp_near *n, const char *candidate);

#endif
