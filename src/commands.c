/* commands.c - the table of the commands that need no full screen. */
#include "src/commands.h"

#include <string.h>

pp_command_fn *pp_command_find(const char *name)
{
    static const struct {
        const char *name;
        pp_command_fn *run;
    } commands[] = {
        {"run", pp_cmd_run},
        {"sessions", pp_cmd_sessions},
        {"convert", pp_cmd_convert},
        {"imatrix", pp_cmd_imatrix},
        {"quantize", pp_cmd_quantize},
        {"lora", pp_cmd_lora},
        {"models", pp_cmd_models},
        {"tokenize", pp_cmd_tokenize},
        {"detokenize", pp_cmd_detokenize},
        {"template", pp_cmd_template},
        {"logits", pp_cmd_logits},
        {"perplexity", pp_cmd_perplexity},
        {"bench", pp_cmd_bench},
        {"embed", pp_cmd_embed},
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, name) == 0)
            return commands[i].run;
    return NULL;
}
