/* hymba_model.h - a small random model in the form of Hymba, and its logits, computed from the formulas in double
 * precision. */
#ifndef PP_TESTS_HYMBA_MODEL_H
#define PP_TESTS_HYMBA_MODEL_H

#include <stdint.h>

enum { HYMBA_VOCAB = 70, HYMBA_START = 5, HYMBA_WINDOW = 11 };

void hymba_make(void);
void hymba_drop(void);
/* Writes the model as a GGUF file of F32. */
const char *hymba_file(void);
/* Logits of n positions, [n, HYMBA_VOCAB]; ids from HYMBA_VOCAB on are the vectors before every text. */
void hymba_compute(const int32_t *ids, int n, double *logits);

#endif
