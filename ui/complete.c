#include "ui/complete.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "src/complete_names.h"
#include "src/completion.h"
#include "ui/state.h"

static void offer_commands(struct pp_completion *c)
{
    const char *name, *args, *about;
    for (size_t i = 0; pp_slash_info(i, &name, &args, &about); i++)
        pp_completion_offer(c, name);
}

static void offer_adapters(struct pp_ui *ui, struct pp_completion *c)
{
    size_t n;
    const struct pp_adapter_entry *adapters = pp_controller_adapters(ui->controller, &n);
    for (size_t i = 0; i < n; i++)
        pp_completion_offer(c, adapters[i].name);
}

static void offer_themes(struct pp_ui *ui, struct pp_completion *c)
{
    char (*ids)[64] = NULL;
    size_t n = 0;
    struct pp_error err;
    if (pp_theme_list(ui->paths, &ids, &n, &err) == PP_OK)
        for (size_t i = 0; i < n; i++)
            pp_completion_offer(c, ids[i]);
    pp_free(ids);
}

/* Offers the models that -m knows by name. */
static void offer_models(struct pp_ui *ui, struct pp_completion *c)
{
    char *text = NULL, *rest = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return;
    pp_complete_names(out, ui->paths, "models", NULL);
    fclose(out);
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) {
        line[strcspn(line, "\t")] = '\0';
        pp_completion_offer(c, line);
    }
    free(text); /* allocated by the C library */
}

static void offer_named(struct pp_ui *ui, struct pp_completion *c, const struct pp_named *(*get)(
                        const struct pp_controller *, size_t *))
{
    size_t n;
    const struct pp_named *list = get(ui->controller, &n);
    for (size_t i = 0; i < n; i++)
        pp_completion_offer(c, list[i].name);
}

/* Offers the arguments of a command. */
static void offer_arguments(struct pp_ui *ui, struct pp_completion *c, const char *command, const char *args)
{
    const bool persona = strcmp(command, "persona") == 0;
    if (strcmp(command, "help") == 0)
        offer_commands(c);
    else if (strcmp(command, "theme") == 0)
        offer_themes(ui, c);
    else if (strcmp(command, "model") == 0)
        offer_models(ui, c);
    else if (strcmp(command, "set") == 0)
        offer_named(ui, c, pp_controller_params);
    else if (persona)
        offer_named(ui, c, pp_controller_personas);
    else if (strcmp(command, "template") == 0)
        offer_named(ui, c, pp_controller_templates);
    else if (strcmp(command, "lora") == 0)
        offer_adapters(ui, c);
    if (persona)
        pp_completion_offer(c, "save "); /* the list includes "none" */
    else if (!strstr(args, "TEXT"))
        pp_completion_offer_words(c, args);
}

/* Whether the name of an adapter begins with this text. */
static bool begins_adapter(struct pp_ui *ui, const char *text)
{
    size_t n;
    const struct pp_adapter_entry *list = pp_controller_adapters(ui->controller, &n);
    for (size_t i = 0; i < n; i++)
        if (pp_ncasecmp(list[i].name, text, strlen(text)) == 0)
            return true;
    return false;
}

/* Completes the last set of /compare or, after a '+', its last adapter. Adapter names may contain spaces. */
static char *complete_set(struct pp_ui *ui, const char *line, struct pp_buf *several)
{
    struct pp_completion c;
    size_t at = strlen(line);
    while (!strchr(" +", line[at - 1]))
        at--;
    for (size_t k = at; k >= strlen("/compare "); k--)
        if (strchr(" +", line[k - 1]) && begins_adapter(ui, line + k))
            at = k;
    pp_completion_begin(&c, line, at);
    offer_adapters(ui, &c);
    offer_named(ui, &c, pp_controller_presets);
    pp_completion_offer(&c, "none");
    return pp_completion_take(&c, several);
}

/* Completes the name of a file or folder. */
static char *complete_path(const char *line, size_t at, struct pp_buf *several)
{
    struct pp_field path = {0};
    struct pp_buf full = {0};
    if (strlen(line + at) >= sizeof path.text)
        return NULL;
    pp_field_set(&path, line + at);
    pp_field_complete_path(&path, several);
    if (strcmp(path.text, line + at) != 0)
        pp_buf_fmt(&full, "%.*s%s", (int)at, line, path.text);
    return full.len ? pp_buf_take(&full) : NULL;
}

/* Offset of the path that is being typed; 0: none is. */
static size_t path_in(const char *line)
{
    static const char *const commands[] = {"/export ", "/import ", "/read ", "/lora add ", "/draft file "};
    static const char *const by_name[] = {"/model ", "/theme "}; /* names, or paths if there is a slash */
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strncmp(line, commands[i], strlen(commands[i])) == 0)
            return strlen(commands[i]);
    for (size_t i = 0; i < sizeof by_name / sizeof *by_name; i++)
        if (strncmp(line, by_name[i], strlen(by_name[i])) == 0 && strchr(line + strlen(by_name[i]), '/'))
            return strlen(by_name[i]);
    return 0;
}

static char *complete_argument(struct pp_ui *ui, const char *line, struct pp_buf *several)
{
    static const char *const with_preset[] = {"/lora preset ", "/lora drop "};
    const size_t n = strcspn(line + 1, " ");
    const char *name, *args, *about;
    struct pp_completion c;
    const size_t path = path_in(line);
    if (path)
        return complete_path(line, path, several);
    for (int i = 0; i < 2; i++) {
        if (strncmp(line, with_preset[i], strlen(with_preset[i])) != 0)
            continue;
        pp_completion_begin(&c, line, strlen(with_preset[i]));
        offer_named(ui, &c, pp_controller_presets);
        return pp_completion_take(&c, several);
    }
    if (strncmp(line, "/compare ", 9) == 0)
        return complete_set(ui, line, several);
    for (size_t i = 0; pp_slash_info(i, &name, &args, &about); i++) {
        if (strlen(name) != n || strncmp(name, line + 1, n) != 0)
            continue;
        pp_completion_begin(&c, line, n + 2);
        offer_arguments(ui, &c, name, args);
        return pp_completion_take(&c, several);
    }
    return NULL;
}

char *pp_ui_complete(void *user, const char *line)
{
    struct pp_ui *ui = user;
    struct pp_buf several = {0};
    struct pp_completion c;
    char *full = NULL;
    if (line[0] != '/' || strchr(line, '\n'))
        return NULL;
    if (strchr(line, ' ')) {
        full = complete_argument(ui, line, &several);
    } else {
        pp_completion_begin(&c, line, 1);
        offer_commands(&c);
        full = pp_completion_take(&c, &several);
    }
    if (several.len && !several.bad)
        pp_ui_notice(ui, false, "%s", several.data);
    pp_buf_free(&several);
    return full;
}
