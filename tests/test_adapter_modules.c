/* test_adapter_modules.c - adapters of folders in which one module holds several of our matrices, or a matrix has its
 * heads in another order. Logits must be those of the folder with the adapter merged in: on the folder itself, on the
 * GGUF file converted from it, and with the adapter converted to GGUF. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/export.h"
#include "engine/gguf.h"
#include "engine/safetensors.h"
#include "tests/changed_folder.h"
#include "tests/decoder_model_int.h"
#include "tests/expert_model.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { RANK = CHANGED_RANK, ALPHA = CHANGED_ALPHA };

/* Tests adapters of these modules on a model in F32. */
static void check_file(const char *file, int n_vocab, const char *const *modules)
{
    struct folder f = {.random = 5};
    struct pp_error err;
    const char *model = fresh_path("model"), *gguf = fresh_path("adapter.gguf"), *again = fresh_path("adapter");
    const char *by_folder = fresh_path("adapter");
    const int n = SMALL_TEXT * n_vocab;
    assert_ok(pp_convert_to_folder(file, model, &(struct pp_convert_options){0}, &err), err);
    const char *merged = changed_folder(model, modules, changed_by_lora, &f);
    const char *peft = folder_write_peft(&f, changed_config);
    const struct pp_convert_options base = {.base = file};
    assert_ok(pp_convert_to_gguf(peft, gguf, &base, &err), err);
    float *want = changed_logits(merged, NULL, n_vocab), *alone = changed_logits(model, NULL, n_vocab);
    if (!(changed_off(alone, want, n) > 0.01))
        fail_msg("%s: the adapter changes nothing", merged);
    assert_ok(pp_convert_to_peft(gguf, again, &base, &err), err);
    assert_ok(pp_convert_to_peft(gguf, by_folder, &(struct pp_convert_options){.base = model}, &err), err);
    const char *const pairs[][2] = {{model, peft}, {file, peft},  {model, gguf},
                                    {file, gguf},  {model, again}, {file, by_folder}};
    for (int i = 0; i < 6; i++) {
        float *got = changed_logits(pairs[i][0], pairs[i][1], n_vocab);
        if (!(changed_off(got, want, n) < 1e-4))
            fail_msg("%s on %s is %g off", pairs[i][1], pairs[i][0], changed_off(got, want, n));
        pp_free(got);
    }
    pp_free(want);
    pp_free(alone);
    folder_empty(&f);
}

static void check_modules(const char *arch, const char *const *modules)
{
    const struct decoder_shape s = decoder_shape(arch);
    struct decoder *d = decoder_make(&s);
    check_file(decoder_write(d), s.n_vocab, modules);
    decoder_free(d);
}

/* Queries, keys and values interleaved by head become one matrix with all queries, all keys, all values. */
static void by_head(void **state)
{
    static const char *const modules[] = {".query_key_value.weight", NULL};
    static const char *const archs[] = {"falcon", "bloom", "persimmon"};
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        check_modules(archs[i], modules);
}

/* One matrix becomes those of queries, keys and values: interleaved by head, by groups of heads, or concatenated. */
static void three_in_one(void **state)
{
    static const char *const modules[] = {".W_pack.weight", ".wqkv.weight", ".qkv_proj.weight", NULL};
    static const char *const archs[] = {"baichuan", "internlm2", "codegen"};
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        check_modules(archs[i], modules);
}

/* One module becomes two matrices: keys and values, or gate and up, concatenated or interleaved. */
static void two_in_one(void **state)
{
    static const char *const modules[] = {".attn.kv.weight", ".gate_up_proj.weight", ".proj_1.weight",
                                          ".kv_proj.weight", ".up_proj.weight", NULL};
    static const char *const archs[] = {"refact", "openelm", "jetmoe", "phi3small"};
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        check_modules(archs[i], modules);
}

/* --- in other pieces than the model's folder -------------------------------------------------------------------- */

/* W's rows [n_in wide] += scale B A; the LoRA's module has W's name with another last word. */
static void merge_rows(struct folder *f, const struct pp_tensor *w, const char *word, const char *other, int64_t first,
                       int64_t n, float *out)
{
    const int stem = (int)(strstr(w->name, word) - w->name);
    char name[160];
    snprintf(name, sizeof name, "base_model.model.%.*s%s.lora_A.weight", stem, w->name, other);
    const float *a = folder_add(f, name, RANK, w->ne[0], 0, 0.2f);
    snprintf(name, sizeof name, "base_model.model.%.*s%s.lora_B.weight", stem, w->name, other);
    const float *b = folder_add(f, name, n, RANK, 0, 0.2f);
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < w->ne[0]; i++)
            for (int k = 0; k < RANK; k++)
                out[(first + r) * w->ne[0] + i] += ALPHA / RANK * b[r * RANK + k] * a[k * w->ne[0] + i];
}

/* LoRAs of q and v, and of gate and up, for modules that join them; heads are 12 wide. */
static float *merge_apart(struct folder *f, const struct pp_tensor *w)
{
    float *out = pp_malloc(w->size);
    const int64_t n = w->ne[1];
    memcpy(out, w->data, w->size);
    if (strstr(w->name, "gate_up_proj")) {
        merge_rows(f, w, "gate_up_proj", "up_proj", n / 2, n / 2, out);
        merge_rows(f, w, "gate_up_proj", "gate_proj", 0, n / 2, out);
        return out;
    }
    merge_rows(f, w, "qkv_proj", "v_proj", n / 4 * 3, n / 4, out);
    merge_rows(f, w, "qkv_proj", "q_proj", 0, n / 2, out);
    return out;
}

/* For adapters whose module covers what the model has as separate matrices: A and B of the whole are already in f. */
static float *merge_together(struct folder *f, const struct pp_tensor *w)
{
    static const struct {
        const char *own, *whole;
        int first, of; /* part of the whole in eighths: its first row, and how many */
    } parts[] = {{"q_proj", "qkv_proj", 0, 4}, {"k_proj", "qkv_proj", 4, 2}, {"v_proj", "qkv_proj", 6, 2},
                 {"gate_proj", "gate_up_proj", 0, 4}, {"up_proj", "gate_up_proj", 4, 4}};
    float *out = pp_malloc(w->size);
    char name[160];
    int i = 0;
    while (!strstr(w->name, parts[i].own))
        i++;
    const int64_t n_rows = w->ne[1] * 8 / parts[i].of, first = n_rows * parts[i].first / 8, n_in = w->ne[0];
    const int stem = (int)(strstr(w->name, parts[i].own) - w->name);
    const float *halves[2];
    for (int half = 0; half < 2; half++) {
        snprintf(name, sizeof name, "base_model.model.%.*s%s.lora_%c.weight", stem, w->name, parts[i].whole,
                 'A' + half);
        halves[half] = folder_get(f, name);
        if (!halves[half])
            halves[half] = folder_add(f, name, half ? n_rows : RANK, half ? RANK : n_in, 0, 0.2f);
    }
    memcpy(out, w->data, w->size);
    for (int64_t r = 0; r < w->ne[1]; r++)
        for (int64_t c = 0; c < n_in; c++)
            for (int k = 0; k < RANK; k++)
                out[r * n_in + c] += ALPHA / RANK * halves[1][(first + r) * RANK + k] * halves[0][k * n_in + c];
    return out;
}

/* Writes the adapter as GGUF with the same matrices as in the folder, as other programs may do; returns its path. */
static const char *write_gguf(const struct folder *f, const char *arch)
{
    static const char *const words[][2] = {
        {".qkv_proj.", "attn_qkv"},  {".q_proj.", "attn_q"},  {".v_proj.", "attn_v"},
        {".gate_up_proj.", "ffn_up"}, {".up_proj.", "ffn_up"}, {".gate_proj.", "ffn_gate"}};
    static char names[FOLDER_PARTS][64];
    struct pp_export_item items[FOLDER_PARTS] = {{0}};
    struct pp_tensor tensors[FOLDER_PARTS];
    struct pp_gguf_writer *w;
    struct pp_error err;
    const char *path = fresh_path("pieces.gguf");
    assert_ok(pp_gguf_writer_new(path, &w, &err), err);
    pp_gguf_add_text(w, "general.architecture", arch);
    pp_gguf_add_text(w, "general.type", "adapter");
    pp_gguf_add_text(w, "adapter.type", "lora");
    pp_gguf_add_f32(w, "adapter.lora.alpha", ALPHA);
    for (int i = 0; i < f->n; i++) {
        const struct folder_part *p = &f->parts[i];
        int k = 0;
        while (!strstr(p->name, words[k][0]))
            k++;
        snprintf(names[i], sizeof names[i], "blk.%c.%s.weight.lora_%c", *(strpbrk(p->name, "0123456789")), words[k][1],
                 strstr(p->name, "lora_A") ? 'a' : 'b');
        tensors[i] = (struct pp_tensor){.name = names[i], .type = PP_TYPE_F32, .n_dims = 2, .data = p->data,
                                        .ne = {p->cols, p->rows, 1, 1}, .size = (size_t)(p->rows * p->cols) * 4};
        items[i] = (struct pp_export_item){.from = &tensors[i], .name = names[i], .type = PP_TYPE_F32, .factor = 1};
    }
    assert_ok(pp_export_items(w, items, (size_t)f->n, NULL, &err), err);
    assert_ok(pp_gguf_writer_finish(w, &err), err);
    pp_gguf_writer_free(w);
    return path;
}

/* The adapter as a folder, converted to GGUF, and converted back, on the model's folder and on its file. alike: rows
 * have the same order in files and folders, so that a GGUF adapter of the folder's own matrices works as well. */
static void check_pieces(const char *arch, const char *const *names, changed_fn *change, bool alike)
{
    struct decoder_shape s = decoder_shape(arch);
    s.n_layer = 2;
    struct decoder *d = decoder_make(&s);
    struct folder f = {.random = 5};
    struct pp_error err;
    const int n = SMALL_TEXT * s.n_vocab;
    const char *file = decoder_write(d), *model = fresh_path("model"), *gguf = fresh_path("adapter.gguf");
    const char *again = fresh_path("adapter");
    const struct pp_convert_options base = {.base = file};
    assert_ok(pp_convert_to_folder(file, model, &(struct pp_convert_options){0}, &err), err);
    const char *merged = changed_folder(model, names, change, &f), *peft = folder_write_peft(&f, changed_config);
    float *want = changed_logits(merged, NULL, s.n_vocab), *alone = changed_logits(model, NULL, s.n_vocab);
    assert_true(changed_off(alone, want, n) > 0.01);
    assert_ok(pp_convert_to_gguf(peft, gguf, &base, &err), err);
    assert_ok(pp_convert_to_peft(gguf, again, &base, &err), err);
    const char *pieces = alike ? write_gguf(&f, arch) : gguf;
    const char *const pairs[][2] = {{model, peft},  {file, peft},    {model, gguf}, {file, gguf},
                                    {model, again}, {model, pieces}, {file, pieces}};
    for (int i = 0; i < 7; i++) {
        float *got = changed_logits(pairs[i][0], pairs[i][1], s.n_vocab);
        if (!(changed_off(got, want, n) < 1e-4))
            fail_msg("%s: %s on %s is %g off", arch, pairs[i][1], pairs[i][0], changed_off(got, want, n));
        pp_free(got);
    }
    pp_free(want);
    pp_free(alone);
    folder_empty(&f);
    decoder_free(d);
}

static void other_pieces(void **state)
{
    static const char *const whole[] = {".qkv_proj.weight", ".gate_up_proj.weight", NULL};
    static const char *const parts[] = {".q_proj.weight", ".k_proj.weight", ".v_proj.weight", ".gate_proj.weight",
                                        ".up_proj.weight", NULL};
    (void)state;
    check_pieces("plamo3", whole, merge_apart, true);
    check_pieces("pangu-embedded", parts, merge_together, true);
    check_pieces("xverse", parts, merge_together, false); /* in its files the rows of heads have another order */
}

/* W's rows become magnitude / |W + scale B A| (W + scale B A), for a module with another name. */
static void dora_rows(struct folder *f, const struct pp_tensor *w, const char *word, const char *other, int64_t first,
                      int64_t n, float *out)
{
    char name[160];
    merge_rows(f, w, word, other, first, n, out);
    snprintf(name, sizeof name, "base_model.model.%.*s%s.lora_magnitude_vector",
             (int)(strstr(w->name, word) - w->name), w->name, other);
    const float *magnitude = folder_add(f, name, n, 0, 1.5f, 0.5f);
    for (int64_t r = 0; r < n; r++) {
        float *row = out + (first + r) * w->ne[0];
        double square = 0;
        for (int64_t i = 0; i < w->ne[0]; i++)
            square += (double)row[i] * (double)row[i];
        for (int64_t i = 0; i < w->ne[0]; i++)
            row[i] = (float)((double)row[i] * (double)magnitude[r] / sqrt(square));
    }
}

/* DoRAs of q and v but not k, and of up but not the gate. */
static float *dora_apart(struct folder *f, const struct pp_tensor *w)
{
    float *out = pp_malloc(w->size);
    const int64_t n = w->ne[1];
    memcpy(out, w->data, w->size);
    if (strstr(w->name, "gate_up_proj")) {
        dora_rows(f, w, "gate_up_proj", "up_proj", n / 2, n / 2, out);
        return out;
    }
    dora_rows(f, w, "qkv_proj", "v_proj", n / 4 * 3, n / 4, out);
    dora_rows(f, w, "qkv_proj", "q_proj", 0, n / 2, out);
    return out;
}

/* IA3s of k and v, as PEFT's default, and of gates. */
static float *scale_apart(struct folder *f, const struct pp_tensor *w)
{
    static const char *const words[][2] = {{"qkv_proj", "k_proj"}, {"qkv_proj", "v_proj"},
                                           {"gate_up_proj", "gate_proj"}};
    float *out = pp_malloc(w->size);
    memcpy(out, w->data, w->size);
    for (int i = 0; i < 3; i++) {
        const char *word = strstr(w->name, words[i][0]);
        const int64_t n = w->ne[1] / (i < 2 ? 4 : 2), first = i < 2 ? (2 + i) * n : 0;
        char name[160];
        if (!word)
            continue;
        snprintf(name, sizeof name, "base_model.model.%.*s%s.ia3_l", (int)(word - w->name), w->name, words[i][1]);
        const float *scales = folder_add(f, name, n, 1, 1, 0.4f);
        for (int64_t r = 0; r < n * w->ne[0]; r++)
            out[first * w->ne[0] + r] *= scales[r / w->ne[0]];
    }
    return out;
}

/* Kinds other than LoRA for parts of a matrix, on the model's folder and on its file. */
static void kinds_of_parts(void **state)
{
    static const struct {
        changed_fn *change;
        const char *config;
    } cases[] = {
        {dora_apart, "{\"peft_type\":\"LORA\",\"use_dora\":true,\"r\":3,\"lora_alpha\":6}"},
        {scale_apart, "{\"peft_type\":\"IA3\",\"feedforward_modules\":[]}"},
    };
    static const char *const whole[] = {".qkv_proj.weight", ".gate_up_proj.weight", NULL};
    struct decoder_shape s = decoder_shape("plamo3");
    s.n_layer = 2;
    struct decoder *d = decoder_make(&s);
    struct pp_error err;
    const int n = SMALL_TEXT * s.n_vocab;
    const char *file = decoder_write(d), *model = fresh_path("model");
    (void)state;
    assert_ok(pp_convert_to_folder(file, model, &(struct pp_convert_options){0}, &err), err);
    for (int i = 0; i < 2; i++) {
        struct folder f = {.random = 6};
        const char *merged = changed_folder(model, whole, cases[i].change, &f);
        const char *peft = folder_write_peft(&f, cases[i].config);
        float *want = changed_logits(merged, NULL, s.n_vocab), *alone = changed_logits(model, NULL, s.n_vocab);
        assert_true(changed_off(alone, want, n) > 0.01);
        for (int k = 0; k < 2; k++) {
            float *got = changed_logits(k ? file : model, peft, s.n_vocab);
            if (!(changed_off(got, want, n) < 1e-4))
                fail_msg("%s on %s is %g off", peft, k ? file : model, changed_off(got, want, n));
            pp_free(got);
        }
        pp_free(want);
        pp_free(alone);
        folder_empty(&f);
    }
    decoder_free(d);
}

/* The same model (Phi 2) with q, k and v in one matrix and in three, as older and newer files have it. */
static struct decoder *take_apart(const struct decoder *from)
{
    static const char *const words[] = {"attn_q", "attn_k", "attn_v"};
    struct decoder_shape s = from->s;
    s.joined = false;
    struct decoder *d = decoder_make(&s);
    for (int i = 0; i < d->n; i++) {
        struct matrix *to = &d->t[i];
        const struct matrix *own = decoder_find(from, to->name);
        int64_t at = 0; /* the first row of this part in the whole */
        char name[48];
        for (int k = 0; !own && k < 3; k++) {
            const char *word = strstr(to->name, words[k]);
            if (!word)
                continue;
            snprintf(name, sizeof name, "%.*sattn_qkv%s", (int)(word - to->name), to->name, word + strlen(words[k]));
            own = decoder_find(from, name);
            at = k * s.n_head * s.head_dim; /* all three parts have the same number of rows */
        }
        assert_non_null(own);
        const int64_t width = to->rows ? to->cols : 1, n = to->rows ? to->rows : to->cols;
        memcpy(to->values, own->values + at * width, (size_t)(n * width) * sizeof *to->values);
    }
    return d;
}

/* Adds an adapter for the attention modules of a layer. Kind 0 is a LoRA with a bias of B, kind 1 a DoRA; both also
 * replace biases of the model, and one module (the first for kind 0, the second for kind 1) has nothing but such a
 * bias. Kind 2 is an IA3. */
static void add_kind(struct folder *f, int l, int kind, const char *const *modules, int64_t n_out, int64_t n_in)
{
    for (int m = 0; modules[m]; m++) {
        char name[160];
        const bool lora = kind < 2 && (m != kind || !modules[1]);
        char *end = name + snprintf(name, sizeof name, "base_model.model.model.layers.%d.self_attn.%s", l, modules[m]);
        if (lora) {
            strcpy(end, ".lora_A.weight");
            folder_add(f, name, RANK, n_in, 0, 0.2f);
            strcpy(end, ".lora_B.weight");
            folder_add(f, name, n_out, RANK, 0, 0.2f);
            strcpy(end, kind ? ".lora_magnitude_vector" : ".lora_B.bias");
            folder_add(f, name, n_out, 0, kind ? 1.5f : 0, 0.4f);
        }
        strcpy(end, kind == 2 ? ".ia3_l" : lora ? ".base_layer.bias" : ".bias");
        if (m != 2 - kind || !modules[1]) /* some modules have only a part of that */
            folder_add(f, name, n_out, kind == 2, kind == 2, 0.4f);
    }
}

/* Adapters give the same on the model with q, k and v in one matrix as on the other, at any strength, whether the
 * adapter joins them or not. */
static void kinds_of_apart(void **state)
{
    static const char *const configs[] = {
        "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6,\"lora_bias\":true,\"bias\":\"all\","
        "\"alpha_pattern\":{\"k_proj\":2}}",
        "{\"peft_type\":\"LORA\",\"use_dora\":true,\"r\":3,\"lora_alpha\":6,\"bias\":\"all\"}",
        "{\"peft_type\":\"IA3\",\"feedforward_modules\":[]}"};
    static const char *const modules[2][4] = {{"q_proj", "k_proj", "v_proj", NULL}, {"qkv_proj", NULL}};
    struct decoder_shape s = decoder_shape("phi2");
    s.joined = true;
    s.n_layer = 2;
    struct decoder *whole = decoder_make(&s), *apart = take_apart(whole);
    const char *files[] = {decoder_write(whole), decoder_write(apart)};
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct folder f = {.random = 7};
        const int kind = i / 2, in_one = i % 2;
        const float strength = i < 3 ? 1 : 0.6f;
        for (int l = 0; l < s.n_layer; l++)
            add_kind(&f, l, kind, modules[in_one], s.n_head * s.head_dim * (in_one ? 3 : 1), s.n_embd);
        const char *peft = folder_write_peft(&f, configs[kind]);
        float *got = changed_logits_at(files[0], peft, strength, s.n_vocab),
              *want = changed_logits_at(files[1], peft, strength, s.n_vocab),
              *alone = changed_logits(files[0], NULL, s.n_vocab);
        assert_true(changed_off(alone, want, SMALL_TEXT * s.n_vocab) > 0.01);
        if (!(changed_off(got, want, SMALL_TEXT * s.n_vocab) < 1e-4))
            fail_msg("kind %d, in one %d, is %g off", kind, in_one, changed_off(got, want, SMALL_TEXT * s.n_vocab));
        pp_free(got);
        pp_free(want);
        pp_free(alone);
        folder_empty(&f);
    }
    decoder_free(whole);
    decoder_free(apart);
}

/* A model of three layers with states and one with attention. */
static struct expert_shape state_shape(const char *arch)
{
    struct expert_shape s = expert_shape(arch);
    s.n_layer = s.full = s.n_dense = s.state_taps = s.n_state = 4;
    s.ffn_norm = "post_attention_norm";
    s.qk_norm = QK_HEADS;
    s.rope_dim = 8;
    s.n_state_key = 2;
    s.key_dim = 16;
    s.value_dim = 32;
    s.n_expert = s.n_used = 0;
    return s;
}

/* The inputs of states are one matrix, grouped by key head, in Qwen3-Next's folders, and two in its files. */
static void by_keys(void **state)
{
    static const char *const states[] = {".in_proj_qkvz.weight", ".in_proj_ba.weight", NULL};
    const struct expert_shape s = state_shape("qwen3next");
    struct expert_model *m = expert_model_make(&s);
    (void)state;
    check_file(expert_model_write(m), s.n_vocab, states);
    expert_model_free(m);
}

/* Queries and the gates of their heads, interleaved by head in folders, are two matrices in files. */
static void queries_and_gates(void **state)
{
    static const char *const queries[] = {".q_proj.weight", NULL};
    struct expert_shape s = expert_shape("g9v3");
    (void)state;
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.gated = true;
    s.n_layer = 2;
    s.n_dense = s.n_used = 1;
    s.n_expert = 4;
    struct expert_model *m = expert_model_make(&s);
    check_file(expert_model_write(m), s.n_vocab, queries);
    expert_model_free(m);
}

/* Agnes' modules have other names, and a second feed-forward part. */
static void other_names(void **state)
{
    static const char *const modules[] = {".global_attn.q_proj.weight", ".delta_attn.in_proj_qkv.weight",
                                          ".delta_attn.out_proj.weight", ".parallel_ffn.up_proj.weight",
                                          ".parallel_ffn.down_proj.weight", NULL};
    struct expert_shape s = state_shape("agnes");
    (void)state;
    s.n_ff_shared = 32;
    struct expert_model *m = expert_model_make(&s);
    check_file(expert_model_write(m), s.n_vocab, modules);
    expert_model_free(m);
}

/* Files order states' heads that share a key, and PLaMo's attention heads, differently: rows of input matrices, columns
 * of output matrices. */
static void heads_elsewhere(void **state)
{
    static const char *const states[] = {".in_proj_qkv.weight", ".in_proj_z.weight", ".in_proj_b.weight",
                                         ".in_proj_a.weight", ".out_proj.weight", NULL};
    static const char *const attention[] = {".q_proj.weight", ".o_proj.weight", NULL};
    struct expert_shape s = state_shape("qwen35");
    (void)state;
    s.tiled = true;
    struct expert_model *m = expert_model_make(&s);
    check_file(expert_model_write(m), s.n_vocab, states);
    expert_model_free(m);
    check_modules("plamo", attention);
}

/* --- not for this model -------------------------------------------------------------------------------------- */

/* A GGUF adapter names its family: matrices of another family may fit in size, but have their rows in another order. */
static void other_family(void **state)
{
    const struct decoder_shape arcee = decoder_shape("arcee"), qwen = decoder_shape("qwen");
    struct decoder *own = decoder_make(&arcee), *other = decoder_make(&qwen);
    const char *file = decoder_write(own), *gguf = fresh_path("adapter.gguf");
    struct folder f = {.random = 3};
    struct pp_adapter *a;
    struct pp_error err;
    (void)state;
    folder_add(&f, "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", RANK, arcee.n_embd, 0, 1);
    folder_add(&f, "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight", arcee.n_ff, RANK, 0, 1);
    const struct pp_convert_options base = {.base = file};
    assert_ok(pp_convert_to_gguf(folder_write_peft(&f, changed_config), gguf, &base, &err), err);
    struct running r = run_small(file, NULL);
    assert_ok(pp_adapter_load(r.m, gguf, &a, &err), err);
    pp_adapter_free(a);
    stop_small(&r);
    const char *another = decoder_write(other);
    r = run_small(another, NULL);
    assert_int_equal(pp_adapter_load(r.m, gguf, &a, &err), PP_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "is for models of the family arcee, but this model is of the family qwen"));
    stop_small(&r);
    const struct pp_convert_options wrong = {.base = another};
    assert_int_equal(pp_convert_to_peft(gguf, fresh_path("x"), &wrong, &err), PP_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "is for models of the family arcee, but this model is of the family qwen"));
    folder_empty(&f);
    decoder_free(own);
    decoder_free(other);
}

/* A tensor named as one expert's matrix that is a stack. */
static void stacks(void **state)
{
    static const char begin[] = "model.layers.0.mlp.experts.0.up_proj.lora_";
    static const char mlx[] = "{\"fine_tune_type\": \"lora\", \"lora_parameters\": {\"scale\": 20}}";
    struct pp_tensor t[2];
    char names[2][64], path[512];
    float values[4 * 8 * RANK] = {0};
    struct folder none = {0};
    struct running r;
    struct pp_adapter *a;
    struct pp_error err;
    const struct decoder_shape s = decoder_shape("arcee");
    struct decoder *d = decoder_make(&s);
    (void)state;
    for (int i = 0; i < 2; i++) {
        snprintf(names[i], sizeof names[i], "%s%c", begin, 'a' + i);
        t[i] = (struct pp_tensor){.name = names[i], .type = PP_TYPE_F32, .n_dims = 3, .data = values,
                                  .ne = {i ? RANK : 8, i ? 8 : RANK, 4, 1}, .size = sizeof values};
    }
    const char *folder = folder_write(&none, mlx, "none.safetensors");
    snprintf(path, sizeof path, "%s/adapters.safetensors", folder);
    assert_ok(pp_safetensors_write(path, t, 2, &err), err);
    r = run_small(decoder_write(d), NULL);
    assert_int_equal(pp_adapter_load(r.m, folder, &a, &err), PP_ERR_UNSUPPORTED);
    if (!strstr(err.text, "a stack of 4 matrices, but blk.0.ffn_up.0.weight is a single matrix"))
        fail_msg("%s", err.text);
    stop_small(&r);
    decoder_free(d);
}

/* Changes to the vision and audio parts of a model are skipped, unless the adapter has no others. */
static void beside_text(void **state)
{
    static const char *const others[] = {"model.visual.blocks.0.attn.qkv", "vision_tower.encoder.layers.0.mlp.fc1",
                                         "model.multi_modal_projector.linear_1"};
    const struct decoder_shape s = decoder_shape("arcee");
    struct decoder *d = decoder_make(&s);
    const char *file = decoder_write(d), *paths[2];
    struct pp_adapter_file *a;
    struct pp_error err;
    float *got[2];
    (void)state;
    for (int with = 0; with < 2; with++) {
        struct folder f = {.random = 5};
        folder_add(&f, "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_A.weight", 3, 48, 0, 0.5f);
        folder_add(&f, "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_B.weight", 48, 3, 0, 0.5f);
        for (size_t i = 0; with && i < sizeof others / sizeof *others; i++) {
            char name[200];
            snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", others[i]);
            folder_add(&f, name, 3, 7, 0, 0.5f);
        }
        paths[with] = folder_write_peft(&f, changed_config);
        got[with] = changed_logits(file, paths[with], s.n_vocab);
        folder_empty(&f);
    }
    assert_memory_equal(got[0], got[1], (size_t)(SMALL_TEXT * s.n_vocab) * sizeof(float));
    assert_ok(pp_adapter_file_open(paths[1], &a, &err), err);
    assert_int_equal(pp_adapter_file_n(a), 1);
    assert_int_equal(pp_adapter_file_n_non_text(a), 3);
    pp_adapter_file_close(a);
    struct folder f = {.random = 5};
    folder_add(&f, "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight", 3, 7, 0, 0.5f);
    assert_int_equal(pp_adapter_file_open(folder_write_peft(&f, changed_config), &a, &err), PP_ERR_UNSUPPORTED);
    folder_empty(&f);
    pp_free(got[0]);
    pp_free(got[1]);
    decoder_free(d);
}

TEST_GROUP(adapter_modules)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_head),           cmocka_unit_test(three_in_one),   cmocka_unit_test(two_in_one),
        cmocka_unit_test(queries_and_gates), cmocka_unit_test(other_names),    cmocka_unit_test(by_keys),
        cmocka_unit_test(heads_elsewhere),   cmocka_unit_test(other_family),   cmocka_unit_test(stacks),
        cmocka_unit_test(other_pieces),      cmocka_unit_test(kinds_of_parts), cmocka_unit_test(kinds_of_apart),
        cmocka_unit_test(beside_text),
    };
    return cmocka_run_group_tests_name("adapter_modules", tests, NULL, NULL);
}
