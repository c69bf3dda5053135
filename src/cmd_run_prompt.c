/* cmd_run_prompt.c - the prompt of `pippin run`: from messages to tokens. */
#include <string.h>

#include "engine/base/mem.h"
#include "src/cmd_run.h"
#include "src/overflow.h"
#include "src/prompt.h"

/* The template of a model that has none: the one its vocabulary suggests, or "plain" as the last resort. The user is
 * told. */
static const char *builtin_template(const struct run *r)
{
    const struct pp_model_info *m = pp_model_info(r->target.model);
    const char *why, *name = pp_template_instead(pp_model_tokenizer(r->target.model), m->name, m->path, &why);
    if (why)
        pp_cli_say("%s has no chat template; using %s, because of %s (--chat-template-file sets another, --raw uses "
                   "none)",
                   r->target.path, name, why);
    else
        pp_cli_say("%s has no chat template; using the plain one (--chat-template-file sets another, --raw uses none)",
                   r->target.path);
    return pp_template_builtin(name);
}

/* The template named on the command line, the conversation's, the model's, or a bundled one. */
static enum pp_code find_template(struct run *r, struct pp_buf *source, const char **name, struct pp_error *err)
{
    const char *own = pp_model_info(r->target.model)->chat_template;
    if (r->o->chat_template_file) {
        *name = r->o->chat_template_file;
        return pp_cli_read(r->o->chat_template_file, source, err);
    }
    *name = "the chat template";
    if (r->session.template_source) {
        pp_buf_str(source, r->session.template_source);
    } else if (own) {
        pp_buf_str(source, own);
    } else {
        pp_buf_str(source, builtin_template(r));
    }
    return source->bad ? pp_fail_nomem(err, "the chat template") : PP_OK;
}

/* As in the chat, see src/thinking.h. */
static enum pp_thinking thinking_of(const struct run *r)
{
    int t = r->o->thinking ? pp_thinking_by_name(r->o->thinking) : -1;
    return t < 0 ? PP_THINKING_AUTO : (enum pp_thinking)t;
}

/* Says so if the command line sets what the template has no switch for. */
static void check_thinking(const struct run *r, const struct pp_template *tmpl)
{
    char names[PP_THINKING_WORDS];
    enum pp_thinking t = thinking_of(r);
    unsigned can = pp_thinking_choices(tmpl);
    if (t != PP_THINKING_AUTO && !(can >> t & 1) && pp_options_given(r->o, "thinking"))
        pp_cli_say(can ? "--thinking %s has no effect with this chat template; it knows %s"
                       : "--thinking %s has no effect with this chat template%.0s", pp_thinking_name(t),
                   pp_thinking_words(can, names, sizeof names));
}

/* The prompt for these messages, by pp_overflow_prompt. at_once: the model is to answer without thinking. */
static enum pp_code chat_prompt(struct run *r, const char *messages, enum pp_overflow how, bool at_once, int32_t **ids,
                                size_t *n, size_t *dropped, struct pp_error *err)
{
    struct pp_buf source = {0};
    struct pp_template *tmpl = NULL;
    const char *name = "";
    *dropped = 0;
    enum pp_code code = find_template(r, &source, &name, err);
    if (!code)
        code = pp_template_parse(pp_buf_cstr(&source), source.len, name, &tmpl, err);
    if (!code && r->o->chat_template_file)
        code = pp_template_check(tmpl, name, err);
    if (!code) {
        r->marks = pp_reasoning_of(pp_buf_cstr(&source), pp_model_tokenizer(r->target.model));
        if (!at_once)
            check_thinking(r, tmpl);
        struct pp_prompt_input in = {
            .tokenizer = pp_model_tokenizer(r->target.model),
            .tmpl = tmpl,
            .messages_json = messages,
            .extra_json = pp_thinking_variables(thinking_of(r), tmpl),
            .reasoning = &r->marks,
            .skip_reasoning = at_once,
            .begins = &r->begins,
            .now = pp_prompt_now(),
        };
        code = pp_overflow_prompt(&in, pp_engine_n_ctx(r->target.engine), pp_model_info(r->target.model)->n_ctx_train,
                                  how, ids, n, dropped, err);
    }
    pp_template_free(tmpl);
    pp_buf_free(&source);
    if (code == PP_ERR_FORMAT)
        code = pp_fail_advice(err, "give another template with --chat-template-file, or use --raw for none");
    return code;
}

/* Special tokens in the text are parsed, and BOS is added if the model wants it and the text does not begin with it. */
static enum pp_code raw_prompt(struct run *r, int32_t **ids, size_t *n, struct pp_error *err)
{
    const struct pp_tokenizer *t = pp_model_tokenizer(r->target.model);
    const struct pp_buf *text = &r->question;
    struct pp_buf bos = {0};
    pp_cli_token(t, pp_tokenizer_bos(t), &bos);
    bool there = bos.len && text->len >= bos.len && memcmp(text->data, bos.data, bos.len) == 0;
    pp_buf_free(&bos);
    const unsigned flags = PP_TOKENIZE_SPECIAL | (there ? PP_TOKENIZE_AHEAD : PP_TOKENIZE_BOS);
    return pp_tokenize(t, text->data, text->len, flags, ids, n, err);
}

/* --- a conversation that has outgrown the context ----------------------------------------------------------- */

/* What the model is shown of the conversation: the branch from message `from` on, after the system prompt and the
 * note about earlier messages. */
struct view {
    size_t from;
    char *system, *messages;  /* messages: JSON */
    int64_t *turns;           /* for each object of `messages` except the system prompt, the id of its first message */
    size_t n_turns;
};

static void view_free(struct view *v)
{
    pp_free(v->messages);
    pp_free(v->turns);
    pp_free(v->system);
    *v = (struct view){0};
}

static enum pp_code view_new(const struct run *r, size_t from, const char *note, struct view *v, struct pp_error *err)
{
    const struct pp_branch *b = &r->session.branch;
    *v = (struct view){.from = from};
    v->system = pp_branch_system(r->o->system ? r->o->system : r->session.session.system, note);
    v->turns = pp_calloc(b->n - from + 1, sizeof *v->turns);
    if (v->system && v->turns)
        v->messages = pp_branch_json_from(b, from, b->n, v->system, v->turns, &v->n_turns);
    if (v->messages)
        return PP_OK;
    view_free(v);
    return pp_fail_nomem(err, "the conversation");
}

/* Stores with the question that its context begins at message `from`; 0: at the question itself. */
static enum pp_code note_drop(struct run *r, int64_t from, const char *note, struct pp_error *err)
{
    const struct run_session *rs = &r->session;
    return rs->question_id
               ? pp_store_message_context(rs->store, rs->question_id, from ? from : rs->question_id, note, err)
               : PP_OK;
}

/* Generates a summary, with temperature 0 so that it is reproducible. */
static enum pp_code write_summary(struct run *r, const int32_t *ids, size_t n, struct pp_buf *text,
                                  struct pp_error *err)
{
    struct pp_gen_options opt = {.sampling = pp_sampling_default(),
                                 .max_tokens = pp_overflow_note_room(pp_engine_n_ctx(r->target.engine)),
                                 .written = r->marks.tokens,
                                 .n_written = r->marks.n_tokens};
    struct pp_gen *gen = NULL;
    struct pp_buf written = {0};
    struct pp_parts parts = {0};
    enum pp_finish finish = PP_FINISH_NONE;
    opt.sampling.temp = 0;
    enum pp_code code = pp_gen_start(r->seq, ids, (int64_t)n, &opt, r->cancel, &gen, err);
    if (!code && !pp_parts_begin(&parts, &r->marks, r->begins))
        code = pp_fail_nomem(err, "the summary");
    while (!code && finish == PP_FINISH_NONE && !pp_parts_over(&parts)) {
        int fresh = 0;
        code = pp_gen_next(gen, r->cancel, &written, &fresh, &finish, err);
        pp_parts_add(&parts, written.data, NULL, written.len, fresh, 0);
        pp_buf_clear(&written);
    }
    pp_gen_free(gen);
    if (!code)
        pp_parts_end(&parts, 0);
    pp_buf_add(text, parts.text.data, parts.text.len);
    if (!code && (text->bad || parts.text.bad))
        code = pp_fail_nomem(err, "the summary");
    pp_parts_free(&parts);
    pp_buf_free(&written);
    return code;
}

/* Has the model summarise the messages of the view before index `to`. *note: pp_free; "" if the summary is empty. */
static enum pp_code summarise(struct run *r, const struct view *v, size_t to, char **note, struct pp_error *err)
{
    struct pp_buf text = {0};
    int32_t *ids = NULL;
    size_t n = 0, dropped;
    char *before = pp_branch_json_from(&r->session.branch, v->from, to, v->system, NULL, NULL);
    char *asking = pp_overflow_asking(before);
    enum pp_code code = asking ? PP_OK : pp_fail_nomem(err, "the conversation");
    if (!code)
        code = chat_prompt(r, asking, PP_OVERFLOW_SHIFT, true, &ids, &n, &dropped, err);
    if (!code)
        code = write_summary(r, ids, n, &text, err);
    *note = code ? NULL : pp_overflow_note(pp_buf_cstr(&text));
    if (!code && !*note)
        code = pp_fail_nomem(err, "the summary");
    pp_buf_free(&text);
    pp_free(ids);
    pp_free(before);
    pp_free(asking);
    return code;
}

/* The prompt without the first `dropped` messages of the view, but with a summary of them. */
static enum pp_code summarised_prompt(struct run *r, const struct view *v, size_t dropped, int32_t **ids, size_t *n,
                                      struct pp_error *err)
{
    struct view rest;
    char *note = NULL;
    size_t to = pp_branch_place(&r->session.branch, v->turns[dropped]), more = 0;
    pp_cli_say("the context is full: summarising the oldest %zu messages", dropped);
    enum pp_code code = summarise(r, v, to, &note, err);
    if (!code)
        code = view_new(r, to, note, &rest, err);
    if (!code) {
        code = chat_prompt(r, rest.messages, PP_OVERFLOW_SHIFT, false, ids, n, &more, err);
        if (!code && more < rest.n_turns)
            code = note_drop(r, rest.turns[more], note, err);
        view_free(&rest);
    }
    pp_free(note);
    return code;
}

enum pp_code run_prompt(struct run *r, int32_t **ids, size_t *n, struct pp_error *err)
{
    int how = r->o->overflow ? pp_overflow_by_name(r->o->overflow) : PP_OVERFLOW_STOP;
    struct view v;
    const char *note;
    size_t dropped = 0, from = pp_branch_context(&r->session.branch, r->session.branch.n, &note);
    if (r->o->raw)
        return raw_prompt(r, ids, n, err);
    if (how == PP_OVERFLOW_SLIDE)
        how = PP_OVERFLOW_SHIFT; /* nothing has been computed yet that could be moved */
    enum pp_code code = view_new(r, from, note, &v, err);
    if (code)
        return code;
    code = chat_prompt(r, v.messages, how == PP_OVERFLOW_ASK ? PP_OVERFLOW_STOP : (enum pp_overflow)how, false, ids, n,
                       &dropped, err);
    r->too_long = code == PP_ERR_CONTEXT && !dropped;
    if (code == PP_ERR_CONTEXT && how == PP_OVERFLOW_SUMMARISE && dropped && dropped < v.n_turns) {
        code = summarised_prompt(r, &v, dropped, ids, n, err);
    } else if (!code && dropped && dropped < v.n_turns) {
        pp_cli_say("the context is full: the model no longer sees the oldest %zu messages", dropped);
        code = note_drop(r, v.turns[dropped], note, err);
    }
    view_free(&v);
    return code;
}
