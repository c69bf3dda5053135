/* quant_many_body.h - the body of quant_many.c for one vector width. Before it is included, define: WIDTH (scales at
 * once), V (a vector of 4 * WIDTH floats), NAME(f), TARGET, and for floats LOAD(p) (a whole vector), SPREAD(p) (four
 * floats, repeated for each scale), SPLAT(f), AT_LEAST(lo, v) and AT_MOST(hi, v), which keep NaN, and MORE_ABOVE(q, v,
 * x, step): q + step where v > x, otherwise q. */

/* Each scale's number, repeated for its four lanes. */
static TARGET inline V NAME(each)(const float *of)
{
    float lanes[4 * WIDTH];
    for (int i = 0; i < 4 * WIDTH; i++)
        lanes[i] = of[i / 4];
    return LOAD(lanes);
}

static TARGET inline void NAME(totals)(V v, float out[WIDTH])
{
    float lanes[4 * WIDTH];
    memcpy(lanes, &v, sizeof lanes);
    for (int i = 0; i < WIDTH; i++)
        out[i] = (lanes[4 * i] + lanes[4 * i + 1]) + (lanes[4 * i + 2] + lanes[4 * i + 3]);
}

/* The nearest integer in [lo, hi], ties to even: adding 1.5 * 2^23 drops the fraction. */
static TARGET inline V NAME(whole)(V v, float lo, float hi)
{
    const V magic = SPLAT(12582912.0f);
    v = AT_LEAST(SPLAT(lo), v);
    v = AT_MOST(SPLAT(hi), v);
    return (v + magic) - magic;
}

/* The nearest value of IQ4's table: begins with the smallest, and adds a step for each midpoint that v exceeds. */
static TARGET inline V NAME(of_table)(V v)
{
    V q = SPLAT(iq4_values[0]);
    for (int k = 0; k < IQ4_STEPS; k++)
        q = MORE_ABOVE(q, v, 0.5f * (iq4_values[k] + iq4_values[k + 1]), iq4_values[k + 1] - iq4_values[k]);
    return q;
}

static TARGET inline V NAME(number)(V v, const struct pp_many_block *b, const bool of_table)
{
    return of_table ? NAME(of_table)(v) : NAME(whole)(v, b->lo, b->hi);
}

static TARGET ALWAYS void NAME(sums)(const struct pp_many_block *b, const float *inverse, struct pp_many_sums *out,
                                     const bool of_table)
{
    const V inv = NAME(each)(inverse);
    V xq = SPLAT(0), qq = SPLAT(0);
    float sums[2][WIDTH];
    for (int i = 0; i < b->n; i += 4) {
        const V x = SPREAD(b->x + i), w = SPREAD(b->w + i);
        const V q = NAME(number)(x * inv, b, of_table);
        xq += w * x * q;
        qq += w * q * q;
    }
    NAME(totals)(xq, sums[0]);
    NAME(totals)(qq, sums[1]);
    for (int k = 0; k < WIDTH; k++)
        out[k] = (struct pp_many_sums){.xq = sums[0][k], .qq = sums[1][k]};
}

static TARGET ALWAYS void NAME(errors)(const struct pp_many_block *b, const float *scale, float *out,
                                       const bool of_table)
{
    float inverse[WIDTH];
    for (int k = 0; k < WIDTH; k++)
        inverse[k] = scale[k] != 0 ? 1 / scale[k] : 0;
    const V by = NAME(each)(scale), inv = NAME(each)(inverse);
    V error = SPLAT(0);
    for (int i = 0; i < b->n; i += 4) {
        const V x = SPREAD(b->x + i);
        const V off = x - by * NAME(number)(x * inv, b, of_table);
        error += SPREAD(b->w + i) * off * off;
    }
    NAME(totals)(error, out);
}

static TARGET void NAME(scaled_sums)(const struct pp_many_block *b, const float *inverse, struct pp_many_sums *out)
{
    NAME(sums)(b, inverse, out, false);
}

static TARGET void NAME(scaled_errors)(const struct pp_many_block *b, const float *scale, float *out)
{
    NAME(errors)(b, scale, out, false);
}

static TARGET void NAME(table_sums)(const struct pp_many_block *b, const float *inverse, struct pp_many_sums *out)
{
    NAME(sums)(b, inverse, out, true);
}

static TARGET void NAME(table_errors)(const struct pp_many_block *b, const float *scale, float *out)
{
    NAME(errors)(b, scale, out, true);
}

static TARGET void NAME(affine_sums)(const struct pp_many_block *b, const float *inverse, const float *min,
                                     struct pp_many_sums *out)
{
    const V inv = NAME(each)(inverse), less = NAME(each)(min);
    V sw = SPLAT(0), sx = SPLAT(0), sq = SPLAT(0), sxq = SPLAT(0), sqq = SPLAT(0);
    float sums[5][WIDTH];
    for (int i = 0; i < b->n; i += 4) {
        const V x = SPREAD(b->x + i), w = SPREAD(b->w + i);
        const V q = NAME(whole)((x + less) * inv, b->lo, b->hi), wq = w * q;
        sw += w;
        sx += w * x;
        sq += wq;
        sxq += wq * x;
        sqq += wq * q;
    }
    NAME(totals)(sw, sums[0]);
    NAME(totals)(sx, sums[1]);
    NAME(totals)(sq, sums[2]);
    NAME(totals)(sxq, sums[3]);
    NAME(totals)(sqq, sums[4]);
    for (int k = 0; k < WIDTH; k++)
        out[k] = (struct pp_many_sums){sums[0][k], sums[1][k], sums[2][k], sums[3][k], sums[4][k]};
}

static TARGET void NAME(affine_errors)(const struct pp_many_block *b, const float *scale, const float *min, float *out)
{
    float inverse[WIDTH];
    for (int k = 0; k < WIDTH; k++)
        inverse[k] = scale[k] > 0 ? 1 / scale[k] : 0;
    const V by = NAME(each)(scale), inv = NAME(each)(inverse), less = NAME(each)(min);
    V error = SPLAT(0);
    for (int i = 0; i < b->n; i += 4) {
        const V x = SPREAD(b->x + i);
        const V off = x + less - by * NAME(whole)((x + less) * inv, b->lo, b->hi);
        error += SPREAD(b->w + i) * off * off;
    }
    NAME(totals)(error, out);
}

static const struct pp_many NAME(many) = {
    WIDTH,
    NAME(scaled_sums), NAME(scaled_errors), NAME(table_sums),
    NAME(table_errors), NAME(affine_sums), NAME(affine_errors),
};

#undef WIDTH
#undef V
#undef NAME
#undef TARGET
#undef LOAD
#undef SPREAD
#undef SPLAT
#undef AT_LEAST
#undef AT_MOST
#undef MORE_ABOVE
