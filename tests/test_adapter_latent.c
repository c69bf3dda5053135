/* test_adapter_latent.c - LoRAs of the matrix that expands latent attention's cached vector to keys and values
 * (kv_b_proj), compared with the same model with the LoRAs merged into its weights, whose logits follow from the
 * formulas. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/cpu/isa.h"
#include "engine/engine.h"
#include "tests/adapter_folder.h"
#include "tests/expert_model_int.h"
#include "tests/gguf_file.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { RANK = 5, N_LAYER = 2, SETS = 5, FILES = 2, TOKENS = 24 };
static const char config[] = "{\"peft_type\":\"LORA\",\"r\":5,\"lora_alpha\":10}"; /* a scale of 2 */

/* DeepSeek V2's shape, with keys and values of different sizes. */
static struct expert_shape shape(bool apart)
{
    struct expert_shape s = expert_shape("deepseek2");
    s.shares = s.neighbours = true;
    s.heads_apart = apart;
    s.n_layer = N_LAYER;
    s.n_dense = 1;
    s.n_ff_shared = 64;
    s.n_head = 3;
    s.scale = 1;
    s.rope_dim = 8;
    s.kv_rank = 48;
    s.nope = 20;
    s.v_dim = 24;
    s.n_ctx = 512;
    return s;
}

/* A LoRA of kv_b_proj in all layers, and of all other projections but the experts', merged into m. */
static const char *merge(struct expert_model *m, bool all, uint32_t seed)
{
    static const char *const modules[][2] = {
        {"self_attn.kv_b_proj", "attn_kv_b"}, {"self_attn.q_proj", "attn_q"},
        {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"}, {"self_attn.o_proj", "attn_output"},
        {"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"},
        {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"}, {"mlp.shared_experts.down_proj", "ffn_down_shexp"}};
    struct folder f = {.random = seed};
    for (int l = 0; l < N_LAYER; l++)
        for (size_t i = 0; i < (all ? sizeof modules / sizeof *modules : 1); i++) {
            char name[80];
            snprintf(name, sizeof name, "%s.weight", modules[i][1]);
            const struct array *w = expert_find(m, l, name);
            snprintf(name, sizeof name, "model.layers.%d.%s", l, modules[i][0]);
            if (w)
                folder_add_merged(&f, name, RANK, 2, w->values, w->rows, w->cols);
        }
    const char *path = folder_write_peft(&f, config);
    folder_empty(&f);
    return path;
}

static double *logits_of(const struct expert_model *m)
{
    double *logits = doubles(SMALL_TEXT * m->s.n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, m->s.n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, logits);
    return logits;
}

/* Some GGUF files hold the matrix whole, others its two parts, and folders always hold it whole. Adapters are folders,
 * or files converted from those. */
static void as_merged(void **state)
{
    (void)state;
    for (int all = 0; all < 2; all++) {
        const char *adapter = NULL, *folder = fresh_path("model"), *file = fresh_path("adapter.gguf");
        const char *again = fresh_path("adapter");
        struct pp_error err;
        for (int apart = 0; apart < 2; apart++) {
            const struct expert_shape s = shape(apart);
            struct expert_model *m = expert_model_make(&s);
            const char *model = expert_model_write(m);
            adapter = merge(m, all, 7);
            double *want = logits_of(m);
            assert_adapted(model, adapter, want, s.n_vocab, 2e-4);
            if (!apart) {
                assert_ok(pp_convert_to_folder(model, folder, &(struct pp_convert_options){.out_type = "F32"}, &err),
                          err);
                assert_ok(pp_convert_to_gguf(adapter, file, &(struct pp_convert_options){.base = folder}, &err), err);
                assert_ok(pp_convert_to_peft(file, again, &(struct pp_convert_options){.base = folder}, &err), err);
                assert_adapted(folder, adapter, want, s.n_vocab, 2e-4);
                assert_adapted(folder, file, want, s.n_vocab, 2e-4);
                assert_adapted(model, again, want, s.n_vocab, 2e-4);
            }
            pp_free(want);
            expert_model_free(m);
        }
    }
}

/* Rows for the tokens of a sequence from `at` on, each with logits. */
static void add_rows(struct pp_row *rows, struct pp_seq *s, const int32_t *ids, int at, int n)
{
    for (int i = 0; i < n; i++)
        rows[i] = (struct pp_row){.seq = s, .token = ids[at + i], .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
}

/* Asserts that a text gives these logits, [SETS][TOKENS, n_vocab], with these sets, one row at a time. */
static void run_alone(struct pp_engine *e, const struct pp_adapter_use uses[SETS][FILES], const int *n_uses,
                      const int32_t *ids, int n_vocab, float *logits)
{
    struct pp_error err;
    struct pp_seq *s;
    for (int i = 0; i < SETS; i++) {
        assert_ok(pp_seq_new(e, &s, &err), err);
        assert_ok(pp_seq_set_adapters(s, uses[i], n_uses[i], &err), err);
        run_in_passes(e, s, ids, TOKENS, 1, logits + i * TOKENS * n_vocab);
        pp_seq_free(s);
    }
}

/* Asserts that batches with all sets, of few rows and of many, give the same, and that only the first pass
 * allocates. */
static void run_together(struct pp_engine *e, const struct pp_adapter_use uses[SETS][FILES], const int *n_uses,
                         const int32_t *ids, int n_vocab, const float *want)
{
    static const int counts[] = {8, 1, 4, 1, 3, 7};
    const size_t bytes = (size_t)n_vocab * sizeof *want;
    struct pp_row rows[SETS * TOKENS];
    struct pp_seq *s[SETS];
    struct pp_error err;
    uint64_t allocated = 0;
    for (int i = 0; i < SETS; i++) {
        assert_ok(pp_seq_new(e, &s[i], &err), err);
        assert_ok(pp_seq_set_adapters(s[i], uses[i], n_uses[i], &err), err);
    }
    for (int at = 0, pass = 0; at < TOKENS; at += counts[pass++]) {
        const int n = counts[pass];
        for (int i = 0; i < SETS; i++)
            add_rows(rows + i * n, s[i], ids, at, n);
        if (pass == 1)
            allocated = pp_mem_count();
        assert_ok(pp_step(e, rows, SETS * n, NULL, &err), err);
        for (int i = 0; i < SETS * n; i++)
            assert_memory_equal(pp_step_output(e, i), want + (i / n * TOKENS + at + i % n) * n_vocab, bytes);
    }
    assert_true(pp_mem_count() == allocated);
    for (int i = 0; i < SETS; i++)
        pp_seq_free(s[i]);
}

/* W + sum of strengths times what was merged into it, for all matrices. */
static void mix(struct expert_model *m, struct expert_model *const merged[FILES], const float strengths[FILES])
{
    for (int t = 0; t < m->n; t++)
        for (int64_t i = 0; i < array_size(&m->t[t]); i++) {
            const float own = m->t[t].values[i];
            for (int k = 0; k < FILES; k++)
                m->t[t].values[i] += strengths[k] * (merged[k]->t[t].values[i] - own);
        }
}

static void assert_logits_near(const float *got, const double *want, int64_t n, int set)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= 3e-4 * fmax(1, fabs(want[i]))))
            fail_msg("set %d: value %d is %g, not %g", set, (int)i, (double)got[i], want[i]);
}

static const float strengths[SETS][FILES] = {{0, 0}, {1, 0}, {0, -0.5f}, {0.75f, -0.25f}, {-1, 1}};

/* With these adapter files at these strengths, a model gives the same as the model they were merged into; alone, in one
 * batch and on all kernels with the same bits. */
static void check_sets(const char *model, const char *const *files, struct expert_model *const merged[SETS])
{
    static const int n_uses[SETS] = {0, 1, 1, 2, 2};
    const int n_vocab = merged[0]->s.n_vocab;
    const int64_t n = TOKENS * n_vocab;
    float *want = pp_calloc((size_t)(SETS * n), sizeof *want), *got = pp_calloc((size_t)(SETS * n), sizeof *got);
    struct pp_error err;
    int32_t ids[SMALL_TEXT];
    small_text(ids, n_vocab);
    for (int isa = PP_ISA_COUNT - 1; isa >= 0; isa--) {
        const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 1 + isa % 3, .kv_memory = 16u << 20,
                                              .kernels = pp_isa_name((enum pp_isa)isa), .n_ctx = 64};
        struct pp_adapter *a[FILES];
        struct pp_model *loaded;
        struct pp_engine *e;
        if (!pp_isa_runs((enum pp_isa)isa))
            continue;
        const bool first = want[0] == 0.0f;
        assert_ok(pp_model_open(model, &loaded, &err), err);
        assert_ok(pp_engine_new(loaded, &opt, NULL, NULL, &e, &err), err);
        for (int k = 0; k < FILES; k++)
            assert_ok(pp_adapter_load(loaded, files[k], &a[k], &err), err);
        const struct pp_adapter_use uses[SETS][FILES] = {
            {{NULL, 0}}, {{a[0], 1}}, {{a[1], -0.5f}}, {{a[0], 0.75f}, {a[1], -0.25f}}, {{a[1], 1}, {a[0], -1}}};
        run_alone(e, uses, n_uses, ids, n_vocab, first ? want : got);
        if (!first)
            assert_memory_equal(want, got, (size_t)(SETS * n) * sizeof *got);
        run_together(e, uses, n_uses, ids, n_vocab, want);
        for (int k = 0; k < FILES; k++)
            pp_adapter_free(a[k]);
        pp_engine_free(e);
        pp_model_close(loaded);
    }
    for (int i = 0; i < SETS; i++) {
        double *logits = logits_of(merged[i]);
        assert_logits_near(want + i * n, logits, n, i);
        pp_free(logits);
    }
    pp_free(want);
    pp_free(got);
}

/* The sets: no adapter; one of that matrix alone; one of all projections, partly subtracted; and both at once. */
static void sets_of_rows(void **state)
{
    const struct expert_shape s = shape(true);
    struct expert_model *whole[FILES], *sets[SETS], *m = expert_model_make(&s);
    const char *model = expert_model_write(m), *files[FILES];
    (void)state;
    for (int k = 0; k < FILES; k++) {
        whole[k] = expert_model_make(&s);
        files[k] = merge(whole[k], k, 11 + (uint32_t)k);
    }
    for (int i = 0; i < SETS; i++) {
        sets[i] = expert_model_make(&s);
        mix(sets[i], whole, strengths[i]);
    }
    check_sets(model, files, sets);
    for (int i = 0; i < SETS; i++)
        expert_model_free(sets[i]);
    for (int k = 0; k < FILES; k++)
        expert_model_free(whole[k]);
    expert_model_free(m);
}

/* --- DoRA ------------------------------------------------------------------------------------------------------ */

static const char dora_config[] = "{\"peft_type\":\"LORA\",\"use_dora\":true,\"r\":5,\"lora_alpha\":10}";
static const char ia3_config[] = "{\"peft_type\":\"IA3\",\"feedforward_modules\":[]}";
#define KV_B "base_model.model.model.layers.%d.self_attn.kv_b_proj.%s"

static const float *part_of(const struct folder *f, int l, const char *end)
{
    char name[160];
    snprintf(name, sizeof name, KV_B, l, end);
    return folder_get(f, name);
}

/* Values that F16 holds exactly. */
static void add_half(struct folder *f, const char *name, int64_t rows, int64_t cols)
{
    float *values = (float *)(uintptr_t)folder_add(f, name, rows, cols, 0, 0.1f);
    for (int64_t i = 0; i < rows * cols; i++)
        values[i] = roundf(values[i] * 1024) / 1024;
}

/* Adds A and B of kv_b_proj in all layers, and for a DoRA magnitudes close to the norms of the rows. */
static void add_halves(struct folder *f, const struct expert_model *m, bool dora)
{
    for (int l = 0; l < N_LAYER; l++) {
        const struct array *w = expert_find(m, l, "attn_kv_b.weight");
        char name[160];
        snprintf(name, sizeof name, KV_B, l, "lora_A.weight");
        add_half(f, name, RANK, w->cols);
        snprintf(name, sizeof name, KV_B, l, "lora_B.weight");
        add_half(f, name, w->rows, RANK);
        snprintf(name, sizeof name, KV_B, l, "lora_magnitude_vector");
        float *magnitude = dora ? (float *)(uintptr_t)folder_add(f, name, w->rows, 0, 1, 0.4f) : NULL;
        for (int64_t r = 0; dora && r < w->rows; r++) {
            double square = 0;
            for (int64_t i = 0; i < w->cols; i++)
                square += (double)w->values[r * w->cols + i] * (double)w->values[r * w->cols + i];
            magnitude[r] *= (float)sqrt(square);
        }
    }
}

/* Row r of s B A (s is 2); sums: its product with W's row, and its squared norm. */
static void low_rank_row(const struct folder *f, int l, const float *w, int64_t r, int64_t n, double *row,
                         double sums[2])
{
    const float *a = part_of(f, l, "lora_A.weight"), *b = part_of(f, l, "lora_B.weight");
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < n; i++) {
        row[i] = 0;
        for (int k = 0; k < RANK; k++)
            row[i] += 2 * (double)b[r * RANK + k] * (double)a[k * n + i];
        sums[0] += row[i] * (double)w[i];
        sums[1] += row[i] * row[i];
    }
}

/* IA3's scales for the outputs of kv_b_proj in all layers. */
static void add_scales(struct folder *f, const struct expert_model *m)
{
    for (int l = 0; l < N_LAYER; l++) {
        char name[160];
        snprintf(name, sizeof name, KV_B, l, "ia3_l");
        folder_add(f, name, expert_find(m, l, "attn_kv_b.weight")->rows, 1, 1, 0.4f);
    }
}

/* A row of W becomes o g W + sum of g_k strength_k s B_k A_k, as lora.h has it. */
static void change_row(const struct folder f[FILES], const float *strength, int l, float *w, int64_t r, int64_t n)
{
    double row[FILES][64] = {{0}}, gains[FILES], all = 1, scale = 1, square = 0;
    assert_true(n <= 64);
    for (int64_t i = 0; i < n; i++)
        square += (double)w[i] * (double)w[i];
    for (int k = 0; k < FILES; k++) {
        const float *magnitude = part_of(&f[k], l, "lora_magnitude_vector");
        const float *scales = part_of(&f[k], l, "ia3_l");
        const double s = (double)strength[k];
        double sums[2] = {0};
        if (scales)
            scale *= 1 + s * ((double)scales[r] - 1);
        else
            low_rank_row(&f[k], l, w, r, n, row[k], sums);
        gains[k] = magnitude ? (sqrt(square) + s * ((double)magnitude[r] - sqrt(square))) /
                                   sqrt(square + 2 * s * sums[0] + s * s * sums[1])
                             : 1;
        all += gains[k] - 1;
    }
    for (int64_t i = 0; i < n; i++) {
        double x = scale * all * (double)w[i];
        for (int k = 0; k < FILES; k++)
            x += gains[k] * (double)strength[k] * row[k][i];
        w[i] = (float)x;
    }
}

/* Each pair of the adapter kinds that this matrix may have, including two of the same kind. */
static void kinds(void **state)
{
    static const char *const configs[] = {config, dora_config, ia3_config};
    static const int pairs[][FILES] = {{1, 0}, {1, 1}, {2, 0}, {1, 2}, {2, 2}};
    const struct expert_shape s = shape(false);
    struct expert_model *sets[SETS], *m = expert_model_make(&s);
    const char *model = expert_model_write(m), *files[FILES];
    (void)state;
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
        struct folder f[FILES] = {{.random = 21}, {.random = 22}};
        for (int k = 0; k < FILES; k++) {
            if (pairs[p][k] == 2)
                add_scales(&f[k], m);
            else
                add_halves(&f[k], m, pairs[p][k] == 1);
            files[k] = folder_write_peft(&f[k], configs[pairs[p][k]]);
        }
        for (int i = 0; i < SETS; i++) {
            sets[i] = expert_model_make(&s);
            for (int l = 0; l < N_LAYER; l++) {
                const struct array *w = expert_find(sets[i], l, "attn_kv_b.weight");
                for (int64_t r = 0; r < w->rows; r++)
                    change_row(f, strengths[i], l, w->values + r * w->cols, r, w->cols);
            }
        }
        check_sets(model, files, sets);
        for (int i = 0; i < SETS; i++)
            expert_model_free(sets[i]);
        for (int k = 0; k < FILES; k++)
            folder_empty(&f[k]);
    }
    expert_model_free(m);
}

/* A quantised model, with more rows than are processed together. */
static void dora_in_blocks(void **state)
{
    struct expert_shape s = shape(true);
    s.nope = s.v_dim = 32;
    s.kv_rank = 64;
    struct expert_model *m = expert_model_make(&s);
    struct folder f = {.random = 23};
    struct pp_error err;
    const char *model = expert_model_write(m), *small = fresh_path("q8_0.gguf");
    assert_ok(pp_quantize_file(model, small, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    struct running r = run_small(small, NULL);
    struct pp_adapter *a;
    int32_t ids[SMALL_TEXT];
    float *got[2], *alone = pp_calloc((size_t)(SMALL_TEXT * s.n_vocab), sizeof *alone);
    (void)state;
    add_halves(&f, m, true);
    small_text(ids, s.n_vocab);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 70, alone);
    assert_ok(pp_adapter_load(r.m, folder_write_peft(&f, dora_config), &a, &err), err);
    assert_ok(pp_seq_set_adapters(r.s, &(struct pp_adapter_use){a, 1}, 1, &err), err);
    for (int i = 0; i < 2; i++) {
        got[i] = pp_calloc((size_t)(SMALL_TEXT * s.n_vocab), sizeof *got[i]);
        pp_seq_truncate(r.s, 0);
        run_in_passes(r.e, r.s, ids, SMALL_TEXT, i ? 1 : 70, got[i]);
    }
    assert_memory_equal(got[0], got[1], (size_t)(SMALL_TEXT * s.n_vocab) * sizeof **got);
    assert_memory_not_equal(got[0], alone, (size_t)(SMALL_TEXT * s.n_vocab) * sizeof *alone);
    pp_free(got[0]);
    pp_free(got[1]);
    pp_free(alone);
    folder_empty(&f);
    expert_model_free(m);
    stop_adapted(&r, a);
}

/* A quantised model: the same bits with any number of rows, close to the merged model's results and far from those
 * without the adapter; and KV pages computed under the adapter are not reused without it. */
static void quantised(void **state)
{
    struct expert_shape s = shape(false);
    s.nope = s.v_dim = 32;
    s.kv_rank = 64;
    struct expert_model *m = expert_model_make(&s);
    const char *model = expert_model_write(m), *adapter = merge(m, false, 5);
    const int64_t n = SMALL_TEXT * s.n_vocab;
    double *want = logits_of(m), far[2] = {0};
    float *got[3];
    struct pp_adapter *a, *other;
    struct pp_error err;
    int32_t ids[SMALL_TEXT];
    (void)state;
    const char *small = fresh_path("q8_0.gguf");
    assert_ok(pp_quantize_file(model, small, "Q8_0", &(struct pp_convert_options){0}, &err), err);
    struct running r = run_small(small, NULL);
    small_text(ids, s.n_vocab);
    assert_ok(pp_adapter_load(r.m, adapter, &a, &err), err);
    const struct pp_adapter_use on = {a, 1};
    for (int i = 0; i < 3; i++) {
        got[i] = pp_calloc((size_t)n, sizeof *got[i]);
        assert_ok(pp_seq_set_adapters(r.s, &on, i > 0, &err), err);
        assert_int_equal(pp_engine_cached_tokens(r.e, &on, i > 0, ids, SMALL_TEXT) > 0, i == 2);
        pp_seq_truncate(r.s, 0);
        run_in_passes(r.e, r.s, ids, SMALL_TEXT, i == 2 ? 1 : 70, got[i]);
    }
    assert_memory_equal(got[1], got[2], (size_t)n * sizeof **got);
    assert_ok(pp_adapter_load(r.m, merge(m, false, 6), &other, &err), err);
    assert_int_equal(pp_engine_cached_tokens(r.e, &(struct pp_adapter_use){other, 1}, 1, ids, SMALL_TEXT), 0);
    assert_int_equal(pp_engine_cached_tokens(r.e, &(struct pp_adapter_use){a, 0.5f}, 1, ids, SMALL_TEXT), 0);
    pp_adapter_free(other);
    static const char half[] = "{\"peft_type\":\"LORA\",\"r\":5,\"lora_alpha\":5}"; /* the same matrices */
    char path[512];
    snprintf(path, sizeof path, "%s/adapter_config.json", adapter);
    assert_ok(pp_write_file(path, half, strlen(half), 0600, &err), err);
    assert_ok(pp_adapter_load(r.m, adapter, &other, &err), err);
    assert_int_equal(pp_engine_cached_tokens(r.e, &(struct pp_adapter_use){other, 1}, 1, ids, SMALL_TEXT), 0);
    pp_adapter_free(other);
    for (int64_t i = 0; i < n; i++) {
        far[0] += fabs((double)got[0][i] - want[i]);
        far[1] += fabs((double)got[1][i] - want[i]);
    }
    if (!(far[1] < 0.2 * far[0]))
        fail_msg("with its adapter a model is off by %g, without by %g", far[1] / (double)n, far[0] / (double)n);
    for (int i = 0; i < 3; i++)
        pp_free(got[i]);
    pp_free(want);
    expert_model_free(m);
    stop_adapted(&r, a);
}

static void assert_refused(const struct pp_model *m, struct folder *f, const char *with, enum pp_code code,
                           const char *said)
{
    char text[200];
    struct pp_adapter *a;
    struct pp_error err;
    snprintf(text, sizeof text, "{\"peft_type\":\"%s\",\"r\":2,\"lora_alpha\":2%s}",
             strstr(with, "feedforward_modules") ? "IA3" : "LORA", with);
    assert_int_equal(pp_adapter_load(m, folder_write_peft(f, text), &a, &err), code);
    if (!strstr(err.text, said))
        fail_msg("%s", err.text);
    folder_empty(f);
}

/* Adapters of this matrix that are of an unsupported kind or of another size are refused by name. */
static void refused(void **state)
{
#define MODULE "model.layers.1.self_attn.kv_b_proj"
    const struct expert_shape s = shape(true);
    const int n_out = s.n_head * (s.nope + s.v_dim);
    struct expert_model *m = expert_model_make(&s);
    struct running r = run_small(expert_model_write(m), NULL);
    struct folder f = {.random = 3};
    float *room = pp_calloc((size_t)(2 * n_out * s.kv_rank), sizeof *room);
    (void)state;
    folder_add_merged(&f, MODULE, 2, 1, room, n_out, s.kv_rank);
    folder_add(&f, "base_model.model." MODULE ".lora_magnitude_vector", n_out + 1, 0, 1, 0);
    assert_refused(r.m, &f, ",\"use_dora\":true", PP_ERR_FORMAT, "blk.1.attn_kv_b.weight");
    folder_add_merged(&f, MODULE, 2, 1, room, n_out, s.kv_rank);
    folder_add(&f, "base_model.model." MODULE ".bias", n_out, 0, 1, 0);
    assert_refused(r.m, &f, ",\"bias\":\"lora_only\"", PP_ERR_UNSUPPORTED, "a bias for blk.1.attn_kv_b.weight");
    folder_add(&f, "base_model.model." MODULE ".weight", n_out, s.kv_rank, 1, 0);
    assert_refused(r.m, &f, "", PP_ERR_UNSUPPORTED, "a matrix in place of blk.1.attn_kv_b.weight");
    folder_add(&f, "base_model.model." MODULE ".ia3_l", 1, s.kv_rank, 1, 0.5f);
    assert_refused(r.m, &f, ",\"feedforward_modules\":[\"kv_b_proj\"]", PP_ERR_UNSUPPORTED,
                   "scales (IA3) for the input of blk.1.attn_kv_b.weight");
    folder_add(&f, "base_model.model." MODULE ".ia3_l", n_out - 1, 1, 1, 0.5f);
    assert_refused(r.m, &f, ",\"feedforward_modules\":[]", PP_ERR_MISMATCH, "131 x 48, but");
    folder_add_merged(&f, MODULE, 2, 1, room, n_out + 1, s.kv_rank);
    assert_refused(r.m, &f, "", PP_ERR_MISMATCH, "133 x 48, but");
    folder_add_merged(&f, MODULE, 2, 1, room, n_out, s.kv_rank + 1);
    assert_refused(r.m, &f, "", PP_ERR_MISMATCH, "132 x 49, but");
    folder_add_merged(&f, "model.layers.7.self_attn.kv_b_proj", 2, 1, room, n_out, s.kv_rank);
    assert_refused(r.m, &f, "", PP_ERR_MISMATCH, "does not have");
    pp_free(room);
    expert_model_free(m);
    stop_small(&r);
#undef MODULE
}

/* Whichever allocation fails while an adapter is loaded or switched on, the error says so. */
static void out_of_memory(void **state)
{
    const struct expert_shape s = shape(true);
    struct expert_model *m = expert_model_make(&s);
    const char *model = expert_model_write(m);
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct running r = run_small(model, NULL);
        struct folder f = {.random = 24};
        if (kind == 2)
            add_scales(&f, m);
        else
            add_halves(&f, m, true);
        const char *path = !kind       ? merge(m, true, 5)
                           : kind == 1 ? folder_write_peft(&f, dora_config)
                                       : folder_write_peft(&f, ia3_config);
        enum pp_code code = PP_ERR_NOMEM;
        struct pp_adapter *a = NULL;
        struct pp_error err;
        for (uint64_t nth = 1; code; nth++) {
            pp_mem_fail_at(nth, 0);
            code = pp_adapter_load(r.m, path, &a, &err);
            if (!code)
                code = pp_seq_set_adapters(r.s, &(struct pp_adapter_use){a, 1}, 1, &err);
            pp_mem_fail_at(0, 0);
            if (code && code != PP_ERR_NOMEM)
                fail_msg("allocation %d failed and the error was %d: %s", (int)nth, (int)code, err.text);
            if (code) {
                pp_adapter_free(a);
                a = NULL;
            }
        }
        folder_empty(&f);
        stop_adapted(&r, a);
    }
    expert_model_free(m);
}

TEST_GROUP(adapter_latent)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_merged),
        cmocka_unit_test(sets_of_rows), cmocka_unit_test(kinds),
        cmocka_unit_test(dora_in_blocks),
        cmocka_unit_test(quantised),
        cmocka_unit_test(refused),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("adapter_latent", tests, NULL, NULL);
}
