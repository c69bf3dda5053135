/* lora_tokens.c - tokens with embeddings of their own: PEFT's trainable_token_indices. In the embedding table a row
 * replaces the model's. A matrix that is the table, or has its shape (the output), gets the difference as a LoRA: A
 * [n_tokens, n_in] are the differences of the rows, and B selects the row of each of these tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/lora.h"
#include "engine/model.h"
#include "engine/rows.h"

enum { MOST_OF_OUTPUT = 256 }; /* B has at most this many columns, and a row for each token */

static enum pp_code check_tokens(const struct pp_adapter *a, const struct pp_adapter_target *t, int64_t width,
                                 struct pp_error *err)
{
    const struct pp_model_info *info = &a->model->info;
    if (t->tokens.ne[0] != width)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s: its tokens for %s have %lld values, but those of %s have %lld", a->path,
                       t->name, (long long)t->tokens.ne[0], info->name, (long long)width);
    for (int64_t i = 0; i < t->tokens.ne[1]; i++)
        if (t->token_ids[i] >= info->n_vocab)
            return pp_fail(err, PP_ERR_MISMATCH, "adapter %s has an embedding for token %d, but %s has only %lld "
                           "tokens; those that an adapter adds to a vocabulary are not supported", a->path,
                           t->token_ids[i], info->name, (long long)info->n_vocab);
    return PP_OK;
}

/* Subtracts the model's rows from these, [n_tokens, width]. */
static enum pp_code subtract_model_rows(const struct pp_adapter_target *t, const struct pp_tensor *w, float *rows,
                                        struct pp_error *err)
{
    const int64_t n = w->ne[0];
    float *own = pp_malloc((size_t)n * sizeof *own);
    enum pp_code code = own ? PP_OK : pp_fail_nomem(err, "an adapter's tokens");
    for (int64_t i = 0; i < t->tokens.ne[1] && !code; i++) {
        code = pp_tensor_floats(w, t->token_ids[i], 1, own, err);
        for (int64_t k = 0; k < n && !code; k++)
            rows[i * n + k] -= own[k];
    }
    pp_free(own);
    return code;
}

static bool any_set(const float *x, int64_t n)
{
    int64_t i = 0;
    while (i < n && x[i] == 0.0f)
        i++;
    return i < n;
}

static int by_id(const void *a, const void *b)
{
    const int32_t x = ((const struct pp_replaced_token *)a)->id, y = ((const struct pp_replaced_token *)b)->id;
    return (x > y) - (x < y);
}

enum pp_code pp_lora_load_tokens(struct pp_adapter *a, const struct pp_adapter_target *t, const struct pp_tensor *table,
                                 struct pp_error *err)
{
    struct pp_lora_embedding *e = &a->embedding;
    const int64_t n = t->tokens.ne[1], width = pp_embedding_width(pp_source_hparams(a->model->source));
    float *differences = NULL;
    enum pp_code code = table ? check_tokens(a, t, width, err)
                              : pp_fail(err, PP_ERR_MISMATCH, "adapter %s changes %s, which %s does not have", a->path,
                                        t->name, a->model->info.name);
    if (!code)
        code = pp_lora_floats(a, &t->tokens, false, &e->token_rows, err);
    if (!code)
        code = pp_lora_floats(a, &t->tokens, false, &differences, err);
    if (!code && !(e->tokens = pp_calloc((size_t)n, sizeof *e->tokens)))
        code = pp_fail_nomem(err, "an adapter's tokens");
    if (!code)
        code = subtract_model_rows(t, table, differences, err);
    if (!code && any_set(differences, n * width))
        a->acts = true;
    pp_free(differences);
    if (code)
        return code;
    for (int64_t i = 0; i < n; i++)
        e->tokens[i] = (struct pp_replaced_token){t->token_ids[i], (int)i};
    qsort(e->tokens, (size_t)n, sizeof *e->tokens, by_id);
    e->n_tokens = (int)n;
    return PP_OK;
}

const float *pp_lora_token_row(const struct pp_lora_embedding *e, int32_t token, int64_t width)
{
    const struct pp_replaced_token key = {.id = token};
    const struct pp_replaced_token *found =
        e->n_tokens ? bsearch(&key, e->tokens, (size_t)e->n_tokens, sizeof key, by_id) : NULL;
    return found ? e->token_rows + found->row * width : NULL;
}

bool pp_lora_is_tied(const struct pp_tensor *table, const struct pp_tensor *w)
{
    enum { LOOKED_AT = 32 }; /* rows from all over the vocabulary, since those of untrained tokens may be zeros */
    const double most = 0.05; /* relative error, squared: what quantising to few bits may cost */
    const int64_t n = w->ne[0], n_rows = w->ne[1], step = n_rows > LOOKED_AT ? n_rows / LOOKED_AT : 1;
    double off = 0, all = 0;
    if (w == table || strcmp(w->name, table->name) == 0)
        return true;
    float *rows = n_rows == table->ne[1] && n == table->ne[0] ? pp_malloc(2 * (size_t)n * sizeof *rows) : NULL;
    bool read = rows;
    for (int64_t r = 0; read && r < n_rows; r += step) {
        read = pp_tensor_floats(w, r, 1, rows, NULL) == PP_OK && pp_tensor_floats(table, r, 1, rows + n, NULL) == PP_OK;
        for (int64_t i = 0; read && i < n; i++) {
            const double a = (double)rows[i], b = (double)rows[n + i];
            off += (a - b) * (a - b);
            all += b * b;
        }
    }
    pp_free(rows);
    return read && all > 0 && off <= most * all;
}

enum pp_code pp_lora_check_output_tokens(const struct pp_adapter *a, const struct pp_adapter_target *t,
                                         const struct pp_tensor *w, struct pp_error *err)
{
    if (t->rank && !t->embedding)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s both adapts %s and replaces tokens of it, which is not "
                       "supported", a->path, t->name);
    if (t->tokens.ne[1] > MOST_OF_OUTPUT)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s replaces %lld tokens of the output; at most %d can be",
                       a->path, (long long)t->tokens.ne[1], MOST_OF_OUTPUT);
    return check_tokens(a, t, w->ne[0], err);
}

enum pp_code pp_lora_token_halves(const struct pp_adapter *a, const struct pp_adapter_target *t,
                                  const struct pp_tensor *w, struct pp_lora_room *room, struct pp_lora_halves *out,
                                  struct pp_error *err)
{
    const int64_t n = t->tokens.ne[1], n_in = w->ne[0], n_out = w->ne[1];
    float *halves[2], *rows = NULL;
    if (!pp_lora_halves_room(room, n * n_in, n_out * n, halves))
        return pp_fail_nomem(err, "an adapter's tokens");
    enum pp_code code = pp_lora_floats(a, &t->tokens, false, &rows, err);
    if (!code)
        code = subtract_model_rows(t, w, rows, err);
    if (!code) {
        memcpy(halves[0], rows, (size_t)(n * n_in) * sizeof *rows);
        memset(halves[1], 0, (size_t)(n_out * n) * sizeof *rows);
    }
    for (int64_t i = 0; i < n && !code; i++)
        halves[1][t->token_ids[i] * n + i] = 1.0f;
    pp_free(rows);
    *out = (struct pp_lora_halves){.values = {halves[0], halves[1]}, .most = {0.0f, 1.0f}};
    for (int64_t i = 0; i < n * n_in && !code; i++)
        out->most[0] = fmaxf(out->most[0], fabsf(halves[0][i]));
    return code;
}
