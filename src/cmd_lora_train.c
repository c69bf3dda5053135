/* cmd_lora_train.c - pippin lora train: trains an adapter from examples. The training itself is in engine/train.h;
 * here are files, the progress line with a plot of the loss, and the summary. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/text.h"
#include "engine/train.h"
#include "src/cmd_common.h"
#include "src/commands.h"
#include "src/figures.h"

/* --- progress ------------------------------------------------------------------------------------------------- */

enum { POINTS = 512, BAR = 12, PLOT = 16, LEVELS = 8, EVERY_NS = 100 * 1000 * 1000 };

/* The losses of all steps so far, as means of `each` steps; that number doubles whenever the array is full. */
struct history {
    double mean[POINTS];
    int n;                      /* the last mean may be of fewer steps */
    int64_t each, in_last;
};

struct show {
    struct history loss;
    bool terminal;
    uint64_t last_ns;
    double last_share;          /* progress at the last plain line */
};

static void remember(struct history *h, double loss)
{
    if (h->n && h->in_last < h->each) {
        h->mean[h->n - 1] += (loss - h->mean[h->n - 1]) / (double)++h->in_last;
        return;
    }
    if (h->n == POINTS) {
        for (int i = 0; i < POINTS / 2; i++)
            h->mean[i] = (h->mean[2 * i] + h->mean[2 * i + 1]) / 2;
        h->n = POINTS / 2;
        h->each *= 2;
    }
    h->mean[h->n++] = loss;
    h->in_last = 1;
}

/* Plots the history in PLOT columns, with eighths of a block; the highest loss is at the top. */
static void plot(struct pp_buf *out, const struct history *h)
{
    static const char *const blocks[LEVELS] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double column[PLOT], low = INFINITY, high = -INFINITY;
    int n = h->n < PLOT ? h->n : PLOT;
    for (int c = 0; c < n; c++) {
        int from = h->n * c / n, to = h->n * (c + 1) / n;
        column[c] = 0;
        for (int i = from; i < to; i++)
            column[c] += h->mean[i] / (to - from);
        low = column[c] < low ? column[c] : low;
        high = column[c] > high ? column[c] : high;
    }
    for (int c = 0; c < n; c++) {
        double share = high > low ? (column[c] - low) / (high - low) : 0;
        pp_buf_str(out, blocks[(int)(share * (LEVELS - 1) + 0.5)]);
    }
    for (int c = n; c < PLOT; c++)
        pp_buf_char(out, ' ');
}

static void bar(struct pp_buf *out, double share)
{
    int full = (int)(share * BAR + 1e-9);
    for (int i = 0; i < BAR; i++)
        pp_buf_str(out, i < full ? "█" : "░");
}

static void add_time(struct pp_buf *out, double seconds)
{
    char text[PP_CLI_DURATION];
    pp_cli_duration(seconds, text);
    pp_buf_str(out, text);
}

static int terminal_width(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
}

/* Estimated seconds to the end, from the steps of this run; NAN: unknown. */
static double time_left(const struct pp_train_progress *p)
{
    int64_t done = p->step - p->first_step;
    return done > 0 ? p->seconds / (double)done * (double)(p->n_steps - p->step) : (double)NAN;
}

struct progress {
    struct show show;
    const struct pp_cancel *cancel;
    bool waiting;               /* for space on the disk */
};

/* Adds an ASCII text if it fits into the remaining columns. */
static void add_figure(struct pp_buf *to, int *room, const char *text)
{
    if ((int)strlen(text) > *room)
        return;
    pp_buf_str(to, text);
    *room -= (int)strlen(text);
}

/* Rewrites the progress line, with as many figures as fit the terminal's current width: a line that wraps could not
 * be rewritten. */
static void show_line(struct progress *g, const struct pp_train_progress *p)
{
    struct pp_buf line = {0}, figures = {0};
    char text[PP_CLI_DURATION + 32];
    double left = time_left(p);
    int room = terminal_width() - 1;
    snprintf(text, sizeof text, "step %lld/%lld", (long long)p->step, (long long)p->n_steps);
    add_figure(&line, &room, text);
    snprintf(text, sizeof text, " loss %.3f", p->last.loss);
    add_figure(&figures, &room, p->step > p->first_step ? text : "");
    snprintf(text, sizeof text, " val %.3f", p->validation);
    add_figure(&figures, &room, isnan(p->validation) ? "" : text);
    if (!isnan(left)) {
        char duration[PP_CLI_DURATION];
        pp_cli_duration(left, duration);
        snprintf(text, sizeof text, " %s left", duration);
        add_figure(&figures, &room, text);
    }
    if (room > PLOT + 1 + BAR) {
        pp_buf_char(&line, ' ');
        bar(&line, (double)p->step / (double)p->n_steps);
    }
    if (room > PLOT) {
        pp_buf_char(&line, ' ');
        plot(&line, &g->show.loss);
    }
    fprintf(stderr, "\r\033[K%s%s", pp_buf_cstr(&line), pp_buf_cstr(&figures));
    pp_buf_free(&line);
    pp_buf_free(&figures);
}

static void plain_line(const struct pp_train_progress *p)
{
    struct pp_buf line = {0};
    double left = time_left(p);
    pp_buf_fmt(&line, "step %lld of %lld", (long long)p->step, (long long)p->n_steps);
    if (p->step > p->first_step)
        pp_buf_fmt(&line, ", loss %.4f", p->last.loss);
    if (p->validated)
        pp_buf_fmt(&line, ", validation loss %.4f", p->validation);
    if (p->seconds > 0 && p->n_tokens)
        pp_buf_fmt(&line, ", %.0f tokens/s", (double)p->n_tokens / p->seconds);
    if (!isnan(left)) {
        pp_buf_str(&line, ", ");
        add_time(&line, left);
        pp_buf_str(&line, " left");
    }
    pp_cli_say("%s", pp_buf_cstr(&line));
    pp_buf_free(&line);
}

static void report(void *user, const struct pp_train_progress *p)
{
    struct progress *g = user;
    uint64_t now = pp_now_ns();
    double share = (double)p->step / (double)p->n_steps;
    if (p->unsaved) {
        fputs(g->show.terminal ? "\r\033[K" : "", stderr);
        pp_cli_say("no checkpoint written after step %lld: %s; training continues, and the next checkpoint will be "
                   "tried",
                   (long long)p->step, p->unsaved);
        return;
    }
    if (!p->validated && p->step > p->first_step)
        remember(&g->show.loss, p->last.loss);
    if (!g->show.terminal) {
        if (!p->validated && share < g->show.last_share + 0.1)
            return;
        g->show.last_share = share;
        plain_line(p);
        return;
    }
    if (g->show.last_ns && now - g->show.last_ns < EVERY_NS && p->step < p->n_steps)
        return;
    g->show.last_ns = now;
    show_line(g, p);
}

/* When a checkpoint cannot be written, waits for the user to make space: hours of training may be lost otherwise. */
static bool wait_for_room(void *user, const char *why)
{
    enum { TRIES = 50 };
    const struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};
    struct progress *g = user;
    if (!g->show.terminal)
        return false;
    if (!g->waiting) {
        fputs("\n", stderr);
        pp_cli_say("%s; free some disk space: retrying every few seconds (Ctrl-C gives up)", why);
        g->waiting = true;
    }
    for (int i = 0; i < TRIES && !pp_cancelled(g->cancel); i++)
        nanosleep(&pause, NULL);
    return !pp_cancelled(g->cancel);
}

/* --- inputs ---------------------------------------------------------------------------------------------------- */

struct job {
    char path[1024];            /* path of the model */
    struct pp_model *model;
    struct pp_buf chat_template; /* text of --chat-template-file */
    struct pp_train_data *data, *validation;
    struct pp_trainer *trainer;
    struct pp_train_options opt;
};

static void job_close(struct job *j)
{
    pp_trainer_free(j->trainer);
    pp_train_data_free(j->data);
    pp_train_data_free(j->validation);
    pp_buf_free(&j->chat_template);
    pp_model_close(j->model);
}

/* The maximum length of an example: at most the model's training context. */
static int64_t max_length(const struct pp_options *o, const struct job *j)
{
    const int64_t most = pp_model_info(j->model)->n_ctx_train;
    return o->lora_train.max_length < most ? o->lora_train.max_length : most;
}

/* The date for templates that print it: that of the file, so that a training can be repeated. */
static int64_t time_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_mtime : 0;
}

/* The chat template of a model that has none: the same as in chats. */
static const char *builtin_template(const struct job *j, const char **name, const char **why)
{
    const struct pp_model_info *m = pp_model_info(j->model);
    *name = pp_template_instead(pp_model_tokenizer(j->model), m->name, m->path, why);
    return pp_template_builtin(*name);
}

static enum pp_code read_data(const struct pp_options *o, struct job *j, struct pp_error *err)
{
    const char *name = NULL, *why = NULL;
    struct pp_train_data_options opt = {.max_tokens = max_length(o, j), .now = time_of(o->args[0])};
    if (o->chat_template_file)
        opt.chat_template = pp_buf_cstr(&j->chat_template);
    else if (!pp_model_info(j->model)->chat_template)
        opt.chat_template = builtin_template(j, &name, &why);
    enum pp_code code = pp_train_data_read(j->model, o->args[0], &opt, &j->data, err);
    if (!code && name && pp_train_data_info(j->data)->n_conversations)
        pp_cli_say("%s has no chat template; using %s%s%s (--chat-template-file sets another)", j->path,
                   strcmp(name, "plain") == 0 ? "the plain one" : name, why ? ", because of " : "", why ? why : "");
    if (code)
        return code;
    if (o->lora_train.validation)
        return pp_train_data_read(j->model, o->lora_train.validation, &opt, &j->validation, err);
    if (o->lora_train.val_share <= 0 ||
        (pp_train_data_info(j->data)->n_examples < 2 && !pp_options_given(o, "val-share")))
        return PP_OK;
    return pp_train_data_split(j->data, (double)o->lora_train.val_share, j->opt.seed, &j->validation, err);
}

static void say_data(const char *what, const struct pp_train_data *d)
{
    const struct pp_train_data_info *i = pp_train_data_info(d);
    pp_cli_say("%s: %zu example%s, %zu tokens (%zu trained on), longest example %zu tokens", what, i->n_examples,
               i->n_examples == 1 ? "" : "s", i->n_tokens, i->n_learnt, i->longest);
    if (i->n_cut)
        pp_cli_say("%s: %zu examples were too long and were cut (--max-length); %zu of them had no answer left and "
                   "were dropped",
                   what, i->n_cut, i->n_dropped);
}

static void say_plan(const struct job *j)
{
    const struct pp_train_info *i = pp_trainer_info(j->trainer);
    say_data("training", j->data);
    if (j->validation)
        say_data("validation", j->validation);
    pp_cli_say("%s trainable parameters (rank %d), %lld step%s on %d thread%s; needs %.0f MB in addition to the "
               "model%s",
               pp_count((int64_t)i->n_params).text, j->opt.rank, (long long)i->n_steps, i->n_steps == 1 ? "" : "s",
               i->n_threads, i->n_threads == 1 ? "" : "s", (double)i->bytes / 1e6,
               i->n_kept < i->n_layers ? " (with activation recomputation, to save memory)" : "");
}

/* Makes a path absolute, as the adapter stores it, and must find the model from any folder. */
static void from_the_root(char *path, size_t cap)
{
    char whole[PATH_MAX];
    pp_model_reference(path, whole);
    if (strlen(whole) < cap)
        strcpy(path, whole);
}

static enum pp_code prepare(const struct pp_options *o, const struct pp_paths *p, struct job *j, struct pp_error *err)
{
    j->opt = o->train;
    j->opt.seed = o->seed_given ? o->sampling.seed : 0;
    j->opt.n_threads = o->threads;
    j->opt.kernels = o->kernels;
    j->opt.cache_dir = p->cache;
    enum pp_code code = pp_train_targets_parse(o->lora_train.targets, &j->opt.targets, err);
    if (!code && !o->output)
        code = pp_fail(err, PP_ERR_USAGE, "give the folder for the adapter: pippin lora train FILE -o FOLDER");
    if (!code)
        code = pp_train_check(o->output, o->resume_latest, err);
    if (!code)
        code = pp_cli_model_path(o, p, j->path, sizeof j->path, err);
    if (!code)
        from_the_root(j->path, sizeof j->path);
    if (!code)
        code = pp_model_open(j->path, &j->model, err);
    if (!code && o->chat_template_file)
        code = pp_cli_read(o->chat_template_file, &j->chat_template, err);
    if (!code)
        code = read_data(o, j, err);
    return code ? code : pp_trainer_new(j->model, j->data, j->validation, &j->opt, &j->trainer, err);
}

/* --- the summary ----------------------------------------------------------------------------------------------- */

static void print_json(const struct pp_options *o, const struct job *j, const struct pp_train_result *r)
{
    struct pp_buf b = {0};
    const struct pp_train_info *i = pp_trainer_info(j->trainer);
    const struct pp_train_data_info *d = pp_train_data_info(j->data);
    pp_buf_char(&b, '{');
    pp_cli_json_str(&b, "adapter", o->output);
    pp_cli_json_str(&b, "model", pp_model_info(j->model)->name);
    pp_cli_json_int(&b, "steps", r->steps);
    pp_cli_json_int(&b, "n_steps", i->n_steps);
    pp_cli_json_real(&b, "first_loss", r->first_loss, 6);
    pp_cli_json_real(&b, "last_loss", r->last_loss, 6);
    pp_cli_json_real(&b, "first_validation_loss", r->first_validation, 6);
    pp_cli_json_real(&b, "validation_loss", r->validation, 6);
    pp_cli_json_count(&b, "examples", d->n_examples);
    pp_cli_json_count(&b, "examples_cut", d->n_cut);
    pp_cli_json_count(&b, "validation_examples", j->validation ? pp_train_data_info(j->validation)->n_examples : 0);
    pp_cli_json_count(&b, "parameters", i->n_params);
    pp_cli_json_count(&b, "memory_bytes", i->bytes);
    pp_cli_json_int(&b, "n_threads", i->n_threads);
    pp_cli_json_count(&b, "tokens", r->n_tokens);
    pp_cli_json_real(&b, "seconds", r->seconds, 3);
    pp_buf_str(&b, "}\n");
    pp_cli_print(b.data, b.len);
    pp_buf_free(&b);
}

static void print_result(const struct pp_options *o, const struct pp_train_result *r)
{
    struct pp_buf time_taken = {0};
    add_time(&time_taken, r->seconds);
    printf("%s: %lld step%s in %s", o->output, (long long)r->steps, r->steps == 1 ? "" : "s",
           pp_buf_cstr(&time_taken));
    if (!isnan(r->validation))
        printf(", validation loss %.4f, before %.4f", r->validation, r->first_validation);
    printf("\n");
    pp_buf_free(&time_taken);
}

static enum pp_code train(const struct pp_options *o, struct job *j, const struct pp_cancel *cancel,
                          struct pp_error *err)
{
    struct pp_train_result result;
    struct progress g = {.show = {.loss = {.each = 1}, .terminal = isatty(STDERR_FILENO)}, .cancel = cancel};
    struct pp_train_run run = {.folder = o->output, .resume = o->resume_latest, .eval_every = o->lora_train.eval_every,
                               .report = report, .again = wait_for_room, .user = &g, .cancel = cancel};
    enum pp_code code = pp_train(j->trainer, &run, &result, err);
    if (g.show.terminal)
        fputs("\n", stderr);
    if (code == PP_ERR_CANCELLED)
        pp_cli_say("%s", err->text);
    if (code)
        return code;
    if (o->json)
        print_json(o, j, &result);
    else
        print_result(o, &result);
    return PP_OK;
}

enum pp_code pp_cmd_lora_train(const struct pp_options *o, const struct pp_paths *p, const struct pp_cancel *cancel,
                               struct pp_error *err)
{
    struct job j = {0};
    enum pp_code code = pp_cli_args(o, 1, 1, "FILE -o FOLDER", err);
    if (!code)
        code = prepare(o, p, &j, err);
    if (!code) {
        say_plan(&j);
        code = train(o, &j, cancel, err);
    }
    job_close(&j);
    return code;
}
