#include "src/complete_names.h"

#include <dirent.h>
#include <string.h>

#include "src/adapter_names.h"
#include "src/config.h"
#include "src/personas.h"
#include "src/registry.h"
#include "src/store.h"
#include "src/title.h"

enum { MAX_SESSIONS = 200 };

static void print(FILE *out, const char *name, const char *note)
{
    char line[PP_TITLE_BYTES]; /* without control characters */
    pp_title(note, strlen(note), line);
    if (*name && !strpbrk(name, "\t\n\r\033"))
        fprintf(out, "%s\t%s\n", name, line);
}

static void sessions(FILE *out, struct pp_store *st)
{
    struct pp_session *list;
    size_t n;
    if (!st || pp_store_session_page(st, NULL, false, MAX_SESSIONS, &list, &n, NULL) != PP_OK)
        return;
    for (size_t i = 0; i < n; i++)
        print(out, list[i].key, list[i].title);
    pp_session_list_free(list, n);
}

static void registered(FILE *out, struct pp_store *st)
{
    struct pp_model_entry *list;
    size_t n;
    if (!st || pp_store_model_list(st, &list, &n, NULL) != PP_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        print(out, list[i].name, list[i].path);
        for (char *rest, *tag = strtok_r(list[i].tags, " ", &rest); tag; tag = strtok_r(NULL, " ", &rest))
            print(out, tag, list[i].name);
    }
    pp_model_entry_list_free(list, n);
}

static void models(FILE *out, const struct pp_paths *p, struct pp_store *st)
{
    char folder[600], path[900];
    snprintf(folder, sizeof folder, "%s/models", p->data);
    registered(out, st);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.' && pp_registry_looks_like(path))
            print(out, e->d_name, "in the models folder");
    }
    if (d)
        closedir(d);
    if (p->starter[0])
        print(out, "starter", "the bundled model");
}

static void adapters(FILE *out, const struct pp_paths *p, const char *model)
{
    struct pp_adapter_paths all = {0};
    pp_adapter_paths_find(p, model, &all, NULL);
    for (size_t i = 0; i < all.n; i++)
        print(out, pp_adapter_cut_name(all.list[i]), "adapter");
    pp_adapter_paths_free(&all);
}

static void personas(FILE *out, const struct pp_paths *p)
{
    char path[600];
    struct pp_personas all = {0};
    struct pp_config *config = NULL;
    snprintf(path, sizeof path, "%s/pippin.conf", p->config);
    if (pp_config_load(path, &config, NULL) != PP_OK)
        config = NULL;
    if (pp_personas_all(&all, config, NULL) == PP_OK)
        for (size_t i = 0; i < all.n; i++)
            print(out, all.items[i].name, all.items[i].system);
    pp_personas_free(&all);
    pp_config_free(config);
}

bool pp_complete_names(FILE *out, const struct pp_paths *p, const char *what, const char *model)
{
    const bool of_store = strcmp(what, "sessions") == 0 || strcmp(what, "models") == 0;
    struct pp_store *st = NULL;
    if (of_store && pp_store_open_to_read(p->db, &st, NULL) != PP_OK)
        st = NULL;
    if (strcmp(what, "sessions") == 0)
        sessions(out, st);
    else if (strcmp(what, "models") == 0)
        models(out, p, st);
    else if (strcmp(what, "adapters") == 0)
        adapters(out, p, model);
    else if (strcmp(what, "personas") == 0)
        personas(out, p);
    else
        return false;
    pp_store_close(st);
    return true;
}
