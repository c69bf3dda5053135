/* test_peer.c - exchanges files with llama.cpp, if PIPPIN_LIBLLAMA names its library (tests/peer.c): models that either
 * one quantised or converted are read by both, which must continue texts alike. Without the variable the test is
 * skipped. With PIPPIN_PEER_TABLE, too, it goes on when the texts differ.
 *
 * Both choose the likeliest token each time. Where the texts first differ, both must find their two likeliest tokens
 * nearly equally likely: activations are rounded to 8 bits in blocks of 32 here, of 256 for some types there, and its
 * cache is of F16. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "tests/compressed_model.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { N_NEW = 32, MOST_IDS = 256 };

/* --- the peer ---------------------------------------------------------------------------------------------------- */

static const char *library(void)
{
    const char *path = getenv("PIPPIN_LIBLLAMA");
    if (!path || !*path)
        fprintf(stderr, "skip: PIPPIN_LIBLLAMA does not name llama.cpp's library\n");
    return path && *path ? path : NULL;
}

/* Runs the peer; returns its standard output. pclose gives its exit code. */
static FILE *peer(const char *what, const char *a, const char *b, const char *c)
{
    static char program[3000], command[9000];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(n > 0);
    program[n] = 0;
    strcpy(strrchr(program, '/'), "/peer");
    snprintf(command, sizeof command, "'%s' '%s' %s '%s' '%s' '%s'", program, library(), what, a, b, c);
    fflush(NULL);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    return f;
}

struct text {
    int n;
    int32_t ids[N_NEW];
    float margins[N_NEW];       /* the difference of the two largest logits */
};

/* The peer's greedy answer; false: it cannot read the file. */
static bool theirs(const char *path, const int32_t *ids, int n, struct text *t)
{
    char list[MOST_IDS * 12] = "", count[12];
    for (int i = 0; i < n; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", i ? "," : "", ids[i]);
    snprintf(count, sizeof count, "%d", N_NEW);
    FILE *f = peer("greedy", path, count, list);
    *t = (struct text){0};
    while (t->n < N_NEW && fscanf(f, "%d %f", &t->ids[t->n], &t->margins[t->n]) == 2)
        t->n++;
    return pclose(f) == 0 && t->n == N_NEW;
}

/* --- ours -------------------------------------------------------------------------------------------------------- */

static void ours(const char *path, const int32_t *ids, int n, struct text *t)
{
    const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 2, .kv_memory = 256u << 20};
    struct pp_model *m;
    struct pp_engine *engine;
    struct pp_seq *seq;
    struct pp_error err;
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &engine, &err), err);
    assert_ok(pp_seq_new(engine, &seq, &err), err);
    const int32_t n_vocab = (int32_t)pp_model_info(m)->n_vocab;
    struct pp_row rows[MOST_IDS];
    for (int i = 0; i < n; i++)
        rows[i] = (struct pp_row){.seq = seq, .token = ids[i], .parent = PP_PARENT_PREVIOUS,
                                  .out = i == n - 1 ? PP_OUT_LOGITS : PP_OUT_NONE};
    for (t->n = 0; t->n < N_NEW; t->n++, n = 1) {
        assert_ok(pp_step(engine, rows, n, NULL, &err), err);
        const float *logits = pp_step_output(engine, n - 1);
        int32_t best = 0;
        for (int32_t i = 1; i < n_vocab; i++)
            best = logits[i] > logits[best] ? i : best;
        float second = -1e30f;
        for (int32_t i = 0; i < n_vocab; i++)
            second = i != best && logits[i] > second ? logits[i] : second;
        t->ids[t->n] = best;
        t->margins[t->n] = logits[best] - second;
        rows[0] = (struct pp_row){.seq = seq, .token = best, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    }
    pp_seq_free(seq);
    pp_engine_free(engine);
    pp_model_close(m);
}

/* --- side by side ------------------------------------------------------------------------------------------------ */

/* near: the margin below which the answers may differ. Prints a line of the table. */
static void compare(const char *what, const char *path, const int32_t *ids, int n, float near)
{
    struct text a, b;
    int same = 0;
    if (!theirs(path, ids, n, &b) && getenv("PIPPIN_PEER_TABLE")) {
        fprintf(stderr, "  %-28s llama.cpp cannot read it\n", what);
        return;
    }
    if (b.n < N_NEW)
        fail_msg("%s: llama.cpp cannot read %s", what, path);
    ours(path, ids, n, &a);
    while (same < N_NEW && a.ids[same] == b.ids[same])
        same++;
    if (same == N_NEW)
        fprintf(stderr, "  %-28s the same %d tokens\n", what, N_NEW);
    else
        fprintf(stderr, "  %-28s the same %d tokens; then they part by %.3f and %.3f\n", what, same,
                (double)a.margins[same], (double)b.margins[same]);
    if (getenv("PIPPIN_PEER_TABLE")) /* print the whole table, whatever fails */
        return;
    if (same < N_NEW && !(a.margins[same] <= near && b.margins[same] <= near))
        fail_msg("%s: after %d tokens %d here, %d there, by %.4f and %.4f", what, same, a.ids[same], b.ids[same],
                 (double)a.margins[same], (double)b.margins[same]);
}

/* The starter in F16, and a question to it. */
static const int32_t question[] = {0, 2, 3027, 3, 319, 1707, 16, 569, 434, 307, 35, 4, 2, 580, 438, 387, 3, 319};
enum { N_QUESTION = sizeof question / sizeof *question };

static const char *starter(void)
{
    static char path[300];
    const struct pp_convert_options opt = {.out_type = "F16"};
    struct pp_error err;
    if (!*path) {
        snprintf(path, sizeof path, "%s/starter.gguf", test_tmpdir());
        assert_ok(pp_convert_to_gguf(testdata("starter/target"), path, &opt, &err), err);
    }
    return path;
}

/* --- tests ------------------------------------------------------------------------------------------------------- */

/* Files that llama.cpp quantises. It refuses types that need an importance matrix. Types of three values leave nothing
 * of a model that was not trained for them, so that rounding decides each token; with the same weights as floats both
 * programs agree. */
static void their_types(void **state)
{
    static const struct {
        const char *name;
        int type;
    } types[] = {
        {"F32", 0}, {"F16", 1}, {"BF16", 32}, {"Q4_0", 2}, {"Q4_1", 3}, {"Q5_0", 8}, {"Q5_1", 9}, {"Q8_0", 7},
        {"Q2_K", 10}, {"Q2_K_S", 21}, {"Q3_K_S", 11}, {"Q3_K_M", 12}, {"Q3_K_L", 13}, {"Q4_K_S", 14}, {"Q4_K_M", 15},
        {"Q5_K_S", 16}, {"Q5_K_M", 17}, {"Q6_K", 18}, {"IQ1_S", 24}, {"IQ1_M", 31}, {"IQ2_XXS", 19}, {"IQ2_XS", 20},
        {"IQ2_S", 28}, {"IQ2_M", 29}, {"IQ3_XXS", 23}, {"IQ3_XS", 22}, {"IQ3_S", 26}, {"IQ3_M", 27}, {"IQ4_NL", 25},
        {"IQ4_XS", 30}, {"TQ1_0", 36}, {"TQ2_0", 37}, {"MXFP4_MOE", 38},
    };
    int n_made = 0;
    (void)state;
    if (!library() || !testdata("starter"))
        skip();
    fprintf(stderr, "llama.cpp quantises, both read:\n");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char number[12], file[300];
        snprintf(number, sizeof number, "%d", types[i].type);
        snprintf(file, sizeof file, "%s", test_path("theirs.gguf"));
        FILE *f = peer("quantize", starter(), file, number);
        if (pclose(f) != 0) {
            fprintf(stderr, "  %-28s llama.cpp does not make it\n", types[i].name);
            continue;
        }
        n_made++;
        compare(types[i].name, file, question, N_QUESTION, types[i].type == 36 || types[i].type == 37 ? 10.0f : 1.0f);
    }
    assert_true(n_made > 15);
}

/* Matrices of two layers in every type, including those that llama.cpp makes only with an importance matrix. */
static void their_blocks(void **state)
{
    static const struct {
        const char *name;
        int type;
    } types[] = {
        {"Q4_0", 2}, {"Q4_1", 3}, {"Q5_0", 6}, {"Q5_1", 7}, {"Q8_0", 8}, {"Q2_K", 10}, {"Q3_K", 11}, {"Q4_K", 12},
        {"Q5_K", 13}, {"Q6_K", 14}, {"IQ2_XXS", 16}, {"IQ2_XS", 17}, {"IQ3_XXS", 18}, {"IQ1_S", 19}, {"IQ4_NL", 20},
        {"IQ3_S", 21}, {"IQ2_S", 22}, {"IQ4_XS", 23}, {"IQ1_M", 29}, {"TQ1_0", 34}, {"TQ2_0", 35}, {"MXFP4", 39},
    };
    (void)state;
    if (!library() || !testdata("starter"))
        skip();
    fprintf(stderr, "llama.cpp makes blocks, both read:\n");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char number[12], file[300];
        snprintf(number, sizeof number, "%d", types[i].type);
        snprintf(file, sizeof file, "%s", test_path("blocks.gguf"));
        if (pclose(peer("blocks", starter(), file, number)) != 0)
            fail_msg("llama.cpp makes no blocks of %s", types[i].name);
        compare(types[i].name, file, question, N_QUESTION, 1.0f);
    }
}

static void our_types(void **state)
{
    const struct pp_convert_options opt = {0};
    struct pp_error err;
    const char *type;
    (void)state;
    if (!library() || !testdata("starter"))
        skip();
    fprintf(stderr, "pippin quantises, both read:\n");
    for (size_t i = 0; (type = pp_quantize_type(i)); i++) {
        char file[300];
        snprintf(file, sizeof file, "%s", test_path("ours.gguf"));
        assert_ok(pp_quantize_file(starter(), file, type, &opt, &err), err);
        compare(type, file, question, N_QUESTION, 1.0f);
    }
}

/* Folders of all families become files that the peer reads: but for Mistral's with a window, which it does not look at.
 * gpt-oss' YaRN begins and ends between dimensions, where the peer takes whole ones: the answers are of slightly other
 * models. The folder's name becomes the model's, and of one called "phi3" the peer expects all of that one's tokens. */
static void our_families(void **state)
{
    static const char *const families[] = {
        "cohere2", "gemma", "gemma2", "gemma3", "gpt2", "gptneox", "gptoss", "granite", "llama", "llama-bias",
        "llama-k256", "llama-linear", "llama-yarn", "llama3-rope", "mixtral", "olmo2", "phi2", "phi3", "qwen2", "qwen3",
        "qwen3moe", "smollm3", "stablelm", "starcoder2",
    };
    const struct pp_convert_options opt = {0};
    (void)state;
    if (!library() || !testdata("architectures"))
        skip();
    fprintf(stderr, "pippin converts, both read:\n");
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char name[100], file[300], folder[300];
        struct pp_safetensors *e;
        struct pp_error err;
        snprintf(name, sizeof name, "architectures/%s/expected.safetensors", families[i]);
        assert_ok(pp_safetensors_open(testdata(name), &e, &err), err);
        const struct pp_tensor *ids = pp_safetensors_find(e, "ids0");
        snprintf(name, sizeof name, "architectures/%s", families[i]);
        snprintf(file, sizeof file, "%s", test_path("family.gguf"));
        snprintf(folder, sizeof folder, "%s", test_path("random-four"));
        unlink(folder);
        assert_int_equal(symlink(testdata(name), folder), 0);
        assert_ok(pp_convert_to_gguf(folder, file, &opt, &err), err);
        compare(families[i], file, ids->data, ids->ne[0] < 16 ? (int)ids->ne[0] : 16,
                strcmp(families[i], "gptoss") == 0 ? 0.2f : 0.05f);
        pp_safetensors_close(e);
    }
}

/* DeepSeek V4: keys of blocks, some picked, some all seen, tables of experts and streams, from the file that pippin
 * makes of a folder. The peer's keys are of F16, and it knows blocks of 4 and of 128 alone. */
static void compressed_blocks(void **state)
{
    static const int blocks[] = {128, 4, 0, 4, 128};
    const struct pp_convert_options opt = {0};
    struct compressed_shape s = compressed_shape();
    struct pp_error err;
    int32_t ids[MOST_IDS];
    char folder[300], file[300];
    (void)state;
    if (!library())
        skip();
    memcpy(s.compress, blocks, sizeof blocks);
    s.n_ctx = 1024;
    s.yarn_ctx = 128;
    s.top_k = 16;
    s.index_heads = 16; /* so that no two blocks are equally likely */
    s.index_dim = 64;   /* the peer multiplies by a matrix of this size */
    for (int i = 0; i < MOST_IDS; i++)
        ids[i] = (i * 37 + i / 7 + i / 100) % s.n_vocab;
    struct compressed_model *m = compressed_model_make(&s);
    snprintf(folder, sizeof folder, "%s", fresh_path("folder"));
    snprintf(file, sizeof file, "%s", test_path("compressed.gguf"));
    assert_ok(pp_convert_to_folder(compressed_model_write(m), folder, &opt, &err), err);
    assert_ok(pp_convert_to_gguf(folder, file, &opt, &err), err);
    compressed_model_free(m);
    fprintf(stderr, "DeepSeek V4, both read:\n");
    for (int n = 5; n < MOST_IDS; n += 98) {
        char what[40];
        snprintf(what, sizeof what, "behind %d tokens", n);
        compare(what, file, ids, n, 0.2f);
    }
}

TEST_GROUP(peer)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_families),
        cmocka_unit_test(compressed_blocks),
        cmocka_unit_test(our_types),
        cmocka_unit_test(their_types),
        cmocka_unit_test(their_blocks),
    };
    return cmocka_run_group_tests_name("peer", tests, NULL, NULL);
}
