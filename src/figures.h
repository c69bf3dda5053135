/* figures.h - formats numbers for people, in the same way everywhere. */
#ifndef PP_SRC_FIGURES_H
#define PP_SRC_FIGURES_H

#include <stdint.h>

struct pp_figure {
    char text[32];
};
struct pp_figure pp_count(int64_t n);         /* 12,345 */
struct pp_figure pp_rate(double per_second);  /* 1,203 or 9.4 */
struct pp_figure pp_size(uint64_t bytes);     /* 16.4 MB or 1.24 GB */
struct pp_figure pp_parameters(int64_t n);    /* 4.21 million or 30.5 billion */

#endif
