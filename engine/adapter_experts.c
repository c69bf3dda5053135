/* adapter_experts.c - adapters of experts, which files store in several ways. Here each expert's matrix is a target of
 * its own, named as if it were a tensor of its own ("blk.3.ffn_gate.5.weight"):
 *
 *   PEFT, a module for each expert   like any other module
 *   PEFT, target_parameters          a parameter [n_expert, ..., ...] of a module. With rank r for each expert, A is
 *                                    [n_expert r, n_in], with the rows of an expert together, and B
 *                                    [n_out, r n_expert], where value k of expert e is value k n_expert + e of a row
 *                                    (huggingface/peft, tuners/lora/layer.py, ParamWrapper.get_delta_weight)
 *   MLX, GGUF                        A is [n_expert, r, n_in], B [n_expert, n_out, r]
 *
 * Versions of PEFT differ in which dimension of a parameter they take for the inputs. If it is the other one, their A
 * is our B, and their B our A, both transposed. Where the sizes do not tell which, the version does. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file_int.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/source.h"

static const char base_layer[] = ".base_layer"; /* of a module with adapters for several of its parameters */

bool pp_adapter_is_stack(const char *gguf)
{
    return pp_name_ending(gguf, "exps.weight") != NULL;
}

/* --- which parameter ------------------------------------------------------------------------------------------- */

/* In the order in which a module wraps them, the innermost first. */
static const char *const parameters[] = {"gate_up_proj", "down_proj"};
enum { N_PARAMETERS = sizeof parameters / sizeof *parameters };

/* Whether target_parameters names this parameter of the module. */
static bool is_target(const struct pp_adapter_file *f, const char *module, const char *parameter)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, pp_json_member(f->config, "target_parameters"))
    {
        const char *s = cJSON_IsString(item) ? item->valuestring : "", *dot = strrchr(s, '.');
        const size_t n = dot ? (size_t)(dot - s) : 0, m = strlen(module);
        if (strcmp(dot ? dot + 1 : s, parameter) == 0 && n <= m && strncmp(module + m - n, s, n) == 0 &&
            (n == 0 || n == m || module[m - n - 1] == '.'))
            return true;
    }
    return false;
}

/* The parameter of `module` that `depth` other adapted parameters wrap; NULL: there is none. */
static const char *parameter_at(const struct pp_adapter_file *f, const char *module, int depth)
{
    for (int i = N_PARAMETERS - 1; i >= 0; i--)
        if (is_target(f, module, parameters[i]) && depth-- == 0)
            return parameters[i];
    return NULL;
}

/* Translates a tensor's name, also with the other of two words for the experts' module. */
static bool find_name(const struct pp_arch *arch, const char *stem, const char *end, const struct pp_arch_name **entry,
                      struct pp_buf *gguf, struct pp_buf *second)
{
    static const char *const words[] = {".mlp.experts", ".block_sparse_moe.experts"};
    struct pp_buf name = {0};
    bool found = false;
    for (int from = -1; from < 2 && !found; from++) {
        const char *at = from < 0 ? NULL : pp_name_ending(stem, words[from]);
        if (from >= 0 && !at)
            continue;
        pp_buf_clear(&name);
        pp_buf_fmt(&name, "%.*s%s%s", (int)(at ? at - stem : (ptrdiff_t)strlen(stem)), stem, at ? words[!from] : "",
                   end);
        found = !name.bad && pp_arch_translate(arch, NULL, pp_buf_cstr(&name), entry, gguf, second) == PP_NAME_FOUND;
    }
    pp_buf_free(&name);
    return found;
}

static enum pp_hf_form form_of_parts(enum pp_hf_form form, bool *transposed)
{
    *transposed = form == PP_HF_EXPERTS_TRANSPOSED || form == PP_HF_EXPERTS_INTERLEAVED || form == PP_HF_EXPERTS_HALVES;
    return form == PP_HF_EXPERTS_INTERLEAVED         ? PP_HF_INTERLEAVED
           : form == PP_HF_EXPERTS_HALVES ? PP_HF_HALVES
           : form == PP_HF_EXPERTS_TRANSPOSED        ? PP_HF_SAME
                                                 : form;
}

/* Names the stacks that newer versions of transformers make of an older folder's matrices of single experts,
 * "blk.3.ffn_gate.0.weight". */
static void name_stacks(const char *gate, bool gate_up, struct pp_adapter_stack *s)
{
    const int stem = (int)(strstr(gate, ".ffn_gate.") - gate);
    snprintf(s->name, sizeof s->name, "%.*s.%s", stem, gate, gate_up ? "ffn_gate_exps.weight" : "ffn_down_exps.weight");
    snprintf(s->second, sizeof s->second, "%.*s.ffn_up_exps.weight", gate_up ? stem : 0, gate);
    if (!gate_up)
        s->second[0] = 0;
    s->form = gate_up ? PP_HF_HALVES : PP_HF_SAME;
}

/* module: "model.layers.3.mlp.experts". */
static bool find_parameter(const struct pp_arch *arch, const char *module, const char *parameter,
                           struct pp_adapter_stack *s)
{
    static const char *const gates[] = {".0.gate_proj.weight", ".0.w1.weight"};
    const struct pp_arch_name *entry;
    struct pp_buf gguf = {0}, second = {0};
    char end[32];
    snprintf(end, sizeof end, ".%s", parameter);
    bool found = find_name(arch, module, end, &entry, &gguf, &second) && pp_adapter_is_stack(pp_buf_cstr(&gguf));
    if (found) {
        snprintf(s->name, sizeof s->name, "%s", pp_buf_cstr(&gguf));
        snprintf(s->second, sizeof s->second, "%s", second.len ? pp_buf_cstr(&second) : "");
        s->form = form_of_parts(entry->form, &s->transposed);
    }
    for (int i = 0; i < 2 && !found; i++) {
        found = find_name(arch, module, gates[i], &entry, &gguf, &second) && strstr(pp_buf_cstr(&gguf), ".ffn_gate.");
        if (found)
            name_stacks(pp_buf_cstr(&gguf), strcmp(parameter, parameters[0]) == 0, s);
    }
    found = found && !gguf.bad && !second.bad;
    pp_buf_free(&gguf);
    pp_buf_free(&second);
    return found;
}

/* Whether the folder's version of PEFT takes the outputs of such a parameter for its inputs. */
static bool version_swaps(const struct pp_adapter_file *f, bool transposed)
{
    const char *version = cJSON_GetStringValue(pp_json_member(f->config, "peft_version"));
    int major = 0, minor = 0, patch = 0;
    if (version)
        sscanf(version, "%4d.%4d.%4d", &major, &minor, &patch);
    const int64_t number = ((int64_t)major * 10000 + minor) * 10000 + patch, all = 19 * 10000; /* 0.19.0 swaps all, */
    return number < all ? !transposed : number == all; /* earlier versions those not transposed, later ones none */
}

/* Whether lora_A is our B: by the model's sizes, if they tell, otherwise by the version. */
static bool is_swapped(const struct pp_adapter_file *f, const struct pp_adapter_stack *s, enum pp_adapter_part part,
                       const struct pp_tensor *t)
{
    const struct pp_hparams *hp = f->hp;
    const int64_t n = part == PP_PART_A ? t->ne[0] : t->ne[1];
    if (!hp)
        return version_swaps(f, s->transposed);
    const int64_t n_embd = hp->n_embd_expert ? hp->n_embd_expert : hp->n_embd;
    int l = 0;
    if (sscanf(s->name, "blk.%4d.", &l) != 1 || l < 0 || l >= hp->n_layer)
        l = 0;
    const int64_t n_ff = (int64_t)pp_layer_experts(hp, l).n_ff * (s->second[0] ? 2 : 1);
    const bool down = strstr(s->name, ".ffn_down") != NULL;
    const int64_t n_in = down ? n_ff : n_embd, n_out = down ? n_embd : n_ff;
    return n_in == n_out ? version_swaps(f, s->transposed) : n == (part == PP_PART_A ? n_out : n_in);
}

bool pp_adapter_find_stack(const struct pp_adapter_file *f, const struct pp_arch *arch, const char *module, size_t len,
                           enum pp_adapter_part part, const struct pp_tensor *t, struct pp_adapter_stack *s)
{
    struct pp_buf name = {0};
    int depth = 0;
    bool found = false;
    *s = (struct pp_adapter_stack){0};
    pp_buf_add(&name, module, len);
    for (const char *end; !name.bad && (end = pp_name_ending(pp_buf_cstr(&name), base_layer)); depth++)
        name.data[name.len = (size_t)(end - name.data)] = 0;
    const char *parameter = name.bad ? NULL : parameter_at(f, pp_buf_cstr(&name), depth);
    if (parameter && find_parameter(arch, pp_buf_cstr(&name), parameter, s)) {
        snprintf(s->module, sizeof s->module, "%s.%s", pp_buf_cstr(&name), parameter);
        s->flat = true;
        s->swapped = is_swapped(f, s, part, t);
        found = true;
    }
    pp_buf_free(&name);
    return found;
}

bool pp_adapter_translated_stack(const struct pp_adapter_file *f, const char *gguf, const char *second,
                                 enum pp_hf_form form, const char *module, size_t len, enum pp_adapter_part part,
                                 const struct pp_tensor *t, struct pp_adapter_stack *s)
{
    if (!pp_adapter_is_stack(gguf))
        return false;
    *s = (struct pp_adapter_stack){.flat = t->n_dims == 2};
    snprintf(s->name, sizeof s->name, "%s", gguf);
    snprintf(s->second, sizeof s->second, "%s", second);
    snprintf(s->module, sizeof s->module, "%.*s.weight", (int)(len < 160 ? len : 160), module);
    s->form = form_of_parts(form, &s->transposed);
    s->swapped = s->flat && is_swapped(f, s, part, t);
    return true;
}

/* --- targets --------------------------------------------------------------------------------------------------- */

/* One expert's part of the stack's tensor. */
static void slice(const struct pp_adapter_stack *s, enum pp_adapter_part part, const struct pp_tensor *t, int64_t e,
                  struct pp_tensor *out, struct pp_adapter_columns *columns)
{
    const int64_t rows = s->flat ? s->rank : t->ne[1];
    const size_t size = pp_type_row_bytes(t->type, t->ne[0]) * (size_t)rows;
    *out = *t;
    *columns = (struct pp_adapter_columns){0};
    out->n_dims = 2;
    out->ne[2] = 1;
    if (s->flat && part == PP_PART_B) {
        *columns = (struct pp_adapter_columns){.first = e, .step = s->n, .n = s->rank};
        out->size = t->size / (size_t)s->n;
        return;
    }
    out->ne[1] = rows;
    out->data = (const uint8_t *)t->data + (size_t)e * size;
    out->size = size;
}

static enum pp_code add_expert(struct pp_adapter_file *f, const struct pp_adapter_stack *s, enum pp_adapter_part part,
                               const struct pp_tensor *t, int64_t e, struct pp_error *err)
{
    char slot[PP_HF_NAME + 24], name[PP_HF_NAME], second[PP_HF_NAME] = "";
    struct pp_tensor one;
    struct pp_adapter_columns columns;
    const bool ours_a = (part == PP_PART_A) != s->swapped;
    const size_t before = f->n;
    snprintf(slot, sizeof slot, "%s[%d]", s->name, (int)e);
    pp_matrix_name(slot, name, sizeof name);
    slice(s, part, t, e, &one, &columns);
    const enum pp_code code =
        pp_adapter_add_part(f, name, strlen(name), ours_a ? PP_PART_A : PP_PART_B, &one, err);
    if (code)
        return code;
    struct pp_adapter_target *to = &f->targets[pp_name_index_find(&f->index, name, strlen(name))];
    *(ours_a ? &to->a_columns : &to->b_columns) = columns;
    *(ours_a ? &to->a_transposed : &to->b_transposed) = s->swapped;
    if (f->n == before)
        return PP_OK;
    to->form = s->form;
    if (!s->second[0])
        return PP_OK;
    snprintf(slot, sizeof slot, "%s[%d]", s->second, (int)e);
    pp_matrix_name(slot, second, sizeof second);
    to->second = pp_strdup(second);
    return to->second ? PP_OK : pp_fail_nomem(err, "the list of an adapter's matrices");
}

enum pp_code pp_adapter_add_stack(struct pp_adapter_file *f, struct pp_adapter_stack *s, enum pp_adapter_part part,
                                  const struct pp_tensor *t, struct pp_error *err)
{
    if ((part != PP_PART_A && part != PP_PART_B) || t->n_dims != (s->flat ? 2 : 3) ||
        (s->flat && pp_type_info(t->type)->block_elements != 1))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s is not part of a LoRA of experts", f->path, t->name);
    const int64_t width = part == PP_PART_A ? t->ne[1] : t->ne[0];
    if (s->flat && (s->rank < 1 || width % s->rank != 0))
        return pp_fail(err, PP_ERR_FORMAT, "%s: tensor %.200s is %lld wide, which is not a multiple of the rank %lld "
                                           "(one block per expert)", f->path, t->name, (long long)width,
                                           (long long)s->rank);
    s->n = s->flat ? width / s->rank : t->ne[2];
    if (s->n < 1 || s->n > PP_MAX_EXPERTS)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %.200s is for %lld experts; at most %d are supported",
                       f->path,
                       t->name, (long long)s->n, PP_MAX_EXPERTS);
    enum pp_code code = pp_adapter_grow(f, (size_t)s->n, err);
    for (int64_t e = 0; e < s->n && !code; e++)
        code = add_expert(f, s, part, t, e, err);
    return code;
}
