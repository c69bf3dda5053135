/* thinking.h - whether, or how hard, a model is to think before it answers, where its chat template has a switch for
 * that: a variable enable_thinking or thinking (Qwen3, SmolLM3, GLM, DeepSeek, Granite), thinking_mode where it is
 * "enabled" or "disabled" (MiniMax), or reasoning_effort
 * (gpt-oss, Mistral), of which some take only a few, and some "none" for off. */
#ifndef PP_SRC_THINKING_H
#define PP_SRC_THINKING_H

#include <stddef.h>

struct pp_template;

enum pp_thinking {
    PP_THINKING_AUTO, /* as the template does by itself */
    PP_THINKING_OFF, PP_THINKING_ON,
    PP_THINKING_LOW, PP_THINKING_MEDIUM, PP_THINKING_HIGH, /* effort */
};
/* "auto", "off", "on", "low", "medium", "high"; -1 for other words. */
int pp_thinking_by_name(const char *name);
const char *pp_thinking_name(enum pp_thinking t);

/* Which switches a template has: the bits of enum pp_thinking that mean something to it; 0: none. */
unsigned pp_thinking_choices(const struct pp_template *t);
/* Those of a template's source; 0 also if it cannot be parsed. */
unsigned pp_thinking_choices_of(const char *source);
/* The variables that say it to this template (or NULL), as JSON (struct pp_template_input); NULL: none. A template
 * takes no notice of those that it does not read; for an effort that it refuses stands the next higher one or, if
 * there is none, the highest; and for AUTO, where it refuses to do without, one that it takes. */
const char *pp_thinking_variables(enum pp_thinking t, const struct pp_template *tmpl);
/* "auto, off or on": the words for such choices, for messages; buf, of n bytes (PP_THINKING_WORDS are enough). */
enum { PP_THINKING_WORDS = 48 };
const char *pp_thinking_words(unsigned choices, char *buf, size_t n);

#endif
