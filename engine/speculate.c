/* speculate.c - drafting tokens for a pass, and what is learned from their verification: see speculate.h. */
#include "engine/speculate.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/generate_int.h"
#include "engine/text.h"

enum { MANY_UNREAD = 64 }; /* tokens: if the draft model lacks more, pages of other sequences are looked for */
static const float LARGEST_MARGIN = 1e9f; /* above the margin of any logits */

static struct pp_spec_costs *costs_of(const struct pp_gen *g) { return &g->seq->engine->costs; }

static struct pp_acceptance *acceptance_of(const struct pp_gen *g) { return &g->seq->acceptance; }

/* --- life -------------------------------------------------------------------------------------------------------- */

/* The acceptance model of a new conversation is copied from the engine's, which is that of the answer that ended last.
 * What was learned about the draft tokens of another draft model is dropped. */
static void begin_acceptance(struct pp_gen *g)
{
    struct pp_engine *e = g->seq->engine;
    if (!e->has_acceptance)
        pp_acceptance_init(&e->acceptance);
    e->has_acceptance = true;
    if (g->draft && e->measured_draft_id != g->draft->engine->id) {
        if (e->measured_draft_id)
            pp_acceptance_init(&e->acceptance);
        e->measured_draft_id = g->draft->engine->id;
        e->costs.step = e->costs.step_row = (struct pp_spec_time){0};
    }
    if (g->draft && g->seq->acceptance_draft_id != e->measured_draft_id) {
        g->seq->has_acceptance = g->seq->has_acceptance && !g->seq->acceptance_draft_id;
        g->seq->acceptance_draft_id = e->measured_draft_id;
    }
    if (!g->seq->has_acceptance) {
        g->seq->acceptance = e->acceptance;
        g->seq->acceptance.ledger = (struct pp_spec_ledger){0};
        g->seq->acceptance.budget = 0;
    }
    g->seq->has_acceptance = true;
    pp_acceptance_next_answer(&g->seq->acceptance);
}

/* Makes a bridge if the draft has another vocabulary. Of models without a tokenizer only the sizes are compared. */
static enum pp_code begin_bridge(struct pp_gen *g, struct pp_error *err)
{
    struct pp_engine *e = g->seq->engine, *d = g->draft->engine;
    const struct pp_tokenizer *a = pp_model_tokenizer(e->model), *b = pp_model_tokenizer(d->model);
    int64_t n = d->model->info.n_vocab;
    if (e->bridge_draft_id != d->id) {
        e->bridged = a && b ? !pp_tokenizer_same_ids(a, b) : n != e->model->info.n_vocab;
        if (e->bridged && !(a && b))
            return pp_fail(err, PP_ERR_MISMATCH, "the vocabulary of the draft model differs");
        if (e->bridged && !pp_tokenizer_bridges(a, b, err))
            return PP_ERR_MISMATCH;
        e->bridge_draft_id = d->id;
    }
    return e->bridged ? pp_bridge_new(a, b, n, &g->bridge, err) : PP_OK;
}

enum pp_code pp_spec_new(struct pp_gen *g, const struct pp_gen_options *opt, struct pp_error *err)
{
    struct pp_engine *e = g->seq->engine;
    struct pp_spec *s = &g->spec;
    enum pp_code code = PP_OK;
    s->max_draft = opt->draft_max <= 0 ? PP_DRAFT_MAX_DEFAULT : opt->draft_max;
    if (s->max_draft > PP_DRAFT_MAX_LIMIT)
        s->max_draft = PP_DRAFT_MAX_LIMIT;
    if (s->max_draft > e->max_rows - 1)
        s->max_draft = e->max_rows - 1;
    s->use_lookup = opt->lookup;
    s->adaptive = !opt->draft_always;
    pp_copy_init(&s->copy);
    s->p_min = opt->draft_p_min;
    s->siblings = pp_plan_has_states(&e->model->plan) ? 0 : opt->draft_siblings; /* models with recurrent states cannot
                                                                                    read trees */
    s->script = opt->draft_script;
    s->script_user = opt->draft_script_user;
    s->enabled = s->max_draft > 0 && (g->draft || s->use_lookup || s->script);
    if (!s->enabled)
        return PP_OK;
    begin_acceptance(g);
    if (g->draft)
        code = begin_bridge(g, err);
    if (!code && g->draft && !g->bridge)
        code = pp_shortlist_init(&s->shortlist, g->draft->engine->model->info.n_vocab, err);
    if (!code && s->use_lookup)
        code = pp_lookup_init(&s->lookup, e->n_ctx, err);
    if (s->max_draft > e->max_draft)
        e->max_draft = s->max_draft;
    return code;
}

void pp_spec_free(struct pp_gen *g)
{
    struct pp_engine *e = g->seq->engine;
    if (g->spec.enabled && g->n > g->n_prompt) {
        e->acceptance = g->seq->acceptance;
        pp_costs_record_answer(&e->costs, g->n - g->n_prompt);
    }
    pp_lookup_free(&g->spec.lookup);
    pp_shortlist_free(&g->spec.shortlist);
    pp_bridge_free(g->bridge);
}

/* --- one more draft token ---------------------------------------------------------------------------------------- */

/* A pass while its draft tokens are collected. */
struct draft_pass {
    struct pp_gen *const *answers;
    int n_answers;
    int rows, max_rows;    /* rows of the pass so far, draft tokens included; the limit */
    const struct pp_cancel *cancel;
};

static struct pp_draft_state draft_state(const struct draft_pass *p, const struct pp_gen *g)
{
    const struct pp_spec *s = &g->spec;
    int left = p->max_rows - p->rows, room = s->max_chain - s->chain_len;
    return (struct pp_draft_state){
        .rate = s->rate,
        .rows = p->rows,
        .chain_len = s->chain_len,
        .max_chain = s->chain_len + (room < left ? room : left),
        .chain_p = s->chain_p,
        .tokens_left = g->max_tokens < 0 ? -1 : g->max_tokens - (g->n - g->n_prompt),
        .spent_ns = (double)s->draft_ns,
    };
}

static void note_proposal(struct pp_spec *s, int32_t token, enum pp_draft_source source, int level)
{
    if (s->n_proposals < (int)(sizeof s->proposals / sizeof *s->proposals))
        s->proposals[s->n_proposals++] = (struct pp_proposal){.token = token,
                                                              .source = (uint8_t)source,
                                                              .level = (uint8_t)level,
                                                              .depth = (uint8_t)s->chain_len,
                                                              .trial = s->trial && source == PP_DRAFT_MODEL};
}

/* The index of the last token of the chain, or -1. */
static int chain_end(const struct pp_spec *s)
{
    int i = s->n_drafted - 1;
    while (i >= 0 && s->drafted[i].sibling)
        i--;
    return i;
}

/* Extends the chain by a token, if there is room and it is worth a row, and perhaps adds a sibling to it: the second
 * choice (-1: there is none). False: the chain ends. */
static bool add_draft_token(struct draft_pass *p, struct pp_gen *g, int32_t token, int32_t second,
                            enum pp_draft_source source, int level)
{
    struct pp_spec *s = &g->spec;
    struct pp_draft_state state = draft_state(p, g);
    const double accepted = pp_acceptance_probability(acceptance_of(g), source, level);
    note_proposal(s, token, source, level);
    if (g->constraint && !pp_constraint_draft(g->constraint, s->chain_len, token))
        return false;
    if (state.chain_len >= state.max_chain || s->n_drafted >= s->max_drafted)
        return false;
    if (s->adaptive && (accepted < (double)s->p_min ||
                        !pp_control_worth_row(costs_of(g), acceptance_of(g), &state, source, level)))
        return false;
    struct pp_draft_token d = {.token = token,
                               .parent = (int8_t)chain_end(s),
                               .depth = (int8_t)s->chain_len,
                               .source = (uint8_t)source,
                               .level = (uint8_t)level};
    s->drafted[s->n_drafted++] = d;
    p->rows++;
    if (s->siblings && second >= 0 && s->n_drafted < s->max_drafted && p->rows < p->max_rows) {
        d.token = second;
        d.sibling = true;
        s->drafted[s->n_drafted++] = d;
        p->rows++;
    }
    g->tokens[g->n + s->chain_len++] = token;
    s->chain_p *= accepted;
    return !pp_gen_ends(g, token) && s->chain_len < s->max_chain && p->rows < p->max_rows &&
           s->n_drafted < s->max_drafted;
}

/* --- the conversation, and scripts ------------------------------------------------------------------------------- */

/* Where in the conversation the same tokens occurred before. */
struct match {
    int64_t next;          /* index of the token that followed there; < 0: nowhere */
    enum pp_draft_source source;
    int length;            /* tokens that match; of a copy: n_matched of pp_copy_next */
};

static int match_level(const struct match *m)
{
    return m->source == PP_DRAFT_COPY ? pp_level_of_copy(m->length) : pp_level_of_match(m->length);
}

static double match_probability(const struct pp_gen *g, const struct match *m)
{
    return m->next < 0 ? 0 : pp_acceptance_probability(acceptance_of(g), m->source, match_level(m));
}

/* Has the match judged by the target's choice, although nothing is drafted from it. */
static void note_match(struct pp_gen *g, const struct match *m)
{
    if (m->next >= 0)
        note_proposal(&g->spec, g->tokens[m->next], m->source, match_level(m));
}

static void draft_by_lookup(struct draft_pass *p, struct pp_gen *g)
{
    struct pp_spec *s = &g->spec;
    struct match found = {.source = PP_DRAFT_LOOKUP}, copied = {.source = PP_DRAFT_COPY}, best, other;
    pp_lookup_set(&s->lookup, g->tokens, g->n);
    found.next = pp_lookup_find(&s->lookup, g->tokens, g->n, &found.length);
    pp_copy_set(&s->copy, g->tokens, g->n, found.next, found.length);
    copied.next = pp_copy_next(&s->copy, &copied.length);
    const bool prefer_copy = match_probability(g, &copied) > match_probability(g, &found);
    best = prefer_copy ? copied : found;
    other = prefer_copy ? found : copied;
    note_match(g, &other);
    if (best.next >= 0 && g->draft && s->adaptive &&
        pp_control_prefers_model(costs_of(g), acceptance_of(g), s->rate, p->n_answers, match_probability(g, &best))) {
        note_match(g, &best);
        return;
    }
    /* Where text repeats with a short period, `next` runs on into the draft tokens themselves. */
    while (best.next >= 0 && add_draft_token(p, g, g->tokens[best.next], -1, best.source, match_level(&best))) {
        best.next++;
        best.length = best.length < 0 ? 1 : best.length + 1;
    }
}

static void draft_by_script(struct draft_pass *p, struct pp_gen *g)
{
    int32_t tokens[PP_DRAFT_MAX_LIMIT];
    int n = g->spec.script(g->spec.script_user, g->tokens, g->n, tokens, g->spec.max_chain);
    for (int i = 0; i < n && add_draft_token(p, g, tokens[i], -1, PP_DRAFT_SCRIPT, 0); i++)
        ;
}

/* --- the draft model --------------------------------------------------------------------------------------------- */

/* All tokens that the draft model has read or is to read, in its own vocabulary: the answer, then its draft tokens. */
static const int32_t *model_tokens(const struct pp_gen *g)
{
    return (g->bridge ? g->bridge->ids : g->tokens) + g->spec.draft_begin;
}

static int64_t n_model_tokens(const struct pp_gen *g)
{
    return (g->bridge ? g->bridge->n : g->n + g->spec.chain_len) - g->spec.draft_begin;
}

static void draft_failed(struct pp_gen *g, enum pp_code code)
{
    g->spec.asking = false;
    if (code != PP_ERR_CANCELLED)
        g->draft = NULL;
}

/* Brings the bridge, if there is one, up to the answer's text. False: the draft model is not asked in this pass. That
 * includes passes with tokens drafted by lookup, since the bridge reads only text that the target has chosen. */
static bool set_bridge(struct pp_gen *g)
{
    if (!g->bridge)
        return true;
    if (g->spec.chain_len)
        return false;
    enum pp_code code = pp_bridge_set(g->bridge, g->tokens, g->n);
    if (code)
        draft_failed(g, code);
    else if (g->spec.draft_begin >= g->bridge->n)
        g->spec.draft_begin = 0;
    return !code && g->bridge->n > 0;
}

/* Truncates the draft model's sequence to the prefix that it has in common with the answer. */
static void rewind_draft(struct pp_gen *g)
{
    struct pp_seq *d = g->draft;
    const int32_t *tokens = model_tokens(g);
    /* The last token is read in any case, since its logits are asked for. */
    const int64_t n = n_model_tokens(g) - (g->bridge ? 0 : g->spec.chain_len) - 1;
    int64_t i = g->bridge ? 0 : g->spec.n_common < d->len ? g->spec.n_common : d->len;
    i = i < n ? i : n;
    while (i < d->len && i < n && d->tokens[i] == tokens[i])
        i++;
    g->spec.n_common = i;
    pp_seq_truncate(d, i);
    if (n - i > MANY_UNREAD)
        pp_seq_adopt(d, tokens, n);
}

/* Tokens that the draft model must read before it predicts the next one. */
static int64_t unread(const struct pp_gen *g) { return n_model_tokens(g) - g->draft->len; }

/* Makes the draft model forget what it has read and begin with the last PP_SPEC_RECENT tokens: reading the text before
 * them would take longer than it may gain. */
static void read_only_recent(struct pp_gen *g)
{
    int64_t from = g->spec.draft_begin + n_model_tokens(g) - 1 - PP_SPEC_RECENT;
    if (unread(g) - 1 <= PP_SPEC_RECENT || from <= g->spec.draft_begin)
        return;
    pp_seq_truncate(g->draft, 0);
    g->spec.draft_begin = from;
    g->spec.n_common = 0;
}

/* Decides whether to ask the draft model for one more token. */
static void consider_asking(struct draft_pass *p, struct pp_gen *g)
{
    struct pp_spec *s = &g->spec;
    struct pp_draft_state state = draft_state(p, g);
    s->asking = state.chain_len < state.max_chain && n_model_tokens(g) < g->draft->engine->n_ctx;
    if (!s->asking || !s->adaptive)
        return;
    state.unread = unread(g) - 1;
    enum pp_ask ask = pp_control_asks(costs_of(g), acceptance_of(g), &state, &s->trial);
    s->asking = ask != PP_ASK_NOT;
    if (ask == PP_ASK_RECENT)
        read_only_recent(g);
    s->trial_unread = unread(g) - 1;
}

static int32_t unread_token(const struct pp_gen *g, int64_t k) { return model_tokens(g)[g->draft->len + k]; }

/* Reads all but `rest` of what is unread, a chunk at a time. */
static void read_unread(struct pp_gen *g, int64_t rest, const struct pp_cancel *cancel)
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

/* Drafts from the text that the draft model has added: the target's tokens of that text that are not drafted yet.
 * Unless `all` is set, the last one is left out, as it may become longer. begun: tokens of the answer before that
 * text. */
static void draft_from_text(struct draft_pass *p, struct pp_gen *g, int64_t begun, bool all)
{
    struct pp_spec *s = &g->spec;
    struct pp_bridge *b = g->bridge;
    int32_t *ids;
    size_t n;
    bool more = pp_bridge_propose(b, g->tokens, begun, &ids, &n) == PP_OK;
    size_t done = (size_t)(g->n + s->chain_len - begun);
    if (more && (n < done || memcmp(ids, g->tokens + begun, done * sizeof *ids) != 0))
        more = false; /* more text has changed tokens that were drafted */
    for (size_t i = done; more && i + !all < n; i++) {
        more = add_draft_token(p, g, ids[i], -1, PP_DRAFT_MODEL, pp_level_of_margin(b->margin));
        b->margin = LARGEST_MARGIN;
    }
    s->asking = s->asking && more;
    pp_free(ids);
}

/* take_choice for a draft model with another vocabulary. */
static void take_text(struct draft_pass *p, struct pp_gen *g, int row)
{
    struct pp_spec *s = &g->spec;
    struct pp_bridge *b = g->bridge;
    int64_t begun = b->n_settled;
    s->asking = pp_bridge_add(b, pp_step_output(g->draft->engine, row)) && b->steps < 2 * s->max_chain + 2;
    if (s->asking && !s->trial) {
        draft_from_text(p, g, begun, false);
        if (!s->asking)
            return;
        consider_asking(p, g);
    }
    if (!s->asking || s->trial) {
        draft_from_text(p, g, begun, true);
        s->asking = false;
    }
}

/* What the answer would choose by the draft model's logits. Their number may differ from the target's: vocabularies of
 * one family are padded differently. */
static struct pp_choice choose_by_draft(struct pp_gen *g, const float *logits)
{
    const int64_t n_draft = g->draft->engine->model->info.n_vocab;
    const int32_t n_target = g->sampler.n_vocab;
    g->sampler.n_vocab = n_draft < n_target ? (int32_t)n_draft : n_target;
    const struct pp_choice choice = pp_gen_choose(g, logits, g->n + g->spec.chain_len);
    g->sampler.n_vocab = n_target;
    return choice;
}

/* Drafts a token from row `row` of the draft model's output, which belongs to this answer. */
static void take_choice(struct draft_pass *p, struct pp_gen *g, int row)
{
    if (g->bridge) {
        take_text(p, g, row);
        return;
    }
    struct pp_choice c = choose_by_draft(g, pp_step_output(g->draft->engine, row));
    g->spec.asking = c.token >= 0 &&
                     add_draft_token(p, g, c.token, c.second, PP_DRAFT_MODEL, pp_level_of_margin(c.margin)) &&
                     !g->spec.trial;
    if (g->spec.asking)
        consider_asking(p, g);
}

/* Answers that ask the same draft model, and the rows of the step for them. */
struct draft_step {
    struct pp_engine *engine;
    struct pp_gen *answers[PP_MAX_GEN_ITEMS];
    int last_row[PP_MAX_GEN_ITEMS]; /* of each answer */
    int n, n_rows;
};

/* Adds the rows that an answer's draft model must read. A long unread text is read first, by steps of its own. False:
 * that failed. */
static bool add_to_step(struct draft_step *d, struct pp_gen *g, const struct pp_cancel *cancel)
{
    struct pp_engine *e = d->engine = g->draft->engine;
    if (unread(g) > e->max_rows - d->n_rows) {
        if (d->n > 0)
            return true; /* it gets a later step */
        read_unread(g, e->max_rows, cancel);
        if (!g->spec.asking)
            return false;
    }
    for (int64_t k = 0; k < unread(g); k++)
        e->batch[d->n_rows++] = (struct pp_row){
            .seq = g->draft, .token = unread_token(g, k), .parent = PP_PARENT_PREVIOUS};
    e->batch[d->n_rows - 1].out = PP_OUT_LOGITS;
    d->last_row[d->n] = d->n_rows - 1;
    d->answers[d->n++] = g;
    return true;
}

/* Runs a step of the draft model; for a single answer, with the logits of likely tokens only. */
static enum pp_code run_step(const struct draft_step *d, const struct pp_cancel *cancel)
{
    struct pp_gen *g = d->answers[0];
    struct pp_shortlist *l = &g->spec.shortlist;
    pp_shortlist_set(l, g->tokens, g->n, g->n_prompt);
    const struct pp_token_groups likely = {.groups = l->groups, .n = l->n};
    d->engine->only = d->n == 1 && pp_shortlist_usable(l) ? &likely : NULL;
    enum pp_code code = pp_step(d->engine, d->engine->batch, d->n_rows, cancel, NULL);
    d->engine->only = NULL;
    return code;
}

static void count_time(const struct draft_step *d, uint64_t ns)
{
    const uint64_t each = ns / (uint64_t)d->n;
    for (int i = 0; i < d->n; i++) {
        struct pp_gen *g = d->answers[i];
        g->stats.draft_ns += each;
        g->spec.draft_ns += each;
        g->seq->engine->stats.draft_ns += each;
    }
}

/* Runs one step of the draft model for all answers that ask the same one. False: none asks. */
static bool step_drafts(struct draft_pass *p)
{
    struct draft_step d = {.engine = NULL};
    uint64_t t0 = pp_now_ns();
    for (int i = 0; i < p->n_answers; i++) {
        struct pp_gen *g = p->answers[i];
        if (g->spec.asking && (!d.engine || g->draft->engine == d.engine) && !add_to_step(&d, g, p->cancel))
            return true;
    }
    if (!d.n)
        return false;
    enum pp_code code = run_step(&d, p->cancel);
    for (int i = 0; i < d.n && code; i++)
        draft_failed(d.answers[i], code);
    uint64_t step_ns = pp_now_ns() - t0;
    count_time(&d, step_ns); /* before any answer decides by it whether there is time for more */
    for (int i = 0; i < d.n && !code; i++)
        take_choice(p, d.answers[i], d.last_row[i]);
    uint64_t ns = pp_now_ns() - t0;
    if (!code && d.n == 1)
        pp_costs_record_step(costs_of(d.answers[0]), d.n_rows, (double)ns);
    count_time(&d, ns - step_ns);
    return true;
}

/* --- all of a pass ----------------------------------------------------------------------------------------------- */

static void begin_pass(struct pp_gen *g)
{
    struct pp_spec *s = &g->spec;
    int64_t room = s->max_draft, context = g->seq->engine->n_ctx - g->n - 1;
    int64_t wanted = g->max_tokens - (g->n - g->n_prompt) - 1;
    room = room < context ? room : context;
    room = g->max_tokens < 0 || room < wanted ? room : wanted;
    s->n_drafted = s->n_proposals = s->chain_len = 0;
    s->max_chain = s->enabled && !s->skip_next && room > 0 ? (int)room : 0;
    s->max_drafted = context < PP_DRAFT_MAX_LIMIT ? (int)context : PP_DRAFT_MAX_LIMIT; /* siblings take context, too */
    s->skip_next = false;
    s->chain_p = 1;
    s->asking = s->trial = false;
    s->draft_ns = 0;
}

void pp_speculate(struct pp_gen *const *answers, int n, int rows, int max_rows, const struct pp_cancel *cancel)
{
    struct draft_pass p = {.answers = answers, .n_answers = n, .rows = rows, .max_rows = max_rows, .cancel = cancel};
    for (int i = 0; i < n; i++) {
        struct pp_gen *g = answers[i];
        begin_pass(g);
        if (!g->spec.max_chain || (g->spec.adaptive && pp_costs_stale(costs_of(g))))
            continue;
        g->spec.rate = pp_control_rate(costs_of(g), acceptance_of(g), n, g->spec.max_draft, g->draft != NULL);
        if (g->spec.use_lookup)
            draft_by_lookup(&p, g);
        else if (g->spec.script)
            draft_by_script(&p, g);
        if (!g->draft || (g->spec.chain_len && pp_gen_ends(g, g->tokens[g->n + g->spec.chain_len - 1])))
            continue;
        if (!set_bridge(g))
            continue;
        rewind_draft(g);
        consider_asking(&p, g);
    }
    while (step_drafts(&p))
        ;
}

/* --- verification ------------------------------------------------------------------------------------------------ */

int pp_spec_child(const struct pp_draft_token *drafted, int n, int parent, int32_t token)
{
    for (int i = parent + 1; i < n; i++)
        if (drafted[i].parent == parent && drafted[i].token == token)
            return i;
    return -1;
}

int pp_spec_verify(const struct pp_draft_token *drafted, int n, pp_spec_choose_fn *choose, void *user,
                   int8_t path[static PP_DRAFT_MAX_LIMIT])
{
    int n_accepted = 0, at = -1;
    for (bool over = false; !over;) {
        int32_t token = choose(user, at, &over);
        int next = token < 0 ? -1 : pp_spec_child(drafted, n, at, token);
        if (next < 0)
            break;
        path[n_accepted++] = (int8_t)next;
        at = next;
    }
    return n_accepted;
}

static bool is_lookup(const struct pp_draft_token *d)
{
    return d->source == PP_DRAFT_LOOKUP || d->source == PP_DRAFT_COPY;
}

static void count_drafted(struct pp_stats *s, const struct pp_spec *spec, const int32_t *chosen, int n_chosen)
{
    int n_accepted = 0; /* so far, siblings included */
    for (int i = 0; i < spec->n_drafted; i++) {
        const struct pp_draft_token *d = &spec->drafted[i];
        bool verified = d->depth <= n_accepted && d->depth < n_chosen;
        bool accepted = d->depth == n_accepted && d->depth < n_chosen && d->token == chosen[d->depth];
        s->draft_tokens++;
        s->lookup_tokens += is_lookup(d);
        s->draft_accepted += accepted;
        s->lookup_accepted += accepted && is_lookup(d);
        s->draft_verified_at[d->depth] += verified && !d->sibling;
        s->draft_accepted_at[d->depth] += accepted;
        n_accepted += accepted;
        if (accepted && d->sibling)
            break; /* no draft token follows a sibling */
    }
}

void pp_spec_learn(struct pp_gen *g, const int32_t *chosen, int n_chosen)
{
    struct pp_spec *s = &g->spec;
    int n_accepted = 0; /* tokens of the chain */
    if (!s->enabled)
        return;
    count_drafted(&g->stats, s, chosen, n_chosen);
    count_drafted(&g->seq->engine->stats, s, chosen, n_chosen);
    for (int i = 0; i < s->n_drafted; i++)
        if (!s->drafted[i].sibling && s->drafted[i].depth == n_accepted && n_accepted < n_chosen &&
            s->drafted[i].token == chosen[n_accepted])
            n_accepted++;
    for (int i = 0; i < s->n_proposals; i++) {
        const struct pp_proposal *p = &s->proposals[i];
        if (p->depth > n_accepted || p->depth >= n_chosen)
            continue;
        pp_acceptance_learn(acceptance_of(g), p->source, p->level, p->token == chosen[p->depth]);
        if (p->trial)
            pp_control_charge_trial(costs_of(g), acceptance_of(g), s->trial_unread);
    }
}
