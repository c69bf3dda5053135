/* speculate.c - the guesses of a pass: see speculate.h. */
#include "engine/speculate.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/generate_int.h"
#include "engine/text.h"

enum { FAR_BEHIND = 64 }; /* tokens: if this many are unread, pages of other sequences are looked for */
static const float MOST_SURE = 1e9f; /* a margin above any of logits */

static struct pp_spec_costs *costs_of(const struct pp_gen *g) { return &g->seq->engine->costs; }

static struct pp_spec_habits *habits_of(const struct pp_gen *g) { return &g->seq->habits; }

/* --- life -------------------------------------------------------------------------------------------------------- */

static void begin_habits(struct pp_gen *g)
{
    struct pp_engine *e = g->seq->engine;
    if (!e->has_habits)
        pp_habits_init(&e->habits);
    e->has_habits = true;
    if (g->draft && e->costs_of != g->draft->engine->id) {
        if (e->costs_of)
            pp_habits_init(&e->habits);
        e->costs_of = g->draft->engine->id;
        e->costs.step = e->costs.behind = (struct pp_spec_time){0};
    }
    if (g->draft && g->seq->habits_of != e->costs_of) {
        g->seq->has_habits = g->seq->has_habits && !g->seq->habits_of; /* they describe guesses of another draft */
        g->seq->habits_of = e->costs_of;
    }
    if (!g->seq->has_habits) {
        g->seq->habits = e->habits;
        g->seq->habits.ledger = (struct pp_spec_ledger){0};
        g->seq->habits.budget = 0;
    }
    g->seq->has_habits = true;
    pp_habits_next(&g->seq->habits);
}

/* Makes a bridge if the draft has another vocabulary. Of models without a tokenizer only the sizes are compared. */
static enum pp_code begin_bridge(struct pp_gen *g, struct pp_error *err)
{
    struct pp_engine *e = g->seq->engine, *d = g->draft->engine;
    const struct pp_tokenizer *a = pp_model_tokenizer(e->model), *b = pp_model_tokenizer(d->model);
    int64_t n = d->model->info.n_vocab;
    if (e->bridge_to != d->id) {
        e->bridged = a && b ? !pp_tokenizer_same_ids(a, b) : n != e->model->info.n_vocab;
        if (e->bridged && !(a && b))
            return pp_fail(err, PP_ERR_MISMATCH, "the vocabulary of the draft model differs");
        if (e->bridged && !pp_tokenizer_bridges(a, b, err))
            return PP_ERR_MISMATCH;
        e->bridge_to = d->id;
    }
    return e->bridged ? pp_bridge_new(a, b, n, &g->bridge, err) : PP_OK;
}

enum pp_code pp_spec_new(struct pp_gen *g, const struct pp_gen_options *opt, struct pp_error *err)
{
    struct pp_engine *e = g->seq->engine;
    struct pp_spec *s = &g->spec;
    enum pp_code code = PP_OK;
    s->most = opt->draft_max <= 0 ? PP_DRAFT_MAX : opt->draft_max;
    if (s->most > PP_MAX_GUESSES)
        s->most = PP_MAX_GUESSES;
    if (s->most > e->max_rows - 1)
        s->most = e->max_rows - 1;
    s->looks_up = opt->lookup;
    s->adapts = !opt->draft_always;
    pp_copy_init(&s->copy);
    s->least = opt->draft_p_min;
    s->siblings = pp_plan_has_states(&e->model->plan) ? 0 : opt->draft_siblings; /* models with recurrent states cannot
                                                                                    read trees */
    s->script = opt->draft_script;
    s->script_user = opt->draft_script_user;
    s->on = s->most > 0 && (g->draft || s->looks_up || s->script);
    if (!s->on)
        return PP_OK;
    begin_habits(g);
    if (g->draft)
        code = begin_bridge(g, err);
    if (!code && g->draft && !g->bridge)
        code = pp_shortlist_init(&s->shortlist, g->draft->engine->model->info.n_vocab, err);
    if (!code && s->looks_up)
        code = pp_lookup_init(&s->lookup, e->n_ctx, err);
    if (s->most > e->most_guesses)
        e->most_guesses = s->most;
    return code;
}

void pp_spec_free(struct pp_gen *g)
{
    struct pp_engine *e = g->seq->engine;
    if (g->spec.on && g->n > g->n_prompt) {
        e->habits = g->seq->habits;
        pp_costs_answer(&e->costs, g->n - g->n_prompt);
    }
    pp_lookup_free(&g->spec.lookup);
    pp_shortlist_free(&g->spec.shortlist);
    pp_bridge_free(g->bridge);
}

/* --- one guess more ---------------------------------------------------------------------------------------------- */

/* The guesses of a pass while they are collected. */
struct guessing {
    struct pp_gen *const *answers;
    int n_answers;
    int rows, most_rows;   /* rows of the pass so far, guesses included; the limit */
    const struct pp_cancel *cancel;
};

static struct pp_spec_place place_of(const struct guessing *p, const struct pp_gen *g)
{
    const struct pp_spec *s = &g->spec;
    int left = p->most_rows - p->rows, room = s->room - s->depth;
    return (struct pp_spec_place){
        .rate = s->rate,
        .rows = p->rows,
        .guesses = s->depth,
        .most = s->depth + (room < left ? room : left),
        .chain = s->chain,
        .left = g->max_tokens < 0 ? -1 : g->max_tokens - (g->n - g->n_prompt),
        .spent = (double)s->draft_ns,
    };
}

static void bet(struct pp_spec *s, int32_t token, enum pp_guesser who, int level)
{
    if (s->n_bets < (int)(sizeof s->bets / sizeof *s->bets))
        s->bets[s->n_bets++] = (struct pp_bet){.token = token,
                                               .who = (uint8_t)who,
                                               .level = (uint8_t)level,
                                               .depth = (uint8_t)s->depth,
                                               .trial = s->trial && who == PP_GUESS_MODEL};
}

/* The last guess of the chain, or -1. */
static int chain_end(const struct pp_spec *s)
{
    int i = s->n - 1;
    while (i >= 0 && s->guess[i].spare)
        i--;
    return i;
}

/* Adds a row for a guess, if there is room and it is worth it, and perhaps one for a spare guess (second choice) next
 * to it. False: the chain ends. */
static bool add_guess(struct guessing *p, struct pp_gen *g, int32_t token, int32_t spare, enum pp_guesser who,
                      int level)
{
    struct pp_spec *s = &g->spec;
    struct pp_spec_place at = place_of(p, g);
    double odds = pp_habits_odds(habits_of(g), who, level);
    bet(s, token, who, level);
    if (at.guesses >= at.most || s->n >= s->most_rows)
        return false;
    if (s->adapts && (odds < (double)s->least || !pp_control_keeps(costs_of(g), habits_of(g), &at, who, level)))
        return false;
    struct pp_guess made = {.token = token,
                            .parent = (int8_t)chain_end(s),
                            .depth = (int8_t)s->depth,
                            .who = (uint8_t)who,
                            .level = (uint8_t)level};
    s->guess[s->n++] = made;
    p->rows++;
    if (s->siblings && spare >= 0 && s->n < s->most_rows && p->rows < p->most_rows) {
        made.token = spare;
        made.spare = true;
        s->guess[s->n++] = made;
        p->rows++;
    }
    g->tokens[g->n + s->depth++] = token;
    s->chain *= odds;
    return !pp_gen_ends(g, token) && s->depth < s->room && p->rows < p->most_rows && s->n < s->most_rows;
}

/* --- what was said before, and scripts --------------------------------------------------------------------------- */

/* Where in the text guesses are taken from, and how far that place matches. */
struct place {
    int64_t from;          /* index of the next token; < 0: nowhere */
    enum pp_guesser who;
    int length;            /* tokens that match */
};

static int level_of(const struct place *p)
{
    return p->who == PP_GUESS_COPY ? pp_level_of_copy(p->length) : pp_level_of_match(p->length);
}

static double odds_of(const struct pp_gen *g, const struct place *p)
{
    return p->from < 0 ? 0 : pp_habits_odds(habits_of(g), p->who, level_of(p));
}

/* Learning covers guesses that are not made, too. */
static void bet_on(struct pp_gen *g, const struct place *p)
{
    if (p->from >= 0)
        bet(&g->spec, g->tokens[p->from], p->who, level_of(p));
}

static void look_up(struct guessing *p, struct pp_gen *g)
{
    struct pp_spec *s = &g->spec;
    struct place found = {.who = PP_GUESS_LOOKUP}, copied = {.who = PP_GUESS_COPY}, best, other;
    pp_lookup_set(&s->lookup, g->tokens, g->n);
    found.from = pp_lookup_find(&s->lookup, g->tokens, g->n, &found.length);
    pp_copy_set(&s->copy, g->tokens, g->n, found.from, found.length);
    copied.from = pp_copy_next(&s->copy, &copied.length);
    const bool copies = odds_of(g, &copied) > odds_of(g, &found);
    best = copies ? copied : found;
    other = copies ? found : copied;
    bet_on(g, &other);
    if (best.from >= 0 && g->draft && s->adapts &&
        pp_control_prefers_model(costs_of(g), habits_of(g), s->rate, p->n_answers, odds_of(g, &best))) {
        bet_on(g, &best);
        return;
    }
    /* `from` may run into the guesses themselves, where text repeats with a short period. */
    while (best.from >= 0 && add_guess(p, g, g->tokens[best.from], -1, best.who, level_of(&best))) {
        best.from++;
        best.length = best.length < 0 ? 1 : best.length + 1;
    }
}

static void follow_script(struct guessing *p, struct pp_gen *g)
{
    int32_t guesses[PP_MAX_GUESSES];
    int n = g->spec.script(g->spec.script_user, g->tokens, g->n, guesses, g->spec.room);
    for (int i = 0; i < n && add_guess(p, g, guesses[i], -1, PP_GUESS_SCRIPT, 0); i++)
        ;
}

/* --- the draft model --------------------------------------------------------------------------------------------- */

/* The answer and the guesses after it in the draft's tokens: all that the draft has read, or is to read. */
static const int32_t *draft_tokens(const struct pp_gen *g)
{
    return (g->bridge ? g->bridge->ids : g->tokens) + g->spec.draft_from;
}

static int64_t n_draft_tokens(const struct pp_gen *g)
{
    return (g->bridge ? g->bridge->n : g->n + g->spec.depth) - g->spec.draft_from;
}

static void draft_failed(struct pp_gen *g, enum pp_code code)
{
    g->spec.asking = false;
    if (code != PP_ERR_CANCELLED)
        g->draft = NULL;
}

/* False: the draft is not asked in this pass. That includes passes with looked-up guesses: the bridge reads only text
 * that is chosen. */
static bool set_bridge(struct pp_gen *g)
{
    if (!g->bridge)
        return true;
    if (g->spec.depth)
        return false;
    enum pp_code code = pp_bridge_set(g->bridge, g->tokens, g->n);
    if (code)
        draft_failed(g, code);
    else if (g->spec.draft_from >= g->bridge->n)
        g->spec.draft_from = 0;
    return !code && g->bridge->n > 0;
}

/* Truncates the draft's sequence to what it has in common with the answer. */
static void rewind_draft(struct pp_gen *g)
{
    struct pp_seq *d = g->draft;
    const int32_t *tokens = draft_tokens(g);
    /* The last token is read in any case, since its logits are asked for. */
    const int64_t n = n_draft_tokens(g) - (g->bridge ? 0 : g->spec.depth) - 1;
    int64_t i = g->bridge ? 0 : g->spec.in_step < d->len ? g->spec.in_step : d->len;
    i = i < n ? i : n;
    while (i < d->len && i < n && d->tokens[i] == tokens[i])
        i++;
    g->spec.in_step = i;
    pp_seq_truncate(d, i);
    if (n - i > FAR_BEHIND)
        pp_seq_adopt(d, tokens, n);
}

/* Tokens that the draft must read before it predicts the next one. */
static int64_t unread(const struct pp_gen *g) { return n_draft_tokens(g) - g->draft->len; }

/* Makes the draft forget what it has read and begin with the last few tokens: it would take too long to read the text
 * before them for what that may gain. */
static void begin_afresh(struct pp_gen *g)
{
    int64_t from = g->spec.draft_from + n_draft_tokens(g) - 1 - PP_SPEC_AFRESH;
    if (unread(g) - 1 <= PP_SPEC_AFRESH || from <= g->spec.draft_from)
        return;
    pp_seq_truncate(g->draft, 0);
    g->spec.draft_from = from;
    g->spec.in_step = 0;
}

/* Decides whether to ask the draft for a guess. */
static void consider_asking(struct guessing *p, struct pp_gen *g)
{
    struct pp_spec *s = &g->spec;
    struct pp_spec_place at = place_of(p, g);
    s->asking = at.guesses < at.most && n_draft_tokens(g) < g->draft->engine->n_ctx;
    if (!s->asking || !s->adapts)
        return;
    at.behind = unread(g) - 1;
    enum pp_ask ask = pp_control_asks(costs_of(g), habits_of(g), &at, &s->trial);
    s->asking = ask != PP_ASK_NOT;
    if (ask == PP_ASK_AFRESH)
        begin_afresh(g);
    s->tried_behind = unread(g) - 1;
}

static int32_t unread_token(const struct pp_gen *g, int64_t k) { return draft_tokens(g)[g->draft->len + k]; }

/* Reads all but `rest` of what is unread, a chunk at a time. */
static void read_on(struct pp_gen *g, int64_t rest, const struct pp_cancel *cancel)
{
    struct pp_seq *d = g->draft;
    struct pp_engine *e = d->engine;
    while (g->spec.asking && unread(g) > rest) {
        int64_t left = unread(g) - rest;
        int m = (int)(left < e->max_rows ? left : e->max_rows);
        for (int i = 0; i < m; i++)
            e->batch[i] = (struct pp_row){.seq = d, .token = unread_token(g, i), .parent = PP_PARENT_PREVIOUS};
        enum pp_code code = pp_step(e, e->batch, m, cancel, NULL);
        if (code)
            draft_failed(g, code);
    }
}

/* Adds guesses from the text that the draft has added: the target's tokens of it that are not guessed yet. Without
 * `all` the last one is left, as it may become longer. */
static void guess_by_text(struct guessing *p, struct pp_gen *g, int64_t begun, bool all)
{
    struct pp_spec *s = &g->spec;
    struct pp_bridge *b = g->bridge;
    int32_t *ids;
    size_t n;
    bool more = pp_bridge_guesses(b, g->tokens, begun, &ids, &n) == PP_OK;
    size_t done = (size_t)(g->n + s->depth - begun);
    if (more && (n < done || memcmp(ids, g->tokens + begun, done * sizeof *ids) != 0))
        more = false; /* more text has changed tokens that were guessed */
    for (size_t i = done; more && i + !all < n; i++) {
        more = add_guess(p, g, ids[i], -1, PP_GUESS_MODEL, pp_level_of_margin(b->margin));
        b->margin = MOST_SURE;
    }
    s->asking = s->asking && more;
    pp_free(ids);
}

/* take_guess for a draft with another vocabulary. */
static void take_text(struct guessing *p, struct pp_gen *g, int row)
{
    struct pp_spec *s = &g->spec;
    struct pp_bridge *b = g->bridge;
    int64_t begun = b->n_settled;
    s->asking = pp_bridge_add(b, pp_step_output(g->draft->engine, row)) && b->steps < 2 * s->room + 2;
    if (s->asking && !s->trial) {
        guess_by_text(p, g, begun, false);
        if (!s->asking)
            return;
        consider_asking(p, g);
    }
    if (!s->asking || s->trial) {
        guess_by_text(p, g, begun, true);
        s->asking = false;
    }
}

/* What the answer would choose by the draft's logits. Their number may differ from the target's: vocabularies of one
 * family are padded differently. */
static struct pp_choice choose_by_draft(struct pp_gen *g, const float *logits)
{
    const int64_t there = g->draft->engine->model->info.n_vocab;
    const int32_t own = g->sampler.n_vocab;
    g->sampler.n_vocab = there < own ? (int32_t)there : own;
    const struct pp_choice made = pp_gen_choose(g, logits, g->n + g->spec.depth);
    g->sampler.n_vocab = own;
    return made;
}

/* Takes the guess from the draft's output for an answer, which is that of row `row`. */
static void take_guess(struct guessing *p, struct pp_gen *g, int row)
{
    if (g->bridge) {
        take_text(p, g, row);
        return;
    }
    struct pp_choice made = choose_by_draft(g, pp_step_output(g->draft->engine, row));
    g->spec.asking = made.token >= 0 &&
                     add_guess(p, g, made.token, made.second, PP_GUESS_MODEL, pp_level_of_margin(made.margin)) &&
                     !g->spec.trial;
    if (g->spec.asking)
        consider_asking(p, g);
}

static void count_time(struct pp_gen *g, uint64_t ns)
{
    g->stats.draft_ns += ns;
    g->spec.draft_ns += ns;
    g->seq->engine->stats.draft_ns += ns;
}

/* Runs a step of the draft model for n answers; for a single one, with the logits of likely tokens only. */
static enum pp_code step_for(struct pp_gen *const *in, int n, struct pp_engine *e, int rows,
                             const struct pp_cancel *cancel)
{
    struct pp_shortlist *l = &in[0]->spec.shortlist;
    pp_shortlist_set(l, in[0]->tokens, in[0]->n, in[0]->n_prompt);
    const struct pp_token_groups likely = {.groups = l->groups, .n = l->n};
    e->only = n == 1 && pp_shortlist_serves(l) ? &likely : NULL;
    enum pp_code code = pp_step(e, e->batch, rows, cancel, NULL);
    e->only = NULL;
    return code;
}

/* Runs one step of the draft model for all answers that ask the same one. False: none asks. */
static bool step_drafts(struct guessing *p)
{
    struct pp_gen *in[PP_MAX_TURNS];
    int last[PP_MAX_TURNS], n = 0, rows = 0;
    struct pp_engine *e = NULL;
    uint64_t t0 = pp_now_ns();
    for (int i = 0; i < p->n_answers; i++) {
        struct pp_gen *g = p->answers[i];
        if (!g->spec.asking || (e && g->draft->engine != e))
            continue;
        e = g->draft->engine;
        if (unread(g) > e->max_rows - rows) {
            if (n > 0)
                continue; /* it gets a later step */
            read_on(g, e->max_rows, p->cancel);
            if (!g->spec.asking)
                return true;
        }
        for (int64_t k = 0; k < unread(g); k++)
            e->batch[rows++] = (struct pp_row){
                .seq = g->draft, .token = unread_token(g, k), .parent = PP_PARENT_PREVIOUS};
        e->batch[rows - 1].out = PP_OUT_LOGITS;
        last[n] = rows - 1;
        in[n++] = g;
    }
    if (!n)
        return false;
    enum pp_code code = step_for(in, n, e, rows, p->cancel);
    for (int i = 0; i < n && code; i++)
        draft_failed(in[i], code);
    uint64_t stepped = pp_now_ns() - t0;
    for (int i = 0; i < n; i++) /* counted before any answer decides by it whether there is time for more */
        count_time(in[i], stepped / (uint64_t)n);
    for (int i = 0; i < n && !code; i++)
        take_guess(p, in[i], last[i]);
    uint64_t ns = pp_now_ns() - t0;
    if (!code && n == 1)
        pp_costs_step(costs_of(in[0]), rows, (double)ns);
    for (int i = 0; i < n; i++)
        count_time(in[i], (ns - stepped) / (uint64_t)n);
    return true;
}

/* --- all of a pass ----------------------------------------------------------------------------------------------- */

static void begin_pass(struct pp_gen *g)
{
    struct pp_spec *s = &g->spec;
    int64_t room = s->most, context = g->seq->engine->n_ctx - g->n - 1;
    int64_t wanted = g->max_tokens - (g->n - g->n_prompt) - 1;
    room = room < context ? room : context;
    room = g->max_tokens < 0 || room < wanted ? room : wanted;
    s->n = s->n_bets = s->depth = 0;
    s->room = s->on && !s->muted && room > 0 ? (int)room : 0;
    s->most_rows = context < PP_MAX_GUESSES ? (int)context : PP_MAX_GUESSES; /* spare guesses take context, too */
    s->muted = false;
    s->chain = 1;
    s->asking = s->trial = false;
    s->draft_ns = 0;
}

void pp_speculate(struct pp_gen *const *answers, int n, int rows, int most_rows, const struct pp_cancel *cancel)
{
    struct guessing p = {.answers = answers, .n_answers = n, .rows = rows, .most_rows = most_rows, .cancel = cancel};
    for (int i = 0; i < n; i++) {
        struct pp_gen *g = answers[i];
        begin_pass(g);
        if (!g->spec.room || (g->spec.adapts && pp_costs_stale(costs_of(g))))
            continue;
        g->spec.rate = pp_control_rate(costs_of(g), habits_of(g), n, g->spec.most, g->draft != NULL);
        if (g->spec.looks_up)
            look_up(&p, g);
        else if (g->spec.script)
            follow_script(&p, g);
        if (!g->draft || (g->spec.depth && pp_gen_ends(g, g->tokens[g->n + g->spec.depth - 1])))
            continue;
        if (!set_bridge(g))
            continue;
        rewind_draft(g);
        consider_asking(&p, g);
    }
    while (step_drafts(&p))
        ;
}

/* --- what came of it --------------------------------------------------------------------------------------------- */

int pp_spec_child(const struct pp_guess *guess, int n, int parent, int32_t token)
{
    for (int i = parent + 1; i < n; i++)
        if (guess[i].parent == parent && guess[i].token == token)
            return i;
    return -1;
}

int pp_spec_verify(const struct pp_guess *guess, int n, pp_spec_choose_fn *chosen, void *user,
                   int8_t path[static PP_MAX_GUESSES])
{
    int stood = 0, at = -1;
    for (bool over = false; !over;) {
        int32_t token = chosen(user, at, &over);
        int next = token < 0 ? -1 : pp_spec_child(guess, n, at, token);
        if (next < 0)
            break;
        path[stood++] = (int8_t)next;
        at = next;
    }
    return stood;
}

static bool looked_up(const struct pp_guess *k)
{
    return k->who == PP_GUESS_LOOKUP || k->who == PP_GUESS_COPY;
}

static void count_guesses(struct pp_stats *s, const struct pp_spec *spec, const int32_t *chosen, int n_chosen)
{
    int stood = 0; /* accepted so far, spare ones included */
    for (int i = 0; i < spec->n; i++) {
        const struct pp_guess *k = &spec->guess[i];
        bool stands = k->depth == stood && k->depth < n_chosen && k->token == chosen[k->depth];
        bool checked = k->depth <= stood && k->depth < n_chosen;
        s->draft_tokens++;
        s->lookup_tokens += looked_up(k);
        s->draft_accepted += stands;
        s->lookup_accepted += stands && looked_up(k);
        s->draft_at[k->depth] += checked && !k->spare;
        s->draft_stood_at[k->depth] += stands;
        stood += stands;
        if (stands && k->spare)
            break; /* the chain did not go on from a spare guess */
    }
}

void pp_spec_learn(struct pp_gen *g, const int32_t *chosen, int n_chosen)
{
    struct pp_spec *s = &g->spec;
    int right = 0; /* accepted guesses of the chain */
    if (!s->on)
        return;
    count_guesses(&g->stats, s, chosen, n_chosen);
    count_guesses(&g->seq->engine->stats, s, chosen, n_chosen);
    for (int i = 0; i < s->n; i++)
        if (!s->guess[i].spare && s->guess[i].depth == right && right < n_chosen &&
            s->guess[i].token == chosen[right])
            right++;
    for (int i = 0; i < s->n_bets; i++) {
        const struct pp_bet *b = &s->bets[i];
        if (b->depth > right || b->depth >= n_chosen)
            continue;
        bool stood = chosen[b->depth] == b->token;
        pp_habits_learn(habits_of(g), b->who, b->level, stood);
        if (b->trial)
            pp_control_tried(costs_of(g), habits_of(g), s->tried_behind);
    }
}
