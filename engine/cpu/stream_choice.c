#include "engine/cpu/stream_choice.h"

enum {
    COLD = 4,            /* passes that still find weights to be packed, and cold caches */
    TRIAL = 12,          /* passes that are compared, every other one in the other way */
    BETWEEN = 2000,      /* passes from a trial to the next: what a trial loses is hardly to be seen */
    SHORT = 2 * 1000000, /* ns of a pass that finds its weights in caches, where there is nothing to choose */
    CLEARLY = 100,       /* the other way is chosen if it is faster by more than 1 / CLEARLY */
};

void pp_stream_choice_passed(struct pp_stream_choice *c, uint64_t ns)
{
    if (ns < SHORT)
        return;
    int tried = c->passes++ - COLD; /* passes of the trial before this one */
    if (tried >= 0 && tried < TRIAL && (tried < 2 || ns < c->least[c->other_way]))
        c->least[c->other_way] = ns;
    if (++tried >= TRIAL + BETWEEN) {
        c->passes = COLD;
        tried = 0;
    }
    if (tried >= 0 && tried < TRIAL)
        c->other_way = tried % 2;
    else if (tried == TRIAL)
        c->other_way = c->least[1] < c->least[0] - c->least[0] / CLEARLY;
}
