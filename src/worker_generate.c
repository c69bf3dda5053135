/* worker_generate.c - one answer: prompt, pages, pieces of text, figures.
 *
 * Text goes to the io thread first, which saves it, and then to the screen. It is collected for a few milliseconds,
 * because waking two threads for every token would cost more than a small model does; and for the screen as long as its
 * queue is full: a terminal that stands still must not stop the answer or its saving. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "src/prompt.h"
#include "src/worker_int.h"

static const uint64_t COLLECT_NS = 8000000;   /* the screen draws every 16 ms at most */
static const uint64_t PROGRESS_NS = 30000000;

struct answer {
    struct pp_worker *w;
    const struct pp_generate_request *r;
    struct pp_stats before;      /* of the engine when it began */
    struct slot *slot;
    struct pp_gen *gen;
    struct pp_buf piece;         /* of one step */
    struct pp_buf unsaved;       /* not handed to the io thread yet */
    struct pp_buf pending;       /* not sent to the screen yet */
    int pending_tokens;
    uint64_t sent_ns, progress_ns;
    int64_t n_before;            /* tokens of the text that is continued */
    enum pp_finish finish;
};

/* --- figures ---------------------------------------------------------------------------------------------- */

/* What this answer alone has cost. */
static struct pp_stats stats_since(const struct answer *a)
{
    if (!a->w->engine)
        return (struct pp_stats){0};
    struct pp_stats s = *pp_engine_stats(a->w->engine);
    const struct pp_stats *b = &a->before;
    s.prompt_tokens -= b->prompt_tokens;
    s.cached_tokens -= b->cached_tokens;
    s.prefill_tokens -= b->prefill_tokens;
    s.decode_tokens -= b->decode_tokens;
    s.draft_tokens -= b->draft_tokens;
    s.draft_accepted -= b->draft_accepted;
    s.prefill_ns -= b->prefill_ns;
    s.decode_ns -= b->decode_ns;
    s.draft_ns -= b->draft_ns;
    s.sample_ns -= b->sample_ns;
    s.passes -= b->passes;
    s.rows -= b->rows;
    s.kv_copied_bytes -= b->kv_copied_bytes;
    s.restored_tokens -= b->restored_tokens;
    if (!s.decode_tokens)
        s.first_token_ns = 0; /* an older answer's */
    return s;
}

static double per_second(uint64_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

static const char *finish_name(enum pp_finish f, enum pp_code code)
{
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

static void stats_json(const struct pp_stats *s, enum pp_finish finish, enum pp_code code, struct pp_buf *out)
{
    pp_buf_fmt(out, "{\"prompt_tokens\":%" PRIu64 ",\"cached_tokens\":%" PRIu64 ",\"restored_tokens\":%" PRIu64,
               s->prompt_tokens, s->cached_tokens, s->restored_tokens);
    pp_buf_fmt(out, ",\"kv_copied_bytes\":%" PRIu64, s->kv_copied_bytes);
    pp_buf_fmt(out, ",\"prefill_tps\":%.1f,\"decode_tokens\":%" PRIu64 ",\"decode_tps\":%.1f",
               per_second(s->prefill_tokens, s->prefill_ns), s->decode_tokens,
               per_second(s->decode_tokens, s->decode_ns));
    pp_buf_fmt(out, ",\"draft_tokens\":%" PRIu64 ",\"draft_accepted\":%" PRIu64, s->draft_tokens, s->draft_accepted);
    pp_buf_fmt(out, ",\"first_token_ms\":%.2f,\"finish\":\"%s\"}", (double)s->first_token_ns / 1e6,
               finish_name(finish, code));
}

/* --- text ------------------------------------------------------------------------------------------------- */

/* Hands what is pending to the screen. Without `wait` it stays pending while the queue is full. */
static void send_text(struct answer *a, bool wait)
{
    struct pp_event *e = a->pending_tokens || a->pending.len ? pp_event_new(PP_EVENT_TEXT) : NULL;
    if (!e)
        return;
    e->request = a->r->request;
    e->n = a->pending_tokens;
    e->stats = stats_since(a);
    e->text_len = a->pending.len;
    e->text = a->pending.data;
    bool sent = wait ? pp_queue_push(a->w->events, e) : pp_queue_try_push(a->w->events, e);
    if (!sent) {
        e->text = NULL; /* it is still ours */
        pp_event_free(e);
        if (!wait)
            return;
        pp_buf_free(&a->pending);
    }
    a->pending = (struct pp_buf){0};
    a->pending_tokens = 0;
}

static void save_text(struct answer *a)
{
    if (a->r->message_id)
        pp_io_answer_add(a->w->io, a->r->message_id, a->unsaved.data, a->unsaved.len);
    pp_buf_clear(&a->unsaved);
}

static void take_piece(struct answer *a, int n_tokens)
{
    uint64_t now = pp_now_ns();
    pp_buf_add(&a->unsaved, a->piece.data, a->piece.len);
    if (a->unsaved.bad) { /* no memory to collect in: what there was, then this piece by itself */
        save_text(a);
        if (a->r->message_id)
            pp_io_answer_add(a->w->io, a->r->message_id, a->piece.data, a->piece.len);
    }
    pp_buf_add(&a->pending, a->piece.data, a->piece.len);
    pp_buf_clear(&a->piece);
    a->pending_tokens += n_tokens;
    if (now - a->sent_ns >= COLLECT_NS) {
        a->sent_ns = now;
        save_text(a);
        send_text(a, false);
    }
}

/* --- prompt ----------------------------------------------------------------------------------------------- */

static enum pp_code choose_template(struct pp_worker *w, const char *source, struct pp_error *err)
{
    const char *name = "the chosen chat template";
    if (!source) {
        source = pp_model_info(w->target->model)->chat_template;
        name = "the chat template of the model";
    }
    if (!source) {
        source = pp_template_builtin("plain");
        name = "plain";
        if (!w->told_plain)
            worker_notice(w, "this model brings no chat template: \"plain\" is used; /template chooses another one");
        w->told_plain = true;
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

static enum pp_code make_prompt(struct answer *a, int32_t **ids, size_t *n, struct pp_error *err)
{
    struct pp_worker *w = a->w;
    enum pp_code code = choose_template(w, a->r->template_source, err);
    if (code != PP_OK)
        return code;
    struct pp_prompt_input in = {
        .tokenizer = pp_model_tokenizer(w->target->model),
        .tmpl = w->tmpl,
        .messages_json = a->r->messages_json,
        .continue_text = a->r->continue_text,
        .now = (int64_t)time(NULL),
    };
    code = pp_prompt_tokens(&in, ids, n, err);
    if (code != PP_OK)
        return code;
    int64_t n_ctx = pp_engine_n_ctx(w->engine);
    if ((int64_t)*n >= n_ctx) {
        size_t needed = *n;
        pp_free(*ids);
        *ids = NULL;
        return pp_fail(err, PP_ERR_CONTEXT,
                       "the conversation has %zu tokens and the context holds %" PRId64 ": go back with /undo, begin a "
                       "new one with /new, or start pippin with a larger --ctx-size",
                       needed, n_ctx);
    }
    return PP_OK;
}

/* How many tokens the text has that an answer goes on from: they count as the answer's. */
static int64_t count_tokens(const struct pp_worker *w, const char *text)
{
    int32_t *ids;
    size_t n;
    if (!text || pp_tokenize(pp_model_tokenizer(w->target->model), text, strlen(text), 0, &ids, &n, NULL) != PP_OK)
        return 0;
    pp_free(ids);
    return (int64_t)n;
}

static int choose_adapters(struct answer *a, struct pp_adapter_use use[static PP_MAX_ADAPTERS])
{
    int n = 0;
    struct pp_error err;
    for (int i = 0; i < a->r->n_adapters && n < PP_MAX_ADAPTERS; i++) {
        const struct pp_adapter_choice *c = &a->r->adapters[i];
        const struct pp_adapter *adapter = worker_adapter(a->w, c->path, &err);
        if (adapter)
            use[n++] = (struct pp_adapter_use){.adapter = adapter, .scale = c->scale};
        else
            worker_notice(a->w, "answering without an adapter: %s", err.text);
    }
    return n;
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
        e->request = a->r->request;
        e->done = done;
        e->total = total;
        e->cached = stats_since(a).cached_tokens;
    }
    worker_try_send(a->w, e);
}

/* --- the answer ------------------------------------------------------------------------------------------- */

static enum pp_code begin(struct answer *a, const int32_t *ids, size_t n, struct pp_error *err)
{
    struct pp_worker *w = a->w;
    struct pp_adapter_use use[PP_MAX_ADAPTERS];
    int n_use = choose_adapters(a, use);
    bool temporary = a->r->temporary || !a->r->session_key;
    enum pp_code code =
        slot_open(w, temporary ? NULL : a->r->session_key, temporary, use, n_use, ids, n, &a->slot, err);
    if (code != PP_OK)
        return code;
    if (a->r->use_draft && w->draft_engine && !a->slot->draft &&
        pp_seq_new(w->draft_engine, &a->slot->draft, NULL) != PP_OK)
        worker_notice(w, "answering without the draft: out of memory");
    struct pp_gen_options opt = {
        .sampling = a->r->sampling,
        .max_tokens = a->r->max_tokens,
        .stops = a->r->stops,
        .n_stops = a->r->n_stops,
        .ignore_end = a->r->ignore_end,
        .draft = a->r->use_draft ? a->slot->draft : NULL,
        .draft_max = a->r->draft_max,
        .progress = on_progress,
        .user = a,
    };
    a->slot->dirty = true;
    code = pp_gen_start(a->slot->seq, ids, (int64_t)n, &opt, &w->cancel, &a->gen, err);
    /* Other conversations hold pages: those can be had from the disk again. */
    if (code == PP_ERR_NOMEM && slots_free_others(w, a->slot))
        code = pp_gen_start(a->slot->seq, ids, (int64_t)n, &opt, &w->cancel, &a->gen, err);
    return code;
}

static enum pp_code stream(struct answer *a, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    while (code == PP_OK && a->finish == PP_FINISH_NONE) {
        int n = 0;
        if (pp_cancelled(&a->w->cancel)) {
            code = pp_fail(err, PP_ERR_CANCELLED, "stopped");
            break;
        }
        code = pp_gen_next(a->gen, &a->w->cancel, &a->piece, &n, &a->finish, err);
        if (code == PP_ERR_NOMEM && !a->piece.bad && slots_free_others(a->w, a->slot))
            code = pp_gen_next(a->gen, &a->w->cancel, &a->piece, &n, &a->finish, err);
        take_piece(a, n);
    }
    if (code != PP_OK) {
        pp_gen_flush(a->gen, &a->piece);
        take_piece(a, 0);
    }
    return code;
}

static enum pp_message_state state_after(enum pp_code code)
{
    return code == PP_OK ? PP_MESSAGE_COMPLETE : code == PP_ERR_CANCELLED ? PP_MESSAGE_CANCELLED : PP_MESSAGE_PARTIAL;
}

/* Notes the end with the message and makes the event that tells of it. */
static struct pp_event *conclude(struct pp_worker *w, const struct pp_generate_request *r, const struct pp_stats *s,
                                 enum pp_finish finish, int64_t n_before, const struct pp_error *err)
{
    struct pp_buf json = {0};
    stats_json(s, finish, err->code, &json);
    if (r->message_id)
        pp_io_answer_end(w->io, r->message_id, state_after(err->code), json.bad ? NULL : pp_buf_cstr(&json),
                         n_before + (int64_t)s->decode_tokens);
    pp_buf_free(&json);
    struct pp_event *e = pp_event_new(PP_EVENT_DONE);
    if (e) {
        e->request = r->request;
        e->finish = finish;
        e->stats = *s;
        e->err = *err;
    }
    return e;
}

struct pp_event *worker_refusal(struct pp_worker *w, const struct pp_generate_request *r, const struct pp_error *err)
{
    struct pp_stats none = {0};
    return conclude(w, r, &none, PP_FINISH_NONE, 0, err);
}

static void send_context(struct answer *a)
{
    struct pp_event *e = a->slot ? pp_event_new(PP_EVENT_CONTEXT) : NULL;
    if (e) {
        e->done = (uint64_t)pp_seq_len(a->slot->seq);
        e->total = (uint64_t)pp_engine_n_ctx(a->w->engine);
    }
    worker_try_send(a->w, e);
}

void worker_generate(struct pp_worker *w, const struct request *request)
{
    struct answer a = {.w = w, .r = &request->generate};
    struct pp_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    enum pp_code code = PP_OK;
    if (!w->engine)
        code = pp_fail(&err, PP_ERR_NOT_FOUND, "no model is loaded");
    else
        a.before = *pp_engine_stats(w->engine);
    if (code == PP_OK)
        code = make_prompt(&a, &ids, &n, &err);
    if (code == PP_OK) {
        a.n_before = count_tokens(w, a.r->continue_text);
        code = begin(&a, ids, n, &err);
    }
    if (code == PP_OK)
        code = stream(&a, &err);
    err.code = code;
    struct pp_stats stats = stats_since(&a);
    save_text(&a);
    send_text(&a, true);
    send_context(&a);
    struct pp_event *done = conclude(w, a.r, &stats, a.finish, a.n_before, &err);
    pp_gen_free(a.gen);
    pp_buf_free(&a.piece);
    pp_buf_free(&a.unsaved);
    pp_buf_free(&a.pending);
    pp_free(ids);
    worker_send(w, done);
}
