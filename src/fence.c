#include "src/fence.h"

#include <string.h>

struct pp_fence pp_fence_of(const char *line, size_t n, int most)
{
    static const struct pp_fence none;
    struct pp_fence f = {0};
    while ((size_t)f.indent < n && line[f.indent] == ' ' && f.indent < most)
        f.indent++;
    const char *s = line + f.indent;
    n -= (size_t)f.indent;
    if (!n || (*s != '`' && *s != '~'))
        return none;
    f.mark = *s;
    while (f.len < n && s[f.len] == f.mark)
        f.len++;
    const bool inline_code = f.mark == '`' && memchr(s + f.len, '`', n - f.len);
    return f.len < 3 || inline_code ? none : f;
}

bool pp_fence_closes(const struct pp_fence *open, const char *line, size_t n, int most)
{
    const struct pp_fence f = pp_fence_of(line, n, most);
    size_t at = (size_t)f.indent + f.len;
    while (at < n && (line[at] == ' ' || line[at] == '\t'))
        at++;
    return f.len && f.len >= open->len && f.mark == open->mark && at == n;
}

size_t pp_fence_blocks(const char *s, size_t n, int most, size_t wanted, struct pp_buf *out)
{
    struct pp_fence open = {0};
    size_t blocks = 0;
    for (size_t at = 0, next; at < n; at = next) {
        const char *nl = memchr(s + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - s) - at : n - at, skip = 0;
        next = nl ? at + len + 1 : n;
        len -= len && s[at + len - 1] == '\r';
        if (!open.len) {
            open = pp_fence_of(s + at, len, most);
            blocks += open.len > 0;
        } else if (pp_fence_closes(&open, s + at, len, most)) {
            open.len = 0;
        } else if (out && blocks == wanted) {
            while (skip < len && (int)skip < open.indent && s[at + skip] == ' ')
                skip++;
            pp_buf_add(out, s + at + skip, len - skip);
            pp_buf_char(out, '\n');
        }
    }
    return blocks;
}
