/* test_hostile_files.c - damaged and hostile files of models and adapters: truncated anywhere, with any number
 * replaced, with tensors of other types, with a million levels of nesting. The result is an error that names the file,
 * or a model that runs; never a crash. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/engine.h"
#include "engine/gguf.h"
#include "engine/safetensors.h"
#include "engine/text.h"
#include "tests/support.h"

static struct pp_error err;

/* --- files ------------------------------------------------------------------------------------------------------- */

struct bytes {
    char *data;
    size_t n;
};

static struct bytes read_all(const char *path)
{
    struct bytes b;
    assert_ok(pp_read_file(path, 64 << 20, &b.data, &b.n, &err), err);
    return b;
}

/* Runs thousands of times, so it does not use fsync. */
static void write_all(const char *path, const void *data, size_t n)
{
    unlink(path); /* may be a link */
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A folder of links to the files of a test data folder. */
static void linked_folder(const char *relative, char folder[300])
{
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                        "adapter_config.json", "adapter_model.safetensors"};
    static int serial;
    char from[1200], to[600];
    snprintf(folder, 300, "%s/linked-%d", test_tmpdir(), serial++);
    assert_int_equal(mkdir(folder, 0700), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(from, sizeof from, "%s/%s", testdata(relative), names[i]);
        snprintf(to, sizeof to, "%s/%s", folder, names[i]);
        if (access(from, R_OK) == 0)
            assert_int_equal(symlink(from, to), 0);
    }
}

/* Opens a model and, if that succeeds, reads two tokens with little memory. */
static enum pp_code run(const char *path)
{
    const struct pp_engine_options opt = {.n_threads = 1, .n_ctx = 64, .kv_memory = 1 << 24, .max_rows = 2};
    struct pp_model *m;
    struct pp_engine *e;
    struct pp_seq *s;
    enum pp_code code = pp_model_open(path, &m, &err);
    if (code)
        return code;
    code = pp_engine_new(m, &opt, NULL, NULL, &e, &err);
    if (!code) {
        code = pp_seq_new(e, &s, &err);
        if (!code) {
            const struct pp_row rows[2] = {
                {.seq = s, .token = 0, .parent = PP_PARENT_PREVIOUS},
                {.seq = s, .token = (int32_t)pp_model_info(m)->n_vocab - 1, .parent = PP_PARENT_PREVIOUS,
                 .out = PP_OUT_LOGITS}};
            code = pp_step(e, rows, 2, NULL, &err);
            pp_seq_free(s);
        }
        pp_engine_free(e);
    }
    pp_model_close(m);
    return code;
}

/* --- cut off anywhere -------------------------------------------------------------------------------------------- */

/* The next length to which n bytes are truncated: all lengths near both ends, about 80 in between. */
static size_t next_cut(size_t at, size_t n)
{
    const size_t step = n / 80 + 1, next = at < 64 || n - at <= 64 ? at + 1 : at + step;
    return at < n - 64 && next > n - 64 && n > 64 ? n - 64 : next;
}

/* how: the function that opens it. always: every truncation must fail, except those that remove at most `tail`
 * bytes. */
static void cut_anywhere(const char *file, enum pp_code (*how)(const char *), const char *opened, bool always,
                         size_t tail)
{
    const struct bytes b = read_all(file);
    for (size_t at = 0; at < b.n; at = next_cut(at, b.n)) {
        write_all(file, b.data, at);
        if (how(opened) == PP_OK && always && at + tail < b.n)
            fail_msg("%s is read with %zu of its %zu bytes", file, at, b.n);
    }
    write_all(file, b.data, b.n);
    assert_ok(how(opened), err);
    pp_free(b.data);
}

static enum pp_code open_adapter(const char *path)
{
    static struct pp_model *base;
    struct pp_adapter *a;
    if (!base)
        assert_ok(pp_model_open(testdata("architectures/llama"), &base, &err), err);
    if (!path) {
        pp_model_close(base);
        base = NULL;
        return PP_OK;
    }
    enum pp_code code = pp_adapter_load(base, path, &a, &err);
    if (!code)
        pp_adapter_free(a);
    return code;
}

static void cut_off(void **state)
{
    static const char *const folders[] = {"llama", "gptoss", "gpt2"};
    static const struct {
        const char *name;
        bool always;
    } files[] = {{"config.json", true}, {"model.safetensors", true}, {"tokenizer.json", true},
                 {"tokenizer_config.json", false}};
    char folder[300], path[600];
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "architectures/%s", folders[i]);
        linked_folder(path, folder);
        for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
            snprintf(path, sizeof path, "%s/%s", folder, files[k].name);
            /* JSON may lack the line feed at its end */
            cut_anywhere(path, run, folder, files[k].always, k == 1 ? 0 : 2);
        }
    }
    const struct bytes g = read_all(testdata("architectures/llama/model.gguf"));
    snprintf(path, sizeof path, "%s", test_path("cut.gguf"));
    write_all(path, g.data, g.n);
    cut_anywhere(path, run, path, true, 32); /* padding zeros */
    pp_free(g.data);
    const struct bytes a = read_all(testdata("architectures/llama/lora-alpha.gguf"));
    write_all(path, a.data, a.n);
    cut_anywhere(path, open_adapter, path, true, 32);
    pp_free(a.data);
    linked_folder("architectures/llama/lora-beta", folder);
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    cut_anywhere(path, open_adapter, folder, true, 2);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    cut_anywhere(path, open_adapter, folder, true, 0);
    open_adapter(NULL);
}

/* --- other numbers ----------------------------------------------------------------------------------------------- */

static const char *const odd_values[] = {
    "0", "-1", "1", "0.5", "3", "9223372036854775808", "-9223372036854775809", "1e308", "1e999", "-1e-320",
    "4294967296", "\"x\"", "null", "true", "[]", "{}", "[[]]", "\"\\u0000\"",
};

/* config.json with each of its values replaced in turn, also those of nested objects. */
static void odd_configs(const char *family)
{
    char folder[300], relative[100], path[600];
    snprintf(relative, sizeof relative, "architectures/%s", family);
    linked_folder(relative, folder);
    snprintf(path, sizeof path, "%s/config.json", folder);
    const struct bytes b = read_all(path);
    cJSON *config = cJSON_ParseWithLength(b.data, b.n);
    assert_non_null(config);
    for (const cJSON *item = config->child; item; item = item->next)
        for (size_t i = 0; i < sizeof odd_values / sizeof *odd_values; i++) {
            cJSON *other = cJSON_Duplicate(config, true);
            cJSON_ReplaceItemInObjectCaseSensitive(other, item->string, cJSON_CreateRaw(odd_values[i]));
            char *text = cJSON_PrintUnformatted(other);
            write_all(path, text, strlen(text));
            run(folder);
            cJSON_free(text);
            cJSON_Delete(other);
        }
    cJSON_Delete(config);
    pp_free(b.data);
}

static void numbers_in_configs(void **state)
{
    static const char *const families[] = {"llama-yarn", "gemma3", "gptoss", "phi3", "qwen3moe", "cohere2", "gpt2"};
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        odd_configs(families[i]);
}

/* Each number in a GGUF file's metadata is replaced. */
static void numbers_in_files(void **state)
{
    static const char *const families[] = {"llama-yarn", "gemma2", "phi3", "mixtral", "gpt2"};
    static const uint32_t odd[] = {0, 1, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FC00000 /* NaN */,
                                   0x7F800000 /* infinity */, 0xBF800000 /* -1 */, 0x00000001, 0x7F7FFFFF};
    char relative[100], path[300];
    (void)state;
    if (!testdata("architectures"))
        skip();
    snprintf(path, sizeof path, "%s", test_path("odd.gguf"));
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct pp_gguf *g;
        snprintf(relative, sizeof relative, "architectures/%s/model.gguf", families[i]);
        struct bytes b = read_all(testdata(relative));
        assert_ok(pp_gguf_open(testdata(relative), &g, &err), err);
        size_t n_numbers = 0;
        for (size_t k = 0; k < pp_gguf_n_kv(g); k++) {
            const struct pp_str key = pp_gguf_kv_key(g, k);
            uint32_t type, kept;
            char *at = memmem(b.data, b.n, key.data, key.len);
            assert_non_null(at);
            memcpy(&type, at + key.len, sizeof type);
            if (type != PP_GGUF_U32 && type != PP_GGUF_I32 && type != PP_GGUF_F32)
                continue;
            n_numbers++;
            memcpy(&kept, at + key.len + 4, sizeof kept);
            for (size_t v = 0; v < sizeof odd / sizeof *odd; v++) {
                memcpy(at + key.len + 4, &odd[v], sizeof odd[v]);
                write_all(path, b.data, b.n);
                run(path);
            }
            memcpy(at + key.len + 4, &kept, sizeof kept);
        }
        assert_true(n_numbers > 6);
        pp_gguf_close(g);
        pp_free(b.data);
    }
}

/* --- other types ------------------------------------------------------------------------------------------------- */

/* Each tensor in turn gets an integer type or one that does not exist; the error names the tensor. */
static void types_in_files(void **state)
{
    static const uint32_t odd[] = {26 /* I32 */, 24 /* I8 */, 28 /* F64 */, 5 /* no longer */, 0xFFFFFFFF};
    struct pp_gguf *g;
    char path[300];
    (void)state;
    if (!testdata("architectures"))
        skip();
    snprintf(path, sizeof path, "%s", test_path("type.gguf"));
    struct bytes b = read_all(testdata("architectures/mixtral/model.gguf"));
    assert_ok(pp_gguf_open(testdata("architectures/mixtral/model.gguf"), &g, &err), err);
    for (size_t i = 0; i < pp_gguf_n_tensors(g); i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(g, i);
        char *at = memmem(b.data, b.n, t->name, strlen(t->name));
        assert_non_null(at);
        at += strlen(t->name) + 4 + 8 * (size_t)t->n_dims;
        const uint32_t kept = t->type;
        assert_memory_equal(at, &kept, sizeof kept);
        for (size_t v = 0; v < sizeof odd / sizeof *odd; v++) {
            memcpy(at, &odd[v], sizeof odd[v]);
            write_all(path, b.data, b.n);
            if (run(path) == PP_OK || !strstr(err.text, t->name))
                fail_msg("%s of type %u: \"%s\"", t->name, odd[v], err.text);
        }
        memcpy(at, &kept, sizeof kept);
    }
    pp_gguf_close(g);
    pp_free(b.data);
}

static void types_in_folders(void **state)
{
    static const char *const odd[] = {"\"I16\" ", "\"U16\" ", "\"I8\"  ", "\"F32\" ", "\"F8_X\""};
    struct pp_safetensors *s;
    char folder[300], path[600], from[300];
    (void)state;
    if (!testdata("architectures"))
        skip();
    linked_folder("architectures/llama", folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    snprintf(from, sizeof from, "%s", testdata("architectures/llama/model.safetensors"));
    struct bytes b = read_all(path);
    assert_ok(pp_safetensors_open(from, &s, &err), err);
    for (size_t i = 0; i < pp_safetensors_n(s); i++) {
        const char *name = pp_safetensors_at(s, i)->name;
        char entry[300];
        const int len = snprintf(entry, sizeof entry, "\"%s\":{\"dtype\":", name);
        char *at = memmem(b.data, b.n, entry, (size_t)len);
        assert_non_null(at);
        at += len;
        assert_memory_equal(at, "\"BF16\"", 6);
        for (size_t v = 0; v < sizeof odd / sizeof *odd; v++) {
            memcpy(at, odd[v], 6);
            write_all(path, b.data, b.n);
            if (run(folder) == PP_OK || !strstr(err.text, name))
                fail_msg("%s of type %s: \"%s\"", name, odd[v], err.text);
        }
        memcpy(at, "\"BF16\"", 6);
    }
    pp_safetensors_close(s);
    pp_free(b.data);
}

/* --- one in another ---------------------------------------------------------------------------------------------- */

enum { DEEP = 1000000 };

/* `open` DEEP times, after `before`; the caller frees the bytes with pp_free. */
static struct bytes deep_json(const char *before, const char *open)
{
    struct pp_buf b = {0};
    pp_buf_str(&b, before);
    for (int i = 0; i < DEEP; i++)
        pp_buf_str(&b, open);
    assert_false(b.bad);
    return (struct bytes){b.data, b.len};
}

static void deep_files(void **state)
{
    static const struct {
        const char *folder, *file;
    } cases[] = {
        {"architectures/llama", "config.json"},
        {"architectures/llama", "tokenizer.json"},
        {"architectures/llama", "tokenizer_config.json"},
        {"architectures/llama", "model.safetensors.index.json"},
        {"architectures/llama", "modules.json"},
        {"architectures/llama", "chat_template.json"},
        {"architectures/llama/lora-alpha", "adapter_config.json"},
    };
    static const char *const opens[] = {"[", "{\"a\":", "[{\"model\":"};
    char folder[300], path[600];
    (void)state;
    if (!testdata("architectures"))
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        linked_folder(cases[i].folder, folder);
        snprintf(path, sizeof path, "%s/%s", folder, cases[i].file);
        for (size_t k = 0; k < sizeof opens / sizeof *opens; k++) {
            const struct bytes b = deep_json(k == 1 ? "{\"x\":" : "", opens[k]);
            write_all(path, b.data, b.n);
            pp_free(b.data);
            if (strstr(cases[i].folder, "lora"))
                assert_int_equal(open_adapter(folder), PP_ERR_FORMAT);
            else if (run(folder) == PP_OK)
                fail_msg("%s of a million %s is taken", cases[i].file, opens[k]);
            else if (!strstr(err.text, cases[i].file))
                fail_msg("%s: \"%s\" does not name it", cases[i].file, err.text);
        }
    }
    open_adapter(NULL);
}

/* Deep nesting in the header of a safetensors file, and in what templates are given. */
static void deep_texts(void **state)
{
    struct pp_safetensors *s;
    struct pp_template *t;
    struct pp_buf out = {0};
    (void)state;
    for (int k = 0; k < 2; k++) {
        const struct bytes b = deep_json("12345678{\"a\":", k ? "{\"a\":" : "[");
        const uint64_t n = b.n - 8;
        memcpy(b.data, &n, sizeof n);
        assert_int_equal(pp_safetensors_open_memory(b.data, b.n, "deep", &s, &err), PP_ERR_FORMAT);
        pp_free(b.data);
    }
    assert_ok(pp_template_parse("{{ messages | tojson }}", 23, "deep", &t, &err), err);
    const struct bytes b = deep_json("[{\"role\":\"user\",\"content\":", "[");
    const struct pp_template_input in = {.messages_json = b.data};
    assert_int_not_equal(pp_template_render(t, &in, &out, &err), PP_OK);
    pp_free(b.data);
    pp_buf_free(&out);
    pp_template_free(t);
}

/* A list of digits, whose values would take forty times its size in memory. */
static struct bytes many_values(const char *before, const char *behind)
{
    const size_t n = 10 << 20, head = strlen(before), tail = strlen(behind);
    struct bytes b = {.data = pp_malloc(n), .n = n};
    assert_non_null(b.data);
    memcpy(b.data, before, head);
    for (size_t i = head; i < n - tail; i++)
        b.data[i] = "0,"[(n - tail - 1 - i) % 2];
    memcpy(b.data + n - tail, behind, tail);
    return b;
}

static void many_numbers(void **state)
{
    char folder[300], path[400];
    struct pp_safetensors *s;
    struct pp_tokenizer *t;
    (void)state;
    struct bytes b = many_values("12345678{\"a\":[", "]}");
    const uint64_t n = b.n - 8;
    memcpy(b.data, &n, sizeof n);
    assert_int_equal(pp_safetensors_open_memory(b.data, b.n, "long", &s, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "which cannot be right"));
    pp_free(b.data);
    b = many_values("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[", "]}}");
    write_all(test_path("tokenizer.json"), b.data, b.n);
    assert_int_equal(pp_tokenizer_open(test_path("tokenizer.json"), &t, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "which cannot be right"));
    unlink(test_path("tokenizer.json"));
    pp_free(b.data);
    if (!testdata("architectures"))
        return;
    linked_folder("architectures/llama", folder);
    snprintf(path, sizeof path, "%s/config.json", folder);
    b = many_values("{\"a\":[", "]}");
    write_all(path, b.data, b.n);
    assert_int_equal(run(folder), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "config.json has more than"));
    pp_free(b.data);
}

TEST_GROUP(hostile_files)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_off),          cmocka_unit_test(numbers_in_configs), cmocka_unit_test(numbers_in_files),
        cmocka_unit_test(types_in_files),   cmocka_unit_test(types_in_folders),   cmocka_unit_test(deep_files),
        cmocka_unit_test(deep_texts),   cmocka_unit_test(many_numbers),
    };
    return cmocka_run_group_tests_name("hostile_files", tests, NULL, NULL);
}
