/* adapter_pattern.c - PEFT's tables that map module names to numbers. PEFT matches "(.*\.)?(KEY)$" from the beginning
 * of a module's name (get_pattern_key). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <cjson/cJSON.h>
#include <math.h>
#include <pcre2.h>
#include <string.h>

#include "engine/adapter_file_int.h"
#include "engine/base/buf.h"
#include "engine/base/mem.h"

/* Files are untrusted, so the cost of keys is bounded. */
enum { MAX_KEYS = 2048, MAX_KEY = 1000, MAX_STEPS = 20000, MAX_SEARCHES = 50000 };

struct pattern {
    const char *key;            /* in the JSON */
    double value;
    pcre2_code *code;           /* NULL: the key is a plain name */
};

struct pp_module_patterns {
    const char *what;
    size_t n;
    long searches;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    struct pattern patterns[];
};

static enum pp_code compile(struct pp_module_patterns *p, struct pattern *to, struct pp_error *err)
{
    struct pp_buf text = {0};
    int error;
    PCRE2_SIZE where;
    pp_buf_fmt(&text, "(?:.*\\.)?(?:%s)$", to->key);
    if (!text.bad)
        to->code = pcre2_compile((PCRE2_SPTR)text.data, text.len, PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C,
                                 &error, &where, NULL);
    pp_buf_free(&text);
    return to->code ? PP_OK
                    : pp_fail(err, PP_ERR_UNSUPPORTED, "%s \"%.100s\" is not a regular expression that pippin "
                                                       "understands",
                              p->what, to->key);
}

static enum pp_code read_pattern(struct pp_module_patterns *p, const cJSON *item, struct pp_error *err)
{
    struct pattern *to = &p->patterns[p->n];
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble) || strlen(item->string) > MAX_KEY)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s \"%.100s\" is not the name of a module with a number", p->what,
                       item->string);
    *to = (struct pattern){.key = item->string, .value = item->valuedouble};
    p->n++;
    return strpbrk(to->key, "*+?[](){}|\\^$") ? compile(p, to, err) : PP_OK;
}

enum pp_code pp_module_patterns_new(const struct cJSON *object, const char *what, struct pp_module_patterns **out,
                                    struct pp_error *err)
{
    int n = cJSON_IsObject(object) ? cJSON_GetArraySize(object) : 0;
    *out = NULL;
    if (n > MAX_KEYS)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s has more than %d entries", what, MAX_KEYS);
    struct pp_module_patterns *p = pp_calloc(1, sizeof *p + (size_t)n * sizeof p->patterns[0]);
    if (!p)
        return pp_fail_nomem(err, what);
    p->what = what;
    p->match = pcre2_match_data_create(1, NULL);
    p->limits = pcre2_match_context_create(NULL);
    enum pp_code code = p->match && p->limits ? PP_OK : pp_fail_nomem(err, what);
    if (!code) {
        pcre2_set_match_limit(p->limits, MAX_STEPS);
        pcre2_set_heap_limit(p->limits, 1024);
    }
    for (const cJSON *item = n ? object->child : NULL; item && !code; item = item->next)
        code = read_pattern(p, item, err);
    if (code) {
        pp_module_patterns_free(p);
        return code;
    }
    *out = p;
    return PP_OK;
}

void pp_module_patterns_free(struct pp_module_patterns *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++)
        pcre2_code_free(p->patterns[i].code);
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->limits);
    pp_free(p);
}

/* Whether the key, in which a dot stands for any character, is the name or its end after a dot. */
static bool is_end_of(const char *key, const char *module)
{
    size_t m = strlen(key), n = strlen(module);
    if (m > n || (m < n && module[n - m - 1] != '.'))
        return false;
    for (size_t i = 0; i < m; i++)
        if (key[i] != '.' && key[i] != module[n - m + i])
            return false;
    return true;
}

enum pp_code pp_module_patterns_find(struct pp_module_patterns *p, const char *module, double *value,
                                     struct pp_error *err)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct pattern *t = &p->patterns[i];
        bool fits = !t->code && is_end_of(t->key, module);
        if (t->code) {
            int rc = pcre2_match(t->code, (PCRE2_SPTR)module, strlen(module), 0, 0, p->match, p->limits);
            if (++p->searches > MAX_SEARCHES || (rc < 0 && rc != PCRE2_ERROR_NOMATCH))
                return pp_fail(err, PP_ERR_UNSUPPORTED, "%s \"%.100s\" takes too long", p->what, t->key);
            fits = rc >= 0;
        }
        if (fits) {
            *value = t->value;
            return PP_OK;
        }
    }
    return PP_OK;
}
