/* reasoning.h - the parts of an answer: what a model thinks before it answers, and the answer. Public header.
 *
 * Models that think aloud mark it: <think>...</think> and its relatives, or the channels of gpt-oss ("harmony"), where
 * an answer is several messages with a header each. Which marks a model uses follows from its chat template, which
 * names them, or from its vocabulary, where they are tokens of their own. If neither has them, the model has no
 * reasoning, and "<think>" is text like any other. Only what the model writes is looked at, and an opening tag counts
 * only where an answer begins. Sources: the models' chat templates; OpenAI's "harmony response format". */
#ifndef PP_ENGINE_REASONING_H
#define PP_ENGINE_REASONING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pp_tokenizer;
struct pp_reasoning_tags; /* a row of the table in reasoning.c */

enum { PP_REASONING_TOKENS = 8 };

/* How a model marks its reasoning; a value, to be copied. */
struct pp_reasoning {
    const struct pp_reasoning_tags *tags; /* NULL: it has none */
    /* Control tokens among the tags: the generation writes them out (pp_gen_options.written), and they end nothing.
     * Such tags count only with PP_CONTROL_MARK before them: as the token, not as its spelling. */
    int32_t tokens[PP_REASONING_TOKENS];  /* [n_tokens] */
    int n_tokens;
    unsigned control;                     /* bit i: the i-th tag is a control token */
};

/* Precedes a control token that is written out in the text of an answer; no UTF-8 text has this byte. */
#define PP_CONTROL_MARK "\xFF"

/* template_source: of the chat template in use, or NULL. Any thread. */
struct pp_reasoning pp_reasoning_of(const char *template_source, const struct pp_tokenizer *t);
const char *pp_reasoning_name(const struct pp_reasoning *r); /* "think", "harmony", ...; "none"; for tests */

/* How the prompt begins the answer. */
enum pp_answer_begin {
    PP_BEGINS_FREE,      /* the model decides: reasoning first, or the answer at once */
    PP_BEGINS_REASONING, /* the template has opened the reasoning */
    PP_BEGINS_ANSWER,    /* ... or has closed it */
};
/* Decides by the tag at the end of the prompt, of n bytes. */
enum pp_answer_begin pp_reasoning_begins(const struct pp_reasoning *r, const char *prompt, size_t n);

/* To continue an answer that has begun: what precedes its reasoning, and what separates that from the rest; "":
 * nothing. Neither is the user's text. *reasoning: whether the reasoning is to be written, too. */
struct pp_reasoning_frame {
    const char *before, *between;
};
struct pp_reasoning_frame pp_reasoning_frame(const struct pp_reasoning *r, enum pp_answer_begin begins,
                                             bool has_reasoning, bool has_answer, bool *reasoning);
/* Where the model decides whether to think: the token with which it does, or -1. *header: what it answers has a header
 * of its own, thinking or not (harmony). */
int32_t pp_reasoning_opener(const struct pp_reasoning *r, const struct pp_tokenizer *t, bool *header);
/* The text to add to a prompt that ends like this, so that the model answers without thinking. */
const char *pp_reasoning_skip(const struct pp_reasoning *r, enum pp_answer_begin begins);

/* --- taking an answer apart ------------------------------------------------------------------------------ */

enum pp_part {
    PP_PART_ANSWER,
    PP_PART_REASONING,
    PP_PART_OTHER,     /* of another channel: a tool call, or a remark about one */
    PP_PART_TEXT_WAS_REASONING, /* no bytes: all that was called an answer so far was reasoning, since the model has
                                   closed what nothing had opened */
};

/* Gets the pieces in order, of any size: all bytes except the tags, the blanks before an opening one, and (in harmony)
 * the headers of messages; between two messages of reasoning a blank line. A piece of 0 bytes tells that reasoning
 * begins. */
typedef void pp_part_sink(void *user, enum pp_part part, const char *bytes, size_t n);

/* Takes an answer apart while it comes. One thread at a time; about 5 KB, however long the answer is. */
struct pp_reasoner;
struct pp_reasoner *pp_reasoner_new(const struct pp_reasoning *r, enum pp_answer_begin begins, pp_part_sink *sink,
                                    void *user); /* NULL: out of memory */
void pp_reasoner_free(struct pp_reasoner *p);
/* Any bytes, cut anywhere. What could become a tag is held back. */
void pp_reasoner_feed(struct pp_reasoner *p, const char *bytes, size_t n);
/* Nothing more comes: hands out what was held back. */
void pp_reasoner_end(struct pp_reasoner *p);
enum pp_part pp_reasoner_part(const struct pp_reasoner *p); /* what is being written: ANSWER, REASONING or OTHER */
/* Whether what comes now is the answer: its reasoning, if any, and a header are over. */
bool pp_reasoner_answers(const struct pp_reasoner *p);
/* The answer is complete by the rules of its format, though the model may go on; what follows is dropped. */
bool pp_reasoner_over(const struct pp_reasoner *p);

#endif
