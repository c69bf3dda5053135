/* generate.c - an answer: its beginning and end, the choice of tokens, and its text. schedule.c computes it. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/generate_int.h"
#include "engine/reasoning.h"
#include "engine/text.h"

enum { MAX_PIECE = 1024 };

/* --- choosing -------------------------------------------------------------------------------------------------- */

static bool is_written(const struct pp_gen *g, int32_t token)
{
    int i = 0;
    while (i < g->n_written && g->written[i] != token)
        i++;
    return i < g->n_written;
}

bool pp_gen_ends(const struct pp_gen *g, int32_t token)
{
    const struct pp_tokenizer *t = g->seq->engine->model->tokenizer;
    return !g->ignore_end && t && pp_tokenizer_is_end(t, token) && !is_written(g, token);
}

/* Replaces `width` bytes at `at` by n others; bytes NULL: by copies of the first one. */
static void replace(struct pp_buf *b, size_t at, size_t width, const char *bytes, size_t n)
{
    const size_t tail = b->len - at - width;
    for (size_t i = width; i < n; i++)
        pp_buf_char(b, 0);
    if (b->bad)
        return;
    memmove(b->data + at + n, b->data + at + width, tail);
    if (bytes)
        memcpy(b->data + at, bytes, n);
    else
        memset(b->data + at, b->data[at], n);
    b->len = at + n + tail;
    b->data[b->len] = 0;
}

/* Converts pending text to the form in which it is shown (pp_shown_text), as far as that can be decided; last: no more
 * text follows, so that all can. */
static void settle(struct pp_gen *g, const struct pp_tokenizer *t, bool last)
{
    while (g->n_pending && !g->held.bad && !g->held_drafted.bad) {
        const size_t at = g->held.len - g->n_pending;
        const char *shown;
        size_t n_shown;
        const size_t width = pp_shown_text(t, g->held.data + at, g->n_pending, last, &shown, &n_shown);
        if (width == 0)
            return;
        if (shown != g->held.data + at) {
            replace(&g->held, at, width, shown, n_shown);
            replace(&g->held_drafted, at, width, NULL, n_shown);
        }
        g->n_pending -= width;
    }
}

/* Bytes of the held text that are in their final form. */
static size_t n_settled(const struct pp_gen *g)
{
    return g->held.len - g->n_pending;
}

static void add_text(struct pp_gen *g, const struct pp_tokenizer *t, int32_t token, bool drafted)
{
    const bool control = is_written(g, token);
    if (control) {
        settle(g, t, true);
        pp_buf_str(&g->held, PP_CONTROL_MARK);
    }
    const size_t before = g->held.len;
    pp_token_text(t, token, control, &g->held);
    while (g->held_drafted.len < g->held.len && !g->held_drafted.bad)
        pp_buf_char(&g->held_drafted, drafted);
    if (!control) {
        g->n_pending += g->held.len - before;
        settle(g, t, false);
    }
}

/* Offset of the first stop string in s, or n. */
static size_t find_stop(const struct pp_gen *g, const char *s, size_t n)
{
    size_t first = n;
    for (int i = 0; i < g->n_stops; i++) {
        const char *at = n ? memmem(s, n, g->stops[i], strlen(g->stops[i])) : NULL;
        if (at && (size_t)(at - s) < first)
            first = (size_t)(at - s);
    }
    return first;
}

bool pp_gen_accept(struct pp_gen *g, int32_t token, bool drafted)
{
    const struct pp_tokenizer *t = g->seq->engine->model->tokenizer;
    g->tokens[g->n++] = token;
    g->stats.decode_tokens++;
    g->seq->engine->stats.decode_tokens++;
    if (pp_gen_ends(g, token)) {
        g->finish = PP_FINISH_END;
        return true;
    }
    if (t)
        add_text(g, t, token, drafted);
    if (g->constraint)
        pp_constraint_accept(g->constraint, token, NULL); /* the next choice tells what went wrong */
    if (find_stop(g, g->held.data, n_settled(g)) < n_settled(g))
        g->finish = PP_FINISH_STOP; /* draft tokens after it are not part of the answer */
    else if (g->constraint && pp_constraint_over(g->constraint))
        g->finish = PP_FINISH_END;
    else if (g->max_tokens >= 0 && g->n - g->n_prompt >= g->max_tokens)
        g->finish = PP_FINISH_LENGTH;
    else if (g->n >= g->seq->engine->n_ctx)
        g->finish = PP_FINISH_CONTEXT;
    return g->finish != PP_FINISH_NONE;
}

struct pp_choice pp_gen_choose(struct pp_gen *g, const float *logits, int64_t n_history)
{
    uint64_t t0 = pp_now_ns();
    struct pp_choice choice = {.token = -1, .second = -1};
    g->sampler.allowed = NULL;
    if (!g->constraint ||
        !pp_constraint_allowed(g->constraint, (int)(n_history - g->n), &g->sampler.allowed, NULL))
        choice = pp_sampler_choose(&g->sampler, &g->sampling, logits, g->tokens, n_history);
    uint64_t ns = pp_now_ns() - t0;
    g->stats.sample_ns += ns;
    g->seq->engine->stats.sample_ns += ns;
    return choice;
}

enum pp_code pp_gen_no_token(const struct pp_gen *g, struct pp_error *err)
{
    if (g->constraint)
        return pp_constraint_stuck(g->constraint, err);
    if (g->sampling.n_bias)
        return pp_fail(err, PP_ERR_USAGE, "the logit biases forbid every token; remove some");
    if (g->seq->adapters.n)
        return pp_fail(err, PP_ERR_FORMAT,
                       "%s with %s computes NaN or infinity; use a smaller scale, or switch it off",
                       g->seq->engine->model->info.name, g->seq->adapters.n > 1 ? "these adapters" : "this adapter");
    return pp_fail(err, PP_ERR_FORMAT, "%s computes NaN or infinity; its file is damaged: download it again",
                   g->seq->engine->model->info.name);
}

/* --- text ------------------------------------------------------------------------------------------------------ */

/* Length of the longest suffix of s that is the beginning of a stop string. */
static size_t n_maybe_stop(const struct pp_gen *g, const char *s, size_t n)
{
    for (size_t tail = n < g->longest_stop ? n : g->longest_stop; tail > 0; tail--)
        for (int i = 0; i < g->n_stops; i++)
            if (strlen(g->stops[i]) > tail && memcmp(s + n - tail, g->stops[i], tail) == 0)
                return tail;
    return 0;
}

static void drop_front(struct pp_buf *b, size_t n)
{
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

static void release_text(struct pp_gen *g, size_t n, struct pp_buf *text, struct pp_buf *drafted)
{
    if (n == 0)
        return;
    pp_buf_add(text, g->held.data, n);
    size_t known = n < g->held_drafted.len ? n : g->held_drafted.len; /* fewer if memory ran out */
    if (drafted)
        pp_buf_add(drafted, g->held_drafted.data, known);
    drop_front(&g->held, n);
    drop_front(&g->held_drafted, known);
}

static void show(struct pp_gen *g, struct pp_buf *text, struct pp_buf *drafted)
{
    if (g->finish != PP_FINISH_NONE && g->n_pending)
        settle(g, g->seq->engine->model->tokenizer, true);
    const size_t n = n_settled(g), stop = find_stop(g, g->held.data, n);
    if (stop < n) {
        release_text(g, stop, text, drafted);
        g->held.len = g->held_drafted.len = g->n_pending = 0;
        g->finish = PP_FINISH_STOP;
        return;
    }
    size_t ready = n ? pp_utf8_complete(g->held.data, n) : 0;
    size_t back = n ? n_maybe_stop(g, g->held.data, n) : 0;
    if (ready > n - back)
        ready = n - back;
    release_text(g, ready, text, drafted);
    if (g->finish != PP_FINISH_NONE)
        release_text(g, g->held.len, text, drafted); /* no more text will follow */
}

void pp_gen_emit_text(struct pp_gen_item *item)
{
    struct pp_gen *g = item->gen;
    show(g, item->text, item->drafted);
    if (g->held.bad || g->held_drafted.bad || item->text->bad || (item->drafted && item->drafted->bad))
        item->code = pp_fail_nomem(&item->err, "the answer's text");
    item->n_tokens = (int)(g->n - g->n_reported);
    item->finish = g->finish;
    g->n_reported = g->n;
}

void pp_gen_flush(struct pp_gen *g, struct pp_buf *text, struct pp_buf *drafted)
{
    if (g->n_pending)
        settle(g, g->seq->engine->model->tokenizer, true);
    release_text(g, g->held.len, text, drafted);
}

/* --- life ------------------------------------------------------------------------------------------------------ */

/* Begins to hold the answer to a grammar; the vocabulary's trie is made for the first one. */
static enum pp_code begin_grammar(struct pp_gen *g, const struct pp_grammar_use *use, struct pp_error *err)
{
    struct pp_engine *e = g->seq->engine;
    const struct pp_tokenizer *t = e->model->tokenizer;
    const int64_t n = e->model->info.n_vocab;
    if (!t)
        return pp_fail(err, PP_ERR_USAGE, "a grammar needs a model with a vocabulary");
    enum pp_code code = e->trie ? PP_OK : pp_trie_new(t, n, &e->trie, err);
    int32_t *ends = code ? NULL : pp_calloc((size_t)n, sizeof *ends);
    size_t n_ends = 0;
    if (!code && !ends)
        code = pp_fail_nomem(err, "an answer");
    for (int32_t i = 0; !code && i < n && i < pp_tokenizer_n(t); i++)
        if (pp_gen_ends(g, i))
            ends[n_ends++] = i;
    if (!code)
        code = pp_constraint_new(use, t, e->trie, ends, n_ends, PP_DRAFT_MAX_LIMIT, &g->constraint, err);
    pp_free(ends);
    return code;
}

static enum pp_code copy_stops(struct pp_gen *g, const struct pp_gen_options *opt, struct pp_error *err)
{
    g->stops = pp_calloc((size_t)opt->n_stops, sizeof *g->stops);
    if (!g->stops)
        return pp_fail_nomem(err, "stop texts");
    for (int i = 0; i < opt->n_stops; i++) {
        if (!opt->stops[i][0])
            continue;
        if (!(g->stops[g->n_stops] = pp_strdup(opt->stops[i])))
            return pp_fail_nomem(err, "stop texts");
        if (strlen(opt->stops[i]) > g->longest_stop)
            g->longest_stop = strlen(opt->stops[i]);
        g->n_stops++;
    }
    return PP_OK;
}

static enum pp_code setup(struct pp_gen *g, struct pp_seq *seq, const int32_t *prompt, int64_t n,
                          const struct pp_gen_options *opt, struct pp_error *err)
{
    struct pp_engine *e = seq->engine;
    g->seq = seq;
    g->sampling = opt->sampling;
    g->max_tokens = opt->max_tokens;
    g->ignore_end = opt->ignore_end;
    for (; g->n_written < opt->n_written && g->n_written < PP_MAX_WRITTEN; g->n_written++)
        g->written[g->n_written] = opt->written[g->n_written];
    g->draft = opt->draft;
    g->forced = opt->forced;
    g->n_forced = opt->n_forced;
    g->n_prompt = g->n = g->n_reported = n;
    g->progress = opt->progress;
    g->user = opt->user;
    g->tokens = pp_malloc((size_t)(e->n_ctx + 1 + PP_DRAFT_MAX_LIMIT) * sizeof *g->tokens);
    if (!g->tokens)
        return pp_fail_nomem(err, "an answer");
    memcpy(g->tokens, prompt, (size_t)n * sizeof *g->tokens);
    pp_buf_add(&g->held, "", 0);
    pp_buf_add(&g->held_drafted, "", 0);
    if (pp_grow(&g->held.data, &g->held.cap, MAX_PIECE, 1) != 0 ||
        pp_grow(&g->held_drafted.data, &g->held_drafted.cap, MAX_PIECE, 1) != 0)
        return pp_fail_nomem(err, "an answer");
    enum pp_code code = pp_sampler_init(&g->sampler, e->model->info.n_vocab, err);
    g->sampler.suppressed = pp_source_suppressed(e->model->source, &g->sampler.n_suppressed);
    if (!code)
        code = copy_stops(g, opt, err);
    if (!code && opt->grammar)
        code = begin_grammar(g, opt->grammar, err);
    if (!code)
        code = pp_spec_new(g, opt, err);
    return code ? code : pp_cpu_reserve_outputs(e->cpu, e->max_draft + e->n_answers, err);
}

/* Counts how much of the prompt is cached already. */
static void begin_cached(struct pp_gen *g)
{
    struct pp_engine *e = g->seq->engine;
    pp_seq_reserve_logits(g->seq);
    int64_t n_cached = pp_seq_begin(g->seq, g->tokens, g->n);
    g->stats.prompt_tokens = (uint64_t)g->n;
    g->stats.cached_tokens = (uint64_t)n_cached;
    e->stats.prompt_tokens += (uint64_t)g->n;
    e->stats.cached_tokens += (uint64_t)n_cached;
    g->copied_before = g->seq->copied_bytes;
}

enum pp_code pp_gen_begin(struct pp_seq *seq, const int32_t *prompt, int64_t n, const struct pp_gen_options *opt,
                          struct pp_gen **out, struct pp_error *err)
{
    struct pp_engine *e = seq->engine;
    uint64_t t0 = pp_now_ns();
    *out = NULL;
    if (n < 1)
        return pp_fail(err, PP_ERR_USAGE, "the prompt is empty");
    if (pp_model_check_writes(e->model, err))
        return PP_ERR_UNSUPPORTED;
    if (n >= e->n_ctx)
        return pp_fail(err, PP_ERR_CONTEXT,
                       "the prompt has %lld tokens, but the context holds %lld; shorten it, or start a new "
                       "conversation%s",
                       (long long)n, (long long)e->n_ctx, pp_engine_or_larger(e));
    struct pp_gen *g = pp_calloc(1, sizeof *g);
    if (!g)
        return pp_fail_nomem(err, "an answer");
    g->begin_ns = t0;
    e->n_answers++;
    enum pp_code code = setup(g, seq, prompt, n, opt, err);
    if (code) {
        pp_gen_free(g);
        return code;
    }
    begin_cached(g);
    *out = g;
    return PP_OK;
}

enum pp_code pp_gen_start(struct pp_seq *seq, const int32_t *prompt, int64_t n, const struct pp_gen_options *opt,
                          const struct pp_cancel *cancel, struct pp_gen **out, struct pp_error *err)
{
    struct pp_gen *g;
    enum pp_code code = pp_gen_begin(seq, prompt, n, opt, &g, err);
    *out = NULL;
    while (!code && g->n == n && g->finish == PP_FINISH_NONE) {
        struct pp_gen_item item = {.gen = g};
        code = pp_gen_advance(&item, 1, cancel, err);
        if (!code && (code = item.code) && err)
            *err = item.err;
    }
    if (code) {
        pp_gen_free(g);
        return code;
    }
    *out = g;
    return PP_OK;
}

enum pp_code pp_gen_next(struct pp_gen *g, const struct pp_cancel *cancel, struct pp_buf *text, int *n_tokens,
                         enum pp_finish *finish, struct pp_error *err)
{
    struct pp_gen_item item = {.gen = g, .text = text};
    enum pp_code code = pp_gen_step(&item, 1, cancel, err);
    if (!code && (code = item.code) && err)
        *err = item.err;
    *n_tokens += item.n_tokens;
    *finish = g->finish;
    return code;
}

bool pp_gen_computing_prompt(const struct pp_gen *g)
{
    return g->n == g->n_prompt && g->finish == PP_FINISH_NONE;
}

void pp_gen_suspend(struct pp_gen *g)
{
    pp_seq_truncate(g->seq, 0);
    if (g->draft)
        pp_seq_truncate(g->draft, 0);
}

struct pp_stats pp_gen_stats(const struct pp_gen *g)
{
    struct pp_stats s = g->stats;
    s.kv_copied_bytes = g->seq->copied_bytes - g->copied_before;
    return s;
}

const int32_t *pp_gen_tokens(const struct pp_gen *g, int64_t *n)
{
    *n = g->n - g->n_prompt;
    return g->tokens + g->n_prompt;
}

void pp_gen_free(struct pp_gen *g)
{
    if (!g)
        return;
    g->seq->engine->n_answers--;
    for (int i = 0; i < g->n_stops; i++)
        pp_free(g->stops[i]);
    pp_free(g->stops);
    pp_free(g->tokens);
    pp_buf_free(&g->held);
    pp_buf_free(&g->held_drafted);
    pp_sampler_free(&g->sampler);
    pp_constraint_free(g->constraint);
    pp_spec_free(g);
    pp_free(g);
}
