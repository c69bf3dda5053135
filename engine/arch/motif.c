/* motif.c - Motif 2.6B (arXiv 2508.09148): Llama with differential attention, heads of the two kinds alternating
 * (decoder_difference.c), and PolyNorm (decoder_poly.c). In Motif 2 12.7B (arXiv 2511.07464) a few noise heads are
 * subtracted from groups of query heads. Only pippin makes GGUF files of it. */
#include <cjson/cJSON.h>
#include <math.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

#define LAYER "model.layers.{}."
#define NUMBERS(name)                                                                                                  \
    {.hf = LAYER "self_attn.lambda_" name, .gguf = "blk.{}.attn_lambda_" name, .whole = true}

static const struct pp_arch_name names[] = {
    NUMBERS("q1"), NUMBERS("k1"), NUMBERS("q2"), NUMBERS("k2"),
    {.hf = LAYER "self_attn.subln", .gguf = "blk.{}.attn_sub_norm"},
    {.hf = LAYER "mlp.act_fn", .gguf = "blk.{}.ffn_poly"},
    {.hf = NULL},
};
static const char *const classes[] = {"MotifForCausalLM", "motif", "Motif", NULL};
static const char *const functions[] = {"poly_norm", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"rms_norm_eps\": 1e-6}"},
    {.json = NULL},
};

static const float HEADS_EPS = 1e-5f; /* of the norms of attention's output */

static const char noise_json[] = "num_noise_heads", noise_gguf[] = "motif.attention.noise_head_count";

/* Sets the numbers of heads for `first` query heads of the first kind and n of the second, one for each group. */
static enum pp_code set_groups(int64_t first, int64_t n, const char *label, struct pp_hparams *hp,
                               struct pp_error *err)
{
    const int64_t pairs = hp->n_head_kv / 2;
    if (n < 1 || first < 1 || first % n != 0 || pairs < 1 || n % pairs != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is %lld, beside %lld other heads and %lld of keys: those make no "
                       "groups of as many heads, as many for each pair of keys", label, (long long)n,
                       (long long)first, (long long)hp->n_head_kv);
    hp->n_noise_head = n;
    hp->n_head = 2 * first;
    return PP_OK;
}

/* Heads of queries, keys and values come in pairs. */
static enum pp_code finish(struct pp_hparams *hp, struct pp_error *err)
{
    hp->differential = hp->heads_alternate = hp->lambda_of_previous = hp->polynorm_gates = true;
    if (hp->sizes_vary)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has layers that differ in their heads or widths, which "
                       "attention as a difference (%s) is not computed with", hp->arch);
    if (hp->n_head_kv >= 2 && hp->n_head_kv % 2 == 0)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has %lld key heads, which cannot be paired",
                   (long long)hp->n_head_kv);
}

/* Motif 2's heads. Its code allows more key heads of the first kind than of the second, which no published model
 * has. */
static enum pp_code groups_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 0, ratio = 1;
    enum pp_code code = finish(hp, err);
    if (code || !cJSON_IsNumber(pp_json_member(config, noise_json)))
        return code;
    if ((code = pp_config_int(config, noise_json, &n, err)) || (code = pp_config_int(config, "k_ratio", &ratio, err)))
        return code;
    if (ratio != 1)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: k_ratio is %lld; only 1 is supported", (long long)ratio);
    return set_groups(n > 0 ? hp->n_head - n : 0, n, noise_json, hp, err);
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    float eps = HEADS_EPS;
    enum pp_code code = pp_config_activation(config, "hidden_act", functions, err);
    if (!code)
        code = pp_config_float(config, "attn_rms_norm_eps", &eps, err);
    if (code)
        return code;
    if (cJSON_IsNumber(pp_json_member(config, "kv_lora_rank")))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: kv_lora_rank is there, as in Motif 3: latent attention "
                       "as a difference, which pippin lacks");
    if (pp_config_flag(config, "use_sliding_window", false))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_sliding_window is true, which is not supported in "
                       "this family");
    if (fabsf(eps - HEADS_EPS) > 1e-9f)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: attn_rms_norm_eps is %g; only 1e-5 is supported",
                       (double)eps);
    return groups_from_config(config, hp, err);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n = 0;
    enum pp_code code = finish(hp, err);
    if (code || !pp_gguf_int(g, noise_gguf, &n))
        return code;
    return set_groups(hp->n_head / 2, n, noise_gguf, hp, err);
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    if (hp->n_noise_head)
        pp_gguf_add_u32(w, noise_gguf, (uint32_t)hp->n_noise_head);
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    if (hp->n_noise_head) {
        pp_config_put(config, "num_attention_heads", hp->n_head / 2 + hp->n_noise_head);
        pp_config_put(config, noise_json, hp->n_noise_head);
        pp_config_put(config, "k_ratio", 1);
    }
    pp_config_put_text(config, "hidden_act", functions[0]);
    pp_config_put_float(config, "attn_rms_norm_eps", HEADS_EPS);
}

const struct pp_arch pp_arch_motif = {
    .name = "motif",
    .hf_classes = classes,
    .names = names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
};
