/* test_lora_kinds.c - adapters of all kinds against the model with their changes merged into its weights, computed in
 * double precision from the formulas in their papers. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/adapter_file.h"
#include "engine/arch/arch.h"
#include "engine/base/mem.h"
#include "engine/engine_int.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/safetensors.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { TOKENS = 7, MAX_PARTS = 64 };

/* --- an adapter that the test writes ------------------------------------------------------------------------- */

struct part {
    char name[160];
    float *data;
    int64_t rows, cols; /* as in the file; cols 0: a vector */
};

struct folder {
    struct part parts[MAX_PARTS];
    int n;
    uint32_t random;
};

static float next(struct folder *f)
{
    f->random = f->random * 1664525u + 1013904223u;
    return (float)(f->random >> 8) / 8388608.0f - 1.0f;
}

/* A tensor of values around `middle`; its data. */
static const float *add(struct folder *f, const char *name, int64_t rows, int64_t cols, float middle, float spread)
{
    struct part *p = &f->parts[f->n++];
    int64_t n = rows * (cols ? cols : 1);
    assert_true(f->n <= MAX_PARTS);
    *p = (struct part){.rows = rows, .cols = cols, .data = pp_malloc((size_t)n * sizeof(float))};
    snprintf(p->name, sizeof p->name, "%s", name);
    for (int64_t i = 0; i < n; i++)
        p->data[i] = middle + spread * next(f);
    return p->data;
}

static const float *get(const struct folder *f, const char *name)
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

static const char *write_folder(const struct folder *f, const char *config, const char *weights)
{
    static char paths[8][256];
    static unsigned serial;
    struct pp_tensor tensors[MAX_PARTS] = {0};
    struct pp_error err;
    char *path = paths[serial++ % 8], file[512];
    snprintf(path, sizeof paths[0], "%s/kind-%u", test_tmpdir(), serial);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file(path, "adapter_config.json", config);
    for (int i = 0; i < f->n; i++) {
        const struct part *p = &f->parts[i];
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

static const char *write_peft(const struct folder *f, const char *config)
{
    return write_folder(f, config, "adapter_model.safetensors");
}

static void empty(struct folder *f)
{
    for (int i = 0; i < f->n; i++)
        pp_free(f->parts[i].data);
    f->n = 0;
}

/* --- a model with the adapter merged -------------------------------------------------------------------------- */

struct merged {
    struct pp_gguf *gguf;
    uint8_t *bytes;
    size_t size;
};

static struct merged begin_merged(const char *model)
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

static const struct pp_tensor *tensor_of(const struct merged *m, const char *name)
{
    for (size_t i = 0; i < pp_gguf_n_tensors(m->gguf); i++)
        if (strcmp(pp_gguf_tensor_at(m->gguf, i)->name, name) == 0)
            return pp_gguf_tensor_at(m->gguf, i);
    fail_msg("no tensor %s", name);
    return NULL;
}

/* Its values in the copy, to be changed. */
static float *values_of(const struct merged *m, const struct pp_tensor *t)
{
    uint8_t *at = memmem(m->bytes, m->size, t->data, t->size);
    assert_non_null(at);
    return (float *)(void *)at;
}

static const char *end_merged(struct merged *m)
{
    static char paths[8][256];
    static unsigned serial;
    char *path = paths[serial++ % 8];
    snprintf(path, sizeof paths[0], "%s/merged-%u.gguf", test_tmpdir(), serial);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(m->bytes, 1, m->size, file), m->size);
    fclose(file);
    pp_gguf_close(m->gguf);
    pp_free(m->bytes);
    return path;
}

/* The modules of layer 0 and how they are called in GGUF. */
struct module {
    const char *hf, *gguf;
    bool moved; /* outputs lie in another order */
};
static const struct module modules[] = {
    {"model.layers.0.self_attn.q_proj", "blk.0.attn_q", true},
    {"model.layers.0.self_attn.k_proj", "blk.0.attn_k", true},
    {"model.layers.0.self_attn.v_proj", "blk.0.attn_v", false},
    {"model.layers.0.self_attn.o_proj", "blk.0.attn_output", false},
    {"model.layers.0.mlp.gate_proj", "blk.0.ffn_gate", false},
    {"model.layers.0.mlp.up_proj", "blk.0.ffn_up", false},
    {"model.layers.0.mlp.down_proj", "blk.0.ffn_down", false},
    {"lm_head", "output", false},
};
enum { N_MODULES = sizeof modules / sizeof modules[0], HEAD_DIM = 64 };

static const float *part_of(const struct folder *f, const struct module *m, const char *end)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%s%s", m->hf, end);
    return get(f, name);
}

/* Row r of W with everything that a folder has for it, at a strength; scale: of B A. */
static void merge_row(const struct folder *f, const struct module *m, int64_t r, float *w, int64_t n, int rank,
                      double scale, double strength)
{
    const int64_t from = m->moved ? pp_hf_row(r, HEAD_DIM) : r;
    const float *a = part_of(f, m, ".lora_A.weight"), *b = part_of(f, m, ".lora_B.weight");
    const float *magnitude = part_of(f, m, ".lora_magnitude_vector"), *ia3 = part_of(f, m, ".ia3_l");
    double norm = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)w[i], low = 0;
        for (int k = 0; a && k < rank; k++)
            low += (double)b[from * rank + k] * (double)a[k * n + i];
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

static void merge_embedding(const struct folder *f, const struct merged *m, int rank, double scale)
{
    const float *a = get(f, "base_model.model.model.embed_tokens.lora_embedding_A");
    const float *b = get(f, "base_model.model.model.embed_tokens.lora_embedding_B");
    const struct pp_tensor *t = tensor_of(m, "token_embd.weight");
    float *w = values_of(m, t);
    for (int64_t i = 0; a && i < t->ne[0] * t->ne[1]; i++) {
        double low = 0;
        for (int k = 0; k < rank; k++)
            low += (double)b[i % t->ne[0] * rank + k] * (double)a[k * t->ne[1] + i / t->ne[0]];
        w[i] = (float)((double)w[i] + scale * low);
    }
}

static void merge_bias(const struct folder *f, const struct merged *m, const struct module *module, double scale,
                       double strength)
{
    char name[64];
    const float *bias = part_of(f, module, ".bias"), *of_b = part_of(f, module, ".lora_B.bias");
    const float *ia3 = strstr(module->hf, "mlp") ? NULL : part_of(f, module, ".ia3_l");
    if (!bias && !of_b && !ia3)
        return;
    snprintf(name, sizeof name, "%s.bias", module->gguf);
    const struct pp_tensor *t = tensor_of(m, name);
    float *to = values_of(m, t);
    for (int64_t r = 0; r < t->ne[0]; r++) {
        const int64_t from = module->moved ? pp_hf_row(r, HEAD_DIM) : r;
        double x = (double)to[r];
        x += bias ? strength * ((double)bias[from] - x) : 0;
        x += of_b ? strength * scale * (double)of_b[from] : 0;
        x *= ia3 ? 1 + strength * ((double)ia3[from] - 1) : 1;
        to[r] = (float)x;
    }
}

static const char *merge(const struct folder *f, const char *model, int rank, double scale, double strength)
{
    struct merged m = begin_merged(model);
    for (int i = 0; i < N_MODULES; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.weight", modules[i].gguf);
        const struct pp_tensor *t = tensor_of(&m, name);
        float *w = values_of(&m, t);
        for (int64_t r = 0; r < t->ne[1]; r++)
            merge_row(f, &modules[i], r, w + r * t->ne[0], t->ne[0], rank, scale, strength);
        merge_bias(f, &m, &modules[i], scale, strength);
    }
    merge_embedding(f, &m, rank, scale * strength);
    return end_merged(&m);
}

/* --- running -------------------------------------------------------------------------------------------------- */

struct run {
    struct pp_model *model;
    struct pp_engine *engine;
};

static struct run open_run(const char *path, int n_threads)
{
    struct run r;
    struct pp_error err;
    const struct pp_engine_options opt = {.n_threads = n_threads, .kv_type = PP_KV_F32};
    assert_ok(pp_model_open(path, &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    return r;
}

static void close_run(struct run *r)
{
    pp_engine_free(r->engine);
    pp_model_close(r->model);
}

/* Logits of all tokens, [TOKENS, n_vocab]; pp_free. */
static float *logits_of(const struct run *r, const struct pp_adapter_use *use, int n)
{
    struct pp_error err;
    struct pp_seq *s;
    struct pp_row rows[TOKENS];
    int64_t n_vocab = pp_model_info(r->model)->n_vocab;
    assert_ok(pp_seq_new(r->engine, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, use, n, &err), err);
    for (int i = 0; i < TOKENS; i++)
        rows[i] = (struct pp_row){.seq = s, .token = 3 + 7 * i, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    assert_ok(pp_step(r->engine, rows, TOKENS, NULL, &err), err);
    float *out = pp_malloc((size_t)(TOKENS * n_vocab) * sizeof *out);
    for (int i = 0; i < TOKENS; i++)
        memcpy(out + i * n_vocab, pp_step_output(r->engine, i), (size_t)n_vocab * sizeof *out);
    pp_seq_free(s);
    return out;
}

static double farthest(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* The adapter in a folder gives the logits of the model that it was merged into. */
static void gives_merged(const struct folder *f, const char *path, const char *model, int rank, double scale)
{
    static const float strengths[] = {1.0f, 0.6f, -0.5f};
    struct run base = open_run(model, 2);
    struct pp_error err;
    struct pp_adapter *a;
    const int64_t n = TOKENS * pp_model_info(base.model)->n_vocab;
    float *alone = logits_of(&base, NULL, 0);
    assert_ok(pp_adapter_load_exact(base.model, path, &a, &err), err);
    for (int i = 0; i < 3; i++) {
        struct run merged = open_run(merge(f, model, rank, scale, (double)strengths[i]), 2);
        float *x = logits_of(&base, &(struct pp_adapter_use){a, strengths[i]}, 1);
        float *y = logits_of(&merged, NULL, 0);
        assert_true(farthest(alone, y, n) > 0.01);
        assert_near(farthest(x, y, n), 0, 1e-4);
        pp_free(x);
        pp_free(y);
        close_run(&merged);
    }
    pp_free(alone);
    pp_adapter_free(a);
    close_run(&base);
}

static struct tiny_shape shape_of(uint32_t type)
{
    struct tiny_shape s = tiny_shape(type);
    s.biases = true;
    return s;
}

/* n_in and n_out of a module. */
static void sizes(const struct tiny_shape *s, int module, int64_t *n_in, int64_t *n_out)
{
    const int64_t q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim, d = s->n_embd, ff = s->n_ff;
    const int64_t in[] = {d, d, d, q, d, d, ff, d}, out[] = {q, kv, kv, d, ff, ff, d, s->n_vocab};
    *n_in = in[module];
    *n_out = out[module];
}

static void add_named(struct folder *f, int module, const char *end, int64_t rows, int64_t cols, float middle,
                      float spread)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%s%s", modules[module].hf, end);
    add(f, name, rows, cols, middle, spread);
}

static void add_lora(struct folder *f, const struct tiny_shape *s, int module, int rank)
{
    int64_t n_in, n_out;
    sizes(s, module, &n_in, &n_out);
    add_named(f, module, ".lora_A.weight", rank, n_in, 0, 0.1f);
    add_named(f, module, ".lora_B.weight", n_out, rank, 0, 0.1f);
}

/* --- the tests ------------------------------------------------------------------------------------------------ */

static void lora_with_output_and_embeddings(void **state)
{
    const struct tiny_shape s = shape_of(PP_TYPE_F32);
    struct folder f = {.random = 1};
    (void)state;
    for (int i = 0; i < N_MODULES; i++)
        add_lora(&f, &s, i, 5);
    add(&f, "base_model.model.model.embed_tokens.lora_embedding_A", 5, s.n_vocab, 0, 0.2f);
    add(&f, "base_model.model.model.embed_tokens.lora_embedding_B", s.n_embd, 5, 0, 0.2f);
    gives_merged(&f, write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":5,\"lora_alpha\":10}"), tiny_model(&s), 5, 2);
    empty(&f);
}

static void biases(void **state)
{
    const struct tiny_shape s = shape_of(PP_TYPE_F32);
    struct folder f = {.random = 2};
    int64_t n_in, n_out;
    (void)state;
    for (int i = 0; i < 3; i++) {
        add_lora(&f, &s, i, 3);
        sizes(&s, i, &n_in, &n_out);
        add_named(&f, i, ".bias", n_out, 0, 1, 0.5f);
    }
    add_lora(&f, &s, 5, 3);
    add_named(&f, 5, ".lora_B.bias", s.n_ff, 0, 0, 0.5f);
    gives_merged(&f, write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6,\"bias\":\"lora_only\","
                                    "\"lora_bias\":true}"),
                 tiny_model(&s), 3, 2);
    empty(&f);
}

static const char ia3_config[] = "{\"peft_type\":\"IA3\",\"target_modules\":[\"k_proj\",\"v_proj\",\"down_proj\"],"
                                 "\"feedforward_modules\":[\"down_proj\"]}";

static void make_ia3(struct folder *f, const struct tiny_shape *s)
{
    add_named(f, 1, ".ia3_l", s->n_head_kv * s->head_dim, 1, 1, 0.5f);
    add_named(f, 2, ".ia3_l", s->n_head_kv * s->head_dim, 1, 1, 0.5f);
    add_named(f, 6, ".ia3_l", 1, s->n_ff, 1, 0.5f);
}

static void ia3(void **state)
{
    const struct tiny_shape s = shape_of(PP_TYPE_F32);
    struct folder f = {.random = 3};
    struct pp_adapter *a;
    struct pp_error err;
    (void)state;
    make_ia3(&f, &s);
    gives_merged(&f, write_peft(&f, ia3_config), tiny_model(&s), 0, 0);
    add_named(&f, 5, ".ia3_l", 1, s.n_embd, 1, 0.5f); /* the gate reads that input, too */
    struct run r = open_run(tiny_model(&s), 1);
    assert_int_equal(pp_adapter_load(r.model, write_peft(&f, ia3_config), &a, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "blk.0.ffn_up.weight"));
    close_run(&r);
    empty(&f);
}

static const char dora_config[] = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":12,\"use_dora\":true}";

static void make_dora(struct folder *f, const struct tiny_shape *s)
{
    int64_t n_in, n_out;
    for (int i = 0; i < N_MODULES; i++) {
        add_lora(f, s, i, 4);
        sizes(s, i, &n_in, &n_out);
        add_named(f, i, ".lora_magnitude_vector", n_out, 0, 1, 0.3f);
    }
}

static void dora(void **state)
{
    const struct tiny_shape s = shape_of(PP_TYPE_F32);
    struct folder f = {.random = 4};
    struct pp_adapter_file *file;
    struct pp_error err;
    (void)state;
    make_dora(&f, &s);
    gives_merged(&f, write_peft(&f, dora_config), tiny_model(&s), 4, 3);
    pp_free(f.parts[--f.n].data);
    assert_int_equal(pp_adapter_file_open(write_peft(&f, dora_config), &file, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "output.weight"));
    empty(&f);
}

/* Rows of one batch, few and many, each with another set, give the bits that they give alone; also a set of several
 * kinds. */
static void mixed_batch(uint32_t type)
{
    enum { KINDS = 5, PER_KIND = 3 };
    const struct tiny_shape s = shape_of(type);
    struct folder folders[3] = {{.random = 5}, {.random = 6}, {.random = 7}};
    struct pp_adapter *a[3];
    struct pp_error err;
    struct run r = open_run(tiny_model(&s), 2);
    const int64_t n_vocab = pp_model_info(r.model)->n_vocab;
    add_lora(&folders[0], &s, 0, 16);
    add_lora(&folders[0], &s, 6, 16);
    make_ia3(&folders[1], &s);
    make_dora(&folders[2], &s);
    const char *configs[] = {"{\"peft_type\":\"LORA\",\"r\":16,\"lora_alpha\":16}", ia3_config, dora_config};
    for (int i = 0; i < 3; i++)
        assert_ok(pp_adapter_load(r.model, write_peft(&folders[i], configs[i]), &a[i], &err), err);
    const struct pp_adapter_use uses[KINDS][3] = {
        {{NULL, 0}}, {{a[0], 0.7f}}, {{a[1], 0.8f}}, {{a[2], 1.2f}}, {{a[0], 0.5f}, {a[1], 0.6f}, {a[2], 0.9f}}};
    const int n_uses[KINDS] = {0, 1, 1, 1, 3};
    for (int per_kind = 1; per_kind <= PER_KIND; per_kind++) { /* with one row each there are more than four, too */
        struct pp_seq *alone[KINDS], *together[KINDS];
        float *expected[KINDS * PER_KIND];
        struct pp_row rows[KINDS * PER_KIND];
        for (int i = 0; i < KINDS; i++) {
            assert_ok(pp_seq_new(r.engine, &alone[i], &err), err);
            assert_ok(pp_seq_new(r.engine, &together[i], &err), err);
            assert_ok(pp_seq_set_adapters(alone[i], uses[i], n_uses[i], &err), err);
            assert_ok(pp_seq_set_adapters(together[i], uses[i], n_uses[i], &err), err);
            for (int k = 0; k < per_kind; k++) {
                struct pp_row row = {.seq = alone[i], .token = 5 + 3 * k, .parent = PP_PARENT_PREVIOUS,
                                     .out = PP_OUT_LOGITS};
                assert_ok(pp_step(r.engine, &row, 1, NULL, &err), err);
                float *to = expected[i * per_kind + k] = pp_malloc((size_t)n_vocab * sizeof *to);
                memcpy(to, pp_step_output(r.engine, 0), (size_t)n_vocab * sizeof *to);
                row.seq = together[i];
                rows[i * per_kind + k] = row;
            }
        }
        assert_ok(pp_step(r.engine, rows, KINDS * per_kind, NULL, &err), err);
        for (int i = 0; i < KINDS * per_kind; i++) {
            assert_memory_equal(pp_step_output(r.engine, i), expected[i], (size_t)n_vocab * sizeof(float));
            if (i >= per_kind)
                assert_memory_not_equal(expected[i], expected[i % per_kind], (size_t)n_vocab * sizeof(float));
        }
        for (int i = 0; i < KINDS * per_kind; i++)
            pp_free(expected[i]);
        for (int i = 0; i < KINDS; i++) {
            pp_seq_free(alone[i]);
            pp_seq_free(together[i]);
        }
    }
    /* two and three rows: each thread prepares for itself */
    struct pp_seq *pair[2];
    struct pp_row rows[2];
    float *expected = NULL;
    for (int i = 0; i < 2; i++) {
        assert_ok(pp_seq_new(r.engine, &pair[i], &err), err);
        assert_ok(pp_seq_set_adapters(pair[i], uses[i ? 4 : 0], n_uses[i ? 4 : 0], &err), err);
        rows[i] = (struct pp_row){.seq = pair[i], .token = 9, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    }
    assert_ok(pp_step(r.engine, rows, 2, NULL, &err), err);
    expected = pp_malloc(2 * (size_t)n_vocab * sizeof *expected);
    for (int i = 0; i < 2; i++) {
        memcpy(expected + i * n_vocab, pp_step_output(r.engine, i), (size_t)n_vocab * sizeof *expected);
        pp_seq_truncate(pair[i], 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(pp_step(r.engine, &rows[i], 1, NULL, &err), err);
        assert_memory_equal(pp_step_output(r.engine, 0), expected + i * n_vocab, (size_t)n_vocab * sizeof *expected);
        pp_seq_free(pair[i]);
    }
    pp_free(expected);
    for (int i = 0; i < 3; i++) {
        pp_adapter_free(a[i]);
        empty(&folders[i]);
    }
    close_run(&r);
}

static void mixed_batches(void **state)
{
    (void)state;
    mixed_batch(PP_TYPE_F32);
    mixed_batch(PP_TYPE_BF16);
    mixed_batch(PP_TYPE_Q4_0);
    mixed_batch(PP_TYPE_Q4_K);
}

/* The same matrices as PEFT and as MLX writes them, that is turned, are one adapter. */
static void mlx(void **state)
{
    const struct tiny_shape s = shape_of(PP_TYPE_Q8_0);
    struct folder peft = {.random = 8}, turned = {0};
    struct pp_adapter *a, *b;
    struct pp_error err;
    (void)state;
    for (int with_dora = 0; with_dora < 2; with_dora++) {
        make_dora(&peft, &s);
        for (int i = 0; i < peft.n; i++) {
            const struct part *p = &peft.parts[i];
            bool vector = p->cols == 0;
            if (vector && !with_dora)
                continue;
            char name[160];
            const char *end = strstr(p->name, ".lora_");
            snprintf(name, sizeof name, "%.*s%s", (int)(end - p->name) - 17, p->name + 17,
                     vector ? ".m" : end[6] == 'A' ? ".lora_a" : ".lora_b");
            float *to = (float *)(uintptr_t)add(&turned, name, vector ? p->rows : p->cols, vector ? 0 : p->rows, 0, 0);
            for (int64_t k = 0; k < p->rows * (vector ? 1 : p->cols); k++)
                to[vector ? k : k % p->cols * p->rows + k / p->cols] = p->data[k];
        }
        struct folder plain = {0};
        for (int i = 0; i < peft.n; i++)
            if (with_dora || peft.parts[i].cols)
                plain.parts[plain.n++] = peft.parts[i];
        struct run r = open_run(tiny_model(&s), 1);
        const char *config = with_dora ? "{\"fine_tune_type\":\"dora\",\"num_layers\":1,"
                                         "\"lora_parameters\":{\"rank\":4,\"scale\":3.0,\"dropout\":0.0}}"
                                       : "{\"fine_tune_type\":\"lora\",\"lora_parameters\":{\"rank\":4,\"scale\":3}}";
        const char *path = write_folder(&turned, config, "adapters.safetensors");
        assert_true(pp_is_adapter(path));
        assert_ok(pp_adapter_load(r.model, path, &a, &err), err);
        assert_ok(pp_adapter_load(r.model, write_peft(&plain, with_dora ? dora_config
                                                      : "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":12}"),
                                  &b, &err), err);
        assert_memory_equal(&a->identity, &b->identity, sizeof a->identity);
        pp_adapter_free(a);
        pp_adapter_free(b);
        close_run(&r);
        empty(&turned);
        empty(&peft);
    }
}

/* The parts that make kinds differ are part of the identity. */
static void identities(void **state)
{
    const struct tiny_shape s = shape_of(PP_TYPE_F32);
    struct pp_sha256 seen[4];
    struct pp_error err;
    struct run r = open_run(tiny_model(&s), 1);
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct folder f = {.random = 9};
        struct pp_adapter *a;
        if (i < 2)
            make_dora(&f, &s);
        else
            make_ia3(&f, &s);
        if (i % 2)
            f.parts[f.n - 1].data[f.parts[f.n - 1].rows / 2] += 0.25f; /* one magnitude, one scale */
        assert_ok(pp_adapter_load(r.model, write_peft(&f, i < 2 ? dora_config : ia3_config), &a, &err), err);
        seen[i] = a->identity;
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(&seen[k], &seen[i], sizeof seen[i]);
        pp_adapter_free(a);
        empty(&f);
    }
    close_run(&r);
}

static bool idle(const struct folder *f, const char *config, const struct run *r)
{
    struct pp_adapter_file *file;
    struct pp_adapter *a;
    struct pp_error err;
    const char *path = write_peft(f, config);
    assert_ok(pp_adapter_file_open(path, &file, &err), err);
    assert_ok(pp_adapter_load(r->model, path, &a, &err), err);
    const bool known = pp_adapter_file_idle(file), is = pp_adapter_info(a)->idle;
    assert_true(is || !known); /* the file alone may not tell */
    pp_adapter_file_close(file);
    pp_adapter_free(a);
    return is;
}

/* Adapters as they are before training change nothing, and say so; one value that differs is enough. */
static void idle_adapters(void **state)
{
    const struct tiny_shape s = shape_of(PP_TYPE_F32);
    const char *lora = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":4}";
    struct run r = open_run(tiny_model(&s), 1);
    struct folder f = {.random = 10};
    (void)state;
    add_lora(&f, &s, 4, 4);
    add_lora(&f, &s, 6, 4);
    assert_false(idle(&f, lora, &r));
    for (int i = 1; i < 4; i += 2)
        memset(f.parts[i].data, 0, (size_t)(f.parts[i].rows * f.parts[i].cols) * sizeof(float));
    assert_true(idle(&f, lora, &r));
    f.parts[3].data[100] = 1e-3f;
    assert_false(idle(&f, lora, &r));
    assert_true(idle(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":0}", &r));
    f.parts[3].data[100] = 0;
    struct merged m = begin_merged(r.model->info.path); /* a DoRA begins with the norms of W */
    for (int i = 0; i < 2; i++) {
        const struct pp_tensor *t = tensor_of(&m, i ? "blk.0.ffn_down.weight" : "blk.0.ffn_gate.weight");
        add_named(&f, i ? 6 : 4, ".lora_magnitude_vector", t->ne[1], 0, 0, 0);
        for (int64_t k = 0; k < t->ne[0] * t->ne[1]; k++)
            f.parts[4 + i].data[k / t->ne[0]] += ((const float *)t->data)[k] * ((const float *)t->data)[k];
        for (int64_t k = 0; k < t->ne[1]; k++)
            f.parts[4 + i].data[k] = sqrtf(f.parts[4 + i].data[k]);
    }
    assert_true(idle(&f, dora_config, &r));
    f.parts[5].data[7] *= 1.1f;
    assert_false(idle(&f, dora_config, &r));
    pp_gguf_close(m.gguf);
    pp_free(m.bytes);
    empty(&f);
    add_named(&f, 1, ".ia3_l", s.n_head_kv * s.head_dim, 1, 1, 0);
    assert_true(idle(&f, ia3_config, &r));
    f.parts[0].data[3] = 1.5f;
    assert_false(idle(&f, ia3_config, &r));
    empty(&f);
    close_run(&r);
}

TEST_GROUP(lora_kinds)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_with_output_and_embeddings),
        cmocka_unit_test(biases),
        cmocka_unit_test(ia3),
        cmocka_unit_test(dora),
        cmocka_unit_test(mixed_batches),
        cmocka_unit_test(mlx),
        cmocka_unit_test(identities),
        cmocka_unit_test(idle_adapters),
    };
    return cmocka_run_group_tests_name("lora_kinds", tests, NULL, NULL);
}
