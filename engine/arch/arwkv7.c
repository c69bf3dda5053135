/* arwkv7.c - ARWKV (arXiv 2501.15570): RWKV 7's time mix in place of attention in Qwen 2's layers. Models may lack the
 * gates and the norm of the heads' output. */
#include <cjson/cJSON.h>
#include <string.h>

#include "engine/arch/families.h"
#include "engine/arch/rwkv.h"
#include "engine/base/json.h"

#define MIXER "model.layers.{}.self_attn.time_mixer."
#define FORMED(from, to, how) {.hf = MIXER from, .gguf = "blk.{}." to ".weight", .form = how, .whole = true}
#define BLEND(letter, number) FORMED("x_" letter, "time_mix_lerp." number, PP_HF_LERP)
#define LOW(letter)                                                 \
    FORMED(letter "1", "time_mix_" letter "1", PP_HF_TRANSPOSED),   \
    FORMED(letter "2", "time_mix_" letter "2", PP_HF_TRANSPOSED),   \
    FORMED(letter "0", "time_mix_" letter "0", PP_HF_VECTOR_3D)

static const struct pp_arch_name names[] = {
    BLEND("r", "0"), BLEND("w", "1"), BLEND("k", "2"), BLEND("v", "3"), BLEND("a", "4"), BLEND("g", "5"),
    LOW("w"), LOW("a"), LOW("v"), LOW("g"),
    FORMED("k_k", "time_mix_k_k", PP_HF_VECTOR_3D),
    FORMED("k_a", "time_mix_k_a", PP_HF_VECTOR_3D),
    FORMED("r_k", "time_mix_r_k", PP_HF_STATE_HEAD_ROWS),
    {.hf = MIXER "receptance", .gguf = "blk.{}.time_mix_receptance"},
    {.hf = MIXER "key", .gguf = "blk.{}.time_mix_key"},
    {.hf = MIXER "value", .gguf = "blk.{}.time_mix_value"},
    {.hf = MIXER "output", .gguf = "blk.{}.time_mix_output"},
    {.hf = MIXER "ln_x", .gguf = "blk.{}.time_mix_ln"},
    {.hf = NULL},
};
static const char *const classes[] = {"RwkvHybridForCausalLM", "rwkv_hybrid", NULL};
static const char *const rank_keys[] = {"attention.decay_lora_rank", "attention.iclr_lora_rank",
                                        "attention.value_residual_mix_lora_rank", "attention.gate_lora_rank"};
enum { N_RANKS = 4, VERSION = 7, DIVISOR = 8 };

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    hp->rwkv_qwen = true;
    enum pp_code code = pp_rwkv_from_gguf(g, hp, rank_keys, N_RANKS - 1, err);
    pp_gguf_int(g, "arwkv7.attention.gate_lora_rank", &hp->rwkv_ranks[N_RANKS - 1]);
    return code;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_rwkv_to_gguf(hp, w, rank_keys, N_RANKS);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Whether all layers have the time mix: they are listed, or the value is "full". */
static bool is_full(const cJSON *layers, int64_t n_layer)
{
    const char *word = cJSON_GetStringValue(layers);
    return !layers || cJSON_IsNull(layers) || (word && strcmp(word, "full") == 0) ||
           (cJSON_IsArray(layers) && cJSON_GetArraySize(layers) == n_layer);
}

static enum pp_code check_kind(const cJSON *config, const struct pp_hparams *hp, struct pp_error *err)
{
    int64_t version = VERSION, divisor = DIVISOR;
    enum pp_code code = pp_config_int(config, "wkv_version", &version, err);
    if (!code)
        code = pp_config_int(config, "head_size_divisor", &divisor, err);
    if (!code && version != VERSION)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: wkv_version is %lld, which is not supported in this "
                       "family; %d is", (long long)version, VERSION);
    if (!code && !is_full(pp_json_member(config, "wkv_layers"), hp->n_layer))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: wkv_layers does not list all layers, and attention in "
                       "the others is not supported in this family");
    if (!code && pp_config_flag(config, "wkv_has_group_norm", true) && divisor != DIVISOR)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: head_size_divisor is %lld, which is not supported in "
                       "this family; %d is", (long long)divisor, DIVISOR);
    return code ? code : pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    static const int64_t usual[N_RANKS] = {64, 64, 32, 128}; /* if the tensors do not tell */
    int64_t head_size = 64, n_heads = 0;
    enum pp_code code = check_kind(config, hp, err);
    if (!code)
        code = pp_config_int(config, "head_size", &head_size, err);
    if (!code)
        code = pp_config_int(config, "num_wkv_heads", &n_heads, err);
    for (int i = 0; i < N_RANKS; i++)
        hp->rwkv_ranks[i] = usual[i];
    if (!pp_config_flag(config, "wkv_has_gate", true))
        hp->rwkv_ranks[N_RANKS - 1] = 0;
    hp->n_ctx_train = 1 << 20; /* there is no limit; this is what converters write */
    hp->rope_scaling = PP_ROPE_NONE;
    hp->rwkv_qwen = true;
    hp->state_norm = pp_config_flag(config, "wkv_has_group_norm", true);
    pp_rwkv_states_only(hp, head_size);
    if (!code && n_heads && n_heads != hp->n_state_head)
        return pp_fail(err, PP_ERR_FORMAT, "config.json: num_wkv_heads is %lld, which are not %lld values of %lld each",
                       (long long)n_heads, (long long)hp->n_embd, (long long)head_size);
    return code;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_rwkv_qwen_config(hp, config);
    pp_config_put(config, "head_size", hp->state_key_dim);
    pp_config_put(config, "head_size_divisor", DIVISOR);
    pp_config_put(config, "num_wkv_heads", hp->n_state_head);
    pp_config_put(config, "wkv_version", VERSION);
    pp_config_put_text(config, "wkv_layers", "full");
    cJSON_AddBoolToObject(config, "wkv_has_gate", hp->rwkv_ranks[N_RANKS - 1] != 0);
    cJSON_AddBoolToObject(config, "wkv_has_group_norm", hp->state_norm);
}

const struct pp_arch pp_arch_arwkv7 = {
    .name = "arwkv7",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_untied = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
