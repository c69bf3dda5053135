#include "tests/expert_model_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine.h"
#include "tests/gguf_file.h"
#include "tests/small_model.h"
#include "tests/support.h"

struct expert_shape expert_shape(const char *arch)
{
    return (struct expert_shape){.arch = arch, .n_vocab = 80, .n_embd = 64, .n_layer = 3, .n_head = 4, .n_head_kv = 2,
                                 .head_dim = 16, .n_ff = 96, .n_ctx = 128, .rope_dim = 16, .ffn_norm = "ffn_norm",
                                 .output_norm = "output_norm", .attn_post_norm = "post_attention_norm",
                                 .ffn_post_norm = "post_ffw_norm",
                                 .n_expert = 8, .n_used = 3, .n_ff_expert = 32, .seed = 1};
}

/* --- weights ------------------------------------------------------------------------------------------------- */

/* Adds a tensor of uniform random values around a middle; l -1: outside the layers. */
static void add(struct expert_model *m, int l, const char *kind, int64_t matrices, int64_t rows, int64_t cols,
                float middle, float spread)
{
    assert_true(m->n < EXPERT_MAX_TENSORS);
    array_make(&m->t[m->n++], l, kind, matrices, rows, cols, middle, spread, &m->random);
}

static void add_matrix(struct expert_model *m, int l, const char *kind, int64_t rows, int64_t cols)
{
    add(m, l, kind, 0, rows, cols, 0, 2 * sqrtf(3.0f / (float)cols)); /* large, so that attention is far from uniform */
}

static void add_norm(struct expert_model *m, int l, const char *kind, int64_t cols)
{
    add(m, l, kind, 0, 0, cols, 1, 0.5f);
    for (int i = 0; i < 2 && m->s.norm_rank && !strstr(kind, "ssm_norm"); i++) {
        char name[48];
        snprintf(name, sizeof name, "%.*s_gate_%s.weight", (int)(strlen(kind) - strlen(".weight")), kind,
                 i ? "down" : "up");
        const int64_t n_in = i ? m->s.norm_rank : cols; /* small, since each norm would amplify errors */
        add(m, l, name, 0, i ? cols : m->s.norm_rank, n_in, 0, 0.5f * sqrtf(3.0f / (float)n_in));
    }
}

static struct array *last(struct expert_model *m)
{
    return &m->t[m->n - 1];
}

/* attn_k_b and attn_v_b, as in files that keep them apart; attn_k_b is transposed. */
static void add_heads(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    const int64_t rank = s->kv_rank, nope = s->nope, v = s->v_dim;
    add(m, l, "attn_kv_b.weight", 0, s->n_head * (nope + v), rank, 0, 2 * sqrtf(3.0f / (float)rank));
    const float *both = last(m)->values;
    add(m, l, "attn_k_b.weight", s->n_head, rank, nope, 0, 0);
    for (int64_t h = 0; h < s->n_head; h++)
        for (int64_t i = 0; i < rank * nope; i++)
            last(m)->values[h * rank * nope + i] = both[(h * (nope + v) + i % nope) * rank + i / nope];
    add(m, l, "attn_v_b.weight", s->n_head, v, rank, 0, 0);
    for (int64_t h = 0; h < s->n_head; h++)
        memcpy(last(m)->values + h * v * rank, both + (h * (nope + v) + nope) * rank,
               (size_t)(v * rank) * sizeof *both);
}

bool expert_picks(const struct expert_shape *s, int l)
{
    return s->index_top_k && (!s->index_step || l % s->index_step == 0);
}

static void add_latent_attention(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    const int n_q = s->n_head * (s->nope + s->rope_dim);
    if (s->q_rank) {
        add_matrix(m, l, "attn_q_a.weight", s->q_rank, s->n_embd);
        add_norm(m, l, "attn_q_a_norm.weight", s->q_rank);
        add_matrix(m, l, "attn_q_b.weight", n_q, s->q_rank);
    } else {
        add_matrix(m, l, "attn_q.weight", n_q, s->n_embd);
    }
    add_matrix(m, l, "attn_kv_a_mqa.weight", s->kv_rank + s->rope_dim, s->n_embd);
    add_norm(m, l, "attn_kv_a_norm.weight", s->kv_rank);
    add_heads(m, l);
    add_matrix(m, l, "attn_output.weight", s->n_embd, s->n_head * s->v_dim);
    if (s->gated)
        add_matrix(m, l, "attn_gate.weight", s->per_head_gates ? s->n_head : s->n_head * s->v_dim, s->n_embd);
    if (s->sinks)
        add(m, l, "attn_sinks.weight", 0, 0, s->n_head, 1, 1);
    if (!expert_picks(s, l))
        return;
    add_matrix(m, l, "indexer.attn_q_b.weight", INDEX_HEADS * INDEX_DIM, s->q_rank);
    add_matrix(m, l, "indexer.attn_k.weight", INDEX_DIM, s->n_embd);
    add_norm(m, l, "indexer.k_norm.weight", INDEX_DIM);
    add(m, l, "indexer.k_norm.bias", 0, 0, INDEX_DIM, 0, 1);
    add_matrix(m, l, "indexer.proj.weight", INDEX_HEADS, s->n_embd);
    if (!s->pool)
        return;
    add_matrix(m, l, "indexer_compressor_gate.weight", INDEX_DIM, s->n_embd);
    add(m, l, "indexer_compressor_ape.weight", 0, s->pool, INDEX_DIM, 0, 1);
}

/* Whether tensor a goes into the file, which has either attn_kv_b or attn_k_b and attn_v_b. */
static bool is_in_file(const struct expert_model *m, const struct array *a)
{
    const bool apart = strstr(a->name, ".attn_k_b.") || strstr(a->name, ".attn_v_b.");
    return !(m->s.heads_apart ? strstr(a->name, ".attn_kv_b.") != NULL : apart);
}

bool expert_is_wide(const struct expert_shape *s, int l)
{
    return s->wide && (l + (s->first_wide ? 0 : 1)) % s->wide == 0;
}

int expert_key_heads(const struct expert_shape *s, int l)
{
    return s->local_kv && !expert_is_wide(s, l) ? s->local_kv : s->n_head_kv;
}

int expert_heads(const struct expert_shape *s, int l)
{
    return s->local_heads && !expert_is_wide(s, l) ? s->local_heads : s->n_head;
}

int expert_value_dim(const struct expert_shape *s)
{
    return s->v_dim ? s->v_dim : s->head_dim;
}

bool expert_gates_queries(const struct expert_shape *s)
{
    return s->n_state && !s->mamba && !s->apart && !s->lightning;
}

static void add_attention(struct expert_model *m, int l)
{
    static const char *const kinds[] = {"attn_q", "attn_k", "attn_v"};
    const struct expert_shape *s = &m->s;
    const int n_head = expert_heads(s, l), n_q = n_head * s->head_dim, n_kv = expert_key_heads(s, l) * s->head_dim;
    const int n_v = expert_key_heads(s, l) * expert_value_dim(s), n_out = n_head * expert_value_dim(s);
    for (int i = 0; i < 3 && !s->fused_qkv; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s.weight", kinds[i]);
        add_matrix(m, l, name, i == 2 ? n_v : i ? n_kv : expert_gates_queries(s) ? 2 * n_q : n_q, s->n_embd);
        snprintf(name, sizeof name, "%s.bias", kinds[i]);
        if (s->biases)
            add(m, l, name, 0, 0, i ? n_kv : n_q, 0, 0.5f);
    }
    if (s->fused_qkv)
        add_matrix(m, l, "attn_qkv.weight", n_q + 2 * n_kv, s->n_embd);
    if (s->qk_norm != QK_PLAIN) {
        add_norm(m, l, "attn_q_norm.weight", s->qk_norm == QK_HEADS ? s->head_dim : n_q);
        add_norm(m, l, "attn_k_norm.weight", s->qk_norm == QK_HEADS ? s->head_dim : n_kv);
    }
    add_matrix(m, l, "attn_output.weight", s->n_embd, n_out);
    if (s->sinks && !expert_is_wide(s, l))
        add(m, l, "attn_sinks.weight", 0, 0, s->n_head, 1, 1);
    if (s->gated)
        add_matrix(m, l, "attn_gate.weight", s->per_head_gates ? n_head : n_q, s->n_embd);
    if (s->pool || (s->index_block && expert_layer(s, l))) {
        add_matrix(m, l, "indexer.q_proj.weight", (s->pool ? INDEX_HEADS : s->n_head_kv) * INDEX_DIM, s->n_embd);
        add_matrix(m, l, "indexer.k_proj.weight", INDEX_DIM, s->n_embd);
        add_norm(m, l, "indexer.q_norm.weight", INDEX_DIM);
        add_norm(m, l, "indexer.k_norm.weight", INDEX_DIM);
    }
    const char *const behind[] = {s->attn_post_norm, s->ffn_post_norm};
    for (int i = 0; i < 2 && s->post_norms; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s.weight", behind[i]);
        add_norm(m, l, name, s->n_embd);
    }
}

bool expert_convolves(const struct expert_shape *s, int l)
{
    return s->taps && (l + 1) % s->full != 0;
}

static void add_convolution(struct expert_model *m, int l)
{
    add_matrix(m, l, "shortconv.in_proj.weight", 3 * m->s.n_embd, m->s.n_embd);
    add_matrix(m, l, "shortconv.conv.weight", m->s.n_embd, m->s.taps);
    add_matrix(m, l, "shortconv.out_proj.weight", m->s.n_embd, m->s.n_embd);
}

bool expert_recurs(const struct expert_shape *s, int l)
{
    if (s->lightning && l >= s->n_layer / s->full * s->full)
        return false;
    return s->kinds ? s->kinds[l] == 'M' : s->n_state && !s->beside && (l + 1) % s->full != 0;
}

static void add_lightning(struct expert_model *m, int l)
{
    const int n = m->s.n_state * m->s.key_dim;
    for (int i = 0; i < 3 && m->s.steady; i++)
        add_matrix(m, l, (const char *[]){"attn_q.weight", "attn_k.weight", "attn_v.weight"}[i], n, m->s.n_embd);
    if (!m->s.steady)
        add_matrix(m, l, "attn_qkv.weight", 3 * n, m->s.n_embd);
    add_norm(m, l, "attn_q_norm.weight", m->s.key_dim);
    add_norm(m, l, "attn_k_norm.weight", m->s.key_dim);
    add_matrix(m, l, "attn_gate.weight", n, m->s.n_embd);
    add_norm(m, l, "attn_norm_2.weight", n);
    add_matrix(m, l, "attn_output.weight", m->s.n_embd, n);
}

static void add_scan(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    const int n = s->n_state * s->value_dim;
    add_matrix(m, l, "ssm_in.weight", 2 * n, s->n_embd);
    add(m, l, "ssm_conv1d.weight", 0, n, s->state_taps, 0, 1);
    add(m, l, "ssm_conv1d.bias", 0, 0, n, 0, 0.5f);
    add_matrix(m, l, "ssm_x.weight", s->rank + 2 * s->key_dim, n);
    if (s->scan_norm == SCAN_NORM_WEIGHTED) {
        add_norm(m, l, "ssm_dt_norm.weight", s->rank);
        add_norm(m, l, "ssm_b_norm.weight", s->key_dim);
        add_norm(m, l, "ssm_c_norm.weight", s->key_dim);
    }
    add_matrix(m, l, "ssm_dt.weight", n, s->rank);
    add(m, l, "ssm_dt.bias", 0, 0, n, -2, 1);
    add(m, l, "ssm_a", 0, n, s->key_dim, -0.5f, 0.48f);
    add(m, l, "ssm_d", 0, 0, n, 1, 0.5f);
    add_matrix(m, l, "ssm_out.weight", s->n_embd, n);
}

static void add_mamba(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    if (s->rank) {
        add_scan(m, l);
        return;
    }
    const int values = s->n_state * s->value_dim, width = values + 2 * s->n_state_key * s->key_dim;
    add_matrix(m, l, "ssm_in.weight", values + width + s->n_state, s->n_embd);
    add(m, l, "ssm_conv1d.weight", 0, width, s->state_taps, 0, 1);
    add(m, l, "ssm_conv1d.bias", 0, 0, width, 0, 0.5f);
    add(m, l, "ssm_a", 0, s->n_state, 1, -0.3f, 0.28f);
    add(m, l, "ssm_d", 0, s->n_state, 1, 1, 0.5f);
    add(m, l, "ssm_dt.bias", 0, 0, s->n_state, 0, 1);
    if (!s->no_state_norm)
        add(m, l, "ssm_norm.weight", 0, s->n_state_key, values / s->n_state_key, 1, 0.5f);
    add_matrix(m, l, "ssm_out.weight", s->n_embd, values);
}

static void add_apart(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    for (int i = 0; i < 3; i++) {
        const int n = i == 2 ? s->n_state * s->value_dim : s->n_state_key * s->key_dim;
        char name[40];
        snprintf(name, sizeof name, "attn_%c.weight", "qkv"[i]);
        add_matrix(m, l, name, n, s->n_embd);
        snprintf(name, sizeof name, "ssm_conv1d_%c.weight", "qkv"[i]);
        if (!s->dynamic_conv_rank)
            add(m, l, name, 0, n, s->state_taps, 0, 1);
    }
    add_matrix(m, l, "attn_gate.weight", s->n_state * s->value_dim, s->n_embd);
    if (!s->dynamic_conv_rank)
        return;
    add_matrix(m, l, "ssm_taps_a.weight", s->dynamic_conv_rank, s->n_embd);
    add_matrix(m, l, "ssm_taps_b.weight", s->n_state * s->value_dim * s->state_taps, s->dynamic_conv_rank);
    add(m, l, "ssm_taps_b.bias", 0, 0, s->n_state * s->value_dim * s->state_taps, 0, 0.5f);
}

/* Kimi delta attention: low-rank pairs for decays and gates; convolutions have a dimension of 1, as in Kimi Linear's
 * files. */
static void add_kda(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    const int dim = s->key_dim, n = s->n_state * dim;
    char name[40];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "attn_%c.weight", "qkv"[i]);
        add_matrix(m, l, name, n, s->n_embd);
        snprintf(name, sizeof name, "ssm_conv1d_%c.weight", "qkv"[i]);
        add(m, l, name, n, 1, s->state_taps, 0, 1);
    }
    for (int i = 0; i < 2; i++) {
        if (i && s->full_rank_gates) {
            add_matrix(m, l, "ssm_g.weight", n, s->n_embd);
            break;
        }
        snprintf(name, sizeof name, "ssm_%c_a.weight", "fg"[i]);
        add_matrix(m, l, name, s->full_rank ? n : dim, s->n_embd);
        if (s->full_rank)
            continue;
        snprintf(name, sizeof name, "ssm_%c_b.weight", "fg"[i]);
        add_matrix(m, l, name, n, dim);
    }
    add_matrix(m, l, "ssm_beta.weight", s->n_state, s->n_embd);
    if (s->attn_res_block || s->pool)
        add(m, l, "ssm_a", 0, 0, s->n_state, -0.6f, 0.5f);
    else
        add(m, l, "ssm_a", 0, s->n_state, 1, s->decay_bound != 0.0f ? 0.6f : -0.3f,
            s->decay_bound != 0.0f ? 0.5f : 0.28f);
    add(m, l, "ssm_dt.bias", 0, 0, n, 0, 1);
    add_norm(m, l, "ssm_norm.weight", dim);
    add_matrix(m, l, "attn_output.weight", s->n_embd, n);
}

static void add_states(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    const int keys = s->n_state_key * s->key_dim, values = s->n_state * s->value_dim;
    if (s->apart) {
        add_apart(m, l);
    } else if (s->by_key_head) {
        add_matrix(m, l, "ssm_in.weight", 2 * (keys + values), s->n_embd);
    } else {
        add_matrix(m, l, "attn_qkv.weight", 2 * keys + values, s->n_embd);
        add_matrix(m, l, "attn_gate.weight", values, s->n_embd);
    }
    if (s->joined_numbers) {
        add_matrix(m, l, "ssm_ba.weight", 2 * s->n_state, s->n_embd);
    } else {
        add_matrix(m, l, "ssm_beta.weight", s->n_state, s->n_embd);
        add_matrix(m, l, "ssm_alpha.weight", s->n_state, s->n_embd);
    }
    if (!s->apart)
        add(m, l, "ssm_conv1d.weight", 0, 2 * keys + values, s->state_taps, 0, 1);
    add(m, l, "ssm_a", 0, 0, s->n_state, -0.3f, 0.28f);
    add(m, l, "ssm_dt.bias", 0, 0, s->n_state, 0, 1);
    add_norm(m, l, "ssm_norm.weight", s->value_dim);
    add_matrix(m, l, "ssm_out.weight", s->n_embd, values);
}

static void add_experts(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    const int n = s->n_expert, ff = s->uneven ? s->uneven[l][1] : s->n_ff_expert, shared = s->n_ff_shared;
    int width = s->n_embd;
    add(m, l, "ffn_gate_inp.weight", 0, n + s->n_idle, width, 0, 2 * sqrtf(3.0f / (float)width));
    if (s->n_embd_expert) {
        const char *const kind = s->attn_res_block ? "routed" : "latent";
        char name[40];
        snprintf(name, sizeof name, "ffn_%s_down.weight", kind);
        add_matrix(m, l, name, s->n_embd_expert, width);
        snprintf(name, sizeof name, "ffn_%s_up.weight", kind);
        add_matrix(m, l, name, width, s->n_embd_expert);
        width = s->n_embd_expert;
        if (s->attn_res_block)
            add_norm(m, l, "ffn_routed_norm.weight", width);
    }
    if (s->choice_bias)
        add(m, l, "exp_probs_b.bias", 0, 0, n + s->n_idle, 0, 0.4f);
    if (!s->ungated)
        add(m, l, "ffn_gate_exps.weight", n, ff, width, 0, 2 * sqrtf(3.0f / (float)width));
    add(m, l, "ffn_up_exps.weight", n, ff, width, 0, 2 * sqrtf(3.0f / (float)width));
    add(m, l, "ffn_down_exps.weight", n, width, ff, 0, 2 * sqrtf(3.0f / (float)ff));
    if (s->expert_scales)
        add(m, l, "ffn_down_exps.scale", 0, 0, n, 1.5f, 1);
    if (s->down_biases)
        add(m, l, "ffn_down_exps.bias", 0, n, width, 0, 1);
    width = s->n_embd;
    if (s->share) {
        const int each = n / s->share, narrow = s->n_ff_share;
        add(m, l, "ffn_gate_chexps.weight", each, narrow, width, 0, 2 * sqrtf(3.0f / (float)width));
        add(m, l, "ffn_up_chexps.weight", each, narrow, width, 0, 2 * sqrtf(3.0f / (float)width));
        add(m, l, "ffn_down_chexps.weight", each, width, narrow, 0, 2 * sqrtf(3.0f / (float)narrow));
    }
    if (!shared)
        return;
    if (!s->ungated)
        add_matrix(m, l, "ffn_gate_shexp.weight", shared, width);
    add_matrix(m, l, "ffn_up_shexp.weight", shared, width);
    add_matrix(m, l, "ffn_down_shexp.weight", width, shared);
    if (s->shared_weight)
        add(m, l, "ffn_gate_inp_shexp.weight", 0, 0, width, 0, 0.3f);
    if (s->shared_expert_mix) {
        add(m, l, "ffn_share.weight", 0, 2, width, 0, 0.3f);
        add(m, l, "ffn_share.bias", 0, 0, 2, 0, 0.5f);
    }
}

bool expert_layer(const struct expert_shape *s, int l)
{
    return s->kinds      ? s->kinds[l] == 'E'
           : s->shortcut ? l % 2 == 0
                         : l >= s->n_dense && !(s->step && (l + 1) % s->step);
}

static void add_feed_forward(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    if (expert_layer(s, l))
        add_experts(m, l);
    if (expert_layer(s, l) && !s->dense_parallel)
        return;
    if (s->n_ff_shared && !s->n_expert) {
        add_matrix(m, l, "ffn_gate_shexp.weight", s->n_ff_shared, s->n_embd);
        add_matrix(m, l, "ffn_up_shexp.weight", s->n_ff_shared, s->n_embd);
        add_matrix(m, l, "ffn_down_shexp.weight", s->n_embd, s->n_ff_shared);
    }
    if (!s->ungated)
        add_matrix(m, l, "ffn_gate.weight", s->n_ff, s->n_embd);
    add_matrix(m, l, "ffn_up.weight", s->n_ff, s->n_embd);
    add_matrix(m, l, "ffn_down.weight", s->n_embd, s->n_ff);
}

/* The tensors that give the coefficients of a part's hyper-connection, by which it reads and writes the streams. */
static void add_connection(struct expert_model *m, int l, const char *part)
{
    const bool mixes = m->s.stream_rounds > 0;
    const int width = m->s.n_stream * m->s.n_embd;
    const int n = m->s.n_stream, n_numbers = l < 0 ? n : mixes ? 2 * n + n * n : 2 * n;
    char name[40];
    if (m->s.stream_rank) {
        snprintf(name, sizeof name, "%s_norm.weight", part);
        add_norm(m, l, name, width);
        snprintf(name, sizeof name, "%s_down.weight", part);
        add_matrix(m, l, name, m->s.stream_rank, width);
        snprintf(name, sizeof name, "%s_up.weight", part);
        add_matrix(m, l, name, width, m->s.stream_rank);
        snprintf(name, sizeof name, "%s_inject.weight", part);
        if (l >= 0)
            add_matrix(m, l, name, n, width);
        return;
    }
    snprintf(name, sizeof name, "%s_fn.weight", part);
    add_matrix(m, l, name, n_numbers, n * m->s.n_embd);
    snprintf(name, sizeof name, "%s_base.weight", part);
    add(m, l, name, 0, 0, n_numbers, 0, 1);
    snprintf(name, sizeof name, "%s_scale.weight", part);
    add(m, l, name, 0, 0, l < 0 ? 1 : mixes ? 3 : 2, 0.7f, 0.3f);
}

/* Qwen 4's n-gram table, with some rows that no hash reaches, and the projections from its rows into the streams. */
static void add_hash(struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    const bool by_rows = s->hash.deep;
    const int l = s->hash.layer, n = (s->hash.size - 1) * s->hash.heads, width = s->n_stream * s->n_embd;
    uint64_t rows[64];
    int64_t sum = s->hash.missing ? -s->hash.missing : 4;
    expert_hash_rows(s, rows);
    for (int i = 0; i < n; i++)
        sum += (int64_t)rows[i];
    add(m, -1, "per_layer_token_embd.weight", 0, sum, s->hash.width, 0, 1);
    add_matrix(m, l, "ple_key.weight", width, n * s->hash.width);
    add_matrix(m, l, "ple_value.weight", s->n_embd, n * s->hash.width);
    add(m, l, "ple_norm_key.weight", 0, by_rows ? s->n_stream : 0, by_rows ? s->n_embd : width, 1, 0.5f);
    add_norm(m, l, "ple_norm_query.weight", width);
    add_norm(m, l, "ple_norm_conv.weight", width);
    add(m, l, "ple_conv1d.weight", by_rows ? width : 0, by_rows ? 1 : width, s->hash.taps, 0, 1);
}

void expert_hash_rows(const struct expert_shape *s, uint64_t *rows)
{
    int n = s->hash.base;
    for (int i = 0; i < (s->hash.size - 1) * s->hash.heads; n++) {
        int divisor = 2;
        while (n % divisor != 0)
            divisor++;
        if (divisor == n)
            rows[i++] = (uint64_t)n;
    }
}

static void add_one_part(struct expert_model *m, int l)
{
    const char kind = m->s.kinds[l];
    add_norm(m, l, "attn_norm.weight", m->s.n_embd);
    (kind == 'M' ? add_mamba : kind == '*' ? add_attention : add_feed_forward)(m, l);
}

/* A layer's attention, or what replaces it. */
static void add_mixer(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    if (expert_recurs(s, l))
        (s->mamba ? add_mamba : s->kda ? add_kda : s->lightning ? add_lightning : add_states)(m, l);
    else if (s->kv_rank)
        add_latent_attention(m, l);
    else
        (expert_convolves(s, l) ? add_convolution : add_attention)(m, l);
    if (s->beside)
        add_mamba(m, l);
}

static void add_named_norm(struct expert_model *m, int l, const char *kind)
{
    char name[48];
    snprintf(name, sizeof name, "%s.weight", kind);
    add_norm(m, l, name, m->s.n_embd);
}

static void add_layer(struct expert_model *m, int l)
{
    const struct expert_shape *s = &m->s;
    const bool behind = s->stream_rank || (s->norms_after && !expert_recurs(s, l));
    if (s->attn_res_block) {
        add(m, l, "attn_res_score.weight", 0, 0, s->n_embd, 0, 0.3f);
        add(m, l, "ffn_res_score.weight", 0, 0, s->n_embd, 0, 0.3f);
    }
    if (s->n_stream) {
        add_connection(m, l, "hc_attn");
        add_connection(m, l, "hc_ffn");
    }
    if (!behind)
        add_named_norm(m, l, "attn_norm");
    add_mixer(m, l);
    if (!behind && !s->parallel)
        add_named_norm(m, l, s->ffn_norm);
    if (s->beside_norm)
        add_named_norm(m, l, s->beside_norm);
    add_feed_forward(m, l);
    if (s->norm_rank) {
        add_named_norm(m, l, "post_attention_norm");
        add_named_norm(m, l, "post_ffw_norm");
    }
    if (s->experts_post_norm == POST_NORM_ANYWHERE || (s->experts_post_norm && expert_layer(s, l)))
        add_named_norm(m, l, "post_ffw_norm");
    if (l >= s->n_layer)
        add_matrix(m, l, "nextn.eh_proj.weight", s->n_embd, 2 * s->n_embd);
}

static void add_ngrams(struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    const int n_tables = s->ngram_splits * (s->ngram_size - 1);
    for (int i = 0; i < n_tables; i++) {
        char name[40];
        snprintf(name, sizeof name, "ngram_embd.%d.weight", i);
        add(m, -1, name, 0, s->ngram_base + 2 * i + 1, s->n_embd / n_tables, 0, 1);
        snprintf(name, sizeof name, "ngram_proj.%d.weight", i);
        add_matrix(m, -1, name, s->n_embd, s->n_embd / n_tables);
    }
}

struct expert_model *expert_model_make(const struct expert_shape *s)
{
    struct expert_model *m = pp_calloc(1, sizeof *m);
    assert_non_null(m);
    assert_true(s->n_expert + s->n_idle <= MAX_EXPERTS);
    m->s = *s;
    m->random = s->seed;
    add(m, -1, "token_embd.weight", 0, s->n_vocab, s->n_embd, 0, 1);
    if (s->ngram_size)
        add_ngrams(m);
    for (int l = 0; s->kinds && l < s->n_layer; l++)
        add_one_part(m, l);
    for (int l = 0; !s->kinds && l < s->n_layer + s->n_nextn; l++)
        add_layer(m, l);
    if (s->attn_res_block)
        add(m, -1, "output_res_score.weight", 0, 0, s->n_embd, 0, 0.3f);
    if (s->n_stream && !s->stream_rounds)
        add_connection(m, -1, "output_hc");
    if (s->hash.size)
        add_hash(m);
    if (!s->stream_rank)
        add_named_norm(m, -1, s->output_norm);
    add(m, -1, "output.weight", 0, s->n_vocab, s->n_embd, 0, sqrtf(3.0f / (float)s->n_embd));
    return m;
}

void expert_model_say_idle(struct expert_model *m, int n)
{
    m->s.n_idle = n;
}

void expert_model_say_ngrams(struct expert_model *m, int size, int splits, int base, int end)
{
    m->s.ngram_size = size;
    m->s.ngram_splits = splits;
    m->s.ngram_base = base;
    m->s.ngram_end = end;
}

void expert_model_free(struct expert_model *m)
{
    for (int i = 0; i < m->n; i++)
        pp_free(m->t[i].values);
    pp_free(m);
}

/* --- the file ------------------------------------------------------------------------------------------------ */

static const char *key(const struct expert_model *m, const char *name)
{
    static char full[96];
    snprintf(full, sizeof full, "%s.%s", m->s.arch, name);
    return full;
}

static void write_numbers(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    const int head = s->nope + s->rope_dim;
    const struct {
        const char *key;
        int v; /* 0: the key is not written */
    } numbers[] = {
        {"vocab_size", s->n_vocab}, {"block_count", s->n_layer + s->n_nextn}, {"context_length", s->n_ctx},
        {"embedding_length", s->n_embd},
        {"feed_forward_length", s->kinds ? 0 : s->beside_norm ? s->n_ff_expert : s->n_ff},
        {"attention.head_count", s->local_heads ? 0 : s->n_head},
        {"rope.dimension_count_swa", s->wide_rope ? s->rope_dim : 0},
        {"attention.head_count_kv",
         s->taps || (s->mamba && !s->beside) || s->local_kv || s->kda ? 0
         : !s->kv_rank                                             ? s->n_head_kv
         : s->heads_apart                                          ? 1
                                                                   : s->n_head},
        {"attention.key_length", !s->kv_rank ? s->head_dim : s->heads_apart ? s->kv_rank + s->rope_dim : head},
        {"attention.value_length", !s->kv_rank ? expert_value_dim(s) : s->heads_apart ? s->kv_rank : s->v_dim},
        {"attention.key_length_mla", s->heads_apart ? head : 0},
        {"attention.value_length_mla", s->heads_apart ? s->v_dim : 0},
        {"attention.indexer.top_k", s->index_top_k},
        {"attention.indexer.head_count",
         s->index_says ? s->index_says : s->index_block ? s->n_head_kv : s->index_top_k ? INDEX_HEADS : 0},
        {"attention.indexer.block_size", s->index_block}, {"attention.indexer.local_blocks", s->index_n_local},
        {"attention.indexer.key_length", s->index_top_k ? INDEX_DIM : 0},
        {"attention.indexer.kpool", s->kv_rank ? s->pool : 0},
        {"attention.kv_lora_rank", s->kv_rank}, {"attention.q_lora_rank", s->q_rank},
        {"rope.scaling.original_context_length", s->yarn_ctx},
        {"rope.dimension_count", s->wide_rope && strcmp(s->arch, "step35") != 0 ? s->wide_rope : s->rope_dim},
        {"expert_count", s->n_expert},
        {"expert_used_count", s->uneven ? 0 : s->n_used},
        {"expert_feed_forward_length", s->uneven ? 0 : s->n_ff_expert},
        {"expert_shared_count", s->n_ff_shared / s->n_ff_expert},
        {"expert_shared_feed_forward_length", s->n_ff_shared}, {"leading_dense_block_count", s->n_dense},
        {"expert_group_count", s->n_groups}, {"expert_group_used_count", s->n_groups_used},
        {"expert_gating_func", s->say_gating ? 1 + s->sigmoids : 0}, {"nextn_predict_layers", s->n_nextn},
        {"attention.sliding_window", s->window},
        {"interleave_moe_layer_step", strcmp(s->arch, "ernie4_5-moe") == 0 ? 1 : s->step},
        {"attention.temperature_length", s->length ? s->length : s->log_length}, {"shortconv.l_cache", s->taps},
        {"ssm.conv_kernel", s->state_taps}, {"ssm.tap_rank", s->dynamic_conv_rank},
        {"ssm.state_size", s->key_dim}, {"ssm.group_count", s->rank ? 0 : s->n_state_key},
        {"ssm.time_step_rank", s->rank ? s->rank : s->n_state},
        {"ssm.inner_size", s->n_state * s->value_dim}, {"full_attention_interval", s->full},
        {"expert_zero_count", s->n_idle},
        {s->attn_res_block ? "expert_latent_length" : "moe_latent_size", s->n_embd_expert},
        {"experts_per_group", s->share},
        {"expert_chunk_feed_forward_length", s->n_ff_share},
        {"kda.head_dim", s->kda ? s->key_dim : 0},
        {"lightning.head_dim", s->lightning ? s->key_dim : 0}, {"lightning.group_count", s->norm_groups},
        {"attn_res.block_size", s->attn_res_block}, {"hyper_connection.count", s->n_stream},
        {"hyper_connection.sinkhorn_iterations", s->stream_rounds}, {"hyper_connection.low_rank", s->stream_rank},
        {"ple.ngram_size", s->hash.size}, {"ple.heads_per_ngram", s->hash.heads}, {"ple.conv_kernel", s->hash.taps},
        {"ple.eos_token_id", s->hash.end}, {"embedding_length_per_layer_input", s->hash.width},
        {"ngram.size", s->ngram_size}, {"ngram.split_count", s->ngram_splits},
        {"ngram.table_length", s->ngram_base}, {"ngram.end_token_id", s->ngram_end},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].v)
            pp_gguf_add_u32(w, key(m, numbers[i].key), (uint32_t)numbers[i].v);
    if (!s->rope_dim)
        pp_gguf_add_u32(w, key(m, "rope.dimension_count"), 0);
    if (!s->n_head && !s->local_heads) /* files of models without attention say so */
        pp_gguf_add_u32(w, key(m, "attention.head_count"), 0);
}

/* --- what layers have --- */

enum { MAX_LAYERS = 8 };

static bool is_narrow(const struct expert_shape *s, int l)
{
    return !expert_is_wide(s, l);
}

/* Writes an array of one boolean for each layer. */
static void write_which(struct pp_gguf_writer *w, const struct expert_model *m, const char *name,
                        bool (*is)(const struct expert_shape *s, int l))
{
    bool which[MAX_LAYERS];
    for (int l = 0; l < m->s.n_layer; l++)
        which[l] = is(&m->s, l);
    pp_gguf_add_bool_array(w, key(m, name), which, (size_t)m->s.n_layer);
}

static void write_sizes(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    uint32_t n_head_kv[MAX_LAYERS], n_ff[MAX_LAYERS], n_head[MAX_LAYERS], n_used[MAX_LAYERS];
    for (int l = 0; l < s->n_layer; l++) {
        const bool other = s->kinds ? s->kinds[l] != '*' : expert_convolves(s, l) || expert_recurs(s, l);
        n_head[l] = (uint32_t)expert_heads(s, l);
        n_head_kv[l] = other ? 0 : (uint32_t)(s->kda ? s->heads_apart ? 1 : s->n_head : expert_key_heads(s, l));
        const int ff = s->uneven ? s->uneven[l][1] : s->n_ff_expert;
        n_ff[l] = !s->kinds ? 0 : (uint32_t)(s->kinds[l] == 'E' ? ff : s->kinds[l] == '-' ? s->n_ff : 0);
        n_used[l] = s->uneven ? (uint32_t)s->uneven[l][0] : 0;
    }
    if (s->taps || (s->mamba && !s->beside) || s->local_kv || s->kda)
        pp_gguf_add_u32_array(w, key(m, "attention.head_count_kv"), n_head_kv, (size_t)s->n_layer);
    if (s->local_heads)
        pp_gguf_add_u32_array(w, key(m, "attention.head_count"), n_head, (size_t)s->n_layer);
    if (s->kinds)
        pp_gguf_add_u32_array(w, key(m, "feed_forward_length"), n_ff, (size_t)s->n_layer);
    if (s->uneven) { /* the values of layers without experts are ignored */
        pp_gguf_add_u32_array(w, key(m, "expert_used_count"), n_used, (size_t)s->n_layer);
        pp_gguf_add_u32_array(w, key(m, "expert_feed_forward_length"), n_ff, (size_t)s->n_layer);
    }
}

static void write_bounds(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    const int bounded = s->n_layer - 1 - s->bounded_before;
    float bounds[MAX_LAYERS] = {0};
    if (s->bound == 0.0f)
        return;
    for (int l = s->clamp_before_silu ? 0 : bounded; l <= bounded; l++)
        bounds[l] = s->bound;
    pp_gguf_add_f32_array(w, key(m, "swiglu_clamp_exp"), bounds, (size_t)s->n_layer);
    bounds[s->n_layer - 1] = s->bounded_all ? s->bound : s->shared_bound;
    if (!s->clamp_before_silu || s->bounded_all)
        pp_gguf_add_f32_array(w, key(m, "swiglu_clamp_shexp"), bounds, (size_t)s->n_layer);
}

static void write_layers(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    uint32_t full[MAX_LAYERS], ratios[MAX_LAYERS];
    assert_true(s->n_layer <= MAX_LAYERS);
    write_sizes(w, m);
    write_bounds(w, m);
    for (int l = 0; l < s->n_layer; l++) {
        full[l] = expert_picks(s, l);
        ratios[l] = expert_recurs(s, l) ? 0 : (uint32_t)s->pool;
    }
    if (s->lightning)
        write_which(w, m, "attention.recurrent_layers", expert_recurs);
    if (s->index_step && strcmp(s->arch, "hyv4") == 0)
        pp_gguf_add_u32_array(w, key(m, "attention.indexer.is_full"), full, (size_t)s->n_layer);
    else if (s->index_step && !s->index_unstated)
        write_which(w, m, "attention.indexer.types", expert_picks);
    if (s->local_base != 0.0f || s->parallel || strcmp(s->arch, "maple") == 0)
        write_which(w, m, "attention.sliding_window_pattern", is_narrow);
    if (s->stream_rank)
        pp_gguf_add_u32_array(w, key(m, "attention.compress_ratios"), ratios, (size_t)s->n_layer);
}

/* --- what few families have --- */

static void write_hash(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    const uint32_t layer = (uint32_t)s->hash.layer;
    const size_t n = (size_t)((s->hash.size - 1) * s->hash.heads);
    uint64_t rows[64], offsets[65] = {0};
    expert_hash_rows(s, rows);
    for (size_t i = 0; i < n; i++)
        offsets[i + 1] = offsets[i] + rows[i];
    pp_gguf_add_u32_array(w, key(m, "ple.layers"), &layer, 1);
    pp_gguf_add_u64_array(w, key(m, "ple.layer_multipliers"), s->hash.multipliers, (size_t)s->hash.size);
    pp_gguf_add_u64_array(w, key(m, "ple.head_vocab_sizes"), rows, n);
    pp_gguf_add_u64_array(w, key(m, "ple.head_offsets"), offsets, n);
}

/* Writes the metadata of states, streams and n-gram tables. */
static void write_states(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    if (s->lightning) {
        pp_gguf_add_bool(w, key(m, "lightning.silu"), s->states_silu);
        pp_gguf_add_bool(w, key(m, "lightning.rotated"), !s->states_still);
    }
    if (s->decay_bound != 0.0f)
        pp_gguf_add_f32(w, key(m, "kda.gate_lower_bound"), s->decay_bound);
    if (strcmp(s->arch, "olmo_hybrid") == 0) {
        pp_gguf_add_bool(w, key(m, "ssm.negative_eigenvalues"), s->twice);
        pp_gguf_add_bool(w, key(m, "rope.scaling.finetuned"), s->wide != 1);
    }
    if (s->scan_norm == SCAN_UNIT)
        pp_gguf_add_bool(w, key(m, "ssm.dt_b_c_rms"), true);
    if (s->n_stream && !s->stream_rank) {
        pp_gguf_add_f32(w, key(m, "hyper_connection.epsilon"), s->stream_least);
        if (!s->stream_rounds)
            pp_gguf_add_f32(w, key(m, "hyper_connection.magnitude"), s->stream_most);
    }
    if (s->hash.size)
        write_hash(w, m);
}

/* Writes those float keys whose value is not 0. */
static void write_some_floats(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    const struct {
        const char *key;
        float v;
    } some[] = {
        {"rope.freq_base_swa", s->local_base},
        {"attention.q_lora_scale", s->norm_rank ? 0 : s->q_growth},
        {"attention.kv_lora_scale", s->norm_rank ? 0 : s->kv_growth},
        {"attention.value_scale", s->value_scale},
        {"expert_weights_scale", s->scale}, {"ssm.layer_norm_rms_epsilon", s->state_eps},
        {"expert_group_scale", s->share ? s->share_scale : 0},
        {"attn_logit_softcapping", s->cap},
        {"router_logit_softcapping", s->router_cap},
        {"final_logit_softcapping", s->final_cap},
        {"attention.temperature_scale", s->length ? s->temperature : 0},
        {"activation.situ_beta", s->attn_res_block ? 4 : 0},
        {"activation.situ_linear_beta", s->attn_res_block ? 25 : 0},
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (some[i].v != 0.0f)
            pp_gguf_add_f32(w, key(m, some[i].key), some[i].v);
}

static void write_scales(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    if (s->parallel)
        pp_gguf_add_f32(w, key(m, "logit_scale"), s->logit_scale);
    if (s->cap != 0.0f) { /* Grok's */
        pp_gguf_add_f32(w, key(m, "embedding_scale"), s->embd_scale);
        pp_gguf_add_f32(w, key(m, "logit_scale"), s->logit_scale);
        pp_gguf_add_f32(w, key(m, "attention.output_scale"), s->attn_scale);
    }
    if (s->say_scales) {
        pp_gguf_add_f32(w, key(m, "embedding_scale"), s->embd_scale);
        pp_gguf_add_f32(w, key(m, "residual_scale"), s->residual_scale);
        pp_gguf_add_f32(w, key(m, "attention.scale"), s->attn_scale);
        pp_gguf_add_f32(w, key(m, "logit_scale"), 1 / s->logit_scale);
        pp_gguf_add_bool(w, key(m, "rope.scaling.finetuned"), s->wide != 1);
    }
}

static void write_metadata(struct pp_gguf_writer *w, const struct expert_model *m)
{
    const struct expert_shape *s = &m->s;
    pp_gguf_add_text(w, "general.architecture", s->arch);
    write_numbers(w, m);
    write_layers(w, m);
    write_states(w, m);
    write_some_floats(w, m);
    write_scales(w, m);
    pp_gguf_add_f32(w, key(m, "rope.freq_base"), (float)EXPERT_ROPE_BASE);
    if ((s->parallel && !s->centred) || (s->pool && s->kv_rank)) /* other families' files have it for other norms, or
                                                                    for the index's */
        pp_gguf_add_f32(w, key(m, "attention.layer_norm_epsilon"), 0.5f);
    pp_gguf_add_f32(w, key(m, s->centred ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
                    s->epsilon != 0.0f ? s->epsilon : (float)EXPERT_EPSILON);
    if (s->yarn_factor != 0.0f) {
        pp_gguf_add_text(w, key(m, "rope.scaling.type"), "yarn");
        pp_gguf_add_f32(w, key(m, "rope.scaling.factor"), s->yarn_factor);
        pp_gguf_add_f32(w, key(m, "rope.scaling.yarn_log_multiplier"), s->log_multiplier);
    }
    if (s->say_norm)
        pp_gguf_add_bool(w, key(m, "expert_weights_norm"), !s->shares);
    pp_gguf_add_text(w, "tokenizer.ggml.model", "no_vocab");
}

static float *all_less_one(const struct array *a)
{
    float *values = pp_malloc((size_t)array_size(a) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < array_size(a); i++)
        values[i] = a->values[i] - 1;
    return values;
}

const char *expert_model_write(const struct expert_model *m)
{
    struct pp_tensor tensors[EXPERT_MAX_TENSORS];
    float *less_one[EXPERT_MAX_TENSORS] = {0};
    size_t n = 0;
    const char *path = fresh_path("experts.gguf");
    struct pp_gguf_writer *w = gguf_file_begin(path);
    write_metadata(w, m);
    for (const struct array *a = m->t; a < m->t + m->n; a++) {
        if (!is_in_file(m, a))
            continue;
        tensors[n] = array_tensor(a);
        if (m->s.lacks_ones && strstr(a->name, "norm.weight"))
            tensors[n].data = less_one[n] = all_less_one(a);
        n++;
    }
    gguf_file_end(w, tensors, n);
    while (n > 0)
        pp_free(less_one[--n]);
    return path;
}

struct pp_sha256 expert_identity(const struct expert_shape *shape)
{
    struct expert_model *m = expert_model_make(shape);
    struct pp_model *model;
    struct pp_sha256 id;
    struct pp_error err;
    assert_ok(pp_model_open(expert_model_write(m), &model, &err), err);
    assert_ok(pp_model_identity(model, NULL, &id, &err), err);
    pp_model_close(model);
    expert_model_free(m);
    return id;
}

const struct array *expert_find(const struct expert_model *m, int l, const char *kind)
{
    const int i = small_find(m->t[0].name, sizeof m->t[0], m->n, l, kind, "");
    return i < 0 ? NULL : &m->t[i];
}
