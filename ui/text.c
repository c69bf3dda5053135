#include "ui/text.h"

#include <stdbool.h>
#include <utf8proc.h>

#include "engine/base/utf8.h"

enum { ZWNJ = 0x200C, ZWJ = 0x200D, REPLACEMENT = 0xFFFD, DOTTED_CIRCLE = 0x25CC };

int pp_char_width(int32_t cp)
{
    if (cp < 0x7F)
        return cp >= 0x20;
    int w = wcwidth((wchar_t)cp);
    return w < 0 ? 1 : w > 2 ? 2 : w;
}

static size_t decode(const char *s, size_t n, int32_t *cp)
{
    size_t len = pp_utf8_decode(s, n, cp);
    if (*cp < 0)
        *cp = REPLACEMENT;
    return len;
}

static bool is_variation_selector(int32_t cp)
{
    return cp >= 0xFE00 && cp <= 0xFE0F;
}

static bool is_skin_tone(int32_t cp)
{
    return cp >= 0x1F3FB && cp <= 0x1F3FF;
}

/* Whether cp is omitted from a cell that begins with base: see pp_cluster_glyphs. */
static bool left_out(int32_t cp, int32_t base)
{
    return is_variation_selector(cp) || (base && (is_skin_tone(cp) || cp == ZWJ));
}

int pp_cluster_glyphs(const char *s, size_t len, struct pp_glyph out[PP_MAX_GLYPHS])
{
    int n = 0, chars = 0;
    int32_t cp, base = 0;
    for (size_t i = 0; i < len;) {
        i += decode(s + i, len - i, &cp);
        if (left_out(cp, base))
            continue;
        int width = pp_char_width(cp);
        if (width > 0 || n == 0) {
            if (n == PP_MAX_GLYPHS)
                break;
            bool drawable = cp < 0x7F || wcwidth((wchar_t)cp) >= 0;
            out[n].chars[0] = width == 0 ? DOTTED_CIRCLE : drawable ? (wchar_t)cp : REPLACEMENT;
            out[n].width = width == 0 ? 1 : width;
            chars = 1;
            base = cp;
            n++;
        }
        if (width == 0 && cp != ZWJ && chars < PP_GLYPH_CHARS)
            out[n - 1].chars[chars++] = (wchar_t)cp;
        out[n - 1].chars[chars] = 0;
    }
    return n;
}

static int cluster_width(const char *s, size_t len)
{
    struct pp_glyph glyphs[PP_MAX_GLYPHS];
    int n = pp_cluster_glyphs(s, len, glyphs), width = 0;
    for (int i = 0; i < n; i++)
        width += glyphs[i].width;
    return width;
}

struct pp_cluster pp_cluster_next(const char *s, size_t n)
{
    if ((unsigned char)s[0] < 0x80 && (n == 1 || (unsigned char)s[1] < 0x80))
        return (struct pp_cluster){1, (unsigned char)s[0] >= 0x20};
    if ((unsigned char)s[0] < 0x20)
        return (struct pp_cluster){1, 0};
    int32_t previous, cp;
    utf8proc_int32_t state = 0;
    size_t len = decode(s, n, &previous);
    for (int count = 1; len < n && count < PP_MAX_GLYPHS; count++) {
        size_t next = decode(s + len, n - len, &cp);
        if (utf8proc_grapheme_break_stateful(previous, cp, &state))
            break;
        len += next;
        previous = cp;
    }
    return (struct pp_cluster){len, cluster_width(s, len)};
}

int pp_text_width(const char *s, size_t n)
{
    int width = 0;
    for (size_t i = 0; i < n;) {
        struct pp_cluster c = pp_cluster_next(s + i, n - i);
        width += c.width;
        i += c.len;
    }
    return width;
}

size_t pp_text_fit(const char *s, size_t n, int width, int *used)
{
    int total = 0;
    size_t i = 0;
    while (i < n) {
        struct pp_cluster c = pp_cluster_next(s + i, n - i);
        if (total + c.width > width)
            break;
        total += c.width;
        i += c.len;
    }
    if (used)
        *used = total;
    return i;
}

size_t pp_text_previous(const char *s, size_t n, size_t pos)
{
    size_t start = 0;
    for (size_t i = 0; i < n && i < pos;) {
        start = i;
        i += pp_cluster_next(s + i, n - i).len;
    }
    return start;
}
