/* personas.h - personas, that is, named system prompts: some built-in ones, those of pippin.conf, and files NAME.txt in
 * the folder personas next to it. */
#ifndef PP_SRC_PERSONAS_H
#define PP_SRC_PERSONAS_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

struct pp_config;

enum { PP_PERSONA_NAME = 40, PP_PERSONA_TEXT = 64 << 10 }; /* the most bytes of a name, and of a file's text */

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
/* Fills *p (zeroed) with those, the ones of pippin.conf (NULL: there is none), and the files next to it, of which the
 * later replace the earlier. Files that are not such texts are left out. */
enum pp_code pp_personas_all(struct pp_personas *p, const struct pp_config *config, struct pp_error *err);
/* The persona with this name, in upper or lower case, or the only one whose name begins like this; NULL, with an error
 * that lists the names. */
const struct pp_persona *pp_personas_find(const struct pp_personas *p, const char *name, struct pp_error *err);
/* The persona with exactly this name, in upper or lower case; NULL: there is none. */
const struct pp_persona *pp_personas_named(const struct pp_personas *p, const char *name);
/* Writes the file of a persona into the configuration folder; an older one is replaced. `name`: see
 * pp_persona_name_valid. Any thread. */
enum pp_code pp_persona_save(const char *config_folder, const char *name, const char *system, struct pp_error *err);
/* Whether a file can have the name, and is not "none". */
bool pp_persona_name_valid(const char *name);
/* Adds a persona, or replaces the one with that name. */
enum pp_code pp_personas_add(struct pp_personas *p, const char *name, const char *system, struct pp_error *err);
void pp_personas_free(struct pp_personas *p);

#endif
