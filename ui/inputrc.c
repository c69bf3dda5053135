#include "ui/inputrc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <readline/tilde.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"

/* The state of a check: the chain of files being read, the outermost first, and the result so far. */
struct reader {
    struct stat open[PP_INPUTRC_DEPTH];
    int depth, n_files;
    struct pp_buf *flat;
    struct pp_error *err;
    enum pp_code code; /* for the first file that was left out */
};

static void leave_out(struct reader *l, const char *path, const char *why)
{
    if (l->code == PP_OK)
        l->code = pp_fail(l->err, PP_ERR_FORMAT, "the key bindings in %s are not used: %s", path, why);
}

static bool is_being_read(const struct reader *l, const struct stat *st)
{
    for (int i = 0; i < l->depth; i++)
        if (l->open[i].st_dev == st->st_dev && l->open[i].st_ino == st->st_ino)
            return true;
    return false;
}

/* Whether a line of n bytes is an $include; *name is then the file (pp_malloced), or NULL if memory runs out. */
static bool includes(const char *line, size_t n, char **name)
{
    static const char blanks[] = " \t\r\v\f", word[] = "include";
    const char *s = line, *end = line + n;
    while (s < end && *s && strchr(blanks, *s))
        s++;
    if (s == end || *s++ != '$')
        return false;
    while (s < end && *s && strchr(blanks, *s))
        s++;
    if ((size_t)(end - s) < sizeof word || pp_ncasecmp(s, word, sizeof word - 1) != 0 ||
        !strchr(blanks, s[sizeof word - 1]))
        return false;
    s += sizeof word - 1;
    while (s < end && *s && strchr(blanks, *s))
        s++;
    while (end > s && end[-1] && strchr(blanks, end[-1]))
        end--;
    char *written = pp_strndup(s, (size_t)(end - s)), *full = written ? tilde_expand(written) : NULL;
    *name = full ? pp_strdup(full) : NULL;
    free(full); /* allocated by readline */
    pp_free(written);
    return true;
}

static void read_file(struct reader *l, const char *path);

static void read_lines(struct reader *l, const char *data, size_t n)
{
    for (size_t at = 0, len; at < n; at += len) {
        const char *line = data + at, *feed = memchr(line, '\n', n - at);
        len = feed ? (size_t)(feed - line) + 1 : n - at;
        const size_t words = feed ? len - 1 : len;
        char *name = NULL;
        if (!includes(line, words, &name)) {
            pp_buf_add(l->flat, line, words);
            pp_buf_char(l->flat, '\n');
        } else if (name) {
            read_file(l, name);
        } else {
            l->flat->bad = true;
        }
        pp_free(name);
    }
}

static void read_file(struct reader *l, const char *path)
{
    struct stat st;
    char *data = NULL;
    size_t n = 0;
    if (l->flat->bad || stat(path, &st) != 0)
        return; /* readline ignores missing files, too */
    if (S_ISFIFO(st.st_mode)) {
        leave_out(l, path, "it is not a regular file");
    } else if (!S_ISREG(st.st_mode)) {
        return;
    } else if (is_being_read(l, &st)) {
        leave_out(l, path, "it includes itself");
    } else if (l->depth == PP_INPUTRC_DEPTH) {
        leave_out(l, path, "files include each other too deeply");
    } else if (l->n_files == PP_INPUTRC_FILES) {
        leave_out(l, path, "too many files are included");
    } else if (st.st_size > PP_INPUTRC_MAX || l->flat->len + (size_t)st.st_size > PP_INPUTRC_MAX) {
        leave_out(l, path, "it is too large");
    } else if (pp_read_file(path, PP_INPUTRC_MAX, &data, &n, NULL) == PP_OK) {
        l->n_files++;
        l->open[l->depth++] = st;
        read_lines(l, data, n);
        l->depth--;
    }
    pp_free(data);
}

enum pp_code pp_inputrc_check(const char *path, struct pp_buf *flat, struct pp_error *err)
{
    struct reader l = {.flat = flat, .err = err};
    read_file(&l, path);
    return flat->bad ? pp_fail_nomem(err, "your keys") : l.code;
}
