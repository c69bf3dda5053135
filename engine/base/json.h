/* json.h - JSON from untrusted files. A value takes some 80 bytes of memory, so a list of digits takes forty times the
 * size of its file: values are counted before they are parsed. Any thread. */
#ifndef PP_BASE_JSON_H
#define PP_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { PP_JSON_VALUES = 4000000 }; /* the largest vocabulary has half of that */

struct cJSON;
/* *out: the value, to be released with cJSON_Delete. It is NULL, with PP_OK, if the text is not JSON or memory is
 * short: the caller reports that. *end (end may be NULL): where the value ends; more text may follow. PP_ERR_FORMAT:
 * the text has more than PP_JSON_VALUES values. name: the file's, for that message. */
enum pp_code pp_json_parse(const char *text, size_t n, const char *name, const char **end, struct cJSON **out,
                           struct pp_error *err);
/* Replaces Infinity, which Python writes into configurations but JSON lacks, by a number that every double reads as
 * infinite, in place. */
void pp_json_take_infinity(char *text, size_t n);
/* Whether a string of this JSON text has the character U+0000, at which a C string would silently end. */
bool pp_json_has_nul(const char *text, size_t n);
#define PP_JSON_NUL_TEXT "a text holds the character U+0000 (\\u0000), which no text may have; take it out"
/* The member with this name, case-sensitive; owned by the object. NULL: there is none, or `object` is NULL or not an
 * object. */
const struct cJSON *pp_json_member(const struct cJSON *object, const char *name);
/* That member if it is a list, otherwise NULL: cJSON_ArrayForEach walks through the members of objects, too. */
const struct cJSON *pp_json_list(const struct cJSON *object, const char *name);
/* The text of that member, owned by the object; "" if it is absent or not a string. */
const char *pp_json_text(const struct cJSON *object, const char *name);

#endif
