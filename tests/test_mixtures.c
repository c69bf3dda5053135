/* test_mixtures.c - further mixtures of experts, checked as in test_experts.c: with experts that return their input,
 * or whose output is added a layer later, and with recurrent states. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/source.h"
#include "tests/expert_checks.h"
#include "tests/expert_model.h"
#include "tests/expert_model_int.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* As check_experts, for a model that exists only as a file, not as a folder. */
static void check_file(const struct expert_shape *s)
{
    struct expert_model *m = expert_model_make(s);
    const char *file = expert_model_write(m);
    double *want = doubles(SMALL_TEXT * s->n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, s->n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    assert_same_bits(file, PP_KV_F32);
    assert_logits(want, s->n_vocab, file);
    pp_free(want);
    expert_model_free(m);
}

/* Klear: the experts' sum and the shared expert's output are weighted by a softmax of two logits. */
static void klear(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("klear");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.shared_expert_mix = true;
    s.qk_norm = QK_HEADS;
    s.n_ff_shared = 32;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.mlp.expert_bias", 1, s.n_expert);
    assert_tensor(folder, "model.layers.1.mlp.coefficient.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.mlp.coefficient.bias", 1, 2);
    s.n_ff_shared = 64;
    s.choice_bias = s.say_norm = false;
    s.shares = true;
    check_experts(&s);
    s.n_ff_shared = 0;
    s.shared_expert_mix = false;
    struct expert_model *m = expert_model_make(&s);
    struct pp_model *model;
    struct pp_error err;
    assert_int_equal(pp_model_open(expert_model_write(m), &model, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "a shared expert"));
    expert_model_free(m);
}

/* G9v3: in folders q_proj has for each head the rows of the query, then those of its attention gate. */
static void g9v3(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("g9v3");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.gated = true;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 3.66f;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.self_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.mlp.gate.e_score_correction_bias", 1, s.n_expert);
    assert_tensor(folder, "model.layers.1.mlp.shared_experts.down_proj.weight", 2, s.n_ff_shared);
    s.n_head_kv = s.n_head;
    s.n_ff_shared = s.n_dense = 0;
    check_experts(&s);
    check_goes_on(&s);
}

/* LongCat: two of the engine's layers for each of a folder's; some rows use only experts that return their input. */
static struct expert_shape longcat_shape(void)
{
    struct expert_shape s = expert_shape("longcat_flash");
    s.neighbours = s.shares = s.choice_bias = s.shortcut = s.dense_parallel = s.heads_apart = true;
    s.n_layer = 4;
    s.n_idle = 5;
    s.q_rank = 24;
    s.kv_rank = s.nope = s.v_dim = 32;
    s.rope_dim = 8;
    s.scale = 2.5f;
    s.q_growth = 1.632993162f; /* sqrt(64 / 24) */
    s.kv_growth = 1.414213562f;
    return s;
}

static void longcat(void **state)
{
    (void)state;
    struct expert_shape s = longcat_shape();
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.self_attn.1.kv_b_proj.weight", 2, s.kv_rank);
    assert_tensor(folder, "model.layers.1.self_attn.0.q_a_layernorm.weight", 1, s.q_rank);
    assert_tensor(folder, "model.layers.1.mlps.1.down_proj.weight", 2, s.n_ff);
    assert_tensor(folder, "model.layers.1.mlp.experts.7.down_proj.weight", 2, s.n_ff_expert);
    assert_tensor(folder, "model.layers.0.mlp.router.e_score_correction_bias", 1, s.n_expert + s.n_idle);
    s.n_used = 1; /* mostly one that returns its input */
    s.n_idle = 24;
    s.heads_apart = false;
    check_experts(&s);
    s.n_idle = 0;
    s.choice_bias = false;
    s.n_used = 3;
    s.kv_growth = 0;
    s.q_growth = 1;
    check_experts(&s);
    s.kv_growth = 1; /* the key with another meaning for that */
    check_experts(&s);
    s.kv_growth = 0;
    s.n_idle = 24;
    s.expert_scales = true; /* only for experts with matrices */
    check_file(&s);
}

/* LongCat-Flash-Lite: n-gram embeddings of 2 to 5 tokens, with two tables for each length. An n-gram does not reach
 * beyond an end token. */
static struct expert_shape lite_shape(void)
{
    struct expert_shape s = longcat_shape();
    int32_t ids[SMALL_TEXT];
    small_text(ids, s.n_vocab);
    s.ngram_size = 5;
    s.ngram_splits = 2;
    s.ngram_base = 2 * s.n_vocab;
    s.ngram_end = ids[SMALL_TEXT / 2];
    return s;
}

static void longcat_lite(void **state)
{
    (void)state;
    struct expert_shape s = lite_shape();
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.ngram_embeddings.embedders.7.weight", 2, s.n_embd / 8);
    assert_tensor(folder, "model.ngram_embeddings.post_projs.0.weight", 2, s.n_embd / 8);
    s.ngram_size = 2;
    s.ngram_splits = 1;
    s.q_growth = 1;
    s.kv_growth = 0;
    s.yarn_factor = 10;
    s.yarn_ctx = 64;
    s.log_multiplier = 0.1f;
    check_experts(&s);
}

static void longcat_goes_on(void **state)
{
    const struct expert_shape s = longcat_shape(), lite = lite_shape();
    (void)state;
    check_goes_on(&s);
    check_goes_on(&lite);
}

/* Impossible numbers for n-gram embeddings are refused. */
static void bad_ngrams(void **state)
{
    static const struct {
        int size, splits, base, end;
        const char *word;
    } cases[] = {{1, 2, 160, 7, "ngram.size is 1"},
                 {17, 1, 160, 7, "tokens that have an embedding together"},
                 {5, 3, 160, 7, "cannot be divided into 12 equal parts"},
                 {5, 2, 161, 7, "multiple of the vocabulary"},
                 {5, 2, 160, 80, "token that n-grams do not look beyond"},
                 {5, 2, 240, 7, "ngram_embd.0.weight"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = lite_shape();
        struct pp_model *model;
        struct pp_error err;
        struct expert_model *m = expert_model_make(&s);
        expert_model_say_ngrams(m, cases[i].size, cases[i].splits, cases[i].base, cases[i].end);
        if (pp_model_open(expert_model_write(m), &model, &err) != PP_ERR_FORMAT || !strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].word, err.text);
        expert_model_free(m);
    }
}

/* Impossible sizes are refused. */
static void bad_longcat(void **state)
{
    static const struct {
        int n_layer, n_idle;
        float q_growth, kv_growth;
        enum pp_code code;
        const char *word;
    } cases[] = {{3, 5, 1, 1, PP_ERR_FORMAT, "must be even"},
                 {2, 1100, 1, 1, PP_ERR_FORMAT, "compute nothing"},
                 {2, 5, 1.1f, 1, PP_ERR_UNSUPPORTED, "q_lora_scale is 1.1; it must be 1, or"},
                 {2, 5, -1, 1, PP_ERR_UNSUPPORTED, "q_lora_scale is -1; it must be 1, or"},
                 {2, 5, 1e-30f, 1, PP_ERR_UNSUPPORTED, "q_lora_scale is 1e-30; it must be 1, or"},
                 {2, 5, NAN, 1, PP_ERR_UNSUPPORTED, "q_lora_scale is nan; it must be 1, or"},
                 {2, 5, 1, 1.5f, PP_ERR_UNSUPPORTED, "kv_lora_scale is 1.5; it must be 1, or"},
                 {2, 5, 1, INFINITY, PP_ERR_UNSUPPORTED, "kv_lora_scale is inf; it must be 1, or"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = longcat_shape();
        struct pp_model *model;
        struct pp_error err;
        s.n_layer = cases[i].n_layer;
        s.q_growth = cases[i].q_growth;
        s.kv_growth = cases[i].kv_growth;
        struct expert_model *m = expert_model_make(&s);
        expert_model_say_idle(m, cases[i].n_idle);
        if (pp_model_open(expert_model_write(m), &model, &err) != cases[i].code || !strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].word, err.text);
        expert_model_free(m);
    }
}

/* States with bounded decays in three of four layers; gated latent attention in every fourth, and in layers after the
 * last whole group. */
static struct expert_shape bounded_shape(const char *arch)
{
    struct expert_shape s = expert_shape(arch);
    s.neighbours = s.kda = s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.heads_apart = s.gated = true;
    s.full = 4;
    s.state_taps = 4;
    s.n_state = s.n_state_key = s.n_head;
    s.key_dim = s.value_dim = 32;
    s.decay_bound = -5;
    s.kv_rank = 32;
    s.nope = 16;
    s.v_dim = 24;
    s.rope_dim = 8;
    s.q_rank = 24;
    s.n_dense = 1;
    s.scale = 2.5f;
    return s;
}

/* Ling 3: one attention gate for each head. */
static struct expert_shape ling3_shape(void)
{
    struct expert_shape s = bounded_shape("bailingmoe3");
    s.full_rank = s.per_head_gates = true;
    s.n_layer = 4;
    s.n_ff_shared = 32;
    return s;
}

static void ling3(void **state)
{
    (void)state;
    struct expert_shape s = ling3_shape();
    s.n_groups = 4;
    s.n_groups_used = 2;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.word_embeddings.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.0.attention.f_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.0.attention.A_log", 4, 1);
    assert_tensor(folder, "model.layers.2.attention.g_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.attention.o_proj.weight", 2, s.n_state * s.value_dim);
    assert_tensor(folder, "model.layers.3.attention.g_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.attention.dense.weight", 2, s.n_head * s.v_dim);
    assert_tensor(folder, "model.layers.1.mlp.gate.expert_bias", 1, s.n_expert);
    s.q_rank = 0;
    s.heads_apart = false;
    s.n_groups = s.n_groups_used = s.n_dense = 0;
    s.bound = 0.4f;
    s.shared_bound = 0.6f;
    s.decay_bound = -2;
    check_experts(&s);
}

static void ling3_goes_on(void **state)
{
    const struct expert_shape s = ling3_shape();
    (void)state;
    check_goes_on(&s);
}

/* Impossible groups of layers, and decays whose bound is not below 0, are refused. */
static void bad_ling3(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct expert_shape s = ling3_shape();
        struct pp_model *model;
        struct pp_error err;
        s.decay_bound = i ? 1 : -5;
        s.n_layer = i ? 4 : 5;
        s.full = i ? 4 : 3;
        struct expert_model *m = expert_model_make(&s);
        if (pp_model_open(expert_model_write(m), &model, &err) != PP_ERR_UNSUPPORTED ||
            !strstr(err.text, i ? "bound of decays" : "groups of 3"))
            fail_msg("%s", err.text);
        expert_model_free(m);
    }
}

/* Kimi K3: attention residuals (the input of every second layer is kept, and parts read a mixture of those and the
 * stream), gates from one matrix, and narrow experts whose sum is normalised. */
static struct expert_shape k3_shape(void)
{
    struct expert_shape s = bounded_shape("kimi-k3");
    s.full_rank_gates = true;
    s.n_layer = 5;
    s.wide = 1; /* no RoPE */
    s.attn_res_block = 2;
    s.n_ff_shared = 64;
    s.n_embd_expert = 32;
    return s;
}

static void kimi_k3(void **state)
{
    (void)state;
    struct expert_shape s = k3_shape();
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.self_attention_res_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.4.mlp_res_norm.weight", 1, s.n_embd);
    assert_tensor(folder, "model.output_attn_res_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.self_attn.g_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.self_attn.g_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.routed_expert_norm.weight", 1, s.n_embd_expert);
    s.down_biases = true; /* as wide as the experts' inputs */
    check_file(&s);
    s.down_biases = false;
    s.attn_res_block = 3;
    s.n_embd_expert = s.q_rank = s.n_dense = s.n_ff_shared = 0;
    s.heads_apart = false;
    check_experts(&s);
    s.attn_res_block = 7; /* only the embeddings are kept */
    check_experts(&s);
}

static void kimi_k3_goes_on(void **state)
{
    const struct expert_shape s = k3_shape();
    (void)state;
    check_goes_on(&s);
}

/* Impossible bounds are refused. */
static void bad_kimi_k3(void **state)
{
    (void)state;
    struct expert_shape s = k3_shape();
    struct pp_model *model;
    struct pp_error err;
    s.decay_bound = 1;
    struct expert_model *m = expert_model_make(&s);
    if (pp_model_open(expert_model_write(m), &model, &err) != PP_ERR_UNSUPPORTED ||
        !strstr(err.text, "bound of decays"))
        fail_msg("%s", err.text);
    expert_model_free(m);
}

/* GigaChat 3.5: gated norms before and after both parts; states, with a beta of up to 2, in all layers but every
 * third, which has latent attention with a gate for each value. Bounds of gates hold in the dense layer, too. */
static struct expert_shape gigachat_shape(void)
{
    struct expert_shape s = expert_shape("gigachat35");
    s.norm_rank = 16;
    s.state_scale = 2;
    s.state_sigmoids = s.neighbours = s.gated = s.heads_apart = true;
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = true;
    s.clamp_before_silu = s.bounded_all = true;
    s.bound = 0.7f;
    s.n_layer = 4;
    s.full = 3;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    s.n_state = 4;
    s.n_state_key = 2;
    s.key_dim = s.value_dim = 16;
    s.state_taps = 4;
    s.kv_rank = 32;
    s.nope = 16;
    s.v_dim = 24;
    s.rope_dim = 8;
    s.q_rank = 24;
    s.q_growth = sqrtf(64.0f / 24);
    s.kv_growth = sqrtf(64.0f / 32);
    return s;
}

static void gigachat(void **state)
{
    (void)state;
    struct expert_shape s = gigachat_shape();
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.norm.gate_down_projection.weight", 2, 16);
    assert_tensor(folder, "model.layers.0.post_self_attn_layernorm.gate_up_projection.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.0.self_attn.in_proj_qkvz.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.self_attn.in_proj_ba.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.self_attn.gate_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.self_attn.kv_a_layernorm.gate_up_projection.weight", 2, s.kv_rank);
    s.bound = 0;
    s.clamp_before_silu = s.bounded_all = false;
    s.n_state_key = 4;
    s.q_rank = s.n_dense = s.n_ff_shared = 0;
    s.q_growth = 0;
    s.yarn_factor = 4;
    s.yarn_ctx = 32;
    s.log_multiplier = 0.1f;
    s.n_nextn = 1;
    s.n_layer = 3;
    s.lacks_ones = true; /* as in files of the first converter */
    check_experts(&s);
}

/* Files hold the states' input projections as separate matrices, as llama.cpp expects. */
static void gigachat_file(void **state)
{
    (void)state;
    struct expert_shape s = gigachat_shape();
    struct expert_model *m = expert_model_make(&s);
    const char *folder = fresh_path("gigachat"), *file = fresh_path("gigachat.gguf");
    const char *const kinds[] = {"attn_qkv.weight", "attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight"};
    struct pp_source *source;
    struct pp_error err;
    assert_ok(pp_convert_to_folder(expert_model_write(m), folder, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_convert_to_gguf(folder, file, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_source_open(file, &source, &err), err);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char name[40];
        snprintf(name, sizeof name, "blk.1.%s", kinds[i]);
        const struct pp_tensor *t = pp_source_tensor(source, name);
        const struct array *w = expert_find(m, 1, kinds[i]);
        assert_non_null(t);
        assert_true(t->ne[0] == w->cols && t->ne[1] == w->rows && t->type == PP_TYPE_F32);
        assert_memory_equal(t->data, w->values, t->size);
    }
    pp_source_close(source);
    expert_model_free(m);
}

static void gigachat_goes_on(void **state)
{
    const struct expert_shape s = gigachat_shape();
    (void)state;
    check_goes_on(&s);
}

/* Lightning attention in all layers of a group but the last. That one, and layers after the last whole group, have
 * ordinary attention (Ring linear 2.0) or latent attention (Ling 2.5). */
static struct expert_shape ling25_shape(bool latent)
{
    struct expert_shape s = expert_shape(latent ? "bailing_hybrid" : "bailing_moe_linear");
    s.sigmoids = s.choice_bias = s.say_norm = s.lightning = true;
    s.n_layer = 5;
    s.full = 2;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    s.n_state = s.n_state_key = s.n_head;
    s.key_dim = s.value_dim = 16;
    s.norm_groups = 2;
    s.rope_dim = 8;
    if (!latent) {
        s.fused_qkv = true;
        s.qk_norm = QK_HEADS;
        return s;
    }
    s.neighbours = s.heads_apart = true;
    s.kv_rank = s.key_dim = s.value_dim = 32;
    s.q_rank = s.v_dim = 24;
    s.nope = 16;
    return s;
}

static void ling25(void **state)
{
    (void)state;
    for (int latent = 0; latent < 2; latent++) {
        struct expert_shape s = ling25_shape(latent);
        const char *folder = check_experts(&s);
        assert_tensor(folder, "model.layers.0.attention.query_key_value.weight", 2, s.n_embd);
        assert_tensor(folder, "model.layers.2.attention.g_norm.weight", 1, s.n_state * s.key_dim);
        assert_tensor(folder, "model.layers.2.attention.query_layernorm.weight", 1, s.key_dim);
        assert_tensor(folder, "model.layers.1.attention.dense.weight", 2, s.n_head * (latent ? s.v_dim : s.head_dim));
        assert_tensor(folder, latent ? "model.layers.4.attention.kv_a_proj_with_mqa.weight"
                                     : "model.layers.4.attention.query_key_value.weight", 2, s.n_embd);
        assert_tensor(folder, "model.layers.1.mlp.gate.expert_bias", 1, s.n_expert);
        s.norm_groups = latent ? 1 : s.n_state;
        s.states_silu = true;
        s.states_still = latent;
        s.q_rank = s.n_dense = 0;
        s.heads_apart = false;
        s.n_groups = 4;
        s.n_groups_used = 2;
        check_experts(&s);
    }
    struct expert_shape s = ling25_shape(false);
    s.sigmoids = s.choice_bias = false;
    s.say_gating = true;
    check_experts(&s);
}

static void ling25_goes_on(void **state)
{
    (void)state;
    for (int latent = 0; latent < 2; latent++) {
        const struct expert_shape s = ling25_shape(latent);
        check_goes_on(&s);
    }
}

/* MiniCPM-SALA: layers of lightning attention, all with the same decays, and of gated attention without RoPE, in any
 * order. */
static struct expert_shape sala_shape(void)
{
    struct expert_shape s = expert_shape("minicpm_sala");
    s.lightning = s.steady = s.gated = s.say_scales = true;
    s.n_layer = s.n_dense = 5;
    s.full = 2;
    s.wide = 1;
    s.n_expert = s.n_used = 0;
    s.n_state = s.n_state_key = s.n_head;
    s.key_dim = s.value_dim = s.rope_dim = s.head_dim;
    s.norm_groups = 1;
    s.embd_scale = 3;
    s.residual_scale = 0.6f;
    s.logit_scale = 0.5f;
    return s;
}

static void sala(void **state)
{
    (void)state;
    struct expert_shape s = sala_shape();
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.self_attn.z_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.self_attn.o_norm.weight", 1, s.n_head * s.head_dim);
    assert_tensor(folder, "model.layers.1.self_attn.o_gate.weight", 2, s.n_embd);
    check_goes_on(&s);
    s.full = 6; /* no whole group: all layers are remaining ones */
    struct expert_model *m = expert_model_make(&s);
    struct pp_model *model;
    struct pp_error err;
    assert_int_equal(pp_model_open(expert_model_write(m), &model, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "lightning attention"));
    expert_model_free(m);
}

static void bad_ling25(void **state)
{
    static const struct {
        int n_head, norm_groups, full, rope_dim;
        const char *word;
    } cases[] = {{6, 2, 2, 8, "power of two"}, {4, 3, 2, 8, "in 3 groups"}, {4, 0, 2, 8, "lightning.group_count"},
                 {4, 5, 2, 8, "groups in the norm of states"}, {4, -1, 2, 8, "groups in the norm of states"},
                 {4, 2, 1, 8, "attention"}, {4, 2, 2, 24, "rotated"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = ling25_shape(false);
        struct pp_model *model;
        struct pp_error err;
        s.n_head = s.n_state = cases[i].n_head;
        s.full = cases[i].full;
        s.rope_dim = cases[i].rope_dim;
        s.norm_groups = cases[i].norm_groups;
        struct expert_model *m = expert_model_make(&s);
        const enum pp_code code = pp_model_open(expert_model_write(m), &model, &err);
        if (code == PP_OK && cases[i].full == 1) /* attention in all layers is valid, too */
            pp_model_close(model);
        else if (code == PP_OK || !strstr(err.text, cases[i].word))
            fail_msg("case %zu: %s", i, code ? err.text : "opened");
        expert_model_free(m);
    }
}

/* RoPE scaling with latent attention is refused: no reference defines how scores would grow with the context. */
static void scaled_ling(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct expert_shape s = i ? ling25_shape(true) : ling3_shape();
        struct pp_model *model;
        struct pp_error err;
        s.yarn_factor = 40;
        s.yarn_ctx = 64;
        s.log_multiplier = 0.1f;
        struct expert_model *m = expert_model_make(&s);
        if (pp_model_open(expert_model_write(m), &model, &err) != PP_ERR_UNSUPPORTED ||
            !strstr(err.text, "RoPE scaling is not supported"))
            fail_msg("%s: %s", s.arch, err.text);
        expert_model_free(m);
    }
}

/* MiniMax M3, whose indexer picks blocks for each KV head: few of many blocks, all blocks, blocks of one position,
 * several local blocks; and without an indexer. */
static struct expert_shape m3_shape(void)
{
    struct expert_shape s = expert_shape("minimax-m3");
    s.sigmoids = s.choice_bias = s.clamped = s.say_gating = true;
    s.qk_norm = QK_HEADS;
    s.n_head = 8;
    s.n_head_kv = 4;
    s.rope_dim = 8;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2;
    s.index_top_k = 3;
    s.index_block = 4;
    s.index_n_local = 1;
    return s;
}

static void minimax_m3(void **state)
{
    static const struct {
        int top_k, block, local;
    } cases[] = {{3, 4, 1}, {2, 8, 2}, {9, 1, 3}, {1, 16, 1}, {16, 128, 1}, {0, 0, 0}};
    struct expert_shape s = m3_shape();
    const char *folder = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.index_top_k = cases[i].top_k;
        s.index_block = cases[i].block;
        s.index_n_local = cases[i].local;
        folder = check_experts(&s);
        if (s.index_block) {
            assert_tensor(folder, "model.layers.1.self_attn.index_q_proj.weight", 2, s.n_embd);
            assert_tensor(folder, "model.layers.2.self_attn.index_k_norm.weight", 1, 20);
        }
    }
    assert_tensor(folder, "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.experts.7.w2.weight", 2, s.n_ff_expert);
}

static void minimax_m3_goes_on(void **state)
{
    const struct expert_shape s = m3_shape();
    (void)state;
    check_goes_on(&s);
}

/* Impossible numbers for an indexer are refused. */
static void bad_minimax_m3(void **state)
{
    static const struct {
        int top_k, block, local, window;
        const char *word;
    } cases[] = {{3, 12, 1, 0, "power of two"}, {3, 4, 4, 0, "in any case"}, {1 << 14, 8, 1, 0, "an index picks"},
                 {1 << 20, 4, 1, 0, "blocks that an index picks"}, {-1, 4, 1, 0, "blocks that an index picks"},
                 {3, 1 << 20, 1, 0, "positions of a block"}, {3, 4, -1, 0, "in any case"},
                 {3, 0, 1, 0, "lacks minimax-m3.attention.indexer.block_size"},
                 {3, 4, 0, 0, "lacks minimax-m3.attention.indexer.local_blocks"},
                 {0, 4, 1, 0, "lacks minimax-m3.attention.indexer.key_length"},
                 {3, 4, 1, 16, "together with an attention window"}};
    struct pp_model *model;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = m3_shape();
        const bool numbers = i < sizeof cases / sizeof *cases;
        if (numbers) {
            s.index_top_k = cases[i].top_k;
            s.index_block = cases[i].block;
            s.index_n_local = cases[i].local;
            s.window = cases[i].window;
        } else {
            s.index_says = 2;
        }
        struct expert_model *m = expert_model_make(&s);
        const enum pp_code code = pp_model_open(expert_model_write(m), &model, &err);
        assert_int_not_equal(code, PP_OK);
        if (!strstr(err.text, numbers ? cases[i].word : "index has 2 heads, but there are 4"))
            fail_msg("case %zu: %s", i, err.text);
        expert_model_free(m);
    }
}

/* Metadata that changes results, with the same tensors, changes a model's identity: neither its pages nor its
 * snapshots serve the other model. */
static void not_the_same_model(void **state)
{
    (void)state;
    struct expert_shape s = k3_shape();
    const struct pp_sha256 two = expert_identity(&s), again = expert_identity(&s);
    s.attn_res_block = 3;
    const struct pp_sha256 three = expert_identity(&s);
    assert_memory_equal(&two, &again, sizeof two);
    assert_memory_not_equal(&two, &three, sizeof two);
    s = m3_shape();
    const struct pp_sha256 fours = expert_identity(&s);
    s.index_block = 8;
    const struct pp_sha256 eights = expert_identity(&s);
    s.index_block = 4;
    s.index_n_local = 2;
    const struct pp_sha256 local = expert_identity(&s);
    assert_memory_not_equal(&fours, &eights, sizeof fours);
    assert_memory_not_equal(&fours, &local, sizeof fours);
    s = ling3_shape();
    s.full = 1; /* otherwise the layers are alike */
    s.bound = 0.01f;
    const struct pp_sha256 last = expert_identity(&s);
    s.bounded_before = 1;
    const struct pp_sha256 before = expert_identity(&s);
    assert_memory_not_equal(&last, &before, sizeof last);
    s = lite_shape();
    const struct pp_sha256 lite = expert_identity(&s);
    s.ngram_end++;
    const struct pp_sha256 ends = expert_identity(&s);
    assert_memory_not_equal(&lite, &ends, sizeof lite);
    s = ling25_shape(false);
    const struct pp_sha256 plain = expert_identity(&s);
    s.states_silu = !s.states_silu;
    const struct pp_sha256 silu = expert_identity(&s);
    s.states_still = !s.states_still;
    const struct pp_sha256 still = expert_identity(&s);
    assert_memory_not_equal(&plain, &silu, sizeof plain);
    assert_memory_not_equal(&silu, &still, sizeof silu);
}

TEST_GROUP(mixtures)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(klear), cmocka_unit_test(g9v3),
        cmocka_unit_test(longcat), cmocka_unit_test(longcat_goes_on), cmocka_unit_test(bad_longcat),
        cmocka_unit_test(ling3),           cmocka_unit_test(ling3_goes_on),   cmocka_unit_test(bad_ling3),
        cmocka_unit_test(kimi_k3),         cmocka_unit_test(kimi_k3_goes_on), cmocka_unit_test(bad_kimi_k3),
        cmocka_unit_test(ling25),          cmocka_unit_test(ling25_goes_on),  cmocka_unit_test(bad_ling25),
        cmocka_unit_test(sala),
        cmocka_unit_test(gigachat),        cmocka_unit_test(gigachat_file),   cmocka_unit_test(gigachat_goes_on),
        cmocka_unit_test(scaled_ling),
        cmocka_unit_test(minimax_m3),      cmocka_unit_test(minimax_m3_goes_on), cmocka_unit_test(bad_minimax_m3),
        cmocka_unit_test(not_the_same_model), cmocka_unit_test(longcat_lite),   cmocka_unit_test(bad_ngrams),
    };
    return cmocka_run_group_tests_name("mixtures", tests, NULL, NULL);
}
