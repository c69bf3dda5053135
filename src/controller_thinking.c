/* controller_thinking.c - whether the model is to think before it answers. */
#include "src/controller_int.h"

enum pp_thinking ctl_default_thinking(const struct pp_controller *c)
{
    int t = c->o->thinking ? pp_thinking_by_name(c->o->thinking) : -1;
    return t < 0 ? PP_THINKING_AUTO : (enum pp_thinking)t;
}

/* The switches of the template in use: the chosen one, or the model's own. */
static unsigned choices(const struct pp_controller *c)
{
    return c->template_source ? pp_thinking_choices_of(c->template_source) : c->status.model.thinking_choices;
}

bool pp_controller_set_thinking(struct pp_controller *c, const char *word)
{
    char names[PP_THINKING_WORDS];
    unsigned can = choices(c);
    int t = pp_thinking_by_name(word);
    if (!can) {
        ctl_notice(c, true, "this model's chat template has no switch for thinking");
        return false;
    }
    if (t < 0 || (t != PP_THINKING_AUTO && !(can >> t & 1))) {
        ctl_notice(c, true, "for this model: /think %s", pp_thinking_words(can, names, sizeof names));
        return false;
    }
    c->thinking = (enum pp_thinking)t;
    ctl_update_session(c, UPDATE_CHOICES);
    static const char *const said[] = {
        "thinking follows the template's default",  "the model answers without thinking",
        "the model thinks before it answers",       "the model thinks a little before it answers",
        "the model thinks before it answers",       "the model thinks hard before it answers",
    };
    ctl_notice(c, false, "%s, from the next answer on", said[t]);
    return true;
}

void ctl_notify_thinking(struct pp_controller *c)
{
    char names[PP_THINKING_WORDS];
    unsigned can = choices(c);
    if (can)
        ctl_notice(c, false, "thinking: %s; change it with /think %s", pp_thinking_name(c->thinking),
                   pp_thinking_words(can, names, sizeof names));
    else
        ctl_notice(c, false, "this model's chat template has no switch for thinking");
}
