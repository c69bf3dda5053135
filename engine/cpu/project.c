/* project.c - projection stages: the input of each row is prepared once (normalised, quantised); then work items, each
 * some rows of a weight matrix, compute W x for all rows of the batch, add adapters and bias, and apply the
 * epilogue. */
#include <math.h>
#include <string.h>

#include "engine/cpu/pack.h"
#include "engine/cpu/profile.h"
#include "engine/cpu/program.h"
#include "engine/cpu/stream_ahead.h"

/* The most multiply-adds and bytes of weights that a thread takes at a time: 4 ms at 100 G/s, 2 ms at 8 GB/s. This
 * leaves room for 128 rows of a wide matrix times 512 rows of activations. */
static const int64_t MOST_MACS = 400000000, MOST_BYTES = 16000000;
/* Bytes of weights of one work item when there are few rows. It takes a few microseconds: short enough for threads to
 * finish a part at about the same time, and long compared with the cost of taking an item. */
static const int64_t ITEM_BYTES = 32768;

static int64_t row_bytes(const struct pp_matrix *w)
{
    return (int64_t)pp_type_row_bytes(w->type, w->n_cols);
}

/* The matrices of adapters are too small for the hardware prefetchers to detect a stream, so they are prefetched by
 * software. Not all at once: a Zen 3 drops prefetches beyond about 20 in flight, and Intel's processors stall until
 * there is room for more. (On the Zen 3, reading 34 KiB takes 2.5 us without prefetching and no less if all are
 * prefetched at once, but 1 us if 16 lines are prefetched every 33 ns.) So a thread prefetches some lines at a time,
 * between other work. For B there is no such work before W, and 64 lines at once are better than 16. */
enum { LINE = 64, SOME_LINES = 16 };

static void prefetch(struct requests *r, int n_lines)
{
    for (int i = 0; i < n_lines && r->at < r->end; i++, r->at += LINE)
        __builtin_prefetch((const void *)r->at, 0, 2);
}

static void prefetch_some(struct requests *r)
{
    prefetch(r, SOME_LINES);
}

/* Whether the input, in the form that an A of this type reads, still exists when all rows of the stage are prepared. */
static bool keeps_input(const struct stage *s, uint32_t type)
{
    return pp_pack_needed(type) || s->plain || s->norm_out >= 0 || (!s->norm.weight && !s->in_place);
}

enum which_down { DOWN_ALL, DOWN_KEPT, DOWN_PASSING };

/* Computes A x of n rows x with the same set, for every projection of the stage and every adapter; a row of out holds
 * them one after the other. Either for all A, or only for those whose input is kept, or only for the others. x: float32
 * and, if a weight of the stage reads them, quantised activations. */
static void lora_down(const struct pp_cpu *c, const struct stage *s, const struct pp_adapter_set *set,
                      const struct pp_acts *x, int n, enum which_down which, float *out, void *kernel)
{
    for (int p = 0; p < s->n_projections; p++)
        for (int k = 0; k < set->n; k++) {
            const struct pp_lora_target *t = &set->use[k].adapter->targets[s->projections[p].linear];
            if (t->rank && (which == DOWN_ALL || (which == DOWN_KEPT) == keeps_input(s, t->a.type)))
                pp_cpu_multiply_a(c, t, x, n, out, c->lora_width, kernel);
            out += pp_low_rank_room(t->rank);
        }
}

/* The part of a row of lora_down()'s result that belongs to one projection. */
static const float *down_of(const struct stage *s, int projection, const struct pp_adapter_set *set, const float *down)
{
    for (int p = 0; p < projection; p++)
        down += pp_adapter_set_room(set, s->projections[p].linear);
    return down;
}

/* Whether an IA3 of some row scales the input of this stage, which then has one projection and no norm. */
static bool scales_rows(const struct pp_cpu *c, const struct stage *s, int m)
{
    for (int i = 0; i < m; i++) {
        const struct pp_adapter_set *set = batch_row(c, s, i)->adapters;
        if (set && set->n && pp_adapter_set_scales_input(set, s->projections[0].linear))
            return true;
    }
    return false;
}

/* Where results are written: y[i * stride + r] is the result of row i for weight row r. */
struct results {
    float *y;
    int64_t stride;
};

/* --- tensors that replace the model's own (lora.h) ------------------------------------------------------------- */

/* Adapters' tensors W_k replace the model's W in proportion to their strengths: W becomes left W + the sum of
 * strength_k W_k, where left is 1 minus the sum of the strengths. */

/* The factor `left` of the model's own matrix; *n: the number of adapters that replace it. */
static float left_of_matrix(const struct pp_adapter_set *set, int linear, int *n)
{
    float left = 1.0f;
    *n = 0;
    for (int k = 0; set && k < set->n; k++)
        if (set->use[k].adapter->targets[linear].w_data) {
            left -= set->use[k].scale;
            ++*n;
        }
    return left;
}

/* A norm's weight or bias [n] for a set: mixed in `room` if adapters replace it, else the model's own. */
static const float *replaced_vector(const struct pp_adapter_set *set, int op, bool bias, const float *own, int64_t n,
                                    float *room)
{
    const float *others[PP_MAX_ADAPTERS] = {NULL};
    float left = 1.0f;
    bool any = false;
    for (int k = 0; set && k < set->n; k++) {
        const struct pp_lora_norm *norms = set->use[k].adapter->norms;
        if (norms && (others[k] = bias ? norms[op].bias : norms[op].weight)) {
            left -= set->use[k].scale;
            any = true;
        }
    }
    if (!any)
        return own;
    for (int64_t i = 0; i < n; i++)
        room[i] = left * own[i];
    for (int k = 0; k < set->n; k++)
        for (int64_t i = 0; others[k] && i < n; i++)
            room[i] += set->use[k].scale * others[k][i];
    return room;
}

struct norm pp_cpu_norm_of(const struct norm *norm, const struct pp_adapter_set *set, int64_t n, float *room)
{
    struct norm own = *norm;
    if (!set || !set->n)
        return own;
    own.weight = replaced_vector(set, norm->op, false, norm->weight, n, room);
    own.bias = replaced_vector(set, norm->op, true, norm->bias, n, room ? room + pp_cpu_padded(n) : NULL);
    return own;
}

static pp_matmul_fn *kernel_for(const struct pp_cpu *c, uint32_t type)
{
    return pp_cpu_splits(c, type) ? c->bf16->matmul : c->mm->by_type[type];
}

/* y = W_k x for a matrix that replaces the model's own. If the stage has only split activations and W_k is F32, their
 * bfloat16 parts are added up again. */
static void multiply_replaced(const struct pp_cpu *c, const struct stage *s, const struct pp_matrix *w, int64_t row0,
                              int64_t row1, const struct pp_acts *acts, int m, float *y, int64_t stride,
                              const struct thread_scratch *own)
{
    const bool joins = s->split && !s->plain && w->type == PP_TYPE_F32;
    for (int i = 0, n = m; i < m; i += n) {
        struct pp_acts x = pp_acts_from(acts, i);
        n = joins && m - i > PRIVATE_ROWS ? PRIVATE_ROWS : m - i;
        for (int k = 0; joins && k < n; k++)
            c->bf16->join(x.bf16 + k * x.bf16_stride, w->n_cols, x.bf16_parts, own->joined + k * c->acts_width);
        if (joins) {
            x.f32 = own->joined;
            x.f32_stride = c->acts_width;
        }
        kernel_for(c, w->type)(w, row0, row1, &x, n, y + i * stride, stride, own->kernel);
    }
}

/* y = left y + the sum of strength_k (W_k x) for n rows with the same set. `to` is where the results of weight row 0
 * would be. */
static void add_replaced(const struct pp_cpu *c, const struct stage *s, const struct projection *p,
                         const struct pp_adapter_set *set, const struct pp_acts *acts, int n, int64_t row0,
                         int64_t row1, float left, struct results to, const struct thread_scratch *own)
{
    const int64_t groups = c->replaced_floats / (PP_GROUP_ROWS * (int64_t)n), step = groups * PP_GROUP_ROWS;
    for (int i = 0; i < n; i++)
        for (int64_t r = row0; r < row1; r++)
            to.y[i * to.stride + r] = left == 0.0f ? 0.0f : left * to.y[i * to.stride + r];
    for (int k = 0; k < set->n; k++) {
        const struct pp_matrix *w = &set->use[k].adapter->targets[p->linear].w;
        for (int64_t r = row0; w->data && r < row1; r += step) {
            const int64_t end = row1 - r < step ? row1 : r + step;
            float *room = (float *)((uintptr_t)own->replaced - (size_t)r * sizeof(float)); /* of weight row 0 */
            multiply_replaced(c, s, w, r, end, acts, n, room, step, own);
            for (int i = 0; i < n; i++)
                c->ops->add_scaled(to.y + i * to.stride + r, own->replaced + i * step, set->use[k].scale, end - r);
        }
    }
}

/* The one matrix that replaces W entirely for rows with this set, or NULL. */
static const struct pp_matrix *whole_replacement(const struct pp_adapter_set *set, int linear)
{
    int n;
    if (left_of_matrix(set, linear, &n) != 0.0f || n != 1)
        return NULL;
    for (int k = 0;; k++)
        if (set->use[k].adapter->targets[linear].w_data)
            return &set->use[k].adapter->targets[linear].w;
}

/* W x for all m rows, where sets may replace W. */
static void multiply_all(const struct pp_cpu *c, const struct stage *s, const struct projection *p,
                         const struct pp_acts *acts, int m, int64_t row0, int64_t row1, struct results to,
                         const struct thread_scratch *own)
{
    int plain = 0; /* pending rows before `first`, which use the model's own W */
    for (int first = 0, n; first <= m; first += n) {
        const struct pp_adapter_set *set = first < m ? batch_row(c, s, first)->adapters : NULL;
        const struct pp_matrix *w = first < m ? whole_replacement(set, p->linear) : NULL;
        n = first < m ? pp_cpu_rows_alike(c, s, first, m) : 1;
        if (first < m && !w) {
            plain += n;
            continue;
        }
        if (plain) {
            const struct pp_acts x = pp_acts_from(acts, first - plain);
            kernel_for(c, p->w.type)(&p->w, row0, row1, &x, plain, to.y + (first - plain) * to.stride, to.stride,
                                     own->kernel);
        }
        plain = 0;
        if (w) {
            const struct pp_acts x = pp_acts_from(acts, first);
            multiply_replaced(c, s, w, row0, row1, &x, n, to.y + first * to.stride, to.stride, own);
        }
    }
    for (int first = 0, n; first < m; first += n) {
        const struct pp_adapter_set *set = batch_row(c, s, first)->adapters;
        int n_replaced;
        const float left = left_of_matrix(set, p->linear, &n_replaced);
        n = pp_cpu_rows_alike(c, s, first, m);
        if (!n_replaced || whole_replacement(set, p->linear))
            continue;
        const struct pp_acts x = pp_acts_from(acts, first);
        add_replaced(c, s, p, set, &x, n, row0, row1, left,
                     (struct results){to.y + first * to.stride, to.stride}, own);
    }
}

/* Where the normalised input of a row is written: to its slot if later stages read it; else to its row of `to` if a
 * kernel reads it as float32; else to the calling thread's scratch, from which it is quantised. */
static float *normalised_row(const struct pp_cpu *c, const struct stage *s, int row, const struct thread_scratch *to,
                             const struct thread_scratch *own)
{
    if (s->norm_out >= 0)
        return slot_row(c, s->norm_out, row);
    return to == own || s->plain ? to->f32 + row * c->normalised_stride : own->f32;
}

/* Whether the stage's input is quantised or split in place, when rows are prepared by all threads together. */
static bool converts_in_place(const struct pp_cpu *c, const struct stage *s, const struct thread_scratch *to)
{
    return s->in_place && to == &c->shared;
}

/* Quantises a row of n values: in pieces as long as there is something to prefetch, some lines after each piece. */
static void quantize_row(const struct pp_cpu *c, const float *x, int64_t n, bool twins, const struct pp_acts *to,
                         struct requests *soon)
{
    enum { PIECE = 8 * PP_ACT_BLOCK }; /* 60 ns on a Zen 3; an even number of blocks */
    for (int64_t at = 0, length; at < n; at += length) {
        prefetch_some(soon);
        length = soon->at < soon->end && n - at > PIECE ? PIECE : n - at;
        c->mm->quantize(x + at, length, twins, (int8_t *)(uintptr_t)to->q + at,
                        (float *)(uintptr_t)to->d + at / PP_ACT_BLOCK,
                        (int32_t *)(uintptr_t)to->sum + at / PP_ACT_BLOCK);
    }
}

/* Converts a row's activations to the forms that the stage's kernels read. bf16: where the bfloat16 parts are written,
 * or NULL. */
static void convert_row(const struct pp_cpu *c, const struct stage *s, const float *x, uint16_t *bf16,
                        const struct pp_acts *to, struct requests *soon)
{
    int64_t n = s->projections[0].w.n_cols;
    if (bf16)
        c->bf16->split(x, n, c->bf16_parts, bf16);
    if (s->quantize)
        quantize_row(c, x, n, s->twins, to, soon);
}

/* Prepares the input of one row in the same row of scratch `to`: norm, A x, quantised. */
static void prepare_row(const struct pp_cpu *c, const struct stage *s, int row, const struct thread_scratch *to,
                        struct thread_scratch *own)
{
    struct requests *const soon = &own->soon;
    int64_t n = s->projections[0].w.n_cols, b = row * (c->acts_width / PP_ACT_BLOCK);
    bool in_place = converts_in_place(c, s, to);
    float *x = slot_row(c, s->in, row);
    const struct pp_adapter_set *set = batch_row(c, s, row)->adapters;
    const int linear = s->projections[0].linear;
    const bool adapted = set && set->n, scales = adapted && pp_adapter_set_scales_input(set, linear);
    const bool down = adapted && (to != own || own->is_scaled); /* else the threads share A x */
    if (s->norm.weight) {
        float *normalised = normalised_row(c, s, row, to, own);
        prefetch_some(soon);
        const struct norm norm = pp_cpu_norm_of(&s->norm, set, n, own->replaced);
        pp_cpu_norm(c, &norm, x, n, normalised);
        x = normalised;
    }
    uint16_t *bf16 = NULL;
    if (s->split && !in_place) /* else at the end: until then the float32 row is read */
        bf16 = to->bf16 + row * (to == own ? c->bf16_stride : c->shared_bf16_stride);
    struct pp_acts acts = {.f32 = x};
    if (s->quantize) { /* else there may be no such memory */
        acts.q = in_place ? own->q : to->q + row * (to == own ? c->acts_width : c->shared_stride);
        acts.d = to->d + b;
        acts.sum = to->sum + b;
    }
    if (!scales || pp_adapter_set_room(set, linear)) {
        convert_row(c, s, x, bf16, &acts, soon);
        if (down) /* multiply_down() does the rest, but not for rows that are scaled */
            lora_down(c, s, set, &acts, 1, to == own || scales ? DOWN_ALL : DOWN_PASSING,
                      to->lora + row * c->lora_width, own->kernel);
    }
    if (to->is_scaled || scales) { /* scaled in a copy if rows are prepared privately: other threads read the slot */
        float *scaled = to == own ? own->scaled + row * c->acts_width : x;
        if (scaled != x)
            memcpy(scaled, x, (size_t)n * sizeof *x);
        pp_cpu_scale_input(set, linear, n, scaled);
        if (scales)
            convert_row(c, s, scaled, bf16, &acts, soon);
    }
    if (in_place && s->split)
        c->bf16->split(x, n, c->bf16_parts, (uint16_t *)(void *)x); /* takes half of the row's bytes, or all */
    else if (in_place)
        memcpy(x, own->q, ((size_t)n + 31) / 32 * 32); /* a quarter */
}

static struct pp_acts acts_of(const struct pp_cpu *c, const struct stage *s, const struct thread_scratch *from)
{
    bool in_place = converts_in_place(c, s, from);
    struct pp_acts a = {
        .f32 = s->norm.weight ? from->f32 : c->slots[s->in],
        .f32_stride = s->norm.weight ? c->normalised_stride : c->strides[s->in],
        .q = in_place ? (const int8_t *)c->slots[s->in] : from->q,
        .q_stride = in_place             ? c->strides[s->in] * (int64_t)sizeof(float)
                    : from == &c->shared ? c->shared_stride
                                         : c->acts_width,
        .d = from->d,
        .sum = from->sum,
        .b_stride = c->acts_width / PP_ACT_BLOCK,
        .bf16 = in_place ? (const uint16_t *)c->slots[s->in] : from->bf16,
        .bf16_stride = in_place             ? c->strides[s->in] * 2
                       : from == &c->shared ? c->shared_bf16_stride
                                            : c->bf16_stride,
        .bf16_parts = c->bf16_parts,
        .way = pp_cpu_way(c),
        .scratch_bytes = c->kernel_bytes,
    };
    if (from->is_scaled) {
        a.f32 = from->scaled;
        a.f32_stride = c->acts_width;
    }
    if (s->norm_out >= 0) {
        a.f32 = c->slots[s->norm_out];
        a.f32_stride = c->strides[s->norm_out];
    }
    return a;
}

/* A x of the prepared rows first .. end - 1, for all consecutive rows of a set at once, so that A is read once. */
static void multiply_down(const struct pp_cpu *c, const struct stage *s, int first, int end,
                          const struct thread_scratch *own)
{
    const struct pp_acts acts = acts_of(c, s, &c->shared);
    for (int n; first < end; first += n) {
        const struct pp_adapter_set *set = batch_row(c, s, first)->adapters;
        const struct pp_acts x = pp_acts_from(&acts, first);
        n = pp_cpu_rows_alike(c, s, first, end);
        if (set && set->n && !pp_adapter_set_scales_input(set, s->projections[0].linear))
            lora_down(c, s, set, &x, n, DOWN_KEPT, c->shared.lora + first * c->lora_width, own->kernel);
    }
}

/* --- A x, shared ---------------------------------------------------------------------------------------------- */

/* If there are few rows, every thread prepares the whole input for itself. But each product A x with an adapter's A is
 * computed by one thread only, since it takes as long as reading A. The threads go on to W x without a barrier, and
 * wait for A x only where they need it for B. */

/* One product A x, of consecutive rows with the same set. */
struct down_unit {
    int first, n;               /* rows */
    const struct pp_lora_target *target;
    int64_t at;                 /* of the result in a row of `lora` */
};

/* Sets *u to the unit of this number and returns the number; or, if there is none, returns how many units there are. */
static int find_unit(const struct pp_cpu *c, const struct stage *s, int m, int number, struct down_unit *u)
{
    int before = 0;
    for (u->first = 0; u->first < m; u->first += u->n) {
        const struct pp_adapter_set *set = batch_row(c, s, u->first)->adapters;
        u->n = pp_cpu_rows_alike(c, s, u->first, m);
        u->at = 0;
        for (int p = 0; set && p < s->n_projections; p++)
            for (int k = 0; k < set->n; k++, u->at += pp_low_rank_room(u->target->rank)) {
                u->target = &set->use[k].adapter->targets[s->projections[p].linear];
                if (u->target->rank && before++ == number)
                    return number;
            }
    }
    return before;
}

static void run_unit(const struct pp_cpu *c, const struct pp_acts *acts, const struct down_unit *u, float *lora,
                     const struct thread_scratch *own)
{
    const struct pp_acts x = pp_acts_from(acts, u->first);
    pp_cpu_multiply_a(c, u->target, &x, u->n, lora + u->first * c->lora_width + u->at, c->lora_width, own->kernel);
}

/* Takes the next product of the stage; n_down: there are none left. */
static int take_unit(const struct pp_cpu *c, const struct stage *s, const struct thread_scratch *own)
{
    const int unit = atomic_fetch_add_explicit(&c->down[s - c->stages].next_unit, 1, memory_order_relaxed);
    return unit < own->n_down ? unit : own->n_down;
}

/* Takes a thread's first product; its A is prefetched while the input is prepared. */
static int begin_down(const struct pp_cpu *c, const struct stage *s, int m, struct thread_scratch *own)
{
    struct down_unit u;
    own->n_down = own->is_scaled ? 0 : find_unit(c, s, m, -1, &u);
    own->down = own->n_down ? NULL : own->lora; /* if their inputs are scaled, each thread makes its own */
    const int unit = own->n_down ? take_unit(c, s, own) : 0;
    if (unit < own->n_down && find_unit(c, s, m, unit, &u) == unit)
        own->soon = (struct requests){(uintptr_t)u.target->a_data, (uintptr_t)u.target->a_data + u.target->a_bytes};
    prefetch_some(&own->soon);
    return unit;
}

/* Computes this product, and then others until none is left. */
static void share_down(const struct pp_cpu *c, const struct stage *s, int m, int unit, const struct thread_scratch *own)
{
    const struct pp_acts acts = acts_of(c, s, own);
    struct down_unit u;
    for (; unit < own->n_down; unit = take_unit(c, s, own)) {
        find_unit(c, s, m, unit, &u);
        run_unit(c, &acts, &u, c->shared.lora, own);
        atomic_fetch_add_explicit(&c->down[s - c->stages].done, 1, memory_order_release);
    }
}

/* The stage's products A x if all of them are done, or NULL. */
static const float *down_if_made(const struct pp_cpu *c, const struct stage *s, struct thread_scratch *own)
{
    if (!own->down && atomic_load_explicit(&c->down[s - c->stages].done, memory_order_acquire) == own->n_down)
        own->down = c->shared.lora;
    return own->down;
}

/* All of the stage's products A x. Waits for the other threads, but not for long: if one of them has been preempted,
 * the calling thread computes the products by itself. */
static const float *all_down(const struct pp_cpu *c, const struct stage *s, int m, const struct pp_acts *acts,
                             struct thread_scratch *own)
{
    enum { PATIENCE = 2000 }; /* spins */
    struct down_unit u;
    for (int i = 0; i < PATIENCE && !down_if_made(c, s, own); i++)
        pp_pool_relax();
    for (int i = 0; i < own->n_down && !own->down; i++) {
        find_unit(c, s, m, i, &u);
        run_unit(c, acts, &u, own->lora, own);
    }
    if (!own->down)
        own->down = own->lora;
    return own->down;
}

void pp_cpu_project_reset(struct pp_cpu *c)
{
    for (int i = 0; i < c->n_stages; i++) {
        atomic_store_explicit(&c->down[i].next_unit, 0, memory_order_relaxed);
        atomic_store_explicit(&c->down[i].done, 0, memory_order_relaxed);
    }
}

/* Prefetches the beginning of adapters' B for rows row0 .. row1 - 1 of one projection; add_low_rank does the rest. */
static void prefetch_up(const struct pp_cpu *c, const struct stage *s, int projection, int m, int64_t row0,
                        int64_t row1)
{
    const size_t n_blocks = (size_t)((row1 - row0 + PP_LOW_RANK_ROWS - 1) / PP_LOW_RANK_ROWS);
    const int n_lines = (int)(pp_low_rank_ahead() / LINE);
    for (int first = 0; first < m; first += pp_cpu_rows_alike(c, s, first, m)) {
        const struct pp_adapter_set *set = batch_row(c, s, first)->adapters;
        for (int k = 0; set && k < set->n; k++) {
            const struct pp_low_rank *b = &set->use[k].adapter->targets[s->projections[projection].linear].b;
            const size_t block = pp_low_rank_block_bytes(b->type, b->rank);
            const uintptr_t begin = (uintptr_t)b->data + (size_t)(row0 / PP_LOW_RANK_ROWS) * block;
            if (b->rank)
                prefetch(&(struct requests){begin, begin + n_blocks * block}, n_lines);
        }
    }
}

/* --- products ------------------------------------------------------------------------------------------------- */

static struct results results_of(const struct pp_cpu *c, const struct stage *s, int projection, int64_t row0,
                                 int64_t row1, const struct thread_scratch *own)
{
    int slot = s->projections[projection].out;
    if (s->epilogue) /* y is that of weight row 0, `row0` elements before the memory */
        return (struct results){(float *)((uintptr_t)own->results[projection] - (size_t)row0 * sizeof(float)),
                                (row1 - row0 + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS * PP_GROUP_ROWS};
    return (struct results){c->slots[slot], c->strides[slot]};
}

/* Adds adapters and bias to W x, weight rows row0 .. row1 - 1 of one projection, for all m rows. all: A x of all rows,
 * as lora_down writes it. */
static void adapt_rows(const struct pp_cpu *c, const struct stage *s, int projection, const float *all, int m,
                       int64_t row0, int64_t row1, struct results to)
{
    const struct projection *p = &s->projections[projection];
    for (int first = 0, n; first < m; first += n) {
        const struct pp_adapter_set *set = batch_row(c, s, first)->adapters;
        n = pp_cpu_rows_alike(c, s, first, m);
        struct pp_low_rank_rows rows = {
            .n = n,
            .y = to.y + first * to.stride,
            .down = c->lora_width ? all + first * c->lora_width : NULL, /* not allocated before an adapter is on */
            .y_stride = to.stride,
            .down_stride = c->lora_width,
        };
        if (rows.down && set && set->n)
            rows.down = down_of(s, projection, set, rows.down);
        pp_cpu_adapt(c, p, set, rows, row0, row1);
    }
}

/* Computes the complete results of some weight rows: W x, adapters and bias. The beginning of B is prefetched while W
 * is read, and threads wait for A x only when W x is done. */
static void project_rows(struct pp_cpu *c, const struct stage *s, int projection, const struct pp_acts *acts,
                         const struct thread_scratch *prepared, struct thread_scratch *own, int m, int64_t row0,
                         int64_t row1, struct results to)
{
    const struct projection *p = &s->projections[projection];
    const bool shares = prepared == own && own->n_down;
    if (!pp_cpu_weight_ready(c, p, row0, row1))
        return;
    if (shares)
        prefetch_up(c, s, projection, m, row0, row1);
    multiply_all(c, s, p, acts, m, row0, row1, to, own);
    adapt_rows(c, s, projection, shares ? all_down(c, s, m, acts, own) : prepared->lora, m, row0, row1, to);
}

/* Whether the stage's input, of m rows, is also arranged lane by lane (matmul.h). An item of its preparation is then a
 * tile of rows. */
static bool arranges(const struct pp_cpu *c, const struct stage *s, int m)
{
    return s->by_lane && m >= c->mm->by_lane.from &&
           pp_by_lane_floats(c->mm->by_lane.rows, m, s->projections[0].w.n_cols) <= c->by_lane_floats;
}

/* Weight rows per work item, in whole groups. Items are small, because a thread may take several at once. With many
 * activation rows an item has at least two groups, because kernels are faster with an even number, or a whole panel. */
static int64_t item_rows(const struct pp_cpu *c, const struct stage *s, const struct pp_matrix *w, int m)
{
    int64_t n_groups = (w->n_rows + PP_GROUP_ROWS - 1) / PP_GROUP_ROWS, groups = 2;
    if (m <= PRIVATE_ROWS) {
        int64_t most = n_groups / (4 * pp_pool_n(c->pool));
        groups = ITEM_BYTES / (PP_GROUP_ROWS * row_bytes(w)) + 1;
        if (groups > most)
            groups = most;
    }
    if (groups > MOST_MACS / (PP_GROUP_ROWS * w->n_cols * m))
        groups = 1;
    if (arranges(c, s, m) && c->mm->by_lane.panel_rows > groups * PP_GROUP_ROWS)
        return c->mm->by_lane.panel_rows;
    return (groups < 1 ? 1 : groups) * PP_GROUP_ROWS;
}

/* The work items of a stage's projections, one projection after the other. With EPILOGUE_GATE an item covers the same
 * rows of both. */
struct item_map {
    int n_walked;                /* projections that have items of their own */
    int64_t rows[MAX_GROUPED];   /* per item */
    int first[MAX_GROUPED + 1];  /* first item of each projection; the last is the number of items */
};

static struct item_map map_items(const struct pp_cpu *c, const struct stage *s, int m)
{
    struct item_map map = {.n_walked = s->epilogue == EPILOGUE_GATE ? 1 : s->n_projections};
    for (int p = 0; p < map.n_walked; p++) {
        int64_t n_rows = s->projections[p].w.n_rows;
        map.rows[p] = item_rows(c, s, &s->projections[p].w, m);
        map.first[p + 1] = map.first[p] + (int)((n_rows + map.rows[p] - 1) / map.rows[p]);
    }
    return map;
}

/* How many rows of the input are prepared as one item. */
static int rows_together(const struct pp_cpu *c, const struct stage *s, int m)
{
    return arranges(c, s, m) ? c->mm->by_lane.rows : 1;
}

int pp_cpu_project_at_once(const struct pp_cpu *c, const struct stage *s, int m, int phase)
{
    enum { PREPARED_ROWS = 32 };
    const bool both = s->epilogue == EPILOGUE_GATE;
    int64_t macs = 1, bytes = 1;
    if (phase == 0)
        return PREPARED_ROWS / rows_together(c, s, m);
    for (int p = 0; p < s->n_projections; p++) { /* the largest item's; with a gate it has rows of both */
        const struct pp_matrix *w = &s->projections[p].w;
        int64_t rows = item_rows(c, s, w, m);
        macs = rows * w->n_cols * m + (both || rows * w->n_cols * m < macs ? macs : 0);
        bytes = rows * row_bytes(w) + (both || rows * row_bytes(w) < bytes ? bytes : 0);
    }
    int64_t n = MOST_MACS / macs < MOST_BYTES / bytes ? MOST_MACS / macs : MOST_BYTES / bytes;
    return n < 1 ? 1 : n > INT16_MAX ? INT16_MAX : (int)n;
}

/* With few rows every thread prepares the input for itself when it takes its first item of the stage; otherwise phase 0
 * has prepared it. */
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
        uint64_t begin = pp_cpu_profile_begin(c);
        own->is_scaled = scales_rows(c, s, m);
        const int unit = begin_down(c, s, m, own);
        for (int i = 0; i < m; i++)
            prepare_row(c, s, i, own, own);
        own->soon = (struct requests){0, 0};
        share_down(c, s, m, unit, own);
        pp_cpu_profile_prepared(c, thread, begin);
        own->prepared_pass = c->pass;
        own->prepared_stage = s;
    }
    return own;
}

static void count_inputs(const struct stage *s, const struct pp_acts *acts, int m)
{
    const struct projection *all[MAX_GROUPED];
    for (int p = 0; p < s->n_projections; p++)
        all[p] = &s->projections[p];
    pp_cpu_count(acts, m, all, s->n_projections);
}

/* Computes weight rows row0 .. row1 - 1 of one projection (with EPILOGUE_GATE: of both), and applies the epilogue. */
static void multiply_rows(struct pp_cpu *c, const struct stage *s, int m, int p, int64_t row0, int64_t row1,
                          const struct thread_scratch *prepared, int thread)
{
    struct thread_scratch *own = &c->threads[thread];
    struct pp_acts acts = acts_of(c, s, prepared);
    const struct results to = results_of(c, s, p, row0, row1, own);
    struct pp_arranged arranged;
    if (arranges(c, s, m)) { /* else there may be no such memory */
        arranged = (struct pp_arranged){c->by_lane, m, c->by_lane_panels + thread * c->panel_numbers};
        acts.by_lane = &arranged;
    }
    if (c->imatrix && p == 0 && row0 == 0)
        count_inputs(s, &acts, m);
    project_rows(c, s, p, &acts, prepared, own, m, row0, row1, to);
    if (s->epilogue == EPILOGUE_GATE) {
        const struct results up = results_of(c, s, 1, row0, row1, own);
        project_rows(c, s, 1, &acts, prepared, own, m, row0, row1, up);
        for (int i = 0; i < m; i++)
            c->ops->gate(s->fn, s->scale, to.y + i * to.stride + row0, up.y + i * up.stride + row0, row1 - row0,
                         slot_row(c, s->out, i) + row0);
        return;
    }
    for (int i = 0; s->epilogue && i < m; i++) {
        const float *y = to.y + i * to.stride + row0;
        float *out = slot_row(c, s->out, i) + row0;
        if (s->epilogue == EPILOGUE_APPLY && s->fn == PP_FN_XIELU)
            c->ops->xielu(&s->xielu, y, row1 - row0, out);
        else if (s->epilogue == EPILOGUE_APPLY)
            c->ops->apply(s->fn, s->scale, y, row1 - row0, out);
        else if (s->scale != 0.0f)
            c->ops->add_scaled(out, y, s->scale, row1 - row0);
        else
            c->ops->add(out, y, row1 - row0);
    }
}

/* How many weight rows are computed at once: results for an epilogue must fit in result_floats. */
static int64_t rows_at_once(const struct pp_cpu *c, const struct stage *s, int m, int64_t n_rows)
{
    if (!s->epilogue)
        return n_rows;
    int64_t groups = c->result_floats / (PP_GROUP_ROWS * (int64_t)m);
    return (groups < 1 ? 1 : groups) * PP_GROUP_ROWS;
}

static void multiply_items(struct pp_cpu *c, const struct stage *s, int m, int first, int end, int thread)
{
    const struct thread_scratch *prepared = prepared_input(c, s, m, thread);
    const struct item_map map = map_items(c, s, m);
    for (int p = 0; p < map.n_walked; p++) {
        int from = (first > map.first[p] ? first : map.first[p]) - map.first[p];
        int to = (end < map.first[p + 1] ? end : map.first[p + 1]) - map.first[p];
        int64_t n_rows = s->projections[p].w.n_rows, row1 = to * map.rows[p] < n_rows ? to * map.rows[p] : n_rows;
        int64_t step = rows_at_once(c, s, m, n_rows);
        for (int64_t row0 = from * map.rows[p]; row0 < row1; row0 += step)
            multiply_rows(c, s, m, p, row0, row0 + step < row1 ? row0 + step : row1, prepared, thread);
    }
}

/* --- logits of some tokens only -------------------------------------------------------------------------------- */

_Static_assert(PP_TOKEN_GROUP % PP_GROUP_ROWS == 0, "kernels take whole groups of rows");

/* Whether the stage computes the logits, and only those listed in batch->only are needed. */
static bool is_listed(const struct pp_cpu *c, const struct stage *s)
{
    const int out = s->epilogue ? s->out : s->projections[0].out;
    return c->batch->only && s->selected && s->n_projections == 1 && out == c->logits_slot;
}

static int groups_per_item(const struct pp_cpu *c, const struct stage *s, int m)
{
    const int64_t rows = item_rows(c, s, &s->projections[0].w, m);
    return rows > PP_TOKEN_GROUP ? (int)(rows / PP_TOKEN_GROUP) : 1;
}

static int listed_items(const struct pp_cpu *c, const struct stage *s, int m)
{
    const int per = groups_per_item(c, s, m);
    return (c->batch->only->n + per - 1) / per;
}

/* Sets logits row0 .. row1 - 1 of m rows to -INFINITY. */
static void silence(const struct pp_cpu *c, int m, int64_t row0, int64_t row1)
{
    for (int i = 0; i < m; i++)
        for (int64_t r = row0; r < row1; r++)
            slot_row(c, c->logits_slot, i)[r] = -INFINITY;
}

/* Computes items of the list of needed groups of logits. Each item also sets the logits before each of its groups to
 * -INFINITY, and the last item those after the last group. */
static void multiply_listed(struct pp_cpu *c, const struct stage *s, int m, int first, int end, int thread)
{
    const struct thread_scratch *prepared = prepared_input(c, s, m, thread);
    const struct pp_token_groups *only = c->batch->only;
    const int per = groups_per_item(c, s, m), stop = end * per < only->n ? end * per : only->n;
    const int64_t n_rows = s->projections[0].w.n_rows, step = rows_at_once(c, s, m, n_rows);
    for (int i = first * per, next; i < stop; i = next) {
        for (next = i + 1; next < stop && only->groups[next] == only->groups[next - 1] + 1;)
            next++;
        int64_t row0 = (int64_t)only->groups[i] * PP_TOKEN_GROUP;
        int64_t row1 = ((int64_t)only->groups[next - 1] + 1) * PP_TOKEN_GROUP;
        row1 = row1 < n_rows ? row1 : n_rows;
        silence(c, m, i ? ((int64_t)only->groups[i - 1] + 1) * PP_TOKEN_GROUP : 0, row0);
        for (; row0 < row1; row0 += step)
            multiply_rows(c, s, m, 0, row0, row0 + step < row1 ? row0 + step : row1, prepared, thread);
        if (next == only->n)
            silence(c, m, row1, n_rows);
    }
}

void pp_cpu_project_silence(const struct pp_cpu *c)
{
    const struct pp_token_groups *only = c->batch->only;
    const int64_t n = c->model->plan.slots[c->logits_slot].width;
    for (int i = 0; i <= only->n; i++)
        silence(c, c->batch->n_outputs, i ? ((int64_t)only->groups[i - 1] + 1) * PP_TOKEN_GROUP : 0,
                i < only->n ? (int64_t)only->groups[i] * PP_TOKEN_GROUP : n);
}

/* --- the stage ------------------------------------------------------------------------------------------------- */

void pp_cpu_project_phases(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES])
{
    const struct item_map map = map_items(c, s, m);
    const int together = rows_together(c, s, m);
    n_items[0] = prepares_privately(s, m) ? 0 : (m + together - 1) / together;
    n_items[1] = is_listed(c, s) ? listed_items(c, s, m) : map.first[map.n_walked];
}

/* Arranges some tiles of the input, whose rows are already prepared, lane by lane. */
static void arrange_rows(const struct pp_cpu *c, const struct stage *s, int m, int first, int end)
{
    const struct pp_by_lane *lanes = &c->mm->by_lane;
    const struct pp_acts x = acts_of(c, s, &c->shared);
    const int n_tiles = (m + lanes->rows - 1) / lanes->rows;
    for (int tile = first; tile < end; tile++) {
        const int row = tile * lanes->rows, n = m - row < lanes->rows ? m - row : lanes->rows;
        lanes->arrange(x.f32 + row * x.f32_stride, x.f32_stride, n, s->projections[0].w.n_cols, tile, n_tiles,
                       c->by_lane);
    }
}

void pp_cpu_project_items(struct pp_cpu *c, const struct stage *s, int m, int phase, int first, int end, int thread)
{
    if (phase == 1 && is_listed(c, s)) {
        multiply_listed(c, s, m, first, end, thread);
        return;
    }
    if (phase == 1) {
        multiply_items(c, s, m, first, end, thread);
        return;
    }
    const int together = rows_together(c, s, m), stop = end * together < m ? end * together : m;
    for (int row = first * together; row < stop; row++)
        prepare_row(c, s, row, &c->shared, &c->threads[thread]);
    multiply_down(c, s, first * together, stop, &c->threads[thread]);
    if (arranges(c, s, m))
        arrange_rows(c, s, m, first, end);
}

static const void *weight_row(const struct pp_matrix *w, int64_t row)
{
    return pp_pack_needed(w->type) ? pp_pack_group(w, row) : (const uint8_t *)w->data + (size_t)(row * row_bytes(w));
}

/* The address at which an item begins to read weights, when there are few rows. */
static const void *item_begin(const struct stage *s, const struct item_map *map, int item)
{
    int p = 0;
    while (p + 1 < map->n_walked && item >= map->first[p + 1])
        p++;
    return weight_row(&s->projections[p].w, (item - map->first[p]) * map->rows[p]);
}

const void **pp_cpu_project_begins_at(struct pp_cpu *c, const struct stage *s, int m)
{
    if (!is_listed(c, s))
        return s->begins;
    const int n_items = listed_items(c, s, m), per = groups_per_item(c, s, m);
    for (int t = 0; t < pp_pool_n(c->pool); t++) {
        const int at = pp_pool_begin(c->pool, n_items, t) * per, last = c->batch->only->n - 1;
        const int64_t row = (int64_t)c->batch->only->groups[at < last ? at : last] * PP_TOKEN_GROUP;
        c->listed_begins[t] = weight_row(&s->projections[0].w, row);
    }
    return c->listed_begins;
}

bool pp_cpu_project_begins(struct pp_cpu *c)
{
    const int n = pp_pool_n(c->pool);
    if (!(c->down = pp_cpu_memory_take(c, c->n_stages, sizeof *c->down)) ||
        !(c->listed_begins = pp_cpu_memory_take(c, n, sizeof *c->listed_begins)))
        return false;
    for (int i = 0; i < c->n_stages; i++) {
        struct stage *s = &c->stages[i];
        if (s->kind != STAGE_PROJECT)
            continue;
        if (!(s->begins = pp_cpu_memory_take(c, n, sizeof *s->begins)))
            return false;
        const struct item_map map = map_items(c, s, 1);
        for (int t = 0; t < n; t++)
            s->begins[t] = item_begin(s, &map, pp_pool_begin(c->pool, map.first[map.n_walked], t));
    }
    return true;
}

/* The items of a pass with one row decide which thread reads which weights; in other passes items are distributed over
 * the threads in the same proportion. */
void pp_cpu_place_weights(struct pp_cpu *c)
{
    for (int i = 0; i < c->n_stages && pp_pool_n_nodes(c->pool) > 1; i++) {
        const struct stage *s = &c->stages[i];
        if (s->kind != STAGE_PROJECT)
            continue;
        const struct item_map map = map_items(c, s, 1);
        for (int p = 0; p < s->n_projections; p++) {
            const struct pp_matrix *w = &s->projections[p].w;
            size_t bytes = pp_pack_needed(w->type) ? pp_pack_bytes(w->type, w->n_rows, w->n_cols)
                                                   : (size_t)(w->n_rows * row_bytes(w));
            int walked = s->epilogue == EPILOGUE_GATE ? 0 : p;
            pp_pool_place(c->pool, (void *)(uintptr_t)w->data, bytes, map.first[walked],
                          map.first[walked + 1] - map.first[walked], map.first[map.n_walked]);
        }
    }
}
