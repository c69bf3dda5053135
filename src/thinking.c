#include "src/thinking.h"

#include <string.h>

#include "engine/text.h"

#define EFFORT(word) "{\"reasoning_effort\": \"" word "\", \"enable_thinking\": true, \"thinking\": true}"

static const struct {
    const char *name, *variables;
} words[] = {
    [PP_THINKING_AUTO] = {"auto", NULL},
    [PP_THINKING_OFF] = {"off", "{\"enable_thinking\": false, \"thinking\": false}"},
    [PP_THINKING_ON] = {"on", "{\"enable_thinking\": true, \"thinking\": true}"},
    [PP_THINKING_LOW] = {"low", EFFORT("low")},
    [PP_THINKING_MEDIUM] = {"medium", EFFORT("medium")},
    [PP_THINKING_HIGH] = {"high", EFFORT("high")},
};
enum {
    WORDS = sizeof words / sizeof *words,
    SWITCH = 1 << PP_THINKING_OFF | 1 << PP_THINKING_ON,
    DEGREES = 1 << PP_THINKING_LOW | 1 << PP_THINKING_MEDIUM | 1 << PP_THINKING_HIGH,
};

int pp_thinking_by_name(const char *name)
{
    for (int i = 0; i < WORDS; i++)
        if (strcmp(name, words[i].name) == 0)
            return i;
    return -1;
}

const char *pp_thinking_name(enum pp_thinking t)
{
    return words[t].name;
}

unsigned pp_thinking_choices(const struct pp_template *t)
{
    bool can_switch = pp_template_reads(t, "enable_thinking") || pp_template_reads(t, "thinking");
    return (can_switch ? SWITCH : 0u) | (pp_template_reads(t, "reasoning_effort") ? DEGREES : 0u);
}

unsigned pp_thinking_choices_of(const char *source)
{
    struct pp_template *t = NULL;
    struct pp_error err;
    if (!source || pp_template_parse(source, strlen(source), "", &t, &err) != PP_OK)
        return 0;
    unsigned choices = pp_thinking_choices(t);
    pp_template_free(t);
    return choices;
}

const char *pp_thinking_variables(enum pp_thinking t)
{
    return words[t].variables;
}

const char *pp_thinking_words(unsigned choices)
{
    if ((choices & SWITCH) && (choices & DEGREES))
        return "auto, off, on, low, medium or high";
    return choices & DEGREES ? "auto, low, medium or high" : "auto, off or on";
}
