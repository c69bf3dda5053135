/* guessed.h - which bytes of an answer come from guesses that stood: lengths of runs, by turns bytes that the model
 * chose and bytes that had been guessed. Kept with the message as "guessed": [12, 5, 3, 9]; at most PP_GUESSED_MOST
 * runs, all text behind them counts as chosen. Zero-initialise. Not thread-safe.
 *
 * Nothing but a tint on the screen depends on it: when memory runs out it is empty, and stays so until it is freed. */
#ifndef PP_SRC_GUESSED_H
#define PP_SRC_GUESSED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/buf.h"

enum { PP_GUESSED_MOST = 1 << 14 };

struct pp_guessed {
    uint32_t *runs; /* [n]: even ones chosen, odd ones guessed; the first may be 0, no other */
    size_t n, cap;
    bool lost;
};

/* So many more bytes. */
void pp_guessed_add(struct pp_guessed *g, size_t bytes, bool guessed);
/* Those of `more` behind it. */
void pp_guessed_append(struct pp_guessed *g, const struct pp_guessed *more);
/* Makes it a copy of `whole`, which begins with what it is: costs what is new. */
void pp_guessed_extend(struct pp_guessed *g, const struct pp_guessed *whole);
/* Makes it cover so many bytes: others are chosen ones, or go. */
void pp_guessed_fit(struct pp_guessed *g, size_t bytes);
void pp_guessed_clear(struct pp_guessed *g); /* keeps the memory */
void pp_guessed_free(struct pp_guessed *g);  /* and makes it empty again */
bool pp_guessed_any(const struct pp_guessed *g);
/* Appends "[12,5,...]". */
void pp_guessed_json(const struct pp_guessed *g, struct pp_buf *out);
/* Of a message with so many bytes of text. Empty, unless `array` fits them. */
void pp_guessed_read(struct pp_guessed *g, const cJSON *array, size_t bytes);

/* What a measured speed-up by guesses says: 0, that it is not known, unless it is one of PP_SPEEDUP_TOKENS tokens or
 * more, and 1 at most if no guess stood. The clock's chances are all that is left of shorter answers. */
enum { PP_SPEEDUP_TOKENS = 32 };
float pp_speedup(double measured, double n_tokens, double n_accepted);

#endif
