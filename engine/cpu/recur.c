/* recur.c - layers whose recurrent state decays by one number per head (plan.h), in their chunked form. kv.h has the
 * layout of their pages.
 *
 * Let S be the state at the beginning of a page, and G_t the sum of ln a from there up to position t. The recurrence
 * unrolls to
 *
 *   u_t = beta (v_t - e^G_t S' k_t - sum over i < t of e^(G_t - G_i) (k_i . k_t) u_i)
 *   out_t = e^G_t S' q_t + sum over i <= t of e^(G_t - G_i) (k_i . q_t) u_i
 *
 * so that a row stores only its own k, u and G, and the products of S with the keys and queries of many rows are matrix
 * products. Chunks are pages, not batches, so that a row has the same bits in every pass. An item processes some heads
 * that share a key, and for them the rows of the batch one after the other. xLSTM's normaliser n is kept as one more
 * column of S. */
#include <math.h>
#include <string.h>

#include "engine/cpu/program.h"

enum {
    ROWS_AT_ONCE = 8,
    ITEMS_PER_THREAD = 2,   /* if fewer, heads that share a key are divided among items, too */
};

const float pp_cpu_recur_unit_eps = 1e-6f;

/* --- memory ---------------------------------------------------------------------------------------------------- */

/* An item's scratch. */
struct room {
    float *x;        /* queries, then keys, of some rows [2 ROWS_AT_ONCE, key_dim] */
    float *dots;     /* those times the page's keys [2 ROWS_AT_ONCE, 64] */
    float *products; /* and times a state [2 ROWS_AT_ONCE, value_dim] */
    float *scratch;  /* [key_dim, 64] */
    float *wide;     /* xLSTM: a row's values with the extra columns, and the output for these [2, value_dim] */
};

static size_t lay_out(const struct pp_state_shape *shape, float *memory, struct room *r)
{
    const size_t n = 2 * (size_t)ROWS_AT_ONCE, key = (size_t)shape->key_dim, value = (size_t)shape->value_dim;
    *r = (struct room){.x = memory, .dots = memory + n * key, .products = memory + n * (key + PP_PAGE_TOKENS),
                       .scratch = memory + n * (key + PP_PAGE_TOKENS + value)};
    r->wide = r->scratch + key * PP_PAGE_TOKENS;
    return (n * (key + PP_PAGE_TOKENS + value) + key * PP_PAGE_TOKENS + 2 * value) * sizeof *memory;
}

size_t pp_cpu_recur_bytes(const struct pp_kv_layout *kv)
{
    static float nothing[1];
    struct room r;
    return kv->kind == PP_TIER_STATE && !kv->state.n_inputs ? lay_out(&kv->state, nothing, &r) : 0;
}

const float *pp_cpu_recur_numbers(struct pp_cpu *c, const struct pp_tensor *t, struct pp_error *err)
{
    struct pp_tensor flat = *t;
    flat.ne[0] *= t->ne[1];
    flat.ne[1] = 1;
    return pp_cpu_float_vector(c, &flat, err);
}

/* Allocates a vector of n equal values. */
static const float *equal_values(struct pp_cpu *c, int n, double value)
{
    float *f = pp_cpu_memory_keep(c, n, sizeof *f);
    for (int i = 0; f && i < n; i++)
        f[i] = (float)value;
    return f;
}

enum pp_code pp_cpu_recur_units(struct pp_cpu *c, struct stage *s, int n, struct pp_error *err)
{
    s->unit_key = equal_values(c, n, 1 / sqrt((double)n));
    s->unit_query = equal_values(c, n, 1 / (double)n);
    return s->unit_key && s->unit_query ? PP_OK : pp_fail_nomem(err, "the model's program");
}

static bool is_mamba(const struct pp_recurrence *r)
{
    return r->kind == PP_RECUR_MAMBA2;
}

/* Whether the recurrence has no delta rule, and queries and keys are not scaled to length 1. */
static bool is_plain(const struct pp_recurrence *r)
{
    return is_mamba(r) || r->kind == PP_RECUR_LIGHTNING || r->kind == PP_RECUR_MLSTM;
}

/* The width of a head's output. */
static int output_width(const struct pp_recurrence *r)
{
    return r->shape.value_dim - (r->kind == PP_RECUR_MLSTM ? PP_STATE_EXTRA_COLUMNS : 0);
}

/* Sets the norm of xLSTM's output. */
static enum pp_code add_mlstm(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    s->norm = (struct norm){.centred = true, .stride = output_width(s->recurrence), .eps = op->scale};
    if (!(s->norm.weight = pp_cpu_float_vector(c, op->weight, err)) ||
        (op->bias && !(s->norm.bias = pp_cpu_float_vector(c, op->bias, err))))
        return err->code;
    return PP_OK;
}

enum pp_code pp_cpu_recur_add(struct pp_cpu *c, struct stage *s, const struct pp_op *op, struct pp_error *err)
{
    const struct pp_recurrence *r = s->recurrence;
    if (r->kind == PP_RECUR_MLSTM)
        return add_mlstm(c, s, op, err);
    if (!(s->rate = pp_cpu_recur_numbers(c, r->rate, err)))
        return err->code;
    if (r->kind == PP_RECUR_LIGHTNING)
        return PP_OK;
    if (!(s->bias = pp_cpu_recur_numbers(c, r->bias, err)))
        return err->code;
    if (is_mamba(r))
        return (s->direct = pp_cpu_recur_numbers(c, r->direct, err)) ? PP_OK : err->code;
    if (!(s->norm.weight = pp_cpu_float_vector(c, op->weight, err)))
        return err->code;
    s->norm.eps = op->scale;
    return pp_cpu_recur_units(c, s, r->shape.key_dim, err);
}

/* --- items ----------------------------------------------------------------------------------------------------- */

/* How many items the heads of a key are divided among. */
static int n_splits(const struct pp_cpu *c, const struct stage *s)
{
    const struct pp_state_shape *shape = &s->recurrence->shape;
    const int most = shape->n_head / shape->n_key_head, wanted = ITEMS_PER_THREAD * pp_pool_n(c->pool);
    const int splits = (wanted + shape->n_key_head - 1) / shape->n_key_head;
    return pp_pool_n(c->pool) == 1 ? 1 : splits < most ? splits : most;
}

void pp_cpu_recur_phases(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES])
{
    const int n_key_head = s->recurrence->shape.n_key_head, splits = n_splits(c, s);
    (void)m;
    n_items[0] = splits > 1 ? n_key_head : 0; /* stores the keys that several items read */
    n_items[1] = n_key_head * splits;
}

/* Consecutive rows of one sequence whose positions are in the same page. */
struct run {
    struct pp_cpu *c;
    const struct stage *s;
    const struct pp_kv_layout *kv;
    const struct pp_recurrence *r;
    struct room room;
    uint8_t *page, *before;  /* that page, and the one before it, needed for its first position only */
    int row, n, at;          /* the first row, their number, and the first one's index in the page */
    int key_head;
};

/* The run that begins with row i. */
static void find_run(struct run *run, int i, int m)
{
    const struct pp_batch_row *rows = run->c->batch->rows, *first = &rows[i];
    uint8_t *const *pages = first->pages[run->s->tier];
    const int64_t page = first->slot / PP_PAGE_TOKENS;
    run->row = i;
    run->at = (int)(first->slot % PP_PAGE_TOKENS);
    run->page = pages[page];
    run->before = run->at == 0 && page > 0 ? pages[page - 1] : NULL;
    for (run->n = 1; run->n < ROWS_AT_ONCE && i + run->n < m && run->at + run->n < PP_PAGE_TOKENS; run->n++)
        if (rows[i + run->n].pages[run->s->tier] != pages || rows[i + run->n].slot != first->slot + run->n)
            break;
}

/* Copies a query or a key to y, scaled to length 1 times `weight`; or as it is, if the recurrence has it so. */
static void load_vector(const struct run *run, int slot, int i, const float *weight, float *y)
{
    const int n = run->r->shape.key_dim;
    const float *x = slot_row(run->c, slot, run->row + i) + run->key_head * n;
    if (is_plain(run->r))
        memcpy(y, x, (size_t)n * sizeof *y);
    else
        run->c->ops->rms_norm(x, weight, pp_cpu_recur_unit_eps / (float)n, n, y);
}

static void load_keys(const struct run *run)
{
    for (int i = 0; i < run->n; i++)
        load_vector(run, run->r->k, i, run->s->unit_key, run->room.x + (run->n + i) * run->r->shape.key_dim);
}

/* How many vectors per row are multiplied by the page's keys and by the state: the query, and with the delta rule also
 * the key. */
static int n_vectors(const struct run *run)
{
    return is_plain(run->r) ? run->n : 2 * run->n;
}

static void store_keys(const struct run *run)
{
    const int n = run->r->shape.key_dim;
    float *keys = pp_kv_state_keys(run->kv, run->page, run->s->layer, run->key_head);
    for (int i = 0; i < run->n; i++)
        for (int d = 0; d < n; d++)
            keys[d * PP_PAGE_TOKENS + run->at + i] = run->room.x[(run->n + i) * n + d];
}

/* Computes the state at the page's beginning. */
static void begin_page(const struct run *run, int head)
{
    const struct pp_state_shape *shape = &run->r->shape;
    const struct pp_kv_state to = pp_kv_state_head(run->kv, run->page, run->s->layer, head);
    if (!run->before) {
        memset(to.start, 0, (size_t)shape->key_dim * (size_t)shape->value_dim * sizeof *to.start);
        return;
    }
    const struct pp_kv_state from = pp_kv_state_head(run->kv, run->before, run->s->layer, head);
    run->c->ops->recur_next(&(struct pp_recur_next){
        .key_dim = shape->key_dim, .width = shape->value_dim, .decay = from.decay, .u = from.u, .from = from.start,
        .keys = pp_kv_state_keys(run->kv, run->before, run->s->layer, run->key_head), .to = to.start,
        .scratch = run->room.scratch});
}

static double softplus(double x)
{
    return x > 30 ? x : log1p(exp(x));
}

/* A row's number for a head in a slot with one number per head, `decay` or `beta`. */
static float number_of_head(const struct run *run, int slot, int i, int head)
{
    const int n = run->r->neighbours;
    return slot_row(run->c, slot, run->row + i)[head / n * run->r->stride + head % n];
}

static float beta_of(const struct run *run, int i, int head)
{
    const float beta = 1 / (1 + expf(-number_of_head(run, run->r->beta, i, head)));
    return run->r->beta_doubled ? 2 * beta : beta;
}

/* A position's step size: the factor of the rate, and in Mamba 2 also of the values. For xLSTM, ln a itself. */
static double step_of(const struct run *run, int i, int head)
{
    switch (run->r->kind) {
    case PP_RECUR_LIGHTNING: return 1;
    case PP_RECUR_MLSTM: return -softplus(-(double)number_of_head(run, run->r->decay, i, head));
    default: return softplus((double)number_of_head(run, run->r->decay, i, head) + (double)run->s->bias[head]);
    }
}

/* The factor of a position's values. */
static float weight_of(const struct run *run, int i, int head, double step)
{
    if (run->r->kind == PP_RECUR_MLSTM)
        return expf(number_of_head(run, run->r->beta, i, head));
    return is_plain(run->r) ? (float)step : beta_of(run, i, head);
}

/* xLSTM's values, followed by 1 for n. */
static const float *append_one(const struct run *run, const float *v)
{
    const int value = run->r->shape.value_dim, given = output_width(run->r);
    float *wide = run->room.wide;
    memcpy(wide, v, (size_t)given * sizeof *wide);
    memset(wide + given, 0, (size_t)(value - given) * sizeof *wide);
    wide[given] = 1;
    return wide;
}

/* xLSTM's stabiliser m, computed from that of the position before, which is in this page or the page before, unless the
 * sequence begins here. */
static double largest(const struct run *run, const struct pp_kv_state *state, int at, int head, double ln_left,
                      double ln_new)
{
    const int value = run->r->shape.value_dim, place = output_width(run->r) + 1;
    double m = 0;
    if (at)
        m = (double)state->u[(at - 1) * value + place];
    else if (run->before)
        m = (double)pp_kv_state_head(run->kv, run->before, run->s->layer, head).u[(PP_PAGE_TOKENS - 1) * value + place];
    return fmax(ln_left + m, ln_new);
}

/* Computes xLSTM's output from the query's products with the columns of the state, those of values and n; stores m. */
static void divide(const struct run *run, const struct pp_kv_state *state, int i, int head, double ln_left,
                   const float *wide, float *out)
{
    const int value = run->r->shape.value_dim, given = output_width(run->r), at = run->at + i;
    const float m = (float)largest(run, state, at, head, ln_left, (double)number_of_head(run, run->r->beta, i, head));
    const double most = fmax(fabs((double)wide[given]), 1);
    state->u[at * value + given + 1] = m;
    run->c->ops->apply(PP_FN_SCALE, (float)(1 / (most + (double)run->r->eps * exp((double)m))), wide, given, out);
    const struct norm norm = pp_cpu_norm_of_head(&run->s->norm, head);
    pp_cpu_norm(run->c, &norm, out, given, out);
}

static void run_head(const struct run *run, int head)
{
    const struct stage *s = run->s;
    const struct pp_state_shape *shape = &run->r->shape;
    const struct pp_kv_state state = pp_kv_state_head(run->kv, run->page, s->layer, head);
    const int n = run->n, value = shape->value_dim, given = output_width(run->r);
    const bool divides = run->r->kind == PP_RECUR_MLSTM;
    if (run->at == 0)
        begin_page(run, head);
    run->c->ops->products(&(struct pp_products){.x = run->room.x, .x_stride = shape->key_dim,
                                                .n_rows = n_vectors(run), .m = state.start, .m_stride = value,
                                                .n_inner = shape->key_dim, .y = run->room.products,
                                                .y_stride = value, .n_cols = value});
    for (int i = 0; i < n; i++) {
        const int at = run->at + i;
        float *out = slot_row(run->c, s->out, run->row + i) + head * given;
        float *gives = divides ? run->room.wide + value : out;
        const float *v = slot_row(run->c, run->r->v, run->row + i) + head * given;
        const double step = step_of(run, i, head);
        state.decay[at] = (at ? state.decay[at - 1] : 0) + (divides ? step : (double)s->rate[head] * step);
        run->c->ops->recur_row(&(struct pp_recur_row){
            .at = at, .width = value, .corrects = !is_plain(run->r), .decay = state.decay, .u = state.u,
            .beta = weight_of(run, i, head, step),
            .query_dots = run->room.dots + i * PP_PAGE_TOKENS, .key_dots = run->room.dots + (n + i) * PP_PAGE_TOKENS,
            .query_state = run->room.products + i * value, .key_state = run->room.products + (n + i) * value,
            .v = divides ? append_one(run, v) : v, .out = gives});
        if (divides)
            divide(run, &state, i, head, step, gives, out);
        else if (is_mamba(run->r))
            run->c->ops->add_scaled(out, v, s->direct[head], value);
        else if (!is_plain(run->r))
            pp_cpu_norm(run->c, &s->norm, out, value, out);
        if (s->in >= 0)
            run->c->ops->gate(run->r->sigmoids ? PP_FN_SIGMOID : PP_FN_SILU, 0,
                              slot_row(run->c, s->in, run->row + i) + head * given, out, given, out);
    }
}

/* Runs heads first .. end - 1 of those that share the run's key. */
static void run_heads(const struct run *run, bool stores, int first, int end)
{
    const struct pp_state_shape *shape = &run->r->shape;
    for (int i = 0; i < run->n; i++)
        load_vector(run, run->r->q, i, run->s->unit_query, run->room.x + i * shape->key_dim);
    load_keys(run);
    if (stores)
        store_keys(run);
    run->c->ops->products(&(struct pp_products){
        .x = run->room.x, .x_stride = shape->key_dim, .n_rows = n_vectors(run), .n_inner = shape->key_dim,
        .m = pp_kv_state_keys(run->kv, run->page, run->s->layer, run->key_head), .m_stride = PP_PAGE_TOKENS,
        .y = run->room.dots, .y_stride = PP_PAGE_TOKENS,
        .n_cols = (run->at + run->n + PP_KV_GROUP - 1) / PP_KV_GROUP * PP_KV_GROUP});
    for (int i = first; i < end; i++)
        run_head(run, run->r->tiled ? i * shape->n_key_head + run->key_head
                                    : run->key_head * (shape->n_head / shape->n_key_head) + i);
}

void pp_cpu_recur_item(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread)
{
    const struct pp_state_shape *shape = &s->recurrence->shape;
    const int splits = n_splits(c, s), share = shape->n_head / shape->n_key_head;
    const int split = phase ? item % splits : 0;
    struct run run = {.c = c, .s = s, .r = s->recurrence, .kv = &c->attend[s->tier].kv,
                      .key_head = phase ? item / splits : item};
    lay_out(shape, c->threads[thread].kernel, &run.room);
    for (int i = 0; i < m; i += run.n) {
        find_run(&run, i, m);
        if (phase == 0) {
            load_keys(&run);
            store_keys(&run);
        } else {
            run_heads(&run, splits == 1, split * share / splits, (split + 1) * share / splits);
        }
    }
}
