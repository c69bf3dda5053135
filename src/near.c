#include "src/near.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/word.h"

enum { MAX_NAME = 64 };

static int min2(int a, int b)
{
    return a < b ? a : b;
}

static char folded(char c)
{
    return c == '_' ? '-' : pp_lower(c);
}

/* Optimal string alignment distance (Damerau-Levenshtein without repeated edits), with three rows. */
int pp_edit_distance(const char *a, const char *b)
{
    int rows[3][MAX_NAME + 1];
    int na = (int)strnlen(a, MAX_NAME), nb = (int)strnlen(b, MAX_NAME);
    for (int j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *now = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= nb; j++) {
            int same = folded(a[i - 1]) == folded(b[j - 1]);
            now[j] = min2(above[j - 1] + !same, min2(above[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]))
                now[j] = min2(now[j], two_above[j - 2] + 1);
        }
    }
    return rows[na % 3][nb];
}

static bool is_kept(const struct pp_near *n, const char *candidate)
{
    bool kept = strcmp(n->best, candidate) == 0;
    for (int i = 0; i < PP_NEAR_MORE; i++)
        kept = kept || strcmp(n->more[i], candidate) == 0;
    return kept;
}

/* Of equally near names, the one that came first is before the other: the best one so far, if a better one replaces it
 * (was_best), or one that is already kept. */
static void keep_more(struct pp_near *n, const char *name, int distance, bool was_best)
{
    char kept[sizeof n->best], pushed[sizeof n->best];
    snprintf(kept, sizeof kept, "%s", name);
    for (int i = 0; i < PP_NEAR_MORE && kept[0]; i++) {
        const int d = n->more_distance[i];
        if (n->more[i][0] && (distance > d || (distance == d && !was_best)))
            continue;
        was_best = true; /* and so do all that it pushes back */
        memcpy(pushed, n->more[i], sizeof pushed);
        memcpy(n->more[i], kept, sizeof kept);
        n->more_distance[i] = distance;
        memcpy(kept, pushed, sizeof kept);
        distance = d;
    }
}

/* At most a third of the letters may be wrong, and at least one must be right. A name that contains what was typed,
 * or is a prefix of it, is near as well. */
bool pp_near_try(struct pp_near *n, const char *candidate)
{
    int typed = (int)strnlen(n->wanted, MAX_NAME);
    int limit = typed < 3 ? typed - 1 : min2(4, 1 + typed / 3);
    int d = pp_edit_distance(n->wanted, candidate);
    if (d > limit && typed >= 3 && pp_casestr(candidate, n->wanted))
        d = limit;
    if (d > limit || is_kept(n, candidate))
        return false;
    if (!n->best[0] || d < n->distance) {
        if (n->best[0])
            keep_more(n, n->best, n->distance, true);
        n->distance = d;
        snprintf(n->best, sizeof n->best, "%s", candidate);
    } else {
        keep_more(n, candidate, d, false);
    }
    return is_kept(n, candidate);
}

void pp_near_list(const struct pp_near *n, const char *folder, int n_folder, struct pp_buf *b)
{
    pp_buf_fmt(b, "\"%.*s%s\"", n_folder, folder, n->best);
    for (int i = 0; i < PP_NEAR_MORE && n->more[i][0]; i++) {
        const bool last = i + 1 == PP_NEAR_MORE || !n->more[i + 1][0];
        pp_buf_fmt(b, "%s \"%.*s%s\"", last ? " or" : ",", n_folder, folder, n->more[i]);
    }
}
