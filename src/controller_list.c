/* controller_list.c - the list of conversations on the screen: all of them, or those that a search has found.
 *
 * Only a window of the list is in memory; further rows are fetched from the database by pages when the screen asks
 * for them. One job is under way at a time. Typing meanwhile cancels it, and only the latest query is run next. */
#include <stdatomic.h>
#include <string.h>

#include "engine/base/mem.h"
#include "src/controller_int.h"

enum { PAGE = 64 };

enum fetch {
    FETCH_NEWEST, FETCH_OLDEST,  /* a new window at the start or the end of the list */
    FETCH_OLDER, FETCH_NEWER,    /* rows adjacent to the window */
};

struct ctl_list_job {
    struct pp_job job; /* first */
    enum fetch fetch;
    char *query;       /* "" for all conversations */
    struct pp_session from;
    bool any;          /* ignore `from`: begin at the end of the list */
    bool best_first, ranked; /* for a search: the order that was wanted, and (out) whether it was possible */
    int64_t *known;    /* [n_known] */
    size_t n_known, limit;
    atomic_bool stop;
    struct pp_session *sessions; /* [n] out */
    size_t n;
    int64_t total;     /* out: of all conversations; not set for a search */
    uint64_t renamings; /* c->renamings when it was posted */
};

static void release(struct pp_job *job)
{
    struct ctl_list_job *j = (struct ctl_list_job *)job;
    pp_free(j->query);
    pp_free(j->known);
    pp_session_list_free(j->sessions, j->n);
    pp_free(j);
}

/* --- io thread --------------------------------------------------------------------------------------------------- */

static bool stopped(void *job)
{
    return atomic_load(&((struct ctl_list_job *)job)->stop);
}

static void run(struct pp_job *job, struct pp_store *st)
{
    struct ctl_list_job *j = (struct ctl_list_job *)job;
    const struct pp_session *from = j->any ? NULL : &j->from;
    if (stopped(j)) {
        job->code = pp_fail(&job->err, PP_ERR_CANCELLED, "stopped");
    } else if (*j->query) {
        struct pp_search what = {.text = j->query, .before = from ? from->hit : INT64_MAX, .known = j->known,
                                 .n_known = j->n_known, .limit = j->limit, .best_first = j->best_first, .stop = stopped,
                                 .user = j};
        job->code = pp_store_search(st, &what, &j->sessions, &j->n, &j->ranked, &job->err);
    } else {
        bool newer = j->fetch == FETCH_NEWER || j->fetch == FETCH_OLDEST;
        job->code = pp_store_session_page(st, from, newer, j->limit, &j->sessions, &j->n, &job->err);
        if (job->code == PP_OK)
            job->code = pp_store_session_count(st, &j->total, &job->err);
    }
}

/* --- the window -------------------------------------------------------------------------------------------------- */

static void clear_window(struct ctl_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        pp_session_clear(&l->items[i]);
    l->n = l->first = l->total = 0;
}

/* Adds the rows of a job to the window; false: out of memory. */
static bool add_rows(struct ctl_list *l, struct ctl_list_job *j)
{
    if (pp_grow(&l->items, &l->cap, l->n + j->n + 1, sizeof *l->items) != 0)
        return false;
    size_t at = j->fetch == FETCH_NEWER ? 0 : l->n;
    memmove(l->items + at + j->n, l->items + at, (l->n - at) * sizeof *l->items);
    if (j->n)
        memcpy(l->items + at, j->sessions, j->n * sizeof *l->items);
    l->n += j->n;
    pp_free(j->sessions);
    j->sessions = NULL;
    return true;
}

/* Sets the window's offset and the length of the list. For a search the length is unknown until the last page: it
 * counts one row more than has been found. */
static void place_window(struct ctl_list *l, const struct ctl_list_job *j)
{
    bool end = j->n < j->limit;
    if (*j->query) {
        l->first = 0;
        l->total = l->n + !end;
        return;
    }
    l->total = j->total > 0 ? (size_t)j->total : 0;
    if (j->fetch == FETCH_NEWER)
        l->first = end || l->first < j->n ? 0 : l->first - j->n;
    else if (j->fetch == FETCH_OLDEST)
        l->first = l->total > l->n ? l->total - l->n : 0;
    if ((j->fetch == FETCH_OLDER && end) || l->total < l->first + l->n)
        l->total = l->first + l->n;
}

static struct pp_session *row_of(struct ctl_list *l, int64_t session)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->items[i].id == session)
            return &l->items[i];
    return NULL;
}

static void next_job(struct pp_controller *c);

static void on_listed(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct ctl_list *l = &c->list;
    struct ctl_list_job *j = (struct ctl_list_job *)job;
    l->busy = NULL;
    if (l->wanted) { /* the query has changed */
        release(job);
        next_job(c);
        return;
    }
    size_t n = j->n;
    if (j->fetch == FETCH_NEWEST || (job->code == PP_OK && j->fetch == FETCH_OLDEST))
        clear_window(l); /* on failure, too, as the old rows do not match the new query */
    if (job->code == PP_OK && !add_rows(l, j))
        job->code = pp_fail_nomem(&job->err, "the list of conversations");
    if (job->code == PP_OK) {
        const struct pp_session *here = row_of(l, c->session.id);
        j->n = n;
        place_window(l, j);
        j->n = 0;
        if (here)
            ctl_title_read(c, here->id, here->title, j->renamings);
        if (*j->query && j->best_first && !j->ranked && j->fetch == FETCH_NEWEST)
            ctl_notice(c, false, "more than %d messages match, so the newest are listed first", PP_SEARCH_RANKED);
    } else {
        l->failed = true; /* no further attempt until the list is requested again */
        ctl_notice(c, true, "%s", job->err.text);
    }
    ctl_dirty(c, PP_DIRTY_LISTS);
    release(job);
}

static struct ctl_list_job *new_job(struct pp_controller *c, enum fetch fetch, size_t limit)
{
    struct ctl_list_job *j = pp_calloc(1, sizeof *j);
    if (!j || !(j->query = pp_strdup(c->list.query ? c->list.query : ""))) {
        pp_free(j);
        ctl_notice(c, true, "out of memory");
        return NULL;
    }
    j->job = (struct pp_job){.run = run, .done = on_listed, .release = release};
    j->fetch = fetch;
    j->limit = limit;
    j->best_first = c->list.best_first;
    j->any = true;
    j->renamings = c->renamings;
    return j;
}

static void post(struct pp_controller *c, struct ctl_list_job *j)
{
    c->list.busy = j;
    pp_io_post(c->io, &j->job);
}

/* Fetches the first page for the latest query. */
static void next_job(struct pp_controller *c)
{
    struct ctl_list *l = &c->list;
    pp_free(l->query);
    l->query = l->wanted;
    l->wanted = NULL;
    l->failed = false;
    struct ctl_list_job *j = new_job(c, FETCH_NEWEST, PAGE);
    if (j)
        post(c, j);
}

/* Makes the job continue from the edge of the window. A search also passes the ids it has, so that no conversation
 * comes twice. */
static bool from_edge(const struct ctl_list *l, struct ctl_list_job *j)
{
    const struct pp_session *edge = &l->items[j->fetch == FETCH_NEWER ? 0 : l->n - 1];
    j->any = false;
    j->from.id = edge->id;
    j->from.updated_ms = edge->updated_ms;
    j->from.hit = edge->hit;
    if (!*j->query)
        return true;
    j->known = pp_malloc(l->n * sizeof *j->known);
    for (size_t i = 0; j->known && i < l->n; i++)
        j->known[i] = l->items[i].id;
    j->n_known = l->n;
    return j->known != NULL;
}

/* Fetches row i and a page beyond it, starting from wherever the fewest rows have to be read: the window's edge or
 * an end of the list. */
static void fetch_row(struct pp_controller *c, size_t i)
{
    const struct ctl_list *l = &c->list;
    bool below = i < l->first, search = l->n && l->query && *l->query;
    size_t from_window = l->n == 0 ? SIZE_MAX : below ? l->first - i : i - (l->first + l->n) + 1;
    size_t from_top = i + 1, from_end = l->total - i, least = from_window;
    enum fetch fetch = below ? FETCH_NEWER : FETCH_OLDER;
    if (!search && from_top < least) {
        least = from_top;
        fetch = FETCH_NEWEST;
    }
    if (!search && from_end < least) {
        least = from_end;
        fetch = FETCH_OLDEST;
    }
    struct ctl_list_job *j = new_job(c, fetch, least + PAGE);
    if (!j)
        return;
    if ((fetch == FETCH_OLDER || fetch == FETCH_NEWER) && !from_edge(l, j)) {
        ctl_notice(c, true, "out of memory");
        release(&j->job);
        return;
    }
    post(c, j);
}

/* --- requests of the screen -------------------------------------------------------------------------------------- */

void pp_controller_refresh_sessions(struct pp_controller *c, const char *query)
{
    struct ctl_list *l = &c->list;
    const char *words = query + strspn(query, " \t\n\r");
    if (!ctl_set_string(c, &l->wanted, words))
        return;
    if (l->busy)
        atomic_store(&l->busy->stop, true);
    else
        next_job(c);
}

void ctl_list_reload(struct pp_controller *c)
{
    const struct ctl_list *l = &c->list;
    char *query = pp_strdup(l->wanted ? l->wanted : l->query ? l->query : "");
    if (query)
        pp_controller_refresh_sessions(c, query);
    pp_free(query);
}

bool pp_controller_order_sessions(struct pp_controller *c)
{
    c->list.best_first = !c->list.best_first;
    ctl_list_reload(c);
    return c->list.best_first;
}

bool pp_controller_sessions_pending(const struct pp_controller *c)
{
    const struct ctl_list *l = &c->list;
    return l->wanted || (l->busy && l->busy->fetch == FETCH_NEWEST);
}

bool pp_controller_sessions_failed(const struct pp_controller *c)
{
    return c->list.failed;
}

size_t pp_controller_n_sessions(const struct pp_controller *c)
{
    return c->list.total;
}

const struct pp_session *pp_controller_session_at(struct pp_controller *c, size_t i)
{
    struct ctl_list *l = &c->list;
    if (i >= l->first && i - l->first < l->n)
        return &l->items[i - l->first];
    if (i < l->total && !l->busy && !l->failed)
        fetch_row(c, i);
    return NULL;
}

void ctl_list_rename(struct pp_controller *c, int64_t session, const char *title)
{
    struct pp_session *s = row_of(&c->list, session);
    if (s && ctl_set_string(c, &s->title, title))
        ctl_dirty(c, PP_DIRTY_LISTS);
}

void ctl_list_remove(struct pp_controller *c, int64_t session)
{
    struct ctl_list *l = &c->list;
    struct pp_session *s = row_of(l, session);
    if (s) {
        pp_session_clear(s);
        memmove(s, s + 1, (size_t)(l->items + l->n - (s + 1)) * sizeof *s);
        l->n--;
        l->total--;
    }
    ctl_dirty(c, PP_DIRTY_LISTS);
}

void ctl_list_forget(struct pp_controller *c)
{
    clear_window(&c->list);
    c->list.total = 0;
    pp_controller_refresh_sessions(c, "");
    ctl_dirty(c, PP_DIRTY_LISTS);
}

void ctl_list_free(struct ctl_list *l)
{
    clear_window(l);
    pp_free(l->items);
    pp_free(l->query);
    pp_free(l->wanted);
}

/* --- indexing an older database ---------------------------------------------------------------------------------- */

struct index_job {
    struct pp_job job; /* first */
    int64_t limit, left;
    bool again;        /* false for the first run, which only counts */
};

static void free_index_job(struct pp_job *job)
{
    pp_free(job);
}

/* The first run only checks whether there is anything to index. */
static void run_index(struct pp_job *job, struct pp_store *st)
{
    struct index_job *j = (struct index_job *)job;
    job->code = j->again ? pp_store_index_more(st, j->limit, &j->left, &job->err)
                         : pp_store_index_remaining(st, &j->left, &job->err);
}

/* Posts the job again rather than looping, so that other jobs run in between. */
static void on_indexed(struct pp_job *job, void *controller)
{
    struct pp_controller *c = controller;
    struct index_job *j = (struct index_job *)job;
    bool going_on = job->code == PP_OK && j->left > 0;
    if (job->code != PP_OK)
        ctl_notice(c, true, "%s", job->err.text);
    else if (going_on && !j->again)
        ctl_notice(c, false, "building the search index; until it is done, only newer messages are found");
    else if (!going_on && j->again)
        ctl_notice(c, false, "the search index is complete");
    if (going_on && c->state != PP_STATE_CLOSING && c->state != PP_STATE_CLOSED) {
        j->again = true;
        pp_io_post(c->io, job);
    } else {
        free_index_job(job);
    }
}

void ctl_index_start(struct pp_controller *c)
{
    enum { AT_ONCE = 500 };
    struct index_job *j = pp_calloc(1, sizeof *j);
    if (!j)
        return; /* left to the next start */
    j->job = (struct pp_job){.run = run_index, .done = on_indexed, .release = free_index_job, .of_disk = true};
    j->limit = AT_ONCE;
    pp_io_post(c->io, &j->job);
}
