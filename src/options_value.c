/* options_value.c - checks and sets the values of options. */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "src/options_internal.h"
#include "src/snapshots.h"

/* --- memory that lives until exit -------------------------------------------------------------------------------- */

static struct allocation {
    struct allocation *next;
    void *what;
} *allocations;
static pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER;

bool pp_keep_until_exit(void *what)
{
    struct allocation *k = pp_malloc(sizeof *k);
    if (!k)
        return false;
    k->what = what;
    pthread_mutex_lock(&allocations_lock);
    k->next = allocations;
    allocations = k;
    pthread_mutex_unlock(&allocations_lock);
    return true;
}

const char *pp_copy_until_exit(const char *s, size_t n)
{
    char *copy = pp_strndup(s, n);
    if (copy && !pp_keep_until_exit(copy)) {
        pp_free(copy);
        return NULL;
    }
    return copy;
}

/* --- numbers ----------------------------------------------------------------------------------------------------- */

static bool whole_number(const char *s, int64_t *out)
{
    char *end;
    const char *digits = s + (*s == '-' || *s == '+');
    if (*digits < '0' || *digits > '9')
        return false;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    *out = v;
    return *end == 0 && errno == 0;
}

bool pp_options_number(const char *s, double *out)
{
    char *end;
    if (!*s || s[strspn(s, "0123456789+-.eE")] != 0)
        return false;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return false;
    *out = strtod_l(s, &end, c);
    freelocale(c);
    return end != s && *end == 0 && isfinite(*out);
}

const char *pp_options_point(const char *s)
{
    const char *comma = strchr(s, ',');
    const bool has_comma = comma && comma[1] >= '0' && comma[1] <= '9' && s[strspn(s, "0123456789+-,")] == 0;
    return has_comma ? "; use a decimal point, not a comma" : "";
}

/* An error about a number; a maximum that nobody reaches is mentioned only if it was exceeded. */
static enum pp_code bad_number(const struct pp_option *opt, const char *kind, const char *value, const char *shown,
                               struct pp_error *err)
{
    double v;
    const bool too_large = pp_options_number(value, &v) && v > opt->max;
    if (opt->max >= 1e9 && !too_large)
        return pp_fail(err, PP_ERR_USAGE, "%s expects %s of at least %.15g, not \"%s\"%s", shown, kind, opt->min, value,
                       pp_options_point(value));
    return pp_fail(err, PP_ERR_USAGE, "%s expects %s from %.15g to %.15g, not \"%s\"%s", shown, kind, opt->min,
                   opt->max, value, pp_options_point(value));
}

static void *field(struct pp_parse *ps, const struct pp_option *opt)
{
    return (char *)ps->o + opt->offset;
}

enum pp_code pp_set_int64(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                          struct pp_error *err)
{
    int64_t v;
    if (!whole_number(value, &v) || (double)v < opt->min || (double)v > opt->max)
        return bad_number(opt, "a whole number", value, shown, err);
    *(int64_t *)field(ps, opt) = v;
    return PP_OK;
}

/* The minimum leaves room for a chat template, which alone takes a dozen tokens. */
enum pp_code pp_set_ctx_size(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                             struct pp_error *err)
{
    enum { MINIMUM = 32 };
    enum pp_code code = pp_set_int64(ps, opt, value, shown, err);
    const int64_t v = code ? 0 : *(int64_t *)field(ps, opt);
    if (v > 0 && v < MINIMUM)
        return pp_fail(err, PP_ERR_USAGE,
                       "%s: a context of %d tokens is too small; give at least %d, or 0 for the model's own "
                       "size", shown, (int)v, MINIMUM);
    return code;
}

enum pp_code pp_set_int(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                        struct pp_error *err)
{
    int64_t v;
    if (!whole_number(value, &v) || (double)v < opt->min || (double)v > opt->max || v != (int)v)
        return bad_number(opt, "a whole number", value, shown, err);
    *(int *)field(ps, opt) = (int)v;
    return PP_OK;
}

/* bench accepts a list, everything else a single number. */
enum pp_code pp_set_threads(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                            struct pp_error *err)
{
    ps->o->bench.threads = NULL;
    if (strcmp(ps->o->command, "bench") != 0 || !strchr(value, ','))
        return pp_set_int(ps, opt, value, shown, err);
    int64_t first = 0;
    for (const char *at = value; *at || at == value;) {
        char word[16] = "";
        int64_t v;
        size_t n = strcspn(at, ",");
        memcpy(word, at, n < sizeof word ? n : 0);
        if (!whole_number(word, &v) || (double)v < opt->min || (double)v > opt->max || strcmp(at + n, ",") == 0)
            return bad_number(opt, "whole numbers separated by commas, each", value, shown, err);
        first = at == value ? v : first;
        at += n + (at[n] == ',');
    }
    ps->o->threads = (int)first;
    ps->o->bench.threads = value;
    return PP_OK;
}

/* Accepts "5" and "5%". */
enum pp_code pp_set_percent(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                            struct pp_error *err)
{
    char number[32] = "";
    size_t n = strlen(value);
    n -= n > 0 && value[n - 1] == '%';
    memcpy(number, value, n < sizeof number ? n : 0);
    return pp_set_float(ps, opt, number, shown, err);
}

enum pp_code pp_set_float(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                          struct pp_error *err)
{
    double v;
    if (!pp_options_number(value, &v) || v < opt->min || v > opt->max)
        return bad_number(opt, "a number", value, shown, err);
    *(float *)field(ps, opt) = (float)v;
    return PP_OK;
}

/* A size or "off". A size of 0 means off, too; the value 0 is reserved for "not given". */
static enum pp_code set_quota(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                              uint64_t off, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    uint64_t *quota = field(ps, opt);
    if (strcmp(value, "off") == 0)
        *quota = 0;
    else if ((code = pp_set_bytes(ps, opt, value, shown, err)))
        return pp_fail(err, code, "%s expects a size such as 20G, or off, not \"%s\"", shown, value);
    if (!*quota)
        *quota = off;
    return PP_OK;
}

enum pp_code pp_set_bell(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                         struct pp_error *err)
{
    if (strcmp(value, "off") != 0)
        return pp_set_int(ps, opt, value, shown, err);
    *(int *)field(ps, opt) = -1;
    return PP_OK;
}

enum pp_code pp_set_layout_cache(struct pp_parse *ps, const struct pp_option *opt, const char *value,
                                 const char *shown, struct pp_error *err)
{
    return set_quota(ps, opt, value, shown, PP_LAYOUTS_OFF, err);
}

enum pp_code pp_set_snapshot_quota(struct pp_parse *ps, const struct pp_option *opt, const char *value,
                                   const char *shown, struct pp_error *err)
{
    return set_quota(ps, opt, value, shown, PP_SNAPSHOTS_OFF, err);
}

enum pp_code pp_set_bytes(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                          struct pp_error *err)
{
    static const char units[] = "KMGT";
    char *end = NULL;
    uint64_t v = 0;
    bool ok = *value >= '0' && *value <= '9';
    if (ok) {
        errno = 0;
        v = strtoull(value, &end, 10);
        ok = errno == 0;
    }
    if (ok && *end) {
        char upper = (char)(*end >= 'a' && *end <= 'z' ? *end - 'a' + 'A' : *end);
        const char *unit = strchr(units, upper);
        int shift = unit ? 10 * (int)(unit - units + 1) : 0;
        end += unit != NULL;
        ok = unit && (!*end || pp_casecmp(end, "b") == 0 || pp_casecmp(end, "ib") == 0) && v <= UINT64_MAX >> shift;
        v = ok ? v << shift : 0;
    }
    if (!ok)
        return pp_fail(err, PP_ERR_USAGE, "%s expects a size such as 512M or 4G, not \"%s\"", shown, value);
    *(uint64_t *)field(ps, opt) = v;
    return PP_OK;
}

/* --- texts ------------------------------------------------------------------------------------------------------- */

enum pp_code pp_set_flag(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                         struct pp_error *err)
{
    bool *flag = field(ps, opt);
    if (!value || pp_word_in("1 yes on true", value, strlen(value)))
        *flag = true;
    else if (pp_word_in("0 no off false", value, strlen(value)))
        *flag = false;
    else
        return pp_fail(err, PP_ERR_USAGE, "%s expects yes or no, not \"%s\"", shown, value);
    return PP_OK;
}

enum pp_code pp_set_text(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                         struct pp_error *err)
{
    (void)shown, (void)err;
    *(const char **)field(ps, opt) = value;
    return PP_OK;
}

enum pp_code pp_check_words(const char *text, const char *shown, struct pp_error *err)
{
    return pp_utf8_valid(text, strlen(text))
               ? PP_OK
               : pp_fail(err, PP_ERR_USAGE, "%s: the text is not valid UTF-8; convert it with iconv", shown);
}

enum pp_code pp_set_words(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                          struct pp_error *err)
{
    const enum pp_code code = pp_check_words(value, shown, err);
    return code ? code : pp_set_text(ps, opt, value, shown, err);
}

/* The error for an empty name, which is usually an unset variable in a script. */
static enum pp_code no_name(const char *shown, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_USAGE, "%s needs a file name", shown);
}

enum pp_code pp_set_file(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                         struct pp_error *err)
{
    return *value ? pp_set_text(ps, opt, value, shown, err) : no_name(shown, err);
}

/* Several texts are paragraphs of one prompt, if it is one for a model. */
enum pp_code pp_set_prompt(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                           struct pp_error *err)
{
    const char *before = ps->o->prompt;
    struct pp_buf both = {0};
    if (!before || !*before || strcmp(ps->o->command, "run") != 0)
        return pp_set_text(ps, opt, value, shown, err);
    pp_buf_fmt(&both, "%s%s%s", before, *value ? "\n\n" : "", value);
    ps->o->prompt = both.bad ? NULL : pp_copy_until_exit(both.data, both.len);
    pp_buf_free(&both);
    return ps->o->prompt ? PP_OK : pp_fail_nomem(err, "the prompt");
}

/* Only `run` reads several files; elsewhere all but one would be ignored. */
enum pp_code pp_set_read_file(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                              struct pp_error *err)
{
    struct pp_options *o = ps->o;
    const int most = strcmp(o->command, "run") == 0 ? PP_MAX_FILES : 1;
    if (o->n_files == most)
        return most > 1 ? pp_fail(err, PP_ERR_USAGE, "%s: at most %d files are read", shown, most)
                        : pp_fail(err, PP_ERR_USAGE, "%s: pippin %s reads one file; give one of them", shown,
                                  o->command);
    o->files[o->n_files++] = value;
    return pp_set_file(ps, opt, value, shown, err);
}

/* "-" is refused: the user most likely expects stdout, not a file of that name. */
enum pp_code pp_set_new_file(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                             struct pp_error *err)
{
    if (strcmp(value, "-") == 0)
        return pp_fail(err, PP_ERR_USAGE, "%s needs the name of a file to write; \"-\" is not possible here", shown);
    return *value ? pp_set_text(ps, opt, value, shown, err) : no_name(shown, err);
}

enum pp_code pp_set_choice(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                           struct pp_error *err)
{
    if (!pp_word_in(opt->choices, value, strlen(value)))
        return pp_fail(err, PP_ERR_USAGE, "%s expects one of: %s; not \"%s\"", shown, opt->choices, value);
    return pp_set_text(ps, opt, value, shown, err);
}

enum pp_code pp_set_model(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                          struct pp_error *err)
{
    if (!*value && ps->source == PP_SOURCE_COMMAND_LINE) /* an unset variable of a script must not mean another model */
        return pp_fail(err, PP_ERR_USAGE, "%s needs a model, not an empty text; leave the option out for the default "
                                          "model", shown);
    ps->model = ps->source;
    ps->config_model = ps->config_model || (*value && ps->source == PP_SOURCE_CONFIG);
    return pp_set_text(ps, opt, value, shown, err);
}

enum pp_code pp_set_draft(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                          struct pp_error *err)
{
    if (!*value && ps->source == PP_SOURCE_COMMAND_LINE)
        return pp_fail(err, PP_ERR_USAGE,
                       "%s needs a model, not an empty text; leave it out for the default, or give --no-draft", shown);
    ps->draft = ps->source;
    return pp_set_text(ps, opt, value, shown, err);
}

enum pp_code pp_set_kv_type(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                            struct pp_error *err)
{
    bool list = strcmp(ps->o->command, "bench") == 0;
    for (const char *at = value; *at || at == value;) {
        char word[16] = "";
        size_t n = list ? strcspn(at, ",") : strlen(at);
        memcpy(word, at, n < sizeof word ? n : 0);
        int type = pp_kv_type_by_name(word);
        if (type < 0 || strcmp(at + n, ",") == 0)
            return pp_fail(err, PP_ERR_USAGE, "%s expects one of: %s; not \"%s\"", shown, opt->choices, value);
        if (at == value)
            ps->o->kv_type = (enum pp_kv_type)type;
        at += n + (at[n] == ',');
    }
    ps->o->bench.kv_types = list && strchr(value, ',') ? value : NULL;
    ps->o->kv_type_given = true;
    return PP_OK;
}

/* -1 asks for a new seed each time, as in llama.cpp. */
enum pp_code pp_set_seed(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                         struct pp_error *err)
{
    (void)opt;
    char *end;
    if (strcmp(value, "-1") == 0) {
        ps->o->seed_given = false;
        return PP_OK;
    }
    errno = 0;
    unsigned long long v = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno)
        return pp_fail(err, PP_ERR_USAGE,
                       "%s expects a whole number from 0 to 18446744073709551615 (or -1: random), not \"%s\"",
                       shown, value);
    ps->o->sampling.seed = v;
    ps->o->seed_given = true;
    return PP_OK;
}

/* --- lists ------------------------------------------------------------------------------------------------------- */

/* Values from the same source are added; a stronger source replaces those of weaker ones. */
static void begin_list(struct pp_parse *ps, enum pp_source *have, int *n)
{
    if (*have != ps->source)
        *n = 0;
    *have = ps->source;
}

static enum pp_code add_lora(struct pp_lora_option *list, int *n, const char *path, double scale, const char *shown,
                             struct pp_error *err)
{
    if (*n == PP_MAX_LORA_OPTIONS)
        return pp_fail(err, PP_ERR_USAGE, "%s: at most %d adapters can be used at once", shown,
                       (int)PP_MAX_LORA_OPTIONS);
    list[(*n)++] = (struct pp_lora_option){path, (float)scale};
    return PP_OK;
}

enum pp_code pp_set_lora(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                         struct pp_error *err)
{
    (void)opt;
    if (!*value)
        return pp_fail(err, PP_ERR_USAGE, "%s needs the name of an adapter", shown);
    begin_list(ps, &ps->lora, &ps->o->n_lora);
    return add_lora(ps->o->lora, &ps->o->n_lora, value, 1, shown, err);
}

/* Splits FILE:SCALE; *path NULL if there is no scale, or no file before it. False: out of memory. */
static bool take_scale(const char *value, const char **path, double *scale)
{
    const char *colon = strrchr(value, ':');
    *path = NULL;
    if (!colon || colon == value || !pp_options_number(colon + 1, scale))
        return true;
    *path = pp_copy_until_exit(value, (size_t)(colon - value));
    return *path != NULL;
}

enum pp_code pp_set_lora_scaled(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                                struct pp_error *err)
{
    const char *path;
    double scale;
    if (!take_scale(value, &path, &scale))
        return pp_fail_nomem(err, "a file name");
    if (!path || !(scale >= opt->min && scale <= opt->max))
        return pp_fail(err, PP_ERR_USAGE,
                       "%s expects FILE:SCALE with a scale from %g to %g, such as bard.gguf:0.8, not \"%s\"", shown,
                       opt->min, opt->max, value);
    begin_list(ps, &ps->lora, &ps->o->n_lora);
    return add_lora(ps->o->lora, &ps->o->n_lora, path, scale, shown, err);
}

enum pp_code pp_set_draft_lora(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                               struct pp_error *err)
{
    const char *path;
    double scale = 1;
    if (!take_scale(value, &path, &scale))
        return pp_fail_nomem(err, "a file name");
    if (!*value || (path && !(scale >= opt->min && scale <= opt->max)))
        return pp_fail(err, PP_ERR_USAGE,
                       "%s expects FILE, or FILE:SCALE with a scale from %g to %g, such as bard.gguf:0.8, not \"%s\"",
                       shown, opt->min, opt->max, value);
    begin_list(ps, &ps->draft_lora, &ps->o->n_draft_lora);
    return add_lora(ps->o->draft_lora, &ps->o->n_draft_lora, path ? path : value, path ? scale : 1, shown, err);
}

enum pp_code pp_set_stop(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                         struct pp_error *err)
{
    (void)opt;
    if (!*value)
        return pp_fail(err, PP_ERR_USAGE, "%s needs a text that is not empty", shown);
    if (pp_check_words(value, shown, err)) /* no answer would ever have it */
        return PP_ERR_USAGE;
    begin_list(ps, &ps->stops, &ps->o->n_stops);
    if (ps->o->n_stops == PP_MAX_STOPS)
        return pp_fail(err, PP_ERR_USAGE, "%s can be given at most %d times", shown, (int)PP_MAX_STOPS);
    ps->o->stops[ps->o->n_stops++] = value;
    return PP_OK;
}

enum pp_code pp_set_in_file(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                            struct pp_error *err)
{
    struct pp_options *o = ps->o;
    (void)opt;
    if (o->imatrix.n_in_files == PP_MAX_IN_FILES)
        return pp_fail(err, PP_ERR_USAGE, "%s can be given at most %d times", shown,
                       (int)PP_MAX_IN_FILES);
    if (!*value)
        return no_name(shown, err);
    o->imatrix.in_files[o->imatrix.n_in_files++] = value;
    return PP_OK;
}

/* ID+B, ID-B or ID=B; a bias of "-inf" forbids the token. */
enum pp_code pp_set_logit_bias(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                               struct pp_error *err)
{
    struct pp_sampling *s = &ps->o->sampling;
    char *sign;
    double bias = 0;
    errno = 0;
    long long id = strtoll(value, &sign, 10);
    bool ok = *value >= '0' && *value <= '9' && errno == 0 && id <= INT32_MAX && *sign && strchr("+-=", *sign);
    if (ok) {
        const char *number = *sign == '=' ? sign + 1 : sign;
        if (strcmp(number, "-inf") == 0)
            bias = -INFINITY;
        else
            ok = pp_options_number(number, &bias) && bias >= opt->min && bias <= opt->max;
    }
    if (!ok)
        return pp_fail(err, PP_ERR_USAGE,
                       "%s expects a token id and what to add to its logit, such as 15043+1.5 or 15043-inf, not \"%s\"",
                       shown, value);
    begin_list(ps, &ps->bias, &s->n_bias);
    if (s->n_bias == PP_MAX_LOGIT_BIAS)
        return pp_fail(err, PP_ERR_USAGE, "%s can be given at most %d times", shown, (int)PP_MAX_LOGIT_BIAS);
    s->bias[s->n_bias].token = (int32_t)id;
    s->bias[s->n_bias++].bias = (float)bias;
    return PP_OK;
}

/* --- devices ----------------------------------------------------------------------------------------------------- */

enum pp_code pp_set_gpu_layers(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                               struct pp_error *err)
{
    (void)ps, (void)opt;
    int64_t v;
    if (!whole_number(value, &v) && strcmp(value, "auto") != 0 && strcmp(value, "all") != 0)
        return pp_fail(err, PP_ERR_USAGE, "%s expects a whole number, not \"%s\"", shown, value);
    if (strcmp(value, "0") == 0 || strcmp(value, "auto") == 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_USAGE,
                   "%s %s asks for a GPU, but this version runs on the CPU only; leave the option out or give 0", shown,
                       value);
}

enum pp_code pp_set_device(struct pp_parse *ps, const struct pp_option *opt, const char *value, const char *shown,
                           struct pp_error *err)
{
    (void)ps, (void)opt;
    if (strcmp(value, "cpu") == 0 || strcmp(value, "none") == 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_USAGE,
                   "%s \"%s\" is not possible: this version runs on the CPU only; leave the option out or give cpu",
                   shown,
                   value);
}
