/* test_latent.c - latent attention in a whole engine, also with an indexer that picks positions, or blocks of positions
 * for ordinary attention. With any KV type the bits are the same however rows are computed: over several chunks, on
 * branches of a tree, after a fork, after going back, and from a snapshot. Pages are as small as they should be, and
 * matrices of heads can be split and joined. That the logits are right is tested in test_experts.c. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/bench.h"
#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/quant.h"
#include "engine/tensor_forms.h"
#include "engine/types.h"
#include "tests/expert_model.h"
#include "tests/gguf_file.h"
#include "tests/passes.h"
#include "tests/support.h"

enum { LENGTH = 560, LONG = 1100, N_VOCAB = 80, N_LAYER = 2, RANK = 64, ROPE = 8 };

static const enum pp_kv_type types[] = {PP_KV_F32, PP_KV_F16, PP_KV_FP8, PP_KV_Q8, PP_KV_Q8_0, PP_KV_Q4_0};
enum { N_TYPES = sizeof types / sizeof *types };

/* Variants: without an indexer; with one that picks fewer positions than a chunk has; one that picks more and is shared
 * by three layers; with several residual streams. Then ones that pick blocks: smaller than a page, of two pages, larger
 * than a chunk; and blocks that have a single key in the indexer. */
static const struct variant {
    const char *arch;
    int top_k, n_layer, step, block, local, pool;
} variants[] = {{"deepseek2", 0, N_LAYER, 0, 0, 0, 0}, {"deepseek32", 40, N_LAYER, 0, 0, 0, 0},
                {"glm-dsa", 258, 3, 3, 0, 0, 0},       {"hy_v4", 40, 3, 2, 0, 0, 0},
                {"minimax-m3", 5, 3, 0, 16, 2, 0},     {"minimax-m3", 2, 3, 0, 128, 1, 0},
                {"minimax-m3", 1, 3, 0, 512, 1, 0},    {"glm5next", 40, 4, 0, 0, 0, 4},
                {"glm5next", 256, 2, 0, 0, 0, 16}};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

/* A file with ordinary attention, whose first layer has no indexer. */
static const char *blocks_file(const struct variant *v)
{
    struct expert_shape s = expert_shape(v->arch);
    s.sigmoids = s.choice_bias = s.clamped = true;
    s.qk_norm = QK_HEADS;
    s.rope_dim = ROPE;
    s.n_dense = 1;
    s.index_top_k = v->top_k;
    s.index_block = v->block;
    s.index_n_local = v->local;
    s.n_vocab = N_VOCAB;
    s.n_layer = v->n_layer;
    s.n_head = 6;
    s.n_ctx = LONG;
    struct expert_model *m = expert_model_make(&s);
    const char *path = expert_model_write(m);
    expert_model_free(m);
    return path;
}

static const char *file_of(const struct variant *v)
{
    if (v->block)
        return blocks_file(v);
    struct expert_shape s = expert_shape(v->arch);
    s.neighbours = s.heads_apart = s.shares = true;
    s.index_top_k = v->top_k;
    s.index_step = v->step;
    s.q_rank = v->top_k ? 32 : 0;
    s.n_vocab = N_VOCAB;
    s.n_layer = v->n_layer;
    s.n_head = 6;
    s.n_ctx = 1024;
    s.kv_rank = RANK;
    s.rope_dim = ROPE;
    s.nope = s.v_dim = 16;
    if (strcmp(v->arch, "hy_v4") == 0) {
        s.gated = s.sinks = true;
        s.n_stream = 4;
        s.stream_least = 1e-6f;
        s.stream_most = 2;
    }
    if (v->pool) {
        s.pool = v->pool;
        s.clamp_before_silu = s.bounded_all = s.kda = true;
        s.rope_dim = 0;
        s.full = 2;
        s.n_state = s.n_state_key = s.n_head;
        s.key_dim = s.value_dim = 16;
        s.state_taps = 4;
        s.decay_bound = -5;
        s.n_stream = 2;
        s.stream_rounds = 3;
        s.stream_least = 1e-6f;
    }
    struct expert_model *m = expert_model_make(&s);
    const char *path = expert_model_write(m);
    expert_model_free(m);
    return path;
}

static const char *model_file(void)
{
    return file_of(&variants[0]);
}

struct rig {
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_seq *s;
};

static struct rig rig_of(const char *path, enum pp_kv_type kv, int n_threads, int64_t n_ctx)
{
    const struct pp_engine_options opt = {
        .kv_type = kv, .n_threads = n_threads, .kv_memory = 64u << 20, .n_ctx = n_ctx};
    struct rig r;
    struct pp_error err;
    assert_ok(pp_model_open(path, &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    assert_ok(pp_seq_new(r.engine, &r.s, &err), err);
    return r;
}

static struct rig rig(const char *path, enum pp_kv_type kv, int n_threads)
{
    return rig_of(path, kv, n_threads, 640);
}

static void unrig(struct rig *r)
{
    pp_seq_free(r->s);
    pp_engine_free(r->engine);
    pp_model_close(r->model);
}

static void write_text(int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        ids[i] = (i * 37 + i / 7 + i / 90) % N_VOCAB;
}

/* Logits of all positions of the text, on one thread, many rows at a time: [LENGTH, N_VOCAB]; pp_free. That the scalar
 * kernels give the same is tested in test_ops.c and test_experts.c; here they would take too long. */
static float *whole_logits(const char *path, enum pp_kv_type kv, const int32_t *ids)
{
    float *logits = pp_calloc(LENGTH * N_VOCAB, sizeof *logits);
    struct rig r = rig(path, kv, 1);
    assert_non_null(logits);
    run_in_passes(r.engine, r.s, ids, LENGTH, 64, logits);
    unrig(&r);
    return logits;
}

static void assert_from(const float *want, const float *got, int from, int n, const char *what)
{
    if (memcmp(want + from * N_VOCAB, got, (size_t)(n * N_VOCAB) * sizeof *got) != 0)
        fail_msg("%s: other logits from position %d on", what, from);
}

/* With more threads than tiles, the chunks of a row are shared. */
static void same_bits_of(const char *path)
{
    enum { MANY = 94, ALONE = 24, FEW = 7 };
    static float got[LENGTH * N_VOCAB];
    int32_t ids[LENGTH];
    write_text(ids, LENGTH);
    for (int t = 0; t < N_TYPES; t++) {
        float *want = whole_logits(path, types[t], ids);
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            struct rig r = rig(path, types[t], n_threads);
            run_in_passes(r.engine, r.s, ids, LENGTH - MANY, n_threads == 1 ? FEW : 100, got);
            run_in_passes(r.engine, r.s, ids + LENGTH - MANY, MANY - ALONE, FEW, got + (LENGTH - MANY) * N_VOCAB);
            run_in_passes(r.engine, r.s, ids + LENGTH - ALONE, ALONE, 1, got + (LENGTH - ALONE) * N_VOCAB);
            assert_from(want, got, 0, LENGTH, pp_kv_type_name(types[t]));
            unrig(&r);
        }
        pp_free(want);
    }
}

static void same_bits(void **state)
{
    (void)state;
    for (int v = 0; v < N_VARIANTS; v++)
        same_bits_of(file_of(&variants[v]));
}

/* Blocks larger than a chunk; a row attends to its own block and to one of two others. Work items that share a row's
 * positions must not split a block, or an item would score it by a part of its positions only. */
static void large_blocks(void **state)
{
    enum { BEHIND = 1024 };
    static const struct variant two = {"minimax-m3", 2, 3, 0, 512, 1, 0};
    static float want[LONG * N_VOCAB], got[LONG * N_VOCAB];
    const char *path = blocks_file(&two);
    int32_t ids[LONG];
    (void)state;
    write_text(ids, LONG);
    for (int t = 0; t < N_TYPES; t += 3) {
        struct rig r = rig_of(path, types[t], 1, LONG);
        run_in_passes(r.engine, r.s, ids, LONG, 64, want);
        unrig(&r);
        r = rig_of(path, types[t], 3, LONG);
        run_in_passes(r.engine, r.s, ids, BEHIND, 64, got);
        run_in_passes(r.engine, r.s, ids + BEHIND, LONG - BEHIND, 1, got + BEHIND * N_VOCAB);
        assert_from(want, got + BEHIND * N_VOCAB, BEHIND, LONG - BEHIND, pp_kv_type_name(types[t]));
        unrig(&r);
    }
}

/* base: where the tree begins */
static void trees_and_forks_of(const char *path, int base)
{
    enum { FORK = 100, MORE = 30 };
    int32_t ids[LENGTH];
    static float got[LENGTH * N_VOCAB];
    struct pp_error err;
    write_text(ids, LENGTH);
    for (int t = 0; t < N_TYPES; t++) {
        float *want = whole_logits(path, types[t], ids);
        struct rig r = rig(path, types[t], 2);
        struct pp_seq *fork;
        run_in_passes(r.engine, r.s, ids, base, 64, got);
        struct pp_row tree[] = {
            {.seq = r.s, .token = 7, .parent = PP_PARENT_COMMITTED},
            {.seq = r.s, .token = ids[base], .parent = PP_PARENT_COMMITTED, .out = PP_OUT_LOGITS},
            {.seq = r.s, .token = 8, .parent = 0},
            {.seq = r.s, .token = ids[base + 1], .parent = 1, .out = PP_OUT_LOGITS},
        };
        assert_ok(pp_step(r.engine, tree, 4, NULL, &err), err);
        assert_from(want, pp_step_output(r.engine, 1), base, 1, "a tree");
        assert_from(want, pp_step_output(r.engine, 3), base + 1, 1, "a tree");
        assert_ok(pp_seq_keep(r.s, base, (const int32_t[]){base + 1, base + 3}, 2, &err), err);
        run_in_passes(r.engine, r.s, ids + base + 2, 5, 1, got);
        assert_from(want, got, base + 2, 5, "behind a kept branch");
        assert_ok(pp_seq_fork(r.s, FORK, &fork, &err), err);
        run_in_passes(r.engine, fork, ids + FORK, MORE, MORE, got);
        assert_from(want, got, FORK, MORE, "behind a fork");
        const struct pp_row both[] = {
            {.seq = fork, .token = ids[FORK + MORE], .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS},
            {.seq = r.s, .token = ids[base + 7], .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS},
        };
        assert_ok(pp_step(r.engine, both, 2, NULL, &err), err);
        assert_from(want, pp_step_output(r.engine, 0), FORK + MORE, 1, "beside another sequence");
        assert_from(want, pp_step_output(r.engine, 1), base + 7, 1, "beside another sequence");
        pp_seq_free(fork);
        pp_seq_truncate(r.s, base - 60);
        const int left = (int)pp_seq_len(r.s);
        run_in_passes(r.engine, r.s, ids + left, LENGTH - left, 50, got);
        assert_from(want, got, left, LENGTH - left, "having gone back");
        unrig(&r);
        pp_free(want);
    }
}

static void save(struct pp_seq *s, const struct pp_sha256 *identity, const char *base)
{
    struct pp_save *job;
    struct pp_error err;
    uint64_t bytes;
    assert_ok(pp_save_new(s, identity, base, "owner", &job, &err), err);
    assert_ok(pp_save_plan(job, UINT64_MAX, &bytes, &err), err);
    for (bool done = false; !done;)
        assert_ok(pp_save_write(job, 1, NULL, &done, &err), err);
    pp_save_free(job);
}

static void trees_and_forks(void **state)
{
    (void)state;
    for (int v = 0; v < N_VARIANTS && !variants[v].pool; v++) /* the last variants have states, which cannot branch */
        for (int base = 254; base < LENGTH - 7; base += 254)
            trees_and_forks_of(file_of(&variants[v]), base);
}

/* A saved sequence is continued by another engine with the same bits. */
static void snapshots_of(const char *path, int v)
{
    enum { SAVED = 350, MORE = 20 };
    const struct pp_sha256 identity = {{4, 2}};
    int32_t ids[LENGTH];
    static float got[LENGTH * N_VOCAB];
    write_text(ids, LENGTH);
    for (int t = 0; t < N_TYPES; t++) {
        char base[300];
        struct pp_error err;
        float *want = whole_logits(path, types[t], ids);
        snprintf(base, sizeof base, "%s/latent-%d-%d", test_tmpdir(), v, t);
        struct rig r = rig(path, types[t], 2);
        run_in_passes(r.engine, r.s, ids, SAVED, 64, got);
        save(r.s, &identity, base);
        unrig(&r);
        r = rig(path, types[t], 2);
        assert_ok(pp_snapshot_restore(r.s, &identity, base, "owner", ids, SAVED + MORE, NULL, &err), err);
        assert_int_equal(pp_seq_len(r.s), SAVED);
        run_in_passes(r.engine, r.s, ids + SAVED, MORE, 1, got);
        assert_from(want, got, SAVED, MORE, "out of a snapshot");
        unrig(&r);
        pp_free(want);
    }
}

static void snapshots(void **state)
{
    (void)state;
    for (int v = 0; v < N_VARIANTS; v++)
        snapshots_of(file_of(&variants[v]), v);
}

/* A position takes kv_lora_rank + rope_dim values in each layer, and with indexers one key for each. */
static void small_pages(void **state)
{
    const uint64_t padded = (RANK + ROPE + PP_KV_GROUP - 1) / PP_KV_GROUP * PP_KV_GROUP, index = 32; /* 20, padded */
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    assert_ok(pp_model_open(file_of(&variants[2]), &m, &err), err);
    assert_int_equal(pp_model_kv_bytes(m, PP_KV_F16, PP_PAGE_TOKENS), 2 * (3 * padded + index) * PP_PAGE_TOKENS);
    assert_int_equal(pp_model_kv_bytes(m, PP_KV_F32, PP_PAGE_TOKENS), 4 * (3 * padded + index) * PP_PAGE_TOKENS);
    assert_int_equal(pp_model_info(m)->n_ctx_train, 1024);
    pp_model_close(m);
    assert_ok(pp_model_open(model_file(), &m, &err), err);
    assert_int_equal(pp_model_kv_bytes(m, PP_KV_F16, PP_PAGE_TOKENS), 2 * padded * PP_PAGE_TOKENS * N_LAYER);
    assert_int_equal(pp_model_info(m)->n_head_kv, 1);
    assert_int_equal(pp_model_info(m)->head_dim, RANK + ROPE);
    pp_model_close(m);
}

/* With an indexer a row reads only the picked positions' K and V, but all of the indexer's keys. */
static void reads_little(void **state)
{
    struct rig r = rig(file_of(&variants[1]), PP_KV_F16, 1);
    const double k = 2.0 * N_LAYER * 80, index = 2.0 * N_LAYER * 32; /* padded */
    (void)state;
    assert_near(pp_engine_kv_read_bytes(r.engine, 10), 10 * k, 1e-9);
    assert_near(pp_engine_kv_read_bytes(r.engine, 40), 40 * k, 1e-9);
    assert_near(pp_engine_kv_read_bytes(r.engine, 500), 40 * k + 500 * index, 1e-9);
    unrig(&r);
}

/* Writes an adapter of rank 1 for one matrix. */
static const char *adapter_file(const char *matrix, int64_t n_in, int64_t n_out)
{
    static char path[300];
    float values[256];
    char name[2][80];
    snprintf(path, sizeof path, "%s/latent-adapter.gguf", test_tmpdir());
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.type", "adapter");
    pp_gguf_add_text(w, "general.architecture", strstr(matrix, "indexer") ? "deepseek32" : "deepseek2");
    pp_gguf_add_text(w, "adapter.type", "lora");
    pp_gguf_add_f32(w, "adapter.lora.alpha", 1);
    snprintf(name[0], sizeof name[0], "%s.weight.lora_a", matrix);
    snprintf(name[1], sizeof name[1], "%s.weight.lora_b", matrix);
    for (int i = 0; i < 256; i++)
        values[i] = (float)(i % 7 - 3) / 4;
    const struct pp_tensor halves[] = {float_tensor(name[0], values, n_in, 1, 0),
                                       float_tensor(name[1], values, 1, n_out, 0)};
    gguf_file_end(w, halves, 2);
    return path;
}

/* Adapters may change the matrices that make queries and the cached vectors, and kv_b_proj as a whole (tested in
 * test_adapter_latent.c). An adapter of the heads' keys alone is refused with a message. */
static void adapters(void **state)
{
    const char *path = model_file();
    static float plain[8 * N_VOCAB], adapted[8 * N_VOCAB];
    struct pp_adapter *a;
    struct pp_error err;
    int32_t ids[LENGTH];
    (void)state;
    write_text(ids, LENGTH);
    struct rig r = rig(path, PP_KV_Q8, 2);
    run_in_passes(r.engine, r.s, ids, 8, 8, plain);
    assert_ok(pp_adapter_load(r.model, adapter_file("blk.1.attn_kv_a_mqa", 64, RANK + ROPE), &a, &err), err);
    assert_ok(pp_seq_set_adapters(r.s, &(struct pp_adapter_use){a, 1}, 1, &err), err);
    run_in_passes(r.engine, r.s, ids, 8, 3, adapted);
    assert_true(memcmp(plain, adapted, sizeof plain) != 0);
    assert_ok(pp_seq_set_adapters(r.s, NULL, 0, &err), err);
    run_in_passes(r.engine, r.s, ids, 8, 8, adapted);
    assert_memory_equal(plain, adapted, sizeof plain);
    pp_adapter_free(a);
    assert_int_equal(pp_adapter_load(r.model, adapter_file("blk.1.attn_k_b", 16, 6 * 32), &a, &err),
                     PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "latent attention"));
    unrig(&r);
}

/* An adapter of an indexer's matrices: another choice of positions changes the results as soon as there is a choice. */
static void adapted_index(void **state)
{
    enum { TOP_K = 40, N = 60 };
    static float plain[N * N_VOCAB], adapted[N * N_VOCAB];
    struct pp_adapter *a;
    struct pp_error err;
    int32_t ids[LENGTH];
    (void)state;
    write_text(ids, LENGTH);
    struct rig r = rig(file_of(&variants[1]), PP_KV_F32, 2);
    run_in_passes(r.engine, r.s, ids, N, 16, plain);
    assert_ok(pp_adapter_load(r.model, adapter_file("blk.1.indexer.attn_k", 64, 20), &a, &err), err);
    assert_ok(pp_seq_set_adapters(r.s, &(struct pp_adapter_use){a, 1}, 1, &err), err);
    run_in_passes(r.engine, r.s, ids, N, 16, adapted);
    assert_memory_equal(plain, adapted, TOP_K * N_VOCAB * sizeof *plain);
    assert_true(memcmp(plain, adapted, sizeof plain) != 0);
    assert_ok(pp_seq_set_adapters(r.s, NULL, 0, &err), err);
    pp_adapter_free(a);
    unrig(&r);
}

/* Opens a file of metadata only, which are valid but for one key. list: which layers have an indexer, or NULL. */
static enum pp_code open_metadata(const char *arch, const char *odd, uint64_t v, const bool *list, size_t n,
                                  struct pp_error *err)
{
    static const struct {
        const char *key;
        uint64_t v;
    } usual[] = {{"block_count", 1}, {"context_length", 64}, {"embedding_length", 64}, {"feed_forward_length", 64},
                 {"attention.head_count", 4}, {"attention.kv_lora_rank", 32}, {"attention.key_length_mla", 24},
                 {"attention.value_length_mla", 16}, {"rope.dimension_count", 8}, {"vocab_size", 80},
                 {"attention.q_lora_rank", 32}, {"attention.indexer.top_k", 40}, {"attention.indexer.head_count", 3},
                 {"attention.indexer.key_length", 20}};
    char path[300], key[80];
    struct pp_source *s;
    snprintf(path, sizeof path, "%s/bad-sizes.gguf", test_tmpdir());
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", arch);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, usual[i].key);
        pp_gguf_add_u64(w, key, strcmp(usual[i].key, odd) == 0 ? v : usual[i].v);
    }
    snprintf(key, sizeof key, "%s.attention.indexer.types", arch);
    if (list)
        pp_gguf_add_bool_array(w, key, list, n);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    pp_gguf_add_f32(w, key, 1e-5f);
    gguf_file_end(w, NULL, 0);
    const enum pp_code code = pp_source_open(path, &s, err);
    assert_int_not_equal(code, PP_OK);
    return code;
}

/* Lists of layers with an indexer that are impossible or unsupported. */
static void bad_lists(void **state)
{
    static const struct {
        const char *arch, *word;
        uint64_t n_layer;
        bool list[2];
        enum pp_code code;
    } cases[] = {{"glm-dsa", "first layer", 2, {false, true}, PP_ERR_FORMAT},
                 {"glm-dsa", "2 values for 3 layers", 3, {true, true}, PP_ERR_FORMAT},
                 {"deepseek32", "only GLM 5's", 2, {true, false}, PP_ERR_UNSUPPORTED}};
    struct pp_error err;
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        assert_int_equal(open_metadata(cases[c].arch, "block_count", cases[c].n_layer, cases[c].list, 2, &err),
                         cases[c].code);
        if (!strstr(err.text, cases[c].word))
            fail_msg("%s: %s", cases[c].word, err.text);
    }
    assert_int_equal(open_metadata("glm-dsa", "context_length", 1 << 20, NULL, 0, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "GLM 5.2"));
}

/* Impossible sizes are refused with a message. */
static void bad_sizes(void **state)
{
    static const struct {
        const char *arch, *key;
        uint64_t v;
        const char *word;
    } cases[] = {
        {"deepseek2", "attention.kv_lora_rank", 0, "kv_lora_rank"},
        {"deepseek2", "attention.kv_lora_rank", UINT64_MAX / 2, "rank of keys"},
        {"deepseek2", "attention.kv_lora_rank", 100000, "rank of keys"},
        {"deepseek2", "attention.key_length_mla", 8, "rotated"},
        {"deepseek2", "attention.key_length_mla", UINT64_MAX / 2, "head size"},
        {"deepseek2", "attention.value_length_mla", 0, "values"},
        {"deepseek2", "attention.q_lora_rank", UINT64_MAX / 2, "rank of queries"},
        {"deepseek2", "rope.dimension_count", UINT64_MAX / 2, "rotated"},
        {"minicpm3", "attention.head_count", 0, "heads"},
        {"deepseek32", "attention.indexer.top_k", 0, "picks 0 positions"},
        {"deepseek32", "attention.indexer.top_k", (uint64_t)-1, "indexer.top_k"},
        {"glm-dsa", "attention.indexer.top_k", UINT64_MAX / 2, "an index picks"},
        {"glm-dsa", "attention.indexer.head_count", 0, "heads of an index"},
        {"glm-dsa", "attention.indexer.head_count", 1000, "heads of an index"},
        {"deepseek32", "attention.indexer.key_length", 6, "index's heads"},
        {"deepseek32", "attention.indexer.key_length", 21, "must be even"},
        {"deepseek32", "attention.indexer.key_length", 100000, "index's heads"},
        {"deepseek32", "attention.q_lora_rank", 0, "rank of queries"},
    };
    struct pp_error err;
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        assert_int_equal(open_metadata(cases[c].arch, cases[c].key, cases[c].v, NULL, 0, &err), PP_ERR_FORMAT);
        if (!strstr(err.text, cases[c].word))
            fail_msg("%s %s: %s", cases[c].arch, cases[c].key, err.text);
    }
}

/* --- matrices of heads -------------------------------------------------------------------------------------------- */

enum { HEADS = 3, KEYS = 32, VALUES = 48, WIDE = 256, ROWS = HEADS * (KEYS + VALUES) };

/* Row r of the combined matrix: of the heads' keys, which are transposed, or of their values. */
static double part_of(const float *both, bool key, int64_t row, int64_t col)
{
    const int64_t each = KEYS + VALUES;
    return (double)(key ? both[(row / WIDE * each + col) * WIDE + row % WIDE]
                        : both[(row / VALUES * each + KEYS + row % VALUES) * WIDE + col]);
}

/* Asserts rows of a part that begin and end in the middle of heads. */
static void assert_part(const struct pp_tensor *t, const float *both, bool key, double allowed)
{
    const int64_t n_rows = t->ne[1] * t->ne[2], n_cols = t->ne[0], step = 37;
    float *got = pp_calloc((size_t)(step * n_cols), sizeof *got);
    uint8_t *bytes = pp_calloc((size_t)step, pp_type_row_bytes(t->type, n_cols));
    struct pp_error err;
    assert_true(n_cols == (key ? KEYS : WIDE) && n_rows == HEADS * (key ? WIDE : VALUES));
    for (int64_t first = 0; first < n_rows; first += step) {
        const int64_t n = n_rows - first < step ? n_rows - first : step;
        assert_ok(pp_rows_read(t->rows, first, n, bytes, &err), err);
        for (int64_t r = 0; r < n; r++)
            pp_dequantize_row(t->type, bytes + (size_t)r * pp_type_row_bytes(t->type, n_cols), got + r * n_cols,
                              n_cols);
        for (int64_t i = 0; i < n * n_cols; i++)
            assert_near(got[i], part_of(both, key, first + i / n_cols, i % n_cols), allowed);
    }
    pp_free(got);
    pp_free(bytes);
}

/* Joined matrices of keys and values are split and joined again, as floats and in block formats. */
static void matrices_of_heads(void **state)
{
    static const struct {
        uint32_t type, keys;
        double allowed; /* of keys in blocks */
    } cases[] = {{PP_TYPE_F32, PP_TYPE_F32, 0}, {PP_TYPE_F16, PP_TYPE_F16, 0}, {PP_TYPE_Q8_0, PP_TYPE_Q8_0, 1e-2},
                 {PP_TYPE_Q4_K, PP_TYPE_Q8_0, 1e-2}};
    const struct pp_hparams hp = {.n_layer = 1, .n_head = HEADS, .kv_lora_rank = WIDE, .qk_nope_dim = KEYS,
                                  .v_head_dim = VALUES};
    static float both[ROWS * WIDE], again[ROWS * WIDE];
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const size_t row_bytes = pp_type_row_bytes(cases[c].type, WIDE);
        struct pp_tensor whole = {.type = cases[c].type, .n_dims = 2, .ne = {WIDE, ROWS, 1, 1}}, joined;
        struct pp_tensor_list list = {0};
        struct pp_rows rows;
        struct pp_error err;
        uint8_t *data = pp_calloc(ROWS, row_bytes);
        for (int i = 0; i < ROWS * WIDE; i++)
            both[i] = (float)(i * 7919 % 2003 - 1001) / 1001;
        assert_ok(pp_quantize_rows(cases[c].type, both, data, ROWS, WIDE, NULL, &err), err);
        for (int r = 0; r < ROWS; r++)
            pp_dequantize_row(cases[c].type, data + (size_t)r * row_bytes, both + r * WIDE, WIDE);
        whole.data = data;
        whole.size = ROWS * row_bytes;
        assert_ok(pp_tensor_list_add(&list, &whole, "blk.0.attn_kv_b.weight", true, &err), err);
        assert_ok(pp_split_heads(&list, &hp, &err), err);
        assert_int_equal(list.n, 2);
        assert_string_equal(list.t[0].name, "blk.0.attn_k_b.weight");
        assert_string_equal(list.t[1].name, "blk.0.attn_v_b.weight");
        assert_true(list.t[0].type == cases[c].keys && list.t[1].type == cases[c].type);
        assert_part(&list.t[0], both, true, cases[c].allowed);
        assert_part(&list.t[1], both, false, 0);
        struct pp_tensor parts[2] = {list.t[0], list.t[1]};
        for (int made = 0; made < 2; made++) { /* read from `whole`, and from memory of their own */
            assert_ok(pp_join_heads(&parts[0], &parts[1], &hp, &joined, &rows, &err), err);
            assert_true((joined.data == whole.data) == !made);
            for (int first = 0; first < ROWS; first += 29)
                assert_ok(pp_tensor_floats(&joined, first, ROWS - first < 29 ? ROWS - first : 29, again + first * WIDE,
                                           &err), err);
            if (!made || cases[c].allowed == 0)
                assert_memory_equal(again, both, sizeof both);
            for (int p = 0; p < 2 && !made; p++) {
                const int64_t n = parts[p].ne[1] * parts[p].ne[2];
                uint8_t *own = pp_calloc(1, parts[p].size);
                assert_ok(pp_rows_read(parts[p].rows, 0, n, own, &err), err);
                parts[p].rows = NULL;
                parts[p].data = own;
            }
        }
        pp_free((void *)(uintptr_t)parts[0].data);
        pp_free((void *)(uintptr_t)parts[1].data);
        whole.ne[1]--;
        pp_tensor_list_free(&list);
        assert_ok(pp_tensor_list_add(&list, &whole, "blk.0.attn_kv_b.weight", false, &err), err);
        assert_int_equal(pp_split_heads(&list, &hp, &err), PP_ERR_FORMAT);
        pp_tensor_list_free(&list);
    }
}

TEST_GROUP(latent)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(large_blocks),
        cmocka_unit_test(trees_and_forks),
        cmocka_unit_test(snapshots),
        cmocka_unit_test(small_pages),
        cmocka_unit_test(reads_little),
        cmocka_unit_test(adapters),
        cmocka_unit_test(adapted_index),
        cmocka_unit_test(bad_sizes),
        cmocka_unit_test(bad_lists),
        cmocka_unit_test(matrices_of_heads),
    };
    return cmocka_run_group_tests_name("latent", tests, NULL, NULL);
}
