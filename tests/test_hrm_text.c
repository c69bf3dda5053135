/* test_hrm_text.c - HRM-Text: a small random model against its formulas in double precision, from folders as
 * transformers, the original program and MLX write them, and from llama.cpp's file. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/gguf_file.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { VOCAB = 70, N = 64, HEADS = 4, KV_HEADS = 2, HEAD = 16, KV = KV_HEADS * HEAD, FF = 96, STACK = 2, OF_LAYER = 8,
       HIGH = 2, LOW = 3, SLOTS = STACK * HIGH * (LOW + 1), LAYERS = 2 * STACK, MOST = LAYERS * OF_LAYER + 3 };
static const double BASE = 10000, EPS = 1e-5, SCALE = 8;

static struct array arrays[MOST];
static int n_arrays;

enum { GATES, Q, K, V, O, GATE, UP, DOWN };
static const struct {
    const char *theirs, *ours;
    int64_t rows, cols;
} of_layers[OF_LAYER] = {
    {"self_attn.gate_proj", "attn_gate", N, N}, {"self_attn.q_proj", "attn_q", N, N},
    {"self_attn.k_proj", "attn_k", KV, N},      {"self_attn.v_proj", "attn_v", KV, N},
    {"self_attn.o_proj", "attn_output", N, N},  {"mlp.gate_proj", "ffn_gate", FF, N},
    {"mlp.up_proj", "ffn_up", FF, N},           {"mlp.down_proj", "ffn_down", N, FF},
};

static const float *of(int l, int which)
{
    return arrays[3 + l * OF_LAYER + which].values;
}

/* Arrays that are rows of one tensor must be adjacent in memory, too. */
static void make(void)
{
    uint32_t random = 11;
    n_arrays = 0;
    array_make(&arrays[n_arrays++], -1, "embed_tokens", 0, VOCAB, N, 0, 0.2f, &random);
    array_make(&arrays[n_arrays++], -1, "lm_head", 0, VOCAB, N, 0, 0.5f, &random);
    array_make(&arrays[n_arrays++], -1, "z_L_init", 0, 0, N, 0, 1, &random);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < OF_LAYER; i++)
            array_make(&arrays[n_arrays++], -1, of_layers[i].theirs, 0, of_layers[i].rows, of_layers[i].cols, 0, 0.3f,
                       &random);
}

static void drop(void)
{
    for (int i = 0; i < n_arrays; i++)
        pp_free(arrays[i].values);
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

static void unit(const double *x, double *y)
{
    double square = 0;
    for (int i = 0; i < N; i++)
        square += x[i] * x[i] / N;
    for (int i = 0; i < N; i++)
        y[i] = x[i] / sqrt(square + EPS);
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

/* keys, values: of all rows, for this pass through the layer */
static void layer(int l, int r, double *keys, double *values, double *x)
{
    double in[N], q[N], gates[N], att[N], delta[N], gate[FF], up[FF];
    unit(x, in);
    small_product(of(l, Q), in, N, N, q);
    small_product(of(l, GATES), in, N, N, gates);
    small_product(of(l, K), in, KV, N, keys + r * KV);
    small_product(of(l, V), in, KV, N, values + r * KV);
    rotate(q, HEADS, r);
    rotate(keys + r * KV, KV_HEADS, r);
    for (int h = 0; h < HEADS; h++) {
        const int shared = h * KV_HEADS / HEADS * HEAD;
        attend_query(q + h * HEAD, keys + shared, values + shared, 0, r, HEAD, KV, 1 / sqrt(HEAD), 0, att + h * HEAD);
    }
    for (int i = 0; i < N; i++)
        att[i] /= 1 + exp(-gates[i]);
    small_product(of(l, O), att, N, N, delta);
    for (int i = 0; i < N; i++)
        x[i] += delta[i];
    unit(x, in);
    small_product(of(l, GATE), in, FF, N, gate);
    small_product(of(l, UP), in, FF, N, up);
    for (int i = 0; i < FF; i++)
        up[i] *= gate[i] / (1 + exp(-gate[i]));
    small_product(of(l, DOWN), up, N, FF, delta);
    for (int i = 0; i < N; i++)
        x[i] += delta[i];
}

/* Runs a stack of layers whose input is the sum of both states, and which updates one of them. slot: the first of this
 * pass's keys and values. */
static void stack(int first, int slot, int r, const double *low, const double *high, double *keys, double *values,
                  double *out)
{
    double x[N];
    for (int i = 0; i < N; i++)
        x[i] = low[i] + high[i];
    for (int l = 0; l < STACK; l++)
        layer(first + l, r, keys + (slot + l) * SMALL_TEXT * KV, values + (slot + l) * SMALL_TEXT * KV, x);
    unit(x, out);
}

/* [SMALL_TEXT, VOCAB]; pp_free */
static double *wanted(void)
{
    double *logits = doubles(SMALL_TEXT * VOCAB), *keys = doubles(SLOTS * SMALL_TEXT * KV);
    double *values = doubles(SLOTS * SMALL_TEXT * KV), low[N], high[N];
    int32_t ids[SMALL_TEXT];
    small_text(ids, VOCAB);
    for (int r = 0; r < SMALL_TEXT; r++) {
        int slot = 0;
        for (int i = 0; i < N; i++) {
            high[i] = SCALE * (double)arrays[0].values[ids[r] * N + i];
            low[i] = (double)arrays[2].values[i];
        }
        for (int h = 0; h < HIGH; h++) {
            for (int k = 0; k < LOW; k++, slot += STACK)
                stack(0, slot, r, low, high, keys, values, low);
            stack(STACK, slot, r, low, high, keys, values, high);
            slot += STACK;
        }
        small_product(arrays[1].values, high, VOCAB, N, logits + r * VOCAB);
    }
    pp_free(keys);
    pp_free(values);
    return logits;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* more: members of config.json */
static const char *folder_of(const char *more)
{
    const char *dir = fresh_path("hrm");
    char path[400], config[900];
    struct pp_error err;
    snprintf(config, sizeof config, "{\"architectures\": [\"HrmTextForCausalLM\"], \"model_type\": \"hrm_text\", "
             "\"vocab_size\": %d, \"hidden_size\": %d, \"intermediate_size\": %d, \"num_attention_heads\": %d, "
             "\"num_key_value_heads\": %d, \"head_dim\": %d, %s, \"max_position_embeddings\": 256, "
             "\"rms_norm_eps\": 1e-5, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000}, "
             "\"H_cycles\": %d, \"L_cycles\": %d, \"L_bp_cycles\": [2]}", VOCAB, N, FF, HEADS, KV_HEADS, HEAD, more,
             HIGH, LOW);
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
    return dir;
}

/* Writes several arrays as one tensor. */
static struct pp_tensor joined(int first, int n, float *room)
{
    struct pp_tensor t = array_tensor(&arrays[first]);
    int64_t at = 0, rows = 0;
    for (int i = first; i < first + n; i++) {
        memcpy(room + at, arrays[i].values, (size_t)array_size(&arrays[i]) * sizeof *room);
        at += array_size(&arrays[i]);
        rows += arrays[i].rows;
    }
    t.ne[1] = rows;
    t.size = (size_t)at * sizeof *room;
    t.data = room;
    return t;
}

/* Each matrix as a tensor, or joined as published: gate, q, k and v as one, and the feed-forward part's gate and up.
 * before: the prefix of all names. */
static const char *folder(const char *more, bool apart, const char *before)
{
    static float room[LAYERS][2][(2 * N + 2 * KV + 2 * FF) * N];
    const char *dir = folder_of(more);
    struct pp_tensor list[MOST];
    char names[MOST][96], path[400];
    struct pp_error err;
    size_t n = 0;
    for (int i = 0; i < 3; i++) {
        list[n] = array_tensor(&arrays[i]);
        snprintf(names[n], sizeof *names, "%s%s%.20s%s", before, i == 1 ? "" : "model.", arrays[i].name,
                 i < 2 ? ".weight" : "");
        n++;
    }
    for (int i = 3; i < n_arrays; i++) {
        const int l = (i - 3) / OF_LAYER, kind = (i - 3) % OF_LAYER;
        const char *name = of_layers[kind].theirs;
        list[n] = array_tensor(&arrays[i]);
        if (!apart) {
            if (kind == GATES)
                list[n] = joined(i, 4, room[l][0]), name = "attn.gqkv_proj", i += 3;
            else if (kind == GATE)
                list[n] = joined(i, 2, room[l][1]), name = "mlp.gate_up_proj", i++;
            else if (kind == O)
                name = "attn.o_proj";
        }
        snprintf(names[n++], sizeof *names, "%smodel.%c_module.layers.%d.%s.weight", before, l < STACK ? 'L' : 'H',
                 l % STACK, name);
    }
    for (size_t i = 0; i < n; i++)
        list[i].name = names[i];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, n, &err), err);
    return dir;
}

/* Writes a file in the form of llama.cpp's converter. */
static const char *gguf(uint32_t n_blocks)
{
    const struct {
        const char *key;
        uint32_t v;
    } numbers[] = {{"block_count", n_blocks}, {"context_length", 256}, {"embedding_length", N},
                   {"feed_forward_length", FF}, {"attention.head_count", HEADS}, {"attention.head_count_kv", KV_HEADS},
                   {"attention.key_length", HEAD}, {"attention.value_length", HEAD}, {"rope.dimension_count", HEAD},
                   {"vocab_size", VOCAB}, {"hrm.layers_per_stack", STACK}, {"hrm.h_cycles", HIGH},
                   {"hrm.l_cycles", LOW}};
    const char *path = fresh_path("hrm.gguf");
    struct pp_gguf_writer *w = gguf_file_begin(path);
    struct pp_tensor list[MOST];
    static char names[MOST][80];
    char key[80];
    pp_gguf_add_text(w, "general.architecture", "hrm_text");
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "hrm_text.%s", numbers[i].key);
        pp_gguf_add_u32(w, key, numbers[i].v);
    }
    pp_gguf_add_f32(w, "hrm_text.rope.freq_base", (float)BASE);
    pp_gguf_add_f32(w, "hrm_text.attention.layer_norm_rms_epsilon", (float)EPS);
    pp_gguf_add_f32(w, "hrm_text.embedding_scale", (float)SCALE);
    pp_gguf_add_bool(w, "hrm_text.hrm.prefix_lm", true);
    for (int i = 0; i < n_arrays; i++) {
        static const char *const first[] = {"token_embd.weight", "output.weight", "hrm.z_l_init"};
        list[i] = array_tensor(&arrays[i]);
        if (i < 3)
            snprintf(names[i], sizeof names[i], "%s", first[i]);
        else
            snprintf(names[i], sizeof names[i], "blk.%d.%s.weight", (i - 3) / OF_LAYER,
                     of_layers[(i - 3) % OF_LAYER].ours);
        list[i].name = names[i];
    }
    gguf_file_end(w, list, (size_t)n_arrays);
    return path;
}

#define OURS "\"num_hidden_layers\": 16, \"num_layers_per_stack\": 2"
#define SCALED ", \"embedding_scale\": 8.0"

static void hrm_text(void **state)
{
    const char *made = fresh_path("hrm-made.gguf"), *quantised = fresh_path("hrm-q8_0.gguf");
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    make();
    double *want = wanted();
    const char *fused = folder(OURS SCALED, false, ""), *file = gguf(SLOTS);
    assert_logits(want, VOCAB, fused);
    assert_logits(want, VOCAB, folder("\"num_hidden_layers\": 2, \"embedding_scale\": null, \"prefix_lm\": false, "
                                      "\"initializer_range\": 0.125", false, ""));
    assert_logits(want, VOCAB, folder(OURS SCALED, true, "language_model."));
    assert_logits(want, VOCAB, file);
    assert_same_bits(file, PP_KV_F32);
    assert_same_bits(file, PP_KV_Q8);
    assert_goes_back(file, VOCAB);
    assert_true(small_likeness(fused, "q8_0", want, VOCAB) > 0.99);
    assert_ok(pp_convert_to_gguf(fused, made, &(struct pp_convert_options){0}, &err), err);
    assert_logits(want, VOCAB, made);
    struct pp_gguf *g;
    int64_t n;
    bool both_ways = false;
    assert_ok(pp_gguf_open(made, &g, &err), err);
    assert_true(pp_gguf_int(g, "hrm_text.block_count", &n) && n == SLOTS);
    assert_true(pp_gguf_bool(g, "hrm_text.hrm.prefix_lm", &both_ways) && both_ways);
    assert_non_null(pp_gguf_tensor(g, "blk.3.attn_gate.weight"));
    assert_null(pp_gguf_tensor(g, "blk.4.attn_gate.weight"));
    pp_gguf_close(g);
    assert_ok(pp_quantize_file(made, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_true(small_likeness(quantised, NULL, want, VOCAB) > 0.99);
    assert_int_equal(pp_convert_to_folder(file, fresh_path("hrm-no"), &(struct pp_convert_options){0}, &err),
                     PP_ERR_UNSUPPORTED); /* writing folders is not supported */
    assert_int_equal(pp_source_open(gguf(SLOTS + 1), &s, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "block_count 17"));
    /* adapters with the names of folders cannot be read either: nothing says how many layers the low stack has */
    struct pp_buf name = {0};
    assert_int_equal(pp_arch_gguf_name(pp_arch_by_name("hrm_text"), "model.H_module.layers.0.attn.o_proj.weight", &name,
                                       NULL), PP_NAME_UNKNOWN);
    pp_buf_free(&name);
    pp_free(want);
    drop();
}

static void refused(void **state)
{
    static const char *const cases[][2] = {
        {"\"num_hidden_layers\": 12, \"num_layers_per_stack\": 2", "num_hidden_layers is 12"},
        {OURS ", \"attention_bias\": true", "attention_bias"},
        {OURS ", \"hidden_act\": \"gelu\"", "activation"},
        {OURS ", \"H_cycles\": 0", "high cycles"},
        {OURS ", \"L_cycles\": 1000", "gone through"},
    };
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(pp_source_open(folder(cases[i][0], false, ""), &s, &err), PP_OK);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], err.text);
    }
    drop();
}

TEST_GROUP(hrm_text)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hrm_text), cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("hrm_text", tests, NULL, NULL);
}
