/* hf.h - a Hugging Face model folder as it is: config.json and tensors under their own names. Private to the engine.
 *
 * Tensors come from model.safetensors, or from the shards that model.safetensors.index.json lists; if there is neither,
 * from the files there: model*.safetensors, weights*.safetensors, or the only such file. Nothing is copied. Immutable
 * after opening; any thread. */
#ifndef PP_ENGINE_HF_H
#define PP_ENGINE_HF_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"
#include "engine/types.h"

struct cJSON;
struct pp_hf;

enum pp_code pp_hf_open(const char *folder, struct pp_hf **out, struct pp_error *err);
/* The same in two steps, so that a caller can check whether the model runs before tensors are found to be missing: the
 * first opens config.json, the second the tensors. */
enum pp_code pp_hf_open_config(const char *folder, struct pp_hf **out, struct pp_error *err);
enum pp_code pp_hf_open_tensors(struct pp_hf *hf, const char *folder, struct pp_error *err);
void pp_hf_close(struct pp_hf *hf); /* NULL is fine */
const struct cJSON *pp_hf_config(const struct pp_hf *hf);
size_t pp_hf_n(const struct pp_hf *hf);
const struct pp_tensor *pp_hf_at(const struct pp_hf *hf, size_t i);
const char *pp_hf_dtype(const struct pp_hf *hf, size_t i); /* the file's name for it: "F8_E4M3" */
/* By its own name, in any file; or NULL. dtype: the file's name for it, or NULL. */
const struct pp_tensor *pp_hf_find(const struct pp_hf *hf, const char *name, const char **dtype);
bool pp_hf_lost(const struct pp_hf *hf);
bool pp_hf_changed(const struct pp_hf *hf); /* one of the weight files: pp_map_changed */

/* The folder's chat template with this name, "default" or "tool_use": from chat_template.jinja and
 * additional_chat_templates/, or `chat_template` in chat_template.json or tokenizer_config.json. *text (pp_free) is
 * NULL if there is none or it is blank. */
enum pp_code pp_hf_chat_template(const char *folder, const char *name, char **text, struct pp_error *err);

/* modules.json of sentence-transformers, an array of objects; a module's path is "" or the name of a folder next to the
 * file. cJSON_Delete. */
enum pp_code pp_hf_modules(const char *folder, struct cJSON **modules, struct pp_error *err);
/* Whether a module is a dense layer after the model; its weights are in the module's folder: model.safetensors. */
bool pp_hf_module_is_dense(const struct cJSON *module);

/* The flags of a pooling module's configuration; one of them is true. */
enum { PP_POOLING_MODES = 3 };
struct pp_pooling_mode {
    const char *key;
    int pooling; /* enum pp_pooling */
};
extern const struct pp_pooling_mode pp_pooling_modes[PP_POOLING_MODES];

/* How the vectors of tokens become one, by modules.json of sentence-transformers: an enum pp_pooling, unknown if there
 * is no such file. PP_ERR_UNSUPPORTED: an unknown way, or further layers follow. */
enum pp_code pp_hf_pooling(const char *folder, int *pooling, struct pp_error *err);

/* folder/name; pp_free. NULL if out of memory. */
char *pp_path_join(const char *folder, const char *name);
bool pp_file_exists(const char *folder, const char *name);
/* Reads and parses a JSON file of at most 64 MB that holds an object; cJSON_Delete. */
enum pp_code pp_json_read(const char *folder, const char *name, struct cJSON **out, struct pp_error *err);

#endif
