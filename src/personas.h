/* personas.h - personas, that is, named system prompts: some built-in ones, and those of pippin.conf. */
#ifndef PP_SRC_PERSONAS_H
#define PP_SRC_PERSONAS_H

#include <stddef.h>

#include "engine/base/error.h"

struct pp_config;

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
/* Fills *p (zeroed) with those and the ones of pippin.conf (NULL: there is none). */
enum pp_code pp_personas_all(struct pp_personas *p, const struct pp_config *config, struct pp_error *err);
/* The persona with this name, in upper or lower case, or the only one whose name begins like this; NULL, with an error
 * that lists the names. */
const struct pp_persona *pp_personas_find(const struct pp_personas *p, const char *name, struct pp_error *err);
/* Adds a persona, or replaces the one with that name. */
enum pp_code pp_personas_add(struct pp_personas *p, const char *name, const char *system, struct pp_error *err);
void pp_personas_free(struct pp_personas *p);

#endif
