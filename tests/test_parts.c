/* test_parts.c - models in several GGUF files. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "engine/source.h"
#include "tests/gguf_file.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { PARTS = 3 };

static const char *part_path(const char *name, int i)
{
    static char paths[8][300];
    static int at;
    char *path = paths[at++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s-%05d-of-%05d.gguf", test_tmpdir(), name, i + 1, PARTS);
    return path;
}

/* Writes part i of a model: each part has a run of the tensors, the first also everything else. lie: this much is added
 * to the numbers that it states. */
static void write_part(const struct pp_gguf *g, const char *path, int i, int lie)
{
    const size_t n = pp_gguf_n_tensors(g), from = n * (size_t)i / PARTS, to = n * ((size_t)i + 1) / PARTS;
    struct pp_tensor tensors[128];
    struct pp_gguf_writer *w = gguf_file_begin(path);
    if (i == 0)
        gguf_file_copy_keys(w, g);
    pp_gguf_add_u32(w, "split.no", (uint32_t)(i + lie));
    pp_gguf_add_u32(w, "split.count", PARTS);
    pp_gguf_add_u32(w, "split.tensors.count", (uint32_t)n);
    assert_true(to - from <= sizeof tensors / sizeof *tensors);
    for (size_t t = from; t < to; t++)
        tensors[t - from] = *pp_gguf_tensor_at(g, t);
    gguf_file_end(w, tensors, to - from);
}

static const char *whole_model(void)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q4_0);
    return tiny_model(&shape);
}

static void split_file(const char *path, const char *name)
{
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open(path, &g, &err), err);
    for (int i = 0; i < PARTS; i++)
        write_part(g, part_path(name, i), i, 0);
    pp_gguf_close(g);
}

static void split_model(const char *name)
{
    split_file(whole_model(), name);
}

/* Logits of a few tokens; float [n_vocab], pp_free. */
static float *logits_of(const char *path, struct pp_sha256 *identity)
{
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    struct pp_row rows[5];
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_ok(pp_model_identity(m, NULL, identity, &err), err);
    assert_ok(pp_engine_new(m, &(struct pp_engine_options){.n_threads = 1, .n_ctx = 64}, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int i = 0; i < 5; i++)
        rows[i] = (struct pp_row){.seq = s, .token = 3 + i, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    assert_ok(pp_step(e, rows, 5, NULL, &err), err);
    const size_t bytes = (size_t)pp_model_info(m)->n_vocab * sizeof(float);
    float *copy = pp_malloc(bytes);
    memcpy(copy, pp_step_output(e, 4), bytes);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
    return copy;
}

static void parts_are_one_model(void **state)
{
    struct pp_sha256 id[2];
    struct pp_error err;
    struct pp_source *whole, *parts;
    (void)state;
    split_model("one");
    assert_ok(pp_source_open(whole_model(), &whole, &err), err);
    assert_ok(pp_source_open(part_path("one", 0), &parts, &err), err);
    assert_int_equal(pp_source_n_files(parts), PARTS);
    assert_int_equal(pp_source_n_tensors(parts), pp_source_n_tensors(whole));
    assert_int_equal(pp_source_n_params(parts), pp_source_n_params(whole));
    assert_int_equal(pp_source_bytes(parts), pp_source_bytes(whole));
    assert_string_equal(pp_source_type_name(parts), pp_source_type_name(whole));
    const size_t vocab = (size_t)pp_source_hparams(whole)->n_vocab;
    pp_source_close(whole);
    pp_source_close(parts);
    float *a = logits_of(whole_model(), &id[0]);
    for (int i = 0; i < PARTS; i++) { /* whichever part is named */
        float *b = logits_of(part_path("one", i), &id[1]);
        assert_memory_equal(a, b, vocab * sizeof *a);
        assert_memory_equal(&id[0], &id[1], sizeof id[0]);
        pp_free(b);
    }
    /* joined to one file again */
    char joined[300];
    snprintf(joined, sizeof joined, "%s/joined.gguf", test_tmpdir());
    assert_ok(pp_quantize_file(part_path("one", 2), joined, "F32", NULL, &err), err);
    assert_ok(pp_source_open(joined, &whole, &err), err);
    assert_int_equal(pp_source_n_files(whole), 1);
    pp_source_close(whole);
    pp_free(a);
}

/* Tensors in any of the files tell which layers have experts, also for Qwen. */
static void experts_in_parts(void **state)
{
    const char *folder = testdata("architectures/qwen3moe");
    struct pp_sha256 id[2];
    struct pp_error err;
    struct pp_source *s;
    char file[300];
    (void)state;
    if (!folder)
        skip();
    snprintf(file, sizeof file, "%s/whole-experts.gguf", test_tmpdir());
    assert_ok(pp_convert_to_gguf(folder, file, &(struct pp_convert_options){0}, &err), err);
    split_file(file, "experts");
    assert_ok(pp_source_open(file, &s, &err), err);
    const size_t vocab = (size_t)pp_source_hparams(s)->n_vocab;
    pp_source_close(s);
    float *a = logits_of(file, &id[0]), *b = logits_of(part_path("experts", 0), &id[1]);
    assert_memory_equal(a, b, vocab * sizeof *a);
    pp_free(a);
    pp_free(b);
}

static void expect_refused(const char *path, enum pp_code code, const char *word)
{
    struct pp_source *s;
    struct pp_error err;
    assert_int_equal(pp_source_open(path, &s, &err), code);
    assert_null(s);
    if (!strstr(err.text, word))
        fail_msg("\"%s\" does not say \"%s\"", err.text, word);
}

static void parts_that_do_not_fit(void **state)
{
    struct pp_gguf *g;
    struct pp_error err;
    (void)state;
    split_model("gap");
    assert_int_equal(unlink(part_path("gap", 1)), 0);
    expect_refused(part_path("gap", 0), PP_ERR_NOT_FOUND, "part 2 of 3");
    expect_refused(part_path("gap", 2), PP_ERR_NOT_FOUND, "part 2 of 3");
    assert_int_equal(unlink(part_path("gap", 0)), 0);
    expect_refused(part_path("gap", 2), PP_ERR_NOT_FOUND, "00001-of-00003");

    split_model("twice"); /* one part is of another model */
    assert_ok(pp_gguf_open(whole_model(), &g, &err), err);
    write_part(g, part_path("twice", 1), 1, 1);
    expect_refused(part_path("twice", 0), PP_ERR_FORMAT, "is not part 2 of 3");
    write_part(g, part_path("twice", 1), 2, -1); /* with another part's tensors */
    struct pp_source *s;
    assert_int_not_equal(pp_source_open(part_path("twice", 0), &s, &err), PP_OK);
    char odd[300];
    snprintf(odd, sizeof odd, "%s/renamed.gguf", test_tmpdir());
    write_part(g, odd, 0, 0);
    expect_refused(odd, PP_ERR_NOT_FOUND, "is not named like one");
    pp_gguf_close(g);
}

TEST_GROUP(parts)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_one_model),
        cmocka_unit_test(experts_in_parts),
        cmocka_unit_test(parts_that_do_not_fit),
    };
    return cmocka_run_group_tests_name("parts", tests, NULL, NULL);
}
