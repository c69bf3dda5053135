/* peft_write.h - writes folders of adapters as PEFT does (https://huggingface.co/docs/peft, "Checkpoint format"). */
#ifndef PP_ENGINE_PEFT_WRITE_H
#define PP_ENGINE_PEFT_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/types.h"

struct cJSON;

/* The configuration of a LoRA, except for its modules. */
struct pp_peft_lora {
    const char *base; /* path or name of the model; NULL: none */
    int64_t rank;
    float alpha;
    bool rslora, dora;
};

/* A configuration with an empty "target_modules", *modules, to which the caller adds, as to the rest; cJSON_Delete.
 * NULL: out of memory. */
struct cJSON *pp_peft_lora_config(const struct pp_peft_lora *l, struct cJSON **modules);
struct cJSON *pp_peft_ia3_config(struct cJSON **modules, struct cJSON **feedforward);
/* Adds a text to a list, unless it is there already. False: out of memory. */
bool pp_peft_add_once(struct cJSON *list, const char *text);
/* Creates the folder, unless it exists, and writes its two files, the configuration before the weights; if those cannot
 * be written it is removed again. */
enum pp_code pp_peft_write(const char *folder, const struct cJSON *config, const struct pp_tensor *tensors, size_t n,
                           struct pp_error *err);

#endif
