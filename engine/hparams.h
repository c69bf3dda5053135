/* hparams.h - reading and checking the numbers that shape a model. Private to the engine.
 *
 * The readers fill what all families of decoders share; a family's own reader (engine/arch/) adds to it. */
#ifndef PP_ENGINE_HPARAMS_H
#define PP_ENGINE_HPARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/source.h"

struct cJSON;

/* From GGUF metadata under `arch.`, and from which tensors the model has, in whichever of its files; hp->rope_neox is
 * left alone, and so is a norm_eps of which there is nothing. */
enum pp_code pp_hparams_from_gguf(const struct pp_source *source, const char *arch, struct pp_hparams *hp,
                                  struct pp_error *err);
/* How wide the expert is that every row uses, as its tensors say, and those that others share. */
void pp_hparams_find_shared(const struct pp_source *source, struct pp_hparams *hp);
/* Refuses a decoder that says that something else is to be computed than its family usually does, or hp says. */
enum pp_code pp_hparams_refuse(const struct pp_gguf *g, const char *arch, const struct pp_hparams *hp,
                               struct pp_error *err);
/* The largest bias of ALiBi that a GGUF file has, 0 if it has none. */
float pp_hparams_alibi(const struct pp_gguf *g, const char *arch);
/* From config.json, in the manner of transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters). */
enum pp_code pp_hparams_from_config(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Holds everything against its limits. */
enum pp_code pp_hparams_check(const struct pp_hparams *hp, struct pp_error *err);

/* What files call them; NULL: the family's. */
enum { PP_N_ACTIVATIONS = PP_ACTIVATION_RELU + 1 };
extern const char *const pp_activation_names[PP_N_ACTIVATIONS];

/* --- for engine/arch/ ------------------------------------------------------------------------------------------- */

/* What `key` of config.json says must be among `known` (NULL at the end), or absent. */
enum pp_code pp_config_activation(const struct cJSON *config, const char *key, const char *const *known,
                                  struct pp_error *err);
/* The same of a word that is no activation: errors name the key. */
enum pp_code pp_config_word(const struct cJSON *config, const char *key, const char *const *known,
                            struct pp_error *err);
/* What config.json, or an object like it, says of RoPE: base, scaling, and how much of a head is rotated. */
enum pp_code pp_config_rope(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Whether an item of a list of kinds of layers is this word, or what transformers calls the same since version 5.18, or
 * called so before. */
bool pp_config_is_layer_word(const struct cJSON *item, const char *word);
/* A list under `key` of a word for each layer, if it is there: layers called `with` get the bit, those called `without`
 * lose it; other words are refused. */
enum pp_code pp_config_layer_words(const struct cJSON *config, const char *key, const char *with, const char *without,
                                   uint8_t bit, struct pp_hparams *hp, struct pp_error *err);
/* `layer_types`, if it is there: PP_LAYER_WIDE for layers without a window. */
enum pp_code pp_config_layer_types(const struct cJSON *config, struct pp_hparams *hp, struct pp_error *err);
/* Gives every step-th layer, the step-th first, these bits. */
void pp_layers_every(struct pp_hparams *hp, int64_t step, uint8_t bits);
/* Gives every layer sizes of its own, which are the model's as yet. */
void pp_layers_uneven(struct pp_hparams *hp);
/* The last n layers have no keys and values of their own; and how many those are. */
enum pp_code pp_layers_share(struct pp_hparams *hp, int64_t n, struct pp_error *err);
int64_t pp_layers_shared(const struct pp_hparams *hp);
/* Only layers with a window rotate queries and keys: those without one know no positions. */
void pp_layers_rotate_windows(struct pp_hparams *hp);
/* Layers with a window have a RoPE of their own: PP_LAYER_LOCAL_ROPE. */
void pp_layers_local_rope(struct pp_hparams *hp);
/* If there is a window: the same, at the model's own base if rope_base_local is 0. They differ by the scaling only. */
void pp_layers_unscaled_windows(struct pp_hparams *hp);
/* What YaRN's cosines and sines are multiplied by as DeepSeek writes it: the quotient of two temperatures. */
float pp_hparams_yarn_magnitude(float factor, float mscale, float mscale_all_dim);
/* LongRoPE's list of n divisors under this key. */
enum pp_code pp_hparams_rope_factors(const struct cJSON *config, const char *key, int64_t n, float *factors,
                                     struct pp_error *err);

/* Copies n bytes to out as valid UTF-8 without control characters, line breaks or direction marks (each becomes '?'),
 * cut at a character boundary. */
void pp_clean_name(const char *s, size_t n, char *out, size_t out_size);
/* The last part of a path without ".gguf", clean; of a path that ends with "." or ".." that of the folder it means. */
void pp_name_of_path(const char *path, char *out, size_t out_size);
/* A name for people out of a file name: "llama-bias" becomes "Llama Bias". */
void pp_title_of_path(const char *path, char *out, size_t out_size);

/* A number under a key of a JSON object; null counts as absent. false if it is there and no such number (integers
 * must be whole); absent leaves *v alone. */
bool pp_json_int(const struct cJSON *object, const char *key, int64_t *v);
bool pp_json_float(const struct cJSON *object, const char *key, float *v);

#endif
