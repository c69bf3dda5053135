/* adapter_parts.c - modules of folders that have several of our matrices in one, or their outputs in another order. */
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"

bool pp_adapter_is_of_experts(const char *name)
{
    static const char *const kinds[] = {".attn_v", ".ffn_gate", ".ffn_up", ".ffn_down"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *at = strstr(name, kinds[i]);
        at = at ? at + strlen(kinds[i]) : "";
        if (strncmp(at, "_exps", 5) == 0 || strncmp(at, "_ch", 3) == 0 ||
            (at[0] == '.' && at[1] >= '0' && at[1] <= '9'))
            return true;
    }
    return false;
}

/* Fused q, k and v. */
static bool is_of_three(enum pp_hf_form form)
{
    return form == PP_HF_QKV_STACKED || form == PP_HF_QKV_BY_GROUP || form == PP_HF_QKV_IN_PIECES;
}

void pp_adapter_as_output(const struct pp_adapter_target *t, struct pp_adapter_target *out)
{
    *out = *t;
    out->name = "output.weight";
    out->a = t->b;
    out->b = t->a;
    out->a_transposed = !t->b_transposed;
    out->b_transposed = !t->a_transposed;
    out->n_in = t->n_out;
    out->n_out = t->n_in;
    out->embedding = out->tied = false;
}

bool pp_adapter_is_by_rows(const struct pp_adapter_target *t)
{
    return t->second || is_of_three(t->form) || t->form == PP_HF_QKV_FUSED_BY_GROUP;
}

bool pp_adapter_form_fits(const struct pp_adapter_target *t)
{
    /* forms that A and B do not depend on */
    const bool layout_only = t->form == PP_HF_TRANSPOSED || t->form == PP_HF_ONE_ROW;
    if (pp_hf_added(t->form) != 0.0f) /* a norm, whose stored value lacks this */
        return t->weight.n_dims == 1 || t->bias.data;
    return t->form == PP_HF_SAME || pp_adapter_is_by_rows(t) || (layout_only && !t->weight.data);
}

int pp_adapter_matrices(const struct pp_adapter_target *t, char names[PP_ADAPTER_MATRICES][PP_HF_NAME])
{
    if (is_of_three(t->form) && pp_hf_qkv_names(t->name, names))
        return 3;
    snprintf(names[0], PP_HF_NAME, "%s", t->name);
    if (!t->second)
        return 1;
    snprintf(names[1], PP_HF_NAME, "%s", t->second);
    return 2;
}

int64_t pp_adapter_part_outputs(const struct pp_adapter_target *t, const struct pp_hparams *hp, int part)
{
    struct pp_rows rows;
    if (!pp_adapter_is_by_rows(t))
        return t->n_out;
    return pp_hf_part_rows(t->form, hp, t->n_out, part, &rows) ? rows.n_rows : 0;
}

static int64_t in_pairs(enum pp_adapter_pairs pairs, const struct pp_hparams *hp, int64_t row)
{
    return pairs == PP_PAIRS_TO_GGUF ? pp_hf_row(row, hp->head_dim)
           : pairs == PP_PAIRS_TO_HF ? pp_gguf_row(row, hp->head_dim)
                                     : row;
}

void pp_adapter_outputs(const struct pp_adapter_target *t, const struct pp_hparams *hp, int part,
                        enum pp_adapter_pairs pairs, int32_t *rows)
{
    struct pp_rows there = {.row_step = 1, .n_rows = t->n_out};
    if (pp_adapter_is_by_rows(t))
        pp_hf_part_rows(t->form, hp, t->n_out, part, &there);
    for (int64_t r = 0; r < there.n_rows; r++)
        rows[r] = (int32_t)pp_rows_stored_row(&there, in_pairs(pairs, hp, r));
}
