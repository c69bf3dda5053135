/* hf_form.h - tensors that Hugging Face folders keep in another form than we compute with (enum pp_hf_form). */
#ifndef PP_ENGINE_HF_FORM_H
#define PP_ENGINE_HF_FORM_H

#include "engine/arch/arch.h"
#include "engine/hf.h"
#include "engine/rows.h"
#include "engine/tensor_list.h"

/* Makes of `t` the tensor, or the two of the forms that have a second one, that its table line promises. out: [2],
 * whose data are new (pp_free) and names not set; *n: how many. form: a small one, which neither pp_hf_is_by_rows nor
 * tensor_forms.h is for.
 * PP_ERR_FORMAT: its shape is not that of the form. */
enum pp_code pp_hf_transform(const struct pp_tensor *t, enum pp_hf_form form, const struct pp_hparams *hp,
                             struct pp_tensor out[2], int *n, struct pp_error *err);

/* PP_ERR_FORMAT: names t and its shape, which is not that of its form. */
enum pp_code pp_hf_fail_shape(const struct pp_tensor *t, struct pp_error *err);

/* What a norm of this form is stored without; 0: nothing. */
float pp_hf_added(enum pp_hf_form form);

/* A matrix of the form PP_HF_EXPERTS_FLAT as the stack that it is, where it lies. */
enum pp_code pp_hf_stack(const struct pp_tensor *t, const struct pp_hparams *hp, struct pp_tensor *out,
                         struct pp_error *err);

/* A matrix of the form PP_HF_WHOLE as I32; its data are new. dtype: as the folder says. PP_ERR_FORMAT: it is none. */
enum pp_code pp_hf_whole(const struct pp_tensor *t, const char *dtype, struct pp_tensor *out, struct pp_error *err);

/* The product of a norm and a matrix of one row, "STEM_norm.weight" and "STEM_proj.weight", of n values (PP_HF_SCORE);
 * its data are new, or NULL, if one of the two is not there. */
enum pp_code pp_hf_product(const struct pp_hf *hf, const char *stem, int64_t n, struct pp_tensor *out,
                           struct pp_error *err);

/* Whether what the form makes of t is made row by row: matrices, whose copies would be as large as the model. */
bool pp_hf_is_by_rows(enum pp_hf_form form, const struct pp_tensor *t);
/* Adds that. name: as GGUF names it, of PP_HF_QKV_STACKED and PP_HF_QKV_BY_GROUP "blk.3.attn_qkv.weight"; second: of a
 * form that has two. PP_ERR_FORMAT: its shape is not that of the form. */
enum pp_code pp_hf_rows_add(struct pp_tensor_list *l, const struct pp_tensor *t, enum pp_hf_form form,
                            const struct pp_hparams *hp, const char *name, const char *second, struct pp_error *err);
/* "blk.3.attn_q.weight" and those of k and v, of "blk.3.attn_qkv.weight"; false: it is not called so. */
enum { PP_HF_NAME = 128 };
bool pp_hf_qkv_names(const char *name, char parts[3][PP_HF_NAME]);
/* Where the outputs of such a matrix, which has n_rows, are that become a tensor of ours: PP_HF_QKV_BY_HEAD becomes
 * one, other forms of q, k and v become three (part 0 to 2), and those with a `second` name two. Sets n_rows of *rows
 * and what pp_rows_there looks at. False: it is no form of whole rows, or n_rows are not those of the model's heads. */
bool pp_hf_part_rows(enum pp_hf_form form, const struct pp_hparams *hp, int64_t n_rows, int part,
                     struct pp_rows *rows);

#endif
