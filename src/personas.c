/* personas.c - personas: named system prompts. */
#include "src/personas.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/base/word.h"
#include "src/config.h"
#include "src/paths.h"

static const char ending[] = ".txt"; /* of files */

static const struct {
    const char *name, *system;
} builtin[] = {
    {"none", ""},
    {"concise",
     "Answer as briefly as possible. No preamble, no repetition of the question, no closing remarks."},
    {"tutor",
     "You are a patient tutor. Explain step by step in simple words, give a small example, and end with one question "
     "that checks whether the student understood."},
    {"editor",
     "You are a careful editor. Improve the text you are given without changing its meaning or its voice, then list "
     "what you changed and why."},
    {"programmer",
     "You are an experienced programmer. Show short, complete, correct code first and explain only what is not "
     "obvious."},
    {"sceptic",
     "Question every claim, also your own. Say what is known, what is assumed, and what would change your mind."},
    {"pirate",
     "You are a pirate. Answer correctly, but talk like a pirate."},
};

enum pp_code pp_personas_init(struct pp_personas *p, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; code == PP_OK && i < sizeof builtin / sizeof *builtin; i++)
        code = pp_personas_add(p, builtin[i].name, builtin[i].system, err);
    return code;
}

bool pp_persona_name_valid(const char *name)
{
    const size_t n = strlen(name);
    return n && n <= PP_PERSONA_NAME && *name != '.' && !strchr(name, '/') && pp_utf8_valid(name, n) &&
           pp_casecmp(name, builtin[0].name) != 0;
}

static int ends_like_one(const struct dirent *e)
{
    return pp_case_ends_with(e->d_name, ending);
}

/* Adds the persona of a file; one that cannot be read, or that is no text, is left out. */
static enum pp_code add_file(struct pp_personas *p, const char *folder, const char *file, struct pp_error *err)
{
    char path[PATH_MAX], name[NAME_MAX + 1];
    char *text = NULL;
    size_t n = 0;
    const int stem = snprintf(name, sizeof name, "%s", file) - (int)strlen(ending);
    name[stem > 0 && stem < NAME_MAX ? stem : 0] = 0;
    if (!pp_persona_name_valid(name) || snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path)
        return PP_OK;
    enum pp_code code = pp_read_file(path, PP_PERSONA_TEXT + 2, &text, &n, NULL); /* and the end of the last line */
    if (!code && n && text[n - 1] == '\n')
        text[n -= n > 1 && text[n - 2] == '\r' ? 2 : 1] = 0;
    if (code == PP_ERR_NOMEM)
        pp_fail_nomem(err, "the personas");
    else if (!code && !memchr(text, 0, n) && pp_utf8_valid(text, n))
        code = pp_personas_add(p, name, text, err);
    pp_free(text);
    return code == PP_ERR_NOMEM ? code : PP_OK;
}

static enum pp_code add_files(struct pp_personas *p, const char *config_folder, struct pp_error *err)
{
    char folder[PATH_MAX];
    struct dirent **files = NULL;
    enum pp_code code = PP_OK;
    if (snprintf(folder, sizeof folder, "%s/personas", config_folder) >= (int)sizeof folder)
        return PP_OK;
    const int n = scandir(folder, &files, ends_like_one, alphasort);
    for (int i = 0; i < n; i++) {
        code = code ? code : add_file(p, folder, files[i]->d_name, err);
        free(files[i]); /* scandir's */
    }
    free(files);
    return code;
}

enum pp_code pp_personas_all(struct pp_personas *p, const struct pp_config *config, struct pp_error *err)
{
    const char *name, *system;
    enum pp_code code = pp_personas_init(p, err);
    for (size_t i = 0; code == PP_OK && pp_config_persona(config, i, &name, &system); i++)
        code = pp_personas_add(p, name, system, err);
    char *folder = config && !code ? pp_folder_of(pp_config_path(config)) : NULL;
    if (folder)
        code = add_files(p, folder, err);
    pp_free(folder);
    return code;
}

enum pp_code pp_persona_save(const char *config_folder, const char *name, const char *system, struct pp_error *err)
{
    struct pp_buf path = {0}, text = {0};
    pp_buf_fmt(&path, "%s/personas/%s%s", config_folder, name, ending);
    pp_buf_fmt(&text, "%s\n", system);
    enum pp_code code = path.bad || text.bad ? pp_fail_nomem(err, "the persona") : pp_make_dirs_of(path.data, err);
    if (!code)
        code = pp_write_file(path.data, text.data, text.len, 0600, err);
    pp_buf_free(&path);
    pp_buf_free(&text);
    return code;
}

/* Index by name, ignoring case; -1 if there is none. */
static int find(const struct pp_personas *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (pp_casecmp(p->items[i].name, name) == 0)
            return (int)i;
    return -1;
}

const struct pp_persona *pp_personas_named(const struct pp_personas *p, const char *name)
{
    const int i = find(p, name);
    return i < 0 ? NULL : &p->items[i];
}

static enum pp_code not_found(const struct pp_personas *p, const char *name, int n_begin, struct pp_error *err)
{
    char why[48];
    struct pp_buf names = {0};
    for (size_t i = 0; i < p->n; i++)
        pp_buf_fmt(&names, "%s%s", i ? ", " : "", p->items[i].name);
    if (n_begin)
        snprintf(why, sizeof why, "%d personas begin with", n_begin);
    else
        snprintf(why, sizeof why, "there is no persona");
    const enum pp_code code = pp_fail(err, PP_ERR_USAGE, "%s \"%.60s\"; choose from: %s", why, name,
                                      pp_buf_cstr(&names));
    pp_buf_free(&names);
    return code;
}

const struct pp_persona *pp_personas_find(const struct pp_personas *p, const char *name, struct pp_error *err)
{
    int at = find(p, name), begin = 0;
    for (size_t i = 0; at < 0 && *name && i < p->n; i++)
        begin += pp_ncasecmp(p->items[i].name, name, strlen(name)) == 0;
    for (size_t i = 0; at < 0 && begin == 1 && i < p->n; i++)
        if (pp_ncasecmp(p->items[i].name, name, strlen(name)) == 0)
            at = (int)i;
    if (at < 0)
        not_found(p, name, begin, err);
    return at < 0 ? NULL : &p->items[at];
}

enum pp_code pp_personas_add(struct pp_personas *p, const char *name, const char *system, struct pp_error *err)
{
    int at = find(p, name);
    char *copy = pp_strdup(system);
    if (!copy || pp_grow(&p->items, &p->cap, p->n + 1, sizeof *p->items) != 0) {
        pp_free(copy);
        return pp_fail_nomem(err, "the list of personas");
    }
    if (at < 0) {
        at = (int)p->n++;
        p->items[at] = (struct pp_persona){0};
        pp_utf8_print(p->items[at].name, sizeof p->items[at].name, "%s", name);
    }
    pp_free(p->items[at].system);
    p->items[at].system = copy;
    return PP_OK;
}

void pp_personas_free(struct pp_personas *p)
{
    for (size_t i = 0; i < p->n; i++)
        pp_free(p->items[i].system);
    pp_free(p->items);
    *p = (struct pp_personas){0};
}
