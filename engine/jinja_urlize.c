/* jinja_urlize.c - the filter urlize: addresses in text become links, as in Jinja 3. */
#include <pthread.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/base/utf8.h"
#include "engine/jinja_filters.h"

enum { MATCH_LIMIT = 100000 };

static const char web_pattern[] =
    "^(?:(?:https?://|www\\.)(?:(?:[\\w%-]+\\.)+)?(?:[a-z]{2,63}|xn--[\\w%]{2,59})"
    "|(?:[\\w%-]{2,63}\\.)+(?:com|net|int|edu|gov|org|info|mil)"
    "|(?:https?://)(?:(?:\\d{1,3}(?:\\.\\d{1,3}){3})|(?:\\[(?:[\\da-f]{0,4}:){2}(?:[\\da-f]{0,4}:?){1,6}\\])))"
    "(?::\\d{1,5})?(?:[/?#]\\S*)?$";
static const char mail_pattern[] = "^\\S+@\\w[\\w.-]*\\.\\w+$";
static const char scheme_pattern[] = "^(?:[\\w.+-]{2,}:(?:/){0,2})$";

/* Compiled once for all templates; NULL: out of memory. */
static pcre2_code *web, *mail, *scheme;
static pcre2_match_context *limits;

static pcre2_code *compile(const char *pattern, uint32_t options)
{
    int problem;
    PCRE2_SIZE at;
    return pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                         options | PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &problem, &at, NULL);
}

static void compile_all(void)
{
    web = compile(web_pattern, PCRE2_CASELESS);
    mail = compile(mail_pattern, 0);
    scheme = compile(scheme_pattern, 0);
    limits = pcre2_match_context_create(NULL);
    if (limits)
        pcre2_set_match_limit(limits, MATCH_LIMIT);
}

static bool matches(struct jinja *j, const pcre2_code *code, struct jinja_value s)
{
    pcre2_match_data *found = code && limits ? pcre2_match_data_create(1, NULL) : NULL;
    const int rc = found ? pcre2_match(code, (PCRE2_SPTR)s.s, s.n, 0, 0, found, limits) : PCRE2_ERROR_NOMEMORY;
    pcre2_match_data_free(found);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        jinja_fail(j, "urlize takes too long for this text, or there is no memory for it");
    jinja_work(j, s.n * 64);
    return rc >= 0;
}

static bool begins(struct jinja_value s, const char *with)
{
    return s.n >= strlen(with) && memcmp(s.s, with, strlen(with)) == 0;
}

static bool ends(struct jinja_value s, const char *with)
{
    return s.n >= strlen(with) && memcmp(s.s + s.n - strlen(with), with, strlen(with)) == 0;
}

static size_t count(struct jinja *j, struct jinja_value s, const char *part)
{
    size_t n = 0;
    for (size_t at = 0; (at = jinja_find(j, s, jinja_cstr(part), at)) != SIZE_MAX; at += strlen(part))
        n++;
    return n;
}

/* Length of the brackets at the beginning of a word. */
static size_t opening(struct jinja_value s)
{
    size_t at = 0;
    for (;;) {
        const struct jinja_value rest = jinja_str(s.s + at, s.n - at);
        if (begins(rest, "(") || begins(rest, "<"))
            at++;
        else if (begins(rest, "&lt;"))
            at += 4;
        else
            return at;
    }
}

/* Length of a word without the brackets and punctuation at its end. */
static size_t closing(struct jinja_value s)
{
    for (;;) {
        if (ends(s, "&gt;"))
            s.n -= 4;
        else if (s.n && strchr(")>.,\n", s.s[s.n - 1]))
            s.n--;
        else
            return s.n;
    }
}

/* Extends it by closing brackets of those opened in the word. */
static size_t balanced(struct jinja *j, struct jinja_value word, size_t n)
{
    static const char *const pairs[][2] = {{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}};
    for (size_t i = 0; i < 3; i++) {
        const struct jinja_value middle = jinja_str(word.s, n), tail = jinja_str(word.s + n, word.n - n);
        const size_t open = count(j, middle, pairs[i][0]), there = count(j, tail, pairs[i][1]);
        if (open <= count(j, middle, pairs[i][1]))
            continue;
        for (size_t k = 0; k < open && k < there; k++)
            n = jinja_find(j, word, jinja_cstr(pairs[i][1]), n) + strlen(pairs[i][1]);
    }
    return n;
}

struct links {
    int64_t longest;                 /* characters of an address to show; -1: all */
    struct jinja_value attributes;   /* attributes of links */
    const struct jinja_list *schemes;
};

static void link_to(struct jinja *j, struct jinja_text *t, const char *before, struct jinja_value address,
                    struct jinja_value attributes, struct jinja_value shown, bool cut)
{
    jinja_add_str(j, t, "<a href=\"");
    jinja_add_str(j, t, before);
    jinja_add(j, t, address.s, address.n);
    jinja_add_char(j, t, '"');
    jinja_add(j, t, attributes.s, attributes.n);
    jinja_add_char(j, t, '>');
    jinja_add(j, t, shown.s, shown.n);
    jinja_add_str(j, t, cut ? "...</a>" : "</a>");
}

static void add_middle(struct jinja *j, struct jinja_text *t, const struct links *l, struct jinja_value s)
{
    const struct jinja_value nothing = jinja_str("", 0);
    struct jinja_value shown = s, rest = s;
    if (matches(j, web, s)) {
        const bool cut = l->longest >= 0 && (int64_t)jinja_count_chars(j, s) > l->longest;
        if (cut)
            shown = jinja_str(s.s, jinja_char_offset(j, s, (size_t)l->longest));
        link_to(j, t, begins(s, "https://") || begins(s, "http://") ? "" : "https://", s, l->attributes, shown, cut);
        return;
    }
    if (begins(s, "mailto:")) {
        rest = jinja_str(s.s + 7, s.n - 7);
        if (matches(j, mail, rest)) {
            link_to(j, t, "", s, nothing, rest, false);
            return;
        }
    }
    if (s.n && memchr(s.s, '@', s.n) && !begins(s, "www.") && *s.s != '@' && !memchr(s.s, ':', s.n) &&
        matches(j, mail, s)) {
        link_to(j, t, "mailto:", s, nothing, s, false);
        return;
    }
    /* each is applied to the result of the one before */
    for (size_t i = 0; l->schemes && i < l->schemes->n; i++) {
        const struct jinja_value name = l->schemes->items[i];
        if (s.n > name.n && memcmp(s.s, name.s, name.n) == 0) {
            link_to(j, t, "", s, l->attributes, s, false);
            return;
        }
    }
    jinja_add(j, t, s.s, s.n);
}

static void add_word(struct jinja *j, struct jinja_text *t, const struct links *l, struct jinja_value word)
{
    const size_t head = opening(word);
    const struct jinja_value rest = jinja_str(word.s + head, word.n - head);
    const size_t n = balanced(j, rest, closing(rest));
    jinja_add(j, t, word.s, head);
    struct jinja_text middle = {0};
    add_middle(j, &middle, l, jinja_str(rest.s, n));
    jinja_add(j, t, middle.p, middle.n);
    jinja_add(j, t, rest.s + n, rest.n - n);
}

/* Words of `rel`, each once and in order, with nofollow if wanted. */
static struct jinja_value relation(struct jinja *j, struct jinja_value rel, bool nofollow)
{
    struct jinja_list *parts = jinja_list(j), *once = jinja_list(j);
    if (jinja_given(rel) && rel.kind != JINJA_NONE)
        parts = jinja_split(j, jinja_arg_str(j, rel, ""), jinja_none(), -1, false);
    if (nofollow)
        jinja_push(j, parts, jinja_cstr("nofollow"));
    jinja_push(j, parts, jinja_cstr("noopener")); /* Jinja's own */
    struct jinja_pair *pairs = jinja_alloc(j, parts->n * sizeof *pairs);
    for (size_t i = 0; i < parts->n; i++)
        pairs[i] = (struct jinja_pair){.key = parts->items[i]};
    jinja_sort_pairs(j, pairs, parts->n);
    for (size_t i = 0; i < parts->n; i++)
        if (!i || !jinja_equal(j, pairs[i].key, pairs[i - 1].key))
            jinja_push(j, once, pairs[i].key);
    return jinja_join(j, jinja_cstr(" "), once);
}

static struct jinja_value attributes(struct jinja *j, struct jinja_value rel, struct jinja_value target)
{
    struct jinja_text t = {0};
    const struct jinja_value values[] = {rel, jinja_given(target) && target.kind != JINJA_NONE ? target
                                                                                               : jinja_str("", 0)};
    for (int i = 0; i < 2; i++) {
        const struct jinja_value v = jinja_as_html(j, values[i]);
        if (!jinja_truth(values[i]))
            continue;
        jinja_add_str(j, &t, i ? " target=\"" : " rel=\"");
        jinja_add(j, &t, v.s, v.n);
        jinja_add_char(j, &t, '"');
    }
    return jinja_text_value(j, &t);
}

static const struct jinja_list *schemes(struct jinja *j, struct jinja_value v)
{
    if (!jinja_given(v) || v.kind == JINJA_NONE)
        return NULL;
    const struct jinja_list *list = jinja_iterate(j, v);
    for (size_t i = 0; i < list->n; i++)
        if (!matches(j, scheme, jinja_arg_str(j, list->items[i], "")))
            jinja_fail(j, "urlize: an extra scheme is such as \"ftp://\"");
    return list;
}

struct jinja_value jinja_urlize(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                const struct jinja_args *args)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)args;
    pthread_once(&once, compile_all);
    const struct jinja_value s = jinja_as_html(j, self);
    const bool all = !jinja_given(arg[0]) || arg[0].kind == JINJA_NONE;
    const struct links l = {
        .longest = all ? -1 : jinja_arg_int(j, arg[0], -1),
        .attributes = attributes(j, relation(j, arg[3], jinja_truth(arg[1])), arg[2]),
        .schemes = schemes(j, arg[4]),
    };
    struct jinja_text t = {0};
    if (!all && l.longest < 0)
        jinja_fail(j, "urlize: the length of links is not negative");
    for (size_t i = 0, end; i < s.n; i = end) {
        int32_t cp;
        size_t width = pp_utf8_decode(s.s + i, s.n - i, &cp);
        const bool space = jinja_is_space(cp);
        for (end = i; end < s.n; end += width) {
            width = pp_utf8_decode(s.s + end, s.n - end, &cp);
            if (jinja_is_space(cp) != space)
                break;
        }
        if (space)
            jinja_add(j, &t, s.s + i, end - i);
        else
            add_word(j, &t, &l, jinja_str(s.s + i, end - i));
    }
    struct jinja_value v = jinja_text_value(j, &t);
    v.flag = j->autoescape;
    return v;
}
