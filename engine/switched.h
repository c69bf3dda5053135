/* switched.h - LoRAs inside a model file, which tokens switch on. Private to the engine, on its thread. */
#ifndef PP_ENGINE_SWITCHED_H
#define PP_ENGINE_SWITCHED_H

#include <stdbool.h>

#include "engine/lora.h"

struct pp_engine;
struct pp_hparams;
struct pp_row;

/* Whether a tensor is one half of these: A [n, rank, n_in] or B [n, n_out, rank] of all adapters; files may have one of
 * zeros before them. */
bool pp_is_of_switched(const struct pp_hparams *hp, const char *name);

/* Loads the model's, if it has any; after pp_cpu_new. On failure pp_switched_free must still be called. */
enum pp_code pp_switched_new(struct pp_engine *e, struct pp_error *err);
void pp_switched_free(struct pp_engine *e);
/* How many adapters a row's set may have in addition to the user's. */
int pp_switched_extra(const struct pp_engine *e);
/* Reserves room in the backend for the set together with any of them. */
enum pp_code pp_switched_reserve(struct pp_engine *e, const struct pp_adapter_set *set, struct pp_error *err);
/* Gives each row of a step, which has its position and the user's adapters, the adapter that the tokens up to it switch
 * on, and replaces such tokens by those that the model reads instead. parents: [n], the row before each in its
 * sequence, or tree; -1: the committed tokens. Valid until the next step. */
void pp_switched_rows(struct pp_engine *e, const int *parents, int n, const struct pp_row *rows);

#endif
