/* reasoning.h - the parts of an answer: what a model thinks before it answers, and the answer. Public header.
 *
 * Models that think aloud mark it: <think>...</think> and its relatives, or the channels of gpt-oss ("harmony"), where
 * an answer is several messages with a header each. Which marks a model uses follows from its chat template, which
 * names them, or from its vocabulary, where they are tokens of their own. A model of which neither knows them has no
 * reasoning: "<think>" is then a text like any other. Only what the model writes is ever looked at, and an opening tag
 * counts only where an answer begins. Sources: the models' chat templates; OpenAI's "harmony response format". */
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
    /* Control tokens among the tags: to be written out by the generation (pp_gen_options.written), and to end nothing.
     * Tags that are control tokens count only with PP_CONTROL_MARK before them: as the token, not as its spelling. */
    int32_t tokens[PP_REASONING_TOKENS];  /* [n_tokens] */
    int n_tokens;
    unsigned control;                     /* bit i: the i-th tag is a control token */
};

/* Stands before a control token that is written out in the text of an answer; no UTF-8 text has this byte. */
#define PP_CONTROL_MARK "\xFF"

/* template_source: of the chat template in use, or NULL. Any thread. */
struct pp_reasoning pp_reasoning_of(const char *template_source, const struct pp_tokenizer *t);
const char *pp_reasoning_name(const struct pp_reasoning *r); /* "think", "harmony", ...; "none"; for tests */

/* Where an answer begins, as its prompt ends. */
enum pp_answer_begin {
    PP_BEGINS_FREE,      /* the model decides: reasoning first, or the answer at once */
    PP_BEGINS_REASONING, /* the template has opened the reasoning */
    PP_BEGINS_ANSWER,    /* ... or has closed it */
};
/* By the tag that the prompt, of n bytes, ends with. */
enum pp_answer_begin pp_reasoning_begins(const struct pp_reasoning *r, const char *prompt, size_t n);

/* To go on with an answer of which there is something: what stands before its reasoning, and between that and the rest;
 * "" where nothing does. Neither is text of the user. *reasoning says whether the reasoning is to be written, too. */
struct pp_reasoning_frame {
    const char *before, *between;
};
struct pp_reasoning_frame pp_reasoning_frame(const struct pp_reasoning *r, enum pp_answer_begin begins,
                                             bool has_reasoning, bool has_answer, bool *reasoning);
/* What a prompt ends with so that the model answers without thinking, behind a generation prompt that begins so. */
const char *pp_reasoning_skip(const struct pp_reasoning *r, enum pp_answer_begin begins);

/* --- taking an answer apart ------------------------------------------------------------------------------ */

enum pp_part {
    PP_PART_ANSWER,
    PP_PART_REASONING,
    PP_PART_OTHER,     /* of a channel that is neither: a tool's call, a remark about one */
    PP_PART_TAKE_BACK, /* no bytes: everything that was called an answer so far was reasoning: the model has closed what
                        * nobody had opened */
};

/* Gets the pieces in their order, of any size: all bytes but the tags, the blanks before an opening one, and (in
 * harmony) the headers of messages; between two messages of reasoning a blank line. That a reasoning is opened is told
 * by a piece of 0 bytes. */
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
/* The answer is complete by the rules of its format, though the model might go on; what follows is dropped. */
bool pp_reasoner_over(const struct pp_reasoner *p);

#endif
