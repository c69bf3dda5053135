/* template_builtin.c - chat templates for models without one, and how to recognise which of them a model needs. In
 * families without a role for it, a system message is put into the first user message. Sources: the models' cards and
 * their own templates; for Alpaca and Vicuna the prompts of their training scripts. */
#include <string.h>

#include "engine/base/word.h"
#include "engine/hparams.h"
#include "engine/text.h"
#include "engine/tokenizer_internal.h"

#define SYSTEM_INTO_FIRST_USER                                                                                        \
    "{%- set ns = namespace(system='') %}"                                                                            \
    "{%- for m in messages if m.role == 'system' %}"                                                                  \
    "{%- set ns.system = ns.system ~ m.content | trim ~ '\\n\\n' %}"                                                  \
    "{%- endfor %}"

static const char chatml[] =
    "{%- for m in messages %}"
    "{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content | trim ~ '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

static const char llama3[] =
    "{{- bos_token }}"
    "{%- for m in messages %}"
    "{{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ m.content | trim ~ '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}";

static const char llama2[] =
    SYSTEM_INTO_FIRST_USER
    "{%- for m in messages if m.role != 'system' %}"
    "{%- if m.role == 'user' %}"
    "{{- bos_token ~ '[INST] ' }}"
    "{%- if ns.system %}"
    "{{- '<<SYS>>\\n' ~ ns.system | trim ~ '\\n<</SYS>>\\n\\n' }}{%- set ns.system = '' %}"
    "{%- endif %}"
    "{{- m.content | trim ~ ' [/INST]' }}"
    "{%- else %}{{- ' ' ~ m.content | trim ~ ' ' ~ eos_token }}{%- endif %}"
    "{%- endfor %}";

static const char mistral[] =
    SYSTEM_INTO_FIRST_USER
    "{{- bos_token }}"
    "{%- for m in messages if m.role != 'system' %}"
    "{%- if m.role == 'user' %}"
    "{{- '[INST] ' ~ ns.system ~ m.content | trim ~ ' [/INST]' }}{%- set ns.system = '' %}"
    "{%- else %}{{- ' ' ~ m.content | trim ~ eos_token }}{%- endif %}"
    "{%- endfor %}";

static const char gemma[] =
    SYSTEM_INTO_FIRST_USER
    "{{- bos_token }}"
    "{%- for m in messages if m.role != 'system' %}"
    "{{- '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n' }}"
    "{%- if m.role == 'user' %}{{- ns.system }}{%- set ns.system = '' %}{%- endif %}"
    "{{- m.content | trim ~ '<end_of_turn>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}";

static const char phi3[] =
    "{%- for m in messages %}"
    "{{- '<|' ~ m.role ~ '|>\\n' ~ m.content | trim ~ '<|end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}";

static const char zephyr[] =
    "{{- bos_token }}"
    "{%- for m in messages %}"
    "{{- '<|' ~ m.role ~ '|>\\n' ~ m.content | trim ~ eos_token ~ '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}";

/* These have a usual system message. */
#define SYSTEM_OR(usual)                                                                                              \
    SYSTEM_INTO_FIRST_USER                                                                                            \
    "{%- if not ns.system %}{%- set ns.system = '" usual "' %}{%- endif %}"                                           \
    "{{- bos_token ~ ns.system | trim }}"

static const char alpaca[] =
    SYSTEM_OR("Below is an instruction that describes a task. Write a response that appropriately completes the "
              "request.")
    "{{- '\\n\\n' }}"
    "{%- for m in messages if m.role != 'system' %}"
    "{%- if m.role == 'user' %}{{- '### Instruction:\\n' ~ m.content | trim ~ '\\n\\n' }}"
    "{%- else %}{{- '### Response:\\n' ~ m.content | trim ~ eos_token ~ '\\n\\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '### Response:\\n' }}{%- endif %}";

static const char vicuna[] =
    SYSTEM_OR("A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
              "detailed, and polite answers to the user\\'s questions.")
    "{{- ' ' }}"
    "{%- for m in messages if m.role != 'system' %}"
    "{%- if m.role == 'user' %}{{- 'USER: ' ~ m.content | trim ~ ' ' }}"
    "{%- else %}{{- 'ASSISTANT: ' ~ m.content | trim ~ eos_token }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{%- endif %}";

static const char command_r[] =
    "{{- bos_token }}"
    "{%- set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}"
    "{%- for m in messages %}"
    "{{- '<|START_OF_TURN_TOKEN|><|' ~ names.get(m.role, 'USER') ~ '_TOKEN|>' ~ m.content | trim }}"
    "{{- '<|END_OF_TURN_TOKEN|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif %}";

/* Its bars are full-width characters. */
#define BAR "\xef\xbd\x9c"

static const char deepseek[] =
    SYSTEM_INTO_FIRST_USER
    "{{- bos_token ~ ns.system | trim }}"
    "{%- for m in messages if m.role != 'system' %}"
    "{%- if m.role == 'user' %}{{- '<" BAR "User" BAR ">' ~ m.content | trim }}"
    "{%- else %}{{- '<" BAR "Assistant" BAR ">' ~ m.content | trim ~ eos_token }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<" BAR "Assistant" BAR ">' }}{%- endif %}";

/* From V3.1 on a token tells whether thoughts follow, and earlier turns keep only their answers. V3.2 has code instead
 * of a template; its tool calls are not supported here. */
static const char deepseek_v3_1[] =
    SYSTEM_INTO_FIRST_USER
    "{%- set thinks = enable_thinking if enable_thinking is defined else thinking | default(false) %}"
    "{{- bos_token ~ ns.system | trim }}"
    "{%- for m in messages if m.role != 'system' %}"
    "{%- if m.role == 'user' %}{{- '<" BAR "User" BAR ">' ~ m.content | trim }}"
    "{%- else %}{{- '<" BAR "Assistant" BAR "></think>' ~ m.content | trim ~ eos_token }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<" BAR "Assistant" BAR ">' ~ ('<think>' if thinks else '</think>') }}"
    "{%- endif %}";

/* V4: the user's words and the tool results between two answers are one turn, with results in the order of the calls.
 * Thoughts are kept from the last such turn on, and all of them if there are tools. The instructions about tools are
 * those that the model was trained with: encoding_dsv4.py of its publication, whose JSON is read as objects here. */
#define DSML BAR "DSML" BAR
#define TOOL_TAGS(name, more)                                                                                         \
    "<" DSML "invoke name=\"" name "\">\\n" more "...\\n</" DSML "invoke>\\n"

static const char deepseek_v4[] =
    "{%- set thinks = enable_thinking if enable_thinking is defined else thinking | default(false) %}"
    "{%- set talk = messages | rejectattr('role', 'in', ['system', 'developer']) | list %}"
    "{%- set ns = namespace(system=[], last=-1, ids=[], parts=[]) %}"
    "{%- for m in messages if m.role in ['system', 'developer'] and m.content %}"
    "{%- set ns.system = ns.system + [m.content] %}"
    "{%- endfor %}"
    "{%- for m in talk %}{%- if m.role != 'assistant' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- macro said(content) %}"
    "{%- if content is string %}{{- content }}"
    "{%- elif content %}"
    "{{- content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('\\n\\n') }}"
    "{%- endif %}"
    "{%- endmacro %}"
    "{{- bos_token ~ ns.system | join('\\n\\n') }}"
    "{%- if tools %}"
    "{{- '\\n\\n## Tools\\n\\nYou have access to a set of tools to help answer the user\\'s question. "
    "You can invoke tools by writing a \"<" DSML "tool_calls>\" block like the following:\\n\\n<" DSML "tool_calls>\\n"
    TOOL_TAGS("$TOOL_NAME", "<" DSML "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
                            "</" DSML "parameter>\\n")
    TOOL_TAGS("$TOOL_NAME2", "")
    "</" DSML "tool_calls>\\n\\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, "
    "arrays, objects), pass the value in JSON format and set `string=\"false\"`.\\n\\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "
    "<think>...</think> BEFORE any tool calls or final response.\\n\\n"
    "Otherwise, output directly after </think> with tool calls or final response.\\n\\n"
    "### Available Tool Schemas\\n\\n' }}"
    "{%- for t in tools %}{{- (t.function | default(t)) | tojson ~ '\\n' }}{%- endfor %}"
    "{{- '\\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\\n' }}"
    "{%- endif %}"
    "{%- for m in talk %}"
    "{%- if m.role != 'assistant' %}"
    "{%- set part = {'tool': m.role == 'tool', 'text': said(m.content), 'at': 0} %}"
    "{%- if m.tool_call_id in ns.ids %}{%- set part = dict(part, at=ns.ids.index(m.tool_call_id)) %}{%- endif %}"
    "{%- set ns.parts = ns.parts + [part] %}"
    "{%- if loop.last or loop.nextitem.role == 'assistant' %}"
    "{%- set back = namespace(results=ns.parts | selectattr('tool') | sort(attribute='at'), n=0) %}"
    "{{- '<" BAR "User" BAR ">' }}"
    "{%- for p in ns.parts %}"
    "{{- '\\n\\n' if not loop.first }}"
    "{%- if p.tool %}"
    "{{- '<tool_result>' ~ back.results[back.n].text ~ '</tool_result>' }}{%- set back.n = back.n + 1 %}"
    "{%- else %}{{- p.text }}{%- endif %}"
    "{%- endfor %}"
    "{%- set ns.parts = [] %}"
    "{{- '' if loop.last else '<" BAR "Assistant" BAR ">' ~ "
    "('<think>' if thinks and (tools or loop.index > ns.last) else '</think>') }}"
    "{%- endif %}"
    "{%- else %}"
    "{%- set ns.ids = m.tool_calls | default([], true) | map(attribute='id') | list %}"
    "{%- if thinks and (tools or loop.index0 > ns.last) %}{{- m.reasoning_content | default('', true) ~ '</think>' }}"
    "{%- endif %}"
    "{{- said(m.content) }}"
    "{%- for call in m.tool_calls | default([], true) %}"
    "{%- set f = call.function | default(call) %}"
    "{%- if f.arguments is not mapping %}{{- raise_exception('the arguments of a call of a tool are an object') }}"
    "{%- endif %}"
    "{{- '\\n\\n<" DSML "tool_calls>\\n' if loop.first }}"
    "{{- '<" DSML "invoke name=\"' ~ f.name ~ '\">\\n' }}"
    "{%- for name, value in f.arguments | items %}"
    "{{- '<" DSML "parameter name=\"' ~ name ~ '\" string=\"' ~ ('true' if value is string else 'false') ~ '\">' ~ "
    "(value if value is string else value | tojson) ~ '</" DSML "parameter>\\n' }}"
    "{%- else %}{{- '\\n' }}{%- endfor %}"
    "{{- '</" DSML "invoke>\\n' ~ ('</" DSML "tool_calls>' if loop.last else '') }}"
    "{%- endfor %}"
    "{{- eos_token }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<" BAR "Assistant" BAR ">' ~ ('<think>' if thinks else '</think>') }}"
    "{%- endif %}";

/* gpt-oss: the usual system message is the developer's, and answers are in the channel `final`. */
static const char harmony[] =
    "{{- '<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\\n"
    "Knowledge cutoff: 2024-06\\nCurrent date: ' ~ strftime_now('%Y-%m-%d') ~ '\\n\\n"
    "Reasoning: ' ~ reasoning_effort | default('medium') ~ '\\n\\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>' }}"
    "{%- for m in messages %}"
    "{%- if m.role == 'system' %}"
    "{{- '<|start|>developer<|message|># Instructions\\n\\n' ~ m.content | trim ~ '\\n\\n<|end|>' }}"
    "{%- elif m.role == 'assistant' %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' ~ m.content | trim ~ '<|end|>' }}"
    "{%- else %}{{- '<|start|>user<|message|>' ~ m.content | trim ~ '<|end|>' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}";

static const char plain[] =
    "{{- bos_token }}"
    "{%- for m in messages %}"
    "{{- m.role | capitalize ~ ': ' ~ m.content | trim ~ '\\n\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'Assistant:' }}{%- endif %}";

static const struct {
    const char *name, *source;
} builtins[] = {{"chatml", chatml}, {"llama3", llama3},       {"llama2", llama2},     {"mistral", mistral},
                {"gemma", gemma},   {"phi3", phi3},           {"zephyr", zephyr},     {"alpaca", alpaca},
                {"vicuna", vicuna}, {"command-r", command_r}, {"deepseek", deepseek},
                {"deepseek-v3.1", deepseek_v3_1}, {"deepseek-v4", deepseek_v4}, {"gpt-oss", harmony},
                {"plain", plain}};

const char *pp_template_builtin_name(size_t i)
{
    return i < sizeof builtins / sizeof *builtins ? builtins[i].name : NULL;
}

const char *pp_template_builtin(const char *name)
{
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strcmp(builtins[i].name, name) == 0)
            return builtins[i].source;
    return NULL;
}

/* --- which one --------------------------------------------------------------------------------------------------- */

/* A row fits if all its tokens were added to the vocabulary, and `not` was not. */
static const struct {
    const char *name, *tokens[3], *not, *why;
} by_tokens[] = {
    {"llama3", {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}, NULL,
     "<|start_header_id|> in its vocabulary"},
    {"chatml", {"<|im_start|>", "<|im_end|>"}, "<|im_sep|>", "<|im_start|> in its vocabulary"},
    {"gemma", {"<start_of_turn>", "<end_of_turn>"}, NULL, "<start_of_turn> in its vocabulary"},
    {"command-r", {"<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"}, NULL,
     "<|START_OF_TURN_TOKEN|> in its vocabulary"},
    {"deepseek", {"<" BAR "User" BAR ">", "<" BAR "Assistant" BAR ">"}, "</think>",
     "<" BAR "Assistant" BAR "> in its vocabulary"},
    {"deepseek-v3.1", {"<" BAR "User" BAR ">", "<" BAR "Assistant" BAR ">", "</think>"},
     "<" BAR "latest_reminder" BAR ">", "<" BAR "Assistant" BAR "> and </think> in its vocabulary"},
    {"deepseek-v4", {"<" BAR "Assistant" BAR ">", BAR "DSML" BAR, "<" BAR "latest_reminder" BAR ">"}, NULL,
     BAR "DSML" BAR " in its vocabulary"},
    {"gpt-oss", {"<|start|>", "<|channel|>", "<|message|>"}, NULL, "<|channel|> in its vocabulary"},
    {"phi3", {"<|user|>", "<|assistant|>", "<|end|>"}, NULL, "<|user|> and <|end|> in its vocabulary"},
    {"mistral", {"[INST]", "[/INST]"}, NULL, "[INST] in its vocabulary"},
};

/* Formats written in ordinary tokens: recognised by two words in the model's name. */
static const struct {
    const char *name, *words[2];
} by_names[] = {
    {"zephyr", {"zephyr", ""}},         {"zephyr", {"tinyllama", "chat"}}, {"vicuna", {"vicuna", ""}},
    {"alpaca", {"alpaca", ""}},         {"llama2", {"llama-2", "chat"}},   {"llama2", {"llama2", "chat"}},
    {"mistral", {"mistral", "instruct"}}, {"mistral", {"mixtral", "instruct"}},
};

/* Whether a token is added: merging never produces it from text. */
static bool is_added(const struct pp_tokenizer *t, const char *text)
{
    const int32_t id = text ? pp_tokenizer_find(t, text, strlen(text)) : -1;
    return id >= 0 && (t->type[id] == TOK_CONTROL || t->type[id] == TOK_USER);
}

static bool has_tokens(const struct pp_tokenizer *t, size_t row)
{
    for (int i = 0; i < 3 && by_tokens[row].tokens[i]; i++)
        if (!is_added(t, by_tokens[row].tokens[i]))
            return false;
    return !is_added(t, by_tokens[row].not);
}

/* The format that the vocabulary tells; none if it fits two. */
static const char *of_vocabulary(const struct pp_tokenizer *t, const char **why)
{
    const char *found = NULL;
    for (size_t i = 0; i < sizeof by_tokens / sizeof *by_tokens; i++) {
        if (!has_tokens(t, i))
            continue;
        if (found)
            return NULL;
        found = by_tokens[i].name;
        *why = by_tokens[i].why;
    }
    return found;
}

static const char *of_name(const char *name)
{
    char lower[256];
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof lower; n++)
        lower[n] = name[n] == ' ' || name[n] == '_' ? '-' : pp_lower(name[n]);
    lower[n] = 0;
    for (size_t i = 0; i < sizeof by_names / sizeof *by_names; i++)
        if (strstr(lower, by_names[i].words[0]) && strstr(lower, by_names[i].words[1]))
            return by_names[i].name;
    return NULL;
}

const char *pp_template_evident(const struct pp_tokenizer *t, const char *name, const char *path, const char **why)
{
    char file[256];
    const char *found = t ? of_vocabulary(t, why) : NULL;
    if (found)
        return found;
    pp_name_of_path(path, file, sizeof file);
    *why = "its name";
    found = of_name(name);
    return found ? found : of_name(file);
}

const char *pp_template_instead(const struct pp_tokenizer *t, const char *name, const char *path, const char **why)
{
    const char *found = pp_template_evident(t, name, path, why);
    if (!found)
        *why = NULL;
    return found ? found : "plain";
}
