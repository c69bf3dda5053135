/* test_decoders.c - families, and what only some models of a family have: norms of heads, scores that grow with the
 * position. Small random models give what their formulas say, from a GGUF file, from the folder that is made of it, and
 * from the file that is made of that; with any number of rows and threads the same bits. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/hf_form.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "engine/tensor_forms.h"
#include "tests/adapter_folder.h"
#include "tests/decoder_model_int.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* From the file, the folder that is made of it, and the file that is made of that; the folder's path. */
static const char *check(const struct decoder_shape *s)
{
    struct decoder *d = decoder_make(s);
    const char *file = decoder_write(d);
    double *want = pp_calloc((size_t)(SMALL_TEXT * s->n_vocab), sizeof *want);
    int32_t ids[SMALL_TEXT];
    assert_non_null(want);
    small_text(ids, s->n_vocab);
    decoder_compute(d, ids, SMALL_TEXT, want);
    assert_same_bits(file, PP_KV_F32);
    assert_same_bits(file, PP_KV_Q8);
    const char *folder = assert_logits_everywhere(want, s->n_vocab, file);
    pp_free(want);
    decoder_free(d);
    return folder;
}

/* StableLM 2 12B: each head is normed by a vector of its own, and attention stands beside the feed-forward part. */
static void norms_of_each_head(void **state)
{
    (void)state;
    for (int parallel = 0; parallel < 2; parallel++) {
        struct decoder_shape s = decoder_shape("stablelm");
        s.heads = HEADS_EACH;
        s.parallel = parallel;
        const char *folder = check(&s);
        assert_tensor(folder, "model.layers.1.self_attn.q_layernorm.norms.3.weight", 1, s.head_dim);
        assert_tensor(folder, "model.layers.0.self_attn.k_layernorm.norms.1.weight", 1, s.head_dim);
    }
    struct decoder_shape plain = decoder_shape("stablelm");
    check(&plain);
}

/* Phi with qk_layernorm: one vector, and one that is added, for all heads. */
static void norms_of_all_heads(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("phi2");
    check(&s);
    s.heads = HEADS_ALIKE;
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.self_attn.q_layernorm.weight", 1, s.head_dim);
    assert_tensor(folder, "model.layers.1.self_attn.k_layernorm.bias", 1, s.head_dim);
}

/* Norms that are not there for all heads, or not of their size. */
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

/* Ministral 3 behind its original context, here of 20 positions. */
static void growing_scores(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("mistral3");
    s.context = 20;
    s.temperature = 0.4f;
    check(&s);
    s.temperature = 0;
    check(&s);
}

/* Seed-OSS: the norm before the feed-forward part has another name in GGUF files. */
static void seed_oss(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("seed_oss");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.post_attention_layernorm.weight", 1, s.n_embd);
}

/* ERNIE 4.5: its folders, too, have those dimensions of a head side by side that are rotated together. */
static void ernie(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("ernie4_5");
    check(&s);
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    check(&s);
}

/* EXAONE 4: without windows, and with, every fourth layer then seeing everything, unrotated. */
static void exaone(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("exaone4"), three = decoder_shape("exaone");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.post_feedforward_layernorm.weight", 1, s.n_embd);
    s.window = 7;
    s.n_layer = 4;
    s.wide = 4;
    s.wide_unrotated = true;
    check(&s);
    folder = check(&three);
    assert_tensor(folder, "transformer.h.1.mlp.c_fc_1.weight", 2, three.n_embd);
    static const struct {
        const char *hf, *gguf; /* NULL: nobody needs it */
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

/* GLM 4 of either year. */
static void glm(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("chatglm"), later = decoder_shape("glm4");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.mlp.gate_up_proj.weight", 2, s.n_embd);
    folder = check(&later);
    assert_tensor(folder, "model.layers.1.post_mlp_layernorm.weight", 1, s.n_embd);
}

/* Command R, the larger ones with norms of each head. */
static void command_r(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("command-r");
    check(&s);
    s.heads = HEADS_EACH;
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.self_attn.k_norm.weight", 2, s.head_dim);
}

/* Hunyuan's dense models. */
static void hunyuan(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("hunyuan-dense");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.self_attn.key_layernorm.weight", 1, s.head_dim);
}

/* LFM2: most layers are short convolutions; the first is one. */
static void lfm2(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("lfm2");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.0.conv.conv.weight", 3, s.taps);
    assert_tensor(folder, "model.layers.2.conv.in_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.self_attn.out_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.feed_forward.w2.weight", 2, s.n_ff);
    assert_tensor(folder, "model.embedding_norm.weight", 1, s.n_embd);
    s.taps = 4;
    s.biases = BIAS_CONVOLUTION;
    check(&s);
}

/* Values of a LoRA that halves hold exactly. */
static const float *add_exact(struct folder *f, const char *name, int64_t rows, int64_t cols)
{
    float *values = (float *)(uintptr_t)folder_add(f, name, rows, cols, 0, 0.3f); /* ours */
    for (int64_t i = 0; i < rows * cols; i++)
        values[i] = rintf(values[i] * 64) / 64;
    return values;
}

/* W becomes W + scale B A; n_out: rows of W. */
static void merge_lora(struct decoder *d, const char *gguf, struct folder *f, const char *module, int n_out, int rank,
                       double scale)
{
    struct matrix *w = decoder_find(d, gguf);
    char name[120];
    snprintf(name, sizeof name, "base_model.model.model.layers.0.%s.lora_A.weight", module);
    const float *a = add_exact(f, name, rank, w->cols);
    snprintf(name, sizeof name, "base_model.model.model.layers.0.%s.lora_B.weight", module);
    const float *b = add_exact(f, name, n_out, rank);
    assert_int_equal(w->rows, n_out);
    for (int64_t o = 0; o < w->rows; o++)
        for (int64_t i = 0; i < w->cols; i++)
            for (int k = 0; k < rank; k++)
                w->values[o * w->cols + i] +=
                    (float)(scale * (double)b[o * rank + k] * (double)a[k * w->cols + i]);
}

/* A model with an adapter gives what the merged weights do. */
static void expect_adapted(const struct decoder *merged, const char *model, const char *path, double room)
{
    const int n = SMALL_TEXT * merged->s.n_vocab;
    struct running r = run_small(model, NULL);
    struct pp_adapter *adapter;
    struct pp_error err;
    int32_t ids[SMALL_TEXT];
    double *want = doubles(n);
    float *got = pp_calloc((size_t)n, sizeof *got);
    small_text(ids, merged->s.n_vocab);
    decoder_compute(merged, ids, SMALL_TEXT, want);
    assert_ok(pp_adapter_load(r.m, path, &adapter, &err), err);
    assert_ok(pp_seq_set_adapters(r.s, &(struct pp_adapter_use){adapter, 1}, 1, &err), err);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 7, got);
    for (int i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= room * fmax(1, fabs(want[i]))))
            fail_msg("%s: value %d is %g, not %g", model, i, (double)got[i], want[i]);
    pp_free(want);
    pp_free(got);
    stop_small(&r);
    pp_adapter_free(adapter);
}

/* A LoRA on both sides of a convolution is what the merged weights are. */
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

/* A tensor of another size, or none, and a word of what is said of it then. */
struct spoilt {
    const char *name;
    int64_t rows, cols;
    const char *word;
};

static void assert_refused(const struct decoder_shape *s, const struct spoilt *cases, size_t n)
{
    struct pp_model *m;
    struct pp_error err;
    for (size_t i = 0; i < n; i++) {
        struct decoder *d = decoder_make(s);
        decoder_spoil(d, cases[i].name, cases[i].rows, cases[i].cols);
        if (pp_model_open(decoder_write(d), &m, &err) == PP_OK || !strstr(err.text, cases[i].word))
            fail_msg("%s: \"%s\"", cases[i].name, err.text);
        decoder_free(d);
    }
}

/* Files that contradict themselves about convolutions. */
static void bad_convolutions(void **state)
{
    static const struct spoilt cases[] = {
        {"blk.0.shortconv.conv.weight", 48, 4, "4 values"},      /* not as many taps as the metadata say */
        {"blk.0.shortconv.conv.weight", 0, 0, "key heads"},      /* no layer without heads is anything else */
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
    s.full = s.n_layer + 1; /* no layer has attention */
    struct decoder *d = decoder_make(&s);
    assert_int_not_equal(pp_model_open(decoder_write(d), &m, &err), PP_OK);
    decoder_free(d);
}

/* OLMoE. */
static void olmoe(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("olmoe");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.mlp.experts.5.down_proj.weight", 2, s.n_ff);
    assert_tensor(folder, "model.layers.0.self_attn.k_norm.weight", 1, s.n_head_kv * s.head_dim);
}

/* Granite's mixtures: folders have gate and value in one tensor. */
static void granite_moe(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("granitemoe");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.input_linear.weight", 3, s.n_embd);
    s.n_ff_shared = 40;
    folder = check(&s);
    assert_tensor(folder, "model.layers.1.shared_mlp.input_linear.weight", 2, s.n_embd);
}

/* OLMo of 2024: norms without weights; bounds of q, k and v, which some of its models have. */
static void olmo(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("olmo"), moe = decoder_shape("olmoe");
    check(&s);
    s.qkv_clamp = moe.qkv_clamp = 1.5f;
    check(&s);
    check(&moe);
}

/* Nemotron: folders have weights of norms without the 1 that is added. */
static void nemotron(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("nemotron");
    check(&s);
}

static void arcee_and_orion(void **state)
{
    (void)state;
    struct decoder_shape arcee = decoder_shape("arcee"), orion = decoder_shape("orion");
    check(&arcee);
    check(&orion);
}

/* Folders of InternLM 2 and Baichuan have q, k and v in one matrix. */
static void joined(void **state)
{
    (void)state;
    struct decoder_shape intern = decoder_shape("internlm2"), baichuan = decoder_shape("baichuan");
    const char *folder = check(&intern);
    assert_tensor(folder, "model.layers.1.attention.wqkv.weight", 2, intern.n_embd);
    folder = check(&baichuan);
    assert_tensor(folder, "model.layers.1.self_attn.W_pack.weight", 2, baichuan.n_embd);
}

/* The same matrix, row by row: InternLM 2's has the two heads of q that go with one of k, then that, then v's. */
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
        assert_int_equal("qkv"[pp_hf_qkv_row(PP_HF_QKV_IN_FOUR, &many, r, &in)], in_four[2 * r]);
        assert_int_equal(in, in_four[2 * r + 1] - '0');
    }
}

/* Baichuan 2's output. */
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

/* Phi 3.5 MoE, whose experts are weighed as SparseMixer does it. */
static void phi_moe(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("phimoe");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.experts.5.w2.weight", 2, s.n_ff);
}

/* Falcon: one head of k and v for all or each of a few for some, behind a norm of its own; or one each. */
static void falcon(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("falcon");
    s.n_head_kv = 1;
    const char *folder = check(&s);
    assert_tensor(folder, "transformer.h.1.input_layernorm.bias", 1, s.n_embd);
    s.n_head_kv = 2;
    check(&s);
    s.two_norms = true;
    folder = check(&s);
    assert_tensor(folder, "transformer.h.1.ln_attn.weight", 1, s.n_embd);
    assert_tensor(folder, "transformer.h.0.ln_mlp.weight", 1, s.n_embd);
    s.two_norms = s.parallel = false;
    s.n_head_kv = 4;
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    folder = check(&s);
    assert_tensor(folder, "transformer.h.0.self_attention.query_key_value.bias", 1, 3 * s.n_head * s.head_dim);
    s.alibi = 8; /* as Falcon RW has it */
    s.unrotated = s.alibi_scaled = true;
    check(&s);
}

/* Scores that fall with the distance: 4 heads, and 6, which are no power of two. */
static void bloom(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("bloom");
    const char *folder = check(&s);
    assert_tensor(folder, "transformer.word_embeddings_layernorm.bias", 1, s.n_embd);
    s.n_head = s.n_head_kv = 6;
    s.head_dim = s.rope_dim = 8;
    check(&s);
}

/* MPT: ALiBi, or learned positions; bounds, norms, fewer heads of k and v, biases. */
static void mpt(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("mpt");
    check(&s);
    s.alibi = 16;
    s.qkv_clamp = 2;
    s.heads = HEADS_WHOLE;
    s.n_head_kv = 2;
    const char *folder = check(&s);
    assert_tensor(folder, "transformer.blocks.1.attn.k_ln.weight", 1, s.n_head_kv * s.head_dim);
    s = decoder_shape("mpt");
    s.alibi = 0;
    s.positions = s.norm_bias = true;
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    folder = check(&s);
    assert_tensor(folder, "transformer.wpe.weight", 2, s.n_embd);
}

/* Baichuan 13B, which its 40 layers tell from the smaller one. */
static void baichuan_13b(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("baichuan");
    s.n_layer = 40;
    s.alibi = 8;
    s.unrotated = true;
    s.n_ff = 16;
    s.seed = 3; /* rounding adds up in so many layers, in some models more than in others */
    check(&s);
}

/* Apertus: the numbers of each layer's activation. */
static void apertus(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("apertus");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.mlp.act_fn.alpha_p", 1, 1);
    assert_tensor(folder, "model.layers.1.feedforward_layernorm.weight", 1, s.n_embd);
}

/* XVERSE, openPangu and MiniCPM; the first StarCoder and the first Qwen. */
static void few_differences(void **state)
{
    static const char *const families[] = {"xverse", "pangu-embedded", "minicpm", "jais2", "codeshell",
                                           "maincoder"};
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const struct decoder_shape s = decoder_shape(families[i]);
        check(&s);
    }
    const struct decoder_shape refact = decoder_shape("refact");
    assert_tensor(check(&refact), "transformer.h.1.attn.kv.weight", 2, refact.n_embd);
    const struct decoder_shape star = decoder_shape("starcoder"), qwen = decoder_shape("qwen");
    const char *folder = check(&star);
    assert_tensor(folder, "transformer.h.1.attn.c_attn.bias", 1, (star.n_head + 2) * star.head_dim);
    folder = check(&qwen);
    assert_tensor(folder, "transformer.h.1.mlp.w2.weight", 2, qwen.n_embd);
}

/* GPT-J: one norm for both parts, biases in one of them only. */
static void gptj(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("gptj");
    const char *folder = check(&s);
    assert_tensor(folder, "transformer.h.1.attn.out_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "transformer.h.0.mlp.fc_in.bias", 1, s.n_ff);
    assert_tensor(folder, "lm_head.bias", 1, s.n_vocab);
}

/* What config.json says the first Jais multiplies by, in another text of as many bytes or fewer. */
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

/* Whether config.json has this word somewhere behind the key. */
static void assert_config(const char *folder, const char *key, const char *word)
{
    char path[400], *text;
    struct pp_error err;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    const char *at = strstr(text, key);
    if (!at || !strstr(at, word))
        fail_msg("%s: no %s behind %s", folder, word, key);
    pp_free(text);
}

/* The logits that a folder or a file made of it gives. */
static void check_other(const struct decoder_shape *s, const char *path)
{
    struct decoder *d = decoder_make(s);
    double *want = doubles(SMALL_TEXT * s->n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, s->n_vocab);
    decoder_compute(d, ids, SMALL_TEXT, want);
    assert_logits_everywhere(want, s->n_vocab, path);
    pp_free(want);
    decoder_free(d);
}

/* The first Jais: scores that are divided by the size of heads; what folders say of embeddings and logits becomes part
 * of the weights. */
static void jais(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("jais");
    const char *folder = check(&s);
    assert_tensor(folder, "transformer.h.1.mlp.c_fc2.weight", 2, s.n_ff);
    edit_config(folder, "\"mup_embeddings_scale\"", "\"mup_embeddings_scale\": 3");
    edit_config(folder, "\"mup_width_scale\"", "\"mup_width_scale\": 0.25");
    s.embd_scale = 3;
    s.logit_scale = 0.25f;
    check_other(&s, folder);
    s = decoder_shape("jais");
    s.tied = true;
    folder = check(&s);
    edit_config(folder, "\"mup_embeddings_scale\"", "\"mup_embeddings_scale\": 3");
    s.embd_scale = 3;
    check_other(&s, folder);
}

/* Hunyuan's models that see: an alpha by which the base is larger. */
static void hunyuan_vl(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("hunyuan_vl");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.self_attn.query_layernorm.weight", 1, s.head_dim);
    edit_config(folder, "\"rope_theta\"", "\"rope_theta\": 100, \"rope_scaling\": {\"type\": \"xdrope\", \"alpha\": "
                "46.415888336127786, \"xdrope_section\": [2, 2, 1, 1]}"); /* to the power of 12 / 10: 100 */
    check_other(&s, folder);
}

/* Layers that a search left with fewer heads, narrower, or without a part. */
static void deci(void **state)
{
    static const int sizes[][3] = {{4, 2, 256}, {0, 0, 512}, {4, 4, 512}, {4, 0, 256},
                                   {0, 0, 0},   {4, 2, 512}, {4, 1, 256}};
    (void)state;
    struct decoder_shape s = decoder_shape("deci");
    s.n_layer = sizeof sizes / sizeof *sizes;
    s.uneven = sizes;
    const char *folder = check(&s);
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
    const char *folder = check(&s);
    assert_tensor(folder, "transformer.layers.2.attn.qkv_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "transformer.layers.0.ffn.proj_2.weight", 2, 24);
}

/* DBRX: experts of which folders have one matrix for all of a layer. */
static void dbrx(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("dbrx");
    const char *folder = check(&s);
    assert_tensor(folder, "transformer.blocks.1.ffn.experts.mlp.v1", 2, s.n_embd);
    assert_tensor(folder, "transformer.blocks.0.ffn.experts.mlp.w2", 2, s.n_embd);
    assert_tensor(folder, "transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight", 2, s.n_embd);
    const struct pp_convert_options in_groups = {.bits = 8}; /* MLX has one for each */
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

/* BitNet: norms within attention and feed-forward part; squares of what is positive, or SiLU. */
static void bitnet(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("bitnet");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.self_attn.attn_sub_norm.weight", 1, s.n_embd);
    assert_tensor(folder, "model.layers.0.mlp.ffn_sub_norm.weight", 1, s.n_ff);
    s.ff = FF_SILU;
    check(&s);
}

/* A folder's adapter of queries fits the folder only, and is not made into a file's. */
static void adapters_in_order(const char *file, const char *model_folder)
{
    const char *const models[] = {file, model_folder};
    const struct pp_convert_options opt = {.base = file};
    struct folder f = {.random = 5};
    struct pp_error err;
    folder_add(&f, "base_model.model.model.layers.layers.0.self_attn.q_proj.lora_A.weight", 4, 48, 0, 0.3f);
    folder_add(&f, "base_model.model.model.layers.layers.0.self_attn.q_proj.lora_B.weight", 48, 4, 0, 0.3f);
    const char *path = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8,"
                                             "\"target_modules\": [\"q_proj\"]}");
    for (int i = 0; i < 2; i++) {
        struct pp_adapter *adapter = NULL;
        struct pp_model *m;
        assert_ok(pp_model_open(models[i], &m, &err), err);
        assert_int_equal(pp_adapter_load(m, path, &adapter, &err), i ? PP_OK : PP_ERR_UNSUPPORTED);
        pp_adapter_free(adapter);
        pp_model_close(m);
    }
    assert_int_equal(pp_convert_to_gguf(path, fresh_path("adapter.gguf"), &opt, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "another order"));
    folder_empty(&f);
}

/* PLaMo: of a folder's four heads of queries the first and the third go with one key, the second and the fourth with
 * the other; so do the columns behind attention. */
static void plamo(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("plamo");
    static const int ours[] = {0, 2, 1, 3};
    const char *folder = check(&s);
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
    adapters_in_order(decoder_write(d), folder);
    decoder_free(d);
    s.n_head_kv = 1;
    check(&s);
}

/* A folder's matrices are quantised while it is loaded: answers are about the same. */
static void check_quantised(const struct decoder_shape *s)
{
    struct decoder *d = decoder_make(s);
    const char *folder = fresh_path("folder");
    double *want = doubles(SMALL_TEXT * s->n_vocab);
    int32_t ids[SMALL_TEXT];
    struct pp_error err;
    small_text(ids, s->n_vocab);
    decoder_compute(d, ids, SMALL_TEXT, want);
    assert_ok(pp_convert_to_folder(decoder_write(d), folder, &(struct pp_convert_options){0}, &err), err);
    assert_true(small_likeness(folder, "q8_0", want, s->n_vocab) > 0.98);
    pp_free(want);
    decoder_free(d);
}

/* In eight bits, by MLX or while a folder is loaded, answers are about the same. */
static void plamo2_quantised(const struct decoder_shape *s)
/* In eight bits, by MLX or while a folder is loaded, answers are about the same. MLX's folder. */
static const char *quantised(const struct decoder_shape *s)
{
    struct decoder *d = decoder_make(s);
    const char *file = decoder_write(d), *mlx = fresh_path("mlx"), *folder = fresh_path("folder");
    double *want = doubles(SMALL_TEXT * s->n_vocab);
    int32_t ids[SMALL_TEXT];
    struct pp_error err;
    small_text(ids, s->n_vocab);
    decoder_compute(d, ids, SMALL_TEXT, want);
    assert_ok(pp_convert_to_folder(file, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
    assert_ok(pp_convert_to_folder(file, folder, &(struct pp_convert_options){0}, &err), err);
    const double by_mlx = small_likeness(mlx, NULL, want, s->n_vocab);
    const double loaded = small_likeness(folder, "q8_0", want, s->n_vocab);
    if (!(by_mlx > 0.98 && loaded > 0.98))
        fail_msg("%s: cosines of %g and %g", s->arch, by_mlx, loaded);
    pp_free(want);
    decoder_free(d);
    return mlx;
}

/* PLaMo 2: states and attention in turns; conversations go on from what is saved, in pages of either. */
static void plamo2(void **state)
{
    struct decoder_shape s = decoder_shape("plamo2");
    (void)state;
    const char *folder = check(&s);
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
    check(&s);
    s.window = 7;
    s.step = 2;
    s.n_layer = s.wide = 4; /* of two layers with attention the second has no window */
    s.n_state = 5;
    s.key_dim = 16;
    s.n_embd = 64;
    check(&s);
    assert_tensor(quantised(&s), "model.layers.layers.0.mixer.in_proj.scales", 2, s.n_embd / 32);
}

/* Files that contradict themselves about states. */
static void bad_plamo2(void **state)
{
    static const struct spoilt cases[] = {
        {"blk.0.ssm_in.weight", 48, 48, "48 x 48"},
        {"blk.2.ssm_x.weight", 127, 48, "127 x 48"},
        {"blk.0.ssm_dt.weight", 48, 64, "48 x 64"}, /* a step for each channel, as the first Mamba has them */
        {"blk.0.ssm_dt.bias", 0, 0, "missing"},
        {"blk.0.ssm_c_norm.weight", 0, 0, "missing"},
        {"blk.0.ssm_dt_norm.weight", 0, 32, "32 values"},
        {"blk.2.ssm_a", 3, 32, "3 x 32"},
        {"blk.2.ssm_d", 0, 0, "number of heads"}, /* which tells layers with states */
        {"blk.1.attn_q_norm.weight", 0, 0, "missing"},
        {"blk.1.attn_qkv.weight", 64, 48, "64 x 48"},
    };
    const struct decoder_shape s = decoder_shape("plamo2");
    (void)state;
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
}

/* PLaMo 3: in its folders norms are less by what is added to them, another number for each kind. */
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
    const char *folder = check(&s);
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
    s.wide = 1; /* which is what no window means */
    s.window = 0;
    s.base = 0;
    s.tied = false;
    check(&s);
}

/* Chameleon: norms of heads whose values go where rows of queries and keys go; norms behind parts; and a vocabulary
 * with tokens of pictures, which are never given. */
static void chameleon(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("chameleon");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.self_attn.q_norm.weight", 2, s.head_dim);
    assert_tensor(folder, "model.layers.0.self_attn.k_norm.bias", 2, s.head_dim);
    s.norms = POST_NORM;
    s.swin = true;
    check(&s);
    s.n_vocab = 8210;
    s.silent_end = 8196;
    s.n_layer = 1;
    check(&s);
}

/* OPT, its smaller model with norms of sums and narrow embeddings, Galactica without biases, and one without a norm
 * behind the last layer. */
static void opt(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("opt");
    const char *folder = check(&s);
    assert_tensor(folder, "model.decoder.layers.1.self_attn.out_proj.bias", 1, s.n_embd);
    assert_tensor(folder, "model.decoder.layers.0.final_layer_norm.weight", 1, s.n_embd);
    s.no_output_norm = true;
    check(&s);
    s.norms = POST_NORM;
    s.sums = s.swin = true;
    s.n_embd_in = 32;
    folder = check(&s);
    assert_tensor(folder, "model.decoder.project_in.weight", 2, s.n_embd_in);
    assert_tensor(folder, "model.decoder.project_out.weight", 2, s.n_embd);
    struct decoder_shape even = s;
    even.n_embd = 64;
    check_quantised(&even);
    s.tied = false;
    s.norms = PRE_NORM;
    s.sums = s.swin = s.no_output_norm = false;
    check(&s);
    s = decoder_shape("opt");
    s.ff = FF_GELU_EXACT;
    s.norm_bias = false;
    s.norm_plain = true;
    s.biases = 0;
    check(&s);
}

/* Rows of an OPT folder's table of positions that are no position's. */
static void reserved_positions(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("opt");
    struct decoder *d = decoder_make(&s);
    const struct matrix *positions = decoder_find(d, "position_embd.weight");
    const char *folder = fresh_path("folder");
    struct pp_hf *hf;
    struct pp_error err;
    float row[48];
    assert_ok(pp_convert_to_folder(decoder_write(d), folder, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    const struct pp_tensor *t = pp_hf_find(hf, "model.decoder.embed_positions.weight", NULL);
    assert_non_null(t);
    assert_int_equal(t->ne[1], s.n_ctx + 2);
    for (int r = 0; r < 5; r++) {
        const size_t row_bytes = t->size / (size_t)t->ne[1];
        pp_dequantize_row(t->type, (const uint8_t *)t->data + (size_t)r * row_bytes, row, s.n_embd);
        for (int i = 0; i < s.n_embd; i++)
            assert_true(fabsf(row[i] - (r < 2 ? 0 : positions->values[(r - 2) * s.n_embd + i])) < 1e-3f);
    }
    pp_hf_close(hf);
    decoder_free(d);
}

/* Files that contradict themselves about what stands around an OPT's layers. */
static void bad_opt(void **state)
{
    static const struct spoilt cases[] = {
        {"embd_proj.weight", 0, 0, "embd_proj.weight is missing"},
        {"output_proj.weight", 48, 32, "48 x 32"},
        {"token_embd.weight", 80, 48, "80 x 48"},
        {"blk.1.ffn_norm.weight", 0, 0, "missing"},
        {"position_embd.weight", 127, 48, "127 x 48"},
    };
    struct decoder_shape s = decoder_shape("opt");
    (void)state;
    s.n_embd_in = 32;
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.n_embd_in = 64; /* wider than layers */
    struct decoder *d = decoder_make(&s);
    struct pp_model *m;
    struct pp_error err;
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "embedding"));
    decoder_free(d);
}

/* GPT-Neo: windows in every other layer, and scores as they come. */
static void gpt_neo(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("gpt_neo");
    const char *folder = check(&s);
    assert_tensor(folder, "transformer.h.3.attn.attention.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "transformer.h.0.attn.attention.out_proj.bias", 1, s.n_embd);
    s.window = 0;
    s.n_layer = 2;
    s.tied = false;
    check(&s);
}

/* XGLM: sinusoids; embeddings that are scaled, or not. */
static void xglm(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("xglm");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.self_attn.out_proj.bias", 1, s.n_embd);
    assert_tensor(folder, "model.layer_norm.weight", 1, s.n_embd);
    s.embd_scale = 0;
    check(&s);
    s.embd_scale = 3;
    struct decoder *d = decoder_make(&s);
    struct pp_model *m;
    struct pp_error err;
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "embedding_scale"));
    decoder_free(d);
    s.embd_scale = 0;
    s.n_ctx = 1 << 30; /* more sinusoids than there is memory for */
    d = decoder_make(&s);
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "sinusoids"));
    decoder_free(d);
}

/* CodeGen: GPT-J with one matrix for queries, values and keys. */
static void codegen(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("codegen");
    const char *folder = check(&s);
    assert_tensor(folder, "transformer.h.1.attn.qkv_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "lm_head.bias", 1, s.n_vocab);
    s.n_head = s.n_head_kv = 8;
    s.head_dim = 6;
    s.rope_dim = 4;
    folder = check(&s);
    struct decoder *d = decoder_make(&s);
    const struct matrix *v = decoder_find(d, "blk.1.attn_v.weight");
    struct pp_hf *hf;
    struct pp_error err;
    float row[48];
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    const struct pp_tensor *t = pp_hf_find(hf, "transformer.h.1.attn.qkv_proj.weight", NULL);
    assert_non_null(t);
    const size_t row_bytes = t->size / (size_t)t->ne[1];
    for (int r = 0; r < 2 * s.head_dim; r++) { /* the third piece's values */
        pp_dequantize_row(t->type, (const uint8_t *)t->data + (size_t)((2 * 6 + 2) * s.head_dim + r) * row_bytes, row,
                          s.n_embd);
        for (int i = 0; i < s.n_embd; i++)
            assert_true(fabsf(row[i] - v->values[(4 * s.head_dim + r) * s.n_embd + i]) < 1e-3f);
    }
    pp_hf_close(hf);
    decoder_free(d);
}

/* Persimmon. Files with rows in another order are refused. */
static void persimmon(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("persimmon");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.self_attn.query_key_value.bias", 1, 3 * s.n_embd);
    assert_tensor(folder, "model.layers.0.self_attn.k_layernorm.bias", 1, s.head_dim);
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    struct pp_model *m;
    struct pp_error err;
    char *data, *at = NULL;
    size_t n;
    static const char said[] = "persimmon.attention.qkv_by_head";
    assert_ok(pp_read_file(file, 16 << 20, &data, &n, &err), err);
    for (size_t i = 0; !at && i + sizeof said < n; i++)
        at = memcmp(data + i, said, sizeof said - 1) == 0 ? data + i : NULL;
    assert_non_null(at);
    *at = 'P';
    assert_ok(pp_write_file(file, data, n, 0600, &err), err);
    assert_int_equal(pp_model_open(file, &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "head by head"));
    pp_free(data);
    decoder_free(d);
    s.heads = HEADS_PLAIN;
    check(&s);
}

/* A folder like another one, with tensors of these names besides, and what its own begin with replaced. */
static const char *folder_with(const char *folder, const char *const *besides, const char *from, const char *to)
{
    static const float nothing[4];
    static char names[128][120];
    struct pp_tensor list[128];
    const char *dir = fresh_path("other");
    char path[400], *config;
    struct pp_hf *hf;
    struct pp_error err;
    size_t n = 0, size;
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    for (; n < pp_hf_n(hf); n++) {
        list[n] = *pp_hf_at(hf, n);
        const bool begins = from && strncmp(list[n].name, from, strlen(from)) == 0;
        snprintf(names[n], sizeof names[n], "%s%s", begins ? to : "", list[n].name + (begins ? strlen(from) : 0));
    }
    for (; *besides; besides++, n++) {
        list[n] = (struct pp_tensor){.type = PP_TYPE_F32, .n_dims = 2, .ne = {2, 2, 1, 1}, .data = nothing,
                                     .size = sizeof nothing};
        snprintf(names[n], sizeof names[n], "%s", *besides);
    }
    assert_true(n <= sizeof list / sizeof *list);
    for (size_t i = 0; i < n; i++)
        list[i].name = names[i];
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, n, &err), err);
    pp_hf_close(hf);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &config, &size, &err), err);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, config, size, 0600, &err), err);
    pp_free(config);
    return dir;
}

/* PaddleOCR-VL's text, beside a part that sees, by either version of transformers. */
static void paddleocr(void **state)
{
    static const char *const first[] = {"visual.vision_model.head.weight", "mlp_AR.linear_1.weight", NULL};
    static const char *const later[] = {"model.visual.vision_model.head.weight", "model.projector.linear_1.weight",
                                        NULL};
    (void)state;
    struct decoder_shape s = decoder_shape("paddleocr");
    const char *folder = check(&s);
    check_other(&s, folder_with(folder, first, NULL, NULL));
    check_other(&s, folder_with(folder, later, "model.", "model.language_model."));
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    s.tied = false;
    check(&s);
}

/* CogVLM's text, beside matrices for pictures; and CogVLM 2's, whose heads share keys. */
static void cogvlm(void **state)
{
    static const char *const pictures[] = {
        "model.vision.boi", "model.layers.0.self_attn.vision_expert_query_key_value.weight",
        "model.layers.0.self_attn.vision_expert_query_key_value.bias",
        "model.layers.1.self_attn.vision_expert_dense.weight",
        "model.layers.1.mlp.vision_mlp.gate_proj.weight", "model.layers.1.mlp.vision_mlp.up_proj.weight",
        "model.layers.1.mlp.vision_mlp.down_proj.weight", NULL};
    (void)state;
    struct decoder_shape s = decoder_shape("cogvlm");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.self_attn.language_expert_query_key_value.weight", 2, s.n_embd);
    check_other(&s, folder_with(folder, pictures, NULL, NULL));
    s.n_head_kv = 2;
    check(&s);
    struct decoder *d = decoder_make(&s); /* files have those matrices, too */
    struct matrix *more = &d->t[d->n++];
    *more = (struct matrix){.name = "blk.1.vis_attn_qkv.weight", .rows = 96, .cols = 48,
                            .values = pp_calloc(96 * 48, sizeof(float))};
    check_other(&s, decoder_write(d));
    d->s.arch = "stablelm"; /* but no other family's */
    struct pp_model *m;
    struct pp_error err;
    assert_int_not_equal(pp_model_open(decoder_write(d), &m, &err), PP_OK);
    decoder_free(d);
}

/* Fuyu's text. */
static void fuyu(void **state)
{
    static const char *const pictures[] = {"vision_embed_tokens.weight", NULL};
    (void)state;
    const struct decoder_shape s = decoder_shape("persimmon");
    const char *folder = check(&s);
    check_other(&s, folder_with(folder, pictures, "model.", "language_model.model."));
/* CWM, whose folders stretch RoPE even if they do not say so, and Ministral: windows in layers that files list. */
static void windows_in_llama(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("cwm"), ministral = decoder_shape("ministral");
    assert_config(check(&s), "rope_scaling", "llama3");
    s.stretched = 0;
    check(&s);
    s.window = 0;
    s.wide = 1;
    check(&s);
    check(&ministral);
}

/* VaultGemma: Gemma 2 without norms behind its parts. */
static void vaultgemma(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("vaultgemma");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.pre_feedforward_layernorm.weight", 1, s.n_embd);
    s.attn_cap = s.final_cap = 0;
    s.attn_scale = 0.2f;
    check(&s);
}

/* Helium: its folders have pairs side by side, so that its files are Llama's, also to adapters. */
static void helium(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("helium");
    const char *folder = check(&s), *again = fresh_path("helium.gguf");
    const struct pp_convert_options opt = {0};
    struct decoder *d = decoder_make(&s);
    struct pp_gguf *g;
    struct pp_source *source;
    struct pp_error err;
    float row[48];
    assert_config(folder, "architectures", "HeliumForCausalLM");
    assert_ok(pp_convert_to_gguf(folder, again, &opt, &err), err);
    assert_ok(pp_gguf_open(again, &g, &err), err);
    assert_true(pp_gguf_string_is(g, "general.architecture", "llama"));
    pp_gguf_close(g);
    for (int i = 0; i < 2; i++) { /* rows stay where they are */
        const struct matrix *q = decoder_find(d, "blk.1.attn_q.weight");
        assert_ok(pp_source_open(i ? again : folder, &source, &err), err);
        assert_string_equal(pp_source_hparams(source)->arch, "helium");
        assert_ok(pp_tensor_floats(pp_source_tensor(source, q->name), 3, 1, row, &err), err);
        for (int k = 0; k < s.n_embd; k++)
            assert_true(fabsf(row[k] - q->values[3 * s.n_embd + k]) < 1e-2f);
        pp_source_close(source);
    }
    const struct pp_convert_options base = {.base = folder};
    const char *adapter = fresh_path("adapter.gguf");
    struct folder f = {.random = 5};
    merge_lora(d, "blk.0.attn_q.weight", &f, "self_attn.q_proj", s.n_head * s.head_dim, 4, 2);
    const char *peft = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8,"
                                             "\"target_modules\": [\"q_proj\"]}");
    assert_ok(pp_convert_to_gguf(peft, adapter, &base, &err), err);
    assert_ok(pp_gguf_open(adapter, &g, &err), err);
    assert_true(pp_gguf_string_is(g, "general.architecture", "llama"));
    pp_gguf_close(g);
    const char *const models[] = {folder, again}, *const adapters[] = {peft, adapter};
    for (int i = 0; i < 4; i++)
        expect_adapted(d, models[i / 2], adapters[i % 2], 1e-4);
    folder_empty(&f);
    decoder_free(d);
}

/* RecurrentGemma: Griffin's recurrence in two of three layers, attention with a window in the third; conversations are
 * saved, forked and gone back in at the same bits. */
static void recurrent_gemma(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("recurrent_gemma");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.0.temporal_block.rg_lru.input_gate_weight", 3, s.lru_width / s.n_head);
    assert_tensor(folder, "model.layers.1.temporal_block.rg_lru.recurrent_gate_bias", 2, s.lru_width / s.n_head);
    assert_tensor(folder, "model.layers.3.temporal_block.conv_1d.weight", 3, DECODER_STATE_TAPS);
    assert_tensor(folder, "model.layers.2.temporal_block.o_proj.bias", 1, s.n_embd);
    assert_tensor(folder, "model.layers.2.mlp_block.down_proj.weight", 2, s.n_ff);
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    assert_resumes(file, s.n_vocab);
    assert_goes_back(file, s.n_vocab);
    const char *mlx = quantised(&s); /* whose gates stay as they are */
    assert_tensor(mlx, "model.layers.0.temporal_block.rg_lru.input_gate_weight", 3, s.lru_width / s.n_head);
    decoder_free(d);
    s.n_head_kv = 2;
    s.lru_width = 512;
    s.seed = 2;
    check(&s);
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

/* MiniMax-Text-01: lightning attention in each second layer, and norms of the stream itself. */
static void minimax(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("minimax");
    const char *folder = check(&s);
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
    quantised(&all);
    s.rope_dim = s.head_dim;
    s.n_head_kv = 4;
    s.stream_scales[1][0] = s.stream_scales[1][1] = 1;
    check(&s);
}

/* Zamba2: Mamba 2 in all layers, and blocks of attention and feed-forward part that layers have in common. */
static void zamba2(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("zamba2");
    const char *folder = check(&s);
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
    quantised(&s);
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
    check(&s);
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

/* nanochat: norms without weights, also of what goes into the first layer, and heads that turn backwards. */
static void nanochat(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("nanochat");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.mlp.fc1.weight", 2, s.n_embd);
    s.final_cap = 0;
    s.n_head_kv = 4;
    s.biases = BIAS_QKV | BIAS_O;
    check(&s);
}

/* FlexOlmo: experts that read the stream itself. */
static void flex_olmo(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("flex_olmo");
    const char *folder = check(&s);
    assert_tensor(folder, "model.layers.1.mlp.experts.5.down_proj.weight", 2, s.n_ff);
    assert_tensor(folder, "model.layers.0.post_feedforward_layernorm.weight", 1, s.n_embd);
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
        cmocka_unit_test(opt),
        cmocka_unit_test(reserved_positions),
        cmocka_unit_test(bad_opt),
        cmocka_unit_test(gpt_neo),
        cmocka_unit_test(codegen),
        cmocka_unit_test(xglm),
        cmocka_unit_test(paddleocr),
        cmocka_unit_test(cogvlm),
        cmocka_unit_test(fuyu),
        cmocka_unit_test(persimmon),
        cmocka_unit_test(windows_in_llama),
        cmocka_unit_test(vaultgemma),
        cmocka_unit_test(helium),
        cmocka_unit_test(recurrent_gemma),
        cmocka_unit_test(bad_recurrent_gemma),
        cmocka_unit_test(minimax),
        cmocka_unit_test(zamba2),
        cmocka_unit_test(bad_zamba2),
        cmocka_unit_test(nanochat),
        cmocka_unit_test(flex_olmo),
    };
    return cmocka_run_group_tests_name("decoders", tests, NULL, NULL);
}
