/* input.h - decodes the terminal's bytes into keys and pastes.
 *
 * Knows the sequences of the xterm, linux, rxvt, vt100 and kitty families and those of the terminal's terminfo entry. A
 * lone Escape becomes a key when nothing has followed for PP_ESCAPE_MS (pp_input_flush). Bytes may arrive split
 * anywhere. A bracketed paste without an end is delivered after PP_PASTE_MS, and what follows is keys again. Replies of
 * the terminal (OSC, DCS, ...) and unknown sequences are dropped; no input makes its memory grow without limit. UI
 * thread. */
#ifndef PP_UI_INPUT_H
#define PP_UI_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PP_ESCAPE_MS = 25, PP_SEQUENCE_MS = 500, PP_PASTE_MS = 1000, PP_MAX_PASTE = 16 << 20 };

enum pp_key_type {
    PP_KEY_CHAR, /* cp: a character, or the control code of a key with Ctrl (1 to 26, 28 to 31, 0) */
    PP_KEY_ENTER, PP_KEY_TAB, PP_KEY_BACKTAB, PP_KEY_BACKSPACE, PP_KEY_ESC,
    PP_KEY_UP, PP_KEY_DOWN, PP_KEY_LEFT, PP_KEY_RIGHT, PP_KEY_HOME, PP_KEY_END, PP_KEY_PGUP, PP_KEY_PGDN,
    PP_KEY_INSERT, PP_KEY_DELETE,
    PP_KEY_F1, PP_KEY_F2, PP_KEY_F3, PP_KEY_F4, PP_KEY_F5, PP_KEY_F6, PP_KEY_F7, PP_KEY_F8, PP_KEY_F9, PP_KEY_F10,
    PP_KEY_F11, PP_KEY_F12,
    PP_KEY_WHEEL_UP, PP_KEY_WHEEL_DOWN, PP_KEY_CLICK, /* any other button of the mouse */
    PP_KEY_PASTE, /* text, len: as the terminal sent it, but with \n as line ends and without NULs */
};
enum { PP_MOD_SHIFT = 1, PP_MOD_ALT = 2, PP_MOD_CTRL = 4 };
#define PP_CTRL(letter) ((letter) & 0x1F)

struct pp_key {
    enum pp_key_type type;
    unsigned mods;
    int32_t cp;          /* PP_KEY_CHAR */
    char bytes[32];      /* as they came, for readline; n_bytes 0 for a paste */
    size_t n_bytes;
    const char *text;    /* PP_KEY_PASTE: valid until the next call */
    size_t len;
    bool cut;            /* the paste was truncated to PP_MAX_PASTE */
    bool lost;           /* the paste was dropped: out of memory */
    bool open_end;       /* the paste has no end yet, but paused for PP_PASTE_MS; more of it may follow */
};

struct pp_input;

struct pp_input *pp_input_new(void); /* NULL: out of memory */
void pp_input_free(struct pp_input *in);
/* Adds terminfo's sequence for a key; ignored if the decoder knows it already, or it is empty or too long. */
void pp_input_learn(struct pp_input *in, const char *sequence, enum pp_key_type type, unsigned mods);
/* Takes bytes read from the terminal. False: out of memory, the bytes are lost. */
bool pp_input_feed(struct pp_input *in, const char *bytes, size_t n);
/* Corrects bytes typed before the terminal was taken over, when Enter still gave a line feed: a single line that ends
 * with line feeds was meant to be sent, so these become Enter. Several lines may be a paste and stay text. */
void pp_input_typed_ahead(char *bytes, size_t n);
/* The next key; false if there is none (yet). */
bool pp_input_next(struct pp_input *in, struct pp_key *key);
/* Milliseconds after which to call pp_input_flush, because pending bytes could be a key by themselves or the beginning
 * of a longer sequence, or a paste has not ended; -1 if none are pending. Bytes that can only be the beginning of a
 * sequence get more time: otherwise the head of a paste would become keys, and a character split by a slow line would
 * be lost. */
int pp_input_wait_ms(const struct pp_input *in);
/* Nothing has followed: pending bytes are decoded as they are. Call pp_input_next afterwards. */
void pp_input_flush(struct pp_input *in);

#endif
