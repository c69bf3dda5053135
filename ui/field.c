#include "ui/field.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/utf8.h"
#include "ui/draw.h"
#include "ui/sanitize.h"
#include "ui/text.h"

void pp_field_set(struct pp_field *f, const char *text)
{
    f->len = f->cursor = pp_utf8_print(f->text, sizeof f->text, "%s", text);
}

static void insert(struct pp_field *f, const char *s, size_t n)
{
    const size_t most = f->max_len && f->max_len < sizeof f->text ? f->max_len : sizeof f->text - 1;
    const size_t room = f->len < most ? most - f->len : 0;
    f->full = n > room;
    if (f->full)
        n = pp_utf8_complete(s, room);
    memmove(f->text + f->cursor + n, f->text + f->cursor, f->len - f->cursor + 1);
    memcpy(f->text + f->cursor, s, n);
    f->len += n;
    f->cursor += n;
}

static void erase(struct pp_field *f, size_t from, size_t to)
{
    memmove(f->text + from, f->text + to, f->len - to + 1);
    f->len -= to - from;
    f->cursor = from;
}

/* Inserts a paste as one line: line ends and tabs become spaces, trailing ones are dropped. */
static void insert_paste(struct pp_field *f, const char *s, size_t n)
{
    struct pp_buf line = {0};
    while (n > 0 && strchr(" \t\r\n", s[n - 1]))
        n--;
    for (size_t i = 0; i < n; i++) {
        if (strchr("\t\r\n", s[i]) && s[i])
            pp_buf_char(&line, ' ');
        else if ((unsigned char)s[i] >= 0x20 && s[i] != 0x7f)
            pp_buf_char(&line, s[i]);
    }
    if (line.len && !line.bad)
        insert(f, line.data, line.len);
    pp_buf_free(&line);
}

static size_t word_start(const struct pp_field *f)
{
    size_t at = f->cursor;
    while (at > 0 && f->text[at - 1] == ' ')
        at--;
    while (at > 0 && f->text[at - 1] != ' ')
        at--;
    return at;
}

static size_t word_end(const struct pp_field *f)
{
    size_t at = f->cursor;
    while (at < f->len && f->text[at] == ' ')
        at++;
    while (at < f->len && f->text[at] != ' ')
        at++;
    return at;
}

static size_t previous_character(const struct pp_field *f)
{
    return pp_text_previous(f->text, f->len, f->cursor);
}

static size_t next_character(const struct pp_field *f)
{
    return f->cursor + (f->cursor < f->len ? pp_cluster_next(f->text + f->cursor, f->len - f->cursor).len : 0);
}

/* Control keys as in readline. */
static bool control_key(struct pp_field *f, int32_t cp)
{
    switch (cp) {
    case PP_CTRL('a'): f->cursor = 0; return true;
    case PP_CTRL('e'): f->cursor = f->len; return true;
    case PP_CTRL('b'): f->cursor = previous_character(f); return true;
    case PP_CTRL('f'): f->cursor = next_character(f); return true;
    case PP_CTRL('d'): erase(f, f->cursor, next_character(f)); return true;
    case PP_CTRL('u'): erase(f, 0, f->cursor); return true;
    case PP_CTRL('k'): f->text[f->len = f->cursor] = '\0'; return true;
    case PP_CTRL('w'): erase(f, word_start(f), f->cursor); return true;
    default: return false;
    }
}

static bool alt_key(struct pp_field *f, int32_t cp)
{
    switch (cp) {
    case 'b': f->cursor = word_start(f); return true;
    case 'f': f->cursor = word_end(f); return true;
    case 'd': erase(f, f->cursor, word_end(f)); return true;
    default: return false;
    }
}

bool pp_field_key(struct pp_field *f, const struct pp_key *key, bool *changed)
{
    const size_t len = f->len;
    const bool word = (key->mods & (PP_MOD_CTRL | PP_MOD_ALT)) != 0;
    const size_t previous = word ? word_start(f) : previous_character(f);
    const size_t next = word ? word_end(f) : next_character(f);
    bool used = true;
    f->full = false;
    switch (key->type) {
    case PP_KEY_CHAR:
        if (key->mods & PP_MOD_ALT)
            used = alt_key(f, key->cp);
        else if (key->cp < 0x20)
            used = control_key(f, key->cp);
        else
            insert(f, key->bytes, key->n_bytes);
        break;
    case PP_KEY_PASTE: insert_paste(f, key->text, key->len); break;
    case PP_KEY_BACKSPACE: erase(f, previous, f->cursor); break;
    case PP_KEY_DELETE: erase(f, f->cursor, next); break;
    case PP_KEY_LEFT: f->cursor = previous; break;
    case PP_KEY_RIGHT: f->cursor = next; break;
    case PP_KEY_HOME: f->cursor = 0; break;
    case PP_KEY_END: f->cursor = f->len; break;
    default: used = false;
    }
    *changed = f->len != len;
    return used;
}

int pp_field_draw(const struct pp_field *f, int y, int x, int w, pp_style style)
{
    struct pp_buf clean = {0};
    pp_sanitize(&clean, f->text, f->cursor, PP_CLEAN_LINE, NULL);
    size_t cursor = clean.len;
    pp_sanitize(&clean, f->text + f->cursor, f->len - f->cursor, PP_CLEAN_LINE, NULL);
    const char *s = pp_buf_cstr(&clean);
    size_t from = 0; /* scrolled so that the cursor is visible */
    while (from < cursor && pp_text_width(s + from, cursor - from) >= w)
        from += pp_cluster_next(s + from, clean.len - from).len;
    pp_draw_clean(y, x, w, s + from, clean.len - from, style);
    int column = x + pp_text_width(s + from, cursor - from);
    pp_buf_free(&clean);
    return column;
}

/* Appends the last component of a path, with the slash if it is a folder. */
static void list_name(struct pp_buf *out, const char *path)
{
    enum { ENOUGH = 600 }; /* the length of a notice */
    const size_t n = strlen(path);
    size_t from = n;
    while (from > 0 && (path[from - 1] != '/' || from == n))
        from--;
    if (out->len < ENOUGH)
        pp_buf_fmt(out, "%s%s", out->len ? "  " : "", path + from);
    else if (!strstr(pp_buf_cstr(out), "…"))
        pp_buf_str(out, "  …");
}

void pp_field_complete_path(struct pp_field *f, struct pp_buf *several)
{
    char pattern[2 * sizeof f->text + 2];
    size_t n = 0;
    glob_t found;
    for (const char *s = f->text; *s; s++) {
        if (strchr("*?[\\", *s))
            pattern[n++] = '\\';
        pattern[n++] = *s;
    }
    pattern[n++] = '*';
    pattern[n] = 0;
    /* "~ti" may become a user's folder when it is complete; for an unknown user, glob would return the pattern
     * itself */
    if (glob(pattern, GLOB_MARK | (strchr(f->text, '/') ? GLOB_TILDE_CHECK : 0), NULL, &found) != 0)
        return;
    size_t same = found.gl_pathc ? strlen(found.gl_pathv[0]) : 0;
    for (size_t i = 1; i < found.gl_pathc; i++)
        for (size_t k = 0; k < same; k++)
            if (found.gl_pathv[0][k] != found.gl_pathv[i][k])
                same = k;
    char text[sizeof f->text];
    bool longer = false;
    if (same && same < sizeof text) {
        memcpy(text, found.gl_pathv[0], same);
        text[same] = 0;
        longer = strlen(f->text) != pp_utf8_complete(text, same);
        pp_field_set(f, text);
    }
    for (size_t i = 0; several && !longer && found.gl_pathc > 1 && i < found.gl_pathc; i++)
        list_name(several, found.gl_pathv[i]);
    globfree(&found);
}
