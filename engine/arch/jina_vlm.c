/* jina_vlm.c - folders of jina-vlm (arXiv 2512.04032), in the format of its own code and MLX's. The language model is
 * Qwen 3 with other names, with hyperparameters in nested objects, a fused qkv, and up and gate in one matrix, in that
 * order. It becomes an ordinary Qwen 3. Left out are embeddings of image tokens, which no text has, and biases of q, k
 * and v, which are untrained zeros. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"

#define LAYER "layers.{}."
#define HALVES(name)                                                                                                   \
    {.hf = LAYER name, .gguf = "blk.{}.ffn_up.weight", .second = "blk.{}.ffn_gate.weight", .form = PP_HF_HALVES,       \
     .whole = true, .read_only = true}
#define ONE(theirs, ours) {.hf = theirs, .gguf = ours, .read_only = true}
#define TOGETHER(name) {.hf = LAYER name, .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_STACKED, .read_only = true}

static const struct pp_arch_name names[] = {
    {.hf = "embedding.embedding", .gguf = "token_embd.weight", .whole = true, .read_only = true},
    ONE("embedding", "token_embd"), /* in folders without the rows for images */
    ONE("ln_f", "output_norm"),
    ONE("lm_head", "output"),
    ONE(LAYER "attn_lnorm", "blk.{}.attn_norm"),
    TOGETHER("attn.qkv_w"),
    ONE(LAYER "attn.q_lnorm", "blk.{}.attn_q_norm"),
    ONE(LAYER "attn.k_lnorm", "blk.{}.attn_k_norm"),
    ONE(LAYER "attn.out", "blk.{}.attn_output"),
    ONE(LAYER "ffn_lnorm", "blk.{}.ffn_norm"),
    HALVES("ffn.up.weight"),
    ONE(LAYER "ffn.down", "blk.{}.ffn_down"),
    /* MLX's names */
    ONE(LAYER "attn_norm", "blk.{}.attn_norm"),
    TOGETHER("attn.qkv"),
    ONE(LAYER "attn.q_norm", "blk.{}.attn_q_norm"),
    ONE(LAYER "attn.k_norm", "blk.{}.attn_k_norm"),
    ONE(LAYER "ffn_norm", "blk.{}.ffn_norm"),
    HALVES("ffn.gate_up.weight"),
    {.hf = NULL},
};
static const char *const ignored[] = {".attn.q_b", ".attn.k_b", ".attn.v_b", NULL};
static const char *const classes[] = {"JinaVLMForConditionalGeneration", "jvlm", "jina_vlm", NULL};
static const char *const prefixes[] = {"model.language_model.", "", "language_model.", "", NULL};
static const char *const others[] = {"model.vision_model.", "vision_model.", "vl_connector.",
                                     "model.language_model.embedding.new_embedding",
                                     "language_model.embedding.new_embedding", NULL};
static const struct pp_arch_parts parts = {.model_type = "jvlm", .prefixes = prefixes, .others = others};

/* Placeholders for the common reader; the numbers of heads and the feed-forward width are read below. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"num_attention_heads\": 1, \"intermediate_size\": 1, \"rope_theta\": 1000000}"},
    {.json = NULL},
};

static enum pp_code fail_value(const char *key, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s says that the text is of another family than Qwen 3, "
                   "which pippin does not run in jina-vlm's folders", key);
}

/* Flags that must have a value; otherwise: the value of an absent key. NULL at the end. */
struct flag {
    const char *key;
    bool otherwise, wanted;
};

static enum pp_code check_flags(const cJSON *config, const struct flag *flags, struct pp_error *err)
{
    for (const struct flag *f = flags; f->key; f++)
        if (pp_config_flag(config, f->key, f->otherwise) != f->wanted)
            return fail_value(f->key, err);
    return PP_OK;
}

/* Numbers that must be absent or have this value. */
static enum pp_code check_absent(const cJSON *config, const char *key, double same, struct pp_error *err)
{
    const cJSON *item = pp_json_member(config, key);
    const bool absent = !item || cJSON_IsNull(item) || (cJSON_IsNumber(item) && item->valuedouble == same);
    return absent ? PP_OK : fail_value(key, err);
}

/* A norm's object, from which the epsilon is read. */
static enum pp_code read_norm(const cJSON *config, float *eps, struct pp_error *err)
{
    static const char *const types[] = {"rms", NULL};
    static const struct flag flags[] = {{"with_affine", true, true}, {"bias", false, false}, {NULL, false, false}};
    const cJSON *norm = pp_json_member(config, "lnorm_config");
    if (!cJSON_IsString(pp_json_member(norm, "type"))) /* the default is LayerNorm */
        return fail_value("lnorm_config", err);
    enum pp_code code = pp_config_word(norm, "type", types, err);
    if (!code)
        code = check_flags(norm, flags, err);
    *eps = 1e-5f;
    return code ? code : pp_config_float(norm, "eps", eps, err);
}

static enum pp_code read_attention(const cJSON *config, struct pp_hparams *hp, float *eps, struct pp_error *err)
{
    static const struct flag flags[] = {
        {"q_bias", false, false}, {"k_bias", false, false}, {"v_bias", false, false}, {"o_bias", false, false},
        {"q_lnorm", false, true}, {"k_lnorm", false, true}, {"v_lnorm", false, false}, {"o_lnorm", false, false},
        {"inner_lnorm", false, false}, {"qkv_lnorm_on_heads", false, true}, {NULL, false, false}};
    enum pp_code code = check_flags(config, flags, err);
    if (!code)
        code = check_absent(config, "sliding_window", -1, err);
    if (!code)
        code = check_absent(config, "softmax_scale", 0, err);
    if (!code)
        code = check_absent(config, "clip_qkv", 0, err);
    hp->n_head = 12;
    if (!code)
        code = pp_config_int(config, "n_heads", &hp->n_head, err);
    if (code)
        return code;
    hp->n_head_kv = hp->n_head;
    hp->head_dim = hp->n_head > 0 ? hp->n_embd / hp->n_head : 0;
    code = pp_config_int(config, "n_kv_heads", &hp->n_head_kv, err);
    if (!code)
        code = pp_config_int(config, "head_dim", &hp->head_dim, err);
    return code ? code : read_norm(config, eps, err);
}

static enum pp_code read_ff(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const struct flag flags[] = {{"bias", false, false}, {"inner_lnorm", false, false},
                                        {"gated_activation", true, true}, {NULL, false, false}};
    int64_t ratio = 4, size = 0;
    enum pp_code code = pp_config_activation(config, "activation_type", pp_silu_names, err);
    if (!code)
        code = check_flags(config, flags, err);
    if (!code)
        code = pp_config_int(config, "ratio", &ratio, err);
    if (!code)
        code = pp_config_int(config, "size", &size, err);
    if (!code && (ratio < 1 || ratio > 1024))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: ratio is not from 1 to 1024");
    hp->n_ff = size || code ? size : ratio * hp->n_embd;
    return code;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const struct flag whole[] = {{"rope", false, true}, {"normalize_input_embeds", false, false},
                                        {NULL, false, false}};
    static const struct flag flags[] = {{"postnorm", false, false}, {NULL, false, false}};
    const cJSON *block = pp_json_member(config, "block_config");
    float eps = 0;
    if (!cJSON_IsObject(block))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: text_config has no object block_config");
    hp->legacy_names = true;
    enum pp_code code = check_flags(config, whole, err);
    if (!code)
        code = check_flags(block, flags, err);
    if (!code)
        code = check_absent(block, "attn_lscale_init", NAN, err);
    if (!code)
        code = check_absent(block, "ffn_lscale_init", NAN, err);
    if (!code)
        code = check_absent(config, "partial_rotary_factor", 1, err);
    if (!code)
        code = read_norm(block, &hp->norm_eps, err);
    if (!code)
        code = read_attention(pp_json_member(block, "attn_config"), hp, &eps, err);
    if (!code && eps != hp->norm_eps)
        code = fail_value("eps of attn_config", err);
    if (!code)
        code = read_ff(pp_json_member(block, "ffn_config"), hp, err);
    if (!code)
        code = pp_config_int(config, "embedding_size", &hp->n_vocab, err);
    hp->n_ctx_train = 1024;
    if (!code)
        code = pp_config_int(config, "max_sequence_length", &hp->n_ctx_train, err);
    if (!code)
        code = pp_config_int(config, "max_position_embeddings", &hp->n_ctx_train, err);
    return code ? code : pp_config_rope(config, hp, err); /* again, now that the head size is known */
}

const struct pp_arch pp_arch_jina_vlm = {
    .name = "qwen3",
    .hf_classes = classes,
    .names = names,
    .ignored = ignored,
    .defaults = defaults,
    .parts = &parts,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD},
    .from_config = from_config,
};
