/* cmd_common.c - shared by the commands without a screen. */
#include "src/cmd_common.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/stop_signal.h"
#include "engine/convert.h"
#include "src/adapter_names.h"
#include "src/json_numbers.h"
#include "src/plain_text.h"

/* --- signals, messages, exit ------------------------------------------------------------------------------ */

static struct pp_cancel stop; /* global, as the signal handler needs it */
static struct pp_stop_signal stop_signal;

/* Does nothing but interrupt system calls. When a signal interrupts a write to stdout, libc retries with the rest,
 * which may block for good if nobody reads. The timer interrupts that as well, and a retry that has written nothing
 * by then fails with EINTR. */
static void on_tick(int sig)
{
    (void)sig;
}

static void on_stop(int sig)
{
    static const struct timeval tick = {.tv_usec = 250000};
    const int error = errno;
    if (sig == SIGHUP)
        pp_stop_signal_insists(&stop_signal);
    else
        pp_stop_signal_handle(&stop_signal, sig);
    pp_cancel_request(&stop);
    setitimer(ITIMER_REAL, &(struct itimerval){tick, tick}, NULL);
    errno = error;
}

struct pp_cancel *pp_cli_begin(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction sa = {.sa_handler = on_stop}, tick = {.sa_handler = on_tick}, old;
    sigemptyset(&sa.sa_mask);
    sigemptyset(&tick.sa_mask);
    sigaction(SIGALRM, &tick, NULL);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(signals[i], &sa, NULL); /* without SA_RESTART, so that blocking reads and writes return */
    signal(SIGPIPE, SIG_IGN);
    pp_stop_signal_reset(&stop_signal);
    pp_cancel_reset(&stop);
    return &stop;
}

static void say_text(const char *text)
{
    struct pp_buf line = {0};
    struct pp_buf name = {0};
    pp_buf_str(&line, "pippin: ");
    pp_cli_name(&name, text);
    if (isatty(STDERR_FILENO))
        pp_plain_text(&line, pp_buf_cstr(&name), name.len);
    else
        pp_buf_str(&line, pp_buf_cstr(&name));
    line.bad = line.bad || name.bad;
    pp_buf_free(&name);
    fprintf(stderr, "%s\n", line.bad ? text : pp_buf_cstr(&line));
    pp_buf_free(&line);
}

void pp_cli_say(const char *fmt, ...)
{
    struct pp_buf text = {0};
    va_list ap;
    va_start(ap, fmt);
    pp_buf_vfmt(&text, fmt, ap);
    va_end(ap);
    say_text(pp_buf_cstr(&text));
    pp_buf_free(&text);
}

/* The reason for an earlier failed write to stdout, whose errno is lost: another write most likely fails for the
 * same reason. If it does not, the output has a gap, and the line feed ends it. */
static const char *why_lost(void)
{
    return write(STDOUT_FILENO, "\n", 1) < 0 ? strerror(errno) : "an earlier write failed";
}

/* Asks poll(), too, as errno may be from a later call than the failed write. */
bool pp_cli_reader_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return errno == EPIPE || (poll(&out, 1, 0) == 1 && (out.revents & POLLERR));
}

int pp_cli_end(enum pp_code code, const struct pp_error *err)
{
    errno = 0;
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (lost && pp_cancelled(&stop)) /* a write to a reader that had stalled was interrupted by the signal */
        return pp_exit_code(PP_ERR_CANCELLED);
    if (lost && !pp_cli_reader_gone())
        pp_cli_say("cannot write the output: %s", errno ? strerror(errno) : why_lost());
    if (code == PP_ERR_CANCELLED)
        return pp_exit_code(code); /* the user interrupted it: no message */
    if (code != PP_OK) {
        say_text(err->text);
        return pp_exit_code(code);
    }
    return lost ? 1 : 0;
}

void pp_cli_duration(double seconds, char out[static PP_CLI_DURATION])
{
    const double most = 1e9; /* about thirty years */
    const bool known = seconds >= 0 && seconds <= most;
    const long s = known ? (long)(seconds + 0.5) : 0;
    if (!known)
        snprintf(out, PP_CLI_DURATION, "?");
    else if (s >= 3600)
        snprintf(out, PP_CLI_DURATION, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, PP_CLI_DURATION, "%ld:%02ld", s / 60, s % 60);
}

void pp_cli_bar_show(struct pp_cli_bar *bar, const char *what, uint64_t done, uint64_t total)
{
    enum { EVERY_NS = 100 * 1000 * 1000 };
    uint64_t now = pp_now_ns();
    if ((bar->last_ns && now - bar->last_ns < EVERY_NS) || !isatty(STDERR_FILENO))
        return;
    bool first = bar->last_ns == 0;
    bar->last_ns = now;
    if (first)
        return; /* what ends within a tenth of a second shows no bar */
    fprintf(stderr, "\r\033[K%s", what);
    if (total)
        fprintf(stderr, " %3.0f %%", 100.0 * (double)done / (double)total);
    bar->shown = true;
}

void pp_cli_bar_clear(struct pp_cli_bar *bar)
{
    if (bar->shown)
        fputs("\r\033[K", stderr);
    *bar = (struct pp_cli_bar){0};
}

/* --- input and output ------------------------------------------------------------------------------------- */

static enum pp_code read_all(int fd, const char *name, struct pp_buf *out, struct pp_error *err)
{
    char piece[16384];
    size_t total = 0;
    for (;;) {
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) {
            if (pp_cancelled(&stop))
                return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
            continue;
        }
        if (n < 0)
            return pp_fail(err, PP_ERR_IO, "cannot read %s: %s", name, strerror(errno));
        if (n == 0)
            break;
        total += (size_t)n;
        if (total > PP_CLI_MAX_INPUT)
            return pp_fail(err, PP_ERR_USAGE, "%s is larger than %d MB; give a part of it", name,
                           PP_CLI_MAX_INPUT >> 20);
        pp_buf_add(out, piece, (size_t)n);
    }
    return out->bad ? pp_fail_nomem(err, name) : PP_OK;
}

enum pp_code pp_cli_read(const char *path, struct pp_buf *out, struct pp_error *err)
{
    if (strcmp(path, "-") == 0)
        return read_all(STDIN_FILENO, "standard input", out, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == EINTR && pp_cancelled(&stop)) /* interrupted while opening a named pipe without a writer */
        return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
    if (fd < 0)
        return pp_fail(err, PP_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    enum pp_code code = read_all(fd, path, out, err);
    close(fd);
    return code;
}

enum pp_code pp_cli_input(const struct pp_options *o, struct pp_buf *out, struct pp_error *err)
{
    if (o->prompt && o->file)
        return pp_fail(err, PP_ERR_USAGE, "pippin %s reads one text: give -p or -f, not both", o->command);
    if (o->prompt) {
        pp_buf_str(out, o->prompt);
        return out->bad ? pp_fail_nomem(err, "the text") : PP_OK;
    }
    if (o->file)
        return pp_cli_read(o->file, out, err);
    if (isatty(STDIN_FILENO))
        return pp_fail(err, PP_ERR_USAGE, "pippin %s needs input: name a file with -f, or send it through a pipe",
                       o->command);
    return pp_cli_read("-", out, err);
}

void pp_cli_drop_mark(struct pp_buf *text)
{
    const size_t n = pp_utf8_mark(pp_buf_cstr(text), text->len);
    if (!n)
        return;
    text->len -= n;
    memmove(text->data, text->data + n, text->len + 1);
}

enum pp_code pp_cli_args(const struct pp_options *o, int min, int max, const char *what, struct pp_error *err)
{
    if (o->n_args >= min && o->n_args <= max)
        return PP_OK;
    const char *sub = o->subcommand ? o->subcommand : "", *gap = o->subcommand ? " " : "";
    if (o->n_args > max && max == 0)
        return pp_fail(err, PP_ERR_USAGE, "pippin %s%s%s takes no arguments; leave \"%s\" out", o->command, gap, sub,
                       o->args[0]);
    if (o->n_args > max)
        return pp_fail(err, PP_ERR_USAGE, "unexpected argument \"%s\": too many for `pippin %s%s%s %s`%s", o->args[max],
                       o->command, gap, sub, what, strstr(what, "TEXT") || strstr(what, "TITLE")
                                                       ? "; put a text of several words in quotes" : "");
    return pp_fail(err, PP_ERR_USAGE, "usage: pippin %s%s%s %s", o->command, gap, sub, what);
}

/* s: where an id was expected. */
static enum pp_code fail_id(const char *s, size_t left, struct pp_error *err)
{
    size_t n = left > 0; /* the offending character at least */
    while (n < left && s[n] && !strchr("], \t\r\n", s[n]))
        n++;
    return pp_fail(err, PP_ERR_USAGE, "\"%.*s\" is not a token id; write ids as 1,2,3 or [1, 2, 3]",
                   (int)(n < 20 ? n : 20), s);
}

enum pp_code pp_cli_parse_ids(const char *s, size_t n, int32_t **ids, size_t *n_ids, struct pp_error *err)
{
    int32_t *list = NULL;
    size_t count = 0, cap = 0;
    bool wanted = true; /* true at the start and after a comma: a number must follow, not another comma */
    enum pp_code code = PP_OK;
    *ids = NULL;
    *n_ids = 0;
    for (size_t i = 0; i < n && !code;) {
        const bool closes = s[i] == ']' && !(wanted && count);
        if (s[i] == 0 || strchr("[ \t\r\n", s[i]) || closes || (s[i] == ',' && !wanted)) {
            wanted = wanted || s[i] == ',';
            i++;
            continue;
        }
        int64_t value = 0;
        size_t begin = i;
        while (i < n && s[i] >= '0' && s[i] <= '9' && value <= INT32_MAX)
            value = value * 10 + (s[i++] - '0');
        if (i == begin || value > INT32_MAX || (i < n && (s[i] == 0 || !strchr("], \t\r\n", s[i]))))
            code = fail_id(s + begin, n - begin, err);
        else if (pp_grow(&list, &cap, count + 1, sizeof *list) != 0)
            code = pp_fail_nomem(err, "the token ids");
        else
            list[count++] = (int32_t)value;
        wanted = false;
    }
    if (!code && wanted && count)
        code = fail_id(",", 1, err);
    while (n && s[n - 1] != '[' && s[n - 1] != ']')
        n--;
    if (!code && n && s[n - 1] == '[') /* cut off within the list: the last id may lack digits */
        code = pp_fail(err, PP_ERR_USAGE, "the list of token ids is incomplete: the closing ] is missing");
    if (code) {
        pp_free(list);
        return code;
    }
    *ids = list;
    *n_ids = count;
    return PP_OK;
}

void pp_cli_print(const char *s, size_t n)
{
    if (!isatty(STDOUT_FILENO)) {
        fwrite(s, 1, n, stdout);
        return;
    }
    struct pp_buf plain = {0};
    pp_plain_text(&plain, s, n);
    fwrite(pp_buf_cstr(&plain), 1, plain.len, stdout);
    pp_buf_free(&plain);
}

void pp_cli_one_line(struct pp_buf *b, const char *text)
{
    for (const char *c = text; *c; c++)
        pp_buf_char(b, *c == '\n' || *c == '\t' ? ' ' : *c);
}

void pp_cli_name(struct pp_buf *b, const char *name)
{
    for (const char *c = name; *c; c++)
        if (*c == '\n' || *c == '\r' || *c == '\t')
            pp_buf_fmt(b, "\xE2\x90%c", 0x80 + *c); /* their control pictures, U+2400 and following */
        else
            pp_buf_char(b, *c);
}

/* --- JSON ------------------------------------------------------------------------------------------------- */

void pp_cli_json_string(struct pp_buf *b, const char *s, size_t n)
{
    pp_buf_char(b, '"');
    for (size_t i = 0; i < n;) {
        int32_t cp;
        size_t len = pp_utf8_decode(s + i, n - i, &cp);
        if (cp < 0)
            pp_buf_str(b, "\xEF\xBF\xBD");
        else if (cp == '"' || cp == '\\')
            pp_buf_fmt(b, "\\%c", (char)cp);
        else if (cp == '\n')
            pp_buf_str(b, "\\n");
        else if (cp == '\t')
            pp_buf_str(b, "\\t");
        else if (cp < 0x20 || pp_char_is_obeyed(cp))
            pp_buf_fmt(b, "\\u%04x", (unsigned)cp);
        else
            pp_buf_add(b, s + i, len);
        i += len;
    }
    pp_buf_char(b, '"');
}

void pp_cli_json_next(struct pp_buf *b)
{
    char last = b->len ? b->data[b->len - 1] : '{';
    if (last != '{' && last != '[' && last != '\n')
        pp_buf_str(b, ", ");
}

void pp_cli_json_name(struct pp_buf *b, const char *name)
{
    pp_cli_json_next(b);
    pp_cli_json_string(b, name, strlen(name));
    pp_buf_str(b, ": ");
}

void pp_cli_json_str(struct pp_buf *b, const char *name, const char *value)
{
    pp_cli_json_name(b, name);
    pp_cli_json_string(b, value ? value : "", value ? strlen(value) : 0);
}

void pp_cli_json_int(struct pp_buf *b, const char *name, int64_t value)
{
    pp_cli_json_name(b, name);
    pp_buf_fmt(b, "%lld", (long long)value);
}

void pp_cli_json_count(struct pp_buf *b, const char *name, uint64_t value)
{
    pp_cli_json_name(b, name);
    pp_buf_fmt(b, "%llu", (unsigned long long)value);
}

void pp_cli_json_bool(struct pp_buf *b, const char *name, bool value)
{
    pp_cli_json_name(b, name);
    pp_buf_str(b, value ? "true" : "false");
}

/* Adds JSON as cJSON prints it, with a space after each colon and comma, like the rest of the output. */
static void add_spaced(struct pp_buf *b, const char *json)
{
    bool in_string = false;
    for (const char *s = json; *s; s++) {
        pp_buf_char(b, *s);
        if (*s == '"')
            in_string = !in_string;
        else if (in_string && *s == '\\' && s[1])
            pp_buf_char(b, *++s);
        else if (!in_string && (*s == ':' || *s == ','))
            pp_buf_char(b, ' ');
    }
}

void pp_cli_json_stored(struct pp_buf *b, const char *name, const char *json)
{
    cJSON *o = json ? cJSON_ParseWithOpts(json, NULL, true) : NULL;
    if (cJSON_IsObject(o)) {
        char *text = pp_json_keep_digits(o, json, strlen(json)) && pp_json_exact(o) ? cJSON_PrintUnformatted(o) : NULL;
        struct pp_buf safe = {0};
        pp_cli_json_name(b, name);
        if (text)
            pp_plain_json(&safe, text);
        add_spaced(b, pp_buf_cstr(&safe));
        b->bad = b->bad || !text || safe.bad;
        pp_buf_free(&safe);
        cJSON_free(text);
    }
    cJSON_Delete(o);
}

void pp_cli_json_real(struct pp_buf *b, const char *name, double value, int digits)
{
    pp_cli_json_name(b, name);
    if (isfinite(value))
        pp_buf_fmt(b, "%.*f", digits, value);
    else
        pp_buf_str(b, "null");
}

void pp_cli_json_float(struct pp_buf *b, const char *name, float value)
{
    pp_cli_json_name(b, name);
    if (isfinite(value))
        pp_buf_fmt(b, "%.9g", pp_json_short(value));
    else
        pp_buf_str(b, "null");
}

/* --- models ----------------------------------------------------------------------------------------------- */

struct pp_engine_options pp_cli_engine_options(const struct pp_options *o)
{
    return (struct pp_engine_options){
        .n_threads = o->threads,
        .kv_type = o->kv_type,
        .n_ctx = o->ctx_size,
        .kv_memory = o->kv_memory,
        .kernels = o->kernels,
        .layout_quota = o->layout_cache,
        .activations = pp_options_activations(o),
    };
}

static void loading(void *user, uint64_t done, uint64_t total)
{
    pp_cli_bar_show(user, "loading", done, total);
}

enum pp_code pp_cli_model_path(const struct pp_options *o, const struct pp_paths *p, char *out, size_t cap,
                               struct pp_error *err)
{
    const enum pp_code code = pp_resolve_model(p, o->model, out, cap, err);
    if (code && pp_options_model_elsewhere(o))
        pp_fail_prefix(err, PP_MODEL_ELSEWHERE);
    return code;
}

struct pp_cli_model pp_cli_model_asked(const struct pp_options *o)
{
    return (struct pp_cli_model){
        .quant = o->quant, .quant_if_folder = !pp_options_given(o, "quant"), .imatrix = o->imatrix.file,
        .elsewhere = pp_options_model_elsewhere(o)};
}

enum pp_code pp_cli_model_open(struct pp_cli_model *m, const struct pp_paths *p, const char *name,
                               const struct pp_engine_options *opt, struct pp_error *err)
{
    struct pp_cli_bar bar = {0};
    struct pp_engine_options with_cache = *opt;
    with_cache.cache_dir = p->cache;
    m->paths = p;
    enum pp_code code = pp_resolve_model(p, name, m->path, sizeof m->path, err);
    if (code && m->elsewhere)
        pp_fail_prefix(err, PP_MODEL_ELSEWHERE);
    if (!code && m->quant_if_folder && !pp_is_folder(m->path))
        m->quant = NULL; /* a GGUF file: --imatrix without a type is refused, as it was given for this very model */
    if (!code)
        code = pp_model_open_as(m->path, m->quant, m->imatrix, &m->model, err);
    if (!code && !m->embeds)
        code = pp_model_check_writes(m->model, err);
    if (!code && m->chunks && with_cache.n_ctx > 0)
        with_cache.n_ctx += pp_model_info(m->model)->n_meta_tokens;
    if (!code)
        code = pp_engine_new(m->model, &with_cache, loading, &bar, &m->engine, err);
    pp_cli_bar_clear(&bar);
    if (!code && pp_cancelled(&stop))
        code = pp_fail(err, PP_ERR_CANCELLED, "interrupted");
    return code;
}

enum pp_code pp_cli_model_adapter(struct pp_cli_model *m, const char *path, float scale, struct pp_error *err)
{
    if (m->n_adapters == PP_MAX_ADAPTERS)
        return pp_fail(err, PP_ERR_USAGE, "at most %d adapters can be used at once; leave some out", PP_MAX_ADAPTERS);
    struct pp_adapter *a;
    enum pp_code code = pp_adapter_check(m->paths, m->path, path, err);
    if (!code)
        code = (m->exact_adapters ? pp_adapter_load_exact : pp_adapter_load)(m->model, path, &a, err);
    if (code)
        return code;
    if (scale == 0.0f || pp_adapter_info(a)->idle)
        pp_cli_say("adapter %s has no effect: %s", pp_adapter_info(a)->name,
                   scale == 0.0f ? "its scale is 0" : "its matrices or its alpha are all zero, or its IA3 scales all "
                                                      "1");
    if (pp_adapter_info(a)->assumed_scale != 0.0f)
        pp_cli_say("adapter %s: " PP_SCALE_ASSUMED, pp_adapter_info(a)->name,
                   (double)pp_adapter_info(a)->assumed_scale);
    m->adapters[m->n_adapters] = a;
    m->uses[m->n_adapters++] = (struct pp_adapter_use){.adapter = a, .scale = scale};
    return PP_OK;
}

enum pp_code pp_cli_model_adapters(struct pp_cli_model *m, const struct pp_options *o, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; !code && i < o->n_lora; i++)
        code = pp_cli_model_adapter(m, o->lora[i].path, o->lora[i].scale, err);
    return code;
}

enum pp_code pp_cli_model_seq(struct pp_cli_model *m, struct pp_seq **out, struct pp_error *err)
{
    enum pp_code code = pp_seq_new(m->engine, out, err);
    if (code)
        return code;
    code = pp_seq_set_adapters(*out, m->uses, m->n_adapters, err);
    if (code) {
        pp_seq_free(*out);
        *out = NULL;
    }
    return code;
}

enum pp_code pp_cli_check_draft(const struct pp_model *target, const struct pp_model *draft, struct pp_error *err)
{
    const struct pp_tokenizer *a = pp_model_tokenizer(target), *b = pp_model_tokenizer(draft);
    struct pp_error why;
    if (!a || !b)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "speculative decoding needs a vocabulary in both models; leave out -md, or use --no-draft");
    if (!pp_tokenizer_same_ids(a, b) && !pp_tokenizer_bridges(a, b, &why))
        return pp_fail(err, PP_ERR_MISMATCH, "%s cannot draft for %s: %.300s", pp_model_info(draft)->path,
                       pp_model_info(target)->path, why.text);
    return PP_OK;
}

void pp_cli_model_close(struct pp_cli_model *m)
{
    pp_engine_free(m->engine);
    for (int i = 0; i < m->n_adapters; i++)
        pp_adapter_free(m->adapters[i]);
    pp_model_close(m->model);
    *m = (struct pp_cli_model){0};
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

bool pp_cli_is_imatrix(const char *path)
{
    struct pp_imatrix *m;
    if (pp_imatrix_read(path, &m, NULL))
        return false;
    pp_imatrix_free(m);
    return true;
}

enum pp_code pp_cli_may_replace(const char *output, bool (*own)(const char *path), const char *what,
                                struct pp_error *err)
{
    struct stat st;
    if (stat(output, &st) != 0 || !S_ISREG(st.st_mode) || !st.st_size || own(output))
        return PP_OK;
    return pp_fail(err, PP_ERR_USAGE, "%s exists and is not %s; it was left unchanged; give another file name",
                   output, what);
}

enum pp_code pp_cli_apart(const char *output, const char *input, struct pp_error *err)
{
    struct stat out, in, folder;
    if (!input || strcmp(input, "-") == 0 || stat(output, &out) != 0 || stat(input, &in) != 0)
        return PP_OK;
    bool apart = !same_file(&out, &in);
    if (apart && S_ISDIR(in.st_mode)) {
        char *parent = pp_folder_of(output);
        if (!parent)
            return pp_fail_nomem(err, "a file name");
        apart = stat(parent, &folder) != 0 || !same_file(&folder, &in);
        pp_free(parent);
    }
    return apart ? PP_OK
                 : pp_fail(err, PP_ERR_USAGE, "%s is both input and output; give the new file another name", output);
}

enum pp_code pp_cli_model_apart(const struct pp_options *o, const struct pp_cli_model *m, const char *output,
                                struct pp_error *err)
{
    enum pp_code code = pp_cli_apart(output, o->file, err);
    if (!code)
        code = pp_cli_apart(output, o->imatrix.file, err);
    if (!code)
        code = pp_cli_apart(output, m->path, err);
    for (int i = 0; i < m->n_adapters && !code; i++)
        code = pp_cli_apart(output, pp_adapter_info(m->adapters[i])->path, err);
    return code;
}

/* Ids may be too large if the tokenizer belongs to another model. */
static enum pp_code check_ids(const struct pp_cli_model *m, const int32_t *ids, size_t n, struct pp_error *err)
{
    const int64_t n_vocab = pp_model_info(m->model)->n_vocab;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= n_vocab)
            return pp_fail(err, PP_ERR_FORMAT, "the tokenizer gives id %d, but the model has %lld tokens", ids[i],
                           (long long)n_vocab);
    return PP_OK;
}

enum pp_code pp_cli_text_ids(const struct pp_options *o, const struct pp_cli_model *m, bool lead, int32_t **ids,
                             size_t *n, struct pp_error *err)
{
    const struct pp_tokenizer *t = pp_model_tokenizer(m->model);
    struct pp_buf text = {0};
    int32_t *of_text = NULL;
    if (!t)
        return pp_fail(err, PP_ERR_USAGE, "%s has no vocabulary, so it cannot read text; use a model with a tokenizer",
                       m->path);
    const size_t before = lead && pp_tokenizer_bos(t) >= 0 ? 1 : 0;
    enum pp_code code = pp_cli_input(o, &text, err);
    if (!code)
        code = pp_tokenize(t, pp_buf_cstr(&text), text.len, PP_TOKENIZE_SPECIAL, &of_text, n, err);
    pp_buf_free(&text);
    if (code)
        return code;
    *ids = pp_malloc((*n + before) * sizeof **ids);
    if (*ids) {
        if (before)
            (*ids)[0] = pp_tokenizer_bos(t);
        memcpy(*ids + before, of_text, *n * sizeof *of_text);
        *n += before;
    }
    pp_free(of_text);
    return *ids ? check_ids(m, *ids, *n, err) : pp_fail_nomem(err, "the tokens");
}

enum pp_code pp_cli_too_short(size_t n, size_t chunk, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_USAGE,
                   "the text has %zu token%s, too few for one chunk of %zu; give a longer text or a smaller -c", n,
                   n == 1 ? "" : "s", chunk);
}

void pp_cli_token(const struct pp_tokenizer *t, int32_t id, struct pp_buf *out)
{
    if (t && id >= 0)
        pp_token_text(t, id, true, out);
}

/* Feeds the model's meta tokens (info->n_meta_tokens rows, numbered from n_vocab on) if the sequence is empty. */
static enum pp_code feed_start(struct pp_engine *e, struct pp_seq *seq, struct pp_row *rows, size_t most,
                               const struct pp_cancel *cancel, struct pp_error *err)
{
    const struct pp_model_info *info = pp_model_info(pp_engine_model(e));
    const size_t n = pp_seq_len(seq) ? 0 : (size_t)info->n_meta_tokens;
    enum pp_code code = PP_OK;
    for (size_t begin = 0; !code && begin < n; begin += most) {
        const size_t count = n - begin < most ? n - begin : most;
        for (size_t i = 0; i < count; i++)
            rows[i] = (struct pp_row){.seq = seq, .token = (int32_t)info->n_vocab + (int32_t)(begin + i), .parent = -1};
        code = pp_step(e, rows, (int)count, cancel, err);
    }
    return code;
}

/* Activates adapters that take effect after an invocation sequence, which may begin within the learnt prefix. */
static enum pp_code activate(struct pp_engine *e, struct pp_seq *seq, const int32_t *tokens, size_t n,
                             struct pp_error *err)
{
    const struct pp_model_info *info = pp_model_info(pp_engine_model(e));
    const size_t ahead = pp_seq_len(seq) ? 0 : (size_t)info->n_meta_tokens;
    int32_t *all = ahead ? pp_calloc(ahead + n, sizeof *all) : NULL;
    if (ahead && !all)
        return pp_fail_nomem(err, "the tokens");
    for (size_t i = 0; i < ahead; i++)
        all[i] = (int32_t)info->n_vocab + (int32_t)i;
    if (ahead)
        memcpy(all + ahead, tokens, n * sizeof *all);
    pp_seq_activate(seq, ahead ? all : tokens, (int64_t)(ahead + n));
    pp_free(all);
    return PP_OK;
}

/* Calls row_done for each row with an output, or progress before each step; either may be NULL. */
static enum pp_code feed(struct pp_engine *e, struct pp_seq *seq, const int32_t *tokens, size_t n, size_t first_output,
                         pp_cli_row_done *row_done, pp_progress *progress, void *user, const struct pp_cancel *cancel,
                         struct pp_error *err)
{
    size_t most = (size_t)pp_engine_max_rows(e);
    struct pp_row *rows = pp_calloc(most, sizeof *rows);
    if (!rows)
        return pp_fail_nomem(err, "a batch");
    enum pp_code code = activate(e, seq, tokens, n, err);
    if (!code)
        code = feed_start(e, seq, rows, most, cancel, err);
    for (size_t begin = 0; !code && begin < n; begin += most) {
        size_t count = n - begin < most ? n - begin : most;
        for (size_t i = 0; i < count; i++)
            rows[i] = (struct pp_row){
                .seq = seq,
                .token = tokens[begin + i],
                .parent = -1,
                .out = begin + i >= first_output ? PP_OUT_LOGITS : PP_OUT_NONE,
            };
        if (progress)
            progress(user, begin, n);
        code = pp_step(e, rows, (int)count, cancel, err);
        for (size_t i = 0; !code && row_done && i < count; i++)
            if (begin + i >= first_output)
                code = row_done(user, begin + i, pp_step_output(e, (int)i), err);
    }
    pp_free(rows);
    return code;
}

enum pp_code pp_cli_store_row(void *user, size_t i, const float *logits, struct pp_error *err)
{
    const struct pp_cli_rows *r = user;
    (void)err;
    memcpy(r->values + i * r->n_vocab, logits, r->n_vocab * sizeof *logits);
    return PP_OK;
}

enum pp_code pp_cli_feed(struct pp_engine *e, struct pp_seq *seq, const int32_t *tokens, size_t n, size_t first_output,
                         pp_cli_row_done *row_done, void *user, const struct pp_cancel *cancel, struct pp_error *err)
{
    return feed(e, seq, tokens, n, first_output, row_done, NULL, user, cancel, err);
}

enum pp_code pp_cli_feed_progress(struct pp_engine *e, struct pp_seq *seq, const int32_t *tokens, size_t n,
                                  size_t first_output, pp_progress *progress, void *user,
                                  const struct pp_cancel *cancel, struct pp_error *err)
{
    return feed(e, seq, tokens, n, first_output, NULL, progress, user, cancel, err);
}
