/* test_talkie.c - Talkie: a small random model against its formulas in double precision, from a folder in the form of
 * its port, and from the two kinds of files that llama.cpp reads. */
#include <float.h>
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
#include "tests/adapter_folder.h"
#include "tests/gguf_file.h"
#include "tests/packed_folder.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { VOCAB = 70, N = 64, HEADS = 4, HEAD = 16, FF = 96, LAYERS = 3, OF_LAYER = 11, MOST = LAYERS * OF_LAYER + 3 };
static const double BASE = 10000, GAIN = 1.75;

/* The tensors, as in the folder. */
static struct array arrays[MOST];
static int n_arrays;

static const struct {
    const char *theirs, *ours;
    int64_t rows, cols;
    float middle, spread;
} of_layers[OF_LAYER] = {
    {"attn.attn_query.weight", "attn_q.weight", N, N, 0, 0.3f},
    {"attn.attn_key.weight", "attn_k.weight", N, N, 0, 0.3f},
    {"attn.attn_value.weight", "attn_v.weight", N, N, 0, 0.3f},
    {"attn.attn_resid.weight", "attn_output.weight", N, N, 0, 0.3f},
    {"mlp.mlp_gate.weight", "ffn_gate.weight", FF, N, 0, 0.3f},
    {"mlp.mlp_linear.weight", "ffn_up.weight", FF, N, 0, 0.3f},
    {"mlp.mlp_resid.weight", "ffn_down.weight", N, FF, 0, 0.3f},
    {"attn.head_gain.head_g", "attn_q_norm.weight", 0, HEADS, 1.5f, 1},
    {"attn_gain.a_g", "attn_output.scale", 0, 1, 0.6f, 0.3f},
    {"mlp_gain.a_g", "ffn_down.scale", 0, 1, 0.6f, 0.3f},
    {"embed_skip.a_g", "layer_output_scale.weight", 0, 1, 0, 0.7f},
};
enum { Q, K, V, O, GATE, UP, DOWN, HEAD_GAIN, ATTENTION_GAIN, FF_GAIN, SKIP };

static const float *of(int l, int which)
{
    return arrays[3 + l * OF_LAYER + which].values;
}

static void make(void)
{
    uint32_t random = 7;
    n_arrays = 0;
    array_make(&arrays[n_arrays++], -1, "model.embed.weight", 0, VOCAB, N, 0, 1, &random);
    array_make(&arrays[n_arrays++], -1, "lm_head", 0, VOCAB, N, 0, 0.5f, &random);
    array_make(&arrays[n_arrays++], -1, "lm_head_gain.w_g", 0, 0, 1, (float)GAIN, 0, &random);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < OF_LAYER; i++) {
            struct array *a = &arrays[n_arrays++];
            array_make(a, -1, of_layers[i].theirs, 0, of_layers[i].rows, of_layers[i].cols, of_layers[i].middle,
                       of_layers[i].spread, &random);
            if (i == SKIP && l == 1)
                a->values[0] = 0; /* as before training */
        }
}

static void drop(void)
{
    for (int i = 0; i < n_arrays; i++)
        pp_free(arrays[i].values);
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

static void unit(const double *x, int n, double *y)
{
    double square = 0;
    for (int i = 0; i < n; i++)
        square += x[i] * x[i] / n;
    for (int i = 0; i < n; i++)
        y[i] = x[i] / sqrt(square + (double)FLT_EPSILON);
}

/* RoPE by minus the position, followed by RMSNorm; gains: one for each head, or NULL. */
static void heads(double *x, int position, const float *gains)
{
    for (int h = 0; h < HEADS; h++) {
        double *head = x + h * HEAD;
        for (int i = 0; i < HEAD / 2; i++) {
            const double angle = position * pow(BASE, -2.0 * i / HEAD), a = head[i], b = head[i + HEAD / 2];
            head[i] = a * cos(angle) + b * sin(angle);
            head[i + HEAD / 2] = b * cos(angle) - a * sin(angle);
        }
        unit(head, HEAD, head);
        for (int i = 0; i < HEAD && gains; i++)
            head[i] *= (double)gains[h];
    }
}

static void layer(int l, int r, const double *first, double *keys, double *values, double *x)
{
    double in[N], q[N], att[N], delta[N], gate[FF], up[FF], *k = keys + (l * SMALL_TEXT + r) * N;
    unit(x, N, in);
    small_product(of(l, Q), in, N, N, q);
    small_product(of(l, K), in, N, N, k);
    small_product(of(l, V), in, N, N, values + (l * SMALL_TEXT + r) * N);
    heads(q, r, of(l, HEAD_GAIN));
    heads(k, r, NULL);
    for (int h = 0; h < HEADS; h++)
        attend_query(q + h * HEAD, keys + l * SMALL_TEXT * N + h * HEAD, values + l * SMALL_TEXT * N + h * HEAD, 0, r,
                     HEAD, N, 1 / sqrt(HEAD), 0, att + h * HEAD);
    small_product(of(l, O), att, N, N, delta);
    for (int i = 0; i < N; i++)
        x[i] += (double)*of(l, ATTENTION_GAIN) * delta[i];
    unit(x, N, in);
    small_product(of(l, GATE), in, FF, N, gate);
    small_product(of(l, UP), in, FF, N, up);
    for (int i = 0; i < FF; i++)
        up[i] *= gate[i] / (1 + exp(-gate[i]));
    small_product(of(l, DOWN), up, N, FF, delta);
    for (int i = 0; i < N; i++)
        x[i] += (double)*of(l, FF_GAIN) * delta[i] + (double)*of(l, SKIP) * first[i];
}

/* [SMALL_TEXT, VOCAB]; pp_free */
static double *wanted(void)
{
    double *logits = doubles(SMALL_TEXT * VOCAB), *keys = doubles(LAYERS * SMALL_TEXT * N);
    double *values = doubles(LAYERS * SMALL_TEXT * N), first[N], x[N];
    int32_t ids[SMALL_TEXT];
    small_text(ids, VOCAB);
    for (int r = 0; r < SMALL_TEXT; r++) {
        for (int i = 0; i < N; i++)
            first[i] = (double)arrays[0].values[ids[r] * N + i];
        unit(first, N, first);
        memcpy(x, first, sizeof x);
        for (int l = 0; l < LAYERS; l++)
            layer(l, r, first, keys, values, x);
        unit(x, N, x);
        small_product(arrays[1].values, x, VOCAB, N, logits + r * VOCAB);
        for (int i = 0; i < VOCAB; i++)
            logits[r * VOCAB + i] *= GAIN;
    }
    pp_free(keys);
    pp_free(values);
    return logits;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static const char *made_name(int i, char room[96])
{
    if (i < 3)
        snprintf(room, 96, "%.47s", arrays[i].name);
    else
        snprintf(room, 96, "model.blocks.%d.%.47s", (i - 3) / OF_LAYER, arrays[i].name);
    return room;
}

/* A folder without tensors; more: members of config.json. */
static const char *folder_of(const char *more)
{
    const char *dir = fresh_path("talkie");
    char path[400], config[900];
    struct pp_error err;
    snprintf(config, sizeof config, "{\"architectures\": [\"TalkieForCausalLM\"], \"model_type\": \"talkie\", "
             "\"auto_map\": {\"AutoModelForCausalLM\": \"modeling_talkie.TalkieForCausalLM\"}, \"vocab_size\": %d, "
             "\"hidden_size\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
             "\"head_dim\": %d, \"max_position_embeddings\": 256, \"rope_theta\": %g%s}", VOCAB, N, FF, LAYERS, HEADS,
             HEAD, BASE, more);
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
    return dir;
}

/* without: a tensor that is left out, or NULL; head: the name of the output matrix. */
static const char *folder_without(const char *without, const char *head)
{
    const char *dir = folder_of("");
    struct pp_tensor list[MOST];
    char names[MOST][96], path[400];
    struct pp_error err;
    size_t n = 0;
    for (int i = 0; i < n_arrays; i++) {
        list[n] = array_tensor(&arrays[i]);
        list[n].name = i == 1 ? head : made_name(i, names[i]);
        n += !without || strcmp(list[n].name, without) != 0;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, n, &err), err);
    return dir;
}

/* A folder whose layers' matrices are quantised; the rest keeps its type. */
static const char *packed(const char *form, const char *more)
{
    const char *dir = folder_of(more);
    struct tensor_file f = {.leave_out = NULL};
    for (int i = 0; i < n_arrays; i++) {
        const struct array *a = &arrays[i];
        const int64_t shape[] = {a->rows ? a->rows : a->cols, a->cols};
        char name[96];
        made_name(i, name);
        if (i > 2 && a->rows) {
            name[strlen(name) - strlen(".weight")] = 0;
            packed_matrix(&f, packed_form(form), &(struct packed_options){0}, name, 0, a->rows, a->cols, a->values);
        } else {
            tensor_file_add(&f, name, "F32", a->rows ? 2 : 1, shape, a->values,
                            (size_t)array_size(a) * sizeof *a->values);
        }
    }
    tensor_file_write(&f, dir, "model.safetensors");
    return dir;
}

/* A GGUF file as llama.cpp's converter writes it; within: multipliers of parts are multiplied into their matrices, and
 * small tensors are BF16. */
static const char *gguf(bool within)
{
    static const struct {
        const char *key;
        uint32_t v;
    } numbers[] = {{"block_count", LAYERS}, {"context_length", 256}, {"embedding_length", N},
                   {"feed_forward_length", FF}, {"attention.head_count", HEADS}, {"attention.key_length", HEAD},
                   {"attention.value_length", HEAD}, {"rope.dimension_count", HEAD}, {"vocab_size", VOCAB}};
    const char *path = fresh_path("talkie.gguf");
    struct pp_gguf_writer *w = gguf_file_begin(path);
    struct pp_tensor list[MOST];
    static char names[MOST][80];
    static uint16_t small[MOST][HEADS];
    char key[80];
    size_t n = 0;
    pp_gguf_add_text(w, "general.architecture", "talkie");
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "talkie.%s", numbers[i].key);
        pp_gguf_add_u32(w, key, numbers[i].v);
    }
    pp_gguf_add_f32(w, "talkie.rope.freq_base", (float)BASE);
    pp_gguf_add_f32(w, "talkie.attention.layer_norm_rms_epsilon", FLT_EPSILON);
    pp_gguf_add_f32(w, "talkie.logit_scale", (float)GAIN);
    for (int i = 0; i < n_arrays; i++) {
        const int l = (i - 3) / OF_LAYER, kind = i < 3 ? -1 : (i - 3) % OF_LAYER;
        struct array *a = &arrays[i];
        if (i == 2 || (within && (kind == ATTENTION_GAIN || kind == FF_GAIN)))
            continue;
        for (int64_t r = 0; r < N && (kind == Q || kind == K); r++) /* and back again */
            for (int64_t c = 0; c < N && r % HEAD >= HEAD / 2; c++)
                a->values[r * N + c] = -a->values[r * N + c];
        list[n] = array_tensor(a);
        if (kind == HEAD_GAIN) {
            list[n].n_dims = 2;
            list[n].ne[0] = 1;
            list[n].ne[1] = HEADS;
        }
        for (int k = 0; within && (kind == HEAD_GAIN || kind == SKIP) && k < array_size(a); k++) {
            small[i][k] = pp_f32_to_bf16(a->values[k]);
            list[n].type = PP_TYPE_BF16;
            list[n].size = (size_t)(k + 1) * 2;
            list[n].data = small[i];
        }
        if (kind < 0)
            snprintf(names[i], sizeof names[i], "%s", i ? "output.weight" : "token_embd.weight");
        else
            snprintf(names[i], sizeof names[i], "blk.%d.%s", l, of_layers[kind].ours);
        list[n++].name = names[i];
    }
    gguf_file_end(w, list, n);
    for (int i = 3; i < n_arrays; i++)
        for (int64_t k = 0; k < N * N && (i - 3) % OF_LAYER <= K; k++)
            if (k / N % HEAD >= HEAD / 2)
                arrays[i].values[k] = -arrays[i].values[k];
    return path;
}

/* Multiplies multipliers into matrices; small tensors get the precision of BF16. */
static void bring_within(void)
{
    for (int l = 0; l < LAYERS; l++) {
        static const int pairs[][2] = {{ATTENTION_GAIN, O}, {FF_GAIN, DOWN}};
        for (int i = 0; i < 2; i++) {
            struct array *w = &arrays[3 + l * OF_LAYER + pairs[i][1]];
            float *gain = arrays[3 + l * OF_LAYER + pairs[i][0]].values;
            for (int64_t k = 0; k < array_size(w); k++)
                w->values[k] *= *gain;
            *gain = 1;
        }
        for (int k = 0; k <= HEADS; k++) {
            float *v = &arrays[3 + l * OF_LAYER + (k < HEADS ? HEAD_GAIN : SKIP)].values[k % HEADS];
            *v = pp_bf16_to_f32(pp_f32_to_bf16(*v));
        }
    }
}

static void talkie(void **state)
{
    const char *made = fresh_path("talkie-made.gguf"), *quantised = fresh_path("talkie-q8_0.gguf");
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    make();
    double *want = wanted();
    const char *folder = folder_without(NULL, "lm_head"), *file = gguf(false);
    assert_logits(want, VOCAB, folder);
    assert_logits(want, VOCAB, file);
    assert_same_bits(file, PP_KV_F32);
    assert_same_bits(file, PP_KV_Q8);
    assert_goes_back(file, VOCAB);
    assert_true(small_likeness(folder, "q8_0", want, VOCAB) > 0.99);
    assert_ok(pp_convert_to_gguf(folder, made, &(struct pp_convert_options){0}, &err), err);
    assert_logits(want, VOCAB, made);
    assert_ok(pp_quantize_file(made, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_true(small_likeness(quantised, NULL, want, VOCAB) > 0.99);
    /* writing folders is not supported */
    assert_int_equal(pp_convert_to_folder(file, fresh_path("talkie-no"), &(struct pp_convert_options){0}, &err),
                     PP_ERR_UNSUPPORTED);
    /* the multiplier of the logits may be part of the matrix, which then has another name */
    assert_int_equal(pp_source_open(folder_without("lm_head_gain.w_g", "lm_head"), &s, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "lm_head_gain.w_g"));
    pp_free(want);
    drop();
}

/* Files with multipliers that are part of the matrices, and with small tensors in BF16. */
static void numbers_within(void **state)
{
    (void)state;
    make();
    bring_within();
    double *want = wanted();
    assert_logits(want, VOCAB, gguf(true));
    for (int64_t k = 0; k < array_size(&arrays[1]); k++)
        arrays[1].values[k] *= (float)GAIN;
    assert_logits(want, VOCAB, folder_without("lm_head_gain.w_g", "lm_head.weight"));
    pp_free(want);
    drop();
}

/* A LoRA with the folder's names, also of queries and keys, whose heads rotate in the opposite direction. */
static void adapted(void **state)
{
    static const int kinds[] = {Q, K, V, O, GATE, UP, DOWN};
    const char *file = fresh_path("talkie-adapted.gguf");
    struct folder f = {.random = 11};
    struct pp_error err;
    (void)state;
    make();
    const char *dir = folder_without(NULL, "lm_head.weight");
    assert_ok(pp_convert_to_gguf(dir, file, &(struct pp_convert_options){0}, &err), err);
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            const struct array *a = &arrays[3 + l * OF_LAYER + kinds[i]];
            char name[96];
            made_name(3 + l * OF_LAYER + kinds[i], name);
            name[strlen(name) - strlen(".weight")] = 0;
            folder_add_merged(&f, name, 2, 1.5, a->values, a->rows, a->cols);
        }
    double *want = wanted();
    const char *adapter = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 3}");
    assert_adapted(dir, adapter, want, VOCAB, 2e-4);
    assert_adapted(file, adapter, want, VOCAB, 2e-4);
    const struct pp_convert_options to = {.base = dir};
    assert_int_equal(pp_convert_to_gguf(adapter, fresh_path("talkie-no.gguf"), &to, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "stored differently"));
    folder_empty(&f);
    pp_free(want);
    drop();
}

/* Folders in formats of other programs, whose heads also change the signs of halves. */
static void quantised(void **state)
{
    static const char *const forms[][2] = {
        {"fp8-tensor", ", \"quantization_config\": {\"quant_method\": \"fp8\"}"},
        {"gptq-order", ", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, "
                       "\"desc_act\": true, \"checkpoint_format\": \"gptq\"}"},
        {"mlx-2", ", \"quantization\": {\"bits\": 2, \"group_size\": 32}"},
        {"mlx-mxfp4", ", \"quantization\": {\"bits\": 4, \"group_size\": 32, \"mode\": \"mxfp4\"}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        make();
        const char *folder = packed(forms[i][0], forms[i][1]);
        double *want = wanted();
        const double cosine = small_likeness(folder, NULL, want, VOCAB);
        if (!(cosine > 0.99))
            fail_msg("%s: a cosine of %g", forms[i][0], cosine);
        pp_free(want);
        drop();
    }
}

/* Without the multipliers of query heads, and with a vector of another size. */
static void incomplete(void **state)
{
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    make();
    assert_int_equal(pp_model_open(folder_without("model.blocks.1.attn.head_gain.head_g", "lm_head"), &m, &err),
                     PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "blk.1.attn_q_norm.weight is missing"));
    pp_free(arrays[3 + ATTENTION_GAIN].values);
    uint32_t random = 3;
    array_make(&arrays[3 + ATTENTION_GAIN], -1, "attn_gain.a_g", 0, 0, 2, 1, 0, &random);
    assert_int_equal(pp_model_open(folder_without(NULL, "lm_head"), &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "blk.0.attn_output.scale does not have 1 numbers"));
    drop();
}

TEST_GROUP(talkie)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(talkie), cmocka_unit_test(numbers_within),
                                       cmocka_unit_test(adapted), cmocka_unit_test(quantised),
                                       cmocka_unit_test(incomplete)};
    return cmocka_run_group_tests_name("talkie", tests, NULL, NULL);
}
