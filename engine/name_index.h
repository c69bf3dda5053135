/* name_index.h - finds a name's number in O(1), for the tables of files. Private to the engine.
 *
 * Names are numbered from 0 in the order in which they are added. They are not copied: they must outlive the index. Any
 * thread may search while nobody adds. */
#ifndef PP_ENGINE_NAME_INDEX_H
#define PP_ENGINE_NAME_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pp_name_index {
    struct pp_indexed_name {
        const char *data;
        size_t len;
    } *names;        /* [cap] */
    uint32_t *slots; /* [mask + 1]: number + 1, or 0; open addressing */
    size_t n, cap, mask;
};

/* Allocates room for cap names (fewer than 2^31). Returns false if out of memory. */
bool pp_name_index_init(struct pp_name_index *ix, size_t cap);
void pp_name_index_free(struct pp_name_index *ix); /* a zeroed one is fine */
/* Gives the name the next number; false if it is there already. At most cap names. */
bool pp_name_index_add(struct pp_name_index *ix, const char *name, size_t len);
/* The name's number, or SIZE_MAX. */
size_t pp_name_index_find(const struct pp_name_index *ix, const char *name, size_t len);

#endif
