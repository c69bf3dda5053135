/* profile.h - a profile of a pass: time, bytes and multiply-adds per kind of stage. Private to engine/cpu.
 *
 * While it is on, every work item is timed by the thread that runs it, into that thread's own counters; bytes and
 * multiply-adds are computed from the program. While it is off, it costs one test of a pointer per pass. */
#ifndef PP_CPU_PROFILE_H
#define PP_CPU_PROFILE_H

#include "engine/bench.h"
#include "engine/cpu/program.h"
#include "engine/pool.h"

/* Starts a profile with all counters at zero (on), or ends it. Call between passes. */
enum pp_code pp_cpu_profile(struct pp_cpu *c, bool on, struct pp_error *err);
void pp_cpu_profile_get(const struct pp_cpu *c, struct pp_profile *out);

/* Runs the current pass's parts on the pool, and times the items. */
void pp_cpu_profile_run(struct pp_cpu *c);
/* A thread makes its own input ready in the middle of an item: returns the time before (0 if the profile is off), and
 * takes it. What lies between is not counted for the item. */
uint64_t pp_cpu_profile_begin(const struct pp_cpu *c);
void pp_cpu_profile_prepared(struct pp_cpu *c, int thread, uint64_t begin);

#endif
