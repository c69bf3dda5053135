/* test_dots3.c - the text part of dots3-note: a small random model against its formulas in double precision, which
 * expand the keys and values of each head as published; from folders as published and as transformers writes them, and
 * from a file as llama.cpp's converter writes it. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/hf.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/gguf_file.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { VOCAB = 70, N = 64, LAYERS = 4, LOW = 32, ROPE = 8, FF = 96, EXPERTS = 6, USED = 2, EXPERT_FF = 32, SHARED = 32,
       INDEX_HEADS = 3, INDEX_DIM = 16, PICKED = 24, WINDOW = 20, MOST_ARRAYS = 140 };
static const double EPS = 1e-5, EXPERT_SCALE = 1.5;

/* The kinds of layers: without a window, and with one. */
static const struct kind {
    int heads, rank, nope, values;
    double base;
} kinds[2] = {{4, 32, 16, 16, 80000}, {2, 64, 24, 32, 500}};
static const bool windowed[LAYERS] = {false, false, true, true};
enum { MOST_HEADS = 4, MOST_RANK = 64, MOST_HEAD = 32 + ROPE };

static const struct kind *kind_of(int l)
{
    return &kinds[windowed[l]];
}

static struct array arrays[MOST_ARRAYS];
static int n_arrays;

/* "3.mlp.gate", or, if l is -1, the name itself */
static void full_name(int l, const char *name, char full[48])
{
    if (l < 0)
        snprintf(full, 48, "%s", name);
    else
        snprintf(full, 48, "%d.%s", l, name);
}

static void put(int l, const char *name, int64_t rows, int64_t cols, float middle, float spread, uint32_t *random)
{
    char full[48];
    full_name(l, name, full);
    assert_true(n_arrays < MOST_ARRAYS);
    array_make(&arrays[n_arrays++], -1, full, 0, rows, cols, middle, spread, random);
}

static const float *of(int l, const char *name)
{
    char full[48];
    full_name(l, name, full);
    for (int i = 0; i < n_arrays; i++)
        if (strcmp(arrays[i].name, full) == 0)
            return arrays[i].values;
    fail_msg("there is no %s", full);
    return NULL;
}

static void put_attention(int l, uint32_t *random)
{
    const struct kind *k = kind_of(l);
    put(l, "self_attn.q_a_proj", LOW, N, 0, 0.3f, random);
    put(l, "self_attn.q_a_layernorm", 0, LOW, 1, 0.2f, random);
    put(l, "self_attn.q_b_proj", k->heads * (k->nope + ROPE), LOW, 0, 0.3f, random);
    put(l, "self_attn.kv_a_proj_with_mqa", k->rank + ROPE, N, 0, 0.3f, random);
    put(l, "self_attn.kv_a_layernorm", 0, k->rank, 1, 0.2f, random);
    put(l, "self_attn.k_rope_only_layernorm", 0, ROPE, 2, 0.5f, random);
    put(l, "self_attn.kv_b_proj", k->heads * (k->nope + k->values), k->rank, 0, 0.3f, random);
    put(l, "self_attn.g_proj", k->heads, N, 0, 0.3f, random);
    put(l, "self_attn.o_proj", N, k->heads * k->values, 0, 0.2f, random);
    if (windowed[l])
        return;
    put(l, "self_attn.indexer.wq_b", INDEX_HEADS * INDEX_DIM, LOW, 0, 0.3f, random);
    put(l, "self_attn.indexer.wk", INDEX_DIM, N, 0, 0.3f, random);
    put(l, "self_attn.indexer.k_norm.weight", 0, INDEX_DIM, 1, 0.3f, random);
    put(l, "self_attn.indexer.k_norm.bias", 0, INDEX_DIM, 0, 0.3f, random);
    put(l, "self_attn.indexer.weights_proj", INDEX_HEADS, N, 0, 0.3f, random);
}

static void put_gated(int l, const char *name, int64_t n_ff, uint32_t *random)
{
    static const char *const parts[] = {"gate", "up", "down"};
    for (int i = 0; i < 3; i++) {
        char full[48];
        snprintf(full, sizeof full, "%s.%s_proj", name, parts[i]);
        put(l, full, i == 2 ? N : n_ff, i == 2 ? n_ff : N, 0, 0.3f, random);
    }
}

static void make(void)
{
    uint32_t random = 5;
    n_arrays = 0;
    put(-1, "embed_tokens", VOCAB, N, 0, 1, &random);
    put(-1, "norm", 0, N, 1, 0.2f, &random);
    put(-1, "lm_head", VOCAB, N, 0, 0.5f, &random);
    for (int l = 0; l < LAYERS; l++) {
        put(l, "input_layernorm", 0, N, 1, 0.2f, &random);
        put(l, "post_attention_layernorm", 0, N, 1, 0.2f, &random);
        put_attention(l, &random);
        if (l == 0) {
            put_gated(l, "mlp", FF, &random);
            continue;
        }
        put(l, "mlp.gate", EXPERTS, N, 0, 0.3f, &random);
        put(l, "mlp.gate.e_score_correction_bias", 0, EXPERTS, 0, 0.3f, &random);
        put_gated(l, "mlp.shared_experts", SHARED, &random);
        for (int e = 0; e < EXPERTS; e++) {
            char name[40];
            snprintf(name, sizeof name, "mlp.experts.%d", e);
            put_gated(l, name, EXPERT_FF, &random);
        }
    }
}

static void drop(void)
{
    for (int i = 0; i < n_arrays; i++)
        pp_free(arrays[i].values);
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

static void norm(const double *x, const float *w, int n, double growth, double *y)
{
    double square = 0;
    for (int i = 0; i < n; i++)
        square += x[i] * x[i] / n;
    for (int i = 0; i < n; i++)
        y[i] = growth * (double)w[i] * x[i] / sqrt(square + EPS);
}

/* RoPE of neighbouring pairs in the first ROPE values of a head. */
static void rotate(double *x, double base, int position)
{
    for (int i = 0; i < ROPE / 2; i++) {
        const double angle = position * pow(base, -2.0 * i / ROPE), a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos(angle) - b * sin(angle);
        x[2 * i + 1] = b * cos(angle) + a * sin(angle);
    }
}

/* What a layer caches for each position. */
struct kept {
    double latent[SMALL_TEXT][MOST_RANK], rotated[SMALL_TEXT][ROPE], index[SMALL_TEXT][INDEX_DIM];
};

/* The indexer's key of position r, and the positions that it picks. */
static void pick(int l, int r, const double *in, const double *low, struct kept *k, bool *seen)
{
    double key[INDEX_DIM], q[INDEX_HEADS * INDEX_DIM], w[INDEX_HEADS], score[SMALL_TEXT], mean = 0, square = 0;
    const float *weight = of(l, "self_attn.indexer.k_norm.weight"), *bias = of(l, "self_attn.indexer.k_norm.bias");
    small_product(of(l, "self_attn.indexer.wk"), in, INDEX_DIM, N, key);
    for (int i = 0; i < INDEX_DIM; i++)
        mean += key[i] / INDEX_DIM;
    for (int i = 0; i < INDEX_DIM; i++)
        square += (key[i] - mean) * (key[i] - mean) / INDEX_DIM;
    for (int i = 0; i < INDEX_DIM; i++)
        k->index[r][i] = (double)weight[i] * (key[i] - mean) / sqrt(square + 1e-6) + (double)bias[i];
    rotate(k->index[r], kinds[0].base, r);
    small_product(of(l, "self_attn.indexer.wq_b"), low, INDEX_HEADS * INDEX_DIM, LOW, q);
    small_product(of(l, "self_attn.indexer.weights_proj"), in, INDEX_HEADS, N, w);
    for (int h = 0; h < INDEX_HEADS; h++)
        rotate(q + h * INDEX_DIM, kinds[0].base, r);
    for (int j = 0; j <= r; j++) {
        score[j] = 0;
        for (int h = 0; h < INDEX_HEADS; h++)
            score[j] += w[h] * fmax(0, double_dot(q + h * INDEX_DIM, k->index[j], INDEX_DIM));
    }
    for (int j = 0; j <= r; j++) {
        int above = 0;
        for (int i = 0; i <= r; i++)
            above += score[i] > score[j] || (score[i] == score[j] && i < j);
        seen[j] = above < PICKED;
    }
}

/* A head's attention over the picked positions. */
static void attend(int l, int h, int r, double *q, const struct kept *k, const bool *seen, double *out)
{
    const struct kind *kind = kind_of(l);
    const float *both = of(l, "self_attn.kv_b_proj") + (int64_t)h * (kind->nope + kind->values) * kind->rank;
    double scores[SMALL_TEXT], largest = -INFINITY, sum = 0, keys[MOST_HEAD], values[MOST_HEAD];
    rotate(q + kind->nope, kind->base, r);
    for (int j = 0; j <= r; j++) {
        if (!seen[j])
            continue;
        small_product(both, k->latent[j], kind->nope, kind->rank, keys);
        scores[j] = (double_dot(q, keys, kind->nope) + double_dot(q + kind->nope, k->rotated[j], ROPE)) /
                    sqrt(kind->nope + ROPE);
        largest = fmax(largest, scores[j]);
    }
    memset(out, 0, (size_t)kind->values * sizeof *out);
    for (int j = 0; j <= r; j++) {
        if (!seen[j])
            continue;
        small_product(both + kind->nope * kind->rank, k->latent[j], kind->values, kind->rank, values);
        sum += exp(scores[j] - largest);
        for (int i = 0; i < kind->values; i++)
            out[i] += exp(scores[j] - largest) * values[i];
    }
    for (int i = 0; i < kind->values; i++)
        out[i] /= sum;
}

static void attention(int l, int r, struct kept *k, double *x)
{
    const struct kind *kind = kind_of(l);
    const int head = kind->nope + ROPE;
    double in[N], low[LOW], q[MOST_HEADS * MOST_HEAD], both[MOST_RANK + ROPE], gates[MOST_HEADS], delta[N];
    double att[MOST_HEADS * MOST_HEAD];
    bool seen[SMALL_TEXT];
    norm(x, of(l, "input_layernorm"), N, 1, in);
    small_product(of(l, "self_attn.q_a_proj"), in, LOW, N, low);
    norm(low, of(l, "self_attn.q_a_layernorm"), LOW, sqrt((double)N / LOW), low);
    small_product(of(l, "self_attn.q_b_proj"), low, kind->heads * head, LOW, q);
    small_product(of(l, "self_attn.kv_a_proj_with_mqa"), in, kind->rank + ROPE, N, both);
    norm(both, of(l, "self_attn.kv_a_layernorm"), kind->rank, sqrt((double)N / kind->rank), k->latent[r]);
    norm(both + kind->rank, of(l, "self_attn.k_rope_only_layernorm"), ROPE, 1, k->rotated[r]);
    rotate(k->rotated[r], kind->base, r);
    for (int j = 0; j <= r; j++)
        seen[j] = j > r - WINDOW;
    if (!windowed[l])
        pick(l, r, in, low, k, seen);
    small_product(of(l, "self_attn.g_proj"), in, kind->heads, N, gates);
    for (int h = 0; h < kind->heads; h++) {
        double *out = att + h * kind->values;
        attend(l, h, r, q + h * head, k, seen, out);
        for (int i = 0; i < kind->values; i++)
            out[i] /= 1 + exp(-gates[h]);
    }
    small_product(of(l, "self_attn.o_proj"), att, N, kind->heads * kind->values, delta);
    for (int i = 0; i < N; i++)
        x[i] += delta[i];
}

/* A gated feed-forward part: its output times w is added to x. */
static void gated(int l, const char *name, int n_ff, const double *in, double w, double *x)
{
    double gate[FF], up[FF], out[N];
    char full[64];
    snprintf(full, sizeof full, "%s.gate_proj", name);
    small_product(of(l, full), in, n_ff, N, gate);
    snprintf(full, sizeof full, "%s.up_proj", name);
    small_product(of(l, full), in, n_ff, N, up);
    for (int i = 0; i < n_ff; i++)
        up[i] *= gate[i] / (1 + exp(-gate[i]));
    snprintf(full, sizeof full, "%s.down_proj", name);
    small_product(of(l, full), up, N, n_ff, out);
    for (int i = 0; i < N; i++)
        x[i] += w * out[i];
}

static void feed_forward(int l, double *x)
{
    double in[N], router[EXPERTS], sum = 0;
    bool used[EXPERTS];
    norm(x, of(l, "post_attention_layernorm"), N, 1, in);
    if (l == 0) {
        gated(l, "mlp", FF, in, 1, x);
        return;
    }
    const float *bias = of(l, "mlp.gate.e_score_correction_bias");
    small_product(of(l, "mlp.gate"), in, EXPERTS, N, router);
    for (int e = 0; e < EXPERTS; e++)
        router[e] = 1 / (1 + exp(-router[e]));
    for (int e = 0; e < EXPERTS; e++) {
        int above = 0;
        for (int i = 0; i < EXPERTS; i++)
            above += router[i] + (double)bias[i] > router[e] + (double)bias[e];
        used[e] = above < USED;
        sum += used[e] ? router[e] : 0;
    }
    gated(l, "mlp.shared_experts", SHARED, in, 1, x);
    for (int e = 0; e < EXPERTS; e++) {
        char name[40];
        snprintf(name, sizeof name, "mlp.experts.%d", e);
        if (used[e])
            gated(l, name, EXPERT_FF, in, EXPERT_SCALE * router[e] / sum, x);
    }
}

/* [SMALL_TEXT, VOCAB]; pp_free */
static double *wanted(void)
{
    double *logits = doubles(SMALL_TEXT * VOCAB), x[N], out[N];
    struct kept *kept = pp_calloc(LAYERS, sizeof *kept);
    int32_t ids[SMALL_TEXT];
    assert_non_null(kept);
    small_text(ids, VOCAB);
    for (int r = 0; r < SMALL_TEXT; r++) {
        for (int i = 0; i < N; i++)
            x[i] = (double)of(-1, "embed_tokens")[ids[r] * N + i];
        for (int l = 0; l < LAYERS; l++) {
            attention(l, r, &kept[l], x);
            feed_forward(l, x);
        }
        norm(x, of(-1, "norm"), N, 1, out);
        small_product(of(-1, "lm_head"), out, VOCAB, N, logits + r * VOCAB);
    }
    pp_free(kept);
    return logits;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

#define TEXT                                                                                                          \
    "\"vocab_size\": 70, \"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 4, "                  \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"max_position_embeddings\": 512, "                      \
    "\"q_lora_rank\": 32, \"kv_lora_rank\": 32, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, "                  \
    "\"v_head_dim\": 16, \"index_n_heads\": 3, \"index_head_dim\": 16, \"index_topk\": 24, "                          \
    "\"n_routed_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "                            \
    "\"routed_scaling_factor\": 1.5, \"apply_mla_qkv_lora_rescale\": true"
#define PUBLISHED                                                                                                     \
    "\"architectures\": [\"Dots3NoteForConditionalGeneration\"], \"model_type\": \"dots3_note\", " TEXT               \
    ", \"head_dim\": 256, \"rope_theta\": 80000, \"rope_scaling\": null, \"use_dsa\": true, "                         \
    "\"k_rope_only_layernorm\": null, \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1, "                          \
    "\"swa_num_attention_heads\": 2, \"swa_q_lora_rank\": 32, \"swa_kv_lora_rank\": 64, "                             \
    "\"swa_qk_nope_head_dim\": 24, \"swa_qk_rope_head_dim\": 8, \"swa_v_head_dim\": 32, \"swa_head_dim\": 32, "       \
    "\"swa_rope_theta\": 500, \"sliding_window_size\": 20, \"vision_config\": {\"embed_dim\": 8}"
#define OF_LAYER                                                                                                      \
    "{\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"q_lora_rank\": 32, \"kv_lora_rank\": 64, "            \
    "\"head_dim\": 32, \"qk_nope_head_dim\": 24, \"qk_rope_head_dim\": 8, \"v_head_dim\": 32}"
#define WRITTEN                                                                                                       \
    "\"architectures\": [\"Dots3NoteForConditionalGeneration\"], \"model_type\": \"dots3_note\", "                    \
    "\"text_config\": {\"model_type\": \"dots3_note_text\", " TEXT ", \"sliding_window\": 20, "                       \
    "\"layer_types\": [\"deepseek_sparse_attention\", \"deepseek_sparse_attention\", \"sliding_attention\", "         \
    "\"sliding_attention\"], \"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\", \"sparse\"], "                  \
    "\"rope_parameters\": {\"deepseek_sparse_attention\": {\"rope_type\": \"default\", \"rope_theta\": 80000, "       \
    "\"partial_rotary_factor\": 0.25}, \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 500, "     \
    "\"partial_rotary_factor\": 0.25}}, \"per_layer_config\": {\"2\": " OF_LAYER ", \"3\": " OF_LAYER "}}"

/* before: the prefix of the text part's names */
static const char *folder(const char *config, const char *before)
{
    const char *dir = fresh_path("dots3");
    char path[400], text[4096];
    static char names[MOST_ARRAYS + 1][120];
    struct pp_tensor list[MOST_ARRAYS + 1];
    struct pp_error err;
    for (int i = 0; i < n_arrays; i++) {
        const char *name = arrays[i].name, *head = strcmp(name, "lm_head") == 0 ? "" : before;
        const bool whole = strstr(name, "k_norm.") || strstr(name, "_bias");
        list[i] = array_tensor(&arrays[i]);
        snprintf(names[i], sizeof *names, "%s%s%.47s%s", head, name[0] >= '0' && name[0] <= '9' ? "layers." : "", name,
                 whole ? "" : ".weight");
        list[i].name = names[i];
    }
    list[n_arrays] = list[0]; /* a tensor of the vision encoder */
    list[n_arrays].name = "vision_encoder.patch_embed.proj.weight";
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(text, sizeof text, "{%s}", config);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, (size_t)n_arrays + 1, &err), err);
    return dir;
}

static const char *converted(const char *from, const char *name)
{
    const char *path = fresh_path(name);
    struct pp_error err;
    assert_ok(pp_convert_to_gguf(from, path, &(struct pp_convert_options){0}, &err), err);
    return path;
}

/* Metadata as llama.cpp's converter writes it, and tensors under its names. */
static void assert_file(const char *path)
{
    static const struct {
        const char *key;
        int64_t v;
    } numbers[] = {{"attention.kv_lora_rank", 32},       {"attention.key_length", 40},
                   {"attention.value_length", 32},       {"attention.key_length_mla", 24},
                   {"attention.value_length_mla", 16},   {"attention.kv_lora_rank_swa", 64},
                   {"attention.key_length_swa", 72},     {"attention.value_length_swa", 64},
                   {"attention.key_length_mla_swa", 32}, {"attention.value_length_mla_swa", 32},
                   {"attention.sliding_window", 20},     {"attention.indexer.top_k", 24},
                   {"attention.head_count_kv", 1},       {"rope.dimension_count", 8},
                   {"leading_dense_block_count", 1},     {"expert_gating_func", 2},
                   {"expert_shared_count", 1}};
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(path, &g, &err), err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char key[80];
        int64_t v = -1;
        snprintf(key, sizeof key, "dots3note.%s", numbers[i].key);
        if (!pp_gguf_int(g, key, &v) || v != numbers[i].v)
            fail_msg("%s: %s is %lld, not %lld", path, key, (long long)v, (long long)numbers[i].v);
    }
    for (size_t l = 0; l < LAYERS; l++) {
        int64_t heads = 0;
        bool window = false, index = false;
        assert_true(pp_gguf_array_int(g, "dots3note.attention.head_count", l, &heads));
        assert_int_equal(heads, kind_of((int)l)->heads);
        assert_true(pp_gguf_array_bool(g, "dots3note.attention.sliding_window_pattern", l, &window));
        assert_true(pp_gguf_array_bool(g, "dots3note.attention.indexer.types", l, &index));
        assert_true(window == windowed[l] && index != window);
    }
    const struct pp_tensor *k_b = pp_gguf_tensor(g, "blk.2.attn_k_b.weight"), *low = NULL;
    assert_true(k_b && k_b->ne[0] == 24 && k_b->ne[1] == 64 && k_b->ne[2] == 2);
    low = pp_gguf_tensor(g, "blk.2.attn_q_a_norm.weight");
    assert_non_null(low);
    assert_near(((const float *)low->data)[3], of(2, "self_attn.q_a_layernorm")[3] * sqrtf((float)N / LOW), 1e-6);
    assert_non_null(pp_gguf_tensor(g, "blk.0.attn_gate.weight"));
    assert_non_null(pp_gguf_tensor(g, "blk.3.attn_k_norm.weight"));
    assert_null(pp_gguf_tensor(g, "blk.2.indexer.attn_k.weight"));
    pp_gguf_close(g);
}

static void dots3(void **state)
{
    (void)state;
    make();
    double *want = wanted();
    const char *published = folder(PUBLISHED, "model."), *file = converted(published, "dots3.gguf");
    const char *again = fresh_path("dots3-again");
    struct pp_error err;
    assert_logits(want, VOCAB, published);
    assert_logits(want, VOCAB, folder(WRITTEN, "model.language_model."));
    assert_file(file);
    assert_logits_everywhere(want, VOCAB, file);
    assert_same_bits(file, PP_KV_F32);
    assert_same_bits(file, PP_KV_Q8);
    assert_same_bits(file, PP_KV_Q4_0);
    assert_resumes(file, VOCAB);
    assert_goes_back(file, VOCAB);
    /* A folder converted from a folder has norms as files have them, and says so. */
    assert_ok(pp_convert_to_folder(published, again, &(struct pp_convert_options){0}, &err), err);
    assert_logits(want, VOCAB, again);
    assert_true(small_likeness(published, "q8_0", want, VOCAB) > 0.97); /* some rows attend to other positions */
    const char *quantised = fresh_path("dots3-q8_0.gguf");
    assert_ok(pp_quantize_file(file, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_file(quantised);
    assert_true(small_likeness(quantised, NULL, want, VOCAB) > 0.97);
    pp_free(want);
    drop();
}

static void refused(void **state)
{
    static const char *const cases[][2] = {
        {", \"use_dsa\": false", "use_dsa"},
        {", \"attention_gate_type\": \"elementwise\"", "attention_gate_type"},
        {", \"swa_attention_gate_type\": \"elementwise\"", "swa_attention_gate_type"},
        {", \"attention_bias\": true", "attention_bias"},
        {", \"layer_types\": [\"full_attention\", \"linear_attention\", \"full_attention\", \"full_attention\"]",
         "linear_attention"},
        {", \"layer_types\": [\"full_attention\"]", "layer_types"},
        {", \"sliding_window_size\": 0", "attention window"},
        {", \"swa_kv_lora_rank\": 9007199254740991", "rank of keys and values"},
        {", \"swa_qk_nope_head_dim\": -8", "not rotated"},
        {", \"swa_q_lora_rank\": 16", "q_lora_rank"},
    };
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[3000];
        /* the first of two equal keys counts */
        snprintf(config, sizeof config, "%s, %s", cases[i][0] + 2, PUBLISHED);
        assert_int_not_equal(pp_source_open(folder(config, "model."), &s, &err), PP_OK);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], err.text);
    }
    drop();
}

TEST_GROUP(dots3)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(dots3), cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("dots3", tests, NULL, NULL);
}
