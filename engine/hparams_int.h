/* hparams_int.h - what the files that read and check hyperparameters share. */
#ifndef PP_ENGINE_HPARAMS_INT_H
#define PP_ENGINE_HPARAMS_INT_H

#include "engine/hparams.h"

/* PP_ERR_FORMAT: the model says that `what` is v, which is not least .. most. */
enum pp_code pp_check_range(const char *what, int64_t v, int64_t least, int64_t most, struct pp_error *err);
/* Before anything is noted of each layer. */
enum pp_code pp_check_layers(const struct pp_hparams *hp, struct pp_error *err);

#endif
