#include "ui/wrap.h"

#include <stdint.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "ui/text.h"

/* Punctuation that may not begin a line, East Asian or ASCII. */
static bool closes(const char *s, size_t n)
{
    static const uint16_t closing[] = {
        0x3001, 0x3002, 0x3005, 0x3009, 0x300B, 0x300D, 0x300F, 0x3011, 0x3015, 0x3017, 0x301E, 0x30FB, 0x30FC,
        0xFF01, 0xFF09, 0xFF0C, 0xFF0E, 0xFF1A, 0xFF1B, 0xFF1F, 0xFF3D, 0xFF5D,
    };
    int32_t cp;
    pp_utf8_decode(s, n, &cp);
    for (size_t i = 0; i < sizeof closing / sizeof closing[0]; i++)
        if (cp == closing[i])
            return true;
    return cp > 0 && cp < 0x80 && strchr("),.!?:;", cp);
}

static bool is_word_byte(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c & 0x80);
}

/* Skips the spaces at a break, and a line end after them, so that a line that is exactly full is not followed by an
 * empty one. */
static size_t skip_break(const char *s, size_t n, size_t i)
{
    while (i < n && s[i] == ' ')
        i++;
    return i < n && s[i] == '\n' ? i + 1 : i;
}

struct candidate {
    size_t end, next;
    int width;
};

struct pp_wrapped pp_wrap(const char *s, size_t n, size_t pos, int width, bool words)
{
    struct candidate best = {pos, pos, 0};
    size_t space = n; /* start of the current run of spaces; n: none */
    int col = 0, space_col = 0;
    bool after_wide = false;
    for (size_t i = pos; i < n;) {
        if (s[i] == '\n')
            return (struct pp_wrapped){i, i + 1, col};
        struct pp_cluster c = pp_cluster_next(s + i, n - i);
        if (words && s[i] == ' ' && c.len == 1) {
            if (space == n) {
                space = i;
                space_col = col;
            }
            if (col + 1 > width && i > pos) {
                if (space == pos)
                    return (struct pp_wrapped){i, i, col};
                return (struct pp_wrapped){space, skip_break(s, n, i), space_col};
            }
            col++;
            i++;
            after_wide = false;
            if (space > pos)
                best = (struct candidate){space, i, space_col};
            continue;
        }
        space = n;
        bool wide = c.width >= 2;
        if (words && i > pos && (wide || after_wide) && !closes(s + i, n - i) && best.next != i)
            best = (struct candidate){i, i, col};
        if (col + c.width > width) {
            if (i == pos)
                return (struct pp_wrapped){i + c.len, i + c.len, c.width};
            if (best.end > pos)
                return (struct pp_wrapped){best.end, best.next, best.width};
            return (struct pp_wrapped){i, i, col};
        }
        col += c.width;
        i += c.len;
        after_wide = wide;
        if (words && s[i - 1] == '-' && c.len == 1 && i - 1 > pos && is_word_byte(s[i - 2]) && i < n &&
            is_word_byte(s[i]))
            best = (struct candidate){i, i, col};
    }
    return (struct pp_wrapped){n, n, col};
}
