/* test_generate.c - answers of the bundled model: reference texts, streaming, stop conditions, speculative decoding
 * that does not change the text, and snapshots. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/engine.h"
#include "engine/engine_int.h"
#include "engine/gguf.h"
#include "engine/text.h"
#include "engine/tokenizer_internal.h"
#include "engine/types.h"
#include "tests/support.h"
#include "tests/tiny_model.h"
#include "tests/tokenizers.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define DRAFT "engine/starter/starter-draft-Q4_0.gguf"

struct rig {
    struct pp_model *model, *draft_model;
    struct pp_engine *engine, *draft_engine;
    struct pp_seq *seq, *draft;
};

static struct rig rig(const char *path, const char *draft, enum pp_kv_type kv)
{
    struct rig r = {0};
    struct pp_error err;
    struct pp_engine_options opt = {.n_threads = 2, .kv_type = kv, .kv_memory = 128u << 20};
    assert_ok(pp_model_open(path, &r.model, &err), err);
    assert_ok(pp_engine_new(r.model, &opt, NULL, NULL, &r.engine, &err), err);
    assert_ok(pp_seq_new(r.engine, &r.seq, &err), err);
    if (draft) {
        opt.share_pool = r.engine;
        assert_ok(pp_model_open(draft, &r.draft_model, &err), err);
        assert_ok(pp_engine_new(r.draft_model, &opt, NULL, NULL, &r.draft_engine, &err), err);
        assert_ok(pp_seq_new(r.draft_engine, &r.draft, &err), err);
    }
    return r;
}

static void unrig(struct rig *r)
{
    pp_seq_free(r->draft);
    pp_engine_free(r->draft_engine);
    pp_model_close(r->draft_model);
    pp_seq_free(r->seq);
    pp_engine_free(r->engine);
    pp_model_close(r->model);
}

static size_t chat_prompt(const struct rig *r, const char *user, int32_t **ids)
{
    struct pp_error err;
    struct pp_buf text = {0};
    size_t n;
    pp_buf_fmt(&text,
               "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n%s<|eot_id|>"
               "<|start_header_id|>assistant<|end_header_id|>\n\n",
               user);
    assert_ok(pp_tokenize(pp_model_tokenizer(r->model), text.data, text.len, PP_TOKENIZE_SPECIAL, ids, &n, &err), err);
    pp_buf_free(&text);
    return n;
}

static struct pp_gen_options greedy(int64_t n)
{
    struct pp_gen_options opt = {.sampling = pp_sampling_default(), .max_tokens = n};
    opt.sampling.temp = 0;
    return opt;
}

/* The whole answer; tokens (if asked for) go to *tokens. */
static enum pp_finish answer(struct rig *r, const int32_t *ids, size_t n, const struct pp_gen_options *opt,
                             struct pp_buf *text, struct pp_buf *tokens)
{
    struct pp_error err;
    struct pp_gen *g;
    enum pp_finish finish = PP_FINISH_NONE;
    int n_tokens = 0;
    assert_ok(pp_gen_start(r->seq, ids, (int64_t)n, opt, NULL, &g, &err), err);
    while (finish == PP_FINISH_NONE) {
        size_t before = text->len;
        assert_ok(pp_gen_next(g, NULL, text, &n_tokens, &finish, &err), err);
        assert_true(finish != PP_FINISH_NONE ||
                    pp_utf8_complete(text->data + before, text->len - before) == text->len - before);
    }
    int64_t got;
    const int32_t *chosen = pp_gen_tokens(g, &got);
    assert_int_equal(got, n_tokens);
    if (tokens)
        pp_buf_add(tokens, chosen, (size_t)got * sizeof *chosen);
    pp_gen_free(g);
    return finish;
}

/* A token that is shown with another text than its own is shown as soon as that text is known, and can end answers. */
static void shown_otherwise(void **state)
{
    static const struct replaced pairs[] = {{"ab", "(AB)"}, {"a", ""}, {"abab", "Z"}, {" ", "_"}};
    static const char said[] = "abab ab, a kite aba";
    static const char *const stops[] = {"B)"};
    struct rig r = rig(STARTER, NULL, PP_KV_Q8);
    struct pp_tokenizer *t = (struct pp_tokenizer *)(uintptr_t)pp_model_tokenizer(r.model);
    struct pp_buf text = {0}, table = {0};
    struct pp_error err;
    int32_t *ids, *say;
    size_t n_say;
    (void)state;
    size_t n = chat_prompt(&r, "Hello, who are you?", &ids);
    assert_ok(pp_tokenize(t, said, strlen(said), 0, &say, &n_say, &err), err);
    put_table(&table, pairs, sizeof pairs / sizeof *pairs);
    t->denormal_len = table.len;
    t->denormal = pp_buf_take(&table);
    struct pp_gen_options opt = greedy((int64_t)n_say);
    opt.forced = say;
    opt.n_forced = (int64_t)n_say;
    assert_int_equal(answer(&r, ids, n, &opt, &text, NULL), PP_FINISH_LENGTH);
    assert_string_equal(pp_buf_cstr(&text), "Z_(AB),__kite_(AB)");
    pp_buf_clear(&text);
    opt.stops = stops;
    opt.n_stops = 1;
    assert_int_equal(answer(&r, ids, n, &opt, &text, NULL), PP_FINISH_STOP);
    assert_string_equal(pp_buf_cstr(&text), "Z_(A");
    pp_free(ids);
    pp_free(say);
    pp_buf_free(&text);
    unrig(&r);
}

static void greets(void **state)
{
    struct rig r = rig(STARTER, NULL, PP_KV_Q8);
    struct pp_buf text = {0};
    int32_t *ids;
    (void)state;
    size_t n = chat_prompt(&r, "Hello, who are you?", &ids);
    struct pp_gen_options opt = greedy(32);
    assert_int_equal(answer(&r, ids, n, &opt, &text, NULL), PP_FINISH_END);
    assert_string_equal(text.data, "Hello! I am Pippin, a tiny language model. What would you like to talk about?");
    pp_buf_clear(&text);
    opt.max_tokens = 5;
    assert_int_equal(answer(&r, ids, n, &opt, &text, NULL), PP_FINISH_LENGTH);
    assert_string_equal(text.data, "Hello! I am P");
    pp_buf_clear(&text);
    opt.max_tokens = 0;
    assert_int_equal(answer(&r, ids, n, &opt, &text, NULL), PP_FINISH_LENGTH);
    assert_int_equal(text.len, 0);
    pp_free(ids);
    pp_buf_free(&text);
    unrig(&r);
}

/* Control tokens listed in `written` appear in the answer's text after a marker byte (0xFF) and do not end it; others
 * work as usual. */
static void written_control_tokens(void **state)
{
    struct rig r = rig(STARTER, NULL, PP_KV_Q8);
    struct pp_buf text = {0};
    struct pp_error err;
    const struct pp_tokenizer *t = pp_model_tokenizer(r.model);
    int32_t *ids, *say, *more;
    size_t n_say, n_more;
    (void)state;
    size_t n = chat_prompt(&r, "Hello, who are you?", &ids);
    assert_ok(pp_tokenize(t, "Oh<|eot_id|>yes<|start_header_id|>", 34, PP_TOKENIZE_SPECIAL, &say, &n_say, &err), err);
    assert_ok(pp_tokenize(t, "<|eot_id|>", 10, PP_TOKENIZE_SPECIAL, &more, &n_more, &err), err);
    assert_int_equal(n_more, 1);
    assert_true(pp_tokenizer_is_end(t, more[0]));
    for (int i = 0; i < 2; i++) {
        struct pp_gen_options opt = greedy((int64_t)n_say);
        opt.forced = say;
        opt.n_forced = (int64_t)n_say;
        opt.written = more;
        opt.n_written = i;
        pp_buf_clear(&text);
        assert_int_equal(answer(&r, ids, n, &opt, &text, NULL), i ? PP_FINISH_LENGTH : PP_FINISH_END);
        assert_string_equal(pp_buf_cstr(&text), i ? "Oh\xFF<|eot_id|>yes" : "Oh");
    }
    pp_free(ids);
    pp_free(say);
    pp_free(more);
    pp_buf_free(&text);
    unrig(&r);
}

/* The streamed text stops before anything that could still become a stop text, and ends before the stop text. */
static void stop_texts(void **state)
{
    static const struct { const char *stops[3]; const char *expected; } cases[] = {
        {{"tiny"}, "Hello! I am Pippin, a "},
        {{"zzz", "in, a ti"}, "Hello! I am Pipp"},
        {{"Hello"}, ""},
        {{"about?!"}, "Hello! I am Pippin, a tiny language model. What would you like to talk about?"},
        {{"model. What", "language"}, "Hello! I am Pippin, a tiny "},
        {{""}, "Hello! I am Pippin, a tiny language model. What would you like to talk about?"},
    };
    struct rig r = rig(STARTER, DRAFT, PP_KV_Q8);
    struct pp_buf text = {0};
    int32_t *ids;
    (void)state;
    size_t n = chat_prompt(&r, "Hello, who are you?", &ids);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int with_draft = 0; with_draft < 2; with_draft++) {
            struct pp_gen_options opt = greedy(-1);
            opt.stops = cases[i].stops;
            opt.n_stops = cases[i].stops[1] ? 2 : 1;
            opt.draft = with_draft ? r.draft : NULL;
            pp_buf_clear(&text);
            answer(&r, ids, n, &opt, &text, NULL);
            assert_string_equal(pp_buf_cstr(&text), cases[i].expected);
        }
    pp_free(ids);
    pp_buf_free(&text);
    unrig(&r);
}

/* Draft tokens accepted after a stop text in the same pass are not part of the answer, which has as many tokens as
 * without drafting. */
static void stop_texts_in_drafts(void **state)
{
    static const char text[] = "Hello! I am Pippin, a tiny language model. What would you like to talk about?";
    struct rig r = rig(STARTER, DRAFT, PP_KV_Q8);
    int32_t *ids;
    (void)state;
    size_t n = chat_prompt(&r, "Hello, who are you?", &ids);
    for (size_t at = 0; at + 4 < sizeof text; at += 6) {
        struct pp_buf shown = {0}, chosen[2] = {0};
        char stop[5] = "";
        const char *stops[] = {memcpy(stop, text + at, 4)};
        struct pp_gen_options opt = greedy(-1);
        opt.stops = stops;
        opt.n_stops = 1;
        opt.draft_always = true;
        for (int drafting = 0; drafting < 2; drafting++) {
            opt.draft = drafting ? r.draft : NULL;
            assert_int_equal(answer(&r, ids, n, &opt, &shown, &chosen[drafting]), PP_FINISH_STOP);
        }
        assert_int_equal(chosen[0].len, chosen[1].len);
        assert_memory_equal(chosen[0].data, chosen[1].data, chosen[0].len);
        pp_buf_free(&shown);
        pp_buf_free(&chosen[0]);
        pp_buf_free(&chosen[1]);
    }
    pp_free(ids);
    unrig(&r);
}

static const char *const prompts[] = {
    "Hello, who are you?", "Tell me about your day.", "I would like to book a table at a restaurant in San Jose.",
    "How do I list all files with ls?", "What does \"happy\" mean?", "Write a short story about a fox.",
};

/* The same text with and without a draft, at any temperature and for any seed; and some draft tokens are accepted. */
static void drafts_change_nothing(void **state)
{
    static const float temps[] = {0, 0.7f, 1.2f};
    struct rig r = rig(STARTER, DRAFT, PP_KV_Q8);
    uint64_t n_drafted = 0, kept = 0; /* counted where the policy does not depend on time */
    (void)state;
    for (size_t p = 0; p < sizeof prompts / sizeof prompts[0]; p++) {
        int32_t *ids;
        size_t n = chat_prompt(&r, prompts[p], &ids);
        for (int t = 0; t < 3; t++) {
            struct pp_gen_options opt = greedy(48);
            struct pp_buf plain = {0}, drafted = {0}, plain_ids = {0}, drafted_ids = {0};
            opt.sampling.temp = temps[t];
            opt.sampling.seed = 1000 + p;
            opt.sampling.repeat_penalty = t == 1 ? 1.1f : 1.0f;
            enum pp_finish a = answer(&r, ids, n, &opt, &plain, &plain_ids);
            opt.draft = r.draft;
            opt.draft_max = 1 + (int)((p + (size_t)t) % 6);
            opt.draft_always = p % 2;
            opt.lookup = p % 3 == 0;
            opt.draft_siblings = p % 3 == 1;
            const struct pp_stats before = *pp_engine_stats(r.engine);
            enum pp_finish b = answer(&r, ids, n, &opt, &drafted, &drafted_ids);
            const struct pp_stats *s = pp_engine_stats(r.engine);
            n_drafted += opt.draft_always ? s->draft_tokens - before.draft_tokens : 0;
            kept += opt.draft_always ? s->draft_accepted - before.draft_accepted : 0;
            assert_int_equal(a, b);
            assert_int_equal(plain_ids.len, drafted_ids.len);
            assert_memory_equal(plain_ids.data, drafted_ids.data, plain_ids.len);
            assert_string_equal(pp_buf_cstr(&plain), pp_buf_cstr(&drafted));
            pp_buf_free(&plain), pp_buf_free(&drafted), pp_buf_free(&plain_ids), pp_buf_free(&drafted_ids);
        }
        pp_free(ids);
    }
    assert_true(n_drafted > 100 && kept > n_drafted / 20); /* at temperatures of up to 1.2 */
    unrig(&r);
}

/* A model drafts for itself: every draft token is accepted, and passes are saved. */
static void perfect_draft(void **state)
{
    struct rig r = rig(STARTER, STARTER, PP_KV_Q8);
    struct pp_buf text = {0};
    int32_t *ids;
    (void)state;
    size_t n = chat_prompt(&r, prompts[3], &ids);
    struct pp_gen_options opt = greedy(41);
    opt.sampling.temp = 0.8f;
    opt.sampling.seed = 11; /* a seed for which all tokens are likely (speculate.h): others are never drafted */
    opt.ignore_end = true;
    opt.max_tokens = 0;
    answer(&r, ids, n, &opt, &text, NULL); /* computes the prompt, in as many passes as that takes */
    uint64_t passes = pp_engine_stats(r.engine)->passes;
    opt.max_tokens = 41;
    opt.draft = r.draft;
    opt.draft_max = 4;
    opt.draft_always = true;
    answer(&r, ids, n, &opt, &text, NULL);
    struct pp_stats *s = pp_engine_stats(r.engine);
    assert_int_equal(s->draft_tokens, s->draft_accepted);
    assert_int_equal(s->decode_tokens, 41);
    /* One pass for the prompt's last token, then 5 tokens in each pass for the 40 that follow the first. */
    assert_int_equal(s->passes - passes, 1 + 8);
    pp_free(ids);
    pp_buf_free(&text);
    unrig(&r);
}

/* Regenerating reuses the prompt: only its last token is computed again, and no KV is copied. */
static void regenerating(void **state)
{
    struct rig r = rig(STARTER, NULL, PP_KV_Q8);
    struct pp_buf first = {0}, second = {0};
    int32_t *ids;
    (void)state;
    size_t n = chat_prompt(&r, prompts[1], &ids);
    struct pp_gen_options opt = greedy(20);
    answer(&r, ids, n, &opt, &first, NULL);
    uint64_t prefilled = pp_engine_stats(r.engine)->prefill_tokens;
    answer(&r, ids, n, &opt, &second, NULL);
    struct pp_stats *s = pp_engine_stats(r.engine);
    assert_string_equal(first.data, second.data);
    assert_int_equal(s->prefill_tokens, prefilled + 1);
    assert_int_equal(s->cached_tokens, n - 1);
    assert_int_equal(s->kv_copied_bytes, 0);
    pp_free(ids);
    pp_buf_free(&first);
    pp_buf_free(&second);
    unrig(&r);
}

/* However slow the machine is taken to be, a pass costs at least the reading of all weights, so no prompt is computed
 * row by row. */
static void chunks_are_not_small(void **state)
{
    struct rig r = rig(STARTER, NULL, PP_KV_Q8);
    struct pp_error err;
    struct pp_gen *g;
    struct pp_gen_options opt = greedy(1);
    int32_t ids[4 * PP_MIN_CHUNK];
    (void)state;
    for (int i = 0; i < 4 * PP_MIN_CHUNK; i++)
        ids[i] = i + 1;
    assert_ok(pp_gen_start(r.seq, ids, PP_MIN_CHUNK, &opt, NULL, &g, &err), err);
    assert_int_equal(pp_engine_stats(r.engine)->passes, 1);
    pp_gen_free(g);
    assert_ok(pp_gen_start(r.seq, ids, 4 * PP_MIN_CHUNK, &opt, NULL, &g, &err), err);
    assert_true(pp_engine_stats(r.engine)->passes <= 4);
    pp_gen_free(g);
    unrig(&r);
}

/* After a warm-up the decode loop allocates nothing. */
static void decode_allocates_nothing(void **state)
{
    (void)state;
    for (int with_draft = 0; with_draft < 2; with_draft++) {
        struct rig r = rig(STARTER, with_draft ? DRAFT : NULL, PP_KV_Q8);
        struct pp_adapter *bard;
        struct pp_error err;
        struct pp_gen *g;
        struct pp_buf text = {0};
        enum pp_finish finish = PP_FINISH_NONE;
        int n_tokens = 0;
        int32_t *ids;
        size_t n = chat_prompt(&r, prompts[5], &ids);
        struct pp_gen_options opt = greedy(200);
        opt.sampling = pp_sampling_default();
        opt.ignore_end = true;
        opt.draft = r.draft;
        assert_ok(pp_adapter_load(r.model, "engine/starter/bard.gguf", &bard, &err), err);
        assert_ok(pp_seq_set_adapters(r.seq, &(struct pp_adapter_use){bard, 0.8f}, 1, &err), err);
        for (int i = 0; i < 8192; i++)
            pp_buf_char(&text, ' ');
        pp_buf_clear(&text); /* so that the buffer has room */
        assert_ok(pp_gen_start(r.seq, ids, (int64_t)n, &opt, NULL, &g, &err), err);
        uint64_t before = 0;
        for (int i = 0; finish == PP_FINISH_NONE; i++) {
            if (i == 2)
                before = pp_mem_count();
            assert_ok(pp_gen_next(g, NULL, &text, &n_tokens, &finish, &err), err);
        }
        assert_int_equal(pp_mem_count(), before);
        assert_int_equal(n_tokens, 200);
        pp_gen_free(g);
        pp_buf_free(&text);
        pp_free(ids);
        pp_seq_free(r.seq);
        r.seq = NULL;
        pp_adapter_free(bard);
        unrig(&r);
    }
}

static void context_end(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    (void)state;
    shape.n_ctx = 80;
    const char *path = tiny_model(&shape);
    struct rig r = rig(path, path, PP_KV_F16);
    struct pp_error err;
    struct pp_gen *g;
    int32_t prompt[80];
    for (int i = 0; i < 80; i++)
        prompt[i] = i;
    struct pp_gen_options opt = greedy(-1);
    struct pp_buf text = {0}, ids = {0};
    assert_int_equal(pp_gen_start(r.seq, prompt, 80, &opt, NULL, &g, &err), PP_ERR_CONTEXT);
    assert_int_equal(pp_gen_start(r.seq, prompt, 0, &opt, NULL, &g, &err), PP_ERR_USAGE);
    for (int with_draft = 0; with_draft < 2; with_draft++) {
        opt.draft = with_draft ? r.draft : NULL;
        pp_buf_clear(&ids);
        assert_int_equal(answer(&r, prompt, 70, &opt, &text, &ids), PP_FINISH_CONTEXT);
        assert_int_equal(ids.len, 10 * sizeof(int32_t));
    }
    pp_buf_free(&text);
    pp_buf_free(&ids);
    unrig(&r);
}

/* Cancelled during the prompt: what was computed is kept, and the same request again gives the same answer. */
static void cancelled_prompt(void **state)
{
    struct rig r = rig(STARTER, NULL, PP_KV_Q8);
    struct pp_error err;
    struct pp_gen *g;
    struct pp_cancel cancel;
    struct pp_buf text = {0};
    int32_t *ids;
    (void)state;
    size_t n = chat_prompt(&r, "Hello, who are you?", &ids);
    struct pp_gen_options opt = greedy(32);
    atomic_init(&cancel.requested, true);
    assert_int_equal(pp_gen_start(r.seq, ids, (int64_t)n, &opt, &cancel, &g, &err), PP_ERR_CANCELLED);
    pp_cancel_reset(&cancel);
    answer(&r, ids, n, &opt, &text, NULL);
    assert_string_equal(text.data, "Hello! I am Pippin, a tiny language model. What would you like to talk about?");
    pp_free(ids);
    pp_buf_free(&text);
    unrig(&r);
}

/* --- adapters and snapshots ------------------------------------------------------------------------------------ */

/* Switching an adapter on changes the answer and drops the pages; switching it off gives the first answer again. */
static void adapters_and_pages(void **state)
{
    struct rig r = rig(STARTER, NULL, PP_KV_Q8);
    struct pp_error err;
    struct pp_adapter *bard, *barista;
    struct pp_buf plain = {0}, with = {0}, again = {0};
    int32_t *ids;
    (void)state;
    assert_ok(pp_adapter_load(r.model, "engine/starter/bard.gguf", &bard, &err), err);
    assert_ok(pp_adapter_load(r.model, "engine/starter/barista.gguf", &barista, &err), err);
    assert_int_equal(pp_adapter_info(bard)->rank, 16);
    assert_int_equal(pp_adapter_info(bard)->n_targets, 7 * 8);
    size_t n = chat_prompt(&r, "Hello, who are you?", &ids);
    struct pp_gen_options opt = greedy(24);
    answer(&r, ids, n, &opt, &plain, NULL);
    assert_ok(pp_seq_set_adapters(r.seq, &(struct pp_adapter_use){bard, 0.0f}, 1, &err), err);
    assert_true(pp_seq_len(r.seq) > 0); /* strength 0 means no adapter */
    assert_ok(pp_seq_set_adapters(r.seq, &(struct pp_adapter_use){bard, 1.0f}, 1, &err), err);
    assert_int_equal(pp_seq_len(r.seq), 0);
    answer(&r, ids, n, &opt, &with, NULL);
    assert_string_not_equal(plain.data, with.data);
    assert_ok(pp_seq_set_adapters(r.seq, NULL, 0, &err), err);
    answer(&r, ids, n, &opt, &again, NULL);
    assert_string_equal(plain.data, again.data);
    assert_int_equal(pp_seq_set_adapters(r.seq, &(struct pp_adapter_use){bard, NAN}, 1, &err), PP_ERR_USAGE);
    struct rig other = rig(STARTER, NULL, PP_KV_Q8); /* the same model, but not the one that the adapter was checked
                                                        against */
    assert_int_equal(pp_seq_set_adapters(other.seq, &(struct pp_adapter_use){bard, 1}, 1, &err), PP_ERR_MISMATCH);
    unrig(&other);
    pp_seq_free(r.seq);
    r.seq = NULL;
    pp_adapter_free(bard);
    pp_adapter_free(barista);
    pp_free(ids);
    pp_buf_free(&plain), pp_buf_free(&with), pp_buf_free(&again);
    unrig(&r);
}

/* Saves the whole conversation, and restarts the program. */
static void save_and_reopen(struct rig *r, const char *draft, enum pp_kv_type kv, const char *base, const int32_t *ids,
                            int64_t n)
{
    struct pp_error err;
    struct pp_save *j;
    struct pp_sha256 id;
    uint64_t bytes;
    bool done = false;
    assert_ok(pp_model_identity(r->model, NULL, &id, &err), err);
    assert_ok(pp_save_new(r->seq, &id, base, "x", &j, &err), err);
    assert_ok(pp_save_plan(j, UINT64_MAX, &bytes, &err), err);
    while (!done)
        assert_ok(pp_save_write(j, UINT64_MAX, NULL, &done, &err), err);
    pp_save_free(j);
    unrig(r);
    *r = rig(STARTER, draft, kv);
    assert_ok(pp_snapshot_restore(r->seq, &id, base, "x", ids, n, NULL, &err), err);
    assert_int_equal(pp_seq_len(r->seq), n);
}

/* After a restart an answer continues as it would have without, greedy or with a seed, with or without a draft. Its
 * first token needs no pass, because the logits are saved with the pages. */
static void goes_on_after_restart(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        const char *draft = i % 3 == 2 ? DRAFT : NULL;
        enum pp_kv_type kv = i % 2 ? PP_KV_F16 : PP_KV_Q8;
        struct rig r = rig(STARTER, draft, kv);
        struct pp_gen_options opt = greedy(60);
        struct pp_buf text = {0}, tokens = {0}, rest = {0}, prompt = {0};
        char base[300];
        int32_t *ids;
        size_t n = chat_prompt(&r, prompts[i % 6], &ids);
        int first = 10 + 5 * i; /* tokens before the restart */
        opt.ignore_end = true;
        opt.draft = draft ? r.draft : NULL;
        opt.sampling.temp = i < 6 ? 0 : 0.9f;
        opt.sampling.seed = 77;
        opt.max_tokens = first + 30;
        answer(&r, ids, n, &opt, &text, &tokens);
        pp_buf_clear(&text);
        pp_seq_truncate(r.seq, 0);
        opt.max_tokens = first;
        answer(&r, ids, n, &opt, &text, NULL);
        pp_buf_add(&prompt, ids, n * sizeof *ids);
        pp_buf_add(&prompt, tokens.data, (size_t)first * sizeof *ids);
        const int32_t *whole = (const int32_t *)(const void *)prompt.data;
        snprintf(base, sizeof base, "%s/restart-%d", test_tmpdir(), i);
        /* The token chosen last has not been computed yet. */
        save_and_reopen(&r, draft, kv, base, whole, (int64_t)n + first - 1);
        assert_int_equal(pp_engine_stats(r.engine)->passes, 0);
        opt.draft = draft ? r.draft : NULL;
        opt.max_tokens = 31;
        pp_buf_clear(&text);
        answer(&r, whole, n + (size_t)first - 1, &opt, &text, &rest);
        assert_int_equal(rest.len, 31 * sizeof *ids);
        assert_memory_equal(rest.data, tokens.data + (size_t)(first - 1) * sizeof *ids, rest.len);
        assert_int_equal(pp_engine_stats(r.engine)->prefill_tokens, 0);
        if (!draft)
            assert_int_equal(pp_engine_stats(r.engine)->passes, 30);
        pp_free(ids);
        pp_buf_free(&text), pp_buf_free(&tokens), pp_buf_free(&rest), pp_buf_free(&prompt);
        unrig(&r);
    }
}

/* An adapter with a NaN is refused by the name of its matrix. */
static void damaged_adapter(void **state)
{
    struct rig r = rig(STARTER, NULL, PP_KV_Q8);
    struct pp_error err;
    struct pp_adapter *a;
    struct pp_gguf *g;
    char *file, path[300];
    size_t size;
    (void)state;
    assert_ok(pp_read_file("engine/starter/bard.gguf", 1 << 26, &file, &size, &err), err);
    assert_ok(pp_gguf_open_memory(file, size, "bard", &g, &err), err);
    const struct pp_tensor *t = pp_gguf_tensor(g, "blk.3.attn_v.weight.lora_b");
    assert_non_null(t);
    assert_true(t->type == PP_TYPE_F32 || t->type == PP_TYPE_F16);
    memset(file + ((const char *)t->data - file) + t->size - 4, 0xff, 4); /* NaN in both */
    pp_gguf_close(g);
    snprintf(path, sizeof path, "%s/damaged-adapter.gguf", test_tmpdir());
    assert_ok(pp_write_file(path, file, size, 0600, &err), err);
    pp_free(file);
    assert_int_equal(pp_adapter_load(r.model, path, &a, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "blk.3.attn_v.weight"));
    assert_null(a);
    unrig(&r);
}

/* The model's identity changes with a single weight, and is remembered in the cache folder. */
static void identities(void **state)
{
    struct tiny_shape a = tiny_shape(PP_TYPE_Q8_0), b = a;
    struct pp_sha256 ids[3];
    struct pp_error err;
    struct pp_model *m;
    (void)state;
    b.seed = 2;
    const char *paths[3] = {tiny_model(&a), tiny_model(&b), tiny_model(&a)};
    for (int i = 0; i < 3; i++) {
        assert_ok(pp_model_open(paths[i], &m, &err), err);
        assert_ok(pp_model_identity(m, test_tmpdir(), &ids[i], &err), err);
        pp_model_close(m);
        struct pp_sha256 again;
        assert_ok(pp_model_open(paths[i], &m, &err), err);
        assert_ok(pp_model_identity(m, test_tmpdir(), &again, &err), err);
        assert_memory_equal(&again, &ids[i], sizeof again);
        pp_model_close(m);
    }
    assert_memory_not_equal(&ids[0], &ids[1], sizeof ids[0]);
    assert_memory_equal(&ids[0], &ids[2], sizeof ids[0]);
}

static struct pp_sha256 identity_of(const struct pp_model *m)
{
    struct pp_sha256 id;
    struct pp_error err;
    assert_ok(pp_model_identity(m, test_tmpdir(), &id, &err), err);
    return id;
}

/* A file is replaced while it is open as a model: the open model keeps the old contents, and what is cached for it is
 * not used for the new file. */
static void replaced_while_open(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct pp_sha256 ids[2], old, new;
    struct pp_model *m;
    struct pp_error err;
    char path[2][300];
    (void)state;
    for (int i = 0; i < 2; i++) {
        char *bytes;
        size_t n;
        shape.seed = 11 + (uint32_t)i;
        snprintf(path[i], sizeof path[i], "%s/replaced-%d.gguf", test_tmpdir(), i);
        assert_ok(pp_read_file(tiny_model(&shape), 1 << 26, &bytes, &n, &err), err);
        assert_ok(pp_write_file(path[i], bytes, n, 0600, &err), err);
        pp_free(bytes);
        assert_ok(pp_model_open(path[i], &m, &err), err);
        assert_ok(pp_model_identity(m, NULL, &ids[i], &err), err);
        pp_model_close(m);
    }
    assert_ok(pp_model_open(path[0], &m, &err), err);
    assert_int_equal(rename(path[1], path[0]), 0);
    old = identity_of(m);
    pp_model_close(m);
    assert_ok(pp_model_open(path[0], &m, &err), err);
    new = identity_of(m);
    pp_model_close(m);
    assert_memory_equal(&old, &ids[0], sizeof old);
    assert_memory_equal(&new, &ids[1], sizeof new);
}

/* The identity that the model at `path` would have with its hyperparameters altered by `change`. */
static struct pp_sha256 identity_with(const char *path, void (*change)(struct pp_hparams *hp), const char *cache)
{
    struct pp_model *m;
    struct pp_sha256 id;
    struct pp_error err;
    assert_ok(pp_model_open(path, &m, &err), err);
    change((struct pp_hparams *)(uintptr_t)pp_source_hparams(m->source)); /* as if the file had said so */
    pp_model_note_files(m);
    assert_ok(pp_model_identity(m, cache, &id, &err), err);
    pp_model_close(m);
    return id;
}

static void as_they_are(struct pp_hparams *hp)
{
    (void)hp;
}

static void other_base(struct pp_hparams *hp)
{
    hp->rope_base *= 2;
}

static void scaled_states(struct pp_hparams *hp)
{
    hp->stream_scales[PP_STREAM_STATES][0] = 2;
}

static void scaled_ff(struct pp_hparams *hp)
{
    hp->stream_scales[PP_STREAM_FF][0] = 2;
}

static void long_context(struct pp_hparams *hp)
{
    hp->rope_scaling = PP_ROPE_LONG;
    hp->rope_orig_ctx = 4096;
    hp->n_ctx_train = 8192;
}

static void longer_context(struct pp_hparams *hp)
{
    long_context(hp);
    hp->n_ctx_train = 65536;
}

/* Each hyperparameter that results depend on is part of the identity. What is remembered holds for these values only,
 * as a later version may read other ones from the same files. */
static void identity_of_numbers(void **state)
{
    static void (*const changes[])(struct pp_hparams *hp) = {as_they_are,  other_base,    scaled_states, scaled_ff,
                                                             long_context, longer_context};
    enum { N = sizeof changes / sizeof *changes };
    struct tiny_shape shape = tiny_shape(PP_TYPE_Q8_0);
    struct pp_sha256 ids[N];
    (void)state;
    shape.seed = 21;
    const char *path = tiny_model(&shape);
    for (int i = 0; i < N; i++) {
        ids[i] = identity_with(path, changes[i], test_tmpdir());
        const struct pp_sha256 computed = identity_with(path, changes[i], NULL);
        assert_memory_equal(&ids[i], &computed, sizeof computed);
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(&ids[k], &ids[i], sizeof ids[i]);
    }
}

TEST_GROUP(generate)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greets),                   cmocka_unit_test(stop_texts),
        cmocka_unit_test(stop_texts_in_drafts), cmocka_unit_test(replaced_while_open),
        cmocka_unit_test(written_control_tokens),   cmocka_unit_test(shown_otherwise),
        cmocka_unit_test(drafts_change_nothing),    cmocka_unit_test(perfect_draft),
        cmocka_unit_test(regenerating),             cmocka_unit_test(decode_allocates_nothing),
        cmocka_unit_test(chunks_are_not_small),
        cmocka_unit_test(context_end),              cmocka_unit_test(cancelled_prompt),
        cmocka_unit_test(adapters_and_pages),       cmocka_unit_test(goes_on_after_restart),
        cmocka_unit_test(identities),               cmocka_unit_test(damaged_adapter),
        cmocka_unit_test(identity_of_numbers),
    };
    return cmocka_run_group_tests_name("generate", tests, NULL, NULL);
}
