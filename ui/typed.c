#include "ui/typed.h"

#include <string.h>

#include "engine/base/utf8.h"

static char *first_end(const struct pp_typed *t)
{
    return t->text.len ? memchr(t->text.data, '\n', t->text.len) : NULL;
}

bool pp_typed_has_line(const struct pp_typed *t)
{
    return first_end(t) != NULL;
}

/* Drops an incomplete line at the end. */
static void drop_last(struct pp_typed *t)
{
    const char *end = t->text.len ? memrchr(t->text.data, '\n', t->text.len) : NULL;
    if (!end) {
        pp_buf_free(&t->text);
        return;
    }
    t->text.len = (size_t)(end - t->text.data) + 1;
    t->text.data[t->text.len] = 0;
    t->text.bad = false;
}

enum pp_code pp_typed_add(struct pp_typed *t, const char *bytes, size_t n, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < n; i++) {
        if (!t->skipping && bytes[i])
            pp_buf_char(&t->text, bytes[i]);
        if (t->text.bad) {
            drop_last(t);
            t->skipping = true;
            code = pp_fail(err, PP_ERR_NOMEM, "Out of memory for that line: nothing was sent; close other programs "
                                              "and type it again.");
        }
        if (bytes[i] == '\n')
            t->skipping = false;
    }
    if (t->text.len <= PP_TYPED_LINE_MAX || pp_typed_has_line(t))
        return code;
    drop_last(t);
    t->skipping = true;
    return pp_fail(err, PP_ERR_FORMAT, "That line is too long: nothing was sent.");
}

const char *pp_typed_line(struct pp_typed *t, bool ended)
{
    char *end = first_end(t);
    if (!end && !(ended && t->text.len))
        return NULL;
    size_t len = end ? (size_t)(end - t->text.data) : t->text.len;
    t->used = end ? len + 1 : len;
    if (len && t->text.data[len - 1] == '\r') /* from a file with CR LF line ends */
        len--;
    t->text.data[len] = 0;
    return t->text.data + (t->begun ? 0 : pp_utf8_mark(t->text.data, len));
}

void pp_typed_used(struct pp_typed *t)
{
    t->text.len -= t->used;
    memmove(t->text.data, t->text.data + t->used, t->text.len + 1);
    t->used = 0;
    t->begun = true;
}
