/* worker_slots.c - slots: one sequence per conversation. Their snapshots: worker_saves.c. */
#include <stdio.h>
#include <string.h>

#include "src/worker_int.h"

enum {
    SHARE_TOKENS = 16,            /* a shorter common prefix is computed again instead of shared */
    RESTORE_TOKENS = 16,          /* fewer missing tokens are computed instead of looked up on the disk */
    STARVED_WAIT_MS = 10000,      /* for the disk, when the only pages left are those being saved */
};

/* --- slots ------------------------------------------------------------------------------------------------ */

static void clear(struct slot *s)
{
    pp_seq_free(s->seq);
    pp_seq_free(s->draft);
    *s = (struct slot){0};
}

/* An empty slot: a free one, or else the least recently used, which is saved and emptied. One is always found, as
 * there are more slots than answers under way. */
static struct slot *get_empty_slot(struct pp_worker *w)
{
    struct slot *oldest = NULL;
    for (int i = 0; i < WORKER_SLOTS; i++) {
        struct slot *s = &w->slots[i];
        if (!s->used)
            return s;
        if (!s->busy && (!oldest || s->last_use < oldest->last_use))
            oldest = s;
    }
    slot_save(w, oldest, 0);
    clear(oldest);
    return oldest;
}

void slots_free(struct pp_worker *w)
{
    for (int i = 0; i < WORKER_SLOTS; i++)
        clear(&w->slots[i]);
}

void slots_drop_drafts(struct pp_worker *w)
{
    for (int i = 0; i < WORKER_SLOTS; i++) {
        pp_seq_free(w->slots[i].draft);
        w->slots[i].draft = NULL;
    }
}

bool slots_free_idle(struct pp_worker *w)
{
    bool any = false;
    for (int i = 0; i < WORKER_SLOTS; i++) {
        struct slot *s = &w->slots[i];
        if (!s->used || s->busy)
            continue;
        slot_save(w, s, 0);
        clear(s);
        any = true;
    }
    if (saves_pending(w, NULL)) { /* pages being saved are held, too */
        saves_finish(w, STARVED_WAIT_MS);
        any = true;
    }
    return any;
}

/* --- saving ----------------------------------------------------------------------------------------------- */

bool slots_unsaved(const struct pp_worker *w)
{
    for (int i = 0; i < WORKER_SLOTS; i++)
        if (w->slots[i].used && !w->slots[i].busy && w->slots[i].dirty)
            return true;
    return false;
}

void slots_save(struct pp_worker *w, int wait_ms)
{
    for (int i = 0; i < WORKER_SLOTS; i++)
        if (w->slots[i].used && !w->slots[i].busy && !slot_save(w, &w->slots[i], wait_ms))
            wait_ms = 0; /* all of them wait for the same identity */
}

void slot_forget(struct pp_worker *w, const char *key)
{
    for (int i = 0; i < WORKER_SLOTS; i++) {
        struct slot *s = &w->slots[i];
        if (!s->used || s->temporary || strcmp(s->key, key) != 0)
            continue;
        s->temporary = true; /* an answer under way (the caller stops it) must not be saved when it ends */
        if (!s->busy)
            clear(s);
    }
    saves_forget(w, key);
}

/* --- opening ---------------------------------------------------------------------------------------------- */

static int64_t common_prefix(const struct pp_seq *seq, const int32_t *tokens, size_t n)
{
    const int32_t *have = pp_seq_tokens(seq);
    int64_t len = pp_seq_len(seq), i = 0;
    while (i < len && (size_t)i < n && have[i] == tokens[i])
        i++;
    return i;
}

/* Forks the sequence that shares the longest prefix with the prompt (a fork of the conversation, or the same system
 * prompt), so that the pages are shared. */
static enum pp_code share(struct pp_worker *w, struct slot *s, const int32_t *tokens, size_t n, struct pp_error *err)
{
    const struct slot *best = NULL;
    int64_t most = SHARE_TOKENS - 1;
    for (int i = 0; i < WORKER_SLOTS; i++) {
        const struct slot *o = &w->slots[i];
        int64_t k = o->used && o != s && o->seq ? common_prefix(o->seq, tokens, n) : 0;
        if (k > most) {
            most = k;
            best = o;
        }
    }
    if (!best)
        return PP_OK;
    pp_seq_free(s->seq);
    s->seq = NULL;
    return pp_seq_fork(best->seq, most, &s->seq, err);
}

/* Whether the snapshot may hold more of this prompt than the slot does: the slot is new, or the prompt diverges from
 * it (another branch). */
static bool look_on_disk(const struct slot *s, bool fresh, const int32_t *tokens, size_t n)
{
    int64_t common = common_prefix(s->seq, tokens, n);
    return (int64_t)n - common > RESTORE_TOKENS && (fresh || common < pp_seq_len(s->seq));
}

static enum pp_code fill(struct pp_worker *w, struct slot *s, const struct slot_spec *spec, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    bool fresh = !s->seq;
    if (fresh)
        code = pp_seq_new(w->engine, &s->seq, err);
    if (code == PP_OK && fresh)
        code = share(w, s, spec->tokens, spec->n, err);
    if (code == PP_OK) /* drops the pages that were computed under other adapters */
        code = pp_seq_set_adapters(s->seq, spec->use, spec->n_use, err);
    if (code == PP_OK && spec->slide)
        slot_slide(w, s, spec);
    else if (code == PP_OK)
        pp_seq_truncate(s->seq, pp_seq_exact(s->seq));
    if (code == PP_OK && look_on_disk(s, fresh, spec->tokens, spec->n))
        slot_restore(w, s, spec);
    return code;
}

/* Among the conversation's idle slots, the one that shares the longest prefix with the prompt. */
static struct slot *find(struct pp_worker *w, const char *key, bool temporary, const int32_t *tokens, size_t n)
{
    struct slot *best = NULL;
    int64_t most = -1;
    for (int i = 0; i < WORKER_SLOTS; i++) {
        struct slot *s = &w->slots[i];
        if (!s->used || s->busy || s->temporary != temporary || strcmp(s->key, key) != 0)
            continue;
        int64_t have = s->seq ? common_prefix(s->seq, tokens, n) : 0;
        if (have > most) {
            most = have;
            best = s;
        }
    }
    return best;
}

int64_t slots_cached_tokens(const struct pp_worker *w, const struct pp_adapter_use *use, int n_use,
                            const int32_t *tokens, int64_t n)
{
    int64_t most = pp_engine_cached_tokens(w->engine, use, n_use, tokens, n);
    for (int i = 0; i < WORKER_SLOTS; i++) {
        const struct slot *s = &w->slots[i];
        int64_t have = s->used && s->seq ? pp_seq_cached_tokens(s->seq, use, n_use, tokens, n) : 0;
        most = have > most ? have : most;
    }
    return most;
}

void slot_release(struct slot *s)
{
    s->busy = false;
}

void slot_end(struct pp_worker *w, struct slot *s)
{
    s->busy = false;
    if (s->temporary)
        clear(s);
    else
        slot_save(w, s, 0);
}

enum pp_code slot_open(struct pp_worker *w, const struct slot_spec *spec, struct slot **out, struct pp_error *err)
{
    const char *key = spec->key ? spec->key : "";
    struct slot *s = find(w, key, spec->temporary, spec->tokens, spec->n);
    *out = NULL;
    if (!s) {
        s = get_empty_slot(w);
        s->used = true;
        s->temporary = spec->temporary;
        s->no_snapshots = spec->no_snapshots;
        snprintf(s->key, sizeof s->key, "%s", key);
    }
    s->last_use = ++w->clock;
    enum pp_code code = fill(w, s, spec, err);
    if (code != PP_OK) {
        clear(s);
        return code;
    }
    s->busy = true;
    *out = s;
    return PP_OK;
}
