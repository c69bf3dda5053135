/* setup.c - creating and freeing a program: its scratch memory, and room for adapters. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/mem.h"
#include "engine/cpu/profile.h"
#include "engine/cpu/program.h"
#include "engine/cpu/stream_ahead.h"
#include "engine/rope.h"

void *pp_cpu_memory_take(struct pp_cpu *c, int64_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow((size_t)count, size, &bytes))
        return NULL;
    const size_t large = bytes / PP_LARGE_PAGE * PP_LARGE_PAGE;
    void *p = pp_aligned(large ? PP_LARGE_PAGE : 64, bytes);
    if (p) {
        if (large)
            madvise(p, large, MADV_HUGEPAGE);
        memset(p, 0, bytes);
        c->memory += bytes;
    }
    return p;
}

static bool make_quantized(struct pp_cpu *c, struct thread_scratch *t, int64_t rows, int64_t q_width, int64_t width)
{
    t->q = pp_cpu_memory_take(c, rows * q_width, sizeof *t->q);
    t->d = pp_cpu_memory_take(c, rows * width / PP_ACT_BLOCK, sizeof *t->d);
    t->sum = pp_cpu_memory_take(c, rows * width / PP_ACT_BLOCK, sizeof *t->sum);
    return t->q && t->d && t->sum;
}

/* The widest input of the projection stages for which `counts` is true, rounded up to 64. 0: there is none. */
static int64_t widest_input(const struct pp_cpu *c, bool (*counts)(const struct stage *s))
{
    int64_t widest = 0;
    for (int i = 0; i < c->n_stages; i++) {
        const struct stage *s = &c->stages[i];
        if (s->kind == STAGE_PROJECT && counts(s) && s->projections[0].w.n_cols > widest)
            widest = s->projections[0].w.n_cols;
    }
    return (widest + 63) / 64 * 64;
}

static bool is_any(const struct stage *s) { return s != NULL; }
static bool is_quantized(const struct stage *s) { return s->quantize; }
static bool is_quantized_apart(const struct stage *s) { return s->quantize && !s->in_place; }
static bool is_split(const struct stage *s) { return s->split; }
static bool is_split_apart(const struct stage *s) { return s->split && !s->in_place; }
static bool is_by_lane(const struct stage *s) { return s->by_lane; }
static bool is_normalised(const struct stage *s) { return s->norm.weight != NULL; }
static bool is_normalised_plain(const struct stage *s) { return s->norm.weight && s->plain && s->norm_out < 0; }

/* An odd number of cache lines, so that rows do not compete for the same sets of a cache. */
static int64_t bf16_stride(const struct pp_cpu *c, int64_t width)
{
    return width ? width * c->bf16_parts + PP_BF16_BLOCK : 0;
}

/* Allocates the arrays for inputs that all threads prepare together, if some stage needs them. */
static bool make_shared(struct pp_cpu *c)
{
    bool keeps_normalised = widest_input(c, is_normalised_plain) > 0;
    int64_t width = widest_input(c, is_quantized);
    c->shared_stride = widest_input(c, is_quantized_apart);
    if (c->shared_stride)
        c->shared_stride = pp_odd_lines(c->shared_stride, sizeof(int8_t));
    c->shared_bf16_stride = bf16_stride(c, widest_input(c, is_split_apart));
    const int64_t few = pp_pool_n(c->pool) * PRIVATE_ROWS * c->bf16_stride, many = c->max_rows * c->shared_bf16_stride;
    if (keeps_normalised && !(c->shared.f32 = pp_cpu_memory_take(c, c->max_rows * c->normalised_stride, sizeof(float))))
        return false;
    if (c->bf16_stride && !(c->shared.bf16 = pp_cpu_memory_take(c, few > many ? few : many, sizeof(uint16_t))))
        return false;
    return !width || make_quantized(c, &c->shared, c->max_rows, c->shared_stride, c->acts_width);
}

static bool make_private(struct pp_cpu *c, struct thread_scratch *t)
{
    if (c->bf16_stride)
        t->bf16 = c->shared.bf16 + (t - c->threads) * PRIVATE_ROWS * c->bf16_stride;
    if (widest_input(c, is_quantized) && !make_quantized(c, t, PRIVATE_ROWS, c->acts_width, c->acts_width))
        return false;
    return (t->f32 = pp_cpu_memory_take(c, PRIVATE_ROWS * c->normalised_stride, sizeof *t->f32)) &&
           (t->results[0] = pp_cpu_memory_take(c, c->result_floats, sizeof(float))) &&
           (t->results[1] = pp_cpu_memory_take(c, c->result_floats, sizeof(float)));
}

static void free_inputs(struct thread_scratch *t)
{
    pp_free(t->f32);
    pp_free(t->q);
    pp_free(t->d);
    pp_free(t->sum);
    pp_free(t->lora);
    pp_free(t->scaled);
    pp_free(t->replaced);
    pp_free(t->joined);
    pp_free(t->results[0]);
    pp_free(t->results[1]);
    pp_free(t->kernel);
}

/* Sizes each thread's results and kernel scratch: its share of 4 MiB, but at least 0.5 MiB and at most 1.5 MiB, beyond
 * which nothing was gained; 0.5 MiB for float weights, whose inputs take more. */
static void make_room(struct pp_cpu *c)
{
    const size_t most = 3u << 19, least = 1u << 19, share = (4u << 20) / (size_t)pp_pool_n(c->pool);
    const size_t room = !widest_input(c, is_quantized) || share < least ? least : share > most ? most : share;
    c->result_floats = room < 2 * least ? MOST_RESULT_FLOATS / 2 : MOST_RESULT_FLOATS;
    c->kernel_bytes = c->mm->uses_scratch ? (room - 2 * (size_t)c->result_floats * sizeof(float)) / 64 * 64
                                          : PP_MATMUL_SCRATCH;
    if (c->result_floats < PP_GROUP_ROWS * c->max_rows)
        c->result_floats = PP_GROUP_ROWS * c->max_rows;
}

/* Lists the ways of reading weights that passes try (stream_choice.h). */
static void list_ways(struct pp_cpu *c)
{
    const enum pp_weights_way *tried = c->mm->tried[pp_stream_way];
    c->stream.n_ways = 1; /* the usual one */
    for (int i = 0; i < PP_WAYS_TRIED && tried[i] != PP_WAY_USUAL; i++)
        c->ways[c->stream.n_ways++] = tried[i];
}

/* Allocates memory for inputs that are arranged lane by lane, within the limit for scratch memory. If that is not
 * enough for all rows of the widest input, fewer inputs are arranged, or none; results are the same. */
static bool make_by_lane(struct pp_cpu *c)
{
    const uint64_t most = 40u << 20;
    const struct pp_by_lane *lanes = &c->mm->by_lane;
    const int64_t width = widest_input(c, is_by_lane), panel = pp_by_lane_panel(lanes->panel_rows, width);
    const int64_t panels = pp_pool_n(c->pool) * panel;
    const int64_t left = c->memory < most ? (int64_t)(most - c->memory) - panels * (int64_t)sizeof(uint16_t) : 0;
    int64_t floats = width ? pp_by_lane_floats(lanes->rows, c->max_rows, width) : 0;
    if (floats > left / (int64_t)sizeof(float))
        floats = left / (int64_t)sizeof(float);
    if (!width || c->max_rows < lanes->from || floats < lanes->from * 64)
        return true;
    c->by_lane_floats = floats;
    c->panel_numbers = panel;
    return (c->by_lane = pp_cpu_memory_take(c, floats, sizeof(float))) &&
           (c->by_lane_panels = pp_cpu_memory_take(c, panels, sizeof(uint16_t)));
}

static bool make_scratch(struct pp_cpu *c)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    int n_threads = pp_pool_n(c->pool);
    make_room(c);
    c->acts_width = widest_input(c, is_any);
    c->normalised_stride = pp_odd_lines(widest_input(c, is_normalised), sizeof(float));
    c->bf16_stride = bf16_stride(c, widest_input(c, is_split));
    c->threads = pp_cpu_memory_take(c, n_threads, sizeof *c->threads);
    c->parts = pp_calloc((size_t)(MAX_PHASES * c->n_stages), sizeof *c->parts);
    c->work = pp_calloc((size_t)(MAX_PHASES * c->n_stages), sizeof *c->work);
    for (int r = 0; r < c->n_ropes; r++) {
        c->ropes[r].dim = r && hp->rope_dim_local ? hp->rope_dim_local : hp->rope_dim;
        c->ropes[r].inv_freq = pp_cpu_memory_take(c, c->ropes[r].dim / 2, sizeof(float));
        c->ropes[r].cos_sin = pp_cpu_memory_take(c, c->max_rows * c->ropes[r].dim, sizeof(float));
        if (!c->ropes[r].inv_freq || !c->ropes[r].cos_sin)
            return false;
    }
    if (!c->threads || !c->parts || !c->work || !make_shared(c))
        return false;
    for (int i = 0; i < n_threads; i++)
        if (!make_private(c, &c->threads[i]))
            return false;
    return pp_cpu_experts_new(c) && pp_cpu_heads_new(c) && pp_cpu_pick_new(c) && pp_cpu_attend_new(c) &&
           make_by_lane(c);
}

static enum pp_code check_limits(const struct pp_plan *plan, struct pp_error *err)
{
    for (int t = 0; t < plan->n_tiers; t++) {
        const struct pp_tier_plan *tier = &plan->tiers[t];
        if (!pp_tier_has_keys(tier->kind))
            continue;
        const int size = tier->v_dim > tier->head_dim ? tier->v_dim : tier->head_dim;
        if (size > PP_MAX_HEAD_DIM || tier->n_head / tier->n_head_kv > PP_MAX_GROUP)
            return pp_fail(err, PP_ERR_UNSUPPORTED,
                           "heads of %d values with %d queries a head are more than the CPU backend can run (%d, %d)",
                           size, tier->n_head / tier->n_head_kv, PP_MAX_HEAD_DIM, PP_MAX_GROUP);
    }
    return PP_OK;
}

static enum pp_code rope_setup(struct pp_cpu *c, int64_t n_ctx, struct pp_error *err)
{
    struct pp_hparams hp = *pp_source_hparams(c->model->source);
    float *factors;
    enum pp_code code = pp_rope_factors(c->model->source, n_ctx, &factors, err);
    if (code)
        return code;
    pp_rope_frequencies(&hp, n_ctx, factors, c->ropes[0].inv_freq, &c->ropes[0].magnitude);
    pp_free(factors);
    hp.rope_base = hp.rope_base_local;
    hp.rope_dim = c->ropes[1].dim;
    hp.rope_n_pairs = 0;
    hp.rope_scaling = PP_ROPE_NONE;
    if (c->n_ropes > 1)
        pp_rope_frequencies(&hp, n_ctx, NULL, c->ropes[1].inv_freq, &c->ropes[1].magnitude);
    return PP_OK;
}

/* The largest number of parts of a pass: only mixtures use all MAX_PHASES, others at least two fewer. */
static int most_parts(const struct pp_cpu *c)
{
    int n = 0;
    for (int i = 0; i < c->n_stages; i++)
        n += c->stages[i].kind == STAGE_EXPERTS ? MAX_PHASES : MAX_PHASES - 2;
    return n;
}

/* Sets what attention needs to know about a tier. */
static void describe_tier(struct attend_plan *p, const struct pp_tier_plan *tier, const struct pp_kv_layout *kv,
                          const struct pp_model *m)
{
    const struct pp_hparams *hp = pp_source_hparams(m->source);
    const int n_queries = tier->n_head / tier->n_head_kv; /* of a KV head */
    const int64_t dim = kv->head_dim - (hp->key_scores ? PP_KEY_SCORE : 0);
    p->kv = *kv;
    p->n_first = tier->n_first;
    p->window = tier->window;
    p->top_k = tier->top_k;
    p->block = tier->block ? tier->block : 1;
    p->pooled = tier->pooled;
    p->n_local = tier->n_local;
    p->stride = tier->stride;
    p->chunked = hp->chunked;
    p->bidirectional = m->plan.encoder;
    p->n_local_blocks = tier->n_local_blocks;
    p->vert_stride = tier->vert_stride;
    p->far_shift = tier->n_head && tier->vert_stride > tier->n_head ? (int)(tier->vert_stride / tier->n_head) : 1;
    p->share = tier->n_local_blocks ? n_queries : 1;
    p->group = n_queries / p->share;
    p->scale = hp->attn_scale != 0.0f ? hp->attn_scale : 1.0f / sqrtf((float)dim);
    if (hp->kv_lora_rank_local && tier->window)
        p->scale = hp->attn_scale_local;
}

enum pp_code pp_cpu_new(const struct pp_model *m, struct pp_pool *pool, const struct pp_kv_layout *kv,
                        const struct pp_cpu_options *opt, pp_progress *progress, void *user, struct pp_cpu **out,
                        struct pp_error *err)
{
    *out = NULL;
    enum pp_code code = check_limits(&m->plan, err);
    if (code)
        return code;
    struct pp_cpu *c = pp_calloc(1, sizeof *c);
    if (!c)
        return pp_fail_nomem(err, "the engine");
    c->model = m;
    c->mm = pp_matmul_kernels(opt->isa);
    list_ways(c);
    c->bf16 = opt->bf16_parts ? pp_bf16_kernels(opt->isa) : NULL;
    c->bf16_parts = opt->bf16_parts;
    c->ops = pp_cpu_ops(opt->isa);
    c->n_tiers = m->plan.n_tiers;
    for (int t = 0; t < c->n_tiers; t++)
        describe_tier(&c->attend[t], &m->plan.tiers[t], &kv[t], m);
    c->pool = pool;
    c->imatrix = opt->imatrix;
    c->max_rows = opt->max_rows;
    c->n_ropes = pp_source_hparams(m->source)->rope_base_local != 0.0f ? 2 : 1;
    code = pp_cpu_lower(c, opt, progress, user, err);
    if (!code && most_parts(c) > PP_POOL_MAX_PARTS)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "a model of %d stages is deeper than the CPU backend can run",
                       c->n_stages);
    if (!code && (!pp_cpu_slots_new(c) || !make_scratch(c) || !pp_cpu_project_begins(c)))
        code = pp_fail_nomem(err, "the engine's work space");
    if (!code)
        code = rope_setup(c, opt->n_ctx, err);
    if (!code)
        code = pp_source_check(m->source, err);
    if (code) {
        pp_cpu_free(c);
        return code;
    }
    pp_cpu_place_weights(c);
    pp_weights_keep(c->weights);
    *out = c;
    return PP_OK;
}

void pp_cpu_free(struct pp_cpu *c)
{
    if (!c)
        return;
    pp_weights_free(c->weights);
    pp_cpu_profile(c, false, NULL);
    for (int i = 0; i < c->n_owned; i++)
        pp_free(c->owned[i]);
    pp_free(c->owned);
    pp_cpu_slots_free(c);
    pp_cpu_attend_free(c);
    pp_cpu_pick_free(c);
    pp_cpu_experts_free(c);
    pp_cpu_heads_free(c);
    free_inputs(&c->shared);
    pp_free(c->shared.bf16);
    pp_free(c->by_lane);
    pp_free(c->by_lane_panels);
    for (int i = 0; c->threads && i < pp_pool_n(c->pool); i++)
        free_inputs(&c->threads[i]);
    pp_free(c->threads);
    pp_free(c->parts);
    pp_free(c->work);
    for (int r = 0; r < c->n_ropes; r++) {
        pp_free(c->ropes[r].inv_freq);
        pp_free(c->ropes[r].cos_sin);
    }
    for (int i = 0; i < c->n_stages; i++)
        pp_free(c->stages[i].begins);
    pp_free(c->down);
    pp_free(c->listed_begins);
    pp_free(c->stages);
    pp_free(c);
}

/* Grows the lora part of every scratch to `width` floats a row. */
static bool grow_lora(struct pp_cpu *c, int64_t width)
{
    int n_threads = pp_pool_n(c->pool);
    for (int i = -1; i < n_threads; i++) {
        struct thread_scratch *t = i < 0 ? &c->shared : &c->threads[i];
        int64_t rows = i < 0 ? c->max_rows : PRIVATE_ROWS;
        float *p = pp_cpu_memory_take(c, rows * width, sizeof *p);
        if (!p)
            return false;
        if (t->lora)
            c->memory -= (uint64_t)(rows * c->lora_width) * sizeof *p;
        pp_free(t->lora);
        t->lora = p;
    }
    c->lora_width = width;
    return true;
}

/* Allocates memory for inputs that an adapter scales, in every thread's scratch. Rows that threads prepare together are
 * scaled in place and need none. */
static bool make_scaled(struct pp_cpu *c)
{
    for (int i = 0; i < pp_pool_n(c->pool); i++)
        if (!c->threads[i].scaled &&
            !(c->threads[i].scaled = pp_cpu_memory_take(c, PRIVATE_ROWS * c->acts_width, sizeof(float))))
            return false;
    return true;
}

/* Allocates memory for the results of tensors that adapters replace, in every thread's scratch. */
static bool make_replaced(struct pp_cpu *c)
{
    c->replaced_floats = c->result_floats;
    if (c->replaced_floats < 2 * (c->acts_width + 16))
        c->replaced_floats = 2 * (c->acts_width + 16);
    for (int i = 0; i < pp_pool_n(c->pool); i++) {
        struct thread_scratch *t = &c->threads[i];
        if (!t->replaced && !(t->replaced = pp_cpu_memory_take(c, c->replaced_floats, sizeof(float))))
            return false;
        if (c->bf16_stride && !t->joined &&
            !(t->joined = pp_cpu_memory_take(c, PRIVATE_ROWS * c->acts_width, sizeof(float))))
            return false;
    }
    return true;
}

static int is_with(const struct norm *norm, int op)
{
    return norm->weight && norm->op == op;
}

/* How many of a stage's norms are replaced by an adapter that replaces plan operation `op`. Norms of keys after RoPE
 * are not counted: when keys are moved, that norm is undone with the model's own weights (move.c). */
static int count_replaceable(const struct stage *s, int op)
{
    const bool attends = s->kind == STAGE_ATTEND;
    int n = (s->kind == STAGE_PROJECT || s->kind == STAGE_EXPERTS) && is_with(&s->norm, op);
    for (int i = 0; s->kind == STAGE_ROWS && i < s->n_row_ops; i++)
        n += is_with(&s->row_ops[i].norm, op);
    if (attends)
        n += is_with(&s->q_norm, op) + is_with(&s->v_norm, op) + (is_with(&s->k_norm, op) && !s->norm_after_rope);
    return n;
}

/* Whether all norms with this one's weight can be replaced: layers that run several times have several, which stages
 * identify by the first. */
static bool is_replaceable(const struct pp_cpu *c, int op)
{
    const struct pp_plan *plan = &c->model->plan;
    int n_norms = 0, n_stages = 0;
    for (int i = op; i < plan->n_ops; i++)
        n_norms += (plan->ops[i].kind == PP_OP_NORM || plan->ops[i].kind == PP_OP_HEAD_NORM) &&
                   plan->ops[i].weight == plan->ops[op].weight;
    for (int i = 0; i < c->n_stages; i++)
        n_stages += count_replaceable(&c->stages[i], op);
    return n_stages == n_norms && plan->ops[op].weight->ne[0] <= c->acts_width;
}

/* Norms that cannot be replaced would silently stay the model's. */
static enum pp_code check_norms(const struct pp_cpu *c, const struct pp_adapter_set *set, struct pp_error *err)
{
    for (int k = 0; k < set->n; k++)
        for (int op = 0; set->use[k].adapter->norms && op < c->model->plan.n_ops; op++)
            if ((set->use[k].adapter->norms[op].weight || set->use[k].adapter->norms[op].bias) &&
                !is_replaceable(c, op))
                return pp_fail(err, PP_ERR_UNSUPPORTED,
                               "adapter %s replaces %s, a norm that the CPU backend cannot replace",
                               set->use[k].adapter->path, c->model->plan.ops[op].weight->name);
    return PP_OK;
}

enum pp_code pp_cpu_reserve(struct pp_cpu *c, const struct pp_adapter_set *set, struct pp_error *err)
{
    int64_t widest = set->n > 0; /* so that adapters without a rank, too, have something to point to */
    bool scales = false;
    for (int i = 0; i < c->n_stages; i++) {
        int64_t width = 0;
        for (int p = 0; p < c->stages[i].n_projections; p++) {
            width += pp_adapter_set_room(set, c->stages[i].projections[p].linear);
            scales = scales || pp_adapter_set_scales_input(set, c->stages[i].projections[p].linear);
        }
        if (c->stages[i].kind == STAGE_HEADS)
            width = pp_adapter_set_heads_room(set, c->stages[i].of_heads);
        if (width > widest)
            widest = width;
    }
    enum pp_code code = check_norms(c, set, err);
    if (code)
        return code;
    if (pp_adapter_set_replaces(set) && !make_replaced(c))
        return pp_fail_nomem(err, "the adapters' work space");
    if (!pp_cpu_experts_reserve(c, set) || (scales && !make_scaled(c)) || !pp_cpu_heads_reserve(c, set) ||
        (widest > c->lora_width && !grow_lora(c, widest)))
        return pp_fail_nomem(err, "the adapters' work space");
    return PP_OK;
}

enum pp_code pp_cpu_reserve_outputs(struct pp_cpu *c, int n, struct pp_error *err)
{
    if (n <= c->max_outputs)
        return PP_OK;
    if (!pp_cpu_slots_outputs(c, n))
        return pp_fail_nomem(err, "so many rows of logits at once");
    return PP_OK;
}

int pp_cpu_bf16_parts(const struct pp_cpu *c)
{
    for (int i = 0; i < c->n_stages; i++)
        if (c->stages[i].split)
            return c->bf16_parts;
    return 0;
}

const char *pp_cpu_arithmetic(const struct pp_cpu *c)
{
    static const char *const ids[] = {"cpu-7", "cpu-7+bf16-2", "cpu-7+pair"};
    return ids[pp_cpu_bf16_parts(c)];
}
