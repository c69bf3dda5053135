/* test_both_ways.c - encoders built from a decoder's layers with bidirectional attention. Every row of a text is
 * compared with the formulas, from a GGUF file, from a folder, and from the file converted from that; the bits do not
 * depend on how the work is divided. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/engine.h"
#include "engine/rows.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "engine/types.h"
#include "tests/decoder_model_int.h"
#include "tests/small_model.h"
#include "tests/support.h"

static void vectors_of(const char *path, const char *kernels, int n_threads, const int32_t *ids, int n, float *out)
{
    const struct pp_engine_options opt = {.n_threads = n_threads, .kernels = kernels, .kv_memory = 64u << 20,
                                          .activations = PP_ACT_F32, .kv_type = PP_KV_F32};
    struct pp_row rows[SMALL_TEXT];
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *seq;
    struct pp_error err;
    assert_ok(pp_model_open(path, &m, &err), err);
    assert_true(pp_model_info(m)->encoder);
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &seq, &err), err);
    const int width = (int)pp_model_info(m)->n_embd;
    for (int i = 0; i < n; i++)
        rows[i] = (struct pp_row){.seq = seq, .token = ids[i], .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_HIDDEN};
    assert_ok(pp_step(e, rows, n, NULL, &err), err);
    for (int i = 0; i < n; i++)
        memcpy(out + i * width, pp_step_output(e, i), (size_t)width * sizeof *out);
    pp_seq_free(seq);
    pp_engine_free(e);
    pp_model_close(m);
}

/* Texts of several lengths. */
static void expect_formulas(const struct decoder *d, const char *path)
{
    static const int lengths[] = {1, 4, 7, 33, SMALL_TEXT};
    const int width = d->s.n_embd;
    double *want = doubles(SMALL_TEXT * width);
    float got[SMALL_TEXT * 48];
    int32_t ids[SMALL_TEXT];
    assert_int_equal(width, 48);
    small_text(ids, d->s.n_vocab);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        decoder_compute(d, ids, lengths[k], want);
        vectors_of(path, NULL, 2, ids, lengths[k], got);
        for (int i = 0; i < lengths[k] * width; i++)
            if (!(fabs((double)got[i] - want[i]) <= 1e-4 * fmax(1, fabs(want[i]))))
                fail_msg("%s, row %d of %d: value %d is %g, not %g", path, i / width, lengths[k], i % width,
                         (double)got[i], want[i]);
    }
    pp_free(want);
}

static void expect_same_bits(const char *path, int n_vocab)
{
    float first[SMALL_TEXT * 48], other[SMALL_TEXT * 48];
    int32_t ids[SMALL_TEXT];
    small_text(ids, n_vocab);
    vectors_of(path, NULL, 1, ids, SMALL_TEXT, first);
    vectors_of(path, NULL, 3, ids, SMALL_TEXT, other);
    assert_memory_equal(first, other, sizeof first);
    vectors_of(path, "scalar", 2, ids, SMALL_TEXT, other);
    assert_memory_equal(first, other, sizeof first);
}

static void check(const struct decoder_shape *s)
{
    struct decoder *d = decoder_make(s);
    const char *path = decoder_write(d);
    expect_formulas(d, path);
    expect_same_bits(path, s->n_vocab);
    decoder_free(d);
}

static void files(void **state)
{
    static const char *const archs[] = {"gemma-embedding", "modern-bert", "eurobert", "llama-embed", "neo-bert"};
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        struct decoder_shape s = decoder_shape(archs[i]);
        check(&s);
    }
    struct decoder_shape s = decoder_shape("gemma-embedding");
    s.n_dense = 64;
    check(&s);
}

/* Two dense modules of which one is missing, or whose sizes do not fit, are refused. */
static void bad_dense(void **state)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
        const char *word;
    } cases[] = {
        {"dense_3.weight", 0, 0, "dense_3.weight is missing"},
        {"dense_3.weight", 48, 63, "dense_3.weight has"},
        {"dense_2.weight", 64, 47, "dense_2.weight has"},
    };
    struct decoder_shape s = decoder_shape("gemma-embedding");
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    s.n_dense = 64;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct decoder *d = decoder_make(&s);
        decoder_spoil(d, cases[i].name, cases[i].rows, cases[i].cols);
        if (pp_model_open(decoder_write(d), &m, &err) == PP_OK || !strstr(err.text, cases[i].word))
            fail_msg("%s: \"%s\"", cases[i].name, err.text);
        decoder_free(d);
    }
}

/* --- folders ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *gguf, *gemma, *modern, *neo;
} names[] = {
    {"token_embd.", "embed_tokens.", "embeddings.tok_embeddings.", "encoder."},
    {"token_embd_norm.", NULL, "embeddings.norm.", NULL},
    {"output_norm.", "norm.", "final_norm.", NULL},
    {"enc.output_norm.", NULL, NULL, "layer_norm."},
    {"attn_norm.", "input_layernorm.", "attn_norm.", "attention_norm."},
    {"ffn_norm.", "pre_feedforward_layernorm.", "mlp_norm.", "ffn_norm."},
    {"post_attention_norm.", "post_attention_layernorm.", NULL, NULL},
    {"post_ffw_norm.", "post_feedforward_layernorm.", NULL, NULL},
    {"attn_q_norm.", "self_attn.q_norm.", NULL, NULL},
    {"attn_k_norm.", "self_attn.k_norm.", NULL, NULL},
    {"attn_q.", "self_attn.q_proj.", NULL, NULL},
    {"attn_k.", "self_attn.k_proj.", NULL, NULL},
    {"attn_v.", "self_attn.v_proj.", NULL, NULL},
    {"attn_qkv.", NULL, "attn.Wqkv.", "qkv."},
    {"attn_output.", "self_attn.o_proj.", "attn.Wo.", "wo."},
    {"ffn_gate.", "mlp.gate_proj.", NULL, NULL},
    {"ffn_up.", "mlp.up_proj.", "mlp.Wi.", "ffn.w12."},
    {"ffn_down.", "mlp.down_proj.", "mlp.Wo.", "ffn.w3."},
};

/* The name of "blk.3.attn_q.weight" in transformers, for a model that is only the encoder. */
static void hf_name(const struct decoder *d, const char *gguf, char out[96])
{
    int l = -1, at = 0;
    sscanf(gguf, "blk.%d.%n", &l, &at);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i].gguf);
        const bool neo = strcmp(d->s.arch, "neo-bert") == 0;
        const char *hf = neo                                       ? names[i].neo
                         : strcmp(d->s.arch, "modern-bert") == 0 ? names[i].modern
                                                                   : names[i].gemma;
        if (!hf || strncmp(gguf + at, names[i].gguf, n) != 0)
            continue;
        snprintf(out, 96, l < 0 ? "%.0d%s%s" : neo ? "transformer_encoder.%d.%s%s" : "layers.%d.%s%s", l < 0 ? 0 : l,
                 hf, gguf + at + n);
        return;
    }
    fail_msg("%s has no name", gguf);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[600];
    struct pp_error err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
}

static struct pp_tensor as_tensor(const struct matrix *m, const char *name)
{
    struct pp_tensor t = {.name = name, .type = PP_TYPE_F32, .n_dims = m->rows ? 2 : 1,
                          .ne = {m->cols, m->rows ? m->rows : 1, 1, 1}, .data = m->values};
    t.size = (size_t)(t.ne[0] * t.ne[1]) * sizeof(float);
    return t;
}

/* Writes a Dense module of sentence-transformers, which follows the model and has a folder of its own. */
static void write_dense(const struct decoder *d, const char *dir, const char *module, const char *gguf, const char *fn)
{
    char path[500], config[300];
    const struct matrix *m = decoder_find(d, gguf);
    const struct pp_tensor t = as_tensor(m, "linear.weight");
    struct pp_error err;
    snprintf(path, sizeof path, "%s/%s", dir, module);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(config, sizeof config, "{\"in_features\": %d, \"out_features\": %d, \"bias\": false, "
             "\"activation_function\": \"torch.nn.modules.%s\"}", (int)m->cols, (int)m->rows, fn);
    write_text(path, "config.json", config);
    snprintf(path, sizeof path, "%s/%s/model.safetensors", dir, module);
    assert_ok(pp_safetensors_write(path, &t, 1, &err), err);
}

/* Gemma's norm weights are stored as w - 1. */
static bool lacks_one(const struct decoder *d, const char *gguf)
{
    return strcmp(d->s.arch, "gemma-embedding") == 0 && strstr(gguf, "norm.");
}

static const char *write_folder(struct decoder *d, const char *config, const char *fn)
{
    static char text[DECODER_MAX_TENSORS][96];
    struct pp_tensor list[DECODER_MAX_TENSORS];
    const char *dir = fresh_path("encoder");
    char path[400];
    struct pp_error err;
    int n = 0;
    assert_int_equal(mkdir(dir, 0700), 0);
    write_text(dir, "config.json", config);
    for (int i = 0; i < d->n; i++) {
        struct matrix *m = &d->t[i];
        if (strncmp(m->name, "dense", 5) == 0)
            continue;
        for (int64_t j = 0; lacks_one(d, m->name) && j < m->cols; j++)
            m->values[j] -= 1;
        hf_name(d, m->name, text[n]);
        list[n] = as_tensor(m, text[n]);
        n++;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, (size_t)n, &err), err);
    for (int i = 0; i < d->n; i++)
        for (int64_t j = 0; lacks_one(d, d->t[i].name) && j < d->t[i].cols; j++)
            d->t[i].values[j] += 1;
    if (!d->s.n_dense)
        return dir;
    write_dense(d, dir, "2_Dense", "dense_2.weight", fn);
    write_dense(d, dir, "3_Dense", "dense_3.weight", fn);
    write_text(dir, "modules.json",
               "[{\"idx\": 0, \"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"},"
               "{\"idx\": 1, \"path\": \"2_Dense\", \"type\": \"sentence_transformers.models.Dense\"},"
               "{\"idx\": 2, \"path\": \"3_Dense\", \"type\": \"sentence_transformers.models.Dense\"}]");
    return dir;
}

static const char gemma_config[] =
    "{\"architectures\": [\"Gemma3TextModel\"], \"model_type\": \"gemma3_text\", "
    "\"use_bidirectional_attention\": true, "
    "\"vocab_size\": 80, \"hidden_size\": 48, \"num_hidden_layers\": 7, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 12, \"query_pre_attn_scalar\": 12, \"intermediate_size\": 64, "
    "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000, \"rope_local_base_freq\": 500, "
    "\"sliding_window\": 12}";
static const char modern_config[] =
    "{\"architectures\": [\"ModernBertForMaskedLM\"], \"model_type\": \"modernbert\", \"vocab_size\": 80, "
    "\"hidden_size\": 48, \"num_hidden_layers\": 7, \"num_attention_heads\": 4, \"intermediate_size\": 64, "
    "\"max_position_embeddings\": 128, \"norm_eps\": 1e-5, \"global_rope_theta\": 10000, \"local_rope_theta\": 500, "
    "\"local_attention\": 8, \"global_attn_every_n_layers\": 3, \"hidden_activation\": \"gelu\"}";

static const char neo_config[] =
    "{\"architectures\": [\"NeoBERTLMHead\"], \"model_type\": \"neobert\", \"vocab_size\": 80, \"hidden_size\": 48, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"intermediate_size\": 96, \"max_length\": 128, "
    "\"norm_eps\": 1e-5}";

/* Rows of q, k and v interleaved by head, as in NeoBERT's folders. */
static void by_head(const struct decoder *d, struct matrix *m)
{
    const int64_t dim = d->s.head_dim, n = d->s.n_head;
    const size_t bytes = (size_t)(m->rows * m->cols) * sizeof *m->values;
    float *all = pp_malloc(bytes);
    assert_non_null(all);
    memcpy(all, m->values, bytes);
    for (int64_t r = 0; r < m->rows; r++)
        memcpy(m->values + r * m->cols,
               all + (r / dim % 3 * n * dim + r / (3 * dim) * dim + r % dim) * m->cols,
               (size_t)m->cols * sizeof *all);
    pp_free(all);
}

static void expect_folder(struct decoder *d, const char *config)
{
    const struct pp_convert_options opt = {0};
    const char *dir = write_folder(d, config, "linear.Identity"), *file = fresh_path("encoder.gguf");
    struct pp_error err;
    expect_formulas(d, dir);
    assert_ok(pp_convert_to_gguf(dir, file, &opt, &err), err);
    expect_formulas(d, file);
}

/* When a folder is converted to another folder, its Dense modules are copied, too. */
static void modules_go_along(void **state)
{
    struct decoder_shape s = decoder_shape("gemma-embedding");
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    s.n_dense = 64;
    struct decoder *d = decoder_make(&s);
    const char *dir = write_folder(d, gemma_config, "linear.Identity");
    const char *to = fresh_path("again"), *mlx = fresh_path("mlx");
    assert_ok(pp_convert_to_folder(dir, to, &(struct pp_convert_options){0}, &err), err);
    expect_formulas(d, to);
    assert_ok(pp_convert_to_folder(dir, mlx, &(struct pp_convert_options){.bits = 8}, &err), err);
    assert_ok(pp_model_open(mlx, &m, &err), err);
    pp_model_close(m);
    decoder_free(d);
}

static void folders(void **state)
{
    (void)state;
    for (int n_dense = 0; n_dense <= 64; n_dense += 64) {
        struct decoder_shape s = decoder_shape("gemma-embedding");
        s.n_dense = n_dense;
        struct decoder *d = decoder_make(&s);
        expect_folder(d, gemma_config);
        decoder_free(d);
    }
    struct decoder_shape s = decoder_shape("modern-bert");
    struct decoder *d = decoder_make(&s);
    expect_folder(d, modern_config);
    decoder_free(d);
}

static void neo_folder(void **state)
{
    const struct pp_convert_options opt = {0};
    struct decoder_shape s = decoder_shape("neo-bert");
    struct decoder *d = decoder_make(&s), *same = decoder_make(&s);
    const char *file = fresh_path("neo.gguf");
    struct pp_error err;
    (void)state;
    by_head(d, decoder_find(d, "blk.0.attn_qkv.weight"));
    by_head(d, decoder_find(d, "blk.1.attn_qkv.weight"));
    const char *dir = write_folder(d, neo_config, "linear.Identity");
    expect_formulas(same, dir);
    assert_ok(pp_convert_to_gguf(dir, file, &opt, &err), err);
    expect_formulas(same, file);
    decoder_free(d);
    decoder_free(same);
}

/* Dense modules with an activation function. */
static void bent_layers(void **state)
{
    struct decoder_shape s = decoder_shape("gemma-embedding");
    struct pp_model *m;
    struct pp_error err;
    (void)state;
    s.n_dense = 64;
    struct decoder *d = decoder_make(&s);
    assert_int_equal(pp_model_open(write_folder(d, gemma_config, "activation.Tanh"), &m, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "2_Dense"));
    decoder_free(d);
}

TEST_GROUP(both_ways)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files), cmocka_unit_test(bad_dense), cmocka_unit_test(folders), cmocka_unit_test(bent_layers),
        cmocka_unit_test(neo_folder), cmocka_unit_test(modules_go_along),
    };
    return cmocka_run_group_tests_name("both_ways", tests, NULL, NULL);
}
