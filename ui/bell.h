/* bell.h - when the terminal's bell tells that an answer has ended (--bell). */
#ifndef PP_UI_BELL_H
#define PP_UI_BELL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/clock.h"

/* Whether the user has waited long enough: `seconds` without a key since `key_at` (pp_now_ns). Less than 0: there is no
 * bell. */
static inline bool pp_bell_due(int seconds, uint64_t key_at)
{
    return seconds >= 0 && pp_now_ns() - key_at >= (uint64_t)seconds * 1000000000;
}

#endif
