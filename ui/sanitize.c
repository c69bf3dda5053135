#include "ui/sanitize.h"

#include <utf8proc.h>

#include "engine/base/utf8.h"
#include "ui/text.h"

enum { TAB_STOP = 4, CONTROL_PICTURES = 0x2400, DELETE_PICTURE = 0x2421 };

static bool in(int32_t cp, int32_t first, int32_t last)
{
    return cp >= first && cp <= last;
}

/* Code points that are invisible although their category is letter or mark, and so could hide text: fillers, and
 * variation selectors other than the sixteen that emoji use. */
static bool draws_nothing(int32_t cp)
{
    return cp == 0x034F || cp == 0x115F || cp == 0x1160 || cp == 0x3164 || cp == 0xFFA0 || in(cp, 0x17B4, 0x17B5) ||
           in(cp, 0x180B, 0x180F) || in(cp, 0xE0100, 0xE01EF);
}

/* Format characters that ordinary text needs. */
static bool is_needed_format(int32_t cp)
{
    return in(cp, 0x200C, 0x200D) || in(cp, 0x0600, 0x0605) || cp == 0x06DD || cp == 0x070F || in(cp, 0x0890, 0x0891) ||
           cp == 0x08E2;
}

bool pp_char_is_clean(int32_t cp)
{
    if (cp < 0x20 || in(cp, 0x7F, 0x9F))
        return false;
    if (cp < 0x7F)
        return true;
    if (draws_nothing(cp))
        return false;
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_CF:
        return is_needed_format(cp);
    default:
        return true;
    }
}

static void add_char(struct pp_buf *out, int32_t cp)
{
    char bytes[4];
    pp_buf_add(out, bytes, pp_utf8_encode(cp, bytes));
}

/* Appends a visible substitute; returns its width in cells. */
static int add_mark(struct pp_buf *out, int32_t cp)
{
    if (cp < 0x20 || cp == 0x7F) {
        add_char(out, cp == 0x7F ? DELETE_PICTURE : CONTROL_PICTURES + cp);
        return 1;
    }
    size_t before = out->len;
    pp_buf_fmt(out, "<U+%04X>", (unsigned)cp);
    return (int)(out->len - before);
}

static bool is_plain(char c)
{
    return c >= 0x20 && c < 0x7F;
}

static size_t plain_run(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && is_plain(s[i]))
        i++;
    return i;
}

void pp_sanitize(struct pp_buf *out, const char *s, size_t n, enum pp_clean mode, int *column)
{
    int col = column ? *column : 0;
    bool text = mode == PP_CLEAN_TEXT;
    for (size_t i = 0; i < n;) {
        size_t run = plain_run(s + i, n - i);
        if (run > 0) {
            pp_buf_add(out, s + i, run);
            col = (col + (int)(run % TAB_STOP)) % TAB_STOP;
            i += run;
            continue;
        }
        if (text && (s[i] == '\n' || (s[i] == '\r' && i + 1 < n && s[i + 1] == '\n'))) {
            i += s[i] == '\r' ? 2 : 1;
            pp_buf_char(out, '\n');
            col = 0;
            continue;
        }
        if (text && s[i] == '\t') {
            int spaces = TAB_STOP - col % TAB_STOP;
            pp_buf_add(out, "    ", (size_t)spaces);
            col = 0;
            i++;
            continue;
        }
        int32_t cp;
        size_t len = pp_utf8_decode(s + i, n - i, &cp);
        if (cp < 0) {
            pp_buf_fmt(out, "<%02X>", (unsigned)(unsigned char)s[i]);
            col += 4;
        } else if (pp_char_is_clean(cp)) {
            pp_buf_add(out, s + i, len);
            col += pp_char_width(cp);
        } else {
            col += add_mark(out, cp);
        }
        i += len;
    }
    if (column)
        *column = col % TAB_STOP;
}
