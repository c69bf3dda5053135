/* stream_choice.h - chooses the fastest way to read weights from memory (stream_ahead.h) by comparing the times of
 * passes, which the caller measures. Results do not depend on the choice. One thread. */
#ifndef PP_CPU_STREAM_CHOICE_H
#define PP_CPU_STREAM_CHOICE_H

#include <stdint.h>

enum { PP_STREAM_CHOICES = 4 };

/* Initially all zeros except n_ways. */
struct pp_stream_choice {
    int n_ways;        /* at most PP_STREAM_CHOICES */
    int way;           /* of the next pass: 0 .. n_ways - 1 */
    int passes;        /* counted since the current trial began */
    uint64_t least[PP_STREAM_CHOICES]; /* ns of this trial's fastest pass in each way */
};

/* Takes the time of a pass with one row and sets c->way for the next pass. From time to time a few passes are a trial,
 * which alternates between all ways; the other passes use the winner of the last trial. */
void pp_stream_choice_passed(struct pp_stream_choice *c, uint64_t ns);

#endif
