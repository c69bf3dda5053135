/* test_hyper.c - models with several residual streams, which every part of a layer reads from and writes to
 * (hyper-connections): checked like those in test_experts.c, against formulas of their own. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/ops.h"
#include "engine/cpu/program.h"
#include "engine/engine.h"
#include "engine/hf.h"
#include "engine/safetensors.h"
#include "tests/expert_checks.h"
#include "tests/expert_model.h"
#include "tests/packed_folder.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"

/* HY V4: latent attention with an indexer in every third layer, sinks and gates, and experts with clamped gates. */
static struct expert_shape hy_v4_shape(void)
{
    struct expert_shape s = expert_shape("hy_v4");
    s.neighbours = s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.heads_apart = true;
    s.gated = s.sinks = s.clamp_before_silu = s.index_rope_last = true;
    s.n_layer = 5;
    s.n_stream = 4;
    s.stream_least = 1e-3f;
    s.stream_most = 1.7f;
    s.kv_rank = 32;
    s.nope = 16;
    s.v_dim = 24;
    s.rope_dim = 8;
    s.q_rank = 24;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    s.bound = 0.8f;
    s.index_top_k = 12;
    s.index_step = 3;
    return s;
}

static void hy_v4(void **state)
{
    (void)state;
    struct expert_shape s = hy_v4_shape();
    const char *folder = check_experts(&s);
    assert_tensor(folder, "model.layers.4.hc_attn_layer.hc_pre.hc_fn", 2, s.n_stream * s.n_embd);
    assert_tensor(folder, "model.layers.0.hc_mlp_layer.hc_pre.hc_base", 1, 2 * s.n_stream);
    assert_tensor(folder, "model.layers.1.hc_mlp_layer.hc_pre.hc_scale", 1, 2);
    assert_tensor(folder, "model.hc_head.hc_head_fn", 2, s.n_stream * s.n_embd);
    assert_tensor(folder, "model.layers.2.self_attn.linear_gate.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.self_attn.learnable_sink_param", 1, s.n_head);
    assert_tensor(folder, "model.layers.3.self_attn.indexer.k_norm.bias", 1, 20);
    assert_tensor(folder, "model.layers.1.mlp.experts.gate_up_proj", 3, s.n_embd);
    s.n_stream = 3;
    s.index_top_k = s.index_step = 0;
    s.n_ff_shared = 0;
    s.heads_apart = false;
    check_experts(&s);
    s = hy_v4_shape();
    s.n_stream = 1;
    s.index_step = 0;
    s.bound = 0;
    check_experts(&s);
}

/* Files from before llama.cpp supported the family have another name for it, and another key for the list of indexers.
 * Keys that other families' files use for YaRN, growing scores and gates are read under that name, too. */
static void first_files(void **state)
{
    (void)state;
    struct expert_shape s = hy_v4_shape();
    s.arch = "hyv4";
    check_experts(&s);
    s.yarn_factor = 40;
    s.yarn_ctx = 64;
    s.log_multiplier = 0.0707f;
    check_experts(&s);
    s.sigmoids = false;
    check_experts(&s);
    s.yarn_ctx = s.length = 24;
    s.temperature = 0.3f;
    struct expert_model *m = expert_model_make(&s);
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    int32_t ids[SMALL_TEXT];
    small_text(ids, s.n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    assert_logits(want, s.n_vocab, expert_model_write(m));
    pp_free(want);
    expert_model_free(m);
}

static const char *file_of(const struct expert_shape *s)
{
    struct expert_model *m = expert_model_make(s);
    const char *file = expert_model_write(m);
    expert_model_free(m);
    return file;
}

/* Conversations that go back, and come from snapshots. */
static void hy_v4_goes_on(void **state)
{
    const struct expert_shape s = hy_v4_shape();
    (void)state;
    assert_resumes(file_of(&s), s.n_vocab);
    assert_goes_back(file_of(&s), s.n_vocab);
}

/* Impossible numbers in the metadata are refused. */
static void bad_streams(void **state)
{
    static const struct {
        int n_stream;
        float least, most, bound;
        enum pp_code code;
        const char *word;
    } cases[] = {{17, 1e-6f, 2, 1, PP_ERR_FORMAT, "number of residual streams"},
                 {4, 0, 2, 1, PP_ERR_FORMAT, "an epsilon of 0"},
                 {4, NAN, 2, 1, PP_ERR_FORMAT, "an epsilon of"},
                 {4, 1e-6f, -2, 1, PP_ERR_FORMAT, "a magnitude of -2"},
                 {4, 1e-6f, INFINITY, 1, PP_ERR_FORMAT, "a magnitude of inf"},
                 {4, 1e-6f, 2, -5, PP_ERR_FORMAT, "metadata hy_v4.swiglu_clamp_exp is -5"},
                 {4, 1e-6f, 2, INFINITY, PP_ERR_FORMAT, "metadata hy_v4.swiglu_clamp_exp is inf"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = hy_v4_shape();
        struct pp_model *model;
        struct pp_error err;
        s.n_stream = cases[i].n_stream;
        s.stream_least = cases[i].least;
        s.stream_most = cases[i].most;
        s.bound = cases[i].bound;
        if (pp_model_open(file_of(&s), &model, &err) != cases[i].code || !strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].word, err.text);
    }
}

/* Metadata that change the results without any tensor differing change the model's identity: pages and snapshots are
 * not shared. */
static void not_the_same_model(void **state)
{
    (void)state;
    struct expert_shape s = hy_v4_shape();
    const struct pp_sha256 one = expert_identity(&s), again = expert_identity(&s);
    s.stream_most = 2;
    const struct pp_sha256 larger = expert_identity(&s);
    s.stream_least = 1e-6f;
    const struct pp_sha256 less = expert_identity(&s);
    assert_memory_equal(&one, &again, sizeof one);
    assert_memory_not_equal(&one, &larger, sizeof one);
    assert_memory_not_equal(&larger, &less, sizeof one);
}

/* GLM 5 Next: latent attention without RoPE whose indexer has one key for every four positions; states; residual
 * streams mixed by a matrix; and clamped gates everywhere. */
static struct expert_shape glm5_next_shape(void)
{
    struct expert_shape s = expert_shape("glm5next");
    s.sigmoids = s.choice_bias = s.say_norm = s.say_gating = s.heads_apart = true;
    s.clamp_before_silu = s.bounded_all = s.kda = true;
    s.n_layer = 4;
    s.full = 2;
    s.n_state = s.n_state_key = s.n_head;
    s.key_dim = s.value_dim = 16;
    s.state_taps = 4;
    s.decay_bound = -5;
    s.n_stream = 4;
    s.stream_rounds = 20;
    s.stream_least = 1e-6f;
    s.stream_most = 2;
    s.kv_rank = 32;
    s.nope = s.v_dim = 24;
    s.rope_dim = 0;
    s.q_rank = 24;
    s.n_dense = 1;
    s.n_ff_shared = 32;
    s.scale = 2.5f;
    s.bound = 0.8f;
    s.index_top_k = 12;
    s.pool = 4;
    return s;
}

static void glm5_next(void **state)
{
    (void)state;
    struct expert_shape s = glm5_next_shape();
    const char *folder = check_experts(&s);
    const int dim = s.n_state * s.key_dim, numbers = s.n_stream * (s.n_stream + 2);
    assert_tensor(folder, "model.layers.0.hc_attn_fn", 2, s.n_stream * s.n_embd);
    assert_tensor(folder, "model.layers.3.hc_ffn_base", 1, numbers);
    assert_tensor(folder, "model.layers.3.hc_ffn_scale", 1, 3);
    assert_tensor(folder, "model.layers.1.self_attn.indexer.index_kpool_compress_gate", 2, s.n_embd);
    assert_tensor(folder, "model.layers.1.self_attn.indexer.index_kpool_compress_ape", 2, 20);
    assert_tensor(folder, "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.2.self_attn.q_conv1d.weight", 3, s.state_taps);
    assert_tensor(folder, "model.layers.2.self_attn.A_log", 1, s.n_state);
    assert_tensor(folder, "model.layers.2.self_attn.dt_bias", 1, dim);
    assert_tensor(folder, "model.layers.2.self_attn.g_b_proj.weight", 2, s.key_dim);
    assert_tensor(folder, "model.layers.1.mlp.experts.7.down_proj.weight", 2, s.n_ff_expert);
    s.pool = 16;
    s.index_top_k = 16;
    s.n_stream = 2;
    s.stream_rounds = 1;
    s.bound = 0;
    s.n_dense = 0;
    check_experts(&s);
    s.pool = 2;
    s.n_layer = 5; /* the last layer has states; a layer of multi-token prediction follows it */
    s.n_nextn = 1;
    check_experts(&s);
    s = glm5_next_shape();
    s.arch = "glm5-next"; /* the name in other files */
    check_experts(&s);
}

static void glm5_next_goes_on(void **state)
{
    const struct expert_shape s = glm5_next_shape();
    (void)state;
    assert_resumes(file_of(&s), s.n_vocab);
    assert_goes_back(file_of(&s), s.n_vocab);
}

/* Texts longer than a chunk, most of whose positions are not attended to; rows after an indexer's picks differ. */
static void check_long(struct expert_shape s)
{
    enum { LENGTH = 300 };
    s.n_ctx = LENGTH;
    s.index_top_k = 20;
    struct expert_model *m = expert_model_make(&s);
    const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 2, .n_ctx = LENGTH};
    double *want = doubles(LENGTH * s.n_vocab);
    float *got = pp_calloc((size_t)(LENGTH * s.n_vocab), sizeof *got);
    int32_t ids[LENGTH];
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_seq *seq;
    struct pp_error err;
    assert_non_null(got);
    for (int i = 0; i < LENGTH; i++)
        ids[i] = (i * 37 + i / 7) % s.n_vocab;
    expert_model_compute(m, ids, LENGTH, want);
    assert_ok(pp_model_open(expert_model_write(m), &model, &err), err);
    assert_ok(pp_engine_new(model, &opt, NULL, NULL, &engine, &err), err);
    assert_ok(pp_seq_new(engine, &seq, &err), err);
    run_in_passes(engine, seq, ids, LENGTH, 50, got);
    for (int i = 0; i < LENGTH * s.n_vocab; i++)
        if (!(fabs((double)got[i] - want[i]) <= 1e-3 * fmax(1, fabs(want[i]))))
            fail_msg("token %d behind position %d: %g, not %g", i % s.n_vocab, i / s.n_vocab, (double)got[i], want[i]);
    pp_seq_free(seq);
    pp_engine_free(engine);
    pp_model_close(model);
    expert_model_free(m);
    pp_free(want);
    pp_free(got);
}

static void glm5_next_long(void **state)
{
    (void)state;
    check_long(glm5_next_shape());
}

/* Impossible numbers, and ones whose computation is not supported, are refused. */
static void bad_pools(void **state)
{
    static const struct {
        int pool, top_k, rope_dim, rounds;
        float decay_bound, bound;
        enum pp_code code;
        const char *word;
    } cases[] = {{3, 12, 0, 20, -5, 1, PP_ERR_UNSUPPORTED, "keys cover 3 positions"},
                 {32, 32, 0, 20, -5, 1, PP_ERR_UNSUPPORTED, "keys cover 32 positions"},
                 {1, 12, 0, 20, -5, 1, PP_ERR_UNSUPPORTED, "keys cover 1 positions"},
                 {4, 14, 0, 20, -5, 1, PP_ERR_FORMAT, "not a multiple of the block size"},
                 {4, 12, 8, 20, -5, 1, PP_ERR_UNSUPPORTED, "8 values of a head are rotated"},
                 {4, 12, 0, 20, 5, 1, PP_ERR_UNSUPPORTED, "the bound of decays is 5"},
                 {4, 12, 0, 20, -5, -1, PP_ERR_FORMAT, "metadata glm5next.swiglu_clamp_exp is -1"},
                 {4, 12, 0, 1001, -5, 1, PP_ERR_FORMAT, "number of rounds"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = glm5_next_shape();
        struct pp_model *model;
        struct pp_error err;
        s.pool = cases[i].pool;
        s.index_top_k = cases[i].top_k;
        s.rope_dim = cases[i].rope_dim;
        s.stream_rounds = cases[i].rounds;
        s.decay_bound = cases[i].decay_bound;
        s.bound = cases[i].bound;
        if (pp_model_open(file_of(&s), &model, &err) != cases[i].code || !strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].word, err.text);
    }
}

/* --- Qwen 4 ------------------------------------------------------------------------------------------------------- */

/* The multipliers that transformers generates from seed 1234 for 80 tokens. */
static const uint64_t multipliers[] = {83558512331482385, 78689173079975349, 112960188720221647, 39457507794023203};

/* Qwen 4: gated residual streams, layers with states, attention whose indexer has one key for every four positions, and
 * n-gram embeddings; the token that ends n-grams occurs in the text. */
static struct expert_shape qwen4_shape(void)
{
    struct expert_shape s = expert_shape("qwen4exp");
    s.n_layer = 4;
    s.full = 4;
    s.qk_norm = QK_HEADS;
    s.ffn_norm = "post_attention_norm";
    s.rope_dim = 8;
    s.n_state = 6;
    s.n_state_key = 2;
    s.key_dim = 16;
    s.value_dim = 32;
    s.state_taps = 4;
    s.tiled = s.shared_weight = s.state_sigmoids = true;
    s.n_ff_shared = 32;
    s.n_stream = 4;
    s.stream_rank = 24;
    s.index_top_k = 12;
    s.pool = 4;
    s.hash.size = 3;
    s.hash.heads = 3;
    s.hash.width = 32;
    s.hash.base = 20;
    s.hash.layer = 1;
    s.hash.taps = 4;
    s.hash.end = 25;
    s.hash.multipliers = multipliers;
    return s;
}

static void qwen4(void **state)
{
    (void)state;
    struct expert_shape s = qwen4_shape();
    const char *folder = check_experts(&s);
    const int wide = s.n_stream * s.n_embd;
    assert_tensor(folder, "model.layers.0.attn_hyper_connection.hc_norm.weight", 1, wide);
    assert_tensor(folder, "model.layers.3.mlp_hyper_connection.input_mix_weight_down.weight", 2, wide);
    assert_tensor(folder, "model.layers.3.mlp_hyper_connection.block_inject_weight.weight", 2, wide);
    assert_tensor(folder, "model.hyper_connection_mixer.input_mix_weight_up.weight", 2, s.stream_rank);
    assert_tensor(folder, "model.layers.3.self_attn.indexer.index_qk_proj.weight", 2, s.n_embd);
    assert_tensor(folder, "model.layers.3.self_attn.indexer.k_layernorm.weight", 1, 20);
    assert_tensor(folder, "model.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight", 2, s.hash.width);
    assert_tensor(folder, "model.layers.1.ple.conv1d.weight", 3, s.hash.taps);
    assert_tensor(folder, "model.layers.1.ple.norm_query.weight", 1, wide);
    assert_tensor(folder, "model.layers.2.linear_attn.in_proj_qkv.weight", 2, s.n_embd);
    s.pool = 8;
    s.index_top_k = 16;
    s.n_stream = 2;
    s.full = 2;
    s.n_nextn = 1;
    s.hash.layer = 3;
    s.hash.size = 2;
    s.hash.heads = 5;
    s.hash.width = 24;
    s.hash.taps = 8;
    s.hash.end = 1;
    check_experts(&s);
    s.hash.size = 0;
    s.pool = 2;
    check_experts(&s);
}

/* A file with one of the streams' norms, and the convolution, in other shapes is accepted. */
static void qwen4_other_shapes(void **state)
{
    struct expert_shape s = qwen4_shape();
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    int32_t ids[SMALL_TEXT];
    (void)state;
    s.hash.deep = true;
    struct expert_model *m = expert_model_make(&s);
    small_text(ids, s.n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    assert_logits(want, s.n_vocab, expert_model_write(m));
    pp_free(want);
    expert_model_free(m);
}

/* A copy of a folder as they are published: the n-gram table is split into several parts, and there are tensors that
 * follow from the configuration. */
static const char *in_parts(const char *folder, int n_parts, int n_rows)
{
    static const char table[] = "ngram_embedding.shard_0.weight";
    const char *copy = fresh_path("parts");
    const int64_t n_multipliers = 3;
    struct tensor_file f = {0};
    struct pp_safetensors *s;
    struct pp_error err;
    char path[300], name[200];
    cJSON *config;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(pp_safetensors_open(path, &s, &err), err);
    for (size_t i = 0; i < pp_safetensors_n(s); i++) {
        const struct pp_tensor *t = pp_safetensors_at(s, i);
        const bool divided = strstr(t->name, table) != NULL;
        const int parts = divided ? n_parts : 1;
        int64_t shape[4];
        for (int d = 0; d < t->n_dims; d++)
            shape[d] = t->ne[t->n_dims - 1 - d];
        if (divided)
            assert_int_equal(shape[0], n_rows);
        shape[0] /= parts;
        for (int k = 0; k < parts; k++) {
            const size_t size = t->size / (size_t)parts;
            snprintf(name, sizeof name, "%.*s", divided ? (int)(strstr(t->name, "_0.weight") - t->name) : 199, t->name);
            if (divided)
                snprintf(name + strlen(name), sizeof name - strlen(name), "_%d.weight", k);
            tensor_file_add(&f, name, "F32", t->n_dims, shape, (const uint8_t *)t->data + (size_t)k * size, size);
        }
    }
    pp_safetensors_close(s);
    tensor_file_add(&f, "model.layers.1.ple.ple_embedding.layer_multipliers", "I64", 1, &n_multipliers, multipliers,
                    3 * sizeof *multipliers);
    assert_ok(pp_json_read(folder, "config.json", &config, &err), err);
    cJSON_ReplaceItemInObjectCaseSensitive(config, "split_ngram_parts", cJSON_CreateNumber(n_parts));
    char *text = cJSON_Print(config);
    assert_int_equal(mkdir(copy, 0755), 0);
    snprintf(path, sizeof path, "%s/config.json", copy);
    assert_ok(pp_write_file(path, text, strlen(text), 0644, &err), err);
    cJSON_free(text);
    cJSON_Delete(config);
    tensor_file_write(&f, copy, "model.safetensors");
    return copy;
}

static void qwen4_in_parts(void **state)
{
    const struct expert_shape s = qwen4_shape();
    struct expert_model *m = expert_model_make(&s);
    const struct pp_convert_options opt = {0};
    const char *folder = fresh_path("folder"), *again = fresh_path("again.gguf");
    double *want = doubles(SMALL_TEXT * s.n_vocab);
    int32_t ids[SMALL_TEXT];
    struct pp_error err;
    (void)state;
    small_text(ids, s.n_vocab);
    expert_model_compute(m, ids, SMALL_TEXT, want);
    assert_ok(pp_convert_to_folder(expert_model_write(m), folder, &opt, &err), err);
    const char *parts = in_parts(folder, 4, 208);
    assert_logits(want, s.n_vocab, parts);
    assert_ok(pp_convert_to_gguf(parts, again, &opt, &err), err);
    assert_logits(want, s.n_vocab, again);
    folder = fresh_path("folder");
    assert_ok(pp_convert_to_folder(parts, folder, &opt, &err), err);
    assert_logits(want, s.n_vocab, folder);
    assert_tensor(folder, "model.layers.1.ple.ple_embedding.ngram_embedding.shard_3.weight", 2, s.hash.width);
    assert_int_equal(pp_convert_to_folder(parts, fresh_path("mlx"), &(struct pp_convert_options){.bits = 4}, &err),
                     PP_ERR_UNSUPPORTED); /* the queries and the key of an index would not be distinguishable there */
    pp_free(want);
    expert_model_free(m);
}

static void qwen4_goes_on(void **state)
{
    const struct expert_shape s = qwen4_shape();
    (void)state;
    assert_resumes(file_of(&s), s.n_vocab);
    assert_goes_back(file_of(&s), s.n_vocab);
}

static void qwen4_long(void **state)
{
    (void)state;
    check_long(qwen4_shape());
}

/* Impossible numbers, and ones whose computation is not supported, are refused. */
static void bad_qwen4(void **state)
{
    static const uint64_t others[] = {3, 5, 7};
    static const struct {
        int n_stream, pool, top_k, taps, full, end, missing;
        const uint64_t *multipliers;
        enum pp_code code;
        const char *word;
    } cases[] = {{1, 4, 12, 4, 4, 25, 0, multipliers, PP_ERR_FORMAT, "1 residual streams"},
                 {4, 3, 12, 4, 4, 25, 0, multipliers, PP_ERR_UNSUPPORTED, "keys cover 3 positions"},
                 {4, 4, 14, 4, 4, 25, 0, multipliers, PP_ERR_FORMAT, "not a multiple of the block size"},
                 {4, 4, 12, 7, 4, 25, 0, multipliers, PP_ERR_FORMAT, "their convolution looks at"},
                 {4, 4, 12, 4, 1, 25, 0, multipliers, PP_ERR_UNSUPPORTED, "without states"},
                 {4, 4, 12, 4, 4, 80, 0, multipliers, PP_ERR_FORMAT, "that n-grams do not look beyond"},
                 {4, 4, 12, 4, 4, 25, 0, others, PP_ERR_UNSUPPORTED, "what a seed gives"},
                 {4, 4, 12, 4, 4, 25, 1, multipliers, PP_ERR_FORMAT, "204 rows of embeddings"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct expert_shape s = qwen4_shape();
        struct pp_model *model;
        struct pp_error err;
        s.n_stream = cases[i].n_stream;
        s.pool = cases[i].pool;
        s.index_top_k = cases[i].top_k;
        s.hash.taps = cases[i].taps;
        s.full = cases[i].full;
        s.hash.end = cases[i].end;
        s.hash.missing = cases[i].missing;
        s.hash.multipliers = cases[i].multipliers;
        if (pp_model_open(file_of(&s), &model, &err) != cases[i].code || !strstr(err.text, cases[i].word))
            fail_msg("%s: %s", cases[i].word, err.text);
    }
}

/* --- streams that a matrix mixes --------------------------------------------------------------------------------- */

enum { N = 4, NUMBERS = 2 * N + N * N, WIDTH = 300, ROUNDS = 20 };

/* The formulas of struct pp_connection in double precision. y: [NUMBERS] */
static void connect_in_double(const struct pp_connection *how, const float *x, double y[])
{
    double(*m)[N] = (double(*)[N])(y + 2 * N), sum;
    for (int i = 0; i < 2 * N; i++)
        y[i] = (i < N ? 1 : (double)how->write_scale) / (1 + exp(-(double)x[i])) +
               (double)(i < N ? how->eps : how->write_eps);
    for (int i = 0; i < N; i++) {
        sum = 0;
        for (int j = 0; j < N; j++)
            sum += exp((double)x[2 * N + i * N + j]);
        for (int j = 0; j < N; j++)
            m[i][j] = exp((double)x[2 * N + i * N + j]) / sum + (double)how->eps;
    }
    for (int turn = 1; turn < 2 * ROUNDS; turn++) /* in odd rounds columns */
        for (int i = 0; i < N; i++) {
            sum = (double)how->eps;
            for (int j = 0; j < N; j++)
                sum += turn % 2 ? m[j][i] : m[i][j];
            for (int j = 0; j < N; j++)
                *(turn % 2 ? &m[j][i] : &m[i][j]) /= sum;
        }
}

static void mixed_streams(void **state)
{
    (void)state;
    const float ones[3] = {1, 1, 1}, none[NUMBERS] = {0};
    struct row_op connect = {.kind = PP_OP_CONNECT, .n = NUMBERS, .n_heads = N, .factors = ones, .added = none,
                             .connection = {.eps = 1e-6f, .write_scale = 2, .sinkhorn_iters = ROUNDS}};
    struct row_op write = {.kind = PP_OP_WRITE_STREAMS, .n = WIDTH, .n_heads = N, .mixes = true};
    static float x[NUMBERS], numbers[NUMBERS], given[WIDTH], streams[N * WIDTH], before[N * WIDTH], scalar[N * WIDTH];
    double wanted[NUMBERS];
    for (int i = 0; i < NUMBERS; i++)
        x[i] = 3 * sinf((float)(7 * i + 1));
    for (int i = 0; i < N * WIDTH; i++)
        before[i] = cosf((float)i);
    for (int i = 0; i < WIDTH; i++)
        given[i] = sinf((float)i);
    connect_in_double(&connect.connection, x, wanted);
    for (enum pp_isa isa = PP_ISA_SCALAR; isa < PP_ISA_COUNT; isa++) {
        if (!pp_isa_runs(isa))
            continue;
        const struct pp_cpu c = {.ops = pp_cpu_ops(isa)};
        pp_cpu_stream_op(&c, &connect, x, NULL, numbers);
        for (int i = 0; i < NUMBERS; i++)
            assert_true(fabs((double)numbers[i] - wanted[i]) < 1e-5);
        memcpy(streams, before, sizeof streams);
        pp_cpu_stream_op(&c, &write, given, numbers, streams);
        for (int i = 0; i < N * WIDTH; i++) {
            double sum = wanted[N + i / WIDTH] * (double)given[i % WIDTH];
            for (int k = 0; k < N; k++)
                sum += wanted[2 * N + k * N + i / WIDTH] * (double)before[k * WIDTH + i % WIDTH];
            assert_true(fabs((double)streams[i] - sum) < 1e-4);
        }
        if (isa == PP_ISA_SCALAR)
            memcpy(scalar, streams, sizeof scalar);
        assert_memory_equal(streams, scalar, sizeof scalar);
    }
}

TEST_GROUP(hyper)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hy_v4),       cmocka_unit_test(first_files),        cmocka_unit_test(hy_v4_goes_on),
        cmocka_unit_test(bad_streams), cmocka_unit_test(not_the_same_model), cmocka_unit_test(glm5_next),
        cmocka_unit_test(glm5_next_goes_on), cmocka_unit_test(glm5_next_long), cmocka_unit_test(bad_pools),
        cmocka_unit_test(qwen4),       cmocka_unit_test(qwen4_goes_on),      cmocka_unit_test(qwen4_long),
        cmocka_unit_test(bad_qwen4),   cmocka_unit_test(qwen4_in_parts),     cmocka_unit_test(qwen4_other_shapes),
        cmocka_unit_test(mixed_streams),
    };
    return cmocka_run_group_tests_name("hyper", tests, NULL, NULL);
}
