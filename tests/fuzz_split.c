/* fuzz_split.c - the first byte names a split rule, the rest is text: without regular expressions it becomes the same
 * words as with them. */
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer_internal.h"
#include "tests/hostile.h"
#include "tests/tokenizers.h"

enum { MOST_RULES = 64 };

static struct {
    struct tok_splitter *fast, *plain;
} rules[MOST_RULES];
static unsigned n_rules;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *const *seen[MOST_RULES];
    struct pp_buf names = {0};
    (void)argc;
    (void)argv;
    tok_rule_names(&names);
    for (char *name = strtok(names.data, ", "); name; name = strtok(NULL, ", ")) {
        const struct tok_rule *rule = tok_rule_by_name(name, strlen(name));
        struct pp_str patterns[TOK_MAX_PATTERNS];
        struct pp_error err;
        size_t n = 0;
        unsigned i = 0;
        while (i < n_rules && seen[i] != rule->patterns)
            i++;
        if (i < n_rules)
            continue;
        for (; rule->patterns[n]; n++)
            patterns[n] = (struct pp_str){rule->patterns[n], strlen(rule->patterns[n])};
        if (n_rules == MOST_RULES || tok_splitter_new(patterns, n, &rules[n_rules].fast, &err) ||
            tok_splitter_new_plain(patterns, n, &rules[n_rules].plain, &err))
            abort();
        seen[n_rules++] = rule->patterns;
    }
    pp_buf_free(&names);
    return 0;
}

/* The lengths of the words, one after the other. */
static enum pp_code add_word(void *lengths, const char *word, size_t n, struct pp_error *err)
{
    (void)word;
    (void)err;
    pp_buf_add(lengths, &n, sizeof n);
    return PP_OK;
}

static void split(const struct tok_splitter *s, const struct hostile_input *in, struct pp_buf *lengths)
{
    struct pp_error err;
    struct tok_split_state *st = tok_split_state_new(s, in->size);
    if (!st || tok_split(s, st, (const char *)in->data, in->size, false, add_word, lengths, &err))
        abort();
    tok_split_state_free(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    struct pp_buf fast = {0}, plain = {0};
    const unsigned rule = hostile_byte(&in) % n_rules;
    if (in.size == 0 || has_new_characters((const char *)in.data, in.size))
        return 0;
    split(rules[rule].fast, &in, &fast);
    split(rules[rule].plain, &in, &plain);
    if (fast.len != plain.len || memcmp(fast.data, plain.data, fast.len) != 0)
        abort();
    pp_buf_free(&fast);
    pp_buf_free(&plain);
    return 0;
}
