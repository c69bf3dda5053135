/* matmul_dotprod.c - the products for ARM with sdot, which multiplies 4 rows by 4 columns with 4 activations. */
#if defined(__aarch64__)
#define KERNEL_SET pp_matmul_dotprod
#include "engine/cpu/matmul_arm_body.h"
#else
typedef int pp_matmul_dotprod_is_for_aarch64;
#endif
