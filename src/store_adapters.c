/* store_adapters.c - notes on adapters, and presets of adapters. */
#include "engine/base/mem.h"
#include "src/store_internal.h"

enum pp_code pp_store_adapter_put(struct pp_store *st, const char *path, const char *note, bool added,
                                  struct pp_error *err)
{
    static const char what[] = "save the note";
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    code = pp_store_stmt(st, PP_STMT_ADAPTER_PUT, &stmt, err);
    if (code == PP_OK) {
        pp_store_bind_text(stmt, 1, path);
        if (note)
            pp_store_bind_text(stmt, 2, note);
        sqlite3_bind_int(stmt, 3, added);
        code = pp_store_finish(st, stmt, what, err);
    }
    if (code == PP_OK)
        code = pp_store_run(st, PP_STMT_ADAPTER_CLEAN, what, err);
    return pp_store_end(st, code, what, err);
}

struct notes {
    struct pp_adapter_note *list;
    size_t n, cap;
};

static bool take_note(void *user, sqlite3_stmt *row)
{
    struct notes *all = user;
    if (pp_grow(&all->list, &all->cap, all->n + 1, sizeof *all->list) != 0)
        return false;
    struct pp_adapter_note *a = &all->list[all->n++];
    *a = (struct pp_adapter_note){pp_store_column(row, 0, NULL), pp_store_column(row, 1, NULL),
                                  sqlite3_column_int(row, 2) != 0};
    return a->path && a->note;
}

enum pp_code pp_store_adapter_list(struct pp_store *st, struct pp_adapter_note **list, size_t *n, struct pp_error *err)
{
    struct notes all = {NULL};
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(st, PP_STMT_ADAPTER_LIST, &stmt, err);
    if (!code)
        code = pp_store_rows(st, stmt, take_note, &all, "read the notes", "the notes", err);
    if (code) {
        pp_adapter_note_list_free(all.list, all.n);
        all = (struct notes){NULL};
    }
    *list = all.list;
    *n = all.n;
    return code;
}

void pp_adapter_note_list_free(struct pp_adapter_note *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        pp_free(list[i].path);
        pp_free(list[i].note);
    }
    pp_free(list);
}

enum pp_code pp_store_preset_put(struct pp_store *st, const char *name, const char *adapters, struct pp_error *err)
{
    static const char what[] = "save the preset";
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    code = pp_store_stmt(st, adapters ? PP_STMT_PRESET_PUT : PP_STMT_PRESET_REMOVE, &stmt, err);
    if (code == PP_OK) {
        pp_store_bind_text(stmt, 1, name);
        if (adapters)
            pp_store_bind_text(stmt, 2, adapters);
        code = pp_store_finish(st, stmt, what, err);
    }
    return pp_store_end(st, code, what, err);
}

struct presets {
    struct pp_preset *list;
    size_t n, cap;
};

static bool take_preset(void *user, sqlite3_stmt *row)
{
    struct presets *all = user;
    if (pp_grow(&all->list, &all->cap, all->n + 1, sizeof *all->list) != 0)
        return false;
    struct pp_preset *p = &all->list[all->n++];
    *p = (struct pp_preset){pp_store_column(row, 0, NULL), pp_store_column(row, 1, NULL)};
    return p->name && p->adapters;
}

enum pp_code pp_store_preset_list(struct pp_store *st, struct pp_preset **list, size_t *n, struct pp_error *err)
{
    struct presets all = {NULL};
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_stmt(st, PP_STMT_PRESET_LIST, &stmt, err);
    if (!code)
        code = pp_store_rows(st, stmt, take_preset, &all, "read the presets", "the presets", err);
    if (code) {
        pp_preset_list_free(all.list, all.n);
        all = (struct presets){NULL};
    }
    *list = all.list;
    *n = all.n;
    return code;
}

void pp_preset_list_free(struct pp_preset *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        pp_free(list[i].name);
        pp_free(list[i].adapters);
    }
    pp_free(list);
}
