/* expert_checks.h - checks that every small random mixture of experts must pass. */
#ifndef PP_TESTS_EXPERT_CHECKS_H
#define PP_TESTS_EXPERT_CHECKS_H

#include <stdbool.h>

#include "tests/expert_model.h"

/* The formulas' logits from the file, from it quantised, from the folder exported from it, and from the file converted
 * from that; bit-identical for any number of rows and threads. Returns the folder's path. */
const char *check_experts(const struct expert_shape *s);

/* A file quantised to Q8_0 must give about the same logits; picks: an indexer picks fewer positions than there are. */
void check_quantised_experts(const double *want, const char *path, bool picks);

/* Tests conversations that are rewound, and that are restored from snapshots. */
void check_goes_on(const struct expert_shape *s);

#endif
