#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/adapter_file.h"
#include "engine/arch/arch.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/hparams.h"
#include "engine/source.h"
#include "tests/gguf_file.h"
#include "tests/support.h"

/* --- folders and files made for a test ----------------------------------------------------------------------- */

static const char *folder(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", test_tmpdir(), name);
    mkdir(path, 0700);
    return path;
}

static void write_in(const char *dir, const char *name, const void *data, size_t n)
{
    char path[512];
    struct pp_error err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(pp_write_file(path, data, n, 0600, &err), err);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    write_in(dir, name, text, strlen(text));
}

/* A safetensors file with BF16 tensors of the given names, each [2, 2]. */
static void write_tensors(const char *dir, const char *file, const char *const *names)
{
    char header[4096], all[8192];
    size_t n = 0, length = 1;
    header[0] = '{';
    for (; names[n]; n++)
        length += (size_t)snprintf(header + length, sizeof header - length,
                                   "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[%zu,%zu]}",
                                   n ? "," : "", names[n], 8 * n, 8 * n + 8);
    header[length++] = '}';
    while (length % 8)
        header[length++] = ' ';
    memset(all, 0, sizeof all);
    for (unsigned i = 0; i < 8; i++)
        all[i] = (char)(uint8_t)((uint64_t)length >> (8 * i));
    memcpy(all + 8, header, length);
    write_in(dir, file, all, 8 + length + 8 * n);
}

static const char *const two_tensors[] = {"model.embed_tokens.weight", "lm_head.weight", NULL};

static const char small_config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":2,\"hidden_size\":2,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":1,\"intermediate_size\":4,\"rope_theta\":5000";

/* Opens a folder with small_config and more members; the caller closes *s. */
static enum pp_code open_config(const char *more, struct pp_source **s, struct pp_error *err)
{
    char config[2048];
    const char *dir = folder("config");
    snprintf(config, sizeof config, "%s%s}", small_config, more);
    write_text(dir, "config.json", config);
    write_tensors(dir, "model.safetensors", two_tensors);
    return pp_source_open(dir, s, err);
}

static void assert_config_refused(const char *more, enum pp_code want, const char *text)
{
    struct pp_source *s;
    struct pp_error err = {0};
    enum pp_code code = open_config(more, &s, &err);
    if (code != want || !strstr(err.text, text))
        fail_msg("%s: wanted code %d with \"%s\", got %d: %s", more, (int)want, text, (int)code, err.text);
    assert_null(s);
}

/* Converting a file that another program changes meanwhile would mix two models: it is refused. */
static void test_written_into(void **state)
{
    static const struct timespec later[2] = {{.tv_sec = 4000000000}, {.tv_sec = 4000000000}};
    struct pp_source *s;
    struct pp_error err;
    char path[512], other[512];
    (void)state;
    snprintf(path, sizeof path, "%s/model.safetensors", folder("config"));
    snprintf(other, sizeof other, "%s/other", folder("config"));
    assert_ok(open_config("", &s, &err), err);
    assert_ok(pp_source_check_unchanged(s, &err), err);
    assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0); /* changes the time, as a write does */
    assert_int_equal(pp_source_check_unchanged(s, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "another program changed"));
    assert_ok(pp_source_check(s, &err), err);
    pp_source_close(s);
    assert_ok(open_config("", &s, &err), err);
    write_in(folder("config"), "other", "x", 1);
    assert_int_equal(rename(other, path), 0); /* the mapping still shows the old file */
    assert_ok(pp_source_check_unchanged(s, &err), err);
    assert_int_equal(unlink(path), 0);
    assert_ok(pp_source_check_unchanged(s, &err), err);
    pp_source_close(s);
}

/* --- hyperparameters ----------------------------------------------------------------------------------------- */

static void test_config(void **state)
{
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    assert_ok(open_config("", &s, &err), err);
    const struct pp_hparams *hp = pp_source_hparams(s);
    assert_string_equal(hp->arch, "llama");
    assert_string_equal(hp->name, "Config");
    assert_int_equal(hp->n_head_kv, 1); /* as many as there are heads */
    assert_int_equal(hp->head_dim, 2);
    assert_int_equal(hp->rope_dim, 2);
    assert_true(hp->rope_neox && hp->rope_base == 5000.0f && hp->norm_eps == 1e-6f && hp->n_ctx_train == 2048);
    assert_int_equal(hp->rope_scaling, PP_ROPE_NONE);
    assert_int_equal(pp_source_n_tensors(s), 2);
    assert_non_null(pp_source_tensor(s, "output.weight"));
    assert_int_equal(pp_source_n_params(s), 8);
    assert_int_equal(pp_source_bytes(s), 16);
    assert_string_equal(pp_source_type_name(s), "BF16");
    assert_null(pp_source_chat_template(s));
    assert_ok(pp_source_check(s, &err), err);
    pp_source_close(s);
    /* tied: a stored copy of the embeddings is not used */
    assert_ok(open_config(",\"tie_word_embeddings\":true", &s, &err), err);
    assert_null(pp_source_tensor(s, "output.weight"));
    pp_source_close(s);
    /* in the form of transformers 5 */
    assert_ok(
        open_config(",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":77,\"factor\":4,\"beta_fast\":16,"
                    "\"attention_factor\":1.5,\"original_max_position_embeddings\":512}",
                    &s, &err),
        err);
    hp = pp_source_hparams(s);
    assert_true(hp->rope_scaling == PP_ROPE_YARN && hp->rope_base == 77.0f && hp->rope_factor == 4.0f);
    assert_true(hp->rope_beta_fast == 16.0f && hp->rope_beta_slow == 1.0f && hp->rope_attn_factor == 1.5f);
    assert_int_equal(hp->rope_orig_ctx, 512);
    pp_source_close(s);
    /* in the form of older versions */
    assert_ok(open_config(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":3}", &s, &err), err);
    assert_true(pp_source_hparams(s)->rope_scaling == PP_ROPE_LINEAR && pp_source_hparams(s)->rope_factor == 3.0f);
    pp_source_close(s);
    assert_ok(open_config(",\"rope_scaling\":null,\"head_dim\":null,\"sliding_window\":null", &s, &err), err);
    pp_source_close(s);
    /* bidirectional attention within pictures only does not matter for text */
    assert_ok(open_config(",\"is_causal\":true,\"use_bidirectional_attention\":\"vision\"", &s, &err), err);
    pp_source_close(s);
}

/* Mistral's window; it has one unless null says otherwise, and Llama has none. */
static void test_windows(void **state)
{
    static const struct {
        const char *more;
        int64_t window;
    } cases[] = {
        {",\"model_type\":\"mistral\",\"num_key_value_heads\":1,\"sliding_window\":128", 128},
        {",\"model_type\":\"mistral\",\"num_key_value_heads\":null", 4096},
        {",\"model_type\":\"mistral\",\"num_key_value_heads\":1,\"sliding_window\":null", 0},
        {",\"model_type\":\"llama\",\"sliding_window\":128", 0},
        {"", 0},
    };
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(open_config(cases[i].more, &s, &err), err);
        assert_int_equal(pp_source_hparams(s)->window, cases[i].window);
        pp_source_close(s);
    }
}

static void test_bad_config(void **state)
{
    static const struct {
        const char *more;
        enum pp_code code;
        const char *text;
    } cases[] = {
        {",\"num_key_value_heads\":0", PP_ERR_FORMAT, "key heads"},
        {",\"num_key_value_heads\":2", PP_ERR_FORMAT, "key heads"},
        {",\"head_dim\":3", PP_ERR_FORMAT, "must be even"},
        {",\"head_dim\":1e12", PP_ERR_FORMAT, "head size"},
        {",\"head_dim\":\"2\"", PP_ERR_FORMAT, "head_dim"},
        {",\"max_position_embeddings\":-5", PP_ERR_FORMAT, "context length"},
        {",\"rms_norm_eps\":0", PP_ERR_FORMAT, "epsilon"},
        {",\"rms_norm_eps\":1e999", PP_ERR_FORMAT, "epsilon"},
        {",\"hidden_act\":\"gelu\"", PP_ERR_UNSUPPORTED, "gelu"},
        {",\"model_type\":\"mistral\"", PP_ERR_FORMAT, "key heads is 8"}, /* Mistral's default if the key is missing */
        {",\"model_type\":\"mistral\",\"sliding_window\":\"all\"", PP_ERR_FORMAT, "sliding_window"},
        {",\"model_type\":\"mistral\",\"num_key_value_heads\":1,\"sliding_window\":-2", PP_ERR_FORMAT,
         "attention window"},
        {",\"quantization_config\":{\"bits\":4}", PP_ERR_UNSUPPORTED, "quantization_config"},
        {",\"rope_scaling\":{\"rope_type\":\"spiral\",\"factor\":2}", PP_ERR_UNSUPPORTED, "spiral"},
        {",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}", PP_ERR_FORMAT, "factor"},
        {",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2}", PP_ERR_FORMAT, "frequency"},
        /* embedding models that have a decoder's class */
        {",\"is_causal\":false", PP_ERR_UNSUPPORTED, "is_causal asks for bidirectional attention"},
        {",\"use_bidirectional_attention\":true", PP_ERR_UNSUPPORTED, "use_bidirectional_attention"},
        {",\"use_bidirectional_attention\":\"all\"", PP_ERR_UNSUPPORTED, "use_bidirectional_attention"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_config_refused(cases[i].more, cases[i].code, cases[i].text);
}

/* More layers than there is room for, each of them named. */
static void test_too_many_layers(void **state)
{
    enum { LAYERS = 40000 };
    struct pp_buf config = {0};
    struct pp_source *s;
    struct pp_error err;
    const char *dir = folder("layers");
    (void)state;
    pp_buf_fmt(&config, "{\"architectures\":[\"Cohere2ForCausalLM\"],\"vocab_size\":2,\"hidden_size\":2,"
                        "\"num_hidden_layers\":%d,\"num_attention_heads\":1,\"intermediate_size\":4,\"layer_types\":[",
               LAYERS);
    for (int l = 0; l < LAYERS; l++)
        pp_buf_fmt(&config, "%s\"full_attention\"", l ? "," : "");
    pp_buf_fmt(&config, "]}");
    write_text(dir, "config.json", pp_buf_cstr(&config));
    write_tensors(dir, "model.safetensors", two_tensors);
    assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "number of layers"));
    pp_buf_free(&config);
}

static void test_bad_folders(void **state)
{
    static const char *const strange[] = {"model.embed_tokens.weight", "model.layers.0.self_attn.q_norm.weight", NULL};
    static const char *const legacy[] = {"model.embed_tokens.weight", "model.layers.0.self_attn.rotary_emb.inv_freq",
                                         NULL};
    char config[2048];
    const char *dir = folder("bad");
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    assert_int_equal(pp_source_open("/proc/nonexistent/model.gguf", &s, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "config.json"));
    write_text(dir, "config.json", "{\"architectures\":[\"Martian\\u001bForCausalLM\"]");
    assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_FORMAT);
    write_text(dir, "config.json", "{\"architectures\":[\"Martian\\u001bForCausalLM\"]}");
    assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_UNSUPPORTED); /* whatever its weights */
    write_tensors(dir, "model.safetensors", strange);
    assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "Martian?ForCausalLM")); /* the control character was replaced */
    assert_non_null(strstr(err.text, "llama"));
    assert_non_null(strstr(err.text, " others")); /* the list is not cut off within a word */
    snprintf(config, sizeof config, "%s}", small_config);
    write_text(dir, "config.json", config);
    assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "q_norm"));
    write_tensors(dir, "model.safetensors", legacy);
    assert_ok(pp_source_open(dir, &s, &err), err);
    assert_int_equal(pp_source_n_tensors(s), 1);
    pp_source_close(s);
}

static void test_shards(void **state)
{
    static const struct {
        const char *index;
        enum pp_code code;
    } cases[] = {
        {"{\"weight_map\":{\"model.embed_tokens.weight\":\"a.safetensors\"}}", PP_OK},
        {"{\"weight_map\":{\"model.embed_tokens.weight\":\"a.safetensors\",\"lm_head.weight\":\"a.safetensors\"}}",
         PP_OK},
        {"{\"weight_map\":{\"model.embed_tokens.weight\":\"../a.safetensors\"}}", PP_ERR_FORMAT},
        {"{\"weight_map\":{\"model.embed_tokens.weight\":\"/etc/passwd\"}}", PP_ERR_FORMAT},
        {"{\"weight_map\":{\"model.embed_tokens.weight\":7}}", PP_ERR_FORMAT},
        {"{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\"}}", PP_ERR_FORMAT},
        {"{\"weight_map\":{\"lm_head.weight\":\"a.safetensors\",\"lm_head.weight\":\"a.safetensors\"}}", PP_ERR_FORMAT},
        {"{\"weight_map\":{\"model.embed_tokens.weight\":\"b.safetensors\"}}", PP_ERR_NOT_FOUND},
        {"{}", PP_ERR_FORMAT},
    };
    char config[2048];
    const char *dir = folder("shards");
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    snprintf(config, sizeof config, "%s}", small_config);
    write_text(dir, "config.json", config);
    write_tensors(dir, "a.safetensors", two_tensors);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(dir, "model.safetensors.index.json", cases[i].index);
        enum pp_code code = pp_source_open(dir, &s, &err);
        if (code != cases[i].code)
            fail_msg("%s: wanted code %d, got %d: %s", cases[i].index, (int)cases[i].code, (int)code, err.text);
        if (code == PP_ERR_NOT_FOUND)
            assert_non_null(strstr(err.text, "b.safetensors: No such file or directory; some of the model's weights "
                                             "are missing"));
        pp_source_close(s);
    }
    /* also if a link leads nowhere */
    char path[400];
    dir = folder("dangling");
    write_text(dir, "config.json", config);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(symlink("../blobs/gone", path), 0);
    assert_int_equal(pp_source_open(dir, &s, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "download them"));
    pp_source_close(s);
}

static void test_templates(void **state)
{
    const char *dir = folder("template");
    char config[2048];
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    snprintf(config, sizeof config, "%s}", small_config);
    write_text(dir, "config.json", config);
    write_tensors(dir, "model.safetensors", two_tensors);
    write_text(dir, "tokenizer_config.json", "{\"chat_template\":\" \\n\"}"); /* blank */
    assert_ok(pp_source_open(dir, &s, &err), err);
    assert_null(pp_source_chat_template(s));
    assert_null(pp_source_tool_template(s));
    pp_source_close(s);
    write_text(dir, "tokenizer_config.json", "{\"chat_template\":\"plain\"}");
    assert_ok(pp_source_open(dir, &s, &err), err);
    assert_string_equal(pp_source_chat_template(s), "plain");
    assert_string_equal(pp_source_tool_template(s), "plain");
    pp_source_close(s);
    write_text(dir, "tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"no\"},"
                                             "{\"name\":\"default\",\"template\":\"yes\"}]}");
    assert_ok(pp_source_open(dir, &s, &err), err);
    assert_string_equal(pp_source_chat_template(s), "yes");
    assert_string_equal(pp_source_tool_template(s), "no");
    pp_source_close(s);
    write_text(dir, "chat_template.jinja", "from the file");
    assert_ok(pp_source_open(dir, &s, &err), err);
    assert_string_equal(pp_source_chat_template(s), "from the file");
    assert_string_equal(pp_source_tool_template(s), "from the file");
    pp_source_close(s);
    char other[400];
    snprintf(other, sizeof other, "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(other, 0700), 0);
    write_text(other, "tool_use.jinja", "with tools");
    assert_ok(pp_source_open(dir, &s, &err), err);
    assert_string_equal(pp_source_chat_template(s), "from the file");
    assert_string_equal(pp_source_tool_template(s), "with tools");
    pp_source_close(s);
}

/* --- GGUF ------------------------------------------------------------------------------------------------------ */

/* Writes the metadata of a small llama; `skip` is left out. */
static struct pp_gguf_writer *begin_gguf(const char *path, const char *skip)
{
    static const struct {
        const char *key;
        uint32_t v;
    } keys[] = {{"llama.block_count", 1},          {"llama.context_length", 64},     {"llama.embedding_length", 4},
                {"llama.feed_forward_length", 8},  {"llama.attention.head_count", 2}, {"llama.vocab_size", 16}};
    struct pp_gguf_writer *w = gguf_file_begin(path);
    pp_gguf_add_str(w, "general.architecture", "llama", 5);
    pp_gguf_add_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i].key, skip) != 0)
            pp_gguf_add_u32(w, keys[i].key, keys[i].v);
    return w;
}

static enum pp_code finish_and_open(struct pp_gguf_writer *w, const char *path, struct pp_source **s,
                                    struct pp_error *err)
{
    gguf_file_end(w, NULL, 0);
    return pp_source_open(path, s, err);
}

static void test_gguf_metadata(void **state)
{
    char path[256];
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/small.gguf", test_tmpdir());
    struct pp_gguf_writer *w = begin_gguf(path, "");
    pp_gguf_add_str(w, "general.name", "evil\x1b[2J name", 12);
    pp_gguf_add_str(w, "llama.rope.scaling.type", "yarn", 4);
    pp_gguf_add_f32(w, "llama.rope.scaling.factor", 2.0f);
    pp_gguf_add_f32(w, "llama.rope.scaling.attn_factor", 0.5f);
    pp_gguf_add_u32(w, "general.file_type", 15);
    pp_gguf_add_text(w, "tokenizer.chat_template", "{{ 1 }}");
    pp_gguf_add_text(w, "tokenizer.chat_template.tool_use", "{{ 2 }}");
    assert_ok(finish_and_open(w, path, &s, &err), err);
    assert_string_equal(pp_source_chat_template(s), "{{ 1 }}");
    assert_string_equal(pp_source_tool_template(s), "{{ 2 }}");
    const struct pp_hparams *hp = pp_source_hparams(s);
    assert_string_equal(hp->name, "evil?[2J nam");
    assert_true(!hp->rope_neox && hp->head_dim == 2 && hp->n_head_kv == 2 && hp->rope_base == 10000.0f);
    assert_true(hp->rope_scaling == PP_ROPE_YARN && hp->rope_orig_ctx == 64);
    assert_true(fabsf(hp->rope_attn_factor - 0.5f * (0.1f * logf(2.0f) + 1.0f)) < 1e-6f);
    assert_string_equal(pp_source_type_name(s), "Q4_K_M");
    pp_source_close(s);
    assert_int_equal(finish_and_open(begin_gguf(path, "llama.block_count"), path, &s, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "llama.block_count"));
    w = begin_gguf(path, "llama.attention.head_count");
    pp_gguf_add_i32_array(w, "llama.attention.head_count", (int32_t[]){-1, 2}, 2);
    assert_int_equal(finish_and_open(w, path, &s, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "head_count"));
    w = begin_gguf(path, "llama.feed_forward_length"); /* values for two layers, but the model has one */
    pp_gguf_add_i32_array(w, "llama.feed_forward_length", (int32_t[]){8, 24}, 2);
    assert_ok(finish_and_open(w, path, &s, &err), err);
    assert_true(pp_source_hparams(s)->n_ff == 8 && pp_layer_shape(pp_source_hparams(s), 0).n_ff == 8);
    pp_source_close(s);
    w = begin_gguf(path, "llama.feed_forward_length");
    pp_gguf_add_i32_array(w, "llama.feed_forward_length", (int32_t[]){-1}, 1);
    assert_int_equal(finish_and_open(w, path, &s, &err), PP_ERR_FORMAT);
    w = begin_gguf(path, "llama.attention.head_count"); /* the same value for each layer */
    pp_gguf_add_i32_array(w, "llama.attention.head_count", (int32_t[]){2, 2}, 2);
    assert_ok(finish_and_open(w, path, &s, &err), err);
    assert_int_equal(pp_source_hparams(s)->n_head, 2);
    pp_source_close(s);
    w = begin_gguf(path, "llama.block_count");
    pp_gguf_add_u32(w, "llama.block_count", 100000);
    assert_int_equal(finish_and_open(w, path, &s, &err), PP_ERR_FORMAT);
    w = begin_gguf(path, "");
    pp_gguf_add_u32(w, "llama.expert_count", 8);
    assert_int_equal(finish_and_open(w, path, &s, &err), PP_ERR_FORMAT); /* the number of experts used for each row is
                                                                            missing */
    assert_non_null(strstr(err.text, "experts used"));
    w = begin_gguf(path, "");
    pp_gguf_add_u32(w, "llama.attention.value_length", 4);
    assert_int_equal(finish_and_open(w, path, &s, &err), PP_ERR_UNSUPPORTED);
    w = begin_gguf(path, "");
    pp_gguf_add_str(w, "general.type", "adapter", 7);
    assert_int_equal(finish_and_open(w, path, &s, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "--lora"));
}

/* YaRN's scale of queries and keys: 0.1 ln(factor) + 1, and the keys of files that change it. */
static void test_gguf_magnitude(void **state)
{
    static const float usual = 1.48520303f; /* for a factor of 128: 0.1 * 4.85203026 + 1 */
    static const struct {
        const char *key;
        float v, magnitude; /* 0: the usual one */
    } cases[] = {
        {"llama.rope.scaling.factor", 128, 0},
        {"llama.rope.scaling.attn_factor", 1, 0},
        {"llama.rope.scaling.attn_factor", 0.5f, 0.742601515f},
        {"llama.rope.scaling.attn_factor", 1.4852030263919618f, usual},
        {"llama.rope.scaling.yarn_attn_factor", 1, 0},
        {"llama.rope.scaling.yarn_attn_factor", 1.4852030263919618f, usual},
        {"llama.rope.scaling.yarn_attn_factor", 1.25f, 1.25f},
    };
    char path[256];
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/magnitude.gguf", test_tmpdir());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_gguf_writer *w = begin_gguf(path, "");
        pp_gguf_add_text(w, "llama.rope.scaling.type", "yarn");
        if (i)
            pp_gguf_add_f32(w, "llama.rope.scaling.factor", 128);
        pp_gguf_add_f32(w, cases[i].key, cases[i].v);
        assert_ok(finish_and_open(w, path, &s, &err), err);
        const float is = pp_source_hparams(s)->rope_attn_factor;
        assert_true(fabsf((is > 0 ? is : usual) - (cases[i].magnitude > 0 ? cases[i].magnitude : usual)) < 1e-6f);
        pp_source_close(s);
    }
}

/* A family with two names, and keys with values that would change what is computed. */
static void test_gguf_other(void **state)
{
    static const struct {
        const char *key;
        float v;
    } refused[] = {{"llama.attention.max_alibi_bias", 8},
                   {"llama.swin_norm", 1},
                   {"llama.rope.scaling.attn_factor", 1.5f},
                   {"llama.rope.scaling.yarn_ext_factor", 0.5f}};
    char path[256];
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/other.gguf", test_tmpdir());
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct pp_gguf_writer *w = begin_gguf(path, "");
        pp_gguf_add_f32(w, refused[i].key, refused[i].v);
        assert_int_equal(finish_and_open(w, path, &s, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, refused[i].key));
    }
    struct pp_gguf_writer *w = begin_gguf(path, "");
    pp_gguf_add_bool(w, "llama.attention.causal", false);
    assert_int_equal(finish_and_open(w, path, &s, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "llama.attention.causal"));
    for (int i = 0; i < 3; i++) { /* yarn_ext_factor -1: unknown; 0: no YaRN, which is refused; 1: YaRN */
        w = begin_gguf(path, "");
        pp_gguf_add_text(w, "llama.rope.scaling.type", "yarn");
        pp_gguf_add_f32(w, "llama.rope.scaling.factor", 4);
        pp_gguf_add_f32(w, "llama.rope.scaling.yarn_ext_factor", (float)(i - 1));
        assert_int_equal(finish_and_open(w, path, &s, &err), i == 1 ? PP_ERR_UNSUPPORTED : PP_OK);
        pp_source_close(s);
    }
    w = begin_gguf(path, "");
    pp_gguf_add_bool(w, "llama.attention.causal", true);
    pp_gguf_add_f32(w, "llama.rope.scaling.attn_factor", 1);
    assert_ok(finish_and_open(w, path, &s, &err), err);
    pp_source_close(s);
    w = gguf_file_begin(path);
    pp_gguf_add_text(w, "general.architecture", "mistral3");
    pp_gguf_add_f32(w, "mistral3.attention.layer_norm_rms_epsilon", 1e-5f);
    pp_gguf_add_u32(w, "mistral3.block_count", 1);
    pp_gguf_add_u32(w, "mistral3.context_length", 256);
    pp_gguf_add_u32(w, "mistral3.embedding_length", 4);
    pp_gguf_add_u32(w, "mistral3.feed_forward_length", 8);
    pp_gguf_add_u32(w, "mistral3.attention.head_count", 2);
    pp_gguf_add_u32(w, "mistral3.vocab_size", 16);
    pp_gguf_add_text(w, "mistral3.rope.scaling.type", "yarn");
    pp_gguf_add_f32(w, "mistral3.rope.scaling.factor", 4);
    pp_gguf_add_u32(w, "mistral3.rope.scaling.original_context_length", 64);
    pp_gguf_add_f32(w, "mistral3.rope.scaling.yarn_log_multiplier", 1);
    pp_gguf_add_f32(w, "mistral3.attention.temperature_scale", 0.1f);
    assert_ok(finish_and_open(w, path, &s, &err), err);
    const struct pp_hparams *hp = pp_source_hparams(s);
    assert_string_equal(hp->arch, "llama");
    assert_true(!hp->rope_neox && hp->rope_scaling == PP_ROPE_YARN && hp->rope_attn_factor == 1.0f);
    assert_true(hp->n_ctx_train == 256 && hp->rope_orig_ctx == 64 && hp->attn_temperature == 0.1f);
    pp_source_close(s);
}

/* For families that are known but not supported, the message names what is missing. */
static void test_missing(void **state)
{
    static const char *const cases[][2] = {
        {"dots3", "sizes"},
        {"HunYuanForCausalLM", "CLA"},
        {"RuGPT3XLForCausalLM", "GGUF file"},
        {"molmo_point", "points"},
        {"RWKV7Qwen3ForCausalLM", "RoPE"},
    };
    char path[256];
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/missing.gguf", test_tmpdir());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pp_gguf_writer *w = gguf_file_begin(path);
        pp_gguf_add_text(w, "general.architecture", cases[i][0]);
        assert_int_equal(finish_and_open(w, path, &s, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, cases[i][0]));
        assert_non_null(strstr(err.text, cases[i][1]));
    }
}

/* What ollama's files leave out or name differently. */
static void test_gguf_ollama(void **state)
{
    static const char *const sizes[] = {"context_length", "embedding_length", "feed_forward_length",
                                        "attention.head_count", "vocab_size"};
    static const struct {
        const char *arch;
        int n_layer;
        const char *floats[4];
        float v[4];
        const char *ints[2];
        uint32_t n[2];
        /* the values that are read */
        const char *family;
        int64_t head_dim, original;
        float factor, local, cap, temperature, fast, magnitude;
        enum pp_rope_scaling scaling;
    } cases[] = {
        {"gemma3", 34, {NULL}, {0}, {"attention.sliding_window"}, {1024}, "gemma3", 256, 0, 8, 10000, 0, 0, 0, 0,
         PP_ROPE_LINEAR},
        {"gemma3", 26, {"attention.layer_norm_rms_epsilon", "rope.local.freq_base", "final_logit_softcapping"},
         {1e-6f, 20000, 30}, {"attention.key_length"}, {128}, "gemma3", 128, 0, 1, 20000, 0, 0, 0, 0, PP_ROPE_NONE},
        {"mistral3", 2, {"attention.layer_norm_rms_epsilon", "rope.scaling_beta", "rope.scaling.beta_fast",
                         "rope.scaling.mscale_all_dim"}, {1e-5f, 0.1f, 24, 1},
         {"rope.scaling.original_context_length"}, {16384}, "llama", 64, 16384, 4, 0, 0, 0.1f, 24, 1, PP_ROPE_YARN},
        {"olmo3", 4, {"attention.layer_norm_rms_epsilon"}, {1e-6f}, {NULL}, {0}, "olmo2", 64, 0, 1, 0, 0, 0, 0, 0,
         PP_ROPE_NONE},
        {"gptoss", 2, {"attention.layer_norm_rms_epsilon", "rope.scaling.factor"}, {1e-5f, 32},
         {"rope.scaling.original_context_length", "attention.sliding_window"}, {4096, 128}, "gpt-oss", 64, 4096, 32, 0,
         0, 0, 32, 0, PP_ROPE_YARN},
    };
    char path[256], key[96];
    (void)state;
    snprintf(path, sizeof path, "%s/ollama.gguf", test_tmpdir());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const uint32_t numbers[] = {131072, 256, 512, 4, 16};
        struct pp_gguf_writer *w = gguf_file_begin(path);
        struct pp_source *s;
        struct pp_error err;
        pp_gguf_add_text(w, "general.architecture", cases[i].arch);
        snprintf(key, sizeof key, "%s.block_count", cases[i].arch);
        pp_gguf_add_u32(w, key, (uint32_t)cases[i].n_layer);
        for (int k = 0; k < 5; k++) {
            snprintf(key, sizeof key, "%s.%s", cases[i].arch, sizes[k]);
            pp_gguf_add_u32(w, key, numbers[k]);
        }
        for (int k = 0; k < 4 && cases[i].floats[k]; k++) {
            snprintf(key, sizeof key, "%s.%s", cases[i].arch, cases[i].floats[k]);
            pp_gguf_add_f32(w, key, cases[i].v[k]);
        }
        for (int k = 0; k < 2 && cases[i].ints[k]; k++) {
            snprintf(key, sizeof key, "%s.%s", cases[i].arch, cases[i].ints[k]);
            pp_gguf_add_u32(w, key, cases[i].n[k]);
        }
        if (strcmp(cases[i].arch, "mistral3") == 0) {
            pp_gguf_add_text(w, "mistral3.rope.scaling.type", "yarn");
            pp_gguf_add_f32(w, "mistral3.rope.scaling.factor", 4);
        }
        assert_ok(finish_and_open(w, path, &s, &err), err);
        const struct pp_hparams *hp = pp_source_hparams(s);
        assert_string_equal(hp->arch, cases[i].family);
        assert_int_equal(hp->head_dim, cases[i].head_dim);
        assert_true(hp->rope_scaling == cases[i].scaling && hp->rope_factor == cases[i].factor);
        assert_int_equal(hp->rope_orig_ctx, cases[i].original);
        assert_true(!cases[i].local || hp->rope_base_local == cases[i].local);
        assert_true(hp->final_softcap == cases[i].cap && hp->attn_temperature == cases[i].temperature);
        assert_true(hp->rope_beta_fast == cases[i].fast && hp->rope_attn_factor == cases[i].magnitude);
        pp_source_close(s);
    }
}

/* Gemma 3 without a window: no layer has the RoPE of those with one. */
static void test_gguf_no_window(void **state)
{
    static const char *const keys[] = {"gemma3.block_count",         "gemma3.context_length", "gemma3.embedding_length",
                                       "gemma3.feed_forward_length", "gemma3.attention.head_count",
                                       "gemma3.vocab_size",          "gemma3.attention.sliding_window"};
    static const uint32_t numbers[] = {7, 256, 256, 512, 4, 16, 64};
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "%s/no_window.gguf", test_tmpdir());
    for (int windows = 0; windows < 2; windows++) {
        struct pp_gguf_writer *w = gguf_file_begin(path);
        struct pp_source *s;
        struct pp_error err;
        int64_t n_local = 0;
        pp_gguf_add_text(w, "general.architecture", "gemma3");
        pp_gguf_add_f32(w, "gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
        for (int k = 0; k < 6 + windows; k++)
            pp_gguf_add_u32(w, keys[k], numbers[k]);
        assert_ok(finish_and_open(w, path, &s, &err), err);
        for (int l = 0; l < 7; l++)
            n_local += pp_source_hparams(s)->layer[l] & PP_LAYER_LOCAL_ROPE ? 1 : 0;
        assert_int_equal(n_local, windows ? 6 : 0);
        pp_source_close(s);
    }
}

/* Additional keys of other converters: experts' weights that are not normalised, and the order of heads. */
static void test_gguf_marks(void **state)
{
    static const char *const keys[] = {"block_count", "context_length", "embedding_length", "feed_forward_length",
                                       "attention.head_count", "vocab_size", "ssm.conv_kernel", "ssm.state_size",
                                       "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"};
    static const uint32_t numbers[] = {4, 256, 256, 512, 4, 16, 4, 16, 2, 4, 64};
    static const char *const families[] = {"qwen3next", "qwen35"};
    char path[256], key[96];
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    snprintf(path, sizeof path, "%s/marks.gguf", test_tmpdir());
    for (int i = 0; i < 4; i++) {
        const char *family = families[i / 2];
        struct pp_gguf_writer *w = gguf_file_begin(path);
        pp_gguf_add_text(w, "general.architecture", family);
        snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", family);
        pp_gguf_add_f32(w, key, 1e-6f);
        for (int k = 0; k < 11; k++) {
            snprintf(key, sizeof key, "%s.%s", family, keys[k]);
            pp_gguf_add_u32(w, key, numbers[k]);
        }
        snprintf(key, sizeof key, "%s.ssm.v_head_reordered", family);
        pp_gguf_add_bool(w, key, i % 2);
        const enum pp_code code = finish_and_open(w, path, &s, &err);
        if (i / 2 == i % 2) {
            assert_ok(code, err);
            assert_int_equal(pp_source_hparams(s)->state_tiled, i % 2);
            pp_source_close(s);
        } else {
            assert_int_equal(code, PP_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.text, key));
        }
    }
    for (int renormalised = 0; renormalised < 2; renormalised++) {
        struct pp_gguf_writer *w = begin_gguf(path, "");
        pp_gguf_add_u32(w, "llama.expert_count", 4);
        pp_gguf_add_u32(w, "llama.expert_used_count", 2);
        pp_gguf_add_bool(w, "llama.norm_top_k_prob", renormalised);
        assert_ok(finish_and_open(w, path, &s, &err), err);
        assert_int_equal(pp_source_hparams(s)->expert_no_renorm, !renormalised);
        pp_source_close(s);
    }
}

static void test_out_of_memory(void **state)
{
    struct pp_source *s;
    struct pp_error err;
    enum pp_code code = PP_ERR_NOMEM;
    (void)state;
    assert_ok(open_config(",\"tie_word_embeddings\":true", &s, &err), err);
    char *dir = pp_strdup(pp_source_path(s));
    pp_source_close(s);
    for (uint64_t at = 1; code != PP_OK && at < 200; at++) {
        pp_mem_fail_at(at, 0);
        code = pp_source_open(dir, &s, &err);
        pp_mem_fail_at(0, 0);
        if (code != PP_OK && code != PP_ERR_NOMEM)
            fail_msg("allocation %d: code %d: %s", (int)at, (int)code, err.text);
    }
    assert_int_equal(code, PP_OK);
    pp_source_close(s);
    pp_free(dir);
}

/* --- the families' tables -------------------------------------------------------------------------------------- */

static void test_names(void **state)
{
    const struct pp_arch *llama = pp_arch_by_class("LlamaForCausalLM");
    struct pp_buf b = {0};
    enum pp_row_order rows;
    (void)state;
    assert_ptr_equal(llama, pp_arch_by_name("llama"));
    assert_null(pp_arch_by_class("NobodysForCausalLM"));
    assert_int_equal(pp_arch_gguf_name(llama, "model.layers.12.self_attn.k_proj.bias", &b, &rows), PP_NAME_FOUND);
    assert_string_equal(b.data, "blk.12.attn_k.bias");
    assert_int_equal(rows, PP_ROWS_K);
    assert_int_equal(pp_arch_gguf_name(llama, "lm_head.weight", &b, &rows), PP_NAME_FOUND);
    assert_string_equal(b.data, "output.weight");
    assert_int_equal(rows, PP_ROWS_SAME);
    static const char *const unknown[] = {
        "model.layers.01.self_attn.k_proj.bias", "model.layers..self_attn.k_proj.bias", "lm_head", "lm_head.weights",
        "model.layers.99999.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight.x", "",
    };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_int_equal(pp_arch_gguf_name(llama, unknown[i], &b, NULL), PP_NAME_UNKNOWN);
    assert_int_equal(pp_arch_gguf_name(llama, "model.layers.0.self_attn.rotary_emb.inv_freq", &b, NULL),
                     PP_NAME_IGNORED);
    assert_int_equal(pp_arch_rows(llama, "blk.3.attn_q.weight"), PP_ROWS_Q);
    assert_int_equal(pp_arch_rows(llama, "blk.3.attn_v.weight"), PP_ROWS_SAME);
    const struct pp_arch *moe = pp_arch_by_class("Qwen3VLMoeForConditionalGeneration");
    assert_int_equal(pp_arch_gguf_name(moe, "model.language_model.layers.3.mlp.experts.gate_up_proj", &b, NULL),
                     PP_NAME_FOUND);
    assert_string_equal(b.data, "blk.3.ffn_gate_exps.weight");
    assert_int_equal(pp_arch_form(moe, "blk.3.ffn_gate_exps.weight"), PP_HF_SAME); /* other families have them in
                                                                                      separate tensors */
    const struct pp_arch *glm = pp_arch_by_class("ChatGLMModel");
    assert_int_equal(pp_arch_gguf_name(glm, "transformer.encoder.layers.5.self_attention.query_key_value.bias", &b,
                                       NULL), PP_NAME_FOUND);
    assert_string_equal(b.data, "blk.5.attn_qkv.bias");
    pp_buf_free(&b);
    static const int64_t order[] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12};
    for (int64_t i = 0; i < 10; i++)
        assert_int_equal(pp_hf_row(i, 8), order[i]);
    for (int64_t i = 0; i < 64; i++)
        assert_int_equal(pp_gguf_row(pp_hf_row(i, 16), 16), i);
}

static void test_titles(void **state)
{
    static const char *const cases[][2] = {
        {"/models/llama-bias", "Llama Bias"},
        {"llama-k256/", "Llama K256"},
        {"TinyLlama-1.1b-chat-v1.0", "TinyLlama 1.1b Chat v1.0"},
        {"/", ""},
        {"/c/models--acme--tiny--llama-2/snapshots/0123abcd/", "Llama 2"},
        {"models--tiny/snapshots/0123abcd", "Tiny"},
        {"models--/snapshots/0123abcd", "0123abcd"},
        {"/models--a--b/others/0123abcd", "0123abcd"},
        {"/usr/bin/..", "Usr"},
        {"/usr/.", "Usr"},
        {"/absent/.", "."},
        {"a\x1b\xff z", "A?? Z"},
        {"two\nlines.gguf", "Two?Lines"},
    };
    char out[64];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pp_title_of_path(cases[i][0], out, sizeof out);
        assert_string_equal(out, cases[i][1]);
    }
    pp_clean_name("\xc3\xa4\xc3\xb6\xc3\xbc", 6, out, 6); /* cut between characters */
    assert_string_equal(out, "\xc3\xa4\xc3\xb6");
    pp_clean_name("a\xe2\x80\xae" "b\xc2\x85", 7, out, sizeof out); /* a direction override, a C1 control */
    assert_string_equal(out, "a?b?");
}

/* --- reference models ------------------------------------------------------------------------------------------ */

static const char *const models[] = {"llama", "llama-bias", "llama-k256", "llama-linear", "llama-yarn", "llama3-rope"};

static bool open_pair(const char *model, struct pp_source **hf, struct pp_source **gguf)
{
    char name[128];
    struct pp_error err;
    snprintf(name, sizeof name, "architectures/%s", model);
    const char *dir = testdata(name);
    snprintf(name, sizeof name, "architectures/%s/model.gguf", model);
    const char *file = testdata(name);
    if (!dir || !file)
        return false;
    assert_ok(pp_source_open(dir, hf, &err), err);
    assert_ok(pp_source_open(file, gguf, &err), err);
    return true;
}

static void assert_same_hparams(const struct pp_hparams *a, const struct pp_hparams *b)
{
    assert_string_equal(a->arch, b->arch);
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->n_vocab, b->n_vocab);
    assert_int_equal(a->n_embd, b->n_embd);
    assert_int_equal(a->n_layer, b->n_layer);
    assert_int_equal(a->n_head, b->n_head);
    assert_int_equal(a->n_head_kv, b->n_head_kv);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->n_ff, b->n_ff);
    assert_int_equal(a->n_ctx_train, b->n_ctx_train);
    assert_int_equal(a->rope_dim, b->rope_dim);
    assert_true(a->norm_eps == b->norm_eps && a->rope_base == b->rope_base);
}

static void test_reference_models(void **state)
{
    struct pp_source *hf, *gguf;
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        if (!open_pair(models[m], &hf, &gguf))
            skip();
        const struct pp_hparams *a = pp_source_hparams(hf), *b = pp_source_hparams(gguf);
        assert_same_hparams(a, b);
        assert_true(a->rope_neox && !b->rope_neox);
        if (a->rope_scaling == PP_ROPE_LLAMA3) { /* in GGUF a tensor expresses it */
            assert_int_equal(b->rope_scaling, PP_ROPE_NONE);
            assert_int_equal(pp_source_tensor(gguf, "rope_freqs.weight")->ne[0], 8);
            assert_true(a->rope_factor == 8.0f && a->rope_low_freq == 1.0f && a->rope_high_freq == 4.0f);
            assert_int_equal(a->rope_orig_ctx, 32);
        } else {
            assert_true(a->rope_scaling == b->rope_scaling && a->rope_factor == b->rope_factor);
            assert_true(a->rope_orig_ctx == b->rope_orig_ctx && a->rope_attn_factor == b->rope_attn_factor);
            assert_true(a->rope_beta_fast == b->rope_beta_fast && a->rope_beta_slow == b->rope_beta_slow);
        }
        size_t extra = a->rope_scaling == PP_ROPE_LLAMA3;
        assert_int_equal(pp_source_n_tensors(hf) + extra, pp_source_n_tensors(gguf));
        for (size_t i = 0; i < pp_source_n_tensors(hf); i++) {
            const struct pp_tensor *t = pp_source_tensor_at(hf, i), *u = pp_source_tensor(gguf, t->name);
            assert_non_null(u);
            assert_memory_equal(t->ne, u->ne, sizeof t->ne);
        }
        pp_source_close(hf);
        pp_source_close(gguf);
    }
}

static void test_starter(void **state)
{
    const char *path = testdata("starter/target");
    struct pp_source *s;
    struct pp_error err;
    (void)state;
    if (!path)
        skip();
    assert_ok(pp_source_open(path, &s, &err), err);
    const struct pp_hparams *hp = pp_source_hparams(s);
    assert_true(hp->n_embd == 512 && hp->n_layer == 8 && hp->n_head == 8 && hp->n_head_kv == 4 && hp->n_ff == 1280);
    assert_true(hp->n_vocab == 8192 && hp->n_ctx_train == 2048 && hp->head_dim == 64);
    assert_null(pp_source_tensor(s, "output.weight"));
    assert_true(pp_source_n_params(s) > 26100000 && pp_source_n_params(s) < 26300000);
    assert_string_equal(pp_source_type_name(s), "BF16");
    assert_non_null(strstr(pp_source_chat_template(s), "<|start_header_id|>"));
    pp_source_close(s);
}

/* --- adapters -------------------------------------------------------------------------------------------------- */

static const struct pp_adapter_target *find_target(const struct pp_adapter_file *f, const char *name)
{
    for (size_t i = 0; i < pp_adapter_file_n(f); i++)
        if (strcmp(pp_adapter_file_at(f, i)->name, name) == 0)
            return pp_adapter_file_at(f, i);
    return NULL;
}

static void assert_same_adapters(const char *dir, const char *file, int64_t head_dim)
{
    struct pp_adapter_file *peft, *gguf;
    struct pp_error err;
    const struct pp_arch *llama = pp_arch_by_name("llama");
    assert_true(pp_is_adapter(dir) && pp_is_adapter(file));
    assert_ok(pp_adapter_file_open(dir, &peft, &err), err);
    assert_ok(pp_adapter_file_open(file, &gguf, &err), err);
    assert_true(pp_adapter_file_hf_order(peft) && !pp_adapter_file_hf_order(gguf));
    assert_int_equal(pp_adapter_file_n(peft), pp_adapter_file_n(gguf));
    assert_string_equal(pp_adapter_file_name(peft), pp_adapter_file_name(gguf));
    for (size_t i = 0; i < pp_adapter_file_n(peft); i++) {
        const struct pp_adapter_target *p = pp_adapter_file_at(peft, i), *g = find_target(gguf, p->name);
        assert_non_null(g);
        assert_true(p->scale == g->scale);
        assert_int_equal(p->a.size, g->a.size);
        assert_int_equal(p->b.size, g->b.size);
        assert_memory_equal(p->a.data, g->a.data, p->a.size);
        size_t row = (size_t)p->b.ne[0] * sizeof(float);
        for (int64_t r = 0; r < p->b.ne[1]; r++) {
            int64_t from = pp_arch_rows(llama, p->name) == PP_ROWS_SAME ? r : pp_hf_row(r, head_dim);
            assert_memory_equal((const char *)g->b.data + (size_t)r * row, (const char *)p->b.data + (size_t)from * row,
                                row);
        }
    }
    pp_adapter_file_close(peft);
    pp_adapter_file_close(gguf);
}

static void test_reference_adapters(void **state)
{
    static const struct {
        const char *dir, *file;
        int64_t head_dim;
    } pairs[] = {
        {"architectures/llama/lora-alpha", "architectures/llama/lora-alpha.gguf", 16},
        {"architectures/llama/lora-beta", "architectures/llama/lora-beta.gguf", 16},
        {"architectures/llama-k256/lora-alpha", "architectures/llama-k256/lora-alpha.gguf", 32},
        {"architectures/llama-k256/lora-beta", "architectures/llama-k256/lora-beta.gguf", 32},
    };
    struct pp_adapter_file *f;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *dir = testdata(pairs[i].dir), *file = testdata(pairs[i].file);
        if (!dir || !file)
            skip();
        assert_same_adapters(dir, file, pairs[i].head_dim);
    }
    assert_ok(pp_adapter_file_open(testdata("starter/lora-bard"), &f, &err), err);
    assert_int_equal(pp_adapter_file_n(f), 56);
    assert_true(pp_adapter_file_at(f, 0)->scale == 2.0f);
    assert_string_equal(pp_adapter_file_base(f), "pippin-starter");
    pp_adapter_file_close(f);
    assert_false(pp_is_adapter(testdata("architectures/llama")));
    assert_false(pp_is_adapter(testdata("architectures/llama/model.gguf")));
}

/* An adapter of rank 2 for one q projection, with the given members in its configuration. */
static enum pp_code open_peft(const char *more, const char *const *names, struct pp_adapter_file **f,
                              struct pp_error *err)
{
    static const char *const pair[] = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
                                       "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", NULL};
    char config[1024];
    const char *dir = folder("peft");
    snprintf(config, sizeof config, "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":6%s}", more);
    write_text(dir, "adapter_config.json", config);
    write_tensors(dir, "adapter_model.safetensors", names ? names : pair);
    return pp_adapter_file_open(dir, f, err);
}

static void test_peft_scales(void **state)
{
    static const struct {
        const char *more;
        double scale;
    } cases[] = {
        {"", 3.0},
        {",\"use_rslora\":true", 6.0 / 1.4142135},
        {",\"alpha_pattern\":{\"q_proj\":10}", 5.0},
        {",\"alpha_pattern\":{\"model.layers.0.self_attn.q_proj\":4,\"q_proj\":10}", 2.0},
        {",\"alpha_pattern\":{\"_proj\":10,\"k_proj\":1}", 3.0},
        {",\"alpha_pattern\":{\"proj\":1,\".*q_proj\":10}", 5.0},
        {",\"alpha_pattern\":{\"^model.layers.1.*\":1,\"layers\\\\.[0-3]\\\\..*\":4}", 2.0},
        {",\"alpha_pattern\":{\"q_pro\":1,\"[qk]_proj\":8,\"q_proj\":1}", 4.0},
        {",\"alpha_pattern\":{\"a|q_proj\":8},\"rank_pattern\":{\"k_proj\":5,\"[qv]_proj\":2},\"r\":2", 4.0},
        {",\"modules_to_save\":[],\"use_dora\":false,\"bias\":\"none\",\"init_lora_weights\":\"gaussian\"", 3.0},
        {",\"use_newest\":false,\"newest_config\":{},\"other_config\":null,\"ensure_weight_tying\":true,"
         "\"velora_config\":{\"num_groups\":32},\"eva_config\":{\"rho\":2.0},\"init_lora_weights\":\"eva\"", 3.0},
    };
    struct pp_adapter_file *f;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(open_peft(cases[i].more, NULL, &f, &err), err);
        assert_int_equal(pp_adapter_file_n(f), 1);
        const struct pp_adapter_target *t = pp_adapter_file_at(f, 0);
        assert_string_equal(t->name, "blk.0.attn_q.weight");
        assert_true(fabs((double)t->scale - cases[i].scale) < 1e-5);
        pp_adapter_file_close(f);
    }
}

static void test_peft_refused(void **state)
{
    static const struct {
        const char *more;
        const char *text;
    } cases[] = {
        {",\"layer_replication\":[[0,1]]", "layer_replication"},
        {",\"init_lora_weights\":\"pissa_niter_4\"", "path_initial_model_for_weight_conversion"},
        {",\"init_lora_weights\":\"OLoRA\"", "OLoRA"},
        {",\"use_qalora\":true", "use_qalora: LoRA of groups"},
        {",\"use_newest\":true", "use_newest, which pippin does not know"},
        {",\"newest_config\":{\"k\":1}", "newest_config, which pippin does not know"},
        {",\"alpha_pattern\":{\"(q_proj\":4}", "alpha_pattern"},
        {",\"alpha_pattern\":{\"q_proj\":\"4\"}", "alpha_pattern"},
        {",\"alpha_pattern\":{\"((.+)+(.+)+)+[!?]\":4}", "too long"},
    };
    static const char *const embedding[] = {"base_model.model.model.embed_tokens.lora_embedding_A", NULL};
    static const char *const lone[] = {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", NULL};
    static const char *const dora[] = {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
                                       "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight",
                                       "base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector", NULL};
    static const char *const unknown[] = {"base_model.model._orig_mod.model.norm.weight", NULL};
    static const char *const none[] = {NULL};
    struct pp_adapter_file *f;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(open_peft(cases[i].more, NULL, &f, &err), PP_ERR_UNSUPPORTED);
        if (!strstr(err.text, cases[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].text);
    }
    static const char *const others[] = {"VERA", "OFT", "BOFT", "PREFIX_TUNING"};
    char dir[400], text[64];
    snprintf(dir, sizeof dir, "%s", folder("another-kind"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(text, sizeof text, "{\"peft_type\":\"%s\"}", others[i]);
        write_text(dir, "adapter_config.json", text);
        assert_int_equal(pp_adapter_file_open(dir, &f, &err), PP_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, others[i]));
        assert_true((strstr(err.text, "save_as_lora") != NULL) == (i == 0));
    }
    assert_int_equal(open_peft("", unknown, &f, &err), PP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "its first tensor is base_model.model._orig_mod.model.norm.weight"));
    assert_int_equal(open_peft("", none, &f, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "an empty weights file"));
    assert_int_equal(open_peft("", embedding, &f, &err), PP_ERR_FORMAT);
    assert_int_equal(open_peft(",\"use_dora\":true", NULL, &f, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "no magnitudes"));
    assert_int_equal(open_peft(",\"rank_pattern\":{\"q_proj\":3}", NULL, &f, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "rank"));
    assert_int_equal(open_peft("", lone, &f, &err), PP_ERR_FORMAT);
    assert_int_equal(open_peft("", dora, &f, &err), PP_ERR_UNSUPPORTED);
    char path[512];
    snprintf(path, sizeof path, "%s/no-such", folder("empty"));
    assert_int_equal(pp_adapter_file_open(path, &f, &err), PP_ERR_NOT_FOUND);
    assert_false(pp_is_adapter(path));
}

/* Weights as a pickle, and paths of files within an adapter's folder in place of the folder. */
static void test_not_the_folder(void **state)
{
    static const struct {
        const char *file, *text;
        enum pp_code code;
    } cases[] = {
        {"", "adapter_model.bin is a pickle", PP_ERR_UNSUPPORTED},
        {"/adapter_model.bin", "safe_serialization=True", PP_ERR_UNSUPPORTED},
        {"/adapter_config.json", "give the folder that contains it", PP_ERR_UNSUPPORTED},
        {"/other.safetensors", "give the folder that contains it", PP_ERR_UNSUPPORTED},
        {"/ggml-adapter-model.bin", "first format (GGLA)", PP_ERR_FORMAT},
        {"/pointer.bin", "Git LFS pointer", PP_ERR_FORMAT},
    };
    struct pp_adapter_file *f;
    struct pp_error err;
    char dir[400], path[512];
    (void)state;
    snprintf(dir, sizeof dir, "%s", folder("pickle"));
    write_text(dir, "adapter_config.json", "{\"peft_type\":\"LORA\"}");
    write_text(dir, "adapter_model.bin", "PK");
    write_text(dir, "other.safetensors", "12345678{}");
    write_text(dir, "ggml-adapter-model.bin", "algg\001 and a rank, a scale and matrices");
    write_text(dir, "pointer.bin", "version https://git-lfs.github.com/spec/v1\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, "%s%s", dir, cases[i].file);
        assert_int_equal(pp_adapter_file_open(path, &f, &err), cases[i].code);
        if (!strstr(err.text, cases[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].text);
    }
}

TEST_GROUP(source)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_bad_config), cmocka_unit_test(test_written_into),
        cmocka_unit_test(test_too_many_layers),
        cmocka_unit_test(test_bad_folders),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_gguf_metadata),
        cmocka_unit_test(test_gguf_other), cmocka_unit_test(test_gguf_magnitude),
        cmocka_unit_test(test_gguf_ollama), cmocka_unit_test(test_gguf_no_window),
        cmocka_unit_test(test_gguf_marks), cmocka_unit_test(test_missing),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_titles),
        cmocka_unit_test(test_reference_models),
        cmocka_unit_test(test_starter),
        cmocka_unit_test(test_reference_adapters),
        cmocka_unit_test(test_peft_scales),
        cmocka_unit_test(test_peft_refused), cmocka_unit_test(test_not_the_folder),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests_name("source", tests, NULL, NULL);
}
