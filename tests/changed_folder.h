/* changed_folder.h - folders of small models some of whose tensors are others, and the logits of models and of adapters
 * that should give the same. */
#ifndef PP_TESTS_CHANGED_FOLDER_H
#define PP_TESTS_CHANGED_FOLDER_H

#include "tests/adapter_folder.h"

/* Whether a string ends with another. */
bool changed_ends(const char *s, const char *end);

/* What becomes of a folder's tensor: its new values (pp_free), whose parts of an adapter go into f, or NULL. */
typedef float *changed_fn(struct folder *f, const struct pp_tensor *w);
/* The folder with all tensors of these names changed; its path. */
const char *changed_folder(const char *model, const char *const *names, changed_fn *change, struct folder *f);
/* W [n_out, n_in] + scale B A: a LoRA as changed_config tells it. */
float *changed_by_lora(struct folder *f, const struct pp_tensor *w);
enum { CHANGED_RANK = 3, CHANGED_ALPHA = 6 };
extern const char changed_config[]; /* of adapter_config.json */

/* An adapter's folder or file, and how strong it is on. */
struct changed_on {
    const char *path;
    float strength;
};
/* Of a text as small_text gives it: [SMALL_TEXT, n_vocab]; pp_free. */
float *changed_logits_under(const char *model, const struct changed_on *on, int n_on, int n_vocab);
/* adapter: NULL for the model alone. */
float *changed_logits_at(const char *model, const char *adapter, float strength, int n_vocab);
float *changed_logits(const char *model, const char *adapter, int n_vocab); /* at strength 1 */
/* The largest difference of two arrays, beside b where that is more than 1. */
double changed_off(const float *a, const float *b, int n);

#endif
