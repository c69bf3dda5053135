/* store_models.c - the registry of models, and their tags. */
#include <string.h>

#include "engine/base/mem.h"
#include "src/store_internal.h"

/* If the model at m->path has a name already, it replaces m->name. */
static enum pp_code keep_name(struct pp_store *st, struct pp_model_entry *m, const char *what, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(st, PP_STMT_MODEL_NAME, &stmt, err);
    if (code)
        return code;
    pp_store_bind_text(stmt, 1, m->path);
    const int rc = sqlite3_step(stmt);
    char *name = rc == SQLITE_ROW ? pp_store_column(stmt, 0, NULL) : NULL;
    if (rc == SQLITE_ROW && !name)
        code = pp_fail_nomem(err, "the model");
    else if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, what, err);
    pp_store_done(stmt);
    if (name) {
        pp_free(m->name);
        m->name = name;
    }
    return code;
}

static const char note[] = "note the model";

enum pp_code pp_store_model_name(struct pp_store *st, struct pp_model_entry *m, bool rename, struct pp_error *err)
{
    char *there = NULL;
    enum pp_code code = rename ? PP_OK : keep_name(st, m, note, err);
    if (!code)
        code = pp_store_model_find(st, m->name, &there, err);
    if (code == PP_OK && there && strcmp(there, m->path) != 0)
        code = pp_fail(err, PP_ERR_USAGE, "\"%s\" is already the name of %s; give another name with --name", m->name,
                       there);
    else if (code == PP_ERR_NOT_FOUND)
        code = PP_OK;
    pp_free(there);
    return code;
}

enum pp_code pp_store_model_put(struct pp_store *st, struct pp_model_entry *m, bool rename, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_begin(st, note, err);
    if (code)
        return code;
    code = pp_store_model_name(st, m, rename, err);
    if (!code)
        code = pp_store_stmt(st, PP_STMT_MODEL_PUT, &stmt, err);
    if (!code) {
        pp_store_bind_text(stmt, 1, m->path);
        pp_store_bind_text(stmt, 2, m->name);
        pp_store_bind_text(stmt, 3, m->source ? m->source : "");
        pp_store_bind_text(stmt, 4, m->sha256 ? m->sha256 : "");
        sqlite3_bind_int64(stmt, 5, m->bytes);
        pp_store_bind_text(stmt, 6, m->facts ? m->facts : "{}");
        sqlite3_bind_int64(stmt, 7, pp_store_now_ms());
        code = pp_store_finish(st, stmt, note, err);
    }
    return pp_store_end(st, code, note, err);
}

/* Runs a statement with one or two texts in its own transaction. *n: the number of rows changed. */
static enum pp_code change(struct pp_store *st, enum pp_stmt which, const char *first, const char *second,
                           const char *what, int *n, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_begin(st, what, err);
    *n = 0;
    if (code)
        return code;
    code = pp_store_stmt(st, which, &stmt, err);
    if (!code) {
        pp_store_bind_text(stmt, 1, first);
        if (second)
            pp_store_bind_text(stmt, 2, second);
        code = pp_store_finish(st, stmt, what, err);
        *n = sqlite3_changes(st->db);
    }
    return pp_store_end(st, code, what, err);
}

enum pp_code pp_store_model_remove(struct pp_store *st, const char *path, struct pp_error *err)
{
    int n;
    return change(st, PP_STMT_MODEL_REMOVE, path, NULL, "remove the model", &n, err);
}

enum pp_code pp_store_tag_put(struct pp_store *st, const char *tag, const char *path, struct pp_error *err)
{
    int n;
    enum pp_code code = change(st, path ? PP_STMT_TAG_PUT : PP_STMT_TAG_REMOVE, tag, path, "save the tag", &n, err);
    if (code || n)
        return code;
    return path ? pp_fail(err, PP_ERR_USAGE, "\"%s\" is already the name of a model; give another tag", tag)
                : pp_fail(err, PP_ERR_NOT_FOUND, "no model has the tag \"%s\"", tag);
}

enum pp_code pp_store_model_find(struct pp_store *st, const char *word, char **path, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    *path = NULL;
    enum pp_code code = pp_store_stmt(st, PP_STMT_MODEL_FIND, &stmt, err);
    if (code)
        return code;
    pp_store_bind_text(stmt, 1, word);
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        *path = pp_store_column(stmt, 0, NULL);
    code = rc == SQLITE_ROW    ? *path ? PP_OK : pp_fail_nomem(err, "the model")
           : rc == SQLITE_DONE ? pp_fail(err, PP_ERR_NOT_FOUND, "there is no model \"%s\"", word)
                               : pp_store_fail(st, rc, "find the model", err);
    pp_store_done(stmt);
    return code;
}

struct models {
    struct pp_model_entry *list;
    size_t n, cap;
};

static bool take_model(void *user, sqlite3_stmt *row)
{
    struct models *all = user;
    if (pp_grow(&all->list, &all->cap, all->n + 1, sizeof *all->list) != 0)
        return false;
    struct pp_model_entry *m = &all->list[all->n++];
    char **const texts[] = {&m->path, &m->name, &m->source, &m->sha256, &m->facts, &m->tags};
    bool whole = true;
    *m = (struct pp_model_entry){.bytes = sqlite3_column_int64(row, 6)};
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++)
        whole = (*texts[i] = pp_store_column(row, i, NULL)) && whole;
    return whole;
}

enum pp_code pp_store_model_list(struct pp_store *st, struct pp_model_entry **list, size_t *n, struct pp_error *err)
{
    struct models all = {NULL};
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(st, PP_STMT_MODEL_LIST, &stmt, err);
    if (!code)
        code = pp_store_rows(st, stmt, take_model, &all, "list the models", "the list of models", err);
    if (code) {
        pp_model_entry_list_free(all.list, all.n);
        all = (struct models){NULL};
    }
    *list = all.list;
    *n = all.n;
    return code;
}

void pp_model_entry_clear(struct pp_model_entry *m)
{
    pp_free(m->path);
    pp_free(m->name);
    pp_free(m->source);
    pp_free(m->sha256);
    pp_free(m->facts);
    pp_free(m->tags);
    *m = (struct pp_model_entry){0};
}

void pp_model_entry_list_free(struct pp_model_entry *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pp_model_entry_clear(&list[i]);
    pp_free(list);
}
