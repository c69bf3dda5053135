/* adapter_mix.h - adapters with their strengths, in the order in which they are applied: what an answer is written
 * under, what is stored with a conversation, and what a preset names. Pure functions, any thread.
 *
 * As JSON: [{"path": "/…/bard.gguf", "scale": 0.8}, …] */
#ifndef PP_SRC_ADAPTER_MIX_H
#define PP_SRC_ADAPTER_MIX_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/engine.h"

/* Strengths in the chat go from -PP_ADAPTER_MOST to PP_ADAPTER_MOST. */
enum { PP_ADAPTER_MOST = 2 };

struct pp_adapter_mix {
    int n;
    bool limited; /* one was to have another strength, beyond the bounds */
    struct pp_adapter_item {
        char path[512];
        float scale; /* within these bounds */
    } item[PP_MAX_ADAPTERS];
};

/* How people call the adapter at a path: its last part without "starter-", "lora-" and ".gguf". */
void pp_adapter_name(const char *path, char *out, size_t cap);
/* The nearest strength within the bounds; 1 for what is no number. */
float pp_adapter_strength(float wanted);
/* A strength that somebody has typed. False: it is no number, or beyond the bounds; *out stays. */
bool pp_adapter_strength_read(const char *text, float *out);
/* False: the set is full, or the path too long. One that is in it already gets the new strength. */
bool pp_adapter_mix_add(struct pp_adapter_mix *s, const char *path, float scale);
void pp_adapter_mix_remove(struct pp_adapter_mix *s, const char *path);
bool pp_adapter_mix_equal(const struct pp_adapter_mix *a, const struct pp_adapter_mix *b);
/* "bard 0.80, barista 1.00"; "" for none. */
void pp_adapter_mix_label(const struct pp_adapter_mix *s, char *out, size_t cap);
/* pp_free; NULL: out of memory. */
char *pp_adapter_mix_json(const struct pp_adapter_mix *s);
/* "" and "[]" are the empty set. False: part of it could not be read; the rest is in *s. */
bool pp_adapter_mix_read(const char *json, struct pp_adapter_mix *s);

#endif
