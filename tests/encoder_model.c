#include "tests/encoder_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/gguf_file.h"
#include "tests/small_model.h"
#include "tests/support.h"

enum { MAX_TENSORS = 128, SEGMENTS = 2, EXPERTS = 5, USED = 2 };
static const double EPSILON = 1e-12, ROPE_BASE = 1000;

struct matrix {
    char name[48];
    int64_t rows, cols; /* rows 0: a vector */
    int64_t stack;      /* the number of matrices [rows, cols]; 0: a single one */
    uint32_t type;
    float *values;      /* rounded to `type`, as a reader of the file sees them */
};

struct encoder {
    struct encoder_shape s;
    struct matrix t[MAX_TENSORS];
    int n;
    uint32_t random;
};

struct encoder_shape encoder_shape(const char *arch, uint32_t type)
{
    return (struct encoder_shape){.arch = arch, .n_vocab = 200, .n_embd = 96, .n_layer = 2, .n_head = 6, .n_ff = 160,
                                  .n_ctx = 512, .type = type, .seed = 1, .pooling = -1};
}

/* --- weights ------------------------------------------------------------------------------------------------- */

static float next(struct encoder *e)
{
    e->random = e->random * 1664525u + 1013904223u;
    return (float)(e->random >> 8) / 8388608.0f - 1.0f;
}

/* Adds a tensor of uniform random values around a middle, rounded to the type. */
static void add(struct encoder *e, const char *name, int64_t rows, int64_t cols, uint32_t type, float middle,
                float spread)
{
    struct matrix *m = &e->t[e->n++];
    const int64_t n = (rows ? rows : 1) * cols;
    struct pp_error err;
    assert_true(e->n <= MAX_TENSORS);
    *m = (struct matrix){.rows = rows, .cols = cols, .type = type, .values = pp_malloc((size_t)n * sizeof(float))};
    snprintf(m->name, sizeof m->name, "%s", name);
    assert_non_null(m->values);
    for (int64_t i = 0; i < n; i++)
        m->values[i] = middle + spread * next(e);
    const size_t row = pp_type_row_bytes(type, cols);
    uint8_t *stored = pp_malloc(row * (size_t)(rows ? rows : 1));
    assert_non_null(stored);
    assert_ok(pp_quantize_rows(type, m->values, stored, rows ? rows : 1, cols, NULL, &err), err);
    for (int64_t r = 0; r < (rows ? rows : 1); r++)
        pp_dequantize_row(type, stored + (size_t)r * row, m->values + r * cols, cols);
    pp_free(stored);
}

static void add_matrix(struct encoder *e, int l, const char *kind, int64_t rows, int64_t cols, bool bias)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s.weight", l, kind);
    add(e, name, rows, cols, e->s.type, 0, sqrtf(3.0f / (float)cols));
    snprintf(name, sizeof name, "blk.%d.%s.bias", l, kind);
    if (bias)
        add(e, name, 0, rows, PP_TYPE_F32, 0, 0.5f);
}

static void add_norm(struct encoder *e, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    add(e, full, 0, e->s.n_embd, PP_TYPE_F32, 1, 0.5f);
    snprintf(full, sizeof full, "%s.bias", name);
    add(e, full, 0, e->s.n_embd, PP_TYPE_F32, 0, 0.3f);
}

static void add_block_norm(struct encoder *e, int l, const char *kind)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    add_norm(e, name);
}

/* Adds a stack of the experts' matrices. */
static void add_experts(struct encoder *e, int l, const char *kind, int64_t rows, int64_t cols)
{
    add_matrix(e, l, kind, EXPERTS * rows, cols, false);
    e->t[e->n - 1].rows = rows;
    e->t[e->n - 1].stack = EXPERTS;
}

static bool is(const struct encoder *e, const char *arch)
{
    return strcmp(e->s.arch, arch) == 0;
}

/* Whether q, k and v are one matrix. These families use RoPE. */
static bool has_fused(const struct encoder *e)
{
    return is(e, "nomic-bert") || is(e, "nomic-bert-moe") || is(e, "jina-bert-v3");
}

static bool has_experts(const struct encoder *e, int l)
{
    return is(e, "nomic-bert-moe") && l % 2 == 1;
}

struct encoder *encoder_make(const struct encoder_shape *s)
{
    struct encoder *e = pp_calloc(1, sizeof *e);
    const int n = s->n_embd;
    assert_non_null(e);
    e->s = *s;
    e->random = s->seed;
    const bool nomic = is(e, "nomic-bert"), jina = is(e, "jina-bert-v2"), fused = has_fused(e);
    add(e, "token_embd.weight", s->n_vocab, n, s->type, 0, 1);
    if (is(e, "bert"))
        add(e, "position_embd.weight", s->n_ctx, n, PP_TYPE_F32, 0, 1);
    add(e, "token_types.weight", SEGMENTS, n, PP_TYPE_F32, 0, 1);
    add_norm(e, "token_embd_norm");
    for (int l = 0; l < s->n_layer; l++) {
        if (fused) {
            add_matrix(e, l, "attn_qkv", 3 * n, n, !nomic);
        } else {
            add_matrix(e, l, "attn_q", n, n, true);
            add_matrix(e, l, "attn_k", n, n, true);
            add_matrix(e, l, "attn_v", n, n, true);
        }
        add_matrix(e, l, "attn_output", n, n, !nomic);
        add_block_norm(e, l, "attn_output_norm");
        if (has_experts(e, l)) {
            char name[48];
            snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", l);
            add(e, name, EXPERTS, n, PP_TYPE_F32, 0, 2 * sqrtf(3.0f / (float)n));
            add_experts(e, l, "ffn_up_exps", s->n_ff, n);
            add_experts(e, l, "ffn_down_exps", n, s->n_ff);
            snprintf(name, sizeof name, "blk.%d.ffn_down_exps.bias", l);
            add(e, name, 0, n, PP_TYPE_F32, 0, 0.5f);
            add_block_norm(e, l, "layer_output_norm");
            continue;
        }
        if (nomic || (jina && s->apart))
            add_matrix(e, l, "ffn_gate", s->n_ff, n, false);
        add_matrix(e, l, "ffn_up", jina && !s->apart ? 2 * s->n_ff : s->n_ff, n, !nomic && !jina);
        add_matrix(e, l, "ffn_down", n, s->n_ff, !nomic);
        add_block_norm(e, l, "layer_output_norm");
    }
    return e;
}

void encoder_free(struct encoder *e)
{
    for (int i = 0; i < e->n; i++)
        pp_free(e->t[i].values);
    pp_free(e);
}

static struct matrix *find(const struct encoder *e, const char *name)
{
    for (int i = 0; i < e->n; i++)
        if (strcmp(e->t[i].name, name) == 0)
            return (struct matrix *)&e->t[i];
    return NULL;
}

void encoder_spoil(struct encoder *e, const char *name, int64_t rows, int64_t cols)
{
    struct matrix *m = find(e, name);
    assert_non_null(m);
    if (cols == 0) {
        pp_free(m->values);
        *m = e->t[--e->n];
        return;
    }
    m->rows = rows;
    m->cols = cols;
    m->type = PP_TYPE_F32;
    pp_free(m->values);
    m->values = pp_calloc((size_t)((rows ? rows : 1) * cols), sizeof *m->values);
    assert_non_null(m->values);
}

/* --- files --------------------------------------------------------------------------------------------------- */

/* Writes a WordPiece vocabulary: [PAD] [UNK] [CLS] [SEP], letters as words and as continuations, a few words, and
 * unused tokens. */
static void write_words(struct pp_gguf_writer *w, int n)
{
    static char texts[512][24];
    struct pp_str list[512];
    int32_t types[512];
    assert_true(n <= 512);
    for (int i = 0; i < n; i++) {
        static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"};
        static const char *const words[] = {"hello", "there", "world", "table"};
        if (i < 4)
            snprintf(texts[i], sizeof texts[i], "%s", special[i]);
        else if (i < 30)
            snprintf(texts[i], sizeof texts[i], "\xe2\x96\x81%c", 'a' + i - 4);
        else if (i < 56)
            snprintf(texts[i], sizeof texts[i], "%c", 'a' + i - 30);
        else if (i < 60)
            snprintf(texts[i], sizeof texts[i], "\xe2\x96\x81%s", words[i - 56]);
        else
            snprintf(texts[i], sizeof texts[i], "[unused%d]", i);
        list[i] = (struct pp_str){texts[i], strlen(texts[i])};
        types[i] = i < 4 ? 3 : i < 60 ? 1 : 5;
    }
    pp_gguf_add_text(w, "tokenizer.ggml.model", "bert");
    pp_gguf_add_u32(w, "tokenizer.ggml.unknown_token_id", 1);
    pp_gguf_add_u32(w, "tokenizer.ggml.bos_token_id", 2); /* readers accept either key for [CLS] */
    pp_gguf_add_u32(w, "tokenizer.ggml.cls_token_id", 2);
    pp_gguf_add_u32(w, "tokenizer.ggml.seperator_token_id", 3);
    pp_gguf_add_str_array(w, "tokenizer.ggml.tokens", list, (size_t)n);
    pp_gguf_add_i32_array(w, "tokenizer.ggml.token_type", types, (size_t)n);
}

static void add_key(struct pp_gguf_writer *w, const struct encoder *e, const char *key, int v)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", e->s.arch, key);
    pp_gguf_add_u32(w, full, (uint32_t)v);
}

static void write_metadata(struct pp_gguf_writer *w, const struct encoder *e)
{
    char key[96];
    pp_gguf_add_text(w, "general.architecture", e->s.arch);
    add_key(w, e, "block_count", e->s.n_layer);
    add_key(w, e, "context_length", e->s.n_ctx);
    add_key(w, e, "embedding_length", e->s.n_embd);
    add_key(w, e, "feed_forward_length", e->s.n_ff);
    add_key(w, e, "attention.head_count", e->s.n_head);
    if (e->s.pooling >= 0)
        add_key(w, e, "pooling_type", e->s.pooling);
    snprintf(key, sizeof key, "%s.attention.layer_norm_epsilon", e->s.arch);
    pp_gguf_add_f32(w, key, (float)EPSILON);
    snprintf(key, sizeof key, "%s.attention.causal", e->s.arch);
    pp_gguf_add_bool(w, key, false);
    snprintf(key, sizeof key, "%s.rope.freq_base", e->s.arch);
    if (has_fused(e))
        pp_gguf_add_f32(w, key, (float)ROPE_BASE);
    if (is(e, "nomic-bert-moe")) {
        add_key(w, e, "expert_count", EXPERTS);
        add_key(w, e, "expert_used_count", USED);
        add_key(w, e, "moe_every_n_layers", 2);
    }
    pp_gguf_add_u32(w, "tokenizer.ggml.token_type_count", SEGMENTS);
    if (e->s.words)
        write_words(w, e->s.n_vocab);
    else
        pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
}

static int64_t n_rows(const struct matrix *m)
{
    return (m->rows ? m->rows : 1) * (m->stack ? m->stack : 1);
}

const char *encoder_write(const struct encoder *e)
{
    struct pp_tensor tensors[MAX_TENSORS];
    uint8_t *stored[MAX_TENSORS];
    struct pp_error err;
    const char *path = fresh_path("encoder.gguf");
    struct pp_gguf_writer *w = gguf_file_begin(path);
    write_metadata(w, e);
    for (int i = 0; i < e->n; i++) {
        const struct matrix *m = &e->t[i];
        struct pp_tensor *t = &tensors[i];
        *t = float_tensor(m->name, m->values, m->cols, m->rows, m->stack);
        t->type = m->type;
        t->size = pp_type_row_bytes(m->type, m->cols) * (size_t)n_rows(m);
        t->data = stored[i] = pp_malloc(t->size);
        assert_non_null(stored[i]);
        assert_ok(pp_quantize_rows(m->type, m->values, stored[i], n_rows(m), m->cols, NULL, &err), err);
    }
    gguf_file_end(w, tensors, (size_t)e->n);
    for (int i = 0; i < e->n; i++)
        pp_free(stored[i]);
    return path;
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[600];
    struct pp_error err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
}

/* BertModel's name of a tensor such as "blk.0.attn_q.weight". Norms of the first layer get the gamma and beta of old
 * exporters. */
static void hf_name(const char *gguf, bool roberta, char *out, size_t size)
{
    static const struct {
        const char *gguf, *hf;
    } names[] = {
        {"token_embd.", "embeddings.word_embeddings."},
        {"position_embd.", "embeddings.position_embeddings."},
        {"token_types.", "embeddings.token_type_embeddings."},
        {"token_embd_norm.", "embeddings.LayerNorm."},
        {"attn_q.", "attention.self.query."},
        {"attn_k.", "attention.self.key."},
        {"attn_v.", "attention.self.value."},
        {"attn_output.", "attention.output.dense."},
        {"attn_output_norm.", "attention.output.LayerNorm."},
        {"ffn_up.", "intermediate.dense."},
        {"ffn_down.", "output.dense."},
        {"layer_output_norm.", "output.LayerNorm."},
    };
    int layer, at = 0;
    const char *kind = sscanf(gguf, "blk.%d.%n", &layer, &at) == 1 && at ? gguf + at : gguf;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i].gguf);
        if (strncmp(kind, names[i].gguf, n) != 0)
            continue;
        const char *end = kind + n, *prefix = roberta ? "roberta." : "";
        if (at && layer == 0 && strstr(names[i].hf, "LayerNorm"))
            end = strcmp(end, "weight") == 0 ? "gamma" : "beta";
        if (at)
            snprintf(out, size, "%sencoder.layer.%d.%s%s", prefix, layer, names[i].hf, end);
        else
            snprintf(out, size, "%s%s%s", prefix, names[i].hf, end);
        return;
    }
    fail_msg("BERT has no tensor %s", gguf);
}

/* Nomic's name of a tensor, or Jina's, where matrices with adapters for tasks have another suffix. */
static void flat_name(const struct encoder *e, const char *gguf, char *out, size_t size)
{
    static const struct {
        const char *gguf, *nomic, *jina;
        bool adapted;
    } names[] = {
        {"token_embd.weight", "embeddings.word_embeddings.weight", "embeddings.word_embeddings", true},
        {"token_types.weight", "embeddings.token_type_embeddings.weight", "embeddings.token_type_embeddings", true},
        {"token_embd_norm.", "emb_ln.", "emb_ln.", false},
        {"attn_qkv.weight", "attn.Wqkv.weight", "mixer.Wqkv", true},
        {"attn_qkv.bias", "attn.Wqkv.bias", "mixer.Wqkv.bias", false},
        {"attn_output.weight", "attn.out_proj.weight", "mixer.out_proj", true},
        {"attn_output.bias", "attn.out_proj.bias", "mixer.out_proj.bias", false},
        {"attn_output_norm.", "norm1.", "norm1.", false},
        {"ffn_up.weight", "mlp.fc1.weight", "mlp.fc1", true},
        {"ffn_up.bias", "mlp.fc1.bias", "mlp.fc1.bias", false},
        {"ffn_down.weight", "mlp.fc2.weight", "mlp.fc2", true},
        {"ffn_down.bias", "mlp.fc2.bias", "mlp.fc2.bias", false},
        {"ffn_gate_inp.weight", "mlp.router.layer.weight", NULL, false},
        {"ffn_up_exps.weight", "mlp.experts.mlp.w1", NULL, false},
        {"ffn_down_exps.weight", "mlp.experts.mlp.w2", NULL, false},
        {"ffn_down_exps.bias", "mlp.experts.bias", NULL, false},
        {"layer_output_norm.", "norm2.", "norm2.", false},
    };
    const bool jina = is(e, "jina-bert-v3");
    int layer, at = 0;
    const char *kind = sscanf(gguf, "blk.%d.%n", &layer, &at) == 1 && at ? gguf + at : gguf;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i].gguf);
        char own[64] = "";
        if (strncmp(kind, names[i].gguf, n) != 0)
            continue;
        if (at)
            snprintf(own, sizeof own, "encoder.layers.%d.", layer);
        snprintf(out, size, "%s%s%s%s%s", jina ? "roberta." : "", own, jina ? names[i].jina : names[i].nomic,
                 kind + n, jina && names[i].adapted ? ".parametrizations.weight.original" : "");
        return;
    }
    fail_msg("there is no tensor %s", gguf);
}

/* Transposes each matrix of a stack: [EXPERTS, n_out, n_in] becomes [EXPERTS * n_in, n_out]. */
static float *turned(const struct matrix *m)
{
    float *t = pp_malloc((size_t)(n_rows(m) * m->cols) * sizeof *t);
    assert_non_null(t);
    for (int64_t e = 0; e < m->stack; e++)
        for (int64_t o = 0; o < m->rows; o++)
            for (int64_t i = 0; i < m->cols; i++)
                t[(e * m->cols + i) * m->rows + o] = m->values[(e * m->rows + o) * m->cols + i];
    return t;
}

static const char *flat_folder(const struct encoder *e)
{
    static char names[MAX_TENSORS + 1][112];
    struct pp_tensor list[MAX_TENSORS + 1];
    float *made[MAX_TENSORS] = {0};
    const float unused[4] = {1, 2, 3, 4};
    const char *dir = fresh_path("flat");
    struct pp_error err;
    char path[512], text[1024];
    const bool jina = is(e, "jina-bert-v3");
    int n = 0;
    assert_int_equal(mkdir(dir, 0700), 0);
    for (; n < e->n; n++) {
        const struct matrix *m = &e->t[n];
        list[n] = (struct pp_tensor){.name = names[n], .type = PP_TYPE_F32, .n_dims = m->rows ? 2 : 1,
                                     .ne = {m->cols, n_rows(m), 1, 1}, .data = m->values};
        list[n].size = (size_t)(m->cols * n_rows(m)) * sizeof(float);
        flat_name(e, m->name, names[n], sizeof names[n]);
        if (!strstr(m->name, "ffn_down_exps.weight"))
            continue;
        list[n].data = made[n] = turned(m);
        list[n].ne[0] = m->rows;
        list[n].ne[1] = m->stack * m->cols;
    }
    snprintf(names[n], sizeof names[n], "roberta.encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_A");
    list[n] = (struct pp_tensor){.name = names[n], .type = PP_TYPE_F32, .n_dims = 2, .ne = {2, 2, 1, 1},
                                 .data = unused, .size = sizeof unused};
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, (size_t)(n + jina), &err), err);
    if (jina)
        snprintf(text, sizeof text,
                 "{\"architectures\": [\"XLMRobertaModel\"], \"model_type\": \"xlm-roberta\", \"vocab_size\": %d, "
                 "\"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
                 "\"intermediate_size\": %d, \"max_position_embeddings\": %d, \"layer_norm_eps\": %g, "
                 "\"type_vocab_size\": %d, \"hidden_act\": \"gelu\", \"pad_token_id\": 1, "
                 "\"position_embedding_type\": \"rotary\", \"rotary_emb_base\": %g}",
                 e->s.n_vocab, e->s.n_embd, e->s.n_layer, e->s.n_head, e->s.n_ff, e->s.n_ctx + 2, EPSILON, SEGMENTS,
                 ROPE_BASE);
    else
        snprintf(text, sizeof text,
                 "{\"architectures\": [\"NomicBertModel\"], \"model_type\": \"nomic_bert\", \"vocab_size\": %d, "
                 "\"n_embd\": %d, \"n_layer\": %d, \"n_head\": %d, \"n_inner\": %d, \"n_positions\": 2048, "
                 "\"layer_norm_epsilon\": %g, \"type_vocab_size\": %d, \"activation_function\": \"gelu\", "
                 "\"moe_every_n_layers\": 2, \"num_experts\": %d, \"moe_top_k\": %d, \"prenorm\": false, "
                 "\"moe_normalize_expert_weights\": false, \"rotary_emb_base\": %g}",
                 e->s.n_vocab, e->s.n_embd, e->s.n_layer, e->s.n_head, e->s.n_ff, EPSILON, SEGMENTS, EXPERTS, USED,
                 ROPE_BASE);
    write_text(dir, "config.json", text);
    for (int i = 0; i < e->n; i++)
        pp_free(made[i]);
    return dir;
}

static void write_config(const struct encoder *e, const char *dir)
{
    char text[1024];
    const bool roberta = e->s.n_reserved;
    snprintf(text, sizeof text,
             "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"vocab_size\": %d, \"hidden_size\": %d, "
             "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"intermediate_size\": %d, "
             "\"max_position_embeddings\": %d, \"layer_norm_eps\": %g, \"type_vocab_size\": %d, "
             "\"hidden_act\": \"gelu\", \"pad_token_id\": %d}",
             roberta ? "XLMRobertaModel" : "BertModel", roberta ? "xlm-roberta" : "bert", e->s.n_vocab, e->s.n_embd,
             e->s.n_layer, e->s.n_head, e->s.n_ff, e->s.n_ctx + e->s.n_reserved, EPSILON, SEGMENTS,
             roberta ? e->s.n_reserved - 1 : 0);
    write_text(dir, "config.json", text);
}

static void write_modules(const char *dir)
{
    char pooling[512];
    snprintf(pooling, sizeof pooling, "%s/1_Pooling", dir);
    assert_int_equal(mkdir(pooling, 0700), 0);
    write_text(pooling, "config.json", "{\"word_embedding_dimension\": 96, \"pooling_mode_cls_token\": true, "
                                       "\"pooling_mode_mean_tokens\": false}");
    write_text(dir, "modules.json",
               "[{\"idx\": 0, \"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"}, "
               "{\"idx\": 1, \"path\": \"1_Pooling\", \"type\": \"sentence_transformers.models.Pooling\"}, "
               "{\"idx\": 2, \"path\": \"2_Normalize\", \"type\": \"sentence_transformers.models.Normalize\"}]");
}

static const char tokenizer_json[] =
    "{\"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": true, "
    "\"strip_accents\": null, \"lowercase\": true}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, "
    "\"added_tokens\": [{\"id\": 0, \"content\": \"[PAD]\", \"special\": true}, "
    "{\"id\": 2, \"content\": \"[CLS]\", \"special\": true}, {\"id\": 3, \"content\": \"[SEP]\", \"special\": true}], "
    "\"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"[SEP]\", 3], \"cls\": [\"[CLS]\", 2]}, "
    "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"vocab\": {\"[PAD]\": 0, \"[UNK]\": 1, "
    "\"[CLS]\": 2, \"[SEP]\": 3, \"hello\": 4, \"##s\": 5, \"world\": 6}}}";

const char *encoder_write_folder(const struct encoder *e, bool modules)
{
    static char names[MAX_TENSORS + 1][112];
    struct pp_tensor list[MAX_TENSORS + 1];
    const float unused[4] = {0};
    struct pp_error err;
    const char *dir;
    char path[512];
    float *table = NULL;
    int n = 0;
    if (has_fused(e))
        return flat_folder(e);
    dir = fresh_path("encoder");
    assert_int_equal(mkdir(dir, 0700), 0);
    for (; n < e->n; n++) {
        const struct matrix *m = &e->t[n];
        list[n] = (struct pp_tensor){.name = names[n], .type = PP_TYPE_F32, .n_dims = m->rows ? 2 : 1,
                                     .ne = {m->cols, m->rows ? m->rows : 1, 1, 1}, .data = m->values};
        hf_name(m->name, e->s.n_reserved, names[n], sizeof names[n]);
        if (e->s.n_reserved && strcmp(m->name, "position_embd.weight") == 0) { /* the reserved rows before position 0 */
            table = pp_calloc((size_t)((m->rows + e->s.n_reserved) * m->cols), sizeof *table);
            assert_non_null(table);
            memcpy(table + e->s.n_reserved * m->cols, m->values, (size_t)(m->rows * m->cols) * sizeof *table);
            list[n].data = table;
            list[n].ne[1] += e->s.n_reserved;
        }
        list[n].size = (size_t)(list[n].ne[0] * list[n].ne[1]) * sizeof(float);
    }
    snprintf(names[n], sizeof names[n], "pooler.dense.weight"); /* for a task that the engine does not use */
    list[n] = (struct pp_tensor){.name = names[n], .type = PP_TYPE_F32, .n_dims = 2, .ne = {2, 2, 1, 1},
                                 .data = unused, .size = sizeof unused};
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, list, (size_t)n + 1, &err), err);
    pp_free(table);
    write_config(e, dir);
    if (e->s.words)
        write_text(dir, "tokenizer.json", tokenizer_json);
    if (modules)
        write_modules(dir);
    return dir;
}

/* --- what the model gives --------------------------------------------------------------------------------------- */

static const float *values(const struct encoder *e, int l, const char *kind, const char *end)
{
    const int i = small_find(e->t[0].name, sizeof e->t[0], e->n, l, kind, end);
    return i < 0 ? NULL : e->t[i].values;
}

/* y = W x + b for n rows. */
static void linear(const struct encoder *e, int l, const char *kind, const double *x, int n, int n_in, int n_out,
                   double *y)
{
    const float *w = values(e, l, kind, ".weight"), *b = values(e, l, kind, ".bias");
    assert_non_null(w);
    for (int r = 0; r < n; r++)
        for (int o = 0; o < n_out; o++)
            y[(int64_t)r * n_out + o] =
                (b ? (double)b[o] : 0) + small_dot(w + (int64_t)o * n_in, x + (int64_t)r * n_in, n_in);
}

static void norm(const struct encoder *e, int l, const char *kind, double *x, int n)
{
    const int width = e->s.n_embd;
    const float *w = values(e, l, kind, ".weight"), *b = values(e, l, kind, ".bias");
    for (int r = 0; r < n; r++, x += width) {
        double mean = 0, square = 0;
        for (int i = 0; i < width; i++)
            mean += x[i] / width;
        for (int i = 0; i < width; i++)
            square += (x[i] - mean) * (x[i] - mean) / width;
        for (int i = 0; i < width; i++)
            x[i] = (x[i] - mean) / sqrt(square + EPSILON) * (double)w[i] + (double)b[i];
    }
}

/* RoPE (arXiv 2104.09864): pair (i, i + half) of a head is rotated by position / base^(2 i / head_dim). */
static void rotate(double *head, int dim, int position)
{
    for (int i = 0; i < dim / 2; i++) {
        const double angle = position * pow(ROPE_BASE, -2.0 * i / dim), a = head[i], b = head[i + dim / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + dim / 2] = b * cos(angle) + a * sin(angle);
    }
}

/* ALiBi's slope of a head as in arXiv 2108.12409 and its authors' code: the last power is 2^-8. */
static double slope(int head, int n_head)
{
    int whole = 1;
    while (2 * whole <= n_head)
        whole *= 2;
    if (head < whole)
        return pow(2.0, -8.0 / whole * (head + 1));
    return pow(2.0, -4.0 / whole * (2 * (head - whole) + 1));
}

/* Attention of one query, of row `at`, to all n keys: it is bidirectional. */
static void attend(const struct encoder *e, int head, int at, const double *q, const double *k, const double *v, int n,
                   int stride, double *out)
{
    const int dim = e->s.n_embd / e->s.n_head;
    double *p = doubles(n), top = -INFINITY, sum = 0;
    for (int j = 0; j < n; j++) {
        p[j] = double_dot(q, k + (int64_t)j * stride, dim) / sqrt(dim);
        if (is(e, "jina-bert-v2"))
            p[j] -= slope(head, e->s.n_head) * abs(at - j);
        top = p[j] > top ? p[j] : top;
    }
    for (int j = 0; j < n; j++)
        sum += p[j] = exp(p[j] - top);
    for (int j = 0; j < n; j++) {
        p[j] /= sum;
        for (int d = 0; d < dim; d++)
            out[d] += p[j] * v[(int64_t)j * stride + d];
    }
    pp_free(p);
}

/* x = norm(x + attention(x)) */
static void attention(const struct encoder *e, int l, double *x, int n)
{
    const int width = e->s.n_embd, dim = width / e->s.n_head, stride = 3 * width;
    double *qkv = doubles((int64_t)n * stride), *all = doubles((int64_t)n * width), *one = doubles((int64_t)n * width);
    if (has_fused(e)) {
        linear(e, l, "attn_qkv", x, n, width, stride, qkv);
    } else {
        static const char *const kinds[] = {"attn_q", "attn_k", "attn_v"};
        for (int i = 0; i < 3; i++) {
            linear(e, l, kinds[i], x, n, width, width, one);
            for (int r = 0; r < n; r++)
                memcpy(qkv + (int64_t)r * stride + i * width, one + (int64_t)r * width, (size_t)width * sizeof *one);
        }
    }
    for (int r = 0; r < n && has_fused(e); r++)
        for (int h = 0; h < 2 * e->s.n_head; h++)
            rotate(qkv + (int64_t)r * stride + h * dim, dim, r);
    for (int r = 0; r < n; r++)
        for (int h = 0; h < e->s.n_head; h++)
            attend(e, h, r, qkv + (int64_t)r * stride + h * dim, qkv + width + h * dim, qkv + 2 * width + h * dim, n,
                   stride, all + (int64_t)r * width + h * dim);
    linear(e, l, "attn_output", all, n, width, width, one);
    for (int64_t i = 0; i < (int64_t)n * width; i++)
        x[i] += one[i];
    norm(e, l, "attn_output_norm", x, n);
    pp_free(qkv);
    pp_free(all);
    pp_free(one);
}

static double gelu(double x)
{
    return x * (1 + erf(x / sqrt(2.0))) / 2;
}

/* x = norm(x + experts(x) + bias). The USED best experts are weighted by their shares of the softmax over all. */
static void mixture(const struct encoder *e, int l, double *x, int n)
{
    const int width = e->s.n_embd, n_ff = e->s.n_ff;
    const float *up = values(e, l, "ffn_up_exps", ".weight"), *down = values(e, l, "ffn_down_exps", ".weight");
    const float *bias = values(e, l, "ffn_down_exps", ".bias");
    double *hidden = doubles(n_ff), *out = doubles(width);
    for (int r = 0; r < n; r++, x += width) {
        double p[EXPERTS], sum = 0;
        linear(e, l, "ffn_gate_inp", x, 1, width, EXPERTS, p);
        for (int k = 0; k < EXPERTS; k++)
            sum += p[k] = exp(p[k]);
        for (int i = 0; i < width; i++)
            out[i] = (double)bias[i];
        for (int k = 0; k < EXPERTS; k++) {
            int before = 0;
            for (int j = 0; j < EXPERTS; j++)
                before += p[j] > p[k] || (p[j] == p[k] && j < k);
            for (int o = 0; before < USED && o < n_ff; o++)
                hidden[o] = gelu(small_dot(up + (int64_t)(k * n_ff + o) * width, x, width)) * p[k] / sum;
            for (int i = 0; before < USED && i < width; i++)
                out[i] += small_dot(down + (int64_t)(k * width + i) * n_ff, hidden, n_ff);
        }
        for (int i = 0; i < width; i++)
            x[i] += out[i];
        norm(e, l, "layer_output_norm", x, 1);
    }
    pp_free(hidden);
    pp_free(out);
}

/* x = norm(x + feed_forward(x)) */
static void feed_forward(const struct encoder *e, int l, double *x, int n)
{
    const int width = e->s.n_embd, n_ff = e->s.n_ff;
    const bool fused = is(e, "jina-bert-v2") && !e->s.apart, nomic = is(e, "nomic-bert");
    double *gate = doubles((int64_t)n * n_ff), *up = doubles((int64_t)n * 2 * n_ff), *out = doubles((int64_t)n * width);
    linear(e, l, "ffn_up", x, n, width, fused ? 2 * n_ff : n_ff, up);
    if (values(e, l, "ffn_gate", ".weight"))
        linear(e, l, "ffn_gate", x, n, width, n_ff, gate);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < n_ff; i++) {
            const double *row = up + (int64_t)r * (fused ? 2 * n_ff : n_ff);
            double *act = gate + (int64_t)r * n_ff + i;
            if (fused)
                *act = gelu(row[i]) * row[n_ff + i];
            else if (!values(e, l, "ffn_gate", ".weight"))
                *act = gelu(row[i]);
            else
                *act = (nomic ? *act / (1 + exp(-*act)) : gelu(*act)) * row[i];
        }
    linear(e, l, "ffn_down", gate, n, n_ff, width, out);
    for (int64_t i = 0; i < (int64_t)n * width; i++)
        x[i] += out[i];
    norm(e, l, "layer_output_norm", x, n);
    pp_free(gate);
    pp_free(up);
    pp_free(out);
}

void encoder_compute(const struct encoder *e, const int32_t *ids, int n, double *hidden)
{
    const int width = e->s.n_embd;
    const float *tokens = values(e, -1, "token_embd", ".weight"), *types = values(e, -1, "token_types", ".weight");
    const float *positions = values(e, -1, "position_embd", ".weight");
    for (int r = 0; r < n; r++)
        for (int i = 0; i < width; i++)
            hidden[(int64_t)r * width + i] = (double)tokens[(int64_t)ids[r] * width + i] +
                                             (types ? (double)types[i] : 0) +
                                             (positions ? (double)positions[(int64_t)r * width + i] : 0);
    norm(e, -1, "token_embd_norm", hidden, n);
    for (int l = 0; l < e->s.n_layer; l++) {
        attention(e, l, hidden, n);
        (has_experts(e, l) ? mixture : feed_forward)(e, l, hidden, n);
    }
}
