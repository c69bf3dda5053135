#include "src/title.h"

#include <stdbool.h>
#include <string.h>

#include "engine/base/utf8.h"

enum { MAX_CHARACTERS = 60 };

static const char cut_mark[] = "…";

void pp_title(const char *text, size_t n, char out[PP_TITLE_BYTES])
{
    size_t len = 0;
    int characters = 0;
    bool space = false, cut = false;
    for (size_t i = 0; i < n;) {
        int32_t cp;
        size_t bytes = pp_utf8_decode(text + i, n - i, &cp);
        const char *piece = text + i;
        i += bytes;
        if (cp <= ' ' || cp == 0x7f || (cp >= 0x80 && cp < 0xa0)) { /* also what is not UTF-8 */
            space = len > 0;
            continue;
        }
        cut = characters + space >= MAX_CHARACTERS || len + space + bytes + sizeof cut_mark > PP_TITLE_BYTES;
        if (cut)
            break;
        if (space)
            out[len++] = ' ';
        memcpy(out + len, piece, bytes);
        len += bytes;
        characters += 1 + space;
        space = false;
    }
    out[len] = 0;
    if (cut)
        strcpy(out + len, cut_mark);
}
