#include "src/config.h"

#include <ini.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"

enum { MAX_FILE = 1 << 20 };

struct pp_config {
    char *path;
    struct pp_config_entry *entries; /* [n]; strings owned */
    size_t n, cap;
};

/* Reads pieces for inih, which supports lines of up to 200 bytes only: longer ones are split, and all pieces but the
 * first are given as continuations of the value. `glued` remembers that no line break belongs between them. */
struct reader {
    const char *at;
    int line;            /* line number of the current piece */
    bool in_line;        /* `at` is inside a line */
    bool continues;      /* the current piece begins with a space: it continues a value */
    bool glued;
    int bad_line;        /* the first line that is too long to be split, or 0 */
    bool nomem;
    struct pp_config *config;
    struct pp_buf value; /* the value of the last entry, which owns its bytes */
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static bool is_comment(const char *line)
{
    line += strspn(line, " \t");
    return *line == ';' || *line == '#';
}

/* Where to split a line: inih strips white space from each piece, and takes one that begins with ; or # for a
 * comment. */
static size_t cut_at(const char *text, size_t most)
{
    for (size_t n = most; n > most / 2; n--) {
        bool comment = text[n] == ';' || text[n] == '#';
        if (!is_space(text[n - 1]) && !is_space(text[n]) && !comment)
            return n;
    }
    return 0;
}

static char *next_piece(char *out, int size, void *user)
{
    struct reader *r = user;
    if (!*r->at)
        return NULL;
    size_t room = (size_t)size - 3; /* for the leading space of a continuation, \n and NUL */
    size_t n = strcspn(r->at, "\n");
    if (!r->in_line && is_comment(r->at)) {
        r->line++;
        r->at += n + (r->at[n] == '\n');
        return strcpy(out, "\n");
    }
    bool whole = n <= room, inside = r->in_line;
    if (!whole) {
        size_t cut = cut_at(r->at, room);
        if (!cut && !r->bad_line)
            r->bad_line = r->line + !inside;
        n = cut ? cut : room;
    }
    if (inside)
        *out++ = ' ';
    else
        r->line++;
    memcpy(out, r->at, n);
    out[n] = '\n';
    out[n + 1] = 0;
    r->continues = inside || is_space(out[0]);
    r->glued = inside;
    r->in_line = !whole;
    r->at += n + (whole && r->at[n] == '\n');
    return out;
}

static bool add_entry(struct reader *r, const char *section, const char *key, const char *value)
{
    struct pp_config *c = r->config;
    if (pp_grow(&c->entries, &c->cap, c->n + 1, sizeof *c->entries) != 0)
        return false;
    struct pp_buf text = {0};
    pp_buf_str(&text, value);
    struct pp_config_entry e = {pp_strdup(section), pp_strdup(key), text.data, r->line};
    if (!e.section || !e.key || !e.value) {
        pp_free((char *)(uintptr_t)e.section);
        pp_free((char *)(uintptr_t)e.key);
        pp_buf_free(&text);
        return false;
    }
    r->value = text;
    c->entries[c->n++] = e;
    return true;
}

static bool extend_entry(struct reader *r, const char *value)
{
    if (!r->glued)
        pp_buf_char(&r->value, '\n');
    pp_buf_str(&r->value, value);
    r->config->entries[r->config->n - 1].value = r->value.data;
    return !r->value.bad;
}

static int on_value(void *user, const char *section, const char *key, const char *value)
{
    struct reader *r = user;
    struct pp_config *c = r->config;
    if (!value) /* a section without values */
        return 1;
    struct pp_config_entry *last = c->n ? &c->entries[c->n - 1] : NULL;
    bool ok;
    if (r->continues && last && strcmp(last->key, key) == 0 && strcmp(last->section, section) == 0)
        ok = extend_entry(r, value);
    else
        ok = add_entry(r, section, key, value);
    r->nomem = r->nomem || !ok;
    return ok;
}

/* inih reports a bad line by the number of its piece; reading again gives the line of the file. */
static int line_of_piece(const char *text, int piece, int size)
{
    char scratch[1024];
    struct reader r = {.at = text};
    while (piece-- > 0 && next_piece(scratch, size, &r))
        continue;
    return r.line;
}

static enum pp_code parse(struct pp_config *c, const char *text, struct pp_error *err)
{
    struct reader r = {.at = text, .config = c};
    int piece = ini_parse_stream(next_piece, &r, on_value, &r);
    if (r.nomem || piece < 0)
        return pp_fail_nomem(err, c->path);
    if (r.bad_line)
        return pp_fail(err, PP_ERR_FORMAT, "%s:%d: the line is too long; break it, and start the next line with a "
                                           "space",
                       c->path, r.bad_line);
    if (piece > 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s:%d: this is not a [section], a `name = value` or a # comment", c->path,
                       line_of_piece(text, piece, INI_MAX_LINE));
    return PP_OK;
}

enum pp_code pp_config_load(const char *path, struct pp_config **out, struct pp_error *err)
{
    char *text = NULL;
    size_t size = 0;
    *out = NULL;
    struct pp_config *c = pp_calloc(1, sizeof *c);
    if (c)
        c->path = pp_strdup(path);
    if (!c || !c->path) {
        pp_free(c);
        return pp_fail_nomem(err, path);
    }
    enum pp_code code = pp_read_file(path, MAX_FILE, &text, &size, err);
    if (code == PP_ERR_NOT_FOUND)
        code = PP_OK;
    else if (code == PP_ERR_IO && access(path, R_OK) != 0) /* HOME may be another user's, kept by sudo */
        pp_fail_advice(err, "make it readable for you, or set HOME or XDG_CONFIG_HOME to a folder of your own");
    else if (!code && memchr(text, 0, size))
        code = pp_fail(err, PP_ERR_FORMAT, "%s is not a text file", path);
    else if (!code)
        code = parse(c, text, err);
    pp_free(text);
    if (code) {
        pp_config_free(c);
        return code;
    }
    *out = c;
    return PP_OK;
}

void pp_config_free(struct pp_config *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n; i++) {
        pp_free((char *)(uintptr_t)c->entries[i].section);
        pp_free((char *)(uintptr_t)c->entries[i].key);
        pp_free((char *)(uintptr_t)c->entries[i].value);
    }
    pp_free(c->entries);
    pp_free(c->path);
    pp_free(c);
}

const char *pp_config_path(const struct pp_config *c)
{
    return c->path;
}

size_t pp_config_count(const struct pp_config *c)
{
    return c ? c->n : 0;
}

const struct pp_config_entry *pp_config_at(const struct pp_config *c, size_t i)
{
    return &c->entries[i];
}

bool pp_config_persona(const struct pp_config *c, size_t i, const char **name, const char **system)
{
    static const char prefix[] = "persona ";
    for (size_t k = 0; k < pp_config_count(c); k++) {
        const struct pp_config_entry *e = &c->entries[k];
        if (strncmp(e->section, prefix, sizeof prefix - 1) != 0 || strcmp(e->key, "system") != 0 || i-- != 0)
            continue;
        *name = e->section + sizeof prefix - 1;
        *system = e->value;
        return true;
    }
    return false;
}
