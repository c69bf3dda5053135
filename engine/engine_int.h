/* engine_int.h - struct pp_engine, struct pp_seq and their internal functions. Private to the engine; all of it runs on
 * the engine's thread. */
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
    PP_TREE_ROWS = 64,   /* most rows of a tree in one step: bits of tree_mask */
};

/* The start of an adapter whose invocation does not occur. */
#define PP_NEVER INT64_MAX

/* The adapters of the rows from position `from` up to the next span. */
struct pp_adapter_span {
    int64_t from;
    struct pp_adapter_set set;
};

/* A tier: layers of the same kind, geometry and window share a page pool, and a page table in each sequence. */
struct pp_tier {
    struct pp_kv_pool *kv;
    int64_t window;              /* 0: none */
    int64_t first;               /* with a window: leading pages that all rows see besides it (attention sinks) */
    int64_t stride;              /* if not 0, the window begins window - stride before the row's block of this many
                                    positions, instead of sliding */
};

/* The first page that a row at position n sees through the tier's window. */
static inline int64_t pp_tier_first_page(const struct pp_tier *tier, int64_t n)
{
    const int64_t begin = tier->stride ? n / tier->stride * tier->stride - (tier->window - tier->stride)
                                       : n - tier->window + 1;
    return tier->window && begin > 0 ? begin / PP_PAGE_TOKENS : 0;
}

/* Whether that row sees the i-th page, if it exists. */
static inline bool pp_tier_needs(const struct pp_tier *tier, int64_t i, int64_t n)
{
    return i < tier->first || i >= pp_tier_first_page(tier, n);
}

_Static_assert((int)PP_STATS_TIERS == (int)PP_MAX_TIERS, "each tier counts itself");

/* A sequence's partly filled last page, remembered after the sequence has released it; see tails.c. */
enum { PP_TAILS = 32 };
struct pp_tail {
    int64_t page;                /* full pages before it */
    struct pp_hash128 parent;    /* the identity of the last of these, if there are any */
    struct pp_sha256 key;        /* of the adapters that act in it */
    struct pp_hash128 name;      /* its own identity */
    int n;                       /* tokens; 0: an unused entry */
    int32_t tokens[PP_PAGE_TOKENS];
};

struct pp_engine {
    const struct pp_model *model;
    struct pp_pool *pool;
    bool owns_pool;
    struct pp_tier tier[PP_MAX_TIERS];
    int n_tiers;                 /* as the model's plan has them */
    struct pp_cpu *cpu;
    struct pp_gains *gains;      /* output gains of the DoRAs in use (lora_gains.c) */
    struct pp_switched *switched; /* LoRAs within the model that tokens switch on; NULL: none */
    enum pp_isa isa;
    char kernels[16];            /* "amx", "amx+pair" */
    int64_t n_ctx;
    int max_rows;
    struct pp_prompt_chunks chunks;
    struct pp_stats stats;
    int n_answers;               /* live struct pp_gen */
    int max_draft;               /* drafted tokens per pass that there is room for outputs of */
    struct pp_spec_costs costs;
    struct pp_acceptance acceptance; /* of the answer that ended last: new sequences start from it */
    bool has_acceptance;
    uint64_t id;                 /* unique in this process, unlike the address, which may be reused */
    uint64_t measured_draft_id;  /* id of the draft engine that costs and acceptance were measured with */
    uint64_t bridge_draft_id;    /* id of the draft engine that `bridged` is about */
    bool bridged;                /* its vocabulary differs from ours */
    struct pp_trie *trie;        /* of the vocabulary, once an answer had a grammar; or NULL */
    struct pp_row *batch;        /* [max_rows]: of the current pp_gen_step */

    struct pp_tail tails[PP_TAILS]; /* a ring: the tails kept last */
    unsigned n_tails;               /* ever kept */

    const struct pp_token_groups *only; /* the only logits that the next steps need (batch.h); NULL: all */

    /* -- workspace of pp_step -- */
    struct pp_batch_row *rows;   /* [max_rows] */
    int32_t *output_rows;        /* [max_rows] */
    int n_outputs;               /* of the last step */
    int n_rows;
    enum pp_row_output *wanted;  /* [max_rows]: of the last step */
    int *parents;                /* [max_rows]: the row before each in its sequence, or tree; -1: none */
};

/* Places that a sequence keeps the pages for to go back to; see seq_pages.c. */
enum pp_mark {
    PP_MARK_TURN,                /* where the current turn begins */
    PP_MARK_PROMPT,              /* where its prompt ends */
    PP_MARKS,
};

struct pp_marked_pages {
    pp_page_id *pages;           /* [window / 64 + 2]; NULL: the tier has no window */
    int n;
};

/* A sequence's page table in a tier. Pages first_page .. n_pages - 1 are held; earlier ones have slid out of the tier's
 * window, and of them only its leading pages (`first` of struct pp_tier) are held. */
struct pp_seq_tier {
    pp_page_id *pages;           /* [n_ctx / 64] */
    uint8_t **page_data;         /* [n_ctx / 64]: pp_page_data of each */
    int64_t first_page, n_pages;
    struct pp_marked_pages marked[PP_MARKS];
};

/* Logits of a row, shared by a sequence and its pending saves; the count is of the engine's thread alone. */
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
    int64_t start[PP_MAX_ADAPTERS]; /* the position from which each of them acts, or PP_NEVER */
    struct pp_adapter_span spans[PP_MAX_ADAPTERS + 1]; /* [n_spans] ascending, from position 0: the same as sets */
    int n_spans;
    struct pp_sha256 key;        /* what pages depend on besides tokens, within an engine: the adapters */
    int64_t plain;               /* leading tokens whose KV is that of the plain token chain; after them come a tree's
                                    rows before pp_seq_keep, or what pp_seq_cut has moved */
    struct pp_hash128 *names;    /* [n_ctx / 64]: identities of the first n_named pages, the same in all tiers */
    int64_t n_named;
    int64_t mark[PP_MARKS];      /* positions, or 0 */
    uint64_t copied_bytes;       /* by copy-on-write */
    struct pp_row_logits *logits; /* of the last token if logits_len is len; or NULL */
    struct pp_acceptance acceptance; /* of its answers */
    uint64_t acceptance_draft_id; /* id of the draft engine that it was learned with; 0: there was none */
    bool has_acceptance;
    int64_t logits_len;          /* 0 after every change of the tokens */

    /* -- during pp_step -- */
    int64_t added;               /* rows of the batch so far */
    bool tree;                   /* one of them names a parent */
};

/* A suffix for the advice in "context full" errors: empty if the model was not trained for a larger context. */
static inline const char *pp_engine_or_larger(const struct pp_engine *e)
{
    return e->n_ctx < e->model->info.n_ctx_train ? ", or choose a larger --ctx-size" : "";
}

/* The kernel set of this name; NULL: the best that this CPU runs. PP_ERR_USAGE: there is no such set;
 * PP_ERR_UNSUPPORTED: the CPU cannot run it. */
enum pp_code pp_choose_kernels(const char *kernels, enum pp_isa *isa, struct pp_error *err);

/* Whether s holds the i-th page of tier t. */
static inline bool pp_seq_holds(const struct pp_seq *s, int t, int64_t i)
{
    return i < s->tier[t].n_pages && (i >= s->tier[t].first_page || i < s->engine->tier[t].first);
}
/* seq_pages.c. Sets the i-th page of s in tier t. The caller takes care of references and n_pages. */
void pp_seq_set_page(struct pp_seq *s, int t, int64_t i, pp_page_id page);
/* Releases pages past the last token, left by a step or a restore that failed. */
void pp_seq_drop_pages(struct pp_seq *s);
/* Releases pages that no later row will see. */
void pp_seq_slide(struct pp_seq *s);
/* Holds the pages needed to go back to the present position, rounded down to whole pages, until this mark is set again
 * or the sequence goes back further. */
void pp_seq_mark(struct pp_seq *s, enum pp_mark which);
/* Clears the marks. True if there were any, so that memory may have become free. */
bool pp_seq_unmark(struct pp_seq *s);

/* s holds the first s->len tokens of `from`, under the same adapters. Replaces its pages by those of the first n tokens
 * of `from`, or of fewer where the window before the n-th is gone. s never becomes shorter. */
void pp_seq_share(struct pp_seq *s, const struct pp_seq *from, int64_t n);
/* s holds the first s->len of the tokens, and s->names the identities of their first s->n_named pages. Extends s by
 * whole pages found by name, up to n tokens. Returns by how many tokens. */
int64_t pp_seq_extend(struct pp_seq *s, const int32_t *tokens, int64_t n);
/* Begins an answer to prompt [n]: s goes back to their common prefix, marks the beginning of the turn, and takes over
 * pages that are found. Returns how many tokens of the prompt it then holds: n only if it has the last one's logits. */
int64_t pp_seq_begin(struct pp_seq *s, const int32_t *prompt, int64_t n);

/* activate.c. Sets the adapters of an empty sequence, without those of strength 0; those with an invocation act nowhere
 * until pp_seq_activate. */
void pp_seq_choose(struct pp_seq *s, const struct pp_adapter_set *set);
/* The position in these tokens from which an adapter acts; PP_NEVER: its invocation is not among them. */
int64_t pp_adapter_start(const struct pp_adapter *a, const int32_t *tokens, int64_t n);
/* The adapters of the row at a position: the same pointer throughout a span. Valid until the adapters are changed or
 * activated. */
const struct pp_adapter_set *pp_seq_adapters_at(const struct pp_seq *s, int64_t position);
bool pp_seq_has_activated(const struct pp_seq *s); /* some of its adapters have an invocation */
/* The first position that the two compute with different adapters, or PP_NEVER. */
int64_t pp_seq_same_adapters_until(const struct pp_seq *a, const struct pp_seq *b);

/* prefix.c: names the full pages of s, so that other sequences can find them. */
void pp_seq_publish(struct pp_seq *s);
/* prefix.c: recomputes s->key after a change of adapters. */
void pp_seq_rekey(struct pp_seq *s);
/* prefix.c: s holds the first s->len of the n tokens. Extends it by pages of other sequences, living or freed, that
 * were computed for the same tokens under the same adapters, as far as there are any. Returns by how many tokens. */
int64_t pp_seq_adopt(struct pp_seq *s, const int32_t *tokens, int64_t n);

/* prefix.c: what the p-th page of s depends on besides tokens. */
struct pp_sha256 pp_seq_page_key(const struct pp_seq *s, int64_t p);

/* tails.c: makes the partly filled last page of s findable after s releases it. Call before the adapters change. */
void pp_tail_keep(struct pp_seq *s);
/* The kept tail with the longest common prefix with tokens [n], which follow `page` full pages, the last one of
 * identity `parent`, under adapters of this key. Returns the length of that prefix; 0: there is none. */
int pp_tail_find(const struct pp_engine *e, const struct pp_hash128 *parent, int64_t page, const struct pp_sha256 *key,
                 const int32_t *tokens, int64_t n, const struct pp_tail **found);
/* As pp_seq_adopt, with such a page; all full pages of s must have been named. */
int64_t pp_tail_adopt(struct pp_seq *s, const int32_t *tokens, int64_t n);

/* snapshot.c: the logits after a sequence's last token, saved with it so that a restored conversation gets its first
 * token without a pass. Allocates room for them if there is memory; call where allocating is allowed. */
void pp_seq_reserve_logits(struct pp_seq *s);
/* Stores those of the last token of s; NULL: not known. Without room nothing is stored. */
void pp_seq_keep_logits(struct pp_seq *s, const float *values);
const float *pp_seq_logits(const struct pp_seq *s); /* [n_vocab], or NULL: not known, or s has changed since */
struct pp_row_logits *pp_seq_hold_logits(struct pp_seq *s); /* one more reference, or NULL */
void pp_row_logits_release(struct pp_row_logits *l);        /* NULL is fine */

#endif
