/* test_decoders.c - decoder families, and features of single models in them, such as norms of heads or score scales
 * that grow with the position. Small random models must yield the logits of their formulas from a GGUF file, from the
 * folder exported from it, and from the file converted from that; bit-identical with any number of rows and threads. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/hf_form.h"
#include "engine/quant.h"
#include "engine/tensor_forms.h"
#include "tests/adapter_folder.h"
#include "tests/decoder_checks.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* StableLM 2 12B: each head's norm has weights of its own, and attention and the feed-forward part are in parallel. */
static void norms_of_each_head(void **state)
{
    (void)state;
    for (int parallel = 0; parallel < 2; parallel++) {
        struct decoder_shape s = decoder_shape("stablelm");
        s.heads = HEADS_EACH;
        s.parallel = parallel;
        const char *folder = check_decoder(&s);
        assert_tensor(folder, "model.layers.1.self_attn.q_layernorm.norms.3.weight", 1, s.head_dim);
        assert_tensor(folder, "model.layers.0.self_attn.k_layernorm.norms.1.weight", 1, s.head_dim);
    }
    struct decoder_shape plain = decoder_shape("stablelm");
    check_decoder(&plain);
}

/* Phi with qk_layernorm: one weight vector and one bias for all heads. */
static void norms_of_all_heads(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("phi2");
    check_decoder(&s);
    s.heads = HEADS_SHARE_NORM;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.q_layernorm.weight", 1, s.head_dim);
    assert_tensor(folder, "model.layers.1.self_attn.k_layernorm.bias", 1, s.head_dim);
}

/* Norms that are missing for some heads, or have another size. */
static void bad_norms(void **state)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
        const char *word;
    } cases[] = {
        {"blk.1.attn_q_norm.weight", 0, 0, "missing"},
        {"blk.1.attn_k_norm.weight", 4, 12, "4 x 12"},
        {"blk.0.attn_q_norm.weight", 4, 11, "4 x 11"},
    };
    struct decoder_shape s = decoder_shape("stablelm");
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    s.heads = HEADS_EACH;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct decoder *d = decoder_make(&s);
        decoder_spoil(d, cases[i].name, cases[i].rows, cases[i].cols);
        assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_FORMAT);
        if (!strstr(err.text, cases[i].name) || !strstr(err.text, cases[i].word))
            fail_msg("%s: \"%s\"", cases[i].name, err.text);
        decoder_free(d);
    }
}

/* Ministral 3 beyond its original context, which is 20 positions here. */
static void growing_scores(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("mistral3");
    s.context = 20;
    s.temperature = 0.4f;
    check_decoder(&s);
    s.temperature = 0;
    check_decoder(&s);
}

/* Seed-OSS: the norm before the feed-forward part has another name in GGUF files. */
static void seed_oss(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("seed_oss");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.post_attention_layernorm.weight", 1, s.n_embd);
}

/* ERNIE 4.5: its folders, too, have the rotated pairs of dimensions next to each other. */
static void ernie(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("ernie4_5");
    check_decoder(&s);
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    check_decoder(&s);
}

/* EXAONE 4: without windows; and with windows, where every fourth layer has full attention without RoPE. */
static void exaone(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("exaone4"), three = decoder_shape("exaone");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.post_feedforward_layernorm.weight", 1, s.n_embd);
    s.window = 7;
    s.n_layer = 4;
    s.wide = 4;
    s.wide_unrotated = true;
    check_decoder(&s);
    folder = check_decoder(&three);
    assert_tensor(folder, "transformer.h.1.mlp.c_fc_1.weight", 2, three.n_embd);
    static const struct {
        const char *hf, *gguf; /* NULL: no test needs it */
    } of_seeing[] = {{"model.language_model.layers.3.self_attn.q_norm.weight", "blk.3.attn_q_norm.weight"},
                     {"lm_head.weight", "output.weight"},
                     {"model.visual.blocks.0.attn.qkv.bias", NULL}, {"mtp.layers.0.mlp.up_proj.weight", NULL}};
    struct pp_buf name = {0};
    for (size_t i = 0; i < sizeof of_seeing / sizeof *of_seeing; i++) { /* EXAONE 4.5 */
        const enum pp_name_match found =
            pp_arch_gguf_name(pp_arch_by_class("exaone4_5"), of_seeing[i].hf, &name, NULL);
        assert_int_equal(found, of_seeing[i].gguf ? PP_NAME_FOUND : PP_NAME_IGNORED);
        if (of_seeing[i].gguf)
            assert_string_equal(pp_buf_cstr(&name), of_seeing[i].gguf);
    }
    pp_buf_free(&name);
}

/* GLM 4 of both generations. */
static void glm(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("chatglm"), later = decoder_shape("glm4");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.mlp.gate_up_proj.weight", 2, s.n_embd);
    folder = check_decoder(&later);
    assert_tensor(folder, "model.layers.1.post_mlp_layernorm.weight", 1, s.n_embd);
}

/* Files of GLM 4.1 V and GLM-OCR rotate halves of heads where others of the family rotate neighbours. Folders always
 * have neighbours, so no folder is made of such a file, and adapters of folders do not fit it. */
static void glm_that_sees(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("glm4");
    s.neighbours = false;
    s.sections = true;
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d), *small = fresh_path("small.gguf");
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    int32_t ids[SMALL_TEXT];
    struct pp_error err;
    small_text(ids, s.n_vocab);
    decoder_compute(d, ids, SMALL_TEXT, want);
    assert_logits(want, s.n_vocab, file);
    assert_int_equal(pp_convert_to_folder(file, fresh_path("none"), &(struct pp_convert_options){0}, &err),
                     PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "vision models"));
    assert_ok(pp_quantize_file(file, small, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_true(small_likeness(small, NULL, want, s.n_vocab) > 0.98);
    struct folder f = {.random = 1};
    struct pp_model *m;
    struct pp_adapter *a;
    folder_add(&f, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, s.n_embd, 0, 0.3f);
    folder_add(&f, "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", s.n_head * s.head_dim, 2, 0, 0.3f);
    const char *adapter = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 2}");
    assert_ok(pp_model_open(file, &m, &err), err);
    assert_int_equal(pp_adapter_load(m, adapter, &a, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "in a different order"));
    pp_model_close(m);
    /* nor is a folder made of an adapter that fits the file */
    struct decoder_shape usual = decoder_shape("glm4");
    const struct pp_convert_options base = {.base = file};
    struct decoder *other = decoder_make(&usual);
    const struct pp_convert_options other_base = {.base = decoder_write(other)};
    const char *made = fresh_path("adapter.gguf");
    assert_ok(pp_convert_to_gguf(adapter, made, &other_base, &err), err);
    assert_int_equal(pp_convert_to_peft(made, fresh_path("none"), &base, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "its adapters cannot be converted to folders"));
    assert_ok(pp_convert_to_peft(made, fresh_path("some"), &other_base, &err), err);
    decoder_free(other);
    folder_empty(&f);
    pp_free(want);
    decoder_free(d);
}

/* Command R; the larger models have a norm for each head. */
static void command_r(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("command-r");
    check_decoder(&s);
    s.heads = HEADS_EACH;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.k_norm.weight", 2, s.head_dim);
}

/* Hunyuan's dense models. */
static void hunyuan(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("hunyuan-dense");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.key_layernorm.weight", 1, s.head_dim);
}

/* LFM2: most layers are short convolutions, among them the first. */
static void lfm2(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("lfm2");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.0.conv.conv.weight", 3, s.taps);
    assert_tensor(folder, "model.layers.2.conv.in_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.self_attn.out_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.feed_forward.w2.weight", 2, s.n_ff);
    assert_tensor(folder, "model.embedding_norm.weight", 1, s.n_embd);
    s.taps = 4;
    s.biases = BIAS_CONVOLUTION;
    check_decoder(&s);
}

/* A LoRA of a convolution's input and output projections gives the same as merged weights. */
static void lora_of_convolutions(void **state)
{
    struct decoder_shape s = decoder_shape("lfm2");
    struct decoder *d = decoder_make(&s);
    struct folder f = {.random = 5};
    (void)state;
    const char *file = decoder_write(d);
    merge_lora(d, "blk.0.shortconv.in_proj.weight", &f, "conv.in_proj", 3 * s.n_embd, 4, 2);
    merge_lora(d, "blk.0.shortconv.out_proj.weight", &f, "conv.out_proj", s.n_embd, 4, 2);
    const char *path = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8,"
                                             "\"target_modules\": [\"in_proj\", \"out_proj\"]}");
    expect_adapted(d, file, path, 1e-4);
    folder_empty(&f);
    decoder_free(d);
}

/* Files with contradictory convolutions. */
static void bad_convolutions(void **state)
{
    static const struct spoilt cases[] = {
        {"blk.0.shortconv.conv.weight", 48, 4, "4 values"},      /* fewer taps than the metadata say */
        {"blk.0.shortconv.conv.weight", 0, 0, "key heads"},      /* a layer without KV heads must have it */
        {"blk.0.shortconv.in_proj.weight", 96, 48, "96 x 48"},
        {"blk.2.shortconv.out_proj.weight", 0, 0, "missing"},
        {"blk.1.attn_k.weight", 0, 0, "missing"},
        {"token_embd_norm.weight", 0, 0, "missing"},
    };
    struct decoder_shape s = decoder_shape("lfm2");
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.full = s.n_layer + 1; /* so that no layer has attention */
    struct decoder *d = decoder_make(&s);
    assert_int_not_equal(pp_model_open(decoder_write(d), &m, &err), PP_OK);
    decoder_free(d);
}

/* OLMoE. */
static void olmoe(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("olmoe");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.mlp.experts.5.down_proj.weight", 2, s.n_ff);
    assert_tensor(folder, "model.layers.0.self_attn.k_norm.weight", 1, s.n_head_kv * s.head_dim);
}

/* Granite's mixtures: folders hold gate and up in one tensor. */
static void granite_moe(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("granitemoe");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.input_linear.weight", 3, s.n_embd);
    s.n_ff_shared = 40;
    folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.shared_mlp.input_linear.weight", 2, s.n_embd);
}

/* OLMo 2: norms without weights; some of its models clamp q, k and v. */
static void olmo(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("olmo"), moe = decoder_shape("olmoe");
    check_decoder(&s);
    s.qkv_clamp = moe.qkv_clamp = 1.5f;
    check_decoder(&s);
    check_decoder(&moe);
}

/* Nemotron: folders store norms' weights as w - 1. */
static void nemotron(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("nemotron");
    check_decoder(&s);
}

static void arcee_and_orion(void **state)
{
    (void)state;
    struct decoder_shape arcee = decoder_shape("arcee"), orion = decoder_shape("orion");
    check_decoder(&arcee);
    check_decoder(&orion);
}

/* Folders of InternLM 2 and Baichuan have q, k and v in one matrix. */
static void joined(void **state)
{
    (void)state;
    struct decoder_shape intern = decoder_shape("internlm2"), baichuan = decoder_shape("baichuan");
    const char *folder = check_decoder(&intern);
    assert_tensor(folder, "model.layers.1.attention.wqkv.weight", 2, intern.n_embd);
    folder = check_decoder(&baichuan);
    assert_tensor(folder, "model.layers.1.self_attn.W_pack.weight", 2, baichuan.n_embd);
}

/* InternLM 2's joined matrix: for each KV head, the rows of its two query heads, then its key, then its value. */
static void rows_of_joined(void **state)
{
    const struct pp_hparams hp = {.n_head = 4, .n_head_kv = 2, .head_dim = 2};
    static const char groups[] = "q0q1q2q3k0k1v0v1q4q5q6q7k2k3v2v3";
    static const char stacked[] = "q0q1q2q3q4q5q6q7k0k1k2k3v0v1v2v3";
    const struct pp_hparams many = {.n_head = 8, .n_head_kv = 8, .head_dim = 1};
    static const char in_four[] = "q0q1v0v1k0k1q2q3v2v3k2k3q4q5v4v5k4k5q6q7v6v7k6k7"; /* CodeGen's */
    (void)state;
    for (int64_t r = 0, in; r < 16; r++) {
        assert_int_equal("qkv"[pp_hf_qkv_row(PP_HF_QKV_BY_GROUP, &hp, r, &in)], groups[2 * r]);
        assert_int_equal(in, groups[2 * r + 1] - '0');
        assert_int_equal("qkv"[pp_hf_qkv_row(PP_HF_QKV_STACKED, &hp, r, &in)], stacked[2 * r]);
        assert_int_equal(in, stacked[2 * r + 1] - '0');
    }
    for (int64_t r = 0, in; r < 24; r++) {
        assert_int_equal("qkv"[pp_hf_qkv_row(PP_HF_QKV_IN_PIECES, &many, r, &in)], in_four[2 * r]);
        assert_int_equal(in, in_four[2 * r + 1] - '0');
    }
}

/* Baichuan 2's output matrix, whose rows are normalised to length 1. */
static void unit_rows(void **state)
{
    static const float rows[2][4] = {{3, 0, -4, 0}, {0.5f, 0.5f, 0.5f, -0.5f}}, want[4] = {0.6f, 0, -0.8f, 0};
    const struct pp_tensor t = {.name = "output.weight", .type = PP_TYPE_F32, .n_dims = 2, .ne = {4, 2, 1, 1},
                                .size = sizeof rows, .data = rows};
    struct pp_tensor_list list = {0};
    struct pp_error err;
    float made[2][4];
    (void)state;
    assert_ok(pp_hf_rows_add(&list, &t, PP_HF_UNIT_ROWS, NULL, "output.weight", NULL, &err), err);
    assert_int_equal(list.n, 1);
    assert_ok(pp_rows_read(list.t[0].rows, 0, 2, made, &err), err);
    assert_memory_equal(made[0], want, sizeof want);
    assert_memory_equal(made[1], rows[1], sizeof rows[1]);
    pp_tensor_list_free(&list);
}

/* Phi 3.5 MoE, whose experts are weighted by SparseMixer. */
static void phi_moe(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("phimoe");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.experts.5.w2.weight", 2, s.n_ff);
}

enum { FAR = 640, FAR_VOCAB = 80 };

static void read_far(const char *path, enum pp_kv_type kv, int n_threads, int rows, float *got)
{
    const struct pp_engine_options opt = {.kv_type = kv, .n_threads = n_threads, .kv_memory = 64u << 20, .n_ctx = FAR,
                                          .activations = PP_ACT_F32};
    enum { BACK = 200 };
    struct running r;
    struct pp_seq *other;
    struct pp_error err;
    int32_t ids[FAR];
    for (int i = 0; i < FAR; i++)
        ids[i] = (i * 37 + i / 7) % FAR_VOCAB;
    assert_ok(pp_model_open(path, &r.m, &err), err);
    assert_ok(pp_engine_new(r.m, &opt, NULL, NULL, &r.e, &err), err);
    assert_ok(pp_seq_new(r.e, &r.s, &err), err);
    run_in_passes(r.e, r.s, ids, FAR - rows / 2, rows, got);
    assert_ok(pp_seq_fork(r.s, BACK, &other, &err), err);
    run_in_passes(r.e, other, ids, 3, 2, got + BACK * FAR_VOCAB); /* other tokens */
    pp_seq_free(other);
    pp_seq_truncate(r.s, BACK);
    run_in_passes(r.e, r.s, ids + BACK, FAR - BACK, rows + 1, got + BACK * FAR_VOCAB);
    stop_small(&r);
}

/* Phi 3 small on long texts, where distant blocks are skipped: the formulas' logits, and the same bits with any number
 * of rows and threads. */
static void check_far(int near, int step, int dense)
{
    struct decoder_shape s = decoder_shape("phi3small");
    float *want = pp_calloc(FAR * FAR_VOCAB, sizeof *want), *got = pp_calloc(FAR * FAR_VOCAB, sizeof *got);
    double *exact = doubles(FAR * FAR_VOCAB);
    int32_t ids[FAR];
    s.near_blocks = near;
    s.vert_stride = step;
    s.dense_step = dense;
    s.n_ctx = FAR;
    struct decoder *d = decoder_make(&s);
    const char *path = decoder_write(d);
    for (int i = 0; i < FAR; i++)
        ids[i] = (i * 37 + i / 7) % FAR_VOCAB;
    decoder_compute(d, ids, FAR, exact);
    read_far(path, PP_KV_F32, 1, 64, want);
    for (int i = 0; i < FAR * FAR_VOCAB; i++)
        if (!(fabs((double)want[i] - exact[i]) <= 2e-3 * fmax(1, fabs(exact[i]))))
            fail_msg("%d near, each %d-th: value %d is %g, not %g", near, step, i, (double)want[i], exact[i]);
    read_far(path, PP_KV_F32, 3, 33, got);
    assert_memory_equal(got, want, FAR * FAR_VOCAB * sizeof *got);
    read_far(path, PP_KV_F32, 4, 1, got);
    assert_memory_equal(got, want, FAR * FAR_VOCAB * sizeof *got);
    read_far(path, PP_KV_Q8, 1, 64, want);
    read_far(path, PP_KV_Q8, 3, 2, got);
    assert_memory_equal(got, want, FAR * FAR_VOCAB * sizeof *got);
    decoder_free(d);
    pp_free(want);
    pp_free(got);
    pp_free(exact);
}

/* Phi 3 small: block-sparse attention with a different pattern for each head; clamped gates, whose rows are interleaved
 * with those of the up projection; and tokens that are never used. */
static void phi_small(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("phi3small");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.mlp.up_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.mlp.up_proj.bias", 1, 2 * s.n_ff);
    assert_tensor(folder, "model.layers.0.self_attn.query_key_value.bias", 1, 8 * s.head_dim);
    assert_config(folder, "\"hidden_act\"", "gegelu");
    assert_config(folder, "\"ff_intermediate_size\"", "64");
    s.dense_step = 0;
    check_decoder(&s);
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    assert_resumes(file, s.n_vocab);
    assert_goes_back(file, s.n_vocab);
    decoder_free(d);
    s.n_embd = 64;
    s.head_dim = s.rope_dim = 16;
    check_quantised_folder(&s);
    check_far(2, 3, 2);
    check_far(1, 8, 0);
    s = decoder_shape("phi3small");
    const struct spoilt cases[] = {{"blk.1.ffn_gate.weight", 60, 48, "ffn_gate"},
                                   {"blk.0.ffn_up.bias", 0, 63, "ffn_up"},
                                   {"blk.0.attn_qkv.weight", 95, 48, "attn_qkv"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.near_blocks = 0;
    const struct spoilt none = {"blk.0.ffn_down.bias", 0, 48, "last blocks"};
    assert_refused(&s, &none, 1);
}

/* Baichuan M1: keys and values are convolved with those of the previous position; layers with a window have another
 * head size. */
static void baichuan_m1(void **state)
{
    static const int others[3][3] = {{6, 3, 64}, {4, 2, 64}, {6, 3, 64}};
    (void)state;
    struct decoder_shape s = decoder_shape("baichuan_m1");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.conv_k", 4, 2);
    assert_tensor(folder, "model.layers.0.self_attn.W_pack.weight", 2, s.n_embd);
    assert_config(folder, "\"conv_window\"", "2");
    s.uneven = others;
    folder = check_decoder(&s);
    assert_config(folder, "\"num_swa_attention_heads\"", "6");
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    assert_resumes(file, s.n_vocab);
    assert_goes_back(file, s.n_vocab);
    decoder_free(d);
    s = decoder_shape("baichuan_m1");
    const struct spoilt cases[] = {{"blk.1.attn_k_conv.weight", 3, 2, "attn_k_conv"},
                                   {"blk.0.attn_v_conv.weight", 2, 3, "attn_v_conv"},
                                   {"blk.2.attn_v_conv.weight", 0, 0, "attn_v_conv"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
}

/* Falcon: one KV head in all; one for each group of query heads, also with separate norms of attention and the
 * feed-forward part; or one for each query head. */
static void falcon(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("falcon");
    s.n_head_kv = 1;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.h.1.input_layernorm.bias", 1, s.n_embd);
    s.n_head_kv = 2;
    check_decoder(&s);
    s.two_norms = true;
    folder = check_decoder(&s);
    assert_tensor(folder, "transformer.h.1.ln_attn.weight", 1, s.n_embd);
    assert_tensor(folder, "transformer.h.0.ln_mlp.weight", 1, s.n_embd);
    s.two_norms = s.parallel = false;
    s.n_head_kv = 4;
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    folder = check_decoder(&s);
    assert_tensor(folder, "transformer.h.0.self_attention.query_key_value.bias", 1, 3 * s.n_head * s.head_dim);
    s.alibi = 8; /* as in Falcon RW */
    s.unrotated = s.alibi_scaled = true;
    check_decoder(&s);
}

/* ALiBi with 4 heads, and with 6, which is no power of two. */
static void bloom(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("bloom");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.word_embeddings_layernorm.bias", 1, s.n_embd);
    s.n_head = s.n_head_kv = 6;
    s.head_dim = s.rope_dim = 8;
    check_decoder(&s);
}

/* MPT: ALiBi, or learned positions; clamping, norms, fewer KV heads, biases. */
static void mpt(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("mpt");
    check_decoder(&s);
    s.alibi = 16;
    s.qkv_clamp = 2;
    s.heads = HEADS_WHOLE;
    s.n_head_kv = 2;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.blocks.1.attn.k_ln.weight", 1, s.n_head_kv * s.head_dim);
    s = decoder_shape("mpt");
    s.alibi = 0;
    s.positions = s.norm_bias = true;
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    folder = check_decoder(&s);
    assert_tensor(folder, "transformer.wpe.weight", 2, s.n_embd);
}

/* Baichuan 13B (ALiBi), recognised by its 40 layers. */
static void baichuan_13b(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("baichuan");
    s.n_layer = 40;
    s.alibi = 8;
    s.unrotated = true;
    s.n_ff = 16;
    s.seed = 3; /* rounding errors add up in so many layers, in some models more than in others */
    check_decoder(&s);
}

/* Apertus: xIELU, whose parameters each layer has for itself. */
static void apertus(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("apertus");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.mlp.act_fn.alpha_p", 1, 1);
    assert_tensor(folder, "model.layers.1.feedforward_layernorm.weight", 1, s.n_embd);
    assert_config(folder, "rope_parameters", "default"); /* without this key it would be scaled */
}

/* XVERSE, openPangu and MiniCPM; the first StarCoder and the first Qwen. */
static void few_differences(void **state)
{
    static const char *const families[] = {"xverse", "pangu-embedded", "minicpm", "jais2", "codeshell",
                                           "maincoder"};
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const struct decoder_shape s = decoder_shape(families[i]);
        check_decoder(&s);
    }
    const struct decoder_shape refact = decoder_shape("refact");
    assert_tensor(check_decoder(&refact), "transformer.h.1.attn.kv.weight", 2, refact.n_embd);
    const struct decoder_shape star = decoder_shape("starcoder"), qwen = decoder_shape("qwen");
    const char *folder = check_decoder(&star);
    assert_tensor(folder, "transformer.h.1.attn.c_attn.bias", 1, (star.n_head + 2) * star.head_dim);
    folder = check_decoder(&qwen);
    assert_tensor(folder, "transformer.h.1.mlp.w2.weight", 2, qwen.n_embd);
}

/* GPT-J: one norm for both parallel parts, biases in one of them only. */
static void gptj(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("gptj");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.h.1.attn.out_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "transformer.h.0.mlp.fc_in.bias", 1, s.n_ff);
    assert_tensor(folder, "lm_head.bias", 1, s.n_vocab);
}

/* Replaces one of Jais's multipliers in config.json by a text that is no longer. */
static void edit_config(const char *folder, const char *key, const char *line)
{
    char path[400], *text;
    struct pp_error err;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    char *at = strstr(text, key), *edited = pp_calloc(n + strlen(line) + 1, 1);
    assert_true(at && edited);
    const char *rest = at + strcspn(at, "\n,}");
    snprintf(edited, n + strlen(line) + 1, "%.*s%s%s", (int)(at - text), text, line, rest);
    assert_ok(pp_write_file(path, edited, strlen(edited), 0600, &err), err);
    pp_free(text);
    pp_free(edited);
}

/* The first Jais: scores are divided by the head size; folders have multipliers of embeddings and logits, which are
 * multiplied into the weights. */
static void jais(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("jais");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.h.1.mlp.c_fc2.weight", 2, s.n_ff);
    edit_config(folder, "\"mup_embeddings_scale\"", "\"mup_embeddings_scale\": 3");
    edit_config(folder, "\"mup_width_scale\"", "\"mup_width_scale\": 0.25");
    s.embd_scale = 3;
    s.logit_scale = 0.25f;
    check_other(&s, folder);
    s = decoder_shape("jais");
    s.tied = true;
    folder = check_decoder(&s);
    edit_config(folder, "\"mup_embeddings_scale\"", "\"mup_embeddings_scale\": 3");
    s.embd_scale = 3;
    check_other(&s, folder);
}

/* Hunyuan's vision models: RoPE's base is scaled by an alpha. */
static void hunyuan_vl(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("hunyuan_vl");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.query_layernorm.weight", 1, s.head_dim);
    edit_config(folder, "\"rope_theta\"", "\"rope_theta\": 100, \"rope_scaling\": {\"type\": \"xdrope\", \"alpha\": "
                "46.415888336127786, \"xdrope_section\": [2, 2, 1, 1]}"); /* to the power of 12 / 10: 100 */
    check_other(&s, folder);
}

/* Layers for which an architecture search chose fewer heads, a narrower feed-forward part, or only one of the two
 * parts. */
static void deci(void **state)
{
    static const int sizes[][3] = {{4, 2, 256}, {0, 0, 512}, {4, 4, 512}, {4, 0, 256},
                                   {0, 0, 0},   {4, 2, 512}, {4, 1, 256}};
    (void)state;
    struct decoder_shape s = decoder_shape("deci");
    s.n_layer = sizeof sizes / sizeof *sizes;
    s.uneven = sizes;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.2.self_attn.k_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.self_attn.linear_attn.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.6.mlp.down_proj.weight", 2, 256);
}

/* OpenELM: later layers have more heads and are wider. */
static void openelm(void **state)
{
    static const int sizes[][3] = {{2, 1, 24}, {4, 2, 64}, {6, 2, 100}};
    (void)state;
    struct decoder_shape s = decoder_shape("openelm");
    s.n_layer = sizeof sizes / sizeof *sizes;
    s.uneven = sizes;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.layers.2.attn.qkv_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "transformer.layers.0.ffn.proj_2.weight", 2, 24);
}

/* DBRX: folders hold one matrix for all experts of a layer. */
static void dbrx(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("dbrx");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.blocks.1.ffn.experts.mlp.v1", 2, s.n_embd);
    assert_tensor(folder, "transformer.blocks.0.ffn.experts.mlp.w2", 2, s.n_embd);
    assert_tensor(folder, "transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight", 2, s.n_embd);
    const struct pp_convert_options in_groups = {.bits = 8}; /* MLX has one matrix for each expert */
    const char *mlx = fresh_path("mlx");
    struct decoder *d = decoder_make(&s);
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    int32_t ids[SMALL_TEXT];
    struct pp_error err;
    small_text(ids, s.n_vocab);
    decoder_compute(d, ids, SMALL_TEXT, want);
    assert_ok(pp_convert_to_folder(folder, mlx, &in_groups, &err), err);
    assert_tensor(mlx, "transformer.blocks.1.ffn.experts.5.w2.weight", 2, s.n_ff / 4);
    assert_true(small_likeness(mlx, NULL, want, s.n_vocab) > 0.99);
    decoder_free(d);
    pp_free(want);
}

/* BitNet: norms within attention and the feed-forward part; squared ReLU, or SiLU. */
static void bitnet(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("bitnet");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.attn_sub_norm.weight", 1, s.n_embd);
    assert_tensor(folder, "model.layers.0.mlp.ffn_sub_norm.weight", 1, s.n_ff);
    s.ff = FF_SILU;
    check_decoder(&s);
}

/* config.json claims another head size than the tensors of heads have: the conversion is refused, and no file is
 * written. */
static void heads_of_other_sizes(const char *folder, int head_dim)
{
    char path[PATH_MAX], other[12], *text, *at;
    struct pp_error err;
    size_t n;
    snprintf(other, sizeof other, "%d", 2 * head_dim); /* so that the rows divide evenly into heads */
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    assert_non_null(at = strstr(text, "\"head_dim\":"));
    at += strcspn(at, "0123456789");
    assert_int_equal(atoi(at), head_dim);
    assert_int_equal(strlen(other), strspn(at, "0123456789"));
    memcpy(at, other, strlen(other));
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    pp_free(text);
    const char *to = fresh_path("other-heads.gguf");
    assert_int_equal(pp_quantize_file(folder, to, "Q8_0", &(struct pp_convert_options){0}, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "where all heads have"));
    assert_int_not_equal(access(to, F_OK), 0);
}

/* PLaMo: folders order heads differently: of four query heads, the first and the third share one KV head, the second
 * and the fourth the other. The columns of attention's output matrix are in the same order. */
static void plamo(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("plamo");
    static const int ours[] = {0, 2, 1, 3};
    const char *folder = check_decoder(&s);
    struct decoder *d = decoder_make(&s);
    const struct matrix *q = decoder_find(d, "blk.1.attn_q.weight"), *o = decoder_find(d, "blk.1.attn_output.weight");
    struct pp_source *source;
    struct pp_error err;
    float row[48];
    assert_tensor(folder, "model.layers.layers.1.norm.weight", 1, s.n_embd);
    assert_ok(pp_source_open(folder, &source, &err), err);
    for (int h = 0; h < s.n_head; h++) {
        assert_ok(pp_tensor_floats(pp_source_tensor(source, q->name), h * s.head_dim, 1, row, &err), err);
        for (int i = 0; i < s.n_embd; i++)
            assert_true(fabsf(row[i] - q->values[ours[h] * s.head_dim * s.n_embd + i]) < 1e-3f);
        assert_ok(pp_tensor_floats(pp_source_tensor(source, o->name), 5, 1, row, &err), err);
        for (int i = 0; i < s.head_dim; i++)
            assert_true(fabsf(row[h * s.head_dim + i] - o->values[5 * s.n_embd + ours[h] * s.head_dim + i]) < 1e-3f);
    }
    pp_source_close(source);
    decoder_free(d);
    heads_of_other_sizes(folder, s.head_dim);
    s.n_head_kv = 1;
    check_decoder(&s);
}

/* PLaMo 2: layers with Mamba states alternate with attention; conversations resume from snapshots that have pages of
 * both kinds. */
static void plamo2(void **state)
{
    struct decoder_shape s = decoder_shape("plamo2");
    (void)state;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.layers.0.mixer.conv1d.weight", 3, DECODER_STATE_TAPS);
    assert_tensor(folder, "model.layers.layers.2.mixer.A_log", 1, s.n_state);
    assert_tensor(folder, "model.layers.layers.2.mixer.B_norm_weight", 1, s.key_dim);
    assert_tensor(folder, "model.layers.layers.1.mixer.q_weight", 2, s.head_dim);
    struct decoder *d = decoder_make(&s);
    assert_resumes(decoder_write(d), s.n_vocab);
    decoder_free(d);
    s.step = 4;
    s.n_layer = 3;
    s.n_head_kv = 1;
    s.tied = false;
    check_decoder(&s);
    s.window = 7;
    s.step = 2;
    s.n_layer = s.wide = 4; /* of two layers with attention the second has no window */
    s.n_state = 5;
    s.key_dim = 16;
    s.n_embd = 64;
    check_decoder(&s);
    assert_tensor(check_quantised(&s), "model.layers.layers.0.mixer.in_proj.scales", 2, s.n_embd / 32);
}

/* Files with contradictory states. */
static void bad_plamo2(void **state)
{
    static const struct spoilt cases[] = {
        {"blk.0.ssm_in.weight", 48, 48, "48 x 48"},
        {"blk.2.ssm_x.weight", 127, 48, "127 x 48"},
        {"blk.0.ssm_dt.weight", 48, 64, "48 x 64"}, /* one step for each channel, as in the first Mamba */
        {"blk.0.ssm_dt.bias", 0, 0, "missing"},
        {"blk.0.ssm_c_norm.weight", 0, 0, "missing"},
        {"blk.0.ssm_dt_norm.weight", 0, 32, "32 values"},
        {"blk.2.ssm_a", 3, 32, "3 x 32"},
        {"blk.2.ssm_d", 0, 0, "number of heads"}, /* without it nothing tells that the layer has states */
        {"blk.1.attn_q_norm.weight", 0, 0, "missing"},
        {"blk.1.attn_qkv.weight", 64, 48, "64 x 48"},
    };
    const struct decoder_shape s = decoder_shape("plamo2");
    (void)state;
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
}

/* PLaMo 3: folders store the weights of norms minus an offset that depends on the kind of norm. */
static void plamo3(void **state)
{
    static const struct {
        const char *gguf, *hf;
        float added;
    } norms[] = {{"blk.1.post_attention_norm.weight", "post_mixer_norm", 0.2f},
                 {"blk.1.post_ffw_norm.weight", "post_mlp_norm", 0.08944272f},
                 {"blk.1.attn_norm.weight", "pre_mixer_norm", 1}};
    struct decoder_shape s = decoder_shape("plamo3");
    char name[96];
    (void)state;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.layers.8.mixer.qkv_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.layers.0.mixer.k_norm.weight", 1, s.head_dim);
    struct decoder *d = decoder_make(&s);
    struct pp_hf *hf;
    struct pp_error err;
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        const struct matrix *m = decoder_find(d, norms[i].gguf);
        float values[48];
        snprintf(name, sizeof name, "model.layers.layers.1.%s.weight", norms[i].hf);
        const struct pp_tensor *t = pp_hf_find(hf, name, NULL);
        assert_non_null(t);
        pp_dequantize_row(t->type, t->data, values, t->ne[0]);
        for (int j = 0; j < s.n_embd; j++)
            assert_true(fabsf(values[j] + norms[i].added - m->values[j]) < 1e-2f);
    }
    pp_hf_close(hf);
    decoder_free(d);
    s.wide = 1; /* full attention in every layer: the same as no window */
    s.window = 0;
    s.base = 0;
    s.tied = false;
    check_decoder(&s);
}

/* Chameleon: the weights of the heads' norms are reordered like the rows of queries and keys; norms after the parts of
 * a layer; and picture tokens in the vocabulary, which are never generated. */
static void chameleon(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("chameleon");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.q_norm.weight", 2, s.head_dim);
    assert_tensor(folder, "model.layers.0.self_attn.k_norm.bias", 2, s.head_dim);
    s.norms = POST_NORM;
    s.swin = true;
    check_decoder(&s);
    s.n_vocab = 8210;
    s.silent_end = 8196;
    s.n_layer = 1;
    check_decoder(&s);
}

TEST_GROUP(decoders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_each_head),
        cmocka_unit_test(norms_of_all_heads),
        cmocka_unit_test(bad_norms),
        cmocka_unit_test(growing_scores),
        cmocka_unit_test(seed_oss),
        cmocka_unit_test(ernie),
        cmocka_unit_test(exaone),
        cmocka_unit_test(glm),
        cmocka_unit_test(glm_that_sees),
        cmocka_unit_test(command_r),
        cmocka_unit_test(hunyuan),
        cmocka_unit_test(lfm2),
        cmocka_unit_test(lora_of_convolutions),
        cmocka_unit_test(bad_convolutions),
        cmocka_unit_test(olmoe),
        cmocka_unit_test(granite_moe),
        cmocka_unit_test(olmo),
        cmocka_unit_test(nemotron),
        cmocka_unit_test(arcee_and_orion),
        cmocka_unit_test(joined),
        cmocka_unit_test(phi_moe),
        cmocka_unit_test(phi_small),
        cmocka_unit_test(baichuan_m1),
        cmocka_unit_test(rows_of_joined),
        cmocka_unit_test(unit_rows),
        cmocka_unit_test(falcon),
        cmocka_unit_test(bloom),
        cmocka_unit_test(mpt),
        cmocka_unit_test(baichuan_13b),
        cmocka_unit_test(apertus),
        cmocka_unit_test(few_differences),
        cmocka_unit_test(gptj),
        cmocka_unit_test(jais),
        cmocka_unit_test(hunyuan_vl),
        cmocka_unit_test(deci),
        cmocka_unit_test(openelm),
        cmocka_unit_test(dbrx),
        cmocka_unit_test(bitnet),
        cmocka_unit_test(plamo),
        cmocka_unit_test(plamo2),
        cmocka_unit_test(bad_plamo2),
        cmocka_unit_test(plamo3),
        cmocka_unit_test(chameleon),
    };
    return cmocka_run_group_tests_name("decoders", tests, NULL, NULL);
}
