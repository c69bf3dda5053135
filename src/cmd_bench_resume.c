/* cmd_bench_resume.c - the time to save the computed state of a conversation and to continue from it, as the program
 * does after a turn and when a conversation is opened; without hashing the model, since that hash is cached.
 * Restoring is measured into a new engine, whose pages have never been touched, as in a program that has just
 * started, so that the kernel has to clear them first; into one for which that was done in advance, as the program
 * does; and into one whose pages another conversation has used. Measured with the files in the page cache, and
 * dropped from it. For comparison, the same bytes are read bypassing the page cache into memory that was touched
 * before, which is the speed of the disk. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/cmd_bench.h"

static const struct pp_sha256 identity; /* of no model: it only has to be the same for saving and restoring */
static const char OWNER[] = "bench";

enum { TURN = 20, READ_BYTES = 1 << 20, READ_ALIGN = 4096, MAX_READERS = 64 };

enum {
    SAVE, SAVE_RATE, TURN_SAVE, RESUME, RESUME_RATE, READY, READY_RATE, USED, USED_RATE, COLD, COLD_RATE, DIRECT,
    DIRECT_RATE, N_RESULTS
};

struct resume {
    struct bench *b;
    struct pp_engine_options options;
    struct pp_engine *engine;
    struct pp_seq *seq;         /* the conversation */
    char base[1024];            /* of its snapshot */
    char other_base[1024];      /* of the snapshot of another conversation */
    int32_t *other;             /* [tokens] of that conversation */
    size_t results[N_RESULTS];
};

static const char *file_of(const struct resume *r, const char *ending, char path[static 1040])
{
    snprintf(path, 1040, "%s%s", r->base, ending);
    return path;
}

static double since(uint64_t begin)
{
    return (double)(pp_now_ns() - begin) / 1e6;
}

/* Saves what is new in a sequence, with fsync. */
static enum pp_code save(struct pp_seq *seq, const char *base, double *ms, size_t *bytes, struct pp_error *err)
{
    struct pp_save *j;
    uint64_t all;
    bool done = false;
    uint64_t begin = pp_now_ns();
    enum pp_code code = pp_save_new(seq, &identity, base, OWNER, &j, err);
    if (!code)
        code = pp_save_plan(j, UINT64_MAX, &all, err);
    while (!code && !done)
        code = pp_save_write(j, UINT64_MAX, NULL, &done, err);
    *ms = since(begin);
    *bytes = code ? 0 : pp_save_counts(j)->page_bytes_written + pp_save_counts(j)->manifest_bytes;
    pp_save_free(j);
    return code;
}

/* A new engine. n_pages: the limit; 0: the usual number. */
static enum pp_code fresh_engine(const struct resume *r, uint64_t n_pages, struct pp_engine **out,
                                 struct pp_error *err)
{
    struct pp_engine_options opt = r->options;
    opt.share_pool = r->engine;
    opt.layout_quota = PP_LAYOUTS_OFF;
    if (n_pages) {
        opt.n_ctx = pp_seq_len(r->seq);
        opt.kv_memory = n_pages * pp_engine_stats(r->engine)->page_bytes;
    }
    return pp_engine_new(r->b->model, &opt, NULL, NULL, out, err);
}

/* Restores the snapshot into a new conversation of the engine, and drops that again. */
static enum pp_code read_again(const struct resume *r, struct pp_engine *engine, const char *base,
                               const int32_t *tokens, int64_t n, double *ms, struct pp_error *err)
{
    struct pp_seq *seq = NULL;
    uint64_t begin = pp_now_ns();
    enum pp_code code = pp_seq_new(engine, &seq, err);
    if (!code)
        code = pp_seq_set_adapters(seq, r->b->uses, r->b->n_adapters, err);
    if (!code)
        code = pp_snapshot_restore(seq, &identity, base, OWNER, tokens, n, r->b->cancel, err);
    *ms = since(begin);
    if (!code && pp_seq_len(seq) != n)
        code = pp_fail(err, PP_ERR_FORMAT, "a snapshot came back with another length");
    pp_seq_free(seq);
    return code;
}

static enum pp_code restore(const struct resume *r, double *ms, struct pp_error *err)
{
    struct pp_engine *engine = NULL;
    enum pp_code code = fresh_engine(r, 0, &engine, err);
    if (!code)
        code = read_again(r, engine, r->base, pp_seq_tokens(r->seq), pp_seq_len(r->seq), ms, err);
    pp_engine_free(engine);
    return code;
}

/* The same with memory prepared in advance, as the program does while the user looks at the list. */
static enum pp_code restore_ready(const struct resume *r, uint64_t bytes, double *ms, struct pp_error *err)
{
    struct pp_engine *engine = NULL;
    enum pp_code code = fresh_engine(r, 0, &engine, err);
    if (!code) {
        pp_engine_prefault(engine, bytes, NULL);
        code = read_again(r, engine, r->base, pp_seq_tokens(r->seq), pp_seq_len(r->seq), ms, err);
    }
    pp_engine_free(engine);
    return code;
}

/* The same after another conversation has used all pages. */
static enum pp_code restore_used(const struct resume *r, double *ms, struct pp_error *err)
{
    enum { PAGE = 64, SPARE = 2 };
    const int64_t n = pp_seq_len(r->seq);
    struct pp_engine *engine = NULL;
    double other_ms;
    enum pp_code code = fresh_engine(r, (uint64_t)(n / PAGE + SPARE), &engine, err);
    if (!code)
        code = read_again(r, engine, r->other_base, r->other, n, &other_ms, err);
    if (!code)
        code = read_again(r, engine, r->base, pp_seq_tokens(r->seq), n, ms, err);
    pp_engine_free(engine);
    return code;
}

/* --- reading from the disk only ----------------------------------------------------------------------------------- */

/* Drops the files from the page cache. */
static void drop(const struct resume *r)
{
    static const char *const endings[] = {".pack", ".manifest"};
    char path[1040];
    for (int i = 0; i < 2; i++) {
        int fd = open(file_of(r, endings[i], path), O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        fdatasync(fd);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

struct direct {
    int fd;
    size_t size;
    atomic_size_t next;
    atomic_bool failed;
    uint8_t *buffers; /* [readers][READ_BYTES] */
    atomic_int n_started;
};

static void *read_direct(void *arg)
{
    struct direct *d = arg;
    uint8_t *to = d->buffers + (size_t)atomic_fetch_add(&d->n_started, 1) * READ_BYTES;
    for (size_t at; (at = atomic_fetch_add(&d->next, READ_BYTES)) < d->size;) {
        size_t n = d->size - at < READ_BYTES ? d->size - at : READ_BYTES;
        if (pread(d->fd, to, n, (off_t)at) != (ssize_t)n)
            atomic_store(&d->failed, true);
    }
    return NULL;
}

/* Reads the pack file with as many threads, bypassing the page cache if the file system supports that. */
static enum pp_code direct(const struct resume *r, double *ms, struct pp_error *err)
{
    char path[1040];
    struct stat st;
    pthread_t threads[MAX_READERS];
    int n = pp_engine_n_threads(r->engine), started = 0;
    n = n < MAX_READERS ? n : MAX_READERS;
    struct direct d = {.fd = open(file_of(r, ".pack", path), O_RDONLY | O_DIRECT | O_CLOEXEC)};
    if (d.fd < 0)
        d.fd = open(path, O_RDONLY | O_CLOEXEC);
    d.buffers = pp_aligned(READ_ALIGN, (size_t)n * READ_BYTES);
    enum pp_code code = d.buffers ? PP_OK : pp_fail_nomem(err, "a buffer");
    if (!code && (d.fd < 0 || fstat(d.fd, &st) != 0))
        code = pp_fail(err, PP_ERR_IO, "cannot read %s", path);
    if (!code) {
        memset(d.buffers, 1, (size_t)n * READ_BYTES);
        d.size = (size_t)st.st_size;
        uint64_t begin = pp_now_ns();
        while (started < n - 1 && pthread_create(&threads[started], NULL, read_direct, &d) == 0)
            started++;
        read_direct(&d);
        for (int i = 0; i < started; i++)
            pthread_join(threads[i], NULL);
        *ms = since(begin);
        if (atomic_load(&d.failed))
            code = pp_fail(err, PP_ERR_IO, "cannot read %s", path);
    }
    if (d.fd >= 0)
        close(d.fd);
    pp_free(d.buffers);
    return code;
}

/* --- results ------------------------------------------------------------------------------------------------------ */

static enum pp_code add_results(struct resume *r, int64_t tokens, struct pp_error *err)
{
    static const struct {
        const char *what, *name, *unit;
    } rows[N_RESULTS] = {
        [SAVE] = {"save", "%lld tokens saved", "ms"},
        [SAVE_RATE] = {"save_rate", "%lld tokens saved, with checksums", "MB/s"},
        [TURN_SAVE] = {"save_turn", "20 tokens more after %lld saved", "ms"},
        [RESUME] = {"resume", "%lld tokens read again", "ms"},
        [RESUME_RATE] = {"resume_rate", "%lld tokens read again, checked", "MB/s"},
        [READY] = {"resume_ready", "%lld tokens read again into memory made ready", "ms"},
        [READY_RATE] = {"resume_ready_rate", "%lld tokens read again into memory made ready, checked", "MB/s"},
        [USED] = {"resume_used", "%lld tokens read again into memory in use", "ms"},
        [USED_RATE] = {"resume_used_rate", "%lld tokens read again into memory in use, checked", "MB/s"},
        [COLD] = {"resume_cold", "%lld tokens read from the disk", "ms"},
        [COLD_RATE] = {"resume_cold_rate", "%lld tokens read from the disk, checked", "MB/s"},
        [DIRECT] = {"direct", "the file of %lld tokens alone, directly", "ms"},
        [DIRECT_RATE] = {"direct_rate", "the file of %lld tokens alone, at", "MB/s"},
    };
    for (int i = 0; i < N_RESULTS; i++) {
        struct bench_result *result = bench_add(&r->b->report, r->b->repetitions);
        if (!result)
            return pp_fail_nomem(err, "the results");
        r->results[i] = r->b->report.n - 1;
        result->what = rows[i].what;
        result->unit = rows[i].unit;
        result->more_is_better = rows[i].unit[0] == 'M';
        result->tokens = tokens;
        result->kv_type = pp_kv_type_name(pp_engine_kv_type(r->engine));
        snprintf(result->name, sizeof result->name, rows[i].name, (long long)tokens);
    }
    return PP_OK;
}

static void add_sample(const struct resume *r, int which, double value)
{
    struct bench_result *result = &r->b->report.results[r->results[which]];
    result->samples[result->n++] = value;
}

/* Adds a time, and the rate to the result after it. */
static void add_samples(const struct resume *r, int which, double ms, size_t bytes)
{
    add_sample(r, which, ms);
    add_sample(r, which + 1, (double)bytes / 1e3 / ms);
}

/* Tokens that differ by `salt`; pp_free. */
static int32_t *make_tokens(const struct resume *r, int64_t n, int64_t salt)
{
    int32_t *tokens = pp_malloc((size_t)n * sizeof *tokens);
    for (int64_t i = 0; tokens && i < n; i++)
        tokens[i] = (int32_t)((i * 7 + salt) % pp_model_info(r->b->model)->n_vocab);
    return tokens;
}

/* Computes those of the tokens that the sequence lacks. */
static enum pp_code feed(const struct resume *r, struct pp_seq *seq, const int32_t *tokens, int64_t n,
                         struct pp_error *err)
{
    size_t have = (size_t)pp_seq_len(seq), left = (size_t)n - have;
    return pp_cli_feed_progress(r->engine, seq, tokens + have, left, left, bench_show_prompt, r->b, r->b->cancel, err);
}

/* Adds a few tokens, as after a turn. */
static enum pp_code grow(const struct resume *r, struct pp_error *err)
{
    const int64_t n = pp_seq_len(r->seq) + TURN;
    int32_t *tokens = make_tokens(r, n, 0);
    enum pp_code code = tokens ? feed(r, r->seq, tokens, n, err) : pp_fail_nomem(err, "the prompt");
    pp_free(tokens);
    return code;
}

/* Computes the conversation, and saves another one of the same length. */
static enum pp_code prepare(struct resume *r, int64_t n, struct pp_error *err)
{
    struct pp_seq *other = NULL;
    int32_t *tokens = make_tokens(r, n, 0);
    double ms;
    size_t bytes;
    r->other = make_tokens(r, n, 3);
    enum pp_code code = tokens && r->other ? pp_seq_new(r->engine, &r->seq, err) : pp_fail_nomem(err, "the prompt");
    if (!code)
        code = pp_seq_set_adapters(r->seq, r->b->uses, r->b->n_adapters, err);
    if (!code)
        code = feed(r, r->seq, tokens, n, err);
    if (!code)
        code = pp_seq_new(r->engine, &other, err);
    if (!code)
        code = pp_seq_set_adapters(other, r->b->uses, r->b->n_adapters, err);
    if (!code)
        code = feed(r, other, r->other, n, err);
    if (!code)
        code = save(other, r->other_base, &ms, &bytes, err);
    pp_seq_free(other);
    pp_free(tokens);
    return code;
}

/* --- the measurement ---------------------------------------------------------------------------------------------- */

/* Measures everything once; if warming, without storing samples. */
static enum pp_code once(struct resume *r, int64_t tokens, bool warming, struct pp_error *err)
{
    double save_ms, turn_ms, warm_ms, ready_ms, used_ms, cold_ms, direct_ms;
    size_t bytes, of_turn;
    if (pp_cancelled(r->b->cancel))
        return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
    enum pp_code code = pp_snapshot_remove(r->base, err);
    pp_seq_truncate(r->seq, tokens);
    if (!code)
        code = save(r->seq, r->base, &save_ms, &bytes, err);
    if (!code)
        code = restore(r, &warm_ms, err);
    if (!code)
        code = restore_ready(r, bytes, &ready_ms, err);
    if (!code)
        code = restore_used(r, &used_ms, err);
    if (!code) {
        drop(r);
        code = direct(r, &direct_ms, err);
    }
    if (!code) {
        drop(r);
        code = restore(r, &cold_ms, err);
    }
    if (!code)
        code = grow(r, err);
    if (!code)
        code = save(r->seq, r->base, &turn_ms, &of_turn, err);
    if (code || warming)
        return code;
    add_samples(r, SAVE, save_ms, bytes);
    add_sample(r, TURN_SAVE, turn_ms);
    add_samples(r, RESUME, warm_ms, bytes);
    add_samples(r, READY, ready_ms, bytes);
    add_samples(r, USED, used_ms, bytes);
    add_samples(r, COLD, cold_ms, bytes);
    add_samples(r, DIRECT, direct_ms, bytes);
    return PP_OK;
}

static enum pp_code resume_at(struct resume *r, int64_t tokens, struct pp_error *err)
{
    enum pp_code code = prepare(r, tokens, err);
    if (!code)
        code = add_results(r, tokens, err);
    for (int round = -1; round < r->b->repetitions && !code; round++) { /* the first round warms up */
        bench_show(r->b, "saving and reading", (uint64_t)(round + 1), (uint64_t)r->b->repetitions + 1);
        code = once(r, tokens, round < 0, err);
    }
    pp_seq_free(r->seq);
    pp_free(r->other);
    (void)pp_snapshot_remove(r->other_base, NULL);
    r->seq = NULL;
    r->other = NULL;
    return code;
}

/* An empty conversation has nothing to save: an error if that is all that is to be measured. */
static enum pp_code nothing_to_save(const struct bench *b, struct pp_error *err)
{
    if (b->what == BENCH_RESUME)
        return pp_fail(err, PP_ERR_USAGE, "bench resume measures what is saved of a conversation, and of 0 tokens that "
                                          "is nothing; give --depth a number from 1 on");
    pp_cli_say("resume is left out: of 0 tokens (--depth) nothing is saved");
    return PP_OK;
}

enum pp_code bench_resume(struct bench *b, struct pp_error *err)
{
    struct resume r = {.b = b, .options = pp_cli_engine_options(b->o)};
    struct pp_engine_options *opt = &r.options;
    int64_t deepest = 0, longest = b->n_prompt;
    for (int64_t i = 0; i < b->n_depths; i++)
        deepest = b->depths[i] > deepest ? b->depths[i] : deepest;
    if (b->n_depths && !deepest)
        return nothing_to_save(b, err);
    longest = deepest > longest ? deepest : longest;
    opt->cache_dir = b->temporary ? NULL : b->paths->cache;
    opt->n_threads = (int)b->threads[0];
    opt->kv_type = (enum pp_kv_type)b->kv_types[0];
    if (opt->n_ctx == 0)
        opt->n_ctx = longest + TURN;
    bench_temporary(r.base, sizeof r.base, "");
    bench_temporary(r.other_base, sizeof r.other_base, "-other");
    enum pp_code code = pp_engine_new(b->model, opt, NULL, NULL, &r.engine, err);
    for (int64_t i = 0; i < b->n_depths && !code; i++)
        if (b->depths[i] > 0)
            code = resume_at(&r, b->depths[i], err);
    if (!code && !b->n_depths)
        code = resume_at(&r, b->n_prompt, err);
    pp_cli_bar_clear(&b->bar);
    (void)pp_snapshot_remove(r.base, NULL);
    pp_engine_free(r.engine);
    return code;
}
