#include "engine/jinja_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"

/* --- the machine ---------------------------------------------------------------------------------------- */

bool jinja_protect(struct jinja *j, void (*body)(struct jinja *j, void *arg), void *arg)
{
    j->code = PP_OK;
    if (setjmp(j->escape) == 0)
        body(j, arg);
    return j->code == PP_OK;
}

void jinja_fail(struct jinja *j, const char *fmt, ...)
{
    char message[sizeof j->err->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    j->code = PP_ERR_FORMAT;
    if (j->line)
        pp_fail(j->err, PP_ERR_FORMAT, "%s, line %u: %s", j->name, (unsigned)j->line, message);
    else
        pp_fail(j->err, PP_ERR_FORMAT, "%s: %s", j->name, message);
    longjmp(j->escape, 1);
}

static void fail_memory(struct jinja *j)
{
    j->code = pp_fail_nomem(j->err, "the chat template");
    longjmp(j->escape, 1);
}

void jinja_work(struct jinja *j, size_t n)
{
    j->steps += n / 16 + 1;
    if (j->steps > j->max_steps)
        jinja_fail(j, "the template runs too long (more than %llu steps); it may never end",
                   (unsigned long long)j->max_steps);
}

void jinja_enter(struct jinja *j)
{
    if (++j->depth > JINJA_MAX_DEPTH)
        jinja_fail(j, "too deep: a macro calls itself without end, or an expression is nested too far");
}

void jinja_leave(struct jinja *j)
{
    j->depth--;
}

/* --- arena ---------------------------------------------------------------------------------------------- */

struct jinja_block {
    struct jinja_block *next;
    size_t size, used;
    _Alignas(8) char data[];
};

enum { BLOCK_SIZE = 64 << 10 };

static void new_block(struct jinja *j, size_t n)
{
    size_t size = n > BLOCK_SIZE ? n : BLOCK_SIZE;
    if (n > j->max_memory || size > j->max_memory - j->memory)
        jinja_fail(j, "the template needs more than %zu MB of memory", j->max_memory >> 20);
    struct jinja_block *b = pp_malloc(sizeof *b + size);
    if (!b)
        fail_memory(j);
    *b = (struct jinja_block){.next = j->blocks, .size = size};
    j->blocks = b;
    j->memory += size;
}

void *jinja_alloc(struct jinja *j, size_t n)
{
    struct jinja_block *b = j->blocks;
    size_t at = b ? (b->used + 7) & ~(size_t)7 : 0;
    if (!b || at > b->size || n > b->size - at) {
        new_block(j, n);
        b = j->blocks;
        at = 0;
    }
    b->used = at + n;
    return b->data + at;
}

void *jinja_zalloc(struct jinja *j, size_t n)
{
    return memset(jinja_alloc(j, n), 0, n);
}

void jinja_release(struct jinja *j)
{
    while (j->blocks) {
        struct jinja_block *next = j->blocks->next;
        pp_free(j->blocks);
        j->blocks = next;
    }
    j->memory = 0;
}

/* Changes the size of the newest allocation, if p is that and the block has room. */
static bool resize_newest(struct jinja *j, const char *p, size_t old, size_t wanted)
{
    struct jinja_block *b = j->blocks;
    if (!b || p + old != b->data + b->used)
        return false;
    size_t at = b->used - old;
    if (wanted > b->size - at)
        return false;
    b->used = at + wanted;
    return true;
}

void *jinja_grow(struct jinja *j, void *items, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return items;
    size_t want = *cap < 4 ? 4 : *cap * 2;
    if (want < need)
        want = need;
    if (!items || !resize_newest(j, items, *cap * size, want * size)) {
        void *grown = jinja_alloc(j, want * size);
        if (items)
            memcpy(grown, items, *cap * size);
        items = grown;
    }
    *cap = want;
    return items;
}

void jinja_add(struct jinja *j, struct jinja_text *t, const char *bytes, size_t n)
{
    if (n == 0)
        return;
    if (t == j->out && n > JINJA_MAX_OUTPUT - t->n)
        jinja_fail(j, "the template's output is longer than %d MB", JINJA_MAX_OUTPUT >> 20);
    if (n > t->cap - t->n) {
        size_t want = t->cap < 32 ? 64 : t->cap * 2;
        if (want - t->n < n)
            want = t->n + n;
        if (!t->p || !resize_newest(j, t->p, t->cap, want)) {
            char *p = jinja_alloc(j, want);
            if (t->p)
                memcpy(p, t->p, t->n);
            t->p = p;
        }
        t->cap = want;
    }
    memcpy(t->p + t->n, bytes, n);
    t->n += n;
    j->steps += n / 64;
}

void jinja_add_str(struct jinja *j, struct jinja_text *t, const char *s)
{
    jinja_add(j, t, s, strlen(s));
}

void jinja_add_char(struct jinja *j, struct jinja_text *t, char c)
{
    jinja_add(j, t, &c, 1);
}

void jinja_add_times(struct jinja *j, struct jinja_text *t, const char *bytes, size_t n, size_t times)
{
    size_t total;
    if (__builtin_mul_overflow(n, times, &total) || total > j->max_memory)
        jinja_fail(j, "a string of more than %zu MB", j->max_memory >> 20);
    jinja_work(j, total);
    for (size_t i = 0; n && i < times; i++)
        jinja_add(j, t, bytes, n);
}

struct jinja_value jinja_text_value(struct jinja *j, struct jinja_text *t)
{
    if (t->p)
        resize_newest(j, t->p, t->cap, t->n); /* gives unused room back */
    struct jinja_value v = jinja_str(t->p ? t->p : "", t->n);
    *t = (struct jinja_text){0};
    return v;
}

/* --- making values -------------------------------------------------------------------------------------- */

struct jinja_value jinja_cstr(const char *s)
{
    return jinja_str(s, strlen(s));
}

struct jinja_value jinja_copy(struct jinja *j, const char *s, size_t n)
{
    char *p = jinja_alloc(j, n);
    if (n)
        memcpy(p, s, n);
    return jinja_str(p, n);
}

struct jinja_value jinja_concat(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    if (b.n == 0 || a.n == 0)
        return jinja_str(b.n ? b.s : a.s, b.n ? b.n : a.n);
    jinja_work(j, b.n);
    if (b.n < UINT32_MAX - a.n && resize_newest(j, a.s, a.n, (size_t)a.n + b.n)) {
        memcpy(j->blocks->data + j->blocks->used - b.n, b.s, b.n); /* a keeps its length, so it does not see the rest */
        return jinja_str(a.s, (size_t)a.n + b.n);
    }
    jinja_work(j, a.n);
    char *p = jinja_alloc(j, (size_t)a.n + b.n);
    memcpy(p, a.s, a.n);
    memcpy(p + a.n, b.s, b.n);
    return jinja_str(p, (size_t)a.n + b.n);
}

struct jinja_value jinja_missing_attribute(struct jinja_value name)
{
    struct jinja_value v = {.kind = JINJA_UNDEFINED, .flag = 1};
    if (name.kind == JINJA_STRING) {
        v.s = name.s;
        v.n = name.n;
    }
    return v;
}

struct jinja_value jinja_missing_variable(const char *name, size_t n)
{
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .s = name, .n = (uint32_t)n};
}

struct jinja_list *jinja_list(struct jinja *j)
{
    return jinja_zalloc(j, sizeof(struct jinja_list));
}

void jinja_push(struct jinja *j, struct jinja_list *list, struct jinja_value v)
{
    list->items = jinja_grow(j, list->items, &list->cap, list->n + 1, sizeof *list->items);
    list->items[list->n++] = v;
}

struct jinja_value jinja_wrap(enum jinja_kind kind, struct jinja_list *list)
{
    return (struct jinja_value){.kind = (uint8_t)kind, .list = list};
}

struct jinja_value jinja_pair_tuple(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    struct jinja_list *list = jinja_list(j);
    list->items = jinja_alloc(j, 2 * sizeof *list->items);
    list->items[0] = a;
    list->items[1] = b;
    list->n = list->cap = 2;
    return jinja_wrap(JINJA_TUPLE, list);
}

/* --- dicts ---------------------------------------------------------------------------------------------- */

enum { SMALL_DICT = 8 }; /* up to this size a dict is searched linearly */

struct jinja_dict *jinja_dict(struct jinja *j)
{
    return jinja_zalloc(j, sizeof(struct jinja_dict));
}

bool jinja_hashable(struct jinja_value v)
{
    if (v.kind == JINJA_TUPLE) {
        for (size_t i = 0; i < v.list->n; i++)
            if (!jinja_hashable(v.list->items[i]))
                return false;
        return true;
    }
    const bool values = v.kind == JINJA_VIEW && strcmp(v.list->name, "dict_values") == 0;
    return v.kind != JINJA_LIST && v.kind != JINJA_DICT && v.kind != JINJA_SET && (v.kind != JINJA_VIEW || values);
}

/* The nearest double, which is exact if the number has one. */
double jinja_big_double(struct jinja_value v)
{
    char digits[320]; /* longer numbers are beyond any double */
    if (v.n >= sizeof digits)
        return *v.s == '-' ? -HUGE_VAL : HUGE_VAL;
    memcpy(digits, v.s, v.n);
    digits[v.n] = 0;
    return strtod(digits, NULL);
}

/* Equal numbers hash alike in every type: 1, 1.0 and true are one key. */
static uint64_t hash_value(struct jinja *j, struct jinja_value v)
{
    jinja_work(j, v.kind == JINJA_STRING || v.kind == JINJA_BYTES || v.kind == JINJA_BIG ? v.n : 0);
    if (jinja_is_number(v) || v.kind == JINJA_BIG) {
        double f = (v.kind == JINJA_BIG ? jinja_big_double(v) : jinja_as_double(v)) + 0.0; /* turns -0.0 into 0.0 */
        return pp_hash64(&f, sizeof f);
    }
    switch (v.kind) {
    case JINJA_STRING:
    case JINJA_BYTES:
        return pp_hash64(v.s, v.n);
    case JINJA_TUPLE: {
        uint64_t h = v.list->n;
        jinja_enter(j);
        for (size_t i = 0; i < v.list->n; i++)
            h = h * 0x9E3779B97F4A7C15u + hash_value(j, v.list->items[i]);
        jinja_leave(j);
        return h;
    }
    default:
        return v.kind;
    }
}

/* The slot of key in the index: where it is, or the free one where it belongs. */
static uint32_t *index_slot(struct jinja *j, const struct jinja_dict *d, struct jinja_value key)
{
    size_t mask = d->index_cap - 1;
    for (size_t at = (size_t)hash_value(j, key) & mask;; at = (at + 1) & mask) {
        uint32_t *slot = &d->index[at];
        if (*slot == 0 || jinja_equal(j, d->pairs[*slot - 1].key, key))
            return slot;
    }
}

static void build_index(struct jinja *j, struct jinja_dict *d)
{
    size_t want = 32;
    while (want < d->n * 4)
        want *= 2;
    if (want > d->index_cap) {
        d->index = jinja_alloc(j, want * sizeof *d->index);
        d->index_cap = want;
    }
    memset(d->index, 0, d->index_cap * sizeof *d->index);
    for (size_t i = 0; i < d->n; i++)
        *index_slot(j, d, d->pairs[i].key) = (uint32_t)(i + 1);
}

struct jinja_value *jinja_dict_find(struct jinja *j, const struct jinja_dict *d, struct jinja_value key)
{
    if (!jinja_hashable(key))
        jinja_fail(j, "a %s cannot be a key of a dict", jinja_type_name(key));
    if (d->index) {
        uint32_t *slot = index_slot(j, d, key);
        return *slot ? &d->pairs[*slot - 1].value : NULL;
    }
    for (size_t i = 0; i < d->n; i++)
        if (jinja_equal(j, d->pairs[i].key, key))
            return &d->pairs[i].value;
    return NULL;
}

void jinja_dict_set(struct jinja *j, struct jinja_dict *d, struct jinja_value key, struct jinja_value value)
{
    struct jinja_value *old = jinja_dict_find(j, d, key);
    if (old) {
        *old = value;
        return;
    }
    d->pairs = jinja_grow(j, d->pairs, &d->cap, d->n + 1, sizeof *d->pairs);
    d->pairs[d->n++] = (struct jinja_pair){.key = key, .value = value};
    if (d->index && d->n * 2 <= d->index_cap)
        *index_slot(j, d, key) = (uint32_t)d->n;
    else if (d->n > SMALL_DICT)
        build_index(j, d);
}

bool jinja_dict_remove(struct jinja *j, struct jinja_dict *d, struct jinja_value key)
{
    struct jinja_value *value = jinja_dict_find(j, d, key);
    if (!value)
        return false;
    struct jinja_pair *pair = (struct jinja_pair *)(void *)((char *)value - offsetof(struct jinja_pair, value));
    size_t after = d->n - (size_t)(pair - d->pairs) - 1;
    memmove(pair, pair + 1, after * sizeof *pair);
    d->n--;
    jinja_work(j, d->n * 16);
    if (d->index)
        build_index(j, d);
    return true;
}

void jinja_dict_clear(struct jinja_dict *d)
{
    *d = (struct jinja_dict){0};
}

/* --- looking at values ---------------------------------------------------------------------------------- */

double jinja_as_double(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.f : (double)jinja_as_int(v);
}

int jinja_shown(const char *s, size_t n)
{
    enum { MOST = 300 };
    return (int)(n <= MOST ? n : pp_utf8_complete(s, MOST));
}

bool jinja_equals_cstr(struct jinja_value v, const char *s)
{
    return v.kind == JINJA_STRING && strlen(s) == v.n && memcmp(v.s, s, v.n) == 0;
}

const char *jinja_type_name(struct jinja_value v)
{
    static const char *const names[] = {
        [JINJA_MISSING] = "nothing",   [JINJA_UNDEFINED] = "Undefined", [JINJA_NONE] = "NoneType",
        [JINJA_BOOL] = "bool",         [JINJA_INT] = "int",             [JINJA_FLOAT] = "float",
        [JINJA_BIG] = "int",
        [JINJA_STRING] = "str",        [JINJA_BYTES] = "bytes",         [JINJA_SET] = "set",
        [JINJA_LIST] = "list",           [JINJA_TUPLE] = "tuple",
        [JINJA_RANGE] = "range",       [JINJA_VIEW] = "dict view",      [JINJA_ITER] = "generator",
        [JINJA_DICT] = "dict",         [JINJA_NAMESPACE] = "Namespace", [JINJA_FUNCTION] = "function",
        [JINJA_METHOD] = "method",     [JINJA_MACRO] = "Macro",         [JINJA_LOOP] = "LoopContext",
        [JINJA_CYCLER] = "Cycler",     [JINJA_JOINER] = "Joiner",       [JINJA_SELF] = "TemplateReference",
        [JINJA_BLOCK] = "BlockReference",
    };
    return names[v.kind];
}

bool jinja_truth(struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v.b;
    case JINJA_INT:
        return v.i != 0;
    case JINJA_FLOAT:
        return v.f != 0;
    case JINJA_STRING:
    case JINJA_BYTES:
        return v.n != 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
    case JINJA_SET:
        return v.list->n != 0;
    case JINJA_DICT:
        return v.dict->n != 0;
    default:
        return true;
    }
}

static bool equal_lists(struct jinja *j, const struct jinja_list *a, const struct jinja_list *b)
{
    if (a == b)
        return true;
    bool same = a->n == b->n;
    jinja_enter(j);
    for (size_t i = 0; same && i < a->n && i < b->n; i++)
        same = jinja_equal(j, a->items[i], b->items[i]);
    jinja_leave(j);
    return same;
}

static bool equal_dicts(struct jinja *j, const struct jinja_dict *a, const struct jinja_dict *b)
{
    if (a == b)
        return true;
    bool same = a->n == b->n;
    jinja_enter(j);
    for (size_t i = 0; same && i < a->n; i++) {
        const struct jinja_value *other = jinja_dict_find(j, b, a->pairs[i].key);
        same = other && jinja_equal(j, a->pairs[i].value, *other);
    }
    jinja_leave(j);
    return same;
}

/* Exact, even for large integers without a double of their own. */
static int compare_numbers(struct jinja_value a, struct jinja_value b)
{
    if (jinja_is_integral(a) && jinja_is_integral(b)) {
        int64_t x = jinja_as_int(a), y = jinja_as_int(b);
        return (x > y) - (x < y);
    }
    double x = jinja_as_double(a), y = jinja_as_double(b);
    return (x > y) - (x < y);
}

/* Compares two integers, at least one of them beyond 64 bits. */
static int compare_bigs(struct jinja_value a, struct jinja_value b)
{
    const bool below_a = a.kind == JINJA_BIG && a.s[0] == '-', below_b = b.kind == JINJA_BIG && b.s[0] == '-';
    if (a.kind != JINJA_BIG)
        return below_b ? 1 : -1;
    if (b.kind != JINJA_BIG || below_a != below_b)
        return below_a ? -1 : 1;
    const int larger = a.n != b.n ? (a.n > b.n) - (a.n < b.n) : memcmp(a.s, b.s, a.n);
    return below_a ? -larger : larger;
}

/* Exact: a float of this size is an integer, and all its digits are printed. */
static int compare_big_and_float(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    const bool first = a.kind == JINJA_FLOAT;
    const double f = first ? a.f : b.f;
    char digits[512];
    if (isinf(f))
        return (f > 0) == first ? 1 : -1;
    snprintf(digits, sizeof digits, "%.0f", fabs(f) < 1e18 ? 0 : f); /* anything smaller counts as 0 */
    const struct jinja_value whole = jinja_big(j, digits, strlen(digits));
    const struct jinja_value big = first ? b : a;
    const int order = whole.kind == JINJA_BIG || big.kind == JINJA_BIG ? compare_bigs(whole, big) : 0;
    return first ? order : -order;
}

bool jinja_equal(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    jinja_work(j, 0);
    if ((a.kind == JINJA_BIG && b.kind == JINJA_FLOAT) || (a.kind == JINJA_FLOAT && b.kind == JINJA_BIG))
        return !isnan(a.kind == JINJA_FLOAT ? a.f : b.f) && compare_big_and_float(j, a, b) == 0;
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if ((a.kind == JINJA_FLOAT && isnan(a.f)) || (b.kind == JINJA_FLOAT && isnan(b.f)))
            return false;
        return compare_numbers(a, b) == 0;
    }
    if (jinja_is_set(a) && jinja_is_set(b))
        return jinja_sets_equal(j, a, b);
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case JINJA_NONE:
    case JINJA_UNDEFINED:
        return true;
    case JINJA_BIG:
    case JINJA_STRING:
    case JINJA_BYTES:
        jinja_work(j, a.n == b.n ? a.n : 0);
        return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
        return equal_lists(j, a.list, b.list);
    case JINJA_DICT:
        return equal_dicts(j, a.dict, b.dict);
    case JINJA_METHOD:
        return a.method->builtin == b.method->builtin && jinja_equal(j, a.method->self, b.method->self);
    default:
        return a.list == b.list; /* identity; all members of the union are pointers for these types */
    }
}

int jinja_compare(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    jinja_work(j, 0);
    if (jinja_is_number(a) && jinja_is_number(b))
        return compare_numbers(a, b);
    if ((a.kind == JINJA_BIG && (b.kind == JINJA_BIG || jinja_is_integral(b))) ||
        (b.kind == JINJA_BIG && jinja_is_integral(a)))
        return compare_bigs(a, b);
    if ((a.kind == JINJA_BIG && b.kind == JINJA_FLOAT) || (a.kind == JINJA_FLOAT && b.kind == JINJA_BIG))
        return compare_big_and_float(j, a, b);
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        size_t n = a.n < b.n ? a.n : b.n;
        jinja_work(j, n);
        int order = n ? memcmp(a.s, b.s, n) : 0; /* byte order is code point order in UTF-8 */
        return order ? order : (a.n > b.n) - (a.n < b.n);
    }
    if (a.kind == JINJA_BYTES && b.kind == JINJA_BYTES) {
        jinja_work(j, a.n < b.n ? a.n : b.n);
        return jinja_bytes_compare(a, b);
    }
    if (a.kind == b.kind && (a.kind == JINJA_LIST || a.kind == JINJA_TUPLE)) {
        jinja_enter(j);
        int order = (a.list->n > b.list->n) - (a.list->n < b.list->n);
        for (size_t i = 0; i < a.list->n && i < b.list->n; i++)
            if (!jinja_equal(j, a.list->items[i], b.list->items[i])) {
                order = jinja_compare(j, a.list->items[i], b.list->items[i]);
                break;
            }
        jinja_leave(j);
        return order;
    }
    jinja_fail(j, "a %s and a %s have no order", jinja_type_name(a), jinja_type_name(b));
}

static struct jinja_list *characters(struct jinja *j, struct jinja_value s)
{
    struct jinja_list *list = jinja_list(j);
    for (size_t i = 0; i < s.n;) {
        int32_t cp;
        size_t len = pp_utf8_decode(s.s + i, s.n - i, &cp);
        jinja_push(j, list, jinja_str(s.s + i, len));
        i += len;
    }
    return list;
}

struct jinja_list *jinja_iterate(struct jinja *j, struct jinja_value v)
{
    struct jinja_list *list;
    switch (v.kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
    case JINJA_SET:
        return v.list;
    case JINJA_BYTES:
        return jinja_bytes_list(j, v);
    case JINJA_ITER:
        if (v.list->name)
            jinja_fail(j, "%s", v.list->name);
        list = jinja_list(j);
        *list = *v.list;
        *v.list = (struct jinja_list){0};
        return list;
    case JINJA_DICT:
        list = jinja_list(j);
        for (size_t i = 0; i < v.dict->n; i++)
            jinja_push(j, list, v.dict->pairs[i].key);
        return list;
    case JINJA_STRING:
        return characters(j, v);
    case JINJA_UNDEFINED:
        return jinja_list(j);
    default:
        jinja_fail(j, "a value of type %s cannot be iterated", jinja_type_name(v));
    }
}

int64_t jinja_length(struct jinja *j, struct jinja_value v)
{
    switch (v.kind) {
    case JINJA_STRING:
    case JINJA_BYTES:
        return (int64_t)jinja_count_chars(j, v);
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
    case JINJA_SET:
        return (int64_t)v.list->n;
    case JINJA_DICT:
        return (int64_t)v.dict->n;
    case JINJA_UNDEFINED:
        return 0;
    default:
        jinja_fail(j, "a value of type %s has no length", jinja_type_name(v));
    }
}
