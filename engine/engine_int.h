/* engine_int.h - the insides of struct pp_engine and struct pp_seq; private to the engine. */
#ifndef PP_ENGINE_ENGINE_INT_H
#define PP_ENGINE_ENGINE_INT_H

#include "engine/batch.h"
#include "engine/cpu/cpu.h"
#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "engine/pool.h"
#include "engine/prompt_chunks.h"
#include "engine/speculate.h"

enum {
    PP_TREE_ROWS = 64,   /* of a tree in one step */
};

/* Where an adapter acts that is not invoked. */
#define PP_NEVER INT64_MAX

/* The adapters of rows from a position on. */
struct pp_adapter_span {
    int64_t from;
    struct pp_adapter_set set;
};

/* Layers of one geometry and window have pages of their own: one pool, and a page table in each sequence. */
struct pp_tier {
    struct pp_kv_pool *kv;
    int64_t window;              /* 0: none */
    int64_t first;               /* with one: so many pages at the beginning are looked at by all rows, too */
    int64_t stride;              /* it begins with a block of so many positions, or with one before that; else 0 */
};

/* The first page of a tier that the row behind n positions looks at. */
static inline int64_t pp_tier_first_page(const struct pp_tier *tier, int64_t n)
{
    const int64_t begin = tier->stride ? n / tier->stride * tier->stride - (tier->window - tier->stride)
                                       : n - tier->window + 1;
    return tier->window && begin > 0 ? begin / PP_PAGE_TOKENS : 0;
}

/* Whether that row looks at the i-th page, if there is one. */
static inline bool pp_tier_needs(const struct pp_tier *tier, int64_t i, int64_t n)
{
    return i < tier->first || i >= pp_tier_first_page(tier, n);
}

_Static_assert((int)PP_STATS_TIERS == (int)PP_MAX_TIERS, "each tier counts itself");

/* The last page of a sequence, not full; see tails.c. */
enum { PP_TAILS = 32 };
struct pp_tail {
    int64_t page;                /* full ones before it */
    struct pp_hash128 parent;    /* the identity of the last of these, if there are any */
    struct pp_sha256 key;        /* of the adapters that act in it */
    struct pp_hash128 name;      /* its own */
    int n;                       /* 0: none */
    int32_t tokens[PP_PAGE_TOKENS];
};

struct pp_engine {
    const struct pp_model *model;
    struct pp_pool *pool;
    bool owns_pool;
    struct pp_tier tier[PP_MAX_TIERS];
    int n_tiers;                 /* as the model's plan has them */
    struct pp_cpu *cpu;
    struct pp_gains *gains;      /* of DoRAs that sequences have on */
    struct pp_switched *switched; /* adapters of the model's own; NULL: it has none */
    enum pp_isa isa;
    char kernels[16];            /* "amx", "amx+pair" */
    int64_t n_ctx;
    int max_rows;
    struct pp_prompt_chunks chunks;
    struct pp_stats stats;
    int n_answers;               /* struct pp_gen that there are */
    int most_guesses;            /* in a pass: there is room for their outputs */
    struct pp_spec_costs costs;
    struct pp_spec_habits habits; /* those of the answer that ended last: others begin with them */
    bool has_habits;
    uint64_t id;                 /* no other has it, nor had it: addresses are given out again */
    uint64_t costs_of;           /* the draft whose steps are in costs, and of whom the habits tell */
    uint64_t bridge_to;          /* the draft of which it is known whether ... */
    bool bridged;                /* ... it has another vocabulary */
    struct pp_row *batch;        /* [max_rows]: of the pass of answers under way */

    struct pp_tail tails[PP_TAILS]; /* those kept last */
    unsigned n_tails;               /* ever kept */

    const struct pp_token_groups *only; /* logits that the next steps want (batch.h); NULL: all */

    /* work space of pp_step */
    struct pp_batch_row *rows;   /* [max_rows] */
    int32_t *output_rows;        /* [max_rows] */
    int n_outputs;               /* of the last step */
    int n_rows;
    enum pp_row_output *wanted;  /* [max_rows]: of the last step */
    int *parents;                /* [max_rows]: the row before each in its sequence, or tree; -1: none */
};

/* Places in a sequence that it can be taken back to; see seq_pages.c. */
enum pp_mark {
    PP_MARK_TURN,                /* where the current turn begins */
    PP_MARK_PROMPT,              /* where its prompt ends */
    PP_MARKS,
};

struct pp_marked_pages {
    pp_page_id *pages;           /* [window / 64 + 2]; NULL: the tier has no window */
    int n;
};

/* Pages first_page .. n_pages - 1 are held; those before it are behind the tier's window, and not held but for the
 * first ones of a tier that needs them always. */
struct pp_seq_tier {
    pp_page_id *pages;           /* [n_ctx / 64] */
    uint8_t **page_data;         /* [n_ctx / 64]: where they are */
    int64_t first_page, n_pages;
    struct pp_marked_pages marked[PP_MARKS];
};

/* Logits of a row, held by a sequence and by those who save it; counted on the engine's thread. */
struct pp_row_logits {
    int refs;
    int64_t n;
    float values[];              /* [n_vocab] */
};

struct pp_seq {
    struct pp_engine *engine;
    int64_t len;
    int32_t *tokens;             /* [n_ctx] */
    struct pp_seq_tier tier[PP_MAX_TIERS]; /* those of the engine */
    struct pp_adapter_set adapters; /* all that were chosen */
    int64_t start[PP_MAX_ADAPTERS]; /* from which position on each of them acts, or PP_NEVER */
    struct pp_adapter_span spans[PP_MAX_ADAPTERS + 1]; /* which so act where: [n_spans], the first from 0 on */
    int n_spans;
    struct pp_sha256 key;        /* of what the pages depend on besides tokens, within an engine: the adapters */
    int64_t plain;               /* tokens from the first on whose values are what the tokens before them give; behind
                                    it a tree's rows of which none were kept yet, or what pp_seq_cut has moved */
    struct pp_hash128 *names;    /* [n_ctx / 64]: identities of the first n_named pages, the same in all tiers */
    int64_t n_named;
    int64_t mark[PP_MARKS];      /* positions, or 0 */
    uint64_t copied_bytes;       /* by copy-on-write */
    struct pp_row_logits *logits; /* of the last token if logits_len is len; or NULL */
    struct pp_spec_habits habits; /* of its answers */
    uint64_t habits_of;          /* the draft that they tell of; 0: none was asked */
    bool has_habits;
    int64_t logits_len;          /* 0 after every change of the tokens */

    /* -- during pp_step -- */
    int64_t added;               /* rows of the batch so far */
    bool tree;                   /* some row of it names a parent */
};

/* What may stand behind advice for a context that is full: nothing if the model was trained for no more. */
static inline const char *pp_engine_or_larger(const struct pp_engine *e)
{
    return e->n_ctx < e->model->info.n_ctx_train ? ", or choose a larger --ctx-size" : "";
}

/* The set of kernels with this name, or for NULL the best. PP_ERR_USAGE, PP_ERR_UNSUPPORTED. */
enum pp_code pp_choose_kernels(const char *kernels, enum pp_isa *isa, struct pp_error *err);

/* Whether its i-th page is held. */
static inline bool pp_seq_holds(const struct pp_seq *s, int t, int64_t i)
{
    return i < s->tier[t].n_pages && (i >= s->tier[t].first_page || i < s->engine->tier[t].first);
}
/* The i-th page of s in tier t. The caller sees to references and n_pages. */
void pp_seq_set_page(struct pp_seq *s, int t, int64_t i, pp_page_id page);
/* Lets go of pages behind the last token: those of a step or a restoration that failed. */
void pp_seq_drop_pages(struct pp_seq *s);
/* Lets go of what no row behind the last token looks at. */
void pp_seq_slide(struct pp_seq *s);
/* Holds what it takes to come back to the present place, to whole pages, until the place is marked anew or the sequence
 * goes back further. */
void pp_seq_mark(struct pp_seq *s, enum pp_mark which);
/* Forgets the marks. True if there were any: memory may have become free. */
bool pp_seq_unmark(struct pp_seq *s);

/* s holds the first s->len tokens of `from`, under the same adapters: it lets go of its pages, and shares those of the
 * first n tokens of `from`, or of fewer if the window before the n-th is gone. Never becomes shorter. */
void pp_seq_share(struct pp_seq *s, const struct pp_seq *from, int64_t n);
/* s->names holds identities of the first s->n_named pages of the tokens, and s the first s->len tokens: goes on to n
 * tokens, whole pages, or as far as pages are found. Returns how many tokens that made. */
int64_t pp_seq_extend(struct pp_seq *s, const int32_t *tokens, int64_t n);
/* An answer to prompt [n] begins: s goes back to what it has in common with all but the prompt's last token, marks the
 * turn's beginning, and goes on with pages that are found. Returns how many tokens of the prompt it holds then. */
int64_t pp_seq_begin(struct pp_seq *s, const int32_t *prompt, int64_t n);

/* activate.c. The set without its adapters of strength 0; those that are invoked act nowhere yet. The sequence is
 * empty. */
void pp_seq_choose(struct pp_seq *s, const struct pp_adapter_set *set);
/* From where on an adapter acts in these tokens; PP_NEVER: its invocation is not among them. */
int64_t pp_adapter_start(const struct pp_adapter *a, const int32_t *tokens, int64_t n);
/* Those of a row, the same pointer for all positions of a span. Valid until the adapters change or are activated. */
const struct pp_adapter_set *pp_seq_adapters_at(const struct pp_seq *s, int64_t position);
bool pp_seq_has_activated(const struct pp_seq *s); /* some of its adapters must be invoked */
/* The first position that the two compute with different adapters, or PP_NEVER. */
int64_t pp_seq_alike_until(const struct pp_seq *a, const struct pp_seq *b);

/* prefix.c: gives the full pages of s their names, so that other sequences find them. */
void pp_seq_publish(struct pp_seq *s);
/* prefix.c: s->key, after a change of adapters. */
void pp_seq_rekey(struct pp_seq *s);
/* prefix.c: s holds the first s->len of the n tokens. Goes on with pages of other sequences, living or gone, that were
 * computed for the same tokens under the same adapters, as far as there are any. Returns how many tokens that made. */
int64_t pp_seq_adopt(struct pp_seq *s, const int32_t *tokens, int64_t n);

/* prefix.c: what the p-th page of s depends on besides tokens. */
struct pp_sha256 pp_seq_page_key(const struct pp_seq *s, int64_t p);

/* tails.c: the last page of s, which is not full, can be found when s has let go of it. Before its adapters change. */
void pp_tail_keep(struct pp_seq *s);
/* The kept one that has most in common with tokens [n], which follow `page` full pages, the last one with identity
 * `parent`, under adapters of this key. Returns how many tokens that is; 0: there is none. */
int pp_tail_find(const struct pp_engine *e, const struct pp_hash128 *parent, int64_t page, const struct pp_sha256 *key,
                 const int32_t *tokens, int64_t n, const struct pp_tail **found);
/* As pp_seq_adopt, with such a page; all full pages of s have their names. */
int64_t pp_tail_adopt(struct pp_seq *s, const int32_t *tokens, int64_t n);

/* snapshot.c: logits of the row behind which a sequence goes on, so that what is saved with it gives its first token
 * without a pass. Room for them, if there is memory: call where allocating is allowed. */
void pp_seq_reserve_logits(struct pp_seq *s);
/* Those of the last token of s; NULL: not known. Without room nothing is kept. */
void pp_seq_keep_logits(struct pp_seq *s, const float *values);
const float *pp_seq_logits(const struct pp_seq *s); /* [n_vocab], or NULL: not known, or s has changed since */
struct pp_row_logits *pp_seq_hold_logits(struct pp_seq *s); /* one more reference, or NULL */
void pp_row_logits_release(struct pp_row_logits *l);        /* NULL is fine */

#endif
