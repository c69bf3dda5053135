/* test_convert_adapter.c - adapters converted from folders to GGUF and back: the same tensors, bit for bit, and the
 * same logits; and adapters that GGUF cannot hold. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/adapter_file.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine_int.h"
#include "engine/lora.h"
#include "engine/safetensors.h"
#include "tests/adapter_folder.h"
#include "tests/support.h"

static const char *to_gguf(const char *src, const char *base, const char *type)
{
    struct pp_error err;
    const char *out = fresh_path("adapter.gguf");
    assert_ok(pp_convert_to_gguf(src, out, &(struct pp_convert_options){.base = base, .out_type = type}, &err), err);
    return out;
}

static const char *to_peft(const char *src, const char *base, const char *type)
{
    struct pp_error err;
    const char *out = fresh_path("adapter");
    assert_ok(pp_convert_to_peft(src, out, &(struct pp_convert_options){.base = base, .out_type = type}, &err), err);
    return out;
}

/* Logits after three tokens with the adapter at `path`; the caller frees them with pp_free. *identity: the adapter's
 * hash. */
static float *logits_with(struct pp_engine *e, const char *path, struct pp_sha256 *identity)
{
    enum { N = 3 };
    struct pp_adapter *a;
    struct pp_error err;
    struct pp_seq *s;
    struct pp_row rows[N];
    const size_t n = (size_t)pp_model_info(pp_engine_model(e))->n_vocab;
    assert_ok(pp_adapter_load_exact(pp_engine_model(e), path, &a, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, &(struct pp_adapter_use){a, 0.7f}, 1, &err), err);
    for (int i = 0; i < N; i++)
        rows[i] = (struct pp_row){.seq = s, .token = 4 + 9 * i, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    assert_ok(pp_step(e, rows, N, NULL, &err), err);
    float *out = pp_malloc(n * sizeof *out);
    memcpy(out, pp_step_output(e, N - 1), n * sizeof *out);
    *identity = a->identity;
    pp_seq_free(s);
    pp_adapter_free(a);
    return out;
}

/* `most`: how far the logits may be from each other; 0: the adapters are the same, bit for bit. */
static void same_answers(struct pp_engine *e, const char *a, const char *b, double most)
{
    struct pp_sha256 id[2];
    float *x = logits_with(e, a, &id[0]), *y = logits_with(e, b, &id[1]);
    if (most == 0)
        assert_memory_equal(&id[0], &id[1], sizeof id[0]);
    for (int64_t i = 0; i < pp_model_info(pp_engine_model(e))->n_vocab; i++)
        if (!(fabs((double)x[i] - (double)y[i]) <= most))
            fail_msg("%s and %s: logit %d differs by %g", a, b, (int)i, fabs((double)x[i] - (double)y[i]));
    pp_free(x);
    pp_free(y);
}

struct base {
    const char *path;
    struct pp_model *model;
    struct pp_engine *engine;
};

static struct base open_base(const char *path)
{
    struct base b = {.path = path};
    struct pp_error err;
    const struct pp_engine_options opt = {.n_threads = 1, .kv_type = PP_KV_F32, .kv_memory = 64u << 20};
    assert_ok(pp_model_open(path, &b.model, &err), err);
    assert_ok(pp_engine_new(b.model, &opt, NULL, NULL, &b.engine, &err), err);
    return b;
}

static void close_base(struct base *b)
{
    pp_engine_free(b->engine);
    pp_model_close(b->model);
}

/* --- there and back -------------------------------------------------------------------------------------------- */

/* Adapters of matrices whose rows are reordered and of others, the output, the embeddings and norms. */
static void make_folder(struct folder *f, const struct tiny_shape *s, int rank)
{
    for (int i = 0; i < FOLDER_MODULES; i++)
        folder_add_lora(f, s, i, rank);
    folder_add(f, "base_model.model.model.embed_tokens.lora_embedding_A", rank, s->n_vocab, 0, 0.2f);
    folder_add(f, "base_model.model.model.embed_tokens.lora_embedding_B", s->n_embd, rank, 0, 0.2f);
    folder_add(f, "base_model.model.model.norm.weight", s->n_embd, 0, 1, 0.3f);
    folder_add(f, "base_model.model.model.layers.1.input_layernorm.weight", s->n_embd, 0, 1, 0.3f);
}

static void there_and_back(void **state)
{
    static const char *const types[] = {"F32", "F16", "BF16"};
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 21};
    struct base b = open_base(tiny_model(&s));
    (void)state;
    make_folder(&f, &s, 4);
    const char *folder = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6}");
    for (int i = 0; i < 3; i++) {
        const char *gguf = to_gguf(folder, b.path, i ? types[i] : NULL), *back = to_peft(gguf, b.path, NULL);
        if (i == 0)
            folder_same_tensors(folder, back, NULL);
        /* converted again without a change, in every type */
        folder_same_tensors(back, to_peft(to_gguf(back, b.path, NULL), b.path, NULL), NULL);
        same_answers(b.engine, gguf, back, 0);
        if (i == 0)
            same_answers(b.engine, folder, gguf, 0);
    }
    folder_same_tensors(folder, to_peft(to_gguf(folder, b.path, NULL), b.path, "F32"), NULL);
    folder_empty(&f);
    close_base(&b);
}

/* Ranks per module, rsLoRA, and alphas per module, which GGUF cannot hold and which are multiplied into B. */
static void scales(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 22};
    struct base b = open_base(tiny_model(&s));
    struct pp_adapter_file *file;
    struct pp_error err;
    (void)state;
    folder_add_lora(&f, &s, 0, 4);
    folder_add_lora(&f, &s, 4, 4);
    folder_add_lora(&f, &s, 6, 3);
    const char *ranks = folder_write_peft(
        &f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6,\"rank_pattern\":{\"down_proj\":3}}");
    const char *back = to_peft(to_gguf(ranks, b.path, NULL), b.path, NULL);
    folder_same_tensors(ranks, back, NULL);
    same_answers(b.engine, ranks, back, 0);
    const char *rslora = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6,\"use_rslora\":true,"
                                               "\"rank_pattern\":{\"down_proj\":3}}");
    back = to_peft(to_gguf(rslora, b.path, NULL), b.path, NULL);
    same_answers(b.engine, rslora, back, 1e-4);
    const char *alphas = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6,"
                                               "\"rank_pattern\":{\"down_proj\":3},"
                                               "\"alpha_pattern\":{\"gate_proj\":9,\"down_proj\":24}}");
    const char *gguf = to_gguf(alphas, b.path, NULL);
    same_answers(b.engine, alphas, gguf, 1e-4);
    /* The first kind counts for nothing, or all do. */
    const char *without = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":6,"
                                                "\"rank_pattern\":{\"down_proj\":3},"
                                                "\"alpha_pattern\":{\"q_proj\":0}}");
    same_answers(b.engine, without, to_gguf(without, b.path, NULL), 1e-4);
    const char *none = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":0,"
                                             "\"rank_pattern\":{\"down_proj\":3}}");
    assert_int_equal(pp_convert_to_gguf(none, fresh_path("none.gguf"), &(struct pp_convert_options){.base = b.path},
                                        &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "alpha is 0"));
    /* An existing adapter is not overwritten. */
    assert_int_equal(pp_convert_to_peft(gguf, alphas, &(struct pp_convert_options){.base = b.path}, &err),
                     PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "already contains an adapter"));
    /* A folder to which another process is writing is not used, and a failure leaves no folder. */
    const char *taken = fresh_path("taken");
    int lock;
    assert_int_equal(mkdir(taken, 0700), 0);
    assert_ok(pp_lock_folder(taken, &lock, &err), err);
    assert_int_equal(pp_convert_to_peft(gguf, taken, &(struct pp_convert_options){.base = b.path}, &err), PP_ERR_BUSY);
    assert_int_equal(access(taken, F_OK), 0);
    close(lock);
    assert_ok(pp_convert_to_peft(gguf, taken, &(struct pp_convert_options){.base = b.path}, &err), err);
    same_answers(b.engine, gguf, to_peft(gguf, b.path, NULL), 0);
    assert_ok(pp_adapter_file_open(to_gguf(to_peft(to_gguf(alphas, b.path, "F16"), b.path, NULL), b.path, NULL), &file,
                                   &err), err);
    assert_int_equal(pp_adapter_file_at(file, 0)->b.type, PP_TYPE_F16);
    pp_adapter_file_close(file);
    folder_empty(&f);
    close_base(&b);
}

/* If F16 values times a scale are not exact in F16, that matrix becomes F32. */
static void folded_in_f32(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 23};
    struct base b = open_base(tiny_model(&s));
    struct pp_adapter_file *before, *after;
    struct pp_error err;
    (void)state;
    folder_add_lora(&f, &s, 3, 4);
    folder_add_lora(&f, &s, 4, 4);
    const char *beyond = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":4,"
                                               "\"alpha_pattern\":{\"gate_proj\":1e300}}");
    assert_int_equal(pp_adapter_file_open(beyond, &before, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "adapter_config.json: the alpha of blk.0.ffn_gate.weight, 1e+300, is too large"));
    const char *plain = folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":4}");
    const char *halves = to_peft(to_gguf(plain, b.path, "BF16"), b.path, NULL);
    char config[512];
    snprintf(config, sizeof config, "%s/adapter_config.json", halves);
    FILE *file = fopen(config, "w");
    fputs("{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":4,\"alpha_pattern\":{\"gate_proj\":6}}", file);
    fclose(file);
    assert_ok(pp_adapter_file_open(halves, &before, &err), err);
    assert_ok(pp_adapter_file_open(to_gguf(halves, b.path, NULL), &after, &err), err);
    for (size_t i = 0; i < 2; i++) {
        const struct pp_adapter_target *t = pp_adapter_file_at(before, i), *u = pp_adapter_file_at(after, i);
        const bool folded = strcmp(t->name, "blk.0.ffn_gate.weight") == 0;
        assert_string_equal(t->name, u->name);
        assert_int_equal(u->a.type, PP_TYPE_BF16);
        assert_int_equal(u->b.type, folded ? PP_TYPE_F32 : PP_TYPE_BF16);
        for (int64_t k = 0; folded && k < u->b.ne[0] * u->b.ne[1]; k++) {
            uint32_t bits = (uint32_t)((const uint16_t *)t->b.data)[k] << 16;
            float x;
            memcpy(&x, &bits, sizeof x);
            assert_true(((const float *)u->b.data)[k] == 1.5f * x);
        }
    }
    pp_adapter_file_close(before);
    pp_adapter_file_close(after);
    folder_empty(&f);
    close_base(&b);
}

/* MLX stores the matrices transposed. */
static void from_mlx(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder peft = {.random = 24}, mlx = {0};
    struct base b = open_base(tiny_model(&s));
    (void)state;
    folder_add_lora(&peft, &s, 0, 4);
    folder_add_lora(&peft, &s, 6, 4);
    for (int i = 0; i < peft.n; i++) {
        const struct folder_part *p = &peft.parts[i];
        const char *end = strstr(p->name, ".lora_");
        char name[160];
        snprintf(name, sizeof name, "%.*s.lora_%c", (int)(end - p->name) - 17, p->name + 17, end[6] == 'A' ? 'a' : 'b');
        float *to = (float *)(uintptr_t)folder_add(&mlx, name, p->cols, p->rows, 0, 0);
        for (int64_t k = 0; k < p->rows * p->cols; k++)
            to[k % p->cols * p->rows + k / p->cols] = p->data[k];
    }
    const char *from = folder_write(&mlx, "{\"fine_tune_type\":\"lora\",\"lora_parameters\":{\"rank\":4,\"scale\":3}}",
                                    "adapters.safetensors");
    const char *want = folder_write_peft(&peft, "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":12}");
    const char *gguf = to_gguf(from, b.path, NULL);
    same_answers(b.engine, from, gguf, 0);
    folder_same_tensors(want, to_peft(gguf, b.path, NULL), NULL);
    folder_empty(&peft);
    folder_empty(&mlx);
    close_base(&b);
}

/* --- what cannot be said in GGUF -------------------------------------------------------------------------------- */

static void is_refused(const char *folder, const char *base, const char *what)
{
    struct pp_error err;
    const char *out = fresh_path("refused.gguf");
    assert_int_equal(pp_convert_to_gguf(folder, out, &(struct pp_convert_options){.base = base}, &err),
                     PP_ERR_UNSUPPORTED);
    if (!strstr(err.text, what) || !strstr(err.text, "blk.0.attn_k.weight"))
        fail_msg("\"%s\" does not name %s", err.text, what);
    assert_null(fopen(out, "r"));
}

static void refusals(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    const char *lora = "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":3,\"use_dora\":false}";
    const char *base = tiny_model(&s);
    struct folder f = {.random = 25};
    struct pp_error err;
    (void)state;
    const int64_t n_out = s.n_head_kv * s.head_dim;
    folder_add_named(&f, 1, ".ia3_l", n_out, 1, 1, 0.5f);
    is_refused(folder_write_peft(&f, "{\"peft_type\":\"IA3\"}"), base, "IA3");
    folder_empty(&f);
    folder_add_lora(&f, &s, 1, 3);
    folder_add_named(&f, 1, ".lora_magnitude_vector", n_out, 0, 1, 0.3f);
    is_refused(folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":3,\"use_dora\":true}"), base,
               "DoRA");
    pp_free(f.parts[--f.n].data);
    folder_add_named(&f, 1, ".bias", n_out, 0, 1, 0.3f);
    is_refused(folder_write_peft(&f, lora), base, "biases");
    folder_empty(&f);
    folder_add_named(&f, 1, ".weight", n_out, s.n_embd, 0, 1);
    is_refused(folder_write_peft(&f, lora), base, "in place of the model's");
    folder_empty(&f);
    folder_add_lora(&f, &s, 1, 3);
    const char *folder = folder_write_peft(&f, lora), *gguf = to_gguf(folder, base, NULL);
    struct pp_convert_options opt = {.base = base, .out_type = "Q8_0"};
    assert_int_equal(pp_convert_to_peft(gguf, fresh_path("x"), &opt, &err), PP_ERR_USAGE);
    opt.out_type = NULL;
    assert_int_equal(pp_convert_to_peft(folder, fresh_path("x"), &opt, &err), PP_ERR_USAGE);
    assert_int_equal(pp_convert_to_gguf(gguf, fresh_path("x"), &opt, &err), PP_ERR_USAGE);
    assert_int_equal(pp_convert_to_peft(gguf, "/proc/nonexistent/folder/adapter", &opt, &err), PP_ERR_IO);
    assert_int_equal(pp_convert_to_peft(gguf, gguf, &opt, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "is not a folder"));
    const struct tiny_shape wide = {.n_vocab = 64, .n_embd = 64, .n_layer = 1, .n_head = 1, .n_head_kv = 1,
                                    .head_dim = 64, .n_ff = 64, .n_ctx = 64, .type = PP_TYPE_F32, .seed = 1};
    opt.base = tiny_model(&wide);
    assert_int_equal(pp_convert_to_peft(gguf, fresh_path("x"), &opt, &err), PP_ERR_MISMATCH);
    /* NaN is refused at once, not only by the users of the copy */
    f.parts[0].data[5] = NAN;
    opt.base = base;
    assert_int_equal(pp_convert_to_gguf(folder_write_peft(&f, lora), fresh_path("x"), &opt, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "lora_A.weight contains NaN or infinity; the file is damaged"));
    const int fd = open(gguf, O_WRONLY | O_CLOEXEC);
    assert_true(pwrite(fd, &f.parts[0].data[5], sizeof(float), lseek(fd, -4, SEEK_END)) == sizeof(float));
    close(fd);
    const char *none = fresh_path("x");
    assert_int_equal(pp_convert_to_peft(gguf, none, &opt, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "lora_b contains NaN or infinity"));
    assert_int_not_equal(access(none, F_OK), 0);
    folder_empty(&f);
}

static void remove_adapter(const char *folder)
{
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors", "README.md"};
    char path[512];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* Whichever allocation fails, the error says so, and no partial adapter remains. */
static void out_of_memory(void **state)
{
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct folder f = {.random = 27};
    struct pp_error err;
    const struct pp_convert_options opt = {.base = tiny_model(&s)};
    (void)state;
    make_folder(&f, &s, 2);
    const char *gguf = to_gguf(folder_write_peft(&f, "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":2}"),
                               opt.base, NULL);
    const uint64_t before = pp_mem_count();
    to_peft(gguf, opt.base, NULL);
    const uint64_t n = pp_mem_count() - before;
    assert_true(n > 100 && n < 5000);
    const char *out = fresh_path("memory");
    for (uint64_t at = 1; at <= n; at++) {
        pp_mem_fail_at(at, 0);
        const enum pp_code code = pp_convert_to_peft(gguf, out, &opt, &err);
        pp_mem_fail_at(0, 0);
        if (code && code != PP_ERR_NOMEM) /* some failed allocations do no harm */
            fail_msg("without the allocation %d: %s", (int)at, err.text);
        assert_true(!code || access(out, F_OK) != 0);
        if (!code)
            remove_adapter(out);
    }
    folder_empty(&f);
}

/* --- adapters of others ------------------------------------------------------------------------------------------ */

static void bundled_kinds(void **state)
{
    static const char *const names[] = {"llama/lora-alpha", "llama/lora-beta", "llama-k256/lora-alpha",
                                        "llama-k256/lora-beta"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        char relative[128], source[512], reference[512];
        snprintf(relative, sizeof relative, "architectures/%s", names[i]);
        if (!testdata(relative))
            skip();
        snprintf(source, sizeof source, "%s", testdata(relative));
        snprintf(relative, sizeof relative, "architectures/%s.gguf", names[i]);
        snprintf(reference, sizeof reference, "%s", testdata(relative));
        snprintf(relative, sizeof relative, "architectures/%s", i < 2 ? "llama" : "llama-k256");
        struct base b = open_base(testdata(relative));
        const char *back = to_peft(reference, NULL, NULL); /* the model is in the same folder */
        folder_same_tensors(source, to_peft(to_gguf(source, b.path, NULL), b.path, NULL), NULL);
        same_answers(b.engine, reference, back, 0);
        same_answers(b.engine, source, back, 1e-5);
        close_base(&b);
    }
}

TEST_GROUP(convert_adapter)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back), cmocka_unit_test(scales),   cmocka_unit_test(folded_in_f32),
        cmocka_unit_test(from_mlx),       cmocka_unit_test(refusals), cmocka_unit_test(bundled_kinds),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("convert_adapter", tests, NULL, NULL);
}
