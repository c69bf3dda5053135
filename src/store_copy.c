/* store_copy.c - a database that is not ours to change, such as a backup: read from a copy. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "src/store_internal.h"

bool pp_store_is_database(const char *path)
{
    static const char magic[16] = "SQLite format 3";
    char head[16] = "";
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) /* a pipe would be waited for, and what is read of it be lost */
        return false;
    FILE *f = fopen(path, "rbe");
    const bool is = f && fread(head, 1, sizeof head, f) == sizeof head && memcmp(head, magic, sizeof head) == 0;
    if (f)
        fclose(f);
    return is;
}

static char *uri_of(const char *path, const char *how)
{
    struct pp_buf b = {0};
    pp_buf_str(&b, "file:");
    for (const char *p = path; *p; p++)
        if (strchr("%?#", *p))
            pp_buf_fmt(&b, "%%%02X", (unsigned)*p);
        else
            pp_buf_char(&b, *p);
    pp_buf_fmt(&b, "?%s", how);
    char *uri = b.bad ? NULL : pp_buf_take(&b);
    pp_buf_free(&b);
    return uri;
}

/* A file with a journal beside it, in a folder that cannot be written to, opens as a file that nobody writes to. */
static int open_source(const char *path, sqlite3 **db)
{
    static const char *const how[] = {"mode=ro", "immutable=1"};
    int rc = SQLITE_ERROR;
    for (int i = 0; i < 2 && rc != SQLITE_OK; i++) {
        char *uri = uri_of(path, how[i]);
        sqlite3_close(*db);
        *db = NULL;
        rc = uri ? sqlite3_open_v2(uri, db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL) : SQLITE_NOMEM;
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(*db, "SELECT count(*) FROM sqlite_schema", NULL, NULL, NULL);
        pp_free(uri);
    }
    return rc;
}

static int copy_all(sqlite3 *to, sqlite3 *from, const struct pp_cancel *cancel)
{
    enum { PAGES = 4096 };
    sqlite3_backup *b = sqlite3_backup_init(to, "main", from, "main");
    int rc = b ? SQLITE_OK : sqlite3_errcode(to);
    while (rc == SQLITE_OK)
        rc = pp_cancelled(cancel) ? SQLITE_INTERRUPT : sqlite3_backup_step(b, PAGES);
    sqlite3_backup_finish(b);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

enum pp_code pp_store_open_copy(const char *path, const struct pp_cancel *cancel, struct pp_store **out,
                                struct pp_error *err)
{
    struct pp_store *st = pp_calloc(1, sizeof *st);
    sqlite3 *source = NULL;
    *out = NULL;
    if (!st)
        return pp_fail_nomem(err, "the conversations");
    int rc = open_source(path, &source);
    if (rc == SQLITE_OK)
        rc = sqlite3_open_v2("", &st->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL); /* goes with its closing */
    if (rc == SQLITE_OK)
        rc = copy_all(st->db, source, cancel);
    sqlite3_close(source);
    if (rc == SQLITE_OK)
        rc = sqlite3_db_config(st->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL); /* who knows who wrote it */
    if (rc == SQLITE_OK)
        rc = pp_store_prepare_lists(st);
    enum pp_code code = rc == SQLITE_OK ? PP_OK : pp_store_fail(st, rc, "read the conversations", err);
    if (code)
        pp_fail_prefix(err, "%s", path);
    if (!code && !pp_store_is_ours(st))
        code = pp_fail(err, PP_ERR_FORMAT, "%s is the database of another program", path);
    if (!code)
        code = pp_store_prepare_schema(st, path, err);
    if (code)
        pp_store_close(st);
    else
        *out = st;
    return code;
}
