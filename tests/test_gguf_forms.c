/* test_gguf_forms.c - tensors that converters name, join or lay out differently make the same model: the same bits of
 * the results, and the same file when quantised. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "engine/quant.h"
#include "engine/source.h"
#include "tests/gguf_file.h"
#include "tests/passes.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { MAX_ITEMS = 128, LENGTH = 24 };

/* A tensor on its way into a file. */
struct item {
    char name[64];
    uint32_t type;
    int n_dims;
    int64_t ne[PP_MAX_DIMS];
    uint8_t *data;
    size_t size;
};

struct items {
    struct item of[MAX_ITEMS];
    int n;
};

static struct item *add(struct items *l, const char *name, uint32_t type, int n_dims, const int64_t *ne)
{
    struct item *i = &l->of[l->n++];
    assert_true(l->n <= MAX_ITEMS);
    *i = (struct item){.type = type, .n_dims = n_dims, .ne = {1, 1, 1, 1}};
    memcpy(i->ne, ne, (size_t)n_dims * sizeof *ne);
    i->size = pp_type_row_bytes(type, i->ne[0]) * (size_t)(i->ne[1] * i->ne[2]);
    i->data = pp_calloc(i->size, 1);
    assert_non_null(i->data);
    snprintf(i->name, sizeof i->name, "%s", name);
    return i;
}

static struct item *find(struct items *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->of[i].name, name) == 0)
            return &l->of[i];
    return NULL;
}

static void drop(struct items *l, struct item *i)
{
    pp_free(i->data);
    *i = l->of[--l->n];
}

static void empty(struct items *l)
{
    while (l->n)
        drop(l, &l->of[l->n - 1]);
}

/* Blocks of MXFP4: a power of two, and 32 values of four bits. */
static void fill_mxfp4(struct item *i)
{
    uint32_t random = 7;
    for (size_t k = 0; k < i->size; k++) {
        random = random * 1664525u + 1013904223u;
        i->data[k] = k % 17 ? (uint8_t)(random >> 24) : (uint8_t)(120 + (random >> 30));
    }
}

/* Reads all tensors of a file; mxfp4: replaces its stacks of matrices by ones of that type. */
static void take(struct items *l, const struct pp_gguf *g, bool mxfp4)
{
    for (size_t i = 0; i < pp_gguf_n_tensors(g); i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(g, i);
        const bool other = mxfp4 && t->n_dims == 3;
        struct item *to = add(l, t->name, other ? PP_TYPE_MXFP4 : t->type, t->n_dims, t->ne);
        if (other)
            fill_mxfp4(to);
        else
            memcpy(to->data, t->data, t->size);
    }
}

static void write_items(struct pp_gguf_writer *w, const struct items *l)
{
    struct pp_tensor tensors[MAX_ITEMS];
    for (int i = 0; i < l->n; i++) {
        const struct item *from = &l->of[i];
        tensors[i] = (struct pp_tensor){.name = from->name, .type = from->type, .n_dims = from->n_dims,
                                        .data = from->data, .size = from->size};
        memcpy(tensors[i].ne, from->ne, sizeof from->ne);
    }
    gguf_file_end(w, tensors, (size_t)l->n);
}

static const char *fresh(const char *name)
{
    static char paths[8][300];
    static int next;
    char *path = paths[next % 8];
    snprintf(path, sizeof paths[0], "%s/forms-%d-%s.gguf", test_tmpdir(), next++, name);
    return path;
}

/* Writes a file of these tensors with the metadata of another. */
static const char *file_of(const struct items *l, const struct pp_gguf *meta, const char *name)
{
    const char *path = fresh(name);
    struct pp_gguf_writer *w = gguf_file_begin(path);
    gguf_file_copy_keys(w, meta);
    write_items(w, l);
    return path;
}

/* --- the same answers -------------------------------------------------------------------------------------------- */

static float *logits_of(const char *path, size_t *bytes)
{
    const struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 64, .kv_memory = 16u << 20};
    int32_t tokens[LENGTH];
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    const size_t n_vocab = (size_t)pp_model_info(m)->n_vocab;
    for (int i = 0; i < LENGTH; i++)
        tokens[i] = (i * 37 + 5) % (int)n_vocab;
    *bytes = LENGTH * n_vocab * sizeof(float);
    float *logits = pp_malloc(*bytes);
    assert_non_null(logits);
    run_in_passes(e, s, tokens, LENGTH, LENGTH, logits);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
    return logits;
}

static void assert_same_answers(const char *a, const char *b)
{
    size_t n, m;
    float *x = logits_of(a, &n), *y = logits_of(b, &m);
    assert_int_equal(n, m);
    if (memcmp(x, y, n) != 0)
        fail_msg("%s and %s give other logits", a, b);
    pp_free(x);
    pp_free(y);
}

/* Both files become the same tensors when they are quantised. */
static void assert_same_quantised(const char *a, const char *b, const char *type)
{
    const char *const from[] = {a, b};
    struct pp_source *s[2];
    struct pp_error err;
    for (int i = 0; i < 2; i++) {
        const char *to = fresh("quantised");
        assert_ok(pp_quantize_file(from[i], to, type, &(struct pp_convert_options){0}, &err), err);
        assert_ok(pp_source_open(to, &s[i], &err), err);
    }
    assert_int_equal(pp_source_n_tensors(s[0]), pp_source_n_tensors(s[1]));
    for (size_t i = 0; i < pp_source_n_tensors(s[0]); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(s[0], i), *u = pp_source_tensor(s[1], t->name);
        assert_non_null(u);
        assert_int_equal(t->type, u->type);
        assert_int_equal(t->size, u->size);
        assert_memory_equal(t->data, u->data, t->size);
    }
    pp_source_close(s[0]);
    pp_source_close(s[1]);
}

/* --- gate and value in one --------------------------------------------------------------------------------------- */

/* Joins a layer's gate and up tensors to one: for each expert, the rows of both concatenated, or interleaved if
 * `turns`; for biases, the elements. */
static void fuse(struct items *l, int layer, const char *end, bool turns)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ffn_gate_exps%s", layer, end);
    struct item *gate = find(l, name);
    snprintf(name, sizeof name, "blk.%d.ffn_up_exps%s", layer, end);
    struct item *up = find(l, name);
    if (!gate)
        return;
    const bool bias = gate->n_dims == 2;
    const int64_t n_out = gate->ne[bias ? 0 : 1], n = gate->ne[bias ? 1 : 2];
    int64_t ne[3] = {gate->ne[0], gate->ne[1], gate->ne[2]};
    ne[bias ? 0 : 1] *= 2;
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps%s", layer, end);
    struct item *both = add(l, name, gate->type, gate->n_dims, ne);
    const size_t row = gate->size / (size_t)(n * n_out);
    for (int64_t e = 0; e < n; e++)
        for (int64_t r = 0; r < n_out; r++)
            for (int half = 0; half < 2; half++) {
                const int64_t to = turns ? 2 * r + half : half * n_out + r;
                memcpy(both->data + (size_t)(e * 2 * n_out + to) * row,
                       (half ? up : gate)->data + (size_t)(e * n_out + r) * row, row);
            }
    snprintf(name, sizeof name, "blk.%d.ffn_up_exps%s", layer, end);
    drop(l, find(l, name));
    snprintf(name, sizeof name, "blk.%d.ffn_gate_exps%s", layer, end);
    drop(l, find(l, name));
}

static void fuse_all(struct items *l, bool turns)
{
    for (int layer = 0; layer < 2; layer++) {
        fuse(l, layer, ".weight", turns);
        fuse(l, layer, ".bias", turns);
    }
}

static void add_biases(struct items *l, int n_ff, int n_expert)
{
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.bias", i / 2, i % 2 ? "up" : "gate");
        struct item *b = add(l, name, PP_TYPE_F32, 2, (const int64_t[]){n_ff, n_expert});
        for (int k = 0; k < n_ff * n_expert; k++) {
            const float v = (float)((k * 7 + i) % 13 - 6) / 8;
            memcpy(b->data + 4 * k, &v, sizeof v);
        }
    }
}

/* Folders exported from both give the same answers: in floats and in MLX's integer groups. */
static void assert_same_folders(const char *a, const char *b)
{
    const char *const from[] = {a, b};
    for (int bits = 0; bits <= 8; bits += 8) {
        char to[2][340];
        struct pp_error err;
        for (int i = 0; i < 2; i++) {
            snprintf(to[i], sizeof to[i], "%s.folder-%d", from[i], bits);
            assert_ok(pp_convert_to_folder(from[i], to[i], &(struct pp_convert_options){.bits = bits}, &err), err);
        }
        assert_same_answers(to[0], to[1]);
    }
}

static void fused_experts(void **state)
{
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_F16, PP_TYPE_Q8_0, PP_TYPE_Q4_K};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tiny_shape shape = tiny_shape(types[i]);
        struct items l = {0};
        struct pp_gguf *g;
        struct pp_error err;
        shape.n_expert = 5;
        shape.n_ff = 256;
        assert_ok(pp_gguf_open(tiny_model(&shape), &g, &err), err);
        take(&l, g, false);
        if (i == 2)
            add_biases(&l, shape.n_ff, shape.n_expert);
        const char *apart = file_of(&l, g, "apart");
        fuse_all(&l, false);
        const char *fused = file_of(&l, g, "fused");
        assert_same_answers(apart, fused);
        if (i == 0)
            assert_same_quantised(apart, fused, "Q4_0");
        if (i != 2) /* Mixtral's folders have no biases */
            assert_same_folders(apart, fused);
        empty(&l);
        pp_gguf_close(g);
    }
}

static void bad_fused(void **state)
{
    static const struct {
        int64_t ne[3];
        int n_dims;
    } cases[] = {{{256, 511, 5}, 3}, {{256, 512, 4}, 3}, {{256, 512}, 2}, {{256, 2, 5000}, 3}};
    struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
    (void)state;
    shape.n_expert = 5;
    shape.n_ff = 256;
    const char *model = tiny_model(&shape);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct items l = {0};
        struct pp_gguf *g;
        struct pp_model *m;
        struct pp_error err;
        assert_ok(pp_gguf_open(model, &g, &err), err);
        take(&l, g, false);
        fuse_all(&l, false);
        drop(&l, find(&l, "blk.1.ffn_gate_up_exps.weight"));
        add(&l, "blk.1.ffn_gate_up_exps.weight", PP_TYPE_F32, cases[i].n_dims, cases[i].ne);
        assert_int_equal(pp_model_open(file_of(&l, g, "bad"), &m, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, i == 1 ? "blk.1.ffn_gate.4.weight" : "blk.1.ffn_gate_up_exps.weight"));
        empty(&l);
        pp_gguf_close(g);
    }
}

/* --- gpt-oss of ollama ------------------------------------------------------------------------------------------- */

/* Copies the metadata of a file with the family name gpt-oss, with the keys of one named gptoss. */
static void write_gptoss_keys(struct pp_gguf_writer *w, const struct pp_gguf *g)
{
    static const char *const numbers[] = {
        "block_count", "context_length", "embedding_length", "feed_forward_length", "expert_count",
        "expert_used_count", "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "attention.sliding_window", "rope.scaling.original_context_length", "vocab_size"};
    static const char *const floats[] = {"attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"};
    char from[96], to[96];
    pp_gguf_add_text(w, "general.architecture", "gptoss");
    pp_gguf_add_u32(w, "general.file_type", 4);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t v;
        snprintf(from, sizeof from, "gpt-oss.%s", numbers[i]);
        snprintf(to, sizeof to, "gptoss.%s", numbers[i]);
        assert_true(pp_gguf_int(g, from, &v));
        pp_gguf_add_u32(w, to, (uint32_t)v);
    }
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        double v;
        snprintf(from, sizeof from, "gpt-oss.%s", floats[i]);
        snprintf(to, sizeof to, "gptoss.%s", floats[i]);
        assert_true(pp_gguf_float(g, from, &v));
        pp_gguf_add_f32(w, to, (float)v);
    }
}

/* Renames tensors: "x.attn_output.y" becomes "x.attn_out.y". */
static void call_otherwise(struct item *i)
{
    static const char *const names[][2] = {{".attn_output.", ".attn_out."},
                                           {".attn_sinks.weight", ".attn_sinks"},
                                           {".post_attention_norm.", ".ffn_norm."}};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char *at = strstr(i->name, names[k][0]), rest[64];
        if (!at)
            continue;
        snprintf(rest, sizeof rest, "%s", at + strlen(names[k][0]));
        snprintf(at, (size_t)(i->name + sizeof i->name - at), "%s%s", names[k][1], rest);
    }
}

/* Byte i of GGUF's MXFP4 blocks holds weights i and i + 16; in the other layout it holds 2 i and 2 i + 1. */
static void into_pairs(struct item *i)
{
    if (i->type != PP_TYPE_MXFP4)
        return;
    i->type = PP_TYPE_MXFP4_PAIRS;
    for (uint8_t *b = i->data; b < i->data + i->size; b += 17) {
        uint8_t w[32];
        for (int k = 0; k < 16; k++) {
            w[k] = b[1 + k] & 15;
            w[k + 16] = b[1 + k] >> 4;
        }
        for (int k = 0; k < 16; k++)
            b[1 + k] = (uint8_t)(w[2 * k] | w[2 * k + 1] << 4);
    }
}

static void join_qkv(struct items *l, int layer, const char *end)
{
    struct item *parts[3];
    int64_t ne[2] = {0, 0};
    char name[64];
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "blk.%d.attn_%c.%s", layer, "qkv"[k], end);
        parts[k] = find(l, name);
        ne[0] = parts[k]->n_dims == 1 ? ne[0] + parts[k]->ne[0] : parts[k]->ne[0];
        ne[1] += parts[k]->ne[1];
    }
    snprintf(name, sizeof name, "blk.%d.attn_qkv.%s", layer, end);
    struct item *all = add(l, name, parts[0]->type, parts[0]->n_dims, ne);
    size_t at = 0;
    for (int k = 0; k < 3; k++) {
        memcpy(all->data + at, parts[k]->data, parts[k]->size);
        at += parts[k]->size;
    }
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "blk.%d.attn_%c.%s", layer, "qkv"[k], end);
        drop(l, find(l, name));
    }
}

static const char *gptoss_file(const struct items *l, const struct pp_gguf *g, const char *name)
{
    const char *path = fresh(name);
    struct pp_gguf_writer *w = gguf_file_begin(path);
    write_gptoss_keys(w, g);
    write_items(w, l);
    return path;
}

/* A small gpt-oss with MXFP4 experts in the layouts of llama.cpp, of ollama, and of ollama's first version. */
static void gptoss(void **state)
{
    const char *folder = testdata("architectures/gptoss"), *file = fresh("gpt-oss");
    struct items l = {0};
    struct pp_gguf *g;
    struct pp_error err;
    (void)state;
    if (!folder)
        skip();
    assert_ok(pp_convert_to_gguf(folder, file, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_gguf_open(file, &g, &err), err);
    take(&l, g, true);
    const char *usual = file_of(&l, g, "usual");
    for (int i = 0; i < l.n; i++)
        call_otherwise(&l.of[i]);
    assert_same_answers(usual, gptoss_file(&l, g, "ollama"));
    fuse_all(&l, true);
    assert_same_answers(usual, gptoss_file(&l, g, "turns"));
    for (int i = 0; i < l.n; i++)
        into_pairs(&l.of[i]);
    assert_same_quantised(usual, gptoss_file(&l, g, "pairs"), "Q8_0");
    for (int layer = 0; layer < 2; layer++) {
        join_qkv(&l, layer, "weight");
        join_qkv(&l, layer, "bias");
    }
    assert_same_answers(usual, gptoss_file(&l, g, "first"));
    empty(&l);
    pp_gguf_close(g);
}

/* --- NVFP4 ------------------------------------------------------------------------------------------------------- */

static float e2m1(int v)
{
    static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return v & 8 ? -value[v & 7] : value[v & 7];
}

/* Makes a matrix or a stack of NVFP4, and *floats, the values it represents; scales: one for each matrix, or NULL. */
static void into_nvfp4(struct item *i, const float *scales, struct item *floats)
{
    static uint32_t random = 11;
    const int64_t n_rows = i->ne[1] * i->ne[2];
    struct pp_error err;
    float *f = pp_calloc((size_t)(n_rows * i->ne[0]), sizeof *f);
    pp_free(i->data);
    i->type = PP_TYPE_NVFP4;
    i->size = (size_t)(n_rows * i->ne[0] / 64 * 36);
    i->data = pp_calloc(i->size, 1);
    assert_true(f && i->data);
    for (int64_t b = 0; b < n_rows * i->ne[0] / 64; b++)
        for (int k = 0; k < 64; k++) {
            uint8_t *block = i->data + 36 * b, *both = &block[4 + k / 16 * 8 + k % 8];
            random = random * 1664525u + 1013904223u;
            const int v = (int)(random >> 28), sub = k / 16;
            if (k % 16 == 0)
                block[sub] = (uint8_t)(16 + (random >> 20 & 15)); /* 2^-5 (1 + m / 8) and above */
            *both = (uint8_t)(*both | (k % 16 < 8 ? v : v << 4));
            const float scale = ldexpf((float)(8 + (block[sub] & 7)), (block[sub] >> 3) - 10);
            f[64 * b + k] = e2m1(v) * (scale * (scales ? scales[b * 64 / (i->ne[0] * i->ne[1])] : 1));
        }
    floats->type = PP_TYPE_Q8_0;
    floats->size = pp_type_row_bytes(PP_TYPE_Q8_0, i->ne[0]) * (size_t)n_rows;
    pp_free(floats->data);
    floats->data = pp_calloc(floats->size, 1);
    assert_non_null(floats->data);
    assert_ok(pp_quantize_rows(PP_TYPE_Q8_0, f, floats->data, n_rows, i->ne[0], NULL, &err), err);
    pp_free(f);
}

static void nvfp4(void **state)
{
    static const float scales[] = {0.5f, 0.75f, 1.25f, 0.3f, 2};
    (void)state;
    for (int n_expert = 0; n_expert <= 5; n_expert += 5) {
        struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
        struct items l = {0}, plain = {0};
        struct pp_gguf *g;
        struct pp_model *m;
        struct pp_error err;
        shape.n_expert = n_expert;
        shape.n_ff = 256;
        assert_ok(pp_gguf_open(tiny_model(&shape), &g, &err), err);
        take(&l, g, false);
        take(&plain, g, false);
        const int n = l.n;
        for (int i = 0; i < n; i++) {
            struct item *t = &l.of[i];
            char name[64];
            if (t->n_dims < 2 || !strstr(t->name, "blk.") || strstr(t->name, "ffn_gate_inp"))
                continue;
            const bool scaled = !strstr(t->name, "attn_k");
            into_nvfp4(t, scaled ? scales : NULL, find(&plain, t->name));
            snprintf(name, sizeof name, "%.*sscale", (int)(strlen(t->name) - strlen("weight")), t->name);
            if (scaled)
                memcpy(add(&l, name, PP_TYPE_F32, 1, &t->ne[2])->data, scales, (size_t)t->ne[2] * sizeof *scales);
            snprintf(name, sizeof name, "%.*sinput_scale", (int)(strlen(t->name) - strlen("weight")), t->name);
            if (i % 2)
                add(&l, name, PP_TYPE_F32, 1, &t->ne[2]);
        }
        const char *good = file_of(&l, g, "nvfp4");
        assert_same_answers(good, file_of(&plain, g, "floats"));
        struct item *extra = find(&l, "blk.1.attn_q.scale");
        extra->ne[0] = 2;
        extra->size = 8;
        pp_free(extra->data);
        extra->data = pp_calloc(8, 1);
        assert_int_equal(pp_model_open(file_of(&l, g, "bad"), &m, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "blk.1.attn_q.scale"));
        empty(&l);
        empty(&plain);
        pp_gguf_close(g);
    }
}

/* --- models that see --------------------------------------------------------------------------------------------- */

/* The metadata of a family's file, under another family's name. */
static void write_as(struct pp_gguf_writer *w, const struct pp_gguf *g, const char *from, const char *to)
{
    const size_t n = strlen(from);
    for (size_t k = 0; k < pp_gguf_n_kv(g); k++) {
        const struct pp_str key = pp_gguf_kv_key(g, k);
        char was[96], is[96];
        int64_t whole;
        double number;
        bool flag;
        snprintf(was, sizeof was, "%.*s", (int)(key.len < 95 ? key.len : 95), key.data);
        if (strncmp(was, from, n) != 0 || was[n] != '.') {
            if (strcmp(was, "general.architecture") != 0)
                pp_gguf_add_copy(w, g, k);
            continue;
        }
        snprintf(is, sizeof is, "%s%s", to, was + n);
        if (pp_gguf_bool(g, was, &flag))
            pp_gguf_add_bool(w, is, flag);
        else if (pp_gguf_int(g, was, &whole))
            pp_gguf_add_u32(w, is, (uint32_t)whole);
        else if (pp_gguf_float(g, was, &number))
            pp_gguf_add_f32(w, is, (float)number);
    }
    pp_gguf_add_text(w, "general.architecture", to);
}

/* On text, Qwen's vision models compute the same as those without vision. */
static void seeing(void **state)
{
    static const char *const names[][2] = {
        {"qwen2", "qwen2vl"}, {"qwen2", "qwen25vl"}, {"qwen3", "qwen3vl"}, {"qwen3moe", "qwen3vlmoe"}};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *file = fresh(names[i][0]), *other = fresh(names[i][1]);
        char folder[64];
        struct items l = {0};
        struct pp_gguf *g;
        struct pp_error err;
        snprintf(folder, sizeof folder, "architectures/%s", names[i][0]);
        assert_ok(pp_convert_to_gguf(testdata(folder), file, &(struct pp_convert_options){0}, &err), err);
        assert_ok(pp_gguf_open(file, &g, &err), err);
        take(&l, g, false);
        struct pp_gguf_writer *w = gguf_file_begin(other);
        write_as(w, g, names[i][0], names[i][1]);
        pp_gguf_add_u32_array(w, "rope.dimension_sections", (const uint32_t[]){4, 6, 6, 0}, 4);
        write_items(w, &l);
        assert_same_answers(file, other);
        empty(&l);
        pp_gguf_close(g);
    }
}

TEST_GROUP(gguf_forms)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_experts),
        cmocka_unit_test(bad_fused),
        cmocka_unit_test(gptoss),
        cmocka_unit_test(nvfp4),
        cmocka_unit_test(seeing),
    };
    return cmocka_run_group_tests_name("gguf_forms", tests, NULL, NULL);
}
