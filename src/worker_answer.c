/* worker_answer.c - one answer: its prompt, its pages, its text as it arrives, and its statistics.
 *
 * Text is handed first to the io thread, which saves it, and then to the screen. It is collected for a few
 * milliseconds, because waking two threads for each token would cost more than a small model's token does. While the
 * screen's queue is full, text for it stays collected: a terminal that has stopped (Ctrl-S) must hold up neither the
 * answer nor its saving. */
#include <inttypes.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/prompt.h"
#include "src/worker_int.h"

static const uint64_t COLLECT_NS = 8000000;   /* half a frame: the screen redraws at most every 16 ms */
static const uint64_t PROGRESS_NS = 30000000;

/* --- statistics ------------------------------------------------------------------------------------------- */

/* The statistics of this answer alone: those of its generation, and what was restored from a snapshot for it. */
static struct pp_stats answer_stats(const struct answer *a)
{
    if (!a->gen)
        return (struct pp_stats){0};
    const struct pp_stats *engine = pp_engine_stats(a->w->engine);
    struct pp_stats s = pp_gen_stats(a->gen);
    s.restored_tokens = a->restored_tokens;
    s.pages_used = engine->pages_used;
    s.pages_total = engine->pages_total;
    s.pages_cached = engine->pages_cached;
    s.page_bytes = engine->page_bytes;
    s.kv_bytes_used = engine->kv_bytes_used;
    s.kv_bytes_cached = engine->kv_bytes_cached;
    s.kv_bytes_total = engine->kv_bytes_total;
    return s;
}

static const struct pp_generate_request *request_of(const struct answer *a) { return &a->request->generate; }

static double per_second(uint64_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

static const char *finish_name(const struct answer *a, enum pp_finish f, enum pp_code code)
{
    if (a && a->too_long)
        return PP_OVERFLOW_TOO_LONG;
    if (code == PP_ERR_CANCELLED)
        return "cancelled";
    if (code != PP_OK)
        return "error";
    switch (f) {
    case PP_FINISH_END:
        return "end";
    case PP_FINISH_LENGTH:
        return "length";
    case PP_FINISH_STOP:
        return "stop";
    case PP_FINISH_CONTEXT:
        return "context";
    case PP_FINISH_NONE:
        break;
    }
    return "none";
}

/* Statistics of speculation: drafted tokens and those accepted, the same of lookup alone, counts for each position
 * in a draft, and the speedup over decoding without drafts. Omits what does not apply. */
static void draft_json(const struct pp_stats *s, struct pp_buf *out)
{
    pp_buf_fmt(out, ",\"draft_tokens\":%" PRIu64 ",\"draft_accepted\":%" PRIu64, s->draft_tokens, s->draft_accepted);
    if (!s->draft_tokens)
        return;
    pp_buf_fmt(out, ",\"lookup_tokens\":%" PRIu64 ",\"lookup_accepted\":%" PRIu64, s->lookup_tokens,
               s->lookup_accepted);
    for (int accepted = 0; accepted < 2; accepted++) {
        pp_buf_str(out, accepted ? ",\"draft_stood_at\":[" : ",\"draft_at\":[");
        for (int i = 0; i < PP_STATS_POSITIONS && s->draft_verified_at[i]; i++)
            pp_buf_fmt(out, "%s%" PRIu32, i ? "," : "", accepted ? s->draft_accepted_at[i] : s->draft_verified_at[i]);
        pp_buf_char(out, ']');
    }
    if (s->plain_ns && s->decode_ns)
        pp_buf_fmt(out, ",\"speedup\":%.3f", (double)s->plain_ns / (double)s->decode_ns);
}

/* `a` is NULL for an answer that never began. */
static void stats_json(const struct pp_stats *s, const struct answer *a, enum pp_finish finish, enum pp_code code,
                       struct pp_buf *out)
{
    pp_buf_fmt(out, "{\"prompt_tokens\":%" PRIu64 ",\"cached_tokens\":%" PRIu64 ",\"restored_tokens\":%" PRIu64,
               s->prompt_tokens, s->cached_tokens, s->restored_tokens);
    pp_buf_fmt(out, ",\"kv_copied_bytes\":%" PRIu64, s->kv_copied_bytes);
    pp_buf_fmt(out, ",\"prefill_tps\":%.1f,\"decode_tokens\":%" PRIu64 ",\"decode_tps\":%.1f",
               per_second(s->prefill_tokens, s->prefill_ns), s->decode_tokens,
               per_second(s->decode_tokens, s->decode_ns));
    draft_json(s, out);
    if (a && a->parts.n_reasoning)
        pp_buf_fmt(out, ",\"reasoning_tokens\":%" PRId64 ",\"reasoning_ms\":%.0f", a->parts.n_reasoning,
                   (double)a->parts.reasoning_ns / 1e6);
    if (a && pp_draft_runs_any(&a->drafted)) {
        pp_buf_str(out, ",\"guessed\":");
        pp_draft_runs_json(&a->drafted, out);
    }
    pp_buf_fmt(out, ",\"first_token_ms\":%.2f,\"finish\":\"%s\"}", (double)s->first_token_ns / 1e6,
               finish_name(a, finish, code));
}

/* --- text ------------------------------------------------------------------------------------------------- */

static void text_free(struct answer_text *t)
{
    pp_buf_free(&t->reasoning);
    pp_buf_free(&t->text);
    pp_draft_runs_free(&t->drafted);
    t->text_was_reasoning = false;
}

/* Appends a step's text. False if memory runs out; what was there before is intact then. */
static bool text_add(struct answer_text *t, const struct pp_parts *p)
{
    if (p->text_was_reasoning) {
        pp_buf_add(&t->reasoning, t->text.data, t->text.len);
        pp_buf_clear(&t->text);
        pp_draft_runs_clear(&t->drafted);
        t->text_was_reasoning = true;
    }
    pp_buf_add(&t->reasoning, p->reasoning.data, p->reasoning.len);
    pp_buf_add(&t->text, p->text.data, p->text.len);
    pp_draft_runs_append(&t->drafted, &p->drafted);
    return !t->reasoning.bad && !t->text.bad;
}

/* Sends the pending text to the screen. If the queue is full: waits for room (`wait`), or keeps the text for the
 * next call. */
static void send_text(struct answer *a, bool wait)
{
    struct answer_text *t = &a->pending;
    bool any = a->pending_tokens || t->text.len || t->reasoning.len || t->text_was_reasoning;
    struct pp_event *e = any ? pp_event_new(PP_EVENT_TEXT) : NULL;
    if (!e)
        return;
    e->request = request_of(a)->request;
    e->n = a->pending_tokens;
    e->stats = answer_stats(a);
    e->text_len = t->text.len;
    e->text = t->text.data;
    e->drafted = t->drafted;
    e->thoughts = (struct pp_thoughts){t->reasoning.data,    t->reasoning.len,        t->text_was_reasoning,
                                       a->parts.thinking,    a->parts.n_reasoning,    a->parts.reasoning_ns};
    bool sent = wait ? pp_queue_push(a->w->events, e) : pp_queue_try_push(a->w->events, e);
    if (!sent) {
        e->text = e->thoughts.text = NULL; /* the queue refused the event: its text still belongs to `t` */
        e->drafted = (struct pp_draft_runs){0};
        pp_event_free(e);
        if (!wait)
            return;
        text_free(t);
    }
    *t = (struct answer_text){0};
    a->pending_tokens = 0;
}

static void save_parts(const struct answer *a, bool text_was_reasoning, const struct pp_buf *reasoning,
                       const struct pp_buf *text)
{
    int64_t message = request_of(a)->message_id;
    if (!message)
        return;
    if (text_was_reasoning)
        pp_io_answer_add(a->w->io, message, PP_PART_TEXT_WAS_REASONING, "", 0);
    pp_io_answer_add(a->w->io, message, PP_PART_REASONING, reasoning->data, reasoning->len);
    pp_io_answer_add(a->w->io, message, PP_PART_ANSWER, text->data, text->len);
}

static void save_text(struct answer *a)
{
    struct answer_text *t = &a->unsaved;
    save_parts(a, t->text_was_reasoning, &t->reasoning, &t->text);
    pp_buf_clear(&t->reasoning);
    pp_buf_clear(&t->text);
    pp_draft_runs_clear(&t->drafted);
    t->text_was_reasoning = false;
}

/* Moves the text that a->parts has split off into `unsaved` and `pending`. */
static void take_parts(struct answer *a)
{
    struct pp_parts *p = &a->parts;
    if (!text_add(&a->unsaved, p)) { /* out of memory: save what was collected, then this piece on its own */
        a->unsaved.text_was_reasoning = false;
        save_text(a);
        save_parts(a, p->text_was_reasoning, &p->reasoning, &p->text);
    }
    text_add(&a->pending, p);
    if (p->text_was_reasoning)
        pp_draft_runs_clear(&a->drafted);
    pp_draft_runs_append(&a->drafted, &p->drafted);
    pp_buf_clear(&p->reasoning);
    pp_buf_clear(&p->text);
    pp_draft_runs_clear(&p->drafted);
    p->text_was_reasoning = false;
}

bool answer_piece(struct answer *a, int n_tokens)
{
    uint64_t now = pp_now_ns();
    bool complete = a->piece_drafted.len == a->piece.len; /* a mask shorter than the text means that memory ran out:
                                                           * then nothing is marked as drafted */
    pp_parts_add(&a->parts, a->piece.data, complete ? a->piece_drafted.data : NULL, a->piece.len, n_tokens, now);
    pp_buf_clear(&a->piece);
    pp_buf_clear(&a->piece_drafted);
    take_parts(a);
    a->pending_tokens += n_tokens;
    if (now - a->sent_ns >= COLLECT_NS) {
        a->sent_ns = now;
        save_text(a);
        send_text(a, false);
    }
    return pp_parts_over(&a->parts) && !request_of(a)->ignore_end;
}

/* --- prompt ----------------------------------------------------------------------------------------------- */

/* The template of a model that has none: the one its vocabulary suggests, or "plain" as the last resort. The user is
 * told once. */
static const char *builtin_template(struct pp_worker *w)
{
    const struct pp_model_info *m = pp_model_info(w->target->model);
    const char *why, *name = pp_template_instead(pp_model_tokenizer(w->target->model), m->name, m->path, &why);
    if (!w->template_notified)
        worker_notice(w, "this model has no chat template; using \"%s\"%s%s (/template chooses another)",
                      name, why ? ", by " : "", why ? why : "");
    w->template_notified = true;
    return name;
}

static enum pp_code choose_template(struct pp_worker *w, const char *source, struct pp_error *err)
{
    const char *name = "the chosen chat template";
    if (!source) {
        source = pp_model_info(w->target->model)->chat_template;
        name = "the chat template of the model";
    }
    if (!source) {
        name = builtin_template(w);
        source = pp_template_builtin(name);
    }
    if (w->tmpl && strcmp(w->tmpl_source, source) == 0)
        return PP_OK;
    pp_template_free(w->tmpl);
    pp_free(w->tmpl_source);
    w->tmpl = NULL;
    w->tmpl_source = pp_strdup(source);
    if (!w->tmpl_source)
        return pp_fail_nomem(err, "the chat template");
    return pp_template_parse(source, strlen(source), name, &w->tmpl, err);
}

struct prompt {
    int32_t *ids;                  /* [n], pp_free */
    size_t n, dropped;
    struct pp_reasoning reasoning; /* how the model marks its reasoning under this template */
    enum pp_answer_begin begins;   /* whether the answer begins with reasoning or with text */
};

static void send_overflow(struct answer *a, size_t dropped, bool done)
{
    struct pp_event *e = dropped ? pp_event_new(PP_EVENT_OVERFLOW) : NULL;
    if (!e)
        return;
    e->request = request_of(a)->request;
    e->n = (int)dropped;
    e->done = done;
    worker_send(a->w, e);
}

static enum pp_code render(struct pp_worker *w, const struct pp_generate_request *r, struct prompt *out,
                           struct pp_error *err)
{
    out->reasoning = pp_reasoning_of(w->tmpl_source, pp_model_tokenizer(w->target->model));
    struct pp_prompt_input in = {
        .tokenizer = pp_model_tokenizer(w->target->model),
        .tmpl = w->tmpl,
        .messages_json = r->messages_json,
        .extra_json = pp_thinking_variables(r->thinking, w->tmpl),
        .continue_text = r->continue_text,
        .continue_reasoning = r->continue_reasoning,
        .reasoning = &out->reasoning,
        .skip_reasoning = r->skip_reasoning,
        .begins = &out->begins,
        .now = pp_prompt_now(),
    };
    const int64_t n_ctx_train = pp_model_info(w->target->model)->n_ctx_train;
    return pp_overflow_prompt(&in, pp_engine_n_ctx(w->engine), n_ctx_train, r->overflow, &out->ids, &out->n,
                              &out->dropped, err);
}

static enum pp_code prompt_of(struct pp_worker *w, const struct pp_generate_request *r, struct prompt *out,
                              struct pp_error *err)
{
    out->dropped = 0;
    enum pp_code code = choose_template(w, r->template_source, err);
    if (code == PP_OK)
        code = render(w, r, out, err);
    return code == PP_ERR_FORMAT ? pp_fail_advice(err, "/template chooses another one") : code;
}

static enum pp_code make_prompt(struct answer *a, struct prompt *p, struct pp_error *err)
{
    const struct pp_generate_request *r = request_of(a);
    enum pp_code code = prompt_of(a->w, r, p, err);
    send_overflow(a, p->dropped, code == PP_OK);
    a->too_long = code == PP_ERR_CONTEXT && !p->dropped && !r->continue_text && !r->continue_reasoning;
    return code;
}

/* Counts the tokens of the text that an answer continues, where the number was not stored: they count towards the
 * answer. */
static int64_t count_tokens(const struct pp_worker *w, const char *text)
{
    int32_t *ids;
    size_t n;
    if (!text || pp_tokenize(pp_model_tokenizer(w->target->model), text, strlen(text), 0, &ids, &n, NULL) != PP_OK)
        return 0;
    pp_free(ids);
    return (int64_t)n;
}

void worker_cost(struct pp_worker *w, const struct pp_generate_request *r)
{
    struct pp_adapter_use use[PP_MAX_ADAPTERS];
    struct pp_event *e = w->engine ? pp_event_new(PP_EVENT_COST) : NULL;
    struct prompt p = {0};
    if (!e)
        return;
    e->request = r->request;
    if (prompt_of(w, r, &p, &e->err) == PP_OK) {
        int n_use = worker_choose_adapters(w, r, use, false, &e->err);
        e->total = p.n;
        e->cached = (uint64_t)slots_cached_tokens(w, use, n_use, p.ids, (int64_t)p.n);
    }
    pp_free(p.ids);
    worker_send(w, e);
}

static bool is_shown(struct pp_worker *w, const char *key)
{
    pthread_mutex_lock(&w->lock);
    bool shown = strcmp(w->shown, key) == 0;
    pthread_mutex_unlock(&w->lock);
    return shown;
}

void worker_prepare(struct pp_worker *w, const struct pp_generate_request *r)
{
    struct pp_adapter_use use[PP_MAX_ADAPTERS];
    struct pp_error err;
    struct slot *slot;
    struct prompt p = {0};
    if (!w->engine || w->n_answers || !is_shown(w, r->session_key) || !saves_have(w, r->session_key))
        return;
    if (prompt_of(w, r, &p, &err) == PP_OK) {
        const struct slot_spec spec = {
            .key = r->session_key,
            .slide = r->overflow == PP_OVERFLOW_SLIDE,
            .prefetch = true,
            .use = use,
            .n_use = worker_choose_adapters(w, r, use, false, &err),
            .tokens = p.ids,
            .n = p.n,
        };
        if (slot_open(w, &spec, &slot, &err) == PP_OK)
            slot_release(slot);
    }
    pp_free(p.ids);
}

static void on_progress(void *user, uint64_t done, uint64_t total)
{
    struct answer *a = user;
    uint64_t now = pp_now_ns();
    if (done < total && now - a->progress_ns < PROGRESS_NS)
        return;
    a->progress_ns = now;
    struct pp_event *e = pp_event_new(PP_EVENT_PROMPT_PROGRESS);
    if (e) {
        e->request = request_of(a)->request;
        e->done = done;
        e->total = total;
        e->cached = answer_stats(a).cached_tokens;
    }
    worker_try_send(a->w, e);
}

/* --- the answer ------------------------------------------------------------------------------------------- */

static enum pp_code open_slot(struct answer *a, const int32_t *ids, size_t n, struct pp_error *err)
{
    struct pp_worker *w = a->w;
    const struct pp_generate_request *r = request_of(a);
    struct pp_adapter_use use[PP_MAX_ADAPTERS];
    struct pp_error missing;
    int n_use = worker_choose_adapters(w, r, use, true, &missing);
    const struct slot_spec spec = {
        .key = r->temporary ? NULL : r->session_key,
        .temporary = r->temporary || !r->session_key,
        .no_snapshots = r->no_snapshots,
        .slide = r->overflow == PP_OVERFLOW_SLIDE,
        .use = use,
        .n_use = n_use,
        .tokens = ids,
        .n = n,
    };
    worker_notify_uninvoked(w, use, n_use, ids, n);
    uint64_t restored = pp_engine_stats(w->engine)->restored_tokens;
    enum pp_code code = slot_open(w, &spec, &a->slot, err);
    a->restored_tokens = pp_engine_stats(w->engine)->restored_tokens - restored;
    if (code == PP_OK && r->use_draft && w->draft.engine && !a->slot->draft &&
        draft_seq(w, &a->slot->draft, &missing) != PP_OK)
        worker_notice(w, "answering without speculative decoding: %s", missing.text);
    return code;
}

static enum pp_code begin(struct answer *a, struct pp_error *err)
{
    const struct pp_generate_request *r = request_of(a);
    struct prompt p = {0};
    a->n_before = r->continue_tokens;
    enum pp_code code = make_prompt(a, &p, err);
    if (code == PP_OK && !pp_parts_begin(&a->parts, &p.reasoning, p.begins))
        code = pp_fail_nomem(err, "an answer");
    if (code == PP_OK) {
        if (!a->n_before)
            a->n_before = r->reasoning_tokens + count_tokens(a->w, r->continue_text);
        a->parts.any_reasoning = r->continue_reasoning != NULL;
        a->parts.n_reasoning = r->reasoning_tokens;
        a->parts.reasoning_ns = r->reasoning_ns;
        if (r->continue_drafted)
            pp_draft_runs_append(&a->drafted, r->continue_drafted);
        pp_draft_runs_fit(&a->drafted, r->continue_text ? strlen(r->continue_text) : 0);
        code = open_slot(a, p.ids, p.n, err);
    }
    if (code == PP_OK) {
        struct pp_gen_options opt = {
            .sampling = r->sampling,
            .max_tokens = r->max_tokens,
            .stops = r->stops,
            .n_stops = r->n_stops,
            .ignore_end = r->ignore_end,
            .written = p.reasoning.tokens,
            .n_written = p.reasoning.n_tokens,
            .draft = r->use_draft ? a->slot->draft : NULL,
            .lookup = r->lookup,
            .draft_max = r->draft_max,
            .draft_always = r->draft_always,
            .draft_p_min = r->draft_p_min,
            .progress = on_progress,
            .user = a,
        };
        a->slot->dirty |= !r->background; /* the pages of a background request (a title) are not worth saving */
        code = pp_gen_begin(a->slot->seq, p.ids, (int64_t)p.n, &opt, &a->gen, err);
    }
    pp_free(p.ids);
    return code;
}

static enum pp_message_state state_after(enum pp_code code)
{
    return code == PP_OK ? PP_MESSAGE_COMPLETE : code == PP_ERR_CANCELLED ? PP_MESSAGE_CANCELLED : PP_MESSAGE_PARTIAL;
}

/* Stores the final state of the message and makes the event that reports it. `a` is NULL if the answer never began. */
static struct pp_event *conclude(struct pp_worker *w, const struct pp_generate_request *r, const struct pp_stats *s,
                                 const struct answer *a, enum pp_finish finish, const struct pp_error *err)
{
    struct pp_buf json = {0};
    stats_json(s, a, finish, err->code, &json);
    if (r->message_id)
        pp_io_answer_end(w->io, r->message_id, state_after(err->code), json.bad ? NULL : pp_buf_cstr(&json),
                         (a ? a->n_before : r->continue_tokens) + (int64_t)s->decode_tokens);
    pp_buf_free(&json);
    struct pp_event *e = pp_event_new(PP_EVENT_DONE);
    if (e) {
        e->request = r->request;
        e->finish = finish;
        e->stats = *s;
        e->err = *err;
        e->n = a && a->too_long;
    }
    return e;
}

struct pp_event *worker_refusal(struct pp_worker *w, const struct pp_generate_request *r, const struct pp_error *err)
{
    struct pp_stats none = {0};
    return conclude(w, r, &none, NULL, PP_FINISH_NONE, err);
}

static void send_context(struct answer *a)
{
    struct pp_event *e = a->slot ? pp_event_new(PP_EVENT_CONTEXT) : NULL;
    if (e) {
        e->request = request_of(a)->request;
        e->done = (uint64_t)pp_seq_len(a->slot->seq);
        e->total = (uint64_t)pp_engine_n_ctx(a->w->engine);
        e->n = (int)(pp_seq_len(a->slot->seq) - pp_seq_exact(a->slot->seq));
    }
    worker_try_send(a->w, e);
}

struct answer *answer_begin(struct pp_worker *w, struct request *r)
{
    struct answer *a = pp_calloc(1, sizeof *a);
    struct pp_error err = {0};
    if (a) {
        a->w = w;
        a->request = r;
    }
    enum pp_code code = !a          ? pp_fail_nomem(&err, "an answer")
                        : !w->engine ? pp_fail(&err, PP_ERR_NOT_FOUND, "no model is loaded")
                                     : begin(a, &err);
    if (code == PP_OK)
        return a;
    if (a) {
        answer_end(a, PP_FINISH_NONE, &err);
    } else {
        worker_send(w, worker_refusal(w, &r->generate, &err));
        request_end(w, r);
    }
    return NULL;
}

void answer_end(struct answer *a, enum pp_finish finish, const struct pp_error *err)
{
    struct pp_worker *w = a->w;
    if (a->gen && err->code != PP_OK) {
        pp_gen_flush(a->gen, &a->piece, &a->piece_drafted);
        answer_piece(a, 0);
    }
    struct pp_stats stats = answer_stats(a);
    if (a->parts.reasoner) {
        pp_parts_end(&a->parts, pp_now_ns());
        take_parts(a);
    }
    save_text(a);
    send_text(a, true);
    send_context(a);
    struct pp_event *done = conclude(w, request_of(a), &stats, a, finish, err);
    pp_gen_free(a->gen);
    if (a->slot)
        slot_end(w, a->slot);
    pp_buf_free(&a->piece);
    pp_buf_free(&a->piece_drafted);
    pp_draft_runs_free(&a->drafted);
    pp_parts_free(&a->parts);
    text_free(&a->unsaved);
    text_free(&a->pending);
    request_end(w, a->request);
    pp_free(a);
    worker_send(w, done);
}
