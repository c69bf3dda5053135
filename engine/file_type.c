#include "engine/file_type.h"


#include "engine/base/word.h"
#include "engine/types.h"

enum {
    GUESSED = 1024,   /* a flag that llama.cpp may set */
    OLLAMA_MXFP4 = 4, /* a withdrawn id that ollama reused */
};

static const char *const names[] = {
    [0] = "F32",      [1] = "F16",      [2] = "Q4_0",     [3] = "Q4_1",     [7] = "Q8_0",     [8] = "Q5_0",
    [9] = "Q5_1",     [10] = "Q2_K",    [11] = "Q3_K_S",  [12] = "Q3_K_M",  [13] = "Q3_K_L",  [14] = "Q4_K_S",
    [15] = "Q4_K_M",  [16] = "Q5_K_S",  [17] = "Q5_K_M",  [18] = "Q6_K",    [19] = "IQ2_XXS", [20] = "IQ2_XS",
    [21] = "Q2_K_S",  [22] = "IQ3_XS",  [23] = "IQ3_XXS", [24] = "IQ1_S",   [25] = "IQ4_NL",  [26] = "IQ3_S",
    [27] = "IQ3_M",   [28] = "IQ2_S",   [29] = "IQ2_M",   [30] = "IQ4_XS",  [31] = "IQ1_M",   [32] = "BF16",
    [36] = "TQ1_0",   [37] = "TQ2_0",   [38] = "MXFP4",
};

enum { N_NAMES = sizeof names / sizeof *names };

const char *pp_file_type_name(int64_t id)
{
    if (id >= GUESSED)
        id -= GUESSED;
    if (id == OLLAMA_MXFP4)
        id = 38;
    return id >= 0 && id < N_NAMES ? names[id] : NULL;
}

int pp_file_type_by_name(const char *name)
{
    for (int i = 0; i < N_NAMES; i++)
        if (names[i] && pp_casecmp(names[i], name) == 0)
            return i;
    return -1;
}

int pp_file_type_of(uint32_t tensor_type)
{
    const char *name = pp_type_info(tensor_type)->name;
    return name ? pp_file_type_by_name(name) : -1;
}
