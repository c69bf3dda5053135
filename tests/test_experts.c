/* test_experts.c - families with mixtures of experts (those with states are in test_expert_states.c). Small random
 * models must yield the logits of their formulas from a GGUF file, from the folder exported from it, and from the file
 * converted from that; bit-identical with any number of rows and threads, and with quantised weights. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/source.h"
#include "tests/expert_checks.h"
#include "tests/expert_model.h"
#include "tests/small_model.h"
#include "tests/support.h"

static void qwen2_moe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("qwen2moe");
    s.biases = s.shares = s.shared_weight = true;
    s.n_ff_shared = 96;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.mlp.shared_expert_gate.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.0.mlp.shared_expert.down_proj.weight", 2, s.n_ff_shared);
    assert_tensor(folder, "model.layers.1.mlp.experts.7.up_proj.weight", 2, s.n_embd);
    s.shares = false;
    s.say_norm = true;
    s.n_dense = 1;
    check_experts(&s);
}

static void deepseek(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("deepseek");
    s.neighbours = s.shares = true;
    s.n_dense = 1;
    s.n_ff_shared = 64;
    s.scale = 1;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.mlp.gate_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.mlp.shared_experts.down_proj.weight", 2, s.n_ff_shared);
}

/* The scores that choose experts differ from those that weight them. */
static void dots1(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("dots1");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = true;
    s.qk_norm = QK_HEADS;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.mlp.gate.e_score_correction_bias", 1, s.n_expert);
    s.say_norm = s.choice_bias = false;
    s.shares = true;
    check_experts(&s);
}

/* GLM 4.5, whose files have a layer of multi-token prediction after the last one. */
static void glm4_moe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("glm4moe");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.biases = true;
    s.qk_norm = QK_HEADS;
    s.ffn_norm = "post_attention_norm";
    s.rope_dim = 8;
    s.n_dense = 1;
    s.n_nextn = 1;
    s.n_ff_shared = 32;
    s.scale = 1.5f;
    check_experts(&s);
    s.qk_norm = QK_PLAIN;
    s.n_nextn = 0;
    check_experts(&s);
}

static void minimax_m2(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("minimax-m2");
    s.sigmoids = s.choice_bias = true;
    s.qk_norm = QK_WHOLE;
    s.rope_dim = 8;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.block_sparse_moe.experts.3.w2.weight", 2, s.n_ff_expert);
    assert_tensor(folder, "model.layers.0.block_sparse_moe.e_score_correction_bias", 1, s.n_expert);
    assert_tensor(folder, "model.layers.0.self_attn.q_norm.weight", 1, s.n_head * s.head_dim);
}

static void ernie_moe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("ernie4_5-moe");
    s.neighbours = s.choice_bias = true;
    s.n_dense = 1;
    s.n_ff_shared = 64;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.mlp.moe_statics.e_score_correction_bias", 2, s.n_expert);
}

/* Folders hold q, k and v in one matrix, files in separate ones. */
static void ling_lite(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("bailingmoe");
    s.neighbours = s.say_norm = true;
    s.n_ff_shared = 64;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.attention.query_key_value.weight", 2, s.n_embd);
    s.say_norm = false;
    s.shares = true;
    s.n_dense = 1;
    check_experts(&s);
}

/* Experts in groups. */
static void ling(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("bailingmoe2");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.fused_qkv = true;
    s.qk_norm = QK_HEADS;
    s.rope_dim = 8;
    s.n_expert = 24;
    s.n_groups = 6;
    s.n_groups_used = 2;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.attention.query_key_value.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.mlp.gate.expert_bias", 1, s.n_expert);
}

static void hunyuan_moe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("hunyuan-moe");
    s.qk_norm = QK_HEADS;
    s.norms_after_rope = true;
    s.n_ff_shared = 32;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.mlp.gate.wg.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.mlp.shared_mlp.down_proj.weight", 2, s.n_ff_shared);
}

static void exaone_moe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("exaone-moe");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = true;
    s.qk_norm = QK_HEADS;
    s.n_layer = 5;
    s.window = 20;
    s.wide = 4;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    check_experts(&s);
}

static void afmoe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("afmoe");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.post_norms = s.gated = true;
    s.qk_norm = QK_HEADS;
    s.embd_scale = 8; /* the square root of the width */
    s.n_layer = 5;
    s.window = 20;
    s.wide = 4;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2.8f;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.self_attn.gate_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.4.mlp.expert_bias", 1, s.n_expert);
}

/* Llama 4: chunked attention with chunks of 20 positions, and the model of 128 experts, whose heads have no norm. */
static void llama4(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("llama4");
    s.neighbours = s.sigmoids = s.shares = s.chunked = s.unweighted_qk_norm = s.weighted_inputs = true;
    s.n_layer = 4;
    s.window = 20;
    s.wide = 4;
    s.n_ff_shared = s.n_ff_expert;
    s.temperature = 0.4f;
    s.length = 24;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.feed_forward.experts.gate_up_proj", 3, 2 * s.n_ff_expert);
    s.step = 2;
    s.n_used = 1;
    s.n_expert = 128;
    s.unweighted_qk_norm = false;
    s.seed = 2;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.feed_forward.up_proj.weight", 2, s.n_embd);
}

/* Latent attention: files with kv_b as one matrix, and split in two, give the same bits. */
static const char *check_latent(struct expert_shape *s)
{
    size_t n, n_other;
    s->rope_dim = 8;
    s->kv_rank = s->nope = s->v_dim = 32;
    s->heads_apart = false;
    struct expert_model *m = expert_model_make(s);
    float *whole = small_logits(expert_model_write(m), PP_KV_F32, &n);
    expert_model_free(m);
    s->heads_apart = true;
    m = expert_model_make(s);
    float *apart = small_logits(expert_model_write(m), PP_KV_F32, &n_other);
    expert_model_free(m);
    assert_int_equal(n, n_other);
    assert_memory_equal(whole, apart, n * sizeof *whole);
    pp_free(whole);
    pp_free(apart);
    return check_experts(s);
}

/* DeepSeek V2: a group of experts is rated by its best expert. */
static void deepseek2(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("deepseek2");
    s.shares = s.neighbours = true;
    s.n_dense = 1;
    s.n_ff_shared = 64;
    s.scale = 1;
    s.yarn_factor = 40;
    s.yarn_ctx = 64;
    s.log_multiplier = 0.0707f;
    const char *folder = check_latent(&s);
    assert_tensor(folder, "model.layers.0.self_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.self_attn.kv_b_proj.weight", 2, s.kv_rank);
    s.q_rank = 32;
    s.n_groups = 4;
    s.n_groups_used = 2;
    s.groups_by_largest = true;
    s.scale = 16;
    folder = check_latent(&s);
    assert_tensor(folder, "model.layers.0.self_attn.q_b_proj.weight", 2, s.q_rank);
    s.heads_apart = false;
    check_experts(&s);
}

/* DeepSeek V3, and families built like it. */
static void deepseek3(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("deepseek2");
    s.neighbours = s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = true;
    s.q_rank = 32;
    s.n_groups = 4;
    s.n_groups_used = 2;
    s.n_dense = 1;
    s.n_nextn = 1;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    const char *folder = check_latent(&s);
    assert_tensor(folder, "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", 2, s.n_embd);
    s.say_gating = false; /* the first files of GLM 4.7 Flash */
    s.n_groups = s.n_groups_used = s.n_nextn = 0;
    s.n_head = 5;
    check_latent(&s);
    s.arch = "axk1"; /* the sum of routed and shared experts has a norm */
    s.experts_post_norm = POST_NORM_ANYWHERE;
    for (int i = 0; i < 2; i++, s.n_ff_shared = 0, s.experts_post_norm = MIXTURE_POST_NORM)
        assert_tensor(check_latent(&s), "model.layers.1.post_mlp_layernorm.weight", 1, s.n_embd);
}

/* DeepSeek V3.2 and GLM 5: as V3, with an indexer; they differ in the pairs that RoPE rotates in it. With this many
 * heads many scores are exactly 0, so that ties matter. */
static void indexed(void **state)
{
    static const struct {
        const char *family;
        int top_k;
    } cases[] = {{"deepseek32", 100}, {"deepseek32", 8}, {"glm-dsa", 13}, {"glm-dsa", 64}, {"deepseek32", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = expert_shape(cases[i].family);
        s.index_neox = strcmp(s.arch, "deepseek32") == 0;
        s.neighbours = s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = true;
        s.q_rank = 32;
        s.n_dense = 1;
        s.n_ff_shared = 32;
        s.scale = 2.5f;
        s.index_top_k = cases[i].top_k;
        if (i == 1) { /* as in the published model */
            s.yarn_factor = 40;
            s.yarn_ctx = 64;
            s.log_multiplier = 0.1f;
        }
        const char *folder = check_latent(&s);
        assert_tensor(folder, "model.layers.2.self_attn.indexer.wq_b.weight", 2, s.q_rank);
        assert_tensor(folder, "model.layers.0.self_attn.indexer.k_norm.bias", 1, 20);
    }
}

/* GLM 5.2: layers without an indexer use the picks of the last one before them. Files older than the key for this are
 * recognised by their tensors. */
static void shared_index(void **state)
{
    struct expert_shape s = expert_shape("glm-dsa");
    (void)state;
    s.neighbours = s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = true;
    s.n_layer = 5;
    s.q_rank = 32;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    s.index_top_k = 9;
    s.index_step = 3;
    const char *folder = check_latent(&s);
    assert_tensor(folder, "model.layers.3.self_attn.indexer.wq_b.weight", 2, s.q_rank);
    s.index_unstated = true;
    check_latent(&s);
}

/* Mellum 2: Qwen 3's mixture with windows. */
static void mellum(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("mellum");
    s.qk_norm = QK_HEADS;
    s.n_layer = 4;
    s.window = 20;
    s.wide = 4;
    s.local_base = 500;
    s.shares = s.say_norm = false;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.mlp.experts.5.gate_proj.weight", 2, s.n_embd);
}

/* Maple: RoPE only in layers with a window, on half of each head; gates are clamped before SiLU. */
static void maple(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("maple");
    struct pp_model *model;
    struct pp_error err;
    s.qk_norm = QK_HEADS;
    s.n_layer = 4;
    s.window = 20;
    s.wide = 4;
    s.rope_dim = 8;
    s.clamp_before_silu = true;
    s.bound = 7; /* some gates here are above it */
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.mlp.experts.5.gate_proj.weight", 2, s.n_embd);
    s.bound = 6;
    struct expert_model *m = expert_model_make(&s);
    assert_int_equal(pp_model_open(expert_model_write(m), &model, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "is 6; only 7 is supported"));
    expert_model_free(m);
}

/* Mistral 4: softmax routing, and scores that grow with each multiple of the original context; Mistral Large 3's
 * architecture is called deepseek2. */
static void mistral4(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("mistral4");
    s.neighbours = s.say_norm = true;
    s.q_rank = 32;
    s.n_ff_shared = 32;
    s.scale = 1;
    s.yarn_factor = 8;
    s.yarn_ctx = s.length = 24;
    s.temperature = 0.3f;
    const char *folder = check_latent(&s);
    assert_tensor(folder, "model.layers.2.mlp.experts.gate_up_proj", 3, s.n_embd);
    s.arch = "deepseek2";
    s.log_multiplier = 0.1f;
    struct expert_model *m = expert_model_make(&s);
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, s.n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    assert_logits(want, s.n_vocab, expert_model_write(m));
    pp_free(want);
    expert_model_free(m);
}

/* MiMo V2 Flash: layers with a window have sinks, a RoPE of their own and more KV heads; values are shorter than
 * keys. */
static void mimo2(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("mimo2");
    s.sigmoids = s.choice_bias = s.say_gating = true;
    s.n_layer = 4;
    s.n_dense = 1;
    s.head_dim = 24;
    s.rope_dim = 8;
    s.v_dim = 16;
    s.n_head_kv = 1;
    s.local_kv = 2;
    s.local_base = 500;
    s.sinks = true;
    s.value_scale = 0.707f;
    s.window = 20;
    s.wide = 3;
    s.scale = 1;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.self_attn.attention_sink_bias", 1, s.n_head);
    assert_tensor(folder, "model.layers.0.self_attn.v_proj.weight", 2, s.n_embd);
    s.local_kv = 0;
    s.v_dim = 24;
    s.value_scale = 0;
    check_experts(&s);
}

/* HY V3: norms of heads, and the routing of DeepSeek V3. */
static void hy_v3(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("hy_v3");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = true;
    s.qk_norm = QK_HEADS;
    s.n_dense = 1;
    s.n_nextn = 1;
    s.n_ff_shared = 32;
    s.scale = 2.8f;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.mlp.router.gate.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.mlp.expert_bias", 1, s.n_expert);
    assert_tensor(folder, "model.layers.2.mlp.shared_mlp.down_proj.weight", 2, s.n_ff_shared);
}

/* Step 3.5: layers with a window have more heads and a RoPE of their own; a gate for each head; clamping in the last
 * layer. */
static void step35(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("step35");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.gated = s.per_head_gates = true;
    s.qk_norm = QK_HEADS;
    s.n_layer = 5;
    s.n_dense = 1;
    s.window = 20;
    s.wide = 4;
    s.first_wide = true;
    s.n_nextn = 0;
    s.local_heads = 6;
    s.local_base = 500;
    s.wide_rope = 8;
    s.n_ff_shared = 32;
    s.scale = 3;
    s.bound = 0.4f;
    s.shared_bound = 0.6f;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.moe.down_proj.weight", 3, s.n_ff_expert);
    assert_tensor(folder, "model.layers.4.moe.router_bias", 1, s.n_expert);
    assert_tensor(folder, "model.layers.4.share_expert.up_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.self_attn.g_proj.weight", 2, s.n_embd);
}

/* Laguna, with windows and a gate for each head, and without and one for each value. */
static void laguna(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("laguna");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.gated = s.per_head_gates = s.softplus_gates = true;
    s.qk_norm = QK_HEADS;
    s.n_layer = 5;
    s.n_dense = 1;
    s.window = 20;
    s.wide = 4;
    s.first_wide = true;
    s.local_heads = 6;
    s.local_base = 500;
    s.wide_rope = 8;
    s.yarn_factor = 8;
    s.yarn_ctx = 24;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.mlp.experts.e_score_correction_bias", 1, s.n_expert);
    assert_tensor(folder, "model.layers.4.mlp.shared_expert.up_proj.weight", 2, s.n_embd);
    s = expert_shape("laguna");
    s.sigmoids = s.choice_bias = s.say_norm = s.gated = s.softplus_gates = true;
    s.qk_norm = QK_HEADS;
    s.rope_dim = 8;
    s.n_dense = 2;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    check_experts(&s);
}

/* SmallThinker: with windows in some layers, and without. */
static void smallthinker(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("smallthinker");
    s.sigmoids = s.say_gating = s.early = true;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.primary_router.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.block_sparse_moe.experts.7.down.weight", 2, s.n_ff_expert);
    s.sigmoids = false;
    s.first_wide = true;
    s.seed = 3; /* large logits make weights that rounding changes */
    s.n_layer = 4;
    s.window = 20;
    s.wide = 4;
    check_experts(&s);
}

/* LFM2 MoE: short convolutions in some layers instead of attention, also in the first. */
static void lfm2moe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("lfm2moe");
    s.sigmoids = s.choice_bias = s.say_gating = true;
    s.qk_norm = QK_HEADS;
    s.n_dense = 1;
    s.taps = 3;
    s.full = 2;
    s.output_norm = "token_embd_norm";
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.feed_forward.expert_bias", 1, s.n_expert);
    assert_tensor(folder, "model.layers.1.feed_forward.experts.7.w2.weight", 2, s.n_ff_expert);
    assert_tensor(folder, "model.layers.0.feed_forward.w1.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.conv.conv.weight", 3, s.taps);
}

/* Latent attention without experts, with scales that files do not contain. */
static void minicpm3(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("minicpm3");
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    s.q_rank = 32;
    s.embd_scale = 12;
    s.residual_scale = 1.4f / sqrtf((float)s.n_layer);
    s.logit_scale = 256.0f / (float)s.n_embd;
    const char *folder = check_latent(&s), *file = fresh_path("joined.gguf");
    struct pp_gguf *g;
    struct pp_error err;
    int64_t n = 0;
    assert_ok(pp_convert_to_gguf(folder, file, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_gguf_open(file, &g, &err), err);
    assert_non_null(pp_gguf_tensor(g, "blk.1.attn_kv_b.weight"));
    assert_null(pp_gguf_tensor(g, "blk.1.attn_k_b.weight"));
    assert_true(pp_gguf_int(g, "minicpm3.attention.key_length", &n) && n == s.nope + s.rope_dim);
    pp_gguf_close(g);
}

/* PLM: latent attention, and a feed-forward part without a gate; Youtu-LLM, which is DeepSeek V3 without experts. */
static void plm(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("plm");
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    s.neighbours = s.ungated = true;
    const char *folder = check_latent(&s);
    assert_tensor(folder, "model.layers.2.self_attn.kv_b_proj.weight", 2, s.kv_rank);
    assert_tensor(folder, "model.layers.1.mlp.up_proj.weight", 2, s.n_embd);
    s.arch = "deepseek2";
    s.ungated = false;
    s.q_rank = 32;
    folder = check_latent(&s);
    struct pp_source *source;
    struct pp_error err;
    assert_ok(pp_source_open(folder, &source, &err), err);
    assert_string_equal(cJSON_GetObjectItem(pp_source_config(source), "model_type")->valuestring, "youtu");
    pp_source_close(source);
}

/* Grok 1, with the names that early files give its norms; Grok 2, with a dense feed-forward part in parallel with the
 * experts, and scores that are scaled with the position after the soft cap. */
static void grok(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("grok");
    s.gelu = s.post_norms = s.shares = true;
    s.attn_post_norm = "attn_output_norm";
    s.ffn_post_norm = "layer_output_norm";
    s.n_ff = s.n_ff_expert = 48;
    s.embd_scale = 1.5f;
    s.logit_scale = 0.6f;
    s.attn_scale = 0.3f;
    s.cap = 2;
    s.router_cap = 3;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.post_attn_norm.weight", 1, s.n_embd);
    assert_tensor(folder, "model.layers.2.post_moe_norm.weight", 1, s.n_embd);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.experts.7.w2.weight", 2, s.n_ff_expert);
    s.ffn_post_norm = "post_ffw_norm";
    s.dense_parallel = true;
    s.n_ff = 96;
    s.final_cap = 4;
    s.log_length = 11;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.mlp.down_proj.weight", 2, s.n_ff);
}

/* Arctic: experts in parallel with attention and a dense feed-forward part, which is as wide as the residual stream. */
static void arctic(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("arctic");
    s.neighbours = s.dense_parallel = true;
    s.beside_norm = "ffn_norm_exps";
    s.n_ff = s.n_embd;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.residual_layernorm.weight", 1, s.n_embd);
    assert_tensor(folder, "model.layers.0.residual_mlp.w2.weight", 2, s.n_ff);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.experts.7.w2.weight", 2, s.n_ff_expert);
}

/* Grove MoE: each two of the eight experts share an additional one. */
static void grovemoe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("grovemoe");
    s.qk_norm = QK_HEADS;
    s.share = 2;
    s.n_ff_share = 32;
    s.share_scale = 0.05f; /* as in all published folders */
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.mlp.chunk_experts.3.down_proj.weight", 2, s.n_ff_share);
    assert_tensor(folder, "model.layers.2.mlp.experts.7.down_proj.weight", 2, s.n_ff_expert);
    s.share = 4; /* files may contain other values */
    s.share_scale = 0.7f;
    s.n_used = 5;
    struct expert_model *m = expert_model_make(&s);
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, s.n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    assert_logits(want, s.n_vocab, expert_model_write(m));
    assert_same_bits(expert_model_write(m), PP_KV_F32);
    check_quantised_experts(want, expert_model_write(m), false);
    expert_model_free(m);
    pp_free(want);
}

/* A folder as MLX has it, in which experts are one tensor of that name, gives about the same. */
static void check_mlx(const struct expert_shape *s, const char *experts)
{
    const char *mlx = fresh_path("mlx");
    struct expert_model *m = expert_model_make(s);
    double *want = doubles(SMALL_TEXT * s->n_vocab);
    int32_t ids[SMALL_TEXT];
    struct pp_error err;
    small_text(ids, s->n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    assert_ok(pp_convert_to_folder(expert_model_write(m), mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
    assert_tensor(mlx, experts, 3, s->n_embd / 4);
    assert_true(small_likeness(mlx, NULL, want, s->n_vocab) > 0.95);
    pp_free(want);
    expert_model_free(m);
}

/* Cohere 2 MoE: experts in parallel with attention, after a dense layer with full attention and RoPE; then LayerNorm
 * and a shared expert. */
static void cohere2_moe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("cohere2moe");
    s.neighbours = s.parallel = s.sigmoids = s.shares = s.say_gating = true;
    s.ffn_norm = "attn_norm";
    s.n_layer = 6;
    s.n_dense = 1;
    s.window = 20;
    s.wide = 4;
    s.first_wide = true;
    s.logit_scale = 1;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.mlp.gate_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.mlp.gate.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.5.mlp.experts.7.down_proj.weight", 2, s.n_ff_expert);
    check_mlx(&s, "model.layers.1.mlp.switch_mlp.gate_proj.weight");
    s.centred = s.say_norm = true;
    s.shares = s.first_wide = false;
    s.n_layer = 4;
    s.n_dense = 0;
    s.n_ff = s.n_ff_expert;
    s.n_ff_shared = 64;
    s.logit_scale = 0.25f;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.3.mlp.shared_experts.up_proj.weight", 2, s.n_embd);
}

TEST_GROUP(experts)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen2_moe), cmocka_unit_test(deepseek), cmocka_unit_test(dots1), cmocka_unit_test(glm4_moe),
        cmocka_unit_test(minimax_m2), cmocka_unit_test(ernie_moe), cmocka_unit_test(ling_lite), cmocka_unit_test(ling),
        cmocka_unit_test(hunyuan_moe), cmocka_unit_test(exaone_moe), cmocka_unit_test(afmoe), cmocka_unit_test(llama4),
        cmocka_unit_test(deepseek2), cmocka_unit_test(deepseek3), cmocka_unit_test(mistral4), cmocka_unit_test(indexed),
        cmocka_unit_test(shared_index), cmocka_unit_test(mellum), cmocka_unit_test(maple), cmocka_unit_test(mimo2),
        cmocka_unit_test(smallthinker), cmocka_unit_test(hy_v3), cmocka_unit_test(step35), cmocka_unit_test(laguna),
        cmocka_unit_test(lfm2moe), cmocka_unit_test(minicpm3), cmocka_unit_test(plm), cmocka_unit_test(grok),
        cmocka_unit_test(arctic), cmocka_unit_test(grovemoe), cmocka_unit_test(cohere2_moe),
    };
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
