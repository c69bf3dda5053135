/* adapt.c - adds what adapters contribute (lora.h) to the results W x of projections and of experts, for consecutive
 * rows with the same set of adapters. */
#include <string.h>

#include "engine/cpu/program.h"

void pp_cpu_multiply_a(const struct pp_cpu *c, const struct pp_lora_target *t, const struct pp_acts *x, int n,
                       float *out, int64_t stride, void *kernel)
{
    c->mm->by_type[t->a.type](&t->a, 0, t->rank, x, n, out, stride, kernel);
    for (int i = 0; t->b.type == PP_TYPE_Q8_0 && i < n; i++)
        c->ops->round_low_rank(out + i * stride, t->rank);
}

void pp_cpu_scale_input(const struct pp_adapter_set *set, int linear, int64_t n, float *x)
{
    for (int k = 0; set && k < set->n; k++) {
        const float *scales = pp_adapter_target_at(set->use[k].adapter, linear)->input, strength = set->use[k].scale;
        for (int64_t i = 0; scales && i < n; i++)
            x[i] *= 1.0f + strength * scales[i];
    }
}

/* y[r] += scale * B (A x). */
static void lora_up(const struct pp_cpu *c, const struct projection *p, const struct pp_adapter_set *set,
                    struct pp_low_rank_rows rows, int64_t row0, int64_t row1)
{
    for (int k = 0; k < set->n; k++) {
        const struct pp_lora_target *t = pp_adapter_target_at(set->use[k].adapter, p->linear);
        if (t->rank)
            c->ops->add_low_rank(&t->b, &rows, t->scale * set->use[k].scale, row0, row1);
        rows.down += pp_low_rank_room(t->rank);
    }
}

/* --- sets with other adapters than plain LoRA ------------------------------------------------------------------ */

static bool is_special(const struct pp_adapter_set *set, int linear)
{
    for (int k = 0; k < set->n; k++)
        if (pp_adapter_target_at(set->use[k].adapter, linear)->special)
            return true;
    return false;
}

enum { SPECIAL_ROWS = 256 }; /* outputs processed at a time; a multiple of 16 */

/* g_k of the k-th adapter of a set, for all outputs; NULL: that adapter is not a DoRA of this matrix. */
static const float *gains_of(const struct pp_adapter_set *set, int k, const struct pp_lora_target *t)
{
    return t->dora ? set->gains[k] + t->gains : NULL;
}

/* The factors of n outputs of W x from row0 on: g, before the bias is added, and o, after it (lora.h). */
struct gains {
    float all[SPECIAL_ROWS], output[SPECIAL_ROWS];
};

static void find_gains(const struct pp_adapter_set *set, const struct projection *p, int64_t row0, int64_t n,
                       struct gains *g)
{
    for (int64_t i = 0; i < n; i++)
        g->all[i] = g->output[i] = 1.0f;
    for (int k = 0; k < set->n; k++) {
        const struct pp_lora_target *t = pp_adapter_target_at(set->use[k].adapter, p->linear);
        const float strength = set->use[k].scale, *own = gains_of(set, k, t);
        for (int64_t i = 0; own && i < n; i++)
            g->all[i] += own[row0 + i] - 1.0f;
        for (int64_t i = 0; t->output && i < n; i++)
            g->output[i] *= 1.0f + strength * t->output[row0 + i];
    }
}

/* y = o (g y + b) for n outputs. y, bias: of the first of these outputs. */
static void apply_gains(const struct gains *g, const float *bias, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] *= g->all[i];
    for (int64_t i = 0; bias && i < n; i++)
        y[i] += bias[i];
    for (int64_t i = 0; i < n; i++)
        y[i] *= g->output[i];
}

/* Adds what one adapter of a set contributes to n outputs from row0 on. */
static void add_special(const struct pp_cpu *c, const struct projection *p, const struct pp_adapter_set *set, int which,
                        struct pp_low_rank_rows rows, int64_t row0, int64_t n)
{
    enum { AT_ONCE = 4 };
    const struct pp_adapter_use *use = &set->use[which];
    const struct pp_lora_target *t = pp_adapter_target_at(use->adapter, p->linear);
    const float *gain = gains_of(set, which, t);
    float sums[AT_ONCE][SPECIAL_ROWS];
    if (t->rank && !t->dora)
        c->ops->add_low_rank(&t->b, &rows, t->scale * use->scale, row0, row0 + n);
    for (int first = 0; gain && first < rows.n; first += AT_ONCE) {
        const int some = rows.n - first < AT_ONCE ? rows.n - first : AT_ONCE;
        struct pp_low_rank_rows to = {.n = some, .y_stride = SPECIAL_ROWS, .down_stride = rows.down_stride};
        to.y = (float *)((uintptr_t)sums - (size_t)row0 * sizeof(float)); /* of output 0 */
        to.down = rows.down + first * rows.down_stride;
        memset(sums, 0, (size_t)some * sizeof *sums);
        if (t->rank)
            c->ops->add_low_rank(&t->b, &to, t->scale * use->scale, row0, row0 + n);
        for (int k = 0; k < some; k++) {
            float *y = rows.y + (first + k) * rows.y_stride + row0;
            for (int64_t i = 0; i < n; i++)
                y[i] += gain[row0 + i] * sums[k][i];
        }
    }
    for (int k = 0; t->bias && k < rows.n; k++) {
        float *y = rows.y + k * rows.y_stride + row0;
        for (int64_t i = 0; i < n; i++)
            y[i] += use->scale * t->bias[row0 + i];
    }
}

/* pp_cpu_adapt for a set that includes adapters other than plain LoRA, such as DoRA or IA3. */
static void adapt_special(const struct pp_cpu *c, const struct projection *p, const struct pp_adapter_set *set,
                          struct pp_low_rank_rows rows, int64_t row0, int64_t row1)
{
    struct gains gains;
    for (int64_t r = row0; r < row1; r += SPECIAL_ROWS) {
        const int64_t n = row1 - r < SPECIAL_ROWS ? row1 - r : SPECIAL_ROWS;
        struct pp_low_rank_rows of_one = rows;
        find_gains(set, p, r, n, &gains);
        for (int i = 0; i < rows.n; i++)
            apply_gains(&gains, p->bias ? p->bias + r : NULL, n, rows.y + i * rows.y_stride + r);
        for (int k = 0; k < set->n; k++) {
            const int rank = pp_adapter_target_at(set->use[k].adapter, p->linear)->rank;
            add_special(c, p, set, k, of_one, r, n);
            if (rank)
                of_one.down += pp_low_rank_room(rank);
        }
    }
}

void pp_cpu_adapt(const struct pp_cpu *c, const struct projection *p, const struct pp_adapter_set *set,
                  struct pp_low_rank_rows rows, int64_t row0, int64_t row1)
{
    const bool adapted = set && set->n, special = adapted && is_special(set, p->linear);
    if (special)
        adapt_special(c, p, set, rows, row0, row1);
    else if (adapted)
        lora_up(c, p, set, rows, row0, row1);
    for (int i = 0; p->bias && !special && i < rows.n; i++)
        c->ops->add(rows.y + i * rows.y_stride + row0, p->bias + row0, row1 - row0);
}
