#include "engine/fit.h"

#include <stdio.h>

#include "engine/base/buf.h"
#include "engine/base/memory.h"
#include "engine/cpu/matmul.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "engine/source.h"
#include "engine/switched.h"

static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- what is needed ---------------------------------------------------------------------------------------------- */

/* Adds a matrix as kernels read it: packed, in addition to the file; or in place. */
static void add_matrix(struct pp_memory_need *need, const struct pp_tensor *t)
{
    const bool packed = pp_pack_needed(t->type);
    const uint64_t made = t->rows ? t->size : 0; /* quantised while it is loaded, and kept */
    const uint64_t own = plus(made, packed ? pp_pack_bytes(t->type, t->ne[1], t->ne[0]) : 0);
    need->weights = plus(need->weights, plus(own, packed || made ? 0 : t->size));
    need->own_weights = plus(need->own_weights, own);
}

static void add_experts(struct pp_memory_need *need, const struct pp_experts *x)
{
    const uint64_t before = need->weights;
    const int n = pp_experts_matrices(x);
    for (int e = 0; e < n; e++) {
        if (x->gate)
            add_matrix(need, x->gate[e]);
        if (x->up)
            add_matrix(need, x->up[e]);
        add_matrix(need, x->down[e]);
    }
    const uint64_t all = need->weights - before;
    need->weights_least = plus(need->weights_least, all / (uint64_t)n * (uint64_t)(x->n_used < n ? x->n_used : n));
}

/* Values of a row for layers with states. */
static int64_t state_values(const struct pp_hparams *hp)
{
    const int64_t scans = hp->n_scan_head, channels = hp->n_state_head * hp->state_value_dim;
    if (scans) /* both halves of the input, steps, output, and the steps' low ranks */
        return scans * (6 * channels + 2 * (hp->state_rank + hp->state_key_dim));
    if (hp->rwkv4) /* a difference, a mixture, keys, values, gates, output, and the gate's input */
        return 7 * hp->n_embd;
    /* input and output of the convolution, gates, the states' output; and computed taps */
    const int64_t taps = hp->dynamic_conv_rank ? hp->dynamic_conv_rank + channels * hp->conv_taps : 0;
    return taps + 4 * (hp->n_state_key_head * hp->state_key_dim + channels) + hp->state_rank;
}

/* Values of a row that only a few families need, before or in parallel with attention. */
static int64_t rare_values(const struct pp_hparams *hp)
{
    int64_t n = 0;
    if (hp->key_scores) /* queries and keys with scores */
        n += (hp->n_head + hp->n_head_kv) * pp_key_width(hp, hp->head_dim);
    if (hp->heads_tiled) /* permuted queries */
        n += hp->n_head * hp->head_dim;
    if (hp->convolved_heads) /* queries and keys five times, their means, and values of the position before */
        n += (7 * hp->n_head + 8 * hp->n_head_kv) * hp->head_dim;
    if (hp->differential) /* values as computed, in pairs and twice; results of twice the size; permuted queries */
        n += (3 * hp->n_head_kv + hp->n_head + (hp->heads_alternate ? hp->n_head : 0)) * hp->head_dim;
    if (hp->polynorm_gates) /* powers of the gates */
        n += 2 * hp->n_ff;
    if (hp->loops_mixed) /* queries again, output for the first time's keys, and its share */
        n += hp->n_head * (2 * hp->head_dim + 1);
    n += 4 * hp->router_rank;
    if (hp->localized_filtering) /* the position before, both convolutions' outputs, a spare, queries next to keys */
        n += 3 * hp->n_embd + 2 * hp->n_head * hp->head_dim;
    if (hp->stream_rank) /* gates of all streams, and their low-rank input */
        n += hp->n_stream * hp->n_embd + hp->stream_rank;
    if (hp->hashed.size) /* rows of the table, and what streams add */
        n += (hp->hashed.size - 1) * hp->hashed.heads * hp->hashed.width + hp->n_stream * hp->n_embd;
    if (hp->n_shared_block) /* embeddings next to the stream, their norm, and the states' input */
        n += 6 * hp->n_embd;
    if (hp->n_shared_block && hp->adapter_rank) /* low-rank products */
        n += 2 * (hp->n_ff > hp->n_embd ? hp->n_ff : hp->n_embd) + hp->adapter_rank;
    return n;
}

/* Latent attention: the query and the output of each head, as wide as cached vectors, in the layers where this is
 * most. */
static uint64_t latent_values(const struct pp_hparams *hp)
{
    int64_t most = 0;
    for (int64_t l = 0; l < hp->n_layer; l++) {
        const struct pp_latent_shape shape = pp_latent_shape(hp, l);
        const int64_t n = shape.n_head * (2 * shape.rank + hp->rope_dim);
        most = n > most ? n : most;
    }
    return (uint64_t)most;
}

/* An estimate for slots, quantised inputs, logits and threads (slots.c, setup.c, experts.c). */
static uint64_t work_bytes(const struct pp_model *m, int max_rows)
{
    enum { OF_THREADS = 4 << 20 };
    const struct pp_model_info *info = &m->info;
    const uint64_t rows = (uint64_t)(max_rows ? max_rows : PP_USUAL_ROWS);
    uint64_t values = 2 * (uint64_t)info->n_embd + (uint64_t)info->n_ff;
    const struct pp_hparams *hp = pp_source_hparams(m->source);
    values += (uint64_t)hp->n_embd_out;
    values += (uint64_t)(hp->n_ff_shared + 2 * hp->n_embd_expert);
    if (hp->attn_res_block) /* stored layer inputs, and their mixture */
        values += (uint64_t)((hp->n_layer + hp->attn_res_block - 1) / hp->attn_res_block + 1) * (uint64_t)hp->n_embd;
    values += hp->skip_share != 0.0f ? 2 * (uint64_t)hp->n_embd : 0; /* stored layer inputs */
    values += hp->n_expert_idle ? (uint64_t)hp->n_embd : 0; /* output of idle experts */
    values += 2 * (uint64_t)(hp->n_layer * hp->n_embd_layer + hp->n_stream * hp->n_embd);
    if (hp->kv_lora_rank)
        values += latent_values(hp);
    if (hp->index_top_k) /* the index's queries, weights and key, and its picks */
        values += (uint64_t)(hp->n_index_head * (hp->index_dim + 1) + hp->index_dim +
                             hp->index_top_k * (hp->index_block && !hp->index_pooled ? hp->n_index_head : 1));
    if (hp->compressed) /* queries, output, the same by groups, inputs of blocks, and their keys */
        values += (uint64_t)(hp->n_head * 2 * hp->head_dim + hp->o_groups * hp->o_rank + 2 * hp->q_lora_rank +
                             6 * hp->head_dim + 4 * hp->index_dim);
    values += (uint64_t)(6 * hp->lru_width);
    if (hp->n_state_head)
        values += (uint64_t)state_values(hp);
    values += (uint64_t)rare_values(hp);
    uint64_t places = 0; /* shared by all layers */
    for (int i = 0; i < m->plan.n_experts; i++) {
        const struct pp_experts *x = &m->plan.experts[i];
        const struct pp_tensor *first = x->up ? x->up[0] : x->down[0];
        const uint64_t of_mixture = (uint64_t)x->n_used * (uint64_t)(first->ne[0] + first->ne[1]) * 3 / 2;
        places = of_mixture > places ? of_mixture : places;
    }
    values += places;
    return (rows * values + 8 * (uint64_t)info->n_vocab) * sizeof(float) + OF_THREADS;
}

/* The model's own adapters when loaded; about as much as in the file. */
static uint64_t switched_bytes(const struct pp_model *m)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < pp_source_n_tensors(m->source); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(m->source, i);
        bytes += pp_is_of_switched(pp_source_hparams(m->source), t->name) ? t->size : 0;
    }
    return bytes;
}

struct pp_memory_need pp_model_memory(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx, int max_rows)
{
    struct pp_memory_need need = {0};
    if (m->plan.encoder)
        type = PP_KV_F32;
    for (int i = 0; i < m->plan.n_linears; i++)
        add_matrix(&need, m->plan.linears[i].w);
    for (int i = 0; i < m->plan.n_heads; i++)
        for (int h = 0; h < m->plan.heads[i].n; h++)
            add_matrix(&need, m->plan.heads[i].w[h]);
    need.weights_least = need.weights;
    for (int i = 0; i < m->plan.n_experts; i++)
        add_experts(&need, &m->plan.experts[i]);
    need.kv = pp_model_kv_bytes(m, type, n_ctx);
    need.work = work_bytes(m, max_rows) + switched_bytes(m);
    return need;
}

uint64_t pp_memory_sum(const struct pp_memory_need *need)
{
    return plus(plus(need->weights, need->kv), need->work);
}

/* --- what is available ------------------------------------------------------------------------------------------- */

uint64_t pp_model_room_for_kv(const struct pp_model *m, enum pp_kv_type type, int max_rows)
{
    const struct pp_memory_need need = pp_model_memory(m, type, 0, max_rows);
    const uint64_t own = plus(need.own_weights, need.work), all = plus(need.weights_least, need.work);
    const uint64_t available = pp_memory_free(), space = pp_memory_room();
    if (!pp_memory_checks())
        return UINT64_MAX;
    const uint64_t in_space = space == UINT64_MAX ? space : space > own ? space - own : 0;
    return least(available > all ? available - all : 0, in_space);
}

/* The largest context, in steps of 256 tokens, whose pages fit. */
static int64_t context_that_fits(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx, uint64_t room)
{
    enum { STEP = 256 };
    int64_t fits = 0, too_many = n_ctx / STEP + 1;
    while (too_many - fits > 1) {
        const int64_t middle = fits + (too_many - fits) / 2;
        *(pp_model_kv_bytes(m, type, middle * STEP) <= room ? &fits : &too_many) = middle;
    }
    return fits * STEP;
}

/* "choose a --ctx-size of at most 4096, or --kv-type q4_0, or ..." */
static void advise(struct pp_buf *b, const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx, uint64_t room)
{
    const int64_t fits = context_that_fits(m, type, n_ctx, room);
    pp_buf_str(b, "choose ");
    if (fits > 0 && fits < n_ctx)
        pp_buf_fmt(b, "a --ctx-size of at most %lld, ", (long long)fits);
    if (type != PP_KV_Q4_0 && !m->plan.encoder && pp_model_kv_bytes(m, PP_KV_Q4_0, n_ctx) <= room)
        pp_buf_str(b, "--kv-type q4_0, ");
    pp_buf_str(b, "a smaller model or quantisation (pippin quantize)");
}

struct gigabytes {
    char text[24];
};

/* With three significant digits. */
static struct gigabytes gigabytes(uint64_t bytes)
{
    const double n = (double)bytes / 1e9;
    struct gigabytes g;
    if (n < 0.1)
        snprintf(g.text, sizeof g.text, "%.2g", n);
    else
        snprintf(g.text, sizeof g.text, "%.*f", n < 10 ? 2 : n < 100 ? 1 : 0, n);
    return g;
}

static enum pp_code fail_fit(const struct pp_model *m, const struct pp_memory_need *need, enum pp_kv_type type,
                             int64_t n_ctx, uint64_t room, const char *available, struct pp_error *err)
{
    struct pp_buf advice = {0};
    advise(&advice, m, type, n_ctx, room);
    pp_fail(err, PP_ERR_NOMEM,
            "%.80s needs %s GB of memory (%s for weights, %s for the KV cache of %lld tokens in %s, %s of work "
            "space), but %s; %s, or --memory-check off to try anyway",
            m->info.name, gigabytes(pp_memory_sum(need)).text, gigabytes(need->weights).text, gigabytes(need->kv).text,
            (long long)n_ctx, pp_kv_type_name(type), gigabytes(need->work).text, available, pp_buf_cstr(&advice));
    pp_buf_free(&advice);
    return PP_ERR_NOMEM;
}

enum pp_code pp_model_check_fits(const struct pp_model *m, enum pp_kv_type type, int64_t n_ctx, int max_rows,
                                 struct pp_error *err)
{
    char available[96];
    if (!pp_memory_checks())
        return PP_OK;
    const struct pp_memory_need need = pp_model_memory(m, type, n_ctx, max_rows);
    const uint64_t room = pp_model_room_for_kv(m, type, max_rows), space = pp_memory_room();
    if (need.kv <= room && plus(plus(need.weights_least, need.work), need.kv) <= pp_memory_free())
        return PP_OK;
    if (space != UINT64_MAX && space < pp_memory_free())
        snprintf(available, sizeof available, "%s GB are allowed (ulimit -v)", gigabytes(space).text);
    else
        snprintf(available, sizeof available, "%s GB are free", gigabytes(pp_memory_free()).text);
    return fail_fit(m, &need, type, n_ctx, room, available, err);
}
