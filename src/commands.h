/* commands.h - the commands that need no full screen. Each returns the exit code, prints its results on stdout and
 * everything else on stderr. */
#ifndef PP_SRC_COMMANDS_H
#define PP_SRC_COMMANDS_H

#include "src/options.h"
#include "src/paths.h"

struct pp_store;

typedef int pp_command_fn(const struct pp_options *o, const struct pp_paths *p);

pp_command_fn pp_cmd_run;
pp_command_fn pp_cmd_tokenize;
pp_command_fn pp_cmd_detokenize;
pp_command_fn pp_cmd_template;
pp_command_fn pp_cmd_logits;
pp_command_fn pp_cmd_perplexity;
pp_command_fn pp_cmd_bench;
pp_command_fn pp_cmd_embed;
pp_command_fn pp_cmd_sessions;
pp_command_fn pp_cmd_convert;
pp_command_fn pp_cmd_imatrix;
pp_command_fn pp_cmd_quantize;
pp_command_fn pp_cmd_lora;
pp_command_fn pp_cmd_models;

/* cmd_lora_train.c, called by pp_cmd_lora. */
enum pp_code pp_cmd_lora_train(const struct pp_options *o, const struct pp_paths *p, const struct pp_cancel *cancel,
                               struct pp_error *err);

/* cmd_models_pull.c, called by pp_cmd_models: downloads a model into the models folder, unless the store (which may
 * be NULL) refuses its name. *path: pp_free; sha256: "" for a model of several files. */
enum pp_code pp_cmd_models_pull(const struct pp_options *o, const struct pp_paths *p, struct pp_store *st,
                                const char *what, const struct pp_cancel *cancel, char **path,
                                char sha256[static 65], struct pp_error *err);

/* The function of a command, or NULL if it is "chat" or unknown. */
pp_command_fn *pp_command_find(const char *name);

#endif
