/* json_numbers.h - numbers of cJSON as they are. */
#ifndef PP_SRC_JSON_NUMBERS_H
#define PP_SRC_JSON_NUMBERS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cJSON holds numbers as doubles. Of the values in and below v, which were read from text, this keeps the digits of
 * those whole numbers that are more than a double has place for, such as a seed of 64 bits: pp_json_exact prints them
 * as they were. False: out of memory. */
bool pp_json_keep_digits(cJSON *v, const char *text, size_t n);

/* A whole number from 0 to 2^64 - 1, to the last digit if pp_json_keep_digits has kept them. False: it is none. */
bool pp_json_whole(const cJSON *v, uint64_t *out);

/* cJSON prints 15 digits of a number and takes that for it where the last bit differs: a seed of 16 digits becomes
 * another one. This makes it print all numbers in v, and below, so that they are read again as they are; afterwards v
 * is good for printing only. False: out of memory. */
bool pp_json_exact(cJSON *v);

#endif
