/* rwkv_model.c - see rwkv_model.h. The formulas are written out from RWKV-LM's reference, transformers' RWKV 4, and
 * those of QRWKV and ARWKV, a vector and a matrix at a time. */
#include "tests/rwkv_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "tests/gguf_file.h"
#include "tests/small_model.h"
#include "tests/support.h"

const int rwkv_ranks[4] = {32, 64, 32, 96};
struct array arrays[MAX_TENSORS];
int n_arrays;
static uint32_t random_state;

static void add(int l, const char *kind, int64_t rows, int64_t cols, float middle, float spread)
{
    assert_true(n_arrays < MAX_TENSORS);
    array_make(&arrays[n_arrays++], l, kind, 0, rows, cols, middle, spread, &random_state);
}

static void add_norm(int l, const char *kind)
{
    char name[40];
    snprintf(name, sizeof name, "%s.weight", kind);
    add(l, name, 0, N, 1, 0.5f);
    snprintf(name, sizeof name, "%s.bias", kind);
    add(l, name, 0, N, 0, 0.3f);
}

/* Adds an RMSNorm's weights: the distilled models keep Qwen 2's norms. */
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

void rwkv7_make(void)
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
            add_low(l, "wavg"[i], rwkv_ranks[i]); /* layer 0 never uses the pair for values */
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

void rwkv_drop(void)
{
    while (n_arrays > 0)
        pp_free(arrays[--n_arrays].values);
}

const char *rwkv_write_numbers(const char *arch, const struct number *numbers, size_t n_numbers)
{
    const char *path = fresh_path("rwkv.gguf");
    struct pp_tensor tensors[MAX_TENSORS];
    char key[80];
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", arch);
    for (size_t i = 0; i < n_numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].key ? numbers[i].key : "");
        if (numbers[i].key)
            pp_gguf_add_u32(w, key, numbers[i].v);
    }
    const bool alone = strncmp(arch, "rwkv", 4) == 0 && strlen(arch) <= 5;
    snprintf(key, sizeof key, "%s.attention.layer_norm_%sepsilon", arch, alone ? "" : "rms_");
    pp_gguf_add_f32(w, key, 1e-5f);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
    pp_gguf_add_text(w, "tokenizer.chat_template", "rwkv-world"); /* as in the first files */
    for (int i = 0; i < n_arrays; i++) {
        const struct array *a = &arrays[i];
        struct pp_tensor *to = &tensors[i];
        if (a->rows == MIXES_6 * N)
            *to = float_tensor(a->name, a->values, a->cols, N, MIXES_6);
        else
            *to = array_tensor(a);
        if (strstr(a->name, "lerp_fused")) {
            to->n_dims = 4;
            to->ne[1] = 1;
            to->ne[3] = a->rows;
        }
    }
    gguf_file_end(w, tensors, (size_t)n_arrays);
    return path;
}

const char *rwkv7_write_with(uint32_t head_size)
{
    const struct number numbers[] = {
        {"block_count", LAYERS}, {"context_length", 1 << 20}, {"embedding_length", N}, {"feed_forward_length", FF},
        {"attention.head_count", 0}, {"wkv.head_size", head_size}, {"attention.decay_lora_rank", 32},
        {"attention.iclr_lora_rank", 64}, {"attention.value_residual_mix_lora_rank", 32},
        {"attention.gate_lora_rank", 96}, {"vocab_size", VOCAB}};
    return rwkv_write_numbers("rwkv7", numbers, sizeof numbers / sizeof *numbers);
}

const char *rwkv7_write(void)
{
    return rwkv7_write_with(HEAD);
}

/* --- RWKV 4 ------------------------------------------------------------------------------------------------------ */

/* Makes RWKV 4. Some of its keys are so large or small that e^k overflows or underflows a float. */
void rwkv4_make(void)
{
    static const char *const square[] = {"key", "value", "receptance", "output"};
    static const char *const lerps[] = {"time_mix_lerp_k", "time_mix_lerp_v", "time_mix_lerp_r", "channel_mix_lerp_k",
                                        "channel_mix_lerp_r"};
    char name[40];
    n_arrays = 0;
    random_state = 7;
    add(-1, "token_embd.weight", VOCAB, N, 0, 1);
    add_norm(-1, "token_embd_norm");
    for (int l = 0; l < LAYERS; l++) {
        add_norm(l, "attn_norm");
        add_norm(l, "attn_norm_2");
        for (size_t i = 0; i < sizeof lerps / sizeof *lerps; i++) {
            snprintf(name, sizeof name, "%s.weight", lerps[i]);
            add(l, name, 0, N, 0.5f, 0.5f);
        }
        add(l, "time_mix_decay.weight", 0, N, -1.01f, 1);
        add(l, "time_mix_first.weight", 0, N, 0, 120);
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "time_mix_%s.weight", square[i]);
            add(l, name, N, N, 0, 0.5f);
        }
        add(l, "channel_mix_key.weight", FF, N, 0, 0.3f);
        add(l, "channel_mix_value.weight", N, FF, 0, 0.3f);
        add(l, "channel_mix_receptance.weight", N, N, 0, 0.3f);
    }
    add_norm(-1, "output_norm");
    add(-1, "output.weight", VOCAB, N, 0, 0.3f);
}

const char *rwkv4_write(void)
{
    const struct number numbers[] = {{"block_count", LAYERS}, {"context_length", 1 << 20}, {"embedding_length", N},
                                     {"feed_forward_length", FF}, {"attention.head_count", 0}, {"vocab_size", VOCAB}};
    return rwkv_write_numbers("rwkv", numbers, sizeof numbers / sizeof *numbers);
}

/* --- RWKV 6 ------------------------------------------------------------------------------------------------------ */

/* apart: each mixing vector is a separate tensor, as in the first files */
void rwkv6_make_with(bool apart)
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

void rwkv6_make(void)
{
    rwkv6_make_with(false);
}

/* left_out: the index of a metadata key that is not written; -1: none */
const char *rwkv6_write_with(uint32_t head_size, uint32_t rescale_every, uint32_t shifts, int left_out)
{
    struct number numbers[] = {{"wkv.head_size", head_size}, {"time_mix_extra_dim", MIX_RANK},
                               {"time_decay_extra_dim", DECAY_RANK}, {"rescale_every_n_layers", rescale_every},
                               {"token_shift_count", shifts}, {"block_count", LAYERS}, {"context_length", 1 << 20},
                               {"embedding_length", N}, {"feed_forward_length", FF}, {"attention.head_count", 0},
                               {"vocab_size", VOCAB}};
    if (left_out >= 0)
        numbers[left_out].key = NULL;
    return rwkv_write_numbers("rwkv6", numbers, sizeof numbers / sizeof *numbers);
}

const char *rwkv6_write(void)
{
    return rwkv6_write_with(HEAD, 2, 2, -1);
}

/* --- in Qwen 2's layers ------------------------------------------------------------------------------------------ */

double rwkv6_heads_eps = 64e-5;
bool arwkv_gated = true, arwkv_head_norms = true;

static void add_qwen_feed_forward(int l)
{
    add_rms(l, "ffn_norm");
    add(l, "ffn_gate.weight", FF, N, 0, 0.3f);
    add(l, "ffn_up.weight", FF, N, 0, 0.3f);
    add(l, "ffn_down.weight", N, FF, 0, 0.3f);
}

void arwkv_make(void)
{
    static const char *const square[] = {"receptance", "key", "value", "output"};
    static const char *const vectors[] = {"k_k", "k_a", "r_k"};
    char name[40];
    n_arrays = 0;
    random_state = 5;
    add(-1, "token_embd.weight", VOCAB, N, 0, 1);
    for (int l = 0; l < LAYERS; l++) {
        add_rms(l, "attn_norm");
        add(l, "time_mix_lerp_fused.weight", arwkv_gated ? MIXES : MIXES - 1, N, 0.5f, 0.5f);
        for (int i = 0; i < (arwkv_gated ? 4 : 3); i++)
            add_low(l, "wavg"[i], rwkv_ranks[i]);
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "time_mix_%s.weight", square[i]);
            add(l, name, N, N, 0, 0.3f);
        }
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "time_mix_%s.weight", vectors[i]);
            add(l, name, 0, N, i ? 0 : 1, 1);
        }
        if (arwkv_head_norms)
            add_norm(l, "time_mix_ln");
        add_qwen_feed_forward(l);
    }
    add_rms(-1, "output_norm");
    add(-1, "output.weight", VOCAB, N, 0, 0.3f);
}

const char *arwkv_write_with(uint32_t head_size, uint32_t shifts)
{
    const struct number numbers[] = {
        {"block_count", LAYERS}, {"context_length", 1 << 20}, {"embedding_length", N}, {"feed_forward_length", FF},
        {"attention.head_count", 0}, {"wkv.head_size", head_size}, {"attention.decay_lora_rank", 32},
        {"attention.iclr_lora_rank", 64}, {"attention.value_residual_mix_lora_rank", 32},
        {"attention.gate_lora_rank", arwkv_gated ? 96 : 0}, {"token_shift_count", shifts}, {"vocab_size", VOCAB}};
    return rwkv_write_numbers("arwkv7", numbers, sizeof numbers / sizeof *numbers);
}

const char *arwkv_write(void)
{
    return arwkv_write_with(HEAD, 1);
}

void qrwkv_make(void)
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
        add(l, "time_mix_decay.weight", 0, N, -0.5f, 3); /* some decays reach their bound */
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

const char *qrwkv_write_with(uint32_t head_size, uint32_t n_keys, uint32_t shifts, uint32_t rescale_every)
{
    const struct number numbers[] = {{"wkv.head_size", head_size}, {"time_mix_extra_dim", MIX_RANK},
                                     {"time_decay_extra_dim", DECAY_RANK}, {"token_shift_count", shifts},
                                     {"block_count", LAYERS}, {"context_length", 1 << 20}, {"embedding_length", N},
                                     {"feed_forward_length", FF}, {"attention.head_count", 0},
                                     {"attention.head_count_kv", n_keys}, {"vocab_size", VOCAB},
                                     {rescale_every ? "rescale_every_n_layers" : NULL, rescale_every}};
    return rwkv_write_numbers("rwkv6qwen2", numbers, sizeof numbers / sizeof *numbers);
}

const char *qrwkv_write(void)
{
    return qrwkv_write_with(HEAD, KEYS, 1, 0);
}

/* --- the formulas ------------------------------------------------------------------------------------------------ */

static const struct array *look(int l, const char *kind) /* or NULL */
{
    const int i = small_find(arrays[0].name, sizeof arrays[0], n_arrays, l, kind, "");
    return i < 0 ? NULL : &arrays[i];
}

const struct array *rwkv_find(int l, const char *kind)
{
    const struct array *a = look(l, kind);
    if (!a)
        fail_msg("there is no %s", kind);
    return a;
}

static void product(int l, const char *kind, const double *x, double *y)
{
    const struct array *w = rwkv_find(l, kind);
    for (int64_t o = 0; o < w->rows; o++)
        y[o] = small_dot(w->values + o * w->cols, x, w->cols);
}

/* LayerNorm of n values, with weights and biases from index `first` on. */
static void norm(int l, const char *kind, int first, int n, double eps, double *x)
{
    char name[40];
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++)
        mean += x[i] / n;
    for (int i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / n;
    snprintf(name, sizeof name, "%s.weight", kind);
    const float *w = rwkv_find(l, name)->values + first;
    snprintf(name, sizeof name, "%s.bias", kind);
    const float *b = rwkv_find(l, name)->values + first;
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
        x[i] *= (double)rwkv_find(l, name)->values[i] / sqrt(square + 1e-5);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* out = x0 + W2 fn(W1 x) for the low-rank pair of `letter`; fn is tanh for w, a sigmoid for g, else the identity; g
 * has no x0 */
static void low(int l, char letter, const double *x, double *out)
{
    char name[40];
    double between[128];
    snprintf(name, sizeof name, "time_mix_%c1.weight", letter);
    product(l, name, x, between);
    for (int64_t i = 0; i < rwkv_find(l, name)->rows; i++)
        between[i] = letter == 'w' ? tanh(between[i]) : letter == 'g' ? sigmoid(between[i]) : between[i];
    snprintf(name, sizeof name, "time_mix_%c2.weight", letter);
    product(l, name, between, out);
    snprintf(name, sizeof name, "time_mix_%c0.weight", letter);
    for (int i = 0; letter != 'g' && i < N; i++)
        out[i] += (double)rwkv_find(l, name)->values[i];
}

/* One step of a head. As in the reference, the state is indexed [value][key]. */
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

struct memory { /* what a layer keeps from one position to the next */
    double shift[2][N], state[HEADS][HEAD][HEAD];
};

/* eps: the epsilon of the heads' norm; 0: there is no such norm */
static void time_mix(int l, struct memory *m, const double *x, double eps, double *v_first, double *out)
{
    double mixed[MIXES][N], r[N], w[N], k[N], v[N], a[N], g[N], kk[N], y[N], towards[N];
    const float *lerp = rwkv_find(l, "time_mix_lerp_fused.weight")->values;
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
        kk[i] = k[i] * (double)rwkv_find(l, "time_mix_k_k.weight")->values[i];
        k[i] *= 1 + (a[i] - 1) * (double)rwkv_find(l, "time_mix_k_a.weight")->values[i];
    }
    for (int h = 0; h < HEADS; h++) {
        const int at = h * HEAD;
        double length = 0, own = 0;
        for (int i = at; i < at + HEAD; i++) {
            length += kk[i] * kk[i];
            own += r[i] * k[i] * (double)rwkv_find(l, "time_mix_r_k.weight")->values[i];
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
        mixed[i] = x[i] + (m->shift[1][i] - x[i]) * (double)rwkv_find(l, "channel_mix_lerp_k.weight")->values[i];
    memcpy(m->shift[1], x, sizeof m->shift[1]);
    product(l, "channel_mix_key.weight", mixed, up);
    for (int i = 0; i < FF; i++)
        up[i] = up[i] > 0 ? up[i] * up[i] : 0;
    product(l, "channel_mix_value.weight", up, out);
}

void rwkv7_compute(const int32_t *ids, int n, double *logits)
{
    static struct memory memory[LAYERS];
    memset(memory, 0, sizeof memory);
    for (int t = 0; t < n; t++) {
        double x[N], in[N], delta[N], v_first[N];
        for (int i = 0; i < N; i++)
            x[i] = (double)rwkv_find(-1, "token_embd.weight")->values[ids[t] * N + i];
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

double rwkv_vector(int l, const char *kind, int i)
{
    return (double)rwkv_find(l, kind)->values[i];
}

/* RWKV 6's token shift: the input mixed with the previous one, once each for w, k, v, r and g. */
static void mix_6(int l, const double *x, const double *before, bool apart, double mixed[MIXES_6][N])
{
    double in[N], between[MIXES_6 * MIX_RANK];
    char name[40];
    for (int i = 0; i < N; i++)
        in[i] = x[i] + (before[i] - x[i]) * rwkv_vector(l, "time_mix_lerp_x.weight", i);
    product(l, "time_mix_w1.weight", in, between);
    for (int way = 0; way < MIXES_6; way++)
        for (int i = 0; i < N; i++) {
            snprintf(name, sizeof name, "time_mix_lerp_%c.weight", "wkvrg"[way]);
            double part = apart ? rwkv_vector(l, name, i) : rwkv_vector(l, "time_mix_lerp_fused.weight", way * N + i);
            for (int j = 0; j < MIX_RANK; j++)
                part += rwkv_vector(l, "time_mix_w2.weight", (way * N + i) * MIX_RANK + j) *
                        tanh(between[way * MIX_RANK + j]);
            mixed[way][i] = x[i] + (before[i] - x[i]) * part;
        }
}

/* Projects the mixed inputs. w: the term that is added to the decays' bias. */
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
        w[i] = exp(-exp(w[i] + rwkv_vector(l, "time_mix_decay.weight", i)));
    for (int h = 0; h < HEADS; h++) {
        const int at = h * HEAD;
        for (int j = 0; j < HEAD; j++) {
            y[at + j] = 0;
            for (int i = 0; i < HEAD; i++) {
                const double kv = k[at + i] * v[at + j];
                y[at + j] += r[at + i] * (m->state[h][i][j] + rwkv_vector(l, "time_mix_first.weight", at + i) * kv);
                m->state[h][i][j] = w[at + i] * m->state[h][i][j] + kv;
            }
        }
        norm(l, "time_mix_ln", at, HEAD, rwkv6_heads_eps, y + at);
    }
    for (int i = 0; i < N; i++)
        y[i] *= g[i] * sigmoid(g[i]);
    product(l, "time_mix_output.weight", y, out);
}

static void channel_mix_6(int l, struct memory *m, const double *x, double *out)
{
    double for_k[N], for_r[N], gate[N], up[FF];
    for (int i = 0; i < N; i++) {
        for_k[i] = x[i] + (m->shift[1][i] - x[i]) * rwkv_vector(l, "channel_mix_lerp_k.weight", i);
        for_r[i] = x[i] + (m->shift[1][i] - x[i]) * rwkv_vector(l, "channel_mix_lerp_r.weight", i);
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

void rwkv6_compute_with(const int32_t *ids, int n, bool apart, int rescale_every, double *logits)
{
    static struct memory memory[LAYERS];
    memset(memory, 0, sizeof memory);
    for (int t = 0; t < n; t++) {
        double x[N], in[N], delta[N];
        for (int i = 0; i < N; i++)
            x[i] = rwkv_vector(-1, "token_embd.weight", ids[t] * N + i);
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
            for (int i = 0; rescale_every && (l + 1) % rescale_every == 0 && i < N; i++)
                x[i] /= 2;
        }
        norm(-1, "output_norm", 0, N, 1e-5, x);
        product(-1, "output.weight", x, logits + t * VOCAB);
    }
}

void rwkv6_compute(const int32_t *ids, int n, double *logits)
{
    rwkv6_compute_with(ids, n, false, 2, logits);
}

/* --- those of RWKV 4 --------------------------------------------------------------------------------------------- */

static void mix_4(int l, const char *kind, const double *x, const double *before, double *out)
{
    for (int i = 0; i < N; i++)
        out[i] = x[i] + (before[i] - x[i]) * rwkv_vector(l, kind, i);
}

/* RWKV 4's WKV: the weighted mean of the values up to t, by the paper's sums. k, v: [t + 1][N] */
static void time_mix_4(int l, struct memory *m, int t, const double *x, double k[][N], double v[][N], double *out)
{
    double mixed[N], r[N], y[N];
    mix_4(l, "time_mix_lerp_k.weight", x, m->shift[0], mixed);
    product(l, "time_mix_key.weight", mixed, k[t]);
    mix_4(l, "time_mix_lerp_v.weight", x, m->shift[0], mixed);
    product(l, "time_mix_value.weight", mixed, v[t]);
    mix_4(l, "time_mix_lerp_r.weight", x, m->shift[0], mixed);
    product(l, "time_mix_receptance.weight", mixed, r);
    memcpy(m->shift[0], x, sizeof m->shift[0]);
    for (int c = 0; c < N; c++) {
        double sum = 0, counts = 0;
        for (int i = 0; i <= t; i++) {
            const double ln = i == t ? rwkv_vector(l, "time_mix_first.weight", c)
                                     : (t - 1 - i) * rwkv_vector(l, "time_mix_decay.weight", c);
            sum += exp(ln + k[i][c]) * v[i][c];
            counts += exp(ln + k[i][c]);
        }
        y[c] = sigmoid(r[c]) * sum / counts;
    }
    product(l, "time_mix_output.weight", y, out);
}

void rwkv4_compute(const int32_t *ids, int n, double *logits)
{
    static struct memory memory[LAYERS];
    static double k[LAYERS][SMALL_TEXT][N], v[LAYERS][SMALL_TEXT][N];
    memset(memory, 0, sizeof memory);
    assert_true(n <= SMALL_TEXT);
    for (int t = 0; t < n; t++) {
        double x[N], in[N], delta[N];
        for (int i = 0; i < N; i++)
            x[i] = rwkv_vector(-1, "token_embd.weight", ids[t] * N + i);
        norm(-1, "token_embd_norm", 0, N, 1e-5, x);
        for (int l = 0; l < LAYERS; l++)
            for (int part = 0; part < 2; part++) {
                memcpy(in, x, sizeof in);
                norm(l, part ? "attn_norm_2" : "attn_norm", 0, N, 1e-5, in);
                if (part)
                    channel_mix_6(l, &memory[l], in, delta);
                else
                    time_mix_4(l, &memory[l], t, in, k[l], v[l], delta);
                for (int i = 0; i < N; i++)
                    x[i] += delta[i];
            }
        norm(-1, "output_norm", 0, N, 1e-5, x);
        product(-1, "output.weight", x, logits + t * VOCAB);
    }
}

/* --- and those of both in Qwen 2's layers ------------------------------------------------------------------------- */

/* Gated linear attention: the output reads the state after position t was added. */
static void time_mix_gla(int l, struct memory *m, const double *x, double *out)
{
    double mixed[MIXES_6][N], r[N], w[N], k[N], v[N], g[N], y[N];
    mix_6(l, x, m->shift[0], false, mixed);
    memcpy(m->shift[0], x, sizeof m->shift[0]);
    project_6(l, mixed, w, k, v, r, g);
    for (int i = 0; i < N; i++)
        w[i] = exp(fmax(-exp(w[i] + rwkv_vector(l, "time_mix_decay.weight", i)), -5));
    for (int h = 0; h < HEADS; h++)
        for (int j = 0; j < HEAD; j++) {
            const int at = h * HEAD, of_key = h / (HEADS / KEYS) * HEAD;
            y[at + j] = 0;
            for (int i = 0; i < HEAD; i++) {
                const double key = k[of_key + i] + rwkv_vector(l, "time_mix_key.bias", of_key + i);
                double *s = &m->state[h][i][j];
                *s = w[at + i] * *s +
                     key * (1 - w[at + i]) * (v[of_key + j] + rwkv_vector(l, "time_mix_value.bias", of_key + j));
                y[at + j] += (r[at + i] + rwkv_vector(l, "time_mix_receptance.bias", at + i)) / sqrt(HEAD) * *s;
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
            x[i] = rwkv_vector(-1, "token_embd.weight", ids[t] * N + i);
        for (int l = 0; l < LAYERS; l++)
            for (int part = 0; part < 2; part++) {
                memcpy(in, x, sizeof in);
                rms(l, part ? "ffn_norm" : "attn_norm", in);
                if (part)
                    qwen_feed_forward(l, in, delta);
                else if (six)
                    time_mix_gla(l, &memory[l], in, delta);
                else
                    time_mix(l, &memory[l], in, arwkv_head_norms ? 64e-5 : 0, v_first, delta);
                for (int i = 0; i < N; i++)
                    x[i] += delta[i];
            }
        rms(-1, "output_norm", x);
        product(-1, "output.weight", x, logits + t * VOCAB);
    }
}

void arwkv_compute(const int32_t *ids, int n, double *logits)
{
    compute_qwen(ids, n, false, logits);
}

void qrwkv_compute(const int32_t *ids, int n, double *logits)
{
    compute_qwen(ids, n, true, logits);
}
