/* lint.h - what the checkers of `make lint` do not see by themselves: a failure's code is never PP_OK, and what cJSON
 * says to be of some kind is there. */
#include <cjson/cJSON.h>

#include "engine/base/error.h"

#define pp_fail(err, code, ...) (pp_fail(err, code, __VA_ARGS__), (code))
#define pp_fail_nomem(err, what) (pp_fail_nomem(err, what), PP_ERR_NOMEM)

#define cJSON_IsArray(item) ((item) && cJSON_IsArray(item))
#define cJSON_IsObject(item) ((item) && cJSON_IsObject(item))
#define cJSON_IsString(item) ((item) && cJSON_IsString(item))
#define cJSON_IsNumber(item) ((item) && cJSON_IsNumber(item))
