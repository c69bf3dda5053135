/* slash.c - the commands that begin with '/': one table for running them, help and completion. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/word.h"
#include "src/controller_int.h"
#include "src/figures.h"
#include "src/near.h"

/* Runs a command; arg is its argument, without surrounding white space. */
typedef enum pp_slash slash_fn(struct pp_controller *c, char *arg);

struct slash {
    const char *name, *aliases; /* aliases: separated by spaces */
    const char *args, *help;
    slash_fn *run;              /* NULL: the screen handles it */
    enum pp_slash screen;
};

static bool is_on(const char *s)
{
    return pp_casecmp(s, "on") == 0 || pp_casecmp(s, "yes") == 0;
}

static bool is_off(const char *s)
{
    return pp_casecmp(s, "off") == 0 || pp_casecmp(s, "no") == 0 || pp_casecmp(s, "none") == 0;
}

/* Splits the last word off arg; NULL if there is only one. */
static char *split_last(char *arg)
{
    char *p = arg + strlen(arg);
    while (p > arg && p[-1] != ' ' && p[-1] != '\t')
        p--;
    if (p == arg)
        return NULL;
    char *word = p;
    while (p > arg && (p[-1] == ' ' || p[-1] == '\t'))
        p--;
    *p = 0;
    return word;
}

/* --- handlers --------------------------------------------------------------------------------------------- */

static enum pp_slash do_new(struct pp_controller *c, char *arg)
{
    (void)arg;
    pp_controller_new_session(c);
    return PP_SLASH_DONE;
}

static enum pp_slash do_model(struct pp_controller *c, char *arg)
{
    if (!*arg)
        return PP_SLASH_MODEL_MENU;
    return pp_controller_load(c, arg) ? PP_SLASH_DONE : PP_SLASH_ERROR;
}

static enum pp_slash all_adapters_off(struct pp_controller *c)
{
    for (size_t i = 0; i < c->adapters.n; i++)
        if (c->adapters.items[i].on)
            pp_controller_set_adapter(c, i, false, c->adapters.items[i].scale);
    ctl_notice(c, false, "all adapters are off");
    return PP_SLASH_DONE;
}

/* Says why a name is not found in a list. key: the key or command that shows the list. */
static enum pp_slash not_found(struct pp_controller *c, const struct pp_near *near, int n_begin, const char *what,
                               const char *key)
{
    if (n_begin > 1)
        ctl_notice(c, true, "%d %ss begin with \"%s\"; type more of the name (%s lists them)", n_begin, what,
                   near->wanted, key);
    else if (near->best[0])
        ctl_notice(c, true, "there is no %s \"%s\"; did you mean \"%s\"?", what, near->wanted, near->best);
    else
        ctl_notice(c, true, "there is no %s \"%s\"; %s lists them", what, near->wanted, key);
    return PP_SLASH_ERROR;
}

static bool begins_with(const char *name, const char *word)
{
    return pp_ncasecmp(name, word, strlen(word)) == 0;
}

static enum pp_slash not_listed(struct pp_controller *c, const struct named_list *l, const char *what, const char *arg,
                                const char *key)
{
    struct pp_near near = {.wanted = arg};
    int n_begin = 0;
    for (size_t i = 0; i < l->n; i++) {
        pp_near_try(&near, l->items[i].name);
        n_begin += begins_with(l->items[i].name, arg);
    }
    return not_found(c, &near, n_begin, what, key);
}

static enum pp_slash lora_preset(struct pp_controller *c, char *name)
{
    int i = ctl_find_named(&c->presets, name);
    if (i < 0)
        return not_listed(c, &c->presets, "preset", name, "/lora");
    return pp_controller_use_preset(c, (size_t)i) ? PP_SLASH_DONE : PP_SLASH_ERROR;
}

static enum pp_slash lora_drop(struct pp_controller *c, char *name)
{
    int i = ctl_find_named(&c->presets, name);
    if (i < 0 || pp_casecmp(c->presets.items[i].name, name) != 0) /* deleting requires the full name */
        return not_listed(c, &c->presets, "preset", name, "/lora");
    pp_controller_drop_preset(c, name);
    ctl_notice(c, false, "preset %s deleted", name);
    return PP_SLASH_DONE;
}

static enum pp_slash lora_save(struct pp_controller *c, char *name)
{
    return pp_controller_save_preset(c, name) ? PP_SLASH_DONE : PP_SLASH_ERROR;
}

static enum pp_slash lora_add(struct pp_controller *c, char *path)
{
    return pp_controller_add_adapter(c, path) ? PP_SLASH_DONE : PP_SLASH_ERROR;
}

/* A subcommand of /lora, such as "preset NAME". An adapter with the same name can still be switched in the menu. */
static slash_fn *lora_word(char *arg, char **rest)
{
    static const struct {
        const char *word;
        slash_fn *run;
    } words[] = {{"preset", lora_preset}, {"save", lora_save}, {"drop", lora_drop}, {"add", lora_add}};
    size_t n = strcspn(arg, " \t");
    *rest = arg + n + strspn(arg + n, " \t");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].word) == n && pp_ncasecmp(words[i].word, arg, n) == 0)
            return words[i].run;
    return NULL;
}

/* Says what could be meant by an unknown name. */
static enum pp_slash no_such_adapter(struct pp_controller *c, const char *arg)
{
    struct pp_near near = {.wanted = arg};
    int n_begin = 0;
    for (size_t k = 0; k < c->adapters.n; k++) {
        pp_near_try(&near, c->adapters.items[k].name);
        n_begin += begins_with(c->adapters.items[k].name, arg);
    }
    /* adapters in the model's folder are found when the model is loaded */
    if (!n_begin && (c->state == PP_STATE_LOADING || c->n_scans)) {
        ctl_notice(c, true, "adapter \"%.100s\" not found yet: still scanning for adapters; press Enter to try again",
                   arg);
        return PP_SLASH_ERROR_EDIT;
    }
    if (!strchr(arg, '/') && !pp_case_ends_with(arg, ".gguf"))
        return not_found(c, &near, n_begin, "adapter", "/lora");
    ctl_notice(c, true, "there is no adapter \"%s\" in the list; `/lora add %s` adds a file", arg, arg);
    return PP_SLASH_ERROR;
}

static enum pp_slash do_lora(struct pp_controller *c, char *arg)
{
    char *rest;
    slash_fn *word = lora_word(arg, &rest);
    if (!*arg)
        return PP_SLASH_LORA_MENU;
    if (word && *rest)
        return word(c, rest);
    if (word) {
        ctl_notice(c, true, "/lora %s %s", arg, word == lora_add ? "FILE" : "NAME");
        return PP_SLASH_ERROR;
    }
    if (is_off(arg))
        return all_adapters_off(c);
    bool on = true;
    float scale = 0;
    bool given = false;
    int i = ctl_find_adapter(c, arg);
    char *last = i < 0 ? split_last(arg) : NULL;
    if (last) {
        i = ctl_find_adapter(c, arg);
        if (is_off(last) || is_on(last)) {
            on = is_on(last);
        } else if (!(given = pp_adapter_strength_read(last, &scale))) {
            ctl_notice(c, true, "\"%s\" is not a scale; give a number from -%d to %d, or \"off\"%s", last,
                       PP_ADAPTER_MAX_STRENGTH,
                       PP_ADAPTER_MAX_STRENGTH, pp_options_point(last));
            return PP_SLASH_ERROR;
        }
    }
    if (i < 0)
        return no_such_adapter(c, arg);
    const struct pp_adapter_entry *a = &c->adapters.items[i];
    if (!pp_controller_set_adapter(c, (size_t)i, on, given ? scale : a->scale))
        return PP_SLASH_ERROR;
    if (a->on && a->scale == 0.0f)
        ctl_notice(c, false, "%s is on, but at scale 0 it has no effect", a->name);
    else if (a->on)
        ctl_notice(c, false, "%s is on, scale %.2f", a->name, (double)a->scale);
    else if (!on)
        ctl_notice(c, false, "%s is off", a->name);
    return PP_SLASH_DONE;
}

static enum pp_slash do_draft(struct pp_controller *c, char *arg)
{
    if (!*arg)
        return PP_SLASH_DRAFT_MENU;
    if (pp_casecmp(arg, "tint") == 0)
        return PP_SLASH_TINT;
    if (pp_ncasecmp(arg, "file", 4) == 0 && (!arg[4] || arg[4] == ' '))
        return pp_controller_use_drafter(c, arg + 4 + strspn(arg + 4, " ")) ? PP_SLASH_DONE : PP_SLASH_ERROR;
    int who = is_on(arg) ? PP_DRAFTER_AUTO : is_off(arg) ? PP_DRAFTER_OFF : pp_drafter_by_name(arg);
    if (who < 0) {
        ctl_notice(c, true, "/draft auto, model, lookup, off, tint or file NAME");
        return PP_SLASH_ERROR;
    }
    return pp_controller_set_drafter(c, (enum pp_drafter)who) ? PP_SLASH_DONE : PP_SLASH_ERROR;
}

static const struct slash *find(const char *word, size_t n);

static enum pp_slash do_set(struct pp_controller *c, char *arg)
{
    if (!*arg)
        return PP_SLASH_PARAMS_MENU;
    if (pp_ncasecmp(arg, "parameter ", 10) == 0) /* as in Ollama */
        arg += 10 + strspn(arg + 10, " \t");
    char *value = arg + strcspn(arg, " \t=");
    if (*value)
        *value++ = 0;
    value += strspn(value, " \t=");
    if (!*arg) {
        ctl_notice(c, true, "/set NAME VALUE");
        return PP_SLASH_ERROR;
    }
    const struct slash *command = find(arg, strlen(arg));
    if (command && !ctl_param_find(arg)) {
        ctl_notice(c, true, "\"%s\" is not a parameter but a command: /%s %s", arg, command->name,
                   command->args);
        return PP_SLASH_ERROR;
    }
    const bool good = *value ? pp_controller_set_param(c, arg, value) : ctl_notify_param(c, arg);
    return good ? PP_SLASH_DONE : PP_SLASH_ERROR;
}

static enum pp_slash do_system(struct pp_controller *c, char *arg)
{
    if (!*arg) {
        ctl_show_text(c, *c->session.system ? "system prompt: %s" : "there is no system prompt%s", c->session.system);
        return PP_SLASH_DONE;
    }
    bool off = is_off(arg);
    if (!pp_controller_set_system(c, off ? "" : arg))
        return PP_SLASH_ERROR;
    ctl_notice(c, false, off ? "system prompt removed" : "the system prompt applies from the next answer on");
    return PP_SLASH_DONE;
}

static enum pp_slash do_template(struct pp_controller *c, char *arg)
{
    if (!*arg)
        return PP_SLASH_TEMPLATE_MENU;
    int i = ctl_find_named(&c->templates, arg);
    if (i < 0)
        return not_listed(c, &c->templates, "template", arg, "/template");
    pp_controller_set_template(c, (size_t)i);
    return PP_SLASH_DONE;
}

static enum pp_slash do_persona(struct pp_controller *c, char *arg)
{
    static const char save[] = "save ";
    if (!*arg)
        return PP_SLASH_PERSONA_MENU;
    if (pp_ncasecmp(arg, save, strlen(save)) == 0) {
        arg += strlen(save);
        return pp_controller_save_persona(c, arg + strspn(arg, " \t")) ? PP_SLASH_DONE : PP_SLASH_ERROR;
    }
    int i = ctl_find_named(&c->persona_names, arg);
    if (i < 0 && pp_casecmp(arg, "save") == 0) {
        ctl_notice(c, true, "/persona save NAME");
        return PP_SLASH_ERROR;
    }
    if (i < 0)
        return not_listed(c, &c->persona_names, "persona", arg, "/persona");
    pp_controller_set_persona(c, (size_t)i);
    return PP_SLASH_DONE;
}

/* Parses a number from `least` to `most`; `otherwise` if arg is empty, -1 if it is invalid. */
static int count_in(const char *arg, int least, int most, int otherwise)
{
    char *end;
    if (!*arg)
        return otherwise;
    const long n = strtol(arg, &end, 10);
    return !*end && n >= least && n <= most ? (int)n : -1;
}

static enum pp_slash do_regen(struct pp_controller *c, char *arg)
{
    const int n = count_in(arg, 1, PP_MAX_ALTERNATIVES, 1);
    if (n < 0) {
        ctl_notice(c, true, "/regen needs a number from 1 to %d, not \"%s\"", PP_MAX_ALTERNATIVES, arg);
        return PP_SLASH_ERROR;
    }
    pp_controller_regenerate(c, n);
    return PP_SLASH_DONE;
}

static enum pp_slash do_compare(struct pp_controller *c, char *arg)
{
    return pp_controller_compare(c, arg) ? PP_SLASH_DONE : PP_SLASH_ERROR;
}

static enum pp_slash do_continue(struct pp_controller *c, char *arg)
{
    (void)arg;
    pp_controller_continue(c);
    return PP_SLASH_DONE;
}

static enum pp_slash do_undo(struct pp_controller *c, char *arg)
{
    const int n = count_in(arg, 1, INT_MAX, 1);
    if (n < 0) {
        ctl_notice(c, true, "/undo needs the number of questions to take back, not \"%s\"", arg);
        return PP_SLASH_ERROR;
    }
    if (!pp_controller_undo(c, n))
        return PP_SLASH_ERROR;
    if (n == 1)
        ctl_notice(c, false, "took back the last question (kept as a branch); /redo brings it back");
    else
        ctl_notice(c, false, "took back the last %d questions (kept as a branch); /redo brings them back", n);
    return PP_SLASH_DONE;
}

static enum pp_slash do_redo(struct pp_controller *c, char *arg)
{
    (void)arg;
    pp_controller_redo(c);
    return PP_SLASH_DONE;
}

static enum pp_slash do_branch(struct pp_controller *c, char *arg)
{
    return pp_controller_branch(c, count_in(arg, 1, INT_MAX, 0)) ? PP_SLASH_BRANCH : PP_SLASH_ERROR;
}

static enum pp_slash do_fork(struct pp_controller *c, char *arg)
{
    const int n = count_in(arg, 0, INT_MAX, 0);
    if (n < 0) {
        ctl_notice(c, true, "/fork needs the number of questions to leave out, not \"%s\"", arg);
        return PP_SLASH_ERROR;
    }
    pp_controller_fork(c, n);
    return PP_SLASH_DONE;
}

static enum pp_slash do_rename(struct pp_controller *c, char *arg)
{
    if (!*arg) {
        ctl_notice(c, true, "/rename TITLE");
        return PP_SLASH_ERROR;
    }
    pp_controller_rename(c, 0, arg);
    return PP_SLASH_DONE;
}

static enum pp_slash do_export(struct pp_controller *c, char *arg)
{
    pp_controller_export(c, 0, arg);
    return PP_SLASH_DONE;
}

static enum pp_slash do_import(struct pp_controller *c, char *arg)
{
    if (!*arg) {
        ctl_notice(c, true, "/import FILE: conversations from /export or from other programs, as JSON or JSONL");
        return PP_SLASH_ERROR;
    }
    pp_controller_import(c, arg);
    return PP_SLASH_DONE;
}

static enum pp_slash do_overflow(struct pp_controller *c, char *arg)
{
    if (*arg)
        return pp_controller_set_overflow(c, arg) ? PP_SLASH_DONE : PP_SLASH_ERROR;
    if (pp_controller_overflow_asked(c))
        return PP_SLASH_OVERFLOW_MENU;
    ctl_notice(c, false, "when the context is full: %s; change it with /overflow ask, stop, shift, summarise or slide",
               pp_overflow_name(c->overflow));
    return PP_SLASH_DONE;
}

static enum pp_slash do_compact(struct pp_controller *c, char *arg)
{
    (void)arg;
    return pp_controller_compact(c) ? PP_SLASH_DONE : PP_SLASH_ERROR;
}

static enum pp_slash do_think(struct pp_controller *c, char *arg)
{
    if (*arg)
        return pp_controller_set_thinking(c, arg) ? PP_SLASH_DONE : PP_SLASH_ERROR;
    ctl_notify_thinking(c);
    return PP_SLASH_DONE;
}

static enum pp_slash do_stats(struct pp_controller *c, char *arg)
{
    const struct pp_status *s = &c->status;
    char speed[48] = "no speed measured yet", draft[96] = "", faster[48] = "", prompt[192] = "", kv[128] = "";
    (void)arg;
    if (s->speedup > 0)
        snprintf(faster, sizeof faster, ", %.2f times as fast", (double)s->speedup);
    if (s->acceptance >= 0)
        snprintf(draft, sizeof draft, ", %.0f %% of drafts accepted%s", (double)s->acceptance * 100, faster);
    if (s->tokens_per_s > 0)
        snprintf(speed, sizeof speed, "%s tokens/s", pp_rate((double)s->tokens_per_s).text);
    if (c->prompt_tokens)
        snprintf(prompt, sizeof prompt,
                 "; prompt %s tokens, %s of them cached, %s bytes of cache copied",
                 pp_count((int64_t)c->prompt_tokens).text, pp_count((int64_t)c->cached_tokens).text,
                 pp_count((int64_t)c->kv_copied_bytes).text);
    if (c->kv_total)
        snprintf(kv, sizeof kv, "; KV cache: %.1f MB in use, %.1f MB kept for reuse, of %s MB",
                 (double)c->kv_used / 1e6,
                 (double)c->kv_cached / 1e6, pp_count((int64_t)(c->kv_total / 1000000)).text);
    ctl_notice(c, false, "%s%s%s%s; context %s of %s tokens; %s, %d threads", speed, draft, prompt, kv,
               pp_count(s->ctx_used).text, pp_count(s->ctx_total).text, s->model.kernels, s->model.n_threads);
    return PP_SLASH_DONE;
}

static enum pp_slash do_forget(struct pp_controller *c, char *arg)
{
    (void)arg;
    if (!ctl_may_change(c))
        return PP_SLASH_ERROR;
    if (!c->session.id) {
        ctl_notice(c, true, "there is no conversation to forget yet");
        return PP_SLASH_ERROR;
    }
    c->backend->ops->forget(c->backend, c->session.key);
    ctl_notice(c, false, "the KV cache of this conversation is deleted; its messages stay");
    return PP_SLASH_DONE;
}

static enum pp_slash do_temporary(struct pp_controller *c, char *arg)
{
    if (*arg && !is_off(arg) && !is_on(arg)) {
        ctl_notice(c, true, "/temporary, or /temporary off");
        return PP_SLASH_ERROR;
    }
    return pp_controller_set_temporary(c, !is_off(arg)) ? PP_SLASH_DONE : PP_SLASH_ERROR;
}

static enum pp_slash do_delete(struct pp_controller *c, char *arg)
{
    if (pp_casecmp(arg, "yes") != 0) {
        ctl_notice(c, true, "this deletes the conversation permanently; to confirm, type /delete yes");
        return PP_SLASH_ERROR;
    }
    pp_controller_delete(c, 0);
    return PP_SLASH_DONE;
}

static enum pp_slash do_help(struct pp_controller *c, char *arg);

/* --- the table -------------------------------------------------------------------------------------------- */

static const struct slash table[] = {
    {"help", "? h", "[COMMAND]", "list the commands, or explain one", do_help, 0},
    {"quit", "exit bye q", "", "leave pippin; the conversation is saved", NULL, PP_SLASH_QUIT},
    {"new", "clear", "", "start a new conversation", do_new, 0},
    {"temporary", "private incognito", "[off]", "a chat that is not saved to disk", do_temporary, 0},
    {"sessions", "open history", "", "list conversations", NULL, PP_SLASH_SESSIONS},
    {"rename", "title", "TITLE", "rename this conversation", do_rename, 0},
    {"fork", "copy-session", "[N]", "continue in a copy, without the last N questions", do_fork, 0},
    {"export", "save", "[FILE]", "write this conversation to a file: .md, .json or .jsonl", do_export, 0},
    {"read", "file", "FILE", "insert a text file into the input line", NULL, PP_SLASH_READ},
    {"import", "", "FILE", "import conversations from a JSON or JSONL file", do_import, 0},
    {"delete", "", "yes", "delete this conversation", do_delete, 0},
    {"regen", "retry regenerate", "[N]", "answer the last question again, or N times in parallel", do_regen, 0},
    {"compare", "", "SET SET [SET]", "answer the last question with different adapters", do_compare, 0},
    {"branch", "", "[N]", "continue from the Nth of several answers", do_branch, 0},
    {"continue", "cont", "", "continue an answer that was stopped", do_continue, 0},
    {"edit", "", "[N | answer]", "edit your last message, or the Nth last, or the last answer", NULL,
     PP_SLASH_EDIT},
    {"undo", "back", "[N]", "take back the last question and its answer, or the last N", do_undo, 0},
    {"redo", "", "", "undo /undo", do_redo, 0},
    {"find", "search", "[WORDS]", "find the newest message with these words; again: the one before", NULL,
     PP_SLASH_FIND},
    {"copy", "", "[N | code [N]]", "copy the last answer, or the Nth last, or the last block of code, or the Nth", NULL,
     PP_SLASH_COPY},
    {"model", "models load", "[NAME]", "load another model, or list them", do_model, 0},
    {"lora", "adapter adapters", "[NAME [SCALE | off] | off | save NAME | preset NAME | drop NAME | add FILE]",
     "switch adapters on and off", do_lora, 0},
    {"draft", "", "[auto | model | lookup | off | tint | file NAME]", "speculative decoding: how tokens are drafted",
     do_draft, 0},
    {"set", "params", "[NAME [VALUE]]", "show or set temperature and other parameters", do_set, 0},
    {"system", "", "[TEXT | none]", "show or set the system prompt", do_system, 0},
    {"persona", "", "[NAME | none | save NAME]", "choose a persona (a system prompt by name), or save one",
     do_persona, 0},
    {"template", "", "[NAME]", "choose the chat template", do_template, 0},
    {"theme", "", "[NAME]", "colours", NULL, PP_SLASH_THEME},
    {"overflow", "context", "[ask | stop | shift | summarise | slide]", "what to do when the context is full",
     do_overflow, 0},
    {"compact", "summarise summarize", "", "summarise all but the last turn, to free context", do_compact, 0},
    {"think", "thinking", "[auto | off | on | low | medium | high]", "whether the model thinks first", do_think, 0},
    {"reasoning", "", "[show | fold | hide]", "how thinking is shown", NULL, PP_SLASH_REASONING},
    {"stats", "", "", "show speed and context use", do_stats, 0},
    {"forget", "", "", "delete the saved KV cache, keep the messages", do_forget, 0},
};

enum { N_COMMANDS = sizeof table / sizeof *table };

bool pp_slash_info(size_t i, const char **name, const char **args, const char **text)
{
    if (i >= N_COMMANDS)
        return false;
    *name = table[i].name;
    *args = table[i].args;
    *text = table[i].help;
    return true;
}

static bool is_word_of(const char *words, const char *word, size_t n)
{
    for (const char *p = words; *p;) {
        size_t len = strcspn(p, " ");
        if (len == n && pp_ncasecmp(p, word, n) == 0)
            return true;
        p += len + strspn(p + len, " ");
    }
    return false;
}

static const struct slash *find(const char *word, size_t n)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (is_word_of(table[i].name, word, n) || is_word_of(table[i].aliases, word, n))
            return &table[i];
    return NULL;
}

/* What does the work of other programs' commands that have no equal here; NULL: nothing is known about this one. */
static const char *instead_of(const char *word)
{
    static const char *const others[][2] = {
        {"show info", "/set shows the parameters, /system the system prompt, /template the chat template, /model the "
                      "models, /stats the speed"},
        {"list ls", "/sessions lists conversations, /model models"},
        {"pull download", "`pippin models pull URL` in the shell downloads a model"},
        {"prompt role", "/system sets the system prompt, /persona chooses one by name"},
        {"image images audio video", "a model in pippin reads only text; /read FILE inserts a text file"},
        {"tools tool mcp", "a model in pippin can only talk"},
        {"multi", "Alt-Enter or Ctrl-J starts a new line; with --plain, \"\"\" begins and ends a message of several "
                  "lines"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (is_word_of(others[i][0], word, strlen(word)))
            return others[i][1];
    return NULL;
}

static enum pp_slash unknown(struct pp_controller *c, const char *word, size_t n)
{
    char copy[64];
    snprintf(copy, sizeof copy, "%.*s", (int)(n < 63 ? n : 63), word);
    struct pp_near near = {.wanted = copy};
    const char *instead = instead_of(copy);
    if (instead || ctl_param_find(copy)) {
        ctl_notice(c, true, "there is no /%s: %s%s%s. To send it as a message, start it with //", copy,
                   instead ? instead : "/set ", instead ? "" : copy, instead ? "" : " VALUE sets it");
        return PP_SLASH_ERROR;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        pp_near_try(&near, table[i].name);
    if (near.best[0])
        ctl_notice(c, true, "there is no /%s; did you mean /%s? To send it as a message, start it with //", copy,
                   near.best);
    else
        ctl_notice(c, true, "there is no /%s; /help lists the commands; to send it as a message, start it with //",
                   copy);
    return PP_SLASH_ERROR;
}

static enum pp_slash do_help(struct pp_controller *c, char *arg)
{
    if (!*arg)
        return PP_SLASH_HELP;
    const char *word = arg + (*arg == '/');
    const struct slash *s = find(word, strlen(word));
    if (!s)
        return unknown(c, word, strlen(word));
    ctl_notice(c, false, "/%s%s%s: %s", s->name, *s->args ? " " : "", s->args, s->help);
    return PP_SLASH_DONE;
}

static size_t word_len(const char *line)
{
    return strcspn(line + 1, " \t\r\n");
}

bool pp_slash_looks_like(const char *line)
{
    const size_t n = line[0] == '/' ? word_len(line) : 0;
    /* Not a path, "//" or a fraction; and several lines only if they begin with the name of a command. */
    return n && !memchr(line + 1, '/', n) && (!strchr(line, '\n') || find(line + 1, n));
}

const char *pp_slash_text(const char *line)
{
    const bool escaped = line[0] == '/' && line[1] == '/' && line[2] && !strchr(" \t\r", line[2]);
    /* with several slashes in front, one is removed from the message */
    const char *last = line + strspn(line, "/") - 1;
    return escaped && (!strchr(line, '\n') || pp_slash_looks_like(last)) ? line + 1 : line;
}

/* The line is a command for a single line, but there are more: pasted by mistake, or a message that happens to begin
 * like that. Asks the user instead of guessing. */
static enum pp_slash too_many_lines(struct pp_controller *c, const struct slash *s)
{
    ctl_notice(c, true, "/%s takes one line, but this is more: nothing was done. To send it as a message, start it "
                        "with //", s->name);
    return PP_SLASH_ERROR_EDIT;
}

enum pp_slash pp_controller_slash(struct pp_controller *c, const char *line, char *arg, size_t cap)
{
    if (cap)
        arg[0] = 0;
    const char *word = line + 1;
    size_t n = word_len(line);
    if (line[0] == '/' && !line[1 + strspn(word, " \t\r\n")]) /* a slash alone is not a message */
        return PP_SLASH_HELP;
    if (!pp_slash_looks_like(line))
        return PP_SLASH_TEXT;
    const struct slash *s = find(word, n);
    if (!s)
        return unknown(c, word, n);
    const char *rest = word + n + strspn(word + n, " \t\r\n");
    size_t len = strlen(rest);
    while (len && strchr(" \t\r\n", rest[len - 1]))
        len--;
    const bool takes_lines = s->run == do_system;
    if (!takes_lines && memchr(word, '\n', (size_t)(rest - word) + len))
        return too_many_lines(c, s);
    if (len && !*s->args) {
        ctl_notice(c, true, "/%s takes no argument", s->name);
        return PP_SLASH_ERROR;
    }
    if (!s->run) {
        if (cap)
            snprintf(arg, cap, "%.*s", (int)(len < 4096 ? len : 4096), rest);
        return s->screen;
    }
    struct pp_buf copy = {0};
    pp_buf_add(&copy, rest, len);
    enum pp_slash result = PP_SLASH_ERROR;
    if (copy.data)
        result = s->run(c, copy.data);
    else
        ctl_notice(c, true, "out of memory");
    pp_buf_free(&copy);
    return result;
}
