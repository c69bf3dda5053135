/* switched.h - LoRAs that a model has within itself and tokens switch on. Private to the engine; its thread's. */
#ifndef PP_ENGINE_SWITCHED_H
#define PP_ENGINE_SWITCHED_H

#include <stdbool.h>

#include "engine/lora.h"

struct pp_engine;
struct pp_hparams;
struct pp_row;

/* Whether a tensor is a half of such: A [n, rank, n_in] or B [n, n_out, rank] of all adapters, in files behind one of
 * zeros. */
bool pp_is_of_switched(const struct pp_hparams *hp, const char *name);

/* Loads the model's, if it has any, behind pp_cpu_new. On failure pp_switched_free is still to be called. */
enum pp_code pp_switched_new(struct pp_engine *e, struct pp_error *err);
void pp_switched_free(struct pp_engine *e);
/* How many more there are in rows' sets at once than a user chose. */
int pp_switched_beside(const struct pp_engine *e);
/* Room in the backend for any of them beside a set. */
enum pp_code pp_switched_reserve(struct pp_engine *e, const struct pp_adapter_set *set, struct pp_error *err);
/* Gives a step's rows, which are placed and have their other adapters, those that the tokens before them switch on, and
 * the tokens that theirs are read as. parents: [n], the row before each in its sequence, or tree; -1: what is
 * committed. Until the next step. */
void pp_switched_rows(struct pp_engine *e, const int *parents, int n, const struct pp_row *rows);

#endif
