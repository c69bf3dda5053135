/* looped.c - families whose layers are run several times with the same weights, but with a cache for each pass.
 * Nanbeige 4.2: Llama's layers; Ouro (arXiv 2510.25741): with pre-norms and post-norms. Both apply the last norm after
 * every pass; positions are the same in all. IQuest Coder Loop: Llama's layers, twice; the second pass also sees the
 * keys of the first (decoder_loops.c), and the last norm comes only at the end. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"
#include "engine/hparams_int.h"

static enum pp_code check_loops(const struct pp_hparams *hp, struct pp_error *err)
{
    return pp_check_range("number of loops", hp->n_loops, 1, PP_MAX_LAYERS / hp->n_layer, err);
}

static enum pp_code check_rope(const struct pp_hparams *hp, struct pp_error *err)
{
    return hp->rope_scaling == PP_ROPE_NONE ? PP_OK
           : pp_fail(err, PP_ERR_UNSUPPORTED, "RoPE scaling is not supported in models of this family");
}

/* --- Nanbeige --------------------------------------------------------------------------------------------------- */

static const char *const nanbeige_classes[] = {"NanbeigeForCausalLM", "nanbeige", NULL};

/* Refuses settings that the published model does not have. */
static const char *const absent[] = {
    "qk_layernorm", "emb_neighbor_num", "insert_ngram_layer_idx", "ngram_insert_all_layers",
    "enable_double_loop_split", "loop_middle_layers", "loop_share_kv", "enable_hyper_connection", "enable_mhc",
    "enable_h_res_identity", "enable_depth_attention", "use_sliding_window", NULL};

static bool is_set_to_something(const cJSON *item)
{
    return cJSON_IsTrue(item) || cJSON_IsString(item) || (cJSON_IsNumber(item) && item->valuedouble != 0) ||
           ((cJSON_IsArray(item) || cJSON_IsObject(item)) && cJSON_GetArraySize(item) > 0);
}

static enum pp_code check_absent(const cJSON *config, struct pp_error *err)
{
    for (const char *const *key = absent; *key; key++)
        if (is_set_to_something(pp_json_member(config, *key)))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s is set, which is not supported", *key);
    return PP_OK;
}

/* loop_loss_weights, left from training, has a number for each pass but the last: if it is there, it determines the
 * number of passes. */
static enum pp_code nanbeige_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const int n_weights = cJSON_GetArraySize(pp_json_member(config, "loop_loss_weights"));
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = check_absent(config, err);
    if (!code)
        code = pp_config_int(config, "num_loops", &hp->n_loops, err);
    if (!code && !hp->n_loops && !n_weights)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: num_loops is not there; of this family only models that "
                       "say it are supported");
    if (n_weights)
        hp->n_loops = n_weights + 1;
    hp->skip_loop_norm = pp_config_flag(config, "skip_loop_final_norm", false);
    code = code ? code : check_loops(hp, err);
    return code ? code : check_rope(hp, err);
}

static enum pp_code nanbeige_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    hp->n_loops = 1;
    pp_gguf_int(g, "nanbeige.num_loops", &hp->n_loops);
    pp_gguf_bool(g, "nanbeige.skip_loop_final_norm", &hp->skip_loop_norm);
    return check_loops(hp, err);
}

static void nanbeige_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, "nanbeige.num_loops", (uint32_t)hp->n_loops);
    pp_gguf_add_bool(w, "nanbeige.skip_loop_final_norm", hp->skip_loop_norm);
}

static void nanbeige_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put(config, "num_loops", hp->n_loops);
    cJSON_AddBoolToObject(config, "skip_loop_final_norm", hp->skip_loop_norm);
    cJSON_AddArrayToObject(config, "loop_loss_weights");
    cJSON_AddBoolToObject(config, "qk_layernorm", false);
}

const struct pp_arch pp_arch_nanbeige = {
    .name = "nanbeige",
    .hf_classes = nanbeige_classes,
    .names = pp_interleaved_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .from_config = nanbeige_from_config,
    .from_gguf = nanbeige_from_gguf,
    .to_gguf = nanbeige_to_gguf,
    .to_config = nanbeige_to_config,
};

/* --- Ouro ------------------------------------------------------------------------------------------------------- */

static const char *const ouro_classes[] = {"OuroForCausalLM", "ouro", NULL};
static const struct pp_arch_name ouro_names[] = {
    {.hf = "model.layers.{}.self_attn.q_proj", .gguf = "blk.{}.attn_q", .rows = PP_ROWS_Q},
    {.hf = "model.layers.{}.self_attn.k_proj", .gguf = "blk.{}.attn_k", .rows = PP_ROWS_K},
    {.hf = "model.layers.{}.input_layernorm_2", .gguf = "blk.{}.post_attention_norm"},
    {.hf = "model.layers.{}.post_attention_layernorm_2", .gguf = "blk.{}.post_ffw_norm"},
    {.hf = NULL},
};
/* Ignored: the gate for early exits, since by default all passes are run. */
static const char *const ouro_ignored[] = {".early_exit_gate.weight", ".early_exit_gate.bias",
                                           ".early_exit_gate.scales", ".early_exit_gate.biases",
                                           ".rotary_emb.inv_freq", NULL};
static const struct pp_arch_default ouro_defaults[] = {
    {.json = "{\"max_position_embeddings\": 65536, \"total_ut_steps\": 4}"},
    {.json = NULL},
};

static enum pp_code ouro_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    const cJSON *step = pp_json_member(config, "early_exit_step");
    float threshold = 1;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    if (!code)
        code = pp_config_float(config, "early_exit_threshold", &threshold, err);
    if (!code && (threshold < 1 || cJSON_IsNumber(step)))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: the model may take what a loop before the last gives "
                       "(early_exit_threshold %g, early_exit_step %s), which is not supported", (double)threshold,
                       cJSON_IsNumber(step) ? "set" : "not set");
    if (!code && pp_config_flag(config, "use_sliding_window", false))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: use_sliding_window is true, which is not supported for "
                       "this family");
    if (!code)
        code = pp_config_int(config, "total_ut_steps", &hp->n_loops, err);
    code = code ? code : check_loops(hp, err);
    return code ? code : check_rope(hp, err);
}

static enum pp_code ouro_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    if (!pp_gguf_int(g, "ouro.num_loops", &hp->n_loops))
        return pp_fail(err, PP_ERR_FORMAT, "the file does not say ouro.num_loops");
    return check_loops(hp, err);
}

static void ouro_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_u32(w, "ouro.num_loops", (uint32_t)hp->n_loops);
}

static void ouro_to_config(const struct pp_hparams *hp, cJSON *config)
{
    cJSON *types = cJSON_AddArrayToObject(config, "layer_types");
    for (int64_t l = 0; l < hp->n_layer; l++)
        cJSON_AddItemToArray(types, cJSON_CreateString("full_attention"));
    pp_config_put_text(config, "hidden_act", "silu");
    pp_config_put(config, "total_ut_steps", hp->n_loops);
    pp_config_put_float(config, "early_exit_threshold", 1);
}

const struct pp_arch pp_arch_ouro = {
    .name = "ouro",
    .hf_classes = ouro_classes,
    .names = ouro_names,
    .more_names = pp_common_names,
    .ignored = ouro_ignored,
    .defaults = ouro_defaults,
    .decoder = {.post_norm = true},
    .from_config = ouro_from_config,
    .from_gguf = ouro_from_gguf,
    .to_gguf = ouro_to_gguf,
    .to_config = ouro_to_config,
};

/* --- IQuest Coder Loop ------------------------------------------------------------------------------------------ */

static const char *const iquest_classes[] = {"IQuestLoopCoderForCausalLM", "iquestloopcoder", NULL};
static const struct pp_arch_name iquest_names[] = {
    {.hf = "model.gate_projections.{}", .gguf = "blk.{}.loop_gate"},
    {.hf = NULL},
};

/* The window is that of the second pass. */
static enum pp_code iquest_finish(struct pp_hparams *hp, struct pp_error *err)
{
    hp->n_loops = 2;
    hp->loops_mixed = hp->skip_loop_norm = true;
    pp_layers_every(hp, 1, PP_LAYER_WIDE);
    if (hp->sizes_vary)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the model has layers that differ in their heads or widths, which "
                       "loops that see each other (%s) are not computed with", hp->arch);
    enum pp_code code = pp_check_range("window of the second loop", hp->window, 1, 1 << 24, err);
    return code ? code : check_loops(hp, err);
}

static enum pp_code iquest_from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t n_loops = 2;
    enum pp_code code = pp_config_activation(config, "hidden_act", pp_silu_names, err);
    hp->window = 64;
    if (!code)
        code = pp_config_int(config, "loop_num", &n_loops, err);
    if (!code)
        code = pp_config_int(config, "loop_window_size", &hp->window, err);
    if (!code && n_loops != 2)
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: loop_num is %lld; only 2 is supported in this family",
                       (long long)n_loops);
    return code ? code : iquest_finish(hp, err);
}

static enum pp_code iquest_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    (void)g;
    return iquest_finish(hp, err);
}

static void iquest_to_config(const struct pp_hparams *hp, cJSON *config)
{
    pp_config_put_text(config, "hidden_act", "silu");
    pp_config_put(config, "loop_num", hp->n_loops);
    pp_config_put(config, "loop_window_size", hp->window);
}

const struct pp_arch pp_arch_iquest_loop = {
    .name = "iquestloopcoder",
    .hf_classes = iquest_classes,
    .names = iquest_names,
    .more_names = pp_common_names,
    .ignored = pp_common_ignored,
    .gguf_neox = true,
    .from_config = iquest_from_config,
    .from_gguf = iquest_from_gguf,
    .to_config = iquest_to_config,
};
