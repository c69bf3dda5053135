/* missing.c - what families that pippin does not run need and it lacks, for errors. Names are those of GGUF files, and
 * of config.json without what they end with, in small letters and digits only. */
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/word.h"

static const struct {
    const char *name, *missing;
} families[] = {
    {"bailingmoelinear", "the gates and norms of the first models of its kind"},
    {"rwkv7qwen2", "RWKV 7's states behind rotated heads"},
    {"rwkv7qwen3", "RWKV 7's states behind rotated heads"},
    {"talkie", "its layers, of which there are files of several kinds that cannot be told apart"},
    {"deepseek41", "blocks of which layers share keys, candidates that an index picks from, and embeddings of several "
                   "tokens within layers"},
    {"deepseekv41", "blocks of which layers share keys, candidates that an index picks from, and embeddings of several "
                    "tokens within layers"},
    {"dream", "answers that are not written from left to right (diffusion)"},
    {"llada", "answers that are not written from left to right (diffusion)"},
    {"lladamoe", "answers that are not written from left to right (diffusion)"},
    {"rnd1", "answers that are not written from left to right (diffusion)"},
    {"eagle3", "a model to guess for (it only drafts for another one)"},
    {"dflash", "a model to guess for (it only drafts for another one)"},
    {"museglimmerassistant", "a model to guess for (it only drafts for another one)"},
    {"gemma4assistant", "a model to guess for (it only drafts for another one)"},
    {"wavtokenizerdec", "a decoder of sound"},
    {"mllama", "layers that look at pictures"},
    {"llada2moe", "answers that are not written from left to right (diffusion)"},
    {"llada2moemodellm", "answers that are not written from left to right (diffusion)"},
    {"sdar", "answers that are not written from left to right (diffusion)"},
    {"sdarmoe", "answers that are not written from left to right (diffusion)"},
    {"xlnet", "answers that are not written from left to right (of any order)"},
    {"hrmtext", "two stacks of layers that are gone through in cycles, and a prompt of which all is seen at once"},
    {"xlstm", "the xLSTM's states, whose gates are exponential"},
    {"blt", "patches of bytes, and what makes bytes of them again"},
    {"cpmant", "relative positions in buckets, and prompts in segments"},
    {"reformer", "attention to positions of the same hash, and layers that are reversed"},
    {"xlm", "embeddings of languages, and text that is cut into words as Moses does it"},
    {"xlmwith", "embeddings of languages, and text that is cut into words as Moses does it"},
    {"graniteswitch", "adapters that tokens switch on"},
    {"paligemma", "a prompt of which all is seen at once"},
    {"moshi", "streams of sound beside the text"},
    {"gptneoxjapanese", "a tokenizer for Japanese of its own"},
    {"t5", "an encoder beside the decoder"},
    {"mt5", "an encoder beside the decoder"},
    {"umt5", "an encoder beside the decoder"},
    {"bart", "an encoder beside the decoder"},
    {"mbart", "an encoder beside the decoder"},
    {"marian", "an encoder beside the decoder"},
    {"marianmt", "an encoder beside the decoder"},
    {"pegasus", "an encoder beside the decoder"},
    {"plbart", "an encoder beside the decoder"},
    {"blenderbot", "an encoder beside the decoder"},
    {"prophetnet", "an encoder beside the decoder"},
    {"m2m100", "an encoder beside the decoder"},
    {"whisper", "an encoder beside the decoder"},
    {"t5encoder", "positions as T5 has them"},
};

/* Small letters and digits of a name, without what classes end with. */
static void plain(const char *name, char out[64])
{
    static const char *const ends[] = {"forcausallm", "forconditionalgeneration", "lmheadmodel", "model"};
    size_t n = 0;
    for (; *name && n + 1 < 64; name++) {
        const char c = pp_lower(*name);
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
            out[n++] = c;
    }
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
