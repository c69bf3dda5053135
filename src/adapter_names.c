#include "src/adapter_names.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/adapter_file.h"
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "src/near.h"

/* Formats a path into out[PATH_MAX]; false if it does not fit. */
static bool __attribute__((format(printf, 2, 3))) join(char out[PATH_MAX], const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, PATH_MAX, fmt, ap);
    va_end(ap);
    return n >= 0 && n < PATH_MAX;
}

/* The folders that are searched for names: that of the model, and the adapters folder. */
enum { PLACES = 2 };
static enum pp_code place(const struct pp_paths *p, const char *model, int i, char out[PATH_MAX], struct pp_error *err)
{
    if (i)
        return join(out, "%s/adapters", p->data) ? PP_OK
                                                 : pp_fail(err, PP_ERR_IO, "the path of the adapters is too long");
    enum pp_code code = pp_resolve_model(p, model, out, PATH_MAX, err);
    char *slash = code ? NULL : strrchr(out, '/');
    if (slash)
        slash[slash == out] = 0;
    else
        strcpy(out, ".");
    return code;
}

static bool take(const char *path, char *out, size_t cap)
{
    if (access(path, F_OK) != 0)
        return false;
    const int n = snprintf(out, cap, "%s", path);
    return n >= 0 && (size_t)n < cap;
}

bool pp_resolve_adapter(const struct pp_paths *p, const char *model, const char *name, char *out, size_t cap)
{
    char folder[PATH_MAX], path[PATH_MAX];
    if (take(name, out, cap))
        return true;
    if (!*name || strchr(name, '/'))
        return false;
    for (int i = 0; i < PLACES; i++)
        if (place(p, model, i, folder, NULL) == PP_OK &&
            ((join(path, "%s/%s", folder, name) && take(path, out, cap)) ||
             (join(path, "%s/%s.gguf", folder, name) && take(path, out, cap))))
            return true;
    return false;
}

/* --- listing all adapters ---------------------------------------------------------------------------------- */

enum pp_code pp_adapter_paths_add(struct pp_adapter_paths *a, const char *path, struct pp_error *err)
{
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->list[i], path) == 0)
            return PP_OK;
    char *copy = pp_strdup(path);
    if (!copy || pp_grow(&a->list, &a->cap, a->n + 1, sizeof *a->list) != 0) {
        pp_free(copy);
        return pp_fail_nomem(err, "the list of adapters");
    }
    a->list[a->n++] = copy;
    return PP_OK;
}

void pp_adapter_paths_free(struct pp_adapter_paths *a)
{
    for (size_t i = 0; i < a->n; i++)
        pp_free(a->list[i]);
    pp_free(a->list);
    *a = (struct pp_adapter_paths){0};
}

char *pp_adapter_cut_name(char *path)
{
    static const char end[] = ".gguf";
    char *name = strrchr(path, '/') + 1;
    if (pp_ends_with(name, end))
        name[strlen(name) - strlen(end)] = 0;
    return name;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds the adapters in a folder, sorted by name. A missing folder has none. */
static enum pp_code find_in(struct pp_adapter_paths *a, const char *folder, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    const size_t begin = a->n;
    char path[PATH_MAX];
    DIR *d = opendir(folder);
    if (!d)
        return errno == ENOENT || errno == ENOTDIR
                   ? PP_OK
                   : pp_fail(err, PP_ERR_IO, "cannot read the adapter folder %s: %s", folder,
                             strerror(errno));
    for (struct dirent *e; !code && (e = readdir(d));) {
        bool adapter = false;
        if (e->d_name[0] != '.' && join(path, "%s/%s", folder, e->d_name))
            code = pp_adapter_recognise(path, &adapter, err);
        if (code != PP_ERR_NOMEM) /* damaged and other files are not adapters */
            code = adapter || (code && a->damaged && pp_ends_with(path, ".gguf")) ? pp_adapter_paths_add(a, path, err)
                                                                                  : PP_OK;
    }
    closedir(d);
    if (a->n > begin)
        qsort(a->list + begin, a->n - begin, sizeof *a->list, by_name);
    return code;
}

enum pp_code pp_adapter_paths_find(const struct pp_paths *p, const char *model, struct pp_adapter_paths *out,
                                   struct pp_error *err)
{
    char folder[PATH_MAX];
    enum pp_code first = PP_OK;
    for (int i = 0; i < PLACES; i++) {
        struct pp_error *where = first ? NULL : err;
        enum pp_code code = place(p, model, i, folder, where);
        if (code == PP_ERR_NOT_FOUND && !(model && *model))
            continue; /* this is the default model, which may be missing */
        if (!code)
            code = find_in(out, folder, where);
        first = first ? first : code;
    }
    return first;
}

/* --- errors for unknown names -------------------------------------------------------------------------------- */

/* Lists the names for a message, and offers them to `near`; cuts the paths down to names. */
static void offer(struct pp_adapter_paths *a, struct pp_near *near, struct pp_buf *names)
{
    enum { ENOUGH = 160 };
    for (size_t i = 0; i < a->n; i++) {
        const char *name = pp_adapter_cut_name(a->list[i]);
        pp_near_try(near, name);
        if (names->len < ENOUGH)
            pp_buf_fmt(names, "%s%s", names->len ? ", " : "", name);
    }
}

/* As in "bard:0.5". */
static bool ends_in_number(const char *name)
{
    const char *colon = strrchr(name, ':');
    const size_t n = colon && colon > name ? strlen(colon + 1) : 0;
    return n && strspn(colon + 1, "+-.0123456789") == n;
}

enum pp_code pp_adapter_check(const struct pp_paths *p, const char *model, const char *name, struct pp_error *err)
{
    struct pp_near near = {.wanted = name};
    struct pp_adapter_paths all = {0};
    struct pp_buf names = {0};
    if (access(name, F_OK) == 0)
        return PP_OK;
    pp_adapter_paths_find(p, model, &all, NULL);
    offer(&all, &near, &names);
    pp_adapter_paths_free(&all);
    if (near.best[0])
        pp_fail(err, PP_ERR_NOT_FOUND, "there is no adapter \"%.100s\"; did you mean \"%.100s\"? Known by name: %s",
                name, near.best, pp_buf_cstr(&names));
    else if (names.len)
        pp_fail(err, PP_ERR_NOT_FOUND, "there is no adapter \"%.200s\"; known by name: %s", name,
                pp_buf_cstr(&names));
    else
        pp_fail(err, PP_ERR_NOT_FOUND,
                "there is no adapter \"%.200s\"; give the path of a GGUF file or folder, or put it into "
                "%.200s/adapters", name, p->data);
    if (ends_in_number(name))
        pp_fail_advice(err, "use --lora-scaled for NAME:SCALE");
    pp_buf_free(&names);
    return PP_ERR_NOT_FOUND;
}
