/* adapter_mix.h - a set of adapters with their strengths, in the order in which they are applied: what an answer is
 * written with, a conversation is stored with, and a preset names. Pure functions, any thread.
 *
 * As JSON: [{"path": "/…/bard.gguf", "scale": 0.8}, …] */
#ifndef PP_SRC_ADAPTER_MIX_H
#define PP_SRC_ADAPTER_MIX_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/engine.h"

/* In the chat, strengths are limited to -PP_ADAPTER_MAX_STRENGTH .. PP_ADAPTER_MAX_STRENGTH. */
enum { PP_ADAPTER_MAX_STRENGTH = 2 };

struct pp_adapter_mix {
    int n;
    bool limited; /* a strength was reduced to these limits */
    struct pp_adapter_item {
        char path[512];
        float scale; /* within these limits */
    } item[PP_MAX_ADAPTERS];
};

/* The name of the adapter at a path: its last component without "starter-", "lora-" and ".gguf". */
void pp_adapter_name(const char *path, char *out, size_t cap);
/* The nearest strength within the limits; 1 for NaN. */
float pp_adapter_strength(float wanted);
/* Parses a strength that was typed. False: it is not a number, or beyond the limits; *out is unchanged. */
bool pp_adapter_strength_read(const char *text, float *out);
/* Adds an adapter; if it is in the set already, only sets its strength. False: the set is full, or the path too
 * long. */
bool pp_adapter_mix_add(struct pp_adapter_mix *s, const char *path, float scale);
void pp_adapter_mix_remove(struct pp_adapter_mix *s, const char *path);
bool pp_adapter_mix_equal(const struct pp_adapter_mix *a, const struct pp_adapter_mix *b);
/* "bard 0.80, barista 1.00"; "" for none. */
void pp_adapter_mix_label(const struct pp_adapter_mix *s, char *out, size_t cap);
/* The set as JSON (pp_free); NULL: out of memory. */
char *pp_adapter_mix_json(const struct pp_adapter_mix *s);
/* Reads JSON; "" and "[]" are the empty set. False: part of it could not be read; the rest is in *s. */
bool pp_adapter_mix_read(const char *json, struct pp_adapter_mix *s);

#endif
