/* fuzz_prompt.c - conversations whose messages are full of control tokens' spellings, through pippin's own templates:
 * the prompt must have as many control tokens as that of a harmless conversation.
 *
 * The first byte picks the template. The second has flags: messages with such spellings are also the system's (1), the
 * model's (2), or an answer that is begun (4); control tokens take the white space around them (8). A piece for each
 * message follows, in which each byte above 127 is replaced by one of `marks`. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_internal.h"
#include "src/prompt.h"
#include "tests/hostile.h"

enum { SYSTEM = 1, MODEL = 2, BEGUN = 4, STRIPS = 8, MOST = 8 };

static const struct {
    const char *text;
    bool special;
} marks[] = {
    {"<|im_start|>", true}, {"<|im_end|>", true}, {"<|start_header_id|>", true}, {"<|end_header_id|>", true},
    {"<|eot_id|>", true}, {"<|begin_of_text|>", true}, {"<s>", true}, {"</s>", true}, {"[INST]", false},
    {"[/INST]", false}, {"<<SYS>>", false}, {"<</SYS>>", false}, {"<start_of_turn>", false}, {"<end_of_turn>", false},
    {"<|user|>", false}, {"<|assistant|>", false}, {"<|system|>", false}, {"<|end|>", true},
    {"<|START_OF_TURN_TOKEN|>", true}, {"<|END_OF_TURN_TOKEN|>", true}, {"<|USER_TOKEN|>", true},
    {"<|CHATBOT_TOKEN|>", true}, {"<\uff5cUser\uff5c>", false}, {"<\uff5cAssistant\uff5c>", false},
    {"<\uff5cend\u2581of\u2581sentence\uff5c>", true}, {"<think>", false}, {"</think>", false}, {"<|start|>", true},
    {"<|channel|>", true}, {"<|message|>", true}, {"<|return|>", true}, {"<|", false}, {"|>", false}, {"\u2603", true},
    {"\u00e9", false}, {"\u200b", false}, {"\ufdd0", false}, {"<|im_", false}, {"end|>", false}, {"| im_end |", false},
};
enum { N_MARKS = sizeof marks / sizeof *marks, N_TOKENS = 33 }; /* the first N_TOKENS of them are tokens */

static struct pp_tokenizer *tokenizers[2];
static struct pp_template *templates[32];
static unsigned n_templates;

static void add_string(struct pp_buf *out, const char *text)
{
    cJSON *s = cJSON_CreateString(text);
    char *json = cJSON_PrintUnformatted(s);
    pp_buf_str(out, json);
    cJSON_free(json);
    cJSON_Delete(s);
}

static struct pp_tokenizer *of_bytes(bool strips)
{
    struct pp_buf json = {0};
    struct pp_tokenizer *t;
    struct pp_error err;
    pp_buf_str(&json, "{\"added_tokens\":[");
    for (unsigned i = 0; i < N_TOKENS; i++) {
        pp_buf_fmt(&json, "%s{\"id\":%u,\"special\":%s,\"lstrip\":%s,\"rstrip\":%s,\"content\":", i ? "," : "", 256 + i,
                   marks[i].special ? "true" : "false", strips ? "true" : "false", strips ? "true" : "false");
        add_string(&json, marks[i].text);
        pp_buf_char(&json, '}');
    }
    pp_buf_str(&json, "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                      "\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned byte = 0; byte < 256; byte++) {
        char key[5] = {0};
        pp_utf8_encode(tok_byte_to_char(byte), key);
        pp_buf_str(&json, byte ? "," : "");
        add_string(&json, key);
        pp_buf_fmt(&json, ":%u", byte);
    }
    pp_buf_str(&json, "},\"merges\":[]}}");
    if (json.bad || tok_from_json(json.data, json.len, NULL, &t, &err))
        abort();
    pp_buf_free(&json);
    return t;
}

static void free_all(void)
{
    for (unsigned i = 0; i < 2; i++)
        pp_tokenizer_free(tokenizers[i]);
    for (unsigned i = 0; i < n_templates; i++)
        pp_template_free(templates[i]);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct pp_error err;
    (void)argc;
    (void)argv;
    for (unsigned i = 0; i < 2; i++)
        tokenizers[i] = of_bytes(i);
    for (const char *name; (name = pp_template_builtin_name(n_templates)); n_templates++) {
        const char *source = pp_template_builtin(name);
        if (n_templates == sizeof templates / sizeof *templates ||
            pp_template_parse(source, strlen(source), name, &templates[n_templates], &err))
            abort();
    }
    atexit(free_all);
    return 0;
}

/* The message's text, between letters, so that no template strips it. */
static void put_words(struct pp_buf *out, struct hostile_input *in, bool harmless)
{
    size_t n;
    const uint8_t *bytes = hostile_piece(in, &n);
    pp_buf_char(out, 'a');
    for (size_t i = 0; i < n && !harmless; i++) {
        if (bytes[i] > 127)
            pp_buf_str(out, marks[bytes[i] % N_MARKS].text);
        else
            pp_buf_char(out, bytes[i] ? (char)bytes[i] : ' ');
    }
    pp_buf_char(out, 'z');
}

static void add_message(cJSON *list, const char *role, struct hostile_input *in, bool harmless)
{
    struct pp_buf words = {0};
    cJSON *m = cJSON_CreateObject();
    put_words(&words, in, harmless);
    cJSON_AddStringToObject(m, "role", role);
    cJSON_AddStringToObject(m, "content", pp_buf_cstr(&words));
    cJSON_AddItemToArray(list, m);
    pp_buf_free(&words);
}

/* How many control tokens the prompt has; -1: rendering failed. */
static int64_t count(const struct pp_tokenizer *t, const struct pp_template *tmpl, unsigned how,
                     struct hostile_input in, bool harmless)
{
    static const struct pp_reasoning none;
    struct pp_buf begun = {0};
    struct pp_error err;
    cJSON *list = cJSON_CreateArray();
    int32_t *ids;
    size_t n;
    int64_t controls = 0;
    if (how & SYSTEM)
        add_message(list, "system", &in, harmless);
    if (how & BEGUN)
        put_words(&begun, &in, harmless);
    for (int i = 0; i < MOST && (i == 0 || in.size); i += 2) {
        if (i)
            add_message(list, "assistant", &in, harmless || !(how & MODEL));
        add_message(list, "user", &in, harmless);
    }
    char *json = cJSON_PrintUnformatted(list);
    const struct pp_prompt_input prompt = {.tokenizer = t, .tmpl = tmpl, .messages_json = json, .reasoning = &none,
                                           .continue_text = how & BEGUN ? pp_buf_cstr(&begun) : NULL,
                                           .now = 1773500966};
    const enum pp_code code = pp_prompt_tokens(&prompt, &ids, &n, &err);
    for (size_t i = 0; !code && i < n; i++)
        controls += pp_find_marker(t, tmpl, !(how & (SYSTEM | MODEL | BEGUN)), &ids[i], 1, NULL, 0) >= 0;
    if (!code)
        pp_free(ids);
    cJSON_free(json);
    cJSON_Delete(list);
    pp_buf_free(&begun);
    return code ? -1 : controls;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input in = {data, size};
    const struct pp_template *tmpl = templates[hostile_byte(&in) % n_templates];
    const unsigned how = hostile_byte(&in);
    const struct pp_tokenizer *t = tokenizers[how & STRIPS ? 1 : 0];
    const int64_t wanted = count(t, tmpl, how, in, true), got = count(t, tmpl, how, in, false);
    if (got != wanted) {
        fprintf(stderr, "%lld control tokens, not %lld\n", (long long)got, (long long)wanted);
        abort();
    }
    return 0;
}
