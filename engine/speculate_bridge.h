/* speculate_bridge.h - a draft model of another vocabulary: it reads the text of the answer in tokens of its own, and
 * the text it guesses is cut into the target's. Which tokens it guesses is no matter of right and wrong, the target
 * decides as always; but the texts must be the same bytes on both sides, else nothing would ever stand. Private to the
 * engine, on its thread. Unlike other guesses, these take memory from the heap. */
#ifndef PP_ENGINE_SPECULATE_BRIDGE_H
#define PP_ENGINE_SPECULATE_BRIDGE_H

#include "engine/base/buf.h"
#include "engine/sampler.h"
#include "engine/text.h"

struct pp_bridge {
    const struct pp_tokenizer *target, *draft;
    bool target_spaces, draft_spaces; /* a space is put before a text that is cut */
    struct pp_sampler sampler;  /* of the draft's vocabulary */
    struct pp_buf text;         /* of the answer's tokens, and behind it what is guessed */
    size_t settled;             /* bytes of it that are the answer's ... */
    int64_t n_settled;          /* ... first tokens */
    int32_t *ids;               /* [n]: the same text in the draft's tokens */
    size_t *ends;               /* [n]: bytes of text up to the end of each */
    int64_t n, cap;
    int steps;                  /* of the draft in this pass */
    float margin;               /* the least of its choices since the last guess */
};

/* n_draft: size of the draft model's vocabulary. */
enum pp_code pp_bridge_new(const struct pp_tokenizer *target, const struct pp_tokenizer *draft, int64_t n_draft,
                           struct pp_bridge **out, struct pp_error *err);
void pp_bridge_free(struct pp_bridge *b);
/* Makes it hold the text of tokens[0 .. n), which go on from, or back to, what it held; guesses that became part of
 * them keep their tokens. */
enum pp_code pp_bridge_set(struct pp_bridge *b, const int32_t *tokens, int64_t n);
/* Adds what the draft chooses. False: it sees the end of the text. */
bool pp_bridge_add(struct pp_bridge *b, const float *logits);
/* The guessed text in the target's tokens, behind tokens[0 .. n), of which the last few are looked at: *ids (pp_free)
 * and *n_ids. The last of them may change with more text. */
enum pp_code pp_bridge_guesses(const struct pp_bridge *b, const int32_t *tokens, int64_t n, int32_t **ids,
                               size_t *n_ids);

#endif
