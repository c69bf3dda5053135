/* store_words.c - the tokenizer of the search index: that of FTS5's unicode61, except that for scripts without (or
 * with optional) spaces between words each character is a token. A word in such a script is then found anywhere, as
 * its characters are a phrase in a query.
 *
 *   Custom tokenizers:  https://www.sqlite.org/fts5.html#custom_tokenizers */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/store_internal.h"

typedef int token_fn(void *user, int flags, const char *token, int n, int start, int end);

struct words {
    fts5_tokenizer others; /* unicode61 */
    Fts5Tokenizer *of_others;
};

/* Passes on the tokens of a piece with their positions in the whole text. */
struct piece {
    void *user;
    token_fn *token;
    int at;
};

/* Blocks of Unicode 15: first and last character, ascending. */
static const int32_t unspaced[][2] = {
    {0x0E00, 0x0EFF},   /* Thai, Lao */
    {0x1000, 0x109F},   /* Myanmar */
    {0x1780, 0x17FF},   /* Khmer */
    {0x2E80, 0x2FDF},   /* CJK radicals */
    {0x3005, 0x3007},   /* iteration marks, and zero */
    {0x3021, 0x3029},   {0x3031, 0x3035},
    {0x3038, 0x31BF},   /* Hiragana, Katakana, Bopomofo, compatibility Jamo */
    {0x31F0, 0x31FF},   {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, /* Katakana, Han */
    {0xAC00, 0xD7A3},   /* Hangul: particles follow the noun without a space */
    {0xF900, 0xFAFF},   /* Han */
    {0xFF66, 0xFFDC},   /* halfwidth Katakana and Jamo */
    {0x1AFF0, 0x1B16F}, /* Kana */
    {0x20000, 0x3FFFF}, /* Han */
};

static bool is_unspaced(int32_t cp)
{
    const size_t n = sizeof unspaced / sizeof *unspaced;
    size_t i = 0;
    while (i < n && cp > unspaced[i][1])
        i++;
    return i < n && cp >= unspaced[i][0];
}

/* Offset of the next character of these scripts at or after `at`; n: there is none. *len: its length. */
static size_t next_unspaced(const char *text, size_t n, size_t at, size_t *len)
{
    enum { MIN_LEAD = 0xE0 }; /* all of them have at least three bytes */
    int32_t cp;
    for (*len = 0; at < n; at += *len) {
        *len = 1;
        if ((unsigned char)text[at] < MIN_LEAD)
            continue;
        *len = pp_utf8_decode(text + at, n - at, &cp);
        if (is_unspaced(cp))
            return at;
    }
    return n;
}

bool pp_store_has_unspaced(const char *text)
{
    size_t len;
    const size_t n = strlen(text);
    return next_unspaced(text, n, 0, &len) < n;
}

static int token_of_piece(void *user, int flags, const char *token, int n, int start, int end)
{
    const struct piece *p = user;
    return p->token(p->user, flags, token, n, p->at + start, p->at + end);
}

static int tokenize_piece(struct words *w, struct piece *p, int flags, const char *text, size_t from, size_t to)
{
    p->at = (int)from;
    return from < to ? w->others.xTokenize(w->of_others, p, flags, text + from, (int)(to - from), token_of_piece)
                     : SQLITE_OK;
}

static int tokenize(Fts5Tokenizer *words, void *user, int flags, const char *text, int n, token_fn *token)
{
    struct words *w = (struct words *)words;
    struct piece p = {user, token, 0};
    const size_t end = n > 0 ? (size_t)n : 0;
    int rc = SQLITE_OK;
    for (size_t at = 0, len; rc == SQLITE_OK && at < end;) {
        const size_t next = next_unspaced(text, end, at, &len);
        rc = tokenize_piece(w, &p, flags, text, at, next);
        at = next < end ? next + len : end;
        if (rc == SQLITE_OK)
            rc = tokenize_piece(w, &p, flags, text, next, at);
    }
    return rc;
}

static void free_words(Fts5Tokenizer *words)
{
    struct words *w = (struct words *)words;
    if (w->of_others)
        w->others.xDelete(w->of_others);
    pp_free(w);
}

static int new_words(void *user, const char **args, int n_args, Fts5Tokenizer **out)
{
    static const char *options[] = {"remove_diacritics", "2"};
    fts5_api *api = user;
    void *unicode61 = NULL;
    struct words *w = pp_calloc(1, sizeof *w);
    (void)args, (void)n_args;
    int rc = w ? api->xFindTokenizer(api, "unicode61", &unicode61, &w->others) : SQLITE_NOMEM;
    if (rc == SQLITE_OK)
        rc = w->others.xCreate(unicode61, options, 2, &w->of_others);
    if (rc == SQLITE_OK)
        *out = (Fts5Tokenizer *)w;
    else if (w)
        pp_free(w);
    return rc;
}

int pp_store_prepare_words(sqlite3 *db)
{
    static fts5_tokenizer words = {new_words, free_words, tokenize};
    sqlite3_stmt *stmt = NULL;
    fts5_api *api = NULL;
    int rc = sqlite3_prepare_v2(db, "SELECT fts5(?1)", -1, &stmt, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_pointer(stmt, 1, &api, "fts5_api_ptr", NULL);
    if (rc == SQLITE_OK)
        sqlite3_step(stmt);
    sqlite3_finalize(stmt);
    return rc != SQLITE_OK ? rc : api ? api->xCreateTokenizer(api, "pippin", api, &words, NULL) : SQLITE_ERROR;
}
