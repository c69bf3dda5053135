/* speculate_bridge.h - a draft model with another vocabulary: it reads the text of the answer in its own tokens, and
 * the text that it drafts is tokenized for the target. Wrong tokens do no harm, since the target decides as always; but
 * both sides must see the same bytes, or no draft token would ever be accepted. Private to the engine, on its thread.
 * Unlike other ways of drafting, this takes memory from the heap. */
#ifndef PP_ENGINE_SPECULATE_BRIDGE_H
#define PP_ENGINE_SPECULATE_BRIDGE_H

#include "engine/base/buf.h"
#include "engine/sampler.h"
#include "engine/text.h"

struct pp_bridge {
    const struct pp_tokenizer *target, *draft;
    bool target_spaces, draft_spaces; /* this tokenizer puts a space before a text */
    struct pp_sampler sampler;  /* of the draft's vocabulary */
    struct pp_buf text;         /* text of the answer's tokens, then the drafted text */
    size_t settled;             /* bytes of `text` that are those of the answer's ... */
    int64_t n_settled;          /* ... first tokens */
    int32_t *ids;               /* [n]: the same text in the draft's tokens */
    size_t *ends;               /* [n]: where in `text` each ends */
    int64_t n, cap;
    int steps;                  /* of the draft model in this pass */
    float margin;               /* smallest margin of its choices since a token was last drafted */
};

/* n_draft: size of the draft model's vocabulary. */
enum pp_code pp_bridge_new(const struct pp_tokenizer *target, const struct pp_tokenizer *draft, int64_t n_draft,
                           struct pp_bridge **out, struct pp_error *err);
void pp_bridge_free(struct pp_bridge *b);
/* Makes it hold the text of tokens[0 .. n), which extends or shortens what it held. Where drafted text became part
 * of the answer, its tokens and KV are kept. */
enum pp_code pp_bridge_set(struct pp_bridge *b, const int32_t *tokens, int64_t n);
/* Adds the most likely token. False: it ends the text. */
bool pp_bridge_add(struct pp_bridge *b, const float *logits);
/* Tokenizes the drafted text for the target, in the context of the last few of tokens[0 .. n): *ids (pp_free) and
 * *n_ids. More text may change the last one. */
enum pp_code pp_bridge_propose(const struct pp_bridge *b, const int32_t *tokens, int64_t n, int32_t **ids,
                               size_t *n_ids);

#endif
