/* worker_generate.c - the answers under way, computed in one batch, the conversation on the screen first.
 *
 * When pages run out, idle conversations give up theirs, which can be restored from the disk. If that is not enough,
 * the least urgent answer is parked: it releases its pages, and resumes when another one has ended. */
#include <string.h>

#include "src/worker_int.h"

/* --- beginning answers ------------------------------------------------------------------------------------ */

void worker_generate(struct pp_worker *w, struct request *r)
{
    struct request **end = &w->waiting;
    while (*end)
        end = &(*end)->next;
    *end = r;
}

static void refuse(struct pp_worker *w, struct request *r)
{
    struct pp_error err;
    pp_fail(&err, PP_ERR_CANCELLED, "stopped");
    worker_send(w, worker_refusal(w, &r->generate, &err));
    request_end(w, r);
}

/* Begins queued requests as long as an answer slot is free. */
static void begin_waiting(struct pp_worker *w)
{
    while (w->waiting && (w->n_answers < WORKER_ANSWERS || request_cancelled(w, w->waiting))) {
        struct request *r = w->waiting;
        w->waiting = r->next;
        r->next = NULL;
        if (request_cancelled(w, r)) {
            refuse(w, r);
            continue;
        }
        struct answer *a = answer_begin(w, r);
        if (a)
            w->answers[w->n_answers++] = a;
    }
}

/* --- the pass --------------------------------------------------------------------------------------------- */

static void end_answer(struct pp_worker *w, struct answer *a, enum pp_finish finish, const struct pp_error *err)
{
    int i = 0;
    while (w->answers[i] != a)
        i++;
    memmove(&w->answers[i], &w->answers[i + 1], (size_t)(w->n_answers - i - 1) * sizeof *w->answers);
    w->n_answers--;
    answer_end(a, finish, err);
    for (i = 0; i < w->n_answers; i++)
        w->answers[i]->parked = false; /* the ended answer's pages are free */
}

static void end_cancelled(struct pp_worker *w)
{
    struct pp_error err;
    pp_fail(&err, PP_ERR_CANCELLED, "stopped");
    for (int i = w->n_answers - 1; i >= 0; i--)
        if (request_cancelled(w, w->answers[i]->request))
            end_answer(w, w->answers[i], PP_FINISH_NONE, &err);
}

/* Urgency: 0 the conversation on the screen, 1 others, 2 background requests. */
static int rank(const struct answer *a, const char *shown)
{
    const struct pp_generate_request *r = &a->request->generate;
    return r->background ? 2 : r->session_key && strcmp(r->session_key, shown) == 0 ? 0 : 1;
}

/* The answers that are not parked, the most urgent first. */
static int sort_by_urgency(struct pp_worker *w, struct answer *line[static WORKER_ANSWERS])
{
    char shown[sizeof w->shown];
    int n = 0;
    pthread_mutex_lock(&w->lock);
    memcpy(shown, w->shown, sizeof shown);
    pthread_mutex_unlock(&w->lock);
    for (int urgency = 0; urgency <= 2; urgency++)
        for (int i = 0; i < w->n_answers; i++)
            if (!w->answers[i]->parked && rank(w->answers[i], shown) == urgency)
                line[n++] = w->answers[i];
    return n;
}

/* Makes room after an answer in line[0 .. n) could not get a page. False if nothing is left to free: there is only
 * one answer, and no idle conversation. */
static bool find_pages(struct pp_worker *w, struct answer **line, int n)
{
    if (slots_free_idle(w))
        return true;
    if (n < 2)
        return false;
    pp_gen_suspend(line[n - 1]->gen);
    line[n - 1]->parked = true;
    return true;
}

static bool begin_pass(struct pp_worker *w)
{
    bool cancelled = false;
    pthread_mutex_lock(&w->lock);
    pp_cancel_reset(&w->cancel);
    for (int i = 0; i < w->n_answers; i++)
        cancelled = cancelled || w->answers[i]->request->cancelled;
    w->computing = !cancelled;
    pthread_mutex_unlock(&w->lock);
    return !cancelled;
}

static void end_pass(struct pp_worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->computing = false;
    pthread_mutex_unlock(&w->lock);
}

static void take_results(struct pp_worker *w, struct answer **line, struct pp_gen_item *items, int n)
{
    const struct pp_error *no_pages = NULL;
    static const struct pp_error none;
    for (int i = 0; i < n; i++) {
        struct pp_gen_item *t = &items[i];
        if (t->code == PP_ERR_NOMEM && !line[i]->piece.bad && !line[i]->piece_drafted.bad) {
            no_pages = &t->err;
            continue;
        }
        if (answer_piece(line[i], t->n_tokens) && t->finish == PP_FINISH_NONE)
            t->finish = PP_FINISH_END;
    }
    if (no_pages && !find_pages(w, line, n))
        end_answer(w, line[0], PP_FINISH_NONE, no_pages);
    else if (!no_pages)
        for (int i = 0; i < n; i++)
            if (items[i].code || items[i].finish != PP_FINISH_NONE)
                end_answer(w, line[i], items[i].finish, items[i].code ? &items[i].err : &none);
}

bool worker_pass(struct pp_worker *w)
{
    struct answer *line[WORKER_ANSWERS];
    struct pp_gen_item items[WORKER_ANSWERS];
    struct pp_error err;
    begin_waiting(w);
    if (!w->n_answers)
        return false;
    if (begin_pass(w)) {
        int n = sort_by_urgency(w, line);
        for (int i = 0; i < n; i++)
            items[i] = (struct pp_gen_item){
                .gen = line[i]->gen, .text = &line[i]->piece, .drafted = &line[i]->piece_drafted};
        enum pp_code code = pp_gen_step(items, n, &w->cancel, &err);
        end_pass(w);
        if (code == PP_OK)
            take_results(w, line, items, n);
    }
    end_cancelled(w);
    return true;
}
