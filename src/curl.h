/* curl.h - libcurl, which is loaded when something is fetched and not before: with the thirty libraries that it needs
 * it takes as long as all else that happens when the program starts. */
#ifndef PP_SRC_CURL_H
#define PP_SRC_CURL_H

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#undef curl_easy_setopt /* is a macro with the function's name */

#include "engine/base/error.h"

#define PP_CURL_FUNCTIONS(F)                                                                                           \
    F(easy_init) F(easy_setopt) F(easy_perform) F(easy_cleanup) F(easy_strerror) F(slist_append) F(slist_free_all)     \
    F(free) F(url) F(url_get) F(url_set) F(url_cleanup) F(url_strerror)

/* Functions of libcurl without the curl_ before their names. */
struct pp_curl {
#define PP_CURL_FUNCTION(name) __typeof__(curl_##name) *name;
    PP_CURL_FUNCTIONS(PP_CURL_FUNCTION)
#undef PP_CURL_FUNCTION
};

/* *out is there until the program ends. PP_ERR_UNSUPPORTED: there is no libcurl on this machine. Any thread. */
enum pp_code pp_curl_load(const struct pp_curl **out, struct pp_error *err);

#endif
