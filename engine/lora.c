#include "engine/lora.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/hparams.h"
#include "engine/model.h"
#include "engine/quant.h"

/* Ranks are added up over adapters and projections, and work space is made for the sum. */
enum { MAX_RANK = 1 << 16 };

int pp_adapter_set_rank(const struct pp_adapter_set *set, int linear)
{
    int rank = 0;
    for (int i = 0; i < set->n; i++)
        rank += set->use[i].adapter->targets[linear].rank;
    return rank;
}

/* Where a model has no matrix for its output, that is the one of the embeddings, and what an adapter does to either
 * leaves the other alone. */
static int linear_by_name(const struct pp_plan *plan, const char *name)
{
    const bool is_output = strcmp(name, "output.weight") == 0;
    int tied = -1;
    for (int i = 0; i < plan->n_linears; i++) {
        if (strcmp(plan->linears[i].w->name, name) == 0)
            return i;
        if (is_output && strcmp(plan->linears[i].w->name, "token_embd.weight") == 0)
            tied = i;
    }
    return tied;
}

enum pp_code pp_lora_floats(const struct pp_adapter *a, const struct pp_tensor *t, bool turned, float **out,
                            struct pp_error *err)
{
    int64_t n = t->ne[0], rows = t->ne[1];
    size_t row_bytes = pp_type_row_bytes(t->type, n);
    float *f = *out = pp_malloc((size_t)n * (size_t)rows * sizeof *f); /* they are in a file: no overflow */
    float *row = pp_malloc((size_t)n * sizeof *row);
    enum pp_code code = f && row ? PP_OK : pp_fail_nomem(err, "an adapter");
    for (int64_t r = 0; r < rows && !code; r++) {
        const uint8_t *src = (const uint8_t *)t->data + (size_t)r * row_bytes;
        if (!pp_row_finite(t->type, src, n))
            code = pp_fail(err, PP_ERR_FORMAT,
                           "adapter %s: %.200s holds values that are no numbers; the file is damaged, get it again",
                           a->path, t->name);
        else
            pp_dequantize_row(t->type, src, turned ? row : f + r * n, n);
        for (int64_t i = 0; turned && !code && i < n; i++)
            f[i * rows + r] = row[i];
    }
    pp_free(row);
    return code;
}

/* Moves the rows of B between the orders of Hugging Face and GGUF (see engine/arch/arch.h). b: [n_out, rank] */
static enum pp_code reorder_rows(float *b, int64_t n_out, int rank, int64_t head_dim, bool from_hf,
                                 struct pp_error *err)
{
    size_t bytes = (size_t)n_out * (size_t)rank * sizeof *b;
    float *old = pp_malloc(bytes);
    if (!old)
        return pp_fail_nomem(err, "an adapter");
    memcpy(old, b, bytes);
    for (int64_t r = 0; r < n_out; r++) {
        int64_t from = from_hf ? pp_hf_row(r, head_dim) : pp_gguf_row(r, head_dim);
        memcpy(b + r * rank, old + from * rank, (size_t)rank * sizeof *b);
    }
    pp_free(old);
    return PP_OK;
}

/* --- held forms ------------------------------------------------------------------------------------------------ */

/* Models of this size and above keep adapters in F16: there the few bytes more are nothing beside the weights'. */
static const int64_t LARGE_MODEL = 4000000000;

static bool fits_f16(const float *x, int64_t n)
{
    bool fits = true;
    for (int64_t i = 0; i < n; i++)
        fits = fits && fabsf(x[i]) < 65504.0f;
    return fits;
}

static uint32_t held_type(const struct pp_model *m, const struct pp_tensor *w, const float *a, const float *b,
                          int64_t rank)
{
    if (pp_pack_needed(w->type) && m->info.n_params < LARGE_MODEL && w->ne[0] % PP_ACT_BLOCK == 0)
        return PP_TYPE_Q8_0;
    return fits_f16(a, rank * w->ne[0]) && fits_f16(b, rank * w->ne[1]) ? PP_TYPE_F16 : PP_TYPE_F32;
}

static void to_f16(const float *x, uint16_t *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = pp_f32_to_f16(x[i]);
}

void pp_lora_q8_row(const float *x, int64_t n, int8_t *q, float *d, int32_t *sum, uint8_t *to)
{
    pp_matmul_kernels(pp_isa_best())->quantize(x, n, q, d, sum);
    for (int64_t i = 0; i < n / PP_ACT_BLOCK; i++, to += sizeof(uint16_t) + PP_ACT_BLOCK) {
        const uint16_t scale = pp_f32_to_f16(d[i]);
        memcpy(to, &scale, sizeof scale);
        memcpy(to + sizeof scale, q + i * PP_ACT_BLOCK, PP_ACT_BLOCK);
    }
}

/* A as rows of Q8_0, then packed. */
static bool pack_a(const float *a, int64_t rank, int64_t n_in, void *out)
{
    const int64_t n_blocks = n_in / PP_ACT_BLOCK;
    size_t row_bytes = pp_type_row_bytes(PP_TYPE_Q8_0, n_in);
    uint8_t *rows = pp_malloc((size_t)rank * row_bytes);
    int8_t *q = pp_aligned(64, (size_t)n_in);
    float *d = pp_malloc((size_t)n_blocks * sizeof *d);
    int32_t *sum = pp_malloc((size_t)n_blocks * sizeof *sum);
    bool ok = rows && q && d && sum;
    for (int64_t k = 0; ok && k < rank; k++)
        pp_lora_q8_row(a + k * n_in, n_in, q, d, sum, rows + (size_t)k * row_bytes);
    if (ok)
        pp_pack_rows(PP_TYPE_Q8_0, rows, rank, n_in, 0, rank, out);
    pp_free(rows);
    pp_free(q);
    pp_free(d);
    pp_free(sum);
    return ok;
}

/* 32 rows of B, zeros behind the last one, turned: [rank][32], or for floats [2][rank][16]. */
static void turn_block(const float *b, int64_t n_rows, int rank, bool halves, float *out)
{
    for (int k = 0; k < rank; k++)
        for (int r = 0; r < PP_LOW_RANK_ROWS; r++) {
            float x = r < n_rows ? b[(int64_t)r * rank + k] : 0;
            out[halves ? (r / 16 * rank + k) * 16 + r % 16 : k * PP_LOW_RANK_ROWS + r] = x;
        }
}

static bool lay_out_b(const float *b, int64_t n_out, int rank, uint32_t type, uint8_t *out)
{
    const struct pp_matmul_kernels *mm = pp_matmul_kernels(pp_isa_best());
    const size_t block_bytes = pp_low_rank_block_bytes(type, rank);
    const int64_t n = (int64_t)rank * PP_LOW_RANK_ROWS;
    float *turned = pp_aligned(64, (size_t)n * sizeof *turned), *d = pp_malloc((size_t)rank * sizeof *d);
    int8_t *q = pp_aligned(64, (size_t)n);
    int32_t *sum = pp_malloc((size_t)rank * sizeof *sum);
    bool ok = turned && d && q && sum;
    for (int64_t r = 0; ok && r < n_out; r += PP_LOW_RANK_ROWS, out += block_bytes) {
        turn_block(b + r * rank, n_out - r, rank, type != PP_TYPE_Q8_0, turned);
        if (type == PP_TYPE_F32)
            memcpy(out, turned, block_bytes);
        else if (type == PP_TYPE_F16)
            to_f16(turned, (uint16_t *)out, n);
        if (type != PP_TYPE_Q8_0)
            continue;
        mm->quantize(turned, n, q, d, sum);
        to_f16(d, (uint16_t *)out, rank);
        memcpy(out + block_bytes - (size_t)n, q, (size_t)n);
    }
    pp_free(turned);
    pp_free(d);
    pp_free(q);
    pp_free(sum);
    return ok;
}

enum pp_code pp_lora_lay_out_b(const float *b, int64_t n_out, int rank, uint32_t type, struct pp_low_rank *out,
                               void **data, size_t *bytes, struct pp_error *err)
{
    const int64_t n_blocks = (n_out + PP_LOW_RANK_ROWS - 1) / PP_LOW_RANK_ROWS;
    *bytes = (size_t)n_blocks * pp_low_rank_block_bytes(type, rank);
    *data = pp_aligned(64, *bytes);
    if (*data)
        memset(*data, 0, *bytes);
    if (!*data || !lay_out_b(b, n_out, rank, type, *data))
        return pp_fail_nomem(err, "an adapter");
    *out = (struct pp_low_rank){.type = type, .rank = rank, .data = *data};
    return PP_OK;
}

/* Makes of A [rank, n_in] and B [n_out, rank] what the kernels read. */
static enum pp_code hold(struct pp_lora_target *t, uint32_t type, const struct pp_tensor *w, const float *a,
                         const float *b, struct pp_error *err)
{
    const int64_t n_in = w->ne[0];
    t->a_bytes = type == PP_TYPE_Q8_0 ? pp_pack_bytes(type, t->rank, n_in)
                                      : (size_t)t->rank * pp_type_row_bytes(type, n_in);
    t->a_data = pp_aligned(64, t->a_bytes);
    bool ok = t->a_data != NULL;
    if (ok && type == PP_TYPE_Q8_0)
        ok = pack_a(a, t->rank, n_in, t->a_data);
    else if (ok && type == PP_TYPE_F16)
        to_f16(a, t->a_data, t->rank * n_in);
    else if (ok)
        memcpy(t->a_data, a, t->a_bytes);
    if (!ok)
        return pp_fail_nomem(err, "an adapter");
    t->a = (struct pp_matrix){.type = type, .n_rows = t->rank, .n_cols = n_in, .data = t->a_data};
    return pp_lora_lay_out_b(b, w->ne[1], t->rank, type, &t->b, &t->b_data, &t->b_bytes, err);
}

/* Whether a tensor is one of a mixture of experts, whose matrices cannot be changed. */
static bool is_of_experts(const char *name)
{
    static const char *const kinds[] = {".ffn_gate", ".ffn_up", ".ffn_down"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *at = strstr(name, kinds[i]);
        at = at ? at + strlen(kinds[i]) : "";
        if (strncmp(at, "_exps", 5) == 0 || (at[0] == '.' && at[1] >= '0' && at[1] <= '9'))
            return true;
    }
    return false;
}

/* A folder may have a tensor in another form than the model that was made of it. */
static enum pp_code check_form(const struct pp_model *m, const struct pp_adapter *a,
                               const struct pp_adapter_target *t, bool hf, struct pp_error *err)
{
    const enum pp_hf_form form = pp_arch_form(pp_arch_by_name(m->info.arch), t->name);
    if (!hf || form == PP_HF_SAME || (form == PP_HF_TURNED && !t->weight.data))
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED,
                   "adapter %s changes %s, which models of the family %s keep in another form than we compute with; "
                   "that is not supported", a->path, t->name, m->info.arch);
}

static enum pp_code check_target(const struct pp_model *m, const struct pp_adapter *a,
                                 const struct pp_adapter_target *t, int *linear, struct pp_error *err)
{
    *linear = linear_by_name(&m->plan, t->name);
    if (*linear < 0 && is_of_experts(t->name))
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "adapter %s changes %s, a matrix of an expert; adapters of experts are not supported", a->path,
                       t->name);
    if (*linear < 0)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s changes %s, which %s does not have; it was made for another model", a->path, t->name,
                       m->info.name);
    const struct pp_tensor *w = m->plan.linears[*linear].w;
    if ((t->n_in && t->n_in != w->ne[0]) || (t->n_out && t->n_out != w->ne[1]))
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s: %s is made for a matrix of %lld x %lld, but in %s it has %lld x %lld", a->path,
                       t->name, (long long)(t->n_out ? t->n_out : w->ne[1]), (long long)(t->n_in ? t->n_in : w->ne[0]),
                       m->info.name, (long long)w->ne[1], (long long)w->ne[0]);
    if (a->targets[*linear].rank || a->targets[*linear].special || a->targets[*linear].w_data)
        return pp_fail(err, PP_ERR_FORMAT, "adapter %s has %s twice", a->path, t->name);
    if (t->rank > MAX_RANK)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s: %s has rank %lld; at most %d can be run", a->path, t->name,
                       (long long)t->rank, MAX_RANK);
    return PP_OK;
}

static bool all_zero(const float *x, int64_t n)
{
    int64_t i = 0;
    while (i < n && x[i] == 0.0f)
        i++;
    return i == n;
}

static enum pp_code load_target(const struct pp_model *m, struct pp_adapter *a, const struct pp_adapter_file *f,
                                const struct pp_adapter_target *t, bool exact, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(m->source);
    float *down = NULL, *up = NULL;
    int index;
    enum pp_code code = check_target(m, a, t, &index, err);
    if (code)
        return code;
    const struct pp_tensor *w = m->plan.linears[index].w;
    struct pp_lora_target *own = &a->targets[index];
    own->rank = (int)t->rank;
    own->scale = t->scale;
    const bool hf = pp_adapter_file_hf_order(f);
    const enum pp_row_order rows = pp_arch_rows(pp_arch_by_name(hp->arch), t->name);
    const bool permuted = rows != PP_ROWS_SAME && hf != hp->rope_neox;
    if (t->rank) {
        code = pp_lora_floats(a, &t->a, t->a_turned, &down, err);
        if (!code)
            code = pp_lora_floats(a, &t->b, t->b_turned, &up, err);
    }
    if (!code && t->rank && permuted)
        code = reorder_rows(up, w->ne[1], own->rank, hp->head_dim, hf, err);
    if (!code && t->weight.data)
        code = pp_lora_load_matrix(a, index, t, permuted, hf, err);
    if (!code)
        code = pp_lora_load_kinds(a, index, t, permuted, hf, down, up, err);
    if (!code && !(pp_lora_kinds_idle(own, w->ne[0], w->ne[1]) &&
                   (!t->rank || own->scale == 0.0f || all_zero(down, t->rank * w->ne[0]) ||
                    all_zero(up, t->rank * w->ne[1]))))
        a->acts = true;
    if (!code && t->rank)
        code = hold(own, exact ? PP_TYPE_F32 : held_type(m, w, down, up, own->rank), w, down, up, err);
    pp_free(down);
    pp_free(up);
    return code;
}

/* Of what is held, and so of all that rows depend on. */
static struct pp_sha256 adapter_identity(const struct pp_adapter *a)
{
    static const char arithmetic[] = "lora-2";
    struct pp_sha256_stream s;
    pp_sha256_begin(&s);
    pp_sha256_update(&s, arithmetic, sizeof arithmetic);
    for (int i = 0; i < a->n_linears; i++) {
        const struct pp_lora_target *t = &a->targets[i];
        if (!t->rank)
            continue;
        struct pp_hash128 sums[2] = {pp_hash128(t->a_data, t->a_bytes), pp_hash128(t->b_data, t->b_bytes)};
        pp_sha256_update(&s, &i, sizeof i);
        pp_sha256_update(&s, &t->a.type, sizeof t->a.type);
        pp_sha256_update(&s, &t->rank, sizeof t->rank);
        pp_sha256_update(&s, &t->scale, sizeof t->scale);
        pp_sha256_update(&s, sums, sizeof sums);
    }
    pp_lora_hash_kinds(a, &s);
    pp_lora_hash_replaced(a, &s);
    pp_sha256_update(&s, a->invocation, (size_t)a->n_invocation * sizeof *a->invocation);
    return pp_sha256_end(&s);
}

static enum pp_code take_invocation(struct pp_adapter *a, const struct pp_adapter_file *f, struct pp_error *err)
{
    size_t n;
    const int32_t *tokens = pp_adapter_file_invocation(f, &n);
    if (!n)
        return PP_OK;
    for (size_t i = 0; i < n; i++)
        if (tokens[i] >= a->model->info.n_vocab)
            return pp_fail(err, PP_ERR_MISMATCH, "adapter %s is invoked by token %d, but %s has only %lld", a->path,
                           tokens[i], a->model->info.name, (long long)a->model->info.n_vocab);
    if (!(a->invocation = pp_malloc(n * sizeof *tokens)))
        return pp_fail_nomem(err, "an adapter's invocation");
    memcpy(a->invocation, tokens, n * sizeof *tokens);
    a->info.n_invocation = a->n_invocation = (int)n;
    return PP_OK;
}

/* "attn_q attn_v ...": each kind of projection once. */
static char *describe_targets(const struct pp_adapter_file *f)
{
    struct pp_buf b = {0};
    for (size_t i = 0; i < pp_adapter_file_n(f); i++) {
        char kind[64];
        const char *name = pp_adapter_file_at(f, i)->name;
        const char *dot = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
        snprintf(kind, sizeof kind, "%s", dot ? dot + 1 : name);
        char *end = strrchr(kind, '.');
        if (end)
            *end = 0;
        const char *found = strstr(pp_buf_cstr(&b), kind);
        size_t n = strlen(kind);
        if (found && (found[n] == ' ' || !found[n]))
            continue;
        if (b.len)
            pp_buf_char(&b, ' ');
        pp_buf_str(&b, kind);
    }
    return pp_buf_take(&b);
}

/* A matrix, a norm, or the table of embeddings. */
static enum pp_code load_any(const struct pp_model *m, struct pp_adapter *a, const struct pp_adapter_file *f,
                             const struct pp_adapter_target *t, bool exact, struct pp_error *err)
{
    enum pp_code code = check_form(m, a, t, pp_adapter_file_hf_order(f), err);
    if (code)
        return code;
    if (t->weight.n_dims == 1)
        return pp_lora_load_norm(a, t, err);
    if (!t->embedding)
        return load_target(m, a, f, t, exact, err);
    code = t->weight.data ? pp_lora_load_table(a, t, err) : PP_OK;
    return code || !t->rank ? code : pp_lora_load_embedding(a, t, err);
}

static enum pp_code load(const struct pp_model *m, const char *path, bool exact, struct pp_adapter **out,
                         struct pp_error *err)
{
    struct pp_adapter_file *f;
    *out = NULL;
    enum pp_code code = pp_adapter_file_open(path, &f, err);
    if (code)
        return code;
    struct pp_adapter *a = pp_calloc(1, sizeof *a);
    if (a) {
        char name[256];
        pp_name_of_path(path, name, sizeof name);
        a->model = m;
        a->n_linears = m->plan.n_linears;
        a->targets = pp_calloc((size_t)a->n_linears, sizeof *a->targets);
        a->path = pp_strdup(path);
        a->name = pp_strdup(name);
        a->target_names = describe_targets(f);
    }
    if (!a || !a->targets || !a->path || !a->name || !a->target_names) {
        pp_adapter_file_close(f);
        pp_adapter_free(a);
        return pp_fail_nomem(err, "an adapter");
    }
    for (size_t i = 0; !code && i < pp_adapter_file_n(f); i++) {
        const struct pp_adapter_target *t = pp_adapter_file_at(f, i);
        code = load_any(m, a, f, t, exact, err);
        a->info.bytes += t->a.size + t->b.size + t->magnitude.size + t->bias.size + t->b_bias.size + t->ia3.size +
                         t->weight.size;
        if (t->rank > a->info.rank)
            a->info.rank = (int)t->rank;
    }
    if (!code)
        code = take_invocation(a, f, err);
    if (!code)
        code = pp_adapter_file_check(f, err);
    a->info.n_targets = (int)pp_adapter_file_n(f);
    a->info.alpha = pp_adapter_file_alpha(f);
    a->info.kind = pp_adapter_file_kind(f);
    a->info.idle = !a->acts && (!a->embedding.rank || pp_adapter_file_idle(f));
    pp_adapter_file_close(f);
    if (code) {
        pp_adapter_free(a);
        return code;
    }
    a->info.path = a->path;
    a->info.name = a->name;
    a->info.targets = a->target_names;
    a->identity = adapter_identity(a);
    *out = a;
    return PP_OK;
}

enum pp_code pp_adapter_load(const struct pp_model *m, const char *path, struct pp_adapter **out, struct pp_error *err)
{
    return load(m, path, false, out, err);
}

enum pp_code pp_adapter_load_exact(const struct pp_model *m, const char *path, struct pp_adapter **out,
                                   struct pp_error *err)
{
    return load(m, path, true, out, err);
}

void pp_adapter_free(struct pp_adapter *a)
{
    if (!a)
        return;
    for (int i = 0; a->targets && i < a->n_linears; i++) {
        pp_free(a->targets[i].a_data);
        pp_free(a->targets[i].b_data);
        pp_lora_free_kinds(&a->targets[i]);
    }
    pp_lora_free_replaced(a);
    pp_free(a->embedding.a);
    pp_free(a->embedding.b_data);
    pp_free(a->targets);
    pp_free(a->invocation);
    pp_free(a->path);
    pp_free(a->name);
    pp_free(a->target_names);
    pp_free(a);
}

const struct pp_adapter_info *pp_adapter_info(const struct pp_adapter *a)
{
    return &a->info;
}
