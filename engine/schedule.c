/* schedule.c - continuous batching: a pass computes the next row of every answer in decode, and, in the time that is
 * left, a chunk of the prompts in prefill. The weights are read once for all of them, and no answer waits longer than
 * one such chunk takes.
 *
 * Common prefixes of prompts are computed once: the later prompt waits for the earlier one and then shares its pages,
 * and, if they are equal, its logits, too.
 *
 * Draft tokens (speculate.h) become further rows of an answer: the target computes all of them in one pass and chooses
 * at every position as it would have anyway. Each answer has its own. */
#include "engine/base/clock.h"
#include "engine/generate_int.h"

/* One answer's part of the pass. */
struct part {
    struct pp_gen_item *item;
    int first, n;           /* rows; n 0: none */
    int n_draft;            /* the last n_draft rows are draft tokens, */
    int n_chosen;           /* tokens chosen in this pass */
    bool tree;              /* which form a tree, with second choices */
    bool prompt;            /* in prefill */
    bool chooses;           /* its rows include the last token, whose logits give the next one */
    struct part *twin;      /* an earlier part that is about to compute a prefix of this prompt, or NULL */
};

struct pass {
    struct pp_engine *engine;
    struct part parts[PP_MAX_GEN_ITEMS];
    int n_parts;
    int n_rows, n_prompt_rows;
};

/* Tokens, of the prompt or chosen, that are not computed yet. */
static int64_t n_uncomputed(const struct pp_gen *g) { return g->n - g->seq->len; }

/* --- common prefixes ------------------------------------------------------------------------------------------- */

/* How many leading tokens the two have in common that are computed with the same adapters. */
static int64_t common_prefix(const struct pp_gen *a, const struct pp_gen *b)
{
    const int64_t most = pp_seq_same_adapters_until(a->seq, b->seq);
    int64_t i = 0;
    while (i < most && i < a->n && i < b->n && a->tokens[i] == b->tokens[i])
        i++;
    return i;
}

static void count_cached(struct pp_gen *g, int64_t n)
{
    if (g->n > g->n_prompt)
        return; /* a resumed answer, whose prompt was counted before */
    g->stats.cached_tokens += (uint64_t)n;
    g->seq->engine->stats.cached_tokens += (uint64_t)n;
}

/* Takes over another answer's pages of the first n tokens. */
static void share(struct pp_gen *g, const struct pp_gen *from, int64_t n)
{
    int64_t before = g->seq->len;
    pp_seq_share(g->seq, from->seq, n);
    count_cached(g, g->seq->len - before);
}

/* Takes over what others have computed of this part's prefix. Returns the earlier part that is about to compute more of
 * it, and is worth waiting for; NULL: none. */
static struct part *reuse_prefix(struct pass *p, struct part *self)
{
    struct pp_gen *g = self->item->gen;
    struct part *waits_for = NULL;
    int64_t most = 0;
    count_cached(g, pp_seq_adopt(g->seq, g->tokens, g->n - 1));
    for (int i = 0; i < p->n_parts; i++) {
        struct part *other = &p->parts[i];
        const struct pp_gen *o = other->item->gen;
        if (other == self)
            continue;
        int64_t same = common_prefix(g, o), have = same < pp_seq_exact(o->seq) ? same : pp_seq_exact(o->seq);
        if (have > g->n - 1)
            have = g->n - 1;
        if (have > g->seq->len)
            share(g, o, have);
        if (other < self && same > o->seq->len && same > most) {
            most = same;
            waits_for = other;
        }
    }
    /* A few tokens are not worth waiting for, unless they are all that is missing. */
    return most == g->n || most > g->seq->len + PP_MIN_CHUNK ? waits_for : NULL;
}

/* --- which rows ------------------------------------------------------------------------------------------------ */

/* Adds the next n rows of an answer. */
static void add_rows(struct pass *p, struct part *part, int n)
{
    const struct pp_gen *g = part->item->gen;
    struct pp_row *rows = p->engine->batch + p->n_rows;
    part->first = p->n_rows;
    part->n = n;
    part->prompt = g->n == g->n_prompt;
    part->chooses = n == n_uncomputed(g);
    for (int i = 0; i < part->n; i++)
        rows[i] = (struct pp_row){.seq = g->seq,
                                  .token = g->tokens[g->seq->len + i],
                                  .parent = PP_PARENT_PREVIOUS,
                                  .out = part->chooses && i == n - 1 ? PP_OUT_LOGITS : PP_OUT_NONE};
    p->n_rows += part->n;
}

/* Adds rows for the draft tokens, after the part's last row. With second choices among them they form a tree, whose
 * root is that row. */
static void add_draft_rows(struct pass *p, struct part *part)
{
    const struct pp_spec *s = &part->item->gen->spec;
    struct pp_row *rows = p->engine->batch;
    int root = part->first + part->n - 1;
    part->n_draft = s->n_drafted;
    for (int i = 0; i < s->n_drafted; i++)
        part->tree = part->tree || s->drafted[i].sibling;
    for (int i = 0; i < s->n_drafted; i++)
        rows[p->n_rows++] = (struct pp_row){.seq = part->item->gen->seq,
                                            .token = s->drafted[i].token,
                                            .parent = part->tree ? root + 1 + s->drafted[i].parent : PP_PARENT_PREVIOUS,
                                            .out = PP_OUT_LOGITS};
    if (part->tree)
        rows[root].parent = PP_PARENT_COMMITTED;
    part->n += s->n_drafted;
}

/* Adds the row of each answer that needs just one, and its draft tokens. If there are more answers than rows, each pass
 * begins with another one. */
static void add_answers(struct pass *p, const struct pp_cancel *cancel)
{
    int begin = p->n_parts > p->engine->max_rows ? (int)(p->engine->stats.passes % (uint64_t)p->n_parts) : 0, n = 0;
    struct part *ready[PP_MAX_GEN_ITEMS];
    struct pp_gen *decoding[PP_MAX_GEN_ITEMS];
    int n_decoding = 0;
    for (int i = 0; i < p->n_parts && n < p->engine->max_rows; i++) {
        struct part *part = &p->parts[(begin + i) % p->n_parts];
        struct pp_gen *g = part->item->gen;
        if (n_uncomputed(g) != 1)
            continue;
        ready[n++] = part;
        g->spec.n_drafted = 0;
        if (g->n > g->n_prompt)
            decoding[n_decoding++] = g;
    }
    int room = p->engine->max_rows - n, most = p->engine->max_draft;
    if (n_decoding && most)
        pp_speculate(decoding, n_decoding, n, n + (most < room ? most : room), cancel);
    for (int i = 0; i < n; i++) {
        add_rows(p, ready[i], 1);
        add_draft_rows(p, ready[i]);
    }
}

/* Divides a chunk among the prompts: the first in line gets most of it, but never all while others wait, too. */
static void add_prompts(struct pass *p)
{
    struct part *waiting[PP_MAX_GEN_ITEMS];
    int n = 0, room = p->engine->max_rows - p->n_rows;
    int chunk = pp_chunk_rows(&p->engine->chunks, p->n_parts > 1, room);
    for (int i = 0; i < p->n_parts; i++) {
        struct part *part = &p->parts[i];
        if (n_uncomputed(part->item->gen) <= 1 || (part->twin = reuse_prefix(p, part)))
            continue;
        if (n_uncomputed(part->item->gen) == 1) { /* all but the last token were cached */
            if (chunk > 0)
                add_rows(p, part, 1);
            chunk--;
        } else {
            waiting[n++] = part;
        }
    }
    int reserved = n > 1 ? chunk / (2 * n) : 0; /* reserved for each of the others */
    for (int i = 0; i < n && chunk > 0; i++) {
        int64_t left = n_uncomputed(waiting[i]->item->gen);
        int most = chunk - reserved * (n - 1 - i), m = (int)(left < most ? left : most);
        if (m < 1)
            continue;
        add_rows(p, waiting[i], m);
        p->n_prompt_rows += m;
        chunk -= m;
    }
}

/* --- results --------------------------------------------------------------------------------------------------- */

/* Counts the pass. The engine's statistics divide its time between prefill and decode by rows; those of each answer
 * count the whole time. */
static void count_pass(struct pass *p, uint64_t ns)
{
    struct pp_stats *total = &p->engine->stats;
    int prompt_rows = 0;
    for (int i = 0; i < p->n_parts; i++) {
        const struct part *part = &p->parts[i];
        struct pp_stats *s = &part->item->gen->stats;
        if (!part->n)
            continue;
        s->passes++;
        s->rows += (uint64_t)part->n;
        *(part->prompt ? &s->prefill_ns : &s->decode_ns) += ns;
        if (part->prompt)
            s->prefill_tokens += (uint64_t)part->n;
        prompt_rows += part->prompt ? part->n : 0;
    }
    total->prefill_tokens += (uint64_t)prompt_rows;
    total->prefill_ns += ns * (uint64_t)prompt_rows / (uint64_t)p->n_rows;
    total->decode_ns += ns * (uint64_t)(p->n_rows - prompt_rows) / (uint64_t)p->n_rows;
}

/* Learns from the pass what its rows cost, and what answers would have cost without drafts. */
static void learn_costs(struct pass *p, uint64_t ns)
{
    struct pp_engine *e = p->engine;
    int answers = 0, n_drafted = 0;
    for (int i = 0; i < p->n_parts; i++) {
        if (p->parts[i].n && p->parts[i].prompt)
            return;
        answers += p->parts[i].n > 0;
        n_drafted += p->parts[i].n_draft;
    }
    pp_costs_record_pass(&e->costs, answers + n_drafted, (double)ns);
    /* other programs would have slowed a pass without drafts down in the same proportion */
    double plain = pp_costs_pass_ns(&e->costs, answers) * (double)ns / pp_costs_pass_ns(&e->costs, answers + n_drafted);
    for (int i = 0; i < p->n_parts; i++) {
        struct pp_gen *g = p->parts[i].item->gen;
        if (!p->parts[i].n)
            continue;
        g->stats.plain_ns += (uint64_t)(plain * (double)p->parts[i].n_chosen);
        e->stats.plain_ns += (uint64_t)(plain * p->parts[i].n_chosen / answers);
        if (g->spec.enabled && g->spec.adaptive)
            pp_control_record_pass(&g->seq->acceptance,
                                   &(struct pp_pass_record){.ns = (double)ns,
                                                            .draft_ns = (double)g->spec.draft_ns,
                                                            .plain_ns = plain,
                                                            .n_drafted = p->parts[i].n_draft,
                                                            .n_tokens = p->parts[i].n_chosen});
    }
}

static void note_first_token(struct pp_gen *g)
{
    g->stats.first_token_ns = g->seq->engine->stats.first_token_ns = pp_now_ns() - g->begin_ns;
}

/* Chooses a token from the logits after draft token `after` of n_drafted, or (-1) after the last chosen token, and
 * accepts it. False if the answer is over, or no choice was possible. */
static bool choose(struct pp_gen_item *item, const float *logits, int after, int n_drafted)
{
    struct pp_gen *g = item->gen;
    if (g->max_tokens == 0) {
        g->finish = PP_FINISH_LENGTH;
        return false;
    }
    struct pp_choice choice = pp_gen_choose(g, logits, g->n);
    if (g->n - g->n_prompt < g->n_forced)
        choice.token = g->forced[g->n - g->n_prompt];
    if (choice.token < 0) {
        item->code = pp_gen_no_token(g, &item->err);
        return false;
    }
    bool first = g->n == g->n_prompt;
    bool over = pp_gen_accept(g, choice.token, pp_spec_child(g->spec.drafted, n_drafted, after, choice.token) >= 0);
    if (g->spec.enabled)
        pp_acceptance_observe_margin(&g->seq->acceptance, choice.margin);
    if (first) {
        note_first_token(g);
        pp_seq_mark(g->seq, PP_MARK_PROMPT);
    }
    return !over;
}

/* The state of pp_spec_verify for one answer. */
struct choosing {
    const struct part *part;
    int root, last;         /* rows: of the last chosen token; whose logits gave the latest choice */
};

static int32_t choose_at(void *user, int after, bool *over)
{
    struct choosing *c = user;
    struct pp_gen *g = c->part->item->gen;
    int64_t before = g->n;
    c->last = c->root + 1 + after;
    *over = !choose(c->part->item, pp_step_output(g->seq->engine, c->last), after, c->part->n_draft);
    return g->n > before ? g->tokens[before] : -1;
}

/* Removes the rows of rejected draft tokens from the sequence; the last chosen token is not computed yet. */
static void keep_rows(const struct part *part, int64_t base, const int8_t *path)
{
    struct pp_gen *g = part->item->gen;
    int32_t keep[1 + PP_DRAFT_MAX_LIMIT];
    int n = 0;
    if (!part->tree) {
        pp_seq_truncate(g->seq, g->n - 1);
        return;
    }
    for (; base + n < g->n - 1; n++)
        keep[n] = (int32_t)base + (n == 0 ? 0 : 1 + path[n - 1]);
    if (pp_seq_keep(g->seq, base, keep, n, NULL))
        pp_seq_truncate(g->seq, base);
}

/* Makes one choice per row, as long as draft tokens are accepted. */
static void take_choices(struct part *part)
{
    struct pp_gen *g = part->item->gen;
    int8_t path[PP_DRAFT_MAX_LIMIT];
    struct choosing c = {.part = part, .root = part->first + part->n - part->n_draft - 1};
    int64_t before = g->n, base = g->seq->len - part->n_draft - 1;
    pp_spec_verify(g->spec.drafted, part->n_draft, choose_at, &c, path);
    keep_rows(part, base, path);
    part->n_chosen = (int)(g->n - before);
    if (before > g->n_prompt)
        pp_spec_learn(g, g->tokens + before, part->n_chosen);
    if (g->finish != PP_FINISH_NONE && g->n > g->n_prompt)
        pp_seq_keep_logits(g->seq, pp_step_output(g->seq->engine, c.last));
}

/* Makes the first choice of an answer without a pass, if the logits of its prompt's last token are known, as after
 * restoring a snapshot. */
static void choose_from_saved_logits(struct pp_gen_item *item)
{
    const struct pp_gen *g = item->gen;
    if (g->finish != PP_FINISH_NONE || g->n != g->n_prompt || n_uncomputed(g) > 0)
        return;
    const float *logits = pp_seq_logits(g->seq);
    if (logits)
        choose(item, logits, -1, 0);
    if (g->n == g->n_prompt) /* no choice was made: the last token will be computed */
        pp_seq_truncate(g->seq, g->n - 1);
}

/* Shares pages and logits of a twin that has finished the same prompt in this pass. */
static void follow_twin(struct part *part)
{
    const struct part *twin = part->twin;
    struct pp_gen *g = part->item->gen, *t = twin->item->gen;
    if (!twin->n || !twin->chooses || twin->n_draft || g->n != g->n_prompt || t->n_prompt != g->n ||
        common_prefix(g, t) < g->n || pp_seq_exact(t->seq) < g->n)
        return;
    share(g, t, g->n);
    choose(part->item, pp_step_output(g->seq->engine, twin->first + twin->n - 1), -1, 0);
    pp_seq_truncate(g->seq, g->n - 1);
}

static void take_results(struct pass *p)
{
    for (int i = 0; i < p->n_parts; i++) {
        struct part *part = &p->parts[i];
        struct pp_gen *g = part->item->gen;
        if (part->n && part->prompt && g->progress)
            g->progress(g->user, (uint64_t)g->seq->len, (uint64_t)g->n);
        if (part->n && part->chooses)
            take_choices(part);
        else if (part->twin)
            follow_twin(part);
    }
}

/* --- the pass -------------------------------------------------------------------------------------------------- */

/* Runs each answer alone. A common pass fails if there are too few pages for one answer; this way only that one gets
 * the error. */
static enum pp_code run_each_alone(struct pass *p, const struct pp_cancel *cancel, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; i < p->n_parts && !code; i++)
        code = pp_gen_advance(p->parts[i].item, 1, cancel, err);
    return code;
}

/* Drops the draft tokens, which need pages, too, so that the pass can be repeated without them. False: there were
 * none. */
static bool drop_drafts(struct pass *p)
{
    bool any = false;
    for (int i = 0; i < p->n_parts; i++) {
        any = any || p->parts[i].n_draft;
        p->parts[i].item->gen->spec.skip_next = true;
    }
    return any;
}

enum pp_code pp_gen_advance(struct pp_gen_item *items, int n, const struct pp_cancel *cancel, struct pp_error *err)
{
    struct pass p = {.engine = items[0].gen->seq->engine};
    uint64_t t0 = pp_now_ns();
    if (n > PP_MAX_GEN_ITEMS)
        return pp_fail(err, PP_ERR_USAGE, "at most %d answers can be generated at once", PP_MAX_GEN_ITEMS);
    for (int i = 0; i < n; i++) {
        items[i].code = PP_OK;
        if (items[i].gen->seq->engine != p.engine)
            return pp_fail(err, PP_ERR_USAGE, "an answer belongs to another engine");
        choose_from_saved_logits(&items[i]);
        if (!items[i].code && items[i].gen->finish == PP_FINISH_NONE && items[i].gen->n == items[i].gen->n_reported)
            p.parts[p.n_parts++] = (struct part){.item = &items[i]};
    }
    if (p.n_parts)
        add_answers(&p, cancel);
    add_prompts(&p);
    if (!p.n_rows)
        return PP_OK;
    struct pp_error why = {0};
    uint64_t t1 = pp_now_ns();
    enum pp_code code = pp_step(p.engine, p.engine->batch, p.n_rows, cancel, &why);
    if (code == PP_ERR_CANCELLED) {
        if (err)
            *err = why;
        return code;
    }
    if (code == PP_ERR_NOMEM && drop_drafts(&p))
        return pp_gen_advance(items, n, cancel, err);
    if (code && p.n_parts > 1)
        return run_each_alone(&p, cancel, err);
    if (code) {
        p.parts[0].item->code = code;
        p.parts[0].item->err = why;
        return PP_OK;
    }
    pp_chunk_record(&p.engine->chunks, p.n_prompt_rows, pp_now_ns() - t1);
    take_results(&p);
    learn_costs(&p, pp_now_ns() - t1);
    count_pass(&p, pp_now_ns() - t0);
    return PP_OK;
}

enum pp_code pp_gen_step(struct pp_gen_item *items, int n, const struct pp_cancel *cancel, struct pp_error *err)
{
    enum pp_code code = n > 0 ? pp_gen_advance(items, n, cancel, err) : PP_OK;
    for (int i = 0; i < n && !code; i++)
        if (!items[i].code)
            pp_gen_emit_text(&items[i]);
    return code;
}
