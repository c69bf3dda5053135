/* cmd_bench_start.c - the time until a model answers: starting the program, the first token, the tokenizer. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/cmd_bench.h"

extern char **environ;

static size_t add_result(struct bench *b, const char *what, const char *name, const char *unit, bool more)
{
    struct bench_result *r = bench_add(&b->report, b->repetitions);
    if (!r)
        return SIZE_MAX;
    snprintf(r->name, sizeof r->name, "%s", name);
    r->what = what;
    r->unit = unit;
    r->more_is_better = more;
    return b->report.n - 1;
}

static void add_sample(struct bench *b, size_t result, int round, double sample)
{
    struct bench_result *r = &b->report.results[result];
    if (round >= 0) /* negative rounds warm up */
        r->samples[r->n++] = sample;
}

static double since_ms(uint64_t begin)
{
    return (double)(pp_now_ns() - begin) / 1e6;
}

/* --- start ------------------------------------------------------------------------------------------------------ */

/* Runs this program anew, with its output left out but for errors, and waits for its end. */
static enum pp_code time_program(struct bench *b, const char *const *argv, double *ms, struct pp_error *err)
{
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = 0;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return pp_fail_nomem(err, "a process");
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    uint64_t begin = pp_now_ns();
    int problem = posix_spawn(&child, "/proc/self/exe", &actions, NULL, (char **)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (problem)
        return pp_fail(err, PP_ERR_IO, "cannot start pippin anew: %s", strerror(problem));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    *ms = since_ms(begin);
    if (pp_cancelled(b->cancel))
        return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0
               ? PP_OK
               : pp_fail(err, PP_ERR_IO, "`pippin %s`, started to be timed, ended badly; see what it said", argv[1]);
}

/* The process opens the model, computes the logits of one token, and writes them. Repacked weights of a random model,
 * which will be deleted, are not kept. */
static enum pp_code time_one_token(struct bench *b, const char *output, double *ms, struct pp_error *err)
{
    const bool off = b->temporary || b->o->layout_cache == PP_LAYOUTS_OFF;
    char threads[32], cache[32];
    snprintf(threads, sizeof threads, "%d", b->o->threads);
    snprintf(cache, sizeof cache, off ? "off" : "%llu", (unsigned long long)b->o->layout_cache);
    const char *argv[20] = {"pippin", "logits", "-m", b->path, "--ids", "1", "-o", output, "-t", threads, "--kv-type",
                            pp_kv_type_name((enum pp_kv_type)b->kv_types[0])};
    int n = 12;
    if (b->o->kernels) {
        argv[n++] = "--kernels";
        argv[n++] = b->o->kernels;
    }
    if (off || b->o->layout_cache) {
        argv[n++] = "--layout-cache";
        argv[n++] = cache;
    }
    return time_program(b, argv, ms, err);
}

/* Opens model and engine in this process, and computes the first token of a prompt. */
static enum pp_code run_request(struct bench *b, double *open_ms, double *first_ms, struct pp_error *err)
{
    struct pp_engine_options opt = pp_cli_engine_options(b->o);
    struct pp_model *m = NULL;
    struct pp_engine *e = NULL;
    struct pp_seq *s = NULL;
    struct pp_gen *g = NULL;
    struct pp_gen_options gen = {.sampling = pp_sampling_default(),
                                 .max_tokens = 1,
                                 .ignore_end = true,
                                 .progress = bench_show_prompt,
                                 .user = b};
    struct pp_buf text = {0};
    enum pp_finish finish;
    int n = 0;
    int32_t *prompt = pp_malloc((size_t)b->n_prompt * sizeof *prompt);
    if (!prompt)
        return pp_fail_nomem(err, "the prompt");
    opt.cache_dir = b->temporary ? NULL : b->paths->cache;
    if (opt.n_ctx == 0)
        opt.n_ctx = b->n_prompt + 8;
    uint64_t begin = pp_now_ns();
    enum pp_code code = pp_model_open(b->path, &m, err);
    if (!code)
        code = pp_engine_new(m, &opt, NULL, NULL, &e, err);
    *open_ms = since_ms(begin);
    if (!code)
        code = pp_seq_new(e, &s, err);
    if (!code) {
        for (int64_t i = 0; i < b->n_prompt; i++)
            prompt[i] = (int32_t)(i * 7 % (pp_model_info(m)->n_vocab < 256 ? pp_model_info(m)->n_vocab : 256));
        begin = pp_now_ns();
        code = pp_gen_start(s, prompt, b->n_prompt, &gen, b->cancel, &g, err);
    }
    if (!code)
        code = pp_gen_next(g, b->cancel, &text, &n, &finish, err);
    *first_ms = since_ms(begin);
    pp_gen_free(g);
    pp_seq_free(s);
    pp_engine_free(e);
    pp_model_close(m);
    pp_buf_free(&text);
    pp_free(prompt);
    return code;
}

enum pp_code bench_start(struct bench *b, struct pp_error *err)
{
    char name[96], output[1024];
    snprintf(name, sizeof name, "first token of a prompt of %lld, from request", (long long)b->n_prompt);
    static const char *const version[] = {"pippin", "--version", NULL};
    size_t alone = add_result(b, "exec", "no model, from exec to exit", "ms", false);
    size_t exec = add_result(b, "start", "one token, from exec to exit", "ms", false);
    size_t open = add_result(b, "open", "model and engine, from opening", "ms", false);
    size_t first = add_result(b, "first_token", name, "ms", false);
    if (alone == SIZE_MAX || exec == SIZE_MAX || open == SIZE_MAX || first == SIZE_MAX)
        return pp_fail_nomem(err, "the results");
    bench_temporary(output, sizeof output, ".safetensors");
    enum pp_code code = PP_OK;
    for (int round = -1; round < b->repetitions && !code; round++) {
        double alone_ms = 0, exec_ms = 0, open_ms = 0, first_ms = 0;
        bench_show(b, "measuring the start", (uint64_t)(round + 1), (uint64_t)b->repetitions + 1);
        if ((code = time_program(b, version, &alone_ms, err)) || (code = time_one_token(b, output, &exec_ms, err)) ||
            (code = run_request(b, &open_ms, &first_ms, err)))
            break;
        add_sample(b, alone, round, alone_ms);
        add_sample(b, exec, round, exec_ms);
        add_sample(b, open, round, open_ms);
        add_sample(b, first, round, first_ms);
    }
    pp_cli_bar_clear(&b->bar);
    unlink(output);
    return code;
}

/* --- tokenizer -------------------------------------------------------------------------------------------------- */

/* About a megabyte of text in which no two lines are equal: prose, code, numbers, several scripts. */
static void own_text(struct pp_buf *text)
{
    enum { WANTED = 1000000 };
    for (int i = 0; text->len < WANTED && !text->bad; i++)
        pp_buf_fmt(text,
                   "On day %d of the voyage the wind had turned, and she wrote: \"We shan't reach the harbour before "
                   "%d o'clock.\" Nobody answered; the lamp was low.\n"
                   "\tfor (int i_%d = 0; i_%d < %d; ++i_%d) { total += table[i_%d] * 0x%xu; } // see \xc2\xa7%d\n"
                   "Die Br\xc3\xbc" "cke Nr. %d \xc3\xbc" "ber den Flu\xc3\x9f wurde %d gebaut \xe2\x80\x93 f\xc3\xbcr "
                   "%d.%02d Gulden.\n"
                   "\xe4\xbb\x8a\xe6\x97\xa5\xe3\x81\xaf\xe7\xac\xac%d\xe6\x97\xa5\xe7\x9b\xae\xe3\x81\xa7\xe3\x81\x99"
                   "\xe3\x80\x82 \xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82, \xd0\xbc\xd0\xb8\xd1\x80 %d! "
                   "https://example.org/a/%d?x=%d&y=%d\n\n",
                   i, 3 + i % 9, i % 7, i % 7, i * 17, i % 7, i % 7, (unsigned)i * 2654435761u, i % 99, i,
                   1500 + i % 400, i % 90, i % 100, i, i * 3, i, i * 7 % 1000, i % 13);
}

static enum pp_code time_tokenizer(struct bench *b, const struct pp_buf *text, size_t to, size_t from,
                                   struct pp_error *err)
{
    const struct pp_tokenizer *t = b->tokenizer ? b->tokenizer : pp_model_tokenizer(b->model);
    for (int round = -1; round < b->repetitions; round++) {
        int32_t *ids;
        size_t n_ids;
        struct pp_buf back = {0};
        bench_show(b, "measuring the tokenizer", (uint64_t)(round + 1), (uint64_t)b->repetitions + 1);
        if (pp_cancelled(b->cancel))
            return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
        uint64_t begin = pp_now_ns();
        enum pp_code code = pp_tokenize(t, text->data, text->len, 0, &ids, &n_ids, err);
        if (code)
            return code;
        add_sample(b, to, round, (double)text->len / 1e3 / since_ms(begin));
        begin = pp_now_ns();
        pp_detokenize(t, ids, n_ids, true, &back);
        add_sample(b, from, round, (double)back.len / 1e3 / since_ms(begin));
        b->report.results[to].tokens = b->report.results[from].tokens = (int64_t)n_ids;
        pp_buf_free(&back);
        pp_free(ids);
    }
    return PP_OK;
}

enum pp_code bench_tokenizer(struct bench *b, struct pp_error *err)
{
    struct pp_buf text = {0};
    enum pp_code code = PP_OK;
    if (!b->tokenizer && !pp_model_tokenizer(b->model))
        return b->what == BENCH_TOKENIZER
                   ? pp_fail(err, PP_ERR_USAGE, "%s has no vocabulary, so there is no tokenizer to measure", b->path)
                   : PP_OK;
    if (b->o->file)
        code = pp_cli_read(b->o->file, &text, err);
    else
        own_text(&text);
    if (!code && (text.bad || !text.len))
        code = text.bad ? pp_fail_nomem(err, "the text") : pp_fail(err, PP_ERR_USAGE, "%s is empty", b->o->file);
    if (!code) {
        size_t to =
            add_result(b, "tokenize", b->o->file ? "tokenize the file" : "tokenize the built-in text", "MB/s", true);
        size_t from = add_result(b, "detokenize", "detokenize it", "MB/s", true);
        code = to == SIZE_MAX || from == SIZE_MAX ? pp_fail_nomem(err, "the results")
                                                  : time_tokenizer(b, &text, to, from, err);
    }
    pp_cli_bar_clear(&b->bar);
    pp_buf_free(&text);
    return code;
}
