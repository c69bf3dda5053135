/* rwkv4.c - RWKV 4 (arXiv 2305.13048; transformers, models/rwkv): no attention, LayerNorm. Only pippin makes GGUF
 * files of it, which have the blend weights as in RWKV 6's files: of the position before; in folders they are of the
 * position itself. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/arch/rwkv.h"

#define LAYER "rwkv.blocks.{}."
#define VECTOR(from, to, how) {.hf = LAYER from, .gguf = "blk.{}." to ".weight", .form = how, .whole = true}

static const struct pp_arch_name names[] = {
    {.hf = "rwkv.embeddings", .gguf = "token_embd"},
    {.hf = "rwkv.blocks.0.pre_ln", .gguf = "token_embd_norm"},
    {.hf = "rwkv.ln_out", .gguf = "output_norm"},
    {.hf = "head", .gguf = "output"},
    {.hf = LAYER "ln1", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "ln2", .gguf = "blk.{}.attn_norm_2"},
    VECTOR("attention.time_decay", "time_mix_decay", PP_HF_MINUS_EXP),
    VECTOR("attention.time_first", "time_mix_first", PP_HF_SAME),
    VECTOR("attention.time_mix_key", "time_mix_lerp_k", PP_HF_ONE_MINUS),
    VECTOR("attention.time_mix_value", "time_mix_lerp_v", PP_HF_ONE_MINUS),
    VECTOR("attention.time_mix_receptance", "time_mix_lerp_r", PP_HF_ONE_MINUS),
    {.hf = LAYER "attention.key", .gguf = "blk.{}.time_mix_key"},
    {.hf = LAYER "attention.value", .gguf = "blk.{}.time_mix_value"},
    {.hf = LAYER "attention.receptance", .gguf = "blk.{}.time_mix_receptance"},
    {.hf = LAYER "attention.output", .gguf = "blk.{}.time_mix_output"},
    VECTOR("feed_forward.time_mix_key", "channel_mix_lerp_k", PP_HF_ONE_MINUS),
    VECTOR("feed_forward.time_mix_receptance", "channel_mix_lerp_r", PP_HF_ONE_MINUS),
    {.hf = LAYER "feed_forward.key", .gguf = "blk.{}.channel_mix_key"},
    {.hf = LAYER "feed_forward.value", .gguf = "blk.{}.channel_mix_value"},
    {.hf = LAYER "feed_forward.receptance", .gguf = "blk.{}.channel_mix_receptance"},
    {.hf = NULL},
};
static const char *const classes[] = {"RwkvForCausalLM", "rwkv", NULL};
/* Placeholders for the common reader, whose keys are absent here; see from_config. */
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 50277, \"hidden_size\": 4096, \"num_hidden_layers\": 32, \"num_attention_heads\": 1, "
             "\"intermediate_size\": null}"},
    {.json = NULL},
};
enum { CHANNELS = 64, NUMBERS = 16 }; /* of a "head"; its state is a square matrix with four numbers for each channel */

static enum pp_code set_states(struct pp_hparams *hp, struct pp_error *err)
{
    if (hp->n_embd % CHANNELS != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model of this family that is %lld wide is not supported; multiples "
                       "of %d are", (long long)hp->n_embd, CHANNELS);
    pp_rwkv_states_only(hp, CHANNELS);
    hp->state_key_dim = hp->state_value_dim = NUMBERS;
    hp->rwkv4 = true;
    return PP_OK;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    return set_states(hp, err);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t inner = hp->n_embd;
    hp->norm_eps = 1e-5f;
    enum pp_code code = pp_config_float(config, "layer_norm_epsilon", &hp->norm_eps, err);
    if (!code)
        code = pp_config_int(config, "attention_hidden_size", &inner, err);
    if (!code && inner != hp->n_embd)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: attention_hidden_size is %lld, which is not supported in "
                       "this family; the model's width is", (long long)inner);
    hp->n_ctx_train = 1 << 20; /* there is no limit; this is what converters write */
    return code ? code : set_states(hp, err);
}

/* Programs that halve the weights of later layers, to stay within FP16's range, do so when they load a folder. */
static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    static const char *const gone[] = {"num_attention_heads", "num_key_value_heads", "head_dim", "rope_theta",
                                       "attention_bias", "mlp_bias", "hidden_act", "partial_rotary_factor",
                                       "max_position_embeddings"};
    enum { CONTEXT = 1024, HALVED = 6 }; /* usual values, which do not affect results */
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, gone[i]);
    pp_config_put(config, "attention_hidden_size", hp->n_embd);
    pp_config_put(config, "context_length", CONTEXT);
    pp_config_put(config, "rescale_every", HALVED);
}

const struct pp_arch pp_arch_rwkv4 = {
    .name = "rwkv",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .decoder = {.layer_norm = true, .norm_bias = true, .embd_norm = true, .ungated = true, .fn = PP_FN_RELU2},
    .defaults = defaults,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_epsilon",
};
