/* cmd_bench_resume.c - how long it takes to save the KV cache of a conversation and to go on from it: as the program
 * does it at the end of a turn and when a conversation is opened again, without the hash of the model, which the cache
 * remembers. The file is read from where it was just written, the system's page cache. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/cmd_bench.h"

static const struct pp_sha256 identity; /* of no model: the same both times is enough */

struct resume {
    struct bench *b;
    struct pp_engine *engine;
    struct pp_seq *seq;         /* the conversation */
    char path[1024];            /* of its snapshot */
    size_t results[4];          /* saved: ms, MB/s; read: ms, MB/s */
};

/* A snapshot made and written. */
static enum pp_code save(const struct resume *r, double *ms, size_t *bytes, struct pp_error *err)
{
    struct pp_buf data = {0};
    uint64_t begin = pp_now_ns();
    enum pp_code code = pp_snapshot_save(r->seq, &identity, &data, err);
    if (!code)
        code = pp_write_file(r->path, data.data, data.len, 0600, err);
    *ms = (double)(pp_now_ns() - begin) / 1e6;
    *bytes = data.len;
    pp_buf_free(&data);
    return code;
}

/* Read, checked and restored into a conversation of its own. */
static enum pp_code restore(const struct resume *r, double *ms, struct pp_error *err)
{
    struct pp_seq *seq = NULL;
    struct pp_map map = {0};
    uint64_t begin = pp_now_ns();
    enum pp_code code = pp_map_open(r->path, &map, err);
    if (!code)
        code = pp_seq_new(r->engine, &seq, err);
    if (!code)
        code = pp_seq_set_adapters(seq, r->b->uses, r->b->n_adapters, err);
    if (!code)
        code = pp_snapshot_load(seq, &identity, map.data, map.size, err);
    *ms = (double)(pp_now_ns() - begin) / 1e6;
    if (!code && pp_seq_len(seq) != pp_seq_len(r->seq))
        code = pp_fail(err, PP_ERR_FORMAT, "a snapshot came back with another length");
    pp_map_close(&map);
    pp_seq_free(seq);
    return code;
}

static enum pp_code add_results(struct resume *r, int64_t tokens, struct pp_error *err)
{
    static const struct {
        const char *what, *name, *unit;
    } rows[4] = {
        {"save", "%lld tokens saved", "ms"},
        {"save_rate", "%lld tokens saved, with checksums", "MB/s"},
        {"resume", "%lld tokens read again", "ms"},
        {"resume_rate", "%lld tokens read again, checked", "MB/s"},
    };
    for (int i = 0; i < 4; i++) {
        struct bench_result *result = bench_add(&r->b->report, r->b->repetitions);
        if (!result)
            return pp_fail_nomem(err, "the results");
        r->results[i] = r->b->report.n - 1;
        result->what = rows[i].what;
        result->unit = rows[i].unit;
        result->more_is_better = i % 2;
        result->tokens = tokens;
        result->kv_type = pp_kv_type_name(pp_engine_kv_type(r->engine));
        snprintf(result->name, sizeof result->name, rows[i].name, (long long)tokens);
    }
    return PP_OK;
}

static void add_samples(const struct resume *r, int first, double ms, size_t bytes)
{
    for (int i = first; i < first + 2; i++) {
        struct bench_result *result = &r->b->report.results[r->results[i]];
        result->samples[result->n++] = i % 2 ? (double)bytes / 1e3 / ms : ms;
    }
}

static enum pp_code feed(const struct resume *r, int64_t tokens, struct pp_error *err)
{
    int32_t *prompt = pp_malloc((size_t)tokens * sizeof *prompt);
    if (!prompt)
        return pp_fail_nomem(err, "the prompt");
    for (int64_t i = 0; i < tokens; i++)
        prompt[i] = (int32_t)(i * 7 % pp_model_info(r->b->model)->n_vocab);
    enum pp_code code = pp_seq_set_adapters(r->seq, r->b->uses, r->b->n_adapters, err);
    if (!code)
        code = pp_cli_feed(r->engine, r->seq, prompt, (size_t)tokens, (size_t)tokens, NULL, NULL, r->b->cancel, err);
    pp_free(prompt);
    return code;
}

static enum pp_code resume_at(struct resume *r, int64_t tokens, struct pp_error *err)
{
    pp_cli_bar_show(&r->b->bar, "a conversation to be saved", 0, (uint64_t)tokens);
    enum pp_code code = pp_seq_new(r->engine, &r->seq, err);
    if (!code)
        code = feed(r, tokens, err);
    if (!code)
        code = add_results(r, tokens, err);
    for (int round = -1; round < r->b->repetitions && !code; round++) { /* the first warms up */
        double save_ms, restore_ms;
        size_t bytes;
        pp_cli_bar_show(&r->b->bar, "saving and reading", (uint64_t)(round + 1), (uint64_t)r->b->repetitions + 1);
        if (pp_cancelled(r->b->cancel))
            code = pp_fail(err, PP_ERR_CANCELLED, "interrupted");
        else if (!(code = save(r, &save_ms, &bytes, err)) && !(code = restore(r, &restore_ms, err)) && round >= 0) {
            add_samples(r, 0, save_ms, bytes);
            add_samples(r, 2, restore_ms, bytes);
        }
    }
    pp_seq_free(r->seq);
    r->seq = NULL;
    return code;
}

enum pp_code bench_resume(struct bench *b, struct pp_error *err)
{
    struct resume r = {.b = b};
    struct pp_engine_options opt = pp_cli_engine_options(b->o);
    int64_t longest = b->n_prompt;
    for (int64_t i = 0; i < b->n_depths; i++)
        longest = b->depths[i] > longest ? b->depths[i] : longest;
    opt.cache_dir = b->temporary ? NULL : b->paths->cache;
    opt.n_threads = (int)b->threads[0];
    opt.kv_type = (enum pp_kv_type)b->kv_types[0];
    if (opt.n_ctx == 0)
        opt.n_ctx = longest;
    bench_temporary(r.path, sizeof r.path, ".kv");
    enum pp_code code = pp_engine_new(b->model, &opt, NULL, NULL, &r.engine, err);
    for (int64_t i = 0; i < b->n_depths && !code; i++)
        if (b->depths[i] > 0)
            code = resume_at(&r, b->depths[i], err);
    if (!code && !b->n_depths)
        code = resume_at(&r, b->n_prompt, err);
    pp_cli_bar_clear(&b->bar);
    unlink(r.path);
    pp_engine_free(r.engine);
    return code;
}
