/* jinja_filters.h - what the files of filters share. */
#ifndef PP_ENGINE_JINJA_FILTERS_H
#define PP_ENGINE_JINJA_FILTERS_H

#include "engine/jinja_eval.h"

/* All filters have this shape; the macros keep their definitions readable. */
#define JINJA_FILTER(id)                                                                                              \
    static struct jinja_value filter_##id(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,    \
                                          const struct jinja_args *args)
#define JINJA_UNUSED (void)j, (void)self, (void)arg, (void)args

/* jinja_urlize.c */
struct jinja_value jinja_urlize(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,
                                const struct jinja_args *args);
extern const struct jinja_builtin jinja_sequence_filters[], jinja_text_filters[]; /* both end with a NULL name */

#endif
