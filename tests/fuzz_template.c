/* fuzz_template.c - libFuzzer target: the bytes are a chat template, rendered with a fixed conversation. */
#include "engine/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct pp_template_input in = {
        .messages_json = "[{\"role\": \"system\", \"content\": \"Be <terse>.\"},"
                         "{\"role\": \"user\", \"content\": \" H\\u00e9llo \"},"
                         "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"abc123456\","
                         "\"type\": \"function\", \"function\": {\"name\": \"get\","
                         "\"arguments\": {\"city\": \"Paris\", \"days\": 2.5}}}]},"
                         "{\"role\": \"tool\", \"content\": \"{}\"}, {\"role\": \"user\", \"content\": null}]",
        .tools_json = "[{\"type\": \"function\", \"function\": {\"name\": \"get\", \"description\": \"Gets.\","
                      "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}},"
                      "\"required\": [\"city\"]}}}]",
        .extra_json = "{\"x\": 3, \"s\": \"a,b\", \"l\": [3, 1, 2], \"d\": {\"k\": 1.5, \"n\": [[1, 2]]}}",
        .bos_text = "<s>",
        .eos_text = "</s>",
        .add_generation_prompt = true,
        .now = 1773500966,
    };
    struct pp_template *t;
    struct pp_buf out = {0};
    struct pp_error err;
    if (pp_template_parse((const char *)data, size, "fuzz", &t, &err) != PP_OK)
        return 0;
    pp_template_render(t, &in, &out, &err);
    pp_template_free(t);
    pp_buf_free(&out);
    return 0;
}
