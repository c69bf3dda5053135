/* soft_train_avx512.c - the AVX-512 kernels of training over the software model of the instructions. */
#if defined(__x86_64__)
#include "tests/soft_avx512.h"

#define pp_train_avx512 pp_train_avx512_soft
#include "engine/cpu/train_avx512.c"
#endif
