#include "engine/types.h"

#include "engine/base/word.h"

/* Ids, block sizes and names as ggml.h defines them. Ids that ggml withdrew (5, 31 to 33, 36 to 38) are unknown. */
static const struct pp_type_info types[PP_TYPE_LIMIT] = {
    [0] = {"F32", 1, 4, 1},
    [1] = {"F16", 1, 2, 1},
    [2] = {"Q4_0", 32, 18, 1},
    [3] = {"Q4_1", 32, 20, 1},
    [4] = {"MXFP4-pairs", 32, 17, 0},
    [6] = {"Q5_0", 32, 22, 1},
    [7] = {"Q5_1", 32, 24, 1},
    [8] = {"Q8_0", 32, 34, 1},
    [9] = {"Q8_1", 32, 36, 0},
    [10] = {"Q2_K", 256, 84, 1},
    [11] = {"Q3_K", 256, 110, 1},
    [12] = {"Q4_K", 256, 144, 1},
    [13] = {"Q5_K", 256, 176, 1},
    [14] = {"Q6_K", 256, 210, 1},
    [15] = {"Q8_K", 256, 292, 0},
    [16] = {"IQ2_XXS", 256, 66, 1},
    [17] = {"IQ2_XS", 256, 74, 1},
    [18] = {"IQ3_XXS", 256, 98, 1},
    [19] = {"IQ1_S", 256, 50, 1},
    [20] = {"IQ4_NL", 32, 18, 1},
    [21] = {"IQ3_S", 256, 110, 1},
    [22] = {"IQ2_S", 256, 82, 1},
    [23] = {"IQ4_XS", 256, 136, 1},
    [24] = {"I8", 1, 1, 0},
    [25] = {"I16", 1, 2, 0},
    [26] = {"I32", 1, 4, 0},
    [27] = {"I64", 1, 8, 0},
    [28] = {"F64", 1, 8, 0},
    [29] = {"IQ1_M", 256, 56, 1},
    [30] = {"BF16", 1, 2, 1},
    [34] = {"TQ1_0", 256, 54, 1},
    [35] = {"TQ2_0", 256, 66, 1},
    [39] = {"MXFP4", 32, 17, 1},
    [40] = {"NVFP4", 64, 36, 0},
    [41] = {"Q1_0", 128, 18, 0},
    [42] = {"Q2_0", 64, 18, 0},
};

const struct pp_type_info *pp_type_info(uint32_t type)
{
    static const struct pp_type_info unknown = {0};
    return type < PP_TYPE_LIMIT ? &types[type] : &unknown;
}

int pp_type_by_name(const char *name)
{
    for (int i = 0; i < PP_TYPE_LIMIT; i++)
        if (types[i].name && pp_casecmp(types[i].name, name) == 0)
            return i;
    return -1;
}

size_t pp_type_row_bytes(uint32_t type, int64_t n)
{
    const struct pp_type_info *t = pp_type_info(type);
    size_t bytes;
    if (!t->name || n < 0 || n % t->block_elements != 0)
        return 0;
    if (__builtin_mul_overflow((size_t)(n / t->block_elements), (size_t)t->block_bytes, &bytes))
        return 0;
    return bytes;
}
