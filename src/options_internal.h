/* options_internal.h - the tables of commands and options, and the functions that set an option from its text. */
#ifndef PP_SRC_OPTIONS_INTERNAL_H
#define PP_SRC_OPTIONS_INTERNAL_H

#include <stddef.h>

#include "src/options.h"

enum pp_cmd {
    PP_CMD_CHAT, PP_CMD_RUN, PP_CMD_SESSIONS, PP_CMD_MODELS, PP_CMD_LORA, PP_CMD_TOKENIZE, PP_CMD_DETOKENIZE,
    PP_CMD_TEMPLATE,
    PP_CMD_LOGITS, PP_CMD_PERPLEXITY, PP_CMD_BENCH, PP_CMD_EMBED, PP_CMD_CONVERT, PP_CMD_IMATRIX,
    PP_CMD_QUANTIZE, PP_CMD_DOCTOR, PP_CMD_COUNT,
};
#define PP_BIT(cmd) (1u << PP_CMD_##cmd)

struct pp_command_spec {
    const char *name;
    const char *args;        /* its arguments, for the usage line */
    const char *subcommands; /* separated by spaces, or NULL */
    int max_args;            /* after the command and its subcommand */
    const char *help;
};
extern const struct pp_command_spec pp_command_specs[PP_CMD_COUNT];

/* What a word after a command means: a subcommand with its arguments, or what `bench` measures. */
struct pp_word_help {
    const char *word; /* NULL at the end of a list */
    const char *help;
};
/* The words that may follow a command, in the order of its usage line; NULL if there are none. */
const struct pp_word_help *pp_command_words(enum pp_cmd cmd);
/* Returns PP_CMD_COUNT if there is none. */
enum pp_cmd pp_command_spec_find(const char *name);

/* Where a value comes from, in ascending precedence. */
enum pp_source { PP_SOURCE_DEFAULT, PP_SOURCE_CONFIG, PP_SOURCE_ENVIRONMENT, PP_SOURCE_COMMAND_LINE };

struct pp_parse {
    struct pp_options *o;
    enum pp_source source;                          /* of the value that is being set */
    /* sources of the current values: a stronger source replaces a list */
    enum pp_source model, draft, lora, draft_lora, stops, bias;
    bool config_model;                              /* pippin.conf names a model */
};

struct pp_option;
/* shown: the option as the user wrote it, for errors. */
typedef enum pp_code pp_option_setter(struct pp_parse *ps, const struct pp_option *opt, const char *value,
                                      const char *shown, struct pp_error *err);

enum pp_option_group {
    PP_GROUP_MODEL, PP_GROUP_ANSWER, PP_GROUP_SESSION, PP_GROUP_OUTPUT, PP_GROUP_WORK, PP_GROUP_GENERAL, PP_GROUP_COUNT,
};

/* What an option means for some of its commands, where that differs from its general meaning. */
struct pp_own_help {
    unsigned commands; /* PP_BIT...; 0: none */
    const char *text;
};
enum { PP_MAX_OWN_HELPS = 4 };

struct pp_option {
    const char *name;      /* long name without dashes; also the name in pippin.conf */
    const char *others;    /* other spellings with dashes, separated by spaces; or NULL */
    const char *arg;       /* name of the value in help texts; NULL: it has no value */
    const char *choices;   /* for completion: "FILE", "MODEL", "ADAPTER", "SESSION", "PERSONA" or words; or NULL */
    const char *help;
    struct pp_own_help own[PP_MAX_OWN_HELPS];
    pp_option_setter *set;
    size_t offset;         /* of the field in struct pp_options */
    double min, max;       /* limits of a number */
    unsigned commands;     /* PP_BIT... */
    const char *section;   /* of pippin.conf, or NULL */
    const char *env;       /* or NULL */
    enum pp_option_group group;
};
extern const struct pp_option pp_option_specs[];
extern const size_t pp_n_option_specs;
/* The help text of an option for one command; PP_CMD_COUNT: its general help text. */
const char *pp_option_help(const struct pp_option *opt, enum pp_cmd cmd);

/* Unsupported options: reserved ones, and those of other programs that have an equivalent here. */
struct pp_foreign_option {
    const char *names; /* with dashes, separated by spaces */
    const char *why;
};
extern const struct pp_foreign_option pp_foreign_options[];
extern const size_t pp_n_foreign_options;

/* Commands of other programs, and what corresponds to them here. */
struct pp_foreign_command {
    const char *names; /* separated by spaces */
    const char *instead;
};
extern const struct pp_foreign_command pp_foreign_commands[];
extern const size_t pp_n_foreign_commands;
/* Subcommands of other programs; `instead` is ours, if the command has it. */
extern const struct pp_foreign_command pp_foreign_subcommands[];
extern const size_t pp_n_foreign_subcommands;

/* Whether `word` (of n bytes) is in a list of words separated by spaces. */
bool pp_word_in(const char *list, const char *word, size_t n);
/* The next word of such a list: sets *word and *n, advances *list; false at the end. */
bool pp_next_word(const char **list, const char **word, size_t *n);

/* --- options_check.c --------------------------------------------------------------------------------------------- */

/* Whether the options on the command line of `cmd` fit together: PP_ERR_USAGE names an option that would have no
 * effect, with advice. */
enum pp_code pp_options_check(const struct pp_options *o, enum pp_cmd cmd, struct pp_error *err);

/* --- options_value.c --------------------------------------------------------------------------------------------- */

/* Whether a text is valid for a model (UTF-8); PP_ERR_USAGE names `shown`. */
enum pp_code pp_check_words(const char *text, const char *shown, struct pp_error *err);
pp_option_setter pp_set_flag, pp_set_text, pp_set_words, pp_set_file, pp_set_read_file, pp_set_new_file, pp_set_prompt,
    pp_set_int, pp_set_int64, pp_set_ctx_size, pp_set_float, pp_set_bytes, pp_set_choice, pp_set_layout_cache,
    pp_set_bell, pp_set_snapshot_quota;
pp_option_setter pp_set_model, pp_set_draft, pp_set_kv_type, pp_set_lora, pp_set_lora_scaled, pp_set_draft_lora,
    pp_set_seed, pp_set_logit_bias;
pp_option_setter pp_set_threads, pp_set_percent;
pp_option_setter pp_set_in_file, pp_set_stop, pp_set_gpu_layers, pp_set_device;

/* A copy of n bytes that is valid until exit; NULL: out of memory. */
const char *pp_copy_until_exit(const char *s, size_t n);
/* Keeps a pointer to allocated memory until exit, so that it does not count as leaked. False: out of memory. */
bool pp_keep_until_exit(void *what);

#endif
