#include "ui/text_file.h"

#include <limits.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "src/paths.h"

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n\v\f", s[i]))
            return false;
    return true;
}

/* Appends the text with \n line ends, and with an empty line instead of line feeds at its end. */
static void add_lines(struct pp_buf *out, const char *s, size_t n)
{
    while (n && (s[n - 1] == '\n' || s[n - 1] == '\r'))
        n--;
    for (size_t i = 0; i < n; i++)
        if (s[i] != '\r' || i + 1 == n || s[i + 1] != '\n')
            pp_buf_char(out, s[i]);
    pp_buf_str(out, "\n\n");
}

enum pp_code pp_text_file_read(const char *path, char **text, struct pp_error *err)
{
    char full[PATH_MAX], *data = NULL;
    struct pp_buf lines = {0};
    size_t n = 0;
    *text = NULL;
    enum pp_code code = pp_expand_home(path, full, sizeof full)
                            ? pp_read_file(full, PP_TEXT_FILE_MAX, &data, &n, err)
                            : pp_fail(err, PP_ERR_IO, "the path is too long");
    if (!code && (memchr(data, 0, n) || !pp_utf8_valid(data, n)))
        code = pp_fail(err, PP_ERR_FORMAT, "%s is not UTF-8 text; convert it with iconv", full);
    const size_t mark = code ? 0 : pp_utf8_mark(data, n);
    if (!code && is_blank(data + mark, n - mark))
        code = pp_fail(err, PP_ERR_FORMAT, "%s is empty", full);
    if (!code) {
        add_lines(&lines, data + mark, n - mark);
        *text = lines.bad ? NULL : pp_strdup(pp_buf_cstr(&lines));
        if (!*text)
            code = pp_fail_nomem(err, "the text");
    }
    pp_buf_free(&lines);
    pp_free(data);
    return code;
}
