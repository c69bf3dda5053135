#include "engine/cpu/stream_choice.h"

enum {
    COLD = 4,            /* first passes, not counted: weights may have to be packed, and caches are cold */
    TRIAL = 6,           /* passes of a trial in each way */
    BETWEEN = 2000,      /* passes from one trial to the next: so many that the cost of trials does not show */
    SHORT = 2 * 1000000, /* ns; a shorter pass finds its weights in caches, and there is nothing to choose */
    CLEARLY = 100,       /* the default way loses only to one that is faster by more than 1 / CLEARLY */
};

/* The trial's winner. */
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
    int tried = c->passes++ - COLD; /* passes since the trial began, without this one */
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
