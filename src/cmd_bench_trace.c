/* cmd_bench_trace.c - many adapters at once: requests drawn from a Zipf distribution, a few answered at a time.
 *
 * Adapter k is requested with a probability proportional to 1 / k^s. A few clients take requests from the list, one
 * at a time each: the client's conversation is switched to the adapter (a swap, unless it had it already), its
 * prompt is computed, and then the answers of all clients grow together, by a token each in every pass. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/cmd_bench.h"

enum { CLIENTS = 4, PROMPT = 64, ANSWER = 32, RANK = 16 };

struct client {
    struct pp_seq *seq;
    int request;            /* -1: none */
    int adapter;            /* of its conversation; -1: none yet */
    int left;               /* tokens of the answer that are still missing */
    int32_t token;          /* input of its next row */
    uint64_t begin;
};

struct trace {
    struct bench *b;
    struct pp_engine *engine;
    struct pp_adapter **adapters; /* [n_adapters] */
    int n_adapters;
    int *wanted;            /* [n_requests]: the adapter of each */
    int n_requests, next;
    double *latency_ms, *first_ms; /* [n_requests], in the order in which they ended or began */
    int n_ended, n_begun;
    int64_t swaps;
    struct client clients[CLIENTS];
    int32_t prompt[PROMPT];
    int32_t choice;         /* the token chosen after the prompt that was computed last */
};

/* Greedy choice; n > 0. */
static int32_t most_likely(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* Draws the requests; they are the same on every machine. */
static void draw_requests(struct trace *t, double s)
{
    double sum = 0;
    uint64_t state = 88172645463325252u;
    for (int k = 1; k <= t->n_adapters; k++)
        sum += pow(k, -s);
    for (int i = 0; i < t->n_requests; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        double at = (double)(state >> 11) / 9007199254740992.0 * sum;
        int k = 1;
        while (k < t->n_adapters && (at -= pow(k, -s)) > 0)
            k++;
        t->wanted[i] = k - 1;
    }
}

/* Loads those of --lora, or as many random ones as requested, each from a file that is deleted at once. */
static enum pp_code load_adapters(struct trace *t, struct pp_error *err)
{
    struct bench *b = t->b;
    enum pp_code code = PP_OK;
    int wanted = b->o->n_lora ? b->o->n_lora : b->o->bench.adapters;
    t->adapters = pp_calloc((size_t)wanted, sizeof *t->adapters);
    if (!t->adapters)
        return pp_fail_nomem(err, "the adapters");
    for (int i = 0; i < wanted && !code; i++) {
        char path[1024];
        if (b->o->n_lora) {
            code = pp_adapter_load(b->model, b->o->lora[i].path, &t->adapters[i], err);
        } else {
            bench_temporary(path, sizeof path, ".lora.gguf");
            const struct pp_random_adapter spec = {.kind = PP_RANDOM_LORA, .rank = RANK, .seed = (uint64_t)i + 1};
            code = pp_random_adapter_write(b->model, &spec, path, err);
            if (!code)
                code = pp_adapter_load(b->model, path, &t->adapters[i], err);
            unlink(path);
        }
        t->n_adapters += !code;
    }
    return code;
}

static enum pp_code take_choice(void *user, size_t i, const float *logits, struct pp_error *err)
{
    struct trace *t = user;
    (void)i, (void)err;
    t->choice = most_likely(logits, pp_model_info(t->b->model)->n_vocab);
    return PP_OK;
}

/* An idle client, preferably one whose conversation has this adapter. NULL: all are busy. */
static struct client *idle_client(struct trace *t, int adapter)
{
    struct client *any = NULL;
    for (int i = 0; i < CLIENTS; i++) {
        if (t->clients[i].request >= 0)
            continue;
        if (t->clients[i].adapter == adapter)
            return &t->clients[i];
        any = any ? any : &t->clients[i];
    }
    return any;
}

static enum pp_code begin_request(struct trace *t, struct client *c, struct pp_error *err)
{
    int adapter = t->wanted[t->next];
    struct pp_adapter_use use = {.adapter = t->adapters[adapter], .scale = 1};
    c->begin = pp_now_ns();
    c->request = t->next++;
    c->left = ANSWER;
    t->swaps += c->adapter != adapter;
    c->adapter = adapter;
    enum pp_code code = pp_seq_set_adapters(c->seq, &use, 1, err);
    if (code)
        return code;
    pp_seq_truncate(c->seq, 0); /* drop the tokens of its earlier request */
    code = pp_cli_feed(t->engine, c->seq, t->prompt, PROMPT, PROMPT - 1, take_choice, t, t->b->cancel, err);
    c->token = t->choice;
    t->first_ms[t->n_begun++] = (double)(pp_now_ns() - c->begin) / 1e6;
    return code;
}

/* One more token for every client that is being answered. */
static enum pp_code answer_all(struct trace *t, struct pp_error *err)
{
    struct pp_row rows[CLIENTS];
    struct client *who[CLIENTS];
    int64_t n_vocab = pp_model_info(t->b->model)->n_vocab;
    int n = 0;
    for (int i = 0; i < CLIENTS; i++) {
        struct client *c = &t->clients[i];
        if (c->request < 0)
            continue;
        who[n] = c;
        rows[n++] =
            (struct pp_row){.seq = c->seq, .token = c->token, .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    }
    enum pp_code code = pp_step(t->engine, rows, n, t->b->cancel, err);
    for (int i = 0; i < n && !code; i++) {
        who[i]->token = most_likely(pp_step_output(t->engine, i), n_vocab);
        if (--who[i]->left > 0)
            continue;
        t->latency_ms[t->n_ended++] = (double)(pp_now_ns() - who[i]->begin) / 1e6;
        who[i]->request = -1;
    }
    return code;
}

static enum pp_code run_trace(struct trace *t, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    t->next = t->n_ended = t->n_begun = 0;
    t->swaps = 0;
    while (t->n_ended < t->n_requests && !code) {
        struct client *c;
        while (!code && t->next < t->n_requests && (c = idle_client(t, t->wanted[t->next])))
            code = begin_request(t, c, err);
        if (!code)
            code = answer_all(t, err);
    }
    return code;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest value that is at least as large as this fraction of all. v: sorted. */
static double percentile(const double *v, int n, double share)
{
    int i = (int)ceil(share * n) - 1;
    return v[i < 0 ? 0 : i];
}

static const struct {
    const char *what, *name, *unit;
    bool more;
} figures[] = {
    {"trace", "trace: tokens of answers", "tokens/s", true},
    {"trace_latency", "trace: latency, median", "ms", false},
    {"trace_latency", "trace: latency, 95 of 100", "ms", false},
    {"trace_latency", "trace: latency, 99 of 100", "ms", false},
    {"trace_first", "trace: first token, median", "ms", false},
    {"trace_first", "trace: first token, 95 of 100", "ms", false},
    {"trace_swaps", "trace: adapters swapped", "times", false},
};
enum { N_FIGURES = sizeof figures / sizeof *figures };

static void note_trace(struct trace *t, size_t first, uint64_t ns)
{
    qsort(t->latency_ms, (size_t)t->n_ended, sizeof *t->latency_ms, ascending);
    qsort(t->first_ms, (size_t)t->n_begun, sizeof *t->first_ms, ascending);
    const double samples[N_FIGURES] = {
        (double)t->n_requests * ANSWER * 1e9 / (double)(ns ? ns : 1),
        percentile(t->latency_ms, t->n_ended, 0.5),
        percentile(t->latency_ms, t->n_ended, 0.95),
        percentile(t->latency_ms, t->n_ended, 0.99),
        percentile(t->first_ms, t->n_begun, 0.5),
        percentile(t->first_ms, t->n_begun, 0.95),
        (double)t->swaps,
    };
    for (int f = 0; f < N_FIGURES; f++) {
        struct bench_result *r = &t->b->report.results[first + (size_t)f];
        r->samples[r->n++] = samples[f];
    }
}

static enum pp_code open_trace(struct trace *t, struct pp_error *err)
{
    struct bench *b = t->b;
    struct pp_engine_options opt = pp_cli_engine_options(b->o);
    opt.n_ctx = PROMPT + ANSWER;
    opt.cancel = b->cancel;
    opt.cache_dir = b->temporary ? NULL : b->paths->cache;
    t->n_requests = b->o->bench.requests;
    t->wanted = pp_calloc((size_t)t->n_requests, sizeof *t->wanted);
    t->latency_ms = pp_calloc((size_t)t->n_requests, sizeof *t->latency_ms);
    t->first_ms = pp_calloc((size_t)t->n_requests, sizeof *t->first_ms);
    if (!t->wanted || !t->latency_ms || !t->first_ms)
        return pp_fail_nomem(err, "the requests");
    for (int i = 0; i < PROMPT; i++)
        t->prompt[i] = (int32_t)(i * 7919 % pp_model_info(b->model)->n_vocab);
    enum pp_code code = load_adapters(t, err);
    if (!code)
        code = pp_engine_new(b->model, &opt, NULL, NULL, &t->engine, err);
    if (!code)
        code = pp_engine_settle(t->engine, b->cancel, err);
    for (int i = 0; i < CLIENTS; i++)
        t->clients[i] = (struct client){.request = -1, .adapter = -1};
    for (int i = 0; i < CLIENTS && !code; i++)
        code = pp_seq_new(t->engine, &t->clients[i].seq, err);
    if (!code)
        draw_requests(t, (double)b->o->bench.zipf);
    return code;
}

static void close_trace(struct trace *t)
{
    for (int i = 0; i < CLIENTS; i++)
        pp_seq_free(t->clients[i].seq);
    pp_engine_free(t->engine);
    for (int i = 0; i < t->n_adapters; i++)
        pp_adapter_free(t->adapters[i]);
    pp_free(t->adapters);
    pp_free(t->wanted);
    pp_free(t->latency_ms);
    pp_free(t->first_ms);
}

enum pp_code bench_trace(struct bench *b, struct pp_error *err)
{
    struct trace t = {.b = b};
    size_t first = b->report.n;
    enum pp_code code = PP_OK;
    for (int f = 0; f < N_FIGURES && !code; f++) {
        struct bench_result *r = bench_add(&b->report, b->repetitions);
        if (!r)
            return pp_fail_nomem(err, "the results");
        snprintf(r->name, sizeof r->name, "%s", figures[f].name);
        r->what = figures[f].what;
        r->unit = figures[f].unit;
        r->more_is_better = figures[f].more;
    }
    code = open_trace(&t, err);
    for (int round = -1; round < b->repetitions && !code; round++) {
        bench_show(b, "measuring a trace", (uint64_t)(round + 1), (uint64_t)b->repetitions + 1);
        uint64_t begin = pp_now_ns();
        code = run_trace(&t, err);
        if (!code && round >= 0)
            note_trace(&t, first, pp_now_ns() - begin);
    }
    pp_cli_bar_clear(&b->bar);
    close_trace(&t);
    return code;
}
