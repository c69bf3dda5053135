/* lint.h - what the checkers of `make lint` do not see by themselves: a failure's code is never PP_OK. */
#include "engine/base/error.h"

#define pp_fail(err, code, ...) (pp_fail(err, code, __VA_ARGS__), (code))
#define pp_fail_nomem(err, what) (pp_fail_nomem(err, what), PP_ERR_NOMEM)
