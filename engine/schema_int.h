/* schema_int.h - from a JSON Schema to a grammar: schema.c reads keywords, schema_text.c makes strings and numbers.
 * Private to the engine. */
#ifndef PP_ENGINE_SCHEMA_INT_H
#define PP_ENGINE_SCHEMA_INT_H

#include <cjson/cJSON.h>

#include "engine/grammar_build.h"

/* Kinds of JSON values. Numbers are integers or not. */
enum {
    PP_JSON_NULL = 1,
    PP_JSON_BOOL = 2,
    PP_JSON_OBJECT = 4,
    PP_JSON_ARRAY = 8,
    PP_JSON_STRING = 16,
    PP_JSON_INTEGER = 32,
    PP_JSON_FRACTION = 64,
    PP_JSON_NUMBER = PP_JSON_INTEGER | PP_JSON_FRACTION,
    PP_JSON_ANY = 127,
};

struct pp_bounds {
    bool has_min, has_max, above, below; /* above, below: the bounds themselves are excluded */
    double min, max;
};

/* The characters of a string, between its quotes: between least and most of them (UINT32_MAX: any number). */
uint32_t pp_schema_chars(struct pp_builder *b, uint32_t least, uint32_t most);
/* The same for a regular expression. *least, *most: lengths of what it matches, most UINT32_MAX: no limit. On failure
 * *wrong says what is not supported; it is static. */
uint32_t pp_schema_pattern(struct pp_builder *b, const char *pattern, uint32_t *least, uint32_t *most,
                           const char **wrong);
/* The same for a format; PP_GX_NEVER: unknown. */
uint32_t pp_schema_format(struct pp_builder *b, const char *format);
/* The characters of keys other than these n, each in one spelling. */
uint32_t pp_schema_other_keys(struct pp_builder *b, const char *const *keys, size_t n);
uint32_t pp_schema_integer(struct pp_builder *b, const struct pp_bounds *r);
/* Any number within the bounds. */
uint32_t pp_schema_number(struct pp_builder *b, const struct pp_bounds *r);
/* Whether the bounds can be expressed: numbers have at most 16 digits before the point. */
bool pp_schema_bounds_fit(const struct pp_bounds *r);

#endif
