/* cmd_models.c - pippin models list, add, pull, info, tag, untag, rm: manages the registry of models. Files are not
 * moved. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/adapter_file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/memory.h"
#include "engine/base/utf8.h"
#include "engine/fit.h"
#include "src/cmd_common.h"
#include "src/commands.h"
#include "src/figures.h"
#include "src/registry.h"

enum { MAX_DEPTH = 6 };

struct models {
    const struct pp_options *o;
    const struct pp_paths *p;
    struct pp_store *st;
    struct pp_buf out;
    const struct pp_cancel *cancel;
    size_t n_added, n_refused;
};

/* --- list --------------------------------------------------------------------------------------------------- */

static double fact(const cJSON *facts, const char *name)
{
    const cJSON *v = pp_json_member(facts, name);
    return cJSON_IsNumber(v) ? v->valuedouble : 0;
}

static const char *fact_text(const cJSON *facts, const char *name)
{
    const char *s = cJSON_GetStringValue(pp_json_member(facts, name));
    return s ? s : "";
}

static void json_entry(struct pp_buf *b, const struct pp_model_entry *m, const cJSON *facts)
{
    pp_cli_json_next(b);
    pp_buf_char(b, '{');
    pp_cli_json_str(b, "name", m->name);
    pp_cli_json_str(b, "path", m->path);
    pp_cli_json_str(b, "arch", fact_text(facts, "arch"));
    pp_cli_json_str(b, "type", fact_text(facts, "type"));
    pp_cli_json_real(b, "params", fact(facts, "params"), 0);
    if (fact(facts, "active_params") > 0)
        pp_cli_json_real(b, "active_params", fact(facts, "active_params"), 0);
    pp_cli_json_real(b, "layers", fact(facts, "layers"), 0);
    pp_cli_json_real(b, "context", fact(facts, "context"), 0);
    pp_cli_json_int(b, "bytes", m->bytes);
    pp_cli_json_str(b, "tags", m->tags);
    pp_cli_json_str(b, "source", m->source);
    pp_cli_json_str(b, "sha256", m->sha256);
    pp_cli_json_bool(b, "there", access(m->path, F_OK) == 0);
    pp_buf_char(b, '}');
}

static void line_entry(struct pp_buf *b, const struct pp_model_entry *m, const cJSON *facts)
{
    const double params = fact(facts, "params"), active = fact(facts, "active_params");
    const bool small = m->bytes < 100000000, whole = params < 1e9 && (params >= 1e6 || params < 1);
    pp_buf_fmt(b, "%-28s %-8s %6.*f%c %8.*f %s  ", m->name, fact_text(facts, "type"), whole ? 0 : 1,
               params < 1e9 ? params / 1e6 : params / 1e9, params < 1e9 ? 'M' : 'B', small ? 1 : 2,
               (double)m->bytes / (small ? 1e6 : 1e9), small ? "MB" : "GB");
    pp_cli_name(b, m->path);
    if (*m->tags)
        pp_buf_fmt(b, "  [%s]", m->tags);
    if (active > 0)
        pp_buf_fmt(b, "  (%.1f%c active)", active < 1e9 ? active / 1e6 : active / 1e9, active < 1e9 ? 'M' : 'B');
    if (access(m->path, F_OK) != 0)
        pp_buf_str(b, "  (missing)");
    pp_buf_char(b, '\n');
}

static enum pp_code list(struct models *c, struct pp_error *err)
{
    struct pp_model_entry *l;
    size_t n;
    enum pp_code code = pp_cli_args(c->o, 0, 0, "", err);
    if (!code)
        code = pp_store_model_list(c->st, &l, &n, err);
    if (code)
        return code;
    if (c->o->json)
        pp_buf_char(&c->out, '[');
    for (size_t i = 0; i < n; i++) {
        cJSON *facts = cJSON_Parse(l[i].facts);
        (c->o->json ? json_entry : line_entry)(&c->out, &l[i], facts);
        cJSON_Delete(facts);
    }
    if (c->o->json)
        pp_buf_str(&c->out, "]\n");
    else if (!n)
        pp_cli_say("no model is registered; add one with `pippin models add PATH`");
    pp_model_entry_list_free(l, n);
    return PP_OK;
}

/* --- pull --------------------------------------------------------------------------------------------------- */

static enum pp_code pull_model(struct models *c, const char *url, struct pp_error *err)
{
    char *path = NULL, sha256[65];
    struct pp_model_entry e = {0};
    struct stat st;
    enum pp_code code = pp_cmd_models_pull(c->o, c->p, c->st, url, c->cancel, &path, sha256, err);
    if (!code)
        code = pp_registry_entry(path, c->o->name, &e, err);
    if (code == PP_ERR_FORMAT && path && stat(path, &st) == 0 && S_ISREG(st.st_mode))
        pp_fail_advice(err, "move it away first; pippin does not overwrite it");
    if (!code) {
        pp_free(e.source);
        pp_free(e.sha256);
        e.source = pp_strndup(url, strcspn(url, "?#")); /* the query may contain a key */
        e.sha256 = pp_strdup(sha256);
        code = e.source && e.sha256 ? pp_store_model_put(c->st, &e, c->o->name, err) : pp_fail_nomem(err, "the model");
    }
    if (!code)
        pp_cli_say("%s is %s", e.name, e.path);
    pp_model_entry_clear(&e);
    pp_free(path);
    return code;
}

static enum pp_code pull(struct models *c, struct pp_error *err)
{
    const enum pp_code code = pp_cli_args(c->o, 1, 1, "URL", err);
    return code ? code : pull_model(c, c->o->args[0], err);
}

/* --- add ---------------------------------------------------------------------------------------------------- */

static enum pp_code add_model(struct models *c, const char *path, struct pp_error *err)
{
    struct pp_model_entry e;
    enum pp_code code = pp_registry_entry(path, c->o->name, &e, err);
    if (code)
        return code;
    code = pp_store_model_put(c->st, &e, c->o->name, err);
    if (!code) {
        c->n_added++;
        pp_cli_say("%s is %s", e.name, e.path);
    }
    pp_model_entry_clear(&e);
    return code;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Adds all models in a folder and below. Unusable ones are reported and skipped. */
static enum pp_code add_folder(struct models *c, const char *folder, int depth, struct pp_error *err)
{
    struct dirent **names;
    enum pp_code code = PP_OK;
    int n = scandir(folder, &names, visible, by_name);
    if (n < 0)
        return pp_fail(err, PP_ERR_IO, "cannot read the folder %s: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct stat st;
        bool fits = snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name) < (int)sizeof path;
        free(names[i]);
        if (code || !fits || lstat(path, &st) != 0)
            continue;
        if (pp_cancelled(c->cancel)) {
            code = pp_fail(err, PP_ERR_CANCELLED, "interrupted");
        } else if (pp_registry_looks_like(path)) {
            struct pp_error why;
            enum pp_code bad = add_model(c, path, &why);
            if (bad) {
                c->n_refused++;
                const bool named = strstr(why.text, path) != NULL;
                pp_cli_say("left out: %s%s%s", named ? "" : path, named ? "" : ": ", why.text);
            }
        } else if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH) {
            code = add_folder(c, path, depth + 1, err);
        }
    }
    free(names);
    return code;
}

static enum pp_code add_path(struct models *c, const char *path, struct pp_error *err)
{
    struct stat st;
    if (pp_is_model_address(path))
        return pull_model(c, path, err);
    if (stat(path, &st) != 0)
        return pp_fail(err, PP_ERR_NOT_FOUND, "cannot open %s: %s", path, strerror(errno));
    /* an adapter is refused by add_model, with a reason */
    if (!S_ISDIR(st.st_mode) || pp_registry_looks_like(path) || pp_is_adapter(path))
        return add_model(c, path, err);
    if (c->o->name)
        return pp_fail(err, PP_ERR_USAGE, "--name is for one model, but %s contains several; leave --name out", path);
    size_t before = c->n_added;
    enum pp_code code = add_folder(c, path, 0, err);
    if (!code && c->n_added == before)
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s contains no model that pippin can use", path);
    return code;
}

static enum pp_code add(struct models *c, struct pp_error *err)
{
    enum pp_code code = pp_cli_args(c->o, 1, PP_MAX_POSITIONAL, "PATH...", err);
    if (!code && c->o->name && c->o->n_args > 1)
        return pp_fail(err, PP_ERR_USAGE, "--name is for one model, but %d paths were given; leave --name out",
                       c->o->n_args);
    if (!code && c->o->sha256 && !(c->o->n_args == 1 && pp_is_model_address(c->o->args[0])))
        return pp_fail(err, PP_ERR_USAGE, "--sha256 is for one URL; leave --sha256 out");
    for (int i = 0; i < c->o->n_args && !code; i++)
        code = add_path(c, c->o->args[i], err);
    return code;
}

/* --- info --------------------------------------------------------------------------------------------------- */

/* What is printed about a model: its properties, and the memory that it needs with a context of n_ctx tokens. */
struct telling {
    const struct pp_model_info *info;
    const char *path;
    int64_t n_ctx;
    struct pp_memory_need need;
    uint64_t sum, available; /* bytes */
};

static void json_info(struct pp_buf *b, const struct telling *t)
{
    const struct pp_model_info *info = t->info;
    pp_cli_json_next(b);
    pp_buf_char(b, '{');
    pp_cli_json_str(b, "name", info->name);
    pp_cli_json_str(b, "path", t->path);
    pp_cli_json_str(b, "arch", info->arch);
    pp_cli_json_str(b, "type", info->type_name);
    pp_cli_json_int(b, "params", info->n_params);
    if (info->n_expert) {
        pp_cli_json_int(b, "active_params", info->n_params_active);
        pp_cli_json_int(b, "experts", info->n_expert);
        pp_cli_json_int(b, "experts_used", info->n_expert_used);
    }
    pp_cli_json_int(b, "layers", info->n_layer);
    pp_cli_json_int(b, "heads", info->n_head);
    pp_cli_json_int(b, "kv_heads", info->n_head_kv);
    pp_cli_json_int(b, "embedding", info->n_embd);
    pp_cli_json_int(b, "vocabulary", info->n_vocab);
    pp_cli_json_int(b, "context", info->n_ctx_train);
    pp_cli_json_count(b, "weights_bytes", info->bytes);
    pp_cli_json_int(b, "kv_tokens", t->n_ctx);
    pp_cli_json_count(b, "kv_bytes", t->need.kv);
    pp_cli_json_count(b, "weights_memory", t->need.weights);
    pp_cli_json_count(b, "work_bytes", t->need.work);
    pp_cli_json_count(b, "memory_needed", t->sum);
    pp_cli_json_count(b, "memory_free", t->available);
    pp_buf_char(b, '}');
}

static void text_info(struct pp_buf *b, const struct telling *t, enum pp_kv_type kv_type)
{
    const struct pp_model_info *info = t->info;
    pp_cli_name(b, info->name);
    pp_buf_str(b, "\n  ");
    pp_cli_name(b, t->path);
    pp_buf_char(b, '\n');
    pp_buf_fmt(b, "  %s, %s, %s parameters, vocabulary of %lld\n", info->arch, info->type_name,
               pp_parameters(info->n_params).text, (long long)info->n_vocab);
    if (info->n_expert)
        pp_buf_fmt(b, "  %s active per token: %lld of %lld experts in each MoE layer\n",
                   pp_parameters(info->n_params_active).text, (long long)info->n_expert_used,
                   (long long)info->n_expert);
    pp_buf_fmt(b, "  %lld layers, embedding size %lld, %lld heads, %lld KV heads of size %lld, trained for %s tokens\n",
               (long long)info->n_layer, (long long)info->n_embd, (long long)info->n_head, (long long)info->n_head_kv,
               (long long)info->head_dim, pp_count(info->n_ctx_train).text);
    pp_buf_fmt(b,
               "  needs %s for weights, %s for the KV cache of %s tokens in %s, %s with work space; %s free%s\n",
               pp_size(t->need.weights).text, pp_size(t->need.kv).text, pp_count(t->n_ctx).text,
               pp_kv_type_name(kv_type), pp_size(t->sum).text, pp_size(t->available).text,
               t->sum > t->available ? ": not enough" : "");
}

static void print_info(struct models *c, const char *path, const struct pp_model *m)
{
    struct telling t = {.info = pp_model_info(m), .path = path, .available = pp_memory_free()};
    t.n_ctx = c->o->ctx_size ? c->o->ctx_size : pp_model_usual_ctx(m);
    t.need = pp_model_memory(m, c->o->kv_type, t.n_ctx, 0);
    t.sum = pp_memory_sum(&t.need);
    if (c->o->json)
        json_info(&c->out, &t);
    else
        text_info(&c->out, &t, c->o->kv_type);
}

static enum pp_code info_of(struct models *c, const char *name, struct pp_error *err)
{
    char path[4096];
    struct pp_model *m;
    enum pp_code code = pp_resolve_model(c->p, name, path, sizeof path, err);
    if (!code)
        code = pp_model_open(path, &m, err);
    if (code)
        return code;
    print_info(c, path, m);
    pp_model_close(m);
    return PP_OK;
}

/* A name that is not found does not prevent the others from being shown. */
static enum pp_code info(struct models *c, struct pp_error *err)
{
    enum pp_code failed = pp_cli_args(c->o, 1, PP_MAX_POSITIONAL, "NAME...", err);
    if (failed)
        return failed;
    if (c->o->json)
        pp_buf_char(&c->out, '[');
    for (int i = 0; i < c->o->n_args; i++) {
        struct pp_error why;
        const enum pp_code code = info_of(c, c->o->args[i], &why);
        if (!code)
            continue;
        if (failed)
            pp_cli_say("%s", err->text);
        failed = code;
        *err = why;
    }
    if (c->o->json)
        pp_buf_str(&c->out, "]\n");
    return failed;
}

/* --- tag, untag, rm ----------------------------------------------------------------------------------------- */

/* The path under which a model is registered, found by name, tag or path. */
static enum pp_code find(struct models *c, const char *word, char **path, struct pp_error *err)
{
    enum pp_code code = pp_store_model_find(c->st, word, path, err);
    char *real = code == PP_ERR_NOT_FOUND ? pp_registry_path(word) : NULL;
    struct pp_model_entry *l;
    size_t n;
    if (real && pp_store_model_list(c->st, &l, &n, NULL) == PP_OK) {
        for (size_t i = 0; i < n && !*path; i++)
            if (strcmp(l[i].path, real) == 0)
                *path = pp_strdup(real);
        pp_model_entry_list_free(l, n);
    }
    pp_free(real);
    if (*path)
        return PP_OK;
    if (code == PP_ERR_NOT_FOUND) {
        struct pp_near near = {.wanted = word};
        pp_registry_near(c->p, &near);
        if (near.best[0]) {
            struct pp_buf names = {0};
            pp_near_list(&near, "", 0, &names);
            pp_fail(err, code, "no model \"%s\" is registered; did you mean %s?", word, pp_buf_cstr(&names));
            pp_buf_free(&names);
            return code;
        }
        return pp_fail(err, PP_ERR_NOT_FOUND,
                       "no model \"%s\" is registered; `pippin models list` shows the registered ones", word);
    }
    return code;
}

/* Only such names can be typed as they are displayed in lists or JSON. */
static bool is_plain(const char *s)
{
    if (!pp_utf8_valid(s, strlen(s)))
        return false;
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127)
            return false;
    return true;
}

static enum pp_code check_tag(const char *tag, struct pp_error *err)
{
    if (!*tag || strlen(tag) > 64 || strpbrk(tag, " /") || !is_plain(tag) || tag[0] == '.' || tag[0] == '-')
        return pp_fail(err, PP_ERR_USAGE,
                       "\"%s\" is not a valid tag: use 1 to 64 bytes of UTF-8 without spaces, slashes or control "
                       "characters, not starting with a dot or a dash", tag);
    if (!pp_registry_can_find(tag))
        return pp_fail(err, PP_ERR_USAGE, "\"%s\" is the name of the bundled model; give another tag", tag);
    return PP_OK;
}

static enum pp_code tag(struct models *c, struct pp_error *err)
{
    char *path = NULL, *other = NULL;
    enum pp_code code = pp_cli_args(c->o, 2, PP_MAX_POSITIONAL, "NAME TAG...", err);
    if (!code)
        code = find(c, c->o->args[0], &path, err);
    for (int i = 1; i < c->o->n_args && !code; i++)
        code = check_tag(c->o->args[i], err);
    for (int i = 1; i < c->o->n_args && !code; i++) {
        bool moves = pp_store_model_find(c->st, c->o->args[i], &other, NULL) == PP_OK && strcmp(other, path) != 0;
        code = pp_store_tag_put(c->st, c->o->args[i], path, err);
        if (!code && moves)
            pp_cli_say("%s pointed to %s before", c->o->args[i], other);
        pp_free(other);
    }
    pp_free(path);
    return code;
}

/* Whether one of the first n words equals this one. */
static bool said_before(const char *const *words, int n, const char *word)
{
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], word) == 0)
            return true;
    return false;
}

static enum pp_code untag(struct models *c, struct pp_error *err)
{
    enum pp_code code = pp_cli_args(c->o, 1, PP_MAX_POSITIONAL, "TAG...", err);
    for (int i = 0; i < c->o->n_args && !code; i++)
        if (!said_before(c->o->args, i, c->o->args[i]))
            code = pp_store_tag_put(c->st, c->o->args[i], NULL, err);
    return code;
}

/* Finds all models before it removes the first, so that an unknown name changes nothing. A model given by two names
 * is removed once. */
static enum pp_code rm(struct models *c, struct pp_error *err)
{
    char *paths[PP_MAX_POSITIONAL] = {NULL};
    enum pp_code code = pp_cli_args(c->o, 1, PP_MAX_POSITIONAL, "NAME...", err);
    const int n = code ? 0 : c->o->n_args;
    for (int i = 0; i < n && !code; i++)
        code = find(c, c->o->args[i], &paths[i], err);
    for (int i = 0; i < n && !code; i++) {
        if (said_before((const char *const *)paths, i, paths[i]))
            continue;
        code = pp_store_model_remove(c->st, paths[i], err);
        if (!code)
            pp_cli_say("%s is no longer registered; its files were not deleted: %s", c->o->args[i], paths[i]);
    }
    for (int i = 0; i < n; i++)
        pp_free(paths[i]);
    return code;
}

/* --- the command -------------------------------------------------------------------------------------------- */

/* Checks that a name can be shown in lists and menus. */
static enum pp_code check_name(const char *name, struct pp_error *err)
{
    enum { LIMIT = 100 };
    if (name && (!*name || strlen(name) > LIMIT || !is_plain(name)))
        return pp_fail(err, PP_ERR_USAGE, "--name needs 1 to %d bytes on one line, in UTF-8 and without control "
                                          "characters", LIMIT);
    if (name && !pp_registry_can_find(name))
        return pp_fail(err, PP_ERR_USAGE, "a model named \"%s\" could not be found again: %s; give another name", name,
                       strchr("/.", name[0]) ? "the name looks like a path" : "the bundled model has this name");
    return PP_OK;
}

int pp_cmd_models(const struct pp_options *o, const struct pp_paths *p)
{
    static const struct {
        const char *name;
        enum pp_code (*run)(struct models *, struct pp_error *);
        const char *undone; /* what was not done if the database cannot be opened */
        bool only_looks;
    } words[] = {{"list", list, "no model can be listed", true},
                 {"info", info, "no model can be looked up", true},
                 {"add", add, "no model was added", false},
                 {"pull", pull, "nothing was downloaded", false},
                 {"tag", tag, "no tag was set", false},
                 {"untag", untag, "no tag was removed", false},
                 {"rm", rm, "no model was removed", false}};
    enum { WORDS = sizeof words / sizeof *words };
    struct models c = {.o = o, .p = p, .cancel = pp_cli_begin()};
    struct pp_error err = {0};
    const char *word = o->subcommand ? o->subcommand : "list";
    enum pp_code code = check_name(o->name, &err);
    size_t w = 0;
    while (w + 1 < WORDS && strcmp(word, words[w].name) != 0)
        w++;
    if (!code && (words[w].only_looks ? pp_store_open_or_empty : pp_store_open)(p->db, &c.st, &err) != PP_OK)
        code = pp_fail_prefix(&err, "%s", words[w].undone);
    if (!code)
        code = words[w].run(&c, &err);
    if (!code && c.out.bad)
        code = pp_fail_nomem(&err, "the list");
    if (c.out.len && !c.out.bad)
        pp_cli_print(c.out.data, c.out.len);
    pp_buf_free(&c.out);
    pp_store_close(c.st);
    return pp_cli_end(code, &err);
}
