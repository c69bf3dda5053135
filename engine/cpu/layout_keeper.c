/* layout_keeper.c - the thread that goes through the matrices in the program's order, packs what no pass has needed
 * yet, and writes it to the cache. A first prompt that comes at once shares the work with it; one that comes later
 * finds it done. Finally it moves the weights to huge pages if need be. It has the priority of the threads that
 * compute, because they may wait for a group that it has claimed. */
#include <time.h>

#include "engine/base/priority.h"
#include "engine/cpu/layout_file.h"

/* Whether what is packed may be kept on disk: no bad weight was found, the files of the model and of the cache are
 * intact, and no group from the cache was damaged. */
static bool is_good(const struct pp_weights *w)
{
    struct pp_error err;
    return pp_weights_check(w, &err) == PP_OK && pp_source_check(w->model->source, &err) == PP_OK &&
           atomic_load(&w->repaired) == 0;
}

/* Writes and maps all matrices up to the i-th. false: the file was given up. */
static bool write_up_to(struct pp_weights *w, int i)
{
    while (w->store.n_done <= i)
        if (!is_good(w) || !pp_layout_write(w)) {
            /* An interrupted part is kept for another engine; a full disk or bad weights make it useless. */
            pp_layout_suspend(w, !atomic_load(&w->stop) || !is_good(w));
            return false;
        }
    return true;
}

static void write_all(struct pp_weights *w)
{
    bool writes = pp_layout_begin(w);
    for (int i = 0; i < w->n; i++) {
        struct pp_weight *m = w->list[i];
        if (!pp_weight_make(m, 0, m->t->ne[1], &w->stop, NULL)) {
            pp_layout_suspend(w, !is_good(w));
            writes = false;
            break;
        }
        writes = writes && write_up_to(w, i);
    }
    if (writes && is_good(w))
        pp_layout_complete(w);
    else
        pp_layout_suspend(w, !is_good(w));
}

static void *keep(void *arg)
{
    struct pp_weights *w = arg;
    pp_priority_compute();
    if (!w->from_cache)
        write_all(w);
    pp_layout_enlarge(w);
    atomic_store(&w->finished, true);
    return NULL;
}

void pp_weights_keep(struct pp_weights *w)
{
    if (!w->keeps || !w->region_bytes || (w->from_cache && w->region_bytes < w->least_enlarged))
        return;
    w->keeps = pthread_create(&w->keeper, NULL, keep, w) == 0;
    w->started = w->keeps;
}

void pp_weights_stop_keeping(struct pp_weights *w)
{
    if (w->started) {
        atomic_store(&w->stop, true);
        pthread_join(w->keeper, NULL);
        w->started = false;
    }
    pp_layout_suspend(w, atomic_load(&w->repaired) != 0); /* a part that was found, if the keeper never ran */
    if (atomic_load(&w->repaired))
        pp_layout_remove(w);
}

bool pp_weights_wait_saved(struct pp_weights *w, const struct pp_cancel *cancel)
{
    const struct timespec moment = {.tv_nsec = 2000000};
    while (w->started && !atomic_load(&w->finished)) {
        if (pp_cancelled(cancel))
            return false;
        nanosleep(&moment, NULL);
    }
    return true;
}
