/* source_folder.c - a Hugging Face folder as a source: config.json tells the family, and each tensor gets its GGUF name
 * and the form that we compute with. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/hf.h"
#include "engine/hf_form.h"
#include "engine/quant.h"
#include "engine/rows.h"
#include "engine/source_int.h"
#include "engine/tensor_forms.h"
/* Whether a class name says that the model writes text and needs nothing that pippin lacks. */
static bool writes_text(const char *name)
{
    static const char *const ends[] = {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"};
    bool ok = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        ok = ok || pp_ends_with(name, ends[i]);
    return ok && !strstr(name, "Bidirectional") && !pp_arch_missing(name);
}

static bool is_known(const char *family)
{
    return pp_arch_by_class(family) || pp_wrapper_by_class(family);
}

/* The name of the family. config.json names a class, or at least a model type; if the class has no output layer
 * (MistralModel), the type counts. Where the class is unknown, as with those of training programs
 * (PeftModelForCausalLM), transformers chooses its code by the type; so does this, unless the folder brings its own
 * code. EngGPT 2 does, but it is a Qwen 3 MoE. */
static const char *family_of(const cJSON *config)
{
    const cJSON *list = pp_json_member(config, "architectures");
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    const cJSON *type = pp_json_member(config, "model_type");
    const char *name = cJSON_IsString(first) ? first->valuestring : cJSON_IsString(type) ? type->valuestring : "";
    const bool has_own_code = cJSON_IsObject(pp_json_member(config, "auto_map"));
    if (is_known(name) || !cJSON_IsString(type))
        return name;
    if (pp_ends_with(name, "Model") && pp_arch_by_class(type->valuestring))
        return type->valuestring;
    const bool fits = !has_own_code || strcmp(type->valuestring, "enggpt_moe") == 0;
    return writes_text(name) && fits && is_known(type->valuestring) ? type->valuestring : name;
}

/* The family of the language model within a multimodal one. */
static const char *family_in(const struct pp_arch_wrapper *wrapper, const cJSON *config)
{
    const cJSON *own = pp_wrapped_config(wrapper, config);
    const char *type = cJSON_GetStringValue(pp_json_member(own, "model_type"));
    const char *usual = pp_wrapped_type(wrapper, config, family_of(config));
    if (wrapper->fixes_type)
        return usual ? usual : family_of(config);
    const char *said = type ? type : own ? family_of(own) : family_of(config);
    return own && !*said && usual ? usual : said;
}

static bool has_attn_residuals(const cJSON *config)
{
    return cJSON_IsNumber(pp_json_member(config, "attn_res_block_size"));
}

/* The family of a folder. A multimodal class may contain language models of several families. */
static const struct pp_arch *arch_of(const cJSON *config, const struct pp_arch_wrapper *wrapper)
{
    if (wrapper) {
        const struct pp_arch *text = pp_arch_by_class(family_in(wrapper, config));
        const cJSON *part = pp_wrapped_config(wrapper, config);
        return text && text->attn_res_variant && has_attn_residuals(part) ? text->attn_res_variant : text;
    }
    const struct pp_arch *arch = pp_arch_by_class(family_of(config)), *inner;
    const cJSON *own = arch && arch->parts ? pp_json_member(config, "text_config") : NULL;
    const char *type = cJSON_GetStringValue(pp_json_member(own, "model_type"));
    inner = type ? pp_arch_by_class(type) : NULL;
    arch = inner && inner->parts == arch->parts ? inner : arch;
    const bool bidirectional = cJSON_IsTrue(pp_json_member(config, "use_bidirectional_attention"));
    const char *positions = cJSON_GetStringValue(pp_json_member(config, "position_embedding_type"));
    if (arch && arch->attn_res_variant && has_attn_residuals(config))
        return arch->attn_res_variant;
    if (arch && arch->rotary_variant && positions && strcmp(positions, "rotary") == 0)
        return arch->rotary_variant;
    return bidirectional && arch && arch->bidirectional_variant ? arch->bidirectional_variant : arch;
}

/* Whether a configuration has the member `usual`. rope_parameters may be there as rope_scaling, its name in
 * transformers 4, unless layers have RoPE of several kinds. */
static bool has_member(const cJSON *config, const cJSON *usual)
{
    return pp_json_member(config, usual->string) ||
           (strcmp(usual->string, "rope_parameters") == 0 && pp_json_member(usual, "rope_type") &&
            cJSON_IsObject(pp_json_member(config, "rope_scaling")));
}

/* Adds those members of a JSON object that the configuration lacks. */
static bool add_missing(cJSON *config, const char *json)
{
    cJSON *usual = cJSON_Parse(json), *next;
    bool ok = usual != NULL;
    for (cJSON *item = ok ? usual->child : NULL; item && ok; item = next) {
        next = item->next;
        if (!has_member(config, item)) {
            cJSON *copy = cJSON_Duplicate(item, true);
            ok = cJSON_AddItemToObject(config, item->string, copy);
            if (!ok)
                cJSON_Delete(copy);
        }
    }
    cJSON_Delete(usual);
    return ok;
}

/* Copies rope_scaling from the outer configuration, if that of the language model has none. */
static bool add_rope_outside(cJSON *config, const cJSON *whole)
{
    static const char key[] = "rope_scaling";
    const cJSON *rope = pp_json_member(whole, key);
    if (!cJSON_IsObject(rope) || pp_json_member(config, key))
        return true;
    cJSON *copy = cJSON_Duplicate(rope, true);
    if (copy && cJSON_AddItemToObject(config, key, copy))
        return true;
    cJSON_Delete(copy);
    return false;
}

/* Whether the language model's part has the model type of another family, as all models of this family do. */
static bool is_other_type(const struct pp_arch *arch, const cJSON *type)
{
    return arch->parts->other_type && strcmp(type->valuestring, arch->parts->other_type) == 0;
}

/* Rows of the embeddings after the vocabulary, in models with layers that look at pictures. */
enum { IMAGE_ROWS = 8 };

/* Apertus 1.5 reads tokens of pictures and sound, which come after all others, and may be unable to write them: its
 * output then has no rows for them. Without them it is an Apertus. */
static enum pp_code drop_input_tokens(struct pp_source *s, struct pp_error *err)
{
    static const char output[] = "output_vocab_size", input[] = "vocab_size";
    const char *type = cJSON_GetStringValue(pp_json_member(s->text_config, "model_type"));
    const cJSON *n = pp_json_member(s->text_config, output), *n_all = pp_json_member(s->text_config, input);
    if (!type || strcmp(type, "apertus1p5_text") != 0)
        return PP_OK;
    if (n && !cJSON_IsNull(n)) {
        const double rows = cJSON_IsNumber(n) ? n->valuedouble : -1;
        if (!cJSON_IsNumber(n_all) || !(rows >= 1 && rows <= n_all->valuedouble && n_all->valuedouble <= INT32_MAX))
            return pp_fail(err, PP_ERR_FORMAT, "%s: config.json: %s is not part of %s", s->path, output, input);
        s->n_dropped_rows = (int64_t)n_all->valuedouble - (int64_t)rows;
        pp_config_put(s->text_config, input, (int64_t)rows);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(s->text_config, output);
    pp_config_put_class(s->text_config, "ApertusForCausalLM", "apertus");
    return PP_OK;
}

/* Finds the part of the configuration for the language model, and adds the defaults of what it omits. */
static enum pp_code complete_config(struct pp_source *s, const struct pp_arch *arch, struct pp_error *err)
{
    const cJSON *whole = pp_hf_config(s->hf), *own = NULL, *type;
    if (s->wrapper)
        own = pp_wrapped_config(s->wrapper, whole);
    else if (arch->parts)
        own = pp_json_member(whole, "text_config");
    cJSON *config = s->text_config = cJSON_Duplicate(cJSON_IsObject(own) ? own : whole, true);
    bool ok = config != NULL;
    type = pp_json_member(config, "model_type");
    if (s->wrapper) {
        const char *usual = pp_wrapped_type(s->wrapper, whole, family_of(whole));
        if (ok && cJSON_IsObject(own) && usual && (s->wrapper->fixes_type || !*family_of(own))) {
            cJSON_DeleteItemFromObjectCaseSensitive(config, "auto_map"); /* names the class of the whole model */
            cJSON_DeleteItemFromObjectCaseSensitive(config, "architectures");
            cJSON_DeleteItemFromObjectCaseSensitive(config, "model_type");
            type = cJSON_AddStringToObject(config, "model_type", usual);
            ok = type != NULL;
        }
        ok = ok && add_missing(config, pp_wrapped_usual(cJSON_IsString(type) ? type->valuestring : ""));
        ok = ok && (!s->wrapper->rope_outside || add_rope_outside(config, whole));
        if (ok && pp_wrapped_drop_layers(config, s->left_out, err) != PP_OK)
            return err->code;
        for (int l = 0; l < PP_MAX_LAYERS; l++)
            s->drops_layers = s->drops_layers || s->left_out[l];
        s->n_dropped_rows = s->drops_layers ? IMAGE_ROWS : 0;
    } else if (ok && cJSON_IsObject(own) && (!cJSON_IsString(type) || is_other_type(arch, type))) {
        cJSON_DeleteItemFromObjectCaseSensitive(config, "model_type");
        ok = cJSON_AddStringToObject(config, "model_type", arch->parts->model_type);
    } else if (ok && cJSON_IsObject(own) && pp_arch_by_class(type->valuestring) != arch) {
        char family[64];
        pp_clean_name(type->valuestring, strlen(type->valuestring), family, sizeof family);
        return pp_source_fail_family(s->path, family, err);
    }
    for (const struct pp_arch_default *u = arch->defaults; ok && u && u->json; u++)
        if (!u->model_type || pp_arch_is_kind(config, u->model_type, u->hf_class))
            ok = add_missing(config, u->json);
    return ok ? drop_input_tokens(s, err) : pp_fail_nomem(err, "the model's configuration");
}

/* Brings a tensor of the folder into our form, and adds the results. */
static enum pp_code add_transformed(struct pp_source *s, const struct pp_tensor *t, enum pp_hf_form form,
                                    const struct pp_buf *name, const struct pp_buf *second, struct pp_error *err)
{
    struct pp_tensor made[2];
    int n;
    if (form == PP_HF_FIRST_ROW) {
        made[0] = *t;
        made[0].n_dims = 1;
        made[0].ne[1] = made[0].ne[2] = made[0].ne[3] = 1;
        made[0].size = pp_type_row_bytes(t->type, t->ne[0]);
        return pp_source_add(s, &made[0], pp_buf_cstr(name), false, err);
    }
    if (form == PP_HF_ADAPTERS) { /* only the shape changes */
        made[0] = *t;
        made[0].n_dims = 3;
        made[0].ne[2] = t->ne[2] * t->ne[3];
        made[0].ne[3] = 1;
        return pp_source_add(s, &made[0], pp_buf_cstr(name), false, err);
    }
    if (form == PP_HF_EXPERTS_FLAT) {
        const enum pp_code code = pp_hf_stack(t, &s->hp, &made[0], err);
        return code ? code : pp_source_add(s, &made[0], pp_buf_cstr(name), false, err);
    }
    if (pp_hf_is_by_rows(form, t))
        return pp_hf_rows_add(&s->list, t, form, &s->hp, pp_buf_cstr(name), pp_buf_cstr(second), err);
    if (form == PP_HF_SCALED)
        return pp_hf_scaled_add(&s->list, t, &s->hp, pp_buf_cstr(name), err);
    if (form == PP_HF_HALVES)
        return pp_hf_halves_add(&s->list, t, pp_buf_cstr(name), pp_buf_cstr(second), err);
    enum pp_code code = pp_hf_transform(t, form, &s->hp, made, &n, err);
    if (code) {
        pp_fail_prefix(err, "%s", s->path);
        return code;
    }
    code = pp_source_add(s, &made[0], pp_buf_cstr(name), true, err);
    if (n > 1 && code)
        pp_free((void *)(uintptr_t)made[1].data);
    return n > 1 && !code ? pp_source_add(s, &made[1], pp_buf_cstr(second), true, err) : code;
}

/* Whether a quantised matrix is already in the order that this form describes for float weights: MXFP4's experts, and
 * all matrices of GPTQ and AWQ, are [n_out, n_in]. */
static bool is_in_order(enum pp_hf_method method, enum pp_hf_form form)
{
    if (method == PP_QUANT_MXFP4)
        return form == PP_HF_EXPERTS_TRANSPOSED;
    return form == PP_HF_SAME || form == PP_HF_ONE_ROW ||
           (form == PP_HF_TRANSPOSED && (method == PP_QUANT_GPTQ || method == PP_QUANT_AWQ));
}

/* Drops rows after the vocabulary: text has no such tokens. */
static void drop_rows(const struct pp_source *s, struct pp_rows *rows, const char *name, struct pp_tensor *t)
{
    if (!s->n_dropped_rows || strcmp(name, "token_embd.weight") != 0 || t->n_dims != 2 ||
        t->ne[1] != s->hp.n_vocab + s->n_dropped_rows)
        return;
    t->size = t->size / (size_t)t->ne[1] * (size_t)s->hp.n_vocab;
    t->ne[1] = s->hp.n_vocab;
    if (rows)
        rows->n_rows = s->hp.n_vocab;
}

/* Negates rows for heads that rotate backwards. Types to which we do not quantise cannot hold the result, so it becomes
 * Q8_0. */
static void negate_rows(struct pp_rows *rows, struct pp_tensor *t, int64_t head_dim)
{
    rows->negate_dim = head_dim;
    rows->as_blocks = false;
    if (rows->type != PP_TYPE_MXFP4 && rows->type != PP_TYPE_TQ2_0)
        return;
    rows->type = t->type = PP_TYPE_Q8_0;
    t->size = pp_type_row_bytes(t->type, t->ne[0]) * (size_t)t->ne[1];
}

static enum pp_code fail_order(const struct pp_source *s, size_t i, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED,
                   "%s: tensor %.200s is quantised, but the family %s stores it in a different order, so it cannot be "
                   "read; use an unquantised model or a GGUF file",
                   s->path, pp_hf_at(s->hf, i)->name, s->hp.arch);
}

/* Adds the matrices that are concatenated in t, which is tensor i: queries, keys and values, or two halves. */
static enum pp_code add_split(struct pp_source *s, size_t i, const struct pp_tensor *t, enum pp_hf_form form,
                              const struct pp_buf *name, const struct pp_buf *second, struct pp_error *err)
{
    char own[3][PP_HF_NAME];
    const bool heads = form == PP_HF_QKV_STACKED && pp_hf_qkv_names(pp_buf_cstr(name), own);
    enum pp_code code = PP_OK;
    if (t->n_dims != 2 || (!heads && form != PP_HF_HALVES))
        return fail_order(s, i, err);
    for (int part = 0; part < (heads ? 3 : 2) && !code; part++) {
        struct pp_tensor one = *t;
        struct pp_rows where, *rows = pp_tensor_list_rows(&s->list, err);
        if (!rows)
            return PP_ERR_NOMEM;
        if (!pp_hf_part_rows(form, &s->hp, t->ne[1], part, &where))
            return pp_fail(err, PP_ERR_FORMAT, "%s: tensor %.200s does not have the rows of the tensors that it "
                                               "combines",
                           s->path, pp_hf_at(s->hf, i)->name);
        if (!pp_rows_cut(t->rows, where.row_first, where.n_rows, rows))
            return fail_order(s, i, err);
        one.rows = rows;
        one.ne[1] = where.n_rows;
        one.size = pp_type_row_bytes(one.type, one.ne[0]) * (size_t)one.ne[1];
        code = pp_source_add(s, &one, heads ? own[part] : pp_buf_cstr(part ? second : name), false, err);
    }
    return code;
}

/* Adds the quantised matrix whose leading tensor is tensor i. */
static enum pp_code add_packed(struct pp_source *s, size_t i, enum pp_hf_form form, const struct pp_buf *name,
                               const struct pp_buf *second, struct pp_error *err)
{
    const bool interleaved = s->quant.method == PP_QUANT_MXFP4 && form == PP_HF_EXPERTS_INTERLEAVED;
    const bool by_head = form == PP_HF_QKV_FUSED_BY_GROUP, backwards = form == PP_HF_HALF_NEGATED;
    struct pp_tensor t;
    struct pp_rows *rows = pp_tensor_list_rows(&s->list, err);
    if (!rows)
        return PP_ERR_NOMEM;
    const bool one_after_other = form == PP_HF_QKV_STACKED || form == PP_HF_HALVES;
    if (!is_in_order(s->quant.method, form) && !interleaved && !by_head && !backwards && !one_after_other)
        return fail_order(s, i, err);
    enum pp_code code = pp_hf_quant_open(&s->quant, s->hf, i, rows, &t, err);
    if (!code && by_head && (t.n_dims != 2 || t.ne[1] != (s->hp.n_head + 2 * s->hp.n_head_kv) * s->hp.head_dim))
        code = pp_fail(err, PP_ERR_FORMAT, "tensor %.200s does not have the rows of %lld heads",
                       pp_hf_at(s->hf, i)->name, (long long)s->hp.n_head);
    if (code) {
        pp_fail_prefix(err, "%s", s->path);
        return code;
    }
    if (one_after_other)
        return add_split(s, i, &t, form, name, second, err);
    drop_rows(s, rows, pp_buf_cstr(name), &t);
    if (backwards)
        negate_rows(rows, &t, s->hp.head_dim);
    if (by_head) {
        rows->n_head = s->hp.n_head;
        rows->n_head_kv = s->hp.n_head_kv;
        rows->head_dim = s->hp.head_dim;
    }
    if (!interleaved)
        return pp_source_add(s, &t, pp_buf_cstr(name), false, err);
    code = pp_tensor_list_add_interleaved(&s->list, &t, pp_buf_cstr(name), pp_buf_cstr(second), err);
    if (code == PP_ERR_FORMAT)
        pp_fail_prefix(err, "%s", s->path);
    return code;
}

/* Whether a tensor is of a layer after the last one, which predicts further tokens (MTP). */
static bool is_after_layers(const struct pp_source *s, const char *hf_name)
{
    static const char begin[] = "model.layers.";
    struct pp_buf own = {0};
    char name[64] = "";
    if (pp_wrapped_name(hf_name, &own))
        hf_name = pp_buf_cstr(&own);
    if (strncmp(hf_name, begin, strlen(begin)) == 0)
        snprintf(name, sizeof name, "blk.%.32s", hf_name + strlen(begin));
    pp_buf_free(&own);
    return pp_is_after_layers(&s->hp, name);
}

/* Adds a table of integers, converted to I32. */
static enum pp_code take_integers(struct pp_source *s, const struct pp_tensor *t, const char *dtype, const char *name,
                                  struct pp_error *err)
{
    struct pp_tensor whole;
    const enum pp_code code = pp_hf_whole(t, dtype, &whole, err);
    if (code)
        pp_fail_prefix(err, "%s", s->path);
    return code ? code : pp_source_add(s, &whole, name, true, err);
}

/* A tensor's name in the folder, or that of the quantised matrix of which it is a part. */
struct own_name {
    enum pp_hf_role role;
    struct pp_buf packed, renumbered;
};

/* Adds tensor i of the folder, unless nothing needs it. */
static enum pp_code take_tensor(struct pp_source *s, const struct pp_arch *arch, bool tied, size_t i,
                                struct own_name *own, struct pp_buf *name, struct pp_buf *second, struct pp_error *err)
{
    const struct pp_tensor *t = pp_hf_at(s->hf, i);
    const struct pp_arch_name *entry;
    own->role = pp_hf_quant_role(&s->quant, s->hf, i, &own->packed);
    const bool packed = own->role == PP_HF_PACKED;
    const char *hf = packed ? pp_buf_cstr(&own->packed) : t->name;
    const bool there = !s->drops_layers || pp_wrapped_renumber(s->left_out, hf, &own->renumbered);
    hf = s->drops_layers ? pp_buf_cstr(&own->renumbered) : hf;
    enum pp_name_match match = pp_arch_translate(arch, &s->hp, hf, &entry, name, second);
    if (name->bad || second->bad || own->packed.bad || own->renumbered.bad)
        return pp_fail_nomem(err, "the list of tensors");
    if (own->role == PP_HF_PART || !there || is_after_layers(s, hf) ||
        (s->wrapper && pp_wrapped_other_modality(s->wrapper, t->name)))
        return PP_OK;
    if (match == PP_NAME_UNKNOWN && s->wrapper && pp_is_other_modality(t->name))
        return PP_OK;
    if (match == PP_NAME_UNKNOWN)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "%s has a tensor %.200s, which models of the family %s do not have", s->path, t->name,
                       arch->name);
    const bool no_output = (tied || pp_arch_encodes(arch)) && !s->hp.n_embd_out;
    if (match == PP_NAME_IGNORED || (no_output && strcmp(name->data, "output.weight") == 0))
        return PP_OK;
    const char *expert = s->hp.vision_experts ? pp_expert_number(pp_buf_cstr(name)) : NULL;
    if (expert && strtol(expert, NULL, 10) >= s->hp.n_expert)
        return PP_OK;
    const bool as_it_is = entry->form == PP_HF_SCALAR || entry->form == PP_HF_VECTOR_OR_ROW ||
                          (entry->form == PP_HF_SCALED && !s->hp.scales.any) ||
                          (entry->form == PP_HF_UNIT_ROWS && !s->hp.unit_output);
    const enum pp_hf_form form = as_it_is ? PP_HF_SAME : entry->form;
    if (form == PP_HF_LERP || form == PP_HF_PRODUCT || pp_is_unused_first_mix(&s->hp, pp_buf_cstr(name)))
        return PP_OK; /* done by take_mixes, take_scores, take_first_values */
    if (packed)
        return add_packed(s, i, form, name, second, err);
    if (form == PP_HF_INTEGERS)
        return take_integers(s, t, pp_hf_dtype(s->hf, i), pp_buf_cstr(name), err);
    if (t->type == PP_TYPE_LIMIT || t->size == 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s is %s, which pippin cannot run; it must be F32, "
                                                "F16 or BF16",
                       s->path, t->name, t->size ? pp_hf_dtype(s->hf, i) : "empty");
    if (form != PP_HF_SAME)
        return add_transformed(s, t, form, name, second, err);
    struct pp_tensor same = *t;
    drop_rows(s, NULL, pp_buf_cstr(name), &same);
    return pp_source_add(s, &same, pp_buf_cstr(name), false, err);
}

/* LongRoPE's factors are in config.json, but in GGUF files they are tensors. */
static enum pp_code take_rope_factors(struct pp_source *s, const char *key, const char *name, struct pp_error *err)
{
    const int64_t n = s->hp.rope_dim / 2;
    float *factors = pp_calloc((size_t)n, sizeof *factors);
    if (!factors)
        return pp_fail_nomem(err, name);
    enum pp_code code = pp_hparams_rope_factors(s->text_config, key, n, factors, err);
    if (code) {
        pp_free(factors);
        pp_fail_prefix(err, "%s", s->path);
        return code;
    }
    const struct pp_tensor t = {.type = PP_TYPE_F32, .n_dims = 1, .ne = {n, 1, 1, 1}, .data = factors,
                                .size = (size_t)n * sizeof *factors};
    return pp_source_add(s, &t, name, true, err);
}

/* Makes a tensor of Solar Pro's two shares. */
static enum pp_code take_shares(struct pp_source *s, struct pp_error *err)
{
    float *shares = pp_calloc(2, sizeof *shares);
    if (!shares)
        return pp_fail_nomem(err, pp_skip_shares);
    shares[0] = s->hp.skip_share;
    shares[1] = 1 - s->hp.skip_share;
    const struct pp_tensor t = {.type = PP_TYPE_F32, .n_dims = 1, .ne = {2, 1, 1, 1}, .data = shares,
                                .size = 2 * sizeof *shares};
    return pp_source_add(s, &t, pp_skip_shares, true, err);
}

/* Makes the weights that GGUF files have for norms of heads without weights. */
static enum pp_code take_head_norms(struct pp_source *s, struct pp_error *err)
{
    const int64_t n = s->hp.head_dim;
    enum pp_code code = PP_OK;
    for (int64_t i = 0; i < 2 * s->hp.n_layer && !code; i++) {
        float *values = pp_calloc((size_t)n, sizeof *values);
        char name[64];
        if (!values)
            return pp_fail_nomem(err, "norms of heads");
        for (int64_t k = 0; k < n; k++)
            values[k] = i % 2 ? 1 : s->hp.query_scale;
        const struct pp_tensor t = {.type = PP_TYPE_F32, .n_dims = 1, .ne = {n, 1, 1, 1}, .data = values,
                                    .size = (size_t)n * sizeof *values};
        snprintf(name, sizeof name, "blk.%lld.attn_%c_norm.weight", (long long)i / 2, "qk"[i % 2]);
        code = pp_source_add(s, &t, name, true, err);
    }
    return code;
}

/* Collects the factors by which RWKV mixes each of its inputs with the position before. GGUF has one tensor per layer,
 * [6, n_embd], or [5, n_embd] in RWKV 6 and without gates, with dimensions of 1 in the middle. Folders have a vector
 * for each input, older ones of RWKV 7 a matrix. */
static enum pp_code take_mixes(struct pp_source *s, struct pp_error *err)
{
    const char *letters = s->hp.rwkv6 ? "wkvrg" : s->hp.rwkv_ranks[3] ? "rwkvag" : "rwkva";
    const bool own = !s->hp.rwkv6 && s->hp.legacy_names;
    const char *before = own ? "rwkv7.blocks." : s->hp.rwkv6 && !s->hp.rwkv_qwen ? "rwkv.blocks." : "model.layers.";
    const char *suffix = s->hp.rwkv_qwen ? (s->hp.rwkv6 ? ".self_attn.time_maa_" : ".self_attn.time_mixer.x_")
                         : s->hp.rwkv6   ? ".attention.time_maa_"
                         : own           ? ".att.x_"
                                         : ".attn.x_";
    const int64_t n = s->hp.n_embd, n_mixes = (int64_t)strlen(letters);
    for (int64_t l = 0; l < s->hp.n_layer; l++) {
        char name[80];
        snprintf(name, sizeof name, "%s%lld%sx", before, (long long)l, suffix);
        const struct pp_tensor *all = s->hp.rwkv6 ? NULL : pp_hf_find(s->hf, name, NULL);
        snprintf(name, sizeof name, "%s%lld%sr", before, (long long)l, suffix);
        if (!all && !pp_hf_find(s->hf, name, NULL))
            continue; /* the plan reports it */
        float *mixes = pp_calloc((size_t)(n_mixes * n), sizeof *mixes);
        if (!mixes)
            return pp_fail_nomem(err, name);
        for (int64_t i = 0; i < n_mixes; i++) {
            snprintf(name, sizeof name, "%s%lld%s%c", before, (long long)l, suffix, letters[i]);
            const struct pp_tensor *t = all ? all : pp_hf_find(s->hf, name, NULL);
            if (!t || t->type >= PP_TYPE_LIMIT || pp_type_info(t->type)->block_elements != 1 ||
                t->size != pp_type_row_bytes(t->type, n) * (size_t)(all ? n_mixes : 1)) {
                pp_free(mixes);
                return pp_fail(err, PP_ERR_FORMAT, "%s has no %s of %lld values", s->path, name, (long long)n);
            }
            const size_t at = all ? (size_t)i * pp_type_row_bytes(t->type, n) : 0;
            pp_dequantize_row(t->type, (const uint8_t *)t->data + at, mixes + i * n, n);
        }
        const struct pp_tensor t = {.type = PP_TYPE_F32, .n_dims = 4, .ne = {n, 1, 1, n_mixes}, .data = mixes,
                                    .size = (size_t)(n_mixes * n) * sizeof *mixes};
        snprintf(name, sizeof name, "blk.%lld.time_mix_lerp_fused.weight", (long long)l);
        const enum pp_code code = pp_source_add(s, &t, name, true, err);
        if (code)
            return code;
    }
    return PP_OK;
}

/* Makes the vectors with which Kimi K3 scores stored layer inputs. */
static enum pp_code take_scores(struct pp_source *s, struct pp_error *err)
{
    char stem[80] = "model.output_attn_res", name[64] = "output_res_score.weight";
    enum pp_code code = PP_OK;
    for (int64_t l = 0; l <= 2 * s->hp.n_layer && !code; l++) {
        struct pp_tensor score;
        code = pp_hf_product(s->hf, stem, s->hp.n_embd, &score, err);
        if (!code && score.data) /* otherwise the plan reports it */
            code = pp_source_add(s, &score, name, true, err);
        snprintf(stem, sizeof stem, "model.layers.%lld.%s_res", (long long)l / 2, l % 2 ? "mlp" : "self_attention");
        snprintf(name, sizeof name, "blk.%lld.%s_res_score.weight", (long long)l / 2, l % 2 ? "ffn" : "attn");
    }
    return code;
}

/* RWKV's first layer cannot mix its values with those of the first layer; GGUF files have tensors for that all the
 * same, which nothing reads. */
static enum pp_code take_first_values(struct pp_source *s, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int i = 0; i < 3 && !code; i++) {
        char from[40], to[40];
        const struct pp_tensor *t = NULL;
        bool there = false;
        snprintf(from, sizeof from, "blk.0.time_mix_a%d.weight", i);
        snprintf(to, sizeof to, "blk.0.time_mix_v%d.weight", i);
        for (size_t k = 0; k < s->list.n; k++) {
            t = strcmp(s->list.t[k].name, from) == 0 ? &s->list.t[k] : t;
            there = there || strcmp(s->list.t[k].name, to) == 0;
        }
        if (t && !there) {
            const struct pp_tensor same = *t; /* the list moves when it grows */
            code = pp_source_add(s, &same, to, false, err);
        }
    }
    return code;
}

/* Whether MLX wrote the folder, recognised by convolutions whose last dimension is 1: it applies factors to the
 * weights. */
static bool is_multiplied(const struct pp_source *s)
{
    for (size_t i = 0; i < pp_hf_n(s->hf); i++) {
        const struct pp_tensor *t = pp_hf_at(s->hf, i);
        if (pp_ends_with(t->name, ".conv1d.weight"))
            return t->n_dims == 3 && t->ne[0] == 1;
    }
    return false;
}

/* Whether a tensor's data are not aligned to its numbers, so that it cannot be used in place. */
static bool is_unaligned(const struct pp_tensor *t)
{
    return !t->rows && t->type < PP_TYPE_LIMIT && pp_type_info(t->type)->block_elements == 1 &&
           (uintptr_t)t->data % (size_t)pp_type_info(t->type)->block_bytes != 0;
}

/* Programs need not align the data of safetensors: MLX does not, nor did the library itself before 0.3, so all tensors
 * of a file may be at odd addresses. Small ones are copied at once, since they may be read before weights are needed;
 * large matrices are copied when they are filled. */
static enum pp_code align_tensors(struct pp_source *s, struct pp_error *err)
{
    enum { SMALL = 1 << 17 }; /* bytes */
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < s->list.n && !code; i++) {
        struct pp_tensor *t = &s->list.t[i];
        if (is_unaligned(t))
            code = t->n_dims == 1 || t->size <= SMALL ? pp_tensor_list_copy(&s->list, i, err)
                                                      : pp_tensor_list_by_rows(&s->list, i, err);
    }
    return code;
}

static enum pp_code take_tensors(struct pp_source *s, const struct pp_arch *arch, struct pp_error *err)
{
    const cJSON *tie = pp_json_member(s->text_config, "tie_word_embeddings");
    size_t n = pp_hf_n(s->hf);
    struct pp_buf name = {0}, second = {0};
    struct own_name own = {0};
    enum pp_code code = PP_OK;
    s->hp.scales.any = s->hp.scales.any && !is_multiplied(s);
    for (size_t i = 0; i < n && !code; i++)
        code = take_tensor(s, arch, cJSON_IsTrue(tie), i, &own, &name, &second, err);
    pp_buf_free(&own.packed);
    pp_buf_free(&own.renumbered);
    pp_buf_free(&name);
    pp_buf_free(&second);
    if (!code && s->hp.rope_scaling == PP_ROPE_LONG)
        code = take_rope_factors(s, "long_factor", "rope_factors_long.weight", err);
    if (!code && s->hp.rope_scaling == PP_ROPE_LONG)
        code = take_rope_factors(s, "short_factor", "rope_factors_short.weight", err);
    if (!code && s->hp.qk_norm)
        code = pp_join_head_norms(&s->list, &s->hp, err);
    if (!code && s->hp.query_scale != 0.0f)
        code = take_head_norms(s, err);
    if (!code && s->hp.skip_share != 0.0f)
        code = take_shares(s, err);
    if (!code && s->hp.kv_lora_rank)
        code = pp_split_heads(&s->list, &s->hp, err);
    if (!code && s->hp.rwkv && !s->hp.rwkv4)
        code = take_mixes(s, err);
    if (!code && s->hp.attn_res_block)
        code = take_scores(s, err);
    if (!code && s->hp.rwkv && !s->hp.rwkv6 && !s->hp.rwkv4)
        code = take_first_values(s, err);
    if (!code)
        code = align_tensors(s, err);
    return code ? code : pp_source_index(s, err);
}

/* Finds the ranks of RWKV's low-rank products, which configurations may omit. */
static void find_ranks(struct pp_source *s)
{
    static const char *const names[][4] = {{"blk.0.time_mix_w1.weight", "blk.0.time_mix_a1.weight",
                                            "blk.1.time_mix_v1.weight", "blk.0.time_mix_g1.weight"},
                                           {"blk.0.time_mix_decay_w1.weight", "blk.0.time_mix_w1.weight"}};
    for (int i = 0; s->hp.rwkv_qwen && i < (s->hp.rwkv6 ? 2 : 4); i++) {
        const struct pp_tensor *t = pp_source_tensor(s, names[s->hp.rwkv6][i]);
        const int64_t n = t ? t->ne[1] / (s->hp.rwkv6 && i == 1 ? 5 : 1) : 0; /* one product for five mixes */
        if (n > 0 && n <= 1 << 16)
            s->hp.rwkv_ranks[i] = n;
    }
}

/* Versions of transformers differ in HyperCLOVA X's default for these norms; its tensors tell whether it has them. */
static void find_post_norms(struct pp_source *s)
{
    if (!cJSON_IsBool(pp_json_member(s->text_config, "use_post_norm")))
        s->hp.post_norms = s->hp.post_norms && pp_source_tensor(s, "blk.0.post_attention_norm.weight");
}

/* Reads a logit scale that folders store as a tensor. Where it is folded into the matrix instead, the matrix is called
 * lm_head as in other families. */
static enum pp_code find_logit_scale(struct pp_source *s, const struct pp_arch *arch, struct pp_error *err)
{
    const struct pp_tensor *t = arch->hf_logit_scale ? pp_hf_find(s->hf, arch->hf_logit_scale, NULL) : NULL;
    if (!arch->hf_logit_scale || (!t && pp_hf_find(s->hf, "lm_head.weight", NULL)))
        return PP_OK;
    if (!t || t->size != pp_type_row_bytes(t->type, 1) || pp_type_info(t->type)->block_elements != 1)
        return pp_fail(err, PP_ERR_FORMAT, "%s: tensor %s, which multiplies the logits, is missing or not one number",
                       s->path, arch->hf_logit_scale);
    pp_dequantize_row(t->type, t->data, &s->hp.logit_scale, 1);
    return pp_hparams_check(&s->hp, err);
}

/* The error for an unknown family, which names the code in the folder that defines it, if any. */
static enum pp_code fail_unknown(const struct pp_source *s, const cJSON *config, const char *family,
                                 struct pp_error *err)
{
    static const char *const classes[] = {"AutoModelForCausalLM", "AutoModel"};
    const cJSON *map = pp_json_member(config, "auto_map");
    const char *said = NULL;
    char name[64], code[80];
    for (size_t i = 0; i < sizeof classes / sizeof *classes && !said; i++)
        said = cJSON_GetStringValue(pp_json_member(map, classes[i]));
    pp_clean_name(family, strlen(family), name, sizeof name);
    if (!said || pp_arch_missing(name))
        return pp_source_fail_family(s->path, name, err);
    pp_clean_name(said, strlen(said), code, sizeof code);
    return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is of the family \"%s\", which pippin does not know: the model comes "
                                            "with its own code (%s), which pippin does not run", s->path, name, code);
}

/* Refuses decoders that the configuration turns into encoders (embedding models do so), in families that have none. */
static enum pp_code check_direction(const struct pp_source *s, const struct pp_arch *arch, struct pp_error *err)
{
    static const char ahead[] = "use_bidirectional_attention", causal[] = "is_causal";
    const cJSON *said = pp_json_member(s->text_config, ahead);
    const char *word = cJSON_GetStringValue(said); /* "vision" concerns pictures only */
    const char *key = cJSON_IsFalse(pp_json_member(s->text_config, causal))                 ? causal
                      : cJSON_IsTrue(said) || (word && strcmp(word, "vision") != 0) ? ahead
                                                                                    : NULL;
    if (!key || pp_arch_encodes(arch))
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "config.json: %s asks for bidirectional attention, which is not supported "
                                            "in this family", key);
}

bool pp_folder_holds_gguf(const char *folder, char name[256])
{
    struct dirent **found;
    const int n = scandir(folder, &found, NULL, alphasort);
    bool weights = false;
    name[0] = 0;
    for (int i = 0; i < n; i++) {
        const char *own = found[i]->d_name;
        weights = weights || pp_ends_with(own, ".safetensors");
        if (!name[0] && own[0] != '.' && pp_ends_with(own, ".gguf"))
            snprintf(name, 256, "%s", own);
        free(found[i]);
    }
    if (n >= 0)
        free(found);
    return name[0] && !weights;
}

enum pp_code pp_source_open_folder(struct pp_source *s, struct pp_error *err)
{
    char file[256];
    if (pp_folder_holds_gguf(s->path, file))
        return pp_fail(err, PP_ERR_NOT_FOUND, "%s is a folder of GGUF files; give one of them, such as %s/%s", s->path,
                       s->path, file);
    if (!pp_file_exists(s->path, "config.json"))
        return pp_fail(err, PP_ERR_NOT_FOUND, pp_file_exists(s->path, "adapter_config.json")
                       ? "%s is a LoRA adapter, not a model; give it with --lora"
                       : "%s has no config.json, so it is not a Hugging Face model folder", s->path);
    enum pp_code code = pp_hf_open_config(s->path, &s->hf, err);
    if (code)
        return code;
    const cJSON *config = pp_hf_config(s->hf);
    s->wrapper = pp_wrapper_by_class(family_of(config));
    if (s->wrapper && !pp_wrapped_config(s->wrapper, config)) {
        const char *const *keys = s->wrapper->keys;
        return pp_fail(err, PP_ERR_FORMAT, "%s: config.json has no object %s%s%s, which would describe the language "
                                           "model in %.60s", s->path, keys[0], keys[1] ? "." : "",
                                           keys[1] ? keys[1] : "",
                       family_of(config));
    }
    const struct pp_arch *arch = arch_of(config, s->wrapper);
    if (!arch) {
        const char *name = s->wrapper ? family_in(s->wrapper, config) : family_of(config);
        return fail_unknown(s, config, name, err);
    }
    strcpy(s->hp.arch, arch->name);
    pp_title_of_path(s->path, s->hp.name, sizeof s->hp.name);
    s->hp.rope_neox = !arch->hf_pairs;
    code = complete_config(s, arch, err);
    if (!code)
        code = check_direction(s, arch, err);
    if (!code)
        code = pp_hf_quant_read(config, s->text_config, &s->quant, err);
    if (!code)
        code = pp_hparams_from_config(s->text_config, &s->hp, err);
    if (!code && arch->from_config)
        code = arch->from_config(s->text_config, &s->hp, err);
    if (!code)
        code = pp_hf_pooling(s->path, &s->hp.pooling, err);
    if (!code)
        code = pp_hparams_check(&s->hp, err);
    if (code) {
        pp_fail_prefix(err, "%s", s->path);
        return code;
    }
    code = pp_hf_open_tensors(s->hf, s->path, err); /* only now, so that unsupported models are named even without
                                                       weights */
    if (!code)
        code = find_logit_scale(s, arch, err);
    if (!code)
        code = take_tensors(s, arch, err);
    const struct pp_tensor *dense = code ? NULL : pp_source_tensor(s, "dense_2.weight");
    s->hp.n_dense = dense ? dense->ne[1] : 0;
    pp_hparams_find_shared(s, &s->hp);
    if (!code) {
        find_ranks(s);
        find_post_norms(s);
        code = pp_hf_chat_template(s->path, "default", &s->chat_template, err);
    }
    return code ? code : pp_hf_chat_template(s->path, "tool_use", &s->tool_template, err);
}
