/* prompt.h - from messages to tokens: renders the chat template, and tokenises the result. */
#ifndef PP_SRC_PROMPT_H
#define PP_SRC_PROMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/reasoning.h"
#include "engine/text.h"

struct pp_paths;

struct pp_prompt_input {
    const struct pp_tokenizer *tokenizer;
    const struct pp_template *tmpl;
    const char *messages_json;   /* array of {"role", "content"}, for answers possibly "reasoning_content", which the
                                  * template also gets as "thinking" and "reasoning" */
    const char *extra_json;      /* as in struct pp_template_input, or NULL */
    const char *continue_text;   /* the beginning of an answer to be continued, appended to the generation prompt; or
                                  * NULL */
    const char *continue_reasoning; /* ... and its reasoning, or NULL */
    const struct pp_reasoning *reasoning; /* how the model marks its reasoning; NULL: it has none */
    bool skip_reasoning;         /* the model is to answer without reasoning */
    enum pp_answer_begin *begins; /* out: what the model continues with; may be NULL */
    int64_t now;                 /* as in struct pp_template_input */
};

/* The value for `now`: local time, as other programs pass it to templates. Any thread. */
int64_t pp_prompt_now(void);

/* The source of a chat template by the name stored with conversations: a bundled one, or else a file of at most 1
 * MiB (pp_template_path). *source is the caller's (pp_free), NULL on error. Reads a file: not for the UI thread. */
enum pp_code pp_template_source(const struct pp_paths *paths, const char *name, char **source, struct pp_error *err);
/* Checks a template from a user's file. PP_ERR_FORMAT: it does not use the messages. */
enum pp_code pp_template_check(const struct pp_template *t, const char *name, struct pp_error *err);

/* *ids [*n] is the caller's (pp_free). Control tokens written by the template become tokens; the same texts inside
 * messages (a pasted "<|im_end|>") stay text, so that no message can imitate another role. BOS comes first, once, if
 * the model wants it. Any thread. */
enum pp_code pp_prompt_tokens(const struct pp_prompt_input *in, int32_t **ids, size_t *n, struct pp_error *err);

#endif
