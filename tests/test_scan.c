/* test_scan.c - the steps of Mamba's and RWKV 6's states: against the recurrence in double precision, the fast builds
 * against the scalar one bit for bit, and which parts of a page are copied with positions. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/ops.h"
#include "tests/kernel_builds.h"
#include "tests/support.h"

enum { KEY = 48, WIDTH = 80, LENGTH = 90 };

static uint32_t random_state = 11;

static float random_float(void) /* -1 .. 1 */
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

/* A head's inputs and outputs, position by position. */
struct head {
    float rate[KEY * WIDTH], direct[WIDTH];
    float step[LENGTH][WIDTH], u[LENGTH][WIDTH], v[LENGTH][WIDTH], key[LENGTH][KEY], query[LENGTH][KEY];
    float state[KEY * WIDTH], out[LENGTH][WIDTH];
};

static void fill(struct head *h)
{
    for (int i = 0; i < KEY * WIDTH; i++)
        h->rate[i] = -8 * (1 + random_float());
    for (int i = 0; i < WIDTH; i++)
        h->direct[i] = random_float();
    for (int t = 0; t < LENGTH; t++) {
        for (int i = 0; i < WIDTH; i++) {
            h->v[t][i] = random_float();
            h->step[t][i] = t == 40 ? 50 : 0.05f * (1 + random_float()); /* forgets almost everything at one position */
            h->u[t][i] = h->step[t][i] * h->v[t][i];
        }
        for (int d = 0; d < KEY; d++) {
            h->key[t][d] = random_float();
            h->query[t][d] = random_float();
        }
    }
}

/* Computes all positions; every skip-th one without an output. */
static void run(const struct pp_cpu_ops *ops, struct head *h, int skip)
{
    memset(h->state, 0, sizeof h->state);
    for (int t = 0; t < LENGTH; t++)
        ops->scan_step(&(struct pp_scan_step){
            .key_dim = KEY, .width = WIDTH, .rate = h->rate, .step = h->step[t], .u = h->u[t], .key = h->key[t],
            .state = h->state, .query = skip && t % skip == 0 ? NULL : h->query[t], .direct = h->direct,
            .v = h->v[t], .out = h->out[t]});
}

static void assert_recurrence(const struct head *h)
{
    static double s[KEY][WIDTH];
    memset(s, 0, sizeof s);
    for (int t = 0; t < LENGTH; t++)
        for (int c = 0; c < WIDTH; c++) {
            double out = (double)h->direct[c] * (double)h->v[t][c];
            for (int d = 0; d < KEY; d++) {
                s[d][c] = exp((double)h->step[t][c] * (double)h->rate[d * WIDTH + c]) * s[d][c] +
                          (double)h->key[t][d] * (double)h->u[t][c];
                out += s[d][c] * (double)h->query[t][d];
            }
            assert_near(h->out[t][c], out, 2e-5 * (1 + fabs(out)));
        }
}

static void steps(void **state)
{
    static struct head h, other;
    (void)state;
    fill(&h);
    other = h;
    run(pp_cpu_ops(PP_ISA_SCALAR), &h, 0);
    assert_recurrence(&h);
    for (int isa = 0; isa < PP_ISA_COUNT; isa++)
        if (pp_isa_runs((enum pp_isa)isa)) {
            run(pp_cpu_ops((enum pp_isa)isa), &other, 0);
            assert_memory_equal(other.out, h.out, sizeof h.out);
            assert_memory_equal(other.state, h.state, sizeof h.state);
            run(pp_cpu_ops((enum pp_isa)isa), &other, 3); /* a state does not depend on whether outputs are wanted */
            assert_memory_equal(other.state, h.state, sizeof h.state);
        }
}

/* RWKV 6: each row of a state has its own decay, in rate, and the output is that of the state before the position. */
static void run_decays(const struct pp_cpu_ops *ops, struct head *h, int skip)
{
    memset(h->state, 0, sizeof h->state);
    for (int t = 0; t < LENGTH; t++)
        ops->decay_step(&(struct pp_delta_step){
            .key_dim = KEY, .width = WIDTH, .decay = h->rate + t % WIDTH * KEY, .key = h->key[t], .v = h->v[t],
            .state = h->state, .query = skip && t % skip == 0 ? NULL : h->query[t], .out = h->out[t]});
}

static void assert_decays(const struct head *h)
{
    static double s[KEY][WIDTH];
    memset(s, 0, sizeof s);
    for (int t = 0; t < LENGTH; t++)
        for (int c = 0; c < WIDTH; c++) {
            double out = 0;
            for (int d = 0; d < KEY; d++) {
                out += s[d][c] * (double)h->query[t][d];
                s[d][c] = (double)h->rate[t % WIDTH * KEY + d] * s[d][c] + (double)h->key[t][d] * (double)h->v[t][c];
            }
            assert_near(h->out[t][c], out, 2e-5 * (1 + fabs(out)));
        }
}

static void decays(void **state)
{
    static struct head h, other;
    (void)state;
    fill(&h);
    for (int i = 0; i < KEY * WIDTH; i++)
        h.rate[i] = i % 97 == 0 ? 0 : 1 - 0.3f * (1 + random_float());
    other = h;
    run_decays(pp_cpu_ops(PP_ISA_SCALAR), &h, 0);
    assert_decays(&h);
    for (int isa = 0; isa < PP_ISA_COUNT; isa++)
        if (pp_isa_runs((enum pp_isa)isa)) {
            run_decays(pp_cpu_ops((enum pp_isa)isa), &other, 0);
            assert_memory_equal(other.out, h.out, sizeof h.out);
            assert_memory_equal(other.state, h.state, sizeof h.state);
            run_decays(pp_cpu_ops((enum pp_isa)isa), &other, 3);
            assert_memory_equal(other.state, h.state, sizeof h.state);
        }
}

/* Copying positions copies their inputs, with the first one also the state at its beginning, and makes the latest state
 * invalid. */
static void copied_positions(void **state)
{
    const struct pp_state_shape shape = {.n_key_head = 1, .n_head = 3, .key_dim = 16, .value_dim = 32, .n_inputs = 80};
    struct pp_kv_layout l;
    (void)state;
    pp_kv_layout_init_state(&l, 2, &shape);
    uint8_t *from = pp_aligned(64, l.page_bytes), *to = pp_aligned(64, l.page_bytes);
    assert_true(from && to);
    for (size_t i = 0; i < l.page_bytes; i++)
        from[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(to, 0, l.page_bytes);
    for (int i = 0; i < 7; i++)
        pp_kv_copy_position(&l, from, i, to, i);
    pp_kv_copy_position(&l, from, 20, to, 9);
    for (int layer = 0; layer < 2; layer++)
        for (int h = 0; h < 3; h++) {
            const struct pp_kv_steps x = pp_kv_steps_head(&l, from, layer, h), y = pp_kv_steps_head(&l, to, layer, h);
            assert_int_equal((uintptr_t)y.latest % 64, 0);
            assert_int_equal((uintptr_t)y.inputs % 64, 0);
            assert_memory_equal(x.start, y.start, 16 * 32 * sizeof *x.start);
            assert_memory_equal(x.inputs, y.inputs, 7 * 80 * sizeof *x.inputs);
            assert_memory_equal(x.inputs + 20 * 80, y.inputs + 9 * 80, 80 * sizeof *x.inputs);
            assert_int_equal(*y.n, -1);
        }
    const struct pp_kv_steps last = pp_kv_steps_head(&l, to, 1, 2);
    assert_ptr_equal(last.n + 16, to + l.page_bytes);
    pp_free(from);
    pp_free(to);
}

TEST_GROUP(scan)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps),
        cmocka_unit_test(decays),
        cmocka_unit_test(copied_positions),
    };
    return RUN_WITH_BOTH_BUILDS("scan", tests);
}
