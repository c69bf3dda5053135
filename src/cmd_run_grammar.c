/* cmd_run_grammar.c - the grammar that the answer of `pippin run` must match. */
#include <string.h>

#include "src/cmd_run.h"

/* Whether the option's value is a schema and not the name of a file. */
static bool is_schema(const char *value)
{
    value += strspn(value, " \t\r\n");
    return *value == '{' || strcmp(value, "true") == 0 || strcmp(value, "false") == 0;
}

static enum pp_code from_schema(const char *value, struct pp_grammar **out, struct pp_error *err)
{
    struct pp_buf text = {0};
    if (is_schema(value))
        return pp_grammar_from_schema(value, strlen(value), "--json-schema", out, err);
    enum pp_code code = pp_cli_read(value, &text, err);
    pp_cli_drop_mark(&text);
    if (!code)
        code = pp_grammar_from_schema(pp_buf_cstr(&text), text.len, value, out, err);
    pp_buf_free(&text);
    return code;
}

enum pp_code run_grammar(const struct pp_options *o, struct pp_grammar **out, struct pp_error *err)
{
    struct pp_buf text = {0};
    *out = NULL;
    if (o->json_schema)
        return from_schema(o->json_schema, out, err);
    if (!o->grammar_file)
        return PP_OK;
    enum pp_code code = pp_cli_read(o->grammar_file, &text, err);
    if (!code)
        code = pp_grammar_parse(pp_buf_cstr(&text), text.len, o->grammar_file, out, err);
    pp_buf_free(&text);
    return code;
}
