/* rwkv6qwen2.c - RWKV 6 in Qwen 2's layers (QRWKV6, arXiv 2505.03005): the time mix in place of attention, with keys
 * and values shared by groups of heads, and everything else as in Qwen 2. Folders have the five blends in another
 * order. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/arch/rwkv.h"

#define MIXER "model.layers.{}.self_attn."
#define VECTOR(from, to) {.hf = MIXER from, .gguf = "blk.{}." to ".weight", .form = PP_HF_VECTOR_3D, .whole = true}
#define BLEND(letter, number) \
    {.hf = MIXER "time_maa_" letter, .gguf = "blk.{}.time_mix_lerp." number ".weight", .form = PP_HF_LERP,     \
     .whole = true}
#define FORMED(from, to, how) {.hf = MIXER from, .gguf = "blk.{}." to ".weight", .form = how, .whole = true}

static const struct pp_arch_name names[] = {
    VECTOR("time_maa_x", "time_mix_lerp_x"),
    BLEND("w", "0"), BLEND("k", "1"), BLEND("v", "2"), BLEND("r", "3"), BLEND("g", "4"),
    FORMED("time_maa_w1", "time_mix_w1", PP_HF_MIX_W1),
    FORMED("time_maa_w2", "time_mix_w2", PP_HF_MIX_W2),
    VECTOR("time_decay", "time_mix_decay"),
    FORMED("time_decay_w1", "time_mix_decay_w1", PP_HF_TRANSPOSED),
    FORMED("time_decay_w2", "time_mix_decay_w2", PP_HF_TRANSPOSED),
    {.hf = MIXER "q_proj", .gguf = "blk.{}.time_mix_receptance"},
    {.hf = MIXER "k_proj", .gguf = "blk.{}.time_mix_key"},
    {.hf = MIXER "v_proj", .gguf = "blk.{}.time_mix_value"},
    {.hf = MIXER "gate", .gguf = "blk.{}.time_mix_gate"},
    {.hf = MIXER "o_proj", .gguf = "blk.{}.time_mix_output"},
    {.hf = NULL},
};
static const char *const classes[] = {"RWKV6Qwen2ForCausalLM", "rwkv6qwen2", NULL};
static const char *const rank_keys[] = {"time_decay_extra_dim", "time_mix_extra_dim"};
static const char *const config_ranks[] = {"lora_rank_decay", "lora_rank_tokenshift"};
static const char kv_key[] = "rwkv6qwen2.attention.head_count_kv", halved_key[] = "rwkv6qwen2.rescale_every_n_layers";

/* n_shared: the number of heads of keys and values; 0: as many as heads. */
static enum pp_code share_heads(struct pp_hparams *hp, int64_t n_shared, struct pp_error *err)
{
    if (n_shared < 0 || n_shared > hp->n_state_head)
        return pp_fail(err, PP_ERR_FORMAT, "the model says that %lld heads have keys for its %lld",
                       (long long)n_shared, (long long)hp->n_state_head);
    hp->n_state_key_head = n_shared ? n_shared : hp->n_state_head;
    return PP_OK;
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    const int64_t n_shared = pp_gguf_has(g, kv_key) ? hp->n_head_kv : 0;
    int64_t halved = 0;
    hp->rwkv6 = hp->rwkv_qwen = true;
    pp_gguf_int(g, halved_key, &halved);
    if (halved != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "metadata %s is %lld, which is not known of this family", halved_key,
                       (long long)halved);
    const enum pp_code code = pp_rwkv_from_gguf(g, hp, rank_keys, 2, err);
    return code ? code : share_heads(hp, n_shared, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_rwkv_to_gguf(hp, w, rank_keys, 2);
    pp_gguf_add_u32(w, kv_key, (uint32_t)hp->n_state_key_head);
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

/* Refuses options that later models of this kind may have. */
static enum pp_code check_kind(const cJSON *config, struct pp_error *err)
{
    static const struct {
        const char *key;
        bool usual;
    } flags[] = {{"use_rope", false}, {"groupnorm_att", false}, {"balance_state", true}, {"use_tokenshift", true}};
    int64_t gates = 1;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (pp_config_flag(config, flags[i].key, flags[i].usual) != flags[i].usual)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is %s, which is not supported in this family",
                           flags[i].key, flags[i].usual ? "false" : "true");
    enum pp_code code = pp_config_int(config, "gate_rank_type", &gates, err);
    if (!code && gates != 1)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: gate_rank_type is %lld, which is not supported in this "
                       "family; 1 is", (long long)gates);
    return code ? code : pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum { LARGE = 4096 };
    const int64_t n_head = hp->n_head, n_shared = hp->n_head_kv, dim = hp->head_dim;
    enum pp_code code = check_kind(config, err);
    hp->rwkv_ranks[0] = hp->n_embd >= LARGE ? 128 : 64; /* if the tensors do not tell */
    hp->rwkv_ranks[1] = hp->n_embd >= LARGE ? 64 : 32;
    for (int i = 0; i < 2 && !code; i++)
        code = pp_config_int(config, config_ranks[i], &hp->rwkv_ranks[i], err);
    if (!code && n_head * dim != hp->n_embd)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%lld heads of %lld values in a model that is %lld wide are not "
                       "supported in this family", (long long)n_head, (long long)dim, (long long)hp->n_embd);
    hp->n_ctx_train = 1 << 20; /* there is no limit; this is what converters write */
    hp->rope_scaling = PP_ROPE_NONE;
    hp->rwkv6 = hp->rwkv_qwen = true;
    pp_rwkv_states_only(hp, dim);
    return code ? code : share_heads(hp, n_shared, err);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_rwkv_qwen_config(hp, config);
    for (int i = 0; i < 2; i++)
        pp_config_put(config, config_ranks[i], hp->rwkv_ranks[i]);
    cJSON_DeleteItemFromObjectCaseSensitive(config, "attention_bias");
    cJSON_AddTrueToObject(config, "attention_bias");
    cJSON_AddFalseToObject(config, "attention_output_bias");
}

const struct pp_arch pp_arch_rwkv6qwen2 = {
    .name = "rwkv6qwen2",
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
