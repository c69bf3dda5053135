/* generate.c - an answer in the making: the prompt in chunks, then a token or several per forward pass, as text.
 *
 * Drafting: a smaller model proposes up to draft_max tokens with the same sampling and the same noise; the target
 * computes all of them in one pass and chooses at every place as it would have anyway. A proposed token stands if and
 * only if it is that choice, so the answer is the same with and without a draft. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/engine_int.h"
#include "engine/sampler.h"
#include "engine/text.h"

enum { DEFAULT_DRAFT = 4, MAX_DRAFT = 15, MAX_PIECE = 1024 };
/* A chunk of the prompt takes at most this long, if it has more rows than the least. */
static const uint64_t CHUNK_NS = 100000000;

struct pp_gen {
    struct pp_seq *seq, *draft;
    struct pp_sampling sampling;
    struct pp_sampler sampler;
    int64_t max_tokens;
    int draft_max;
    bool ignore_end;
    char **stops;
    int n_stops;
    size_t longest_stop;

    int32_t *tokens;        /* [n_ctx + 1 + MAX_DRAFT]: prompt and answer; drafted ones may stand behind */
    int64_t n_prompt, n;    /* n: chosen so far, prompt included; the last one is not yet in seq */
    bool started;           /* the first token was given out */
    int32_t first;          /* chosen from the prompt's last row, before another answer's step takes its place */
    enum pp_finish finish;
    struct pp_buf held;     /* text chosen but not shown: could be half a character or a stop text */
    uint64_t begin_ns;
};

/* --- the prompt ------------------------------------------------------------------------------------------------ */

static int64_t common_prefix(const struct pp_seq *s, const int32_t *tokens, int64_t n)
{
    int64_t i = 0;
    while (i < s->len && i < n && s->tokens[i] == tokens[i])
        i++;
    return i;
}

/* Computes tokens [from, n) of the sequence in chunks; logits of the last if asked for. */
static enum pp_code feed(struct pp_seq *s, const int32_t *tokens, int64_t n, bool logits, pp_progress *progress,
                         void *user, const struct pp_cancel *cancel, struct pp_error *err)
{
    struct pp_row rows[MAX_DRAFT + 1];
    struct pp_row *batch = rows;
    struct pp_engine *e = s->engine;
    int64_t begin = s->len;
    enum pp_code code = PP_OK;
    if (n - begin > MAX_DRAFT + 1 && !(batch = pp_malloc((size_t)e->max_rows * sizeof *batch)))
        return pp_fail_nomem(err, "the prompt");
    while (!code && s->len < n) {
        int64_t left = n - s->len;
        int m = (int)(left < e->chunk_rows ? left : e->chunk_rows);
        for (int i = 0; i < m; i++)
            batch[i] = (struct pp_row){.seq = s, .token = tokens[s->len + i], .parent = PP_PARENT_PREVIOUS};
        if (logits && m == left)
            batch[m - 1].out = PP_OUT_LOGITS;
        uint64_t t0 = pp_now_ns();
        code = pp_step(e, batch, m, cancel, err);
        uint64_t ns = pp_now_ns() - t0;
        if (code)
            break;
        /* Fewer rows if this chunk took too long, twice as many if a full one left time for that. Not so few that each
         * costs as much as reading all weights does. */
        if (ns > CHUNK_NS && m > PP_LEAST_CHUNK)
            e->chunk_rows = m / 2 > PP_LEAST_CHUNK ? m / 2 : PP_LEAST_CHUNK;
        else if (m == e->chunk_rows && ns < CHUNK_NS / 3)
            e->chunk_rows = 2 * m < e->max_rows ? 2 * m : e->max_rows;
        if (progress)
            progress(user, (uint64_t)s->len, (uint64_t)n);
    }
    if (batch != rows)
        pp_free(batch);
    return code;
}

/* --- choosing -------------------------------------------------------------------------------------------------- */

static bool ends(const struct pp_gen *g, int32_t token)
{
    const struct pp_tokenizer *t = g->seq->engine->model->tokenizer;
    return !g->ignore_end && t && pp_tokenizer_is_end(t, token);
}

/* Takes a chosen token into the answer. True if the answer is over. */
static bool accept(struct pp_gen *g, int32_t token)
{
    const struct pp_tokenizer *t = g->seq->engine->model->tokenizer;
    g->tokens[g->n++] = token;
    g->seq->engine->stats.decode_tokens++;
    if (ends(g, token)) {
        g->finish = PP_FINISH_END;
        return true;
    }
    if (t)
        pp_token_text(t, token, false, &g->held);
    if (g->max_tokens >= 0 && g->n - g->n_prompt >= g->max_tokens)
        g->finish = PP_FINISH_LENGTH;
    else if (g->n >= g->seq->engine->n_ctx)
        g->finish = PP_FINISH_CONTEXT;
    return g->finish != PP_FINISH_NONE;
}

static int32_t choose_from(struct pp_gen *g, const float *logits, int64_t n_history)
{
    uint64_t t0 = pp_now_ns();
    int32_t token = pp_sampler_choose(&g->sampler, &g->sampling, logits, g->tokens, n_history);
    g->seq->engine->stats.sample_ns += pp_now_ns() - t0;
    return token;
}

static enum pp_code no_token(const struct pp_gen *g, struct pp_error *err)
{
    if (g->sampling.n_bias)
        return pp_fail(err, PP_ERR_USAGE, "the logit biases forbid every token; leave one, or take some biases off");
    return pp_fail(err, PP_ERR_FORMAT, "what %s computes is no numbers any more; its file is damaged, get it again",
                   g->seq->engine->model->info.name);
}

/* Lets the draft propose tokens behind tokens[0 .. n); returns how many. A draft that fails (no pages, say) proposes
 * none. */
static int propose(struct pp_gen *g, int most, const struct pp_cancel *cancel)
{
    struct pp_seq *d = g->draft;
    uint64_t t0 = pp_now_ns();
    int n = 0;
    pp_seq_truncate(d, common_prefix(d, g->tokens, g->n));
    while (n < most && g->n + n < d->engine->n_ctx) {
        if (feed(d, g->tokens, g->n + n, true, NULL, NULL, cancel, NULL) != PP_OK)
            break;
        int32_t token = choose_from(g, pp_step_output(d->engine, d->engine->n_rows - 1), g->n + n);
        if (token < 0)
            break;
        g->tokens[g->n + n++] = token;
        if (ends(g, token))
            break;
    }
    g->seq->engine->stats.draft_ns += pp_now_ns() - t0;
    g->seq->engine->stats.draft_tokens += (uint64_t)n;
    return n;
}

/* One forward pass: the last chosen token and what the draft proposes behind it; then one choice per row, for as long
 * as the proposal agrees. */
static enum pp_code advance(struct pp_gen *g, const struct pp_cancel *cancel, struct pp_error *err)
{
    struct pp_engine *e = g->seq->engine;
    struct pp_row rows[MAX_DRAFT + 1];
    int64_t room = e->n_ctx - g->n;
    int most = g->draft_max;
    if (most > room - 1)
        most = room > 1 ? (int)(room - 1) : 0;
    if (g->max_tokens >= 0 && most > g->max_tokens - (g->n - g->n_prompt) - 1)
        most = (int)(g->max_tokens - (g->n - g->n_prompt) - 1);
    int n_draft = g->draft && most > 0 ? propose(g, most, cancel) : 0;
    for (int i = 0; i <= n_draft; i++)
        rows[i] = (struct pp_row){
            .seq = g->seq, .token = g->tokens[g->n - 1 + i], .parent = PP_PARENT_PREVIOUS, .out = PP_OUT_LOGITS};
    enum pp_code code = pp_step(e, rows, n_draft + 1, cancel, err);
    if (code)
        return code;
    for (int i = 0; i <= n_draft; i++) {
        int32_t token = choose_from(g, pp_step_output(e, i), g->n);
        if (token < 0) {
            code = no_token(g, err);
            break;
        }
        bool stands = i < n_draft && token == g->tokens[g->n];
        e->stats.draft_accepted += stands;
        if (accept(g, token) || !stands)
            break;
    }
    /* Rows of rejected proposals go; the last chosen token is not in the cache yet. */
    pp_seq_truncate(g->seq, g->n - 1);
    return code;
}

/* --- text ------------------------------------------------------------------------------------------------------ */

/* Offset of the first stop text in s, or n. */
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

/* Length of the longest tail of s that is the beginning of a stop text. */
static size_t stop_begins(const struct pp_gen *g, const char *s, size_t n)
{
    for (size_t tail = n < g->longest_stop ? n : g->longest_stop; tail > 0; tail--)
        for (int i = 0; i < g->n_stops; i++)
            if (strlen(g->stops[i]) > tail && memcmp(s + n - tail, g->stops[i], tail) == 0)
                return tail;
    return 0;
}

static void release_text(struct pp_gen *g, size_t n, struct pp_buf *text)
{
    if (n == 0)
        return;
    pp_buf_add(text, g->held.data, n);
    memmove(g->held.data, g->held.data + n, g->held.len - n);
    g->held.len -= n;
    g->held.data[g->held.len] = 0;
}

static void show(struct pp_gen *g, struct pp_buf *text)
{
    size_t stop = find_stop(g, g->held.data, g->held.len);
    if (stop < g->held.len) {
        release_text(g, stop, text);
        g->held.len = 0;
        g->finish = PP_FINISH_STOP;
        return;
    }
    size_t ready = g->held.len ? pp_utf8_complete(g->held.data, g->held.len) : 0;
    size_t back = g->held.len ? stop_begins(g, g->held.data, g->held.len) : 0;
    if (ready > g->held.len - back)
        ready = g->held.len - back;
    release_text(g, ready, text);
    if (g->finish != PP_FINISH_NONE)
        release_text(g, g->held.len, text); /* nothing more will come */
}

void pp_gen_flush(struct pp_gen *g, struct pp_buf *text)
{
    release_text(g, g->held.len, text);
}

/* --- life ------------------------------------------------------------------------------------------------------ */

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
    g->draft = opt->draft;
    g->draft_max = opt->draft_max <= 0 ? DEFAULT_DRAFT : opt->draft_max > MAX_DRAFT ? MAX_DRAFT : opt->draft_max;
    if (g->draft_max > e->max_rows - 1)
        g->draft_max = e->max_rows - 1;
    g->n_prompt = g->n = n;
    if (g->draft && g->draft->engine->model->info.n_vocab != e->model->info.n_vocab)
        return pp_fail(err, PP_ERR_MISMATCH, "the draft model has another vocabulary");
    g->tokens = pp_malloc((size_t)(e->n_ctx + 1 + MAX_DRAFT) * sizeof *g->tokens);
    if (!g->tokens)
        return pp_fail_nomem(err, "an answer");
    memcpy(g->tokens, prompt, (size_t)n * sizeof *g->tokens);
    pp_buf_add(&g->held, "", 0);
    if (pp_grow(&g->held.data, &g->held.cap, MAX_PIECE, 1) != 0)
        return pp_fail_nomem(err, "an answer");
    enum pp_code code = pp_sampler_init(&g->sampler, e->model->info.n_vocab, err);
    if (!code)
        code = copy_stops(g, opt, err);
    return code ? code : pp_cpu_reserve_outputs(e->cpu, g->draft_max + 1, err);
}

enum pp_code pp_gen_start(struct pp_seq *seq, const int32_t *prompt, int64_t n, const struct pp_gen_options *opt,
                          const struct pp_cancel *cancel, struct pp_gen **out, struct pp_error *err)
{
    struct pp_engine *e = seq->engine;
    uint64_t t0 = pp_now_ns();
    *out = NULL;
    if (n < 1)
        return pp_fail(err, PP_ERR_USAGE, "the prompt is empty");
    if (n >= e->n_ctx)
        return pp_fail(err, PP_ERR_CONTEXT,
                       "the prompt has %lld tokens and the context holds %lld; shorten it, start a new conversation, "
                       "or choose a larger --ctx-size", (long long)n, (long long)e->n_ctx);
    struct pp_gen *g = pp_calloc(1, sizeof *g);
    if (!g)
        return pp_fail_nomem(err, "an answer");
    g->begin_ns = t0;
    enum pp_code code = setup(g, seq, prompt, n, opt, err);
    if (!code) {
        int64_t kept = common_prefix(seq, prompt, n);
        if (kept == n)
            kept = n - 1; /* the last token again, for its logits */
        pp_seq_truncate(seq, kept);
        kept += pp_seq_adopt(seq, prompt, n - 1);
        e->stats.prompt_tokens += (uint64_t)n;
        e->stats.cached_tokens += (uint64_t)kept;
        code = feed(seq, prompt, n, true, opt->progress, opt->user, cancel, err);
        e->stats.prefill_tokens += (uint64_t)(seq->len - kept);
        e->stats.prefill_ns += pp_now_ns() - t0;
    }
    if (!code && (g->first = choose_from(g, pp_step_output(e, e->n_rows - 1), n)) < 0)
        code = no_token(g, err);
    if (!code && g->draft) {
        /* The draft reads the prompt too; if it cannot, the answer is made without it. */
        pp_seq_truncate(g->draft, common_prefix(g->draft, prompt, n - 1));
        pp_seq_adopt(g->draft, prompt, n - 1);
        if (feed(g->draft, prompt, n - 1, false, NULL, NULL, cancel, NULL) != PP_OK)
            g->draft = NULL;
    }
    if (!code && g->max_tokens == 0)
        g->finish = PP_FINISH_LENGTH;
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
    struct pp_engine *e = g->seq->engine;
    int64_t before = g->n;
    enum pp_code code = PP_OK;
    uint64_t t0 = pp_now_ns();
    if (g->finish == PP_FINISH_NONE) {
        if (!g->started) {
            accept(g, g->first);
            g->started = true;
            e->stats.first_token_ns = pp_now_ns() - g->begin_ns;
        } else {
            code = advance(g, cancel, err);
        }
        e->stats.decode_ns += pp_now_ns() - t0;
    }
    if (!code) {
        show(g, text);
        if (g->held.bad || text->bad)
            code = pp_fail_nomem(err, "the answer's text");
    }
    *n_tokens += (int)(g->n - before);
    *finish = g->finish;
    return code;
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
    for (int i = 0; i < g->n_stops; i++)
        pp_free(g->stops[i]);
    pp_free(g->stops);
    pp_free(g->tokens);
    pp_buf_free(&g->held);
    pp_sampler_free(&g->sampler);
    pp_free(g);
}
