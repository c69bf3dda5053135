#include "engine/base/cursor.h"

#include <string.h>

struct pp_cursor pp_cursor(const void *data, size_t size)
{
    return (struct pp_cursor){.data = data, .size = size};
}

size_t pp_cursor_left(const struct pp_cursor *c)
{
    return c->bad ? 0 : c->size - c->pos;
}

const void *pp_cursor_bytes(struct pp_cursor *c, uint64_t n)
{
    if (c->bad || n > c->size - c->pos) {
        c->bad = true;
        return NULL;
    }
    const void *p = c->data + c->pos;
    c->pos += (size_t)n;
    return p;
}

void pp_cursor_seek(struct pp_cursor *c, uint64_t pos)
{
    if (pos > c->size)
        c->bad = true;
    else
        c->pos = (size_t)pos;
}

static uint64_t little_endian(struct pp_cursor *c, unsigned n)
{
    const uint8_t *p = pp_cursor_bytes(c, n);
    uint64_t v = 0;
    if (p)
        for (unsigned i = 0; i < n; i++)
            v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint8_t pp_cursor_u8(struct pp_cursor *c) { return (uint8_t)little_endian(c, 1); }
uint16_t pp_cursor_u16(struct pp_cursor *c) { return (uint16_t)little_endian(c, 2); }
uint32_t pp_cursor_u32(struct pp_cursor *c) { return (uint32_t)little_endian(c, 4); }
uint64_t pp_cursor_u64(struct pp_cursor *c) { return little_endian(c, 8); }

float pp_cursor_f32(struct pp_cursor *c)
{
    uint32_t bits = pp_cursor_u32(c);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

double pp_cursor_f64(struct pp_cursor *c)
{
    uint64_t bits = pp_cursor_u64(c);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
