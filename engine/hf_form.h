/* hf_form.h - tensors that Hugging Face folders keep in another form than we compute with (enum pp_hf_form). */
#ifndef PP_ENGINE_HF_FORM_H
#define PP_ENGINE_HF_FORM_H

#include "engine/arch/arch.h"

/* Makes of `t` the tensor, or the two of the forms that have a second one, that its table line promises. out: [2],
 * whose data are new (pp_free) and names not set; *n: how many. form: none of those that tensor_forms.h is for.
 * PP_ERR_FORMAT: its shape is not that of the form. */
enum pp_code pp_hf_transform(const struct pp_tensor *t, enum pp_hf_form form, const struct pp_hparams *hp,
                             struct pp_tensor out[2], int *n, struct pp_error *err);

#endif
