/* forward.c - runs a program on the pool: for each pass, stages are divided into parts of work items, which threads
 * take as they become free. No item takes more than about 2 ms, so that a cancelled pass ends soon. */
#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/float_mode.h"
#include "engine/cpu/profile.h"
#include "engine/cpu/program.h"
#include "engine/quant.h"

static bool abandoned(struct pp_cpu *c)
{
    if (atomic_load_explicit(&c->abandoned, memory_order_relaxed))
        return true;
    if (!pp_cancelled(c->cancel))
        return false;
    atomic_store_explicit(&c->abandoned, true, memory_order_relaxed);
    return true;
}

/* Dequantises a row of a table to y [ne[0]]. If it holds NaN, reports that (pp_weights_check) and leaves y as it is. */
static void open_row(struct pp_cpu *c, const struct pp_tensor *t, int64_t row, float *y)
{
    const uint8_t *values = (const uint8_t *)t->data + (size_t)row * pp_type_row_bytes(t->type, t->ne[0]);
    if (pp_row_finite(t->type, values, t->ne[0]))
        pp_dequantize_row(t->type, values, y, t->ne[0]);
    else
        pp_weights_bad(c->weights, t);
}

/* --- embedding ------------------------------------------------------------------------------------------------ */

void pp_cpu_rope_at(const struct rope *rope, int64_t position, float *cos_sin)
{
    for (int64_t i = 0; i < rope->dim / 2; i++) {
        float angle = (float)position * rope->inv_freq[i];
        cos_sin[2 * i] = cosf(angle) * rope->magnitude;
        cos_sin[2 * i + 1] = sinf(angle) * rope->magnitude;
    }
}

/* Adds a row of a table (learned positions or segments) to x. The row exists: the engine admits no positions beyond the
 * table. */
static void add_row(struct pp_cpu *c, const struct pp_tensor *t, int64_t row, float *x)
{
    enum { PIECE = 256 }; /* values at a time: a multiple of every type's block */
    float one[PIECE];
    const uint8_t *values = (const uint8_t *)t->data + (size_t)row * pp_type_row_bytes(t->type, t->ne[0]);
    const int64_t piece = PIECE / pp_type_info(t->type)->block_elements * pp_type_info(t->type)->block_elements;
    if (!pp_row_finite(t->type, values, t->ne[0]))
        pp_weights_bad(c->weights, t);
    for (int64_t at = 0; at < t->ne[0]; at += piece) {
        int64_t n = t->ne[0] - at < piece ? t->ne[0] - at : piece;
        pp_dequantize_row(t->type, values + pp_type_row_bytes(t->type, at), one, n);
        c->ops->add(x + at, one, n);
    }
}

/* A token's row in an adapter's table, which replaces the model's table or some of its rows; NULL: it has no such
 * row. */
static const void *own_row(const struct pp_lora_embedding *e, int32_t token, int64_t n, uint32_t *type)
{
    *type = e->table ? e->table_type : PP_TYPE_F32;
    return e->table ? (const uint8_t *)e->table + (size_t)token * pp_type_row_bytes(e->table_type, n)
                    : (const void *)pp_lora_token_row(e, token, n);
}

/* Replaces x, the model's row for the token, by the rows of adapters' tables, in proportion to the adapters'
 * strengths. */
static void replace_embedding(const struct pp_cpu *c, const struct pp_batch_row *row, int64_t n, float *x, float *room)
{
    float left = 1.0f;
    bool any = false;
    uint32_t type;
    for (int k = 0; k < row->adapters->n; k++)
        if (own_row(&row->adapters->use[k].adapter->embedding, row->token, n, &type)) {
            left -= row->adapters->use[k].scale;
            any = true;
        }
    for (int64_t i = 0; any && i < n; i++)
        x[i] = left == 0.0f ? 0.0f : left * x[i];
    for (int k = 0; any && k < row->adapters->n; k++) {
        const void *own = own_row(&row->adapters->use[k].adapter->embedding, row->token, n, &type);
        if (!own)
            continue;
        pp_dequantize_row(type, own, room, n);
        c->ops->add_scaled(x, room, row->adapters->use[k].scale, n);
    }
}

/* The gains of the k-th adapter of a set for a token: of a DoRA by tokens a single one. NULL: it is no DoRA of the
 * embeddings. */
static const float *embedding_gains(const struct pp_adapter_set *set, int k, int32_t token)
{
    const struct pp_lora_embedding *e = &set->use[k].adapter->embedding;
    return e->dora ? set->gains[k] + e->gains + (e->by_token ? token : 0) : NULL;
}

/* Multiplies x, the token's row, by 1 + the sum of g - 1 over the DoRAs. */
static void scale_embedding(const struct pp_batch_row *row, int64_t n, float *x)
{
    const struct pp_adapter_set *set = row->adapters;
    const float *gains[PP_MAX_ADAPTERS];
    bool any = false;
    for (int k = 0; k < set->n; k++)
        any |= (gains[k] = embedding_gains(set, k, row->token)) != NULL;
    for (int64_t i = 0; any && i < n; i++) {
        float all = 1.0f;
        for (int k = 0; k < set->n; k++)
            if (gains[k])
                all += gains[k][set->use[k].adapter->embedding.by_token ? 0 : i] - 1.0f;
        x[i] *= all;
    }
}

/* x += g * scale * B down, for a DoRA with these gains. */
static void add_embedding_dora(const struct pp_cpu *c, const struct pp_lora_embedding *e, const float *gain,
                               const float *down, float scale, int64_t n, float *x)
{
    enum { PIECE = 256 }; /* values at a time; a multiple of 16 */
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t end = n - at < PIECE ? n : at + PIECE;
        float sums[PIECE] = {0};
        const struct pp_low_rank_rows rows = {
            .n = 1, .y = (float *)((uintptr_t)sums - (size_t)at * sizeof *sums), /* of value 0 */
            .down = down};
        c->ops->add_low_rank(&e->b, &rows, scale, at, end);
        for (int64_t i = at; i < end; i++)
            x[i] += gain[e->by_token ? 0 : i] * sums[i - at];
    }
}

/* Adds the low-rank updates of adapters to the token's row x [n]. */
static void adapt_embedding(const struct pp_cpu *c, const struct pp_batch_row *row, int64_t n, float *x)
{
    scale_embedding(row, n, x);
    for (int k = 0; k < row->adapters->n; k++) {
        const struct pp_lora_embedding *e = &row->adapters->use[k].adapter->embedding;
        const float *down = e->a + (int64_t)row->token * e->rank;
        const float scale = e->scale * row->adapters->use[k].scale;
        if (e->dora)
            add_embedding_dora(c, e, embedding_gains(row->adapters, k, row->token), down, scale, n, x);
        else if (e->rank)
            c->ops->add_low_rank(&e->b, &(struct pp_low_rank_rows){.n = 1, .y = x, .down = down}, scale, 0, n);
    }
}

static void embed_token(struct pp_cpu *c, const struct stage *s, const struct pp_batch_row *row, int thread, float *x)
{
    const int64_t n = s->table->ne[0], meta = row->token - s->table->ne[1];
    if (s->meta_tokens && meta >= 0)
        open_row(c, s->meta_tokens, (int32_t)meta, x);
    else
        open_row(c, s->table, row->token, x);
    if (row->adapters && !(s->meta_tokens && meta >= 0)) {
        replace_embedding(c, row, n, x, c->threads[thread].replaced);
        adapt_embedding(c, row, n, x);
    }
    if (s->scale != 0.0f)
        c->ops->apply(PP_FN_SCALE, s->scale, x, n, x);
}

static void embed_row(struct pp_cpu *c, const struct stage *s, int i, int thread)
{
    const struct pp_batch_row *row = &c->batch->rows[i];
    float *x = slot_row(c, s->out, i);
    if (row->token >= 0)
        embed_token(c, s, row, thread, x);
    else
        memcpy(x, row->vector, (size_t)s->table->ne[0] * sizeof *x);
    if (s->segments)
        add_row(c, s->segments, 0, x);
    if (s->positions)
        add_row(c, s->positions, row->position, x);
    for (int r = 0; r < c->n_ropes; r++)
        pp_cpu_rope_at(&c->ropes[r], row->position, c->ropes[r].cos_sin + i * c->ropes[r].dim);
}

/* --- row by row ------------------------------------------------------------------------------------------------ */

void pp_cpu_norm(const struct pp_cpu *c, const struct norm *norm, const float *x, int64_t n, float *y)
{
    const float eps = norm->eps != 0.0f ? norm->eps : pp_source_hparams(c->model->source)->norm_eps;
    if (norm->centred)
        c->ops->layer_norm(x, norm->weight, norm->bias, eps, n, y);
    else
        c->ops->rms_norm(x, norm->weight, eps, n, y);
    if (norm->bias && !norm->centred)
        c->ops->add(y, norm->bias, n);
}

static void take(const struct row_op *r, const float *x, float *y)
{
    for (int64_t i = 0; i < r->n / r->count; i++)
        memcpy(y + i * r->count, x + i / r->times * r->period + r->at, (size_t)r->count * sizeof *y);
}

/* The row of an n-gram table for a token and those before it (PP_OP_NGRAM). */
static int64_t ngram_row(const struct row_op *r, int64_t token, const float *before)
{
    const int64_t n = r->table->ne[1];
    int64_t sum = token, power = 1;
    for (int64_t i = 0; i < r->count && (int64_t)before[i] != r->at; i++) {
        power = power * r->period % n; /* both are less than 2^31 */
        sum += (int64_t)before[i] * power;
    }
    return sum % n;
}

/* Looks up a row's token, position or n-gram in a table. */
static void look_up(struct pp_cpu *c, const struct stage *s, const struct row_op *r, int row)
{
    const struct pp_tensor *t = r->table;
    const struct pp_batch_row *of = batch_row(c, s, row);
    const int64_t token = of->token > 0 ? of->token : 0;
    const int64_t wanted = r->kind == PP_OP_NGRAM ? ngram_row(r, token, slot_row(c, r->in, row))
                           : r->by_position       ? of->position
                                                  : of->token;
    float *y = slot_row(c, r->out, row);
    open_row(c, t, wanted >= 0 && wanted < t->ne[1] ? wanted : 0, y);
    if (r->scale != 0.0f)
        c->ops->apply(PP_FN_SCALE, r->scale, y, t->ne[0], y);
}

/* Reads row `at` of several tables, whose rows are numbered consecutively. */
static void take_table_row(struct pp_cpu *c, const struct row_op *r, int64_t at, float *y)
{
    const struct pp_tensor *t = r->tables[at / r->table->ne[1]];
    open_row(c, t, at % t->ne[1], y);
}

/* PP_OP_HASH. Multipliers are small enough that products do not exceed 63 bits. */
static void look_up_hashes(struct pp_cpu *c, const struct stage *s, const struct row_op *r, int row)
{
    const struct pp_hashed *h = r->hashed;
    const struct pp_batch_row *of = batch_row(c, s, row);
    const float *before = slot_row(c, r->in, row);
    uint64_t hash = (uint64_t)(of->token > 0 ? of->token : 0) * (uint64_t)h->multiplier[0];
    float *y = slot_row(c, r->out, row);
    int64_t first = 0, index = 0;
    bool ended = false;
    for (int64_t n = 1; n < h->size; n++) {
        const int64_t token = before[n - 1] > 0 && !ended ? (int64_t)before[n - 1] - 1 : h->end;
        ended = token == h->end;
        hash ^= (uint64_t)token * (uint64_t)h->multiplier[n];
        for (int64_t i = 0; i < h->heads; i++, index++) {
            take_table_row(c, r, first + (int64_t)(hash % (uint64_t)h->n_rows[index]), y + index * h->width);
            first += h->n_rows[index];
        }
    }
}

/* PP_OP_TOKEN. Vocabularies are small enough for floats to be exact. */
static void put_token(struct pp_cpu *c, const struct stage *s, const struct row_op *r, int row)
{
    const struct pp_batch_row *of = batch_row(c, s, row);
    float *y = slot_row(c, r->out, row);
    for (int64_t i = 0; i < r->n; i++)
        y[i] = (float)((of->token > 0 ? of->token : 0) + r->at);
}

/* PP_OP_WEIGH: consecutive values in u are multiplied by a function of their common weight in x. */
static void weigh(const struct pp_cpu *c, const struct row_op *r, const float *x, const float *u, float *y)
{
    const int64_t n = r->n / r->n_heads;
    for (int h = 0; h < r->n_heads; h++) {
        const float v = x[h], soft = v > 20 ? v : log1pf(expf(v)); /* equal above 20; exp overflows at 89 */
        const float weight = r->fn == PP_FN_SOFTPLUS ? soft : 1 / (1 + expf(-v));
        if (n == 1)
            y[h] = u[h] * weight;
        else
            c->ops->apply(PP_FN_SCALE, weight, u + h * n, n, y + h * n);
    }
}

/* RoPE, in place, of heads that do not belong to a fused attention. */
static void rotate_heads(const struct pp_cpu *c, const struct stage *s, const struct row_op *r, int row, float *x)
{
    const struct rope *rope = &c->ropes[r->local];
    const float *cos_sin = rope->cos_sin + batch_index(c, s, row) * rope->dim;
    float back[PP_MAX_HEAD_DIM];
    for (int64_t i = 0; r->inverse && i < rope->dim; i++)
        back[i] = i % 2 ? -cos_sin[i] : cos_sin[i];
    for (int64_t i = 0; i < r->n; i += r->period)
        c->ops->rope(x + i + r->at, rope->dim, r->neox, r->inverse ? back : cos_sin);
}

static void affine(const struct pp_cpu *c, const struct row_op *r, const float *x, float *y)
{
    const int64_t width = r->n_heads ? r->n / r->n_heads : 0;
    if (r->added) {
        if (y != x)
            memcpy(y, x, (size_t)r->n * sizeof *y);
        c->ops->add(y, r->added, r->n);
        x = y;
    }
    if (width == 1)
        c->ops->multiply(x, r->factors, r->n, y);
    for (int h = 0; width > 1 && h < r->n_heads; h++)
        c->ops->apply(PP_FN_SCALE, r->factors[h], x + h * width, width, y + h * width);
}

/* A norm, or a norm of each head, that is not fused with another operation. */
static void norm_row(struct pp_cpu *c, const struct stage *s, const struct row_op *r, int row, int thread)
{
    const struct pp_batch_row *of = batch_row(c, s, row);
    const struct norm norm = pp_cpu_norm_of(&r->norm, of->adapters, r->n, c->threads[thread].replaced);
    const float *x = slot_row(c, r->in, row);
    float *y = slot_row(c, r->out, row);
    for (int h = 0; h < (r->kind == PP_OP_HEAD_NORM ? r->n_heads : 1); h++) {
        const struct norm own = pp_cpu_norm_of_head(&norm, h);
        pp_cpu_norm(c, &own, x + h * r->n, r->n, y + h * r->n);
    }
}

static void run_row_op(struct pp_cpu *c, const struct stage *s, const struct row_op *r, int row, int thread)
{
    const float *x = r->in >= 0 ? slot_row(c, r->in, row) : NULL;
    const float *x2 = r->in2 >= 0 ? slot_row(c, r->in2, row) : NULL;
    float *y = slot_row(c, r->out, row);
    switch (r->kind) {
    case PP_OP_LOOKUP:
    case PP_OP_NGRAM:
        look_up(c, s, r, row);
        break;
    case PP_OP_HASH:
        look_up_hashes(c, s, r, row);
        break;
    case PP_OP_TOKEN:
        put_token(c, s, r, row);
        break;
    case PP_OP_NORM:
    case PP_OP_HEAD_NORM:
        norm_row(c, s, r, row, thread);
        break;
    case PP_OP_ROPE:
        rotate_heads(c, s, r, row, y);
        break;
    case PP_OP_GATE:
        c->ops->gate(r->fn, r->scale, x, x2, r->n, y);
        break;
    case PP_OP_MULTIPLY:
        c->ops->multiply(x, r->factors ? r->factors : x2, r->n, y);
        break;
    case PP_OP_AFFINE:
        affine(c, r, x, y);
        break;
    case PP_OP_TAKE:
        take(r, x, y);
        break;
    case PP_OP_APPLY:
        c->ops->apply(r->fn, r->scale, x, r->n, y);
        break;
    case PP_OP_WEIGH:
        weigh(c, r, x, x2, y);
        break;
    case PP_OP_ADD:
        if (r->scale != 0.0f)
            c->ops->add_scaled(y, x, r->scale, r->n);
        else
            c->ops->add(y, x, r->n);
        break;
    default:
        pp_cpu_stream_op(c, r, x, x2, y);
    }
}

static void run_row_ops(struct pp_cpu *c, const struct stage *s, int row, int thread)
{
    for (int i = 0; i < s->n_row_ops; i++)
        run_row_op(c, s, &s->row_ops[i], row, thread);
}

/* --- the pass ------------------------------------------------------------------------------------------------- */

static void select_rows(struct pp_cpu *c, const struct stage *s)
{
    for (int i = 0; i < c->batch->n_outputs; i++) { /* ascending, so that no row is overwritten before it is moved */
        int from = c->batch->output_rows[i];
        if (from != i)
            memcpy(slot_row(c, s->out, i), slot_row(c, s->in, from), (size_t)c->strides[s->in] * sizeof(float));
    }
}

/* Runs one item of a stage whose items are taken one by one. */
static void run_item(struct pp_cpu *c, const struct part *part, int i, int thread)
{
    const struct stage *s = part->stage;
    switch (s->kind) {
    case STAGE_EMBED:
        embed_row(c, s, i, thread);
        break;
    case STAGE_HEADS:
        pp_cpu_heads_item(c, s, part->m, i, thread);
        break;
    case STAGE_COMPRESS:
        pp_cpu_compress_item(c, s, part->m, part->phase, i, thread);
        break;
    case STAGE_KEEP:
        pp_cpu_keep_item(c, s, i);
        break;
    case STAGE_PICK:
        pp_cpu_pick_item(c, s, part->m, part->phase, i, thread);
        break;
    case STAGE_ATTEND:
        pp_cpu_attend_item(c, s, part->m, part->phase, i, thread);
        break;
    case STAGE_CONVOLVE:
        pp_cpu_convolve_item(c, s, part->m, i);
        break;
    case STAGE_POOL:
        pp_cpu_pool_item(c, s, part->m, i);
        break;
    case STAGE_RECUR:
        pp_cpu_recur_item(c, s, part->m, part->phase, i, thread);
        break;
    case STAGE_SCAN:
        pp_cpu_scan_item(c, s, part->m, i);
        break;
    case STAGE_ROWS:
        run_row_ops(c, s, i, thread);
        break;
    case STAGE_PROJECT:
    case STAGE_EXPERTS:
    case STAGE_SELECT:
        break; /* pp_cpu_run_items takes these several at a time */
    }
}

void pp_cpu_run_items(void *arg, int part_index, int first, int end, int thread)
{
    struct pp_cpu *c = arg;
    const struct part *part = &c->parts[part_index];
    const struct stage *s = part->stage;
    if (abandoned(c))
        return;
    if (s->kind == STAGE_PROJECT)
        pp_cpu_project_items(c, s, part->m, part->phase, first, end, thread);
    else if (s->kind == STAGE_EXPERTS)
        pp_cpu_experts_items(c, s, part->m, part->phase, first, end, thread);
    else if (s->kind == STAGE_SELECT)
        select_rows(c, s);
    else
        for (int i = first; i < end; i++)
            run_item(c, part, i, thread);
}

/* How many items a thread may take at a time: about 2 ms' worth at most. */
static int at_once(const struct pp_cpu *c, const struct stage *s, int m, int phase)
{
    enum { EMBEDDINGS = 8, ROWS = 8 };
    switch (s->kind) {
    case STAGE_EXPERTS:
        return pp_cpu_experts_at_once(s, m, phase);
    case STAGE_HEADS:
        return pp_cpu_heads_at_once(s, m);
    case STAGE_SCAN:
        return pp_cpu_scan_at_once(m);
    case STAGE_KEEP:
    case STAGE_ROWS:
        return ROWS;
    case STAGE_PROJECT:
        return pp_cpu_project_at_once(c, s, m, phase);
    case STAGE_EMBED:
        return EMBEDDINGS;
    default:
        return 1;
    }
}

static void add_parts(struct pp_cpu *c, struct stage *s, int m, const int n_items[MAX_PHASES])
{
    for (int phase = 0; phase < MAX_PHASES; phase++)
        if (n_items[phase]) {
            c->parts[c->n_parts] = (struct part){.stage = s, .phase = phase, .m = m};
            struct pp_pool_part work = {.n_items = n_items[phase], .at_once = at_once(c, s, m, phase)};
            if (s->kind == STAGE_PROJECT && m <= PRIVATE_ROWS)
                work.begins = pp_cpu_project_begins_at(c, s, m);
            c->work[c->n_parts++] = work;
        }
}

/* Lists the parts of a pass over m rows, n_outputs of which have an output. */
static void plan_parts(struct pp_cpu *c, int m, int n_outputs)
{
    c->n_parts = 0;
    for (int i = 0; i < c->n_stages; i++) {
        struct stage *s = &c->stages[i];
        int n_items[MAX_PHASES] = {0};
        switch (s->kind) {
        case STAGE_EMBED:
        case STAGE_KEEP:
        case STAGE_ROWS:
            n_items[0] = m;
            break;
        case STAGE_PROJECT:
            pp_cpu_project_phases(c, s, m, n_items);
            break;
        case STAGE_HEADS:
            n_items[0] = s->n_heads;
            break;
        case STAGE_COMPRESS:
            pp_cpu_compress_phases(c, s, m, n_items);
            break;
        case STAGE_PICK:
            pp_cpu_pick_phases(c, s, m, n_items);
            break;
        case STAGE_ATTEND:
            pp_cpu_attend_phases(c, s, m, n_items);
            break;
        case STAGE_CONVOLVE:
            n_items[0] = pp_cpu_convolve_items(s, m);
            break;
        case STAGE_POOL:
            n_items[0] = pp_cpu_pool_items(s, m);
            break;
        case STAGE_RECUR:
            pp_cpu_recur_phases(c, s, m, n_items);
            break;
        case STAGE_SCAN:
            n_items[0] = pp_cpu_scan_items(s);
            break;
        case STAGE_EXPERTS:
            pp_cpu_experts_phases(c, s, m, n_items);
            break;
        case STAGE_SELECT:
            if (n_outputs == 0)
                return;
            n_items[0] = n_outputs < m ? 1 : 0; /* else all rows are in place already */
            break;
        }
        add_parts(c, s, m, n_items);
        if (s->kind == STAGE_SELECT)
            m = n_outputs;
    }
}

void pp_cpu_begin_alone(struct pp_cpu *c, pp_pool_range_fn *run)
{
    if (c->parts[0].stage->kind != STAGE_EMBED || c->batch->n > PRIVATE_ROWS)
        return;
    run(c, 0, 0, c->work[0].n_items, 0);
    c->work[0].n_items = 0;
}

enum pp_code pp_cpu_forward(struct pp_cpu *c, const struct pp_batch *batch, const struct pp_cancel *cancel,
                            struct pp_error *err)
{
    c->batch = batch;
    c->cancel = cancel;
    atomic_store_explicit(&c->abandoned, false, memory_order_relaxed);
    c->pass++;
    pp_cpu_attend_plan(c);
    pp_cpu_pick_plan(c);
    pp_cpu_project_reset(c);
    plan_parts(c, batch->n, batch->n_outputs);
    c->routing.in.way = c->routing.hidden.way = pp_cpu_way(c);
    const bool timed = batch->n == 1 && !c->profile && c->stream.n_ways > 1;
    const uint64_t begin = timed ? pp_now_ns() : 0;
    const unsigned mode = pp_float_mode_flush(); /* states and their weights decay to denormals, which are slow */
    if (c->profile) {
        pp_cpu_profile_run(c);
    } else {
        pp_cpu_begin_alone(c, pp_cpu_run_items);
        pp_pool_run_parts(c->pool, pp_cpu_run_items, c, c->work, c->n_parts);
    }
    pp_float_mode_set(mode);
    if (batch->only && batch->n_outputs && c->stages[c->n_stages - 1].kind != STAGE_PROJECT)
        pp_cpu_project_silence(c);
    c->batch = NULL;
    enum pp_code code = pp_weights_check(c->weights, err);
    if (code)
        return code;
    if (atomic_load_explicit(&c->abandoned, memory_order_relaxed))
        return pp_fail(err, PP_ERR_CANCELLED, "stopped");
    if (timed)
        pp_stream_choice_passed(&c->stream, pp_now_ns() - begin);
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
    struct pp_weights_state s = pp_weights_state(c->weights);
    return c->memory + s.anonymous + s.book_keeping;
}

struct pp_weights *pp_cpu_weights(const struct pp_cpu *c)
{
    return c->weights;
}
