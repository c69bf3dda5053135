#include "src/completion.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/base/word.h"

void pp_completion_begin(struct pp_completion *c, const char *line, size_t at)
{
    *c = (struct pp_completion){.line = line, .at = at, .len = strlen(line) - at};
}

static bool listed_last(const struct pp_buf *all, const char *name, size_t n)
{
    const char *s = pp_buf_cstr(all);
    return all->len >= n && memcmp(s + all->len - n, name, n) == 0 && (all->len == n || s[all->len - n - 1] == ' ');
}

void pp_completion_offer(struct pp_completion *c, const char *name)
{
    enum { ENOUGH = 600 }; /* the length of a notice */
    const size_t whole = strlen(name);
    size_t i = 0;
    if (!whole || whole >= sizeof c->first || pp_ncasecmp(name, c->line + c->at, c->len) != 0)
        return;
    if (strpbrk(name, "\n\r")) /* a command is a single line */
        return;
    if (c->n && (strcmp(name, c->first) == 0 || listed_last(&c->all, name, whole)))
        return; /* a model that is found in two places */
    if (c->n++ == 0) {
        memcpy(c->first, name, whole + 1);
        c->same = whole;
    }
    while (i < c->same && pp_lower(name[i]) == pp_lower(c->first[i]))
        i++;
    c->same = i;
    if (c->all.len < ENOUGH)
        pp_buf_fmt(&c->all, "%s%.*s", c->all.len ? "  " : "", (int)(whole - (name[whole - 1] == ' ')), name);
    else if (!strstr(pp_buf_cstr(&c->all), "…"))
        pp_buf_str(&c->all, "  …");
}

void pp_completion_offer_words(struct pp_completion *c, const char *args)
{
    int depth = 0;
    bool first = false; /* the next word is the first one of an alternative */
    for (const char *p = args; *p;) {
        const size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyz-");
        char word[32];
        if (n && first && depth == 1 && n < sizeof word - 1) {
            const bool more = p[n] == ' ' && p[n + 1] != pp_lower(p[n + 1]);
            snprintf(word, sizeof word, "%.*s%s", (int)n, p, more ? " " : "");
            pp_completion_offer(c, word);
        }
        depth += *p == '[' ? 1 : *p == ']' ? -1 : 0;
        if (*p != ' ')
            first = *p == '[' || *p == '|';
        p += n ? n : 1;
    }
}

char *pp_completion_take(struct pp_completion *c, struct pp_buf *several)
{
    struct pp_buf out = {0};
    if (c->n) {
        size_t same = pp_utf8_complete(c->first, c->same); /* names may differ within a multi-byte character */
        if (same < c->len)
            same = c->len;
        /* if nothing is added, the word stays as typed, since the names may differ in case */
        const bool adds = same > c->len || c->n == 1;
        pp_buf_add(&out, c->line, c->at);
        pp_buf_add(&out, adds ? c->first : c->line + c->at, same);
        if (c->n == 1 && same && c->first[same - 1] != ' ')
            pp_buf_char(&out, ' ');
        if (!adds && several)
            pp_buf_str(several, pp_buf_cstr(&c->all));
    }
    pp_buf_free(&c->all);
    return c->n ? pp_buf_take(&out) : NULL;
}
