/* convert_experts.h - adapters of experts, which files and folders have in several ways (adapter_experts.c), on their
 * way from one to the other. Private to convert_adapter.c and convert_experts.c. */
#ifndef PP_ENGINE_CONVERT_EXPERTS_H
#define PP_ENGINE_CONVERT_EXPERTS_H

#include "engine/adapter_file.h"
#include "engine/adapter_join.h"
#include "engine/source.h"

/* The LoRAs of all experts' matrices that become one pair of tensors. */
struct pp_expert_group {
    char name[192];               /* "blk.3.ffn_gate_exps.weight", or "model.layers.3.mlp.experts.gate_up_proj" */
    struct pp_joined_part *parts; /* [n_experts, n_parts] */
    int n_experts, n_parts;
    int64_t n_in, n_out;          /* of an expert */
    int32_t *from[PP_JOINED_PARTS], *to[PP_JOINED_PARTS]; /* what those of each part point at, or NULL */
    int64_t rank;                 /* the largest of an expert's */
    float scale;                  /* of all */
    uint32_t type;                /* that holds all values */
};

struct pp_expert_groups {
    struct pp_expert_group *g; /* [n] */
    size_t n;
};

/* Whether a target is of an expert and goes into such a pair, of a GGUF file or else of a folder. */
bool pp_is_of_group(const struct pp_adapter_target *t, const struct pp_source *base, bool to_gguf);
/* All of them; pp_expert_groups_free. */
enum pp_code pp_expert_groups_make(const struct pp_adapter_file *f, const struct pp_source *base, bool to_gguf,
                                   struct pp_expert_groups *out, struct pp_error *err);
void pp_expert_groups_free(struct pp_expert_groups *g);
/* A and B of a group, in g->type, as GGUF has them or, flat, PEFT; their data are pp_free'd. */
enum pp_code pp_expert_group_tensors(const struct pp_expert_group *g, bool flat, struct pp_tensor out[2],
                                     struct pp_error *err);

#endif
