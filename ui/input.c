#include "ui/input.h"

#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"

enum { MAX_SEQUENCE = 64, MAX_REPLY = 8192, MAX_LEARNED = 48, MAX_PARAMS = 4 };
enum { MAX_TYPED = 8 }; /* bytes of one key, or of a few pressed quickly */
enum { ESC = 0x1B, DEL = 0x7F };

static const char paste_begin[] = "\033[200~", paste_end[] = "\033[201~";

struct learned {
    char bytes[16];
    size_t len;
    enum pp_key_type type;
    unsigned mods;
};

struct pp_input {
    struct pp_buf raw;   /* bytes not yet decoded, from `at` on */
    size_t at;
    bool flushed;        /* no further bytes belong to these */
    bool pasting;
    bool stalled;        /* the paste has paused without an end mark, and what had arrived was delivered */
    bool delivered;      /* `paste` is the text of the last key */
    bool overfull;       /* the paste exceeded PP_MAX_PASTE: the rest is dropped */
    struct pp_buf paste;
    struct learned learned[MAX_LEARNED];
    int n_learned;
};

struct pp_input *pp_input_new(void)
{
    return pp_calloc(1, sizeof(struct pp_input));
}

void pp_input_free(struct pp_input *in)
{
    if (!in)
        return;
    pp_buf_free(&in->raw);
    pp_buf_free(&in->paste);
    pp_free(in);
}

void pp_input_learn(struct pp_input *in, const char *sequence, enum pp_key_type type, unsigned mods)
{
    size_t len = sequence ? strlen(sequence) : 0;
    if (len < 2 || len >= sizeof in->learned[0].bytes || sequence[0] != ESC || in->n_learned == MAX_LEARNED)
        return;
    struct learned *l = &in->learned[in->n_learned++];
    *l = (struct learned){.len = len, .type = type, .mods = mods};
    memcpy(l->bytes, sequence, len);
}

bool pp_input_feed(struct pp_input *in, const char *bytes, size_t n)
{
    if (in->at > 0) {
        in->raw.len -= in->at;
        if (in->raw.len)
            memmove(in->raw.data, in->raw.data + in->at, in->raw.len);
        in->at = 0;
    }
    pp_buf_add(&in->raw, bytes, n);
    in->flushed = false;
    if (!in->raw.bad)
        return true;
    pp_buf_free(&in->raw);
    return false;
}

void pp_input_typed_ahead(char *bytes, size_t n)
{
    size_t line = n;
    while (line > 0 && bytes[line - 1] == '\n')
        line--;
    if (!memchr(bytes, '\n', line))
        memset(bytes + line, '\r', n - line);
}

int pp_input_wait_ms(const struct pp_input *in)
{
    size_t n = in->raw.len - in->at;
    if (in->pasting && !in->stalled)
        return PP_PASTE_MS;
    if (in->pasting || n == 0 || in->flushed)
        return -1;
    const char *s = in->raw.data + in->at;
    /* the first byte of a UTF-8 character, with or without Alt */
    const bool half = s[0] & 0x80 || (n > 1 && s[1] & 0x80);
    return n > 2 || half ? PP_SEQUENCE_MS : PP_ESCAPE_MS;
}

void pp_input_flush(struct pp_input *in)
{
    in->flushed = true;
}

/* --- sequences --------------------------------------------------------------------------------------------- */

/* The result of a decoder step: more bytes are needed, a key was decoded, or the bytes mean nothing. */
enum step { STEP_MORE, STEP_KEY, STEP_NOTHING };

struct view { /* the bytes to decode */
    const char *s;
    size_t n;
    size_t used; /* set by a step that is not STEP_MORE */
};

static bool key_of_letter(char final, enum pp_key_type *type)
{
    switch (final) {
    case 'A': *type = PP_KEY_UP; return true;
    case 'B': *type = PP_KEY_DOWN; return true;
    case 'C': *type = PP_KEY_RIGHT; return true;
    case 'D': *type = PP_KEY_LEFT; return true;
    case 'H': *type = PP_KEY_HOME; return true;
    case 'F': *type = PP_KEY_END; return true;
    case 'M': *type = PP_KEY_ENTER; return true; /* of the keypad */
    case 'P': *type = PP_KEY_F1; return true;
    case 'Q': *type = PP_KEY_F2; return true;
    case 'R': *type = PP_KEY_F3; return true;
    case 'S': *type = PP_KEY_F4; return true;
    case 'Z': *type = PP_KEY_BACKTAB; return true;
    default: return false;
    }
}

static bool key_of_number(int number, enum pp_key_type *type)
{
    static const struct { int number; enum pp_key_type type; } table[] = {
        {1, PP_KEY_HOME}, {2, PP_KEY_INSERT}, {3, PP_KEY_DELETE}, {4, PP_KEY_END}, {5, PP_KEY_PGUP}, {6, PP_KEY_PGDN},
        {7, PP_KEY_HOME}, {8, PP_KEY_END}, {11, PP_KEY_F1}, {12, PP_KEY_F2}, {13, PP_KEY_F3}, {14, PP_KEY_F4},
        {15, PP_KEY_F5}, {17, PP_KEY_F6}, {18, PP_KEY_F7}, {19, PP_KEY_F8}, {20, PP_KEY_F9}, {21, PP_KEY_F10},
        {23, PP_KEY_F11}, {24, PP_KEY_F12},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].number == number) {
            *type = table[i].type;
            return true;
        }
    return false;
}

/* xterm's encoding of modifiers: 1 + Shift (1) + Alt (2) + Ctrl (4). */
static unsigned modifiers(int parameter)
{
    return parameter > 1 ? (unsigned)(parameter - 1) & 7u : 0;
}

static void set_char(struct pp_key *key, int32_t cp)
{
    switch (cp) {
    case '\r': key->type = PP_KEY_ENTER; break;
    case '\t': key->type = PP_KEY_TAB; break;
    case DEL:
    case '\b': key->type = PP_KEY_BACKSPACE; break;
    case ESC: key->type = PP_KEY_ESC; break;
    default: key->type = PP_KEY_CHAR;
    }
    key->cp = cp;
}

/* A key reported by its character (CSI u, modifyOtherKeys); also sets the bytes that older terminals send for it. */
static void set_named_char(struct pp_key *key, int32_t cp, unsigned mods)
{
    key->mods = mods;
    if ((mods & PP_MOD_CTRL) && ((cp >= 'a' && cp <= 'z') || (cp >= '@' && cp <= '_'))) {
        cp = PP_CTRL(cp);
        key->mods &= ~(unsigned)PP_MOD_CTRL;
    }
    set_char(key, cp);
    key->n_bytes = 0;
    if (mods & PP_MOD_ALT)
        key->bytes[key->n_bytes++] = ESC;
    key->n_bytes += pp_utf8_encode(cp, key->bytes + key->n_bytes);
}

static bool may_be_char(int cp)
{
    return cp > 0 && cp < 0x110000 && !(cp >= 0xD800 && cp < 0xE000);
}

/* Button, column and row in SGR mouse encoding (1006); the final character m reports a release. */
static bool key_of_mouse(struct pp_key *key, const int *params, int n_params, char final)
{
    enum { SHIFT = 4, META = 8, CTRL = 16, MOTION = 32, WHEEL = 64 };
    if (n_params != 3 || final != 'M' || (params[0] & MOTION))
        return false;
    const int button = params[0] & ~(SHIFT | META | CTRL);
    key->mods = 0;
    key->type = button == WHEEL ? PP_KEY_WHEEL_UP : button == WHEEL + 1 ? PP_KEY_WHEEL_DOWN : PP_KEY_CLICK;
    return button < WHEEL + 2;
}

/* Decodes a complete control sequence. False: it means nothing. */
static bool key_of_csi(struct pp_key *key, const int *params, int n_params, char final)
{
    int first = n_params > 0 ? params[0] : 0, second = n_params > 1 ? params[1] : 0;
    key->mods = modifiers(second);
    switch (final) {
    case '~':
        if (first == 27 && n_params == 3 && may_be_char(params[2])) {
            set_named_char(key, params[2], modifiers(second));
            return true;
        }
        return key_of_number(first, &key->type);
    case 'u':
        /* in kitty's protocol, private-use code points stand for keys without a character */
        if (!may_be_char(first) || (first >= 0xE000 && first < 0xF900))
            return false;
        set_named_char(key, first, modifiers(second));
        return true;
    case '^': /* rxvt: Ctrl, Shift, both */
    case '$':
    case '@':
        key->mods = final == '^' ? PP_MOD_CTRL : final == '$' ? PP_MOD_SHIFT : PP_MOD_CTRL | PP_MOD_SHIFT;
        return key_of_number(first, &key->type);
    case 'a':
    case 'b':
    case 'c':
    case 'd':
        key->mods = PP_MOD_SHIFT;
        return key_of_letter((char)(final - 'a' + 'A'), &key->type);
    default:
        return final != 'M' && key_of_letter(final, &key->type);
    }
}

/* ESC [ parameters intermediates final */
static enum step step_csi(struct view *v, size_t at, struct pp_key *key)
{
    int params[MAX_PARAMS] = {0}, n_params = 0;
    bool private = false;
    const bool mouse = at < v->n && v->s[at] == '<';
    if (at < v->n && v->s[at] == '[') { /* Linux console: ESC [ [ A to E */
        if (at + 1 == v->n)
            return STEP_MORE;
        v->used = at + 2;
        key->type = (enum pp_key_type)(PP_KEY_F1 + (v->s[at + 1] - 'A'));
        return v->s[at + 1] >= 'A' && v->s[at + 1] <= 'E' ? STEP_KEY : STEP_NOTHING;
    }
    for (size_t i = at; i < v->n; i++) {
        char c = v->s[i];
        if (i - at > MAX_SEQUENCE) {
            v->used = i;
            return STEP_NOTHING;
        }
        if (c >= '0' && c <= '9') {
            if (n_params == 0)
                n_params = 1;
            int *p = &params[n_params - 1];
            if (*p < 1 << 24)
                *p = *p * 10 + (c - '0');
        } else if (c == ';') {
            n_params = n_params == 0 ? 2 : n_params + 1;
            if (n_params > MAX_PARAMS)
                n_params = MAX_PARAMS;
        } else if (c == ':' || (c >= 0x3C && c <= 0x3F) || (c >= 0x20 && c < 0x30 && (c != '$' || n_params != 1))) {
            private = true;
        } else if (c < 0x20 || c == DEL || (c & 0x80)) { /* not a sequence after all: decode this byte anew */
            v->used = i;
            return STEP_NOTHING;
        } else if (c == 'M' && i == at) { /* the old mouse encoding, left on by another program: three more bytes */
            v->used = at + 4;
            return v->n < v->used ? STEP_MORE : STEP_NOTHING;
        } else {
            v->used = i + 1;
            if (mouse)
                return key_of_mouse(key, params, n_params, c) ? STEP_KEY : STEP_NOTHING;
            return !private && key_of_csi(key, params, n_params, c) ? STEP_KEY : STEP_NOTHING;
        }
    }
    return STEP_MORE;
}

/* ESC O letter, and xterm's old form with a modifier before the letter */
static enum step step_ss3(struct view *v, size_t at, struct pp_key *key)
{
    if (at < v->n && v->s[at] >= '1' && v->s[at] <= '8')
        key->mods = modifiers(v->s[at++] - '0');
    if (at >= v->n)
        return STEP_MORE;
    v->used = at + 1;
    char c = v->s[at];
    if (c >= 'a' && c <= 'd') {
        key->mods = PP_MOD_CTRL;
        c = (char)(c - 'a' + 'A');
    }
    return key_of_letter(c, &key->type) ? STEP_KEY : STEP_NOTHING;
}

/* OSC, DCS, APC, PM, SOS: a reply of the terminal, which ends with BEL or ST. */
static enum step step_string(struct view *v, size_t at)
{
    for (size_t i = at; i < v->n; i++) {
        if (v->s[i] == '\a' || i - at > MAX_REPLY) {
            v->used = i + 1;
            return STEP_NOTHING;
        }
        if (v->s[i] == ESC) {
            if (i + 1 == v->n)
                return STEP_MORE;
            v->used = v->s[i + 1] == '\\' ? i + 2 : i;
            return STEP_NOTHING;
        }
    }
    return STEP_MORE;
}

static enum step step_char(struct view *v, struct pp_key *key)
{
    int32_t cp;
    if (pp_utf8_complete(v->s, v->n < 4 ? v->n : 4) == 0)
        return STEP_MORE;
    v->used = pp_utf8_decode(v->s, v->n, &cp);
    if (cp < 0)
        return STEP_NOTHING;
    set_char(key, cp);
    return STEP_KEY;
}

static enum step step_learned(const struct pp_input *in, struct view *v, struct pp_key *key)
{
    enum step result = STEP_NOTHING;
    for (int i = 0; i < in->n_learned; i++) {
        const struct learned *l = &in->learned[i];
        if (v->n >= l->len && memcmp(v->s, l->bytes, l->len) == 0) {
            key->type = l->type;
            key->mods = l->mods;
            v->used = l->len;
            return STEP_KEY;
        }
        if (v->n < l->len && memcmp(v->s, l->bytes, v->n) == 0)
            result = STEP_MORE;
    }
    return result;
}

/* A slow line may deliver an Escape and the start of a paste together. Taken as Alt, the Escape would hide the start
 * mark, and the pasted text would be typed as keys. */
static enum step step_before_paste(struct view *v, struct pp_key *key)
{
    const size_t mark = strlen(paste_begin), n = v->n - 1 < mark ? v->n - 1 : mark;
    if (memcmp(v->s + 1, paste_begin, n) != 0)
        return STEP_NOTHING;
    if (n < mark)
        return STEP_MORE;
    set_char(key, ESC);
    v->used = 1;
    return STEP_KEY;
}

static enum step step_escape(const struct pp_input *in, struct view *v, struct pp_key *key)
{
    if (v->n == 1)
        return STEP_MORE;
    enum step learned = step_learned(in, v, key);
    if (learned == STEP_KEY)
        return learned;
    char c = v->s[1];
    enum step result;
    switch (c) {
    case '[': result = step_csi(v, 2, key); break;
    case 'O': result = step_ss3(v, 2, key); break;
    case ']': case 'P': case '_': case '^': case 'X': result = step_string(v, 2); break;
    case ESC:
        result = step_before_paste(v, key);
        if (result != STEP_NOTHING)
            return result;
        if (v->s[2] == '[' || v->s[2] == 'O') { /* rxvt: Alt with a key that sends a sequence */
            result = v->s[2] == '[' ? step_csi(v, 3, key) : step_ss3(v, 3, key);
            key->mods |= PP_MOD_ALT;
            break;
        }
        set_char(key, ESC);
        v->used = 1;
        return STEP_KEY;
    default: {
        struct view rest = {v->s + 1, v->n - 1, 0};
        result = step_char(&rest, key);
        key->mods |= PP_MOD_ALT;
        v->used = rest.used + 1;
    }
    }
    return learned == STEP_MORE && result == STEP_NOTHING ? STEP_MORE : result;
}

/* Decodes bytes that nothing will follow: Escape, or Escape and a character as Alt (Alt-[); incomplete UTF-8 is
 * dropped. */
static enum step step_flushed(struct view *v, struct pp_key *key)
{
    *key = (struct pp_key){0};
    v->used = 1;
    if (v->s[0] != ESC)
        return STEP_NOTHING;
    if (v->n == 2 && v->s[1] > 0x20 && v->s[1] < DEL) {
        set_char(key, v->s[1]);
        key->mods = PP_MOD_ALT;
        v->used = 2;
        return STEP_KEY;
    }
    if (v->n > 2) { /* an incomplete sequence */
        v->used = v->n;
        return STEP_NOTHING;
    }
    set_char(key, ESC);
    return STEP_KEY;
}

/* --- pastes ------------------------------------------------------------------------------------------------ */

static void add_pasted(struct pp_input *in, const char *s, size_t n)
{
    if (in->paste.len + n > PP_MAX_PASTE) {
        n = PP_MAX_PASTE - in->paste.len;
        in->overfull = true;
    }
    pp_buf_add(&in->paste, s, n);
}

/* Converts line ends to \n and removes NULs, in place; returns the new length. */
static size_t tidy(char *s, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\r' && i + 1 < n && s[i + 1] == '\n')
            continue;
        if (s[i] != '\0')
            s[to++] = s[i] == '\r' ? '\n' : s[i];
    }
    return to;
}

/* Delivers the collected text as a key. The buffer is cleared when the next paste, or the rest of this one, begins. */
static void deliver(struct pp_input *in, struct pp_key *key)
{
    *key = (struct pp_key){.type = PP_KEY_PASTE, .text = "", .cut = in->overfull, .open_end = in->stalled};
    if (!in->paste.bad && in->paste.data) {
        /* A character cut by the limit is dropped; invalid UTF-8 that was sent is kept. */
        key->len = tidy(in->paste.data, in->overfull ? pp_utf8_complete(in->paste.data, in->paste.len) : in->paste.len);
        key->text = in->paste.data;
        in->paste.data[key->len] = '\0';
    } else {
        key->lost = in->paste.bad;
        pp_buf_free(&in->paste);
    }
    in->overfull = false;
    in->delivered = true;
}

/* The length of a prefix of the end mark that s ends with. */
static size_t begun_mark(const char *s, size_t n)
{
    size_t len = strlen(paste_end) - 1;
    for (len = len < n ? len : n; len > 0 && memcmp(s + n - len, paste_end, len) != 0;)
        len--;
    return len;
}

/* The paste has paused without an end mark: delivers what has arrived. The beginning of an end mark (or an Esc,
 * pressed to get out) is dropped, and the first bytes of a character are kept until its rest arrives. */
static bool stall(struct pp_input *in, struct pp_key *key)
{
    const char *s = in->raw.data + in->at;
    const size_t n = in->raw.len - in->at, mark = n ? begun_mark(s, n) : 0;
    const size_t take = n > mark ? pp_utf8_complete(s, n - mark) : 0;
    if (take)
        add_pasted(in, s, take);
    in->at += mark ? n : take;
    in->stalled = true;
    if (in->paste.len == 0)
        return false;
    deliver(in, key);
    return true;
}

/* Whether input after a stalled paste was typed. The paste may go on, if the line is slow, but if its end mark never
 * comes, the user presses keys. A few bytes at a time are keys; so is an Escape near the beginning (after at most an
 * incomplete character), which also begins replies and the next paste. */
static bool looks_typed(const struct pp_input *in, const char *end)
{
    const char *s = in->raw.data + in->at;
    const size_t n = in->raw.len - in->at;
    const char *escape = memchr(s, ESC, n < 4 ? n : 4);
    return in->stalled && ((!end && n <= MAX_TYPED) || (escape && escape != end));
}

/* Collects a paste; true when it has ended or paused, with *key set. It may also turn out to have ended before: then
 * the remaining bytes are keys. */
static bool next_paste(struct pp_input *in, struct pp_key *key)
{
    if (in->delivered)
        pp_buf_clear(&in->paste);
    in->delivered = false;
    const char *s = in->raw.data + in->at;
    size_t n = in->raw.len - in->at, mark = strlen(paste_end);
    const char *end = n ? memmem(s, n, paste_end, mark) : NULL;
    if (in->flushed && !end)
        return !in->stalled && stall(in, key);
    if (n && looks_typed(in, end)) {
        in->pasting = false;
        return false;
    }
    in->stalled = in->stalled && n == 0;
    size_t take = end ? (size_t)(end - s) : n > mark ? n - mark : 0; /* the end mark may be incomplete */
    if (take)
        add_pasted(in, s, take);
    in->at += take;
    if (!end)
        return false;
    in->at += mark;
    in->pasting = false;
    deliver(in, key);
    return true;
}

static bool begins_paste(struct pp_input *in, const struct view *v)
{
    size_t mark = strlen(paste_begin);
    if (v->n < mark || memcmp(v->s, paste_begin, mark) != 0)
        return false;
    in->at += mark;
    in->pasting = true;
    in->stalled = in->overfull = in->delivered = false;
    pp_buf_clear(&in->paste);
    return true;
}

bool pp_input_next(struct pp_input *in, struct pp_key *key)
{
    for (;;) {
        if (in->pasting && next_paste(in, key))
            return true;
        if (in->pasting)
            return false;
        if (in->at == in->raw.len)
            return false;
        struct view v = {in->raw.data + in->at, in->raw.len - in->at, 0};
        if (begins_paste(in, &v))
            continue;
        *key = (struct pp_key){0};
        enum step step = v.s[0] == ESC ? step_escape(in, &v, key) : step_char(&v, key);
        if (step == STEP_MORE) {
            if (!in->flushed)
                return false;
            step = step_flushed(&v, key);
        }
        in->at += v.used;
        if (step == STEP_NOTHING)
            continue;
        if (key->n_bytes == 0 && v.used <= sizeof key->bytes) {
            memcpy(key->bytes, v.s, v.used);
            key->n_bytes = v.used;
        }
        return true;
    }
}
