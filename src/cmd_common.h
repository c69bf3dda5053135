/* cmd_common.h - what the commands without a screen share: talking, reading input, JSON, and a model made runnable.
 *
 * Everything here belongs to the one thread that runs the command. */
#ifndef PP_SRC_CMD_COMMON_H
#define PP_SRC_CMD_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/error.h"
#include "engine/engine.h"
#include "engine/text.h"
#include "src/options.h"
#include "src/paths.h"

/* --- signals, talk, exit ---------------------------------------------------------------------------------- */

/* SIGINT, SIGTERM and SIGHUP ask the command to stop through the object returned (a second SIGINT or SIGTERM, later
 * than 0.3 s after the first signal, kills; SIGHUP never does); SIGPIPE becomes an error of write. Signals that the
 * caller of the program had ignored stay ignored. Call it once, first. */
struct pp_cancel *pp_cli_begin(void);
/* "pippin: ...\n" on stderr, safe for a terminal. */
void pp_cli_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Flushes stdout, says what went wrong, and gives the exit code. A reader of stdout that went away is not talked about:
 * exit 1. */
int pp_cli_end(enum pp_code code, const struct pp_error *err);
/* After a write to stdout has failed: whether its reader went away, which is nothing to complain about. */
bool pp_cli_reader_gone(void);

/* One line on stderr, rewritten in place at most ten times a second, only if stderr is a terminal. Zero-initialise. */
struct pp_cli_bar {
    uint64_t last_ns;
    bool shown;
};
void pp_cli_bar_show(struct pp_cli_bar *bar, const char *what, uint64_t done, uint64_t total);
void pp_cli_bar_clear(struct pp_cli_bar *bar);
/* "4:05", "2:13:05"; of what is no time "?". */
enum { PP_CLI_DURATION = 24 };
void pp_cli_duration(double seconds, char out[static PP_CLI_DURATION]);

/* --- input and output ------------------------------------------------------------------------------------- */

enum { PP_CLI_MAX_INPUT = 1 << 28 }; /* bytes of a prompt, a text, a list of ids */

/* Appends everything from a file, a pipe, or ("-") stdin. What cannot be opened is PP_ERR_IO: PP_ERR_NOT_FOUND is for
 * models. */
enum pp_code pp_cli_read(const char *path, struct pp_buf *out, struct pp_error *err);
/* The text a command works on: -p as it stands, or the file of -f, else stdin. PP_ERR_USAGE if both are given, or if it
 * would be a terminal. */
enum pp_code pp_cli_input(const struct pp_options *o, struct pp_buf *out, struct pp_error *err);
/* Takes the mark away that a file in UTF-8 may begin with: for texts that are not to be read byte by byte. */
void pp_cli_drop_mark(struct pp_buf *text);
/* PP_ERR_USAGE unless the command got `min` to `max` words; `what` names them ("SRC DST"). */
enum pp_code pp_cli_args(const struct pp_options *o, int min, int max, const char *what, struct pp_error *err);
/* Ids "1,2,3", "[1, 2, 3]" or "1 2 3". *ids is the caller's (pp_free). */
enum pp_code pp_cli_parse_ids(const char *s, size_t n, int32_t **ids, size_t *n_ids, struct pp_error *err);
/* Text from outside on stdout: made safe if stdout is a terminal, byte for byte otherwise. */
void pp_cli_print(const char *s, size_t n);
/* Appends a text of which each line of a list has one: line feeds and tabs become blanks. */
void pp_cli_one_line(struct pp_buf *b, const char *text);
/* The same of a name or a path, which is to be known by it: breaks and tabs become their pictures. */
void pp_cli_name(struct pp_buf *b, const char *name);

/* --- JSON ------------------------------------------------------------------------------------------------- */

/* A string with its quotes, in which nothing is left that a terminal obeys. Bytes that are no UTF-8 become U+FFFD. */
void pp_cli_json_string(struct pp_buf *b, const char *s, size_t n);
/* `"name": "value"` and `"name": number`, with ", " before all but the first member of an object or array. */
void pp_cli_json_str(struct pp_buf *b, const char *name, const char *value);
void pp_cli_json_int(struct pp_buf *b, const char *name, int64_t value);
void pp_cli_json_count(struct pp_buf *b, const char *name, uint64_t value);
void pp_cli_json_bool(struct pp_buf *b, const char *name, bool value);
/* digits: behind the point. What is not finite becomes null. */
void pp_cli_json_real(struct pp_buf *b, const char *name, double value, int digits);
/* A member whose value the database keeps as text: nothing, unless that is a JSON object. */
void pp_cli_json_kept(struct pp_buf *b, const char *name, const char *json);
void pp_cli_json_name(struct pp_buf *b, const char *name); /* the name alone; a value must follow */
void pp_cli_json_next(struct pp_buf *b);                   /* the comma, where one is due */

/* --- models ----------------------------------------------------------------------------------------------- */

/* A model with engine and adapters. Zero-initialise, or pp_cli_model_asked; release with pp_cli_model_close, also after
 * an error. */
struct pp_cli_model {
    char path[1024];
    const struct pp_paths *paths;
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_adapter *adapters[PP_MAX_ADAPTERS];
    struct pp_adapter_use uses[PP_MAX_ADAPTERS];
    int n_adapters;
    bool exact_adapters;        /* held as they are stored */
    bool embeds;                /* may be an encoder */
    bool chunks;                /* the context is asked for without what stands before every text */
    const char *quant;          /* what it is quantised to while it is loaded; or NULL */
    const char *imatrix;        /* and weighed by; or NULL */
    bool quant_if_folder;       /* ... if it is one: the type is pippin.conf's, which is not about this model */
    bool elsewhere;             /* pp_options_model_elsewhere */
};

/* pp_resolve_model of -m; where pippin.conf or the environment names a model that is not there, the error says so. */
enum pp_code pp_cli_model_path(const struct pp_options *o, const struct pp_paths *p, char *out, size_t cap,
                               struct pp_error *err);
/* One that --quant and --imatrix are known of, and nothing else. */
struct pp_cli_model pp_cli_model_asked(const struct pp_options *o);

/* -t, --ctx-size, --kv-type, --kv-memory, --kernels, --layout-cache, --activations as the engine wants them. */
struct pp_engine_options pp_cli_engine_options(const struct pp_options *o);
/* Opens the model (`name` as for -m) and makes an engine of it, which keeps its layouts in p's cache. */
enum pp_code pp_cli_model_open(struct pp_cli_model *m, const struct pp_paths *p, const char *name,
                               const struct pp_engine_options *opt, struct pp_error *err);
/* One more; of one that changes nothing that is said. PP_ERR_USAGE: PP_MAX_ADAPTERS are on already. */
enum pp_code pp_cli_model_adapter(struct pp_cli_model *m, const char *path, float scale, struct pp_error *err);
/* Those of --lora and --lora-scaled. */
enum pp_code pp_cli_model_adapters(struct pp_cli_model *m, const struct pp_options *o, struct pp_error *err);
/* A sequence that is computed with the model's adapters. */
enum pp_code pp_cli_model_seq(struct pp_cli_model *m, struct pp_seq **out, struct pp_error *err);
/* PP_ERR_MISMATCH: what the one guesses is of no use to the other; the sentence says why. */
enum pp_code pp_cli_check_draft(const struct pp_model *target, const struct pp_model *draft, struct pp_error *err);
void pp_cli_model_close(struct pp_cli_model *m);

/* That output may be written: nothing has the name, or an empty file, or one of which `own` says that it is what the
 * command writes (`what`, for the error: "a GGUF file"). PP_ERR_USAGE: another file has it, and stays. What is no file
 * at all is not judged here. */
enum pp_code pp_cli_may_replace(const char *output, bool (*own)(const char *path), const char *what,
                                struct pp_error *err);
bool pp_cli_is_imatrix(const char *path);
/* That no file is written over one it is made of: PP_ERR_USAGE if output is this input (NULL or "-": none), or one of
 * the files in it if it is a folder. */
enum pp_code pp_cli_apart(const char *output, const char *input, struct pp_error *err);
/* Likewise with what a command reads: -f, --imatrix, the model and its adapters. */
enum pp_code pp_cli_model_apart(const struct pp_options *o, const struct pp_cli_model *m, const char *output,
                                struct pp_error *err);

/* The ids of the text a command works on (pp_cli_input), special tokens parsed; with `lead` and if the model has BOS,
 * that stands before them. *ids is the caller's (pp_free). PP_ERR_USAGE: the model has no vocabulary. */
enum pp_code pp_cli_text_ids(const struct pp_options *o, const struct pp_cli_model *m, bool lead, int32_t **ids,
                             size_t *n, struct pp_error *err);
/* PP_ERR_USAGE: n tokens are not even one chunk. */
enum pp_code pp_cli_too_short(size_t n, size_t chunk, struct pp_error *err);

/* Text of a token such as BOS, "" for -1. */
void pp_cli_token(const struct pp_tokenizer *t, int32_t id, struct pp_buf *out);
/* Computes `tokens` behind what the sequence holds, in steps of the engine's largest batch. Rows from `first_output` on
 * give logits: row_done (or NULL) gets each, i counted from the first token. */
typedef enum pp_code pp_cli_row_done(void *user, size_t i, const float *logits, struct pp_error *err);
enum pp_code pp_cli_feed(struct pp_engine *e, struct pp_seq *seq, const int32_t *tokens, size_t n, size_t first_output,
                         pp_cli_row_done *row_done, void *user, const struct pp_cancel *cancel, struct pp_error *err);
/* The same for somebody who is told before each step how many of the n are computed. */
enum pp_code pp_cli_feed_shown(struct pp_engine *e, struct pp_seq *seq, const int32_t *tokens, size_t n,
                               size_t first_output, pp_progress *progress, void *user, const struct pp_cancel *cancel,
                               struct pp_error *err);
/* Rows that are kept, all of them from the first token on: `user` of the pp_cli_row_done that copies them there. */
struct pp_cli_rows {
    float *values; /* [n, n_vocab], the caller's */
    size_t n_vocab;
};
pp_cli_row_done pp_cli_keep_row;

#endif
