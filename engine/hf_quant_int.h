/* hf_quant_int.h - what hf_quant.c and hf_quant_open.c share. */
#ifndef PP_ENGINE_HF_QUANT_INT_H
#define PP_ENGINE_HF_QUANT_INT_H

#include "engine/hf_quant.h"

/* The name with its last n characters replaced by `end`; b: memory for it. */
const char *pp_hf_replaced(const char *name, size_t n, const char *end, struct pp_buf *b);
/* Length of the ending of a PACKED tensor's name. */
size_t pp_hf_lead_end(const struct pp_hf_quant *q, const char *name);
/* The JSON tensor of bitsandbytes for a weight, or NULL. */
const struct pp_tensor *pp_hf_bnb_state(const struct pp_hf *hf, const char *name, struct pp_buf *b);
/* MLX: bits, group size and mode of one module, for which config.json may have its own. */
enum pp_code pp_hf_quant_layer(const struct pp_hf_quant *q, const char *module, struct pp_hf_quant *own,
                               struct pp_error *err);

#endif
