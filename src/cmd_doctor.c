#include "src/cmd_doctor.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/memory.h"
#include "engine/base/topology.h"
#include "engine/base/utf8.h"
#include "engine/bench.h"
#include "engine/engine.h"
#include "engine/text.h"
#include "src/adapter_names.h"
#include "src/cmd_common.h"
#include "src/prompt.h"
#include "src/store.h"

enum { NAME_CELLS = 15 };

struct doctor {
    const struct pp_options *o;
    const struct pp_paths *p;
    struct pp_buf out;
    struct pp_buf problems; /* one per line, or members of a JSON array */
    int n_problems;
};

static void problem(struct doctor *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void problem(struct doctor *d, const char *fmt, ...)
{
    char text[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pp_utf8_line(text, sizeof text);
    d->n_problems++;
    if (d->o->json) {
        pp_cli_json_next(&d->problems);
        pp_cli_json_string(&d->problems, text, strlen(text));
    } else {
        pp_buf_fmt(&d->problems, "! %s\n", text);
    }
}

static void line(struct doctor *d, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void line(struct doctor *d, const char *name, const char *fmt, ...)
{
    char text[2000];
    va_list ap;
    if (d->o->json)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pp_utf8_line(text, sizeof text);
    pp_buf_fmt(&d->out, "%-*s%s\n", NAME_CELLS, name, text);
}

static void open_object(struct doctor *d, const char *name)
{
    if (!d->o->json)
        return;
    if (name)
        pp_cli_json_name(&d->out, name);
    else
        pp_cli_json_next(&d->out);
    pp_buf_char(&d->out, '{');
}

static void close_object(struct doctor *d)
{
    if (d->o->json)
        pp_buf_char(&d->out, '}');
}

static void member(struct doctor *d, const char *name, const char *value)
{
    if (d->o->json)
        pp_cli_json_str(&d->out, name, value);
}

static void number(struct doctor *d, const char *name, int64_t value)
{
    if (d->o->json)
        pp_cli_json_int(&d->out, name, value);
}

static void flag(struct doctor *d, const char *name, bool value)
{
    if (d->o->json)
        pp_cli_json_bool(&d->out, name, value);
}

static void words(struct doctor *d, const char *name, const char *list)
{
    if (!d->o->json)
        return;
    pp_cli_json_name(&d->out, name);
    pp_buf_char(&d->out, '[');
    for (size_t n; *list; list += n + (list[n] == ' ')) {
        n = strcspn(list, " ");
        pp_cli_json_next(&d->out);
        pp_cli_json_string(&d->out, list, n);
    }
    pp_buf_char(&d->out, ']');
}

/* --- the machine -------------------------------------------------------------------------------------------- */

/* The value of the first line "name : value" in /proc/cpuinfo. */
static bool cpu_info(const char *name, char *out, size_t cap)
{
    char text[8192];
    const size_t n = strlen(name);
    bool found = false;
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && !found && fgets(text, sizeof text, f)) {
        if (strncmp(text, name, n) != 0)
            continue; /* a line that does not match may even be shorter */
        const char *rest = text + n + strspn(text + n, " \t");
        found = *rest == ':';
        if (found)
            snprintf(out, cap, "%.*s", (int)strcspn(rest + 1, "\n"), rest + 1);
    }
    if (f)
        fclose(f);
    return found;
}

/* The processor's features for which there are kernels. */
static void find_features(char *out, size_t cap)
{
    static const char known[] =
        " avx avx2 fma f16c avx_vnni avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16 amx_tile "
        "amx_int8 amx_bf16 asimd asimdhp asimddp i8mm bf16 sve ";
    char all[8192], padded[40];
    size_t n = 0;
    out[0] = 0;
    if (!cpu_info("flags", all, sizeof all) && !cpu_info("Features", all, sizeof all))
        return;
    for (char *rest, *w = strtok_r(all, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
        snprintf(padded, sizeof padded, " %.30s ", w);
        if (strstr(known, padded) && n + strlen(w) + 2 < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? " " : "", w);
    }
}

static void processor(struct doctor *d)
{
    char name[200] = "", features[400], sets[200] = "";
    struct pp_topology t;
    const char *best = "scalar";
    pp_topology_read(NULL, NULL, &t);
    if (!cpu_info("model name", name, sizeof name) && !cpu_info("Model", name, sizeof name))
        snprintf(name, sizeof name, " unknown");
    find_features(features, sizeof features);
    for (size_t i = 0; pp_micro_kernels(i); i++) {
        best = pp_micro_kernels(i);
        snprintf(sets + strlen(sets), sizeof sets - strlen(sets), "%s%s", i ? " " : "", best);
    }
    const char *chosen = d->o->kernels ? d->o->kernels : best;
    line(d, "processor", "%s, %d thread%s%s", name + 1, t.n_at_once, t.n_at_once == 1 ? "" : "s",
         t.n_nodes > 1 ? ", several memory nodes" : "");
    line(d, "features", "%s", *features ? features : "none that pippin has kernels for");
    line(d, "kernels", "%s (available: %s)", chosen, sets);
    open_object(d, "processor");
    member(d, "name", name + 1);
    number(d, "threads", t.n_at_once);
    number(d, "nodes", t.n_nodes);
    words(d, "features", features);
    words(d, "kernels", sets);
    member(d, "chosen", chosen);
    close_object(d);
    if (strcmp(best, "scalar") == 0)
        problem(d, "pippin has no fast kernels for this processor: models run, but very slowly");
}

static void memory(struct doctor *d)
{
    const double total = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const uint64_t available = pp_memory_free(), room = pp_memory_room();
    char limit[64] = "";
    if (room != UINT64_MAX)
        snprintf(limit, sizeof limit, ", %.1f GB by ulimit -v", (double)room / 1e9);
    line(d, "memory", "%.1f GB, %.1f GB free%s", total / 1e9, (double)available / 1e9, limit);
    open_object(d, "memory");
    number(d, "total_bytes", (int64_t)total);
    number(d, "free_bytes", (int64_t)available);
    close_object(d);
    if (available < 512000000u)
        problem(d, "only %.0f MB of memory are free, enough for very small models only; close other programs",
                (double)available / 1e6);
}

static unsigned read_hex(const char *device, const char *what)
{
    char path[600], text[32] = "";
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.200s/%s", device, what);
    FILE *f = fopen(path, "re");
    if (f && !fgets(text, sizeof text, f))
        text[0] = 0;
    if (f)
        fclose(f);
    return (unsigned)strtoul(text, NULL, 16);
}

/* Lists display controllers and processing accelerators on the PCI bus. */
static void gpus(struct doctor *d)
{
    static const struct {
        unsigned id;
        const char *name;
    } makers[] = {{0x10de, "NVIDIA"}, {0x1002, "AMD"}, {0x8086, "Intel"}};
    char found[400] = "";
    DIR *bus = opendir("/sys/bus/pci/devices");
    for (struct dirent *e; bus && (e = readdir(bus));) {
        if (e->d_name[0] == '.' || read_hex(e->d_name, "class") >> 16 != 3)
            continue;
        const unsigned vendor = read_hex(e->d_name, "vendor"), device = read_hex(e->d_name, "device");
        const char *maker = "other";
        for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
            maker = makers[i].id == vendor ? makers[i].name : maker;
        const size_t n = strlen(found);
        snprintf(found + n, sizeof found - n, "%s%s-%04x:%04x", n ? " " : "", maker, vendor, device);
    }
    if (bus)
        closedir(bus);
    line(d, "gpu", *found ? "%s; not used: this version runs on the CPU" : "none%s", found);
    words(d, "gpus", found);
}

/* --- files -------------------------------------------------------------------------------------------------- */

/* The folder itself or, if it does not exist, the nearest existing one above it. */
static void nearest(const char *path, char out[600])
{
    struct stat st;
    snprintf(out, 600, "%s", path);
    for (char *slash; stat(out, &st) != 0 && (slash = strrchr(out, '/')) && out[1];)
        slash[slash == out] = 0;
}

static void folder(struct doctor *d, const char *what, const char *path, const char *without)
{
    char at[600];
    struct stat st;
    struct statvfs v;
    nearest(path, at);
    const bool there = strcmp(at, path) == 0, in_the_way = stat(at, &st) == 0 && !S_ISDIR(st.st_mode);
    const bool writable = !in_the_way && access(at, W_OK | X_OK) == 0;
    const double room = statvfs(at, &v) == 0 ? (double)v.f_bavail * (double)v.f_frsize : 0;
    line(d, what, "%s: %s, %.1f GB free on that disk", path,
         !writable ? "not writable" : there ? "there" : "will be created", room / 1e9);
    open_object(d, NULL);
    member(d, "what", what);
    member(d, "path", path);
    flag(d, "there", there);
    flag(d, "writable", writable);
    number(d, "free_bytes", (int64_t)room);
    close_object(d);
    if (!without)
        return;
    if (in_the_way)
        problem(d, "%s is not a folder: %s; move it away", at, without);
    else if (!writable)
        problem(d, "%s is not writable: %s", path, without);
    else if (room < 100e6)
        problem(d, "the disk of %s is nearly full: %s", path, without);
    if (there && (st.st_mode & 077) != 0)
        problem(d, "other users can read %s; `chmod 700 %s` prevents it", path, path);
}

static void folders(struct doctor *d)
{
    if (d->o->json) {
        pp_cli_json_name(&d->out, "folders");
        pp_buf_char(&d->out, '[');
    }
    folder(d, "settings", d->p->config, NULL);
    folder(d, "conversations", d->p->data, "conversations are not saved and models cannot be registered");
    folder(d, "input history", d->p->state, "input history is not saved");
    folder(d, "cache", d->p->cache, "KV caches are not saved, and weights are repacked at every start");
    if (d->o->json)
        pp_buf_char(&d->out, ']');
}

static bool named_model(struct doctor *d, const char *option, const char *name)
{
    char path[PATH_MAX];
    struct pp_model *m = NULL;
    struct pp_error err;
    enum pp_code code = pp_resolve_model(d->p, name, path, sizeof path, &err);
    if (!code)
        code = pp_model_open(path, &m, &err);
    if (code)
        problem(d, "%s of pippin.conf or the environment: %s", option, err.text);
    pp_model_close(m);
    return !code;
}

static void named_adapters(struct doctor *d, const char *option, const char *model, const struct pp_lora_option *list,
                           int n)
{
    struct pp_error err;
    for (int i = 0; i < n; i++)
        if (pp_adapter_check(d->p, model, list[i].path, &err) != PP_OK)
            problem(d, "%s of pippin.conf: %s", option, err.text);
}

static void named_template(struct doctor *d, const char *path)
{
    enum { LARGEST = 1 << 20 }; /* the same limit as in the chat */
    struct pp_template *t = NULL;
    struct pp_error err;
    char *source = NULL;
    size_t n = 0;
    enum pp_code code = pp_read_file(path, LARGEST, &source, &n, &err);
    if (!code)
        code = pp_template_parse(source, n, path, &t, &err);
    if (!code)
        code = pp_template_check(t, path, &err);
    if (code)
        problem(d, "chat-template-file of pippin.conf: %s", err.text);
    pp_template_free(t);
    pp_free(source);
}

/* Parses the options of the chat, as those of doctor are only a few, and would ignore errors in the rest of the
 * configuration. */
static void configuration(struct doctor *d)
{
    char program[] = "pippin", chat[] = "chat", *words[] = {program, chat, NULL};
    struct pp_options *o = pp_calloc(1, sizeof *o);
    struct pp_error err;
    if (o && pp_options_parse(2, words, d->p, o, &err) != PP_OK) {
        problem(d, "%s", err.text);
    } else if (o) {
        if (!o->model[0] || named_model(d, "model", o->model)) /* adapters are searched in the model's folder */
            named_adapters(d, "lora", o->model, o->lora, o->n_lora);
        if (!o->draft || named_model(d, "model-draft", o->draft))
            named_adapters(d, "draft-lora", o->draft, o->draft_lora, o->n_draft_lora);
        if (o->chat_template_file)
            named_template(d, o->chat_template_file);
    }
    pp_free(o);
}

static void models(struct doctor *d, struct pp_store *st)
{
    struct pp_model_entry *list;
    struct pp_error err;
    size_t n, gone = 0;
    if (pp_store_model_list(st, &list, &n, &err) != PP_OK) {
        problem(d, "%s: %s", d->p->db, err.text);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (access(list[i].path, R_OK) != 0) {
            gone++;
            problem(d, "the model \"%s\" is missing from %s; register it again with `pippin models add`, or remove it "
                       "with `pippin models rm %s`",
                    list[i].name, list[i].path, list[i].name);
        }
    line(d, "models", "%zu registered, %zu found", n, n - gone);
    number(d, "models", (int64_t)n);
    number(d, "models_gone", (int64_t)gone);
    pp_model_entry_list_free(list, n);
}

/* Opens the database read-only, which works while other programs use it, and never creates or changes it. */
static void database(struct doctor *d)
{
    struct pp_store *st = NULL;
    struct pp_error err = {0};
    struct stat file;
    int64_t n = 0;
    open_object(d, "database");
    member(d, "path", d->p->db);
    if (stat(d->p->db, &file) != 0) {
        line(d, "database", "%s: does not exist yet", d->p->db);
        flag(d, "there", false);
    } else if (file.st_size == 0) { /* left by a full disk when it was to be created; the next start does that */
        line(d, "database", "%s: empty", d->p->db);
        flag(d, "there", true);
        number(d, "conversations", 0);
        number(d, "bytes", 0);
    } else if (pp_store_open_to_read(d->p->db, &st, &err) != PP_OK ||
               pp_store_check(st, d->p->db, &err) != PP_OK || pp_store_session_count(st, &n, &err) != PP_OK) {
        line(d, "database", "%s: cannot be used", d->p->db);
        flag(d, "there", true);
        if (!strstr(err.text, d->p->db))
            pp_fail_prefix(&err, "%s", d->p->db);
        problem(d, "%s", err.text);
    } else {
        line(d, "database", "%s: %lld conversation%s, %.1f MB", d->p->db, (long long)n, n == 1 ? "" : "s",
             (double)file.st_size / 1e6);
        flag(d, "there", true);
        number(d, "conversations", n);
        number(d, "bytes", file.st_size);
        models(d, st);
        if (access(d->p->data, W_OK) == 0 && access(d->p->db, W_OK) != 0) /* a read-only folder was reported already */
            problem(d, "%s is not writable: conversations are not saved and models cannot be registered; check its "
                    "permissions", d->p->db);
    }
    pp_store_close(st);
    close_object(d);
}

static void starter(struct doctor *d)
{
    line(d, "starter", "%s", d->p->starter[0] ? d->p->starter : "not installed");
    member(d, "starter", d->p->starter);
    if (!d->p->starter[0])
        problem(d, "the starter, the default model, is not installed; give a model with -m");
}

/* --- the terminal ------------------------------------------------------------------------------------------- */

static void terminal(struct doctor *d, const struct pp_terminal_facts *t)
{
    const bool utf8 = strcmp(t->charset, "UTF-8") == 0;
    if (t->is_terminal)
        line(d, "terminal", "%s, %d x %d, %d colours, %s", *t->name ? t->name : "without a name (TERM)", t->cols,
             t->rows, t->colors, t->charset);
    else
        line(d, "terminal", "none: input or output is a file or a pipe (TERM is \"%s\", %s)", t->name, t->charset);
    open_object(d, "terminal");
    member(d, "name", t->name);
    member(d, "charset", t->charset);
    flag(d, "is_terminal", t->is_terminal);
    number(d, "colors", t->colors);
    number(d, "rows", t->rows);
    number(d, "cols", t->cols);
    close_object(d);
    if (t->is_terminal && !t->known)
        problem(d, "the terminal \"%s\" is unknown: set TERM, install its terminfo entry (Debian: ncurses-term), or "
                   "use --plain", t->name);
    else if (t->is_terminal && !t->moves_cursor)
        problem(d, "the terminal \"%s\" cannot move its cursor: use --plain", t->name);
    if (t->is_terminal && !utf8)
        problem(d, "the locale is not UTF-8 but %s: letters may look wrong; try LANG=C.UTF-8", t->charset);
}

int pp_cmd_doctor(const struct pp_options *o, const struct pp_paths *p, const struct pp_terminal_facts *facts)
{
    struct doctor d = {.o = o, .p = p};
    struct pp_error err = {0};
    pp_cli_begin();
    if (o->json)
        pp_buf_char(&d.out, '{');
    line(&d, "pippin", "%s", PP_VERSION);
    member(&d, "version", PP_VERSION);
    processor(&d);
    memory(&d);
    gpus(&d);
    starter(&d);
    configuration(&d);
    folders(&d);
    database(&d);
    terminal(&d, facts);
    if (o->json)
        pp_buf_fmt(&d.out, ", \"problems\": [%s]}\n", pp_buf_cstr(&d.problems));
    else if (d.n_problems)
        pp_buf_fmt(&d.out, "\n%s", pp_buf_cstr(&d.problems));
    else
        pp_buf_str(&d.out, "\nno problems found\n");
    enum pp_code code = d.out.bad || d.problems.bad ? pp_fail_nomem(&err, "the report") : PP_OK;
    if (!code)
        pp_cli_print(d.out.data, d.out.len);
    const bool bad = d.n_problems > 0;
    pp_buf_free(&d.out);
    pp_buf_free(&d.problems);
    const int exit_code = pp_cli_end(code, &err);
    return exit_code ? exit_code : bad;
}
