/* decoder.c - the plan of a decoder: layer by layer attention and a feed-forward part, each added to a residual stream.
 *
 * This is the code of all families; struct pp_decoder and the hparams say in what they differ. Transformer blocks:
 * Vaswani et al., arXiv 1706.03762; pre-norms: GPT-2; grouped-query attention: arXiv 2305.13245; attention and
 * feed-forward part in parallel: GPT-J, PaLM (arXiv 2204.02311), Phi, Cohere; mixture of experts: arXiv 2401.04088. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/decoder_int.h"

enum pp_fn pp_decoder_fn(const struct pp_decoder *d, const struct pp_hparams *hp)
{
    static const enum pp_fn functions[] = {[PP_ACTIVATION_GELU] = PP_FN_GELU,
                                           [PP_ACTIVATION_GELU_TANH] = PP_FN_GELU_TANH,
                                           [PP_ACTIVATION_SILU] = PP_FN_SILU, [PP_ACTIVATION_RELU2] = PP_FN_RELU2,
                                           [PP_ACTIVATION_RELU] = PP_FN_RELU};
    return hp->activation == PP_ACTIVATION_USUAL ? d->fn : functions[hp->activation];
}

static void add_residual(struct builder *b, int l)
{
    add_sum(b, l, b->hp->residual_scale, b->delta, b->x);
}

bool pp_decoder_has(const struct builder *b, int l, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    return pp_source_tensor(b->s, name) != NULL;
}

/* --- norms ---------------------------------------------------------------------------------------------------- */

/* Whether norms have no weights. */
static bool has_plain_norms(const struct builder *b)
{
    return b->d->plain_norm || b->hp->nonparametric_norms;
}

bool pp_decoder_find_norm(struct builder *b, const char *name, int64_t n, struct pp_op *norm)
{
    const bool plain = has_plain_norms(b);
    norm->centred = b->d->layer_norm && !b->hp->rms_norm;
    char bias[80];
    snprintf(bias, sizeof bias, "%s.weight", name); /* some of PLaMo 3's have no such suffix */
    const bool bare = !plain && !pp_source_tensor(b->s, bias) && pp_source_tensor(b->s, name);
    if (b->hp->norm_groups && n == b->hp->n_embd) {
        norm->kind = PP_OP_HEAD_NORM;
        norm->weight = pp_plan_rows(b->p, b->s, b->hp->norm_groups, n / b->hp->norm_groups, b->err, "%s.weight", name);
        return norm->weight != NULL;
    }
    norm->weight = plain ? b->ones : pp_plan_tensor(b->s, 0, n, b->err, bare ? "%s" : "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    const bool added = norm->weight && !plain && (b->d->norm_bias || pp_source_tensor(b->s, bias));
    if (added)
        norm->bias = pp_plan_tensor(b->s, 0, n, b->err, "%s", bias);
    return norm->weight && (norm->bias || !added);
}

/* GigaChat 3.5: x *= 2 sigmoid(W_down silu(W_up x)), x being the norm's result. */
bool pp_decoder_norm_gates(struct builder *b, int l, const char *name, int64_t n, int slot)
{
    const int64_t rank = b->hp->norm_rank;
    if (!rank)
        return true;
    const int up = pp_plan_linear(b->p, b->s, rank, n, b->err, "%s_gate_up", name);
    const int down = up < 0 ? -1 : pp_plan_linear(b->p, b->s, n, rank, b->err, "%s_gate_down", name);
    const int gates = pp_plan_part(b->p, b->norm_gates, 0, n);
    add_linear(b, l, up, slot, b->norm_low);
    add_fn(b, l, PP_FN_SILU, 0, b->norm_low, b->norm_low);
    add_linear(b, l, down, b->norm_low, gates);
    add_gated(b, l, PP_FN_SIGMOID, gates, slot, slot);
    add_fn(b, l, PP_FN_SCALE, 2, slot, slot);
    return down >= 0;
}

bool pp_decoder_norm(struct builder *b, int l, const char *kind, int64_t n, int in, int out)
{
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .in = in, .in2 = NONE, .out = out};
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", l, kind);
    if (in == out && in == b->x && b->hp->stream_rank)
        return true; /* Qwen 4: pp_hyper_begin has normalised each stream before the gates */
    if (b->hp->norm_rank && out == b->normalised) {
        if (b->gated_norm && b->gated_layer == l && strcmp(b->gated_norm, kind) == 0)
            return true; /* still there: with gates it is a slot of its own, not fused into a projection */
        b->gated_norm = kind;
        b->gated_layer = l;
    }
    if (!pp_decoder_find_norm(b, name, n, &norm))
        return false;
    add(b, norm);
    return pp_decoder_norm_gates(b, l, name, n, out);
}

/* --- layers ----------------------------------------------------------------------------------------------------- */

static const char after_attention[] = "post_attention_norm";

/* The family's name of the post-norm of a part; usual: the part's default. */
static const char *post_norm_name(const struct builder *b, int l, const char *usual)
{
    char full[40];
    if (b->hp->norms_after)
        return usual == after_attention ? "attn_norm" : "ffn_norm";
    if (usual == after_attention)
        return b->d->attn_post_norm ? b->d->attn_post_norm : usual;
    if (!b->d->ffn_post_norm)
        return usual;
    snprintf(full, sizeof full, "%s.weight", b->d->ffn_post_norm);
    return pp_decoder_has(b, l, full) ? b->d->ffn_post_norm : usual;
}

/* Whether a layer's parts have pre-norms, and post-norms. */
static bool has_pre_norms(const struct builder *b, int l)
{
    return (!b->d->no_pre_norm && !b->hp->norms_after) ||
           (b->d->norms_before_states && b->hp->layer[l] & PP_LAYER_RECURRENT);
}

static bool has_post_norms(const struct builder *b, int l)
{
    return b->hp->norms_after || b->hp->post_norms ||
           (b->d->post_norm && !(b->d->norms_before_states && b->hp->layer[l] & PP_LAYER_RECURRENT));
}

/* x *= the part's vector (scaled_residual). */
static bool add_stream_weight(struct builder *b, int l, const char *part)
{
    const struct pp_tensor *weight = pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "blk.%d.%s_residual", l, part);
    add(b, (struct pp_op){.kind = PP_OP_MULTIPLY, .weight = weight, .layer = l, .in = b->x, .in2 = NONE,
                          .out = b->x});
    return weight != NULL;
}

/* slot = (slot + bias) * weight, the vectors of NAME. */
static bool add_affine(struct builder *b, int l, const char *name, int slot)
{
    struct pp_op op = {.kind = PP_OP_AFFINE, .layer = l, .in = slot, .in2 = NONE, .out = slot};
    op.weight = pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "%s.weight", name);
    op.bias = !op.weight ? NULL : pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "%s.bias", name);
    add(b, op);
    return op.bias != NULL;
}

/* affine_residual: both the stream and the part's output are transformed before they are added. */
static bool add_scaled_part(struct builder *b, int l, const char *part)
{
    const char *const kinds[] = {"residual", "result"};
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s_%s", l, part, kinds[i]);
        if (!add_affine(b, l, name, i ? b->delta : b->x))
            return false;
    }
    add_residual(b, l);
    return true;
}

/* Adds the output of attention or of the feed-forward part, `delta`, to the residual stream. */
static bool add_result(struct builder *b, int l, const char *post_norm)
{
    if (b->d->affine_residual)
        return add_scaled_part(b, l, post_norm == after_attention ? "attn" : "ffn");
    if (b->d->scaled_residual && !add_stream_weight(b, l, post_norm == after_attention ? "attn" : "ffn"))
        return false;
    if (b->d->gains) {
        float gain;
        if (!pp_gains_number(b, l, post_norm == after_attention ? "attn_output.scale" : "ffn_down.scale", 1, &gain))
            return false;
        if (gain != 0.0f)
            add_sum(b, l, gain, b->delta, b->x);
        return true;
    }
    if (b->hp->post_ln) {
        add_residual(b, l);
        return add_norm(b, l, post_norm_name(b, l, post_norm), b->x, b->x);
    }
    if (has_post_norms(b, l)) {
        struct pp_op norm = {.kind = PP_OP_NORM, .layer = l, .scale = b->d->post_norm_eps, .in = b->delta,
                             .in2 = NONE, .out = b->delta};
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", l, post_norm_name(b, l, post_norm));
        if (!pp_decoder_find_norm(b, name, b->hp->n_embd, &norm))
            return false;
        add(b, norm);
        if (!pp_decoder_norm_gates(b, l, name, b->hp->n_embd, b->delta))
            return false;
    }
    add_residual(b, l);
    return true;
}

bool pp_attention_added(struct builder *b, int l)
{
    return add_result(b, l, after_attention);
}

bool pp_ff_added(struct builder *b, int l)
{
    return add_result(b, l, "post_ffw_norm");
}

/* Gemma 4: a dense feed-forward part and experts, whose outputs are normalised, added up and normalised again. */
static bool add_experts_plus_dense(struct builder *b, int l)
{
    if (!pp_ff_norm(b, l) || !pp_ff_up(b, l, b->normalised) || !pp_ff_down(b, l) ||
        !add_norm(b, l, "post_ffw_norm_1", b->delta, b->shared) || !pp_experts_result(b, l) ||
        !add_norm(b, l, "post_ffw_norm_2", b->delta, b->delta))
        return false;
    add_to(b, l, b->shared, b->delta);
    return pp_ff_added(b, l);
}

/* Grok 2: both of the same input; their sum is divided by sqrt(2). */
static bool add_dense_parallel_to_experts(struct builder *b, int l)
{
    if (!pp_ff_norm(b, l) || !pp_ff_up(b, l, b->normalised) || !pp_ff_down(b, l))
        return false;
    add_copy(b, l, b->delta, b->shared);
    if (!pp_experts_result(b, l))
        return false;
    add_to(b, l, b->shared, b->delta);
    add_fn(b, l, PP_FN_SCALE, sqrtf(0.5f), b->delta, b->delta);
    return add_result(b, l, "post_ffw_norm");
}

/* Routed experts plus the shared one, if there is one, from the stream to `delta`. */
static bool add_all_experts(struct builder *b, int l)
{
    const bool shares = b->hp->n_ff_shared != 0;
    if ((shares && !pp_shared_expert_up(b, l)) || !pp_experts_result(b, l) ||
        (shares && !pp_shared_expert_down(b, l, b->shared)))
        return false;
    if (shares)
        add_to(b, l, b->shared, b->delta);
    return true;
}

static bool add_normalised_mixture(struct builder *b, int l)
{
    if (!add_all_experts(b, l) || !add_norm(b, l, "post_ffw_norm", b->delta, b->delta))
        return false;
    add_residual(b, l);
    return true;
}

/* The feed-forward part of a layer with experts. */
static bool add_mixture(struct builder *b, int l)
{
    if (b->d->experts_plus_dense)
        return add_experts_plus_dense(b, l);
    if (b->hp->dense_parallel)
        return add_dense_parallel_to_experts(b, l);
    if (b->hp->n_expert_share) {
        if (!pp_experts_result(b, l) || !pp_shared_experts(b, l, b->shared))
            return false;
        add_to(b, l, b->shared, b->delta);
        return add_result(b, l, "post_ffw_norm");
    }
    if (b->d->experts_post_norm)
        return add_normalised_mixture(b, l);
    if (!b->hp->n_ff_shared)
        return pp_experts_result(b, l) && pp_ff_added(b, l);
    if (!b->d->post_norm) { /* without a norm of the sum, each can be added as soon as it is computed */
        if (!pp_shared_expert_up(b, l) || !pp_experts_result(b, l))
            return false;
        add_residual(b, l);
        return pp_shared_expert_down(b, l, b->delta) && add_result(b, l, NULL);
    }
    return add_all_experts(b, l) && pp_ff_added(b, l);
}

/* Experts in parallel with attention, both reading the stream. Experts come first; their output waits in `shared`. */
static bool add_parallel_mixture(struct builder *b, int l)
{
    const int delta = b->delta, mixture = b->shared;
    const bool shares = b->hp->n_ff_shared != 0;
    const float part = shares && b->hp->shared_mean ? 0.5f : 1;
    b->delta = mixture;
    const bool good = (!shares || pp_shared_expert_up(b, l)) && pp_experts_result(b, l) &&
                      (!shares || pp_shared_expert_down(b, l, delta));
    b->delta = delta;
    if (!good)
        return false;
    if (shares)
        add_to(b, l, delta, mixture);
    if (!pp_mixer_input(b, l) || !pp_mixer_result(b, l) || !pp_attention_added(b, l))
        return false;
    add_sum(b, l, part, mixture, b->x);
    return true;
}

/* Gemma 3n's and 4's per-layer input: x += norm(W_proj (fn(W_gate x) * input)). */
static bool add_layer_input(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd_layer, n_embd = b->hp->n_embd;
    const int gate = pp_plan_linear(b->p, b->s, n, n_embd, b->err, "blk.%d.inp_gate", l);
    const int proj = gate < 0 ? -1 : pp_plan_linear(b->p, b->s, n_embd, n, b->err, "blk.%d.proj", l);
    if (proj < 0)
        return false;
    add_linear(b, l, gate, b->x, b->input);
    add_gated(b, l, pp_decoder_fn(b->d, b->hp), b->input, pp_plan_part(b->p, b->inputs, l * n, n), b->input);
    add_linear(b, l, proj, b->input, b->delta);
    if (!add_norm(b, l, "post_norm", b->delta, b->delta))
        return false;
    add_residual(b, l);
    return true;
}

/* The stream is multiplied by a scalar after the layer. */
static bool add_layer_scale(struct builder *b, int l)
{
    const struct pp_tensor *scale = pp_plan_tensor(b->s, 0, 1, b->err, "blk.%d.layer_output_scale.weight", l);
    add(b, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .weight = scale, .layer = l, .in = b->x, .in2 = NONE,
                          .out = b->x});
    return scale != NULL;
}

/* hparams.one_part: a layer is only states, only attention, only a feed-forward part or only experts. */
static bool add_one_part(struct builder *b, int l)
{
    const uint8_t bits = b->hp->layer[l];
    const bool mixes = bits & PP_LAYER_RECURRENT || b->shape.n_head_kv;
    if (!mixes && b->hp->n_expert && !(bits & PP_LAYER_DENSE))
        return add_mixture(b, l);
    if (mixes ? !pp_mixer_input(b, l) || !pp_mixer_result(b, l)
              : !pp_ff_norm(b, l) || !pp_ff_up(b, l, b->normalised) || !pp_ff_down(b, l))
        return false;
    add_residual(b, l);
    return true;
}

/* DeciLM: a layer may lack attention or have a projection in its place, and may lack the feed-forward part. */
static bool add_partial_layer(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd;
    int instead = 0;
    if (b->shape.n_head_kv && (!pp_mixer_input(b, l) || !pp_mixer_result(b, l)))
        return false;
    if (b->shape.n_head && !b->shape.n_head_kv) {
        if (!add_norm(b, l, "attn_norm", b->x, b->normalised) ||
            (instead = pp_plan_linear(b->p, b->s, n, n, b->err, "blk.%d.attn_output", l)) < 0)
            return false;
        add_linear(b, l, instead, b->normalised, b->delta);
    }
    if (b->shape.n_head)
        add_residual(b, l);
    if (!b->shape.n_ff)
        return true;
    if (!pp_ff_norm(b, l) || !pp_ff_up(b, l, b->normalised) || !pp_ff_down(b, l))
        return false;
    add_residual(b, l);
    return true;
}

/* Arctic: experts read the layer's input; their output is added after the layer. */
static bool add_experts_parallel_to_layer(struct builder *b, int l)
{
    const int delta = b->delta;
    b->delta = b->shared;
    const bool good = pp_experts_result(b, l);
    b->delta = delta;
    if (!good || !pp_mixer_input(b, l) || !pp_mixer_result(b, l) || !pp_attention_added(b, l) ||
        !pp_ff_norm(b, l) || !pp_ff_up(b, l, b->normalised) || !pp_ff_down(b, l) || !pp_ff_added(b, l))
        return false;
    add_sum(b, l, b->hp->residual_scale, b->shared, b->x);
    return true;
}

/* LongCat-Flash (arXiv 2509.01322): of each two layers the first has experts, which read what its feed-forward part
 * reads; their output is added after the second. */
static bool add_shortcut(struct builder *b, int l)
{
    const bool experts = !(b->hp->layer[l] & PP_LAYER_DENSE);
    const int delta = b->delta;
    if (!pp_mixer_input(b, l) || !pp_mixer_result(b, l) || !pp_attention_added(b, l))
        return false;
    b->delta = b->shared;
    const bool good = !experts || pp_experts_result(b, l);
    b->delta = delta;
    if (!good || !pp_ff_norm(b, l) || !pp_ff_up(b, l, b->normalised) || !pp_ff_down(b, l) ||
        !pp_ff_added(b, l))
        return false;
    if (!experts)
        add_to(b, l, b->shared, b->x);
    return true;
}

/* Mixes the kept inputs and the stream into b->residual_mixture. Returns that slot; -1: the tensor is missing. */
static int mix_block_inputs(struct builder *b, int l, const char *name)
{
    const int64_t n = b->hp->n_embd;
    const int stored = b->n_block_inputs ? pp_plan_part(b->p, b->block_inputs, 0, b->n_block_inputs * n) : NONE;
    const struct pp_tensor *weight = pp_plan_tensor(b->s, 0, n, b->err, "%s", name);
    add(b, (struct pp_op){.kind = PP_OP_ATTN_RESIDUAL, .layer = l, .count = b->n_block_inputs, .scale = b->hp->norm_eps,
                          .weight = weight, .in = b->x, .in2 = stored, .out = b->residual_mixture});
    return weight ? b->residual_mixture : -1;
}

/* Kimi K3's attention residuals: both parts read a softmax mixture of the kept streams and the present one. Every
 * attn_res_block-th layer keeps the stream, which then starts anew with the output of attention. */
static bool add_attn_residual_layer(struct builder *b, int l)
{
    const int64_t n = b->hp->n_embd;
    const bool keeps = l % b->hp->attn_res_block == 0, mixture = b->hp->n_expert && !(b->hp->layer[l] & PP_LAYER_DENSE);
    const int x = b->x;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_res_score.weight", l);
    const int in = mix_block_inputs(b, l, name);
    if (in < 0)
        return false;
    if (keeps)
        add_copy(b, l, x, pp_plan_part(b->p, b->block_inputs, b->n_block_inputs++ * n, n));
    b->x = in;
    bool good = pp_mixer_input(b, l) && pp_mixer_result(b, l);
    b->x = x;
    if (!good)
        return false;
    if (keeps)
        add_copy(b, l, b->delta, x);
    else
        add_residual(b, l);
    snprintf(name, sizeof name, "blk.%d.ffn_res_score.weight", l);
    if ((b->x = mix_block_inputs(b, l, name)) >= 0)
        good = mixture ? add_all_experts(b, l) : pp_ff_norm(b, l) && pp_ff_up(b, l, b->normalised) && pp_ff_down(b, l);
    good = good && b->x >= 0;
    b->x = x;
    add_residual(b, l);
    return good;
}

/* A layer with hyper-connections: each part reads a mixture of the streams and writes to all. */
static bool add_hyper_layer(struct builder *b, int l)
{
    const bool mixture = b->hp->n_expert && !(b->hp->layer[l] & PP_LAYER_DENSE);
    if (b->hp->hashed.size && l == b->hp->hashed.layer && !pp_hash_embeddings(b, l))
        return false;
    if (!pp_hyper_begin(b, l, "attn") || !pp_mixer_input(b, l) || !pp_mixer_result(b, l))
        return false;
    pp_hyper_end(b, l);
    if (!pp_hyper_begin(b, l, "ffn") ||
        !(mixture ? add_all_experts(b, l) : pp_ff_norm(b, l) && pp_ff_up(b, l, b->normalised) && pp_ff_down(b, l)))
        return false;
    pp_hyper_end(b, l);
    return true;
}

/* A dense feed-forward part and a second one (n_ff_shared) that read the same. */
static bool add_both_dense(struct builder *b, int l)
{
    if (!pp_mixer_input(b, l) || !pp_mixer_result(b, l) || !pp_attention_added(b, l) || !pp_shared_expert_up(b, l) ||
        !pp_ff_up(b, l, b->normalised) || !pp_ff_down(b, l) || !pp_shared_expert_down(b, l, b->shared))
        return false;
    add_to(b, l, b->shared, b->delta);
    return pp_ff_added(b, l);
}

static bool add_parts(struct builder *b, int l)
{
    const bool parallel = b->hp->parallel, pre = has_pre_norms(b, l);
    const bool mixture = b->hp->n_expert && !(b->hp->layer[l] & PP_LAYER_DENSE);
    if (b->d->shortcut)
        return add_shortcut(b, l);
    if (b->hp->attn_res_block)
        return add_attn_residual_layer(b, l);
    if (mixture && b->d->mixture_norm)
        return add_experts_parallel_to_layer(b, l);
    if (mixture && parallel)
        return add_parallel_mixture(b, l);
    if (b->hp->n_ff_shared && !b->hp->n_expert && !parallel && pre)
        return add_both_dense(b, l);
    if ((mixture && b->d->early_router && !pp_experts_choose(b, l)) || !pp_mixer_input(b, l))
        return false;
    if (mixture)
        return pp_mixer_result(b, l) && pp_attention_added(b, l) && add_mixture(b, l);
    /* In parallel with attention, the feed-forward part reads the stream before anything is added to it. */
    if (parallel && (!pp_ff_norm(b, l) || !pp_ff_up(b, l, b->normalised)))
        return false;
    if (!pp_mixer_result(b, l) || !pp_attention_added(b, l))
        return false;
    if (!parallel && ((pre && !pp_ff_norm(b, l)) || !pp_ff_up(b, l, pre ? b->normalised : b->x)))
        return false;
    return pp_ff_down(b, l) && pp_ff_added(b, l);
}

/* MiniMax: x = scales[0] x + scales[1] delta. */
static void add_to_scaled(struct builder *b, int l, enum pp_stream_scale which)
{
    const float *scales = b->hp->stream_scales[which];
    if (scales[0] != 1.0f)
        add_fn(b, l, PP_FN_SCALE, scales[0], b->x, b->x);
    add_sum(b, l, scales[1], b->delta, b->x);
}

/* MiniMax: norms replace the stream itself. */
static bool add_replaced_stream(struct builder *b, int l)
{
    const bool states = b->hp->layer[l] & PP_LAYER_RECURRENT;
    if (!add_norm(b, l, "attn_norm", b->x, b->x) || !pp_mixer_input(b, l) || !pp_mixer_result(b, l))
        return false;
    add_to_scaled(b, l, states ? PP_STREAM_STATES : PP_STREAM_ATTENTION);
    if (!add_norm(b, l, "ffn_norm", b->x, b->x) || !pp_experts_result(b, l))
        return false;
    add_to_scaled(b, l, PP_STREAM_FF);
    return true;
}

/* Solar Pro's block skips: a layer's input is kept, or mixed with a kept one; see pp_hparams.skips. */
static void add_skips(struct builder *b, int l)
{
    const float share = b->hp->skip_share;
    const int skips = b->hp->skips[l];
    for (int i = 0; i < 2; i++)
        if (skips >> i & 1)
            add_copy(b, l, b->x, b->skipped[i]);
    for (int i = 0; i < 2; i++) {
        if (!(skips >> (i + 2) & 1))
            continue;
        add_fn(b, l, PP_FN_SCALE, 1 - share, b->x, b->x);
        add_sum(b, l, share, b->skipped[i], b->x);
    }
}

static bool add_layer(struct builder *b, int l)
{
    pp_mixer_shape(b, pp_layer_shape(b->hp, l));
    add_skips(b, l);
    if (b->hp->rwkv && !b->hp->rwkv_qwen)
        return (b->hp->rwkv4 ? pp_rwkv4_layer : b->hp->rwkv6 ? pp_rwkv6_layer : pp_rwkv7_layer)(b, l);
    if (b->hp->hyper)
        return add_hyper_layer(b, l);
    if (b->hp->n_stream)
        return pp_altup_layer(b, l);
    if (b->d->norm_replaces_stream)
        return add_replaced_stream(b, l);
    if (b->hp->n_shared_block)
        return pp_zamba_layer(b, l);
    if (b->hp->parts_missing)
        return b->hp->one_part ? add_one_part(b, l) : add_partial_layer(b, l);
    return add_parts(b, l) && (!b->hp->n_embd_layer || add_layer_input(b, l)) &&
           (b->d->gains ? pp_gains_first(b, l)
                        : !pp_decoder_has(b, l, "layer_output_scale.weight") || add_layer_scale(b, l));
}

/* The shape that slots need for the widest layer. */
static struct pp_layer_shape widest_shape(const struct pp_hparams *hp)
{
    struct pp_layer_shape widest = {.n_head = hp->n_head, .n_head_kv = hp->n_head_kv, .head_dim = hp->head_dim,
                                    .n_ff = hp->n_ff};
    if (hp->head_dim_local > widest.head_dim)
        widest.head_dim = hp->head_dim_local;
    widest.v_dim = pp_value_dim(hp, widest.head_dim);
    return widest;
}

static void make_ff_slots(struct builder *b)
{
    struct pp_plan *p = b->p;
    const struct pp_hparams *hp = b->hp;
    if (b->d->fused_gate || hp->fused_parts) {
        b->gate_up = pp_plan_slot(p, 2 * hp->n_ff);
        b->gate = pp_plan_part(p, b->gate_up, 0, hp->n_ff);
        b->up = pp_plan_part(p, b->gate_up, hp->n_ff, hp->n_ff);
    } else {
        b->gate = pp_plan_slot(p, hp->n_ff);
        b->up = pp_plan_slot(p, hp->n_ff);
    }
    b->act = pp_plan_slot(p, hp->n_ff);
    if (hp->polynorm_gates)
        pp_poly_slots(b);
}

static void make_shared_expert_slots(struct builder *b)
{
    struct pp_plan *p = b->p;
    const struct pp_hparams *hp = b->hp;
    b->shared_both = pp_plan_slot(p, 2 * hp->n_ff_shared);
    b->shared_gate = pp_plan_part(p, b->shared_both, 0, hp->n_ff_shared);
    b->shared_up = pp_plan_part(p, b->shared_both, hp->n_ff_shared, hp->n_ff_shared);
    b->shared_act = pp_plan_slot(p, hp->n_ff_shared);
    b->shared_weight = pp_plan_slot(p, 1);
    if (b->d->shared_expert_mix) {
        b->expert_share = pp_plan_slot(p, 1);
        b->mix_logits = pp_plan_slot(p, 2);
    }
}

static void make_slots(struct builder *b)
{
    struct pp_plan *p = b->p;
    const struct pp_hparams *hp = b->hp;
    b->x = pp_plan_slot(p, hp->n_embd);
    b->normalised = hp->stream_rank ? b->x : pp_plan_slot(p, hp->n_embd);
    b->delta = pp_plan_slot(p, hp->n_embd);
    pp_mixer_slots(b, widest_shape(hp));
    make_ff_slots(b);
    b->router = pp_plan_slot(p, hp->n_expert ? hp->n_expert + hp->n_expert_idle : 1);
    if (hp->norm_rank) { /* for norms of the stream and of latent attention's vectors, whichever is wider */
        const int64_t low = hp->q_lora_rank > hp->kv_lora_rank ? hp->q_lora_rank : hp->kv_lora_rank;
        b->norm_low = pp_plan_slot(p, hp->norm_rank);
        b->norm_gates = pp_plan_slot(p, low > hp->n_embd ? low : hp->n_embd);
    }
    if (hp->router_rank) {
        b->router_state = pp_plan_slot(p, hp->router_rank);
        b->router_tmp[0] = pp_plan_slot(p, hp->router_rank);
        b->router_tmp[1] = pp_plan_slot(p, hp->router_rank);
    }
    if (hp->n_embd_expert) {
        b->narrow = pp_plan_slot(p, hp->n_embd_expert);
        b->narrow_out = pp_plan_slot(p, hp->n_embd_expert);
    }
    if (hp->n_embd_layer) {
        b->projected = pp_plan_slot(p, hp->n_layer * hp->n_embd_layer);
        b->inputs = b->d->projected_inputs ? b->projected : pp_plan_slot(p, hp->n_layer * hp->n_embd_layer);
        b->input = pp_plan_slot(p, hp->n_embd_layer);
    }
    if (hp->n_stream && !hp->hyper)
        pp_altup_slots(b);
    if (hp->attn_res_block) {
        b->block_inputs = pp_plan_slot(p, (hp->n_layer + hp->attn_res_block - 1) / hp->attn_res_block * hp->n_embd);
        b->residual_mixture = pp_plan_slot(p, hp->n_embd);
    }
    for (int i = 0; i < 2 && hp->skip_share != 0.0f; i++)
        b->skipped[i] = pp_plan_slot(p, hp->n_embd);
    if (b->d->gains)
        b->first = pp_plan_slot(p, hp->n_embd);
    if (hp->n_shared_block)
        pp_zamba_slots(b);
    if (hp->n_ff_shared || (hp->parallel && hp->n_expert) || b->d->experts_plus_dense || hp->dense_parallel ||
        hp->n_expert_share)
        b->shared = pp_plan_slot(p, hp->n_embd);
    if (hp->n_ff_shared)
        make_shared_expert_slots(b);
}

/* Embeddings of n_embd_in values, which a matrix brings to n_embd (OPT 350M). Learned positions are added after it.
 * embed: the operation for embeddings of full width. */
static bool add_narrow_embedding(struct builder *b, struct pp_op embed)
{
    const int proj = pp_plan_linear(b->p, b->s, b->hp->n_embd, b->hp->n_embd_in, b->err, "embd_proj");
    const struct pp_tensor *positions = embed.bias;
    embed.bias = NULL;
    embed.out = pp_plan_slot(b->p, b->hp->n_embd_in);
    add(b, embed);
    add_linear(b, 0, proj, embed.out, b->x);
    if (positions) {
        add(b, (struct pp_op){.kind = PP_OP_LOOKUP, .by_position = true, .weight = positions, .in = NONE, .in2 = NONE,
                              .out = b->delta});
        add_to(b, 0, b->delta, b->x);
    }
    return proj >= 0;
}

static bool add_embedding(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_op embed = {.kind = PP_OP_EMBED, .scale = hp->embd_scale, .in = NONE, .in2 = NONE, .out = b->x};
    const bool fairseq = b->d->positions == PP_POS_FAIRSEQ_SINUSOIDS;
    const bool made = fairseq || b->d->positions == PP_POS_SINUSOIDS;
    const bool positions = made || b->d->positions == PP_POS_LEARNED ||
                           (b->d->positions == PP_POS_LEARNED_OR_ALIBI && hp->alibi == 0.0f);
    embed.weight = pp_plan_tensor(b->s, hp->n_vocab, pp_embedding_width(hp), b->err, "token_embd.weight");
    if (embed.weight && made)
        embed.bias = pp_plan_sinusoids(b->p, hp->n_ctx_train, hp->n_embd, fairseq, b->err);
    else if (embed.weight && positions)
        embed.bias = pp_plan_tensor(b->s, hp->n_ctx_train, hp->n_embd, b->err, "position_embd.weight");
    b->p->n_positions = positions || hp->key_scores ? hp->n_ctx_train : 0;
    if (!embed.weight || (positions && !embed.bias) ||
        (hp->n_meta_tokens &&
         !(embed.meta_tokens = pp_plan_tensor(b->s, hp->n_meta_tokens, hp->n_embd, b->err, "token_start.weight"))))
        return false;
    if (hp->n_embd_in) {
        if (!add_narrow_embedding(b, embed))
            return false;
    } else {
        add(b, embed);
    }
    if (hp->ngram.size && !pp_ngram_embeddings(b))
        return false;
    struct pp_op norm = {.kind = PP_OP_NORM, .in = b->x, .in2 = NONE, .out = b->x};
    if (b->d->affine_residual && !add_affine(b, 0, "embd_scale", b->x))
        return false;
    if (!b->d->embd_norm)
        return true;
    if (b->d->plain_embd_norm ? !(norm.weight = pp_plan_ones(b->p, hp->n_embd, b->err))
                              : !pp_decoder_find_norm(b, "token_embd_norm", hp->n_embd, &norm))
        return false;
    add(b, norm);
    if (b->d->gains)
        add_copy(b, 0, b->x, b->first);
    return true;
}

/* Gemma 3n's and 4's per-layer inputs: the embeddings projected and normalised layer by layer, plus the token's row of
 * a second table, times sqrt(1/2). Without the table (projected_inputs) the former alone. */
static bool add_layer_inputs(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->n_layer * hp->n_embd_layer;
    const struct pp_tensor *table = pp_source_tensor(b->s, "per_layer_token_embd.weight"), *norm;
    const int64_t n_rows = table && table->n_dims == 2 && table->ne[1] < hp->n_vocab ? table->ne[1] : hp->n_vocab;
    const int proj = pp_plan_linear(b->p, b->s, n, hp->n_embd, b->err, "per_layer_model_proj");
    const bool alone = b->d->projected_inputs;
    if (proj < 0 ||
        (!alone && !(table = pp_plan_tensor(b->s, n_rows, n, b->err, "per_layer_token_embd.weight"))) ||
        !(norm = pp_plan_tensor(b->s, 0, hp->n_embd_layer, b->err, "per_layer_proj_norm.weight")))
        return false;
    add_linear(b, 0, proj, b->x, b->projected);
    add_fn(b, 0, PP_FN_SCALE, 1.0f / sqrtf((float)hp->n_embd), b->projected, b->projected);
    if (!alone)
        add(b, (struct pp_op){.kind = PP_OP_LOOKUP, .weight = table, .scale = sqrtf((float)hp->n_embd_layer),
                              .in = NONE, .in2 = NONE, .out = b->inputs});
    add(b, (struct pp_op){.kind = PP_OP_HEAD_NORM, .weight = norm, .in = b->projected, .in2 = NONE,
                          .out = b->projected});
    if (alone)
        return true;
    add_to(b, 0, b->projected, b->inputs);
    add_fn(b, 0, PP_FN_SCALE, sqrtf(0.5f), b->inputs, b->inputs);
    return true;
}

/* An encoder's output. Its dense layers are applied to every position, though models define them after pooling: they
 * have no bias, and the mean of products is the product of the mean. */
static bool add_vectors(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    const int n_layer = (int)hp->n_layer;
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = n_layer, .in = b->x, .in2 = NONE, .out = b->x};
    if (!pp_decoder_find_norm(b, b->d->output_norm ? b->d->output_norm : "output_norm", hp->n_embd, &norm))
        return false;
    add(b, norm);
    if (hp->n_dense) {
        const int wide = pp_plan_slot(b->p, hp->n_dense);
        const int there = pp_plan_linear(b->p, b->s, hp->n_dense, hp->n_embd, b->err, "dense_2");
        const int back = there < 0 ? -1 : pp_plan_linear(b->p, b->s, hp->n_embd, hp->n_dense, b->err, "dense_3");
        if (back < 0)
            return false;
        add_linear(b, n_layer, there, b->x, wide);
        add_linear(b, n_layer, back, wide, b->x);
    }
    add(b, (struct pp_op){.kind = PP_OP_SELECT, .layer = n_layer, .in = b->x, .in2 = NONE, .out = b->x});
    int vectors = b->x;
    if (hp->n_embd_out) {
        const int wider = pp_plan_linear(b->p, b->s, hp->n_embd_out, hp->n_embd, b->err, "output");
        if (wider < 0)
            return false;
        add_linear(b, n_layer, wider, b->x, vectors = pp_plan_slot(b->p, hp->n_embd_out));
    }
    add(b, (struct pp_op){.kind = PP_OP_RESULT, .layer = n_layer, .in = vectors, .in2 = NONE, .out = NONE});
    return true;
}

/* From one residual stream to several, and back. */
static bool split_streams(struct builder *b)
{
    return b->hp->hyper ? pp_hyper_split(b) : pp_altup_split(b);
}

static bool join_streams(struct builder *b)
{
    return b->hp->hyper ? pp_hyper_join(b) : pp_altup_join(b);
}

/* All layers, n_loops times, with the last norm between the passes unless skip_loop_norm. */
static bool add_loops(struct builder *b)
{
    const int n_layer = (int)b->hp->n_layer, n_loops = b->hp->n_loops ? (int)b->hp->n_loops : 1;
    for (int i = 0; i < n_loops; i++) {
        b->loop = i;
        struct pp_op norm = {.kind = PP_OP_NORM, .in = b->x, .in2 = NONE, .out = b->x};
        if (i > 0 && !b->hp->skip_loop_norm) {
            if (!pp_decoder_find_norm(b, "output_norm", b->hp->n_embd, &norm))
                return false;
            add(b, norm);
        }
        for (int l = 0; l < n_layer; l++)
            if (!add_layer(b, l))
                return false;
    }
    return true;
}

/* HRM-Text: a high and a low state, which start as the embeddings and as a learned vector. Each step runs a stack of
 * half the layers, and a norm, on the sum of both, and replaces one of them: low_cycles times the low state by the low
 * stack, then the high state by the high stack; all of this high_cycles times. */
static bool add_cycles(struct builder *b)
{
    const int half = (int)b->hp->n_layer / 2, runs = (int)b->hp->low_cycles + 1;
    const int low = pp_plan_slot(b->p, b->hp->n_embd), high = pp_plan_slot(b->p, b->hp->n_embd);
    struct pp_op start = {.kind = PP_OP_AFFINE, .in = b->x, .in2 = NONE, .out = b->x};
    struct pp_op norm = {.kind = PP_OP_NORM, .in = b->x, .in2 = NONE};
    if (!(start.bias = pp_plan_tensor(b->s, 0, b->hp->n_embd, b->err, "hrm.z_l_init")) ||
        !pp_decoder_find_norm(b, "output_norm", b->hp->n_embd, &norm))
        return false;
    add_copy(b, 0, b->x, high);
    for (int run = 0; run < runs * (int)b->hp->high_cycles; run++) {
        const int first = run % runs == runs - 1 ? half : 0;
        if (run > 0) {
            add_copy(b, first, high, b->x);
            add_to(b, first, low, b->x);
        } else {
            add(b, start);
        }
        for (int l = first; l < first + half; l++)
            if (!add_layer(b, l))
                return false;
        norm.layer = first + half - 1;
        norm.out = first ? high : low;
        add(b, norm);
    }
    add_copy(b, 2 * half - 1, high, b->x);
    return true;
}

/* dense_head, between the last norm and the logits: from b->normalised to b->delta. */
static bool add_dense_head(struct builder *b)
{
    const int n_layer = (int)b->hp->n_layer;
    const int64_t n = b->hp->n_embd;
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = n_layer, .in = b->delta, .in2 = NONE, .out = b->delta};
    const int dense = pp_plan_linear(b->p, b->s, n, n, b->err, "output_dense");
    if (dense < 0 || !pp_decoder_find_norm(b, "output_dense_norm", n, &norm))
        return false;
    add_linear(b, n_layer, dense, b->normalised, b->delta);
    add_fn(b, n_layer, pp_decoder_fn(b->d, b->hp), 0, b->delta, b->delta);
    add(b, norm);
    return true;
}

/* The bias of the logits. With tied embeddings the linear is token_embd, which does not find output.bias by itself. */
static bool add_head_bias(struct builder *b, int head)
{
    const struct pp_tensor *bias = pp_plan_tensor(b->s, 0, b->hp->n_vocab, b->err, "output.bias");
    pp_plan_linear_bias(b->p, head, bias);
    return bias != NULL;
}

/* The logits of the rows that want an output. */
static bool add_output(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    const int n_layer = (int)hp->n_layer;
    const int logits = pp_plan_slot(b->p, hp->n_vocab);
    const struct pp_tensor *silence = NULL;
    struct pp_op norm = {.kind = PP_OP_NORM, .layer = n_layer, .in = b->x, .in2 = NONE, .out = b->normalised};
    const char *head = pp_source_tensor(b->s, "output.weight") ? "output" : "token_embd"; /* tied embeddings */
    const int hidden = hp->no_output_norm ? b->x : b->normalised;
    int narrow = -1, proj = -1;
    if (!hp->no_output_norm &&
        !pp_decoder_find_norm(b, b->d->output_norm ? b->d->output_norm : "output_norm", hp->n_embd, &norm))
        return false;
    if (hp->n_embd_in &&
        (proj = pp_plan_linear(b->p, b->s, hp->n_embd_in, hp->n_embd, b->err, "output_proj")) < 0)
        return false;
    int w = pp_plan_linear(b->p, b->s, hp->n_vocab, pp_embedding_width(hp), b->err, "%s", head);
    if (w < 0 || (hp->suppressed[0].end && !(silence = pp_plan_suppress(b->p, hp, b->err))))
        return false;
    if (silence)
        pp_plan_linear_bias(b->p, w, silence);
    if (hp->attn_res_block) {
        if (mix_block_inputs(b, n_layer, "output_res_score.weight") < 0)
            return false;
        add_copy(b, n_layer, b->residual_mixture, b->x);
    }
    add(b, (struct pp_op){.kind = PP_OP_SELECT, .layer = n_layer, .in = b->x, .in2 = NONE, .out = b->x});
    if (!hp->no_output_norm)
        add(b, norm);
    if (!hp->no_output_norm && !pp_decoder_norm_gates(b, n_layer, "output_norm", hp->n_embd, b->normalised))
        return false;
    if (proj >= 0)
        add_linear(b, n_layer, proj, hidden, narrow = pp_plan_slot(b->p, hp->n_embd_in));
    if (((b->d->dense_head || b->d->head_bias) && !add_head_bias(b, w)) || (b->d->dense_head && !add_dense_head(b)))
        return false;
    add_linear(b, n_layer, w, b->d->dense_head ? b->delta : proj >= 0 ? narrow : hidden, logits);
    const struct {
        enum pp_fn fn;
        float number;
    } logit_fns[] = {{PP_FN_SCALE, hp->logit_scale}, {PP_FN_CAP, hp->final_softcap}};
    for (int i = 0; i < 2; i++)
        if (logit_fns[i].number != 0.0f)
            add_fn(b, n_layer, logit_fns[i].fn, logit_fns[i].number, logits, logits);
    add(b, (struct pp_op){.kind = PP_OP_RESULT, .layer = n_layer, .in = hidden, .in2 = logits, .out = NONE});
    return true;
}

enum pp_code pp_plan_decoder(const struct pp_source *s, const struct pp_decoder *d, struct pp_plan *plan,
                             struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    struct builder b = {.s = s, .hp = hp, .d = d, .p = plan, .err = err,
                        .fused_qkv = (pp_source_tensor(s, "blk.0.attn_qkv.weight") && !hp->n_state_head) ||
                                     (d->fused_qkv && !pp_source_tensor(s, "blk.0.attn_q.weight"))};
    if (hp->differential && b.fused_qkv)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: differential attention (%s) with a fused attn_qkv matrix is not "
                       "supported", pp_source_path(s), hp->arch);
    const bool raw = d->experts_read_stream && !hp->n_ff_shared && !hp->n_embd_expert;
    if (hp->n_expert && ((hp->parallel && !d->parallel_experts) || (d->no_pre_norm && !raw) || hp->norms_after))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: a mixture of experts in a model of this family is not supported",
                       pp_source_path(s));
    if (has_plain_norms(&b) && !(b.ones = pp_plan_ones(plan, hp->n_embd, err)))
        return err->code;
    if (((d->unweighted_qk_norm && hp->qk_norm) || d->unweighted_v_norm || hp->compressed || hp->convolved_heads) &&
        !(b.head_ones = pp_plan_ones(plan, hp->head_dim, err)))
        return err->code;
    if (b.head_ones && hp->head_dim_local && !(b.local_ones = pp_plan_ones(plan, hp->head_dim_local, err)))
        return err->code;
    make_slots(&b);
    bool good = add_embedding(&b) && (!hp->n_embd_layer || add_layer_inputs(&b));
    good = good && (!hp->n_stream || split_streams(&b)) &&
           (hp->high_cycles ? add_cycles(&b) : add_loops(&b)) && (!hp->n_stream || join_streams(&b)) &&
           (d->bidirectional ? add_vectors(&b) : add_output(&b));
    return good ? PP_OK : err->code;
}
