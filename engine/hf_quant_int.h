/* hf_quant_int.h - what hf_quant.c and hf_quant_open.c share. */
#ifndef PP_ENGINE_HF_QUANT_INT_H
#define PP_ENGINE_HF_QUANT_INT_H

#include "engine/hf_quant.h"

/* The name with `end` in place of its last n characters; b: room for it. */
const char *pp_hf_replaced(const char *name, size_t n, const char *end, struct pp_buf *b);
/* How much of the name of a PACKED one is its ending. */
size_t pp_hf_lead_end(const struct pp_hf_quant *q, const char *name);
/* The JSON of bitsandbytes that goes with a weight, or NULL. */
const struct pp_tensor *pp_hf_bnb_state(const struct pp_hf *hf, const char *name, struct pp_buf *b);
/* MLX: bits, group and mode of one module, which config.json may have under its name. */
enum pp_code pp_hf_quant_layer(const struct pp_hf_quant *q, const char *module, struct pp_hf_quant *own,
                               struct pp_error *err);

#endif
