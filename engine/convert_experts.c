#include "engine/convert_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/mem.h"
#include "engine/name_index.h"
#include "engine/quant.h"

static const struct pp_arch *arch_of(const struct pp_source *base)
{
    return pp_arch_by_name(pp_source_hparams(base)->arch);
}

bool pp_is_of_group(const struct pp_adapter_target *t, const struct pp_source *base, bool to_gguf)
{
    struct pp_buf module = {0};
    if (!pp_adapter_is_of_experts(t->name) || !pp_expert_number(t->name) || to_gguf)
        return to_gguf && pp_adapter_is_of_experts(t->name) && pp_expert_number(t->name);
    const bool alone = pp_arch_hf_module(arch_of(base), pp_source_hparams(base), t->name, &module);
    pp_buf_free(&module);
    return !alone;
}

/* --- groups -------------------------------------------------------------------------------------------------- */

struct grouping {
    const struct pp_source *base;
    bool to_gguf;
    struct pp_expert_groups *out;
    struct pp_name_index index;
};

/* The name of the group to which an expert's matrix belongs, and which part of it this is. */
static enum pp_code name_group(const struct grouping *g, const char *matrix, char name[192], int *part,
                               const struct pp_arch_name **entry, struct pp_error *err)
{
    char stack[256];
    struct pp_buf hf = {0};
    pp_stack_name(matrix, stack);
    *part = 0;
    *entry = NULL;
    if (g->to_gguf) {
        snprintf(name, 192, "%.190s", stack);
        return PP_OK;
    }
    *entry = pp_arch_hf_name(arch_of(g->base), pp_source_hparams(g->base), stack, false, &hf);
    const bool known = *entry && hf.len < 190, bad = hf.bad;
    snprintf(name, 192, "%.190s", known ? pp_buf_cstr(&hf) : "");
    pp_buf_free(&hf);
    if (bad)
        return pp_fail_nomem(err, matrix);
    if (!known)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "PEFT has no name for %s", matrix);
    /* the table line of a second name gives only the first one's stack */
    *part = (*entry)->second && strstr(stack, ".ffn_up_") && !strstr((*entry)->gguf, ".ffn_up_");
    return PP_OK;
}

/* The rows of a folder's matrix that are this part's; pp_free. *rows NULL: all, in order. */
static enum pp_code folder_rows(const struct pp_arch_name *entry, int part, int64_t n, int32_t **rows,
                                struct pp_error *err)
{
    const enum pp_hf_form form = entry->form;
    const bool turns = form == PP_HF_EXPERTS_INTERLEAVED;
    *rows = NULL;
    if (form == PP_HF_SAME || form == PP_HF_EXPERTS_TRANSPOSED)
        return PP_OK;
    if (!turns && form != PP_HF_HALVES && form != PP_HF_EXPERTS_HALVES)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "the adapter changes %s, which is stored differently in folders and "
                       "GGUF files of this family; converting it is not supported", entry->gguf);
    if (!(*rows = pp_malloc((size_t)n * sizeof **rows)))
        return pp_fail_nomem(err, "an adapter's rows");
    for (int64_t r = 0; r < n; r++)
        (*rows)[r] = (int32_t)(turns ? 2 * r + part : part * n + r);
    return PP_OK;
}

static enum pp_code begin_group(struct grouping *g, const char *name, const struct pp_arch_name *entry,
                                const char *matrix, int64_t n_in, struct pp_error *err)
{
    struct pp_expert_group *to = &g->out->g[g->out->n];
    *to = (struct pp_expert_group){.n_in = n_in, .n_parts = entry && entry->second ? 2 : 1,
                                   .n_experts = (int)pp_stack_size(pp_source_hparams(g->base), matrix)};
    snprintf(to->name, sizeof to->name, "%s", name);
    to->parts = pp_calloc((size_t)(to->n_experts * to->n_parts), sizeof *to->parts);
    if (!to->parts || !pp_name_index_add(&g->index, to->name, strlen(to->name))) {
        pp_free(to->parts);
        return pp_fail_nomem(err, "the list of an adapter's experts");
    }
    g->out->n++;
    return PP_OK;
}

/* Adds one of the target's matrices, `part`, called `matrix`, to its group. */
static enum pp_code add_matrix(struct grouping *g, const struct pp_adapter_target *t, int part, const char *matrix,
                               struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(g->base);
    const int64_t n_out = pp_adapter_part_outputs(t, hp, part);
    const struct pp_arch_name *entry;
    char name[192];
    int place;
    enum pp_code code = name_group(g, matrix, name, &place, &entry, err);
    size_t i = code ? SIZE_MAX : pp_name_index_find(&g->index, name, strlen(name));
    if (!code && i == SIZE_MAX) {
        code = begin_group(g, name, entry, matrix, t->n_in, err);
        i = g->out->n - 1;
    }
    if (code)
        return code;
    struct pp_expert_group *to = &g->out->g[i];
    const long e = strtol(pp_expert_number(matrix), NULL, 10);
    if (e >= to->n_experts)
        return pp_fail(err, PP_ERR_MISMATCH, "the adapter changes %s, but there are %d experts", matrix, to->n_experts);
    const bool by_rows = pp_adapter_is_by_rows(t); /* all members of the group must agree in this */
    if (by_rows && !to->from[place]) {
        if (!(to->from[place] = pp_malloc((size_t)n_out * sizeof *to->from[place])))
            return pp_fail_nomem(err, "an adapter's rows");
        pp_adapter_outputs(t, hp, part, PP_PAIRS_SAME, to->from[place]);
    }
    if (!to->to[place] && !g->to_gguf && (code = folder_rows(entry, place, n_out, &to->to[place], err)))
        return code;
    to->n_out = to->n_parts * n_out;
    to->parts[(int)e * to->n_parts + place] = (struct pp_joined_part){
        .target = t, .n_out = n_out, .from = by_rows ? to->from[place] : NULL, .to = to->to[place]};
    return PP_OK;
}

/* Sets what all experts of a group share. */
static void finish_group(struct pp_expert_group *g)
{
    bool first = true;
    for (int e = 0; e < g->n_experts; e++) {
        const struct pp_joined_part *parts = g->parts + e * g->n_parts;
        uint32_t type;
        const int64_t rank = pp_adapter_joined_rank(parts, g->n_parts, &type);
        if (rank == 0)
            continue;
        g->rank = rank > g->rank ? rank : g->rank;
        for (int k = 0; k < g->n_parts; k++) {
            const struct pp_adapter_target *t = parts[k].target;
            if (t && g->scale == 0.0f)
                g->scale = t->scale;
            if (t && t->scale != g->scale)
                type = PP_TYPE_F32;
        }
        g->type = first || g->type == type ? type : PP_TYPE_F32;
        first = false;
    }
}

enum pp_code pp_expert_groups_make(const struct pp_adapter_file *f, const struct pp_source *base, bool to_gguf,
                                   struct pp_expert_groups *out, struct pp_error *err)
{
    const size_t n = pp_adapter_file_n(f), most = n * PP_ADAPTER_MATRICES;
    struct grouping g = {.base = base, .to_gguf = to_gguf, .out = out};
    *out = (struct pp_expert_groups){0};
    if (!pp_adapter_file_of_experts(f))
        return PP_OK;
    out->g = pp_calloc(most, sizeof *out->g);
    enum pp_code code = out->g && pp_name_index_init(&g.index, most)
                            ? PP_OK
                            : pp_fail_nomem(err, "the list of an adapter's experts");
    for (size_t i = 0; i < n && !code; i++) {
        const struct pp_adapter_target *t = pp_adapter_file_at(f, i);
        char names[PP_ADAPTER_MATRICES][PP_HF_NAME];
        const int n_matrices = pp_adapter_matrices(t, names);
        for (int part = 0; t->rank && pp_is_of_group(t, base, to_gguf) && part < n_matrices && !code; part++)
            code = add_matrix(&g, t, part, names[part], err);
    }
    for (size_t i = 0; i < out->n; i++)
        finish_group(&out->g[i]);
    pp_name_index_free(&g.index);
    return code;
}

void pp_expert_groups_free(struct pp_expert_groups *groups)
{
    for (size_t i = 0; i < groups->n; i++) {
        pp_free(groups->g[i].parts);
        for (int k = 0; k < PP_JOINED_PARTS; k++) {
            pp_free(groups->g[i].from[k]);
            pp_free(groups->g[i].to[k]);
        }
    }
    pp_free(groups->g);
}

/* --- tensors ------------------------------------------------------------------------------------------------- */

static struct pp_tensor new_half(const struct pp_expert_group *g, bool flat, int half)
{
    const int64_t n_cols = half ? g->rank : g->n_in, n_rows = half ? g->n_out : g->rank, n = g->n_experts;
    struct pp_tensor t = {.type = g->type, .n_dims = flat ? 2 : 3, .ne = {n_cols, n_rows, flat ? 1 : n, 1}};
    if (flat)
        t.ne[half ? 0 : 1] *= n;
    t.size = pp_type_row_bytes(g->type, t.ne[0]) * (size_t)(t.ne[1] * t.ne[2]);
    t.data = pp_calloc(1, t.size);
    return t;
}

/* Writes n floats in the tensor's type to values `step` apart, from `first` on. */
static void put_values(const struct pp_tensor *t, int64_t first, int64_t step, const float *from, int64_t n)
{
    const size_t size = (size_t)pp_type_info(t->type)->block_bytes;
    uint8_t *to = (uint8_t *)(uintptr_t)t->data + (size_t)first * size;
    for (int64_t i = 0; i < n; i++, to += (size_t)step * size) {
        const uint16_t half = t->type == PP_TYPE_F16 ? pp_f32_to_f16(from[i]) : pp_f32_to_bf16(from[i]);
        memcpy(to, t->type == PP_TYPE_F32 ? (const void *)&from[i] : &half, size);
    }
}

enum pp_code pp_expert_group_tensors(const struct pp_expert_group *g, bool flat, struct pp_tensor out[2],
                                     struct pp_error *err)
{
    for (int half = 0; half < 2; half++)
        out[half] = new_half(g, flat, half);
    bool ok = out[0].data && out[1].data;
    for (int e = 0; e < g->n_experts && ok; e++) {
        struct pp_joined j;
        ok = pp_adapter_join(g->parts + e * g->n_parts, g->n_parts, g->n_in, g->n_out, g->rank, &j);
        if (!ok)
            break;
        const float factor = g->scale == 0.0f ? 1.0f : j.scale / g->scale;
        for (int64_t i = 0; factor != 1.0f && i < g->rank * g->n_out; i++)
            j.b[i] *= factor;
        put_values(&out[0], e * g->rank * g->n_in, 1, j.a, g->rank * g->n_in);
        if (!flat)
            put_values(&out[1], e * g->rank * g->n_out, 1, j.b, g->rank * g->n_out);
        for (int64_t r = 0; flat && r < g->n_out; r++)
            put_values(&out[1], r * g->rank * g->n_experts + e, g->n_experts, j.b + r * g->rank, g->rank);
        pp_joined_free(&j);
    }
    if (ok)
        return PP_OK;
    for (int half = 0; half < 2; half++) {
        pp_free((void *)(uintptr_t)out[half].data);
        out[half].data = NULL;
    }
    return pp_fail_nomem(err, "an adapter's experts");
}
