/* matmul_i8mm.c - the products for ARM with smmla, which multiplies 2 rows by 8 columns with 2 activation rows; a
 * single activation row is served by sdot. */
#if defined(__aarch64__)
#define KERNEL_SET pp_matmul_i8mm
#include "engine/cpu/matmul_arm_body.h"
#else
typedef int pp_matmul_i8mm_is_for_aarch64;
#endif
