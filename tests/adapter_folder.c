#include "tests/adapter_folder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/safetensors.h"
#include "tests/support.h"

/* --- an adapter that the test writes ------------------------------------------------------------------------- */

static float folder_next(struct folder *f)
{
    f->random = f->random * 1664525u + 1013904223u;
    return (float)(f->random >> 8) / 8388608.0f - 1.0f;
}

/* Adds a tensor of values around `middle`; returns its data. */
const float *folder_add(struct folder *f, const char *name, int64_t rows, int64_t cols, float middle, float spread)
{
    struct folder_part *p = &f->parts[f->n++];
    int64_t n = rows * (cols ? cols : 1);
    assert_true(f->n <= FOLDER_PARTS);
    *p = (struct folder_part){.rows = rows, .cols = cols, .data = pp_malloc((size_t)n * sizeof(float))};
    snprintf(p->name, sizeof p->name, "%s", name);
    for (int64_t i = 0; i < n; i++)
        p->data[i] = middle + spread * folder_next(f);
    return p->data;
}

static const float *add_exact(struct folder *f, const char *module, const char *half, int64_t rows, int64_t cols)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%s.lora_%s.weight", module, half);
    float *values = (float *)(uintptr_t)folder_add(f, name, rows, cols, 0, 0.3f); /* our own array */
    for (int64_t i = 0; i < rows * cols; i++)
        values[i] = rintf(values[i] * 64) / 64;
    return values;
}

void folder_add_merged(struct folder *f, const char *module, int rank, double scale, float *w, int64_t n_out,
                       int64_t n_in)
{
    const float *a = add_exact(f, module, "A", rank, n_in), *b = add_exact(f, module, "B", n_out, rank);
    for (int64_t o = 0; o < n_out; o++)
        for (int64_t i = 0; i < n_in; i++)
            for (int k = 0; k < rank; k++)
                w[o * n_in + i] += (float)(scale * (double)b[o * rank + k] * (double)a[k * n_in + i]);
}

const float *folder_get(const struct folder *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->parts[i].name, name) == 0)
            return f->parts[i].data;
    return NULL;
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

const char *folder_write(const struct folder *f, const char *config, const char *weights)
{
    struct pp_tensor tensors[FOLDER_PARTS] = {0};
    struct pp_error err;
    const char *path = fresh_path("kind");
    char file[512];
    assert_int_equal(mkdir(path, 0700), 0);
    write_file(path, "adapter_config.json", config);
    for (int i = 0; i < f->n; i++) {
        const struct folder_part *p = &f->parts[i];
        tensors[i].name = p->name;
        tensors[i].type = PP_TYPE_F32;
        tensors[i].n_dims = p->cols ? 2 : 1;
        tensors[i].ne[0] = p->cols ? p->cols : p->rows;
        tensors[i].ne[1] = p->cols ? p->rows : 1;
        tensors[i].ne[2] = tensors[i].ne[3] = 1;
        tensors[i].data = p->data;
        tensors[i].size = (size_t)(p->rows * (p->cols ? p->cols : 1)) * sizeof(float);
    }
    snprintf(file, sizeof file, "%s/%s", path, weights);
    assert_ok(pp_safetensors_write(file, tensors, (size_t)f->n, &err), err);
    return path;
}

const char *folder_write_peft(const struct folder *f, const char *config)
{
    return folder_write(f, config, "adapter_model.safetensors");
}

void folder_empty(struct folder *f)
{
    for (int i = 0; i < f->n; i++)
        pp_free(f->parts[i].data);
    f->n = 0;
}

/* --- a model with the adapter merged -------------------------------------------------------------------------- */

struct merged merged_begin(const char *model)
{
    struct merged m;
    struct pp_error err;
    FILE *file = fopen(model, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    m.size = (size_t)ftell(file);
    rewind(file);
    m.bytes = pp_aligned(64, m.size);
    assert_int_equal(fread(m.bytes, 1, m.size, file), m.size);
    fclose(file);
    assert_ok(pp_gguf_open(model, &m.gguf, &err), err);
    return m;
}

const struct pp_tensor *merged_tensor(const struct merged *m, const char *name)
{
    for (size_t i = 0; i < pp_gguf_n_tensors(m->gguf); i++)
        if (strcmp(pp_gguf_tensor_at(m->gguf, i)->name, name) == 0)
            return pp_gguf_tensor_at(m->gguf, i);
    fail_msg("no tensor %s", name);
    return NULL;
}

/* A tensor's values in the copy, which may be changed. */
static float *merged_values(const struct merged *m, const struct pp_tensor *t)
{
    uint8_t *at = memmem(m->bytes, m->size, t->data, t->size);
    assert_non_null(at);
    return (float *)(void *)at;
}

static const char *merged_end(struct merged *m)
{
    const char *path = fresh_path("merged.gguf");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(m->bytes, 1, m->size, file), m->size);
    fclose(file);
    pp_gguf_close(m->gguf);
    pp_free(m->bytes);
    return path;
}

/* The folder_modules of layer 0, and their names in GGUF. */
const struct folder_module folder_modules[FOLDER_MODULES] = {
    {"model.layers.0.self_attn.q_proj", "blk.0.attn_q", true},
    {"model.layers.0.self_attn.k_proj", "blk.0.attn_k", true},
    {"model.layers.0.self_attn.v_proj", "blk.0.attn_v", false},
    {"model.layers.0.self_attn.o_proj", "blk.0.attn_output", false},
    {"model.layers.0.mlp.gate_proj", "blk.0.ffn_gate", false},
    {"model.layers.0.mlp.up_proj", "blk.0.ffn_up", false},
    {"model.layers.0.mlp.down_proj", "blk.0.ffn_down", false},
    {"lm_head", "output", false},
};

static const float *part_of(const struct folder *f, const struct folder_module *m, const char *end)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%s%s", m->hf, end);
    return folder_get(f, name);
}

static const struct folder_part *find_part(const struct folder *f, const struct folder_module *m, const char *end)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%s%s", m->hf, end);
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->parts[i].name, name) == 0)
            return &f->parts[i];
    return NULL;
}

/* A value of a matrix, or of the product of two. */
static double factor_at(const struct folder_part *whole, const struct folder_part *left,
                        const struct folder_part *right, int64_t r, int64_t i)
{
    double sum = 0;
    if (whole)
        return (double)whole->data[r * whole->cols + i];
    for (int64_t k = 0; k < left->cols; k++)
        sum += (double)left->data[r * left->cols + k] * (double)right->data[k * right->cols + i];
    return sum;
}

/* The factors of a LoHa or a LoKr: each of two matrices is whole, or given as the product of two. */
struct made {
    bool kronecker; /* a LoKr */
    const struct folder_part *of[2][3];
};

/* Finds them; false: the module has neither. */
static bool find_made(const struct folder *f, const struct folder_module *m, struct made *made)
{
    static const char *const ends[2][2][3] = {
        {{"", ".hada_w1_a", ".hada_w1_b"}, {"", ".hada_w2_a", ".hada_w2_b"}},
        {{".lokr_w1", ".lokr_w1_a", ".lokr_w1_b"}, {".lokr_w2", ".lokr_w2_a", ".lokr_w2_b"}}};
    for (int kind = 0; kind < 2; kind++) {
        made->kronecker = kind == 1;
        for (int k = 0; k < 6; k++)
            made->of[k / 3][k % 3] = find_part(f, m, ends[kind][k / 3][k % 3]);
        if (made->of[0][0] || made->of[0][1])
            return true;
    }
    return false;
}

/* An element of the change of W, without the scale. */
static double made_at(const struct made *made, int64_t r, int64_t i)
{
    const struct folder_part *const *first = made->of[0], *const *second = made->of[1];
    const int64_t rows = made->kronecker ? (second[0] ? second[0] : second[1])->rows : 1;
    const int64_t cols = made->kronecker ? (second[0] ? second[0] : second[2])->cols : 1;
    return factor_at(first[0], first[1], first[2], made->kronecker ? r / rows : r, made->kronecker ? i / cols : i) *
           factor_at(second[0], second[1], second[2], made->kronecker ? r % rows : r,
                     made->kronecker ? i % cols : i);
}

/* Adds everything that a folder has for row r of W, at a strength; scale: the factor of B A. */
static void merge_row(const struct folder *f, const struct folder_module *m, int64_t r, float *w, int64_t n, int rank,
                      double scale, double strength)
{
    const int64_t from = m->moved ? pp_hf_row(r, FOLDER_HEAD_DIM) : r;
    const float *a = part_of(f, m, ".lora_A.weight"), *b = part_of(f, m, ".lora_B.weight");
    const float *values = part_of(f, m, ".lora_E"); /* for AdaLoRA */
    a = values ? part_of(f, m, ".lora_A") : a;
    b = values ? part_of(f, m, ".lora_B") : b;
    const float *magnitude = part_of(f, m, ".lora_magnitude_vector"), *ia3 = part_of(f, m, ".ia3_l");
    struct made made;
    const bool is_made = find_made(f, m, &made);
    double norm = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)w[i], low = is_made ? made_at(&made, from, i) : 0;
        for (int k = 0; a && k < rank; k++)
            low += (double)b[from * rank + k] * (values ? (double)values[k] : 1) * (double)a[k * n + i];
        norm += x * x;
        x += strength * scale * low;
        sum += x * x;
        if (ia3)
            x *= 1 + strength * ((double)ia3[strstr(m->hf, "mlp") ? i : from] - 1);
        w[i] = (float)x;
    }
    for (int64_t i = 0; magnitude && i < n; i++)
        w[i] = (float)((double)w[i] * (sqrt(norm) + strength * ((double)magnitude[from] - sqrt(norm))) / sqrt(sum));
}

static void merge_embedding(const struct folder *f, const struct merged *m, int rank, double scale, double strength)
{
    const float *a = folder_get(f, "base_model.model.model.embed_tokens.lora_embedding_A");
    const float *b = folder_get(f, "base_model.model.model.embed_tokens.lora_embedding_B");
    const float *magnitude = folder_get(f, "base_model.model.model.embed_tokens.lora_magnitude_vector");
    const struct pp_tensor *t = merged_tensor(m, "token_embd.weight");
    float *w = a ? merged_values(m, t) : NULL;
    for (int64_t c = 0; a && c < t->ne[0]; c++) { /* a column of the table: a value of all tokens */
        double norm = 0, sum = 0;
        for (int64_t r = 0; r < t->ne[1]; r++) {
            double x = (double)w[r * t->ne[0] + c], low = 0;
            for (int k = 0; k < rank; k++)
                low += (double)b[c * rank + k] * (double)a[k * t->ne[1] + r];
            norm += x * x;
            x += strength * scale * low;
            sum += x * x;
            w[r * t->ne[0] + c] = (float)x;
        }
        for (int64_t r = 0; magnitude && r < t->ne[1]; r++)
            w[r * t->ne[0] + c] =
                (float)((double)w[r * t->ne[0] + c] *
                        (sqrt(norm) + strength * ((double)magnitude[c] - sqrt(norm))) / sqrt(sum));
    }
}

static void merge_bias(const struct folder *f, const struct merged *m, const struct folder_module *module, double scale,
                       double strength)
{
    char name[64];
    const float *bias = part_of(f, module, ".bias"), *of_b = part_of(f, module, ".lora_B.bias");
    const float *ia3 = strstr(module->hf, "mlp") ? NULL : part_of(f, module, ".ia3_l");
    if (!bias && !of_b && !ia3)
        return;
    snprintf(name, sizeof name, "%s.bias", module->gguf);
    const struct pp_tensor *t = merged_tensor(m, name);
    float *to = merged_values(m, t);
    for (int64_t r = 0; r < t->ne[0]; r++) {
        const int64_t from = module->moved ? pp_hf_row(r, FOLDER_HEAD_DIM) : r;
        double x = (double)to[r];
        x += bias ? strength * ((double)bias[from] - x) : 0;
        x += of_b ? strength * scale * (double)of_b[from] : 0;
        x *= ia3 ? 1 + strength * ((double)ia3[from] - 1) : 1;
        to[r] = (float)x;
    }
}

/* Merges the adapter's replacement of a whole tensor: a matrix, a norm or the table of embeddings. */
static void merge_weight(const struct folder *f, const char *hf, const struct merged *m, const char *gguf, bool moved,
                         double strength)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%s.weight", hf);
    const float *own = folder_get(f, name);
    const struct pp_tensor *t = merged_tensor(m, gguf);
    float *w = own ? merged_values(m, t) : NULL;
    for (int64_t i = 0; own && i < t->ne[0] * t->ne[1]; i++) {
        const int64_t r = i / t->ne[0], from = moved ? pp_hf_row(r, FOLDER_HEAD_DIM) : r;
        w[i] = (float)((1 - strength) * (double)w[i] + strength * (double)own[from * t->ne[0] + i % t->ne[0]]);
    }
}

const char *folder_merge(const struct folder *f, const char *model, int rank, double scale, double strength)
{
    struct merged m = merged_begin(model);
    for (int i = 0; i < FOLDER_MODULES; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.weight", folder_modules[i].gguf);
        const struct pp_tensor *t = merged_tensor(&m, name);
        float *w = merged_values(&m, t);
        merge_weight(f, folder_modules[i].hf, &m, name, folder_modules[i].moved, strength);
        for (int64_t r = 0; r < t->ne[1]; r++)
            merge_row(f, &folder_modules[i], r, w + r * t->ne[0], t->ne[0], rank, scale, strength);
        merge_bias(f, &m, &folder_modules[i], scale, strength);
    }
    merge_weight(f, "model.embed_tokens", &m, "token_embd.weight", false, strength);
    merge_weight(f, "model.norm", &m, "output_norm.weight", false, strength);
    merge_weight(f, "model.layers.0.input_layernorm", &m, "blk.0.attn_norm.weight", false, strength);
    merge_weight(f, "model.layers.1.post_attention_layernorm", &m, "blk.1.ffn_norm.weight", false, strength);
    merge_embedding(f, &m, rank, scale, strength);
    return merged_end(&m);
}

const char *folder_tied_model(const char *model)
{
    struct merged m = merged_begin(model);
    const struct pp_tensor *table = merged_tensor(&m, "token_embd.weight"), *t = merged_tensor(&m, "output.weight");
    memcpy(merged_values(&m, t), table->data, t->size);
    return merged_end(&m);
}

const char *folder_merge_mlx(const struct folder *f, const char *model, int rank, double scale, double strength)
{
    struct merged m = merged_begin(model);
    const float *a = folder_get(f, "model.embed_tokens.lora_a"), *b = folder_get(f, "model.embed_tokens.lora_b");
    const float *magnitude = folder_get(f, "model.embed_tokens.m");
    const struct pp_tensor *t = merged_tensor(&m, "token_embd.weight"), *output = merged_tensor(&m, "output.weight");
    const bool tied = memcmp(t->data, output->data, t->size) == 0;
    const int64_t n = t->ne[0];
    float *w = pp_malloc(t->size);
    memcpy(w, t->data, t->size);
    for (int64_t r = 0; r < t->ne[1]; r++) { /* a token */
        double norm = 0, sum = 0;
        for (int64_t i = 0; i < n; i++) {
            double x = (double)w[r * n + i], low = 0;
            for (int k = 0; k < rank; k++)
                low += (double)a[r * rank + k] * (double)b[k * n + i];
            norm += x * x;
            x += strength * scale * low;
            sum += x * x;
            w[r * n + i] = (float)x;
        }
        for (int64_t i = 0; magnitude && i < n; i++)
            w[r * n + i] = (float)((double)w[r * n + i] *
                                   (sqrt(norm) + strength * ((double)magnitude[r] - sqrt(norm))) / sqrt(sum));
    }
    float *to[2] = {merged_values(&m, t), NULL};
    if (tied) /* the copy's second matrix of these values */
        to[1] = (float *)(void *)(m.bytes + ((const uint8_t *)output->data - (const uint8_t *)t->data) +
                                  ((uint8_t *)to[0] - m.bytes));
    for (int i = 0; i < 1 + tied; i++)
        memcpy(to[i], w, t->size);
    pp_free(w);
    return merged_end(&m);
}

/* --- parts of a shape's modules ------------------------------------------------------------------------------- */

struct tiny_shape biased_shape(uint32_t type)
{
    struct tiny_shape s = tiny_shape(type);
    s.biases = true;
    return s;
}

/* n_in and n_out of a module. */
void folder_sizes(const struct tiny_shape *s, int module, int64_t *n_in, int64_t *n_out)
{
    const int64_t q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim, d = s->n_embd, ff = s->n_ff;
    const int64_t in[] = {d, d, d, q, d, d, ff, d}, out[] = {q, kv, kv, d, ff, ff, d, s->n_vocab};
    *n_in = in[module];
    *n_out = out[module];
}

void folder_add_named(struct folder *f, int module, const char *end, int64_t rows, int64_t cols, float middle,
                      float spread)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%s%s", folder_modules[module].hf, end);
    folder_add(f, name, rows, cols, middle, spread);
}

void folder_add_lora(struct folder *f, const struct tiny_shape *s, int module, int rank)
{
    int64_t n_in, n_out;
    folder_sizes(s, module, &n_in, &n_out);
    folder_add_named(f, module, ".lora_A.weight", rank, n_in, 0, 0.1f);
    folder_add_named(f, module, ".lora_B.weight", n_out, rank, 0, 0.1f);
}

void folder_add_embedding_dora(struct folder *f, const struct tiny_shape *s)
{
    folder_add(f, "base_model.model.model.embed_tokens.lora_embedding_A", 4, s->n_vocab, 0, 0.2f);
    folder_add(f, "base_model.model.model.embed_tokens.lora_embedding_B", s->n_embd, 4, 0, 0.2f);
    folder_add(f, "base_model.model.model.embed_tokens.lora_magnitude_vector", s->n_embd, 0, 10, 4);
}

void folder_copy_config(const char *from, const char *to)
{
    char path[600], *text;
    size_t n;
    struct pp_error err;
    snprintf(path, sizeof path, "%s/config.json", from);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    snprintf(path, sizeof path, "%s/config.json", to);
    assert_ok(pp_write_file(path, text, n, 0600, &err), err);
    pp_free(text);
}

void folder_same_tensors(const char *a, const char *b, const char *but)
{
    struct pp_safetensors *s[2];
    struct pp_error err;
    char path[512];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", i ? b : a);
        assert_ok(pp_safetensors_open(path, &s[i], &err), err);
    }
    assert_int_equal(pp_safetensors_n(s[0]), pp_safetensors_n(s[1]));
    for (size_t i = 0; i < pp_safetensors_n(s[0]); i++) {
        const struct pp_tensor *t = pp_safetensors_at(s[0], i), *u = pp_safetensors_find(s[1], t->name);
        if (but && strstr(t->name, but))
            continue;
        if (!u)
            fail_msg("%s is missing", t->name);
        assert_int_equal(t->type, u->type);
        assert_int_equal(t->n_dims, u->n_dims);
        assert_memory_equal(t->ne, u->ne, sizeof t->ne);
        if (memcmp(t->data, u->data, t->size) != 0)
            fail_msg("%s differs", t->name);
    }
    pp_safetensors_close(s[0]);
    pp_safetensors_close(s[1]);
}

/* In GGUF tensors' data begin after the last tensor's entry (its name and 32 bytes), at a multiple of 32. */
const char *adapter_never_trained(void)
{
    static char path[300];
    struct pp_error err;
    char *data;
    size_t size, at = 0;
    snprintf(path, sizeof path, "%s/never-trained.gguf", test_tmpdir());
    assert_ok(pp_read_file("engine/starter/bard.gguf", 1 << 30, &data, &size, &err), err);
    for (char *p = data; (p = memmem(p, size - (size_t)(p - data), ".lora_", 6)); p += 6)
        at = (size_t)(p - data) + 7 + 32;
    assert_true(at > 0);
    at = (at + 31) / 32 * 32;
    memset(data + at, 0, size - at);
    assert_ok(pp_write_file(path, data, size, 0600, &err), err);
    pp_free(data);
    return path;
}
