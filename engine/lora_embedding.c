/* lora_embedding.c - PEFT's DoRA of the token embeddings. PEFT takes the table W [n_vocab, n] as a matrix from tokens
 * to values, so there is a magnitude for each of the n values, and the norms are those of the columns of
 * W + scale A B', over all tokens. For each column
 *
 *   |W|^2 = sum over tokens t of W[t]^2
 *   <W, BA> = sum over k of B[k] sum over t of W[t] A[t][k]
 *   |BA|^2 = B (A' A) B'
 *
 * give the numbers of lora.h. (In MLX magnitudes belong to rows, as in any other matrix: lora_kinds.c.) */
#include <math.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/lora.h"
#include "engine/model.h"
#include "engine/rows.h"
#include "engine/tensor_forms.h"

/* Tokens that are summed in floats, before the sums are added in double precision; columns of W that are multiplied by
 * A together. */
enum { TOKENS = 256, COLUMNS = 32 };

/* The sums over tokens, and work space for TOKENS of them. */
struct table_sums {
    const struct pp_tensor *table;
    const float *a;             /* [n_vocab, rank] */
    int rank;
    int64_t n;                  /* columns */
    double *squares;            /* [n]: |W|^2 */
    double *products;           /* [n, rank]: <W, A_k> */
    double *gram;               /* A' A [rank, rank] */
    double *some_gram;          /* the same of TOKENS tokens */
    float *rows;                /* [TOKENS, n] */
    float *columns;             /* [COLUMNS, TOKENS] */
    float *a_columns;           /* [rank, TOKENS] */
    float *some_products;       /* [COLUMNS, rank] */
    void *kernel;
};

static bool make_sums(struct table_sums *s)
{
    const size_t n = (size_t)s->n, rank = (size_t)s->rank;
    s->squares = pp_calloc(n, sizeof *s->squares);
    s->products = pp_calloc(n * rank, sizeof *s->products);
    s->gram = pp_calloc(rank * rank, sizeof *s->gram);
    s->some_gram = pp_calloc(rank * rank, sizeof *s->some_gram);
    s->rows = pp_malloc(TOKENS * n * sizeof *s->rows);
    s->columns = pp_aligned(64, COLUMNS * TOKENS * sizeof *s->columns);
    s->a_columns = pp_aligned(64, rank * TOKENS * sizeof *s->a_columns);
    s->some_products = pp_aligned(64, COLUMNS * rank * sizeof *s->some_products);
    s->kernel = pp_aligned(64, PP_MATMUL_SCRATCH);
    return s->squares && s->products && s->gram && s->some_gram && s->rows && s->columns && s->a_columns &&
           s->some_products && s->kernel;
}

static void free_sums(struct table_sums *s)
{
    pp_free(s->squares);
    pp_free(s->products);
    pp_free(s->gram);
    pp_free(s->some_gram);
    pp_free(s->rows);
    pp_free(s->columns);
    pp_free(s->a_columns);
    pp_free(s->some_products);
    pp_free(s->kernel);
}

/* Columns first .. first + n - 1 of a matrix [n_rows, width], each padded with zeros to TOKENS values. */
static void take_columns(const float *from, int n_rows, int64_t width, int64_t first, int n, float *to)
{
    for (int i = 0; i < n; i++)
        for (int t = 0; t < TOKENS; t++)
            to[i * TOKENS + t] = t < n_rows ? from[t * width + first + i] : 0.0f;
}

/* Adds what n tokens from `first` on contribute to the sums. */
static enum pp_code add_tokens(struct table_sums *s, int64_t first, int n, struct pp_error *err)
{
    const struct pp_matmul_kernels *mm = pp_matmul_kernels(pp_isa_best());
    const struct pp_matrix a = {.type = PP_TYPE_F32, .n_rows = s->rank, .n_cols = TOKENS, .data = s->a_columns};
    const struct pp_acts x = {.f32 = s->columns, .f32_stride = TOKENS};
    const enum pp_code code = pp_tensor_floats(s->table, first, n, s->rows, err);
    if (code)
        return code;
    take_columns(s->a + first * s->rank, n, s->rank, 0, s->rank, s->a_columns);
    pp_lora_gram(s->a_columns, s->rank, TOKENS, s->some_gram);
    for (int i = 0; i < s->rank * s->rank; i++)
        s->gram[i] += s->some_gram[i];
    for (int64_t c = 0; c < s->n; c += COLUMNS) {
        const int some = s->n - c < COLUMNS ? (int)(s->n - c) : COLUMNS;
        take_columns(s->rows, n, s->n, c, some, s->columns);
        mm->by_type[PP_TYPE_F32](&a, 0, s->rank, &x, some, s->some_products, s->rank, s->kernel);
        for (int i = 0; i < some; i++)
            s->squares[c + i] += (double)mm->dot(s->columns + i * TOKENS, s->columns + i * TOKENS, TOKENS);
        for (int i = 0; i < some * s->rank; i++)
            s->products[c * s->rank + i] += (double)s->some_products[i];
    }
    return PP_OK;
}

/* Computes the numbers of all columns from the sums. b: [n, rank] */
static void fill_dora(const struct table_sums *s, const float *b, const float *magnitude, double scale, float *dora)
{
    for (int64_t i = 0; i < s->n; i++) {
        const float *own = b + i * s->rank;
        struct pp_dora_row row = {.square = s->squares[i], .low_rank = pp_lora_gram_norm(own, s->gram, s->rank),
                                  .scale = scale, .magnitude = magnitude[i]};
        for (int k = 0; k < s->rank; k++)
            row.mixed += (double)own[k] * s->products[i * s->rank + k];
        pp_lora_dora_numbers(&row, s->n, i, dora);
    }
}

enum pp_code pp_lora_dora_of_table(struct pp_adapter *a, const struct pp_adapter_target *t, const float *b,
                                   struct pp_error *err)
{
    struct pp_lora_embedding *e = &a->embedding;
    struct table_sums s = {.table = pp_lora_table(&a->model->plan), .a = e->a, .rank = e->rank, .n = t->n_out};
    float *magnitude = NULL;
    e->n_gains = t->n_out;
    e->dora = pp_calloc(PP_DORA_NUMBERS * (size_t)e->n_gains, sizeof *e->dora);
    enum pp_code code = make_sums(&s) && e->dora ? PP_OK : pp_fail_nomem(err, "an adapter");
    if (!code)
        code = pp_lora_floats(a, &t->magnitude, false, &magnitude, err);
    for (int64_t i = 0; t->form == PP_HF_SCALED && !code && i < t->n_out; i++) /* scaled like the table */
        magnitude[i] *= fabsf(pp_hf_row_scale(pp_source_hparams(a->model->source), t->name, 0));
    for (int64_t at = 0; at < t->n_in && !code; at += TOKENS)
        code = add_tokens(&s, at, t->n_in - at < TOKENS ? (int)(t->n_in - at) : TOKENS, err);
    if (!code)
        fill_dora(&s, b, magnitude, (double)e->scale, e->dora);
    pp_free(magnitude);
    free_sums(&s);
    return code;
}
