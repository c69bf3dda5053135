/* fuzz_grammar.c - a grammar, or a JSON schema, and a text that is read with it: in bytes, and by masks of a small
 * vocabulary, which must say the same. The first byte says which; then the grammar as a piece, and the text. */
#include <stdlib.h>
#include <string.h>

#include "engine/grammar_mask.h"
#include "tests/hostile.h"

static const char *const texts[] = {"a", "b", "\"", "{", "}", "[", "]", ",", ":", "1", "\"a\":", "ab", "\xc3", "\xa9"};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static bool allows(struct pp_masks *c, int32_t state, int32_t token, int32_t next)
{
    const uint64_t *words = pp_masks_of(c, state);
    return !words || next < 0 || (words[0] >> token & 1) == (next > 0);
}

static void read_text(const struct pp_grammar *g, const struct hostile_input *in)
{
    int32_t ids[256] = {0};
    const int32_t ends[] = {0};
    struct pp_trie *trie;
    struct pp_matcher m;
    struct pp_masks c;
    if (g->n_tokens > 256 || pp_matcher_init(&m, g, NULL))
        return;
    if (pp_trie_of_texts(texts, N_TEXTS - 1, &trie, NULL)) {
        pp_matcher_free(&m);
        return;
    }
    for (uint32_t i = 0; i < g->n_tokens; i++)
        ids[i] = g->tokens[i].id >= 0 && g->tokens[i].id < N_TEXTS - 1 ? g->tokens[i].id : 0;
    if (!pp_masks_init(&c, &m, trie, ids, ends, 0, NULL)) {
        int32_t at = pp_matcher_start(&m);
        for (size_t i = 0; i < in->size && i < 64 && at > 0; i++) {
            const int32_t token = in->data[i] % (N_TEXTS - 1);
            const int32_t next = pp_matcher_token(&m, at, token, texts[token], strlen(texts[token]), ids);
            if (!allows(&c, at, token, next))
                abort();
            at = next;
            m.work = 0;
        }
        pp_masks_free(&c);
    }
    pp_trie_free(trie);
    pp_matcher_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    struct pp_grammar *g;
    struct pp_error err;
    const bool schema = hostile_byte(&in) & 1;
    size_t n;
    bool yes;
    const char *text = (const char *)hostile_piece(&in, &n);
    if (!text)
        return 0;
    if (schema ? pp_grammar_from_schema(text, n, "fuzz", &g, &err) : pp_grammar_parse(text, n, "fuzz", &g, &err))
        return 0;
    pp_grammar_matches(g, (const char *)in.data, in.size < 256 ? in.size : 256, &yes, &err);
    read_text(g, &in);
    pp_grammar_free(g);
    return 0;
}
