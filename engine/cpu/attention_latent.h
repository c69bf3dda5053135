/* attention_latent.h - extracts V from K in latent attention (arXiv 2405.04434), where the first values of K are V and
 * pages hold K only. A part of ops_body.h, included before attention_body.h.
 *
 * Kernels for scores read K with 16 positions interleaved; kernels for values read V with the dimensions of one
 * position or of two next to each other. A chunk is read by many queries, 16 to 128 for each row. So a chunk's V is
 * made once for all of them, in the order that pages of other models store (kv.h), and the same kernels multiply it.
 * Groups of 16 positions that no query attends to are left out. */

static void float_values_of_group(const struct pp_kv_layout *kv, const uint8_t *k, int group, uint8_t *v)
{
    const size_t pad = (size_t)kv->v_pad, k0 = (size_t)group * (size_t)kv->head_pad * LANES;
    const size_t v0 = (size_t)group * LANES * pad;
    if (kv->type == PP_KV_F32) {
        const float *from = (const float *)k + k0;
        float *to = (float *)v + v0;
        for (size_t d = 0; d < pad; d++)
            for (size_t i = 0; i < LANES; i++)
                to[i * pad + d] = from[d * LANES + i];
    } else if (kv->type == PP_KV_F16) {
        const uint16_t *from = (const uint16_t *)k + k0;
        uint16_t *to = (uint16_t *)v + v0;
        for (size_t d = 0; d < pad; d++)
            for (size_t i = 0; i < LANES; i++)
                to[i * pad + d] = from[d * LANES + i];
    } else {
        for (size_t d = 0; d < pad; d++)
            for (size_t i = 0; i < LANES; i++)
                v[v0 + i * pad + d] = k[k0 + d * LANES + i];
    }
}

/* Converts four dimensions of two neighbouring positions from K's order, as bytes plus 128, to V's. */
static inline void pair_of_quads(const uint8_t *k, uint8_t *v)
{
    for (int j = 0; j < 4; j++) {
        v[2 * j] = k[j] ^ 128;
        v[2 * j + 1] = k[4 + j] ^ 128;
    }
}

static void q8_values_of_group(const struct pp_kv_layout *kv, const uint8_t *k, int group, uint8_t *v)
{
    const size_t pair_bytes = 2 * (size_t)kv->v_pad;
    const uint8_t *from = k + (size_t)group * (size_t)kv->head_pad * LANES;
    uint8_t *to = v + (size_t)group * (LANES / 2) * pair_bytes;
    for (int d = 0; d < kv->v_pad; d += 4, from += 4 * LANES, to += 8)
        for (size_t pair = 0; pair < LANES / 2; pair++)
            pair_of_quads(from + 8 * pair, to + pair * pair_bytes);
}

/* A byte of K holds dimensions i and i + 4 of eight; a byte of V, i and i + 16 of 32. */
static void q4_values_of_group(const struct pp_kv_layout *kv, const uint8_t *k, int group, uint8_t *v)
{
    const size_t eight = 4 * LANES, pair_bytes = (size_t)kv->v_pad;
    const uint8_t *from = k + (size_t)group * (size_t)kv->head_pad / 2 * LANES;
    uint8_t *to = v + (size_t)group * (LANES / 2) * pair_bytes;
    for (int b = 0; b < kv->v_pad / PP_KV_BLOCK; b++, from += 4 * eight, to += PP_KV_BLOCK)
        for (size_t i = 0; i < LANES; i++)
            for (size_t j = 0; j < 4; j++) {
                const uint8_t *near = from + 4 * i + j, *far = near + 2 * eight; /* 16 dimensions later */
                uint8_t *pair = to + i / 2 * pair_bytes + i % 2;
                pair[2 * j] = (uint8_t)((near[0] & 15) | far[0] << 4);
                pair[2 * (j + 4)] = (uint8_t)(near[0] >> 4 | (far[0] & 0xF0));
                pair[2 * (j + 8)] = (uint8_t)((near[eight] & 15) | far[eight] << 4);
                pair[2 * (j + 12)] = (uint8_t)(near[eight] >> 4 | (far[eight] & 0xF0));
            }
}

static void scales_of_group(const struct pp_kv_layout *kv, const uint8_t *head, int group, uint8_t *v)
{
    const uint16_t *from = (const uint16_t *)(head + kv->k_scales);
    uint16_t *to = (uint16_t *)(v + kv->v_scales) + group * LANES;
    if (kv->type == PP_KV_FP8) {
        memcpy(to, from + group * LANES, LANES * sizeof *to);
        return;
    }
    from += group * (kv->head_pad / kv->scale_dims) * LANES;
    for (int b = 0; b < kv->v_pad / kv->scale_dims; b++, from += LANES, to += PP_PAGE_TOKENS)
        memcpy(to, from, LANES * sizeof *to);
}

/* Returns where V of each of a chunk's pages is. all: the positions that any query attends to. made: memory for the
 * result. */
static const uint8_t *const *value_pages(const struct pp_attention *a, const uint8_t *const *heads, struct pp_span all,
                                         const uint8_t *made[PP_CHUNK_PAGES])
{
    enum { IN_PAGE = PP_PAGE_TOKENS / LANES };
    const struct pp_kv_layout *kv = a->kv;
    if (!kv->v_in_k)
        return heads;
    for (int i = 0; i < PP_CHUNK_PAGES; i++)
        made[i] = a->values + (size_t)i * kv->v_bytes;
    for (int g = all.begin / LANES; g < (all.end + LANES - 1) / LANES; g++) {
        const uint8_t *head = heads[g / IN_PAGE];
        uint8_t *v = a->values + (size_t)(g / IN_PAGE) * kv->v_bytes;
        if (pp_kv_bytes(kv))
            q8_values_of_group(kv, head, g % IN_PAGE, v);
        else if (kv->type == PP_KV_Q4_0)
            q4_values_of_group(kv, head, g % IN_PAGE, v);
        else
            float_values_of_group(kv, head, g % IN_PAGE, v);
        if (kv->type != PP_KV_F32 && kv->type != PP_KV_F16)
            scales_of_group(kv, head, g % IN_PAGE, v);
    }
    return made;
}
