/* controller_title.c - titles by the model (--titles model). After the first answer of a conversation, the model is
 * asked for a title by a request that extends the conversation, so that its pages are reused, and is dropped
 * afterwards, so that they stay as they are. The request runs in the background, and is cancelled by the user's next
 * action. */
#include <string.h>

#include "engine/base/mem.h"
#include "src/controller_int.h"
#include "src/title.h"

enum { TITLE_TOKENS = 24 };

static const char instruction[] =
    "Give our conversation a title of at most six words. Write nothing but the title.";

static bool by_model(const struct pp_controller *c)
{
    return c->o->titles && strcmp(c->o->titles, "model") == 0;
}

/* Whether the conversation has just one question with a complete answer, and its title is still made of the
 * question's first words. */
static bool is_due(const struct pp_controller *c)
{
    char line[PP_TITLE_BYTES];
    if (!by_model(c) || c->branch.n != 2 || c->state != PP_STATE_IDLE || c->then != THEN_NOTHING)
        return false;
    const struct pp_chat_message *question = &c->branch.items[0].msg, *answer = &c->branch.items[1].msg;
    pp_title(question->text, question->len, line);
    return answer->state == PP_MESSAGE_COMPLETE && answer->len && strcmp(c->session.title, line) == 0;
}

static char *title_messages(const struct pp_controller *c)
{
    char *json = pp_branch_json(&c->branch, c->branch.n, c->session.system);
    char *asking = pp_messages_ask(json, instruction);
    pp_free(json);
    return asking;
}

struct pp_generate_request ctl_internal_request(const struct pp_controller *c, uint64_t request, const char *messages,
                                                struct pp_adapter_choice adapters[static PP_MAX_ADAPTERS])
{
    struct pp_generate_request r = {
        .request = request,
        .temporary = true,
        .skip_reasoning = true,
        .thinking = c->thinking,
        .messages_json = messages,
        .template_source = c->template_source,
        .adapters = adapters,
        .n_adapters = (int)ctl_active_adapters(c, adapters),
        .sampling = pp_sampling_default(),
    };
    r.sampling.temp = 0;
    return r;
}

void ctl_title_begin(struct pp_controller *c)
{
    static const char *const stops[] = {"\n"};
    struct pp_adapter_choice adapters[PP_MAX_ADAPTERS];
    char *messages = is_due(c) ? title_messages(c) : NULL;
    if (!messages)
        return; /* out of memory: the title stays */
    ctl_title_cancel(c);
    c->title_request = ++c->request;
    c->title_session = c->session.id;
    struct pp_generate_request r = ctl_internal_request(c, c->title_request, messages, adapters);
    r.max_tokens = TITLE_TOKENS;
    r.stops = stops;
    r.n_stops = 1;
    r.overflow = PP_OVERFLOW_STOP;
    r.background = true;
    c->backend->ops->generate(c->backend, &r);
    pp_free(messages);
}

void ctl_title_cancel(struct pp_controller *c)
{
    if (c->title_request)
        c->backend->ops->cancel(c->backend, c->title_request);
    c->title_request = 0;
    pp_buf_free(&c->title_text);
}

/* Characters that models put around a title. */
static bool is_wrapping(char ch)
{
    return strchr(" \t\r\n\"'*#`", ch) != NULL;
}

static void take_title(struct pp_controller *c)
{
    const char *text = pp_buf_cstr(&c->title_text);
    size_t n = c->title_text.len;
    char line[PP_TITLE_BYTES];
    for (; n && is_wrapping(*text); n--)
        text++;
    while (n && (is_wrapping(text[n - 1]) || text[n - 1] == '.'))
        n--;
    pp_title(text, n, line);
    if (*line)
        ctl_rename(c, c->title_session, line);
}

bool ctl_title_event(struct pp_controller *c, const struct pp_event *e)
{
    bool mine = c->title_request && e->request == c->title_request;
    if (mine && e->type == PP_EVENT_TEXT)
        pp_buf_add(&c->title_text, e->text, e->text_len);
    if (mine && e->type == PP_EVENT_DONE) {
        c->title_request = 0;
        if (e->err.code == PP_OK && !c->title_text.bad)
            take_title(c);
        pp_buf_free(&c->title_text); /* no notice if it failed, since the old title will do */
    }
    return mine;
}
