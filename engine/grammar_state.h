/* grammar_state.h - where in a grammar a text may be: the pushdown automaton that reads bytes. Private to the engine.
 *
 * A grammar may be in several places at once, each with its own stack of rules to return to. As in a graph-structured
 * stack (Tomita, 1985; Earley's algorithm is the same idea), stacks share their tails: an item is (node, frame), and a
 * frame is the set of (node to return to, frame) pairs of all who called this rule here. A call in tail position
 * returns to its caller's callers at once, so that right recursion does not deepen the stack.
 *
 * Frames and whole states (sorted lists of items) are interned: equal ones have the same number. So a state is a
 * number, a copy costs nothing, which is what speculation needs, and each (state, class of bytes) is computed once and
 * then looked up, as in a lazily built DFA. `[1, [2], 3` is in the same state after each element of the same list, and
 * JSON soon has no new states except at depths not reached before.
 *
 * Work is bounded: a state has at most PP_ITEMS_MOST items, or the grammar is refused as too ambiguous. Memory is
 * bounded, too: pp_matcher_trim, called between tokens, drops all states but those named when there are many. */
#ifndef PP_ENGINE_GRAMMAR_STATE_H
#define PP_ENGINE_GRAMMAR_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/grammar_build.h"

enum { PP_ITEMS_MOST = 1 << 15 };
enum {
    PP_STATE_DEAD = 0,      /* nothing matches any more */
    PP_STATE_FAILED = -1,   /* see the matcher's code and err; every step from here leads here */
};

struct pp_item {
    uint32_t node, frame;
};
struct pp_state {
    uint32_t first, n;      /* items */
    bool ends;              /* the text may end here */
    bool pops;              /* the hole has been left: see pp_matcher_hole */
    bool tokens;            /* there are items that take a token */
};
struct pp_frame {
    uint32_t first, n;      /* links: items to go on with at the end of the rule */
    uint32_t alike;         /* the frame with links that are alike (pp_grammar.alike) */
};
struct pp_table {
    struct pp_table_slot {
        uint64_t hash;
        uint32_t number;    /* + 1; 0: free */
    } *slots;               /* [n_slots], a power of two */
    size_t n_slots;
};

/* One thread at a time. */
struct pp_matcher {
    const struct pp_grammar *g;
    enum pp_code code;      /* of the last failure; err tells what it was */
    struct pp_error err;
    struct pp_item *items;
    size_t n_items, cap_items;
    struct pp_state *states;
    size_t n_states, cap_states;
    int32_t *next;          /* [n_states, n_classes]: UNKNOWN, or the state after such a byte */
    size_t cap_next;
    struct pp_item *links;
    size_t n_links, cap_links;
    struct pp_frame *frames; /* frame 0 is the hole, frame 1 that of the root */
    size_t n_frames, cap_frames;
    struct pp_table state_table, frame_table;
    uint64_t work;          /* items looked at; limited: the caller sets it to 0 before each token */
    /* of the closure that is computed */
    struct pp_item *found;  /* [n_found] items, also those still to be looked at */
    size_t n_found, cap_found;
    uint64_t *seen;         /* [n_seen], a hash table: generation << 32 | index in found */
    size_t n_seen;
    uint32_t generation;
    uint32_t *temp_of_rule; /* [n_rules]: 1 + its frame in this closure; 0: none yet */
    struct pp_temp {        /* a frame whose links are not all known yet */
        uint32_t rule, last; /* last: 1 + index of its latest link; 0: none */
        uint32_t frame;     /* the interned one, once it is known */
        bool done;
    } *temps;
    size_t n_temps, cap_temps;
    struct pp_temp_link {
        struct pp_item to;
        uint32_t before;    /* as `last` */
    } *temp_links;
    size_t n_temp_links, cap_temp_links;
    struct pp_item *scratch; /* a stack of lists that are put together */
    size_t n_scratch, cap_scratch;
};

/* PP_ERR_NOMEM leaves nothing to be freed. g must outlive m. */
enum pp_code pp_matcher_init(struct pp_matcher *m, const struct pp_grammar *g, struct pp_error *err);
void pp_matcher_free(struct pp_matcher *m);
/* The state at the beginning of a text. All functions that return states return PP_STATE_FAILED on failure. */
int32_t pp_matcher_start(struct pp_matcher *m);
int32_t pp_matcher_step(struct pp_matcher *m, int32_t state, unsigned byte);
int32_t pp_matcher_text(struct pp_matcher *m, int32_t state, const char *s, size_t n);
/* The state after a token with these bytes; n 0: it has none that may be matched. ids [g->n_tokens]: the tokens that
 * the references mean. */
int32_t pp_matcher_token(struct pp_matcher *m, int32_t state, int32_t token, const char *s, size_t n,
                         const int32_t *ids);
/* Whether nothing may follow: the text is complete. */
bool pp_matcher_over(const struct pp_matcher *m, int32_t state);
/* The items of a state that have this frame, but above a hole, which stands for any stack; states that are reached when
 * the rule has ended say so (pops). What happens within a rule does not depend on the stack. */
int32_t pp_matcher_hole(struct pp_matcher *m, int32_t state, uint32_t frame);
/* A state after which the same texts of up to PP_ALIKE_BYTES bytes may follow, and which is the same for most places
 * of a long counted repetition. */
int32_t pp_matcher_alike(struct pp_matcher *m, int32_t state);
/* The state in which a frame's rule has just ended. */
int32_t pp_matcher_returned(struct pp_matcher *m, uint32_t frame);
/* Drops all states but *keep, which gets a new number, if there are many. True: it did, and what is known about states
 * by number is void. */
bool pp_matcher_trim(struct pp_matcher *m, int32_t *keep);

#endif
