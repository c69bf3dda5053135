/* test_jina_vlm.c - the text part of jina-vlm: a small random model against its formulas in double precision, from
 * folders as its own code and MLX write them, and from the files and folders made from those. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/gguf.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "tests/adapter_folder.h"
#include "tests/packed_folder.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { VOCAB = 70, MORE = 6, N = 64, HEADS = 4, KV_HEADS = 2, HEAD = 32, QUERY = HEADS * HEAD, KV = KV_HEADS * HEAD,
       FF = 96, LAYERS = 2, OF_LAYER = 8, MOST = 4 + LAYERS * OF_LAYER, BESIDE = 2 + 3 * LAYERS };
static const double BASE = 100000, EPS = 1e-5;

/* In the order of a folder's tensors: embeddings, those for pictures, the last norm, the output, then the layers. */
static struct array arrays[MOST];
static int n_arrays;

enum { EMBEDDING, NEW_EMBEDDING, LAST_NORM, OUTPUT, FIRST };
static const char *const firsts[FIRST] = {"embedding.embedding", "embedding.new_embedding", "ln_f.weight",
                                          "lm_head.weight"};
enum { NORM, QKV, Q_NORM, K_NORM, O, FF_NORM, UP_GATE, DOWN };
static const struct {
    const char *theirs, *mlx;
    int64_t rows, cols;
} of_layers[OF_LAYER] = {
    {"attn_lnorm", "attn_norm", 0, N},    {"attn.qkv_w", "attn.qkv", QUERY + 2 * KV, N},
    {"attn.q_lnorm", "attn.q_norm", 0, HEAD}, {"attn.k_lnorm", "attn.k_norm", 0, HEAD},
    {"attn.out", "attn.out", N, QUERY},   {"ffn_lnorm", "ffn_norm", 0, N},
    {"ffn.up", "ffn.gate_up", 2 * FF, N}, {"ffn.down", "ffn.down", N, FF},
};

static const float *of(int l, int which)
{
    return arrays[FIRST + l * OF_LAYER + which].values;
}

static void make(void)
{
    uint32_t random = 5;
    n_arrays = 0;
    array_make(&arrays[n_arrays++], -1, firsts[EMBEDDING], 0, VOCAB, N, 0, 0.5f, &random);
    array_make(&arrays[n_arrays++], -1, firsts[NEW_EMBEDDING], 0, MORE, N, 0, 0.5f, &random);
    array_make(&arrays[n_arrays++], -1, firsts[LAST_NORM], 0, 0, N, 1, 0.5f, &random);
    array_make(&arrays[n_arrays++], -1, firsts[OUTPUT], 0, VOCAB, N, 0, 0.5f, &random);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < OF_LAYER; i++)
            array_make(&arrays[n_arrays++], -1, of_layers[i].theirs, 0, of_layers[i].rows, of_layers[i].cols,
                       of_layers[i].rows ? 0 : 1, of_layers[i].rows ? 0.3f : 0.5f, &random);
}

static void drop(void)
{
    for (int i = 0; i < n_arrays; i++)
        pp_free(arrays[i].values);
}

/* --- formulas ----------------------------------------------------------------------------------------------------- */

static void norm(const float *w, const double *x, int n, double *y)
{
    double square = 0;
    for (int i = 0; i < n; i++)
        square += x[i] * x[i] / n;
    for (int i = 0; i < n; i++)
        y[i] = (double)w[i] * x[i] / sqrt(square + EPS);
}

/* RMSNorm of each head, then RoPE. */
static void heads(double *x, int n_heads, const float *w, int position)
{
    for (int h = 0; h < n_heads; h++) {
        double *head = x + h * HEAD;
        norm(w, head, HEAD, head);
        for (int i = 0; i < HEAD / 2; i++) {
            const double angle = position * pow(BASE, -2.0 * i / HEAD), a = head[i], b = head[i + HEAD / 2];
            head[i] = a * cos(angle) - b * sin(angle);
            head[i + HEAD / 2] = b * cos(angle) + a * sin(angle);
        }
    }
}

/* keys, values: of all rows in this layer */
static void layer(int l, int r, double *keys, double *values, double *x)
{
    double in[N], qkv[QUERY + 2 * KV], att[QUERY], delta[N], both[2 * FF];
    norm(of(l, NORM), x, N, in);
    small_product(of(l, QKV), in, QUERY + 2 * KV, N, qkv);
    heads(qkv, HEADS, of(l, Q_NORM), r);
    heads(qkv + QUERY, KV_HEADS, of(l, K_NORM), r);
    memcpy(keys + r * KV, qkv + QUERY, KV * sizeof *keys);
    memcpy(values + r * KV, qkv + QUERY + KV, KV * sizeof *values);
    for (int h = 0; h < HEADS; h++) {
        const int shared = h * KV_HEADS / HEADS * HEAD;
        attend_query(qkv + h * HEAD, keys + shared, values + shared, 0, r, HEAD, KV, 1 / sqrt(HEAD), 0,
                     att + h * HEAD);
    }
    small_product(of(l, O), att, N, QUERY, delta);
    for (int i = 0; i < N; i++)
        x[i] += delta[i];
    norm(of(l, FF_NORM), x, N, in);
    small_product(of(l, UP_GATE), in, 2 * FF, N, both);
    for (int i = 0; i < FF; i++)
        both[i] *= both[FF + i] / (1 + exp(-both[FF + i]));
    small_product(of(l, DOWN), both, N, FF, delta);
    for (int i = 0; i < N; i++)
        x[i] += delta[i];
}

/* [SMALL_TEXT, VOCAB]; pp_free */
static double *wanted(void)
{
    double *logits = doubles(SMALL_TEXT * VOCAB), *keys = doubles(LAYERS * SMALL_TEXT * KV);
    double *values = doubles(LAYERS * SMALL_TEXT * KV), x[N];
    int32_t ids[SMALL_TEXT];
    small_text(ids, VOCAB);
    for (int r = 0; r < SMALL_TEXT; r++) {
        for (int i = 0; i < N; i++)
            x[i] = (double)arrays[EMBEDDING].values[ids[r] * N + i];
        for (int l = 0; l < LAYERS; l++)
            layer(l, r, keys + l * SMALL_TEXT * KV, values + l * SMALL_TEXT * KV, x);
        norm(arrays[LAST_NORM].values, x, N, x);
        small_product(arrays[OUTPUT].values, x, VOCAB, N, logits + r * VOCAB);
    }
    pp_free(keys);
    pp_free(values);
    return logits;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

#define NORMS "\"lnorm_config\": {\"type\": \"rms\", \"eps\": 1e-5, \"bias\": false, \"with_affine\": true}"
#define ATTENTION                                                                                                      \
    "\"n_heads\": 4, \"n_kv_heads\": 2, \"head_dim\": 32, \"q_lnorm\": true, \"k_lnorm\": true, "                      \
    "\"qkv_lnorm_on_heads\": true, \"sliding_window\": -1, \"q_bias\": false"
#define FEED_FORWARD "\"activation_type\": \"silu\", \"gated_activation\": true, \"ratio\": 4, \"size\": 96"
#define TEXT                                                                                                           \
    "\"rope\": true, \"rope_theta\": 100000, \"rope_scaling\": null, \"partial_rotary_factor\": 1.0, "                 \
    "\"vocab_size\": 68, \"embedding_size\": 70"
#define BLOCK(attention, feed_forward, more)                                                                           \
    "\"block_config\": {\"attn_config\": {" attention "}, \"ffn_config\": {" feed_forward "}" more "}"
#define USUAL_BLOCK BLOCK(ATTENTION ", " NORMS, FEED_FORWARD, ", " NORMS)

/* A folder without tensors. text: members of text_config; whole: what follows it. */
static const char *folder_of(const char *text, const char *whole)
{
    const char *dir = fresh_path("jina-vlm");
    char path[400], config[1800];
    struct pp_error err;
    const int n = snprintf(config, sizeof config, "{\"architectures\": [\"JinaVLMForConditionalGeneration\"], "
             "\"model_type\": \"jvlm\", \"auto_map\": {\"AutoModelForCausalLM\": "
             "\"modeling_jvlm.JinaVLMForConditionalGeneration\"}, \"text_config\": {\"model_type\": \"jvlm\", "
             "\"hidden_size\": %d, \"n_layers\": %d, \"additional_vocab_size\": %d, \"max_sequence_length\": 256, "
             "\"max_position_embeddings\": null, \"tie_word_embeddings\": false, %s}%s}", N, LAYERS, MORE, text, whole);
    assert_true(n > 0 && n < (int)sizeof config);
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
    return dir;
}

static void name_of(int i, bool mlx, char room[96])
{
    const char *begin = mlx ? "language_model." : "model.language_model.";
    const int l = (i - FIRST) / OF_LAYER, kind = (i - FIRST) % OF_LAYER;
    if (i < FIRST)
        snprintf(room, 96, "%s%s", i == OUTPUT && !mlx ? "" : begin, firsts[i]);
    else
        snprintf(room, 96, "%slayers.%d.%s.weight", begin, l, mlx ? of_layers[kind].mlx : of_layers[kind].theirs);
}

/* Writes a folder as its own code or MLX does; plain: without the rows of embeddings for pictures. */
static const char *folder(const char *text, bool mlx, bool plain)
{
    static float zeros[QUERY];
    const char *dir = folder_of(text, "");
    struct pp_tensor list[MOST + BESIDE];
    char names[MOST + BESIDE][96], path[400];
    struct pp_error err;
    size_t n = 0;
    for (int i = 0; i < n_arrays; i++) {
        if (plain && i == NEW_EMBEDDING)
            continue;
        list[n] = array_tensor(&arrays[i]);
        name_of(i, mlx, names[n]);
        if (plain && i == EMBEDDING)
            snprintf(names[n], sizeof *names, "%slanguage_model.embedding.weight", mlx ? "" : "model.");
        n++;
    }
    for (int i = 0; i < BESIDE; i++, n++) {
        const int kind = i % 3, l = i / 3;
        if (mlx && i < 3 * LAYERS)
            break;
        list[n] = array_tensor(&arrays[LAST_NORM]);
        list[n].ne[0] = i >= 3 * LAYERS ? N : kind ? KV : QUERY;
        list[n].size = (size_t)list[n].ne[0] * sizeof *zeros;
        list[n].data = zeros;
        if (i < 3 * LAYERS)
            snprintf(names[n], sizeof *names, "model.language_model.layers.%d.attn.%c_b", l, "qkv"[kind]);
        else
            snprintf(names[n], sizeof *names, "model.vision_model.%s", kind ? "vl_connector.projector.up.weight"
                                                                            : "layers.0.attn_lnorm.weight");
    }
    for (size_t i = 0; i < n; i++)
        list[i].name = names[i];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, n, &err), err);
    return dir;
}

/* A folder in MLX's form whose layers' matrices are quantised; in MLX's own formats and FP8 the output matrix, too,
 * whose rows other formats cannot pack in whole words. The rest keeps its type. */
static const char *packed(const char *form, const char *whole)
{
    const char *dir = folder_of(TEXT ", " USUAL_BLOCK, whole);
    struct tensor_file f = {.leave_out = NULL};
    const bool output = strncmp(form, "mlx", 3) == 0 || strncmp(form, "fp8", 3) == 0;
    for (int i = 0; i < n_arrays; i++) {
        const struct array *a = &arrays[i];
        const int64_t shape[] = {a->rows ? a->rows : a->cols, a->cols};
        char name[96];
        name_of(i, true, name);
        if ((i == OUTPUT && output) || (i >= FIRST && a->rows)) {
            name[strlen(name) - strlen(".weight")] = 0;
            packed_matrix(&f, packed_form(form), &(struct packed_options){0}, name, 0, a->rows, a->cols, a->values);
        } else {
            tensor_file_add(&f, name, "F32", a->rows ? 2 : 1, shape, a->values,
                            (size_t)array_size(a) * sizeof *a->values);
        }
    }
    const int64_t shape[] = {N};
    tensor_file_add(&f, "vision_model.layers.0.attn_norm.weight", "F32", 1, shape, arrays[LAST_NORM].values,
                    N * sizeof(float));
    tensor_file_add(&f, "vl_connector.pad_embed", "F32", 1, shape, arrays[LAST_NORM].values, N * sizeof(float));
    tensor_file_write(&f, dir, "model.safetensors");
    return dir;
}

static void jina_vlm(void **state)
{
    const char *made = fresh_path("jina-vlm.gguf"), *quantised = fresh_path("jina-vlm-q8_0.gguf");
    const char *back = fresh_path("jina-vlm-made");
    struct pp_error err;
    struct pp_gguf *g;
    (void)state;
    make();
    double *want = wanted();
    const char *own = folder(TEXT ", " USUAL_BLOCK, false, false);
    assert_logits(want, VOCAB, own);
    assert_same_bits(own, PP_KV_F32);
    assert_logits(want, VOCAB, folder(TEXT ", \"num_hidden_layers\": 2, " USUAL_BLOCK, true, false));
    assert_logits(want, VOCAB, folder(TEXT ", " USUAL_BLOCK, false, true));
    assert_true(small_likeness(own, "q8_0", want, VOCAB) > 0.99);
    assert_ok(pp_convert_to_gguf(own, made, &(struct pp_convert_options){0}, &err), err);
    assert_logits_everywhere(want, VOCAB, made);
    assert_ok(pp_gguf_open(made, &g, &err), err);
    int64_t n = 0;
    assert_true(pp_gguf_int(g, "qwen3.context_length", &n) && n == 256);
    assert_non_null(pp_gguf_tensor(g, "blk.1.attn_q_norm.weight"));
    assert_int_equal(pp_gguf_tensor(g, "token_embd.weight")->ne[1], VOCAB);
    pp_gguf_close(g);
    assert_ok(pp_quantize_file(made, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_true(small_likeness(quantised, NULL, want, VOCAB) > 0.99);
    assert_ok(pp_convert_to_folder(own, back, &(struct pp_convert_options){0}, &err), err);
    assert_model_type(back);
    assert_logits(want, VOCAB, back);
    pp_free(want);
    drop();
}

/* A LoRA with the folder's names, on the folder and on the file converted from it. */
static void adapted(void **state)
{
    static const int kinds[] = {QKV, O, UP_GATE, DOWN};
    const char *file = fresh_path("jina-vlm-adapted.gguf"), *converted = fresh_path("jina-vlm-adapter.gguf");
    struct folder f = {.random = 13};
    struct pp_error err;
    (void)state;
    make();
    const char *dir = folder(TEXT ", " USUAL_BLOCK, false, false);
    assert_ok(pp_convert_to_gguf(dir, file, &(struct pp_convert_options){0}, &err), err);
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            const struct array *a = &arrays[FIRST + l * OF_LAYER + kinds[i]];
            char name[96];
            name_of(FIRST + l * OF_LAYER + kinds[i], false, name);
            name[strlen(name) - strlen(".weight")] = 0;
            folder_add_merged(&f, name, 2, 1.5, a->values, a->rows, a->cols);
        }
    double *want = wanted();
    const char *adapter = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 3}");
    assert_adapted(dir, adapter, want, VOCAB, 2e-4);
    assert_adapted(file, adapter, want, VOCAB, 2e-4);
    assert_ok(pp_convert_to_gguf(adapter, converted, &(struct pp_convert_options){.base = dir}, &err), err);
    assert_adapted(file, converted, want, VOCAB, 2e-4);
    folder_empty(&f);
    pp_free(want);
    drop();
}

static void quantised(void **state)
{
#define GPTQ(bits)                                                                                                     \
    ", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": " #bits ", \"group_size\": 32}"
#define COMPRESSED(bits)                                                                                               \
    ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "                                           \
    "\"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], "                    \
    "\"weights\": {\"num_bits\": " #bits ", \"type\": \"int\"}}}, \"ignore\": [\"lm_head\"]}"
    static const char *const forms[][2] = {
        {"mlx-2", ", \"quantization\": {\"bits\": 2, \"group_size\": 32}"},
        {"mlx-mxfp4", ", \"quantization\": {\"bits\": 4, \"group_size\": 32, \"mode\": \"mxfp4\"}"},
        {"mlx-mxfp8", ", \"quantization\": {\"bits\": 8, \"group_size\": 32, \"mode\": \"mxfp8\"}"},
        {"fp8-tensor", ", \"quantization_config\": {\"quant_method\": \"fp8\"}"},
        {"gptq-order", GPTQ(4)},
        {"gptq-2", GPTQ(2)},
        {"awq-32", ", \"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32, "
                   "\"version\": \"gemm\"}"},
        {"ct-4-zero", COMPRESSED(4)},
        {"ct-2", COMPRESSED(2)},
    };
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        make();
        const char *dir = packed(forms[i][0], forms[i][1]);
        double *want = wanted();
        const double cosine = small_likeness(dir, NULL, want, VOCAB);
        if (!(cosine > 0.99))
            fail_msg("%s: a cosine of %g", forms[i][0], cosine);
        pp_free(want);
        drop();
    }
    /* a block that spans both halves cannot be split */
    struct pp_source *s;
    struct pp_error err;
    make();
    assert_int_not_equal(pp_source_open(packed("fp8", ", \"quantization_config\": {\"quant_method\": \"fp8\", "
                                                      "\"weight_block_size\": [128, 128]}"), &s, &err), PP_OK);
    if (!strstr(err.text, "different order"))
        fail_msg("%s", err.text);
    drop();
}

/* Whichever allocation fails, the error says so: a tensor whose name could not be made does not count as unknown. */
static void out_of_memory(void **state)
{
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    make();
    const char *dir = folder(TEXT ", " USUAL_BLOCK, false, false);
    uint64_t n = pp_mem_count();
    assert_ok(pp_source_open(dir, &s, &err), err);
    n = pp_mem_count() - n;
    pp_source_close(s);
    for (uint64_t at = 1; at <= n; at++) {
        pp_mem_fail_at(at, 0);
        const enum pp_code code = pp_source_open(dir, &s, &err);
        pp_mem_fail_at(0, 0);
        if (code == PP_OK)
            pp_source_close(s);
        else if (code != PP_ERR_NOMEM)
            fail_msg("allocation %d failed, and the error was: %s", (int)at, err.text);
    }
    drop();
}

static void refused(void **state)
{
#define ATTN(more) TEXT ", " BLOCK(more ATTENTION ", " NORMS, FEED_FORWARD, ", " NORMS)
#define FFN(more) TEXT ", " BLOCK(ATTENTION ", " NORMS, more FEED_FORWARD, ", " NORMS)
#define WHOLE(more) TEXT ", " BLOCK(ATTENTION ", " NORMS, FEED_FORWARD, more ", " NORMS)
    static const char *const cases[][2] = {
        {TEXT, "block_config"},
        {"\"rope\": false, " TEXT ", " USUAL_BLOCK, "rope"},
        {"\"normalize_input_embeds\": true, " TEXT ", " USUAL_BLOCK, "normalize_input_embeds"},
        {"\"partial_rotary_factor\": 0.5, " TEXT ", " USUAL_BLOCK, "partial_rotary_factor"},
        {ATTN("\"q_bias\": true, "), "q_bias"},
        {ATTN("\"o_bias\": true, "), "o_bias"},
        {ATTN("\"q_lnorm\": false, "), "q_lnorm"},
        {ATTN("\"v_lnorm\": true, "), "v_lnorm"},
        {ATTN("\"qkv_lnorm_on_heads\": false, "), "qkv_lnorm_on_heads"},
        {ATTN("\"sliding_window\": 64, "), "sliding_window"},
        {ATTN("\"softmax_scale\": 0.1, "), "softmax_scale"},
        {ATTN("\"clip_qkv\": 8, "), "clip_qkv"},
        {ATTN("\"n_heads\": \"four\", "), "n_heads"},
        {ATTN("\"n_heads\": 0, "), "heads"},
        {ATTN("\"lnorm_config\": {\"type\": \"rms\", \"eps\": 1e-6}, "), "eps of attn_config"},
        {TEXT ", " BLOCK(ATTENTION, FEED_FORWARD, ", " NORMS), "lnorm_config"},
        {FFN("\"gated_activation\": false, "), "gated_activation"},
        {FFN("\"bias\": true, "), "bias"},
        {FFN("\"activation_type\": \"gelu\", "), "gelu"},
        {FFN("\"ratio\": 0, "), "ratio"},
        {FFN("\"size\": 0, \"ratio\": 9007199254740991, "), "ratio"},
        {WHOLE(", \"postnorm\": true"), "postnorm"},
        {WHOLE(", \"attn_lscale_init\": 0.1"), "attn_lscale_init"},
        {WHOLE(", \"lnorm_config\": {\"type\": \"default\"}"), "type"},
        {WHOLE(", \"lnorm_config\": {\"type\": \"rms\", \"with_affine\": false}"), "with_affine"},
    };
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(pp_source_open(folder(cases[i][0], false, false), &s, &err), PP_OK);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: %s", cases[i][0], err.text);
    }
    drop();
}

TEST_GROUP(jina_vlm)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(jina_vlm), cmocka_unit_test(adapted),
                                       cmocka_unit_test(quantised), cmocka_unit_test(out_of_memory),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("jina_vlm", tests, NULL, NULL);
}
