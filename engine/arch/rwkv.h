/* rwkv.h - what the metadata of RWKV 4, 6 and 7 share. Private to their families. */
#ifndef PP_ENGINE_ARCH_RWKV_H
#define PP_ENGINE_ARCH_RWKV_H

#include "engine/gguf.h"
#include "engine/hparams.h"

/* All layers have states [head_size, head_size] for each head, and none has heads of attention. */
void pp_rwkv_states_only(struct pp_hparams *hp, int64_t head_size);
/* The head size and the n ranks under these keys; hp->arch is set. */
enum pp_code pp_rwkv_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, const char *const *rank_keys, int n,
                               struct pp_error *err);
/* Of models in Qwen 2's layers: the numbers of heads, and nothing of what they do not have. */
struct cJSON;
void pp_rwkv_qwen_config(const struct pp_hparams *hp, struct cJSON *config);
void pp_rwkv_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w, const char *const *rank_keys, int n);

#endif
