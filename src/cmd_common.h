/* cmd_common.h - shared by the commands without a screen: messages, input, JSON output, and models.
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

/* --- signals, messages, exit ------------------------------------------------------------------------------ */

/* Installs signal handlers. SIGINT, SIGTERM and SIGHUP ask the command to stop through the object returned; a second
 * SIGINT or SIGTERM more than 0.3 s after the first signal kills, a second SIGHUP does not. SIGPIPE is ignored, so
 * that writes fail. Signals that were ignored when the program was started stay ignored. Call it once, first. */
struct pp_cancel *pp_cli_begin(void);
/* Prints "pippin: ...\n" to stderr, with control characters removed for a terminal. */
void pp_cli_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Flushes stdout, reports the error if there is one, and returns the exit code. If the reader of stdout has gone
 * away, there is no message, and the exit code is 1. */
int pp_cli_end(enum pp_code code, const struct pp_error *err);
/* After a write to stdout has failed: whether its reader has gone away, which is not reported. */
bool pp_cli_reader_gone(void);

/* A progress line on stderr, rewritten in place at most ten times a second, only on a terminal. Zero-initialise. */
struct pp_cli_bar {
    uint64_t last_ns;
    bool shown;
};
void pp_cli_bar_show(struct pp_cli_bar *bar, const char *what, uint64_t done, uint64_t total);
void pp_cli_bar_clear(struct pp_cli_bar *bar);
/* "4:05", "2:13:05"; "?" if the duration is negative or absurdly long. */
enum { PP_CLI_DURATION = 24 };
void pp_cli_duration(double seconds, char out[static PP_CLI_DURATION]);

/* --- input and output ------------------------------------------------------------------------------------- */

enum { PP_CLI_MAX_INPUT = 1 << 28 }; /* bytes of a prompt, a text, a list of ids */

/* Appends the contents of a file, a pipe, or ("-") stdin. If it cannot be opened, the error is PP_ERR_IO, since
 * PP_ERR_NOT_FOUND is used for models. */
enum pp_code pp_cli_read(const char *path, struct pp_buf *out, struct pp_error *err);
/* The text that a command works on: that of -p, or the file of -f, or stdin. PP_ERR_USAGE if both options are given,
 * or if stdin is a terminal. */
enum pp_code pp_cli_input(const struct pp_options *o, struct pp_buf *out, struct pp_error *err);
/* Removes a UTF-8 byte order mark, for texts that are not to be processed byte by byte. */
void pp_cli_drop_mark(struct pp_buf *text);
/* PP_ERR_USAGE unless the command has `min` to `max` arguments; `what` names them ("SRC DST"). */
enum pp_code pp_cli_args(const struct pp_options *o, int min, int max, const char *what, struct pp_error *err);
/* Parses ids such as "1,2,3", "[1, 2, 3]" or "1 2 3". *ids is the caller's (pp_free). */
enum pp_code pp_cli_parse_ids(const char *s, size_t n, int32_t **ids, size_t *n_ids, struct pp_error *err);
/* Prints untrusted text to stdout: sanitised for a terminal, byte for byte otherwise. */
void pp_cli_print(const char *s, size_t n);
/* Appends a text as part of a line: line feeds and tabs become spaces. */
void pp_cli_one_line(struct pp_buf *b, const char *text);
/* The same for a name or a path, which must stay recognisable: line feeds and tabs become control pictures. */
void pp_cli_name(struct pp_buf *b, const char *name);

/* --- JSON ------------------------------------------------------------------------------------------------- */

/* A quoted string without control characters that a terminal would obey. Invalid UTF-8 becomes U+FFFD. */
void pp_cli_json_string(struct pp_buf *b, const char *s, size_t n);
/* `"name": "value"` and `"name": number`, preceded by ", " except in front of the first member of an object or
 * array. */
void pp_cli_json_str(struct pp_buf *b, const char *name, const char *value);
void pp_cli_json_int(struct pp_buf *b, const char *name, int64_t value);
void pp_cli_json_count(struct pp_buf *b, const char *name, uint64_t value);
void pp_cli_json_bool(struct pp_buf *b, const char *name, bool value);
/* digits: after the decimal point. Infinities and NaN become null. */
void pp_cli_json_real(struct pp_buf *b, const char *name, double value, int digits);
/* With as many digits as restore it. */
void pp_cli_json_float(struct pp_buf *b, const char *name, float value);
/* A member whose value is JSON text from the database; omitted unless that is an object. */
void pp_cli_json_stored(struct pp_buf *b, const char *name, const char *json);
void pp_cli_json_name(struct pp_buf *b, const char *name); /* the name alone, which a value must follow */
void pp_cli_json_next(struct pp_buf *b);                   /* the comma, where one is needed */

/* --- models ----------------------------------------------------------------------------------------------- */

/* A model with its engine and adapters. Initialise with zeros or by pp_cli_model_asked; release with
 * pp_cli_model_close, also after an error. */
struct pp_cli_model {
    char path[1024];
    const struct pp_paths *paths;
    struct pp_model *model;
    struct pp_engine *engine;
    struct pp_adapter *adapters[PP_MAX_ADAPTERS];
    struct pp_adapter_use uses[PP_MAX_ADAPTERS];
    int n_adapters;
    bool exact_adapters;        /* weights stay in their stored precision */
    bool embeds;                /* may be an encoder */
    bool chunks;                /* the requested context does not include the learnt prefix */
    const char *quant;          /* type to quantise it to while loading; or NULL */
    const char *imatrix;        /* importance matrix for that; or NULL */
    bool quant_if_folder;       /* quantise folders only, as the type comes from pippin.conf and was not given for
                                 * this model */
    bool elsewhere;             /* pp_options_model_elsewhere */
};

/* Resolves -m by pp_resolve_model; if the model is missing and was named by pippin.conf or the environment, the
 * error says so. */
enum pp_code pp_cli_model_path(const struct pp_options *o, const struct pp_paths *p, char *out, size_t cap,
                               struct pp_error *err);
/* Initialised with --quant and --imatrix, and nothing else. */
struct pp_cli_model pp_cli_model_asked(const struct pp_options *o);

/* -t, --ctx-size, --kv-type, --kv-memory, --kernels, --layout-cache, --activations as engine options. */
struct pp_engine_options pp_cli_engine_options(const struct pp_options *o);
/* Opens a model (`name` as for -m) and makes its engine, whose repacked weights are cached in p->cache. */
enum pp_code pp_cli_model_open(struct pp_cli_model *m, const struct pp_paths *p, const char *name,
                               const struct pp_engine_options *opt, struct pp_error *err);
/* Adds an adapter, and says so if it changes nothing. PP_ERR_USAGE: PP_MAX_ADAPTERS are on already. */
enum pp_code pp_cli_model_adapter(struct pp_cli_model *m, const char *path, float scale, struct pp_error *err);
/* Adds the adapters of --lora and --lora-scaled. */
enum pp_code pp_cli_model_adapters(struct pp_cli_model *m, const struct pp_options *o, struct pp_error *err);
/* A new sequence with the model's adapters. */
enum pp_code pp_cli_model_seq(struct pp_cli_model *m, struct pp_seq **out, struct pp_error *err);
/* PP_ERR_MISMATCH if the draft model cannot draft for the target; err says why. */
enum pp_code pp_cli_check_draft(const struct pp_model *target, const struct pp_model *draft, struct pp_error *err);
void pp_cli_model_close(struct pp_cli_model *m);

/* Whether the output file may be written: it does not exist, is empty, or `own` recognises it as a file of the kind
 * that the command writes (`what`, for the error: "a GGUF file"). PP_ERR_USAGE: it is another kind of file. Anything
 * but a regular file is accepted here. */
enum pp_code pp_cli_may_replace(const char *output, bool (*own)(const char *path), const char *what,
                                struct pp_error *err);
bool pp_cli_is_imatrix(const char *path);
/* PP_ERR_USAGE if output is the same file as input (NULL or "-": none) or, if that is a folder, as one of the files
 * in it. */
enum pp_code pp_cli_apart(const char *output, const char *input, struct pp_error *err);
/* The same for everything that a command reads: -f, --imatrix, the model and its adapters. */
enum pp_code pp_cli_model_apart(const struct pp_options *o, const struct pp_cli_model *m, const char *output,
                                struct pp_error *err);

/* The tokens of the command's text (pp_cli_input), with special tokens parsed; `lead` puts BOS before them if the
 * model has one. *ids is the caller's (pp_free). PP_ERR_USAGE: the model has no vocabulary. */
enum pp_code pp_cli_text_ids(const struct pp_options *o, const struct pp_cli_model *m, bool lead, int32_t **ids,
                             size_t *n, struct pp_error *err);
/* PP_ERR_USAGE: n tokens do not even fill one chunk. */
enum pp_code pp_cli_too_short(size_t n, size_t chunk, struct pp_error *err);

/* The text of a token such as BOS; "" for id -1. */
void pp_cli_token(const struct pp_tokenizer *t, int32_t id, struct pp_buf *out);
/* Computes `tokens` after those in the sequence, in steps of the engine's largest batch. Rows from index
 * `first_output` on produce logits, which are passed to row_done (or NULL) with the index i. */
typedef enum pp_code pp_cli_row_done(void *user, size_t i, const float *logits, struct pp_error *err);
enum pp_code pp_cli_feed(struct pp_engine *e, struct pp_seq *seq, const int32_t *tokens, size_t n, size_t first_output,
                         pp_cli_row_done *row_done, void *user, const struct pp_cancel *cancel, struct pp_error *err);
/* The same without outputs; progress is called before each step. */
enum pp_code pp_cli_feed_progress(struct pp_engine *e, struct pp_seq *seq, const int32_t *tokens, size_t n,
                                  size_t first_output, pp_progress *progress, void *user,
                                  const struct pp_cancel *cancel, struct pp_error *err);
/* Stores the logits of all rows, from the first token on: `user` for pp_cli_store_row. */
struct pp_cli_rows {
    float *values; /* [n, n_vocab], the caller's */
    size_t n_vocab;
};
pp_cli_row_done pp_cli_store_row;

#endif
