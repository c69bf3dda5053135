/* hf_form.h - tensors that Hugging Face folders keep in another form than we compute with (enum pp_hf_form). */
#ifndef PP_ENGINE_HF_FORM_H
#define PP_ENGINE_HF_FORM_H

#include "engine/arch/arch.h"
#include "engine/hf.h"
#include "engine/rows.h"
#include "engine/tensor_list.h"

/* Makes from `t` the tensor that its table line promises, or two if the form has a second name. out: [2], with new data
 * (pp_free) and without names; *n: how many. form: one for small tensors, not handled by pp_hf_is_by_rows or
 * tensor_forms.h. PP_ERR_FORMAT: the shape does not fit the form. */
enum pp_code pp_hf_transform(const struct pp_tensor *t, enum pp_hf_form form, const struct pp_hparams *hp,
                             struct pp_tensor out[2], int *n, struct pp_error *err);

/* PP_ERR_FORMAT: names t and its shape, which does not fit its form. */
enum pp_code pp_hf_fail_shape(const struct pp_tensor *t, struct pp_error *err);

/* What stored norms of this form lack; 0: nothing. */
float pp_hf_added(enum pp_hf_form form);

/* A matrix of the form PP_HF_EXPERTS_FLAT, seen as the stack that it is; nothing is copied. */
enum pp_code pp_hf_stack(const struct pp_tensor *t, const struct pp_hparams *hp, struct pp_tensor *out,
                         struct pp_error *err);

/* A matrix of the form PP_HF_INTEGERS as I32; its data are new. dtype: the folder's. PP_ERR_FORMAT: it holds no
 * integers. */
enum pp_code pp_hf_whole(const struct pp_tensor *t, const char *dtype, struct pp_tensor *out, struct pp_error *err);

/* PP_HF_PRODUCT: the product of a norm and a matrix of one row, "STEM_norm.weight" and "STEM_proj.weight", of n values;
 * its data are new, or NULL if one of the two is missing. */
enum pp_code pp_hf_product(const struct pp_hf *hf, const char *stem, int64_t n, struct pp_tensor *out,
                           struct pp_error *err);

/* Whether the form is applied row by row: to matrices, of which copies would be as large as the model. */
bool pp_hf_is_by_rows(enum pp_hf_form form, const struct pp_tensor *t);
/* Adds the resulting tensors. name: GGUF's; for PP_HF_QKV_STACKED and PP_HF_QKV_BY_GROUP "blk.3.attn_qkv.weight";
 * second: for forms with two. PP_ERR_FORMAT: the shape does not fit the form. */
enum pp_code pp_hf_rows_add(struct pp_tensor_list *l, const struct pp_tensor *t, enum pp_hf_form form,
                            const struct pp_hparams *hp, const char *name, const char *second, struct pp_error *err);
/* Makes "blk.3.attn_q.weight" and the names of k and v from "blk.3.attn_qkv.weight"; false: it is another name. */
enum { PP_HF_NAME = 128 };
bool pp_hf_qkv_names(const char *name, char parts[3][PP_HF_NAME]);
/* Which rows of a fused matrix with n_rows rows become one of our tensors: PP_HF_QKV_FUSED_BY_GROUP becomes one, other
 * forms of q, k and v three (part 0 to 2), and those with a `second` name two. Sets n_rows of *rows and the fields for
 * pp_rows_stored_row. False: the form does not fuse whole rows, or n_rows does not fit the model's heads. */
bool pp_hf_part_rows(enum pp_hf_form form, const struct pp_hparams *hp, int64_t n_rows, int part,
                     struct pp_rows *rows);

#endif
