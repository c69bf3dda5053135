/* train_attention.c - attention over whole examples, and its backward pass. A work item is an example's KV head with
 * all query heads that share it: no other item adds to that head's dk and dv.
 *
 *   forward   s = q k' / sqrt(head_dim)   p = softmax(s) over the positions that a row sees   o = p v
 *   backward  dv += p' do   dp = do v'   ds = p (dp - sum of p dp)   dq = ds k   dk += ds' q
 *
 * The backward pass computes probabilities again: keeping them would take memory quadratic in an example's length. */
#include <string.h>

#include "engine/train_int.h"

enum { QUERIES = 48 }; /* rows whose scores are computed at a time */

struct attention {
    struct pp_trainer *t;
    const struct pp_train_activations *v;
    int64_t window;
    float scale;
};

/* One head of one example. */
struct head {
    int64_t n;                  /* positions */
    const float *q, *k, *v;     /* of the first position */
    int64_t q_row, kv_row;
};

size_t pp_train_attention_scratch(int64_t n)
{
    return (size_t)(2 * QUERIES * ((n + 15) / 16 * 16));
}

/* Products here run on one thread and are not split. */
static void multiply(const struct attention *a, const struct pp_product *p, float *room)
{
    for (int64_t c = 0; c < p->cols; c += PP_PRODUCT_STRIP)
        a->t->train_ops->product(p, 0, p->rows, c, c + PP_PRODUCT_STRIP < p->cols ? c + PP_PRODUCT_STRIP : p->cols,
                                 room);
}

static int64_t first_seen(const struct attention *a, int64_t pos)
{
    return a->window && pos >= a->window ? pos - a->window + 1 : 0;
}

/* p [n_rows, end]: the probabilities of rows row .. row + n_rows - 1, which see positions before `end`. */
static void probabilities(const struct attention *a, const struct head *h, int64_t row, int64_t n_rows, int64_t end,
                          float *p, float *room)
{
    multiply(a,
             &(struct pp_product){.rows = n_rows, .cols = end, .depth = a->t->head_dim, .a = h->q + row * h->q_row,
                                  .a_row = h->q_row, .a_step = 1, .b = h->k, .b_type = PP_TYPE_F32, .b_row = h->kv_row,
                                  .b_transposed = true, .scale = a->scale, .c = p, .c_row = end},
             room);
    for (int64_t i = 0; i < n_rows; i++) {
        float *x = p + i * end;
        int64_t from = first_seen(a, row + i), to = row + i + 1;
        a->t->train_ops->softmax(x + from, to - from);
        memset(x, 0, (size_t)from * sizeof *x);
        memset(x + to, 0, (size_t)(end - to) * sizeof *x);
    }
}

/* c [n_rows, head_dim] = weights [n_rows, end] b or, if transposed, c [end, head_dim] += weights' b. */
static void mix(const struct attention *a, const float *weights, bool transposed, int64_t n_rows, int64_t end,
                const float *b, int64_t b_row, float *c, int64_t c_row, float *room)
{
    multiply(a,
             &(struct pp_product){.rows = transposed ? end : n_rows, .cols = a->t->head_dim,
                                  .depth = transposed ? n_rows : end, .a = weights, .a_row = transposed ? 1 : end,
                                  .a_step = transposed ? end : 1, .b = b, .b_type = PP_TYPE_F32, .b_row = b_row,
                                  .scale = 1, .c = c, .c_row = c_row, .add = transposed},
             room);
}

/* The heads of piece `item`: those of an example that share a KV head. */
static struct head head_of(const struct attention *a, int item, int64_t *first_row, int64_t *first_head,
                           int64_t *kv_head)
{
    const struct pp_trainer *t = a->t;
    int seq = item / (int)t->n_head_kv;
    *kv_head = item % t->n_head_kv;
    *first_head = *kv_head * (t->n_head / t->n_head_kv);
    *first_row = t->batch.seq_first[seq];
    return (struct head){
        .n = t->batch.seq_first[seq + 1] - *first_row,
        .q = a->v->q + *first_row * t->n_q,
        .k = a->v->k + *first_row * t->n_kv + *kv_head * t->head_dim,
        .v = a->v->v + *first_row * t->n_kv + *kv_head * t->head_dim,
        .q_row = t->n_q,
        .kv_row = t->n_kv,
    };
}

static void forward_item(void *arg, int part, int item, int thread)
{
    (void)part;
    const struct attention *a = arg;
    struct pp_trainer *t = a->t;
    int64_t row, first, kv;
    struct head h = head_of(a, item, &row, &first, &kv);
    float *room = pp_train_scratch(t, thread), *p = room + PP_PRODUCT_SCRATCH;
    const float *q = h.q;
    for (int64_t g = 0; g < t->n_head / t->n_head_kv; g++) {
        h.q = q + (first + g) * t->head_dim;
        float *out = a->v->att + row * t->n_q + (first + g) * t->head_dim;
        for (int64_t r = 0; r < h.n; r += QUERIES) {
            int64_t n = h.n - r < QUERIES ? h.n - r : QUERIES, end = r + n;
            probabilities(a, &h, r, n, end, p, room);
            mix(a, p, false, n, end, h.v, h.kv_row, out + r * t->n_q, t->n_q, room);
        }
    }
}

static void backward_item(void *arg, int part, int item, int thread)
{
    (void)part;
    const struct attention *a = arg;
    struct pp_trainer *t = a->t;
    int64_t row, first, kv;
    struct head h = head_of(a, item, &row, &first, &kv);
    float *room = pp_train_scratch(t, thread), *p = room + PP_PRODUCT_SCRATCH;
    float *dp = p + QUERIES * ((h.n + 15) / 16 * 16);
    float *dk = t->dk + row * t->n_kv + kv * t->head_dim, *dv = t->dv + row * t->n_kv + kv * t->head_dim;
    const float *q = h.q;
    for (int64_t i = 0; i < h.n; i++) {
        memset(dk + i * t->n_kv, 0, (size_t)t->head_dim * sizeof *dk);
        memset(dv + i * t->n_kv, 0, (size_t)t->head_dim * sizeof *dv);
    }
    for (int64_t g = 0; g < t->n_head / t->n_head_kv; g++) {
        int64_t at = row * t->n_q + (first + g) * t->head_dim;
        const float *dout = t->datt + at;
        float *dq = t->dq + at;
        h.q = q + (first + g) * t->head_dim;
        for (int64_t r = 0; r < h.n; r += QUERIES) {
            int64_t n = h.n - r < QUERIES ? h.n - r : QUERIES, end = r + n;
            struct pp_product to_p = {.rows = n, .cols = end, .depth = t->head_dim, .a = dout + r * t->n_q,
                                      .a_row = t->n_q, .a_step = 1, .b = h.v, .b_type = PP_TYPE_F32,
                                      .b_row = h.kv_row, .b_transposed = true, .scale = 1, .c = dp, .c_row = end};
            probabilities(a, &h, r, n, end, p, room);
            mix(a, p, true, n, end, dout + r * t->n_q, t->n_q, dv, t->n_kv, room);
            multiply(a, &to_p, room);
            for (int64_t i = 0; i < n; i++)
                t->train_ops->softmax_backward(p + i * end, dp + i * end, end, a->scale);
            mix(a, dp, false, n, end, h.k, h.kv_row, dq + r * t->n_q, t->n_q, room);
            mix(a, dp, true, n, end, h.q + r * t->n_q, t->n_q, dk, t->n_kv, room);
        }
    }
}

static void run(struct pp_trainer *t, int layer, const struct pp_train_activations *v, pp_pool_fn *fn)
{
    struct attention a = {.t = t, .v = v, .window = t->layers[layer].window, .scale = t->attn_scale};
    pp_train_run_items(t, t->batch.n_seqs * (int)t->n_head_kv, fn, &a);
}

void pp_train_attention(struct pp_trainer *t, int layer, const struct pp_train_activations *v)
{
    run(t, layer, v, forward_item);
}

void pp_train_attention_backward(struct pp_trainer *t, int layer, const struct pp_train_activations *v)
{
    run(t, layer, v, backward_item);
}
