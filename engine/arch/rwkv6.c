/* rwkv6.c - RWKV 6 (arXiv 2404.05892): neither attention nor a cache, and LayerNorm. Of folders, only adapters' names
 * are known: those of the model's own code. */
#include <stdio.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "rwkv.blocks.{}."

static const struct pp_arch_name names[] = {
    {.hf = "rwkv.embeddings", .gguf = "token_embd"},
    {.hf = "rwkv.blocks.0.pre_ln", .gguf = "token_embd_norm"},
    {.hf = "rwkv.ln_out", .gguf = "output_norm"},
    {.hf = "head", .gguf = "output"},
    {.hf = LAYER "ln1", .gguf = "blk.{}.attn_norm"},
    {.hf = LAYER "ln2", .gguf = "blk.{}.attn_norm_2"},
    {.hf = LAYER "attention.receptance", .gguf = "blk.{}.time_mix_receptance"},
    {.hf = LAYER "attention.key", .gguf = "blk.{}.time_mix_key"},
    {.hf = LAYER "attention.value", .gguf = "blk.{}.time_mix_value"},
    {.hf = LAYER "attention.gate", .gguf = "blk.{}.time_mix_gate"},
    {.hf = LAYER "attention.output", .gguf = "blk.{}.time_mix_output"},
    {.hf = LAYER "attention.ln_x", .gguf = "blk.{}.time_mix_ln"},
    {.hf = LAYER "feed_forward.key", .gguf = "blk.{}.channel_mix_key"},
    {.hf = LAYER "feed_forward.value", .gguf = "blk.{}.channel_mix_value"},
    {.hf = LAYER "feed_forward.receptance", .gguf = "blk.{}.channel_mix_receptance"},
    {.hf = NULL},
};
static const char *const classes[] = {NULL};
static const char *const rank_keys[] = {"rwkv6.time_decay_extra_dim", "rwkv6.time_mix_extra_dim"};
static const char halved_key[] = "rwkv6.rescale_every_n_layers";

/* All layers have states, and none has heads of attention. */
static void have_states_only(struct pp_hparams *hp, int64_t head_size)
{
    hp->rwkv = hp->rwkv6 = true;
    hp->uneven = false;
    hp->n_head = hp->n_head_kv = 1;
    hp->head_dim = hp->rope_dim = 2;
    hp->conv_taps = 2;
    hp->state_key_dim = hp->state_value_dim = head_size;
    hp->n_state_head = hp->n_state_key_head = head_size > 0 && hp->n_embd % head_size == 0 ? hp->n_embd / head_size : 0;
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT | PP_LAYER_UNROTATED);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t head_size = 0, shifts = 2;
    pp_gguf_int(g, "rwkv6.token_shift_count", &shifts);
    if (shifts != 2)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model mixes %lld inputs of a layer with those of the position "
                       "before; pippin knows RWKV 6 with two", (long long)shifts);
    if (!pp_gguf_int(g, "rwkv6.wkv.head_size", &head_size))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks rwkv6.wkv.head_size, or it is no number");
    for (int i = 0; i < 2; i++)
        if (!pp_gguf_int(g, rank_keys[i], &hp->rwkv_ranks[i]))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is no number", rank_keys[i]);
    if (pp_gguf_has(g, halved_key) && (!pp_gguf_int(g, halved_key, &hp->halved_every) || hp->halved_every < 0))
        return pp_fail(err, PP_ERR_FORMAT, "metadata %s is no number of layers", halved_key);
    have_states_only(hp, head_size);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, "rwkv6.wkv.head_size", (uint32_t)hp->state_key_dim);
    for (int i = 0; i < 2; i++)
        pp_gguf_add_u32(w, rank_keys[i], (uint32_t)hp->rwkv_ranks[i]);
    if (hp->halved_every)
        pp_gguf_add_u32(w, halved_key, (uint32_t)hp->halved_every);
}

const struct pp_arch pp_arch_rwkv6 = {
    .name = "rwkv6",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .decoder = {.layer_norm = true, .norm_bias = true, .embd_norm = true, .ungated = true, .fn = PP_FN_RELU2},
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
};
