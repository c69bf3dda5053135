/* options_check.c - refuses options that would have no effect: those of another subcommand, those that need another
 * option, and those that contradict one. Whoever gives such an option expects an effect, so it is an error with
 * advice. Only the command line is checked, as pippin.conf and the environment are meant for all commands. */
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "src/options_internal.h"

/* Names of options are the long ones without dashes; all lists are separated by spaces. */

#define TALK (PP_BIT(CHAT) | PP_BIT(RUN))
#define TRAINING                                                                                                       \
    "chat-template-file seed continue output rank alpha rslora targets lr warmup weight-decay clip batch accumulate "  \
    "epochs steps max-length val val-share eval-every train-memory"

/* Options that apply to some subcommands only, or to some measurements of `pippin bench`. */
static const struct {
    enum pp_cmd command;
    const char *options;
    const char *words;
} of_words[] = {
    {PP_CMD_SESSIONS, "limit", "list search"},
    {PP_CMD_SESSIONS, "best-first", "search"},
    {PP_CMD_SESSIONS, "output format all", "export"},
    {PP_CMD_SESSIONS, "again", "import"},
    {PP_CMD_SESSIONS, "json", "list search show export import"},
    {PP_CMD_MODELS, "name", "add pull"},
    {PP_CMD_MODELS, "sha256 hf-base ollama-base", "add pull"},
    {PP_CMD_MODELS, "ctx-size kv-type", "info"},
    {PP_CMD_MODELS, "json", "list info"},
    {PP_CMD_LORA, TRAINING, "train"},
    {PP_CMD_LORA, "threads kernels", "info train"},
    {PP_CMD_BENCH, "depth", "quick depth rows threads kv kernels memory micro resume all"},
    {PP_CMD_BENCH, "rows", "quick depth rows threads kv kernels memory micro several all"},
    {PP_CMD_BENCH, "rank", "lora all"},
    {PP_CMD_BENCH, "adapters requests zipf", "trace all"},
    {PP_CMD_BENCH, "model-draft draft-lora no-draft draft-max", "draft"},
    {PP_CMD_BENCH, "file", "draft tokenizer all"},
};

/* Options that need another one; an error says to leave them out or to add that. */
static const struct {
    enum pp_cmd command;
    const char *options;
    const char *needed; /* one of these suffices */
} of_options[] = {
    {PP_CMD_BENCH, "layers vocab write", "shape"},
    {PP_CMD_BENCH, "threshold", "compare"},
};

static const struct {
    unsigned commands;
    const char *option;
    const char *others; /* any of these contradicts it */
    const char *why;    /* or NULL if the names explain it */
} contradictions[] = {
    {TALK, "continue", "resume", NULL},
    {TALK, "temporary", "continue resume", "a temporary chat starts empty"},
    {TALK, "use-draft", "no-draft", NULL},
    {TALK, "no-draft", "draft-always drafter", NULL},
    {PP_BIT(RUN), "raw", "save continue resume", "a raw prompt has no turns"},
    {PP_BIT(RUN), "grammar-file", "json-schema", "a schema is made into a grammar"},
    {PP_BIT(RUN), "grammar-file", "ignore-eos", "an answer ends where its grammar ends"},
    {PP_BIT(RUN), "json-schema", "ignore-eos", "an answer ends where its grammar ends"},
    {TALK, "persona", "system", "a persona is a system prompt"},
    {PP_BIT(RUN), "raw", "system persona chat-template-file thinking", "a raw prompt uses no chat template"},
    {PP_BIT(RUN), "raw", "overflow", "a raw prompt is never shortened"},
    {PP_BIT(SESSIONS), "format", "json", NULL},
    {PP_BIT(LOGITS), "ids", "file", NULL},
    {PP_BIT(LORA), "val", "val-share", NULL},
    {PP_BIT(LORA), "steps", "epochs", NULL},
    {PP_BIT(BENCH), "shape", "model", NULL},
    {PP_BIT(BENCH), "shape", "quant imatrix", "random weights are made in the type that --type names"},
    {PP_BIT(BENCH), "adapters", "lora lora-scaled", NULL},
    {PP_BIT(BENCH), "compare", "shape write model file depth rows n-prompt n-gen repetitions", "--compare measures "
                                                                                               "nothing"},
    {PP_BIT(BENCH), "write", "depth rows n-prompt n-gen repetitions", "--write measures nothing"},
};

/* Finds the first option of a list that is given on the command line: its name; false: none is. */
static bool any_given(const struct pp_options *o, const char *list, char name[32])
{
    const char *word;
    size_t n;
    while (pp_next_word(&list, &word, &n)) {
        snprintf(name, 32, "%.*s", (int)n, word);
        if (pp_options_given(o, name))
            return true;
    }
    return false;
}

/* Whether one of these words follows the command, or is its default. */
static bool says_one_of(const struct pp_options *o, enum pp_cmd cmd, const char *words)
{
    if (cmd != PP_CMD_BENCH) {
        const char *word = o->subcommand ? o->subcommand : "list";
        return pp_word_in(words, word, strlen(word));
    }
    for (int i = 0; i < o->n_args; i++)
        if (pp_word_in(words, o->args[i], strlen(o->args[i])))
            return true;
    return !o->n_args && pp_word_in(words, "quick", 5);
}

/* Appends the command with these words: "`pippin sessions list` or `search`". */
static void name_words(struct pp_buf *out, const char *command, const char *words)
{
    const char *word;
    size_t n;
    pp_buf_fmt(out, "`pippin %s ", command);
    for (bool first = true; pp_next_word(&words, &word, &n); first = false)
        pp_buf_fmt(out, "%s%.*s`", first ? "" : words[strspn(words, " ")] ? ", `" : " or `", (int)n, word);
}

static enum pp_code check_words(const struct pp_options *o, enum pp_cmd cmd, struct pp_error *err)
{
    char name[32];
    for (size_t i = 0; i < sizeof of_words / sizeof *of_words; i++) {
        if (of_words[i].command != cmd || !any_given(o, of_words[i].options, name) ||
            says_one_of(o, cmd, of_words[i].words))
            continue;
        struct pp_buf where = {0};
        name_words(&where, o->command, of_words[i].words);
        const enum pp_code code = pp_fail(err, PP_ERR_USAGE, "--%s has no effect here: it belongs to %s; leave it out",
                                          name,
                                          pp_buf_cstr(&where));
        pp_buf_free(&where);
        return code;
    }
    return PP_OK;
}

/* --imatrix needs --quant, whose type may also come from pippin.conf. */
static enum pp_code check_imatrix(const struct pp_options *o, enum pp_cmd cmd, struct pp_error *err)
{
    if (!o->imatrix.file || o->quant || cmd == PP_CMD_QUANTIZE)
        return PP_OK;
    return pp_fail(err, PP_ERR_USAGE, "--imatrix is for quantising, and nothing is quantised here; add --quant TYPE "
                                      "(with a model folder), or leave --imatrix out");
}

/* When imatrix only adds files, it reads no text and needs no model. */
static enum pp_code check_adding(const struct pp_options *o, enum pp_cmd cmd, struct pp_error *err)
{
    static const char of_reading[] = "model chunks process-output output-frequency ctx-size quant lora lora-scaled";
    char name[32];
    if (cmd != PP_CMD_IMATRIX || !o->imatrix.n_in_files || o->file || !any_given(o, of_reading, name))
        return PP_OK;
    return pp_fail(err, PP_ERR_USAGE, "--%s applies to reading a text, and --in-file alone reads none; add -f FILE, "
                                      "or leave --%s out", name, name);
}

/* In the chat another drafter may be chosen later, but `run` has only this one. */
static enum pp_code check_drafter(const struct pp_options *o, enum pp_cmd cmd, struct pp_error *err)
{
    char name[32];
    if (cmd != PP_CMD_RUN || !o->drafter || strcmp(o->drafter, "lookup") != 0 ||
        !any_given(o, "model-draft draft-lora", name))
        return PP_OK;
    return pp_fail(err, PP_ERR_USAGE, "--%s is for a draft model, which --drafter lookup does not use; leave one of "
                                      "them out",
                   name);
}

enum pp_code pp_options_check(const struct pp_options *o, enum pp_cmd cmd, struct pp_error *err)
{
    char name[32];
    for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions; i++) {
        const char *why = contradictions[i].why;
        if (contradictions[i].commands & 1u << cmd && pp_options_given(o, contradictions[i].option) &&
            any_given(o, contradictions[i].others, name))
            return pp_fail(err, PP_ERR_USAGE, "--%s and --%s cannot be combined%s%s; give one of them",
                           contradictions[i].option,
                           name, why ? ": " : "", why ? why : "");
    }
    for (size_t i = 0; i < sizeof of_options / sizeof *of_options; i++)
        if (of_options[i].command == cmd && any_given(o, of_options[i].options, name)) {
            char needed[32];
            if (!any_given(o, of_options[i].needed, needed))
                return pp_fail(err, PP_ERR_USAGE, "--%s has no effect without --%s; add that, or leave --%s out", name,
                               of_options[i].needed, name);
        }
    if (cmd == PP_CMD_BENCH && pp_options_given(o, "type") && !o->bench.shape && !says_one_of(o, cmd, "micro all"))
        return pp_fail(err, PP_ERR_USAGE, "--type is for random weights; add --shape NAME, or leave --type out");
    /* With --compare the words after bench are files. */
    enum pp_code code = cmd == PP_CMD_BENCH && o->bench.compare ? PP_OK : check_words(o, cmd, err);
    if (!code)
        code = check_imatrix(o, cmd, err);
    if (!code)
        code = check_drafter(o, cmd, err);
    return code ? code : check_adding(o, cmd, err);
}
