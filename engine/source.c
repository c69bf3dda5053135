#include "engine/source.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine/arch/arch.h"
#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/file_type.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/hf_form.h"
#include "engine/hf_quant.h"
#include "engine/hparams.h"
#include "engine/name_index.h"
#include "engine/pool.h"
#include "engine/quant.h"
#include "engine/rows.h"
#include "engine/source_parts.h"
#include "engine/tensor_forms.h"
#include "engine/tensor_list.h"
#include "engine/xielu.h"

struct pp_source {
    char *path;
    struct pp_gguf *gguf;       /* of a file */
    struct pp_gguf **parts;     /* [n_parts] further files, if the model is in several */
    int n_parts;
    struct pp_hf *hf;           /* of a folder */
    const struct pp_arch_wrapper *wrapper; /* of a folder: what stands around the language model; or NULL */
    bool left_out[PP_MAX_LAYERS]; /* layers of that which only look at pictures */
    bool leaves_layers;
    cJSON *text_config;         /* of a folder: what config.json says of the language model, completed */
    struct pp_hparams hp;
    char *chat_template, *tool_template;
    struct pp_tensor_list list; /* under their GGUF names; of one file that has them as they are used: none */
    uint8_t *room;              /* for their data: mapped, nothing is there before it is written */
    size_t room_size;
    pthread_mutex_t fill_lock;
    bool filled;                /* -- protected by fill_lock */
    struct pp_hf_quant quant;   /* of a folder */
    const char *quantized;      /* "Q4_K_M": what it is made into; or NULL */
    char *imatrix_path;         /* what that is weighed by; or NULL */
    struct pp_imatrix *imatrix;
    struct pp_name_index names; /* of those */
};

/* Ends a list of names where a message has no room for more of it. */
static void shorten(struct pp_buf *names)
{
    enum { ROOM = 240 };
    size_t end = ROOM, n_others = 0;
    if (names->bad || names->len <= ROOM)
        return;
    while (end > 0 && names->data[end] != ',')
        end--;
    for (size_t i = end; i < names->len; i++)
        n_others += names->data[i] == ',';
    names->len = end;
    pp_buf_fmt(names, " and %zu others", n_others);
}

static enum pp_code fail_family(const char *path, const char *family, struct pp_error *err)
{
    const char *missing = pp_arch_missing(family);
    struct pp_buf known = {0};
    if (!*family)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s does not say of which family the model is (general.architecture; "
                       "in config.json architectures or model_type)", path);
    if (missing)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is of the family \"%s\", which pippin does not run: it would need "
                       "%s", path, family, missing);
    pp_arch_list(&known);
    shorten(&known);
    enum pp_code code =
        pp_fail(err, PP_ERR_UNSUPPORTED, "%s is of the family \"%s\", which pippin does not know; it knows: %s", path,
                family, pp_buf_cstr(&known));
    pp_buf_free(&known);
    return code;
}

/* --- a list of tensors --------------------------------------------------------------------------------- */

/* Adds a tensor under its GGUF name. made: its data become ours, also if it cannot be added. */
static enum pp_code add_tensor(struct pp_source *s, const struct pp_tensor *t, const char *name, bool made,
                               struct pp_error *err)
{
    return pp_tensor_list_add(&s->list, t, name, made, err);
}

/* Once there are no more of them: a tensor is found by its name. */
static enum pp_code index_tensors(struct pp_source *s, struct pp_error *err)
{
    if (!pp_name_index_init(&s->names, s->list.n))
        return pp_fail_nomem(err, "the list of tensors");
    for (size_t i = 0; i < s->list.n; i++)
        if (!pp_name_index_add(&s->names, s->list.t[i].name, strlen(s->list.t[i].name)))
            return pp_fail(err, PP_ERR_FORMAT, "%s has tensor %s twice", s->path, s->list.t[i].name);
    return PP_OK;
}

/* --- GGUF ---------------------------------------------------------------------------------------------- */

static enum pp_code take_gguf_template(struct pp_source *s, const char *key, char **to, struct pp_error *err)
{
    struct pp_str text;
    if (!pp_gguf_string(s->gguf, key, &text))
        return PP_OK;
    if (!text.len || !memchr(text.data, '{', text.len))
        return PP_OK; /* the name of one, as RWKV's first files have: messages would have no place in it */
    *to = pp_strndup(text.data, text.len);
    return *to ? PP_OK : pp_fail_nomem(err, "the chat template");
}

static enum pp_code take_gguf_templates(struct pp_source *s, struct pp_error *err)
{
    enum pp_code code = take_gguf_template(s, "tokenizer.chat_template", &s->chat_template, err);
    return code ? code : take_gguf_template(s, "tokenizer.chat_template.tool_use", &s->tool_template, err);
}

/* Whichever part was named, the first has the metadata. */
static enum pp_code go_to_first(struct pp_source *s, int n, struct pp_error *err)
{
    char *first = pp_part_path(s->path, 0, n, err);
    if (!first)
        return err ? err->code : PP_ERR_NOT_FOUND;
    pp_gguf_close(s->gguf);
    s->gguf = NULL;
    pp_free(s->path);
    s->path = first;
    return pp_gguf_open(s->path, &s->gguf, err);
}

/* Lists the tensors of all files as the ones that we compute with, unless those of the only one are that already. */
static enum pp_code list_tensors(struct pp_source *s, const char *family, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    const bool xielu = pp_xielu_in(s->gguf);
    const bool lacks_ones = pp_gguf_lacks_ones(s->gguf, family);
    bool other = s->n_parts > 0 || xielu || lacks_ones;
    for (size_t t = 0; t < pp_gguf_n_tensors(s->gguf) && !other; t++)
        other = pp_gguf_form(family, pp_gguf_tensor_at(s->gguf, t)) != PP_GGUF_USUAL;
    for (int i = 0; i < pp_source_n_files(s) && other && !code; i++) {
        const struct pp_gguf *g = pp_source_file(s, i);
        for (size_t t = 0; t < pp_gguf_n_tensors(g) && !code; t++)
            code = pp_gguf_form_add(&s->list, family, pp_gguf_tensor_at(g, t), lacks_ones, err);
    }
    if (!code && other)
        code = pp_gguf_take_scales(&s->list, err);
    if (!code && xielu)
        code = pp_xielu_add(&s->list, s->gguf, family, err);
    return code || !other ? code : index_tensors(s, err);
}

/* Those of heads become ones that we compute with, now that it is known how many heads there are. */
static enum pp_code split_heads(struct pp_source *s, struct pp_error *err)
{
    const size_t n = s->list.n;
    enum pp_code code = pp_split_heads(&s->list, &s->hp, err);
    if (code || n == 0)
        return code;
    pp_name_index_free(&s->names);
    return index_tensors(s, err);
}

static enum pp_code open_files(struct pp_source *s, struct pp_error *err)
{
    int64_t n = 1, number = 0;
    enum pp_code code = pp_gguf_open(s->path, &s->gguf, err);
    if (code || !pp_gguf_int(s->gguf, "split.count", &n) || n == 1)
        return code;
    if (n < 1 || n > PP_MAX_PARTS)
        return pp_fail(err, PP_ERR_FORMAT, "%s says that it is one of %lld parts; so many cannot be right", s->path,
                       (long long)n);
    if (pp_gguf_int(s->gguf, "split.no", &number) && number != 0)
        code = go_to_first(s, (int)n, err);
    s->parts = pp_calloc((size_t)n, sizeof *s->parts);
    if (!code && !s->parts)
        code = pp_fail_nomem(err, "the parts of the model");
    s->n_parts = code ? 0 : (int)n - 1;
    if (!code)
        code = pp_parts_open(s->gguf, (int)n, s->parts, err);
    return code;
}

static enum pp_code open_gguf(struct pp_source *s, struct pp_error *err)
{
    struct pp_str name;
    char family[64];
    enum pp_code code = open_files(s, err);
    if (code)
        return code;
    if (pp_gguf_string_is(s->gguf, "general.type", "adapter"))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s is a LoRA adapter, not a model; give it with --lora", s->path);
    if (!pp_gguf_string(s->gguf, "general.architecture", &name))
        return pp_fail(err, PP_ERR_FORMAT, "%s does not say of which family its model is (general.architecture)",
                       s->path);
    pp_clean_name(name.data, name.len, family, sizeof family);
    const struct pp_arch *arch = pp_arch_of_file(s->gguf, family);
    if (!arch)
        return fail_family(s->path, family, err);
    s->hp.rope_neox = arch->gguf_neox;
    s->hp.norm_eps = arch->gguf_eps;
    s->hp.expert_shares = arch->gguf_shares;
    s->hp.expert_sigmoids = arch->gguf_sigmoids;
    code = list_tensors(s, family, err);
    if (!code)
        code = pp_hparams_from_gguf(s, family, &s->hp, err);
    strcpy(s->hp.arch, arch->name); /* of two names the one that everything else goes by */
    if (!code && arch->from_gguf)
        code = arch->from_gguf(s->gguf, &s->hp, err);
    if (!code && !pp_arch_encodes(arch))
        code = pp_hparams_refuse(s->gguf, family, &s->hp, err);
    if (!code)
        code = pp_hparams_check(&s->hp, err);
    if (!code && s->hp.kv_lora_rank)
        code = split_heads(s, err);
    if (code) {
        pp_fail_prefix(err, "%s", s->path);
        return code;
    }
    return take_gguf_templates(s, err);
}

/* --- folder -------------------------------------------------------------------------------------------- */

/* config.json names a class, or at least a model type; with a class that has no output (MistralModel) the type, too. */
static const char *family_of(const cJSON *config)
{
    const cJSON *list = pp_json_member(config, "architectures");
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    const cJSON *type = pp_json_member(config, "model_type");
    const char *name = cJSON_IsString(first) ? first->valuestring : cJSON_IsString(type) ? type->valuestring : "";
    const bool headless = pp_ends_with(name, "Model") && !pp_arch_by_class(name);
    return headless && cJSON_IsString(type) && pp_arch_by_class(type->valuestring) ? type->valuestring : name;
}

/* The family of the language model that something else stands around. */
static const char *family_in(const struct pp_arch_wrapper *wrapper, const cJSON *config)
{
    const cJSON *own = pp_wrapped_config(wrapper, config);
    const char *type = cJSON_GetStringValue(pp_json_member(own, "model_type"));
    const char *usual = pp_wrapped_type(family_of(config));
    const char *said = type ? type : own ? family_of(own) : family_of(config);
    return own && !*said && usual ? usual : said;
}

static bool says_bank(const cJSON *config)
{
    return cJSON_IsNumber(pp_json_member(config, "attn_res_block_size"));
}

/* The family of a folder. What sees besides may be built around a language model of several. */
static const struct pp_arch *arch_of(const cJSON *config, const struct pp_arch_wrapper *wrapper)
{
    if (wrapper) {
        const struct pp_arch *text = pp_arch_by_class(family_in(wrapper, config));
        const cJSON *part = pp_wrapped_config(wrapper, config);
        return text && text->banked && says_bank(part) ? text->banked : text;
    }
    const struct pp_arch *arch = pp_arch_by_class(family_of(config)), *inner;
    const cJSON *own = arch && arch->parts ? pp_json_member(config, "text_config") : NULL;
    const char *type = cJSON_GetStringValue(pp_json_member(own, "model_type"));
    inner = type ? pp_arch_by_class(type) : NULL;
    arch = inner && inner->parts == arch->parts ? inner : arch;
    const bool both_ways = cJSON_IsTrue(pp_json_member(config, "use_bidirectional_attention"));
    const char *positions = cJSON_GetStringValue(pp_json_member(config, "position_embedding_type"));
    if (arch && arch->banked && says_bank(config))
        return arch->banked;
    if (arch && arch->rotated && positions && strcmp(positions, "rotary") == 0)
        return arch->rotated;
    return both_ways && arch && arch->both_ways ? arch->both_ways : arch;
}

/* Adds the members of a JSON object that the configuration lacks. */
static bool add_missing(cJSON *config, const char *json)
{
    cJSON *usual = cJSON_Parse(json), *next;
    bool ok = usual != NULL;
    for (cJSON *item = ok ? usual->child : NULL; item && ok; item = next) {
        next = item->next;
        if (!pp_json_member(config, item->string)) {
            cJSON *copy = cJSON_Duplicate(item, true);
            ok = cJSON_AddItemToObject(config, item->string, copy);
            if (!ok)
                cJSON_Delete(copy);
        }
    }
    cJSON_Delete(usual);
    return ok;
}

/* What stands beside the language model's part and counts for it where that says nothing. */
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

/* Whether a language model's part calls itself what another family is called, as all of this one do. */
static bool is_other_type(const struct pp_arch *arch, const cJSON *type)
{
    return arch->parts->other_type && strcmp(type->valuestring, arch->parts->other_type) == 0;
}

/* Finds the part of the configuration that is about the language model, and adds what it leaves out. */
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
        if (ok && cJSON_IsObject(own) && !*family_of(own) && pp_wrapped_type(family_of(whole))) {
            cJSON_DeleteItemFromObjectCaseSensitive(config, "model_type");
            type = cJSON_AddStringToObject(config, "model_type", pp_wrapped_type(family_of(whole)));
            ok = type != NULL;
        }
        ok = ok && add_missing(config, pp_wrapped_usual(cJSON_IsString(type) ? type->valuestring : ""));
        ok = ok && (!s->wrapper->rope_outside || add_rope_outside(config, whole));
        if (ok && pp_wrapped_leave_layers(config, s->left_out, err) != PP_OK)
            return err->code;
        for (int l = 0; l < PP_MAX_LAYERS; l++)
            s->leaves_layers = s->leaves_layers || s->left_out[l];
    } else if (ok && cJSON_IsObject(own) && (!cJSON_IsString(type) || is_other_type(arch, type))) {
        cJSON_DeleteItemFromObjectCaseSensitive(config, "model_type");
        ok = cJSON_AddStringToObject(config, "model_type", arch->parts->model_type);
    } else if (ok && cJSON_IsObject(own) && pp_arch_by_class(type->valuestring) != arch) {
        char family[64];
        pp_clean_name(type->valuestring, strlen(type->valuestring), family, sizeof family);
        return fail_family(s->path, family, err);
    }
    for (const struct pp_arch_usual *u = arch->usual; ok && u && u->json; u++)
        if (!u->model_type || pp_arch_is_kind(config, u->model_type, u->hf_class))
            ok = add_missing(config, u->json);
    return ok ? PP_OK : pp_fail_nomem(err, "the model's configuration");
}

/* Brings a tensor of the folder into our form, and adds what comes of it. */
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
        return add_tensor(s, &made[0], pp_buf_cstr(name), false, err);
    }
    if (form == PP_HF_EXPERTS_FLAT) {
        const enum pp_code code = pp_hf_stack(t, &s->hp, &made[0], err);
        return code ? code : add_tensor(s, &made[0], pp_buf_cstr(name), false, err);
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
    code = add_tensor(s, &made[0], pp_buf_cstr(name), true, err);
    if (n > 1 && code)
        pp_free((void *)(uintptr_t)made[1].data);
    return n > 1 && !code ? add_tensor(s, &made[1], pp_buf_cstr(second), true, err) : code;
}

/* Whether a matrix that is quantised is in the order that a form of floats has to be brought into: MXFP4's experts, and
 * GPTQ's and AWQ's matrices of any kind, are [n_out, n_in]. */
static bool is_in_order(enum pp_hf_method method, enum pp_hf_form form)
{
    if (method == PP_QUANT_MXFP4)
        return form == PP_HF_EXPERTS_TURNED;
    return form == PP_HF_SAME || form == PP_HF_ONE_ROW ||
           (form == PP_HF_TURNED && (method == PP_QUANT_GPTQ || method == PP_QUANT_AWQ));
}

/* Such models have rows behind those of the vocabulary, of which text has no tokens. */
static void leave_rows(const struct pp_source *s, struct pp_rows *rows, const char *name, struct pp_tensor *t)
{
    enum { BEHIND = 8 };
    if (!s->leaves_layers || strcmp(name, "token_embd.weight") != 0 || t->n_dims != 2 ||
        t->ne[1] != s->hp.n_vocab + BEHIND)
        return;
    t->size = t->size / (size_t)t->ne[1] * (size_t)s->hp.n_vocab;
    t->ne[1] = s->hp.n_vocab;
    if (rows)
        rows->n_rows = s->hp.n_vocab;
}

/* Adds the matrix whose first part is tensor i. */
static enum pp_code add_packed(struct pp_source *s, size_t i, enum pp_hf_form form, const struct pp_buf *name,
                               const struct pp_buf *second, struct pp_error *err)
{
    const bool in_turns = s->quant.method == PP_QUANT_MXFP4 && form == PP_HF_EXPERTS_GATE_UP;
    const bool by_head = form == PP_HF_QKV_BY_HEAD;
    struct pp_tensor t;
    struct pp_rows *rows = pp_tensor_list_rows(&s->list, err);
    if (!rows)
        return PP_ERR_NOMEM;
    if (!is_in_order(s->quant.method, form) && !in_turns && !by_head)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "%s: tensor %.200s is quantised, which cannot be read for a family (%s) that stores it in "
                       "another order; take a model that is not quantised, or a GGUF file",
                       s->path, pp_hf_at(s->hf, i)->name, s->hp.arch);
    enum pp_code code = pp_hf_quant_open(&s->quant, s->hf, i, rows, &t, err);
    if (!code && by_head && (t.n_dims != 2 || t.ne[1] != (s->hp.n_head + 2 * s->hp.n_head_kv) * s->hp.head_dim))
        code = pp_fail(err, PP_ERR_FORMAT, "tensor %.200s does not have the rows of %lld heads",
                       pp_hf_at(s->hf, i)->name, (long long)s->hp.n_head);
    if (code) {
        pp_fail_prefix(err, "%s", s->path);
        return code;
    }
    leave_rows(s, rows, pp_buf_cstr(name), &t);
    if (by_head) {
        rows->n_head = s->hp.n_head;
        rows->n_head_kv = s->hp.n_head_kv;
        rows->head_dim = s->hp.head_dim;
    }
    if (!in_turns)
        return add_tensor(s, &t, pp_buf_cstr(name), false, err);
    code = pp_tensor_list_add_turns(&s->list, &t, pp_buf_cstr(name), pp_buf_cstr(second), err);
    if (code == PP_ERR_FORMAT)
        pp_fail_prefix(err, "%s", s->path);
    return code;
}

/* Of a layer behind the last one, which guesses further tokens. */
static bool is_behind_layers(const struct pp_source *s, const char *hf_name)
{
    static const char begin[] = "model.layers.";
    struct pp_buf own = {0};
    char name[64] = "";
    if (pp_wrapped_name(hf_name, &own))
        hf_name = pp_buf_cstr(&own);
    if (strncmp(hf_name, begin, strlen(begin)) == 0)
        snprintf(name, sizeof name, "blk.%.32s", hf_name + strlen(begin));
    pp_buf_free(&own);
    return pp_is_behind_layers(&s->hp, name);
}

/* A table of whole numbers, which become I32. */
static enum pp_code take_whole(struct pp_source *s, const struct pp_tensor *t, const char *dtype, const char *name,
                               struct pp_error *err)
{
    struct pp_tensor whole;
    const enum pp_code code = pp_hf_whole(t, dtype, &whole, err);
    if (code)
        pp_fail_prefix(err, "%s", s->path);
    return code ? code : add_tensor(s, &whole, name, true, err);
}

/* What a tensor of the folder is called there, or the matrix would be that it is a part of. */
struct own_name {
    enum pp_hf_role role;
    struct pp_buf packed, recounted;
};

/* Adds tensor i of the folder, unless nobody needs it. */
static enum pp_code take_tensor(struct pp_source *s, const struct pp_arch *arch, bool tied, size_t i,
                                struct own_name *own, struct pp_buf *name, struct pp_buf *second, struct pp_error *err)
{
    const struct pp_tensor *t = pp_hf_at(s->hf, i);
    const struct pp_arch_name *entry;
    own->role = pp_hf_quant_role(&s->quant, s->hf, i, &own->packed);
    const bool packed = own->role == PP_HF_PACKED;
    const char *hf = packed ? pp_buf_cstr(&own->packed) : t->name;
    const bool there = !s->leaves_layers || pp_wrapped_recount(s->left_out, hf, &own->recounted);
    hf = s->leaves_layers ? pp_buf_cstr(&own->recounted) : hf;
    enum pp_name_match match = pp_arch_translate(arch, &s->hp, hf, &entry, name, second);
    if (name->bad || second->bad || own->packed.bad || own->recounted.bad)
        return pp_fail_nomem(err, "the list of tensors");
    if (own->role == PP_HF_PART || !there || is_behind_layers(s, hf))
        return PP_OK;
    if (match == PP_NAME_UNKNOWN && s->wrapper && pp_is_beside_text(t->name))
        return PP_OK;
    if (match == PP_NAME_UNKNOWN)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "%s has a tensor %.200s, which a model of this family (%s) does not have", s->path, t->name,
                       arch->name);
    const bool no_output = tied || pp_arch_encodes(arch);
    if (match == PP_NAME_IGNORED || (no_output && strcmp(name->data, "output.weight") == 0))
        return PP_OK;
    const char *expert = s->hp.other_experts ? pp_expert_number(pp_buf_cstr(name)) : NULL;
    if (expert && strtol(expert, NULL, 10) >= s->hp.n_expert)
        return PP_OK;
    const bool as_it_is = entry->form == PP_HF_NUMBER || entry->form == PP_HF_FLAT ||
                          (entry->form == PP_HF_SCALED && !s->hp.scales.any) ||
                          (entry->form == PP_HF_UNIT_ROWS && !s->hp.unit_output);
    const enum pp_hf_form form = as_it_is ? PP_HF_SAME : entry->form;
    if (form == PP_HF_MIX || form == PP_HF_SCORE || pp_is_of_first_values(&s->hp, pp_buf_cstr(name)))
        return PP_OK; /* take_mixes, take_scores, take_first_values */
    if (packed)
        return add_packed(s, i, form, name, second, err);
    if (form == PP_HF_WHOLE)
        return take_whole(s, t, pp_hf_dtype(s->hf, i), pp_buf_cstr(name), err);
    if (t->type == PP_TYPE_LIMIT || t->size == 0)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s is %s, which cannot be run; F32, F16 and BF16 can",
                       s->path, t->name, t->size ? pp_hf_dtype(s->hf, i) : "empty");
    if (form != PP_HF_SAME)
        return add_transformed(s, t, form, name, second, err);
    struct pp_tensor same = *t;
    leave_rows(s, NULL, pp_buf_cstr(name), &same);
    return add_tensor(s, &same, pp_buf_cstr(name), false, err);
}

/* LongRoPE's factors stand in config.json, and in GGUF files as tensors. */
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
    return add_tensor(s, &t, name, true, err);
}

/* What files have for the weights of norms of heads, of which the folder has none. */
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
        code = add_tensor(s, &t, name, true, err);
    }
    return code;
}

/* By how much each of RWKV's inputs is mixed with the position before: of a layer [6, n_embd], of RWKV 6, or without
 * gates, [5, n_embd], which files have with dimensions of one in the middle. Folders have a vector of each, older
 * ones of RWKV 7 a matrix. */
static enum pp_code take_mixes(struct pp_source *s, struct pp_error *err)
{
    const char *letters = s->hp.rwkv6 ? "wkvrg" : s->hp.rwkv_ranks[3] ? "rwkvag" : "rwkva";
    const char *before = s->hp.rwkv6 && !s->hp.rwkv_qwen ? "rwkv.blocks." : "model.layers.";
    const char *behind = s->hp.rwkv_qwen ? (s->hp.rwkv6 ? ".self_attn.time_maa_" : ".self_attn.time_mixer.x_")
                         : s->hp.rwkv6   ? ".attention.time_maa_"
                                         : ".attn.x_";
    const int64_t n = s->hp.n_embd, n_mixes = (int64_t)strlen(letters);
    for (int64_t l = 0; l < s->hp.n_layer; l++) {
        char name[80];
        snprintf(name, sizeof name, "%s%lld%sx", before, (long long)l, behind);
        const struct pp_tensor *all = s->hp.rwkv6 ? NULL : pp_hf_find(s->hf, name, NULL);
        snprintf(name, sizeof name, "%s%lld%sr", before, (long long)l, behind);
        if (!all && !pp_hf_find(s->hf, name, NULL))
            continue; /* the plan misses it */
        float *mixes = pp_calloc((size_t)(n_mixes * n), sizeof *mixes);
        if (!mixes)
            return pp_fail_nomem(err, name);
        for (int64_t i = 0; i < n_mixes; i++) {
            snprintf(name, sizeof name, "%s%lld%s%c", before, (long long)l, behind, letters[i]);
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
        const enum pp_code code = add_tensor(s, &t, name, true, err);
        if (code)
            return code;
    }
    return PP_OK;
}

/* What Kimi K3 scores vectors by that were kept. */
static enum pp_code take_scores(struct pp_source *s, struct pp_error *err)
{
    char stem[80] = "model.output_attn_res", name[64] = "output_res_score.weight";
    enum pp_code code = PP_OK;
    for (int64_t l = 0; l <= 2 * s->hp.n_layer && !code; l++) {
        struct pp_tensor score;
        code = pp_hf_product(s->hf, stem, s->hp.n_embd, &score, err);
        if (!code && score.data) /* else the plan misses it */
            code = add_tensor(s, &score, name, true, err);
        snprintf(stem, sizeof stem, "model.layers.%lld.%s_res", (long long)l / 2, l % 2 ? "mlp" : "self_attention");
        snprintf(name, sizeof name, "blk.%lld.%s_res_score.weight", (long long)l / 2, l % 2 ? "ffn" : "attn");
    }
    return code;
}

/* What the first layer would mix its values with themselves by: files have something there, which nobody reads. */
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
            const struct pp_tensor same = *t; /* the list moves while it grows */
            code = add_tensor(s, &same, to, false, err);
        }
    }
    return code;
}

/* Whether MLX wrote the folder, of whose convolutions the last dimension is one: it multiplies weights before. */
static bool is_multiplied(const struct pp_source *s)
{
    for (size_t i = 0; i < pp_hf_n(s->hf); i++) {
        const struct pp_tensor *t = pp_hf_at(s->hf, i);
        if (pp_ends_with(t->name, ".conv1d.weight"))
            return t->n_dims == 3 && t->ne[0] == 1;
    }
    return false;
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
    pp_buf_free(&own.recounted);
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
    if (!code && s->hp.kv_lora_rank)
        code = pp_split_heads(&s->list, &s->hp, err);
    if (!code && s->hp.rwkv && !s->hp.rwkv4)
        code = take_mixes(s, err);
    if (!code && s->hp.bank_step)
        code = take_scores(s, err);
    if (!code && s->hp.rwkv && !s->hp.rwkv6 && !s->hp.rwkv4)
        code = take_first_values(s, err);
    return code ? code : index_tensors(s, err);
}

/* What RWKV has between two matrices, where configurations need not say it. */
static void find_ranks(struct pp_source *s)
{
    static const char *const names[][4] = {{"blk.0.time_mix_w1.weight", "blk.0.time_mix_a1.weight",
                                            "blk.1.time_mix_v1.weight", "blk.0.time_mix_g1.weight"},
                                           {"blk.0.time_mix_decay_w1.weight", "blk.0.time_mix_w1.weight"}};
    for (int i = 0; s->hp.rwkv_qwen && i < (s->hp.rwkv6 ? 2 : 4); i++) {
        const struct pp_tensor *t = pp_source_tensor(s, names[s->hp.rwkv6][i]);
        const int64_t n = t ? t->ne[1] / (s->hp.rwkv6 && i == 1 ? 5 : 1) : 0; /* a product for each way to mix */
        if (n > 0 && n <= 1 << 16)
            s->hp.rwkv_ranks[i] = n;
    }
}

/* Versions of transformers differ in what HyperCLOVA X has where config.json does not say it; its tensors do. */
static void find_post_norms(struct pp_source *s)
{
    if (!cJSON_IsBool(pp_json_member(s->text_config, "use_post_norm")))
        s->hp.post_norms = s->hp.post_norms && pp_source_tensor(s, "blk.0.post_attention_norm.weight");
}

static enum pp_code open_folder(struct pp_source *s, struct pp_error *err)
{
    if (!pp_file_exists(s->path, "config.json"))
        return pp_fail(err, PP_ERR_NOT_FOUND, pp_file_exists(s->path, "adapter_config.json")
                       ? "%s is a LoRA adapter, not a model; give it with --lora"
                       : "%s is a folder without config.json, so it holds no model in Hugging Face's format", s->path);
    enum pp_code code = pp_hf_open_config(s->path, &s->hf, err);
    if (code)
        return code;
    const cJSON *config = pp_hf_config(s->hf);
    s->wrapper = pp_wrapper_by_class(family_of(config));
    const struct pp_arch *arch = arch_of(config, s->wrapper);
    if (!arch) {
        const char *name = s->wrapper ? family_in(s->wrapper, config) : family_of(config);
        char family[64];
        pp_clean_name(name, strlen(name), family, sizeof family);
        return fail_family(s->path, family, err);
    }
    strcpy(s->hp.arch, arch->name);
    pp_title_of_path(s->path, s->hp.name, sizeof s->hp.name);
    s->hp.rope_neox = !arch->hf_pairs;
    code = complete_config(s, arch, err);
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
    code = pp_hf_open_tensors(s->hf, s->path, err); /* not before: what is not run is named even without weights */
    if (!code)
        code = take_tensors(s, arch, err);
    const struct pp_tensor *dense = code ? NULL : pp_source_tensor(s, "dense_2.weight");
    s->hp.n_dense = dense ? dense->ne[1] : 0;
    pp_hparams_find_shared(s, &s->hp);
    if (!code)
        find_ranks(s);
    if (!code)
        find_post_norms(s);
    if (!code)
        code = pp_hf_chat_template(s->path, "default", &s->chat_template, err);
    return code ? code : pp_hf_chat_template(s->path, "tool_use", &s->tool_template, err);
}

/* --- tensors made row by row --------------------------------------------------------------------------- */

enum { ALIGN = 64 };

static size_t aligned(size_t size)
{
    return (size + ALIGN - 1) / ALIGN * ALIGN;
}

/* Has tensor t made in another type. */
static enum pp_code make_in(struct pp_source *s, struct pp_tensor *t, uint32_t type, struct pp_error *err)
{
    struct pp_rows *rows = (struct pp_rows *)(uintptr_t)t->rows; /* ours */
    if (!rows && !(rows = pp_tensor_list_rows(&s->list, err)))
        return PP_ERR_NOMEM;
    if (!t->rows)
        *rows = (struct pp_rows){.form = PP_FORM_FLOATS, .type_there = t->type, .weights = t->data, .row_step = 1,
                                 .n_cols = t->ne[0], .n_rows = t->ne[1] * t->ne[2] * t->ne[3]};
    rows->type = type;
    rows->as_blocks = false;
    t->type = type;
    t->size = pp_type_row_bytes(type, rows->n_cols) * (size_t)rows->n_rows;
    t->rows = rows;
    return PP_OK;
}

/* What is known of the columns of a tensor that is made anew. */
static enum pp_code weigh(const struct pp_source *s, const struct pp_tensor *t, bool *known, struct pp_error *err)
{
    struct pp_rows *rows = (struct pp_rows *)(uintptr_t)t->rows; /* ours */
    const char *number = pp_expert_number(t->name);
    const float *columns = NULL;
    char stack[256];
    pp_stack_name(t->name, stack);
    rows->weighing = (struct pp_weighing){
        .importance = pp_imatrix_find(s->imatrix, stack),
        .n_matrices = number ? pp_stack_size(&s->hp, t->name) : t->ne[2] * t->ne[3],
        .first = number ? strtol(number, NULL, 10) : 0,
        .matrix_rows = t->ne[1],
    };
    if (!rows->weighing.importance || rows->weighing.first >= rows->weighing.n_matrices) {
        rows->weighing.importance = NULL;
        return PP_OK;
    }
    enum pp_code code = pp_importance_of(rows->weighing.importance, t->ne[0], rows->weighing.n_matrices,
                                         rows->weighing.first, &columns, err);
    *known |= columns != NULL;
    return code;
}

/* Those that become blocks are weighed by an importance matrix. */
static enum pp_code weigh_all(struct pp_source *s, const char *path, struct pp_error *err)
{
    const struct pp_tensor *first = NULL;
    bool known = false;
    if (!(s->imatrix_path = pp_strdup(path)))
        return pp_fail_nomem(err, path);
    enum pp_code code = pp_imatrix_read(path, &s->imatrix, err);
    for (size_t i = 0; i < s->list.n && !code; i++) {
        const struct pp_tensor *t = &s->list.t[i];
        if (!t->rows || t->rows->as_blocks || pp_type_info(t->type)->block_elements == 1)
            continue;
        first = first ? first : t;
        code = weigh(s, t, &known, err);
    }
    if (!code && first && !known)
        code = pp_fail(err, PP_ERR_MISMATCH, "%s says nothing of %s or any other matrix that is to be quantised; it "
                       "was made for another model", path, first->name);
    return code;
}

/* What pippin quantize would make of the folder, its matrices are made into when they are loaded. */
static enum pp_code quantize(struct pp_source *s, const char *quant, struct pp_error *err)
{
    const bool tied = s->hf && !pp_source_tensor(s, "output.weight");
    enum pp_code code = PP_OK;
    s->quantized = pp_quantize_name(quant);
    if (!s->quantized)
        return pp_fail(err, PP_ERR_USAGE, "cannot quantise to \"%.40s\"; pippin quantize --help names what there is",
                       quant);
    if (!s->hf)
        return pp_fail(err, PP_ERR_USAGE, "%s is a GGUF file, which is used as it is: --quant is for model folders; "
                       "pippin quantize makes a smaller file", s->path);
    for (size_t i = 0; i < s->list.n && !code; i++) {
        struct pp_tensor *t = &s->list.t[i];
        const bool matrix = t->n_dims > 1 && t->type != PP_TYPE_I32 && !pp_export_keeps_f32(t);
        const uint32_t type = pp_quantize_tensor_type(pp_file_type_by_name(s->quantized), &s->hp, tied, t);
        if (matrix && type != t->type && (type != PP_TYPE_F32 || strcmp(s->quantized, "F32") == 0))
            code = make_in(s, t, type, err);
    }
    return code;
}

/* Gives the tensors that are still to be made their place in memory, which takes none before it is written. */
static enum pp_code reserve(struct pp_source *s, struct pp_error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < s->list.n; i++)
        if (s->list.t[i].rows && __builtin_add_overflow(s->room_size, aligned(s->list.t[i].size), &s->room_size))
            return pp_fail_nomem(err, s->path);
    if (!s->room_size)
        return PP_OK;
    void *room = mmap(NULL, s->room_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return pp_fail_nomem(err, s->path);
    s->room = room;
    for (size_t i = 0; i < s->list.n; i++)
        if (s->list.t[i].rows) {
            s->list.t[i].data = s->room + at;
            at += aligned(s->list.t[i].size);
        }
    return PP_OK;
}

/* Rows of one tensor on their way. */
struct filling {
    const struct pp_tensor *t;
    size_t row_bytes;
    int64_t first, n;          /* rows of this slice */
    int n_shares;
    struct pp_error errors[PP_SOURCE_THREADS];
};

static void fill_share(void *arg, int part, int share, int thread)
{
    (void)part, (void)thread;
    struct filling *f = arg;
    const int64_t begin = f->n * share / f->n_shares, end = f->n * (share + 1) / f->n_shares;
    f->errors[share].code = PP_OK;
    if (begin < end)
        pp_rows_read(f->t->rows, f->first + begin, end - begin,
                     (uint8_t *)(uintptr_t)f->t->data + (size_t)(f->first + begin) * f->row_bytes, &f->errors[share]);
}

/* One tensor, a slice at a time, so that it can be stopped in between. */
static enum pp_code fill_tensor(const struct pp_tensor *t, struct pp_pool *pool, const struct pp_cancel *cancel,
                                struct pp_error *err)
{
    enum { SLICE = 4 << 20 }; /* weights */
    const int64_t n_rows = t->ne[1] * t->ne[2] * t->ne[3], step = SLICE / t->ne[0] > 64 ? SLICE / t->ne[0] : 64;
    const int n = pp_pool_n(pool);
    struct filling f = {.t = t, .row_bytes = pp_type_row_bytes(t->type, t->ne[0]),
                        .n_shares = n < PP_SOURCE_THREADS ? n : PP_SOURCE_THREADS};
    for (; f.first < n_rows; f.first += step) {
        f.n = step < n_rows - f.first ? step : n_rows - f.first;
        if (pp_cancelled(cancel))
            return pp_fail(err, PP_ERR_CANCELLED, "the loading of the model was stopped");
        pp_pool_run(pool, fill_share, &f, &f.n_shares, 1);
        for (int i = 0; i < f.n_shares; i++)
            if (f.errors[i].code) {
                *err = f.errors[i];
                pp_fail_prefix(err, "tensor %.200s", t->name);
                return err->code;
            }
    }
    return PP_OK;
}

static enum pp_code fill_all(struct pp_source *s, struct pp_pool *pool, const struct pp_fill_options *opt,
                             struct pp_error *err)
{
    const size_t total = pp_source_to_fill(s);
    size_t done = 0;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < s->list.n && !code; i++) {
        if (!s->list.t[i].rows)
            continue;
        const struct pp_tensor *t = &s->list.t[i];
        code = fill_tensor(t, pool, opt->cancel, err);
        pp_source_let_go(s, t, 0, t->ne[1] * t->ne[2] * t->ne[3]); /* what it was made of is not looked at again */
        done += t->size;
        if (!code && opt->progress)
            opt->progress(opt->user, done, total);
    }
    if (!code)
        code = pp_source_check(s, err); /* zeros were read of what another program cut off */
    if (code && code != PP_ERR_CANCELLED)
        pp_fail_prefix(err, "%s", s->path);
    return code;
}

void pp_source_let_go(const struct pp_source *s, const struct pp_tensor *t, int64_t first, int64_t n)
{
    const size_t row = t->size / (size_t)(t->ne[1] * t->ne[2] * t->ne[3]);
    const uint8_t *data = t->data;
    if (pp_tensor_list_made(&s->list, t->rows ? t->rows->weights : data))
        return; /* our own, and nowhere else */
    if (t->rows)
        pp_rows_let_go(t->rows, first, n);
    else
        pp_map_let_go(data + row * (size_t)first, data + row * (size_t)(first + n));
}

size_t pp_source_to_fill(const struct pp_source *s)
{
    size_t total = 0;
    for (size_t i = 0; i < s->list.n; i++)
        total += s->list.t[i].rows ? s->list.t[i].size : 0;
    return total;
}

enum pp_code pp_source_fill(const struct pp_source *source, struct pp_pool *pool, const struct pp_fill_options *opt,
                            struct pp_error *err)
{
    struct pp_source *s = (struct pp_source *)(uintptr_t)source; /* only what is behind the lock changes */
    struct pp_pool *own = NULL;
    struct pp_error why;
    enum pp_code code = PP_OK;
    err = err ? err : &why;
    if (!s->room)
        return PP_OK;
    pthread_mutex_lock(&s->fill_lock);
    if (!s->filled && !pool)
        code = pp_pool_new(1, &own, err);
    if (!s->filled && !code)
        code = fill_all(s, pool ? pool : own, opt, err);
    s->filled |= code == PP_OK;
    pthread_mutex_unlock(&s->fill_lock);
    pp_pool_free(own);
    return code;
}

/* --- the interface ------------------------------------------------------------------------------------- */

enum pp_code pp_source_open(const char *path, struct pp_source **out, struct pp_error *err)
{
    return pp_source_open_as(path, NULL, NULL, out, err);
}

enum pp_code pp_source_open_as(const char *path, const char *quant, const char *imatrix, struct pp_source **out,
                               struct pp_error *err)
{
    struct pp_error own; /* what is called asks the error for its code */
    struct stat st;
    err = err ? err : &own;
    *out = NULL;
    if (imatrix && !quant)
        return pp_fail(err, PP_ERR_USAGE, "an importance matrix weighs what a folder is quantised to while it is "
                       "loaded: give --quant, too, or leave %s out", imatrix);
    if (stat(path, &st) != 0)
        return pp_fail(err, errno == ENOENT || errno == ENOTDIR ? PP_ERR_NOT_FOUND : PP_ERR_IO, "cannot open %s: %s",
                       path, strerror(errno));
    struct pp_source *s = pp_calloc(1, sizeof *s);
    if (!s || !(s->path = pp_strdup(path))) {
        pp_free(s);
        return pp_fail_nomem(err, path);
    }
    pthread_mutex_init(&s->fill_lock, NULL);
    enum pp_code code = S_ISDIR(st.st_mode) ? open_folder(s, err) : open_gguf(s, err);
    if (!code && quant)
        code = quantize(s, quant, err);
    if (!code && imatrix)
        code = weigh_all(s, imatrix, err);
    if (!code)
        code = reserve(s, err);
    if (code) {
        pp_source_close(s);
        return code;
    }
    *out = s;
    return PP_OK;
}

void pp_source_close(struct pp_source *s)
{
    if (!s)
        return;
    pp_tensor_list_free(&s->list);
    if (s->room)
        munmap(s->room, s->room_size);
    pthread_mutex_destroy(&s->fill_lock);
    pp_name_index_free(&s->names);
    cJSON_Delete(s->text_config);
    for (int i = 0; i < s->n_parts; i++)
        pp_gguf_close(s->parts[i]);
    pp_free(s->parts);
    pp_gguf_close(s->gguf);
    pp_hf_close(s->hf);
    pp_imatrix_free(s->imatrix);
    pp_free(s->imatrix_path);
    pp_free(s->chat_template);
    pp_free(s->tool_template);
    pp_free(s->path);
    pp_free(s);
}

const char *pp_source_path(const struct pp_source *s)
{
    return s->path;
}

const struct pp_gguf *pp_source_gguf(const struct pp_source *s)
{
    return s->gguf;
}

int pp_source_n_files(const struct pp_source *s)
{
    return s->gguf ? 1 + s->n_parts : 0;
}

const struct pp_gguf *pp_source_file(const struct pp_source *s, int i)
{
    return i ? s->parts[i - 1] : s->gguf;
}

/* Whether all tensors are in one GGUF file as we compute with them, which then has them by name. */
static bool one_file(const struct pp_source *s)
{
    return s->gguf && !s->list.n;
}

const char *pp_source_folder(const struct pp_source *s)
{
    return s->hf ? s->path : NULL;
}

bool pp_source_leaves_layers(const struct pp_source *s)
{
    return s->leaves_layers;
}

enum pp_code pp_source_check_adapters(const struct pp_source *s, struct pp_error *err)
{
    if (!s->leaves_layers)
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "%s has layers that look at pictures, which are left out: adapters of such "
                   "models are not supported", s->path);
}

bool pp_source_is_wrapped(const struct pp_source *s)
{
    return s->wrapper != NULL;
}

const cJSON *pp_source_config(const struct pp_source *s)
{
    return s->hf ? s->text_config : NULL;
}

const char *pp_source_quant(const struct pp_source *s)
{
    return s->quantized;
}

const char *pp_source_imatrix(const struct pp_source *s)
{
    return s->imatrix_path;
}

const struct pp_hparams *pp_source_hparams(const struct pp_source *s)
{
    return &s->hp;
}

const struct pp_tensor *pp_source_tensor(const struct pp_source *s, const char *gguf_name)
{
    if (one_file(s))
        return pp_gguf_tensor(s->gguf, gguf_name);
    size_t i = pp_name_index_find(&s->names, gguf_name, strlen(gguf_name));
    return i == SIZE_MAX ? NULL : &s->list.t[i];
}

size_t pp_source_n_tensors(const struct pp_source *s)
{
    return one_file(s) ? pp_gguf_n_tensors(s->gguf) : s->list.n;
}

const struct pp_tensor *pp_source_tensor_at(const struct pp_source *s, size_t i)
{
    return one_file(s) ? pp_gguf_tensor_at(s->gguf, i) : &s->list.t[i];
}

int64_t pp_source_n_params(const struct pp_source *s)
{
    int64_t total = 0;
    for (size_t i = 0; i < pp_source_n_tensors(s); i++) {
        const int64_t *ne = pp_source_tensor_at(s, i)->ne;
        total += ne[0] * ne[1] * ne[2] * ne[3]; /* each is in a file: no overflow */
    }
    return total;
}

size_t pp_source_bytes(const struct pp_source *s)
{
    size_t total = 0;
    for (size_t i = 0; i < pp_source_n_tensors(s); i++)
        total += pp_source_tensor_at(s, i)->size;
    return total;
}

const char *pp_source_type_name(const struct pp_source *s)
{
    size_t bytes[PP_TYPE_LIMIT] = {0};
    int64_t id;
    uint32_t most = 0;
    if (s->quantized)
        return s->quantized;
    if (s->gguf && pp_gguf_int(s->gguf, "general.file_type", &id) && pp_file_type_name(id))
        return pp_file_type_name(id);
    for (size_t i = 0; i < pp_source_n_tensors(s); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(s, i);
        bytes[t->type] += t->size;
    }
    for (uint32_t t = 0; t < PP_TYPE_LIMIT; t++)
        if (bytes[t] > bytes[most])
            most = t;
    return pp_type_info(most)->name;
}

const char *pp_source_chat_template(const struct pp_source *s)
{
    return s->chat_template;
}

const char *pp_source_tool_template(const struct pp_source *s)
{
    return s->tool_template ? s->tool_template : s->chat_template;
}

enum pp_code pp_source_check(const struct pp_source *s, struct pp_error *err)
{
    bool lost = s->hf && pp_hf_lost(s->hf);
    for (int i = 0; i < pp_source_n_files(s); i++)
        lost = lost || pp_gguf_lost(pp_source_file(s, i));
    if (!lost)
        return PP_OK;
    return pp_fail(err, PP_ERR_IO, "%s was cut short by another program while it was in use; load the model again",
                   s->path);
}
