#include "src/plain_text.h"

#include <string.h>

#include "engine/base/utf8.h"

bool pp_char_is_obeyed(int32_t cp)
{
    return (cp >= 0x7F && cp < 0xA0) || (cp >= 0x202A && cp <= 0x202E) || (cp >= 0x2066 && cp <= 0x2069);
}

static void add_char(struct pp_buf *out, int32_t cp)
{
    char bytes[4];
    pp_buf_add(out, bytes, pp_utf8_encode(cp, bytes));
}

void pp_plain_text(struct pp_buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int32_t cp;
        size_t len = pp_utf8_decode(s + i, n - i, &cp);
        if (cp < 0)
            add_char(out, 0xFFFD);
        else if (cp < 0x20 && cp != '\n' && cp != '\t')
            add_char(out, 0x2400 + cp);
        else if (cp == 0x7F)
            add_char(out, 0x2421);
        else if (pp_char_is_obeyed(cp))
            pp_buf_fmt(out, "<U+%04X>", (unsigned)cp);
        else
            pp_buf_add(out, s + i, len);
        i += len;
    }
}

/* Such characters occur only inside strings, where an escape is valid. */
void pp_plain_json(struct pp_buf *out, const char *json)
{
    const size_t n = strlen(json);
    for (size_t i = 0; i < n;) {
        int32_t cp;
        const size_t len = pp_utf8_decode(json + i, n - i, &cp);
        if (cp < 0)
            add_char(out, 0xFFFD);
        else if (pp_char_is_obeyed(cp))
            pp_buf_fmt(out, "\\u%04x", (unsigned)cp);
        else
            pp_buf_add(out, json + i, len);
        i += len;
    }
}
