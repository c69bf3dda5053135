/* plamo.c - PLaMo (13B): attention and feed-forward part in parallel after one norm. In folders query head i uses KV
 * head i mod n_head_kv; in GGUF files heads are grouped as usual. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"

#define LAYER "model.layers.layers.{}."

static const struct pp_arch_name names[] = {
    {.hf = "model.embed_tokens", .gguf = "token_embd"},
    {.hf = "model.norm", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    {.hf = LAYER "norm", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "self_attn.q_proj", .gguf = "blk.{}.attn_q"},
    {.hf = LAYER "self_attn.k_proj", .gguf = "blk.{}.attn_k"},
    {.hf = LAYER "self_attn.v_proj", .gguf = "blk.{}.attn_v"},
    {.hf = LAYER "self_attn.o_proj", .gguf = "blk.{}.attn_output"},
    {.hf = LAYER "mlp.gate_proj", .gguf = "blk.{}.ffn_gate"},
    {.hf = LAYER "mlp.up_proj", .gguf = "blk.{}.ffn_up"},
    {.hf = LAYER "mlp.down_proj", .gguf = "blk.{}.ffn_down"},
    {.hf = NULL},
};
static const char *const classes[] = {"PlamoForCausalLM", "plamo", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 13312, \"num_hidden_layers\": 32,"
             "\"num_attention_heads\": 32, \"max_position_embeddings\": 2048, \"n_shared_head\": 8}"},
    {.json = NULL},
};

/* num_key_value_heads is not the number of KV heads; n_shared_head determines it. */
static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t share = 8;
    enum pp_code code = pp_config_int(config, "n_shared_head", &share, err);
    hp->parallel = true;
    if (!code && (share < 1 || hp->n_head % share != 0))
        return pp_fail(err, PP_ERR_FORMAT, "config.json: n_shared_head is %lld, which does not divide %lld heads",
                       (long long)share, (long long)hp->n_head);
    hp->n_head_kv = hp->n_head / share;
    hp->heads_tiled = share > 1 && hp->n_head_kv > 1;
    return code;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    hp->parallel = true;
    return PP_OK;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "num_key_value_heads", hp->n_head);
    pp_config_put(config, "n_shared_head", hp->n_head / hp->n_head_kv);
}

const struct pp_arch pp_arch_plamo = {
    .name = "plamo",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
};
