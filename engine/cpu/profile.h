/* profile.h - the table of where a pass's time goes. Private to engine/cpu.
 *
 * While it is on, every work item is timed by the thread that runs it, into counters of that thread alone; bytes and
 * multiply-adds are known from the program. Off, it costs one look at a pointer a pass. */
#ifndef PP_CPU_PROFILE_H
#define PP_CPU_PROFILE_H

#include "engine/bench.h"
#include "engine/cpu/program.h"
#include "engine/pool.h"

/* True: begins anew with zeros; false: ends. Between passes. */
enum pp_code pp_cpu_profile(struct pp_cpu *c, bool on, struct pp_error *err);
void pp_cpu_profile_get(const struct pp_cpu *c, struct pp_profile *out);

/* Runs the current pass's parts on the pool, each taking of items timed. */
void pp_cpu_profile_run(struct pp_cpu *c);
/* A thread makes its own input ready in the middle of an item: returns the time before (0 if the profile is off), and
 * takes it. What lies between is not counted for the item. */
uint64_t pp_cpu_profile_begin(const struct pp_cpu *c);
void pp_cpu_profile_prepared(struct pp_cpu *c, int thread, uint64_t begin);

#endif
