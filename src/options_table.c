/* options_table.c - every command and every option, once: the parser, --help, completion and the test of the manual
 * read these. */
#include <string.h>

#include "src/options_internal.h"

#define PP_BENCH_WORDS                                                                                                 \
    "[quick | depth | rows | threads | kv | kernels | memory | micro | start | tokenizer | resume | several | " \
    "lora | trace | sessions | all]..."

const struct pp_command_spec pp_command_specs[PP_CMD_COUNT] = {
    [PP_CMD_CHAT] = {"chat", "", NULL, NULL, 0, "the chat on the whole screen (also without a command)"},
    [PP_CMD_RUN] = {"run", "", NULL, NULL, 0, "one answer; -p and stdin together form the prompt"},
    [PP_CMD_SESSIONS] = {"sessions", "[list | search TEXT | show ID | rm ID... | forget ID...]",
                         "list search show rm forget", "export import backup", PP_MAX_POSITIONAL,
                         "saved conversations"},
    [PP_CMD_LORA] = {"lora", "[list | info FILE...]", "list info", "train", PP_MAX_POSITIONAL, "adapters"},
    [PP_CMD_TOKENIZE] = {"tokenize", "", NULL, NULL, 0, "text to a JSON array of token ids"},
    [PP_CMD_DETOKENIZE] = {"detokenize", "", NULL, NULL, 0, "JSON arrays of ids on stdin, one a line, to text"},
    [PP_CMD_TEMPLATE] = {"template", "", NULL, NULL, 0, "messages (JSON on stdin) to the prompt that the model gets"},
    [PP_CMD_LOGITS] = {"logits", "", NULL, NULL, 0, "the model's raw output for given ids, as safetensors"},
    [PP_CMD_PERPLEXITY] = {"perplexity", "", NULL, NULL, 0, "how well a model predicts a text"},
    [PP_CMD_BENCH] = {"bench", PP_BENCH_WORDS, NULL, NULL, PP_MAX_POSITIONAL,
                      "how fast it is here: prefill, decode and what they are made of"},
    [PP_CMD_CONVERT] = {"convert", "SRC DST", NULL, NULL, 2, "a model folder to GGUF, an adapter to GGUF or back to PEFT"},
    [PP_CMD_QUANTIZE] = {"quantize", "SRC DST TYPE", NULL, NULL, 3, "a model to a smaller type: Q8_0, Q4_0, Q4_K_M"},
};

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
#define MEASURE (PP_BIT(LOGITS) | PP_BIT(PERPLEXITY) | PP_BIT(BENCH))
#define ENGINE (TALK | MEASURE)
#define DRAFT (TALK | PP_BIT(BENCH))
#define ANY ((1u << PP_CMD_COUNT) - 1)

const struct pp_option pp_option_specs[] = {
    /* model and engine */
    {.name = "model", .others = "-m", .arg = "MODEL", .choices = "FILE", .set = pp_set_model, AT(model),
     .commands = ENGINE | TEXT_COMMANDS | PP_BIT(LORA), .section = "model", .env = "LLAMA_ARG_MODEL",
     .group = PP_GROUP_MODEL,
     .help = "GGUF file, model folder, or a name in the models folder; default: the starter"},
    {.name = "model-draft", .others = "-md --draft-model", .arg = "MODEL", .choices = "FILE", .set = pp_set_draft,
     AT(draft), .commands = DRAFT, .section = "model", .group = PP_GROUP_MODEL,
     .help = "small model that drafts tokens for the large one"},
    {.name = "use-draft", .set = pp_set_flag, AT(use_draft), .commands = TALK, .section = "model",
     .group = PP_GROUP_MODEL, .help = "draft with the model at hand: the starter brings one; -md does without this"},
    {.name = "no-draft", .set = pp_set_flag, AT(no_draft), .commands = DRAFT, .section = "model",
     .group = PP_GROUP_MODEL, .help = "draft nothing, even with a draft model at hand"},
    {.name = "draft-max", .others = "--draft --draft-n", .arg = "N", .set = pp_set_int, AT(draft_max), .min = 1,
     .max = 64, .commands = DRAFT, .section = "model", .env = "LLAMA_ARG_DRAFT_MAX", .group = PP_GROUP_MODEL,
     .help = "tokens drafted at most at a time (4)"},
    {.name = "threads", .others = "-t", .arg = "N", .set = pp_set_threads, AT(threads), .min = 0, .max = 1024,
     .commands = ENGINE, .section = "model", .env = "LLAMA_ARG_THREADS", .group = PP_GROUP_MODEL,
     .help = "threads, at most one per core; 0: so many (default)"},
    {.name = "ctx-size", .others = "-c", .arg = "N", .set = pp_set_int64, AT(ctx_size), .min = 0, .max = 1 << 30,
     .commands = ENGINE, .section = "model", .env = "LLAMA_ARG_CTX_SIZE", .group = PP_GROUP_MODEL,
     .help = "tokens a conversation may have; 0: the model's own, at most 16384 (default)"},
    {.name = "overflow", .arg = "WHAT", .choices = "ask stop shift summarise slide", .set = pp_set_choice, AT(overflow),
     .commands = TALK, .section = "model", .group = PP_GROUP_MODEL,
     .help = "when a conversation outgrows the context: ask (default; without a screen stop), stop, shift (drop the "
             "oldest turns), summarise (them) or slide (shift, computing nothing again: not exact)"},
    {.name = "kv-type", .arg = "TYPE", .choices = "q8_0 f16 f32 fp8 q4_0", .set = pp_set_kv_type, .commands = ENGINE,
     .section = "model", .group = PP_GROUP_MODEL, .help = "type of the KV cache: q8_0 (default), f16, f32, fp8, q4_0"},
    {.name = "kv-memory", .arg = "BYTES", .set = pp_set_bytes, AT(kv_memory), .commands = ENGINE, .section = "model",
     .group = PP_GROUP_MODEL, .help = "limit for the KV cache, such as 512M; default: a quarter of free memory"},
    {.name = "layout-cache", .arg = "BYTES", .choices = "off", .set = pp_set_layout_cache, AT(layout_cache),
     .commands = ENGINE, .section = "model", .group = PP_GROUP_MODEL,
     .help = "disk for packed weights, such as 20G, or off; default: a quarter of what is free, at most 64G"},
    {.name = "snapshot-quota", .arg = "BYTES", .choices = "off", .set = pp_set_snapshot_quota, AT(snapshot_quota),
     .commands = TALK, .section = "model", .group = PP_GROUP_MODEL,
     .help = "disk for what is computed of conversations, such as 20G, or off; default: 4G"},
    {.name = "lora", .arg = "FILE", .choices = "FILE", .set = pp_set_lora, .commands = ENGINE, .section = "model",
     .group = PP_GROUP_MODEL, .help = "use an adapter; may be repeated"},
    {.name = "lora-scaled", .arg = "FILE:SCALE", .choices = "FILE", .set = pp_set_lora_scaled, .min = -100,
     .max = 100, .commands = ENGINE, .section = "model", .group = PP_GROUP_MODEL,
     .help = "the same with a strength, such as bard.gguf:0.8"},
    {.name = "kernels", .arg = "NAME", .choices = "scalar avx2 avxvnni avx512 amx neon dotprod i8mm",
     .set = pp_set_choice, AT(kernels), .commands = ENGINE, .section = "model", .group = PP_GROUP_MODEL,
     .help = "force one set of kernels: scalar, avx2, avxvnni, avx512, amx (x86-64), neon, dotprod, i8mm (ARM); "
             "default: the best this CPU has"},
    {.name = "activations", .arg = "TYPE", .choices = "f32 bf16", .set = pp_set_choice, AT(activations),
     .commands = ENGINE, .section = "model", .group = PP_GROUP_MODEL,
     .help = "what BF16 weights are multiplied with: f32 (default) or bf16, faster with AMX, a little "
             "less accurate"},
    {.name = "gpu-layers", .others = "-ngl --n-gpu-layers", .arg = "N", .set = pp_set_gpu_layers, .commands = ENGINE,
     .group = PP_GROUP_MODEL, .help = "only 0: this version runs on the CPU"},
    {.name = "device", .others = "-dev", .arg = "DEVICE", .choices = "cpu", .set = pp_set_device, .commands = ENGINE,
     .section = "model", .group = PP_GROUP_MODEL, .help = "only cpu in this version"},

    /* answer */
    {.name = "system", .others = "-sys --system-prompt", .arg = "TEXT", .set = pp_set_text, AT(system),
     .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER, .help = "system prompt; default: none"},
    {.name = "chat-template-file", .arg = "FILE", .choices = "FILE", .set = pp_set_text, AT(chat_template_file),
     .commands = TALK | PP_BIT(TEMPLATE), .section = "model", .group = PP_GROUP_ANSWER,
     .help = "Jinja chat template instead of the model's own"},
    {.name = "predict", .others = "-n --n-predict", .arg = "N", .set = pp_set_int64, AT(n_predict), .min = -1,
     .max = 1 << 30, .commands = TALK, .section = "sampling", .env = "LLAMA_ARG_N_PREDICT", .group = PP_GROUP_ANSWER,
     .help = "tokens of an answer at most (-1: no limit)"},
    {.name = "temp", .others = "--temperature", .arg = "T", .set = pp_set_float, AT(sampling.temp), .min = 0,
     .max = 100, .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "temperature (0.8); 0: always the likeliest token"},
    {.name = "top-k", .arg = "N", .set = pp_set_int, AT(sampling.top_k), .min = 0, .max = 1 << 24, .commands = TALK,
     .section = "sampling", .group = PP_GROUP_ANSWER, .help = "choose among the N likeliest tokens (40); 0: off"},
    {.name = "top-p", .arg = "P", .set = pp_set_float, AT(sampling.top_p), .min = 0, .max = 1, .commands = TALK,
     .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "among the likeliest that make up P together (0.95); 1: off"},
    {.name = "min-p", .arg = "P", .set = pp_set_float, AT(sampling.min_p), .min = 0, .max = 1, .commands = TALK,
     .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "among those at least P times as likely as the first (0.05); 0: off"},
    {.name = "repeat-penalty", .arg = "X", .set = pp_set_float, AT(sampling.repeat_penalty), .min = 0.01, .max = 100,
     .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER, .help = "against repetition (1: off)"},
    {.name = "repeat-last-n", .arg = "N", .set = pp_set_int, AT(sampling.penalty_last_n), .min = -1, .max = 1 << 30,
     .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "how far back penalties look (64); -1: all"},
    {.name = "frequency-penalty", .arg = "X", .set = pp_set_float, AT(sampling.frequency_penalty), .min = -100,
     .max = 100, .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "per earlier use of a token (0: off)"},
    {.name = "presence-penalty", .arg = "X", .set = pp_set_float, AT(sampling.presence_penalty), .min = -100,
     .max = 100, .commands = TALK, .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "once for tokens already used (0: off)"},
    {.name = "seed", .others = "-s", .arg = "N", .set = pp_set_seed, .commands = TALK, .section = "sampling",
     .group = PP_GROUP_ANSWER, .help = "the same seed gives the same answer; default: a new one each time"},
    {.name = "logit-bias", .arg = "ID+X", .set = pp_set_logit_bias, .min = -1000, .max = 1000, .commands = TALK,
     .section = "sampling", .group = PP_GROUP_ANSWER,
     .help = "make a token likelier, unlikelier (ID-X) or forbid it (ID-inf)"},
    {.name = "stop", .arg = "TEXT", .set = pp_set_stop, .commands = TALK, .section = "sampling",
     .group = PP_GROUP_ANSWER, .help = "end the answer before this text; may be repeated"},
    {.name = "ignore-eos", .set = pp_set_flag, AT(ignore_eos), .commands = TALK, .group = PP_GROUP_ANSWER,
     .help = "go on when the model wants to end"},
    {.name = "prompt", .others = "-p", .arg = "TEXT", .set = pp_set_text, AT(prompt), .commands = RUN | TEXT_COMMANDS,
     .group = PP_GROUP_ANSWER, .help = "the prompt"},
    {.name = "file", .others = "-f", .arg = "FILE", .choices = "FILE", .set = pp_set_text, AT(file),
     .commands = RUN | TEXT_COMMANDS | MEASURE, .group = PP_GROUP_ANSWER,
     .help = "read it from a file (-: stdin)"},
    {.name = "raw", .set = pp_set_flag, AT(raw), .commands = RUN, .group = PP_GROUP_ANSWER,
     .help = "give the prompt to the model as it stands, without a chat template"},

    /* conversations */
    {.name = "continue", .set = pp_set_flag, AT(resume_latest), .commands = TALK, .group = PP_GROUP_SESSION,
     .help = "go on with the latest conversation"},
    {.name = "resume", .arg = "ID", .set = pp_set_text, AT(resume), .commands = TALK, .group = PP_GROUP_SESSION,
     .help = "go on with this conversation (the first digits of its ID do)"},
    {.name = "save", .set = pp_set_flag, AT(save), .commands = RUN, .group = PP_GROUP_SESSION,
     .help = "keep question and answer as a conversation"},

    {.name = "limit", .arg = "N", .set = pp_set_int64, AT(limit), .min = 1, .max = 1 << 30,
     .commands = PP_BIT(SESSIONS), .group = PP_GROUP_SESSION,
     .help = "print the newest N; default: all of a list, 100 of a search"},
    {.name = "best-first", .set = pp_set_flag, AT(best_first), .commands = PP_BIT(SESSIONS),
     .group = PP_GROUP_SESSION,
     .help = "search: by relevance instead of newest first (if at most 10,000 messages match)"},

    /* output */
    {.name = "stats", .set = pp_set_flag, AT(stats), .commands = RUN, .group = PP_GROUP_OUTPUT,
     .help = "end with a line of JSON on stderr: tokens, speeds, times"},
    {.name = "json", .set = pp_set_flag, AT(json),
     .commands = PP_BIT(SESSIONS) | PP_BIT(LORA) | PP_BIT(TOKENIZE) | PP_BIT(DETOKENIZE) | PP_BIT(PERPLEXITY) |
                 PP_BIT(BENCH),
     .group = PP_GROUP_OUTPUT, .help = "print JSON"},
    {.name = "plain", .set = pp_set_flag, AT(plain), .commands = CHAT, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "lines only, no full screen"},
    {.name = "theme", .arg = "NAME", .choices = "dark light mono terminal", .set = pp_set_text, AT(theme),
     .commands = CHAT, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "colours: dark, light, mono, terminal, or a theme of your own"},
    {.name = "titles", .arg = "HOW", .choices = "first-words model", .set = pp_set_choice, AT(titles),
     .commands = CHAT, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "titles of conversations: the first-words of the question (default: at once, and small models write poor "
             "titles) or by the model"},
    {.name = "no-color", .set = pp_set_flag, AT(no_color), .commands = ANY, .section = "ui", .group = PP_GROUP_OUTPUT,
     .help = "no colours; the variable NO_COLOR does the same"},
    {.name = "output", .others = "-o", .arg = "FILE", .choices = "FILE", .set = pp_set_text, AT(output),
     .commands = PP_BIT(LOGITS), .group = PP_GROUP_OUTPUT, .help = "where to write"},

    /* single commands */
    {.name = "ids", .arg = "LIST", .set = pp_set_text, AT(ids), .commands = PP_BIT(LOGITS), .group = PP_GROUP_WORK,
     .help = "token ids, such as 1,2,3"},
    {.name = "bos", .set = pp_set_flag, AT(bos), .commands = PP_BIT(TOKENIZE), .group = PP_GROUP_WORK,
     .help = "begin with the token that begins a text"},
    {.name = "special", .set = pp_set_flag, AT(special), .commands = PP_BIT(TOKENIZE) | PP_BIT(DETOKENIZE),
     .group = PP_GROUP_WORK, .help = "recognise control tokens in the text, or write them out"},
    {.name = "tools", .arg = "FILE", .choices = "FILE", .set = pp_set_text, AT(tools), .commands = PP_BIT(TEMPLATE),
     .group = PP_GROUP_WORK, .help = "JSON array of tools for the template"},
    {.name = "no-generation-prompt", .set = pp_set_flag, AT(no_generation_prompt), .commands = PP_BIT(TEMPLATE),
     .group = PP_GROUP_WORK, .help = "do not open the answer's turn"},
    {.name = "bos-text", .arg = "TEXT", .set = pp_set_text, AT(bos_text), .commands = PP_BIT(TEMPLATE),
     .group = PP_GROUP_WORK, .help = "what the template knows as bos_token"},
    {.name = "eos-text", .arg = "TEXT", .set = pp_set_text, AT(eos_text), .commands = PP_BIT(TEMPLATE),
     .group = PP_GROUP_WORK, .help = "what the template knows as eos_token"},
    {.name = "now", .arg = "TIME", .set = pp_set_text, AT(now), .commands = PP_BIT(TEMPLATE), .group = PP_GROUP_WORK,
     .help = "the template's time, such as \"2026-03-14 15:09:26\""},
    {.name = "chunks", .arg = "N", .set = pp_set_int, AT(chunks), .min = 0, .max = 1 << 30,
     .commands = PP_BIT(PERPLEXITY), .group = PP_GROUP_WORK, .help = "measure the first N chunks; 0: all (default)"},
    {.name = "windows", .set = pp_set_flag, AT(windows), .commands = PP_BIT(PERPLEXITY), .group = PP_GROUP_WORK,
     .help = "chunks without BOS, every token is scored"},
    {.name = "n-prompt", .others = "-p", .arg = "N", .set = pp_set_int64, AT(n_prompt), .min = 0, .max = 1 << 24,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "tokens of prefill (512)"},
    {.name = "n-gen", .others = "-n", .arg = "N", .set = pp_set_int64, AT(n_gen), .min = 0, .max = 1 << 24,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "tokens of decode (32)"},
    {.name = "repetitions", .others = "-r", .arg = "N", .set = pp_set_int, AT(repetitions), .min = 1, .max = 10000,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "how often to measure (5)"},
    {.name = "depth", .arg = "LIST", .set = pp_set_text, AT(bench.depths), .commands = PP_BIT(BENCH),
     .group = PP_GROUP_WORK, .help = "tokens that lie before what is measured, such as 0,4096"},
    {.name = "rows", .arg = "LIST", .set = pp_set_text, AT(bench.rows), .commands = PP_BIT(BENCH),
     .group = PP_GROUP_WORK, .help = "measure a pass of so many rows, such as 1,2,4,8,16"},
    {.name = "shape", .arg = "NAME",
     .choices = "stories-15m smollm2-135m tinyllama-1.1b llama-3.2-1b llama-3.2-3b llama-2-7b mistral-7b llama-3.1-8b",
     .set = pp_set_choice, AT(bench.shape), .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "instead of a model, random weights in this shape: stories-15m, smollm2-135m, tinyllama-1.1b, "
             "llama-3.2-1b, llama-3.2-3b, llama-2-7b, mistral-7b, llama-3.1-8b"},
    {.name = "type", .arg = "TYPE", .choices = "f32 f16 bf16 q8_0 q4_0 q4_k q4_k_m q6_k", .set = pp_set_text,
     AT(bench.type), .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "its weights: f32, f16, bf16, q8_0, q4_0, q4_k, q6_k, or q4_k_m as quantising mixes them (default)"},
    {.name = "layers", .arg = "N", .set = pp_set_int64, AT(bench.layers), .min = 1, .max = 256,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "how many of its layers; default: enough to fill no cache, and all with --write"},
    {.name = "vocab", .arg = "N", .set = pp_set_int64, AT(bench.vocab), .min = 1, .max = 1 << 20,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "tokens of its vocabulary; default: the shape's"},
    {.name = "write", .arg = "FILE", .choices = "FILE", .set = pp_set_text, AT(bench.write), .commands = PP_BIT(BENCH),
     .group = PP_GROUP_WORK, .help = "keep the random model in this GGUF file, and measure nothing"},
    {.name = "adapters", .arg = "N", .set = pp_set_int, AT(bench.adapters), .min = 1, .max = 10000,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "trace: random adapters (16), unless --lora names some"},
    {.name = "requests", .arg = "N", .set = pp_set_int, AT(bench.requests), .min = 1, .max = 1000000,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK, .help = "trace: requests in a round (64)"},
    {.name = "zipf", .arg = "S", .set = pp_set_float, AT(bench.zipf), .min = 0, .max = 10, .commands = PP_BIT(BENCH),
     .group = PP_GROUP_WORK, .help = "trace: how much more often the first adapters are asked for (1); 0: all alike"},
    {.name = "compare", .arg = "OLD", .choices = "FILE", .set = pp_set_text, AT(bench.compare),
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "measure nothing: hold the --json of one run against that of a newer one, which follows; exit code 1 if "
             "it is slower"},
    {.name = "threshold", .arg = "PERCENT", .set = pp_set_percent, AT(bench.threshold), .min = 0, .max = 1000,
     .commands = PP_BIT(BENCH), .group = PP_GROUP_WORK,
     .help = "by how much, beyond the noise of both, such as 5% (default)"},
    {.name = "outtype", .others = "--out-type", .arg = "TYPE", .choices = "f32 f16 bf16 q8_0", .set = pp_set_text,
     AT(out_type), .commands = PP_BIT(CONVERT), .group = PP_GROUP_WORK,
     .help = "type of the weights in the new file; default: as they are"},
    {.name = "base", .others = "-m --model", .arg = "MODEL", .choices = "FILE", .set = pp_set_text, AT(model),
     .commands = PP_BIT(CONVERT),
     .group = PP_GROUP_WORK, .help = "the model that an adapter belongs to, if the adapter does not say"},

    /* general */
    {.name = "help", .others = "-h", .set = pp_set_flag, AT(help), .commands = ANY, .group = PP_GROUP_GENERAL,
     .help = "this text"},
    {.name = "version", .others = "-V", .set = pp_set_flag, AT(version), .commands = ANY, .group = PP_GROUP_GENERAL,
     .help = "the version of pippin"},
    {.name = "completion", .arg = "SHELL", .choices = "bash zsh fish", .set = pp_set_choice, AT(completion),
     .commands = ANY, .group = PP_GROUP_GENERAL, .help = "print a completion script for bash, zsh or fish"},
};
const size_t pp_n_option_specs = sizeof pp_option_specs / sizeof pp_option_specs[0];

const struct pp_foreign_option pp_foreign_options[] = {
    {"--grammar-file --json-schema --grammar", "is reserved for constrained answers, which are not available yet"},
    {"--quant", "is reserved and not available yet; make a smaller file with `pippin quantize`"},
    {"--imatrix --pooling", "is reserved and not available yet"},
    {"-hf -hfr --hf-repo -hff --hf-file -mu --model-url",
     "would load a model from the network, which this version cannot; download it and give its path with -m"},
    {"-cnv --conversation -i --interactive", "is not needed: `pippin chat` is a conversation"},
    {"-no-cnv --no-conversation", "is not needed: `pippin run` gives one answer"},
    {"-fa --flash-attn --no-mmap --mlock -b --batch-size -ub --ubatch-size", "has no meaning here; leave it out"},
    {"-ctk --cache-type-k -ctv --cache-type-v", "is called --kv-type here and sets both K and V"},
    {"-sysf --system-prompt-file", "is not there; use -sys \"$(cat FILE)\""},
};
const size_t pp_n_foreign_options = sizeof pp_foreign_options / sizeof pp_foreign_options[0];
