/* test_encoder.c - encoders: their output follows from their formulas, however the work is divided; and embedding
 * vectors from decoders. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/hf.h"
#include "engine/rows.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "engine/text.h"
#include "engine/types.h"
#include "src/commands.h"
#include "src/options.h"
#include "src/paths.h"
#include "tests/encoder_model.h"
#include "tests/gemma_model.h"
#include "tests/gguf_file.h"
#include "tests/support.h"

static const char *const families[] = {"bert", "nomic-bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert-moe"};
enum { N_FAMILIES = 5, MOST = 512 };

struct rig {
    struct pp_model *model;
    struct pp_engine *engine;
};

static struct rig open_rig(const char *path, const char *kernels, int n_threads)
{
    const struct pp_engine_options opt = {.n_threads = n_threads, .kernels = kernels, .kv_memory = 64u << 20,
                                          .activations = PP_ACT_F32, .kv_type = PP_KV_F32};
    struct rig r;
    struct pp_error err;
    assert_ok(pp_model_open(path, &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    return r;
}

static void close_rig(struct rig *r)
{
    pp_engine_free(r->engine);
    pp_model_close(r->model);
}

static void fill_ids(int32_t *ids, int n, int n_vocab)
{
    for (int i = 0; i < n; i++)
        ids[i] = (i * 37 + i / 7) % n_vocab;
}

/* Computes texts of these lengths in one pass; hidden: the rows of all texts, concatenated. */
static void compute(const struct rig *r, const int32_t *const *ids, const int *lengths, int n_texts, float *hidden)
{
    const size_t width = (size_t)pp_model_info(r->model)->n_embd;
    struct pp_row *rows = pp_calloc(MOST, sizeof *rows);
    struct pp_seq *seqs[8];
    struct pp_error err;
    int at = 0;
    assert_non_null(rows);
    for (int t = 0; t < n_texts; t++) {
        assert_ok(pp_seq_new(r->engine, &seqs[t], &err), err);
        for (int i = 0; i < lengths[t]; i++)
            rows[at++] = (struct pp_row){.seq = seqs[t], .token = ids[t][i], .parent = PP_PARENT_PREVIOUS,
                                         .out = PP_OUT_HIDDEN};
    }
    assert_ok(pp_step(r->engine, rows, at, NULL, &err), err);
    for (int i = 0; i < at; i++)
        memcpy(hidden + (size_t)i * width, pp_step_output(r->engine, i), width * sizeof *hidden);
    for (int t = 0; t < n_texts; t++)
        pp_seq_free(seqs[t]);
    pp_free(rows);
}

static double cosine(const float *a, const double *b, int n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < n; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * (double)a[i];
        bb += b[i] * b[i];
    }
    return ab / sqrt(aa * bb);
}

/* Every row of texts of several lengths against the formulas. */
static void expect_formulas(const struct encoder_shape *s, const char *path, const struct encoder *e, double least)
{
    static const int lengths[] = {1, 2, 17, 64, 65, 300, 512};
    struct rig r = open_rig(path, NULL, 2);
    double *want = pp_calloc((size_t)(MOST * s->n_embd), sizeof *want);
    float *have = pp_calloc((size_t)(MOST * s->n_embd), sizeof *have);
    int32_t ids[MOST];
    assert_true(want && have);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        const int32_t *text = ids;
        fill_ids(ids, lengths[k], s->n_vocab);
        encoder_compute(e, ids, lengths[k], want);
        compute(&r, &text, &lengths[k], 1, have);
        for (int i = 0; i < lengths[k]; i++) {
            const double c = cosine(have + i * s->n_embd, want + i * s->n_embd, s->n_embd);
            if (!(c >= least))
                fail_msg("%s, type %u, row %d of %d: cosine %.9f", s->arch, s->type, i, lengths[k], c);
        }
    }
    pp_free(want);
    pp_free(have);
    close_rig(&r);
}

/* With float weights only rounding errors remain. Block formats are multiplied with 8-bit activations, whose error of
 * half a percent grows from layer to layer. */
static void formulas(void **state)
{
    static const struct {
        uint32_t type;
        double least;
    } types[] = {{PP_TYPE_F32, 0.9999999}, {PP_TYPE_F16, 0.9999999}, {PP_TYPE_BF16, 0.9999999}, {PP_TYPE_Q8_0, 0.999}};
    (void)state;
    for (int f = 0; f < N_FAMILIES; f++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (int apart = 0; apart < (f == 2 ? 2 : 1); apart++) {
                struct encoder_shape s = encoder_shape(families[f], types[t].type);
                s.apart = apart;
                struct encoder *e = encoder_make(&s);
                const bool choosy = f == N_FAMILIES - 1 && types[t].type == PP_TYPE_Q8_0; /* an expert may be chosen
                                                                                             differently now and then */
                expect_formulas(&s, encoder_write(e), e, choosy ? 0.8 : types[t].least);
                encoder_free(e);
            }
}

/* The formulas are a useful reference only if all parts matter: a text's vectors must change with later tokens and with
 * the order of earlier ones. */
static void all_see_all(void **state)
{
    (void)state;
    for (int f = 0; f < N_FAMILIES; f++) {
        struct encoder_shape s = encoder_shape(families[f], PP_TYPE_F32);
        struct encoder *e = encoder_make(&s);
        struct rig r = open_rig(encoder_write(e), NULL, 1);
        int32_t ids[3][20];
        float hidden[3][20 * 96];
        const int n = 20;
        for (int v = 0; v < 3; v++) {
            const int32_t *text = ids[v];
            fill_ids(ids[v], n, s.n_vocab);
            if (v == 1)
                ids[v][19] = 5;
            if (v == 2) {
                ids[v][3] = ids[0][4];
                ids[v][4] = ids[0][3];
            }
            compute(&r, &text, &n, 1, hidden[v]);
        }
        assert_memory_not_equal(hidden[0], hidden[1], sizeof(float) * 96);
        assert_memory_not_equal(hidden[0], hidden[2], sizeof(float) * 96);
        close_rig(&r);
        encoder_free(e);
    }
}

/* The same bits on any number of threads, with the scalar kernels, and together with other texts. The scalar kernels
 * are slow and run with one thread count only. */
static void same_bits(void **state)
{
    static const int lengths[] = {17, 1, 300, 64, 130};
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_Q8_0};
    enum { TEXTS = 5, PLAIN_THREADS = 3 };
    (void)state;
    for (int f = 0; f < N_FAMILIES; f++)
        for (int t = 0; t < 2; t++) {
            struct encoder_shape s = encoder_shape(families[f], types[t]);
            struct encoder *e = encoder_make(&s);
            const char *path = encoder_write(e);
            const size_t bytes = (size_t)(MOST * s.n_embd) * sizeof(float);
            float *first = pp_calloc(1, bytes), *other = pp_calloc(1, bytes);
            int32_t ids[MOST];
            const int32_t *texts[TEXTS];
            assert_true(first && other);
            fill_ids(ids, MOST, s.n_vocab);
            for (int k = 0, at = 0; k < TEXTS; at += lengths[k++])
                texts[k] = ids + at;
            struct rig alone = open_rig(path, NULL, 1);
            for (int k = 0, at = 0; k < TEXTS; at += lengths[k++])
                compute(&alone, &texts[k], &lengths[k], 1, first + at * s.n_embd);
            close_rig(&alone);
            for (int threads = 1; threads <= 4; threads++)
                for (int scalar = 0; scalar < (threads == PLAIN_THREADS ? 2 : 1); scalar++) {
                    struct rig r = open_rig(path, scalar ? "scalar" : NULL, threads);
                    memset(other, 0, bytes);
                    compute(&r, texts, lengths, TEXTS, other);
                    if (memcmp(first, other, bytes) != 0)
                        fail_msg("%s, type %u: other bits on %d threads, %s", s.arch, s.type, threads,
                                 pp_engine_kernels(r.engine));
                    close_rig(&r);
                }
            pp_free(first);
            pp_free(other);
            encoder_free(e);
        }
}

/* --- what it is not for ------------------------------------------------------------------------------------------ */

static void refuses(void **state)
{
    struct encoder_shape s = encoder_shape("bert", PP_TYPE_F32);
    struct encoder *e = encoder_make(&s);
    struct rig r = open_rig(encoder_write(e), NULL, 1);
    const struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 4};
    const int32_t prompt[] = {1, 2, 3};
    struct pp_row rows[MOST + 1];
    struct pp_seq *seq;
    struct pp_gen *gen;
    struct pp_error err;
    (void)state;
    assert_true(pp_model_info(r.model)->encoder);
    assert_int_equal(pp_engine_kv_type(r.engine), PP_KV_F32);
    assert_ok(pp_seq_new(r.engine, &seq, &err), err);
    assert_int_equal(pp_model_check_writes(r.model, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "pippin embed"));
    assert_int_equal(pp_gen_begin(seq, prompt, 3, &opt, &gen, &err), PP_ERR_UNSUPPORTED);
    assert_null(gen);
    for (int i = 0; i <= MOST; i++)
        rows[i] = (struct pp_row){.seq = seq, .token = 1, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_NONE};
    rows[1].out = PP_OUT_LOGITS;
    assert_int_equal(pp_step(r.engine, rows, 2, NULL, &err), PP_ERR_UNSUPPORTED);
    rows[1].out = PP_OUT_NONE;
    rows[1].parent = PP_PARENT_COMMITTED;
    assert_int_equal(pp_step(r.engine, rows, 2, NULL, &err), PP_ERR_USAGE);
    rows[1].parent = PP_PARENT_PREVIOUS;
    assert_int_equal(pp_step(r.engine, rows, MOST + 1, NULL, &err), PP_ERR_USAGE);
    assert_int_equal(pp_seq_len(seq), 0);
    assert_ok(pp_step(r.engine, rows, MOST, NULL, &err), err);
    assert_int_equal(pp_step(r.engine, rows, 1, NULL, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "in one step"));
    pp_seq_truncate(seq, 0);
    assert_ok(pp_step(r.engine, rows, MOST, NULL, &err), err);
    /* pages are never shared: what they contain depends on the whole text */
    const int32_t again[MOST] = {0};
    assert_int_equal(pp_engine_cached_tokens(r.engine, NULL, 0, pp_seq_tokens(seq), MOST), 0);
    assert_int_equal(pp_seq_cached_tokens(seq, NULL, 0, again, MOST), 0);
    pp_seq_free(seq);
    close_rig(&r);
    encoder_free(e);
}

/* Files that are inconsistent or incomplete are refused; the error names what is wrong. */
static void lies(void **state)
{
    static const struct {
        const char *arch, *name;
        int64_t rows, cols;
        const char *word;
    } cases[] = {
        {"bert", "position_embd.weight", 0, 0, "position_embd.weight is missing"},
        {"bert", "position_embd.weight", 511, 96, "position_embd.weight has"},
        {"bert", "token_types.weight", 2, 95, "token_types.weight has"},
        {"bert", "token_types.weight", 0, 96, "token_types.weight has"},
        {"bert", "token_embd_norm.bias", 0, 0, "token_embd_norm.bias is missing"},
        {"bert", "blk.1.attn_output_norm.weight", 0, 95, "attn_output_norm.weight has"},
        {"bert", "blk.1.layer_output_norm.weight", 0, 0, "layer_output_norm.weight is missing"},
        {"bert", "blk.0.ffn_down.weight", 96, 161, "ffn_down.weight has"},
        {"bert", "blk.1.attn_k.bias", 0, 95, "attn_k.bias has"},
        {"nomic-bert", "blk.1.attn_qkv.weight", 0, 0, "attn_qkv.weight is missing"},
        {"nomic-bert", "blk.1.ffn_gate.weight", 0, 0, "ffn_gate.weight is missing"},
        {"jina-bert-v2", "blk.1.ffn_up.weight", 160, 96, "ffn_up.weight has"},
        {"jina-bert-v2", "blk.0.ffn_up.weight", 319, 96, "ffn_up.weight has"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct encoder_shape s = encoder_shape(cases[i].arch, PP_TYPE_F32);
        struct encoder *e = encoder_make(&s);
        struct pp_model *m;
        struct pp_error err;
        encoder_spoil(e, cases[i].name, cases[i].rows, cases[i].cols);
        if (pp_model_open(encoder_write(e), &m, &err) == PP_OK)
            fail_msg("%s with a wrong %s opens", cases[i].arch, cases[i].name);
        if (!strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].name, err.text);
        encoder_free(e);
    }
    struct encoder_shape s = encoder_shape("bert", PP_TYPE_F32);
    struct pp_model *m;
    struct pp_error err;
    s.pooling = 9;
    struct encoder *e = encoder_make(&s);
    assert_int_equal(pp_model_open(encoder_write(e), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "pooling_type"));
    encoder_free(e);
}

/* Token types may be absent; then there is only one. */
static void no_types(void **state)
{
    struct encoder_shape s = encoder_shape("bert", PP_TYPE_F32);
    struct encoder *e = encoder_make(&s);
    (void)state;
    encoder_spoil(e, "token_types.weight", 0, 0);
    expect_formulas(&s, encoder_write(e), e, 0.9999999);
    encoder_free(e);
}

/* --- folders ------------------------------------------------------------------------------------------------------ */

static void expect_number(const struct pp_gguf *g, const char *key, int64_t want)
{
    int64_t v = -1;
    assert_true(pp_gguf_int(g, key, &v));
    assert_int_equal(v, want);
}

/* [CLS] hello [UNK] world ##s [UNK] [SEP] */
static void expect_ids(const char *path, const char *text)
{
    static const int32_t want[] = {2, 4, 1, 6, 5, 1, 3};
    struct pp_tokenizer *t;
    struct pp_error err;
    int32_t *ids;
    size_t n;
    assert_ok(pp_tokenizer_open(path, &t, &err), err);
    assert_ok(pp_tokenize(t, text, strlen(text), PP_TOKENIZE_BOS, &ids, &n, &err), err);
    assert_int_equal(n, sizeof want / sizeof *want);
    assert_memory_equal(ids, want, sizeof want);
    pp_free(ids);
    pp_tokenizer_free(t);
}

/* BERT's and RoBERTa's folders give the same results, and so does the GGUF file converted from them, which has the
 * metadata that other programs need. */
static void folders(void **state)
{
    (void)state;
    for (int reserved = 0; reserved <= 2; reserved += 2) {
        struct encoder_shape s = encoder_shape("bert", PP_TYPE_F32);
        struct pp_convert_options opt = {0};
        char file[300];
        struct pp_gguf *g;
        struct pp_error err;
        bool causal = true;
        s.n_reserved = reserved;
        s.words = !reserved;
        struct encoder *e = encoder_make(&s);
        const char *dir = encoder_write_folder(e, !reserved);
        expect_formulas(&s, dir, e, 0.9999999);
        snprintf(file, sizeof file, "%s.gguf", dir);
        assert_ok(pp_convert_to_gguf(dir, file, &opt, &err), err);
        expect_formulas(&s, file, e, 0.9999999);
        if (s.words) {
            expect_ids(dir, "Hello there worlds?");
            expect_ids(file, "Hello there worlds?");
        }
        assert_ok(pp_gguf_open(file, &g, &err), err);
        assert_true(pp_gguf_string_is(g, "general.architecture", "bert"));
        assert_true(pp_gguf_bool(g, "bert.attention.causal", &causal));
        assert_false(causal);
        expect_number(g, "bert.context_length", 512);
        expect_number(g, "tokenizer.ggml.token_type_count", 2);
        assert_true(pp_gguf_has(g, "bert.attention.layer_norm_epsilon"));
        assert_int_equal(pp_gguf_has(g, "bert.pooling_type"), !reserved);
        if (!reserved) {
            expect_number(g, "bert.pooling_type", 2);
            expect_number(g, "tokenizer.ggml.cls_token_id", 2);
            expect_number(g, "tokenizer.ggml.seperator_token_id", 3);
            expect_number(g, "tokenizer.ggml.unknown_token_id", 1);
        }
        const struct pp_tensor *positions = pp_gguf_tensor(g, "position_embd.weight");
        assert_true(positions && positions->ne[1] == 512);
        pp_gguf_close(g);
        encoder_free(e);
    }
}

/* Folders of Nomic's mixture, and of Jina 3 with task adapters, which stay off. */
static void flat_folders(void **state)
{
    (void)state;
    for (int f = 3; f < N_FAMILIES; f++) {
        struct encoder_shape s = encoder_shape(families[f], PP_TYPE_F32);
        const struct pp_convert_options opt = {0};
        struct encoder *e = encoder_make(&s);
        const char *dir = encoder_write_folder(e, false);
        char file[300];
        struct pp_gguf *g;
        struct pp_error err;
        expect_formulas(&s, dir, e, 0.9999999);
        snprintf(file, sizeof file, "%s.gguf", dir);
        assert_ok(pp_convert_to_gguf(dir, file, &opt, &err), err);
        expect_formulas(&s, file, e, 0.9999999);
        assert_ok(pp_gguf_open(file, &g, &err), err);
        assert_true(pp_gguf_string_is(g, "general.architecture", families[f]));
        if (f == N_FAMILIES - 1)
            expect_number(g, "nomic-bert-moe.moe_every_n_layers", 2);
        pp_gguf_close(g);
        encoder_free(e);
    }
}

/* A folder whose modules do more than pooling is refused, because its vectors would be wrong. */
static void further_layers(void **state)
{
    static const struct {
        const char *from, *to, *word;
    } cases[] = {
        {"models.Normalize", "models.LayerNorm", "LayerNorm"},
        {"models.Normalize", "models.Dense", "2_Normalize/config.json"},
        {"1_Pooling", "../up", "not the name of a module"},
        {"\"path\": \"1_Pooling\"", "\"path\": 7", "not the name of a module"},
        {"[{\"idx\": 0", "{\"a\": [{\"idx\": 0", "is not a JSON"},
        {"\"1_Pooling\"", "\"absent\"", "absent"},
    };
    struct encoder_shape s = encoder_shape("bert", PP_TYPE_F32);
    struct encoder *e = encoder_make(&s);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *dir = encoder_write_folder(e, true);
        char path[400], *text;
        struct pp_model *m;
        struct pp_error err;
        struct pp_buf changed = {0};
        size_t n;
        snprintf(path, sizeof path, "%s/modules.json", dir);
        assert_ok(pp_read_file(path, 1 << 16, &text, &n, &err), err);
        const char *at = strstr(text, cases[i].from);
        assert_non_null(at);
        pp_buf_fmt(&changed, "%.*s%s%s", (int)(at - text), text, cases[i].to, at + strlen(cases[i].from));
        assert_ok(pp_write_file(path, changed.data, changed.len, 0600, &err), err);
        if (pp_model_open(dir, &m, &err) == PP_OK)
            fail_msg("modules with %s are taken", cases[i].to);
        if (!strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].to, err.text);
        pp_buf_free(&changed);
        pp_free(text);
    }
    encoder_free(e);
}

/* --- the command -------------------------------------------------------------------------------------------------- */

struct answer {
    int exit_code;
    char *out, *err; /* pp_free */
};

/* Runs pippin with these arguments in a process of its own. */
static struct answer run(int argc, char **argv)
{
    static unsigned serial;
    char out[300], err_path[300];
    struct answer a;
    struct pp_error err;
    size_t n;
    snprintf(out, sizeof out, "%s/embed-%u.out", test_tmpdir(), serial);
    snprintf(err_path, sizeof err_path, "%s/embed-%u.err", test_tmpdir(), serial++);
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct pp_paths paths;
        struct pp_options o;
        if (!freopen(out, "w", stdout) || !freopen(err_path, "w", stderr))
            _exit(99);
        setenv("HOME", test_tmpdir(), 1);
        setenv("XDG_CACHE_HOME", test_tmpdir(), 1);
        int code = pp_paths_init(&paths, &err) || pp_options_parse(argc, argv, &paths, &o, &err) ? 98 : 0;
        if (!code)
            code = pp_command_find(o.command)(&o, &paths);
        fflush(NULL);
        _exit(code);
    }
    int status;
    assert_true(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    a.exit_code = WEXITSTATUS(status);
    assert_ok(pp_read_file(out, 1 << 26, &a.out, &n, &err), err);
    assert_ok(pp_read_file(err_path, 1 << 20, &a.err, &n, &err), err);
    return a;
}

/* Line `line` of what was printed. */
static cJSON *parse_line(const char *text, int line)
{
    for (int i = 0; i < line && text; i++)
        text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL;
    const char *end = text ? strchr(text, '\n') : NULL;
    cJSON *v = end ? cJSON_ParseWithLength(text, (size_t)(end - text)) : NULL;
    if (!cJSON_IsArray(v))
        fail_msg("line %d is no array", line);
    return v;
}

/* A printed vector has length 1 and this direction. */
static void expect_vector(const cJSON *list, const double *want, int n)
{
    float have[256];
    double squares = 0;
    const cJSON *item;
    int i = 0;
    assert_int_equal(cJSON_GetArraySize(list), n);
    cJSON_ArrayForEach(item, list) {
        have[i] = (float)item->valuedouble;
        squares += item->valuedouble * item->valuedouble;
        i++;
    }
    assert_near(squares, 1, 1e-6);
    if (!(cosine(have, want, n) >= 0.9999999))
        fail_msg("a vector has another direction: %.9f", cosine(have, want, n));
}

/* Pools the rows of a text. */
static void pool(const char *how, const double *hidden, int n, int width, double *out)
{
    for (int i = 0; i < width; i++) {
        out[i] = 0;
        for (int r = 0; r < n; r++)
            if (strcmp(how, "mean") == 0 || (strcmp(how, "cls") == 0 && r == 0) ||
                (strcmp(how, "last") == 0 && r == n - 1))
                out[i] += hidden[r * width + i];
    }
}

/* "hello there", "ab", and a text longer than the context. */
static void embed(void **state)
{
    static const char *const hows[] = {"cls", "mean", "last", "none", NULL};
    static const int32_t first[] = {2, 56, 57, 3}, second[] = {2, 4, 31, 3};
    struct encoder_shape s = encoder_shape("bert", PP_TYPE_F32);
    int32_t third[MOST];
    const int32_t *const texts[] = {first, second, third};
    const int lengths[] = {4, 4, MOST};
    double *hidden = pp_calloc(MOST * 96, sizeof *hidden), want[96];
    char lines[300], *file;
    struct pp_error err;
    (void)state;
    assert_non_null(hidden);
    s.words = true;
    s.pooling = 1; /* mean pooling */
    struct encoder *e = encoder_make(&s);
    struct pp_buf text = {0};
    pp_buf_str(&text, "Hello THERE\nab\r\n");
    for (int i = 0; i < 600; i++)
        pp_buf_str(&text, "table ");
    pp_buf_char(&text, '\n');
    for (int i = 0; i < MOST; i++)
        third[i] = i == 0 ? 2 : i == MOST - 1 ? 3 : 59;
    snprintf(lines, sizeof lines, "%s/encoder-lines", test_tmpdir());
    assert_ok(pp_write_file(lines, text.data, text.len, 0600, &err), err);
    file = (char *)(uintptr_t)encoder_write(e);
    for (size_t h = 0; h < sizeof hows / sizeof *hows; h++) {
        const char *how = hows[h] ? hows[h] : "mean";
        char *argv[] = {"pippin", "embed", "-m", file, "-f", lines, "--pooling", (char *)(uintptr_t)how, NULL};
        struct answer a = run(hows[h] ? 8 : 6, argv);
        if (a.exit_code)
            fail_msg("embed: exit %d, %s", a.exit_code, a.err);
        assert_non_null(strstr(a.err, "line 3 has 602 tokens, but the model reads at most 512"));
        for (int t = 0; t < 3; t++) {
            cJSON *vector = parse_line(a.out, t);
            encoder_compute(e, texts[t], lengths[t], hidden);
            pool(how, hidden, lengths[t], s.n_embd, want);
            if (strcmp(how, "none") != 0)
                expect_vector(vector, want, s.n_embd);
            else
                assert_int_equal(cJSON_GetArraySize(vector), lengths[t]);
            for (int i = 0; strcmp(how, "none") == 0 && i < lengths[t]; i++)
                expect_vector(cJSON_GetArrayItem(vector, i), hidden + i * s.n_embd, s.n_embd);
            cJSON_Delete(vector);
        }
        pp_free(a.out);
        pp_free(a.err);
    }
    pp_buf_free(&text);
    pp_free(hidden);
    encoder_free(e);
}

/* Vectors wider than the residual stream are printed whole. */
static void embed_wider(void **state)
{
    static const int32_t ids[] = {1, 3, 4, 5}; /* <s>, and " ab" */
    enum { N = 4 };
    const struct gemma_shape s = gemma_vectors();
    struct gemma *g = gemma_make(&s);
    double hidden[N * 72], want[72];
    char lines[300];
    struct pp_error err;
    (void)state;
    assert_int_equal(s.n_embd_out, 72);
    gemma_compute(g, ids, N, hidden);
    pool("mean", hidden, N, s.n_embd_out, want);
    snprintf(lines, sizeof lines, "%s/encoder-wider", test_tmpdir());
    assert_ok(pp_write_file(lines, "ab\n", 3, 0600, &err), err);
    char *argv[] = {"pippin", "embed", "-m", (char *)(uintptr_t)gemma_write(g), "-f", lines, NULL};
    struct answer a = run(6, argv);
    if (a.exit_code)
        fail_msg("embed: exit %d, %s", a.exit_code, a.err);
    cJSON *vector = parse_line(a.out, 0);
    expect_vector(vector, want, s.n_embd_out);
    cJSON_Delete(vector);
    pp_free(a.out);
    pp_free(a.err);
    gemma_free(g);
}

/* Many short lines are computed in one batch, and printed in their order. */
static void many_lines(void **state)
{
    struct encoder_shape s = encoder_shape("nomic-bert", PP_TYPE_F32);
    struct pp_buf text = {0};
    char lines[300];
    struct pp_error err;
    double hidden[40 * 96], want[96];
    (void)state;
    s.words = true;
    struct encoder *e = encoder_make(&s);
    for (int i = 0; i < 70; i++) {
        for (int k = 0; k <= i % 30; k++)
            pp_buf_fmt(&text, "%c ", 'a' + (i + k) % 26);
        pp_buf_char(&text, '\n');
    }
    snprintf(lines, sizeof lines, "%s/encoder-many", test_tmpdir());
    assert_ok(pp_write_file(lines, text.data, text.len, 0600, &err), err);
    char *argv[] = {"pippin", "embed", "-m", (char *)(uintptr_t)encoder_write(e), "-f", lines, "-t", "2", NULL};
    struct answer a = run(8, argv);
    if (a.exit_code)
        fail_msg("embed: exit %d, %s", a.exit_code, a.err);
    for (int i = 0; i < 70; i++) {
        int32_t ids[40] = {2};
        int n = 1;
        for (int k = 0; k <= i % 30; k++)
            ids[n++] = 4 + (i + k) % 26;
        ids[n++] = 3;
        cJSON *vector = parse_line(a.out, i);
        encoder_compute(e, ids, n, hidden);
        pool("mean", hidden, n, s.n_embd, want); /* the default of encoders whose file names none */
        expect_vector(vector, want, s.n_embd);
        cJSON_Delete(vector);
    }
    pp_free(a.out);
    pp_free(a.err);
    pp_buf_free(&text);
    encoder_free(e);
}

/* Writes a small decoder as a file that names a pooling type, or none (< 0). */
static void write_pooling(const char *path, int pooling)
{
    struct pp_tensor tensors[128];
    struct pp_gguf *g;
    struct pp_error err;
    assert_ok(pp_gguf_open("engine/starter/starter-draft-Q4_0.gguf", &g, &err), err);
    struct pp_gguf_writer *w = gguf_file_begin(path);
    gguf_file_copy_keys(w, g);
    if (pooling >= 0)
        pp_gguf_add_u32(w, "llama.pooling_type", (uint32_t)pooling);
    const size_t n = pp_gguf_n_tensors(g);
    assert_true(n <= sizeof tensors / sizeof *tensors);
    for (size_t i = 0; i < n; i++)
        tensors[i] = *pp_gguf_tensor_at(g, i);
    gguf_file_end(w, tensors, n);
    pp_gguf_close(g);
}

/* A file's pooling type is kept in the folder exported from it, in the form of sentence-transformers. */
static void pooling_of_a_file(void **state)
{
    (void)state;
    for (int pooling = -1; pooling <= 4; pooling++) { /* none given, none, mean, the first token's, the last's, rank */
        const struct pp_convert_options opt = {0};
        char file[300], folder[300];
        const bool said = pooling >= 1 && pooling <= 3;
        struct pp_source *s;
        struct pp_error err;
        snprintf(file, sizeof file, "%s%d", test_path("pooling"), pooling);
        snprintf(folder, sizeof folder, "%s%d", test_path("pooled"), pooling);
        write_pooling(file, pooling);
        assert_ok(pp_convert_to_folder(file, folder, &opt, &err), err);
        assert_int_equal(pp_file_exists(folder, "modules.json"), said);
        assert_ok(pp_source_open(folder, &s, &err), err);
        assert_int_equal(pp_source_hparams(s)->pooling, said ? pooling + 1 : PP_POOLING_UNKNOWN);
        pp_source_close(s);
    }
}

/* Commands that need a generating model say what this one is for; so does one for a reranker, which rates pairs. */
static void other_commands(void **state)
{
    struct encoder_shape s = encoder_shape("bert", PP_TYPE_F32);
    (void)state;
    s.words = true;
    s.pooling = 4; /* a reranker */
    struct encoder *e = encoder_make(&s);
    char *file = (char *)(uintptr_t)encoder_write(e);
    char *chat[] = {"pippin", "run", "-m", file, "-p", "hello", NULL};
    char *bench[] = {"pippin", "bench", "-m", file, "-p", "8", "-n", "2", "-r", "1", NULL};
    char *rank[] = {"pippin", "embed", "-m", file, "-p", "hello", NULL};
    struct answer a = run(6, chat), b = run(10, bench), c = run(6, rank);
    assert_true(a.exit_code == 1 && strstr(a.err, "pippin embed"));
    assert_true(b.exit_code == 1 && strstr(b.err, "pippin embed"));
    assert_true(c.exit_code == 1 && strstr(c.err, "--pooling cls"));
    struct answer *const all[] = {&a, &b, &c};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(all[i]->out, "");
        pp_free(all[i]->out);
        pp_free(all[i]->err);
    }
    encoder_free(e);
}

/* --- decoders ---------------------------------------------------------------------------------------------------- */

/* The output matrix maps what follows the last norm to the reference's logits, so those hidden vectors are the
 * reference's. */
static void expect_reference(const char *path, const char *expected, const float *hidden, int n, int width)
{
    struct pp_safetensors *e;
    struct pp_source *s;
    struct pp_error err;
    assert_ok(pp_safetensors_open(expected, &e, &err), err);
    assert_ok(pp_source_open(path, &s, &err), err);
    const struct pp_tensor *logits = pp_safetensors_find(e, "logits0"), *w = pp_source_tensor(s, "output.weight");
    if (!w)
        w = pp_source_tensor(s, "token_embd.weight");
    assert_true(w && w->ne[0] == width && logits->ne[0] == w->ne[1] && logits->ne[1] == n);
    float *row = pp_calloc((size_t)width, sizeof *row);
    for (int64_t v = 0; v < w->ne[1]; v++) {
        assert_ok(pp_tensor_floats(w, v, 1, row, &err), err);
        for (int i = 0; i < n; i++) {
            double sum = 0, want = ((const float *)logits->data)[i * w->ne[1] + v];
            for (int k = 0; k < width; k++)
                sum += (double)row[k] * (double)hidden[i * width + k];
            assert_near(sum, want, 1e-3);
        }
    }
    pp_free(row);
    pp_source_close(s);
    pp_safetensors_close(e);
}

/* The vector that the command prints is the pooled output of the engine. */
static void expect_pooled(const struct rig *r, char *path)
{
    static const char text[] = "A ship and its captain sail around the world.\n";
    static const char *const hows[] = {"last", "mean"};
    const int width = (int)pp_model_info(r->model)->n_embd;
    char lines[300];
    int32_t *ids;
    size_t n;
    double want[256];
    struct pp_error err;
    snprintf(lines, sizeof lines, "%s/decoder-lines", test_tmpdir());
    assert_ok(pp_write_file(lines, text, strlen(text), 0600, &err), err);
    assert_ok(pp_tokenize(pp_model_tokenizer(r->model), text, strlen(text) - 1, PP_TOKENIZE_BOS, &ids, &n, &err), err);
    assert_true(n > 4 && n <= MOST);
    float *hidden = pp_calloc(n * (size_t)width, sizeof *hidden);
    double *wide = pp_calloc(n * (size_t)width, sizeof *wide);
    compute(r, (const int32_t *const[]){ids}, &(int){(int)n}, 1, hidden);
    for (size_t i = 0; i < n * (size_t)width; i++)
        wide[i] = (double)hidden[i];
    for (int h = 0; h < 2; h++) {
        char *argv[] = {"pippin", "embed", "-m", path, "-f", lines, "--kv-type", "f32", "--pooling",
                        (char *)(uintptr_t)hows[h], NULL};
        struct answer a = run(h == 0 ? 8 : 10, argv); /* the last token's, unless something else is asked for */
        if (a.exit_code)
            fail_msg("embed: exit %d, %s", a.exit_code, a.err);
        cJSON *vector = parse_line(a.out, 0);
        pool(hows[h], wide, (int)n, width, want);
        expect_vector(vector, want, width);
        cJSON_Delete(vector);
        pp_free(a.out);
        pp_free(a.err);
    }
    pp_free(ids);
    pp_free(hidden);
    pp_free(wide);
}

static void decoders(void **state)
{
    static const char *const names[] = {"llama", "qwen2", "gptneox", "gpt2", "gemma"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[300], expected[400], name[100];
        struct pp_safetensors *e;
        struct pp_error err;
        snprintf(name, sizeof name, "architectures/%s", names[i]);
        snprintf(path, sizeof path, "%s", testdata(name));
        snprintf(expected, sizeof expected, "%s/expected.safetensors", path);
        assert_ok(pp_safetensors_open(expected, &e, &err), err);
        const struct pp_tensor *ids = pp_safetensors_find(e, "ids0");
        const int n = (int)ids->ne[0];
        struct rig r = open_rig(path, NULL, 2);
        const int width = (int)pp_model_info(r.model)->n_embd;
        float *hidden = pp_calloc((size_t)(n * width), sizeof *hidden);
        compute(&r, (const int32_t *const[]){ids->data}, &n, 1, hidden);
        expect_reference(path, expected, hidden, n, width);
        expect_pooled(&r, path);
        pp_free(hidden);
        close_rig(&r);
        pp_safetensors_close(e);
    }
}

TEST_GROUP(encoder)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formulas), cmocka_unit_test(all_see_all),    cmocka_unit_test(same_bits),
        cmocka_unit_test(refuses),  cmocka_unit_test(lies),           cmocka_unit_test(no_types),
        cmocka_unit_test(folders),  cmocka_unit_test(flat_folders),   cmocka_unit_test(further_layers),
        cmocka_unit_test(embed),    cmocka_unit_test(embed_wider),
        cmocka_unit_test(pooling_of_a_file),
        cmocka_unit_test(many_lines), cmocka_unit_test(other_commands), cmocka_unit_test(decoders),
    };
    return cmocka_run_group_tests_name("encoder", tests, NULL, NULL);
}
