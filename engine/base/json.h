/* json.h - JSON of files that are not trusted. In memory a value takes some 80 bytes, so that a list of digits is forty
 * times as large there as in its file: how many there are is counted before. */
#ifndef PP_BASE_JSON_H
#define PP_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { PP_JSON_VALUES = 4000000 }; /* the largest vocabulary has half of that */

struct cJSON;
/* *out: cJSON_Delete; NULL if the text is no JSON. *end, unless it is NULL: where the value ends. PP_ERR_FORMAT: it has
 * too many values; name: the file's, for the message. */
enum pp_code pp_json_parse(const char *text, size_t n, const char *name, const char **end, struct cJSON **out,
                           struct pp_error *err);
/* Whether a text in it has the character U+0000, where a C string would end: what follows would be lost unseen. */
bool pp_json_has_nul(const char *text, size_t n);
#define PP_JSON_NUL_TEXT "a text holds the character U+0000 (\\u0000), which no text may have; take it out"
/* A member by its name, as it is written; NULL: there is none, or `object` is none. */
const struct cJSON *pp_json_member(const struct cJSON *object, const char *name);
/* A member's text; "": there is none, or it is no text. */
const char *pp_json_text(const struct cJSON *object, const char *name);

#endif
