/* test_folder_decoders.c - decoder families that are mostly published as folders, because few other programs, if any,
 * write GGUF files of them. Checked in the same way as those in test_decoders.c. */
#include <cjson/cJSON.h>
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
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "engine/tensor_forms.h"
#include "tests/adapter_folder.h"
#include "tests/decoder_checks.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* OPT; its smaller model with post-norms and embeddings narrower than the residual stream; Galactica, without biases;
 * and one without a norm after the last layer. */
static void opt(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("opt");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.decoder.layers.1.self_attn.out_proj.bias", 1, s.n_embd);
    assert_tensor(folder, "model.decoder.layers.0.final_layer_norm.weight", 1, s.n_embd);
    s.no_output_norm = true;
    check_decoder(&s);
    s.norms = POST_NORM;
    s.sums = s.swin = true;
    s.n_embd_in = 32;
    folder = check_decoder(&s);
    assert_tensor(folder, "model.decoder.project_in.weight", 2, s.n_embd_in);
    assert_tensor(folder, "model.decoder.project_out.weight", 2, s.n_embd);
    struct decoder_shape even = s;
    even.n_embd = 64;
    check_quantised_folder(&even);
    s.tied = false;
    s.norms = PRE_NORM;
    s.sums = s.swin = s.no_output_norm = false;
    check_decoder(&s);
    s = decoder_shape("opt");
    s.ff = FF_GELU_EXACT;
    s.norm_bias = false;
    s.norm_plain = true;
    s.biases = 0;
    check_decoder(&s);
}

/* Rows of a folder's position table that belong to no position. */
static void expect_reserved(const char *arch, const char *name)
{
    const struct decoder_shape s = decoder_shape(arch);
    struct decoder *d = decoder_make(&s);
    const struct matrix *positions = decoder_find(d, "position_embd.weight");
    const char *folder = fresh_path("folder");
    struct pp_hf *hf;
    struct pp_error err;
    float row[48];
    assert_ok(pp_convert_to_folder(decoder_write(d), folder, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    const struct pp_tensor *t = pp_hf_find(hf, name, NULL);
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

static void reserved_positions(void **state)
{
    (void)state;
    expect_reserved("opt", "model.decoder.embed_positions.weight");
    expect_reserved("biogpt", "biogpt.embed_positions.weight");
}

/* Files of OPT whose tensors around the layers (projections of the embeddings, norms) contradict each other. */
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

/* GPT-Neo: a window in every other layer, and scores without a scale. */
static void gpt_neo(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("gpt_neo");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.h.3.attn.attention.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "transformer.h.0.attn.attention.out_proj.bias", 1, s.n_embd);
    s.window = 0;
    s.n_layer = 2;
    s.tied = false;
    check_decoder(&s);
}

/* XGLM: sinusoidal positions; scaled embeddings, or not. */
static void xglm(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("xglm");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.out_proj.bias", 1, s.n_embd);
    assert_tensor(folder, "model.layer_norm.weight", 1, s.n_embd);
    s.embd_scale = 0;
    check_decoder(&s);
    s.embd_scale = 3;
    struct decoder *d = decoder_make(&s);
    struct pp_model *m;
    struct pp_error err;
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "embedding_scale"));
    decoder_free(d);
    s.embd_scale = 0;
    s.n_ctx = 1 << 30; /* more sinusoids than fit into memory */
    d = decoder_make(&s);
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "sinusoids"));
    decoder_free(d);
}

/* CodeGen 2's smaller models interleave queries, values and keys in eight blocks, and state the head size. */
static void codegen_in_eight(void **state)
{
    static const char *const parts[] = {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"};
    struct decoder_shape s = decoder_shape("codegen");
    const char *folder = fresh_path("eight");
    struct pp_error err;
    char path[400], *config;
    size_t n;
    (void)state;
    s.n_layer = 1;
    s.n_head = s.n_head_kv = 8;
    s.head_dim = 128;
    s.n_embd = s.n_head * s.head_dim;
    struct decoder *d = decoder_make(&s), *moved = decoder_make(&s);
    struct pp_hparams hp = {.n_head = s.n_head, .n_head_kv = s.n_head, .head_dim = s.head_dim}, eight = hp;
    eight.qkv_pieces = 8;
    for (int64_t r = 0, to, from; r < 3 * s.n_embd; r++) { /* rearranges eight blocks as four */
        struct matrix *m = decoder_find(moved, parts[pp_hf_qkv_row(PP_HF_QKV_IN_PIECES, &hp, r, &to)]);
        const struct matrix *w = decoder_find(d, parts[pp_hf_qkv_row(PP_HF_QKV_IN_PIECES, &eight, r, &from)]);
        memcpy(m->values + to * s.n_embd, w->values + from * s.n_embd, (size_t)s.n_embd * sizeof *m->values);
    }
    assert_ok(pp_convert_to_folder(decoder_write(moved), folder, &(struct pp_convert_options){0}, &err), err);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &config, &n, &err), err);
    assert_null(strstr(config, "head_dim"));
    struct pp_buf b = {0};
    pp_buf_fmt(&b, "{\"head_dim\": %d, %s", s.head_dim, config + 1);
    assert_ok(pp_write_file(path, pp_buf_cstr(&b), b.len, 0600, &err), err);
    check_other(&s, folder);
    pp_buf_free(&b);
    pp_free(config);
    decoder_free(moved);
    decoder_free(d);
}

/* CodeGen: GPT-J with one matrix for queries, values and keys. */
static void codegen(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("codegen");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.h.1.attn.qkv_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "lm_head.bias", 1, s.n_vocab);
    s.n_head = s.n_head_kv = 8;
    s.head_dim = 6;
    s.rope_dim = 4;
    folder = check_decoder(&s);
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
    for (int i = 0; i < 2; i++) { /* heads that cannot be divided into four pieces, as they would be in folders */
        s.n_head = i ? 8 : 2;
        s.n_head_kv = i ? 4 : 2;
        d = decoder_make(&s);
        struct pp_source *source;
        assert_int_equal(pp_source_open(decoder_write(d), &source, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, i ? "4 key heads" : "not a multiple of 4"));
        decoder_free(d);
    }
}

/* Persimmon. Files with rows in another order are refused. */
static void persimmon(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("persimmon");
    const char *folder = check_decoder(&s);
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
    check_decoder(&s);
}

/* A copy of a folder with additional tensors of these names; a prefix of its own tensors' names is replaced. */
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

/* PaddleOCR-VL's text part, in folders of either version of transformers, with a vision encoder that is not read. */
static void paddleocr(void **state)
{
    static const char *const first[] = {"visual.vision_model.head.weight", "mlp_AR.linear_1.weight", NULL};
    static const char *const later[] = {"model.visual.vision_model.head.weight", "model.projector.linear_1.weight",
                                        NULL};
    (void)state;
    struct decoder_shape s = decoder_shape("paddleocr");
    const char *folder = check_decoder(&s);
    check_other(&s, folder_with(folder, first, NULL, NULL));
    check_other(&s, folder_with(folder, later, "model.", "model.language_model."));
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    s.tied = false;
    check_decoder(&s);
}

/* CogVLM's text part, whose folders also have matrices for pictures; and CogVLM 2's, with grouped-query attention. */
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
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.language_expert_query_key_value.weight", 2, s.n_embd);
    check_other(&s, folder_with(folder, pictures, NULL, NULL));
    s.n_head_kv = 2;
    check_decoder(&s);
    struct decoder *d = decoder_make(&s); /* files have the matrices for pictures, too */
    struct matrix *more = &d->t[d->n++];
    *more = (struct matrix){.name = "blk.1.vis_attn_qkv.weight", .rows = 96, .cols = 48,
                            .values = pp_calloc(96 * 48, sizeof(float))};
    check_other(&s, decoder_write(d));
    d->s.arch = "stablelm"; /* ... but in no other family */
    struct pp_model *m;
    struct pp_error err;
    assert_int_not_equal(pp_model_open(decoder_write(d), &m, &err), PP_OK);
    decoder_free(d);
}

/* Fuyu's text part. */
static void fuyu(void **state)
{
    static const char *const pictures[] = {"vision_embed_tokens.weight", NULL};
    (void)state;
    const struct decoder_shape s = decoder_shape("persimmon");
    const char *folder = check_decoder(&s);
    check_other(&s, folder_with(folder, pictures, "model.", "language_model.model."));
}

/* CWM, whose folders mean scaled RoPE even if they do not say so, and Ministral: Llama with windows in the layers that
 * files list. */
static void windows_in_llama(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("cwm"), ministral = decoder_shape("ministral");
    assert_config(check_decoder(&s), "rope_scaling", "llama3");
    s.stretched = 0;
    check_decoder(&s);
    s.window = 0;
    s.wide = 1;
    check_decoder(&s);
    check_decoder(&ministral);
}

/* Removes a key from a folder's config.json. */
static void leave_out(const char *folder, const char *key)
{
    char path[400], *text;
    struct pp_error err;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    cJSON *config = cJSON_Parse(text);
    pp_free(text);
    assert_true(cJSON_HasObjectItem(config, key));
    cJSON_DeleteItemFromObjectCaseSensitive(config, key);
    text = cJSON_PrintUnformatted(config);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    cJSON_Delete(config);
}

/* HyperCLOVA X: Granite with or without norms after both parts, also where only the tensors show which. */
static void hyperclovax(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("hyperclovax");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.post_norm2.weight", 1, s.n_embd);
    assert_config(folder, "logits_scaling", "0.25");
    leave_out(folder, "use_post_norm");
    check_other(&s, folder);
    s.norms = PRE_NORM;
    s.attn_scale = s.embd_scale = s.residual_scale = s.logit_scale = 0;
    s.tied = true;
    folder = check_decoder(&s);
    leave_out(folder, "use_post_norm");
    check_other(&s, folder);
}

static void assert_unknown_form(const struct decoder_shape *s, const char *word)
{
    struct pp_model *m;
    struct pp_error err;
    struct decoder *d = decoder_make(s);
    assert_int_equal(pp_model_open(decoder_write(d), &m, &err), PP_ERR_UNSUPPORTED);
    if (!strstr(err.text, word))
        fail_msg("no %s in \"%s\"", word, err.text);
    decoder_free(d);
}

/* DiffLlama: differential attention. */
static void diffllama(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("diffllama");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.lambda_k2", 1, s.head_dim);
    s.n_head_kv = 4; /* as many KV heads as query heads */
    s.head_dim = s.rope_dim = 32;
    s.biases = BIAS_QKV | BIAS_O;
    s.tied = true;
    check_decoder(&s);
    s.n_head = 8;
    s.n_embd = 64;
    check_quantised(&s);
    const struct spoilt cases[] = {{"blk.1.attn_lambda_q1", 0, 8, "attn_lambda_q1"},
                                   {"blk.1.attn_lambda_k2", 0, 0, "attn_lambda_k2"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    struct decoder_shape large = s; /* values are twice as long */
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_error err;
    large.head_dim = 320;
    struct decoder *d = decoder_make(&large);
    assert_ok(pp_model_open(decoder_write(d), &m, &err), err);
    assert_int_equal(pp_engine_new(m, &(struct pp_engine_options){.n_ctx = 64}, NULL, NULL, &e, &err),
                     PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "heads of 640 values"));
    pp_model_close(m);
    decoder_free(d);
    s.n_head_kv = 1;
    const struct spoilt odd = {"blk.0.attn_k.weight", s.head_dim, s.n_embd, "cannot be halved"};
    assert_refused(&s, &odd, 1);
    struct decoder_shape joined = decoder_shape("diffllama"), uneven = joined;
    joined.joined = true;
    assert_unknown_form(&joined, "attn_qkv");
    int sizes[8][3];
    for (int l = 0; l < 8; l++)
        memcpy(sizes[l], (const int[]){uneven.n_head, l ? uneven.n_head_kv : uneven.n_head, uneven.n_ff},
               sizeof sizes[l]);
    assert_true(uneven.n_layer <= 8);
    uneven.uneven = sizes;
    assert_unknown_form(&uneven, "layers that differ");
}

/* Motif: differential attention, whose pairs of heads are interleaved, and PolyNorm: sums of normalised powers as
 * gates. */
static void motif(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("motif");
    s.n_head = 8;
    s.n_head_kv = 4; /* two pairs of key heads, each for two pairs of query heads */
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.subln.weight", 1, 2 * s.head_dim);
    assert_tensor(folder, "model.layers.1.mlp.act_fn.weight", 1, 3);
    assert_tensor(folder, "model.layers.1.mlp.act_fn.bias", 1, 1);
    s.n_head_kv = 8;
    s.tied = true;
    check_decoder(&s);
    s.n_embd = 64;
    s.head_dim = s.rope_dim = 32;
    check_quantised(&s);
    const struct spoilt cases[] = {{"blk.1.attn_lambda_q1", 0, 8, "attn_lambda_q1"},
                                   {"blk.1.attn_sub_norm.weight", 0, 32, "attn_sub_norm"},
                                   {"blk.0.ffn_poly.weight", 0, 2, "ffn_poly.weight"},
                                   {"blk.1.ffn_poly.bias", 0, 0, "ffn_poly.bias"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.n_head_kv = 1;
    const struct spoilt odd = {"blk.0.attn_k.weight", s.head_dim, s.n_embd, "cannot be paired"};
    assert_refused(&s, &odd, 1);
}

/* Solar Pro: layers that store the residual stream in either of two slots, or in both, and mix a stored stream back in;
 * slots that are overwritten; and files that contradict themselves. */
static void solar(void **state)
{
    static const char *const nothing_kept[] = {"40000000", "01800000", "10000080"};
    static const struct spoilt cases[] = {
        {"bskcn_tv.weight", 0, 0, "bskcn_tv.weight is missing"},
        {"bskcn_tv.weight", 0, 3, "not two numbers"},
        {"bskcn_tv.weight", 0, 2, "not all of a mixture"},
    };
    (void)state;
    struct decoder_shape s = decoder_shape("solar");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.7.self_attn.q_proj.weight", 2, s.n_embd);
    assert_config(folder, "bskcn_1", "[0, 1]");
    assert_config(folder, "bskcn_2", "[1, 4]");
    assert_config(folder, "bskcn_3", "[2, 6]");
    assert_config(folder, "bskcn_4", "[2, 5, 7]");
    assert_config(folder, "bskcn_tv", "0.75]");
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    s.tied = true;
    check_decoder(&s);
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    for (int i = 0; i < 3; i++) {
        const struct spoilt same = {"output_norm.weight", 0, s.n_embd, "none has kept it"};
        s.skips = nothing_kept[i];
        assert_refused(&s, &same, 1);
    }
}

/* Spark-X2.5: with separate matrices for q, k and v, biases and an output matrix; with windows in other layers, or
 * none. */
static void spark(void **state)
{
    static const struct spoilt gates[] = {{"blk.1.attn_gate.weight", 3, 48, "attn_gate"}};
    (void)state;
    struct decoder_shape s = decoder_shape("spark2_5");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.embedding.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.self_attn.q_k_v_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.self_attn.g_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.4.self_attn.out_proj.weight", 2, s.n_head * s.head_dim);
    assert_config(folder, "hidden_act", "gelu");
    assert_config(folder, "gate_attn_act_mode", "sigmoid");
    assert_config(folder, "sliding_window", "7");
    assert_refused(&s, gates, 1);
    s.joined = s.tied = false;
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    s.wide = 2;
    check_decoder(&s);
    s = decoder_shape("spark2_5");
    s.say_windows = false;
    const struct spoilt same = {"output_norm.weight", 0, s.n_embd, "sliding_window_pattern is missing"};
    assert_refused(&s, &same, 1);
    s.window = s.wide_rope = 0;
    s.base = 0;
    s.n_layer = 3;
    check_decoder(&s);
}

/* LoRA of Spark's matrices, under the names that adapters use for them. */
static void lora_of_spark(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("spark2_5");
    const int n_qkv = (s.n_head + 2 * s.n_head_kv) * s.head_dim;
    struct decoder *d = decoder_make(&s);
    struct folder f = {.random = 5};
    const char *file = decoder_write(d), *folder = fresh_path("folder");
    struct pp_error err;
    assert_ok(pp_convert_to_folder(file, folder, &(struct pp_convert_options){0}, &err), err);
    merge_lora(d, "blk.0.attn_qkv.weight", &f, "self_attn.q_k_v_proj", n_qkv, 4, 2);
    merge_lora(d, "blk.0.attn_gate.weight", &f, "self_attn.g_proj", s.n_head, 4, 2);
    merge_lora(d, "blk.0.attn_output.weight", &f, "self_attn.out_proj", s.n_embd, 4, 2);
    merge_lora(d, "blk.0.ffn_gate.weight", &f, "mlp.gate_proj", s.n_ff, 4, 2);
    const char *path = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8}");
    expect_adapted(d, file, path, 1e-4);
    expect_adapted(d, folder, path, 1e-4);
    folder_empty(&f);
    struct decoder_shape even = s;
    even.n_embd = 64;
    even.n_ff = 64;
    check_quantised_folder(&even);
    decoder_free(d);
}

/* Motif 2: four groups of three query heads and one whose attention is subtracted, over two pairs of keys; and with a
 * pair for each group. */
static void motif_2(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("motif");
    s.n_head = 24;
    s.n_head_kv = 4;
    s.n_noise = 4;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.self_attn.o_proj.weight", 2, 24 * s.head_dim);
    assert_config(folder, "num_attention_heads", "16");
    assert_config(folder, "num_noise_heads", "4");
    s.n_head_kv = 8;
    check_decoder(&s);
    const struct spoilt whole = {"blk.1.attn_q.weight", 24 * s.head_dim, s.n_embd, "blk.1.attn_q"};
    assert_refused(&s, &whole, 1);
    static const int noise[] = {5, 6, -1}; /* no equal groups; more pairs of keys than those; none */
    for (int i = 0; i < 3; i++) {
        s.n_noise = noise[i];
        const struct spoilt odd = {"blk.1.attn_q.weight", 16 * s.head_dim, s.n_embd, "noise_head_count"};
        assert_refused(&s, &odd, 1);
    }
}

/* Layers that are passed through several times. */
static void looped(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("nanbeige");
    check_decoder(&s);
    s.loops = 3;
    s.loops_plain = true;
    s.tied = true;
    s.biases = BIAS_QKV | BIAS_O;
    check_decoder(&s);
    s.loops = 1;
    check_decoder(&s);
    s = decoder_shape("ouro");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.input_layernorm_2.weight", 1, s.n_embd);
    assert_tensor(folder, "model.layers.0.post_attention_layernorm_2.weight", 1, s.n_embd);
    s.n_embd = 64;
    s.n_head_kv = 4;
    s.loops = 2; /* rounding errors add up */
    check_quantised(&s);
    s.loops = PP_MAX_LAYERS / s.n_layer + 1;
    assert_refused(&s, &(struct spoilt){"output_norm.weight", 0, s.n_embd, "number of loops"}, 1);
}

/* IQuest Coder Loop: the second loop attends to the keys of both. */
static void iquest_loop(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("iquestloopcoder");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.gate_projections.1.weight", 2, s.head_dim);
    assert_tensor(folder, "model.gate_projections.1.bias", 1, s.n_head);
    assert_config(folder, "loop_window_size", "7");
    s.n_layer = 3;
    s.n_head_kv = 4;
    s.tied = true;
    check_decoder(&s);
    s.head_dim = s.rope_dim = 32;
    s.n_embd = 64;
    check_quantised(&s);
    const struct spoilt cases[] = {{"blk.1.loop_gate.weight", s.n_head, 16, "loop_gate.weight"},
                                   {"blk.0.loop_gate.bias", 0, 0, "loop_gate.bias"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
}

/* An adapter of a matrix applies in all loops, as a change of the matrix itself would. */
static void lora_of_loops(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("nanbeige");
    struct decoder *d = decoder_make(&s);
    struct folder f = {.random = 5};
    const char *file = decoder_write(d);
    merge_lora(d, "blk.0.attn_v.weight", &f, "self_attn.v_proj", s.n_head_kv * s.head_dim, 4, 2);
    merge_lora(d, "blk.0.ffn_down.weight", &f, "mlp.down_proj", s.n_embd, 4, 2);
    const char *path = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8,"
                                             "\"target_modules\": [\"v_proj\", \"down_proj\"]}");
    expect_adapted(d, file, path, 1e-4);
    folder_empty(&f);
    decoder_free(d);
}

/* An adapter that replaces a norm has the effect of the changed norm, too. */
static void expect_norm(const struct decoder_shape *s, const char *hf, const char *gguf)
{
    struct decoder *d = decoder_make(s);
    struct folder f = {.random = 6};
    char name[120];
    const char *file = decoder_write(d);
    snprintf(name, sizeof name, "base_model.model.model.%s.weight", hf);
    const float *own = folder_add(&f, name, s->n_embd, 0, 1, 0.5f);
    const char *path = folder_write_peft(&f, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8}");
    memcpy(decoder_find(d, gguf)->values, own, (size_t)s->n_embd * sizeof *own);
    expect_adapted(d, file, path, 1e-4);
    folder_empty(&f);
    decoder_free(d);
}

static void norms_of_loops(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("nanbeige");
    expect_norm(&s, "layers.0.input_layernorm", "blk.0.attn_norm.weight");
    expect_norm(&s, "norm", "output_norm.weight"); /* this norm is also applied between two loops */
    s.loops_plain = true;
    expect_norm(&s, "norm", "output_norm.weight");
}

/* ModernBERT's decoders. */
static void modernbert_decoder(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("modernbert-decoder");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "lm_head.dense.weight", 2, s.n_embd);
    assert_tensor(folder, "decoder.bias", 1, s.n_vocab);
    const struct spoilt cases[] = {{"output_dense.weight", 32, 48, "output_dense"},
                                   {"output_dense_norm.weight", 0, 0, "output_dense_norm"},
                                   {"output.bias", 0, 0, "output.bias"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.tied = false;
    check_decoder(&s);
    s.n_embd = 64;
    check_quantised(&s);
}

/* Doge: keys have scores of their own. The context is limited to the length at which all positions are attended to. */
static void doge(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("doge");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.A", 1, s.n_head_kv);
    assert_tensor(folder, "model.layers.0.self_attn.dt_proj.weight", 2, s.n_head_kv * s.head_dim);
    assert_tensor(folder, "model.layers.1.post_attention_residual", 1, s.n_embd);
    s.n_head_kv = 4; /* as many KV heads as query heads */
    s.head_dim = s.rope_dim = 32;
    s.biases = BIAS_QKV | BIAS_O | BIAS_FF;
    s.tied = true;
    check_decoder(&s);
    s.n_head = 8;
    s.n_embd = 64;
    check_quantised(&s);
    const struct spoilt cases[] = {{"blk.1.attn_key_score_a", 0, 3, "attn_key_score_a"},
                                   {"blk.1.attn_key_score.weight", 4, 64, "attn_key_score"},
                                   {"blk.0.ffn_residual", 0, 0, "ffn_residual"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
}

/* JetMoE: experts in attention, for queries and outputs of heads, and in feed-forward parts. */
static void jetmoe(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("jetmoe");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attention.kv_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.0.self_attention.experts.output_linear.weight", 3, s.n_head_kv * s.head_dim);
    assert_tensor(folder, "model.layers.1.mlp.bias", 1, s.n_embd);
    s.n_head = 9;
    s.n_head_kv = s.n_used = 3;
    s.head_dim = s.rope_dim = 32;
    s.n_embd = 64;
    s.tied = false;
    check_decoder(&s);
    check_quantised_folder(&s);
    const struct spoilt cases[] = {{"blk.1.attn_output.bias", 0, 0, "attn_output.bias"},
                                   {"blk.0.attn_gate_inp.weight", 5, 64, "attn_gate_inp"},
                                   {"blk.1.attn_q_exps.weight", 96, 64, "attn_q_exps"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.n_head = 6;
    const struct spoilt odd = {"output.weight", s.n_vocab, s.n_embd, "6 heads of queries"};
    assert_refused(&s, &odd, 1);
}

/* The first GPT. */
static void openai_gpt(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("openai-gpt");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.h.1.attn.c_attn.weight", 2, 3 * s.n_embd);
    assert_tensor(folder, "transformer.positions_embed.weight", 2, s.n_embd);
    s.n_embd = 64;
    s.n_ff = 256;
    check_quantised_folder(&s);
}

/* CTRL: sinusoidal positions, and a bias of the logits. */
static void ctrl(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("ctrl");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.h.1.multi_head_attention.dense.bias", 1, s.n_embd);
    assert_tensor(folder, "lm_head.bias", 1, s.n_vocab);
    s.tied = false;
    check_decoder(&s);
    s.tied = true;
    const struct spoilt cases[] = {{"output.bias", 0, 0, "output.bias"}};
    assert_refused(&s, cases, 1);
    s.embd_scale = 3;
    const struct spoilt odd = {"output.bias", 0, s.n_vocab, "not by the square root"};
    assert_refused(&s, &odd, 1);
}

/* Granite with windows and sinks; with experts. */
static void granite_swa(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("granite_swa");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.sinks", 1, s.n_head);
    assert_config(folder, "GraniteSWAForCausalLM", "layer_rope_theta");
    s.rotated = NULL;
    s.n_expert = 6;
    s.n_used = 3;
    folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.experts.gate_up_proj", 3, s.n_embd);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.router.weight", 2, s.n_embd);
    s.n_ff_shared = 32;
    s.fused_shared = true;
    folder = check_decoder(&s);
    assert_config(folder, "GraniteMoeSWAForCausalLM", "shared_intermediate_size");
    assert_tensor(folder, "model.layers.0.shared_mlp.input_linear.weight", 2, s.n_embd);
    const struct spoilt cases[] = {{"blk.1.attn_sinks.weight", 0, 0, "attn_sinks"},
                                   {"blk.1.ffn_up_shexp.weight", 32, 48, "ffn_up_shexp"}};
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
}

/* Aria's text part: experts' matrices are stored transposed. */
static void aria(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("aria_text");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.mlp.experts.fc1.weight", 3, 2 * s.n_ff);
    assert_tensor(folder, "model.layers.1.mlp.experts.fc2.weight", 3, s.n_embd);
    assert_tensor(folder, "model.layers.0.mlp.shared_experts.down_proj.weight", 2, s.n_ff_shared);
}

/* North Micro Vision's text part. */
static void cohere_compass(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("cohere_compass_text");
    const char *folder = check_decoder(&s);
    assert_config(folder, "CohereCompassForCausalLM", "rope_parameters");
    s.n_layer = 8;
    s.logit_scale = 0.5f;
    check_quantised_folder(&s);
}

/* KORMo: Llama with other names. */
static void kormo(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("kormo");
    const char *folder = check_decoder(&s);
    assert_config(folder, "architectures", "KORMoForCausalLM");
    assert_tensor(folder, "model.layers.1.pre_mlp_layernorm.weight", 1, s.n_embd);
    assert_tensor(folder, "model.layers.0.pre_attention_layernorm.weight", 1, s.n_embd);
}

/* TeleChat: Llama whose folders hold keys and values in one matrix. Also with a base of RoPE that was enlarged for a
 * longer context: for 4 times the positions by 7^(12 / 10). */
static void telechat(void **state)
{
    static const struct spoilt cases[] = {{"blk.1.attn_v.weight", 24, 48, "24"}};
    (void)state;
    struct decoder_shape s = decoder_shape("telechat");
    const char *folder = check_decoder(&s);
    assert_config(folder, "architectures", "TelechatForCausalLM");
    assert_config(folder, "base_seqlen", "128");
    assert_tensor(folder, "transformer.h.1.self_attention.key_value.weight", 2, s.n_embd);
    assert_tensor(folder, "transformer.h.0.self_attention.dense.bias", 1, s.n_embd);
    assert_tensor(folder, "transformer.h.1.mlp.down_proj.bias", 1, s.n_embd);
    s.tied = false;
    s.n_head_kv = 4;
    s.base = 103304.12f; /* 10000 * 7^(12 / 10) */
    folder = check_decoder(&s);
    assert_config(folder, "base_seqlen", "32");
    assert_tensor(folder, "lm_head.weight", 2, s.n_embd);
    s.base = 50000; /* no enlarged length gives this base */
    folder = check_decoder(&s);
    assert_config(folder, "rope_theta", "50000");
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
}

/* K2 Horizon: norms over groups of the residual stream. */
static void k2_horizon(void **state)
{
    static const struct spoilt cases[] = {{"blk.1.ffn_norm.weight", 0, 24, "ffn_norm"}};
    (void)state;
    struct decoder_shape s = decoder_shape("k2-horizon");
    const char *folder = check_decoder(&s);
    assert_config(folder, "architectures", "K2HorizonForCausalLM");
    assert_config(folder, "layernorm_num_groups", "3");
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.norm_groups = 0;
    assert_config(check_decoder(&s), "layernorm_num_groups", "1");
    s.norm_groups = 5;
    struct decoder *d = decoder_make(&s);
    struct pp_source *source;
    struct pp_error err;
    assert_int_equal(pp_source_open(decoder_write(d), &source, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "in 5 groups"));
    decoder_free(d);
}

/* Yuan 2: convolutions before queries and keys; its up projection is what other families call the gate. */
static void yuan(void **state)
{
    static const struct spoilt cases[] = {
        {"blk.1.filter_1.weight", 24, 24, "filter_1"},
        {"blk.0.filter_2_last.weight", 0, 0, "filter_2_last"},
        {"blk.0.filter_norm.weight", 0, 24, "filter_norm"},
    };
    (void)state;
    struct decoder_shape s = decoder_shape("yuan");
    const char *folder = check_decoder(&s);
    assert_config(folder, "architectures", "YuanForCausalLM");
    assert_tensor(folder, "model.layers.1.self_attn.lf_gate.conv1.weight", 4, 1);
    assert_tensor(folder, "model.layers.1.self_attn.lf_gate.conv2.bias", 1, s.n_embd);
    assert_tensor(folder, "model.layers.0.mlp.up_proj.weight", 2, s.n_embd);
    struct decoder *d = decoder_make(&s);
    assert_goes_back(decoder_write(d), s.n_vocab);
    assert_resumes(decoder_write(d), s.n_vocab);
    decoder_free(d);
    assert_refused(&s, cases, sizeof cases / sizeof *cases);
    s.tied = false;
    check_decoder(&s);
    s.n_embd = 64;
    s.head_dim = s.rope_dim = 16;
    check_quantised_folder(&s);
}

/* Tele-FLM: has two of Granite's multipliers; that of the logits is relative to the width of a smaller model (muP). */
static void tele_flm(void **state)
{
    static const char config[] =
        "{\"architectures\": [\"TeleFLMForCausalLM\"], \"model_type\": \"TeleFLM\", \"hidden_size\": 48, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"intermediate_size\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 128, \"use_mup\": %s, "
        "\"input_mult\": 3.0, \"output_mult\": 0.5, \"mup_scale_factor\": 2.0, \"tie_word_embeddings\": false}";
    struct decoder_shape s = decoder_shape("granite");
    const char *folder = check_decoder(&s);
    char path[400], text[700];
    struct pp_error err;
    (void)state;
    for (int mup = 0; mup < 2; mup++) {
        snprintf(path, sizeof path, "%s/config.json", folder);
        snprintf(text, sizeof text, config, s.n_ff, s.n_vocab, mup ? "true" : "false");
        assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
        s.embd_scale = mup ? 3 : 1;
        s.logit_scale = mup ? 4 : 1;
        check_other(&s, folder);
    }
}

/* VaultGemma: Gemma 2 without the norms after attention and the feed-forward part. */
static void vaultgemma(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("vaultgemma");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.pre_feedforward_layernorm.weight", 1, s.n_embd);
    s.attn_cap = s.final_cap = 0;
    s.attn_scale = 0.2f;
    check_decoder(&s);
}

/* Helium: folders rotate neighbours, so that its GGUF files are Llama's, also for adapters. */
static void helium(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("helium");
    const char *folder = check_decoder(&s), *again = fresh_path("helium.gguf");
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
    for (int i = 0; i < 2; i++) { /* rows keep their order */
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

/* Lille: Llama with other names, whose config.json does not give the width of feed-forward parts. */
static void lille(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("lille-130m");
    s.n_embd = 96;
    s.n_head = 8;
    s.n_ff = 256;
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "transformer.layers.1.attention.qkv_proj.weight", 2, s.n_embd);
    assert_config(folder, "architectures", "LilleForCausalLM");
    leave_out(folder, "intermediate_size");
    leave_out(folder, "num_key_value_heads");
    leave_out(folder, "max_position_embeddings");
    check_other(&s, folder);
}

/* nanochat: norms without weights, also of the first layer's input, and RoPE in the opposite direction. */
static void nanochat(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("nanochat");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.mlp.fc1.weight", 2, s.n_embd);
    s.final_cap = 0;
    s.n_head_kv = 4;
    s.biases = BIAS_QKV | BIAS_O;
    check_decoder(&s);
}

/* Muse Glimmer: embeddings and heads have norms without weights; GGUF files hold the heads' as vectors. */
static void muse_glimmer(void **state)
{
    (void)state;
    struct decoder_shape s = decoder_shape("muse-glimmer");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.self_attn.gate_proj.weight", 2, s.n_head * s.head_dim);
    assert_config(folder, "qk_scale_factor", "3.8699");
    struct pp_hf *hf;
    struct pp_error err;
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    assert_null(pp_hf_find(hf, "model.layers.1.self_attn.q_norm.weight", NULL));
    pp_hf_close(hf);
    s.n_layer = 3; /* the last layer has full attention whatever their number, which files must state then */
    s.wide = 3;
    s.say_windows = true;
    s.final_cap = 0;
    check_decoder(&s);
    s.query_scale = 0; /* of these vectors a folder has no number */
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d);
    struct pp_model *m;
    assert_ok(pp_model_open(file, &m, &err), err);
    pp_model_close(m);
    assert_int_equal(pp_convert_to_folder(file, fresh_path("none"), &(struct pp_convert_options){0}, &err),
                     PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "attn_q_norm"));
    decoder_free(d);
}

/* FlexOlmo: experts read the residual stream without a norm. */
static void flex_olmo(void **state)
{
    (void)state;
    const struct decoder_shape s = decoder_shape("flex_olmo");
    const char *folder = check_decoder(&s);
    assert_tensor(folder, "model.layers.1.mlp.experts.5.down_proj.weight", 2, s.n_ff);
    assert_tensor(folder, "model.layers.0.post_feedforward_layernorm.weight", 1, s.n_embd);
}

TEST_GROUP(folder_decoders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opt), cmocka_unit_test(reserved_positions), cmocka_unit_test(bad_opt),
        cmocka_unit_test(gpt_neo), cmocka_unit_test(xglm), cmocka_unit_test(codegen),
        cmocka_unit_test(codegen_in_eight), cmocka_unit_test(persimmon), cmocka_unit_test(paddleocr),
        cmocka_unit_test(cogvlm), cmocka_unit_test(fuyu), cmocka_unit_test(windows_in_llama),
        cmocka_unit_test(vaultgemma), cmocka_unit_test(helium), cmocka_unit_test(nanochat),
        cmocka_unit_test(muse_glimmer), cmocka_unit_test(diffllama), cmocka_unit_test(doge), cmocka_unit_test(jetmoe),
        cmocka_unit_test(motif), cmocka_unit_test(motif_2), cmocka_unit_test(lille), cmocka_unit_test(iquest_loop),
        cmocka_unit_test(solar), cmocka_unit_test(spark), cmocka_unit_test(lora_of_spark),
        cmocka_unit_test(openai_gpt), cmocka_unit_test(ctrl), cmocka_unit_test(granite_swa), cmocka_unit_test(aria),
        cmocka_unit_test(cohere_compass), cmocka_unit_test(looped), cmocka_unit_test(lora_of_loops),
        cmocka_unit_test(norms_of_loops), cmocka_unit_test(modernbert_decoder), cmocka_unit_test(kormo),
        cmocka_unit_test(telechat), cmocka_unit_test(tele_flm), cmocka_unit_test(k2_horizon), cmocka_unit_test(yuan),
        cmocka_unit_test(hyperclovax), cmocka_unit_test(flex_olmo),
    };
    return cmocka_run_group_tests_name("folder_decoders", tests, NULL, NULL);
}
