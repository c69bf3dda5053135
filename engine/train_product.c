/* train_product.c - projections with LoRA, and their backward passes, split into work items.
 *
 *   forward   u = scale A x        y = W x + bias + B u
 *   backward  du = scale B' dy     dB += dy u'    dA += du x'    dx += W' dy + A' du        (' transposes) */
#include "engine/train_int.h"

enum { MOST_JOBS = 6, FEWEST_ROWS = 48 };

/* Products with the same result, which run one after the other in each item. */
struct job {
    struct pp_product p[2];
    int n;
    const float *initial;       /* [cols]: initial value of every row of the result; or NULL */
    bool accumulates;
    int64_t strip, block;       /* columns and rows of an item */
    int n_strips, n_blocks;
};

struct jobs {
    struct pp_trainer *t;
    struct job job[MOST_JOBS];
    int n;
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Items are as large as possible while every thread has some, since unpacking W costs less the more rows use it. How a
 * product is split does not change its result. */
static void split(const struct pp_trainer *t, struct job *j)
{
    const struct pp_product *p = &j->p[0];
    const int enough = 3 * pp_pool_n(t->pool);
    j->strip = pp_type_info(p->b_type)->block_elements == 256 ? 256 : PP_PRODUCT_STRIP;
    j->n_strips = (int)((p->cols + j->strip - 1) / j->strip);
    j->block = p->rows > 0 ? p->rows : 1;
    while (j->block > FEWEST_ROWS && j->n_strips * ((p->rows + j->block - 1) / j->block) < enough)
        j->block = (j->block + 1) / 2;
    j->n_blocks = (int)((p->rows + j->block - 1) / j->block);
}

static void run_piece(const struct jobs *all, const struct job *j, int strip, int block, int thread)
{
    const struct pp_product *p = &j->p[0];
    int64_t row0 = block * j->block, row1 = smaller(row0 + j->block, p->rows);
    int64_t col0 = strip * j->strip, col1 = smaller(col0 + j->strip, p->cols);
    for (int64_t r = row0; j->initial && r < row1; r++)
        for (int64_t c = col0; c < col1; c++)
            p->c[r * p->c_row + c] = j->accumulates ? p->c[r * p->c_row + c] + j->initial[c] : j->initial[c];
    for (int i = 0; i < j->n; i++)
        all->t->train_ops->product(&j->p[i], row0, row1, col0, col1, pp_train_scratch(all->t, thread));
}

static void run_item(void *arg, int part, int item, int thread)
{
    (void)part;
    const struct jobs *all = arg;
    for (int i = 0; i < all->n; i++) {
        const struct job *j = &all->job[i];
        int n_here = j->n_strips * j->n_blocks;
        if (item < n_here) {
            run_piece(all, j, item % j->n_strips, item / j->n_strips, thread);
            return;
        }
        item -= n_here;
    }
}

static void run_jobs(struct jobs *all)
{
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        split(all->t, &all->job[i]);
        n += all->job[i].n_strips * all->job[i].n_blocks;
    }
    if (n)
        pp_train_run_items(all->t, n, run_item, all);
    all->n = 0;
}

static struct job *new_job(struct jobs *all, struct pp_product p)
{
    struct job *j = &all->job[all->n++];
    *j = (struct job){.p = {p}, .n = 1};
    return j;
}

static void add_product(struct job *j, struct pp_product p)
{
    p.add = true;
    j->p[j->n++] = p;
}

/* --- forward -------------------------------------------------------------------------------------------------- */

/* x [n, n_in] times W': each column of the result uses a row of W. */
static struct pp_product times_rows(int64_t n, const float *x, const struct pp_tensor *w, float *y)
{
    return (struct pp_product){.rows = n, .cols = w->ne[1], .depth = w->ne[0], .a = x, .a_row = w->ne[0], .a_step = 1,
                               .b = w->data, .b_type = w->type, .b_row = w->ne[0], .b_transposed = true, .scale = 1,
                               .c = y, .c_row = w->ne[1]};
}

/* The same with a matrix of floats [cols, depth]. */
static struct pp_product times_float_rows(int64_t n, const float *x, const float *b, int64_t cols, int64_t depth,
                                          float scale, float *y)
{
    return (struct pp_product){.rows = n, .cols = cols, .depth = depth, .a = x, .a_row = depth, .a_step = 1,
                               .b = b, .b_type = PP_TYPE_F32, .b_row = depth, .b_transposed = true, .scale = scale,
                               .c = y, .c_row = cols};
}

void pp_train_linear_forward(struct pp_trainer *t, const struct pp_train_apply *a, int n)
{
    const int64_t rank = t->opt.rank;
    struct jobs jobs = {.t = t};
    for (int i = 0; i < n; i++)
        if (a[i].linear->learnt)
            new_job(&jobs, times_float_rows(a[i].n_rows, a[i].x, t->params + a[i].linear->a, rank, a[i].linear->n_in,
                                            t->scale, a[i].u));
    run_jobs(&jobs);
    for (int i = 0; i < n; i++) {
        const struct pp_train_linear *l = a[i].linear;
        if (!a[i].y)
            continue;
        struct job *j = new_job(&jobs, times_rows(a[i].n_rows, a[i].x, l->w->w, a[i].y));
        j->initial = l->bias;
        j->accumulates = a[i].add;
        j->p[0].add = l->bias || a[i].add;
        if (l->learnt)
            add_product(j, times_float_rows(a[i].n_rows, a[i].u, t->params + l->b, l->n_out, rank, 1, a[i].y));
    }
    run_jobs(&jobs);
}

/* --- backward ------------------------------------------------------------------------------------------------- */

/* dy [n, n_out] times W: each column of the result uses a column of W. */
static struct pp_product times_columns(int64_t n, const float *dy, const struct pp_tensor *w, float *dx)
{
    return (struct pp_product){.rows = n, .cols = w->ne[0], .depth = w->ne[1], .a = dy, .a_row = w->ne[1], .a_step = 1,
                               .b = w->data, .b_type = w->type, .b_row = w->ne[0], .scale = 1, .c = dx,
                               .c_row = w->ne[0]};
}

static struct pp_product times_float_columns(int64_t n, const float *dy, const float *b, int64_t cols, int64_t depth,
                                             float scale, float *dx)
{
    return (struct pp_product){.rows = n, .cols = cols, .depth = depth, .a = dy, .a_row = depth, .a_step = 1,
                               .b = b, .b_type = PP_TYPE_F32, .b_row = cols, .scale = scale, .c = dx, .c_row = cols};
}

/* sum += d' x, where d is [n, rows] and x [n, cols]. */
static struct pp_product outer(int64_t n, const float *d, int64_t rows, const float *x, int64_t cols, float *sum)
{
    return (struct pp_product){.rows = rows, .cols = cols, .depth = n, .a = d, .a_row = 1, .a_step = rows,
                               .b = x, .b_type = PP_TYPE_F32, .b_row = cols, .scale = 1, .c = sum, .c_row = cols,
                               .add = true};
}

static void add_gradients(struct pp_trainer *t, const struct pp_train_apply *a, struct jobs *jobs)
{
    const struct pp_train_linear *l = a->linear;
    new_job(jobs, outer(a->n_rows, a->y, l->n_out, a->u, t->opt.rank, t->grad + l->b));
    new_job(jobs, outer(a->n_rows, a->du, t->opt.rank, a->x, l->n_in, t->grad + l->a));
}

void pp_train_linear_backward(struct pp_trainer *t, const struct pp_train_apply *a, int n)
{
    const int64_t rank = t->opt.rank;
    struct jobs jobs = {.t = t};
    for (int i = 0; i < n; i++)
        if (a[i].linear->learnt)
            new_job(&jobs, times_float_columns(a[i].n_rows, a[i].y, t->params + a[i].linear->b, rank,
                                               a[i].linear->n_out, t->scale, a[i].du));
    run_jobs(&jobs);
    for (int i = 0; i < n; i++)
        if (a[i].linear->learnt)
            add_gradients(t, &a[i], &jobs);
    run_jobs(&jobs);
    for (int i = 0; i < n; i++) {
        const struct pp_train_linear *l = a[i].linear;
        if (!a[i].dx)
            continue;
        struct job *j = new_job(&jobs, times_columns(a[i].n_rows, a[i].y, l->w->w, a[i].dx));
        j->p[0].add = i > 0;
        if (l->learnt)
            add_product(j, times_float_columns(a[i].n_rows, a[i].du, t->params + l->a, l->n_in, rank, 1, a[i].dx));
        run_jobs(&jobs); /* the next one adds to the same dx */
    }
}

/* --- output --------------------------------------------------------------------------------------------------- */

void pp_train_logits(struct pp_trainer *t, int64_t n)
{
    struct jobs jobs = {.t = t};
    struct job *j = new_job(&jobs, times_rows(n, t->hidden, t->output->w, t->logits));
    j->initial = t->output_bias;
    j->p[0].add = t->output_bias != NULL;
    run_jobs(&jobs);
}

void pp_train_logits_backward(struct pp_trainer *t, int64_t n)
{
    struct jobs jobs = {.t = t};
    new_job(&jobs, times_columns(n, t->logits, t->output->w, t->dhidden));
    run_jobs(&jobs);
}
