/* cmd_bench_sessions.c - the time of the list, of searches and of opening a conversation with the existing database:
 * everything that the user waits for. The words to search are taken from the conversations: the most frequent and
 * the rarest word of a sample of messages, and their neighbours.
 *
 * Warm: the connection has just answered the same query. Cold: a new connection, after the system was asked to drop
 * the file from its cache (it may keep some of it). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/cmd_bench.h"
#include "src/plain_text.h"
#include "src/store.h"

enum { PAGE = 64, WORD_BYTES = 48, SAMPLE = 200, MAX_WORDS = 20000 };

struct questions {
    char common[WORD_BYTES], rare[WORD_BYTES], phrase[2 * WORD_BYTES + 4], prefix[WORD_BYTES], letter[WORD_BYTES];
    int64_t session, head, n_branch; /* of the conversation that is opened, with about 100 messages */
};

enum { OPEN_STORE, FIRST_PAGE, LAST_PAGE, LIST_ALL, OPEN_BRANCH, SEARCH, N_KINDS };

struct question {
    const char *name, *text; /* text: the words of a search */
    int kind;
    bool best_first;
};

struct measured {
    struct bench *b;
    struct pp_store *st;
    struct questions q;
};

/* --- choosing the queries --------------------------------------------------------------------------------------- */

struct word {
    char text[WORD_BYTES];
    int messages;
};

struct sample {
    struct word *words; /* [n] */
    int n;
};

static bool letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80;
}

/* Whether it consists of whole characters that are safe for a terminal, as it becomes the name of a result. */
static bool can_be_shown(const char *word, size_t len)
{
    int32_t cp;
    for (size_t at = 0; at < len;) {
        at += pp_utf8_decode(word + at, len - at, &cp);
        if (cp < 0 || pp_char_is_obeyed(cp))
            return false;
    }
    return true;
}

static void count_word(struct sample *s, const char *word, size_t len, int message, int *last)
{
    if (len < 2 || len >= WORD_BYTES || !can_be_shown(word, len))
        return;
    int i = 0;
    while (i < s->n && (strncmp(s->words[i].text, word, len) != 0 || s->words[i].text[len]))
        i++;
    if (i == MAX_WORDS)
        return;
    if (i == s->n) {
        memcpy(s->words[s->n].text, word, len);
        s->n++;
        last[i] = -1;
    }
    s->words[i].messages += last[i] != message;
    last[i] = message;
}

static void count_words(struct sample *s, const struct pp_message *m, int message, int *last)
{
    const char *end = m->content + m->content_len;
    for (const char *at = m->content; at < end;) {
        const char *begin = at;
        while (at < end && letter(*at))
            at++;
        count_word(s, begin, (size_t)(at - begin), message, last);
        at += at < end && at == begin;
        while (at < end && !letter(*at))
            at++;
    }
}

/* Two consecutive words of a message. */
static void pick_phrase(struct questions *q, const struct pp_message *m)
{
    const char *text = m->content ? m->content : "";
    for (; *text && !q->phrase[0]; text++) {
        size_t a = 0, b = 0;
        while (letter(text[a]))
            a++;
        while (a && text[a] == ' ' && letter(text[a + 1 + b]))
            b++;
        if (a > 1 && b > 1 && a < WORD_BYTES && b < WORD_BYTES && can_be_shown(text, a + 1 + b))
            snprintf(q->phrase, sizeof q->phrase, "\"%.*s\"", (int)(a + 1 + b), text);
    }
}

static enum pp_code sample_branch(struct measured *x, const struct pp_session *session, struct sample *s, int *last,
                                  int *message, struct pp_error *err)
{
    struct pp_message *list;
    size_t n;
    enum pp_code code = pp_store_branch(x->st, session->head, &list, &n, err);
    if (code)
        return code;
    for (size_t i = 0; i < n && *message < SAMPLE; i++) {
        count_words(s, &list[i], (*message)++, last);
        pick_phrase(&x->q, &list[i]);
    }
    pp_message_list_free(list, n);
    return PP_OK;
}

/* Of the conversations on the first pages, keeps the one whose branch is nearest to 100 messages. */
static void consider(struct measured *x, const struct pp_session *s)
{
    int64_t off = llabs(s->n_messages - 100), best = llabs(x->q.n_branch - 100);
    if (s->head && (!x->q.head || off < best)) {
        x->q.session = s->id;
        x->q.head = s->head;
        x->q.n_branch = s->n_messages;
    }
}

/* Length in bytes of the first n characters. */
static int bytes_of_first(const char *text, int n)
{
    const size_t len = strlen(text);
    size_t at = 0;
    int32_t cp;
    for (int i = 0; i < n && at < len; i++)
        at += pp_utf8_decode(text + at, len - at, &cp);
    return (int)at;
}

static void choose_words(struct questions *q, const struct sample *s)
{
    const struct word *most = NULL, *least = NULL;
    for (int i = 0; i < s->n; i++) {
        const struct word *w = &s->words[i];
        most = !most || w->messages > most->messages ? w : most;
        if (!least || w->messages < least->messages ||
            (w->messages == least->messages && strlen(w->text) > strlen(least->text)))
            least = w;
    }
    if (!most)
        return;
    pp_utf8_print(q->common, sizeof q->common, "\"%.*s\"", WORD_BYTES - 3, most->text);
    pp_utf8_print(q->rare, sizeof q->rare, "\"%.*s\"", WORD_BYTES - 3, least->text);
    snprintf(q->prefix, sizeof q->prefix, "%.*s", bytes_of_first(most->text, 3), most->text);
    snprintf(q->letter, sizeof q->letter, "%.*s", bytes_of_first(most->text, 1), most->text);
}

static enum pp_code prepare(struct measured *x, struct pp_error *err)
{
    struct pp_session *list = NULL;
    struct sample s = {.words = pp_calloc(MAX_WORDS, sizeof *s.words)};
    int *last = pp_calloc(MAX_WORDS, sizeof *last), message = 0;
    size_t n = 0;
    enum pp_code code = s.words && last ? PP_OK : pp_fail_nomem(err, "the words");
    if (!code)
        code = pp_store_session_page(x->st, NULL, false, 4096, &list, &n, err);
    for (size_t i = 0; i < n && !code; i++) {
        consider(x, &list[i]);
        if (message < SAMPLE && list[i].head)
            code = sample_branch(x, &list[i], &s, last, &message, err);
    }
    if (!code && !message)
        code = pp_fail(err, PP_ERR_NOT_FOUND, "there are no conversations to measure with");
    choose_words(&x->q, &s);
    pp_session_list_free(list, n);
    pp_free(s.words);
    pp_free(last);
    return code;
}

/* --- running the queries ---------------------------------------------------------------------------------------- */

static enum pp_code ask(struct measured *x, const struct question *q, struct pp_error *err)
{
    struct pp_session *list = NULL;
    struct pp_message *branch = NULL;
    struct pp_store *again = NULL;
    struct pp_search search = {.text = q->text, .best_first = q->best_first, .before = INT64_MAX, .limit = PAGE};
    size_t n = 0;
    int64_t count;
    enum pp_code code = PP_OK;
    switch (q->kind) {
    case OPEN_STORE:
        code = pp_store_open(x->b->paths->db, &again, err);
        pp_store_close(again);
        return code;
    case FIRST_PAGE:
    case LAST_PAGE:
        code = pp_store_session_page(x->st, NULL, q->kind == LAST_PAGE, PAGE, &list, &n, err);
        if (!code) /* the screen shows their number, too */
            code = pp_store_session_count(x->st, &count, err);
        break;
    case LIST_ALL:
        code = pp_store_session_page(x->st, NULL, false, SIZE_MAX, &list, &n, err);
        break;
    case OPEN_BRANCH:
        code = pp_store_branch(x->st, x->q.head, &branch, &n, err);
        pp_message_list_free(branch, n);
        return code;
    default:
        code = pp_store_search(x->st, &search, &list, &n, NULL, err);
    }
    pp_session_list_free(list, n);
    return code;
}

static void forget(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* The file is not opened here while a connection is open: closing any descriptor of it would release the
 * connection's locks. */
static enum pp_code reopen(struct measured *x, struct pp_error *err)
{
    char wal[700];
    pp_store_close(x->st);
    x->st = NULL;
    snprintf(wal, sizeof wal, "%s-wal", x->b->paths->db);
    forget(x->b->paths->db);
    forget(wal);
    return pp_store_open(x->b->paths->db, &x->st, err);
}

static enum pp_code measure(struct measured *x, const struct question *q, bool cold, struct pp_error *err)
{
    struct bench *b = x->b;
    struct bench_result *r = bench_add(&b->report, b->repetitions);
    if (!r)
        return pp_fail_nomem(err, "the results");
    r->what = "sessions";
    r->unit = "ms";
    pp_utf8_print(r->name, sizeof r->name, "%s%s%.40s%s", q->name, q->text ? " " : "", q->text ? q->text : "",
                  cold ? ", cold" : "");
    enum pp_code code = PP_OK;
    for (int i = -1; i < b->repetitions && !code; i++) {
        if (pp_cancelled(b->cancel))
            return pp_fail(err, PP_ERR_CANCELLED, "interrupted");
        if (cold)
            code = reopen(x, err);
        uint64_t begin = pp_now_ns();
        if (!code)
            code = ask(x, q, err);
        if (i >= 0)
            r->samples[r->n++] = (double)(pp_now_ns() - begin) / 1e6;
    }
    return code;
}

static enum pp_code complete_index(struct measured *x, struct pp_error *err)
{
    enum { AT_ONCE = 2000 };
    int64_t left = 0, all = 0;
    enum pp_code code = pp_store_index_remaining(x->st, &left, err);
    for (all = left; left && !code; code = pp_store_index_more(x->st, AT_ONCE, &left, err))
        bench_show(x->b, "indexing", (uint64_t)(all - left), (uint64_t)all);
    return code;
}

enum pp_code bench_sessions(struct bench *b, struct pp_error *err)
{
    struct measured x = {.b = b};
    enum pp_code code = pp_store_open(b->paths->db, &x.st, err);
    if (!code)
        code = complete_index(&x, err);
    if (!code)
        code = prepare(&x, err);
    const struct question questions[] = {
        {"open the database", NULL, OPEN_STORE, false},
        {"list, first page", NULL, FIRST_PAGE, false},
        {"list, last page", NULL, LAST_PAGE, false},
        {"list, all", NULL, LIST_ALL, false},
        {"open 100 messages", NULL, OPEN_BRANCH, false},
        {"search, common word", x.q.common, SEARCH, false},
        {"search, rare word", x.q.rare, SEARCH, false},
        {"search, rare word, best first", x.q.rare, SEARCH, true},
        {"search, phrase", x.q.phrase, SEARCH, false},
        {"search, three letters", x.q.prefix, SEARCH, false},
        {"search, one letter", x.q.letter, SEARCH, false},
        {"search, nothing found", "qzxjvkwq", SEARCH, false},
    };
    for (size_t i = 0; i < sizeof questions / sizeof *questions && !code; i++) {
        for (int cold = 0; cold < 2 && !code; cold++) {
            bench_show(b, "asking", 2 * i + (size_t)cold, 2 * sizeof questions / sizeof *questions);
            code = measure(&x, &questions[i], cold, err);
        }
    }
    pp_cli_bar_clear(&b->bar);
    pp_store_close(x.st);
    return code;
}
