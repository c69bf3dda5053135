/* draft_runs.h - which bytes of an answer were drafted (and accepted): lengths of runs, alternating between bytes that
 * the model sampled itself and drafted bytes. Stored with the message as "guessed": [12, 5, 3, 9]. At most
 * PP_DRAFT_RUNS_MAX runs; all text after them counts as sampled. Zero-initialise. Not thread-safe.
 *
 * It is used only to tint text on the screen, so it is allowed to fail: when memory runs out, it is empty, and stays
 * so until it is freed. */
#ifndef PP_SRC_DRAFT_RUNS_H
#define PP_SRC_DRAFT_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/buf.h"

enum { PP_DRAFT_RUNS_MAX = 1 << 14 };

struct pp_draft_runs {
    uint32_t *runs; /* [n]: even ones sampled, odd ones drafted; only the first may be 0 */
    size_t n, cap;
    bool lost;
};

/* Appends a number of bytes. */
void pp_draft_runs_add(struct pp_draft_runs *r, size_t bytes, bool drafted);
/* Appends the runs of `more`. */
void pp_draft_runs_append(struct pp_draft_runs *r, const struct pp_draft_runs *more);
/* Makes it a copy of `whole`, of which it is a prefix; only the new part is copied. */
void pp_draft_runs_extend(struct pp_draft_runs *r, const struct pp_draft_runs *whole);
/* Makes it cover `bytes` bytes: adds sampled ones, or truncates. */
void pp_draft_runs_fit(struct pp_draft_runs *r, size_t bytes);
void pp_draft_runs_clear(struct pp_draft_runs *r); /* keeps the memory */
void pp_draft_runs_free(struct pp_draft_runs *r);  /* and makes it empty */
bool pp_draft_runs_any(const struct pp_draft_runs *r);
/* Appends the runs as JSON: "[12,5,...]". */
void pp_draft_runs_json(const struct pp_draft_runs *r, struct pp_buf *out);
/* Reads the runs of a message with `bytes` bytes of text. Empty if `array` does not match that. */
void pp_draft_runs_read(struct pp_draft_runs *r, const cJSON *array, size_t bytes);

/* The speedup to show for a measured one: 0 (unknown) for fewer than PP_SPEEDUP_TOKENS tokens, which are dominated
 * by noise, and at most 1 if no draft was accepted. */
enum { PP_SPEEDUP_TOKENS = 32 };
float pp_speedup(double measured, double n_tokens, double n_accepted);

#endif
