#include "engine/base/utf8.h"

#include <stdio.h>
#include <string.h>

/* Number of bytes that a lead byte announces; 0 if it cannot lead. */
static size_t announced(unsigned char lead)
{
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return 0;
}

/* Whether byte may follow lead at position 1: excludes overlong forms, surrogates and values past U+10FFFF. */
static bool second_byte_fits(unsigned char lead, unsigned char byte)
{
    if ((byte & 0xC0) != 0x80) return false;
    if (lead == 0xE0) return byte >= 0xA0;
    if (lead == 0xED) return byte <= 0x9F;
    if (lead == 0xF0) return byte >= 0x90;
    if (lead == 0xF4) return byte <= 0x8F;
    return true;
}

size_t pp_utf8_decode(const char *s, size_t n, int32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t len = announced(p[0]);
    *cp = -1;
    if (len == 1) {
        *cp = p[0];
        return 1;
    }
    if (len == 0 || len > n || !second_byte_fits(p[0], p[1]))
        return 1;
    int32_t v = p[0] & (0xFF >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 1;
        v = v << 6 | (p[i] & 0x3F);
    }
    *cp = v;
    return len;
}

size_t pp_utf8_encode(int32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool pp_utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int32_t cp;
        i += pp_utf8_decode(s + i, n - i, &cp);
        if (cp < 0)
            return false;
    }
    return true;
}

size_t pp_utf8_complete(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t back = n < 3 ? n : 3;
    for (size_t i = 1; i <= back; i++) {
        unsigned char c = p[n - i];
        if ((c & 0xC0) == 0x80)
            continue;
        if (announced(c) <= i)
            return n;
        if (i >= 2 && !second_byte_fits(c, p[n - i + 1]))
            return n;
        return n - i;
    }
    return n;
}

/* Whether a format cuts a text by a precision: "%.40s". */
static bool cuts(const char *fmt)
{
    for (const char *p = fmt; (p = strstr(p, "%.")); p += 2)
        if (p[2 + strspn(p + 2, "0123456789")] == 's' && p[2] != 's')
            return true;
    return false;
}

/* How many bytes of s[0..n) belong to the character that begins there, which may be incomplete. */
static size_t begun(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    const size_t whole = announced(p[0]);
    size_t have = 1;
    if (whole > 1 && n > 1 && second_byte_fits(p[0], p[1]))
        for (have = 2; have < whole && have < n && (p[have] & 0xC0) == 0x80;)
            have++;
    return have;
}

size_t pp_utf8_mend(char *s, size_t n, const char *fmt)
{
    size_t kept = cuts(fmt) ? 0 : n;
    for (size_t i = kept; i < n;) {
        const size_t have = begun(s + i, n - i);
        if (have >= announced((unsigned char)s[i])) {
            memmove(s + kept, s + i, have);
            kept += have;
        }
        i += have;
    }
    s[kept] = 0;
    return kept;
}

size_t pp_utf8_mark(const char *s, size_t n)
{
    static const char mark[] = "\xEF\xBB\xBF";
    const size_t len = sizeof mark - 1;
    return n >= len && memcmp(s, mark, len) == 0 ? len : 0;
}

size_t pp_utf8_vprint(char *out, size_t cap, const char *fmt, va_list ap)
{
    const int n = vsnprintf(out, cap, fmt, ap);
    if (n < 0) {
        *out = 0;
        return 0;
    }
    const size_t room = cap - 1;
    return pp_utf8_mend(out, (size_t)n <= room ? (size_t)n : pp_utf8_complete(out, room), fmt);
}

size_t pp_utf8_print(char *out, size_t cap, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const size_t n = pp_utf8_vprint(out, cap, fmt, ap);
    va_end(ap);
    return n;
}

static bool breaks_lines(char c)
{
    return c == '\n' || c == '\r' || c == '\t';
}

void pp_utf8_line(char *s, size_t cap)
{
    size_t n = strlen(s), more = 0;
    for (size_t i = 0; i < n; i++)
        more += breaks_lines(s[i]) ? 2 : 0;
    const bool room = n + more < cap;
    for (size_t from = n + 1, to = room ? from + more : from; from-- > 0;)
        if (!breaks_lines(s[from])) {
            s[--to] = s[from];
        } else if (room) {
            const char c = s[from];
            to -= 3;
            pp_utf8_encode(0x2400 + c, s + to);
        } else {
            s[--to] = ' ';
        }
}
