/* cmd_run.c - pippin run: one answer on stdout, everything else on stderr.
 *
 * The prompt consists of stdin, the file of -f and the text of -p, in this order and separated by empty lines: the
 * material first, then the question about it. stdin is read unless it is a terminal. The final line feed of stdin
 * and of the file is dropped. Text that is not valid UTF-8 is refused. */
#include "src/cmd_run.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/commands.h"
#include "src/figures.h"
#include "src/json_numbers.h"
#include "src/overflow.h"
#include "src/plain_text.h"

/* --- the prompt ------------------------------------------------------------------------------------------- */

static void add_part(struct pp_buf *prompt, const char *text, size_t n)
{
    if (!n)
        return;
    if (prompt->len)
        pp_buf_str(prompt, "\n\n");
    pp_buf_add(prompt, text, n);
}

static size_t without_line_end(const struct pp_buf *b)
{
    size_t n = b->len;
    if (n && b->data[n - 1] == '\n')
        n -= n > 1 && b->data[n - 2] == '\r' ? 2 : 1;
    return n;
}

/* Drops incomplete UTF-8 characters at both ends, since the text may have been cut at any byte (head -c, tail -c). */
static void cut_to_characters(const char **text, size_t *n)
{
    enum { LONGEST = 3 }; /* continuation bytes that may be left of a character */
    size_t skip = 0;
    while (skip < *n && skip < LONGEST && ((unsigned char)(*text)[skip] & 0xC0) == 0x80)
        skip++;
    *text += skip;
    *n = pp_utf8_complete(*text, *n - skip);
}

static enum pp_code check_text(const char *who, const char *text, size_t n, struct pp_error *err)
{
    int32_t cp = 1;
    size_t at = 0;
    for (size_t len; at < n && cp > 0; at += cp > 0 ? len : 0)
        len = pp_utf8_decode(text + at, n - at, &cp);
    if (at == n)
        return PP_OK;
    if (n > 1 && (memcmp(text, "\xFF\xFE", 2) == 0 || memcmp(text, "\xFE\xFF", 2) == 0))
        return pp_fail(err, PP_ERR_FORMAT, "%s is UTF-16; convert it to UTF-8 first: iconv -f UTF-16 -t UTF-8", who);
    if (cp == 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s is not a text file: byte %zu is NUL; extract the text first (from a "
                                           "PDF: pdftotext)", who, at + 1);
    return pp_fail(err, PP_ERR_FORMAT, "%s is not valid UTF-8 from byte %zu on; if it is text in another encoding, "
                                       "convert it first: iconv -f LATIN1 -t UTF-8", who, at + 1);
}

/* path: a file, "-" for stdin, or NULL for none. A byte order mark is dropped. */
static enum pp_code add_file(struct pp_buf *prompt, const char *path, struct pp_error *err)
{
    struct pp_buf part = {0};
    enum pp_code code = path ? pp_cli_read(path, &part, err) : PP_OK;
    pp_cli_drop_mark(&part);
    const char *text = part.data;
    size_t n = without_line_end(&part);
    if (!code && n) {
        cut_to_characters(&text, &n);
        code = check_text(strcmp(path, "-") == 0 ? "standard input" : path, text, n, err);
    }
    if (!code)
        add_part(prompt, text, n);
    pp_buf_free(&part);
    return code;
}

static enum pp_code read_question(struct run *r, struct pp_error *err)
{
    const struct pp_options *o = r->o;
    bool file_is_stdin = false;
    for (int i = 0; i < o->n_files; i++)
        file_is_stdin = file_is_stdin || strcmp(o->files[i], "-") == 0;
    enum pp_code code = add_file(&r->question, !isatty(STDIN_FILENO) || file_is_stdin ? "-" : NULL, err);
    for (int i = 0; !code && i < o->n_files; i++)
        if (strcmp(o->files[i], "-") != 0)
            code = add_file(&r->question, o->files[i], err);
    if (!code && o->prompt)
        code = check_text("the text of -p", o->prompt, strlen(o->prompt), err);
    if (code)
        return code;
    if (o->prompt)
        add_part(&r->question, o->prompt, strlen(o->prompt));
    if (r->question.bad)
        return pp_fail_nomem(err, "the prompt");
    if (!r->question.len)
        return pp_fail(err, PP_ERR_USAGE,
                       "there is no prompt; give one with -p TEXT or -f FILE, or through a pipe");
    return PP_OK;
}

/* --- loading ---------------------------------------------------------------------------------------------- */

static bool drafts(const struct run *r, const char *who)
{
    const char *drafter = r->o->drafter ? r->o->drafter : "auto";
    return !r->o->no_draft && (strcmp(drafter, "auto") == 0 || strcmp(drafter, who) == 0);
}

/* The draft model that was named, or the one bundled with the target model, whose path is written into `own`; or
 * NULL. */
static const char *draft_name(const struct run *r, char *own, size_t cap)
{
    return r->o->draft ? r->o->draft : pp_bundled_draft(r->p, r->target.path, own, cap) ? own : NULL;
}

static enum pp_code load_draft(struct run *r, const char *name, struct pp_error *err)
{
    struct pp_engine_options opt = pp_cli_engine_options(r->o);
    opt.share_pool = r->target.engine;
    opt.n_ctx = pp_engine_n_ctx(r->target.engine);
    enum pp_code code = pp_cli_model_open(&r->draft, r->p, name, &opt, err);
    if (!code && (code = pp_cli_check_draft(r->target.model, r->draft.model, err)))
        return code; /* the error names both models */
    for (int i = 0; !code && i < r->o->n_draft_lora; i++)
        code = pp_cli_model_adapter(&r->draft, r->o->draft_lora[i].path, r->o->draft_lora[i].scale, err);
    if (!code)
        code = pp_cli_model_seq(&r->draft, &r->draft_seq, err);
    return code ? pp_fail_prefix(err, "draft model") : PP_OK;
}

/* An unsuitable draft model is an error. One that does not fit into memory is left out, as the answer is the same
 * without it. */
static enum pp_code open_draft(struct run *r, struct pp_error *err)
{
    char own[600];
    struct pp_error why;
    const char *name = draft_name(r, own, sizeof own);
    if (!drafts(r, "model"))
        return PP_OK;
    if (!name)
        return !r->o->n_draft_lora ? PP_OK
                                   : pp_fail(err, PP_ERR_USAGE, "--draft-lora needs a draft model; give one with -md");
    enum pp_code code = load_draft(r, name, &why);
    if (code == PP_ERR_NOMEM) {
        pp_cli_model_close(&r->draft);
        pp_cli_say("not enough memory for the draft model; continuing without it");
        return PP_OK;
    }
    if (code && err)
        *err = why;
    return code;
}

/* Adds the adapters stored with the conversation: [{"path": ..., "scale": ...}]. */
static enum pp_code add_stored_adapters(struct run *r, const char *json, struct pp_error *err)
{
    cJSON *list = json && *json ? cJSON_Parse(json) : NULL, *item;
    enum pp_code code = PP_OK;
    cJSON_ArrayForEach(item, list)
    {
        const cJSON *path = pp_json_member(item, "path");
        const cJSON *scale = pp_json_member(item, "scale");
        if (!code && cJSON_IsString(path) && cJSON_IsNumber(scale))
            code = pp_cli_model_adapter(&r->target, path->valuestring, (float)scale->valuedouble, err);
    }
    cJSON_Delete(list);
    return code ? pp_fail_prefix(err, "an adapter of this conversation (give others with --lora)") : code;
}

static enum pp_code load(struct run *r, struct pp_error *err)
{
    const char *stored = r->session.session.model, *name = r->o->model;
    if (!name[0] && stored && stored[0]) {
        char path[sizeof r->target.path];
        name = stored;
        if (pp_resolve_model(r->p, name, path, sizeof path, err) != PP_OK)
            return pp_fail_prefix(err, "the model of this conversation (give another one with -m)");
    }
    struct pp_engine_options opt = pp_cli_engine_options(r->o);
    r->target = pp_cli_model_asked(r->o);
    enum pp_code code = pp_cli_model_open(&r->target, r->p, name, &opt, err);
    if (!code && !pp_model_tokenizer(r->target.model))
        code = pp_fail(err, PP_ERR_USAGE, "%s has no vocabulary, so it cannot write text; use a model with a "
                                          "tokenizer", r->target.path);
    if (!code)
        code = pp_sampling_check(&r->sampling, pp_model_info(r->target.model)->n_vocab, err);
    if (!code)
        code = open_draft(r, err);
    if (!code)
        code = r->o->n_lora ? pp_cli_model_adapters(&r->target, r->o, err)
                            : add_stored_adapters(r, r->session.session.adapters, err);
    if (!code)
        code = pp_cli_model_seq(&r->target, &r->seq, err);
    r->loaded_ns = pp_now_ns();
    return code;
}

/* --- what is stored, and statistics ----------------------------------------------------------------------- */

/* Prints and deletes JSON; for pp_free. NULL: out of memory, or not ok. */
static char *print_json(cJSON *json, bool ok)
{
    char *text = ok && json ? cJSON_PrintUnformatted(json) : NULL, *copy = text ? pp_strdup(text) : NULL;
    cJSON_free(text);
    cJSON_Delete(json);
    return copy;
}

/* The adapters as JSON, with absolute paths, so that they are found from any folder. Paths keep their bytes, and
 * scales all their digits, as the conversation continues with them. */
static char *adapters_json(const struct run *r)
{
    char real[PATH_MAX];
    cJSON *list = cJSON_CreateArray();
    bool ok = list;
    for (int i = 0; ok && i < r->target.n_adapters; i++) {
        const char *path = pp_adapter_info(r->target.adapters[i])->path;
        cJSON *item = cJSON_CreateObject();
        ok = item && cJSON_AddStringToObject(item, "path", pp_absolute_path(path, real) ? real : path) &&
             cJSON_AddNumberToObject(item, "scale", pp_json_short(r->target.uses[i].scale)) &&
             cJSON_AddItemToArray(list, item);
        if (!ok)
            cJSON_Delete(item);
    }
    return print_json(list, ok);
}

/* Stores the choice of drafter if the command line makes one. */
static bool add_draft_choice(const struct pp_options *o, cJSON *all)
{
    bool given = pp_options_given(o, "no-draft") || pp_options_given(o, "use-draft") || pp_options_given(o, "drafter");
    if (!given)
        return true;
    cJSON_DeleteItemFromObjectCaseSensitive(all, "draft");
    cJSON_DeleteItemFromObjectCaseSensitive(all, "drafter");
    return cJSON_AddBoolToObject(all, "draft", !o->no_draft) &&
           (!o->drafter || cJSON_AddStringToObject(all, "drafter", o->drafter));
}

static bool add_thinking(const struct pp_options *o, cJSON *all)
{
    if (!pp_options_given(o, "thinking"))
        return true;
    cJSON_DeleteItemFromObjectCaseSensitive(all, "thinking");
    return cJSON_AddStringToObject(all, "thinking", o->thinking) != NULL;
}

/* The name of the persona, if the command line chooses one or another system prompt. */
static bool add_persona(const struct run *r, cJSON *all)
{
    const struct pp_options *o = r->o;
    if (!pp_options_given(o, "system") && !r->session.fresh)
        return true;
    cJSON_DeleteItemFromObjectCaseSensitive(all, "persona");
    return !o->persona || !*o->persona || cJSON_AddStringToObject(all, "persona", o->persona);
}

/* The conversation's settings, updated by what the command line says: sampling parameters, drafter, and whether the
 * model thinks. */
static char *settings_json(const struct run *r)
{
    const struct pp_sampling *s = &r->sampling;
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"temp", (double)s->temp},
        {"top-k", s->top_k},
        {"top-p", (double)s->top_p},
        {"min-p", (double)s->min_p},
        {"repeat-penalty", (double)s->repeat_penalty},
        {"repeat-last-n", s->penalty_last_n},
        {"frequency-penalty", (double)s->frequency_penalty},
        {"presence-penalty", (double)s->presence_penalty},
    };
    const char *stored = r->session.session.settings;
    char digits[32];
    cJSON *all = stored && *stored ? cJSON_Parse(stored) : NULL;
    if (!cJSON_IsObject(all)) {
        cJSON_Delete(all);
        all = cJSON_CreateObject();
    }
    bool ok = all && (!stored || pp_json_keep_digits(all, stored, strlen(stored)));
    ok = ok && add_draft_choice(r->o, all) && add_thinking(r->o, all) && add_persona(r, all);
    for (size_t i = 0; ok && i < sizeof numbers / sizeof numbers[0]; i++) {
        if (!pp_options_given(r->o, numbers[i].name))
            continue;
        cJSON_DeleteItemFromObjectCaseSensitive(all, numbers[i].name);
        const double v = numbers[i].value;
        ok = cJSON_AddNumberToObject(all, numbers[i].name, v == floor(v) ? v : pp_json_short((float)v));
    }
    if (ok && pp_options_given(r->o, "seed")) {
        snprintf(digits, sizeof digits, "%" PRIu64, s->seed); /* a double does not hold all 64 bits */
        cJSON_DeleteItemFromObjectCaseSensitive(all, "seed");
        ok = cJSON_AddRawToObject(all, "seed", digits);
    }
    return print_json(all, ok && pp_json_exact(all));
}

static void params_json(const struct pp_sampling *s, struct pp_buf *b)
{
    pp_buf_char(b, '{');
    pp_cli_json_float(b, "temp", s->temp);
    pp_cli_json_int(b, "top-k", s->top_k);
    pp_cli_json_float(b, "top-p", s->top_p);
    pp_cli_json_float(b, "min-p", s->min_p);
    pp_cli_json_float(b, "repeat-penalty", s->repeat_penalty);
    pp_cli_json_float(b, "frequency-penalty", s->frequency_penalty);
    pp_cli_json_float(b, "presence-penalty", s->presence_penalty);
    pp_cli_json_count(b, "seed", s->seed);
    pp_buf_char(b, '}');
}

static double per_second(uint64_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

static const char *finish_name(const struct run *r)
{
    static const char *const names[] = {
        [PP_FINISH_NONE] = "interrupted", [PP_FINISH_END] = "end",         [PP_FINISH_LENGTH] = "length",
        [PP_FINISH_STOP] = "stop",        [PP_FINISH_CONTEXT] = "context",
    };
    return r->too_long ? PP_OVERFLOW_TOO_LONG : names[r->finish];
}

/* Counts by position in a draft, up to the first position where `all` is 0. */
static void add_by_position(struct pp_buf *b, const char *name, const uint32_t *counts, const uint32_t *all)
{
    pp_cli_json_name(b, name);
    pp_buf_char(b, '[');
    for (int i = 0; i < PP_STATS_POSITIONS && all[i]; i++)
        pp_buf_fmt(b, "%s%u", i ? ", " : "", counts[i]);
    pp_buf_char(b, ']');
}

static void add_stats(const struct run *r, struct pp_buf *b)
{
    const struct pp_stats *s = pp_engine_stats(r->target.engine);
    const struct pp_model_info *info = pp_model_info(r->target.model);
    pp_cli_json_count(b, "prompt_tokens", s->prompt_tokens);
    pp_cli_json_count(b, "cached_tokens", s->cached_tokens);
    pp_cli_json_count(b, "prefill_tokens", s->prefill_tokens);
    pp_cli_json_count(b, "decode_tokens", s->decode_tokens);
    pp_cli_json_real(b, "prefill_tps", per_second(s->prefill_tokens, s->prefill_ns), 2);
    pp_cli_json_real(b, "decode_tps", per_second(s->decode_tokens, s->decode_ns), 2);
    pp_cli_json_count(b, "draft_tokens", s->draft_tokens);
    pp_cli_json_count(b, "draft_accepted", s->draft_accepted);
    pp_cli_json_count(b, "lookup_tokens", s->lookup_tokens);
    pp_cli_json_count(b, "lookup_accepted", s->lookup_accepted);
    add_by_position(b, "draft_at", s->draft_verified_at, s->draft_verified_at);
    add_by_position(b, "draft_stood_at", s->draft_accepted_at, s->draft_verified_at);
    pp_cli_json_real(b, "speedup", s->plain_ns && s->decode_ns ? (double)s->plain_ns / (double)s->decode_ns : 1, 3);
    pp_cli_json_real(b, "first_token_ms", (double)s->first_token_ns / 1e6, 3);
    pp_cli_json_real(b, "load_ms", (double)(r->loaded_ns - r->began_ns) / 1e6, 3);
    pp_cli_json_count(b, "passes", s->passes);
    pp_cli_json_count(b, "kv_copied_bytes", s->kv_copied_bytes);
    pp_cli_json_count(b, "kv_bytes", s->kv_bytes_used);
    pp_cli_json_count(b, "kv_cached_bytes", s->kv_bytes_cached);
    pp_cli_json_count(b, "kv_limit_bytes", s->kv_bytes_total);
    pp_cli_json_count(b, "layout_bytes", s->layout_bytes);
    pp_cli_json_count(b, "layout_mapped", s->layout_mapped);
    pp_cli_json_int(b, "reasoning_tokens", r->parts.n_reasoning);
    pp_cli_json_real(b, "reasoning_ms", (double)r->parts.reasoning_ns / 1e6, 1);
    pp_cli_json_str(b, "finish", finish_name(r));
    pp_cli_json_count(b, "seed", r->sampling.seed);
    pp_cli_json_str(b, "model", info->name);
    pp_cli_json_str(b, "type", info->type_name);
    pp_cli_json_str(b, "kv_type", pp_kv_type_name(pp_engine_kv_type(r->target.engine)));
    pp_cli_json_int(b, "n_threads", pp_engine_n_threads(r->target.engine));
    pp_cli_json_str(b, "kernels", pp_engine_kernels(r->target.engine));
    if (r->session.stored)
        pp_cli_json_str(b, "session", r->session.session.key);
}

/* For storing with a conversation: also which parts of the answer were drafted. */
static void stored_json(const struct run *r, struct pp_buf *b)
{
    pp_buf_char(b, '{');
    add_stats(r, b);
    if (pp_draft_runs_any(&r->drafted)) {
        pp_cli_json_name(b, "guessed");
        pp_draft_runs_json(&r->drafted, b);
    }
    pp_buf_char(b, '}');
}

/* One line of JSON: the statistics, with the texts before them if texts. */
static void print_line(const struct run *r, bool texts, FILE *out)
{
    struct pp_buf line = {0};
    pp_buf_char(&line, '{');
    if (texts) {
        pp_cli_json_name(&line, "answer");
        pp_cli_json_string(&line, pp_buf_cstr(&r->answer), r->answer.len);
    }
    if (texts && r->reasoning.len) {
        pp_cli_json_name(&line, "reasoning");
        pp_cli_json_string(&line, pp_buf_cstr(&r->reasoning), r->reasoning.len);
    }
    add_stats(r, &line);
    pp_buf_str(&line, "}\n");
    if (line.bad)
        pp_cli_say("out of memory for the JSON");
    else
        fwrite(line.data, 1, line.len, out);
    pp_buf_free(&line);
}

/* --- the answer ------------------------------------------------------------------------------------------- */

/* Writes to stdout. While the reader does not read, the answer so far is still saved from time to time. */
static enum pp_code write_out(struct run *r, const char *s, size_t n, struct pp_error *err)
{
    enum { PIECE = 4096, WAIT_MS = 250 }; /* after POLLOUT a pipe takes PIPE_BUF bytes without blocking */
    while (n) {
        struct pollfd fd = {.fd = STDOUT_FILENO, .events = POLLOUT};
        int ready = poll(&fd, 1, WAIT_MS);
        enum pp_code code = run_session_progress(&r->session, &r->answer, &r->reasoning, err);
        if (code)
            return code;
        if (pp_cancelled(r->cancel))
            return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
        if (ready <= 0)
            continue;
        ssize_t w = write(STDOUT_FILENO, s, n < PIECE ? n : PIECE);
        if (w < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (w < 0) {
            r->reader_gone = errno == EPIPE;
            return pp_fail(err, PP_ERR_IO, "cannot write the answer: %s", strerror(errno));
        }
        s += w;
        n -= (size_t)w;
        r->n_out += (size_t)w;
    }
    return PP_OK;
}

/* Removes what was written from stdout, if that is a regular file which ends there. */
static bool unwrite(struct run *r)
{
    struct stat st;
    const off_t at = lseek(STDOUT_FILENO, 0, SEEK_CUR), begin = at - (off_t)r->n_out;
    return begin >= 0 && fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == at &&
           ftruncate(STDOUT_FILENO, begin) == 0 && lseek(STDOUT_FILENO, begin, SEEK_SET) == begin;
}

/* The model has ended a reasoning whose beginning the template does not mark: the text so far was reasoning. Removes
 * it from stdout if possible, or else says so. */
static enum pp_code withdraw(struct run *r, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    if (r->was_reasoning && r->n_out && !unwrite(r)) {
        pp_cli_bar_clear(&r->bar);
        code = write_out(r, "\n\n", 2, err);
        pp_cli_say("the text so far was the model's reasoning (its chat template does not mark the start); the answer "
                   "follows");
    }
    if (r->was_reasoning)
        r->n_out = 0;
    r->was_reasoning = false;
    return code;
}

/* stdout is reserved for the answer; reasoning goes to stderr, or is only mentioned there. */
static void show_reasoning(struct run *r)
{
    const char *how = r->o->reasoning ? r->o->reasoning : "fold";
    size_t n = r->reasoning.len - r->reasoning_shown;
    if (strcmp(how, "show") == 0 && n) {
        struct pp_buf plain = {0};
        pp_cli_bar_clear(&r->bar);
        pp_plain_text(&plain, r->reasoning.data + r->reasoning_shown, n);
        fwrite(pp_buf_cstr(&plain), 1, plain.len, stderr);
        pp_buf_free(&plain);
    }
    r->reasoning_shown = r->reasoning.len;
    if (!r->reasoning.len || r->parts.thinking || r->reasoning_reported)
        return;
    r->reasoning_reported = true;
    if (strcmp(how, "show") == 0)
        fputs("\n\n", stderr);
    else if (strcmp(how, "fold") == 0 && isatty(STDERR_FILENO))
        pp_cli_say("thought for %lld tokens, %.1f s (use --reasoning show to see it)", (long long)r->parts.n_reasoning,
                   (double)r->parts.reasoning_ns / 1e9);
}

static enum pp_code show_new(struct run *r, struct pp_error *err)
{
    enum pp_code code = withdraw(r, err);
    show_reasoning(r);
    const char *s = pp_buf_cstr(&r->answer) + r->shown;
    size_t n = r->answer.len - r->shown;
    struct pp_buf plain = {0};
    if (!n || code || r->o->json) /* as JSON it is printed at the end */
        return code;
    pp_cli_bar_clear(&r->bar);
    r->shown = r->answer.len;
    if (!isatty(STDOUT_FILENO))
        return write_out(r, s, n, err);
    pp_plain_text(&plain, s, n);
    code = write_out(r, pp_buf_cstr(&plain), plain.len, err);
    pp_buf_free(&plain);
    return code;
}

/* Splits what the model has written since the last call into the answer and its reasoning. */
static void split_output(struct run *r, int n_tokens, bool last)
{
    struct pp_parts *p = &r->parts;
    uint64_t now = pp_now_ns();
    const bool complete = !r->written_drafted.bad && r->written_drafted.len == r->written.len;
    pp_parts_add(p, r->written.data, complete ? r->written_drafted.data : NULL, r->written.len, n_tokens, now);
    pp_buf_clear(&r->written);
    pp_buf_clear(&r->written_drafted);
    if (last)
        pp_parts_end(p, now);
    if (p->text_was_reasoning) {
        r->was_reasoning = true;
        pp_buf_add(&r->reasoning, r->answer.data, r->answer.len);
        pp_buf_clear(&r->answer);
        pp_draft_runs_clear(&r->drafted);
        r->shown = 0;
        r->reasoning_shown = r->reasoning.len;
    }
    pp_buf_add(&r->reasoning, p->reasoning.data, p->reasoning.len);
    pp_buf_add(&r->answer, p->text.data, p->text.len);
    pp_draft_runs_append(&r->drafted, &p->drafted);
    pp_draft_runs_fit(&r->drafted, r->answer.len);
    p->text_was_reasoning = false;
    pp_draft_runs_clear(&p->drafted);
    pp_buf_clear(&p->reasoning);
    pp_buf_clear(&p->text);
}

static void prompt_progress(void *user, uint64_t done, uint64_t total)
{
    pp_cli_bar_show(user, "reading the prompt", done, total);
}

static enum pp_code generate(struct run *r, const int32_t *ids, size_t n, struct pp_error *err)
{
    struct pp_gen_options opt = {
        .sampling = r->sampling,
        .max_tokens = r->o->n_predict,
        .stops = r->o->stops,
        .n_stops = r->o->n_stops,
        .ignore_end = r->o->ignore_eos,
        .written = r->marks.tokens,
        .n_written = r->marks.n_tokens,
        .draft = r->draft_seq,
        .lookup = drafts(r, "lookup"),
        .draft_max = r->o->draft_max,
        .draft_always = r->o->draft_always,
        .draft_p_min = r->o->draft_p_min,
        .progress = prompt_progress,
        .user = &r->bar,
    };
    const struct pp_grammar_use use = {.grammar = r->grammar, .reasoning = &r->marks, .begins = r->begins};
    struct pp_gen *gen = NULL;
    opt.grammar = r->grammar ? &use : NULL;
    r->asked = true;
    enum pp_code code = pp_parts_begin(&r->parts, &r->marks, r->begins)
                            ? pp_gen_start(r->seq, ids, (int64_t)n, &opt, r->cancel, &gen, err)
                            : pp_fail_nomem(err, "the answer");
    if (!code && r->o->n_predict == 0)
        r->finish = PP_FINISH_LENGTH;
    while (!code && r->finish == PP_FINISH_NONE) {
        struct pp_gen_item item = {.gen = gen, .text = &r->written, .drafted = &r->written_drafted};
        code = pp_gen_step(&item, 1, r->cancel, err);
        if (!code && (code = item.code))
            *err = item.err;
        r->n_tokens += item.n_tokens;
        r->finish = item.finish;
        split_output(r, item.n_tokens, r->finish != PP_FINISH_NONE);
        if (!code && r->finish == PP_FINISH_NONE && pp_parts_over(&r->parts) && !r->o->ignore_eos)
            r->finish = PP_FINISH_END;
        if (!code && (r->answer.bad || r->reasoning.bad))
            code = pp_fail_nomem(err, "the answer");
        if (!code)
            code = show_new(r, err);
        if (!code)
            code = run_session_progress(&r->session, &r->answer, &r->reasoning, err);
    }
    pp_cli_bar_clear(&r->bar);
    if (gen && code) {
        pp_gen_flush(gen, &r->written, &r->written_drafted);
        split_output(r, 0, true);
    }
    pp_gen_free(gen);
    return code;
}

/* Says why there is no answer after a reasoning. */
static void report_only_reasoning(const struct run *r)
{
    const long long n = (long long)r->parts.n_reasoning;
    if (r->answer.len || !n)
        return;
    if (r->finish == PP_FINISH_LENGTH)
        pp_cli_say("there is no answer: the reasoning used up all %lld tokens of -n (use --reasoning show to see it); "
                   "give a larger -n", (long long)r->o->n_predict);
    else if (r->finish == PP_FINISH_STOP)
        pp_cli_say("there is no answer: a --stop text ended the reasoning after %lld tokens", n);
    else if (r->finish == PP_FINISH_END)
        pp_cli_say("there is no answer: the model stopped during its reasoning, after %lld tokens", n);
}

/* Says which adapters the prompt does not invoke: they change nothing. Often only a space differs. */
static void say_uninvoked(const struct run *r, const int32_t *ids, size_t n)
{
    for (int i = 0; i < r->target.n_adapters; i++) {
        const struct pp_adapter_info *info = pp_adapter_info(r->target.adapters[i]);
        struct pp_buf text = {0};
        if (pp_adapter_acts_after(r->target.adapters[i], ids, (int64_t)n))
            continue;
        for (int k = 0; k < info->n_invocation; k++)
            pp_token_text(pp_model_tokenizer(r->target.model), info->invocation[k], true, &text);
        pp_cli_say("adapter %s has no effect: the prompt does not contain the tokens that invoke it, \"%.100s\"",
                   info->name, pp_buf_cstr(&text));
        pp_buf_free(&text);
    }
}

static enum pp_code report_context_full(const struct run *r, struct pp_error *err)
{
    const int64_t n_ctx = pp_engine_n_ctx(r->target.engine);
    const struct pp_larger larger = pp_overflow_larger(n_ctx, pp_model_info(r->target.model)->n_ctx_train);
    return pp_fail(err, PP_ERR_CONTEXT, "the answer stops here: the context of %s tokens is full%s%s",
                   pp_count(n_ctx).text, larger.text[0] ? "; give " : ", and the model was not trained for more",
                   larger.text);
}

/* Whether the model stopped during its reasoning, before the grammar began. */
static bool stopped_before_grammar(const struct run *r)
{
    struct pp_error ignored;
    bool may_be_empty = false;
    return !r->answer.len && r->parts.n_reasoning &&
           (pp_grammar_matches(r->grammar, "", 0, &may_be_empty, &ignored) || !may_be_empty);
}

/* Half of what a grammar describes is of no use to a program that reads it. */
static enum pp_code check_complete(const struct run *r, struct pp_error *err)
{
    if (r->finish != PP_FINISH_END)
        return pp_fail(err, PP_ERR_FORMAT, "the answer is cut off before the end of its grammar: %s",
                       r->finish == PP_FINISH_LENGTH ? "give a larger -n" : "a --stop text ended it");
    return stopped_before_grammar(r) ? pp_fail(err, PP_ERR_FORMAT, "the grammar applies to the answer, and there is "
                                                                   "none; try --thinking off, or another --seed")
                                     : PP_OK;
}

static enum pp_code answer(struct run *r, struct pp_error *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    enum pp_code code = run_prompt(r, &ids, &n, err);
    if (!code) {
        say_uninvoked(r, ids, n);
        run_snapshot_load(&r->session, r->o, r->p, r->seq, r->target.model, ids, n);
        code = generate(r, ids, n, err);
    }
    pp_free(ids);
    if (!code)
        report_only_reasoning(r);
    bool at_line_start = r->o->json || !r->answer.len || r->answer.data[r->answer.len - 1] == '\n';
    if (!code && !at_line_start)
        code = write_out(r, "\n", 1, err);
    else if (code == PP_ERR_CANCELLED && !at_line_start && isatty(STDOUT_FILENO))
        (void)!write(STDOUT_FILENO, "\n", 1); /* the shell's prompt should begin a new line */
    if (!code && r->finish == PP_FINISH_CONTEXT)
        code = report_context_full(r, err);
    if (!code && r->grammar)
        code = check_complete(r, err);
    return code;
}

/* --- the command ------------------------------------------------------------------------------------------ */

static enum pp_code save_question(struct run *r, struct pp_error *err)
{
    char model[256];
    struct pp_buf params = {0};
    char *settings = settings_json(r), *adapters = adapters_json(r);
    const struct pp_model_info *info = pp_model_info(r->target.model);
    snprintf(model, sizeof model, "%s (%s)", info->name, info->type_name);
    params_json(&r->sampling, &params);
    struct run_note note = {
        .model = model,
        .adapters = adapters,
        .params = pp_buf_cstr(&params),
        .settings = settings,
    };
    enum pp_code code = !adapters || params.bad || !settings
                            ? pp_fail_nomem(err, "the question")
                            : run_session_ask(&r->session, r->o, r->p, &r->question, &note, err);
    pp_free(settings);
    pp_free(adapters);
    pp_buf_free(&params);
    return code;
}

/* Saves the answer so far, also after an error. The first error is the one that is returned. */
static enum pp_code save_answer(struct run *r, enum pp_code code, struct pp_error *err)
{
    struct pp_buf stats = {0};
    struct pp_error why;
    bool stopped = code == PP_ERR_CANCELLED || r->reader_gone;
    enum pp_message_state state = stopped                          ? PP_MESSAGE_CANCELLED
                                  : code && code != PP_ERR_CONTEXT ? PP_MESSAGE_PARTIAL
                                                                   : PP_MESSAGE_COMPLETE;
    stored_json(r, &stats);
    enum pp_code saved = run_session_end(&r->session, &r->answer, &r->reasoning, state, pp_buf_cstr(&stats),
                                         r->n_tokens, &why);
    pp_buf_free(&stats);
    if (saved && !code) {
        *err = why;
        code = saved;
    } else if (saved) {
        pp_cli_say("%s", why.text);
    }
    if (r->asked && !saved)
        run_snapshot_save(&r->session, r->o, r->p, r->seq, r->target.model);
    return code;
}

/* A random seed of at most 53 bits, which JSON readers that use doubles keep. */
static uint64_t fresh_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = pp_now_ns();
    return seed & ((UINT64_C(1) << 53) - 1);
}

/* Applies one stored setting, unless the command line gives it. Ignores unknown ones: they come from a newer pippin, or
 * concern the full screen only. False: the value is invalid. */
static bool recall_setting(struct pp_options *o, const cJSON *item, bool draft_given)
{
    char value[32];
    const char *name = item->string;
    if (cJSON_IsNumber(item)) {
        if (item->valuestring)
            snprintf(value, sizeof value, "%s", item->valuestring);
        else
            snprintf(value, sizeof value, "%.17g", item->valuedouble);
        return pp_options_recall(o, name, value, NULL) != PP_ERR_USAGE;
    }
    if (strcmp(name, "seed") == 0 && cJSON_IsNull(item) && !pp_options_given(o, "seed"))
        o->seed_given = false; /* a new seed each time, even if pippin.conf sets one */
    if (strcmp(name, "draft") == 0 && cJSON_IsBool(item) && !draft_given) {
        o->use_draft = cJSON_IsTrue(item);
        o->no_draft = !o->use_draft;
    }
    if (strcmp(name, "drafter") == 0 && cJSON_IsString(item) && !draft_given)
        o->drafter = strcmp(item->valuestring, "model") == 0    ? "model"
                     : strcmp(item->valuestring, "lookup") == 0 ? "lookup"
                                                                : "auto";
    if (strcmp(name, "thinking") == 0 && cJSON_IsString(item) && !pp_options_given(o, "thinking")) {
        int t = pp_thinking_by_name(item->valuestring);
        o->thinking = t < 0 ? NULL : pp_thinking_name((enum pp_thinking)t);
    }
    return true;
}

/* Applies the conversation's stored settings, {"temp": 0.2, "draft": true, ...}. */
static void recall_settings(struct run *r)
{
    const char *json = r->session.session.settings;
    cJSON *all = json && *json ? cJSON_Parse(json) : NULL;
    struct pp_options *o = &r->options;
    bool good = !json || !*json || (cJSON_IsObject(all) && pp_json_keep_digits(all, json, strlen(json)));
    const bool draft_given = pp_options_given(o, "use-draft") || pp_options_given(o, "no-draft") ||
                             pp_options_given(o, "model-draft") || pp_options_given(o, "drafter");
    for (const cJSON *item = cJSON_IsObject(all) ? all->child : NULL; item; item = item->next)
        good = recall_setting(o, item, draft_given) && good;
    cJSON_Delete(all);
    if (!good)
        pp_cli_say("some settings of this conversation cannot be read; the defaults are used");
    r->sampling = o->sampling;
    if (!o->seed_given)
        r->sampling.seed = fresh_seed();
}

/* A resumed conversation keeps its own choices instead of those of pippin.conf and the environment; only the command
 * line overrides them. A draft model configured there belongs to the model configured there, so it is dropped along
 * with it. */
static void recall_choices(struct run *r)
{
    const struct pp_session *s = &r->session.session;
    struct pp_options *o = &r->options;
    char own[PATH_MAX];
    if (!r->session.stored || r->session.fresh)
        return;
    pp_model_reference(o->model, own);
    if (!pp_options_given(o, "model") && s->model && *s->model && strcmp(s->model, own) != 0) {
        o->model = "";
        if (!pp_options_given(o, "model-draft")) {
            o->draft = NULL;
            o->n_draft_lora = 0;
        }
    }
    if (!pp_options_given(o, "system"))
        o->system = NULL;
    if (!pp_options_given(o, "lora") && !pp_options_given(o, "lora-scaled") && s->adapters && *s->adapters)
        o->n_lora = 0;
    if (!pp_options_given(o, "chat-template-file") && r->session.template_source)
        o->chat_template_file = NULL;
}

static enum pp_code run(struct run *r, struct pp_error *err)
{
    enum pp_code code = read_question(r, err);
    if (!code)
        code = run_grammar(r->o, &r->grammar, err);
    if (!code)
        code = run_session_open(&r->session, r->o, r->p, err);
    recall_settings(r);
    recall_choices(r);
    if (!code)
        code = load(r, err);
    if (!code)
        code = save_question(r, err);
    if (!code)
        code = save_answer(r, answer(r, err), err);
    return code;
}

static void run_free(struct run *r)
{
    pp_seq_free(r->draft_seq);
    pp_seq_free(r->seq);
    pp_cli_model_close(&r->draft); /* before the target's engine, whose threads it shares */
    pp_cli_model_close(&r->target);
    pp_grammar_free(r->grammar);
    run_session_close(&r->session);
    pp_buf_free(&r->question);
    pp_parts_free(&r->parts);
    pp_buf_free(&r->written);
    pp_buf_free(&r->written_drafted);
    pp_draft_runs_free(&r->drafted);
    pp_buf_free(&r->answer);
    pp_buf_free(&r->reasoning);
}

int pp_cmd_run(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    struct run r = {
        .options = *o,
        .p = p,
        .cancel = pp_cli_begin(),
        .began_ns = pp_now_ns(),
        .session.lock_fd = -1,
    };
    r.o = &r.options;
    enum pp_code code = run(&r, &err);
    const bool stopped = r.asked && code == PP_ERR_CANCELLED;
    if (o->json && (r.finish != PP_FINISH_NONE || r.answer.len || stopped))
        print_line(&r, true, stdout);
    int exit_code = r.reader_gone ? 1 : pp_cli_end(code, &err);
    if (r.session.answer_id)
        pp_cli_say("conversation %s; continue it with --resume %s", r.session.session.key, r.session.session.key);
    if (o->stats && r.asked)
        print_line(&r, false, stderr);
    run_free(&r);
    return exit_code;
}
