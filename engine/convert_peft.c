/* convert_peft.c - converts GGUF adapters to PEFT's folders. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/adapter_file.h"
#include "engine/adapter_file_int.h"
#include "engine/arch/arch.h"
#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/convert_adapter_int.h"
#include "engine/convert_experts.h"
#include "engine/hf_form.h"
#include "engine/peft_write.h"
#include "engine/quant.h"
#include "engine/source.h"
#include "engine/state_order.h"

struct module_join;

struct to_peft {
    const struct pp_adapter_file *file;
    const struct pp_source *base;
    int wanted;
    bool permuted;              /* rows of q and k are permuted to Hugging Face's order */
    struct pp_copies tensors;   /* of the new file; unchanged data stay in the old file */
    bool *owned;                /* [tensors.cap] */
    struct pp_buf names;
    cJSON *config, *modules, *saved, *ranks, *alphas, *parameters;
    struct pp_expert_groups experts;
    struct module_join *joins;  /* [n_joins] */
    size_t n_joins;
};

/* The module of a weight with a GGUF name: "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj". */
static bool module_name(const struct pp_source *base, const char *gguf, struct pp_buf *module)
{
    return pp_arch_hf_module(pp_convert_arch(base), pp_source_hparams(base), gguf, module) && !module->bad;
}

/* The form in which folders have a matrix, perhaps fused q, k and v. */
static enum pp_hf_form form_of(const struct pp_arch *arch, const char *name)
{
    static const char *const kinds[] = {".attn_q.", ".attn_k.", ".attn_v."};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *at = strstr(name, kinds[i]);
        char whole[PP_HF_NAME];
        if (!at)
            continue;
        snprintf(whole, sizeof whole, "%.*s.attn_qkv.%s", (int)(at - name), name, at + strlen(kinds[i]));
        const enum pp_hf_form form = pp_arch_form(arch, whole);
        if (form != PP_HF_QKV_FUSED_BY_GROUP && form != PP_HF_SAME)
            return form;
    }
    return pp_arch_form(arch, name);
}

/* A module of a folder with several matrices of the file, of which targets change some. */
struct module_join {
    struct pp_join join;        /* has the module's name */
    enum pp_hf_form form;
    const struct pp_by_keys *keys;
    int64_t n_out;
};

/* Rows of the model's matrices together, or 0 if one is missing. */
static int64_t rows_of(const struct pp_source *base, const char names[][PP_HF_NAME], int n)
{
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        const struct pp_tensor *w = pp_source_tensor(base, names[i]);
        if (!w)
            return 0;
        rows += w->ne[1];
    }
    return rows;
}

/* Finds the module of a whole by keys that contains this part. */
static bool find_keys(const struct pp_source *base, const char *name, struct module_join *m, struct pp_buf *module,
                      int *place)
{
    char names[2][PP_HF_NAME], whole[PP_HF_NAME];
    for (int i = 0; i < 2 * PP_BY_KEYS; i++) {
        const struct pp_by_keys *k = &pp_by_keys[i / 2];
        const char *end = pp_name_ending(name, k->parts[i % 2]);
        if (!end)
            continue;
        const int stem = (int)(end - name);
        snprintf(whole, sizeof whole, "%.*s%s", stem, name, k->whole);
        for (int part = 0; part < 2; part++)
            snprintf(names[part], PP_HF_NAME, "%.*s%s", stem, name, k->parts[part]);
        m->keys = k;
        const struct pp_tensor *w = pp_source_tensor(base, whole); /* if the model is a folder */
        m->n_out = w ? w->ne[1] : rows_of(base, names, 2);
        *place = i % 2;
        return m->n_out && !pp_arch_hf_module(pp_convert_arch(base), pp_source_hparams(base), name, module) &&
               module_name(base, whole, module);
    }
    return false;
}

/* Whether a target is such a part, and the model's whole has as many inputs. */
static bool is_of_keys(const struct pp_source *base, const struct pp_adapter_target *t)
{
    char whole[PP_HF_NAME];
    struct pp_join_way way = {0};
    const struct pp_tensor *w = pp_adapter_whole_name(t->name, whole, &way) >= 0 && way.keys
                                    ? pp_source_tensor(base, whole)
                                    : NULL;
    return w && w->ne[0] == t->n_in && !pp_source_tensor(base, t->name);
}

/* Finds the module that contains this matrix among others, and which part of it that is; false: none does. */
static bool find_module(const struct pp_source *base, const char *name, struct module_join *m, struct pp_buf *module,
                        int *place)
{
    static const char *const kinds[] = {".attn_q.weight", ".attn_k.weight", ".attn_v.weight"};
    const struct pp_arch *arch = pp_convert_arch(base);
    const struct pp_hparams *hp = pp_source_hparams(base);
    char names[3][PP_HF_NAME], whole[PP_HF_NAME];
    struct pp_buf hf = {0}, gguf = {0}, second = {0};
    for (*place = 0; *place < 3; ++*place) {
        const char *end = pp_name_ending(name, kinds[*place]);
        if (!end)
            continue;
        snprintf(whole, sizeof whole, "%.*s.attn_qkv.weight", (int)(end - name), name);
        const struct pp_adapter_target of_three = {.form = pp_arch_form(arch, whole)};
        if (!pp_adapter_is_by_rows(&of_three) || of_three.form == PP_HF_QKV_FUSED_BY_GROUP ||
            !pp_hf_qkv_names(whole, names))
            break;
        m->form = of_three.form;
        m->n_out = rows_of(base, names, 3);
        return m->n_out && module_name(base, whole, module);
    }
    if (find_keys(base, name, m, module, place))
        return true;
    m->keys = NULL;
    const struct pp_arch_name *entry = pp_arch_hf_name(arch, hp, name, false, &hf);
    bool found = entry && entry->second && pp_name_ending(pp_buf_cstr(&hf), ".weight") &&
                 pp_arch_translate(arch, hp, pp_buf_cstr(&hf), &entry, &gguf, &second) == PP_NAME_FOUND &&
                 !gguf.bad && !second.bad && entry->second;
    if (found) {
        snprintf(names[0], PP_HF_NAME, "%s", pp_buf_cstr(&gguf));
        snprintf(names[1], PP_HF_NAME, "%s", pp_buf_cstr(&second));
        *place = strcmp(names[1], name) == 0;
        m->form = entry->form;
        m->n_out = rows_of(base, names, 2);
        pp_buf_clear(module);
        pp_buf_add(module, hf.data, hf.len - strlen(".weight"));
        found = m->n_out > 0 && !module->bad;
    }
    module->bad = module->bad || hf.bad || gguf.bad || second.bad;
    pp_buf_free(&hf);
    pp_buf_free(&gguf);
    pp_buf_free(&second);
    return found;
}

/* Records a target whose matrix `name` (pp_adapter_matrices) is a part of such a module; *noted: it is. */
static enum pp_code note_module(struct to_peft *p, const struct pp_adapter_target *t, int part, const char *name,
                                bool *noted, struct pp_error *err)
{
    struct module_join m = {0};
    struct pp_buf module = {0};
    int place;
    size_t i = 0;
    *noted = t->rank && find_module(p->base, name, &m, &module, &place) && module.len < PP_HF_NAME;
    if (!*noted) {
        const bool bad = module.bad;
        pp_buf_free(&module);
        return bad ? pp_fail_nomem(err, name) : PP_OK;
    }
    while (i < p->n_joins && strcmp(p->joins[i].join.name, pp_buf_cstr(&module)) != 0)
        i++;
    if (i == p->n_joins) {
        p->joins[p->n_joins++] = m;
        snprintf(p->joins[i].join.name, PP_HF_NAME, "%s", pp_buf_cstr(&module));
    }
    pp_buf_free(&module);
    return pp_join_add(&p->joins[i].join, place, name, t, part)
               ? PP_OK
               : pp_fail(err, PP_ERR_FORMAT, "the adapter has %s twice", name);
}

/* Checks the form in which folders have a module; some cannot be made. name: the target's matrix. */
static enum pp_code check_folder_form(const struct to_peft *p, const struct pp_adapter_target *t, const char *name,
                                      struct pp_error *err)
{
    struct pp_adapter_target there = *t;
    there.form = form_of(pp_convert_arch(p->base), name);
    there.second = NULL;
    const bool several = pp_adapter_is_by_rows(&there) && there.form != PP_HF_QKV_FUSED_BY_GROUP;
    return several || !pp_adapter_form_fits(&there) ? pp_convert_fail_form(name, err) : PP_OK;
}

/* The order of a matrix's outputs in folders: the index of ours for each; pp_free. *order NULL: the same. */
static enum pp_code find_order(const struct to_peft *p, const struct pp_adapter_target *t, int32_t **order,
                               struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(p->base);
    struct pp_adapter_target there = *t;
    const bool pairs = p->permuted && pp_arch_rows(pp_convert_arch(p->base), t->name) != PP_ROWS_SAME;
    const size_t n = (size_t)t->n_out;
    there.form = form_of(pp_convert_arch(p->base), t->name);
    *order = NULL;
    if (!pairs && there.form != PP_HF_QKV_FUSED_BY_GROUP)
        return PP_OK;
    int32_t *ours = pp_malloc(n * sizeof *ours);
    if (!ours || !(*order = pp_malloc(n * sizeof **order))) {
        pp_free(ours);
        return pp_fail_nomem(err, t->name);
    }
    pp_adapter_outputs(&there, hp, 0, pairs ? PP_PAIRS_TO_GGUF : PP_PAIRS_SAME, ours);
    for (size_t r = 0; r < n; r++)
        (*order)[ours[r]] = (int32_t)r;
    pp_free(ours);
    return PP_OK;
}

/* Adds the tensor, with rows permuted (order, or NULL) and in the wanted type; unchanged data are not copied. */
static enum pp_code add_tensor(struct to_peft *p, const struct pp_tensor *t, const int32_t *order, const char *module,
                               const char *end, struct pp_error *err)
{
    const uint32_t type = p->wanted >= 0 ? (uint32_t)p->wanted : pp_convert_is_float(t->type) ? t->type : PP_TYPE_F32;
    const int64_t n = t->ne[0], rows = t->n_dims > 1 ? t->ne[1] : 1;
    struct pp_tensor *to = &p->tensors.tensors[p->tensors.n];
    enum pp_code code = PP_OK;
    pp_buf_fmt(&p->names, "base_model.model.%s%s%c", module, end, 0);
    *to = *t;
    if (order || type != t->type) {
        const size_t to_row = pp_type_row_bytes(type, n), from_row = pp_type_row_bytes(t->type, n);
        uint8_t *data = pp_malloc((size_t)rows * to_row);
        float *floats = pp_malloc((size_t)n * sizeof *floats);
        if (!data || !floats)
            code = pp_fail_nomem(err, t->name);
        for (int64_t r = 0; r < rows && !code; r++) {
            const uint8_t *from = (const uint8_t *)t->data + (size_t)(order ? order[r] : r) * from_row;
            if (type == t->type) {
                memcpy(data + (size_t)r * to_row, from, to_row);
                continue;
            }
            pp_dequantize_row(t->type, from, floats, n);
            if ((code = pp_quantize_rows(type, floats, data + (size_t)r * to_row, 1, n, NULL, err)))
                pp_fail_prefix(err, "tensor %s", t->name);
        }
        pp_free(floats);
        to->type = type;
        to->data = data;
        to->size = (size_t)rows * to_row;
        p->owned[p->tensors.n] = true;
    }
    p->tensors.n++;
    return code;
}

/* Whether all layers have a target like this one. */
static bool is_in_all_layers(const struct to_peft *p, const char *name)
{
    const char *kind = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    const int64_t n_layer = pp_source_hparams(p->base)->n_layer;
    int64_t l = 0;
    char other[256];
    for (bool there = kind != NULL; there && l < n_layer; l += there) {
        snprintf(other, sizeof other, "blk.%d%s", (int)l, kind);
        there = pp_adapter_file_find(p->file, other) != NULL;
    }
    return l == n_layer;
}

/* Lists modules that are changed in every layer by their last name, as people write it; others by their full name, so
 * that PEFT creates nothing in other layers. */
static bool add_module(struct to_peft *p, cJSON *list, const struct pp_adapter_target *t, const char *module)
{
    const char *dot = strrchr(module, '.');
    return pp_peft_add_once(list, dot && is_in_all_layers(p, t->name) ? dot + 1 : module);
}

/* Adds A and B of a module. */
static enum pp_code add_halves(struct to_peft *p, const struct pp_adapter_target *t, const char *module,
                               struct pp_error *err)
{
    const struct pp_tensor *a = &t->a;
    struct pp_copies c = pp_copies_new(1); /* A is permuted or, of embeddings, transposed */
    int32_t *heads = NULL, *order = NULL;
    bool columns = false;
    enum pp_code code = find_order(p, t, &order, err);
    if (!code)
        code = pp_convert_find_heads(p->base, t, t->name, false, &heads, &columns, err);
    if (!code && heads && columns && !(a = pp_copies_moved_columns(&c, a, heads, err)))
        code = err ? err->code : PP_ERR_NOMEM;
    if (!code && t->a_transposed && !pp_convert_is_float(a->type))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "%s cannot be transposed: it is %s", t->a.name,
                       pp_type_info(t->a.type)->name);
    if (!code && t->a_transposed && !(a = pp_copies_transposed(&c, a, err)))
        code = err ? err->code : PP_ERR_NOMEM;
    if (!code)
        code = add_tensor(p, a, NULL, module, t->embedding ? ".lora_embedding_A" : ".lora_A.weight", err);
    if (!code && c.n && !p->owned[p->tensors.n - 1]) { /* the copy is needed until writing */
        p->owned[p->tensors.n - 1] = true;
        c.tensors[0].data = NULL;
    }
    pp_copies_free(&c);
    if (!code)
        code = add_tensor(p, &t->b, heads && !columns ? heads : order, module,
                          t->embedding ? ".lora_embedding_B" : ".lora_B.weight", err);
    pp_free(heads);
    pp_free(order);
    return code;
}

/* Adds A and B of one of two modules that a file has in one matrix: A is the same, B has those rows. */
static enum pp_code add_half(struct to_peft *p, const struct pp_adapter_target *t, int part, const char *module,
                             struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(p->base);
    const int64_t n = pp_adapter_part_outputs(t, hp, part);
    struct pp_tensor b = t->b;
    int32_t *order = pp_malloc((size_t)n * sizeof *order);
    if (!order)
        return pp_fail_nomem(err, t->name);
    pp_adapter_outputs(t, hp, part, PP_PAIRS_SAME, order);
    b.ne[1] = n;
    enum pp_code code = add_tensor(p, &t->a, NULL, module, ".lora_A.weight", err);
    if (!code)
        code = add_tensor(p, &b, order, module, ".lora_B.weight", err);
    pp_free(order);
    return code;
}

/* Adds a module's rank and alpha, where they differ from those of most. */
static bool add_numbers(struct to_peft *p, const char *module, int64_t rank, float scale, int64_t usual_rank,
                        float alpha)
{
    const float own = scale * (float)rank;
    bool ok = rank == usual_rank || cJSON_AddNumberToObject(p->ranks, module, (double)rank);
    if (own != alpha && fabsf(own / alpha - 1.0f) > 1e-6f)
        ok = ok && cJSON_AddNumberToObject(p->alphas, module, (double)own);
    return ok;
}

/* Adds a new tensor, and takes ownership of its data. */
static bool take_tensor(struct to_peft *p, const struct pp_tensor *t, const char *module, const char *end)
{
    pp_buf_fmt(&p->names, "base_model.model.%s%s%c", module, end, 0);
    p->owned[p->tensors.n] = true;
    p->tensors.tensors[p->tensors.n++] = *t;
    return !p->names.bad;
}

/* Adds a replaced norm. */
static enum pp_code add_norm(struct to_peft *p, const struct pp_adapter_target *t, const char *module,
                             struct pp_error *err)
{
    const float added = pp_hf_added(form_of(pp_convert_arch(p->base), t->name));
    struct pp_tensor stored;
    if (added == 0.0f)
        return add_tensor(p, &t->weight, NULL, module, ".weight", err);
    if (!pp_convert_shifted(&t->weight, -added, &stored))
        return pp_fail_nomem(err, t->name);
    return take_tensor(p, &stored, module, ".weight") ? PP_OK : pp_fail_nomem(err, t->name);
}

/* Adds experts' matrices as a parameter of a module, as PEFT does since 0.19.1: if two parameters of a module are
 * changed, the first one is wrapped first. */
static enum pp_code add_parameter(struct to_peft *p, struct pp_expert_group *g, int64_t usual_rank, float alpha,
                                  struct pp_error *err)
{
    static const char *const two[] = {".experts.gate_up_proj", ".experts.down_proj"};
    const char *dot = strrchr(g->name, '.'), *first = pp_name_ending(g->name, two[0]);
    struct pp_tensor halves[2];
    struct pp_buf module = {0};
    bool inner = false;
    for (size_t i = 0; first && i < p->experts.n; i++) {
        const char *other = p->experts.g[i].name, *end = pp_name_ending(other, two[1]);
        inner = inner || (end && end - other == first - g->name && strncmp(other, g->name, (size_t)(end - other)) == 0);
    }
    if (p->wanted >= 0)
        g->type = (uint32_t)p->wanted;
    enum pp_code code = dot ? pp_expert_group_tensors(g, true, halves, err)
                            : pp_fail(err, PP_ERR_UNSUPPORTED, "PEFT has no name for %s", g->name);
    if (code)
        return code;
    pp_buf_fmt(&module, "%.*s%s", (int)(dot - g->name), g->name, inner ? ".base_layer" : "");
    bool ok = true;
    for (int half = 0; half < 2; half++)
        ok = take_tensor(p, &halves[half], pp_buf_cstr(&module), half ? ".lora_B.weight" : ".lora_A.weight") && ok;
    if (!p->parameters && (p->parameters = cJSON_AddArrayToObject(p->config, "target_parameters")))
        ok = ok && cJSON_AddStringToObject(p->config, "peft_version", "0.19.1");
    ok = ok && p->parameters && pp_peft_add_once(p->parameters, g->name) &&
         add_numbers(p, g->name, g->rank, g->scale, usual_rank, alpha) && !module.bad;
    pp_buf_free(&module);
    return ok ? PP_OK : pp_fail_nomem(err, "an adapter's configuration");
}

/* Adds A and B of a module with several matrices. */
static enum pp_code add_joined(struct to_peft *p, const struct module_join *m, int64_t usual_rank, float alpha,
                               struct pp_error *err)
{
    const struct pp_join_way way = {.form = m->form, .keys = m->keys,
                                    .to = p->permuted ? PP_PAIRS_TO_GGUF : PP_PAIRS_SAME};
    const struct pp_adapter_target *first = NULL;
    struct pp_copies c = pp_copies_new(2);
    struct pp_joined joined = {0};
    uint32_t type;
    for (int i = PP_JOINED_PARTS - 1; i >= 0; i--)
        first = m->join.of[i] ? m->join.of[i] : first;
    pp_join_rank(&m->join, &type);
    enum pp_code code =
        pp_join_make(&m->join, pp_source_hparams(p->base), &way, first->n_in, m->n_out, &joined, err);
    if (p->wanted >= 0)
        type = (uint32_t)p->wanted;
    const char *name = m->join.name;
    if (!code && (!pp_copies_made(&c, name, joined.a, first->n_in, joined.rank, type) ||
                  !pp_copies_made(&c, name, joined.b, joined.rank, m->n_out, type)))
        code = pp_fail_nomem(err, name);
    for (int half = 0; half < 2 && !code; half++) {
        const bool taken = take_tensor(p, &c.tensors[half], name, half ? ".lora_B.weight" : ".lora_A.weight");
        c.tensors[half].data = NULL;
        code = taken ? PP_OK : pp_fail_nomem(err, name);
    }
    if (!code && (!add_module(p, p->modules, first, name) ||
                  !add_numbers(p, name, joined.rank, joined.scale, usual_rank, alpha)))
        code = pp_fail_nomem(err, "an adapter's configuration");
    pp_joined_free(&joined);
    pp_copies_free(&c);
    return code;
}

/* Adds one of a target's matrices, called `matrix`. */
static enum pp_code add_matrix(struct to_peft *p, const struct pp_adapter_target *t, int part, const char *matrix,
                               int64_t usual_rank, float alpha, struct pp_error *err)
{
    struct pp_buf module = {0};
    bool noted = false, ok = true;
    enum pp_code code = note_module(p, t, part, matrix, &noted, err);
    if (noted)
        return code;
    if (!code && !module_name(p->base, matrix, &module))
        code = module.bad ? pp_fail_nomem(err, matrix)
                          : pp_fail(err, PP_ERR_UNSUPPORTED, "PEFT has no name for %s", matrix);
    if (!code)
        code = check_folder_form(p, t, matrix, err);
    const char *name = pp_buf_cstr(&module);
    if (!code && t->weight.data) {
        code = add_norm(p, t, name, err);
        ok = add_module(p, p->saved, t, name);
    }
    if (!code && t->rank) {
        code = t->second ? add_half(p, t, part, name, err) : add_halves(p, t, name, err);
        ok = add_module(p, p->modules, t, name) && add_numbers(p, name, t->rank, t->scale, usual_rank, alpha) && ok;
    }
    if (!code && (!ok || module.bad))
        code = pp_fail_nomem(err, "an adapter's configuration");
    pp_buf_free(&module);
    return code;
}

static enum pp_code add_target(struct to_peft *p, const struct pp_adapter_target *t, int64_t usual_rank, float alpha,
                               struct pp_error *err)
{
    const char *const matrices[] = {t->name, t->second}; /* t->second: only of fused gates and values */
    enum pp_code code = PP_OK;
    for (int part = 0; part < 2 && matrices[part] && !code; part++)
        if (part || !is_of_keys(p->base, t))
            code = pp_convert_check_fit(p->base, t, part, matrices[part], err);
    if (pp_is_of_group(t, p->base, false))
        return code;
    for (int part = 0; part < 2 && matrices[part] && !code; part++)
        code = add_matrix(p, t, part, matrices[part], usual_rank, alpha, err);
    return code;
}

/* Adds the configuration without module names. False: out of memory. */
static bool add_config(struct to_peft *p, const char *base_path, int64_t rank, float alpha)
{
    const struct pp_peft_lora lora = {.base = base_path, .rank = rank, .alpha = alpha};
    cJSON *c = p->config = pp_peft_lora_config(&lora, &p->modules);
    size_t n;
    const int32_t *invocation = pp_adapter_file_invocation(p->file, &n);
    if (c && n)
        cJSON_AddItemToObject(c, "alora_invocation_tokens", cJSON_CreateIntArray(invocation, (int)n));
    return c && (!n || pp_json_member(c, "alora_invocation_tokens")) &&
           (p->ranks = cJSON_AddObjectToObject(c, "rank_pattern")) &&
           (p->alphas = cJSON_AddObjectToObject(c, "alpha_pattern")) && (p->saved = cJSON_CreateArray());
}

static enum pp_code write_folder(struct to_peft *p, const char *dst, struct pp_error *err)
{
    const bool any = cJSON_GetArraySize(p->saved) > 0;
    if (!cJSON_AddItemToObject(p->config, "modules_to_save", any ? p->saved : cJSON_CreateNull()))
        return pp_fail_nomem(err, "an adapter's configuration");
    if (any)
        p->saved = NULL;
    const char *name = p->names.data;
    for (size_t i = 0; i < p->tensors.n; i++, name += strlen(name) + 1)
        p->tensors.tensors[i].name = name;
    return pp_peft_write(dst, p->config, p->tensors.tensors, p->tensors.n, err);
}

/* The most frequent rank. */
static int64_t usual_rank(const struct pp_adapter_file *f)
{
    int64_t usual = 0;
    size_t most = 0, n_all = pp_adapter_file_n(f), counted = 0;
    for (size_t i = 0; i < n_all && n_all - counted > most; i++) { /* stops when no other rank can be more frequent */
        const int64_t rank = pp_adapter_file_at(f, i)->rank;
        size_t n = 0, before = 0;
        for (size_t k = 0; k < i && !before; k++)
            before = pp_adapter_file_at(f, k)->rank == rank;
        for (size_t k = i; !before && k < n_all; k++)
            n += pp_adapter_file_at(f, k)->rank == rank;
        counted += n;
        if (rank && n > most) {
            most = n;
            usual = rank;
        }
    }
    return usual;
}

static enum pp_code to_peft(const struct pp_adapter_file *f, const struct pp_source *base, const char *dst, int wanted,
                            const struct pp_convert_options *opt, struct pp_error *err)
{
    const size_t n = pp_adapter_file_n(f);
    const size_t most = 2 * PP_ADAPTER_MATRICES * n; /* each of an expert's matrices may be in another group */
    const int64_t rank = usual_rank(f);
    struct to_peft p = {
        .file = f, .base = base, .wanted = wanted,
        .permuted = !pp_convert_arch(base)->gguf_neox,
        .tensors = pp_copies_new(most), .owned = pp_calloc(most, sizeof *p.owned),
        .joins = pp_calloc(n, sizeof *p.joins),
    };
    const float alpha = pp_adapter_file_alpha(f) != 0.0f ? pp_adapter_file_alpha(f) : (float)rank; /* 0: not scaled */
    enum pp_code code = PP_OK;
    if (!p.tensors.tensors || !p.owned || !p.joins || !add_config(&p, opt ? opt->base : NULL, rank ? rank : 8, alpha))
        code = pp_fail_nomem(err, "an adapter's configuration");
    for (size_t i = 0; i < n && !code; i++) {
        if (opt && opt->progress)
            opt->progress(opt->user, pp_adapter_file_at(f, i)->name, i, n);
        code = opt && pp_cancelled(opt->cancel) ? pp_fail(err, PP_ERR_CANCELLED, "stopped; no file was written")
                                                : add_target(&p, pp_adapter_file_at(f, i), rank, alpha, err);
    }
    if (!code)
        code = pp_expert_groups_make(f, base, false, &p.experts, err);
    for (size_t i = 0; i < p.n_joins && !code; i++)
        code = add_joined(&p, &p.joins[i], rank, alpha, err);
    for (size_t i = 0; i < p.experts.n && !code; i++)
        code = add_parameter(&p, &p.experts.g[i], rank, alpha, err);
    if (!code && p.names.bad)
        code = pp_fail_nomem(err, "the list of tensors");
    if (!code)
        code = pp_adapter_file_check(f, err);
    if (!code)
        code = write_folder(&p, dst, err);
    for (size_t i = 0; p.owned && i < p.tensors.cap; i++)
        if (!p.owned[i] && p.tensors.tensors)
            p.tensors.tensors[i].data = NULL;
    p.tensors.n = p.tensors.cap;
    pp_copies_free(&p.tensors);
    pp_expert_groups_free(&p.experts);
    pp_free(p.joins);
    pp_free(p.owned);
    pp_buf_free(&p.names);
    cJSON_Delete(p.saved);
    cJSON_Delete(p.config);
    return code;
}

/* Makes and locks the folder: two adapters at once would give it the configuration of one and the weights of the other.
 * *made: it is new. */
static enum pp_code take_folder(const char *dst, int *lock, bool *made, struct pp_error *err)
{
    struct stat st;
    *made = mkdir(dst, 0777) == 0;
    if (!*made && errno != EEXIST)
        return pp_fail(err, PP_ERR_IO, "cannot create the folder %s: %s", dst, strerror(errno));
    if (!*made && stat(dst, &st) == 0 && !S_ISDIR(st.st_mode))
        return pp_fail(err, PP_ERR_USAGE, "%s exists and is not a folder; a GGUF adapter is converted to a folder: "
                                          "give another name", dst);
    enum pp_code code = pp_lock_folder(dst, lock, err);
    if (!code && (pp_file_exists(dst, pp_adapter_config_file) || pp_file_exists(dst, "adapter_model.safetensors")))
        code = pp_fail(err, PP_ERR_USAGE, "%s already contains an adapter; give another folder", dst);
    if (!code && pp_file_exists(dst, "config.json")) /* other programs would take the adapter for a part of the model */
        code = pp_fail(err, PP_ERR_USAGE, "%s contains a model (config.json); give another folder for the adapter",
                       dst);
    return code;
}

/* Refuses models whose rows of q and k are in an order, of multimodal models, that no folder can be made of. */
static enum pp_code check_rows(const struct pp_source *base, struct pp_error *err)
{
    if (!pp_arch_other_pairs(pp_source_hparams(base)))
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "%s has the rows of Q and K in the order of vision models, so its "
                                            "adapters cannot be converted to folders; keep the GGUF file",
                                            pp_source_path(base));
}

enum pp_code pp_convert_to_peft(const char *src, const char *dst, const struct pp_convert_options *opt,
                                struct pp_error *err)
{
    struct pp_adapter_file *f;
    struct pp_source *base;
    int wanted = opt && opt->out_type ? pp_type_by_name(opt->out_type) : -1;
    if (opt && opt->out_type && (wanted < 0 || !pp_convert_is_float((uint32_t)wanted)))
        return pp_fail(err, PP_ERR_USAGE, "cannot convert to \"%.40s\"; choose F32, F16 or BF16", opt->out_type);
    enum pp_code code = pp_adapter_file_open(src, &f, err);
    if (code)
        return code;
    if (pp_adapter_file_hf_order(f))
        code = pp_fail(err, PP_ERR_USAGE, "%s is already a folder", src);
    if (!code)
        code = pp_convert_open_base(f, src, opt ? opt->base : NULL, &base, err);
    if (!code) {
        int lock = -1;
        bool made = false;
        pp_adapter_file_close(f); /* opened again for the family */
        code = pp_adapter_file_open_for(src, pp_source_hparams(base), &f, err);
        if (!code)
            code = pp_convert_check_adapter(f, base, err);
        if (!code)
            code = check_rows(base, err);
        if (!code)
            code = take_folder(dst, &lock, &made, err);
        if (!code)
            code = to_peft(f, base, dst, wanted, opt, err);
        if (code && code != PP_ERR_BUSY && made)
            rmdir(dst);
        if (lock >= 0)
            close(lock);
        pp_source_close(base);
    }
    pp_adapter_file_close(f);
    return code;
}
