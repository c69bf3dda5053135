/* template_builtin.c - chat templates for models that bring none of their own. A system message is folded into the
 * first user message where the family has no role for it. */
#include <string.h>

#include "engine/text.h"

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

static const char plain[] =
    "{{- bos_token }}"
    "{%- for m in messages %}"
    "{{- m.role | capitalize ~ ': ' ~ m.content | trim ~ '\\n\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'Assistant:' }}{%- endif %}";

static const struct {
    const char *name, *source;
} builtins[] = {{"chatml", chatml}, {"llama3", llama3}, {"llama2", llama2}, {"mistral", mistral},
                {"gemma", gemma},   {"phi3", phi3},     {"plain", plain}};

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
