/* ops_tables.h - the tables that ops_body.h makes, one per build; private to engine/cpu. */
#ifndef PP_CPU_OPS_TABLES_H
#define PP_CPU_OPS_TABLES_H

#include "engine/cpu/ops.h"

extern const struct pp_cpu_ops pp_ops_scalar;
#if defined(__x86_64__)
extern const struct pp_cpu_ops pp_ops_fma, pp_ops_avx2, pp_ops_avxvnni, pp_ops_avx512, pp_ops_amx;
#endif
#if defined(__aarch64__)
extern const struct pp_cpu_ops pp_ops_neon, pp_ops_dotprod;
#endif

#endif
