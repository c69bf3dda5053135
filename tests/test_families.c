/* test_families.c - properties of all model families: a row's bits do not depend on how it was computed, layers with a
 * sliding window keep no more KV than the window needs, files that our converter writes have the tensor names and keys
 * that other programs read, and inconsistent files are refused with the name of what is wrong. What the models compute
 * is in test_golden.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
#include "engine/train.h"
#include "engine/types.h"
#include "tests/passes.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

static const char *const folders[] = {
    "cohere2",     "gemma",        "gemma2",     "gemma3",      "gpt2",    "gptneox", "gptoss",   "granite", "llama",
    "llama3-rope", "llama-linear", "llama-yarn", "mistral-swa", "mixtral", "olmo2",   "phi2",     "phi3",    "qwen2",
    "qwen3",       "qwen3moe",     "smollm3",    "stablelm",    "starcoder2",
};
enum { N_FOLDERS = sizeof folders / sizeof *folders };

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

/* The same bits for any number of rows and threads, with the best kernels and with the scalar ones. */
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
        check_bits(architecture(folders[i]), i % 2 ? PP_KV_F32 : PP_KV_Q8);
    check_bits(architecture("gemma2"), PP_KV_F16); /* soft caps and attention sinks with further KV types */
    check_bits(architecture("gptoss"), PP_KV_FP8);
}

/* Experts of every weight type, one expert with hardly any rows, and one with most of them. */
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

/* Layers with a window have pages of their own, and hold no more of them than the window and a step need. */
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
        assert_ok(pp_model_open(architecture(cases[i].folder), &m, &err), err);
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

/* The tensors that llama.cpp reads for each family (gguf-py/gguf/constants.py and src/llama-arch.cpp), and the keys it
 * requires. "N": the layer. */
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

/* Whether `word` is in a list of words that are each followed by a space. */
static bool has_word(const char *list, const char *word, size_t n)
{
    for (const char *at = list, *end; (end = strchr(at, ' ')); at = end + 1)
        if ((size_t)(end - at) == n && memcmp(at, word, n) == 0)
            return true;
    return false;
}

/* The kind of a tensor: "blk.3.ffn_up.weight" becomes "blk.N.ffn_up". */
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

/* For all families; and our converter's files have the same names and keys as another converter's, where there is
 * one. */
static void known_names(void **state)
{
    struct pp_convert_options opt = {0};
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < N_FOLDERS; i++) {
        char path[256];
        struct pp_gguf *ours, *theirs;
        snprintf(path, sizeof path, "%s/known-%s.gguf", test_tmpdir(), folders[i]);
        assert_ok(pp_convert_to_gguf(architecture(folders[i]), path, &opt, &err), err);
        check_file(path);
        if (!pp_file_exists(architecture(folders[i]), "model.gguf"))
            continue;
        char their_path[600];
        snprintf(their_path, sizeof their_path, "%s/model.gguf", architecture(folders[i]));
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

/* After the first token no more memory is allocated, whatever the family. */
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
        assert_ok(pp_model_open(architecture(names[i]), &m, &err), err);
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
    assert_ok(pp_model_open(architecture("gpt2"), &m, &err), err);
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
    pp_rope_frequencies(&hp, 100, NULL, f, &magnitude); /* within the original context nothing changes */
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

/* --- files that lie ---------------------------------------------------------------------------------------------- */

/* A copy of a family's folder in which `from` in config.json is replaced by `to`; the tensors are a link. */
static const char *changed_folder(const char *family, const char *from, const char *to)
{
    static char dir[300];
    static int serial;
    char path[600], target[600], *text;
    struct pp_error err;
    size_t n;
    snprintf(dir, sizeof dir, "%s/changed-%d", test_tmpdir(), serial++);
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(target, sizeof target, "%s/model.safetensors", architecture(family));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(symlink(target, path), 0);
    snprintf(target, sizeof target, "%s/config.json", architecture(family));
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

/* Metadata values that are invalid or do not match the tensors are refused; the error says where to look. */
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
        {"qwen2", "\"Qwen2ForCausalLM\"", "\"Qwen9ForThinking\"", "qwen2, qwen3"}, /* the known families */
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

/* One tensor of each family's file is renamed: the error names the missing tensor or, if that one is optional, the
 * unused one. */
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
        at[strlen(name) - 1] = '_'; /* the tensor has another name now */
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
        cmocka_unit_test(same_bits),
        cmocka_unit_test(experts_same_bits),
        cmocka_unit_test(windows_are_let_go),
        cmocka_unit_test(positions_end),
        cmocka_unit_test(rope_scalings),
        cmocka_unit_test(known_names),
        cmocka_unit_test(decode_allocates_nothing),
        cmocka_unit_test(lies),
        cmocka_unit_test(missing_tensors),
    };
    return cmocka_run_group_tests_name("families", tests, NULL, NULL);
}
