/* xielu.h - the activation xIELU (arXiv 2411.13010), whose four numbers each layer has learned: in a source they are
 * tensors of one number, blk.N.xielu.alpha_p and so on, as in folders; GGUF has arrays in its metadata. Private to the
 * engine. */
#ifndef PP_ENGINE_XIELU_H
#define PP_ENGINE_XIELU_H

#include <stdbool.h>

#include "engine/base/error.h"
#include "engine/tensor_list.h"

struct pp_gguf;
struct pp_gguf_writer;
struct pp_source;
struct pp_xielu;

enum { PP_XIELU_NUMBERS = 4 };
/* "alpha_p", "alpha_n", "beta" and "eps", in the order of the plan's tensors. */
extern const char *const pp_xielu_names[PP_XIELU_NUMBERS];

/* Whether a tensor has one of these names. */
bool pp_is_xielu(const char *name);
/* Whether a file has the arrays; and adds the tensors that they become. PP_ERR_FORMAT: they do not cover all layers. */
bool pp_xielu_in(const struct pp_gguf *g);
enum pp_code pp_xielu_add(struct pp_tensor_list *l, const struct pp_gguf *g, const char *family, struct pp_error *err);
/* Writes the arrays if the source has the tensors. */
enum pp_code pp_xielu_write(const struct pp_source *s, struct pp_gguf_writer *w, struct pp_error *err);
/* The numbers to compute with, from the tensors in order. */
struct pp_xielu pp_xielu_of(const struct pp_tensor *const *numbers);

#endif
