/* test_reasoning.c - the parts of an answer, however its text is divided; which markers a model has; prompts. */
#include <stdio.h>
#include <string.h>

#include "engine/reasoning.h"
#include "src/prompt.h"
#include "tests/support.h"

/* --- samples ------------------------------------------------------------------------------------------------ */

static const char think[] = "{{ messages[0].content.split('</think>')[-1] }}<think>";
static const char harmony[] = "<|start|>assistant<|channel|>analysis<|message|>";
static const char solar[] = "<|begin|>assistant<|think|><|end|><|begin|>assistant<|content|>";

struct sample {
    const char *source; /* the template's text */
    enum pp_answer_begin begins;
    const char *text, *reasoning, *answer;
    bool over;
};

static const struct sample samples[] = {
    {think, PP_BEGINS_FREE, "<think>\nwhy\n</think>\n\nHi", "\nwhy\n", "\n\nHi", false},
    {think, PP_BEGINS_FREE, " \n<think>a</think>b", "a", "b", false},
    {think, PP_BEGINS_FREE, "Hi, <think> is a tag", "", "Hi, <think> is a tag", false},
    {think, PP_BEGINS_FREE, "<thin", "", "<thin", false},
    {think, PP_BEGINS_FREE, "<think>never closed </thin", "never closed </thin", "", false},
    {think, PP_BEGINS_FREE, "<think></think>", "", "", false},
    {think, PP_BEGINS_FREE, "<think>a</think> <think>b</think>c", "ab", "c", false},
    {think, PP_BEGINS_FREE, "<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d", false},
    {think, PP_BEGINS_FREE, "<think><think></think></think>", "<think>", "</think>", false},
    {think, PP_BEGINS_FREE, "not opened</think>Hi", "not opened", "Hi", false},
    {think, PP_BEGINS_FREE, "The tag `</think>` ends it", "", "The tag `</think>` ends it", false},
    {think, PP_BEGINS_FREE, "", "", "", false},
    {think, PP_BEGINS_REASONING, "why\n</think>\n\nHi", "why\n", "\n\nHi", false},
    {think, PP_BEGINS_REASONING, "<think>\nwhy</think>Hi", "\nwhy", "Hi", false},
    {think, PP_BEGINS_REASONING, "</think>Hi</think>", "", "Hi</think>", false},
    {think, PP_BEGINS_REASONING, "\033[31m<|im_end|>\xFF\xFE</think>\033[0m", "\033[31m<|im_end|>\xFF\xFE", "\033[0m",
     false},
    {think, PP_BEGINS_ANSWER, "Hi </think> there", "", "Hi </think> there", false},
    {"[THINK][/THINK]", PP_BEGINS_FREE, "[THINK]a[b][/THIN[/THINK]Hi", "a[b][/THIN", "Hi", false},
    {"<mm:think></mm:think>", PP_BEGINS_FREE, "<mm:think>a</think></mm:think>Hi", "a</think>", "Hi", false},
    {"<seed:think></seed:think>", PP_BEGINS_FREE, "<seed:think>a</seed:think>Hi", "a", "Hi", false},
    {"<reasoning>x</reasoning>", PP_BEGINS_FREE, "<reasoning>a</reasoning>Hi", "a", "Hi", false},
    {"<think></think><response></response>", PP_BEGINS_FREE, "<think>a</think>\n<response>Hi</response>\n", "a",
     "\nHi\n", false},
    {"<|START_THINKING|><|END_THINKING|>", PP_BEGINS_FREE,
     "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>", "a", "Hi", false},
    {"<|START_THINKING|><|END_THINKING|><|START_TEXT|><|END_TEXT|>", PP_BEGINS_REASONING,
     "a<|END_THINKING|><|START_TEXT|>Hi<|END_TEXT|>", "a", "Hi", false},
    {"<|channel>thought\n<channel|>", PP_BEGINS_FREE, "<|channel>thought\na<channel|>Hi", "a", "Hi", false},
    {"Here are my reasoning steps:\n[BEGIN FINAL RESPONSE]", PP_BEGINS_REASONING,
     "one\n[BEGIN FINAL RESPONSE]\nHi\n[END FINAL RESPONSE]", "one\n", "\nHi\n", false},
    {"Assistant: <think>", PP_BEGINS_REASONING, "a</think>Hi", "a", "Hi", false},
    {"no such thing", PP_BEGINS_FREE, "<think>a</think>Hi", "", "<think>a</think>Hi", false},
    {harmony, PP_BEGINS_FREE,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>", "a", "Hi",
     true},
    {harmony, PP_BEGINS_FREE,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
     "<|start|>assistant<|channel|>final<|message|>Hi<|end|><|start|>user<|message|>me", "a\n\nb", "Hi", true},
    {harmony, PP_BEGINS_FREE, "<|channel|>final <|constrain|>json<|message|>{}", "", "{}", false},
    {harmony, PP_BEGINS_FREE, "<|message|>Hi", "", "Hi", false},
    {harmony, PP_BEGINS_FREE, "No header at all", "", "No header at all", false},
    {harmony, PP_BEGINS_FREE, "<|channel|>analysis<|message|>a<|end|><|start|>user<|message|>me", "a", "", true},
    {harmony, PP_BEGINS_FREE, "<|channel|>analysis<|message|>a<|channel|>final<|message|>Hi", "a", "Hi", false},
    {harmony, PP_BEGINS_FREE, "<|channel|>anal", "", "", false},
    {harmony, PP_BEGINS_FREE, "<|channel|>analysis<|message|>a<|call|>", "a", "", true},
    {harmony, PP_BEGINS_ANSWER, "Hi<|end|>", "", "Hi", true},
    {solar, PP_BEGINS_FREE, "<|think|>a<|end|><|begin|>assistant<|content|>Hi<|end|>more", "a", "Hi", true},
    {solar, PP_BEGINS_FREE, "<|content|>Hi <think> there", "", "Hi <think> there", false},
    {solar, PP_BEGINS_FREE, "<|think|>a<|content|>Hi", "a", "Hi", false},
    {solar, PP_BEGINS_FREE, "<|think|>a<|end|><|begin|>assistant<|tool_calls|>{}<|calls|>", "a\n\n{}", "", true},
    {solar, PP_BEGINS_FREE, "<|think|>a<|end|><|begin|>user<|content|>me", "a", "", true},
    {solar, PP_BEGINS_FREE, "<|think|>a<|end|><|begin|>assistant<|think|>b<|end|><|begin|>assistant<|content|>Hi",
     "a\n\nb", "Hi", false},
    {solar, PP_BEGINS_FREE, "No header at all", "", "No header at all", false},
    {solar, PP_BEGINS_FREE, "<|thi", "", "<|thi", false},
    {solar, PP_BEGINS_REASONING, "a<|end|><|begin|>assistant<|content|>Hi", "a", "Hi", false},
    {solar, PP_BEGINS_ANSWER, "Hi<|end|>", "", "Hi", true},
    {harmony, PP_BEGINS_REASONING, "a<|end|><|start|>assistant<|channel|>final<|message|>Hi", "a", "Hi", false},
};
enum { SAMPLES = sizeof samples / sizeof *samples };

struct parts {
    struct pp_buf reasoning, answer;
};

static void collect(void *user, enum pp_part part, const char *bytes, size_t n)
{
    struct parts *p = user;
    if (part == PP_PART_TEXT_WAS_REASONING) {
        assert_int_equal(n, 0);
        pp_buf_add(&p->reasoning, p->answer.data, p->answer.len);
        pp_buf_clear(&p->answer);
    } else {
        pp_buf_add(part == PP_PART_ANSWER ? &p->answer : &p->reasoning, bytes, n);
    }
}

static void parts_free(struct parts *p)
{
    pp_buf_free(&p->reasoning);
    pp_buf_free(&p->answer);
}

/* Feeds a text up to `cut`, then up to `second`, then the rest; step 1: byte by byte. Returns whether the answer has
 * ended. */
static bool take_apart(const struct pp_reasoning *r, enum pp_answer_begin begins, const char *s, size_t n, size_t cut,
                       size_t second, struct parts *out)
{
    struct pp_reasoner *p = pp_reasoner_new(r, begins, collect, out);
    assert_non_null(p);
    pp_reasoner_feed(p, s, cut);
    pp_reasoner_feed(p, s + cut, second - cut);
    pp_reasoner_feed(p, s + second, n - second);
    pp_reasoner_end(p);
    bool over = pp_reasoner_over(p);
    pp_reasoner_free(p);
    return over;
}

static void check_sample(const struct sample *s, size_t cut, size_t second)
{
    struct pp_reasoning r = pp_reasoning_of(s->source, NULL);
    struct parts got = {0};
    bool over = take_apart(&r, s->begins, s->text, strlen(s->text), cut, second, &got);
    if (strcmp(pp_buf_cstr(&got.reasoning), s->reasoning) != 0 || strcmp(pp_buf_cstr(&got.answer), s->answer) != 0 ||
        over != s->over)
        fail_msg("\"%s\" at %zu, %zu: \"%s\" and \"%s\"%s", s->text, cut, second, pp_buf_cstr(&got.reasoning),
                 pp_buf_cstr(&got.answer), over ? ", over" : "");
    parts_free(&got);
}

static void every_split_of_every_sample(void **state)
{
    (void)state;
    for (size_t i = 0; i < SAMPLES; i++)
        for (size_t n = strlen(samples[i].text), second = 0; second <= n; second++)
            for (size_t cut = 0; cut <= second; cut++)
                check_sample(&samples[i], cut, second);
}

/* --- any bytes ---------------------------------------------------------------------------------------------- */

static bool is_subsequence(const struct pp_buf *part, const char *s, size_t n)
{
    size_t i = 0;
    for (size_t k = 0; k < n && i < part->len; k++)
        i += part->data[i] == s[k];
    return i == part->len;
}

static unsigned roll(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

/* Tags, halves of tags and anything else in any order: however the text is divided, the parts are the same, and only
 * tags and the blanks before them are missing. */
static void any_bytes(void **state)
{
    static const char *const pieces[] = {"<think>", "</think>", "<", "</thi", "nk>", " ", "\n", "abc", "`", "\xFF",
                                         "<|end|>", "<|start|>", "assistant", "<|channel|>", "analysis", "final",
                                         "<|message|>", "<|return|>", "<response>", "</response>", "\xC3\xA9", "\x01",
                                         "\xFF<think>", "\xFF</think>"};
    static const char *const sources[] = {think, harmony, "<think></think><response>", "[/THINK]", ""};
    enum { PIECES = sizeof pieces / sizeof *pieces };
    unsigned seed = 1;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct pp_buf text = {0};
        struct pp_reasoning r = pp_reasoning_of(sources[round % 5], NULL);
        r.control = round / 5 % 2 ? 0x3F : 0; /* tags are control tokens, or ordinary text */
        enum pp_answer_begin begins = (enum pp_answer_begin)(roll(&seed) % 3);
        for (unsigned n = roll(&seed) % 24; n > 0; n--)
            pp_buf_str(&text, pieces[roll(&seed) % PIECES]);
        size_t a = text.len ? roll(&seed) % text.len : 0, b = text.len ? a + roll(&seed) % (text.len - a) : 0;
        struct parts whole = {0}, cut = {0};
        bool over = take_apart(&r, begins, pp_buf_cstr(&text), text.len, text.len, text.len, &whole);
        assert_int_equal(take_apart(&r, begins, pp_buf_cstr(&text), text.len, a, b, &cut), over);
        if (strcmp(pp_buf_cstr(&cut.answer), pp_buf_cstr(&whole.answer)) != 0)
            fail_msg("%s, %d: \"%s\" at %zu, %zu", sources[round % 5], (int)begins, pp_buf_cstr(&text), a, b);
        assert_string_equal(pp_buf_cstr(&cut.reasoning), pp_buf_cstr(&whole.reasoning));
        assert_true(is_subsequence(&whole.answer, text.data, text.len));
        if (sources[round % 5] != harmony)
            assert_true(is_subsequence(&whole.reasoning, text.data, text.len));
        if (!*sources[round % 5])
            assert_int_equal(whole.answer.len, text.len);
        parts_free(&whole);
        parts_free(&cut);
        pp_buf_free(&text);
    }
}

static void megabytes_of_tags(void **state)
{
    static const char *const tags[] = {"<think>", "</think>", "<|channel|>", "<|start|>", "<", " ", "`</think>`"};
    enum { BYTES = 1 << 20 };
    (void)state;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        for (int k = 0; k < 2; k++) {
            struct pp_reasoning r = pp_reasoning_of(k ? harmony : think, NULL);
            struct parts got = {0};
            struct pp_reasoner *p = pp_reasoner_new(&r, PP_BEGINS_FREE, collect, &got);
            for (size_t n = 0; n < BYTES; n += strlen(tags[i]))
                pp_reasoner_feed(p, tags[i], strlen(tags[i]));
            pp_reasoner_end(p);
            assert_true(got.reasoning.len + got.answer.len <= BYTES + 16);
            if (!k && i == 0)
                assert_true(got.reasoning.len >= BYTES - 16 && !got.answer.len);
            pp_reasoner_free(p);
            parts_free(&got);
        }
    }
}

/* --- which marks -------------------------------------------------------------------------------------------- */

/* The templates of the test data: what each tells about reasoning, and where an answer begins. */
static void templates_of_models(void **state)
{
    static const struct {
        const char *file, *name, *extra;
        enum pp_answer_begin begins;
    } expected[] = {
        {"Qwen-Qwen3-0.6B", "think", NULL, PP_BEGINS_FREE},
        {"Qwen-Qwen3-0.6B", "think", "{\"enable_thinking\": false}", PP_BEGINS_ANSWER},
        {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "think", NULL, PP_BEGINS_REASONING},
        {"deepseek-ai-DeepSeek-V3.1", "think", NULL, PP_BEGINS_ANSWER},
        {"deepseek-ai-DeepSeek-V3.1", "think", "{\"thinking\": true}", PP_BEGINS_REASONING},
        {"llama-cpp-deepseek-r1", "think", NULL, PP_BEGINS_REASONING},
        {"llama-cpp-rwkv-world", "think", "{\"enable_thinking\": true}", PP_BEGINS_REASONING},
        {"stepfun-ai-Step-3.5-Flash", "think", NULL, PP_BEGINS_REASONING},
        {"GLM-4.6", "think", NULL, PP_BEGINS_FREE},
        {"MiroThinker", "think", NULL, PP_BEGINS_FREE},
        {"HuggingFaceTB-SmolLM3-3B", "think", NULL, PP_BEGINS_FREE},
        {"HuggingFaceTB-SmolLM3-3B", "think", "{\"enable_thinking\": false}", PP_BEGINS_ANSWER},
        {"ibm-granite-granite-3.3-2B-Instruct", "granite", NULL, PP_BEGINS_FREE},
        {"openai-gpt-oss-120b", "harmony", NULL, PP_BEGINS_FREE},
        {"google-gemma-4-31B-it", "gemma", NULL, PP_BEGINS_ANSWER},
        {"google-gemma-4-31B-it", "gemma", "{\"enable_thinking\": true}", PP_BEGINS_FREE},
        {"Apriel-1.6-15b-Thinker-fixed", "apriel", NULL, PP_BEGINS_REASONING},
        {"Qwen-Qwen2.5-7B-Instruct", "none", NULL, PP_BEGINS_FREE},
        {"meta-llama-Llama-3.1-8B-Instruct", "none", NULL, PP_BEGINS_FREE},
        {"google-gemma-2-2b-it", "none", NULL, PP_BEGINS_FREE},
        {"mistralai-Mistral-Nemo-Instruct-2407", "none", NULL, PP_BEGINS_FREE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        char path[128];
        struct pp_buf source = {0}, prompt = {0};
        struct pp_template *t;
        struct pp_error err;
        snprintf(path, sizeof path, "templates/%s.jinja", expected[i].file);
        const char *full = testdata(path);
        if (!full)
            return;
        FILE *f = fopen(full, "rb");
        char bytes[4096];
        for (size_t n; (n = fread(bytes, 1, sizeof bytes, f)) > 0;)
            pp_buf_add(&source, bytes, n);
        fclose(f);
        struct pp_reasoning r = pp_reasoning_of(pp_buf_cstr(&source), NULL);
        assert_string_equal(pp_reasoning_name(&r), expected[i].name);
        assert_ok(pp_template_parse(source.data, source.len, path, &t, &err), err);
        const struct pp_template_input in = {
            .messages_json = "[{\"role\": \"user\", \"content\": \"<think>Hello</think>\"}]",
            .extra_json = expected[i].extra, .bos_text = "", .eos_text = "", .add_generation_prompt = true};
        assert_ok(pp_template_render(t, &in, &prompt, &err), err);
        if (pp_reasoning_begins(&r, prompt.data, prompt.len) != expected[i].begins)
            fail_msg("%s begins otherwise", expected[i].file);
        pp_template_free(t);
        pp_buf_free(&source);
        pp_buf_free(&prompt);
    }
}

/* The text that is put before a continued answer is taken apart into the same parts. */
static void frames_are_read_back(void **state)
{
    static const char *const sources[] = {think, harmony, solar, "<seed:think></seed:think>", "[THINK][/THINK]",
                                          "<think></think><response>", "<|channel>thought <channel|>",
                                          "<|START_THINKING|><|END_THINKING|>", "[BEGIN FINAL RESPONSE]"};
    (void)state;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct pp_reasoning r = pp_reasoning_of(sources[i], NULL);
        for (int k = 0; k < 8; k++) {
            enum pp_answer_begin begins = k & 4 ? PP_BEGINS_REASONING : PP_BEGINS_FREE;
            struct pp_buf text = {0};
            struct parts got = {0};
            bool with;
            struct pp_reasoning_frame f = pp_reasoning_frame(&r, begins, k & 1, k & 2, &with);
            assert_int_equal(with, k & 1);
            pp_buf_fmt(&text, "%s%s%s%s", f.before, k & 1 ? "why" : "", f.between, k & 2 ? "Hi" : "");
            take_apart(&r, begins, pp_buf_cstr(&text), text.len, 0, 0, &got);
            assert_true(!(k & 1) == !strstr(pp_buf_cstr(&got.reasoning), "why"));
            assert_true(!(k & 2) == !strstr(pp_buf_cstr(&got.answer), "Hi"));
            assert_null(strstr(pp_buf_cstr(&got.answer), "why"));
            parts_free(&got);
            pp_buf_clear(&text);
            pp_buf_fmt(&text, "%sHi", pp_reasoning_skip(&r, begins));
            take_apart(&r, begins, pp_buf_cstr(&text), text.len, 0, 0, &got);
            assert_true(strspn(pp_buf_cstr(&got.reasoning), "\n") == got.reasoning.len);
            assert_non_null(strstr(pp_buf_cstr(&got.answer), "Hi"));
            parts_free(&got);
            pp_buf_free(&text);
        }
    }
}

/* If a tag is a control token, only the token counts; its spelling is ordinary text. A control token without a meaning
 * is not shown. */
static void control_tokens(void **state)
{
    struct pp_reasoning r = pp_reasoning_of("[THINK][/THINK]", NULL);
    struct parts got = {0};
    static const char text[] = "\xFF[THINK]about [/THINK]\xFF[/THINK]Hi \xFF[THINK]there\xFF";
    (void)state;
    r.control = 3;
    for (size_t cut = 0; cut < sizeof text; cut++) {
        take_apart(&r, PP_BEGINS_FREE, text, sizeof text - 1, cut, cut, &got);
        assert_string_equal(pp_buf_cstr(&got.reasoning), "about [/THINK]");
        assert_string_equal(pp_buf_cstr(&got.answer), "Hi there\xFF");
        parts_free(&got);
    }
}

TEST_GROUP(reasoning)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_of_every_sample),
        cmocka_unit_test(any_bytes),
        cmocka_unit_test(megabytes_of_tags),
        cmocka_unit_test(templates_of_models),
        cmocka_unit_test(frames_are_read_back),
        cmocka_unit_test(control_tokens),
    };
    return cmocka_run_group_tests_name("reasoning", tests, NULL, NULL);
}
