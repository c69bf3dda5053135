#include "engine/cpu/matmul.h"

#include "engine/cpu/matmul_sets.h"

const struct pp_matmul_kernels *pp_matmul_kernels(enum pp_isa isa)
{
    (void)isa;
    return &pp_matmul_scalar;
}
