/* test_ernie_vl.c - the text part of vision models with experts, DeepSeek-OCR and ERNIE 4.5 VL. ERNIE's folders also
 * hold experts for pictures, after those for text, and a vision encoder; neither is read. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/safetensors.h"
#include "tests/expert_model_int.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* Adds a tensor of F32 to a list. */
static void add_f32(struct pp_tensor *list, int *n, const char *name, int64_t rows, int64_t cols, const float *values)
{
    static char names[256][96];
    assert_true(*n < 256);
    snprintf(names[*n], sizeof names[*n], "%s", name);
    list[*n] = (struct pp_tensor){.name = names[*n], .type = PP_TYPE_F32, .n_dims = rows ? 2 : 1,
                                  .ne = {cols, rows ? rows : 1, 1, 1}, .data = values,
                                  .size = (size_t)(cols * (rows ? rows : 1)) * sizeof *values};
    (*n)++;
}

/* The name in folders of a tensor of layer l, or NULL for those of experts and routers. */
static const char *ernie_name(const char *kind)
{
    static const char *const names[][2] = {
        {"attn_norm", "input_layernorm"}, {"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
        {"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"}, {"ffn_down", "mlp.down_proj"},
        {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"}, {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
        {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(kind, names[i][0], strlen(names[i][0])) == 0 && strcmp(kind + strlen(names[i][0]), ".weight") == 0)
            return names[i][1];
    return NULL;
}

/* Writes a folder of ERNIE 4.5 VL: experts for pictures, half as wide, follow those for text; and there is a vision
 * encoder. */
static const char *write_ernie_vl(const struct expert_model *m)
{
    static const float unused[128 * 64];
    static float turned[8][64 * 16], biases[8][2 * 16];
    static const char *const experts[][2] = {{"ffn_gate_exps.weight", "gate_proj"}, {"ffn_up_exps.weight", "up_proj"},
                                             {"ffn_down_exps.weight", "down_proj"}};
    const struct expert_shape *s = &m->s;
    struct pp_tensor list[256];
    const char *dir = fresh_path("ernie-vl");
    char name[96], path[400], config[1200];
    struct pp_error err;
    int n = 0;
    assert_true(s->n_embd <= 64 && s->n_expert <= 16 && s->n_layer <= 8);
    add_f32(list, &n, "model.embed_tokens.weight", s->n_vocab, s->n_embd,
            expert_find(m, -1, "token_embd.weight")->values);
    add_f32(list, &n, "model.norm.weight", 0, s->n_embd, expert_find(m, -1, "output_norm.weight")->values);
    add_f32(list, &n, "lm_head.weight", s->n_vocab, s->n_embd, expert_find(m, -1, "output.weight")->values);
    add_f32(list, &n, "vision_model.patch_embed.proj.weight", 2, 2, unused);
    for (int i = 0; i < m->n; i++) {
        int l, at = 0;
        if (sscanf(m->t[i].name, "blk.%d.%n", &l, &at) != 1 || !at || !ernie_name(m->t[i].name + at))
            continue;
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, ernie_name(m->t[i].name + at));
        add_f32(list, &n, name, m->t[i].rows, m->t[i].cols, m->t[i].values);
    }
    for (int l = s->n_dense; l < s->n_layer; l++) {
        const struct array *router = expert_find(m, l, "ffn_gate_inp.weight");
        const struct array *bias = expert_find(m, l, "exp_probs_b.bias");
        for (int64_t e = 0; e < s->n_expert; e++) {
            biases[l][e] = bias->values[e];
            biases[l][s->n_expert + e] = 100;
            for (int64_t c = 0; c < s->n_embd; c++)
                turned[l][c * s->n_expert + e] = router->values[e * s->n_embd + c];
        }
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
        add_f32(list, &n, name, s->n_embd, s->n_expert, turned[l]);
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight_1", l);
        add_f32(list, &n, name, s->n_embd, s->n_expert, unused);
        snprintf(name, sizeof name, "model.layers.%d.mlp.moe_statics.e_score_correction_bias", l);
        add_f32(list, &n, name, 2, s->n_expert, biases[l]);
        for (int k = 0; k < 3; k++) {
            const struct array *w = expert_find(m, l, experts[k][0]);
            for (int e = 0; e < 2 * s->n_expert; e++) {
                const bool text = e < s->n_expert;
                snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", l, e, experts[k][1]);
                add_f32(list, &n, name, text || k == 2 ? w->rows : w->rows / 2, text || k < 2 ? w->cols : w->cols / 2,
                        text ? w->values + e * w->rows * w->cols : unused);
            }
        }
    }
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, (size_t)n, &err), err);
    snprintf(config, sizeof config,
             "{\"architectures\": [\"Ernie4_5_VLMoeForConditionalGeneration\"], \"model_type\": \"ernie4_5_moe_vl\", "
             "\"vocab_size\": %d, \"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
             "\"num_key_value_heads\": %d, \"intermediate_size\": %d, \"max_position_embeddings\": %d, "
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000, \"hidden_act\": \"silu\", \"moe_num_experts\": [%d, %d], "
             "\"moe_intermediate_size\": [%d, %d], \"moe_k\": %d, \"moe_layer_start_index\": [%d, %d], "
             "\"moe_layer_end_index\": [%d, %d], \"moe_layer_interval\": 1, \"moe_num_shared_experts\": %d, "
             "\"rope_3d\": true, \"freq_allocation\": 20, \"tie_word_embeddings\": false, \"vision_config\": {}}",
             s->n_vocab, s->n_embd, s->n_layer, s->n_head, s->n_head_kv, s->n_ff, s->n_ctx, s->n_expert, s->n_expert,
             s->n_ff_expert, s->n_ff_expert / 2, s->n_used, s->n_dense, s->n_dense, s->n_layer - 1, s->n_layer - 2,
             s->n_ff_shared / s->n_ff_expert);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, config, strlen(config), 0600, &err), err);
    return dir;
}

/* The text part of ERNIE 4.5 VL, from its folder and from the conversions of that. */
static void ernie_vl(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("ernie4_5-moe");
    const struct pp_convert_options opt = {0};
    const char *made[] = {NULL, fresh_path("ernie-text"), fresh_path("ernie-text.gguf")};
    int32_t ids[SMALL_TEXT];
    struct pp_error err;
    s.neighbours = s.choice_bias = true;
    s.n_dense = 1;
    s.n_ff_shared = 64;
    struct expert_model *m = expert_model_make(&s);
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    small_text(ids, s.n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    made[0] = write_ernie_vl(m);
    assert_ok(pp_convert_to_folder(made[0], made[1], &opt, &err), err);
    assert_ok(pp_convert_to_gguf(made[0], made[2], &opt, &err), err);
    for (int i = 0; i < 3; i++)
        assert_logits(want, s.n_vocab, made[i]);
    assert_tensor(made[1], "model.layers.1.mlp.gate.weight", 2, s.n_embd);
    expert_model_free(m);
    pp_free(want);
}

/* DeepSeek-OCR's text part: DeepSeek's first mixture with RoPE on other pairs of dimensions. */
static void deepseek_ocr(void **state)
{
    (void)state;
    struct expert_shape s = expert_shape("deepseek2-ocr");
    static const char rotated[] = "deepseek2-ocr.rope.dimension_count";
    struct pp_error err;
    char *data, *at = NULL;
    int32_t ids[SMALL_TEXT];
    size_t n;
    s.shares = true;
    s.n_dense = 1;
    s.n_ff_shared = 64;
    s.scale = 1;
    struct expert_model *m = expert_model_make(&s);
    const char *file = expert_model_write(m);
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    small_text(ids, s.n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    assert_same_bits(file, PP_KV_F32);
    const char *folder = assert_logits_everywhere(want, s.n_vocab, file);
    assert_tensor(folder, "model.layers.1.mlp.shared_experts.down_proj.weight", 2, s.n_ff_shared);
    /* Files of other programs claim that no dimension is rotated. */
    assert_ok(pp_read_file(file, 16 << 20, &data, &n, &err), err);
    for (size_t i = 0; !at && i + sizeof rotated + 8 < n; i++)
        at = memcmp(data + i, rotated, sizeof rotated - 1) == 0 ? data + i + sizeof rotated - 1 : NULL;
    assert_non_null(at);
    assert_int_equal(at[4], s.rope_dim);
    at[4] = 0;
    assert_ok(pp_write_file(file, data, n, 0600, &err), err);
    pp_free(data);
    assert_logits(want, s.n_vocab, file);
    pp_free(want);
    expert_model_free(m);
}

TEST_GROUP(ernie_vl)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ernie_vl),
        cmocka_unit_test(deepseek_ocr),
    };
    return cmocka_run_group_tests_name("ernie_vl", tests, NULL, NULL);
}
