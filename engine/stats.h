/* stats.h - counters of the engine. Written by the thread that owns the engine; read them there, or copy them. */
#ifndef PP_ENGINE_STATS_H
#define PP_ENGINE_STATS_H

#include <stdint.h>

enum { PP_STATS_TIERS = 12, PP_STATS_POSITIONS = 16 };

/* Pages of layers with one attention window. */
struct pp_tier_stats {
    int64_t window;            /* positions; 0: all */
    uint64_t page_bytes;
    uint64_t pages_used, pages_cached, pages_total;
};

struct pp_stats {
    /* tokens */
    uint64_t prompt_tokens;    /* asked for, cached ones included */
    uint64_t cached_tokens;    /* the part of prompt_tokens taken from pages or a snapshot */
    uint64_t prefill_tokens;   /* computed in prompts */
    uint64_t decode_tokens;    /* chosen by the sampler */
    uint64_t draft_tokens;     /* proposed */
    uint64_t draft_accepted;   /* the part of draft_tokens that was kept */
    uint64_t lookup_tokens;    /* the part of draft_tokens that was looked up in the conversation */
    uint64_t lookup_accepted;
    uint32_t draft_verified_at[PP_STATS_POSITIONS]; /* by position in the draft: the first, the second, ... of a pass */
    uint32_t draft_accepted_at[PP_STATS_POSITIONS];
    /* time, ns */
    uint64_t prefill_ns;
    uint64_t decode_ns;        /* from the end of the prompt: forward passes, drafting and sampling */
    uint64_t draft_ns;         /* part of decode_ns */
    uint64_t sample_ns;        /* part of decode_ns */
    uint64_t plain_ns;         /* estimated time of the decoded tokens without drafts, from passes without any; 0: not
                                  known */
    uint64_t first_token_ns;   /* from the request to the first token, of the last request */
    /* work */
    uint64_t passes;           /* forward passes */
    uint64_t rows;             /* rows in them */
    /* pages */
    uint64_t pages_used, pages_total; /* of all tiers */
    uint64_t pages_cached;     /* held by no sequence, kept in case the same tokens are asked for again */
    uint64_t page_bytes;       /* bytes of one page in each tier */
    uint64_t kv_bytes_used, kv_bytes_cached, kv_bytes_total; /* in those pages */
    struct pp_tier_stats tiers[PP_STATS_TIERS];
    int n_tiers;
    uint64_t engine_bytes;     /* work space and packed weights: memory besides pages and mapped files */
    uint64_t layout_bytes;     /* of packed weights, whether they are packed yet or not */
    uint64_t layout_mapped;    /* the part of layout_bytes that is in a mapped file of the cache */
    uint64_t layout_repaired;  /* damaged groups of 16 rows in that file, packed again in memory */
    uint64_t kv_copied_bytes;  /* by copy-on-write; forks and regenerations alone add nothing */
    uint64_t restored_tokens;  /* from snapshots */
};

#endif
