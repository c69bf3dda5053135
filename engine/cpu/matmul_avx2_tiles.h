/* matmul_avx2_tiles.h - products of many activation rows by quantised weights. Private to matmul_avx2.c and
 * matmul_blocks_avx2.c.
 *
 * A part of one group of 16 weight rows, TILE_BLOCKS blocks of 32 columns, is unpacked into a tile, exactly, and then
 * multiplied by up to TILE_ACTS activation rows while it is in the L1 cache. A weight type determines the form of its
 * tile and how a block is unpacked; there is one micro-kernel per form, which differ in how many products fit 16 bits
 * before they must be widened:
 *
 *   nibbles   unsigned, below 16, with a scale per row and block and perhaps a minimum
 *   fives     unsigned, below 32, with a minimum
 *   pairs     unsigned, below 4, with an integer scale and a minimum per 16 columns
 *   bytes     signed 6-bit, with an integer scale per 16 columns below the block's scale
 *   singles   likewise, up to 64 in magnitude: each sum of two products is widened
 *   words     any signed 8-bit, with a scale per row and block
 *   small     signed, -16 to 16, with an integer scale per 16 columns
 *
 * Of twins (matmul.h) the sums of two blocks are scaled together.
 *
 * Activations are first copied into panels of up to PANEL_ROWS rows, interleaved block by block: a micro-kernel's
 * accumulators are those of one panel and the 16 weight rows. */

enum { TILE_BLOCKS = 16, TILE_ACTS = 128, PANEL_ROWS = 4, MAX_FETCHING = 4 /* panels that prefetch weights */ };

/* One block of 16 rows. Slices as in pack.h: byte 4 r + i of q[v] is row r, column 4 v + i. */
struct nibble_block {
    uint8_t q[8][PP_SLICE];
    float d[16], min[16];
};

/* A weight is q * sc[column / 16]. Activations are the unsigned operand of vpmaddubsw, with 128 added; bias, -128 times
 * the sum of the weights over the columns, corrects for that. sc has two copies per row. */
struct byte_block {
    int8_t q[8][PP_SLICE];
    int16_t sc[2][32];
    int32_t bias[16];
    float d[16];
};

/* Words 2 r and 2 r + 1 of q[2 v] are row r, columns 4 v and 4 v + 2; of q[2 v + 1] columns 4 v + 1 and 4 v + 3, so
 * that a slice is unpacked by shifts. */
struct word_block {
    int16_t q[16][32];
    float d[16];
};

/* As bytes, but unsigned and so without bias. Bytes 4 r to 4 r + 3 of q[v] are row r, columns 2 v, 2 v + 1, 2 v + 16
 * and 2 v + 17, so that the 16-bit words 2 r and 2 r + 1 of their products each sum over 16 columns; those words of sc
 * are the scales. min: per 16 columns. */
struct pair_block {
    uint8_t q[8][PP_SLICE];
    int16_t sc[32];
    float d[16], min[2][16];
};

struct tile_scratch {
    union {
        struct pair_block pairs[TILE_BLOCKS];
        struct nibble_block nibbles[TILE_BLOCKS];
        struct byte_block bytes[TILE_BLOCKS];
        struct word_block words[TILE_BLOCKS];
    } w;
    /* panel by panel, each [n_blocks, rows of the panel] */
    float d[TILE_BLOCKS * TILE_ACTS];
    union {
        int32_t bias[TILE_BLOCKS * TILE_ACTS]; /* corrects for the offset in unsigned weights */
        float dsum[TILE_BLOCKS * TILE_ACTS];   /* d * sum, the factor of the minimum */
        float dsums[TILE_BLOCKS * TILE_ACTS][2]; /* the same per 16 columns */
    } extra;
    uint8_t q[TILE_BLOCKS * TILE_ACTS * 64] __attribute__((aligned(64)));
};

_Static_assert(sizeof(struct tile_scratch) <= PP_MATMUL_SCRATCH, "the tiles fit their scratch");

/* The form of a type's tile. */
enum tile_form {
    NIBBLES_BIASED, NIBBLES_MIN, FIVES_MIN, PAIR_TWINS, BYTES, BYTE_TWINS, SINGLES, SINGLE_TWINS, WORDS, SMALL,
    SMALL_TWINS
};

INLINE bool is_bytes(const enum tile_form form)
{
    return form == BYTES || form == BYTE_TWINS;
}

INLINE bool is_singles(const enum tile_form form)
{
    return form == SINGLES || form == SINGLE_TWINS;
}

INLINE bool is_small(const enum tile_form form)
{
    return form == SMALL || form == SMALL_TWINS;
}

/* How many blocks' sums are scaled together; a tile has a multiple of that. */
INLINE int blocks_scaled(const enum tile_form form)
{
    return form == BYTE_TWINS || form == SINGLE_TWINS || form == SMALL_TWINS || form == PAIR_TWINS ? 2 : 1;
}

INLINE size_t tile_act_bytes(const enum tile_form form) /* of a block of one row */
{
    return form == WORDS ? 64 : 32;
}

/* --- activations -------------------------------------------------------------------------------------------------- */

/* Copies a block of an activation row in the order, and with the offset, that the form's micro-kernel reads. */
INLINE void tile_act(const int8_t *from, uint8_t *to, const enum tile_form form)
{
    const __m256i order = _mm256_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15, 0, 2, 1, 3, 4, 6, 5, 7,
                                           8, 10, 9, 11, 12, 14, 13, 15);
    __m256i q = _mm256_loadu_si256((const __m256i *)from);
    if (form == WORDS) {
        q = _mm256_shuffle_epi8(q, order);
        _mm256_store_si256((__m256i *)to, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q)));
        _mm256_store_si256((__m256i *)(to + 32), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1)));
    } else {
        if (form == PAIR_TWINS) {
            const __m128i low = _mm256_castsi256_si128(q), high = _mm256_extracti128_si256(q, 1);
            q = _mm256_set_m128i(_mm_unpackhi_epi16(low, high), _mm_unpacklo_epi16(low, high));
        }
        if (is_bytes(form) || is_singles(form) || is_small(form))
            q = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
        _mm256_store_si256((__m256i *)to, q);
    }
}

/* The first row of panel p when m rows are divided evenly among n panels; that of p + 1 is the panel's end. */
INLINE int64_t panel_start(int64_t m, int64_t n, int64_t p)
{
    return m * p / n;
}

/* A piece of a row is so short that the processor's own prefetcher hardly begins. Two cores of a Zen 3, 256 rows of
 * 2,048 columns, medians of two runs of 21 turns, G multiply-adds/s without and with it: Q4_K 90 and 95, 95 and 102;
 * Q8_0 44 and 43, 64 and 66; Q2_K 83 and 84, 77 and 81. */
INLINE void prefetch_blocks(const int8_t *q, const float *d, const int32_t *sum, int64_t n_blocks)
{
    for (int64_t b = 0; b < n_blocks; b += 2)
        __builtin_prefetch(q + 32 * b);
    __builtin_prefetch(d);
    __builtin_prefetch(sum);
}

/* Copies rows [row, row + m) of x, blocks [block0, block0 + n_blocks), into n_panels panels. */
INLINE void tile_acts(struct tile_scratch *s, const struct pp_acts *x, int64_t row, int64_t m, int64_t n_panels,
                      int64_t block0, int64_t n_blocks, const enum tile_form form)
{
    enum { ROWS_AHEAD = 4 };
    const size_t bytes = tile_act_bytes(form);
    for (int64_t p = 0; p < n_panels; p++) {
        int64_t first = panel_start(m, n_panels, p), rows = panel_start(m, n_panels, p + 1) - first;
        for (int64_t i = 0; i < rows; i++) {
            const int8_t *q = x->q + (row + first + i) * x->q_stride + 32 * block0;
            const float *d = x->d + (row + first + i) * x->b_stride + block0;
            const int32_t *sum = x->sum + (row + first + i) * x->b_stride + block0;
            if (first + i + ROWS_AHEAD < m)
                prefetch_blocks(q + ROWS_AHEAD * x->q_stride, d + ROWS_AHEAD * x->b_stride,
                                sum + ROWS_AHEAD * x->b_stride, n_blocks);
            for (int64_t b = 0; b < n_blocks; b++) {
                int64_t at = first * n_blocks + b * rows + i;
                tile_act(q + 32 * b, s->q + bytes * (size_t)at, form);
                s->d[at] = d[b];
                if (form == NIBBLES_BIASED)
                    s->extra.bias[at] = -8 * sum[b];
                else if (form == NIBBLES_MIN || form == FIVES_MIN)
                    s->extra.dsum[at] = d[b] * (float)sum[b];
                else if (form == PAIR_TWINS)
                    act_dsums_of_16(q + 32 * b, d[b], s->extra.dsums[at]);
            }
        }
    }
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Each micro-kernel adds to acc [M][16] the products of n_blocks blocks of the tile by a panel of M rows; q, d and the
 * third are where the panel begins. Meanwhile it prefetches the packed weights to come, block by block. */

struct ahead {
    const uint8_t *at;
    size_t bytes; /* per block */
};

INLINE void fetch_next(struct ahead *next)
{
    for (size_t i = 0; i < next->bytes; i += 64)
        fetch_line(next->at, i);
    next->at = (const uint8_t *)((uintptr_t)next->at + next->bytes);
}

INLINE __m256i load_i(const void *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

INLINE __m256i broadcast4(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Forces a sum to be computed here: compilers like to defer them, and then run out of registers. */
INLINE __m256i now(__m256i v)
{
    __asm__("" : "+x"(v));
    return v;
}

INLINE __m256i widen(__m256i words)
{
    return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
}

/* acc += (d * dx) * isum */
INLINE __m256 scaled(__m256 acc, __m256 d, float dx, __m256i isum)
{
    return _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(isum), acc);
}

/* Keeps a vector in its register and operations on it in source order: a hyper-thread that shares its core has a window
 * of no more than 128 instructions, so dependent chains must be interleaved in the code. */
INLINE __m256 here(__m256 v)
{
    __asm__("" : "+x"(v));
    return v;
}

/* a [2 halves][M rows] -= min [16] times the rows' dsum, which lie `step` apart. */
INLINE void less_minimum(const float *min, const float *dsum, const int step, __m256 (*a)[PANEL_ROWS], const int M)
{
    const __m256 min0 = here(_mm256_load_ps(min)), min1 = here(_mm256_load_ps(min + 8));
    UNROLL for (int i = 0; i < M; i++)
    {
        const __m256 x = _mm256_set1_ps(dsum[step * i]);
        a[0][i] = here(_mm256_fnmadd_ps(min0, x, a[0][i]));
        a[1][i] = here(_mm256_fnmadd_ps(min1, x, a[1][i]));
    }
}

/* The 16-bit sums of slices v0 to v1 - 1 times M rows. */
INLINE void unsigned_words(const uint8_t (*w)[PP_SLICE], const uint8_t *q, const int v0, const int v1,
                           __m256i (*words)[PANEL_ROWS], const int M)
{
    UNROLL for (int v = v0; v < v1; v++)
    {
        __m256i w0 = load_i(w[v]), w1 = load_i(w[v] + 32);
        UNROLL for (int i = 0; i < M; i++)
        {
            __m256i x = broadcast4(q + 32 * i + 4 * v);
            __m256i two0 = _mm256_maddubs_epi16(w0, x), two1 = _mm256_maddubs_epi16(w1, x);
            words[0][i] = now(v > v0 ? _mm256_add_epi16(words[0][i], two0) : two0);
            words[1][i] = now(v > v0 ? _mm256_add_epi16(words[1][i], two1) : two1);
        }
    }
}

/* 8 sums of at most 2 * 15 * 127 fit 16 bits: a whole block is summed before it is widened. */
INLINE void nibble_product(const struct nibble_block *w, int64_t n_blocks, const uint8_t *q, const float *d,
                           const int32_t *bias, const float *dsum, struct ahead next, float (*acc)[16], const int M)
{
    for (int64_t b = 0; b < n_blocks; b++, w++, q += 32 * M, d += M) {
        fetch_next(&next);
        __m256i words[2][PANEL_ROWS];
        unsigned_words(w->q, q, 0, 8, words, M);
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int h = 0; h < 2; h++)
            {
                __m256i isum = widen(words[h][i]);
                if (bias)
                    isum = _mm256_add_epi32(isum, _mm256_set1_epi32(bias[b * M + i]));
                __m256 a = scaled(_mm256_load_ps(acc[i] + 8 * h), _mm256_load_ps(w->d + 8 * h), d[i], isum);
                if (dsum)
                    a = _mm256_fnmadd_ps(_mm256_load_ps(w->min + 8 * h), _mm256_set1_ps(dsum[b * M + i]), a);
                _mm256_store_ps(acc[i] + 8 * h, a);
            }
    }
}

/* 4 sums of at most 2 * 31 * 127 fit 16 bits: half a block is summed before it is widened. */
INLINE void five_product(const struct nibble_block *w, int64_t n_blocks, const uint8_t *q, const float *d,
                         const float *dsum, struct ahead next, float (*acc)[16], const int M)
{
    for (int64_t b = 0; b < n_blocks; b++, w++, q += 32 * M, d += M, dsum += M) {
        fetch_next(&next);
        __m256i isum[2][PANEL_ROWS], words[2][PANEL_ROWS];
        UNROLL for (int v = 0; v < 8; v += 4)
        {
            unsigned_words(w->q, q, v, v + 4, words, M);
            UNROLL for (int i = 0; i < M; i++)
                UNROLL for (int h = 0; h < 2; h++)
                    isum[h][i] = v ? _mm256_add_epi32(isum[h][i], widen(words[h][i])) : widen(words[h][i]);
        }
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int h = 0; h < 2; h++)
            {
                __m256 a = scaled(_mm256_load_ps(acc[i] + 8 * h), _mm256_load_ps(w->d + 8 * h), d[i], isum[h][i]);
                a = _mm256_fnmadd_ps(_mm256_load_ps(w->min + 8 * h), _mm256_set1_ps(dsum[i]), a);
                _mm256_store_ps(acc[i] + 8 * h, a);
            }
    }
}

/* 8 sums of at most 2 * 3 * 127 fit 16 bits; the multiplication by their scales, at most 15, widens them. */
INLINE void pair_product(const struct pair_block *w, int64_t n_blocks, const uint8_t *q, const float *d,
                         const float (*dsums)[2], struct ahead next, float (*acc)[16], const int M)
{
    for (int64_t b = 0; b < n_blocks; b += 2, w += 2, d += 2 * M, dsums += 2 * M) {
        __m256i isum[2][PANEL_ROWS];
        __m256 a[2][PANEL_ROWS];
        UNROLL for (int t = 0; t < 2; t++, q += 32 * M)
        {
            fetch_next(&next);
            __m256i words[2][PANEL_ROWS];
            unsigned_words(w[t].q, q, 0, 8, words, M);
            UNROLL for (int h = 0; h < 2; h++)
                UNROLL for (int i = 0; i < M; i++)
                {
                    __m256i some = _mm256_madd_epi16(words[h][i], load_i(w[t].sc + 16 * h));
                    isum[h][i] = t ? _mm256_add_epi32(isum[h][i], some) : some;
                }
        }
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int h = 0; h < 2; h++)
                a[h][i] = here(scaled(_mm256_load_ps(acc[i] + 8 * h), _mm256_load_ps(w->d + 8 * h), d[i],
                                      isum[h][i]));
        UNROLL for (int t = 0; t < 2; t++)
            UNROLL for (int k = 0; k < 2; k++)
                less_minimum(w[t].min[k], dsums[t * M] + k, 2, a, M);
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int h = 0; h < 2; h++)
                _mm256_store_ps(acc[i] + 8 * h, a[h][i]);
    }
}

/* The initial sums of 8 weight rows in a block; `sum`: those of the first twin, if this is the second. */
INLINE __m256i begin_at(const int32_t *bias, bool second, __m256i sum)
{
    return second ? _mm256_add_epi32(sum, load_i(bias)) : load_i(bias);
}

/* Scales the integer sums of a block, or of twins, by the scale of block *w and adds them to acc. */
INLINE void add_sums(const struct byte_block *w, const float *d, __m256i (*isum)[PANEL_ROWS], float (*acc)[16],
                     const int M)
{
    UNROLL for (int i = 0; i < M; i++)
        UNROLL for (int h = 0; h < 2; h++)
            _mm256_store_ps(acc[i] + 8 * h, scaled(_mm256_load_ps(acc[i] + 8 * h), _mm256_load_ps(w->d + 8 * h), d[i],
                                                   isum[h][i]));
}

/* 4 products of at most 255 * 32 fit 16 bits. */
INLINE void byte_product(const struct byte_block *w, int64_t n_blocks, const uint8_t *q, const float *d,
                         struct ahead next, float (*acc)[16], const int together, const int M)
{
    for (int64_t b = 0; b < n_blocks; b += together, d += together * M) {
        __m256i isum[2][PANEL_ROWS];
        UNROLL for (int t = 0; t < together; t++, w++, q += 32 * M)
        {
            fetch_next(&next);
            UNROLL for (int v = 0; v < 8; v += 2)
            {
                __m256i w00 = load_i(w->q[v]), w01 = load_i(w->q[v] + 32);
                __m256i w10 = load_i(w->q[v + 1]), w11 = load_i(w->q[v + 1] + 32);
                UNROLL for (int i = 0; i < M; i++)
                {
                    __m256i x0 = broadcast4(q + 32 * i + 4 * v), x1 = broadcast4(q + 32 * i + 4 * v + 4);
                    __m256i words0 = _mm256_add_epi16(_mm256_maddubs_epi16(x0, w00), _mm256_maddubs_epi16(x1, w10));
                    __m256i words1 = _mm256_add_epi16(_mm256_maddubs_epi16(x0, w01), _mm256_maddubs_epi16(x1, w11));
                    words0 = _mm256_madd_epi16(words0, load_i(w->sc[v / 4]));
                    words1 = _mm256_madd_epi16(words1, load_i(w->sc[v / 4] + 16));
                    const __m256i at0 = v ? isum[0][i] : begin_at(w->bias, t, isum[0][i]);
                    const __m256i at1 = v ? isum[1][i] : begin_at(w->bias + 8, t, isum[1][i]);
                    isum[0][i] = now(_mm256_add_epi32(at0, words0));
                    isum[1][i] = now(_mm256_add_epi32(at1, words1));
                }
            }
        }
        add_sums(w - 1, d, isum, acc, M);
    }
}

/* Only 2 products of at most 255 * 64 fit 16 bits. */
INLINE void single_product(const struct byte_block *w, int64_t n_blocks, const uint8_t *q, const float *d,
                           struct ahead next, float (*acc)[16], const int together, const int M)
{
    for (int64_t b = 0; b < n_blocks; b += together, d += together * M) {
        __m256i isum[2][PANEL_ROWS];
        UNROLL for (int t = 0; t < together; t++, w++, q += 32 * M)
        {
            fetch_next(&next);
            UNROLL for (int v = 0; v < 8; v++)
            {
                __m256i w0 = load_i(w->q[v]), w1 = load_i(w->q[v] + 32);
                __m256i sc0 = load_i(w->sc[v / 4]), sc1 = load_i(w->sc[v / 4] + 16);
                UNROLL for (int i = 0; i < M; i++)
                {
                    __m256i x = broadcast4(q + 32 * i + 4 * v);
                    __m256i two0 = _mm256_madd_epi16(_mm256_maddubs_epi16(x, w0), sc0);
                    __m256i two1 = _mm256_madd_epi16(_mm256_maddubs_epi16(x, w1), sc1);
                    const __m256i at0 = v ? isum[0][i] : begin_at(w->bias, t, isum[0][i]);
                    const __m256i at1 = v ? isum[1][i] : begin_at(w->bias + 8, t, isum[1][i]);
                    isum[0][i] = now(_mm256_add_epi32(at0, two0));
                    isum[1][i] = now(_mm256_add_epi32(at1, two1));
                }
            }
        }
        add_sums(w - 1, d, isum, acc, M);
    }
}

INLINE void word_product(const struct word_block *w, int64_t n_blocks, const uint8_t *q, const float *d,
                         struct ahead next, float (*acc)[16], const int M)
{
    for (int64_t b = 0; b < n_blocks; b++, w++, q += 64 * M, d += M) {
        fetch_next(&next);
        __m256i isum[2][PANEL_ROWS];
        UNROLL for (int k = 0; k < 16; k++)
        {
            __m256i w0 = load_i(w->q[k]), w1 = load_i(w->q[k] + 16);
            UNROLL for (int i = 0; i < M; i++)
            {
                __m256i x = broadcast4(q + 64 * i + 4 * k);
                __m256i two0 = _mm256_madd_epi16(w0, x), two1 = _mm256_madd_epi16(w1, x);
                isum[0][i] = now(k ? _mm256_add_epi32(isum[0][i], two0) : two0);
                isum[1][i] = now(k ? _mm256_add_epi32(isum[1][i], two1) : two1);
            }
        }
        UNROLL for (int i = 0; i < M; i++)
            UNROLL for (int h = 0; h < 2; h++)
                _mm256_store_ps(acc[i] + 8 * h, scaled(_mm256_load_ps(acc[i] + 8 * h), _mm256_load_ps(w->d + 8 * h),
                                                       d[i], isum[h][i]));
    }
}

/* isum += the products of a block by a panel; see begin_at(). 8 products of at most 255 * 16 fit 16 bits. */
INLINE void small_sums(const struct byte_block *w, const uint8_t *q, bool second, __m256i (*isum)[PANEL_ROWS],
                       const int M)
{
    UNROLL for (int k = 0; k < 2; k++)
    {
        __m256i words[2][PANEL_ROWS];
        UNROLL for (int v = 0; v < 4; v++)
        {
            __m256i w0 = load_i(w->q[4 * k + v]), w1 = load_i(w->q[4 * k + v] + 32);
            UNROLL for (int i = 0; i < M; i++)
            {
                __m256i x = broadcast4(q + 32 * i + 16 * k + 4 * v);
                __m256i two0 = _mm256_maddubs_epi16(x, w0), two1 = _mm256_maddubs_epi16(x, w1);
                words[0][i] = now(v ? _mm256_add_epi16(words[0][i], two0) : two0);
                words[1][i] = now(v ? _mm256_add_epi16(words[1][i], two1) : two1);
            }
        }
        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int i = 0; i < M; i++)
            {
                __m256i before = k ? isum[h][i] : begin_at(w->bias + 8 * h, second, isum[h][i]);
                isum[h][i] = _mm256_add_epi32(before, _mm256_madd_epi16(words[h][i], load_i(w->sc[k] + 16 * h)));
            }
    }
}

INLINE void small_product(const struct byte_block *w, int64_t n_blocks, const uint8_t *q, const float *d,
                          struct ahead next, float (*acc)[16], const int together, const int M)
{
    for (int64_t b = 0; b < n_blocks; b += together, w += together, d += together * M) {
        __m256i isum[2][PANEL_ROWS];
        UNROLL for (int t = 0; t < together; t++, q += 32 * M)
        {
            fetch_next(&next);
            small_sums(&w[t], q, t, isum, M);
        }
        add_sums(w, d, isum, acc, M);
    }
}

/* --- loops -------------------------------------------------------------------------------------------------------- */

/* The tile times one panel of M rows, into y [M, 16 weight rows], of which `live` exist. add: y continues sums of the
 * blocks before. */
INLINE void panel_product(const struct tile_scratch *s, int64_t tile0, int64_t n_tile, int64_t first, int64_t n_blocks,
                          bool add, struct ahead next, float *y, int64_t y_stride, int64_t live,
                          const enum tile_form form, const int M)
{
    float acc[PANEL_ROWS][16] __attribute__((aligned(64)));
    int64_t at = first * n_blocks + tile0 * M;
    const uint8_t *q = s->q + tile_act_bytes(form) * (size_t)at;
    UNROLL for (int i = 0; i < M; i++)
    {
        if (add && live == 16)
            memcpy(acc[i], y + i * y_stride, sizeof acc[i]);
        else
            memset(acc[i], 0, sizeof acc[i]);
        if (add && live != 16)
            memcpy(acc[i], y + i * y_stride, (size_t)live * sizeof acc[i][0]);
    }
    if (form == WORDS)
        word_product(s->w.words, n_tile, q, s->d + at, next, acc, M);
    else if (is_bytes(form))
        byte_product(s->w.bytes, n_tile, q, s->d + at, next, acc, blocks_scaled(form), M);
    else if (is_singles(form))
        single_product(s->w.bytes, n_tile, q, s->d + at, next, acc, blocks_scaled(form), M);
    else if (is_small(form))
        small_product(s->w.bytes, n_tile, q, s->d + at, next, acc, blocks_scaled(form), M);
    else if (form == PAIR_TWINS)
        pair_product(s->w.pairs, n_tile, q, s->d + at, s->extra.dsums + at, next, acc, M);
    else if (form == FIVES_MIN)
        five_product(s->w.nibbles, n_tile, q, s->d + at, s->extra.dsum + at, next, acc, M);
    else
        nibble_product(s->w.nibbles, n_tile, q, s->d + at, form == NIBBLES_BIASED ? s->extra.bias + at : NULL,
                       form == NIBBLES_MIN ? s->extra.dsum + at : NULL, next, acc, M);
    UNROLL for (int i = 0; i < M; i++)
    {
        if (live == 16)
            memcpy(y + i * y_stride, acc[i], sizeof acc[i]);
        else
            memcpy(y + i * y_stride, acc[i], (size_t)live * sizeof acc[i][0]);
    }
}

/* Unpacks block b of a group into the type's form. */
typedef void unpack_fn(const uint8_t *group, int64_t n_cols, int64_t b, void *block);

INLINE void *tile_block(struct tile_scratch *s, int64_t b, const enum tile_form form)
{
    if (form == WORDS)
        return s->w.words + b;
    if (is_bytes(form) || is_singles(form) || is_small(form))
        return s->w.bytes + b;
    if (form == PAIR_TWINS)
        return s->w.pairs + b;
    return s->w.nibbles + b;
}

/* The packed weights of the next tile, to prefetch: of this group from block b on, or with `turn` of the next group
 * from block0 on. */
INLINE struct ahead tile_ahead(const struct pp_matrix *w, const uint8_t *group, int64_t b, bool turn, int64_t block0)
{
    bool scales_first = w->type == PP_TYPE_Q8_0 || w->type == PP_TYPE_Q4_0;
    size_t begin = scales_first ? pp_pack_scale_bytes(w->n_cols) : pp_pack_head_bytes(w->type, w->n_cols);
    size_t all = pp_pack_group_bytes(w->type, w->n_cols);
    size_t bytes = (all - begin) / (size_t)(w->n_cols / 32);
    size_t distance = turn ? all + begin + bytes * (size_t)block0 : begin + bytes * (size_t)b;
    return (struct ahead){(const uint8_t *)((uintptr_t)group + distance), bytes};
}

/* One group times the m prepared rows, over the n_blocks prepared blocks from block0 on. There are more than `few`
 * rows, for which tiles are not used; so no panel has a single row, and with 6 rows or more none has fewer than 3. */
INLINE void group_product(struct tile_scratch *s, const struct pp_matrix *w, int64_t row, int64_t live, int64_t m,
                          int64_t n_panels, int64_t block0, int64_t n_blocks, float *y, int64_t y_stride,
                          unpack_fn *unpack, const enum tile_form form, const int few)
{
    const uint8_t *group = pp_pack_group(w, row);
    for (int64_t t = 0; t < n_blocks; t += TILE_BLOCKS) {
        int64_t n_tile = n_blocks - t < TILE_BLOCKS ? n_blocks - t : TILE_BLOCKS;
        bool add = block0 + t > 0;
        for (int64_t b = 0; b < n_tile; b++)
            unpack(group, w->n_cols, block0 + t + b, tile_block(s, b, form));
        const struct ahead next = tile_ahead(w, group, block0 + t + n_tile, t + n_tile == n_blocks, block0);
        int64_t fetching = n_panels < MAX_FETCHING ? n_panels : MAX_FETCHING;
        for (int64_t p = 0; p < n_panels; p++) {
            int64_t first = panel_start(m, n_panels, p);
            float *out = y + first * y_stride;
            size_t part = next.bytes / (size_t)fetching, offset = part * (size_t)(p * n_tile);
            struct ahead share = {(const uint8_t *)((uintptr_t)next.at + offset), p < fetching ? part : 0};
            switch (panel_start(m, n_panels, p + 1) - first) {
            case 2:
                if (few < 5)
                    panel_product(s, t, n_tile, first, n_blocks, add, share, out, y_stride, live, form, 2);
                break;
            case 3:
                panel_product(s, t, n_tile, first, n_blocks, add, share, out, y_stride, live, form, 3);
                break;
            default:
                panel_product(s, t, n_tile, first, n_blocks, add, share, out, y_stride, live, form, PANEL_ROWS);
            }
        }
    }
}

/* Activations are prepared for as many blocks as there is room for; with few rows that is all of them, and then the
 * weights are read from front to back. */
INLINE void matmul_tiles(const struct pp_matrix *w, int64_t row0, int64_t row1, const struct pp_acts *x, int64_t m,
                         float *y, int64_t y_stride, struct tile_scratch *s, unpack_fn *unpack,
                         const enum tile_form form, const int few)
{
    int64_t all = w->n_cols / 32, n_parts = (m + TILE_ACTS - 1) / TILE_ACTS;
    for (int64_t part = 0; part < n_parts; part++) {
        int64_t i = panel_start(m, n_parts, part), rows = panel_start(m, n_parts, part + 1) - i;
        int64_t n_panels = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
        int64_t most = TILE_BLOCKS * TILE_ACTS / rows / TILE_BLOCKS * TILE_BLOCKS;
        for (int64_t b = 0; b < all; b += most) {
            int64_t n = all - b < most ? all - b : most;
            tile_acts(s, x, i, rows, n_panels, b, n, form);
            for (int64_t row = row0; row < row1; row += PP_GROUP_ROWS) {
                int64_t live = row1 - row < PP_GROUP_ROWS ? row1 - row : PP_GROUP_ROWS;
                group_product(s, w, row, live, rows, n_panels, b, n, y + i * y_stride + row, y_stride, unpack, form,
                              few);
            }
        }
    }
}

/* --- types -------------------------------------------------------------------------------------------------------- */

INLINE __m256 halves(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256 unsigned_bytes(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

INLINE void unpack_q8_0(const uint8_t *group, int64_t n_cols, int64_t b, void *block)
{
    struct word_block *to = block;
    const uint8_t *q = group + pp_pack_scale_bytes(n_cols) + 8 * PP_SLICE * b;
    UNROLL for (int h = 0; h < 2; h++)
    {
        _mm256_store_ps(to->d + 8 * h, halves(group + 32 * b + 16 * h));
        UNROLL for (int v = 0; v < 8; v++)
        {
            __m256i w = _mm256_xor_si256(load_i(q + PP_SLICE * v + 32 * h), _mm256_set1_epi8(-128));
            __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), odd = _mm256_srai_epi16(w, 8);
            _mm256_store_si256((__m256i *)(to->q[2 * v] + 16 * h), even);
            _mm256_store_si256((__m256i *)(to->q[2 * v + 1] + 16 * h), odd);
        }
    }
}

INLINE void unpack_q4_0(const uint8_t *group, int64_t n_cols, int64_t b, void *block)
{
    const __m256i low = _mm256_set1_epi8(15);
    struct nibble_block *to = block;
    const uint8_t *q = group + pp_pack_scale_bytes(n_cols) + 4 * PP_SLICE * b;
    UNROLL for (int h = 0; h < 2; h++)
    {
        _mm256_store_ps(to->d + 8 * h, halves(group + 32 * b + 16 * h));
        UNROLL for (int v = 0; v < 4; v++)
        {
            __m256i w = load_i(q + PP_SLICE * v + 32 * h);
            _mm256_store_si256((__m256i *)(to->q[v] + 32 * h), _mm256_and_si256(w, low));
            _mm256_store_si256((__m256i *)(to->q[v + 4] + 32 * h), _mm256_and_si256(_mm256_srli_epi16(w, 4), low));
        }
    }
}

INLINE void unpack_q4_k(const uint8_t *group, int64_t n_cols, int64_t b, void *block)
{
    (void)n_cols;
    const __m256i low = _mm256_set1_epi8(15);
    const struct pp_q4_k_pack *p = (const struct pp_q4_k_pack *)group + b / 8;
    struct nibble_block *to = block;
    int sub = (int)(b % 8), shift = sub % 2 * 4;
    UNROLL for (int h = 0; h < 2; h++)
    {
        int r = 8 * h;
        _mm256_store_ps(to->d + r, _mm256_mul_ps(halves(p->d + r), unsigned_bytes(p->sc[sub] + r)));
        _mm256_store_ps(to->min + r, _mm256_mul_ps(halves(p->dmin + r), unsigned_bytes(p->m[sub] + r)));
        UNROLL for (int v = 0; v < 8; v++)
        {
            __m256i w = _mm256_srl_epi16(load_i(p->q[sub / 2][v] + 32 * h), _mm_cvtsi32_si128(shift));
            _mm256_store_si256((__m256i *)(to->q[v] + 32 * h), _mm256_and_si256(w, low));
        }
    }
}

/* Removes the offset of 32 from two slices of weights and stores them; returns sc times each row's sum over columns. */
INLINE __m256i put_q6_k(struct byte_block *to, int v, int h, __m256i w0, __m256i w1, __m256i sc)
{
    const __m256i offset = _mm256_set1_epi8(32), ones = _mm256_set1_epi8(1);
    w0 = _mm256_sub_epi8(w0, offset);
    w1 = _mm256_sub_epi8(w1, offset);
    _mm256_store_si256((__m256i *)(to->q[v] + 32 * h), w0);
    _mm256_store_si256((__m256i *)(to->q[v + 1] + 32 * h), w1);
    __m256i sums = _mm256_add_epi16(_mm256_maddubs_epi16(ones, w0), _mm256_maddubs_epi16(ones, w1));
    return _mm256_madd_epi16(sums, sc);
}

INLINE void unpack_q6_k(const uint8_t *group, int64_t n_cols, int64_t b, void *block)
{
    (void)n_cols;
    const __m256i low = _mm256_set1_epi8(15), bits45 = _mm256_set1_epi8(0x30);
    const __m256i bits25 = _mm256_set1_epi8(0x3c), bits01 = _mm256_set1_epi8(3);
    const struct pp_q6_k_pack *p = (const struct pp_q6_k_pack *)group + b / 8;
    struct byte_block *to = block;
    int in = (int)(b % 8);
    UNROLL for (int h = 0; h < 2; h++)
    {
        __m256i sc[2], sum = _mm256_setzero_si256();
        _mm256_store_ps(to->d + 8 * h, halves(p->d + 8 * h));
        UNROLL for (int k = 0; k < 2; k++)
        {
            __m256i one = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p->sc[2 * in + k] + 8 * h)));
            sc[k] = _mm256_blend_epi16(one, _mm256_slli_epi32(one, 16), 0xaa);
            _mm256_store_si256((__m256i *)(to->sc[k] + 16 * h), sc[k]);
        }
        UNROLL for (int v = 0; v < 4; v += 2)
        {
            __m256i w0 = load_i(p->q[in].low[v] + 32 * h), w1 = load_i(p->q[in].low[v + 1] + 32 * h);
            __m256i high = load_i(p->q[in].high[v / 2] + 32 * h), high2 = _mm256_srli_epi16(high, 2);
            __m256i first0 = _mm256_or_si256(_mm256_and_si256(w0, low), _mm256_and_si256(high, bits45));
            __m256i first1 = _mm256_or_si256(_mm256_and_si256(w1, low), _mm256_and_si256(high2, bits45));
            __m256i then0 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(w0, 2), bits25),
                                            _mm256_and_si256(high2, bits01));
            __m256i then1 = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(w1, 2), bits25),
                                            _mm256_and_si256(high, bits01));
            sum = _mm256_add_epi32(sum, put_q6_k(to, v, h, first0, first1, sc[0]));
            sum = _mm256_add_epi32(sum, put_q6_k(to, v + 4, h, then0, then1, sc[1]));
        }
        sum = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7));
        _mm256_store_si256((__m256i *)(to->bias + 8 * h), sum);
    }
}
