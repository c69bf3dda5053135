#include "src/thinking.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/text.h"

/* for templates that accept the effort "none" */
#define OFF_BY_EFFORT "{\"reasoning_effort\": \"none\", \"enable_thinking\": false, \"thinking\": false}"
#define BY_MODE(word) "{\"thinking_mode\": \"" word "\"}"
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

/* Whether the template accepts these variables. Tries with and without a system message, as some templates require
 * one. */
static bool renders(const struct pp_template *t, const char *variables)
{
    static const char *const conversations[] = {
        "[{\"role\": \"user\", \"content\": \"Hello\"}]",
        "[{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", \"content\": \"Hello\"}]",
    };
    bool ok = false;
    for (size_t i = 0; !ok && i < sizeof conversations / sizeof *conversations; i++) {
        const struct pp_template_input in = {
            .messages_json = conversations[i],
            .extra_json = variables,
            .bos_text = "", .eos_text = "",
            .add_generation_prompt = true,
        };
        struct pp_buf out = {0};
        struct pp_error err;
        ok = pp_template_render(t, &in, &out, &err) == PP_OK;
        pp_buf_free(&out);
    }
    return ok;
}

static unsigned accepted_degrees(const struct pp_template *t)
{
    unsigned can = 0;
    for (int degree = PP_THINKING_LOW; degree <= PP_THINKING_HIGH; degree++)
        can |= renders(t, words[degree].variables) ? 1u << degree : 0;
    return can;
}

/* The degrees of effort that the template accepts; some refuse others: Mistral's takes only "none" and "high". */
static unsigned degrees(const struct pp_template *t)
{
    if (!pp_template_reads(t, "reasoning_effort"))
        return 0;
    unsigned can = accepted_degrees(t);
    if (!can && !renders(t, NULL)) /* it requires something else, so this test says nothing */
        can = DEGREES;
    return can;
}

/* Whether the effort "none" switches thinking off. The word may occur in the template for something else, so it is
 * tried. */
static bool knows_no_effort(const struct pp_template *t)
{
    return pp_template_reads(t, "reasoning_effort") && (pp_template_text(t, "none", 4) & PP_TEMPLATE_LOOKS_FOR) &&
           (renders(t, OFF_BY_EFFORT) || !renders(t, NULL));
}

/* MiniMax's variable; in other templates the name has other meanings. */
static bool has_modes(const struct pp_template *t)
{
    return pp_template_reads(t, "thinking_mode") && (pp_template_text(t, "enabled", 7) & PP_TEMPLATE_LOOKS_FOR) &&
           (pp_template_text(t, "disabled", 8) & PP_TEMPLATE_LOOKS_FOR);
}

unsigned pp_thinking_choices(const struct pp_template *t)
{
    bool can_switch = pp_template_reads(t, "enable_thinking") || pp_template_reads(t, "thinking") || has_modes(t);
    return (can_switch ? SWITCH : 0u) | (knows_no_effort(t) ? 1u << PP_THINKING_OFF : 0u) | degrees(t);
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

/* If a template refuses to render without an effort, AUTO becomes an effort that it accepts, preferably medium;
 * otherwise returns t. */
static enum pp_thinking required_effort(enum pp_thinking t, const struct pp_template *tmpl)
{
    static const enum pp_thinking order[] = {PP_THINKING_MEDIUM, PP_THINKING_LOW, PP_THINKING_HIGH};
    if (t != PP_THINKING_AUTO || !pp_template_reads(tmpl, "reasoning_effort") || renders(tmpl, NULL))
        return t;
    const unsigned can = accepted_degrees(tmpl);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (can >> order[i] & 1)
            return order[i];
    return t;
}

const char *pp_thinking_variables(enum pp_thinking t, const struct pp_template *tmpl)
{
    if (tmpl)
        t = required_effort(t, tmpl);
    if (tmpl && t != PP_THINKING_AUTO && has_modes(tmpl))
        return t == PP_THINKING_OFF ? BY_MODE("disabled") : BY_MODE("enabled");
    if (tmpl && t == PP_THINKING_OFF && knows_no_effort(tmpl))
        return OFF_BY_EFFORT;
    if (tmpl && 1u << t & DEGREES) {
        unsigned can = degrees(tmpl);
        while (can && t < PP_THINKING_HIGH && !(can >> t & 1))
            t++;
        while (can && !(can >> t & 1))
            t--;
    }
    return words[t].variables;
}

const char *pp_thinking_words(unsigned choices, char *buf, size_t n)
{
    size_t len = (size_t)snprintf(buf, n, "%s", words[PP_THINKING_AUTO].name);
    choices &= SWITCH | DEGREES;
    for (int i = PP_THINKING_AUTO + 1; i < WORDS && len < n; i++)
        if (choices >> i & 1)
            len += (size_t)snprintf(buf + len, n - len, "%s%s", choices >> i == 1 ? " or " : ", ", words[i].name);
    return buf;
}
