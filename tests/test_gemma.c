/* test_gemma.c - Gemma 4 of its three kinds, and Gemma 3n: small random models give what their formulas say, from a
 * GGUF file, from the file and the folder that are made of it, and from the file that is made of that; with any number
 * of rows and threads the same bits. */
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
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

/* The small ones: inputs of each layer's own, and layers that share keys and values. */
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

/* The large one: no projection for values, and another number of heads, where everything is seen. */
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

TEST_GROUP(gemma)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_ones),
        cmocka_unit_test(keys_as_values),
        cmocka_unit_test(mixture),
        cmocka_unit_test(streams),
    };
    return cmocka_run_group_tests_name("gemma", tests, NULL, NULL);
}
