/* convert_experts.h - converts adapters of experts, which files and folders store in several ways (adapter_experts.c).
 * Private to convert_adapter.c and convert_experts.c. */
#ifndef PP_ENGINE_CONVERT_EXPERTS_H
#define PP_ENGINE_CONVERT_EXPERTS_H

#include "engine/adapter_file.h"
#include "engine/adapter_join.h"
#include "engine/source.h"

/* LoRAs of all experts' matrices of a kind, which become one pair of tensors. */
struct pp_expert_group {
    char name[192];               /* "blk.3.ffn_gate_exps.weight", or "model.layers.3.mlp.experts.gate_up_proj" */
    struct pp_joined_part *parts; /* [n_experts, n_parts] */
    int n_experts, n_parts;
    int64_t n_in, n_out;          /* of an expert */
    int32_t *from[PP_JOINED_PARTS], *to[PP_JOINED_PARTS]; /* owned by the group; parts point to them; or NULL */
    int64_t rank;                 /* the largest of any expert */
    float scale;                  /* of all */
    uint32_t type;                /* can hold all values */
};

struct pp_expert_groups {
    struct pp_expert_group *g; /* [n] */
    size_t n;
};

/* Whether a target is an expert's and becomes part of such a pair, in a GGUF file or in a folder. */
bool pp_is_of_group(const struct pp_adapter_target *t, const struct pp_source *base, bool to_gguf);
/* Makes all groups of a file; pp_expert_groups_free. */
enum pp_code pp_expert_groups_make(const struct pp_adapter_file *f, const struct pp_source *base, bool to_gguf,
                                   struct pp_expert_groups *out, struct pp_error *err);
void pp_expert_groups_free(struct pp_expert_groups *g);
/* A and B of a group, in g->type, in GGUF's layout or, if flat, PEFT's; their data are new (pp_free). */
enum pp_code pp_expert_group_tensors(const struct pp_expert_group *g, bool flat, struct pp_tensor out[2],
                                     struct pp_error *err);

#endif
