/* test_recur.c - the operations of layers with a state: against the recurrence in double precision, page after page,
 * and the fast builds against the scalar one bit for bit. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/ops.h"
#include "tests/kernel_builds.h"
#include "tests/support.h"

enum { KEY = 48, VALUE = 112, LENGTH = 3 * PP_PAGE_TOKENS + 17, PAGES = 4 };

static uint32_t random_state = 7;

static float random_float(void) /* -1 .. 1 */
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

/* A head's inputs and outputs, position by position. */
struct head {
    float q[LENGTH][KEY], k[LENGTH][KEY], v[LENGTH][VALUE], beta[LENGTH];
    double ln_a[LENGTH];
    float out[LENGTH][VALUE];
};

struct page {
    float start[KEY * VALUE], keys[KEY * PP_PAGE_TOKENS], u[PP_PAGE_TOKENS * VALUE];
    double decay[PP_PAGE_TOKENS];
};

static void unit(float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        x[i] = random_float();
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        x[i] /= sqrtf(sum);
}

static void fill(struct head *h)
{
    for (int t = 0; t < LENGTH; t++) {
        unit(h->q[t], KEY);
        unit(h->k[t], KEY);
        for (int i = 0; i < VALUE; i++)
            h->v[t][i] = random_float();
        h->beta[t] = (random_float() + 1) / 2;
        h->ln_a[t] = t % 50 == 30 ? -200 : -0.1 * (random_float() + 1.0f); /* now and then the state is forgotten
                                                                              entirely */
    }
}

/* Runs the steps as recur.c does, this many rows at a time. */
static void run(const struct pp_cpu_ops *ops, struct head *h, struct page *pages, bool corrects, int rows)
{
    static float dots[2 * 64 * PP_PAGE_TOKENS], products[2 * 64 * VALUE], scratch[KEY * PP_PAGE_TOKENS];
    for (int t = 0, n; t < LENGTH; t += n) {
        struct page *p = &pages[t / PP_PAGE_TOKENS];
        const int at = t % PP_PAGE_TOKENS;
        n = LENGTH - t < rows ? LENGTH - t : rows;
        n = n < PP_PAGE_TOKENS - at ? n : PP_PAGE_TOKENS - at;
        if (at == 0 && t == 0)
            memset(p->start, 0, sizeof p->start);
        else if (at == 0)
            ops->recur_next(&(struct pp_recur_next){.key_dim = KEY, .width = VALUE, .decay = p[-1].decay,
                                                    .keys = p[-1].keys, .u = p[-1].u, .from = p[-1].start,
                                                    .to = p->start, .scratch = scratch});
        for (int i = 0; i < n; i++)
            for (int d = 0; d < KEY; d++)
                p->keys[d * PP_PAGE_TOKENS + at + i] = h->k[t + i][d];
        for (int which = 0; which < 2; which++) {
            const float *x = which ? h->k[t] : h->q[t];
            ops->products(&(struct pp_products){.x = x, .x_stride = KEY, .n_rows = n, .n_inner = KEY, .m = p->keys,
                                                .m_stride = PP_PAGE_TOKENS, .n_cols = PP_PAGE_TOKENS,
                                                .y = dots + which * n * PP_PAGE_TOKENS, .y_stride = PP_PAGE_TOKENS});
            ops->products(&(struct pp_products){.x = x, .x_stride = KEY, .n_rows = n, .n_inner = KEY, .m = p->start,
                                                .m_stride = VALUE, .n_cols = VALUE,
                                                .y = products + which * n * VALUE, .y_stride = VALUE});
        }
        for (int i = 0; i < n; i++) {
            p->decay[at + i] = (at + i ? p->decay[at + i - 1] : 0) + h->ln_a[t + i];
            ops->recur_row(&(struct pp_recur_row){
                .at = at + i, .width = VALUE, .corrects = corrects, .beta = h->beta[t + i], .decay = p->decay,
                .query_dots = dots + i * PP_PAGE_TOKENS, .key_dots = dots + (n + i) * PP_PAGE_TOKENS,
                .query_state = products + i * VALUE, .key_state = products + (n + i) * VALUE, .v = h->v[t + i],
                .u = p->u, .out = h->out[t + i]});
        }
    }
}

/* The recurrence as it is published. */
static void assert_recurrence(const struct head *h, bool corrects)
{
    static double s[KEY][VALUE];
    memset(s, 0, sizeof s);
    for (int t = 0; t < LENGTH; t++) {
        const double a = exp(h->ln_a[t]);
        for (int c = 0; c < VALUE; c++) {
            double known = 0, out = 0;
            for (int d = 0; d < KEY; d++) {
                s[d][c] *= a;
                known += s[d][c] * (double)h->k[t][d];
            }
            const double u = (double)h->beta[t] * ((double)h->v[t][c] - (corrects ? known : 0));
            for (int d = 0; d < KEY; d++) {
                s[d][c] += (double)h->k[t][d] * u;
                out += s[d][c] * (double)h->q[t][d];
            }
            assert_near(h->out[t][c], out, 3e-6 * (1 + fabs(out)));
        }
    }
}

static void recurrence(void **state)
{
    static struct head h;
    static struct page pages[PAGES], others[PAGES];
    static float expected[LENGTH][VALUE];
    static const int rows[] = {1, 2, 5, 8, 64};
    (void)state;
    for (int corrects = 0; corrects < 2; corrects++) {
        fill(&h);
        memset(pages, 0xFF, sizeof pages); /* NaN: so reads of what was never written would show */
        run(pp_cpu_ops(PP_ISA_SCALAR), &h, pages, corrects, 3);
        assert_recurrence(&h, corrects);
        memcpy(expected, h.out, sizeof expected);
        for (int isa = 0; isa < PP_ISA_COUNT; isa++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows && pp_isa_runs((enum pp_isa)isa); i++) {
                memset(others, 0xFF, sizeof others);
                run(pp_cpu_ops((enum pp_isa)isa), &h, others, corrects, rows[i]);
                assert_memory_equal(h.out, expected, sizeof expected);
                assert_memory_equal(others, pages, sizeof pages);
            }
    }
}

/* Copying positions: data of layers, heads and positions are in different places; the state is copied with the first
 * position. */
static void copied_positions(void **state)
{
    struct pp_kv_layout l;
    (void)state;
    pp_kv_layout_init_state(
        &l, 3, &(struct pp_state_shape){.n_key_head = 2, .n_head = 4, .key_dim = 16, .value_dim = 32});
    uint8_t *from = pp_aligned(64, l.page_bytes), *to = pp_aligned(64, l.page_bytes);
    assert_true(from && to);
    for (size_t i = 0; i < l.page_bytes; i++)
        from[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(to, 0, l.page_bytes);
    for (int i = 0; i < PP_PAGE_TOKENS; i++)
        pp_kv_copy_position(&l, from, i, to, i);
    assert_memory_equal(from, to, l.page_bytes);
    memset(to, 0, l.page_bytes);
    pp_kv_copy_position(&l, from, 9, to, 5);
    for (int layer = 0; layer < 3; layer++)
        for (int h = 0; h < 4; h++) {
            const struct pp_kv_state x = pp_kv_state_head(&l, from, layer, h), y = pp_kv_state_head(&l, to, layer, h);
            assert_memory_equal(&x.decay[9], &y.decay[5], sizeof *x.decay);
            assert_memory_equal(x.u + 9 * 32, y.u + 5 * 32, 32 * sizeof *x.u);
            assert_true(y.start[0] == 0 && y.u[4 * 32] == 0 && y.decay[9] == 0);
            const float *k = pp_kv_state_keys(&l, from, layer, h / 2), *c = pp_kv_state_keys(&l, to, layer, h / 2);
            for (int d = 0; d < 16; d++)
                assert_memory_equal(&k[d * PP_PAGE_TOKENS + 9], &c[d * PP_PAGE_TOKENS + 5], sizeof *k);
        }
    pp_free(from);
    pp_free(to);
}

TEST_GROUP(recur)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recurrence),
        cmocka_unit_test(copied_positions),
    };
    return RUN_WITH_BOTH_BUILDS("recur", tests);
}
