/* options.h - the options of the command line and pippin.conf. One table serves the parser, --help, completion and
 * the check of the manual.
 *
 * Precedence: command line, environment (with llama.cpp's LLAMA_ARG_* names if they exist), pippin.conf, defaults. */
#ifndef PP_SRC_OPTIONS_H
#define PP_SRC_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/engine.h"
#include "engine/train.h"
#include "src/paths.h"

enum { PP_MAX_LORA_OPTIONS = 8, PP_MAX_STOPS = 16, PP_MAX_POSITIONAL = 512, PP_MAX_OPTIONS = 128,
       PP_MAX_IN_FILES = 16, PP_MAX_FILES = 64 };

struct pp_config;

struct pp_options {
    const struct pp_config *config; /* pippin.conf (config.h), for what is not an option, such as personas; NULL with
                                     * --help and the like; valid until exit */
    const char *command;       /* "chat", "run", "tokenize", ... never NULL */
    bool command_given;        /* by name on the command line */
    const char *subcommand;    /* of sessions, lora, models: "list", ...; or NULL */
    const char *args[PP_MAX_POSITIONAL]; /* the remaining arguments: files, ids */
    int n_args;
    bool given[PP_MAX_OPTIONS]; /* pp_options_given */

    /* model and engine */
    const char *model;         /* -m; "" is the starter */
    const char *draft;         /* -md; NULL: the starter's draft with the starter, else none */
    bool use_draft;            /* --use-draft: overrides a --no-draft of pippin.conf */
    bool no_draft;             /* --no-draft: no drafting, not even by lookup */
    const char *drafter;       /* --drafter: "auto", "model", "lookup"; NULL: auto */
    int draft_max;             /* --draft-max; 8 */
    bool draft_always;         /* --draft-always: always draft that many tokens */
    float draft_p_min;         /* --draft-p-min; 0: automatic */
    int threads;               /* -t; 0: automatic */
    int64_t ctx_size;          /* --ctx-size */
    enum pp_kv_type kv_type;   /* --kv-type */
    bool kv_type_given;        /* logits and perplexity use f32 otherwise */
    const char *overflow;      /* --overflow ask|stop|shift|summarise; NULL: ask */
    const char *thinking;      /* --thinking auto|off|on|low|medium|high; NULL: auto */
    const char *reasoning;     /* --reasoning show|fold|hide; NULL: fold */
    uint64_t kv_memory;        /* --kv-memory, in bytes; suffixes K, M, G */
    const char *convert_to;    /* --to gguf|hf|mlx; NULL: by the target's name */
    int convert_bits;          /* --bits 4|8 of an MLX folder; 0: not given */
    const char *quant;         /* --quant TYPE of a model folder; NULL: as it is stored */
    const char *memory_check;  /* --memory-check on|off; NULL: on */
    uint64_t layout_cache;     /* --layout-cache, in bytes; 0: by the free disk; PP_LAYOUTS_OFF */
    uint64_t snapshot_quota;   /* --snapshot-quota, in bytes; 0: PP_SNAPSHOT_QUOTA; PP_SNAPSHOTS_OFF */
    const char *kernels;       /* --kernels NAME, see engine/cpu/isa.h */
    const char *activations;   /* --activations auto|f32|pair|bf16; NULL: auto */
    struct pp_lora_option { const char *path; float scale; }
        lora[PP_MAX_LORA_OPTIONS],       /* --lora FILE, --lora-scaled FILE:SCALE */
        draft_lora[PP_MAX_LORA_OPTIONS]; /* --draft-lora FILE[:SCALE]: of the draft model */
    int n_lora, n_draft_lora;

    /* answer */
    struct pp_sampling sampling; /* --temp --top-k --top-p --min-p --repeat-penalty --repeat-last-n
                                    --frequency-penalty --presence-penalty --seed --logit-bias */
    bool seed_given;
    int64_t n_predict;         /* -n; -1 */
    const char *stops[PP_MAX_STOPS]; /* --stop TEXT */
    int n_stops;
    bool ignore_eos;           /* --ignore-eos */
    const char *system;        /* -sys, --system; or that of the persona, which then also counts as given */
    const char *persona;       /* --persona: its full name; "": none; NULL: not given */
    const char *chat_template_file;
    const char *prompt;        /* -p */
    const char *file;          /* -f; of several, the last one */
    const char *files[PP_MAX_FILES]; /* all of them, for `run` */
    int n_files;
    bool raw;                  /* --raw: the prompt goes to the model without a chat template */

    const char *name;          /* models add, pull --name */
    const char *sha256;        /* models pull --sha256 */
    const char *hf_base, *ollama_base; /* servers of hf: and ollama:; NULL: the public ones */

    /* conversations */
    bool save;                 /* --save */
    bool temporary;            /* --temporary: nothing of the chat is written to disk */
    bool resume_latest;        /* --continue */
    const char *resume;        /* --resume ID */
    int64_t limit;             /* sessions --limit; -1: unlimited for a list, 100 for a search */
    bool best_first;           /* sessions search --best-first */

    /* output */
    bool stats;                /* --stats */
    bool json;                 /* --json */
    bool plain;                /* --plain: no full screen, lines only */
    bool mouse;                /* --mouse: use its wheel */
    int bell;                  /* --bell: seconds without a key after which the end of an answer rings; -1: off */
    bool no_color;             /* NO_COLOR or --no-color */
    const char *theme;         /* --theme */
    const char *titles;        /* --titles first-words|model; NULL: first-words */
    const char *output;        /* -o */
    const char *export_format; /* sessions export --format: "md", "json", "jsonl"; NULL: not given */
    bool export_all;           /* sessions export --all */
    bool import_again;         /* sessions import --again */

    /* inspection */
    const char *ids;           /* --ids 1,2,3 */
    bool bos, special, count;  /* tokenize --bos --special --count */
    const char *tools;         /* template --tools FILE */
    bool no_generation_prompt;
    const char *bos_text, *eos_text, *now;
    int chunks;                /* perplexity, imatrix --chunks; 0: all */
    bool windows;              /* perplexity --windows */
    const char *pooling;       /* embed --pooling last|mean|cls|none; NULL: as the model says */
    int64_t n_prompt, n_gen;   /* bench: 512 and 32 */
    int repetitions;           /* bench -r; 5 */
    struct {                   /* bench; lists are numbers or names between commas, NULL: the default */
        const char *depths, *rows;
        const char *threads, *kv_types; /* lists given by -t and --kv-type; the first item is in the fields above,
                                         * too */
        const char *shape, *type, *write;
        int64_t layers, vocab; /* 0: the shape's */
        const char *compare;   /* the older of two results */
        float threshold;       /* in percent; 5 */
        int adapters, requests;
        float zipf;
    } bench;
    const char *out_type;      /* convert --outtype */
    struct {
        const char *in_files[PP_MAX_IN_FILES]; /* imatrix --in-file */
        int n_in_files;
        int output_frequency;  /* 10 */
        bool process_output;
        const char *file;      /* --imatrix, of quantize and of --quant; or NULL */
    } imatrix;
    struct pp_train_options train; /* lora train --rank --alpha ... */
    struct {
        const char *targets;   /* --targets LIST */
        const char *validation; /* --val FILE; NULL: val_share of the examples */
        float val_share;       /* 0.1 */
        int64_t max_length;    /* 512 */
        int64_t eval_every;    /* 0: ten times */
    } lora_train;

    bool help, version;
    const char *completion;    /* --completion WHAT: a shell, or the kind of names to list; or NULL */

    const char *grammar_file;  /* run --grammar-file */
    const char *json_schema;   /* run --json-schema: a file, or the schema itself */
};

/* Fills *o. Strings point into argv, the environment, or memory that is valid until exit. PP_ERR_USAGE names the
 * option and what it expects, and for unknown ones the nearest known name (or the replacement of a removed one). */
enum pp_code pp_options_parse(int argc, char **argv, const struct pp_paths *paths, struct pp_options *o,
                              struct pp_error *err);
/* --activations as an engine option. */
enum pp_activations pp_options_activations(const struct pp_options *o);
/* Whether an option was given on the command line; name: the long one, without dashes. */
bool pp_options_given(const struct pp_options *o, const char *name);
/* Whether the model is named by pippin.conf or the environment, which an error about it must mention. */
bool pp_options_model_elsewhere(const struct pp_options *o);
#define PP_MODEL_ELSEWHERE "model of pippin.conf or the environment"
/* Applies a value stored with a conversation ("temp", "0.2") unless the command line gives that option.
 * PP_ERR_NOT_FOUND: there is no such option that can be stored; PP_ERR_USAGE: the value is invalid. */
enum pp_code pp_options_recall(struct pp_options *o, const char *name, const char *value, struct pp_error *err);
/* The limits of such an option's number. */
void pp_options_bounds(const char *name, double *min, double *max);
/* Parses a number as options accept it: plain decimal (no "inf", no hexadecimal) with a decimal point, in any
 * locale. False: it is invalid. */
bool pp_options_number(const char *s, double *out);
/* Advice to append to an error about a number with a decimal comma; "" for other texts. */
const char *pp_options_point(const char *s);
/* The text of --help for an option; "" if there is none. */
const char *pp_options_about(const char *name);
/* --help of a command (NULL: of the program). */
void pp_options_help(FILE *out, const char *command);
/* Shell completion script for "bash", "zsh" or "fish", generated from the table. False: no such shell. */
bool pp_options_completion(FILE *out, const char *shell);

#endif
