/* doge.c - Doge (arXiv 2412.11834; transformers, models/doge): Llama with norms of heads, keys with scores of their
 * own (decoder_scored.c), and a stream that is multiplied by a vector before a part's output is added. Only pippin
 * makes GGUF files of it.
 *
 * Beyond keep_window_size positions only those with the largest scores would be seen, which is not implemented:
 * contexts are limited to that length, which no published model exceeds. Doge's mixture of experts is not supported:
 * in transformers a token's result depends on the other tokens of the batch, as halves of router logits are taken for
 * other tokens'. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

static const struct pp_arch_name names[] = {
    {.hf = "model.layers.{}.self_attn.dt_proj", .gguf = "blk.{}.attn_key_score"},
    {.hf = "model.layers.{}.self_attn.A", .gguf = "blk.{}.attn_key_score_a", .whole = true},
    {.hf = "model.layers.{}.self_attn.q_norm", .gguf = "blk.{}.attn_q_norm"},
    {.hf = "model.layers.{}.self_attn.k_norm", .gguf = "blk.{}.attn_k_norm"},
    {.hf = "model.layers.{}.input_residual", .gguf = "blk.{}.attn_residual", .whole = true},
    {.hf = "model.layers.{}.post_attention_residual", .gguf = "blk.{}.ffn_residual", .whole = true},
    {.hf = NULL},
};
static const char *const classes[] = {"DogeForCausalLM", "doge", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 32768, \"hidden_size\": 1024, \"intermediate_size\": 2048, \"num_hidden_layers\": 32,"
             "\"num_attention_heads\": 8, \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-6,"
             "\"keep_window_size\": 2048}"},
    {.json = NULL},
};

static enum pp_code finish(struct pp_hparams *hp, struct pp_error *err)
{
    hp->key_scores = true;
    if (hp->sizes_vary)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has layers that differ in heads or sizes, which is not "
                                                "supported for this family (%s)", hp->arch);
    return PP_OK;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t keep_window = 2048;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code && pp_config_flag(config, "is_moe", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: is_moe is true, which is not supported: what Doge's "
                       "experts give depends on the other tokens of a batch");
    if (!code && cJSON_IsNumber(pp_json_member(config, "sliding_window")))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: sliding_window is set, which is not supported for this "
                       "family");
    if (!code)
        code = pp_config_int(config, "keep_window_size", &keep_window, err);
    if (!code)
        code = pp_check_range("keep_window_size", keep_window, 1, INT32_MAX, err);
    if (!code && keep_window < hp->n_ctx_train)
        hp->n_ctx_train = keep_window;
    return code ? code : finish(hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    return finish(hp, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_text(config, "hidden_act", "silu");
    pp_config_put(config, "keep_window_size", hp->n_ctx_train);
    cJSON_AddBoolToObject(config, "is_moe", false);
}

const struct pp_arch pp_arch_doge = {
    .name = "doge",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.qk_norm = PP_QK_BY_HEAD, .scaled_residual = true},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
