/* fuzz_input.c - any bytes from the terminal, in pieces: the first byte says how long a piece is, and whether time
 * passes between them. */
#include <stdlib.h>

#include "tests/hostile.h"
#include "ui/input.h"

static void take_keys(struct pp_input *in)
{
    struct pp_key key;
    while (pp_input_next(in, &key)) {
        volatile unsigned touched = 0;
        if (key.n_bytes > sizeof key.bytes || (key.type == PP_KEY_CHAR && (key.cp < 0 || key.cp > 0x10FFFF)) ||
            key.type > PP_KEY_PASTE)
            abort();
        for (size_t i = 0; key.type == PP_KEY_PASTE && i < key.len; i++)
            touched += (unsigned char)key.text[i];
        (void)touched;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hostile_input bytes = {data, size};
    unsigned how = hostile_byte(&bytes);
    size_t step = how / 2 + 1;
    struct pp_input *in = pp_input_new();
    if (!in)
        return 0;
    pp_input_learn(in, "\033[1;2P", PP_KEY_F1, PP_MOD_SHIFT);
    for (size_t i = 0; i < bytes.size; i += step) {
        if (!pp_input_feed(in, (const char *)bytes.data + i, step < bytes.size - i ? step : bytes.size - i))
            break;
        take_keys(in);
        if ((how & 1) && pp_input_wait_ms(in) >= 0) {
            pp_input_flush(in);
            take_keys(in);
        }
    }
    pp_input_flush(in);
    take_keys(in);
    if (pp_input_wait_ms(in) == PP_ESCAPE_MS)
        abort(); /* a lone Escape was not recognised */
    pp_input_free(in);
    return 0;
}
