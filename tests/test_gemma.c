/* test_gemma.c - Gemma 4 in its three kinds, Gemma 3n, and EmbeddingGemma 2: small random models must yield the results
 * of their formulas from a GGUF file, from the file and the folder made from it, and from the file converted from that
 * folder; bit-identical with any number of rows and threads. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "tests/gemma_model.h"
#include "tests/small_model.h"
#include "tests/support.h"

static const char *check(const struct gemma_shape *s)
{
    struct gemma *g = gemma_make(s);
    const char *file = gemma_write(g);
    double *want = doubles((int64_t)SMALL_TEXT * s->n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, s->n_vocab);
    gemma_compute(g, ids, SMALL_TEXT, want);
    assert_same_bits(file, PP_KV_F32);
    assert_same_bits(file, PP_KV_Q8);
    const char *folder = assert_logits_everywhere(want, s->n_vocab, file), *again = fresh_path("again.gguf");
    struct pp_error err;
    assert_ok(pp_quantize_file(file, again, "F32", &(struct pp_convert_options){0}, &err), err);
    assert_logits(want, s->n_vocab, again);
    pp_free(want);
    gemma_free(g);
    return folder;
}

/* The small models: per-layer inputs, and layers that share keys and values. */
static void small_ones(void **state)
{
    (void)state;
    struct gemma_shape s = gemma_shape();
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.layer_scalar", 1, 1);
    assert_tensor(folder, "model.embed_tokens_per_layer.weight", 2, s.n_layer * s.n_embd_layer);
    assert_tensor(folder, "model.layers.2.self_attn.q_norm.weight", 1, s.wide_head_dim);
    s.n_shared = 0;
    s.double_wide = false;
    check(&s);
}

/* The large one: values come from the key projection, and layers with full attention have another number of heads. */
static void keys_as_values(void **state)
{
    (void)state;
    struct gemma_shape s = gemma_shape();
    s.n_embd_layer = s.n_shared = 0;
    s.double_wide = false;
    s.keys_as_values = true;
    s.wide_n_head_kv = 1;
    check(&s);
}

static void mixture(void **state)
{
    (void)state;
    struct gemma_shape s = gemma_shape();
    s.n_embd_layer = s.n_shared = 0;
    s.double_wide = false;
    s.keys_as_values = true;
    s.n_expert = 6;
    s.n_used = 2;
    s.n_ff_expert = 32;
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.experts.gate_up_proj", 3, s.n_embd);
    assert_tensor(folder, "model.layers.1.router.per_expert_scale", 1, s.n_expert);
}

static void streams(void **state)
{
    (void)state;
    struct gemma_shape s = gemma_streams();
    const char *folder = check(&s);
    assert_tensor(folder, "model.altup_unembed_projections.2.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.altup.prediction_coefs.weight", 2, s.n_stream);
    assert_tensor(folder, "model.layers.1.altup.correct_output_scale", 1, s.n_embd);
}

/* Vectors of all rows of the text, [SMALL_TEXT, n_embd_out]. */
static void vectors_of(const char *path, const char *kernels, int n_threads, const int32_t *ids, int width, float *out)
{
    const struct pp_engine_options opt = {.n_threads = n_threads, .kernels = kernels, .kv_memory = 16u << 20,
                                          .activations = PP_ACT_F32, .n_ctx = SMALL_TEXT};
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_row rows[SMALL_TEXT];
    struct pp_error err;
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_true(pp_model_info(m)->encoder);
    assert_int_equal(pp_model_info(m)->n_embd_out, width);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int i = 0; i < SMALL_TEXT; i++)
        rows[i] = (struct pp_row){.seq = s, .token = ids[i], .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_HIDDEN};
    assert_ok(pp_step(e, rows, SMALL_TEXT, NULL, &err), err);
    for (int i = 0; i < SMALL_TEXT; i++)
        memcpy(out + i * width, pp_step_output(e, i), (size_t)width * sizeof *out);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
}

static void expect_vectors(const char *path, const int32_t *ids, int width, const double *want)
{
    static const char *const kernels[] = {NULL, "scalar", NULL};
    float *got[3];
    for (int i = 0; i < 3; i++) {
        got[i] = pp_calloc((size_t)(SMALL_TEXT * width), sizeof **got);
        assert_non_null(got[i]);
        vectors_of(path, kernels[i], 1 + i, ids, width, got[i]);
        assert_memory_equal(got[0], got[i], (size_t)(SMALL_TEXT * width) * sizeof **got);
    }
    for (int i = 0; i < SMALL_TEXT * width; i++)
        if (!(fabs((double)got[0][i] - want[i]) <= 1e-4 * fmax(1, fabs(want[i]))))
            fail_msg("%s: value %d of row %d is %g, not %g", path, i % width, i / width, (double)got[0][i], want[i]);
    for (int i = 0; i < 3; i++)
        pp_free(got[i]);
}

/* A folder whose per_layer_config is missing, or names another layer, is refused. */
static void expect_layers_refused(const char *folder)
{
    static const char *const others[] = {"{\"01\": {\"head_dim\": 16}}", "{}",
                                         "{\"02\": {\"head_dim\": 16}, \"05\": {\"head_dim\": 32}}"};
    char path[512], *text;
    size_t n;
    struct pp_model *m;
    struct pp_error err;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 16, &text, &n, &err), err);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        cJSON *config = cJSON_Parse(text);
        cJSON_ReplaceItemInObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(config, "text_config"),
                                               "per_layer_config", cJSON_Parse(others[i]));
        char *other = cJSON_PrintUnformatted(config);
        assert_ok(pp_write_file(path, other, strlen(other), 0600, &err), err);
        assert_int_equal(pp_model_open(folder, &m, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "per_layer_config"));
        cJSON_free(other);
        cJSON_Delete(config);
    }
    pp_free(text);
}

/* EmbeddingGemma 2: from other programs' files, from a folder, and from the file converted from that, which states its
 * window as theirs do. */
static void vectors(void **state)
{
    struct gemma_shape s = gemma_vectors();
    struct gemma *g = gemma_make(&s);
    const char *file = gemma_write(g), *folder = gemma_write_folder(g), *made = fresh_path("vectors.gguf");
    double *want = doubles((int64_t)SMALL_TEXT * s.n_embd_out);
    int32_t ids[SMALL_TEXT];
    int64_t window = 0, width = 0;
    struct pp_gguf *again;
    struct pp_error err;
    (void)state;
    small_text(ids, s.n_vocab);
    gemma_compute(g, ids, SMALL_TEXT, want);
    expect_vectors(file, ids, s.n_embd_out, want);
    expect_vectors(folder, ids, s.n_embd_out, want);
    assert_ok(pp_convert_to_gguf(folder, made, &(struct pp_convert_options){0}, &err), err);
    expect_vectors(made, ids, s.n_embd_out, want);
    assert_ok(pp_gguf_open(made, &again, &err), err);
    assert_true(pp_gguf_string_is(again, "general.architecture", "gemma-embedding2"));
    assert_true(pp_gguf_int(again, "gemma-embedding2.attention.sliding_window", &window));
    assert_int_equal(window, 2 * (s.window - 1));
    assert_true(pp_gguf_int(again, "gemma-embedding2.embedding_length_out", &width));
    assert_int_equal(width, s.n_embd_out);
    pp_gguf_close(again);
    expect_layers_refused(folder);
    gemma_free(g);
    pp_free(want);
}

TEST_GROUP(gemma)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_ones),
        cmocka_unit_test(keys_as_values),
        cmocka_unit_test(mixture),
        cmocka_unit_test(streams),
        cmocka_unit_test(vectors),
    };
    return cmocka_run_group_tests_name("gemma", tests, NULL, NULL);
}
