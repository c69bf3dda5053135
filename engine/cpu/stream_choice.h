/* stream_choice.h - which of some ways to read weights from memory (stream_ahead.h) is the fastest one here, by what
 * passes take. Pure arithmetic, no clock in it; results do not depend on it. One thread. */
#ifndef PP_CPU_STREAM_CHOICE_H
#define PP_CPU_STREAM_CHOICE_H

#include <stdint.h>

enum { PP_STREAM_CHOICES = 4 };

/* Begins as zeros, but for the number of ways. */
struct pp_stream_choice {
    int n_ways;        /* at most PP_STREAM_CHOICES */
    int way;           /* how the next pass reads */
    int passes;        /* that were counted, since a trial began */
    uint64_t least[PP_STREAM_CHOICES]; /* ns of the fastest pass of this trial in each way */
};

/* A pass with one row has taken so long. Now and then some passes read in every way, in turn, and the others as the
 * fastest ones of these did. */
void pp_stream_choice_passed(struct pp_stream_choice *c, uint64_t ns);

#endif
