/* lint.h - facts that the checkers of `make lint` cannot infer: the code of a failure is never PP_OK, and an item that
 * cJSON reports to be of some type is not NULL. */
#include <cjson/cJSON.h>

#include "engine/base/error.h"

#define pp_fail(err, code, ...) (pp_fail(err, code, __VA_ARGS__), (code))
#define pp_fail_nomem(err, what) (pp_fail_nomem(err, what), PP_ERR_NOMEM)

#define cJSON_IsArray(item) ((item) && cJSON_IsArray(item))
#define cJSON_IsObject(item) ((item) && cJSON_IsObject(item))
#define cJSON_IsString(item) ((item) && cJSON_IsString(item))
#define cJSON_IsNumber(item) ((item) && cJSON_IsNumber(item))
