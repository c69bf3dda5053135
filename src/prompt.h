/* prompt.h - from messages to token ids: the chat template is rendered and its text tokenised. */
#ifndef PP_SRC_PROMPT_H
#define PP_SRC_PROMPT_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/text.h"

struct pp_prompt_input {
    const struct pp_tokenizer *tokenizer;
    const struct pp_template *tmpl;
    const char *messages_json;   /* array of {"role", "content"} */
    const char *continue_text;   /* stands after the generation prompt; or NULL */
    int64_t now;                 /* as in struct pp_template_input */
};

/* *ids [*n] is the caller's (pp_free). Control tokens that the template writes become those tokens; the same texts
 * inside of messages ("<|im_end|>" in something pasted) stay text, so that nobody can speak in another's role. BOS
 * stands first where the model wants it, once. Any thread. */
enum pp_code pp_prompt_tokens(const struct pp_prompt_input *in, int32_t **ids, size_t *n, struct pp_error *err);

#endif
