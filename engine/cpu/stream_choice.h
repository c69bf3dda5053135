/* stream_choice.h - which of two ways to read weights from memory (stream_ahead.h) is the faster one here, by what
 * passes take. Pure arithmetic, no clock in it; results do not depend on it. One thread. */
#ifndef PP_CPU_STREAM_CHOICE_H
#define PP_CPU_STREAM_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

/* Begins as zeros. */
struct pp_stream_choice {
    bool other_way;    /* how the next pass reads */
    int passes;        /* that were counted, since a trial began */
    uint64_t least[2]; /* ns of the fastest pass of this trial, by `other_way` */
};

/* A pass with one row has taken so long. Now and then some passes read in either way, in turn, and the others as the
 * faster ones of these did. */
void pp_stream_choice_passed(struct pp_stream_choice *c, uint64_t ns);

#endif
