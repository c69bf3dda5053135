#include "tests/decoder_model_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/gguf_file.h"
#include "tests/support.h"

/* The families, described by their differences from Llama. */
static const struct decoder_shape families[] = {
    {.arch = "mistral3", .neighbours = true},
    {.arch = "stablelm", .centred = true, .norm_bias = true, .rope_dim = 6},
    {.arch = "phi2", .centred = true, .norm_bias = true, .rope_dim = 6, .n_head_kv = 4, .parallel = true,
     .ff = FF_GELU, .heads_bias = true, .biases = BIAS_QKV | BIAS_O | BIAS_FF | BIAS_OUTPUT},
    {.arch = "seed_oss", .ffn_norm = "post_attention_norm", .biases = BIAS_QKV},
    {.arch = "ernie4_5", .neighbours = true, .tied = true},
    {.arch = "exaone"},
    {.arch = "exaone4", .norms = POST_NORM, .heads = HEADS_SHARE_NORM},
    {.arch = "chatglm", .neighbours = true, .rope_dim = 6, .ff = FF_SILU_FUSED, .biases = BIAS_QKV},
    {.arch = "glm4", .neighbours = true, .rope_dim = 6, .ff = FF_SILU_FUSED, .biases = BIAS_QKV, .norms = BOTH_NORMS},
    {.arch = "command-r", .neighbours = true, .centred = true, .parallel = true, .tied = true, .logit_scale = 0.25f},
    {.arch = "olmoe", .heads = HEADS_WHOLE, .n_expert = 6, .n_used = 3, .shares = true},
    {.arch = "granitemoe", .neighbours = true, .tied = true, .n_expert = 6, .n_used = 3, .attn_scale = 0.2f,
     .embd_scale = 3, .residual_scale = 0.5f, .logit_scale = 4, .logit_divided = true},
    {.arch = "olmo", .neighbours = true, .centred = true, .norm_plain = true},
    {.arch = "nemotron", .centred = true, .norm_bias = true, .rope_dim = 6, .ff = FF_RELU2},
    {.arch = "arcee", .neighbours = true, .ff = FF_RELU2},
    {.arch = "orion", .centred = true, .norm_bias = true},
    {.arch = "internlm2", .neighbours = true},
    {.arch = "baichuan", .neighbours = true, .n_head_kv = 4},
    {.arch = "phimoe", .centred = true, .norm_bias = true, .n_expert = 6, .n_used = 2, .mixer = 0.01f,
     .biases = BIAS_QKV | BIAS_O | BIAS_OUTPUT},
    {.arch = "falcon", .centred = true, .norm_bias = true, .parallel = true, .ff = FF_GELU_EXACT, .joined = true,
     .tied = true},
    {.arch = "bloom", .centred = true, .norm_bias = true, .embd_norm = true, .unrotated = true, .alibi = 8,
     .n_head_kv = 4, .ff = FF_GELU, .joined = true, .tied = true, .biases = BIAS_QKV | BIAS_O | BIAS_FF},
    {.arch = "mpt", .centred = true, .unrotated = true, .alibi = 8, .n_head_kv = 4, .ff = FF_GELU_EXACT,
     .joined = true, .tied = true},
    {.arch = "apertus", .heads = HEADS_SHARE_NORM, .ff = FF_XIELU},
    {.arch = "xverse", .neighbours = true},
    {.arch = "deci", .neighbours = true},
    {.arch = "pangu-embedded", .biases = BIAS_QKV | BIAS_O},
    {.arch = "minicpm", .neighbours = true, .tied = true, .embd_scale = 6, .residual_scale = 0.5f, .logit_scale = 3,
     .logit_divided = true},
    {.arch = "starcoder", .centred = true, .norm_bias = true, .positions = true, .unrotated = true, .n_head_kv = 1,
     .joined = true, .tied = true, .ff = FF_GELU, .biases = BIAS_QKV | BIAS_O | BIAS_FF},
    {.arch = "qwen", .joined = true, .n_head_kv = 4, .biases = BIAS_QKV},
    {.arch = "lfm2", .heads = HEADS_SHARE_NORM, .tied = true, .n_layer = 4, .taps = 3, .full = 2,
     .output_norm = "token_embd_norm"},
    {.arch = "jais2", .centred = true, .norm_bias = true, .ff = FF_RELU2, .biases = BIAS_QKV | BIAS_O | BIAS_FF},
    {.arch = "refact", .n_head_kv = 1, .unrotated = true, .alibi = 8, .tied = true, .n_ff = 256},
    {.arch = "codeshell", .centred = true, .norm_bias = true, .joined = true, .ff = FF_GELU,
     .biases = BIAS_QKV | BIAS_O | BIAS_FF},
    {.arch = "gptj", .neighbours = true, .centred = true, .norm_bias = true, .rope_dim = 6, .n_head_kv = 4,
     .parallel = true, .ff = FF_GELU, .biases = BIAS_FF | BIAS_OUTPUT},
    {.arch = "jais", .centred = true, .norm_bias = true, .unrotated = true, .alibi = 8, .n_head_kv = 4,
     .joined = true, .biases = BIAS_QKV | BIAS_O | BIAS_FF, .attn_scale = 1.0f / 12},
    {.arch = "maincoder", .neighbours = true, .heads = HEADS_SHARE_NORM, .norm_after_rope = true},
    {.arch = "hunyuan_vl", .heads = HEADS_SHARE_NORM, .norm_after_rope = true, .tied = true},
    {.arch = "gemma-embedding", .norms = BOTH_NORMS, .heads = HEADS_SHARE_NORM, .ff = FF_GELU_GATE,
     .embd_scale = 6.9282032f, .window = 7, .wide = 6, .n_layer = 7, .base = 500, .bidirectional = true, .tied = true},
    {.arch = "modern-bert", .centred = true, .embd_norm = true, .joined = true, .n_head_kv = 4, .ff = FF_GELU_FUSED,
     .window = 5, .wide = 3, .wide_first = true, .n_layer = 7, .base = 500, .bidirectional = true,
     .no_first_attn_norm = true, .tied = true},
    {.arch = "modernbert-decoder", .centred = true, .embd_norm = true, .n_head_kv = 4, .ff = FF_GELU_FUSED,
     .window = 5, .wide = 3, .wide_first = true, .say_windows = true, .n_layer = 5, .base = 500, .biases = BIAS_OUTPUT,
     .no_first_attn_norm = true, .dense_head = true, .tied = true},
    {.arch = "eurobert", .bidirectional = true, .tied = true},
    {.arch = "llama-embed", .neighbours = true, .bidirectional = true, .tied = true},
    {.arch = "openelm", .heads = HEADS_SHARE_NORM, .joined = true, .tied = true},
    {.arch = "neo-bert", .neighbours = true, .joined = true, .n_head_kv = 4, .ff = FF_SILU_FUSED, .bidirectional = true,
     .output_norm = "enc.output_norm", .tied = true},
    {.arch = "dbrx", .centred = true, .joined = true, .ffn_norm = "attn_output_norm", .qkv_clamp = 0.8f,
     .n_expert = 6, .n_used = 3},
    {.arch = "bitnet", .sub_norms = true, .ff = FF_RELU2_GATE, .tied = true},
    {.arch = "plamo", .parallel = true},
    {.arch = "plamo2", .norms = BOTH_NORMS, .heads = HEADS_EACH, .heads_eps = 1e-6f, .joined = true,
     .ff = FF_SILU_FUSED, .head_dim = 16, .n_layer = 4, .n_state = 3, .step = 2, .key_dim = 32, .state_rank = 64,
     .tied = true},
    {.arch = "plamo3", .norms = BOTH_NORMS, .heads = HEADS_SHARE_NORM, .joined = true, .ff = FF_SILU_FUSED, .window = 7,
     .wide = 8, .n_layer = 9, .base = 500, .tied = true},
    {.arch = "chameleon", .neighbours = true, .heads = HEADS_EACH, .heads_bias = true, .heads_centred = true},
    {.arch = "cwm", .window = 7, .wide = 4, .wide_first = true, .say_windows = true, .n_layer = 5, .stretched = 8},
    {.arch = "ministral", .window = 7, .wide = 3, .say_windows = true, .n_layer = 4},
    {.arch = "vaultgemma", .ff = FF_GELU_GATE, .embd_scale = 6.9282032f, .window = 7, .wide = 2, .n_layer = 3,
     .say_windows = true, .attn_cap = 2, .final_cap = 1.5f, .tied = true},
    {.arch = "recurrent_gemma", .ff = FF_GELU_GATE, .embd_scale = 6.9375f, .lru_width = 256, .n_layer = 4,
     .n_head_kv = 1, .rope_dim = 6, .window = 7, .wide = 9, .biases = BIAS_O | BIAS_FF, .final_cap = 1.5f,
     .tied = true},
    {.arch = "minimax", .lightning = true, .stream_scales = {{2, 1.5f}, {3, 0.5f}, {1.25f, 1}}, .head_dim = 16,
     .rope_dim = 8, .n_layer = 4, .n_expert = 6, .n_used = 2},
    {.arch = "minimax-01", .lightning = true, .stream_scales = {{1.5f, 1}, {1.5f, 1}, {1.5f, 1}}, .head_dim = 16,
     .rope_dim = 8, .n_layer = 4, .n_expert = 6, .n_used = 2},
    {.arch = "xlstm", .mlstm = {.n_head = 2, .key_dim = 16, .cap = 4, .eps = 0.125f}, .epsilon = 0.05f,
     .head_dim = 32, .rope_dim = 2, .n_layer = 3, .final_cap = 1.5f},
    {.arch = "zamba2", .zamba = {"mhhmhh", 6, 2, 2, 8, true}, .n_layer = 6, .n_head_kv = 4, .head_dim = 24,
     .key_dim = 16, .ff = FF_GELU_FUSED, .tied = true},
    {.arch = "llama", .family = "helium", .neighbours = true},
    {.arch = "llama", .family = "kormo", .neighbours = true},
    {.arch = "llama", .family = "lille-130m", .neighbours = true, .tied = true},
    {.arch = "llama", .family = "telechat", .neighbours = true, .tied = true, .biases = BIAS_O | BIAS_DOWN},
    {.arch = "granite", .neighbours = true, .embd_scale = 3, .residual_scale = 1, .logit_scale = 4,
     .logit_divided = true},
    {.arch = "yuan", .n_head_kv = 4, .tied = true, .filtered = true},
    {.arch = "nanochat", .norm_plain = true, .embd_norm = true, .heads = HEADS_SHARE_NORM, .heads_unit = true,
     .norm_after_rope = true, .backwards = true, .ff = FF_RELU2, .final_cap = 1.5f},
    {.arch = "muse-glimmer", .neighbours = true, .embd_norm = true, .embd_plain = true, .norms = BOTH_NORMS,
     .post_norm_eps = 1e-8f, .heads = HEADS_SHARE_NORM, .query_scale = 3.87f, .gated = true, .window = 7, .wide = 4,
     .n_layer = 8, .wide_unrotated = true, .logit_scale = 0.5f, .final_cap = 1.5f},
    {.arch = "hyperclovax", .norms = BOTH_NORMS, .attn_scale = 0.2f, .embd_scale = 3, .residual_scale = 0.5f,
     .logit_scale = 0.25f},
    {.arch = "diffllama", .differential = true},
    {.arch = "motif", .differential = true, .alternate = true, .ff = FF_POLY},
    {.arch = "spark2_5", .joined = true, .tied = true, .ff = FF_GELU_EXACT_GATE, .gated = true, .per_head_gates = true,
     .window = 7, .wide = 4, .say_windows = true, .base = 500, .wide_rope = 4, .n_layer = 5},
    {.arch = "solar", .neighbours = true, .skips = "13c02848", .skip_share = 0.75f, .n_layer = 8},
    {.arch = "jetmoe", .head_mixture = true, .n_expert = 6, .n_used = 2, .tied = true},
    {.arch = "openai-gpt", .centred = true, .norm_bias = true, .positions = true, .unrotated = true, .n_head_kv = 4,
     .joined = true, .tied = true, .norms = POST_NORM, .swin = true, .sums = true, .no_output_norm = true,
     .n_ff = 192, .ff = FF_GELU, .biases = BIAS_QKV | BIAS_O | BIAS_FF},
    {.arch = "ctrl", .centred = true, .norm_bias = true, .epsilon = 1e-6f, .sinusoids = true,
     .unrotated = true, .n_head_kv = 4, .tied = true, .ff = FF_RELU,
     .biases = BIAS_QKV | BIAS_O | BIAS_FF | BIAS_OUTPUT, .embd_scale = 6.9282032f},
    {.arch = "granite_swa", .neighbours = true, .tied = true, .attn_scale = 0.2f, .embd_scale = 3,
     .residual_scale = 0.5f, .logit_scale = 4, .logit_divided = true, .sinks = true, .window = 7, .wide = 4,
     .wide_first = true, .say_windows = true, .n_layer = 5, .rotated = "01101"},
    {.arch = "cohere_compass_text", .centred = true, .parallel = true, .tied = true, .logit_scale = 0.25f, .window = 7,
     .wide = 4, .wide_unrotated = true, .say_windows = true, .n_layer = 5},
    {.arch = "aria_text", .n_expert = 6, .n_used = 3, .n_ff_shared = 128},
    {.arch = "zamba", .zamba = {.layers = "mmhmhm", .n_head = 6, .n_block = 1, .rank = 8, .n_scan = 2}, .n_layer = 6,
     .n_head_kv = 4, .head_dim = 24, .key_dim = 16, .ff = FF_GELU_GATE, .tied = true},
    {.arch = "doge", .heads = HEADS_SHARE_NORM, .key_scores = true},
    {.arch = "nanbeige", .neighbours = true, .loops = 2},
    {.arch = "iquestloopcoder", .loops = 2, .loops_plain = true, .loops_mixed = true, .window = 7, .wide = 1},
    {.arch = "k2-horizon", .norm_groups = 3},
    {.arch = "ouro", .neighbours = true, .norms = BOTH_NORMS, .loops = 3},
    {.arch = "flex_olmo", .norms = POST_NORM, .heads = HEADS_WHOLE, .n_expert = 6, .n_used = 3, .shares = true},
    {.arch = "hunyuan-dense", .heads = HEADS_SHARE_NORM, .norm_after_rope = true},
    {.arch = "opt", .centred = true, .norm_bias = true, .positions = true, .unrotated = true, .n_head_kv = 4,
     .tied = true, .ff = FF_RELU, .biases = BIAS_QKV | BIAS_O | BIAS_FF},
    {.arch = "gpt_neo", .centred = true, .norm_bias = true, .positions = true, .unrotated = true, .n_head_kv = 4,
     .tied = true, .ff = FF_GELU, .biases = BIAS_O | BIAS_FF, .attn_scale = 1, .n_layer = 4, .window = 7, .wide = 2,
     .wide_first = true},
    {.arch = "xglm", .centred = true, .norm_bias = true, .sinusoids = true, .fairseq = true, .unrotated = true,
     .n_head_kv = 4, .tied = true, .ff = FF_GELU_EXACT, .biases = BIAS_QKV | BIAS_O | BIAS_FF,
     .embd_scale = 6.9282032f},
    {.arch = "biogpt", .centred = true, .norm_bias = true, .epsilon = 1e-5f, .positions = true, .unrotated = true,
     .n_head_kv = 4, .tied = true, .ff = FF_GELU_EXACT, .biases = BIAS_QKV | BIAS_O | BIAS_FF,
     .embd_scale = 6.9282032f},
    {.arch = "zaya", .cca = true, .n_router = 16, .n_expert = 6, .n_used = 1, .tied = true, .rope_dim = 6,
     .n_layer = 3},
    {.arch = "step3_text", .n_head_kv = 1, .q_rank = 20, .n_expert = 6, .n_used = 3, .n_ff_shared = 128,
     .shares = true},
    {.arch = "phi3small", .centred = true, .norm_bias = true, .joined = true, .tied = true, .ff = FF_CLAMPED,
     .gate_bound = 1.5f, .biases = BIAS_QKV | BIAS_O | BIAS_FF, .near_blocks = 1, .vert_stride = 2, .dense_step = 2,
     .attn_scale = 1.0f / 12, .embd_scale = 3, .logit_scale = 0.25f},
    {.arch = "baichuan_m1", .joined = true, .head_taps = true, .window = 7, .wide = 2, .say_windows = true,
     .n_layer = 3},
    {.arch = "paddleocr", .tied = true},
    {.arch = "cogvlm", .n_head_kv = 4, .joined = true},
    {.arch = "codegen", .neighbours = true, .centred = true, .norm_bias = true, .rope_dim = 6, .n_head_kv = 4,
     .parallel = true, .ff = FF_GELU, .biases = BIAS_FF | BIAS_OUTPUT},
    {.arch = "persimmon", .centred = true, .norm_bias = true, .rope_dim = 6, .n_head_kv = 4, .joined = true,
     .heads = HEADS_SHARE_NORM, .heads_bias = true, .ff = FF_RELU2, .biases = BIAS_QKV | BIAS_O | BIAS_FF},
};

struct decoder_shape decoder_shape(const char *arch)
{
    size_t i = 0;
    while (strcmp(families[i].family ? families[i].family : families[i].arch, arch) != 0)
        assert_true(++i < sizeof families / sizeof *families);
    struct decoder_shape s = families[i];
    s.n_vocab = 80;
    s.n_embd = 48;
    s.n_layer = s.n_layer ? s.n_layer : 2;
    s.n_head = 4;
    s.n_head_kv = s.n_head_kv ? s.n_head_kv : 2;
    s.head_dim = s.head_dim ? s.head_dim : 12;
    s.rope_dim = s.rope_dim ? s.rope_dim : s.head_dim;
    s.n_ff = s.n_ff ? s.n_ff : 64;
    s.n_ctx = 128;
    s.ffn_norm = s.ffn_norm ? s.ffn_norm : "ffn_norm";
    s.output_norm = s.output_norm ? s.output_norm : "output_norm";
    s.seed = 1;
    return s;
}

/* --- weights ------------------------------------------------------------------------------------------------- */

static float next(struct decoder *d)
{
    d->random = d->random * 1664525u + 1013904223u;
    return (float)(d->random >> 8) / 8388608.0f - 1.0f;
}

/* Adds a tensor of uniform random values around a middle. */
static void add(struct decoder *d, const char *name, int64_t rows, int64_t cols, float middle, float spread)
{
    struct matrix *m = &d->t[d->n++];
    const int64_t n = (rows ? rows : 1) * cols;
    assert_true(d->n <= DECODER_MAX_TENSORS);
    *m = (struct matrix){.rows = rows, .cols = cols, .values = pp_malloc((size_t)n * sizeof(float))};
    snprintf(m->name, sizeof m->name, "%s", name);
    assert_non_null(m->values);
    for (int64_t i = 0; i < n; i++)
        m->values[i] = middle + spread * next(d);
}

static void add_matrix(struct decoder *d, int l, const char *kind, int64_t rows, int64_t cols, bool bias)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s.weight", l, kind);
    /* Large, so that attention is far from uniform; smaller for Zamba, in whose chain of products rounding errors
     * grow. */
    add(d, name, rows, cols, 0, (d->s.zamba.layers ? 0.8f : 2.0f) * sqrtf(3.0f / (float)cols));
    snprintf(name, sizeof name, "blk.%d.%s.bias", l, kind);
    if (bias)
        add(d, name, 0, rows, 0, 0.5f);
}

static struct matrix *last_of(struct decoder *d)
{
    return &d->t[d->n - 1];
}

/* Scales each row to length 1. */
static void make_unit(struct matrix *m)
{
    for (int64_t r = 0; r < m->rows; r++) {
        double square = 0;
        for (int64_t i = 0; i < m->cols; i++)
            square += (double)m->values[r * m->cols + i] * (double)m->values[r * m->cols + i];
        for (int64_t i = 0; i < m->cols; i++)
            m->values[r * m->cols + i] /= (float)sqrt(square);
    }
}

/* Sets all values of the last tensor to `value`, unless that is 0. */
static void fill(struct decoder *d, float value)
{
    for (int64_t i = 0; value != 0.0f && i < last_of(d)->cols; i++)
        last_of(d)->values[i] = value;
}

/* Makes the last matrix so small that the epsilon of the post-norm after it matters. */
static void shrink(struct decoder *d)
{
    const int64_t n = last_of(d)->rows * last_of(d)->cols;
    for (int64_t i = 0; d->s.post_norm_eps != 0.0f && i < n; i++)
        last_of(d)->values[i] *= 2 * sqrtf(d->s.post_norm_eps);
}

/* Adds a stack of the experts' matrices: [n_expert, rows, cols]. */
static void add_experts(struct decoder *d, int l, const char *kind, int64_t rows, int64_t cols)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s.weight", l, kind);
    /* Smaller where one mixture reads another's output, so that rounding is not amplified. */
    add(d, name, rows * d->s.n_expert, cols, 0, (d->s.head_mixture ? 1.0f : 2.0f) * sqrtf(3.0f / (float)cols));
    d->t[d->n - 1].rows = rows;
    d->t[d->n - 1].stack = d->s.n_expert;
}

/* Adds a norm of `cols` values; rows: one norm for each head. */
static void add_norm(struct decoder *d, const char *name, int64_t rows, int64_t cols, bool bias)
{
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    add(d, full, rows, cols, 1, 0.5f);
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias)
        add(d, full, rows, cols, 0, 0.3f);
}

static void add_block_norm(struct decoder *d, int l, const char *kind)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    if (!d->s.norm_plain)
        add_norm(d, name, 0, d->s.n_embd, d->s.norm_bias);
}

static void add_sub_norm(struct decoder *d, int l, const char *kind, int64_t n)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    add_norm(d, name, 0, n, false);
}

static void add_head_norm(struct decoder *d, int l, const char *kind, int n_heads)
{
    const bool whole = d->s.heads == HEADS_WHOLE;
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    add_norm(d, name, d->s.heads == HEADS_EACH ? n_heads : 0, whole ? n_heads * d->s.head_dim : d->s.head_dim,
             d->s.heads_bias);
}

static void add_number(struct decoder *d, int l, const char *kind, int64_t n, float middle, float spread)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    add(d, name, 0, n, middle, spread);
}

/* Adds ZAYA's residual scaling: a vector to add and one to multiply by. */
static void add_scale(struct decoder *d, int l, const char *name)
{
    char full[48];
    if (l < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", l, name);
    add_norm(d, full, 0, d->s.n_embd, true);
}

static void add_convolved_heads(struct decoder *d, int l)
{
    const struct decoder_shape *s = &d->s;
    const int n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    add_matrix(d, l, "attn_q", n_q, s->n_embd, false);
    add_matrix(d, l, "attn_k", n_kv, s->n_embd, false);
    add_matrix(d, l, "attn_v", n_kv / 2, s->n_embd, false);
    add_matrix(d, l, "attn_v_last", n_kv / 2, s->n_embd, false);
    add_matrix(d, l, "attn_qk_conv", n_q + n_kv, 2, true);
    add_matrix(d, l, "attn_qk_mix_last", n_q + n_kv, s->head_dim, false);
    add_matrix(d, l, "attn_qk_mix", n_q + n_kv, s->head_dim, true);
    add_number(d, l, "attn_k_scale.weight", s->n_head_kv, 1, 0.5f);
    add_matrix(d, l, "attn_output", s->n_embd, n_q, false);
    add_scale(d, l, "attn_residual");
    add_scale(d, l, "attn_result");
}

/* ZAYA's router. Its last logit is for the expert without output. */
static void add_router(struct decoder *d, int l)
{
    const int n = d->s.n_router;
    add_matrix(d, l, "ffn_router_in", n, d->s.n_embd, true);
    if (l)
        add_number(d, l, "ffn_router_carry.weight", n, 0.5f, 0.5f);
    add_number(d, l, "ffn_router_norm.weight", n, 2, 0.5f);
    add_matrix(d, l, "ffn_router_1", n, n, true);
    add_matrix(d, l, "ffn_router_2", n, n, true);
    add_matrix(d, l, "ffn_gate_inp", d->s.n_expert + 1, n, false);
    add_number(d, l, "exp_probs_b.bias", d->s.n_expert + 1, 0, 0.1f);
    add_scale(d, l, "ffn_residual");
    add_scale(d, l, "ffn_result");
}

static void add_attention(struct decoder *d, int l)
{
    const struct decoder_shape *s = &d->s;
    const int n = s->n_embd, n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    if (!s->n_head)
        return;
    if (s->norms != POST_NORM && !(s->no_first_attn_norm && l == 0))
        add_block_norm(d, l, "attn_norm");
    if (!s->n_head_kv) { /* a projection in its place */
        add_matrix(d, l, "attn_output", n, n, false);
        return;
    }
    if (s->two_norms)
        add_block_norm(d, l, "attn_norm_2");
    if (s->cca) {
        add_convolved_heads(d, l);
        return;
    }
    if (s->head_mixture) {
        add_matrix(d, l, "attn_gate_inp", s->n_expert, n, false);
        add_experts(d, l, "attn_q_exps", n_kv, n);
        add_matrix(d, l, "attn_k", n_kv, n, false);
        add_matrix(d, l, "attn_v", n_kv, n, false);
        add_experts(d, l, "attn_output_exps", n, n_kv);
        add_number(d, l, "attn_output.bias", n, 0, 0.5f);
        return;
    }
    if (s->joined) {
        add_matrix(d, l, "attn_qkv", n_q + 2 * n_kv, n, s->biases & BIAS_QKV);
    } else {
        if (s->q_rank) {
            add_matrix(d, l, "attn_q_a", s->q_rank, n, false);
            add_sub_norm(d, l, "attn_q_a_norm", s->q_rank);
            add_matrix(d, l, "attn_q_b", n_q, s->q_rank, false);
        } else {
            add_matrix(d, l, "attn_q", s->n_noise ? n_q / 2 + s->n_noise * s->head_dim : n_q, n,
                       s->biases & BIAS_QKV);
        }
        for (int64_t i = 0; s->attn_scale == 1.0f && i < n_q * n; i++) /* unscaled scores would be too large */
            last_of(d)->values[i] /= sqrtf((float)s->head_dim);
        add_matrix(d, l, "attn_k", n_kv, n, s->biases & BIAS_QKV);
        add_matrix(d, l, "attn_v", n_kv, n, s->biases & BIAS_QKV);
    }
    if (s->head_taps) {
        add_matrix(d, l, "attn_k_conv", s->n_head_kv, 2, false);
        add_matrix(d, l, "attn_v_conv", s->n_head_kv, 2, false);
    }
    if (s->filtered) {
        add_matrix(d, l, "filter_1_last", n / 2, n, false);
        add_matrix(d, l, "filter_1", n / 2, n, true);
        add_matrix(d, l, "filter_2_last", n, n / 2, false);
        add_matrix(d, l, "filter_2", n, n / 2, true);
        add_block_norm(d, l, "filter_norm");
    }
    if (s->heads != HEADS_PLAIN && !s->heads_unit) {
        add_head_norm(d, l, "attn_q_norm", s->n_head);
        fill(d, s->query_scale);
        add_head_norm(d, l, "attn_k_norm", s->n_head_kv);
        fill(d, s->query_scale != 0.0f ? 1 : 0);
    }
    if (s->gated)
        add_matrix(d, l, "attn_gate", s->per_head_gates ? s->n_head : n_q, n,
                   s->per_head_gates && s->biases & BIAS_QKV);
    for (int i = 0; i < 4 && s->differential; i++) {
        static const char *const numbers[] = {"attn_lambda_q1", "attn_lambda_k1", "attn_lambda_q2", "attn_lambda_k2"};
        add_number(d, l, numbers[i], s->head_dim, 0, 0.5f);
    }
    if (s->loops_mixed)
        add_matrix(d, l, "loop_gate", s->n_head, s->head_dim, true);
    if (s->alternate)
        add_sub_norm(d, l, "attn_sub_norm", 2 * s->head_dim);
    if (s->key_scores) {
        add_matrix(d, l, "attn_key_score", s->n_head_kv, n_kv, s->biases & BIAS_QKV);
        add_number(d, l, "attn_key_score_a", s->n_head_kv, 0, 0.5f);
        add_number(d, l, "attn_residual", n, 1, 0.5f);
        add_number(d, l, "ffn_residual", n, 1, 0.5f);
    }
    if (s->sinks)
        add_number(d, l, "attn_sinks.weight", s->n_head, 0, 2);
    add_matrix(d, l, "attn_output", n, n_q, s->biases & BIAS_O);
    shrink(d);
    if (s->sub_norms)
        add_sub_norm(d, l, "attn_sub_norm", n_q);
    if (s->norms != PRE_NORM)
        add_block_norm(d, l, s->swin ? "attn_norm" : "post_attention_norm");
}

bool decoder_convolves(const struct decoder *d, int l)
{
    return d->s.taps && (l + 1) % d->s.full != 0;
}

static void add_convolution(struct decoder *d, int l)
{
    const bool bias = d->s.biases & BIAS_CONVOLUTION;
    add_block_norm(d, l, "attn_norm");
    add_matrix(d, l, "shortconv.in_proj", 3 * d->s.n_embd, d->s.n_embd, bias);
    add_matrix(d, l, "shortconv.conv", d->s.n_embd, d->s.taps, bias);
    add_matrix(d, l, "shortconv.out_proj", d->s.n_embd, d->s.n_embd, bias);
}

bool decoder_has_states(const struct decoder *d, int l)
{
    return d->s.n_state && l % d->s.step != d->s.step / 2;
}

bool decoder_has_lru(const struct decoder *d, int l)
{
    return d->s.lru_width && l % 3 != 2;
}

bool decoder_has_lightning(const struct decoder *d, int l)
{
    return d->s.lightning && l % 2 == 1;
}

bool decoder_has_mlstm(const struct decoder *d)
{
    return d->s.mlstm.n_head != 0;
}

/* Raises the last vector's values from index `first` on: with these biases forget gates forget little. */
static void lift(struct decoder *d, int first)
{
    for (int64_t i = first; i < last_of(d)->cols; i++)
        last_of(d)->values[i] += 3;
}

/* xLSTM's tensors. */
static void add_mlstm(struct decoder *d, int l)
{
    const struct decoder_shape *s = &d->s;
    const int heads = s->mlstm.n_head, keys = heads * s->mlstm.key_dim, values = heads * s->head_dim, n = s->n_embd;
    const bool bias = s->biases & BIAS_QKV;
    add_block_norm(d, l, "attn_norm");
    if (s->mlstm.fused) {
        add_matrix(d, l, "mlstm_in", 2 * (keys + values), n, bias);
        add_matrix(d, l, "mlstm_gates", 2 * heads, n, true);
        lift(d, heads);
    } else {
        add_matrix(d, l, "attn_q", keys, n, bias);
        add_matrix(d, l, "attn_k", keys, n, bias);
        add_matrix(d, l, "attn_v", values, n, bias);
        add_matrix(d, l, "attn_gate", values, n, bias);
        add_matrix(d, l, "mlstm_in_gate", heads, n, true);
        add_matrix(d, l, "mlstm_forget_gate", heads, n, true);
        lift(d, 0);
    }
    char name[48];
    snprintf(name, sizeof name, "blk.%d.mlstm_norm", l);
    add_norm(d, name, 0, values, bias);
    add_matrix(d, l, "attn_output", n, values, bias);
}

const char *decoder_lightning_name(const struct decoder *d, int which)
{
    static const char *const names[2][4] = {{"attn_qkv", "attn_gate", "attn_norm_2", "attn_output"},
                                            {"ssm_in", "ssm_gate", "ssm_norm", "ssm_out"}};
    return names[strcmp(d->s.arch, "minimax") == 0][which];
}

/* Tensors of MiniMax's lightning attention. */
static void add_lightning(struct decoder *d, int l)
{
    const int n = d->s.n_head * d->s.head_dim;
    add_block_norm(d, l, "attn_norm");
    add_matrix(d, l, decoder_lightning_name(d, 0), 3 * n, d->s.n_embd, false);
    add_matrix(d, l, decoder_lightning_name(d, 1), n, d->s.n_embd, false);
    add_sub_norm(d, l, decoder_lightning_name(d, 2), n);
    add_matrix(d, l, decoder_lightning_name(d, 3), d->s.n_embd, n, false);
}

/* PLaMo 2's states. */
static void add_states(struct decoder *d, int l)
{
    const struct decoder_shape *s = &d->s;
    const int width = s->n_state * s->head_dim;
    add_block_norm(d, l, "attn_norm");
    add_matrix(d, l, "ssm_in", 2 * width, s->n_embd, false);
    add_matrix(d, l, "ssm_conv1d", width, DECODER_STATE_TAPS, false);
    add_matrix(d, l, "ssm_x", s->state_rank + 2 * s->key_dim, width, false);
    add_sub_norm(d, l, "ssm_b_norm", s->key_dim);
    add_sub_norm(d, l, "ssm_c_norm", s->key_dim);
    add_sub_norm(d, l, "ssm_dt_norm", s->state_rank);
    add_matrix(d, l, "ssm_dt", s->n_state, s->state_rank, true);
    add_number(d, l, "ssm_a", s->n_state, -1, 0.9f);
    add_number(d, l, "ssm_d", s->n_state, 1, 0.5f);
    add_matrix(d, l, "ssm_out", s->n_embd, width, false);
    add_block_norm(d, l, "post_attention_norm");
}

/* RecurrentGemma's recurrence. */
static void add_lru(struct decoder *d, int l)
{
    const int n = d->s.lru_width, size = n / d->s.n_head;
    add_block_norm(d, l, "attn_norm");
    add_matrix(d, l, "lru_x", n, d->s.n_embd, true);
    add_matrix(d, l, "lru_y", n, d->s.n_embd, true);
    add_matrix(d, l, "lru_conv1d", n, DECODER_STATE_TAPS, true);
    add_number(d, l, "lru_a", n, -3, 4);
    for (int i = 0; i < 2; i++) {
        const char *const gates[] = {"lru_in_gate", "lru_a_gate"};
        char name[48];
        add_matrix(d, l, gates[i], n, size, false);
        d->t[d->n - 1].rows = size;
        d->t[d->n - 1].stack = d->s.n_head;
        snprintf(name, sizeof name, "blk.%d.%s.bias", l, gates[i]);
        add(d, name, d->s.n_head, size, 0, 1);
    }
    add_matrix(d, l, "lru_out", d->s.n_embd, n, true);
}

int decoder_zamba_block(const struct decoder_shape *s, int l, int *use)
{
    int holders[16], n = 0;
    for (int i = 0; i < l; i++)
        if (s->zamba.layers[i] == 'h')
            holders[n++] = i;
    *use = n;
    return n < s->zamba.n_block ? l : holders[n % s->zamba.n_block];
}

static void add_adapters(struct decoder *d, int l, const char *kind, int use, int64_t n_out, int64_t n_in)
{
    char name[24];
    snprintf(name, sizeof name, "%s_a.%d", kind, use);
    add_matrix(d, l, name, d->s.zamba.rank, n_in, false);
    snprintf(name, sizeof name, "%s_b.%d", kind, use);
    add_matrix(d, l, name, n_out, d->s.zamba.rank, false);
}

/* Adds Zamba's shared block, if this layer is the first to use it, and this use's low-rank additions. */
static void add_block(struct decoder *d, int l)
{
    const struct decoder_shape *s = &d->s;
    const int n = s->n_embd, n_q = s->n_head * s->head_dim, n_kv = s->n_head_kv * s->head_dim;
    int use;
    const int at = decoder_zamba_block(s, l, &use);
    if (at == l) {
        add_sub_norm(d, l, "shared_norm", 2 * n);
        add_matrix(d, l, "shared_q", n_q, 2 * n, false);
        add_matrix(d, l, "shared_k", n_kv, 2 * n, false);
        add_matrix(d, l, "shared_v", n_kv, 2 * n, false);
        add_matrix(d, l, "shared_output", n, n_q, false);
        add_sub_norm(d, l, "shared_ffn_norm", n);
        if (s->zamba.n_scan)
            add_matrix(d, l, "shared_gate", s->n_ff, n, false);
        add_matrix(d, l, "shared_up", s->zamba.n_scan ? s->n_ff : 2 * s->n_ff, n, false);
        add_matrix(d, l, "shared_down", n, s->n_ff, false);
    }
    if (s->zamba.adapted) {
        add_adapters(d, at, "shared_q", use, n_q, 2 * n);
        add_adapters(d, at, "shared_k", use, n_kv, 2 * n);
        add_adapters(d, at, "shared_v", use, n_kv, 2 * n);
    }
    if (!s->zamba.n_scan)
        add_adapters(d, at, "shared_up", use, 2 * s->n_ff, n);
    add_matrix(d, l, "shared_out", n, n, false);
}

static void add_columns(struct decoder *d, int l, const char *kind, int64_t n, float middle, float spread)
{
    add_number(d, l, kind, n, middle, spread);
    d->t[d->n - 1].rows = n;
    d->t[d->n - 1].cols = 1;
}

/* Adds a stack of n matrices or vectors of random values around a middle. */
static void add_stack(struct decoder *d, int l, const char *kind, int64_t n, int64_t rows, int64_t cols, float middle,
                      float spread)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    add(d, name, n * rows, cols, middle, spread);
    if (rows > 1) {
        last_of(d)->rows = rows;
        last_of(d)->stack = n;
    }
}

/* The first Zamba's Mamba: several scans in parallel. */
static void add_scans(struct decoder *d, int l)
{
    const struct decoder_shape *s = &d->s;
    const int n = s->zamba.n_scan, width = 16 * s->zamba.n_head, one = width / n, rank = s->zamba.rank;
    add_matrix(d, l, "ssm_in", 2 * width, s->n_embd, false);
    add_matrix(d, l, "ssm_conv1d", width, DECODER_STATE_TAPS, true);
    add_stack(d, l, "ssm_x.weight", n, rank + 2 * s->key_dim, one, 0, 0.2f);
    add_stack(d, l, "ssm_dt.weight", n, one, rank, 0, 0.5f);
    add_stack(d, l, "ssm_dt.bias", n, 1, one, -1, 1);
    add_stack(d, l, "ssm_a", n, one, s->key_dim, -1, 0.9f);
    add_stack(d, l, "ssm_d", n, 1, one, 1, 0.5f);
    add_matrix(d, l, "ssm_out", s->n_embd, width, false);
}

static void add_zamba(struct decoder *d, int l)
{
    const struct decoder_shape *s = &d->s;
    const int heads = s->zamba.n_head, width = 16 * heads, keys = s->zamba.n_group * s->key_dim;
    if (s->zamba.layers[l] == 'h')
        add_block(d, l);
    add_block_norm(d, l, "attn_norm");
    if (s->zamba.n_scan) {
        add_scans(d, l);
        return;
    }
    add_matrix(d, l, "ssm_in", 2 * width + 2 * keys + heads, s->n_embd, false);
    add_matrix(d, l, "ssm_conv1d", width + 2 * keys, DECODER_STATE_TAPS, true);
    add_columns(d, l, "ssm_a", heads, -1, 0.9f);
    add_columns(d, l, "ssm_d", heads, 1, 0.5f);
    add_number(d, l, "ssm_dt.bias", heads, 0, 1);
    add_number(d, l, "ssm_norm.weight", width, 1, 0.5f);
    d->t[d->n - 1].rows = s->zamba.n_group;
    d->t[d->n - 1].cols = width / s->zamba.n_group;
    add_matrix(d, l, "ssm_out", s->n_embd, width, false);
}

/* Adds the shared expert. */
static void add_shared(struct decoder *d, int l)
{
    if (!d->s.fused_shared)
        add_matrix(d, l, "ffn_gate_shexp", d->s.n_ff_shared, d->s.n_embd, false);
    add_matrix(d, l, "ffn_up_shexp", d->s.n_ff_shared * (d->s.fused_shared ? 2 : 1), d->s.n_embd, false);
    add_matrix(d, l, "ffn_down_shexp", d->s.n_embd, d->s.n_ff_shared, false);
}

bool decoder_has_gate(const struct decoder *d)
{
    const int ff = d->s.ff;
    return ff == FF_SILU || ff == FF_RELU2_GATE || ff == FF_GELU_GATE || ff == FF_GELU_EXACT_GATE ||
           ff == FF_CLAMPED || ff == FF_POLY;
}

static void add_feed_forward(struct decoder *d, int l)
{
    const struct decoder_shape *s = &d->s;
    const bool bias = s->biases & BIAS_FF, fused = s->ff == FF_SILU_FUSED || s->ff == FF_GELU_FUSED;
    if (!s->n_ff)
        return;
    if (s->norms != POST_NORM && !s->parallel)
        add_block_norm(d, l, s->ffn_norm);
    if (s->n_expert) {
        if (s->n_router)
            add_router(d, l);
        else
            add_matrix(d, l, "ffn_gate_inp", s->n_expert, s->n_embd, false);
        add_experts(d, l, "ffn_gate_exps", s->n_ff, s->n_embd);
        add_experts(d, l, "ffn_up_exps", s->n_ff, s->n_embd);
        add_experts(d, l, "ffn_down_exps", s->n_embd, s->n_ff);
        if (s->head_mixture)
            add_number(d, l, "ffn_output.bias", s->n_embd, 0, 0.5f);
        if (s->n_ff_shared)
            add_shared(d, l);
    } else {
        if (decoder_has_gate(d))
            add_matrix(d, l, "ffn_gate", s->n_ff, s->n_embd, bias);
        if (s->ff == FF_POLY) {
            add_number(d, l, "ffn_poly.weight", 3, 0.5f, 0.5f);
            add_number(d, l, "ffn_poly.bias", 1, 0, 0.5f);
        }
        add_matrix(d, l, s->mlstm.fused ? "ffn_gate_up" : "ffn_up", fused ? 2 * s->n_ff : s->n_ff, s->n_embd, bias);
        add_matrix(d, l, "ffn_down", s->n_embd, s->n_ff, bias || s->biases & BIAS_DOWN);
        shrink(d);
        if (s->sub_norms)
            add_sub_norm(d, l, "ffn_sub_norm", s->n_ff);
    }
    if (s->norms != PRE_NORM)
        add_block_norm(d, l, s->swin ? "ffn_norm" : "post_ffw_norm");
}

struct decoder_shape decoder_shape_of(const struct decoder_shape *s, int l)
{
    struct decoder_shape of_layer = *s;
    if (s->uneven) {
        of_layer.n_head = s->uneven[l][0];
        of_layer.n_head_kv = s->uneven[l][1];
        of_layer.n_ff = s->uneven[l][2];
    }
    if (s->uneven && s->head_taps)
        of_layer.head_dim = of_layer.rope_dim = s->n_embd / of_layer.n_head;
    return of_layer;
}

struct decoder *decoder_make(const struct decoder_shape *s)
{
    struct decoder *d = pp_calloc(1, sizeof *d);
    assert_non_null(d);
    d->s = *s;
    d->random = s->seed;
    const int width = s->n_embd_in ? s->n_embd_in : s->n_embd;
    add(d, "token_embd.weight", s->n_vocab, width, 0, 1);
    if (s->n_embd_in) {
        add(d, "embd_proj.weight", s->n_embd, width, 0, sqrtf(3.0f / (float)width));
        add(d, "output_proj.weight", width, s->n_embd, 0, sqrtf(3.0f / (float)s->n_embd));
    }
    if (s->positions)
        add(d, "position_embd.weight", s->n_ctx, s->n_embd, 0, 0.5f);
    if (s->stretched != 0.0f) {
        add(d, "rope_freqs.weight", 0, s->rope_dim / 2, 0, 0);
        for (int i = 0; i < s->rope_dim / 2; i++)
            d->t[d->n - 1].values[i] = (float)decoder_stretch(s, i);
    }
    if (s->skips) {
        add(d, "bskcn_tv.weight", 0, 2, s->skip_share, 0);
        last_of(d)->values[1] = 1 - s->skip_share;
    }
    if (s->embd_norm && !s->norm_plain && !s->embd_plain)
        add_norm(d, "token_embd_norm", 0, s->n_embd, s->norm_bias);
    if (s->cca)
        add_scale(d, -1, "embd_scale");
    for (int l = 0; l < s->n_layer && s->zamba.layers; l++)
        add_zamba(d, l);
    for (int l = 0; l < s->n_layer && !s->zamba.layers; l++) {
        d->s = decoder_shape_of(s, l);
        (decoder_convolves(d, l)    ? add_convolution
         : decoder_has_states(d, l) ? add_states
         : decoder_has_lru(d, l)    ? add_lru
         : decoder_has_lightning(d, l) ? add_lightning
         : decoder_has_mlstm(d)     ? add_mlstm
                                    : add_attention)(d, l);
        add_feed_forward(d, l);
    }
    d->s = *s;
    if (!s->norm_plain && !s->no_output_norm)
        add_norm(d, s->output_norm, 0, s->n_embd, s->norm_bias);
    if (!s->tied)
        add(d, "output.weight", s->n_vocab, width, 0, sqrtf(3.0f / (float)width));
    if (s->head_taps)
        make_unit(last_of(d));
    if (s->biases & BIAS_OUTPUT)
        add(d, "output.bias", 0, s->n_vocab, 0, 0.5f);
    if (s->dense_head) {
        add(d, "output_dense.weight", s->n_embd, s->n_embd, 0, 0.5f);
        add_norm(d, "output_dense_norm", 0, s->n_embd, s->norm_bias);
    }
    if (s->n_dense) {
        add(d, "dense_2.weight", s->n_dense, s->n_embd, 0, 0.5f);
        add(d, "dense_3.weight", s->n_embd, s->n_dense, 0, 0.5f);
    }
    return d;
}

void decoder_free(struct decoder *d)
{
    for (int i = 0; i < d->n; i++)
        pp_free(d->t[i].values);
    pp_free(d);
}

struct matrix *decoder_find(const struct decoder *d, const char *name)
{
    for (int i = 0; i < d->n; i++)
        if (strcmp(d->t[i].name, name) == 0)
            return (struct matrix *)&d->t[i];
    return NULL;
}

void decoder_spoil(struct decoder *d, const char *name, int64_t rows, int64_t cols)
{
    struct matrix *m = decoder_find(d, name);
    assert_non_null(m);
    pp_free(m->values);
    if (cols == 0) {
        *m = d->t[--d->n];
        return;
    }
    m->stack = 0;
    m->rows = rows;
    m->cols = cols;
    m->values = pp_calloc((size_t)((rows ? rows : 1) * cols), sizeof *m->values);
    assert_non_null(m->values);
}

/* --- the file ------------------------------------------------------------------------------------------------ */

static const char *key(const struct decoder *d, const char *name)
{
    static char full[96];
    snprintf(full, sizeof full, "%s.%s", d->s.arch, name);
    return full;
}

double decoder_stretch(const struct decoder_shape *s, int i)
{
    const double context = 32, factor = (double)s->stretched;
    const double turns = context / (6.283185307179586 * pow((double)DECODER_ROPE_BASE, 2.0 * i / s->rope_dim));
    const double smooth = (turns - 1) / 3;
    return s->stretched == 0.0f || turns > 4 ? 1 : turns < 1 ? factor : 1 / ((1 - smooth) / factor + smooth);
}

int decoder_skips(const struct decoder_shape *s, int l)
{
    const char c = s->skips[l];
    return c >= 'a' ? c - 'a' + 10 : c - '0';
}

float decoder_xielu(int l, int i)
{
    const float numbers[] = {-0.5f + 0.8f * (float)l, 0.4f - 0.3f * (float)l, 0.5f, -1e-6f};
    return numbers[i];
}

/* Writes the numbers that all families have, and optional ones that are not 0. */
static void write_numbers(struct pp_gguf_writer *w, const struct decoder *d)
{
    const struct decoder_shape *s = &d->s;
    const struct {
        const char *key;
        int v;
    } numbers[] = {
        {"block_count", s->n_layer}, {"context_length", s->n_ctx}, {"embedding_length", s->n_embd},
        {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim}, {"rope.dimension_count", s->wide_rope ? s->wide_rope : s->rope_dim},
    }, some[] = {
        {"rope.dimension_count_swa", s->wide_rope ? s->rope_dim : 0},
        {"expert_count", s->n_expert}, {"expert_used_count", s->n_used}, {"router_length", s->n_router},
        {"attention.q_lora_rank", s->q_rank},
        {"attention.group_norm_groups", s->norm_groups},
        {"attention.sliding_window", s->bidirectional && s->window ? 2 * (s->window - 1) : s->window},
        {"rope.scaling.original_context_length", s->context}, {"shortconv.l_cache", s->taps},
        {"shared.block_count", s->zamba.n_scan ? 0 : s->zamba.n_block},
        {"shared.adapter_rank", s->zamba.n_scan ? 0 : s->zamba.rank}, {"ssm.scan_count", s->zamba.n_scan},
        {"ssm.group_count", s->zamba.n_group}, {"attention.near_blocks", s->near_blocks},
        {"attention.far_block_step", s->vert_stride}, {"attention.dense_layer_step", s->dense_step},
        {"ssm.conv_kernel", s->n_state || s->lru_width || s->zamba.n_head ? DECODER_STATE_TAPS : 0},
        {"ssm.state_size", s->key_dim},
        {"ssm.time_step_rank", s->zamba.n_scan ? s->zamba.rank : s->n_state + s->zamba.n_head},
        {"ssm.inner_size", s->lru_width ? s->lru_width : s->n_state * s->head_dim + 16 * s->zamba.n_head},
        {"num_loops", s->loops}, {"attention.noise_head_count", s->n_noise},
    };
    const struct {
        const char *key;
        float v;
    } scales[] = {
        {"attention.max_alibi_bias", s->alibi},
        {"attn_logit_softcapping", s->attn_cap}, {"final_logit_softcapping", s->final_cap},
        {"attention.clamp_kqv", s->qkv_clamp}, {"attention.scale", s->attn_scale},
        {"embedding_scale", s->embd_scale}, {"residual_scale", s->residual_scale},
        {"logit_scale", s->logit_scale}, {"attention.temperature_scale", s->temperature},
        {"swiglu_clamp_exp", s->gate_bound}, {"rope.freq_base_swa", s->window ? s->base : 0},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        pp_gguf_add_u32(w, key(d, numbers[i].key), (uint32_t)numbers[i].v);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (some[i].v)
            pp_gguf_add_u32(w, key(d, some[i].key), (uint32_t)some[i].v);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (scales[i].v != 0.0f)
            pp_gguf_add_f32(w, key(d, scales[i].key), scales[i].v);
}

/* --- what layers have --- */

enum { MAX_LAYERS = 64 };

static void write_sizes(struct pp_gguf_writer *w, const struct decoder *d)
{
    static const char *const sizes[] = {"attention.head_count", "attention.head_count_kv", "feed_forward_length"};
    const struct decoder_shape *s = &d->s;
    const bool gaps = s->taps || s->lru_width || strcmp(s->arch, "minimax") == 0;
    uint32_t of_layers[3][MAX_LAYERS];
    for (int l = 0; l < s->n_layer; l++) {
        const struct decoder_shape of_layer = decoder_shape_of(s, l);
        of_layers[0][l] = decoder_has_states(d, l) ? 0 : (uint32_t)of_layer.n_head;
        const bool other = decoder_convolves(d, l) || decoder_has_states(d, l) || decoder_has_lru(d, l) ||
                           decoder_has_lightning(d, l);
        of_layers[1][l] = other ? 0 : (uint32_t)of_layer.n_head_kv;
        of_layers[2][l] = (uint32_t)(of_layer.n_ff * (strcmp(s->arch, "qwen") == 0 ? 2 : 1));
    }
    for (int i = 0; i < 3; i++)
        if (s->uneven || (i == 1 && gaps) || (i < 2 && s->n_state))
            pp_gguf_add_u32_array(w, key(d, sizes[i]), of_layers[i], (size_t)s->n_layer);
        else
            pp_gguf_add_u32(w, key(d, sizes[i]), of_layers[i][0]);
}

static bool is_narrow(const struct decoder *d, int l)
{
    return d->s.window && (l + !d->s.wide_first) % d->s.wide != 0;
}

static bool is_rotated(const struct decoder *d, int l)
{
    return d->s.rotated[l] == '1';
}

static bool is_shared(const struct decoder *d, int l)
{
    return d->s.zamba.layers[l] == 'h';
}

/* Writes an array of one boolean for each layer. */
static void write_which(struct pp_gguf_writer *w, const struct decoder *d, const char *name,
                        bool (*is)(const struct decoder *d, int l))
{
    bool which[MAX_LAYERS];
    for (int l = 0; l < d->s.n_layer; l++)
        which[l] = is(d, l);
    pp_gguf_add_bool_array(w, key(d, name), which, (size_t)d->s.n_layer);
}

static void write_layers(struct pp_gguf_writer *w, const struct decoder *d)
{
    const struct decoder_shape *s = &d->s;
    assert_true(s->n_layer <= MAX_LAYERS);
    write_sizes(w, d);
    if (s->say_windows || (s->window && (strcmp(s->arch, "gpt_neo") == 0 || s->n_state)))
        write_which(w, d, "attention.sliding_window_pattern", is_narrow);
    if (s->rotated)
        write_which(w, d, "attention.rope_pattern", is_rotated);
    if (s->zamba.layers)
        write_which(w, d, "shared.layers", is_shared);
    if (s->lightning && strcmp(s->arch, "minimax") != 0)
        write_which(w, d, "attention.recurrent_layers", decoder_has_lightning);
}

/* --- what few families have --- */

static void write_xielu(struct pp_gguf_writer *w, const struct decoder *d)
{
    static const char *const names[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta", "xielu.eps"};
    float one[MAX_LAYERS];
    for (int i = 0; i < 4; i++) {
        for (int l = 0; l < d->s.n_layer; l++)
            one[l] = decoder_xielu(l, i);
        pp_gguf_add_f32_array(w, names[i], one, (size_t)d->s.n_layer);
    }
}

/* Writes Solar Pro's skips in ollama's form: four arrays with a number for each layer. */
static void write_skips(struct pp_gguf_writer *w, const struct decoder *d)
{
    for (int i = 0; i < 4; i++) {
        uint32_t of_layers[MAX_LAYERS];
        char name[64];
        snprintf(name, sizeof name, "attention.block_skip_connection.%d", i);
        for (int l = 0; l < d->s.n_layer; l++)
            of_layers[l] = (uint32_t)decoder_skips(&d->s, l) >> i & 1;
        pp_gguf_add_u32_array(w, key(d, name), of_layers, (size_t)d->s.n_layer);
    }
}

static void write_opt(struct pp_gguf_writer *w, const struct decoder_shape *s)
{
    pp_gguf_add_bool(w, "opt.norms_of_sums", s->sums);
    pp_gguf_add_bool(w, "opt.output_norm", !s->no_output_norm);
    pp_gguf_add_bool(w, "opt.plain_norms", s->norm_plain);
    if (s->n_embd_in)
        pp_gguf_add_u32(w, "opt.embedding_length_in", (uint32_t)s->n_embd_in);
    if (s->ff == FF_GELU_EXACT)
        pp_gguf_add_text(w, "opt.hidden_activation", "gelu");
}

static void write_mlstm(struct pp_gguf_writer *w, const struct decoder_shape *s)
{
    pp_gguf_add_u32(w, "xlstm.mlstm.head_count", (uint32_t)s->mlstm.n_head);
    pp_gguf_add_u32(w, "xlstm.mlstm.key_length", (uint32_t)s->mlstm.key_dim);
    pp_gguf_add_u32(w, "xlstm.mlstm.value_length", (uint32_t)s->head_dim);
    pp_gguf_add_f32(w, "xlstm.mlstm.gate_softcapping", s->mlstm.cap);
    pp_gguf_add_f32(w, "xlstm.mlstm.epsilon", s->mlstm.eps);
    pp_gguf_add_bool(w, "xlstm.mlstm.fused", s->mlstm.fused);
    pp_gguf_add_bool(w, "xlstm.mlstm.biased", s->biases & BIAS_QKV);
}

static void write_family(struct pp_gguf_writer *w, const struct decoder *d)
{
    const struct decoder_shape *s = &d->s;
    const bool one_scale = s->stream_scales[0][0] == s->stream_scales[1][0] && s->stream_scales[1][1] == 1.0f;
    if (s->ff == FF_XIELU)
        write_xielu(w, d);
    if (s->skips)
        write_skips(w, d);
    if (s->ff == FF_RELU2_GATE)
        pp_gguf_add_text(w, key(d, "hidden_activation"), "relu2");
    if (s->head_taps && s->uneven)
        pp_gguf_add_u32(w, key(d, "attention.key_length_swa"), (uint32_t)decoder_shape_of(s, 0).head_dim);
    if (s->loops_plain && !s->loops_mixed)
        pp_gguf_add_bool(w, key(d, "skip_loop_final_norm"), true);
    if (s->sections)
        pp_gguf_add_u32_array(w, key(d, "rope.dimension_sections"), (const uint32_t[]){1, 1, 1, 0}, 4);
    if (s->n_state) /* as other programs expect, apart from the windows */
        pp_gguf_add_u32(w, key(d, "ssm.group_count"), 0);
    if (s->zamba.layers && !s->zamba.n_scan) {
        pp_gguf_add_bool(w, key(d, "shared.adapted_attention"), s->zamba.adapted);
        pp_gguf_add_bool(w, key(d, "rope.scaling.finetuned"), !s->unrotated);
    }
    if (s->lightning && one_scale)
        pp_gguf_add_f32(w, key(d, "residual_scale"), s->stream_scales[0][0]);
    else if (s->lightning)
        pp_gguf_add_f32_array(w, key(d, "residual_scales"), s->stream_scales[0], 6);
    if (decoder_has_mlstm(d))
        write_mlstm(w, s);
    if (strcmp(s->arch, "opt") == 0)
        write_opt(w, s);
    if (strcmp(s->arch, "persimmon") == 0)
        pp_gguf_add_bool(w, key(d, "attention.qkv_by_head"), false);
    if (strcmp(s->arch, "chameleon") == 0)
        pp_gguf_add_bool(w, key(d, "swin_norm"), s->swin);
    if (strcmp(s->arch, "stablelm") == 0 || (strcmp(s->arch, "falcon") == 0 && !s->parallel))
        pp_gguf_add_bool(w, key(d, "use_parallel_residual"), s->parallel);
}

static void write_metadata(struct pp_gguf_writer *w, const struct decoder *d)
{
    const struct decoder_shape *s = &d->s;
    const bool mean_square = !s->centred || s->mixer != 0.0f; /* so Phi's files call it */
    pp_gguf_add_text(w, "general.architecture", s->arch);
    if (s->family)
        pp_gguf_add_text(w, "pippin.family", s->family);
    write_numbers(w, d);
    write_layers(w, d);
    write_family(w, d);
    pp_gguf_add_f32(w, key(d, "rope.freq_base"), s->base != 0.0f && !s->window ? s->base : DECODER_ROPE_BASE);
    pp_gguf_add_f32(w, key(d, mean_square ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"),
                    s->epsilon != 0.0f ? s->epsilon : DECODER_EPSILON);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
}

/* The name of a tensor in the file: PLaMo's post-norms and the norms of its states' inputs have no ".weight". */
static const char *name_in_file(const struct decoder *d, const char *name, char bare[sizeof d->t[0].name])
{
    const bool is_bare = strstr(name, ".post_") || (strstr(name, ".ssm_") && strstr(name, "_norm."));
    if (strncmp(d->s.arch, "plamo", 5) != 0 || !is_bare)
        return name;
    snprintf(bare, sizeof d->t[0].name, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    return bare;
}

const char *decoder_write(const struct decoder *d)
{
    struct pp_tensor tensors[DECODER_MAX_TENSORS];
    char bare[DECODER_MAX_TENSORS][sizeof d->t[0].name];
    const char *path = fresh_path("decoder.gguf");
    struct pp_gguf_writer *w = gguf_file_begin(path);
    write_metadata(w, d);
    for (int i = 0; i < d->n; i++) {
        const struct matrix *t = &d->t[i];
        tensors[i] = float_tensor(name_in_file(d, t->name, bare[i]), t->values, t->cols, t->rows, t->stack);
    }
    gguf_file_end(w, tensors, (size_t)d->n);
    return path;
}
