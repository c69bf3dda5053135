#include "engine/base/error.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

/* vsnprintf may cut a UTF-8 character in two; drops the incomplete tail. */
static void trim_partial_utf8(char *text, size_t cap)
{
    size_t n = strlen(text);
    if (n + 1 < cap)
        return; /* nothing was cut */
    size_t i = n;
    while (i > 0 && ((unsigned char)text[i - 1] & 0xC0) == 0x80)
        i--;
    if (i == 0)
        return;
    unsigned char lead = (unsigned char)text[i - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (n - (i - 1) < need)
        text[i - 1] = 0;
}

static bool goes_on(char c) { return ((unsigned char)c & 0xC0) == 0x80; }

/* A name may be longer than the whole text: what is wrong with it stands behind it, so the middle goes. */
static void fit(char *text, size_t cap, const char *whole, size_t n)
{
    static const char gap[] = "...";
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
        const int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
        char *whole = n >= (int)sizeof err->text ? pp_malloc((size_t)n + 1) : NULL;
        if (whole && vsnprintf(whole, (size_t)n + 1, fmt, again) == n)
            fit(err->text, sizeof err->text, whole, (size_t)n);
        else
            trim_partial_utf8(err->text, sizeof err->text);
        pp_free(whole);
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
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    trim_partial_utf8(prefix, sizeof prefix);
    return pp_fail(err, err->code, "%s: %s", prefix, old);
}

enum pp_code pp_fail_advice(struct pp_error *err, const char *advice)
{
    if (!err)
        return PP_ERR_IO;
    const size_t room = sizeof err->text - strlen(advice) - strlen("; ");
    char old[sizeof err->text];
    snprintf(old, room, "%s", err->text);
    trim_partial_utf8(old, room);
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
