/* plan_used.c - refuses a GGUF file with tensors that its plan does not use: without them we would compute another
 * model, unless it is known why nothing needs them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/mem.h"
#include "engine/plan.h"
#include "engine/switched.h"

/* --- what the plan uses ------------------------------------------------------------------------------------------- */

struct used {
    const void **data;
    size_t n, cap;
    bool bad;
};

static void use(struct used *u, const struct pp_tensor *t)
{
    if (!t || u->bad)
        return;
    u->bad = pp_grow(&u->data, &u->cap, u->n + 1, sizeof *u->data) != 0;
    if (!u->bad)
        u->data[u->n++] = t->data;
}

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)*(const void *const *)a, y = (uintptr_t)*(const void *const *)b;
    return (x > y) - (x < y);
}

/* A stack of matrices has the address of its first one. */
static void use_all(const struct pp_plan *p, struct used *u)
{
    for (int i = 0; i < p->n_linears; i++) {
        use(u, p->linears[i].w);
        use(u, p->linears[i].b);
    }
    for (int i = 0; i < p->n_ops; i++) {
        use(u, p->ops[i].weight);
        use(u, p->ops[i].bias);
        use(u, p->ops[i].segments);
        use(u, p->ops[i].meta_tokens);
        for (int k = 0; k < 4; k++)
            use(u, p->ops[i].xielu[k]);
    }
    for (int i = 0; i < p->n_experts; i++) {
        const struct pp_experts *e = &p->experts[i];
        for (int m = 0; m < pp_experts_matrices(e); m++) {
            use(u, e->gate ? e->gate[m] : NULL);
            use(u, e->up ? e->up[m] : NULL);
            use(u, e->down[m]);
        }
        use(u, e->gate_b);
        use(u, e->up_b);
        use(u, e->down_b);
        use(u, e->choice_bias);
        use(u, e->bias);
        use(u, e->scales);
        use(u, e->table);
    }
    for (int i = 0; i < p->n_heads; i++)
        use(u, p->heads[i].w[0]);
    for (int i = 0; i < p->n_recurrences; i++) {
        use(u, p->recurrences[i].rate);
        use(u, p->recurrences[i].bias);
        use(u, p->recurrences[i].direct);
    }
    if (!u->bad && u->n)
        qsort(u->data, u->n, sizeof *u->data, by_address);
}

/* --- what it need not use ----------------------------------------------------------------------------------------- */

/* Tensors read elsewhere or implied by the metadata, and those of vision, audio and classifiers. */
static bool is_not_planned(const char *name)
{
    static const char *const begins[] = {"rope_freqs.", "rope_factors_", "v.", "a.", "mm.", "cls.", "cls_", NULL};
    for (const char *const *b = begins; *b; b++)
        if (strncmp(name, *b, strlen(*b)) == 0)
            return true;
    return strstr(name, ".attn_rot_embd.") != NULL;
}

/* Keys and values of a layer that uses another layer's: converters leave them in. */
static bool is_of_shared(const struct pp_hparams *hp, const char *name)
{
    int l = -1, end = 0;
    if (sscanf(name, "blk.%4d.attn_%*[kv]%n", &l, &end) != 1 || !end || l < 0 || l >= hp->n_layer)
        return false;
    return hp->layer[l] & PP_LAYER_SHARED && (strcmp(name + end, ".weight") == 0 ||
                                              strcmp(name + end, "_norm.weight") == 0);
}

/* Tensors from which a scalar per layer was computed when the plan was made. */
static bool is_of_difference(const struct pp_hparams *hp, const char *name)
{
    if (hp->polynorm_gates && strstr(name, ".ffn_poly."))
        return true;
    return hp->differential && (strstr(name, ".attn_lambda_") ||
                                (hp->heads_alternate && strstr(name, ".attn_sub_norm.")));
}

/* Layers of a shared block, which a folder may repeat for each of them. */
static bool is_of_block(const struct pp_hparams *hp, const char *name)
{
    return hp->n_shared_block && strstr(name, ".shared_") && !strstr(name, ".shared_out.") && !strstr(name, "_a.") &&
           !strstr(name, "_b.");
}

/* The indexer of a layer that reuses another layer's picks: some files have it all the same. */
static bool is_of_idle_index(const struct pp_hparams *hp, const char *name)
{
    int l = -1, end = 0;
    if (sscanf(name, "blk.%4d.indexer.%n", &l, &end) != 1 || !end || l < 0 || l >= hp->n_layer)
        return false;
    return hp->index_top_k && hp->layer[l] & PP_LAYER_PICKED_BEFORE;
}

/* Factors that the plan has folded in (decoder_gains.c). */
static bool is_gain(const struct pp_hparams *hp, const char *name)
{
    static const char *const kinds[] = {"attn_q_norm.weight", "attn_output.scale", "ffn_down.scale",
                                        "layer_output_scale.weight"};
    const struct pp_arch *arch = pp_arch_by_name(hp->arch);
    int l = -1, end = 0;
    if (!arch || !arch->decoder.gains || sscanf(name, "blk.%4d.%n", &l, &end) != 1 || !end || l < 0 || l >= hp->n_layer)
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(name + end, kinds[i]) == 0)
            return true;
    return false;
}

/* The norm of the experts' output in a layer without experts: folders may have it all the same. */
static bool is_of_no_mixture(const struct pp_source *s, const char *name)
{
    char router[64];
    int l = -1, end = 0;
    if (sscanf(name, "blk.%4d.post_ffw_norm.%n", &l, &end) != 1 || !end)
        return false;
    snprintf(router, sizeof router, "blk.%d.ffn_gate_inp.weight", l);
    const struct pp_arch *arch = pp_arch_by_name(pp_source_hparams(s)->arch);
    return arch && arch->decoder.experts_post_norm && !pp_source_tensor(s, router);
}

static bool is_needless(const struct pp_source *s, const char *name)
{
    const struct pp_hparams *hp = pp_source_hparams(s);
    return is_not_planned(name) || pp_is_after_layers(hp, name) || is_of_shared(hp, name) ||
           is_of_idle_index(hp, name) || is_of_no_mixture(s, name) || pp_is_for_pictures(hp, name) ||
           pp_is_of_switched(hp, name) || is_of_block(hp, name) || is_of_difference(hp, name) || is_gain(hp, name) ||
           (hp->skip_share != 0.0f && strcmp(name, pp_skip_shares) == 0) || pp_is_unused_first_mix(hp, name);
}

enum pp_code pp_plan_check_used(const struct pp_source *s, const struct pp_plan *p, struct pp_error *err)
{
    struct used u = {0};
    enum pp_code code = PP_OK;
    if (!pp_source_gguf(s))
        return PP_OK; /* a folder's names were checked when it was opened */
    use_all(p, &u);
    if (u.bad)
        code = pp_fail_nomem(err, "the model's plan");
    for (size_t i = 0; i < pp_source_n_tensors(s) && !code; i++) {
        const struct pp_tensor *t = pp_source_tensor_at(s, i);
        const bool used = u.n && bsearch(&t->data, u.data, u.n, sizeof *u.data, by_address);
        if (!used && !is_needless(s, t->name))
            code = pp_fail(err, PP_ERR_UNSUPPORTED, "%s has a tensor %.100s that pippin does not use in models of the "
                                                    "family %s; ignoring it would give wrong answers",
                                                    pp_source_path(s), t->name,
                           pp_source_hparams(s)->arch);
    }
    pp_free(u.data);
    return code;
}
