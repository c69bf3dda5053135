/* engine.c - an engine and its sequences; steps are in step.c. */
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/memory.h"
#include "engine/engine_int.h"
#include "engine/fit.h"
#include "engine/grammar_mask.h"
#include "engine/switched.h"

enum { MAX_THREADS = 512 };
static const int64_t LEAST_CTX = 512;
static const uint64_t MIN_KV_MEMORY = 64u << 20;

static int default_threads(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n;
}

enum pp_code pp_choose_kernels(const char *kernels, enum pp_isa *isa, struct pp_error *err)
{
    *isa = pp_isa_best();
    if (!kernels)
        return PP_OK;
    int wanted = pp_isa_by_name(kernels);
    if (wanted < 0)
        return pp_fail(err, PP_ERR_USAGE,
                       "unknown kernels \"%s\"; choose from scalar, avx2, avxvnni, avx512, amx, neon, dotprod, i8mm",
                       kernels);
    if (!pp_isa_runs((enum pp_isa)wanted))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "this CPU cannot run the %s kernels; the best it can run are %s",
                       kernels,
                       pp_isa_name(*isa));
    *isa = (enum pp_isa)wanted;
    return PP_OK;
}

static uint64_t default_kv_memory(void)
{
    uint64_t limit = pp_memory_free() / 4;
    if (limit < MIN_KV_MEMORY)
        limit = MIN_KV_MEMORY;
    return limit < pp_memory_allowed() / 4 ? limit : pp_memory_allowed() / 4;
}

/* What a sequence needs, in pages or in bytes. least: for a step of max_rows rows; most: with what its marks hold in
 * tiers with a window (seq_pages.c). Without a window both are the same. */
struct tier_need {
    uint64_t least, most;
};

/* Pages of one tier for a sequence of n pages. */
static struct tier_need tier_need(int max_rows, const struct pp_tier_plan *tier, uint64_t n)
{
    if (!tier->window)
        return (struct tier_need){n, n};
    const uint64_t in_window = (uint64_t)tier->window / PP_PAGE_TOKENS + 1;
    const uint64_t first = (uint64_t)pp_kv_pages_of(tier->n_first);
    const uint64_t least = first + in_window + (uint64_t)max_rows / PP_PAGE_TOKENS + 2;
    const uint64_t most = least + PP_MARKS * in_window;
    return (struct tier_need){least < n ? least : n, most < n ? most : n};
}

static uint64_t add_bytes(uint64_t sum, uint64_t n, uint64_t bytes)
{
    uint64_t all;
    return __builtin_mul_overflow(n, bytes, &all) || __builtin_add_overflow(sum, all, &all) ? UINT64_MAX : all;
}

static void layout_of(const struct pp_tier_plan *tier, enum pp_kv_type type, struct pp_kv_layout *l)
{
    if (tier->kind == PP_TIER_ROWS)
        pp_kv_layout_init_rows(l, tier->n_layer, tier->head_dim);
    else if (tier->kind == PP_TIER_STATE)
        pp_kv_layout_init_state(l, tier->n_layer, &tier->state);
    else if (tier->kind == PP_TIER_INDEX)
        pp_kv_layout_init_index(l, type, tier->n_layer, tier->head_dim);
    else if (tier->kind == PP_TIER_COMPRESSED)
        pp_kv_layout_init_compressed(l, type, tier->n_layer, tier->head_dim);
    else if (tier->latent_dim)
        pp_kv_layout_init_latent(l, type, tier->n_layer, tier->n_head_kv, tier->head_dim, tier->latent_dim);
    else
        pp_kv_layout_init_values(l, type, tier->n_layer, tier->n_head_kv, tier->head_dim, tier->v_dim);
    if (tier->stride && pp_tier_has_keys(tier->kind) && tier->kind != PP_TIER_ATTENTION)
        pp_kv_layout_set_stride(l, tier->stride);
}

int64_t pp_model_usual_ctx(const struct pp_model *m)
{
    enum { MOST = 16384 };
    return m->info.n_ctx_train < MOST ? m->info.n_ctx_train : MOST;
}

uint64_t pp_model_kv_bytes(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx)
{
    uint64_t sum = 0;
    for (int t = 0; t < m->plan.n_tiers; t++) {
        const struct pp_tier_plan *tier = &m->plan.tiers[t];
        const int64_t several = tier->n_first + 3 * tier->window; /* with its marks, see seq_pages.c */
        const int64_t held = tier->window && several < n_ctx ? several : n_ctx;
        const uint64_t n_pages = (uint64_t)pp_kv_pages_of(held);
        struct pp_kv_layout l;
        layout_of(tier, type, &l);
        if (!pp_tier_has_keys(tier->kind)) /* windows are short, but pages large, so the rows of a step count */
            sum = add_bytes(sum, tier_need(PP_USUAL_ROWS, tier, (uint64_t)n_ctx / PP_PAGE_TOKENS + 1).most,
                            l.page_bytes);
        else
            sum = add_bytes(sum, n_pages, l.page_bytes);
    }
    return sum;
}

/* Bytes of all tiers' pages for a sequence of n pages. */
static struct tier_need bytes_needed(const struct pp_engine *e, const struct pp_kv_layout *layouts, uint64_t n)
{
    const struct pp_plan *plan = &e->model->plan;
    struct tier_need sum = {0, 0};
    for (int t = 0; t < plan->n_tiers; t++) {
        const struct tier_need pages = tier_need(e->max_rows, &plan->tiers[t], n);
        sum.least = add_bytes(sum.least, pages.least, layouts[t].page_bytes);
        sum.most = add_bytes(sum.most, pages.most, layouts[t].page_bytes);
    }
    return sum;
}

/* The longest sequence that fits in `limit`, in pages, at most n. */
static uint64_t pages_that_fit(const struct pp_engine *e, const struct pp_kv_layout *layouts, uint64_t n,
                               uint64_t limit)
{
    uint64_t fits = 0, too_many = n + 1;
    while (too_many - fits > 1) {
        const uint64_t middle = fits + (too_many - fits) / 2;
        *(bytes_needed(e, layouts, middle).least <= limit ? &fits : &too_many) = middle;
    }
    return fits;
}

/* Makes the pools of all tiers; layouts: [n_tiers]. Each tier gets the `least` of one sequence, and of the rest a share
 * in proportion to its `most`. */
static enum pp_code make_pools(struct pp_engine *e, const struct pp_kv_layout *layouts, uint64_t limit,
                               struct pp_error *err)
{
    const struct pp_plan *plan = &e->model->plan;
    const uint64_t n = (uint64_t)pp_kv_pages_of(e->n_ctx);
    const struct tier_need all = bytes_needed(e, layouts, n);
    enum pp_code code = PP_OK;
    for (e->n_tiers = 0; !code && e->n_tiers < plan->n_tiers; e->n_tiers++) {
        struct pp_tier *tier = &e->tier[e->n_tiers];
        const struct pp_kv_layout *l = &layouts[e->n_tiers];
        tier->window = plan->tiers[e->n_tiers].window;
        tier->first = pp_kv_pages_of(plan->tiers[e->n_tiers].n_first);
        tier->stride = l->kind == PP_TIER_ROWS ? plan->tiers[e->n_tiers].stride : 0;
        const struct tier_need pages = tier_need(e->max_rows, &plan->tiers[e->n_tiers], n);
        const uint64_t more = (uint64_t)((unsigned __int128)(limit - all.least) * pages.most / all.most);
        code = pp_kv_pool_new(l, (pages.least + more) * l->page_bytes, &tier->kv, err);
    }
    return code;
}

/* fits: pages for which `limit` suffices */
static enum pp_code too_little_for_kv(const struct pp_engine *e, const struct pp_kv_layout *layouts, uint64_t limit,
                                      uint64_t least, uint64_t fits, struct pp_error *err)
{
    if (fits)
        return pp_fail(err, PP_ERR_NOMEM,
                       "a context of %lld tokens needs %.3g GB of KV cache, but only %.3g GB may be used, enough for "
                       "%lld tokens; give a smaller --ctx-size or a larger --kv-memory",
                       (long long)e->n_ctx, (double)least / 1e9, (double)limit / 1e9,
                       (long long)fits * PP_PAGE_TOKENS);
    return pp_fail(err, PP_ERR_NOMEM,
                   "the KV cache may use %llu byte%s, but one page of %d tokens needs %llu, and a context of %lld "
                   "tokens %llu; give a larger --kv-memory, such as 512M (a plain number means bytes)",
                   (unsigned long long)limit, limit == 1 ? "" : "s", PP_PAGE_TOKENS,
                   (unsigned long long)bytes_needed(e, layouts, 1).least, (long long)e->n_ctx,
                   (unsigned long long)least);
}

static enum pp_code make_kv(struct pp_engine *e, const struct pp_engine_options *opt, struct pp_kv_layout *layouts,
                            struct pp_error *err)
{
    const struct pp_plan *plan = &e->model->plan;
    const uint64_t room = pp_model_room_for_kv(e->model, opt->kv_type, e->max_rows), usual = default_kv_memory();
    const uint64_t limit = opt->kv_memory ? opt->kv_memory : usual < room ? usual : room;
    const uint64_t n = (uint64_t)pp_kv_pages_of(e->n_ctx);
    for (int t = 0; t < plan->n_tiers; t++) {
        const struct pp_tier_plan *tier = &plan->tiers[t];
        layout_of(tier, plan->encoder ? PP_KV_F32 : opt->kv_type, &layouts[t]);
    }
    const struct tier_need one_context = bytes_needed(e, layouts, n);
    if (limit < one_context.least) {
        const uint64_t fits = pages_that_fit(e, layouts, n, limit);
        if (opt->n_ctx || !fits)
            return too_little_for_kv(e, layouts, limit, one_context.least, fits, err);
        e->n_ctx = (int64_t)fits * PP_PAGE_TOKENS; /* nobody asked for a size: take what fits */
    }
    const enum pp_code code = pp_model_check_fits(e->model, opt->kv_type, e->n_ctx, e->max_rows, err);
    return code ? code : make_pools(e, layouts, limit, err);
}

/* How many bfloat16 numbers represent an activation; 0: it stays float32. */
static int parts_of(enum pp_activations activations, enum pp_isa isa)
{
    if (activations == PP_ACT_AUTO)
        activations = isa == PP_ISA_AMX ? PP_ACT_PAIR : PP_ACT_F32;
    return activations == PP_ACT_PAIR ? 2 : activations == PP_ACT_BF16 ? 1 : 0;
}

static enum pp_code check_options(const struct pp_model *m, const struct pp_engine_options *opt, struct pp_error *err)
{
    if (opt->n_threads < 0 || opt->n_threads > MAX_THREADS || opt->n_ctx < 0 || opt->n_ctx > INT32_MAX ||
        opt->max_rows < 0)
        return pp_fail(err, PP_ERR_USAGE,
                       "the number of threads must be 1 to %d and the context 1 to 2147483647 tokens", MAX_THREADS);
    if (m->plan.n_positions && opt->n_ctx > m->plan.n_positions)
        return pp_fail(err, PP_ERR_USAGE,
                       "this model has only %lld positions; give a --ctx-size of at most that",
                       (long long)m->plan.n_positions);
    return PP_OK;
}

/* Rows of the largest batch: an encoder reads a text in one step. */
static int rows_of(const struct pp_engine *e, const struct pp_engine_options *opt)
{
    if (opt->max_rows)
        return opt->max_rows;
    return e->model->plan.encoder && e->n_ctx > PP_USUAL_ROWS ? (int)e->n_ctx : PP_USUAL_ROWS;
}

/* Allocates what a batch needs; starts the thread pool, unless another engine's is shared. */
static enum pp_code make_batch_and_pool(struct pp_engine *e, const struct pp_engine_options *opt, struct pp_error *err)
{
    e->rows = pp_calloc((size_t)e->max_rows, sizeof *e->rows);
    e->output_rows = pp_calloc((size_t)e->max_rows, sizeof *e->output_rows);
    e->wanted = pp_calloc((size_t)e->max_rows, sizeof *e->wanted);
    e->parents = pp_calloc((size_t)e->max_rows, sizeof *e->parents);
    e->batch = pp_calloc((size_t)e->max_rows, sizeof *e->batch);
    if (!e->rows || !e->output_rows || !e->wanted || !e->parents || !e->batch)
        return pp_fail_nomem(err, "the engine");
    if (opt->share_pool) {
        e->pool = opt->share_pool->pool;
        return PP_OK;
    }
    enum pp_code code = pp_pool_new(opt->n_threads ? opt->n_threads : default_threads(), &e->pool, err);
    e->owns_pool = code == PP_OK;
    return code;
}

/* Interleaves the pages over the NUMA nodes of all threads, and counts them. */
static void spread_tiers(struct pp_engine *e, const struct pp_kv_layout *layouts)
{
    e->stats.n_tiers = e->n_tiers;
    for (int t = 0; t < e->n_tiers; t++) {
        struct pp_kv_pool *kv = e->tier[t].kv;
        pp_pool_interleave(e->pool, pp_page_data(kv, 0), pp_kv_pool_total(kv) * layouts[t].page_bytes);
        e->stats.tiers[t].window = e->tier[t].window;
        e->stats.tiers[t].page_bytes = layouts[t].page_bytes;
        e->stats.tiers[t].pages_total = pp_kv_pool_total(kv);
        e->stats.page_bytes += layouts[t].page_bytes;
        e->stats.pages_total += pp_kv_pool_total(kv);
        e->stats.kv_bytes_total += layouts[t].page_bytes * pp_kv_pool_total(kv);
    }
}

enum pp_code pp_engine_new(const struct pp_model *m, const struct pp_engine_options *opt, pp_progress *progress,
                           void *user, struct pp_engine **out, struct pp_error *err)
{
    static atomic_uint_least64_t engines;
    struct pp_kv_layout layouts[PP_MAX_TIERS] = {0};
    struct pp_error own;
    err = err ? err : &own;
    *out = NULL;
    enum pp_isa isa;
    enum pp_code code = pp_choose_kernels(opt->kernels, &isa, err);
    if (!code)
        code = check_options(m, opt, err);
    if (code)
        return code;
    struct pp_engine *e = pp_calloc(1, sizeof *e);
    if (!e)
        return pp_fail_nomem(err, "the engine");
    e->id = 1 + atomic_fetch_add(&engines, 1);
    e->model = m;
    e->isa = isa;
    e->n_ctx = opt->n_ctx ? opt->n_ctx : pp_model_usual_ctx(m);
    e->max_rows = rows_of(e, opt);
    e->chunks.n_expert = m->info.n_expert;
    e->chunks.n_expert_used = m->info.n_expert_used;
    code = make_batch_and_pool(e, opt, err);
    if (!code) /* without a wish, n_ctx may shrink to what fits, but not below LEAST_CTX */
        code = pp_model_check_fits(m, opt->kv_type, opt->n_ctx || e->n_ctx < LEAST_CTX ? e->n_ctx : LEAST_CTX,
                                   e->max_rows, err);
    if (!code)
        code = make_kv(e, opt, layouts, err);
    if (!code)
        spread_tiers(e, layouts);
    if (!code)
        code = pp_source_fill(m->source, e->pool,
                              &(struct pp_fill_options){.progress = progress, .user = user, .cancel = opt->cancel},
                              err);
    if (!code)
        code = pp_cpu_new(m, e->pool, layouts,
                          &(struct pp_cpu_options){.isa = isa, .max_rows = e->max_rows, .n_ctx = e->n_ctx,
                                                   .bf16_parts = parts_of(opt->activations, isa),
                                                   .cache_dir = opt->cache_dir,
                                                   .layout_quota = opt->layout_quota, .cancel = opt->cancel,
                                                   .imatrix = opt->imatrix},
                          progress, user, &e->cpu, err);
    if (!code)
        code = pp_switched_new(e, err);
    if (code) {
        pp_engine_free(e);
        return code;
    }
    static const char *const by_parts[] = {"", "+bf16", "+pair"};
    snprintf(e->kernels, sizeof e->kernels, "%s%s", pp_isa_name(isa), by_parts[pp_cpu_bf16_parts(e->cpu)]);
    *out = e;
    return PP_OK;
}

enum pp_code pp_engine_settle(struct pp_engine *e, const struct pp_cancel *cancel, struct pp_error *err)
{
    return pp_weights_finish(pp_cpu_weights(e->cpu), e->pool, cancel, err);
}

void pp_engine_prefault(const struct pp_engine *e, uint64_t bytes, const struct pp_cancel *cancel)
{
    struct pp_kv_layout layouts[PP_MAX_TIERS] = {0};
    for (int t = 0; t < e->n_tiers; t++)
        layouts[t] = *pp_kv_pool_layout(e->tier[t].kv);
    const uint64_t n = pages_that_fit(e, layouts, (uint64_t)pp_kv_pages_of(e->n_ctx), bytes);
    for (int t = 0; t < e->n_tiers; t++)
        pp_kv_pool_prefault(e->tier[t].kv, tier_need(e->max_rows, &e->model->plan.tiers[t], n).least, cancel);
}

void pp_engine_free(struct pp_engine *e)
{
    if (!e)
        return;
    pp_switched_free(e);
    pp_trie_free(e->trie);
    pp_cpu_free(e->cpu);
    for (int t = 0; t < PP_MAX_TIERS; t++)
        pp_kv_pool_free(e->tier[t].kv);
    if (e->owns_pool)
        pp_pool_free(e->pool);
    pp_free(e->rows);
    pp_free(e->batch);
    pp_free(e->output_rows);
    pp_free(e->wanted);
    pp_free(e->parents);
    pp_free(e);
}

const struct pp_model *pp_engine_model(const struct pp_engine *e) { return e->model; }
int64_t pp_engine_n_ctx(const struct pp_engine *e) { return e->n_ctx; }
int pp_engine_n_threads(const struct pp_engine *e) { return pp_pool_n(e->pool); }
int pp_engine_max_rows(const struct pp_engine *e) { return e->max_rows; }
enum pp_kv_type pp_engine_kv_type(const struct pp_engine *e) { return pp_kv_pool_layout(e->tier[0].kv)->type; }
const char *pp_engine_kernels(const struct pp_engine *e) { return e->kernels; }

int pp_activations_by_name(const char *name)
{
    static const char *const names[] = {"auto", "f32", "pair", "bf16"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

static void count_pages(struct pp_engine *e)
{
    struct pp_stats *s = &e->stats;
    s->pages_used = s->pages_cached = s->kv_bytes_used = s->kv_bytes_cached = 0;
    for (int t = 0; t < e->n_tiers; t++) {
        struct pp_tier_stats *of = &s->tiers[t];
        s->pages_used += of->pages_used = pp_kv_pool_used(e->tier[t].kv);
        s->pages_cached += of->pages_cached = pp_kv_pool_cached(e->tier[t].kv);
        s->kv_bytes_used += of->pages_used * of->page_bytes;
        s->kv_bytes_cached += of->pages_cached * of->page_bytes;
    }
}

struct pp_stats *pp_engine_stats(struct pp_engine *e)
{
    count_pages(e);
    e->stats.engine_bytes = pp_cpu_memory(e->cpu);
    struct pp_weights_state layout_state = pp_weights_state(pp_cpu_weights(e->cpu));
    e->stats.layout_bytes = layout_state.bytes;
    e->stats.layout_mapped = layout_state.mapped;
    e->stats.layout_repaired = layout_state.repaired;
    return &e->stats;
}

/* --- sequences ------------------------------------------------------------------------------------------------ */

/* Memory for the marks of a tier with a window; other tiers hold all pages anyway. */
static bool make_marks(const struct pp_engine *e, int t, struct pp_seq_tier *tier)
{
    const int64_t window = e->tier[t].window, most = window < e->n_ctx ? window : e->n_ctx;
    for (int i = 0; window && i < PP_MARKS; i++)
        if (!(tier->marked[i].pages = pp_malloc((size_t)(most / PP_PAGE_TOKENS + 2) * sizeof *tier->marked[i].pages)))
            return false;
    return true;
}

enum pp_code pp_seq_new(struct pp_engine *e, struct pp_seq **out, struct pp_error *err)
{
    const size_t n_ctx = (size_t)e->n_ctx, n_pages = (size_t)pp_kv_pages_of(e->n_ctx);
    struct pp_seq *s = pp_calloc(1, sizeof *s);
    bool made = s != NULL;
    *out = NULL;
    if (s) {
        s->engine = e;
        s->tokens = pp_malloc(n_ctx * sizeof *s->tokens);
        s->names = pp_malloc(n_pages * sizeof *s->names);
        made = s->tokens && s->names;
    }
    for (int t = 0; made && t < e->n_tiers; t++) {
        struct pp_seq_tier *tier = &s->tier[t];
        tier->pages = pp_malloc(n_pages * sizeof *tier->pages);
        tier->page_data = pp_malloc(n_pages * sizeof *tier->page_data);
        made = tier->pages && tier->page_data && make_marks(e, t, tier);
    }
    if (!made) {
        pp_seq_free(s);
        return pp_fail_nomem(err, "a conversation");
    }
    pp_seq_choose(s, &(struct pp_adapter_set){0});
    *out = s;
    return PP_OK;
}

void pp_seq_free(struct pp_seq *s)
{
    if (!s)
        return;
    pp_seq_truncate(s, 0);
    pp_seq_unmark(s);
    pp_gains_release(&s->engine->gains, &s->adapters);
    pp_row_logits_release(s->logits);
    pp_free(s->tokens);
    pp_free(s->names);
    for (int t = 0; t < PP_MAX_TIERS; t++) {
        pp_free(s->tier[t].pages);
        pp_free(s->tier[t].page_data);
        for (int i = 0; i < PP_MARKS; i++)
            pp_free(s->tier[t].marked[i].pages);
    }
    pp_free(s);
}

enum pp_code pp_seq_fork(struct pp_seq *s, int64_t n, struct pp_seq **out, struct pp_error *err)
{
    enum pp_code code = pp_seq_new(s->engine, out, err);
    if (code)
        return code;
    (*out)->adapters = s->adapters;
    pp_gains_share(s->engine->gains, &s->adapters);
    (*out)->key = s->key;
    memcpy((*out)->start, s->start, sizeof s->start);
    memcpy((*out)->spans, s->spans, sizeof s->spans);
    (*out)->n_spans = s->n_spans;
    pp_seq_share(*out, s, n < 0 ? 0 : n > s->len ? s->len : n);
    return PP_OK;
}

int64_t pp_seq_len(const struct pp_seq *s) { return s->len; }
const int32_t *pp_seq_tokens(const struct pp_seq *s) { return s->tokens; }

enum pp_code pp_seq_set_adapters(struct pp_seq *s, const struct pp_adapter_use *use, int n, struct pp_error *err)
{
    struct pp_adapter_set set = {0};
    for (int i = 0; i < n; i++) {
        if (use[i].scale == 0.0f)
            continue; /* scale 0 is the same as absent */
        if (!isfinite(use[i].scale))
            return pp_fail(err, PP_ERR_USAGE, "the scale of adapter %s is not a number", use[i].adapter->info.name);
        if (set.n == PP_MAX_ADAPTERS - pp_switched_extra(s->engine))
            return pp_fail(err, PP_ERR_USAGE, "at most %d adapters can be on at once%s", set.n,
                           set.n < PP_MAX_ADAPTERS ? " in addition to one of the model's own" : "");
        if (use[i].adapter->model != s->engine->model)
            return pp_fail(err, PP_ERR_MISMATCH, "adapter %s was loaded for another model", use[i].adapter->info.name);
        set.use[set.n++] = use[i];
    }
    bool same = set.n == s->adapters.n;
    for (int i = 0; same && i < set.n; i++)
        same = set.use[i].adapter == s->adapters.use[i].adapter && set.use[i].scale == s->adapters.use[i].scale;
    if (same)
        return PP_OK;
    enum pp_code code = pp_adapter_set_check(&set, err);
    if (!code)
        code = pp_cpu_reserve(s->engine->cpu, &set, err);
    if (!code)
        code = pp_switched_reserve(s->engine, &set, err);
    if (!code)
        code = pp_gains_take(&s->engine->gains, &set, err);
    if (code)
        return code;
    pp_tail_keep(s);
    pp_seq_truncate(s, 0);
    pp_gains_release(&s->engine->gains, &s->adapters);
    pp_seq_choose(s, &set);
    return PP_OK;
}

bool pp_seq_uses(const struct pp_seq *s, const struct pp_adapter *a)
{
    for (int i = 0; i < s->adapters.n; i++)
        if (s->adapters.use[i].adapter == a)
            return true;
    return false;
}
