/* thinking.h - whether, or how hard, a model is to think before it answers, if its chat template has a variable for
 * that: enable_thinking or thinking (Qwen3, SmolLM3, GLM, DeepSeek, Granite), thinking_mode with the values
 * "enabled" and "disabled" (MiniMax), or reasoning_effort (gpt-oss, Mistral), of which some accept only a few
 * values, and some "none" for off. */
#ifndef PP_SRC_THINKING_H
#define PP_SRC_THINKING_H

#include <stddef.h>

struct pp_template;

enum pp_thinking {
    PP_THINKING_AUTO, /* the template's default */
    PP_THINKING_OFF, PP_THINKING_ON,
    PP_THINKING_LOW, PP_THINKING_MEDIUM, PP_THINKING_HIGH, /* effort */
};
/* "auto", "off", "on", "low", "medium", "high"; -1 for others. */
int pp_thinking_by_name(const char *name);
const char *pp_thinking_name(enum pp_thinking t);

/* The choices that a template supports, as bits by enum pp_thinking; 0: none. */
unsigned pp_thinking_choices(const struct pp_template *t);
/* The same for a template's source; also 0 if it cannot be parsed. */
unsigned pp_thinking_choices_of(const char *source);
/* The variables for a choice and this template (or NULL), as JSON (struct pp_template_input); NULL: none. Templates
 * ignore variables that they do not use. An effort that it refuses is replaced by the next higher one or, if there
 * is none, the highest; and AUTO, if it requires an effort, by one that it accepts. */
const char *pp_thinking_variables(enum pp_thinking t, const struct pp_template *tmpl);
/* The words for such choices, "auto, off or on", for messages; buf has n bytes (PP_THINKING_WORDS suffice). */
enum { PP_THINKING_WORDS = 48 };
const char *pp_thinking_words(unsigned choices, char *buf, size_t n);

#endif
