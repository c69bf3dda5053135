/* forward.c - runs a program on the pool: for each pass the stages become parts with work items, which threads take as
 * they come. No item takes more than about 2 ms, so that a cancelled pass ends soon. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/program.h"
#include "engine/quant.h"
#include "engine/rope.h"

/* Multiply-adds in one work item of a projection: 2 ms at 100 G/s. */
static const int64_t ITEM_MACS = 200000000;

static bool abandoned(struct pp_cpu *c)
{
    if (atomic_load_explicit(&c->abandoned, memory_order_relaxed))
        return true;
    if (!pp_cancelled(c->cancel))
        return false;
    atomic_store_explicit(&c->abandoned, true, memory_order_relaxed);
    return true;
}

static float *slot_row(const struct pp_cpu *c, int slot, int64_t row)
{
    return c->slots[slot] + row * c->strides[slot];
}

/* --- embedding ------------------------------------------------------------------------------------------------ */

static void rope_table(const struct pp_cpu *c, int row)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    float *cs = c->cos_sin + (int64_t)row * hp->rope_dim;
    float position = (float)c->batch->rows[row].position;
    for (int64_t i = 0; i < hp->rope_dim / 2; i++) {
        float angle = position * c->inv_freq[i];
        cs[2 * i] = cosf(angle) * c->rope_magnitude;
        cs[2 * i + 1] = sinf(angle) * c->rope_magnitude;
    }
}

static void embed_row(struct pp_cpu *c, const struct stage *s, int i)
{
    const struct pp_tensor *t = s->table;
    size_t row_bytes = pp_type_row_bytes(t->type, t->ne[0]);
    const struct pp_batch_row *row = &c->batch->rows[i];
    float *x = slot_row(c, s->out, i);
    if (row->token >= 0)
        pp_dequantize_row(t->type, (const uint8_t *)t->data + (size_t)row->token * row_bytes, x, t->ne[0]);
    else
        memcpy(x, row->vector, (size_t)t->ne[0] * sizeof *x);
    rope_table(c, i);
}

/* --- projections ---------------------------------------------------------------------------------------------- */

/* The batch row behind row i of a stage: after SELECT only those with an output are left. */
static const struct pp_batch_row *batch_row(const struct pp_cpu *c, const struct stage *s, int i)
{
    return &c->batch->rows[s->selected ? c->batch->output_rows[i] : i];
}

/* A x for every adapter of the row and every projection of the stage, one after the other in out. x: float [n_in] */
static void lora_down(const struct pp_cpu *c, const struct stage *s, const struct pp_adapter_set *set, const float *x,
                      float *out)
{
    for (int p = 0; p < s->n_projections; p++)
        for (int k = 0; k < set->n; k++) {
            const struct pp_lora_target *t = &set->use[k].adapter->targets[s->projections[p].linear];
            int64_t n_in = s->projections[p].w.n_cols;
            for (int r = 0; r < t->rank; r++)
                *out++ = c->mm->dot(t->a + r * n_in, x, n_in);
        }
}

/* y[r] += scale * B (A x) for rows row0 .. row1 - 1 of one projection; down: what lora_down made of this row. */
static void lora_up(const struct pp_cpu *c, const struct stage *s, int projection, const struct pp_adapter_set *set,
                    const float *down, int64_t row0, int64_t row1, float *y)
{
    for (int p = 0; p < projection; p++)
        down += pp_adapter_set_rank(set, s->projections[p].linear);
    for (int k = 0; k < set->n; k++) {
        const struct pp_lora_target *t = &set->use[k].adapter->targets[s->projections[projection].linear];
        float scale = t->scale * set->use[k].scale;
        for (int64_t r = row0; t->rank && r < row1; r++)
            y[r] += scale * c->mm->dot(t->b + r * t->rank, down, t->rank);
        down += t->rank;
    }
}

/* The input of one row, ready for the kernels, in the same row of scratch: normed, quantised, multiplied by A. */
static void prepare_row(const struct pp_cpu *c, const struct stage *s, int row, const struct thread_scratch *to)
{
    int64_t n = s->projections[0].w.n_cols, w = c->acts_width;
    const float *x = slot_row(c, s->in, row);
    if (s->norm) {
        c->ops->rms_norm(x, s->norm, pp_source_hparams(c->model->source)->norm_eps, n, to->f32 + row * w);
        x = to->f32 + row * w;
    }
    if (s->quantize)
        c->mm->quantize(x, n, to->q + row * w, to->d + row * (w / PP_ACT_BLOCK), to->sum + row * (w / PP_ACT_BLOCK));
    const struct pp_adapter_set *set = batch_row(c, s, row)->adapters;
    if (set && set->n)
        lora_down(c, s, set, x, to->lora + row * c->lora_width);
}

/* Keeps the normed input where it is a result of the pass. */
static void publish_normed(const struct pp_cpu *c, const struct stage *s, int row, const struct thread_scratch *from)
{
    if (s->norm_out >= 0)
        memcpy(slot_row(c, s->norm_out, row), from->f32 + row * c->acts_width,
               (size_t)s->projections[0].w.n_cols * sizeof(float));
}

static struct pp_acts acts_of(const struct pp_cpu *c, const struct stage *s, const struct thread_scratch *from)
{
    struct pp_acts a = {
        .f32 = s->norm ? from->f32 : c->slots[s->in],
        .f32_stride = s->norm ? c->acts_width : c->strides[s->in],
        .q = from->q,
        .q_stride = c->acts_width,
        .d = from->d,
        .sum = from->sum,
        .b_stride = c->acts_width / PP_ACT_BLOCK,
    };
    return a;
}

/* Rows row0 .. row1 - 1 of one projection for all m rows of the batch, adapters and bias included. */
static void project_rows(struct pp_cpu *c, const struct stage *s, int projection, const struct pp_acts *acts,
                         const struct thread_scratch *prepared, int m, int64_t row0, int64_t row1)
{
    const struct projection *p = &s->projections[projection];
    c->mm->by_type[p->w.type](&p->w, row0, row1, acts, m, c->slots[p->out], c->strides[p->out]);
    for (int i = 0; i < m; i++) {
        float *y = slot_row(c, p->out, i);
        const struct pp_adapter_set *set = batch_row(c, s, i)->adapters;
        if (set && set->n)
            lora_up(c, s, projection, set, prepared->lora + i * c->lora_width, row0, row1, y);
        if (p->bias)
            c->ops->add(y + row0, p->bias + row0, row1 - row0);
    }
}

/* Rows per work item: about four items a thread, whole groups, and no more than ITEM_MACS; with many rows at least four
 * groups, because a kernel's set-up is shared by the groups of a call. */
static int64_t item_rows(const struct pp_cpu *c, int64_t n_rows, int64_t n_cols, int m)
{
    int64_t n_groups = (n_rows + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS;
    int64_t groups = n_groups / (4 * pp_pool_n(c->pool));
    int64_t most = ITEM_MACS / (PP_GROUP_ROWS * n_cols * m);
    if (m > PRIVATE_ROWS && groups < 4)
        groups = 4;
    if (groups > most)
        groups = most;
    return (groups < 1 ? 1 : groups) * PP_GROUP_ROWS;
}

/* The work items of a stage's projections, one projection after the other. With SwiGLU an item covers the same rows of
 * both. */
struct item_map {
    int n_walked;
    int64_t rows[MAX_GROUPED];   /* per item */
    int first[MAX_GROUPED + 1];  /* first item of each projection; the last is the number of items */
};

static struct item_map map_items(const struct pp_cpu *c, const struct stage *s, int m)
{
    struct item_map map = {.n_walked = s->swiglu ? 1 : s->n_projections};
    for (int p = 0; p < map.n_walked; p++) {
        int64_t n_rows = s->projections[p].w.n_rows;
        map.rows[p] = item_rows(c, n_rows, s->projections[p].w.n_cols, m);
        map.first[p + 1] = map.first[p] + (int)((n_rows + map.rows[p] - 1) / map.rows[p]);
    }
    return map;
}

/* With few rows every thread prepares the input for itself, when it takes its first item; otherwise a part of its own
 * did. */
static bool prepares_privately(const struct stage *s, int m)
{
    return m <= PRIVATE_ROWS && s->norm_out < 0;
}

static const struct thread_scratch *prepared_input(struct pp_cpu *c, const struct stage *s, int m, int thread)
{
    struct thread_scratch *own = &c->threads[thread];
    if (!prepares_privately(s, m))
        return &c->shared;
    if (own->prepared_pass != c->pass || own->prepared_stage != s) {
        for (int i = 0; i < m; i++)
            prepare_row(c, s, i, own);
        own->prepared_pass = c->pass;
        own->prepared_stage = s;
    }
    return own;
}

static void project_item(struct pp_cpu *c, const struct stage *s, int m, int item, int thread)
{
    const struct thread_scratch *prepared = prepared_input(c, s, m, thread);
    const struct pp_acts acts = acts_of(c, s, prepared);
    const struct item_map map = map_items(c, s, m);
    int p = 0;
    while (item >= map.first[p + 1])
        p++;
    int64_t n_rows = s->projections[p].w.n_rows, row0 = (item - map.first[p]) * map.rows[p];
    int64_t row1 = row0 + map.rows[p] < n_rows ? row0 + map.rows[p] : n_rows;
    project_rows(c, s, p, &acts, prepared, m, row0, row1);
    if (s->swiglu)
        project_rows(c, s, 1, &acts, prepared, m, row0, row1);
    for (int i = 0; i < m; i++) {
        if (s->swiglu)
            c->ops->swiglu(slot_row(c, s->projections[0].out, i) + row0, slot_row(c, s->projections[1].out, i) + row0,
                           row1 - row0, slot_row(c, s->out, i) + row0);
        else if (s->add)
            c->ops->add(slot_row(c, s->out, i) + row0, slot_row(c, s->projections[p].out, i) + row0, row1 - row0);
    }
}

/* --- attention ------------------------------------------------------------------------------------------------ */

static void rotate_and_store(struct pp_cpu *c, const struct stage *s, int row, int kv_head)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    const struct pp_batch_row *r = &c->batch->rows[row];
    const float *cs = c->cos_sin + (int64_t)row * hp->rope_dim;
    int group = (int)(hp->n_head / hp->n_head_kv);
    float *k = slot_row(c, s->k, row) + kv_head * hp->head_dim, *v = slot_row(c, s->v, row) + kv_head * hp->head_dim;
    float *q = slot_row(c, s->q, row) + kv_head * group * hp->head_dim;
    c->ops->rope(k, hp->rope_dim, hp->rope_neox, cs);
    for (int h = 0; h < group; h++)
        c->ops->rope(q + h * hp->head_dim, hp->rope_dim, hp->rope_neox, cs);
    if (c->kv.rotate) {
        c->ops->hadamard(k, hp->head_dim, c->kv.rotate);
        c->ops->hadamard(v, hp->head_dim, c->kv.rotate);
        c->ops->hadamard(q, group * hp->head_dim, c->kv.rotate);
    }
    c->ops->kv_store(&c->kv, r->pages[r->slot / PP_PAGE_TOKENS], pp_kv_head_offset(&c->kv, s->layer, kv_head),
                     (int)(r->slot % PP_PAGE_TOKENS), k, v);
}

/* A branch of a tree: its positions lie scattered among its siblings'. They are copied side by side to where they would
 * lie if the branch were all there is, so that every sum is made in the same order and gives the same bits as for a
 * chain. */
static void gather_branch(const struct pp_cpu *c, const struct pp_batch_row *r, struct pp_attention *a, uint8_t *tail)
{
    const struct pp_kv_layout *l = &c->kv;
    int64_t to = r->tree_base;
    a->tail_page = to / PP_PAGE_TOKENS;
    a->tail[0] = tail;
    a->tail[1] = tail + l->head_bytes;
    if (to % PP_PAGE_TOKENS)
        memcpy(tail, r->pages[a->tail_page] + a->head_offset, l->head_bytes);
    for (uint64_t left = r->tree_mask; left; left &= left - 1, to++) {
        int64_t from = r->tree_base + __builtin_ctzll(left);
        pp_kv_copy_head_position(l, r->pages[from / PP_PAGE_TOKENS] + a->head_offset, (int)(from % PP_PAGE_TOKENS),
                                 tail + (size_t)(to / PP_PAGE_TOKENS - a->tail_page) * l->head_bytes,
                                 (int)(to % PP_PAGE_TOKENS));
    }
    a->n_kv = to;
}

static void attend(struct pp_cpu *c, const struct stage *s, int row, int kv_head, struct thread_scratch *scratch)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    const struct pp_batch_row *r = &c->batch->rows[row];
    int group = (int)(hp->n_head / hp->n_head_kv);
    struct pp_attention a = {
        .kv = &c->kv,
        .pages = r->pages,
        .head_offset = pp_kv_head_offset(&c->kv, s->layer, kv_head),
        .q = slot_row(c, s->q, row) + kv_head * group * hp->head_dim,
        .q_stride = hp->head_dim,
        .n_q = group,
        .scale = c->scale,
        .n_kv = r->slot + 1,
        .tail_page = INT64_MAX,
        .out = slot_row(c, s->out, row) + kv_head * group * hp->head_dim,
        .out_stride = hp->head_dim,
        .scratch = &scratch->attention,
    };
    if (r->tree_mask)
        gather_branch(c, r, &a, scratch->tail);
    c->ops->attention(&a);
    if (c->kv.rotate)
        c->ops->hadamard(a.out, group * hp->head_dim, c->kv.rotate);
}

/* A part of its own rotates and stores all rows, because later rows look at earlier ones; a single row's head needs
 * nothing of the others. */
static void attend_item(struct pp_cpu *c, const struct stage *s, int m, int item, int thread)
{
    struct thread_scratch *scratch = &c->threads[thread];
    if (m == 1) {
        rotate_and_store(c, s, 0, item);
        attend(c, s, 0, item, scratch);
    } else {
        /* Long rows last would leave threads idle at the end: the last row, which sees most, comes first. Neighbours
         * share a head. */
        attend(c, s, m - 1 - item % m, item / m, scratch);
    }
}

/* --- the pass ------------------------------------------------------------------------------------------------- */

static void select_rows(struct pp_cpu *c, const struct stage *s)
{
    for (int i = 0; i < c->batch->n_outputs; i++) { /* ascending, so nothing is overwritten that is still needed */
        int from = c->batch->output_rows[i];
        if (from != i)
            memcpy(slot_row(c, s->out, i), slot_row(c, s->in, from), (size_t)c->strides[s->in] * sizeof(float));
    }
}

static void run_item(void *arg, int part_index, int item, int thread)
{
    struct pp_cpu *c = arg;
    const struct part *part = &c->parts[part_index];
    const struct stage *s = part->stage;
    if (abandoned(c))
        return;
    switch (s->kind) {
    case STAGE_EMBED:
        embed_row(c, s, item);
        break;
    case STAGE_PROJECT:
        if (part->first) {
            prepare_row(c, s, item, &c->shared);
            publish_normed(c, s, item, &c->shared);
        } else {
            project_item(c, s, part->m, item, thread);
        }
        break;
    case STAGE_ATTEND:
        if (part->first)
            for (int h = 0; h < c->kv.n_head_kv; h++)
                rotate_and_store(c, s, item, h);
        else
            attend_item(c, s, part->m, item, thread);
        break;
    case STAGE_SELECT:
        select_rows(c, s);
        break;
    }
}

static void add_part(struct pp_cpu *c, struct stage *s, bool first, int m, int n_items)
{
    c->parts[c->n_parts] = (struct part){.stage = s, .first = first, .m = m};
    c->n_items[c->n_parts++] = n_items;
}

/* The parts of a pass over this many rows and outputs. */
static void plan_parts(struct pp_cpu *c, int m, int n_outputs)
{
    c->n_parts = 0;
    for (int i = 0; i < c->n_stages; i++) {
        struct stage *s = &c->stages[i];
        switch (s->kind) {
        case STAGE_EMBED:
            add_part(c, s, false, m, m);
            break;
        case STAGE_PROJECT:
            if (!prepares_privately(s, m))
                add_part(c, s, true, m, m);
            struct item_map map = map_items(c, s, m);
            add_part(c, s, false, m, map.first[map.n_walked]);
            break;
        case STAGE_ATTEND:
            if (m > 1)
                add_part(c, s, true, m, m);
            add_part(c, s, false, m, m * c->kv.n_head_kv);
            break;
        case STAGE_SELECT:
            if (n_outputs == 0)
                return;
            add_part(c, s, false, m, 1);
            m = n_outputs;
            break;
        }
    }
}

enum pp_code pp_cpu_forward(struct pp_cpu *c, const struct pp_batch *batch, const struct pp_cancel *cancel,
                            struct pp_error *err)
{
    c->batch = batch;
    c->cancel = cancel;
    atomic_store_explicit(&c->abandoned, false, memory_order_relaxed);
    c->pass++;
    plan_parts(c, batch->n, batch->n_outputs);
    pp_pool_run(c->pool, run_item, c, c->n_items, c->n_parts);
    c->batch = NULL;
    if (atomic_load_explicit(&c->abandoned, memory_order_relaxed))
        return pp_fail(err, PP_ERR_CANCELLED, "stopped");
    return pp_source_check(c->model->source, err);
}

const float *pp_cpu_logits(const struct pp_cpu *c, int output)
{
    return slot_row(c, c->logits_slot, output);
}

const float *pp_cpu_hidden(const struct pp_cpu *c, int output)
{
    return slot_row(c, c->hidden_slot, output);
}

uint64_t pp_cpu_memory(const struct pp_cpu *c)
{
    return c->memory;
}

/* --- setting up ----------------------------------------------------------------------------------------------- */

static void *take_memory(struct pp_cpu *c, int64_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow((size_t)count, size, &bytes))
        return NULL;
    void *p = pp_aligned(64, bytes);
    if (p) {
        memset(p, 0, bytes);
        c->memory += bytes;
    }
    return p;
}

static bool make_inputs(struct pp_cpu *c, struct thread_scratch *t, int64_t rows)
{
    t->f32 = take_memory(c, rows * c->acts_width, sizeof *t->f32);
    t->q = take_memory(c, rows * c->acts_width, sizeof *t->q);
    t->d = take_memory(c, rows * c->acts_width / PP_ACT_BLOCK, sizeof *t->d);
    t->sum = take_memory(c, rows * c->acts_width / PP_ACT_BLOCK, sizeof *t->sum);
    return t->f32 && t->q && t->d && t->sum;
}

static void free_inputs(struct thread_scratch *t)
{
    pp_free(t->f32);
    pp_free(t->q);
    pp_free(t->d);
    pp_free(t->sum);
    pp_free(t->lora);
    pp_free(t->tail);
}

static bool make_slots(struct pp_cpu *c)
{
    const struct pp_plan *plan = &c->model->plan;
    c->n_slots = plan->n_slots;
    c->slots = pp_calloc((size_t)c->n_slots, sizeof *c->slots);
    c->strides = pp_calloc((size_t)c->n_slots, sizeof *c->strides);
    if (!c->slots || !c->strides)
        return false;
    for (int i = 0; i < c->n_slots; i++) {
        c->strides[i] = (plan->slot_width[i] + 15) / 16 * 16;
        int64_t rows = i == c->logits_slot ? c->max_outputs : c->max_rows;
        if (!(c->slots[i] = take_memory(c, rows * c->strides[i], sizeof(float))))
            return false;
    }
    return true;
}

static bool make_scratch(struct pp_cpu *c)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    int n_threads = pp_pool_n(c->pool);
    for (int i = 0; i < c->n_stages; i++)
        if (c->stages[i].kind == STAGE_PROJECT && c->stages[i].projections[0].w.n_cols > c->acts_width)
            c->acts_width = c->stages[i].projections[0].w.n_cols;
    c->acts_width = (c->acts_width + 63) / 64 * 64;
    c->threads = take_memory(c, n_threads, sizeof *c->threads);
    c->parts = pp_calloc((size_t)(2 * c->n_stages), sizeof *c->parts);
    c->n_items = pp_calloc((size_t)(2 * c->n_stages), sizeof *c->n_items);
    c->inv_freq = take_memory(c, hp->rope_dim / 2, sizeof(float));
    c->cos_sin = take_memory(c, c->max_rows * hp->rope_dim, sizeof(float));
    if (!c->threads || !c->parts || !c->n_items || !c->inv_freq || !c->cos_sin ||
        !make_inputs(c, &c->shared, c->max_rows))
        return false;
    for (int i = 0; i < n_threads; i++)
        if (!make_inputs(c, &c->threads[i], PRIVATE_ROWS) ||
            !(c->threads[i].tail = take_memory(c, 2, c->kv.head_bytes)))
            return false;
    return true;
}

static enum pp_code check_limits(const struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->head_dim > PP_MAX_HEAD_DIM || hp->n_head / hp->n_head_kv > PP_MAX_GROUP)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "heads of %lld values with %lld queries a head are more than the CPU backend can run (%d, %d)",
                       (long long)hp->head_dim, (long long)(hp->n_head / hp->n_head_kv), PP_MAX_HEAD_DIM, PP_MAX_GROUP);
    return PP_OK;
}

static enum pp_code rope_setup(struct pp_cpu *c, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    const struct pp_tensor *t = pp_source_tensor(c->model->source, "rope_freqs.weight");
    float *factors = NULL;
    if (t && (t->ne[0] != hp->rope_dim / 2 || t->n_dims != 1 || !pp_type_info(t->type)->runnable))
        return pp_fail(err, PP_ERR_FORMAT, "tensor rope_freqs.weight has %lld values where %lld are needed",
                       (long long)t->ne[0], (long long)hp->rope_dim / 2);
    if (t) {
        factors = pp_malloc((size_t)t->ne[0] * sizeof *factors);
        if (!factors)
            return pp_fail_nomem(err, "the rotary frequencies");
        pp_dequantize_row(t->type, t->data, factors, t->ne[0]);
    }
    for (int64_t i = 0; t && i < t->ne[0]; i++)
        if (!(factors[i] > 0) || !isfinite(factors[i])) { /* frequencies are divided by them */
            pp_free(factors);
            return pp_fail(err, PP_ERR_FORMAT,
                           "tensor rope_freqs.weight holds values that are not positive numbers; the model file is "
                           "damaged, get it again");
        }
    pp_rope_frequencies(hp, factors, c->inv_freq, &c->rope_magnitude);
    pp_free(factors);
    return PP_OK;
}

enum pp_code pp_cpu_new(const struct pp_model *m, enum pp_isa isa, struct pp_pool *pool, const struct pp_kv_layout *kv,
                        int max_rows, const struct pp_cancel *cancel, pp_progress *progress, void *user,
                        struct pp_cpu **out, struct pp_error *err)
{
    *out = NULL;
    enum pp_code code = check_limits(pp_source_hparams(m->source), err);
    if (code)
        return code;
    struct pp_cpu *c = pp_calloc(1, sizeof *c);
    if (!c)
        return pp_fail_nomem(err, "the engine");
    c->model = m;
    c->mm = pp_matmul_kernels(isa);
    c->ops = pp_cpu_ops(isa);
    c->kv = *kv;
    c->pool = pool;
    c->max_rows = max_rows;
    c->max_outputs = max_rows < 16 ? max_rows : 16;
    c->scale = 1.0f / sqrtf((float)kv->head_dim);
    code = pp_cpu_lower(c, cancel, progress, user, err);
    if (!code && 2 * c->n_stages > PP_POOL_MAX_PARTS)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "a model of %d stages is deeper than the CPU backend can run",
                       c->n_stages);
    if (!code && (!make_slots(c) || !make_scratch(c)))
        code = pp_fail_nomem(err, "the engine's work space");
    if (!code)
        code = rope_setup(c, err);
    if (!code)
        code = pp_source_check(m->source, err);
    if (code) {
        pp_cpu_free(c);
        return code;
    }
    *out = c;
    return PP_OK;
}

void pp_cpu_free(struct pp_cpu *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_owned; i++)
        pp_free(c->owned[i]);
    pp_free(c->owned);
    for (int i = 0; c->slots && i < c->n_slots; i++)
        pp_free(c->slots[i]);
    pp_free(c->slots);
    pp_free(c->strides);
    free_inputs(&c->shared);
    for (int i = 0; c->threads && i < pp_pool_n(c->pool); i++)
        free_inputs(&c->threads[i]);
    pp_free(c->threads);
    pp_free(c->parts);
    pp_free(c->n_items);
    pp_free(c->inv_freq);
    pp_free(c->cos_sin);
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
        float *p = take_memory(c, rows * width, sizeof *p);
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

enum pp_code pp_cpu_reserve(struct pp_cpu *c, const struct pp_adapter_set *set, struct pp_error *err)
{
    int64_t widest = 0;
    for (int i = 0; i < c->n_stages; i++) {
        int64_t width = 0;
        for (int p = 0; p < c->stages[i].n_projections; p++)
            width += pp_adapter_set_rank(set, c->stages[i].projections[p].linear);
        if (width > widest)
            widest = width;
    }
    if (widest > c->lora_width && !grow_lora(c, widest))
        return pp_fail_nomem(err, "the adapters' work space");
    return PP_OK;
}

enum pp_code pp_cpu_reserve_outputs(struct pp_cpu *c, int n, struct pp_error *err)
{
    if (n <= c->max_outputs)
        return PP_OK;
    float *p = take_memory(c, n * c->strides[c->logits_slot], sizeof *p);
    if (!p)
        return pp_fail_nomem(err, "so many rows of logits at once");
    pp_free(c->slots[c->logits_slot]);
    c->slots[c->logits_slot] = p;
    c->max_outputs = n;
    return PP_OK;
}
