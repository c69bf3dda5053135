#include "src/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "src/paths.h"
#include "src/store_internal.h"

#define SESSION_COLUMNS                                                                                         \
    "SELECT s.id, s.key, s.title, s.model, s.template_name, s.system, s.adapters, s.settings, s.created_ms,"    \
    " s.updated_ms, s.head, s.n_messages FROM session s "
#define NEWEST_FIRST " ORDER BY s.updated_ms DESC, s.id DESC"

#define SEARCH_COLUMNS                                                                                          \
    "SELECT t.rowid, m.session, snippet(message_text, 0, '', '', '…', ?3) FROM message_text t"              \
    " CROSS JOIN message m INDEXED BY message_session ON m.id = t.rowid WHERE t.message_text MATCH ?1 "

#define MESSAGE_COLUMNS_AND(siblings)                                                                           \
    " m.id, m.session, m.parent, m.role, m.state, m.content, m.model, m.adapters, m.params, m.stats,"           \
    " m.n_tokens, m.created_ms," siblings ", m.context_from, m.context_note, m.reasoning "
#define SIBLINGS                                                                                                \
    " (SELECT count(*) FROM message s WHERE s.session = m.session AND s.parent IS m.parent),"                   \
    " (SELECT count(*) FROM message s WHERE s.session = m.session AND s.parent IS m.parent AND s.id < m.id)"
#define MESSAGE_COLUMNS MESSAGE_COLUMNS_AND(SIBLINGS)

static const char *const statement_texts[PP_STMT_COUNT] = {
    [PP_STMT_BEGIN] = "BEGIN IMMEDIATE",
    [PP_STMT_COMMIT] = "COMMIT",
    [PP_STMT_ROLLBACK] = "ROLLBACK",
    [PP_STMT_SAVEPOINT] = "SAVEPOINT part",
    [PP_STMT_RELEASE] = "RELEASE part",
    [PP_STMT_PART_UNDO] = "ROLLBACK TO part",
    [PP_STMT_SESSION_ADD] =
        "INSERT INTO session (key, title, model, template_name, system, adapters, settings, created_ms, updated_ms)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    [PP_STMT_SESSION_GET] = SESSION_COLUMNS "WHERE s.id = ?1",
    /* keys are lower-case hexadecimal: 'g' is the next character */
    [PP_STMT_SESSION_FIND] = SESSION_COLUMNS "WHERE s.key >= ?1 AND s.key < ?1 || 'g' LIMIT 2",
    [PP_STMT_SESSION_LATEST] = SESSION_COLUMNS NEWEST_FIRST " LIMIT 1",
    [PP_STMT_SESSION_COUNT] = "SELECT count(*) FROM session",
    [PP_STMT_SESSIONS_OLDER] = SESSION_COLUMNS "WHERE (s.updated_ms, s.id) < (?1, ?2)" NEWEST_FIRST " LIMIT ?3",
    [PP_STMT_SESSIONS_NEWER] =
        SESSION_COLUMNS "WHERE (s.updated_ms, s.id) > (?1, ?2) ORDER BY s.updated_ms, s.id LIMIT ?3",
    /* CROSS JOIN keeps this order of tables. fresh() is evaluated before the excerpt is made. */
    [PP_STMT_SEARCH_NEWEST] = SEARCH_COLUMNS "AND t.rowid < ?2 AND fresh(m.session) ORDER BY t.rowid DESC",
    [PP_STMT_SEARCH_BEST] = SEARCH_COLUMNS "AND fresh(m.session) ORDER BY t.rank",
    [PP_STMT_SEARCH_TITLES] =
        "SELECT t.rowid, s.newest FROM session_text t CROSS JOIN session s INDEXED BY session_newest ON s.id = t.rowid"
        " WHERE t.session_text MATCH ?1",
    [PP_STMT_SEARCH_COUNT] =
        "SELECT count(*) FROM (SELECT 1 FROM message_text t WHERE t.message_text MATCH ?1 LIMIT 10001)",
    [PP_STMT_INDEX_REMAINING] = "SELECT indexed_from FROM search_state",
    [PP_STMT_INDEX_NEXT] = "SELECT id FROM message WHERE id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2",
    [PP_STMT_INDEX_ADD] =
        "INSERT INTO message_text (rowid, content) SELECT id, content FROM message WHERE id >= ?1 AND id < ?2",
    [PP_STMT_INDEX_MARK] = "UPDATE search_state SET indexed_from = ?1",
    [PP_STMT_SESSION_UPDATE] =
        "UPDATE session SET title = ?2, model = ?3, template_name = ?4, system = ?5, adapters = ?6, settings = ?7,"
        " head = ?8 WHERE id = ?1",
    /* after the clock was set back, the time must not become earlier */
    [PP_STMT_SESSION_TOUCH] = "UPDATE session SET head = ?2, updated_ms = max(updated_ms, ?3) WHERE id = ?1",
    [PP_STMT_SESSION_OTHERS] = "SELECT updated_ms FROM session WHERE id <> ?1 ORDER BY updated_ms DESC LIMIT 1",
    [PP_STMT_SESSION_DELETE] = "DELETE FROM session WHERE id = ?1",
    [PP_STMT_MESSAGE_ADD] =
        "INSERT INTO message (session, parent, role, state, content, model, adapters, params, stats, n_tokens,"
        " created_ms, context_from, context_note, reasoning)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    [PP_STMT_MESSAGE_CONTEXT] = "UPDATE message SET context_from = ?2, context_note = ?3 WHERE id = ?1",
    [PP_STMT_MESSAGE_ADAPTERS] = "UPDATE message SET adapters = ?2 WHERE id = ?1",
    [PP_STMT_MESSAGE_GET] = "SELECT" MESSAGE_COLUMNS "FROM message m WHERE m.id = ?1",
    [PP_STMT_MESSAGE_WRITE] =
        "UPDATE message SET content = ?2, state = ?3, stats = coalesce(?4, stats), n_tokens = coalesce(?5, n_tokens),"
        " reasoning = coalesce(?6, reasoning) WHERE id = ?1",
    /* parent < id holds by a constraint; checked again, so that a forged file cannot cause an endless loop */
    [PP_STMT_MESSAGE_BRANCH] =
        "WITH RECURSIVE line (id, parent) AS ("
        " SELECT id, parent FROM message WHERE id = ?1"
        " UNION ALL"
        " SELECT p.id, p.parent FROM line JOIN message p ON p.id = line.parent AND p.id < line.id)"
        " SELECT" MESSAGE_COLUMNS "FROM line JOIN message m ON m.id = line.id ORDER BY m.id",
    [PP_STMT_MESSAGE_ALL] = "SELECT" MESSAGE_COLUMNS "FROM message m WHERE m.session = ?1 ORDER BY m.id",
    /* for a damaged database: reads only the index, without sorting, so that rows before the damage are returned */
    [PP_STMT_SESSION_PLACES] =
        "SELECT id, updated_ms FROM session INDEXED BY session_updated ORDER BY updated_ms DESC, id DESC",
    [PP_STMT_SESSION_IDS] = "SELECT id, -1 FROM session INDEXED BY sqlite_autoindex_session_1",
    [PP_STMT_MESSAGE_PLACES] =
        "SELECT id, coalesce(parent, 0) FROM message INDEXED BY message_parent WHERE session = ?1",
    [PP_STMT_MESSAGE_IDS] = "SELECT id, -1 FROM message INDEXED BY sqlite_autoindex_message_1 WHERE session = ?1",
    [PP_STMT_MESSAGE_ALONE] = "SELECT" MESSAGE_COLUMNS_AND(" 1, 0") "FROM message m WHERE m.id = ?1 AND m.session = ?2",
    /* children have larger ids than their parents, so the newest descendant is a leaf */
    [PP_STMT_MESSAGE_DESCEND] =
        "WITH RECURSIVE below (id) AS ("
        " SELECT * FROM (SELECT id FROM message WHERE session = ?1 AND parent IS ?2 ORDER BY id LIMIT 1 OFFSET ?3)"
        " UNION ALL"
        " SELECT c.id FROM below JOIN message c ON c.session = ?1 AND c.parent = below.id AND c.id > below.id)"
        " SELECT max(id) FROM below",
    [PP_STMT_MESSAGE_BEFORE] = "SELECT count(*) FROM message WHERE session = ?1 AND parent IS ?2 AND id < ?3",
    [PP_STMT_BEGINNINGS] =
        "SELECT s.id, s.created_ms, m.content FROM session s LEFT JOIN message m ON m.id ="
        " (SELECT min(f.id) FROM message f WHERE f.session = s.id AND f.parent IS NULL)",
    [PP_STMT_ADAPTER_PUT] =
        "INSERT INTO adapter (path, note, added) VALUES (?1, coalesce(?2, ''), ?3)"
        " ON CONFLICT (path) DO UPDATE SET note = coalesce(?2, note), added = ?3",
    [PP_STMT_ADAPTER_CLEAN] = "DELETE FROM adapter WHERE note = '' AND NOT added",
    [PP_STMT_ADAPTER_LIST] = "SELECT path, note, added FROM adapter ORDER BY path",
    [PP_STMT_PRESET_PUT] =
        "INSERT INTO preset (name, adapters) VALUES (?1, ?2)"
        " ON CONFLICT (name) DO UPDATE SET name = ?1, adapters = ?2",
    [PP_STMT_PRESET_REMOVE] = "DELETE FROM preset WHERE name = ?1",
    [PP_STMT_PRESET_LIST] = "SELECT name, adapters FROM preset ORDER BY name",
    [PP_STMT_MODEL_PUT] =
        "INSERT INTO model (path, name, source, sha256, bytes, facts, added_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
        " ON CONFLICT (path) DO UPDATE SET name = ?2, source = CASE ?3 WHEN '' THEN source ELSE ?3 END,"
        " sha256 = CASE ?4 WHEN '' THEN sha256 ELSE ?4 END, bytes = ?5, facts = ?6",
    [PP_STMT_MODEL_REMOVE] = "DELETE FROM model WHERE path = ?1",
    [PP_STMT_MODEL_LIST] =
        "SELECT path, name, source, sha256, facts,"
        " coalesce((SELECT group_concat(tag, ' ') FROM (SELECT tag FROM tag WHERE tag.path = model.path ORDER BY tag)),"
        " ''), bytes FROM model ORDER BY name",
    [PP_STMT_MODEL_FIND] =
        "SELECT path FROM model WHERE name = ?1 COLLATE NOCASE UNION ALL SELECT path FROM tag WHERE tag = ?1 LIMIT 1",
    [PP_STMT_MODEL_NAME] = "SELECT name FROM model WHERE path = ?1",
    [PP_STMT_TAG_PUT] =
        "INSERT INTO tag (tag, path) SELECT ?1, ?2 WHERE NOT EXISTS"
        " (SELECT 1 FROM model WHERE name = ?1 COLLATE NOCASE) ON CONFLICT (tag) DO UPDATE SET tag = ?1, path = ?2",
    [PP_STMT_TAG_REMOVE] = "DELETE FROM tag WHERE tag = ?1",
    [PP_STMT_BACKUP] = "VACUUM INTO ?1",
};

/* --- errors, statements, transactions ---------------------------------------------------------------------------- */

/* SQLite reports only some failures for lack of space as SQLITE_FULL. */
static enum pp_code fail_io(struct pp_store *st, int rc, const char *what, struct pp_error *err)
{
    struct rlimit most;
    const int why = st->db ? sqlite3_system_errno(st->db) : 0;
    const bool grew = rc == SQLITE_IOERR_SHMSIZE || rc == SQLITE_IOERR_SHMOPEN || rc == SQLITE_IOERR_WRITE;
    if (grew && getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY)
        return pp_fail(err, PP_ERR_IO, "cannot %s: the disk is full, or a file would exceed the size limit; free some "
                                       "space, or raise `ulimit -f`", what);
    if (rc == SQLITE_IOERR_SHMSIZE || why == ENOSPC || why == EDQUOT)
        return pp_fail(err, PP_ERR_IO, "cannot %s: the disk is full; free some space", what);
    return pp_fail(err, PP_ERR_IO, "cannot %s: %s%s%s; check the disk", what,
                   st->db ? sqlite3_errmsg(st->db) : sqlite3_errstr(rc), why ? ": " : "", why ? strerror(why) : "");
}

enum pp_code pp_store_fail(struct pp_store *st, int rc, const char *what, struct pp_error *err)
{
    switch (rc & 0xFF) {
    case SQLITE_IOERR:
        return fail_io(st, st->db ? sqlite3_extended_errcode(st->db) : rc, what, err);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return pp_fail(err, PP_ERR_BUSY, "cannot %s: another program has locked the database for too long; let it "
                                         "finish, or stop it", what);
    case SQLITE_INTERRUPT:
        return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
    case SQLITE_FULL:
        return pp_fail(err, PP_ERR_IO, "cannot %s: the disk is full; free some space", what);
    case SQLITE_NOMEM:
        return pp_fail(err, PP_ERR_NOMEM, "cannot %s: out of memory; close other programs", what);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return pp_fail(err, PP_ERR_FORMAT,
                       "cannot %s: the database is damaged; copy it, save what can be read with `pippin sessions "
                       "export --all -o FILE.jsonl`, move it away, and import FILE.jsonl", what);
    case SQLITE_CANTOPEN:
        if (st->db && (sqlite3_system_errno(st->db) == EMFILE || sqlite3_system_errno(st->db) == ENFILE))
            return pp_fail(err, PP_ERR_IO, "cannot %s: too many files are open; raise `ulimit -n`", what);
        return pp_fail(err, PP_ERR_IO,
                       "cannot %s: the database cannot be opened; check that its folder exists and that both are "
                       "readable and writable", what);
    case SQLITE_READONLY:
        return pp_fail(err, PP_ERR_IO,
                       "cannot %s: the database is read-only; check the permissions of its file and folder", what);
    case SQLITE_CONSTRAINT:
        /* our schema has no trigger that raises errors */
        if (st->db && sqlite3_extended_errcode(st->db) == SQLITE_CONSTRAINT_TRIGGER)
            return pp_fail(err, PP_ERR_IO, "cannot %s: a trigger added to the database by another program refuses it: "
                           "%s", what, sqlite3_errmsg(st->db));
        return pp_fail(err, PP_ERR_USAGE, "cannot %s: it refers to a message that its conversation does not have",
                       what);
    default:
        st->doubted = true;
        return pp_fail(err, PP_ERR_IO, "cannot %s: %s", what, st->db ? sqlite3_errmsg(st->db) : sqlite3_errstr(rc));
    }
}

/* If a statement could not be prepared, for example because another program's trigger names a missing table, SQLite
 * keeps using the schema that it knew then, even after the trigger is dropped. Preparing a valid statement makes it
 * read the schema again. */
static void look_at_tables(struct pp_store *st)
{
    sqlite3_stmt *stmt = NULL;
    st->doubted = false;
    if (sqlite3_prepare_v2(st->db, "SELECT 1 FROM sqlite_master LIMIT 1", -1, &stmt, NULL) == SQLITE_OK)
        sqlite3_step(stmt);
    sqlite3_finalize(stmt);
}

enum pp_code pp_store_stmt(struct pp_store *st, enum pp_stmt which, sqlite3_stmt **out, struct pp_error *err)
{
    sqlite3_stmt **slot = &st->stmts[which];
    *out = NULL;
    if (st->doubted && sqlite3_get_autocommit(st->db)) /* not within the transaction that failed */
        look_at_tables(st);
    if (!*slot) {
        int rc = sqlite3_prepare_v3(st->db, statement_texts[which], -1, SQLITE_PREPARE_PERSISTENT, slot, NULL);
        if (rc != SQLITE_OK)
            return pp_store_fail(st, rc, "use the database", err);
    }
    *out = *slot;
    return PP_OK;
}

void pp_store_done(sqlite3_stmt *stmt)
{
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
}

enum pp_code pp_store_run(struct pp_store *st, enum pp_stmt which, const char *what, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    const enum pp_code code = pp_store_stmt(st, which, &stmt, err);
    return code ? code : pp_store_finish(st, stmt, what, err);
}

enum pp_code pp_store_finish(struct pp_store *st, sqlite3_stmt *stmt, const char *what, struct pp_error *err)
{
    int rc = sqlite3_step(stmt);
    enum pp_code code = rc == SQLITE_DONE ? PP_OK : pp_store_fail(st, rc, what, err);
    pp_store_done(stmt);
    return code;
}

enum pp_code pp_store_change_one(struct pp_store *st, sqlite3_stmt *stmt, const char *what, const char *gone,
                                 struct pp_error *err)
{
    const enum pp_code code = pp_store_finish(st, stmt, what, err);
    if (code || sqlite3_changes(st->db) != 0)
        return code;
    return pp_fail(err, PP_ERR_NOT_FOUND, "cannot %s: %s", what, gone);
}

enum pp_code pp_store_rows(struct pp_store *st, sqlite3_stmt *stmt, pp_store_take *take, void *user, const char *what,
                           const char *of, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    int rc = SQLITE_ROW;
    while (!code && (rc = sqlite3_step(stmt)) == SQLITE_ROW)
        if (!take(user, stmt))
            code = pp_fail_nomem(err, of);
    if (!code && rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, what, err);
    pp_store_done(stmt);
    return code;
}

bool pp_store_moved(struct pp_store *st)
{
    int moved = 0;
    sqlite3_file_control(st->db, NULL, SQLITE_FCNTL_HAS_MOVED, &moved);
    return moved != 0;
}

void pp_store_set_adrift(struct pp_store *st)
{
    st->adrift = true;
}

enum pp_code pp_store_begin(struct pp_store *st, const char *what, struct pp_error *err)
{
    if (!st->adrift && pp_store_moved(st)) /* what is written to a deleted file is lost */
        return pp_fail(err, PP_ERR_IO,
                       "cannot %s: the database was deleted, moved or replaced while pippin was running; put it back, "
                       "or start pippin again", what);
    if (st->batch && sqlite3_get_autocommit(st->db))
        return pp_fail(err, PP_ERR_IO, "cannot %s: something else that belongs to it could not be saved", what);
    return pp_store_run(st, st->batch ? PP_STMT_SAVEPOINT : PP_STMT_BEGIN, what, err);
}

/* On some errors, such as a full disk, SQLite rolls back the whole transaction by itself, and there is no savepoint
 * any more. */
static enum pp_code end_part(struct pp_store *st, enum pp_code code, const char *what, struct pp_error *err)
{
    if (code == PP_OK)
        code = pp_store_run(st, PP_STMT_RELEASE, what, err);
    if (code && !sqlite3_get_autocommit(st->db)) {
        pp_store_run(st, PP_STMT_PART_UNDO, what, NULL);
        pp_store_run(st, PP_STMT_RELEASE, what, NULL);
    }
    return code;
}

enum pp_code pp_store_end(struct pp_store *st, enum pp_code code, const char *what, struct pp_error *err)
{
    if (st->batch)
        return end_part(st, code, what, err);
    if (code == PP_OK)
        code = pp_store_run(st, PP_STMT_COMMIT, what, err);
    if (!sqlite3_get_autocommit(st->db)) /* SQLite has rolled back some failed transactions already */
        pp_store_run(st, PP_STMT_ROLLBACK, what, NULL);
    return code;
}

enum pp_code pp_store_batch_begin(struct pp_store *st, const char *what, struct pp_error *err)
{
    enum pp_code code = pp_store_begin(st, what, err);
    st->batch = code == PP_OK ? what : NULL;
    return code;
}

enum pp_code pp_store_batch_end(struct pp_store *st, enum pp_code code, struct pp_error *err)
{
    const char *what = st->batch;
    st->batch = NULL;
    if (code == PP_OK && sqlite3_get_autocommit(st->db))
        return pp_fail(err, PP_ERR_IO, "cannot %s: the database rolled the transaction back", what);
    return pp_store_end(st, code, what, err);
}

void pp_store_bind_text(sqlite3_stmt *stmt, int index, const char *text)
{
    sqlite3_bind_text(stmt, index, text ? text : "", -1, SQLITE_STATIC);
}

void pp_store_bind_id(sqlite3_stmt *stmt, int index, int64_t id)
{
    if (id)
        sqlite3_bind_int64(stmt, index, id);
    else
        sqlite3_bind_null(stmt, index);
}

char *pp_store_column(sqlite3_stmt *stmt, int column, size_t *len)
{
    const void *text = sqlite3_column_text(stmt, column);
    size_t n = text ? (size_t)sqlite3_column_bytes(stmt, column) : 0;
    if (len)
        *len = n;
    return pp_strndup(text ? text : "", n);
}

int64_t pp_store_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* --- opening ----------------------------------------------------------------------------------------------------- */

/* SQLite would block when it opens a named pipe, and no signal would interrupt that. A missing file is fine. */
static enum pp_code check_regular(const char *path, struct pp_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
        return PP_OK;
    return pp_fail(err, PP_ERR_IO, "%s is not a regular file; move it away", path);
}

/* Creates the file with our mode before SQLite creates it with another. Not if it exists: closing any descriptor of
 * a file releases all POSIX locks of this process on it, including those of other connections. */
static enum pp_code make_file(const char *path, struct pp_error *err)
{
    static const char elsewhere[] = "set HOME, or XDG_DATA_HOME, to a folder of your own";
    struct stat st;
    if (stat(path, &st) == 0)
        return check_regular(path, err);
    if (pp_make_dirs_of(path, err) != PP_OK)
        return pp_fail_advice(err, elsewhere);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno != EEXIST) {
        const bool refused = errno == EACCES || errno == EPERM || errno == EROFS;
        pp_fail(err, PP_ERR_IO, "cannot create the database %s: %s", path, strerror(errno));
        return refused ? pp_fail_advice(err, elsewhere) : PP_ERR_IO;
    }
    if (fd >= 0)
        close(fd);
    return PP_OK;
}

enum pp_code pp_store_open(const char *path, struct pp_store **out, struct pp_error *err)
{
    *out = NULL;
    enum pp_code code = strcmp(path, ":memory:") == 0 ? PP_OK : make_file(path, err);
    if (code)
        return code;
    struct pp_store *st = pp_calloc(1, sizeof *st);
    if (!st)
        return pp_fail_nomem(err, "the conversations");
    int rc = sqlite3_open_v2(path, &st->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    /* otherwise the first attempt to save would fail */
    if (rc == SQLITE_OK && sqlite3_db_readonly(st->db, "main") == 1)
        rc = SQLITE_READONLY;
    if (rc == SQLITE_OK)
        rc = pp_store_prepare_lists(st);
    if (rc == SQLITE_OK && strcmp(path, ":memory:") == 0)
        rc = sqlite3_exec(st->db, "PRAGMA temp_store = MEMORY", NULL, NULL, NULL); /* for sorting, too */
    if (rc != SQLITE_OK) {
        pp_store_fail(st, rc, "open the conversations and models", err);
        code = pp_fail_prefix(err, "%s", path);
    } else {
        code = pp_store_prepare_schema(st, path, err);
    }
    /* Prepares all statements, so that a wrong schema is detected now and not in the middle of a conversation. */
    sqlite3_stmt *stmt;
    for (int i = 0; !code && i < PP_STMT_COUNT; i++)
        if (pp_store_stmt(st, (enum pp_stmt)i, &stmt, err) != PP_OK)
            code = pp_fail_prefix(err, "%s", path);
    if (code) {
        pp_store_close(st);
        return code;
    }
    *out = st;
    return PP_OK;
}

/* Whether the file contains the complete database: there is no WAL or journal with further data. */
static bool is_whole(const char *path)
{
    static const char *const logs[] = {"wal", "journal"};
    bool whole = true;
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        struct stat st;
        struct pp_buf log = {0};
        pp_buf_fmt(&log, "%s-%s", path, logs[i]);
        whole = whole && !log.bad && (stat(log.data, &st) != 0 || st.st_size == 0);
        pp_buf_free(&log);
    }
    return whole;
}

int pp_store_open_how(const char *path, const char *how, sqlite3 **db)
{
    struct pp_buf uri = {0};
    *db = NULL;
    pp_buf_str(&uri, *path == '/' ? "file://" : "file:"); /* an empty host, for paths that begin with "//" */
    for (const char *p = path; *p; p++)
        if (strchr("%?#", *p))
            pp_buf_fmt(&uri, "%%%02X", (unsigned)*p);
        else
            pp_buf_char(&uri, *p);
    pp_buf_fmt(&uri, "?%s", how);
    const int rc = uri.bad ? SQLITE_NOMEM
                           : sqlite3_open_v2(uri.data, db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL);
    pp_buf_free(&uri);
    return rc;
}

enum pp_code pp_store_open_to_read(const char *path, struct pp_store **out, struct pp_error *err)
{
    enum { PATIENCE_MS = 100 };
    enum pp_code code = check_regular(path, err);
    *out = NULL;
    struct pp_store *st = code ? NULL : pp_calloc(1, sizeof *st);
    if (!st)
        return code ? code : pp_fail_nomem(err, "the conversations");
    int rc = sqlite3_open_v2(path, &st->db, SQLITE_OPEN_READONLY, NULL);
    if (rc == SQLITE_OK && !pp_store_is_readable(st) && is_whole(path)) { /* the disk is full or read-only */
        sqlite3_close(st->db);
        rc = pp_store_open_how(path, "immutable=1", &st->db);
    }
    if (rc == SQLITE_OK)
        rc = pp_store_prepare_lists(st);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(st->db, PATIENCE_MS);
    if (rc != SQLITE_OK) {
        code = pp_store_fail(st, rc, "open the conversations and models", err);
        pp_store_close(st);
        return code;
    }
    *out = st;
    return PP_OK;
}

enum pp_code pp_store_open_or_empty(const char *path, struct pp_store **out, struct pp_error *err)
{
    struct pp_error why;
    struct stat there;
    enum pp_code code = pp_store_open(path, out, err);
    if (code != PP_ERR_IO)
        return code;
    if (stat(path, &there) != 0)
        return errno == ENOENT ? pp_store_open(":memory:", out, err) : code;
    if (there.st_size == 0 || pp_store_open_to_read(path, out, &why) != PP_OK)
        return code;
    if (pp_store_check_schema(*out, path, &why) == PP_OK)
        return PP_OK;
    pp_store_close(*out);
    *out = NULL;
    return code;
}

static int is_cancelled(void *cancel)
{
    return pp_cancelled(cancel);
}

void pp_store_cancel_with(struct pp_store *s, const struct pp_cancel *cancel)
{
    enum { STEPS = 10000 }; /* of SQLite's virtual machine: well below a millisecond */
    sqlite3_progress_handler(s->db, STEPS, is_cancelled, (void *)(uintptr_t)cancel);
}

void pp_store_close(struct pp_store *s)
{
    if (!s)
        return;
    for (int i = 0; i < PP_STMT_COUNT; i++)
        sqlite3_finalize(s->stmts[i]);
    sqlite3_close(s->db);
    pp_free(s);
}

/* --- sessions ---------------------------------------------------------------------------------------------------- */

void pp_session_clear(struct pp_session *s)
{
    pp_free(s->title);
    pp_free(s->model);
    pp_free(s->template_name);
    pp_free(s->system);
    pp_free(s->adapters);
    pp_free(s->settings);
    pp_free(s->excerpt);
    memset(s, 0, sizeof *s);
}

void pp_session_list_free(struct pp_session *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pp_session_clear(&list[i]);
    pp_free(list);
}

enum pp_code pp_store_read_session(sqlite3_stmt *stmt, struct pp_session *s, struct pp_error *err)
{
    char *key = pp_store_column(stmt, 1, NULL);
    *s = (struct pp_session){
        .id = sqlite3_column_int64(stmt, 0),
        .title = pp_store_column(stmt, 2, NULL),
        .model = pp_store_column(stmt, 3, NULL),
        .template_name = pp_store_column(stmt, 4, NULL),
        .system = pp_store_column(stmt, 5, NULL),
        .adapters = pp_store_column(stmt, 6, NULL),
        .settings = pp_store_column(stmt, 7, NULL),
        .created = sqlite3_column_int64(stmt, 8) / 1000,
        .created_part = (int)(sqlite3_column_int64(stmt, 8) % 1000),
        .updated = sqlite3_column_int64(stmt, 9) / 1000,
        .updated_ms = sqlite3_column_int64(stmt, 9),
        .head = sqlite3_column_int64(stmt, 10),
        .n_messages = sqlite3_column_int64(stmt, 11),
    };
    if (key && s->title && s->model && s->template_name && s->system && s->adapters && s->settings) {
        /* keys become parts of file names: only digits may come out of a forged database */
        size_t n = strspn(key, "0123456789abcdef");
        bool good = n == 16 && key[16] == 0;
        snprintf(s->key, sizeof s->key, "%.16s", key);
        pp_free(key);
        if (good)
            return PP_OK;
        pp_session_clear(s);
        return pp_fail(err, PP_ERR_FORMAT, "the database holds a conversation with a malformed ID; it is damaged");
    }
    pp_free(key);
    pp_session_clear(s);
    return pp_fail_nomem(err, "a conversation");
}

/* Reads the single row of a bound statement. */
static enum pp_code one_session(struct pp_store *st, sqlite3_stmt *stmt, struct pp_session *out, struct pp_error *err)
{
    enum pp_code code;
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW)
        code = pp_store_read_session(stmt, out, err);
    else if (rc == SQLITE_DONE)
        code = pp_fail(err, PP_ERR_NOT_FOUND,
                       "there is no such conversation; `pippin sessions list` shows the existing ones");
    else
        code = pp_store_fail(st, rc, "read the conversation", err);
    pp_store_done(stmt);
    return code;
}

static void bind_strings(sqlite3_stmt *stmt, const struct pp_session *s)
{
    pp_store_bind_text(stmt, 2, s->title);
    pp_store_bind_text(stmt, 3, s->model);
    pp_store_bind_text(stmt, 4, s->template_name);
    pp_store_bind_text(stmt, 5, s->system);
    pp_store_bind_text(stmt, 6, s->adapters);
    pp_store_bind_text(stmt, 7, s->settings);
}

static enum pp_code random_key(char key[17], struct pp_error *err)
{
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits)
        return pp_fail(err, PP_ERR_IO, "cannot get random numbers from the system: %s", strerror(errno));
    snprintf(key, 17, "%016llx", (unsigned long long)bits);
    return PP_OK;
}

enum pp_code pp_store_insert_session(struct pp_store *st, struct pp_session *s, int64_t created_ms, int64_t updated_ms,
                                     const char *what, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    char key[17];
    enum pp_code code = random_key(key, err);
    if (code || (code = pp_store_stmt(st, PP_STMT_SESSION_ADD, &stmt, err)))
        return code;
    pp_store_bind_text(stmt, 1, key);
    bind_strings(stmt, s);
    sqlite3_bind_int64(stmt, 8, created_ms);
    sqlite3_bind_int64(stmt, 9, updated_ms);
    if ((code = pp_store_finish(st, stmt, what, err)))
        return code;
    s->id = sqlite3_last_insert_rowid(st->db);
    s->created = created_ms / 1000;
    s->created_part = (int)(created_ms % 1000);
    s->updated = updated_ms / 1000;
    s->updated_ms = updated_ms;
    memcpy(s->key, key, sizeof key);
    return PP_OK;
}

enum pp_code pp_store_session_add(struct pp_store *st, struct pp_session *s, struct pp_error *err)
{
    static const char what[] = "save the conversation";
    struct pp_session fresh = *s; /* *s is changed only on success */
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    const int64_t now = pp_store_now_ms();
    code = pp_store_insert_session(st, &fresh, now, now, what, err);
    code = pp_store_end(st, code, what, err);
    if (!code)
        *s = fresh;
    return code;
}

enum pp_code pp_store_session_get(struct pp_store *st, int64_t id, struct pp_session *out, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    memset(out, 0, sizeof *out);
    enum pp_code code = pp_store_stmt(st, PP_STMT_SESSION_GET, &stmt, err);
    if (code)
        return code;
    sqlite3_bind_int64(stmt, 1, id);
    return one_session(st, stmt, out, err);
}

enum pp_code pp_store_session_again(struct pp_store *st, struct pp_session *s, struct pp_error *err)
{
    const int64_t id = s->id;
    pp_session_clear(s);
    return pp_store_session_get(st, id, s, err);
}

enum pp_code pp_store_session_latest(struct pp_store *st, struct pp_session *out, struct pp_error *err)
{
    sqlite3_stmt *stmt;
    memset(out, 0, sizeof *out);
    enum pp_code code = pp_store_stmt(st, PP_STMT_SESSION_LATEST, &stmt, err);
    if (code)
        return code;
    code = one_session(st, stmt, out, err);
    return code == PP_ERR_NOT_FOUND ? pp_fail(err, code, "there are no saved conversations yet") : code;
}

enum pp_code pp_store_session_find(struct pp_store *st, const char *key, struct pp_session *out, struct pp_error *err)
{
    char folded[17] = "";
    sqlite3_stmt *stmt;
    size_t n = strlen(key);
    memset(out, 0, sizeof *out);
    if (n > 16 || strspn(key, "0123456789abcdefABCDEF") != n)
        return pp_fail(err, PP_ERR_NOT_FOUND,
                       "\"%.40s\" is not the ID of a conversation; an ID is 16 hexadecimal digits, or the first few "
                       "of them",
                       key);
    if (n < 4)
        return pp_fail(err, PP_ERR_USAGE, "\"%s\" is too short for an ID; give at least its first 4 digits", key);
    for (size_t i = 0; i < n; i++)
        folded[i] = (char)(key[i] >= 'A' && key[i] <= 'F' ? key[i] - 'A' + 'a' : key[i]);
    enum pp_code code = pp_store_stmt(st, PP_STMT_SESSION_FIND, &stmt, err);
    if (code)
        return code;
    pp_store_bind_text(stmt, 1, folded);
    int rc = sqlite3_step(stmt);
    if (rc == SQLITE_ROW) {
        code = pp_store_read_session(stmt, out, err);
        rc = sqlite3_step(stmt);
        if (!code && rc == SQLITE_ROW)
            code = pp_fail(err, PP_ERR_USAGE, "several conversations begin with %s; give more digits", folded);
    } else if (rc == SQLITE_DONE) {
        code = pp_fail(err, PP_ERR_NOT_FOUND,
                       "there is no conversation %s; `pippin sessions list` shows the existing ones", folded);
    }
    if (!code && rc != SQLITE_DONE)
        code = pp_store_fail(st, rc, "find the conversation", err);
    if (code)
        pp_session_clear(out);
    pp_store_done(stmt);
    return code;
}

static const char session_gone[] = "it does not exist any more";

enum pp_code pp_store_session_update(struct pp_store *st, const struct pp_session *s, struct pp_error *err)
{
    static const char what[] = "save the conversation";
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    code = pp_store_stmt(st, PP_STMT_SESSION_UPDATE, &stmt, err);
    if (!code) {
        sqlite3_bind_int64(stmt, 1, s->id);
        bind_strings(stmt, s);
        pp_store_bind_id(stmt, 8, s->head);
        code = pp_store_change_one(st, stmt, what, session_gone, err);
    }
    return pp_store_end(st, code, what, err);
}

enum pp_code pp_store_session_delete(struct pp_store *st, int64_t id, struct pp_error *err)
{
    static const char what[] = "delete the conversation";
    sqlite3_stmt *stmt;
    enum pp_code code = pp_store_begin(st, what, err);
    if (code)
        return code;
    code = pp_store_stmt(st, PP_STMT_SESSION_DELETE, &stmt, err);
    if (!code) {
        sqlite3_bind_int64(stmt, 1, id);
        code = pp_store_change_one(st, stmt, what, session_gone, err);
    }
    return pp_store_end(st, code, what, err);
}

/* --- session locks ----------------------------------------------------------------------------------------------- */

static struct pp_buf lock_path(const char *dir, const char *key)
{
    struct pp_buf path = {0};
    pp_buf_fmt(&path, "%s/%s.lock", dir, key);
    return path;
}

enum pp_code pp_session_lock(const char *dir, const char *key, int *fd, struct pp_error *err)
{
    *fd = -1;
    if (!*dir)
        return PP_OK;
    enum pp_code code = pp_make_dirs(dir, err);
    if (code)
        return code;
    struct pp_buf path = lock_path(dir, key);
    if (path.bad) {
        pp_buf_free(&path);
        return pp_fail_nomem(err, "a file name");
    }
    /* The file is not removed with the lock: otherwise two programs could hold locks on two files of the same name. */
    int lock = open(path.data, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0)
        code = pp_fail(err, PP_ERR_IO, "cannot create the lock file %s: %s", path.data, strerror(errno));
    else if (flock(lock, LOCK_EX | LOCK_NB) != 0)
        code = errno == EWOULDBLOCK ? pp_fail(err, PP_ERR_BUSY,
                                              "this conversation is open in another pippin; close it there first, "
                                              "with /new or Ctrl-D")
                                    : pp_fail(err, PP_ERR_IO, "cannot lock %s: %s", path.data, strerror(errno));
    pp_buf_free(&path);
    if (code && lock >= 0)
        close(lock);
    if (!code)
        *fd = lock;
    return code;
}

void pp_session_lock_remove(const char *dir, const char *key)
{
    struct pp_buf path = lock_path(dir, key);
    if (*dir && !path.bad)
        unlink(path.data);
    pp_buf_free(&path);
}
