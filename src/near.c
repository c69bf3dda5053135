#include "src/near.h"

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

/* At most a third of the letters may be wrong, and at least one must be right. A name that contains what was typed,
 * or is a prefix of it, is near as well. */
void pp_near_try(struct pp_near *n, const char *candidate)
{
    int typed = (int)strnlen(n->wanted, MAX_NAME);
    int limit = typed < 3 ? typed - 1 : min2(4, 1 + typed / 3);
    int d = pp_edit_distance(n->wanted, candidate);
    if (d > limit && typed >= 3 && pp_casestr(candidate, n->wanted))
        d = limit;
    if (d > limit || (n->best[0] && d >= n->distance))
        return;
    n->distance = d;
    snprintf(n->best, sizeof n->best, "%s", candidate);
}
