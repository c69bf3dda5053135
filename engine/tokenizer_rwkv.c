/* tokenizer_rwkv.c - RWKV's world vocabulary: tokens are arbitrary bytes, and text is cut into the longest token with
 * which it begins, then the longest with which the rest begins, and so on.
 *
 * Its file has a line for each token except the first: the id, a Python literal ('text' or b'bytes'), and the number of
 * bytes that this represents. GGUF files have what is between the quotes of b'bytes'. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"

/* --- literals ----------------------------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The value of n hexadecimal digits at s; -1: some are not. */
static int32_t hex(struct pp_str s, size_t n)
{
    int32_t v = 0;
    for (size_t i = 0; i < n; i++) {
        const int digit = i < s.len ? hex_digit(s.data[i]) : -1;
        if (digit < 0)
            return -1;
        v = v << 4 | digit;
    }
    return v;
}

/* Decodes what follows a backslash at s, and writes it to `to`; returns how many bytes of s it took, 0: it is invalid.
 * *n grows by what was written, which is shorter. text: numbers are characters, otherwise bytes. */
static size_t unescape_one(struct pp_str s, bool text, char *to, size_t *n)
{
    static const char names[] = "tnrabfv", meant[] = "\t\n\r\a\b\f\v";
    const char *name = s.len ? memchr(names, s.data[0], sizeof names - 1) : NULL;
    const size_t digits = s.len && s.data[0] == 'x' ? 2 : s.len && text && s.data[0] == 'u' ? 4 : 0;
    if (!s.len)
        return 0;
    if (!digits) {
        to[(*n)++] = name ? meant[name - names] : s.data[0];
        return 1;
    }
    const int32_t c = hex((struct pp_str){s.data + 1, s.len - 1}, digits);
    if (c < 0 || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    if (text)
        *n += pp_utf8_encode(c, to + *n);
    else
        to[(*n)++] = (char)c;
    return 1 + digits;
}

/* Decodes the inside of a literal to `to`, which has as much room as the literal has bytes. */
static bool unescape(struct pp_str s, bool text, char *to, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] != '\\') {
            to[(*n)++] = s.data[i];
            continue;
        }
        const size_t used = unescape_one((struct pp_str){s.data + i + 1, s.len - i - 1}, text, to, n);
        if (!used)
            return false;
        i += used;
    }
    return true;
}

void tok_rwkv_escape(struct pp_str bytes, struct pp_buf *out)
{
    for (size_t i = 0; i < bytes.len; i++) {
        const unsigned char c = (unsigned char)bytes.data[i];
        if (c == '\\' || c == '\'')
            pp_buf_fmt(out, "\\%c", c);
        else if (c == '\t' || c == '\n' || c == '\r')
            pp_buf_str(out, c == '\t' ? "\\t" : c == '\n' ? "\\n" : "\\r");
        else if (c < 32 || c >= 127)
            pp_buf_fmt(out, "\\x%02x", c);
        else
            pp_buf_char(out, (char)c);
    }
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Allocates memory for all texts without their backslashes. */
static char *make_room(struct tok_spec *spec, size_t n, struct pp_error *err)
{
    spec->unescaped = pp_malloc(n + 1);
    if (!spec->unescaped)
        pp_fail_nomem(err, "the vocabulary");
    return spec->unescaped;
}

enum pp_code tok_rwkv_unescape(struct tok_spec *spec, struct pp_error *err)
{
    size_t all = 0, n;
    for (size_t i = 0; i < spec->n; i++)
        all += spec->texts[i].len;
    char *to = make_room(spec, all, err);
    if (!to)
        return PP_ERR_NOMEM;
    for (size_t i = 0; i < spec->n; i++, to += n) {
        if (!unescape(spec->texts[i], false, to, &n))
            return pp_fail(err, PP_ERR_FORMAT, "token %zu has a backslash before something unknown", i);
        spec->texts[i] = (struct pp_str){to, n};
    }
    return PP_OK;
}

bool tok_is_rwkv(const char *data, size_t n)
{
    const char *p = data, *end = data + n;
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    if (p == data || end - p < 3 || *p != ' ')
        return false;
    p += p[1] == 'b' ? 2 : 1;
    return *p == '\'' || *p == '"';
}

/* Parses a line, "257 'text' 4", without its end. *to moves past the decoded token. */
static bool read_line(struct pp_str line, int64_t *id, char **to, struct pp_str *token)
{
    const char *first = memchr(line.data, ' ', line.len), *last = memrchr(line.data, ' ', line.len);
    char *stop;
    if (!first || last - first < 3 || line.data[0] < '0' || line.data[0] > '9')
        return false;
    *id = strtoll(line.data, &stop, 10); /* ends at the space */
    const bool text = first[1] != 'b';
    const char *begin = first + (text ? 1 : 2), *end = last - 1; /* between the quotes */
    size_t n;
    if (stop != first || end <= begin || (*begin != '\'' && *begin != '"') || *end != *begin ||
        !unescape((struct pp_str){begin + 1, (size_t)(end - begin - 1)}, text, *to, &n))
        return false;
    *token = (struct pp_str){*to, n};
    *to += n;
    return n > 0 && strtoll(last, &stop, 10) == (int64_t)n;
}

static enum pp_code read_lines(const char *data, size_t n, struct tok_spec *spec, struct pp_error *err)
{
    char *to = make_room(spec, n, err);
    size_t number = 1;
    if (!to)
        return PP_ERR_NOMEM;
    for (const char *p = data, *end = data + n, *stop; p < end; p = stop + 1, number++) {
        struct pp_str token;
        int64_t id;
        stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop ? stop : end;
        const size_t len = (size_t)(stop - p) - (stop > p && stop[-1] == '\r');
        if (len == 0)
            continue;
        if (!read_line((struct pp_str){p, len}, &id, &to, &token))
            return pp_fail(err, PP_ERR_FORMAT, "line %zu is not a number, a text or bytes in quotes, and their length",
                           number);
        if (id < 1 || (size_t)id > spec->n + TOK_MAX_HOLES)
            return pp_fail(err, PP_ERR_FORMAT, "line %zu: a token cannot have the number %lld", number, (long long)id);
        const enum pp_code code = tok_spec_resize(spec, (size_t)id + 1, err);
        if (code)
            return code;
        spec->texts[id] = token;
        spec->types[id] = TOK_NORMAL;
    }
    return PP_OK;
}

/* The first token is not in the file: it separates texts. Chat models end their answers with an empty line. */
enum pp_code tok_from_rwkv(const char *data, size_t n, struct pp_tokenizer **out, struct pp_error *err)
{
    struct tok_spec spec = {.kind = TOK_RWKV, .bos = 0, .eos = 0, .eot = -1, .unk = -1};
    *out = NULL;
    enum pp_code code = tok_spec_resize(&spec, 1, err);
    if (!code) {
        spec.texts[0] = (struct pp_str){"<s>", 3};
        spec.types[0] = TOK_CONTROL;
        code = read_lines(data, n, &spec, err);
    }
    if (!code) {
        spec.eot = tok_spec_find(&spec, "\n\n", 2);
        code = tok_build(&spec, out, err);
    }
    tok_spec_free(&spec);
    return code;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

void tok_rwkv_write(const struct pp_tokenizer *t, struct pp_buf *out)
{
    for (uint32_t i = 1; i < t->n_vocab; i++) {
        const struct pp_str s = tok_text(t, i);
        if (t->type[i] != TOK_NORMAL)
            continue;
        pp_buf_fmt(out, "%u b'", i);
        tok_rwkv_escape(s, out);
        pp_buf_fmt(out, "' %zu\n", s.len);
    }
}

/* --- cutting text ------------------------------------------------------------------------------------------------- */

enum pp_code tok_rwkv_text(struct tok_merger *m, const char *text, size_t n, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t at = 0, len; at < n && !code; at += len) {
        struct tok_walk w = {.t = m->t, .index = &m->t->pieces};
        uint32_t best = TOK_NONE, token;
        len = 1;
        for (size_t i = at; i < n && tok_walk(&w, text[i], &token); i++)
            if (token != TOK_NONE) {
                best = token;
                len = i + 1 - at;
            }
        if (best != TOK_NONE)
            code = tok_ids_add(&m->ids, (int32_t)best, err);
        else if (m->t->unk >= 0)
            code = tok_ids_add(&m->ids, m->t->unk, err);
    }
    return code;
}
