/* peer.c - lets another program read and quantise our files, for tests/test_peer.c: llama.cpp, through its public C
 * interface, loaded at run time. The layout of its structs of options depends on the version: they are used as its own
 * functions return them, except for the first numbers, which are the number of positions of a context, and the number
 * of threads and the type when quantising.
 *
 *   peer LIBLLAMA.so quantize SOURCE TARGET TYPE    TYPE: llama_ftype, which is general.file_type of GGUF files
 *   peer LIBLLAMA.so blocks SOURCE TARGET TYPE      converts the F16 matrices of two layers to one type of tensors
 *                                                  (ggml_type), with all columns equally important: also types that
 *                                                  need an importance matrix; some take long
 *   peer LIBLLAMA.so greedy MODEL N ID,ID,...       computes the N likeliest next tokens, and by how much the logit of
 *                                                  each exceeds the second one: "ID MARGIN" a line */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, CONTEXT = 1024 };

struct options {
    unsigned char bytes[512]; /* more than any version has */
};

struct batch {
    int32_t n;
    int32_t *token;
    float *embd;
    int32_t *pos, *n_seq;
    int32_t **seq;
    int8_t *logits;
};

static void *library;

/* Calls the function as the peer's header declares it. */
#define FUNCTION(result, name, ...) result (*name)(__VA_ARGS__) = (result(*)(__VA_ARGS__))symbol(#name)

static void (*symbol(const char *name))(void)
{
    void *at = dlsym(library, name);
    void (*f)(void);
    if (!at) {
        fprintf(stderr, "peer: no %s: %s\n", name, dlerror());
        exit(1);
    }
    memcpy(&f, &at, sizeof f);
    return f;
}

static void quiet(int level, const char *text, void *user)
{
    (void)user;
    if (level == 4)
        fputs(text, stderr);
}

static void begin(const char *path)
{
    char folder[4000];
    library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "peer: %s\n", dlerror());
        exit(1);
    }
    FUNCTION(void, ggml_backend_load_all_from_path, const char *);
    FUNCTION(void, llama_log_set, void (*)(int, const char *, void *), void *);
    FUNCTION(void, llama_backend_init, void);
    snprintf(folder, sizeof folder, "%s", path);
    if (strrchr(folder, '/'))
        *strrchr(folder, '/') = 0;
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(folder);
    llama_backend_init();
}

static int quantize(const char *source, const char *target, int32_t type)
{
    FUNCTION(struct options, llama_model_quantize_default_params, void);
    FUNCTION(uint32_t, llama_model_quantize, const char *, const char *, const struct options *);
    struct options o = llama_model_quantize_default_params();
    memcpy(o.bytes, &(int32_t){1}, sizeof(int32_t));
    memcpy(o.bytes + 4, &type, sizeof type);
    return llama_model_quantize(source, target, &o) ? 1 : 0;
}

/* --- one type of tensors ----------------------------------------------------------------------------------------- */

struct gguf_params {
    bool no_alloc;
    void **ctx;
};

static float *ones(int64_t n)
{
    float *v = malloc((size_t)n * sizeof *v);
    for (int64_t i = 0; v && i < n; i++)
        v[i] = 1.0f;
    return v;
}

/* Replaces a tensor of F16 in the file. False: out of memory. */
static bool put_blocks(void *file, const void *tensor, const char *name, int32_t type)
{
    FUNCTION(void *, ggml_get_data, const void *);
    FUNCTION(int64_t, ggml_nelements, const void *);
    FUNCTION(int64_t, ggml_nrows, const void *);
    FUNCTION(int64_t, ggml_blck_size, int32_t);
    FUNCTION(size_t, ggml_row_size, int32_t, int64_t);
    FUNCTION(void, ggml_fp16_to_fp32_row, const void *, float *, int64_t);
    FUNCTION(size_t, ggml_quantize_chunk, int32_t, const float *, void *, int64_t, int64_t, int64_t, const float *);
    FUNCTION(void, gguf_set_tensor_type, void *, const char *, int32_t);
    FUNCTION(void, gguf_set_tensor_data, void *, const char *, const void *);
    const int64_t n = ggml_nelements(tensor), rows = ggml_nrows(tensor), columns = n / rows;
    if (columns % ggml_blck_size(type))
        return true;
    float *values = malloc((size_t)n * sizeof *values), *weights = ones(columns);
    void *blocks = malloc((size_t)rows * ggml_row_size(type, columns)); /* never freed, since the file is written
                                                                           later */
    const bool room = values && weights && blocks;
    if (room) {
        ggml_fp16_to_fp32_row(ggml_get_data(tensor), values, n);
        ggml_quantize_chunk(type, values, blocks, 0, rows, columns, weights);
        gguf_set_tensor_type(file, name, type);
        gguf_set_tensor_data(file, name, blocks);
    }
    free(values);
    free(weights);
    return room;
}

static int blocks(const char *source, const char *target, int32_t type)
{
    enum { F16 = 1 };
    FUNCTION(void *, gguf_init_from_file, const char *, struct gguf_params);
    FUNCTION(void *, gguf_init_empty, void);
    FUNCTION(void, gguf_set_kv, void *, const void *);
    FUNCTION(void, gguf_add_tensor, void *, const void *);
    FUNCTION(int64_t, gguf_get_n_tensors, const void *);
    FUNCTION(const char *, gguf_get_tensor_name, const void *, int64_t);
    FUNCTION(int32_t, gguf_get_tensor_type, const void *, int64_t);
    FUNCTION(bool, gguf_write_to_file, const void *, const char *, bool);
    FUNCTION(void *, ggml_get_tensor, void *, const char *);
    void *ctx = NULL, *from = gguf_init_from_file(source, (struct gguf_params){false, &ctx});
    void *to = gguf_init_empty();
    bool ok = from && ctx && to;
    if (ok)
        gguf_set_kv(to, from);
    for (int64_t i = 0; ok && i < gguf_get_n_tensors(from); i++) {
        const char *name = gguf_get_tensor_name(from, i);
        const void *tensor = ggml_get_tensor(ctx, name);
        gguf_add_tensor(to, tensor);
        if ((strncmp(name, "blk.0.", 6) == 0 || strncmp(name, "blk.1.", 6) == 0) &&
            gguf_get_tensor_type(from, i) == F16)
            ok = put_blocks(to, tensor, name, type);
    }
    return ok && gguf_write_to_file(to, target, false) ? 0 : 1;
}

/* --- the likeliest text ------------------------------------------------------------------------------------------ */

static int32_t likeliest(const float *logits, int32_t n, float *margin)
{
    int32_t best = 0;
    float second = -1e30f;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    for (int32_t i = 0; i < n; i++)
        if (i != best && logits[i] > second)
            second = logits[i];
    *margin = logits[best] - second;
    return best;
}

static int greedy(const char *path, int n_new, char *ids)
{
    FUNCTION(struct options, llama_model_default_params, void);
    FUNCTION(struct options, llama_context_default_params, void);
    FUNCTION(void *, llama_model_load_from_file, const char *, struct options);
    FUNCTION(void *, llama_init_from_model, void *, struct options);
    FUNCTION(const void *, llama_model_get_vocab, const void *);
    FUNCTION(int32_t, llama_vocab_n_tokens, const void *);
    FUNCTION(struct batch, llama_batch_get_one, int32_t *, int32_t);
    FUNCTION(int32_t, llama_decode, void *, struct batch);
    FUNCTION(void, llama_set_n_threads, void *, int32_t, int32_t);
    FUNCTION(float *, llama_get_logits_ith, void *, int32_t);
    static int32_t tokens[MOST];
    int32_t n = 0;
    const uint32_t context = CONTEXT;
    for (char *id = strtok(ids, ","); id && n < MOST; id = strtok(NULL, ","))
        tokens[n++] = atoi(id);
    void *model = llama_model_load_from_file(path, llama_model_default_params());
    struct options o = llama_context_default_params();
    memcpy(o.bytes, &context, sizeof context);
    void *ctx = model ? llama_init_from_model(model, o) : NULL;
    if (!ctx || n == 0 || n + n_new > CONTEXT)
        return 1;
    llama_set_n_threads(ctx, 1, 1); /* several threads would busily wait for each other */
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct batch batch = llama_batch_get_one(tokens, n);
    for (int i = 0; i < n_new; i++) {
        float margin;
        if (llama_decode(ctx, batch))
            return 1;
        tokens[0] = likeliest(llama_get_logits_ith(ctx, -1), n_vocab, &margin);
        printf("%d %.5f\n", tokens[0], (double)margin);
        batch = llama_batch_get_one(tokens, 1);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc == 6 ? argv[2] : "";
    const bool make = strcmp(what, "quantize") == 0, pure = strcmp(what, "blocks") == 0;
    if (!make && !pure && strcmp(what, "greedy") != 0) {
        fputs("usage: peer LIBLLAMA quantize|blocks SOURCE TARGET TYPE | peer LIBLLAMA greedy MODEL N IDS\n", stderr);
        return 2;
    }
    begin(argv[1]);
    return make   ? quantize(argv[3], argv[4], atoi(argv[5]))
           : pure ? blocks(argv[3], argv[4], atoi(argv[5]))
                  : greedy(argv[3], atoi(argv[4]), argv[5]);
}
