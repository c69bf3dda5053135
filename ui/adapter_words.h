/* adapter_words.h - adapters in words, for the menu and for the chat line by line. */
#ifndef PP_UI_ADAPTER_WORDS_H
#define PP_UI_ADAPTER_WORDS_H

#include <stddef.h>

struct pp_adapter_entry;
struct pp_switch_cost;

/* What it is and whether it acts, as a part of a sentence: "fits; LoRA of rank 16 for Llama-3-8B, 66.0 MB; 154
 * projections: attn_q ffn_up"; for one that does not fit the reason. Untrusted in part. */
void pp_adapter_describe(const struct pp_adapter_entry *a, char *line, size_t cap);

/* What a change costs, after words for the change: "switched on: 512 tokens to recompute, about 2.5 s". */
void pp_adapter_describe_cost(const char *what, const struct pp_switch_cost *cost, char *line, size_t cap);

#endif
