#include "engine/adapter_file.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/mem.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/hparams.h"
#include "engine/name_index.h"
#include "engine/safetensors.h"

static const char config_file[] = "adapter_config.json";
static const char weights_file[] = "adapter_model.safetensors";
enum { MAX_PATTERNS = 2048 }; /* each is held against each module's name */

struct pp_adapter_file {
    char *path;
    struct pp_gguf *gguf;                /* of a file */
    struct pp_safetensors *weights;      /* of a folder */
    cJSON *config;                       /* of a folder */
    const struct pp_arch *arch;
    char name[128];
    float alpha;
    struct pp_adapter_target *targets;   /* names are pp_free'd */
    size_t n;
    struct pp_name_index index;          /* of the targets' names */
};

/* --- pairing the halves -------------------------------------------------------------------------------- */

/* Room for as many targets as there are tensors; every pair takes two. */
static enum pp_code reserve(struct pp_adapter_file *f, size_t n_tensors, struct pp_error *err)
{
    f->targets = pp_calloc(n_tensors, sizeof *f->targets);
    if (!f->targets || !pp_name_index_init(&f->index, n_tensors))
        return pp_fail_nomem(err, "the list of an adapter's matrices");
    return PP_OK;
}

/* Notes tensor t as the A (or B) half of the matrix with a GGUF name. */
static enum pp_code add_half(struct pp_adapter_file *f, const char *name, size_t len, bool is_b,
                             const struct pp_tensor *t, struct pp_error *err)
{
    size_t i = pp_name_index_find(&f->index, name, len);
    if (t->n_dims != 2 || !t->size || !pp_type_info(t->type)->runnable)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s is not a matrix of a type that pippin can run",
                       f->path, t->name);
    if (i == SIZE_MAX) {
        char *copy = pp_strndup(name, len);
        if (!copy)
            return pp_fail_nomem(err, "the list of an adapter's matrices");
        i = f->n++;
        f->targets[i].name = copy;
        pp_name_index_add(&f->index, copy, len);
    }
    struct pp_tensor *half = is_b ? &f->targets[i].b : &f->targets[i].a;
    if (half->data)
        return pp_fail(err, PP_ERR_FORMAT, "%s has two adapters for %s", f->path, f->targets[i].name);
    *half = *t;
    return PP_OK;
}

static bool is_embedding(const char *name)
{
    return strcmp(name, "token_embd.weight") == 0;
}

/* Once all halves are there: do they fit each other, and what kind of matrix is it? */
static enum pp_code check_target(const struct pp_adapter_file *f, struct pp_adapter_target *t, struct pp_error *err)
{
    if (is_embedding(t->name))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s adapts the token embeddings, which is not supported", f->path);
    if (!t->a.data || !t->b.data)
        return pp_fail(err, PP_ERR_FORMAT, "%s has only one half of the adapter for %s", f->path, t->name);
    if (t->a.ne[1] != t->b.ne[0])
        return pp_fail(err, PP_ERR_FORMAT, "%s: the two halves for %s have ranks %lld and %lld", f->path, t->name,
                       (long long)t->a.ne[1], (long long)t->b.ne[0]);
    t->rows = pp_arch_rows(f->arch, t->name);
    return PP_OK;
}

static enum pp_code check_targets(struct pp_adapter_file *f, struct pp_error *err)
{
    if (f->n == 0)
        return pp_fail(err, PP_ERR_FORMAT, "%s holds no adapter matrices", f->path);
    if (!isfinite(f->alpha))
        return pp_fail(err, PP_ERR_FORMAT, "%s: alpha is not a finite number", f->path);
    for (size_t i = 0; i < f->n; i++) {
        enum pp_code code = check_target(f, &f->targets[i], err);
        if (code)
            return code;
    }
    return PP_OK;
}

/* The end of a string if it ends so; else NULL. */
static const char *ending(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0 ? s + n - m : NULL;
}

/* --- GGUF ---------------------------------------------------------------------------------------------- */

static enum pp_code read_gguf_header(struct pp_adapter_file *f, struct pp_error *err)
{
    struct pp_str s;
    double alpha;
    if (!pp_gguf_string_is(f->gguf, "general.type", "adapter"))
        return pp_fail(err, PP_ERR_FORMAT, "%s is not an adapter but a model", f->path);
    if (!pp_gguf_string_is(f->gguf, "adapter.type", "lora"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is an adapter of another kind than LoRA", f->path);
    if (!pp_gguf_float(f->gguf, "adapter.lora.alpha", &alpha))
        return pp_fail(err, PP_ERR_FORMAT, "%s lacks adapter.lora.alpha", f->path);
    f->alpha = (float)alpha;
    if (pp_gguf_string(f->gguf, "general.name", &s))
        pp_clean_name(s.data, s.len, f->name, sizeof f->name);
    char family[64] = "";
    if (pp_gguf_string(f->gguf, "general.architecture", &s))
        pp_clean_name(s.data, s.len, family, sizeof family);
    f->arch = pp_arch_by_name(family);
    if (!f->arch)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is an adapter for the family \"%s\", which pippin does not know",
                       f->path, family);
    return PP_OK;
}

static enum pp_code open_gguf(struct pp_adapter_file *f, struct pp_error *err)
{
    enum pp_code code = pp_gguf_open(f->path, &f->gguf, err);
    if (!code)
        code = read_gguf_header(f, err);
    size_t n = code ? 0 : pp_gguf_n_tensors(f->gguf);
    if (!code)
        code = reserve(f, n, err);
    for (size_t i = 0; i < n && !code; i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(f->gguf, i);
        const char *a = ending(t->name, ".lora_a"), *b = ending(t->name, ".lora_b");
        if (!a && !b)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %s is not part of a LoRA matrix", f->path, t->name);
        else
            code = add_half(f, t->name, (size_t)((a ? a : b) - t->name), b != NULL, t, err);
    }
    if (!code)
        code = check_targets(f, err);
    for (size_t i = 0; i < f->n && !code; i++) {
        struct pp_adapter_target *t = &f->targets[i];
        t->scale = f->alpha != 0.0f ? f->alpha / (float)t->a.ne[1] : 1.0f; /* 0 means: not scaled */
    }
    return code;
}

/* --- PEFT ---------------------------------------------------------------------------------------------- */

/* Things that change what the adapter computes and that we do not compute. They are off when absent, null, false or
 * empty. */
static const char *const refused[] = {
    "use_dora",          "modules_to_save",         "lora_bias",   "layer_replication", "target_parameters",
    "arrow_config",      "trainable_token_indices", "use_qalora",  "alora_invocation_tokens",
    "use_bdlora",        "kasa_config",             "monteclora_config",
};

/* Initialisations that also change the base model's weights, so that the adapter alone does not fit the original. */
static const char *const refused_init[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

static bool switched_on(const cJSON *item)
{
    if (!item || cJSON_IsNull(item) || cJSON_IsFalse(item))
        return false;
    if (cJSON_IsArray(item) || cJSON_IsObject(item))
        return item->child != NULL;
    return true;
}

static enum pp_code check_features(const struct pp_adapter_file *f, struct pp_error *err)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(f->config, "peft_type");
    const cJSON *bias = cJSON_GetObjectItemCaseSensitive(f->config, "bias");
    const cJSON *init = cJSON_GetObjectItemCaseSensitive(f->config, "init_lora_weights");
    const cJSON *alphas = cJSON_GetObjectItemCaseSensitive(f->config, "alpha_pattern");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "LORA") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is an adapter of another kind than LoRA (peft_type)", f->path);
    if (cJSON_IsString(bias) && strcmp(bias->valuestring, "none") != 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s has trained biases (bias \"%.20s\"), which are not supported",
                       f->path, bias->valuestring);
    if (cJSON_GetArraySize(alphas) > MAX_PATTERNS)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: alpha_pattern has more than %d entries", f->path, MAX_PATTERNS);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (switched_on(cJSON_GetObjectItemCaseSensitive(f->config, refused[i])))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "%s uses %s, which is not supported", f->path, refused[i]);
    for (size_t i = 0; cJSON_IsString(init) && i < sizeof refused_init / sizeof *refused_init; i++)
        if (strncmp(init->valuestring, refused_init[i], strlen(refused_init[i])) == 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED,
                           "%s was made with init_lora_weights \"%.20s\", which changes the base model too; "
                           "convert it to a plain LoRA with PEFT first",
                           f->path, init->valuestring);
    return PP_OK;
}

/* alpha_pattern has names of modules, or ends of such names ("self_attn.q_proj"); PEFT takes the first that fits. The
 * file may use regular expressions there, which we refuse rather than guess. */
static enum pp_code alpha_of(const struct pp_adapter_file *f, const char *module, float *alpha, struct pp_error *err)
{
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(f->config, "alpha_pattern");
    size_t n = strlen(module);
    *alpha = f->alpha;
    for (const cJSON *item = cJSON_IsObject(pattern) ? pattern->child : NULL; item; item = item->next) {
        size_t m = strlen(item->string);
        if (strpbrk(item->string, "*+?[](){}|\\^$") || !cJSON_IsNumber(item))
            return pp_fail(err, PP_ERR_UNSUPPORTED,
                           "%s: alpha_pattern \"%.100s\" is not the name of a module with a number", f->path,
                           item->string);
        if (m <= n && strcmp(module + n - m, item->string) == 0 && (m == n || module[n - m - 1] == '.')) {
            *alpha = (float)item->valuedouble;
            return isfinite(*alpha) ? PP_OK : pp_fail(err, PP_ERR_FORMAT, "%s: alpha_pattern is not finite", f->path);
        }
    }
    return PP_OK;
}

/* A tensor's name without what PEFT wraps around it: "base_model.model.", ".lora_A.weight". */
struct peft_name {
    const char *module;
    size_t len;
    bool is_b;
};

static bool split_name(const char *name, struct peft_name *out)
{
    static const char prefix[] = "base_model.model.";
    static const char *const ends[] = {".lora_A.weight", ".lora_B.weight", ".lora_A.default.weight",
                                       ".lora_B.default.weight"};
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1;
    for (size_t i = 0; i < 4; i++) {
        const char *end = ending(name, ends[i]);
        if (end) {
            *out = (struct peft_name){name, (size_t)(end - name), i % 2 == 1};
            return true;
        }
    }
    return false;
}

/* The GGUF name of a module's weight in a family, in *gguf; the module's own full name in *weight. */
static bool translate(const struct pp_arch *arch, const struct peft_name *p, struct pp_buf *weight, struct pp_buf *gguf)
{
    pp_buf_clear(weight);
    pp_buf_add(weight, p->module, p->len);
    pp_buf_str(weight, ".weight");
    return pp_arch_gguf_name(arch, pp_buf_cstr(weight), gguf, NULL) == PP_NAME_FOUND && !gguf->bad && !weight->bad;
}

/* The folder does not name the family: the first one that has a matrix of that name. */
static const struct pp_arch *guess_family(const struct pp_safetensors *weights, struct pp_buf *weight,
                                          struct pp_buf *gguf)
{
    const struct pp_arch *arch;
    struct peft_name p;
    for (size_t i = 0; (arch = pp_arch_at(i)); i++)
        for (size_t t = 0; t < pp_safetensors_n(weights); t++)
            if (split_name(pp_safetensors_at(weights, t)->name, &p) && translate(arch, &p, weight, gguf))
                return arch;
    return NULL;
}

static enum pp_code add_peft_tensor(struct pp_adapter_file *f, const struct pp_tensor *t, struct pp_buf *weight,
                                    struct pp_buf *gguf, struct pp_error *err)
{
    struct peft_name p;
    if (!split_name(t->name, &p) || !translate(f->arch, &p, weight, gguf))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s is not part of a LoRA matrix of the family %s",
                       f->path, t->name, f->arch->name);
    size_t before = f->n;
    enum pp_code code = add_half(f, gguf->data, gguf->len, p.is_b, t, err);
    if (code || f->n == before)
        return code;
    weight->data[p.len] = 0; /* the module without ".weight" */
    return alpha_of(f, weight->data, &f->targets[before].scale, err);
}

static enum pp_code read_peft_tensors(struct pp_adapter_file *f, struct pp_error *err)
{
    struct pp_buf weight = {0}, gguf = {0};
    size_t n = pp_safetensors_n(f->weights);
    enum pp_code code = reserve(f, n, err);
    if (!code) {
        f->arch = guess_family(f->weights, &weight, &gguf);
        if (!f->arch)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "%s adapts no matrix of a model family that pippin knows", f->path);
    }
    for (size_t i = 0; i < n && !code; i++)
        code = add_peft_tensor(f, pp_safetensors_at(f->weights, i), &weight, &gguf, err);
    pp_buf_free(&weight);
    pp_buf_free(&gguf);
    return code ? code : check_targets(f, err);
}

/* The rank is that of the matrices; config.json's r and rank_pattern only say the same again. */
static void divide_by_rank(struct pp_adapter_file *f)
{
    bool root = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(f->config, "use_rslora"));
    for (size_t i = 0; i < f->n; i++) {
        float r = (float)f->targets[i].a.ne[1];
        f->targets[i].scale /= root ? sqrtf(r) : r;
    }
}

static enum pp_code open_folder(struct pp_adapter_file *f, struct pp_error *err)
{
    if (!pp_file_exists(f->path, config_file))
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s has no %s, so it is no adapter", f->path, config_file);
    enum pp_code code = pp_json_read(f->path, config_file, &f->config, err);
    if (!code)
        code = check_features(f, err);
    if (code)
        return code;
    f->alpha = 8; /* PEFT's default */
    if (!pp_json_float(f->config, "lora_alpha", &f->alpha))
        return pp_fail(err, PP_ERR_FORMAT, "%s/%s: lora_alpha is not a number", f->path, config_file);
    pp_title_of_path(f->path, f->name, sizeof f->name);
    char *path = pp_path_join(f->path, weights_file);
    if (!path)
        return pp_fail_nomem(err, "a file name");
    code = pp_safetensors_open(path, &f->weights, err);
    pp_free(path);
    if (!code)
        code = read_peft_tensors(f, err);
    if (!code)
        divide_by_rank(f);
    return code;
}

/* --- the interface ------------------------------------------------------------------------------------- */

enum pp_code pp_adapter_file_open(const char *path, struct pp_adapter_file **out, struct pp_error *err)
{
    struct stat st;
    struct pp_adapter_file *f = pp_calloc(1, sizeof *f);
    *out = NULL;
    if (!f || !(f->path = pp_strdup(path))) {
        pp_free(f);
        return pp_fail_nomem(err, path);
    }
    enum pp_code code = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? open_folder(f, err) : open_gguf(f, err);
    if (code) {
        pp_adapter_file_close(f);
        return code;
    }
    *out = f;
    return PP_OK;
}

void pp_adapter_file_close(struct pp_adapter_file *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n; i++)
        pp_free((void *)(uintptr_t)f->targets[i].name);
    pp_free(f->targets);
    pp_name_index_free(&f->index);
    pp_gguf_close(f->gguf);
    pp_safetensors_close(f->weights);
    cJSON_Delete(f->config);
    pp_free(f->path);
    pp_free(f);
}

bool pp_is_adapter(const char *path)
{
    struct stat st;
    struct pp_gguf *g;
    if (stat(path, &st) != 0)
        return false;
    if (S_ISDIR(st.st_mode))
        return pp_file_exists(path, config_file);
    if (pp_gguf_open(path, &g, NULL) != PP_OK)
        return false;
    bool adapter = pp_gguf_string_is(g, "general.type", "adapter");
    pp_gguf_close(g);
    return adapter;
}

const char *pp_adapter_file_name(const struct pp_adapter_file *f)
{
    return f->name;
}

const char *pp_adapter_file_arch(const struct pp_adapter_file *f)
{
    return f->arch->name;
}

bool pp_adapter_file_hf_order(const struct pp_adapter_file *f)
{
    return f->weights != NULL;
}

const char *pp_adapter_file_base(const struct pp_adapter_file *f)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(f->config, "base_model_name_or_path"));
}

float pp_adapter_file_alpha(const struct pp_adapter_file *f)
{
    return f->alpha;
}

size_t pp_adapter_file_n(const struct pp_adapter_file *f)
{
    return f->n;
}

const struct pp_adapter_target *pp_adapter_file_at(const struct pp_adapter_file *f, size_t i)
{
    return &f->targets[i];
}

enum pp_code pp_adapter_file_check(const struct pp_adapter_file *f, struct pp_error *err)
{
    if (f->gguf ? !pp_gguf_lost(f->gguf) : !pp_safetensors_lost(f->weights))
        return PP_OK;
    return pp_fail(err, PP_ERR_IO, "%s was cut short by another program while it was in use; load it again", f->path);
}
