/* store_copy.c - reads a database that must not be changed, such as a backup, from a temporary copy. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/base/whole_io.h"
#include "src/store_internal.h"

bool pp_store_is_database(const char *path)
{
    static const char magic[16] = "SQLite format 3";
    char head[16] = "";
    struct stat st;
    /* a pipe is not opened, as its writer would lose data */
    FILE *f = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? pp_open_regular(path) : NULL;
    const bool is = f && fread(head, 1, sizeof head, f) == sizeof head && memcmp(head, magic, sizeof head) == 0;
    if (f)
        fclose(f);
    return is;
}

/* A file with a journal in a read-only folder can only be opened as immutable. */
static int open_source(const char *path, sqlite3 **db)
{
    static const char *const how[] = {"mode=ro", "immutable=1"};
    int rc = SQLITE_ERROR;
    for (int i = 0; i < 2 && rc != SQLITE_OK; i++) {
        sqlite3_close(*db);
        rc = pp_store_open_how(path, how[i], db);
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(*db, "SELECT count(*) FROM sqlite_schema", NULL, NULL, NULL);
    }
    return rc;
}

struct pp_store_copy {
    struct pp_store *to;
    sqlite3 *from;
    sqlite3_backup *under_way; /* NULL: the copy is complete */
    char *path;
};

static enum pp_code copy_failed(const struct pp_store_copy *c, int rc, struct pp_error *err)
{
    pp_store_fail(c->to, rc, "read the conversations", err);
    return pp_fail_prefix(err, "%s", c->path);
}

static void stop_copy(struct pp_store_copy *c)
{
    if (c->under_way)
        sqlite3_backup_finish(c->under_way);
    sqlite3_close(c->from);
    c->under_way = NULL;
    c->from = NULL;
}

void pp_store_copy_free(struct pp_store_copy *c)
{
    if (!c)
        return;
    stop_copy(c);
    pp_store_close(c->to);
    pp_free(c->path);
    pp_free(c);
}

enum pp_code pp_store_copy_begin(const char *path, struct pp_store_copy **out, struct pp_error *err)
{
    struct pp_store_copy *c = pp_calloc(1, sizeof *c);
    *out = NULL;
    if (!c || !(c->to = pp_calloc(1, sizeof *c->to)) || !(c->path = pp_strdup(path))) {
        pp_store_copy_free(c);
        return pp_fail_nomem(err, "the conversations");
    }
    int rc = open_source(path, &c->from);
    if (rc == SQLITE_OK) /* a temporary database that is deleted when it is closed */
        rc = sqlite3_open_v2("", &c->to->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    if (rc == SQLITE_OK && !(c->under_way = sqlite3_backup_init(c->to->db, "main", c->from, "main")))
        rc = sqlite3_errcode(c->to->db);
    if (rc != SQLITE_OK) {
        const enum pp_code code = copy_failed(c, rc, err);
        pp_store_copy_free(c);
        return code;
    }
    *out = c;
    return PP_OK;
}

enum pp_code pp_store_copy_more(struct pp_store_copy *c, bool *done, struct pp_error *err)
{
    enum { PAGES = 4096 };
    const int rc = sqlite3_backup_step(c->under_way, PAGES);
    *done = rc == SQLITE_DONE;
    return rc == SQLITE_OK || rc == SQLITE_DONE ? PP_OK : copy_failed(c, rc, err);
}

enum pp_code pp_store_copy_end(struct pp_store_copy *c, struct pp_store **out, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    struct pp_store *st = c->to;
    *out = NULL;
    stop_copy(c);
    /* the file is from an unknown source */
    int rc = sqlite3_db_config(st->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    if (rc == SQLITE_OK)
        rc = pp_store_prepare_lists(st);
    if (rc != SQLITE_OK)
        code = copy_failed(c, rc, err);
    if (!code && !pp_store_is_ours(st))
        code = pp_fail(err, PP_ERR_FORMAT, "%s is the database of another program", c->path);
    if (!code)
        code = pp_store_prepare_schema(st, c->path, err);
    if (!code) {
        *out = st;
        c->to = NULL;
    }
    pp_store_copy_free(c);
    return code;
}

enum pp_code pp_store_open_copy(const char *path, const struct pp_cancel *cancel, struct pp_store **out,
                                struct pp_error *err)
{
    struct pp_store_copy *c;
    bool done = false;
    *out = NULL;
    enum pp_code code = pp_store_copy_begin(path, &c, err);
    if (code)
        return code;
    while (!code && !done)
        code = pp_cancelled(cancel) ? copy_failed(c, SQLITE_INTERRUPT, err) : pp_store_copy_more(c, &done, err);
    if (!code)
        return pp_store_copy_end(c, out, err);
    pp_store_copy_free(c);
    return code;
}
