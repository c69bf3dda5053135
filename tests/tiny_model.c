#include "tests/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/quant.h"
#include "engine/random_rows.h"
#include "tests/gguf_file.h"
#include "tests/support.h"

struct tiny_shape tiny_shape(uint32_t type)
{
    return (struct tiny_shape){.n_vocab = 320, .n_embd = 256, .n_layer = 2, .n_head = 4, .n_head_kv = 2,
                               .head_dim = 64, .n_ff = 512, .n_ctx = 1024, .type = type, .seed = 1};
}

/* Uniform with the variance 1 / n: activations keep their size from layer to layer. */
static void fill(float *f, int64_t n, int64_t n_in, uint32_t *state)
{
    for (int64_t i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u;
        f[i] = ((float)(*state >> 8) / 8388608.0f - 1.0f) * sqrtf(3.0f / (float)n_in);
    }
}

struct tensor_plan {
    char name[48];
    int64_t rows, cols; /* rows 0: a vector */
    int64_t matrices;   /* matrices of a stack; 0: it is not a stack */
    bool plain;         /* always F32 */
};

enum { MAX_TENSORS = 3 + 14 * 8 };

static int list_biases(const struct tiny_shape *s, int layer, struct tensor_plan *t)
{
    const struct { const char *kind; int n; } biases[] = {{"attn_q", s->n_head * s->head_dim},
                                                          {"attn_k", s->n_head_kv * s->head_dim},
                                                          {"attn_v", s->n_head_kv * s->head_dim},
                                                          {"ffn_up", s->n_ff}};
    for (int i = 0; i < 4; i++) {
        t[i] = (struct tensor_plan){.cols = biases[i].n};
        snprintf(t[i].name, sizeof t->name, "blk.%d.%s.bias", layer, biases[i].kind);
    }
    return 4;
}

static int list_tensors(const struct tiny_shape *s, struct tensor_plan *t)
{
    int n = 0, q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim;
    t[n++] = (struct tensor_plan){.name = "token_embd.weight", .rows = s->n_vocab, .cols = s->n_embd};
    for (int l = 0; l < s->n_layer; l++) {
        const struct { const char *kind; int64_t rows, cols; } block[] = {
            {"attn_norm", 0, s->n_embd}, {"attn_q", q, s->n_embd},       {"attn_k", kv, s->n_embd},
            {"attn_v", kv, s->n_embd},   {"attn_output", s->n_embd, q},  {"ffn_norm", 0, s->n_embd},
            {"ffn_gate", s->n_ff, s->n_embd}, {"ffn_up", s->n_ff, s->n_embd}, {"ffn_down", s->n_embd, s->n_ff},
        };
        for (size_t i = 0; i < sizeof block / sizeof block[0]; i++) {
            const bool stacked = s->n_expert && i >= 6;
            t[n] = (struct tensor_plan){.rows = block[i].rows, .cols = block[i].cols,
                                        .matrices = stacked ? s->n_expert : 0};
            snprintf(t[n++].name, sizeof t->name, "blk.%d.%s%s.weight", l, block[i].kind, stacked ? "_exps" : "");
        }
        if (s->n_expert) {
            t[n] = (struct tensor_plan){.rows = s->n_expert, .cols = s->n_embd, .plain = true};
            snprintf(t[n++].name, sizeof t->name, "blk.%d.ffn_gate_inp.weight", l);
        }
        if (s->biases)
            n += list_biases(s, l, t + n);
    }
    t[n++] = (struct tensor_plan){.name = "output_norm.weight", .cols = s->n_embd};
    t[n++] = (struct tensor_plan){.name = "output.weight", .rows = s->n_vocab, .cols = s->n_embd};
    return n;
}

static void fill_random_bits(uint8_t *q, uint32_t type, int64_t rows, int64_t cols, uint32_t *state)
{
    struct pp_random *r = pp_random_new(++*state);
    assert_non_null(r);
    for (int64_t i = 0; i < rows; i++)
        pp_random_row(r, type, cols, q + (size_t)i * pp_type_row_bytes(type, cols));
    pp_free(r);
}

/* Makes a tensor with new data. */
static struct pp_tensor make_tensor(const struct tensor_plan *t, uint32_t type, bool random_bits, uint32_t *state)
{
    struct pp_error err;
    int64_t rows = (t->rows ? t->rows : 1) * (t->matrices ? t->matrices : 1), n = rows * t->cols;
    float *f = pp_malloc((size_t)n * sizeof *f);
    struct pp_tensor made = float_tensor(t->name, f, t->cols, t->rows, t->matrices);
    made.type = t->rows && !t->plain ? type : PP_TYPE_F32;
    made.size = pp_type_row_bytes(made.type, t->cols) * (size_t)rows;
    uint8_t *q = pp_malloc(made.size);
    assert_true(f && q);
    made.data = q;
    fill(f, n, t->cols, state);
    for (int64_t i = 0; i < t->cols && !t->rows; i++)
        f[i] = 1.0f + f[i]; /* norms are near 1 */
    if (random_bits && t->rows)
        fill_random_bits(q, made.type, rows, t->cols, state);
    else
        assert_ok(pp_quantize_rows(made.type, f, q, rows, t->cols, NULL, &err), err);
    pp_free(f);
    return made;
}

static void end_file(struct pp_gguf_writer *w, const struct tensor_plan *plans, int n, uint32_t type, bool random_bits,
                     uint32_t seed)
{
    struct pp_tensor tensors[MAX_TENSORS] = {0};
    for (int i = 0; i < n; i++)
        tensors[i] = make_tensor(&plans[i], type, random_bits, &seed);
    gguf_file_end(w, tensors, (size_t)n);
    for (int i = 0; i < n; i++)
        pp_free((void *)(uintptr_t)tensors[i].data);
}

/* Both halves of a LoRA adapter for the first layer's seven matrices and for the output. */
static int list_halves(const struct tiny_shape *s, int rank, struct tensor_plan *halves)
{
    struct tensor_plan tensors[MAX_TENSORS];
    int n = list_tensors(s, tensors), n_halves = 0;
    for (int i = 1; i < n; i++) {
        const bool matrix = tensors[i].rows && !tensors[i].matrices && !tensors[i].plain;
        if (!matrix || (strncmp(tensors[i].name, "blk.0.", 6) != 0 && i < n - 1))
            continue;
        struct tensor_plan *a = &halves[n_halves++], *b = &halves[n_halves++];
        *a = (struct tensor_plan){.rows = rank, .cols = tensors[i].cols};
        *b = (struct tensor_plan){.rows = tensors[i].rows, .cols = rank};
        snprintf(a->name, sizeof a->name, "%.38s.lora_a", tensors[i].name);
        snprintf(b->name, sizeof b->name, "%.38s.lora_b", tensors[i].name);
    }
    return n_halves;
}

const char *tiny_adapter(const struct tiny_shape *s, int rank)
{
    struct tensor_plan halves[2 * 8];
    const char *path = fresh_path("tiny-adapter.gguf");
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_str(w, "general.architecture", "llama", 5);
    pp_gguf_add_str(w, "general.type", "adapter", 7);
    pp_gguf_add_str(w, "adapter.type", "lora", 4);
    pp_gguf_add_f32(w, "adapter.lora.alpha", (float)rank / 2);
    end_file(w, halves, list_halves(s, rank, halves), PP_TYPE_F32, false, s->seed + 1);
    return path;
}

/* The last files, with the times at which they were written. */
static struct {
    char path[256];
    struct tiny_shape shape;
    struct stat file;
} written[8];

/* The index of the file of that shape, if nobody changed it; else -1. */
static int find_written(const struct tiny_shape *s)
{
    for (int i = 0; i < 8; i++) {
        struct stat is;
        const struct stat *was = &written[i].file;
        if (written[i].path[0] && memcmp(&written[i].shape, s, sizeof *s) == 0 && stat(written[i].path, &is) == 0 &&
            is.st_ino == was->st_ino && is.st_size == was->st_size && is.st_mtim.tv_sec == was->st_mtim.tv_sec &&
            is.st_mtim.tv_nsec == was->st_mtim.tv_nsec)
            return i;
    }
    return -1;
}

const char *tiny_model(const struct tiny_shape *s)
{
    static unsigned next, serial;
    const int found = find_written(s);
    if (found >= 0)
        return written[found].path;
    const unsigned at = next++ % 8;
    struct tensor_plan tensors[MAX_TENSORS];
    char *path = written[at].path;
    assert_true(s->n_layer <= 8);
    snprintf(path, sizeof written[at].path, "%s/tiny-%u.gguf", test_tmpdir(), serial++);
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_str(w, "general.architecture", "llama", 5);
    pp_gguf_add_u32(w, "llama.block_count", (uint32_t)s->n_layer);
    pp_gguf_add_u32(w, "llama.context_length", (uint32_t)s->n_ctx);
    pp_gguf_add_u32(w, "llama.embedding_length", (uint32_t)s->n_embd);
    pp_gguf_add_u32(w, "llama.feed_forward_length", (uint32_t)s->n_ff);
    pp_gguf_add_u32(w, "llama.attention.head_count", (uint32_t)s->n_head);
    pp_gguf_add_u32(w, "llama.attention.head_count_kv", (uint32_t)s->n_head_kv);
    pp_gguf_add_u32(w, "llama.attention.key_length", (uint32_t)s->head_dim);
    pp_gguf_add_u32(w, "llama.attention.value_length", (uint32_t)s->head_dim);
    pp_gguf_add_u32(w, "llama.rope.dimension_count", (uint32_t)s->head_dim);
    pp_gguf_add_f32(w, "llama.rope.freq_base", 10000.0f);
    pp_gguf_add_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (s->window)
        pp_gguf_add_u32(w, "llama.attention.sliding_window", (uint32_t)s->window);
    if (s->n_expert) {
        pp_gguf_add_u32(w, "llama.expert_count", (uint32_t)s->n_expert);
        pp_gguf_add_u32(w, "llama.expert_used_count", 2);
    }
    pp_gguf_add_u32(w, "llama.vocab_size", (uint32_t)s->n_vocab);
    pp_gguf_add_str(w, "tokenizer.ggml.model", "no_vocab", 8);
    end_file(w, tensors, list_tensors(s, tensors), s->type, s->random_bits, s->seed);
    written[at].shape = *s;
    assert_int_equal(stat(path, &written[at].file), 0);
    return path;
}
