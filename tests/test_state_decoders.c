/* test_state_decoders.c - what test_folder_decoders.c tests, of families with states in attention's place: Zamba's,
 * with blocks that layers have in common, Griffin's, and MiniMax's lightning attention. */
#include <math.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "tests/decoder_checks.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* The first Zamba: Mamba in scans side by side, and a block that layers have in common. */
static void zamba(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("zamba");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.2.mamba_decoder.mamba.A_log", 3, s.key_dim);
    assert_tensor(folder, "model.layers.0.mamba.x_proj_weight", 3, 16 * s.zamba.n_head / s.zamba.n_scan);
    assert_tensor(folder, "model.layers.2.shared_transf.feed_forward.gate_proj.weight", 2, s.n_embd);
    s.zamba.n_scan = 1;
    s.zamba.layers = "mmhhmh";
    s.tied = false;
    check_decoder(&s);
    s.zamba.layers = "hmhhmm"; /* no period gives that: folders have a list */
    check_decoder(&s);
    s.zamba.layers = "mmhhmh";
    const struct spoilt cases[] = {{"blk.1.ssm_dt.bias", 1, 95, "ssm_dt.bias"},
                                   {"blk.0.ssm_x.weight", 3, 96, "ssm_x"},
                                   {"blk.2.shared_gate.weight", 0, 0, "shared_gate"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
}

/* A file that says it has no scans, by which channels would be divided. */
static void bad_zamba(void **state)
{
    static const char key[] = "zamba.ssm.scan_count";
    const struct decoder_shape s = decoder_shape("zamba");
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    struct pp_model *m;
    struct pp_error err;
    char *bytes;
    size_t n;
    (void)state;
    assert_ok(pp_read_file(file, 1 << 24, &bytes, &n, &err), err);
    char *at = memmem(bytes, n, key, strlen(key));
    assert_non_null(at);
    memset(at + strlen(key) + 4, 0, 4); /* behind the type */
    assert_ok(pp_write_file(file, bytes, n, 0600, &err), err);
    assert_int_equal(pp_model_open(file, &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "number of scans is 0; it must be 1 to"));
    pp_free(bytes);
    decoder_free(d);
}

/* Zamba2: Mamba 2 in all layers, and blocks of attention and feed-forward part that layers have in common. */
static void zamba2(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("zamba2");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.0.mamba.in_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.mamba_decoder.mamba.norm.weight", 1, 16 * s.zamba.n_head);
    assert_tensor(folder, "model.layers.1.shared_transformer.input_layernorm.weight", 1, 2 * s.n_embd);
    assert_tensor(folder, "model.layers.2.shared_transformer.self_attn.linear_q_adapter_list.3.0.weight", 2,
                  2 * s.n_embd);
    assert_tensor(folder, "model.layers.1.shared_transformer.feed_forward.gate_up_proj_adapter_list.2.1.weight", 2,
                  s.zamba.rank);
    assert_tensor(folder, "model.layers.5.linear.weight", 2, s.n_embd);
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    assert_resumes(file, s.n_vocab);
    assert_goes_back(file, s.n_vocab);
    check_quantised(&s);
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, s.n_vocab);
    decoder_compute(d, ids, SMALL_TEXT, want);
    strcpy(decoder_find(d, "blk.1.shared_q.weight")->name, "blk.4.shared_q.weight"); /* which is the same to both */
    strcpy(decoder_find(d, "blk.2.shared_ffn_norm.weight")->name, "blk.5.shared_ffn_norm.weight");
    assert_logits(want, s.n_vocab, decoder_write(d));
    pp_free(want);
    decoder_free(d);
    s.zamba.adapted = false;
    s.zamba.n_block = s.zamba.n_group = 1;
    s.unrotated = true;
    s.n_head_kv = 2;
    check_decoder(&s);
}

/* Files that contradict themselves about what layers have in common. */
static void bad_zamba2(void **state)
{
    static const struct spoilt cases[] = {
        {"blk.1.shared_q.weight", 96, 48, "96 x 48"},
        {"blk.2.shared_norm.weight", 0, 48, "48 values"},
        {"blk.1.shared_up_a.2.weight", 0, 0, "missing"},
        {"blk.2.shared_v_b.3.weight", 96, 4, "96 x 4"},
        {"blk.4.shared_out.weight", 0, 0, "missing"},
        {"blk.3.ssm_in.weight", 48, 48, "48 x 48"},
    };
    struct decoder_shape s = decoder_shape("zamba2");
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.zamba.n_block = 5;
    struct decoder *d = decoder_make(&s);
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "share 5 blocks"));
    decoder_free(d);
}

/* RecurrentGemma: Griffin's recurrence in two of three layers, attention with a window in the third; conversations are
 * saved, forked and gone back in at the same bits. */
static void recurrent_gemma(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("recurrent_gemma");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.0.temporal_block.rg_lru.input_gate_weight", 3, s.lru_width / s.n_head);
    assert_tensor(folder, "model.layers.1.temporal_block.rg_lru.recurrent_gate_bias", 2, s.lru_width / s.n_head);
    assert_tensor(folder, "model.layers.3.temporal_block.conv_1d.weight", 3, DECODER_STATE_TAPS);
    assert_tensor(folder, "model.layers.2.temporal_block.o_proj.bias", 1, s.n_embd);
    assert_tensor(folder, "model.layers.2.mlp_block.down_proj.weight", 2, s.n_ff);
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    assert_resumes(file, s.n_vocab);
    assert_goes_back(file, s.n_vocab);
    const char *mlx = check_quantised(&s); /* whose gates stay as they are */
    assert_tensor(mlx, "model.layers.0.temporal_block.rg_lru.input_gate_weight", 3, s.lru_width / s.n_head);
    decoder_free(d);
    s.n_head_kv = 2;
    s.lru_width = 512;
    s.seed = 2;
    check_decoder(&s);
}

/* Files that contradict themselves about it. */
static void bad_recurrent_gemma(void **state)
{
    static const struct spoilt cases[] = {
        {"blk.0.lru_x.weight", 128, 48, "128 x 48"},
        {"blk.1.lru_a", 0, 128, "128 values"},
        {"blk.1.lru_a", 0, 0, "number of key heads"}, /* which tells layers with states */
        {"blk.0.lru_a_gate.bias", 0, 256, "256 values"},
        {"blk.0.lru_in_gate.bias", 0, 0, "missing"},
        {"blk.0.lru_in_gate.weight", 64, 32, "lru_in_gate"},
        {"blk.3.lru_conv1d.weight", 256, 3, "3"},
        {"blk.3.lru_conv1d.bias", 0, 0, "missing"},
        {"blk.2.attn_k.weight", 0, 0, "missing"},
    };
    struct decoder_shape s = decoder_shape("recurrent_gemma");
    (void)state;
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.lru_width = 264;
    struct decoder *d = decoder_make(&s);
    struct pp_model *m;
    struct pp_error err;
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "264 channels"));
    decoder_free(d);
}

/* MiniMax-Text-01: lightning attention in each second layer, and norms of the stream itself. Files with one number for
 * the stream, with several, and the first ones. */
static void minimax(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("minimax-01"), first = decoder_shape("minimax");
    check_decoder(&first);
    check_decoder(&s);
    memcpy(s.stream_scales, first.stream_scales, sizeof s.stream_scales);
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.qkv_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.self_attn.norm.weight", 1, s.n_head * s.head_dim);
    assert_tensor(folder, "model.layers.2.self_attn.k_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.0.block_sparse_moe.experts.5.w2.weight", 2, s.n_ff);
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    assert_resumes(file, s.n_vocab);
    assert_goes_back(file, s.n_vocab);
    decoder_free(d);
    struct decoder_shape all = s;
    all.n_used = s.n_expert; /* so that no other one is chosen */
    check_quantised(&all);
    s.rope_dim = s.head_dim;
    s.n_head_kv = 4;
    s.stream_scales[1][0] = s.stream_scales[1][1] = 1;
    check_decoder(&s);
}

/* Numbers of the stream that cannot be, and layers of one kind only. */
static void bad_minimax(void **state)
{
    static const struct {
        float stream, added;
        int n_layer;
        const char *word;
    } cases[] = {{0, 1, 4, "is 0, which cannot be"}, {2, 0, 4, "is 0, which cannot be"},
                 {INFINITY, 1, 4, "scale of the stream"}, {-1, 1, 4, "scale of the stream"},
                 {2, 1, 0, "number of layers"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct decoder_shape s = decoder_shape("minimax-01");
        struct pp_model *model;
        struct pp_error err;
        for (int k = 0; k < 3; k++) {
            s.stream_scales[k][0] = cases[i].stream;
            s.stream_scales[k][1] = cases[i].added;
        }
        s.n_layer = cases[i].n_layer;
        struct decoder *d = decoder_make(&s);
        assert_int_not_equal(pp_model_open(decoder_write(d), &model, &err), PP_OK);
        if (!strstr(err.text, cases[i].word))
            fail_msg("case %zu: %s", i, err.text);
        decoder_free(d);
    }
}

TEST_GROUP(state_decoders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zamba), cmocka_unit_test(bad_zamba), cmocka_unit_test(zamba2), cmocka_unit_test(bad_zamba2),
        cmocka_unit_test(recurrent_gemma), cmocka_unit_test(bad_recurrent_gemma), cmocka_unit_test(minimax),
        cmocka_unit_test(bad_minimax),
    };
    return cmocka_run_group_tests_name("state_decoders", tests, NULL, NULL);
}
