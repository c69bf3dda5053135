/* config.h - pippin.conf: sections with `name = value`, read by inih. Format: pippin.conf(5).
 *
 * [model], [sampling] and [ui] hold options by their long names without dashes (applied by options.h); [persona
 * NAME] holds `system`. A value continues in following lines that begin with a space; line breaks are kept.
 * Immutable after loading: any thread. */
#ifndef PP_SRC_CONFIG_H
#define PP_SRC_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

struct pp_config;

struct pp_config_entry {
    const char *section; /* "" before the first [section] */
    const char *key;
    const char *value;
    int line;            /* line number in the file, from 1 */
};

/* A missing file is an empty configuration. PP_ERR_FORMAT names file and line. */
enum pp_code pp_config_load(const char *path, struct pp_config **out, struct pp_error *err);
void pp_config_free(struct pp_config *c);
const char *pp_config_path(const struct pp_config *c);

/* All entries in the order of the file. */
size_t pp_config_count(const struct pp_config *c);
const struct pp_config_entry *pp_config_at(const struct pp_config *c, size_t i);
/* The ith persona (from 0), false after the last one. c may be NULL. */
bool pp_config_persona(const struct pp_config *c, size_t i, const char **name, const char **system);

#endif
