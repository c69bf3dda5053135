/* missing.c - for errors: what pippin would need to run a family that it does not support. Names are
 * general.architecture of GGUF files, or classes in config.json without their usual ends, in lower-case letters and
 * digits only. */
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/word.h"

static const char diffusion[] = "diffusion decoding (answers not written from left to right)";
static const char drafts[] = "a target model (this one only drafts for another)";
static const char two_stacks[] = "an encoder in addition to the decoder";
static const char bert[] = "BERT layers used as a decoder (pippin runs them as encoders only)";
static const char sound[] = "audio streams in addition to the text";
static const char pictures[] = "vision layers";
static const char of_fla[] = "this kind of flash-linear-attention layer (pippin runs only RWKV 6 and 7 of these)";
static const char heard[] = "its audio encoder, without which the text part is of no use";
static const char speaks[] = "a text output (it produces speech)";
static const char acts[] = "a text output (it controls robots)";
static const char writes_sound[] = "an autoregressive text output (it transcribes speech)";
static const char paints[] = "a text output (it generates images)";
static const char marks[] = "a text output (it classifies tokens)";
static const char judges_pictures[] = "a text output (it classifies images)";
static const char fills[] = "an autoregressive text output (it fills masked tokens)";
static const char scores[] = "a text output (it scores options)";
static const char kosmos[] = "Kosmos' text decoder, with norms inside attention and feed-forward blocks";
static const char finds[] = "a text output (it locates objects in images)";
static const char pangu[] = "attention sinks as learned keys and values, and several residual streams, with latent "
                            "attention, windows and an index";
static const char moondream[] = "a bidirectional prefix of 730 positions";
static const char elsewhere[] = "its language model, which is a separate folder (give that one with -m)";

static const struct {
    const char *name, *missing;
} families[] = {
    {"bailingmoelinear", "the gates and norms of the first models of this family"},
    {"rwkv7qwen2", "RWKV 7 states with RoPE"},
    {"rwkv7qwen3", "RWKV 7 states with RoPE"},
    {"berrylm", "gated attention to the outputs of earlier blocks, and states with row-wise decay and grouped key "
                "heads"},
    {"interns1pro", "Fourier position embeddings (FoPE)"},
    {"openpanguv2", pangu},
    {"openpangu", pangu},
    {"unlimitedocr", "a sliding window that always keeps the prompt"},
    {"clef", scores},
    {"laya", scores},
    {"decision2", scores},
    {"lev", scores},
    {"kev", scores},
    {"nimble", scores},
    {"dory", "unit-length residual streams, and gated layers that are run several times"},
    {"limite", "mixtures of the outputs of earlier layers, and value embeddings"},
    {"lumma", "keys that are also the values, and factorised embeddings"},
    {"etetmoe", "experts of which each token has one, by names of its own in Llama's layers"},
    {"etetmoellama", "experts of which each token has one, by names of its own in Llama's layers"},
    {"aeva", "windowed attention combined with linear attention, grouped experts, and several residual streams"},
    {"clip", "a language model, which is a separate file (this one is a vision or audio encoder)"},
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
    {"decisiontransformer", "a text output (it plans actions)"},
    {"modernvbert", "a text output (it embeds images)"},
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
    {"xlnet", "permutation decoding (answers not written from left to right)"},
    {"eagle3", drafts},
    {"dflash", drafts},
    {"museglimmerassistant", drafts},
    {"gemma4assistant", drafts},
    {"gemma4unifiedassistant", drafts},
    {"wavtokenizerdec", "an audio decoder"},
    {"mllama", pictures},
    {"idefics", pictures},
    {"ideficsforvisiontext2text", pictures},
    {"cogagent", pictures},
    {"minicpmv", "to know which language model this version is built around"},
    {"minicpmo", "to know which language model this version is built around"},
    {"ultravox", elsewhere},
    {"vila", elsewhere},
    {"vilaforcasuallm", elsewhere},
    {"nvila", elsewhere},
    {"llavatopdownllama", elsewhere},
    {"granite4vision", "the LoRA in its folder, without which the weights are a different model's"},
    {"blt", "byte patches, with an encoder and a decoder for them"},
    {"cpmant", "relative positions in buckets, and prompts in segments"},
    {"cpmbee", "relative positions in buckets, and prompts in segments"},
    {"reformer", "LSH attention and reversible layers"},
    {"reformermodelwithlmhead", "LSH attention and reversible layers"},
    {"xlm", "language embeddings and the Moses tokenizer"},
    {"xlmwith", "language embeddings and the Moses tokenizer"},
    {"paligemma", "bidirectional attention over the prompt"},
    {"gptneoxjapanese", "its own Japanese tokenizer"},
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
    {"axk2", "low-rank gates after norms, and head gates, with latent attention and an index"},
    {"dots3", "latent attention of two sizes, with and without windows, and an index shared by layers"},
    {"hunyuan", "keys and values shared by neighbouring layers (CLA)"},
    {"rugpt3xl", "its own names of GPT-2's tensors (use a GGUF file, which has GPT-2's names)"},
    {"molmopoint", "an output that points into images"},
    {"inkling", "learned relative position scores, and short convolutions within layers"},
    {"inklingtext", "learned relative position scores, and short convolutions within layers"},
    {"inklingmm", "learned relative position scores, and short convolutions within layers"},
    {"motif3", "differential latent attention"},
    {"nemotronflash", "states of several kinds, and meta tokens before each text"},
    {"stripedhyena", "Hyena's long filters"},
    {"hyena", "Hyena's long filters"},
    {"evo", "Hyena's long filters"},
    {"pangupromoe", "experts picked from each of several groups"},
    {"pangupromoev2", "learned keys and values before all others (param_sink_number)"},
    {"panguultramoe", "norms before and after each block together with latent attention"},
    {"phixtral", "a mixture of experts in Phi 2's layers"},
    {"mobilellm", "layers shared by neighbours (layer_sharing)"},
    {"internlm2ve", "vision experts within layers"},
    {"internlmxcomposer2", "adapters for pictures within layers"},
    {"moondream1", moondream},
    {"hfmoondream", moondream},
    {"moondream3", "position-dependent scaling of queries and values"},
    {"falconocr", "two-dimensional RoPE over image rows and columns"},
    {"zaya1vl", "adapters for pictures within layers"},
    {"evolla", "layers that look at proteins"},
    {"afm7", "layers that reuse an earlier layer's keys (Apple's foundation models), and the adapters in their folder"},
    {"transfoxl", "relative positions, and the memory of the previous segment"},
    {"mega", "gated moving averages, and attention within chunks"},
    {"fairseq2llama", "Llama's tensors under their usual names (fairseq2 uses its own)"},
    {"openllama", "Open-Llama's norm of embeddings"},
    {"gptsanjapanese", "bidirectional attention over the prompt, and experts with limited capacity"},
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
    {"rwkv5", "RWKV 5's states (pippin runs RWKV 4, 6 and 7)"},
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
    {"sequenceclassification", "a text output (it classifies texts)"},
    {"tokenclassification", marks},
    {"questionanswering", "a text output (it marks answers in a text)"},
    {"multiplechoice", "a text output (it classifies texts)"},
    {"rewardmodel", "a text output (it classifies texts)"},
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
