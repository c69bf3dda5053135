/* qwen4.c - Qwen 4's experimental models (Qwen3.8-Flash-Next): Qwen 3.5's layers with an indexer that picks blocks of
 * positions by one key each (decoder_blocks.c), gated residual streams (decoder_hyper.c), and n-gram embeddings in one
 * layer (decoder_hash.c). Of multimodal models the language model.
 *
 * Rows of the table of n-gram embeddings are selected by hashes. transformers derives the multipliers from a seed, and
 * each hash has a prime number of rows. GGUF files hold the numbers, from which the seed is recovered for folders. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define PLE LAYER "ple."
#define GATED(hf_name, gguf_name)                                                                                     \
    {.hf = hf_name ".hc_norm", .gguf = gguf_name "_norm", .form = PP_HF_PLUS_ONE},                                    \
    {.hf = hf_name ".input_mix_weight_down", .gguf = gguf_name "_down"},                                              \
    {.hf = hf_name ".input_mix_weight_up", .gguf = gguf_name "_up"},                                                  \
    {.hf = hf_name ".block_inject_weight", .gguf = gguf_name "_inject"}

static const struct pp_arch_name names[] = {
    GATED(LAYER "attn_hyper_connection", "blk.{}.hc_attn"),
    GATED(LAYER "mlp_hyper_connection", "blk.{}.hc_ffn"),
    GATED("model.hyper_connection_mixer", "output_hc"),
    {.hf = LAYER "self_attn.indexer.index_qk_proj.weight", .gguf = "blk.{}.indexer.q_proj.weight",
     .second = "blk.{}.indexer.k_proj.weight", .form = PP_HF_INDEXER_Q_K, .whole = true},
    {.hf = LAYER "self_attn.indexer.q_layernorm", .gguf = "blk.{}.indexer.q_norm", .form = PP_HF_PLUS_ONE},
    {.hf = LAYER "self_attn.indexer.k_layernorm", .gguf = "blk.{}.indexer.k_norm", .form = PP_HF_PLUS_ONE},
    {.hf = PLE "ple_embedding.ngram_embedding.shard_{}", .gguf = "blk.{}.ple_embd.{}"},
    {.hf = PLE "ple_embedding.ngram_embedding.shard_0.weight", .gguf = "per_layer_token_embd.weight", .whole = true,
     .hashed = true},
    {.hf = PLE "key_proj", .gguf = "blk.{}.ple_key"},
    {.hf = PLE "value_proj", .gguf = "blk.{}.ple_value"},
    {.hf = PLE "norm_key", .gguf = "blk.{}.ple_norm_key", .form = PP_HF_PLUS_ONE},
    {.hf = PLE "norm_query", .gguf = "blk.{}.ple_norm_query", .form = PP_HF_PLUS_ONE},
    {.hf = PLE "norm_conv", .gguf = "blk.{}.ple_norm_conv", .form = PP_HF_PLUS_ONE},
    {.hf = PLE "conv1d.weight", .gguf = "blk.{}.ple_conv1d.weight", .form = PP_HF_CONV, .whole = true},
    PP_DELTA_NAMES,
    PP_DELTA_APART_NAMES,
    {.hf = NULL},
};
/* Fields that follow from the others. */
static const char *const ignored[] = {".rotary_emb.inv_freq", ".ple_embedding.layer_multipliers",
                                      ".ple_embedding.ngram_heads_vocab_sizes",
                                      ".ple_embedding.ngram_heads_offsets", NULL};
static const char *const classes[] = {"Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration", "qwen4_exp_text",
                                      "qwen4_exp", NULL};
static const char *const others[] = {"visual.", "model.visual.", "mtp.", "model.mtp.", NULL};
static const struct pp_arch_parts parts = {
    .model_type = "qwen4_exp_text", .prefixes = pp_qwen_prefixes, .others = others};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 248320, \"hidden_size\": 2048, \"num_hidden_layers\": 40, \"num_attention_heads\": 16,"
             "\"num_key_value_heads\": 2, \"head_dim\": 256, \"max_position_embeddings\": 32768,"
             "\"rms_norm_eps\": 1e-6, \"partial_rotary_factor\": 0.25, \"linear_conv_kernel_dim\": 4,"
             "\"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, \"linear_num_key_heads\": 16,"
             "\"linear_num_value_heads\": 32, \"moe_intermediate_size\": 512, \"intermediate_size\": 512,"
             "\"shared_expert_intermediate_size\": 512, \"num_experts\": 512, \"num_experts_per_tok\": 10,"
             "\"norm_topk_prob\": true, \"hc_count\": 4, \"hc_lowrank\": 320, \"ple_conv_kernel_size\": 4,"
             "\"ngram_size\": 3, \"heads_per_ngram\": 8, \"ngram_vocab_size_base\": 20000000, \"seed\": 1234,"
             "\"split_ngram_parts\": 512}"},
    {.json = NULL},
};
static const struct pp_expert_keys expert_keys = {
    .n = "num_experts", .n_used = "num_experts_per_tok", .n_ff = "moe_intermediate_size",
    .shared_n_ff = "shared_expert_intermediate_size", .norm_topk = "norm_topk_prob"};

/* Fixed properties of the family. */
static enum pp_code set_known(struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n_attending = 0;
    hp->hyper = hp->no_output_norm = hp->index_pooled = hp->index_neox = hp->state_sigmoids = true;
    for (int64_t l = 0; l < hp->n_layer; l++)
        n_attending += !(hp->layer[l] & PP_LAYER_RECURRENT);
    if (n_attending == hp->n_layer) /* only states keep a cache's positions, and with them blocks, in place */
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family without states is not supported");
    if (hp->n_stream < 2 || hp->stream_rank < 1)
        return pp_fail(err, PP_ERR_FORMAT, "the model has %lld residual streams with gates of rank %lld, which cannot "
                       "be", (long long)hp->n_stream, (long long)hp->stream_rank);
    if (hp->index_top_k < 1)
        return pp_fail(err, PP_ERR_FORMAT, "the model's index picks %lld positions, which is not valid",
                       (long long)hp->index_top_k);
    return PP_OK;
}

/* --- hashes ------------------------------------------------------------------------------------------------------ */

static const uint64_t GAMMA = 0x9e3779b97f4a7c15;

/* SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). */
static uint64_t scramble(uint64_t x)
{
    x += GAMMA;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* Makes a multiplier: odd, and so small that its product with a token fits in 63 bits. */
static int64_t multiplier_of(int64_t seed, int64_t i, int64_t n_vocab)
{
    const int64_t half = INT64_MAX / (n_vocab > 0 ? n_vocab : 1) / 2;
    return (int64_t)(2 * (scramble((uint64_t)seed + GAMMA * (uint64_t)(i + 1)) % (uint64_t)(half > 0 ? half : 1)) + 1);
}

static bool is_prime(int64_t n)
{
    bool prime = n == 2 || (n > 2 && n % 2 != 0);
    for (int64_t d = 3; d * d <= n && prime; d += 2)
        prime = n % d != 0;
    return prime;
}

static bool has_valid_hashes(const struct pp_hashed *h)
{
    return h->size >= 2 && h->size <= PP_HASH_TOKENS && h->heads >= 1 && h->heads <= PP_HASH_HEADS / (h->size - 1);
}

/* Sets the multipliers from the seed, and the numbers of rows to consecutive primes. */
static enum pp_code fill_hashes(struct pp_hparams *hp, int64_t base, struct pp_error *err)
{
    struct pp_hashed *h = &hp->hashed;
    if (base < 2 || base > INT32_MAX - (1 << 16) || !has_valid_hashes(h))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%lld embeddings each of 2 to %lld tokens, of at least %lld rows, are "
                       "not supported", (long long)h->heads, (long long)h->size, (long long)base);
    for (int64_t i = 0; i < h->size; i++)
        h->multiplier[i] = multiplier_of(h->seed, i, hp->n_vocab);
    for (int64_t i = 0, n = base - 1; i < (h->size - 1) * h->heads; i++) {
        do
            n++;
        while (!is_prime(n));
        h->n_rows[i] = n;
    }
    return PP_OK;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

static enum pp_code refuse_others(const cJSON *config, struct pp_error *err)
{
    static const char key[] = "output_gate_type";
    const char *gate = cJSON_GetStringValue(pp_json_member(config, key));
    if (!gate || strcmp(gate, "sigmoid") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s \"%.40s\" is not supported; sigmoid is", key,
                       gate ? gate : "silu");
    return PP_OK;
}

/* Without a list all but every full_attention_interval-th layer have states. */
static enum pp_code layers_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char key[] = "layer_types";
    static const char *const words[] = {"linear_attention", "indexed_attention", "full_attention", "hybrid_indexed"};
    enum { N_WORDS = sizeof words / sizeof *words };
    const cJSON *list = pp_json_member(config, key), *item;
    int64_t l = 0, step = 4;
    const enum pp_code code = pp_config_int(config, "full_attention_interval", &step, err);
    for (int64_t i = 0; !cJSON_IsArray(list) && step > 0 && i < hp->n_layer; i++)
        hp->layer[i] |= (i + 1) % step ? PP_LAYER_RECURRENT : 0;
    if (code || !cJSON_IsArray(list))
        return code;
    if (cJSON_GetArraySize(list) != hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s does not name %lld layers", key, (long long)hp->n_layer);
    cJSON_ArrayForEach(item, list)
    {
        int i = 0;
        while (i < N_WORDS && !pp_config_is_layer_word(item, words[i]))
            i++;
        if (i == N_WORDS)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s has \"%.40s\", which is not supported for this "
                           "family", key, cJSON_IsString(item) ? item->valuestring : "");
        hp->layer[l++] |= i == 0 ? PP_LAYER_RECURRENT : 0;
    }
    return PP_OK;
}

static enum pp_code index_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n_keys = 0;
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {{"indexer_n_heads", &hp->n_index_head}, {"indexer_kv_heads", &n_keys},
                   {"indexer_head_dim", &hp->index_dim}, {"indexer_budget", &hp->index_top_k},
                   {"indexer_compress_ratio", &hp->index_block}};
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++) {
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
        if (!code && *numbers[i].v == 0)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json lacks %s; models without an index are not supported "
                           "for this family", numbers[i].key);
    }
    if (!code && n_keys != 1)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: an index with %lld heads of keys is not supported; one "
                       "with 1 is", (long long)n_keys);
    return code;
}

/* A token, or a list whose first one counts. */
static enum pp_code end_from_config(const cJSON *config, int64_t *end, struct pp_error *err)
{
    const cJSON *item = pp_json_member(config, "eos_token_id");
    const cJSON *one = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 0) : item;
    if (!cJSON_IsNumber(one) || one->valuedouble != (double)one->valueint || one->valueint < 0)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: eos_token_id is neither a token nor a list that begins with "
                                           "one");
    *end = one->valueint;
    return PP_OK;
}

static enum pp_code hashes_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const char layers_key[] = "ple_layer_ids";
    const cJSON *layers = pp_json_member(config, layers_key), *first = cJSON_GetArrayItem(layers, 0);
    struct pp_hashed *h = &hp->hashed;
    int64_t base = 0, width = hp->n_embd;
    const struct {
        const char *key;
        int64_t *v;
    } numbers[] = {{"ngram_size", &h->size}, {"heads_per_ngram", &h->heads}, {"ple_embed_dim", &width},
                   {"ple_conv_kernel_size", &h->taps}, {"ngram_vocab_size_base", &base}, {"seed", &h->seed},
                   {"split_ngram_parts", &h->parts}};
    enum pp_code code = PP_OK;
    if (!first)
        return PP_OK;
    if (cJSON_GetArraySize(layers) != 1)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s names %d layers; one is supported", layers_key,
                       cJSON_GetArraySize(layers));
    if (!cJSON_IsNumber(first) || first->valueint < 1 || first->valueint > hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: %s names a layer that there is not", layers_key);
    h->layer = first->valueint - 1;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !code; i++)
        code = pp_config_int(config, numbers[i].key, numbers[i].v, err);
    if (!code)
        code = end_from_config(config, &h->end, err);
    if (!code)
        code = fill_hashes(hp, base, err);
    if (!code && (width < 1 || width % ((h->size - 1) * h->heads) != 0))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: ple_embed_dim is %lld, which %lld embeddings do not share "
                       "evenly", (long long)width, (long long)((h->size - 1) * h->heads));
    h->width = code ? 0 : width / ((h->size - 1) * h->heads);
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum pp_code code = refuse_others(config, err);
    if (!code)
        code = pp_delta_sizes_from_config(config, hp, err);
    if (!code)
        code = layers_from_config(config, hp, err);
    if (!code)
        code = pp_config_experts(config, &expert_keys, hp, err);
    if (!code)
        code = index_from_config(config, hp, err);
    if (!code)
        code = pp_config_int(config, "hc_count", &hp->n_stream, err);
    if (!code)
        code = pp_config_int(config, "hc_lowrank", &hp->stream_rank, err);
    if (!code)
        code = hashes_from_config(config, hp, err);
    return code ? code : set_known(hp, err);
}

static void put_hashes(const struct pp_hparams *hp, cJSON *config)
{
    const struct pp_hashed *h = &hp->hashed;
    cJSON *layers = cJSON_AddArrayToObject(config, "ple_layer_ids");
    if (!h->size)
        return;
    cJSON_AddItemToArray(layers, cJSON_CreateNumber((double)(h->layer + 1)));
    pp_config_put(config, "ple_embed_dim", (h->size - 1) * h->heads * h->width);
    pp_config_put(config, "ple_conv_kernel_size", h->taps);
    pp_config_put(config, "ngram_size", h->size);
    pp_config_put(config, "heads_per_ngram", h->heads);
    pp_config_put(config, "ngram_vocab_size_base", h->n_rows[0]);
    pp_config_put(config, "seed", h->seed);
    pp_config_put(config, "split_ngram_parts", h->parts);
    pp_config_put(config, "eos_token_id", h->end);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_delta_to_config(hp, config);
    cJSON *types = cJSON_CreateArray();
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const char *word = hp->layer[l] & PP_LAYER_RECURRENT                ? "linear_attention"
                           : hp->hashed.size && l == hp->hashed.layer ? "hybrid_indexed"
                                                                      : "deepseek_sparse_attention";
        cJSON_AddItemToArray(types, cJSON_CreateString(word));
    }
    cJSON_ReplaceItemInObjectCaseSensitive(config, "layer_types", types);
    pp_config_put_float(config, "partial_rotary_factor", (float)hp->rope_dim / (float)hp->head_dim);
    pp_config_put_experts(hp, &expert_keys, config);
    pp_config_put_text(config, "output_gate_type", "sigmoid");
    pp_config_put(config, "indexer_n_heads", hp->n_index_head);
    pp_config_put(config, "indexer_kv_heads", 1);
    pp_config_put(config, "indexer_head_dim", hp->index_dim);
    pp_config_put(config, "indexer_budget", hp->index_top_k);
    pp_config_put(config, "indexer_compress_ratio", hp->index_block);
    pp_config_put(config, "hc_count", hp->n_stream);
    pp_config_put(config, "hc_lowrank", hp->stream_rank);
    put_hashes(hp, config);
}

/* --- GGUF --------------------------------------------------------------------------------------------------------- */

enum { HEAD_COUNT, KEY_LENGTH, TOP_K, STREAMS, RANK, N_NUMBERS };
static const char *const number_keys[N_NUMBERS] = {
    [HEAD_COUNT] = "qwen4exp.attention.indexer.head_count", [KEY_LENGTH] = "qwen4exp.attention.indexer.key_length",
    [TOP_K] = "qwen4exp.attention.indexer.top_k", [STREAMS] = "qwen4exp.hyper_connection.count",
    [RANK] = "qwen4exp.hyper_connection.low_rank"};
enum { SIZE, HEADS, TAPS, END, WIDTH, N_HASH_NUMBERS };
static const char *const hash_keys[N_HASH_NUMBERS] = {
    [SIZE] = "qwen4exp.ple.ngram_size", [HEADS] = "qwen4exp.ple.heads_per_ngram", [TAPS] = "qwen4exp.ple.conv_kernel",
    [END] = "qwen4exp.ple.eos_token_id", [WIDTH] = "qwen4exp.embedding_length_per_layer_input"};
static const char ratios_key[] = "qwen4exp.attention.compress_ratios", layers_key[] = "qwen4exp.ple.layers",
                  multipliers_key[] = "qwen4exp.ple.layer_multipliers",
                  rows_key[] = "qwen4exp.ple.head_vocab_sizes", offsets_key[] = "qwen4exp.ple.head_offsets";

/* An array with a number for each layer: 0 for layers with states, the same for all others. */
static enum pp_code ratios_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool recurs = hp->layer[l] & PP_LAYER_RECURRENT;
        int64_t ratio = 0;
        if (!pp_gguf_array_int(g, ratios_key, (size_t)l, &ratio))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is no list of all layers' numbers",
                           ratios_key);
        hp->index_block = hp->index_block || recurs ? hp->index_block : ratio;
        if (!recurs && ratio != hp->index_block)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is not the same for all layers with attention, which "
                           "is not supported", ratios_key);
    }
    return PP_OK;
}

/* Finds the seed of the file's multipliers by trying small ones, which are all that configurations use. */
static bool find_seed(const struct pp_gguf *g, struct pp_hparams *hp)
{
    enum { SEEDS = 1 << 20 };
    int64_t there[PP_HASH_TOKENS];
    bool found = false;
    for (int64_t i = 0; i < hp->hashed.size; i++)
        if (!pp_gguf_array_int(g, multipliers_key, (size_t)i, &there[i]))
            return false;
    for (int64_t seed = 0; seed < SEEDS && !found; seed++) {
        found = true;
        for (int64_t i = 0; i < hp->hashed.size && found; i++)
            found = there[i] == multiplier_of(seed, i, hp->n_vocab);
        hp->hashed.seed = seed;
    }
    return found;
}

static enum pp_code hashes_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    struct pp_hashed *h = &hp->hashed;
    int64_t *const numbers[N_HASH_NUMBERS] = {
        [SIZE] = &h->size, [HEADS] = &h->heads, [TAPS] = &h->taps, [END] = &h->end, [WIDTH] = &h->width};
    int64_t more, base = 0, first = 0;
    if (!pp_gguf_array_int(g, layers_key, 0, &h->layer))
        return PP_OK;
    if (pp_gguf_array_int(g, layers_key, 1, &more))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s names several layers; one is supported", layers_key);
    for (int i = 0; i < N_HASH_NUMBERS; i++)
        if (!pp_gguf_int(g, hash_keys[i], numbers[i]))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is not an integer", hash_keys[i]);
    h->parts = 1;
    pp_gguf_array_int(g, rows_key, 0, &base);
    if (!has_valid_hashes(h) || !find_seed(g, hp))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is not what a seed gives, which is not supported",
                       multipliers_key);
    const enum pp_code code = fill_hashes(hp, base, err);
    for (int64_t i = 0; i < (h->size - 1) * h->heads && !code; i++) {
        int64_t n = 0, offset = first;
        pp_gguf_array_int(g, offsets_key, (size_t)i, &offset);
        if (!pp_gguf_array_int(g, rows_key, (size_t)i, &n) || n != h->n_rows[i] || offset != first)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s and %s are not consecutive prime numbers, which is "
                           "not supported", rows_key, offsets_key);
        first += n;
    }
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t *const numbers[N_NUMBERS] = {[HEAD_COUNT] = &hp->n_index_head, [KEY_LENGTH] = &hp->index_dim,
                                         [TOP_K] = &hp->index_top_k, [STREAMS] = &hp->n_stream,
                                         [RANK] = &hp->stream_rank};
    hp->state_tiled = true;
    hp->n_embd_layer = 0; /* its key has the width of the table's rows here */
    enum pp_code code = pp_delta_from_gguf(g, hp, err);
    for (int i = 0; i < N_NUMBERS && !code; i++)
        if (!pp_gguf_int(g, number_keys[i], numbers[i]))
            code = pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is not an integer", number_keys[i]);
    if (!code)
        code = ratios_from_gguf(g, hp, err);
    if (!code)
        code = hashes_from_gguf(g, hp, err);
    return code ? code : set_known(hp, err);
}

static void hashes_to_gguf(const struct pp_hashed *h, struct pp_gguf_writer *w)
{
    const int64_t numbers[N_HASH_NUMBERS] = {
        [SIZE] = h->size, [HEADS] = h->heads, [TAPS] = h->taps, [END] = h->end, [WIDTH] = h->width};
    const size_t n = (size_t)((h->size - 1) * h->heads);
    uint64_t multipliers[PP_HASH_TOKENS], rows[PP_HASH_HEADS], offsets[PP_HASH_HEADS], first = 0;
    const uint32_t layer = (uint32_t)h->layer;
    for (int64_t i = 0; i < h->size; i++)
        multipliers[i] = (uint64_t)h->multiplier[i];
    for (size_t i = 0; i < n; i++) {
        rows[i] = (uint64_t)h->n_rows[i];
        offsets[i] = first;
        first += rows[i];
    }
    for (int i = 0; i < N_HASH_NUMBERS; i++)
        pp_gguf_add_u32(w, hash_keys[i], (uint32_t)numbers[i]);
    pp_gguf_add_u32_array(w, layers_key, &layer, 1);
    pp_gguf_add_u64_array(w, multipliers_key, multipliers, (size_t)h->size);
    pp_gguf_add_u64_array(w, rows_key, rows, n);
    pp_gguf_add_u64_array(w, offsets_key, offsets, n);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    const int64_t numbers[N_NUMBERS] = {[HEAD_COUNT] = hp->n_index_head, [KEY_LENGTH] = hp->index_dim,
                                        [TOP_K] = hp->index_top_k, [STREAMS] = hp->n_stream,
                                        [RANK] = hp->stream_rank};
    uint32_t ratios[PP_MAX_LAYERS];
    pp_qwen_to_gguf(hp, w);
    for (int i = 0; i < N_NUMBERS; i++)
        pp_gguf_add_u32(w, number_keys[i], (uint32_t)numbers[i]);
    for (int64_t l = 0; l < hp->n_layer; l++)
        ratios[l] = hp->layer[l] & PP_LAYER_RECURRENT ? 0 : (uint32_t)hp->index_block;
    pp_gguf_add_u32_array(w, ratios_key, ratios, (size_t)hp->n_layer);
    if (hp->hashed.size)
        hashes_to_gguf(&hp->hashed, w);
}

const struct pp_arch pp_arch_qwen4 = {
    .name = "qwen4exp",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_expert_names,
    .ignored = ignored,
    .defaults = defaults,
    .parts = &parts,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .gated_queries = true, .ffn_norm = "post_attention_norm"},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
