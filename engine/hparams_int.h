/* hparams_int.h - checks shared by the files that read hyperparameters. Private to them and to engine/arch/. */
#ifndef PP_ENGINE_HPARAMS_INT_H
#define PP_ENGINE_HPARAMS_INT_H

#include "engine/hparams.h"

/* PP_ERR_FORMAT unless least <= v <= most; `what` names the number in the error. */
enum pp_code pp_check_range(const char *what, int64_t v, int64_t least, int64_t most, struct pp_error *err);
/* Checks n_layer alone, which must hold before any of the arrays of PP_MAX_LAYERS is filled. */
enum pp_code pp_check_layers(const struct pp_hparams *hp, struct pp_error *err);

#endif
