/* changed_folder.h - copies of small models' folders with some tensors changed, and the logits of models and of
 * adapters, which must be equal if the adapter makes the same change. */
#ifndef PP_TESTS_CHANGED_FOLDER_H
#define PP_TESTS_CHANGED_FOLDER_H

#include "tests/adapter_folder.h"

/* Whether a string ends with another. */
bool changed_ends(const char *s, const char *end);

/* Changes one tensor: returns its new values (pp_free), or NULL, and adds the adapter that makes the same change to
 * f. */
typedef float *changed_fn(struct folder *f, const struct pp_tensor *w);
/* Copies a model's folder with all tensors of these names changed; returns the path. */
const char *changed_folder(const char *model, const char *const *names, changed_fn *change, struct folder *f);
/* A changed_fn: W [n_out, n_in] + scale B A, a LoRA with the rank and alpha of changed_config. */
float *changed_by_lora(struct folder *f, const struct pp_tensor *w);
enum { CHANGED_RANK = 3, CHANGED_ALPHA = 6 };
extern const char changed_config[]; /* the text of adapter_config.json */

/* An adapter's folder or file, and its strength. */
struct changed_on {
    const char *path;
    float strength;
};
/* Logits of small_text's text: [SMALL_TEXT, n_vocab]; pp_free. */
float *changed_logits_under(const char *model, const struct changed_on *on, int n_on, int n_vocab);
/* adapter: NULL for the model without one. */
float *changed_logits_at(const char *model, const char *adapter, float strength, int n_vocab);
float *changed_logits(const char *model, const char *adapter, int n_vocab); /* at strength 1 */
/* The largest difference of two arrays, relative to b where |b| is more than 1. */
double changed_off(const float *a, const float *b, int n);

#endif
