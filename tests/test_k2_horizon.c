/* test_k2_horizon.c - K2 Horizon, which has experts for feed-forward parts and for attention's values: small random
 * models against their formulas in double precision, from folders as published and as MLX writes them, and from the
 * files converted from those, with keys and tensors as from llama.cpp's converter. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/gguf.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/adapter_folder.h"
#include "tests/gguf_file.h"
#include "tests/passes.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { VOCAB = 70, N = 64, HEADS = 4, KV_HEADS = 2, HEAD = 16, Q = HEADS * HEAD, KV = KV_HEADS * HEAD, FF = 96,
       LAYERS = 3, EXPERTS = 6, USED = 2, EXPERT_FF = 32, VALUES = 5, VALUES_USED = 3, MOST = 80,
       MOST_TENSORS = MOST + LAYERS * (3 * EXPERTS + VALUES) };
static const double BASE = 10000, EPS = 1e-6;

/* Features that models of the family may have; the first layer has no experts. */
static const struct kind {
    bool softmax, biased, gated, head_norms, shared;
    int groups;
    double scale; /* 0: none */
    const char *config;
} published = {false, true, true, true, true, 2, 2.5,
               "\"layernorm_num_groups\": 2, \"router_scaling_factor\": 2.5, \"router_score_func\": \"sigmoid\", "
               "\"attention_gate_func\": \"softplus\", \"query_key_norm\": true, \"num_shared_experts\": 1, "
               "\"mlp_only_layers\": [0], \"decoder_sparse_step\": 1, \"rope_head_dim\": 16, \"moe_gate_bias\": true"},
  plain = {true, false, false, false, false, 1, 0,
           "\"layernorm_num_groups\": 1, \"router_scaling_factor\": null, \"router_score_func\": \"softmax\", "
           "\"attention_gate_func\": null, \"query_key_norm\": false, \"num_shared_experts\": 0, "
           "\"num_dense_layers\": 1, \"moe_gate_bias\": false"};

static struct array arrays[MOST];
static int n_arrays;

static void put(int l, const char *kind, int64_t n, int64_t rows, int64_t cols, float middle, float spread,
                uint32_t *random)
{
    char name[48];
    assert_true(n_arrays < MOST);
    snprintf(name, sizeof name, l < 0 ? "%.3s%.40s" : "layers.%.3s.%.36s", l < 0 ? "" : (char[]){(char)('0' + l), 0},
             kind);
    array_make(&arrays[n_arrays++], -1, name, n, rows, cols, middle, spread, random);
}

static void make(const struct kind *k)
{
    uint32_t random = 21;
    n_arrays = 0;
    put(-1, "embed_tokens", 0, VOCAB, N, 0, 1, &random);
    put(-1, "norm", 0, 0, N, 1, 0.2f, &random);
    put(-1, "lm_head", 0, VOCAB, N, 0, 0.3f, &random);
    for (int l = 0; l < LAYERS; l++) {
        put(l, "input_layernorm", 0, 0, N, 1, 0.2f, &random);
        put(l, "post_attention_layernorm", 0, 0, N, 1, 0.2f, &random);
        put(l, "self_attn.q_proj", 0, Q, N, 0, 0.3f, &random);
        put(l, "self_attn.k_proj", 0, KV, N, 0, 0.3f, &random);
        put(l, "self_attn.o_proj", 0, N, Q, 0, 0.3f, &random);
        if (k->head_norms) {
            put(l, "self_attn.q_norm", 0, 0, Q, 1, 0.5f, &random);
            put(l, "self_attn.k_norm", 0, 0, KV, 1, 0.5f, &random);
        }
        if (k->gated)
            put(l, "self_attn.gate_proj", 0, Q, N, 0, 0.5f, &random);
        if (!l) {
            put(l, "self_attn.v_proj", 0, KV, N, 0, 0.3f, &random);
            put(l, "mlp.gate_proj", 0, FF, N, 0, 0.2f, &random);
            put(l, "mlp.up_proj", 0, FF, N, 0, 0.2f, &random);
            put(l, "mlp.down_proj", 0, N, FF, 0, 0.2f, &random);
            continue;
        }
        put(l, "self_attn.v_router", 0, VALUES, N, 0, 0.3f, &random);
        put(l, "self_attn.v_experts", VALUES, KV, N, 0, 0.3f, &random);
        put(l, "mlp.gate", 0, EXPERTS, N, 0, 0.3f, &random);
        put(l, "mlp.experts.gate_proj", EXPERTS, EXPERT_FF, N, 0, 0.2f, &random);
        put(l, "mlp.experts.up_proj", EXPERTS, EXPERT_FF, N, 0, 0.2f, &random);
        put(l, "mlp.experts.down_proj", EXPERTS, N, EXPERT_FF, 0, 0.2f, &random);
        if (k->biased) {
            put(l, "self_attn.v_router.bias", 0, 0, VALUES, 0, 0.6f, &random);
            put(l, "mlp.gate.bias", 0, 0, EXPERTS, 0, 0.6f, &random);
        }
        if (!k->shared)
            continue;
        put(l, "mlp.shared_experts.gate_proj", 0, EXPERT_FF, N, 0, 0.2f, &random);
        put(l, "mlp.shared_experts.up_proj", 0, EXPERT_FF, N, 0, 0.2f, &random);
        put(l, "mlp.shared_experts.down_proj", 0, N, EXPERT_FF, 0, 0.2f, &random);
    }
}

static void drop(void)
{
    for (int i = 0; i < n_arrays; i++)
        pp_free(arrays[i].values);
}

static const float *of(int l, const char *kind)
{
    for (int i = 0; i < n_arrays; i++) {
        const char *name = arrays[i].name;
        if (l < 0 ? strcmp(name, kind) == 0
                  : strncmp(name, "layers.", 7) == 0 && name[7] == '0' + l && strcmp(name + 9, kind) == 0)
            return arrays[i].values;
    }
    fail_msg("no %s", kind);
    return NULL;
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

/* RMSNorm of each of `groups` equal parts of x; y may be x. */
static void norm(const double *x, const float *w, int n, int groups, double *y)
{
    const int each = n / groups;
    for (int g = 0; g < groups; g++) {
        double square = 0;
        for (int i = g * each; i < (g + 1) * each; i++)
            square += x[i] * x[i] / each;
        for (int i = g * each; i < (g + 1) * each; i++)
            y[i] = (double)w[i] * x[i] / sqrt(square + EPS);
    }
}

static double silu(double v)
{
    return v / (1 + exp(-v));
}

static void rotate(double *x, int n_heads, int position)
{
    for (int h = 0; h < n_heads; h++)
        for (int i = 0; i < HEAD / 2; i++) {
            double *head = x + h * HEAD;
            const double angle = position * pow(BASE, -2.0 * i / HEAD), a = head[i], b = head[i + HEAD / 2];
            head[i] = a * cos(angle) - b * sin(angle);
            head[i + HEAD / 2] = b * cos(angle) + a * sin(angle);
        }
}

/* weight[e] for each of n experts; 0 if it is not chosen. */
static void route(const struct kind *k, const float *router, const float *bias, int n, int used, const double *in,
                  double *weight)
{
    double score[EXPERTS], sum = 0;
    bool chosen[EXPERTS] = {false};
    small_product(router, in, n, N, score);
    for (int e = 0; e < n; e++)
        sum += exp(score[e]);
    for (int e = 0; e < n; e++)
        score[e] = k->softmax ? exp(score[e]) / sum : 1 / (1 + exp(-score[e]));
    sum = 0;
    for (int u = 0; u < used; u++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!chosen[e] && (best < 0 || score[e] + (bias ? (double)bias[e] : 0) >
                                               score[best] + (bias ? (double)bias[best] : 0)))
                best = e;
        chosen[best] = true;
        sum += score[best];
    }
    for (int e = 0; e < n; e++)
        weight[e] = chosen[e] ? score[e] / sum * (k->scale > 0 ? k->scale : 1) : 0;
}

static void feed_forward(const float *gate, const float *up, const float *down, int n_ff, const double *in,
                         double *out)
{
    double a[FF], b[FF];
    small_product(gate, in, n_ff, N, a);
    small_product(up, in, n_ff, N, b);
    for (int i = 0; i < n_ff; i++)
        a[i] = silu(a[i]) * b[i];
    small_product(down, a, N, n_ff, out);
}

static void values_of(const struct kind *k, int l, const double *in, double *v)
{
    double weight[EXPERTS], one[KV];
    if (!l) {
        small_product(of(l, "self_attn.v_proj"), in, KV, N, v);
        return;
    }
    route(k, of(l, "self_attn.v_router"), k->biased ? of(l, "self_attn.v_router.bias") : NULL, VALUES, VALUES_USED, in,
          weight);
    memset(v, 0, KV * sizeof *v);
    for (int e = 0; e < VALUES; e++) {
        small_product(of(l, "self_attn.v_experts") + e * KV * N, in, KV, N, one);
        for (int i = 0; i < KV; i++)
            v[i] += weight[e] * silu(one[i]);
    }
}

static void add_mixture(const struct kind *k, int l, const double *in, double *x)
{
    double weight[EXPERTS], one[N];
    route(k, of(l, "mlp.gate"), k->biased ? of(l, "mlp.gate.bias") : NULL, EXPERTS, USED, in, weight);
    for (int e = 0; e < EXPERTS; e++) {
        const int at = e * EXPERT_FF * N;
        if (weight[e] <= 0)
            continue;
        feed_forward(of(l, "mlp.experts.gate_proj") + at, of(l, "mlp.experts.up_proj") + at,
                     of(l, "mlp.experts.down_proj") + at, EXPERT_FF, in, one);
        for (int i = 0; i < N; i++)
            x[i] += weight[e] * one[i];
    }
    if (!k->shared)
        return;
    feed_forward(of(l, "mlp.shared_experts.gate_proj"), of(l, "mlp.shared_experts.up_proj"),
                 of(l, "mlp.shared_experts.down_proj"), EXPERT_FF, in, one);
    for (int i = 0; i < N; i++)
        x[i] += one[i];
}

static void layer(const struct kind *k, int l, int r, double *keys, double *values, double *x)
{
    double in[N], q[Q], att[Q], gates[Q], delta[N];
    norm(x, of(l, "input_layernorm"), N, k->groups, in);
    small_product(of(l, "self_attn.q_proj"), in, Q, N, q);
    small_product(of(l, "self_attn.k_proj"), in, KV, N, keys + r * KV);
    values_of(k, l, in, values + r * KV);
    if (k->head_norms) {
        norm(q, of(l, "self_attn.q_norm"), Q, HEADS, q);
        norm(keys + r * KV, of(l, "self_attn.k_norm"), KV, KV_HEADS, keys + r * KV);
    }
    rotate(q, HEADS, r);
    rotate(keys + r * KV, KV_HEADS, r);
    for (int h = 0; h < HEADS; h++) {
        const int shared = h * KV_HEADS / HEADS * HEAD;
        attend_query(q + h * HEAD, keys + shared, values + shared, 0, r, HEAD, KV, 1 / sqrt(HEAD), 0, att + h * HEAD);
    }
    if (k->gated)
        small_product(of(l, "self_attn.gate_proj"), in, Q, N, gates);
    for (int i = 0; k->gated && i < Q; i++)
        att[i] *= log2(1 + pow(2, gates[i]));
    small_product(of(l, "self_attn.o_proj"), att, N, Q, delta);
    for (int i = 0; i < N; i++)
        x[i] += delta[i];
    norm(x, of(l, "post_attention_layernorm"), N, k->groups, in);
    if (l) {
        add_mixture(k, l, in, x);
        return;
    }
    feed_forward(of(l, "mlp.gate_proj"), of(l, "mlp.up_proj"), of(l, "mlp.down_proj"), FF, in, delta);
    for (int i = 0; i < N; i++)
        x[i] += delta[i];
}

/* [SMALL_TEXT, VOCAB]; pp_free */
static double *wanted(const struct kind *k)
{
    enum { OF = SMALL_TEXT * KV };
    double *logits = doubles(SMALL_TEXT * VOCAB), *keys = doubles(LAYERS * OF), *values = doubles(LAYERS * OF);
    double x[N], out[N];
    int32_t ids[SMALL_TEXT];
    small_text(ids, VOCAB);
    for (int r = 0; r < SMALL_TEXT; r++) {
        for (int i = 0; i < N; i++)
            x[i] = (double)of(-1, "embed_tokens")[ids[r] * N + i];
        for (int l = 0; l < LAYERS; l++)
            layer(k, l, r, keys + l * OF, values + l * OF, x);
        norm(x, of(-1, "norm"), N, k->groups, out);
        small_product(of(-1, "lm_head"), out, VOCAB, N, logits + r * VOCAB);
    }
    pp_free(keys);
    pp_free(values);
    return logits;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

#define CONFIG                                                                                                        \
    "\"architectures\": [\"K2HorizonForCausalLM\"], \"model_type\": \"k2_horizon\", \"vocab_size\": 70, "              \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "          \
    "\"num_key_value_heads\": 2, \"head_dim\": 16, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, "        \
    "\"rope_parameters\": {\"rope_theta\": 10000, \"rope_type\": \"default\"}, \"tie_word_embeddings\": false, "      \
    "\"num_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"norm_topk_prob\": true, "       \
    "\"mova_num_experts\": 5, \"mova_num_experts_per_tok\": 3"

static struct pp_tensor list[MOST_TENSORS];
static char tensor_names[MOST_TENSORS][100];
static size_t n_list;

static void add_tensor(const struct array *a, int64_t matrix, int64_t n, const char *name)
{
    assert_true(n_list < MOST_TENSORS);
    snprintf(tensor_names[n_list], sizeof *tensor_names, "%s", name);
    list[n_list] = float_tensor(tensor_names[n_list], a->values + matrix * a->rows * a->cols, a->cols, a->rows, n);
    n_list++;
}

/* Adds a tensor for each expert's matrix, or in MLX's form one for all of them. */
static void add_stack(const struct array *a, bool mlx)
{
    char name[100];
    const char *at = strstr(a->name, "experts"), *rest = at + strlen("experts");
    const int begin = (int)(at - a->name);
    if (mlx) {
        snprintf(name, sizeof name, "model.%.*s%s%s.weight", begin, a->name, *rest ? "switch_mlp" : "experts", rest);
        add_tensor(a, 0, a->matrices, name);
        return;
    }
    for (int e = 0; e < a->matrices; e++) {
        snprintf(name, sizeof name, "model.%.*sexperts.%d%s.weight", begin, a->name, e, rest);
        add_tensor(a, e, 0, name);
    }
}

static const char *folder(const struct kind *k, const char *more, bool mlx)
{
    const char *dir = fresh_path("k2");
    char path[400], text[2048], name[100];
    struct pp_error err;
    n_list = 0;
    for (int i = 0; i < n_arrays; i++) {
        const struct array *a = &arrays[i];
        const bool bias = strstr(a->name, ".bias") != NULL, head = strcmp(a->name, "lm_head") == 0;
        snprintf(name, sizeof name, "%s%.47s%s", head ? "" : "model.", a->name, bias ? "" : ".weight");
        if (a->matrices)
            add_stack(a, mlx);
        else
            add_tensor(a, 0, 0, name);
    }
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(text, sizeof text, "{%s%s, %s}", more, CONFIG, k->config); /* the first of two equal keys counts */
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, n_list, &err), err);
    return dir;
}

static void assert_file(const char *path)
{
    static const struct {
        const char *key;
        int64_t v;
    } numbers[] = {{"attention.group_norm_groups", 2}, {"attention.value_expert_count", 5},
                   {"attention.value_expert_used_count", 3}, {"expert_count", 6}, {"expert_used_count", 2},
                   {"expert_feed_forward_length", 32}, {"expert_shared_count", 1},
                   {"expert_shared_feed_forward_length", 32}, {"leading_dense_block_count", 1},
                   {"moe_every_n_layers", 1}, {"expert_gating_func", 2}, {"feed_forward_length", 96},
                   {"rope.dimension_count", 16}};
    static const struct {
        const char *name;
        int64_t ne[3];
    } tensors[] = {{"blk.2.attn_v_exps.weight", {N, KV, VALUES}}, {"blk.2.attn_v_gate.weight", {N, VALUES, 1}},
                   {"blk.1.attn_v_gate.bias", {VALUES, 1, 1}}, {"blk.1.exp_probs_b.bias", {EXPERTS, 1, 1}},
                   {"blk.1.attn_q_norm.weight", {Q, 1, 1}}, {"blk.0.attn_k_norm.weight", {KV, 1, 1}},
                   {"blk.0.attn_gate.weight", {N, Q, 1}}, {"blk.0.attn_v.weight", {N, KV, 1}},
                   {"blk.2.ffn_down_exps.weight", {EXPERT_FF, N, EXPERTS}},
                   {"blk.2.ffn_up_shexp.weight", {N, EXPERT_FF, 1}}, {"blk.0.ffn_up.weight", {N, FF, 1}}};
    struct pp_gguf *g;
    struct pp_error err;
    bool renormalised = false;
    assert_ok(pp_gguf_open(path, &g, &err), err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char key[100];
        int64_t v = -1;
        snprintf(key, sizeof key, "k2-horizon.%s", numbers[i].key);
        if (!pp_gguf_int(g, key, &v) || v != numbers[i].v)
            fail_msg("%s: %s is %lld, not %lld", path, key, (long long)v, (long long)numbers[i].v);
    }
    assert_true(pp_gguf_bool(g, "k2-horizon.expert_weights_norm", &renormalised) && renormalised);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const struct pp_tensor *t = pp_gguf_tensor(g, tensors[i].name);
        if (!t || t->ne[0] != tensors[i].ne[0] || t->ne[1] != tensors[i].ne[1] || t->ne[2] != tensors[i].ne[2])
            fail_msg("%s: %s is not there, or of another shape", path, tensors[i].name);
    }
    assert_null(pp_gguf_tensor(g, "blk.1.attn_v.weight"));
    pp_gguf_close(g);
}

static void published_models(void **state)
{
    const char *file = fresh_path("k2.gguf"), *quantised = fresh_path("k2-q8_0.gguf");
    struct pp_error err;
    (void)state;
    make(&published);
    double *want = wanted(&published);
    const char *dir = folder(&published, "", false);
    assert_logits(want, VOCAB, dir);
    assert_logits(want, VOCAB, folder(&published, "", true));
    assert_ok(pp_convert_to_gguf(dir, file, &(struct pp_convert_options){0}, &err), err);
    assert_file(file);
    const char *again = assert_logits_everywhere(want, VOCAB, file);
    assert_tensor(again, "model.layers.2.self_attn.v_experts.4.weight", 2, N);
    assert_tensor(again, "model.layers.2.self_attn.v_router.bias", 1, VALUES);
    assert_tensor(again, "model.layers.1.mlp.gate.bias", 1, EXPERTS);
    assert_tensor(again, "model.layers.1.self_attn.gate_proj.weight", 2, N);
    assert_tensor(again, "model.layers.1.self_attn.q_norm.weight", 1, Q);
    assert_same_bits(file, PP_KV_F32);
    assert_same_bits(file, PP_KV_Q8);
    assert_resumes(file, VOCAB);
    assert_goes_back(file, VOCAB);
    assert_true(small_likeness(dir, "q8_0", want, VOCAB) > 0.97); /* some rows use other experts */
    assert_ok(pp_quantize_file(file, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_file(quantised);
    assert_same_bits(quantised, PP_KV_F32);
    assert_true(small_likeness(quantised, NULL, want, VOCAB) > 0.97);
    pp_free(want);
    drop();
}

static void plain_models(void **state)
{
    const char *file = fresh_path("k2-plain.gguf");
    struct pp_error err;
    (void)state;
    make(&plain);
    double *want = wanted(&plain);
    const char *dir = folder(&plain, "", false);
    assert_logits(want, VOCAB, dir);
    assert_ok(pp_convert_to_gguf(dir, file, &(struct pp_convert_options){0}, &err), err);
    assert_logits_everywhere(want, VOCAB, file);
    pp_free(want);
    drop();
}

/* A LoRA of matrices of every kind, among them experts', with the names in folders. */
static void adapted(void **state)
{
    static const struct {
        int l;
        const char *kind;
        int64_t expert; /* or -1 */
        const char *module;
    } modules[] = {{0, "self_attn.v_proj", -1, "self_attn.v_proj"}, {1, "self_attn.q_proj", -1, "self_attn.q_proj"},
                   {1, "self_attn.gate_proj", -1, "self_attn.gate_proj"},
                   {1, "self_attn.v_experts", 0, "self_attn.v_experts.0"},
                   {1, "self_attn.v_experts", 3, "self_attn.v_experts.3"},
                   {2, "self_attn.v_experts", 4, "self_attn.v_experts.4"},
                   {2, "self_attn.v_router", -1, "self_attn.v_router"},
                   {2, "mlp.experts.up_proj", 1, "mlp.experts.1.up_proj"},
                   {2, "mlp.shared_experts.up_proj", -1, "mlp.shared_experts.up_proj"}};
    const char *file = fresh_path("k2-adapted.gguf"), *converted = fresh_path("k2-adapter.gguf");
    struct folder f = {.random = 3};
    struct pp_error err;
    (void)state;
    make(&published);
    const char *dir = folder(&published, "", false);
    assert_ok(pp_convert_to_gguf(dir, file, &(struct pp_convert_options){0}, &err), err);
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        char name[100];
        const float *w = of(modules[i].l, modules[i].kind);
        int a = 0;
        while (arrays[a].values != w)
            a++;
        const int64_t n_out = arrays[a].rows, n_in = arrays[a].cols;
        snprintf(name, sizeof name, "model.layers.%d.%s", modules[i].l, modules[i].module);
        const int64_t at = modules[i].expert < 0 ? 0 : modules[i].expert * n_out * n_in;
        folder_add_merged(&f, name, 2, 1.5, arrays[a].values + at, n_out, n_in);
    }
    double *want = wanted(&published);
    const char *adapter = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 3}");
    assert_adapted(dir, adapter, want, VOCAB, 1e-4);
    assert_adapted(file, adapter, want, VOCAB, 1e-4);
    assert_ok(pp_convert_to_gguf(adapter, converted, &(struct pp_convert_options){.base = dir}, &err), err);
    assert_adapted(file, converted, want, VOCAB, 1e-4);
    folder_empty(&f);
    pp_free(want);
    drop();
}

static void refused(void **state)
{
    static const char *const cases[][2] = {
        {"\"attention_gate_func\": \"silu\", ", "attention_gate_func"},
        {"\"rope_head_dim\": 8, ", "rope_head_dim"},
        {"\"use_sliding_window\": true, ", "use_sliding_window"},
        {"\"router_score_func\": \"sparsemax\", ", "router_score_func"},
        {"\"norm_topk_prob\": false, ", "add up to 1"},
        {"\"mlp_only_layers\": [1], ", "layer 1 has no experts"},
        {"\"decoder_sparse_step\": 2, ", "layer 2 has no experts"},
        {"\"mova_num_experts_per_tok\": 6, ", "experts of values used"},
        {"\"mova_num_experts\": -1, ", "experts of values"},
        {"\"mova_num_experts\": 9007199254740991, ", "experts of values"},
    };
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    make(&published);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(pp_source_open(folder(&published, cases[i][0], false), &s, &err), PP_OK);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], err.text);
    }
    drop();
}

TEST_GROUP(k2_horizon)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_models), cmocka_unit_test(plain_models),
                                       cmocka_unit_test(adapted), cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("k2_horizon", tests, NULL, NULL);
}
