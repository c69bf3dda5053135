/* lora_kinds.c - adapters that are more than A and B of a projection: DoRA, IA3, biases, embeddings. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/adapter_join.h"
#include "engine/base/mem.h"
#include "engine/cpu/layout.h"
#include "engine/lora.h"
#include "engine/quant.h"
#include "engine/tensor_forms.h"

enum { MOST_RANK = 1024 }; /* of embeddings */

bool pp_adapter_set_scales_input(const struct pp_adapter_set *set, int linear)
{
    for (int i = 0; i < set->n; i++)
        if (pp_adapter_target_at(set->use[i].adapter, linear)->input)
            return true;
    return false;
}

static bool all_near_zero(const float *x, int64_t n, float most)
{
    for (int64_t i = 0; x && i < n; i++)
        if (fabsf(x[i]) > most)
            return false;
    return true;
}

bool pp_lora_kinds_idle(const struct pp_lora_target *t, int64_t n_in, int64_t n_out)
{
    return all_near_zero(t->bias, n_out, 0) && all_near_zero(t->input, n_in, 0) && all_near_zero(t->output, n_out, 0) &&
           pp_lora_dora_idle(t->dora, n_out);
}

bool pp_lora_dora_idle(const float *dora, int64_t n_out)
{
    const float rounding = 1.0f / 256; /* magnitudes equal to the norms, but stored in BF16 */
    return all_near_zero(dora, n_out, rounding);
}

void pp_lora_free_kinds(struct pp_lora_target *t)
{
    pp_free(t->bias);
    pp_free(t->input);
    pp_free(t->output);
    pp_free(t->dora);
}

/* One matrix of an adapter while it is loaded. */
struct loading {
    struct pp_adapter *a;
    const struct pp_adapter_target *t;
    struct pp_lora_target *to;
    const struct pp_linear *linear;
    int64_t n_in, n_out;
    pp_lora_order order; /* the order of outputs in the file, or NULL */
    const bool *dora;    /* [n_out]: outputs that have a magnitude; NULL: all */
    struct pp_error *err;
};

/* Reads a vector of n values, one for each output or input, in the model's order; pp_free. */
static enum pp_code read_vector(const struct loading *l, const struct pp_tensor *t, int64_t n, bool outputs,
                                float **out)
{
    float *f = NULL;
    enum pp_code code = pp_lora_floats(l->a, t, false, &f, l->err);
    *out = pp_malloc((size_t)n * sizeof *f);
    if (!code && !*out)
        code = pp_fail_nomem(l->err, "an adapter");
    for (int64_t i = 0; i < n && !code; i++)
        (*out)[i] = f[pp_lora_file_row(outputs ? l->order : NULL, i)];
    pp_free(f);
    if (code) {
        pp_free(*out);
        *out = NULL;
    }
    return code;
}

/* --- biases -------------------------------------------------------------------------------------------------- */

/* A trained bias replaces the model's own: what is added is the difference, so that strength 1 gives the trained
 * one. */
static enum pp_code load_bias(const struct loading *l)
{
    float *trained = NULL, *of_b = NULL;
    enum pp_code code = PP_OK;
    if (!(l->to->bias = pp_calloc((size_t)l->n_out, sizeof *l->to->bias)))
        code = pp_fail_nomem(l->err, "an adapter");
    if (!code && l->t->bias.data)
        code = read_vector(l, &l->t->bias, l->n_out, true, &trained);
    if (!code && l->t->b_bias.data)
        code = read_vector(l, &l->t->b_bias, l->n_out, true, &of_b);
    const struct pp_tensor *own = l->linear->b;
    if (!code && trained && own)
        pp_dequantize_row(own->type,
                          (const uint8_t *)own->data + (size_t)l->linear->row * pp_type_row_bytes(own->type, l->n_out),
                          l->to->bias, l->n_out);
    for (int64_t i = 0; i < l->n_out && !code; i++)
        l->to->bias[i] = (trained ? trained[i] - l->to->bias[i] : 0.0f) + (of_b ? l->t->scale * of_b[i] : 0.0f);
    pp_free(trained);
    pp_free(of_b);
    return code;
}

/* --- IA3 ----------------------------------------------------------------------------------------------------- */

/* Whether a projection's input can be scaled in place: it is not the output of a norm, and no other operation reads it,
 * neither after the projection nor before it, where one in the same stage may. Otherwise W's columns are scaled, in a
 * copy of W. */
static bool has_own_input(const struct pp_plan *p, int linear)
{
    int at = 0;
    if (linear >= p->n_linears) /* experts: lora_load.c checks which */
        return true;
    while (at < p->n_ops && !(p->ops[at].kind == PP_OP_LINEAR && p->ops[at].linear == linear))
        at++;
    if (at == p->n_ops)
        return false;
    const int slot = p->ops[at].in;
    int i = at - 1;
    for (; i >= 0 && p->ops[i].out != slot; i--)
        if (p->ops[i].kind == PP_OP_LINEAR && pp_plan_op_reads(p, &p->ops[i], slot))
            return false;
    return i >= 0 && p->ops[i].kind != PP_OP_NORM && !pp_plan_reads(p, slot, at + 1);
}

static enum pp_code load_ia3(const struct loading *l, int index)
{
    const bool input = l->t->ia3_input;
    const int64_t n = input ? l->n_in : l->n_out;
    float **to = input ? &l->to->input : &l->to->output;
    enum pp_code code = read_vector(l, &l->t->ia3, n, !input, to);
    for (int64_t i = 0; i < n && !code; i++)
        (*to)[i] -= 1.0f;
    if (code || !input || has_own_input(&l->a->model->plan, index))
        return code;
    if (!all_near_zero(*to, n, 0)) {
        l->a->acts = true;
        code = pp_lora_scale_columns(l->a, index, *to, l->err);
    }
    pp_free(*to);
    *to = NULL;
    return code;
}

/* --- DoRA ---------------------------------------------------------------------------------------------------- */

/* If a row of W is shorter, it counts as zero: the norm is then that of B A alone. */
static const double LEAST_NORM = 1e-6;

void pp_lora_gram(const float *a, int rank, int64_t n, double *gram)
{
    const struct pp_matmul_kernels *mm = pp_matmul_kernels(pp_isa_best());
    for (int i = 0; i < rank; i++)
        for (int k = 0; k <= i; k++)
            gram[i * rank + k] = gram[k * rank + i] = (double)mm->dot(a + i * n, a + k * n, n);
}

double pp_lora_gram_norm(const float *b, const double *gram, int rank)
{
    double sum = 0;
    for (int i = 0; i < rank; i++) {
        double g = 0;
        for (int k = 0; k < rank; k++)
            g += gram[i * rank + k] * (double)b[k];
        sum += (double)b[i] * g;
    }
    return sum;
}

void pp_lora_dora_numbers(const struct pp_dora_row *row, int64_t n_out, int64_t r, float *dora)
{
    const double norm = fmax(sqrt(row->square), LEAST_NORM), square = norm * norm;
    dora[r] = (float)((double)row->magnitude / norm - 1);
    dora[n_out + r] = (float)(2 * row->scale * row->mixed / square);
    dora[2 * n_out + r] = (float)(row->scale * row->scale * row->low_rank / square);
}

/* |x|^2 */
static double self_product(const float *x, int64_t n)
{
    enum { SUMS = 32 }; /* independent sums, so that compilers vectorise them */
    float sum[SUMS] = {0};
    double all = 0;
    for (int64_t i = 0; i + SUMS <= n; i += SUMS)
        for (int k = 0; k < SUMS; k++)
            sum[k] += x[i + k] * x[i + k];
    for (int64_t i = n / SUMS * SUMS; i < n; i++)
        all += (double)x[i] * (double)x[i];
    for (int k = 0; k < SUMS; k++)
        all += (double)sum[k];
    return all;
}

enum { DORA_ROWS = 32 }; /* rows of W that are multiplied by A together */

/* What load_dora works with. */
struct dora_work {
    const float *a, *b;         /* [rank, n_in], [n_out, rank] */
    float *magnitude;           /* [n_out] */
    double *gram;               /* A A^T [rank, rank] */
    float *w;                   /* [DORA_ROWS, stride] */
    int64_t stride;
    float *products;            /* A W^T [DORA_ROWS, rank] */
    void *kernel;
};

static enum pp_code dora_rows(const struct loading *l, const struct dora_work *d, int64_t row0, int n)
{
    const struct pp_tensor *t = l->linear->w;
    const size_t row_bytes = pp_type_row_bytes(t->type, l->n_in);
    const int rank = l->to->rank;
    const struct pp_matrix a = {.type = PP_TYPE_F32, .n_rows = rank, .n_cols = l->n_in, .data = d->a};
    const struct pp_acts x = {.f32 = d->w, .f32_stride = d->stride};
    for (int i = 0; i < n; i++) {
        const uint8_t *row = (const uint8_t *)t->data + (size_t)(row0 + i) * row_bytes;
        if (!pp_row_finite(t->type, row, l->n_in))
            return pp_fail_values(t, l->err);
        pp_dequantize_row(t->type, row, d->w + i * d->stride, l->n_in);
    }
    pp_matmul_kernels(pp_isa_best())->by_type[PP_TYPE_F32](&a, 0, rank, &x, n, d->products, rank, d->kernel);
    for (int i = 0; i < n; i++) {
        const int64_t r = row0 + i;
        const float *b = d->b + r * rank;
        if (l->dora && !l->dora[r]) /* all zeros: as without a DoRA */
            continue;
        struct pp_dora_row row = {.square = self_product(d->w + i * d->stride, l->n_in),
                                  .low_rank = pp_lora_gram_norm(b, d->gram, rank),
                                  .scale = (double)l->to->scale, .magnitude = d->magnitude[r]};
        for (int k = 0; k < rank; k++) /* <W_r, (B A)_r> = sum over k of B[r][k] <W_r, A_k> */
            row.mixed += (double)b[k] * (double)d->products[i * rank + k];
        pp_lora_dora_numbers(&row, l->n_out, r, l->to->dora);
    }
    return PP_OK;
}

static enum pp_code load_dora(const struct loading *l, const float *a, const float *b)
{
    const size_t rank = (size_t)l->to->rank;
    struct dora_work d = {.a = a, .b = b, .stride = (l->n_in + 63) / 64 * 64};
    d.w = pp_aligned(64, DORA_ROWS * (size_t)d.stride * sizeof *d.w);
    d.gram = pp_calloc(rank * rank, sizeof *d.gram);
    d.products = pp_aligned(64, DORA_ROWS * rank * sizeof *d.products);
    d.kernel = pp_aligned(64, PP_MATMUL_SCRATCH);
    l->to->dora = pp_calloc(PP_DORA_NUMBERS * (size_t)l->n_out, sizeof *l->to->dora);
    enum pp_code code = d.w && d.gram && d.products && d.kernel && l->to->dora ? PP_OK
                                                                             : pp_fail_nomem(l->err, "an adapter");
    if (!code)
        code = read_vector(l, &l->t->magnitude, l->n_out, true, &d.magnitude);
    for (int64_t r = 0; l->t->form == PP_HF_SCALED && !code && r < l->n_out; r++) /* scaled like the rows of W */
        d.magnitude[r] *= fabsf(pp_hf_row_scale(pp_source_hparams(l->a->model->source), l->linear->w->name, r));
    if (!code)
        pp_lora_gram(a, l->to->rank, l->n_in, d.gram);
    for (int64_t r = 0; r < l->n_out && !code; r += DORA_ROWS)
        code = dora_rows(l, &d, r, l->n_out - r < DORA_ROWS ? (int)(l->n_out - r) : DORA_ROWS);
    pp_free(d.magnitude);
    pp_free(d.gram);
    pp_free(d.products);
    pp_free(d.kernel);
    pp_free(d.w);
    return code;
}

static enum pp_code load_kinds(const struct loading *l, int linear, const struct pp_lora_halves *halves)
{
    const struct pp_adapter_target *t = l->t;
    enum pp_code code = PP_OK;
    l->to->special = t->bias.data || t->b_bias.data || t->ia3.data || t->magnitude.data;
    if (t->bias.data || t->b_bias.data)
        code = load_bias(l);
    if (!code && t->ia3.data)
        code = load_ia3(l, linear);
    if (!code && t->magnitude.data && t->rank > PP_DORA_MAX_RANK)
        code = pp_fail(l->err, PP_ERR_UNSUPPORTED, "adapter %s: %s is a DoRA of rank %lld; at most %d can be run",
                       l->a->path, t->name, (long long)t->rank, PP_DORA_MAX_RANK);
    if (!code && t->magnitude.data)
        code = load_dora(l, halves->values[0], halves->values[1]);
    return code;
}

enum pp_code pp_lora_load_kinds(struct pp_adapter *a, int linear, const struct pp_adapter_target *t,
                                pp_lora_order order, const struct pp_lora_halves *halves,
                                struct pp_error *err)
{
    const struct pp_linear base = pp_plan_target(&a->model->plan, linear);
    const struct loading l = {
        .a = a, .t = t, .to = &a->targets[linear], .linear = &base, .n_in = base.w->ne[0], .n_out = base.w->ne[1],
        .order = order, .err = err,
    };
    return load_kinds(&l, linear, halves);
}

/* --- parts of a matrix ----------------------------------------------------------------------------------------- */

/* Vectors of a whole matrix, assembled from those of its parts. Where a part has none, the values change nothing. */
struct whole {
    float *bias, *b_bias, *ia3, *magnitude; /* [n_out], or NULL: no part has one */
    bool *dora;                             /* [n_out]: outputs with a magnitude */
};

static bool make_vector(float **out, bool wanted, int64_t n, float value)
{
    if (!wanted || *out)
        return true;
    *out = pp_malloc((size_t)n * sizeof **out);
    for (int64_t i = 0; *out && i < n; i++)
        (*out)[i] = value;
    return *out != NULL;
}

/* Allocates the vectors that a part needs. Biases begin as the model's own, for parts without one. */
static bool make_vectors(const struct loading *l, const struct pp_adapter_target *t, struct whole *w)
{
    const bool first_bias = t->bias.data && !w->bias;
    const struct pp_tensor *own = l->linear->b;
    if (t->magnitude.data && !w->dora && !(w->dora = pp_calloc((size_t)l->n_out, sizeof *w->dora)))
        return false;
    if (!make_vector(&w->bias, t->bias.data, l->n_out, 0) || !make_vector(&w->b_bias, t->b_bias.data, l->n_out, 0) ||
        !make_vector(&w->ia3, t->ia3.data, l->n_out, 1) ||
        !make_vector(&w->magnitude, t->magnitude.data, l->n_out, 0))
        return false;
    if (first_bias && own)
        pp_dequantize_row(own->type,
                          (const uint8_t *)own->data + (size_t)l->linear->row * pp_type_row_bytes(own->type, l->n_out),
                          w->bias, l->n_out);
    return true;
}

/* Indices of a part's outputs: in its target, and in the whole. */
struct part_rows {
    int64_t n;
    int32_t *from, *to;
};

static enum pp_code put_vector(const struct loading *l, const struct pp_tensor *t, const struct part_rows *rows,
                               float factor, float *out)
{
    float *values = NULL;
    const enum pp_code code = t->data ? pp_lora_floats(l->a, t, false, &values, l->err) : PP_OK;
    for (int64_t r = 0; t->data && !code && r < rows->n; r++)
        out[rows->to[r]] = factor * values[rows->from[r]];
    pp_free(values);
    return code;
}

static enum pp_code put_part(const struct loading *l, const struct pp_adapter_target *t, const struct part_rows *rows,
                             struct whole *w)
{
    const float scale = l->to->scale != 0.0f ? t->scale / l->to->scale : 0.0f; /* relative to the scale of the whole */
    enum pp_code code = make_vectors(l, t, w) ? PP_OK : pp_fail_nomem(l->err, "an adapter");
    if (!code)
        code = put_vector(l, &t->bias, rows, 1, w->bias);
    if (!code)
        code = put_vector(l, &t->b_bias, rows, scale, w->b_bias);
    if (!code)
        code = put_vector(l, &t->ia3, rows, 1, w->ia3);
    if (!code)
        code = put_vector(l, &t->magnitude, rows, 1, w->magnitude);
    for (int64_t r = 0; t->magnitude.data && !code && r < rows->n; r++)
        w->dora[rows->to[r]] = true;
    return code;
}

static struct pp_tensor vector_of(const char *name, const float *values, int64_t n)
{
    return (struct pp_tensor){.name = name, .type = PP_TYPE_F32, .n_dims = 1, .ne = {n, 1, 1, 1}, .data = values,
                              .size = values ? (size_t)n * sizeof *values : 0};
}

enum pp_code pp_lora_load_joined_kinds(struct pp_adapter *a, int linear, const struct pp_join *join,
                                       const struct pp_join_way *way, const struct pp_lora_halves *halves,
                                       struct pp_error *err)
{
    const struct pp_linear base = pp_plan_target(&a->model->plan, linear);
    struct pp_adapter_target t = {.name = join->name, .rank = a->targets[linear].rank,
                                  .scale = a->targets[linear].scale};
    struct loading l = {
        .a = a, .t = &t, .to = &a->targets[linear], .linear = &base, .n_in = base.w->ne[0], .n_out = base.w->ne[1],
        .err = err,
    };
    struct whole w = {0};
    enum pp_code code = PP_OK;
    for (int i = 0; i < PP_JOINED_PARTS && !code; i++) {
        const struct pp_adapter_target *part = join->of[i];
        struct part_rows rows = {0};
        if (!part || !(part->bias.data || part->b_bias.data || part->ia3.data || part->magnitude.data))
            continue;
        code = pp_join_rows(join, i, pp_source_hparams(a->model->source), way, l.n_out, &rows.n, &rows.from, &rows.to,
                            err);
        if (!code)
            code = put_part(&l, part, &rows, &w);
        pp_free(rows.from);
        pp_free(rows.to);
    }
    t.bias = vector_of(join->name, w.bias, l.n_out);
    t.b_bias = vector_of(join->name, w.b_bias, l.n_out);
    t.magnitude = vector_of(join->name, w.magnitude, l.n_out);
    t.ia3 = vector_of(join->name, w.ia3, l.n_out);
    l.dora = w.dora;
    if (!code)
        code = load_kinds(&l, linear, halves);
    pp_free(w.bias);
    pp_free(w.b_bias);
    pp_free(w.ia3);
    pp_free(w.magnitude);
    pp_free(w.dora);
    return code;
}

/* --- embeddings ---------------------------------------------------------------------------------------------- */

/* The numbers of MLX's DoRA of the embeddings: those of a DoRA of the table as a matrix whose outputs are tokens, with
 * B transposed as its A, and A as its B. */
static enum pp_code load_token_dora(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err)
{
    struct pp_lora_embedding *e = &a->embedding;
    struct pp_lora_target to = {.rank = e->rank, .scale = t->scale};
    const struct pp_linear table = {.w = pp_lora_table(&a->model->plan)};
    const struct loading l = {.a = a, .t = t, .to = &to, .linear = &table, .n_in = t->n_out, .n_out = t->n_in,
                              .err = err};
    float *b = NULL;
    enum pp_code code = pp_lora_floats(a, &t->b, !t->b_transposed, &b, err);
    if (!code)
        code = load_dora(&l, b, e->a);
    pp_free(b);
    e->by_token = true;
    e->n_gains = t->n_in;
    e->dora = to.dora;
    return code;
}

static enum pp_code load_embedding_dora(struct pp_adapter *a, const struct pp_adapter_target *t, const float *b,
                                        struct pp_error *err)
{
    const struct pp_lora_embedding *e = &a->embedding;
    const enum pp_code code = t->tied ? load_token_dora(a, t, err) : pp_lora_dora_of_table(a, t, b, err);
    if (!code && !(pp_lora_dora_idle(e->dora, e->n_gains) &&
                   (e->scale == 0.0f || all_near_zero(e->a, t->n_in * t->rank, 0) ||
                    all_near_zero(b, t->n_out * t->rank, 0))))
        a->acts = true;
    return code;
}

enum pp_code pp_lora_load_embedding(struct pp_adapter *a, const struct pp_adapter_target *t, struct pp_error *err)
{
    const struct pp_model_info *info = &a->model->info;
    struct pp_lora_embedding *e = &a->embedding;
    const int64_t n_blocks = (t->n_out + PP_LOW_RANK_ROWS - 1) / PP_LOW_RANK_ROWS;
    struct pp_lora_room room = {0};
    float *up = NULL;
    const int64_t width = pp_embedding_width(pp_source_hparams(a->model->source));
    if (t->n_in != info->n_vocab || t->n_out != width)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s: its embeddings are %lld tokens of %lld values, but %s has %lld of %lld", a->path,
                       (long long)t->n_in, (long long)t->n_out, info->name, (long long)info->n_vocab,
                       (long long)width);
    if (t->rank > MOST_RANK)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s: the embeddings have rank %lld; at most %d can be run",
                       a->path, (long long)t->rank, MOST_RANK);
    enum pp_code code = pp_lora_floats(a, &t->a, !t->a_transposed, &e->a, err); /* transposed: a row for each token */
    if (!code)
        code = pp_lora_floats(a, &t->b, t->b_transposed, &up, err);
    e->b = (struct pp_low_rank){.type = PP_TYPE_F32, .rank = (int)t->rank};
    e->b_bytes = (size_t)n_blocks * pp_low_rank_block_bytes(PP_TYPE_F32, (int)t->rank);
    if (!code && !(e->b_data = pp_aligned(64, e->b_bytes)))
        code = pp_fail_nomem(err, "an adapter");
    if (!code)
        code = pp_lora_lay_out_b(up, t->n_out, &e->b, e->b_data, 1.0f, &room, err);
    pp_lora_room_free(&room);
    e->a_bytes = (size_t)t->n_in * (size_t)t->rank * sizeof *e->a;
    e->rank = (int)t->rank;
    e->scale = t->scale;
    if (t->form == PP_HF_SCALED)
        e->scale *= pp_hf_row_scale(pp_source_hparams(a->model->source), t->name, 0);
    if (!code && t->magnitude.data)
        code = load_embedding_dora(a, t, up, err);
    pp_free(up);
    return code;
}

/* --- identity ------------------------------------------------------------------------------------------------ */

static void hash_floats(struct pp_sha256_stream *s, const char *what, int index, const float *f, int64_t n)
{
    if (!f)
        return;
    struct pp_hash128 sum = pp_hash128(f, (size_t)n * sizeof *f);
    pp_sha256_update(s, what, strlen(what) + 1);
    pp_sha256_update(s, &index, sizeof index);
    pp_sha256_update(s, &sum, sizeof sum);
}

void pp_lora_hash_kinds(const struct pp_adapter *a, struct pp_sha256_stream *s)
{
    const struct pp_lora_embedding *e = &a->embedding;
    for (int i = 0; i < a->n_targets; i++) {
        const struct pp_lora_target *t = &a->targets[i];
        const struct pp_tensor *w = pp_plan_target(&a->model->plan, i).w;
        if (!w)
            continue;
        hash_floats(s, "bias", i, t->bias, w->ne[1]);
        hash_floats(s, "input", i, t->input, w->ne[0]);
        hash_floats(s, "output", i, t->output, w->ne[1]);
        hash_floats(s, "dora", i, t->dora, PP_DORA_NUMBERS * w->ne[1]);
    }
    if (!e->rank)
        return;
    hash_floats(s, "embedding a", e->rank, e->a, (int64_t)(e->a_bytes / sizeof *e->a));
    struct pp_hash128 sum = pp_hash128(e->b_data, e->b_bytes);
    pp_sha256_update(s, &e->scale, sizeof e->scale);
    pp_sha256_update(s, &sum, sizeof sum);
    hash_floats(s, "embedding dora", e->by_token, e->dora, PP_DORA_NUMBERS * e->n_gains);
}
