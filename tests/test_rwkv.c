/* test_rwkv.c - RWKV 7 and 6, alone and in Qwen 2's layers: small random models, whose logits are what the formulas
 * give in double precision, written out from RWKV-LM's reference and those of QRWKV and ARWKV (a vector and a matrix at
 * a time); the same bits at all row counts, threads and builds; folders, conversations that are gone back in and saved,
 * and adapters. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/export.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/model.h"
#include "engine/quant.h"
#include "engine/source.h"
#include "engine/types.h"
#include "tests/adapter_folder.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { N = 64, HEAD = 32, HEADS = N / HEAD, FF = 96, VOCAB = 70, LAYERS = 3, MIXES = 6, MAX_TENSORS = 160 };
enum { MIXES_6 = 5, MIX_RANK = 32, DECAY_RANK = 64 }; /* RWKV 6's */
static const int ranks[4] = {32, 64, 32, 96}; /* of decays, beta, values and gates */

struct array {
    char name[48];
    int64_t rows, cols; /* rows 0: a vector */
    float *values;
};

static struct array arrays[MAX_TENSORS];
static int n_arrays;
static uint32_t random_state;

static float next(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

static void add(int l, const char *kind, int64_t rows, int64_t cols, float middle, float spread)
{
    struct array *a = &arrays[n_arrays++];
    const int64_t n = (rows ? rows : 1) * cols;
    assert_true(n_arrays <= MAX_TENSORS);
    *a = (struct array){.rows = rows, .cols = cols, .values = pp_calloc((size_t)n, sizeof(float))};
    assert_non_null(a->values);
    if (l < 0)
        snprintf(a->name, sizeof a->name, "%s", kind);
    else
        snprintf(a->name, sizeof a->name, "blk.%d.%s", l, kind);
    for (int64_t i = 0; i < n; i++)
        a->values[i] = middle + spread * next();
}

static void add_norm(int l, const char *kind)
{
    char name[40];
    snprintf(name, sizeof name, "%s.weight", kind);
    add(l, name, 0, N, 1, 0.5f);
    snprintf(name, sizeof name, "%s.bias", kind);
    add(l, name, 0, N, 0, 0.3f);
}

/* The norms of Qwen 2's layers are by the root of the mean square. */
static void add_rms(int l, const char *kind)
{
    char name[40];
    snprintf(name, sizeof name, "%s.weight", kind);
    add(l, name, 0, N, 1, 0.5f);
}

static void add_low(int l, char letter, int rank)
{
    char name[40];
    snprintf(name, sizeof name, "time_mix_%c1.weight", letter);
    add(l, name, rank, N, 0, 0.3f);
    snprintf(name, sizeof name, "time_mix_%c2.weight", letter);
    add(l, name, N, rank, 0, 0.3f);
    snprintf(name, sizeof name, "time_mix_%c0.weight", letter);
    if (letter != 'g')
        add(l, name, 0, N, 0, 1);
}

static void make(void)
{
    static const char *const square[] = {"receptance", "key", "value", "output"};
    static const char *const vectors[] = {"k_k", "k_a", "r_k"};
    char name[40];
    n_arrays = 0;
    random_state = 3;
    add(-1, "token_embd.weight", VOCAB, N, 0, 1);
    add_norm(-1, "token_embd_norm");
    for (int l = 0; l < LAYERS; l++) {
        add_norm(l, "attn_norm");
        add_norm(l, "attn_norm_2");
        add(l, "time_mix_lerp_fused.weight", MIXES, N, 0.5f, 0.5f);
        for (int i = 0; i < 4; i++)
            add_low(l, "wavg"[i], ranks[i]); /* those of the first layer's values are of no use */
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "time_mix_%s.weight", square[i]);
            add(l, name, N, N, 0, 0.3f);
        }
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "time_mix_%s.weight", vectors[i]);
            add(l, name, 0, N, i ? 0 : 1, 1);
        }
        add_norm(l, "time_mix_ln");
        add(l, "channel_mix_lerp_k.weight", 0, N, 0.5f, 0.5f);
        add(l, "channel_mix_key.weight", FF, N, 0, 0.3f);
        add(l, "channel_mix_value.weight", N, FF, 0, 0.3f);
    }
    add_norm(-1, "output_norm");
    add(-1, "output.weight", VOCAB, N, 0, 0.3f);
}

static void drop(void)
{
    while (n_arrays > 0)
        pp_free(arrays[--n_arrays].values);
}

struct number {
    const char *key;
    uint32_t v;
};

/* Numbers without a key are left out. */
static const char *write_numbers(const char *arch, const struct number *numbers, size_t n_numbers)
{
    const char *path = fresh_path("rwkv.gguf");
    struct pp_gguf_writer *w;
    struct pp_error err;
    char key[80];
    assert_ok(pp_gguf_writer_new(path, &w, &err), err);
    pp_gguf_add_text(w, "general.architecture", arch);
    for (size_t i = 0; i < n_numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].key ? numbers[i].key : "");
        if (numbers[i].key)
            pp_gguf_add_u32(w, key, numbers[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_%sepsilon", arch, strncmp(arch, "rwkv", 4) == 0 && arch[5] == 0
                                                                             ? "" : "rms_");
    pp_gguf_add_f32(w, key, 1e-5f);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
    pp_gguf_add_text(w, "tokenizer.chat_template", "rwkv-world"); /* as the first files have it */
    for (int i = 0; i < n_arrays; i++) {
        const struct array *a = &arrays[i];
        const int64_t n_dims = a->rows ? 2 : 1;
        if (strstr(a->name, "lerp_fused"))
            pp_gguf_add_tensor(w, a->name, PP_TYPE_F32, 4, (const int64_t[]){N, 1, 1, a->rows});
        else if (a->rows == MIXES_6 * N)
            pp_gguf_add_tensor(w, a->name, PP_TYPE_F32, 3, (const int64_t[]){a->cols, N, MIXES_6});
        else
            pp_gguf_add_tensor(w, a->name, PP_TYPE_F32, (int)n_dims, (const int64_t[]){a->cols, a->rows});
    }
    assert_ok(pp_gguf_writer_begin(w, &err), err);
    for (int i = 0; i < n_arrays; i++) {
        const size_t n = (size_t)((arrays[i].rows ? arrays[i].rows : 1) * arrays[i].cols);
        assert_ok(pp_gguf_write(w, arrays[i].values, n * sizeof(float), &err), err);
    }
    assert_ok(pp_gguf_writer_finish(w, &err), err);
    pp_gguf_writer_free(w);
    return path;
}

static const char *write_file_with(uint32_t head_size)
{
    const struct number numbers[] = {
        {"block_count", LAYERS}, {"context_length", 1 << 20}, {"embedding_length", N}, {"feed_forward_length", FF},
        {"attention.head_count", 0}, {"wkv.head_size", head_size}, {"attention.decay_lora_rank", 32},
        {"attention.iclr_lora_rank", 64}, {"attention.value_residual_mix_lora_rank", 32},
        {"attention.gate_lora_rank", 96}, {"vocab_size", VOCAB}};
    return write_numbers("rwkv7", numbers, sizeof numbers / sizeof *numbers);
}

static const char *write_file(void)
{
    return write_file_with(HEAD);
}

/* --- RWKV 6 ------------------------------------------------------------------------------------------------------ */

/* apart: vectors of mixing in a tensor of each, as the first files have them */
static void make_6_with(bool apart)
{
    static const char *const square[] = {"receptance", "key", "value", "gate", "output"};
    char name[40];
    n_arrays = 0;
    random_state = 4;
    add(-1, "token_embd.weight", VOCAB, N, 0, 1);
    add_norm(-1, "token_embd_norm");
    for (int l = 0; l < LAYERS; l++) {
        add_norm(l, "attn_norm");
        add_norm(l, "attn_norm_2");
        add(l, "time_mix_lerp_x.weight", 0, N, 0.5f, 0.5f);
        if (!apart)
            add(l, "time_mix_lerp_fused.weight", MIXES_6, N, 0.5f, 0.5f);
        for (int i = 0; apart && i < MIXES_6; i++) {
            snprintf(name, sizeof name, "time_mix_lerp_%c.weight", "wkvrg"[i]);
            add(l, name, 0, N, 0.5f, 0.5f);
        }
        add(l, "time_mix_w1.weight", MIXES_6 * MIX_RANK, N, 0, 0.3f);
        add(l, "time_mix_w2.weight", MIXES_6 * N, MIX_RANK, 0, 0.3f);
        add(l, "time_mix_decay_w1.weight", DECAY_RANK, N, 0, 0.3f);
        add(l, "time_mix_decay_w2.weight", N, DECAY_RANK, 0, 0.2f);
        add(l, "time_mix_decay.weight", 0, N, -2, 2);
        add(l, "time_mix_first.weight", HEADS, HEAD, 0, 1);
        for (int i = 0; i < 5; i++) {
            snprintf(name, sizeof name, "time_mix_%s.weight", square[i]);
            add(l, name, N, N, 0, 0.3f);
        }
        add_norm(l, "time_mix_ln");
        add(l, "channel_mix_lerp_k.weight", 0, N, 0.5f, 0.5f);
        add(l, "channel_mix_lerp_r.weight", 0, N, 0.5f, 0.5f);
        add(l, "channel_mix_key.weight", FF, N, 0, 0.3f);
        add(l, "channel_mix_value.weight", N, FF, 0, 0.3f);
        add(l, "channel_mix_receptance.weight", N, N, 0, 0.3f);
    }
    add_norm(-1, "output_norm");
    add(-1, "output.weight", VOCAB, N, 0, 0.3f);
}

static void make_6(void)
{
    make_6_with(false);
}

/* left_out: of its keys, the first being 0; -1: none */
static const char *write_6_with(uint32_t head_size, uint32_t halved_every, uint32_t shifts, int left_out)
{
    struct number numbers[] = {{"wkv.head_size", head_size}, {"time_mix_extra_dim", MIX_RANK},
                               {"time_decay_extra_dim", DECAY_RANK}, {"rescale_every_n_layers", halved_every},
                               {"token_shift_count", shifts}, {"block_count", LAYERS}, {"context_length", 1 << 20},
                               {"embedding_length", N}, {"feed_forward_length", FF}, {"attention.head_count", 0},
                               {"vocab_size", VOCAB}};
    if (left_out >= 0)
        numbers[left_out].key = NULL;
    return write_numbers("rwkv6", numbers, sizeof numbers / sizeof *numbers);
}

static const char *write_6(void)
{
    return write_6_with(HEAD, 2, 2, -1);
}

/* --- in Qwen 2's layers ------------------------------------------------------------------------------------------ */

/* ARWKV may lack gates, and a norm of what heads give. */
static bool gated = true, heads_normed = true;

static void add_qwen_feed_forward(int l)
{
    add_rms(l, "ffn_norm");
    add(l, "ffn_gate.weight", FF, N, 0, 0.3f);
    add(l, "ffn_up.weight", FF, N, 0, 0.3f);
    add(l, "ffn_down.weight", N, FF, 0, 0.3f);
}

static void make_arwkv(void)
{
    static const char *const square[] = {"receptance", "key", "value", "output"};
    static const char *const vectors[] = {"k_k", "k_a", "r_k"};
    char name[40];
    n_arrays = 0;
    random_state = 5;
    add(-1, "token_embd.weight", VOCAB, N, 0, 1);
    for (int l = 0; l < LAYERS; l++) {
        add_rms(l, "attn_norm");
        add(l, "time_mix_lerp_fused.weight", gated ? MIXES : MIXES - 1, N, 0.5f, 0.5f);
        for (int i = 0; i < (gated ? 4 : 3); i++)
            add_low(l, "wavg"[i], ranks[i]);
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "time_mix_%s.weight", square[i]);
            add(l, name, N, N, 0, 0.3f);
        }
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "time_mix_%s.weight", vectors[i]);
            add(l, name, 0, N, i ? 0 : 1, 1);
        }
        if (heads_normed)
            add_norm(l, "time_mix_ln");
        add_qwen_feed_forward(l);
    }
    add_rms(-1, "output_norm");
    add(-1, "output.weight", VOCAB, N, 0, 0.3f);
}

static const char *write_arwkv_with(uint32_t head_size, uint32_t shifts)
{
    const struct number numbers[] = {
        {"block_count", LAYERS}, {"context_length", 1 << 20}, {"embedding_length", N}, {"feed_forward_length", FF},
        {"attention.head_count", 0}, {"wkv.head_size", head_size}, {"attention.decay_lora_rank", 32},
        {"attention.iclr_lora_rank", 64}, {"attention.value_residual_mix_lora_rank", 32},
        {"attention.gate_lora_rank", gated ? 96 : 0}, {"token_shift_count", shifts}, {"vocab_size", VOCAB}};
    return write_numbers("arwkv7", numbers, sizeof numbers / sizeof *numbers);
}

static const char *write_arwkv(void)
{
    return write_arwkv_with(HEAD, 1);
}

enum { KEYS = HEADS / 2 }; /* heads that have keys and values for the others, too */

static void make_qrwkv(void)
{
    static const char *const biased[] = {"receptance", "key", "value"};
    char name[40];
    n_arrays = 0;
    random_state = 6;
    add(-1, "token_embd.weight", VOCAB, N, 0, 1);
    for (int l = 0; l < LAYERS; l++) {
        add_rms(l, "attn_norm");
        add(l, "time_mix_lerp_x.weight", 0, N, 0.5f, 0.5f);
        add(l, "time_mix_lerp_fused.weight", MIXES_6, N, 0.5f, 0.5f);
        add(l, "time_mix_w1.weight", MIXES_6 * MIX_RANK, N, 0, 0.3f);
        add(l, "time_mix_w2.weight", MIXES_6 * N, MIX_RANK, 0, 0.3f);
        add(l, "time_mix_decay_w1.weight", DECAY_RANK, N, 0, 0.3f);
        add(l, "time_mix_decay_w2.weight", N, DECAY_RANK, 0, 0.2f);
        add(l, "time_mix_decay.weight", 0, N, -0.5f, 3); /* some of which forget as much as they may */
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "time_mix_%s.weight", biased[i]);
            add(l, name, i ? KEYS * HEAD : N, N, 0, 0.3f);
            snprintf(name, sizeof name, "time_mix_%s.bias", biased[i]);
            add(l, name, 0, i ? KEYS * HEAD : N, 0, 0.5f);
        }
        add(l, "time_mix_gate.weight", N, N, 0, 0.3f);
        add(l, "time_mix_output.weight", N, N, 0, 0.3f);
        add_qwen_feed_forward(l);
    }
    add_rms(-1, "output_norm");
    add(-1, "output.weight", VOCAB, N, 0, 0.3f);
}

static const char *write_qrwkv_with(uint32_t head_size, uint32_t n_keys, uint32_t shifts, uint32_t halved_every)
{
    const struct number numbers[] = {{"wkv.head_size", head_size}, {"time_mix_extra_dim", MIX_RANK},
                                     {"time_decay_extra_dim", DECAY_RANK}, {"token_shift_count", shifts},
                                     {"block_count", LAYERS}, {"context_length", 1 << 20}, {"embedding_length", N},
                                     {"feed_forward_length", FF}, {"attention.head_count", 0},
                                     {"attention.head_count_kv", n_keys}, {"vocab_size", VOCAB},
                                     {halved_every ? "rescale_every_n_layers" : NULL, halved_every}};
    return write_numbers("rwkv6qwen2", numbers, sizeof numbers / sizeof *numbers);
}

static const char *write_qrwkv(void)
{
    return write_qrwkv_with(HEAD, KEYS, 1, 0);
}

/* --- the formulas ------------------------------------------------------------------------------------------------ */

static const struct array *look(int l, const char *kind) /* or NULL */
{
    char name[64];
    if (l < 0)
        snprintf(name, sizeof name, "%s", kind);
    else
        snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    for (int i = 0; i < n_arrays; i++)
        if (strcmp(arrays[i].name, name) == 0)
            return &arrays[i];
    return NULL;
}

static const struct array *find(int l, const char *kind)
{
    const struct array *a = look(l, kind);
    if (!a)
        fail_msg("there is no %s", kind);
    return a;
}

static void product(int l, const char *kind, const double *x, double *y)
{
    const struct array *w = find(l, kind);
    for (int64_t o = 0; o < w->rows; o++) {
        y[o] = 0;
        for (int64_t i = 0; i < w->cols; i++)
            y[o] += (double)w->values[o * w->cols + i] * x[i];
    }
}

/* LayerNorm of n values by the part of a norm's vectors that begins at `first`. */
static void norm(int l, const char *kind, int first, int n, double eps, double *x)
{
    char name[40];
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++)
        mean += x[i] / n;
    for (int i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / n;
    snprintf(name, sizeof name, "%s.weight", kind);
    const float *w = find(l, name)->values + first;
    snprintf(name, sizeof name, "%s.bias", kind);
    const float *b = find(l, name)->values + first;
    for (int i = 0; i < n; i++)
        x[i] = (x[i] - mean) / sqrt(square + eps) * (double)w[i] + (double)b[i];
}

static void rms(int l, const char *kind, double *x)
{
    char name[40];
    double square = 0;
    for (int i = 0; i < N; i++)
        square += x[i] * x[i] / N;
    snprintf(name, sizeof name, "%s.weight", kind);
    for (int i = 0; i < N; i++)
        x[i] *= (double)find(l, name)->values[i] / sqrt(square + 1e-5);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* out = x0 + W2 fn(W1 x), fn being tanh of w, sigmoids of g, nothing of others; x0 of all but g */
static void low(int l, char letter, const double *x, double *out)
{
    char name[40];
    double between[128];
    snprintf(name, sizeof name, "time_mix_%c1.weight", letter);
    product(l, name, x, between);
    for (int64_t i = 0; i < find(l, name)->rows; i++)
        between[i] = letter == 'w' ? tanh(between[i]) : letter == 'g' ? sigmoid(between[i]) : between[i];
    snprintf(name, sizeof name, "time_mix_%c2.weight", letter);
    product(l, name, between, out);
    snprintf(name, sizeof name, "time_mix_%c0.weight", letter);
    for (int i = 0; letter != 'g' && i < N; i++)
        out[i] += (double)find(l, name)->values[i];
}

/* One head: the state has a row for each value and a column for each key, as the reference has it. */
static void head_step(double state[HEAD][HEAD], const double *r, const double *w, const double *k, const double *v,
                      const double *kk, const double *a, double *y)
{
    for (int i = 0; i < HEAD; i++) {
        double removed = 0;
        for (int j = 0; j < HEAD; j++)
            removed -= state[i][j] * kk[j];
        y[i] = 0;
        for (int j = 0; j < HEAD; j++) {
            state[i][j] = state[i][j] * w[j] + removed * kk[j] * a[j] + v[i] * k[j];
            y[i] += state[i][j] * r[j];
        }
    }
}

struct memory { /* of a layer */
    double shift[2][N], state[HEADS][HEAD][HEAD];
};

/* eps: of the norm of heads; 0: there is none */
static void time_mix(int l, struct memory *m, const double *x, double eps, double *v_first, double *out)
{
    double mixed[MIXES][N], r[N], w[N], k[N], v[N], a[N], g[N], kk[N], y[N], towards[N];
    const float *lerp = find(l, "time_mix_lerp_fused.weight")->values;
    const bool has_gates = look(l, "time_mix_g1.weight");
    for (int way = 0; way < (has_gates ? MIXES : MIXES - 1); way++)
        for (int i = 0; i < N; i++)
            mixed[way][i] = x[i] + (m->shift[0][i] - x[i]) * (double)lerp[way * N + i];
    memcpy(m->shift[0], x, sizeof m->shift[0]);
    product(l, "time_mix_receptance.weight", mixed[0], r);
    low(l, 'w', mixed[1], w);
    product(l, "time_mix_key.weight", mixed[2], k);
    product(l, "time_mix_value.weight", mixed[3], v);
    low(l, 'a', mixed[4], a);
    for (int i = 0; i < N; i++)
        g[i] = 1;
    if (has_gates)
        low(l, 'g', mixed[5], g);
    low(l, 'v', mixed[3], towards);
    if (l == 0)
        memcpy(v_first, v, sizeof v);
    for (int i = 0; i < N; i++) {
        w[i] = exp(-exp(-0.5) * sigmoid(w[i]));
        a[i] = sigmoid(a[i]);
        v[i] += l == 0 ? 0 : (v_first[i] - v[i]) * sigmoid(towards[i]);
        kk[i] = k[i] * (double)find(l, "time_mix_k_k.weight")->values[i];
        k[i] *= 1 + (a[i] - 1) * (double)find(l, "time_mix_k_a.weight")->values[i];
    }
    for (int h = 0; h < HEADS; h++) {
        const int at = h * HEAD;
        double length = 0, own = 0;
        for (int i = at; i < at + HEAD; i++) {
            length += kk[i] * kk[i];
            own += r[i] * k[i] * (double)find(l, "time_mix_r_k.weight")->values[i];
        }
        for (int i = at; i < at + HEAD; i++)
            kk[i] /= fmax(sqrt(length), 1e-12);
        head_step(m->state[h], r + at, w + at, k + at, v + at, kk + at, a + at, y + at);
        if (eps > 0)
            norm(l, "time_mix_ln", at, HEAD, eps, y + at);
        for (int i = at; i < at + HEAD; i++)
            y[i] = (y[i] + own * v[i]) * g[i];
    }
    product(l, "time_mix_output.weight", y, out);
}

static void channel_mix(int l, struct memory *m, const double *x, double *out)
{
    double mixed[N], up[FF];
    for (int i = 0; i < N; i++)
        mixed[i] = x[i] + (m->shift[1][i] - x[i]) * (double)find(l, "channel_mix_lerp_k.weight")->values[i];
    memcpy(m->shift[1], x, sizeof m->shift[1]);
    product(l, "channel_mix_key.weight", mixed, up);
    for (int i = 0; i < FF; i++)
        up[i] = up[i] > 0 ? up[i] * up[i] : 0;
    product(l, "channel_mix_value.weight", up, out);
}

static void compute(const int32_t *ids, int n, double *logits)
{
    static struct memory memory[LAYERS];
    memset(memory, 0, sizeof memory);
    for (int t = 0; t < n; t++) {
        double x[N], in[N], delta[N], v_first[N];
        for (int i = 0; i < N; i++)
            x[i] = (double)find(-1, "token_embd.weight")->values[ids[t] * N + i];
        norm(-1, "token_embd_norm", 0, N, 1e-5, x);
        for (int l = 0; l < LAYERS; l++) {
            for (int part = 0; part < 2; part++) {
                memcpy(in, x, sizeof in);
                norm(l, part ? "attn_norm_2" : "attn_norm", 0, N, 1e-5, in);
                if (part)
                    channel_mix(l, &memory[l], in, delta);
                else
                    time_mix(l, &memory[l], in, HEAD * 1e-5, v_first, delta);
                for (int i = 0; i < N; i++)
                    x[i] += delta[i];
            }
        }
        norm(-1, "output_norm", 0, N, 1e-5, x);
        product(-1, "output.weight", x, logits + t * VOCAB);
    }
}

/* --- those of RWKV 6 --------------------------------------------------------------------------------------------- */

static double vector(int l, const char *kind, int i)
{
    return (double)find(l, kind)->values[i];
}

/* The input as each way mixes it with the one before, in the order w, k, v, r, g. */
static void mix_6(int l, const double *x, const double *before, bool apart, double mixed[MIXES_6][N])
{
    double in[N], between[MIXES_6 * MIX_RANK];
    char name[40];
    for (int i = 0; i < N; i++)
        in[i] = x[i] + (before[i] - x[i]) * vector(l, "time_mix_lerp_x.weight", i);
    product(l, "time_mix_w1.weight", in, between);
    for (int way = 0; way < MIXES_6; way++)
        for (int i = 0; i < N; i++) {
            snprintf(name, sizeof name, "time_mix_lerp_%c.weight", "wkvrg"[way]);
            double part = apart ? vector(l, name, i) : vector(l, "time_mix_lerp_fused.weight", way * N + i);
            for (int j = 0; j < MIX_RANK; j++)
                part += vector(l, "time_mix_w2.weight", (way * N + i) * MIX_RANK + j) *
                        tanh(between[way * MIX_RANK + j]);
            mixed[way][i] = x[i] + (before[i] - x[i]) * part;
        }
}

/* w: what is added to the bias of the decays. */
static void project_6(int l, double mixed[MIXES_6][N], double *w, double *k, double *v, double *r, double *g)
{
    double between[DECAY_RANK];
    product(l, "time_mix_decay_w1.weight", mixed[0], between);
    for (int i = 0; i < DECAY_RANK; i++)
        between[i] = tanh(between[i]);
    product(l, "time_mix_decay_w2.weight", between, w);
    product(l, "time_mix_key.weight", mixed[1], k);
    product(l, "time_mix_value.weight", mixed[2], v);
    product(l, "time_mix_receptance.weight", mixed[3], r);
    product(l, "time_mix_gate.weight", mixed[4], g);
}

static void time_mix_6(int l, struct memory *m, const double *x, bool apart, double *out)
{
    double mixed[MIXES_6][N], r[N], w[N], k[N], v[N], g[N], y[N];
    mix_6(l, x, m->shift[0], apart, mixed);
    memcpy(m->shift[0], x, sizeof m->shift[0]);
    project_6(l, mixed, w, k, v, r, g);
    for (int i = 0; i < N; i++)
        w[i] = exp(-exp(w[i] + vector(l, "time_mix_decay.weight", i)));
    for (int h = 0; h < HEADS; h++) {
        const int at = h * HEAD;
        for (int j = 0; j < HEAD; j++) {
            y[at + j] = 0;
            for (int i = 0; i < HEAD; i++) {
                const double kv = k[at + i] * v[at + j];
                y[at + j] += r[at + i] * (m->state[h][i][j] + vector(l, "time_mix_first.weight", at + i) * kv);
                m->state[h][i][j] = w[at + i] * m->state[h][i][j] + kv;
            }
        }
        norm(l, "time_mix_ln", at, HEAD, 64e-5, y + at);
    }
    for (int i = 0; i < N; i++)
        y[i] *= g[i] * sigmoid(g[i]);
    product(l, "time_mix_output.weight", y, out);
}

static void channel_mix_6(int l, struct memory *m, const double *x, double *out)
{
    double for_k[N], for_r[N], gate[N], up[FF];
    for (int i = 0; i < N; i++) {
        for_k[i] = x[i] + (m->shift[1][i] - x[i]) * vector(l, "channel_mix_lerp_k.weight", i);
        for_r[i] = x[i] + (m->shift[1][i] - x[i]) * vector(l, "channel_mix_lerp_r.weight", i);
    }
    memcpy(m->shift[1], x, sizeof m->shift[1]);
    product(l, "channel_mix_key.weight", for_k, up);
    for (int i = 0; i < FF; i++)
        up[i] = up[i] > 0 ? up[i] * up[i] : 0;
    product(l, "channel_mix_value.weight", up, out);
    product(l, "channel_mix_receptance.weight", for_r, gate);
    for (int i = 0; i < N; i++)
        out[i] *= sigmoid(gate[i]);
}

static void compute_6_with(const int32_t *ids, int n, bool apart, int halved_every, double *logits)
{
    static struct memory memory[LAYERS];
    memset(memory, 0, sizeof memory);
    for (int t = 0; t < n; t++) {
        double x[N], in[N], delta[N];
        for (int i = 0; i < N; i++)
            x[i] = vector(-1, "token_embd.weight", ids[t] * N + i);
        norm(-1, "token_embd_norm", 0, N, 1e-5, x);
        for (int l = 0; l < LAYERS; l++) {
            for (int part = 0; part < 2; part++) {
                memcpy(in, x, sizeof in);
                norm(l, part ? "attn_norm_2" : "attn_norm", 0, N, 1e-5, in);
                if (part)
                    channel_mix_6(l, &memory[l], in, delta);
                else
                    time_mix_6(l, &memory[l], in, apart, delta);
                for (int i = 0; i < N; i++)
                    x[i] += delta[i];
            }
            for (int i = 0; halved_every && (l + 1) % halved_every == 0 && i < N; i++)
                x[i] /= 2;
        }
        norm(-1, "output_norm", 0, N, 1e-5, x);
        product(-1, "output.weight", x, logits + t * VOCAB);
    }
}

static void compute_6(const int32_t *ids, int n, double *logits)
{
    compute_6_with(ids, n, false, 2, logits);
}

/* --- and those of both in Qwen 2's layers ------------------------------------------------------------------------- */

/* Gated linear attention: what is given is of the state behind the position. */
static void time_mix_gla(int l, struct memory *m, const double *x, double *out)
{
    double mixed[MIXES_6][N], r[N], w[N], k[N], v[N], g[N], y[N];
    mix_6(l, x, m->shift[0], false, mixed);
    memcpy(m->shift[0], x, sizeof m->shift[0]);
    project_6(l, mixed, w, k, v, r, g);
    for (int i = 0; i < N; i++)
        w[i] = exp(fmax(-exp(w[i] + vector(l, "time_mix_decay.weight", i)), -5));
    for (int h = 0; h < HEADS; h++)
        for (int j = 0; j < HEAD; j++) {
            const int at = h * HEAD, of_key = h / (HEADS / KEYS) * HEAD;
            y[at + j] = 0;
            for (int i = 0; i < HEAD; i++) {
                const double key = k[of_key + i] + vector(l, "time_mix_key.bias", of_key + i);
                double *s = &m->state[h][i][j];
                *s = w[at + i] * *s +
                     key * (1 - w[at + i]) * (v[of_key + j] + vector(l, "time_mix_value.bias", of_key + j));
                y[at + j] += (r[at + i] + vector(l, "time_mix_receptance.bias", at + i)) / sqrt(HEAD) * *s;
            }
            y[at + j] *= sigmoid(g[at + j]);
        }
    product(l, "time_mix_output.weight", y, out);
}

static void qwen_feed_forward(int l, const double *x, double *out)
{
    double gate[FF], up[FF];
    product(l, "ffn_gate.weight", x, gate);
    product(l, "ffn_up.weight", x, up);
    for (int i = 0; i < FF; i++)
        up[i] *= gate[i] * sigmoid(gate[i]);
    product(l, "ffn_down.weight", up, out);
}

static void compute_qwen(const int32_t *ids, int n, bool six, double *logits)
{
    static struct memory memory[LAYERS];
    memset(memory, 0, sizeof memory);
    for (int t = 0; t < n; t++) {
        double x[N], in[N], delta[N], v_first[N];
        for (int i = 0; i < N; i++)
            x[i] = vector(-1, "token_embd.weight", ids[t] * N + i);
        for (int l = 0; l < LAYERS; l++)
            for (int part = 0; part < 2; part++) {
                memcpy(in, x, sizeof in);
                rms(l, part ? "ffn_norm" : "attn_norm", in);
                if (part)
                    qwen_feed_forward(l, in, delta);
                else if (six)
                    time_mix_gla(l, &memory[l], in, delta);
                else
                    time_mix(l, &memory[l], in, heads_normed ? 64e-5 : 0, v_first, delta);
                for (int i = 0; i < N; i++)
                    x[i] += delta[i];
            }
        rms(-1, "output_norm", x);
        product(-1, "output.weight", x, logits + t * VOCAB);
    }
}

static void compute_arwkv(const int32_t *ids, int n, double *logits)
{
    compute_qwen(ids, n, false, logits);
}

static void compute_qrwkv(const int32_t *ids, int n, double *logits)
{
    compute_qwen(ids, n, true, logits);
}

/* --- the tests --------------------------------------------------------------------------------------------------- */

static const struct version {
    void (*make)(void);
    const char *(*write)(void);
    void (*compute)(const int32_t *ids, int n, double *logits);
    /* Of an adapter: what it changes, the modules, and what they are called. */
    const char *changed[3], *modules[3], *config;
} versions[] = {
    {make, write_file, compute,
     {"time_mix_receptance.weight", "time_mix_w1.weight", "channel_mix_key.weight"},
     {"model.layers.0.attn.r_proj", "model.layers.1.attn.w_lora.lora.0", "model.layers.2.ffn.key"},
     "[\"r_proj\", \"lora.0\", \"key\"]"},
    {make_6, write_6, compute_6,
     {"time_mix_gate.weight", "time_mix_output.weight", "channel_mix_receptance.weight"},
     {"rwkv.blocks.0.attention.gate", "rwkv.blocks.1.attention.output", "rwkv.blocks.2.feed_forward.receptance"},
     "[\"gate\", \"output\", \"receptance\"]"},
    {make_arwkv, write_arwkv, compute_arwkv,
     {"time_mix_receptance.weight", "time_mix_output.weight", "ffn_gate.weight"},
     {"model.layers.0.self_attn.time_mixer.receptance", "model.layers.1.self_attn.time_mixer.output",
      "model.layers.2.mlp.gate_proj"},
     "[\"receptance\", \"output\", \"gate_proj\"]"},
    {make_qrwkv, write_qrwkv, compute_qrwkv,
     {"time_mix_receptance.weight", "time_mix_key.weight", "ffn_down.weight"},
     {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj", "model.layers.2.mlp.down_proj"},
     "[\"q_proj\", \"k_proj\", \"down_proj\"]"},
};

enum { N_VERSIONS = sizeof versions / sizeof *versions };

/* What a model says of the text is about this. */
static void assert_likeness(const char *path, const char *quant, const double *want, double least)
{
    const double cosine = small_likeness(path, quant, want, VOCAB);
    if (!(cosine > least))
        fail_msg("%s: a cosine of %g", path, cosine);
}

/* A file that was made of a folder says that there are no heads of attention, and nothing of their keys. */
static void assert_no_heads(const char *file, const char *arch)
{
    int64_t n = -1;
    char key[80];
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(file, &g, &err), err);
    snprintf(key, sizeof key, "%s.attention.head_count", arch);
    assert_true(pp_gguf_int(g, key, &n) && n == 0);
    snprintf(key, sizeof key, "%s.attention.head_count_kv", arch);
    assert_false(pp_gguf_has(g, key));
    pp_gguf_close(g);
}

static void logits(void **state)
{
    int32_t ids[SMALL_TEXT];
    double *want = doubles(SMALL_TEXT * VOCAB);
    const char *quantised = fresh_path("rwkv-q8_0.gguf"), *mlx = fresh_path("rwkv-mlx"),
               *again = fresh_path("rwkv-again.gguf");
    struct pp_error err;
    (void)state;
    make();
    const char *file = write_file();
    small_text(ids, VOCAB);
    compute(ids, SMALL_TEXT, want);
    const char *folder = assert_logits_everywhere(want, VOCAB, file);
    assert_tensor(folder, "model.layers.1.attn.x_g", 3, N);
    assert_tensor(folder, "model.layers.2.attn.r_k", 2, HEAD);
    assert_tensor(folder, "model.layers.1.attn.v_lora.lora.2.bias", 1, N);
    assert_tensor(folder, "model.layers.0.pre_norm.weight", 1, N);
    assert_same_bits(file, PP_KV_F32);
    assert_ok(pp_quantize_file(file, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_same_bits(quantised, PP_KV_F32);
    assert_likeness(quantised, NULL, want, 0.99);
    assert_likeness(folder, "q8_0", want, 0.99);
    assert_ok(pp_convert_to_folder(file, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
    assert_likeness(mlx, NULL, want, 0.99);
    assert_ok(pp_convert_to_gguf(folder, again, &(struct pp_convert_options){0}, &err), err);
    assert_no_heads(again, "rwkv7");
    pp_free(want);
    drop();
}

/* What a file has divided because it halves the residual stream, as a folder has it. */
static void make_whole(int halved_every)
{
    for (int l = 0; halved_every && l < LAYERS; l++)
        for (int i = 0; i < 2; i++) {
            const struct array *a = find(l, i ? "time_mix_output.weight" : "channel_mix_value.weight");
            for (int64_t k = 0; k < a->rows * a->cols; k++)
                a->values[k] *= (float)(1 << l / halved_every);
        }
}

/* The folder of a file, the file that is made of that, and quantised ones, whose small errors change how inputs are
 * mixed, too. */
static void assert_folders_6(const char *file, const double *want)
{
    const char *folder = fresh_path("rwkv6"), *mlx = fresh_path("rwkv6-mlx"), *again = fresh_path("rwkv6.gguf");
    const struct pp_convert_options plain = {0};
    struct pp_error err;
    assert_ok(pp_convert_to_folder(file, folder, &plain, &err), err);
    assert_model_type(folder);
    assert_logits(want, VOCAB, folder);
    assert_tensor(folder, "rwkv.blocks.1.attention.time_maa_g", 3, N);
    assert_tensor(folder, "rwkv.blocks.1.attention.time_maa_w1", 2, MIXES_6 * MIX_RANK);
    assert_tensor(folder, "rwkv.blocks.2.attention.time_maa_w2", 3, N);
    assert_tensor(folder, "rwkv.blocks.2.attention.time_decay_w1", 2, DECAY_RANK);
    assert_tensor(folder, "rwkv.blocks.0.attention.time_faaaa", 2, HEAD);
    assert_tensor(folder, "rwkv.blocks.0.pre_ln.weight", 1, N);
    assert_likeness(folder, "q8_0", want, 0.98);
    assert_ok(pp_convert_to_gguf(folder, again, &plain, &err), err);
    assert_logits(want, VOCAB, again);
    assert_no_heads(again, "rwkv6");
    assert_ok(pp_convert_to_folder(file, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
    assert_likeness(mlx, NULL, want, 0.98);
}

/* RWKV 6, whose residual stream is halved behind each so many layers, or not; from files of now and the first ones, in
 * eight bits, and from folders, where nothing is halved. */
static void logits_6(void **state)
{
    static const struct {
        uint32_t halved_every;
        bool apart;
    } cases[] = {{0, false}, {2, false}, {1, true}};
    int32_t ids[SMALL_TEXT];
    double *want = doubles(SMALL_TEXT * VOCAB);
    struct pp_error err;
    (void)state;
    small_text(ids, VOCAB);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_6_with(cases[i].apart);
        const char *file = write_6_with(HEAD, cases[i].halved_every, 2, cases[i].halved_every ? -1 : 3);
        const char *other = fresh_path("rwkv6-q8_0.gguf");
        compute_6_with(ids, SMALL_TEXT, cases[i].apart, (int)cases[i].halved_every, want);
        assert_logits(want, VOCAB, file);
        assert_same_bits(file, PP_KV_F32);
        assert_ok(pp_quantize_file(file, other, "F32", &(struct pp_convert_options){0}, &err), err);
        assert_logits(want, VOCAB, other);
        remove(other);
        assert_ok(pp_quantize_file(file, other, "Q8_0", &(struct pp_convert_options){0}, &err), err);
        assert_same_bits(other, PP_KV_F32);
        assert_likeness(other, NULL, want, 0.98);
        make_whole((int)cases[i].halved_every);
        compute_6_with(ids, SMALL_TEXT, cases[i].apart, 0, want);
        assert_folders_6(file, want);
        drop();
    }
    pp_free(want);
}

/* Everywhere the same: a file, in eight bits, its folder, and the file that is made of that; the folder's path. */
static const char *check_qwen(const struct version *v, const char *again)
{
    const char *quantised = fresh_path("qwen-q8_0.gguf"), *mlx = fresh_path("qwen-mlx");
    double *want = doubles(SMALL_TEXT * VOCAB);
    int32_t ids[SMALL_TEXT];
    struct pp_error err;
    v->make();
    const char *file = v->write();
    small_text(ids, VOCAB);
    v->compute(ids, SMALL_TEXT, want);
    const char *folder = assert_logits_everywhere(want, VOCAB, file);
    assert_same_bits(file, PP_KV_F32);
    assert_ok(pp_quantize_file(file, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_same_bits(quantised, PP_KV_F32);
    assert_likeness(quantised, NULL, want, 0.98);
    assert_likeness(folder, "q8_0", want, 0.98);
    assert_ok(pp_convert_to_folder(file, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
    assert_likeness(mlx, NULL, want, 0.98);
    assert_ok(pp_convert_to_gguf(folder, again, &(struct pp_convert_options){0}, &err), err);
    pp_free(want);
    return folder;
}

static int64_t number_in(const char *file, const char *key)
{
    int64_t n = -1;
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(file, &g, &err), err);
    assert_true(pp_gguf_int(g, key, &n));
    pp_gguf_close(g);
    return n;
}

static void logits_arwkv(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *again = fresh_path("arwkv-again.gguf");
        struct pp_model *m;
        struct pp_error err;
        gated = i != 1;
        heads_normed = i == 0;
        const char *folder = check_qwen(&versions[2], again);
        assert_tensor(folder, "model.layers.1.self_attn.time_mixer.x_r", 3, N);
        assert_tensor(folder, "model.layers.1.self_attn.time_mixer.w1", 2, ranks[0]);
        assert_tensor(folder, "model.layers.2.self_attn.time_mixer.v2", 2, N);
        assert_int_equal(number_in(again, "arwkv7.token_shift_count"), 1);
        assert_int_equal(number_in(again, "arwkv7.attention.head_count"), 0);
        assert_int_equal(number_in(again, "arwkv7.attention.gate_lora_rank"), gated ? ranks[3] : 0);
        assert_ok(pp_model_open(again, &m, &err), err); /* what nobody reads is as large as other programs want it */
        assert_int_equal(pp_source_tensor(m->source, "blk.0.time_mix_v1.weight")->ne[1], ranks[1]);
        pp_model_close(m);
        drop();
    }
    gated = heads_normed = true;
}

/* In folders the ways to mix are in another order: r, k, v, w, g. */
static void logits_qrwkv(void **state)
{
    const char *again = fresh_path("qrwkv-again.gguf");
    struct pp_hf *hf;
    struct pp_error err;
    float row[MIXES_6 * MIX_RANK];
    (void)state;
    const char *folder = check_qwen(&versions[3], again);
    assert_tensor(folder, "model.layers.1.self_attn.time_maa_g", 3, N);
    assert_tensor(folder, "model.layers.1.self_attn.k_proj.bias", 1, KEYS * HEAD);
    assert_int_equal(number_in(again, "rwkv6qwen2.token_shift_count"), 1);
    assert_int_equal(number_in(again, "rwkv6qwen2.attention.head_count"), 0);
    assert_int_equal(number_in(again, "rwkv6qwen2.attention.head_count_kv"), KEYS);
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    const struct pp_tensor *w1 = pp_hf_find(hf, "model.layers.1.self_attn.time_maa_w1", NULL);
    const struct pp_tensor *w2 = pp_hf_find(hf, "model.layers.1.self_attn.time_maa_w2", NULL);
    assert_true(w1 && w2 && w1->ne[0] == MIXES_6 * MIX_RANK && w2->ne[0] == N && w2->ne[2] == MIXES_6);
    for (int way = 0; way < MIXES_6; way++) {
        const int ours = (int[]){3, 1, 2, 0, 4}[way];
        pp_dequantize_row(w1->type, w1->data, row, MIXES_6 * MIX_RANK); /* of the first input */
        assert_float_equal(row[way * MIX_RANK + 5], vector(1, "time_mix_w1.weight", (ours * MIX_RANK + 5) * N), 1e-3);
        pp_dequantize_row(w2->type, (const uint8_t *)w2->data + w2->size / MIXES_6 * (size_t)way, row, N);
        assert_float_equal(row[7], vector(1, "time_mix_w2.weight", (ours * N + 7) * MIX_RANK), 1e-3);
    }
    pp_hf_close(hf);
    drop();
}

/* What these say too little of, or what is not known. */
static void bad_files_qwen(void **state)
{
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    make_arwkv();
    assert_int_equal(pp_model_open(write_arwkv_with(HEAD, 2), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "mixes 2 inputs"));
    drop();
    make_qrwkv();
    assert_int_equal(pp_model_open(write_qrwkv_with(HEAD, KEYS, 2, 0), &m, &err), PP_ERR_UNSUPPORTED);
    assert_int_equal(pp_model_open(write_qrwkv_with(HEAD, KEYS, 1, 2), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "rescale_every_n_layers"));
    assert_int_equal(pp_model_open(write_qrwkv_with(HEAD, 3, 1, 0), &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "3 heads have keys"));
    assert_int_not_equal(pp_model_open(write_qrwkv_with(HEAD, 2, 1, 0), &m, &err), PP_OK); /* others than there are */
    drop();
    for (int kind = 2; kind < N_VERSIONS; kind++) { /* any tensor is missed */
        versions[kind].make();
        for (int i = 0; i < n_arrays; i++) {
            struct array *a = &arrays[i];
            if (strncmp(a->name, "blk.1.", 6) != 0)
                continue;
            a->name[4] = '7';
            assert_int_not_equal(pp_model_open(versions[kind].write(), &m, &err), PP_OK);
            a->name[4] = '1';
        }
        drop();
    }
}

/* Of RWKV 6 as well: what a file says too little of, or what is not known, is refused, and said. */
static void bad_files_6(void **state)
{
    static const struct {
        uint32_t halved_every, shifts;
        int left_out;
        const char *text;
    } cases[] = {{2, 2, 0, "wkv.head_size"}, {2, 2, 1, "time_mix_extra_dim"}, {2, 2, 2, "time_decay_extra_dim"},
                 {2, 1, -1, "mixes 1 inputs"}};
    struct pp_model *m;
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    make_6();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *file = write_6_with(HEAD, cases[i].halved_every, cases[i].shifts, cases[i].left_out);
        assert_int_not_equal(pp_model_open(file, &m, &err), PP_OK);
        if (!strstr(err.text, cases[i].text))
            fail_msg("\"%s\" does not say %s", err.text, cases[i].text);
    }
    const struct number wide[] = {{"wkv.head_size", HEAD}, {"time_mix_extra_dim", 1 << 17},
                                  {"time_decay_extra_dim", DECAY_RANK}, {"rescale_every_n_layers", 2},
                                  {"block_count", 2}, {"context_length", 1 << 20}, {"embedding_length", N},
                                  {"feed_forward_length", FF}, {"attention.head_count", 0}, {"vocab_size", VOCAB}};
    const char *too_wide = write_numbers("rwkv6", wide, sizeof wide / sizeof *wide);
    assert_int_equal(pp_model_open(too_wide, &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "size between two matrices"));
    assert_int_equal(pp_source_open(too_wide, &s, NULL), PP_ERR_FORMAT); /* also where nobody asks why */
    const struct number deep[] = {{"wkv.head_size", HEAD}, {"time_mix_extra_dim", MIX_RANK},
                                  {"time_decay_extra_dim", DECAY_RANK}, {"rescale_every_n_layers", 2},
                                  {"block_count", 202}, {"context_length", 1 << 20}, {"embedding_length", N},
                                  {"feed_forward_length", FF}, {"attention.head_count", 0}, {"vocab_size", VOCAB}};
    assert_int_equal(pp_model_open(write_numbers("rwkv6", deep, sizeof deep / sizeof *deep), &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "nothing would be left"));
    for (int i = 0; i < n_arrays; i++) { /* any of its tensors is missed */
        struct array *a = &arrays[i];
        if (strncmp(a->name, "blk.1.", 6) != 0)
            continue;
        a->name[4] = '7';
        assert_int_not_equal(pp_model_open(write_6(), &m, &err), PP_OK);
        a->name[4] = '1';
    }
    drop();
}

/* Taken back within a page and across one, and forked, a conversation goes on at the same bits. */
static void go_back(const struct version *v)
{
    static const int to[] = {65, 20, 64, 0};
    int32_t ids[SMALL_TEXT];
    struct pp_seq *other;
    struct pp_error err;
    size_t n;
    v->make();
    const char *file = v->write();
    float *want = small_logits(file, PP_KV_F32, &n), *got = pp_calloc(n, sizeof *got);
    struct running r = run_small(file, NULL);
    assert_null(pp_model_info(r.m)->chat_template); /* a name is none */
    small_text(ids, VOCAB);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 16, got);
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        const int rest = SMALL_TEXT - to[i];
        assert_ok(pp_seq_fork(r.s, to[i], &other, &err), err);
        pp_seq_truncate(r.s, to[i]);
        run_in_passes(r.e, other, ids, 3, 2, got);
        run_in_passes(r.e, r.s, ids + to[i], rest, 7, got);
        assert_memory_equal(got, want + to[i] * VOCAB, (size_t)(rest * VOCAB) * sizeof *got);
        pp_seq_free(other);
    }
    pp_free(want);
    pp_free(got);
    stop_small(&r);
    drop();
}

static void gone_back(void **state)
{
    (void)state;
    for (int i = 0; i < N_VERSIONS; i++)
        go_back(&versions[i]);
}

static void saved(void **state)
{
    (void)state;
    for (int i = 0; i < N_VERSIONS; i++) {
        versions[i].make();
        assert_resumes(versions[i].write(), VOCAB);
        drop();
    }
}

/* W becomes W + 2 B A. */
static void merge(int l, const char *kind, struct folder *f, const char *module)
{
    enum { RANK = 4 };
    const struct array *w = find(l, kind);
    char name[120];
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
    float *a = (float *)(uintptr_t)folder_add(f, name, RANK, w->cols, 0, 0.3f); /* ours */
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
    float *b = (float *)(uintptr_t)folder_add(f, name, w->rows, RANK, 0, 0.3f);
    for (int64_t i = 0; i < RANK * w->cols; i++) /* what halves hold exactly */
        a[i] = rintf(a[i] * 64) / 64;
    for (int64_t i = 0; i < RANK * w->rows; i++)
        b[i] = rintf(b[i] * 64) / 64;
    for (int64_t o = 0; o < w->rows; o++)
        for (int64_t i = 0; i < w->cols; i++)
            for (int k = 0; k < RANK; k++)
                w->values[o * w->cols + i] += (float)(2 * (double)b[o * RANK + k] * (double)a[k * w->cols + i]);
}

/* A LoRA of both parts of a layer, and of a product of low rank, is what the merged weights are. */
static void adapt(const struct version *v)
{
    int32_t ids[SMALL_TEXT];
    struct folder f = {.random = 5};
    struct pp_adapter *adapter;
    struct pp_error err;
    double *want = doubles(SMALL_TEXT * VOCAB);
    float *got = pp_calloc(SMALL_TEXT * VOCAB, sizeof *got);
    char config[160];
    v->make();
    struct running r = run_small(v->write(), NULL);
    for (int l = 0; l < LAYERS; l++)
        merge(l, v->changed[l], &f, v->modules[l]);
    small_text(ids, VOCAB);
    v->compute(ids, SMALL_TEXT, want);
    snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"target_modules\": %s}",
             v->config);
    const char *path = folder_write_peft(&f, config);
    assert_ok(pp_adapter_load(r.m, path, &adapter, &err), err);
    assert_ok(pp_seq_set_adapters(r.s, &(struct pp_adapter_use){adapter, 1}, 1, &err), err);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 7, got);
    for (int i = 0; i < SMALL_TEXT * VOCAB; i++)
        if (!(fabs((double)got[i] - want[i]) <= 2e-4 * fmax(1, fabs(want[i]))))
            fail_msg("value %d is %g, not %g", i, (double)got[i], want[i]);
    if (v->make == make_qrwkv) { /* modules are called as Llama's: the model tells */
        const char *gguf = fresh_path("qrwkv-lora.gguf");
        pp_adapter_free(adapter);
        assert_ok(pp_convert_adapter(path, gguf, -1, &(struct pp_convert_options){.base = v->write()}, &err), err);
        assert_ok(pp_adapter_load(r.m, gguf, &adapter, &err), err);
        assert_int_equal(pp_adapter_info(adapter)->n_targets, LAYERS);
    }
    pp_free(want);
    pp_free(got);
    folder_empty(&f);
    stop_adapted(&r, adapter);
    drop();
}

static void adapters(void **state)
{
    (void)state;
    for (int i = 0; i < N_VERSIONS; i++)
        adapt(&versions[i]);
}

/* Heads that the width cannot be cut into, or that are no whole vectors. */
static void bad_heads(void **state)
{
    static const uint32_t sizes[] = {0, 8, 24, 128, 1u << 31};
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    make();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_not_equal(pp_model_open(write_file_with(sizes[i]), &m, &err), PP_OK);
    drop();
    make_6();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_not_equal(pp_model_open(write_6_with(sizes[i], 0, 2, -1), &m, &err), PP_OK);
    drop();
}

TEST_GROUP(rwkv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits), cmocka_unit_test(logits_6),
                                       cmocka_unit_test(logits_arwkv), cmocka_unit_test(logits_qrwkv),
                                       cmocka_unit_test(bad_files_qwen),
                                       cmocka_unit_test(bad_files_6), cmocka_unit_test(gone_back),
                                       cmocka_unit_test(saved), cmocka_unit_test(adapters),
                                       cmocka_unit_test(bad_heads)};
    return cmocka_run_group_tests_name("rwkv", tests, NULL, NULL);
}
