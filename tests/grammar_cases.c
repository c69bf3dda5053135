#include "tests/grammar_cases.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/grammar_state.h"
#include "tests/support.h"

/* Reads each character as a token that no grammar mentions. */
static bool accepts(const struct pp_grammar *g, const char *s)
{
    enum { UNMENTIONED = 1000000 };
    struct pp_matcher m;
    struct pp_error err;
    int32_t ids[16] = {0}, cp;
    assert_ok(pp_matcher_init(&m, g, &err), err);
    for (uint32_t i = 0; i < g->n_tokens; i++)
        ids[i] = g->tokens[i].id;
    int32_t at = pp_matcher_start(&m);
    while (*s && at > 0) {
        const bool token = strncmp(s, "{{TOKEN:", 8) == 0;
        const size_t n = token ? strcspn(s, "}") + 2 : pp_utf8_decode(s, strlen(s), &cp);
        at = token ? pp_matcher_token(&m, at, atoi(s + 8), NULL, 0, ids)
                   : pp_matcher_token(&m, at, UNMENTIONED, s, n, ids);
        s += n;
    }
    if (at < 0)
        fail_msg("%s", m.err.text);
    const bool yes = at > 0 && m.states[at].ends;
    pp_matcher_free(&m);
    return yes;
}

static void check(const struct pp_grammar *g, const cJSON *c, const char *list, bool expected)
{
    const cJSON *text;
    cJSON_ArrayForEach(text, cJSON_GetObjectItem(c, list))
        if (accepts(g, text->valuestring) != expected)
            fail_msg("%s: %s \"%s\"", cJSON_GetObjectItem(c, "desc")->valuestring,
                     expected ? "does not accept" : "accepts", text->valuestring);
}

int grammar_cases(const char *path, struct pp_grammar *make(const cJSON *))
{
    char *data, *rest;
    size_t size;
    struct pp_error err;
    int n = 0;
    assert_ok(pp_read_file(path, 1 << 20, &data, &size, &err), err);
    for (char *line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *c = cJSON_Parse(line);
        assert_non_null(c);
        struct pp_grammar *g = make(c);
        if (g) {
            check(g, c, "passing", true);
            check(g, c, "failing", false);
            n++;
        }
        pp_grammar_free(g);
        cJSON_Delete(c);
    }
    pp_free(data);
    return n;
}
