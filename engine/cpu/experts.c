/* experts.c - stages of a mixture of experts: rows are sorted by the experts that they are routed to, each expert's
 * matrices are multiplied by all its rows at once, and each row's experts' results are summed, starting with the
 * largest logit's. A row's bits depend on that row only: kernels produce the same bits for any number of rows. */
#include <string.h>
#include <sys/mman.h>

#include "engine/base/mem.h"
#include "engine/cpu/pack.h"
#include "engine/cpu/program.h"

/* As in project.c: the most that a thread takes at a time, and bytes of weights of one item at few rows. */
static const int64_t MOST_MACS = 200000000, MOST_BYTES = 16000000, ITEM_BYTES = 32768;

/* --- weights -------------------------------------------------------------------------------------------------- */

/* One kind of matrix of all experts; b: [n, n_out] or NULL; first_target: of adapters, the first one's. */
static enum pp_code add_matrices(struct pp_cpu *c, const struct pp_tensor *const *w, const struct pp_tensor *b, int n,
                                 int first_target, struct projection **out, struct pp_error *err)
{
    struct projection *p = *out = pp_calloc((size_t)n, sizeof *p);
    if (!p)
        return pp_fail_nomem(err, "the model's experts");
    for (int e = 0; e < n; e++) {
        p[e] = (struct projection){.linear = first_target + e, .out = -1,
                                   .w = {.type = w[e]->type, .n_rows = w[e]->ne[1], .n_cols = w[e]->ne[0]}};
        if (!(p[e].weight = pp_weights_add_new(c->weights, w[e])))
            return pp_fail_nomem(err, "the model's weights");
        enum pp_code code = pp_cpu_count_begin(c, w[e], e, n, &p[e], err);
        if (code)
            return code;
        struct pp_tensor bias = b ? *b : (struct pp_tensor){0};
        bias.ne[1] = 1;
        bias.data = b ? (const uint8_t *)b->data + (size_t)e * pp_type_row_bytes(b->type, b->ne[0]) : NULL;
        if (b && !(p[e].bias = pp_cpu_float_vector(c, &bias, err)))
            return err->code;
    }
    return PP_OK;
}

/* Whether the n-th name of a token is one of those before it. */
static bool names_before(const int32_t *names, int n)
{
    for (int i = 0; i < n; i++)
        if (names[i] == names[n])
            return true;
    return false;
}

/* The table of experts by token. It is small, so it is checked and copied: another program may change the mapped file
 * later. */
static enum pp_code take_table(struct pp_cpu *c, struct experts *x, const struct pp_tensor *t, struct pp_error *err)
{
    const int64_t n = t->ne[0] * t->ne[1];
    int32_t *table = pp_cpu_memory_keep(c, n, sizeof *table);
    if (!table)
        return pp_fail_nomem(err, t->name);
    memcpy(table, t->data, (size_t)n * sizeof *table);
    for (int64_t i = 0; i < n; i++)
        if (table[i] < 0 || table[i] >= x->n_matrices)
            return pp_fail(err, PP_ERR_FORMAT, "tensor %s names expert %d, which does not exist; the model is "
                                               "damaged: download it again", t->name, (int)table[i]);
        else if (names_before(table + i / t->ne[0] * t->ne[0], (int)(i % t->ne[0])))
            return pp_fail(err, PP_ERR_FORMAT, "tensor %s names expert %d twice for token %lld; the model is damaged: "
                                               "download it again", t->name, (int)table[i], (long long)(i / t->ne[0]));
    x->table = table;
    x->n_tokens = t->ne[1];
    return PP_OK;
}

enum pp_code pp_cpu_experts_add(struct pp_cpu *c, int index, struct pp_error *err)
{
    const struct pp_experts *from = &c->model->plan.experts[index];
    struct experts *x = &c->experts[index];
    x->n = from->n;
    x->share = from->share ? from->share : 1;
    x->n_matrices = pp_experts_matrices(from);
    x->idle = from->idle > 0;
    x->zero_output = from->zero_output;
    x->n_used = from->n_used;
    x->no_renorm = from->no_renorm;
    x->sigmoids = from->sigmoids;
    x->sqrt_softplus = from->sqrt_softplus;
    x->mixer_jitter = from->mixer_jitter;
    x->scale = from->scale != 0.0f ? from->scale : 1;
    x->weighted_inputs = from->weighted_inputs;
    x->n_groups = from->n_groups;
    x->n_groups_used = from->n_groups_used;
    x->groups_by_largest = from->groups_by_largest;
    x->fn = from->fn;
    x->bound = from->bound;
    x->unsummed = from->unsummed;
    x->split_input = from->split_input;
    x->applied = from->applied;
    x->n_in = (from->up ? from->up : from->down)[0]->ne[0];
    x->n_ff = from->up ? from->up[0]->ne[1] : 0;
    x->n_out = from->down[0]->ne[1];
    if (from->choice_bias && !(x->choice_bias = pp_cpu_float_vector(c, from->choice_bias, err)))
        return err->code;
    if (from->bias && !(x->bias = pp_cpu_float_vector(c, from->bias, err)))
        return err->code;
    if (from->scales && !(x->scales = pp_cpu_float_vector(c, from->scales, err)))
        return err->code;
    if (from->table && take_table(c, x, from->table, err))
        return err->code;
    const struct pp_tensor *const *const w[] = {from->gate, from->up, from->down};
    const struct pp_tensor *const b[] = {from->gate_b, from->up_b, from->down_b};
    struct projection **const to[] = {&x->gate, &x->up, &x->down};
    enum pp_code code = PP_OK;
    for (int k = 0; k < PP_EXPERT_KINDS && !code; k++)
        if (w[k])
            code = add_matrices(c, w[k], b[k], x->n_matrices,
                                pp_plan_expert_target(&c->model->plan, from, (enum pp_expert_kind)k, 0), to[k], err);
    for (int e = 0; !code && e < x->n_matrices; e++) {
        const uint32_t up_type = (x->up ? x->up : x->down)[e].w.type;
        const uint32_t gate_type = x->gate ? x->gate[e].w.type : up_type;
        const bool up = pp_pack_needed(up_type), gate = pp_pack_needed(gate_type);
        x->quantize |= gate || up;
        x->twins |= pp_type_twins(gate_type) || pp_type_twins(up_type);
        x->plain |= !gate || !up || c->imatrix;
        x->quantize_down |= x->up && pp_pack_needed(x->down[e].w.type);
        x->twins_down |= pp_type_twins(x->down[e].w.type);
    }
    return code;
}

void pp_cpu_experts_point(struct pp_cpu *c)
{
    for (int i = 0; i < c->model->plan.n_experts; i++)
        for (int k = 0; k < PP_EXPERT_KINDS; k++) {
            struct projection *p = expert_matrices(&c->experts[i], (enum pp_expert_kind)k);
            for (int e = 0; p && e < c->experts[i].n_matrices; e++)
                p[e].w.data = p[e].weight->data;
        }
}

/* --- memory ---------------------------------------------------------------------------------------------------- */

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Lays out the arrays of activations in a region (NULL: only measures). Returns its size. Whether float32 or quantised
 * ones are used depends on the weights; pages that are not touched cost nothing. */
static size_t lay_out(struct routing *r, int64_t places, int64_t n_in, int64_t n_ff, uint8_t *region)
{
    const int64_t in = round_up(n_in, 64), ff = round_up(n_ff, 64);
    const int64_t in_floats = pp_odd_lines(in, sizeof(float)), ff_floats = pp_odd_lines(ff, sizeof(float));
    const int64_t in_bytes = pp_odd_lines(in, sizeof(int8_t)), ff_bytes = pp_odd_lines(ff, sizeof(int8_t));
    size_t at = 0;
#define PLACE(type, count)                                                                                             \
    (region ? (type *)(void *)(region + at) : NULL);                                                                   \
    at += ((size_t)(count) * sizeof(type) + 63) / 64 * 64
    r->in = (struct pp_acts){.f32_stride = in_floats, .q_stride = in_bytes, .b_stride = in / PP_ACT_BLOCK};
    r->hidden = (struct pp_acts){.f32_stride = ff_floats, .q_stride = ff_bytes, .b_stride = ff / PP_ACT_BLOCK};
    r->out_stride = in_floats;
    r->in.f32 = r->out = PLACE(float, places * in_floats);
    r->in.q = PLACE(int8_t, places * in_bytes);
    r->in.d = PLACE(float, places * in / PP_ACT_BLOCK);
    r->in.sum = PLACE(int32_t, places * in / PP_ACT_BLOCK);
    r->hidden.f32 = PLACE(float, places * ff_floats);
    r->hidden.q = PLACE(int8_t, places * ff_bytes);
    r->hidden.d = PLACE(float, places * ff / PP_ACT_BLOCK);
    r->hidden.sum = PLACE(int32_t, places * ff / PP_ACT_BLOCK);
#undef PLACE
    return at;
}

bool pp_cpu_experts_new(struct pp_cpu *c)
{
    struct routing *r = &c->routing;
    int64_t n = 0, n_used = 0, n_in = 0, n_ff = 0;
    bool idle = false;
    for (int i = 0; i < c->model->plan.n_experts; i++) {
        const struct experts *x = &c->experts[i];
        n = x->n > n ? x->n : n;
        n_used = x->n_used > n_used ? x->n_used : n_used;
        n_in = x->n_in > n_in ? x->n_in : n_in;
        const int64_t second = x->up ? x->n_ff : x->n_out;
        n_ff = second > n_ff ? second : n_ff;
        idle = idle || x->idle;
    }
    if (!n)
        return true;
    const int64_t places = c->max_rows * n_used;
    r->choice = pp_cpu_memory_take(c, places, sizeof *r->choice);
    r->weight = pp_cpu_memory_take(c, places, sizeof *r->weight);
    r->place = pp_cpu_memory_take(c, places, sizeof *r->place);
    r->input_weight = pp_cpu_memory_take(c, places, sizeof *r->input_weight);
    r->row = pp_cpu_memory_take(c, places, sizeof *r->row);
    r->active = pp_cpu_memory_take(c, n, sizeof *r->active);
    r->first = pp_cpu_memory_take(c, n + 1, sizeof *r->first);
    r->count = pp_cpu_memory_take(c, n, sizeof *r->count);
    r->ready = pp_cpu_memory_take(c, n, sizeof *r->ready);
    r->lowered = pp_cpu_memory_take(c, PP_EXPERT_KINDS * n, sizeof *r->lowered);
    if (!r->choice || !r->weight || !r->place || !r->input_weight || !r->row || !r->active || !r->first ||
        !r->count || !r->ready || !r->lowered)
        return false;
    if (idle) {
        r->idle_stride = round_up(n_in, 64);
        r->idle_weight = pp_cpu_memory_take(c, c->max_rows, sizeof *r->idle_weight);
        r->idle_sum = pp_cpu_memory_take(c, c->max_rows * r->idle_stride, sizeof *r->idle_sum);
        if (!r->idle_weight || !r->idle_sum)
            return false;
    }
    r->region_bytes = lay_out(r, places, n_in, n_ff, NULL);
    void *p = mmap(NULL, r->region_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return false;
    r->region = p;
    c->memory += r->region_bytes;
    lay_out(r, places, n_in, n_ff, r->region);
    return true;
}

void pp_cpu_experts_free(struct pp_cpu *c)
{
    struct routing *r = &c->routing;
    for (int i = 0; c->experts && i < c->model->plan.n_experts; i++) {
        pp_free(c->experts[i].gate);
        pp_free(c->experts[i].up);
        pp_free(c->experts[i].down);
    }
    pp_free(c->experts);
    if (r->region)
        munmap(r->region, r->region_bytes);
    pp_free(r->choice);
    pp_free(r->weight);
    pp_free(r->place);
    pp_free(r->input_weight);
    pp_free(r->row);
    pp_free(r->lora);
    pp_free(r->idle_weight);
    pp_free(r->idle_sum);
    pp_free(r->active);
    pp_free(r->first);
    pp_free(r->count);
    pp_free(r->ready);
    pp_free(r->lowered);
}

/* --- activations ------------------------------------------------------------------------------------------------ */

static float *floats_at(const struct pp_acts *a, int place)
{
    return (float *)(uintptr_t)a->f32 + place * a->f32_stride; /* of the routing's own region */
}

static void quantize(const struct pp_cpu *c, const struct pp_acts *a, int place, const float *x, int64_t n, bool twins)
{
    c->mm->quantize(x, n, twins, (int8_t *)(uintptr_t)a->q + place * a->q_stride,
                    (float *)(uintptr_t)a->d + place * a->b_stride, (int32_t *)(uintptr_t)a->sum + place * a->b_stride);
}

static void copy_quantized(const struct pp_acts *a, int from, int to)
{
    memcpy((int8_t *)(uintptr_t)a->q + to * a->q_stride, a->q + from * a->q_stride, (size_t)a->q_stride);
    memcpy((float *)(uintptr_t)a->d + to * a->b_stride, a->d + from * a->b_stride, (size_t)a->b_stride * sizeof *a->d);
    memcpy((int32_t *)(uintptr_t)a->sum + to * a->b_stride, a->sum + from * a->b_stride,
           (size_t)a->b_stride * sizeof *a->sum);
}

/* Copies the parts of a row's input to the places of the experts that read them. */
static void prepare_parts(struct pp_cpu *c, const struct stage *s, int row)
{
    const struct experts *x = s->experts;
    struct routing *r = &c->routing;
    for (int j = 0; j < x->n_used; j++) {
        const int place = r->place[row * x->n_used + j];
        float *to = floats_at(&r->in, place);
        memcpy(to, slot_row(c, s->in, row) + j * x->n_in, (size_t)x->n_in * sizeof *to);
        if (x->quantize)
            quantize(c, &r->in, place, to, x->n_in, x->twins);
    }
}

/* Which of a row's choices has its first place; -1: none of its experts has matrices. */
static int first_place(const struct experts *x, const int32_t *place)
{
    int j = 0;
    while (j < x->n_used && place[j] < 0)
        j++;
    return j < x->n_used ? j : -1;
}

/* Whether some of a row's experts return its input. Their weighted result, `idle_sum`, is added to the other experts'
 * results; if the row has no places, it is the whole result. */
static bool adds_idle(const struct routing *r, const struct experts *x, int row, int first)
{
    return x->idle && (first < 0 || r->idle_weight[row] != 0.0f);
}

/* Prepares a row's input in the first of its places, and copies it to the others. */
static void prepare_row(struct pp_cpu *c, const struct stage *s, int row, int thread)
{
    const struct experts *x = s->experts;
    struct routing *r = &c->routing;
    struct thread_scratch *own = &c->threads[thread];
    const struct pp_batch_row *of = batch_row(c, s, row);
    const int32_t *place = r->place + row * x->n_used;
    if (x->split_input) {
        prepare_parts(c, s, row);
        return;
    }
    const int first = first_place(x, place);
    float *idle_sum = x->idle ? r->idle_sum + row * r->idle_stride : NULL;
    float *to = first < 0 ? idle_sum : floats_at(&r->in, place[first]);
    if (s->norm.weight) {
        const struct norm norm = pp_cpu_norm_of(&s->norm, of->adapters, x->n_in, own->replaced);
        pp_cpu_norm(c, &norm, slot_row(c, s->in, row), x->n_in, to);
    } else {
        memcpy(to, slot_row(c, s->in, row), (size_t)x->n_in * sizeof *to);
    }
    if (adds_idle(r, x, row, first))
        c->ops->apply(PP_FN_SCALE, r->idle_weight[row], to, x->n_in, idle_sum);
    if (first < 0)
        return;
    if (x->quantize)
        quantize(c, &r->in, place[first], to, x->n_in, x->twins);
    const bool plain = x->plain || pp_cpu_experts_row_adapted(c, s, row); /* adapters' A may be float */
    for (int j = first + 1; j < x->n_used; j++) {
        if (place[j] < 0)
            continue;
        if (plain)
            memcpy(floats_at(&r->in, place[j]), to, (size_t)x->n_in * sizeof *to);
        if (x->quantize)
            copy_quantized(&r->in, place[first], place[j]);
    }
}

/* --- products --------------------------------------------------------------------------------------------------- */

static int64_t row_bytes(const struct pp_matrix *w)
{
    return (int64_t)pp_type_row_bytes(w->type, w->n_cols);
}

/* Weight rows per item, in whole groups, in a pass with m rows. */
static int64_t item_rows(const struct pp_matrix *w, int m)
{
    int64_t n_groups = (w->n_rows + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS, groups = 2;
    if (m <= PRIVATE_ROWS)
        groups = ITEM_BYTES / (PP_GROUP_ROWS * row_bytes(w)) + 1;
    if (groups > n_groups)
        groups = n_groups;
    if (groups > MOST_MACS / (PP_GROUP_ROWS * w->n_cols * m))
        groups = 1;
    return (groups < 1 ? 1 : groups) * PP_GROUP_ROWS;
}

/* The matrix whose rows a phase's items are cut from. */
static const struct pp_matrix *matrix_of(const struct stage *s, int phase)
{
    return phase == EXPERTS_DOWN || !s->experts->up ? &s->experts->down->w : &s->experts->up->w;
}

static int blocks_of(const struct stage *s, int m, int phase)
{
    const struct pp_matrix *w = matrix_of(s, phase);
    const int64_t rows = item_rows(w, m);
    return (int)((w->n_rows + rows - 1) / rows);
}

/* Weight rows row0 .. row1 - 1 of one kind for all rows of the a-th active expert, with adapters and bias:
 * y[i * stride + r] is its i-th row's result for weight row r. */
static bool multiply(struct pp_cpu *c, const struct stage *s, enum pp_expert_kind kind, int a, int64_t row0,
                     int64_t row1, float *y, int64_t stride, void *kernel)
{
    const struct experts *x = s->experts;
    const struct routing *r = &c->routing;
    const struct projection *p = &expert_matrices(x, kind)[r->active[a]];
    const int n = r->first[a + 1] - r->first[a];
    const struct pp_acts acts = pp_acts_from(kind == PP_EXPERT_DOWN && x->up ? &r->hidden : &r->in, r->first[a]);
    if (!pp_cpu_weight_ready(c, p, row0, row1))
        return false;
    if (r->adapted)
        pp_cpu_experts_lower(c, s, kind, a, kernel);
    c->mm->by_type[p->w.type](&p->w, row0, row1, &acts, n, y, stride, kernel);
    if (r->adapted)
        pp_cpu_experts_adapt(c, s, kind, a, row0, row1, y, stride);
    for (int i = 0; p->bias && !r->adapted && i < n; i++)
        c->ops->add(y + i * stride + row0, p->bias + row0, row1 - row0);
    return true;
}

/* Accumulates the inputs of the a-th active expert's gate and up, or down, for the importance matrix. */
static void count_inputs(const struct pp_cpu *c, const struct experts *x, int a, bool down)
{
    const struct routing *r = &c->routing;
    const struct pp_acts acts = pp_acts_from(down && x->up ? &r->hidden : &r->in, r->first[a]);
    const int e = r->active[a], n = r->first[a + 1] - r->first[a];
    const struct projection *of[2];
    int n_of = 0;
    if (down)
        of[n_of++] = &x->down[e];
    else if (x->gate)
        of[n_of++] = &x->gate[e];
    if (!down)
        of[n_of++] = &x->up[e];
    pp_cpu_count(&acts, n, of, n_of);
}

/* Some weight rows of gate, if there is one, and up for the rows of the a-th active expert. */
static void gate_up(struct pp_cpu *c, const struct stage *s, int a, int64_t row0, int64_t row1, int thread)
{
    const struct experts *x = s->experts;
    const struct routing *r = &c->routing;
    const struct thread_scratch *own = &c->threads[thread];
    const int first = r->first[a], n = r->first[a + 1] - first, n_of = x->gate ? 2 : 1;
    int64_t groups = c->result_floats / (PP_GROUP_ROWS * (int64_t)n), step = (groups < 1 ? 1 : groups) * PP_GROUP_ROWS;
    if (c->imatrix && row0 == 0)
        count_inputs(c, x, a, false);
    for (int64_t at = row0; at < row1; at += step) {
        const int64_t end = at + step < row1 ? at + step : row1, stride = round_up(end - at, PP_GROUP_ROWS);
        float *results[2]; /* of weight row 0, `at` elements before the memory */
        for (int i = 0; i < n_of; i++) {
            const enum pp_expert_kind kind = x->gate && i == 0 ? PP_EXPERT_GATE : PP_EXPERT_UP;
            results[i] = (float *)((uintptr_t)own->results[i] - (size_t)at * sizeof(float));
            if (!multiply(c, s, kind, a, at, end, results[i], stride, own->kernel))
                return;
        }
        for (int i = 0; x->weighted_inputs && i < n_of * n; i++) { /* the inputs' weights, applied to the products */
            float *y = results[i % n_of] + i / n_of * stride + at;
            c->ops->apply(PP_FN_SCALE, r->input_weight[first + i / n_of], y, end - at, y);
        }
        for (int i = 0; i < n; i++) {
            float *y = floats_at(&r->hidden, first + i) + at;
            if (x->gate)
                c->ops->gate(x->fn, x->bound, results[0] + i * stride + at, results[1] + i * stride + at, end - at, y);
            else
                c->ops->apply(x->fn, 0, results[0] + i * stride + at, end - at, y);
        }
    }
}

/* Where the expert's result for a place is written: over its input, which is no longer needed. Experts of a single
 * matrix still read the input, so their results go to `hidden`, which they do not use otherwise. */
static float *result_at(const struct routing *r, const struct experts *x, int place)
{
    return x->up ? r->out + place * r->out_stride : floats_at(&r->hidden, place);
}

/* Prepares the input of a place's down matrix. */
static void prepare_place(const struct pp_cpu *c, const struct stage *s, int place, int thread)
{
    const struct experts *x = s->experts;
    const struct pp_acts *hidden = &c->routing.hidden;
    if (x->quantize_down)
        quantize(c, hidden, place, floats_at(hidden, place), x->n_ff, x->twins_down);
    if (!c->routing.scaled || !pp_cpu_experts_place_scaled(c, s, place))
        return;
    pp_cpu_experts_scale(c, s, place, c->threads[thread].kernel);
    if (x->quantize_down)
        quantize(c, hidden, place, floats_at(hidden, place), x->n_ff, x->twins_down);
}

/* The same for a single row, whose a-th active expert has the a-th place: done by the first thread that needs it. */
static void prepare_once(const struct pp_cpu *c, const struct stage *s, int a, int thread)
{
    pp_once *once = &c->routing.ready[a];
    if (pp_once_mine(once)) {
        prepare_place(c, s, a, thread);
        pp_once_done(once);
    }
    pp_once_await(once);
}

static void down(struct pp_cpu *c, const struct stage *s, int a, int64_t row0, int64_t row1, int thread)
{
    const struct experts *x = s->experts;
    const struct routing *r = &c->routing;
    if (c->imatrix && row0 == 0)
        count_inputs(c, x, a, true);
    multiply(c, s, PP_EXPERT_DOWN, a, row0, row1, result_at(r, x, r->first[a]),
             x->up ? r->out_stride : r->hidden.f32_stride, c->threads[thread].kernel);
}

/* Runs items [first, end) of EXPERTS_GATE_UP or EXPERTS_DOWN. Consecutive items of one expert are run as one, so that
 * kernels read long stretches of weights. */
static void run_blocks(struct pp_cpu *c, const struct stage *s, int m, int phase, int first, int end, int thread)
{
    const struct pp_matrix *w = matrix_of(s, phase);
    const int blocks = blocks_of(s, m, phase);
    const int64_t rows = item_rows(w, m);
    const bool once = phase == EXPERTS_DOWN && m == 1 && (s->experts->quantize_down || c->routing.scaled);
    for (int item = first; item < end;) {
        const int a = item / blocks, from = item % blocks, left = end - item;
        const int to = left < blocks - from ? from + left : blocks;
        const int64_t row1 = to * rows < w->n_rows ? to * rows : w->n_rows;
        if (once && a < c->routing.n_active)
            prepare_once(c, s, a, thread);
        if (a < c->routing.n_active) /* items were planned for the most experts that the rows could choose */
            (phase == EXPERTS_DOWN ? down : gate_up)(c, s, a, from * rows, row1, thread);
        item += to - from;
    }
}

/* Completes the sum of a row's experts for columns at .. end - 1, and writes it to the stage's slot. sum: points to
 * column `at`; first: first_place() of the row. */
static void finish_sum(const struct pp_cpu *c, const struct stage *s, int row, int first, int64_t at, int64_t end,
                       float *sum)
{
    const struct experts *x = s->experts;
    const struct routing *r = &c->routing;
    const int64_t n = end - at;
    float *out = slot_row(c, s->out, row) + at;
    if (first >= 0 && adds_idle(r, x, row, first))
        c->ops->add(sum, r->idle_sum + row * r->idle_stride + at, n);
    if (x->bias)
        c->ops->add(sum, x->bias + at, n);
    if (s->epilogue != EPILOGUE_ADD)
        memcpy(out, sum, (size_t)n * sizeof *out);
    else if (s->scale != 0.0f)
        c->ops->add_scaled(out, sum, s->scale, n);
    else
        c->ops->add(out, sum, n);
}

/* Computes columns at .. end - 1 of a row's result: the weighted sum of its experts' results in the order of its
 * choices, and last that of the experts that return their input. It is accumulated in place of the first result. */
static void sum_row(const struct pp_cpu *c, const struct stage *s, int row, int64_t at, int64_t end)
{
    const struct experts *x = s->experts;
    const struct routing *r = &c->routing;
    const int32_t *place = r->place + row * x->n_used;
    const float *weight = r->weight + row * x->n_used;
    const int64_t n = end - at;
    if (x->unsummed) {
        float *out = slot_row(c, s->out, row) + at;
        for (int j = 0; j < x->n_used; j++)
            memcpy(out + j * x->n_out, result_at(r, x, place[j]) + at, (size_t)n * sizeof *out);
        return;
    }
    for (int j = 0; x->applied && j < x->n_used; j++) {
        float *y = result_at(r, x, place[j]) + at;
        c->ops->apply(x->fn, 0, y, n, y);
    }
    const int first = first_place(x, place);
    float *sum = (first < 0 ? r->idle_sum + row * r->idle_stride : result_at(r, x, place[first])) + at;
    if (first >= 0)
        c->ops->apply(PP_FN_SCALE, weight[first], sum, n, sum);
    for (int j = first + 1; first >= 0 && j < x->n_used; j++)
        if (place[j] >= 0)
            c->ops->add_scaled(sum, result_at(r, x, place[j]) + at, weight[j], n);
    finish_sum(c, s, row, first, at, end, sum);
}

/* A single row's columns are divided among threads, since most of what they read is in another core's cache. */
enum { SUM_COLUMNS = 128 };

static void run_sum(const struct pp_cpu *c, const struct stage *s, int m, int item)
{
    const int64_t n = s->experts->n_out, at = (int64_t)item * SUM_COLUMNS, end = at + SUM_COLUMNS;
    if (m > 1)
        sum_row(c, s, item, 0, n);
    else
        sum_row(c, s, 0, at, end < n ? end : n);
}

/* --- the stage -------------------------------------------------------------------------------------------------- */

void pp_cpu_experts_phases(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES])
{
    const struct experts *x = s->experts;
    const int places = m * x->n_used, active = places < x->n_matrices ? places : x->n_matrices;
    const bool one = m == 1;
    n_items[EXPERTS_CHOOSE] = one ? 0 : m;
    n_items[EXPERTS_PLACE] = 1;
    n_items[EXPERTS_PREPARE] = one ? 0 : m;
    n_items[EXPERTS_GATE_UP] = x->up ? active * blocks_of(s, m, EXPERTS_GATE_UP) : 0;
    n_items[EXPERTS_PREPARE_DOWN] = !one && (x->quantize_down || pp_cpu_experts_scaled(c, s, m)) ? places : 0;
    n_items[EXPERTS_DOWN] = active * blocks_of(s, m, EXPERTS_DOWN);
    n_items[EXPERTS_SUM] = one ? (int)((x->n_out + SUM_COLUMNS - 1) / SUM_COLUMNS) : m;
}

int pp_cpu_experts_at_once(const struct stage *s, int m, int phase)
{
    enum { ROWS = 8 };
    if (phase != EXPERTS_GATE_UP && phase != EXPERTS_DOWN)
        return ROWS;
    const struct pp_matrix *w = matrix_of(s, phase);
    const int64_t rows = item_rows(w, m) * (phase == EXPERTS_GATE_UP && s->experts->gate ? 2 : 1);
    const int64_t by_macs = MOST_MACS / (rows * w->n_cols * m), by_bytes = MOST_BYTES / (rows * row_bytes(w));
    const int64_t n = by_macs < by_bytes ? by_macs : by_bytes;
    return n < 1 ? 1 : n > INT16_MAX ? INT16_MAX : (int)n;
}

static void place(struct pp_cpu *c, const struct stage *s, int m, int thread)
{
    struct routing *r = &c->routing;
    if (m == 1)
        pp_cpu_route_row(c, s, 0);
    pp_cpu_route_places(c, s, m);
    r->adapted = pp_cpu_experts_adapted(c, s, m);
    r->scaled = pp_cpu_experts_scaled(c, s, m);
    if (r->adapted)
        pp_cpu_experts_begin_adapt(c, s);
    if (m > 1)
        return;
    for (int a = 0; a < r->n_active; a++)
        pp_once_reset(&r->ready[a]);
    prepare_row(c, s, 0, thread);
}

static void run_item(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread)
{
    switch ((enum experts_phase)phase) {
    case EXPERTS_CHOOSE:
        pp_cpu_route_row(c, s, item);
        break;
    case EXPERTS_PLACE:
        place(c, s, m, thread);
        break;
    case EXPERTS_PREPARE:
        prepare_row(c, s, item, thread);
        break;
    case EXPERTS_PREPARE_DOWN:
        if (item < c->routing.n_places)
            prepare_place(c, s, item, thread);
        break;
    case EXPERTS_SUM:
        run_sum(c, s, m, item);
        break;
    case EXPERTS_GATE_UP:
    case EXPERTS_DOWN: /* pp_cpu_experts_items() */
        break;
    }
}

void pp_cpu_experts_items(struct pp_cpu *c, const struct stage *s, int m, int phase, int first, int end, int thread)
{
    if (phase == EXPERTS_GATE_UP || phase == EXPERTS_DOWN)
        run_blocks(c, s, m, phase, first, end, thread);
    else
        for (int i = first; i < end; i++)
            run_item(c, s, m, phase, i, thread);
}
