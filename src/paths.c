#include "src/paths.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/whole_io.h"
#include "engine/base/word.h"
#include "engine/source.h"
#include "src/near.h"
#include "src/registry.h"

#ifndef PP_DATADIR
#define PP_DATADIR "/usr/local/share/pippin"
#endif

#define STARTER_FILE "starter-Q4_K_M.gguf"
#define DRAFT_FILE "starter-draft-Q4_0.gguf"

/* Formats a path into out[cap]; false if it does not fit. */
static bool __attribute__((format(printf, 3, 4))) join(char *out, size_t cap, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, cap, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < cap)
        return true;
    out[0] = 0;
    return false;
}

/* The XDG specification says that relative paths must be ignored. */
/* Of the limit of 512 bytes SQLite needs some for the journal's suffix. */
enum { MAX_FOR_SQLITE = 504 };

static enum pp_code too_long(const char *variable, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_USAGE, "the path in %s or HOME is too long; choose a shorter one", variable);
}

static enum pp_code xdg(char out[512], const char *variable, const char *below_home, struct pp_error *err)
{
    const char *base = getenv(variable), *home = getenv("HOME");
    bool fits;
    if (base && base[0] == '/')
        fits = join(out, 512, "%s/pippin", base);
    else if (home && home[0] == '/')
        fits = join(out, 512, "%s/%s/pippin", home, below_home);
    else
        return pp_fail(err, PP_ERR_USAGE, "neither HOME nor %s holds an absolute path; set HOME to your home folder",
                       variable);
    if (!fits)
        return too_long(variable, err);
    return PP_OK;
}

/* Copies folder to out if `inside` (a file in it, or "") exists there. */
static bool take_folder(char out[512], const char *folder, const char *inside)
{
    char probe[PATH_MAX], real[PATH_MAX];
    struct stat st;
    if (!join(probe, sizeof probe, "%s/%s", folder, inside) || stat(probe, &st) != 0)
        return false;
    return realpath(folder, real) && join(out, 512, "%s", real);
}

static void try_bundled(struct pp_paths *p, const char *base, const char *starter, const char *themes)
{
    char folder[PATH_MAX];
    if (!p->starter[0] && join(folder, sizeof folder, "%s/%s", base, starter))
        take_folder(p->starter, folder, STARTER_FILE);
    if (!p->themes[0] && join(folder, sizeof folder, "%s/%s", base, themes))
        take_folder(p->themes, folder, "");
}

/* Looks in a build tree first (or links in a build folder elsewhere), then relative to the binary, where it was
 * installed or moved to, then in the compiled-in folder. */
static void find_bundled(struct pp_paths *p)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    char *slash = strrchr(exe, '/');
    if (slash) {
        *slash = 0;
        try_bundled(p, exe, "../engine/starter", "../themes");
        try_bundled(p, exe, "starter", "themes");
        try_bundled(p, exe, "../share/pippin/starter", "../share/pippin/themes");
    }
    try_bundled(p, PP_DATADIR, "starter", "themes");
}

enum pp_code pp_paths_init(struct pp_paths *p, struct pp_error *err)
{
    enum pp_code code;
    memset(p, 0, sizeof *p);
    if ((code = xdg(p->config, "XDG_CONFIG_HOME", ".config", err)) ||
        (code = xdg(p->data, "XDG_DATA_HOME", ".local/share", err)) ||
        (code = xdg(p->state, "XDG_STATE_HOME", ".local/state", err)) ||
        (code = xdg(p->cache, "XDG_CACHE_HOME", ".cache", err)))
        return code;
    if (!join(p->db, MAX_FOR_SQLITE + 1, "%s/pippin.db", p->data))
        return too_long("XDG_DATA_HOME", err);
    find_bundled(p);
    return PP_OK;
}

static enum pp_code make_one(const char *path, struct pp_error *err)
{
    struct stat st;
    if (mkdir(path, 0700) == 0)
        return PP_OK;
    int saved = errno;
    /* mkdir of an existing folder may fail not only with EEXIST, but also with EROFS or EACCES. */
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return PP_OK;
        return pp_fail(err, PP_ERR_IO, "%s exists and is not a folder; move it away", path);
    }
    return pp_fail(err, PP_ERR_IO, "cannot create the folder %s: %s", path, strerror(saved));
}

enum pp_code pp_make_dirs(const char *path, struct pp_error *err)
{
    char part[PATH_MAX];
    if (!path[0])
        return PP_OK;
    if (!join(part, sizeof part, "%s", path))
        return pp_fail(err, PP_ERR_IO, "the path is too long: %.100s...", path);
    for (char *p = part + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        enum pp_code code = make_one(part, err);
        if (code)
            return code;
        *p = '/';
    }
    return make_one(part, err);
}

enum pp_code pp_make_dirs_of(const char *file, struct pp_error *err)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(file, '/');
    if (!slash || slash == file)
        return PP_OK;
    if (!join(folder, sizeof folder, "%.*s", (int)(slash - file), file))
        return pp_fail(err, PP_ERR_IO, "the path is too long: %.100s...", file);
    return pp_make_dirs(folder, err);
}

/* Appends the file's lines, except those with the same name as `line`: another pippin may have stored something
 * since. */
static void add_others(struct pp_buf *text, const char *path, const char *line)
{
    enum { LIMIT = 4096 }; /* a larger file is not ours */
    const size_t n = strcspn(line, " =");
    char there[512];
    FILE *f = pp_open_regular(path);
    while (f && text->len < LIMIT && fgets(there, sizeof there, f)) {
        const char *after_name = strncmp(there, line, n) == 0 ? there + n : "";
        if (after_name[strspn(after_name, " \t")] == '=')
            continue;
        pp_buf_str(text, there);
        if (!strchr(there, '\n'))
            pp_buf_char(text, '\n');
    }
    if (f)
        fclose(f);
}

enum pp_code pp_save_setting_line(const char *path, const char *line, struct pp_error *err)
{
    struct pp_buf text = {0};
    enum pp_code code = pp_make_dirs_of(path, err); /* the error of the write itself would not say why */
    add_others(&text, path, line);
    pp_buf_str(&text, line);
    if (code == PP_OK && text.bad)
        code = pp_fail_nomem(err, "what is kept");
    if (code == PP_OK)
        code = pp_write_file(path, text.data, text.len, 0600, err);
    pp_buf_free(&text);
    return code == PP_OK ? code : pp_fail_prefix(err, "not saved for the next start");
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* Not a folder without a model in it. */
static bool may_be_meant(const char *folder, const char *name)
{
    char path[PATH_MAX], config[PATH_MAX], file[256];
    if (!join(path, sizeof path, "%s/%s", folder, name) || !pp_is_folder(path))
        return true;
    return (join(config, sizeof config, "%s/config.json", path) && access(config, F_OK) == 0) ||
           pp_folder_holds_gguf(path, file);
}

static void try_entries(struct pp_near *near, const char *folder)
{
    DIR *d = opendir(folder);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            const struct pp_near before = *near;
            if (pp_near_try(near, e->d_name) && !may_be_meant(folder, e->d_name))
                *near = before;
        }
    closedir(d);
}

bool pp_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

const char *pp_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool pp_absolute_path(const char *path, char *out)
{
    char folder[PATH_MAX];
    const char *name = pp_base_name(path);
    const int n = snprintf(folder, sizeof folder, "%.*s", (int)(name - path), path);
    if (!exists(path))
        return false;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || n < 0 || (size_t)n >= sizeof folder)
        return realpath(path, out) != NULL;
    if (!realpath(n ? folder : ".", out))
        return false;
    const size_t len = strlen(out);
    const int more = snprintf(out + len, PATH_MAX - len, "%s%s", len > 1 ? "/" : "", name);
    return more >= 0 && (size_t)more < PATH_MAX - len;
}

const char *pp_path_end(const char *path, const char *other)
{
    const char *end = pp_base_name(path);
    while (end > path && pp_ends_with(other, end) && strcmp(path, other) != 0)
        for (end--; end > path && end[-1] != '/';)
            end--;
    return end;
}

/* Removes shell quotes and backslashes. */
static void unquote(char *s)
{
    const size_t n = strlen(s);
    if (n > 2 && (s[0] == '"' || s[0] == '\'') && s[n - 1] == s[0]) {
        memmove(s, s + 1, n - 2);
        s[n - 2] = 0;
        return;
    }
    char *to = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] && strchr(" '\"()[]{}&;$!`~#*?<>|\\", s[1]))
            s++;
        *to++ = *s;
    }
    *to = 0;
}

bool pp_expand_home(const char *typed, char *out, size_t cap)
{
    char path[PATH_MAX];
    if (strlen(typed) >= sizeof path)
        return false;
    strcpy(path, typed);
    if (access(path, F_OK) != 0)
        unquote(path);
    const char *home = path[0] == '~' && (path[1] == '/' || !path[1]) ? getenv("HOME") : NULL;
    const int n = snprintf(out, cap, "%s%s", home ? home : "", home ? path + 1 : path);
    return n > 0 && (size_t)n < cap;
}

enum pp_code pp_template_path(const struct pp_paths *p, const char *name, char *out, size_t cap, struct pp_error *err)
{
    const bool is_path = strchr(name, '/') != NULL;
    if (is_path ? join(out, cap, "%s", name) : join(out, cap, "%s/templates/%s.jinja", p->config, name))
        return PP_OK;
    return pp_fail(err, PP_ERR_NOT_FOUND, "the name of the chat template is too long");
}

bool pp_is_model_address(const char *name)
{
    static const char *const begins[] = {"hf:", "ollama:", "https://", "http://"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

/* The first n_folder bytes of the name are the folder of all names that are near. */
static enum pp_code fail_near(const struct pp_near *near, const char *name, int n_folder, struct pp_error *err)
{
    struct pp_buf names = {0};
    pp_near_list(near, name, n_folder, &names);
    pp_fail(err, PP_ERR_NOT_FOUND, "there is no model \"%s\"; did you mean %s?", name, pp_buf_cstr(&names));
    pp_buf_free(&names);
    return PP_ERR_NOT_FOUND;
}

/* The error for a model that is not found, with the nearest names in data/models or the folder that is named. An
 * address is not repeated, as it may contain a key. */
static enum pp_code not_found(const struct pp_paths *p, const char *name, struct pp_error *err)
{
    char folder[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(name, '/');
    struct pp_near here = {.wanted = slash ? slash + 1 : name}, stored = {.wanted = here.wanted};
    if (pp_is_model_address(name))
        return pp_fail(err, PP_ERR_NOT_FOUND, "give a model by its path or name, not by a URL; `pippin models pull "
                                              "URL` downloads it and prints its name");
    if (stat(name, &st) != 0 && (errno == ELOOP || errno == EACCES))
        return pp_fail(err, PP_ERR_NOT_FOUND, "cannot open %s: %s", name, strerror(errno));
    if (lstat(name, &st) == 0 && S_ISLNK(st.st_mode))
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s is a broken symbolic link", name);
    if (!slash)
        snprintf(folder, sizeof folder, ".");
    else if (!join(folder, sizeof folder, "%.*s", slash == name ? 1 : (int)(slash - name), name))
        return pp_fail(err, PP_ERR_NOT_FOUND, "the name of the model is too long");
    if (*here.wanted) {
        try_entries(&here, folder);
        if (!slash && join(folder, sizeof folder, "%s/models", p->data))
            try_entries(&stored, folder);
        if (!slash) {
            pp_near_try(&stored, "starter");
            pp_registry_near(p, &stored);
        }
    }
    if (stored.best[0] && (!here.best[0] || stored.distance <= here.distance))
        return fail_near(&stored, name, 0, err);
    if (here.best[0])
        return fail_near(&here, name, slash ? (int)(slash - name + 1) : 0, err);
    return pp_fail(err, PP_ERR_NOT_FOUND,
                   "there is no model \"%s\"; give the path of a GGUF file or a model folder, or put the model into "
                   "%s/models",
                   name, p->data);
}

/* Does not resolve links, since their targets often have meaningless names. */
void pp_model_reference(const char *name, char *out)
{
    char here[PATH_MAX];
    const char *relative_part = strncmp(name, "./", 2) == 0 ? name + 2 : name;
    const bool relative = name[0] && name[0] != '/' && exists(name) && getcwd(here, sizeof here);
    const int n = relative ? snprintf(out, PATH_MAX, "%s/%s", here[1] ? here : "", relative_part) : PATH_MAX;
    if (n >= PATH_MAX)
        snprintf(out, PATH_MAX, "%s", name);
}

/* A repository in the cache of Hugging Face's programs is replaced by the snapshot that its refs/main refers to. */
static bool to_snapshot(const char *name, char *out, size_t cap)
{
    char path[PATH_MAX], hash[65] = "";
    if (!join(path, sizeof path, "%s/refs/main", name))
        return false;
    FILE *f = fopen(path, "re");
    const bool read = f && fgets(hash, sizeof hash, f);
    if (f)
        fclose(f);
    hash[strcspn(hash, "\r\n")] = 0;
    const size_t n = strlen(name), rest = (size_t)snprintf(path, sizeof path, "/snapshots/%s", hash);
    if (!read || !hash[0] || hash[0] == '.' || strchr(hash, '/') || n + rest >= cap)
        return false;
    memcpy(out, name, n);
    memcpy(out + n, path, rest + 1);
    if (pp_registry_looks_like(out))
        return true;
    out[0] = 0;
    return false;
}

enum pp_code pp_resolve_model(const struct pp_paths *p, const char *name, char *out, size_t cap, struct pp_error *err)
{
    if (!name || !*name || strcmp(name, "starter") == 0) {
        if (!p->starter[0])
            return pp_fail(err, PP_ERR_NOT_FOUND,
                           "the bundled starter model is not installed; run `make install`, or give a model with -m");
        return join(out, cap, "%s/" STARTER_FILE, p->starter)
                   ? PP_OK
                   : pp_fail(err, PP_ERR_USAGE, "the path of the starter model is too long");
    }
    if (exists(name) && to_snapshot(name, out, cap))
        return PP_OK;
    if (exists(name))
        return join(out, cap, "%s", name) ? PP_OK : pp_fail(err, PP_ERR_USAGE, "the path of the model is too long");
    if (name[0] != '/' && name[0] != '.') {
        if (join(out, cap, "%s/models/%s", p->data, name) && exists(out))
            return PP_OK;
        if (join(out, cap, "%s/models/%s.gguf", p->data, name) && exists(out))
            return PP_OK;
        if (pp_registry_find(p, name, out, cap))
            return PP_OK;
    }
    if (cap)
        out[0] = 0;
    return not_found(p, name, err);
}

bool pp_bundled_draft(const struct pp_paths *p, const char *model, char *out, size_t cap)
{
    const size_t n = strlen(p->starter);
    const bool bundled = n && strncmp(model, p->starter, n) == 0 && model[n] == '/';
    return bundled && join(out, cap, "%s/" DRAFT_FILE, p->starter) && access(out, R_OK) == 0;
}
