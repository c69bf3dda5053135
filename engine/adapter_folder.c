/* adapter_folder.c - adapters as PEFT and MLX write them: a configuration and a safetensors file. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/adapter_file_int.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/hf.h"
#include "engine/hparams.h"
#include "engine/npz.h"
#include "engine/safetensors.h"

/* --- configuration ------------------------------------------------------------------------------------------- */

/* Options that change what the adapter computes and that we do not support. They are off when absent, null, false or
 * empty. */
static const struct {
    const char *name, *what;
} refused[] = {
    {"layer_replication", "layers that are gone through several times"},
    {"arrow_config", "adapters chosen token by token"},
    {"use_qalora", "LoRA of groups of inputs"},
    {"use_bdlora", "LoRA of blocks"},
    {"kasa_config", "singular values between A and B, beside weights without their smallest ones"},
    {"monteclora_config", "LoRA that is drawn"},
};

/* Options that matter only in training, or are read elsewhere. Others named "use_..." and "..._config" are refused: new
 * versions of PEFT add such, some of which change the result without a tensor that would show it. */
static const char *const known[] = {
    "use_dora", "use_rslora", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config",
    "megatron_config", "runtime_config", "use_effective_conv2d",
};

/* Initialisations that also change the base model's weights, so that the adapter alone does not fit the original. */
static const char *const refused_init[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

static const cJSON *member(const struct pp_adapter_file *f, const char *name)
{
    return pp_json_member(f->config, name);
}

static bool switched_on(const cJSON *item)
{
    if (!item || cJSON_IsNull(item) || cJSON_IsFalse(item))
        return false;
    if (cJSON_IsArray(item) || cJSON_IsObject(item))
        return item->child != NULL;
    return true;
}

static bool is_string(const cJSON *item, const char *s)
{
    return cJSON_IsString(item) && strcmp(item->valuestring, s) == 0;
}

/* PEFT's kinds that run, by peft_type. */
static const struct {
    const char *type;
    int kind;
} kinds[] = {
    {"LORA", PP_ADAPTER_LORA},       {"IA3", PP_ADAPTER_IA3},
    {"ADALORA", PP_ADAPTER_ADALORA}, {"LOHA", PP_ADAPTER_LOHA},
    {"LOKR", PP_ADAPTER_LOKR},       {"LN_TUNING", PP_ADAPTER_NORMS},
    {"TRAINABLE_TOKENS", PP_ADAPTER_TOKENS},
};

/* Whether PEFT can convert an adapter of this kind to a LoRA: it adds to matrices. */
static bool can_be_converted(const cJSON *type)
{
    static const char *const names[] = {"VERA",    "VBLORA", "RANDLORA", "FOURIERFT", "C3A",   "MISS", "GRALORA",
                                        "DELORA", "WAVEFT", "TINYLORA", "UNILORA",   "PSOFT", "HIRA", "SHIRA"};
    size_t i = 0;
    while (i < sizeof names / sizeof *names && !is_string(type, names[i]))
        i++;
    return i < sizeof names / sizeof *names;
}

/* Whether it is more than a change of matrices: vectors before the text, or a choice for each token. PEFT cannot merge
 * such adapters into the model either. */
static bool cannot_be_merged(const cJSON *type)
{
    static const char *const names[] = {"PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT",
                                        "CARTRIDGE", "ADAPTION_PROMPT", "XLORA", "POLY", "LILY"};
    size_t i = 0;
    while (i < sizeof names / sizeof *names && !is_string(type, names[i]))
        i++;
    return i < sizeof names / sizeof *names;
}

static enum pp_code fail_kind(const struct pp_adapter_file *f, const cJSON *type, struct pp_error *err)
{
    const char *what = can_be_converted(type)           ? "PEFT can approximate it by a LoRA (save_as_lora)"
                       : cannot_be_merged(type) ? "it changes more than matrices; train a LoRA instead"
                                                : "merge it into the model with PEFT (merge_and_unload, "
                                                  "save_pretrained), and use that folder as the model";
    if (!cJSON_IsString(type))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s/%s does not name the kind of adapter (peft_type)", f->path,
                       pp_adapter_config_file);
    return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is an adapter of the kind %.40s; supported are LoRA, DoRA, AdaLoRA, "
                                            "LoHa, LoKr, IA3, LN_TUNING and TRAINABLE_TOKENS; %s", f->path,
                   type->valuestring, what);
}

static enum pp_code read_kind(struct pp_adapter_file *f, struct pp_error *err)
{
    const cJSON *type = member(f, "peft_type");
    size_t i = 0;
    while (i < sizeof kinds / sizeof *kinds && !is_string(type, kinds[i].type))
        i++;
    if (i == sizeof kinds / sizeof *kinds)
        return fail_kind(f, type, err);
    f->kind = kinds[i].kind;
    if (f->kind == PP_ADAPTER_LORA && switched_on(member(f, "use_dora")))
        f->kind = PP_ADAPTER_DORA;
    return PP_OK;
}

/* A LoRA, perhaps a DoRA. */
static bool is_lora(const struct pp_adapter_file *f)
{
    return f->kind == PP_ADAPTER_LORA || f->kind == PP_ADAPTER_DORA;
}

/* A and B must be computed from other products. */
static bool is_made(const struct pp_adapter_file *f)
{
    return f->kind == PP_ADAPTER_LOHA || f->kind == PP_ADAPTER_LOKR;
}

static bool is_known(const char *option)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(option, known[i]) == 0)
            return true;
    return strncmp(option, "use_", 4) != 0 && !pp_ends_with(option, "_config");
}

static enum pp_code check_features(const struct pp_adapter_file *f, struct pp_error *err)
{
    const cJSON *init = member(f, "init_lora_weights"), *option;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (switched_on(member(f, refused[i].name)))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "%s uses %s: %s; that is not supported", f->path, refused[i].name,
                           refused[i].what);
    cJSON_ArrayForEach(option, f->config)
        if (switched_on(option) && !is_known(option->string))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "%s sets %.60s, which pippin does not know and which may change "
                                                    "what the adapter computes; if it does not, remove it from %s",
                                                    f->path, option->string,
                           pp_adapter_config_file);
    for (size_t i = 0; cJSON_IsString(init) && i < sizeof refused_init / sizeof *refused_init; i++)
        if (pp_ncasecmp(init->valuestring, refused_init[i], strlen(refused_init[i])) == 0)
            return pp_fail(err, PP_ERR_UNSUPPORTED,
                           "%s was made with init_lora_weights \"%.20s\", which changes the base model too, so it is "
                           "wrong for the original one; convert it to a plain LoRA with PEFT's save_pretrained and "
                           "path_initial_model_for_weight_conversion",
                           f->path, init->valuestring);
    return PP_OK;
}

/* Reads what invokes an activated LoRA. Older versions stored a text, which only the tokenizer of that time turns into
 * the right tokens. */
static enum pp_code read_invocation(struct pp_adapter_file *f, struct pp_error *err)
{
    const cJSON *tokens = member(f, "alora_invocation_tokens"), *text = member(f, "invocation_string"), *item;
    if (!switched_on(tokens) && switched_on(text))
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "%s is invoked by a text (invocation_string); put its token ids into %s as "
                       "alora_invocation_tokens",
                       f->path, pp_adapter_config_file);
    if (!switched_on(tokens))
        return PP_OK;
    if (!cJSON_IsArray(tokens) || !is_lora(f))
        return pp_adapter_bad_invocation(f, err);
    enum pp_code code = pp_adapter_reserve_invocation(f, (size_t)cJSON_GetArraySize(tokens), err);
    size_t n = 0;
    cJSON_ArrayForEach(item, tokens)
    {
        if (code)
            return code;
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= INT32_MAX) ||
            item->valuedouble != floor(item->valuedouble))
            return pp_adapter_bad_invocation(f, err);
        f->invocation[n++] = (int32_t)item->valuedouble;
    }
    return code;
}

/* --- names of tensors ---------------------------------------------------------------------------------------- */

/* What follows a module's name. PEFT omits the adapter's own name ("default") when it saves. */
struct ending {
    const char *end;
    enum pp_adapter_part part;
};

static const struct ending peft_endings[] = {
    {".lora_A.weight", PP_PART_A},
    {".lora_B.weight", PP_PART_B},
    {".lora_A.default.weight", PP_PART_A},
    {".lora_B.default.weight", PP_PART_B},
    {".lora_A", PP_PART_A}, /* AdaLoRA's */
    {".lora_B", PP_PART_B},
    {".lora_E", PP_PART_FOLDED},
    {".ranknum", PP_PART_FOLDED},
    {".lora_A.default", PP_PART_A},
    {".lora_B.default", PP_PART_B},
    {".lora_E.default", PP_PART_FOLDED},
    {".ranknum.default", PP_PART_FOLDED},
    {".lora_embedding_A", PP_PART_A},
    {".lora_embedding_B", PP_PART_B},
    {".lora_embedding_A.default", PP_PART_A},
    {".lora_embedding_B.default", PP_PART_B},
    {".hada_w1_a", PP_PART_FACTORS},
    {".hada_w1_b", PP_PART_FACTOR},
    {".hada_w2_a", PP_PART_FACTOR},
    {".hada_w2_b", PP_PART_FACTOR},
    {".lokr_w1", PP_PART_FACTORS},
    {".lokr_w1_a", PP_PART_FACTORS},
    {".lokr_w1_b", PP_PART_FACTOR},
    {".lokr_w2", PP_PART_FACTOR},
    {".lokr_w2_a", PP_PART_FACTOR},
    {".lokr_w2_b", PP_PART_FACTOR},
    {".lora_B.bias", PP_PART_B_BIAS},
    {".lora_B.default.bias", PP_PART_B_BIAS},
    {".lora_magnitude_vector", PP_PART_MAGNITUDE},
    {".lora_magnitude_vector.weight", PP_PART_MAGNITUDE},
    {".lora_magnitude_vector.default", PP_PART_MAGNITUDE},
    {".lora_magnitude_vector.default.weight", PP_PART_MAGNITUDE},
    {".ia3_l", PP_PART_IA3},
    {".ia3_l.default", PP_PART_IA3},
    {".base_layer.bias", PP_PART_BIAS},
    {".modules_to_save.bias", PP_PART_BIAS},
    {".modules_to_save.default.bias", PP_PART_BIAS},
    {".modules_to_save.weight", PP_PART_WEIGHT},
    {".modules_to_save.default.weight", PP_PART_WEIGHT},
    {".token_adapter.trainable_tokens_delta", PP_PART_TOKENS},
    {".token_adapter.trainable_tokens_delta.default", PP_PART_TOKENS},
    {".trainable_tokens_delta", PP_PART_TOKENS}, /* of an adapter that has nothing else */
    {".trainable_tokens_delta.default", PP_PART_TOKENS},
    {".trainable_tokens_original", PP_PART_NOTHING},
    {".trainable_tokens_original.default", PP_PART_NOTHING},
    {".ln_tuning_layers.weight", PP_PART_WEIGHT},
    {".ln_tuning_layers.bias", PP_PART_BIAS},
    {".ln_tuning_layers.default.weight", PP_PART_WEIGHT},
    {".ln_tuning_layers.default.bias", PP_PART_BIAS},
    {".original_module.weight", PP_PART_NOTHING},
    {".original_module.bias", PP_PART_NOTHING},
    {".base_layer.weight", PP_PART_NOTHING}, /* saved with a LoRA of the embeddings: the base model's */
    {".bias", PP_PART_BIAS},
    {".weight", PP_PART_WEIGHT}, /* modules_to_save, as PEFT saves them */
    {NULL, PP_PART_A},
};

static const struct ending mlx_endings[] = {
    {".lora_a", PP_PART_A}, {".lora_b", PP_PART_B}, {".m", PP_PART_MAGNITUDE}, {NULL, PP_PART_A}};

/* A tensor's name, taken apart: module, and the part that its ending tells, without "base_model.model.". */
struct part_name {
    const char *module;
    size_t len;
    enum pp_adapter_part part;
};

static bool split_name(const char *name, const struct ending *endings, struct part_name *out)
{
    static const char prefix[] = "base_model.model.";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1;
    for (const struct ending *e = endings; e->end; e++) {
        const char *end = pp_name_ending(name, e->end);
        if (end) {
            *out = (struct part_name){name, (size_t)(end - name), e->part};
            return true;
        }
    }
    return false;
}

/* A module's weight: its full name, its GGUF name, and what else its line in the family's table says. */
struct translation {
    struct pp_buf weight, gguf, second;
    enum pp_hf_form form;
};

static void translation_free(struct translation *t)
{
    pp_buf_free(&t->weight);
    pp_buf_free(&t->gguf);
    pp_buf_free(&t->second);
}

static bool translate(const struct pp_arch *arch, const struct part_name *p, struct translation *t)
{
    const struct pp_arch_name *entry;
    pp_buf_clear(&t->weight);
    pp_buf_add(&t->weight, p->module, p->len);
    pp_buf_str(&t->weight, ".weight");
    if (pp_arch_translate(arch, NULL, pp_buf_cstr(&t->weight), &entry, &t->gguf, &t->second) != PP_NAME_FOUND)
        return false;
    t->form = entry->form;
    return !t->gguf.bad && !t->weight.bad && !t->second.bad;
}

/* Translates a module's name with its last word replaced; NULL: the family has no such name. */
static const struct pp_arch_name *find_other(const struct pp_arch *arch, const struct part_name *p, const char *word,
                                             const char *other, struct pp_buf *gguf, struct pp_buf *second)
{
    const size_t n = strlen(word);
    const struct pp_arch_name *entry = NULL;
    struct pp_buf name = {0};
    if (p->len <= n || strncmp(p->module + p->len - n, word, n) != 0)
        return NULL;
    pp_buf_fmt(&name, "%.*s%s.weight", (int)(p->len - n), p->module, other);
    const bool found = !name.bad && pp_arch_translate(arch, NULL, pp_buf_cstr(&name), &entry, gguf, second) ==
                                        PP_NAME_FOUND;
    pp_buf_free(&name);
    return found && !gguf->bad && !second->bad ? entry : NULL;
}

/* Replaces a word of a GGUF name; false: it is not there. */
static bool replace_word(struct pp_buf *name, const char *word, const char *other)
{
    struct pp_buf made = {0};
    const char *all = pp_buf_cstr(name), *at = strstr(all, word);
    if (!at)
        return false;
    pp_buf_fmt(&made, "%.*s%s%s", (int)(at - all), all, other, at + strlen(word));
    pp_buf_free(name);
    *name = made;
    return !name->bad;
}

/* Translates modules that the folder has fused and the family separate, or the other way round. */
static bool translate_otherwise(const struct pp_arch *arch, const struct part_name *p, struct translation *t)
{
    static const char *const parts[3][2] = {{".q_proj", ".attn_q."}, {".k_proj", ".attn_k."}, {".v_proj", ".attn_v."}};
    static const char qkv[] = ".qkv_proj", gate_up[] = ".gate_up_proj";
    const struct pp_arch_name *entry;
    struct pp_buf none = {0};
    bool found = false;
    t->form = PP_HF_SAME;
    pp_buf_clear(&t->second);
    if (find_other(arch, p, qkv, parts[0][0], &t->gguf, &t->second)) {
        t->form = PP_HF_QKV_STACKED;
        return replace_word(&t->gguf, parts[0][1], ".attn_qkv.");
    }
    if (find_other(arch, p, gate_up, ".gate_proj", &t->gguf, &none) &&
        find_other(arch, p, gate_up, ".up_proj", &t->second, &none)) {
        t->form = PP_HF_HALVES;
        found = strstr(pp_buf_cstr(&t->gguf), ".ffn_gate") != NULL;
    }
    for (int i = 0; i < 3 && !found; i++) {
        entry = find_other(arch, p, parts[i][0], qkv, &t->gguf, &t->second);
        found = entry && (entry->form == PP_HF_SAME || entry->form == PP_HF_QKV_STACKED) &&
                replace_word(&t->gguf, ".attn_qkv.", parts[i][1]);
    }
    for (int i = 0; i < 2 && !found; i++) {
        entry = find_other(arch, p, i ? ".up_proj" : ".gate_proj", gate_up, &t->gguf, &t->second);
        if (entry && entry->form == PP_HF_HALVES && t->second.len) /* names of the gate and of `up` */
            found = i ? replace_word(&t->gguf, ".ffn_gate", ".ffn_up") : true;
        else if (entry && entry->form == PP_HF_SAME)
            found = i || replace_word(&t->gguf, ".ffn_up", ".ffn_gate");
        if (found)
            pp_buf_clear(&t->second);
    }
    pp_buf_free(&none);
    return found;
}

/* How many tensors a family's table translates; otherwise: with modules that are fused otherwise. */
static size_t count_known(const struct pp_adapter_file *f, const struct ending *endings, const struct pp_arch *arch,
                          bool otherwise, struct translation *to)
{
    struct pp_adapter_stack stack;
    struct part_name p;
    size_t n = 0;
    for (size_t t = 0; t < pp_safetensors_n(f->weights); t++)
        n += split_name(pp_safetensors_at(f->weights, t)->name, endings, &p) &&
             (translate(arch, &p, to) || (otherwise && translate_otherwise(arch, &p, to)) ||
              pp_adapter_find_stack(f, arch, p.module, p.len, p.part, pp_safetensors_at(f->weights, t), &stack));
    return n;
}

/* Guesses the family, which the folder does not name: the wanted one if it knows any of the matrices; otherwise the one
 * that knows most of them, and among equals the one that knows most without translate_otherwise. */
static const struct pp_arch *guess_family(const struct pp_adapter_file *f, const struct ending *endings,
                                          struct translation *to)
{
    const struct pp_arch *arch, *best = NULL;
    size_t most = 0, most_own = 0;
    if (f->wanted && count_known(f, endings, f->wanted, true, to))
        return f->wanted;
    for (size_t i = 0; (arch = pp_arch_at(i)) && (!best || most_own < pp_safetensors_n(f->weights)); i++) {
        const size_t n = count_known(f, endings, arch, true, to);
        const size_t own = n && n >= most ? count_known(f, endings, arch, false, to) : 0;
        if (n > most || (n && n == most && own > most_own)) {
            best = arch;
            most = n;
            most_own = own;
        }
    }
    return best;
}

/* --- scales -------------------------------------------------------------------------------------------------- */

/* What the configuration says about named modules. */
struct per_module {
    const struct ending *endings;
    struct pp_module_patterns *alphas, *ranks; /* of PEFT; or NULL */
    bool rslora;
};

static enum pp_code read_per_module(const struct pp_adapter_file *f, struct per_module *m, struct pp_error *err)
{
    enum { MOST_MASKS = 2048 };
    if (f->kind == PP_ADAPTER_ADALORA && cJSON_IsArray(member(f, "rank_pattern")))
        return pp_fail(err, PP_ERR_FORMAT, "%s: rank_pattern is a list, but must name modules", f->path);
    if (f->kind == PP_ADAPTER_ADALORA) /* alpha is the same for all, and masks tell ranks */
        return cJSON_GetArraySize(member(f, "rank_pattern")) <= MOST_MASKS
                   ? PP_OK
                   : pp_fail(err, PP_ERR_UNSUPPORTED, "rank_pattern has more than %d entries", MOST_MASKS);
    m->rslora = cJSON_IsTrue(member(f, "use_rslora"));
    enum pp_code code = pp_module_patterns_new(member(f, "alpha_pattern"), "alpha_pattern", &m->alphas, err);
    return code ? code : pp_module_patterns_new(member(f, "rank_pattern"), "rank_pattern", &m->ranks, err);
}

/* The scale of a PEFT target. Its rank is that of the matrices, with which the configuration must agree. */
static enum pp_code scale_of(const struct pp_adapter_file *f, const struct per_module *m, const char *module,
                             struct pp_adapter_target *t, struct pp_error *err)
{
    double alpha = (double)f->alpha, rank = (double)t->rank;
    const cJSON *r = member(f, "r");
    if (!t->rank)
        return PP_OK;
    if (f->kind == PP_ADAPTER_ADALORA)
        return pp_adapter_fold_scale(f, &t->a, &t->scale, err);
    if (is_made(f))
        rank = 8; /* PEFT's default */
    if (cJSON_IsNumber(r))
        rank = r->valuedouble;
    enum pp_code code = pp_module_patterns_find(m->alphas, module, &alpha, err);
    if (!code)
        code = pp_module_patterns_find(m->ranks, module, &rank, err);
    if (!code && is_made(f) && (f->kind != PP_ADAPTER_LOHA || rank * rank == (double)t->rank)) {
        t->scale = (float)(alpha / rank);
        return isfinite(t->scale) ? PP_OK : pp_fail(err, PP_ERR_FORMAT, "%s/%s: alpha and r of %s, %g and %g, do not "
                                                                        "give a valid scale", f->path,
                                                                        pp_adapter_config_file, t->name, alpha, rank);
    }
    if (!code && rank != (double)t->rank)
        code = pp_fail(err, PP_ERR_FORMAT, "%s: %s has rank %lld, but %s says %g", f->path, t->name,
                       (long long)t->rank, pp_adapter_config_file, rank);
    t->scale = (float)(alpha / (m->rslora ? sqrt((double)t->rank) : (double)t->rank));
    if (!code && !isfinite(t->scale))
        code = pp_fail(err, PP_ERR_FORMAT, "%s/%s: the alpha of %s, %g, is too large",
                       f->path, pp_adapter_config_file, t->name, alpha);
    return code;
}

/* --- tokens -------------------------------------------------------------------------------------------------- */

/* Whether a module's name is `end`, or ends with it after a dot. */
static bool is_module(const char *module, const char *end)
{
    const size_t n = strlen(module), m = strlen(end);
    return m <= n && strcmp(module + n - m, end) == 0 && (m == n || module[n - m - 1] == '.');
}

/* The member of the configuration that lists tokens. */
static const char *tokens_member(const struct pp_adapter_file *f)
{
    return f->kind == PP_ADAPTER_TOKENS ? "token_indices" : "trainable_token_indices";
}

/* Reads which tokens' rows a module has: one list for the embeddings, or a list for each module. */
static enum pp_code read_tokens(const struct pp_adapter_file *f, const char *module, struct pp_adapter_target *t,
                                struct pp_error *err)
{
    const cJSON *list = member(f, tokens_member(f)), *item;
    const int64_t n = t->tokens.ne[1];
    int64_t i = 0;
    if (cJSON_IsObject(list)) {
        item = list->child;
        while (item && !is_module(module, item->string))
            item = item->next;
        list = item;
    }
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n)
        return pp_fail(err, PP_ERR_FORMAT, "%s: %s has %lld tokens of its own, but %s does not name as many", f->path,
                       t->name, (long long)n, tokens_member(f));
    int32_t *ids = pp_calloc((size_t)n, sizeof *ids);
    struct pp_name_index seen = {0};
    bool good = ids && pp_name_index_init(&seen, (size_t)n);
    if (!good) {
        pp_free(ids);
        return pp_fail_nomem(err, "an adapter's tokens");
    }
    t->token_ids = ids;
    cJSON_ArrayForEach(item, list)
    {
        good = good && cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= INT32_MAX &&
               item->valuedouble == floor(item->valuedouble);
        ids[i] = good ? (int32_t)item->valuedouble : 0;
        good = good && pp_name_index_add(&seen, (const char *)&ids[i], sizeof *ids);
        i++;
    }
    pp_name_index_free(&seen);
    return good ? PP_OK
                : pp_fail(err, PP_ERR_FORMAT, "%s/%s: %s is not a list of distinct tokens", f->path,
                          pp_adapter_config_file, tokens_member(f));
}

/* --- tensors ------------------------------------------------------------------------------------------------- */

/* What a tensor of a folder is: a part of one target, or of all targets of a stack. */
struct place {
    struct part_name name;
    bool stacked;
    struct pp_adapter_stack stack;
};

static bool find_place(const struct pp_adapter_file *f, const struct per_module *m, const struct pp_tensor *t,
                       struct translation *to, struct place *p)
{
    if (!split_name(t->name, m->endings, &p->name))
        return false;
    const char *module = p->name.module;
    const size_t len = p->name.len;
    const enum pp_adapter_part part = p->name.part;
    if (!translate(f->arch, &p->name, to) && !translate_otherwise(f->arch, &p->name, to))
        return p->stacked = pp_adapter_find_stack(f, f->arch, module, len, part, t, &p->stack);
    p->stacked = (part == PP_PART_A || part == PP_PART_B) &&
                 pp_adapter_translated_stack(f, pp_buf_cstr(&to->gguf), to->second.len ? pp_buf_cstr(&to->second) : "",
                                             to->form, module, len, part, t, &p->stack);
    return true;
}

/* Whether a tensor belongs to a part of the model that does not run here, above all vision and audio. */
static bool is_other_modality(const struct pp_arch *arch, const struct part_name *p)
{
    struct translation to = {0};
    const struct pp_arch_name *entry;
    pp_buf_fmt(&to.weight, "%.*s.weight", (int)p->len, p->module);
    const bool beside = !to.weight.bad &&
                        (pp_is_other_modality(pp_buf_cstr(&to.weight)) ||
                         pp_arch_translate(arch, NULL, pp_buf_cstr(&to.weight), &entry, &to.gguf, &to.second) ==
                             PP_NAME_IGNORED);
    translation_free(&to);
    return beside;
}

/* Adds all targets of a stack's tensor; the configuration tells the rank of each expert. */
static enum pp_code add_stack(struct pp_adapter_file *f, const struct per_module *m, struct place *p,
                              const struct pp_tensor *t, struct pp_buf *modules, struct pp_error *err)
{
    const size_t before = f->n;
    const cJSON *r = member(f, "r");
    double rank = cJSON_IsNumber(r) ? r->valuedouble : 8; /* PEFT's default */
    enum pp_code code = p->stack.flat && m->ranks ? pp_module_patterns_find(m->ranks, p->stack.module, &rank, err)
                                                  : PP_OK;
    p->stack.rank = rank >= 1 && rank <= INT32_MAX ? (int64_t)rank : 0;
    if (!code)
        code = pp_adapter_add_stack(f, &p->stack, p->name.part, t, err);
    for (size_t i = before; i < f->n; i++) {
        pp_buf_str(modules, p->stack.module);
        pp_buf_char(modules, 0);
    }
    return code;
}

/* Whether adapters of the file's kind have such parts. All may replace tensors of the model. */
static bool may_have_part(const struct pp_adapter_file *f, enum pp_adapter_part part)
{
    if (part == PP_PART_WEIGHT || part == PP_PART_TOKENS)
        return true;
    if (part == PP_PART_FOLDED)
        return f->kind == PP_ADAPTER_ADALORA;
    if (part == PP_PART_FACTORS || part == PP_PART_FACTOR)
        return is_made(f);
    if (f->kind == PP_ADAPTER_NORMS || f->kind == PP_ADAPTER_TOKENS || is_made(f))
        return part == PP_PART_BIAS;
    return (f->kind == PP_ADAPTER_IA3) == (part == PP_PART_IA3);
}

/* Adds the tensor as it is, or what is computed from it. */
static enum pp_code add_parts(struct pp_adapter_file *f, const struct part_name *p, const struct pp_tensor *t,
                              const struct pp_buf *gguf, struct pp_error *err)
{
    struct pp_tensor halves[2] = {*t};
    enum pp_code code = PP_OK;
    if (p->part == PP_PART_FACTORS)
        code = pp_adapter_make_halves(f, t, halves, err);
    else if (p->part == PP_PART_A && f->kind == PP_ADAPTER_ADALORA)
        code = pp_adapter_fold(f, p->module, p->len, t, &halves[0], err);
    else
        return pp_adapter_add_part(f, gguf->data, gguf->len, p->part, t, err);
    if (!code)
        code = pp_adapter_add_part(f, gguf->data, gguf->len, PP_PART_A, &halves[0], err);
    return code || p->part != PP_PART_FACTORS
               ? code
               : pp_adapter_add_part(f, gguf->data, gguf->len, PP_PART_B, &halves[1], err);
}

/* modules: collects the module name of each target, each ended by a zero. */
static enum pp_code add_tensor(struct pp_adapter_file *f, const struct per_module *m, const struct pp_tensor *t,
                               struct translation *to, struct pp_buf *modules, struct pp_error *err)
{
    struct place place = {0};
    const struct part_name *p = &place.name;
    const bool found = find_place(f, m, t, to, &place);
    if (!found && p->module && is_other_modality(f->arch, p)) {
        f->n_ignored++;
        return PP_OK;
    }
    if (!found)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s is not part of a matrix's adapter in the family %s",
                       f->path, t->name, f->arch->name);
    if ((f->kind == PP_ADAPTER_LORA || f->kind == PP_ADAPTER_ADALORA) && p->part == PP_PART_MAGNITUDE)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s has magnitudes (%.200s), but does not say that it is a DoRA",
                       f->path, t->name);
    if (p->part == PP_PART_NOTHING)
        return PP_OK;
    if (!may_have_part(f, p->part))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s does not belong in an adapter of the kind %s",
                       f->path, t->name, pp_adapter_file_kind(f));
    if (p->part == PP_PART_FOLDED || (f->kind == PP_ADAPTER_ADALORA && !t->size)) /* multiplied into another one, or
                                                                                     training has pruned it away */
        return PP_OK;
    if (p->part == PP_PART_FACTOR)
        return pp_adapter_factor_counts(f, t)
                   ? PP_OK
                   : pp_fail(err, PP_ERR_FORMAT, "%s: tensor %.200s lacks its counterpart", f->path, t->name);
    if (place.stacked && f->kind == PP_ADAPTER_ADALORA)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s belongs to an AdaLoRA over the stacked matrices of "
                                                "all experts, which is not supported; train a LoRA instead", f->path,
                                                t->name);
    if (place.stacked)
        return add_stack(f, m, &place, t, modules, err);
    size_t before = f->n;
    enum pp_code code = add_parts(f, p, t, &to->gguf, err);
    if (!code && f->n > before) {
        f->targets[before].form = to->form;
        f->targets[before].a_transposed = f->targets[before].b_transposed = m->endings == mlx_endings;
        f->targets[before].tied = m->endings == mlx_endings;
        if (to->second.len && !(f->targets[before].second = pp_strndup(to->second.data, to->second.len)))
            return pp_fail_nomem(err, "the list of an adapter's matrices");
        pp_buf_add(modules, p->module, p->len);
        pp_buf_char(modules, 0);
    }
    return code;
}

/* With DoRA every matrix has magnitudes; PEFT has no biases of B then. */
static enum pp_code check_dora(const struct pp_adapter_file *f, struct pp_error *err)
{
    for (size_t i = 0; i < f->n && f->kind == PP_ADAPTER_DORA; i++) {
        const struct pp_adapter_target *t = &f->targets[i];
        if (t->rank && !t->magnitude.data)
            return pp_fail(err, PP_ERR_FORMAT, "%s is a DoRA, but has no magnitudes for %s", f->path, t->name);
        if (t->b_bias.data)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is a DoRA with lora_bias, which is not supported", f->path);
    }
    return PP_OK;
}

static enum pp_code read_tensors(struct pp_adapter_file *f, const struct per_module *m, struct pp_buf *modules,
                                 struct pp_error *err)
{
    struct translation to = {0};
    size_t n = pp_safetensors_n(f->weights);
    enum pp_code code = pp_adapter_reserve(f, n, err);
    if (!code) {
        f->arch = guess_family(f, m->endings, &to);
        if (!f->arch && !n)
            code = pp_fail(err, PP_ERR_FORMAT, "%s has an empty weights file", f->path);
        else if (!f->arch)
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "%s adapts no matrix of a model family that pippin knows; its "
                                                    "first tensor is %.200s", f->path, pp_safetensors_at(f->weights,
                                                    0)->name);
    }
    for (size_t i = 0; i < n && !code; i++)
        code = add_tensor(f, m, pp_safetensors_at(f->weights, i), &to, modules, err);
    translation_free(&to);
    if (!code && modules->bad)
        code = pp_fail_nomem(err, "the list of an adapter's matrices");
    if (!code)
        code = pp_adapter_check_targets(f, err);
    return code ? code : check_dora(f, err);
}

static enum pp_code open_weights(struct pp_adapter_file *f, const char *name, struct pp_error *err)
{
    static const char pickle[] = "adapter_model.bin"; /* PEFT's first format */
    const bool there = pp_file_exists(f->path, name), pickled = !there && pp_file_exists(f->path, pickle);
    if (!there && !pickled)
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s has %s, but its weights are missing (%s); download the adapter "
                                              "again", f->path, pp_adapter_config_file, name);
    char *path = pp_path_join(f->path, pickled ? pickle : name);
    if (!path)
        return pp_fail_nomem(err, "a file name");
    enum pp_code code = pickled ? pp_adapter_is_pickle(path, err) : pp_safetensors_open(path, &f->weights, err);
    pp_free(path);
    return code;
}

/* Checks that the tensors which the configuration announces are there. */
static enum pp_code check_has_tokens(const struct pp_adapter_file *f, struct pp_error *err)
{
    size_t i = 0;
    while (i < f->n && !f->targets[i].tokens.data)
        i++;
    return i < f->n || !switched_on(member(f, tokens_member(f)))
               ? PP_OK
               : pp_fail(err, PP_ERR_FORMAT, "%s sets %s, but has no tensor for it", f->path, tokens_member(f));
}

static enum pp_code open_peft(struct pp_adapter_file *f, struct pp_error *err)
{
    struct per_module m = {.endings = peft_endings};
    struct pp_buf modules = {0};
    enum pp_code code = read_kind(f, err);
    if (!code)
        code = check_features(f, err);
    if (!code)
        code = read_invocation(f, err);
    const bool low_rank = is_lora(f) || f->kind == PP_ADAPTER_ADALORA || is_made(f);
    const char *alpha = is_made(f) ? "alpha" : "lora_alpha";
    f->alpha = low_rank ? 8 : 1; /* PEFT's default */
    if (!code && low_rank && !pp_json_float(f->config, alpha, &f->alpha))
        code = pp_fail(err, PP_ERR_FORMAT, "%s/%s: %s is not a number", f->path, pp_adapter_config_file, alpha);
    if (!code)
        code = read_per_module(f, &m, err);
    if (!code)
        code = open_weights(f, "adapter_model.safetensors", err);
    if (!code)
        code = read_tensors(f, &m, &modules, err);
    const char *module = modules.data;
    for (size_t i = 0; i < f->n && !code; i++, module += strlen(module) + 1) {
        code = scale_of(f, &m, module, &f->targets[i], err);
        if (!code && f->targets[i].tokens.data)
            code = read_tokens(f, module, &f->targets[i], err);
    }
    if (!code)
        code = check_has_tokens(f, err);
    pp_module_patterns_free(m.alphas);
    pp_module_patterns_free(m.ranks);
    pp_buf_free(&modules);
    return code;
}

/* --- MLX ----------------------------------------------------------------------------------------------------- */

static const char mlx_weights[] = "adapters.safetensors";

/* Whether the weights are in MLX's first format. */
static bool is_npz(const struct pp_adapter_file *f)
{
    return !pp_file_exists(f->path, mlx_weights) && pp_file_exists(f->path, pp_adapter_npz);
}

static enum pp_code open_npz(struct pp_adapter_file *f, struct pp_error *err)
{
    char *path = pp_path_join(f->path, pp_adapter_npz);
    if (!path)
        return pp_fail_nomem(err, "a file name");
    enum pp_code code = pp_npz_read(path, &f->image, err);
    if (!code)
        code = pp_safetensors_open_memory(f->image.data, f->image.len, path, &f->weights, err);
    pp_free(path);
    return code;
}

/* mlx_lm multiplies B (A x) by lora_parameters.scale, whatever the rank; it no longer reads the "alpha" that some
 * versions write. Those that wrote an .npz file multiplied by scale * alpha / rank, which is 20 by default, too, and
 * wrote no configuration; the user can. */
static enum pp_code open_mlx(struct pp_adapter_file *f, struct pp_error *err)
{
    const struct per_module m = {.endings = mlx_endings};
    const cJSON *type = member(f, "fine_tune_type"), *parameters = member(f, "lora_parameters");
    struct pp_buf modules = {0};
    float scale = 20; /* mlx_lm's default */
    if (type && !is_string(type, "lora") && !is_string(type, "dora"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s was made by MLX but is neither LoRA nor DoRA (fine_tune_type)",
                       f->path);
    f->kind = is_string(type, "dora") || cJSON_IsTrue(member(f, "use_dora")) ? PP_ADAPTER_DORA : PP_ADAPTER_LORA;
    const bool old = is_npz(f);
    float alpha = 0;
    if (old && !pp_json_member(parameters, "scale"))
        f->assumed_scale = scale;
    else if (!cJSON_IsObject(parameters) || !pp_json_float(parameters, "scale", &scale) || !isfinite(scale))
        return pp_fail(err, PP_ERR_FORMAT, "%s/%s: lora_parameters has no scale that is a number", f->path,
                       pp_adapter_config_file);
    if (old && f->assumed_scale == 0.0f && (!pp_json_float(parameters, "alpha", &alpha) || !isfinite(alpha)))
        return pp_fail(err, PP_ERR_FORMAT, "%s/%s: alpha is not a number", f->path, pp_adapter_config_file);
    enum pp_code code = old ? open_npz(f, err) : open_weights(f, mlx_weights, err);
    if (!code)
        code = read_tensors(f, &m, &modules, err);
    for (size_t i = 0; i < f->n && !code; i++) {
        const float rank = (float)f->targets[i].rank, own = alpha != 0.0f && rank > 0 ? scale * alpha / rank : scale;
        f->targets[i].scale = own;
        if (rank * own > f->alpha)
            f->alpha = rank * own;
    }
    pp_buf_free(&modules);
    return code;
}

enum pp_code pp_adapter_open_folder(struct pp_adapter_file *f, struct pp_error *err)
{
    const bool configured = pp_file_exists(f->path, pp_adapter_config_file);
    if (!configured && !is_npz(f))
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s has no %s, so it is not an adapter", f->path, pp_adapter_config_file);
    enum pp_code code = configured ? pp_json_read(f->path, pp_adapter_config_file, &f->config, err) : PP_OK;
    if (code)
        return code;
    pp_title_of_path(f->path, f->name, sizeof f->name);
    return (member(f, "lora_parameters") || is_npz(f)) && !member(f, "peft_type") ? open_mlx(f, err)
                                                                                 : open_peft(f, err);
}
