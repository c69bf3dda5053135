/* test_convert_memory.c - conversion works piece by piece: whatever the size of the model and the form of its matrices,
 * no more than some megabytes are in memory at once. The models are all zeros, in sparse files. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/convert.h"
#include "engine/types.h"
#include "tests/support.h"
#include "tests/tiny_model.h"

enum { SMALLEST = 60 << 20, MOST_KIB = 40 << 10 }; /* the least size of a model; the most memory */

/* --- folders ------------------------------------------------------------------------------------------------------ */

struct folder {
    char path[256];
    struct pp_buf header;
    long long at; /* bytes of data so far */
};

static void begin(struct folder *f, const char *name, const char *config)
{
    char path[300];
    *f = (struct folder){0};
    snprintf(f->path, sizeof f->path, "%s", test_path(name));
    mkdir(f->path, 0700);
    snprintf(path, sizeof path, "%s/config.json", f->path);
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    fputs(config, to);
    assert_int_equal(fclose(to), 0);
}

/* A tensor [n_rows, n_cols], or a vector: n_rows is 0. */
__attribute__((format(printf, 5, 6))) static void add(struct folder *f, const char *dtype, long long n_rows,
                                                      long long n_cols, const char *format, ...)
{
    const long long size = strcmp(dtype, "U32") == 0 || strcmp(dtype, "I32") == 0 ? 4 : 2;
    const long long bytes = size * (n_rows ? n_rows : 1) * n_cols;
    char name[100];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    pp_buf_fmt(&f->header, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", f->header.len ? ',' : '{', name, dtype);
    if (n_rows)
        pp_buf_fmt(&f->header, "%lld,", n_rows);
    pp_buf_fmt(&f->header, "%lld],\"data_offsets\":[%lld,%lld]}", n_cols, f->at, f->at + bytes);
    f->at += bytes;
}

static void end(struct folder *f)
{
    char path[300];
    pp_buf_str(&f->header, "}");
    while (f->header.len % 8)
        pp_buf_str(&f->header, " ");
    snprintf(path, sizeof path, "%s/model.safetensors", f->path);
    assert_true(f->at > SMALLEST && !f->header.bad);
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    const uint64_t n = f->header.len;
    fwrite(&n, 1, sizeof n, to);
    fwrite(f->header.data, 1, f->header.len, to);
    assert_int_equal(fflush(to), 0);
    assert_int_equal(ftruncate(fileno(to), (off_t)(sizeof n + n) + f->at), 0);
    assert_int_equal(fclose(to), 0);
    pp_buf_free(&f->header);
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

typedef enum pp_code make(const char *from, const char *to, struct pp_error *err);

static enum pp_code to_bf16(const char *from, const char *to, struct pp_error *err)
{
    return pp_quantize_file(from, to, "BF16", NULL, err);
}

static enum pp_code to_gguf(const char *from, const char *to, struct pp_error *err)
{
    return pp_convert_to_gguf(from, to, NULL, err);
}

static enum pp_code to_folder(const char *from, const char *to, struct pp_error *err)
{
    return pp_convert_to_folder(from, to, &(struct pp_convert_options){0}, err);
}

/* Runs in a process of its own, because the peak is per process; the result is its increase in KiB. */
static long peak_of(make *f, const char *from, const char *to)
{
    struct {
        long more;
        struct pp_error err;
    } told = {.more = -1};
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        const enum pp_code code = f(from, to, &told.err);
        getrusage(RUSAGE_SELF, &after);
        told.more = code ? -1 : after.ru_maxrss - before.ru_maxrss;
        _exit(write(pipe_fds[1], &told, sizeof told) != sizeof told);
    }
    close(pipe_fds[1]);
    assert_int_equal(read(pipe_fds[0], &told, sizeof told), sizeof told);
    close(pipe_fds[0]);
    waitpid(pid, NULL, 0);
    if (told.more < 0)
        fail_msg("%s: %s", from, told.err.text);
    return told.more;
}

static void expect_little(make *f, const char *from, const char *to)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN), each = 3 << 10; /* a thread's part of a matrix */
    const long more = peak_of(f, from, test_path(to));
    if (more > MOST_KIB + (n > 2 ? (n - 2) * each : 0))
        fail_msg("%s to %s: %ld KiB", from, to, more);
}

/* Converts the folder to a file and to a folder, and removes these. */
static void both_ways(struct folder *f)
{
    char path[300];
    end(f);
    expect_little(to_gguf, f->path, "made.gguf");
    expect_little(to_folder, f->path, "made");
    unlink(test_path("made.gguf"));
    snprintf(path, sizeof path, "%s/model.safetensors", test_path("made"));
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", test_path("made"));
    unlink(path);
    rmdir(test_path("made"));
}

/* Sanitizers need more memory themselves. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_IF_SANITIZED() skip()
#else
#define SKIP_IF_SANITIZED() (void)0
#endif

/* --- tests -------------------------------------------------------------------------------------------------------- */

static void file(void **state)
{
    struct tiny_shape shape = tiny_shape(PP_TYPE_F16);
    struct stat st;
    (void)state;
    SKIP_IF_SANITIZED();
    shape.n_vocab = 110000;
    const char *from = tiny_model(&shape);
    assert_int_equal(stat(from, &st), 0);
    assert_true(st.st_size > SMALLEST);
    expect_little(to_bf16, from, "half.gguf");
    unlink(test_path("half.gguf"));
}

#define LLAMA                                                                                      \
    "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,"        \
    "\"rope_theta\":10000,\"max_position_embeddings\":64,\"tie_word_embeddings\":true,"            \
    "\"num_attention_heads\":8,\"num_key_value_heads\":8,"

/* A Llama layer: `matrix` adds each matrix, the norms are added here. */
static void add_llama_layer(struct folder *f, int l, int n_embd, int n_ff,
                            void (*matrix)(struct folder *f, const char *name, long long n_rows, long long n_cols))
{
    static const char *const square[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                         "self_attn.o_proj"};
    char name[80];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s", l, square[i]);
        matrix(f, name, n_embd, n_embd);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.%s_proj", l, i == 0 ? "gate" : i == 1 ? "up" : "down");
        matrix(f, name, i < 2 ? n_ff : n_embd, i < 2 ? n_embd : n_ff);
    }
    add(f, "F16", 0, n_embd, "model.layers.%d.input_layernorm.weight", l);
    add(f, "F16", 0, n_embd, "model.layers.%d.post_attention_layernorm.weight", l);
}

static void add_mlx(struct folder *f, const char *name, long long n_rows, long long n_cols)
{
    add(f, "U32", n_rows, n_cols / 4, "%s.weight", name);
    add(f, "F16", n_rows, n_cols / 32, "%s.scales", name);
    add(f, "F16", n_rows, n_cols / 32, "%s.biases", name);
}

/* One matrix that is nearly all of the model. */
static void large_groups(void **state)
{
    struct folder f;
    (void)state;
    SKIP_IF_SANITIZED();
    begin(&f, "groups", "{" LLAMA "\"hidden_size\":512,\"vocab_size\":120000,\"intermediate_size\":512,"
          "\"num_hidden_layers\":1,\"quantization\":{\"group_size\":32,\"bits\":8}}");
    add_mlx(&f, "model.embed_tokens", 120000, 512);
    add_llama_layer(&f, 0, 512, 512, add_mlx);
    add(&f, "F16", 0, 512, "model.norm.weight");
    both_ways(&f);
}

static void add_gptq(struct folder *f, const char *name, long long n_rows, long long n_cols)
{
    add(f, "I32", n_cols / 8, n_rows, "%s.qweight", name);
    add(f, "I32", n_cols / 32, n_rows / 8, "%s.qzeros", name);
    add(f, "F16", n_cols / 32, n_rows, "%s.scales", name);
}

/* Scales and zero points, which together are a quarter of it. */
static void many_words(void **state)
{
    struct folder f;
    (void)state;
    SKIP_IF_SANITIZED();
    begin(&f, "words", "{" LLAMA "\"hidden_size\":1024,\"vocab_size\":1024,\"intermediate_size\":4096,"
          "\"num_hidden_layers\":8,\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32,"
          "\"desc_act\":false,\"sym\":false}}");
    add(&f, "F16", 1024, 1024, "model.embed_tokens.weight");
    for (int l = 0; l < 8; l++)
        add_llama_layer(&f, l, 1024, 4096, add_gptq);
    add(&f, "F16", 0, 1024, "model.norm.weight");
    both_ways(&f);
}

static void add_awq(struct folder *f, const char *name, long long n_rows, long long n_cols)
{
    add(f, "I32", n_cols, n_rows / 8, "%s.qweight", name);
    add(f, "I32", n_cols / 32, n_rows / 8, "%s.qzeros", name);
    add(f, "F16", n_cols / 32, n_rows, "%s.scales", name);
}

/* Packed GPTQ and AWQ words, in which each row of a matrix is spread over the whole tensor. Three such matrices are
 * nearly all of the model. */
static void large_words(void **state)
{
    struct folder f;
    (void)state;
    SKIP_IF_SANITIZED();
    for (int awq = 0; awq < 2; awq++) {
        char config[600];
        snprintf(config, sizeof config,
                 "{" LLAMA "\"hidden_size\":512,\"vocab_size\":64,\"intermediate_size\":204800,"
                 "\"num_hidden_layers\":1,\"quantization_config\":{\"quant_method\":\"%s\",\"bits\":4,"
                 "\"group_size\":32,\"desc_act\":false,\"sym\":false}}", awq ? "awq" : "gptq");
        begin(&f, awq ? "awq" : "gptq", config);
        add(&f, "F16", 64, 512, "model.embed_tokens.weight");
        add_llama_layer(&f, 0, 512, 204800, awq ? add_awq : add_gptq);
        add(&f, "F16", 0, 512, "model.norm.weight");
        both_ways(&f);
    }
}

/* Experts' matrices, which a GGUF file stacks to one tensor per layer. */
static void experts(void **state)
{
    enum { N = 44, N_EMBD = 512, N_FF = 512 };
    static const char layer[] = "model.layers.0.";
    struct folder f;
    (void)state;
    SKIP_IF_SANITIZED();
    begin(&f, "experts", "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,"
          "\"rope_theta\":10000,\"max_position_embeddings\":64,\"tie_word_embeddings\":true,"
          "\"num_attention_heads\":8,\"num_key_value_heads\":8,\"head_dim\":64,\"hidden_size\":512,"
          "\"intermediate_size\":512,\"moe_intermediate_size\":512,\"vocab_size\":64,\"num_experts\":44,"
          "\"num_experts_per_tok\":2,\"norm_topk_prob\":true,\"num_hidden_layers\":1}");
    add(&f, "BF16", 64, N_EMBD, "model.embed_tokens.weight");
    for (int i = 0; i < 4; i++)
        add(&f, "BF16", N_EMBD, N_EMBD, "%sself_attn.%c_proj.weight", layer, "qkvo"[i]);
    add(&f, "BF16", N, N_EMBD, "%smlp.gate.weight", layer);
    for (int e = 0; e < N; e++) {
        add(&f, "BF16", N_FF, N_EMBD, "%smlp.experts.%d.gate_proj.weight", layer, e);
        add(&f, "BF16", N_FF, N_EMBD, "%smlp.experts.%d.up_proj.weight", layer, e);
        add(&f, "BF16", N_EMBD, N_FF, "%smlp.experts.%d.down_proj.weight", layer, e);
    }
    add(&f, "BF16", 0, N_EMBD, "%sinput_layernorm.weight", layer);
    add(&f, "BF16", 0, N_EMBD, "%spost_attention_layernorm.weight", layer);
    add(&f, "BF16", 0, 64, "%sself_attn.q_norm.weight", layer);
    add(&f, "BF16", 0, 64, "%sself_attn.k_norm.weight", layer);
    add(&f, "BF16", 0, N_EMBD, "model.norm.weight");
    both_ways(&f);
}

/* GPT-2, whose matrices are stored transposed in folders. */
static void gpt2(struct folder *f, const char *name, int n_ff, int n_layer)
{
    enum { N_EMBD = 512 };
    const struct {
        const char *name;
        int n_in, n_out;
    } parts[] = {{"attn.c_attn", N_EMBD, 3 * N_EMBD}, {"attn.c_proj", N_EMBD, N_EMBD}, {"mlp.c_fc", N_EMBD, n_ff},
                 {"mlp.c_proj", n_ff, N_EMBD}};
    char config[400];
    snprintf(config, sizeof config,
             "{\"architectures\":[\"GPT2LMHeadModel\"],\"n_embd\":512,\"n_layer\":%d,\"n_head\":8,\"n_inner\":%d,"
             "\"n_positions\":64,\"vocab_size\":64,\"layer_norm_epsilon\":1e-5,"
             "\"activation_function\":\"gelu_new\"}", n_layer, n_ff);
    begin(f, name, config);
    add(f, "F16", 64, N_EMBD, "transformer.wte.weight");
    add(f, "F16", 64, N_EMBD, "transformer.wpe.weight");
    for (int l = 0; l < n_layer; l++) {
        for (int i = 0; i < 4; i++) {
            add(f, "F16", parts[i].n_in, parts[i].n_out, "transformer.h.%d.%s.weight", l, parts[i].name);
            add(f, "F16", 0, parts[i].n_out, "transformer.h.%d.%s.bias", l, parts[i].name);
        }
        for (int i = 1; i <= 2; i++) {
            add(f, "F16", 0, N_EMBD, "transformer.h.%d.ln_%d.weight", l, i);
            add(f, "F16", 0, N_EMBD, "transformer.h.%d.ln_%d.bias", l, i);
        }
    }
    add(f, "F16", 0, N_EMBD, "transformer.ln_f.weight");
    add(f, "F16", 0, N_EMBD, "transformer.ln_f.bias");
}

/* Many of them. */
static void turned(void **state)
{
    struct folder f;
    (void)state;
    SKIP_IF_SANITIZED();
    gpt2(&f, "turned", 2048, 11);
    both_ways(&f);
}

/* Two matrices that make up nearly all of the model and must be transposed. */
static void large_turned(void **state)
{
    struct folder f;
    (void)state;
    SKIP_IF_SANITIZED();
    gpt2(&f, "large_turned", 65536, 1);
    both_ways(&f);
}

/* Rows in another order: in InternLM 2's joined matrix, for each KV head its queries, the key and the value. */
static void by_groups(void **state)
{
    enum { N_EMBD = 768, N_LAYER = 14 };
    struct folder f;
    (void)state;
    SKIP_IF_SANITIZED();
    begin(&f, "by_groups", "{\"architectures\":[\"InternLM2ForCausalLM\"],\"model_type\":\"internlm2\",\"bias\":false,"
          "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,\"rope_theta\":10000,\"max_position_embeddings\":64,"
          "\"tie_word_embeddings\":false,\"num_attention_heads\":8,\"num_key_value_heads\":8,"
          "\"hidden_size\":768,\"intermediate_size\":64,\"vocab_size\":64,\"num_hidden_layers\":14}");
    add(&f, "F16", 64, N_EMBD, "model.tok_embeddings.weight");
    add(&f, "F16", 64, N_EMBD, "output.weight");
    for (int l = 0; l < N_LAYER; l++) {
        add(&f, "F16", 3 * N_EMBD, N_EMBD, "model.layers.%d.attention.wqkv.weight", l);
        add(&f, "F16", N_EMBD, N_EMBD, "model.layers.%d.attention.wo.weight", l);
        add(&f, "F16", 64, N_EMBD, "model.layers.%d.feed_forward.w1.weight", l);
        add(&f, "F16", 64, N_EMBD, "model.layers.%d.feed_forward.w3.weight", l);
        add(&f, "F16", N_EMBD, 64, "model.layers.%d.feed_forward.w2.weight", l);
        add(&f, "F16", 0, N_EMBD, "model.layers.%d.attention_norm.weight", l);
        add(&f, "F16", 0, N_EMBD, "model.layers.%d.ffn_norm.weight", l);
    }
    add(&f, "F16", 0, N_EMBD, "model.norm.weight");
    both_ways(&f);
}

TEST_GROUP(convert_memory)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file),
        cmocka_unit_test(large_groups),
        cmocka_unit_test(many_words),
        cmocka_unit_test(large_words),
        cmocka_unit_test(experts),
        cmocka_unit_test(turned),
        cmocka_unit_test(large_turned),
        cmocka_unit_test(by_groups),
    };
    return cmocka_run_group_tests_name("convert_memory", tests, NULL, NULL);
}
