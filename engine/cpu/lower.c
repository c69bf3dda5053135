/* lower.c - lowers a plan's operations to the stages of a program, fusing consecutive operations by patterns (cpu.h).
 * The comment before a function is the pattern that it matches: [optional], {repeated}. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/program.h"
#include "engine/quant.h"
#include "engine/xielu.h"

static const float LOG2_E = 1.44269504f; /* the softmax exponentiates with base 2 */

/* Makes p, which may be NULL, the program's; NULL: out of memory, and p is freed. */
static void *keep(struct pp_cpu *c, void *p, size_t bytes)
{
    size_t cap = (size_t)c->cap_owned;
    if (!p)
        return NULL;
    if (pp_grow(&c->owned, &cap, (size_t)c->n_owned + 1, sizeof *c->owned) != 0) {
        pp_free(p);
        return NULL;
    }
    c->cap_owned = (int)cap;
    c->owned[c->n_owned++] = p;
    c->memory += bytes;
    return p;
}

void *pp_cpu_memory_keep(struct pp_cpu *c, int64_t count, size_t size)
{
    const size_t bytes = (size_t)count * size;
    void *p = keep(c, pp_aligned(64, bytes), bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

const float *pp_cpu_float_vector(struct pp_cpu *c, const struct pp_tensor *t, struct pp_error *err)
{
    const int64_t n = t->ne[0], n_rows = t->ne[1];
    const size_t row_bytes = pp_type_row_bytes(t->type, n);
    float *f = pp_cpu_memory_keep(c, pp_cpu_padded(n) * n_rows, sizeof *f);
    if (!f) {
        pp_fail_nomem(err, t->name);
        return NULL;
    }
    for (int64_t r = 0; r < n_rows; r++) {
        const uint8_t *row = (const uint8_t *)t->data + (size_t)r * row_bytes;
        if (!pp_row_finite(t->type, row, n)) {
            pp_fail_values(t, err);
            return NULL;
        }
        pp_dequantize_row(t->type, row, f + r * pp_cpu_padded(n), n);
    }
    return f;
}

bool pp_cpu_weight_ready(struct pp_cpu *c, const struct projection *p, int64_t row0, int64_t row1)
{
    if (pp_weight_ready(p->weight, row0, row1, &c->abandoned, c->cancel))
        return true;
    atomic_store_explicit(&c->abandoned, true, memory_order_relaxed); /* cancelled, or a weight is NaN */
    return false;
}

/* --- patterns ------------------------------------------------------------------------------------------------- */

struct lowering {
    struct pp_cpu *c;
    const struct pp_plan *plan;
    int at;                     /* index of the next operation */
    const struct pp_cancel *cancel;
    pp_progress *progress;
    void *user;
    uint64_t done;              /* bytes of weights */
    bool selected;              /* a SELECT came before */
    struct pp_error *err;
};

static const struct pp_op *peek(const struct lowering *l, int ahead)
{
    return l->at + ahead < l->plan->n_ops ? &l->plan->ops[l->at + ahead] : NULL;
}

static bool next_is(const struct lowering *l, enum pp_op_kind kind)
{
    return l->at < l->plan->n_ops && l->plan->ops[l->at].kind == kind;
}

/* Whether the next operation, which reads a stage's result `slot`, may be fused into the stage, whose own result is
 * then not stored: nothing else reads that, and the operation has no weights. */
static bool may_take_next(const struct lowering *l, int slot)
{
    const struct pp_op *op = peek(l, 0);
    return op && op->in == slot && op->in2 != slot && !op->weight && !(op->kind == PP_OP_ADD && op->out == slot) &&
           (op->out == slot || !pp_plan_reads(l->plan, slot, l->at + 1));
}

static struct stage *new_stage(struct lowering *l, enum stage_kind kind)
{
    struct stage *s = &l->c->stages[l->c->n_stages++];
    *s = (struct stage){.kind = kind, .norm_out = -1, .out = -1, .selected = l->selected};
    return s;
}

static enum pp_code add_projection(struct lowering *l, struct stage *s, const struct pp_op *op)
{
    const struct pp_linear *linear = &l->plan->linears[op->linear];
    struct projection *p = &s->projections[s->n_projections++];
    *p = (struct projection){.linear = op->linear, .out = op->out};
    enum pp_code code = PP_OK;
    p->w = (struct pp_matrix){.type = linear->w->type, .n_rows = linear->w->ne[1], .n_cols = linear->w->ne[0]};
    if (!(p->weight = pp_weights_add(l->c->weights, linear->w)))
        code = pp_fail_nomem(l->err, "the model's weights");
    if (!code && linear->b && !(p->bias = pp_cpu_float_vector(l->c, linear->b, l->err)))
        code = l->err->code;
    s->quantize |= pp_pack_needed(linear->w->type);
    s->twins |= pp_type_twins(linear->w->type);
    s->split |= pp_cpu_splits(l->c, linear->w->type);
    s->plain |= !(pp_pack_needed(linear->w->type) || pp_cpu_splits(l->c, linear->w->type)) || l->c->imatrix;
    s->by_lane |= pp_cpu_arranges(l->c, linear->w->type);
    if (!code)
        code = pp_cpu_count_begin(l->c, linear->w, 0, 1, p, l->err);
    l->done += linear->w->size;
    if (!code && l->progress)
        l->progress(l->user, l->done, l->c->model->info.bytes);
    if (!code && pp_cancelled(l->cancel))
        code = pp_fail(l->err, PP_ERR_CANCELLED, "the loading of the model was stopped");
    return code;
}

/* The first operation with this weight: to adapters, all norms that share a weight are that one. */
static int first_with(const struct pp_plan *plan, const struct pp_tensor *weight)
{
    int i = 0;
    while (plan->ops[i].weight != weight)
        i++;
    return i;
}

static enum pp_code take_norm(struct lowering *l, const struct pp_op *op, struct norm *norm)
{
    norm->centred = op->centred;
    norm->eps = op->kind == PP_OP_NORM || op->kind == PP_OP_HEAD_NORM ? op->scale : 0;
    norm->op = first_with(l->plan, op->weight);
    norm->stride = op->weight->n_dims > 1 ? pp_cpu_padded(op->weight->ne[0]) : 0;
    if (!(norm->weight = pp_cpu_float_vector(l->c, op->weight, l->err)) ||
        (op->bias && !(norm->bias = pp_cpu_float_vector(l->c, op->bias, l->err))))
        return l->err->code;
    return PP_OK;
}

/* Whether the next operation, a norm, can be fused into the projection after it, which reads it. */
static bool norm_is_of_projection(const struct lowering *l)
{
    const struct pp_op *norm = peek(l, 0), *next = peek(l, 1);
    return norm->out != norm->in && next && next->kind == PP_OP_LINEAR && next->in == norm->out;
}

/* Whether the next operation, a norm, can be fused into the experts after it. Experts do not store its result, so
 * nothing else may read that. */
static bool norm_is_of_experts(const struct lowering *l)
{
    const struct pp_op *norm = peek(l, 0), *next = peek(l, 1);
    return norm->out != norm->in && next && next->kind == PP_OP_EXPERTS && next->in == norm->out &&
           next->in2 != norm->out && !pp_plan_reads(l->plan, norm->out, l->at + 2);
}

/* Fuses the next operation into a stage of projections as its epilogue, if it reads nothing but their results. */
static void take_epilogue(struct lowering *l, struct stage *s)
{
    const struct pp_op *op = peek(l, 0);
    const int other = s->n_projections == 2 ? s->projections[1].out : -1;
    if (!may_take_next(l, s->projections[0].out) || op->out < 0)
        return;
    if (l->plan->slots[op->out].base == l->plan->slots[s->in].base)
        return; /* other threads still read the stage's input there */
    if (s->n_projections == 1 && op->kind == PP_OP_ADD)
        s->epilogue = EPILOGUE_ADD;
    else if (s->n_projections == 1 && op->kind == PP_OP_APPLY)
        s->epilogue = EPILOGUE_APPLY;
    else if (other >= 0 && op->kind == PP_OP_GATE && op->in2 == other &&
             (op->out == other || !pp_plan_reads(l->plan, other, l->at + 1)))
        s->epilogue = EPILOGUE_GATE;
    else
        return;
    s->fn = op->fn;
    s->scale = op->scale;
    s->out = op->out;
    if (op->kind == PP_OP_APPLY && op->fn == PP_FN_XIELU)
        s->xielu = pp_xielu_of(op->xielu);
    l->at++;
}

/* [NORM] LINEAR {LINEAR} [ADD | GATE | APPLY] */
static enum pp_code lower_projections(struct lowering *l)
{
    struct stage *s = new_stage(l, STAGE_PROJECT);
    int input;
    const bool normalised = next_is(l, PP_OP_NORM);
    if (normalised) {
        const struct pp_op *norm = peek(l, 0);
        enum pp_code code = take_norm(l, norm, &s->norm);
        if (code)
            return code;
        s->in = norm->in;
        input = norm->out;
        l->at++;
    } else {
        s->in = input = peek(l, 0)->in;
    }
    while (next_is(l, PP_OP_LINEAR) && peek(l, 0)->in == input && s->n_projections < MAX_GROUPED) {
        enum pp_code code = add_projection(l, s, peek(l, 0));
        if (code)
            return code;
        l->at++;
    }
    if (normalised && pp_plan_reads(l->plan, input, l->at))
        s->norm_out = input; /* later stages read it, too; else it lives in scratch only */
    take_epilogue(l, s);
    return PP_OK;
}

/* ALiBi's slope of each head (arXiv 2108.12409). For 2^k heads they are b, b^2, ... b^(2^k) with b = 2^(-alibi / 2^k).
 * If there are more heads, the others' slopes lie between those: the odd powers of sqrt(b). */
static const float *alibi_slopes(struct lowering *l, const struct pp_op *attention)
{
    const double alibi = (double)attention->alibi;
    const double scale = attention->alibi_scale != 0.0f ? (double)attention->alibi_scale : 1;
    const int64_t n = l->plan->tiers[attention->tier].n_head;
    const size_t bytes = (size_t)n * sizeof(float);
    float *slopes = keep(l->c, pp_malloc(bytes), bytes);
    int64_t whole = 1;
    while (2 * whole <= n)
        whole *= 2;
    for (int64_t h = 0; slopes && h < n; h++) {
        const double power = h < whole ? (double)(h + 1) : (double)(2 * (h - whole) + 1) / 2;
        slopes[h] = (float)(scale * exp2(-alibi / (double)whole * power)) * LOG2_E;
    }
    if (!slopes)
        pp_fail_nomem(l->err, "the heads' slopes");
    return slopes;
}

/* The slots of q, k and v that the head norms, or the RoPE operations, before an attention work on; -1: none. */
struct head_slots {
    int q, k, v;
};

static enum pp_code take_head_norms(struct lowering *l, struct stage *s, struct head_slots *slots)
{
    struct norm *const norms[] = {&s->q_norm, &s->k_norm, &s->v_norm};
    int *const normalised[] = {&slots->q, &slots->k, &slots->v};
    enum pp_code code = PP_OK;
    *slots = (struct head_slots){-1, -1, -1};
    for (int i = 0; i < 3 && !code && next_is(l, PP_OP_HEAD_NORM); i++, l->at++) {
        *normalised[i] = peek(l, 0)->in;
        code = take_norm(l, peek(l, 0), norms[i]);
    }
    return code;
}

static void take_ropes(struct lowering *l, struct stage *s, struct head_slots *slots)
{
    int *const rotated[] = {&slots->q, &slots->k};
    *slots = (struct head_slots){-1, -1, -1};
    s->rope = -1;
    for (int i = 0; i < 2 && next_is(l, PP_OP_ROPE); i++, l->at++) {
        *rotated[i] = peek(l, 0)->in;
        s->rope = peek(l, 0)->local_rope;
    }
}

/* Whether these slots are those that the attention, and the store before it, read. store: NULL where there is none */
static bool match_attention(struct head_slots slots, const struct pp_op *attention, const struct pp_op *store)
{
    if (slots.q < 0 || !store)
        return slots.k < 0 && slots.v < 0 && (slots.q < 0 || slots.q == attention->in);
    return slots.q == attention->in && slots.k == store->in && (slots.v < 0 || slots.v == store->in2);
}

/* Whether a later operation reads these slots, to which a fused attention does not write back. */
static bool are_read_later(const struct lowering *l, struct head_slots slots)
{
    const int all[] = {slots.q, slots.k, slots.v};
    bool is_read = false;
    for (int i = 0; i < 3; i++)
        is_read = is_read || (all[i] >= 0 && pp_plan_reads(l->plan, all[i], l->at));
    return is_read;
}

/* Whether the next operation, a head norm, belongs to an attention. */
static bool norm_is_of_attention(const struct lowering *l)
{
    const struct pp_op *next = peek(l, 1);
    return next && (next->kind == PP_OP_HEAD_NORM || (next->kind == PP_OP_ROPE && !next->period) ||
                    next->kind == PP_OP_KV_STORE || next->kind == PP_OP_ATTENTION);
}

/* [HEAD_NORM q [HEAD_NORM k [HEAD_NORM v]]] [ROPE q [ROPE k]] [KV_STORE] ATTENTION, or norms after rotations */
static enum pp_code lower_attention(struct lowering *l)
{
    struct stage *s = new_stage(l, STAGE_ATTEND);
    struct head_slots normalised, rotated;
    enum pp_code code = take_head_norms(l, s, &normalised);
    take_ropes(l, s, &rotated);
    if (!code && normalised.q < 0) {
        code = take_head_norms(l, s, &normalised);
        s->norm_after_rope = normalised.q >= 0;
    }
    const struct pp_op *store = next_is(l, PP_OP_KV_STORE) ? peek(l, 0) : NULL;
    l->at += store != NULL;
    const struct pp_op *attention = next_is(l, PP_OP_ATTENTION) ? peek(l, 0) : NULL;
    if (code)
        return code;
    if (!attention || !match_attention(normalised, attention, store) || !match_attention(rotated, attention, store))
        return pp_fail(l->err, PP_ERR_UNSUPPORTED, "the CPU backend has no stage for this kind of attention");
    s->tier = attention->tier;
    s->layer = attention->tier_layer;
    s->from_tier = attention->from_tier;
    s->from_layer = attention->from_layer;
    s->q = attention->in;
    s->k = store ? store->in : -1;
    s->v = store ? store->in2 : -1;
    s->out = attention->out;
    s->softcap = attention->scale * LOG2_E;
    if (attention->weight) {
        const float *vector = pp_cpu_float_vector(l->c, attention->weight, l->err);
        float *sinks = (float *)(uintptr_t)vector; /* ours, and not read yet */
        for (int64_t i = 0; sinks && i < attention->weight->ne[0]; i++)
            sinks[i] *= LOG2_E;
        s->sinks = sinks;
        code = sinks ? PP_OK : l->err->code;
    }
    if (attention->alibi != 0.0f && !(s->slopes = alibi_slopes(l, attention)))
        code = l->err->code;
    l->at++;
    if (!code && (are_read_later(l, normalised) || are_read_later(l, rotated)))
        code = pp_fail(l->err, PP_ERR_UNSUPPORTED, "the CPU backend keeps no heads that were normalised or rotated");
    return code;
}

static enum pp_code lower_compression(struct lowering *l)
{
    const struct pp_op *op = &l->plan->ops[l->at++];
    struct stage *s = new_stage(l, STAGE_COMPRESS);
    s->in = op->in;
    s->in2 = op->in2;
    s->out = op->out;
    return pp_cpu_compress_add(l->c, s, op, l->err);
}

/* A KV_STORE of a compressed block's key */
static enum pp_code lower_keeping(struct lowering *l)
{
    const struct pp_op *op = &l->plan->ops[l->at++];
    struct stage *s = new_stage(l, STAGE_KEEP);
    s->k = op->in;
    s->tier = op->tier;
    s->layer = op->tier_layer;
    return PP_OK;
}

static enum pp_code lower_picks(struct lowering *l)
{
    const struct pp_op *op = peek(l, 0);
    struct stage *s = new_stage(l, STAGE_PICK);
    s->tier = op->tier;
    s->layer = op->tier_layer;
    s->q = op->in;
    s->k = op->in2;
    s->head_weights = op->in3;
    s->neox = op->neox;
    s->rotated_from = op->at;
    l->at++;
    return PP_OK;
}

static enum pp_code lower_heads(struct lowering *l)
{
    const struct pp_op *op = peek(l, 0);
    struct stage *s = new_stage(l, STAGE_HEADS);
    s->in = op->in;
    s->out = op->out;
    l->at++;
    return pp_cpu_heads_add(l->c, s, &l->plan->heads[op->heads], l->err);
}

/* Whether the next operation, a product, can be fused into the convolution after it, which reads it. */
static bool product_is_of_convolution(const struct lowering *l)
{
    const struct pp_op *product = peek(l, 0), *next = peek(l, 1);
    return next && next->kind == PP_OP_CONVOLVE && next->in == product->out && !product->weight &&
           (next->out == product->out || !pp_plan_reads(l->plan, product->out, l->at + 2));
}

/* [MULTIPLY] CONVOLVE [APPLY] [MULTIPLY] */
static enum pp_code lower_convolution(struct lowering *l)
{
    struct stage *s = new_stage(l, STAGE_CONVOLVE);
    s->in = peek(l, 0)->in;
    s->in2 = s->gate = -1;
    if (next_is(l, PP_OP_MULTIPLY))
        s->in2 = peek(l, 0)->in2, l->at++;
    s->row_taps = peek(l, 0)->in2;
    enum pp_code code = pp_cpu_convolve_add(l->c, s, peek(l, 0), l->err);
    s->out = peek(l, 0)->out;
    l->at++;
    if (next_is(l, PP_OP_APPLY) && may_take_next(l, s->out)) {
        s->epilogue = EPILOGUE_APPLY;
        s->fn = peek(l, 0)->fn;
        s->scale = peek(l, 0)->scale;
        s->out = peek(l, 0)->out;
        l->at++;
    }
    if (next_is(l, PP_OP_MULTIPLY) && may_take_next(l, s->out)) {
        s->gate = peek(l, 0)->in2;
        s->out = peek(l, 0)->out;
        l->at++;
    }
    return code;
}

static enum pp_code lower_recurrence(struct lowering *l)
{
    const struct pp_op *op = &l->plan->ops[l->at++];
    const bool scans = l->plan->recurrences[op->recurrence].shape.n_inputs != 0;
    struct stage *s = new_stage(l, scans ? STAGE_SCAN : STAGE_RECUR);
    s->in = op->in;
    s->out = op->out;
    s->tier = op->tier;
    s->layer = op->tier_layer;
    s->recurrence = &l->plan->recurrences[op->recurrence];
    return (scans ? pp_cpu_scan_add : pp_cpu_recur_add)(l->c, s, op, l->err);
}

/* Whether the next operation runs row by row, and is not part of a pattern. */
static bool is_row_op(const struct lowering *l)
{
    const struct pp_op *op = peek(l, 0);
    switch (op ? op->kind : PP_OP_RESULT) {
    case PP_OP_NORM:
        return !norm_is_of_projection(l) && !norm_is_of_experts(l);
    case PP_OP_HEAD_NORM:
        return !norm_is_of_attention(l);
    case PP_OP_MULTIPLY:
        return !product_is_of_convolution(l);
    case PP_OP_ROPE:
        return op->period != 0;
    case PP_OP_LOOKUP:
    case PP_OP_TOKEN:
    case PP_OP_NGRAM:
    case PP_OP_HASH:
    case PP_OP_GATE:
    case PP_OP_AFFINE:
    case PP_OP_WEIGH:
    case PP_OP_APPLY:
    case PP_OP_ADD:
    case PP_OP_TAKE:
    case PP_OP_SPARSEN:
    case PP_OP_MATCH:
    case PP_OP_ATTN_RESIDUAL:
    case PP_OP_MIX:
    case PP_OP_SPREAD:
    case PP_OP_CONNECT:
    case PP_OP_READ_STREAMS:
    case PP_OP_WRITE_STREAMS:
    case PP_OP_ROOTS:
        return true;
    default:
        return false;
    }
}

/* A tensor, if there is one, as floats; false: l->err is set. */
static bool take_vector(struct lowering *l, const struct pp_tensor *t, const float **to)
{
    return !t || (*to = pp_cpu_float_vector(l->c, t, l->err)) != NULL;
}

/* Sets the weights of a row operation, and the numbers and sizes of the parts of its slots. */
static enum pp_code take_row_weight(struct lowering *l, const struct pp_op *op, struct row_op *r)
{
    const struct pp_slot *slots = l->plan->slots;
    const float *number = NULL;
    bool good = true;
    switch (op->kind) {
    case PP_OP_LOOKUP:
    case PP_OP_NGRAM:
    case PP_OP_HASH:
        r->table = op->weight;
        break;
    case PP_OP_NORM:
    case PP_OP_HEAD_NORM:
        r->n = op->weight->ne[0];
        r->n_heads = (int)(slots[op->out].width / r->n);
        return take_norm(l, op, &r->norm);
    case PP_OP_MULTIPLY:
        good = take_vector(l, op->weight, &r->factors);
        break;
    case PP_OP_AFFINE:
        r->n_heads = op->weight ? (int)op->weight->ne[0] : 0;
        good = take_vector(l, op->weight, &r->factors) && take_vector(l, op->bias, &r->added);
        break;
    case PP_OP_APPLY:
        good = take_vector(l, op->weight, &number);
        r->scale = number ? number[0] : r->scale;
        break;
    case PP_OP_WEIGH:
        r->n_heads = (int)slots[op->in].width;
        break;
    case PP_OP_ATTN_RESIDUAL:
        r->n_heads = (int)op->count;
        good = take_vector(l, op->weight, &r->factors);
        break;
    case PP_OP_MIX:
    case PP_OP_SPREAD:
        r->n_heads = (int)op->count;
        r->n = slots[op->out].width / op->count;
        break;
    case PP_OP_ROOTS:
        r->n_heads = (int)op->count;
        r->n = slots[op->in].width / op->count;
        break;
    case PP_OP_CONNECT:
        r->n_heads = (int)op->count;
        r->connection = op->connection;
        good = take_vector(l, op->weight, &r->factors) && take_vector(l, op->bias, &r->added);
        break;
    case PP_OP_READ_STREAMS:
        r->n_heads = (int)op->count;
        break;
    case PP_OP_WRITE_STREAMS:
        r->n_heads = (int)op->count;
        r->n = slots[op->in].width;
        r->mixes = slots[op->in2].width > 2 * op->count;
        break;
    default:
        break;
    }
    return good ? PP_OK : l->err->code;
}

/* {operations of is_row_op()} */
static enum pp_code lower_rows(struct lowering *l)
{
    struct stage *s = new_stage(l, STAGE_ROWS);
    s->in = s->out = -1;
    while (is_row_op(l) && s->n_row_ops < MAX_ROW_OPS) {
        const struct pp_op *op = peek(l, 0);
        struct row_op *r = &s->row_ops[s->n_row_ops++];
        *r = (struct row_op){.kind = op->kind, .fn = op->fn, .scale = op->scale, .in = op->in, .in2 = op->in2,
                             .out = op->out, .n = l->plan->slots[op->out].width, .count = op->count, .at = op->at,
                             .period = op->period, .times = op->times ? op->times : 1,
                             .by_position = op->by_position, .neox = op->neox, .inverse = op->inverse,
                             .local = op->local_rope, .hashed = op->hashed, .tables = op->tables};
        enum pp_code code = take_row_weight(l, op, r);
        if (code)
            return code;
        l->at++;
    }
    return PP_OK;
}

/* [NORM] EXPERTS [ADD] */
static enum pp_code lower_experts(struct lowering *l)
{
    struct stage *s = new_stage(l, STAGE_EXPERTS);
    enum pp_code code = PP_OK;
    if (next_is(l, PP_OP_NORM)) {
        s->in = peek(l, 0)->in;
        code = take_norm(l, peek(l, 0), &s->norm);
        l->at++;
    } else {
        s->in = peek(l, 0)->in;
    }
    const struct pp_op *op = peek(l, 0);
    s->experts = &l->c->experts[op->experts];
    s->router = op->in2;
    s->out = op->out;
    l->at++;
    if (!code)
        code = pp_cpu_experts_add(l->c, op->experts, l->err);
    if (next_is(l, PP_OP_ADD) && may_take_next(l, op->out)) {
        s->epilogue = EPILOGUE_ADD;
        s->scale = peek(l, 0)->scale;
        s->out = peek(l, 0)->out;
        l->at++;
    }
    return code;
}

static enum pp_code lower_next(struct lowering *l)
{
    const struct pp_op *op = peek(l, 0);
    struct stage *s;
    switch (op->kind) {
    case PP_OP_EMBED:
        s = new_stage(l, STAGE_EMBED);
        s->table = op->weight;
        s->positions = op->bias;
        s->segments = op->segments;
        s->meta_tokens = op->meta_tokens;
        s->scale = op->scale;
        s->out = op->out;
        l->at++;
        return PP_OK;
    case PP_OP_LINEAR:
        return lower_projections(l);
    case PP_OP_NORM:
        return norm_is_of_projection(l) ? lower_projections(l)
               : norm_is_of_experts(l)  ? lower_experts(l)
                                        : lower_rows(l);
    case PP_OP_EXPERTS:
        return lower_experts(l);
    case PP_OP_HEADS:
        return lower_heads(l);
    case PP_OP_HEAD_NORM:
        return norm_is_of_attention(l) ? lower_attention(l) : lower_rows(l);
    case PP_OP_ROPE:
        return op->period ? lower_rows(l) : lower_attention(l);
    case PP_OP_KV_STORE:
        return op->in2 < 0 ? lower_keeping(l) : lower_attention(l);
    case PP_OP_ATTENTION:
        return lower_attention(l);
    case PP_OP_COMPRESS:
        return lower_compression(l);
    case PP_OP_PICK:
        return lower_picks(l);
    case PP_OP_CONVOLVE:
        return lower_convolution(l);
    case PP_OP_POOL:
        l->at++;
        return pp_cpu_pool_add(l->c, new_stage(l, STAGE_POOL), op, l->err);
    case PP_OP_RECUR:
        return lower_recurrence(l);
    case PP_OP_MULTIPLY:
        return product_is_of_convolution(l) ? lower_convolution(l) : lower_rows(l);
    case PP_OP_SELECT:
        s = new_stage(l, STAGE_SELECT);
        s->in = s->out = op->in;
        l->selected = true;
        l->at++;
        return PP_OK;
    case PP_OP_RESULT:
        l->c->hidden_slot = op->in;
        l->c->logits_slot = op->in2;
        l->at++;
        return PP_OK;
    default:
        if (is_row_op(l))
            return lower_rows(l);
        return pp_fail(l->err, PP_ERR_UNSUPPORTED, "the CPU backend cannot run operation %d here", (int)op->kind);
    }
}

/* Sets the data pointers of all matrices, which are known once pp_weights_place has laid them out. */
static void point_at_weights(struct pp_cpu *c)
{
    for (int i = 0; i < c->n_stages; i++) {
        struct stage *s = &c->stages[i];
        for (int p = 0; p < s->n_projections; p++)
            s->projections[p].w.data = s->projections[p].weight->data;
        for (int h = 0; h < s->n_heads; h++)
            s->heads[h].w.data = s->heads[h].weight->data;
    }
    pp_cpu_experts_point(c);
}

enum pp_code pp_cpu_lower(struct pp_cpu *c, const struct pp_cpu_options *opt, pp_progress *progress, void *user,
                          struct pp_error *err)
{
    struct lowering l = {
        .c = c, .plan = &c->model->plan, .cancel = opt->cancel, .progress = progress, .user = user, .err = err};
    c->stages = pp_calloc((size_t)l.plan->n_ops, sizeof *c->stages);
    c->experts = pp_calloc((size_t)l.plan->n_experts, sizeof *c->experts);
    if (!c->stages || !c->experts)
        return pp_fail_nomem(err, "the model's program");
    enum pp_code code = pp_weights_new(c->model, &c->weights, err);
    if (!code && pp_cancelled(opt->cancel))
        code = pp_fail(err, PP_ERR_CANCELLED, "the loading of the model was stopped");
    while (!code && l.at < l.plan->n_ops)
        code = lower_next(&l);
    if (!code)
        code = pp_weights_place(c->weights, opt->cache_dir, opt->layout_quota, err);
    if (!code)
        point_at_weights(c);
    return code;
}
