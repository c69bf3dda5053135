#include "engine/cpu/stream_choice.h"

enum {
    COLD = 4,            /* passes that still find weights to be packed, and cold caches */
    TRIAL = 6,           /* passes of each way that are compared */
    BETWEEN = 2000,      /* passes from a trial to the next: what a trial loses is hardly to be seen */
    SHORT = 2 * 1000000, /* ns of a pass that finds its weights in caches, where there is nothing to choose */
    CLEARLY = 100,       /* another than the first way is chosen if it is faster by more than 1 / CLEARLY */
};

/* Of a trial's ways. */
static int fastest(const struct pp_stream_choice *c)
{
    int best = 0;
    for (int way = 1; way < c->n_ways; way++)
        if (c->least[way] < c->least[best])
            best = way;
    return c->least[best] < c->least[0] - c->least[0] / CLEARLY ? best : 0;
}

void pp_stream_choice_passed(struct pp_stream_choice *c, uint64_t ns)
{
    const int trial = TRIAL * c->n_ways;
    if (ns < SHORT)
        return;
    int tried = c->passes++ - COLD; /* passes of the trial before this one */
    if (tried >= 0 && tried < trial && (tried < c->n_ways || ns < c->least[c->way]))
        c->least[c->way] = ns;
    if (++tried >= trial + BETWEEN) {
        c->passes = COLD;
        tried = 0;
    }
    if (tried >= 0 && tried < trial)
        c->way = tried % c->n_ways;
    else if (tried == trial)
        c->way = fastest(c);
}
