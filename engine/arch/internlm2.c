/* internlm2.c - InternLM 2 and Baichuan: Llama whose folders have a fused qkv, ordered by KV head in InternLM 2, as q,
 * k and v in Baichuan. Baichuan 13B has ALiBi instead of RoPE. In Baichuan M1 (arXiv 2502.12671) keys and values are
 * convolved with those of the position before, and layers with a window have heads of another size. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    (void)hp;
    return pp_config_activation(config, "hidden_act", pp_silu_names, err);
}

static void internlm2_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    (void)hp;
    cJSON_AddBoolToObject(config, "bias", false);
}

static const struct pp_arch_name internlm2_names[] = {
    {.hf = "model.tok_embeddings", .gguf = "token_embd"},
    {.hf = "model.norm", .gguf = "output_norm"},
    {.hf = "output", .gguf = "output"},
    {.hf = "model.layers.{}.attention_norm", .gguf = "blk.{}.attn_norm"},
    {.hf = "model.layers.{}.attention.wqkv", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_BY_GROUP},
    {.hf = "model.layers.{}.attention.wo", .gguf = "blk.{}.attn_output"},
    {.hf = "model.layers.{}.ffn_norm", .gguf = "blk.{}.ffn_norm"},
    {.hf = "model.layers.{}.feed_forward.w1", .gguf = "blk.{}.ffn_gate"},
    {.hf = "model.layers.{}.feed_forward.w2", .gguf = "blk.{}.ffn_down"},
    {.hf = "model.layers.{}.feed_forward.w3", .gguf = "blk.{}.ffn_up"},
    {.hf = NULL},
};
static const char *const internlm2_classes[] = {"InternLM2ForCausalLM", "internlm2", NULL};

const struct pp_arch pp_arch_internlm2 = {
    .name = "internlm2",
    .hf_classes = internlm2_classes,
    .names = internlm2_names,
    .more_names = pp_interleaved_names,
    .ignored = pp_common_ignored,
    .from_config = from_config,
    .to_config = internlm2_to_config,
};

/* --- Baichuan --------------------------------------------------------------------------------------------------- */

static const struct pp_arch_name baichuan_names[] = {
    {.hf = "lm_head", .gguf = "output", .form = PP_HF_UNIT_ROWS},
    {.hf = "model.layers.{}.self_attn.W_pack", .gguf = "blk.{}.attn_qkv", .form = PP_HF_QKV_STACKED},
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = NULL},
};
static const char *const baichuan_classes[] = {"BaichuanForCausalLM", "BaiChuanForCausalLM", "baichuan", NULL};
static const struct pp_arch_default baichuan_defaults[] = {
    {.json = "{\"max_position_embeddings\": 4096}"},
    {.json = NULL},
};

/* The 13B has ALiBi, which only its number of layers reveals. */
static void find_alibi(struct pp_hparams *hp)
{
    enum { LAYERS_13B = 40 };
    if (hp->n_layer == LAYERS_13B)
        hp->alibi = 8;
}

static enum pp_code baichuan_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    enum { FIRST_VOCAB = 64000 };
    enum pp_code code = from_config(config, hp, err);
    hp->unit_output = hp->n_vocab > FIRST_VOCAB; /* Baichuan 2 */
    find_alibi(hp);
    return code ? code : pp_config_int(config, "model_max_length", &hp->n_ctx_train, err);
}

static enum pp_code baichuan_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g, (void)err;
    find_alibi(hp);
    return PP_OK;
}

static void baichuan_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    pp_config_put(config, "model_max_length", hp->n_ctx_train);
}

const struct pp_arch pp_arch_baichuan = {
    .name = "baichuan",
    .hf_classes = baichuan_classes,
    .names = baichuan_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = baichuan_defaults,
    .from_config = baichuan_from_config,
    .from_gguf = baichuan_from_gguf,
    .to_config = baichuan_to_config,
};

/* --- Baichuan M1 ------------------------------------------------------------------------------------------------ */

static const struct pp_arch_name m1_names[] = {
    {.hf = "lm_head", .gguf = "output", .form = PP_HF_UNIT_ROWS},
    {.hf = "model.layers.{}.self_attn.W_pack", .gguf = "blk.{}.attn_qkv"},
    {.hf = "model.layers.{}.self_attn.conv_k", .gguf = "blk.{}.attn_k_conv.weight", .form = PP_HF_CONV_BY_HEAD,
     .whole = true},
    {.hf = "model.layers.{}.self_attn.conv_v", .gguf = "blk.{}.attn_v_conv.weight", .form = PP_HF_CONV_BY_HEAD,
     .whole = true},
    {.hf = NULL},
};
static const char *const m1_classes[] = {"BaichuanM1ForCausalLM", "baichuan_m1", NULL};
static const char m1_layers[] = "sliding_window_layers";
enum { TAPS = 2 }; /* in all models */

/* Completes the fields of layers with a window. */
static void finish_m1(struct pp_hparams *hp)
{
    hp->kv_taps = TAPS;
    hp->rope_base_local = hp->rope_base;
    hp->rope_dim_local = hp->head_dim_local;
    pp_layers_local_rope(hp);
}

/* Listed layers have a window, and other numbers of heads, whose size is n_embd / their number. */
static enum pp_code m1_windows(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *list = pp_json_member(config, m1_layers), *item;
    int64_t n_head = hp->n_head, n_head_kv = hp->n_head_kv;
    enum pp_code code = pp_config_int(config, "num_swa_attention_heads", &n_head, err);
    if (!code)
        code = pp_config_int(config, "num_swa_key_value_heads", &n_head_kv, err);
    if (!code && (n_head < 1 || n_head_kv < 1 || n_head > hp->n_embd || n_head_kv > n_head || hp->n_embd % n_head != 0))
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: num_swa_attention_heads is %lld and num_swa_key_value_heads "
                       "%lld, which cannot be right", (long long)n_head, (long long)n_head_kv);
    if (!code)
        code = pp_config_window(config, 0, hp, err);
    if (code || !hp->window || cJSON_GetArraySize(list) == 0) {
        hp->window = 0;
        return code;
    }
    for (int64_t l = 0; l < hp->n_layer; l++)
        hp->layer[l] |= PP_LAYER_WIDE;
    pp_layers_vary_sizes(hp);
    cJSON_ArrayForEach(item, list)
    {
        const int64_t l = cJSON_IsNumber(item) ? item->valueint : -1;
        if (l < 0 || l >= hp->n_layer)
            return pp_fail(err, PP_ERR_FORMAT, "config.json: %s has something other than numbers of layers", m1_layers);
        hp->layer[l] &= (uint8_t)~PP_LAYER_WIDE;
        hp->sizes[l].n_head = (int32_t)n_head;
        hp->sizes[l].n_head_kv = (int32_t)n_head_kv;
    }
    hp->sizes_vary = n_head != hp->n_head || n_head_kv != hp->n_head_kv;
    hp->head_dim_local = hp->n_embd / n_head == hp->head_dim ? 0 : hp->n_embd / n_head;
    hp->n_head = n_head > hp->n_head ? n_head : hp->n_head;
    hp->n_head_kv = n_head_kv > hp->n_head_kv ? n_head_kv : hp->n_head_kv;
    return PP_OK;
}

static enum pp_code m1_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n_taps = TAPS;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_int(config, "conv_window", &n_taps, err);
    if (!code && n_taps != TAPS)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: conv_window is %lld, which is not supported; %d is",
                       (long long)n_taps, TAPS);
    if (!code && pp_config_flag(config, "tie_word_embeddings", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: tie_word_embeddings is true, which is not supported for "
                       "this family");
    if (!code)
        code = m1_windows(config, hp, err);
    hp->unit_output = true;
    finish_m1(hp);
    return code;
}

static enum pp_code m1_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)err;
    pp_gguf_int(g, "baichuan_m1.attention.key_length_swa", &hp->head_dim_local);
    finish_m1(hp);
    return PP_OK;
}

static void m1_to_config(const struct pp_hparams *hp, struct cJSON *config)
{
    cJSON *list = cJSON_AddArrayToObject(config, m1_layers);
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const bool local = hp->window && !(hp->layer[l] & PP_LAYER_WIDE);
        const struct pp_layer_shape shape = pp_layer_shape(hp, l);
        if (local)
            cJSON_AddItemToArray(list, cJSON_CreateNumber((double)l));
        pp_config_put(config, local ? "num_swa_attention_heads" : "num_attention_heads", shape.n_head);
        pp_config_put(config, local ? "num_swa_key_value_heads" : "num_key_value_heads", shape.n_head_kv);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(config, "head_dim"); /* it follows from the others */
    pp_config_put(config, "sliding_window", hp->window);
    pp_config_put(config, "conv_window", TAPS);
}

const struct pp_arch pp_arch_baichuan_m1 = {
    .name = "baichuan_m1",
    .hf_classes = m1_classes,
    .names = m1_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .decoder = {.fused_qkv = true},
    .from_config = m1_from_config,
    .from_gguf = m1_from_gguf,
    .to_config = m1_to_config,
};
