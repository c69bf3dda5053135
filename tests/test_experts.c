/* test_experts.c - mixtures of experts of several families. Small random models give what their formulas say, from a
 * GGUF file, from the folder that is made of it, and from the file that is made of that; with any number of rows and
 * threads, and with quantised weights, the same bits. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/hf_form.h"
#include "engine/rows.h"
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

/* What chooses experts is not what weighs them. */
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

/* Files have a layer behind the last one. */
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

/* Folders have q, k and v in one matrix, files apart. */
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
    s.norms_behind_rope = true;
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
    s.embd_scale = 8; /* the root of the width */
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

/* Llama 4: chunks of 20 positions, and a model of 128 experts, whose heads are not normed. */
static void llama4(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("llama4");
    s.neighbours = s.sigmoids = s.shares = s.chunked = s.unit_heads = s.weighed_inputs = true;
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
    s.unit_heads = false;
    s.seed = 2;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.feed_forward.up_proj.weight", 2, s.n_embd);
}

/* Latent attention: files with the matrices of heads in one, and apart, give the same bits. */
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

/* DeepSeek V2: groups of experts are chosen by the largest one's. */
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

/* DeepSeek V3, and those that are built as it is. */
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
    s.arch = "axk1"; /* what experts give is normed, with the shared one; other layers may have such a norm, too */
    s.normed_mixture = NORMED_ANYWHERE;
    for (int i = 0; i < 2; i++, s.n_ff_shared = 0, s.normed_mixture = MIXTURE_NORMED)
        assert_tensor(check_latent(&s), "model.layers.1.post_mlp_layernorm.weight", 1, s.n_embd);
}

/* DeepSeek V3.2 and GLM 5: as V3, but for what an index picks, of pairs that differ. With so many heads many scores are
 * exactly 0, so that ties matter. */
static void indexed(void **state)
{
    static const struct {
        const char *family;
        int top_k;
    } cases[] = {{"deepseek32", 100}, {"deepseek32", 8}, {"glm-dsa", 13}, {"glm-dsa", 64}, {"deepseek32", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = expert_shape(cases[i].family);
        s.index_halves = strcmp(s.arch, "deepseek32") == 0;
        s.neighbours = s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = true;
        s.q_rank = 32;
        s.n_dense = 1;
        s.n_ff_shared = 32;
        s.scale = 2.5f;
        s.index_top_k = cases[i].top_k;
        if (i == 1) { /* as the published model has it */
            s.yarn_factor = 40;
            s.yarn_ctx = 64;
            s.log_multiplier = 0.1f;
        }
        const char *folder = check_latent(&s);
        assert_tensor(folder, "model.layers.2.self_attn.indexer.wq_b.weight", 2, s.q_rank);
        assert_tensor(folder, "model.layers.0.self_attn.indexer.k_norm.bias", 1, 20);
    }
}

/* GLM 5.2: layers without an index see what the last one before them picked. Files of before there was a key for it go
 * by their tensors. */
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
    s.index_untold = true;
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

/* Maple: only windows are rotated, half of each head; gates are bounded before SiLU. */
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
    s.bounded_gates = true;
    s.bound = 7; /* which some gates here are above */
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.mlp.experts.5.gate_proj.weight", 2, s.n_embd);
    s.bound = 6;
    struct expert_model *m = expert_model_make(&s);
    assert_int_equal(pp_model_open(expert_model_write(m), &model, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "is 6; only 7 is supported"));
    expert_model_free(m);
}

/* Mistral 4: experts of a softmax, and scores that grow with each original context; Mistral Large 3 is called
 * deepseek2. */
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

/* MiMo V2 Flash: windows with sinks and a RoPE of their own, more heads of keys in them; values shorter than keys. */
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

/* HY V3: DeepSeek-V3's routing behind norms of heads. */
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

/* Step 3.5: windows with more heads and a RoPE of their own, a gate for each head, bounds in the last layer. */
static void step35(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("step35");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.gated = s.head_gates = true;
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
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.gated = s.head_gates = s.soft_gates = true;
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
    s.sigmoids = s.choice_bias = s.say_norm = s.gated = s.soft_gates = true;
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

/* LFM2's mixtures: short convolutions in place of attention, in the first layer, too. */
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

/* Latent attention without experts, with scales that files do not say. */
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

/* Three of four layers with states. */
static struct expert_shape state_shape(const char *arch)
{
    struct expert_shape s = expert_shape(arch);
    s.n_layer = 4;
    s.full = 4;
    s.ffn_norm = "post_attention_norm";
    s.qk_norm = QK_HEADS;
    s.rope_dim = 8;
    s.n_state = 4;
    s.n_state_key = 2;
    s.key_dim = 16;
    s.value_dim = 32;
    s.state_taps = 4;
    return s;
}

static void qwen3_next(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("qwen3next");
    s.joined_numbers = s.shared_weight = true;
    s.n_ff_shared = 32;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.linear_attn.in_proj_qkvz.weight", 2, s.n_embd);
    s.by_key_head = true; /* as folders have it */
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.linear_attn.conv1d.weight", 3, s.state_taps);
    assert_tensor(folder, "model.layers.0.linear_attn.in_proj_qkvz.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.linear_attn.A_log", 1, s.n_state);
    assert_tensor(folder, "model.layers.3.self_attn.q_proj.weight", 2, s.n_embd);
}

static void qwen35(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("qwen35");
    s.tiled = true;
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.linear_attn.in_proj_b.weight", 2, s.n_embd);
    s = state_shape("qwen35moe");
    s.tiled = s.shared_weight = true;
    s.n_state = 6;
    s.n_ff_shared = 32;
    s.n_nextn = 1;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.mlp.experts.gate_up_proj", 3, s.n_embd);
}

/* Norms before the parts of layers with states and behind those of others, which rotate heads, or do not. */
static void olmo_hybrid(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("olmo_hybrid");
    s.apart = s.twice = s.norms_behind = s.post_norms = true;
    s.qk_norm = QK_WHOLE;
    s.n_state_key = s.n_state;
    s.rope_dim = 16;
    s.wide = 1; /* not rotated */
    s.epsilon = 0.01f;
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.linear_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.linear_attn.v_conv1d.weight", 3, s.state_taps);
    assert_tensor(folder, "model.layers.2.linear_attn.o_norm.weight", 1, s.value_dim);
    assert_tensor(folder, "model.layers.3.self_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.post_feedforward_layernorm.weight", 1, s.n_embd);
    struct pp_source *source;
    struct pp_error err;
    struct pp_buf module = {0};
    assert_ok(pp_source_open(folder, &source, &err), err);
    for (int l = 2; l < 4; l++) { /* what adapters call it depends on the layer */
        char name[32];
        snprintf(name, sizeof name, "blk.%d.attn_q.weight", l);
        assert_true(pp_arch_hf_module(pp_arch_by_name(s.arch), pp_source_hparams(source), name, &module));
        assert_non_null(strstr(pp_buf_cstr(&module), l == 2 ? "2.linear_attn.q_proj" : "3.self_attn.q_proj"));
    }
    /* and what the first folders call norms of layers with states */
    assert_int_equal(pp_arch_gguf_name(pp_arch_by_name(s.arch), "model.layers.1.attention_layer_norm.weight", &module,
                                       NULL), PP_NAME_FOUND);
    assert_string_equal(pp_buf_cstr(&module), "blk.1.attn_norm.weight");
    assert_int_equal(pp_arch_gguf_name(pp_arch_by_name(s.arch), "model.layers.1.feedforward_layer_norm.weight",
                                       &module, NULL), PP_NAME_FOUND);
    assert_string_equal(pp_buf_cstr(&module), "blk.1.post_attention_norm.weight");
    pp_buf_free(&module);
    pp_source_close(source);
    s.wide = 0;
    s.twice = false;
    s.n_state_key = 2;
    s.epsilon = 0;
    check_experts(&s);
}

/* Taps of convolutions and logarithms of rates, with dimensions of one wherever folders have them. */
static void forms_of_states(void **state)
{
    static const float values[6] = {0, 1, 2, 3, 4, 5};
    static const struct {
        enum pp_hf_form form;
        int n_dims;
        int64_t ne[4];
        int out_dims; /* 0: refused */
        int64_t out[3];
    } cases[] = {
        {PP_HF_CHANNELS_APART, 3, {2, 1, 3, 1}, 3, {2, 1, 3}}, {PP_HF_CHANNELS_APART, 3, {1, 2, 3, 1}, 3, {2, 1, 3}},
        {PP_HF_CHANNELS_APART, 2, {2, 3, 1, 1}, 3, {2, 1, 3}}, {PP_HF_CHANNELS_APART, 1, {6, 1, 1, 1}, 0, {0}},
        {PP_HF_MINUS_EXP_BETWEEN, 4, {1, 6, 1, 1}, 2, {1, 6, 1}},
        {PP_HF_MINUS_EXP_BETWEEN, 1, {6, 1, 1, 1}, 2, {1, 6, 1}},
        {PP_HF_MINUS_EXP_BETWEEN, 2, {2, 3, 1, 1}, 0, {0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_tensor t = {.name = "t", .type = PP_TYPE_F32, .n_dims = cases[i].n_dims, .data = values,
                              .size = sizeof values}, out[2];
        struct pp_error err;
        int n;
        memcpy(t.ne, cases[i].ne, sizeof t.ne);
        const enum pp_code code = pp_hf_transform(&t, cases[i].form, &(struct pp_hparams){0}, out, &n, &err);
        assert_int_equal(code, cases[i].out_dims ? PP_OK : PP_ERR_FORMAT);
        if (code)
            continue;
        assert_int_equal(out[0].n_dims, cases[i].out_dims);
        assert_memory_equal(out[0].ne, cases[i].out, sizeof cases[i].out);
        for (int k = 0; k < 6; k++) {
            const float want = cases[i].form == PP_HF_CHANNELS_APART ? values[k] : -expf(values[k]);
            assert_true(((const float *)out[0].data)[k] == want);
        }
        pp_free((void *)(uintptr_t)out[0].data);
    }
}

/* States that decay row by row beside latent attention that knows no positions, from files with the heads' matrices
 * apart or in one. */
static void kimi_linear(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("kimi-linear");
    s.kda = s.sigmoids = s.choice_bias = s.say_gating = true;
    s.qk_norm = QK_PLAIN;
    s.ffn_norm = "ffn_norm";
    s.n_state = s.n_state_key = s.n_head;
    s.key_dim = s.value_dim = 32;
    s.kv_rank = 32;
    s.nope = 16;
    s.v_dim = 24;
    s.wide = 1; /* not rotated */
    s.n_ff_shared = 32;
    s.n_dense = 1;
    s.scale = 2.446f;
    s.heads_apart = true;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.self_attn.k_conv1d.weight", 3, s.state_taps);
    assert_tensor(folder, "model.layers.0.self_attn.A_log", 4, 1);
    assert_tensor(folder, "model.layers.1.self_attn.f_b_proj.weight", 2, s.key_dim);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.experts.7.w2.weight", 2, s.n_ff_expert);
    assert_tensor(folder, "model.layers.2.block_sparse_moe.gate.e_score_correction_bias", 1, s.n_expert);
    assert_tensor(folder, "model.layers.3.self_attn.kv_b_proj.weight", 2, s.kv_rank);
    s.heads_apart = false;
    s.q_rank = 24;
    s.shares = s.say_norm = true;
    s.n_dense = 0;
    check_experts(&s);
}

/* Mamba 2 in two of three layers, attention whose heads are not rotated, or are, with experts and without. */
static void granite_hybrid(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("granitehybrid");
    s.ffn_norm = "ffn_norm";
    s.qk_norm = QK_PLAIN;
    s.n_layer = 5;
    s.full = 3;
    s.mamba = s.neighbours = s.say_scales = true;
    s.wide = 1; /* not rotated */
    s.n_state = 6;
    s.n_state_key = 1;
    s.key_dim = 32;
    s.value_dim = 16;
    s.rope_dim = 16;
    s.embd_scale = 1.5f;
    s.residual_scale = 0.5f;
    s.attn_scale = 0.2f;
    s.logit_scale = 0.5f;
    s.n_ff_shared = 32;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.mamba.in_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.mamba.A_log", 1, s.n_state);
    assert_tensor(folder, "model.layers.3.mamba.D", 1, s.n_state);
    assert_tensor(folder, "model.layers.3.mamba.norm.weight", 1, s.n_state * s.value_dim);
    assert_tensor(folder, "model.layers.4.mamba.conv1d.weight", 3, s.state_taps);
    assert_tensor(folder, "model.layers.2.self_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.block_sparse_moe.input_linear.weight", 3, s.n_embd);
    assert_tensor(folder, "model.layers.2.shared_mlp.output_linear.weight", 2, s.n_ff_shared);
    s.n_expert = s.n_used = s.n_ff_shared = 0;
    s.n_dense = s.n_layer;
    s.wide = 0;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.shared_mlp.input_linear.weight", 2, s.n_embd);
}

/* Layers of one part each: Mamba 2 in groups, attention that does not rotate heads, the squared ReLU, experts of it. */
static void nemotron_h(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("nemotron_h");
    s.ffn_norm = "attn_norm";
    s.qk_norm = QK_PLAIN;
    s.mamba = s.neighbours = s.ungated = true;
    s.wide = 1; /* not rotated */
    s.rope_dim = 16;
    s.n_state = 6;
    s.n_state_key = 3;
    s.n_layer = 5;
    s.kinds = "M-M*-";
    s.n_expert = s.n_used = 0;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "backbone.embeddings.weight", 2, s.n_embd);
    assert_tensor(folder, "backbone.layers.0.mixer.in_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "backbone.layers.2.mixer.norm.weight", 1, s.n_state * s.value_dim);
    assert_tensor(folder, "backbone.layers.3.mixer.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "backbone.layers.4.mixer.up_proj.weight", 2, s.n_embd);
    s.arch = "nemotron_h_moe";
    s.kinds = "MEM*E-";
    s.n_layer = 6;
    s.n_expert = 8;
    s.n_used = 3;
    s.n_ff_shared = 64;
    s.sigmoids = s.choice_bias = s.say_norm = true;
    s.scale = 2.5f;
    folder = check_experts(&s);
    assert_tensor(folder, "backbone.layers.1.mixer.experts.7.down_proj.weight", 2, s.n_ff_expert);
    assert_tensor(folder, "backbone.layers.4.mixer.gate.e_score_correction_bias", 1, s.n_expert);
    assert_tensor(folder, "backbone.layers.4.mixer.shared_experts.up_proj.weight", 2, s.n_embd);
    s.n_embd_expert = 32;
    folder = check_experts(&s);
    assert_tensor(folder, "backbone.layers.1.mixer.fc1_latent_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "backbone.layers.1.mixer.experts.7.up_proj.weight", 2, s.n_embd_expert);
}

/* Nothing but Mamba 2. */
static void mamba2(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("mamba2");
    s.mamba = true;
    s.qk_norm = QK_PLAIN;
    s.n_layer = 3;
    s.kinds = "MMM";
    s.full = s.n_expert = s.n_used = s.n_ff = s.n_head = s.n_head_kv = 0;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "backbone.layers.2.mixer.dt_bias", 1, s.n_state);
}

/* Nothing but the first Mamba, as it was, and with Falcon's norms. */
static void mamba(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("mamba");
    s.mamba = true;
    s.qk_norm = QK_PLAIN;
    s.n_layer = 3;
    s.kinds = "MMM";
    s.full = s.n_expert = s.n_used = s.n_ff = s.n_head = s.n_head_kv = 0;
    s.n_state_key = 1;
    s.n_state = 3; /* 96 channels */
    s.rank = 5;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "backbone.layers.2.mixer.A_log", 2, s.key_dim);
    assert_tensor(folder, "backbone.layers.0.mixer.dt_proj.weight", 2, s.rank);
    assert_tensor(folder, "backbone.layers.1.mixer.D", 1, s.n_state * s.value_dim);
    s.scan_norm = SCAN_UNIT;
    s.n_state = 4;
    s.rank = 16;
    folder = check_experts(&s);
    struct pp_source *source;
    struct pp_error err;
    assert_ok(pp_source_open(folder, &source, &err), err);
    assert_true(pp_source_hparams(source)->state_unit); /* config.json says which of the two it is */
    pp_source_close(source);
}

/* Channels that are no whole vectors are refused. */
static void bad_channels(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("mamba");
    struct pp_source *source;
    struct pp_error err;
    s.mamba = true;
    s.qk_norm = QK_PLAIN;
    s.n_layer = 1;
    s.kinds = "M";
    s.full = s.n_expert = s.n_used = s.n_ff = s.n_head = s.n_head_kv = 0;
    s.n_state_key = 1;
    s.n_state = 3;
    s.value_dim = 24;
    s.rank = 5;
    struct expert_model *m = expert_model_make(&s);
    assert_int_not_equal(pp_source_open(expert_model_write(m), &source, &err), PP_OK);
    expert_model_free(m);
}

/* Mamba in two of three layers, attention that knows no positions, experts in every second layer, or in none. */
static void jamba(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("jamba");
    s.mamba = s.neighbours = s.shares = true;
    s.qk_norm = QK_PLAIN;
    s.ffn_norm = "ffn_norm";
    s.n_layer = 5;
    s.full = 3;
    s.wide = 1; /* not rotated */
    s.rope_dim = 16;
    s.step = 2;
    s.n_ff = s.n_ff_expert = 64;
    s.n_state_key = 1;
    s.rank = 32;
    s.scan_norm = SCAN_NORMED;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.mamba.x_proj.weight", 2, s.n_state * s.value_dim);
    assert_tensor(folder, "model.layers.1.mamba.dt_layernorm.weight", 1, s.rank);
    assert_tensor(folder, "model.layers.2.self_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.feed_forward.up_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.feed_forward.router.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.feed_forward.experts.7.down_proj.weight", 2, s.n_ff_expert);
    s.n_expert = s.n_used = 1; /* Jamba Reasoning's files say that, and have none */
    s.n_dense = s.n_layer;
    s.n_layer = 3;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.feed_forward.gate_proj.weight", 2, s.n_embd);
}

/* Bamba: Mamba 2, and attention that rotates half of each head. */
static void bamba(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("bamba");
    s.ffn_norm = "ffn_norm";
    s.qk_norm = QK_PLAIN;
    s.mamba = true;
    s.n_state_key = 1;
    s.full = 3;
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.mamba.norm.weight", 1, s.n_state * s.value_dim);
    assert_tensor(folder, "model.layers.2.self_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.feed_forward.up_proj.weight", 2, s.n_embd);
}

/* Mamba 2 beside attention in each layer, of one group without a norm, of two with one. */
static void falcon_h1(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("falcon-h1");
    s.ffn_norm = "ffn_norm";
    s.qk_norm = QK_PLAIN;
    s.n_layer = 2;
    s.mamba = s.beside = s.unnormed = true;
    s.rope_dim = 16;
    s.full = s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    s.n_state_key = 1;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.mamba.in_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.feed_forward.up_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.0.self_attn.q_proj.weight", 2, s.n_embd);
    s.n_state_key = 2;
    s.unnormed = false;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.mamba.norm.weight", 1, s.n_state * s.value_dim);
}

/* That the folder's tensor is that of the file, rows first to end - 1 times a number. */
static void assert_scaled(const struct pp_source *folder, const struct pp_source *file, const char *name, int64_t first,
                          int64_t end, double by)
{
    const struct pp_tensor *a = pp_source_tensor(folder, name), *b = pp_source_tensor(file, name);
    float x[64], y[64];
    struct pp_error err;
    assert_true(a && b && a->ne[0] <= 64 && end <= a->ne[1]);
    for (int64_t r = first; r < end; r++) {
        assert_ok(pp_tensor_floats(a, r, 1, x, &err), err);
        assert_ok(pp_tensor_floats(b, r, 1, y, &err), err);
        for (int64_t i = 0; i < a->ne[0]; i++)
            assert_true(fabs((double)x[i] - by * (double)y[i]) <= 1e-6);
    }
}

/* Numbers of config.json by which weights are multiplied: read once, and of a folder or a file that is made of such a
 * folder not again. */
static void falcon_h1_scales(void **state)
{
    static const char scales[] =
        "{\"embedding_multiplier\": 2, \"lm_head_multiplier\": 0.5, \"key_multiplier\": 0.25,"
        "\"attention_in_multiplier\": 1.5, \"attention_out_multiplier\": 0.75, \"ssm_in_multiplier\": 1.25,"
        "\"ssm_out_multiplier\": 0.7, \"mlp_multipliers\": [0.8, 0.6], \"ssm_multipliers\": [0.5, 2, 0.9, 1.1, 0.3], ";
    static const struct {
        const char *name;
        double by;
    } whole[] = {{"token_embd.weight", 2}, {"output.weight", 0.5}, {"blk.0.attn_q.weight", 1.5},
                 {"blk.1.attn_k.weight", 0.375}, {"blk.0.attn_v.weight", 1.5}, {"blk.1.attn_output.weight", 0.75},
                 {"blk.0.ffn_gate.weight", 0.8}, {"blk.0.ffn_up.weight", 1}};
    (void)state;
    struct expert_shape s = state_shape("falcon-h1");
    s.ffn_norm = "ffn_norm";
    s.qk_norm = QK_PLAIN;
    s.n_layer = 2;
    s.mamba = s.beside = s.unnormed = true;
    s.rope_dim = 16;
    s.n_state = 2;
    s.n_state_key = 1;
    s.full = s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    struct expert_model *m = expert_model_make(&s);
    const char *file = expert_model_write(m), *folder = fresh_path("folder"), *again = fresh_path("again");
    const char *other = fresh_path("scaled.gguf");
    const struct pp_convert_options opt = {0};
    struct pp_source *a, *b;
    struct pp_error err;
    char path[400], *text, *edited;
    size_t n, n_a, n_b;
    expert_model_free(m);
    assert_ok(pp_convert_to_folder(file, folder, &opt, &err), err);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    edited = pp_calloc(n + sizeof scales, 1);
    assert_non_null(edited);
    snprintf(edited, n + sizeof scales, "%s%.*s", scales, (int)n - 1, text + 1);
    assert_ok(pp_write_file(path, edited, strlen(edited), 0600, &err), err);
    pp_free(text);
    pp_free(edited);
    assert_ok(pp_source_open(folder, &a, &err), err);
    assert_ok(pp_source_open(file, &b, &err), err);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        assert_scaled(a, b, whole[i].name, 0, pp_source_tensor(b, whole[i].name)->ne[1], whole[i].by);
    const int values = s.n_state * s.value_dim;
    const double parts[] = {0.5, 2, 0.9, 1.1, 0.3};
    const int ends[] = {0, values, 2 * values, 2 * values + s.key_dim, 2 * (values + s.key_dim),
                        2 * (values + s.key_dim) + s.n_state};
    for (int i = 0; i < 5; i++)
        assert_scaled(a, b, "blk.1.ssm_in.weight", ends[i], ends[i + 1], 1.25 * parts[i]);
    pp_source_close(a);
    pp_source_close(b);
    float *want = small_logits(folder, PP_KV_F32, &n_a);
    const char *made[] = {again, other};
    assert_ok(pp_convert_to_folder(folder, again, &opt, &err), err);
    assert_ok(pp_convert_to_gguf(folder, other, &opt, &err), err);
    for (int k = 0; k < 2; k++) {
        float *got = small_logits(made[k], PP_KV_F32, &n_b);
        assert_int_equal(n_a, n_b);
        assert_memory_equal(want, got, n_a * sizeof *want);
        pp_free(got);
    }
    pp_free(want);
}

/* Grok 1, with the norm's name of its first files; Grok 2 with a feed-forward part beside experts, and scores that grow
 * behind their cap. */
static void grok(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("grok");
    s.gelu = s.post_norms = s.shares = true;
    s.norm_behind = "attn_output_norm";
    s.ffn_norm_behind = "layer_output_norm";
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
    s.ffn_norm_behind = "post_ffw_norm";
    s.dense_beside = true;
    s.n_ff = 96;
    s.final_cap = 4;
    s.log_length = 11;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.mlp.down_proj.weight", 2, s.n_ff);
}

/* Arctic: experts beside attention and a feed-forward part, which is as wide as the stream. */
static void arctic(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("arctic");
    s.neighbours = s.dense_beside = true;
    s.beside_norm = "ffn_norm_exps";
    s.n_ff = s.n_embd;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.residual_layernorm.weight", 1, s.n_embd);
    assert_tensor(folder, "model.layers.0.residual_mlp.w2.weight", 2, s.n_ff);
    assert_tensor(folder, "model.layers.1.block_sparse_moe.experts.7.w2.weight", 2, s.n_ff_expert);
}

/* Grove MoE: of eight experts each two share one more. */
static void grovemoe(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("grovemoe");
    s.qk_norm = QK_HEADS;
    s.share = 2;
    s.n_ff_share = 32;
    s.share_scale = 0.05f; /* of all folders */
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.2.mlp.chunk_experts.3.down_proj.weight", 2, s.n_ff_share);
    assert_tensor(folder, "model.layers.2.mlp.experts.7.down_proj.weight", 2, s.n_ff_expert);
    s.share = 4; /* files may say so */
    s.share_scale = 0.7f;
    s.n_used = 5;
    struct expert_model *m = expert_model_make(&s);
    double *want = pp_calloc((size_t)(SMALL_TEXT * s.n_vocab), sizeof *want);
    int32_t ids[SMALL_TEXT];
    assert_non_null(want);
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

/* Cohere's: experts beside attention, after a layer without them that sees everything and is rotated; and LayerNorm,
 * with an expert that all rows use. */
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
        cmocka_unit_test(lfm2moe), cmocka_unit_test(minicpm3), cmocka_unit_test(plm), cmocka_unit_test(qwen3_next),
        cmocka_unit_test(qwen35), cmocka_unit_test(olmo_hybrid), cmocka_unit_test(forms_of_states),
        cmocka_unit_test(kimi_linear), cmocka_unit_test(granite_hybrid), cmocka_unit_test(nemotron_h),
        cmocka_unit_test(mamba2), cmocka_unit_test(mamba), cmocka_unit_test(bad_channels), cmocka_unit_test(jamba),
        cmocka_unit_test(bamba), cmocka_unit_test(falcon_h1), cmocka_unit_test(falcon_h1_scales),
        cmocka_unit_test(grok), cmocka_unit_test(arctic), cmocka_unit_test(grovemoe), cmocka_unit_test(cohere2_moe),
    };
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
