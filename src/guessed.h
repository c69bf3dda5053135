/* guessed.h - which bytes of an answer were drafted (and accepted): lengths of runs, alternating between bytes that
 * the model sampled itself and drafted bytes. Stored with the message as "guessed": [12, 5, 3, 9]. At most
 * PP_GUESSED_MOST runs; all text after them counts as sampled. Zero-initialise. Not thread-safe.
 *
 * It is used only to tint text on the screen, so it is allowed to fail: when memory runs out, it is empty, and stays
 * so until it is freed. */
#ifndef PP_SRC_GUESSED_H
#define PP_SRC_GUESSED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/buf.h"

enum { PP_GUESSED_MOST = 1 << 14 };

struct pp_guessed {
    uint32_t *runs; /* [n]: even ones sampled, odd ones drafted; only the first may be 0 */
    size_t n, cap;
    bool lost;
};

/* Appends a number of bytes. */
void pp_guessed_add(struct pp_guessed *g, size_t bytes, bool guessed);
/* Appends the runs of `more`. */
void pp_guessed_append(struct pp_guessed *g, const struct pp_guessed *more);
/* Makes it a copy of `whole`, of which it is a prefix; only the new part is copied. */
void pp_guessed_extend(struct pp_guessed *g, const struct pp_guessed *whole);
/* Makes it cover `bytes` bytes: adds sampled ones, or truncates. */
void pp_guessed_fit(struct pp_guessed *g, size_t bytes);
void pp_guessed_clear(struct pp_guessed *g); /* keeps the memory */
void pp_guessed_free(struct pp_guessed *g);  /* and makes it empty */
bool pp_guessed_any(const struct pp_guessed *g);
/* Appends the runs as JSON: "[12,5,...]". */
void pp_guessed_json(const struct pp_guessed *g, struct pp_buf *out);
/* Reads the runs of a message with `bytes` bytes of text. Empty if `array` does not match that. */
void pp_guessed_read(struct pp_guessed *g, const cJSON *array, size_t bytes);

/* The speedup to show for a measured one: 0 (unknown) for fewer than PP_SPEEDUP_TOKENS tokens, which are dominated
 * by noise, and at most 1 if no draft was accepted. */
enum { PP_SPEEDUP_TOKENS = 32 };
float pp_speedup(double measured, double n_tokens, double n_accepted);

#endif
