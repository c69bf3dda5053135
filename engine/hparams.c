#include "engine/hparams.h"

#include <math.h>

const char *const pp_activation_names[PP_N_ACTIVATIONS] = {
    [PP_ACTIVATION_GELU] = "gelu", [PP_ACTIVATION_GELU_TANH] = "gelu_pytorch_tanh", [PP_ACTIVATION_SILU] = "silu",
    [PP_ACTIVATION_RELU2] = "relu2", [PP_ACTIVATION_RELU] = "relu"};

float pp_hparams_yarn_magnitude(float factor, float mscale, float mscale_all_dim)
{
    float log_factor = factor > 1 ? logf(factor) : 0;
    return (0.1f * mscale * log_factor + 1.0f) / (0.1f * mscale_all_dim * log_factor + 1.0f);
}

void pp_layers_every(struct pp_hparams *hp, int64_t step, uint8_t bits)
{
    for (int64_t l = step - 1; l >= 0 && l < hp->n_layer && l < PP_MAX_LAYERS; l += step)
        hp->layer[l] |= bits;
}

void pp_layers_vary_sizes(struct pp_hparams *hp)
{
    hp->sizes_vary = true;
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->sizes[l] = (struct pp_layer_sizes){.n_head = (int32_t)hp->n_head, .n_head_kv = (int32_t)hp->n_head_kv,
                                               .n_ff = (int32_t)hp->n_ff};
}

enum pp_code pp_layers_share(struct pp_hparams *hp, int64_t n, struct pp_error *err)
{
    if (n < 0 || n >= hp->n_layer)
        return pp_fail(err, PP_ERR_FORMAT, "%lld of %lld layers cannot share keys and values", (long long)n,
                       (long long)hp->n_layer);
    for (int64_t l = hp->n_layer - n; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= PP_LAYER_SHARED;
    return PP_OK;
}

int64_t pp_layers_shared(const struct pp_hparams *hp)
{
    int64_t n = 0;
    while (n < hp->n_layer && hp->layer[hp->n_layer - 1 - n] & PP_LAYER_SHARED)
        n++;
    return n;
}

void pp_layers_rotate_windows(struct pp_hparams *hp)
{
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= hp->layer[l] & PP_LAYER_WIDE ? PP_LAYER_UNROTATED : 0;
}

void pp_layers_local_rope(struct pp_hparams *hp)
{
    for (int64_t l = 0; l < hp->n_layer && l < PP_MAX_LAYERS; l++)
        hp->layer[l] |= hp->layer[l] & PP_LAYER_WIDE ? 0 : PP_LAYER_LOCAL_ROPE;
}

void pp_layers_unscaled_windows(struct pp_hparams *hp)
{
    hp->rope_base_local = hp->rope_base_local != 0.0f ? hp->rope_base_local : hp->rope_base;
    if (hp->window)
        pp_layers_local_rope(hp);
}
