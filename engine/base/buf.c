#include "engine/base/buf.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

static bool reserve(struct pp_buf *b, size_t extra)
{
    size_t need;
    if (b->bad)
        return false;
    if (__builtin_add_overflow(b->len, extra, &need) || __builtin_add_overflow(need, (size_t)1, &need) ||
        pp_grow(&b->data, &b->cap, need, 1) != 0) {
        b->bad = true;
        return false;
    }
    return true;
}

void pp_buf_add(struct pp_buf *b, const void *bytes, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void pp_buf_str(struct pp_buf *b, const char *s)
{
    pp_buf_add(b, s, strlen(s));
}

void pp_buf_char(struct pp_buf *b, char c)
{
    pp_buf_add(b, &c, 1);
}

void pp_buf_vfmt(struct pp_buf *b, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0) {
        b->bad = true;
        return;
    }
    if (!reserve(b, (size_t)n))
        return;
    b->len += pp_utf8_vprint(b->data + b->len, (size_t)n + 1, fmt, ap);
}

void pp_buf_fmt(struct pp_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pp_buf_vfmt(b, fmt, ap);
    va_end(ap);
}

void pp_buf_clear(struct pp_buf *b)
{
    b->len = 0;
    b->bad = false;
    if (b->data)
        b->data[0] = 0;
}

void pp_buf_free(struct pp_buf *b)
{
    pp_free(b->data);
    *b = (struct pp_buf){0};
}

const char *pp_buf_cstr(const struct pp_buf *b)
{
    return b->data && b->len ? b->data : "";
}

char *pp_buf_take(struct pp_buf *b)
{
    if (b->bad || (!b->data && !reserve(b, 0))) {
        pp_buf_free(b);
        return NULL;
    }
    char *s = b->data;
    s[b->len] = 0;
    *b = (struct pp_buf){0};
    return s;
}
