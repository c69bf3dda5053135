/* test_contamination.c - adapters, strengths, branches and snapshots are switched a thousand times on one engine, whose
 * KV pages are found again by name, evicted and saved. Every result must have the bits that a fresh engine computes. */
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/engine_int.h"
#include "engine/types.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { TURNS = 1000, SEQS = 4, ADAPTERS = 4, LONGEST = 220, VOCAB = 60 };

struct talk {
    struct pp_seq *seq;
    int32_t tokens[LONGEST];
    int n;
    struct pp_adapter_use use[ADAPTERS];
    int n_use;
};

static struct {
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_adapter *adapters[ADAPTERS];
    struct talk talks[SEQS];
    char base[300];
    uint32_t dice;
    int restored;
} run;

static const struct pp_sha256 identity = {.bytes = {7}};

static int roll(int n)
{
    run.dice = run.dice * 1664525u + 1013904223u;
    return (int)((run.dice >> 8) % (uint32_t)n);
}

static void begin(void)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q4_K);
    struct pp_engine_options opt = {.n_threads = 2, .n_ctx = 256};
    struct pp_engine *first;
    struct pp_error err;
    memset(&run, 0, sizeof run);
    run.dice = 4711;
    snprintf(run.base, sizeof run.base, "%s/contamination", test_tmpdir());
    assert_ok(pp_model_open(tiny_model(&shape), &run.model, &err), err);
    assert_ok(pp_engine_new(run.model, &opt, NULL, NULL, &first, &err), err);
    opt.kv_memory = 20 * pp_engine_stats(first)->page_bytes; /* four conversations and a few pages more */
    pp_engine_free(first);
    assert_ok(pp_engine_new(run.model, &opt, NULL, NULL, &run.engine, &err), err);
    for (int i = 0; i < ADAPTERS; i++) {
        shape.seed++;
        assert_ok(pp_adapter_load(run.model, tiny_adapter(&shape, 3 + i), &run.adapters[i], &err), err);
    }
    struct pp_adapter *invoked = run.adapters[ADAPTERS - 1]; /* invoked by any of one token in 60 */
    if ((invoked->invocation = pp_malloc(sizeof *invoked->invocation)))
        invoked->invocation[0] = 3 + roll(VOCAB);
    invoked->n_invocation = invoked->invocation ? 1 : 0;
    assert_int_equal(invoked->n_invocation, 1);
    for (int i = 0; i < SEQS; i++)
        assert_ok(pp_seq_new(run.engine, &run.talks[i].seq, &err), err);
}

static void end(void)
{
    for (int i = 0; i < SEQS; i++)
        pp_seq_free(run.talks[i].seq);
    pp_engine_free(run.engine);
    for (int i = 0; i < ADAPTERS; i++)
        pp_adapter_free(run.adapters[i]);
    pp_model_close(run.model);
    pp_snapshot_remove(run.base, NULL);
}

static void switch_adapters(struct talk *t)
{
    static const float scales[] = {1, 0.8f, 0.6f, -1, 0.5f, 0};
    struct pp_error err;
    t->n_use = 0;
    for (int i = 0; i < ADAPTERS; i++)
        if (roll(2))
            t->use[t->n_use++] = (struct pp_adapter_use){run.adapters[i], scales[roll(6)]};
    assert_ok(pp_seq_set_adapters(t->seq, t->use, t->n_use, &err), err);
}

static void fork_from(struct talk *to, const struct talk *from)
{
    struct pp_error err;
    struct pp_seq *seq = NULL;
    int n = roll((int)pp_seq_len(from->seq) + 1);
    if (to == from)
        return;
    assert_ok(pp_seq_fork(from->seq, n, &seq, &err), err);
    pp_seq_free(to->seq);
    *to = *from;
    to->seq = seq;
    to->n = n > 0 ? n : from->n;
}

static void edit(struct talk *t)
{
    if (!t->n)
        return;
    t->n = roll(t->n) + 1;
    t->tokens[t->n - 1] = 3 + roll(VOCAB);
}

static void save(struct talk *t)
{
    struct pp_error err;
    struct pp_save *j;
    uint64_t bytes;
    if (!pp_seq_len(t->seq))
        return;
    assert_ok(pp_save_new(t->seq, &identity, run.base, "test", &j, &err), err);
    assert_ok(pp_save_plan(j, UINT64_MAX, &bytes, &err), err);
    for (bool done = false; !done;)
        assert_ok(pp_save_write(j, 1 << 20, NULL, &done, &err), err);
    pp_save_free(j);
}

/* As after a restart: a new sequence begins with what is saved on disk. */
static void reopen(struct talk *t)
{
    struct pp_error err;
    pp_seq_free(t->seq);
    assert_ok(pp_seq_new(run.engine, &t->seq, &err), err);
    assert_ok(pp_seq_set_adapters(t->seq, t->use, t->n_use, &err), err);
    uint64_t before = pp_engine_stats(run.engine)->restored_tokens;
    enum pp_code code =
        t->n ? pp_snapshot_restore(t->seq, &identity, run.base, "test", t->tokens, t->n, NULL, &err) : PP_OK;
    assert_true(code == PP_OK || code == PP_ERR_NOT_FOUND || code == PP_ERR_MISMATCH || code == PP_ERR_NOMEM);
    run.restored += pp_engine_stats(run.engine)->restored_tokens > before;
}

/* Computes the next tokens, at some temperature. */
static void answer(struct pp_seq *s, const struct talk *t, uint64_t seed, int n, int32_t *out)
{
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = n, .ignore_end = true};
    struct pp_buf text = {0};
    struct pp_error err;
    struct pp_gen *g;
    enum pp_finish finish = PP_FINISH_NONE;
    int n_tokens = 0;
    int64_t got;
    opt.sampling.seed = seed;
    opt.sampling.temp = seed % 2 ? 1.0f : 0.0f;
    assert_ok(pp_gen_start(s, t->tokens, t->n, &opt, NULL, &g, &err), err);
    while (finish == PP_FINISH_NONE)
        assert_ok(pp_gen_next(g, NULL, &text, &n_tokens, &finish, &err), err);
    memcpy(out, pp_gen_tokens(g, &got), (size_t)n * sizeof *out);
    assert_int_equal(got, n);
    pp_gen_free(g);
    pp_buf_free(&text);
}

static void goes_on_as_clean(struct talk *t, int turn)
{
    enum { MOST = 6 };
    const struct pp_engine_options opt = {.n_threads = 1, .n_ctx = 256};
    int32_t ours[MOST], theirs[MOST];
    struct pp_engine *clean;
    struct pp_seq *s;
    struct pp_error err;
    int n = 1 + roll(MOST);
    for (int more = 1 + roll(20); more > 0 && t->n < LONGEST - MOST; more--)
        t->tokens[t->n++] = 3 + roll(VOCAB);
    assert_ok(pp_engine_new(run.model, &opt, NULL, NULL, &clean, &err), err);
    assert_ok(pp_seq_new(clean, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, t->use, t->n_use, &err), err);
    answer(s, t, (uint64_t)turn, n, theirs);
    const struct pp_sha256 key = s->key;
    pp_seq_free(s);
    pp_engine_free(clean);
    answer(t->seq, t, (uint64_t)turn, n, ours);
    assert_memory_equal(&key, &t->seq->key, sizeof key);
    if (memcmp(ours, theirs, (size_t)n * sizeof *ours) != 0)
        fail_msg("turn %d: other tokens than a clean engine has", turn);
    for (int i = 0; i < n && t->n < LONGEST - MOST; i++)
        t->tokens[t->n++] = ours[i];
    if (t->n >= LONGEST - MOST)
        t->n = 1 + roll(LONGEST / 2);
}

/* The clean engine is a new one each time, which has no pages to find. */
static void thousand_switches(void **state)
{
    (void)state;
    begin();
    for (int turn = 0; turn < TURNS; turn++) {
        struct talk *t = &run.talks[roll(SEQS)];
        switch (roll(7)) {
        case 0: case 1: switch_adapters(t); break;
        case 2: fork_from(t, &run.talks[roll(SEQS)]); break;
        case 3: edit(t); break;
        case 4: save(t); break;
        case 5: reopen(t); break;
        }
        goes_on_as_clean(t, turn);
    }
    assert_true(run.restored > 10);
    assert_true(pp_engine_stats(run.engine)->cached_tokens > 0);
    end();
}

TEST_GROUP(contamination)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(thousand_switches)};
    return cmocka_run_group_tests_name("contamination", tests, NULL, NULL);
}
