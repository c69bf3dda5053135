/* test_speculate.c - speculative decoding changes only the speed. Tests: prompt lookup against its definition; the
 * distribution of tokens through the whole chain of sampling and verification, which deliberately wrong rules must
 * fail; and the same answers and KV with and without speculation. PIPPIN_LONG: all prompts and more draws. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/bench.h"
#include "engine/convert.h"
#include "engine/engine_int.h"
#include "engine/generate_int.h"
#include "engine/hf.h"
#include "engine/text.h"
#include "engine/types.h"
#include "tests/small_model.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define DRAFT "engine/starter/starter-draft-Q4_0.gguf"

static bool is_long(void) { return getenv("PIPPIN_LONG") != NULL; }

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* --- lookup ------------------------------------------------------------------------------------------------------ */

/* The longest earlier match with the end of tokens[0 .. n), as lookup defines it: its length, at most what lookup
 * compares. */
static int longest(const int32_t *tokens, int64_t n)
{
    int most = 0;
    for (int64_t at = 0; at < n - 1; at++) {
        int same = 0;
        while (same < PP_LOOKUP_MAX && at - same >= 0 && tokens[at - same] == tokens[n - 1 - same])
            same++;
        most = same > most ? same : most;
    }
    return most;
}

static void lookups(void **state)
{
    enum { N = 400 };
    struct pp_lookup l, fresh;
    struct pp_error err;
    int32_t tokens[N];
    uint32_t seed = 5;
    int best = 0, found_any = 0, searched = 0;
    (void)state;
    assert_ok(pp_lookup_init(&l, N, &err), err);
    for (int i = 0; i < N; i++) /* a text that quotes itself */
        tokens[i] = i > 40 && next(&seed) % 8 ? tokens[i - 37] : (int32_t)(next(&seed) % 40);
    for (int64_t n = 2; n <= N; n += 1 + next(&seed) % 3) {
        int length, again;
        pp_lookup_set(&l, tokens, n);
        int64_t at = pp_lookup_find(&l, tokens, n, &length);
        int most = longest(tokens, n);
        assert_true(at < n && (at >= 0) == (length >= PP_LOOKUP_MIN));
        assert_true(length <= most && (at >= 0 || most < PP_LOOKUP_MIN || searched));
        for (int k = 0; at >= 0 && k < length; k++)
            assert_int_equal(tokens[at - 1 - k], tokens[n - 1 - k]);
        searched += most >= PP_LOOKUP_MIN;
        found_any += at >= 0;
        best += at >= 0 && length == most;
        assert_ok(pp_lookup_init(&fresh, N, &err), err);
        pp_lookup_set(&fresh, tokens, n);
        assert_int_equal(pp_lookup_find(&fresh, tokens, n, &again), at); /* rewinding left no entries */
        assert_int_equal(again, length);
        pp_lookup_free(&fresh);
        pp_lookup_set(&l, tokens, n - (int64_t)(next(&seed) % (uint32_t)n));
    }
    assert_true(found_any == searched && best >= searched * 9 / 10); /* only the newest positions are searched */
    pp_lookup_free(&l);
}

/* --- copies with edits -------------------------------------------------------------------------------------------- */

enum { SOURCE = 60 };

/* tokens[0 .. SOURCE) are the source, all different; the answer follows them. */
struct copying {
    struct pp_lookup lookup;
    struct pp_copy copy;
    int32_t tokens[4 * SOURCE];
    int64_t n;
};

static void begin_copying(struct copying *c)
{
    struct pp_error err;
    assert_ok(pp_lookup_init(&c->lookup, 4 * SOURCE, &err), err);
    pp_copy_init(&c->copy);
    for (c->n = 0; c->n < SOURCE; c->n++)
        c->tokens[c->n] = 1000 + (int32_t)c->n;
}

/* Appends `token` to the answer. Returns the token of the source that the copy is predicted to go on with, or -1. */
static int32_t say(struct copying *c, int32_t token, int *n_matched)
{
    int length;
    c->tokens[c->n++] = token;
    pp_lookup_set(&c->lookup, c->tokens, c->n);
    int64_t from = pp_lookup_find(&c->lookup, c->tokens, c->n, &length);
    pp_copy_set(&c->copy, c->tokens, c->n, from, length);
    from = pp_copy_next(&c->copy, n_matched);
    assert_true(from < c->n);
    return from < 0 ? -1 : c->tokens[from];
}

/* Appends tokens from .. to - 1 of the source; returns the prediction after the last. */
static int32_t say_source(struct copying *c, int from, int to, int *n_matched)
{
    int32_t next = -1;
    for (int i = from; i < to; i++)
        next = say(c, 1000 + i, n_matched);
    return next;
}

static void edited_copies(void **state)
{
    struct copying c;
    int n_matched;
    (void)state;
    begin_copying(&c);
    assert_int_equal(say_source(&c, 0, 20, &n_matched), -1);      /* before any edit lookup suffices */
    assert_int_equal(say(&c, 1, &n_matched), 1021);               /* one token replaced */
    assert_int_equal(n_matched, 0);
    assert_int_equal(say_source(&c, 21, 22, &n_matched), 1022);
    assert_int_equal(n_matched, 1);
    assert_int_equal(say_source(&c, 22, 30, &n_matched), 1030);
    assert_int_equal(n_matched, 9);
    assert_int_equal(say(&c, 2, &n_matched), 1031);               /* two inserted */
    assert_int_equal(say(&c, 3, &n_matched), 1032);
    assert_int_equal(n_matched, -1);
    assert_int_equal(say_source(&c, 30, 31, &n_matched), 1031);
    assert_int_equal(n_matched, 1);
    assert_int_equal(say_source(&c, 31, 36, &n_matched), 1036);
    assert_int_equal(say_source(&c, 39, 40, &n_matched), 1040);   /* three left out */
    assert_int_equal(n_matched, 1);
    assert_int_equal(say_source(&c, 40, 45, &n_matched), 1045);
    assert_int_equal(say(&c, 1049, &n_matched), 1050);            /* by chance a token close by in the source */
    assert_int_equal(say_source(&c, 46, 47, &n_matched), 1047);
    assert_int_equal(say_source(&c, 47, 52, &n_matched), 1052);
    for (int i = 0; i < 8; i++)
        assert_int_equal(say(&c, 10 + i, &n_matched), 1053 + i < 1000 + SOURCE ? 1053 + i : 1000);
    assert_int_equal(say(&c, 20, &n_matched), -1);                /* past the end of the source: the copy is over */
    assert_int_equal(say_source(&c, 10, 40, &n_matched), -1);     /* another copy without edits */
    assert_int_equal(say(&c, 4, &n_matched), 1041);
    pp_lookup_free(&c.lookup);
}

/* Whatever the answer, a prediction lies within the source. */
static void copies_of_anything(void **state)
{
    struct copying c;
    uint32_t seed = 11;
    int n_matched, led = 0, right = 0;
    (void)state;
    for (int round = 0; round < 200; round++) {
        int32_t predicted = -1;
        begin_copying(&c);
        for (int i = 0; i < SOURCE; i++) /* drawn from so few values that tokens repeat */
            c.tokens[i] = (int32_t)(next(&seed) % (uint32_t)(2 + round / 4));
        for (int64_t at = 0; c.n < 4 * SOURCE; at++) {
            int32_t token = c.tokens[at % SOURCE];
            if (next(&seed) % 12 == 0)
                token = (int32_t)(next(&seed) % 90);
            else if (next(&seed) % 20 == 0)
                at += next(&seed) % 4;
            led += predicted >= 0;
            right += predicted >= 0 && predicted == token;
            predicted = say(&c, token, &n_matched);
        }
        pp_lookup_free(&c.lookup);
    }
    if (led < 10000 || right * 2 < led)
        fail_msg("%d of %d right", right, led);
}

/* --- the distribution of what is chosen -------------------------------------------------------------------------- */

enum { VOCAB = 8 };

/* The target's logits after each token; the draft's are similar to them. */
static const float target_logits[VOCAB + 1][VOCAB] = {
    {2.0f, 1.0f, 0.5f, 0.0f, -0.5f, -1.0f, 1.5f, -3.0f}, {0, 0, 0, 0, 0, 0, 0, 0},
    {-1, 2, 0, 1, 0, -1, 0, .5f},  {3, 0, 0, 0, 0, 0, 0, 0}, {.5f, -.5f, .5f, -.5f, .5f, -.5f, 1, -1},
    {0, 1, 2, -2, 0, 1, 0, 0},     {1, 1, 1, 1, -1, -1, -1, -1}, {0, 0, 2, 2, 0, 0, -2, -2},
    {1.5f, 0, 1, 0, -1, 0, 0, 0},
};

static void draft_logits(int after, float out[VOCAB])
{
    for (int i = 0; i < VOCAB; i++)
        out[i] = target_logits[after][i] * 0.7f + (float)((i * 5 + after * 3) % 7 - 3) * 0.3f;
}

/* The rules by which drafted tokens are accepted: the right one, and wrong ones that look like it. */
enum rule { RIGHT, OWN_NOISE, CLOSE_ENOUGH, DRAFTS_WORD };

struct trial {
    struct pp_sampler sampler;
    struct pp_sampling sampling;
    enum rule rule;
    int32_t text[4];        /* the tokens chosen so far, after a first one */
    int n, position;
    const struct pp_draft_token *drafted;
};

static struct pp_choice choose_after(struct trial *t, bool draft, int32_t after, int position)
{
    static int32_t none[1];
    float l[VOCAB];
    if (draft)
        draft_logits(after, l);
    else
        memcpy(l, target_logits[after], sizeof l);
    struct pp_sampling p = t->sampling;
    p.penalty_last_n = 0;
    p.seed ^= (uint64_t)position << 20; /* the sampler takes the position from the length of the text */
    return pp_sampler_choose(&t->sampler, &p, l, none, 0);
}

static int32_t choose_row(void *user, int after_draft, bool *over)
{
    struct trial *t = user;
    int32_t after = t->n ? t->text[t->n - 1] + 1 : 0;
    const struct pp_draft_token *own = after_draft + 1 < 2 ? &t->drafted[after_draft + 1] : NULL;
    struct pp_sampling kept = t->sampling;
    if (t->rule == OWN_NOISE && own)
        t->sampling.seed += 77; /* wrong: the target draws with noise of its own, and after a rejection again with the
                                   noise that the draft used */
    struct pp_choice made = choose_after(t, false, after, t->position + t->n);
    t->sampling = kept;
    if (t->rule == OWN_NOISE && own && made.token != own->token)
        made = choose_after(t, false, after, t->position + t->n);
    if (t->rule == CLOSE_ENOUGH && own && made.second == own->token && made.margin < 0.5f)
        made.token = own->token;
    if (t->rule == DRAFTS_WORD && own && own->level >= 1)
        made.token = own->token;
    t->text[t->n++] = made.token;
    *over = t->n == 2;
    return made.token;
}

/* Chi-square of the distributions of one token and of two against the exact ones; 7 and 63 degrees of freedom. */
static void joint(enum rule rule, float temp, int draws, double *one, double *two)
{
    static double single[VOCAB], pairs[VOCAB][VOCAB];
    struct trial t = {.rule = rule, .sampling = pp_sampling_default()};
    struct pp_error err;
    assert_ok(pp_sampler_init(&t.sampler, VOCAB, &err), err);
    t.sampling.temp = temp;
    t.sampling.top_k = 0;
    t.sampling.top_p = 1;
    t.sampling.min_p = 0;
    memset(single, 0, sizeof single);
    memset(pairs, 0, sizeof pairs);
    for (int i = 0; i < draws; i++) {
        struct pp_draft_token drafted[2];
        int8_t path[PP_DRAFT_MAX_LIMIT];
        t.sampling.seed = (uint64_t)i;
        t.n = 0;
        t.position = 0;
        t.drafted = drafted;
        for (int k = 0, after = 0; k < 2; k++) {
            struct pp_choice made = choose_after(&t, true, after, k);
            drafted[k] = (struct pp_draft_token){.token = made.token,
                                                 .parent = (int8_t)(k - 1),
                                                 .depth = (int8_t)k,
                                                 .level = (uint8_t)pp_level_of_margin(made.margin)};
            after = made.token + 1;
        }
        int accepted = pp_spec_verify(drafted, 2, choose_row, &t, path);
        if (t.n == 1) { /* the pass ended at a rejected token; the next one continues from there */
            drafted[0].token = -1;
            pp_spec_verify(drafted, 0, choose_row, &t, path);
        }
        assert_true(accepted <= 2 && t.n == 2);
        single[t.text[0]]++;
        pairs[t.text[0]][t.text[1]]++;
    }
    *one = *two = 0;
    double p[VOCAB + 1][VOCAB];
    for (int after = 0; after <= VOCAB; after++) {
        double total = 0;
        for (int i = 0; i < VOCAB; i++)
            total += p[after][i] = exp((double)target_logits[after][i] / (double)temp);
        for (int i = 0; i < VOCAB; i++)
            p[after][i] /= total;
    }
    for (int i = 0; i < VOCAB; i++) {
        double e = p[0][i] * draws;
        *one += (single[i] - e) * (single[i] - e) / e;
        for (int k = 0; k < VOCAB; k++) {
            e = p[0][i] * p[i + 1][k] * draws;
            *two += (pairs[i][k] - e) * (pairs[i][k] - e) / e;
        }
    }
    pp_sampler_free(&t.sampler);
}

/* The critical values at p = 0.001 are 24.3 and 103.4. */
static void distribution(void **state)
{
    (void)state;
    static const float temps[] = {0.7f, 1.2f};
    for (int i = 0; i < 2; i++) {
        double one, two;
        joint(RIGHT, temps[i], is_long() || i == 0 ? 1000000 : 100000, &one, &two);
        if (one > 24.3 || two > 103.4)
            fail_msg("temperature %g: chi-square %g of one token, %g of two", (double)temps[i], one, two);
    }
}

/* Proves that the test above can fail: each of the wrong rules exceeds the critical values by far. */
static void wrong_rules(void **state)
{
    (void)state;
    for (enum rule r = OWN_NOISE; r <= DRAFTS_WORD; r++) {
        double one, two;
        joint(r, 1.2f, 60000, &one, &two);
        if (one < 100 && two < 300)
            fail_msg("rule %d passes: chi-square %g of one token, %g of two", (int)r, one, two);
    }
}

/* --- the same answers --------------------------------------------------------------------------------------------- */

struct pair {
    struct pp_model *model, *small;
    struct pp_engine *engine, *drafts;
    struct pp_seq *seq, *draft, *plain;
};

static void open_pair(struct pair *p, const char *model, const char *small, enum pp_kv_type kv)
{
    struct pp_error err;
    struct pp_engine_options opt = {.n_threads = 2, .kv_type = kv, .kv_memory = 64u << 20, .n_ctx = 1024};
    assert_ok(pp_model_open(model, &p->model, &err), err);
    assert_ok(pp_engine_new(p->model, &opt, NULL, NULL, &p->engine, &err), err);
    opt.share_pool = p->engine;
    assert_ok(pp_model_open(small, &p->small, &err), err);
    assert_ok(pp_engine_new(p->small, &opt, NULL, NULL, &p->drafts, &err), err);
    assert_ok(pp_seq_new(p->engine, &p->seq, &err), err);
    assert_ok(pp_seq_new(p->engine, &p->plain, &err), err);
    assert_ok(pp_seq_new(p->drafts, &p->draft, &err), err);
}

static void close_pair(struct pair *p)
{
    pp_seq_free(p->seq);
    pp_seq_free(p->plain);
    pp_seq_free(p->draft);
    pp_engine_free(p->drafts);
    pp_engine_free(p->engine);
    pp_model_close(p->small);
    pp_model_close(p->model);
}

/* The next answer in the same conversation: tokens of the prompt that are already in the cache are not computed
 * again. */
static int64_t next_answer(struct pp_seq *s, const int32_t *ids, int64_t n, const struct pp_gen_options *opt,
                           int32_t *out)
{
    struct pp_error err;
    struct pp_gen *g;
    struct pp_buf text = {0};
    enum pp_finish finish = PP_FINISH_NONE;
    int n_tokens = 0;
    int64_t got;
    assert_ok(pp_gen_start(s, ids, n, opt, NULL, &g, &err), err);
    while (finish == PP_FINISH_NONE)
        assert_ok(pp_gen_next(g, NULL, &text, &n_tokens, &finish, &err), err);
    const int32_t *tokens = pp_gen_tokens(g, &got);
    memcpy(out, tokens, (size_t)got * sizeof *out);
    pp_gen_free(g);
    pp_buf_free(&text);
    return got;
}

static int64_t answer(struct pp_seq *s, const int32_t *ids, int64_t n, const struct pp_gen_options *opt, int32_t *out)
{
    pp_seq_truncate(s, 0);
    return next_answer(s, ids, n, opt, out);
}

/* Asserts that K and V of all positions are the same bytes in both: rejected tokens leave no trace. */
static void same_pages(const struct pp_seq *a, const struct pp_seq *b)
{
    assert_int_equal(a->len, b->len);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->len * sizeof *a->tokens);
    for (int t = 0; t < a->engine->n_tiers; t++) {
        const struct pp_kv_layout *l = pp_kv_pool_layout(a->engine->tier[t].kv);
        uint8_t *x = pp_calloc(1, l->page_bytes), *y = pp_calloc(1, l->page_bytes);
        int64_t first = a->tier[t].first_page > b->tier[t].first_page ? a->tier[t].first_page : b->tier[t].first_page;
        assert_int_equal(a->tier[t].n_pages, b->tier[t].n_pages);
        for (int64_t at = first * PP_PAGE_TOKENS; at < a->len; at++) {
            int64_t page = at / PP_PAGE_TOKENS;
            memset(x, 0, l->page_bytes);
            memset(y, 0, l->page_bytes);
            pp_kv_copy_position(l, a->tier[t].page_data[page], (int)(at % PP_PAGE_TOKENS), x, 0);
            pp_kv_copy_position(l, b->tier[t].page_data[page], (int)(at % PP_PAGE_TOKENS), y, 0);
            assert_memory_equal(x, y, l->page_bytes);
        }
        pp_free(x);
        pp_free(y);
    }
}

/* The options of the i-th way to speculate: with lookup, with a draft model, with trees ... */
static struct pp_gen_options manner(const struct pair *p, int i, struct pp_gen_options opt)
{
    opt.draft = i % 4 == 3 ? NULL : p->draft;
    opt.lookup = i % 2;
    opt.draft_always = i % 3 != 1;
    opt.draft_max = 1 + i % 7;
    opt.draft_siblings = i % 5 == 2;
    return opt;
}

static int32_t plain_text[400], drafted_text[400];

static void same_answer(struct pair *p, const int32_t *ids, int64_t n, struct pp_gen_options opt, int how)
{
    opt.sampling.seed = (uint64_t)how * 7919u;
    int64_t a = answer(p->plain, ids, n, &opt, plain_text);
    opt = manner(p, how, opt);
    int64_t b = answer(p->seq, ids, n, &opt, drafted_text);
    assert_int_equal(a, b);
    assert_memory_equal(plain_text, drafted_text, (size_t)a * sizeof *plain_text);
    same_pages(p->plain, p->seq);
}

static const char *const things[] = {"a fox", "the sea", "coffee", "my birthday", "a train to Boston", "three apples",
                                     "the moon", "a small town", "football", "my sister's wedding"};
static const char *const questions[] = {
    "Tell me about %s.", "Write a short story about %s.", "What is %s?", "I would like to book %s.", "Do you like %s?",
    "Repeat after me: %s, %s, %s, %s.", "How much does %s cost?", "Define %s.", "List five facts about %s.",
    "Hello! I was thinking of %s today.", "Where can I find %s near San Jose?", "Why do people like %s?",
    "Write a function in Python that prints %s.", "Explain %s to a child.", "Is %s old?", "Make a rhyme about %s.",
    "Can you say \"%s\" in other words?", "Remind me of %s tomorrow.", "Compare %s with the sun.", "Goodbye, %s!"};

enum { N_PROMPTS = 200 };

static size_t chat_prompt(const struct pair *p, int i, int32_t **ids)
{
    struct pp_error err;
    struct pp_buf text = {0};
    size_t n;
    const char *thing = things[i % 10], *at = questions[i / 10];
    pp_buf_str(&text, "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n");
    for (const char *hole; (hole = strstr(at, "%s")); at = hole + 2) {
        pp_buf_add(&text, at, (size_t)(hole - at));
        pp_buf_str(&text, thing);
    }
    pp_buf_str(&text, at);
    pp_buf_str(&text, "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    assert_ok(pp_tokenize(pp_model_tokenizer(p->model), text.data, text.len, PP_TOKENIZE_SPECIAL, ids, &n, &err), err);
    pp_buf_free(&text);
    return n;
}

static const float temps[] = {0, 0.7f, 1.2f};

/* 200 prompts at three temperatures; without PIPPIN_LONG every ninth of them. */
static void same_answers(void **state)
{
    struct pair p;
    (void)state;
    open_pair(&p, STARTER, DRAFT, PP_KV_Q8);
    for (int i = 0; i < N_PROMPTS; i += is_long() ? 1 : 9) {
        int32_t *ids;
        size_t n = chat_prompt(&p, i, &ids);
        for (int t = 0; t < 3; t++) {
            struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 30};
            opt.sampling.temp = temps[t];
            opt.sampling.repeat_penalty = i % 3 == 2 ? 1.1f : 1.0f;
            same_answer(&p, ids, (int64_t)n, opt, i / (is_long() ? 1 : 9) + 7 * t);
        }
        pp_free(ids);
    }
    struct pp_stats *s = pp_engine_stats(p.engine);
    assert_true(s->draft_accepted > 50 && s->draft_accepted < s->draft_tokens && s->lookup_accepted > 0);
    close_pair(&p);
}

/* Turns that switch between a draft model, lookup and no speculation leave the same conversation as turns without
 * speculation. */
static void on_and_off(void **state)
{
    static const int turns[][2] = {{1, 0}, {0, 0}, {1, 1}, {0, 1}, {0, 0}, {1, 1}}; /* draft model, lookup */
    static const char end[] = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnd then?<|eot_id|>"
                              "<|start_header_id|>assistant<|end_header_id|>\n\n";
    struct pp_error err;
    struct pair p;
    int32_t all[1024], *ids;
    size_t n_ids;
    uint64_t n_drafted[6];
    (void)state;
    open_pair(&p, STARTER, DRAFT, PP_KV_Q8);
    for (int t = 0; t < 3; t++) {
        int64_t n = (int64_t)chat_prompt(&p, 7, &ids);
        memcpy(all, ids, (size_t)n * sizeof *all);
        pp_free(ids);
        pp_seq_truncate(p.seq, 0);
        pp_seq_truncate(p.plain, 0);
        pp_seq_truncate(p.draft, 0);
        for (int i = 0; i < 6; i++) {
            struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 40};
            opt.sampling.temp = temps[t];
            int64_t got = next_answer(p.plain, all, n, &opt, plain_text);
            n_drafted[i] = pp_engine_stats(p.engine)->draft_tokens;
            opt.draft = turns[i][0] ? p.draft : NULL;
            opt.lookup = turns[i][1];
            opt.draft_always = i % 2 == 0;
            assert_int_equal(next_answer(p.seq, all, n, &opt, drafted_text), got);
            n_drafted[i] = pp_engine_stats(p.engine)->draft_tokens - n_drafted[i];
            assert_memory_equal(plain_text, drafted_text, (size_t)got * sizeof *plain_text);
            same_pages(p.plain, p.seq);
            memcpy(all + n, plain_text, (size_t)got * sizeof *all);
            assert_ok(pp_tokenize(pp_model_tokenizer(p.model), end, sizeof end - 1, PP_TOKENIZE_SPECIAL, &ids, &n_ids,
                                  &err), err);
            n += got;
            memcpy(all + n, ids, n_ids * sizeof *all);
            n += (int64_t)n_ids;
            pp_free(ids);
        }
        assert_true(n_drafted[0] > 0 && n_drafted[1] == 0 && n_drafted[2] > 0 && n_drafted[4] == 0);
    }
    close_pair(&p);
}

/* Random models, with windows and without, of all KV types: with a draft of other weights, which is seldom right, and
 * with lookup in a repetitive text. */
static void random_models(void **state)
{
    static const int windows[] = {0, 40, 100};
    (void)state;
    for (int i = 0; i < (is_long() ? 30 : 3); i++) {
        struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0), other;
        struct pair p;
        int32_t ids[180];
        uint32_t seed = (uint32_t)i + 1;
        shape.n_vocab = 64;
        shape.window = windows[i % 3];
        other = shape;
        other.seed = i % 2 ? shape.seed : shape.seed + 9; /* the draft is the target: all accepted at temperature 0 */
        open_pair(&p, tiny_model(&shape), tiny_model(&other), (enum pp_kv_type)(i % 5));
        for (int k = 0; k < 180; k++)
            ids[k] = k >= 60 && next(&seed) % 9 ? ids[k - 60] : (int32_t)(next(&seed) % 64);
        for (int t = 0; t < 3; t++)
            for (int how = 0; how < 7; how++) {
                struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 50};
                opt.sampling.temp = temps[t];
                same_answer(&p, ids, 100 + 10 * how, opt, how + 5 * i);
            }
        assert_true(pp_engine_stats(p.engine)->draft_accepted > 10);
        close_pair(&p);
    }
}

/* A tree, which adds second choices to the chain, gets more tokens accepted in a pass than the chain alone. */
static void trees(void **state)
{
    struct pair p;
    uint64_t passes[2];
    (void)state;
    open_pair(&p, STARTER, DRAFT, PP_KV_Q8);
    for (int tree = 0; tree < 2; tree++) {
        uint64_t before = pp_engine_stats(p.engine)->passes;
        for (int i = 3; i < N_PROMPTS; i += 12) {
            int32_t *ids;
            size_t n = chat_prompt(&p, i, &ids);
            struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 40, .ignore_end = true};
            opt.sampling.temp = 0;
            opt.draft = p.draft;
            opt.draft_always = true;
            opt.draft_max = tree ? 4 : 2;
            opt.draft_siblings = tree;
            answer(p.seq, ids, (int64_t)n, &opt, tree ? drafted_text : plain_text);
            pp_free(ids);
        }
        passes[tree] = pp_engine_stats(p.engine)->passes - before;
    }
    if (passes[1] >= passes[0])
        fail_msg("%d passes with second choices, %d without", (int)passes[1], (int)passes[0]);
    close_pair(&p);
}

/* A random model in a folder with the starter's vocabulary and `more` additional rows of embeddings, padding for which
 * the vocabulary has unused ids (with_ids) or none. */
static const char *padded_model(int more, bool with_ids)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_F32);
    const char *folder = fresh_path("padded");
    struct pp_model *starter;
    struct pp_error err;
    assert_ok(pp_model_open(STARTER, &starter, &err), err);
    const struct pp_tokenizer *t = pp_model_tokenizer(starter);
    cJSON *config;
    char path[600];
    shape.n_vocab = pp_tokenizer_n(t) + more;
    assert_ok(pp_convert_to_folder(tiny_model(&shape), folder, &(struct pp_convert_options){0}, &err), err);
    assert_ok(pp_json_read(folder, "config.json", &config, &err), err);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(unlink(path), 0); /* a written file is compared with what is read again, size and all */
    assert_ok(pp_tokenizer_to_folder(t, folder, &err), err);
    if (!with_ids) {
        cJSON_SetNumberValue(cJSON_GetObjectItem(config, "vocab_size"), pp_tokenizer_n(t));
        cJSON_AddNumberToObject(config, "padded_vocab_size", shape.n_vocab);
    }
    char *text = cJSON_Print(config);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
    cJSON_free(text);
    cJSON_Delete(config);
    pp_model_close(starter);
    return folder;
}

/* Models of one family share a vocabulary, but often not the number of padding rows: the draft never proposes a token
 * for which it has no logits. */
static void padded_vocabularies(void **state)
{
    static const int rows[][2] = {{64, 16}, {16, 64}, {64, 16}, {16, 64}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct pair p;
        const int32_t ids[] = {1, 7, 300, 41, 7, 9}, said = 12;
        open_pair(&p, padded_model(rows[i][0], i < 2), padded_model(rows[i][1], i < 2), PP_KV_F32);
        const int n = (int)pp_model_info(p.model)->n_vocab;
        struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 4, .ignore_end = true,
                                     .forced = &said, .n_forced = 1};
        opt.sampling.n_bias = 1;
        opt.sampling.bias[0].token = n - 1;
        opt.sampling.bias[0].bias = 1e4f; /* so that this token is chosen */
        opt.draft = p.draft;
        opt.draft_always = true;
        assert_int_equal(answer(p.seq, ids, 6, &opt, drafted_text), 4);
        assert_int_equal(drafted_text[3], n - 1);
        const struct pp_stats *s = pp_engine_stats(p.engine);
        assert_true(s->draft_tokens > 0 && !p.engine->bridged);
        if (i % 2 == 0)
            assert_int_equal(s->draft_accepted, 0);
        else
            assert_true(s->draft_accepted > 0);
        close_pair(&p);
    }
}

/* At the end of the context, where a tree's second choices need slots as well as the chain, the answer is still the
 * same. */
static void context_ends(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    (void)state;
    shape.n_vocab = 64;
    for (int n = 985; n < 1024; n += 3) {
        struct pair p;
        int32_t ids[1024];
        for (int k = 0; k < n; k++)
            ids[k] = k * k % 64;
        open_pair(&p, tiny_model(&shape), tiny_model(&shape), PP_KV_F16);
        for (int tree = 0; tree < 2; tree++) {
            struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = -1};
            opt.sampling.temp = 1.2f;
            const int64_t plain = answer(p.plain, ids, n, &opt, plain_text);
            opt.draft = p.draft;
            opt.draft_always = true;
            opt.draft_max = PP_DRAFT_MAX_LIMIT;
            opt.draft_siblings = tree;
            assert_int_equal(answer(p.seq, ids, n, &opt, drafted_text), plain);
            assert_int_equal(plain, 1024 - n);
            assert_memory_equal(plain_text, drafted_text, (size_t)plain * sizeof *plain_text);
        }
        close_pair(&p);
    }
}

/* A draft with another vocabulary, bridged by text: the same answers and KV as without it. The target is made to say
 * what the draft would, so that tokens are accepted. */
static void bridges(void **state)
{
    static const char story[] = "Once upon a time, there was a little girl named Lily. She loved to play outside in "
                                "the park. One day, she saw a big, red ball. She wanted to play with it";
    struct pp_error err;
    struct pair p;
    int32_t *ids, *say;
    size_t n, n_say;
    (void)state;
    const char *small = testdata("stories260k/stories260K-f32.gguf");
    if (!small)
        return;
    open_pair(&p, STARTER, small, PP_KV_Q8);
    assert_true(pp_tokenizer_bridges(pp_model_tokenizer(p.model), pp_model_tokenizer(p.small), &err));
    for (int i = 5; i < N_PROMPTS; i += is_long() ? 5 : 40) {
        n = chat_prompt(&p, i, &ids);
        for (int t = 0; t < 3; t++) {
            struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 30};
            opt.sampling.temp = temps[t];
            same_answer(&p, ids, (int64_t)n, opt, 4 * t + i % 3);
        }
        pp_free(ids);
    }
    assert_ok(pp_tokenize(pp_model_tokenizer(p.model), story, 20, PP_TOKENIZE_BOS, &ids, &n, &err), err);
    assert_ok(pp_tokenize(pp_model_tokenizer(p.model), story + 20, sizeof story - 21, 0, &say, &n_say, &err), err);
    static const int always[] = {0, 8, 20}; /* 1, 2 or 7 drafted tokens in every pass at most */
    for (int how = 0; how < 3; how++) {
        struct pp_stats before = *pp_engine_stats(p.engine);
        struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = (int64_t)n_say, .forced = say,
                                     .n_forced = (int64_t)n_say, .ignore_end = true};
        opt.sampling.temp = 0;
        same_answer(&p, ids, (int64_t)n, opt, always[how]);
        const struct pp_stats *after = pp_engine_stats(p.engine);
        uint64_t made = after->draft_tokens - before.draft_tokens;
        uint64_t accepted = after->draft_accepted - before.draft_accepted;
        if (accepted * 2 < made || accepted < 10)
            fail_msg("%d of %d guesses stood", (int)accepted, (int)made);
    }
    pp_free(ids);
    pp_free(say);
    close_pair(&p);
}

/* Repeating a text with a few changed words takes few passes more than without changes, and the answer is the same as
 * without speculation. */
static void copies_with_edits(void **state)
{
    static const char text[] = "The baker opened his shop at six, put the first loaves on the shelf by the window and "
                               "wrote the price of each on a small card. At seven the children came for rolls on "
                               "their way to school, and he gave the youngest a bun without asking for a coin.";
    static const char edited[] = "The baker opened his shop at nine, put the first loaves on the shelf by the door and "
                                 "wrote the price of each on a very small card. At seven the children came for rolls "
                                 "on their way to school, and he gave the youngest a bun without asking.";
    struct pp_error err;
    struct pair p;
    int32_t *ids, *again;
    size_t n, n_again;
    uint64_t passes[2];
    (void)state;
    open_pair(&p, STARTER, DRAFT, PP_KV_Q8);
    assert_ok(pp_tokenize(pp_model_tokenizer(p.model), text, sizeof text - 1, PP_TOKENIZE_BOS, &ids, &n, &err), err);
    for (int i = 0; i < 2; i++) {
        const char *said = i ? edited : text;
        assert_ok(pp_tokenize(pp_model_tokenizer(p.model), said, strlen(said), 0, &again, &n_again, &err), err);
        struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = (int64_t)n_again, .forced = again,
                                     .n_forced = (int64_t)n_again, .ignore_end = true};
        opt.sampling.temp = 0.7f;
        same_answer(&p, ids, (int64_t)n, opt, 83); /* 7 tokens in each pass, all by lookup */
        passes[i] = pp_engine_stats(p.engine)->passes;
        answer(p.seq, ids, (int64_t)n, &(struct pp_gen_options){.sampling = opt.sampling, .max_tokens = opt.max_tokens,
               .forced = again, .n_forced = opt.n_forced, .ignore_end = true, .lookup = true, .draft_always = true,
               .draft_max = 7}, drafted_text);
        passes[i] = pp_engine_stats(p.engine)->passes - passes[i];
        pp_free(again);
    }
    if (passes[1] > passes[0] + 5) /* each of the four changes ends a pass; lookup alone would need 7 more */
        fail_msg("%d passes, %d without changes", (int)passes[1], (int)passes[0]);
    pp_free(ids);
    close_pair(&p);
}

/* Which vocabularies can be bridged by text. BERT's cannot: it loses case and spaces. */
static void bridged_texts(void **state)
{
    static const char *const names[] = {"gpt-2", "llama-spm", "phi-3", "falcon", "deepseek-llm"};
    struct pp_tokenizer *bert, *t, *first = NULL;
    struct pp_error err;
    (void)state;
    const char *lossy = testdata("tokenizers/bert-bge.gguf");
    if (!lossy)
        return;
    assert_ok(pp_tokenizer_open(lossy, &bert, &err), err);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "tokenizers/%s.gguf", names[i]);
        assert_ok(pp_tokenizer_open(testdata(name), &t, &err), err);
        if (!pp_tokenizer_bridges(t, first ? first : t, &err))
            fail_msg("%s: %s", names[i], err.text);
        assert_false(pp_tokenizer_bridges(t, bert, &err));
        assert_non_null(strstr(err.text, "the tokens of the draft do not reproduce the text"));
        assert_false(pp_tokenizer_bridges(bert, t, &err));
        assert_non_null(strstr(err.text, "the tokens of the model do not"));
        if (first)
            pp_tokenizer_free(t);
        first = first ? first : t;
    }
    pp_tokenizer_free(first);
    pp_tokenizer_free(bert);
}

/* After a warm-up, speculation allocates nothing. */
static void allocates_nothing(void **state)
{
    struct pair p;
    struct pp_error err;
    struct pp_gen *g;
    struct pp_buf text = {0};
    enum pp_finish finish = PP_FINISH_NONE;
    int n_tokens = 0;
    int32_t *ids;
    uint64_t before = 0;
    (void)state;
    open_pair(&p, STARTER, DRAFT, PP_KV_Q8);
    size_t n = chat_prompt(&p, 50, &ids);
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 200, .ignore_end = true};
    opt.draft = p.draft;
    opt.lookup = true;
    opt.draft_siblings = 1;
    opt.draft_max = PP_DRAFT_MAX_LIMIT;
    for (int i = 0; i < 8192; i++)
        pp_buf_char(&text, ' ');
    pp_buf_clear(&text);
    assert_ok(pp_gen_start(p.seq, ids, (int64_t)n, &opt, NULL, &g, &err), err);
    for (int i = 0; finish == PP_FINISH_NONE; i++) {
        if (i == 2)
            before = pp_mem_count();
        assert_ok(pp_gen_next(g, NULL, &text, &n_tokens, &finish, &err), err);
    }
    assert_int_equal(pp_mem_count(), before);
    pp_gen_free(g);
    pp_buf_free(&text);
    pp_free(ids);
    close_pair(&p);
}

/* Each byte of an answer is marked by whether its token was drafted: in each pass, first the accepted tokens, then the
 * one that the target chose after them. */
static void marked(void **state)
{
    struct pair p;
    struct pp_error err;
    uint64_t total = 0;
    (void)state;
    open_pair(&p, STARTER, DRAFT, PP_KV_Q8);
    for (int i = 0; i < 4; i++) {
        struct pp_gen *g;
        struct pp_buf text = {0}, marks = {0}, whole = {0}, expected = {0};
        int32_t *ids;
        int64_t seen = 0, n;
        uint64_t accepted = 0;
        size_t n_prompt = chat_prompt(&p, 50 + 30 * i, &ids);
        const char *stop = i % 2 ? "zebra" : "the sea and "; /* text is held back until it is known whether it is part
                                                                of the stop string */
        struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 80, .stops = &stop, .n_stops = 1,
                                     .ignore_end = true};
        opt.draft = p.draft;
        opt.lookup = true;
        opt.draft_siblings = i % 2;
        opt.draft_always = true;
        assert_ok(pp_gen_start(p.seq, ids, (int64_t)n_prompt, &opt, NULL, &g, &err), err);
        struct pp_gen_item turn = {.gen = g, .text = &text, .drafted = &marks};
        do {
            assert_ok(pp_gen_step(&turn, 1, NULL, &err), err);
            const int32_t *tokens = pp_gen_tokens(g, &n);
            uint64_t now = pp_gen_stats(g).draft_accepted, n_drafted = now - accepted;
            for (; seen < n; seen++, n_drafted -= n_drafted > 0) {
                pp_token_text(pp_model_tokenizer(p.model), tokens[seen], false, &whole);
                while (expected.len < whole.len)
                    pp_buf_char(&expected, n_drafted > 0);
            }
            accepted = now;
            assert_int_equal(text.len, marks.len);
        } while (turn.finish == PP_FINISH_NONE);
        total += accepted;
        assert_int_equal(text.len, whole.len);
        assert_memory_equal(text.data, whole.data, whole.len);
        assert_memory_equal(marks.data, expected.data, expected.len);
        pp_gen_free(g);
        pp_buf_free(&text);
        pp_buf_free(&marks);
        pp_buf_free(&whole);
        pp_buf_free(&expected);
        pp_free(ids);
    }
    assert_true(total > 50);
    close_pair(&p);
}

/* Adapters of the draft change only what is drafted; the draft's pages under one set are never read under another. */
static void adapted_draft(void **state)
{
    struct pair p;
    struct pp_error err;
    char path[300];
    const struct pp_random_adapter spec = {.kind = PP_RANDOM_LORA, .rank = 8, .all = true, .seed = 5};
    struct pp_adapter_use use = {.scale = 40};
    struct pp_adapter *adapter;
    uint64_t accepted[2] = {0}, made[2] = {0};
    (void)state;
    open_pair(&p, STARTER, DRAFT, PP_KV_Q8);
    snprintf(path, sizeof path, "%s/draft-lora.gguf", test_tmpdir());
    assert_ok(pp_random_adapter_write(p.small, &spec, path, &err), err);
    assert_ok(pp_adapter_load(p.small, path, &adapter, &err), err);
    use.adapter = adapter;
    for (int on = 0; on < 2; on++) {
        assert_ok(pp_seq_set_adapters(p.draft, &use, on, &err), err);
        for (int i = 5; i < N_PROMPTS; i += 60) {
            int32_t *ids;
            size_t n = chat_prompt(&p, i, &ids);
            struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = 60, .ignore_end = true};
            opt.sampling.temp = temps[i / 60 % 3];
            for (int how = 0; how < 13; how += 12) /* 1 and 6 drafted tokens, no lookup */
                same_answer(&p, ids, (int64_t)n, opt, how);
            const int64_t here = pp_engine_cached_tokens(p.drafts, &use, on, ids, (int64_t)n);
            const int64_t elsewhere = pp_engine_cached_tokens(p.drafts, &use, !on, ids, (int64_t)n);
            assert_true(here > 0 || n <= PP_PAGE_TOKENS);
            assert_true(on || elsewhere == 0);
            pp_free(ids);
        }
        accepted[on] = pp_engine_stats(p.engine)->draft_accepted - accepted[0];
        made[on] = pp_engine_stats(p.engine)->draft_tokens - made[0];
    }
    assert_true(accepted[0] * made[1] > 2 * accepted[1] * made[0]); /* the noisy adapter lowers the acceptance rate */
    pp_seq_free(p.draft);
    p.draft = NULL;
    pp_adapter_free(adapter);
    close_pair(&p);
}

TEST_GROUP(speculate)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookups),      cmocka_unit_test(edited_copies), cmocka_unit_test(copies_of_anything),
        cmocka_unit_test(copies_with_edits), cmocka_unit_test(distribution), cmocka_unit_test(wrong_rules),
        cmocka_unit_test(same_answers), cmocka_unit_test(on_and_off), cmocka_unit_test(random_models),
        cmocka_unit_test(trees), cmocka_unit_test(padded_vocabularies), cmocka_unit_test(context_ends),
        cmocka_unit_test(allocates_nothing), cmocka_unit_test(bridges),
        cmocka_unit_test(bridged_texts), cmocka_unit_test(marked),
        cmocka_unit_test(adapted_draft),
    };
    return cmocka_run_group_tests_name("speculate", tests, NULL, NULL);
}
