/* recur_body.h - the vector kernels of layers with a recurrent state (recur.c); included by ops_body.h. */

/* Rows of x and vectors of columns in a register tile; for fewer rows the tile has more columns. */
#if defined(PP_VEC_AVX512)
enum { PRODUCT_ROWS = 4, PRODUCT_WIDE = 4, PRODUCT_WIDE_FEW = 8 };
#else
enum { PRODUCT_ROWS = 4, PRODUCT_WIDE = 1, PRODUCT_WIDE_FEW = 2 };
#endif

/* The products of nr rows with nw vectors of columns. */
ALWAYS_INLINE void product_tile(const struct pp_products *p, int64_t row, int64_t col, const int nr, const int nw)
{
    v16 sum[PRODUCT_ROWS][PRODUCT_WIDE_FEW];
    const float *m = p->m + col, *x = p->x + row * p->x_stride;
    UNROLL for (int r = 0; r < nr; r++)
        UNROLL for (int w = 0; w < nw; w++)
            sum[r][w] = v_zero();
    for (int64_t d = 0; d < p->n_inner; d++, m += p->m_stride) {
        v16 b[PRODUCT_WIDE_FEW];
        UNROLL for (int w = 0; w < nw; w++)
            b[w] = v_load(m + w * LANES);
        UNROLL for (int r = 0; r < nr; r++) {
            const v16 a = v_set1(x[r * p->x_stride + d]);
            UNROLL for (int w = 0; w < nw; w++)
                sum[r][w] = v_fma(a, b[w], sum[r][w]);
        }
    }
    UNROLL for (int r = 0; r < nr; r++)
        UNROLL for (int w = 0; w < nw; w++)
            v_store(p->y + (row + r) * p->y_stride + col + w * LANES, sum[r][w]);
}

/* All columns of nr rows. */
ALWAYS_INLINE void product_rows(const struct pp_products *p, int64_t row, const int nr, const int nw)
{
    int64_t col = 0;
    for (; col + nw * LANES <= p->n_cols; col += nw * LANES)
        product_tile(p, row, col, nr, nw);
    for (; col < p->n_cols; col += LANES)
        product_tile(p, row, col, nr, 1);
}

static void products(const struct pp_products *p)
{
    int64_t row = 0;
    for (; row + PRODUCT_ROWS <= p->n_rows; row += PRODUCT_ROWS)
        product_rows(p, row, PRODUCT_ROWS, PRODUCT_WIDE);
    for (; row + 2 <= p->n_rows; row += 2)
        product_rows(p, row, 2, PRODUCT_WIDE_FEW);
    if (row < p->n_rows)
        product_rows(p, row, 1, PRODUCT_WIDE_FEW);
}

/* The weights of u[i] for the positions i of the page that precede the row's: the decay since i times the products of
 * key i with the row's key and query. And the decay since the page's beginning. */
struct recur_weights {
    float of_key[PP_PAGE_TOKENS], of_query[PP_PAGE_TOKENS], start;
};

static void recur_weights(const struct pp_recur_row *r, struct recur_weights *w)
{
    float since[PP_PAGE_TOKENS + LANES];
    const int n = r->at + 1;
    for (int i = 0; i < n; i++)
        since[i] = (float)(r->decay[r->at] - r->decay[i]);
    for (int i = n; i < (n + LANES - 1) / LANES * LANES; i++)
        since[i] = 0;
    for (int i = 0; i < n; i += LANES) {
        const v16 left = v_exp(v_load(since + i));
        if (r->corrects)
            v_store(w->of_key + i, v_mul(left, v_load(r->key_dots + i)));
        v_store(w->of_query + i, v_mul(left, v_load(r->query_dots + i)));
    }
    v_store(since, v_exp(v_set1((float)r->decay[r->at])));
    w->start = since[0];
}

/* Computes u[at] and the output for nw vectors of a head's values. */
ALWAYS_INLINE void recur_columns(const struct pp_recur_row *r, const struct recur_weights *w, int64_t col, const int nw)
{
    v16 known[PRODUCT_WIDE_FEW], out[PRODUCT_WIDE_FEW];
    const float *u = r->u + col;
    float *own = r->u + r->at * r->width + col;
    UNROLL for (int i = 0; i < nw; i++)
        known[i] = out[i] = v_zero();
    if (r->corrects) {
        for (int p = 0; p < r->at; p++, u += r->width) {
            const v16 a = v_set1(w->of_key[p]), b = v_set1(w->of_query[p]);
            UNROLL for (int i = 0; i < nw; i++) {
                const v16 x = v_load(u + i * LANES);
                known[i] = v_fma(a, x, known[i]);
                out[i] = v_fma(b, x, out[i]);
            }
        }
    } else {
        for (int p = 0; p < r->at; p++, u += r->width) {
            const v16 b = v_set1(w->of_query[p]);
            UNROLL for (int i = 0; i < nw; i++)
                out[i] = v_fma(b, v_load(u + i * LANES), out[i]);
        }
    }
    UNROLL for (int i = 0; i < nw; i++) {
        const int64_t at = col + i * LANES;
        v16 v = v_load(r->v + at);
        if (r->corrects)
            v = v_sub(v, v_fma(v_set1(w->start), v_load(r->key_state + at), known[i]));
        v = v_mul(v_set1(r->beta), v);
        v_store(own + i * LANES, v);
        const v16 all = v_fma(v_set1(w->of_query[r->at]), v, out[i]);
        v_store(r->out + at, v_fma(v_set1(w->start), v_load(r->query_state + at), all));
    }
}

static void recur_row(const struct pp_recur_row *r)
{
    struct recur_weights w;
    int64_t col = 0;
    recur_weights(r, &w);
    for (; col + PRODUCT_WIDE_FEW * LANES <= r->width; col += PRODUCT_WIDE_FEW * LANES)
        recur_columns(r, &w, col, PRODUCT_WIDE_FEW);
    for (; col + PRODUCT_WIDE_FEW / 2 * LANES <= r->width; col += PRODUCT_WIDE_FEW / 2 * LANES)
        recur_columns(r, &w, col, PRODUCT_WIDE_FEW / 2);
    for (; col < r->width; col += LANES)
        recur_columns(r, &w, col, 1);
}

static void recur_next(const struct pp_recur_next *n)
{
    enum { LAST = PP_PAGE_TOKENS - 1 };
    float left[PP_PAGE_TOKENS], start[LANES];
    for (int i = 0; i < PP_PAGE_TOKENS; i++)
        left[i] = (float)(n->decay[LAST] - n->decay[i]);
    for (int i = 0; i < PP_PAGE_TOKENS; i += LANES)
        v_store(left + i, v_exp(v_load(left + i)));
    v_store(start, v_exp(v_set1((float)n->decay[LAST])));
    for (int64_t d = 0; d < n->key_dim; d++)
        for (int i = 0; i < PP_PAGE_TOKENS; i += LANES)
            v_store(n->scratch + d * PP_PAGE_TOKENS + i,
                    v_mul(v_load(n->keys + d * PP_PAGE_TOKENS + i), v_load(left + i)));
    products(&(struct pp_products){.x = n->scratch, .x_stride = PP_PAGE_TOKENS, .n_rows = n->key_dim,
                                   .m = n->u, .m_stride = n->width, .n_inner = PP_PAGE_TOKENS,
                                   .y = n->to, .y_stride = n->width, .n_cols = n->width});
    for (int64_t i = 0; i < n->key_dim * n->width; i += LANES)
        v_store(n->to + i, v_fma(v_load(start), v_load(n->from + i), v_load(n->to + i)));
}

static void scan_step(const struct pp_scan_step *s)
{
    for (int64_t c = 0; c < s->width; c += LANES) {
        const v16 step = v_load(s->step + c), u = v_load(s->u + c);
        v16 sum = v_zero();
        for (int64_t d = 0; d < s->key_dim; d++) {
            float *at = s->state + d * s->width + c;
            const v16 left = v_exp(v_mul(step, v_load(s->rate + d * s->width + c)));
            const v16 state = v_fma(left, v_load(at), v_mul(v_set1(s->key[d]), u));
            v_store(at, state);
            if (s->query)
                sum = v_fma(state, v_set1(s->query[d]), sum);
        }
        if (s->query)
            v_store(s->out + c, v_fma(v_load(s->direct + c), v_load(s->v + c), sum));
    }
}

static void delta_step(const struct pp_delta_step *s)
{
    for (int64_t c = 0; c < s->width; c += LANES) {
        const v16 v = v_load(s->v + c);
        v16 known = v_zero(), sum = v_zero();
        for (int64_t d = 0; d < s->key_dim; d++)
            known = v_fma(v_load(s->state + d * s->width + c), v_set1(s->removal_key[d]), known);
        for (int64_t d = 0; d < s->key_dim; d++) {
            float *at = s->state + d * s->width + c;
            const v16 more = v_fma(v_set1(s->removal[d]), known, v_mul(v_set1(s->key[d]), v));
            const v16 state = v_fma(v_set1(s->decay[d]), v_load(at), more);
            v_store(at, state);
            if (s->query)
                sum = v_fma(state, v_set1(s->query[d]), sum);
        }
        if (s->query)
            v_store(s->out + c, sum);
    }
}

static void decay_step(const struct pp_delta_step *s)
{
    for (int64_t c = 0; c < s->width; c += LANES) {
        const v16 v = v_load(s->v + c);
        v16 sum = v_zero();
        for (int64_t d = 0; d < s->key_dim; d++) {
            float *at = s->state + d * s->width + c;
            const v16 state = v_load(at);
            if (s->query)
                sum = v_fma(state, v_set1(s->query[d]), sum);
            v_store(at, v_fma(v_set1(s->decay[d]), state, v_mul(v_set1(s->key[d]), v)));
        }
        if (s->query)
            v_store(s->out + c, sum);
    }
}
