/* store_schema.c - the tables, and the migration of older databases.
 *
 * PRAGMA user_version counts the steps below that were applied to a database. A released step is never changed: new
 * needs are new steps at the end. Times are milliseconds since the epoch, so that conversations of the same second
 * have an order. */
#include <stdio.h>
#include <time.h>

#include "src/store_internal.h"

enum { APPLICATION_ID = 0x50495050 /* "PIPP" in bytes 68 to 71 of the file */ };

/* parent has no ON DELETE CASCADE: messages are deleted only with their session, all at once, and a cascade from
 * parent to child would exceed SQLite's limit of nested triggers in a conversation of 1,000 messages. Composite keys
 * keep parent and head within the session. AUTOINCREMENT: the io thread identifies an answer by its id, which must
 * not be reused for another message. parent < id makes cycles impossible. */
static const char step_tables[] =
    "CREATE TABLE session ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  key TEXT NOT NULL UNIQUE,"
    "  title TEXT NOT NULL,"
    "  model TEXT NOT NULL,"
    "  template_name TEXT NOT NULL,"
    "  system TEXT NOT NULL,"
    "  adapters TEXT NOT NULL,"
    "  settings TEXT NOT NULL,"
    "  created_ms INTEGER NOT NULL,"
    "  updated_ms INTEGER NOT NULL,"
    "  head INTEGER,"
    "  FOREIGN KEY (id, head) REFERENCES message (session, id) DEFERRABLE INITIALLY DEFERRED"
    ");"
    "CREATE INDEX session_updated ON session (updated_ms, id);"
    "CREATE INDEX session_head ON session (id, head);"
    "CREATE TABLE message ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  session INTEGER NOT NULL REFERENCES session (id) ON DELETE CASCADE,"
    "  parent INTEGER CHECK (parent < id),"
    "  role INTEGER NOT NULL CHECK (role BETWEEN 0 AND 2),"
    "  state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 2),"
    "  content TEXT NOT NULL,"
    "  model TEXT NOT NULL,"
    "  adapters TEXT NOT NULL,"
    "  params TEXT NOT NULL,"
    "  stats TEXT NOT NULL,"
    "  n_tokens INTEGER NOT NULL,"
    "  created_ms INTEGER NOT NULL,"
    "  UNIQUE (session, id),"
    "  FOREIGN KEY (session, parent) REFERENCES message (session, id)"
    ");"
    "CREATE INDEX message_parent ON message (session, parent, id);";

/* Two indexes without a copy of the text (external content), updated by triggers; 'rebuild' indexes existing rows. */
static const char step_search[] =
    "CREATE VIRTUAL TABLE session_text USING fts5 ("
    "  title, content = 'session', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2');"
    "CREATE VIRTUAL TABLE message_text USING fts5 ("
    "  content, content = 'message', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2');"
    "CREATE TRIGGER session_text_add AFTER INSERT ON session BEGIN"
    "  INSERT INTO session_text (rowid, title) VALUES (new.id, new.title);"
    "END;"
    "CREATE TRIGGER session_text_remove AFTER DELETE ON session BEGIN"
    "  INSERT INTO session_text (session_text, rowid, title) VALUES ('delete', old.id, old.title);"
    "END;"
    "CREATE TRIGGER session_text_change AFTER UPDATE OF title ON session WHEN old.title IS NOT new.title BEGIN"
    "  INSERT INTO session_text (session_text, rowid, title) VALUES ('delete', old.id, old.title);"
    "  INSERT INTO session_text (rowid, title) VALUES (new.id, new.title);"
    "END;"
    "CREATE TRIGGER message_text_add AFTER INSERT ON message BEGIN"
    "  INSERT INTO message_text (rowid, content) VALUES (new.id, new.content);"
    "END;"
    "CREATE TRIGGER message_text_remove AFTER DELETE ON message BEGIN"
    "  INSERT INTO message_text (message_text, rowid, content) VALUES ('delete', old.id, old.content);"
    "END;"
    "CREATE TRIGGER message_text_change AFTER UPDATE OF content ON message WHEN old.content IS NOT new.content BEGIN"
    "  INSERT INTO message_text (message_text, rowid, content) VALUES ('delete', old.id, old.content);"
    "  INSERT INTO message_text (rowid, content) VALUES (new.id, new.content);"
    "END;"
    "INSERT INTO session_text (session_text) VALUES ('rebuild');"
    "INSERT INTO message_text (message_text) VALUES ('rebuild');";

/* Stores the number of messages and the last of them (on all branches) with their conversation, so that lists and
 * searches need not look for them. message_session gives the session of a hit without reading the message,
 * session_newest the position of a matching title. The index includes prefixes of one, two and three letters of
 * every word, for searching while the user types. Indexing a million messages takes a minute, so the index is empty
 * at first, and contains all messages from search_state.indexed_from on (pp_store_index_more continues backwards
 * from there); the triggers ignore the others. context_from and context_note: the message with which the model's
 * context began when it wrote this one, and what it was told about those before (overflow.h). */
static const char step_scale[] =
    "ALTER TABLE session ADD COLUMN n_messages INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE session ADD COLUMN newest INTEGER NOT NULL DEFAULT 0;"
    "UPDATE session SET (n_messages, newest) ="
    "  (SELECT count(*), coalesce(max(m.id), 0) FROM message m WHERE m.session = session.id);"
    "CREATE INDEX session_newest ON session (id, newest);"
    "ALTER TABLE message ADD COLUMN context_from INTEGER;"
    "ALTER TABLE message ADD COLUMN context_note TEXT NOT NULL DEFAULT '';"
    "CREATE TRIGGER message_count_add AFTER INSERT ON message BEGIN"
    "  UPDATE session SET n_messages = n_messages + 1, newest = new.id WHERE id = new.session;"
    "END;"
    "CREATE TRIGGER message_count_remove AFTER DELETE ON message BEGIN"
    "  UPDATE session SET n_messages = n_messages - 1 WHERE id = old.session;"
    "END;"
    "CREATE INDEX message_session ON message (id, session);"
    "DROP TRIGGER message_text_add;"
    "DROP TRIGGER message_text_remove;"
    "DROP TRIGGER message_text_change;"
    "DROP TABLE message_text;"
    "CREATE VIRTUAL TABLE message_text USING fts5 ("
    "  content, content = 'message', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2',"
    "  prefix = '1 2 3');"
    "CREATE TABLE search_state (indexed_from INTEGER NOT NULL);"
    "INSERT INTO search_state SELECT coalesce(max(id) + 1, 0) FROM message;"
    "CREATE TRIGGER message_text_add AFTER INSERT ON message BEGIN"
    "  INSERT INTO message_text (rowid, content) VALUES (new.id, new.content);"
    "END;"
    "CREATE TRIGGER message_text_remove AFTER DELETE ON message"
    "  WHEN old.id >= (SELECT indexed_from FROM search_state) BEGIN"
    "  INSERT INTO message_text (message_text, rowid, content) VALUES ('delete', old.id, old.content);"
    "END;"
    "CREATE TRIGGER message_text_change AFTER UPDATE OF content ON message"
    "  WHEN old.content IS NOT new.content AND old.id >= (SELECT indexed_from FROM search_state) BEGIN"
    "  INSERT INTO message_text (message_text, rowid, content) VALUES ('delete', old.id, old.content);"
    "  INSERT INTO message_text (rowid, content) VALUES (new.id, new.content);"
    "END;";

/* The user's notes on adapters, and presets. */
static const char step_adapters[] =
    "CREATE TABLE adapter ("
    "  path TEXT PRIMARY KEY,"
    "  note TEXT NOT NULL,"
    "  added INTEGER NOT NULL"
    ") WITHOUT ROWID;"
    "CREATE TABLE preset ("
    "  name TEXT PRIMARY KEY COLLATE NOCASE,"
    "  adapters TEXT NOT NULL"
    ") WITHOUT ROWID;";

/* Registered models: their paths and properties, so that a list opens none of them. source: where it was downloaded
 * from, or ''; sha256: of the downloaded file, or ''; facts: a JSON object. tag: further names. */
static const char step_models[] =
    "CREATE TABLE model ("
    "  path TEXT PRIMARY KEY,"
    "  name TEXT NOT NULL UNIQUE COLLATE NOCASE,"
    "  source TEXT NOT NULL,"
    "  sha256 TEXT NOT NULL,"
    "  bytes INTEGER NOT NULL,"
    "  facts TEXT NOT NULL,"
    "  added_ms INTEGER NOT NULL"
    ") WITHOUT ROWID;"
    "CREATE TABLE tag ("
    "  tag TEXT PRIMARY KEY COLLATE NOCASE,"
    "  path TEXT NOT NULL REFERENCES model (path) ON DELETE CASCADE ON UPDATE CASCADE"
    ") WITHOUT ROWID;"
    "CREATE INDEX tag_path ON tag (path);";

/* The reasoning before an answer. It is not indexed, as it is not part of the conversation. */
static const char step_reasoning[] = "ALTER TABLE message ADD COLUMN reasoning TEXT NOT NULL DEFAULT '';";

/* Indexes words of scripts without spaces character by character: store_words.c. The triggers stay; existing
 * messages are indexed again as in step_scale. */
static const char step_words[] =
    "DROP TABLE session_text;"
    "DROP TABLE message_text;"
    "CREATE VIRTUAL TABLE session_text USING fts5 ("
    "  title, content = 'session', content_rowid = 'id', tokenize = 'pippin');"
    "CREATE VIRTUAL TABLE message_text USING fts5 ("
    "  content, content = 'message', content_rowid = 'id', tokenize = 'pippin', prefix = '1 2 3');"
    "UPDATE search_state SET indexed_from = (SELECT coalesce(max(id) + 1, 0) FROM message);"
    "INSERT INTO session_text (session_text) VALUES ('rebuild');";

/* Step i leads from version i to i + 1; the last statement sets the new version. */
static const struct {
    const char *sql;
    const char *set_version;
} steps[] = {
    {step_tables, "PRAGMA user_version = 1"},
    {step_search, "PRAGMA user_version = 2"},
    {step_scale, "PRAGMA user_version = 3"},
    {step_adapters, "PRAGMA user_version = 4"},
    {step_models, "PRAGMA user_version = 5"},
    {step_reasoning, "PRAGMA user_version = 6"},
    {step_words, "PRAGMA user_version = 7"},
};
enum { VERSION = sizeof steps / sizeof steps[0] };

/* SQLite does not call its busy handler where waiting could deadlock (two programs that create the file, or turn on
 * WAL, at the same time): then the whole statement is repeated. */
static int exec_patiently(sqlite3 *db, const char *sql)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    int rc = SQLITE_OK;
    for (int i = 0; i < 250; i++) {
        rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
        if ((rc & 0xFF) != SQLITE_BUSY && (rc & 0xFF) != SQLITE_LOCKED)
            return rc;
        nanosleep(&pause, NULL);
    }
    return rc;
}

static int read_int(sqlite3 *db, const char *sql, int64_t *value)
{
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &stmt, NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(stmt);
        *value = rc == SQLITE_ROW ? sqlite3_column_int64(stmt, 0) : 0;
        rc = rc == SQLITE_ROW ? SQLITE_OK : rc;
    }
    sqlite3_finalize(stmt);
    return rc;
}

static enum pp_code unreadable(struct pp_store *st, int rc, const char *path, struct pp_error *err)
{
    if ((rc & 0xFF) == SQLITE_NOTADB)
        return pp_fail(err, PP_ERR_FORMAT, "%s is not a database; move it away, and pippin will create a new one",
                       path);
    if ((rc & 0xFF) == SQLITE_CORRUPT)
        return pp_fail(err, PP_ERR_FORMAT,
                       "%s is damaged; copy it, try `sqlite3 %s .recover | sqlite3 new.db`, and put new.db in its "
                       "place", path, path);
    pp_store_fail(st, rc, "open the conversations and models", err);
    return pp_fail_prefix(err, "%s", path);
}

/* Reads the version, and checks that the file is ours or empty. */
static enum pp_code check_owner(struct pp_store *st, const char *path, int64_t *version, struct pp_error *err)
{
    int64_t application = 0, n_objects = 0;
    int rc = read_int(st->db, "PRAGMA user_version", version);
    if (rc == SQLITE_OK)
        rc = read_int(st->db, "PRAGMA application_id", &application);
    if (rc == SQLITE_OK)
        rc = read_int(st->db, "SELECT count(*) FROM sqlite_schema", &n_objects);
    if (rc != SQLITE_OK)
        return unreadable(st, rc, path, err);
    if (application != APPLICATION_ID && (application || *version || n_objects))
        return pp_fail(err, PP_ERR_FORMAT,
                       "%s is the database of another program; move it away, and pippin will create a new one",
                       path);
    if (*version > VERSION)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "%s was written by a newer version of pippin (schema %lld, this one knows up to %d); update "
                       "pippin",
                       path, (long long)*version, (int)VERSION);
    if (*version < 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s has schema version %lld, which never existed", path,
                       (long long)*version);
    return PP_OK;
}

/* The check returns a single row, "ok", if nothing is wrong. */
enum pp_code pp_store_check(struct pp_store *st, const char *path, struct pp_error *err)
{
    int64_t version;
    sqlite3_stmt *stmt = NULL;
    enum pp_code code = check_owner(st, path, &version, err);
    if (code != PP_OK)
        return code;
    int rc = sqlite3_prepare_v2(st->db, "PRAGMA quick_check(1)", -1, &stmt, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(stmt)) == SQLITE_ROW)
        rc = sqlite3_stricmp((const char *)sqlite3_column_text(stmt, 0), "ok") == 0 ? SQLITE_OK : SQLITE_CORRUPT;
    if ((rc & 0xFF) == SQLITE_CORRUPT) /* although it could be opened */
        code = pp_fail(err, PP_ERR_FORMAT, "%s is damaged; copy it, save what can be read with `pippin sessions "
                       "export --all -o FILE.jsonl`, move it away, and import FILE.jsonl", path);
    else if (rc != SQLITE_OK)
        code = unreadable(st, rc, path, err);
    sqlite3_finalize(stmt);
    return code;
}

bool pp_store_is_ours(struct pp_store *st)
{
    int64_t application = 0;
    return read_int(st->db, "PRAGMA application_id", &application) == SQLITE_OK && application == APPLICATION_ID;
}

bool pp_store_is_readable(struct pp_store *st)
{
    int64_t version;
    const int rc = read_int(st->db, "PRAGMA user_version", &version);
    return rc == SQLITE_OK || (rc & 0xFF) == SQLITE_BUSY;
}

enum pp_code pp_store_check_schema(struct pp_store *st, const char *path, struct pp_error *err)
{
    int64_t version = 0;
    const enum pp_code code = check_owner(st, path, &version, err);
    if (code || version == VERSION)
        return code;
    return pp_fail(err, PP_ERR_IO, "%s was written by an older version of pippin and must be upgraded, but is not "
                                   "writable", path);
}

/* Applies all missing steps in one transaction: after a crash the old version is intact. */
static enum pp_code migrate(struct pp_store *st, const char *path, struct pp_error *err)
{
    int64_t version = 0;
    int rc = exec_patiently(st->db, "BEGIN IMMEDIATE");
    if (rc != SQLITE_OK)
        return unreadable(st, rc, path, err);
    enum pp_code code = check_owner(st, path, &version, err); /* again, as another program may have migrated it */
    char mark[64];
    snprintf(mark, sizeof mark, "PRAGMA application_id = %d", (int)APPLICATION_ID);
    if (!code && version == 0)
        rc = sqlite3_exec(st->db, mark, NULL, NULL, NULL);
    for (int64_t i = version; !code && rc == SQLITE_OK && i < VERSION; i++) {
        rc = sqlite3_exec(st->db, steps[i].sql, NULL, NULL, NULL);
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(st->db, steps[i].set_version, NULL, NULL, NULL);
    }
    if (!code && rc == SQLITE_OK)
        rc = sqlite3_exec(st->db, "COMMIT", NULL, NULL, NULL);
    if (!code && rc != SQLITE_OK)
        code = unreadable(st, rc, path, err);
    if (!sqlite3_get_autocommit(st->db))
        sqlite3_exec(st->db, "ROLLBACK", NULL, NULL, NULL);
    return code;
}

enum pp_code pp_store_prepare_schema(struct pp_store *st, const char *path, struct pp_error *err)
{
    int64_t version = 0;
    sqlite3_busy_timeout(st->db, 5000);
    sqlite3_extended_result_codes(st->db, 1);
    /* no statement can damage the structure of the file */
    sqlite3_db_config(st->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    /* In a transaction, so that another program which is creating the file cannot come between the queries. */
    int rc = sqlite3_exec(st->db, "BEGIN", NULL, NULL, NULL);
    enum pp_code code = rc == SQLITE_OK ? check_owner(st, path, &version, err) : unreadable(st, rc, path, err);
    sqlite3_exec(st->db, "ROLLBACK", NULL, NULL, NULL);
    if (code)
        return code;
    /* In WAL mode, NORMAL does not sync at a commit, and a power cut may undo the last ones. FULL does: what we
     * report as saved is on the disk. There is about one commit per second, so its cost does not matter. */
    rc = exec_patiently(st->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;");
    if (rc != SQLITE_OK)
        return unreadable(st, rc, path, err);
    return version < VERSION ? migrate(st, path, err) : PP_OK;
}
