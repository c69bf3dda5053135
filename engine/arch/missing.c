/* missing.c - what families that pippin does not run need and it lacks, for errors. Names are those of GGUF files, and
 * of config.json without what they end with, in small letters and digits only. */
#include <ctype.h>
#include <string.h>

#include "engine/arch/arch.h"

#define STATES "layers with a state instead of a cache"
#define LATENT "attention to a compressed cache (MLA)"
#define SHARED "an expert that every token uses"
#define SIGMOIDS "experts that are chosen by sigmoids"

static const struct {
    const char *name, *missing;
} families[] = {
    {"kimilinear", STATES " (delta rule), and " LATENT},
    {"olmohybrid", STATES " (gated delta rule)"},
    {"mamba", STATES " (Mamba)"},
    {"mamba2", STATES " (Mamba 2)"},
    {"falconmamba", STATES " (Mamba)"},
    {"jamba", STATES " (Mamba)"},
    {"plamo2", STATES " (Mamba 2)"},
    {"rwkv6", STATES " (RWKV)"},
    {"rwkv6qwen2", STATES " (RWKV)"},
    {"rwkv7", STATES " (RWKV)"},
    {"arwkv7", STATES " (RWKV)"},
    {"step35", SIGMOIDS ", and " SHARED},
    {"mllama", "layers that look at pictures"},
    {"t5", "an encoder beside the decoder"},
    {"t5encoder", "positions as T5 has them"},
    {"gemmaembedding", "attention that looks ahead in Gemma"},
    {"modernbert", "ModernBERT's layers"},
};

/* Small letters and digits of a name, without what classes end with. */
static void plain(const char *name, char out[64])
{
    static const char *const ends[] = {"forcausallm", "forconditionalgeneration", "lmheadmodel", "model"};
    size_t n = 0;
    for (; *name && n + 1 < 64; name++)
        if (isalnum((unsigned char)*name))
            out[n++] = (char)tolower((unsigned char)*name);
    out[n] = 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t m = strlen(ends[i]);
        if (n > m && strcmp(out + n - m, ends[i]) == 0) {
            out[n - m] = 0;
            return;
        }
    }
}

const char *pp_arch_missing(const char *family)
{
    char name[64];
    plain(family, name);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].name, name) == 0)
            return families[i].missing;
    return NULL;
}
