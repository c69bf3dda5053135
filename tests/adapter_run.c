#include "tests/adapter_run.h"

#include <math.h>

#include "engine/base/mem.h"
#include "tests/passes.h"
#include "tests/support.h"

struct run open_run(const char *path, int n_threads)
{
    struct run r;
    struct pp_error err;
    const struct pp_engine_options opt = {.n_threads = n_threads, .kv_type = PP_KV_F32};
    assert_ok(pp_model_open(path, &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    return r;
}

void close_run(struct run *r)
{
    pp_engine_free(r->engine);
    pp_model_close(r->model);
}

float *adapter_logits(const struct run *r, const struct pp_adapter_use *use, int n)
{
    struct pp_error err;
    struct pp_seq *s;
    int32_t tokens[TOKENS];
    float *out = pp_malloc((size_t)(TOKENS * pp_model_info(r->model)->n_vocab) * sizeof *out);
    assert_non_null(out);
    assert_ok(pp_seq_new(r->engine, &s, &err), err);
    assert_ok(pp_seq_set_adapters(s, use, n, &err), err);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = 3 + 7 * i;
    run_in_passes(r->engine, s, tokens, TOKENS, TOKENS, out);
    pp_seq_free(s);
    return out;
}

double farthest(const float *a, const float *b, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

void run_gives_merged(merge_fn *merge, const struct folder *f, const char *path, const char *model, int rank,
                      double scale)
{
    static const float strengths[] = {1.0f, 0.6f, -0.5f};
    struct run base = open_run(model, 2);
    struct pp_error err;
    struct pp_adapter *a;
    const int64_t n = TOKENS * pp_model_info(base.model)->n_vocab;
    float *alone = adapter_logits(&base, NULL, 0);
    assert_ok(pp_adapter_load_exact(base.model, path, &a, &err), err);
    for (int i = 0; i < 3; i++) {
        struct run merged = open_run(merge(f, model, rank, scale, (double)strengths[i]), 2);
        float *x = adapter_logits(&base, &(struct pp_adapter_use){a, strengths[i]}, 1);
        float *y = adapter_logits(&merged, NULL, 0);
        assert_true(farthest(alone, y, n) > 0.01);
        assert_near(farthest(x, y, n), 0, 1e-4);
        pp_free(x);
        pp_free(y);
        close_run(&merged);
    }
    pp_free(alone);
    pp_adapter_free(a);
    close_run(&base);
}
