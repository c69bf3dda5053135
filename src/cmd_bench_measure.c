/* cmd_bench_measure.c - passes of one model: prefill, decode and small batches at several depths, with one engine
 * (lane) for each combination of threads and KV type.
 *
 * The measurements are a list of cells. Each round runs all of them, so that a machine that is slower for a while
 * affects every cell; the first round only warms up. The tokens up to a depth are computed once; a cell computes its
 * own after them and drops them again. If the engines do not fit into memory together, they are measured one after
 * the other, with rounds of their own. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/memory.h"
#include "src/cmd_bench.h"

enum { MAX_LANES = 16, MAX_POINTS = BENCH_MAX_LIST + 2, MAX_OWN = 64 };

enum cell_kind { CELL_PREFILL, CELL_DECODE, CELL_ROWS };

struct cell {
    enum cell_kind kind;
    int lane, point;
    int rows;           /* CELL_ROWS */
    bool own;           /* each row in its own conversation */
    size_t result;
};

/* An engine with its sequences. */
struct lane {
    int threads;        /* as requested */
    enum pp_kv_type kv_type;
    struct pp_engine *engine;
    struct pp_read_test *roof;
    double roof_bps;
    int n_points;
    struct {
        int64_t depth;
        struct pp_seq *seq; /* with `depth` tokens */
    } points[MAX_POINTS];
};

struct measuring {
    struct bench *b;
    struct lane lanes[MAX_LANES];
    int n_lanes;
    struct cell *cells;
    size_t n_cells, cap_cells;
    int32_t *tokens;    /* [n_tokens] pseudo-random, the same on every machine; their values do not matter to a dense
                         * model */
    int64_t n_tokens;
    struct pp_choosing *choosing;
    double *choose_us;  /* [repetitions]: sampling time in the first decode cell */
    char telling[160];  /* text of the bar */
    uint64_t done, total; /* cells done, or the like */
};

/* --- the list of cells ------------------------------------------------------------------------------------------ */

static int point_of(struct lane *l, int64_t depth)
{
    int i = 0;
    while (i < l->n_points && l->points[i].depth != depth)
        i++;
    if (i == l->n_points)
        l->points[l->n_points++].depth = depth;
    return i;
}

/* Names a cell; lanes are named only if there are several. */
static void name_cell(const struct measuring *m, const struct cell *c, char *name, size_t size)
{
    const struct bench *b = m->b;
    const struct lane *l = &m->lanes[c->lane];
    int64_t depth = l->points[c->point].depth;
    size_t n = 0;
    if (c->kind == CELL_ROWS)
        n = (size_t)snprintf(name, size, "rows %d%s @ %lld", c->rows, c->rows == 1 ? "" : c->own ? " own" : " same",
                             (long long)depth);
    else
        n = (size_t)snprintf(name, size, "%s %lld @ %lld", c->kind == CELL_PREFILL ? "prefill" : "decode",
                             (long long)(c->kind == CELL_PREFILL ? b->n_prompt : b->n_gen), (long long)depth);
    if (b->n_threads > 1 && n < size)
        n += (size_t)snprintf(name + n, size - n, ", %d thread%s", l->threads, l->threads == 1 ? "" : "s");
    if (b->n_kv_types > 1 && n < size)
        snprintf(name + n, size - n, ", KV %s", pp_kv_type_name(l->kv_type));
}

/* Shows that the next of `total` cells is being measured. */
static void show_cell(struct measuring *m, const char *why, const struct cell *c, uint64_t done, uint64_t total)
{
    char name[96];
    name_cell(m, c, name, sizeof name);
    snprintf(m->telling, sizeof m->telling, "%s%s", why, name);
    m->done = done;
    m->total = total;
    bench_show(m->b, m->telling, done, total);
}

/* Shows the progress within that cell. */
static void show_part(void *user, uint64_t done, uint64_t total)
{
    struct measuring *m = user;
    bench_show(m->b, m->telling, m->done * total + done, m->total * total);
}

static enum pp_code add_cell(struct measuring *m, struct cell c, struct pp_error *err)
{
    struct bench *b = m->b;
    struct lane *l = &m->lanes[c.lane];
    struct bench_result *r = bench_add(&b->report, b->repetitions);
    if (!r || pp_grow(&m->cells, &m->cap_cells, m->n_cells + 1, sizeof *m->cells) != 0)
        return pp_fail_nomem(err, "the results");
    c.result = b->report.n - 1;
    name_cell(m, &c, r->name, sizeof r->name);
    r->what = c.kind == CELL_PREFILL ? "prefill" : c.kind == CELL_DECODE ? "decode" : "rows";
    r->more_is_better = c.kind != CELL_ROWS;
    r->unit = c.kind == CELL_ROWS ? "ms" : "tokens/s";
    r->tokens = c.kind == CELL_PREFILL ? b->n_prompt : c.kind == CELL_DECODE ? b->n_gen : c.rows;
    r->depth = l->points[c.point].depth;
    r->rows = c.kind == CELL_ROWS ? c.rows : -1;
    r->threads = l->threads;
    r->kv_type = pp_kv_type_name(l->kv_type);
    m->cells[m->n_cells++] = c;
    return PP_OK;
}

static enum pp_code add_rows(struct measuring *m, int lane, int point, struct pp_error *err)
{
    const struct bench *b = m->b;
    enum pp_code code = add_cell(m, (struct cell){CELL_ROWS, lane, point, 1, false, 0}, err);
    for (int64_t i = 0; i < b->n_rows && !code; i++) {
        int rows = (int)b->rows[i];
        if (rows == 1)
            continue; /* added above, as the reference for the others */
        code = add_cell(m, (struct cell){CELL_ROWS, lane, point, rows, false, 0}, err);
        if (!code && rows <= MAX_OWN)
            code = add_cell(m, (struct cell){CELL_ROWS, lane, point, rows, true, 0}, err);
    }
    return code;
}

/* Without a list of depths, prefill is measured in an empty conversation, and everything else after a prompt. */
static enum pp_code list_cells(struct measuring *m, struct pp_error *err)
{
    const struct bench *b = m->b;
    bool speeds = b->what & ~(unsigned)BENCH_ROWS;
    bool listed = b->n_depths > 0;
    enum pp_code code = PP_OK;
    for (int lane = 0; lane < m->n_lanes; lane++) {
        struct lane *l = &m->lanes[lane];
        for (int64_t i = 0; i < (listed ? b->n_depths : 1) && !code; i++) {
            int first = point_of(l, listed ? b->depths[i] : 0);
            if (speeds)
                code = add_cell(m, (struct cell){CELL_PREFILL, lane, first, 0, false, 0}, err);
            int point = listed ? first : point_of(l, b->n_prompt);
            if (speeds && b->n_gen && !code)
                code = add_cell(m, (struct cell){CELL_DECODE, lane, point, 0, false, 0}, err);
            if (b->what & BENCH_ROWS && !code)
                code = add_rows(m, lane, point, err);
        }
    }
    return code;
}

/* --- engines ---------------------------------------------------------------------------------------------------- */

/* Tokens needed for the deepest point and the measurements after it. */
static int64_t context_of(const struct measuring *m)
{
    const struct bench *b = m->b;
    int64_t deepest = b->n_depths ? 0 : b->n_prompt, most = b->n_prompt > b->n_gen ? b->n_prompt : b->n_gen;
    for (int64_t i = 0; i < b->n_depths; i++)
        deepest = b->depths[i] > deepest ? b->depths[i] : deepest;
    for (int64_t i = 0; i < b->n_rows; i++)
        most = b->rows[i] > most ? b->rows[i] : most;
    return deepest + most;
}

static void loading(void *user, uint64_t done, uint64_t total)
{
    pp_cli_bar_show(user, "loading", done, total);
}

/* Computes the sequences of all points: the longest one grows, and the others are forked from it at their depths. */
static enum pp_code fill_points(struct measuring *m, struct lane *l, struct pp_error *err)
{
    struct bench *b = m->b;
    struct pp_seq *longest;
    int order[MAX_POINTS] = {0};
    for (int i = 0; i < l->n_points; i++) { /* sort by depth, ascending */
        int at = i;
        for (; at > 0 && l->points[order[at - 1]].depth > l->points[i].depth; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    enum pp_code code = pp_seq_new(l->engine, &longest, err);
    if (code)
        return code;
    code = pp_seq_set_adapters(longest, b->uses, b->n_adapters, err);
    for (int i = 0; i < l->n_points && !code; i++) {
        int64_t depth = l->points[order[i]].depth, len = pp_seq_len(longest);
        code = pp_cli_feed_progress(l->engine, longest, m->tokens + len, (size_t)(depth - len), SIZE_MAX,
                                         bench_show_prompt, b, b->cancel, err);
        if (!code)
            code = pp_seq_fork(longest, depth, &l->points[order[i]].seq, err);
    }
    pp_seq_free(longest);
    return code;
}

static enum pp_code open_lane(struct measuring *m, struct lane *l, struct pp_error *err)
{
    struct bench *b = m->b;
    struct pp_engine_options opt = pp_cli_engine_options(b->o);
    opt.n_threads = l->threads;
    opt.kv_type = l->kv_type;
    opt.cancel = b->cancel;
    opt.cache_dir = b->temporary ? NULL : b->paths->cache;
    if (opt.n_ctx == 0)
        opt.n_ctx = context_of(m);
    for (int64_t i = 0; i < b->n_rows; i++)
        if (b->rows[i] > opt.max_rows && b->rows[i] > PP_USUAL_ROWS)
            opt.max_rows = (int)b->rows[i];
    enum pp_code code = pp_engine_new(b->model, &opt, loading, &b->bar, &l->engine, err);
    if (!code)
        code = pp_engine_settle(l->engine, b->cancel, err); /* background work must not disturb the passes */
    pp_cli_bar_clear(&b->bar);
    if (code)
        return code;
    l->threads = pp_engine_n_threads(l->engine);
    snprintf(b->kernels_name, sizeof b->kernels_name, "%s", pp_engine_kernels(l->engine));
    b->report.token_bytes = pp_engine_pass_bytes(l->engine);
    return fill_points(m, l, err);
}

static void close_lane(struct lane *l)
{
    for (int i = 0; i < l->n_points; i++) {
        pp_seq_free(l->points[i].seq);
        l->points[i].seq = NULL;
    }
    pp_engine_free(l->engine);
    l->engine = NULL;
    pp_read_test_free(l->roof);
    l->roof = NULL;
}

/* --- one run of a cell ------------------------------------------------------------------------------------------ */

static double rate(int64_t tokens, uint64_t ns)
{
    return ns ? (double)tokens * 1e9 / (double)ns : 0;
}

static enum pp_code run_prefill(struct measuring *m, const struct lane *l, const struct cell *c, double *sample,
                                struct pp_error *err)
{
    struct bench *b = m->b;
    int64_t depth = l->points[c->point].depth;
    uint64_t start = pp_now_ns();
    enum pp_code code = pp_cli_feed_progress(l->engine, l->points[c->point].seq, m->tokens + depth,
                                             (size_t)b->n_prompt, (size_t)b->n_prompt - 1, show_part, m, b->cancel,
                                             err);
    *sample = rate(b->n_prompt, pp_now_ns() - start);
    return code;
}

/* Times the forward passes only; sampling is timed separately. */
static enum pp_code run_decode(struct measuring *m, const struct lane *l, const struct cell *c, double *sample,
                               double *choose_us, struct pp_error *err)
{
    struct bench *b = m->b;
    int32_t token = m->tokens[l->points[c->point].depth];
    uint64_t pass_ns = 0, choose_ns = 0;
    for (int64_t i = 0; i < b->n_gen; i++) {
        struct pp_row row = {
            .seq = l->points[c->point].seq, .token = token, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
        show_part(m, (uint64_t)i, (uint64_t)b->n_gen);
        uint64_t start = pp_now_ns();
        enum pp_code code = pp_step(l->engine, &row, 1, b->cancel, err);
        if (code)
            return code;
        uint64_t computed = pp_now_ns();
        token = pp_choosing_token(m->choosing, pp_step_output(l->engine, 0), i);
        pass_ns += computed - start;
        choose_ns += pp_now_ns() - computed;
    }
    *sample = rate(b->n_gen, pass_ns);
    *choose_us = (double)choose_ns / 1e3 / (double)b->n_gen;
    return PP_OK;
}

static enum pp_code timed_passes(struct measuring *m, const struct lane *l, const struct pp_row *rows, int n,
                                 int64_t depth, double *ms, struct pp_error *err)
{
    int passes = m->b->n_gen >= 16 ? (int)(m->b->n_gen / 4 < 32 ? m->b->n_gen / 4 : 32) : 2;
    uint64_t ns = 0;
    for (int p = 0; p < passes; p++) {
        uint64_t start = pp_now_ns();
        enum pp_code code = pp_step(l->engine, rows, n, m->b->cancel, err);
        if (code)
            return code;
        ns += pp_now_ns() - start;
        for (int i = 0; i < n; i++)
            pp_seq_truncate(rows[i].seq, depth);
    }
    *ms = (double)ns / 1e6 / passes;
    return PP_OK;
}

/* A pass of some rows with one output each: of one conversation, as when a draft is verified, or of as many
 * conversations. Those share the pages before them, which are read from memory only once if caches hold them. */
static enum pp_code run_rows(struct measuring *m, const struct lane *l, const struct cell *c, double *ms,
                             struct pp_error *err)
{
    struct pp_seq *base = l->points[c->point].seq, *own[MAX_OWN] = {NULL};
    int64_t depth = l->points[c->point].depth;
    struct pp_row *rows = pp_calloc((size_t)c->rows, sizeof *rows);
    enum pp_code code = rows ? PP_OK : pp_fail_nomem(err, "a batch");
    for (int i = 0; i < c->rows && !code; i++) {
        if (c->own)
            code = pp_seq_fork(base, depth, &own[i], err);
        rows[i] = (struct pp_row){.seq = c->own ? own[i] : base,
                                  .token = m->tokens[depth + i],
                                  .parent = PP_PARENT_PREVIOUS,
                                  .out = PP_OUT_LOGITS};
    }
    double first;
    if (!code && c->own) /* allocate and copy pages before the measurement */
        code = pp_step(l->engine, rows, c->rows, m->b->cancel, err);
    for (int i = 0; i < c->rows && !code && c->own; i++)
        pp_seq_truncate(own[i], depth);
    if (!code)
        code = timed_passes(m, l, rows, c->rows, depth, &first, err);
    if (!code)
        *ms = first;
    for (int i = 0; i < MAX_OWN; i++)
        pp_seq_free(own[i]);
    pp_free(rows);
    return code;
}

static enum pp_code run_cell(struct measuring *m, const struct cell *c, double *sample, double *choose_us,
                             struct pp_error *err)
{
    const struct lane *l = &m->lanes[c->lane];
    enum pp_code code;
    switch (c->kind) {
    case CELL_PREFILL:
        code = run_prefill(m, l, c, sample, err);
        break;
    case CELL_DECODE:
        code = run_decode(m, l, c, sample, choose_us, err);
        break;
    default:
        code = run_rows(m, l, c, sample, err);
    }
    pp_seq_truncate(l->points[c->point].seq, l->points[c->point].depth);
    return code;
}

/* --- rounds ----------------------------------------------------------------------------------------------------- */

/* round -1 warms up. */
static enum pp_code run_round(struct measuring *m, int round, int lane0, int lane1, bool *chosen, struct pp_error *err)
{
    struct bench *b = m->b;
    char why[48] = "warming up: ";
    if (round >= 0)
        snprintf(why, sizeof why, "round %d of %d: ", round + 1, b->repetitions);
    for (int i = lane0; i < lane1; i++)
        m->lanes[i].roof_bps = pp_read_test_run(m->lanes[i].roof);
    for (size_t i = 0; i < m->n_cells; i++) {
        const struct cell *c = &m->cells[i];
        double sample = 0, choose_us = 0;
        if (c->lane < lane0 || c->lane >= lane1)
            continue;
        show_cell(m, why, c, i, m->n_cells);
        enum pp_code code = run_cell(m, c, &sample, &choose_us, err);
        if (code)
            return code;
        if (round < 0)
            continue;
        struct bench_result *r = &b->report.results[c->result];
        r->samples[r->n++] = sample;
        if (c->kind == CELL_DECODE && !*chosen) {
            m->choose_us[round] = choose_us;
            *chosen = true;
        }
    }
    return PP_OK;
}

/* Repeats a cell with a timer around every work item. Keeps the fastest round, which other programs have disturbed
 * least. */
static enum pp_code profile_cell(struct measuring *m, const struct cell *c, struct bench_kernels *table,
                                 struct pp_error *err)
{
    struct pp_engine *e = m->lanes[c->lane].engine;
    enum pp_code code = PP_OK;
    name_cell(m, c, table->name, sizeof table->name);
    for (int k = 0; k < m->b->repetitions && !code; k++) {
        struct pp_profile p;
        double sample, choose_us;
        show_cell(m, "where time goes: ", c, (uint64_t)k, (uint64_t)m->b->repetitions);
        if ((code = pp_engine_profile(e, true, err)) || (code = run_cell(m, c, &sample, &choose_us, err)))
            break;
        pp_engine_profile_get(e, &p);
        if (k == 0 || p.ns < table->profile.ns)
            table->profile = p;
    }
    return code ? code : pp_engine_profile(e, false, err);
}

/* Extrapolates a cell from a model with some of a shape's layers to all layers. The time of work outside of layers
 * stays; the rest, including waiting, is proportional to the number of layers. */
static enum pp_code scale_cell(struct measuring *m, const struct cell *c, const struct pp_profile *p,
                               struct pp_error *err)
{
    struct bench *b = m->b;
    static const enum pp_profile_kind once[] = {PP_PROFILE_EMBED, PP_PROFILE_LOGITS, PP_PROFILE_OTHER};
    uint64_t outside = 0, all = 0;
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        outside += p->lines[once[i]].ns;
    for (int k = 0; k < PP_PROFILE_WAIT; k++)
        all += p->lines[k].ns;
    double fixed = all ? (double)outside / (double)all : 0;
    double layers = (double)b->report.full_layers / (double)pp_model_info(b->model)->n_layer;
    double longer = fixed + (1 - fixed) * layers;
    struct bench_result *to = bench_add(&b->report, b->repetitions);
    if (!to)
        return pp_fail_nomem(err, "the results");
    const struct bench_result *from = &b->report.results[c->result];
    double *samples = to->samples;
    *to = *from;
    to->samples = samples;
    for (int i = 0; i < from->n; i++)
        samples[i] = from->more_is_better ? from->samples[i] / longer : from->samples[i] * longer;
    to->what = c->kind == CELL_PREFILL ? "scaled_prefill" : c->kind == CELL_DECODE ? "scaled_decode" : "scaled_rows";
    size_t n = strlen(to->name);
    snprintf(to->name + n, sizeof to->name - n, ", all %lld layers", (long long)b->report.full_layers);
    return PP_OK;
}

static enum pp_code scale_cells(struct measuring *m, int lane0, int lane1, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < m->n_cells && !code; i++) {
        struct bench_kernels table;
        if (m->cells[i].lane < lane0 || m->cells[i].lane >= lane1)
            continue;
        if (!(code = profile_cell(m, &m->cells[i], &table, err)))
            code = scale_cell(m, &m->cells[i], &table.profile, err);
    }
    return code;
}

static enum pp_code run_profiles(struct measuring *m, int lane0, int lane1, struct pp_error *err)
{
    struct bench_report *r = &m->b->report;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < m->n_cells && !code; i++) {
        const struct cell *c = &m->cells[i];
        if (c->lane < lane0 || c->lane >= lane1 || c->own)
            continue;
        if (pp_grow(&r->kernels, &r->cap_kernels, r->n_kernels + 1, sizeof *r->kernels) != 0)
            return pp_fail_nomem(err, "the table of kernels");
        code = profile_cell(m, c, &r->kernels[r->n_kernels++], err);
    }
    return code;
}

/* A field of /proc/self/status in bytes. */
static uint64_t status_bytes(const char *field)
{
    char line[256];
    unsigned long long kb = 0;
    size_t n = strlen(field);
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, n) == 0 && sscanf(line + n, ": %llu kB", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb * 1024;
}

static void look_at_memory(struct measuring *m, const struct lane *l)
{
    const struct pp_stats *stats = pp_engine_stats(l->engine);
    m->b->report.memory = (struct bench_memory){
        .rss = status_bytes("VmRSS"),
        .peak = status_bytes("VmHWM"),
        .anonymous = status_bytes("RssAnon"),
        .mapped = status_bytes("RssFile"),
        .model = pp_model_info(m->b->model)->bytes,
        .engine = stats->engine_bytes,
        .work = stats->engine_bytes - (stats->layout_bytes > stats->layout_mapped
                                           ? stats->layout_bytes - stats->layout_mapped
                                           : 0),
        .kv_used = stats->kv_bytes_used,
        .kv_total = stats->kv_bytes_total,
    };
}

/* Measures memory with one engine that runs every cell once. Comes first, because the process's peak would otherwise
 * include other measurements. */
static enum pp_code measure_memory(struct measuring *m, struct pp_error *err)
{
    struct lane *l = &m->lanes[0];
    enum pp_code code = open_lane(m, l, err);
    for (size_t i = 0; i < m->n_cells && !code; i++) {
        double sample, choose_us;
        show_cell(m, "memory: ", &m->cells[i], i, m->n_cells);
        if (m->cells[i].lane == 0)
            code = run_cell(m, &m->cells[i], &sample, &choose_us, err);
    }
    if (!code)
        look_at_memory(m, l);
    close_lane(l);
    return code;
}

/* Computes the bandwidth of the cells in these lanes, after the read test. */
static void note_roofs(struct measuring *m, int lane0, int lane1)
{
    struct bench_report *report = &m->b->report;
    for (size_t i = 0; i < m->n_cells; i++) {
        const struct cell *c = &m->cells[i];
        const struct lane *l = &m->lanes[c->lane];
        struct bench_result *r = &report->results[c->result];
        struct bench_summary s;
        if (c->lane < lane0 || c->lane >= lane1 || !bench_summarise(r->samples, r->n, &s))
            continue;
        r->threads = l->threads;
        r->roof_bps = l->roof_bps;
        if (c->kind == CELL_DECODE) /* reads half of the generated tokens on average */
            r->read_bps = s.median * ((double)report->token_bytes +
                                      pp_engine_kv_read_bytes(l->engine, (double)r->depth +
                                                                         (double)(m->b->n_gen + 1) / 2));
    }
    if (lane0 == 0) {
        report->roof_bps = m->lanes[0].roof_bps;
        report->engine_bytes = pp_engine_stats(m->lanes[0].engine)->engine_bytes;
    }
}

/* Measures these lanes, interleaved. */
static enum pp_code run_lanes(struct measuring *m, int lane0, int lane1, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = lane0; i < lane1 && !code; i++)
        if (!(code = open_lane(m, &m->lanes[i], err)))
            code = pp_read_test_new(m->lanes[i].threads, pp_read_test_bytes(), &m->lanes[i].roof, err);
    for (int round = -1; round < m->b->repetitions && !code; round++) {
        bool chosen = lane0 > 0;
        code = run_round(m, round, lane0, lane1, &chosen, err);
    }
    if (!code && m->b->what & BENCH_KERNELS)
        code = run_profiles(m, lane0, lane1, err);
    if (!code && m->b->report.full_layers)
        code = scale_cells(m, lane0, lane1, err);
    pp_cli_bar_clear(&m->b->bar);
    if (!code)
        note_roofs(m, lane0, lane1);
    for (int i = lane0; i < lane1; i++)
        close_lane(&m->lanes[i]);
    return code;
}

static void note_ratios(struct bench_report *report)
{
    double one = 0;
    for (size_t i = 0; i < report->n; i++) {
        struct bench_result *r = &report->results[i];
        struct bench_summary s;
        if (strcmp(r->what, "rows") != 0 || !bench_summarise(r->samples, r->n, &s))
            continue;
        if (r->rows == 1) /* the first of its lane and depth */
            one = s.median;
        r->ratio = one > 0 ? s.median / one : 0;
    }
}

static enum pp_code prepare(struct measuring *m, struct pp_error *err)
{
    struct bench *b = m->b;
    uint32_t x = 2463534242u;
    if (b->n_threads * b->n_kv_types > MAX_LANES)
        return pp_fail(err, PP_ERR_USAGE, "more than %d combinations of threads and KV types; give fewer", MAX_LANES);
    for (int64_t t = 0; t < b->n_threads; t++)
        for (int64_t k = 0; k < b->n_kv_types; k++)
            m->lanes[m->n_lanes++] =
                (struct lane){.threads = (int)b->threads[t], .kv_type = (enum pp_kv_type)b->kv_types[k]};
    m->n_tokens = context_of(m) + 1;
    m->tokens = pp_malloc((size_t)m->n_tokens * sizeof *m->tokens);
    m->choose_us = pp_calloc((size_t)b->repetitions, sizeof *m->choose_us);
    if (!m->tokens || !m->choose_us)
        return pp_fail_nomem(err, "the prompt");
    for (int64_t i = 0; i < m->n_tokens; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        m->tokens[i] = (int32_t)(x % (uint64_t)pp_model_info(b->model)->n_vocab);
    }
    enum pp_code code = pp_choosing_new(pp_model_info(b->model)->n_vocab, &m->choosing, err);
    return code ? code : list_cells(m, err);
}

/* Each engine keeps its own copy of the weights. */
static bool fit_together(const struct measuring *m)
{
    return m->n_lanes == 1 || pp_model_info(m->b->model)->bytes < pp_memory_free() / 2 / (uint64_t)m->n_lanes;
}

enum pp_code bench_measure(struct bench *b, struct pp_error *err)
{
    struct measuring *m = pp_calloc(1, sizeof *m);
    if (!m)
        return pp_fail_nomem(err, "the measuring");
    m->b = b;
    enum pp_code code = prepare(m, err);
    b->report.interleaved = fit_together(m);
    if (!code && b->what & BENCH_MEMORY)
        code = measure_memory(m, err);
    if (!code && b->report.interleaved)
        code = run_lanes(m, 0, m->n_lanes, err);
    for (int i = 0; i < m->n_lanes && !code && !b->report.interleaved; i++)
        code = run_lanes(m, i, i + 1, err);
    struct bench_summary choose;
    if (!code && bench_summarise(m->choose_us, b->repetitions, &choose))
        b->report.choose_us = choose.median;
    note_ratios(&b->report);
    pp_free(m->cells);
    pp_free(m->tokens);
    pp_free(m->choose_us);
    pp_choosing_free(m->choosing);
    pp_free(m);
    return code;
}
