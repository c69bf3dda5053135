/* test_expert_states.c - families with recurrent states in some or all layers: the delta rule, Mamba and Mamba 2, with
 * or without experts. Small random models must yield the logits of their formulas, also from folders and files
 * converted from each other. Conversations with such models are in test_states.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/arch/arch.h"
#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/hf_form.h"
#include "engine/rows.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "tests/adapter_folder.h"
#include "tests/decoder_checks.h"
#include "tests/expert_checks.h"
#include "tests/expert_model.h"
#include "tests/small_model.h"
#include "tests/support.h"

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

/* Mamba layers only, with one letter for each layer. */
static struct expert_shape scan_shape(const char *arch, const char *kinds)
{
    struct expert_shape s = state_shape(arch);
    s.mamba = true;
    s.qk_norm = QK_PLAIN;
    s.n_layer = (int)strlen(kinds);
    s.kinds = kinds;
    s.full = s.n_expert = s.n_used = s.n_ff = s.n_head = s.n_head_kv = 0;
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
    check_goes_on(&s);
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
    check_goes_on(&s);
    assert_tensor(folder, "model.layers.1.mlp.experts.gate_up_proj", 3, s.n_embd);
}

/* Agnes 3.0: a second feed-forward part in each layer, or none. */
static void agnes(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("agnes");
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    s.n_ff_shared = 32;
    const char *folder = check_experts(&s);
    check_goes_on(&s);
    assert_tensor(folder, "model.layers.0.delta_attn.in_proj_b.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.mlp.parallel_ffn.down_proj.weight", 2, s.n_ff_shared);
    assert_tensor(folder, "model.layers.2.delta_attn.conv1d.weight", 3, s.state_taps);
    assert_tensor(folder, "model.layers.3.global_attn.k_norm.weight", 1, s.head_dim);
    s.n_state = 6;
    s.n_ff_shared = 0;
    check_experts(&s);
}

/* OLMo hybrid: layers with states have norms before their parts, the others after them; attention with or without
 * RoPE. */
static void olmo_hybrid(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("olmo_hybrid");
    s.apart = s.twice = s.norms_after = s.post_norms = true;
    s.qk_norm = QK_WHOLE;
    s.n_state_key = s.n_state;
    s.rope_dim = 16;
    s.wide = 1; /* not rotated */
    s.epsilon = 0.01f;
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    const char *folder = check_experts(&s);
    check_goes_on(&s);
    assert_tensor(folder, "model.layers.0.linear_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.linear_attn.v_conv1d.weight", 3, s.state_taps);
    assert_tensor(folder, "model.layers.2.linear_attn.o_norm.weight", 1, s.value_dim);
    assert_tensor(folder, "model.layers.3.self_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.post_feedforward_layernorm.weight", 1, s.n_embd);
    struct pp_source *source;
    struct pp_error err;
    struct pp_buf module = {0};
    assert_ok(pp_source_open(folder, &source, &err), err);
    for (int l = 2; l < 4; l++) { /* the module's name depends on the kind of layer */
        char name[32];
        snprintf(name, sizeof name, "blk.%d.attn_q.weight", l);
        assert_true(pp_arch_hf_module(pp_arch_by_name(s.arch), pp_source_hparams(source), name, &module));
        assert_non_null(strstr(pp_buf_cstr(&module), l == 2 ? "2.linear_attn.q_proj" : "3.self_attn.q_proj"));
    }
    /* also the first folders' names for norms of layers with states */
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

static void refuse_rank(const struct expert_shape *s, int rank, const char *word)
{
    struct expert_shape odd = *s;
    odd.dynamic_conv_rank = rank;
    struct expert_model *m = expert_model_make(&odd);
    struct pp_model *model;
    struct pp_error err;
    assert_int_not_equal(pp_model_open(expert_model_write(m), &model, &err), PP_OK);
    assert_non_null(strstr(err.text, word));
    expert_model_free(m);
}

/* Jet-Nemotron: values pass a convolution whose taps are computed at each position. Layers with attention in between,
 * some with a window, or none; and values narrower than keys, so that columns do not fill whole registers. */
static void jet_nemotron(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("jet_nemotron");
    s.apart = s.biases = true;
    s.qk_norm = QK_PLAIN;
    s.ffn_norm = "ffn_norm";
    s.n_layer = 6;
    s.full = 2;
    s.n_state_key = s.n_state;
    s.rope_dim = s.head_dim;
    s.dynamic_conv_rank = 25; /* a fifth, rounded down */
    s.state_eps = 0.01f;
    s.window = 7;
    s.wide = 4;
    s.local_base = 10000; /* the base of all layers, as usual */
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    const char *folder = check_experts(&s);
    check_goes_on(&s);
    assert_tensor(folder, "model.layers.0.self_attn.dynamic_conv1d.kernel_generator.w1.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.self_attn.dynamic_conv1d.kernel_generator.w2.bias", 1,
                  s.n_state * s.value_dim * s.state_taps);
    assert_tensor(folder, "model.layers.2.self_attn.o_proj.weight", 2, s.n_state * s.value_dim);
    assert_tensor(folder, "model.layers.3.self_attn.o_proj.weight", 2, s.n_head * s.head_dim);
    assert_tensor(folder, "model.layers.3.self_attn.q_proj.bias", 1, s.n_head * s.head_dim);
    s.window = s.wide = 0;
    s.local_base = 0;
    s.key_dim = 48;
    s.value_dim = 112;
    s.state_taps = 3;
    s.dynamic_conv_rank = 40;
    check_experts(&s);
    s.state_taps = 1;
    s.n_state = s.n_state_key = 3; /* 336 columns, which are transposed in several blocks, the last one partial */
    s.dynamic_conv_rank = 42;
    check_experts(&s);
    refuse_rank(&s, 43, "does not divide");
    refuse_rank(&s, 337, "rank of a convolution's taps");
}

/* Taps of convolutions, and A_log, whose tensors in folders have dimensions of size one. */
static void forms_of_states(void **state)
{
    static const float values[6] = {0, 1, 2, 3, 4, 5};
    static const struct {
        enum pp_hf_form form;
        int n_dims;
        int64_t ne[4];
        int out_dims; /* 0: the shape is refused */
        int64_t out[3];
    } cases[] = {
        {PP_HF_CONV_3D, 3, {2, 1, 3, 1}, 3, {2, 1, 3}}, {PP_HF_CONV_3D, 3, {1, 2, 3, 1}, 3, {2, 1, 3}},
        {PP_HF_CONV_3D, 2, {2, 3, 1, 1}, 3, {2, 1, 3}}, {PP_HF_CONV_3D, 1, {6, 1, 1, 1}, 0, {0}},
        {PP_HF_MINUS_EXP_4D, 4, {1, 6, 1, 1}, 2, {1, 6, 1}},
        {PP_HF_MINUS_EXP_4D, 1, {6, 1, 1, 1}, 2, {1, 6, 1}},
        {PP_HF_MINUS_EXP_4D, 2, {2, 3, 1, 1}, 0, {0}},
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
            const float want = cases[i].form == PP_HF_CONV_3D ? values[k] : -expf(values[k]);
            assert_true(((const float *)out[0].data)[k] == want);
        }
        pp_free((void *)(uintptr_t)out[0].data);
    }
}

/* Kimi Linear: delta-rule states with a decay for each row, alternating with latent attention without RoPE; files hold
 * the heads' matrices of latent attention separately or as one. */
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
    check_goes_on(&s);
}

/* Mamba 2 in two of three layers, and attention with or without RoPE; with experts and without. */
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

static struct expert_shape nemotron_shape(const char *arch)
{
    struct expert_shape s = state_shape(arch);
    s.ffn_norm = "attn_norm";
    s.qk_norm = QK_PLAIN;
    s.mamba = s.neighbours = s.ungated = true;
    s.wide = 1; /* not rotated */
    s.rope_dim = 16;
    s.n_state = 6;
    s.n_state_key = 3;
    return s;
}

/* Layers of one part each: Mamba 2 in groups, attention without RoPE, a feed-forward part with squared ReLU, or experts
 * with it. */
static void nemotron_h(void **state)
{
    (void)state;
    struct expert_shape s = nemotron_shape("nemotron_h");
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

/* Replaces the first `from` in config.json by `to`. */
static void change_config(const char *folder, const char *from, const char *to)
{
    char path[400], *text;
    struct pp_buf b = {0};
    struct pp_error err;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    char *at = strstr(text, from);
    if (!at)
        fail_msg("%s does not have %s: %s", path, from, text);
    pp_buf_fmt(&b, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_ok(pp_write_file(path, b.data, b.len, 0600, &err), err);
    pp_buf_free(&b);
    pp_free(text);
}

/* Far more blocks than the limit of layers. Those that would be read for the one layer are of known kinds, so that only
 * their number is wrong. */
static void check_too_many_blocks(const char *folder)
{
    struct pp_source *source;
    struct pp_error err;
    struct pp_buf b = {0};
    pp_buf_fmt(&b, "\"block_configs\":\t[{\"block_type\": \"moe\"}, {\"block_type\": \"none\"}");
    for (int i = 0; i < 2 * PP_MAX_LAYERS; i++)
        pp_buf_fmt(&b, ", {\"block_type\": \"moe\"}");
    pp_buf_fmt(&b, ", ");
    change_config(folder, "\"num_hidden_layers\":\tnull", "\"num_hidden_layers\":\t1");
    change_config(folder, "\"block_configs\":\t[", pp_buf_cstr(&b));
    pp_buf_free(&b);
    assert_int_equal(pp_source_open(folder, &source, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "what the 1 layers are is not said"));
}

/* Pruned Nemotron-H, whose mixtures differ from layer to layer. */
static void nemotron_puzzle(void **state)
{
    static const int uneven[6][2] = {{0, 0}, {4, 96}, {0, 0}, {0, 0}, {3, 32}, {5, 64}};
    static const int none[6][2] = {{0, 0}, {4, 96}, {0, 0}, {0, 0}, {0, 32}, {2, 64}};
    struct pp_source *source;
    struct pp_error err;
    (void)state;
    struct expert_shape s = nemotron_shape("nemotron_h_moe");
    s.n_layer = 6;
    s.kinds = "MEM*EE";
    s.n_expert = 8;
    s.n_used = 3;
    s.n_ff_shared = 64;
    s.n_embd_expert = 32;
    s.sigmoids = s.choice_bias = s.say_norm = true;
    s.scale = 2.5f;
    s.uneven = uneven;
    s.kinds = "-EM*EE";
    check_experts(&s);
    s.kinds = "MEM*EE";
    const char *folder = check_experts(&s);
    assert_tensor(folder, "backbone.layers.1.mixer.experts.7.down_proj.weight", 2, 96);
    assert_tensor(folder, "backbone.layers.4.mixer.experts.7.down_proj.weight", 2, 32);
    assert_config(folder, "architectures", "NemotronHPuzzleForCausalLM");
    /* config.json may leave out numbers that follow from its lists */
    change_config(folder, "\"num_hidden_layers\":\t6", "\"num_hidden_layers\":\tnull");
    assert_ok(pp_source_open(folder, &source, &err), err);
    assert_int_equal(pp_source_hparams(source)->n_layer, 6);
    pp_source_close(source);
    change_config(folder, "\"num_experts_per_tok\":\t3\n", "\"num_experts_per_tok\":\t99\n");
    assert_int_equal(pp_source_open(folder, &source, &err), PP_ERR_FORMAT);
    change_config(folder, "\"num_experts_per_tok\":\t99\n", "\"num_experts_per_tok\":\t3, \"n_routed_experts\": 4\n");
    assert_int_equal(pp_source_open(folder, &source, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "n_routed_experts of layer 4 is 4"));
    check_too_many_blocks(folder);
    s.uneven = none;
    struct expert_model *m = expert_model_make(&s);
    assert_int_equal(pp_source_open(expert_model_write(m), &source, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "layer 4 has experts of 32 values, of which each row uses 0"));
    expert_model_free(m);
    /* files of other families that have such lists are refused */
    s = expert_shape("olmoe");
    s.n_layer = 2;
    s.uneven = (const int[2][2]){{2, 32}, {3, 32}};
    m = expert_model_make(&s);
    assert_int_equal(pp_source_open(expert_model_write(m), &source, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "expert_used_count"));
    expert_model_free(m);
}

/* Mamba 2 in all layers. */
static void mamba2(void **state)
{
    (void)state;
    struct expert_shape s = scan_shape("mamba2", "MMM");
    const char *folder = check_experts(&s);
    assert_tensor(folder, "backbone.layers.2.mixer.dt_bias", 1, s.n_state);
}

/* The first Mamba in all layers, as published, and with Falcon's norms. */
static void mamba(void **state)
{
    (void)state;
    struct expert_shape s = scan_shape("mamba", "MMM");
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
    assert_true(pp_source_hparams(source)->dt_bc_norms); /* config.json distinguishes the two */
    pp_source_close(source);
}

/* Numbers of channels that do not fill whole vectors are refused. */
static void bad_channels(void **state)
{
    (void)state;
    struct expert_shape s = scan_shape("mamba", "M");
    struct pp_source *source;
    struct pp_error err;
    s.n_state_key = 1;
    s.n_state = 3;
    s.value_dim = 24;
    s.rank = 5;
    struct expert_model *m = expert_model_make(&s);
    assert_int_not_equal(pp_source_open(expert_model_write(m), &source, &err), PP_OK);
    expert_model_free(m);
}

/* Mamba in two of three layers, attention without positions, experts in every second layer, or none. */
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
    s.scan_norm = SCAN_NORM_WEIGHTED;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.mamba.x_proj.weight", 2, s.n_state * s.value_dim);
    assert_tensor(folder, "model.layers.1.mamba.dt_layernorm.weight", 1, s.rank);
    assert_tensor(folder, "model.layers.2.self_attn.q_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.feed_forward.up_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.feed_forward.router.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.feed_forward.experts.7.down_proj.weight", 2, s.n_ff_expert);
    s.n_expert = s.n_used = 1; /* files of Jamba Reasoning claim one expert, but have none */
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

/* Falcon H1: Mamba 2 in parallel with attention in each layer, with one group and no norm, and with two groups and a
 * norm. */
static void falcon_h1(void **state)
{
    (void)state;
    struct expert_shape s = state_shape("falcon-h1");
    s.ffn_norm = "ffn_norm";
    s.qk_norm = QK_PLAIN;
    s.n_layer = 2;
    s.mamba = s.beside = s.no_state_norm = true;
    s.rope_dim = 16;
    s.full = s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    s.n_state_key = 1;
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.1.mamba.in_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.feed_forward.up_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.0.self_attn.q_proj.weight", 2, s.n_embd);
    s.n_state_key = 2;
    s.no_state_norm = false;
    folder = check_experts(&s);
    assert_tensor(folder, "model.layers.0.mamba.norm.weight", 1, s.n_state * s.value_dim);
}

/* Checks that rows first to end - 1 of the folder's tensor are those of the file times a factor. */
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

static struct expert_shape small_falcon(void)
{
    struct expert_shape s = state_shape("falcon-h1");
    s.ffn_norm = "ffn_norm";
    s.qk_norm = QK_PLAIN;
    s.n_layer = 2;
    s.mamba = s.beside = s.no_state_norm = true;
    s.rope_dim = 16;
    s.n_state = 2;
    s.n_state_key = 1;
    s.full = s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    return s;
}

/* Adds multipliers of weights to a folder's config.json. */
static void add_scales(const char *folder)
{
    static const char scales[] =
        "{\"embedding_multiplier\": 2, \"lm_head_multiplier\": 0.5, \"key_multiplier\": 0.25,"
        "\"attention_in_multiplier\": 1.5, \"attention_out_multiplier\": 0.75, \"ssm_in_multiplier\": 1.25,"
        "\"ssm_out_multiplier\": 0.7, \"mlp_multipliers\": [0.8, 0.6], \"ssm_multipliers\": [0.5, 2, 0.9, 1.1, 0.3], ";
    struct pp_error err;
    char path[400], *text, *edited;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    edited = pp_calloc(n + sizeof scales, 1);
    assert_non_null(edited);
    snprintf(edited, n + sizeof scales, "%s%.*s", scales, (int)n - 1, text + 1);
    assert_ok(pp_write_file(path, edited, strlen(edited), 0600, &err), err);
    pp_free(text);
    pp_free(edited);
}

/* Multipliers are applied once, and not again to a folder or file converted from such a folder. */
static void falcon_h1_scales(void **state)
{
    static const struct {
        const char *name;
        double by;
    } whole[] = {{"token_embd.weight", 2}, {"output.weight", 0.5}, {"blk.0.attn_q.weight", 1.5},
                 {"blk.1.attn_k.weight", 0.375}, {"blk.0.attn_v.weight", 1.5}, {"blk.1.attn_output.weight", 0.75},
                 {"blk.0.ffn_gate.weight", 0.8}, {"blk.0.ffn_up.weight", 1}};
    (void)state;
    const struct expert_shape s = small_falcon();
    struct expert_model *m = expert_model_make(&s);
    const char *file = expert_model_write(m), *folder = fresh_path("folder"), *again = fresh_path("again");
    const char *other = fresh_path("scaled.gguf");
    const struct pp_convert_options opt = {0};
    struct pp_source *a, *b;
    struct pp_error err;
    size_t n_a, n_b;
    expert_model_free(m);
    assert_ok(pp_convert_to_folder(file, folder, &opt, &err), err);
    add_scales(folder);
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

/* A LoRA of the embeddings [n_vocab, n_embd]. */
static void merge_table(struct folder *f, const char *module, int rank, float *table, int64_t n_vocab, int64_t n_embd)
{
    char name[192];
    snprintf(name, sizeof name, "base_model.model.%s.lora_embedding_A", module);
    const float *a = folder_add(f, name, rank, n_vocab, 0, 0.2f);
    snprintf(name, sizeof name, "base_model.model.%s.lora_embedding_B", module);
    const float *b = folder_add(f, name, n_embd, rank, 0, 0.2f);
    for (int64_t t = 0; t < n_vocab; t++)
        for (int64_t i = 0; i < n_embd; i++)
            for (int k = 0; k < rank; k++)
                table[t * n_embd + i] += 2 * b[i * rank + k] * a[k * n_vocab + t];
}

/* Copies the folder with LoRAs, or DoRAs, of its matrices merged in, and adds those to f; returns its path. */
static const char *merge_folder(const char *folder, bool dora, struct folder *f)
{
    enum { MOST = 64, RANK = 3 };
    const char *to = fresh_path("merged");
    struct pp_tensor tensors[MOST];
    struct pp_safetensors *s;
    struct pp_error err;
    float *made[MOST];
    char path[512];
    assert_int_equal(mkdir(to, 0700), 0);
    folder_copy_config(folder, to);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(pp_safetensors_open(path, &s, &err), err);
    const size_t n = pp_safetensors_n(s);
    assert_true(n <= MOST);
    for (size_t i = 0; i < n; i++) {
        const struct pp_tensor *t = pp_safetensors_at(s, i);
        const int stem = (int)strlen(t->name) - (int)strlen(".weight");
        char module[128], name[192];
        tensors[i] = *t;
        made[i] = NULL;
        const bool table = strstr(t->name, "embed_tokens");
        if (t->n_dims != 2 || (table && dora))
            continue;
        tensors[i].data = made[i] = pp_malloc(t->size);
        memcpy(made[i], t->data, t->size);
        snprintf(module, sizeof module, "%.*s", stem, t->name);
        if (table) {
            merge_table(f, module, RANK, made[i], t->ne[1], t->ne[0]);
            continue;
        }
        folder_add_merged(f, module, RANK, 2, made[i], t->ne[1], t->ne[0]);
        snprintf(name, sizeof name, "base_model.model.%s.lora_magnitude_vector", module);
        const float *magnitude = dora ? folder_add(f, name, t->ne[1], 0, 1.5f, 0.5f) : NULL;
        for (int64_t r = 0; dora && r < t->ne[1]; r++) {
            float *row = made[i] + r * t->ne[0];
            double square = 0;
            for (int64_t k = 0; k < t->ne[0]; k++)
                square += (double)row[k] * (double)row[k];
            for (int64_t k = 0; k < t->ne[0]; k++)
                row[k] = (float)((double)row[k] * (double)magnitude[r] / sqrt(square));
        }
    }
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    assert_ok(pp_safetensors_write(path, tensors, n, &err), err);
    for (size_t i = 0; i < n; i++)
        pp_free(made[i]);
    pp_safetensors_close(s);
    return to;
}

/* Adapters of weights that are multiplied on loading are multiplied, too. For a file, or a folder converted from one,
 * the factor is unknown, and the adapter is refused. */
static void falcon_h1_adapters(void **state)
{
    static const char *const configs[] = {
        "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6}",
        "{\"peft_type\":\"LORA\",\"use_dora\":true,\"r\":3,\"lora_alpha\":6}"};
    const struct expert_shape s = small_falcon();
    struct expert_model *m = expert_model_make(&s);
    const char *file = expert_model_write(m), *folder = fresh_path("folder"), *again = fresh_path("again");
    const struct pp_convert_options opt = {0};
    struct pp_error err;
    (void)state;
    expert_model_free(m);
    assert_ok(pp_convert_to_folder(file, folder, &opt, &err), err);
    add_scales(folder);
    assert_ok(pp_convert_to_folder(folder, again, &opt, &err), err);
    for (int dora = 0; dora < 2; dora++) {
        struct folder f = {.random = 31};
        size_t n;
        const char *merged = merge_folder(folder, dora, &f), *adapter = folder_write_peft(&f, configs[dora]);
        float *want = small_logits(merged, PP_KV_F32, &n);
        double *as_double = doubles((int)n);
        for (size_t i = 0; i < n; i++)
            as_double[i] = (double)want[i];
        assert_adapted(folder, adapter, as_double, s.n_vocab, 1e-3);
        const char *const others[] = {file, again};
        for (int i = 0; i < 2; i++) {
            struct running r = run_small(others[i], NULL);
            struct pp_adapter *a;
            assert_int_equal(pp_adapter_load(r.m, adapter, &a, &err), PP_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.text, "by a factor that this model does not give"));
            stop_small(&r);
        }
        pp_free(want);
        pp_free(as_double);
        folder_empty(&f);
    }
}

TEST_GROUP(expert_states)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3_next), cmocka_unit_test(qwen35), cmocka_unit_test(agnes), cmocka_unit_test(olmo_hybrid),
        cmocka_unit_test(jet_nemotron),
        cmocka_unit_test(forms_of_states), cmocka_unit_test(kimi_linear), cmocka_unit_test(granite_hybrid),
        cmocka_unit_test(nemotron_h), cmocka_unit_test(nemotron_puzzle),
        cmocka_unit_test(mamba2), cmocka_unit_test(mamba), cmocka_unit_test(bad_channels),
        cmocka_unit_test(jamba), cmocka_unit_test(bamba), cmocka_unit_test(falcon_h1),
        cmocka_unit_test(falcon_h1_scales), cmocka_unit_test(falcon_h1_adapters),
    };
    return cmocka_run_group_tests_name("expert_states", tests, NULL, NULL);
}
