/* store_adapters.c - notes on adapters, and presets. */
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

enum pp_code pp_store_adapter_list(struct pp_store *st, struct pp_adapter_note **list, size_t *n, struct pp_error *err)
{
    struct pp_adapter_note *l = NULL;
    size_t cap = 0;
    sqlite3_stmt *stmt;
    int rc = SQLITE_ROW;
    *list = NULL;
    *n = 0;
    enum pp_code code = pp_store_stmt(st, PP_STMT_ADAPTER_LIST, &stmt, err);
    if (code)
        return code;
    while (code == PP_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        if (pp_grow(&l, &cap, *n + 1, sizeof *l) != 0) {
            code = pp_fail_nomem(err, "the notes");
            break;
        }
        struct pp_adapter_note *a = &l[(*n)++];
        *a = (struct pp_adapter_note){pp_store_column(stmt, 0, NULL), pp_store_column(stmt, 1, NULL),
                                      sqlite3_column_int(stmt, 2) != 0};
        if (!a->path || !a->note)
            code = pp_fail_nomem(err, "the notes");
    }
    if (code == PP_OK && rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, "read the notes", err);
    pp_store_done(stmt);
    if (code == PP_OK) {
        *list = l;
    } else {
        pp_adapter_note_list_free(l, *n);
        *n = 0;
    }
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

enum pp_code pp_store_preset_list(struct pp_store *st, struct pp_preset **list, size_t *n, struct pp_error *err)
{
    struct pp_preset *l = NULL;
    size_t cap = 0;
    sqlite3_stmt *stmt;
    int rc = SQLITE_ROW;
    *list = NULL;
    *n = 0;
    enum pp_code code = pp_store_stmt(st, PP_STMT_PRESET_LIST, &stmt, err);
    if (code)
        return code;
    while (code == PP_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW) {
        if (pp_grow(&l, &cap, *n + 1, sizeof *l) != 0) {
            code = pp_fail_nomem(err, "the presets");
            break;
        }
        struct pp_preset *p = &l[(*n)++];
        *p = (struct pp_preset){pp_store_column(stmt, 0, NULL), pp_store_column(stmt, 1, NULL)};
        if (!p->name || !p->adapters)
            code = pp_fail_nomem(err, "the presets");
    }
    if (code == PP_OK && rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, "read the presets", err);
    pp_store_done(stmt);
    if (code == PP_OK) {
        *list = l;
    } else {
        pp_preset_list_free(l, *n);
        *n = 0;
    }
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
