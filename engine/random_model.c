/* random_model.c - GGUF files with the shape of a known model and random weights.
 *
 * Weights are from random_rows.h, so that activations stay in a real model's range; norms are 1. */
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/bench.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/file_type.h"
#include "engine/gguf.h"
#include "engine/random_rows.h"

/* Sizes of published models. */
static const struct pp_random_shape shapes[] = {
    {.name = "stories-15m", .n_layers = 6, .n_embd = 288, .n_head = 6, .n_head_kv = 6, .n_ff = 768,
     .n_ctx = 256, .n_vocab = 32000, .rope_base = 1e4f, .tied = true},
    {.name = "smollm2-135m", .n_layers = 30, .n_embd = 576, .n_head = 9, .n_head_kv = 3, .n_ff = 1536,
     .n_ctx = 8192, .n_vocab = 49152, .rope_base = 1e5f, .tied = true},
    {.name = "tinyllama-1.1b", .n_layers = 22, .n_embd = 2048, .n_head = 32, .n_head_kv = 4, .n_ff = 5632,
     .n_ctx = 2048, .n_vocab = 32000, .rope_base = 1e4f},
    {.name = "llama-3.2-1b", .n_layers = 16, .n_embd = 2048, .n_head = 32, .n_head_kv = 8, .n_ff = 8192,
     .n_ctx = 131072, .n_vocab = 128256, .rope_base = 5e5f, .tied = true},
    {.name = "llama-3.2-3b", .n_layers = 28, .n_embd = 3072, .n_head = 24, .n_head_kv = 8, .n_ff = 8192,
     .n_ctx = 131072, .n_vocab = 128256, .rope_base = 5e5f, .tied = true},
    {.name = "llama-2-7b", .n_layers = 32, .n_embd = 4096, .n_head = 32, .n_head_kv = 32, .n_ff = 11008,
     .n_ctx = 4096, .n_vocab = 32000, .rope_base = 1e4f},
    {.name = "mistral-7b", .n_layers = 32, .n_embd = 4096, .n_head = 32, .n_head_kv = 8, .n_ff = 14336,
     .n_ctx = 32768, .n_vocab = 32768, .rope_base = 1e6f},
    {.name = "llama-3.1-8b", .n_layers = 32, .n_embd = 4096, .n_head = 32, .n_head_kv = 8, .n_ff = 14336,
     .n_ctx = 131072, .n_vocab = 128256, .rope_base = 5e5f},
    {.name = "lfm2-1.2b", .n_layers = 16, .n_embd = 2048, .n_head = 32, .n_head_kv = 8, .n_ff = 8192,
     .n_ctx = 128000, .n_vocab = 65536, .rope_base = 1e6f, .tied = true, .conv_taps = 3,
     .attends = 1 << 2 | 1 << 5 | 1 << 8 | 1 << 10 | 1 << 12 | 1 << 14},
    {.name = "qwen3.5-2b", .n_layers = 24, .n_embd = 2048, .n_head = 8, .n_head_kv = 2, .head_dim = 256, .n_ff = 6144,
     .n_ctx = 262144, .n_vocab = 248320, .rope_base = 1e7f, .tied = true, .n_state_head = 16, .n_state_key_head = 16,
     .state_dim = 128, .state_taps = 4, .attends = 0x888888},
    {.name = "olmoe-7b-a1b", .n_layers = 16, .n_embd = 2048, .n_head = 16, .n_head_kv = 16, .n_ff = 1024,
     .n_ctx = 4096, .n_vocab = 50304, .rope_base = 1e4f, .n_expert = 64, .n_expert_used = 8},
    {.name = "deepseek-v2-lite", .n_layers = 27, .n_embd = 2048, .n_head = 16, .n_head_kv = 1, .n_ff = 1408,
     .n_ctx = 163840, .n_vocab = 102400, .rope_base = 1e4f, .n_expert = 64, .n_expert_used = 6, .kv_lora_rank = 512,
     .qk_nope_dim = 128, .rope_dim = 64, .v_head_dim = 128, .n_ff_shared = 2816, .n_ff_dense = 10944, .n_dense = 1},
    {.name = "deepseek-v3", .n_layers = 61, .n_embd = 7168, .n_head = 128, .n_head_kv = 1, .n_ff = 2048,
     .n_ctx = 163840, .n_vocab = 129280, .rope_base = 1e4f, .n_expert = 256, .n_expert_used = 8, .kv_lora_rank = 512,
     .q_lora_rank = 1536, .qk_nope_dim = 128, .rope_dim = 64, .v_head_dim = 128, .n_ff_shared = 2048,
     .n_ff_dense = 18432, .n_dense = 3},
    {.name = "mixtral-8x7b", .n_layers = 32, .n_embd = 4096, .n_head = 32, .n_head_kv = 8, .n_ff = 14336,
     .n_ctx = 32768, .n_vocab = 32000, .rope_base = 1e6f, .n_expert = 8, .n_expert_used = 2},
};

enum { N_SHAPES = sizeof shapes / sizeof *shapes, MOST_LAYERS = 256 };

const struct pp_random_shape *pp_random_shape_by_name(const char *name)
{
    for (size_t i = 0; i < N_SHAPES; i++)
        if (pp_casecmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

/* --- the file ----------------------------------------------------------------------------------------------- */

struct random_file {
    const struct pp_random_model *spec;
    const struct pp_random_shape *shape;
    struct pp_hparams hp;
    int tensor_type;            /* of all matrices; -1: mixed by file_type */
    int file_type;
    struct pp_gguf_writer *w;
    struct pp_random *random;
    void *row;                  /* a row, of the largest size */
    bool writing;               /* second walk over the tensors; the first announces them */
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
    size_t bytes = pp_type_row_bytes(t->type, t->ne[0]);
    enum pp_code code = PP_OK;
    if (t->n_dims > 1 && f->spec->zeros)
        return pp_gguf_write_zeros(f->w, err);
    for (int64_t i = 0; t->n_dims == 1 && i < t->ne[0]; i++)
        ((float *)f->row)[i] = strstr(t->name, ".ssm_a") ? -0.1f : 1.0f;
    for (int64_t r = 0; r < t->ne[1] * t->ne[2] && !code; r++) {
        if (pp_cancelled(f->cancel))
            return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
        if (t->n_dims > 1)
            pp_random_row(f->random, t->type, t->ne[0], f->row);
        code = pp_gguf_write(f->w, f->row, bytes, err);
        f->done += bytes;
        if (f->progress && r % 64 == 0)
            f->progress(f->user, f->done, f->total);
    }
    return code;
}

/* n_rows 0: a vector of ones. n > 0: a stack of matrices. */
static enum pp_code stack(struct random_file *f, const char *name, int64_t n, int64_t n_rows, int64_t n_cols,
                          struct pp_error *err)
{
    struct pp_tensor t = {.name = name, .type = PP_TYPE_F32, .n_dims = n ? 3 : n_rows ? 2 : 1,
                          .ne = {n_cols, n_rows ? n_rows : 1, n ? n : 1, 1}};
    if (n_rows && !pp_export_keeps_f32(&t))
        t.type = matrix_type(f, &t);
    if (f->writing)
        return write_rows(f, &t, err);
    pp_gguf_add_tensor(f->w, name, t.type, t.n_dims, t.ne);
    f->total += pp_type_row_bytes(t.type, n_cols) * (uint64_t)(t.ne[1] * t.ne[2]);
    return PP_OK;
}

static enum pp_code tensor(struct random_file *f, const char *name, int64_t n_rows, int64_t n_cols,
                           struct pp_error *err)
{
    return stack(f, name, 0, n_rows, n_cols, err);
}

/* A tensor of a layer, or a stack of n. */
struct part {
    const char *name;
    int64_t n, n_rows, n_cols;
};

static enum pp_code add_parts(struct random_file *f, int64_t index, const struct part *parts, size_t n,
                              struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < n && !code; i++) {
        char name[64];
        const bool whole = parts[i].name[0] == '*'; /* the name has no ".weight" */
        snprintf(name, sizeof name, "blk.%lld.%s%s", (long long)index, parts[i].name + whole, whole ? "" : ".weight");
        code = parts[i].n_cols ? stack(f, name, parts[i].n, parts[i].n_rows, parts[i].n_cols, err) : PP_OK;
    }
    return code;
}

static bool attends(const struct random_file *f, int64_t index)
{
    return f->shape->attends >> index % f->shape->n_layers & 1;
}

static bool is_convolved(const struct random_file *f, int64_t index)
{
    return f->hp.conv_taps && !attends(f, index);
}

static enum pp_code convolution(struct random_file *f, int64_t index, struct pp_error *err)
{
    const int64_t n = f->hp.n_embd;
    const struct part parts[] = {
        {"attn_norm", 0, 0, n},
        {"shortconv.in_proj", 0, 3 * n, n},
        {"shortconv.conv", 0, n, f->hp.conv_taps},
        {"shortconv.out_proj", 0, n, n},
        {"ffn_norm", 0, 0, n},
    };
    return add_parts(f, index, parts, sizeof parts / sizeof *parts, err);
}

static enum pp_code states(struct random_file *f, int64_t index, struct pp_error *err)
{
    const struct pp_random_shape *s = f->shape;
    const int64_t n = f->hp.n_embd, values = s->n_state_head * s->state_dim;
    const int64_t mixed = values + 2 * s->n_state_key_head * s->state_dim;
    const struct part parts[] = {
        {"attn_norm", 0, 0, n},
        {"attn_qkv", 0, mixed, n},
        {"attn_gate", 0, values, n},
        {"ssm_beta", 0, s->n_state_head, n},
        {"ssm_alpha", 0, s->n_state_head, n},
        {"ssm_conv1d", 0, mixed, s->state_taps},
        {"*ssm_a", 0, 0, s->n_state_head},
        {"*ssm_dt.bias", 0, 0, s->n_state_head},
        {"ssm_norm", 0, 0, s->state_dim},
        {"ssm_out", 0, n, values},
        {"post_attention_norm", 0, 0, n},
    };
    return add_parts(f, index, parts, sizeof parts / sizeof *parts, err);
}

static enum pp_code attention(struct random_file *f, int64_t index, struct pp_error *err)
{
    const struct pp_hparams *hp = &f->hp;
    const bool gated = f->shape->n_state_head > 0;
    const int64_t qk_norm_dim = hp->conv_taps || gated ? hp->head_dim : 0;
    const struct part parts[] = {
        {"attn_norm", 0, 0, hp->n_embd},
        {"attn_q", 0, (gated ? 2 : 1) * hp->n_head * hp->head_dim, hp->n_embd},
        {"attn_k", 0, hp->n_head_kv * hp->head_dim, hp->n_embd},
        {"attn_v", 0, hp->n_head_kv * hp->head_dim, hp->n_embd},
        {"attn_q_norm", 0, 0, qk_norm_dim},
        {"attn_k_norm", 0, 0, qk_norm_dim},
        {"attn_output", 0, hp->n_embd, hp->n_head * hp->head_dim},
        {gated ? "post_attention_norm" : "ffn_norm", 0, 0, hp->n_embd},
    };
    return add_parts(f, index, parts, sizeof parts / sizeof *parts, err);
}

static enum pp_code latent_attention(struct random_file *f, int64_t index, struct pp_error *err)
{
    const struct pp_hparams *hp = &f->hp;
    const int64_t n_q = hp->n_head * (hp->qk_nope_dim + hp->rope_dim), low = hp->q_lora_rank;
    const struct part parts[] = {
        {"attn_norm", 0, 0, hp->n_embd},
        {"attn_q", 0, n_q, low ? 0 : hp->n_embd},
        {"attn_q_a", 0, low, low ? hp->n_embd : 0},
        {"attn_q_a_norm", 0, 0, low},
        {"attn_q_b", 0, n_q, low},
        {"attn_kv_a_mqa", 0, hp->head_dim, hp->n_embd},
        {"attn_kv_a_norm", 0, 0, hp->kv_lora_rank},
        {"attn_k_b", hp->n_head, hp->kv_lora_rank, hp->qk_nope_dim},
        {"attn_v_b", hp->n_head, hp->v_head_dim, hp->kv_lora_rank},
        {"attn_output", 0, hp->n_embd, hp->n_head * hp->v_head_dim},
        {"ffn_norm", 0, 0, hp->n_embd},
    };
    return add_parts(f, index, parts, sizeof parts / sizeof *parts, err);
}

static enum pp_code dense(struct random_file *f, int64_t index, int64_t n_ff, struct pp_error *err)
{
    const int64_t n_embd = f->hp.n_embd;
    const struct part parts[] = {{"ffn_gate", 0, n_ff, n_embd}, {"ffn_up", 0, n_ff, n_embd},
                                 {"ffn_down", 0, n_embd, n_ff}};
    return add_parts(f, index, parts, sizeof parts / sizeof *parts, err);
}

static enum pp_code mixture(struct random_file *f, int64_t index, struct pp_error *err)
{
    const struct pp_hparams *hp = &f->hp;
    const int64_t n = hp->n_expert, shared = hp->n_ff_shared, to_shared = shared ? hp->n_embd : 0;
    const struct part parts[] = {
        {"ffn_gate_exps", n, hp->n_ff, hp->n_embd},  {"ffn_up_exps", n, hp->n_ff, hp->n_embd},
        {"ffn_down_exps", n, hp->n_embd, hp->n_ff},  {"ffn_gate_inp", 0, n, hp->n_embd},
        {"ffn_gate_shexp", 0, shared, to_shared},    {"ffn_up_shexp", 0, shared, to_shared},
        {"ffn_down_shexp", 0, hp->n_embd, shared},
    };
    return add_parts(f, index, parts, sizeof parts / sizeof *parts, err);
}

static enum pp_code layer(struct random_file *f, int64_t index, struct pp_error *err)
{
    const struct pp_hparams *hp = &f->hp;
    enum pp_code code = (is_convolved(f, index)                          ? convolution
                         : f->shape->n_state_head && !attends(f, index) ? states
                         : hp->kv_lora_rank                             ? latent_attention
                                                                        : attention)(f, index, err);
    if (!code && hp->n_expert && index >= f->shape->n_dense)
        return mixture(f, index, err);
    return code ? code : dense(f, index, f->shape->n_ff_dense ? f->shape->n_ff_dense : hp->n_ff, err);
}

static enum pp_code all_tensors(struct random_file *f, struct pp_error *err)
{
    const struct pp_hparams *hp = &f->hp;
    enum pp_code code = tensor(f, "token_embd.weight", hp->n_vocab, hp->n_embd, err);
    for (int64_t i = 0; i < hp->n_layer && !code; i++)
        code = layer(f, i, err);
    if (!code)
        code = tensor(f, hp->conv_taps ? "token_embd_norm.weight" : "output_norm.weight", 0, hp->n_embd, err);
    if (!code && !f->shape->tied)
        code = tensor(f, "output.weight", hp->n_vocab, hp->n_embd, err);
    return code;
}

static const char *arch_of(const struct random_file *f)
{
    return f->shape->n_state_head ? "qwen35"
           : f->hp.kv_lora_rank   ? "deepseek2"
           : f->hp.conv_taps      ? "lfm2"
                                  : "llama";
}

static void add_number(struct random_file *f, const char *key, int64_t v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch_of(f), key);
    if (v)
        pp_gguf_add_u32(f->w, full, (uint32_t)v);
}

static void add_float(struct random_file *f, const char *key, float v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch_of(f), key);
    pp_gguf_add_f32(f->w, full, v);
}

/* Numbers of KV heads: layers with convolutions have none. */
static void add_key_heads(struct random_file *f)
{
    uint32_t n_head_kv[MOST_LAYERS];
    if (!f->hp.conv_taps) {
        add_number(f, "attention.head_count_kv", f->hp.n_head_kv);
        return;
    }
    for (int64_t l = 0; l < f->hp.n_layer; l++)
        n_head_kv[l] = is_convolved(f, l) ? 0 : (uint32_t)f->hp.n_head_kv;
    pp_gguf_add_u32_array(f->w, "lfm2.attention.head_count_kv", n_head_kv, (size_t)f->hp.n_layer);
}

static void add_states(struct random_file *f)
{
    const struct pp_random_shape *s = f->shape;
    add_number(f, "attention.key_length", s->head_dim);
    add_number(f, "attention.value_length", s->head_dim);
    add_number(f, "ssm.conv_kernel", s->state_taps);
    add_number(f, "ssm.state_size", s->state_dim);
    add_number(f, "ssm.group_count", s->n_state_key_head);
    add_number(f, "ssm.time_step_rank", s->n_state_head);
    add_number(f, "ssm.inner_size", s->n_state_head * s->state_dim);
    pp_gguf_add_i32_array(f->w, "qwen35.rope.dimension_sections", (const int32_t[]){11, 11, 10, 0}, 4);
}

static const char name_end[] = ", random weights"; /* appended to the shape's name; pp_random_model_is looks for it */

static void add_metadata(struct random_file *f)
{
    const struct pp_hparams *hp = &f->hp;
    const struct pp_random_shape *s = f->shape;
    const bool latent = hp->kv_lora_rank > 0;
    struct pp_gguf_writer *w = f->w;
    char name[96];
    snprintf(name, sizeof name, "%s%s", s->name, name_end);
    pp_gguf_add_text(w, "general.architecture", arch_of(f));
    pp_gguf_add_text(w, "general.type", "model");
    pp_gguf_add_text(w, "general.name", name);
    add_number(f, "block_count", hp->n_layer);
    add_number(f, "context_length", hp->n_ctx_train);
    add_number(f, "embedding_length", hp->n_embd);
    add_number(f, "feed_forward_length", s->n_ff_dense ? s->n_ff_dense : hp->n_ff);
    add_number(f, "attention.head_count", hp->n_head);
    add_key_heads(f);
    add_number(f, "shortconv.l_cache", hp->conv_taps);
    add_number(f, "rope.dimension_count", latent ? hp->rope_dim : s->n_state_head ? hp->head_dim / 4 : hp->head_dim);
    if (s->n_state_head)
        add_states(f);
    add_float(f, "rope.freq_base", s->rope_base);
    add_float(f, "attention.layer_norm_rms_epsilon", 1e-5f);
    add_number(f, "expert_count", hp->n_expert);
    add_number(f, "expert_used_count", hp->n_expert_used);
    if (latent) {
        add_number(f, "attention.kv_lora_rank", hp->kv_lora_rank);
        add_number(f, "attention.q_lora_rank", hp->q_lora_rank);
        add_number(f, "attention.key_length", hp->head_dim);
        add_number(f, "attention.value_length", hp->kv_lora_rank);
        add_number(f, "attention.key_length_mla", hp->qk_nope_dim + hp->rope_dim);
        add_number(f, "attention.value_length_mla", hp->v_head_dim);
        add_number(f, "expert_feed_forward_length", hp->n_ff);
        add_number(f, "expert_shared_count", hp->n_ff_shared / hp->n_ff);
        add_number(f, "leading_dense_block_count", s->n_dense);
        add_float(f, "expert_weights_scale", 1);
    }
    add_number(f, "vocab_size", hp->n_vocab);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
    if (f->file_type >= 0)
        pp_gguf_add_u32(w, "general.file_type", (uint32_t)f->file_type);
    pp_gguf_add_u32(w, "general.quantization_version", 2);
}

static enum pp_code fail_shape(const char *name, struct pp_error *err)
{
    struct pp_buf known = {0};
    for (size_t i = 0; i < N_SHAPES; i++)
        pp_buf_fmt(&known, "%s%s", i ? ", " : "", shapes[i].name);
    const enum pp_code code = pp_fail(err, PP_ERR_USAGE, "unknown shape \"%.40s\"; choose from %s", name,
                                      pp_buf_cstr(&known));
    pp_buf_free(&known);
    return code;
}

/* Refuses a type and names the ones there are: those of single tensors, then the mixes. */
static enum pp_code fail_type(const char *name, struct pp_error *err)
{
    struct pp_buf known = {0};
    for (uint32_t type = 0; type < PP_TYPE_LIMIT; type++)
        if (pp_type_info(type)->runnable)
            pp_buf_fmt(&known, "%s%s", known.len ? ", " : "", pp_type_info(type)->name);
    for (size_t i = 0; pp_quantize_type(i); i++)
        if (pp_type_by_name(pp_quantize_type(i)) < 0)
            pp_buf_fmt(&known, ", %s", pp_quantize_type(i));
    const enum pp_code code =
        pp_fail(err, PP_ERR_USAGE, "random weights cannot have the type \"%.40s\"; choose from %s", name,
                pp_buf_cstr(&known));
    pp_buf_free(&known);
    return code;
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
    return fail_type(name, err);
}

static enum pp_code choose(struct random_file *f, const struct pp_random_model *spec, struct pp_error *err)
{
    enum { MOST_VOCAB = 1 << 20 };
    const struct pp_random_shape *s = f->shape = pp_random_shape_by_name(spec->shape);
    if (!s)
        return fail_shape(spec->shape, err);
    if (spec->n_layers < 0 || spec->n_layers > MOST_LAYERS || spec->n_vocab < 0 || spec->n_vocab > MOST_VOCAB ||
        spec->n_ff < 0 || spec->n_ff > MOST_VOCAB)
        return pp_fail(err, PP_ERR_USAGE, "a random model must have 1 to %d layers and 1 to %d tokens", MOST_LAYERS,
                       MOST_VOCAB);
    f->hp = (struct pp_hparams){
        .n_vocab = spec->n_vocab ? spec->n_vocab : s->n_vocab,
        .n_embd = s->n_embd,
        .n_layer = spec->n_layers ? spec->n_layers : s->n_layers,
        .n_head = s->n_head,
        .n_head_kv = s->n_head_kv,
        .head_dim = s->kv_lora_rank ? s->kv_lora_rank + s->rope_dim
                    : s->head_dim   ? s->head_dim
                                    : s->n_embd / s->n_head,
        .kv_lora_rank = s->kv_lora_rank,
        .q_lora_rank = s->q_lora_rank,
        .qk_nope_dim = s->qk_nope_dim,
        .rope_dim = s->rope_dim,
        .v_head_dim = s->v_head_dim,
        .n_ff_shared = s->n_ff_shared,
        .n_ff = spec->n_ff ? spec->n_ff : s->n_ff,
        .n_ctx_train = s->n_ctx,
        .n_expert = s->n_expert,
        .n_expert_used = s->n_expert_used,
        .conv_taps = s->conv_taps,
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
    const int64_t widths[] = {f.hp.n_embd, f.hp.n_ff, f.shape->n_ff_dense, f.hp.n_ff_shared,
                              f.shape->n_state_head * f.shape->state_dim, f.hp.n_head * f.hp.v_head_dim};
    int64_t longest = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        longest = widths[i] > longest ? widths[i] : longest;
    f.random = pp_random_new(spec->seed);
    f.row = pp_malloc((size_t)longest * sizeof(float));
    if (!f.random || !f.row)
        code = pp_fail_nomem(err, "a random model");
    if (!code)
        code = pp_gguf_writer_new(path, &f.w, err);
    if (!code) {
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
    pp_free(f.random);
    pp_free(f.row);
    return code;
}

bool pp_random_model_is(const char *path)
{
    struct pp_gguf *g;
    struct pp_str name = {0};
    if (pp_gguf_open(path, &g, NULL))
        return false;
    const size_t end = sizeof name_end - 1;
    const bool is = pp_gguf_string(g, "general.name", &name) && name.len >= end &&
                    memcmp(name.data + name.len - end, name_end, end) == 0;
    pp_gguf_close(g);
    return is;
}
