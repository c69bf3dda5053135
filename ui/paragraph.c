#include "ui/paragraph.h"

#include <string.h>

#include "engine/base/buf.h"
#include "ui/wrap.h"

static int count_lines(const struct pp_buf *clean, int w)
{
    int n = 0;
    for (size_t pos = 0; pos < clean->len; n++)
        pos = pp_wrap(clean->data, clean->len, pos, w, true).next;
    return n;
}

int pp_paragraph_height(const char *text, int w, enum pp_clean how)
{
    struct pp_buf clean = {0};
    pp_sanitize(&clean, text, strlen(text), how, NULL);
    const int n = count_lines(&clean, w);
    pp_buf_free(&clean);
    return n;
}

int pp_paragraph_draw(struct pp_area a, const char *text, enum pp_clean how, pp_style style)
{
    struct pp_buf clean = {0};
    pp_sanitize(&clean, text, strlen(text), how, NULL);
    const char *s = pp_buf_cstr(&clean);
    const int n = count_lines(&clean, a.w), room = a.h > 0 ? a.h : 0;
    const int out = n > room ? n - room : 0, head = out ? (room + 1) / 2 : n;
    size_t pos = 0;
    int at = 0;
    for (int i = 0; i < n; i++) {
        const struct pp_wrapped w = pp_wrap(s, clean.len, pos, a.w, true);
        const bool cut = out && i + 1 == head;
        if (i < head || i >= head + out) {
            const int used = pp_draw_clean(a.y + at, a.x, a.w - cut, s + pos, w.end - pos, style);
            if (cut)
                pp_draw_text(a.y + at, a.x + used, 1, "…", style);
            at++;
        }
        pos = w.next;
    }
    pp_buf_free(&clean);
    return at;
}
