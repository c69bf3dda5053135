/* curl.c - see curl.h. */
#include "src/curl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static struct pp_curl functions;
static bool is_loaded;
static char why_not[256];

/* Tries the names of the library in Debian and elsewhere, for any TLS library. */
static void load(void)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!library && i == 0) /* report the error for the usual name */
            snprintf(why_not, sizeof why_not, "%s", dlerror());
    }
    if (!library)
        return;
    is_loaded = true;
#define LOOK_UP(name)                                                                                                  \
    {                                                                                                                  \
        void *function = dlsym(library, "curl_" #name);                                                                \
        memcpy(&functions.name, &function, sizeof function);                                                           \
        if (!function && is_loaded) {                                                                                  \
            snprintf(why_not, sizeof why_not, "it lacks the function curl_" #name);                                    \
            is_loaded = false;                                                                                         \
        }                                                                                                              \
    }
    PP_CURL_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
}

enum pp_code pp_curl_load(const struct pp_curl **out, struct pp_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    *out = &functions;
    return is_loaded ? PP_OK
                     : pp_fail(err, PP_ERR_UNSUPPORTED, "downloading needs libcurl, version 7.85 or later "
                               "(package libcurl4 on Debian): %s", why_not);
}
