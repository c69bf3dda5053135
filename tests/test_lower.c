/* test_lower.c - results that the backend fuses with the next operation are not stored, unless a later one reads them.
 * In that case the logits have the bits of a plan that computes the value again, into a slot of its own. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "tests/convolved.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { N = 40, MOST_OPS = 16, WIDTH = 256 };

/* Inserts a case's operations before a layer, or elsewhere. again: into slots of their own. */
typedef void change_fn(struct pp_plan *p, bool again);

struct steps {
    struct pp_plan *p;
    int x, n;                   /* the residual stream */
    const struct pp_tensor *norm;
    struct pp_op ops[MOST_OPS];
};

static struct steps steps_of(struct pp_plan *p)
{
    const struct pp_op *norm = &p->ops[first_norm_of(p, 1)];
    return (struct steps){.p = p, .x = norm->in, .norm = norm->weight};
}

static void step(struct steps *s, struct pp_op op)
{
    assert_in_range(s->n, 0, MOST_OPS - 1);
    op.layer = 1;
    s->ops[s->n++] = op;
}

/* A projection to as many values as it reads; `which`: one of two different ones. */
static int square(const struct pp_plan *p, int which)
{
    for (int i = 0; i < p->n_linears; i++)
        if (p->linears[i].w->ne[0] == WIDTH && p->linears[i].w->ne[1] == WIDTH && which-- == 0)
            return i;
    fail_msg("no such projection");
    return -1;
}

static void linear(struct steps *s, int which, int in, int out)
{
    step(s, (struct pp_op){.kind = PP_OP_LINEAR, .linear = square(s->p, which), .in = in, .in2 = -1, .out = out});
}

static void norm(struct steps *s, int out)
{
    step(s, (struct pp_op){.kind = PP_OP_NORM, .weight = s->norm, .in = s->x, .in2 = -1, .out = out});
}

static void silu(struct steps *s, int in, int out)
{
    step(s, (struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SILU, .in = in, .in2 = -1, .out = out});
}

static void times(struct steps *s, int in, int in2, int out)
{
    step(s, (struct pp_op){.kind = PP_OP_MULTIPLY, .in = in, .in2 = in2, .out = out});
}

static void add_to_x(struct steps *s, int in)
{
    step(s, (struct pp_op){.kind = PP_OP_ADD, .scale = 0.25f, .in = in, .in2 = -1, .out = s->x});
}

static void put(const struct steps *s)
{
    insert_ops(s->p, first_norm_of(s->p, 1), s->ops, s->n);
}

static int slot(struct pp_plan *p)
{
    return pp_plan_slot(p, WIDTH);
}

/* --- cases ------------------------------------------------------------------------------------------------------- */

static void function_elsewhere(struct pp_plan *p, bool again)
{
    struct steps s = steps_of(p);
    const int a = slot(p), b = slot(p), own = again ? slot(p) : a;
    linear(&s, 0, s.x, a);
    if (again)
        linear(&s, 0, s.x, own);
    silu(&s, a, b);
    add_to_x(&s, b);
    add_to_x(&s, own);
    put(&s);
}

static void gate(struct pp_plan *p, bool again)
{
    struct steps s = steps_of(p);
    const int a = slot(p), b = slot(p), c = slot(p), own = again ? slot(p) : b;
    linear(&s, 0, s.x, a);
    linear(&s, 1, s.x, b);
    if (again)
        linear(&s, 1, s.x, own);
    step(&s, (struct pp_op){.kind = PP_OP_GATE, .fn = PP_FN_SILU, .in = a, .in2 = b, .out = c});
    add_to_x(&s, c);
    add_to_x(&s, own);
    put(&s);
}

static void added_twice(struct pp_plan *p, bool again)
{
    struct steps s = steps_of(p);
    const int square_x = slot(p), a = slot(p), own = again ? slot(p) : a;
    times(&s, s.x, s.x, square_x);
    linear(&s, 0, square_x, a);
    if (again)
        linear(&s, 0, square_x, own);
    add_to_x(&s, a);
    add_to_x(&s, own);
    put(&s);
}

static void normalised(struct pp_plan *p, bool again)
{
    struct steps s = steps_of(p);
    const int n = slot(p), a = slot(p), own = again ? slot(p) : n;
    if (again)
        norm(&s, own);
    norm(&s, n);
    linear(&s, 0, n, a);
    add_to_x(&s, a);
    add_to_x(&s, own);
    put(&s);
}

/* More projections of the same input than the backend multiplies at a time. */
static void projections(struct pp_plan *p, bool again)
{
    struct steps s = steps_of(p);
    const int n = slot(p), own = again ? slot(p) : n, a[] = {slot(p), slot(p), slot(p), slot(p), slot(p)};
    norm(&s, n);
    for (int i = 0; i < 4; i++)
        linear(&s, i % 2, n, a[i]);
    if (again)
        norm(&s, own);
    linear(&s, 0, own, a[4]);
    for (int i = 0; i < 5; i++)
        add_to_x(&s, a[i]);
    put(&s);
}

static void convolve(struct steps *s, int in, int out)
{
    step(s, (struct pp_op){.kind = PP_OP_CONVOLVE, .window = 3, .in = in, .in2 = -1, .out = out,
                           .weight = plan_numbers(s->p, WIDTH, 3, 7)});
}

/* Its input product, its output, and a function of the output. */
static void convolution(struct pp_plan *p, bool again)
{
    struct steps s = steps_of(p);
    const int d = slot(p), a = slot(p), b = slot(p), c = slot(p);
    const int own_d = again ? slot(p) : d, own_a = again ? slot(p) : a, own_b = again ? slot(p) : b;
    if (again) {
        times(&s, s.x, s.x, own_d);
        step(&s, (struct pp_op){.kind = PP_OP_MATCH, .in = s.x, .in2 = s.x, .out = own_a}); /* is not fused with
                                                                                               anything */
        convolve(&s, own_d, own_a);
        convolve(&s, own_d, a);
        silu(&s, a, own_b);
        step(&s, (struct pp_op){.kind = PP_OP_MATCH, .in = s.x, .in2 = s.x, .out = a});
    }
    times(&s, s.x, s.x, d);
    convolve(&s, d, a);
    silu(&s, a, b);
    times(&s, b, s.x, c);
    const int all[] = {own_d, own_a, own_b, c};
    for (int i = 0; i < 4; i++)
        add_to_x(&s, all[i]);
    put(&s);
}

static int find_op(const struct pp_plan *p, enum pp_op_kind kind)
{
    int i = 0;
    while (i < p->n_ops && (p->ops[i].kind != kind || (kind != PP_OP_RESULT && p->ops[i].layer != 1)))
        i++;
    assert_in_range(i, 0, p->n_ops - 1);
    return i;
}

/* The norm before experts, and their output. */
static void experts(struct pp_plan *p, bool again)
{
    struct steps s = steps_of(p);
    const int at = find_op(p, PP_OP_EXPERTS), n = p->ops[at].in, out = p->ops[at].out;
    const int own_n = again ? slot(p) : n, own_out = again ? slot(p) : out;
    struct pp_op before = p->ops[at - 1];
    assert_int_equal(before.kind, PP_OP_NORM);
    assert_int_equal(p->ops[at + 1].kind, PP_OP_ADD);
    before.out = own_n;
    add_to_x(&s, own_out);
    add_to_x(&s, own_n);
    insert_ops(p, at + 2, s.ops, s.n);
    if (!again)
        return;
    insert_ops(p, at + 1, &(struct pp_op){.kind = PP_OP_APPLY, .fn = PP_FN_SCALE, .scale = 1, .layer = 1, .in = out,
                                          .in2 = -1, .out = own_out}, 1);
    insert_ops(p, at - 1, &before, 1);
}

/* Two functions after the logits, only one of which the backend fuses: the embedding vector is still the input of the
 * output matrix. */
static void capped_twice(struct pp_plan *p, bool again)
{
    const int at = find_op(p, PP_OP_RESULT), logits = p->ops[at].in2;
    const struct pp_op cap = {.kind = PP_OP_APPLY, .fn = PP_FN_CAP, .scale = 2, .layer = 1, .in = logits, .in2 = -1,
                              .out = logits};
    if (!again)
        insert_ops(p, at, (const struct pp_op[]){cap, cap}, 2);
}

/* --- running ----------------------------------------------------------------------------------------------------- */

static enum pp_code open_changed(change_fn *change, bool again, struct pp_model **m, struct pp_engine **e,
                                 struct pp_error *err)
{
    const struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 256, .kv_type = PP_KV_F32, .max_rows = 16,
                                          .kv_memory = 16u << 20};
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    shape.n_expert = change == experts ? 4 : 0;
    assert_ok(pp_model_open(tiny_model(&shape), m, err), *err);
    change(&(*m)->plan, again);
    assert_false((*m)->plan.bad);
    assert_ok(pp_plan_place_layers((*m)->source, &(*m)->plan, err), *err);
    return pp_engine_new(*m, &opt, NULL, NULL, e, err);
}

/* The changed model's results for N positions, `rows` at a time; *width values for each. */
static float *outputs(change_fn *change, bool again, int rows, enum pp_row_output kind, size_t *width)
{
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    struct pp_row pass[16];
    struct pp_error err;
    assert_ok(open_changed(change, again, &m, &e, &err), err);
    assert_ok(pp_seq_new(e, &s, &err), err);
    *width = (size_t)(kind == PP_OUT_LOGITS ? pp_model_info(m)->n_vocab : pp_model_info(m)->n_embd);
    float *all = pp_calloc(N * *width, sizeof *all);
    assert_non_null(all);
    for (int at = 0, n; at < N; at += n) {
        n = N - at < rows ? N - at : rows;
        for (int i = 0; i < n; i++)
            pass[i] = (struct pp_row){.seq = s, .token = (at + i) * 37 % 320, .parent = PP_PARENT_PREVIOUS,
                                      .out = kind};
        assert_ok(pp_step(e, pass, n, NULL, &err), err);
        for (int i = 0; i < n; i++)
            memcpy(all + (size_t)(at + i) * *width, pp_step_output(e, i), *width * sizeof *all);
    }
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
    return all;
}

static void read_again(void **state)
{
    static const struct {
        const char *what;
        change_fn *change;
        enum pp_row_output kind;
    } cases[] = {
        {"a function's argument", function_elsewhere, PP_OUT_LOGITS},
        {"a gate's value", gate, PP_OUT_LOGITS},
        {"what was added", added_twice, PP_OUT_LOGITS},
        {"a norm", normalised, PP_OUT_LOGITS},
        {"a norm of many projections", projections, PP_OUT_LOGITS},
        {"a convolution's parts", convolution, PP_OUT_LOGITS},
        {"experts' norm and result", experts, PP_OUT_LOGITS},
        {"the vector in front of the head", capped_twice, PP_OUT_HIDDEN},
    };
    static const int rows[] = {1, 3, 16};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            size_t n;
            float *want = outputs(cases[i].change, true, rows[r], cases[i].kind, &n);
            float *got = outputs(cases[i].change, false, rows[r], cases[i].kind, &n);
            if (memcmp(want, got, N * n * sizeof *got) != 0)
                fail_msg("%s, %d rows at a time: other results", cases[i].what, rows[r]);
            pp_free(want);
            pp_free(got);
        }
}

/* RoPE is applied when attention reads the heads, and not in their slot. */
static void read_heads(struct pp_plan *p, bool again)
{
    struct steps s = steps_of(p);
    const int at = find_op(p, PP_OP_ATTENTION);
    (void)again;
    add_to_x(&s, p->ops[at].in);
    insert_ops(p, at + 1, s.ops, s.n);
}

static void heads_are_refused(void **state)
{
    struct pp_model *m;
    struct pp_engine *e = NULL;
    struct pp_error err;
    (void)state;
    assert_int_equal(open_changed(read_heads, false, &m, &e, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "normalised or rotated"));
    pp_model_close(m);
}

/* A slot counts as read, or as overwritten before it is read, also through its parts. */
static void slots_and_parts(void **state)
{
    struct pp_plan p = {0};
    const int a = pp_plan_slot(&p, 8), b = pp_plan_slot(&p, 8), low = pp_plan_part(&p, a, 0, 4),
              high = pp_plan_part(&p, a, 4, 4);
    (void)state;
    pp_plan_add(&p, (struct pp_op){.kind = PP_OP_APPLY, .in = low, .in2 = -1, .out = high});
    pp_plan_add(&p, (struct pp_op){.kind = PP_OP_ADD, .in = b, .in2 = -1, .out = b});
    pp_plan_add(&p, (struct pp_op){.kind = PP_OP_EMBED, .in = -1, .in2 = -1, .out = a});
    pp_plan_add(&p, (struct pp_op){.kind = PP_OP_RESULT, .in = high, .in2 = -1, .out = -1});
    assert_false(p.bad);
    assert_true(pp_plan_reads(&p, a, 0));
    assert_true(pp_plan_reads(&p, low, 0));
    assert_false(pp_plan_reads(&p, high, 0)); /* written first */
    assert_false(pp_plan_reads(&p, low, 1));
    assert_false(pp_plan_reads(&p, a, 1)); /* all of it is overwritten */
    assert_true(pp_plan_reads(&p, b, 0)); /* as a summand */
    assert_true(pp_plan_reads(&p, a, 3));
    assert_false(pp_plan_reads(&p, low, 3));
    assert_false(pp_plan_reads(&p, a, 4));
    pp_plan_free(&p);
}

TEST_GROUP(lower)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_again),
        cmocka_unit_test(heads_are_refused),
        cmocka_unit_test(slots_and_parts),
    };
    return cmocka_run_group_tests_name("lower", tests, NULL, NULL);
}
