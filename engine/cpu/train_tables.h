/* train_tables.h - the tables that train_body.h makes, one per build; private to engine/cpu. */
#ifndef PP_CPU_TRAIN_TABLES_H
#define PP_CPU_TRAIN_TABLES_H

#include "engine/cpu/train.h"

extern const struct pp_train_ops pp_train_scalar;
#if defined(__x86_64__)
extern const struct pp_train_ops pp_train_fma, pp_train_avx2, pp_train_avx512;
#endif
#if defined(__aarch64__)
extern const struct pp_train_ops pp_train_neon;
#endif

#endif
