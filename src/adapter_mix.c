#include "src/adapter_mix.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "src/json_numbers.h"
#include "src/options.h"
#include "src/paths.h"

void pp_adapter_name(const char *path, char *out, size_t cap)
{
    const char *base = pp_base_name(path);
    if (strncmp(base, "starter-", 8) == 0 && base[8])
        base += 8;
    if (strncmp(base, "lora-", 5) == 0 && base[5])
        base += 5;
    size_t n = strlen(base);
    if (n > 5 && pp_case_ends_with(base, ".gguf"))
        n -= 5;
    n = n < cap ? n : pp_utf8_complete(base, cap - 1);
    snprintf(out, cap, "%.*s", (int)n, base);
}

float pp_adapter_strength(float wanted)
{
    return isfinite(wanted) ? fminf(fmaxf(wanted, -PP_ADAPTER_MAX_STRENGTH), PP_ADAPTER_MAX_STRENGTH) : 1;
}

bool pp_adapter_strength_read(const char *text, float *out)
{
    double scale;
    if (!pp_options_number(text, &scale) || !(scale >= -PP_ADAPTER_MAX_STRENGTH && scale <= PP_ADAPTER_MAX_STRENGTH))
        return false;
    *out = (float)scale;
    return true;
}

bool pp_adapter_mix_add(struct pp_adapter_mix *s, const char *path, float scale)
{
    int i = 0;
    while (i < s->n && strcmp(s->item[i].path, path) != 0)
        i++;
    if (i == PP_MAX_ADAPTERS || strlen(path) >= sizeof s->item[i].path)
        return false;
    snprintf(s->item[i].path, sizeof s->item[i].path, "%s", path);
    s->item[i].scale = pp_adapter_strength(scale);
    s->limited = s->limited || s->item[i].scale != scale;
    s->n = i < s->n ? s->n : i + 1;
    return true;
}

void pp_adapter_mix_remove(struct pp_adapter_mix *s, const char *path)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->item[i].path, path) == 0)
            memmove(&s->item[i], &s->item[i + 1], (size_t)(--s->n - i) * sizeof *s->item);
}

bool pp_adapter_mix_equal(const struct pp_adapter_mix *a, const struct pp_adapter_mix *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++)
        same = strcmp(a->item[i].path, b->item[i].path) == 0 && a->item[i].scale == b->item[i].scale;
    return same;
}

void pp_adapter_mix_label(const struct pp_adapter_mix *s, char *out, size_t cap)
{
    size_t len = 0;
    if (cap)
        out[0] = 0;
    for (int i = 0; i < s->n && len + 1 < cap; i++) {
        char name[128];
        pp_adapter_name(s->item[i].path, name, sizeof name);
        int n = snprintf(out + len, cap - len, "%s%s %.2f", len ? ", " : "", name, (double)s->item[i].scale);
        len += n > 0 ? (size_t)n : 0;
    }
    if (len >= cap && cap)
        out[pp_utf8_complete(out, cap - 1)] = 0;
}

char *pp_adapter_mix_json(const struct pp_adapter_mix *s)
{
    cJSON *array = cJSON_CreateArray();
    bool ok = array;
    for (int i = 0; ok && i < s->n; i++) {
        cJSON *o = cJSON_CreateObject();
        const double scale = pp_json_short(s->item[i].scale);
        ok = o && cJSON_AddStringToObject(o, "path", s->item[i].path) && cJSON_AddNumberToObject(o, "scale", scale) &&
             cJSON_AddItemToArray(array, o);
        if (!ok)
            cJSON_Delete(o);
    }
    char *json = ok ? cJSON_PrintUnformatted(array) : NULL, *copy = json ? pp_strdup(json) : NULL;
    cJSON_free(json);
    cJSON_Delete(array);
    return copy;
}

bool pp_adapter_mix_read(const char *json, struct pp_adapter_mix *s)
{
    s->n = 0;
    s->limited = false;
    if (!json || !*json)
        return true;
    cJSON *array = cJSON_Parse(json);
    bool good = cJSON_IsArray(array);
    for (const cJSON *o = good ? array->child : NULL; o; o = o->next) {
        const cJSON *path = pp_json_member(o, "path"), *scale = pp_json_member(o, "scale");
        good = cJSON_IsString(path) && *path->valuestring &&
               pp_adapter_mix_add(s, path->valuestring,
                                  cJSON_IsNumber(scale) ? (float)fmin(fmax(scale->valuedouble, -100), 100) : 1) && good;
    }
    cJSON_Delete(array);
    return good;
}
