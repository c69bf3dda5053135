/* rwkv.c - what the metadata of RWKV 6 and 7 share. */
#include "engine/arch/rwkv.h"

#include <stdio.h>
#include <string.h>

void pp_rwkv_states_only(struct pp_hparams *hp, int64_t head_size)
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

enum { KEY = 128 };

static const char *key_of(const struct pp_hparams *hp, const char *name, char key[KEY])
{
    snprintf(key, KEY, "%s.%s", hp->arch, name);
    return key;
}

enum pp_code pp_rwkv_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, const char *const *rank_keys, int n,
                               struct pp_error *err)
{
    char key[KEY];
    int64_t head_size = 0, shifts = 2;
    pp_gguf_int(g, key_of(hp, "token_shift_count", key), &shifts);
    if (shifts != 2)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model mixes %lld inputs of a layer with those of the position "
                       "before; pippin knows RWKV with two", (long long)shifts);
    if (!pp_gguf_int(g, key_of(hp, "wkv.head_size", key), &head_size))
        return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is no number", key);
    for (int i = 0; i < n; i++)
        if (!pp_gguf_int(g, key_of(hp, rank_keys[i], key), &hp->rwkv_ranks[i]))
            return pp_fail(err, PP_ERR_FORMAT, "the metadata lacks %s, or it is no number", key);
    pp_rwkv_states_only(hp, head_size);
    return PP_OK;
}

void pp_rwkv_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w, const char *const *rank_keys, int n)
{
    char key[KEY];
    pp_gguf_add_u32(w, key_of(hp, "wkv.head_size", key), (uint32_t)hp->state_key_dim);
    for (int i = 0; i < n; i++)
        pp_gguf_add_u32(w, key_of(hp, rank_keys[i], key), (uint32_t)hp->rwkv_ranks[i]);
}
