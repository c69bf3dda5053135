/* options.c - parses and combines the command line, the environment and pippin.conf. */
#include "src/options.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "src/adapter_names.h"
#include "src/config.h"
#include "src/near.h"
#include "src/options_internal.h"
#include "src/personas.h"

bool pp_next_word(const char **list, const char **word, size_t *n)
{
    *list += strspn(*list, " ");
    *word = *list;
    *n = strcspn(*list, " ");
    *list += *n;
    return *n > 0;
}

bool pp_word_in(const char *list, const char *word, size_t n)
{
    const char *have;
    size_t len;
    while (list && pp_next_word(&list, &have, &len))
        if (len == n && memcmp(have, word, n) == 0)
            return true;
    return false;
}

/* --- finding options --------------------------------------------------------------------------------------------- */

/* An argument split at '=': "--top-k=40" is name "--top-k" with value "40". */
struct word {
    const char *name;
    size_t len;
    const char *value; /* after '=', or NULL */
};

static struct word parse_word(const char *arg)
{
    const char *equals = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;
    return (struct word){arg, equals ? (size_t)(equals - arg) : strlen(arg), equals ? equals + 1 : NULL};
}

static bool is_option(const char *arg)
{
    return arg[0] == '-' && arg[1] != 0;
}

static bool spelled(const struct pp_option *opt, const char *name, size_t len)
{
    size_t own = strlen(opt->name);
    if (len == own + 2 && name[0] == '-' && name[1] == '-' && memcmp(name + 2, opt->name, own) == 0)
        return true;
    return pp_word_in(opt->others, name, len);
}

/* Several options may have the same spelling (-p differs for bench): those of `commands` take precedence. NULL:
 * unknown. */
static const struct pp_option *look_up(const char *name, size_t len, unsigned commands)
{
    const struct pp_option *other = NULL;
    for (size_t i = 0; i < pp_n_option_specs; i++) {
        const struct pp_option *opt = &pp_option_specs[i];
        if (!spelled(opt, name, len))
            continue;
        if (opt->commands & commands)
            return opt;
        other = opt;
    }
    return other;
}

/* --- errors ------------------------------------------------------------------------------------------------------ */

static enum pp_code unknown_option(const struct word *w, unsigned commands, struct pp_error *err)
{
    for (size_t i = 0; i < pp_n_foreign_options; i++)
        if (pp_word_in(pp_foreign_options[i].names, w->name, w->len))
            return pp_fail(err, PP_ERR_USAGE, "%.*s %s", (int)w->len, w->name, pp_foreign_options[i].why);
    char typed[64] = "";
    size_t dashes = strspn(w->name, "-");
    if (w->len - dashes < sizeof typed)
        memcpy(typed, w->name + dashes, w->len - dashes);
    struct pp_near near = {.wanted = typed};
    for (size_t i = 0; i < pp_n_option_specs; i++)
        if (pp_option_specs[i].commands & commands)
            pp_near_try(&near, pp_option_specs[i].name);
    if (near.best[0])
        return pp_fail(err, PP_ERR_USAGE, "unknown option %.*s; did you mean --%s?", (int)w->len, w->name, near.best);
    return pp_fail(err, PP_ERR_USAGE, "unknown option %.*s; --help lists the options", (int)w->len, w->name);
}

static enum pp_code wrong_command(const struct word *w, enum pp_cmd cmd, struct pp_error *err)
{
    char where[256] = "";
    unsigned commands = 0;
    for (size_t i = 0; i < pp_n_option_specs; i++)
        if (spelled(&pp_option_specs[i], w->name, w->len))
            commands |= pp_option_specs[i].commands;
    for (int i = 0; i < PP_CMD_COUNT; i++)
        if (commands & 1u << i)
            snprintf(where + strlen(where), sizeof where - strlen(where), "%s%s", where[0] ? ", " : "",
                     pp_command_specs[i].name);
    return pp_fail(err, PP_ERR_USAGE, "%.*s is not an option of `pippin %s`; it belongs to: %s", (int)w->len, w->name,
                   pp_command_specs[cmd].name, where);
}

static enum pp_code unknown_command(const char *name, struct pp_error *err)
{
    for (size_t i = 0; i < pp_n_foreign_commands; i++)
        if (pp_word_in(pp_foreign_commands[i].names, name, strlen(name)))
            return pp_fail(err, PP_ERR_USAGE, "there is no `pippin %s`; %s", name, pp_foreign_commands[i].instead);
    if (strcmp(name, "version") == 0) /* not the nearest name, "sessions" */
        return pp_fail(err, PP_ERR_USAGE, "unknown command \"version\"; did you mean --version?");
    if (strchr(name, '/') || pp_ends_with(name, ".gguf"))
        return pp_fail(err, PP_ERR_USAGE, "\"%s\" is not a command; to chat with a model, use pippin -m %s", name,
                       name);
    struct pp_near near = {.wanted = name};
    for (int i = 0; i < PP_CMD_COUNT; i++)
        pp_near_try(&near, pp_command_specs[i].name);
    if (near.best[0])
        return pp_fail(err, PP_ERR_USAGE, "unknown command \"%s\"; did you mean \"%s\"?", name, near.best);
    return pp_fail(err, PP_ERR_USAGE,
                   "unknown command \"%s\"; `pippin --help` lists the commands (a prompt goes after -p)", name);
}

static enum pp_code unknown_subcommand(const struct pp_command_spec *spec, const char *name, struct pp_error *err)
{
    struct pp_near near = {.wanted = name};
    for (size_t i = 0; i < pp_n_foreign_subcommands; i++) {
        const char *ours = pp_foreign_subcommands[i].instead;
        if (pp_word_in(pp_foreign_subcommands[i].names, name, strlen(name)) &&
            pp_word_in(spec->subcommands, ours, strlen(ours)))
            return pp_fail(err, PP_ERR_USAGE, "there is no `pippin %s %s`; use `pippin %s %s`", spec->name, name,
                           spec->name, ours);
    }
    for (const char *p = spec->subcommands; *p;) {
        char word[32];
        const size_t n = strcspn(p, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        pp_near_try(&near, word);
        p += n + strspn(p + n, " ");
    }
    if (near.best[0])
        return pp_fail(err, PP_ERR_USAGE, "there is no `pippin %s %s`; did you mean %s? Choose from: %s", spec->name,
                       name, near.best, spec->subcommands);
    return pp_fail(err, PP_ERR_USAGE, "there is no `pippin %s %s`; choose from: %s", spec->name, name,
                   spec->subcommands);
}

/* --- the command ------------------------------------------------------------------------------------------------- */

/* The result of a first pass over the command line. */
struct look {
    int command_at;   /* index in argv, 0: none */
    int unknown_at;   /* index of an unknown option before it, whose value the command may be; 0: none */
    bool only_talk;   /* --help and the like: the command will not run */
    bool has_prompt;  /* -p or -f */
    unsigned commands; /* the commands that have every known option so far */
};

static struct look scan_arguments(int argc, char **argv)
{
    static const char talk[] = "--help -h --version -V --completion";
    struct look l = {.commands = PP_BIT(CHAT) | PP_BIT(RUN)};
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (!is_option(argv[i])) {
            if (!l.command_at)
                l.command_at = i;
            continue;
        }
        struct word w = parse_word(argv[i]);
        const struct pp_option *opt = look_up(w.name, w.len, PP_BIT(CHAT) | PP_BIT(RUN));
        l.only_talk = l.only_talk || pp_word_in(talk, w.name, w.len);
        if (!opt) {
            l.unknown_at = l.unknown_at || l.command_at ? l.unknown_at : i;
            continue;
        }
        l.has_prompt = l.has_prompt || pp_word_in("prompt file", opt->name, strlen(opt->name));
        if (opt->commands & l.commands)
            l.commands &= opt->commands;
        if (opt->arg && !w.value)
            i++;
    }
    return l;
}

/* The command if none is given: `run` with a prompt; `run` or `chat` if only that has one of the options; otherwise
 * `run` if stdin is not a terminal, and the chat. */
static enum pp_cmd default_command(const struct look *l)
{
    if (l->commands == PP_BIT(RUN) || l->has_prompt)
        return PP_CMD_RUN;
    if (l->commands == PP_BIT(CHAT) || l->only_talk)
        return PP_CMD_CHAT;
    return isatty(STDIN_FILENO) ? PP_CMD_CHAT : PP_CMD_RUN;
}

/* --- the sources, in ascending precedence ------------------------------------------------------------------------ */

static void set_defaults(struct pp_options *o)
{
    *o = (struct pp_options){
        .command = "chat",
        .model = "",
        .draft_max = PP_DRAFT_MAX_DEFAULT,
        .n_predict = -1,
        .n_prompt = 512,
        .n_gen = 32,
        .repetitions = 5,
        .limit = -1,
        .bell = -1,
        .bench = {.type = "q4_k_m", .threshold = 5, .adapters = 16, .requests = 64, .zipf = 1},
        .sampling = pp_sampling_default(),
        .train = pp_train_options_default(),
        .imatrix = {.output_frequency = 10},
        .lora_train = {.targets = "all", .val_share = 0.1f, .max_length = 512},
    };
}

/* Checks a persona's name, which inih truncates silently if it is too long. */
static enum pp_code from_persona(const struct pp_config_entry *e, const char *name, const char *shown,
                                 struct pp_error *err)
{
    enum { LIMIT = 40 }; /* bytes */
    if (strcmp(e->key, "system") != 0)
        return pp_fail(err, PP_ERR_USAGE, "%s is unknown; a [persona NAME] section contains only `system = ...`",
                       shown);
    if (!*name || strlen(name) > LIMIT)
        return pp_fail(err, PP_ERR_USAGE, "%s: the name of a persona must have 1 to %d bytes", shown, (int)LIMIT);
    if (!pp_utf8_valid(name, strlen(name))) /* it goes into the settings of conversations, which are JSON */
        return pp_fail(err, PP_ERR_USAGE, "%s: the name of the persona is not valid UTF-8; convert the file with "
                                          "iconv", shown);
    if (pp_casecmp(name, "none") == 0)
        return pp_fail(err, PP_ERR_USAGE, "%s: \"none\" means no persona; choose another name", shown);
    return pp_check_words(e->value, shown, err);
}

static bool is_other_name(const struct pp_option *opt, const char *key)
{
    char word[64];
    const int n = snprintf(word, sizeof word, "--%s", key);
    return n > 0 && (size_t)n < sizeof word && spelled(opt, word, (size_t)n);
}

static enum pp_code from_config(struct pp_parse *ps, const struct pp_config_entry *e, unsigned command,
                                struct pp_error *err)
{
    char shown[PATH_MAX + 160]; /* so that pp_fail, which cuts the middle out of long texts, keeps line number and
                                 * name */
    snprintf(shown, sizeof shown, "%s:%d: %s", pp_config_path(ps->o->config), e->line, e->key);
    if (!*e->key)
        return pp_fail(err, PP_ERR_USAGE, "%sthe name before the value is missing; write `name = value`", shown);
    bool known_section = pp_word_in("model sampling ui", e->section, strlen(e->section));
    struct pp_near near = {.wanted = e->key};
    for (size_t i = 0; known_section && i < pp_n_option_specs; i++) {
        const struct pp_option *opt = &pp_option_specs[i];
        if (!opt->section || strcmp(opt->section, e->section) != 0)
            continue;
        if (strcmp(opt->name, e->key) == 0)
            return opt->commands & command ? opt->set(ps, opt, e->value, shown, err) : PP_OK;
        pp_near_try(&near, opt->name);
    }
    if (strncmp(e->section, "persona ", 8) == 0)
        return from_persona(e, e->section + 8, shown, err);
    if (!known_section)
        return pp_fail(err, PP_ERR_USAGE,
                       "%s is not in a known section; the sections are [model], [sampling], [ui] and [persona NAME]",
                       shown);
    for (size_t i = 0; i < pp_n_option_specs; i++)
        if (pp_option_specs[i].section && strcmp(pp_option_specs[i].name, e->key) == 0)
            return pp_fail(err, PP_ERR_USAGE, "%s is unknown in [%s]; it belongs in [%s]", shown, e->section,
                           pp_option_specs[i].section);
    for (size_t i = 0; i < pp_n_option_specs && !near.best[0]; i++) /* only long names are valid in pippin.conf */
        if (pp_option_specs[i].section && is_other_name(&pp_option_specs[i], e->key))
            snprintf(near.best, sizeof near.best, "%s", pp_option_specs[i].name);
    if (near.best[0])
        return pp_fail(err, PP_ERR_USAGE, "%s is unknown in [%s]; did you mean %s?", shown, e->section, near.best);
    return pp_fail(err, PP_ERR_USAGE, "%s is unknown in [%s]; see pippin.conf(5)", shown, e->section);
}

static enum pp_code read_config(struct pp_parse *ps, const struct pp_paths *paths, unsigned command,
                                struct pp_error *err)
{
    char path[600];
    struct pp_config *config;
    snprintf(path, sizeof path, "%s/pippin.conf", paths->config);
    enum pp_code code = pp_config_load(path, &config, err);
    if (code)
        return code;
    if (!pp_keep_until_exit(config)) {
        pp_config_free(config);
        return pp_fail_nomem(err, path);
    }
    ps->o->config = config;
    ps->source = PP_SOURCE_CONFIG;
    for (size_t i = 0; !code && i < pp_config_count(config); i++)
        code = from_config(ps, pp_config_at(config, i), command, err);
    return code;
}

static enum pp_code read_environment(struct pp_parse *ps, unsigned command, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    ps->source = PP_SOURCE_ENVIRONMENT;
    for (size_t i = 0; !code && i < pp_n_option_specs; i++) {
        const struct pp_option *opt = &pp_option_specs[i];
        const char *value = opt->env && opt->commands & command ? getenv(opt->env) : NULL;
        if (value && *value)
            code = opt->set(ps, opt, value, opt->env, err);
    }
    const char *no_color = getenv("NO_COLOR");
    if (no_color && *no_color)
        ps->o->no_color = true;
    return code;
}

/* Parses the option argv[*at], and moves *at past its value. */
static enum pp_code read_option(struct pp_parse *ps, int argc, char **argv, int *at, enum pp_cmd cmd,
                                struct pp_error *err)
{
    struct word w = parse_word(argv[*at]);
    const struct pp_option *opt = look_up(w.name, w.len, 1u << cmd);
    char shown[96];
    snprintf(shown, sizeof shown, "%.*s", (int)(w.len < 90 ? w.len : 90), w.name);
    ++*at;
    if (!opt)
        return unknown_option(&w, 1u << cmd, err);
    if (!(opt->commands & 1u << cmd))
        return wrong_command(&w, cmd, err);
    ps->o->given[opt - pp_option_specs] = true;
    if (!opt->arg) {
        if (w.value)
            return pp_fail(err, PP_ERR_USAGE, "%s takes no value", shown);
        return opt->set(ps, opt, NULL, shown, err);
    }
    if (!w.value && *at == argc)
        return pp_fail(err, PP_ERR_USAGE, "%s needs a value: %s %s", shown, shown, opt->arg);
    return opt->set(ps, opt, w.value ? w.value : argv[(*at)++], shown, err);
}

static enum pp_code read_word(struct pp_options *o, const struct pp_command_spec *spec, const char *word,
                              struct pp_error *err)
{
    if (spec->subcommands && !o->subcommand) {
        if (!pp_word_in(spec->subcommands, word, strlen(word)))
            return unknown_subcommand(spec, word, err);
        o->subcommand = word;
        return PP_OK;
    }
    if (!*word && spec->max_args) /* an unset variable of a script must not mean the default model */
        return pp_fail(err, PP_ERR_USAGE, "`pippin %s`: an argument is empty; is a variable in your script unset?",
                       spec->name);
    if (o->n_args < spec->max_args) {
        o->args[o->n_args++] = word;
        return PP_OK;
    }
    if (spec->max_args)
        return pp_fail(err, PP_ERR_USAGE, "unexpected argument \"%s\": too many for `pippin %s %s`", word, spec->name,
                       spec->args);
    return pp_fail(err, PP_ERR_USAGE, "`pippin %s` takes no argument \"%s\"%s", spec->name, word,
                   strcmp(spec->name, "run") == 0    ? "; a prompt goes after -p, in quotes, a model after -m"
                   : strcmp(spec->name, "chat") == 0 ? "; a model goes after -m"
                                                     : "");
}

static enum pp_code read_command_line(struct pp_parse *ps, int argc, char **argv, enum pp_cmd cmd, int command_at,
                                      struct pp_error *err)
{
    bool options_end = false;
    enum pp_code code = PP_OK;
    ps->source = PP_SOURCE_COMMAND_LINE;
    for (int i = 1; !code && i < argc;) {
        if (i == command_at) {
            i++;
        } else if (!options_end && strcmp(argv[i], "--") == 0) {
            options_end = true;
            i++;
        } else if (!options_end && is_option(argv[i])) {
            code = read_option(ps, argc, argv, &i, cmd, err);
        } else {
            code = read_word(ps->o, &pp_command_specs[cmd], argv[i++], err);
        }
    }
    return code;
}

/* Makes the system prompt of a persona's name. That of pippin.conf yields to a --system on the command line. */
static enum pp_code name_persona(struct pp_options *o, struct pp_error *err)
{
    struct pp_personas all = {0};
    const struct pp_persona *found = NULL;
    const bool given = pp_options_given(o, "persona");
    if (!o->persona || (!given && (!*o->persona || pp_options_given(o, "system")))) {
        o->persona = NULL;
        return PP_OK;
    }
    enum pp_code code = pp_personas_all(&all, o->config, err);
    if (!code && !(found = pp_personas_find(&all, o->persona, err)))
        code = given ? PP_ERR_USAGE : pp_fail_prefix(err, "persona in pippin.conf");
    if (found) {
        o->persona = found == all.items ? "" : pp_copy_until_exit(found->name, strlen(found->name));
        o->system = pp_copy_until_exit(found->system, strlen(found->system));
        if (!o->persona || !o->system)
            code = pp_fail_nomem(err, "the persona");
    }
    for (size_t i = 0; given && i < pp_n_option_specs; i++)
        o->given[i] = o->given[i] || strcmp(pp_option_specs[i].name, "system") == 0;
    pp_personas_free(&all);
    return code;
}

/* Resolves names of adapters to paths; a name that is not found stays, and opening it fails with an error. */
static void name_adapters(const struct pp_paths *paths, const char *model, struct pp_lora_option *list, int n)
{
    char path[PATH_MAX];
    for (int i = 0; i < n; i++) {
        bool found = pp_resolve_adapter(paths, model, list[i].path, path, sizeof path);
        const char *kept = found && strcmp(path, list[i].path) != 0 ? pp_copy_until_exit(path, strlen(path)) : NULL;
        if (kept)
            list[i].path = kept;
    }
}

static bool same_place(const char *a, const char *b)
{
    char real_a[PATH_MAX], real_b[PATH_MAX];
    return strcmp(a, b) == 0 || (realpath(a, real_a) && realpath(b, real_b) && strcmp(real_a, real_b) == 0);
}

/* An adapter that is named twice is used once, with the later strength, as in the chat. */
static void name_once(struct pp_lora_option *list, int *n)
{
    int kept = 0;
    for (int i = 0; i < *n; i++) {
        int k = 0;
        while (k < kept && !same_place(list[k].path, list[i].path))
            k++;
        if (k == kept)
            list[kept++] = list[i];
        else
            list[k].scale = list[i].scale;
    }
    *n = kept;
}

enum pp_code pp_options_parse(int argc, char **argv, const struct pp_paths *paths, struct pp_options *o,
                              struct pp_error *err)
{
    struct pp_parse ps = {.o = o};
    struct look l = scan_arguments(argc, argv);
    set_defaults(o);
    enum pp_cmd cmd = l.command_at ? pp_command_spec_find(argv[l.command_at]) : default_command(&l);
    if (cmd == PP_CMD_COUNT && l.unknown_at) {
        const struct word w = parse_word(argv[l.unknown_at]);
        return unknown_option(&w, PP_BIT(CHAT) | PP_BIT(RUN), err);
    }
    if (cmd == PP_CMD_COUNT)
        return unknown_command(argv[l.command_at], err);
    o->command = pp_command_specs[cmd].name;
    o->command_given = l.command_at != 0;
    enum pp_code code = PP_OK;
    if (!l.only_talk && !(code = read_config(&ps, paths, 1u << cmd, err)))
        code = read_environment(&ps, 1u << cmd, err);
    if (!code || cmd == PP_CMD_DOCTOR) /* doctor reports the errors of the configuration itself */
        code = read_command_line(&ps, argc, argv, cmd, l.command_at, err);
    if (!code && !l.only_talk)
        code = pp_options_check(o, cmd, err);
    if (code)
        return code;
    /* The draft model belongs to the model from the same source; drop it if a stronger source names another model. */
    if (o->draft && ps.draft < ps.model)
        o->draft = NULL;
    if (ps.draft_lora < ps.model || ps.draft_lora < ps.draft)
        o->n_draft_lora = 0;
    /* The same for the adapters of pippin.conf, if it names a model; otherwise they are for any model. */
    if (ps.config_model && ps.lora == PP_SOURCE_CONFIG && ps.model > PP_SOURCE_CONFIG)
        o->n_lora = 0;
    if (!l.only_talk && (code = name_persona(o, err)))
        return code;
    name_adapters(paths, o->model, o->lora, o->n_lora);
    name_adapters(paths, o->draft, o->draft_lora, o->n_draft_lora);
    name_once(o->lora, &o->n_lora);
    name_once(o->draft_lora, &o->n_draft_lora);
    return PP_OK;
}

bool pp_options_given(const struct pp_options *o, const char *name)
{
    for (size_t i = 0; i < pp_n_option_specs; i++)
        if (o->given[i] && strcmp(pp_option_specs[i].name, name) == 0)
            return true;
    return false;
}

bool pp_options_model_elsewhere(const struct pp_options *o)
{
    return *o->model && !pp_options_given(o, "model");
}

/* By the name stored with conversations: "temp", "n". */
static const struct pp_option *option_named(const char *name)
{
    char word[64];
    int n = snprintf(word, sizeof word, "%s%s", name[0] && !name[1] ? "-" : "--", name);
    return n > 0 && (size_t)n < sizeof word ? look_up(word, (size_t)n, PP_BIT(RUN)) : NULL;
}

void pp_options_bounds(const char *name, double *min, double *max)
{
    const struct pp_option *opt = option_named(name);
    *min = opt ? opt->min : 0;
    *max = opt ? opt->max : 0;
}

const char *pp_option_help(const struct pp_option *opt, enum pp_cmd cmd)
{
    for (int i = 0; i < PP_MAX_OWN_HELPS; i++)
        if (cmd < PP_CMD_COUNT && opt->own[i].commands & 1u << cmd)
            return opt->own[i].text;
    return opt->help;
}

const char *pp_options_about(const char *name)
{
    const struct pp_option *opt = option_named(name);
    return opt && opt->help ? opt->help : "";
}

/* Whether conversations store it: a number of sampling or drafting. An imported conversation may name any option, but a
 * text would not stay valid, and memory, threads and files are not its business. */
static bool is_stored(const struct pp_option *opt)
{
    const bool number = opt->set == pp_set_int || opt->set == pp_set_int64 || opt->set == pp_set_float ||
                        opt->set == pp_set_seed;
    return number && opt->section &&
           (strcmp(opt->section, "sampling") == 0 || strncmp(opt->name, "draft-", strlen("draft-")) == 0);
}

enum pp_code pp_options_recall(struct pp_options *o, const char *name, const char *value, struct pp_error *err)
{
    struct pp_parse ps = {.o = o, .source = PP_SOURCE_CONFIG};
    const struct pp_option *opt = option_named(name);
    if (!opt || !is_stored(opt))
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s is not a setting of conversations", name);
    return pp_options_given(o, opt->name) ? PP_OK : opt->set(&ps, opt, value, name, err);
}

enum pp_activations pp_options_activations(const struct pp_options *o)
{
    return o->activations ? (enum pp_activations)pp_activations_by_name(o->activations) : PP_ACT_AUTO;
}
