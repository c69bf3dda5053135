/* test_state_decoders.c - families with recurrent states in place of attention, tested as in test_folder_decoders.c:
 * Zamba with its shared blocks, Griffin, MiniMax's lightning attention, and xLSTM. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "tests/decoder_checks.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* The first Zamba: Mamba in parallel scans, and a block that layers share. */
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
    s.zamba.layers = "hmhhmm"; /* no period describes this: folders have a list */
    check_decoder(&s);
    s.zamba.layers = "mmhhmh";
    const struct spoilt cases[] = {{"blk.1.ssm_dt.bias", 1, 95, "ssm_dt.bias"},
                                   {"blk.0.ssm_x.weight", 3, 96, "ssm_x"},
                                   {"blk.2.shared_gate.weight", 0, 0, "shared_gate"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
}

/* A file that claims 0 scans, by which the channels would be divided. */
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
    memset(at + strlen(key) + 4, 0, 4); /* after the key's type */
    assert_ok(pp_write_file(file, bytes, n, 0600, &err), err);
    assert_int_equal(pp_model_open(file, &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "number of scans is 0; it must be from 1 to"));
    pp_free(bytes);
    decoder_free(d);
}

/* Zamba2: Mamba 2 in all layers, and blocks of attention and feed-forward part that layers share. */
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
    strcpy(decoder_find(d, "blk.1.shared_q.weight")->name, "blk.4.shared_q.weight"); /* the block's other layer may have
                                                                                        it as well */
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

/* Files that contradict themselves about shared blocks are refused. */
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
    const char *mlx = check_quantised(&s); /* its gates are not quantised */
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
        {"blk.1.lru_a", 0, 0, "number of key heads"}, /* its presence marks layers with states */
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

/* MiniMax-Text-01: lightning attention in every second layer, and norms that replace the stream. Files with one factor
 * for the stream, with several, and the first ones. */
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
    all.n_used = s.n_expert; /* all experts are used, so that rounding cannot change the choice */
    check_quantised(&all);
    s.rope_dim = s.head_dim;
    s.n_head_kv = 4;
    s.stream_scales[1][0] = s.stream_scales[1][1] = 1;
    check_decoder(&s);
}

/* Impossible factors of the stream, and layers of one kind only. */
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

/* A folder's file with the names that some versions of transformers have for queries, keys and values. */
static void rename_heads(const char *folder)
{
    static const char *const names[3][2] = {{"mlstm_layer.q.", "mlstm_layer.query."},
                                            {"mlstm_layer.k.", "mlstm_layer.key."},
                                            {"mlstm_layer.v.", "mlstm_layer.value."}};
    char path[400], *bytes;
    struct pp_error err;
    struct pp_buf to = {0};
    size_t n;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(pp_read_file(path, 1 << 24, &bytes, &n, &err), err);
    uint64_t head;
    memcpy(&head, bytes, sizeof head);
    const char *at = bytes + 8, *end = at + head;
    pp_buf_add(&to, bytes, 8);
    int found = 0;
    while (at < end) {
        size_t skip = 0;
        for (int i = 0; i < 3 && !skip; i++)
            if (strncmp(at, names[i][0], strlen(names[i][0])) == 0) {
                pp_buf_str(&to, names[i][1]);
                skip = strlen(names[i][0]);
                found++;
            }
        if (!skip)
            pp_buf_add(&to, at, skip = 1);
        at += skip;
    }
    assert_true(found == 9);
    while (to.len % 8)
        pp_buf_str(&to, " ");
    head = to.len - 8;
    pp_buf_add(&to, end, (size_t)(bytes + n - end));
    assert_false(to.bad);
    memcpy(to.data, &head, sizeof head);
    assert_ok(pp_write_file(path, to.data, to.len, 0600, &err), err);
    pp_buf_free(&to);
    pp_free(bytes);
}

static int best(const double *logits, int n)
{
    int at = 0;
    for (int t = 1; t < n; t++)
        at = logits[t] > logits[at] ? t : at;
    return at;
}

/* Tokens chosen greedily after a text, one by one, are those that the formulas choose. */
static void check_greedy(const struct decoder *d, const char *file)
{
    enum { TEXT = 60, ANSWER = 8 };
    const int n_vocab = d->s.n_vocab;
    int32_t ids[SMALL_TEXT];
    double *want = doubles(SMALL_TEXT * n_vocab), *got = doubles(n_vocab);
    float *logits = pp_calloc((size_t)(TEXT * n_vocab), sizeof *logits);
    struct running r = run_small(file, NULL);
    assert_non_null(logits);
    small_text(ids, n_vocab);
    run_in_passes(r.e, r.s, ids, TEXT, TEXT, logits);
    for (int i = TEXT; i < TEXT + ANSWER; i++) {
        const float *last = i == TEXT ? logits + (TEXT - 1) * n_vocab : logits;
        decoder_compute(d, ids, i, want);
        for (int t = 0; t < n_vocab; t++)
            got[t] = (double)last[t];
        ids[i] = best(want + (i - 1) * n_vocab, n_vocab);
        assert_int_equal(best(got, n_vocab), ids[i]);
        run_in_passes(r.e, r.s, &ids[i], 1, 1, logits);
    }
    stop_small(&r);
    pp_free(logits);
    pp_free(want);
    pp_free(got);
}

/* A LoRA of the projections before and after the states computes what the merged weights do. */
static void check_adapter(struct decoder *d, const char *file)
{
    static const char *const modules[][2] = {{"backbone.blocks.0.mlstm_layer.v", "blk.0.attn_v.weight"},
                                             {"backbone.blocks.1.mlstm_layer.out_proj", "blk.1.attn_output.weight"},
                                             {"backbone.blocks.2.mlstm_layer.igate_preact",
                                              "blk.2.mlstm_in_gate.weight"}};
    struct folder f = {.random = 5};
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        struct matrix *w = decoder_find(d, modules[i][1]);
        folder_add_merged(&f, modules[i][0], 4, 2, w->values, w->rows, w->cols);
    }
    const char *path = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, "
                                             "\"target_modules\": [\"v\", \"out_proj\", \"igate_preact\"]}");
    expect_adapted(d, file, path, 1e-3);
    folder_empty(&f);
}

/* xLSTM: matrix memories with exponential gates in all layers; input projections apart or fused in one matrix, with
 * and without biases. */
static void xlstm(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("xlstm");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "backbone.blocks.0.mlstm_layer.k.weight", 2, s.n_embd);
    assert_tensor(folder, "backbone.blocks.2.mlstm_layer.fgate_preact.bias", 1, s.mlstm.n_head);
    assert_tensor(folder, "backbone.blocks.1.mlstm_layer.multihead_norm.weight", 1, s.mlstm.n_head * s.head_dim);
    assert_tensor(folder, "backbone.blocks.1.ffn.proj_down.weight", 2, s.n_ff);
    assert_config(folder, "\"weight_mode\"", "single");
    rename_heads(folder);
    check_other(&s, folder);
    check_quantised(&s);
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    assert_resumes(file, s.n_vocab);
    assert_goes_back(file, s.n_vocab);
    check_greedy(d, file);
    check_adapter(d, file);
    decoder_free(d);
    s.mlstm.fused = s.tied = s.norm_bias = true;
    s.ff = FF_SILU_FUSED;
    s.biases = BIAS_QKV | BIAS_FF;
    folder = check_decoder(&s);
    assert_tensor(folder, "backbone.blocks.0.mlstm_layer.qkv_opreact.bias", 1,
                  2 * s.mlstm.n_head * (s.mlstm.key_dim + s.head_dim));
    assert_tensor(folder, "backbone.blocks.0.ffn.proj_up_gate_z.weight", 2, s.n_embd);
    assert_config(folder, "\"weight_mode\"", "fused");
    assert_config(folder, "\"use_bias\"", "true");
}

/* Gates at their cap, keys longer than values, and divisors that are always 1. */
static void xlstm_gates(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("xlstm");
    s.mlstm.n_head = 3;
    s.mlstm.key_dim = 48;
    s.mlstm.cap = 40;
    s.mlstm.eps = 0;
    s.head_dim = 16;
    s.final_cap = 0;
    s.n_layer = 2;
    struct decoder *d = decoder_make(&s);
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    int32_t ids[SMALL_TEXT];
    for (int l = 0; l < s.n_layer; l++) /* covers the whole range of gate values */
        for (int gate = 0; gate < 2; gate++) {
            char name[48];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, gate ? "mlstm_in_gate" : "mlstm_forget_gate");
            struct matrix *w = decoder_find(d, name);
            for (int64_t i = 0; i < w->rows * w->cols; i++)
                w->values[i] *= 8;
        }
    small_text(ids, s.n_vocab);
    decoder_compute(d, ids, SMALL_TEXT, want);
    assert_logits(want, s.n_vocab, decoder_write(d));
    pp_free(want);
    decoder_free(d);
}

/* Files that contradict themselves about it. */
static void bad_xlstm(void **state)
{
    static const struct spoilt cases[] = {
        {"blk.0.mlstm_in_gate.bias", 0, 0, "missing"},
        {"blk.1.mlstm_forget_gate.weight", 3, 48, "3 x 48"},
        {"blk.1.mlstm_norm.weight", 0, 32, "32 values"},
        {"blk.0.attn_k.weight", 64, 48, "64 x 48"},
        {"blk.2.attn_gate.weight", 0, 0, "missing"},
        {"blk.2.attn_output.weight", 48, 32, "48 x 32"},
    };
    static const struct {
        int n_head, key_dim;
        float cap, eps;
        const char *word;
    } numbers[] = {{0, 16, 4, 0, "lacks xlstm.mlstm.head_count"}, {4097, 16, 4, 0, "number of heads with states"},
                   {2, 24, 4, 0, "24 x 32 values"}, {2, 16, 0, 0, "capped by 0"},
                   {2, 16, 41, 0, "capped by 41"}, {2, 16, NAN, 0, "capped by"}, {2, 16, 4, -1, "epsilon of states"}};
    struct decoder_shape s = decoder_shape("xlstm");
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct decoder *d = decoder_make(&s);
        d->s.mlstm.n_head = numbers[i].n_head;
        d->s.mlstm.key_dim = numbers[i].key_dim;
        d->s.mlstm.cap = numbers[i].cap;
        d->s.mlstm.eps = numbers[i].eps;
        if (pp_model_open(decoder_write(d), &m, &err) == PP_OK || !strstr(err.text, numbers[i].word))
            fail_msg("case %zu: %s", i, err.text);
        decoder_free(d);
    }
}

TEST_GROUP(state_decoders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zamba), cmocka_unit_test(bad_zamba), cmocka_unit_test(zamba2), cmocka_unit_test(bad_zamba2),
        cmocka_unit_test(recurrent_gemma), cmocka_unit_test(bad_recurrent_gemma), cmocka_unit_test(minimax),
        cmocka_unit_test(bad_minimax), cmocka_unit_test(xlstm), cmocka_unit_test(xlstm_gates),
        cmocka_unit_test(bad_xlstm),
    };
    return cmocka_run_group_tests_name("state_decoders", tests, NULL, NULL);
}
