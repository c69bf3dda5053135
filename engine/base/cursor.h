/* cursor.h - the bounds-checked reader through which every untrusted binary file is read.
 *
 * A read past the end returns zeros and makes the cursor `bad`; a caller may read a whole structure and check
 * once. All integers are little-endian. No function here allocates. A cursor belongs to one thread at a time. */
#ifndef PP_BASE_CURSOR_H
#define PP_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pp_cursor {
    const uint8_t *data;
    size_t size; /* bytes in data */
    size_t pos;  /* of the next read */
    bool bad;    /* a read went past the end */
};

/* Begins at byte 0 of data, which stays the caller's and must outlive the cursor. */
struct pp_cursor pp_cursor(const void *data, size_t size);
size_t pp_cursor_left(const struct pp_cursor *c); /* bytes from here to the end */
uint8_t pp_cursor_u8(struct pp_cursor *c);
uint16_t pp_cursor_u16(struct pp_cursor *c);
uint32_t pp_cursor_u32(struct pp_cursor *c);
uint64_t pp_cursor_u64(struct pp_cursor *c);
float pp_cursor_f32(struct pp_cursor *c);
double pp_cursor_f64(struct pp_cursor *c);
/* n bytes of the data, or NULL (and bad). Valid as long as the data. */
const void *pp_cursor_bytes(struct pp_cursor *c, uint64_t n);
/* Moves to an absolute position; past the end makes it bad. */
void pp_cursor_seek(struct pp_cursor *c, uint64_t pos);

#endif
