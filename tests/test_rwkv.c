/* test_rwkv.c - RWKV 4, 6 and 7, alone and in Qwen 2's layers. Small random models (rwkv_model.h) have the logits of
 * the formulas in double precision, with the same bits at all row counts, threads and builds. Also tested: folders,
 * going back in conversations, snapshots, and adapters. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/export.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/model.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "engine/types.h"
#include "tests/adapter_folder.h"
#include "tests/passes.h"
#include "tests/rwkv_model.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* --- the tests --------------------------------------------------------------------------------------------------- */

static const struct version {
    void (*make)(void);
    const char *(*write)(void);
    void (*compute)(const int32_t *ids, int n, double *logits);
    /* An adapter: the tensors that it changes, its modules, and its config. */
    const char *changed[3], *modules[3], *config;
} versions[] = {
    {rwkv7_make, rwkv7_write, rwkv7_compute,
     {"time_mix_receptance.weight", "time_mix_w1.weight", "channel_mix_key.weight"},
     {"model.layers.0.attn.r_proj", "model.layers.1.attn.w_lora.lora.0", "model.layers.2.ffn.key"},
     "[\"r_proj\", \"lora.0\", \"key\"]"},
    {rwkv6_make, rwkv6_write, rwkv6_compute,
     {"time_mix_gate.weight", "time_mix_output.weight", "channel_mix_receptance.weight"},
     {"rwkv.blocks.0.attention.gate", "rwkv.blocks.1.attention.output", "rwkv.blocks.2.feed_forward.receptance"},
     "[\"gate\", \"output\", \"receptance\"]"},
    {arwkv_make, arwkv_write, arwkv_compute,
     {"time_mix_receptance.weight", "time_mix_output.weight", "ffn_gate.weight"},
     {"model.layers.0.self_attn.time_mixer.receptance", "model.layers.1.self_attn.time_mixer.output",
      "model.layers.2.mlp.gate_proj"},
     "[\"receptance\", \"output\", \"gate_proj\"]"},
    {qrwkv_make, qrwkv_write, qrwkv_compute,
     {"time_mix_receptance.weight", "time_mix_key.weight", "ffn_down.weight"},
     {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj", "model.layers.2.mlp.down_proj"},
     "[\"q_proj\", \"k_proj\", \"down_proj\"]"},
    {rwkv4_make, rwkv4_write, rwkv4_compute,
     {"time_mix_value.weight", "time_mix_output.weight", "channel_mix_receptance.weight"},
     {"rwkv.blocks.0.attention.value", "rwkv.blocks.1.attention.output", "rwkv.blocks.2.feed_forward.receptance"},
     "[\"value\", \"output\", \"receptance\"]"},
};

enum { N_VERSIONS = sizeof versions / sizeof *versions };

/* The cosine of a model's logits and `want` must exceed `least`. */
static void assert_likeness(const char *path, const char *quant, const double *want, double least)
{
    const double cosine = small_likeness(path, quant, want, VOCAB);
    if (!(cosine > least))
        fail_msg("%s: a cosine of %g", path, cosine);
}

/* A file converted from a folder says that it has no attention heads, and has no keys about their sizes. */
static void assert_no_heads(const char *file, const char *arch)
{
    int64_t n = -1;
    char key[80];
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(file, &g, &err), err);
    snprintf(key, sizeof key, "%s.attention.head_count", arch);
    assert_true(pp_gguf_int(g, key, &n) && n == 0);
    snprintf(key, sizeof key, "%s.attention.head_count_kv", arch);
    assert_false(pp_gguf_has(g, key));
    pp_gguf_close(g);
}

static void logits(void **state)
{
    int32_t ids[SMALL_TEXT];
    double *want = doubles(SMALL_TEXT * VOCAB);
    const char *quantised = fresh_path("rwkv-q8_0.gguf"), *mlx = fresh_path("rwkv-mlx"),
               *again = fresh_path("rwkv-again.gguf");
    struct pp_error err;
    (void)state;
    rwkv7_make();
    const char *file = rwkv7_write();
    small_text(ids, VOCAB);
    rwkv7_compute(ids, SMALL_TEXT, want);
    const char *folder = assert_logits_everywhere(want, VOCAB, file);
    assert_tensor(folder, "model.layers.1.attn.x_g", 3, N);
    assert_tensor(folder, "model.layers.2.attn.r_k", 2, HEAD);
    assert_tensor(folder, "model.layers.1.attn.v_lora.lora.2.bias", 1, N);
    assert_tensor(folder, "model.layers.0.pre_norm.weight", 1, N);
    assert_same_bits(file, PP_KV_F32);
    assert_ok(pp_quantize_file(file, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_same_bits(quantised, PP_KV_F32);
    assert_likeness(quantised, NULL, want, 0.99);
    assert_likeness(folder, "q8_0", want, 0.99);
    assert_ok(pp_convert_to_folder(file, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
    assert_likeness(mlx, NULL, want, 0.99);
    assert_ok(pp_convert_to_gguf(folder, again, &(struct pp_convert_options){0}, &err), err);
    assert_no_heads(again, "rwkv7");
    pp_free(want);
    rwkv_drop();
}

/* Multiplies the weights that files divide, for models that halve the residual stream: as in folders. */
static void make_whole(int rescale_every)
{
    for (int l = 0; rescale_every && l < LAYERS; l++)
        for (int i = 0; i < 2; i++) {
            const struct array *a = rwkv_find(l, i ? "time_mix_output.weight" : "channel_mix_value.weight");
            for (int64_t k = 0; k < a->rows * a->cols; k++)
                a->values[k] *= (float)(1 << l / rescale_every);
        }
}

/* A folder made of a file, the file converted back from it, and quantised ones. Quantisation errors also change how
 * inputs are mixed. */
static void assert_folders_6(const char *file, const double *want)
{
    const char *folder = fresh_path("rwkv6"), *mlx = fresh_path("rwkv6-mlx"), *again = fresh_path("rwkv6.gguf");
    const struct pp_convert_options plain = {0};
    struct pp_error err;
    assert_ok(pp_convert_to_folder(file, folder, &plain, &err), err);
    assert_model_type(folder);
    assert_logits(want, VOCAB, folder);
    assert_tensor(folder, "rwkv.blocks.1.attention.time_maa_g", 3, N);
    assert_tensor(folder, "rwkv.blocks.1.attention.time_maa_w1", 2, MIXES_6 * MIX_RANK);
    assert_tensor(folder, "rwkv.blocks.2.attention.time_maa_w2", 3, N);
    assert_tensor(folder, "rwkv.blocks.2.attention.time_decay_w1", 2, DECAY_RANK);
    assert_tensor(folder, "rwkv.blocks.0.attention.time_faaaa", 2, HEAD);
    assert_tensor(folder, "rwkv.blocks.0.pre_ln.weight", 1, N);
    assert_likeness(folder, "q8_0", want, 0.98);
    assert_ok(pp_convert_to_gguf(folder, again, &plain, &err), err);
    assert_logits(want, VOCAB, again);
    assert_no_heads(again, "rwkv6");
    assert_ok(pp_convert_to_folder(file, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
    assert_likeness(mlx, NULL, want, 0.98);
}

/* RWKV 6, with the residual stream halved after every few layers, or not: from current files and the first ones, in
 * eight bits, and from folders, where nothing is halved. */
static void logits_6(void **state)
{
    static const struct {
        uint32_t rescale_every;
        bool apart;
    } cases[] = {{0, false}, {2, false}, {1, true}};
    int32_t ids[SMALL_TEXT];
    double *want = doubles(SMALL_TEXT * VOCAB);
    struct pp_error err;
    (void)state;
    small_text(ids, VOCAB);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rwkv6_make_with(cases[i].apart);
        const char *file = rwkv6_write_with(HEAD, cases[i].rescale_every, 2, cases[i].rescale_every ? -1 : 3);
        const char *other = fresh_path("rwkv6-q8_0.gguf");
        rwkv6_compute_with(ids, SMALL_TEXT, cases[i].apart, (int)cases[i].rescale_every, want);
        assert_logits(want, VOCAB, file);
        assert_same_bits(file, PP_KV_F32);
        assert_ok(pp_quantize_file(file, other, "F32", &(struct pp_convert_options){0}, &err), err);
        assert_logits(want, VOCAB, other);
        remove(other);
        assert_ok(pp_quantize_file(file, other, "Q8_0", &(struct pp_convert_options){0}, &err), err);
        assert_same_bits(other, PP_KV_F32);
        assert_likeness(other, NULL, want, 0.98);
        make_whole((int)cases[i].rescale_every);
        rwkv6_compute_with(ids, SMALL_TEXT, cases[i].apart, 0, want);
        assert_folders_6(file, want);
        rwkv_drop();
    }
    pp_free(want);
}

/* RWKV 6's tensors by flash-linear-attention's names. */
static const struct {
    const char *theirs, *ours;
} fla_names[] = {
    {"attn_norm.weight", "attn_norm.weight"}, {"attn_norm.bias", "attn_norm.bias"},
    {"ffn_norm.weight", "attn_norm_2.weight"}, {"ffn_norm.bias", "attn_norm_2.bias"},
    {"attn.x_proj.0.mu", "time_mix_lerp_x.weight"}, {"attn.x_proj.0.linear.weight", "time_mix_w1.weight"},
    {"attn.x_proj.2.weight", "time_mix_w2.weight"}, {"attn.x_bias", "time_mix_lerp_fused.weight"},
    {"attn.w_proj.linear.lora.0.weight", "time_mix_decay_w1.weight"},
    {"attn.w_proj.linear.lora.2.weight", "time_mix_decay_w2.weight"},
    {"attn.w_proj.linear.lora.2.bias", "time_mix_decay.weight"}, {"attn.bonus", "time_mix_first.weight"},
    {"attn.r_proj.linear.weight", "time_mix_receptance.weight"}, {"attn.k_proj.linear.weight", "time_mix_key.weight"},
    {"attn.v_proj.linear.weight", "time_mix_value.weight"}, {"attn.g_proj.linear.weight", "time_mix_gate.weight"},
    {"attn.g_norm.weight", "time_mix_ln.weight"}, {"attn.g_norm.bias", "time_mix_ln.bias"},
    {"attn.o_proj.weight", "time_mix_output.weight"}, {"ffn.key.mu", "channel_mix_lerp_k.weight"},
    {"ffn.receptance.mu", "channel_mix_lerp_r.weight"}, {"ffn.key.linear.weight", "channel_mix_key.weight"},
    {"ffn.value.weight", "channel_mix_value.weight"}, {"ffn.receptance.linear.weight", "channel_mix_receptance.weight"},
};

/* Our values in flash-linear-attention's order: r, w, k, v, g, with the matrices of w2 side by side. */
static void in_their_order(const struct array *a, float *to)
{
    static const int ours[MIXES_6] = {3, 0, 1, 2, 4};
    const int64_t n = (a->rows ? a->rows : 1) * a->cols;
    const bool across = strstr(a->name, "time_mix_w2"), ways = across || strstr(a->name, "time_mix_w1") ||
                                                               strstr(a->name, "lerp_fused");
    for (int64_t i = 0; i < n; i++) {
        const int64_t each = n / MIXES_6, r = i % each / a->cols, c = i % a->cols;
        const int64_t from = ways ? ours[i / each] * each + i % each : i;
        to[across ? (r * MIXES_6 + i / each) * a->cols + c : i] = a->values[from];
    }
}

/* A folder of the n tensors, whose values are freed; its path as fresh_path gives it. */
static const char *write_folder(const char *name, const struct pp_tensor *list, int n, const char *config)
{
    const char *dir = fresh_path(name);
    char path[400];
    struct pp_error err;
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, (size_t)n, &err), err);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
    for (int i = 0; i < n; i++)
        pp_free((void *)(uintptr_t)list[i].data);
    return dir;
}

static const char *write_fla(const char *config)
{
    enum { OTHERS = 6 };
    static const char *const others[OTHERS][2] = {
        {"model.embeddings.weight", "token_embd.weight"}, {"model.layers.0.pre_norm.weight", "token_embd_norm.weight"},
        {"model.layers.0.pre_norm.bias", "token_embd_norm.bias"}, {"model.norm.weight", "output_norm.weight"},
        {"model.norm.bias", "output_norm.bias"}, {"lm_head.weight", "output.weight"}};
    enum { OF_LAYER = sizeof fla_names / sizeof *fla_names, ALL = OTHERS + LAYERS * OF_LAYER };
    struct pp_tensor list[ALL];
    char names[ALL][80];
    for (int i = 0; i < ALL; i++) {
        const int l = i < OTHERS ? -1 : (i - OTHERS) / OF_LAYER, k = (i - OTHERS) % OF_LAYER;
        const struct array *a = rwkv_find(l, l < 0 ? others[i][1] : fla_names[k].ours);
        const int64_t n = (a->rows ? a->rows : 1) * a->cols;
        const bool across = strstr(a->name, "time_mix_w2");
        float *values = pp_calloc((size_t)n, sizeof *values);
        in_their_order(a, values);
        if (l < 0)
            snprintf(names[i], sizeof names[i], "%s", others[i][0]);
        else
            snprintf(names[i], sizeof names[i], "model.layers.%d.%s", l, fla_names[k].theirs);
        list[i] = (struct pp_tensor){.name = names[i], .type = PP_TYPE_F32, .n_dims = a->rows ? 2 : 1, .data = values,
                                     .ne = {across ? a->cols * MIXES_6 : a->cols, across ? N : a->rows ? a->rows : 1,
                                            1, 1}, .size = (size_t)n * sizeof *values};
    }
    return write_folder("fla", list, ALL, config);
}

/* RWKV 6 in flash-linear-attention's form, where the heads' norm has a smaller epsilon. A conversion computes the
 * same, and is written in RWKV's own form. */
static void logits_6_of_fla(void **state)
{
    static const char config[] =
        "{\"architectures\": [\"RWKV6ForCausalLM\"], \"model_type\": \"rwkv6\", \"hidden_size\": 64, \"num_heads\": 2, "
        "\"expand_k\": 1.0, \"expand_v\": 1.0, \"hidden_ratio\": 1.5, \"intermediate_size\": null, "
        "\"num_hidden_layers\": 3, \"vocab_size\": 70, \"norm_eps\": 1e-5, \"hidden_act\": \"sqrelu\", "
        "\"proj_low_rank_dim\": 32, \"gate_low_rank_dim\": 64, \"tie_word_embeddings\": false}";
    int32_t ids[SMALL_TEXT];
    double *want = doubles(SMALL_TEXT * VOCAB);
    const char *file = fresh_path("fla.gguf");
    struct pp_error err;
    (void)state;
    small_text(ids, VOCAB);
    rwkv6_make();
    rwkv6_heads_eps = 1e-5;
    rwkv6_compute_with(ids, SMALL_TEXT, false, 0, want);
    rwkv6_heads_eps = 64e-5;
    const char *folder = write_fla(config);
    assert_logits(want, VOCAB, folder);
    assert_likeness(folder, "q8_0", want, 0.98);
    assert_folders_6(folder, want);
    assert_ok(pp_convert_to_gguf(folder, file, &(struct pp_convert_options){0}, &err), err);
    assert_folders_6(file, want);
    pp_free(want);
    rwkv_drop();
}

/* RWKV 7's tensors as transformers stores them, under RWKV's own names: low-rank matrices are [n_in, n_out], vectors
 * are [1, 1, n], and each mixing vector is a tensor of its own. */
static const struct {
    const char *theirs, *ours;
    enum { AS_IT_IS, TRANSPOSED, DEEP, BY_HEADS, MIXED } form;
} own_names[] = {
    {"ln1.weight", "attn_norm.weight", AS_IT_IS}, {"ln1.bias", "attn_norm.bias", AS_IT_IS},
    {"ln2.weight", "attn_norm_2.weight", AS_IT_IS}, {"ln2.bias", "attn_norm_2.bias", AS_IT_IS},
    {"att.x_r", "0", MIXED}, {"att.x_w", "1", MIXED}, {"att.x_k", "2", MIXED}, {"att.x_v", "3", MIXED},
    {"att.x_a", "4", MIXED}, {"att.x_g", "5", MIXED}, {"att.w0", "time_mix_w0.weight", DEEP},
    {"att.w1", "time_mix_w1.weight", TRANSPOSED}, {"att.w2", "time_mix_w2.weight", TRANSPOSED},
    {"att.a0", "time_mix_a0.weight", DEEP}, {"att.a1", "time_mix_a1.weight", TRANSPOSED},
    {"att.a2", "time_mix_a2.weight", TRANSPOSED}, {"att.v0", "time_mix_v0.weight", DEEP},
    {"att.v1", "time_mix_v1.weight", TRANSPOSED}, {"att.v2", "time_mix_v2.weight", TRANSPOSED},
    {"att.g1", "time_mix_g1.weight", TRANSPOSED}, {"att.g2", "time_mix_g2.weight", TRANSPOSED},
    {"att.k_k", "time_mix_k_k.weight", DEEP}, {"att.k_a", "time_mix_k_a.weight", DEEP},
    {"att.r_k", "time_mix_r_k.weight", BY_HEADS}, {"att.receptance.weight", "time_mix_receptance.weight", AS_IT_IS},
    {"att.key.weight", "time_mix_key.weight", AS_IT_IS}, {"att.value.weight", "time_mix_value.weight", AS_IT_IS},
    {"att.output.weight", "time_mix_output.weight", AS_IT_IS}, {"att.ln_x.weight", "time_mix_ln.weight", AS_IT_IS},
    {"att.ln_x.bias", "time_mix_ln.bias", AS_IT_IS}, {"ffn.x_k", "channel_mix_lerp_k.weight", DEEP},
    {"ffn.key.weight", "channel_mix_key.weight", AS_IT_IS}, {"ffn.value.weight", "channel_mix_value.weight", AS_IT_IS},
};

/* One of those tensors. The caller frees its values. */
static struct pp_tensor in_own_form(int l, const char *ours, int form)
{
    const struct array *a = rwkv_find(l, form == MIXED ? "time_mix_lerp_fused.weight" : ours);
    const int64_t rows = form == MIXED || !a->rows ? 1 : a->rows;
    float *values = pp_calloc((size_t)(rows * a->cols), sizeof *values);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < a->cols; c++)
            values[form == TRANSPOSED ? c * rows + r : r * a->cols + c] =
                a->values[(form == MIXED ? ours[0] - '0' : r) * a->cols + c];
    struct pp_tensor t = {.type = PP_TYPE_F32, .n_dims = a->rows ? 2 : 1, .ne = {a->cols, rows, 1, 1}, .data = values,
                          .size = (size_t)(rows * a->cols) * sizeof *values};
    if (form == TRANSPOSED) {
        t.ne[0] = rows;
        t.ne[1] = a->cols;
    } else if (form == BY_HEADS) {
        t.n_dims = 2;
        t.ne[0] = HEAD;
        t.ne[1] = N / HEAD;
    } else if (form == DEEP || form == MIXED) {
        t.n_dims = 3;
    }
    return t;
}

static const char *write_own(const char *config)
{
    enum { OTHERS = 6 };
    static const char *const others[OTHERS][2] = {
        {"rwkv7.emb.weight", "token_embd.weight"}, {"rwkv7.blocks.0.ln0.weight", "token_embd_norm.weight"},
        {"rwkv7.blocks.0.ln0.bias", "token_embd_norm.bias"}, {"rwkv7.ln_out.weight", "output_norm.weight"},
        {"rwkv7.ln_out.bias", "output_norm.bias"}, {"head.weight", "output.weight"}};
    enum { OF_LAYER = sizeof own_names / sizeof *own_names, ALL = OTHERS + LAYERS * OF_LAYER };
    struct pp_tensor list[ALL];
    char names[ALL][80];
    for (int i = 0; i < ALL; i++) {
        const int l = i < OTHERS ? -1 : (i - OTHERS) / OF_LAYER, k = l < 0 ? i : (i - OTHERS) % OF_LAYER;
        list[i] = l < 0 ? in_own_form(l, others[k][1], AS_IT_IS) : in_own_form(l, own_names[k].ours, own_names[k].form);
        if (l < 0)
            snprintf(names[i], sizeof names[i], "%s", others[k][0]);
        else
            snprintf(names[i], sizeof names[i], "rwkv7.blocks.%d.%s", l, own_names[k].theirs);
        list[i].name = names[i];
    }
    return write_folder("rwkv7-own", list, ALL, config);
}

/* RWKV 7 in transformers' form; files and flash-linear-attention's folders made of it compute the same. */
static void logits_of_own_names(void **state)
{
    static const char config[] =
        "{\"architectures\": [\"Rwkv7ForCausalLM\"], \"model_type\": \"rwkv7\", \"hidden_size\": 64, "
        "\"intermediate_size\": 96, \"num_hidden_layers\": 3, \"num_heads\": 2, \"head_dim\": 32, "
        "\"vocab_size\": 70, \"decay_low_rank_dim\": 32, \"a_low_rank_dim\": 64, \"v_low_rank_dim\": 32, "
        "\"gate_low_rank_dim\": 96, \"norm_eps\": 1e-5, \"norm_bias\": true, \"use_deep_embed\": false, "
        "\"wkv_state_dtype\": \"float32\", \"tie_word_embeddings\": false}";
    int32_t ids[SMALL_TEXT];
    double *want = doubles(SMALL_TEXT * VOCAB);
    const char *file = fresh_path("own.gguf"), *other = fresh_path("rwkv7-fla");
    struct pp_error err;
    (void)state;
    small_text(ids, VOCAB);
    rwkv7_make();
    rwkv7_compute(ids, SMALL_TEXT, want);
    const char *folder = write_own(config);
    assert_logits(want, VOCAB, folder);
    assert_likeness(folder, "q8_0", want, 0.99);
    assert_ok(pp_convert_to_folder(folder, other, &(struct pp_convert_options){0}, &err), err);
    assert_logits(want, VOCAB, other);
    assert_tensor(other, "model.layers.1.attn.x_g", 3, N);
    assert_ok(pp_convert_to_gguf(folder, file, &(struct pp_convert_options){0}, &err), err);
    assert_logits(want, VOCAB, file);
    pp_free(want);
    rwkv_drop();
}

/* The same logits from a file, in eight bits, from its folder, and from the file made of that. Returns the folder's
 * path. */
static const char *check_qwen(const struct version *v, const char *again)
{
    const char *quantised = fresh_path("qwen-q8_0.gguf"), *mlx = fresh_path("qwen-mlx");
    double *want = doubles(SMALL_TEXT * VOCAB);
    int32_t ids[SMALL_TEXT];
    struct pp_error err;
    v->make();
    const char *file = v->write();
    small_text(ids, VOCAB);
    v->compute(ids, SMALL_TEXT, want);
    const char *folder = assert_logits_everywhere(want, VOCAB, file);
    assert_same_bits(file, PP_KV_F32);
    assert_ok(pp_quantize_file(file, quantised, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    assert_same_bits(quantised, PP_KV_F32);
    assert_likeness(quantised, NULL, want, 0.98);
    assert_likeness(folder, "q8_0", want, 0.98);
    assert_ok(pp_convert_to_folder(file, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
    assert_likeness(mlx, NULL, want, 0.98);
    assert_ok(pp_convert_to_gguf(folder, again, &(struct pp_convert_options){0}, &err), err);
    pp_free(want);
    return folder;
}

static int64_t number_in(const char *file, const char *key)
{
    int64_t n = -1;
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(file, &g, &err), err);
    assert_true(pp_gguf_int(g, key, &n));
    pp_gguf_close(g);
    return n;
}

static void logits_arwkv(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *again = fresh_path("arwkv-again.gguf");
        struct pp_model *m;
        struct pp_error err;
        arwkv_gated = i != 1;
        arwkv_head_norms = i == 0;
        const char *folder = check_qwen(&versions[2], again);
        assert_tensor(folder, "model.layers.1.self_attn.time_mixer.x_r", 3, N);
        assert_tensor(folder, "model.layers.1.self_attn.time_mixer.w1", 2, rwkv_ranks[0]);
        assert_tensor(folder, "model.layers.2.self_attn.time_mixer.v2", 2, N);
        assert_int_equal(number_in(again, "arwkv7.token_shift_count"), 1);
        assert_int_equal(number_in(again, "arwkv7.attention.head_count"), 0);
        assert_int_equal(number_in(again, "arwkv7.attention.gate_lora_rank"), arwkv_gated ? rwkv_ranks[3] : 0);
        assert_ok(pp_model_open(again, &m, &err), err); /* other programs expect the size of this tensor */
        assert_int_equal(pp_source_tensor(m->source, "blk.0.time_mix_v1.weight")->ne[1], rwkv_ranks[1]);
        pp_model_close(m);
        rwkv_drop();
    }
    arwkv_gated = arwkv_head_norms = true;
}

/* Folders have the mixing vectors in another order: r, k, v, w, g. */
static void logits_qrwkv(void **state)
{
    const char *again = fresh_path("qrwkv-again.gguf");
    struct pp_hf *hf;
    struct pp_error err;
    float row[MIXES_6 * MIX_RANK];
    (void)state;
    const char *folder = check_qwen(&versions[3], again);
    assert_tensor(folder, "model.layers.1.self_attn.time_maa_g", 3, N);
    assert_tensor(folder, "model.layers.1.self_attn.k_proj.bias", 1, KEYS * HEAD);
    assert_int_equal(number_in(again, "rwkv6qwen2.token_shift_count"), 1);
    assert_int_equal(number_in(again, "rwkv6qwen2.attention.head_count"), 0);
    assert_int_equal(number_in(again, "rwkv6qwen2.attention.head_count_kv"), KEYS);
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    const struct pp_tensor *w1 = pp_hf_find(hf, "model.layers.1.self_attn.time_maa_w1", NULL);
    const struct pp_tensor *w2 = pp_hf_find(hf, "model.layers.1.self_attn.time_maa_w2", NULL);
    assert_true(w1 && w2 && w1->ne[0] == MIXES_6 * MIX_RANK && w2->ne[0] == N && w2->ne[2] == MIXES_6);
    for (int way = 0; way < MIXES_6; way++) {
        const int ours = (int[]){3, 1, 2, 0, 4}[way];
        pp_dequantize_row(w1->type, w1->data, row, MIXES_6 * MIX_RANK); /* for the first of the mixed inputs */
        assert_float_equal(row[way * MIX_RANK + 5],
                           rwkv_vector(1, "time_mix_w1.weight", (ours * MIX_RANK + 5) * N), 1e-3);
        pp_dequantize_row(w2->type, (const uint8_t *)w2->data + w2->size / MIXES_6 * (size_t)way, row, N);
        assert_float_equal(row[7], rwkv_vector(1, "time_mix_w2.weight", (ours * N + 7) * MIX_RANK), 1e-3);
    }
    pp_hf_close(hf);
    rwkv_drop();
}

/* RWKV 4, whose folders store 1 - the mixing factors, and the logarithms of decays. */
static void logits_4(void **state)
{
    const char *again = fresh_path("rwkv4-again.gguf");
    struct pp_hf *hf;
    struct pp_error err;
    float row[N];
    (void)state;
    const char *folder = check_qwen(&versions[4], again);
    assert_tensor(folder, "rwkv.blocks.1.attention.time_mix_key", 3, N);
    assert_tensor(folder, "rwkv.blocks.2.feed_forward.time_mix_receptance", 3, N);
    assert_tensor(folder, "rwkv.blocks.2.attention.time_decay", 1, N);
    assert_tensor(folder, "rwkv.blocks.0.pre_ln.bias", 1, N);
    assert_tensor(folder, "head.weight", 2, N);
    assert_model_type(folder);
    assert_no_heads(again, "rwkv");
    assert_ok(pp_hf_open(folder, &hf, &err), err);
    for (int i = 0; i < 2; i++) {
        const struct pp_tensor *t = pp_hf_find(hf, i ? "rwkv.blocks.1.attention.time_decay"
                                                     : "rwkv.blocks.1.attention.time_mix_value", NULL);
        pp_dequantize_row(t->type, t->data, row, N);
        const float ours = (float)rwkv_vector(1, i ? "time_mix_decay.weight" : "time_mix_lerp_v.weight", 7);
        assert_float_equal(row[7], i ? logf(-ours) : 1 - ours, 1e-2);
    }
    pp_hf_close(hf);
    rwkv_drop();
}

/* Refused: a width that heads do not divide, vectors of a wrong length, and any missing tensor. */
static void bad_files_4(void **state)
{
    const struct number narrow[] = {{"block_count", LAYERS}, {"context_length", 1 << 20}, {"embedding_length", N / 2},
                                    {"feed_forward_length", FF}, {"attention.head_count", 0}, {"vocab_size", VOCAB}};
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    rwkv4_make();
    assert_int_equal(pp_model_open(rwkv_write_numbers("rwkv", narrow, sizeof narrow / sizeof *narrow), &m, &err),
                     PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "multiples of 64"));
    struct array *decay = (struct array *)(uintptr_t)rwkv_find(2, "time_mix_decay.weight");
    decay->cols = N / 2;
    assert_int_equal(pp_model_open(rwkv4_write(), &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "time_mix_decay"));
    rwkv_drop();
}

/* Files with missing or unknown values are refused. */
static void bad_files_qwen(void **state)
{
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    arwkv_make();
    assert_int_equal(pp_model_open(arwkv_write_with(HEAD, 2), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "mixes 2 inputs"));
    rwkv_drop();
    qrwkv_make();
    assert_int_equal(pp_model_open(qrwkv_write_with(HEAD, KEYS, 2, 0), &m, &err), PP_ERR_UNSUPPORTED);
    assert_int_equal(pp_model_open(qrwkv_write_with(HEAD, KEYS, 1, 2), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "rescale_every_n_layers"));
    assert_int_equal(pp_model_open(qrwkv_write_with(HEAD, 3, 1, 0), &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "3 heads have keys"));
    assert_int_not_equal(pp_model_open(qrwkv_write_with(HEAD, 2, 1, 0), &m, &err), PP_OK); /* a wrong number */
    rwkv_drop();
    for (int kind = 2; kind < N_VERSIONS; kind++) { /* with any tensor missing */
        versions[kind].make();
        for (int i = 0; i < n_arrays; i++) {
            struct array *a = &arrays[i];
            if (strncmp(a->name, "blk.1.", 6) != 0)
                continue;
            a->name[4] = '7';
            assert_int_not_equal(pp_model_open(versions[kind].write(), &m, &err), PP_OK);
            a->name[4] = '1';
        }
        rwkv_drop();
    }
}

/* RWKV 6, too: files with missing or unknown values are refused with an error. */
static void bad_files_6(void **state)
{
    static const struct {
        uint32_t rescale_every, shifts;
        int left_out;
        const char *text;
    } cases[] = {{2, 2, 0, "wkv.head_size"}, {2, 2, 1, "time_mix_extra_dim"}, {2, 2, 2, "time_decay_extra_dim"},
                 {2, 1, -1, "mixes 1 inputs"}};
    struct pp_model *m;
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    rwkv6_make();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *file = rwkv6_write_with(HEAD, cases[i].rescale_every, cases[i].shifts, cases[i].left_out);
        assert_int_not_equal(pp_model_open(file, &m, &err), PP_OK);
        if (!strstr(err.text, cases[i].text))
            fail_msg("\"%s\" does not say %s", err.text, cases[i].text);
    }
    const struct number wide[] = {{"wkv.head_size", HEAD}, {"time_mix_extra_dim", 1 << 17},
                                  {"time_decay_extra_dim", DECAY_RANK}, {"rescale_every_n_layers", 2},
                                  {"block_count", 2}, {"context_length", 1 << 20}, {"embedding_length", N},
                                  {"feed_forward_length", FF}, {"attention.head_count", 0}, {"vocab_size", VOCAB}};
    const char *too_wide = rwkv_write_numbers("rwkv6", wide, sizeof wide / sizeof *wide);
    assert_int_equal(pp_model_open(too_wide, &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "size between two matrices"));
    assert_int_equal(pp_source_open(too_wide, &s, NULL), PP_ERR_FORMAT); /* also without room for an error */
    const struct number deep[] = {{"wkv.head_size", HEAD}, {"time_mix_extra_dim", MIX_RANK},
                                  {"time_decay_extra_dim", DECAY_RANK}, {"rescale_every_n_layers", 2},
                                  {"block_count", 202}, {"context_length", 1 << 20}, {"embedding_length", N},
                                  {"feed_forward_length", FF}, {"attention.head_count", 0}, {"vocab_size", VOCAB}};
    const char *too_deep = rwkv_write_numbers("rwkv6", deep, sizeof deep / sizeof *deep);
    assert_int_equal(pp_model_open(too_deep, &m, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "nothing would be left"));
    for (int i = 0; i < n_arrays; i++) { /* with any tensor missing */
        struct array *a = &arrays[i];
        if (strncmp(a->name, "blk.1.", 6) != 0)
            continue;
        a->name[4] = '7';
        assert_int_not_equal(pp_model_open(rwkv6_write(), &m, &err), PP_OK);
        a->name[4] = '1';
    }
    rwkv_drop();
}

/* A conversation goes on with the same bits after going back within a page and across one, and after a fork. */
static void go_back(const struct version *v)
{
    static const int to[] = {65, 20, 64, 0};
    int32_t ids[SMALL_TEXT];
    struct pp_seq *other;
    struct pp_error err;
    size_t n;
    v->make();
    const char *file = v->write();
    float *want = small_logits(file, PP_KV_F32, &n), *got = pp_calloc(n, sizeof *got);
    struct running r = run_small(file, NULL);
    assert_null(pp_model_info(r.m)->chat_template); /* a name of a template is not a template */
    small_text(ids, VOCAB);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 16, got);
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        const int rest = SMALL_TEXT - to[i];
        assert_ok(pp_seq_fork(r.s, to[i], &other, &err), err);
        pp_seq_truncate(r.s, to[i]);
        run_in_passes(r.e, other, ids, 3, 2, got);
        run_in_passes(r.e, r.s, ids + to[i], rest, 7, got);
        assert_memory_equal(got, want + to[i] * VOCAB, (size_t)(rest * VOCAB) * sizeof *got);
        pp_seq_free(other);
    }
    pp_free(want);
    pp_free(got);
    stop_small(&r);
    rwkv_drop();
}

static void gone_back(void **state)
{
    (void)state;
    for (int i = 0; i < N_VERSIONS; i++)
        go_back(&versions[i]);
}

static void saved(void **state)
{
    (void)state;
    for (int i = 0; i < N_VERSIONS; i++) {
        versions[i].make();
        assert_resumes(versions[i].write(), VOCAB);
        rwkv_drop();
    }
}

/* An adapter's modules may have Llama's names: the model decides what they mean. */
static void expect_converts(const char *model, const char *adapter)
{
    const char *gguf = fresh_path("rwkv-lora.gguf");
    struct pp_model *m;
    struct pp_adapter *a;
    struct pp_error err;
    assert_ok(pp_convert_adapter(adapter, gguf, -1, &(struct pp_convert_options){.base = model}, &err), err);
    assert_ok(pp_model_open(model, &m, &err), err);
    assert_ok(pp_adapter_load(m, gguf, &a, &err), err);
    assert_int_equal(pp_adapter_info(a)->n_targets, LAYERS);
    pp_adapter_free(a);
    pp_model_close(m);
}

/* A LoRA of both parts of a layer, and of a low-rank projection, computes what the merged weights do. */
static void adapt(const struct version *v)
{
    int32_t ids[SMALL_TEXT];
    struct folder f = {.random = 5};
    double *want = doubles(SMALL_TEXT * VOCAB);
    char config[160];
    v->make();
    const char *model = v->write();
    for (int l = 0; l < LAYERS; l++) {
        const struct array *w = rwkv_find(l, v->changed[l]);
        folder_add_merged(&f, v->modules[l], 4, 2, w->values, w->rows, w->cols);
    }
    small_text(ids, VOCAB);
    v->compute(ids, SMALL_TEXT, want);
    snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"target_modules\": %s}",
             v->config);
    const char *path = folder_write_peft(&f, config);
    assert_adapted(model, path, want, VOCAB, 2e-4);
    if (v->make == qrwkv_make)
        expect_converts(model, path);
    pp_free(want);
    folder_empty(&f);
    rwkv_drop();
}

static void adapters(void **state)
{
    (void)state;
    for (int i = 0; i < N_VERSIONS; i++)
        adapt(&versions[i]);
}

/* Refused: head sizes that do not divide the width, or that are not a whole number of vector registers. */
static void bad_heads(void **state)
{
    static const uint32_t sizes[] = {0, 8, 24, 128, 1u << 31};
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    rwkv7_make();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_not_equal(pp_model_open(rwkv7_write_with(sizes[i]), &m, &err), PP_OK);
    rwkv_drop();
    rwkv6_make();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_not_equal(pp_model_open(rwkv6_write_with(sizes[i], 0, 2, -1), &m, &err), PP_OK);
    rwkv_drop();
}

TEST_GROUP(rwkv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits), cmocka_unit_test(logits_6), cmocka_unit_test(logits_6_of_fla),
        cmocka_unit_test(logits_of_own_names),
        cmocka_unit_test(logits_arwkv), cmocka_unit_test(logits_qrwkv), cmocka_unit_test(logits_4),
        cmocka_unit_test(bad_files_4), cmocka_unit_test(bad_files_qwen), cmocka_unit_test(bad_files_6),
        cmocka_unit_test(gone_back), cmocka_unit_test(saved), cmocka_unit_test(adapters),
        cmocka_unit_test(bad_heads),
    };
    return cmocka_run_group_tests_name("rwkv", tests, NULL, NULL);
}
