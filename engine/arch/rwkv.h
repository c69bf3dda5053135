/* rwkv.h - metadata shared by RWKV 4, 6 and 7. Private to their families. */
#ifndef PP_ENGINE_ARCH_RWKV_H
#define PP_ENGINE_ARCH_RWKV_H

#include "engine/gguf.h"
#include "engine/hparams.h"

/* Sets up a model whose layers all have states of [head_size, head_size] for each head, and no attention. */
void pp_rwkv_states_only(struct pp_hparams *hp, int64_t head_size);
/* Reads the head size and the n ranks under these keys, after hp->arch. */
enum pp_code pp_rwkv_from_gguf(const struct pp_gguf *g, struct pp_hparams *hp, const char *const *rank_keys, int n,
                               struct pp_error *err);
/* For to_config of models in Qwen 2's layers: sets the numbers of heads and removes keys that do not apply. */
struct cJSON;
void pp_rwkv_qwen_config(const struct pp_hparams *hp, struct cJSON *config);
void pp_rwkv_to_gguf(const struct pp_hparams *hp, struct pp_gguf_writer *w, const char *const *rank_keys, int n);

#endif
