/* prompt.h - from messages to token ids: the chat template is rendered and its text tokenised. */
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
    const char *messages_json;   /* array of {"role", "content"}, of an answer perhaps "reasoning_content",
                                  * which the template gets as "thinking" and "reasoning", too */
    const char *extra_json;      /* as in struct pp_template_input, or NULL */
    const char *continue_text;   /* an answer that is begun, to stand after the generation prompt; or NULL */
    const char *continue_reasoning; /* ... and its reasoning, or NULL */
    const struct pp_reasoning *reasoning; /* how the model marks it; NULL: it has none */
    bool skip_reasoning;         /* it is to answer at once */
    enum pp_answer_begin *begins; /* out: what the model goes on with; may be NULL */
    int64_t now;                 /* as in struct pp_template_input */
};

/* `now` of a prompt: the clock on the user's wall, as templates of other programs get it. Any thread. */
int64_t pp_prompt_now(void);

/* The source of a chat template by the name that conversations keep: one that comes with pippin, else a file of at most
 * 1 MiB (pp_template_path). *source is the caller's (pp_free), NULL with an error. Reads a file: not for the UI
 * thread. */
enum pp_code pp_template_source(const struct pp_paths *paths, const char *name, char **source, struct pp_error *err);
/* PP_ERR_FORMAT: with this template, of a file of the user's, the model would not see what is written to it. */
enum pp_code pp_template_check(const struct pp_template *t, const char *name, struct pp_error *err);

/* *ids [*n] is the caller's (pp_free). Control tokens that the template writes become those tokens; the same texts
 * inside of messages ("<|im_end|>" in something pasted) stay text, so that nobody can speak in another's role. BOS
 * stands first where the model wants it, once. Any thread. */
enum pp_code pp_prompt_tokens(const struct pp_prompt_input *in, int32_t **ids, size_t *n, struct pp_error *err);

#endif
