/* train_model.c - extracts what training needs from a model: the projections, norms and numbers of a Llama-like plan.
 * Other plans are refused, as their backward pass would differ. */
#include <math.h>

#include "engine/base/mem.h"
#include "engine/quant.h"
#include "engine/train_int.h"

/* The operations of a layer, in order. */
static const enum pp_op_kind layer_ops[] = {
    PP_OP_NORM,      PP_OP_LINEAR, PP_OP_LINEAR, PP_OP_LINEAR, PP_OP_ROPE,   PP_OP_ROPE,   PP_OP_KV_STORE,
    PP_OP_ATTENTION, PP_OP_LINEAR, PP_OP_ADD,    PP_OP_NORM,   PP_OP_LINEAR, PP_OP_LINEAR, PP_OP_GATE,
    PP_OP_LINEAR,    PP_OP_ADD,
};
static const enum pp_op_kind last_ops[] = {PP_OP_SELECT, PP_OP_NORM, PP_OP_LINEAR, PP_OP_RESULT};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Whether an operation is as in Llama: not centred, bounded or scaled, and without weights except a norm's. */
static bool is_plain(const struct pp_op *op)
{
    const bool scaled = op->scale != 0.0f && op->scale != 1.0f;
    if (scaled || op->centred || op->local_rope || op->bias)
        return false;
    return op->kind == PP_OP_GATE ? op->fn == PP_FN_SILU : op->kind != PP_OP_ATTENTION || !op->weight;
}

static bool same_kinds(const struct pp_op *ops, const enum pp_op_kind *kinds, int n)
{
    for (int i = 0; i < n; i++)
        if (ops[i].kind != kinds[i] || !is_plain(&ops[i]))
            return false;
    return true;
}

static bool is_llama_plan(const struct pp_plan *p, int n_layers)
{
    if (p->n_ops != 1 + n_layers * COUNT(layer_ops) + COUNT(last_ops) || p->ops[0].kind != PP_OP_EMBED ||
        !is_plain(&p->ops[0]))
        return false;
    const struct pp_op *op = p->ops + 1;
    for (int l = 0; l < n_layers; l++, op += COUNT(layer_ops))
        if (!same_kinds(op, layer_ops, COUNT(layer_ops)))
            return false;
    return same_kinds(op, last_ops, COUNT(last_ops));
}

/* --- vectors -------------------------------------------------------------------------------------------------- */

/* All norms and biases as floats; `to` NULL: only counts. */
struct vectors {
    float *to;
    size_t n;
};

static const float *take_vector(struct vectors *v, const struct pp_tensor *t)
{
    if (!t)
        return NULL;
    const float *at = v->to ? v->to + v->n : NULL;
    if (v->to)
        pp_dequantize_row(t->type, t->data, v->to + v->n, t->ne[0]);
    v->n += (size_t)t->ne[0];
    return at;
}

/* --- layers --------------------------------------------------------------------------------------------------- */

static void take_linear(struct pp_train_linear *to, const struct pp_plan *p, const struct pp_op *op, struct vectors *v)
{
    to->w = &p->linears[op->linear];
    to->n_in = to->w->w->ne[0];
    to->n_out = to->w->w->ne[1];
    to->bias = take_vector(v, to->w->b);
}

static void take_layers(struct pp_trainer *t, struct vectors *v)
{
    static const int at[PP_TRAIN_TARGETS] = {1, 2, 3, 8, 11, 12, 14}; /* indices of the projections in layer_ops */
    const struct pp_plan *p = &t->model->plan;
    const struct pp_op *op = p->ops + 1;
    for (int l = 0; l < t->n_layers; l++, op += COUNT(layer_ops)) {
        struct pp_train_layer *layer = &t->layers[l];
        layer->attn_norm = take_vector(v, op[0].weight);
        layer->ffn_norm = take_vector(v, op[10].weight);
        layer->window = op[7].window;
        for (int i = 0; i < PP_TRAIN_TARGETS; i++)
            take_linear(&layer->linear[i], p, op + at[i], v);
    }
    t->embedding = p->ops[0].weight;
    t->output_norm = take_vector(v, op[1].weight);
    t->output = &p->linears[op[2].linear];
    t->output_bias = take_vector(v, t->output->b);
}

/* Whether all layers have the same sizes, as this code assumes. */
static bool is_even(const struct pp_trainer *t)
{
    const int64_t n_out[PP_TRAIN_TARGETS] = {t->n_q, t->n_kv, t->n_kv, t->n_embd, t->n_ff, t->n_ff, t->n_embd};
    const int64_t n_in[PP_TRAIN_TARGETS] = {t->n_embd, t->n_embd, t->n_embd, t->n_q, t->n_embd, t->n_embd, t->n_ff};
    for (int l = 0; l < t->n_layers; l++)
        for (int i = 0; i < PP_TRAIN_TARGETS; i++)
            if (t->layers[l].linear[i].n_in != n_in[i] || t->layers[l].linear[i].n_out != n_out[i])
                return false;
    return true;
}

static void place_params(struct pp_trainer *t)
{
    size_t n = 0, rank = (size_t)t->opt.rank;
    for (int l = 0; l < t->n_layers; l++)
        for (int i = 0; i < PP_TRAIN_TARGETS; i++) {
            struct pp_train_linear *lin = &t->layers[l].linear[i];
            lin->learnt = t->opt.targets >> i & 1;
            if (!lin->learnt)
                continue;
            lin->a = n;
            lin->b = n + rank * (size_t)lin->n_in;
            n = lin->b + rank * (size_t)lin->n_out;
        }
    t->n_params = n;
}

enum pp_code pp_train_take_model(struct pp_trainer *t, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(t->model->source);
    const struct pp_model_info *info = &t->model->info;
    const enum pp_code code = pp_source_check_adapters(t->model->source, err);
    if (code)
        return code;
    if (hp->chunked || !is_llama_plan(&t->model->plan, (int)hp->n_layer))
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "%s is %s %s; adapters can be trained only for models built like Llama (Llama, Mistral, Qwen 2 "
                       "and similar)", info->path,
                       hp->n_expert ? "a mixture of experts, family" : "of the family", hp->arch);
    t->n_embd = hp->n_embd;
    t->n_head = hp->n_head;
    t->n_head_kv = hp->n_head_kv;
    t->head_dim = hp->head_dim;
    t->n_q = hp->n_head * hp->head_dim;
    t->n_kv = hp->n_head_kv * hp->head_dim;
    t->n_ff = hp->n_ff;
    t->n_vocab = hp->n_vocab;
    t->rope_dim = hp->rope_dim;
    t->norm_eps = hp->norm_eps;
    t->attn_scale = hp->attn_scale != 0.0f ? hp->attn_scale : 1.0f / sqrtf((float)hp->head_dim);
    t->neox = hp->rope_neox;
    t->n_layers = (int)hp->n_layer;
    t->layers = pp_calloc((size_t)t->n_layers, sizeof *t->layers);
    if (!t->layers)
        return pp_fail_nomem(err, "the layers");
    struct vectors v = {0};
    take_layers(t, &v);
    if (!is_even(t))
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "%s has layers that differ in heads or sizes; adapters can be trained only for models whose "
                       "layers are all alike", info->path);
    t->vectors = v.to = pp_malloc(v.n * sizeof *v.to);
    if (!v.to)
        return pp_fail_nomem(err, "the norms");
    v.n = 0;
    take_layers(t, &v);
    place_params(t);
    return PP_OK;
}
