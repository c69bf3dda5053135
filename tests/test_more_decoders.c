/* test_more_decoders.c - what test_folder_decoders.c tests, of further families. */
#include <stdio.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/convert.h"
#include "engine/hf.h"
#include "tests/adapter_folder.h"
#include "tests/decoder_checks.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* BioGPT: embeddings that are scaled, or not. */
static void biogpt(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("biogpt");
    const char *folder = check_decoder(&s);
    struct pp_model *m;
    struct pp_error err;
    assert_tensor(folder, "biogpt.layers.1.self_attn.out_proj.bias", 1, s.n_embd);
    s.embd_scale = 0;
    s.tied = false;
    folder = check_decoder(&s);
    assert_tensor(folder, "output_projection.weight", 2, s.n_embd);
    s.epsilon = 1e-12f; /* what config.json says, and no norm has */
    struct decoder *d = decoder_make(&s);
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "epsilon"));
    decoder_free(d);
    s.epsilon = 1e-5f;
    s.embd_scale = 3;
    d = decoder_make(&s);
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "embedding_scale"));
    decoder_free(d);
}

/* ZAYA1: convolved queries and keys, values of the last position, experts chosen by what goes on from layer to layer;
 * windows in some layers, with a RoPE of their own. */
static void zaya(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("zaya");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.qkv_proj.conv_qk_depthwise.weight", 3, 2);
    assert_tensor(folder, "model.layers.1.self_attn.qkv_proj.conv_qk_grouped.weight", 3, 2);
    assert_tensor(folder, "model.layers.0.self_attn.qk_norm.temp", 1, s.n_head_kv);
    assert_tensor(folder, "model.layers.2.mlp.experts.gate_up_proj", 3, s.n_embd);
    assert_tensor(folder, "model.layers.2.mlp.gate.balancing_biases", 1, s.n_expert + 1);
    assert_tensor(folder, "model.layers.0.post_mlp_residual_scale.residual_bias", 1, s.n_embd);
    assert_tensor(folder, "model.input_hidden_states_scale", 1, s.n_embd);
    s.window = 7;
    s.wide = 2;
    s.base = 500;
    s.say_windows = true;
    s.n_layer = 4;
    s.tied = false;
    check_decoder(&s);
}

/* Step 3: queries of low rank over one head of keys. */
static void step3(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("step3_text");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.wq.weight", 2, s.q_rank);
    assert_tensor(folder, "model.layers.0.self_attn.inter_norm.weight", 1, s.q_rank);
    assert_tensor(folder, "model.layers.1.moe.up_proj.weight", 3, s.n_embd);
    assert_config(folder, "moe_layers_enum", "0,1");
    s.n_head_kv = 2;
    struct decoder *d = decoder_make(&s);
    struct pp_model *m;
    struct pp_error err;
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "heads of keys"));
    decoder_free(d);
}

TEST_GROUP(more_decoders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biogpt),
        cmocka_unit_test(zaya),
        cmocka_unit_test(step3),
    };
    return cmocka_run_group_tests_name("more_decoders", tests, NULL, NULL);
}
