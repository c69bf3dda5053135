/* test_families.c - what holds for all model families: a row's bits do not depend on how it was computed, layers with a
 * window keep no more than that, the files that our converter writes use the names and keys that other programs read,
 * and files that lie are refused by name. What the models compute is in test_golden.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/cpu/isa.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/model.h"
#include "engine/rope.h"
#include "engine/safetensors.h"
#include "engine/text.h"
#include "engine/train.h"
#include "engine/types.h"
#include "tests/decoder_checks.h"
#include "tests/passes.h"
#include "tests/small_model.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

static const char *const folders[] = {
    "cohere2",     "gemma",        "gemma2",     "gemma3",      "gpt2",    "gptneox", "gptoss",   "granite", "llama",
    "llama3-rope", "llama-linear", "llama-yarn", "mistral-swa", "mixtral", "olmo2",   "phi2",     "phi3",    "qwen2",
    "qwen3",       "qwen3moe",     "smollm3",    "stablelm",    "starcoder2",
};
enum { N_FOLDERS = sizeof folders / sizeof *folders };

static const char *folder_of(const char *name)
{
    static char path[512];
    const char *all = testdata("architectures");
    if (!all)
        skip();
    snprintf(path, sizeof path, "%s/%s", all ? all : "", name);
    return path;
}

/* --- the same bits ----------------------------------------------------------------------------------------------- */

enum { LENGTH = 70, MANNERS = 5 };

struct manner {
    enum pp_isa isa;
    int n_threads, rows;
};

/* Logits of all positions, [LENGTH, n_vocab]; pp_free. */
static float *compute(const struct pp_model *m, enum pp_kv_type kv, const struct manner *how)
{
    const struct pp_engine_options opt = {.kv_type = kv, .n_threads = how->n_threads, .kv_memory = 64u << 20,
                                          .kernels = pp_isa_name(how->isa), .activations = PP_ACT_PAIR};
    const size_t n_vocab = (size_t)pp_model_info(m)->n_vocab;
    float *logits = pp_malloc(LENGTH * n_vocab * sizeof *logits);
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_error err;
    int32_t ids[LENGTH];
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    for (int i = 0; i < LENGTH; i++)
        ids[i] = i * 37 % (int)n_vocab;
    run_in_passes(e, s, ids, LENGTH, how->rows, logits);
    pp_seq_free(s);
    pp_engine_free(e);
    return logits;
}

/* However rows are cut, on however many threads, by the best kernels and by the plain ones. */
static void check_bits(const char *path, enum pp_kv_type kv)
{
    const struct manner manners[MANNERS] = {
        {pp_isa_best(), 1, LENGTH}, {pp_isa_best(), 2, 1}, {pp_isa_best(), 3, 3}, {pp_isa_best(), 2, 33},
        {PP_ISA_SCALAR, 2, 17},
    };
    struct pp_model *m;
    struct pp_error err;
    assert_ok(pp_model_open(path, &m, &err), err);
    const size_t n_vocab = (size_t)pp_model_info(m)->n_vocab;
    float *first = compute(m, kv, &manners[0]);
    assert_true(isfinite(first[LENGTH * n_vocab - 1]));
    assert_memory_not_equal(first, first + n_vocab, n_vocab * sizeof *first);
    for (int i = 1; i < MANNERS; i++) {
        float *other = compute(m, kv, &manners[i]);
        for (size_t r = 0; r < LENGTH; r++)
            if (memcmp(first + r * n_vocab, other + r * n_vocab, n_vocab * sizeof *first) != 0)
                fail_msg("%s, KV %s: row %zu has other bits with %d rows at a time on %d threads (%s)", path,
                         pp_kv_type_name(kv), r, manners[i].rows, manners[i].n_threads, pp_isa_name(manners[i].isa));
        pp_free(other);
    }
    pp_free(first);
    pp_model_close(m);
}

static void same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FOLDERS; i++)
        check_bits(folder_of(folders[i]), i % 2 ? PP_KV_F32 : PP_KV_Q8);
    check_bits(folder_of("gemma2"), PP_KV_F16); /* what bounds scores, and what sees sinks, in more types */
    check_bits(folder_of("gptoss"), PP_KV_FP8);
}

/* Experts of every kind of weights, with an expert for hardly any row, and with one that has most. */
static void experts_same_bits(void **state)
{
    static const uint32_t types[] = {PP_TYPE_F32, PP_TYPE_F16, PP_TYPE_BF16, PP_TYPE_Q8_0,
                                     PP_TYPE_Q4_0, PP_TYPE_Q4_K, PP_TYPE_Q6_K};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct tiny_shape shape = tiny_shape(types[i]);
        shape.n_expert = i % 2 ? 3 : 40;
        shape.n_ff = 256;
        check_bits(tiny_model(&shape), i % 2 ? PP_KV_F32 : PP_KV_Q8);
    }
}

/* --- windows ----------------------------------------------------------------------------------------------------- */

/* Layers with a window and others have pages of their own, and those with one hold no more than it and a step take. */
static void windows_are_let_go(void **state)
{
    static const struct {
        const char *folder;
        int n_tiers;
    } cases[] = {{"gemma2", 2}, {"gemma3", 2}, {"cohere2", 2}, {"gptoss", 2}, {"mistral-swa", 1}, {"smollm3", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 1, .kv_memory = 64u << 20,
                                              .n_ctx = 256, .max_rows = 16};
        struct pp_model *m;
        struct pp_engine *e;
        struct pp_seq *s;
        struct pp_error err;
        assert_ok(pp_model_open(folder_of(cases[i].folder), &m, &err), err);
        assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
        assert_ok(pp_seq_new(e, &s, &err), err);
        for (int at = 0; at < 256; at += 16) {
            struct pp_row rows[16];
            for (int r = 0; r < 16; r++)
                rows[r] = (struct pp_row){.seq = s, .token = at + r, .parent = PP_PARENT_PREVIOUS};
            assert_ok(pp_step(e, rows, 16, NULL, &err), err);
        }
        const struct pp_stats *stats = pp_engine_stats(e);
        assert_int_equal(stats->n_tiers, cases[i].n_tiers);
        for (int t = 0; t < stats->n_tiers; t++) /* a window of 8 is in two pages at most; 256 positions are in four */
            assert_true(stats->tiers[t].window ? stats->tiers[t].pages_used <= 2 : stats->tiers[t].pages_used == 4);
        pp_seq_free(s);
        pp_engine_free(e);
        pp_model_close(m);
    }
}

/* --- names and keys that other programs know --------------------------------------------------------------------- */

/* What llama.cpp reads of each family (gguf-py/gguf/constants.py and src/llama-arch.cpp): the tensors, and the keys
 * that it cannot do without. "N": the layer. */
#define COMMON "token_embd output_norm output blk.N.attn_norm blk.N.attn_q blk.N.attn_k blk.N.attn_v blk.N.attn_output "
#define GATED  "blk.N.ffn_norm blk.N.ffn_gate blk.N.ffn_up blk.N.ffn_down "
#define FUSED                                                                                                          \
    "token_embd output_norm output blk.N.attn_norm blk.N.attn_qkv blk.N.attn_output blk.N.ffn_norm blk.N.ffn_up "      \
    "blk.N.ffn_down "
#define QK     "blk.N.attn_q_norm blk.N.attn_k_norm "
#define POST   "blk.N.post_attention_norm blk.N.post_ffw_norm "
#define MOE    "blk.N.ffn_gate_inp blk.N.ffn_gate_exps blk.N.ffn_up_exps blk.N.ffn_down_exps "
#define RMS    "attention.layer_norm_rms_epsilon "
#define LAYER  "attention.layer_norm_epsilon "
static const struct {
    const char *arch, *tensors, *required;
} known[] = {
    {"llama", COMMON GATED MOE "rope_freqs ", RMS},
    {"qwen2", COMMON GATED, RMS},
    {"qwen3", COMMON GATED QK, RMS},
    {"qwen3moe", COMMON "blk.N.ffn_norm " QK MOE, RMS},
    {"gemma", COMMON GATED, RMS},
    {"gemma2", COMMON GATED POST, RMS},
    {"gemma3", COMMON GATED POST QK, RMS "attention.sliding_window "},
    {"phi2", COMMON "blk.N.ffn_up blk.N.ffn_down ", LAYER},
    {"phi3", FUSED "rope_factors_long rope_factors_short ", RMS "attention.sliding_window "},
    {"gpt-oss", COMMON "blk.N.post_attention_norm blk.N.attn_sinks " MOE,
     RMS "expert_feed_forward_length attention.sliding_window "},
    {"smollm3", COMMON GATED, RMS},
    {"granite", COMMON GATED, RMS "logit_scale residual_scale embedding_scale attention.scale "},
    {"olmo2", "token_embd output_norm output blk.N.attn_q blk.N.attn_k blk.N.attn_v blk.N.attn_output blk.N.ffn_gate "
              "blk.N.ffn_up blk.N.ffn_down " QK POST, RMS},
    {"cohere2", COMMON "blk.N.ffn_gate blk.N.ffn_up blk.N.ffn_down ", LAYER "logit_scale attention.sliding_window "},
    {"stablelm", COMMON GATED, LAYER},
    {"starcoder2", COMMON "blk.N.ffn_norm blk.N.ffn_up blk.N.ffn_down ", LAYER},
    {"gptneox", FUSED, LAYER "use_parallel_residual "},
    {"gpt2", FUSED "position_embd ", LAYER},
};
static const char always[] = "context_length embedding_length block_count feed_forward_length attention.head_count ";
static const char all_keys[] =
    "vocab_size context_length embedding_length block_count feed_forward_length expert_feed_forward_length "
    "use_parallel_residual expert_count expert_used_count expert_weights_norm logit_scale attn_logit_softcapping "
    "final_logit_softcapping residual_scale embedding_scale attention.head_count attention.head_count_kv "
    "attention.key_length attention.value_length attention.layer_norm_epsilon attention.layer_norm_rms_epsilon "
    "attention.sliding_window attention.scale attention.sliding_window_pattern rope.dimension_count rope.freq_base "
    "rope.freq_base_swa rope.scaling.type rope.scaling.factor rope.scaling.attn_factor "
    "rope.scaling.original_context_length rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow ";

/* Whether a list of words, each with a space behind it, has this one. */
static bool has_word(const char *list, const char *word, size_t n)
{
    for (const char *at = list, *end; (end = strchr(at, ' ')); at = end + 1)
        if ((size_t)(end - at) == n && memcmp(at, word, n) == 0)
            return true;
    return false;
}

/* "blk.3.ffn_up.weight" is "blk.N.ffn_up". */
static void kind_of(const char *name, char kind[64])
{
    const char *layer = strncmp(name, "blk.", 4) == 0 ? name + 4 : NULL;
    const char *rest = layer ? layer + strspn(layer, "0123456789") : name, *end = strrchr(name, '.');
    assert_true(strcmp(end, ".weight") == 0 || strcmp(end, ".bias") == 0);
    snprintf(kind, 64, "%s%.*s", layer ? "blk.N" : "", (int)(end - rest), rest);
}

static void check_file(const char *path)
{
    struct pp_gguf *g;
    struct pp_error err;
    struct pp_str arch;
    char name[64], kind[64];
    size_t k = 0;
    assert_ok(pp_gguf_open(path, &g, &err), err);
    assert_true(pp_gguf_string(g, "general.architecture", &arch));
    snprintf(name, sizeof name, "%.*s", (int)arch.len, arch.data);
    while (k < sizeof known / sizeof *known && strcmp(known[k].arch, name) != 0)
        k++;
    assert_true(k < sizeof known / sizeof *known);
    for (size_t i = 0; i < pp_gguf_n_tensors(g); i++) {
        kind_of(pp_gguf_tensor_at(g, i)->name, kind);
        if (!has_word(known[k].tensors, kind, strlen(kind)))
            fail_msg("%s: nobody else knows %s", path, pp_gguf_tensor_at(g, i)->name);
    }
    for (size_t i = 0; i < pp_gguf_n_kv(g); i++) {
        const struct pp_str key = pp_gguf_kv_key(g, i);
        const size_t n = strlen(name) + 1;
        const bool others = strncmp(key.data, "general.", 8) == 0 || strncmp(key.data, "tokenizer.", 10) == 0 ||
                            strncmp(key.data, "pippin.", 7) == 0;
        if (!others && (key.len <= n || strncmp(key.data, name, n - 1) != 0 ||
                        !has_word(all_keys, key.data + n, key.len - n)))
            fail_msg("%s: nobody else knows %.*s", path, (int)key.len, key.data);
    }
    const char *const lists[] = {always, known[k].required};
    for (int l = 0; l < 2; l++)
        for (const char *at = lists[l], *end; (end = strchr(at, ' ')); at = end + 1) {
            char key[160];
            snprintf(key, sizeof key, "%s.%.*s", name, (int)(end - at), at);
            if (!pp_gguf_has(g, key))
                fail_msg("%s lacks %s", path, key);
        }
    pp_gguf_close(g);
}

/* Of all families; and what our converter makes is the same as what another one made, where there is such a file. */
static void known_names(void **state)
{
    struct pp_convert_options opt = {0};
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < N_FOLDERS; i++) {
        char path[256];
        struct pp_gguf *ours, *theirs;
        snprintf(path, sizeof path, "%s/known-%s.gguf", test_tmpdir(), folders[i]);
        assert_ok(pp_convert_to_gguf(folder_of(folders[i]), path, &opt, &err), err);
        check_file(path);
        if (!pp_file_exists(folder_of(folders[i]), "model.gguf"))
            continue;
        char their_path[600];
        snprintf(their_path, sizeof their_path, "%s/model.gguf", folder_of(folders[i]));
        assert_ok(pp_gguf_open(path, &ours, &err), err);
        assert_ok(pp_gguf_open(their_path, &theirs, &err), err);
        assert_int_equal(pp_gguf_n_tensors(ours), pp_gguf_n_tensors(theirs));
        for (size_t t = 0; t < pp_gguf_n_tensors(theirs); t++) {
            const struct pp_tensor *a = pp_gguf_tensor_at(theirs, t), *b = pp_gguf_tensor(ours, a->name);
            if (!b || a->n_dims != b->n_dims || memcmp(a->ne, b->ne, sizeof a->ne) != 0)
                fail_msg("%s: %s is not as in %s", path, a->name, their_path);
        }
        pp_gguf_close(ours);
        pp_gguf_close(theirs);
    }
}

/* --- memory ------------------------------------------------------------------------------------------------------ */

/* Behind the first token nothing is allocated any more, whatever the family. */
static void decode_allocates_nothing(void **state)
{
    static const char *const names[] = {"mixtral", "gptoss", "gemma3", "cohere2", "gpt2", "phi3"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct pp_engine_options opt = {.kv_type = PP_KV_Q8, .n_threads = 2, .kv_memory = 64u << 20};
        struct pp_model *m;
        struct pp_engine *e;
        struct pp_seq *s;
        struct pp_error err;
        uint64_t before = 0;
        assert_ok(pp_model_open(folder_of(names[i]), &m, &err), err);
        assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
        assert_ok(pp_seq_new(e, &s, &err), err);
        for (int at = 0; at < 100; at++) {
            const struct pp_row row = {.seq = s, .token = at, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
            assert_ok(pp_step(e, &row, 1, NULL, &err), err);
            before = at == 0 ? pp_mem_count() : before;
        }
        assert_int_equal(pp_mem_count(), before);
        pp_seq_free(s);
        pp_engine_free(e);
        pp_model_close(m);
    }
}

/* --- learned positions ------------------------------------------------------------------------------------------- */

static void positions_end(void **state)
{
    struct pp_engine_options opt = {.kv_type = PP_KV_F32, .n_threads = 1, .kv_memory = 64u << 20, .n_ctx = 257};
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_error err;
    (void)state;
    assert_ok(pp_model_open(folder_of("gpt2"), &m, &err), err);
    assert_int_equal(pp_engine_new(m, &opt, NULL, NULL, &e, &err), PP_ERR_USAGE);
    assert_non_null(strstr(err.text, "256 positions"));
    opt.n_ctx = 0;
    assert_ok(pp_engine_new(m, &opt, NULL, NULL, &e, &err), err);
    assert_int_equal(pp_engine_n_ctx(e), 256);
    pp_engine_free(e);
    pp_model_close(m);
}

/* --- rotation ---------------------------------------------------------------------------------------------------- */

static void rope_scalings(void **state)
{
    struct pp_hparams hp = {.rope_base = 10000, .rope_dim = 8, .rope_factor = 4, .rope_orig_ctx = 100,
                            .n_ctx_train = 400, .rope_scaling = PP_ROPE_DYNAMIC};
    float f[4], magnitude;
    (void)state;
    pp_rope_frequencies(&hp, 100, NULL, f, &magnitude); /* not longer than the original: as it was */
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)f[i] - pow(10000, -i / 4.0)) < 1e-7);
    pp_rope_frequencies(&hp, 300, NULL, f, &magnitude);
    for (int i = 0; i < 4; i++) /* base (4 * 3 - 3)^(8 / 6) times larger */
        assert_true(fabs((double)f[i] - pow(10000 * pow(9, 8.0 / 6), -i / 4.0)) < 1e-7);
    assert_true(magnitude == 1.0f);
    const float factors[4] = {1, 2, 4, 8};
    hp.rope_scaling = PP_ROPE_LONG;
    pp_rope_frequencies(&hp, 300, factors, f, &magnitude);
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)f[i] - pow(10000, -i / 4.0) / (double)factors[i]) < 1e-7);
    assert_true(fabs((double)magnitude - sqrt(1 + log(4) / log(100))) < 1e-6);
    hp.rope_attn_factor = 1.5f;
    pp_rope_frequencies(&hp, 300, factors, f, &magnitude);
    assert_true(magnitude == 1.5f);
    hp.rope_scaling = PP_ROPE_YARN;
    hp.rope_beta_fast = 32;
    hp.rope_beta_slow = 1;
    float whole[4];
    pp_rope_frequencies(&hp, 300, NULL, whole, &magnitude);
    hp.rope_no_truncate = true;
    pp_rope_frequencies(&hp, 300, NULL, f, &magnitude);
    assert_memory_not_equal(f, whole, sizeof f);
}

/* --- models that see, too ----------------------------------------------------------------------------------------- */

static void add_json(struct pp_buf *b, const char *name, const struct pp_tensor *t, size_t at, bool first)
{
    pp_buf_fmt(b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", first ? "" : ",", name,
               t->type == PP_TYPE_BF16 ? "BF16" : "F32");
    for (int d = t->n_dims - 1; d >= 0; d--)
        pp_buf_fmt(b, "%lld%s", (long long)t->ne[d], d ? "," : "");
    pp_buf_fmt(b, "],\"data_offsets\":[%zu,%zu]}", at, at + t->size);
}

/* A Gemma 3 folder as the models that see have it: the language part's names have a prefix, and there are others. */
static void write_seeing(const char *dir, const char *family, const char *prefix, const char *eyes)
{
    struct pp_safetensors *from;
    struct pp_buf head = {0}, all = {0}, name = {0};
    struct pp_error err;
    char path[700];
    size_t at = 0;
    const struct pp_tensor other = {.type = PP_TYPE_F32, .n_dims = 1, .ne = {2, 1, 1, 1}, .size = 8};
    snprintf(path, sizeof path, "%s/model.safetensors", folder_of(family));
    assert_ok(pp_safetensors_open(path, &from, &err), err);
    pp_buf_char(&head, '{');
    for (size_t i = 0; i < pp_safetensors_n(from); i++) {
        const struct pp_tensor *t = pp_safetensors_at(from, i);
        pp_buf_clear(&name);
        const bool inside = strncmp(t->name, "model.", strlen("model.")) == 0;
        pp_buf_fmt(&name, "%s%s", inside ? prefix : "", t->name + (inside ? strlen("model.") : 0));
        add_json(&head, pp_buf_cstr(&name), t, at, i == 0);
        at += t->size;
    }
    add_json(&head, eyes, &other, at, false);
    pp_buf_char(&head, '}');
    while (head.len % 8)
        pp_buf_char(&head, ' ');
    const uint64_t n = head.len;
    pp_buf_add(&all, &n, sizeof n);
    pp_buf_add(&all, head.data, head.len);
    for (size_t i = 0; i < pp_safetensors_n(from); i++)
        pp_buf_add(&all, pp_safetensors_at(from, i)->data, pp_safetensors_at(from, i)->size);
    pp_buf_add(&all, "\0\0\0\0\0\0\0", 8);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_write_file(path, all.data, all.len, 0600, &err), err);
    pp_safetensors_close(from);
    pp_buf_free(&head);
    pp_buf_free(&all);
    pp_buf_free(&name);
}

static void seeing_models(void **state)
{
    static const char *const prefixes[] = {"language_model.model.", "model.language_model."};
    static const char config[] =
        "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"model_type\": \"gemma3\", \"text_config\": {"
        "\"vocab_size\": 512, \"hidden_size\": 64, \"intermediate_size\": 160, \"num_hidden_layers\": 7, "
        "\"head_dim\": 32, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"query_pre_attn_scalar\": 32, \"sliding_window\": 8}}";
    struct pp_source *text;
    struct pp_error err;
    (void)state;
    assert_ok(pp_source_open(folder_of("gemma3"), &text, &err), err);
    for (int i = 0; i < 2; i++) {
        char dir[300], path[600];
        struct pp_source *s;
        snprintf(dir, sizeof dir, "%s/seeing-%d", test_tmpdir(), i);
        assert_int_equal(mkdir(dir, 0700), 0);
        write_seeing(dir, "gemma3", prefixes[i], "vision_tower.vision_model.post_layernorm.bias");
        snprintf(path, sizeof path, "%s/config.json", dir);
        assert_ok(pp_write_file(path, config, sizeof config - 1, 0600, &err), err);
        assert_ok(pp_source_open(dir, &s, &err), err);
        const struct pp_hparams *a = pp_source_hparams(s), *b = pp_source_hparams(text);
        assert_true(a->rope_base == b->rope_base && a->rope_base_local == b->rope_base_local &&
                    a->window == b->window && a->norm_eps == b->norm_eps && a->attn_scale == b->attn_scale);
        assert_memory_equal(a->layer, b->layer, sizeof a->layer);
        assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(text));
        for (size_t t = 0; t < pp_source_n_tensors(text); t++) {
            const struct pp_tensor *x = pp_source_tensor_at(text, t), *y = pp_source_tensor(s, x->name);
            assert_non_null(y);
            assert_memory_equal(x->data, y->data, x->size);
        }
        pp_source_close(s);
    }
    pp_source_close(text);
}

/* Qwen's: the configuration of the language model is one of its own, or all of it. */
static void seeing_qwen(void **state)
{
    static const struct {
        const char *family, *hf_class, *type, *text_type, *prefix, *eyes, *rope;
    } cases[] = {
        {"qwen3", "Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3_vl_text", "model.language_model.",
         "model.visual.merger.norm.bias",
         "{\"rope_type\": \"default\", \"mrope_interleaved\": true, \"mrope_section\": [4, 2, 2]}"},
        {"qwen3moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "qwen3_vl_moe_text", "model.language_model.",
         "model.visual.merger.norm.bias",
         "{\"rope_type\": \"default\", \"mrope_interleaved\": true, \"mrope_section\": [4, 2, 2]}"},
        {"qwen2", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", NULL, "model.", "visual.merger.ln_q.bias",
         "{\"type\": \"mrope\", \"mrope_section\": [4, 2, 2]}"},
        {"qwen2", "Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2_vl_text", "model.language_model.",
         "model.visual.merger.ln_q.bias", "{\"rope_type\": \"mrope\", \"mrope_section\": [4, 2, 2]}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[300], path[600], *text;
        struct pp_source *plain, *s;
        struct pp_error err;
        size_t n;
        snprintf(path, sizeof path, "%s/config.json", folder_of(cases[i].family));
        assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
        cJSON *own = cJSON_Parse(text), *config = cases[i].text_type ? cJSON_CreateObject() : own;
        pp_free(text);
        cJSON_DeleteItemFromObject(own, "model_type");
        cJSON_DeleteItemFromObject(own, "architectures");
        cJSON *parameters = cJSON_DetachItemFromObject(own, "rope_parameters"); /* their files are older than that */
        cJSON_AddItemToObject(own, "rope_theta", cJSON_DetachItemFromObject(parameters, "rope_theta"));
        cJSON_AddItemToObject(own, "rope_scaling", cJSON_Parse(cases[i].rope));
        cJSON_Delete(parameters);
        if (cases[i].text_type) {
            cJSON_AddStringToObject(own, "model_type", cases[i].text_type);
            cJSON_AddItemToObject(config, "text_config", own);
        }
        cJSON_AddStringToObject(config, "model_type", cases[i].type);
        cJSON_AddItemToObject(config, "architectures", cJSON_CreateStringArray(&cases[i].hf_class, 1));
        snprintf(dir, sizeof dir, "%s/seeing-qwen-%zu", test_tmpdir(), i);
        assert_int_equal(mkdir(dir, 0700), 0);
        write_seeing(dir, cases[i].family, cases[i].prefix, cases[i].eyes);
        snprintf(path, sizeof path, "%s/config.json", dir);
        text = cJSON_PrintUnformatted(config);
        assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
        cJSON_free(text);
        cJSON_Delete(config);
        assert_ok(pp_source_open(folder_of(cases[i].family), &plain, &err), err);
        assert_ok(pp_source_open(dir, &s, &err), err);
        assert_string_equal(pp_source_hparams(s)->arch, cases[i].family);
        assert_true(pp_source_hparams(s)->rope_scaling == PP_ROPE_NONE &&
                    pp_source_hparams(s)->rope_base == pp_source_hparams(plain)->rope_base);
        assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(plain));
        for (size_t t = 0; t < pp_source_n_tensors(plain); t++)
            assert_non_null(pp_source_tensor(s, pp_source_tensor_at(plain, t)->name));
        pp_source_close(plain);
        pp_source_close(s);
    }
}

/* The text's configuration of a folder goes into others, one in the other, but for what the whole says of the
 * output; unsaid: without its family. */
static void write_wrapped(const char *dir, const char *family, const char *hf_class, const char *const keys[2],
                          bool unsaid)
{
    char path[600], *text;
    struct pp_error err;
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", folder_of(family));
    assert_ok(pp_read_file(path, 1 << 20, &text, &n, &err), err);
    cJSON *config = cJSON_Parse(text), *tie = cJSON_DetachItemFromObject(config, "tie_word_embeddings");
    pp_free(text);
    cJSON_AddNumberToObject(config, "num_nextn_predict_layers", 1);
    if (unsaid) {
        cJSON_DeleteItemFromObject(config, "model_type");
        cJSON_DeleteItemFromObject(config, "architectures");
    }
    for (int i = 1; i >= 0; i--)
        if (keys[i]) {
            cJSON *around = cJSON_CreateObject();
            cJSON_AddItemToObject(around, keys[i], config);
            config = around;
        }
    cJSON_AddItemToObject(config, "architectures", cJSON_CreateStringArray(&hf_class, 1));
    cJSON_AddItemToObject(config, "tie_word_embeddings", tie);
    cJSON_AddNumberToObject(config, "query_num", 96); /* MiniCPM-V's, which then is 2.5 */
    text = cJSON_PrintUnformatted(config);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    cJSON_Delete(config);
}

/* Models that see or hear, around one of any family; what is made of their folder is a folder of that. */
static void wrapped_models(void **state)
{
    static const struct {
        const char *family, *hf_class, *keys[2], *prefix, *other;
        bool unsaid;
    } cases[] = {
        {"llama", "LlavaForConditionalGeneration", {"text_config"}, "language_model.model.",
         "vision_tower.vision_model.post_layernorm.bias", false},
        {"llama", "LlavaNextForConditionalGeneration", {"text_config"}, "language_model.model.",
         "vision_tower.vision_model.post_layernorm.bias", true},
        {"qwen2", "InternVLForConditionalGeneration", {"text_config"}, "language_model.model.",
         "vision_tower.a.bias", true},
        {"qwen2", "InternVLChatModel", {"llm_config"}, "language_model.model.", "mlp1.1.bias", false},
        {"qwen3", "LightOnOCRForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.vision_projection.norm.bias", true},
        {"llama", "KimiVLForConditionalGeneration", {"text_config"}, "language_model.model.",
         "language_model.model.layers.2.eh_proj.bias", false},
        {"llama", "SmolVLMForConditionalGeneration", {"text_config"}, "model.text_model.",
         "model.connector.modality_projection.proj.bias", true},
        {"qwen3", "StepVLForConditionalGeneration", {"text_config"}, "model.", "vit_large_projector.bias", false},
        {"qwen3", "StepVLForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.vit_large_projector.bias", false},
        {"llama", "Emu3ForConditionalGeneration", {"text_config"}, "text_model.model.",
         "model.vqmodel.encoder.norm_out.bias", true},
        {"llama", "Emu3ForConditionalGeneration", {"text_config"}, "model.text_model.", "model.vqmodel.a.bias", false},
        {"llama", "VideoLlavaForConditionalGeneration", {"text_config"}, "language_model.model.", "image_tower.a.bias",
         true},
        {"llama", "JanusForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.generation_head.proj_out.bias", true},
        {"llama", "Idefics2ForConditionalGeneration", {"text_config"}, "model.text_model.", "model.connector.a.bias",
         true},
        {"llama", "PerceptionLMForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.multi_modal_projector.a.bias", true},
        {"llama", "DeepseekVLForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.aligner.linear1.bias", true},
        {"qwen2", "GotOcr2ForConditionalGeneration", {"text_config"}, "language_model.model.",
         "multi_modal_projector.conv1.bias", true},
        {"qwen2", "Ovis2ForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.visual_embeddings_table.weight", true},
        {"qwen2", "VideoLlama3ForConditionalGeneration", {"text_config"}, "model.language_model.",
         "model.projector.a.bias", true},
        {"granite", "GraniteSpeechForConditionalGeneration", {"text_config"}, "language_model.model.",
         "encoder.input_linear.bias", true},
        {"qwen3moe", "Qwen3OmniMoeForConditionalGeneration", {"thinker_config", "text_config"}, "thinker.model.",
         "talker.codec_head.bias", true},
        {"qwen3", "Ovis2_5", {"llm_config"}, "llm.model.", "visual_tokenizer.vit.a.bias", false},
        {"qwen2", "LlavaQwenForCausalLM", {NULL}, "model.", "model.mm_projector.0.bias", true},
        {"phi3", "Phi3VForCausalLM", {NULL}, "model.", "model.vision_embed_tokens.glb_GN", true},
        {"llama", "MiniCPMV", {NULL}, "llm.model.", "resampler.ln_q.bias", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_source *plain, *s;
        struct pp_error err;
        char dir[300];
        snprintf(dir, sizeof dir, "%s/wrapped-%zu", test_tmpdir(), i);
        const char *paths[] = {dir, fresh_path("unwrapped")};
        assert_int_equal(mkdir(dir, 0700), 0);
        write_seeing(dir, cases[i].family, cases[i].prefix, cases[i].other);
        write_wrapped(dir, cases[i].family, cases[i].hf_class, cases[i].keys, cases[i].unsaid);
        assert_ok(pp_source_open(folder_of(cases[i].family), &plain, &err), err);
        assert_ok(pp_convert_to_folder(dir, paths[1], &(struct pp_convert_options){0}, &err), err);
        for (int k = 0; k < 2; k++) {
            assert_ok(pp_source_open(paths[k], &s, &err), err);
            assert_string_equal(pp_source_hparams(s)->arch, cases[i].family);
            assert_int_equal(pp_source_is_wrapped(s), k == 0);
            assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(plain));
            for (size_t t = 0; t < pp_source_n_tensors(plain); t++) {
                const struct pp_tensor *x = pp_source_tensor_at(plain, t), *y = pp_source_tensor(s, x->name);
                assert_non_null(y);
                if (!x->rows)
                    assert_memory_equal(x->data, y->data, x->size);
            }
            const cJSON *tie = cJSON_GetObjectItem(pp_source_config(s), "tie_word_embeddings");
            assert_true(k == 0 || cJSON_IsTrue(tie) == !pp_source_tensor(plain, "output.weight"));
            pp_source_close(s);
        }
        pp_source_close(plain);
    }
}

/* The tiny Phi 3 as Phi 4 multimodal has it, and the tiny Qwen 2 as MiMo: names end otherwise, there are LoRAs and
 * other parts, and the class is another. */
static void other_classes(void **state)
{
    enum { MOST = 200, MORE = 3 };
    static const float zeros[4];
    static const struct {
        const char *family, *hf_class, *type, *more[MORE];
        bool based;
    } cases[] = {
        {"phi3", "Phi4MMForCausalLM", "phi4mm",
         {"model.layers.0.self_attn.qkv_proj.lora_A.vision.weight", "model.layers.0.mlp.down_proj.lora_B.speech.weight",
          "model.embed_tokens_extend.image_embed.glb_GN"}, true},
        {"phi3", "Phi4MultimodalForCausalLM", "phi4_multimodal",
         {"model.embed_tokens_extend.image_embed.a.bias", "model.embed_tokens_extend.audio_embed.a.bias",
          "model.embed_tokens_extend.audio_embed.b.bias"}, false},
        {"qwen2", "MiMoForCausalLM", "mimo",
         {"model.mtp_layers.0.input_proj.weight", "model.mtp_layers.0.mlp.up_proj.weight",
          "model.mtp_layers.0.final_layernorm.weight"}, false},
        {"llama", "AquilaForCausalLM", "aquila", {NULL}, false},
        {"llama", "PeftModelForCausalLM", "llama", {NULL}, false}, /* a class of the program that trained it */
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct pp_tensor t[MOST];
        char names[MOST][96], dir[300], path[700], *text;
        struct pp_source *plain, *s;
        struct pp_safetensors *from;
        struct pp_error err;
        size_t n = 0, size;
        snprintf(path, sizeof path, "%s/model.safetensors", folder_of(cases[c].family));
        assert_ok(pp_safetensors_open(path, &from, &err), err);
        for (size_t i = 0; i < pp_safetensors_n(from); i++, n++) {
            t[n] = *pp_safetensors_at(from, i);
            const char *end = strstr(t[n].name, "_proj.weight");
            if (end && cases[c].based)
                snprintf(names[n], sizeof names[n], "%.*s_proj.base_layer.weight", (int)(end - t[n].name), t[n].name);
            else
                snprintf(names[n], sizeof names[n], "%s", t[n].name);
        }
        for (int i = 0; i < MORE && cases[c].more[i]; i++, n++) {
            t[n] = (struct pp_tensor){.type = PP_TYPE_F32, .n_dims = 2, .ne = {2, 2, 1, 1}, .size = sizeof zeros,
                                      .data = zeros};
            snprintf(names[n], sizeof names[n], "%s", cases[c].more[i]);
        }
        for (size_t i = 0; i < n; i++)
            t[i].name = names[i];
        snprintf(dir, sizeof dir, "%s/other-class-%zu", test_tmpdir(), c);
        assert_int_equal(mkdir(dir, 0700), 0);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        assert_ok(pp_safetensors_write(path, t, n, &err), err);
        snprintf(path, sizeof path, "%s/config.json", folder_of(cases[c].family));
        assert_ok(pp_read_file(path, 1 << 20, &text, &size, &err), err);
        cJSON *config = cJSON_Parse(text);
        pp_free(text);
        cJSON_DeleteItemFromObject(config, "architectures");
        cJSON_DeleteItemFromObject(config, "model_type");
        cJSON_AddStringToObject(config, "model_type", cases[c].type);
        cJSON_AddItemToObject(config, "architectures", cJSON_CreateStringArray(&cases[c].hf_class, 1));
        text = cJSON_PrintUnformatted(config);
        snprintf(path, sizeof path, "%s/config.json", dir);
        assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
        cJSON_free(text);
        cJSON_Delete(config);
        assert_ok(pp_source_open(folder_of(cases[c].family), &plain, &err), err);
        assert_ok(pp_source_open(dir, &s, &err), err);
        assert_string_equal(pp_source_hparams(s)->arch, cases[c].family);
        assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(plain));
        for (size_t i = 0; i < pp_source_n_tensors(plain); i++) {
            const struct pp_tensor *x = pp_source_tensor_at(plain, i), *y = pp_source_tensor(s, x->name);
            assert_non_null(y);
            if (!x->rows)
                assert_memory_equal(x->data, y->data, x->size);
        }
        pp_source_close(s);
        pp_source_close(plain);
        pp_safetensors_close(from);
    }
}

/* The tensor of a layer's projection, whose values are BF16; all but the last are joined with the next, rows behind
 * rows. Room for them: the caller's. */
static struct pp_tensor joined(const struct pp_safetensors *from, int layer, const char *const names[3], uint16_t *room)
{
    struct pp_tensor all = {.type = PP_TYPE_BF16, .data = room};
    for (int i = 0; i < 3 && names[i]; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, names[i]);
        const struct pp_tensor *t = pp_safetensors_find(from, name);
        assert_non_null(t);
        memcpy((char *)room + all.size, t->data, t->size);
        const int last = t->n_dims - 1;
        const int64_t rows = all.n_dims ? all.ne[last] : 0;
        all.n_dims = t->n_dims;
        memcpy(all.ne, t->ne, sizeof all.ne);
        all.ne[last] += rows;
        all.size += t->size;
    }
    return all;
}

/* The tiny Qwen 2 and Qwen 3 as Molmo and Molmo 2 have them: what they compute, and what is made of them, has the same
 * bits. */
static void molmo(void **state)
{
    enum { MOST = 64, ROOM = 1 << 17, PARTS = 9 };
    static const struct {
        const char *names[3], *first, *second; /* as the first and the second Molmo call them; NULL: they do not */
    } parts[PARTS] = {
        {{"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
         "att_proj.weight", "self_attn.att_proj.weight"},
        {{"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}, "att_proj.bias", NULL},
        {{"mlp.up_proj.weight", "mlp.gate_proj.weight"}, "ff_proj.weight", "mlp.ff_proj.weight"},
        {{"mlp.down_proj.weight"}, "ff_out.weight", "mlp.ff_out.weight"},
        {{"self_attn.o_proj.weight"}, "attn_out.weight", "self_attn.attn_out.weight"},
        {{"input_layernorm.weight"}, "attn_norm.weight", "attn_norm.weight"},
        {{"post_attention_layernorm.weight"}, "ff_norm.weight", "ff_norm.weight"},
        {{"self_attn.q_norm.weight"}, NULL, "self_attn.q_norm.weight"},
        {{"self_attn.k_norm.weight"}, NULL, "self_attn.k_norm.weight"},
    };
    static const char *const families[] = {"qwen2", "qwen3"}, *const configs[] = {
        "{\"architectures\": [\"MolmoForCausalLM\"], \"model_type\": \"molmo\", \"hidden_size\": 64, "
        "\"intermediate_size\": 320, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"vocab_size\": 512, \"embedding_size\": 512, \"layer_norm_eps\": 1e-6, "
        "\"rope_theta\": 1000000.0, \"qkv_bias\": true, \"norm_after\": false, \"layer_norm_type\": \"rms\", "
        "\"max_position_embeddings\": 256}",
        "{\"architectures\": [\"Molmo2ForConditionalGeneration\"], \"model_type\": \"molmo2\", \"text_config\": {"
        "\"model_type\": \"molmo2_text\", \"hidden_size\": 64, \"intermediate_size\": 160, \"head_dim\": 32, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 512, "
        "\"layer_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, \"qkv_bias\": false, \"use_qk_norm\": true, "
        "\"qk_norm_type\": \"qwen3\", \"norm_after\": false, \"max_position_embeddings\": 256}}"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (int second = 0; second < 2; second++) {
        struct pp_tensor t[MOST];
        char names[MOST][96], dir[300], path[700];
        uint16_t *room = pp_malloc(2 * ROOM), *at = room;
        struct pp_safetensors *from;
        struct pp_error err;
        size_t n = 0, n_logits;
        snprintf(path, sizeof path, "%s/model.safetensors", folder_of(families[second]));
        assert_ok(pp_safetensors_open(path, &from, &err), err);
        const struct pp_tensor *embeddings = pp_safetensors_find(from, "model.embed_tokens.weight");
        const struct pp_tensor *output = pp_safetensors_find(from, "lm_head.weight"); /* Qwen 3's is the embeddings */
        const struct pp_tensor *whole[] = {embeddings, pp_safetensors_find(from, "model.norm.weight"),
                                           output ? output : embeddings, embeddings};
        const char *const called[] = {"model.transformer.wte.embedding", "model.transformer.ln_f.weight",
                                      second ? "lm_head.weight" : "model.transformer.ff_out.weight",
                                      "model.transformer.wte.new_embedding"};
        for (; n < 4; n++) {
            t[n] = *whole[n];
            snprintf(names[n], sizeof names[n], "%s", called[n]);
        }
        for (int i = 0; i < 2 * PARTS; i++) {
            const char *name = second ? parts[i / 2].second : parts[i / 2].first;
            if (!name)
                continue;
            t[n] = joined(from, i % 2, parts[i / 2].names, at);
            at += t[n].size / 2;
            snprintf(names[n++], sizeof names[0], "model.transformer.blocks.%d.%s", i % 2, name);
        }
        assert_true(at <= room + ROOM);
        for (size_t i = 0; i < n; i++)
            t[i].name = names[i];
        snprintf(dir, sizeof dir, "%s/molmo-%d", test_tmpdir(), second);
        assert_int_equal(mkdir(dir, 0700), 0);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        assert_ok(pp_safetensors_write(path, t, n, &err), err);
        snprintf(path, sizeof path, "%s/config.json", dir);
        assert_ok(pp_write_file(path, configs[second], strlen(configs[second]), 0600, &err), err);
        pp_safetensors_close(from);
        pp_free(room);
        float *want = small_logits(folder_of(families[second]), PP_KV_F32, &n_logits);
        const char *made[] = {dir, fresh_path("molmo.gguf"), fresh_path("molmo-folder")};
        assert_ok(pp_convert_to_gguf(dir, made[1], &(struct pp_convert_options){0}, &err), err);
        assert_ok(pp_convert_to_folder(dir, made[2], &(struct pp_convert_options){0}, &err), err);
        for (int i = 0; i < 3; i++) {
            float *logits = small_logits(made[i], PP_KV_F32, &n);
            assert_int_equal(n, n_logits);
            assert_memory_equal(logits, want, n * sizeof *logits);
            pp_free(logits);
        }
        assert_config(made[2], "architectures", second ? "Qwen3ForCausalLM" : "Qwen2ForCausalLM");
        pp_free(want);
    }
}

/* Llama 3.2 Vision around the tiny Llama: layers 1 and 3 look at pictures, and there are rows behind the vocabulary. */
static void write_mllama(const char *dir, const char *layers)
{
    enum { MOST = 200, BEHIND = 8 };
    static const float zeros[4096];
    static const char *const of_pictures[] = {
        "language_model.model.layers.1.cross_attn.q_proj.weight", "language_model.model.layers.3.mlp.up_proj.weight",
        "language_model.model.layers.3.cross_attn_attn_gate", "vision_model.class_embedding"};
    struct pp_tensor t[MOST];
    char names[MOST][96], path[700], *text;
    struct pp_safetensors *from;
    struct pp_error err;
    size_t n = 0, size;
    snprintf(path, sizeof path, "%s/model.safetensors", folder_of("llama"));
    assert_ok(pp_safetensors_open(path, &from, &err), err);
    uint8_t *embedding = NULL;
    for (size_t i = 0; i < pp_safetensors_n(from); i++, n++) {
        static const char layer[] = "model.layers.";
        char *end;
        t[n] = *pp_safetensors_at(from, i);
        snprintf(names[n], sizeof names[n], "language_model.%s", t[n].name);
        if (strncmp(t[n].name, layer, strlen(layer)) == 0) {
            const long l = strtol(t[n].name + strlen(layer), &end, 10);
            snprintf(names[n], sizeof names[n], "language_model.%s%ld%s", layer, l == 0 ? 0 : l == 1 ? 2 : l + 2, end);
        } else if (strstr(t[n].name, "embed_tokens")) {
            const size_t behind = t[n].size / (size_t)t[n].ne[1] * BEHIND;
            assert_non_null(embedding = pp_calloc(1, t[n].size + behind));
            memcpy(embedding, t[n].data, t[n].size);
            t[n].data = embedding;
            t[n].size += behind;
            t[n].ne[1] += BEHIND;
        }
        t[n].name = names[n];
    }
    for (size_t i = 0; i < sizeof of_pictures / sizeof *of_pictures; i++)
        t[n++] = (struct pp_tensor){.name = of_pictures[i], .type = PP_TYPE_F32, .n_dims = 1, .ne = {16, 1, 1, 1},
                                    .data = zeros, .size = 64};
    assert_true(n <= MOST);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_ok(pp_safetensors_write(path, t, n, &err), err);
    pp_safetensors_close(from);
    pp_free(embedding);
    snprintf(path, sizeof path, "%s/config.json", folder_of("llama"));
    assert_ok(pp_read_file(path, 1 << 20, &text, &size, &err), err);
    cJSON *own = cJSON_Parse(text), *config = cJSON_CreateObject();
    pp_free(text);
    const int n_layer = cJSON_GetObjectItem(own, "num_hidden_layers")->valueint;
    cJSON_ReplaceItemInObject(own, "num_hidden_layers", cJSON_CreateNumber(n_layer + 2));
    cJSON_ReplaceItemInObject(own, "model_type", cJSON_CreateString("mllama_text_model"));
    cJSON_AddItemToObject(own, "cross_attention_layers", cJSON_CreateRaw(layers));
    cJSON_AddItemToObject(config, "text_config", own);
    cJSON_AddStringToObject(config, "model_type", "mllama");
    text = cJSON_PrintUnformatted(config);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    cJSON_Delete(config);
}

/* The vocabulary has a token for pictures of whose rows none is kept: other programs find as many tokens as rows. */
static void tokens_as_rows(const char *dir)
{
    static const char image[] = "<|image|>";
    const char *file = fresh_path("mllama.gguf");
    const struct pp_tensor *rows;
    struct pp_tokenizer *t;
    struct pp_gguf *g;
    struct pp_error err;
    char path[700], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder_of("llama"));
    assert_ok(pp_read_file(path, 1 << 20, &text, &size, &err), err);
    cJSON *json = cJSON_Parse(text), *token = cJSON_CreateObject();
    pp_free(text);
    cJSON_AddNumberToObject(token, "id", cJSON_GetArraySize(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "model"),
                                                                                "vocab")));
    cJSON_AddStringToObject(token, "content", image);
    cJSON_AddTrueToObject(token, "special");
    cJSON_AddItemToArray(cJSON_GetObjectItem(json, "added_tokens"), token);
    text = cJSON_PrintUnformatted(json);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    cJSON_Delete(json);
    assert_ok(pp_convert_to_gguf(dir, file, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_gguf_open(file, &g, &err), err);
    assert_non_null(rows = pp_gguf_tensor(g, "token_embd.weight"));
    assert_ok(pp_tokenizer_open(file, &t, &err), err);
    assert_int_equal(pp_tokenizer_n(t), rows->ne[1]);
    assert_int_equal(pp_tokenizer_find(t, image, strlen(image)), -1);
    pp_tokenizer_free(t);
    pp_gguf_close(g);
}

/* They count the layers that are left out: none is made, and none is converted. */
static void adapters_are_refused(const struct pp_model *m, const char *dir)
{
    const struct pp_train_options train = pp_train_options_default();
    const struct pp_convert_options base = {.base = dir};
    const char *file = fresh_path("of-mllama.gguf");
    struct pp_trainer *t;
    struct pp_error err;
    char adapter[600];
    assert_int_equal(pp_trainer_new(m, NULL, NULL, &train, &t, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "look at pictures"));
    snprintf(adapter, sizeof adapter, "%s/lora-alpha", folder_of("llama"));
    assert_int_equal(pp_convert_to_gguf(adapter, file, &base, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "look at pictures"));
    snprintf(adapter, sizeof adapter, "%s/lora-alpha.gguf", folder_of("llama"));
    assert_int_equal(pp_convert_to_peft(adapter, fresh_path("of-mllama"), &base, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "look at pictures"));
}

/* What is left is the Llama that it is made around, whose layers count from 0 to the last. */
static void layers_for_pictures(void **state)
{
    static const char *const wrong[] = {"[1, 1]", "[3, 99]", "[-1]", "[]", "\"some\"", "[0.5]"};
    struct pp_source *plain, *s;
    struct pp_error err;
    char dir[300];
    (void)state;
    snprintf(dir, sizeof dir, "%s/mllama", test_tmpdir());
    const char *paths[] = {dir, fresh_path("llama-in-mllama")};
    assert_int_equal(mkdir(dir, 0700), 0);
    write_mllama(dir, "[3, 1]");
    assert_ok(pp_source_open(folder_of("llama"), &plain, &err), err);
    assert_ok(pp_convert_to_folder(dir, paths[1], &(struct pp_convert_options){0}, &err), err);
    for (int k = 0; k < 2; k++) {
        assert_ok(pp_source_open(paths[k], &s, &err), err);
        assert_string_equal(pp_source_hparams(s)->arch, "llama");
        assert_int_equal(pp_source_hparams(s)->n_layer, pp_source_hparams(plain)->n_layer);
        assert_int_equal(pp_source_leaves_layers(s), k == 0);
        assert_int_equal(pp_source_n_tensors(s), pp_source_n_tensors(plain));
        for (size_t t = 0; t < pp_source_n_tensors(plain); t++) {
            const struct pp_tensor *x = pp_source_tensor_at(plain, t), *y = pp_source_tensor(s, x->name);
            assert_non_null(y);
            assert_memory_equal(x->ne, y->ne, sizeof x->ne);
            if (!x->rows)
                assert_memory_equal(x->data, y->data, x->size);
        }
        pp_source_close(s);
    }
    pp_source_close(plain);
    struct pp_model *m;
    struct pp_adapter *a;
    assert_ok(pp_model_open(dir, &m, &err), err);
    assert_int_equal(pp_adapter_load(m, "adapter", &a, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "look at pictures"));
    adapters_are_refused(m, dir);
    pp_model_close(m);
    tokens_as_rows(dir);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_mllama(dir, wrong[i]);
        assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "cross_attention_layers"));
    }
}

/* Names of the output, which stands beside the rest or in it. */
static void wrapped_names(void **state)
{
    static const char *const outputs[] = {"lm_head.weight", "language_model.lm_head.weight", "thinker.lm_head.weight"};
    struct pp_buf name = {0};
    (void)state;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        assert_int_equal(pp_arch_gguf_name(pp_arch_by_name("llama"), outputs[i], &name, NULL), PP_NAME_FOUND);
        assert_string_equal(pp_buf_cstr(&name), "output.weight");
    }
    pp_buf_free(&name);
}

/* What is not known of such a folder: the family within, which may not be said, and a tensor. */
static void badly_wrapped(void **state)
{
    static const char *const keys[] = {"text_config", NULL}, *const names[] = {"vision_tower.a.bias", "eyes.bias"};
    static const char unknown[] = "{\"architectures\": [\"LlavaForConditionalGeneration\"], \"text_config\": "
                                  "{\"model_type\": \"tomorrow\"}}";
    static const char unsaid[] = "{\"architectures\": [\"InternVLChatModel\"], \"llm_config\": {}}";
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    for (int i = 0; i < 2; i++) {
        char dir[300], path[400];
        snprintf(dir, sizeof dir, "%s/badly-wrapped-%d", test_tmpdir(), i);
        assert_int_equal(mkdir(dir, 0700), 0);
        write_seeing(dir, "llama", "language_model.model.", names[i]);
        write_wrapped(dir, "llama", "LlavaForConditionalGeneration", keys, false);
        snprintf(path, sizeof path, "%s/config.json", dir);
        if (i == 0)
            assert_ok(pp_write_file(path, unknown, strlen(unknown), 0600, &err), err);
        assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, i ? "eyes.bias" : "\"tomorrow\""));
        assert_ok(pp_write_file(path, unsaid, strlen(unsaid), 0600, &err), err);
        assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "does not say of which family"));
    }
}

/* --- files that lie ---------------------------------------------------------------------------------------------- */

/* A folder whose config.json is that of a family with one text in place of another; its tensors are a link. */
static const char *changed_folder(const char *family, const char *from, const char *to)
{
    static char dir[300];
    static int serial;
    char path[600], target[600], *text;
    struct pp_error err;
    size_t n;
    snprintf(dir, sizeof dir, "%s/changed-%d", test_tmpdir(), serial++);
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(target, sizeof target, "%s/model.safetensors", folder_of(family));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(symlink(target, path), 0);
    snprintf(target, sizeof target, "%s/config.json", folder_of(family));
    assert_ok(pp_read_file(target, 1 << 20, &text, &n, &err), err);
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("%s does not have %s", target, from);
    struct pp_buf b = {0};
    pp_buf_add(&b, text, (size_t)(at - text));
    pp_buf_str(&b, to);
    pp_buf_str(&b, at + strlen(from));
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_ok(pp_write_file(path, b.data, b.len, 0600, &err), err);
    pp_buf_free(&b);
    pp_free(text);
    return dir;
}

/* Numbers that make no sense, and such as do not fit the tensors: refused with a word that says where to look. */
static void lies(void **state)
{
    static const struct {
        const char *family, *from, *to, *word;
    } cases[] = {
        {"mixtral", "\"num_local_experts\": 4", "\"num_local_experts\": 5", "ffn_gate_inp"},
        {"mixtral", "\"num_local_experts\": 4", "\"num_local_experts\": 2000", "number of experts"},
        {"mixtral", "\"num_local_experts\": 4", "\"num_local_experts\": \"4\"", "num_local_experts"},
        {"mixtral", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5", "experts used"},
        {"mixtral", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 0", "experts used"},
        {"qwen3moe", "\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 32", "ffn_gate.0"},
        {"qwen3moe", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2", "ffn_gate.weight"},
        {"gptoss", "\"num_local_experts\": 4", "\"num_local_experts\": 8", "ffn_gate_inp"},
        {"gptoss", "\"layer_types\": [", "\"layer_types\": [\"full_attention\",", "layer_types"},
        {"gptoss", "\"sliding_attention\"", "\"chunked_attention\"", "chunked_attention"},
        {"gemma2", "\"query_pre_attn_scalar\": 24", "\"query_pre_attn_scalar\": -1", "query_pre_attn_scalar"},
        {"gemma2", "\"attn_logit_softcapping\": 50.0", "\"attn_logit_softcapping\": -50.0", "soft cap"},
        {"gemma2", "\"final_logit_softcapping\": 30.0", "\"final_logit_softcapping\": 1e99", "soft cap"},
        {"gemma3", "\"rope_theta\": 10000.0", "\"rope_theta\": -1.0", "RoPE base"},
        {"gemma", "\"head_dim\": 32", "\"head_dim\": 64", "attn_q"},
        {"granite", "\"residual_multiplier\": 0.22", "\"residual_multiplier\": -0.22", "residual"},
        {"granite", "\"logits_scaling\": 8.0", "\"logits_scaling\": 0", "logits"},
        {"cohere2", "\"logit_scale\": 0.25", "\"logit_scale\": \"x\"", "logit_scale"},
        {"cohere2", "\"sliding_window\": 8", "\"sliding_window\": -8", "window"},
        {"phi2", "\"qk_layernorm\": false", "\"qk_layernorm\": true", "attn_q_norm"},
        {"qwen2", "\"rope_parameters\": {",
         "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}, \"rope_parameters\": {", "rope_type"},
        {"phi2", "\"rope_parameters\": {", "\"rope_parameters\": {\"partial_rotary_factor\": 1.5,",
         "partial_rotary_factor"},
        {"phi3", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1", "attn_qkv"},
        {"phi3", "\"rope_type\": \"default\"", "\"rope_type\": \"longrope\", \"short_factor\": [1]", "long_factor"},
        {"phi3", "\"rope_type\": \"default\"",
         "\"rope_type\": \"longrope\", \"long_factor\": [1,1,1,1,1,1,1,1], \"short_factor\": [1]", "short_factor"},
        {"gptneox", "\"hidden_act\": \"gelu\"", "\"hidden_act\": \"relu\"", "relu"},
        {"gptneox", "\"num_attention_heads\": 4", "\"num_attention_heads\": 6", "query_key_value"},
        {"gpt2", "\"n_positions\": 256", "\"n_positions\": 512", "position_embd"},
        {"gpt2", "\"n_head\": 4", "\"n_head\": 0", "n_head"},
        {"gpt2", "\"scale_attn_by_inverse_layer_idx\": false", "\"scale_attn_by_inverse_layer_idx\": true", "inverse"},
        {"starcoder2", "\"hidden_act\": \"gelu_pytorch_tanh\"", "\"hidden_act\": \"silu\"", "silu"},
        {"smollm3", "\"no_rope_layers\": [", "\"no_rope_layers\": [1,", "no_rope_layers"},
        {"olmo2", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4", "attn_k"},
        {"stablelm", "\"qk_layernorm\": false", "\"qk_layernorm\": true", "attn_q_norm"},
        {"qwen2", "\"model_type\": \"qwen2\"", "\"quantization_config\": {\"bits\": 4}, \"model_type\": \"qwen2\"",
         "quantization_config"},
        {"qwen2", "\"Qwen2ForCausalLM\"", "\"Qwen9ForThinking\"", "qwen2, qwen3"}, /* the families that are known */
    };
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_model *m = NULL;
        struct pp_error err = {0};
        const char *dir = changed_folder(cases[i].family, cases[i].from, cases[i].to);
        if (pp_model_open(dir, &m, &err) == PP_OK || !strstr(err.text, cases[i].word))
            fail_msg("%s with %s: \"%s\", which does not mention %s", cases[i].family, cases[i].to, err.text,
                     cases[i].word);
    }
}

/* A tensor that is called otherwise, in a file of each family: the error names the one that is missing, or, where that
 * may be, the one that nobody uses. */
static void missing_tensors(void **state)
{
    struct pp_error err;
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < N_FOLDERS; i++) {
        char path[256];
        struct pp_gguf *g;
        snprintf(path, sizeof path, "%s/known-%s.gguf", test_tmpdir(), folders[i]); /* made by known_names */
        assert_ok(pp_gguf_open(path, &g, &err), err);
        const size_t n = pp_gguf_n_tensors(g), which = i * 7 % n;
        const struct pp_tensor *gone = pp_gguf_tensor_at(g, which);
        char name[128];
        snprintf(name, sizeof name, "%s", gone->name);
        char *data;
        size_t size;
        assert_ok(pp_read_file(path, 64 << 20, &data, &size, &err), err);
        char *at = memmem(data, size, name, strlen(name));
        assert_non_null(at);
        at[strlen(name) - 1] = '_'; /* it is called otherwise now */
        assert_ok(pp_write_file(path, data, size, 0600, &err), err);
        pp_free(data);
        pp_gguf_close(g);
        struct pp_model *m = NULL;
        const enum pp_code code = pp_model_open(path, &m, &err);
        const bool may_miss = strcmp(name, "rope_freqs.weight") == 0;
        name[strlen(name) - 1] = 0;
        if (code == PP_OK ? !may_miss : !strstr(err.text, name))
            fail_msg("%s without %s: \"%s\"", path, name, code ? err.text : "opened");
        pp_model_close(m);
    }
}

TEST_GROUP(families)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),          cmocka_unit_test(experts_same_bits), cmocka_unit_test(windows_are_let_go),
        cmocka_unit_test(positions_end),      cmocka_unit_test(rope_scalings),     cmocka_unit_test(known_names),
        cmocka_unit_test(decode_allocates_nothing), cmocka_unit_test(seeing_models),
        cmocka_unit_test(seeing_qwen), cmocka_unit_test(wrapped_models), cmocka_unit_test(badly_wrapped),
        cmocka_unit_test(other_classes),
        cmocka_unit_test(layers_for_pictures),
        cmocka_unit_test(wrapped_names),
        cmocka_unit_test(lies),               cmocka_unit_test(missing_tensors),
        cmocka_unit_test(molmo),
    };
    return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
