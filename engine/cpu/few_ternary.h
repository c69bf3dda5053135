/* few_ternary.h - products of TQ1_0 weights with a few activation rows that do not extract the ternary digits. Included
 * by unpack_units_body.h, whose vectors and functions it uses.
 *
 * A byte r_0 holds five digits of base 3: with r_{k+1} = 3 r_k mod 256, digit k is (3 r_k - r_{k+1}) / 256. Therefore,
 * exactly,
 *
 *   sum of digit_k x = (3 * sum of r_k x - sum of r_{k+1} x) / 256
 *
 * over the columns of a block, x being their activations. For 4 columns this takes two byte dot products, and two
 * additions to get the next r; extracting digits by comparing r with 86 and 171 would take one dot product, but four
 * more instructions. */

enum { TERNARY_BLOCKS = 8, TERNARY_ROWS = 4 /* at most */ };

/* The two integer sums of a block of 32 columns, both below 2^22 in magnitude, start at the bits of floats whose last
 * bit is worth 1 and -1/256, so that no conversion is needed: read as floats they are
 *
 *   1.5 * 2^23 + sum of r_k x     and     -1.5 * 2^15 - (sum of r_{k+1} x + 256 * sum of x) / 256
 *
 * and 3/256 times the first plus the second is the integer SUMS_AT + sum of (digit_k - 1) x. */
static const uint32_t SECOND_BITS = 0xc7400000;
static const float SUMS_AT = 98304.0f;

/* 256 columns of up to TERNARY_ROWS activation rows. */
struct ternary_acts {
    const int8_t *q[TERNARY_ROWS];
    const float *d[TERNARY_ROWS];
    uint32_t second[TERNARY_ROWS][TERNARY_BLOCKS]; /* where the second sum of a block starts */
};

typedef uint32_t eight_sums __attribute__((vector_size(4 * TERNARY_BLOCKS)));

UNPACK struct ternary_acts ternary_acts(const struct few_job *job, int64_t at, const int M)
{
    struct ternary_acts x;
    UNPACK_UNROLL for (int i = 0; i < M; i++)
    {
        const struct side *side = job->side + at / CHUNK * M + i;
        eight_sums bias;
        memcpy(&bias, side->bias[0] + at % CHUNK, sizeof bias);
        bias = (eight_sums){0} + SECOND_BITS - (bias << 8);
        memcpy(x.second[i], &bias, sizeof bias);
        x.q[i] = job->q + i * job->q_stride + PP_ACT_BLOCK * at;
        x.d[i] = side->d + at % CHUNK;
    }
    return x;
}

/* Which of the vectors r holds the digits of block b's columns 4 v to 4 v + 3 (TQ1_0 in quant_blocks.h). */
UNPACK int ternary_bytes(const int b, const int v)
{
    return b < 5 || v < 4 ? v : b < 7 ? v - 4 : 4;
}

/* acc += the contribution of block b. Advances the vectors r it uses from r_k to r_{k+1}. */
UNPACK void ternary_product(uvec *r, const int b, fvec d, const struct ternary_acts *x, fvec *acc, const int M)
{
    ivec first[TERNARY_ROWS], second[TERNARY_ROWS];
    UNPACK_UNROLL for (int i = 0; i < M; i++)
    {
        first[i] = (ivec){0} + MAGIC_BITS;
        second[i] = (ivec)((uvec){0} + x->second[i][b]);
    }
    UNPACK_UNROLL for (int v = 0; v < SLICES; v++)
    {
        uvec *from = r + ternary_bytes(b, v);
        const bvec byte = (bvec)*from, next = byte + byte + byte;
        UNPACK_UNROLL for (int i = 0; i < M; i++)
        {
            const int8_t *q = x->q[i] + PP_ACT_BLOCK * b + 4 * v;
            first[i] = dot4(first[i], *from, q);
            second[i] = dot4(second[i], (uvec)next, q);
        }
        *from = (uvec)next;
    }
    UNPACK_UNROLL for (int i = 0; i < M; i++)
    {
        const fvec sum = fma_rows(float_bits(first[i]), (fvec){0} + 3.0f / 256, float_bits(second[i])) - SUMS_AT;
        acc[i] = fma_rows(d * x->d[i][b], sum, acc[i]);
    }
}

/* acc += the contribution of 256 columns of ROWS weight rows, from `row` of the group on. */
UNPACK void ternary_columns(struct packed_at p, int row, const struct ternary_acts *x, fvec *acc, const int M)
{
    const struct pp_tq1_0_pack *k = (const void *)p.body;
    const fvec d = rows_f16(p.head + 2 * row);
    uvec r[SLICES];
    UNPACK_UNROLL for (int v = 0; v < SLICES; v++)
        r[v] = load_u(k->q[v] + 4 * row);
    UNPACK_UNROLL for (int b = 0; b < 5; b++)
        ternary_product(r, b, d, x, acc, M);
    UNPACK_UNROLL for (int v = 0; v < 4; v++)
        r[v] = load_u(k->q[8 + v] + 4 * row);
    r[4] = load_u(k->high + 4 * row);
    UNPACK_UNROLL for (int b = 5; b < TERNARY_BLOCKS; b++)
        ternary_product(r, b, d, x, acc, M);
}

/* n blocks of a group from block b on, both multiples of 8, times M activation rows. */
UNPACK void ternary_group(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, const struct few_job *job,
                          const int M)
{
    enum { PARTS_OF_GROUP = PP_GROUP_ROWS / ROWS };
    const size_t pace = pp_pack_group_bytes(PP_TYPE_TQ1_0, n_cols) / (size_t)(n_cols / PP_ACT_BLOCK);
    fvec acc[PARTS_OF_GROUP][TERNARY_ROWS];
    UNPACK_UNROLL for (int part = 0; part < PARTS_OF_GROUP; part++)
        UNPACK_UNROLL for (int i = 0; i < M; i++)
            memcpy(acc[part] + i, job->acc[i] + part * ROWS, sizeof **acc);
    for (int64_t at = 0; at < n; at += TERNARY_BLOCKS) {
        const struct ternary_acts x = ternary_acts(job, at, M);
        const struct packed_at p = packed_at(PP_TYPE_TQ1_0, group, n_cols, b + at);
        stream_ahead(group + pace * (size_t)(b + at), pace * TERNARY_BLOCKS, job->how);
        UNPACK_UNROLL for (int part = 0; part < PARTS_OF_GROUP; part++)
            ternary_columns(p, part * ROWS, &x, acc[part], M);
    }
    UNPACK_UNROLL for (int part = 0; part < PARTS_OF_GROUP; part++)
        UNPACK_UNROLL for (int i = 0; i < M; i++)
            memcpy(job->acc[i] + part * ROWS, acc[part] + i, sizeof **acc);
}

UNPACK void few_ternary(const uint8_t *group, int64_t n_cols, int64_t b, int64_t n, const struct few_job *job)
{
    switch (job->m) {
    case 1:
        ternary_group(group, n_cols, b, n, job, 1);
        break;
    case 2:
        ternary_group(group, n_cols, b, n, job, 2);
        break;
    case 3:
        ternary_group(group, n_cols, b, n, job, 3);
        break;
    default:
        ternary_group(group, n_cols, b, n, job, 4);
    }
}
