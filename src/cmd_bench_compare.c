/* cmd_bench_compare.c - compares two results of `pippin bench --json`, figure by figure.
 *
 * The noise of a median is estimated from the spread: the standard error of the median of n samples is about 1.25
 * times their standard deviation / sqrt(n). A difference counts if it exceeds the threshold plus twice the combined
 * standard error of both runs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/json.h"
#include "src/cmd_bench.h"

struct figure {
    const char *name, *unit; /* point into the parsed file */
    double median, deviation;
    int repetitions;
    bool more_is_better;
};

static enum pp_code fail_file(const char *path, const char *what, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "%s is no result of `pippin bench --json`: %s", path, what);
}

static enum pp_code read_results(const char *path, cJSON **json, const cJSON **results, struct pp_error *err)
{
    struct pp_buf text = {0};
    *json = NULL;
    enum pp_code code = pp_cli_read(path, &text, err);
    if (!code) {
        *json = cJSON_ParseWithLength(pp_buf_cstr(&text), text.len);
        *results = pp_json_member(*json, "results");
        if (!*json)
            code = fail_file(path, "it is no JSON", err);
        else if (!cJSON_IsArray(*results) || !(*results)->child)
            code = fail_file(path, "it has no list \"results\"", err);
    }
    pp_buf_free(&text);
    return code;
}

static bool number(const cJSON *entry, const char *name, double least, double *v)
{
    const cJSON *item = pp_json_member(entry, name);
    *v = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    return isfinite(*v) && *v >= least;
}

static enum pp_code read_figure(const char *path, const cJSON *entry, struct figure *f, struct pp_error *err)
{
    const cJSON *name = pp_json_member(entry, "name");
    const cJSON *unit = pp_json_member(entry, "unit");
    const cJSON *better = pp_json_member(entry, "better");
    double repetitions;
    if (!cJSON_IsString(name) || !cJSON_IsString(unit) || !cJSON_IsString(better))
        return fail_file(path, "a figure has no name, unit or direction", err);
    if (strcmp(better->valuestring, "more") != 0 && strcmp(better->valuestring, "less") != 0)
        return fail_file(path, "a figure does not say whether more or less of it is better", err);
    *f = (struct figure){.name = name->valuestring,
                         .unit = unit->valuestring,
                         .more_is_better = strcmp(better->valuestring, "more") == 0};
    if (!number(entry, "median", 0, &f->median) || f->median == 0 || !number(entry, "stddev", 0, &f->deviation) ||
        !number(entry, "repetitions", 1, &repetitions))
        return fail_file(path, "a figure's median, stddev or repetitions is no positive number", err);
    f->repetitions = repetitions < 1e6 ? (int)repetitions : 1000000;
    return PP_OK;
}

/* Relative standard error of the median. */
static double noise(const struct figure *f)
{
    return 1.2533 * f->deviation / f->median / sqrt(f->repetitions);
}

struct comparison {
    const char *old_path, *new_path;
    double threshold;          /* as a fraction */
    bool json;
    int n, n_slower, n_faster, n_alone;
    struct pp_buf out;
    struct pp_buf differing;   /* what else differs between the runs */
};

static void compare_figures(struct comparison *c, const struct figure *a, const struct figure *b)
{
    double speed = a->more_is_better ? b->median / a->median : a->median / b->median;
    double allowed = c->threshold + 2 * sqrt(noise(a) * noise(a) + noise(b) * noise(b));
    const char *verdict = speed < 1 - allowed ? "slower" : speed > 1 + allowed ? "faster" : "same";
    c->n++;
    c->n_slower += speed < 1 - allowed;
    c->n_faster += speed > 1 + allowed;
    if (c->json) {
        pp_cli_json_next(&c->out);
        pp_buf_char(&c->out, '{');
        pp_cli_json_str(&c->out, "name", a->name);
        pp_cli_json_str(&c->out, "unit", a->unit);
        pp_cli_json_real(&c->out, "old", a->median, 3);
        pp_cli_json_real(&c->out, "new", b->median, 3);
        pp_cli_json_real(&c->out, "speed", speed, 4);
        pp_cli_json_real(&c->out, "allowed", allowed, 4);
        pp_cli_json_str(&c->out, "verdict", verdict);
        pp_buf_char(&c->out, '}');
        return;
    }
    pp_buf_fmt(&c->out, "%-40s %10.2f %10.2f %-9s %6.3f  +-%.1f %%%s%s\n", a->name, a->median, b->median, a->unit,
               speed, 100 * allowed, strcmp(verdict, "same") ? "  " : "", strcmp(verdict, "same") ? verdict : "");
}

/* Notes what else differs between the runs, such as the model: figures of the same name would be compared all the
 * same. */
static void note_differences(struct comparison *c, const cJSON *old, const cJSON *new)
{
    static const char *const about[] = {"model", "type", "bytes", "n_layers", "n_threads", "kernels", "kv_type",
                                        "adapters"};
    for (size_t i = 0; i < sizeof about / sizeof *about; i++) {
        const cJSON *a = pp_json_member(old, about[i]), *b = pp_json_member(new, about[i]);
        if (!a || !b || cJSON_Compare(a, b, true))
            continue;
        if (c->json) {
            pp_cli_json_next(&c->differing);
            pp_cli_json_string(&c->differing, about[i], strlen(about[i]));
            continue;
        }
        char *x = cJSON_PrintUnformatted(a), *y = cJSON_PrintUnformatted(b);
        pp_buf_fmt(&c->differing, "%s%s: %s, now %s", c->differing.len ? "; " : "", about[i], x ? x : "", y ? y : "");
        cJSON_free(x);
        cJSON_free(y);
    }
}

static enum pp_code compare_all(struct comparison *c, const cJSON *old, const cJSON *new, struct pp_error *err)
{
    const cJSON *entry, *other;
    cJSON_ArrayForEach(entry, old)
    {
        struct figure a, b;
        bool met = false;
        enum pp_code code = read_figure(c->old_path, entry, &a, err);
        if (code)
            return code;
        cJSON_ArrayForEach(other, new)
        {
            if ((code = read_figure(c->new_path, other, &b, err)))
                return code;
            if (met || strcmp(a.name, b.name) != 0 || strcmp(a.unit, b.unit) != 0)
                continue;
            met = true;
            compare_figures(c, &a, &b);
        }
        c->n_alone += !met;
    }
    if (c->n == 0)
        return pp_fail(err, PP_ERR_USAGE, "%s and %s have no figure in common; measure both with the same options",
                       c->old_path, c->new_path);
    return PP_OK;
}

static void print(struct comparison *c)
{
    if (c->json) {
        struct pp_buf out = {0};
        pp_buf_char(&out, '{');
        pp_cli_json_real(&out, "threshold", c->threshold, 4);
        pp_cli_json_int(&out, "compared", c->n);
        pp_cli_json_int(&out, "slower", c->n_slower);
        pp_cli_json_int(&out, "faster", c->n_faster);
        pp_cli_json_int(&out, "only_in_old", c->n_alone);
        pp_cli_json_name(&out, "differing");
        pp_buf_fmt(&out, "[%s]", c->differing.len ? pp_buf_cstr(&c->differing) : "");
        pp_cli_json_name(&out, "figures");
        printf("%s[%s]}\n", pp_buf_cstr(&out), pp_buf_cstr(&c->out));
        pp_buf_free(&out);
        return;
    }
    char head[160];
    snprintf(head, sizeof head, "%-40s %10s %10s %-9s %6s  %s\n", "", "old", "new", "", "speed", "allowed");
    fputs(head, stdout);
    pp_cli_print(pp_buf_cstr(&c->out), c->out.len);
    printf("%d compared: %d slower, %d faster", c->n, c->n_slower, c->n_faster);
    if (c->n_alone)
        printf("; %d of %s are not in the other", c->n_alone, c->old_path);
    putchar('\n');
    if (c->differing.len) {
        pp_buf_str(&c->differing, "\n");
        fputs("the runs differ in ", stdout);
        pp_cli_print(pp_buf_cstr(&c->differing), c->differing.len);
    }
}

enum pp_code bench_compare(const struct pp_options *o, bool *slower, struct pp_error *err)
{
    cJSON *old = NULL, *new = NULL;
    const cJSON *old_results, *new_results;
    if (o->n_args != 1)
        return pp_fail(err, PP_ERR_USAGE, "--compare needs two files: pippin bench --compare OLD.json NEW.json");
    struct comparison c = {.old_path = o->bench.compare,
                           .new_path = o->args[0],
                           .threshold = (double)o->bench.threshold / 100,
                           .json = o->json};
    enum pp_code code = read_results(c.old_path, &old, &old_results, err);
    if (!code)
        code = read_results(c.new_path, &new, &new_results, err);
    if (!code)
        code = compare_all(&c, old_results, new_results, err);
    if (!code)
        note_differences(&c, old, new);
    if (!code && (c.out.bad || c.differing.bad))
        code = pp_fail_nomem(err, "the comparison");
    if (!code)
        print(&c);
    *slower = !code && c.n_slower > 0;
    pp_buf_free(&c.out);
    pp_buf_free(&c.differing);
    cJSON_Delete(old);
    cJSON_Delete(new);
    return code;
}
