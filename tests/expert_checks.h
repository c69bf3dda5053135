/* expert_checks.h - what every small random mixture of experts is held to. */
#ifndef PP_TESTS_EXPERT_CHECKS_H
#define PP_TESTS_EXPERT_CHECKS_H

#include <stdbool.h>

#include "tests/expert_model.h"

/* The formulas' logits from the file, quantised, from the folder that is made of it, and the file that is made of that,
 * with any number of rows and threads the same bits; the folder's path. */
const char *check_experts(const struct expert_shape *s);

/* A file quantised to Q8_0 gives about the same logits; picks: an index picks fewer positions than there are. */
void check_quantised_experts(const double *want, const char *path, bool picks);

/* Conversations that go back, and come from snapshots. */
void check_goes_on(const struct expert_shape *s);

#endif
