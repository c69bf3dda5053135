/* cmd_text.c - pippin tokenize, detokenize, template: converts between text and token ids. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/source.h"
#include "src/cmd_common.h"
#include "src/commands.h"
#include "src/prompt.h"

/* --- tokenize --------------------------------------------------------------------------------------------- */

static enum pp_code open_tokenizer(const struct pp_options *o, const struct pp_paths *p, struct pp_tokenizer **t,
                                   struct pp_error *err)
{
    char path[1024];
    *t = NULL;
    enum pp_code code = pp_cli_model_path(o, p, path, sizeof path, err);
    return code ? code : pp_tokenizer_open(path, t, err);
}

static enum pp_code tokenize(const struct pp_options *o, const struct pp_paths *p, struct pp_error *err)
{
    struct pp_tokenizer *t = NULL;
    struct pp_buf text = {0}, out = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    unsigned flags = (o->bos ? PP_TOKENIZE_BOS : 0u) | (o->special ? PP_TOKENIZE_SPECIAL : 0u);
    enum pp_code code = pp_cli_args(o, 0, 0, "", err);
    if (!code)
        code = open_tokenizer(o, p, &t, err);
    if (!code)
        code = pp_cli_input(o, &text, err);
    if (!code)
        code = pp_tokenize(t, pp_buf_cstr(&text), text.len, flags, &ids, &n, err);
    if (!code && o->count) {
        printf("%zu\n", n);
    } else if (!code) {
        pp_buf_char(&out, '[');
        for (size_t i = 0; i < n; i++)
            pp_buf_fmt(&out, i ? ",%d" : "%d", ids[i]);
        pp_buf_str(&out, "]\n");
        if (out.bad)
            code = pp_fail_nomem(err, "the list of ids");
        else
            fwrite(out.data, 1, out.len, stdout);
    }
    pp_free(ids);
    pp_buf_free(&out);
    pp_buf_free(&text);
    pp_tokenizer_free(t);
    return code;
}

int pp_cmd_tokenize(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    pp_cli_begin();
    return pp_cli_end(tokenize(o, p, &err), &err);
}

/* --- detokenize ------------------------------------------------------------------------------------------- */

static enum pp_code detokenize_line(const struct pp_tokenizer *t, const char *line, size_t len, bool special,
                                    struct pp_buf *text, struct pp_error *err)
{
    int32_t *ids;
    size_t n;
    enum pp_code code = pp_cli_parse_ids(line, len, &ids, &n, err);
    if (code)
        return code;
    for (size_t i = 0; !code && i < n; i++)
        if (ids[i] >= pp_tokenizer_n(t))
            code = pp_fail(err, PP_ERR_USAGE, "token id %d is outside the vocabulary of %d tokens", ids[i],
                           pp_tokenizer_n(t));
    if (!code) {
        pp_buf_clear(text);
        pp_detokenize(t, ids, n, special, text);
        if (text->bad)
            code = pp_fail_nomem(err, "the text");
    }
    pp_free(ids);
    return code;
}

/* Texts are separated by line feeds, without one after the last: a single list gives exactly the text that it was
 * made from. */
static enum pp_code detokenize_all(const struct pp_options *o, const struct pp_tokenizer *t, const struct pp_buf *in,
                                   struct pp_error *err)
{
    struct pp_buf text = {0}, quoted = {0};
    enum pp_code code = PP_OK;
    size_t line = 0;
    for (size_t at = 0; !code && at < in->len;) {
        const char *begin = in->data + at, *end = memchr(begin, '\n', in->len - at);
        size_t len = end ? (size_t)(end - begin) : in->len - at;
        at += len + 1;
        code = detokenize_line(t, begin, len, o->special, &text, err);
        if (code) {
            pp_fail_prefix(err, "line %zu", line + 1);
        } else if (o->json) {
            pp_buf_clear(&quoted);
            pp_cli_json_string(&quoted, pp_buf_cstr(&text), text.len);
            puts(pp_buf_cstr(&quoted));
        } else {
            if (line)
                putchar('\n');
            pp_cli_print(pp_buf_cstr(&text), text.len);
        }
        line++;
    }
    pp_buf_free(&quoted);
    pp_buf_free(&text);
    return code;
}

static enum pp_code detokenize(const struct pp_options *o, const struct pp_paths *p, struct pp_error *err)
{
    struct pp_tokenizer *t = NULL;
    struct pp_buf in = {0};
    enum pp_code code = pp_cli_args(o, 0, 0, "", err);
    if (!code)
        code = open_tokenizer(o, p, &t, err);
    if (!code)
        code = pp_cli_input(o, &in, err);
    pp_cli_drop_mark(&in);
    if (!code)
        code = detokenize_all(o, t, &in, err);
    pp_buf_free(&in);
    pp_tokenizer_free(t);
    return code;
}

int pp_cmd_detokenize(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    pp_cli_begin();
    return pp_cli_end(detokenize(o, p, &err), &err);
}

/* --- template --------------------------------------------------------------------------------------------- */

/* The time that the template sees, such as "2026-03-14 15:09:26". */
static enum pp_code parse_now(const char *text, int64_t *now, struct pp_error *err)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%d %H:%M:%S", &tm);
    if (!rest || *rest)
        return pp_fail(err, PP_ERR_USAGE, "--now needs a time such as \"2026-03-14 15:09:26\", not \"%s\"", text);
    *now = (int64_t)timegm(&tm);
    return PP_OK;
}

/* The inputs of a template; zero-initialise, release with parts_free. */
struct parts {
    struct pp_buf source, name, messages, tools, bos, eos;
};

static void parts_free(struct parts *t)
{
    pp_buf_free(&t->source);
    pp_buf_free(&t->name);
    pp_buf_free(&t->messages);
    pp_buf_free(&t->tools);
    pp_buf_free(&t->bos);
    pp_buf_free(&t->eos);
}

/* The model's own template or, if it has none, the bundled one that its vocabulary suggests, which is reported. */
static enum pp_code model_template(const struct pp_source *s, const struct pp_tokenizer *tok, const char *path,
                                   bool tools, struct pp_buf *source, struct pp_error *err)
{
    const char *own = tools ? pp_source_tool_template(s) : pp_source_chat_template(s), *why, *name = NULL;
    if (!own && (name = pp_template_evident(tok, pp_source_hparams(s)->name, path, &why)))
        pp_cli_say("%s has no chat template; using %s, because of %s (--chat-template-file sets another)", path, name,
                   why);
    if (!own && !name)
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s has no chat template; give one with --chat-template-file", path);
    pp_buf_str(source, own ? own : pp_template_builtin(name));
    return PP_OK;
}

static enum pp_code parts_from_model(const struct pp_options *o, const struct pp_paths *p, struct parts *t,
                                     struct pp_error *err)
{
    struct pp_source *s = NULL;
    struct pp_tokenizer *tok = NULL;
    struct pp_error why;
    char path[1024];
    enum pp_code code = pp_cli_model_path(o, p, path, sizeof path, err);
    if (!code)
        code = pp_source_open(path, &s, err);
    enum pp_code read = code ? PP_OK : pp_tokenizer_from_source(s, &tok, &why);
    if (read == PP_ERR_NOMEM)
        code = pp_fail(err, read, "%s", why.text);
    else if (read && read != PP_ERR_NOT_FOUND && !(o->bos_text && o->eos_text))
        pp_cli_say("the texts of BOS and EOS are empty (--bos-text and --eos-text set them): %s", why.text);
    if (!code && !o->chat_template_file) {
        code = model_template(s, tok, path, o->tools != NULL, &t->source, err);
        pp_buf_fmt(&t->name, "the chat template of %s", path);
    }
    if (tok) { /* without a vocabulary, both are empty */
        pp_cli_token(tok, pp_tokenizer_bos(tok), &t->bos);
        pp_cli_token(tok, pp_tokenizer_eos(tok), &t->eos);
    }
    pp_tokenizer_free(tok);
    pp_source_close(s);
    return code;
}

/* Errors inside the array are reported by the template's reader. */
static bool is_array(const struct pp_buf *json)
{
    const char *text = pp_buf_cstr(json);
    return text[strspn(text, " \t\r\n")] == '[';
}

/* Each message must have a role and content, which templates access unconditionally. */
static enum pp_code check_messages(const struct pp_buf *json, struct pp_error *err)
{
    static const char example[] = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
    int i = 0;
    if (!is_array(json))
        return pp_fail(err, PP_ERR_USAGE, "the messages are not a JSON array; send one such as %s", example);
    cJSON *list = cJSON_ParseWithLength(json->data, json->len);
    const cJSON *message = list ? list->child : NULL; /* if it is not JSON, the template's reader reports that */
    for (; cJSON_IsObject(message); message = message->next)
        i++;
    cJSON_Delete(list);
    return message ? pp_fail(err, PP_ERR_USAGE, "message %d is not a JSON object; write messages like this: %s", i + 1,
                             example)
                   : PP_OK;
}

static enum pp_code parts_gather(const struct pp_options *o, const struct pp_paths *p, struct parts *t,
                                 struct pp_error *err)
{
    enum pp_code code = PP_OK;
    if (!o->chat_template_file || o->model[0])
        code = parts_from_model(o, p, t, err);
    if (!code && o->chat_template_file) {
        pp_buf_str(&t->name, o->chat_template_file);
        code = pp_cli_read(o->chat_template_file, &t->source, err);
    }
    if (!code && o->tools)
        code = pp_cli_read(o->tools, &t->tools, err);
    pp_cli_drop_mark(&t->tools);
    if (o->bos_text) {
        pp_buf_clear(&t->bos);
        pp_buf_str(&t->bos, o->bos_text);
    }
    if (o->eos_text) {
        pp_buf_clear(&t->eos);
        pp_buf_str(&t->eos, o->eos_text);
    }
    if (!code)
        code = pp_cli_input(o, &t->messages, err);
    pp_cli_drop_mark(&t->messages);
    if (!code && (t->source.bad || t->name.bad || t->messages.bad || t->tools.bad || t->bos.bad || t->eos.bad))
        code = pp_fail_nomem(err, "the messages");
    if (!code && o->tools && !is_array(&t->tools))
        code = pp_fail(err, PP_ERR_USAGE, "%s does not contain a JSON array of tools; leave --tools out if there are "
                                          "none",
                       o->tools);
    return code ? code : check_messages(&t->messages, err);
}

static enum pp_code template_render(const struct pp_options *o, const struct pp_paths *p, struct pp_error *err)
{
    struct parts t = {0};
    struct pp_template *tmpl = NULL;
    struct pp_buf out = {0};
    int64_t now = pp_prompt_now();
    enum pp_code code = pp_cli_args(o, 0, 0, "", err);
    if (!code && o->now)
        code = parse_now(o->now, &now, err);
    if (!code)
        code = parts_gather(o, p, &t, err);
    if (!code)
        code = pp_template_parse(pp_buf_cstr(&t.source), t.source.len, pp_buf_cstr(&t.name), &tmpl, err);
    if (!code) {
        struct pp_template_input in = {
            .messages_json = pp_buf_cstr(&t.messages),
            .tools_json = o->tools ? pp_buf_cstr(&t.tools) : NULL,
            .bos_text = pp_buf_cstr(&t.bos),
            .eos_text = pp_buf_cstr(&t.eos),
            .add_generation_prompt = !o->no_generation_prompt,
            .now = now,
        };
        code = pp_template_render(tmpl, &in, &out, err);
    }
    if (!code && out.bad)
        code = pp_fail_nomem(err, "the prompt");
    if (!code)
        pp_cli_print(pp_buf_cstr(&out), out.len);
    pp_buf_free(&out);
    pp_template_free(tmpl);
    parts_free(&t);
    return code;
}

int pp_cmd_template(const struct pp_options *o, const struct pp_paths *p)
{
    struct pp_error err = {0};
    pp_cli_begin();
    return pp_cli_end(template_render(o, p, &err), &err);
}
