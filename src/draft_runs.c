#include "src/draft_runs.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/mem.h"

static void set_lost(struct pp_draft_runs *r)
{
    pp_draft_runs_clear(r);
    r->lost = true;
}

/* Whether the last run is of drafted bytes. */
static bool last_is_drafted(const struct pp_draft_runs *r)
{
    return r->n % 2 == 0;
}

void pp_draft_runs_add(struct pp_draft_runs *r, size_t bytes, bool drafted)
{
    if (!bytes || r->lost)
        return;
    if (bytes > UINT32_MAX || pp_grow(&r->runs, &r->cap, r->n + 2, sizeof *r->runs) != 0) {
        set_lost(r);
        return;
    }
    if (!r->n)
        r->runs[r->n++] = 0;
    if (last_is_drafted(r) != drafted && r->n <= PP_DRAFT_RUNS_MAX)
        r->runs[r->n++] = (uint32_t)bytes;
    else if (bytes > UINT32_MAX - r->runs[r->n - 1])
        set_lost(r);
    else
        r->runs[r->n - 1] += (uint32_t)bytes;
}

void pp_draft_runs_append(struct pp_draft_runs *r, const struct pp_draft_runs *more)
{
    if (more->lost)
        set_lost(r);
    for (size_t i = 0; i < more->n; i++)
        pp_draft_runs_add(r, more->runs[i], i % 2);
}

void pp_draft_runs_extend(struct pp_draft_runs *r, const struct pp_draft_runs *whole)
{
    if (whole->lost)
        set_lost(r);
    if (r->lost || !whole->n)
        return;
    if (pp_grow(&r->runs, &r->cap, whole->n, sizeof *r->runs) != 0) {
        set_lost(r);
        return;
    }
    size_t from = r->n ? r->n - 1 : 0;
    memcpy(r->runs + from, whole->runs + from, (whole->n - from) * sizeof *r->runs);
    r->n = whole->n;
}

void pp_draft_runs_fit(struct pp_draft_runs *r, size_t bytes)
{
    size_t before = 0, i = 0;
    while (i < r->n && before + r->runs[i] < bytes)
        before += r->runs[i++];
    if (i == r->n) {
        pp_draft_runs_add(r, bytes - before, false);
    } else {
        r->runs[i] = (uint32_t)(bytes - before);
        r->n = bytes ? i + 1 : 0;
    }
}

void pp_draft_runs_clear(struct pp_draft_runs *r)
{
    r->n = 0;
}

void pp_draft_runs_free(struct pp_draft_runs *r)
{
    pp_free(r->runs);
    *r = (struct pp_draft_runs){0};
}

bool pp_draft_runs_any(const struct pp_draft_runs *r)
{
    return r->n > 1;
}

void pp_draft_runs_json(const struct pp_draft_runs *r, struct pp_buf *out)
{
    for (size_t i = 0; i < r->n; i++)
        pp_buf_fmt(out, "%c%" PRIu32, i ? ',' : '[', r->runs[i]);
    pp_buf_str(out, r->n ? "]" : "[]");
}

void pp_draft_runs_read(struct pp_draft_runs *r, const cJSON *array, size_t bytes)
{
    const cJSON *item;
    size_t i = 0, sum = 0;
    pp_draft_runs_clear(r);
    if (!cJSON_IsArray(array))
        return;
    cJSON_ArrayForEach(item, array)
    {
        double v = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (v < (i ? 1 : 0) || v > (double)(bytes - sum) || i > PP_DRAFT_RUNS_MAX) {
            pp_draft_runs_clear(r);
            return;
        }
        sum += (size_t)v;
        pp_draft_runs_add(r, (size_t)v, i++ % 2);
    }
}

float pp_speedup(double measured, double n_tokens, double n_accepted)
{
    if (!(measured > 0 && measured < 100) || n_tokens < PP_SPEEDUP_TOKENS)
        return 0;
    return n_accepted < 1 && measured > 1 ? 1 : (float)measured;
}
