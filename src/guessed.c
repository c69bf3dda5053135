#include "src/guessed.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/mem.h"

static void set_lost(struct pp_guessed *g)
{
    pp_guessed_clear(g);
    g->lost = true;
}

/* Whether the last run is of drafted bytes. */
static bool last_is_guessed(const struct pp_guessed *g)
{
    return g->n % 2 == 0;
}

void pp_guessed_add(struct pp_guessed *g, size_t bytes, bool guessed)
{
    if (!bytes || g->lost)
        return;
    if (bytes > UINT32_MAX || pp_grow(&g->runs, &g->cap, g->n + 2, sizeof *g->runs) != 0) {
        set_lost(g);
        return;
    }
    if (!g->n)
        g->runs[g->n++] = 0;
    if (last_is_guessed(g) != guessed && g->n <= PP_GUESSED_MOST)
        g->runs[g->n++] = (uint32_t)bytes;
    else if (bytes > UINT32_MAX - g->runs[g->n - 1])
        set_lost(g);
    else
        g->runs[g->n - 1] += (uint32_t)bytes;
}

void pp_guessed_append(struct pp_guessed *g, const struct pp_guessed *more)
{
    if (more->lost)
        set_lost(g);
    for (size_t i = 0; i < more->n; i++)
        pp_guessed_add(g, more->runs[i], i % 2);
}

void pp_guessed_extend(struct pp_guessed *g, const struct pp_guessed *whole)
{
    if (whole->lost)
        set_lost(g);
    if (g->lost || !whole->n)
        return;
    if (pp_grow(&g->runs, &g->cap, whole->n, sizeof *g->runs) != 0) {
        set_lost(g);
        return;
    }
    size_t from = g->n ? g->n - 1 : 0;
    memcpy(g->runs + from, whole->runs + from, (whole->n - from) * sizeof *g->runs);
    g->n = whole->n;
}

void pp_guessed_fit(struct pp_guessed *g, size_t bytes)
{
    size_t before = 0, i = 0;
    while (i < g->n && before + g->runs[i] < bytes)
        before += g->runs[i++];
    if (i == g->n) {
        pp_guessed_add(g, bytes - before, false);
    } else {
        g->runs[i] = (uint32_t)(bytes - before);
        g->n = bytes ? i + 1 : 0;
    }
}

void pp_guessed_clear(struct pp_guessed *g)
{
    g->n = 0;
}

void pp_guessed_free(struct pp_guessed *g)
{
    pp_free(g->runs);
    *g = (struct pp_guessed){0};
}

bool pp_guessed_any(const struct pp_guessed *g)
{
    return g->n > 1;
}

void pp_guessed_json(const struct pp_guessed *g, struct pp_buf *out)
{
    for (size_t i = 0; i < g->n; i++)
        pp_buf_fmt(out, "%c%" PRIu32, i ? ',' : '[', g->runs[i]);
    pp_buf_str(out, g->n ? "]" : "[]");
}

void pp_guessed_read(struct pp_guessed *g, const cJSON *array, size_t bytes)
{
    const cJSON *item;
    size_t i = 0, sum = 0;
    pp_guessed_clear(g);
    if (!cJSON_IsArray(array))
        return;
    cJSON_ArrayForEach(item, array)
    {
        double v = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (v < (i ? 1 : 0) || v > (double)(bytes - sum) || i > PP_GUESSED_MOST) {
            pp_guessed_clear(g);
            return;
        }
        sum += (size_t)v;
        pp_guessed_add(g, (size_t)v, i++ % 2);
    }
}

float pp_speedup(double measured, double n_tokens, double n_accepted)
{
    if (!(measured > 0 && measured < 100) || n_tokens < PP_SPEEDUP_TOKENS)
        return 0;
    return n_accepted < 1 && measured > 1 ? 1 : (float)measured;
}
