/* curl.h - libcurl, loaded at run time when it is first needed: with the thirty libraries that it depends on,
 * loading takes as long as the rest of the program's start. */
#ifndef PP_SRC_CURL_H
#define PP_SRC_CURL_H

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#undef curl_easy_setopt /* a macro with the name of the function */

#include "engine/base/error.h"

#define PP_CURL_FUNCTIONS(F)                                                                                           \
    F(easy_init) F(easy_setopt) F(easy_perform) F(easy_cleanup) F(easy_strerror) F(slist_append) F(slist_free_all)     \
    F(free) F(url) F(url_get) F(url_set) F(url_cleanup) F(url_strerror)

/* The functions of libcurl, without curl_ in their names. */
struct pp_curl {
#define PP_CURL_FUNCTION(name) __typeof__(curl_##name) *name;
    PP_CURL_FUNCTIONS(PP_CURL_FUNCTION)
#undef PP_CURL_FUNCTION
};

/* *out is valid until the program ends. PP_ERR_UNSUPPORTED: libcurl is not installed. Any thread. */
enum pp_code pp_curl_load(const struct pp_curl **out, struct pp_error *err);

#endif
