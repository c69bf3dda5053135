#include "engine/base/cut_off.h"

#include <stdbool.h>
#include <stdio.h>

enum pp_code pp_fail_cut_off(struct pp_error *err, const char *name, const char *what, uint64_t have, uint64_t want)
{
    const bool large = want >= (uint64_t)1000000000;
    const uint64_t missing = want - have, least = large ? 10000000 : 10000; /* smallest number that is not printed as
                                                                               0.00 */
    const double all = (double)want, each = large ? 1e9 : 1e6;
    char amount[80];
    if (missing < least)
        snprintf(amount, sizeof amount, "%llu of %llu bytes %s", (unsigned long long)missing, (unsigned long long)want,
                 missing == 1 ? "is" : "are");
    else
        snprintf(amount, sizeof amount, "%.2f of %.2f %s (%.0f %%) are", (double)missing / each, all / each,
                 large ? "GB" : "MB", 100 * (double)missing / all);
    return pp_fail(err, PP_ERR_FORMAT,
                   "%s is truncated: %.200s lies beyond its end, %s missing; download the file again (`pippin models "
                   "pull` resumes downloads and verifies checksums)",
                   name, what, amount);
}
