/* lora_heads.c - LoRAs of the matrix from which latent attention (MLA, arXiv 2405.04434) makes keys and values,
 * kv_b_proj. The model holds its W [n_head (n_key + n_value), n_latent] as two matrices for each head: W_k [n_key,
 * n_latent], transposed, by which queries are multiplied, and W_v [n_value, n_latent], by which attention's output is.
 * With B_k and B_v as a head's rows of B, adding s B A to W changes them to
 *
 *   W_k' + s A' B_k'        a LoRA of the transposed matrix, whose A is B_k' [r, n_key] and B is A' [n_latent, r]
 *   W_v  + s B_v A
 *
 * so for keys all heads share B, and for values A. The cache holds latents, which are computed before this matrix and
 * do not depend on it.
 *
 * With a DoRA each output of W, a dimension of a head's keys or values, has a gain g (lora.h). Values are multiplied by
 * it; a key's gain is applied to the query instead, before the query is multiplied by W_k'. The output scales of an IA3
 * are such a g, with zeros for A and B. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/cpu/layout.h"
#include "engine/lora.h"
#include "engine/quant.h"

static const char both_end[] = ".attn_kv_b.weight";

const struct pp_lora_heads pp_lora_no_heads = {0};

/* --- checked against the model --------------------------------------------------------------------------------- */

/* The index in plan->heads of the matrices of heads of kind 'k' or 'v' that `both` (kv_b) becomes; -1: there are
 * none. */
static int find_heads(const struct pp_plan *plan, const char *both, char kind)
{
    char name[PP_HF_NAME];
    snprintf(name, sizeof name, "%.*s.attn_%c_b.weight[0]", (int)(strlen(both) - strlen(both_end)), both, kind);
    for (int i = 0; i < plan->n_heads; i++)
        if (strcmp(plan->heads[i].w[0]->name, name) == 0)
            return i;
    return -1;
}

bool pp_lora_find_heads(const struct pp_plan *plan, const char *name, struct pp_lora_heads_at *at)
{
    if (!pp_ends_with(name, both_end))
        return false;
    *at = (struct pp_lora_heads_at){find_heads(plan, name, 'k'), find_heads(plan, name, 'v')};
    return at->keys >= 0 && at->values >= 0;
}

int pp_lora_first_heads(const struct pp_plan *plan, const struct pp_heads *heads)
{
    int i = 0;
    while (strcmp(plan->heads[i].w[0]->name, heads->w[0]->name) != 0)
        i++;
    return i;
}

enum pp_code pp_lora_list_heads(struct pp_adapter *a, const struct pp_adapter_target *t,
                                const struct pp_lora_heads_at *at, struct pp_error *err)
{
    const struct pp_plan *plan = &a->model->plan;
    const struct pp_heads *keys = &plan->heads[at->keys], *values = &plan->heads[at->values];
    const int64_t n_in = keys->w[0]->ne[1], n_out = keys->n * (keys->w[0]->ne[0] + values->w[0]->ne[1]);
    if (t->bias.data || t->b_bias.data || t->ia3_input || t->weight.data || t->tokens.data)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "adapter %s has %s %s, of the heads of latent attention, for which LoRAs, DoRAs and scales of "
                       "outputs can be run; " PP_LORA_MERGE, a->path,
                       t->ia3_input     ? "scales (IA3) for the input of"
                       : t->weight.data ? "a matrix in place of"
                       : t->tokens.data ? "rows in place of those of"
                                        : "a bias for", t->name);
    if ((t->n_in && t->n_in != n_in) || t->n_out != n_out)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s: %s is for a matrix of %lld x %lld, but in %s it is %lld x %lld", a->path,
                       t->name, (long long)t->n_out, (long long)(t->n_in ? t->n_in : n_in), a->model->info.name,
                       (long long)n_out, (long long)n_in);
    const int most = t->magnitude.data ? PP_DORA_MAX_RANK : PP_LOW_RANK_MAX;
    if (t->rank > most)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s: %s has rank %lld; at most %d can be run", a->path, t->name,
                       (long long)t->rank, most);
    if (!a->heads && !(a->heads = pp_calloc((size_t)plan->n_heads, sizeof *a->heads)))
        return pp_fail_nomem(err, "an adapter");
    if (a->heads[at->keys].rank)
        return pp_fail(err, PP_ERR_FORMAT, "adapter %s has %s twice", a->path, t->name);
    a->heads[at->keys].rank = a->heads[at->values].rank = t->ia3.data ? 1 : (int)t->rank;
    a->heads[at->keys].scale = a->heads[at->values].scale = t->scale;
    return PP_OK;
}

/* --- as the kernels read them ---------------------------------------------------------------------------------- */

/* Allocates A and B for all heads; they share B if same_b, else A. */
static bool make_room(struct pp_lora_heads *l, const struct pp_heads *heads, uint32_t type, bool same_b)
{
    const struct pp_tensor *w = heads->w[0];
    const size_t n = (size_t)heads->n, n_a = same_b ? n : 1, n_b = same_b ? 1 : n;
    const size_t a_bytes = pp_lora_held_bytes(w, l->rank, type, 0), b_bytes = pp_lora_held_bytes(w, l->rank, type, 1);
    l->n = heads->n;
    l->bytes = n_a * a_bytes + n_b * b_bytes;
    l->a = pp_calloc(n, sizeof *l->a);
    l->b = pp_calloc(n, sizeof *l->b);
    l->data = pp_aligned(64, l->bytes);
    if (!l->a || !l->b || !l->data)
        return false;
    memset(l->data, 0, l->bytes); /* padding is hashed, too */
    for (size_t h = 0; h < n; h++) {
        l->a[h] = (struct pp_matrix){.type = type, .n_rows = l->rank, .n_cols = w->ne[0], .alone = true,
                                     .data = l->data + (h < n_a ? h : 0) * a_bytes};
        l->b[h] = (struct pp_low_rank){.type = type, .rank = l->rank,
                                       .data = l->data + n_a * a_bytes + (h < n_b ? h : 0) * b_bytes};
    }
    return true;
}

/* Transposes `from` [rows, cols] to [cols, rows]. */
static void transpose(const float *from, int64_t rows, int64_t cols, float *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++)
            to[i * rows + r] = from[r * cols + i];
}

static void hold_a(const struct pp_matrix *a, const float *values)
{
    void *to = (void *)(uintptr_t)a->data; /* allocated by make_room */
    if (a->type == PP_TYPE_F16)
        pp_floats_to_f16(values, to, a->n_rows * a->n_cols);
    else
        memcpy(to, values, (size_t)(a->n_rows * a->n_cols) * sizeof *values);
}

static enum pp_code hold_b(struct pp_low_rank *b, const float *values, int64_t n_out, float most,
                           struct pp_lora_room *room, struct pp_error *err)
{
    return pp_lora_lay_out_b(values, n_out, b, (uint8_t *)(uintptr_t)b->data, most, room, err);
}

/* Where a head's rows of B [n_head (n_key + n_value), rank] are. */
struct rows_of_heads {
    const float *b;
    int64_t of_head, from; /* in floats: from head to head; first of these rows in a head */
};

static enum pp_code hold_keys(struct pp_lora_heads *l, const struct pp_tensor *w, const struct pp_lora_halves *from,
                              const struct rows_of_heads *rows, struct pp_lora_room *room, struct pp_error *err)
{
    const int64_t n_key = w->ne[0], n_latent = w->ne[1];
    float *transposed = pp_malloc((size_t)(l->rank * (n_key > n_latent ? n_key : n_latent)) * sizeof *transposed);
    if (!transposed)
        return pp_fail_nomem(err, "an adapter");
    transpose(from->values[0], l->rank, n_latent, transposed);
    const enum pp_code code = hold_b(&l->b[0], transposed, n_latent, from->most[0], room, err);
    for (int h = 0; h < l->n; h++) {
        transpose(rows->b + h * rows->of_head + rows->from, n_key, l->rank, transposed);
        hold_a(&l->a[h], transposed);
        l->b[h] = l->b[0];
    }
    pp_free(transposed);
    return code;
}

static enum pp_code hold_values(struct pp_lora_heads *l, const struct pp_tensor *w, const struct pp_lora_halves *from,
                                const struct rows_of_heads *rows, struct pp_lora_room *room, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    hold_a(&l->a[0], from->values[0]);
    for (int h = 0; h < l->n && !code; h++)
        code = hold_b(&l->b[h], rows->b + h * rows->of_head + rows->from, w->ne[1], from->most[1], room, err);
    return code;
}

/* --- DoRA ------------------------------------------------------------------------------------------------------ */

/* What load_dora needs for the keys or the values. */
struct dora_work {
    const double *gram;      /* A A' */
    const float *magnitude;  /* [n_head (n_key + n_value)] */
    float *row;              /* a row of the matrix that the model holds */
    double *squares;         /* [outputs]: |W|^2 of W's rows */
    double *products;        /* [rank, outputs]: <W, A_k> of W's rows */
};

/* Adds the contribution of row j of the held matrix (W', if transposed) to the sums over rows of W. */
static void add_sums(const struct dora_work *d, const struct pp_lora_heads *l, const float *a, int64_t n_latent,
                     int64_t n, int64_t j)
{
    const float *w = d->row;
    if (l->transposed) {
        for (int64_t r = 0; r < n; r++)
            d->squares[r] += (double)w[r] * (double)w[r];
        for (int k = 0; k < l->rank; k++)
            for (int64_t r = 0; r < n; r++)
                d->products[k * n + r] += (double)a[k * n_latent + j] * (double)w[r];
        return;
    }
    for (int64_t i = 0; i < n_latent; i++)
        d->squares[j] += (double)w[i] * (double)w[i];
    for (int k = 0; k < l->rank; k++)
        for (int64_t i = 0; i < n_latent; i++)
            d->products[k * n + j] += (double)a[k * n_latent + i] * (double)w[i];
}

/* Computes the DoRA numbers of all outputs of the keys or the values; A and B are held already. */
static enum pp_code fill_dora(struct pp_lora_heads *l, const struct pp_heads *heads, const struct dora_work *d,
                              const struct pp_lora_halves *from, const struct rows_of_heads *rows,
                              struct pp_error *err)
{
    const struct pp_tensor *first = heads->w[0];
    const int64_t n = first->ne[!l->transposed], n_latent = first->ne[l->transposed];
    for (int h = 0; h < heads->n; h++) {
        const struct pp_tensor *w = heads->w[h];
        const float *b = rows->b + h * rows->of_head + rows->from;
        const float *magnitude = d->magnitude + (h * rows->of_head + rows->from) / l->rank;
        memset(d->squares, 0, (size_t)n * sizeof *d->squares);
        memset(d->products, 0, (size_t)(n * l->rank) * sizeof *d->products);
        for (int64_t j = 0; j < w->ne[1]; j++) {
            const uint8_t *row = (const uint8_t *)w->data + (size_t)j * pp_type_row_bytes(w->type, w->ne[0]);
            if (!pp_row_finite(w->type, row, w->ne[0]))
                return pp_fail_values(w, err);
            pp_dequantize_row(w->type, row, d->row, w->ne[0]);
            add_sums(d, l, from->values[0], n_latent, n, j);
        }
        for (int64_t r = 0; r < n; r++) {
            struct pp_dora_row one = {.square = d->squares[r], .scale = (double)l->scale, .magnitude = magnitude[r],
                                      .low_rank = pp_lora_gram_norm(b + r * l->rank, d->gram, l->rank)};
            for (int k = 0; k < l->rank; k++)
                one.mixed += (double)b[r * l->rank + k] * d->products[k * n + r];
            pp_lora_dora_numbers(&one, n, r, l->dora + h * PP_DORA_NUMBERS * n);
        }
    }
    return PP_OK;
}

/* *acts: set if magnitudes differ from the norms. */
static enum pp_code load_dora(struct pp_adapter *a, const struct pp_adapter_target *t,
                              const struct pp_lora_heads_at *at, const struct pp_lora_halves *halves, bool *acts,
                              struct pp_error *err)
{
    const int indices[2] = {at->keys, at->values};
    const size_t rank = (size_t)t->rank;
    double *gram = pp_malloc(rank * rank * sizeof *gram);
    float *magnitude = NULL;
    struct rows_of_heads rows = {.b = halves->values[1]};
    enum pp_code code = gram ? pp_lora_floats(a, &t->magnitude, false, &magnitude, err)
                             : pp_fail_nomem(err, "an adapter");
    if (!code)
        pp_lora_gram(halves->values[0], (int)t->rank, t->n_in, gram);
    rows.of_head = t->n_out / a->model->plan.heads[at->keys].n * t->rank;
    for (int i = 0; i < 2 && !code; i++) {
        const struct pp_heads *heads = &a->model->plan.heads[indices[i]];
        struct pp_lora_heads *l = &a->heads[indices[i]];
        const int64_t width = heads->w[0]->ne[0], n = heads->w[0]->ne[!l->transposed];
        struct dora_work d = {.gram = gram, .magnitude = magnitude, .row = pp_malloc((size_t)width * sizeof *d.row),
                              .squares = pp_malloc((size_t)n * sizeof *d.squares),
                              .products = pp_malloc((size_t)n * rank * sizeof *d.products)};
        l->dora = pp_calloc((size_t)heads->n * PP_DORA_NUMBERS * (size_t)n, sizeof *l->dora);
        code = d.row && d.squares && d.products && l->dora ? fill_dora(l, heads, &d, halves, &rows, err)
                                                          : pp_fail_nomem(err, "an adapter");
        for (int h = 0; h < heads->n && !code; h++)
            *acts = *acts || !pp_lora_dora_idle(l->dora + h * PP_DORA_NUMBERS * n, n);
        rows.from += n * t->rank;
        pp_free(d.row);
        pp_free(d.squares);
        pp_free(d.products);
    }
    pp_free(gram);
    pp_free(magnitude);
    return code;
}

/* The gains of an IA3: the DoRA numbers for B A = 0. *acts: set if some differ from 1. */
static enum pp_code load_ia3(struct pp_adapter *a, const struct pp_adapter_target *t,
                             const struct pp_lora_heads_at *at, bool *acts, struct pp_error *err)
{
    const int indices[2] = {at->keys, at->values};
    float *scales = NULL;
    int64_t first = 0;
    enum pp_code code = pp_lora_floats(a, &t->ia3, false, &scales, err);
    for (int i = 0; i < 2 && !code; i++) {
        struct pp_lora_heads *l = &a->heads[indices[i]];
        const int64_t n = a->model->plan.heads[indices[i]].w[0]->ne[!l->transposed], of_head = t->n_out / l->n;
        l->scales = true;
        if (!(l->dora = pp_calloc((size_t)l->n * PP_DORA_NUMBERS * (size_t)n, sizeof *l->dora)))
            code = pp_fail_nomem(err, "an adapter");
        for (int h = 0; h < l->n && !code; h++)
            for (int64_t r = 0; r < n; r++) {
                const float less = scales[h * of_head + first + r] - 1.0f;
                l->dora[h * PP_DORA_NUMBERS * n + r] = less;
                *acts = *acts || less != 0.0f;
            }
        first += n;
    }
    pp_free(scales);
    return code;
}

/* Reads A and B; those of an IA3 are zeros. */
static enum pp_code read_halves(const struct pp_adapter *a, const struct pp_adapter_target *t, int64_t n_latent,
                                struct pp_lora_room *room, struct pp_lora_halves *halves, struct pp_error *err)
{
    float *zeros[2];
    if (!t->ia3.data)
        return pp_lora_read(a, t, t->n_out, &(struct pp_lora_orders){0}, room, halves, err);
    if (!pp_lora_halves_room(room, n_latent, t->n_out, zeros))
        return pp_fail_nomem(err, "an adapter");
    memset(zeros[0], 0, (size_t)n_latent * sizeof *zeros[0]);
    memset(zeros[1], 0, (size_t)t->n_out * sizeof *zeros[1]);
    *halves = (struct pp_lora_halves){.values = {zeros[0], zeros[1]}};
    return PP_OK;
}

enum pp_code pp_lora_load_heads(struct pp_adapter *a, const struct pp_adapter_target *t,
                                const struct pp_lora_heads_at *at, bool exact, struct pp_lora_room *room,
                                struct pp_error *err)
{
    const float most_f16 = 65504.0f;
    const struct pp_heads *keys = &a->model->plan.heads[at->keys], *values = &a->model->plan.heads[at->values];
    struct pp_lora_heads *of_keys = &a->heads[at->keys], *of_values = &a->heads[at->values];
    struct pp_lora_halves halves;
    enum pp_code code = read_halves(a, t, keys->w[0]->ne[1], room, &halves, err);
    if (code)
        return code;
    const uint32_t type = exact || !(fmaxf(halves.most[0], halves.most[1]) < most_f16) ? PP_TYPE_F32 : PP_TYPE_F16;
    const int64_t rank = of_keys->rank, n_key = keys->w[0]->ne[0] * rank, n_value = values->w[0]->ne[1] * rank;
    struct rows_of_heads rows = {.b = halves.values[1], .of_head = n_key + n_value};
    if (!make_room(of_keys, keys, type, true) || !make_room(of_values, values, type, false))
        return pp_fail_nomem(err, "an adapter");
    of_keys->transposed = true;
    code = hold_keys(of_keys, keys->w[0], &halves, &rows, room, err);
    rows.from = n_key;
    if (!code)
        code = hold_values(of_values, values->w[0], &halves, &rows, room, err);
    bool acts = t->scale != 0.0f && halves.most[0] != 0.0f && halves.most[1] != 0.0f;
    if (!code && t->magnitude.data)
        code = load_dora(a, t, at, &halves, &acts, err);
    if (!code && t->ia3.data)
        code = load_ia3(a, t, at, &acts, err);
    if (!code && acts)
        atomic_store_explicit(&a->acts, true, memory_order_relaxed);
    return code;
}

/* --- room, identity and end ------------------------------------------------------------------------------------ */

int pp_adapter_set_heads_room(const struct pp_adapter_set *set, int heads)
{
    int most = 0;
    for (int k = 0; k < set->n; k++) {
        const int room = pp_low_rank_room(pp_adapter_heads_at(set->use[k].adapter, heads)->rank);
        most = room > most ? room : most;
    }
    return most;
}

bool pp_adapter_set_heads_dora(const struct pp_adapter_set *set)
{
    for (int k = 0; k < set->n; k++) {
        const struct pp_adapter *a = set->use[k].adapter;
        for (int i = 0; a->heads && i < a->model->plan.n_heads; i++)
            if (a->heads[i].dora)
                return true;
    }
    return false;
}

void pp_lora_hash_heads(const struct pp_adapter *a, struct pp_sha256_stream *s)
{
    static const char what[] = "heads";
    for (int i = 0; a->heads && i < a->model->plan.n_heads; i++) {
        const struct pp_lora_heads *l = &a->heads[i];
        if (!l->rank)
            continue;
        const struct pp_hash128 sum = pp_hash128(l->data, l->bytes);
        pp_sha256_update(s, what, sizeof what);
        pp_sha256_update(s, &i, sizeof i);
        pp_sha256_update(s, &l->a->type, sizeof l->a->type);
        pp_sha256_update(s, &l->rank, sizeof l->rank);
        pp_sha256_update(s, &l->scale, sizeof l->scale);
        pp_sha256_update(s, &sum, sizeof sum);
        if (!l->dora)
            continue;
        const struct pp_heads *heads = &a->model->plan.heads[i];
        const struct pp_hash128 numbers = pp_hash128(
            l->dora, (size_t)(heads->n * PP_DORA_NUMBERS * heads->w[0]->ne[!l->transposed]) * sizeof *l->dora);
        pp_sha256_update(s, &numbers, sizeof numbers);
        pp_sha256_update(s, &l->scales, l->scales ? sizeof l->scales : 0);
    }
}

void pp_lora_free_heads(struct pp_adapter *a)
{
    for (int i = 0; a->heads && i < a->model->plan.n_heads; i++) {
        pp_free(a->heads[i].a);
        pp_free(a->heads[i].b);
        pp_free(a->heads[i].data);
        pp_free(a->heads[i].dora);
    }
    pp_free(a->heads);
}
