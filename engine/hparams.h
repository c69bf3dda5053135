/* hparams.h - reading and checking a model's hyperparameters (struct pp_hparams). Private to the engine.
 *
 * The readers here fill the fields that all families of decoders share; a family's own reader (engine/arch/) adds to
 * them. */
#ifndef PP_ENGINE_HPARAMS_H
#define PP_ENGINE_HPARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/source.h"

struct cJSON;

/* Reads GGUF metadata with keys `arch.`..., and looks which tensors the files have. rope_neox is left alone, and so is
 * norm_eps where the metadata has none. */
enum pp_code pp_hparams_from_gguf(const struct pp_source *source, const char *arch, struct pp_hparams *hp,
                                  struct pp_error *err);
/* Sets n_ff_shared and n_ff_share from the shapes of the tensors of shared experts. */
void pp_hparams_find_shared(const struct pp_source *source, struct pp_hparams *hp);
/* Refuses metadata that ask for a computation which neither the family nor hp provides for. */
enum pp_code pp_hparams_refuse(const struct pp_gguf *g, const char *arch, const struct pp_hparams *hp,
                               struct pp_error *err);
/* A GGUF file's attention.max_alibi_bias; 0: none. */
float pp_hparams_alibi(const struct pp_gguf *g, const char *arch);
/* Reads config.json, as written by transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters). */
enum pp_code pp_hparams_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Checks every field against its limits, and that they fit each other. */
enum pp_code pp_hparams_check(const struct pp_hparams *hp, struct pp_error *err);

/* The names in files, indexed by enum pp_activation; NULL for the family's own. */
enum { PP_N_ACTIVATIONS = PP_ACTIVATION_RELU + 1 };
extern const char *const pp_activation_names[PP_N_ACTIVATIONS];

/* --- for engine/arch/ ------------------------------------------------------------------------------------------- */

/* PP_ERR_UNSUPPORTED unless `key` of config.json is absent or one of `known` (NULL at the end). */
enum pp_code pp_config_activation(const struct cJSON *config, const char *key, const char *const *known,
                                  struct pp_error *err);
/* The same for a word that is not an activation function; the error names the key. */
enum pp_code pp_config_word(const struct cJSON *config, const char *key, const char *const *known,
                            struct pp_error *err);
/* Reads RoPE's base and scaling, and the number of rotated dimensions, from config.json or an object like it. */
enum pp_code pp_config_rope(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Whether an item of layer_types is this word, under its name before or since transformers 5.18, which renamed some. */
bool pp_config_is_layer_word(const struct cJSON *item, const char *word);
/* Reads an optional list under `key` with a word for each layer: `with` sets the bit in hp->layer, `without` clears it,
 * other words are refused. */
enum pp_code pp_config_layer_words(const struct cJSON *config, const char *key, const char *with, const char *without,
                                   uint8_t bit, struct pp_hparams *hp, struct pp_error *err);
/* The same for `layer_types` with full_attention and sliding_attention: PP_LAYER_WIDE. */
enum pp_code pp_config_layer_types(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Sets these bits in layers step - 1, 2 step - 1, ... */
void pp_layers_every(struct pp_hparams *hp, int64_t step, uint8_t bits);
/* Sets `sizes_vary` and starts every layer's own sizes with the model's. */
void pp_layers_vary_sizes(struct pp_hparams *hp);
/* Marks the last n layers as sharing the keys and values of earlier ones (PP_LAYER_SHARED); and counts those. */
enum pp_code pp_layers_share(struct pp_hparams *hp, int64_t n, struct pp_error *err);
int64_t pp_layers_shared(const struct pp_hparams *hp);
/* Layers without a window have no positional encoding: PP_LAYER_UNROTATED. */
void pp_layers_rotate_windows(struct pp_hparams *hp);
/* Layers with a window use rope_base_local: PP_LAYER_LOCAL_ROPE. */
void pp_layers_local_rope(struct pp_hparams *hp);
/* The same if the model has a window, with rope_base where rope_base_local is 0: layers with a window then differ in
 * that RoPE scaling does not apply to them. */
void pp_layers_unscaled_windows(struct pp_hparams *hp);
/* DeepSeek's form of the factor on YaRN's cosines and sines: (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim
 * ln(factor) + 1). */
float pp_hparams_yarn_magnitude(float factor, float mscale, float mscale_all_dim);
/* Reads LongRoPE's list of n divisors under this key, long_factor or short_factor. */
enum pp_code pp_hparams_rope_factors(const struct cJSON *config, const char *key, int64_t n, float *factors,
                                     struct pp_error *err);

/* Copies n bytes to out as valid UTF-8 without control characters, line breaks or direction marks (each becomes '?'),
 * cut at a character boundary. */
void pp_clean_name(const char *s, size_t n, char *out, size_t out_size);
/* The last component of a path without ".gguf", cleaned; "." and ".." are resolved first. */
void pp_name_of_path(const char *path, char *out, size_t out_size);
/* A display name from a file name: "llama-bias" becomes "Llama Bias". */
void pp_title_of_path(const char *path, char *out, size_t out_size);

/* Read a number under a key of a JSON object. Absent or null leaves *v alone. False: there is something else than a
 * number, or than a whole one. */
bool pp_json_int(const struct cJSON *object, const char *key, int64_t *v);
bool pp_json_float(const struct cJSON *object, const char *key, float *v);

#endif
