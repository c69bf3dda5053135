/* options_help.c - writes help texts and shell completion from the tables of commands and options. */
#include <string.h>

#include "engine/base/buf.h"
#include "engine/convert.h"
#include "src/options_internal.h"

static const char *const group_titles[PP_GROUP_COUNT] = {
    [PP_GROUP_MODEL] = "Model", [PP_GROUP_ANSWER] = "Answer", [PP_GROUP_SESSION] = "Conversations",
    [PP_GROUP_OUTPUT] = "Output", [PP_GROUP_WORK] = "Options of this command", [PP_GROUP_GENERAL] = "General",
};

/* --- help -------------------------------------------------------------------------------------------------------- */

enum { TEXT_COLUMN = 30, WIDTH = 80 };

/* Prints words from `column` on, wrapped at WIDTH. */
static void print_wrapped(FILE *out, const char *text, int column)
{
    const char *word;
    size_t n;
    int at = column;
    while (pp_next_word(&text, &word, &n)) {
        if (at > column && at + 1 + (int)n > WIDTH) {
            fprintf(out, "\n%*s", column, "");
            at = column;
        }
        at += fprintf(out, "%s%.*s", at > column ? " " : "", (int)n, word);
    }
    putc('\n', out);
}

static void print_option(FILE *out, const struct pp_option *opt, enum pp_cmd cmd)
{
    char left[128] = "", *end = left + sizeof left;
    char *at = left;
    const char *others = opt->others, *word;
    size_t n;
    while (others && pp_next_word(&others, &word, &n))
        if (word[1] != '-') /* other long spellings are not shown; they are for users of other programs */
            at += snprintf(at, (size_t)(end - at), "%.*s, ", (int)n, word);
    at += snprintf(at, (size_t)(end - at), "--%s", opt->name);
    if (opt->arg)
        at += snprintf(at, (size_t)(end - at), " %s", opt->arg);
    if (at - left < TEXT_COLUMN - 3)
        fprintf(out, "  %-*s", TEXT_COLUMN - 2, left);
    else
        fprintf(out, "  %s\n%*s", left, TEXT_COLUMN, "");
    print_wrapped(out, pp_option_help(opt, cmd), TEXT_COLUMN);
}

/* The options of these commands, as help for one of them; PP_CMD_COUNT: for chat and run together. */
static void print_options(FILE *out, unsigned commands, enum pp_cmd cmd)
{
    for (int g = 0; g < PP_GROUP_COUNT; g++) {
        bool titled = false;
        for (size_t i = 0; i < pp_n_option_specs; i++) {
            const struct pp_option *opt = &pp_option_specs[i];
            if ((int)opt->group != g || !(opt->commands & commands))
                continue;
            if (!titled)
                fprintf(out, "\n%s:\n", group_titles[g]);
            titled = true;
            print_option(out, opt, cmd == PP_CMD_COUNT && !(opt->commands & PP_BIT(CHAT)) ? PP_CMD_RUN : cmd);
        }
    }
}

static void print_program_help(FILE *out)
{
    fputs("pippin: chat with language models that run on this machine\n\n"
          "Usage: pippin [chat] [-m MODEL] [OPTIONS]    chat\n"
          "       pippin -p TEXT [OPTIONS]              one answer; or: COMMAND | pippin\n"
          "       pippin COMMAND [OPTIONS]\n\nCommands:\n",
          out);
    for (int i = 0; i < PP_CMD_COUNT; i++)
        fprintf(out, "  %-12s%s\n", pp_command_specs[i].name, pp_command_specs[i].help);
    fputs("\n`pippin COMMAND --help` shows a command's options. Options of chat and run:\n", out);
    print_options(out, PP_BIT(CHAT) | PP_BIT(RUN), PP_CMD_COUNT);
    fputs("\nMore: man pippin-tutorial (the first hour), man pippin; in the chat, F1\n", out);
}

/* Lists the possible arguments of the command. */
static void print_words(FILE *out, enum pp_cmd cmd)
{
    const struct pp_word_help *words = pp_command_words(cmd);
    if (words)
        fputs(cmd == PP_CMD_BENCH ? "\nMeasures:\n" : "\nCommands:\n", out);
    for (; words && words->word; words++) {
        fprintf(out, "  %-*s", TEXT_COLUMN - 2, words->word);
        print_wrapped(out, words->help, TEXT_COLUMN);
    }
    if (cmd != PP_CMD_QUANTIZE)
        return;
    struct pp_buf text = {0};
    pp_buf_str(&text, "TYPE is one of (upper or lower case):");
    for (size_t i = 0; pp_quantize_type(i); i++)
        pp_buf_fmt(&text, "%s %s", i ? "," : "", pp_quantize_type(i));
    print_wrapped(out, pp_buf_cstr(&text), 0);
    pp_buf_free(&text);
}

void pp_options_help(FILE *out, const char *command)
{
    enum pp_cmd cmd = command ? pp_command_spec_find(command) : PP_CMD_COUNT;
    if (cmd == PP_CMD_COUNT) {
        print_program_help(out);
        return;
    }
    const struct pp_command_spec *spec = &pp_command_specs[cmd];
    fprintf(out, "pippin %s: %s\n\n", spec->name, spec->help);
    char usage[256];
    snprintf(usage, sizeof usage, "pippin %s %s [OPTIONS]", spec->name, spec->args);
    fputs("Usage: ", out);
    print_wrapped(out, usage, 7);
    print_words(out, cmd);
    print_options(out, 1u << cmd, cmd);
}

/* --- completion -------------------------------------------------------------------------------------------------- */

enum { EVERY_COMMAND = (1 << PP_CMD_COUNT) - 1 };

static bool is_file(const struct pp_option *opt)
{
    return opt->choices && strcmp(opt->choices, "FILE") == 0;
}

/* The kind of names (complete_names.h) for an option's or argument's choices; NULL: they are not names. */
static const char *names_of(const char *choices)
{
    static const char *const kinds[][2] = {
        {"MODEL", "models"}, {"ADAPTER", "adapters"}, {"SESSION", "sessions"}, {"PERSONA", "personas"}};
    for (size_t i = 0; choices && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(choices, kinds[i][0]) == 0)
            return kinds[i][1];
    return NULL;
}

/* Commands whose arguments are such names. */
static const struct {
    const char *command, *subcommands, *names;
} named_words[] = {
    {"sessions", "show rename export rm forget", "sessions"},
    {"models", "info tag untag rm", "models"},
    {"lora", "info", "adapters"},
};
enum { N_NAMED_WORDS = sizeof named_words / sizeof *named_words };

/* Commands whose arguments, from the nth on, are from a fixed list. */
static const struct {
    enum pp_cmd command;
    int from;
} chosen_words[] = {{PP_CMD_BENCH, 0}, {PP_CMD_QUANTIZE, 2}};
enum { N_CHOSEN_WORDS = sizeof chosen_words / sizeof *chosen_words };

/* Prints that list: the types, or what the usage line lists. */
static void print_chosen(FILE *out, enum pp_cmd cmd)
{
    const char *args = pp_command_specs[cmd].args, *word;
    size_t n;
    for (size_t i = 0; cmd == PP_CMD_QUANTIZE && pp_quantize_type(i); i++)
        fprintf(out, "%s%s", i ? " " : "", pp_quantize_type(i));
    for (bool first = true; cmd != PP_CMD_QUANTIZE && pp_next_word(&args, &word, &n);) {
        const size_t from = strspn(word, "[|"), len = strcspn(word + from, "]| ");
        if (from < n && len) {
            fprintf(out, "%s%.*s", first ? "" : " ", (int)len, word + from);
            first = false;
        }
    }
}

/* All spellings of an option, each preceded by `before`. */
static void print_spellings(FILE *out, const struct pp_option *opt, const char *before)
{
    const char *others = opt->others, *word;
    size_t n;
    fprintf(out, "%s--%s", before, opt->name);
    while (others && pp_next_word(&others, &word, &n))
        fprintf(out, "%s%.*s", before, (int)n, word);
}

static void print_commands(FILE *out)
{
    for (int i = 0; i < PP_CMD_COUNT; i++)
        fprintf(out, "%s%s", i ? " " : "", pp_command_specs[i].name);
}

/* A case label with the possible values of an option. */
static void bash_values(FILE *out, const struct pp_option *opt)
{
    const char *others = opt->others, *word;
    size_t n;
    fprintf(out, "    --%s", opt->name);
    while (others && pp_next_word(&others, &word, &n))
        fprintf(out, "|%.*s", (int)n, word);
    if (is_file(opt))
        fputs(") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", out);
    else if (names_of(opt->choices))
        fprintf(out, ") _pippin_names %s; return ;;\n", names_of(opt->choices));
    else if (opt->choices)
        fprintf(out, ") COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return ;;\n", opt->choices);
    else
        fputs(") return ;;\n", out);
}

/* Completes names that only the program knows. If there are several conversations, their titles are shown, too, but
 * only the ID is inserted. Adapters depend on the model in the line. */
static void bash_names(FILE *out)
{
    fputs("_pippin_names()\n{\n"
          "    local name note i\n"
          "    local -a model=()\n"
          "    for ((i = 1; i + 1 < cword; i++)); do\n"
          "        case ${words[i]} in -m|--model) model=(-m \"${words[i + 1]/#\\~/$HOME}\") ;; esac\n"
          "    done\n"
          "    while IFS=$'\\t' read -r name note; do\n"
          "        [[ $name == \"$cur\"* ]] || continue\n"
          "        [[ $1 == sessions && $COMP_TYPE != 37 ]] && name=\"$name  $note\"\n"
          "        COMPREPLY+=(\"$name\")\n"
          "    done < <(\"${words[0]}\" \"${model[@]}\" --completion \"$1\" 2>/dev/null)\n"
          "    if [[ $1 != sessions ]]; then\n"
          "        COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
          "    elif [[ ${#COMPREPLY[@]} == 1 ]]; then\n"
          "        COMPREPLY=(\"${COMPREPLY[0]%%  *}\")\n"
          "    fi\n"
          "}\n",
          out);
}

/* Counts the arguments after the command, and stores the first of them in $what; `valued`: options whose next word
 * is their value. */
static void bash_place(FILE *out)
{
    fputs("_pippin_place()\n{\n"
          "    local i n=-1 before=\n"
          "    what=\n"
          "    for ((i = 1; i < cword; i++)); do\n"
          "        [[ ${words[i]} == = ]] && continue\n" /* bash splits --option=value there */
          "        [[ ${words[i]} == -* || ( $before == -* && \" $valued \" == *\" $before \"* ) ]] ||\n"
          "            { ((++n == 1)) && what=${words[i]}; }\n"
          "        before=${words[i]}\n"
          "    done\n"
          "    (( n >= $1 ))\n"
          "}\n",
          out);
}

/* Joins the words of the line that bash has split at colons. readline completes only what follows the last colon, so
 * the part of the word before it is stored in $begun. */
static void bash_join(FILE *out)
{
    fputs("_pippin_join()\n{\n"
          "    local i word end=${COMP_WORDS[COMP_CWORD]}\n"
          "    for ((i = 0; i <= COMP_CWORD; i++)); do\n"
          "        word=${COMP_WORDS[i]}\n"
          "        if [[ i -gt 0 && $word${words[cword]} == *:* && ( $word == :* || ${words[cword]} == *: ) &&\n"
          "              $COMP_LINE == *\"${words[cword]}$word\"* ]]; then\n"
          "            words[cword]+=$word\n"
          "        else\n"
          "            words[++cword]=$word\n"
          "        fi\n"
          "    done\n"
          "    [[ $end == *[!:]* ]] || end=\n"
          "    [[ ${words[cword]} == \"${COMP_WORDS[COMP_CWORD]}\" ]] || begun=${words[cword]%\"$end\"}\n"
          "    begun=${begun//\\\\:/:} words[cword]=${words[cword]//\\\\:/:}\n"
          "}\n",
          out);
}

/* A case label: the arguments of such a command. Types are upper case, but match in any case. */
static void bash_chosen(FILE *out, enum pp_cmd cmd, int from)
{
    fprintf(out, "        %s) _pippin_place %d && { COMPREPLY=($(compgen -W \"", pp_command_specs[cmd].name, from);
    print_chosen(out, cmd);
    fprintf(out, "\" -- \"${cur%s}\")); return; } ;;\n", cmd == PP_CMD_QUANTIZE ? "^^" : "");
}

/* Finds the command in the line: the first word that is one. */
static void bash_command(FILE *out)
{
    fputs("    for word in \"${words[@]:1:cword-1}\"; do\n"
          "        case \" ",
          out);
    print_commands(out);
    fputs(" \" in *\" $word \"*) command=$word; break ;; esac\n"
          "    done\n",
          out);
}

/* All spellings of the options of some commands, or only of options with a value. */
static void bash_spellings(FILE *out, unsigned commands, bool valued)
{
    for (size_t i = 0; i < pp_n_option_specs; i++)
        if (pp_option_specs[i].commands & commands && (!valued || pp_option_specs[i].arg))
            print_spellings(out, &pp_option_specs[i], " ");
}

/* The subcommands and options of each command, and which options have a value. Those of the chat also apply before
 * any command. */
static void bash_options(FILE *out)
{
    fputs("    case \"${command:-chat}\" in\n", out);
    for (int c = 0; c < PP_CMD_COUNT; c++) {
        unsigned bits = c == PP_CMD_CHAT ? PP_BIT(CHAT) | PP_BIT(RUN) : 1u << c;
        fprintf(out, "    %s) subcommands=\"%s\" options=\"", pp_command_specs[c].name,
                pp_command_specs[c].subcommands ? pp_command_specs[c].subcommands : "");
        bash_spellings(out, bits, false);
        fputs(" \" valued=\"", out);
        bash_spellings(out, bits, true);
        fputs(" \" ;;\n", out);
    }
    fputs("    esac\n", out);
}

/* Completes the word at the cursor if it is not the value of an option. */
static void bash_words(FILE *out)
{
    fputs("    if [[ $cur == -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
          "    elif [[ -z $command ]]; then\n"
          "        COMPREPLY=($(compgen -W \"",
          out);
    print_commands(out);
    fputs("\" -- \"$cur\"))\n"
          "    elif [[ -n $subcommands ]] && ! _pippin_place 1; then\n"
          "        COMPREPLY=($(compgen -W \"$subcommands\" -- \"$cur\"))\n"
          "    else\n"
          "        case \"$command\" in\n",
          out);
    for (size_t i = 0; i < N_NAMED_WORDS; i++)
        fprintf(out, "        %s) [[ \" %s \" == *\" $what \"* ]] && { _pippin_names %s; return; } ;;\n",
                named_words[i].command, named_words[i].subcommands, named_words[i].names);
    for (size_t i = 0; i < N_CHOSEN_WORDS; i++)
        bash_chosen(out, chosen_words[i].command, chosen_words[i].from);
    fputs("        esac\n"
          "        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
          "    fi\n",
          out);
}

static void bash(FILE *out)
{
    fputs("# bash completion for pippin, made by `pippin --completion bash`\n", out);
    bash_names(out);
    bash_place(out);
    bash_join(out);
    fputs("_pippin_complete()\n{\n"
          "    local cur=\"${words[cword]}\" prev=\"${words[cword-1]}\"\n"
          "    local command= word what= options= subcommands= valued=\n"
          "    COMPREPLY=()\n"
          "    if [[ $cur == = ]]; then\n"
          "        cur=\n"
          "    elif [[ $prev == = ]]; then\n"
          "        prev=\"${words[cword-2]}\"\n"
          "    fi\n",
          out);
    bash_command(out);
    fputs("    case \"$prev\" in\n", out);
    for (size_t i = 0; i < pp_n_option_specs; i++)
        if (pp_option_specs[i].arg)
            bash_values(out, &pp_option_specs[i]);
    fputs("    esac\n", out);
    bash_options(out);
    bash_words(out);
    fputs("}\n"
          "_pippin()\n{\n"
          "    local -a words=()\n"
          "    local cword=-1 begun=\n"
          "    _pippin_join\n"
          "    _pippin_complete\n"
          "    COMPREPLY=(\"${COMPREPLY[@]#\"$begun\"}\")\n"
          "}\n"
          "complete -o filenames -F _pippin pippin\n",
          out);
}

/* Prints text inside single quotes, with a backslash before `special` characters. */
static void print_quoted(FILE *out, const char *text, const char *special)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else if (strchr(special, *text))
            fprintf(out, "\\%c", *text);
        else
            putc(*text, out);
    }
}

static void zsh_option(FILE *out, enum pp_cmd cmd, const struct pp_option *opt, const char *name, size_t n)
{
    fprintf(out, " '*%.*s%s[", (int)n, name, opt->arg && name[1] == '-' ? "=" : ""); /* accepts --option=value, too */
    print_quoted(out, pp_option_help(opt, cmd), "[]:\\");
    putc(']', out);
    if (opt->arg) {
        fprintf(out, ":%s:", opt->name);
        if (is_file(opt))
            fputs("_files", out);
        else if (names_of(opt->choices))
            fprintf(out, "_pippin_%s", names_of(opt->choices));
        else if (opt->choices)
            fprintf(out, "(%s)", opt->choices);
    }
    putc('\'', out);
}

static void zsh_command(FILE *out, enum pp_cmd c)
{
    const struct pp_command_spec *spec = &pp_command_specs[c];
    unsigned bits = c == PP_CMD_CHAT ? PP_BIT(CHAT) | PP_BIT(RUN) : 1u << c;
    fprintf(out, "    %s) _arguments -S", spec->name);
    for (size_t i = 0; i < pp_n_option_specs; i++) {
        const struct pp_option *opt = &pp_option_specs[i];
        if (!(opt->commands & bits))
            continue;
        char name[64];
        int len = snprintf(name, sizeof name, "--%s", opt->name);
        zsh_option(out, c, opt, name, (size_t)len);
        const char *others = opt->others, *word;
        size_t n;
        while (others && pp_next_word(&others, &word, &n))
            zsh_option(out, c, opt, word, n);
    }
    fprintf(out, " '1:command:(");
    print_commands(out);
    fputs(")'", out);
    if (spec->subcommands)
        fprintf(out, " '2:what:(%s)'", spec->subcommands);
    int chosen_at = 0; /* position of the first argument from a list, counted as zsh does */
    for (size_t i = 0; i < N_CHOSEN_WORDS; i++)
        if (chosen_words[i].command == c)
            chosen_at = chosen_words[i].from + 2;
    for (int i = 2; i < chosen_at; i++)
        fprintf(out, " '%d:file:_files'", i);
    if (chosen_at) {
        fputs(" '*:what:compadd -M \"m\\:{a-zA-Z}={A-Za-z}\" ", out);
        print_chosen(out, c);
        putc('\'', out);
    }
    const char *words = spec->max_args && !chosen_at ? "_files" : NULL;
    for (size_t i = 0; i < N_NAMED_WORDS; i++)
        if (strcmp(spec->name, named_words[i].command) == 0)
            words = named_words[i].names;
    if (words)
        fprintf(out, " '*:file:%s%s'", *words == '_' ? "" : "_pippin_", words);
    fputs(" ;;\n", out);
}

static void zsh(FILE *out)
{
    fputs("#compdef pippin\n# zsh completion for pippin, made by `pippin --completion zsh`\n"
          "_pippin_names()\n{\n"
          "    local -a names model\n"
          "    local i=${words[(I)(-m|--model)]}\n"
          "    (( i && i + 1 < CURRENT )) && model=(-m ${${(Q)words[i+1]}/#\\~/$HOME})\n"
          "    names=(${(f)\"$($words[1] $model --completion $1 2>/dev/null | sed 's/:/\\\\:/g;s/\\t/:/')\"})\n"
          "    _describe $1 names\n"
          "}\n"
          "_pippin_sessions() { _pippin_names sessions; _files }\n"
          "_pippin_models() { _pippin_names models; _files }\n"
          "_pippin_adapters() { _pippin_names adapters; _files }\n"
          "_pippin()\n{\n    local command=chat word\n"
          "    for word in \"${words[@]:1:$((CURRENT-2))}\"; do\n        case \" ",
          out);
    print_commands(out);
    fputs(" \" in *\" $word \"*) command=$word; break ;; esac\n    done\n"
          "    [[ ${words[2]} == help ]] && (( CURRENT > 2 )) && command=help\n"
          "    case $command in\n    help) _arguments '2:command:(", out);
    print_commands(out);
    fputs(")' ;;\n", out);
    for (int c = 0; c < PP_CMD_COUNT; c++)
        zsh_command(out, (enum pp_cmd)c);
    fputs("    esac\n}\n_pippin \"$@\"\n", out);
}

/* A fish condition for the commands that an option belongs to. */
static void fish_condition(FILE *out, unsigned commands)
{
    if (commands == EVERY_COMMAND)
        return;
    fputs(" -n '", out);
    if (commands & (PP_BIT(CHAT) | PP_BIT(RUN))) {
        fputs("not __fish_seen_subcommand_from ", out);
        print_commands(out);
        fputs("; or ", out);
    }
    fputs("__fish_seen_subcommand_from", out);
    for (int i = 0; i < PP_CMD_COUNT; i++)
        if (commands & 1u << i)
            fprintf(out, " %s", pp_command_specs[i].name);
    putc('\'', out);
}

/* An option as these of its commands understand it. */
static void fish_option(FILE *out, const struct pp_option *opt, unsigned commands, const char *help)
{
    fputs("complete -c pippin", out);
    fish_condition(out, commands);
    fprintf(out, " -l %s", opt->name);
    const char *others = opt->others, *word;
    size_t n;
    while (others && pp_next_word(&others, &word, &n)) {
        size_t dashes = word[1] == '-' ? 2 : 1;
        /* fish distinguishes -x from -xyz with one dash, which it calls old style */
        fprintf(out, " %s %.*s", dashes == 2 ? "-l" : n == 2 ? "-s" : "-o", (int)(n - dashes), word + dashes);
    }
    if (is_file(opt))
        fputs(" -r -F", out);
    else if (names_of(opt->choices))
        fprintf(out, " %s -a '(pippin (__pippin_model) --completion %s)'",
                strcmp(opt->choices, "SESSION") == 0 ? "-x" : "-r -F", names_of(opt->choices));
    else if (opt->choices)
        fprintf(out, " -x -a '%s'", opt->choices);
    else if (opt->arg)
        fputs(" -x", out);
    fputs(" -d '", out);
    print_quoted(out, help, "\\");
    fputs("'\n", out);
}

/* An option, with a line for each of its meanings. */
static void fish_meanings(FILE *out, const struct pp_option *opt)
{
    unsigned others = opt->commands;
    for (int i = 0; i < PP_MAX_OWN_HELPS && opt->own[i].commands; i++) {
        fish_option(out, opt, opt->own[i].commands, opt->own[i].text);
        others &= ~opt->own[i].commands;
    }
    if (others)
        fish_option(out, opt, others, opt->help);
}

static void fish(FILE *out)
{
    fputs("# fish completion for pippin, made by `pippin --completion fish`\n"
          "function __pippin_model\n"
          "    set -l words (commandline -opc)\n"
          "    for i in (seq 2 (math (count $words) - 1))\n"
          "        contains -- $words[$i] -m --model\n"
          "        and printf '%s\\n' -m (string replace -r '^~' $HOME -- $words[(math $i + 1)])\n"
          "    end\n"
          "end\n"
          "function __pippin_place\n" /* whether there are at least that many arguments after the command, not
                                       * counting options */
          "    test (count (string match -v -- '-*' (commandline -opc))) -ge (math $argv[1] + 2)\n"
          "end\n", out);
    for (int i = 0; i < PP_CMD_COUNT; i++) {
        const struct pp_command_spec *spec = &pp_command_specs[i];
        fputs("complete -c pippin -f -n '__fish_use_subcommand' -a ", out);
        fprintf(out, "%s -d '", spec->name);
        print_quoted(out, spec->help, "\\");
        fputs("'\n", out);
        if (spec->subcommands)
            fprintf(out, "complete -c pippin -f -n '__fish_seen_subcommand_from %s; and not "
                         "__fish_seen_subcommand_from %s' -a '%s'\n", spec->name, spec->subcommands,
                    spec->subcommands);
    }
    fputs("complete -c pippin -f -n '__fish_seen_subcommand_from help' -a '", out);
    print_commands(out);
    fputs("'\n", out);
    for (size_t i = 0; i < N_NAMED_WORDS; i++)
        fprintf(out, "complete -c pippin -n '__fish_seen_subcommand_from %s; and __fish_seen_subcommand_from %s' -a "
                     "'(pippin --completion %s)'\n", named_words[i].command, named_words[i].subcommands,
                named_words[i].names);
    for (size_t i = 0; i < N_CHOSEN_WORDS; i++) {
        fprintf(out, "complete -c pippin -f -n '__fish_seen_subcommand_from %s; and __pippin_place %d' -a '",
                pp_command_specs[chosen_words[i].command].name, chosen_words[i].from);
        print_chosen(out, chosen_words[i].command);
        fputs("'\n", out);
    }
    for (size_t i = 0; i < pp_n_option_specs; i++)
        fish_meanings(out, &pp_option_specs[i]);
}

bool pp_options_completion(FILE *out, const char *shell)
{
    if (strcmp(shell, "bash") == 0)
        bash(out);
    else if (strcmp(shell, "zsh") == 0)
        zsh(out);
    else if (strcmp(shell, "fish") == 0)
        fish(out);
    else
        return false;
    return true;
}
