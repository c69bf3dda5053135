/* jinja_value.h - shared by all parts of the template language: the machine, its arena, and the values. Private to the
 * chat templates; the public interface is engine/text.h.
 *
 * Values follow Python: a value is 16 bytes and is passed by value; lists, dicts and strings are in the arena and
 * shared by reference. Nothing is freed individually: the arena is freed as a whole when a render ends, or with the
 * template.
 *
 * Errors unwind: jinja_fail() jumps back to jinja_protect(), which is safe because nothing in between owns anything
 * outside the arena. Templates are downloaded files, so everything is bounded by the JINJA_MAX_ constants. */
#ifndef PP_ENGINE_JINJA_VALUE_H
#define PP_ENGINE_JINJA_VALUE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

enum {
    JINJA_MAX_SOURCE = 1 << 20,  /* bytes of a template */
    JINJA_MAX_MEMORY = 64 << 20, /* bytes of values; more for a large input */
    JINJA_MAX_OUTPUT = 16 << 20, /* bytes rendered */
    JINJA_MAX_STEPS = 20 << 20,  /* nodes evaluated; long strings and lists count extra; more for a large input */
    JINJA_PAIR_STEPS = 12,       /* more for each pair of messages ... */
    JINJA_MAX_PAIR_STEPS = 300 << 20, /* ... up to this many */
    JINJA_MAX_NESTING = 200,     /* of brackets and blocks in the source */
    JINJA_MAX_DEPTH = 1500,      /* of evaluation: nested expressions times macro calls */
    JINJA_MAX_VALUE_DEPTH = 400, /* of lists inside lists when they are printed or compared, and of JSON */
    JINJA_MAX_RANGE = 100000,    /* as in Python's sandbox */
};

enum jinja_kind {
    JINJA_MISSING, /* an argument that was not given; never seen by templates */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_BIG, /* an integer beyond 64 bits: its digits (jinja_big.c) */
    JINJA_STRING,
    JINJA_BYTES, /* the result of str.encode (jinja_bytes.c) */
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_RANGE,
    JINJA_VIEW, /* keys(), values(), items() of a dict */
    JINJA_SET,  /* members without duplicates, in insertion order (jinja_set.c) */
    JINJA_ITER, /* the result of map, select and others: can be walked once, is always true, has no length */
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_FUNCTION, /* a global: range, dict, ... */
    JINJA_METHOD,   /* a builtin bound to a value: "x".upper */
    JINJA_MACRO,
    JINJA_LOOP,
    JINJA_CYCLER,
    JINJA_JOINER,
    JINJA_SELF,  /* its attributes are the template's blocks */
    JINJA_BLOCK, /* one of those, to be called */
};

struct jinja_stmt;

struct jinja_value {
    uint8_t kind;
    uint8_t flag; /* STRING: marked safe; UNDEFINED: a missing attribute rather than a missing variable */
    uint32_t n;   /* STRING, BYTES, BIG: bytes; UNDEFINED: bytes of the name */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* STRING, BYTES: UTF-8, no NUL; UNDEFINED: the name, for the message, or NULL */
        struct jinja_list *list;
        struct jinja_dict *dict; /* DICT, NAMESPACE */
        const struct jinja_builtin *function;
        struct jinja_method *method;
        struct jinja_macro *macro;
        struct jinja_loop *loop;
        struct jinja_cycler *cycler; /* CYCLER, JOINER */
        const struct jinja_stmt *block;
    };
};

struct jinja_list {
    struct jinja_value *items; // [n]
    size_t n, cap;
    /* VIEW: "dict_keys"; RANGE: how it prints; TUPLE: "group" if from groupby; ITER: why it cannot be walked;
     * otherwise NULL */
    const char *name;
};

struct jinja_pair {
    struct jinja_value key, value;
};

struct jinja_dict {
    struct jinja_pair *pairs; // [n], in the order of insertion
    size_t n, cap;
    uint32_t *index; // [index_cap], position + 1 by hash, 0 is free; NULL while the dict is small
    size_t index_cap;
};

struct jinja_method {
    struct jinja_value self;
    const struct jinja_builtin *builtin;
};

struct jinja_cycler {
    struct jinja_list *items;
    size_t at;
};

/* --- the machine ------------------------------------------------------------------------------------------ */

struct jinja_block; /* of the arena */

struct jinja {
    const char *name; /* of the template, for messages */
    uint32_t line;    /* current line, for messages; 0 outside of the template */
    unsigned depth;   /* of recursion in parser or evaluator */
    uint64_t steps, max_steps;
    int64_t now;
    bool autoescape;  /* output, and results of filters, are HTML */
    bool in_block;    /* blocks see what the template has set so far, then what it was given */
    uint32_t random;  /* calls of random in this run */

    struct jinja_block *blocks; /* the arena, newest first */
    size_t memory, max_memory;

    struct jinja_list counted[2]; /* shared by ranges: ascending, and descending */
    struct jinja_text *out;            /* where output currently goes */
    struct jinja_dict *context;        /* the variables given to the template */
    const struct jinja_template *root; /* while rendering */
    struct jinja_scope *top;           /* the root's variables */

    struct pp_error *err;
    enum pp_code code;
    jmp_buf escape;
};

/* Runs body(j, arg); false if it failed, and then *j->err says why. Must not be nested on one machine. */
bool jinja_protect(struct jinja *j, void (*body)(struct jinja *j, void *arg), void *arg);
/* Ends the run with PP_ERR_FORMAT and a message that names template and line. */
_Noreturn void jinja_fail(struct jinja *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Counts work other than nodes: n bytes or items processed. Fails when the template's limit is reached. */
void jinja_work(struct jinja *j, size_t n);
/* Pairs around recursion. */
void jinja_enter(struct jinja *j);
void jinja_leave(struct jinja *j);

/* Never NULL. Alignment 8. Freed by jinja_release only. */
void *jinja_alloc(struct jinja *j, size_t n);
void *jinja_zalloc(struct jinja *j, size_t n);
void jinja_release(struct jinja *j);
/* Doubles *items (in the arena) so that `need` elements of `size` bytes fit. */
void *jinja_grow(struct jinja *j, void *items, size_t *cap, size_t need, size_t size);

/* A string being built; zero-initialise. Grows in place as long as nothing else is allocated. */
struct jinja_text {
    char *p;
    size_t n, cap;
};
void jinja_add(struct jinja *j, struct jinja_text *t, const char *bytes, size_t n);
void jinja_add_str(struct jinja *j, struct jinja_text *t, const char *s);
void jinja_add_char(struct jinja *j, struct jinja_text *t, char c);
void jinja_add_times(struct jinja *j, struct jinja_text *t, const char *bytes, size_t n, size_t times);
struct jinja_value jinja_text_value(struct jinja *j, struct jinja_text *t); /* ends the building */

/* --- making values ------------------------------------------------------------------------------------------ */

static inline struct jinja_value jinja_none(void) { return (struct jinja_value){.kind = JINJA_NONE}; }
static inline struct jinja_value jinja_undefined(void) { return (struct jinja_value){.kind = JINJA_UNDEFINED}; }
static inline struct jinja_value jinja_bool(bool b) { return (struct jinja_value){.kind = JINJA_BOOL, .b = b}; }
static inline struct jinja_value jinja_int(int64_t i) { return (struct jinja_value){.kind = JINJA_INT, .i = i}; }
static inline struct jinja_value jinja_float(double f) { return (struct jinja_value){.kind = JINJA_FLOAT, .f = f}; }
/* The bytes are not copied. Lengths fit because the arena is small. */
static inline struct jinja_value jinja_str(const char *s, size_t n)
{
    return (struct jinja_value){.kind = JINJA_STRING, .n = (uint32_t)n, .s = s};
}
struct jinja_value jinja_cstr(const char *s);
struct jinja_value jinja_copy(struct jinja *j, const char *s, size_t n);
/* a + b; does not copy a if it is the newest allocation, so that a loop that appends takes linear time. */
struct jinja_value jinja_concat(struct jinja *j, struct jinja_value a, struct jinja_value b);
/* The undefined value of a missing attribute or variable. */
struct jinja_value jinja_missing_attribute(struct jinja_value name);
struct jinja_value jinja_missing_variable(const char *name, size_t n);

struct jinja_list *jinja_list(struct jinja *j);
void jinja_push(struct jinja *j, struct jinja_list *list, struct jinja_value v);
struct jinja_value jinja_wrap(enum jinja_kind kind, struct jinja_list *list);
struct jinja_value jinja_pair_tuple(struct jinja *j, struct jinja_value a, struct jinja_value b);

struct jinja_dict *jinja_dict(struct jinja *j);
/* Address of the value, valid until the next change, or NULL. Fails for a key that cannot be hashed (a list). */
struct jinja_value *jinja_dict_find(struct jinja *j, const struct jinja_dict *d, struct jinja_value key);
void jinja_dict_set(struct jinja *j, struct jinja_dict *d, struct jinja_value key, struct jinja_value value);
bool jinja_dict_remove(struct jinja *j, struct jinja_dict *d, struct jinja_value key);
void jinja_dict_clear(struct jinja_dict *d);
bool jinja_hashable(struct jinja_value v);

/* --- looking at values -------------------------------------------------------------------------------------- */

/* An integer from its decimal digits, perhaps with a minus sign: an INT if it fits, otherwise a BIG. */
struct jinja_value jinja_big(struct jinja *j, const char *digits, size_t n);
static inline bool jinja_is_whole(struct jinja_value v)
{
    return v.kind == JINJA_INT || v.kind == JINJA_BOOL || v.kind == JINJA_BIG;
}
static inline bool jinja_is_list(struct jinja_value v) { return v.kind >= JINJA_LIST && v.kind <= JINJA_ITER; }
static inline bool jinja_is_integral(struct jinja_value v) { return v.kind == JINJA_INT || v.kind == JINJA_BOOL; }
static inline bool jinja_is_number(struct jinja_value v) { return jinja_is_integral(v) || v.kind == JINJA_FLOAT; }
static inline bool jinja_given(struct jinja_value v) { return v.kind != JINJA_MISSING; }
static inline int64_t jinja_as_int(struct jinja_value v) { return v.kind == JINJA_BOOL ? v.b : v.i; }
double jinja_as_double(struct jinja_value v); /* of any number */
/* The double nearest to a BIG, or infinity. */
double jinja_big_double(struct jinja_value v);
/* Bytes of a string that fit in a message, for "%.*s"; cuts between characters. */
int jinja_shown(const char *s, size_t n);
bool jinja_equals_cstr(struct jinja_value v, const char *s);
const char *jinja_type_name(struct jinja_value v); /* as in Python: "str", "dict", ... */

bool jinja_truth(struct jinja_value v);
bool jinja_equal(struct jinja *j, struct jinja_value a, struct jinja_value b);
/* <0, 0, >0; fails where Python has no order. NaN is equal to everything. */
int jinja_compare(struct jinja *j, struct jinja_value a, struct jinja_value b);
/* The elements to walk: the list itself, the keys of a dict, the characters of a string, nothing for undefined.
 * Uses up an ITER. Fails for anything else. */
struct jinja_list *jinja_iterate(struct jinja *j, struct jinja_value v);
/* len(); fails where there is none. */
int64_t jinja_length(struct jinja *j, struct jinja_value v);

/* --- jinja_print.c ------------------------------------------------------------------------------------------ */

void jinja_print(struct jinja *j, struct jinja_text *t, struct jinja_value v); /* Python's str() */
void jinja_repr(struct jinja *j, struct jinja_text *t, struct jinja_value v);
struct jinja_value jinja_to_string(struct jinja *j, struct jinja_value v); /* str() as a value */
enum { JINJA_FLOAT_SIZE = 64 };
void jinja_float_repr(double f, char out[JINJA_FLOAT_SIZE]);

struct jinja_json_style {
    bool ensure_ascii, sort_keys;
    bool pretty;                                          /* one element a line */
    struct jinja_value indent, item_separator, key_separator; /* strings */
};
void jinja_to_json(struct jinja *j, struct jinja_text *t, struct jinja_value v, const struct jinja_json_style *style);

/* --- jinja_json.c ------------------------------------------------------------------------------------------- */

/* JSON text to a value. Whole numbers stay integers ("1" and "1.0" differ). `what` names the text in messages.
 * Strings may point into the text, which has to outlive the run. */
struct jinja_value jinja_from_json(struct jinja *j, const char *text, size_t n, const char *what);

/* --- jinja_case.c ------------------------------------------------------------------------------------------- */

/* Python's str.isalpha and so on, of one character; none for cp < 0. */
bool jinja_is_alpha(int32_t cp);
bool jinja_is_decimal(int32_t cp);
bool jinja_is_digit(int32_t cp);
bool jinja_is_numeric(int32_t cp);
bool jinja_is_alnum(int32_t cp);
struct jinja_value jinja_upper(struct jinja *j, struct jinja_value s);
struct jinja_value jinja_lower(struct jinja *j, struct jinja_value s);
struct jinja_value jinja_casefold(struct jinja *j, struct jinja_value s);
struct jinja_value jinja_capitalize(struct jinja *j, struct jinja_value s);
struct jinja_value jinja_title(struct jinja *j, struct jinja_value s);
struct jinja_value jinja_swap_case(struct jinja *j, struct jinja_value s);
bool jinja_is_title(struct jinja *j, struct jinja_value s);
bool jinja_is_printable(int32_t cp); /* Python's str.isprintable */
bool jinja_begins_name(int32_t cp); /* str.isidentifier: for the first character, and for others */
bool jinja_in_name(int32_t cp);
/* Jinja's filter title: upper case at the start of each word, which is where `begins` holds for the character
 * before. */
struct jinja_value jinja_title_words(struct jinja *j, struct jinja_value s, bool (*begins)(int32_t cp));

/* --- jinja_string.c ----------------------------------------------------------------------------------------- */

bool jinja_is_space(int32_t cp); /* Python's str.isspace */
size_t jinja_count_chars(struct jinja *j, struct jinja_value s);
/* Byte offset of character i (0 to the number of characters). */
size_t jinja_char_offset(struct jinja *j, struct jinja_value s, size_t i);
/* First occurrence at or after `from`, or SIZE_MAX. */
size_t jinja_find(struct jinja *j, struct jinja_value s, struct jinja_value part, size_t from);
enum { JINJA_STRIP_LEFT = 1, JINJA_STRIP_RIGHT = 2 };
/* chars: a string, or anything else for white space. */
struct jinja_value jinja_strip(struct jinja_value s, struct jinja_value chars, unsigned sides);
struct jinja_value jinja_replace(struct jinja *j, struct jinja_value s, struct jinja_value old, struct jinja_value with,
                                 int64_t count);
struct jinja_list *jinja_split(struct jinja *j, struct jinja_value s, struct jinja_value sep, int64_t max,
                               bool from_right);
struct jinja_list *jinja_split_lines(struct jinja *j, struct jinja_value s, bool keep_ends);
struct jinja_value jinja_join(struct jinja *j, struct jinja_value sep, const struct jinja_list *parts);
struct jinja_value jinja_escape_html(struct jinja *j, struct jinja_value s);
/* Alignment in a field. str.center and format differ where the padding is odd. */
enum jinja_align { JINJA_ALIGN_LEFT, JINJA_ALIGN_RIGHT, JINJA_ALIGN_CENTER, JINJA_ALIGN_FORMAT_CENTER };
struct jinja_value jinja_pad(struct jinja *j, struct jinja_value s, int64_t width, struct jinja_value fill,
                             enum jinja_align align);

/* --- jinja_bytes.c ------------------------------------------------------------------------------------------ */

/* str.encode(encoding, errors); missing: utf-8, strict. Fails where the encoding lacks a character. */
struct jinja_value jinja_encode(struct jinja *j, struct jinja_value text, struct jinja_value encoding,
                                struct jinja_value errors);
struct jinja_list *jinja_bytes_list(struct jinja *j, struct jinja_value v); /* as numbers */
int jinja_bytes_compare(struct jinja_value a, struct jinja_value b);
struct jinja_value jinja_byte(struct jinja *j, struct jinja_value number); /* fails beyond 0 to 255 */
/* format % args */
struct jinja_value jinja_bytes_percent(struct jinja *j, struct jinja_value format, struct jinja_value args);
void jinja_bytes_repr(struct jinja *j, struct jinja_text *t, struct jinja_value v);
/* int.to_bytes and int.from_bytes; order: "big", "little", or missing. */
struct jinja_value jinja_int_to_bytes(struct jinja *j, int64_t v, int64_t length, struct jinja_value order, bool sign);
struct jinja_value jinja_int_from_bytes(struct jinja *j, struct jinja_value v, struct jinja_value order, bool sign);

/* --- jinja_set.c -------------------------------------------------------------------------------------------- */

bool jinja_is_set(struct jinja_value v); /* a set, or the keys or items of a dict */
/* For two such values. */
bool jinja_sets_equal(struct jinja *j, struct jinja_value a, struct jinja_value b);
bool jinja_sets_ordered(struct jinja *j, int op, struct jinja_value a, struct jinja_value b); /* op: <, <=, >, >= */
/* The set of what is in a and not in b; one of them is a set or view, the other may be anything that can be walked. */
struct jinja_value jinja_sets_subtract(struct jinja *j, struct jinja_value a, struct jinja_value b);

/* --- jinja_format.c ----------------------------------------------------------------------------------------- */

struct jinja_args;
/* format % args */
struct jinja_value jinja_percent(struct jinja *j, struct jinja_value format, struct jinja_value args);
/* format.format(args) */
struct jinja_value jinja_format(struct jinja *j, struct jinja_value format, const struct jinja_args *args);

#endif
