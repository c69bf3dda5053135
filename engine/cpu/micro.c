/* micro.c - measures the product kernels by themselves: multiplies a matrix of random weights piece by piece, as a pass
 * does. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/bench.h"
#include "engine/cpu/matmul.h"
#include "engine/random_rows.h"

struct pp_micro {
    struct pp_matrix w;
    void *data;             /* of w */
    uint64_t row_bytes;     /* of a weight row as it is stored in files */
    int64_t stride;         /* of activations: n_cols rounded up to 64 */
    float *x;               /* [PP_MICRO_MAX_ROWS, stride] */
    int8_t *q;              /* the same, quantised */
    float *d;               /* [PP_MICRO_MAX_ROWS, stride / 32] */
    int32_t *sum;
    float *y;               /* [PP_MICRO_MAX_ROWS, n_rows] */
    void *scratch;
    int64_t at;             /* next row of the matrix */
};

/* Zeroed memory on whole cache lines. */
static void *take(size_t bytes)
{
    void *p = pp_aligned(64, (bytes + 63) / 64 * 64);
    if (p)
        memset(p, 0, (bytes + 63) / 64 * 64);
    return p;
}

/* Fills the matrix with random rows, and packs them if the type is packed. False: out of memory. */
static bool make_matrix(struct pp_micro *t, struct pp_random *random)
{
    struct pp_matrix *w = &t->w;
    uint8_t *plain = take(t->row_bytes * (size_t)w->n_rows);
    if (!plain)
        return false;
    for (int64_t r = 0; r < w->n_rows; r++)
        pp_random_row(random, w->type, w->n_cols, plain + (size_t)r * t->row_bytes);
    if (pp_pack_needed(w->type)) {
        t->data = take(pp_pack_bytes(w->type, w->n_rows, w->n_cols));
        if (t->data)
            pp_pack_rows(w->type, plain, w->n_rows, w->n_cols, 0, w->n_rows, t->data);
        pp_free(plain);
    } else {
        t->data = plain;
    }
    w->data = t->data;
    return t->data != NULL;
}

static bool make_acts(struct pp_micro *t, struct pp_random *random)
{
    size_t n = PP_MICRO_MAX_ROWS * (size_t)t->stride;
    t->x = take(n * sizeof *t->x);
    t->q = take(n);
    t->d = take(n / PP_ACT_BLOCK * sizeof *t->d);
    t->sum = take(n / PP_ACT_BLOCK * sizeof *t->sum);
    t->y = take(PP_MICRO_MAX_ROWS * (size_t)t->w.n_rows * sizeof *t->y);
    t->scratch = take(PP_MATMUL_SCRATCH);
    if (!t->x || !t->q || !t->d || !t->sum || !t->y || !t->scratch)
        return false;
    const struct pp_matmul_kernels *scalar = pp_matmul_kernels(PP_ISA_SCALAR); /* all sets quantise alike */
    int64_t blocks = t->stride / PP_ACT_BLOCK;
    for (int64_t i = 0; i < PP_MICRO_MAX_ROWS; i++) {
        pp_random_row(random, PP_TYPE_F32, t->w.n_cols, t->x + i * t->stride);
        scalar->quantize(t->x + i * t->stride, t->w.n_cols, pp_type_twins(t->w.type), t->q + i * t->stride,
                         t->d + i * blocks, t->sum + i * blocks);
    }
    return true;
}

enum pp_code pp_micro_new(const char *type, int64_t n_rows, int64_t n_cols, struct pp_micro **out,
                          struct pp_error *err)
{
    int id = pp_type_by_name(type);
    *out = NULL;
    if (id < 0 || !pp_type_info((uint32_t)id)->runnable)
        return pp_fail(err, PP_ERR_USAGE, "there are no kernels for weights of type \"%.40s\"", type);
    if (n_rows < 1 || n_rows > 1 << 20 || n_rows % PP_GROUP_ROWS || n_cols < 1 || n_cols > 1 << 20 || n_cols % 256)
        return pp_fail(err, PP_ERR_USAGE, "a matrix of %lld x %lld is none that can be measured", (long long)n_rows,
                       (long long)n_cols);
    struct pp_micro *t = pp_calloc(1, sizeof *t);
    struct pp_random *random = pp_random_new(1);
    bool made = t && random;
    if (made) {
        t->w = (struct pp_matrix){.type = (uint32_t)id, .n_rows = n_rows, .n_cols = n_cols};
        t->row_bytes = pp_type_row_bytes((uint32_t)id, n_cols);
        t->stride = (n_cols + 63) / 64 * 64;
        made = make_matrix(t, random) && make_acts(t, random);
    }
    pp_free(random);
    if (!made) {
        pp_micro_free(t);
        return pp_fail_nomem(err, "the matrix");
    }
    *out = t;
    return PP_OK;
}

void pp_micro_free(struct pp_micro *t)
{
    if (!t)
        return;
    pp_free(t->data);
    pp_free(t->x);
    pp_free(t->q);
    pp_free(t->d);
    pp_free(t->sum);
    pp_free(t->y);
    pp_free(t->scratch);
    pp_free(t);
}

/* Weight rows per call of the kernel, about as many as a work item of a projection: 2 ms at most on a fast machine. */
static int64_t piece_rows(const struct pp_micro *t, int m)
{
    enum { MOST = 256 };
    int64_t rows = 200000000 / (t->w.n_cols * m) / PP_GROUP_ROWS * PP_GROUP_ROWS;
    return rows < PP_GROUP_ROWS ? PP_GROUP_ROWS : rows > MOST ? MOST : rows;
}

enum pp_code pp_micro_run(struct pp_micro *t, const char *kernels, int m, uint64_t ns, struct pp_micro_time *out,
                          struct pp_error *err)
{
    int isa = pp_isa_by_name(kernels);
    *out = (struct pp_micro_time){0};
    if (isa < 0 || !pp_isa_runs((enum pp_isa)isa))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "this CPU cannot run kernels called %s", kernels);
    if (m < 1 || m > PP_MICRO_MAX_ROWS)
        return pp_fail(err, PP_ERR_USAGE, "a product has 1 to %d rows here, not %d", PP_MICRO_MAX_ROWS, m);
    pp_matmul_fn *product = pp_matmul_kernels((enum pp_isa)isa)->by_type[t->w.type];
    if (!product)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the %s kernels have none for %s", kernels,
                       pp_type_info(t->w.type)->name);
    const struct pp_acts acts = {.f32 = t->x,
                                 .f32_stride = t->stride,
                                 .q = t->q,
                                 .q_stride = t->stride,
                                 .d = t->d,
                                 .sum = t->sum,
                                 .b_stride = t->stride / PP_ACT_BLOCK};
    int64_t piece = piece_rows(t, m), rows = 0;
    uint64_t begin = pp_now_ns();
    do {
        int64_t row1 = t->at + piece < t->w.n_rows ? t->at + piece : t->w.n_rows;
        product(&t->w, t->at, row1, &acts, m, t->y, t->w.n_rows, t->scratch);
        rows += row1 - t->at;
        t->at = row1 == t->w.n_rows ? 0 : row1;
        out->ns = pp_now_ns() - begin;
    } while (out->ns < ns);
    out->macs = (uint64_t)(rows * t->w.n_cols * m);
    out->bytes = (uint64_t)rows * t->row_bytes;
    return PP_OK;
}

const char *pp_micro_kernels(size_t i)
{
    for (int isa = 0; isa < PP_ISA_COUNT; isa++)
        if (pp_isa_runs((enum pp_isa)isa) && i-- == 0)
            return pp_isa_name((enum pp_isa)isa);
    return NULL;
}
