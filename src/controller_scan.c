/* controller_scan.c - finds the files on the disk that can be chosen: adapters, templates, models. io thread. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/adapter_file.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "src/controller_int.h"
#include "src/registry.h"

enum { MAX_ENTRIES = 8192, MAX_PROBED = 256 }; /* entries of a folder that are looked at, and files that are opened */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a folder, sorted, without hidden ones. */
static char **list_folder(const char *folder, size_t *n)
{
    char **names = NULL;
    size_t cap = 0;
    *n = 0;
    DIR *d = opendir(folder);
    if (!d)
        return NULL;
    for (struct dirent *e; *n < MAX_ENTRIES && (e = readdir(d));) {
        if (e->d_name[0] == '.' || pp_grow(&names, &cap, *n + 1, sizeof *names) != 0)
            continue;
        if ((names[*n] = pp_strdup(e->d_name)))
            ++*n;
    }
    closedir(d);
    if (*n)
        qsort(names, *n, sizeof *names, by_name);
    return names;
}

static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pp_free(names[i]);
    pp_free(names);
}

/* Finds the adapters in a folder: GGUF files and PEFT folders. The contents of a folder meant for adapters (`all`)
 * are listed unchecked: a damaged file is refused with the reason when it is used. Sets j->too_many if the limits
 * are reached. */
static void find_adapters(struct ctl_job *j, const char *folder, bool all)
{
    char path[PATH_MAX], real[PATH_MAX];
    size_t n, probed = 0;
    char **names = list_folder(folder, &n);
    for (size_t i = 0; i < n && !j->too_many; i++) {
        int len = snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        const bool file = pp_case_ends_with(path, ".gguf");
        if (len < 0 || (size_t)len >= sizeof path || !(file || pp_is_folder(path)))
            continue;
        probed += file && !all;
        if (probed > MAX_PROBED || j->adapters.n == CTL_MAX_ADAPTERS)
            j->too_many = all || pp_is_adapter(path);
        else if ((all || pp_is_adapter(path)) && pp_absolute_path(path, real))
            ctl_adapter_add(&j->adapters, real);
    }
    free_names(names, n);
}

static void find_templates(struct ctl_job *j)
{
    char folder[600];
    size_t n;
    snprintf(folder, sizeof folder, "%s/templates", j->paths->config);
    char **names = list_folder(folder, &n);
    for (size_t i = 0; i < n; i++) {
        size_t stem = strlen(names[i]) - strlen(".jinja");
        if (!pp_case_ends_with(names[i], ".jinja") || stem >= sizeof j->templates.items->name)
            continue;
        names[i][stem] = 0;
        ctl_add_template(&j->templates, names[i], "from the configuration folder");
    }
    free_names(names, n);
}

static uint64_t mix(uint64_t h, const char *file)
{
    struct stat st;
    if (stat(file, &st) != 0 || !S_ISREG(st.st_mode))
        return h;
    const uint64_t of[] = {(uint64_t)st.st_dev, (uint64_t)st.st_ino, (uint64_t)st.st_size,
                           (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        h = (h ^ of[i]) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    return h;
}

uint64_t ctl_adapter_stamp(const char *path)
{
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors", "adapters.safetensors",
                                        "adapters.npz"};
    char file[PATH_MAX];
    uint64_t h = mix(0, path);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (snprintf(file, sizeof file, "%s/%s", path, files[i]) < (int)sizeof file)
            h = mix(h, file);
    return h;
}

/* In: model (its path, "" if none is loaded), id (c->preset_changes when it was posted). Out: adapters with their
 * stamps, templates, notes, presets. */
void ctl_run_scan(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    char folder[600];
    char *slash = strrchr(j->model, '/');
    if (j->model[0] && !pp_is_folder(j->model)) {
        if (slash)
            *slash = 0;
        find_adapters(j, slash ? (slash == j->model ? "/" : j->model) : ".", false);
    }
    snprintf(folder, sizeof folder, "%s/adapters", j->paths->data);
    find_adapters(j, folder, true);
    find_templates(j);
    job->code = pp_store_adapter_list(st, &j->notes, &j->n_notes, &job->err);
    if (job->code == PP_OK)
        job->code = pp_store_preset_list(st, &j->presets, &j->n_presets, &job->err);
    for (size_t i = 0; i < j->n_notes; i++)
        if (j->notes[i].added)
            ctl_adapter_add(&j->adapters, j->notes[i].path);
    for (size_t i = 0; i < j->adapters.n; i++)
        j->adapters.items[i].stamp = ctl_adapter_stamp(j->adapters.items[i].path);
}

/* `name`: under which it is registered, or NULL. */
typedef void add_model(struct ctl_job *j, const char *path, const char *name);

static void find_models_in(struct ctl_job *j, const char *folder, add_model *add)
{
    char path[PATH_MAX];
    size_t n;
    char **names = list_folder(folder, &n);
    for (size_t i = 0; i < n; i++) {
        int len = snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (len > 0 && (size_t)len < sizeof path && pp_registry_looks_like(path) && !pp_is_adapter(path))
            add(j, path, NULL);
    }
    free_names(names, n);
}

static void find_registered(struct ctl_job *j, struct pp_store *st, add_model *add)
{
    struct pp_model_entry *list;
    size_t n;
    j->job.code = pp_store_model_list(st, &list, &n, &j->job.err);
    if (j->job.code != PP_OK)
        return;
    for (size_t i = 0; i < n; i++)
        if (pp_registry_looks_like(list[i].path))
            add(j, list[i].path, list[i].name);
    pp_model_entry_list_free(list, n);
}

/* Looks in the folder of the loaded model j->model, if there is one, and in the models folder. */
static void find_models_around(struct ctl_job *j, add_model *add)
{
    char folder[600];
    snprintf(folder, sizeof folder, "%s", j->model);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = 0;
    if (j->model[0])
        find_models_in(j, slash ? folder : ".", add);
    snprintf(folder, sizeof folder, "%s/models", j->paths->data);
    find_models_in(j, folder, add);
}

static void add_drafter(struct ctl_job *j, const char *path, const char *name)
{
    ctl_drafter_add(&j->drafters, path, name);
}

/* In: model (path of the loaded one). Out: drafters: all models except that one. */
void ctl_run_find_drafters(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    char real[PATH_MAX];
    size_t left = 0;
    find_models_around(j, add_drafter);
    find_registered(j, st, add_drafter);
    const char *own = realpath(j->model, real) ? real : j->model;
    for (size_t i = 0; i < j->drafters.n; i++)
        if (strcmp(j->drafters.items[i].path, own) != 0)
            j->drafters.items[left++] = j->drafters.items[i];
    j->drafters.n = left;
}

static void add_choice(struct ctl_job *j, const char *path, const char *name)
{
    ctl_model_add(&j->models, path, name, false);
}

/* In: model (path of the loaded one, or ""). Out: models, the registered ones first. */
void ctl_run_find_models(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    char starter[600];
    find_registered(j, st, add_choice);
    if (pp_resolve_model(j->paths, "starter", starter, sizeof starter, NULL) == PP_OK)
        ctl_model_add(&j->models, starter, "starter", true);
    if (j->model[0])
        add_choice(j, j->model, NULL);
    find_models_around(j, add_choice);
}

/* The absolute path for what the user typed. */
static bool find_path(const char *text, char whole[static PATH_MAX])
{
    char path[PATH_MAX];
    return pp_expand_home(text, path, sizeof path) && pp_absolute_path(path, whole);
}

/* In: key, a path as typed. Out: adapters, which are stored as added: this one, or all in that folder. */
void ctl_run_add_adapter(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    char real[PATH_MAX];
    if (!find_path(j->key, real)) {
        job->code = pp_fail(&job->err, PP_ERR_NOT_FOUND, "%s does not exist", j->key);
        return;
    }
    if (strlen(real) >= sizeof j->adapters.items->path) {
        job->code = pp_fail(&job->err, PP_ERR_UNSUPPORTED,
                            "the path has %zu bytes, but at most %zu are possible for an adapter; move it to a "
                            "shorter path",
                            strlen(real), sizeof j->adapters.items->path - 1);
        return;
    }
    bool is_adapter;
    job->code = pp_adapter_recognise(real, &is_adapter, &job->err);
    if (job->code == PP_ERR_FORMAT && !pp_case_ends_with(real, ".gguf"))
        /* a file that does not claim to be GGUF is not damaged; it is reported as no adapter below */
        job->code = PP_OK;
    if (job->code)
        return;
    if (is_adapter)
        ctl_adapter_add(&j->adapters, real);
    else
        find_adapters(j, real, false);
    if (!j->adapters.n)
        job->code = pp_fail(&job->err, PP_ERR_NOT_FOUND,
                            "%s is not an adapter: give an adapter in GGUF, or a folder with adapter_config.json",
                            j->key);
    for (size_t i = 0; job->code == PP_OK && i < j->adapters.n; i++)
        job->code = pp_store_adapter_put(st, j->adapters.items[i].path, NULL, true, &job->err);
}

/* In: key (the path), text (the note), flag (the user has added it). */
void ctl_run_note(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    job->code = pp_store_adapter_put(st, j->key, j->text, j->flag, &job->err);
}

/* In: key (the name), text (the set as JSON; NULL deletes it). */
void ctl_run_preset(struct pp_job *job, struct pp_store *st)
{
    struct ctl_job *j = (struct ctl_job *)job;
    job->code = pp_store_preset_put(st, j->key, j->text, &job->err);
}
