/* sambay_model.h - a small random model in the form of Phi 4 mini Flash, and its logits, computed from the formulas in
 * double precision. */
#ifndef PP_TESTS_SAMBAY_MODEL_H
#define PP_TESTS_SAMBAY_MODEL_H

#include <stdint.h>

enum { SAMBAY_VOCAB = 70, SAMBAY_WINDOW = 11 };

void sambay_make(void);
void sambay_drop(void);
/* Write the model as a GGUF file of F32, and as a Hugging Face folder; sliding_window: its value in config.json, as
 * text. */
const char *sambay_file(void);
const char *sambay_folder(const char *sliding_window);
/* logits: [n, SAMBAY_VOCAB] */
void sambay_compute(const int32_t *ids, int n, double *logits);

#endif
