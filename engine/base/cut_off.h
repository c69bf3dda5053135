/* cut_off.h - the error of a truncated model file. */
#ifndef PP_BASE_CUT_OFF_H
#define PP_BASE_CUT_OFF_H

#include <stdint.h>

#include "engine/base/error.h"

enum { PP_FILE_BITS = 46 }; /* a file with offsets beyond 2^46 bytes is damaged, not truncated */

/* Fails with PP_ERR_FORMAT for the file `name`, which has `have` bytes and needs at least `want`: the message tells how
 * much is missing and what to do. what: what is beyond the end, such as "tensor output.weight". */
enum pp_code pp_fail_cut_off(struct pp_error *err, const char *name, const char *what, uint64_t have, uint64_t want);

#endif
