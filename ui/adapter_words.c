#include "ui/adapter_words.h"

#include <stdio.h>

#include "engine/base/utf8.h"
#include "src/controller.h"
#include "src/figures.h"

void pp_adapter_describe(const struct pp_adapter_entry *a, char *line, size_t cap)
{
    const struct pp_adapter_facts *f = &a->facts;
    char rank[32] = "";
    if (f->rank)
        snprintf(rank, sizeof rank, " of rank %d", f->rank);
    if (a->fit == PP_FIT_NO)
        pp_utf8_print(line, cap, "%s", a->reason);
    else if (a->on && a->scale == 0.0f)
        snprintf(line, cap, "on, but at scale 0 it has no effect");
    else if (a->fit == PP_FIT_YES && f->idle)
        snprintf(line, cap, "fits, but has no effect: its matrices or alpha are all zero, or its scales all 1");
    else if (a->fit == PP_FIT_YES)
        pp_utf8_print(line, cap, "fits; %s%s%s%s, %.1f MB;%s %d projections: %s", f->kind, rank,
                      *f->base ? " for " : "", f->base, (double)f->bytes / 1e6,
                      f->n_invocation ? " acts when it is invoked;" : "", f->n_targets, f->targets);
    else
        snprintf(line, cap, "not read yet");
}

void pp_adapter_describe_cost(const char *what, const struct pp_switch_cost *cost, char *line, size_t cap)
{
    char time[32] = "";
    if (cost->seconds >= 0 && cost->seconds < 0.1f)
        snprintf(time, sizeof time, ", in less than 0.1 s");
    else if (cost->seconds >= 0)
        snprintf(time, sizeof time, ", %s %.1f s", cost->at_most ? "at most" : "about", (double)cost->seconds);
    if (cost->conflict)
        snprintf(line, cap, "%s: not possible, adapters conflict", what);
    else if (cost->failed)
        snprintf(line, cap, "%s: unknown, an adapter cannot be used", what);
    else if (!cost->known)
        snprintf(line, cap, "%s: …", what);
    else if (cost->cached)
        snprintf(line, cap, "%s: already in the cache", what);
    else
        snprintf(line, cap, "%s: %s tokens to recompute%s", what, pp_count((int64_t)cost->tokens).text, time);
}
