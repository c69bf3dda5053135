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
