/* grammar_mask.h - which tokens of a vocabulary a grammar allows next. Private to the engine.
 *
 * The bytes of all tokens form a trie, which is walked together with the grammar: where the grammar refuses a byte, the
 * subtree is skipped. What is allowed within a rule does not depend on the rules that called it, so that part of a mask
 * is computed once per place in a rule, above a hole instead of the stack (grammar_state.h); only tokens that go on
 * beyond the end of the rule, such as `",` in a string of JSON, are then walked with the stack. Both parts and whole
 * masks are cached by the number of the state.
 *
 * In a counted repetition, such as a string of at most 1,000 characters, each character leads to another state. But
 * most of them are alike for all texts of at most 32 bytes, and so share the mask of the tokens that are so short; the
 * few longer ones are walked each time. */
#ifndef PP_ENGINE_GRAMMAR_MASK_H
#define PP_ENGINE_GRAMMAR_MASK_H

#include "engine/grammar_state.h"

struct pp_tokenizer;

/* The texts of a vocabulary. Immutable; 45 bytes per token or so. Control tokens have no text. */
struct pp_trie {
    int32_t n_vocab;
    uint32_t n_nodes;       /* in the order of a walk; node 0 is the root */
    uint32_t *next;         /* [n_nodes]: the node after the subtree */
    int32_t *token;         /* [n_nodes]: one that ends here, or -1 */
    uint16_t *depth;        /* [n_nodes] */
    uint8_t *byte;          /* [n_nodes] */
    uint32_t max_depth;
    uint32_t long_root;     /* the root of the second part: texts of more than PP_ALIKE_BYTES bytes */
    int32_t *same;          /* [n_vocab]: another token with the same text, or -1 */
    uint32_t *text_at;      /* [n_vocab + 1]: the text of token i is text[text_at[i] .. text_at[i + 1]) */
    char *text;
};
/* n_vocab: the number of logits. The caller owns *out. PP_ERR_NOMEM. */
enum pp_code pp_trie_new(const struct pp_tokenizer *t, int64_t n_vocab, struct pp_trie **out, struct pp_error *err);
/* The same for given texts, [n] of them; NULL: a control token. */
enum pp_code pp_trie_of_texts(const char *const *texts, int32_t n, struct pp_trie **out, struct pp_error *err);
void pp_trie_free(struct pp_trie *t); /* NULL is fine */

enum { PP_MASKS_KEPT = 32, PP_PARTS_KEPT = 32 };

struct pp_mask {
    int32_t state;          /* -1: unused */
    uint64_t used;          /* when */
    uint64_t *words;        /* a bit per token */
    uint32_t *pops;         /* [n_pops]: nodes of the trie at which the hole is left */
    size_t n_pops, cap_pops;
};
struct pp_masks {
    struct pp_matcher *m;
    const struct pp_trie *trie;
    const int32_t *ids;     /* [m->g->n_tokens]: what the grammar's references mean */
    const int32_t *ends;    /* [n_ends]: tokens that end an answer */
    size_t n_ends;
    size_t n_words;
    struct pp_mask kept[PP_MASKS_KEPT + PP_PARTS_KEPT]; /* of states, and above a hole */
    uint64_t clock;
    int32_t *states;        /* [max_depth + 1]: of the walk */
    uint64_t *words;        /* [n_words]: the mask that is computed, then the one that was handed out */
    int32_t latest;         /* the state of which; or -1 */
};
/* All pointers must outlive *c. PP_ERR_NOMEM leaves nothing to be freed. */
enum pp_code pp_masks_init(struct pp_masks *c, struct pp_matcher *m, const struct pp_trie *trie, const int32_t *ids,
                           const int32_t *ends, size_t n_ends, struct pp_error *err);
void pp_masks_free(struct pp_masks *c);
/* After pp_matcher_trim has given states other numbers. */
void pp_masks_clear(struct pp_masks *c);
/* The tokens that may follow: [n_words], valid until the next call. NULL: failed, see the matcher. */
const uint64_t *pp_masks_of(struct pp_masks *c, int32_t state);

#endif
