/* fuzz_screen.c - any bytes on their way to the screen: through the sanitiser, and as a message that grows while it is
 * laid out.
 *
 * First byte: 1 Markdown, the rest of it the width. Second: where the message is cut for the first update. What comes
 * out must be UTF-8 without control characters for terminals or characters that reorder text. */
#include <stdlib.h>

#include "engine/base/utf8.h"
#include "tests/hostile.h"
#include "ui/document.h"
#include "ui/sanitize.h"

/* A definition of its own, instead of pp_char_is_clean(). */
static bool obeyed(int32_t cp)
{
    return cp < 0x20 || (cp >= 0x7F && cp < 0xA0) || cp == 0x61C || cp == 0x200E || cp == 0x200F || cp == 0x2028 ||
           cp == 0x2029 || (cp >= 0x202A && cp <= 0x202E) || (cp >= 0x2066 && cp <= 0x2069) ||
           (cp >= 0xE0000 && cp <= 0xE007F) || cp == 0xFEFF;
}

static void require_clean(const char *s, size_t n, bool lines)
{
    for (size_t i = 0; i < n;) {
        int32_t cp;
        size_t len = pp_utf8_decode(s + i, n - i, &cp);
        if (!len || cp < 0 || (obeyed(cp) && !(lines && cp == '\n')))
            abort();
        i += len;
    }
}

static void sanitize(const char *s, size_t n)
{
    for (int mode = PP_CLEAN_TEXT; mode <= PP_CLEAN_LINE; mode++) {
        struct pp_buf out = {0}, again = {0};
        int column = 0;
        pp_sanitize(&out, s, n, (enum pp_clean)mode, &column);
        require_clean(out.data, out.len, mode == PP_CLEAN_TEXT);
        pp_sanitize(&again, out.data, out.len, (enum pp_clean)mode, NULL);
        if (again.len != out.len) /* clean text stays the same */
            abort();
        pp_buf_free(&out);
        pp_buf_free(&again);
    }
}

static void require_sound(const struct pp_layout *l)
{
    require_clean(l->text.data, l->text.len, true);
    for (size_t i = 0; i < l->n_lines; i++)
        if (l->lines[i].start > l->lines[i].end || l->lines[i].end > l->text.len)
            abort();
    for (size_t i = 0; i < l->n_runs; i++)
        if (l->runs[i].start > l->text.len || (i && l->runs[i].start < l->runs[i - 1].start))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    unsigned look = hostile_byte(&in), cut = hostile_byte(&in);
    struct pp_document doc = {0};
    const char *s = (const char *)in.data;
    if (!in.size)
        return 0;
    sanitize(s, in.size);
    pp_document_update(&doc, s, in.size * cut / 255, (int)(look >> 1), look & 1, PP_SLOT_ASSISTANT);
    require_sound(&doc.layout);
    pp_document_update(&doc, s, in.size, (int)(look >> 1), look & 1, PP_SLOT_ASSISTANT);
    require_sound(&doc.layout);
    pp_document_free(&doc);
    return 0;
}
