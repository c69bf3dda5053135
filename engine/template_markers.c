/* template_markers.c - tokens that only the template may write: with such a token, a message could speak in another
 * role. */
#include <stdio.h>
#include <string.h>

#include "engine/text.h"
#include "engine/tokenizer_internal.h"

static bool is_between(struct pp_str s, const char *open, const char *close)
{
    const size_t a = strlen(open), b = strlen(close);
    return s.len > a + b && memcmp(s.data, open, a) == 0 && memcmp(s.data + s.len - b, close, b) == 0;
}

/* The shapes that nearly all vocabularies use for control tokens, and for nothing else. */
static bool looks_like_control(struct pp_str s)
{
    return is_between(s, "<|", "|>") || is_between(s, "<｜", "｜>");
}

enum { REMEMBERED = 64, MAX_NAME = 64 };

/* Tokens about which the template was asked, to ask only once for each. */
struct memory {
    int32_t harmless[REMEMBERED];
    size_t n; /* noted so far; the oldest are overwritten */
};

static bool holds(const int32_t *ids, size_t n, int32_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Whether the template looks for the name in the brackets of "<name>" or "</name>", and so for what is between such
 * tags. */
static bool is_written(const struct pp_template *tmpl, struct pp_str s)
{
    char other[MAX_NAME + sizeof "</>"];
    if (pp_template_text(tmpl, s.data, s.len) != PP_TEMPLATE_WRITES)
        return false;
    const bool closes = s.data[1] == '/';
    const int skip = 1 + closes, n = (int)s.len - skip - 1;
    if (s.len > MAX_NAME || s.data[0] != '<')
        return true;
    const int len = snprintf(other, sizeof other, "<%s%.*s>", closes ? "" : "/", n, s.data + skip);
    return !(pp_template_text(tmpl, other, (size_t)len) & PP_TEMPLATE_LOOKS_FOR);
}

static bool is_marker(const struct pp_tokenizer *t, const struct pp_template *tmpl, int32_t id, struct memory *m)
{
    const struct pp_str s = tok_text(t, (uint32_t)id);
    if (t->type[id] == TOK_CONTROL || t->type[id] == TOK_UNKNOWN)
        return s.len > 0;
    if (t->type[id] != TOK_USER)
        return false;
    if (looks_like_control(s))
        return true;
    if (!tmpl || !(is_between(s, "<", ">") || is_between(s, "[", "]")) ||
        holds(m->harmless, m->n < REMEMBERED ? m->n : REMEMBERED, id))
        return false;
    if (is_written(tmpl, s))
        return true;
    m->harmless[m->n++ % REMEMBERED] = id;
    return false;
}

int32_t pp_find_marker(const struct pp_tokenizer *t, const struct pp_template *tmpl, bool foreign, const int32_t *ids,
                       size_t n, const int32_t *done, size_t n_done)
{
    struct memory m = {.n = 0};
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && (uint32_t)ids[i] < t->n_vocab && !holds(done, n_done, ids[i]) &&
            is_marker(t, foreign ? tmpl : NULL, ids[i], &m))
            return ids[i];
    return -1;
}

bool pp_role_is_foreign(const char *role)
{
    static const char *const others[] = {"assistant", "model", "system", "developer"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(role, others[i]) == 0)
            return false;
    return true;
}
