#include "src/adapter_names.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/adapter_file.h"
#include "engine/base/buf.h"
#include "src/near.h"

/* Joins into out[PATH_MAX]; false if it does not fit. */
static bool __attribute__((format(printf, 2, 3))) join(char out[PATH_MAX], const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, PATH_MAX, fmt, ap);
    va_end(ap);
    return n >= 0 && n < PATH_MAX;
}

/* Where adapters lie that have a name: beside the model, and in the adapters folder. False: there is no such place. */
enum { PLACES = 2 };
static bool place(const struct pp_paths *p, const char *model, int i, char out[PATH_MAX])
{
    if (i)
        return join(out, "%s/adapters", p->data);
    if (pp_resolve_model(p, model, out, PATH_MAX, NULL) != PP_OK)
        return false;
    char *slash = strrchr(out, '/');
    if (slash)
        slash[slash == out] = 0;
    return slash || join(out, ".");
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
        if (place(p, model, i, folder) && ((join(path, "%s/%s", folder, name) && take(path, out, cap)) ||
                                           (join(path, "%s/%s.gguf", folder, name) && take(path, out, cap))))
            return true;
    return false;
}

/* The names of a folder's adapters: into `names`, as a list for a sentence, and to `near`. */
static void offer(const char *folder, struct pp_near *near, struct pp_buf *names)
{
    enum { ENOUGH = 160 };
    DIR *d = opendir(folder);
    char path[PATH_MAX];
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        char *end = strstr(e->d_name, ".gguf");
        if (e->d_name[0] == '.' || !join(path, "%s/%s", folder, e->d_name) || !pp_is_adapter(path))
            continue;
        if (end && !end[strlen(".gguf")])
            *end = 0;
        pp_near_try(near, e->d_name);
        if (names->len < ENOUGH)
            pp_buf_fmt(names, "%s%s", names->len ? ", " : "", e->d_name);
    }
    closedir(d);
}

enum pp_code pp_adapter_check(const struct pp_paths *p, const char *model, const char *name, struct pp_error *err)
{
    char folder[PATH_MAX];
    if (access(name, F_OK) == 0)
        return PP_OK;
    struct pp_near near = {.wanted = name};
    struct pp_buf names = {0};
    for (int i = 0; i < PLACES; i++)
        if (place(p, model, i, folder))
            offer(folder, &near, &names);
    if (near.best[0])
        pp_fail(err, PP_ERR_NOT_FOUND, "there is no adapter \"%.100s\"; did you mean \"%.100s\"? By name there are %s",
                name, near.best, pp_buf_cstr(&names));
    else if (names.len)
        pp_fail(err, PP_ERR_NOT_FOUND, "there is no adapter \"%.200s\"; by name there are %s", name,
                pp_buf_cstr(&names));
    else
        pp_fail(err, PP_ERR_NOT_FOUND,
                "there is no adapter \"%.200s\"; give the path of a GGUF file or a folder, or put it into "
                "%.200s/adapters", name, p->data);
    pp_buf_free(&names);
    return PP_ERR_NOT_FOUND;
}
