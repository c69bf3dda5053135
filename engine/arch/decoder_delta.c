/* decoder_delta.c - the gated delta rule (arXiv 2412.06464), after short convolutions of queries, keys and values:
 * Qwen3-Next has one convolution for all three, OLMo Hybrid and Kimi Linear have one for each. Kimi Linear's version
 * (arXiv 2510.26692) has a decay for each row of a state; decays and gates come from low-rank pairs of matrices.
 *
 * Jet-Nemotron (arXiv 2508.15884) convolves values only, with taps that are computed for each position from the layer's
 * input, by two matrices with SiLU in between. */
#include <stdio.h>

#include "engine/arch/decoder_int.h"

/* Whether the layer has the matrix `kind`, whose rows are grouped by key head: ssm_in (queries, keys, values and gates)
 * or ssm_ba (beta and decay). So have Qwen3-Next's folders and its early GGUF files. */
static bool is_by_key_head(const struct builder *b, int l, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", l, kind);
    return pp_source_tensor(b->s, name) != NULL;
}

/* Queries, keys and values may each have a matrix and a convolution of their own: has_separate_qkv. */
enum { Q, K, V, N_PARTS };
static const char letters[] = "qkv";

static bool has_separate_qkv(const struct builder *b, int l)
{
    return b->hp->dynamic_conv_rank || pp_decoder_has(b, l, "ssm_conv1d_q.weight");
}

static int64_t part_width(const struct builder *b, int part)
{
    return part == V ? b->hp->n_state_head * b->hp->state_value_dim : b->hp->n_state_key_head * b->hp->state_key_dim;
}

static bool add_projections(struct builder *b, int l)
{
    const int out[N_PARTS] = {b->mixed_q, b->mixed_k, b->mixed_v};
    for (int i = 0; i < N_PARTS; i++) {
        const int linear =
            pp_plan_linear(b->p, b->s, part_width(b, i), b->hp->n_embd, b->err, "blk.%d.attn_%c", l, letters[i]);
        if (linear < 0)
            return false;
        add_linear(b, l, linear, b->normalised, out[i]);
    }
    return true;
}

static void add_convolution(struct builder *b, int l, const struct pp_tensor *taps, int in, int out)
{
    add(b, (struct pp_op){.kind = PP_OP_CONVOLVE, .layer = l, .window = b->hp->conv_taps, .weight = taps, .in = in,
                          .in2 = NONE, .out = out});
    add_fn(b, l, PP_FN_SILU, 0, out, out);
}

/* Jet-Nemotron: values are convolved with the row's own taps, queries and keys only go through SiLU. */
static bool add_dynamic_convolution(struct builder *b, int l)
{
    const int64_t rank = b->hp->dynamic_conv_rank, values = part_width(b, V);
    const int low = pp_plan_linear(b->p, b->s, rank, b->hp->n_embd, b->err, "blk.%d.ssm_taps_a", l);
    const int taps = low < 0 ? -1 : pp_plan_linear(b->p, b->s, values * b->hp->conv_taps, rank, b->err,
                                                   "blk.%d.ssm_taps_b", l);
    const int in[] = {b->mixed_q, b->mixed_k, b->tap_bottleneck}, out[] = {b->state_q, b->state_k, b->tap_bottleneck};
    add_linear(b, l, low, b->normalised, b->tap_bottleneck);
    for (int i = 0; i < 3; i++)
        add_fn(b, l, PP_FN_SILU, 0, in[i], out[i]);
    add_linear(b, l, taps, b->tap_bottleneck, b->dynamic_taps);
    add(b, (struct pp_op){.kind = PP_OP_CONVOLVE, .layer = l, .window = b->hp->conv_taps, .in = b->mixed_v,
                          .in2 = b->dynamic_taps, .out = b->state_v});
    add_fn(b, l, PP_FN_SILU, 0, b->state_v, b->state_v);
    return taps >= 0;
}

/* The convolutions, from `mixed` to queries, keys and values. */
static bool add_convolutions(struct builder *b, int l)
{
    if (b->hp->dynamic_conv_rank)
        return add_dynamic_convolution(b, l);
    const int in[N_PARTS] = {b->mixed_q, b->mixed_k, b->mixed_v}, out[N_PARTS] = {b->state_q, b->state_k, b->state_v};
    const int64_t taps = b->hp->conv_taps;
    const struct pp_tensor *weight;
    for (int i = 0; i < N_PARTS && has_separate_qkv(b, l); i++) {
        if (!(weight = pp_plan_flat(b->p, b->s, part_width(b, i), taps, b->err, "blk.%d.ssm_conv1d_%c.weight", l,
                                    letters[i])))
            return false;
        add_convolution(b, l, weight, in[i], out[i]);
    }
    if (has_separate_qkv(b, l))
        return true;
    const int64_t width = part_width(b, Q) + part_width(b, K) + part_width(b, V);
    if (!(weight = pp_plan_tensor(b->s, width, taps, b->err, "blk.%d.ssm_conv1d.weight", l)))
        return false;
    add_convolution(b, l, weight, b->mixed, b->convolved);
    return true;
}

/* The input projections: what the convolutions read, and the gate. */
static bool add_state_input(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t keys = part_width(b, K), values = part_width(b, V);
    if (has_separate_qkv(b, l)) {
        const int gate = !add_projections(b, l)
                             ? -1 : pp_plan_linear(b->p, b->s, values, hp->n_embd, b->err, "blk.%d.attn_gate", l);
        add_linear(b, l, gate, b->normalised, b->state_gate);
        return gate >= 0;
    }
    if (!is_by_key_head(b, l, "ssm_in")) {
        const int qkv = pp_plan_linear(b->p, b->s, 2 * keys + values, hp->n_embd, b->err, "blk.%d.attn_qkv", l);
        const int gate = qkv < 0 ? -1 : pp_plan_linear(b->p, b->s, values, hp->n_embd, b->err, "blk.%d.attn_gate", l);
        add_linear(b, l, qkv, b->normalised, b->mixed);
        add_linear(b, l, gate, b->normalised, b->state_gate);
        return gate >= 0;
    }
    const int in = pp_plan_linear(b->p, b->s, 2 * (keys + values), hp->n_embd, b->err, "blk.%d.ssm_in", l);
    add_linear(b, l, in, b->normalised, b->state_in);
    return in >= 0;
}

/* Splits the output of ssm_in, for each key head [q, k, v of its value heads, gates of these]. */
static void split_state_input(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t key = hp->state_key_dim, value = hp->n_state_head / hp->n_state_key_head * hp->state_value_dim;
    const int64_t period = 2 * (key + value);
    add_take(b, l, b->state_in, period, 0, key, b->mixed_q);
    add_take(b, l, b->state_in, period, key, key, b->mixed_k);
    add_take(b, l, b->state_in, period, 2 * key, value, b->mixed_v);
    add_take(b, l, b->state_in, period, 2 * key + value, value, b->state_gate);
}

/* beta and decay of each head; fills in where they are in *r. */
static bool add_beta_and_decay(struct builder *b, int l, struct pp_recurrence *r)
{
    const int64_t n = b->hp->n_state_head, share = n / b->hp->n_state_key_head;
    *r = (struct pp_recurrence){.beta = b->beta, .decay = b->decay, .neighbours = (int)n, .stride = (int)n};
    if (is_by_key_head(b, l, "ssm_ba")) {
        const int ba = pp_plan_linear(b->p, b->s, 2 * n, b->hp->n_embd, b->err, "blk.%d.ssm_ba", l);
        add_linear(b, l, ba, b->normalised, b->state_ba);
        r->beta = b->state_ba;
        r->decay = b->state_decays;
        r->neighbours = (int)share;
        r->stride = 2 * (int)share;
        return ba >= 0;
    }
    const int beta = pp_plan_linear(b->p, b->s, n, b->hp->n_embd, b->err, "blk.%d.ssm_beta", l);
    const int decay = beta < 0 ? -1 : pp_plan_linear(b->p, b->s, n, b->hp->n_embd, b->err, "blk.%d.ssm_alpha", l);
    add_linear(b, l, beta, b->normalised, b->beta);
    add_linear(b, l, decay, b->normalised, b->decay);
    return decay >= 0;
}

/* The matrices ssm_{letter}_a and ssm_{letter}_b of a low-rank pair; or the single one in their place, and -1. */
static bool find_low_rank_pair(struct builder *b, int l, char letter, int linears[2])
{
    const int64_t rank = b->hp->state_key_dim, n = b->hp->n_state_head * rank;
    if (b->d->full_rank_gates && letter == 'g') {
        linears[1] = -1;
        return (linears[0] = pp_plan_linear(b->p, b->s, n, b->hp->n_embd, b->err, "blk.%d.ssm_g", l)) >= 0;
    }
    if (b->d->full_rank) {
        linears[1] = -1;
        return (linears[0] = pp_plan_linear(b->p, b->s, n, b->hp->n_embd, b->err, "blk.%d.ssm_%c_a", l, letter)) >= 0;
    }
    linears[0] = pp_plan_linear(b->p, b->s, rank, b->hp->n_embd, b->err, "blk.%d.ssm_%c_a", l, letter);
    linears[1] = linears[0] < 0 ? -1 : pp_plan_linear(b->p, b->s, n, rank, b->err, "blk.%d.ssm_%c_b", l, letter);
    return linears[1] >= 0;
}

/* The first matrices for decays (f) and gates (g), or the only ones. */
static void add_first_factors(struct builder *b, int l, const int f[2], const int g[2], const struct pp_tensor *bias)
{
    pp_plan_linear_bias(b->p, f[1] < 0 ? f[0] : f[1], bias);
    add_linear(b, l, f[0], b->normalised, f[1] < 0 ? b->state_decays : b->state_low);
    add_linear(b, l, g[0], b->normalised, g[1] < 0 ? b->state_gate : b->state_raw);
}

/* A number for each head: a vector, or [n, 1] with any further dimensions of 1. */
static const struct pp_tensor *find_rates(struct builder *b, int l)
{
    const int64_t n = b->hp->n_state_head;
    char name[40];
    snprintf(name, sizeof name, "blk.%d.ssm_a", l);
    const struct pp_tensor *t = pp_source_tensor(b->s, name);
    return t && t->ne[0] == n && n > 1 ? pp_plan_tensor(b->s, 0, n, b->err, "%s", name)
                                       : pp_plan_flat(b->p, b->s, n, 1, b->err, "%s", name);
}

/* Kimi Linear's layers. */
static bool add_kda(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    const int64_t n = hp->n_state_head, dim = hp->state_key_dim;
    const struct pp_tensor *bias, *norm;
    struct pp_recurrence r = {.kind = PP_RECUR_KDA, .q = b->state_q, .k = b->state_k, .v = b->state_v,
                              .decay = b->state_decays, .beta = b->beta, .bound = hp->decay_bound};
    int f[2], g[2];
    if (!add_norm(b, l, "attn_norm", b->x, b->normalised) || !add_projections(b, l) ||
        !find_low_rank_pair(b, l, 'f', f) || !find_low_rank_pair(b, l, 'g', g))
        return false;
    const int beta = pp_plan_linear(b->p, b->s, n, hp->n_embd, b->err, "blk.%d.ssm_beta", l);
    const int out = beta < 0 ? -1 : pp_plan_linear(b->p, b->s, hp->n_embd, n * dim, b->err, "blk.%d.attn_output", l);
    if (out < 0 || !(bias = pp_plan_tensor(b->s, 0, n * dim, b->err, "blk.%d.ssm_dt.bias", l)) ||
        !(norm = pp_plan_tensor(b->s, 0, dim, b->err, "blk.%d.ssm_norm.weight", l)) ||
        !(r.rate = find_rates(b, l)))
        return false;
    add_first_factors(b, l, f, g, bias);
    add_linear(b, l, beta, b->normalised, b->beta);
    if (!add_convolutions(b, l))
        return false;
    if (f[1] >= 0)
        add_linear(b, l, f[1], b->state_low, b->state_decays);
    if (r.bound == 0.0f)
        add_fn(b, l, PP_FN_SOFTPLUS, 0, b->state_decays, b->state_decays);
    if (g[1] >= 0)
        add_linear(b, l, g[1], b->state_raw, b->state_gate);
    r.shape = (struct pp_state_shape){.n_key_head = (int)n, .n_head = (int)n, .key_dim = (int)dim,
                                      .value_dim = (int)dim, .n_inputs = 3 * (int)dim + 16}; /* beta, and 15 unused */
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r), .weight = norm,
                          .in = b->state_gate, .in2 = NONE, .out = b->state});
    add_linear(b, l, out, b->state, b->delta);
    return true;
}

bool pp_delta_result(struct builder *b, int l)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_recurrence r;
    if (hp->kda)
        return add_kda(b, l);
    if (!add_norm(b, l, "attn_norm", b->x, b->normalised) || !add_state_input(b, l) || !add_beta_and_decay(b, l, &r))
        return false;
    if (is_by_key_head(b, l, "ssm_in"))
        split_state_input(b, l);
    const struct pp_tensor *norm = pp_plan_tensor(b->s, 0, hp->state_value_dim, b->err, "blk.%d.ssm_norm.weight", l);
    const int out = pp_plan_linear(b->p, b->s, hp->n_embd, part_width(b, V), b->err, "blk.%d.ssm_out", l);
    r.rate = pp_plan_tensor(b->s, 0, hp->n_state_head, b->err, "blk.%d.ssm_a", l);
    r.bias = pp_plan_tensor(b->s, 0, hp->n_state_head, b->err, "blk.%d.ssm_dt.bias", l);
    if (!norm || out < 0 || !r.rate || !r.bias || !add_convolutions(b, l))
        return false;
    r.shape = (struct pp_state_shape){.n_key_head = (int)hp->n_state_key_head, .n_head = (int)hp->n_state_head,
                                      .key_dim = (int)hp->state_key_dim, .value_dim = (int)hp->state_value_dim};
    r.tiled = hp->state_tiled;
    r.beta_doubled = hp->beta_doubled;
    r.sigmoids = hp->state_sigmoids;
    r.q = b->state_q;
    r.k = b->state_k;
    r.v = b->state_v;
    add(b, (struct pp_op){.kind = PP_OP_RECUR, .layer = l, .recurrence = pp_plan_recurrence(b->p, &r), .weight = norm,
                          .scale = hp->state_eps, .in = b->state_gate, .in2 = NONE, .out = b->state});
    add_linear(b, l, out, b->state, b->delta);
    if (hp->state_scale != 0.0f)
        add_fn(b, l, PP_FN_SCALE, hp->state_scale, b->delta, b->delta);
    return true;
}

void pp_delta_slots(struct builder *b)
{
    const struct pp_hparams *hp = b->hp;
    struct pp_plan *p = b->p;
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    const int64_t n = hp->n_state_head, share = n / hp->n_state_key_head;
    b->mixed = pp_plan_slot(p, 2 * keys + values);
    b->mixed_q = pp_plan_part(p, b->mixed, 0, keys);
    b->mixed_k = pp_plan_part(p, b->mixed, keys, keys);
    b->mixed_v = pp_plan_part(p, b->mixed, 2 * keys, values);
    b->convolved = pp_plan_slot(p, 2 * keys + values);
    b->state_q = pp_plan_part(p, b->convolved, 0, keys);
    b->state_k = pp_plan_part(p, b->convolved, keys, keys);
    b->state_v = pp_plan_part(p, b->convolved, 2 * keys, values);
    b->state_gate = pp_plan_slot(p, values);
    b->beta = pp_plan_slot(p, n);
    b->state = pp_plan_slot(p, values);
    if (hp->kda) {
        b->state_low = pp_plan_slot(p, hp->state_key_dim);
        b->state_raw = pp_plan_slot(p, hp->state_key_dim);
        b->state_decays = pp_plan_slot(p, keys);
        return;
    }
    if (hp->dynamic_conv_rank) {
        b->tap_bottleneck = pp_plan_slot(p, hp->dynamic_conv_rank);
        b->dynamic_taps = pp_plan_slot(p, values * hp->conv_taps);
    }
    b->decay = pp_plan_slot(p, n);
    b->state_in = pp_plan_slot(p, 2 * (keys + values));
    b->state_ba = pp_plan_slot(p, 2 * n);
    b->state_decays = pp_plan_part(p, b->state_ba, share, 2 * n - share);
}
