/* test_compressed.c - DeepSeek V4: attention to a window and to compressed blocks of earlier positions, experts chosen
 * by a table of tokens, and several residual streams. Small models are compared with the formulas in double
 * precision. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/arch/arch.h"
#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/ops.h"
#include "engine/engine_int.h"
#include "engine/kv.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "tests/compressed_model.h"
#include "tests/packed_folder.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

static const char *file_of(const struct compressed_shape *s)
{
    struct compressed_model *m = compressed_model_make(s);
    const char *path = compressed_model_write(m);
    compressed_model_free(m);
    return path;
}

/* The logits of the text by the formulas; pp_free. */
static double *wanted(const struct compressed_shape *s)
{
    struct compressed_model *m = compressed_model_make(s);
    double *want = doubles(SMALL_TEXT * s->n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, s->n_vocab);
    compressed_model_compute(m, ids, SMALL_TEXT, want);
    compressed_model_free(m);
    return want;
}

/* Checks the file, the folder exported from it, and the file converted from that; returns the folder. */
static const char *check(const struct compressed_shape *s)
{
    double *want = wanted(s);
    const char *path = file_of(s);
    assert_same_bits(path, PP_KV_F32);
    const char *folder = assert_logits_everywhere(want, s->n_vocab, path);
    pp_free(want);
    return folder;
}

static void deepseek4(void **state)
{
    (void)state;
    const struct compressed_shape s = compressed_shape();
    const char *folder = check(&s);
    assert_tensor(folder, "embed.weight", 2, s.n_embd);
    assert_tensor(folder, "hc_head_fn", 2, s.n_stream * s.n_embd);
    assert_tensor(folder, "layers.1.hc_attn_scale", 1, 3);
    assert_tensor(folder, "layers.0.ffn.gate.tid2eid", 2, s.n_used);
    assert_tensor(folder, "layers.2.ffn.gate.bias", 1, s.n_expert);
    assert_tensor(folder, "layers.3.ffn.experts.7.w2.weight", 2, s.n_ff);
    assert_tensor(folder, "layers.4.attn.attn_sink", 1, s.n_head);
    assert_tensor(folder, "layers.1.attn.compressor.ape", 2, 2 * s.head_dim);
    assert_tensor(folder, "layers.2.attn.compressor.ape", 2, s.head_dim);
    assert_tensor(folder, "layers.3.attn.indexer.compressor.wgate.weight", 2, s.n_embd);
    assert_tensor(folder, "layers.3.attn.indexer.weights_proj.weight", 2, s.n_embd);
}

/* Other settings: a window longer than the text, no bounds, no tables, no YaRN, one stream, all blocks picked. */
static void variants(void **state)
{
    (void)state;
    struct compressed_shape s = compressed_shape();
    s.window = 200;
    s.bound = 0;
    s.n_table = 0;
    s.yarn_factor = 0;
    check(&s);
    s = compressed_shape();
    s.n_stream = 1;
    s.rounds = 1;
    s.top_k = 400;
    s.n_table = s.n_layer;
    s.o_groups = 4;
    s.compress[0] = 4;
    check(&s);
    s = compressed_shape();
    s.n_layer = 2;
    s.compress[1] = 0;
    check(&s);
}

/* The file counts a layer of multi-token prediction, as llama.cpp's converter does, but does not contain it. */
static void counted_layer(void **state)
{
    (void)state;
    struct compressed_shape s = compressed_shape();
    double *want = wanted(&s);
    s.says_nextn = true;
    assert_logits(want, s.n_vocab, file_of(&s));
    pp_free(want);
}

/* Logits of n positions in passes of this many rows; pp_free. */
static float *run_long(const char *path, const int32_t *ids, int n, int n_threads, int rows, int n_vocab)
{
    const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = n_threads, .kv_memory = 64u << 20,
                                          .n_ctx = n};
    float *logits = pp_calloc((size_t)(n * n_vocab), sizeof *logits);
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    assert_non_null(logits);
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    run_in_passes(e, s, ids, n, rows, logits);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
    return logits;
}

/* The KV tier in which one key stands for more positions than a page holds. */
static int wide_tier(const struct pp_engine *e)
{
    int t = 0;
    while (pp_kv_pool_layout(e->tier[t].kv)->stride <= PP_PAGE_TOKENS)
        t++;
    return t;
}

/* Blocks as long as two pages, a window as long as in published models, and more keys than a chunk holds. */
static void long_text(void **state)
{
    enum { N = 700 };
    static const int manners[][2] = {{1, 256}, {3, 1}, {2, 37}};
    (void)state;
    struct compressed_shape s = compressed_shape();
    s.n_layer = 3;
    s.compress[0] = 128;
    s.compress[2] = 64;
    s.window = 128;
    s.top_k = 150;
    s.n_ctx = 1024;
    struct compressed_model *m = compressed_model_make(&s);
    const char *path = compressed_model_write(m);
    double *want = doubles(N * s.n_vocab);
    int32_t ids[N];
    float *first = NULL;
    for (int i = 0; i < N; i++)
        ids[i] = (i * 37 + i / 7 + i / 100) % s.n_vocab;
    compressed_model_compute(m, ids, N, want);
    for (size_t k = 0; k < sizeof manners / sizeof *manners; k++) {
        float *got = run_long(path, ids, N, manners[k][0], manners[k][1], s.n_vocab);
        for (int i = 0; i < N * s.n_vocab && !first; i++)
            if (!(fabs((double)got[i] - want[i]) <= 2e-4 * fmax(1, fabs(want[i]))))
                fail_msg("token %d behind position %d: %g, not %g", i % s.n_vocab, i / s.n_vocab, (double)got[i],
                         want[i]);
        if (first)
            assert_memory_equal(got, first, (size_t)(N * s.n_vocab) * sizeof *got);
        if (first)
            pp_free(got);
        else
            first = got;
    }
    pp_free(first);
    pp_free(want);
    compressed_model_free(m);
}

/* With any KV type the bits do not depend on how the text is processed, and logits are close to those with F32. */
static void types_of_cache(void **state)
{
    static const enum pp_kv_type types[] = {PP_KV_F16, PP_KV_FP8, PP_KV_Q8, PP_KV_Q8_0, PP_KV_Q4_0};
    static const double least[] = {0.9999, 0.99, 0.999, 0.999, 0.9};
    (void)state;
    struct compressed_shape s = compressed_shape();
    s.top_k = 400; /* otherwise rounding changes the picks of some blocks */
    double *want = wanted(&s);
    const char *path = file_of(&s);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        double both = 0, ours = 0, theirs = 0;
        size_t n;
        float *got = small_logits(path, types[k], &n);
        for (size_t i = 0; i < n; i++) {
            both += (double)got[i] * want[i];
            ours += (double)got[i] * (double)got[i];
            theirs += want[i] * want[i];
        }
        if (!(both / sqrt(ours * theirs) > least[k]))
            fail_msg("%s: a cosine of %g", pp_kv_type_name(types[k]), both / sqrt(ours * theirs));
        pp_free(got);
        assert_same_bits(path, types[k]);
    }
    pp_free(want);
}

/* Quantised models, and folders that are quantised on loading. */
static void quantised(void **state)
{
    (void)state;
    struct compressed_shape s = compressed_shape();
    s.top_k = 400;
    double *want = wanted(&s);
    const char *path = file_of(&s), *small = fresh_path("q8_0.gguf"), *folder = fresh_path("folder");
    const struct pp_convert_options opt = {0};
    struct pp_error err;
    assert_ok(pp_quantize_file(path, small, "Q8_0", &opt, &err), err);
    assert_same_bits(small, PP_KV_F32);
    assert_true(small_likeness(small, NULL, want, s.n_vocab) > 0.9);
    assert_ok(pp_convert_to_folder(path, folder, &opt, &err), err);
    assert_true(small_likeness(folder, "Q8_0", want, s.n_vocab) > 0.9);
    pp_free(want);
}

/* --- as published: FP8, and experts in FP4 ------------------------------------------------------------------------ */

static const char *form_of(const struct pp_tensor *t)
{
    static const char *const eights[] = {".attn.w", ".indexer.wq_b.", ".shared_experts.", NULL};
    if (strstr(t->name, ".experts."))
        return "fp8-pairs";
    for (int i = 0; eights[i]; i++)
        if (strstr(t->name, eights[i]))
            return "fp8-scale";
    return NULL;
}

/* Writes a tensor in its packed form, and as the floats that this form stands for. */
static void pack(struct pp_safetensors *s, const struct pp_tensor *t, struct tensor_file *packed,
                 struct tensor_file *floats)
{
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2], shape[] = {t->n_dims == 2 ? t->ne[1] : t->ne[0], t->ne[0]};
    const char *dtype = pp_safetensors_dtype(s, t), *form = form_of(t);
    struct tensor_file *const files[] = {packed, floats};
    char module[100];
    float *w = pp_calloc((size_t)n, 8);
    memcpy(w, t->data, t->size); /* integers are copied */
    snprintf(module, sizeof module, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
    if (form)
        packed_matrix(packed, packed_form(form), &(struct packed_options){0}, module, 0, t->ne[1], t->ne[0], w);
    for (int i = form ? 1 : 0; i < 2; i++)
        tensor_file_add(files[i], t->name, dtype, t->n_dims, shape, w, t->size);
    pp_free(w);
}

static void write_config(const char *text, const char *more, const char *folder)
{
    struct pp_buf b = {0};
    struct pp_error err;
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", folder);
    pp_buf_fmt(&b, "{%s%s", more, strchr(text, '{') + 1);
    assert_ok(pp_write_file(path, b.data, b.len, 0600, &err), err);
    pp_buf_free(&b);
}

static void assert_type(const char *file, const char *name, enum pp_type type)
{
    struct pp_source *s;
    struct pp_error err;
    assert_ok(pp_source_open(file, &s, &err), err);
    const struct pp_tensor *t = pp_source_tensor(s, name);
    assert_non_null(t);
    assert_int_equal(t->type, type);
    pp_source_close(s);
}

/* Experts keep their type, the rest becomes Q8_0, and tables, norms and compressors are unchanged. */
static void published_form(void **state)
{
    (void)state;
    struct compressed_shape s = compressed_shape();
    s.top_k = 400; /* otherwise rounding changes the picks of some blocks */
    const char *folder = fresh_path("folder"), *packed = fresh_path("packed"), *floats = fresh_path("floats");
    const char *file = fresh_path("packed.gguf");
    const struct pp_convert_options opt = {0};
    struct tensor_file packed_file = {0}, floats_file = {0};
    struct pp_safetensors *st;
    struct pp_error err;
    char path[600], *config;
    size_t n;
    assert_ok(pp_convert_to_folder(file_of(&s), folder, &opt, &err), err);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(pp_safetensors_open(path, &st, &err), err);
    for (size_t i = 0; i < pp_safetensors_n(st); i++)
        pack(st, pp_safetensors_at(st, i), &packed_file, &floats_file);
    pp_safetensors_close(st);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(pp_read_file(path, 1 << 20, &config, &n, &err), err);
    assert_int_equal(mkdir(packed, 0700) | mkdir(floats, 0700), 0);
    write_config(config, "\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"scale_fmt\":\"ue8m0\","
                         "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]},", packed);
    write_config(config, "", floats);
    pp_free(config);
    tensor_file_write(&packed_file, packed, "model.safetensors");
    tensor_file_write(&floats_file, floats, "model.safetensors");
    float *of_floats = small_logits(floats, PP_KV_F32, &n);
    double *want = doubles((int)n);
    for (size_t i = 0; i < n; i++)
        want[i] = (double)of_floats[i];
    assert_true(small_likeness(packed, NULL, want, s.n_vocab) > 0.99);
    assert_ok(pp_convert_to_gguf(packed, file, &opt, &err), err);
    assert_true(small_likeness(file, NULL, want, s.n_vocab) > 0.99);
    assert_type(file, "blk.3.ffn_up_exps.weight", PP_TYPE_MXFP4);
    assert_type(file, "blk.3.ffn_up_shexp.weight", PP_TYPE_Q8_0);
    assert_type(file, "blk.3.attn_compressor_kv.weight", PP_TYPE_F32);
    assert_type(file, "blk.0.ffn_gate_tid2eid.weight", PP_TYPE_I32);
    pp_free(of_floats);
    pp_free(want);
}

/* Conversations that go back, fork, and come from snapshots. */
static void goes_on(void **state)
{
    (void)state;
    struct compressed_shape s = compressed_shape();
    assert_resumes(file_of(&s), s.n_vocab);
    assert_goes_back(file_of(&s), s.n_vocab);
    s.compress[0] = s.compress[2] = 64; /* one page, and more than one */
    s.compress[4] = 128;
    assert_resumes(file_of(&s), s.n_vocab);
    assert_goes_back(file_of(&s), s.n_vocab);
}

/* Going back by more than the window recomputes only what follows the last page that is held or known, and gives the
 * same bits. */
static void goes_far_back(void **state)
{
    enum { N = 640 };
    static const int to[] = {600, 512, 300, 131, 128};
    (void)state;
    struct compressed_shape s = compressed_shape();
    s.n_layer = 3;
    s.compress[0] = 128;
    s.n_ctx = 1024;
    const char *path = file_of(&s);
    int32_t ids[N];
    for (int i = 0; i < N; i++)
        ids[i] = (i * 41 + i / 9) % s.n_vocab;
    float *want = run_long(path, ids, N, 1, 64, s.n_vocab), *got = pp_calloc((size_t)(N * s.n_vocab), sizeof *got);
    const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 1, .kv_memory = 64u << 20, .n_ctx = N};
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *q;
    struct pp_error err;
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &q, &err), err);
    const int wide = wide_tier(e);
    struct pp_kv_pool *kv = e->tier[wide].kv;
    memset(pp_page_data(kv, 0), 0x3F, 4 * pp_kv_pool_layout(kv)->page_bytes); /* leftovers of earlier users */
    run_in_passes(e, q, ids, N, 64, got);
    for (int page = 0; page < 4; page++) { /* every second page contains a key; the others contain none of the
                                              leftovers */
        float key[PP_MAX_HEAD_DIM], sum = 0;
        pp_kv_load_head_position(pp_kv_pool_layout(kv), q->tier[wide].page_data[page], 0, key, NULL);
        for (int i = 0; i < s.head_dim; i++)
            sum += fabsf(key[i]);
        assert_int_equal(sum > 0, page % 2);
    }
    for (size_t k = 0; k < sizeof to / sizeof *to; k++) {
        pp_seq_truncate(q, to[k]);
        const int64_t from = pp_seq_len(q);
        assert_true(from <= to[k]);
        run_in_passes(e, q, ids + from, N - (int)from, 50, got);
        assert_memory_equal(got, want + from * s.n_vocab, (size_t)((N - from) * s.n_vocab) * sizeof *got);
    }
    assert_int_not_equal(pp_seq_cut(q, 10, 20, &err), PP_OK); /* keys that stand for several positions cannot be
                                                                 moved */
    assert_non_null(strstr(err.text, "cannot be removed"));
    pp_free(want);
    pp_free(got);
    pp_seq_free(q);
    pp_engine_free(e);
    pp_model_close(m);
}

/* Impossible numbers in the metadata are refused. */
static void bad_numbers(void **state)
{
    struct compressed_shape shapes[8];
    static const char *const words[] = {"makes one of 3 positions", "makes one of 2 positions", "number of groups",
                                        "names expert 8", "blocks that an index picks", "attention window",
                                        "cannot be divided into 3 groups", "twice for token 1"};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        shapes[i] = compressed_shape();
    shapes[0].compress[2] = 3;
    shapes[1].compress[2] = 2;
    shapes[2].o_groups = 0;
    shapes[3].bad_table = true;
    shapes[4].top_k = 0;
    shapes[5].window = 0;
    shapes[6].o_groups = 3;
    shapes[7].double_table = true;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct pp_model *m = NULL;
        struct pp_engine *e = NULL;
        struct pp_error err = {0};
        struct compressed_shape made = shapes[i];
        made.o_groups = made.o_groups == 0 || made.o_groups == 3 ? 1 : made.o_groups;
        struct compressed_model *model = compressed_model_make(&made);
        model->s = shapes[i];
        enum pp_code code = pp_model_open(compressed_model_write(model), &m, &err);
        if (!code)
            code = pp_engine_new(m, &(struct pp_engine_options){.n_threads = 1, .n_ctx = 64}, NULL, NULL, &e, &err);
        if (!code || !strstr(err.text, words[i]))
            fail_msg("%s: %s", words[i], err.text);
        pp_model_close(m);
        compressed_model_free(model);
    }
}

/* Another program writes to the file's table of experts: rows use the experts that were checked, never ones that do not
 * exist. */
static void table_written_to(void **state)
{
    enum { N = 24 };
    (void)state;
    const struct compressed_shape s = compressed_shape();
    const size_t values = (size_t)(N * s.n_vocab), bytes = (size_t)(s.n_vocab * s.n_used) * sizeof(int32_t);
    struct compressed_model *made = compressed_model_make(&s);
    const char *path = compressed_model_write(made);
    const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 1, .kv_memory = 64u << 20, .n_ctx = N};
    float *want = pp_calloc(values, sizeof *want), *got = pp_calloc(values, sizeof *got);
    int32_t ids[N], *other = pp_malloc(bytes);
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *q;
    struct pp_error err;
    char *file;
    size_t size;
    for (int i = 0; i < N; i++)
        ids[i] = i * 5 % s.n_vocab;
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &q, &err), err);
    run_in_passes(e, q, ids, N, N, want);
    assert_ok(pp_read_file(path, 1 << 26, &file, &size, &err), err);
    const char *table = memmem(file, size, made->tables[0], bytes);
    assert_non_null(table);
    memset(other, 0x3F, bytes);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, other, bytes, table - file), bytes);
    close(fd);
    pp_seq_free(q);
    assert_ok(pp_seq_new(e, &q, &err), err);
    run_in_passes(e, q, ids, N, N, got);
    assert_memory_equal(got, want, values * sizeof *got);
    pp_free(file);
    pp_free(other);
    pp_free(want);
    pp_free(got);
    pp_seq_free(q);
    pp_engine_free(e);
    pp_model_close(m);
    compressed_model_free(made);
}

static struct pp_sha256 identity(const struct compressed_shape *s)
{
    struct pp_model *m;
    struct pp_sha256 id;
    struct pp_error err;
    assert_ok(pp_model_open(file_of(s), &m, &err), err);
    assert_ok(pp_model_identity(m, NULL, &id, &err), err);
    pp_model_close(m);
    return id;
}

/* Metadata that change the results without any tensor differing change the model's identity. */
static void not_the_same_model(void **state)
{
    (void)state;
    struct compressed_shape s = compressed_shape();
    const struct pp_sha256 one = identity(&s);
    s.bound = 2;
    const struct pp_sha256 bounded = identity(&s);
    s.top_k = 6;
    const struct pp_sha256 more = identity(&s);
    s.rounds = 7;
    const struct pp_sha256 rounds = identity(&s);
    assert_memory_not_equal(&one, &bounded, sizeof one);
    assert_memory_not_equal(&bounded, &more, sizeof one);
    assert_memory_not_equal(&more, &rounds, sizeof one);
}

/* transformers' names, which folders may also have, and the tensors that are left out. */
static void other_names(void **state)
{
    static const char *const pairs[][2] = {
        {"model.embed_tokens.weight", "token_embd.weight"}, {"lm_head.weight", "output.weight"},
        {"model.norm.weight", "output_norm.weight"}, {"model.hc_head.hc_scale", "output_hc_scale.weight"},
        {"model.layers.3.attn_hc.fn", "blk.3.hc_attn_fn.weight"},
        {"model.layers.3.self_attn.sinks", "blk.3.attn_sinks.weight"},
        {"model.layers.3.self_attn.compressor.position_bias", "blk.3.attn_compressor_ape.weight"},
        {"model.layers.3.self_attn.compressor.indexer.scorer.weights_proj.weight", "blk.3.indexer.proj.weight"},
        {"model.layers.3.mlp.gate.tid2eid", "blk.3.ffn_gate_tid2eid.weight"},
        {"model.layers.3.mlp.experts.gate_up_proj", "blk.3.ffn_gate_exps.weight"},
        {"model.layers.3.mlp.shared_experts.down_proj.weight", "blk.3.ffn_down_shexp.weight"},
        {"model.layers.3.attn.wo_a.weight", "blk.3.attn_output_a.weight"},
        {"model.layers.3.attn.norm.weight", "blk.3.attn_kv_a_norm.weight"},
        {"layers.3.ffn.experts.11.w3.weight", "blk.3.ffn_up.11.weight"}};
    const struct pp_arch *arch = pp_arch_by_name("deepseek4");
    struct pp_buf name = {0};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        assert_int_equal(pp_arch_gguf_name(arch, pairs[i][0], &name, NULL), PP_NAME_FOUND);
        assert_string_equal(pp_buf_cstr(&name), pairs[i][1]);
    }
    assert_int_equal(pp_arch_gguf_name(arch, "mtp.0.attn.wq_a.weight", &name, NULL), PP_NAME_IGNORED);
    pp_buf_free(&name);
}

/* Slots that stand for several positions: copies of them are the same as what was stored, whether they are copied one
 * by one or in groups. */
static void shared_places(void **state)
{
    enum { DIM = 48 };
    (void)state;
    for (int type = 0; type < 6; type++)
        for (int64_t stride = 4; stride <= 128; stride *= 2) {
            struct pp_kv_layout shared, whole;
            float k[16][DIM], first[DIM], second[DIM], none[DIM];
            pp_kv_layout_init_compressed(&shared, (enum pp_kv_type)type, 1, DIM);
            pp_kv_layout_init_latent(&whole, (enum pp_kv_type)type, 1, 1, DIM, DIM);
            pp_kv_layout_set_stride(&shared, stride);
            assert_int_equal(shared.slots, 16);
            assert_true(shared.page_bytes * 4 == whole.page_bytes);
            uint8_t *page = pp_aligned(64, shared.page_bytes + PP_KV_PADDING);
            uint8_t *to = pp_aligned(64, whole.page_bytes + PP_KV_PADDING), *part = pp_aligned(64, shared.page_bytes);
            memset(page, 0, shared.page_bytes);
            memset(to, 0, whole.page_bytes);
            memset(part, 0, shared.page_bytes);
            const int n = stride < 64 ? (int)(64 / stride) : 1;
            for (int i = 0; i < n; i++) {
                for (int d = 0; d < DIM; d++)
                    k[i][d] = sinf((float)(i * DIM + d));
                const int64_t last = (i + 1) * stride - 1;
                assert_true(pp_kv_is_last(&shared, last));
                assert_int_equal(pp_kv_slot(&shared, last), i);
                pp_cpu_ops(PP_ISA_SCALAR)->kv_store(&shared, page, 0, i, k[i], NULL);
            }
            for (int i = 0; i < n; i++)
                pp_kv_copy_slots(&shared, page, i, &whole, to, 35 + i, 1);
            if (n == 16)
                pp_kv_copy_slots(&shared, page, 0, &whole, to, 16, 16);
            for (int i = 0; i < n; i++) {
                pp_kv_load_head_position(&shared, page, i, first, none);
                pp_kv_load_head_position(&whole, to, 35 + i, second, none);
                assert_memory_equal(first, second, sizeof first);
                for (int d = 0; d < DIM; d++)
                    assert_true(fabsf(first[d] - k[i][d]) < 0.2f);
                pp_kv_load_head_position(&whole, to, 16 + i, second, none);
                if (n == 16)
                    assert_memory_equal(first, second, sizeof first);
            }
            for (int p = 0; p < 32; p++) /* the first half of a page's positions, with the keys of the blocks that end
                                            there */
                pp_kv_copy_position(&shared, page, p, part, p);
            for (int i = 0; i < n && stride <= 32; i++) {
                pp_kv_load_head_position(&shared, page, i, first, none);
                pp_kv_load_head_position(&shared, part, i, second, none);
                assert_int_equal(memcmp(first, second, sizeof first) == 0, (i + 1) * stride <= 32);
            }
            pp_free(page);
            pp_free(to);
            pp_free(part);
        }
}

TEST_GROUP(compressed)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseek4),     cmocka_unit_test(variants),       cmocka_unit_test(counted_layer),
        cmocka_unit_test(long_text),     cmocka_unit_test(types_of_cache), cmocka_unit_test(quantised),
        cmocka_unit_test(goes_on),       cmocka_unit_test(goes_far_back),  cmocka_unit_test(bad_numbers),
        cmocka_unit_test(published_form), cmocka_unit_test(table_written_to),
        cmocka_unit_test(other_names),   cmocka_unit_test(shared_places),  cmocka_unit_test(not_the_same_model),
    };
    return cmocka_run_group_tests_name("compressed", tests, NULL, NULL);
}
