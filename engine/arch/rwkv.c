/* rwkv.c - metadata that RWKV 4, 6 and 7 share, alone or in Qwen 2's layers. */
#include "engine/arch/rwkv.h"

#include <cjson/cJSON.h>
#include <stdio.h>

#include "engine/arch/arch.h"

void pp_rwkv_states_only(struct pp_hparams *hp, int64_t head_size)
{
    hp->rwkv = true;
    hp->sizes_vary = false;
    hp->n_head = hp->n_head_kv = 1;
    hp->head_dim = hp->rope_dim = 2;
    hp->conv_taps = 2;
    hp->state_key_dim = hp->state_value_dim = head_size;
    hp->n_state_head = hp->n_state_key_head = head_size > 0 && hp->n_embd % head_size == 0 ? hp->n_embd / head_size : 0;
    pp_layers_every(hp, 1, PP_LAYER_RECURRENT | PP_LAYER_UNROTATED);
}

enum { KEY = 128 };
static const char shifts_key[] = "token_shift_count";

static const char *key_of(const struct pp_hparams *hp, const char *name, char key[KEY])
{
    snprintf(key, KEY, "%s.%s", hp->arch, name);
    return key;
}

enum pp_code pp_rwkv_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, const char *const *rank_keys, int n,
                               struct pp_error *err)
{
    char key[KEY];
    const int64_t known = hp->rwkv_qwen ? 1 : 2;
    int64_t head_size = 0, shifts = known;
    pp_gguf_int(g, key_of(hp, shifts_key, key), &shifts);
    if (shifts != known)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model mixes %lld inputs of a layer with those of the position "
                       "before; pippin knows models of this family with %lld", (long long)shifts, (long long)known);
    enum pp_code code = pp_gguf_need_int(g, key_of(hp, "wkv.head_size", key), &head_size, err);
    for (int i = 0; i < n && !code; i++)
        code = pp_gguf_need_int(g, key_of(hp, rank_keys[i], key), &hp->rwkv_ranks[i], err);
    if (!code)
        pp_rwkv_states_only(hp, head_size);
    return code;
}

void pp_rwkv_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w, const char *const *rank_keys, int n)
{
    char key[KEY];
    pp_gguf_add_u32(w, key_of(hp, "wkv.head_size", key), (uint32_t)hp->state_key_dim);
    if (hp->rwkv_qwen) /* other programs' default is 2 */
        pp_gguf_add_u32(w, key_of(hp, shifts_key, key), 1);
    for (int i = 0; i < n; i++)
        pp_gguf_add_u32(w, key_of(hp, rank_keys[i], key), (uint32_t)hp->rwkv_ranks[i]);
}

void pp_rwkv_qwen_config(const struct pp_hparams *hp, struct cJSON *config)
{
    static const char *const gone[] = {"head_dim", "rope_theta", "partial_rotary_factor"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(config, gone[i]);
    pp_config_put(config, "num_attention_heads", hp->n_state_head);
    pp_config_put(config, "num_key_value_heads", hp->n_state_key_head);
}
