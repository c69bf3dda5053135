#include "engine/cpu/ops.h"

#include "engine/cpu/ops_tables.h"

static const struct pp_cpu_ops *const tables[PP_ISA_COUNT] = {
#if defined(__x86_64__) && !defined(PP_SCALAR_ONLY)
    [PP_ISA_AVX2] = &pp_ops_avx2,
    [PP_ISA_AVXVNNI] = &pp_ops_avxvnni,
    [PP_ISA_AVX512] = &pp_ops_avx512,
    [PP_ISA_AMX] = &pp_ops_amx,
#endif
#if defined(__aarch64__) && !defined(PP_SCALAR_ONLY)
    [PP_ISA_NEON] = &pp_ops_neon,
    [PP_ISA_DOTPROD] = &pp_ops_dotprod,
    [PP_ISA_I8MM] = &pp_ops_dotprod,
#endif
};

/* What attention_amx.h wants in `tiles` besides the queries: sums, a chunk's V, and weights once more. */
static size_t tile_bytes(size_t n_blocks)
{
    return (size_t)PP_ATTENTION_SUM_TILES * 1024 + n_blocks * PP_KV_BLOCK * PP_KV_CHUNK +
           n_blocks * PP_PART_QUERIES * PP_KV_CHUNK * sizeof(int16_t);
}

/* Gives each array its place and returns the end; memory may be NULL, to measure. */
static size_t lay_out(struct pp_attention *a, const struct pp_kv_layout *kv, int n_q, uint8_t *memory)
{
    size_t n = (size_t)n_q, pad = (size_t)(kv->head_pad > kv->v_pad ? kv->head_pad : kv->v_pad), at = 0;
    size_t n_blocks = (pad + PP_KV_BLOCK - 1) / PP_KV_BLOCK;
#define PLACE(field, count)                                                                                            \
    (a->field = memory ? (void *)(memory + at) : NULL, at += ((count) * sizeof *a->field + 63) / 64 * 64)
    PLACE(q, pad * n);
    PLACE(q_words, pad / 2 * n);
    PLACE(q_scale, n_blocks * n);
    PLACE(q_start, n_blocks * n);
    PLACE(v_scale, n_blocks * PP_KV_CHUNK);
    PLACE(v_log, PP_KV_CHUNK);
    PLACE(p, PP_PART_QUERIES * PP_KV_CHUNK);
    PLACE(w, n_blocks * PP_PART_QUERIES * PP_KV_CHUNK);
    a->tiles_fixed = n_blocks * ((n + 15) / 16) * 1024;
    PLACE(tiles, pp_kv_bytes(kv) ? a->tiles_fixed + tile_bytes(n_blocks) : 0);
    PLACE(o, PP_PART_QUERIES * pad);
    PLACE(values, kv->v_in_k ? PP_CHUNK_PAGES * kv->v_bytes : 0);
    PLACE(total.m, n);
    PLACE(total.l, n);
    PLACE(total.o, n * pad);
#undef PLACE
    return at;
}

size_t pp_attention_bytes(const struct pp_kv_layout *kv, int n_q)
{
    struct pp_attention a;
    return lay_out(&a, kv, n_q, NULL);
}

void pp_attention_init(struct pp_attention *a, const struct pp_kv_layout *kv, int n_q, void *memory)
{
    a->kv = kv;
    lay_out(a, kv, n_q, memory);
}

const struct pp_cpu_ops *pp_cpu_ops(enum pp_isa isa)
{
    return tables[isa] ? tables[isa] : PP_BY_FMA(&pp_ops_scalar, &pp_ops_fma);
}
