/* sambay_model.c - a small model in the form of Phi 4 mini Flash (arXiv 2507.06607). Its formulas follow the reference:
 * the two kinds of heads of differential attention are interleaved. Matrices that folders fuse are separate here. */
#include "tests/sambay_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/safetensors.h"
#include "tests/gguf_file.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { N = 64, HEADS = 8, KEY_HEADS = 4, HEAD = N / HEADS, FF = 96, LAYERS = 8, MIDDLE = LAYERS / 2, INNER = 2 * N,
       STATE = 16, RANK = 4, TAPS = 4, MOST = 160 };

static struct array arrays[MOST];
static int n_arrays;
static uint32_t random_state;

static void add(int l, const char *kind, int64_t rows, int64_t cols, float middle, float range)
{
    assert_true(n_arrays < MOST);
    array_make(&arrays[n_arrays++], l, kind, 0, rows, cols, middle, range, &random_state);
}

static void add_norm(int l, const char *kind)
{
    char name[48];
    snprintf(name, sizeof name, "%s.weight", kind);
    add(l, name, 0, N, 1, 0.3f);
    snprintf(name, sizeof name, "%s.bias", kind);
    add(l, name, 0, N, 0, 0.3f);
}

static void add_biased(int l, const char *kind, int64_t rows, int64_t cols)
{
    char name[48];
    snprintf(name, sizeof name, "%s.weight", kind);
    add(l, name, rows, cols, 0, 0.3f);
    snprintf(name, sizeof name, "%s.bias", kind);
    add(l, name, 0, rows, 0, 0.3f);
}

static bool is_scan(int l)
{
    return l % 2 == 0 && l <= MIDDLE;
}

static bool is_gate(int l)
{
    return l % 2 == 0 && l > MIDDLE;
}

static bool has_keys(int l)
{
    return l % 2 == 1 && l <= MIDDLE + 1;
}

void sambay_make(void)
{
    static const char *const numbers[] = {"q1", "k1", "q2", "k2"};
    random_state = 7;
    n_arrays = 0;
    add(-1, "token_embd.weight", SAMBAY_VOCAB, N, 0, 1);
    add_norm(-1, "output_norm");
    for (int l = 0; l < LAYERS; l++) {
        add_norm(l, "attn_norm");
        add_norm(l, "ffn_norm");
        add(l, "ffn_gate.weight", FF, N, 0, 0.3f);
        add(l, "ffn_up.weight", FF, N, 0, 0.3f);
        add(l, "ffn_down.weight", N, FF, 0, 0.2f);
        if (is_scan(l)) {
            add(l, "ssm_in.weight", 2 * INNER, N, 0, 0.3f);
            add(l, "ssm_conv1d.weight", INNER, TAPS, 0, 0.5f);
            add(l, "ssm_conv1d.bias", 0, INNER, 0, 0.3f);
            add(l, "ssm_x.weight", RANK + 2 * STATE, INNER, 0, 0.2f);
            add_biased(l, "ssm_dt", INNER, RANK);
            add(l, "ssm_a", INNER, STATE, -0.6f, 0.4f);
            add(l, "ssm_d", 0, INNER, 1, 0.5f);
            add(l, "ssm_out.weight", N, INNER, 0, 0.2f);
        } else if (is_gate(l)) {
            add(l, "ssm_in.weight", INNER, N, 0, 0.3f);
            add(l, "attn_output.weight", N, INNER, 0, 0.2f);
        } else {
            add_biased(l, "attn_q", N, N);
            if (has_keys(l)) {
                add_biased(l, "attn_k", KEY_HEADS * HEAD, N);
                add_biased(l, "attn_v", KEY_HEADS * HEAD, N);
            }
            add_biased(l, "attn_output", N, N);
            add(l, "attn_sub_norm.weight", 0, 2 * HEAD, 1, 0.4f);
            for (int i = 0; i < 4; i++) {
                char name[24];
                snprintf(name, sizeof name, "attn_lambda_%s", numbers[i]);
                add(l, name, 0, HEAD, 0, 0.4f);
            }
        }
    }
}

void sambay_drop(void)
{
    while (n_arrays > 0)
        pp_free(arrays[--n_arrays].values);
}

static const struct array *find(int l, const char *kind)
{
    const int i = small_find(arrays[0].name, sizeof *arrays, n_arrays, l, kind, "");
    if (i < 0)
        fail_msg("no %s in layer %d", kind, l);
    return &arrays[i];
}

const char *sambay_file(void)
{
    static const struct {
        const char *key;
        uint32_t v;
    } numbers[] = {{"block_count", LAYERS}, {"context_length", 256}, {"embedding_length", N},
                   {"feed_forward_length", FF}, {"attention.head_count", HEADS}, {"attention.head_count_kv", KEY_HEADS},
                   {"attention.sliding_window", SAMBAY_WINDOW}, {"ssm.conv_kernel", TAPS}, {"ssm.state_size", STATE},
                   {"ssm.time_step_rank", RANK}, {"ssm.inner_size", INNER}, {"vocab_size", SAMBAY_VOCAB}};
    const char *path = fresh_path("sambay.gguf");
    struct pp_tensor tensors[MOST];
    char key[64];
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", "phi4flash");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "phi4flash.%s", numbers[i].key);
        pp_gguf_add_u32(w, key, numbers[i].v);
    }
    pp_gguf_add_f32(w, "phi4flash.attention.layer_norm_epsilon", 1e-5f);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
    for (int i = 0; i < n_arrays; i++)
        tensors[i] = array_tensor(&arrays[i]);
    gguf_file_end(w, tensors, (size_t)n_arrays);
    return path;
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

/* The folder's name of each tensor, and the tensors of the GGUF file whose rows it concatenates. */
static const struct {
    const char *theirs, *ours[3];
} of_layers[] = {
    {"input_layernorm.weight", {"attn_norm.weight"}}, {"input_layernorm.bias", {"attn_norm.bias"}},
    {"post_attention_layernorm.weight", {"ffn_norm.weight"}}, {"post_attention_layernorm.bias", {"ffn_norm.bias"}},
    {"mlp.fc1.weight", {"ffn_gate.weight", "ffn_up.weight"}}, {"mlp.fc2.weight", {"ffn_down.weight"}},
    {"attn.in_proj.weight", {"ssm_in.weight"}}, {"attn.conv1d.weight", {"ssm_conv1d.weight"}},
    {"attn.conv1d.bias", {"ssm_conv1d.bias"}}, {"attn.x_proj.weight", {"ssm_x.weight"}},
    {"attn.dt_proj.weight", {"ssm_dt.weight"}}, {"attn.dt_proj.bias", {"ssm_dt.bias"}}, {"attn.A_log", {"ssm_a"}},
    {"attn.D", {"ssm_d"}}, {"attn.out_proj.weight", {"ssm_out.weight"}},
    {"attn.out_proj.weight", {"attn_output.weight"}}, {"attn.out_proj.bias", {"attn_output.bias"}},
    {"attn.Wqkv.weight", {"attn_q.weight", "attn_k.weight", "attn_v.weight"}},
    {"attn.Wqkv.bias", {"attn_q.bias", "attn_k.bias", "attn_v.bias"}},
    {"attn.inner_cross_attn.subln.weight", {"attn_sub_norm.weight"}},
    {"attn.inner_cross_attn.lambda_q1", {"attn_lambda_q1"}}, {"attn.inner_cross_attn.lambda_k1", {"attn_lambda_k1"}},
    {"attn.inner_cross_attn.lambda_q2", {"attn_lambda_q2"}}, {"attn.inner_cross_attn.lambda_k2", {"attn_lambda_k2"}},
};
enum { OF_LAYER = sizeof of_layers / sizeof *of_layers, OTHERS = 3 };

static bool has(int l, const char *kind)
{
    return small_find(arrays[0].name, sizeof *arrays, n_arrays, l, kind, "") >= 0;
}

/* The folder's tensor that consists of `ours`. The caller frees its values. */
static struct pp_tensor in_their_form(int l, const char *const ours[3])
{
    float *values = pp_malloc((size_t)(2 * INNER * N) * sizeof *values);
    struct pp_tensor t = {.type = PP_TYPE_F32, .data = values, .ne = {1, 1, 1, 1}};
    int64_t n = 0;
    for (int i = 0; i < 3 && ours[i] && (i == 0 || has(l, ours[i])); i++) {
        const struct array *a = find(l, ours[i]);
        const int64_t more = array_size(a);
        memcpy(values + n, a->values, (size_t)more * sizeof *values);
        n += more;
        t.n_dims = a->rows ? 2 : 1;
        t.ne[0] = a->rows ? a->cols : n;
        t.ne[1] = a->rows ? n / a->cols : 1;
    }
    if (strcmp(ours[0], "ssm_conv1d.weight") == 0) {
        t.n_dims = 3;
        t.ne[2] = t.ne[1];
        t.ne[1] = 1;
    }
    for (int64_t i = 0; strcmp(ours[0], "ssm_a") == 0 && i < n; i++)
        values[i] = logf(-values[i]);
    t.size = (size_t)n * sizeof *values;
    return t;
}

const char *sambay_folder(const char *sliding_window)
{
    static const char *const others[OTHERS][2] = {{"model.embed_tokens.weight", "token_embd.weight"},
                                                  {"model.final_layernorm.weight", "output_norm.weight"},
                                                  {"model.final_layernorm.bias", "output_norm.bias"}};
    const char *dir = fresh_path("sambay");
    struct pp_tensor list[OTHERS + LAYERS * OF_LAYER];
    char names[OTHERS + LAYERS * OF_LAYER][80], path[400], config[900];
    struct pp_error err;
    size_t n = 0;
    for (int i = 0; i < OTHERS; i++) {
        list[n] = in_their_form(-1, (const char *const[3]){others[i][1]});
        snprintf(names[n++], sizeof names[0], "%s", others[i][0]);
    }
    for (int i = 0; i < LAYERS * OF_LAYER; i++) {
        const int l = i / OF_LAYER, k = i % OF_LAYER;
        if (!has(l, of_layers[k].ours[0]))
            continue;
        list[n] = in_their_form(l, of_layers[k].ours);
        snprintf(names[n++], sizeof names[0], "model.layers.%d.%s", l, of_layers[k].theirs);
    }
    for (size_t i = 0; i < n; i++)
        list[i].name = names[i];
    snprintf(config, sizeof config, "{\"architectures\": [\"Phi4FlashForCausalLM\"], \"model_type\": \"phi4flash\", "
             "\"vocab_size\": %d, \"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d, "
             "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"max_position_embeddings\": 256, "
             "\"layer_norm_eps\": 1e-05, \"mb_per_layer\": 2, \"sliding_window\": %s, \"mamba_d_state\": %d, "
             "\"mamba_d_conv\": %d, \"mamba_expand\": 2, \"mamba_dt_rank\": %d, \"tie_word_embeddings\": true}",
             SAMBAY_VOCAB, N, FF, LAYERS, HEADS, KEY_HEADS, sliding_window, STATE, TAPS, RANK);
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, n, &err), err);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
    for (size_t i = 0; i < n; i++)
        pp_free((void *)(uintptr_t)list[i].data);
    return dir;
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

static double silu(double v)
{
    return v / (1 + exp(-v));
}

/* y = W x + b, if there is a bias */
static void multiply(int l, const char *kind, const double *x, double *y)
{
    char name[48];
    snprintf(name, sizeof name, "%s.weight", kind);
    const struct array *w = find(l, name);
    snprintf(name, sizeof name, "%s.bias", kind);
    const struct array *bias = has(l, name) ? find(l, name) : NULL;
    for (int64_t r = 0; r < w->rows; r++)
        y[r] = small_dot(w->values + r * w->cols, x, w->cols) + (bias ? (double)bias->values[r] : 0);
}

static void layer_norm(int l, const char *kind, const double *x, double *y)
{
    char name[48];
    double mean = 0, square = 0;
    snprintf(name, sizeof name, "%s.weight", kind);
    const struct array *w = find(l, name);
    snprintf(name, sizeof name, "%s.bias", kind);
    const struct array *b = find(l, name);
    for (int i = 0; i < N; i++)
        mean += x[i] / N;
    for (int i = 0; i < N; i++)
        square += (x[i] - mean) * (x[i] - mean) / N;
    for (int i = 0; i < N; i++)
        y[i] = (x[i] - mean) / sqrt(square + 1e-5) * (double)w->values[i] + (double)b->values[i];
}

/* Mamba over the normalised inputs of all positions. scanned: [n][INNER], the scan's output before the gate. */
static void scan(int l, const double *normalised, int n, double *scanned, double *out)
{
    const struct array *taps = find(l, "ssm_conv1d.weight"), *bias = find(l, "ssm_conv1d.bias");
    const struct array *a = find(l, "ssm_a"), *direct = find(l, "ssm_d");
    double *both = doubles(n * 2 * INNER), *state = doubles(INNER * STATE);
    for (int t = 0; t < n; t++) {
        double u[INNER], small[RANK + 2 * STATE], step[INNER], gated[INNER];
        multiply(l, "ssm_in", normalised + t * N, both + t * 2 * INNER);
        for (int c = 0; c < INNER; c++) {
            double sum = (double)bias->values[c];
            for (int i = 0; i < TAPS && i <= t; i++)
                sum += (double)taps->values[c * TAPS + TAPS - 1 - i] * both[(t - i) * 2 * INNER + c];
            u[c] = silu(sum);
        }
        multiply(l, "ssm_x", u, small);
        multiply(l, "ssm_dt", small, step);
        for (int c = 0; c < INNER; c++) {
            const double dt = log1p(exp(step[c]));
            double y = (double)direct->values[c] * u[c];
            for (int k = 0; k < STATE; k++) {
                double *s = &state[c * STATE + k];
                *s = *s * exp(dt * (double)a->values[c * STATE + k]) + dt * small[RANK + k] * u[c];
                y += *s * small[RANK + STATE + k];
            }
            scanned[t * INNER + c] = y;
            gated[c] = y * silu(both[t * 2 * INNER + INNER + c]);
        }
        multiply(l, "ssm_out", gated, out + t * N);
    }
    pp_free(both);
    pp_free(state);
}

static double factor(int l, const char *q, const char *k)
{
    const struct array *a = find(l, q), *b = find(l, k);
    double sum = 0;
    for (int i = 0; i < HEAD; i++)
        sum += (double)a->values[i] * (double)b->values[i];
    return exp(sum);
}

/* Attention of query head h with the keys of head hk and the values of head hv. */
static void attend(const double *q, const double *k, const double *v, int h, int hk, int hv, int first, int t,
                   double *out)
{
    double weights[SMALL_TEXT], sum = 0;
    for (int s = first; s <= t; s++) {
        double score = 0;
        for (int i = 0; i < HEAD; i++)
            score += q[h * HEAD + i] * k[(s * KEY_HEADS + hk) * HEAD + i];
        sum += weights[s] = exp(score / sqrt(HEAD));
    }
    for (int i = 0; i < HEAD; i++) {
        out[i] = 0;
        for (int s = first; s <= t; s++)
            out[i] += weights[s] / sum * v[(s * KEY_HEADS + hv) * HEAD + i];
    }
}

/* Differential attention. k, v: [n][KEY_HEADS][HEAD], computed here, or left there by the layer whose cache is
 * shared. */
static void difference(int l, const double *normalised, int n, double *k, double *v, double *out)
{
    const double begin = 0.8 - 0.6 * exp(-0.3 * l);
    const double taken = factor(l, "attn_lambda_q1", "attn_lambda_k1") - factor(l, "attn_lambda_q2", "attn_lambda_k2") +
                         begin;
    const struct array *weight = find(l, "attn_sub_norm.weight");
    for (int t = 0; t < n && has_keys(l); t++) {
        multiply(l, "attn_k", normalised + t * N, k + t * KEY_HEADS * HEAD);
        multiply(l, "attn_v", normalised + t * N, v + t * KEY_HEADS * HEAD);
    }
    for (int t = 0; t < n; t++) {
        const int first = l < MIDDLE && t >= SAMBAY_WINDOW ? t - SAMBAY_WINDOW + 1 : 0;
        double q[N], all[N];
        multiply(l, "attn_q", normalised + t * N, q);
        for (int p = 0; p < HEADS / 2; p++) { /* query heads 2 p and 2 p + 1 with their key heads */
            const int pk = p / (HEADS / KEY_HEADS);
            double *pair = all + 2 * p * HEAD, square = 0, second[2 * HEAD];
            for (int i = 0; i < 2; i++) {
                attend(q, k, v, 2 * p, 2 * pk, 2 * pk + i, first, t, pair + i * HEAD);
                attend(q, k, v, 2 * p + 1, 2 * pk + 1, 2 * pk + i, first, t, second + i * HEAD);
            }
            for (int i = 0; i < 2 * HEAD; i++) {
                pair[i] -= taken * second[i];
                square += pair[i] * pair[i] / (2 * HEAD);
            }
            for (int i = 0; i < 2 * HEAD; i++)
                pair[i] *= (1 - begin) * (double)weight->values[i] / sqrt(square + 1e-5);
        }
        multiply(l, "attn_output", all, out + t * N);
    }
}

void sambay_compute(const int32_t *ids, int n, double *logits)
{
    const struct array *embd = find(-1, "token_embd.weight");
    double *x = doubles(n * N), *normalised = doubles(n * N), *out = doubles(n * N), *memory = doubles(n * INNER);
    double *k = doubles(n * KEY_HEADS * HEAD), *v = doubles(n * KEY_HEADS * HEAD);
    for (int i = 0; i < n * N; i++)
        x[i] = (double)embd->values[ids[i / N] * N + i % N];
    for (int l = 0; l < LAYERS; l++) {
        for (int t = 0; t < n; t++)
            layer_norm(l, "attn_norm", x + t * N, normalised + t * N);
        if (is_scan(l))
            scan(l, normalised, n, memory, out); /* `memory` keeps the middle layer's */
        else if (!is_gate(l))
            difference(l, normalised, n, k, v, out);
        for (int t = 0; t < n; t++) {
            double gate[INNER], up[FF], act[FF], y[N];
            if (is_gate(l)) {
                multiply(l, "ssm_in", normalised + t * N, gate);
                for (int c = 0; c < INNER; c++)
                    gate[c] = silu(gate[c]) * memory[t * INNER + c];
                multiply(l, "attn_output", gate, out + t * N);
            }
            for (int i = 0; i < N; i++)
                x[t * N + i] += out[t * N + i];
            layer_norm(l, "ffn_norm", x + t * N, y);
            multiply(l, "ffn_gate", y, act);
            multiply(l, "ffn_up", y, up);
            for (int i = 0; i < FF; i++)
                act[i] = silu(act[i]) * up[i];
            multiply(l, "ffn_down", act, y);
            for (int i = 0; i < N; i++)
                x[t * N + i] += y[i];
        }
    }
    for (int t = 0; t < n; t++) {
        double y[N];
        layer_norm(-1, "output_norm", x + t * N, y);
        for (int i = 0; i < SAMBAY_VOCAB; i++)
            logits[t * SAMBAY_VOCAB + i] = small_dot(embd->values + i * N, y, N);
    }
    pp_free(x);
    pp_free(normalised);
    pp_free(out);
    pp_free(memory);
    pp_free(k);
    pp_free(v);
}
