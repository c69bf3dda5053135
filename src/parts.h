/* parts.h - an answer on its way to the database and to the screen: its reasoning and its text, each without the blanks
 * that stand around them for the tags' sake. */
#ifndef PP_SRC_PARTS_H
#define PP_SRC_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/reasoning.h"
#include "src/guessed.h"

struct pp_parts {
    /* what is new; the owner takes it and clears it */
    struct pp_buf reasoning, text;
    struct pp_guessed guessed; /* bytes of that text */
    bool take_back;          /* before that: all of the text so far was reasoning */
    /* counted from the beginning of the answer */
    int64_t n_reasoning;     /* tokens */
    uint64_t reasoning_ns;
    bool thinking;           /* the reasoning goes on */
    bool any_reasoning;      /* some was no blank; to be set if there is some from before */
    /* private */
    struct pp_reasoner *reasoner;
    struct pp_buf blanks;    /* at the end of the reasoning, unless more of it follows */
    bool guessing;           /* what the reasoner gives had been guessed */
    bool thought, spoken;    /* there was reasoning; and text */
    uint64_t began_ns;       /* when the reasoning that goes on did; 0: none does */
};

/* Zero-initialise before. False: out of memory. */
bool pp_parts_begin(struct pp_parts *p, const struct pp_reasoning *r, enum pp_answer_begin begins);
/* Bytes as the generation gives them, for each whether it had been guessed (struct pp_gen_turn; NULL: none), with
 * n_tokens new tokens, at a time of pp_now_ns. */
void pp_parts_add(struct pp_parts *p, const char *bytes, const char *guessed, size_t n, int n_tokens, uint64_t now);
void pp_parts_end(struct pp_parts *p, uint64_t now); /* nothing more comes */
bool pp_parts_over(const struct pp_parts *p);        /* the generation is to stop: pp_reasoner_over */
void pp_parts_free(struct pp_parts *p);

#endif
