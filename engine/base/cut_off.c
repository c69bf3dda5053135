#include "engine/base/cut_off.h"

#include <stdbool.h>

enum pp_code pp_fail_cut_off(struct pp_error *err, const char *name, const char *what, uint64_t have, uint64_t want)
{
    const bool large = want >= (uint64_t)1000000000;
    const double all = (double)want, missing = (double)(want - have), each = large ? 1e9 : 1e6;
    return pp_fail(err, PP_ERR_FORMAT,
                   "%s is cut off: %.200s lies beyond its end, %.2f of %.2f %s (%.0f %%) are missing; get the file "
                   "again (`pippin models pull` goes on where a download broke off, and compares checksums)",
                   name, what, missing / each, all / each, large ? "GB" : "MB", 100 * missing / all);
}
