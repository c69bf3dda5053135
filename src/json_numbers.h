/* json_numbers.h - exact numbers with cJSON. */
#ifndef PP_SRC_JSON_NUMBERS_H
#define PP_SRC_JSON_NUMBERS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cJSON holds numbers as doubles. Keeps the digits of integers in and below v, which was parsed from text, that are
 * too long for a double, such as a seed of 64 bits: pp_json_exact prints them unchanged. False: out of memory. */
bool pp_json_keep_digits(cJSON *v, const char *text, size_t n);

/* An integer from 0 to 2^64 - 1, exact if pp_json_keep_digits has kept its digits. False: it is something else. */
bool pp_json_whole(const cJSON *v, uint64_t *out);

/* cJSON prints numbers with 15 digits if that is equal to within rounding, which changes a seed of 16 digits. This
 * makes it print all numbers in and below v exactly; afterwards v can only be printed. False: out of memory. */
bool pp_json_exact(cJSON *v);

/* The double with the fewest decimal digits that rounds to v: 0.8, not 0.800000011920929. Read back as a float, it is
 * v again. */
double pp_json_short(float v);

#endif
