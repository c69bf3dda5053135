/* fill_store.c - see fill_store.h. */
#include "tests/fill_store.h"

#include <math.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <string.h>

#include "engine/base/buf.h"
#include "src/store_internal.h"

enum { OPEN = 24, A_COMMIT = 20000, VOCABULARY = 50000 };
static const int64_t FIRST_MS = 1600000000000, BETWEEN_MS = 60000;

struct talk {               /* a conversation in progress */
    int64_t id, head, parent; /* head: the last message; parent: its question, if it is an answer */
    int64_t left;
};

struct fill {
    const struct fill_options *o;
    sqlite3 *db;
    sqlite3_stmt *session, *message, *touch;
    uint64_t random;
    struct talk open[OPEN];
    int64_t begun, written, now;
    struct pp_buf text;
};

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t next(struct fill *f)
{
    uint64_t z = f->random += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static double unit(struct fill *f)
{
    return (double)(next(f) >> 11) * 0x1p-53;
}

static int64_t below(struct fill *f, int64_t n)
{
    return n > 0 ? (int64_t)(next(f) % (uint64_t)n) : 0;
}

/* --- text -------------------------------------------------------------------------------------------------------- */

static const char *const common[] = {
    "the", "of", "and", "to", "a", "in", "is", "it", "you", "that", "for", "with", "on", "as", "are", "this", "be",
    "or",
    "can", "by", "from", "not", "your", "have", "an", "if", "what", "which", "how", "when", "at", "but", "use", "we",
    "there", "would", "more", "do", "will", "one", "like", "code", "time", "number", "function", "value", "example",
    "think", "water", "thing", "people", "don't", "file", "first", "data", "could", "way", "make", "問題", "東京",
};
enum { COMMON = sizeof common / sizeof common[0] };

static void made_up(struct pp_buf *b, uint64_t rank)
{
    static const char *const begin[] = {"b", "br", "c", "ch", "d", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "pl",
                                        "r", "s", "st", "t", "tr", "v", "w", "z", "é", "ü"};
    static const char *const middle[] = {"a", "e", "i", "o", "u", "ai", "ea", "ou"};
    static const char *const end[] = {"", "n", "r", "l", "s", "t", "nd", "ng"};
    uint64_t h = rank * 0x9E3779B97F4A7C15u;
    for (uint64_t left = rank; left; left /= 200, h = h * 6364136223846793005u + 1442695040888963407u) {
        pp_buf_str(b, begin[(h >> 40) % (sizeof begin / sizeof *begin)]);
        pp_buf_str(b, middle[(h >> 33) % (sizeof middle / sizeof *middle)]);
        pp_buf_str(b, end[(h >> 50) % (sizeof end / sizeof *end)]);
    }
    if (rank % 7 == 0)
        pp_buf_fmt(b, "%d", (int)(rank % 100));
}

static void add_word(struct fill *f)
{
    static const char *const foreign[] = {"你好，世界", "机器学习是什么", "天気がいいから散歩しましょう", "한국어",
                                          "🙂", "🚀🚀", "👩‍👩‍👧", "Привет"};
    if (below(f, 60) == 0) {
        pp_buf_str(&f->text, foreign[below(f, (int64_t)(sizeof foreign / sizeof *foreign))]);
        return;
    }
    /* Zipf's law: the first r of n words have a share of about log(r) / log(n) in all text. */
    uint64_t rank = (uint64_t)exp(unit(f) * log(VOCABULARY + 1));
    if (rank <= COMMON)
        pp_buf_str(&f->text, common[rank - 1]);
    else
        made_up(&f->text, rank);
}

static void write_text(struct fill *f, const char *begin, int64_t words)
{
    pp_buf_clear(&f->text);
    if (begin)
        pp_buf_fmt(&f->text, "%s ", begin);
    for (int64_t i = 0; i < words; i++) {
        if (i)
            pp_buf_str(&f->text, i % 97 == 0 ? ".\n\n" : i % 11 == 0 ? ". " : " ");
        add_word(f);
    }
}

/* From a fifth of the average to nearly twice as much. */
static int64_t length(struct fill *f, int64_t average)
{
    return 1 + average / 5 + below(f, average * 8 / 5);
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

static bool step(struct fill *f, sqlite3_stmt *stmt)
{
    int rc = sqlite3_step(stmt);
    sqlite3_reset(stmt);
    if (rc == SQLITE_DONE)
        return true;
    fprintf(stderr, "cannot fill the store: %s\n", sqlite3_errmsg(f->db));
    return false;
}

static bool begin_talk(struct fill *f, struct talk *t)
{
    char key[17];
    int64_t average = f->o->messages / (f->o->sessions ? f->o->sessions : 1);
    snprintf(key, sizeof key, "%016llx", (unsigned long long)next(f));
    write_text(f, NULL, length(f, 6));
    sqlite3_bind_text(f->session, 1, key, -1, SQLITE_STATIC);
    sqlite3_bind_text(f->session, 2, pp_buf_cstr(&f->text), (int)f->text.len, SQLITE_STATIC);
    sqlite3_bind_int64(f->session, 3, f->now);
    if (!step(f, f->session))
        return false;
    *t = (struct talk){.id = sqlite3_last_insert_rowid(f->db), .left = length(f, average)};
    f->begun++;
    return true;
}

static bool say(struct fill *f, struct talk *t, int role, int64_t parent, int64_t words)
{
    write_text(f, f->o->everywhere, below(f, 500) == 0 ? words * 50 : words);
    f->now += 1 + below(f, 2 * BETWEEN_MS);
    sqlite3_bind_int64(f->message, 1, t->id);
    if (parent)
        sqlite3_bind_int64(f->message, 2, parent);
    else
        sqlite3_bind_null(f->message, 2);
    sqlite3_bind_int(f->message, 3, role);
    sqlite3_bind_text(f->message, 4, pp_buf_cstr(&f->text), (int)f->text.len, SQLITE_STATIC);
    sqlite3_bind_int64(f->message, 5, words * 3 / 2);
    sqlite3_bind_int64(f->message, 6, f->now);
    if (!step(f, f->message))
        return false;
    t->parent = parent;
    t->head = sqlite3_last_insert_rowid(f->db);
    t->left--;
    f->written++;
    sqlite3_bind_int64(f->touch, 1, t->id);
    sqlite3_bind_int64(f->touch, 2, t->head);
    sqlite3_bind_int64(f->touch, 3, f->now);
    return step(f, f->touch);
}

static bool turn(struct fill *f, struct talk *t)
{
    if (!say(f, t, 1, t->head, length(f, f->o->words)))
        return false;
    int64_t question = t->head;
    bool ok = say(f, t, 2, question, length(f, f->o->words * 4));
    if (ok && below(f, 30) == 0)
        ok = say(f, t, 2, question, length(f, f->o->words * 4));
    return ok;
}

static bool commit(struct fill *f)
{
    if (f->o->progress)
        fprintf(f->o->progress, "\r%lld conversations, %lld messages", (long long)f->begun, (long long)f->written);
    if (sqlite3_exec(f->db, "COMMIT; BEGIN", NULL, NULL, NULL) == SQLITE_OK)
        return true;
    fprintf(stderr, "cannot fill the store: %s\n", sqlite3_errmsg(f->db));
    return false;
}

/* Writes some conversations at a time, each until it is finished. */
static bool write_all(struct fill *f)
{
    int64_t committed = 0;
    for (int n_open = 0;;) {
        while (n_open < OPEN && f->begun < f->o->sessions)
            if (!begin_talk(f, &f->open[n_open++]))
                return false;
        if (n_open == 0)
            return true;
        int i = (int)below(f, n_open);
        if (!turn(f, &f->open[i]))
            return false;
        if (f->open[i].left <= 0)
            f->open[i] = f->open[--n_open];
        if (f->written - committed >= A_COMMIT) {
            committed = f->written;
            if (!commit(f))
                return false;
        }
    }
}

static bool prepare(struct fill *f, const char *path)
{
    static const char session[] = "INSERT INTO session (key, title, model, template_name, system, adapters, settings,"
                                  " created_ms, updated_ms) VALUES (?1, ?2, '', '', '', '[]', '{}', ?3, ?3)";
    static const char message[] = "INSERT INTO message (session, parent, role, state, content, model, adapters, params,"
                                  " stats, n_tokens, created_ms)"
                                  " VALUES (?1, ?2, ?3, 0, ?4, '', '[]', '{}', '', ?5, ?6)";
    static const char touch[] = "UPDATE session SET head = ?2, updated_ms = ?3 WHERE id = ?1";
    return sqlite3_open_v2(path, &f->db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK &&
           pp_store_prepare_words(f->db) == SQLITE_OK &&
           sqlite3_exec(f->db, "PRAGMA synchronous = OFF; PRAGMA foreign_keys = ON; PRAGMA cache_size = -200000; BEGIN",
                        NULL, NULL, NULL) == SQLITE_OK &&
           sqlite3_prepare_v2(f->db, session, -1, &f->session, NULL) == SQLITE_OK &&
           sqlite3_prepare_v2(f->db, message, -1, &f->message, NULL) == SQLITE_OK &&
           sqlite3_prepare_v2(f->db, touch, -1, &f->touch, NULL) == SQLITE_OK;
}

int fill_store(const char *path, const struct fill_options *o)
{
    struct fill f = {.o = o, .random = o->seed, .now = FIRST_MS};
    bool ok = prepare(&f, path);
    if (!ok)
        fprintf(stderr, "cannot fill %s: %s\n", path, sqlite3_errmsg(f.db));
    ok = ok && write_all(&f);
    ok = ok && sqlite3_exec(f.db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK;
    if (o->progress)
        fprintf(o->progress, "\r%lld conversations, %lld messages\n", (long long)f.begun, (long long)f.written);
    sqlite3_finalize(f.session);
    sqlite3_finalize(f.message);
    sqlite3_finalize(f.touch);
    sqlite3_close(f.db);
    pp_buf_free(&f.text);
    return ok ? 0 : -1;
}

enum pp_code list_sessions(struct pp_store *st, const char *query, struct pp_session **list, size_t *n,
                           struct pp_error *err)
{
    struct pp_search all = {.text = query, .before = INT64_MAX, .limit = SIZE_MAX};
    if (!query || !query[strspn(query, " \t\n\r")])
        return pp_store_session_page(st, NULL, false, SIZE_MAX, list, n, err);
    return pp_store_search(st, &all, list, n, NULL, err);
}
