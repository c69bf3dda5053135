/* adapter_made.c - PEFT's adapters that are LoRAs once their tensors are multiplied out; A and B are computed when the
 * file is opened.
 *
 *   AdaLoRA (arXiv 2303.10512)   B (E A) alpha / (ranknum + 1e-5), where E multiplies each row of A, and ranknum is the
 *                                rank with which training began, however little of it rank_pattern has left
 *                                (huggingface/peft, tuners/adalora/layer.py, SVDLinear.get_delta_weight)
 *   LoHa (arXiv 2108.06098)      P o Q alpha / r, the element-wise product of two products of rank r; written as one
 *                                product its rank is r r (tuners/loha/layer.py, tuners/lokr/layer.py, get_delta_weight)
 *   LoKr (arXiv 2309.14859)      P (x) Q alpha / r, the Kronecker product, which has Q times each value of P; its rank
 *                                is that of P times that of Q. Either may be a whole matrix */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/adapter_file_int.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/hparams.h"
#include "engine/quant.h"
#include "engine/safetensors.h"

struct pp_adapter_made {
    struct pp_adapter_made *next;
    float values[];
};

void pp_adapter_free_made(struct pp_adapter_file *f)
{
    for (struct pp_adapter_made *m = f->made, *next; m; m = next) {
        next = m->next;
        pp_free(m);
    }
    f->made = NULL;
}

/* Allocates a matrix [rows, cols] that lives as long as the file, and describes it as a tensor; NULL: out of memory. */
static float *make(struct pp_adapter_file *f, const char *name, int64_t rows, int64_t cols, struct pp_tensor *t)
{
    const size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    struct pp_adapter_made *m = pp_malloc(sizeof *m + bytes);
    if (!m)
        return NULL;
    m->next = f->made;
    f->made = m;
    f->made_bytes += bytes;
    *t = (struct pp_tensor){.name = name, .type = PP_TYPE_F32, .n_dims = 2, .ne = {cols, rows, 1, 1},
                            .data = m->values, .size = bytes};
    return m->values;
}

static bool is_float(const struct pp_tensor *t)
{
    return t->type == PP_TYPE_F32 || t->type == PP_TYPE_F16 || t->type == PP_TYPE_BF16;
}

static bool has_elements(const struct pp_tensor *t, int64_t n)
{
    return t && is_float(t) && t->size == pp_type_row_bytes(t->type, n);
}

/* The tensor with t's name in which `word` is replaced by `other`: for "X.lora_A.default", "lora_A" and "lora_E" this
 * is "X.lora_E.default". NULL: there is none. */
static const struct pp_tensor *companion(const struct pp_adapter_file *f, const struct pp_tensor *t, const char *word,
                                         const char *other)
{
    const char *at = strstr(t->name, word);
    struct pp_buf name = {0};
    if (!at)
        return NULL;
    pp_buf_fmt(&name, "%.*s%s%s", (int)(at - t->name), t->name, other, at + strlen(word));
    const struct pp_tensor *found = name.bad ? NULL : pp_safetensors_find(f->weights, pp_buf_cstr(&name));
    pp_buf_free(&name);
    return found;
}

/* --- AdaLoRA ------------------------------------------------------------------------------------------------- */

static const char half[] = ".lora_A";

/* The mask of the rows of a module's A that training has kept: a list in rank_pattern, whose keys are names of E; NULL:
 * all are kept. */
static const cJSON *find_mask(const struct pp_adapter_file *f, const char *module, size_t len)
{
    static const char prefix[] = "base_model.model.", end[] = ".lora_E";
    const cJSON *masks = pp_json_member(f->config, "rank_pattern"), *item;
    if (!cJSON_IsObject(masks)) /* items of a list have no names */
        return NULL;
    cJSON_ArrayForEach(item, masks)
    {
        const char *key = item->string;
        if (strncmp(key, prefix, sizeof prefix - 1) == 0)
            key += sizeof prefix - 1;
        if (strncmp(key, module, len) == 0 && strncmp(key + len, end, sizeof end - 1) == 0)
            return item;
    }
    return NULL;
}

/* Removes masked rows. Folders have only the rows that are kept, or all of them, of which the masked ones do not
 * count. */
static enum pp_code apply_mask(const struct pp_adapter_file *f, const struct pp_tensor *a, const cJSON *mask,
                               float *values, struct pp_error *err)
{
    const int64_t rank = a->ne[1], n = cJSON_GetArraySize(mask);
    const cJSON *item;
    int64_t kept = 0, i = 0;
    bool good = cJSON_IsArray(mask);
    cJSON_ArrayForEach(item, mask)
    {
        good = good && cJSON_IsBool(item);
        kept += cJSON_IsTrue(item);
    }
    if (!good || (kept != rank && n != rank))
        return pp_fail(err, PP_ERR_FORMAT, "%s: tensor %.200s has %lld rows, which does not match rank_pattern in %s",
                       f->path, a->name, (long long)rank, pp_adapter_config_file);
    cJSON_ArrayForEach(item, mask)
    {
        if (n == rank && !cJSON_IsTrue(item))
            values[i] = 0;
        i++;
    }
    return PP_OK;
}

/* E [rank]. */
static enum pp_code read_values(const struct pp_adapter_file *f, const char *module, size_t len,
                                const struct pp_tensor *a, float *values, struct pp_error *err)
{
    const struct pp_tensor *e = companion(f, a, half, ".lora_E");
    const cJSON *mask = find_mask(f, module, len);
    if (!has_elements(e, a->ne[1]))
        return pp_fail(err, PP_ERR_FORMAT, "%s is an AdaLoRA, but has no lora_E with a value for each of the %lld rows "
                       "of tensor %.200s", f->path, (long long)a->ne[1], a->name);
    pp_dequantize_row(e->type, e->data, values, a->ne[1]);
    return mask ? apply_mask(f, a, mask, values, err) : PP_OK;
}

enum pp_code pp_adapter_fold(struct pp_adapter_file *f, const char *module, size_t len, const struct pp_tensor *a,
                             struct pp_tensor *out, struct pp_error *err)
{
    const int64_t rank = a->ne[1], n = a->ne[0];
    *out = *a;
    if (a->n_dims != 2 || !is_float(a))
        return PP_OK; /* the caller reports it */
    float *values = pp_malloc((size_t)rank * sizeof *values), *to = make(f, a->name, rank, n, out);
    enum pp_code code = values && to ? read_values(f, module, len, a, values, err)
                                     : pp_fail_nomem(err, "an adapter's matrices");
    for (int64_t k = 0; k < rank && !code; k++, to += n) {
        pp_dequantize_row(a->type, (const uint8_t *)a->data + (size_t)k * pp_type_row_bytes(a->type, n), to, n);
        for (int64_t i = 0; i < n; i++)
            to[i] *= values[k];
    }
    pp_free(values);
    return code;
}

enum pp_code pp_adapter_fold_scale(const struct pp_adapter_file *f, const struct pp_tensor *a, float *scale,
                                   struct pp_error *err)
{
    const struct pp_tensor *ranknum = companion(f, a, half, ".ranknum");
    float rank = 12; /* PEFT's default */
    if (ranknum && has_elements(ranknum, 1))
        pp_dequantize_row(ranknum->type, ranknum->data, &rank, 1);
    else if (ranknum || !pp_json_float(f->config, "init_r", &rank))
        rank = 0;
    if (!(rank > 0) || !isfinite(rank))
        return pp_fail(err, PP_ERR_FORMAT, "%s: the rank that tensor %.200s is divided by (%s) is not a positive "
                                           "number",
                       f->path, a->name, ranknum ? "ranknum" : "init_r");
    const double alpha = f->alpha > 0 ? (double)f->alpha : (double)a->ne[1];
    *scale = (float)(alpha / ((double)rank + 1e-5));
    return PP_OK;
}

/* --- LoHa and LoKr ------------------------------------------------------------------------------------------- */

/* P or Q as a product: [rows, rank] times [rank, cols]. */
struct factor {
    int64_t rows, cols, rank;
    float *left, *right;
};

static const struct made_kind {
    const char *whole[2], *left[2], *right[2]; /* name endings of the tensors of P and Q; whole NULL: always products */
    bool kronecker;
} made_kinds[] = {
    {{NULL, NULL}, {".hada_w1_a", ".hada_w2_a"}, {".hada_w1_b", ".hada_w2_b"}, false},
    {{".lokr_w1", ".lokr_w2"}, {".lokr_w1_a", ".lokr_w2_a"}, {".lokr_w1_b", ".lokr_w2_b"}, true},
};

static const struct pp_tensor *matrix(const struct pp_tensor *t)
{
    return t && t->n_dims == 2 && is_float(t) && t->size ? t : NULL;
}

static float *read_matrix(const struct pp_tensor *t)
{
    float *to = pp_malloc((size_t)(t->ne[0] * t->ne[1]) * sizeof *to);
    if (to)
        pp_dequantize_row(t->type, t->data, to, t->ne[0] * t->ne[1]);
    return to;
}

static float *unit_matrix(int64_t n)
{
    float *to = pp_calloc((size_t)(n * n), sizeof *to);
    for (int64_t i = 0; to && i < n; i++)
        to[i * n + i] = 1;
    return to;
}

/* A whole matrix is the product of itself and a unit matrix, on the side that gives the lower rank. */
static bool read_whole(const struct pp_tensor *t, struct factor *f)
{
    const bool wide = t->ne[0] > t->ne[1];
    *f = (struct factor){.rows = t->ne[1], .cols = t->ne[0], .rank = t->ne[wide]};
    f->left = wide ? unit_matrix(f->rank) : read_matrix(t);
    f->right = wide ? read_matrix(t) : unit_matrix(f->rank);
    return f->left && f->right;
}

static bool read_product(const struct pp_tensor *left, const struct pp_tensor *right, struct factor *f)
{
    *f = (struct factor){.rows = left->ne[1], .cols = right->ne[0], .rank = left->ne[0], .left = read_matrix(left),
                         .right = read_matrix(right)};
    return f->left && f->right;
}

/* Reads P or Q (which) of the module whose first tensor is t; `word` is its ending. */
static enum pp_code read_factor(const struct pp_adapter_file *f, const struct made_kind *k, const struct pp_tensor *t,
                                const char *word, int which, struct factor *to, struct pp_error *err)
{
    const struct pp_tensor *whole = k->whole[which] ? matrix(companion(f, t, word, k->whole[which])) : NULL;
    const struct pp_tensor *left = matrix(companion(f, t, word, k->left[which]));
    const struct pp_tensor *right = matrix(companion(f, t, word, k->right[which]));
    if (!whole && (!left || !right || left->ne[0] != right->ne[1]))
        return pp_fail(err, PP_ERR_FORMAT, "%s: the module of tensor %.200s lacks %s or %s, or their shapes do not "
                                           "match", f->path, t->name, k->left[which] + 1, k->right[which] + 1);
    if (whole ? read_whole(whole, to) : read_product(left, right, to))
        return PP_OK;
    return pp_fail_nomem(err, "an adapter's matrices");
}

/* Row (or column) i of the combined product: each value of p times each of q. step: distance of values. */
static void multiply(const float *p, int64_t p_step, int64_t p_rank, const float *q, int64_t q_step, int64_t q_rank,
                     float *out, int64_t out_step)
{
    for (int64_t a = 0; a < p_rank; a++)
        for (int64_t b = 0; b < q_rank; b++)
            out[(a * q_rank + b) * out_step] = p[a * p_step] * q[b * q_step];
}

static void fill_halves(const struct factor *p, const struct factor *q, bool kronecker, int64_t rows, int64_t cols,
                        float *a, float *b)
{
    const int64_t rank = p->rank * q->rank;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t of_p = kronecker ? r / q->rows : r, of_q = kronecker ? r % q->rows : r;
        multiply(p->left + of_p * p->rank, 1, p->rank, q->left + of_q * q->rank, 1, q->rank, b + r * rank, 1);
    }
    for (int64_t c = 0; c < cols; c++) {
        const int64_t of_p = kronecker ? c / q->cols : c, of_q = kronecker ? c % q->cols : c;
        multiply(p->right + of_p, p->cols, p->rank, q->right + of_q, q->cols, q->rank, a + c, cols);
    }
}

/* --- without multiplying ------------------------------------------------------------------------------------- */

/* Rows of a factor's left half, or columns of its right one: n lines, `next` apart, of `rank` values `step` apart. */
struct lines {
    const float *values;
    int64_t n, next, step, rank;
};

static bool line_acts(const struct lines *l, int64_t i)
{
    for (int64_t k = 0; i < l->n && k < l->rank; k++)
        if (l->values[i * l->next + k * l->step] != 0.0f)
            return true;
    return false;
}

/* Whether multiplying these out gives values other than zeros. Element-wise, line i of p meets line i of q; with the
 * Kronecker product each line meets all. */
static bool half_acts(const struct lines *p, const struct lines *q, bool kronecker)
{
    bool of_p = false, of_q = false;
    for (int64_t i = 0; (i < p->n || i < q->n) && !(of_p && of_q); i++) {
        of_p = (kronecker && of_p) || line_acts(p, i);
        of_q = (kronecker && of_q) || line_acts(q, i);
    }
    return of_p && of_q;
}

/* A [rank, cols] and B [rows, rank] with a single value that represents all: 0 if they are zeros. */
static enum pp_code outline_halves(struct pp_adapter_file *f, const struct pp_tensor *t, const struct factor *p,
                                   const struct factor *q, bool kronecker, struct pp_tensor halves[2],
                                   struct pp_error *err)
{
    const struct lines right[] = {{p->right, p->cols, 1, p->cols, p->rank}, {q->right, q->cols, 1, q->cols, q->rank}};
    const struct lines left[] = {{p->left, p->rows, p->rank, 1, p->rank}, {q->left, q->rows, q->rank, 1, q->rank}};
    float *a = make(f, t->name, 1, 1, &halves[0]), *b = make(f, t->name, 1, 1, &halves[1]);
    if (!a || !b)
        return pp_fail_nomem(err, "an adapter's matrices");
    *a = half_acts(&right[0], &right[1], kronecker);
    *b = half_acts(&left[0], &left[1], kronecker);
    halves[0].ne[0] = kronecker ? p->cols * q->cols : p->cols;
    halves[1].ne[1] = kronecker ? p->rows * q->rows : p->rows;
    halves[0].ne[1] = halves[1].ne[0] = p->rank * q->rank;
    for (int i = 0; i < 2; i++) /* the size is reported, though nothing is allocated */
        f->made_bytes += (size_t)halves[i].ne[0] * (size_t)halves[i].ne[1] * sizeof(float);
    return PP_OK;
}

static enum pp_code make_halves(struct pp_adapter_file *f, const struct pp_tensor *t, const struct factor *p,
                                const struct factor *q, bool kronecker, struct pp_tensor halves[2],
                                struct pp_error *err)
{
    enum { MOST_RANK = 256, MOST_SIDE = 1 << 19 };
    const size_t most_bytes = (size_t)4 << 30;
    const int64_t rank = p->rank * q->rank;
    const int64_t rows = kronecker ? p->rows * q->rows : p->rows, cols = kronecker ? p->cols * q->cols : p->cols;
    if (!kronecker && (p->rows != q->rows || p->cols != q->cols))
        return pp_fail(err, PP_ERR_FORMAT, "%s: the two matrices that tensor %.200s belongs to differ in size",
                       f->path, t->name);
    if (p->rank > MOST_RANK || q->rank > MOST_RANK || rank > MOST_RANK)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: written as a LoRA, tensor %.200s has rank %lld; at most %d is "
                                                "supported. PEFT can approximate it by a LoRA of lower rank "
                                                "(save_as_lora)", f->path, t->name,
                       (long long)rank, MOST_RANK);
    if (rows > MOST_SIDE || cols > MOST_SIDE || f->made_bytes > most_bytes)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: written as a LoRA, its matrices are too large, at tensor %.200s",
                       f->path, t->name);
    if (f->looked_at)
        return outline_halves(f, t, p, q, kronecker, halves, err);
    float *a = make(f, t->name, rank, cols, &halves[0]), *b = make(f, t->name, rows, rank, &halves[1]);
    if (!a || !b)
        return pp_fail_nomem(err, "an adapter's matrices");
    fill_halves(p, q, kronecker, rows, cols, a, b);
    return PP_OK;
}

enum pp_code pp_adapter_make_halves(struct pp_adapter_file *f, const struct pp_tensor *t, struct pp_tensor halves[2],
                                    struct pp_error *err)
{
    struct factor factors[2] = {{0}};
    const struct made_kind *k = &made_kinds[strstr(t->name, made_kinds[0].left[0]) == NULL];
    const char *word = strstr(t->name, k->left[0]) ? k->left[0] : k->whole[0];
    enum pp_code code = PP_OK;
    for (int i = 0; i < 2 && !code; i++)
        code = read_factor(f, k, t, word, i, &factors[i], err);
    if (!code)
        code = make_halves(f, t, &factors[0], &factors[1], k->kronecker, halves, err);
    for (int i = 0; i < 2; i++) {
        pp_free(factors[i].left);
        pp_free(factors[i].right);
    }
    return code;
}

bool pp_adapter_factor_counts(const struct pp_adapter_file *f, const struct pp_tensor *t)
{
    for (size_t i = 0; i < sizeof made_kinds / sizeof *made_kinds; i++) {
        const struct made_kind *k = &made_kinds[i];
        const char *const words[] = {k->left[1], k->right[0], k->right[1], k->whole[1]};
        for (size_t w = 0; w < sizeof words / sizeof *words; w++)
            if (words[w] && strstr(t->name, words[w]) &&
                (companion(f, t, words[w], k->left[0]) || (k->whole[0] && companion(f, t, words[w], k->whole[0]))))
                return true;
    }
    return false;
}
