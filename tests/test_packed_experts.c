/* test_packed_experts.c - quantised folders with unusual layouts of matrices: stacks of experts as in the published
 * gpt-oss and in MLX, q, k and v interleaved by head, and families whose float matrices are stored transposed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/quant.h"
#include "engine/rows.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "tests/packed_folder.h"
#include "tests/support.h"

/* Where a matrix of the family's folder goes: patterns of its name, in which {} is the layer's index, and a following
 * X the expert's. */
struct place {
    const char *from, *module;
    enum { WHOLE, TRANSPOSED, TRANSPOSED_STACK, TRANSPOSED_EVEN, TRANSPOSED_ODD } how;
    const char *bias, *bias_name;   /* that goes with it; or NULL */
};

struct folder {
    const char *family, *form;
    const struct place *places;
    const char *const *renamed;     /* pairs: the beginning of other names, and its replacement */
    int n_layers, n_experts;
};

struct making {
    const struct folder *f;
    const struct packed_options *opt;
    struct pp_safetensors *s;
    struct tensor_file packed, floats;
};

static const char *filled(const char *pattern, int layer, int expert)
{
    static char names[4][200];
    static int next;
    char *out = names[next++ % 4], *at = out;
    for (; *pattern; pattern++)
        if (pattern[0] == '{')
            at += sprintf(at, "%d", layer), pattern++;
        else if (pattern[0] == 'X')
            at += sprintf(at, "%d", expert);
        else
            *at++ = *pattern;
    *at = 0;
    return out;
}

static float *floats_of(const struct pp_tensor *t)
{
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    float *w = calloc((size_t)n, sizeof *w);
    assert_non_null(w);
    pp_dequantize_row(t->type, t->data, w, n);
    return w;
}

/* The index of element [e][r][c] of the quantised matrix in the family's tensor. */
static int64_t place_of(const struct place *p, const struct pp_tensor *t, int64_t e, int64_t r, int64_t c)
{
    const int64_t all = t->ne[0] * t->ne[1] * e, step = p->how == TRANSPOSED_EVEN || p->how == TRANSPOSED_ODD ? 2 : 1;
    return p->how == WHOLE ? all + r * t->ne[0] + c : all + c * t->ne[0] + r * step + (p->how == TRANSPOSED_ODD);
}

/* Packs the matrices of one place for all experts. The floats get the decoded values, and keep the family's form. */
static void pack_place(struct making *m, const struct place *p, int layer, float *all, const struct pp_tensor *t,
                       int n_experts)
{
    const bool halves = p->how == TRANSPOSED_EVEN || p->how == TRANSPOSED_ODD;
    const int64_t n_matrices = n_experts ? n_experts : t->n_dims == 3 ? t->ne[2] : 0;
    const int64_t many = n_matrices ? n_matrices : 1;
    const int64_t k = p->how == WHOLE ? t->ne[0] : t->ne[1], n = (p->how == WHOLE ? t->ne[1] : t->ne[0]) / (1 + halves);
    float *w = calloc((size_t)(many * n * k), sizeof *w);
    assert_non_null(w);
    for (int64_t i = 0; i < many * n * k; i++)
        w[i] = all[place_of(p, t, i / k / n, i / k % n, i % k)];
    packed_matrix(&m->packed, packed_form(m->f->form), m->opt, filled(p->module, layer, 0), n_matrices, many * n, k, w);
    for (int64_t i = 0; i < many * n * k; i++)
        all[place_of(p, t, i / k / n, i / k % n, i % k)] = w[i];
    free(w);
}

/* All experts' matrices of a layer, concatenated. */
static float *gather(struct making *m, const char *from, int layer, struct pp_tensor *t)
{
    float *all = NULL;
    for (int e = 0; e < m->f->n_experts; e++) {
        const struct pp_tensor *one = pp_safetensors_find(m->s, filled(from, layer, e));
        assert_non_null(one);
        float *w = floats_of(one);
        const int64_t n = one->ne[0] * one->ne[1];
        all = realloc(all, (size_t)(n * (e + 1)) * sizeof *all);
        assert_non_null(all);
        memcpy(all + n * e, w, (size_t)n * sizeof *w);
        free(w);
        *t = *one;
    }
    return all;
}

static void add_floats(struct tensor_file *f, const char *name, const struct pp_tensor *t, const float *w)
{
    int64_t shape[4];
    for (int d = 0; d < t->n_dims; d++)
        shape[d] = t->ne[t->n_dims - 1 - d];
    tensor_file_add(f, name, "F32", t->n_dims, shape, w, (size_t)(t->ne[0] * t->ne[1] * t->ne[2]) * sizeof *w);
}

static void pack_experts(struct making *m, const struct place *p, int layer)
{
    struct pp_tensor t = {0};
    float *all = gather(m, p->from, layer, &t);
    pack_place(m, p, layer, all, &t, m->f->n_experts);
    for (int e = 0; e < m->f->n_experts; e++)
        add_floats(&m->floats, filled(p->from, layer, e), &t, all + e * t.ne[0] * t.ne[1]);
    free(all);
}

/* Places in the same tensor are listed one after the other, so that it is written once. */
static const struct place *pack_tensor(struct making *m, const struct place *p, int layer)
{
    const char *from = filled(p->from, layer, 0);
    const struct pp_tensor *t = pp_safetensors_find(m->s, from);
    float *all = floats_of(t);
    const struct place *first = p;
    for (; p->from && strcmp(p->from, first->from) == 0; p++)
        pack_place(m, p, layer, all, t, 0);
    add_floats(&m->floats, from, t, all);
    free(all);
    return p;
}

/* Adds the biases that MLX stores separately. */
static void pack_bias(struct making *m, const struct place *p, int layer)
{
    const struct pp_tensor *t = pp_safetensors_find(m->s, filled(p->bias, layer, 0));
    const bool halves = p->how == TRANSPOSED_EVEN || p->how == TRANSPOSED_ODD;
    float *w = floats_of(t);
    struct pp_tensor half = *t;
    half.ne[0] /= 1 + halves;
    for (int64_t i = 0; halves && i < half.ne[0] * half.ne[1]; i++)
        w[i] = w[2 * i + (p->how == TRANSPOSED_ODD)];
    add_floats(&m->packed, filled(p->bias_name, layer, 0), &half, w);
    free(w);
}

static bool is_in(const struct tensor_file *f, const char *name)
{
    char quoted[220];
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    return strstr(pp_buf_cstr((struct pp_buf *)(uintptr_t)&f->header), quoted) != NULL;
}

/* Adds the tensors that are in no place; biases that belong to one were added with it. */
static void add_rest(struct making *m, const char *gone)
{
    for (size_t i = 0; i < pp_safetensors_n(m->s); i++) {
        const struct pp_tensor *t = pp_safetensors_at(m->s, i);
        char name[200];
        float *w = floats_of(t);
        if (is_in(&m->floats, t->name)) {
            free(w);
            continue;
        }
        add_floats(&m->floats, t->name, t, w);
        snprintf(name, sizeof name, "%s", t->name);
        for (const char *const *r = m->f->renamed; r && *r; r += 2)
            if (strncmp(t->name, r[0], strlen(r[0])) == 0)
                snprintf(name, sizeof name, "%s%s", r[1], t->name + strlen(r[0]));
        if (!gone || !strstr(t->name, gone))
            add_floats(&m->packed, name, t, w);
        free(w);
    }
}

static void write_folders(const struct folder *f, const struct packed_options *opt, const char *packed,
                          const char *floats)
{
    struct making m = {.f = f, .opt = opt};
    struct pp_error err;
    char path[300];
    m.packed.leave_out = opt->leave_out;
    m.packed.turned = opt->turned;
    m.packed.emptied = opt->emptied;
    snprintf(path, sizeof path, "architectures/%s/model.safetensors", f->family);
    assert_ok(pp_safetensors_open(testdata(path), &m.s, &err), err);
    bool biases = false;
    for (int layer = 0; layer < f->n_layers; layer++)
        for (const struct place *p = f->places, *next; p->from; p = next) {
            next = p + 1;
            for (const struct place *q = p; q->from && q->bias && strcmp(q->from, p->from) == 0; q++, biases = true)
                pack_bias(&m, q, layer);
            if (strchr(p->from, 'X'))
                pack_experts(&m, p, layer);
            else
                next = pack_tensor(&m, p, layer);
        }
    add_rest(&m, biases ? "_proj_bias" : NULL);
    mkdir(packed, 0700);
    mkdir(floats, 0700);
    packed_config(f->family, packed_form(f->form), opt, packed);
    packed_config(f->family, NULL, &(struct packed_options){0}, floats);
    tensor_file_write(&m.packed, packed, "model.safetensors");
    tensor_file_write(&m.floats, floats, "model.safetensors");
    pp_safetensors_close(m.s);
}

/* --- what there is ----------------------------------------------------------------------------------------------- */

static const struct place gpt_oss[] = {
    {.from = "model.layers.{}.mlp.experts.gate_up_proj", .module = "model.layers.{}.mlp.experts.gate_up_proj",
     .how = TRANSPOSED_STACK},
    {.from = "model.layers.{}.mlp.experts.down_proj", .module = "model.layers.{}.mlp.experts.down_proj",
     .how = TRANSPOSED_STACK},
    {0},
};
#define GPT_OSS_BIAS(of, to) .bias = "model.layers.{}.mlp.experts." of, .bias_name = "model.layers.{}.mlp.experts." to
static const struct place gpt_oss_mlx[] = {
    {.from = "model.layers.{}.mlp.experts.gate_up_proj", .module = "model.layers.{}.mlp.experts.gate_proj",
     .how = TRANSPOSED_EVEN, GPT_OSS_BIAS("gate_up_proj_bias", "gate_proj.bias")},
    {.from = "model.layers.{}.mlp.experts.gate_up_proj", .module = "model.layers.{}.mlp.experts.up_proj",
     .how = TRANSPOSED_ODD, GPT_OSS_BIAS("gate_up_proj_bias", "up_proj.bias")},
    {.from = "model.layers.{}.mlp.experts.down_proj", .module = "model.layers.{}.mlp.experts.down_proj",
     .how = TRANSPOSED_STACK, GPT_OSS_BIAS("down_proj_bias", "down_proj.bias")},
    {.from = "model.layers.{}.mlp.router.weight", .module = "model.layers.{}.mlp.router", .how = WHOLE},
    {0},
};
static const struct place mixtral_mlx[] = {
    {.from = "model.layers.{}.block_sparse_moe.experts.X.w1.weight",
     .module = "model.layers.{}.block_sparse_moe.switch_mlp.gate_proj", .how = WHOLE},
    {.from = "model.layers.{}.block_sparse_moe.experts.X.w2.weight",
     .module = "model.layers.{}.block_sparse_moe.switch_mlp.down_proj", .how = WHOLE},
    {.from = "model.layers.{}.block_sparse_moe.experts.X.w3.weight",
     .module = "model.layers.{}.block_sparse_moe.switch_mlp.up_proj", .how = WHOLE},
    {.from = "model.layers.{}.self_attn.q_proj.weight", .module = "model.layers.{}.self_attn.q_proj", .how = WHOLE},
    {0},
};
static const struct place qwen3moe_mlx[] = {
    {.from = "model.layers.{}.mlp.experts.X.gate_proj.weight", .module = "model.layers.{}.mlp.switch_mlp.gate_proj",
     .how = WHOLE},
    {.from = "model.layers.{}.mlp.experts.X.up_proj.weight", .module = "model.layers.{}.mlp.switch_mlp.up_proj",
     .how = WHOLE},
    {.from = "model.layers.{}.mlp.experts.X.down_proj.weight", .module = "model.layers.{}.mlp.switch_mlp.down_proj",
     .how = WHOLE},
    {0},
};
static const struct place gpt2_mlx[] = {
    {.from = "transformer.h.{}.attn.c_attn.weight", .module = "model.h.{}.attn.c_attn", .how = TRANSPOSED},
    {.from = "transformer.h.{}.attn.c_proj.weight", .module = "model.h.{}.attn.c_proj", .how = TRANSPOSED},
    {.from = "transformer.h.{}.mlp.c_fc.weight", .module = "model.h.{}.mlp.c_fc", .how = TRANSPOSED},
    {.from = "transformer.h.{}.mlp.c_proj.weight", .module = "model.h.{}.mlp.c_proj", .how = TRANSPOSED},
    {0},
};
static const char *const gpt2_renamed[] = {"transformer.", "model.", NULL};
static const struct place gpt2_gptq[] = {
    {.from = "transformer.h.{}.mlp.c_fc.weight", .module = "transformer.h.{}.mlp.c_fc", .how = TRANSPOSED},
    {.from = "transformer.h.{}.mlp.c_proj.weight", .module = "transformer.h.{}.mlp.c_proj", .how = TRANSPOSED},
    {0},
};
static const struct place neox_mlx[] = {
    {.from = "gpt_neox.layers.{}.attention.query_key_value.weight", .module = "model.h.{}.attention.query_key_value",
     .how = WHOLE},
    {.from = "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight", .module = "model.h.{}.mlp.dense_h_to_4h", .how = WHOLE},
    {0},
};
static const char *const neox_renamed[] = {"gpt_neox.layers.", "model.h.", "gpt_neox.e", "model.e",
                                           "gpt_neox.f", "model.f", "embed_out", "model.embed_out", NULL};
static const struct place neox_gptq[] = {
    {.from = "gpt_neox.layers.{}.attention.query_key_value.weight",
     .module = "gpt_neox.layers.{}.attention.query_key_value", .how = WHOLE},
    {0},
};

static const struct folder folders[] = {
    {"gptoss", "gpt-oss", gpt_oss, NULL, 2, 0},
    {"gptoss", "mlx-mxfp4", gpt_oss_mlx, NULL, 2, 0},
    {"gptoss", "mlx-5", gpt_oss_mlx, NULL, 2, 0},
    {"mixtral", "mlx-5", mixtral_mlx, NULL, 2, 4},
    {"mixtral", "mlx-nvfp4", mixtral_mlx, NULL, 2, 4},
    {"qwen3moe", "mlx-mxfp8", qwen3moe_mlx, NULL, 2, 4},
    {"qwen3moe", "mlx-2", qwen3moe_mlx, NULL, 2, 4},
    {"gpt2", "mlx-5", gpt2_mlx, gpt2_renamed, 2, 0},
    {"gpt2", "gptq-2", gpt2_gptq, NULL, 2, 0},
    {"gptneox", "mlx-5", neox_mlx, neox_renamed, 2, 0},
    {"gptneox", "gptq-order", neox_gptq, NULL, 2, 0},
    {"gptneox", "ct-mxfp4", neox_gptq, NULL, 2, 0},
};

/* Row r of a tensor of either folder: experts are in one stack, or one by one. */
static void row_of(const struct pp_source *s, const char *name, int64_t e, int64_t r, float *to)
{
    const struct pp_tensor *t = pp_source_tensor(s, name);
    struct pp_error err;
    char one[200];
    const char *end = strstr(name, "_exps.weight");
    if (!t && end) {
        snprintf(one, sizeof one, "%.*s.%d.weight", (int)(end - name), name, (int)e);
        t = pp_source_tensor(s, one);
        e = 0;
    }
    if (!t)
        fail_msg("no tensor %s", name);
    assert_ok(pp_tensor_floats(t, e * t->ne[1] + r, 1, to, &err), err);
}

/* Every weight has the value that the form defines. */
static void same_weights(const char *packed, const char *floats, const char *form)
{
    struct pp_source *a, *b;
    struct pp_error err;
    assert_ok(pp_source_open(packed, &a, &err), err);
    assert_ok(pp_source_open(floats, &b, &err), err);
    for (size_t i = 0; i < pp_source_n_tensors(a); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(a, i);
        float x[1024], y[1024];
        assert_true(t->ne[0] <= 1024);
        for (int64_t r = 0; r < t->ne[1] * t->ne[2]; r++) {
            row_of(a, t->name, r / t->ne[1], r % t->ne[1], x);
            row_of(b, t->name, r / t->ne[1], r % t->ne[1], y);
            for (int64_t c = 0; c < t->ne[0]; c++)
                if (!(fabsf(x[c] - y[c]) <= 1e-6f * (fabsf(y[c]) + 0.01f)))
                    fail_msg("%s, %s: [%lld][%lld] is %g, not %g", form, t->name, (long long)r, (long long)c,
                             (double)x[c], (double)y[c]);
        }
    }
    pp_source_close(a);
    pp_source_close(b);
}

static void every_folder(void **state)
{
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        const struct folder *f = &folders[i];
        const char *packed = test_path("packed"), *floats = test_path("floats"), *gguf = test_path("packed.gguf");
        struct pp_error err;
        int64_t n;
        write_folders(f, &(struct packed_options){0}, packed, floats);
        same_weights(packed, floats, f->form);
        float *exact = logits_of(f->family, floats, &n), *ours = logits_of(f->family, packed, &n);
        assert_ok(pp_quantize_file(floats, gguf, "Q8_0", &(struct pp_convert_options){0}, &err), err);
        float *usual = logits_of(f->family, gguf, &n);
        if (!(difference(ours, exact, n) <= fmax(0.03, difference(usual, exact, n))))
            fail_msg("%s in %s: the logits differ by %.4f, those of Q8_0 by %.4f", f->family, f->form,
                     difference(ours, exact, n), difference(usual, exact, n));
        free(usual);
        assert_ok(pp_convert_to_gguf(packed, gguf, &(struct pp_convert_options){0}, &err), err);
        float *again = logits_of(f->family, gguf, &n);
        if (!(difference(again, ours, n) <= 0.02))
            fail_msg("%s in %s: the logits of its file differ by %.4f", f->family, f->form, difference(again, ours, n));
        free(exact);
        free(ours);
        free(again);
    }
}

/* MXFP4 is copied bit by bit, and stays MXFP4 in a file. */
static void stays_mxfp4(void **state)
{
    struct pp_error err;
    struct pp_source *s;
    (void)state;
    if (!testdata("architectures"))
        skip();
    const char *packed = test_path("packed"), *floats = test_path("floats"), *gguf = test_path("packed.gguf");
    write_folders(&folders[0], &(struct packed_options){0}, packed, floats);
    assert_ok(pp_convert_to_gguf(packed, gguf, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_source_open(gguf, &s, &err), err);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight",
                                            "blk.1.ffn_down_exps.weight"};
        const struct pp_tensor *t = pp_source_tensor(s, names[i]);
        assert_true(t && t->n_dims == 3 && t->type == PP_TYPE_MXFP4);
    }
    assert_string_equal(pp_source_type_name(s), "MXFP4");
    pp_source_close(s);
}

static void refusals(void **state)
{
    static const struct {
        struct packed_options opt;
        const char *word;
    } cases[] = {
        {{.leave_out = "model.layers.1.mlp.experts.down_proj_scales"}, "down_proj_scales is missing"},
        {{.leave_out = "model.layers.1.mlp.experts.down_proj_blocks"}, "down_proj_scales"},
        {{.turned = "model.layers.0.mlp.experts.gate_up_proj_blocks"}, "gate_up_proj_blocks"},
        {{.turned = "model.layers.0.mlp.experts.gate_up_proj_scales"}, "gate_up_proj_scales"},
        {{.emptied = "model.layers.0.mlp.experts.gate_up_proj_blocks"}, "gate_up_proj_blocks is empty"},
        {{.emptied = "model.layers.0.mlp.experts.gate_up_proj_scales"}, "gate_up_proj_scales"},
        {{.config_from = "\"mxfp4\"", .config_to = "\"mxfp6\""}, "\"mxfp6\""},
        {{.config_from = "\"mxfp4\"", .config_to = "\"gptq\",\"bits\":4"}, "_blocks"},
    };
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_model *m = NULL;
        struct pp_error err = {0};
        const char *packed = test_path("refused"), *floats = test_path("floats");
        write_folders(&folders[0], &cases[i].opt, packed, floats);
        if (pp_model_open(packed, &m, &err) == PP_OK || !strstr(err.text, cases[i].word))
            fail_msg("case %zu: \"%s\", which does not mention %s", i, err.text, cases[i].word);
        pp_model_close(m);
    }
    const struct packed_options no_number = {.not_a_number = true};
    struct pp_source *s;
    struct pp_error err = {0};
    write_folders(&folders[0], &no_number, test_path("infinite"), test_path("floats"));
    assert_ok(pp_source_open(test_path("infinite"), &s, &err), err);
    assert_int_equal(pp_source_fill(s, NULL, &(struct pp_fill_options){0}, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "_exps.weight"));
    pp_source_close(s);
}

TEST_GROUP(packed_experts)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_folder),
        cmocka_unit_test(stays_mxfp4),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("packed_experts", tests, NULL, NULL);
}
