/* rwkv7.c - RWKV 7 (arXiv 2503.14456), from GGUF files: neither attention nor a cache, and LayerNorm. */
#include <stdio.h>

#include "engine/arch/families.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

static const struct pp_arch_name names[] = {{.hf = NULL}};
static const char *const classes[] = {NULL};
static const char *const rank_keys[] = {"rwkv7.attention.decay_lora_rank", "rwkv7.attention.iclr_lora_rank",
                                        "rwkv7.attention.value_residual_mix_lora_rank",
                                        "rwkv7.attention.gate_lora_rank"};

/* All layers have states, and none has heads of attention. */
static void have_states_only(struct pp_hparams *hp, int64_t head_size)
{
    hp->rwkv = true;
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
    pp_gguf_int(g, "rwkv7.token_shift_count", &shifts);
    if (shifts != 2)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model mixes %lld inputs of a layer with those of the position "
                       "before; pippin knows RWKV 7 with two", (long long)shifts);
    if (!pp_gguf_int(g, "rwkv7.wkv.head_size", &head_size))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks rwkv7.wkv.head_size, or it is no number");
    for (int i = 0; i < 4; i++)
        if (!pp_gguf_int(g, rank_keys[i], &hp->rwkv_ranks[i]))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is no number", rank_keys[i]);
    have_states_only(hp, head_size);
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, "rwkv7.wkv.head_size", (uint32_t)hp->state_key_dim);
    for (int i = 0; i < 4; i++)
        pp_gguf_add_u32(w, rank_keys[i], (uint32_t)hp->rwkv_ranks[i]);
}

const struct pp_arch pp_arch_rwkv7 = {
    .name = "rwkv7",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .decoder = {.layer_norm = true, .norm_bias = true, .embd_norm = true, .ungated = true, .fn = PP_FN_RELU2},
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
};
