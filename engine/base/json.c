#include "engine/base/json.h"

#include <cjson/cJSON.h>
#include <string.h>

/* An upper limit of the number of values: each but the first follows one of these characters. Those within strings
 * count, too. */
static size_t most_values(const char *text, size_t n)
{
    size_t most = 1;
    for (size_t i = 0; i < n; i++)
        most += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return most;
}

enum pp_code pp_json_parse(const char *text, size_t n, const char *name, const char **end, struct cJSON **out,
                           struct pp_error *err)
{
    *out = NULL;
    if (most_values(text, n) > PP_JSON_VALUES)
        return pp_fail(err, PP_ERR_FORMAT, "%s has more than %d values, which cannot be right", name, PP_JSON_VALUES);
    *out = cJSON_ParseWithLengthOpts(text, n, end, 0);
    return PP_OK;
}

void pp_json_take_infinity(char *text, size_t n)
{
    static const char word[] = "Infinity", number[] = "1e999   ";
    const size_t length = sizeof word - 1;
    bool quoted = false;
    for (size_t i = 0; i + length <= n; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted && memcmp(text + i, word, length) == 0)
            memcpy(text + i, number, length);
    }
}

bool pp_json_has_nul(const char *text, size_t n)
{
    const char *end = text + n, *at;
    for (; (at = memchr(text, '\\', (size_t)(end - text))) && end - at >= 2; text = at + 2)
        if (end - at >= 6 && memcmp(at, "\\u0000", 6) == 0)
            return true;
    return false;
}

const cJSON *pp_json_member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

const cJSON *pp_json_list(const cJSON *object, const char *name)
{
    const cJSON *list = pp_json_member(object, name);
    return cJSON_IsArray(list) ? list : NULL;
}

const char *pp_json_text(const cJSON *object, const char *name)
{
    const char *s = cJSON_GetStringValue(pp_json_member(object, name));
    return s ? s : "";
}
