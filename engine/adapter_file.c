#include "engine/adapter_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/adapter_file_int.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/other_file.h"
#include "engine/base/whole_io.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/hparams.h"
#include "engine/quant.h"
#include "engine/safetensors.h"

/* --- putting the parts together ------------------------------------------------------------------------ */

enum pp_code pp_adapter_reserve(struct pp_adapter_file *f, size_t n_tensors, struct pp_error *err)
{
    f->targets = pp_calloc(n_tensors, sizeof *f->targets);
    if (!f->targets || !pp_name_index_init(&f->index, n_tensors))
        return pp_fail_nomem(err, "the list of an adapter's matrices");
    f->cap = n_tensors;
    return PP_OK;
}

enum pp_code pp_adapter_grow(struct pp_adapter_file *f, size_t more, struct pp_error *err)
{
    const size_t cap = f->n + more > 2 * f->cap ? f->n + more : 2 * f->cap;
    struct pp_name_index index;
    if (f->n + more <= f->cap)
        return PP_OK;
    struct pp_adapter_target *targets = pp_calloc(cap, sizeof *targets);
    if (!targets || !pp_name_index_init(&index, cap)) {
        pp_free(targets);
        return pp_fail_nomem(err, "the list of an adapter's matrices");
    }
    memcpy(targets, f->targets, f->n * sizeof *targets);
    for (size_t i = 0; i < f->n; i++)
        pp_name_index_add(&index, targets[i].name, strlen(targets[i].name));
    pp_free(f->targets);
    pp_name_index_free(&f->index);
    f->targets = targets;
    f->index = index;
    f->cap = cap;
    return PP_OK;
}

static struct pp_tensor *part_of(struct pp_adapter_target *t, enum pp_adapter_part part)
{
    switch (part) {
    case PP_PART_A:
        return &t->a;
    case PP_PART_B:
        return &t->b;
    case PP_PART_B_BIAS:
        return &t->b_bias;
    case PP_PART_MAGNITUDE:
        return &t->magnitude;
    case PP_PART_BIAS:
        return &t->bias;
    case PP_PART_WEIGHT:
        return &t->weight;
    case PP_PART_TOKENS:
        return &t->tokens;
    default:
        return &t->ia3;
    }
}

static bool is_matrix(enum pp_adapter_part part)
{
    return part == PP_PART_A || part == PP_PART_B || part == PP_PART_IA3 || part == PP_PART_TOKENS;
}

enum pp_code pp_adapter_add_part(struct pp_adapter_file *f, const char *name, size_t len, enum pp_adapter_part part,
                                 const struct pp_tensor *t, struct pp_error *err)
{
    size_t i = pp_name_index_find(&f->index, name, len);
    const bool shaped =
        part == PP_PART_WEIGHT ? t->n_dims == 1 || t->n_dims == 2 : t->n_dims == (is_matrix(part) ? 2 : 1);
    if (t->n_dims == 3 && (part == PP_PART_A || part == PP_PART_B))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s is a stack of %lld matrices, but %s is a single "
                                                "matrix",
                       f->path, t->name, (long long)t->ne[2], name);
    if (!shaped || !t->ne[0] || !t->ne[1])
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s is not a %s, as this kind of adapter requires; "
                                                "download the adapter again, or save it again with the program that "
                                                "made it", f->path, t->name,
                       part == PP_PART_WEIGHT ? "matrix or vector" : is_matrix(part) ? "matrix" : "vector");
    if (!t->size || !pp_type_info(t->type)->runnable)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s has a type that pippin cannot run; save the "
                                                "adapter again in F32, F16 or BF16", f->path, t->name);
    if (i == SIZE_MAX) {
        const enum pp_code code = pp_adapter_grow(f, 1, err);
        char *copy = code ? NULL : pp_strndup(name, len);
        if (code)
            return code;
        if (!copy)
            return pp_fail_nomem(err, "the list of an adapter's matrices");
        i = f->n++;
        f->targets[i].name = copy;
        f->targets[i].scale = 1.0f;
        pp_name_index_add(&f->index, copy, len);
    }
    struct pp_tensor *place = part_of(&f->targets[i], part);
    if (place->data)
        return pp_fail(err, PP_ERR_FORMAT, "%s has two adapters for %s", f->path, f->targets[i].name);
    *place = *t;
    return PP_OK;
}

/* A length in which several parts must agree; 0: none has set it. */
static enum pp_code agree(const struct pp_adapter_file *f, const struct pp_adapter_target *t, const char *what,
                          int64_t *length, int64_t n, struct pp_error *err)
{
    if (*length && *length != n)
        return pp_fail(err, PP_ERR_FORMAT, "%s: the parts for %s have %lld and %lld %s", f->path, t->name,
                       (long long)*length, (long long)n, what);
    *length = n;
    return PP_OK;
}

static enum pp_code read_low_rank(const struct pp_adapter_file *f, struct pp_adapter_target *t, struct pp_error *err)
{
    if (!t->a.data && !t->b.data && !t->magnitude.data && !t->b_bias.data)
        return PP_OK;
    if (!t->a.data || !t->b.data)
        return pp_fail(err, PP_ERR_FORMAT, "%s has only one of the matrices A and B for %s; download the adapter "
                                           "again", f->path,
                       t->name);
    const int64_t a[] = {t->a_columns.n ? t->a_columns.n : t->a.ne[0], t->a.ne[1]};
    const int64_t b[] = {t->b_columns.n ? t->b_columns.n : t->b.ne[0], t->b.ne[1]};
    t->rank = a[!t->a_transposed];
    t->n_in = a[t->a_transposed];
    t->n_out = b[!t->b_transposed];
    if (t->rank != b[t->b_transposed])
        return pp_fail(err, PP_ERR_FORMAT, "%s: A and B for %s have different ranks, %lld and %lld", f->path, t->name,
                       (long long)t->rank, (long long)b[t->b_transposed]);
    return PP_OK;
}

/* A replacement of a matrix or a norm. The embedding table counts as a matrix from tokens to values, which is stored
 * transposed. */
static enum pp_code check_weight(const struct pp_adapter_file *f, struct pp_adapter_target *t, struct pp_error *err)
{
    const bool norm = t->weight.n_dims == 1;
    if (t->magnitude.data || t->ia3.data || (norm && (t->rank || t->b_bias.data)))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s both replaces %s and scales it, which is not supported", f->path,
                       t->name);
    enum pp_code code = agree(f, t, "outputs", &t->n_out, t->weight.ne[norm || t->embedding ? 0 : 1], err);
    if (!code && !norm)
        code = agree(f, t, "inputs", &t->n_in, t->weight.ne[t->embedding ? 1 : 0], err);
    return code;
}

/* Replacements of rows of the embedding table or the output matrix. */
static enum pp_code check_tokens(const struct pp_adapter_file *f, struct pp_adapter_target *t, struct pp_error *err)
{
    if (t->weight.data || (!t->embedding && strcmp(t->name, "output.weight") != 0))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s replaces tokens of %s, which is not supported", f->path, t->name);
    if (t->magnitude.data)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s both replaces tokens of %s and is a DoRA of it, which is not "
                       "supported", f->path, t->name);
    return agree(f, t, t->embedding ? "outputs" : "inputs", t->embedding ? &t->n_out : &t->n_in, t->tokens.ne[0], err);
}

/* Checks, once all parts are there, that they fit each other, and sets what kind of matrix it is. */
static enum pp_code check_target(const struct pp_adapter_file *f, struct pp_adapter_target *t, struct pp_error *err)
{
    enum pp_code code = read_low_rank(f, t, err);
    t->embedding = strcmp(t->name, "token_embd.weight") == 0;
    if (!code && t->embedding && (t->b_bias.data || t->bias.data || t->ia3.data))
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "%s changes the token embeddings other than by LoRA, by DoRA or by replacing them, which is not "
                       "supported", f->path);
    if (!code && t->bias.data && pp_name_ending(t->name, "norm.weight") &&
        (t->rank || t->magnitude.data || t->b_bias.data || t->ia3.data))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s both replaces the bias of the norm %s and changes it in another "
                                                "way, which is not supported", f->path, t->name);
    const struct pp_tensor *vectors[] = {&t->magnitude, &t->b_bias, &t->bias};
    for (int i = 0; i < 3 && !code; i++)
        if (vectors[i]->data && t->embedding && t->tied)
            code = agree(f, t, "tokens", &t->n_in, vectors[i]->ne[0], err);
        else if (vectors[i]->data)
            code = agree(f, t, "outputs", &t->n_out, vectors[i]->ne[0], err);
    if (!code && t->weight.data)
        code = check_weight(f, t, err);
    if (!code && t->tokens.data)
        code = check_tokens(f, t, err);
    if (code || !t->ia3.data)
        return code;
    if (t->ia3.ne[0] != 1 && t->ia3.ne[1] != 1)
        return pp_fail(err, PP_ERR_FORMAT, "%s: the scales for %s are not a vector", f->path, t->name);
    t->ia3_input = t->ia3.ne[0] != 1;
    return t->ia3_input ? agree(f, t, "inputs", &t->n_in, t->ia3.ne[0], err)
                        : agree(f, t, "outputs", &t->n_out, t->ia3.ne[1], err);
}

enum pp_code pp_adapter_check_targets(struct pp_adapter_file *f, struct pp_error *err)
{
    if (f->n == 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s contains no adapter matrices", f->path);
    if (!isfinite(f->alpha))
        return pp_fail(err, PP_ERR_FORMAT, "%s: alpha is not a finite number", f->path);
    for (size_t i = 0; i < f->n; i++) {
        enum pp_code code = check_target(f, &f->targets[i], err);
        if (code)
            return code;
    }
    return PP_OK;
}

const char *pp_name_ending(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0 ? s + n - m : NULL;
}

/* --- GGUF ---------------------------------------------------------------------------------------------- */

enum pp_code pp_adapter_reserve_invocation(struct pp_adapter_file *f, size_t n, struct pp_error *err)
{
    enum { MOST = 1024 }; /* each prompt is searched for it */
    if (n > MOST)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is invoked by %zu tokens; at most %d are supported", f->path, n,
                       MOST);
    f->invocation = pp_calloc(n, sizeof *f->invocation);
    f->n_invocation = n;
    return f->invocation ? PP_OK : pp_fail_nomem(err, "an adapter's invocation");
}

enum pp_code pp_adapter_bad_invocation(const struct pp_adapter_file *f, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_FORMAT, "%s: the adapter's invocation is not a list of tokens", f->path);
}

static enum pp_code read_gguf_invocation(struct pp_adapter_file *f, struct pp_error *err)
{
    static const char key[] = "adapter.alora.invocation_tokens";
    enum pp_gguf_type type;
    size_t n;
    if (!pp_gguf_has(f->gguf, key))
        return PP_OK;
    if (!pp_gguf_array(f->gguf, key, &type, &n) || n == 0)
        return pp_adapter_bad_invocation(f, err);
    enum pp_code code = pp_adapter_reserve_invocation(f, n, err);
    for (size_t i = 0; i < n && !code; i++) {
        int64_t token;
        if (!pp_gguf_array_int(f->gguf, key, i, &token) || token < 0 || token > INT32_MAX)
            return pp_adapter_bad_invocation(f, err);
        f->invocation[i] = (int32_t)token;
    }
    return code;
}

static enum pp_code read_gguf_header(struct pp_adapter_file *f, struct pp_error *err)
{
    struct pp_str s;
    double alpha;
    if (!pp_gguf_string_is(f->gguf, "general.type", "adapter"))
        return pp_fail(err, PP_ERR_FORMAT, pp_gguf_string_is(f->gguf, "general.architecture", "controlvector")
                                               ? "%s is a control vector, not an adapter"
                                               : "%s is not an adapter but a model", f->path);
    if (!pp_gguf_string_is(f->gguf, "adapter.type", "lora"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is an adapter but not a LoRA; use the folder that it was made "
                                                "from", f->path);
    if (!pp_gguf_float(f->gguf, "adapter.lora.alpha", &alpha))
        return pp_fail(err, PP_ERR_FORMAT, "%s lacks adapter.lora.alpha; convert it again from its folder with "
                                           "`pippin convert`", f->path);
    f->alpha = (float)alpha;
    if (pp_gguf_string(f->gguf, "general.name", &s))
        pp_clean_name(s.data, s.len, f->name, sizeof f->name);
    char family[64] = "";
    if (pp_gguf_string(f->gguf, "general.architecture", &s))
        pp_clean_name(s.data, s.len, family, sizeof family);
    f->arch = pp_arch_by_name(family);
    if (!family[0])
        return pp_fail(err, PP_ERR_FORMAT, "%s does not name the model family it is for (general.architecture); "
                                           "convert it again from its folder with `pippin convert`", f->path);
    if (!f->arch)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is an adapter for the model family \"%s\", which pippin does not "
                                                "know",
                       f->path, family);
    return read_gguf_invocation(f, err);
}

enum pp_code pp_adapter_is_pickle(const char *path, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is a pickle file, which can run code when loaded, so pippin does not "
                                            "read it; load the adapter with PEFT and save it again with "
                                            "safe_serialization=True", path);
}

/* Whether the file is known, by how it begins, as something else than a pickle. */
static bool is_other(const char *path)
{
    char begin[64];
    struct pp_error other;
    FILE *f = pp_open_regular(path);
    const size_t n = f ? fread(begin, 1, sizeof begin, f) : 0;
    if (f)
        fclose(f);
    const bool pickled = n && (begin[0] == 'P' || (uint8_t)begin[0] == 0x80); /* a zip archive, or bare */
    return n && !pickled && pp_fail_other_file(path, begin, n, &other) != PP_OK;
}

/* The error for a path to the adapter's file inside its folder, which users may give. */
static enum pp_code check_name(const char *path, struct pp_error *err)
{
    static const char *const parts[] = {".safetensors", "adapter_config.json", ".npz"};
    static const char *const pickles[] = {".bin", ".pt", ".pth", ".pkl"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (pp_name_ending(path, parts[i]))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is only one file of an adapter; give the folder that contains "
                                                    "it%s%s", path, i == 2 ? ", as " : " and ",
                           i == 2 ? pp_adapter_npz : pp_adapter_config_file);
    for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++)
        if (pp_name_ending(path, pickles[i]) && !is_other(path))
            return pp_adapter_is_pickle(path, err);
    return PP_OK;
}

/* Whether a name up to `end` is that of a stack of experts' matrices, "blk.3.ffn_gate_exps.weight", or of a fused one,
 * with the gate's rows and then the value's. */
static bool gguf_stack(const char *name, const char *end, struct pp_adapter_stack *s)
{
    static const char both[] = ".ffn_gate_up_exps.weight";
    snprintf(s->name, sizeof s->name, "%.*s", (int)(end - name), name);
    const char *at = pp_name_ending(s->name, both);
    if (at) {
        const int stem = (int)(at - s->name);
        snprintf(s->second, sizeof s->second, "%.*s.ffn_up_exps.weight", stem, name);
        snprintf(s->name, sizeof s->name, "%.*s.ffn_gate_exps.weight", stem, name);
        s->form = PP_HF_HALVES;
    }
    return pp_adapter_is_stack(s->name);
}

static enum pp_code open_gguf(struct pp_adapter_file *f, struct pp_error *err)
{
    enum pp_code code = pp_gguf_open(f->path, &f->gguf, err);
    if (code == PP_ERR_FORMAT) {
        const enum pp_code named = check_name(f->path, err);
        code = named ? named : code;
    }
    if (!code)
        code = read_gguf_header(f, err);
    size_t n = code ? 0 : pp_gguf_n_tensors(f->gguf);
    if (!code)
        code = pp_adapter_reserve(f, n, err);
    for (size_t i = 0; i < n && !code; i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(f->gguf, i);
        const char *a = pp_name_ending(t->name, ".lora_a"), *b = pp_name_ending(t->name, ".lora_b");
        struct pp_adapter_stack stack = {0};
        if ((a || b) && gguf_stack(t->name, a ? a : b, &stack))
            code = pp_adapter_add_stack(f, &stack, a ? PP_PART_A : PP_PART_B, t, err);
        else if (t->n_dims == 1 && pp_name_ending(t->name, "_norm.weight")) /* as mergekit extracts norms */
            code = pp_adapter_add_part(f, t->name, strlen(t->name), PP_PART_WEIGHT, t, err);
        else if (!a && !b)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %s is not part of a LoRA matrix", f->path, t->name);
        else
            code = pp_adapter_add_part(f, t->name, (size_t)((a ? a : b) - t->name), a ? PP_PART_A : PP_PART_B, t,
                                       err);
    }
    for (size_t i = 0; i < f->n; i++) /* of embeddings A is stored like the table: a row for each token */
        if (strcmp(f->targets[i].name, "token_embd.weight") == 0)
            f->targets[i].a_transposed = true;
    if (!code)
        code = pp_adapter_check_targets(f, err);
    for (size_t i = 0; i < f->n && !code; i++) {
        struct pp_adapter_target *t = &f->targets[i];
        t->scale = f->alpha != 0.0f ? f->alpha / (float)t->rank : 1.0f; /* alpha 0 means: not scaled */
    }
    return code;
}

/* --- the interface ------------------------------------------------------------------------------------- */

static enum pp_code open_file(const char *path, const struct pp_hparams *hp, bool look, struct pp_adapter_file **out,
                              struct pp_error *err)
{
    struct stat st;
    struct pp_adapter_file *f = pp_calloc(1, sizeof *f);
    *out = NULL;
    if (!f || !(f->path = pp_strdup(path))) {
        pp_free(f);
        return pp_fail_nomem(err, path);
    }
    f->looked_at = look;
    f->hp = hp;
    f->wanted = hp ? pp_arch_by_name(hp->arch) : NULL;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    enum pp_code code = folder ? pp_adapter_open_folder(f, err) : open_gguf(f, err);
    if (code) {
        pp_adapter_file_close(f);
        return code;
    }
    f->hp = NULL;
    *out = f;
    return PP_OK;
}

enum pp_code pp_adapter_file_open(const char *path, struct pp_adapter_file **out, struct pp_error *err)
{
    return open_file(path, NULL, false, out, err);
}

enum pp_code pp_adapter_file_peek(const char *path, struct pp_adapter_file **out, struct pp_error *err)
{
    return open_file(path, NULL, true, out, err);
}

/* Whether a GGUF adapter, which names its family, fits a model with these hyperparameters: another family's matrices
 * may have the same names and shapes, but rows in another order. Folders name none. */
static bool is_for(const struct pp_adapter_file *f, const struct pp_hparams *hp)
{
    return !f->gguf || f->arch == pp_arch_by_name(hp->arch) || f->arch == pp_arch_by_name(pp_arch_file_name(hp));
}

enum pp_code pp_adapter_file_open_for(const char *path, const struct pp_hparams *hp, struct pp_adapter_file **out,
                                      struct pp_error *err)
{
    enum pp_code code = open_file(path, hp, false, out, err);
    if (!code && !is_for(*out, hp)) {
        pp_fail(err, PP_ERR_MISMATCH, "%s is for models of the family %s, but this model is of the family %s", path,
                (*out)->arch->name, hp->arch);
        pp_adapter_file_close(*out);
        *out = NULL;
        return PP_ERR_MISMATCH;
    }
    if (code || !pp_adapter_file_hf_order(*out) || !pp_arch_other_pairs(hp))
        return code;
    pp_adapter_file_close(*out);
    *out = NULL;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is a folder, whose rows of Q and K are in a different order than in "
                                            "the model's GGUF file; use the model's folder", path);
}

void pp_adapter_file_close(struct pp_adapter_file *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n; i++) {
        pp_free((void *)(uintptr_t)f->targets[i].name);
        pp_free((void *)(uintptr_t)f->targets[i].second);
        pp_free((void *)(uintptr_t)f->targets[i].token_ids);
    }
    pp_adapter_free_made(f);
    pp_free(f->targets);
    pp_free(f->invocation);
    pp_name_index_free(&f->index);
    pp_gguf_close(f->gguf);
    pp_safetensors_close(f->weights);
    pp_buf_free(&f->image);
    cJSON_Delete(f->config);
    pp_free(f->path);
    pp_free(f);
}

enum pp_code pp_adapter_recognise(const char *path, bool *is_adapter, struct pp_error *err)
{
    struct stat st;
    struct pp_gguf *g;
    *is_adapter = false;
    if (stat(path, &st) != 0)
        return pp_fail(err, PP_ERR_NOT_FOUND, "cannot open %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        *is_adapter = pp_file_exists(path, pp_adapter_config_file) ||
                      (pp_file_exists(path, pp_adapter_npz) && !pp_file_exists(path, "config.json")); /* MLX wrote that
                                                                      file where it was started, perhaps at a model */
        return PP_OK;
    }
    const enum pp_code code = pp_gguf_open(path, &g, err);
    if (code)
        return code;
    *is_adapter = pp_gguf_string_is(g, "general.type", "adapter");
    pp_gguf_close(g);
    return PP_OK;
}

bool pp_is_adapter(const char *path)
{
    bool is;
    return pp_adapter_recognise(path, &is, NULL) == PP_OK && is;
}

const char *pp_adapter_file_name(const struct pp_adapter_file *f)
{
    return f->name;
}

const char *pp_adapter_file_arch(const struct pp_adapter_file *f)
{
    return f->arch->name;
}

const char *pp_adapter_file_kind(const struct pp_adapter_file *f)
{
    static const char *const names[] = {[PP_ADAPTER_LORA] = "LoRA", [PP_ADAPTER_DORA] = "DoRA",
                                        [PP_ADAPTER_IA3] = "IA3", [PP_ADAPTER_ADALORA] = "AdaLoRA",
                                        [PP_ADAPTER_LOHA] = "LoHa", [PP_ADAPTER_LOKR] = "LoKr",
                                        [PP_ADAPTER_NORMS] = "LN tuning", [PP_ADAPTER_TOKENS] = "tokens"};
    return names[f->kind];
}

bool pp_adapter_file_hf_order(const struct pp_adapter_file *f)
{
    return f->weights != NULL || f->hf_order;
}

const char *pp_adapter_file_base(const struct pp_adapter_file *f)
{
    return cJSON_GetStringValue(pp_json_member(f->config, "base_model_name_or_path"));
}

size_t pp_adapter_file_n_non_text(const struct pp_adapter_file *f)
{
    return f->n_ignored;
}

/* Stops at the first value that differs. A single value may represent a whole tensor (pp_adapter_file_peek). */
static bool all_are(const struct pp_tensor *t, float value)
{
    if (t->type == PP_TYPE_F32 && t->size == sizeof value) {
        float all;
        memcpy(&all, t->data, sizeof all);
        return all == value;
    }
    const int64_t n = t->ne[0], rows = t->n_dims > 1 ? t->ne[1] : 1;
    const size_t row_bytes = pp_type_row_bytes(t->type, n);
    float *row = pp_malloc((size_t)n * sizeof *row);
    bool same = row != NULL;
    for (int64_t r = 0; r < rows && same; r++) {
        pp_dequantize_row(t->type, (const uint8_t *)t->data + (size_t)r * row_bytes, row, n);
        for (int64_t i = 0; i < n && same; i++)
            same = row[i] == value;
    }
    pp_free(row);
    return same;
}

static bool is_idle(const struct pp_adapter_target *t)
{
    if (t->magnitude.data || t->bias.data || t->weight.data || t->tokens.data) /* whether these change anything depends
                                                                                  on the model */
        return false;
    if (t->rank && t->scale != 0.0f && !all_are(&t->b, 0) && !all_are(&t->a, 0))
        return false;
    if (t->b_bias.data && t->scale != 0.0f && !all_are(&t->b_bias, 0))
        return false;
    return !t->ia3.data || all_are(&t->ia3, 1);
}

bool pp_adapter_file_of_experts(const struct pp_adapter_file *f)
{
    size_t i = 0;
    while (i < f->n && !pp_adapter_is_of_experts(f->targets[i].name))
        i++;
    return i < f->n;
}

bool pp_adapter_file_output_tokens(const struct pp_adapter_file *f)
{
    const size_t i = pp_name_index_find(&f->index, "output.weight", strlen("output.weight"));
    return i != SIZE_MAX && f->targets[i].tokens.data;
}

bool pp_adapter_file_idle(const struct pp_adapter_file *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (!is_idle(&f->targets[i]))
            return false;
    return true;
}

const int32_t *pp_adapter_file_invocation(const struct pp_adapter_file *f, size_t *n)
{
    *n = f->n_invocation;
    return f->invocation;
}

enum pp_code pp_adapter_file_check_invocation(const struct pp_adapter_file *f, int64_t n_vocab, const char *model,
                                              struct pp_error *err)
{
    for (size_t i = 0; i < f->n_invocation; i++)
        if (f->invocation[i] >= n_vocab)
            return pp_fail(err, PP_ERR_MISMATCH, "adapter %s is invoked by token %d, but %s has only %lld", f->path,
                           f->invocation[i], model, (long long)n_vocab);
    return PP_OK;
}

float pp_adapter_file_assumed_scale(const struct pp_adapter_file *f)
{
    return f->assumed_scale;
}

float pp_adapter_file_alpha(const struct pp_adapter_file *f)
{
    return f->alpha;
}

size_t pp_adapter_file_n(const struct pp_adapter_file *f)
{
    return f->n;
}

const struct pp_adapter_target *pp_adapter_file_find(const struct pp_adapter_file *f, const char *name)
{
    const size_t i = pp_name_index_find(&f->index, name, strlen(name));
    return i == SIZE_MAX ? NULL : &f->targets[i];
}

const struct pp_adapter_target *pp_adapter_file_at(const struct pp_adapter_file *f, size_t i)
{
    return &f->targets[i];
}

enum pp_code pp_adapter_file_check(const struct pp_adapter_file *f, struct pp_error *err)
{
    if (!f->gguf && !f->weights)
        return PP_OK; /* the model's own */
    if (f->gguf ? pp_gguf_lost(f->gguf) : pp_safetensors_lost(f->weights))
        return pp_fail(err, PP_ERR_IO, "%s was truncated by another program while in use; load it again",
                       f->path);
    if (f->gguf ? pp_gguf_changed(f->gguf) : pp_safetensors_changed(f->weights))
        return pp_fail(err, PP_ERR_IO, "another program changed %s while it was being read; load it again when that "
                                       "is done", f->path);
    return PP_OK;
}

static enum pp_code check_values(const struct pp_adapter_file *f, const struct pp_tensor *t, struct pp_error *err)
{
    const int64_t n = t->ne[0], rows = t->data && t->n_dims > 1 ? t->ne[1] : t->data != NULL;
    const size_t row_bytes = pp_type_row_bytes(t->type, n);
    for (int64_t r = 0; r < rows; r++)
        if (!pp_row_finite(t->type, (const uint8_t *)t->data + (size_t)r * row_bytes, n))
            return pp_fail(err, PP_ERR_FORMAT, "%s: tensor %.200s contains NaN or infinity; the file is damaged: "
                                               "download it again", f->path, t->name);
    return PP_OK;
}

enum pp_code pp_adapter_file_check_values(const struct pp_adapter_file *f, struct pp_error *err)
{
    static const struct pp_adapter_target none;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < f->n && !code; i++)
        for (int part = 0; part < PP_PART_FOLDED && !code; part++) {
            const struct pp_tensor *t = part_of(&f->targets[i], (enum pp_adapter_part)part);
            const struct pp_adapter_target *last = i ? &f->targets[i - 1] : &none;
            if (t->data != part_of((struct pp_adapter_target *)(uintptr_t)last, (enum pp_adapter_part)part)->data)
                code = check_values(f, t, err); /* experts of a stack share one tensor */
        }
    return code;
}
