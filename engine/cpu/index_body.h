/* index_body.h - the scores by which an index picks positions for sparse attention, as ops.h defines them. A part of
 * ops_body.h, included after attention_body.h, whose dot products it uses. */

static void index_query(const struct pp_attention *a, const float *q)
{
    const int n_q = n_queries(a), head_dim = a->kv->head_dim;
    for (int d = 0; d < a->kv->head_pad; d++)
        for (int h = 0; h < n_q; h++)
            a->q[d * n_q + h] = d < head_dim ? q[h * head_dim + d] : 0;
}

static void index_dots(const struct pp_attention *a, const uint8_t *const heads[PP_CHUNK_PAGES], int n, float *dots)
{
    const int n_q = n_queries(a), end = (n + LANES - 1) / LANES * LANES;
    struct requests none = {0};
    for (int h = 0, nh; h < n_q; h += nh) {
        nh = next_tile(n_q - h);
        score_fns[a->kv->type](a, heads, h, nh, (struct pp_span){0, n}, &none);
        for (int k = 0; k < nh; k++)
            for (int i = 0; i < end; i += LANES)
                v_store(dots + (h + k) * PP_KV_CHUNK + i, v_load(a->p + k * PP_KV_CHUNK + i));
    }
}

static void index_scores(const struct pp_attention *a, const float *weights, const uint8_t *const heads[PP_CHUNK_PAGES],
                         int n, float *scores)
{
    const int n_q = n_queries(a), end = (n + LANES - 1) / LANES * LANES;
    struct requests none = {0};
    for (int i = 0; i < end; i += LANES)
        v_store(scores + i, v_zero());
    for (int h = 0, nh; h < n_q; h += nh) {
        nh = next_tile(n_q - h);
        score_fns[a->kv->type](a, heads, h, nh, (struct pp_span){0, n}, &none);
        for (int i = 0; i < end; i += LANES) {
            v16 score = v_load(scores + i);
            for (int k = 0; k < nh; k++)
                score = v_fma(v_set1(weights[h + k]), v_max(v_zero(), v_load(a->p + k * PP_KV_CHUNK + i)), score);
            v_store(scores + i, score);
        }
    }
}
