/* project.c - stages of projections: the input of a row made ready once, then work items of weight rows for all rows of
 * the batch, with adapters, bias, residual addition or SwiGLU behind them. */
#include <string.h>

#include "engine/cpu/profile.h"
#include "engine/cpu/program.h"

/* Multiply-adds in one work item of a projection: 2 ms at 100 G/s. */
static const int64_t ITEM_MACS = 200000000;

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
                         const struct thread_scratch *prepared, void *kernel, int m, int64_t row0, int64_t row1)
{
    const struct projection *p = &s->projections[projection];
    if (!pp_cpu_weight_ready(c, p, row0, row1))
        return;
    c->mm->by_type[p->w.type](&p->w, row0, row1, acts, m, c->slots[p->out], c->strides[p->out], kernel);
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
        uint64_t begin = pp_cpu_profile_begin(c);
        for (int i = 0; i < m; i++)
            prepare_row(c, s, i, own);
        pp_cpu_profile_prepared(c, thread, begin);
        own->prepared_pass = c->pass;
        own->prepared_stage = s;
    }
    return own;
}

static void multiply_item(struct pp_cpu *c, const struct stage *s, int m, int item, int thread)
{
    const struct thread_scratch *prepared = prepared_input(c, s, m, thread);
    const struct pp_acts acts = acts_of(c, s, prepared);
    const struct item_map map = map_items(c, s, m);
    int p = 0;
    while (item >= map.first[p + 1])
        p++;
    int64_t n_rows = s->projections[p].w.n_rows, row0 = (item - map.first[p]) * map.rows[p];
    int64_t row1 = row0 + map.rows[p] < n_rows ? row0 + map.rows[p] : n_rows;
    project_rows(c, s, p, &acts, prepared, c->threads[thread].kernel, m, row0, row1);
    if (s->swiglu)
        project_rows(c, s, 1, &acts, prepared, c->threads[thread].kernel, m, row0, row1);
    for (int i = 0; i < m; i++) {
        if (s->swiglu)
            c->ops->swiglu(slot_row(c, s->projections[0].out, i) + row0, slot_row(c, s->projections[1].out, i) + row0,
                           row1 - row0, slot_row(c, s->out, i) + row0);
        else if (s->add)
            c->ops->add(slot_row(c, s->out, i) + row0, slot_row(c, s->projections[p].out, i) + row0, row1 - row0);
    }
}

void pp_cpu_project_phases(const struct pp_cpu *c, const struct stage *s, int m, int n_items[MAX_PHASES])
{
    const struct item_map map = map_items(c, s, m);
    n_items[0] = prepares_privately(s, m) ? 0 : m;
    n_items[1] = map.first[map.n_walked];
}

void pp_cpu_project_item(struct pp_cpu *c, const struct stage *s, int m, int phase, int item, int thread)
{
    if (phase == 0) {
        prepare_row(c, s, item, &c->shared);
        publish_normed(c, s, item, &c->shared);
    } else {
        multiply_item(c, s, m, item, thread);
    }
}
