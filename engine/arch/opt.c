/* opt.c - OPT (arXiv 2205.01068) and Galactica (arXiv 2211.09085): learned positions, LayerNorm, ReLU or GELU without
 * a gate. Models may lack biases or norms' weights; the 350M has post-norms of the sums, and embeddings narrower than
 * the layers. Tables of positions in folders start with two unused rows.
 *
 * llama.cpp has no such family: the keys opt.norms_of_sums, opt.output_norm, opt.plain_norms and
 * opt.embedding_length_in, and the tensors embd_proj and output_proj, are ours. */
#include <cjson/cJSON.h>

#include "engine/arch/families.h"
#include "engine/base/json.h"
#include "engine/gguf.h"
#include "engine/hparams.h"

enum { RESERVED = 2 };

#define LAYER(hf_name, gguf_name) {.hf = "model.decoder.layers.{}." hf_name, .gguf = "blk.{}." gguf_name}

static const struct pp_arch_name names[] = {
    {.hf = "model.decoder.embed_tokens", .gguf = "token_embd"},
    {.hf = "model.decoder.embed_positions", .gguf = "position_embd", .form = PP_HF_AFTER_RESERVED},
    {.hf = "model.decoder.project_in", .gguf = "embd_proj"},
    {.hf = "model.decoder.project_out", .gguf = "output_proj"},
    {.hf = "model.decoder.final_layer_norm", .gguf = "output_norm"},
    {.hf = "lm_head", .gguf = "output"},
    LAYER("self_attn_layer_norm", "attn_norm"),
    LAYER("self_attn.q_proj", "attn_q"),
    LAYER("self_attn.k_proj", "attn_k"),
    LAYER("self_attn.v_proj", "attn_v"),
    LAYER("self_attn.out_proj", "attn_output"),
    LAYER("final_layer_norm", "ffn_norm"),
    LAYER("fc1", "ffn_up"),
    LAYER("fc2", "ffn_down"),
    {.hf = NULL},
};

static const char *const classes[] = {"OPTForCausalLM", "opt", NULL};
static const struct pp_arch_default defaults[] = {
    {.json = "{\"vocab_size\": 50272, \"hidden_size\": 768, \"num_hidden_layers\": 12, \"ffn_dim\": 3072,"
             "\"max_position_embeddings\": 2048, \"num_attention_heads\": 12, \"tie_word_embeddings\": true}"},
    {.json = NULL},
};

static void norm_sums(struct pp_hparams *hp)
{
    hp->post_ln = hp->norms_after = true;
}

static enum pp_code from_config(const cJSON *config, struct pp_hparams *hp, struct pp_error *err)
{
    int64_t width = hp->n_embd;
    enum pp_code code = pp_config_function(config, "activation_function", PP_ACTIVATION_RELU, hp, err);
    hp->norm_eps = 1e-5f;
    hp->n_reserved_positions = RESERVED;
    hp->nonparametric_norms = !pp_config_flag(config, "layer_norm_elementwise_affine", true);
    if (!pp_config_flag(config, "do_layer_norm_before", true))
        norm_sums(hp);
    hp->no_output_norm = hp->post_ln || pp_config_flag(config, "_remove_final_layer_norm", false);
    if (!code)
        code = pp_config_int(config, "word_embed_proj_dim", &width, err);
    if (!code && width < 1)
        code = pp_fail(err, PP_ERR_FORMAT, "config.json: word_embed_proj_dim is not positive");
    hp->n_embd_in = width != hp->n_embd ? width : 0;
    return code;
}

static void to_config(const struct pp_hparams *hp, cJSON *config)
{
    const bool biases = cJSON_IsTrue(pp_json_member(config, "attention_bias"));
    pp_config_put_text(config, "activation_function", pp_config_function_name(&pp_arch_opt.decoder, hp));
    pp_config_put(config, "ffn_dim", hp->n_ff);
    pp_config_put(config, "word_embed_proj_dim", pp_embedding_width(hp));
    cJSON_AddBoolToObject(config, "enable_bias", biases);
    cJSON_AddBoolToObject(config, "layer_norm_elementwise_affine", !hp->nonparametric_norms);
    cJSON_AddBoolToObject(config, "do_layer_norm_before", !hp->post_ln);
    cJSON_AddBoolToObject(config, "_remove_final_layer_norm", hp->no_output_norm && !hp->post_ln);
}

static enum pp_code from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, struct pp_error *err)
{
    bool sums = false, output_norm = true;
    (void)err;
    pp_gguf_bool(g, "opt.norms_of_sums", &sums);
    pp_gguf_bool(g, "opt.output_norm", &output_norm);
    pp_gguf_bool(g, "opt.plain_norms", &hp->nonparametric_norms);
    pp_gguf_int(g, "opt.embedding_length_in", &hp->n_embd_in);
    if (sums)
        norm_sums(hp);
    hp->no_output_norm = !output_norm;
    hp->n_reserved_positions = RESERVED;
    return PP_OK;
}

static void to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w)
{
    pp_gguf_add_bool(w, "opt.norms_of_sums", hp->post_ln);
    pp_gguf_add_bool(w, "opt.output_norm", !hp->no_output_norm);
    pp_gguf_add_bool(w, "opt.plain_norms", hp->nonparametric_norms);
    if (hp->n_embd_in)
        pp_gguf_add_u32(w, "opt.embedding_length_in", (uint32_t)hp->n_embd_in);
}

const struct pp_arch pp_arch_opt = {
    .name = "opt",
    .hf_classes = classes,
    .names = names,
    .ignored = pp_common_ignored,
    .defaults = defaults,
    .gguf_neox = true,
    .decoder = {.layer_norm = true, .norm_bias = true, .ungated = true, .fn = PP_FN_RELU,
                .positions = PP_POS_LEARNED},
    .from_config = from_config,
    .from_gguf = from_gguf,
    .to_gguf = to_gguf,
    .to_config = to_config,
    .hf_eps = "layer_norm_eps",
};
