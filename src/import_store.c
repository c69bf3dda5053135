#include "src/import_store.h"

#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

/* An open-addressing hash table from traits to conversations, at most half full; several conversations may have the
 * same trait. The traits of a conversation are hashes of: its first message; that and the second in which it began;
 * that and the milliseconds; and, once conversations with the same first message have been looked up, each message
 * together with all before it (a line). */
struct trait {
    uint64_t hash;
    int64_t session; /* 0: none */
};

/* What is committed together: as much as fits into BATCH_NS, and no more locks than the limit of open files allows. */
enum { BATCH_NS = 100 * 1000 * 1000, BATCH_LOCKS = 64 };

struct pp_importer {
    struct pp_store *st;
    const char *locks;
    bool again;
    struct trait *slots;     /* [mask + 1] */
    size_t mask, n;
    bool no_memory;
    bool batch;              /* there are uncommitted changes */
    uint64_t batch_began_ns;
    int held[BATCH_LOCKS];   /* [n_held] locks of the conversations changed in this batch */
    int n_held;
    int alone;               /* the lock against other imports, or -1 */
    int64_t given_ms;        /* the time given to the last conversation whose file has none */
    struct pp_error lost;    /* why a batch could not be committed */
};

/* --- the table of traits ------------------------------------------------------------------------------------ */

static void place(struct trait *slots, size_t mask, struct trait t)
{
    size_t i = (size_t)t.hash & mask;
    while (slots[i].session)
        i = (i + 1) & mask;
    slots[i] = t;
}

static bool grow(struct pp_importer *im)
{
    const size_t mask = im->mask ? 2 * im->mask + 1 : 1023;
    struct trait *larger = pp_calloc(mask + 1, sizeof *larger);
    if (!larger)
        return false;
    for (size_t i = 0; im->slots && i <= im->mask; i++)
        if (im->slots[i].session)
            place(larger, mask, im->slots[i]);
    pp_free(im->slots);
    im->slots = larger;
    im->mask = mask;
    return true;
}

static void note(struct pp_importer *im, uint64_t hash, int64_t session)
{
    if (2 * (im->n + 1) > im->mask && !grow(im)) {
        im->no_memory = true;
        return;
    }
    place(im->slots, im->mask, (struct trait){hash, session});
    im->n++;
}

/* The next entry with this hash, beginning the search at *at, which is initially the hash; NULL: there are no more. */
static const struct trait *next_with(const struct pp_importer *im, uint64_t hash, size_t *at)
{
    while (im->slots) {
        const struct trait *t = &im->slots[*at & im->mask];
        ++*at;
        if (!t->session)
            return NULL;
        if (t->hash == hash)
            return t;
    }
    return NULL;
}

static uint64_t hash_of(const char *text, size_t len)
{
    return XXH3_64bits(text ? text : "", text ? len : 0);
}

static uint64_t with(uint64_t hash, int64_t more)
{
    return XXH3_64bits_withSeed(&more, sizeof more, hash);
}

static uint64_t begun_at(uint64_t begin, int64_t created)
{
    return with(begin, created);
}

/* part: milliseconds, or 0 if unknown. */
static uint64_t begun_exactly(uint64_t begin, int64_t created, int part)
{
    return with(begun_at(begin, created), part);
}

/* A trait that is noted once the lines of conversations with this beginning are in the table. */
static uint64_t lines_mark(uint64_t begin)
{
    return with(begin, -1);
}

static void note_begun(struct pp_importer *im, int64_t session, uint64_t begin, int64_t created, int part)
{
    note(im, begin, session);
    note(im, begun_at(begin, created), session);
    note(im, begun_exactly(begin, created, part), session);
}

static void note_beginning(void *importer, int64_t session, int64_t created_ms, const char *text, size_t len)
{
    note_begun(importer, session, hash_of(text, len), created_ms / 1000, (int)(created_ms % 1000));
}

/* Takes a lock that excludes other imports: they would not see each other's additions, and both would add the same
 * conversations. */
static enum pp_code lock_out_other_imports(struct pp_importer *im, struct pp_error *err)
{
    const enum pp_code code = pp_session_lock(im->locks, "import", &im->alone, err);
    return code == PP_ERR_BUSY ? pp_fail(err, code, "another pippin is importing conversations; wait until it is done, "
                                                    "and import again") : code;
}

enum pp_code pp_importer_new(struct pp_store *st, const char *locks, bool again, struct pp_importer **out,
                             struct pp_error *err)
{
    struct pp_importer *im = pp_calloc(1, sizeof *im);
    *out = NULL;
    if (!im)
        return pp_fail_nomem(err, "the conversations");
    *im = (struct pp_importer){.st = st, .locks = locks, .again = again, .alone = -1};
    enum pp_code code = again ? PP_OK : lock_out_other_imports(im, err);
    if (!code && !again)
        code = pp_store_beginnings(st, note_beginning, im, err);
    if (!code && im->no_memory)
        code = pp_fail_nomem(err, "the conversations");
    if (code)
        pp_importer_free(im);
    else
        *out = im;
    return code;
}

static void release_locks(struct pp_importer *im)
{
    while (im->n_held)
        close(im->held[--im->n_held]);
}

void pp_importer_free(struct pp_importer *im)
{
    if (!im)
        return;
    release_locks(im);
    if (im->alone >= 0)
        close(im->alone);
    pp_free(im->slots);
    pp_free(im);
}

/* --- batches ------------------------------------------------------------------------------------------------------ */

static enum pp_code begin_batch(struct pp_importer *im, struct pp_error *err)
{
    if (im->batch)
        return PP_OK;
    const enum pp_code code = pp_store_batch_begin(im->st, "save the conversations", err);
    im->batch = code == PP_OK;
    im->batch_began_ns = pp_now_ns();
    return code;
}

enum pp_code pp_importer_flush(struct pp_importer *im, struct pp_error *err)
{
    if (im->batch && !im->lost.code)
        pp_store_batch_end(im->st, PP_OK, &im->lost);
    im->batch = false;
    release_locks(im);
    if (im->lost.code && err)
        *err = im->lost;
    return im->lost.code;
}

bool pp_importer_flushed(const struct pp_importer *im)
{
    return !im->batch;
}

/* --- comparing conversations -------------------------------------------------------------------------------------- */

static bool same_text(const char *a, size_t n_a, const char *b, size_t n_b)
{
    return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a) == 0);
}

static bool begins_with(const char *a, size_t n_a, const char *b, size_t n_b)
{
    return n_a >= n_b && (n_b == 0 || memcmp(a, b, n_b) == 0);
}

/* A file without times matches any time. */
static bool same_time(int64_t here, int64_t there)
{
    return !there || here == there;
}

/* An answer that was exported while it was being written matches the complete answer. */
static bool same_message(const struct pp_message *here, const struct pp_message *there)
{
    bool (*same)(const char *, size_t, const char *, size_t) =
        there->state == PP_MESSAGE_COMPLETE ? same_text : begins_with;
    return here->role == there->role && same_time(here->created, there->created) &&
           same(here->content, here->content_len, there->content, there->content_len) &&
           same(here->reasoning, here->reasoning_len, there->reasoning, there->reasoning_len);
}

/* Which messages of a file's conversation (`there`) exist in a conversation of the store (`here`). */
struct match {
    struct pp_conversation here;
    int64_t *places;  /* [there->n] places in `here`; 0: missing */
    size_t n_missing;
};

static void match_clear(struct match *m)
{
    pp_conversation_clear(&m->here);
    pp_free(m->places);
    *m = (struct match){0};
}

/* Lists the children of each message, oldest first: first[place], next[place], 0 for none; first[0] are the roots. */
static bool link_children(const struct pp_conversation *here, int64_t **first, int64_t **next)
{
    *first = pp_calloc(here->n + 1, sizeof **first);
    *next = pp_calloc(here->n + 1, sizeof **next);
    if (!*first || !*next)
        return false;
    for (size_t i = here->n; i > 0; i--) {
        const int64_t parent = here->messages[i - 1].parent;
        (*next)[i] = (*first)[parent];
        (*first)[parent] = (int64_t)i;
    }
    return true;
}

/* Each message that is found is removed from the list of children, so that it matches only once. */
static enum pp_code find_messages(struct match *m, const struct pp_conversation *there, struct pp_error *err)
{
    int64_t *first = NULL, *next = NULL;
    m->places = pp_calloc(there->n + 1, sizeof *m->places);
    m->n_missing = 0;
    const bool ok = link_children(&m->here, &first, &next) && m->places;
    for (size_t i = 0; ok && i < there->n; i++) {
        const int64_t parent = there->messages[i].parent;
        int64_t none = 0, *at = parent == 0 ? &first[0] : &none;
        if (parent > 0 && parent <= (int64_t)i && m->places[parent - 1])
            at = &first[m->places[parent - 1]];
        while (*at && !same_message(&m->here.messages[*at - 1], &there->messages[i]))
            at = &next[*at];
        m->places[i] = *at;
        m->n_missing += !*at;
        if (*at)
            *at = next[*at];
    }
    pp_free(first);
    pp_free(next);
    return ok ? PP_OK : pp_fail_nomem(err, "the conversations");
}

static const char *or_empty(const char *s)
{
    return s ? s : "";
}

static bool same_session(const struct match *m, const struct pp_conversation *there)
{
    const struct pp_session *a = &m->here.session, *b = &there->session;
    const bool timed = b->created && there->n && there->messages[0].created;
    if (strcmp(or_empty(a->system), or_empty(b->system)) != 0 || !same_time(a->created, b->created) ||
        (a->created_part && !same_time(a->created_part, b->created_part)))
        return false;
    return m->n_missing == 0 || (timed && m->places[0]);
}

/* Hashes each message with those before it, by role and text. `begin` is included, so that lines of conversations
 * that begin differently never have the same hash. out: [c->n]. */
static void hash_lines(const struct pp_conversation *c, uint64_t begin, uint64_t *out)
{
    for (size_t i = 0; i < c->n; i++) {
        const struct pp_message *m = &c->messages[i];
        const bool has_parent = m->parent > 0 && m->parent <= (int64_t)i;
        const uint64_t parts[] = {has_parent ? out[m->parent - 1] : begin, (uint64_t)m->role,
                                  hash_of(m->content, m->content_len), hash_of(m->reasoning, m->reasoning_len)};
        out[i] = XXH3_64bits(parts, sizeof parts);
    }
}

static void note_lines(struct pp_importer *im, const struct pp_conversation *c, uint64_t begin, int64_t session)
{
    uint64_t *lines = pp_calloc(c->n + 1, sizeof *lines);
    im->no_memory = im->no_memory || !lines;
    if (!lines)
        return;
    hash_lines(c, begin, lines);
    for (size_t i = 0; i < c->n; i++)
        note(im, lines[i], session);
    pp_free(lines);
}

/* A conversation that another program has deleted meanwhile is returned empty. */
static enum pp_code read_here(struct pp_importer *im, int64_t session, struct pp_conversation *here,
                              struct pp_error *err)
{
    const enum pp_code code = pp_conversation_read(im->st, session, here, err);
    if (code != PP_ERR_NOT_FOUND)
        return code;
    *here = (struct pp_conversation){0};
    return PP_OK;
}

static bool lines_known(const struct pp_importer *im, uint64_t begin)
{
    size_t at = (size_t)lines_mark(begin);
    return next_with(im, lines_mark(begin), &at);
}

/* Adds the lines of all conversations with this beginning to the table. */
static enum pp_code learn_lines(struct pp_importer *im, uint64_t begin, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    int64_t *sessions = NULL;
    size_t n = 0, cap = 0, at = (size_t)begin;
    for (const struct trait *t; (t = next_with(im, begin, &at));) {
        if (pp_grow(&sessions, &cap, n + 1, sizeof *sessions) != 0)
            code = pp_fail_nomem(err, "the conversations");
        if (code)
            break;
        sessions[n++] = t->session;
    }
    for (size_t i = 0; i < n && !code; i++) {
        struct pp_conversation here = {0};
        code = read_here(im, sessions[i], &here, err);
        if (!code)
            note_lines(im, &here, begin, sessions[i]);
        pp_conversation_clear(&here);
    }
    pp_free(sessions);
    note(im, lines_mark(begin), -1);
    return code;
}

/* A trait for a conversation whose file has no times. All its messages must exist in the store, so the hash of its
 * last line suffices; of its last complete message, since an incomplete one may have grown. */
static enum pp_code untimed_trait(struct pp_importer *im, const struct pp_conversation *there, uint64_t begin,
                                  uint64_t *trait, struct pp_error *err)
{
    bool *whole = pp_calloc(there->n + 1, sizeof *whole);
    uint64_t *lines = pp_calloc(there->n + 1, sizeof *lines);
    enum pp_code code = whole && lines ? PP_OK : pp_fail_nomem(err, "the conversations");
    *trait = begin;
    if (!code && !lines_known(im, begin))
        code = learn_lines(im, begin, err);
    if (!code && im->no_memory)
        code = pp_fail_nomem(err, "the conversations");
    if (!code)
        hash_lines(there, begin, lines);
    for (size_t i = 0; !code && i < there->n; i++) {
        const struct pp_message *m = &there->messages[i];
        const bool has_parent = m->parent > 0 && m->parent <= (int64_t)i;
        whole[i] = m->state == PP_MESSAGE_COMPLETE && (!m->parent || (has_parent && whole[m->parent - 1]));
        if (whole[i])
            *trait = lines[i];
    }
    pp_free(whole);
    pp_free(lines);
    return code;
}

/* One or two traits that a matching conversation must have, chosen to match few others. With milliseconds in the
 * file, a second one matches conversations whose milliseconds are unknown. */
static enum pp_code traits_of(struct pp_importer *im, const struct pp_conversation *there, uint64_t begin,
                              uint64_t traits[2], size_t *n, struct pp_error *err)
{
    const int64_t created = there->session.created;
    const int part = there->session.created_part;
    *n = part ? 2 : 1;
    if (!created)
        return untimed_trait(im, there, begin, &traits[0], err);
    traits[0] = part ? begun_exactly(begin, created, part) : begun_at(begin, created);
    traits[1] = begun_exactly(begin, created, 0);
    return PP_OK;
}

static uint64_t beginning_of(const struct pp_conversation *c)
{
    return c->n ? hash_of(c->messages[0].content, c->messages[0].content_len) : hash_of("", 0);
}

/* Of the conversations with this trait, finds the matching one that lacks fewest messages; replaces *best if it is
 * better. */
static enum pp_code find_with(struct pp_importer *im, const struct pp_conversation *there, uint64_t trait,
                              struct match *best, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    size_t at = (size_t)trait;
    for (const struct trait *t; !code && (t = next_with(im, trait, &at));) {
        struct match m = {0};
        code = read_here(im, t->session, &m.here, err);
        if (!code && m.here.session.id)
            code = find_messages(&m, there, err);
        if (!code && m.here.session.id && same_session(&m, there) &&
            (!best->here.session.id || m.n_missing < best->n_missing)) {
            const struct match swap = *best;
            *best = m;
            m = swap;
        }
        match_clear(&m);
        if (best->here.session.id && !best->n_missing)
            break;
    }
    return code;
}

/* Finds the matching conversation that lacks fewest messages; best->here.session.id 0: there is none. */
static enum pp_code find(struct pp_importer *im, const struct pp_conversation *there, struct match *best,
                         struct pp_error *err)
{
    uint64_t traits[2];
    size_t n = 0;
    *best = (struct match){0};
    if (im->again)
        return PP_OK;
    enum pp_code code = traits_of(im, there, beginning_of(there), traits, &n, err);
    for (size_t i = 0; i < n && !code && !best->here.session.id; i++)
        code = find_with(im, there, traits[i], best, err);
    return code;
}

/* --- adding ------------------------------------------------------------------------------------------------------- */

/* The place in the file of the new head: the file's head, if it continues from the store's head; otherwise 0. Does
 * not follow a parent that comes after its child, which the store refuses. */
static int64_t new_head(const struct match *m, const struct pp_conversation *there)
{
    int64_t at = there->session.head <= (int64_t)there->n ? there->session.head : 0;
    while (at > 0 && !m->places[at - 1]) {
        const int64_t parent = there->messages[at - 1].parent;
        at = parent < at ? parent : 0;
    }
    const int64_t from = at > 0 ? m->places[at - 1] : 0;
    return at != there->session.head && from == m->here.session.head ? there->session.head : 0;
}

static enum pp_code extend(struct pp_importer *im, struct match *m, struct pp_conversation *there,
                           struct pp_import_result *result, struct pp_error *err)
{
    int lock = -1;
    enum pp_code code = pp_session_lock(im->locks, m->here.session.key, &lock, err);
    if (code == PP_ERR_BUSY && im->n_held) { /* by this batch, perhaps */
        code = pp_importer_flush(im, err);
        if (!code)
            code = pp_session_lock(im->locks, m->here.session.key, &lock, err);
    }
    if (code == PP_ERR_BUSY) {
        result->outcome = PP_IMPORT_BUSY;
        return PP_OK;
    }
    if (!code)
        code = begin_batch(im, err);
    for (size_t i = 0; i < there->n; i++)
        there->messages[i].id = m->places[i] ? m->here.messages[m->places[i] - 1].id : 0;
    if (!code)
        code = pp_store_conversation_extend(im->st, m->here.session.id, there->messages, there->n, new_head(m, there),
                                            there->session.updated, err);
    if (lock >= 0 && !code)
        im->held[im->n_held++] = lock;
    else if (lock >= 0) /* the batch does not contain it */
        close(lock);
    result->outcome = PP_IMPORT_EXTENDED;
    return code;
}

/* Gives a time that no other conversation has, since it identifies conversations with the same beginning. */
static void give_time(struct pp_importer *im, struct pp_session *s)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const int64_t now = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    im->given_ms = im->given_ms < now ? now : im->given_ms + 1;
    im->given_ms += im->given_ms % 1000 == 0;
    s->created = im->given_ms / 1000;
    s->created_part = (int)(im->given_ms % 1000);
}

static enum pp_code add(struct pp_importer *im, struct pp_conversation *c, struct pp_import_result *result,
                        struct pp_error *err)
{
    enum pp_code code = begin_batch(im, err);
    if (!c->session.created)
        give_time(im, &c->session);
    if (!code)
        code = pp_conversation_add(im->st, c, err);
    *result = (struct pp_import_result){PP_IMPORT_ADDED, c->n};
    if (!code && !im->again) {
        const uint64_t begin = beginning_of(c);
        note_begun(im, c->session.id, begin, c->session.created, c->session.created_part);
        if (lines_known(im, begin))
            note_lines(im, c, begin, c->session.id);
    }
    if (!code && im->no_memory)
        code = pp_fail_nomem(err, "the conversations");
    c->session.n_messages = (int64_t)c->n;
    return code;
}

enum pp_code pp_importer_put(struct pp_importer *im, struct pp_conversation *c, struct pp_import_result *result,
                             struct pp_error *err)
{
    struct match m;
    enum pp_code code = find(im, c, &m, err);
    *result = (struct pp_import_result){PP_IMPORT_HERE, m.n_missing};
    if (!code && !m.here.session.id) {
        code = add(im, c, result, err);
    } else if (!code) {
        if (m.n_missing)
            code = extend(im, &m, c, result, err);
        if (result->outcome == PP_IMPORT_EXTENDED) {
            m.here.session.n_messages += (int64_t)m.n_missing;
            if (lines_known(im, beginning_of(c)))
                note_lines(im, c, beginning_of(c), m.here.session.id);
        }
        const struct pp_session swap = c->session;
        c->session = m.here.session;
        m.here.session = swap;
    }
    match_clear(&m);
    if (!code && im->batch && (im->n_held == BATCH_LOCKS || pp_now_ns() - im->batch_began_ns >= BATCH_NS))
        code = pp_importer_flush(im, err);
    return code;
}
