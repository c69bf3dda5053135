/* cmd_bench_report.c - the results of `pippin bench`: storing, summarising, and printing them as text or JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/cmd_bench.h"

/* --- storing results -------------------------------------------------------------------------------------------- */

struct bench_result *bench_add(struct bench_report *r, int repetitions)
{
    double *samples = pp_calloc((size_t)repetitions, sizeof *samples);
    if (!samples || pp_grow(&r->results, &r->cap, r->n + 1, sizeof *r->results) != 0) {
        pp_free(samples);
        return NULL;
    }
    struct bench_result *new = &r->results[r->n++];
    *new = (struct bench_result){.samples = samples, .depth = -1, .rows = -1};
    return new;
}

void bench_report_free(struct bench_report *r)
{
    for (size_t i = 0; i < r->n; i++)
        pp_free(r->results[i].samples);
    pp_free(r->results);
    pp_free(r->kernels);
    *r = (struct bench_report){0};
}

static const struct bench_result *find(const struct bench_report *r, const char *what)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->results[i].what, what) == 0)
            return &r->results[i];
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool bench_summarise(const double *samples, int n, struct bench_summary *out)
{
    *out = (struct bench_summary){0};
    if (n < 1)
        return false;
    double *v = pp_malloc((size_t)n * sizeof *v), sum = 0, squares = 0;
    if (!v)
        return false;
    for (int i = 0; i < n; i++)
        sum += v[i] = samples[i];
    for (int i = 0; i < n; i++)
        squares += (v[i] - sum / n) * (v[i] - sum / n);
    qsort(v, (size_t)n, sizeof *v, ascending);
    *out = (struct bench_summary){
        .median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2,
        .least = v[0],
        .most = v[n - 1],
        .deviation = n > 1 ? sqrt(squares / (n - 1)) : 0,
    };
    pp_free(v);
    return true;
}

/* --- JSON ------------------------------------------------------------------------------------------------------- */

static void json_spread(struct pp_buf *b, const struct bench_summary *s)
{
    pp_cli_json_real(b, "median", s->median, 3);
    pp_cli_json_real(b, "min", s->least, 3);
    pp_cli_json_real(b, "max", s->most, 3);
    pp_cli_json_real(b, "stddev", s->deviation, 3);
}

/* Adds the main figures: for example "prefill_tps", and its spread as "prefill". */
static void json_first(struct pp_buf *out, const struct bench_report *r, const char *what, const char *rate_name)
{
    struct bench_summary s;
    const struct bench_result *first = find(r, what);
    if (!first || !bench_summarise(first->samples, first->n, &s))
        return;
    pp_cli_json_real(out, rate_name, s.median, 2);
    pp_cli_json_name(out, what);
    pp_buf_char(out, '{');
    json_spread(out, &s);
    pp_buf_char(out, '}');
}

static void json_result(struct pp_buf *out, const struct bench_result *r)
{
    struct bench_summary s;
    bench_summarise(r->samples, r->n, &s);
    pp_cli_json_next(out);
    pp_buf_char(out, '{');
    pp_cli_json_str(out, "name", r->name);
    pp_cli_json_str(out, "what", r->what);
    pp_cli_json_str(out, "unit", r->unit);
    pp_cli_json_str(out, "better", r->more_is_better ? "more" : "less");
    json_spread(out, &s);
    pp_cli_json_int(out, "repetitions", r->n);
    if (r->tokens)
        pp_cli_json_int(out, "tokens", r->tokens);
    if (r->depth >= 0)
        pp_cli_json_int(out, "depth", r->depth);
    if (r->rows >= 0)
        pp_cli_json_int(out, "rows", r->rows);
    if (r->threads)
        pp_cli_json_int(out, "threads", r->threads);
    if (r->kv_type)
        pp_cli_json_str(out, "kv_type", r->kv_type);
    if (r->ratio > 0)
        pp_cli_json_real(out, "ratio", r->ratio, 3);
    if (r->accepted > 0)
        pp_cli_json_real(out, "accepted", r->accepted, 3);
    if (r->formula > 0)
        pp_cli_json_real(out, "formula_tps", r->formula, 2);
    if (r->read_bps > 0) {
        pp_cli_json_real(out, "read_gbps", r->read_bps / 1e9, 2);
        pp_cli_json_real(out, "read_test_gbps", r->roof_bps / 1e9, 2);
        pp_cli_json_real(out, "read_share", r->roof_bps > 0 ? r->read_bps / r->roof_bps : NAN, 3);
    }
    pp_buf_char(out, '}');
}

/* The time of a line divided by the number of threads. */
static double line_ms(const struct pp_profile *p, int kind)
{
    return (double)p->lines[kind].ns / 1e6 / p->n_threads / (double)(p->passes ? p->passes : 1);
}

static double line_share(const struct pp_profile *p, int kind)
{
    double all = (double)p->ns * p->n_threads;
    return all > 0 ? (double)p->lines[kind].ns / all : 0;
}

/* Units per nanosecond, that is 10^9 per second, over all threads. */
static double line_rate(const struct pp_profile *p, int kind, uint64_t units)
{
    return p->lines[kind].ns ? (double)units * p->n_threads / (double)p->lines[kind].ns : 0;
}

static void json_kernels(struct pp_buf *out, const struct bench_kernels *k)
{
    const struct pp_profile *p = &k->profile;
    pp_cli_json_next(out);
    pp_buf_char(out, '{');
    pp_cli_json_str(out, "name", k->name);
    pp_cli_json_count(out, "passes", p->passes);
    pp_cli_json_count(out, "rows", p->rows);
    pp_cli_json_int(out, "threads", p->n_threads);
    pp_cli_json_real(out, "pass_ms", (double)p->ns / 1e6 / (double)(p->passes ? p->passes : 1), 3);
    pp_cli_json_name(out, "lines");
    pp_buf_char(out, '[');
    for (int i = 0; i < PP_PROFILE_COUNT; i++) {
        const struct pp_profile_line *l = &p->lines[i];
        pp_cli_json_next(out);
        pp_buf_char(out, '{');
        pp_cli_json_str(out, "stage", pp_profile_name((enum pp_profile_kind)i));
        pp_cli_json_real(out, "ms", line_ms(p, i), 4);
        pp_cli_json_real(out, "share", line_share(p, i), 4);
        pp_cli_json_count(out, "items", l->items);
        pp_cli_json_real(out, "gbps", line_rate(p, i, l->bytes), 2);
        pp_cli_json_real(out, "gmacs", line_rate(p, i, l->macs), 2);
        pp_buf_char(out, '}');
    }
    pp_buf_str(out, "]}");
}

static void json_memory(struct pp_buf *out, const struct bench_memory *m)
{
    pp_cli_json_name(out, "memory");
    pp_buf_char(out, '{');
    pp_cli_json_count(out, "rss_bytes", m->rss);
    pp_cli_json_count(out, "peak_bytes", m->peak);
    pp_cli_json_count(out, "anonymous_bytes", m->anonymous);
    pp_cli_json_count(out, "mapped_bytes", m->mapped);
    pp_cli_json_count(out, "model_bytes", m->model);
    pp_cli_json_count(out, "engine_bytes", m->engine);
    pp_cli_json_count(out, "work_bytes", m->work);
    pp_cli_json_count(out, "kv_bytes", m->kv_used);
    pp_cli_json_count(out, "kv_limit_bytes", m->kv_total);
    pp_buf_char(out, '}');
}

static void json_about(struct pp_buf *out, const struct bench *b)
{
    const struct bench_report *r = &b->report;
    if (!b->model) {
        pp_cli_json_int(out, "repetitions", b->repetitions);
        if (b->tokenizer)
            pp_cli_json_int(out, "n_vocab", pp_tokenizer_n(b->tokenizer));
        return;
    }
    const struct pp_model_info *info = pp_model_info(b->model);
    if (find(r, "decode"))
        pp_cli_json_real(out, "choose_us", r->choose_us, 2);
    pp_cli_json_int(out, "n_prompt", b->n_prompt);
    pp_cli_json_int(out, "n_gen", b->n_gen);
    pp_cli_json_int(out, "repetitions", b->repetitions);
    if (b->what & BENCH_PASSES) {
        pp_cli_json_int(out, "n_threads", r->results[0].threads);
        pp_cli_json_str(out, "kernels", b->kernels_name);
        pp_cli_json_count(out, "engine_bytes", r->engine_bytes);
        pp_cli_json_count(out, "token_bytes", r->token_bytes);
        pp_cli_json_real(out, "read_test_gbps", r->roof_bps / 1e9, 2);
        pp_cli_json_bool(out, "interleaved", r->interleaved);
    }
    pp_cli_json_str(out, "model", info->name);
    pp_cli_json_str(out, "type", info->type_name);
    pp_cli_json_int(out, "n_params", info->n_params);
    pp_cli_json_int(out, "n_layers", info->n_layer);
    if (r->full_layers)
        pp_cli_json_int(out, "full_layers", r->full_layers);
    pp_cli_json_count(out, "bytes", info->bytes);
    pp_cli_json_str(out, "kv_type", pp_kv_type_name((enum pp_kv_type)b->kv_types[0]));
    pp_cli_json_int(out, "adapters", b->n_adapters);
}

void bench_print_json(const struct bench *b)
{
    const struct bench_report *r = &b->report;
    struct pp_buf out = {0};
    pp_buf_char(&out, '{');
    json_first(&out, r, "prefill", "prefill_tps");
    json_first(&out, r, "decode", "decode_tps");
    json_first(&out, r, "scaled_prefill", "scaled_prefill_tps");
    json_first(&out, r, "scaled_decode", "scaled_decode_tps");
    json_about(&out, b);
    if (r->memory.rss)
        json_memory(&out, &r->memory);
    pp_cli_json_name(&out, "results");
    pp_buf_char(&out, '[');
    for (size_t i = 0; i < r->n; i++)
        json_result(&out, &r->results[i]);
    pp_buf_char(&out, ']');
    if (r->n_kernels) {
        pp_cli_json_name(&out, "kernel_times");
        pp_buf_char(&out, '[');
        for (size_t i = 0; i < r->n_kernels; i++)
            json_kernels(&out, &r->kernels[i]);
        pp_buf_char(&out, ']');
    }
    pp_buf_str(&out, "}\n");
    fputs(pp_buf_cstr(&out), stdout);
    pp_buf_free(&out);
}

/* --- text ------------------------------------------------------------------------------------------------------- */

static void model_head(const struct bench *b, struct pp_buf *head)
{
    const struct pp_model_info *info = pp_model_info(b->model);
    pp_buf_fmt(head, "%s  %s  %.1f MB", info->name, info->type_name, (double)info->bytes / 1e6);
    if (b->report.full_layers)
        pp_buf_fmt(head, " (%lld of %lld layers)", (long long)info->n_layer, (long long)b->report.full_layers);
    if (b->n_threads == 1 && b->what & BENCH_PASSES)
        pp_buf_fmt(head, "  %d thread%s", b->report.results[0].threads, b->report.results[0].threads == 1 ? "" : "s");
    if (b->what & BENCH_PASSES)
        pp_buf_fmt(head, "  %s", b->kernels_name);
    if (b->n_kv_types == 1)
        pp_buf_fmt(head, "  KV %s", pp_kv_type_name((enum pp_kv_type)b->kv_types[0]));
}

static void text_head(const struct bench *b)
{
    struct pp_buf head = {0};
    if (b->model) {
        model_head(b, &head);
    } else {
        char path[sizeof b->path];
        pp_utf8_print(path, sizeof path, "%s", b->path);
        pp_utf8_line(path, sizeof path);
        pp_buf_fmt(&head, "%s  %d tokens", path, pp_tokenizer_n(b->tokenizer));
    }
    pp_buf_char(&head, '\n');
    pp_cli_print(pp_buf_cstr(&head), head.len);
    pp_buf_free(&head);
}

static void text_result(const struct bench_result *r, int width)
{
    struct bench_summary s;
    bench_summarise(r->samples, r->n, &s);
    int digits = strcmp(r->unit, "times") == 0 ? 0 : s.median < 1 ? 3 : s.median < 100 ? 2 : 1;
    printf("%-*s  %10.*f %s  (%.*f to %.*f)", width, r->name, digits, s.median, r->unit, digits, s.least, digits,
           s.most);
    if (strncmp(r->what, "lora", 4) == 0 && r->ratio > 0)
        printf("  %+.1f %% time", 100 * (r->ratio - 1));
    else if (strcmp(r->what, "draft") == 0 && r->ratio > 0)
        printf("  %.2f times none", r->ratio);
    else if (r->rows > 1 && r->ratio > 0)
        printf(strcmp(r->what, "several") == 0 ? "  %.2f times one conversation" : "  %.2f times one row", r->ratio);
    if (r->accepted > 0)
        printf("  %.0f %% stood", 100 * r->accepted);
    if (r->formula > 0)
        printf("  formula %.*f, %+.1f %%", digits, r->formula, 100 * (s.median / r->formula - 1));
    if (r->read_bps > 0 && r->read_bps > 0.01 * r->roof_bps && r->roof_bps > 0)
        printf("  reads %.1f GB/s, %.0f %%", r->read_bps / 1e9, 100 * r->read_bps / r->roof_bps);
    putchar('\n');
}

static void text_roof(const struct bench_report *r)
{
    if (!(r->roof_bps > 0))
        return;
    printf("memory is read at %.1f GB/s by as many threads (read test); a token reads %.1f MB of weights, and its KV\n",
           r->roof_bps / 1e9, (double)r->token_bytes / 1e6);
    if (r->token_bytes < 100u << 20)
        puts("(so small a model stays in the caches: its share says nothing about memory)");
}

/* What the shares of products alone relate to. */
static void text_micro_roof(const struct bench_report *r)
{
    if (r->micro_roof_bps > 0)
        printf("products: one thread reads memory at %.1f GB/s (read test)\n"
               "(the matrix stays in large caches, and may then be read faster)\n",
               r->micro_roof_bps / 1e9);
}

static void text_kernels(const struct bench_kernels *k)
{
    const struct pp_profile *p = &k->profile;
    printf("\n%s: %llu pass%s of %.3f ms in the fastest round, %d thread%s\n", k->name, (unsigned long long)p->passes,
           p->passes == 1 ? "" : "es", (double)p->ns / 1e6 / (double)(p->passes ? p->passes : 1), p->n_threads,
           p->n_threads == 1 ? "" : "s");
    printf("  %-18s %10s %8s %8s %9s\n", "", "ms a pass", "share", "GB/s", "GMAC/s");
    for (int i = 0; i < PP_PROFILE_COUNT; i++) {
        const struct pp_profile_line *l = &p->lines[i];
        if (!l->ns)
            continue;
        printf("  %-18s %10.4f %6.1f %%", pp_profile_name((enum pp_profile_kind)i), line_ms(p, i),
               100 * line_share(p, i));
        if (l->bytes)
            printf(" %8.2f", line_rate(p, i, l->bytes));
        if (l->macs)
            printf(" %9.1f", line_rate(p, i, l->macs));
        putchar('\n');
    }
}

static void text_memory(const struct bench_memory *m)
{
    if (!m->rss)
        return;
    printf("memory  %.1f MB resident (peak %.1f): %.1f of files that are mapped, %.1f of its own\n",
           (double)m->rss / 1e6, (double)m->peak / 1e6, (double)m->mapped / 1e6, (double)m->anonymous / 1e6);
    printf("        model %.1f MB, packed weights %.1f MB, work space %.1f MB, KV %.1f MB of %.1f MB\n",
           (double)m->model / 1e6, (double)(m->engine - m->work) / 1e6, (double)m->work / 1e6,
           (double)m->kv_used / 1e6, (double)m->kv_total / 1e6);
}

void bench_print_text(const struct bench *b)
{
    const struct bench_report *r = &b->report;
    int width = 20;
    for (size_t i = 0; i < r->n; i++)
        if ((int)strlen(r->results[i].name) > width)
            width = (int)strlen(r->results[i].name);
    if (b->what & ~(unsigned)(BENCH_MICRO | BENCH_SESSIONS)) /* the others need no model */
        text_head(b);
    for (size_t i = 0; i < r->n; i++)
        text_result(&r->results[i], width);
    if (b->n_rows && find(r, "rows"))
        puts("(same: rows of one conversation, as when a draft is verified; own: of as many conversations)");
    text_roof(r);
    text_micro_roof(r);
    if (r->most_threads && b->what & BENCH_PASSES)
        printf("(no more than %d thread%s: as many as CPUs that may be used at once)\n", r->most_threads,
               r->most_threads == 1 ? "" : "s");
    if (find(r, "decode"))
        printf("%.1f us to choose a token\n", r->choose_us);
    if (b->what & BENCH_PASSES && !r->interleaved)
        puts("(not measured in turn: the engines do not fit into memory together)");
    text_memory(&r->memory);
    for (size_t i = 0; i < r->n_kernels; i++)
        text_kernels(&r->kernels[i]);
}
