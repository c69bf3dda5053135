/* test_states.c - features that families with layers of Mamba, Mamba 2 or the delta rule must have like all others, on
 * small random models: conversations that are saved and continued, going back in them, MLX's folders, folders that are
 * quantised while they are loaded, and adapters. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "tests/adapter_folder.h"
#include "tests/expert_model.h"
#include "tests/expert_model_int.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { OLMO = 6, KIMI, BAMBA, JET, N_FAMILIES };

static struct expert_shape olmo_hybrid(void)
{
    struct expert_shape s = expert_shape("olmo_hybrid");
    s.full = 3;
    s.apart = s.twice = s.norms_after = s.post_norms = true;
    s.qk_norm = QK_WHOLE;
    s.ffn_norm = "post_attention_norm";
    s.wide = 1;
    s.n_state = s.n_state_key = 4;
    s.key_dim = 16;
    s.value_dim = 32;
    s.state_taps = 4;
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    return s;
}

static struct expert_shape kimi_linear(void)
{
    struct expert_shape s = expert_shape("kimi-linear");
    s.full = 3;
    s.kda = s.sigmoids = s.choice_bias = s.say_gating = s.heads_apart = true;
    s.wide = 1;
    s.n_state = s.n_state_key = s.n_head;
    s.key_dim = s.value_dim = s.kv_rank = s.n_ff_shared = 32;
    s.nope = s.v_dim = 16;
    s.state_taps = 4;
    s.n_dense = 1;
    s.scale = 1.5f;
    return s;
}

static struct expert_shape bamba(void)
{
    struct expert_shape s = expert_shape("bamba");
    s.full = 3;
    s.mamba = true;
    s.rope_dim = 8;
    s.n_state = 4;
    s.n_state_key = 1;
    s.key_dim = 16;
    s.value_dim = 32;
    s.state_taps = 4;
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    return s;
}

static struct expert_shape jet_nemotron(void)
{
    struct expert_shape s = expert_shape("jet_nemotron");
    s.full = 3;
    s.apart = s.biases = true;
    s.n_state = s.n_state_key = 4;
    s.key_dim = 16;
    s.value_dim = 32;
    s.state_taps = 4;
    s.dynamic_conv_rank = 32;
    s.state_eps = 0.01f;
    s.n_expert = s.n_used = 0;
    s.n_dense = s.n_layer;
    return s;
}

/* Granite 4, Nemotron 3, Falcon-H1, Mamba 2, Falcon Mamba, Jamba, OLMo hybrid, Kimi Linear, Bamba, Jet-Nemotron. */
static struct expert_shape shape_of(int family)
{
    static const char *const archs[] = {"granitehybrid", "nemotron_h_moe", "falcon-h1", "mamba2", "mamba", "jamba"};
    if (family == OLMO)
        return olmo_hybrid();
    if (family == KIMI)
        return kimi_linear();
    if (family == BAMBA)
        return bamba();
    if (family == JET)
        return jet_nemotron();
    struct expert_shape s = expert_shape(archs[family]);
    s.n_layer = 3;
    s.full = 3;
    s.mamba = true;
    s.n_state = 4;
    s.n_state_key = family == 0 ? 1 : 2;
    s.key_dim = 16;
    s.value_dim = 32;
    s.state_taps = 4;
    s.neighbours = family < 2;
    s.wide = family < 2 || family == 5; /* not rotated */
    s.ungated = s.sigmoids = s.say_norm = family == 1;
    s.beside = s.no_state_norm = family == 2;
    s.kinds = family == 1 ? "ME*" : family == 3 || family == 4 ? "MMM" : NULL;
    s.ffn_norm = family == 1 ? "attn_norm" : "ffn_norm";
    s.n_ff_shared = family == 1 ? 64 : 0; /* MLX does not have Granite's shared expert as separate matrices */
    if (family >= 2 && family < 5) {
        s.n_expert = s.n_used = 0;
        s.n_dense = s.n_layer;
    }
    if (family >= 4) {
        s.n_state_key = 1;
        s.rank = 16;
        s.scan_norm = family == 4 ? SCAN_UNIT : SCAN_NORM_WEIGHTED;
    }
    if (family == 5) {
        s.neighbours = s.shares = true;
        s.step = 2;
        s.n_ff_expert = s.n_ff;
    }
    if (family == 0) {
        s.say_scales = true;
        s.embd_scale = 1.5f;
        s.residual_scale = 0.5f;
        s.attn_scale = 0.2f;
        s.logit_scale = 0.5f;
    }
    return s;
}

static struct expert_model *make(int family)
{
    const struct expert_shape s = shape_of(family);
    return expert_model_make(&s);
}

/* --- the tests --------------------------------------------------------------------------------------------------- */

static void saved(void **state)
{
    (void)state;
    for (int family = 0; family < N_FAMILIES; family++) {
        struct expert_model *m = make(family);
        assert_resumes(expert_model_write(m), m->s.n_vocab);
        expert_model_free(m);
    }
}

static void gone_back(void **state)
{
    (void)state;
    for (int family = 3; family < N_FAMILIES; family++) {
        struct expert_model *m = make(family);
        assert_goes_back(expert_model_write(m), m->s.n_vocab);
        expert_model_free(m);
    }
}

/* Quantised to eight bits by MLX, or while a folder is loaded, a model gives nearly the same answers. */
static void quantised(void **state)
{
    int32_t ids[SMALL_TEXT];
    (void)state;
    for (int family = 0; family < N_FAMILIES; family++) {
        struct expert_model *m = make(family);
        const char *file = expert_model_write(m), *mlx = fresh_path("mlx"), *folder = fresh_path("folder");
        const int n_vocab = m->s.n_vocab;
        double *want = doubles(SMALL_TEXT * n_vocab);
        struct pp_error err;
        small_text(ids, n_vocab);
        expert_model_compute(m, ids, SMALL_TEXT, want);
        assert_ok(pp_convert_to_folder(file, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
        assert_ok(pp_convert_to_folder(file, folder, &(struct pp_convert_options){0}, &err), err);
        const double by_mlx = small_likeness(mlx, NULL, want, n_vocab);
        const double loaded = small_likeness(folder, "q8_0", want, n_vocab);
        if (!(by_mlx > 0.95 && loaded > 0.95)) /* some rows choose other experts */
            fail_msg("%s: cosines of %g and %g", m->s.arch, by_mlx, loaded);
        pp_free(want);
        expert_model_free(m);
    }
}

static void merge(struct expert_model *m, const char *kind, struct folder *f, const char *module)
{
    const struct array *w = expert_find(m, 0, kind);
    assert_non_null(w);
    folder_add_merged(f, module, 4, 2, w->values, w->rows, w->cols);
}

/* A LoRA of the matrices before and after the states gives the results of merged weights. */
static void adapters(void **state)
{
    static const struct {
        int family;
        const char *in, *out, *target;
    } cases[] = {{0, "model.layers.0.mamba.in_proj", "model.layers.0.mamba.out_proj", "ssm_in"},
                 {1, "backbone.layers.0.mixer.in_proj", "backbone.layers.0.mixer.out_proj", "ssm_in"},
                 {3, "backbone.layers.0.mixer.in_proj", "backbone.layers.0.mixer.out_proj", "ssm_in"},
                 {4, "backbone.layers.0.mixer.in_proj", "backbone.layers.0.mixer.out_proj", "ssm_in"},
                 {BAMBA, "model.layers.0.mamba.in_proj", "model.layers.0.mamba.out_proj", "ssm_in"},
                 {5, "model.layers.0.mamba.in_proj", "model.layers.0.mamba.out_proj", "ssm_in"},
                 {OLMO, "model.layers.0.linear_attn.v_proj", "model.layers.0.linear_attn.o_proj", "attn_v"},
                 {KIMI, "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj", "attn_v"},
                 {JET, "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj", "attn_v"},
                 {JET, "model.layers.0.self_attn.dynamic_conv1d.kernel_generator.w2", "model.layers.0.self_attn.o_proj",
                  "ssm_taps_b"}};
    int32_t ids[SMALL_TEXT];
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct expert_model *m = make(cases[c].family);
        const int n_vocab = m->s.n_vocab;
        const char *model = expert_model_write(m);
        struct folder f = {.random = 5};
        double *want = doubles(SMALL_TEXT * n_vocab);
        char target[32], config[160];
        snprintf(target, sizeof target, "%s.weight", cases[c].target);
        snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8,"
                                        "\"target_modules\": [\"%s\", \"%s\"]}",
                 strrchr(cases[c].in, '.') + 1, strrchr(cases[c].out, '.') + 1);
        merge(m, target, &f, cases[c].in);
        merge(m, cases[c].family == KIMI ? "attn_output.weight" : "ssm_out.weight", &f, cases[c].out);
        small_text(ids, n_vocab);
        expert_model_compute(m, ids, SMALL_TEXT, want);
        assert_adapted(model, folder_write_peft(&f, config), want, n_vocab, 2e-4);
        pp_free(want);
        folder_empty(&f);
        expert_model_free(m);
    }
}

TEST_GROUP(states)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved),
        cmocka_unit_test(gone_back),
        cmocka_unit_test(quantised),
        cmocka_unit_test(adapters),
    };
    return cmocka_run_group_tests_name("states", tests, NULL, NULL);
}
