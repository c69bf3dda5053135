/* lower.c - from a plan's operations to the stages of a program: pattern by pattern, see cpu.h. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/program.h"
#include "engine/quant.h"

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

static enum pp_code fail_values(const struct pp_tensor *t, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT,
                   "tensor %s holds values that are no numbers; the model file is damaged, get it again", t->name);
}

/* A norm or a bias as floats, padded with zeros to whole vectors. NULL: *err says why. */
static const float *float_vector(struct pp_cpu *c, const struct pp_tensor *t, struct pp_error *err)
{
    if (!pp_row_finite(t->type, t->data, t->ne[0])) {
        fail_values(t, err);
        return NULL;
    }
    size_t bytes = ((size_t)t->ne[0] + 15) / 16 * 16 * sizeof(float);
    float *f = keep(c, pp_aligned(64, bytes), bytes);
    if (!f) {
        pp_fail_nomem(err, t->name);
        return NULL;
    }
    memset(f, 0, bytes);
    pp_dequantize_row(t->type, t->data, f, t->ne[0]);
    return f;
}

/* --- packing ------------------------------------------------------------------------------------------------- */

enum { PACK_ROWS = 64 }; /* in a work item */

struct pack_job {
    const struct pp_tensor *t;
    void *dst;                /* NULL: only look at the values */
    const struct pp_cancel *cancel;
    atomic_bool bad;          /* a row holds NaN or infinity */
};

static void pack_some(void *arg, int part, int item, int thread)
{
    struct pack_job *job = arg;
    const struct pp_tensor *t = job->t;
    size_t row_bytes = pp_type_row_bytes(t->type, t->ne[0]);
    int64_t row0 = (int64_t)item * PACK_ROWS, row1 = row0 + PACK_ROWS < t->ne[1] ? row0 + PACK_ROWS : t->ne[1];
    (void)part, (void)thread;
    if (pp_cancelled(job->cancel))
        return;
    for (int64_t r = row0; r < row1; r++)
        if (!pp_row_finite(t->type, (const uint8_t *)t->data + (size_t)r * row_bytes, t->ne[0]))
            atomic_store(&job->bad, true);
    if (job->dst)
        pp_pack_rows(t->type, t->data, t->ne[1], t->ne[0], row0, row1, job->dst);
}

/* Looks at all values of a matrix; packs them to dst unless that is NULL. */
static enum pp_code read_matrix(struct pp_cpu *c, const struct pp_tensor *t, const struct pp_cancel *cancel, void *dst,
                                struct pp_error *err)
{
    struct pack_job job = {.t = t, .dst = dst, .cancel = cancel};
    int n_items = (int)((t->ne[1] + PACK_ROWS - 1) / PACK_ROWS);
    pp_pool_run(c->pool, pack_some, &job, &n_items, 1);
    if (pp_cancelled(cancel))
        return pp_fail(err, PP_ERR_CANCELLED, "the loading of the model was stopped");
    return atomic_load(&job.bad) ? fail_values(t, err) : PP_OK;
}

static enum pp_code make_matrix(struct pp_cpu *c, const struct pp_tensor *t, const struct pp_cancel *cancel,
                                struct pp_matrix *w, struct pp_error *err)
{
    void *packed = NULL;
    *w = (struct pp_matrix){.type = t->type, .n_rows = t->ne[1], .n_cols = t->ne[0], .data = t->data};
    if (pp_pack_needed(t->type)) {
        size_t bytes = pp_pack_bytes(t->type, t->ne[1], t->ne[0]);
        packed = keep(c, pp_aligned(64, bytes), bytes);
        if (!packed)
            return pp_fail_nomem(err, "the model's weights");
        w->data = packed;
    }
    return read_matrix(c, t, cancel, packed, err);
}

/* --- patterns ------------------------------------------------------------------------------------------------- */

struct lowering {
    struct pp_cpu *c;
    const struct pp_plan *plan;
    int at;                     /* next operation */
    const struct pp_cancel *cancel;
    pp_progress *progress;
    void *user;
    uint64_t done;
    bool selected;              /* a SELECT was passed */
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
    enum pp_code code = make_matrix(l->c, linear->w, l->cancel, &p->w, l->err);
    if (!code && linear->b && !(p->bias = float_vector(l->c, linear->b, l->err)))
        code = l->err->code;
    s->quantize |= pp_pack_needed(linear->w->type);
    l->done += linear->w->size;
    if (!code && l->progress)
        l->progress(l->user, l->done, l->c->model->info.bytes);
    return code;
}

/* [NORM] LINEAR { LINEAR } [ADD | SWIGLU] */
static enum pp_code lower_projections(struct lowering *l)
{
    struct stage *s = new_stage(l, STAGE_PROJECT);
    int input;
    if (next_is(l, PP_OP_NORM)) {
        const struct pp_op *norm = peek(l, 0);
        s->in = norm->in;
        s->norm_out = input = norm->out;
        if (!(s->norm = float_vector(l->c, norm->weight, l->err)))
            return l->err->code;
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
    if (s->norm && next_is(l, PP_OP_LINEAR) && peek(l, 0)->in == input)
        return pp_fail(l->err, PP_ERR_UNSUPPORTED, "the CPU backend groups at most %d projections of one normed input",
                       MAX_GROUPED);
    if (s->n_projections == 1 && next_is(l, PP_OP_ADD) && peek(l, 0)->in == s->projections[0].out) {
        s->add = true;
        s->out = peek(l, 0)->out;
        l->at++;
    } else if (s->n_projections == 2 && next_is(l, PP_OP_SWIGLU) && peek(l, 0)->in == s->projections[0].out &&
               peek(l, 0)->in2 == s->projections[1].out) {
        s->swiglu = true;
        s->out = peek(l, 0)->out;
        l->at++;
    }
    return PP_OK;
}

/* ROPE q, ROPE k, KV_STORE, ATTENTION */
static enum pp_code lower_attention(struct lowering *l)
{
    const struct pp_op *rope_q = peek(l, 0), *rope_k = peek(l, 1), *store = peek(l, 2), *attention = peek(l, 3);
    if (!attention || rope_k->kind != PP_OP_ROPE || store->kind != PP_OP_KV_STORE ||
        attention->kind != PP_OP_ATTENTION || attention->in != rope_q->in || store->in != rope_k->in)
        return pp_fail(l->err, PP_ERR_UNSUPPORTED, "the CPU backend has no stage for this kind of attention");
    struct stage *s = new_stage(l, STAGE_ATTEND);
    s->layer = store->layer;
    s->q = rope_q->in;
    s->k = rope_k->in;
    s->v = store->in2;
    s->out = attention->out;
    l->at += 4;
    return PP_OK;
}

/* Tied embeddings are looked at when they become the output projection. */
static bool is_projection(const struct pp_plan *plan, const struct pp_tensor *t)
{
    for (int i = 0; i < plan->n_linears; i++)
        if (plan->linears[i].w == t)
            return true;
    return false;
}

static enum pp_code lower_next(struct lowering *l)
{
    const struct pp_op *op = peek(l, 0);
    struct stage *s;
    switch (op->kind) {
    case PP_OP_EMBED:
        s = new_stage(l, STAGE_EMBED);
        s->table = op->weight;
        s->out = op->out;
        l->at++;
        if (is_projection(l->plan, op->weight))
            return PP_OK;
        return read_matrix(l->c, op->weight, l->cancel, NULL, l->err);
    case PP_OP_NORM:
    case PP_OP_LINEAR:
        return lower_projections(l);
    case PP_OP_ROPE:
        return lower_attention(l);
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
        return pp_fail(l->err, PP_ERR_UNSUPPORTED, "the CPU backend cannot run operation %d here", (int)op->kind);
    }
}

enum pp_code pp_cpu_lower(struct pp_cpu *c, const struct pp_cancel *cancel, pp_progress *progress, void *user,
                          struct pp_error *err)
{
    struct lowering l = {
        .c = c, .plan = &c->model->plan, .cancel = cancel, .progress = progress, .user = user, .err = err};
    c->stages = pp_calloc((size_t)l.plan->n_ops, sizeof *c->stages);
    if (!c->stages)
        return pp_fail_nomem(err, "the model's program");
    enum pp_code code = PP_OK;
    while (!code && l.at < l.plan->n_ops)
        code = lower_next(&l);
    /* A normed input is stored only where it is a result; elsewhere it lives in scratch. */
    for (int i = 0; i < c->n_stages; i++)
        if (c->stages[i].norm_out != c->hidden_slot || i + 1 != c->n_stages)
            c->stages[i].norm_out = -1;
    return code;
}
