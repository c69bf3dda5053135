/* step.c - one forward pass: rows are assigned positions and pages, the backend computes, and only if that succeeds do
 * the sequences grow. */
#include <string.h>

#include "engine/engine_int.h"
#include "engine/switched.h"

static enum pp_code no_pages(const struct pp_kv_pool *kv, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_NOMEM,
                   "all %llu KV pages are in use; close a conversation, or give more memory with --kv-memory",
                   (unsigned long long)pp_kv_pool_total(kv));
}

/* Takes a page for s; if none is free, s gives up its marks for it. */
static pp_page_id take_page(struct pp_seq *s, int t)
{
    struct pp_kv_pool *kv = s->engine->tier[t].kv;
    pp_page_id page = pp_page_take(kv);
    return page == PP_NO_PAGE && pp_seq_unmark(s) ? pp_page_take(kv) : page;
}

/* Makes the i-th page of a tier writable: copies it if it is shared or named. If there is no page for a copy, a page
 * that only s holds loses its name instead. */
static enum pp_code own_page(struct pp_seq *s, int t, int64_t i, struct pp_error *err)
{
    struct pp_kv_pool *kv = s->engine->tier[t].kv;
    const pp_page_id page = s->tier[t].pages[i];
    if (pp_page_refs(kv, page) == 1 && !pp_page_named(kv, page))
        return PP_OK;
    pp_page_id copy = take_page(s, t);
    if (copy == PP_NO_PAGE && pp_page_refs(kv, page) > 1)
        return no_pages(kv, err);
    if (copy == PP_NO_PAGE) {
        pp_page_unname(kv, page);
        return PP_OK;
    }
    size_t bytes = pp_kv_pool_layout(kv)->page_bytes;
    memcpy(pp_page_data(kv, copy), pp_page_data(kv, page), bytes);
    s->engine->stats.kv_copied_bytes += bytes;
    s->copied_bytes += bytes;
    pp_page_release(kv, page);
    pp_seq_set_page(s, t, i, copy);
    return PP_OK;
}

/* Makes positions from the sequence's end up to `end` writable in a tier. */
static enum pp_code make_tier_room(struct pp_seq *s, int t, int64_t end, struct pp_error *err)
{
    struct pp_seq_tier *tier = &s->tier[t];
    int64_t first = s->len / PP_PAGE_TOKENS; /* the page that is written next */
    enum pp_code code = first < tier->n_pages ? own_page(s, t, first, err) : PP_OK;
    while (!code && tier->n_pages * PP_PAGE_TOKENS < end) {
        pp_page_id page = take_page(s, t);
        if (page == PP_NO_PAGE)
            return no_pages(s->engine->tier[t].kv, err);
        pp_seq_set_page(s, t, tier->n_pages++, page);
    }
    return code;
}

static enum pp_code make_room(struct pp_seq *s, int64_t end, struct pp_error *err)
{
    struct pp_engine *e = s->engine;
    enum pp_code code = PP_OK;
    if (end > e->n_ctx)
        return pp_fail(err, PP_ERR_CONTEXT,
                       "the context of %lld tokens is full; start a new conversation%s", (long long)e->n_ctx,
                       pp_engine_or_larger(e));
    for (int t = 0; !code && t < e->n_tiers; t++)
        code = make_tier_room(s, t, end, err);
    return code;
}

static enum pp_code check_row(const struct pp_engine *e, const struct pp_row *r, struct pp_error *err)
{
    if (!r->seq || r->seq->engine != e)
        return pp_fail(err, PP_ERR_USAGE, "a row belongs to a sequence of another engine");
    if (r->out == PP_OUT_LOGITS && e->model->plan.encoder)
        return pp_model_check_writes(e->model, err);
    if (r->token < 0 ? !r->vector : r->token >= e->model->info.n_vocab + e->model->info.n_meta_tokens)
        return pp_fail(err, PP_ERR_USAGE, "token %d is not in the vocabulary of %lld", r->token,
                       (long long)e->model->info.n_vocab);
    if (r->token < 0 && pp_source_hparams(e->model->source)->n_embd_in)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a model whose embeddings are narrower than its layers reads tokens "
                       "only");
    return PP_OK;
}

/* A row of a tree: it sees the committed tokens, its ancestors and itself; its position is its depth. */
static enum pp_code place_in_tree(struct pp_engine *e, const struct pp_row *rows, int i, struct pp_batch_row *b,
                                  int previous, struct pp_error *err)
{
    struct pp_seq *s = rows[i].seq;
    int parent = rows[i].parent == PP_PARENT_PREVIOUS ? previous : rows[i].parent;
    if (pp_plan_has_states(&e->model->plan))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "a recurrent model cannot read a tree of rows");
    if (s->added >= PP_TREE_ROWS)
        return pp_fail(err, PP_ERR_USAGE, "a tree may have at most %d rows", PP_TREE_ROWS);
    if (parent >= i || (parent >= 0 && rows[parent].seq != s))
        return pp_fail(err, PP_ERR_USAGE,
                       "row %d names row %d as its parent, which does not come before it in the same sequence", i,
                       parent);
    b->tree_base = s->len;
    b->tree_mask = (uint64_t)1 << s->added;
    b->position = s->len;
    if (parent >= 0) {
        b->tree_mask |= e->rows[parent].tree_mask;
        b->position = e->rows[parent].position + 1;
    }
    return PP_OK;
}

/* In a decoder a row sees the sequence up to itself; in an encoder it sees all of it, which must be in this batch. */
static enum pp_code place_ends(struct pp_engine *e, const struct pp_row *rows, int n, struct pp_error *err)
{
    const bool encoder = e->model->plan.encoder;
    for (int i = 0; i < n; i++) {
        const struct pp_seq *s = rows[i].seq;
        e->rows[i].sees = encoder ? s->added : e->rows[i].slot + 1;
        if (encoder && (s->len || s->tree))
            return pp_fail(err, PP_ERR_USAGE, "this model is an encoder, which reads a text in one step");
    }
    return PP_OK;
}

static int previous_row(const struct pp_row *rows, int i)
{
    for (int j = i - 1; j >= 0; j--)
        if (rows[j].seq == rows[i].seq)
            return j;
    return PP_PARENT_COMMITTED;
}

static enum pp_code place_rows(struct pp_engine *e, const struct pp_row *rows, int n, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    e->n_outputs = 0;
    e->n_rows = n;
    for (int i = 0; i < n; i++) {
        if ((code = check_row(e, &rows[i], err)))
            return code;
        rows[i].seq->added = 0;
        rows[i].seq->tree = false;
    }
    for (int i = 0; i < n; i++)
        if (rows[i].parent != PP_PARENT_PREVIOUS)
            rows[i].seq->tree = true;
    for (int i = 0; i < n && !code; i++) {
        struct pp_seq *s = rows[i].seq;
        struct pp_batch_row *b = &e->rows[i];
        *b = (struct pp_batch_row){
            .token = rows[i].token,
            .vector = rows[i].vector,
            .position = s->len + s->added,
            .slot = s->len + s->added,
            .output = -1,
        };
        for (int t = 0; t < e->n_tiers; t++)
            b->pages[t] = s->tier[t].page_data;
        const int previous = s->tree || e->switched ? previous_row(rows, i) : PP_PARENT_COMMITTED;
        if (s->tree)
            code = place_in_tree(e, rows, i, b, previous, err);
        e->parents[i] = !s->tree || rows[i].parent == PP_PARENT_PREVIOUS ? previous : rows[i].parent;
        b->adapters = pp_seq_adapters_at(s, b->position);
        e->wanted[i] = rows[i].out;
        if (rows[i].out != PP_OUT_NONE) {
            b->output = e->n_outputs;
            e->output_rows[e->n_outputs++] = i;
        }
        s->added++;
    }
    if (!code && e->switched)
        pp_switched_rows(e, e->parents, n, rows);
    return code ? code : place_ends(e, rows, n, err);
}

enum pp_code pp_step(struct pp_engine *e, const struct pp_row *rows, int n, const struct pp_cancel *cancel,
                     struct pp_error *err)
{
    if (n < 1 || n > e->max_rows)
        return pp_fail(err, PP_ERR_USAGE, "a step takes 1 to %d rows, not %d", e->max_rows, n);
    enum pp_code code = place_rows(e, rows, n, err);
    if (code) {
        e->n_rows = 0;
        return code;
    }
    for (int i = 0; i < n; i++) {
        pp_seq_publish(rows[i].seq);
        pp_seq_slide(rows[i].seq);
    }
    for (int i = 0; i < n && !code; i++)
        code = make_room(rows[i].seq, rows[i].seq->len + rows[i].seq->added, err);
    if (!code)
        code = pp_cpu_reserve_outputs(e->cpu, e->n_outputs, err);
    if (!code) {
        struct pp_batch batch = {
            .rows = e->rows, .n = n, .output_rows = e->output_rows, .n_outputs = e->n_outputs, .only = e->only};
        code = pp_cpu_forward(e->cpu, &batch, cancel, err);
    }
    if (code) {
        for (int i = 0; i < n; i++)
            pp_seq_drop_pages(rows[i].seq);
        e->n_rows = 0;
        return code;
    }
    for (int i = 0; i < n; i++) {
        struct pp_seq *s = rows[i].seq;
        if (!s->tree && s->plain == s->len && !e->model->plan.encoder) /* an encoder's rows also depend on later
                                                                          tokens */
            s->plain++;
        s->tokens[s->len++] = rows[i].token;
        s->logits_len = 0;
    }
    e->stats.passes++;
    e->stats.rows += (uint64_t)n;
    return PP_OK;
}

const float *pp_step_output(const struct pp_engine *e, int row)
{
    if (row < 0 || row >= e->n_rows || e->wanted[row] == PP_OUT_NONE)
        return NULL;
    int output = e->rows[row].output;
    return e->wanted[row] == PP_OUT_LOGITS ? pp_cpu_logits(e->cpu, output) : pp_cpu_hidden(e->cpu, output);
}

enum pp_code pp_seq_keep(struct pp_seq *s, int64_t base, const int32_t *keep, int n, struct pp_error *err)
{
    for (int i = 0; i < n; i++)
        if (keep[i] < base || keep[i] >= s->len || (i > 0 && keep[i] <= keep[i - 1]))
            return pp_fail(err, PP_ERR_USAGE, "positions to keep must ascend and lie between %lld and %lld",
                           (long long)base, (long long)s->len);
    for (int t = 0; t < s->engine->n_tiers; t++)
        if (base / PP_PAGE_TOKENS < s->tier[t].first_page)
            return pp_fail(err, PP_ERR_USAGE, "positions from %lld on are no longer in the cache", (long long)base);
    for (int i = 0; i < n; i++) { /* ascending, so that no position is overwritten before it is moved */
        int64_t to = base + i, from = keep[i];
        if (to == from)
            continue;
        for (int t = 0; t < s->engine->n_tiers; t++)
            pp_kv_copy_position(pp_kv_pool_layout(s->engine->tier[t].kv), s->tier[t].page_data[from / PP_PAGE_TOKENS],
                                (int)(from % PP_PAGE_TOKENS), s->tier[t].page_data[to / PP_PAGE_TOKENS],
                                (int)(to % PP_PAGE_TOKENS));
        s->tokens[to] = s->tokens[from];
    }
    s->len = base + n;
    s->logits_len = 0;
    if (s->plain >= base)
        s->plain = s->len; /* the branch is now where it would be had it been computed alone */
    if (s->n_named > base / PP_PAGE_TOKENS)
        s->n_named = base / PP_PAGE_TOKENS;
    if (s->mark[PP_MARK_TURN] > base || s->mark[PP_MARK_PROMPT] > base)
        pp_seq_unmark(s);
    pp_seq_drop_pages(s);
    return PP_OK;
}
