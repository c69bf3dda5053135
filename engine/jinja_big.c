/* jinja_big.c - Python's integers beyond 64 bits: sums, products, division. They are stored as decimal digits, and
 * computed in groups of nine digits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"

enum {
    GROUP = 9,
    BASE = 1000000000,
    MAX_DIGITS = 4300, /* Python's limit for printing */
    EXTRA = 6,         /* groups added to a dividend, so that a quotient has the bits of a double */
};

struct big {
    bool negative;
    size_t n;
    uint32_t *group; // [n] the lowest first; the highest is not 0
};

static void trim(struct big *b)
{
    while (b->n && !b->group[b->n - 1])
        b->n--;
    b->negative = b->negative && b->n;
}

static struct big make(struct jinja *j, size_t n)
{
    if (n > MAX_DIGITS / GROUP + 2 + EXTRA)
        jinja_fail(j, "an integer of more than %d digits", MAX_DIGITS);
    jinja_work(j, n * 16);
    return (struct big){.n = n, .group = jinja_zalloc(j, (n + 1) * sizeof(uint32_t))};
}

static struct big from_digits(struct jinja *j, const char *s, size_t n)
{
    const bool negative = n && *s == '-';
    s += negative;
    n -= negative;
    struct big b = make(j, (n + GROUP - 1) / GROUP);
    for (size_t i = 0; i < n; i++) {
        uint32_t *g = &b.group[(n - 1 - i) / GROUP];
        *g = *g * 10 + (uint32_t)(s[i] - '0');
    }
    b.negative = negative;
    trim(&b);
    return b;
}

static struct big from_value(struct jinja *j, struct jinja_value v)
{
    if (v.kind == JINJA_BIG)
        return from_digits(j, v.s, v.n);
    const int64_t i = jinja_as_int(v);
    uint64_t rest = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    struct big b = make(j, 3);
    for (size_t k = 0; rest; k++, rest /= BASE)
        b.group[k] = (uint32_t)(rest % BASE);
    b.negative = i < 0;
    trim(&b);
    return b;
}

/* Returns an ordinary integer if it fits. */
static struct jinja_value to_value(struct jinja *j, struct big b)
{
    struct jinja_text t = {0};
    char group[GROUP + 1];
    size_t zeros = 0;
    trim(&b);
    for (size_t i = b.n; i-- > 0;) {
        uint32_t g = b.group[i];
        for (int k = GROUP; k-- > 0; g /= 10)
            group[k] = (char)('0' + g % 10);
        if (i + 1 == b.n) {
            zeros = strspn(group, "0");
            jinja_add(j, &t, "-", b.negative);
        }
        jinja_add(j, &t, group + (i + 1 == b.n ? zeros : 0), GROUP - (i + 1 == b.n ? zeros : 0));
    }
    if (!b.n)
        return jinja_int(0);
    struct jinja_value v = jinja_text_value(j, &t);
    return jinja_big(j, v.s, v.n);
}

struct jinja_value jinja_big(struct jinja *j, const char *digits, size_t n)
{
    static const char most[] = "9223372036854775807", least[] = "-9223372036854775808";
    char text[32];
    const bool negative = n && *digits == '-';
    size_t zeros = negative;
    while (zeros + 1 < n && digits[zeros] == '0')
        zeros++;
    if (n - zeros > MAX_DIGITS)
        jinja_fail(j, "an integer of more than %d digits", MAX_DIGITS);
    struct jinja_text t = {0};
    jinja_add(j, &t, "-", negative);
    jinja_add(j, &t, digits + zeros, n - zeros);
    struct jinja_value v = jinja_text_value(j, &t);
    const char *limit = negative ? least : most;
    if (v.n < strlen(limit) || (v.n == strlen(limit) && memcmp(v.s, limit, v.n) <= 0)) {
        memcpy(text, v.s, v.n);
        text[v.n] = 0;
        return jinja_int(strtoll(text, NULL, 10));
    }
    v.kind = JINJA_BIG;
    return v;
}

/* Compares magnitudes. */
static int compare(const struct big *a, const struct big *b)
{
    if (a->n != b->n)
        return a->n > b->n ? 1 : -1;
    for (size_t i = a->n; i-- > 0;)
        if (a->group[i] != b->group[i])
            return a->group[i] > b->group[i] ? 1 : -1;
    return 0;
}

/* Adds magnitudes. */
static struct big plus(struct jinja *j, const struct big *a, const struct big *b)
{
    struct big sum = make(j, (a->n > b->n ? a->n : b->n) + 1);
    uint32_t carry = 0;
    for (size_t i = 0; i < sum.n; i++) {
        carry += (i < a->n ? a->group[i] : 0) + (i < b->n ? b->group[i] : 0);
        sum.group[i] = carry % BASE;
        carry /= BASE;
    }
    trim(&sum);
    return sum;
}

/* Subtracts magnitudes; a is not smaller than b. */
static struct big minus(struct jinja *j, const struct big *a, const struct big *b)
{
    struct big rest = make(j, a->n);
    int64_t borrow = 0;
    for (size_t i = 0; i < a->n; i++) {
        borrow += (int64_t)a->group[i] - (i < b->n ? b->group[i] : 0);
        rest.group[i] = (uint32_t)(borrow < 0 ? borrow + BASE : borrow);
        borrow = borrow < 0 ? -1 : 0;
    }
    trim(&rest);
    return rest;
}

static struct big add(struct jinja *j, struct big a, struct big b)
{
    struct big sum;
    if (a.negative == b.negative) {
        sum = plus(j, &a, &b);
        sum.negative = a.negative && sum.n;
        return sum;
    }
    const bool a_is_less = compare(&a, &b) < 0;
    sum = a_is_less ? minus(j, &b, &a) : minus(j, &a, &b);
    sum.negative = (a_is_less ? b.negative : a.negative) && sum.n;
    return sum;
}

static struct big times(struct jinja *j, const struct big *a, const struct big *b)
{
    struct big product = make(j, a->n + b->n);
    for (size_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        jinja_work(j, b->n * 16);
        for (size_t k = 0; k < b->n || carry; k++) {
            carry += product.group[i + k] + (uint64_t)a->group[i] * (k < b->n ? b->group[k] : 0);
            product.group[i + k] = (uint32_t)(carry % BASE);
            carry /= BASE;
        }
    }
    product.negative = a->negative != b->negative;
    trim(&product);
    return product;
}

/* rest * BASE + group, in place; there must be room. */
static void append(struct big *rest, uint32_t group)
{
    memmove(rest->group + 1, rest->group, rest->n * sizeof *rest->group);
    rest->group[0] = group;
    rest->n++;
    trim(rest);
}

/* rest -= b * digit, which must not be larger than rest. */
static void subtract_times(struct big *rest, const struct big *b, uint32_t digit)
{
    uint64_t carry = 0;
    for (size_t i = 0; i < rest->n; i++) {
        carry += (uint64_t)digit * (i < b->n ? b->group[i] : 0);
        const uint32_t low = (uint32_t)(carry % BASE);
        carry /= BASE;
        carry += rest->group[i] < low;
        rest->group[i] += (rest->group[i] < low ? BASE : 0u) - low;
    }
    trim(rest);
}

/* Whether b * digit is larger than rest. */
static bool exceeds(const struct big *b, uint32_t digit, const struct big *rest, uint32_t *spare)
{
    uint64_t carry = 0;
    struct big product = {.n = b->n + 1, .group = spare};
    for (size_t i = 0; i <= b->n; i++) {
        carry += (uint64_t)digit * (i < b->n ? b->group[i] : 0);
        spare[i] = (uint32_t)(carry % BASE);
        carry /= BASE;
    }
    trim(&product);
    return compare(&product, rest) > 0;
}

/* Rounds towards minus infinity; *rest has the sign of b, which must not be 0. */
static struct big divide(struct jinja *j, struct big a, struct big b, struct big *rest)
{
    /* the remainder is always below b, and gets one more group each time */
    struct big quotient = make(j, a.n + 1), left = make(j, b.n + 1), spare = make(j, b.n + 1);
    left.n = 0;
    for (size_t i = a.n; i-- > 0;) {
        uint32_t low = 0, high = BASE; /* the digit is in [low, high) */
        append(&left, a.group[i]);
        jinja_work(j, b.n * 256);
        while (high - low > 1) {
            const uint32_t middle = low + (high - low) / 2;
            *(exceeds(&b, middle, &left, spare.group) ? &high : &low) = middle;
        }
        subtract_times(&left, &b, low);
        quotient.group[i] = low;
    }
    trim(&quotient);
    if (a.negative != b.negative && left.n) {
        uint32_t unit = 1;
        const struct big one = {.n = 1, .group = &unit};
        const struct big size = {.n = b.n, .group = b.group};
        quotient = plus(j, &quotient, &one);
        left = minus(j, &size, &left);
    }
    quotient.negative = a.negative != b.negative && quotient.n;
    left.negative = b.negative && left.n;
    *rest = left;
    return quotient;
}

static double binary_size(const struct big *b)
{
    const double low = b->n > 1 ? b->group[b->n - 2] : 0;
    return log2(b->group[b->n - 1] + low / BASE) + (double)(b->n - 1) * log2(BASE);
}

/* a * 2^bits */
static struct big shifted(struct jinja *j, const struct big *a, int bits)
{
    struct big b = make(j, a->n + (size_t)(bits * (log10(2) / GROUP)) + 2);
    memcpy(b.group, a->group, a->n * sizeof *a->group);
    for (int n; bits > 0; bits -= n) {
        uint64_t carry = 0;
        n = bits < 29 ? bits : 29;
        jinja_work(j, b.n * 16);
        for (size_t i = 0; i < b.n; i++, carry /= BASE) {
            carry += (uint64_t)b.group[i] << n;
            b.group[i] = (uint32_t)(carry % BASE);
        }
    }
    trim(&b);
    return b;
}

/* The double nearest to a / b, from some 62 bits of the quotient, the last of which is set if further bits are. */
static struct jinja_value true_quotient(struct jinja *j, struct big a, struct big b)
{
    enum { BITS = 62, MOST_SHIFT = 1076 }; /* down to a quarter of the smallest double */
    const bool negative = a.negative != b.negative;
    struct big rest;
    uint64_t bits = 0;
    a.negative = b.negative = false;
    if (!a.n)
        return jinja_float(0);
    const double size = binary_size(&a) - binary_size(&b);
    if (size > 1025)
        jinja_fail(j, "the quotient is too large for a float");
    const int shift = size < BITS - MOST_SHIFT ? MOST_SHIFT : BITS - (int)floor(size);
    if (shift > 0)
        a = shifted(j, &a, shift);
    else
        b = shifted(j, &b, -shift);
    const struct big q = divide(j, a, b, &rest);
    for (size_t i = q.n; i-- > 0;)
        bits = bits * BASE + q.group[i];
    const double f = ldexp((double)(bits | (rest.n > 0)), -shift);
    if (!isfinite(f))
        jinja_fail(j, "the quotient is too large for a float");
    return jinja_float(negative ? -f : f);
}

struct jinja_value jinja_big_operate(struct jinja *j, int op, struct jinja_value a, struct jinja_value b)
{
    struct big x = from_value(j, a), y = from_value(j, b), rest;
    switch (op) {
    case JINJA_OP_ADD:
        return to_value(j, add(j, x, y));
    case JINJA_OP_SUB:
        y.negative = !y.negative && y.n;
        return to_value(j, add(j, x, y));
    case JINJA_OP_MUL:
        return to_value(j, times(j, &x, &y));
    default:
        if (!y.n)
            jinja_fail(j, "division by zero");
        if (op == JINJA_OP_DIV)
            return true_quotient(j, x, y);
        struct big whole = divide(j, x, y, &rest);
        return to_value(j, op == JINJA_OP_MOD ? rest : whole);
    }
}
