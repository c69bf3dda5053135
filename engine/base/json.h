/* json.h - JSON of files that are not trusted. A value takes some 80 bytes of memory, so a list of digits is forty
 * times as large in memory as in its file: values are counted before they are parsed. Any thread. */
#ifndef PP_BASE_JSON_H
#define PP_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { PP_JSON_VALUES = 4000000 }; /* the largest vocabulary has half of that */

struct cJSON;
/* *out: the value, to be released with cJSON_Delete. It is NULL, with PP_OK, if the text is no JSON or memory is out:
 * the caller says so. *end (end may be NULL): where the value ends; more text may follow. PP_ERR_FORMAT: the text has
 * more than PP_JSON_VALUES values. name: the file's, for that message. */
enum pp_code pp_json_parse(const char *text, size_t n, const char *name, const char **end, struct cJSON **out,
                           struct pp_error *err);
/* Python writes Infinity, which JSON does not have, into configurations: it becomes a number that is as large for any
 * double, in place. */
void pp_json_take_infinity(char *text, size_t n);
/* Whether a string of this JSON text has the character U+0000. A C string ends there: what follows would be lost
 * unseen. */
bool pp_json_has_nul(const char *text, size_t n);
#define PP_JSON_NUL_TEXT "a text holds the character U+0000 (\\u0000), which no text may have; take it out"
/* The member of that name, case and all; it belongs to the object. NULL: there is no such member, or `object` is NULL
 * or no object. */
const struct cJSON *pp_json_member(const struct cJSON *object, const char *name);
/* The text of that member, which belongs to the object; "" if there is no such member or it is no string. */
const char *pp_json_text(const struct cJSON *object, const char *name);

#endif
