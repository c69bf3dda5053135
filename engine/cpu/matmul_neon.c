/* matmul_neon.c - the products for every 64-bit ARM: bytes are multiplied to 16 bits, added up there and widened. */
#if defined(__aarch64__)
#define KERNEL_SET pp_matmul_neon
#include "engine/cpu/matmul_arm_body.h"
#else
typedef int pp_matmul_neon_is_for_aarch64;
#endif
