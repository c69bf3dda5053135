/* cut_off.h - the error of a model file that lacks its end. */
#ifndef PP_BASE_CUT_OFF_H
#define PP_BASE_CUT_OFF_H

#include <stdint.h>

#include "engine/base/error.h"

enum { PP_FILE_BITS = 46 }; /* nothing that a file says lies behind 2^46 bytes is meant: it is damaged */

/* PP_ERR_FORMAT of a file of `have` bytes that needs `want` at least: how much is missing, and what to do. what: such
 * as "tensor output.weight", which lies beyond its end. */
enum pp_code pp_fail_cut_off(struct pp_error *err, const char *name, const char *what, uint64_t have, uint64_t want);

#endif
