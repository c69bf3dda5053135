#include "engine/name_index.h"

#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"

bool pp_name_index_init(struct pp_name_index *ix, size_t cap)
{
    *ix = (struct pp_name_index){0};
    if (cap >= (size_t)1 << 31)
        return false;
    size_t slots = 8;
    while (slots < cap * 2)
        slots *= 2;
    ix->names = pp_malloc(cap * sizeof *ix->names);
    ix->slots = pp_calloc(slots, sizeof *ix->slots);
    if (!ix->names || !ix->slots) {
        pp_name_index_free(ix);
        return false;
    }
    ix->cap = cap;
    ix->mask = slots - 1;
    return true;
}

void pp_name_index_free(struct pp_name_index *ix)
{
    pp_free(ix->names);
    pp_free(ix->slots);
    *ix = (struct pp_name_index){0};
}

/* The slot with the name, or the empty one where it belongs; at least half of the slots are empty. */
static uint32_t *slot_of(const struct pp_name_index *ix, const char *name, size_t len)
{
    for (size_t i = (size_t)pp_hash64(name, len) & ix->mask;; i = (i + 1) & ix->mask) {
        uint32_t number = ix->slots[i];
        if (!number)
            return &ix->slots[i];
        const struct pp_indexed_name *have = &ix->names[number - 1];
        if (have->len == len && memcmp(have->data, name, len) == 0)
            return &ix->slots[i];
    }
}

bool pp_name_index_add(struct pp_name_index *ix, const char *name, size_t len)
{
    uint32_t *slot = slot_of(ix, name, len);
    if (*slot || ix->n == ix->cap)
        return false;
    ix->names[ix->n] = (struct pp_indexed_name){name, len};
    *slot = (uint32_t)++ix->n;
    return true;
}

size_t pp_name_index_find(const struct pp_name_index *ix, const char *name, size_t len)
{
    if (!ix->n)
        return SIZE_MAX;
    return (size_t)*slot_of(ix, name, len) - 1; /* an empty slot's 0 becomes SIZE_MAX */
}
