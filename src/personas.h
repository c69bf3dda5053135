/* personas.h - personas, that is, named system prompts: some built-in ones, and those of pippin.conf. */
#ifndef PP_SRC_PERSONAS_H
#define PP_SRC_PERSONAS_H

#include <stddef.h>

#include "engine/base/error.h"

struct pp_persona {
    char name[64];
    char *system; /* owned; "": none */
};

struct pp_personas {
    struct pp_persona *items; /* [n]; the first is "none", without a system prompt */
    size_t n, cap;
};

/* Fills *p (zeroed) with the built-in ones. */
enum pp_code pp_personas_init(struct pp_personas *p, struct pp_error *err);
/* Adds a persona, or replaces the one with that name. */
enum pp_code pp_personas_add(struct pp_personas *p, const char *name, const char *system, struct pp_error *err);
void pp_personas_free(struct pp_personas *p);

#endif
