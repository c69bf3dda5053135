#include "engine/base/error.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

static bool goes_on(char c) { return ((unsigned char)c & 0xC0) == 0x80; }

/* A name may be longer than the whole text, and what is wrong comes after it, so the middle is cut. */
static void fit(char *text, size_t cap, const char *whole, size_t n)
{
    static const char gap[] = "...";
    if (n < cap) { /* fits after all: incomplete characters were removed */
        memcpy(text, whole, n + 1);
        return;
    }
    const size_t kept = cap / 3;
    size_t head = cap - 1 - strlen(gap) - kept, tail = n - kept;
    while (head > 0 && goes_on(whole[head]))
        head--;
    while (tail < n && goes_on(whole[tail]))
        tail++;
    snprintf(text, cap, "%.*s%s%s", (int)head, whole, gap, whole + tail);
}

enum pp_code pp_fail(struct pp_error *err, enum pp_code code, const char *fmt, ...)
{
    if (err) {
        va_list ap, again;
        va_start(ap, fmt);
        va_copy(again, ap);
        err->code = code;
        const int n = vsnprintf(NULL, 0, fmt, again);
        char *whole = n >= (int)sizeof err->text ? pp_malloc((size_t)n + 1) : NULL;
        if (whole)
            fit(err->text, sizeof err->text, whole, pp_utf8_vprint(whole, (size_t)n + 1, fmt, ap));
        else
            pp_utf8_vprint(err->text, sizeof err->text, fmt, ap);
        pp_free(whole);
        pp_utf8_line(err->text, sizeof err->text); /* names may contain line breaks, with a forged message after them */
        va_end(again);
        va_end(ap);
    }
    return code;
}

enum pp_code pp_fail_prefix(struct pp_error *err, const char *fmt, ...)
{
    if (!err)
        return PP_ERR_IO;
    char old[sizeof err->text];
    char prefix[256];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    pp_utf8_vprint(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    return pp_fail(err, err->code, "%s: %s", prefix, old);
}

enum pp_code pp_fail_advice(struct pp_error *err, const char *advice)
{
    if (!err)
        return PP_ERR_IO;
    const size_t room = sizeof err->text - strlen(advice) - strlen("; ");
    char old[sizeof err->text];
    pp_utf8_print(old, room, "%s", err->text);
    const size_t len = strlen(old);
    if (len && strchr(".!", old[len - 1])) /* messages of libraries may be whole sentences */
        old[len - 1] = '\0';
    return pp_fail(err, err->code, "%s; %s", old, advice);
}

enum pp_code pp_fail_nomem(struct pp_error *err, const char *what)
{
    return pp_fail(err, PP_ERR_NOMEM,
                   "out of memory for %s; close other programs, or use a smaller model or --ctx-size", what);
}

int pp_exit_code(enum pp_code code)
{
    switch (code) {
    case PP_OK: return 0;
    case PP_ERR_USAGE: return 2;
    case PP_ERR_NOT_FOUND: return 3;
    case PP_ERR_NOMEM: return 4;
    case PP_ERR_CONTEXT: return 5;
    case PP_ERR_CANCELLED: return 130;
    default: return 1;
    }
}
