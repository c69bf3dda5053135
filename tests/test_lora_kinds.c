/* test_lora_kinds.c - adapters of all kinds, compared with the model with their changes merged into its weights
 * (adapter_folder.h). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine_int.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/pool.h"
#include "tests/adapter_folder.h"
#include "tests/adapter_run.h"
#include "tests/support.h"

static void gives_merged(const struct folder *f, const char *path, const char *model, int rank, double scale)
{
    run_gives_merged(folder_merge, f, path, model, rank, scale);
}

/* --- the tests ------------------------------------------------------------------------------------------------ */

static void lora_with_output_and_embeddings(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 1};
    (void)state;
    for (int i = 0; i < FOLDER_MODULES; i++)
        folder_add_lora(&f, &s, i, 5);
    folder_add(&f, "base_model.model.model.embed_tokens.lora_embedding_A", 5, s.n_vocab, 0, 0.2f);
    folder_add(&f, "base_model.model.model.embed_tokens.lora_embedding_B", s.n_embd, 5, 0, 0.2f);
    gives_merged(&f, folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":5,\"lora_alpha\":10}"), tiny_model(&s), 5, 2);
    folder_empty(&f);
}

/* Of two names of which one ends or begins with the other, each means its own module. */
static void targets_told_once(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 12};
    struct run r = open_run(tiny_model(&s), 1);
    struct pp_adapter *a;
    struct pp_error err;
    (void)state;
    folder_add_lora(&f, &s, 3, 3); /* attn_output */
    folder_add_lora(&f, &s, 7, 3); /* output */
    assert_ok(pp_adapter_load(r.model, folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6}"), &a,
                              &err), err);
    assert_string_equal(pp_adapter_info(a)->targets, "attn_output output");
    pp_adapter_free(a);
    close_run(&r);
    folder_empty(&f);
}

static void biases(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 2};
    int64_t n_in, n_out;
    (void)state;
    for (int i = 0; i < 3; i++) {
        folder_add_lora(&f, &s, i, 3);
        folder_sizes(&s, i, &n_in, &n_out);
        folder_add_named(&f, i, ".bias", n_out, 0, 1, 0.5f);
    }
    folder_add_lora(&f, &s, 5, 3);
    folder_add_named(&f, 5, ".lora_B.bias", s.n_ff, 0, 0, 0.5f);
    gives_merged(&f, folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6,\"bias\":\"lora_only\","
                                    "\"lora_bias\":true}"),
                 tiny_model(&s), 3, 2);
    folder_empty(&f);
}

static const char ia3_config[] = "{\"peft_type\":\"IA3\",\"target_modules\":[\"k_proj\",\"v_proj\",\"down_proj\"],"
                                 "\"feedforward_modules\":[\"down_proj\"]}";

static void make_ia3(struct folder *f, const struct tiny_shape *s)
{
    folder_add_named(f, 1, ".ia3_l", s->n_head_kv * s->head_dim, 1, 1, 0.5f);
    folder_add_named(f, 2, ".ia3_l", s->n_head_kv * s->head_dim, 1, 1, 0.5f);
    folder_add_named(f, 6, ".ia3_l", 1, s->n_ff, 1, 0.5f);
}

static void ia3(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 3};
    (void)state;
    make_ia3(&f, &s);
    gives_merged(&f, folder_write_peft(&f, ia3_config), tiny_model(&s), 0, 0);
    folder_add_named(&f, 5, ".ia3_l", 1, s.n_embd, 1, 0.5f); /* the gate has the same input, so the scales apply to it,
                                                                too */
    gives_merged(&f, folder_write_peft(&f, ia3_config), tiny_model(&s), 0, 0);
    folder_empty(&f);
}

static const char dora_config[] = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":12,\"use_dora\":true}";

static void make_dora(struct folder *f, const struct tiny_shape *s)
{
    int64_t n_in, n_out;
    for (int i = 0; i < FOLDER_MODULES; i++) {
        folder_add_lora(f, s, i, 4);
        folder_sizes(s, i, &n_in, &n_out);
        folder_add_named(f, i, ".lora_magnitude_vector", n_out, 0, 1, 0.3f);
    }
}

static void dora(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 4};
    struct pp_adapter_file *file;
    struct pp_error err;
    (void)state;
    make_dora(&f, &s);
    gives_merged(&f, folder_write_peft(&f, dora_config), tiny_model(&s), 4, 3);
    pp_free(f.parts[--f.n].data);
    assert_int_equal(pp_adapter_file_open(folder_write_peft(&f, dora_config), &file, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "output.weight"));
    folder_empty(&f);
}

static struct pp_seq *seq_under(const struct run *r, const struct pp_adapter *a, float strength)
{
    struct pp_seq *s;
    struct pp_error err;
    assert_ok(pp_seq_new(r->engine, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, &(struct pp_adapter_use){a, strength}, 1, &err), err);
    return s;
}

/* The factors of a DoRA are those of its formula, to the bit. */
static void assert_gains(const struct pp_seq *s)
{
    const struct pp_adapter *a = s->adapters.use[0].adapter;
    const float strength = s->adapters.use[0].scale;
    for (int t = 0; t < a->n_targets; t++) {
        const float *dora = a->targets[t].dora, *gain = s->adapters.gains[0] + a->targets[t].gains;
        const int64_t n = dora ? pp_plan_target(&a->model->plan, t).w->ne[1] : 0;
        for (int64_t i = 0; i < n; i++) {
            const float norm = 1.0f + strength * (dora[n + i] + strength * dora[2 * n + i]);
            assert_true(gain[i] == (1.0f + strength * dora[i]) / sqrtf(norm > 1e-12f ? norm : 1e-12f));
        }
    }
    const struct pp_lora_embedding *e = &a->embedding;
    for (int64_t i = 0; i < e->n_gains; i++) {
        const float norm = 1.0f + strength * (e->dora[e->n_gains + i] + strength * e->dora[2 * e->n_gains + i]);
        assert_true(s->adapters.gains[0][e->gains + (size_t)i] ==
                    (1.0f + strength * e->dora[i]) / sqrtf(norm > 1e-12f ? norm : 1e-12f));
    }
}

/* DoRA's factors are computed when the adapter is switched on, once for all sequences that have it on at one strength,
 * and freed with the last of those. A pass computes none, as it would have to allocate. */
static void dora_gains(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_Q8_0);
    struct folder f = {.random = 17};
    struct run r = open_run(tiny_model(&s), 2);
    struct pp_error err;
    struct pp_adapter *a, *same, *lora;
    struct pp_seq *fork;
    struct pp_row row = {.parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    (void)state;
    make_dora(&f, &s);
    folder_add_embedding_dora(&f, &s);
    const char *path = folder_write_peft(&f, dora_config);
    assert_ok(pp_adapter_load(r.model, path, &a, &err), err);
    assert_ok(pp_adapter_load(r.model, path, &same, &err), err);
    assert_int_equal(a->embedding.n_gains, s.n_embd);
    folder_empty(&f);
    folder_add_lora(&f, &s, 2, 4);
    assert_ok(pp_adapter_load(r.model, folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4}"), &lora, &err), err);
    struct pp_seq *one = seq_under(&r, a, 0.6f), *two = seq_under(&r, lora, 1);
    assert_int_equal(pp_gains_n(r.engine->gains), 1);
    assert_gains(one);
    assert_null(two->adapters.gains[0]);
    row.seq = one;
    for (uint64_t i = 0, before = 0; i < 6; i++) {
        row.token = (int32_t)(3 + i);
        assert_ok(pp_step(r.engine, &row, 1, NULL, &err), err);
        assert_true(i < 2 || pp_mem_count() == before);
        before = pp_mem_count();
    }
    assert_ok(pp_seq_set_adapters(two, &(struct pp_adapter_use){a, 0.6f}, 1, &err), err);
    assert_ok(pp_seq_fork(one, 2, &fork, &err), err);
    assert_int_equal(pp_gains_n(r.engine->gains), 1);
    assert_ptr_equal(one->adapters.gains[0], two->adapters.gains[0]);
    assert_ptr_equal(pp_seq_adapters_at(fork, 1)->gains[0], two->adapters.gains[0]);
    assert_ok(pp_seq_set_adapters(two, &(struct pp_adapter_use){a, -0.7f}, 1, &err), err);
    assert_int_equal(pp_gains_n(r.engine->gains), 2);
    assert_gains(two);
    pp_seq_free(one);
    assert_int_equal(pp_gains_n(r.engine->gains), 2); /* the fork has it on */
    pp_seq_free(fork);
    assert_int_equal(pp_gains_n(r.engine->gains), 1);
    assert_ok(pp_seq_set_adapters(two, NULL, 0, &err), err);
    assert_int_equal(pp_gains_n(r.engine->gains), 0);
    const struct pp_adapter_use both[] = {{a, 0.6f}, {same, 0.6f}};
    assert_ok(pp_seq_set_adapters(two, both, 2, &err), err);
    assert_int_equal(pp_gains_n(r.engine->gains), 2);
    pp_seq_free(two);
    assert_int_equal(pp_gains_n(r.engine->gains), 0);
    pp_adapter_free(a);
    pp_adapter_free(same);
    pp_adapter_free(lora);
    close_run(&r);
    folder_empty(&f);
}

/* An AdaLoRA of all modules, with `rank` values of E left for each after training. */
static void make_adalora(struct folder *f, const struct tiny_shape *s, int rank)
{
    int64_t n_in, n_out;
    for (int i = 0; i < FOLDER_MODULES; i++) {
        folder_sizes(s, i, &n_in, &n_out);
        folder_add_named(f, i, ".lora_A", rank, n_in, 0, 0.3f);
        folder_add_named(f, i, ".lora_E", rank, 1, 0, 0.8f);
        folder_add_named(f, i, ".lora_B", n_out, rank, 0, 0.3f);
    }
}

/* The scale is divided by the initial rank, or as the file says; rows removed by the rank mask are absent or have no
 * effect. */
static void adalora(void **state)
{
    static const char config[] =
        "{\"peft_type\":\"ADALORA\",\"r\":8,\"init_r\":6,\"target_r\":4,\"lora_alpha\":9,\"rank_pattern\":{"
        "\"model.layers.0.self_attn.q_proj.lora_E\":[true,false,true,true,true,false],"
        "\"model.layers.0.mlp.up_proj.lora_E\":[true,true,false,false],"
        "\"model.layers.1.mlp.up_proj.lora_E\":[false,false]}}";
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 21};
    struct pp_error err;
    const char *model = tiny_model(&s);
    (void)state;
    make_adalora(&f, &s, 4);
    folder_add(&f, "base_model.model.model.layers.1.mlp.up_proj.lora_A", 0, s.n_embd, 0, 0); /* all rows masked */
    folder_add(&f, "base_model.model.model.layers.1.mlp.up_proj.lora_E", 0, 1, 0, 0);
    folder_add(&f, "base_model.model.model.layers.1.mlp.up_proj.lora_B", 0, s.n_ff, 0, 0);
    const char *path = folder_write_peft(&f, config);
    float *masked = (float *)(uintptr_t)folder_get(&f, "base_model.model.model.layers.0.mlp.up_proj.lora_E");
    masked[2] = masked[3] = 0;
    gives_merged(&f, path, model, 4, 9 / (6 + 1e-5));
    const char *gguf = fresh_path("adapter.gguf"); /* converted to GGUF, it is an ordinary LoRA */
    assert_ok(pp_convert_to_gguf(path, gguf, &(struct pp_convert_options){.base = model}, &err), err);
    gives_merged(&f, gguf, model, 4, 9 / (6 + 1e-5));
    for (int i = 0; i < 3; i++)
        pp_free(f.parts[--f.n].data);
    for (int i = 0; i < FOLDER_MODULES; i++)
        folder_add_named(&f, i, ".ranknum", 1, 0, 5, 0);
    gives_merged(&f, folder_write_peft(&f, "{\"peft_type\":\"ADALORA\",\"lora_alpha\":9}"), model, 4, 9 / (5 + 1e-5));
    folder_empty(&f);
}

/* All modules as LoHa of rank 3. */
static void make_loha(struct folder *f, const struct tiny_shape *s)
{
    int64_t n_in, n_out;
    for (int i = 0; i < FOLDER_MODULES; i++) {
        folder_sizes(s, i, &n_in, &n_out);
        folder_add_named(f, i, ".hada_w1_a", n_out, 3, 0, 0.5f);
        folder_add_named(f, i, ".hada_w1_b", 3, n_in, 0, 0.5f);
        folder_add_named(f, i, ".hada_w2_a", n_out, 3, 0, 0.5f);
        folder_add_named(f, i, ".hada_w2_b", 3, n_in, 0, 0.5f);
    }
}

static void loha(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 23};
    (void)state;
    make_loha(&f, &s);
    gives_merged(&f, folder_write_peft(&f, "{\"peft_type\":\"LOHA\",\"r\":3,\"alpha\":6}"), tiny_model(&s), 3, 2);
    folder_empty(&f);
}

/* Inspecting a file without multiplying factors out gives the same description as loading it. */
static void looks_alike(const char *path, bool idle)
{
    struct pp_adapter_file *whole, *look;
    struct pp_error err;
    assert_ok(pp_adapter_file_open(path, &whole, &err), err);
    assert_ok(pp_adapter_file_peek(path, &look, &err), err);
    assert_int_equal(pp_adapter_file_n(look), pp_adapter_file_n(whole));
    for (size_t i = 0; i < pp_adapter_file_n(look); i++) {
        const struct pp_adapter_target *a = pp_adapter_file_at(look, i), *b = pp_adapter_file_at(whole, i);
        assert_string_equal(a->name, b->name);
        assert_true(a->rank == b->rank && a->n_in == b->n_in && a->n_out == b->n_out && a->scale == b->scale);
        assert_true(a->a.size == sizeof(float) && a->b.size == sizeof(float));
        assert_true(b->a.size == (size_t)(b->rank * b->n_in) * sizeof(float));
    }
    assert_int_equal(pp_adapter_file_idle(whole), idle);
    assert_int_equal(pp_adapter_file_idle(look), idle);
    pp_adapter_file_close(whole);
    pp_adapter_file_close(look);
}

/* Which of the factors must be zero so that the whole change is zero. */
static void looked_at(void **state)
{
    static const struct {
        const char *config, *names[4];
        int64_t rows[4], cols[4];
        int zero_rows[4]; /* rows of each factor that are zero, from the first on */
        bool idle;
    } cases[] = {
        {"{\"peft_type\":\"LOHA\",\"r\":2}", {".hada_w1_a", ".hada_w1_b", ".hada_w2_a", ".hada_w2_b"},
         {64, 2, 64, 2}, {2, 64, 2, 64}, {0, 0, 0, 0}, false},
        {"{\"peft_type\":\"LOHA\",\"r\":2}", {".hada_w1_a", ".hada_w1_b", ".hada_w2_a", ".hada_w2_b"},
         {64, 2, 64, 2}, {2, 64, 2, 64}, {0, 0, 64, 0}, true},
        {"{\"peft_type\":\"LOHA\",\"r\":2}", {".hada_w1_a", ".hada_w1_b", ".hada_w2_a", ".hada_w2_b"},
         {64, 2, 64, 2}, {2, 64, 2, 64}, {63, 0, 63, 0}, false},
        {"{\"peft_type\":\"LOHA\",\"r\":2}", {".hada_w1_a", ".hada_w1_b", ".hada_w2_a", ".hada_w2_b"},
         {64, 2, 64, 2}, {2, 64, 2, 64}, {0, 2, 0, 0}, true},
        {"{\"peft_type\":\"LOKR\"}", {".lokr_w1", ".lokr_w2_a", ".lokr_w2_b"},
         {4, 16, 3}, {8, 3, 8}, {3, 15, 2}, false},
        {"{\"peft_type\":\"LOKR\"}", {".lokr_w1", ".lokr_w2_a", ".lokr_w2_b"},
         {4, 16, 3}, {8, 3, 8}, {0, 16, 0}, true},
        {"{\"peft_type\":\"LOKR\"}", {".lokr_w1", ".lokr_w2_a", ".lokr_w2_b"},
         {4, 16, 3}, {8, 3, 8}, {4, 0, 0}, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f = {.random = 25};
        for (int k = 0; k < 4 && cases[i].names[k]; k++) {
            folder_add_named(&f, 0, cases[i].names[k], cases[i].rows[k], cases[i].cols[k], 0, 0.5f);
            for (int64_t v = 0; v < cases[i].zero_rows[k] * cases[i].cols[k]; v++)
                f.parts[k].data[v] = 0;
        }
        looks_alike(folder_write_peft(&f, cases[i].config), cases[i].idle);
        folder_empty(&f);
    }
}

/* All modules as LoKr; each of its two matrices is whole, or a product of two. */
static void lokr(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 24};
    int64_t n_in, n_out;
    (void)state;
    for (int i = 0; i < FOLDER_MODULES; i++) {
        const bool small = i % 2 == 0; /* whether the first of the two factors is the small one */
        folder_sizes(&s, i, &n_in, &n_out);
        const int64_t rows[] = {small ? 4 : n_out / 2, small ? n_out / 4 : 2};
        const int64_t cols[] = {small ? 2 : n_in / 4, small ? n_in / 2 : 4};
        for (int k = 0; k < 2; k++) {
            char left[16], right[16];
            snprintf(left, sizeof left, ".lokr_w%d_a", k + 1);
            snprintf(right, sizeof right, ".lokr_w%d_b", k + 1);
            if ((k == 0) == small && i != 4) { /* in module 4 both are products */
                left[8] = 0;
                folder_add_named(&f, i, left, rows[k], cols[k], 0, 0.5f);
                continue;
            }
            folder_add_named(&f, i, left, rows[k], 3, 0, 0.5f);
            folder_add_named(&f, i, right, 3, cols[k], 0, 0.5f);
        }
    }
    gives_merged(&f, folder_write_peft(&f, "{\"peft_type\":\"LOKR\",\"r\":4,\"alpha\":2}"), tiny_model(&s), 3, 0.5);
    folder_empty(&f);
}

static void refuses_file(const struct folder *f, const char *config, enum pp_code code, const char *words)
{
    struct pp_adapter_file *file;
    struct pp_error err;
    assert_int_equal(pp_adapter_file_open(folder_write_peft(f, config), &file, &err), code);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void adalora_refused(void **state)
{
#define ADALORA "{\"peft_type\":\"ADALORA\""
    static const char q_mask[] = ",\"rank_pattern\":{\"model.layers.0.self_attn.q_proj.lora_E\":";
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 22};
    char config[200];
    (void)state;
    make_adalora(&f, &s, 4);
    refuses_file(&f, "{\"peft_type\":\"LORA\",\"r\":4}", PP_ERR_UNSUPPORTED, "q_proj.lora_E does not belong");
    refuses_file(&f, ADALORA ",\"init_r\":0}", PP_ERR_FORMAT, "init_r");
    refuses_file(&f, ADALORA ",\"init_r\":\"x\"}", PP_ERR_FORMAT, "init_r");
    snprintf(config, sizeof config, ADALORA "%s[true,false,true]}}", q_mask);
    refuses_file(&f, config, PP_ERR_FORMAT, "rank_pattern");
    snprintf(config, sizeof config, ADALORA "%s[1,1,1,1]}}", q_mask);
    refuses_file(&f, config, PP_ERR_FORMAT, "q_proj.lora_A has 4 rows");
    snprintf(config, sizeof config, ADALORA "%s4}}", q_mask);
    refuses_file(&f, config, PP_ERR_FORMAT, "rank_pattern");
    refuses_file(&f, ADALORA ",\"rank_pattern\":[[true]]}", PP_ERR_FORMAT, "rank_pattern is a list");
    snprintf(f.parts[1].name, sizeof f.parts[1].name, "base_model.model.model.layers.0.self_attn.v_proj.other");
    refuses_file(&f, ADALORA "}", PP_ERR_FORMAT,
                 "lora_E with a value for each of the 4 rows of tensor base_model.model.model.layers.0.self_attn.q");
    folder_empty(&f);
    folder_add_named(&f, 0, ".lora_A", 3, s.n_embd, 0, 0.3f);
    folder_add_named(&f, 0, ".lora_E", 3, 1, 0, 0.8f);
    folder_add_named(&f, 0, ".lora_B", s.n_embd, 3, 0, 0.3f);
    folder_add_named(&f, 0, ".ranknum", 2, 0, 5, 0);
    refuses_file(&f, ADALORA "}", PP_ERR_FORMAT, "ranknum");
    f.parts[3].rows = 1;
    f.parts[1].data[1] = NAN;
    struct run r = open_run(tiny_model(&s), 1);
    struct pp_adapter *a;
    struct pp_error err;
    assert_int_equal(pp_adapter_load(r.model, folder_write_peft(&f, ADALORA "}"), &a, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "NaN or infinity"));
    close_run(&r);
    folder_empty(&f);
#undef ADALORA
}

/* Tensors of another kind that are missing, superfluous or too large are reported by name; and so is what to do with
 * unsupported kinds. */
static void other_kinds_refused(void **state)
{
    static const char loha_config[] = "{\"peft_type\":\"LOHA\",\"r\":3}", lokr_config[] = "{\"peft_type\":\"LOKR\"}";
    static const char *const advice[][2] = {{"VERA", "save_as_lora"}, {"OFT", "merge_and_unload"},
                                            {"PREFIX_TUNING", "train a LoRA"}, {"PROMPT_TUNING", "train a LoRA"}};
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 25};
    char config[64];
    (void)state;
    make_loha(&f, &s);
    for (int i = 0; i < 4; i++) {
        snprintf(config, sizeof config, "{\"peft_type\":\"%s\"}", advice[i][0]);
        refuses_file(&f, config, PP_ERR_UNSUPPORTED, advice[i][0]);
        refuses_file(&f, config, PP_ERR_UNSUPPORTED, advice[i][1]);
    }
    refuses_file(&f, "{}", PP_ERR_UNSUPPORTED, "does not name the kind");
    refuses_file(&f, "{\"peft_type\":\"LORA\"}", PP_ERR_UNSUPPORTED, "q_proj.hada_w1_a does not belong");
    refuses_file(&f, "{\"peft_type\":\"LOHA\",\"r\":4}", PP_ERR_FORMAT, "rank");
    refuses_file(&f, "{\"peft_type\":\"LOHA\",\"r\":3,\"alpha\":\"x\"}", PP_ERR_FORMAT, "alpha");
    f.parts[2].rows--;
    refuses_file(&f, loha_config, PP_ERR_FORMAT, "q_proj.hada_w1_a belongs to differ in size");
    f.parts[2].rows++;
    folder_add_named(&f, 0, ".hada_t2", 3, 3, 0, 0.5f); /* of a convolution */
    refuses_file(&f, loha_config, PP_ERR_UNSUPPORTED, "hada_t2");
    folder_empty(&f);
    folder_add_named(&f, 0, ".hada_w1_b", 3, s.n_embd, 0, 0.5f);
    refuses_file(&f, loha_config, PP_ERR_FORMAT, "q_proj.hada_w1_b lacks its counterpart");
    folder_empty(&f);
    folder_add_named(&f, 0, ".hada_w1_a", s.n_embd, 3, 0, 0.5f);
    folder_add_named(&f, 0, ".hada_w1_b", 3, s.n_embd, 0, 0.5f);
    refuses_file(&f, loha_config, PP_ERR_FORMAT, "lacks hada_w2_a or hada_w2_b");
    folder_empty(&f);
    folder_add_named(&f, 0, ".lokr_w1", 16, 16, 0, 0.5f);
    folder_add_named(&f, 0, ".lokr_w2_a", s.n_embd / 16, 17, 0, 0.5f);
    folder_add_named(&f, 0, ".lokr_w2_b", 17, s.n_embd / 16, 0, 0.5f);
    refuses_file(&f, lokr_config, PP_ERR_UNSUPPORTED, "has rank 272; at most 256 is supported. PEFT can approximate");
    folder_empty(&f);
    folder_add(&f, "base_model.model.model.embed_tokens.trainable_tokens_delta", 2, s.n_embd, 0, 1);
    refuses_file(&f, "{\"peft_type\":\"TRAINABLE_TOKENS\",\"token_indices\":[1]}", PP_ERR_FORMAT,
                 "token_indices does not name as many");
    refuses_file(&f, "{\"peft_type\":\"TRAINABLE_TOKENS\",\"token_indices\":[1,1]}", PP_ERR_FORMAT,
                 "token_indices is not a list of distinct tokens");
    folder_add(&f, "base_model.model.model.norm.lora_A.weight", 2, s.n_embd, 0, 1);
    refuses_file(&f, "{\"peft_type\":\"TRAINABLE_TOKENS\",\"token_indices\":[1,2]}", PP_ERR_UNSUPPORTED,
                 "norm.lora_A.weight does not belong in an adapter of the kind tokens");
    refuses_file(&f, "{\"peft_type\":\"LN_TUNING\"}", PP_ERR_UNSUPPORTED, "of the kind LN tuning");
    folder_empty(&f);
}

static const char replaced_config[] = "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6,"
                                      "\"modules_to_save\":[\"lm_head\",\"embed_tokens\"]}";

/* Adapters that replace matrices stored in either orientation, one with a bias and one with a LoRA as well, the output,
 * the embeddings, and norms. */
static void make_replaced(struct folder *f, const struct tiny_shape *s)
{
    static const int whole[] = {0, 2, 6, 7};
    int64_t n_in, n_out;
    for (int i = 0; i < 4; i++) {
        folder_sizes(s, whole[i], &n_in, &n_out);
        folder_add_named(f, whole[i], ".weight", n_out, n_in, 0, 0.1f);
    }
    folder_sizes(s, 0, &n_in, &n_out);
    folder_add_named(f, 0, ".bias", n_out, 0, 0, 0.5f);
    folder_add_lora(f, s, 2, 3);
    folder_add_lora(f, s, 4, 3);
    folder_add(f, "base_model.model.model.embed_tokens.weight", s->n_vocab, s->n_embd, 0, 1);
    folder_add(f, "base_model.model.model.norm.weight", s->n_embd, 0, 1, 0.5f);
    folder_add(f, "base_model.model.model.layers.0.input_layernorm.weight", s->n_embd, 0, 1, 0.5f);
    folder_add(f, "base_model.model.model.layers.1.post_attention_layernorm.weight", s->n_embd, 0, 1, 0.5f);
}

static void replaced(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 11};
    (void)state;
    make_replaced(&f, &s);
    gives_merged(&f, folder_write_peft(&f, replaced_config), tiny_model(&s), 3, 2);
    folder_empty(&f);
}

/* At strength 1 nothing of the model's own tensors may influence the result, not even in one bit. Also with the tensor
 * names of older versions of PEFT, and with copies of the model's tensors in the file. */
static void replaced_whole(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 12};
    struct pp_adapter *a;
    struct pp_error err;
    (void)state;
    const char *model = tiny_model(&s);
    folder_add_named(&f, 3, ".weight", s.n_embd, s.n_head * s.head_dim, 0, 0.1f);
    folder_add_named(&f, 7, ".weight", s.n_vocab, s.n_embd, 0, 0.1f);
    folder_add(&f, "base_model.model.model.norm.weight", s.n_embd, 0, 1, 0.5f);
    folder_add(&f, "base_model.model.model.embed_tokens.weight", s.n_vocab, s.n_embd, 0, 1);
    struct run merged = open_run(folder_merge(&f, model, 0, 0, 1), 2), base = open_run(model, 2);
    snprintf(f.parts[1].name, sizeof f.parts[1].name, "base_model.model.lm_head.modules_to_save.default.weight");
    folder_add(&f, "base_model.model.lm_head.original_module.weight", s.n_vocab, s.n_embd, 0, 1);
    assert_ok(pp_adapter_load(base.model, folder_write_peft(&f, replaced_config), &a, &err), err);
    float *x = adapter_logits(&base, &(struct pp_adapter_use){a, 1}, 1), *y = adapter_logits(&merged, NULL, 0);
    assert_memory_equal(x, y, (size_t)(TOKENS * s.n_vocab) * sizeof *x);
    pp_free(x);
    pp_free(y);
    pp_adapter_free(a);
    close_run(&base);
    close_run(&merged);
    folder_empty(&f);
}

/* With quantised weights a replaced matrix is held in Q8_0: close to what is stored. */
static void replaced_quantized(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_Q4_K);
    struct folder f = {.random = 13};
    struct pp_adapter *a;
    struct pp_error err;
    struct pp_seq *seq;
    (void)state;
    struct run r = open_run(tiny_model(&s), 2);
    const int64_t n = s.n_embd;
    folder_add_named(&f, 7, ".weight", s.n_vocab, n, 0, 0.1f);
    assert_ok(pp_adapter_load(r.model, folder_write_peft(&f, replaced_config), &a, &err), err);
    assert_ok(pp_seq_new(r.engine, &seq, &err), err);
    assert_ok(pp_seq_set_adapters(seq, &(struct pp_adapter_use){a, 1}, 1, &err), err);
    float *hidden = pp_malloc((size_t)n * sizeof *hidden);
    struct pp_row row = {.seq = seq, .token = 5, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_HIDDEN};
    assert_ok(pp_step(r.engine, &row, 1, NULL, &err), err);
    memcpy(hidden, pp_step_output(r.engine, 0), (size_t)n * sizeof *hidden);
    pp_seq_truncate(seq, 0);
    row.out = PP_OUT_LOGITS;
    assert_ok(pp_step(r.engine, &row, 1, NULL, &err), err);
    double off = 0, size = 0;
    for (int64_t t = 0; t < s.n_vocab; t++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)f.parts[0].data[t * n + i] * (double)hidden[i];
        off += pow(sum - (double)pp_step_output(r.engine, 0)[t], 2);
        size += sum * sum;
    }
    assert_true(size > 0);
    if (off > 0.02 * 0.02 * size)
        fail_msg("logits are off by %g %%", 100 * sqrt(off / size));
    pp_free(hidden);
    pp_seq_free(seq);
    pp_adapter_free(a);
    close_run(&r);
    folder_empty(&f);
}

static void refuses(const struct run *r, const struct folder *f, enum pp_code code, const char *words)
{
    struct pp_adapter *a;
    struct pp_error err;
    assert_int_equal(pp_adapter_load(r->model, folder_write_peft(f, replaced_config), &a, &err), code);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void replaced_shapes(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 14};
    struct run r = open_run(tiny_model(&s), 1);
    (void)state;
    folder_add(&f, "base_model.model.model.embed_tokens.weight", s.n_vocab + 1, s.n_embd, 0, 1);
    refuses(&r, &f, PP_ERR_MISMATCH, "vocabulary");
    folder_empty(&f);
    folder_add_named(&f, 1, ".weight", 8, s.n_embd, 0, 1);
    refuses(&r, &f, PP_ERR_MISMATCH, "blk.0.attn_k.weight is for a matrix of 8 x ");
    folder_empty(&f);
    folder_add(&f, "base_model.model.model.norm.weight", s.n_embd / 2, 0, 1, 0.5f);
    refuses(&r, &f, PP_ERR_MISMATCH, "output_norm.weight has 128 values");
    folder_empty(&f);
    folder_add(&f, "base_model.model.model.layers.7.input_layernorm.weight", s.n_embd, 0, 1, 0.5f);
    refuses(&r, &f, PP_ERR_MISMATCH, "blk.7.attn_norm.weight");
    folder_empty(&f);
    folder_add_named(&f, 1, ".weight", s.n_embd, 0, 0, 1);
    refuses(&r, &f, PP_ERR_MISMATCH, "blk.0.attn_k.weight, which");
    folder_empty(&f);
    folder_add(&f, "base_model.model.score.weight", 2, s.n_embd, 0, 1);
    refuses(&r, &f, PP_ERR_UNSUPPORTED, "family");
    folder_empty(&f);
    folder_add_lora(&f, &s, 0, 3);
    folder_add(&f, "base_model.model.score.weight", 2, s.n_embd, 0, 1);
    refuses(&r, &f, PP_ERR_UNSUPPORTED, "base_model.model.score.weight");
    folder_empty(&f);
    float *bad = (float *)(uintptr_t)folder_add(&f, "base_model.model.model.norm.weight", s.n_embd, 0, 1, 0.5f);
    bad[3] = NAN;
    refuses(&r, &f, PP_ERR_FORMAT, "NaN or infinity");
    folder_empty(&f);
    close_run(&r);
}

/* Rows of one batch, few and many, each with another set, have the bits that they have alone; also with a set of
 * several kinds. */
static void mixed_batch(uint32_t type)
{
    enum { KINDS = 8, FILES = 4, PER_KIND = 3 };
    const struct tiny_shape s = biased_shape(type);
    struct folder folders[FILES] = {{.random = 5}, {.random = 6}, {.random = 7}, {.random = 15}};
    struct pp_adapter *a[FILES];
    struct pp_error err;
    struct run r = open_run(tiny_model(&s), 2);
    const int64_t n_vocab = pp_model_info(r.model)->n_vocab;
    folder_add_lora(&folders[0], &s, 0, 16);
    folder_add_lora(&folders[0], &s, 6, 16);
    make_ia3(&folders[1], &s);
    make_dora(&folders[2], &s);
    folder_add_embedding_dora(&folders[2], &s);
    make_replaced(&folders[3], &s);
    const char *configs[] = {"{\"peft_type\":\"LORA\",\"r\":16,\"lora_alpha\":16}", ia3_config, dora_config,
                             replaced_config};
    for (int i = 0; i < FILES; i++)
        assert_ok(pp_adapter_load(r.model, folder_write_peft(&folders[i], configs[i]), &a[i], &err), err);
    const struct pp_adapter_use uses[KINDS][FILES] = {
        {{NULL, 0}}, {{a[0], 0.7f}}, {{a[1], 0.8f}}, {{a[2], 1.2f}},
        {{a[0], 0.5f}, {a[1], 0.6f}, {a[2], 0.9f}}, {{a[3], 1}}, {{a[3], 0.4f}},
        {{a[0], 0.5f}, {a[3], 0.3f}, {a[1], 0.6f}, {a[2], 0.9f}}};
    const int n_uses[KINDS] = {0, 1, 1, 1, 3, 1, 1, 4};
    for (int per_kind = 1; per_kind <= PER_KIND; per_kind++) { /* even with one row of each kind there are more than
                                                                  four kinds */
        struct pp_seq *alone[KINDS], *together[KINDS];
        float *expected[KINDS * PER_KIND];
        struct pp_row rows[KINDS * PER_KIND];
        for (int i = 0; i < KINDS; i++) {
            assert_ok(pp_seq_new(r.engine, &alone[i], &err), err);
            assert_ok(pp_seq_new(r.engine, &together[i], &err), err);
            assert_ok(pp_seq_set_adapters(alone[i], uses[i], n_uses[i], &err), err);
            assert_ok(pp_seq_set_adapters(together[i], uses[i], n_uses[i], &err), err);
            for (int k = 0; k < per_kind; k++) {
                struct pp_row row = {.seq = alone[i], .token = 5 + 3 * k, .parent = PP_PARENT_PREVIOUS,
                                     .out = PP_OUT_LOGITS};
                assert_ok(pp_step(r.engine, &row, 1, NULL, &err), err);
                float *to = expected[i * per_kind + k] = pp_malloc((size_t)n_vocab * sizeof *to);
                memcpy(to, pp_step_output(r.engine, 0), (size_t)n_vocab * sizeof *to);
                row.seq = together[i];
                rows[i * per_kind + k] = row;
            }
        }
        assert_ok(pp_step(r.engine, rows, KINDS * per_kind, NULL, &err), err);
        for (int i = 0; i < KINDS * per_kind; i++) {
            assert_memory_equal(pp_step_output(r.engine, i), expected[i], (size_t)n_vocab * sizeof(float));
            if (i >= per_kind)
                assert_memory_not_equal(expected[i], expected[i % per_kind], (size_t)n_vocab * sizeof(float));
        }
        for (int i = 0; i < KINDS * per_kind; i++)
            pp_free(expected[i]);
        for (int i = 0; i < KINDS; i++) {
            pp_seq_free(alone[i]);
            pp_seq_free(together[i]);
        }
    }
    /* two and three rows: each thread prepares the inputs by itself */
    struct pp_seq *pair[2];
    struct pp_row rows[2];
    float *expected = NULL;
    for (int i = 0; i < 2; i++) {
        assert_ok(pp_seq_new(r.engine, &pair[i], &err), err);
        assert_ok(pp_seq_set_adapters(pair[i], uses[i ? 4 : 0], n_uses[i ? 4 : 0], &err), err);
        rows[i] = (struct pp_row){.seq = pair[i], .token = 9, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    }
    assert_ok(pp_step(r.engine, rows, 2, NULL, &err), err);
    expected = pp_malloc(2 * (size_t)n_vocab * sizeof *expected);
    for (int i = 0; i < 2; i++) {
        memcpy(expected + i * n_vocab, pp_step_output(r.engine, i), (size_t)n_vocab * sizeof *expected);
        pp_seq_truncate(pair[i], 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_ok(pp_step(r.engine, &rows[i], 1, NULL, &err), err);
        assert_memory_equal(pp_step_output(r.engine, 0), expected + i * n_vocab, (size_t)n_vocab * sizeof *expected);
        pp_seq_free(pair[i]);
    }
    pp_free(expected);
    for (int i = 0; i < FILES; i++) {
        pp_adapter_free(a[i]);
        folder_empty(&folders[i]);
    }
    close_run(&r);
}

static void mixed_batches(void **state)
{
    (void)state;
    mixed_batch(PP_TYPE_F32);
    mixed_batch(PP_TYPE_BF16);
    mixed_batch(PP_TYPE_Q4_0);
    mixed_batch(PP_TYPE_Q4_K);
}

/* Biases, IA3 of shared and of own inputs, DoRA, replaced tensors, and all of them together give the same bits on all
 * kernels, whatever the number of threads and rows; and an answer under them allocates nothing. */
static void on_all_kernels(uint32_t type)
{
    enum { FILES = 4, SETS = 5, ROWS = 9 };
    static const int threads[] = {1, 2, 3, 8}, row_counts[] = {1, 2, 4, 5, 9};
    const struct tiny_shape s = biased_shape(type);
    struct folder folders[FILES] = {{.random = 41}, {.random = 42}, {.random = 43}, {.random = 44}};
    const char *configs[FILES] = {"{\"peft_type\":\"LORA\",\"r\":5,\"lora_alpha\":5,\"bias\":\"all\"}", ia3_config,
                                  dora_config, replaced_config};
    struct pp_adapter *a[FILES];
    struct pp_model *m;
    struct pp_error err;
    float *expected[SETS] = {NULL};
    assert_ok(pp_model_open(tiny_model(&s), &m, &err), err);
    folder_add_lora(&folders[0], &s, 0, 5);
    folder_add_lora(&folders[0], &s, 6, 5);
    folder_add_named(&folders[0], 0, ".bias", s.n_head * s.head_dim, 0, 0, 0.5f);
    make_ia3(&folders[1], &s);
    folder_add_named(&folders[1], 5, ".ia3_l", 1, s.n_embd, 1, 0.5f);
    make_dora(&folders[2], &s);
    folder_add_embedding_dora(&folders[2], &s);
    make_replaced(&folders[3], &s);
    for (int i = 0; i < FILES; i++)
        assert_ok(pp_adapter_load(m, folder_write_peft(&folders[i], configs[i]), &a[i], &err), err);
    const struct pp_adapter_use uses[SETS][FILES] = {
        {{a[0], 0.7f}}, {{a[1], 0.8f}}, {{a[2], 1.2f}}, {{a[3], 0.6f}},
        {{a[3], 0.3f}, {a[0], 0.5f}, {a[2], 0.9f}, {a[1], 0.4f}}};
    const int64_t n = ROWS * pp_model_info(m)->n_vocab;
    for (int isa = PP_ISA_COUNT - 1; isa >= 0; isa--)
        for (int t = 0; t < 4 && pp_isa_runs((enum pp_isa)isa); t++) {
            const struct pp_engine_options opt = {.n_threads = threads[t], .kernels = pp_isa_name((enum pp_isa)isa),
                                                  .kv_memory = 16u << 20, .activations = PP_ACT_PAIR};
            struct pp_engine *e;
            assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
            for (int set = 0; set < SETS; set++) {
                const int rows = row_counts[(t + set + isa) % 5];
                struct pp_seq *seq;
                uint64_t allocations = 0;
                float *got = pp_malloc((size_t)n * sizeof *got);
                assert_ok(pp_seq_new(e, &seq, &err), err);
                assert_ok(pp_seq_set_adapters(seq, uses[set], set == SETS - 1 ? FILES : 1, &err), err);
                for (int at = 0; at < ROWS; at += rows) {
                    struct pp_row batch[ROWS];
                    const int k = ROWS - at < rows ? ROWS - at : rows;
                    for (int i = 0; i < k; i++)
                        batch[i] = (struct pp_row){.seq = seq, .token = 5 + 3 * (at + i),
                                                   .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
                    if (at == rows)
                        allocations = pp_mem_count();
                    assert_ok(pp_step(e, batch, k, NULL, &err), err);
                    for (int i = 0; i < k; i++)
                        memcpy(got + (at + i) * n / ROWS, pp_step_output(e, i), (size_t)(n / ROWS) * sizeof *got);
                }
                if (rows < ROWS)
                    assert_int_equal(pp_mem_count(), allocations);
                if (!expected[set]) {
                    expected[set] = got;
                } else {
                    if (memcmp(expected[set], got, (size_t)n * sizeof *got) != 0)
                        fail_msg("%s, set %d: other bits with %s kernels, %d threads and %d rows",
                                 pp_type_info(type)->name, set, pp_isa_name((enum pp_isa)isa), threads[t], rows);
                    pp_free(got);
                }
                pp_seq_free(seq);
            }
            pp_engine_free(e);
        }
    for (int i = 0; i < SETS; i++) {
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(expected[i], expected[k], sizeof(float));
    }
    for (int i = 0; i < SETS; i++)
        pp_free(expected[i]);
    for (int i = 0; i < FILES; i++) {
        pp_adapter_free(a[i]);
        folder_empty(&folders[i]);
    }
    pp_model_close(m);
}

static void all_kernels(void **state)
{
    (void)state;
    pp_pool_assume_cpus(8); /* a pool has no more threads than CPUs */
    on_all_kernels(PP_TYPE_F32);
    on_all_kernels(PP_TYPE_BF16);
    on_all_kernels(PP_TYPE_Q4_0);
    on_all_kernels(PP_TYPE_Q6_K);
    pp_pool_assume_cpus(0);
}

/* Matrices as PEFT writes them and, transposed, as MLX does are the same adapter. */
static void mlx(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_Q8_0);
    struct folder peft = {.random = 8}, turned = {0};
    struct pp_adapter *a, *b;
    struct pp_error err;
    (void)state;
    for (int with_dora = 0; with_dora < 2; with_dora++) {
        make_dora(&peft, &s);
        for (int i = 0; i < peft.n; i++) {
            const struct folder_part *p = &peft.parts[i];
            bool vector = p->cols == 0;
            if (vector && !with_dora)
                continue;
            char name[160];
            const char *end = strstr(p->name, ".lora_");
            snprintf(name, sizeof name, "%.*s%s", (int)(end - p->name) - 17, p->name + 17,
                     vector ? ".m" : end[6] == 'A' ? ".lora_a" : ".lora_b");
            float *to = (float *)(uintptr_t)folder_add(&turned, name, vector ? p->rows : p->cols,
                                                       vector ? 0 : p->rows, 0, 0);
            for (int64_t k = 0; k < p->rows * (vector ? 1 : p->cols); k++)
                to[vector ? k : k % p->cols * p->rows + k / p->cols] = p->data[k];
        }
        struct folder plain = {0};
        for (int i = 0; i < peft.n; i++)
            if (with_dora || peft.parts[i].cols)
                plain.parts[plain.n++] = peft.parts[i];
        struct run r = open_run(tiny_model(&s), 1);
        const char *config = with_dora ? "{\"fine_tune_type\":\"dora\",\"num_layers\":1,"
                                         "\"lora_parameters\":{\"rank\":4,\"scale\":3.0,\"dropout\":0.0}}"
                                       : "{\"fine_tune_type\":\"lora\",\"lora_parameters\":{\"rank\":4,\"scale\":3}}";
        const char *path = folder_write(&turned, config, "adapters.safetensors");
        assert_true(pp_is_adapter(path));
        assert_ok(pp_adapter_load(r.model, path, &a, &err), err);
        assert_ok(pp_adapter_load(r.model, folder_write_peft(&plain, with_dora ? dora_config
                                                      : "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":12}"),
                                  &b, &err), err);
        assert_memory_equal(&a->identity, &b->identity, sizeof a->identity);
        pp_adapter_free(a);
        pp_adapter_free(b);
        close_run(&r);
        folder_empty(&turned);
        folder_empty(&peft);
    }
}

/* Tensors that only some kinds have are part of an adapter's identity. */
static void identities(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct pp_sha256 seen[10];
    struct pp_error err;
    struct run r = open_run(tiny_model(&s), 1);
    (void)state;
    for (int i = 0; i < 10; i++) {
        struct folder f = {.random = 9};
        struct pp_adapter *a;
        if (i < 2)
            make_dora(&f, &s);
        else if (i < 4)
            make_ia3(&f, &s);
        else
            make_replaced(&f, &s);
        int part = f.n - (i < 6 ? 1 : i == 6 ? 4 : i == 7 ? 9 : 11);
        if (i % 2 || i > 4) /* one magnitude, one scale; a norm, the table, two matrices */
            f.parts[part].data[f.parts[part].rows / 2] += 0.25f;
        if (i == 9)
            f.parts[0].data[0] += 0.25f;
        assert_ok(pp_adapter_load(r.model, folder_write_peft(&f, i < 2   ? dora_config
                                                                 : i < 4 ? ia3_config
                                                                         : replaced_config), &a, &err), err);
        seen[i] = a->identity;
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(&seen[k], &seen[i], sizeof seen[i]);
        pp_adapter_free(a);
        folder_empty(&f);
    }
    close_run(&r);
}

/* Every factor of a LoRA's matrices, and where it acts, is part of the identity, too. If B is held as integers,
 * doubling it changes nothing but their scale. */
static void identities_of_loras(void **state)
{
    enum { LORAS = 8, RANK = 4 };
    static const char *const configs[] = {
        "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":4}", "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8}",
        "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":4,\"alora_invocation_tokens\":[7,8]}",
        "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":4,\"alora_invocation_tokens\":[7,8,9]}"};
    static const struct {
        int config;
        bool embeddings;
        int changed; /* which half is doubled; -1: none */
    } loras[LORAS] = {{0, false, -1}, {1, false, -1}, {0, false, 1}, {2, false, -1},
                      {3, false, -1}, {0, true, -1},  {1, true, -1}, {0, true, 1}};
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_Q8_0};
    (void)state;
    for (int t = 0; t < 2; t++) {
        const struct tiny_shape s = biased_shape(types[t]);
        struct run r = open_run(tiny_model(&s), 1);
        struct pp_sha256 seen[LORAS];
        for (int i = 0; i < LORAS; i++) {
            struct folder f = {.random = 11};
            struct pp_adapter *a;
            struct pp_error err;
            if (loras[i].embeddings) {
                folder_add(&f, "base_model.model.model.embed_tokens.lora_embedding_A", RANK, s.n_vocab, 0, 0.2f);
                folder_add(&f, "base_model.model.model.embed_tokens.lora_embedding_B", s.n_embd, RANK, 0, 0.2f);
            } else {
                folder_add_lora(&f, &s, 4, RANK);
            }
            const struct folder_part *half = loras[i].changed < 0 ? NULL : &f.parts[loras[i].changed];
            for (int64_t k = 0; half && k < half->rows * half->cols; k++)
                half->data[k] *= 2;
            assert_ok(pp_adapter_load(r.model, folder_write_peft(&f, configs[loras[i].config]), &a, &err), err);
            seen[i] = a->identity;
            for (int k = 0; k < i; k++)
                if (memcmp(&seen[k], &seen[i], sizeof seen[i]) == 0)
                    fail_msg("type %u: LoRAs %d and %d have one identity", types[t], k, i);
            pp_adapter_free(a);
            folder_empty(&f);
        }
        close_run(&r);
    }
}

static bool idle(const struct folder *f, const char *config, const struct run *r)
{
    struct pp_adapter_file *file;
    struct pp_adapter *a;
    struct pp_error err;
    const char *path = folder_write_peft(f, config);
    assert_ok(pp_adapter_file_open(path, &file, &err), err);
    assert_ok(pp_adapter_load(r->model, path, &a, &err), err);
    const bool known = pp_adapter_file_idle(file), is = pp_adapter_info(a)->idle;
    assert_true(is || !known); /* the file alone need not show it */
    pp_adapter_file_close(file);
    pp_adapter_free(a);
    return is;
}

/* Adapters in their initial state change nothing and are reported as untrained; one different value is enough to be
 * trained. */
static void idle_adapters(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    const char *lora = "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":4}";
    struct run r = open_run(tiny_model(&s), 1);
    struct folder f = {.random = 10};
    (void)state;
    folder_add_lora(&f, &s, 4, 4);
    folder_add_lora(&f, &s, 6, 4);
    assert_false(idle(&f, lora, &r));
    for (int i = 1; i < 4; i += 2)
        memset(f.parts[i].data, 0, (size_t)(f.parts[i].rows * f.parts[i].cols) * sizeof(float));
    assert_true(idle(&f, lora, &r));
    f.parts[3].data[100] = 1e-3f;
    assert_false(idle(&f, lora, &r));
    assert_true(idle(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":0}", &r));
    f.parts[3].data[100] = 0;
    struct merged m = merged_begin(r.model->info.path); /* a DoRA starts with the row norms of W as magnitudes */
    for (int i = 0; i < 2; i++) {
        const struct pp_tensor *t = merged_tensor(&m, i ? "blk.0.ffn_down.weight" : "blk.0.ffn_gate.weight");
        folder_add_named(&f, i ? 6 : 4, ".lora_magnitude_vector", t->ne[1], 0, 0, 0);
        for (int64_t k = 0; k < t->ne[0] * t->ne[1]; k++)
            f.parts[4 + i].data[k / t->ne[0]] += ((const float *)t->data)[k] * ((const float *)t->data)[k];
        for (int64_t k = 0; k < t->ne[1]; k++)
            f.parts[4 + i].data[k] = sqrtf(f.parts[4 + i].data[k]);
    }
    assert_true(idle(&f, dora_config, &r));
    f.parts[5].data[7] *= 1.1f;
    assert_false(idle(&f, dora_config, &r));
    pp_gguf_close(m.gguf);
    pp_free(m.bytes);
    folder_empty(&f);
    folder_add_named(&f, 1, ".ia3_l", s.n_head_kv * s.head_dim, 1, 1, 0);
    assert_true(idle(&f, ia3_config, &r));
    f.parts[0].data[3] = 1.5f;
    assert_false(idle(&f, ia3_config, &r));
    folder_empty(&f);
    m = merged_begin(r.model->info.path); /* modules that were saved, but never trained */
    for (int i = 0; i < 3; i++) {
        static const char *const names[][2] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                               {"output_norm.weight", "model.norm.weight"},
                                               {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"}};
        const struct pp_tensor *t = merged_tensor(&m, names[i][0]);
        const bool vector = t->n_dims == 1;
        char name[160];
        snprintf(name, sizeof name, "base_model.model.%s", names[i][1]);
        folder_add(&f, name, t->ne[vector ? 0 : 1], vector ? 0 : t->ne[0], 0, 0);
        memcpy(f.parts[i].data, t->data, t->size);
    }
    assert_true(idle(&f, replaced_config, &r));
    for (int i = 0; i < 3; i++) {
        f.parts[i].data[s.n_embd - 1] += 0.5f;
        assert_false(idle(&f, replaced_config, &r));
        f.parts[i].data[s.n_embd - 1] -= 0.5f;
    }
    pp_gguf_close(m.gguf);
    pp_free(m.bytes);
    folder_empty(&f);
    close_run(&r);
}

/* Whichever allocation fails while an adapter is loaded or switched on, the error says so, and the next attempt is not
 * affected. */
static void loads_without_memory(const struct tiny_shape *s, const struct folder *f, const char *config)
{
    struct run r = open_run(tiny_model(s), 2);
    struct pp_adapter *a = NULL;
    struct pp_error err = {0};
    struct pp_seq *seq;
    enum pp_code code = PP_ERR_NOMEM;
    const char *path = folder_write_peft(f, config);
    for (uint64_t nth = 1; code; nth++) {
        pp_mem_fail_at(nth, 0);
        code = pp_adapter_load(r.model, path, &a, &err);
        pp_mem_fail_at(0, 0);
        if (code && code != PP_ERR_NOMEM)
            fail_msg("allocation %d failed and the error was %d: %s", (int)nth, (int)code, err.text);
        assert_true(nth < 10000);
    }
    float *alone = adapter_logits(&r, NULL, 0);
    assert_ok(pp_seq_new(r.engine, &seq, &err), err);
    code = PP_ERR_NOMEM;
    for (uint64_t nth = 1; code; nth++) {
        pp_mem_fail_at(nth, 0);
        code = pp_seq_set_adapters(seq, &(struct pp_adapter_use){a, 1}, 1, &err);
        pp_mem_fail_at(0, 0);
        assert_true(!code || (code == PP_ERR_NOMEM && !pp_seq_uses(seq, a)));
        float *still = adapter_logits(&r, NULL, 0);
        assert_memory_equal(alone, still, (size_t)(TOKENS * s->n_vocab) * sizeof *alone);
        pp_free(still);
    }
    pp_seq_free(seq);
    struct run fresh = open_run(r.model->info.path, 2);
    struct pp_adapter *again;
    assert_ok(pp_adapter_load(fresh.model, path, &again, &err), err);
    float *got = adapter_logits(&r, &(struct pp_adapter_use){a, 1}, 1);
    float *want = adapter_logits(&fresh, &(struct pp_adapter_use){again, 1}, 1);
    assert_memory_equal(got, want, (size_t)(TOKENS * s->n_vocab) * sizeof *got);
    assert_memory_not_equal(got, alone, sizeof *got);
    pp_free(got);
    pp_free(want);
    pp_free(alone);
    pp_adapter_free(a);
    pp_adapter_free(again);
    close_run(&r);
    close_run(&fresh);
}

static void out_of_memory(void **state)
{
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_Q8_0};
    (void)state;
    for (int t = 0; t < 2; t++) {
        const struct tiny_shape s = biased_shape(types[t]);
        struct folder f = {.random = 14};
        folder_add_lora(&f, &s, 3, 4);
        folder_add(&f, "base_model.model.model.embed_tokens.lora_embedding_A", 4, s.n_vocab, 0, 0.2f);
        folder_add(&f, "base_model.model.model.embed_tokens.lora_embedding_B", s.n_embd, 4, 0, 0.2f);
        loads_without_memory(&s, &f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8}");
        folder_empty(&f);
        make_dora(&f, &s);
        folder_add_embedding_dora(&f, &s);
        loads_without_memory(&s, &f, dora_config);
        folder_empty(&f);
        make_adalora(&f, &s, 3);
        loads_without_memory(&s, &f, "{\"peft_type\":\"ADALORA\",\"lora_alpha\":8}");
        folder_empty(&f);
        make_loha(&f, &s);
        loads_without_memory(&s, &f, "{\"peft_type\":\"LOHA\",\"r\":3}");
        folder_empty(&f);
        make_ia3(&f, &s);
        folder_add_named(&f, 5, ".ia3_l", 1, s.n_embd, 1, 0.5f);
        loads_without_memory(&s, &f, ia3_config);
        folder_empty(&f);
        make_replaced(&f, &s);
        loads_without_memory(&s, &f, replaced_config);
        folder_empty(&f);
        folder_add(&f, "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", 2, s.n_embd, 0,
                   0.5f);
        loads_without_memory(&s, &f, "{\"peft_type\":\"LORA\",\"trainable_token_indices\":[10,3]}");
        folder_empty(&f);
    }
}

TEST_GROUP(lora_kinds)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_with_output_and_embeddings), cmocka_unit_test(targets_told_once),
        cmocka_unit_test(biases),
        cmocka_unit_test(ia3),
        cmocka_unit_test(dora),
        cmocka_unit_test(dora_gains),
        cmocka_unit_test(adalora),
        cmocka_unit_test(adalora_refused),
        cmocka_unit_test(loha),
        cmocka_unit_test(lokr),
        cmocka_unit_test(looked_at),
        cmocka_unit_test(other_kinds_refused),
        cmocka_unit_test(replaced),
        cmocka_unit_test(replaced_whole),
        cmocka_unit_test(replaced_quantized),
        cmocka_unit_test(replaced_shapes),
        cmocka_unit_test(mixed_batches),
        cmocka_unit_test(all_kernels),
        cmocka_unit_test(mlx),
        cmocka_unit_test(identities),
        cmocka_unit_test(identities_of_loras),
        cmocka_unit_test(idle_adapters),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("lora_kinds", tests, NULL, NULL);
}
