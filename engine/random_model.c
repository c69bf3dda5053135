/* random_model.c - GGUF files with the shape of a well-known model and noise for weights.
 *
 * The weights have mean 0 and a standard deviation of about 1 / sqrt(row length), so that activations stay in the range
 * of a real model's; norms are 1. Blocks are not quantised from floats but made of random bits with fitting scales,
 * which is as fast as the disk. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/bench.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/file_type.h"
#include "engine/gguf.h"
#include "engine/quant.h"
#include "engine/quant_blocks.h"

/* Numbers of the published models; layers, width, heads, KV heads, inner width, context, vocabulary, base of RoPE. */
static const struct pp_random_shape shapes[] = {
    {"stories-15m", 6, 288, 6, 6, 768, 256, 32000, 1e4f, true},
    {"smollm2-135m", 30, 576, 9, 3, 1536, 8192, 49152, 1e5f, true},
    {"tinyllama-1.1b", 22, 2048, 32, 4, 5632, 2048, 32000, 1e4f, false},
    {"llama-3.2-1b", 16, 2048, 32, 8, 8192, 131072, 128256, 5e5f, true},
    {"llama-3.2-3b", 28, 3072, 24, 8, 8192, 131072, 128256, 5e5f, true},
    {"llama-2-7b", 32, 4096, 32, 32, 11008, 4096, 32000, 1e4f, false},
    {"mistral-7b", 32, 4096, 32, 8, 14336, 32768, 32768, 1e6f, false},
    {"llama-3.1-8b", 32, 4096, 32, 8, 14336, 131072, 128256, 5e5f, false},
};

enum { N_SHAPES = sizeof shapes / sizeof *shapes };

const struct pp_random_shape *pp_random_shape(size_t i)
{
    return i < N_SHAPES ? &shapes[i] : NULL;
}

const struct pp_random_shape *pp_random_shape_by_name(const char *name)
{
    for (size_t i = 0; i < N_SHAPES; i++)
        if (strcasecmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

/* --- noise -------------------------------------------------------------------------------------------------- */

enum { N_NORMAL = 1 << 16 };

struct noise {
    uint64_t state;
    float normal[N_NORMAL];   /* a normal distribution in steps of equal probability */
    uint16_t half[N_NORMAL];  /* the same times a deviation, in the current tensor's type */
    float scaled[N_NORMAL];
};

/* splitmix64: https://prng.di.unimi.it/splitmix64.c describes it */
static uint64_t next_bits(struct noise *n)
{
    uint64_t z = n->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void random_bytes(struct noise *n, uint8_t *to, size_t bytes)
{
    for (; bytes >= 8; bytes -= 8, to += 8) {
        uint64_t bits = next_bits(n);
        memcpy(to, &bits, 8);
    }
    uint64_t bits = next_bits(n);
    memcpy(to, &bits, bytes);
}

/* The quantiles of the standard normal distribution, by going along its density in steps of equal area. */
static void fill_normal(struct noise *n)
{
    double x = 0, area = sqrt(2 * M_PI) / N_NORMAL;
    for (int i = 0; i < N_NORMAL / 2; i++) {
        double half = x + 0.5 * area * exp(0.5 * x * x);
        n->normal[N_NORMAL / 2 + i] = (float)half;
        n->normal[N_NORMAL / 2 - 1 - i] = (float)-half;
        x += area * exp(0.5 * half * half);
        if (x > 5)
            x = 5;
    }
}

static void prepare_floats(struct noise *n, uint32_t type, float deviation)
{
    for (int i = 0; i < N_NORMAL; i++) {
        n->scaled[i] = n->normal[i] * deviation;
        n->half[i] = type == PP_TYPE_F16 ? pp_f32_to_f16(n->scaled[i]) : pp_f32_to_bf16(n->scaled[i]);
    }
}

static void float_row(struct noise *n, uint32_t type, int64_t count, void *to)
{
    float *f = to;
    uint16_t *h = to;
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++, bits >>= 16) {
        if (i % 4 == 0)
            bits = next_bits(n);
        if (type == PP_TYPE_F32)
            f[i] = n->scaled[bits & 0xFFFF];
        else
            h[i] = n->half[bits & 0xFFFF];
    }
}

/* The divisors are the standard deviations of the stored integers times their scales. Q4_0's integers have mean -0.5:
 * half of the scales are negative, so that the weights have none. */
static void quantized_row(struct noise *n, uint32_t type, int64_t count, float deviation, void *to)
{
    const struct pp_type_info *info = pp_type_info(type);
    uint8_t *block = to;
    random_bytes(n, block, pp_type_row_bytes(type, count));
    for (int64_t i = 0; i < count; i += info->block_elements, block += info->block_bytes) {
        if (type == PP_TYPE_Q8_0) {
            ((struct pp_block_q8_0 *)(void *)block)->d = pp_f32_to_f16(deviation / 73.9f);
        } else if (type == PP_TYPE_Q4_0) {
            struct pp_block_q4_0 *b = (void *)block;
            b->d = pp_f32_to_f16((b->d & 1 ? deviation : -deviation) / 4.64f);
        } else if (type == PP_TYPE_Q4_K) { /* q has mean 7.5: so has its minimum, on average */
            struct pp_block_q4_k *b = (void *)block;
            b->d = pp_f32_to_f16(deviation / 258);
            b->dmin = pp_f32_to_f16(7.5f * deviation / 258);
        } else if (type == PP_TYPE_Q6_K) {
            ((struct pp_block_q6_k *)(void *)block)->d = pp_f32_to_f16(deviation / 1366);
        }
    }
}

/* --- the file ----------------------------------------------------------------------------------------------- */

struct random_file {
    const struct pp_random_model *spec;
    const struct pp_random_shape *shape;
    struct pp_hparams hp;
    int tensor_type;            /* of all matrices; -1: as file_type mixes them */
    int file_type;
    struct pp_gguf_writer *w;
    struct noise *noise;
    void *row;                  /* the longest there is, in floats */
    bool writing;               /* second walk over the tensors: first they are announced */
    uint64_t done, total;       /* bytes */
    pp_progress *progress;
    void *user;
    const struct pp_cancel *cancel;
};

static uint32_t matrix_type(const struct random_file *f, const struct pp_tensor *t)
{
    if (f->tensor_type < 0)
        return pp_quantize_tensor_type(f->file_type, &f->hp, f->shape->tied, t);
    return pp_quantize_fitting_type((uint32_t)f->tensor_type, t->ne[0]);
}

static enum pp_code write_rows(struct random_file *f, const struct pp_tensor *t, struct pp_error *err)
{
    float deviation = 1.0f / sqrtf((float)t->ne[0]);
    size_t bytes = pp_type_row_bytes(t->type, t->ne[0]);
    bool blocks = pp_type_info(t->type)->block_elements > 1;
    enum pp_code code = PP_OK;
    if (t->n_dims == 1)
        for (int64_t i = 0; i < t->ne[0]; i++)
            ((float *)f->row)[i] = 1.0f;
    else if (!blocks)
        prepare_floats(f->noise, t->type, deviation);
    for (int64_t r = 0; r < t->ne[1] && !code; r++) {
        if (pp_cancelled(f->cancel))
            return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
        if (t->n_dims > 1 && blocks)
            quantized_row(f->noise, t->type, t->ne[0], deviation, f->row);
        else if (t->n_dims > 1)
            float_row(f->noise, t->type, t->ne[0], f->row);
        code = pp_gguf_write(f->w, f->row, bytes, err);
        f->done += bytes;
        if (f->progress && r % 64 == 0)
            f->progress(f->user, f->done, f->total);
    }
    return code;
}

/* n_rows 0: a vector of ones. */
static enum pp_code tensor(struct random_file *f, const char *name, int64_t n_rows, int64_t n_cols,
                           struct pp_error *err)
{
    struct pp_tensor t = {.name = name, .type = PP_TYPE_F32, .n_dims = n_rows ? 2 : 1,
                          .ne = {n_cols, n_rows ? n_rows : 1, 1, 1}};
    if (n_rows)
        t.type = matrix_type(f, &t);
    if (f->writing)
        return write_rows(f, &t, err);
    pp_gguf_add_tensor(f->w, name, t.type, t.n_dims, t.ne);
    f->total += pp_type_row_bytes(t.type, n_cols) * (uint64_t)t.ne[1];
    return PP_OK;
}

static enum pp_code layer(struct random_file *f, int64_t index, struct pp_error *err)
{
    const struct pp_hparams *hp = &f->hp;
    const struct {
        const char *name;
        int64_t n_rows, n_cols;
    } parts[] = {
        {"attn_norm", 0, hp->n_embd},
        {"attn_q", hp->n_head * hp->head_dim, hp->n_embd},
        {"attn_k", hp->n_head_kv * hp->head_dim, hp->n_embd},
        {"attn_v", hp->n_head_kv * hp->head_dim, hp->n_embd},
        {"attn_output", hp->n_embd, hp->n_head * hp->head_dim},
        {"ffn_norm", 0, hp->n_embd},
        {"ffn_gate", hp->n_ff, hp->n_embd},
        {"ffn_up", hp->n_ff, hp->n_embd},
        {"ffn_down", hp->n_embd, hp->n_ff},
    };
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !code; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)index, parts[i].name);
        code = tensor(f, name, parts[i].n_rows, parts[i].n_cols, err);
    }
    return code;
}

static enum pp_code all_tensors(struct random_file *f, struct pp_error *err)
{
    const struct pp_hparams *hp = &f->hp;
    enum pp_code code = tensor(f, "token_embd.weight", hp->n_vocab, hp->n_embd, err);
    for (int64_t i = 0; i < hp->n_layer && !code; i++)
        code = layer(f, i, err);
    if (!code)
        code = tensor(f, "output_norm.weight", 0, hp->n_embd, err);
    if (!code && !f->shape->tied)
        code = tensor(f, "output.weight", hp->n_vocab, hp->n_embd, err);
    return code;
}

static void add_text(struct pp_gguf_writer *w, const char *key, const char *text)
{
    pp_gguf_add_str(w, key, text, strlen(text));
}

static void add_metadata(struct random_file *f)
{
    const struct pp_hparams *hp = &f->hp;
    struct pp_gguf_writer *w = f->w;
    char name[96];
    snprintf(name, sizeof name, "%s, random weights", f->shape->name);
    add_text(w, "general.architecture", "llama");
    add_text(w, "general.type", "model");
    add_text(w, "general.name", name);
    pp_gguf_add_u32(w, "llama.block_count", (uint32_t)hp->n_layer);
    pp_gguf_add_u32(w, "llama.context_length", (uint32_t)hp->n_ctx_train);
    pp_gguf_add_u32(w, "llama.embedding_length", (uint32_t)hp->n_embd);
    pp_gguf_add_u32(w, "llama.feed_forward_length", (uint32_t)hp->n_ff);
    pp_gguf_add_u32(w, "llama.attention.head_count", (uint32_t)hp->n_head);
    pp_gguf_add_u32(w, "llama.attention.head_count_kv", (uint32_t)hp->n_head_kv);
    pp_gguf_add_u32(w, "llama.rope.dimension_count", (uint32_t)hp->head_dim);
    pp_gguf_add_f32(w, "llama.rope.freq_base", f->shape->rope_base);
    pp_gguf_add_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    pp_gguf_add_u32(w, "llama.vocab_size", (uint32_t)hp->n_vocab);
    add_text(w, "tokenizer.ggml.model", "no_vocab");
    if (f->file_type >= 0)
        pp_gguf_add_u32(w, "general.file_type", (uint32_t)f->file_type);
    pp_gguf_add_u32(w, "general.quantization_version", 2);
}

static enum pp_code fail_shape(const char *name, struct pp_error *err)
{
    char known[256] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_SHAPES; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", shapes[i].name);
    return pp_fail(err, PP_ERR_USAGE, "there is no shape \"%.40s\"; there are %s", name, known);
}

static enum pp_code choose_types(struct random_file *f, const char *name, struct pp_error *err)
{
    int type = pp_type_by_name(name);
    if (type >= 0 && pp_type_info((uint32_t)type)->runnable) {
        f->tensor_type = type;
        f->file_type = pp_file_type_of((uint32_t)type);
        return PP_OK;
    }
    f->tensor_type = -1;
    f->file_type = pp_file_type_by_name(name);
    for (size_t i = 0; pp_quantize_type(i); i++)
        if (pp_file_type_by_name(pp_quantize_type(i)) == f->file_type)
            return PP_OK;
    return pp_fail(err, PP_ERR_USAGE,
                   "there are no random weights of type \"%.40s\"; there are f32, f16, bf16, q8_0, q4_0, q4_k, q6_k "
                   "and q4_k_m",
                   name);
}

static enum pp_code choose(struct random_file *f, const struct pp_random_model *spec, struct pp_error *err)
{
    enum { MOST_LAYERS = 256, MOST_VOCAB = 1 << 20 };
    const struct pp_random_shape *s = f->shape = pp_random_shape_by_name(spec->shape);
    if (!s)
        return fail_shape(spec->shape, err);
    if (spec->n_layers < 0 || spec->n_layers > MOST_LAYERS || spec->n_vocab < 0 || spec->n_vocab > MOST_VOCAB)
        return pp_fail(err, PP_ERR_USAGE, "a random model has 1 to %d layers and 1 to %d tokens", MOST_LAYERS,
                       MOST_VOCAB);
    f->hp = (struct pp_hparams){
        .n_vocab = spec->n_vocab ? spec->n_vocab : s->n_vocab,
        .n_embd = s->n_embd,
        .n_layer = spec->n_layers ? spec->n_layers : s->n_layers,
        .n_head = s->n_head,
        .n_head_kv = s->n_head_kv,
        .head_dim = s->n_embd / s->n_head,
        .n_ff = s->n_ff,
        .n_ctx_train = s->n_ctx,
    };
    return choose_types(f, spec->type, err);
}

enum pp_code pp_random_model_write(const struct pp_random_model *spec, const char *path, pp_progress *progress,
                                   void *user, const struct pp_cancel *cancel, struct pp_error *err)
{
    struct random_file f = {.spec = spec, .progress = progress, .user = user, .cancel = cancel};
    enum pp_code code = choose(&f, spec, err);
    if (code)
        return code;
    int64_t longest = f.hp.n_ff > f.hp.n_embd ? f.hp.n_ff : f.hp.n_embd;
    f.noise = pp_calloc(1, sizeof *f.noise);
    f.row = pp_malloc((size_t)longest * sizeof(float));
    if (!f.noise || !f.row)
        code = pp_fail_nomem(err, "a random model");
    if (!code)
        code = pp_gguf_writer_new(path, &f.w, err);
    if (!code) {
        f.noise->state = spec->seed;
        fill_normal(f.noise);
        add_metadata(&f);
        code = all_tensors(&f, err);
    }
    if (!code)
        code = pp_gguf_writer_begin(f.w, err);
    f.writing = true;
    if (!code)
        code = all_tensors(&f, err);
    if (!code)
        code = pp_gguf_writer_finish(f.w, err);
    pp_gguf_writer_free(f.w);
    pp_free(f.noise);
    pp_free(f.row);
    return code;
}
