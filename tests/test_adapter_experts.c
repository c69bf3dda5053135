/* test_adapter_experts.c - adapters of experts' matrices: as a LoRA for each expert's module, in the layouts of PEFT's
 * target_parameters (which depend on its version), and in MLX's stacks. Logits must be those of the folder with the
 * adapter merged in, and rows of one batch under different sets must equal the same rows computed alone. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/convert.h"
#include "engine/cpu/program.h"
#include "engine/engine_int.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/adapter_folder.h"
#include "tests/decoder_model.h"
#include "tests/gguf_file.h"
#include "tests/passes.h"
#include "tests/random_array.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { N_LAYERS = 2, N_EXPERTS = 4, WIDTH = 64 };

/* A model in the test data: two layers of four experts, 64 wide. */
struct family {
    const char *folder, *arch;        /* its folder; general.architecture */
    int n_ff;
    bool transposed;                  /* experts are stacked [expert, in, out], gate and up interleaved */
    const char *experts;              /* "model.layers.%d.mlp.experts", as files call them */
    const char *gate, *up, *down;     /* names of an expert's modules */
};

static const struct family families[] = {
    {"mixtral", "llama", 160, false, "model.layers.%d.block_sparse_moe.experts", "w1", "w3", "w2"},
    {"qwen3moe", "qwen3moe", 64, false, "model.layers.%d.mlp.experts", "gate_proj", "up_proj", "down_proj"},
    {"gptoss", "gpt-oss", 160, true, "model.layers.%d.mlp.experts", NULL, NULL, NULL},
};
enum { MIXTRAL, QWEN3MOE, GPTOSS, N_FAMILIES };

/* --- what an adapter does, from its formulas ----------------------------------------------------------------- */

enum part_kind { GATE_UP, DOWN, N_KINDS };

/* The change of each matrix [n_out, n_in], for each layer, kind and expert; the gate's outputs precede those of up. */
struct deltas {
    const struct family *family;
    double *of[N_LAYERS][N_KINDS][N_EXPERTS];
    const float *lengths[N_LAYERS][N_KINDS][N_EXPERTS][2]; /* DoRA: the lengths of the rows of gate and up, or of down;
                                                              or NULL */
    const float *columns[N_LAYERS][N_EXPERTS]; /* IA3: what the inputs of `down` are multiplied by; or NULL */
};

static int n_outputs(const struct family *f, int kind)
{
    return kind == DOWN ? WIDTH : 2 * f->n_ff;
}

static int n_inputs(const struct family *f, int kind)
{
    return kind == DOWN ? f->n_ff : WIDTH;
}

static struct deltas deltas_new(const struct family *f)
{
    struct deltas d = {.family = f};
    architecture(f->folder); /* if the test data are missing, the test is skipped before anything is made */
    for (int l = 0; l < N_LAYERS; l++)
        for (int kind = 0; kind < N_KINDS; kind++)
            for (int e = 0; e < N_EXPERTS; e++)
                d.of[l][kind][e] = doubles(n_outputs(f, kind) * n_inputs(f, kind));
    return d;
}

static void deltas_free(struct deltas *d)
{
    for (int l = 0; l < N_LAYERS; l++)
        for (int kind = 0; kind < N_KINDS; kind++)
            for (int e = 0; e < N_EXPERTS; e++)
                pp_free(d->of[l][kind][e]);
}

/* The folder's tensor as floats with its change added; pp_free. NULL: the tensor has no change. */
static float *changed(const struct deltas *d, const struct pp_tensor *t, int l)
{
    const struct family *f = d->family;
    const char *at = strstr(t->name, ".experts.");
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    const bool down = at && f->down ? strstr(at, f->down) != NULL : at && strcmp(at, ".experts.down_proj") == 0;
    if (!at || pp_ends_with(at, "_bias"))
        return NULL;
    const int kind = down ? DOWN : GATE_UP, n_out = n_outputs(f, kind), n_in = n_inputs(f, kind);
    const int first = f->up && strstr(at, f->up) ? f->n_ff : 0;
    float *w = pp_malloc((size_t)n * sizeof *w);
    pp_dequantize_row(t->type, t->data, w, n);
    for (int64_t row = 0; !f->transposed && row < t->ne[1]; row++) {
        const float *lengths = d->lengths[l][kind][at[9] - '0'][first > 0];
        double square = 0;
        const float *columns = down ? d->columns[l][at[9] - '0'] : NULL;
        for (int64_t i = row * n_in; i < (row + 1) * n_in; i++) {
            if (columns)
                w[i] *= columns[i - row * n_in];
            w[i] = (float)((double)w[i] + d->of[l][kind][at[9] - '0'][first * n_in + i]);
            square += (double)w[i] * (double)w[i];
        }
        for (int64_t i = row * n_in; lengths && i < (row + 1) * n_in; i++)
            w[i] = (float)((double)w[i] * (double)lengths[row] / sqrt(square));
    }
    for (int64_t i = 0; f->transposed && i < n; i++) {
        const int64_t e = i / (n_in * n_out), in = i / n_out % n_in, turn = i % n_out;
        const int64_t out = down ? turn : turn / 2 + turn % 2 * f->n_ff;
        w[i] = (float)((double)w[i] + d->of[l][kind][e][out * n_in + in]);
    }
    return w;
}

/* Writes the model with the changes added; returns the folder's path. */
static const char *merged(const struct deltas *d)
{
    enum { MOST = 64 };
    const char *from = architecture(d->family->folder), *to = fresh_path("merged");
    struct pp_tensor tensors[MOST];
    float *values[MOST];
    struct pp_safetensors *s;
    struct pp_error err;
    char path[600];
    int n_changed = 0;
    assert_int_equal(mkdir(to, 0700), 0);
    folder_copy_config(from, to);
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    assert_ok(pp_safetensors_open(path, &s, &err), err);
    const size_t n = pp_safetensors_n(s);
    assert_true(n <= MOST);
    for (size_t i = 0; i < n; i++) {
        int l = 0;
        tensors[i] = *pp_safetensors_at(s, i);
        sscanf(tensors[i].name, "model.layers.%1d.", &l);
        float *w = changed(d, &tensors[i], l);
        if (!w)
            continue;
        values[n_changed++] = w;
        tensors[i].data = w;
        tensors[i].type = PP_TYPE_F32;
        tensors[i].size = (size_t)(tensors[i].ne[0] * tensors[i].ne[1] * tensors[i].ne[2]) * sizeof *w;
    }
    assert_int_equal(n_changed, N_LAYERS * (d->family->transposed ? 2 : 3 * N_EXPERTS));
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    assert_ok(pp_safetensors_write(path, tensors, n, &err), err);
    for (int i = 0; i < n_changed; i++)
        pp_free(values[i]);
    pp_safetensors_close(s);
    return to;
}

/* --- adapters ------------------------------------------------------------------------------------------------- */

/* Gate and up have another rank and alpha than `down` in of_parameters(). */
enum { RANK = 3, ALPHA = 6, WIDE_RANK = 2, WIDE_ALPHA = 5 };
#define CONFIG "\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6"

static void add_product(double *to, const float *a, const float *b, int n_out, int n_in, int rank, double scale)
{
    for (int o = 0; o < n_out; o++)
        for (int i = 0; i < n_in; i++)
            for (int k = 0; k < rank; k++)
                to[o * n_in + i] += scale * (double)b[o * rank + k] * (double)a[k * n_in + i];
}

/* A LoRA, or a DoRA, of each expert's module; some experts of the second layer have none. */
static const char *of_modules(struct deltas *d, struct folder *f, bool dora)
{
    const struct family *m = d->family;
    const char *const names[] = {m->gate, m->up, m->down};
    for (int l = 0; l < N_LAYERS; l++)
        for (int e = 0; e < N_EXPERTS - l; e++)
            for (int k = 0; k < 3; k++) {
                const int kind = k == 2 ? DOWN : GATE_UP, n_in = n_inputs(m, kind), n_out = k == 2 ? WIDTH : m->n_ff;
                char module[96], name[160];
                snprintf(module, sizeof module, m->experts, l);
                snprintf(name, sizeof name, "base_model.model.%s.%d.%s.lora_A.weight", module, e, names[k]);
                const float *a = folder_add(f, name, RANK, n_in, 0, 0.2f);
                snprintf(name, sizeof name, "base_model.model.%s.%d.%s.lora_B.weight", module, e, names[k]);
                const float *b = folder_add(f, name, n_out, RANK, 0, 0.2f);
                add_product(d->of[l][kind][e] + (k == 1 ? m->n_ff * n_in : 0), a, b, n_out, n_in, RANK,
                            (double)ALPHA / RANK);
                snprintf(name, sizeof name, "base_model.model.%s.%d.%s.lora_magnitude_vector", module, e, names[k]);
                if (dora)
                    d->lengths[l][kind][e][k == 1] = folder_add(f, name, n_out, 0, 0.3f, 0.1f);
            }
    return folder_write_peft(f, dora ? "{" CONFIG ",\"use_dora\":true}" : "{" CONFIG "}");
}

/* The two parameters' LoRAs as a version of PEFT writes them: lora_A is [n_expert r, dimension 1] of a parameter and
 * lora_B [dimension 2, r n_expert], or with `swap` the other way round; the delta of element [e][i][o] is then the sum
 * over k of A[e r + k][i] B[o][k n_expert + e]. */
static const char *of_parameters(struct deltas *d, struct folder *f, bool swap, const char *version)
{
    const struct family *m = d->family;
    char config[400];
    for (int l = 0; l < N_LAYERS; l++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            const int n_in = n_inputs(m, kind), n_out = n_outputs(m, kind);
            const int rank = kind == DOWN ? RANK : WIDE_RANK, alpha = kind == DOWN ? ALPHA : WIDE_ALPHA;
            const int dims[2] = {m->transposed ? n_in : n_out, m->transposed ? n_out : n_in};
            const int of_a = dims[swap], of_b = dims[!swap];
            char module[96], name[160];
            /* the last parameter of a module is wrapped around the first */
            snprintf(module, sizeof module, "base_model.model.model.layers.%d.mlp.experts%s", l,
                     kind == DOWN ? "" : ".base_layer");
            snprintf(name, sizeof name, "%s.lora_A.weight", module);
            const float *a = folder_add(f, name, N_EXPERTS * rank, of_a, 0, 0.2f);
            snprintf(name, sizeof name, "%s.lora_B.weight", module);
            const float *b = folder_add(f, name, of_b, N_EXPERTS * rank, 0, 0.2f);
            for (int e = 0; e < N_EXPERTS; e++)
                for (int first = 0; first < dims[0]; first++)
                    for (int second = 0; second < dims[1]; second++) {
                        const int i = swap ? second : first, o = swap ? first : second;
                        const int in = m->transposed ? first : second, out = m->transposed ? second : first;
                        const int ours = kind == GATE_UP && m->transposed ? out / 2 + out % 2 * m->n_ff : out;
                        for (int k = 0; k < rank; k++)
                            d->of[l][kind][e][ours * n_in + in] += (double)alpha / rank *
                                                                  (double)a[(e * rank + k) * of_a + i] *
                                                                  (double)b[o * N_EXPERTS * rank + k * N_EXPERTS + e];
                    }
        }
    snprintf(config, sizeof config,
             "{" CONFIG ",\"peft_version\":\"%s\",\"rank_pattern\":{\".*\\\\.gate_up_proj\":2},\"alpha_pattern\":"
             "{\".*\\\\.gate_up_proj\":5},\"target_modules\":[],\"target_parameters\":[\"mlp.experts.down_proj\","
             "\"mlp.experts.gate_up_proj\"]}", version);
    return folder_write_peft(f, config);
}

/* --- logits ---------------------------------------------------------------------------------------------------- */

/* [SMALL_TEXT, n_vocab]; pp_free. adapter: NULL for the model alone. */
static float *logits_of(const char *model, const char *adapter, int *n)
{
    struct running r = run_small(model, NULL);
    const int n_vocab = (int)pp_model_info(r.m)->n_vocab;
    struct pp_adapter *a = NULL;
    struct pp_error err;
    int32_t ids[SMALL_TEXT];
    float *out = pp_calloc((size_t)(SMALL_TEXT * n_vocab), sizeof *out);
    small_text(ids, n_vocab);
    if (adapter) {
        assert_ok(pp_adapter_load_exact(r.m, adapter, &a, &err), err);
        assert_ok(pp_seq_set_adapters(r.s, &(struct pp_adapter_use){a, 1}, 1, &err), err);
    }
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 29, out);
    stop_adapted(&r, a);
    *n = SMALL_TEXT * n_vocab;
    return out;
}

static double farthest(const float *a, const float *b, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]) / fmax(1, fabs((double)b[i])));
    return most;
}

static void check_same(const char *model, const char *adapter, const float *want)
{
    int n;
    float *got = logits_of(model, adapter, &n);
    if (!(farthest(got, want, n) < 2e-4))
        fail_msg("%s on %s is %g off", adapter, model, farthest(got, want, n));
    pp_free(got);
}

/* A GGUF file of a family's folder. */
static const char *file_of(const struct family *f)
{
    static char paths[N_FAMILIES][300];
    char *path = paths[f - families];
    struct pp_error err;
    if (*path)
        return path;
    snprintf(path, sizeof paths[0], "%s", fresh_path("model.gguf"));
    assert_ok(pp_convert_to_gguf(architecture(f->folder), path, &(struct pp_convert_options){0}, &err), err);
    return path;
}

/* The adapter gives the results of the merged folder, on the folder and on the file converted from it; so do the GGUF
 * adapter converted from it and the folder converted from that, which in some cases has the original's tensors. */
static void check_adapter(struct deltas *d, struct folder *f, const char *adapter, bool exact)
{
    const char *model = architecture(d->family->folder), *file = file_of(d->family);
    const char *gguf = fresh_path("adapter.gguf"), *again = fresh_path("adapter");
    struct pp_error err;
    int n;
    float *want = logits_of(merged(d), NULL, &n), *alone = logits_of(model, NULL, &n);
    assert_true(farthest(alone, want, n) > 0.01);
    assert_ok(pp_convert_to_gguf(adapter, gguf, &(struct pp_convert_options){.base = model}, &err), err);
    assert_ok(pp_convert_to_peft(gguf, again, &(struct pp_convert_options){.base = file}, &err), err);
    check_same(model, adapter, want);
    check_same(file, adapter, want);
    check_same(model, gguf, want);
    check_same(file, gguf, want);
    check_same(model, again, want);
    if (exact)
        folder_same_tensors(adapter, again, "experts.lora_B"); /* GGUF has one alpha: B of `down` is scaled */
    pp_free(want);
    pp_free(alone);
    deltas_free(d);
    folder_empty(f);
}

static void modules(void **state)
{
    (void)state;
    for (int i = MIXTRAL; i <= QWEN3MOE; i++) {
        struct deltas d = deltas_new(&families[i]);
        struct folder f = {.random = 3};
        check_adapter(&d, &f, of_modules(&d, &f, false), false);
    }
}

/* DoRA and other kinds than plain LoRA work for experts, too; they cannot be written as GGUF. */
static void doras(void **state)
{
    struct deltas d = deltas_new(&families[MIXTRAL]);
    struct folder f = {.random = 6};
    int n;
    (void)state;
    const char *adapter = of_modules(&d, &f, true);
    float *want = logits_of(merged(&d), NULL, &n);
    check_same(architecture(d.family->folder), adapter, want);
    check_same(file_of(d.family), adapter, want);
    pp_free(want);
    deltas_free(&d);
    folder_empty(&f);
}

/* IA3 with PEFT's defaults for Mixtral: the input of an expert's `down` is scaled; only in some experts. */
static const char *ia3_of_modules(struct deltas *d, struct folder *f)
{
    const struct family *m = d->family;
    char config[200], module[96], name[160];
    for (int l = 0; l < N_LAYERS; l++)
        for (int e = l; e < N_EXPERTS; e++) {
            snprintf(module, sizeof module, m->experts, l);
            snprintf(name, sizeof name, "base_model.model.%s.%d.%s.ia3_l", module, e, m->down);
            d->columns[l][e] = folder_add(f, name, 1, m->n_ff, 0.5f, 0.4f);
        }
    snprintf(config, sizeof config,
             "{\"peft_type\":\"IA3\",\"target_modules\":[\"%s\"],\"feedforward_modules\":[\"%s\"]}", m->down, m->down);
    return folder_write_peft(f, config);
}

/* Two adapters at once. */
static float *logits_of_both(const char *model, const char *first, const char *second, int *n)
{
    struct running r = run_small(model, NULL);
    const int n_vocab = (int)pp_model_info(r.m)->n_vocab;
    struct pp_adapter *a, *b;
    struct pp_error err;
    int32_t ids[SMALL_TEXT];
    float *out = pp_calloc((size_t)(SMALL_TEXT * n_vocab), sizeof *out);
    small_text(ids, n_vocab);
    assert_ok(pp_adapter_load_exact(r.m, first, &a, &err), err);
    assert_ok(pp_adapter_load_exact(r.m, second, &b, &err), err);
    const struct pp_adapter_use uses[] = {{a, 1}, {b, 1}};
    assert_ok(pp_seq_set_adapters(r.s, uses, 2, &err), err);
    run_in_passes(r.e, r.s, ids, SMALL_TEXT, 29, out);
    stop_adapted(&r, a);
    pp_adapter_free(b);
    *n = SMALL_TEXT * n_vocab;
    return out;
}

/* IA3 alone, and together with a LoRA, whose A reads the input without IA3's scales. */
static void ia3(void **state)
{
    (void)state;
    for (int i = MIXTRAL; i <= QWEN3MOE; i++) {
        struct deltas d = deltas_new(&families[i]);
        struct folder scales = {.random = 8}, lora = {.random = 3};
        const char *model = architecture(families[i].folder), *by_scales = ia3_of_modules(&d, &scales);
        int n;
        float *want = logits_of(merged(&d), NULL, &n), *alone = logits_of(model, NULL, &n);
        assert_true(farthest(alone, want, n) > 0.01);
        check_same(model, by_scales, want);
        check_same(file_of(&families[i]), by_scales, want);
        pp_free(want);
        const char *by_lora = of_modules(&d, &lora, false);
        want = logits_of(merged(&d), NULL, &n);
        float *got = logits_of_both(model, by_lora, by_scales, &n);
        assert_true(farthest(got, want, n) < 2e-4);
        pp_free(got);
        pp_free(want);
        pp_free(alone);
        deltas_free(&d);
        folder_empty(&scales);
        folder_empty(&lora);
    }
}

/* Qwen 3's `down` is square here, so that only PEFT's version tells which of the LoRA's matrices is which. */
static void parameters(void **state)
{
    static const struct {
        int family;
        bool swap;
        const char *version;
    } cases[] = {
        {MIXTRAL, true, "0.19.1"}, {MIXTRAL, false, "0.17.0"}, {QWEN3MOE, true, "0.20.0"}, {QWEN3MOE, false, "0.19.0"},
        {GPTOSS, false, "0.19.1"}, {GPTOSS, true, "0.19.0"},   {GPTOSS, false, "0.17.1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct deltas d = deltas_new(&families[cases[i].family]);
        struct folder f = {.random = 3};
        check_adapter(&d, &f, of_parameters(&d, &f, cases[i].swap, cases[i].version),
                      cases[i].family == GPTOSS && !cases[i].swap);
    }
}

/* Adapters as MLX writes them, and malformed ones. */
static void stacks(void **state)
{
    static const char mlx[] = "{\"fine_tune_type\": \"lora\", \"lora_parameters\": {\"scale\": 2.5}}";
    static const char *const kinds[] = {"gate_proj", "up_proj", "down_proj"};
    const struct family *m = &families[QWEN3MOE];
    struct deltas d = deltas_new(m);
    struct folder f = {.random = 4}, none = {0};
    struct pp_tensor tensors[N_LAYERS * 3 * 2];
    struct pp_error err;
    char path[512];
    int n = 0;
    (void)state;
    for (int l = 0; l < N_LAYERS; l++)
        for (int k = 0; k < 3; k++) {
            const int kind = k == 2 ? DOWN : GATE_UP, n_in = n_inputs(m, kind), n_out = k == 2 ? WIDTH : m->n_ff;
            const float *halves[2];
            for (int half = 0; half < 2; half++) {
                char name[160];
                snprintf(name, sizeof name, "model.layers.%d.mlp.switch_mlp.%s.lora_%c", l, kinds[k], 'a' + half);
                const int rows = half ? n_out : RANK, cols = half ? RANK : n_in;
                halves[half] = folder_add(&f, name, N_EXPERTS * rows, cols, 0, 0.2f);
                tensors[n++] = (struct pp_tensor){.name = f.parts[f.n - 1].name, .type = PP_TYPE_F32, .n_dims = 3,
                                                  .ne = {cols, rows, N_EXPERTS, 1}, .data = halves[half],
                                                  .size = (size_t)(N_EXPERTS * rows * cols) * sizeof(float)};
            }
            for (int e = 0; e < N_EXPERTS; e++)
                add_product(d.of[l][kind][e] + (k == 1 ? m->n_ff * n_in : 0), halves[0] + e * RANK * n_in,
                            halves[1] + e * n_out * RANK, n_out, n_in, RANK, 2.5);
        }
    const char *folder = folder_write(&none, mlx, "none.safetensors");
    snprintf(path, sizeof path, "%s/adapters.safetensors", folder);
    assert_ok(pp_safetensors_write(path, tensors, (size_t)n, &err), err);
    check_adapter(&d, &f, folder, false);
}

/* One adapter has stacked parameters for some experts and a module for another: each finds its own rows. */
static void of_both_kinds(void **state)
{
    enum { SOME = 2 };
    static const char *const parts[][2] = {{"experts.lora_A", "experts.lora_B"},
                                           {"experts.3.up_proj.lora_A", "experts.3.up_proj.lora_B"}};
    const struct family *m = &families[QWEN3MOE];
    const char *model = architecture(m->folder), *gguf = fresh_path("both.gguf");
    const int shapes[][2][2] = {{{SOME * RANK, WIDTH}, {2 * m->n_ff, SOME * RANK}}, {{RANK, WIDTH}, {m->n_ff, RANK}}};
    struct folder f = {.random = 11};
    struct pp_error err;
    char name[160];
    int n;
    (void)state;
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "base_model.model.model.layers.1.mlp.%s.weight", parts[i / 2][i % 2]);
        folder_add(&f, name, shapes[i / 2][i % 2][0], shapes[i / 2][i % 2][1], 0, 0.2f);
    }
    const char *folder = folder_write_peft(&f, "{" CONFIG ",\"peft_version\":\"0.20.0\",\"target_parameters\":"
                                               "[\"mlp.experts.gate_up_proj\"]}");
    float *want = logits_of(model, folder, &n), *alone = logits_of(model, NULL, &n);
    assert_true(farthest(alone, want, n) > 0.01);
    assert_ok(pp_convert_to_gguf(folder, gguf, &(struct pp_convert_options){.base = model}, &err), err);
    check_same(model, gguf, want);
    pp_free(want);
    pp_free(alone);
    folder_empty(&f);
}

/* --- GGUF adapters of gate and up in one stack ------------------------------------------------------------------ */

/* Makes A and B of a layer for the first n_experts; the caller frees their values. */
static void make_fused(struct array halves[2], int l, int n_experts, int n_in, int n_out, uint32_t *random)
{
    array_make(&halves[0], l, "ffn_gate_up_exps.weight.lora_a", n_experts, RANK, n_in, 0, 0.2f, random);
    array_make(&halves[1], l, "ffn_gate_up_exps.weight.lora_b", n_experts, n_out, RANK, 0, 0.2f, random);
}

static const char *write_gguf(const char *arch, const struct array *halves, int n)
{
    const char *path = fresh_path("fused.gguf");
    struct pp_tensor tensors[2 * N_LAYERS];
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", arch);
    pp_gguf_add_text(w, "general.type", "adapter");
    pp_gguf_add_text(w, "adapter.type", "lora");
    pp_gguf_add_f32(w, "adapter.lora.alpha", ALPHA);
    for (int i = 0; i < n; i++)
        tensors[i] = array_tensor(&halves[i]);
    gguf_file_end(w, tensors, (size_t)n);
    return path;
}

/* A GGUF adapter gives the results of the merged folder; and so does the folder converted from it, whether the family's
 * folders have gate and up joined or in separate modules. */
static void fused(void **state)
{
    (void)state;
    for (int i = 0; i < N_FAMILIES; i++) {
        const struct family *m = &families[i];
        struct deltas d = deltas_new(m);
        const struct pp_convert_options base = {.base = file_of(m)};
        const int n_out = n_outputs(m, GATE_UP);
        const char *again = fresh_path("again");
        struct array halves[2 * N_LAYERS];
        struct pp_error err;
        uint32_t random = 8;
        int n;
        for (int l = 0; l < N_LAYERS; l++) {
            const struct array *a = &halves[2 * l], *b = a + 1;
            make_fused(&halves[2 * l], l, N_EXPERTS, WIDTH, n_out, &random);
            for (int e = 0; e < N_EXPERTS; e++)
                add_product(d.of[l][GATE_UP][e], a->values + e * RANK * WIDTH, b->values + e * n_out * RANK, n_out,
                            WIDTH, RANK, (double)ALPHA / RANK);
        }
        const char *gguf = write_gguf(m->arch, halves, 2 * N_LAYERS);
        float *want = logits_of(merged(&d), NULL, &n);
        check_same(file_of(m), gguf, want);
        check_same(architecture(m->folder), gguf, want);
        assert_ok(pp_convert_to_peft(gguf, again, &base, &err), err);
        check_same(file_of(m), again, want);
        pp_free(want);
        for (int k = 0; k < 2 * N_LAYERS; k++)
            pp_free(halves[k].values);
        deltas_free(&d);
    }
}

/* Step 3's folders have separate stacks of gate and up, so that one pair of tensors becomes two, however few experts
 * the first one covers. */
static void of_one_expert(void **state)
{
    const struct decoder_shape s = decoder_shape("step3_text");
    struct decoder *d = decoder_make(&s);
    const char *model = decoder_write(d), *folder = fresh_path("of-one");
    struct array halves[2];
    struct pp_error err;
    uint32_t random = 9;
    int n;
    (void)state;
    make_fused(halves, 1, 1, s.n_embd, 2 * s.n_ff, &random);
    const char *gguf = write_gguf(s.arch, halves, 2);
    float *want = logits_of(model, gguf, &n), *alone = logits_of(model, NULL, &n);
    assert_true(farthest(alone, want, n) > 0.01);
    assert_ok(pp_convert_to_peft(gguf, folder, &(struct pp_convert_options){.base = model}, &err), err);
    check_same(model, folder, want);
    pp_free(want);
    pp_free(alone);
    for (int half = 0; half < 2; half++)
        pp_free(halves[half].values);
    decoder_free(d);
}

static void bad(void **state)
{
    static const char down[] = "\"target_parameters\":[\"mlp.experts.down_proj\"]";
    static const struct {
        const char *module, *config;
        int rows_a, cols_a, rows_b, cols_b;
        const char *text;
    } cases[] = {
        {"mlp.experts", down, 10, 64, 64, 12, "is 10 wide, which is not a multiple of the rank 3"},
        {"mlp.experts", down, 12, 64, 64, 15, "has only one of the matrices A and B"},
        {"mlp.experts", down, 15, 64, 64, 15, "blk.1.ffn_down.4.weight, which"},
        {"mlp.experts", down, 12, 48, 64, 12, "is for a matrix of 64 x 48, but in"},
        {"mlp.experts.base_layer", down, 12, 64, 64, 12, "is not part of a matrix's adapter"},
        {"mlp.experts", "\"target_parameters\":[\"other.experts.down_proj\", 7]", 12, 64, 64, 12, "is not part of"},
        {"mlp.experts", "\"bias\":\"none\"", 12, 64, 64, 12, "is not part of"},
        {"mlp.experts.2.down_proj", "\"target_modules\":[\"down_proj\"]", 3, 64, 64, 3, NULL},
        {"mlp.gate", "\"target_parameters\":[\"mlp.gate.weight\"]", 3, 64, 4, 3, NULL},
    };
    struct running r = run_small(architecture(families[QWEN3MOE].folder), NULL);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f = {.random = 2};
        struct pp_adapter *a = NULL;
        struct pp_error err;
        char name[160], config[300];
        for (int half = 0; half < 2; half++) {
            snprintf(name, sizeof name, "base_model.model.model.layers.1.%s.lora_%c.weight", cases[i].module,
                     'A' + half);
            folder_add(&f, name, half ? cases[i].rows_b : cases[i].rows_a, half ? cases[i].cols_b : cases[i].cols_a, 0,
                       0.2f);
        }
        folder_add(&f, "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", 3, WIDTH, 0, 1);
        folder_add(&f, "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", WIDTH, 3, 0, 1);
        snprintf(config, sizeof config, "{" CONFIG ",%s}", cases[i].config);
        const enum pp_code code = pp_adapter_load(r.m, folder_write_peft(&f, config), &a, &err);
        if (!cases[i].text)
            assert_int_equal(code, PP_OK);
        else if (!code || !strstr(err.text, cases[i].text))
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, code ? err.text : "", cases[i].text);
        pp_adapter_free(a);
        folder_empty(&f);
    }
    stop_small(&r);
}

/* The gate's input is also read by other matrices, so IA3 cannot scale it. */
static void scales_of_shared_inputs(void **state)
{
    struct running r = run_small(architecture(families[MIXTRAL].folder), NULL);
    struct folder f = {.random = 2};
    struct pp_adapter *a;
    struct pp_error err;
    (void)state;
    folder_add(&f, "base_model.model.model.layers.1.block_sparse_moe.experts.2.w1.ia3_l", 1, WIDTH, 0.5f, 0.4f);
    const char *path = folder_write_peft(
        &f, "{\"peft_type\":\"IA3\",\"target_modules\":[\"w1\"],\"feedforward_modules\":[\"w1\"]}");
    assert_int_equal(pp_adapter_load(r.m, path, &a, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "scales the input of blk.1.ffn_gate.2.weight, a matrix of an expert"));
    folder_empty(&f);
    stop_small(&r);
}

/* --- several sets in one batch --------------------------------------------------------------------------------- */

enum { N_ADAPTERS = 4, N_SETS = 7, TEXT = 18 };

static const char *write_adapter(const struct family *m, uint32_t random, bool of_each)
{
    struct deltas d = deltas_new(m);
    struct folder f = {.random = random};
    const char *path = of_each ? of_modules(&d, &f, false) : of_parameters(&d, &f, !m->transposed, "0.19.1");
    deltas_free(&d);
    folder_empty(&f);
    return path;
}

static const char *attention_adapter(uint32_t random)
{
    struct folder f = {.random = random};
    folder_add(&f, "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", RANK, WIDTH, 0, 0.2f);
    folder_add(&f, "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight", WIDTH, RANK, 0, 0.2f);
    const char *path = folder_write_peft(&f, "{" CONFIG "}");
    folder_empty(&f);
    return path;
}

static const char *scales_adapter(const struct family *m)
{
    struct deltas d = deltas_new(m);
    struct folder f = {.random = 11};
    const char *path = ia3_of_modules(&d, &f);
    deltas_free(&d);
    folder_empty(&f);
    return path;
}

struct sets {
    struct pp_adapter *a[N_ADAPTERS];
    struct pp_adapter_use uses[N_SETS][3];
    int n[N_SETS];
};

static struct sets sets_load(const struct pp_model *m, const struct family *f)
{
    const char *const paths[] = {write_adapter(f, 5, false), write_adapter(f, 9, !f->transposed), attention_adapter(7),
                                 f->transposed ? attention_adapter(8) : scales_adapter(f)};
    struct sets s = {.n = {0, 1, 1, 3, 1, 1, 2}};
    struct pp_error err;
    for (int i = 0; i < N_ADAPTERS; i++)
        assert_ok(pp_adapter_load(m, paths[i], &s.a[i], &err), err);
    s.uses[1][0] = (struct pp_adapter_use){s.a[0], 1};
    s.uses[2][0] = (struct pp_adapter_use){s.a[1], 0.7f};
    s.uses[3][0] = (struct pp_adapter_use){s.a[1], -0.4f};
    s.uses[3][1] = (struct pp_adapter_use){s.a[2], 1.2f};
    s.uses[3][2] = (struct pp_adapter_use){s.a[0], 0.6f};
    s.uses[4][0] = (struct pp_adapter_use){s.a[2], 1};
    s.uses[5][0] = (struct pp_adapter_use){s.a[3], 0.8f};
    s.uses[6][0] = (struct pp_adapter_use){s.a[3], -0.5f};
    s.uses[6][1] = (struct pp_adapter_use){s.a[1], 0.9f};
    return s;
}

/* Logits of TEXT tokens for all sets, [N_SETS][TEXT][n_vocab], `together` tokens of each set at a time, in one batch or
 * each set alone; pp_free. The last steps must not allocate. */
static float *run_sets(const struct pp_model *m, const struct sets *sets, const char *kernels, int n_threads,
                       int at_once, bool together)
{
    const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = n_threads, .kv_memory = 32u << 20,
                                          .n_ctx = SMALL_TEXT, .kernels = kernels, .activations = PP_ACT_PAIR};
    const int n_vocab = (int)pp_model_info(m)->n_vocab;
    float *out = pp_calloc((size_t)(N_SETS * TEXT * n_vocab), sizeof *out);
    struct pp_row rows[N_SETS * TEXT];
    struct pp_seq *seqs[N_SETS];
    struct pp_engine *e;
    struct pp_error err;
    uint64_t allocated = 0;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    for (int i = 0; i < N_SETS; i++) {
        assert_ok(pp_seq_new(e, &seqs[i], &err), err);
        assert_ok(pp_seq_set_adapters(seqs[i], sets->uses[i], sets->n[i], &err), err);
    }
    for (int at = 0; at < TEXT; at += at_once) {
        int n = 0;
        if (at + 2 * at_once >= TEXT && !allocated)
            allocated = pp_mem_count();
        for (int i = 0; i < N_SETS; i++) {
            const int first = n;
            for (int k = 0; k < at_once && at + k < TEXT; k++)
                rows[n++] = (struct pp_row){.seq = seqs[i], .token = 3 + (at + k) * 37 % 500,
                                            .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
            if (together && i < N_SETS - 1)
                continue;
            assert_ok(pp_step(e, rows, n, NULL, &err), err);
            for (int k = 0; k < n; k++) {
                const int set = together ? k / (n / N_SETS) : i, in = together ? k % (n / N_SETS) : k - first;
                memcpy(out + (set * TEXT + at + in) * n_vocab, pp_step_output(e, k), (size_t)n_vocab * sizeof *out);
            }
            n = 0;
        }
    }
    assert_true(pp_mem_count() == allocated);
    for (int i = 0; i < N_SETS; i++)
        pp_seq_free(seqs[i]);
    pp_engine_free(e);
    return out;
}

/* quant: the type to which the weights are converted, or NULL. */
static void check_sets(const struct family *f, const char *quant)
{
    struct pp_model *m;
    struct pp_error err;
    assert_ok(pp_model_open_as(architecture(f->folder), quant, NULL, &m, &err), err);
    struct sets sets = sets_load(m, f);
    const size_t of_set = (size_t)TEXT * (size_t)pp_model_info(m)->n_vocab;
    float *want = run_sets(m, &sets, NULL, 1, 1, false);
    for (int i = 1; i < N_SETS; i++)
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(want + (size_t)i * of_set, want + (size_t)k * of_set, of_set * sizeof *want);
    const struct {
        const char *kernels;
        int n_threads, at_once;
    } manners[] = {{NULL, 2, 1}, {NULL, 3, 3}, {"scalar", 2, 6}};
    for (size_t i = 0; i < sizeof manners / sizeof *manners; i++) {
        float *got = run_sets(m, &sets, manners[i].kernels, manners[i].n_threads, manners[i].at_once, true);
        for (int k = 0; k < N_SETS; k++)
            if (memcmp(got + (size_t)k * of_set, want + (size_t)k * of_set, of_set * sizeof *got) != 0)
                fail_msg("%s as %s: set %d has other bits in a batch, %d at a time", f->folder,
                         quant ? quant : "stored", k, manners[i].at_once);
        pp_free(got);
    }
    pp_free(want);
    for (int i = 0; i < N_ADAPTERS; i++)
        pp_adapter_free(sets.a[i]);
    pp_model_close(m);
}

static void sets_in_a_batch(void **state)
{
    (void)state;
    check_sets(&families[MIXTRAL], NULL);
    check_sets(&families[QWEN3MOE], "q4_0");
    check_sets(&families[GPTOSS], "q8_0");
}

/* The number of thread barriers in a pass over this many rows, `n` of which have the adapters. */
static int count_barriers(struct pp_engine *e, const struct pp_adapter_use *uses, int n, int n_rows)
{
    struct pp_row rows[TEXT];
    struct pp_error err;
    struct pp_seq *s;
    assert_ok(pp_seq_new(e, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, uses, n, &err), err);
    for (int i = 0; i < n_rows; i++)
        rows[i] = (struct pp_row){.seq = s, .token = 3 + i, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    assert_ok(pp_step(e, rows, n_rows, NULL, &err), err);
    pp_seq_free(s);
    return e->cpu->n_parts;
}

/* Adapters of experts add no barriers; a single row needs at most eight for each layer. */
static void no_barrier_more(void **state)
{
    enum { A_LAYER = 8, AROUND = 4 /* the embedding, the choice of rows, the last norm, the logits */ };
    (void)state;
    const struct family *const tried[] = {&families[MIXTRAL], &families[GPTOSS]};
    for (int i = 0; i < 2; i++) {
        const struct pp_engine_options opt = {.n_threads = 2, .kv_memory = 64u << 20};
        struct pp_error err;
        struct pp_model *m;
        struct pp_engine *e;
        assert_ok(pp_model_open_as(architecture(tried[i]->folder), "q8_0", NULL, &m, &err), err);
        assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
        struct sets sets = sets_load(m, tried[i]);
        const struct pp_adapter_use uses[] = {{sets.a[0], 1}, {sets.a[1], 0.5f}};
        assert_in_range(count_barriers(e, NULL, 0, 1), 4, A_LAYER * pp_model_info(m)->n_layer + AROUND);
        for (int n_rows = 1; n_rows <= TEXT; n_rows++)
            for (int n = 1; n <= 2; n++)
                assert_int_equal(count_barriers(e, uses, n, n_rows), count_barriers(e, NULL, 0, n_rows));
        pp_engine_free(e);
        for (int k = 0; k < N_ADAPTERS; k++)
            pp_adapter_free(sets.a[k]);
        pp_model_close(m);
    }
}

TEST_GROUP(adapter_experts)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules),
        cmocka_unit_test(doras),
        cmocka_unit_test(ia3),
        cmocka_unit_test(parameters),
        cmocka_unit_test(stacks),
        cmocka_unit_test(of_both_kinds),
        cmocka_unit_test(fused),
        cmocka_unit_test(of_one_expert),
        cmocka_unit_test(bad),
        cmocka_unit_test(scales_of_shared_inputs),
        cmocka_unit_test(sets_in_a_batch),
        cmocka_unit_test(no_barrier_more),
    };
    return cmocka_run_group_tests_name("adapter_experts", tests, NULL, NULL);
}
