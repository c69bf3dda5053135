/* test_granite_switch.c - Granite Switch, a model with built-in adapters that certain tokens switch on: a small random
 * model against its formulas in double precision, from a folder as its own program writes it and from the file
 * converted from that, whose tensors are laid out as by llama.cpp's converter. The text has such tokens more than once,
 * and so do branches of a tree. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/gguf_file.h"
#include "tests/passes.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { VOCAB = 70, N = 64, HEADS = 4, KV_HEADS = 2, HEAD = 16, KV = KV_HEADS * HEAD, FF = 96, LAYERS = 2, ADAPTERS = 3,
       RANK = 4, MODULES = 7, OF_LAYER = 2 + 4 + 2 * MODULES, MOST = 2 + LAYERS * OF_LAYER };
static const double BASE = 10000, EPS = 1e-5, EMBEDDED = 6, ADDED = 0.5, SCORES = 0.2, DIVIDED = 4;
static const int32_t switches[ADAPTERS] = {17, 60, 33}, read_as[ADAPTERS] = {5, 6, 5};

static struct array arrays[MOST];
static int n_arrays;

/* The matrices with adapters. struct module: a part of one, its rows from `first` on. */
enum { QKV, O, GATE_UP, DOWN };
static const char *const matrices[] = {"self_attn.qkv_proj", "self_attn.o_proj", "shared_mlp.input_linear",
                                       "shared_mlp.output_linear"};
enum { TO_Q, TO_K, TO_V, TO_O, TO_GATE, TO_UP, TO_DOWN };
static const struct module {
    int matrix, first, n_out, n_in;
    const char *slice, *ours;
} modules[MODULES] = {{QKV, 0, N, N, "_slices.0", "attn_q"},      {QKV, N, KV, N, "_slices.1", "attn_k"},
                      {QKV, N + KV, KV, N, "_slices.2", "attn_v"}, {O, 0, N, N, "", "attn_output"},
                      {GATE_UP, 0, FF, N, "_slices.0", "ffn_gate"}, {GATE_UP, FF, FF, N, "_slices.1", "ffn_up"},
                      {DOWN, 0, N, FF, "", "ffn_down"}};

static const float *of(int l, int which)
{
    return arrays[2 + l * OF_LAYER + which].values;
}
static const float *matrix_of(int l, int matrix) { return of(l, 2 + matrix); }
static const float *half_of(int l, int module, int half) { return of(l, 6 + 2 * module + half); }

static void put(const char *name, int64_t n, int64_t rows, int64_t cols, float middle, float spread, uint32_t *random)
{
    assert_true(n_arrays < MOST);
    array_make(&arrays[n_arrays++], -1, name, n, rows, cols, middle, spread, random);
}

/* Rounds the array to values that F16 holds exactly: adapters are held in F16 when the weights are floats. */
static void round_last(void)
{
    const struct array *a = &arrays[n_arrays - 1];
    for (int64_t i = 0; i < array_size(a); i++)
        a->values[i] = roundf(a->values[i] * 1024) / 1024;
}

static void make(void)
{
    static const int outputs[] = {N + 2 * KV, N, 2 * FF, N}, inputs[] = {N, N, N, FF};
    uint32_t random = 9;
    n_arrays = 0;
    put("embed_tokens", 0, VOCAB, N, 0, 0.3f, &random);
    put("norm", 0, 0, N, 1, 0.2f, &random);
    for (int l = 0; l < LAYERS; l++) {
        put("input_layernorm", 0, 0, N, 1, 0.2f, &random);
        put("post_attention_layernorm", 0, 0, N, 1, 0.2f, &random);
        for (int m = 0; m < 4; m++)
            put(matrices[m], 0, outputs[m], inputs[m], 0, 0.3f, &random);
        for (int m = 0; m < MODULES; m++) {
            put("A", ADAPTERS, RANK, modules[m].n_in, 0, 0.3f, &random);
            round_last();
            put("B", ADAPTERS, modules[m].n_out, RANK, 0, 0.3f, &random);
            round_last();
        }
    }
}

static void drop(void)
{
    for (int i = 0; i < n_arrays; i++)
        pp_free(arrays[i].values);
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

static void norm(const double *x, const float *w, double *y)
{
    double square = 0;
    for (int i = 0; i < N; i++)
        square += x[i] * x[i] / N;
    for (int i = 0; i < N; i++)
        y[i] = (double)w[i] * x[i] / sqrt(square + EPS);
}

/* own: the adapter's number, counted from 1, or 0 */
static void project(int l, int module, int own, const double *x, double *y)
{
    const struct module *m = &modules[module];
    double down[RANK], up[FF];
    small_product(matrix_of(l, m->matrix) + (int64_t)m->first * m->n_in, x, m->n_out, m->n_in, y);
    if (!own)
        return;
    small_product(half_of(l, module, 0) + (int64_t)(own - 1) * RANK * m->n_in, x, RANK, m->n_in, down);
    small_product(half_of(l, module, 1) + (int64_t)(own - 1) * m->n_out * RANK, down, m->n_out, RANK, up);
    for (int i = 0; i < m->n_out; i++)
        y[i] += up[i];
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

static void layer(int l, int r, int own, double *keys, double *values, double *x)
{
    double in[N], q[N], att[N], delta[N], gate[FF], up[FF];
    norm(x, of(l, 0), in);
    project(l, TO_Q, own, in, q);
    project(l, TO_K, own, in, keys + r * KV);
    project(l, TO_V, own, in, values + r * KV);
    rotate(q, HEADS, r);
    rotate(keys + r * KV, KV_HEADS, r);
    for (int h = 0; h < HEADS; h++) {
        const int shared = h * KV_HEADS / HEADS * HEAD;
        attend_query(q + h * HEAD, keys + shared, values + shared, 0, r, HEAD, KV, SCORES, 0, att + h * HEAD);
    }
    project(l, TO_O, own, att, delta);
    for (int i = 0; i < N; i++)
        x[i] += ADDED * delta[i];
    norm(x, of(l, 1), in);
    project(l, TO_GATE, own, in, gate);
    project(l, TO_UP, own, in, up);
    for (int i = 0; i < FF; i++)
        up[i] *= gate[i] / (1 + exp(-gate[i]));
    project(l, TO_DOWN, own, up, delta);
    for (int i = 0; i < N; i++)
        x[i] += ADDED * delta[i];
}

/* The result, rounded to float, of an attention head whose keys are +gain at switching tokens and -gain elsewhere. */
static int switched_on(const int32_t *ids, int r, double gain)
{
    double sum = 0, all = 0;
    for (int i = 0; i <= r; i++) {
        int own = 0;
        for (int k = 0; k < ADAPTERS; k++)
            own = ids[i] == switches[k] ? k + 1 : own;
        all += exp(own ? gain : -gain);
        sum += own ? own * exp(gain) : 0;
    }
    return (int)rintf((float)(sum / all));
}

/* [SMALL_TEXT, VOCAB]; pp_free */
static double *wanted_of(const int32_t *ids, double gain)
{
    enum { OF = SMALL_TEXT * KV };
    double *logits = doubles(SMALL_TEXT * VOCAB), *keys = doubles(LAYERS * OF), *values = doubles(LAYERS * OF);
    double x[N], out[N];
    for (int r = 0; r < SMALL_TEXT; r++) {
        const int own = switched_on(ids, r, gain);
        int32_t token = ids[r];
        for (int k = 0; k < ADAPTERS; k++)
            token = ids[r] == switches[k] ? read_as[k] : token;
        for (int i = 0; i < N; i++)
            x[i] = EMBEDDED * (double)arrays[0].values[token * N + i];
        for (int l = 0; l < LAYERS; l++)
            layer(l, r, own, keys + l * OF, values + l * OF, x);
        norm(x, arrays[1].values, out);
        small_product(arrays[0].values, out, VOCAB, N, logits + r * VOCAB);
        for (int i = 0; i < VOCAB; i++)
            logits[r * VOCAB + i] /= DIVIDED;
    }
    pp_free(keys);
    pp_free(values);
    return logits;
}

static double *wanted(double gain)
{
    int32_t ids[SMALL_TEXT];
    int seen[ADAPTERS + 1] = {0};
    small_text(ids, VOCAB);
    for (int r = 0; r < SMALL_TEXT; r++)
        seen[switched_on(ids, r, gain)]++;
    assert_true(seen[0] && seen[1] && (gain < 2 || seen[2]));
    return wanted_of(ids, gain);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

#define CONFIG                                                                                                        \
    "\"architectures\": [\"GraniteSwitchForCausalLM\"], \"model_type\": \"granite_switch\", \"vocab_size\": 70, "     \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"shared_intermediate_size\": 96, \"num_hidden_layers\": 3, "    \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 256, "                      \
    "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000, \"embedding_multiplier\": 6, \"residual_multiplier\": 0.5, "      \
    "\"attention_multiplier\": 0.2, \"logits_scaling\": 4, \"tie_word_embeddings\": true, "                           \
    "\"layer_types\": [\"attention\", \"attention\", \"attention\"], \"max_lora_rank\": 4, "                          \
    "\"adapter_ranks\": [4, 4, 2]"
#define TOKENS                                                                                                        \
    "\"num_adapters\": 3, \"adapter_token_ids\": [17, 60, 33], \"adapter_substitute_token_ids\": [5, 6, 5]"

static const char *folder(const char *more)
{
    const char *dir = fresh_path("switch");
    char path[400], text[2048];
    static char names[MOST + 1][120];
    struct pp_tensor list[MOST + 1];
    struct pp_error err;
    for (int i = 0; i < n_arrays; i++) {
        const int l = (i - 2) / OF_LAYER, which = (i - 2) % OF_LAYER, module = (which - 6) / 2;
        list[i] = array_tensor(&arrays[i]);
        if (i < 2)
            snprintf(names[i], sizeof *names, "model.%.20s.weight", arrays[i].name);
        else if (which < 2)
            snprintf(names[i], sizeof *names, "model.layers.%d.%.40s.weight", l, arrays[i].name);
        else if (which < 6)
            snprintf(names[i], sizeof *names, "model.layers.%d.%.40s.base_layer.weight", l, arrays[i].name);
        else
            snprintf(names[i], sizeof *names, "model.layers.%d.%s.lora_%.1s%s", l, matrices[modules[module].matrix],
                     arrays[i].name, modules[module].slice);
        if (i >= 2 && which >= 6) {
            list[i].n_dims = 4;
            list[i].ne[3] = list[i].ne[2];
            list[i].ne[2] = 1;
        }
        list[i].name = names[i];
    }
    list[n_arrays] = list[1]; /* a table that follows from the configuration */
    list[n_arrays].name = "model.switch.control_to_substitute_lut";
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    snprintf(text, sizeof text, "{%s, %s}", CONFIG, more);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, (size_t)n_arrays + 1, &err), err);
    return dir;
}

static void assert_row(const struct pp_tensor *t, int64_t row, const float *want)
{
    const float *have = (const float *)t->data + row * t->ne[0];
    for (int64_t i = 0; i < t->ne[0]; i++)
        if (have[i] != want[i])
            fail_msg("%s: value %lld of row %lld is %g, not %g", t->name, (long long)i, (long long)row,
                     (double)have[i], (double)want[i]);
}

/* In the file, rows of a head's rotated pairs are adjacent, and an adapter of zeros precedes all others. */
static void assert_file(const char *path)
{
    static const float zeros[N];
    struct pp_gguf *g;
    struct pp_error err;
    int64_t n = 0, token = 0;
    assert_ok(pp_gguf_open(path, &g, &err), err);
    assert_true(pp_gguf_int(g, "graniteswitch.adapters.count", &n) && n == ADAPTERS);
    assert_true(pp_gguf_int(g, "graniteswitch.adapters.lora_rank", &n) && n == RANK);
    assert_true(pp_gguf_int(g, "graniteswitch.block_count", &n) && n == LAYERS);
    assert_true(pp_gguf_array_int(g, "graniteswitch.adapters.token_ids_activate", 1, &token) && token == 60);
    assert_true(pp_gguf_array_int(g, "graniteswitch.adapters.token_ids_substitute", 1, &token) && token == 6);
    const struct pp_tensor *qkv = pp_gguf_tensor(g, "blk.1.attn_qkv.weight");
    const struct pp_tensor *b = pp_gguf_tensor(g, "blk.1.attn_k.lora_b"), *a = pp_gguf_tensor(g, "blk.1.attn_k.lora_a");
    assert_true(qkv && qkv->ne[1] == N + 2 * KV && a && a->ne[0] == N && a->ne[1] == RANK && a->ne[2] == ADAPTERS + 1);
    assert_true(b && b->ne[0] == RANK && b->ne[1] == KV && b->ne[2] == ADAPTERS + 1);
    assert_row(qkv, 1, matrix_of(1, QKV) + HEAD / 2 * N);
    assert_row(qkv, N + 2, matrix_of(1, QKV) + (N + 1) * N);
    assert_row(qkv, N + KV + 1, matrix_of(1, QKV) + (N + KV + 1) * N);
    assert_row(a, 0, zeros);
    assert_row(a, RANK + 1, half_of(1, TO_K, 0) + N);
    assert_row(b, KV - 1, zeros);
    assert_row(b, 2 * KV + HEAD + 3, half_of(1, TO_K, 1) + (KV + HEAD + HEAD / 2 + 1) * RANK);
    pp_gguf_close(g);
}

/* Two branches after committed tokens; one of them switches an adapter on. */
static void trees(const char *path)
{
    enum { LEFT = 6 }; /* before the text's first switching token */
    int32_t ids[SMALL_TEXT], other[SMALL_TEXT];
    float got[SMALL_TEXT * VOCAB];
    struct pp_error err;
    small_text(ids, VOCAB);
    memcpy(other, ids, sizeof ids);
    other[LEFT] = switches[1];
    double *plain = wanted_of(ids, 15), *switched = wanted_of(other, 15);
    struct running r = run_small(path, NULL);
    run_in_passes(r.e, r.s, ids, LEFT, 5, got);
    const struct pp_row tree[] = {
        {.seq = r.s, .token = ids[LEFT], .parent = PP_PARENT_COMMITTED, .out = PP_OUT_LOGITS},
        {.seq = r.s, .token = other[LEFT], .parent = PP_PARENT_COMMITTED, .out = PP_OUT_LOGITS},
        {.seq = r.s, .token = ids[LEFT + 1], .parent = 0, .out = PP_OUT_LOGITS},
        {.seq = r.s, .token = ids[LEFT + 1], .parent = 1, .out = PP_OUT_LOGITS},
    };
    assert_ok(pp_step(r.e, tree, 4, NULL, &err), err);
    for (int i = 0; i < 4; i++) {
        const double *want = (i % 2 ? switched : plain) + (LEFT + i / 2) * VOCAB;
        const float *have = pp_step_output(r.e, i);
        for (int v = 0; v < VOCAB; v++)
            if (!(fabs((double)have[v] - want[v]) <= 1e-4 * fmax(1, fabs(want[v]))))
                fail_msg("row %d of a tree: %g, not %g", i, (double)have[v], want[v]);
    }
    stop_small(&r);
    pp_free(plain);
    pp_free(switched);
}

static void granite_switch(void **state)
{
    const char *file = fresh_path("switch.gguf"), *quantised = fresh_path("switch-q8_0.gguf");
    struct pp_error err;
    (void)state;
    make();
    double *want = wanted(15), *little = wanted(1.5);
    const char *dir = folder(TOKENS);
    assert_logits(want, VOCAB, dir);
    assert_logits(little, VOCAB, folder(TOKENS ", \"control_token_gain\": 1.5, \"switch_type\": \"single\""));
    assert_ok(pp_convert_to_gguf(dir, file, &(struct pp_convert_options){0}, &err), err);
    assert_file(file);
    assert_logits(want, VOCAB, file);
    assert_same_bits(file, PP_KV_F32);
    assert_same_bits(file, PP_KV_Q8);
    assert_resumes(file, VOCAB);
    assert_goes_back(file, VOCAB);
    trees(file);
    assert_true(small_likeness(dir, "q8_0", want, VOCAB) > 0.99);
    assert_ok(pp_quantize_file(file, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_true(small_likeness(quantised, NULL, want, VOCAB) > 0.99);
    assert_int_equal(pp_convert_to_folder(file, fresh_path("switch-no"), &(struct pp_convert_options){0}, &err),
                     PP_ERR_UNSUPPORTED); /* writing folders is not supported */
    pp_free(want);
    pp_free(little);
    drop();
}

static void refused(void **state)
{
    static const char *const cases[][2] = {
        {"\"num_adapters\": 3, \"adapter_token_ids\": [60, 17], \"adapter_substitute_token_ids\": [5, 6, 5]",
         "adapter_token_ids"},
        {"\"num_adapters\": 3, \"adapter_token_ids\": [60, 17, 33]", "adapter_substitute_token_ids"},
        {"\"num_adapters\": 3, \"adapter_token_ids\": [60, 17, 70], \"adapter_substitute_token_ids\": [5, 6, 5]",
         "switches an adapter on"},
        {"\"num_adapters\": 3, \"adapter_token_ids\": [60, 17, 60], \"adapter_substitute_token_ids\": [5, 6, 5]",
         "two adapters"},
        {"\"num_adapters\": 65", "number of adapters"},
        {TOKENS ", \"control_dims\": 2", "control_dims"},
        {TOKENS ", \"switch_type\": \"multi\"", "switch_type"},
        {TOKENS ", \"num_local_experts\": 4", "num_local_experts"},
    };
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(pp_source_open(folder(cases[i][0]), &s, &err), PP_OK);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], err.text);
    }
    /* fewer than the tensors have: seen when they are loaded, or made into a file */
    const char *fewer = folder("\"num_adapters\": 1, \"adapter_token_ids\": [60], "
                               "\"adapter_substitute_token_ids\": [5]");
    assert_int_equal(pp_convert_to_gguf(fewer, fresh_path("switch-1.gguf"), &(struct pp_convert_options){0}, &err),
                     PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "1 adapters"));
    assert_ok(pp_model_open(fewer, &m, &err), err);
    assert_int_equal(pp_engine_new(m, &(struct pp_engine_options){.n_threads = 1, .n_ctx = 64}, NULL, NULL, &e, &err),
                     PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "1 adapters"));
    pp_model_close(m);
    drop();
}

TEST_GROUP(granite_switch)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(granite_switch), cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("granite_switch", tests, NULL, NULL);
}
