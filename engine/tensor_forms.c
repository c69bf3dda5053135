#include "engine/tensor_forms.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/gguf.h"
#include "engine/hf_form.h"
#include "engine/quant.h"

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

enum { NAME = 128 };

static const char fused_weight[] = ".ffn_gate_up_exps.weight", fused_bias[] = ".ffn_gate_up_exps.bias";

static bool is_gptoss(const char *family)
{
    return strcmp(family, "gptoss") == 0 || strcmp(family, "gpt-oss") == 0;
}

/* What ollama calls otherwise in gpt-oss. */
static const char *const gptoss_names[][2] = {
    {".attn_out.weight", ".attn_output.weight"}, {".attn_out.bias", ".attn_output.bias"},
    {".attn_sinks", ".attn_sinks.weight"},       {".ffn_norm.weight", ".post_attention_norm.weight"},
};

/* The index in that table; -1: none. */
static int renamed(const char *family, const char *name)
{
    int i = (int)(sizeof gptoss_names / sizeof *gptoss_names) - 1;
    while (i >= 0 && !(is_gptoss(family) && pp_ends_with(name, gptoss_names[i][0])))
        i--;
    return i;
}

enum pp_gguf_form pp_gguf_form(const char *family, const struct pp_tensor *t)
{
    if (pp_ends_with(t->name, fused_weight) || pp_ends_with(t->name, fused_bias))
        return is_gptoss(family) ? PP_GGUF_INTERLEAVED : PP_GGUF_HALVES;
    if (renamed(family, t->name) >= 0)
        return PP_GGUF_RENAMED;
    if (pp_ends_with(t->name, ".attn_kv_b.weight"))
        return PP_GGUF_HEADS;
    if (strcmp(t->name, "altup_proj.weight") == 0 || strcmp(t->name, "altup_unembd_proj.weight") == 0)
        return PP_GGUF_STREAMS;
    return t->type == PP_TYPE_MXFP4_PAIRS ? PP_GGUF_PAIRS
           : t->type == PP_TYPE_NVFP4     ? PP_GGUF_NVFP4
                                          : PP_GGUF_USUAL;
}

static enum pp_code fail_shape(const struct pp_tensor *t, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "tensor %.100s has the shape %lld x %lld x %lld, which cannot be the gate and "
                                       "up matrices of experts", t->name, (long long)t->ne[2], (long long)t->ne[1],
                                       (long long)t->ne[0]);
}

/* "blk.3.ffn_gate" or "blk.3.ffn_up" with `end`, for "blk.3.ffn_gate_up_exps...". */
static const char *half_name(const struct pp_tensor *t, int half, const char *end, char out[NAME])
{
    enum { MOST = 64 };
    const size_t n = strlen(t->name) - strlen(strstr(t->name, ".ffn_gate_up_exps"));
    snprintf(out, NAME, "%.*s.ffn_%s%s", n < MOST ? (int)n : MOST, t->name, half ? "up" : "gate", end);
    return out;
}

/* Half i of fused gates and values, two for each matrix. */
static struct pp_tensor half_of(const struct pp_tensor *t, int64_t i)
{
    const int64_t n_out = t->ne[1] / 2;
    const size_t size = pp_type_row_bytes(t->type, t->ne[0]) * (size_t)n_out;
    return (struct pp_tensor){.type = t->type, .n_dims = 2, .ne = {t->ne[0], n_out, 1, 1}, .size = size,
                              .data = (const uint8_t *)t->data + (size_t)i * size};
}

/* Adds the matrices of each expert; nothing is copied. */
static enum pp_code add_halves(struct pp_tensor_list *l, const struct pp_tensor *t, struct pp_error *err)
{
    const int64_t n = t->ne[2];
    enum pp_code code = PP_OK;
    if (t->n_dims != 3 || t->ne[1] % 2 != 0 || n > PP_MAX_EXPERTS)
        return fail_shape(t, err);
    for (int64_t i = 0; i < 2 * n && !code; i++) {
        const struct pp_tensor one = half_of(t, i);
        char end[32], name[NAME];
        snprintf(end, sizeof end, ".%lld.weight", (long long)(i / 2));
        code = pp_tensor_list_add(l, &one, half_name(t, (int)(i % 2), end, name), false, err);
    }
    return code;
}

/* --- weights with factors ----------------------------------------------------------------------------------------- */

/* The factor of a matrix; NULL: it has several, as ssm_in. */
static const float *scale_of(const struct pp_folder_scales *s, const char *name)
{
    const struct {
        const char *kind;
        const float *scale;
    } kinds[] = {{"token_embd.", &s->embd}, {"output.", &s->output}, {".attn_q.", &s->q}, {".attn_k.", &s->k},
                 {".attn_v.", &s->v}, {".attn_output.", &s->attn_output}, {".ssm_out.", &s->ssm_out},
                 {".ffn_gate.", &s->ffn_gate}, {".ffn_down.", &s->ffn_down}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].kind[0] == '.' ? strstr(name, kinds[i].kind) != NULL
                                    : strncmp(name, kinds[i].kind, strlen(kinds[i].kind)) == 0)
            return kinds[i].scale;
    return NULL;
}

enum { SSM_PARTS = 5 };

/* Where the rows of each part of ssm_in end. */
static void find_ends(const struct pp_hparams *hp, int64_t ends[SSM_PARTS])
{
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    ends[0] = values;
    ends[1] = 2 * values;
    ends[2] = 2 * values + keys;
    ends[3] = 2 * (values + keys);
    ends[4] = 2 * (values + keys) + hp->n_state_head;
}

bool pp_hf_has_scales(const struct pp_hparams *hp)
{
    const struct pp_folder_scales *s = &hp->scales;
    const float all[] = {s->embd, s->q, s->k, s->v, s->attn_output, s->ssm_out, s->ffn_gate, s->ffn_down,
                         s->ssm_in[0], s->ssm_in[1], s->ssm_in[2], s->ssm_in[3], s->ssm_in[4]};
    bool any = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        any = any || (all[i] != 0.0f && all[i] != 1.0f); /* 0: the family has no such matrix */
    return s->any && any;
}

float pp_hf_row_scale(const struct pp_hparams *hp, const char *name, int64_t row)
{
    const float *one = scale_of(&hp->scales, name);
    int64_t ends[SSM_PARTS];
    int i = 0;
    find_ends(hp, ends);
    while (i < SSM_PARTS - 1 && row >= ends[i])
        i++;
    return one ? *one : hp->scales.ssm_in[i];
}

/* Adds a norm of a latent vector, multiplied by the square root of n_embd over its size. */
static enum pp_code add_grown(struct pp_tensor_list *l, const struct pp_tensor *t, const struct pp_hparams *hp,
                              const char *name, struct pp_error *err)
{
    const float by = sqrtf((float)hp->n_embd / (float)t->ne[0]);
    struct pp_tensor made = {.type = PP_TYPE_F32, .n_dims = 1, .ne = {t->ne[0], 1, 1, 1},
                             .size = (size_t)t->ne[0] * sizeof(float)};
    float *f = pp_malloc(made.size);
    if (!f)
        return pp_fail_nomem(err, t->name);
    pp_dequantize_row(t->type, t->data, f, t->ne[0]);
    for (int64_t i = 0; i < t->ne[0]; i++)
        f[i] *= by;
    made.data = f;
    return pp_tensor_list_add(l, &made, name, true, err);
}

enum pp_code pp_hf_scaled_add(struct pp_tensor_list *l, const struct pp_tensor *t, const struct pp_hparams *hp,
                              const char *name, struct pp_error *err)
{
    const float *one = scale_of(&hp->scales, name);
    int64_t ends[SSM_PARTS];
    find_ends(hp, ends);
    if (t->n_dims == 1 && hp->scales.latents)
        return add_grown(l, t, hp, name, err);
    struct pp_rows *rows = pp_tensor_list_rows(l, err);
    struct pp_tensor made = *t;
    if (!rows)
        return PP_ERR_NOMEM;
    if (t->n_dims != 2)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "tensor %.200s is not a matrix, as pippin needs",
                       t->name);
    *rows = (struct pp_rows){.form = PP_FORM_FLOATS, .type = PP_TYPE_F32, .stored_type = t->type, .weights = t->data,
                             .row_step = 1, .n_cols = t->ne[0], .n_rows = t->ne[1], .n_scaled = one ? 1 : SSM_PARTS};
    for (int i = 0; i < rows->n_scaled; i++) {
        rows->scaled[i].end = ends[i];
        rows->scaled[i].by = one ? *one : hp->scales.ssm_in[i];
    }
    made.type = PP_TYPE_F32;
    made.size = pp_type_row_bytes(PP_TYPE_F32, t->ne[0]) * (size_t)t->ne[1];
    made.rows = rows;
    made.data = NULL;
    return pp_tensor_list_add(l, &made, name, false, err);
}

enum pp_code pp_hf_halves_add(struct pp_tensor_list *l, const struct pp_tensor *t, const char *gate, const char *up,
                              struct pp_error *err)
{
    static const char stack[] = "_exps.weight";
    const int64_t n = t->n_dims == 3 ? t->ne[2] : 1;
    enum pp_code code = PP_OK;
    if (t->n_dims < 2 || t->n_dims > 3 || t->ne[1] % 2 != 0 || n > PP_MAX_EXPERTS ||
        (t->n_dims == 3) != (pp_ends_with(gate, stack) && pp_ends_with(up, stack)))
        return fail_shape(t, err);
    for (int64_t i = 0; i < 2 * n && !code; i++) {
        const struct pp_tensor one = half_of(t, i);
        const char *whole = i % 2 ? up : gate;
        char name[NAME];
        if (t->n_dims == 3)
            snprintf(name, sizeof name, "%.*s.%lld.weight", (int)(strlen(whole) - strlen(stack)), whole,
                     (long long)(i / 2));
        else
            snprintf(name, sizeof name, "%s", whole);
        code = pp_tensor_list_add(l, &one, name, false, err);
    }
    return code;
}

int64_t pp_hf_qkv_pieces(const struct pp_hparams *hp)
{
    return hp->qkv_pieces ? hp->qkv_pieces : PP_HF_QKV_PIECES;
}

int pp_hf_qkv_row(enum pp_hf_form form, const struct pp_hparams *hp, int64_t row, int64_t *in)
{
    const int64_t head = row / hp->head_dim, at = row % hp->head_dim, n_q = hp->n_head, n_kv = hp->n_head_kv;
    const int64_t each = n_q / n_kv, group = head / (each + 2), j = head % (each + 2);
    int part = head < n_q ? 0 : head < n_q + n_kv ? 1 : 2;
    int64_t of_part = part ? (head - n_q) % n_kv : head;
    if (form == PP_HF_QKV_BY_GROUP) {
        part = j < each ? 0 : j == each ? 1 : 2;
        of_part = part ? group : group * each + j;
    }
    if (form == PP_HF_QKV_IN_PIECES) {
        const int64_t n = n_q / pp_hf_qkv_pieces(hp), in_piece = head % (3 * n);
        part = in_piece < n ? 0 : in_piece < 2 * n ? 2 : 1;
        of_part = head / (3 * n) * n + in_piece % n;
    }
    *in = of_part * hp->head_dim + at;
    return part;
}

/* Adds the biases [n_expert, 2 n_ff] of gates, then values. */
static enum pp_code add_bias_halves(struct pp_tensor_list *l, const struct pp_tensor *t, struct pp_error *err)
{
    const size_t row = pp_type_row_bytes(t->type, t->ne[0]), half = row / 2;
    enum pp_code code = PP_OK;
    if (t->n_dims != 2 || t->ne[0] % 2 != 0 || pp_type_info(t->type)->block_elements != 1)
        return fail_shape(t, err);
    for (int h = 0; h < 2 && !code; h++) {
        struct pp_tensor one = {.type = t->type, .n_dims = 2, .ne = {t->ne[0] / 2, t->ne[1], 1, 1}};
        uint8_t *data = pp_malloc(one.size = t->size / 2);
        char name[NAME];
        if (!data)
            return pp_fail_nomem(err, t->name);
        for (int64_t r = 0; r < t->ne[1]; r++)
            memcpy(data + (size_t)r * half, (const uint8_t *)t->data + (size_t)r * row + (size_t)h * half, half);
        one.data = data;
        code = pp_tensor_list_add(l, &one, half_name(t, h, "_exps.bias", name), true, err);
    }
    return code;
}

/* Adds interleaved biases of gates and values. */
static enum pp_code add_interleaved_biases(struct pp_tensor_list *l, const struct pp_tensor *t, struct pp_error *err)
{
    struct pp_tensor made[2];
    char name[NAME];
    int n;
    enum pp_code code = pp_hf_transform(t, PP_HF_BIASES_INTERLEAVED, NULL, made, &n, err);
    if (code)
        return code;
    code = pp_tensor_list_add(l, &made[0], half_name(t, 0, "_exps.bias", name), true, err);
    if (code) {
        pp_free((void *)(uintptr_t)made[1].data);
        return code;
    }
    return pp_tensor_list_add(l, &made[1], half_name(t, 1, "_exps.bias", name), true, err);
}

/* Makes *to a tensor that is made from t row by row: MXFP4 pairs become GGUF's MXFP4, NVFP4 becomes Q8_0, other types
 * are kept. */
static enum pp_code by_rows(struct pp_tensor_list *l, const struct pp_tensor *t, struct pp_tensor *to,
                            struct pp_error *err)
{
    enum { BLOCK = 17 }; /* a scale and 16 bytes */
    const bool pairs = t->type == PP_TYPE_MXFP4_PAIRS;
    struct pp_rows *r = pp_tensor_list_rows(l, err);
    if (!r)
        return PP_ERR_NOMEM;
    *r = (struct pp_rows){.form = PP_FORM_FLOATS, .type = t->type, .stored_type = t->type, .as_blocks = true,
                          .n_cols = t->ne[0], .n_rows = t->ne[1] * t->ne[2] * t->ne[3], .row_step = 1,
                          .weights = t->data};
    if (pairs) {
        r->form = PP_FORM_FP4;
        r->type = PP_TYPE_MXFP4;
        r->group = 32;
        r->n_groups = t->ne[0] / 32;
        r->scales = (struct pp_numbers){.data = t->data, .kind = PP_NUMBER_E8M0};
        r->weights = (const uint8_t *)t->data + 1;
        r->pitch = BLOCK;
        r->factor = 1;
    }
    if (t->type == PP_TYPE_NVFP4) {
        r->form = PP_FORM_NVFP4;
        r->type = PP_TYPE_Q8_0;
        r->as_blocks = false;
    }
    *to = *t;
    to->type = r->type;
    to->size = pp_type_row_bytes(r->type, t->ne[0]) * (size_t)r->n_rows;
    to->rows = r;
    return PP_OK;
}

static enum pp_code add_interleaved(struct pp_tensor_list *l, const struct pp_tensor *t, struct pp_error *err)
{
    struct pp_tensor rows;
    char gate[NAME], up[NAME];
    if (t->n_dims != 3 || t->ne[1] % 2 != 0)
        return fail_shape(t, err);
    enum pp_code code = by_rows(l, t, &rows, err);
    return code ? code
                : pp_tensor_list_add_interleaved(l, &rows, half_name(t, 0, "_exps.weight", gate),
                                                 half_name(t, 1, "_exps.weight", up), err);
}

static enum pp_code add_renamed(struct pp_tensor_list *l, const char *family, const struct pp_tensor *t,
                                struct pp_error *err)
{
    const char *const *names = gptoss_names[renamed(family, t->name)];
    char name[NAME];
    enum { MOST = 64 };
    const size_t n = strlen(t->name) - strlen(names[0]);
    snprintf(name, sizeof name, "%.*s%s", n < MOST ? (int)n : MOST, t->name, names[1]);
    return pp_tensor_list_add(l, t, name, false, err);
}

/* Adds the matrix of each residual stream but the first; nothing is copied. */
static enum pp_code add_streams(struct pp_tensor_list *l, const struct pp_tensor *t, struct pp_error *err)
{
    const int end = (int)(strlen(t->name) - strlen(".weight"));
    const size_t size = t->size / (size_t)t->ne[2];
    enum pp_code code = PP_OK;
    if (t->n_dims != 3 || t->ne[2] > PP_MAX_STREAMS)
        return pp_fail(err, PP_ERR_FORMAT, "tensor %.100s does not have a matrix for each stream", t->name);
    for (int64_t i = 0; i < t->ne[2] && !code; i++) {
        const struct pp_tensor one = {.type = t->type, .n_dims = 2, .ne = {t->ne[0], t->ne[1], 1, 1}, .size = size,
                                      .data = (const uint8_t *)t->data + (size_t)i * size};
        char name[NAME];
        snprintf(name, sizeof name, "%.*s.%lld.weight", end, t->name, (long long)i);
        code = pp_tensor_list_add(l, &one, name, false, err);
    }
    return code;
}

static bool is_norm(const struct pp_tensor *t)
{
    return t->type == PP_TYPE_F32 && t->n_dims == 1 && pp_ends_with(t->name, "norm.weight");
}

bool pp_gguf_lacks_ones(const struct pp_gguf *g, const char *family)
{
    enum { FEW = 64 }; /* one in 64 */
    int64_t n = 0, below = 0;
    if (strcmp(family, "gigachat35") != 0)
        return false;
    for (size_t i = 0; i < pp_gguf_n_tensors(g); i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(g, i);
        for (int64_t j = 0; is_norm(t) && j < t->ne[0]; j++, n++) {
            float v;
            memcpy(&v, (const uint8_t *)t->data + (size_t)j * sizeof v, sizeof v);
            below += v < 0;
        }
    }
    return below * FEW > n;
}

enum pp_code pp_gguf_form_add(struct pp_tensor_list *l, const char *family, const struct pp_tensor *t, bool lacks_ones,
                              struct pp_error *err)
{
    const bool bias = pp_ends_with(t->name, ".bias");
    struct pp_tensor rows, whole[2];
    enum pp_code code;
    int n;
    if (lacks_ones && is_norm(t)) {
        code = pp_hf_transform(t, PP_HF_PLUS_ONE, NULL, whole, &n, err);
        return code ? code : pp_tensor_list_add(l, &whole[0], t->name, true, err);
    }
    switch (pp_gguf_form(family, t)) {
    case PP_GGUF_RENAMED:
        return add_renamed(l, family, t, err);
    case PP_GGUF_PAIRS:
    case PP_GGUF_NVFP4:
        code = by_rows(l, t, &rows, err);
        return code ? code : pp_tensor_list_add(l, &rows, t->name, false, err);
    case PP_GGUF_HALVES:
        return bias ? add_bias_halves(l, t, err) : add_halves(l, t, err);
    case PP_GGUF_STREAMS:
        return add_streams(l, t, err);
    case PP_GGUF_INTERLEAVED:
        return bias ? add_interleaved_biases(l, t, err) : add_interleaved(l, t, err);
    default:
        return pp_tensor_list_add(l, t, t->name, false, err);
    }
}

/* The NVFP4 matrix to which a tensor of scales belongs, if any. */
static struct pp_tensor *scaled_by(const struct pp_tensor_list *l, const char *name, const char *end)
{
    const size_t n = strlen(name) - strlen(end);
    for (size_t i = 0; pp_ends_with(name, end) && i < l->n; i++) {
        struct pp_tensor *t = &l->t[i];
        if (t->rows && t->rows->form == PP_FORM_NVFP4 && strncmp(t->name, name, n) == 0 &&
            strcmp(t->name + n, ".weight") == 0)
            return t;
    }
    return NULL;
}

/* Sets the factors of a matrix's scales. */
static enum pp_code take_scale(struct pp_tensor *t, const struct pp_tensor *scale, struct pp_error *err)
{
    struct pp_rows *rows = (struct pp_rows *)(uintptr_t)t->rows; /* of the list, so writable */
    if (scale->type != PP_TYPE_F32 || scale->n_dims != 1 || scale->ne[0] != t->ne[2])
        return pp_fail(err, PP_ERR_FORMAT, "tensor %.100s does not have a scale for each of %lld matrices", scale->name,
                       (long long)t->ne[2]);
    rows->factors = (struct pp_numbers){.data = scale->data, .kind = PP_NUMBER_F32};
    rows->block_rows = t->ne[1];
    return PP_OK;
}

enum pp_code pp_gguf_take_scales(struct pp_tensor_list *l, struct pp_error *err)
{
    bool *taken = pp_calloc(l->n, sizeof *taken);
    size_t kept = 0;
    enum pp_code code = taken ? PP_OK : pp_fail_nomem(err, "the list of tensors");
    for (size_t i = 0; i < l->n && !code; i++) {
        struct pp_tensor *t = scaled_by(l, l->t[i].name, ".scale");
        taken[i] = t || scaled_by(l, l->t[i].name, ".input_scale");
        if (t)
            code = take_scale(t, &l->t[i], err);
    }
    for (size_t i = 0; i < l->n && !code; i++)
        if (taken[i])
            pp_free((void *)(uintptr_t)l->t[i].name);
        else
            l->t[kept++] = l->t[i];
    l->n = code ? l->n : kept;
    pp_free(taken);
    return code;
}

/* --- norms of heads ----------------------------------------------------------------------------------------------- */

/* The norms of a layer's queries or keys, while they are collected. */
struct stack {
    struct pp_tensor t;         /* data: allocated, or NULL */
    bool *has;                  /* [n_heads] */
    int64_t n;                  /* heads collected so far */
};

/* Whether a tensor is the norm of a single head, and of which. */
static bool is_head_norm(const char *name, int64_t *layer, int *key, int64_t *head)
{
    long long l, h;
    char kind, end[8];
    if (sscanf(name, "blk.%4lld.attn_%c_norm.%4lld.%7s", &l, &kind, &h, end) != 4 || strcmp(end, "weight") != 0)
        return false;
    *layer = l;
    *key = kind == 'k';
    *head = h;
    return true;
}

static enum pp_code take_head(struct stack *s, const struct pp_tensor *t, int64_t head, int64_t n_heads,
                              struct pp_error *err)
{
    if (!s->t.data) {
        s->t = (struct pp_tensor){.type = t->type, .n_dims = 2, .ne = {t->ne[0], n_heads, 1, 1},
                                  .size = t->size * (size_t)n_heads};
        s->t.data = pp_calloc((size_t)n_heads, t->size);
        s->has = pp_calloc((size_t)n_heads, sizeof *s->has);
        if (!s->t.data || !s->has)
            return pp_fail_nomem(err, t->name);
    }
    if (head >= n_heads || s->has[head] || t->n_dims != 1 || t->type != s->t.type || t->ne[0] != s->t.ne[0])
        return pp_fail(err, PP_ERR_FORMAT, "tensor %.100s is not a norm of one of %lld heads, or differs from the "
                                           "others", t->name,
                       (long long)n_heads);
    memcpy((uint8_t *)(uintptr_t)s->t.data + (size_t)head * t->size, t->data, t->size);
    s->has[head] = true;
    s->n++;
    return PP_OK;
}

/* Moves the heads' tensors from the list to the stacks. */
static enum pp_code take_heads(struct pp_tensor_list *l, const struct pp_hparams *hp, struct stack (*stacks)[2],
                               struct pp_error *err)
{
    size_t kept = 0;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < l->n; i++) {
        int64_t layer, head;
        int key;
        if (code || !is_head_norm(l->t[i].name, &layer, &key, &head) || layer >= hp->n_layer) {
            l->t[kept++] = l->t[i];
            continue;
        }
        code = take_head(&stacks[layer][key], &l->t[i], head, key ? hp->n_head_kv : hp->n_head, err);
        pp_free((void *)(uintptr_t)l->t[i].name);
    }
    l->n = kept;
    return code;
}

enum pp_code pp_join_head_norms(struct pp_tensor_list *l, const struct pp_hparams *hp, struct pp_error *err)
{
    struct stack (*stacks)[2] = pp_calloc((size_t)hp->n_layer, sizeof *stacks);
    enum pp_code code = stacks ? take_heads(l, hp, stacks, err) : pp_fail_nomem(err, "norms of heads");
    for (int64_t i = 0; stacks && i < 2 * hp->n_layer; i++) {
        struct stack *s = &stacks[i / 2][i % 2];
        const int64_t n_heads = i % 2 ? hp->n_head_kv : hp->n_head;
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.attn_%c_norm.weight", (long long)(i / 2), i % 2 ? 'k' : 'q');
        if (!code && s->t.data && s->n != n_heads)
            code = pp_fail(err, PP_ERR_FORMAT, "%s has %lld of %lld heads; the model is incomplete: download it again",
                           name,
                           (long long)s->n, (long long)n_heads);
        if (!code && s->t.data)
            code = pp_tensor_list_add(l, &s->t, name, true, err);
        else
            pp_free((void *)(uintptr_t)s->t.data);
        pp_free(s->has);
    }
    pp_free(stacks);
    return code;
}
