/* missing.c - for errors: what pippin would need to run a family that it does not support. Names are
 * general.architecture of GGUF files, or classes in config.json without their usual ends, in lower-case letters and
 * digits only. */
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/word.h"

static const char diffusion[] = "answers that are not written from left to right (diffusion)";
static const char drafts[] = "a model to guess for (it only drafts for another one)";
static const char two_stacks[] = "an encoder beside the decoder";
static const char bert[] = "BERT's layers as a decoder (of BERT and its kin pippin runs encoders)";
static const char sound[] = "streams of sound beside the text";
static const char pictures[] = "layers that look at pictures";
static const char of_fla[] = "that kind of layers of flash-linear-attention, of which pippin runs RWKV 6 and 7";
static const char heard[] = "the part that hears, without which its text says nothing";
static const char speaks[] = "an output that writes text (it makes speech)";
static const char acts[] = "an output that writes text (it moves robots)";
static const char writes_sound[] = "an output that writes text from left to right (it writes down sound)";
static const char paints[] = "an output that writes text (it paints pictures)";
static const char marks[] = "an output that writes text (it judges tokens)";
static const char judges_pictures[] = "an output that writes text (it judges pictures)";
static const char fills[] = "an output that writes text from left to right (it fills gaps)";
static const char scores[] = "an output that writes text (it scores options)";
static const char kosmos[] = "Kosmos' own text part, with norms within both parts of its layers";
static const char finds[] = "an output that writes text (it finds things in pictures)";
static const char pangu[] = "keys and values that belong to no position, and several residual streams, beside latent "
                            "attention with windows and an index";
static const char moondream[] = "prompts whose first 730 positions are seen all at once";
static const char elsewhere[] = "its language model, which is a folder of its own (give that one with -m)";

static const struct {
    const char *name, *missing;
} families[] = {
    {"bailingmoelinear", "the gates and norms of the first models of its kind"},
    {"rwkv7qwen2", "RWKV 7's states behind rotated heads"},
    {"rwkv7qwen3", "RWKV 7's states behind rotated heads"},
    {"berrylm", "attention to what came out of earlier blocks, behind gates, and states that decay row by row beside "
                "heads of keys that several share"},
    {"interns1pro", "heads that are rotated by mixtures of waves (FoPE)"},
    {"openpanguv2", pangu},
    {"openpangu", pangu},
    {"unlimitedocr", "a window beside a prompt of which all stays in sight"},
    {"clef", scores},
    {"laya", scores},
    {"decision2", scores},
    {"lev", scores},
    {"kev", scores},
    {"nimble", scores},
    {"dory", "streams of unit length, and layers that are gone through several times behind gates"},
    {"limite", "mixtures of what came out of earlier layers, and embeddings among values"},
    {"lumma", "values that are the keys, and embeddings in two factors"},
    {"etetmoe", "experts of which each token has one, by names of its own in Llama's layers"},
    {"etetmoellama", "experts of which each token has one, by names of its own in Llama's layers"},
    {"aeva", "windows beside linear attention to all before them, experts in groups, and several residual streams"},
    {"clip", "a language model, which is another file (this one has what sees or hears)"},
    {"locateanything", finds},
    {"falconperception", finds},
    {"pi0", acts},
    {"qwen3tts", speaks},
    {"pockettts", speaks},
    {"qwen3omnimoetalker", speaks},
    {"qwen3omnimoetalkertext", speaks},
    {"qwen3omnimoetalkercodepredictor", speaks},
    {"granitespeech5", writes_sound},
    {"nemotron35asr", writes_sound},
    {"nemotronasrstreaming", writes_sound},
    {"parakeetrnnt", writes_sound},
    {"openaiprivacyfilter", marks},
    {"shieldgemma2", judges_pictures},
    {"imagegpt", paints},
    {"decisiontransformer", "an output that writes text (it plans moves)"},
    {"modernvbert", "an output that writes text (it makes vectors of pictures)"},
    {"esmc", fills},
    {"deepseek41", "blocks of which layers share keys, candidates that an index picks from, and embeddings of several "
                   "tokens within layers"},
    {"deepseekv41", "blocks of which layers share keys, candidates that an index picks from, and embeddings of several "
                    "tokens within layers"},
    {"dream", diffusion},
    {"llada", diffusion},
    {"lladamodellm", diffusion},
    {"lladamoe", diffusion},
    {"llada2moe", diffusion},
    {"llada2moemodellm", diffusion},
    {"rnd1", diffusion},
    {"sdar", diffusion},
    {"sdarmoe", diffusion},
    {"diffusiongemma", diffusion},
    {"diffusiongemmaforblockdiffusion", diffusion},
    {"diffusiongemmatext", diffusion},
    {"fastdllm", diffusion},
    {"fastdllmqwen", diffusion},
    {"nemotronlabsdiffusion", diffusion},
    {"trado", diffusion},
    {"xlnet", "answers that are not written from left to right (of any order)"},
    {"eagle3", drafts},
    {"dflash", drafts},
    {"museglimmerassistant", drafts},
    {"gemma4assistant", drafts},
    {"gemma4unifiedassistant", drafts},
    {"wavtokenizerdec", "a decoder of sound"},
    {"mllama", pictures},
    {"idefics", pictures},
    {"ideficsforvisiontext2text", pictures},
    {"cogagent", pictures},
    {"minicpmv", "to know which language model this version of it is built around"},
    {"minicpmo", "to know which language model this version of it is built around"},
    {"ultravox", elsewhere},
    {"vila", elsewhere},
    {"vilaforcasuallm", elsewhere},
    {"nvila", elsewhere},
    {"llavatopdownllama", elsewhere},
    {"granite4vision", "the LoRA that its folder has beside its weights, which are another model's without it"},
    {"blt", "patches of bytes, and what makes bytes of them again"},
    {"cpmant", "relative positions in buckets, and prompts in segments"},
    {"cpmbee", "relative positions in buckets, and prompts in segments"},
    {"reformer", "attention to positions of the same hash, and layers that are reversed"},
    {"reformermodelwithlmhead", "attention to positions of the same hash, and layers that are reversed"},
    {"xlm", "embeddings of languages, and text that is cut into words as Moses does it"},
    {"xlmwith", "embeddings of languages, and text that is cut into words as Moses does it"},
    {"paligemma", "a prompt of which all is seen at once"},
    {"gptneoxjapanese", "a tokenizer for Japanese of its own"},
    {"moshi", sound},
    {"musicgen", sound},
    {"musicgenmelody", sound},
    {"musicgendecoder", sound},
    {"musicgenmelodydecoder", sound},
    {"csm", sound},
    {"nemotronvoicechat", sound},
    {"dia", sound},
    {"higgsaudiov2", sound},
    {"kyutaispeechtotext", sound},
    {"vibevoice", sound},
    {"axk2", "gates of low rank behind norms, and gates of heads, beside latent attention with an index"},
    {"dots3", "latent attention of two sizes, with windows and without, and an index that layers share"},
    {"hunyuan", "keys and values that neighbouring layers share (CLA)"},
    {"rugpt3xl", "GPT-2's tensors by names of its own, which only GGUF files of it have as GPT-2 does"},
    {"molmopoint", "an output that points into pictures"},
    {"inkling", "scores that are learned for each distance, and short convolutions within layers"},
    {"inklingtext", "scores that are learned for each distance, and short convolutions within layers"},
    {"inklingmm", "scores that are learned for each distance, and short convolutions within layers"},
    {"motif3", "latent attention as a difference"},
    {"nemotronflash", "states of several kinds, and tokens before each text"},
    {"stripedhyena", "Hyena's long filters"},
    {"hyena", "Hyena's long filters"},
    {"evo", "Hyena's long filters"},
    {"pangupromoe", "experts that are picked from each of several groups"},
    {"pangupromoev2", "keys and values that belong to no position (param_sink_number), in front of all others"},
    {"panguultramoe", "norms in front of and behind each part beside latent attention"},
    {"phixtral", "a mixture of experts in Phi 2's layers"},
    {"mobilellm", "layers that neighbours share (layer_sharing)"},
    {"internlm2ve", "experts for pictures within layers"},
    {"internlmxcomposer2", "adapters for pictures within layers"},
    {"moondream1", moondream},
    {"hfmoondream", moondream},
    {"moondream3", "queries and values that are multiplied by what is made of their position"},
    {"falconocr", "heads that are rotated by a picture's rows and columns, too"},
    {"zaya1vl", "adapters for pictures within layers"},
    {"evolla", "layers that look at proteins"},
    {"afm7", "layers that see the keys of an earlier one (Apple's foundation models), and adapters in their folder"},
    {"transfoxl", "positions relative to each other, and what the segment before left behind"},
    {"mega", "moving averages with gates of their own, and attention within chunks"},
    {"fairseq2llama", "Llama's tensors by their usual names (fairseq2 has its own)"},
    {"openllama", "Open-Llama's norm of embeddings"},
    {"gptsanjapanese", "a prompt of which all is seen at once, and experts that are left out when full"},
    {"git", bert},
    {"kosmos2", kosmos},
    {"kosmos2text", kosmos},
    {"kosmos25", kosmos},
    {"qwen3asr", heard},
    {"glmasr", heard},
    {"mimoasr", heard},
    {"voxtralrealtime", heard},
    {"voxtralrealtimetext", heard},
    {"qwen3asrrealtimegeneration", heard},
    {"vibevoiceasr", heard},
    {"funasr", heard},
    {"glmimage", "what makes pictures"},
    {"bagel", "what makes pictures"},
    {"abc", of_fla},
    {"comba", of_fla},
    {"deltanet", of_fla},
    {"deltaformer", of_fla},
    {"forgettingtransformer", of_fla},
    {"gateddeltanet", of_fla},
    {"gateddeltaproduct", of_fla},
    {"gla", of_fla},
    {"gsa", of_fla},
    {"hgrn", of_fla},
    {"hgrn2", of_fla},
    {"kda", of_fla},
    {"lightnet", of_fla},
    {"linearattn", of_fla},
    {"linearattention", of_fla},
    {"loglinearmamba2", of_fla},
    {"mamba3", of_fla},
    {"mesanet", of_fla},
    {"mom", of_fla},
    {"pathattn", of_fla},
    {"pathattention", of_fla},
    {"retnet", of_fla},
    {"rodimus", of_fla},
    {"mla", of_fla},
    {"moba", of_fla},
    {"nsa", of_fla},
    {"parallax", of_fla},
    {"precondgateddeltanet", of_fla},
    {"precondkda", of_fla},
    {"raven", of_fla},
    {"walltransformer", of_fla},
    {"yoco", of_fla},
    {"samba", of_fla},
    {"rwkv5", "RWKV 5's states (of RWKV pippin runs 4, 6 and 7)"},
    {"t5", two_stacks},
    {"mt5", two_stacks},
    {"umt5", two_stacks},
    {"longt5", two_stacks},
    {"t5gemma", two_stacks},
    {"t5gemmamodule", two_stacks},
    {"t5gemma2", two_stacks},
    {"switchtransformers", two_stacks},
    {"bart", two_stacks},
    {"mbart", two_stacks},
    {"marian", two_stacks},
    {"marianmt", two_stacks},
    {"mvp", two_stacks},
    {"led", two_stacks},
    {"pegasus", two_stacks},
    {"bigbirdpegasus", two_stacks},
    {"plbart", two_stacks},
    {"blenderbot", two_stacks},
    {"blenderbotsmall", two_stacks},
    {"prophetnet", two_stacks},
    {"m2m100", two_stacks},
    {"nllbmoe", two_stacks},
    {"fsmt", two_stacks},
    {"whisper", two_stacks},
    {"moonshinestreaming", two_stacks},
    {"cohereasr", two_stacks},
    {"ppformulanet", two_stacks},
    {"speechtotext", two_stacks},
    {"speech2text", two_stacks},
    {"seamlessm4t", two_stacks},
    {"seamlessm4tv2", two_stacks},
    {"florence2", two_stacks},
    {"blip", two_stacks},
    {"pix2struct", two_stacks},
    {"pix2structtext", two_stacks},
    {"trocr", two_stacks},
    {"encoderdecoder", two_stacks},
    {"visionencoderdecoder", two_stacks},
    {"udop", two_stacks},
    {"pegasusx", two_stacks},
    {"xlmprophetnet", two_stacks},
    {"moonshine", two_stacks},
    {"pop2piano", two_stacks},
    {"speecht5", two_stacks},
    {"speechencoderdecoder", two_stacks},
    {"nemotronparse", two_stacks},
    {"bark", sound},
    {"clvp", sound},
    {"nezha", bert},
    {"qdqbert", bert},
    {"erniem", bert},
    {"t5encoder", "positions as T5 has them"},
    {"bertgeneration", bert},
    {"bertgenerationdecoder", bert},
    {"bigbird", bert},
    {"camembert", bert},
    {"data2vectext", bert},
    {"electra", bert},
    {"ernie", bert},
    {"megatronbert", bert},
    {"rembert", bert},
    {"roberta", bert},
    {"robertaprelayernorm", bert},
    {"rocbert", bert},
    {"roformer", bert},
    {"xlmroberta", bert},
    {"xlmrobertaxl", bert},
    {"xmod", bert},
};

/* Parts of class names that tell what a model is for, whatever its family. */
static const struct {
    const char *part, *missing;
} parts[] = {
    {"eagle3", drafts},
    {"dflash", drafts},
    {"dspark", drafts},
    {"eaglellama", drafts},
    {"eaglemistral", drafts},
    {"eagleminicpm", drafts},
    {"eagledeepseek", drafts},
    {"forcausallmeagle", drafts},
    {"medusa", drafts},
    {"mtpmodel", drafts},
    {"speculator", drafts},
    {"sequenceclassification", "an output that writes text (it judges texts)"},
    {"tokenclassification", marks},
    {"questionanswering", "an output that writes text (it marks answers in one)"},
    {"multiplechoice", "an output that writes text (it judges texts)"},
    {"rewardmodel", "an output that writes text (it judges texts)"},
    {"maskedlm", fills},
    {"imageclassification", judges_pictures},
    {"objectdetection", finds},
    {"texttospeech", speaks},
    {"actionprediction", acts},
    {"imagemodeling", paints},
    {"forctc", writes_sound},
    {"forrnnt", writes_sound},
    {"fortdt", writes_sound},
};

/* Reduces a name to lower-case letters and digits, without the usual ends of class names. */
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
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i].part))
            return parts[i].missing;
    return NULL;
}
