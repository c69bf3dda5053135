/* options_table.c - the tables of all commands and options, used by the parser, --help, completion and the test of
 * the manual. */
#include <string.h>

#include "src/options_internal.h"

#define PP_BENCH_WORDS                                                                                                 \
    "[quick | depth | rows | threads | kv | kernels | memory | micro | start | tokenizer | resume | several | " \
    "lora | draft | trace | sessions | all]..."

const struct pp_command_spec pp_command_specs[PP_CMD_COUNT] = {
    [PP_CMD_CHAT] = {"chat", "", NULL, 0, "the full-screen chat (the default command)"},
    [PP_CMD_RUN] = {"run", "", NULL, 0, "answer one prompt: -p, stdin, or both"},
    [PP_CMD_SESSIONS] = {"sessions",
                         "[list | search TEXT | show [ID] | rename ID TITLE | export ID... | import FILE... | "
                         "backup FILE | rm ID... | forget ID...]",
                         "list search show rename export import backup rm forget", PP_MAX_POSITIONAL,
                         "saved conversations"},
    [PP_CMD_MODELS] = {"models",
                       "[list | add PATH... | pull URL | info NAME... | tag NAME TAG... | untag TAG... | rm NAME...]",
                       "list add pull info tag untag rm", PP_MAX_POSITIONAL, "register, list and download models"},
    [PP_CMD_LORA] = {"lora", "[list | info FILE... | train FILE]", "list info train", PP_MAX_POSITIONAL,
                     "list, inspect and train LoRA adapters"},
    [PP_CMD_TOKENIZE] = {"tokenize", "", NULL, 0, "turn text into a JSON array of token ids"},
    [PP_CMD_DETOKENIZE] = {"detokenize", "", NULL, 0, "turn JSON arrays of token ids, one a line, into text"},
    [PP_CMD_TEMPLATE] = {"template", "", NULL, 0, "render messages (JSON on stdin) with the chat template"},
    [PP_CMD_LOGITS] = {"logits", "", NULL, 0, "write the logits for given token ids as safetensors"},
    [PP_CMD_PERPLEXITY] = {"perplexity", "", NULL, 0, "measure how well a model predicts a text"},
    [PP_CMD_BENCH] = {"bench", PP_BENCH_WORDS, NULL, PP_MAX_POSITIONAL,
                      "measure speed: prefill, decode and their parts"},
    [PP_CMD_EMBED] = {"embed", "", NULL, 0, "turn lines of text into vectors (one JSON array a line)"},
    [PP_CMD_CONVERT] = {"convert", "SRC DST", NULL, 2,
                        "convert models and adapters between GGUF, Hugging Face and MLX"},
    [PP_CMD_IMATRIX] = {"imatrix", "", NULL, 0, "compute an importance matrix, for better quantised models"},
    [PP_CMD_QUANTIZE] = {"quantize", "SRC DST TYPE", NULL, 3, "make a model smaller: Q5_K_M, Q4_K_M, ..."},
    [PP_CMD_DOCTOR] = {"doctor", "", NULL, 0, "check this machine: CPU, memory, folders, terminal"},
};

static const struct pp_word_help session_words[] = {
    {"list", "list the conversations, newest first (default)"},
    {"search TEXT", "list those that contain all these words"},
    {"show ID", "print a conversation"},
    {"rename ID TITLE", "give a conversation another title"},
    {"export ID...", "write conversations as Markdown, JSON or JSONL"},
    {"import FILE...", "read exported conversations, of other programs too"},
    {"backup FILE", "copy all conversations to a new file"},
    {"rm ID...", "delete conversations, without asking"},
    {"forget ID...", "delete their saved KV caches; the messages stay"},
    {NULL, NULL},
};
static const struct pp_word_help model_words[] = {
    {"list", "list the registered models (default)"},
    {"add PATH...", "register files, folders, or all models below a folder; nothing is copied"},
    {"pull URL", "download a model: hf:OWNER/NAME, ollama:NAME, or https://..."},
    {"info NAME...", "describe models, and compare the memory they need with the free memory"},
    {"tag NAME TAG...", "give a model further names"},
    {"untag TAG...", "remove tags"},
    {"rm NAME...", "remove models from the list; their files stay"},
    {NULL, NULL},
};
static const struct pp_word_help lora_words[] = {
    {"list", "list the adapters that can be used by name (default)"},
    {"info FILE...", "show what an adapter changes; with -m, whether it fits that model"},
    {"train FILE", "train an adapter from examples (JSONL)"},
    {NULL, NULL},
};
static const struct pp_word_help bench_words[] = {
    {"quick", "prefill and decode (default)"},
    {"depth", "the same with a full context"},
    {"rows", "passes over several tokens at once"},
    {"threads", "with 1, 2, 4, ... threads"},
    {"kv", "with every type of KV cache"},
    {"kernels", "where the time goes, by kind of stage"},
    {"memory", "resident memory, and what takes it"},
    {"micro", "matrix products and attention alone"},
    {"start", "start of the program, loading, first token"},
    {"tokenizer", "text to tokens and back"},
    {"resume", "saving and restoring KV caches"},
    {"several", "conversations that are answered together"},
    {"lora", "the cost of adapters"},
    {"draft", "the gain of speculative decoding"},
    {"trace", "requests for many different adapters"},
    {"sessions", "listing, searching and opening conversations"},
    {"all", "all but draft and sessions"},
    {NULL, NULL},
};

const struct pp_word_help *pp_command_words(enum pp_cmd cmd)
{
    return cmd == PP_CMD_SESSIONS ? session_words
           : cmd == PP_CMD_MODELS ? model_words
           : cmd == PP_CMD_LORA   ? lora_words
           : cmd == PP_CMD_BENCH  ? bench_words
                                  : NULL;
}

enum pp_cmd pp_command_spec_find(const char *name)
{
    int i = 0;
    while (i < PP_CMD_COUNT && strcmp(pp_command_specs[i].name, name) != 0)
        i++;
    return (enum pp_cmd)i;
}

#define AT(field) .offset = offsetof(struct pp_options, field)
#define CHAT PP_BIT(CHAT)
#define RUN PP_BIT(RUN)
#define TALK (CHAT | RUN)
#define TEXT_COMMANDS (PP_BIT(TOKENIZE) | PP_BIT(DETOKENIZE) | PP_BIT(TEMPLATE))
#define MEASURE (PP_BIT(EMBED) | PP_BIT(LOGITS) | PP_BIT(PERPLEXITY) | PP_BIT(BENCH) | PP_BIT(IMATRIX))
#define ENGINE (TALK | MEASURE)
#define DRAFT (TALK | PP_BIT(BENCH))
#define LORA PP_BIT(LORA)
#define ANY ((1u << PP_CMD_COUNT) - 1)

const struct pp_option pp_option_specs[] = {
    /* model and engine */
    {.name = "model", .others = "-m", .arg = "MODEL", .choices = "MODEL", .set = pp_set_model, AT(model),
     .commands = ENGINE | TEXT_COMMANDS | PP_BIT(LORA), .section = "model", .env = "LLAMA_ARG_MODEL",
     .group = PP_GROUP_MODEL,
     .help = "a GGUF file, a model folder, or a name that `pippin models` lists; default: the starter"},
    {.name = "model-draft", .others = "-md --draft-model", .arg = "MODEL", .choices = "MODEL", .set = pp_set_draft,
     AT(draft), .commands = DRAFT, .section = "model", .group = PP_GROUP_MODEL,
     .help = "small draft model for speculative decoding"},
    {.name = "draft-lora", .arg = "FILE[:SCALE]", .choices = "ADAPTER", .set = pp_set_draft_lora, .min = -100,
     .max = 100, .commands = DRAFT, .section = "model", .group = PP_GROUP_MODEL,
     .help = "adapter for the draft model; SCALE: 1 if not given; may be repeated"},
    {.name = "use-draft", .set = pp_set_flag, AT(use_draft), .commands = TALK, .section = "model",
     .group = PP_GROUP_MODEL, .help = "speculative decoding where it helps (default)"},
    {.name = "no-draft", .set = pp_set_flag, AT(no_draft), .commands = DRAFT, .section = "model",
     .group = PP_GROUP_MODEL, .help = "no speculative decoding, even with a draft model"},
    {.name = "drafter", .arg = "WHO", .choices = "auto model lookup", .set = pp_set_choice, AT(drafter),
     .commands = TALK, .section = "model", .group = PP_GROUP_MODEL,
     .help = "where drafts come from: the draft model, a lookup of earlier text (n-grams), or both (auto, default)"},
    {.name = "draft-max", .others = "--draft --draft-n", .arg = "N", .set = pp_set_int, AT(draft_max), .min = 1,
     .max = PP_DRAFT_MAX_LIMIT, .commands = DRAFT, .section = "model", .env = "LLAMA_ARG_DRAFT_MAX",
     .group = PP_GROUP_MODEL,
     .help = "at most N draft tokens per pass, 1 to 15 (8); fewer where that is faster"},
    {.name = "draft-always", .set = pp_set_flag, AT(draft_always), .commands = TALK, .section = "model",
     .group = PP_GROUP_MODEL, .help = "always draft --draft-max tokens, faster or not: the same drafts in every run"},
    {.name = "draft-p-min", .arg = "P", .set = pp_set_float, AT(draft_p_min), .min = 0, .max = 1, .commands = TALK,
     .section = "model", .env = "LLAMA_ARG_DRAFT_P_MIN", .group = PP_GROUP_MODEL,
     .help = "do not draft tokens that are less likely than this to be accepted; 0: decide by speed (default)"},
    {.name = "threads", .others = "-t", .arg = "N", .set = pp_set_threads, AT(threads), .min = 0, .max = 512,
     .commands = ENGINE | LORA, .section = "model", .env = "LLAMA_ARG_THREADS", .group = PP_GROUP_MODEL,
     .help = "number of threads, at most one per core; 0: one per core (default)",
     .own = {{PP_BIT(BENCH), "number of threads, or a list such as 1,2,4; 0: one per core (default)"}}},
    {.name = "ctx-size", .others = "-c", .arg = "N", .set = pp_set_ctx_size, AT(ctx_size), .min = 0, .max = 1 << 30,
     .commands = ENGINE | PP_BIT(MODELS), .section = "model", .env = "LLAMA_ARG_CTX_SIZE", .group = PP_GROUP_MODEL,
     .help = "context size in tokens, at least 32; 0: the model's own, at most 16384 (default)",
     .own = {{PP_BIT(PERPLEXITY) | PP_BIT(IMATRIX), "size of a chunk in tokens, at least 32 (512)"},
             {PP_BIT(MODELS), "info: context size in tokens, at least 32; 0: the model's own, at most 16384 "
                              "(default)"}}},
    {.name = "overflow", .arg = "WHAT", .choices = "ask stop shift summarise slide", .set = pp_set_choice, AT(overflow),
     .commands = TALK, .section = "model", .group = PP_GROUP_MODEL,
     .help = "when the context is full: ask (default; in `pippin run`: stop), stop, shift (drop the oldest turns), "
             "summarise (them), or slide (drop them without recomputing the rest: fast but inexact)",
     .own = {{CHAT, "when the context is full: ask (default), stop, shift (drop the oldest turns), summarise (them), "
                    "or slide (drop them without recomputing the rest: fast but inexact)"},
             {RUN, "when the context is full: stop (default), shift (drop the oldest turns), summarise (them), or "
                   "slide (drop them without recomputing the rest: fast but inexact)"}}},
    {.name = "kv-type", .arg = "TYPE", .choices = "q8 q8_0 f16 f32 fp8 q4_0", .set = pp_set_kv_type,
     .commands = ENGINE | PP_BIT(MODELS), .section = "model", .group = PP_GROUP_MODEL,
     .help = "type of the KV cache: q8 (default), q8_0, f16, f32, fp8, q4_0",
     .own = {{PP_BIT(LOGITS) | PP_BIT(PERPLEXITY) | PP_BIT(IMATRIX),
              "type of the KV cache: f32 (default), q8, q8_0, f16, fp8, q4_0"},
             {PP_BIT(BENCH), "type of the KV cache, or a list such as q8,f16: q8 (default), q8_0, f16, f32, fp8, q4_0"},
             {PP_BIT(MODELS), "info: type of the KV cache: q8 (default), q8_0, f16, f32, fp8, q4_0"}}},
    {.name = "kv-memory", .arg = "BYTES", .set = pp_set_bytes, AT(kv_memory), .commands = ENGINE, .section = "model",
     .group = PP_GROUP_MODEL,
     .help = "memory limit for the KV cache, such as 512M; default: a quarter of free memory"},
    {.name = "quant", .arg = "TYPE",
     .choices = "q8_0 q6_k q5_k q5_k_m q5_k_s q5_1 q5_0 q4_k q4_k_m q4_k_s q4_1 q4_0 iq4_nl iq4_xs q3_k q3_k_l q3_k_m "
                "q3_k_s q2_k q2_k_s f16 bf16 f32",
     .set = pp_set_choice, AT(quant), .commands = ENGINE, .section = "model", .group = PP_GROUP_MODEL,
     .help = "quantise a model folder while loading, to q8_0, q6_k, q4_k, q4_0 or any other type of `pippin quantize`"},
    {.name = "imatrix", .arg = "FILE", .choices = "FILE", .set = pp_set_file, AT(imatrix.file),
     .commands = PP_BIT(QUANTIZE) | (ENGINE & ~PP_BIT(IMATRIX)), .group = PP_GROUP_MODEL,
     .help = "importance matrix for quantising (see `pippin imatrix`): better quality below 6 bits"},
    {.name = "memory-check", .arg = "WHAT", .choices = "on off", .set = pp_set_choice, AT(memory_check),
     .commands = ENGINE, .section = "model", .group = PP_GROUP_MODEL,
     .help = "refuse to load a model that does not fit in memory: on (default) or off"},
    {.name = "layout-cache", .arg = "BYTES", .choices = "off", .set = pp_set_layout_cache, AT(layout_cache),
     .commands = ENGINE, .section = "model", .group = PP_GROUP_MODEL,
     .help = "disk space for repacked weights, such as 20G, or off; default: a quarter of the free space, at most 64G"},
    {.name = "snapshot-quota", .arg = "BYTES", .choices = "off", .set = pp_set_snapshot_quota, AT(snapshot_quota),
     .commands = TALK, .section = "model", .group = PP_GROUP_MODEL,
     .help = "disk space for saved KV caches of conversations, such as 20G, or off; default: 4G"},
    {.name = "lora", .arg = "FILE", .choices = "ADAPTER", .set = pp_set_lora, .commands = ENGINE, .section = "model",
     .group = PP_GROUP_MODEL, .help = "use a LoRA adapter: a file, a folder, or a name such as bard; may be repeated"},
    {.name = "lora-scaled", .arg = "FILE:SCALE", .choices = "ADAPTER", .set = pp_set_lora_scaled, .min = -100,
     .max = 100, .commands = ENGINE, .section = "model", .group = PP_GROUP_MODEL,
     .help = "the same with a scale, such as bard.gguf:0.8"},
    {.name = "kernels", .arg = "NAME", .choices = "scalar avx2 avxvnni avx512 amx neon dotprod i8mm",
     .set = pp_set_choice, AT(kernels), .commands = ENGINE | LORA | PP_BIT(DOCTOR), .section = "model",
     .group = PP_GROUP_MODEL,
     .help = "force one set of kernels: scalar, avx2, avxvnni, avx512, amx (x86-64), neon, dotprod, i8mm (ARM); "
             "default: the best this CPU has"},
    {.name = "activations", .arg = "TYPE", .choices = "auto f32 pair bf16", .set = pp_set_choice, AT(activations),
     .commands = ENGINE, .section = "model", .group = PP_GROUP_MODEL,
     .help = "activations for F16 and BF16 weights: f32, pair (two BF16 values, accurate to 17 bits, fast with AMX), "
             "bf16 "
             "(BF16 weights only, less accurate) or auto (default): pair with AMX, else f32"},
    {.name = "gpu-layers", .others = "-ngl --n-gpu-layers", .arg = "N", .set = pp_set_gpu_layers, .commands = ENGINE,
     .group = PP_GROUP_MODEL, .help = "only 0 is accepted: this version runs on the CPU"},
    {.name = "device", .others = "-dev", .arg = "DEVICE", .choices = "cpu", .set = pp_set_device, .commands = ENGINE,
     .section = "model", .group = PP_GROUP_MODEL, .help = "only cpu is accepted in this version"},

    /* answer */
    {.name = "system", .others = "-sys --system-prompt", .arg = "TEXT", .set = pp_set_words, AT(system),
     .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER, .help = "system prompt; default: none"},
    {.name = "persona", .arg = "NAME", .choices = "PERSONA", .set = pp_set_text, AT(persona), .commands = TALK,
     .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "the system prompt of this persona: a built-in one, such as concise, or one of pippin.conf"},
    {.name = "chat-template-file", .arg = "FILE", .choices = "FILE", .set = pp_set_file, AT(chat_template_file),
     .commands = TALK | PP_BIT(TEMPLATE) | LORA, .section = "model", .group = PP_GROUP_ANSWER,
     .help = "use this Jinja chat template instead of the model's own"},
    {.name = "thinking", .arg = "WHAT", .choices = "auto off on low medium high", .set = pp_set_choice, AT(thinking),
     .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "whether the model thinks before it answers (off, on), or how hard (low, medium, high), if its chat "
             "template "
             "has such a switch; auto: the template's default (default)"},
    {.name = "reasoning", .arg = "HOW", .choices = "show fold hide", .set = pp_set_choice, AT(reasoning),
     .commands = TALK, .section = "ui", .group = PP_GROUP_ANSWER,
     .help = "how the model's thinking is shown: in full (show), folded to a line when done (fold, default), or not "
             "at all "
             "(hide); `pippin run` writes it to stderr"},
    {.name = "predict", .others = "-n --n-predict", .arg = "N", .set = pp_set_int64, AT(n_predict), .min = -1,
     .max = 1 << 30, .commands = TALK, .section = "sampling", .env = "LLAMA_ARG_N_PREDICT", .group = PP_GROUP_ANSWER,
     .help = "at most N tokens per answer; -1: no limit (default)"},
    {.name = "temp", .others = "--temperature", .arg = "T", .set = pp_set_float, AT(sampling.temp), .min = 0,
     .max = 100, .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "temperature (0.8); 0: greedy, always the likeliest token"},
    {.name = "top-k", .arg = "N", .set = pp_set_int, AT(sampling.top_k), .min = 0, .max = 1 << 24, .commands = TALK,
     .section = "sampling", .group = PP_GROUP_ANSWER, .help = "sample from the N likeliest tokens (40); 0: off"},
    {.name = "top-p", .arg = "P", .set = pp_set_float, AT(sampling.top_p), .min = 0, .max = 1, .commands = TALK,
     .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "sample from the likeliest tokens that together have probability P (0.95); 1: off"},
    {.name = "min-p", .arg = "P", .set = pp_set_float, AT(sampling.min_p), .min = 0, .max = 1, .commands = TALK,
     .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "sample from tokens at least P times as likely as the likeliest (0.05); 0: off"},
    {.name = "repeat-penalty", .arg = "X", .set = pp_set_float, AT(sampling.repeat_penalty), .min = 0.01, .max = 100,
     .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER, .help = "penalise repeated tokens by this "
                                                                                "factor; 1: off (default)"},
    {.name = "repeat-last-n", .arg = "N", .set = pp_set_int, AT(sampling.penalty_last_n), .min = -1, .max = 1 << 30,
     .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "the last N tokens count for the penalties (64); -1: all"},
    {.name = "frequency-penalty", .arg = "X", .set = pp_set_float, AT(sampling.frequency_penalty), .min = -100,
     .max = 100, .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "penalty for each earlier use of a token; 0: off (default)"},
    {.name = "presence-penalty", .arg = "X", .set = pp_set_float, AT(sampling.presence_penalty), .min = -100,
     .max = 100, .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "penalty for tokens that were used at all; 0: off (default)"},
    {.name = "seed", .others = "-s", .arg = "N", .set = pp_set_seed, .commands = TALK | LORA, .section = "sampling",
     .group = PP_GROUP_ANSWER,
     .help = "random seed: the same seed gives the same answer; default: a new one each time",
     .own = {{LORA, "train: random seed: the same seed gives the same adapter (0)"}}},
    {.name = "logit-bias", .arg = "ID+X", .set = pp_set_logit_bias, .min = -1000, .max = 1000, .commands = TALK,
     .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "add X to the logit of token ID, subtract it (ID-X), or forbid the token (ID-inf)"},
    {.name = "stop", .arg = "TEXT", .set = pp_set_stop, .commands = TALK, .section = "sampling",
     .group = PP_GROUP_ANSWER, .help = "stop the answer at this text; may be repeated"},
    {.name = "ignore-eos", .set = pp_set_flag, AT(ignore_eos), .commands = TALK, .group = PP_GROUP_ANSWER,
     .help = "do not stop at the end-of-text token"},
    {.name = "prompt", .others = "-p", .arg = "TEXT", .set = pp_set_prompt, AT(prompt),
     .commands = RUN | TEXT_COMMANDS | PP_BIT(EMBED),
     .group = PP_GROUP_ANSWER, .help = "the prompt, or the command's input text or messages"},
    {.name = "file", .others = "-f", .arg = "FILE", .choices = "FILE", .set = pp_set_read_file, AT(file),
     .commands = RUN | TEXT_COMMANDS | MEASURE, .group = PP_GROUP_ANSWER,
     .help = "read it from a file (-: stdin); run: may be repeated; logits: the token ids; bench: conversations for "
             "`draft`, text for `tokenizer`"},
    {.name = "raw", .set = pp_set_flag, AT(raw), .commands = RUN, .group = PP_GROUP_ANSWER,
     .help = "give the prompt to the model as it is, without a chat template"},

    /* conversations */
    {.name = "continue", .set = pp_set_flag, AT(resume_latest), .commands = TALK | LORA | PP_BIT(IMATRIX),
     .group = PP_GROUP_SESSION,
     .help = "continue the latest conversation",
     .own = {{LORA, "train: resume an interrupted training"},
             {PP_BIT(IMATRIX), "resume after the chunks already in the output file"}}},
    {.name = "resume", .arg = "ID", .choices = "SESSION", .set = pp_set_text, AT(resume), .commands = TALK,
     .group = PP_GROUP_SESSION, .help = "continue this conversation (the first digits of its ID are enough)"},
    {.name = "save", .set = pp_set_flag, AT(save), .commands = RUN, .group = PP_GROUP_SESSION,
     .help = "save question and answer as a conversation"},

    {.name = "temporary", .set = pp_set_flag, AT(temporary), .commands = CHAT, .group = PP_GROUP_SESSION,
     .help = "keep nothing of this chat on disk"},
    {.name = "limit", .arg = "N", .set = pp_set_int64, AT(limit), .min = 1, .max = 1 << 30,
     .commands = PP_BIT(SESSIONS), .group = PP_GROUP_SESSION,
     .help = "print only the newest N; default: list: all, search: 100"},
    {.name = "best-first", .set = pp_set_flag, AT(best_first), .commands = PP_BIT(SESSIONS),
     .group = PP_GROUP_SESSION,
     .help = "search: sort by relevance, not by date (if at most 10,000 messages match)"},

    {.name = "name", .arg = "NAME", .set = pp_set_text, AT(name), .commands = PP_BIT(MODELS), .group = PP_GROUP_WORK,
     .help = "add, pull: name of the model; default: its file name"},
    {.name = "sha256", .arg = "HEX", .set = pp_set_text, AT(sha256), .commands = PP_BIT(MODELS),
     .group = PP_GROUP_WORK, .help = "pull: expected SHA-256 of the file"},
    {.name = "hf-base", .arg = "URL", .set = pp_set_text, AT(hf_base), .commands = PP_BIT(MODELS), .section = "model",
     .env = "HF_ENDPOINT", .group = PP_GROUP_WORK, .help = "pull: server for hf: (https://huggingface.co)"},
    {.name = "ollama-base", .arg = "URL", .set = pp_set_text, AT(ollama_base), .commands = PP_BIT(MODELS),
     .section = "model", .group = PP_GROUP_WORK,
     .help = "pull: server for ollama: (https://registry.ollama.ai)"},

    /* output */
    {.name = "stats", .set = pp_set_flag, AT(stats), .commands = RUN, .group = PP_GROUP_OUTPUT,
     .help = "at the end, print token counts, speeds and times as a line of JSON on stderr"},
    {.name = "json", .set = pp_set_flag, AT(json),
     .commands = PP_BIT(SESSIONS) | PP_BIT(MODELS) | PP_BIT(LORA) | PP_BIT(TOKENIZE) | PP_BIT(DETOKENIZE) |
                 PP_BIT(PERPLEXITY) | PP_BIT(BENCH) | PP_BIT(IMATRIX) | PP_BIT(DOCTOR),
     .group = PP_GROUP_OUTPUT, .help = "print JSON"},
    {.name = "plain", .set = pp_set_flag, AT(plain), .commands = CHAT, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "line mode, no full screen"},
    {.name = "mouse", .set = pp_set_flag, AT(mouse), .commands = CHAT, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "scroll with the mouse wheel; hold Shift to select text"},
    {.name = "bell", .arg = "SECONDS", .choices = "off", .set = pp_set_bell, AT(bell), .min = 0, .max = 86400,
     .commands = CHAT, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "ring the terminal's bell when an answer ends and no key was pressed for this long; default: off"},
    {.name = "theme", .arg = "NAME", .choices = "dark light harbour paper mono terminal", .set = pp_set_text, AT(theme),
     .commands = CHAT, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "colours: dark, light, harbour, paper, mono, terminal, or a theme of your own"},
    {.name = "titles", .arg = "HOW", .choices = "first-words model", .set = pp_set_choice, AT(titles),
     .commands = CHAT, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "conversation titles: first-words of the question (default), or written by the model (slower; small "
             "models "
             "write poor ones)"},
    {.name = "no-color", .set = pp_set_flag, AT(no_color), .commands = ANY, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "no colours; setting NO_COLOR does the same"},
    {.name = "output", .others = "-o", .arg = "FILE", .choices = "FILE", .set = pp_set_new_file, AT(output),
     .commands = PP_BIT(LOGITS) | LORA | PP_BIT(IMATRIX) | PP_BIT(SESSIONS), .group = PP_GROUP_OUTPUT,
     .help = "output file",
     .own = {{LORA, "train: folder for the new adapter"},
             {PP_BIT(IMATRIX), "output file (imatrix.gguf)"},
             {PP_BIT(SESSIONS), "export: output file; default: standard output"}}},
    {.name = "format", .arg = "FORM", .choices = "md json jsonl", .set = pp_set_choice, AT(export_format),
     .commands = PP_BIT(SESSIONS), .group = PP_GROUP_OUTPUT,
     .help = "export: md (default, to read), json or jsonl (complete, for import)"},
    {.name = "all", .set = pp_set_flag, AT(export_all), .commands = PP_BIT(SESSIONS), .group = PP_GROUP_OUTPUT,
     .help = "export: all conversations"},
    {.name = "again", .set = pp_set_flag, AT(import_again), .commands = PP_BIT(SESSIONS), .group = PP_GROUP_SESSION,
     .help = "import: conversations again that already exist, as new ones"},

    /* single commands */
    {.name = "ids", .arg = "LIST", .set = pp_set_text, AT(ids), .commands = PP_BIT(LOGITS), .group = PP_GROUP_WORK,
     .help = "token ids, such as 1,2,3"},
    {.name = "bos", .set = pp_set_flag, AT(bos), .commands = PP_BIT(TOKENIZE), .group = PP_GROUP_WORK,
     .help = "prepend the begin-of-text token (BOS)"},
    {.name = "special", .set = pp_set_flag, AT(special), .commands = PP_BIT(TOKENIZE) | PP_BIT(DETOKENIZE),
     .group = PP_GROUP_WORK, .help = "tokenize: parse control tokens in the text; detokenize: print them",
     .own = {{PP_BIT(TOKENIZE), "parse control tokens in the text"}, {PP_BIT(DETOKENIZE), "print control tokens"}}},
    {.name = "tools", .arg = "FILE", .choices = "FILE", .set = pp_set_file, AT(tools), .commands = PP_BIT(TEMPLATE),
     .group = PP_GROUP_WORK, .help = "JSON array of tools for the template"},
    {.name = "no-generation-prompt", .set = pp_set_flag, AT(no_generation_prompt), .commands = PP_BIT(TEMPLATE),
     .group = PP_GROUP_WORK, .help = "do not append the start of the assistant's turn"},
    {.name = "bos-text", .arg = "TEXT", .set = pp_set_text, AT(bos_text), .commands = PP_BIT(TEMPLATE),
     .group = PP_GROUP_WORK, .help = "bos_token for the template"},
    {.name = "eos-text", .arg = "TEXT", .set = pp_set_text, AT(eos_text), .commands = PP_BIT(TEMPLATE),
     .group = PP_GROUP_WORK, .help = "eos_token for the template"},
    {.name = "now", .arg = "TIME", .set = pp_set_text, AT(now), .commands = PP_BIT(TEMPLATE), .group = PP_GROUP_WORK,
     .help = "current time for the template, such as \"2026-03-14 15:09:26\""},
    {.name = "chunks", .arg = "N", .set = pp_set_int, AT(chunks), .min = 0, .max = 1 << 30,
     .commands = PP_BIT(PERPLEXITY) | PP_BIT(IMATRIX), .group = PP_GROUP_WORK,
     .help = "read only the first N chunks; 0: all (default)"},
    {.name = "in-file", .arg = "FILE", .choices = "FILE", .set = pp_set_in_file, .commands = PP_BIT(IMATRIX),
     .group = PP_GROUP_WORK,
     .help = "merge in this importance matrix; may be repeated; without a text, only merge"},
    {.name = "output-frequency", .arg = "N", .set = pp_set_int, AT(imatrix.output_frequency), .min = 1,
     .max = 1 << 30, .commands = PP_BIT(IMATRIX), .group = PP_GROUP_WORK, .help = "save the output every N chunks "
                                                                                  "(10)"},
    {.name = "process-output", .set = pp_set_flag, AT(imatrix.process_output), .commands = PP_BIT(IMATRIX),
     .group = PP_GROUP_WORK, .help = "also collect data for the output matrix (output.weight)"},
    {.name = "pooling", .arg = "HOW", .choices = "last mean cls none", .set = pp_set_choice, AT(pooling),
     .commands = PP_BIT(EMBED), .group = PP_GROUP_WORK,
     .help = "how token vectors become one: last token, mean, first token (cls), or one vector per token (none); "
             "default: the model's own"},
    {.name = "windows", .set = pp_set_flag, AT(windows), .commands = PP_BIT(PERPLEXITY), .group = PP_GROUP_WORK,
     .help = "score every token, in chunks without BOS"},
    {.name = "n-prompt", .others = "-p", .arg = "N", .set = pp_set_int64, AT(n_prompt), .min = 0, .max = 1 << 24,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "prefill N tokens (512)"},
    {.name = "n-gen", .others = "-n", .arg = "N", .set = pp_set_int64, AT(n_gen), .min = 0, .max = 1 << 24,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "decode N tokens (32)"},
    {.name = "repetitions", .others = "-r", .arg = "N", .set = pp_set_int, AT(repetitions), .min = 1, .max = 10000,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "measure N times (5)"},
    {.name = "depth", .arg = "LIST", .set = pp_set_text, AT(bench.depths), .commands = PP_BIT(BENCH),
     .group = PP_GROUP_WORK, .help = "tokens already in the context, such as 0,4096"},
    {.name = "rows", .arg = "LIST", .set = pp_set_text, AT(bench.rows), .commands = PP_BIT(BENCH),
     .group = PP_GROUP_WORK, .help = "measure passes with these numbers of rows, such as 1,2,4,8,16"},
    {.name = "shape", .arg = "NAME",
     .choices = "stories-15m smollm2-135m tinyllama-1.1b llama-3.2-1b llama-3.2-3b llama-2-7b mistral-7b "
                "llama-3.1-8b lfm2-1.2b qwen3.5-2b olmoe-7b-a1b mixtral-8x7b deepseek-v2-lite deepseek-v3",
     .set = pp_set_choice, AT(bench.shape), .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "random weights in the shape of a model, instead of a model: stories-15m, smollm2-135m, tinyllama-1.1b, "
             "llama-3.2-1b, llama-3.2-3b, llama-2-7b, mistral-7b, llama-3.1-8b, lfm2-1.2b, qwen3.5-2b; mixtures of "
             "experts: olmoe-7b-a1b, mixtral-8x7b, deepseek-v2-lite, deepseek-v3"},
    {.name = "type", .arg = "TYPE", .choices = "f32 f16 bf16 q8_0 q4_0 q4_k q4_k_m q6_k", .set = pp_set_text,
     AT(bench.type), .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "type of the random weights: any that pippin runs, such as f16, q8_0, q6_k or iq2_xs, or a mix of `pippin "
             "quantize`; default: q4_k_m"},
    {.name = "layers", .arg = "N", .set = pp_set_int64, AT(bench.layers), .min = 1, .max = 256,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "number of layers; default: enough to exceed the CPU's caches; with --write: all"},
    {.name = "vocab", .arg = "N", .set = pp_set_int64, AT(bench.vocab), .min = 1, .max = 1 << 20,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "size of the vocabulary; default: the shape's"},
    {.name = "write", .arg = "FILE", .choices = "FILE", .set = pp_set_new_file, AT(bench.write),
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "write the random model to this GGUF file and measure nothing"},
    {.name = "adapters", .arg = "N", .set = pp_set_int, AT(bench.adapters), .min = 1, .max = 10000,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "trace: number of random adapters (16), unless --lora gives some"},
    {.name = "requests", .arg = "N", .set = pp_set_int, AT(bench.requests), .min = 1, .max = 1000000,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "trace: requests per round (64)"},
    {.name = "zipf", .arg = "S", .set = pp_set_float, AT(bench.zipf), .min = 0, .max = 10, .commands = PP_BIT(BENCH),
     .group = PP_GROUP_WORK, .help = "trace: Zipf exponent of the adapters' popularity (1); 0: all equally popular"},
    {.name = "compare", .arg = "OLD", .choices = "FILE", .set = pp_set_file, AT(bench.compare),
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "compare two files written with --json: --compare OLD NEW; measures nothing; exit code 1 if NEW is "
             "slower"},
    {.name = "threshold", .arg = "PERCENT", .set = pp_set_percent, AT(bench.threshold), .min = 0, .max = 1000,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "for --compare: slowdown that counts, beyond the noise of both runs, such as 5% (default)"},
    {.name = "outtype", .others = "--out-type", .arg = "TYPE", .choices = "f32 f16 bf16", .set = pp_set_text,
     AT(out_type), .commands = PP_BIT(CONVERT), .group = PP_GROUP_WORK,
     .help = "type of the weights in the output; default: unchanged"},
    {.name = "to", .arg = "FORM", .choices = "gguf hf mlx", .set = pp_set_choice, AT(convert_to),
     .commands = PP_BIT(CONVERT), .group = PP_GROUP_WORK,
     .help = "output format: gguf, hf (Hugging Face folder) or mlx (MLX folder); default: gguf, or hf if SRC is a GGUF "
             "model and DST does not end in .gguf"},
    {.name = "bits", .arg = "N", .set = pp_set_int, AT(convert_bits), .min = 4, .max = 16, .commands = PP_BIT(CONVERT),
     .group = PP_GROUP_WORK, .help = "for --to mlx: 4 (default) or 8 bits per weight, or 16 for floats"},
    {.name = "base", .others = "-m --model", .arg = "MODEL", .choices = "MODEL", .set = pp_set_model, AT(model),
     .commands = PP_BIT(CONVERT),
     .group = PP_GROUP_WORK, .help = "base model of the adapter, if the adapter does not name it"},

    {.name = "rank", .arg = "N", .set = pp_set_int, AT(train.rank), .min = 1, .max = 1024,
     .commands = LORA | PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "rank of A and B (16)",
     .own = {{LORA, "train: rank of A and B (16)"}, {PP_BIT(BENCH), "lora: rank of the random adapters (16)"}}},
    {.name = "alpha", .arg = "X", .set = pp_set_float, AT(train.alpha), .min = 1e-6, .max = 1e6, .commands = LORA,
     .group = PP_GROUP_WORK, .help = "train: LoRA alpha; the update B A is scaled by alpha / rank (32)"},
    {.name = "rslora", .set = pp_set_flag, AT(train.rslora), .commands = LORA, .group = PP_GROUP_WORK,
     .help = "train: scale by alpha / sqrt(rank) instead (rsLoRA)"},
    {.name = "targets", .arg = "LIST", .set = pp_set_text, AT(lora_train.targets), .commands = LORA,
     .group = PP_GROUP_WORK, .help = "train: projections to adapt, out of q,k,v,o,gate,up,down (all)"},
    {.name = "lr", .others = "--learning-rate", .arg = "X", .set = pp_set_float, AT(train.lr), .min = 1e-12,
     .max = 100, .commands = LORA, .group = PP_GROUP_WORK, .help = "train: peak learning rate (2e-4)"},
    {.name = "warmup", .arg = "P", .set = pp_set_float, AT(train.warmup), .min = 0, .max = 1, .commands = LORA,
     .group = PP_GROUP_WORK,
     .help = "train: fraction of the steps over which the learning rate rises (0.05); it then falls along a cosine"},
    {.name = "weight-decay", .arg = "X", .set = pp_set_float, AT(train.weight_decay), .min = 0, .max = 10,
     .commands = LORA, .group = PP_GROUP_WORK, .help = "train: weight decay of AdamW (0.01)"},
    {.name = "clip", .arg = "X", .set = pp_set_float, AT(train.clip), .min = 0, .max = 1e9, .commands = LORA,
     .group = PP_GROUP_WORK, .help = "train: clip the gradient to this norm (1); 0: never"},
    {.name = "batch", .arg = "N", .set = pp_set_int, AT(train.batch), .min = 1, .max = 4096, .commands = LORA,
     .group = PP_GROUP_WORK, .help = "train: examples per batch (8)"},
    {.name = "accumulate", .arg = "N", .set = pp_set_int, AT(train.accumulate), .min = 1, .max = 4096,
     .commands = LORA, .group = PP_GROUP_WORK, .help = "train: batches per optimiser step (1)"},
    {.name = "epochs", .arg = "N", .set = pp_set_int, AT(train.epochs), .min = 1, .max = 1 << 20, .commands = LORA,
     .group = PP_GROUP_WORK, .help = "train: passes over all examples (3)"},
    {.name = "steps", .arg = "N", .set = pp_set_int64, AT(train.steps), .min = 0, .max = 1 << 30, .commands = LORA,
     .group = PP_GROUP_WORK, .help = "train: stop after N steps instead of --epochs; 0: use --epochs (default)"},
    {.name = "max-length", .arg = "N", .set = pp_set_int64, AT(lora_train.max_length), .min = 2, .max = 1 << 20,
     .commands = LORA, .group = PP_GROUP_WORK, .help = "train: at most N tokens per example (512)"},
    {.name = "val", .arg = "FILE", .choices = "FILE", .set = pp_set_file, AT(lora_train.validation), .commands = LORA,
     .group = PP_GROUP_WORK, .help = "train: examples for validation"},
    {.name = "val-share", .arg = "P", .set = pp_set_float, AT(lora_train.val_share), .min = 0, .max = 0.9,
     .commands = LORA, .group = PP_GROUP_WORK,
     .help = "train: without --val, fraction of the examples held out for validation (0.1); 0: none"},
    {.name = "eval-every", .arg = "N", .set = pp_set_int64, AT(lora_train.eval_every), .min = 0, .max = 1 << 30,
     .commands = LORA, .group = PP_GROUP_WORK,
     .help = "train: steps between validations and checkpoints; default: ten per training"},
    {.name = "train-memory", .arg = "BYTES", .set = pp_set_bytes, AT(train.memory), .commands = LORA,
     .group = PP_GROUP_WORK, .help = "train: memory limit, such as 2G; default: the free memory"},

    /* general */
    {.name = "help", .others = "-h", .set = pp_set_flag, AT(help), .commands = ANY, .group = PP_GROUP_GENERAL,
     .help = "print this help"},
    {.name = "version", .others = "-V", .set = pp_set_flag, AT(version), .commands = ANY, .group = PP_GROUP_GENERAL,
     .help = "print the version"},
    {.name = "completion", .arg = "WHAT", .choices = "bash zsh fish sessions models adapters personas",
     .set = pp_set_choice, AT(completion), .commands = ANY, .group = PP_GROUP_GENERAL,
     .help = "print the completion script for bash, zsh or fish (or the names it looks up)"},
};
const size_t pp_n_option_specs = sizeof pp_option_specs / sizeof pp_option_specs[0];

const struct pp_foreign_option pp_foreign_options[] = {
    {"--grammar-file --json-schema --grammar", "is not available yet: pippin cannot constrain answers to a grammar"},
    {"-hf -hfr --hf-repo -hff --hf-file -mu --model-url",
     "is not an option here; download once with `pippin models pull hf:OWNER/NAME` (or a URL), then use -m NAME"},
    {"-cnv --conversation -i --interactive", "is not needed: `pippin chat` is a conversation"},
    {"-no-cnv --no-conversation", "is not needed: `pippin run` gives one answer"},
    {"-mli --multiline-input", "is not needed: Alt-Enter starts a new line in the chat"},
    {"-st --single-turn", "is not needed: `pippin run` gives one answer"},
    {"--prompt-cache --prompt-cache-all --prompt-cache-ro",
     "is not needed: the KV cache of each conversation is saved automatically (see --snapshot-quota)"},
    {"-fa --flash-attn --no-mmap --mlock -b --batch-size -ub --ubatch-size -tb --threads-batch --jinja --no-warmup "
     "--log-disable --simple-io --no-display-prompt -e --escape --numa -co --color",
     "has no effect in pippin; leave it out"},
    {"-ctk --cache-type-k -ctv --cache-type-v", "is called --kv-type here and sets both K and V"},
    {"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
     "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast", "is not available: RoPE scaling is read from the model "
                                                             "file"},
    {"--keep --context-shift --no-context-shift",
     "is not available; --overflow sets what happens when the context is full"},
    {"--reverse-prompt", "is called --stop here"},
    {"--list-models", "is not an option here; `pippin models` lists models"},
    {"-sysf --system-prompt-file", "is not available; use -sys \"$(cat FILE)\""},
};
const size_t pp_n_foreign_options = sizeof pp_foreign_options / sizeof pp_foreign_options[0];

const struct pp_foreign_command pp_foreign_commands[] = {
    {"devices", "`pippin doctor` shows CPU and GPUs"},
    {"list ls", "`pippin models` lists models, `pippin sessions` conversations"},
    {"pull get download", "`pippin models pull URL` downloads a model"},
    {"show info", "`pippin models info NAME` shows a model, `pippin sessions show [ID]` a conversation"},
    {"rm delete", "`pippin models rm NAME` removes a model from the list, `pippin sessions rm ID` deletes a "
                  "conversation"},
    {"cp", "`pippin models tag NAME TAG` gives a model another name"},
    {"create add", "`pippin models add PATH` registers a model file under a name; for personas see pippin.conf(5)"},
    {"ps stop load unload", "a model stays in memory only while a pippin process uses it"},
    {"serve server start", "pippin is not a server; in scripts use `pippin run`"},
    {"search export import backup resume continue",
     "for conversations see `pippin sessions --help`; `pippin --continue` continues the latest one"},
    {"train finetune", "`pippin lora train FILE -o FOLDER` trains an adapter"},
};
const size_t pp_n_foreign_commands = sizeof pp_foreign_commands / sizeof pp_foreign_commands[0];

const struct pp_foreign_command pp_foreign_subcommands[] = {
    {"delete remove del", "rm"},
    {"ls", "list"},
    {"download get fetch", "pull"},
    {"show", "info"},
    {"cat view print", "show"},
    {"find grep", "search"},
    {"save", "export"},
    {"load", "import"},
    {"title retitle mv move", "rename"},
    {"finetune", "train"},
};
const size_t pp_n_foreign_subcommands = sizeof pp_foreign_subcommands / sizeof pp_foreign_subcommands[0];
