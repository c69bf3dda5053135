/* grammar_build.c - expressions, and the nodes that they are compiled into: see grammar_build.h.
 *
 * An expression is compiled backwards: emit() gets the node that follows, and returns the one to begin with. So a
 * sequence needs no nodes of its own. */
#include "engine/grammar_build.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

enum kind { EMPTY, NEVER, BYTES, CLASS, SEQ, ALT, REPEAT, CALL, TOKEN, NOT_TOKEN };
enum { LAST_CHAR = 0x10FFFF, SURROGATES = 0xD800, SURROGATES_END = 0xE000 };

/* --- expressions ------------------------------------------------------------------------------------------------- */

void pp_gb_fail(struct pp_builder *b, enum pp_code code, const char *fmt, ...)
{
    char text[sizeof b->err.text];
    va_list ap;
    if (b->code)
        return;
    va_start(ap, fmt);
    pp_utf8_vprint(text, sizeof text, fmt, ap);
    va_end(ap);
    b->code = pp_fail(&b->err, code, "%s", text);
}

static void no_memory(struct pp_builder *b)
{
    if (!b->code)
        b->code = pp_fail_nomem(&b->err, "the grammar");
}

static uint32_t add(struct pp_builder *b, enum kind kind, uint32_t x, uint32_t y, uint32_t z)
{
    if (b->code)
        return PP_GX_EMPTY;
    if (b->n_exprs >= PP_GRAMMAR_NODES_MOST) {
        pp_gb_fail(b, PP_ERR_UNSUPPORTED, "the grammar is too large: more than %d parts", PP_GRAMMAR_NODES_MOST);
        return PP_GX_EMPTY;
    }
    if (pp_grow(&b->exprs, &b->cap_exprs, b->n_exprs + 1, sizeof *b->exprs) != 0) {
        no_memory(b);
        return PP_GX_EMPTY;
    }
    b->exprs[b->n_exprs] = (struct pp_gx){.kind = (uint8_t)kind, .a = x, .b = y, .c = z};
    return (uint32_t)b->n_exprs++;
}

void pp_gb_init(struct pp_builder *b)
{
    *b = (struct pp_builder){0};
    add(b, EMPTY, 0, 0, 0);
    add(b, NEVER, 0, 0, 0);
}

void pp_gb_free(struct pp_builder *b)
{
    for (size_t i = 0; i < b->n_rules; i++)
        pp_free(b->rules[i].name);
    for (size_t i = 0; b->tokens && i < b->n_tokens; i++)
        pp_free((char *)b->tokens[i].text);
    pp_free(b->exprs);
    pp_free(b->rules);
    pp_free(b->chars);
    pp_free(b->tokens);
    pp_free(b->nodes);
    pp_free(b->alike);
    pp_buf_free(&b->bytes);
}

uint32_t pp_gb_bytes(struct pp_builder *b, const char *s, size_t n)
{
    const size_t at = b->bytes.len;
    if (n == 0)
        return PP_GX_EMPTY;
    pp_buf_add(&b->bytes, s, n);
    if (b->bytes.bad)
        no_memory(b);
    if (at + n > UINT32_MAX / 2)
        pp_gb_fail(b, PP_ERR_UNSUPPORTED, "the grammar's texts are too long");
    return add(b, BYTES, (uint32_t)at, (uint32_t)n, 0);
}

uint32_t pp_gb_str(struct pp_builder *b, const char *s)
{
    return pp_gb_bytes(b, s, strlen(s));
}

static int by_first(const void *x, const void *y)
{
    const struct pp_chars *a = x, *b = y;
    return a->first < b->first ? -1 : a->first > b->first;
}

static void add_chars(struct pp_builder *b, int32_t first, int32_t last)
{
    if (first < SURROGATES && last >= SURROGATES_END) {
        add_chars(b, first, SURROGATES - 1);
        first = SURROGATES_END;
    }
    if (first >= SURROGATES && first < SURROGATES_END)
        first = SURROGATES_END;
    if (last >= SURROGATES && last < SURROGATES_END)
        last = SURROGATES - 1;
    if (first > last)
        return;
    if (pp_grow(&b->chars, &b->cap_chars, b->n_chars + 1, sizeof *b->chars) != 0) {
        no_memory(b);
        return;
    }
    b->chars[b->n_chars++] = (struct pp_chars){first, last};
}

uint32_t pp_gb_class(struct pp_builder *b, struct pp_chars *ranges, size_t n, bool negated)
{
    const size_t begin = b->n_chars;
    int32_t next = 0; /* the first character after those seen */
    if (n)
        qsort(ranges, n, sizeof *ranges, by_first);
    for (size_t i = 0; i < n; i++) {
        const int32_t first = ranges[i].first > next ? ranges[i].first : next;
        if (negated && first > next)
            add_chars(b, next, first - 1);
        if (!negated && first <= ranges[i].last)
            add_chars(b, first, ranges[i].last);
        next = ranges[i].last + 1 > next ? ranges[i].last + 1 : next;
    }
    if (negated && next <= LAST_CHAR)
        add_chars(b, next, LAST_CHAR);
    if (b->n_chars == begin)
        return PP_GX_NEVER;
    return add(b, CLASS, (uint32_t)begin, (uint32_t)(b->n_chars - begin), 0);
}

uint32_t pp_gb_seq(struct pp_builder *b, uint32_t x, uint32_t y)
{
    if (x == PP_GX_NEVER || y == PP_GX_NEVER)
        return PP_GX_NEVER;
    return x == PP_GX_EMPTY ? y : y == PP_GX_EMPTY ? x : add(b, SEQ, x, y, 0);
}

uint32_t pp_gb_alt(struct pp_builder *b, uint32_t x, uint32_t y)
{
    return x == PP_GX_NEVER || x == y ? y : y == PP_GX_NEVER ? x : add(b, ALT, x, y, 0);
}

uint32_t pp_gb_repeat(struct pp_builder *b, uint32_t x, uint32_t least, uint32_t most)
{
    if (most == 0 || x == PP_GX_EMPTY)
        return PP_GX_EMPTY;
    if (x == PP_GX_NEVER)
        return least ? PP_GX_NEVER : PP_GX_EMPTY;
    return least == 1 && most == 1 ? x : add(b, REPEAT, x, least, most);
}

uint32_t pp_gb_optional(struct pp_builder *b, uint32_t x)
{
    return pp_gb_repeat(b, x, 0, 1);
}

uint32_t pp_gb_token(struct pp_builder *b, int32_t id, const char *text, size_t n, bool negated)
{
    size_t i = 0;
    while (i < b->n_tokens && (text ? !b->tokens[i].text || strlen(b->tokens[i].text) != n ||
                                          memcmp(b->tokens[i].text, text, n) != 0
                                    : b->tokens[i].text || b->tokens[i].id != id))
        i++;
    if (i == b->n_tokens) {
        char *copy = text ? pp_strndup(text, n) : NULL;
        if ((text && !copy) || pp_grow(&b->tokens, &b->cap_tokens, i + 1, sizeof *b->tokens) != 0) {
            pp_free(copy);
            no_memory(b);
            return PP_GX_EMPTY;
        }
        b->tokens[b->n_tokens++] = (struct pp_token_reference){.id = text ? -1 : id, .text = copy};
    }
    return add(b, negated ? NOT_TOKEN : TOKEN, (uint32_t)i, 0, 0);
}

uint32_t pp_gb_call(struct pp_builder *b, uint32_t rule)
{
    return add(b, CALL, rule, 0, 0);
}

uint32_t pp_gb_rule(struct pp_builder *b, const char *name, size_t n)
{
    char *copy = name ? pp_strndup(name, n) : NULL;
    if (!b->code && b->n_rules >= PP_GRAMMAR_RULES_MOST)
        pp_gb_fail(b, PP_ERR_UNSUPPORTED, "the grammar is too large: more than %d rules", PP_GRAMMAR_RULES_MOST);
    if (b->code || (name && !copy) || pp_grow(&b->rules, &b->cap_rules, b->n_rules + 1, sizeof *b->rules) != 0) {
        pp_free(copy);
        no_memory(b);
        return 0;
    }
    b->rules[b->n_rules] = (struct pp_rule){.name = copy};
    return (uint32_t)b->n_rules++;
}

void pp_gb_define(struct pp_builder *b, uint32_t rule, uint32_t expr)
{
    if (rule >= b->n_rules)
        return;
    b->rules[rule].expr = expr;
    b->rules[rule].defined = true;
}

/* --- nodes ------------------------------------------------------------------------------------------------------- */

static uint32_t node(struct pp_builder *b, enum pp_node_kind kind, unsigned lo, unsigned hi, uint32_t a, uint32_t c)
{
    if (b->code)
        return 0;
    if (b->n_nodes >= PP_GRAMMAR_NODES_MOST) {
        pp_gb_fail(b, PP_ERR_UNSUPPORTED, "the grammar is too large: its automaton has more than %d states; use "
                                          "smaller repetitions, or * instead", PP_GRAMMAR_NODES_MOST);
        return 0;
    }
    if (pp_grow(&b->nodes, &b->cap_nodes, b->n_nodes + 1, sizeof *b->nodes) != 0) {
        no_memory(b);
        return 0;
    }
    b->nodes[b->n_nodes] = (struct pp_node){
        .kind = (uint8_t)kind, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .a = a, .b = c};
    return (uint32_t)b->n_nodes++;
}

static uint32_t range_node(struct pp_builder *b, size_t since, unsigned lo, unsigned hi, uint32_t next)
{
    enum { LOOK_BACK = 64 };
    if (b->n_nodes - since > LOOK_BACK)
        since = b->n_nodes - LOOK_BACK;
    for (size_t i = since; i < b->n_nodes; i++) /* the last bytes of many ranges are alike */
        if (b->nodes[i].kind == PP_NODE_RANGE && b->nodes[i].lo == lo && b->nodes[i].hi == hi && b->nodes[i].a == next)
            return (uint32_t)i;
    return node(b, PP_NODE_RANGE, lo, hi, next, 0);
}

static uint32_t either(struct pp_builder *b, uint32_t x, uint32_t y)
{
    return x == UINT32_MAX ? y : node(b, PP_NODE_SPLIT, 0, 0, x, y);
}

/* Adds the characters first .. last, whose UTF-8 has n bytes each, to the alternatives `so_far`. A range whose
 * characters differ in several bytes is cut where all of the later ones are complete. */
static uint32_t utf8_range(struct pp_builder *b, size_t since, int32_t first, int32_t last, size_t n, uint32_t next,
                           uint32_t so_far)
{
    for (unsigned i = 1; i < n; i++) {
        const int32_t low = (1 << (6 * i)) - 1; /* bits of the last i bytes */
        if ((first & ~low) == (last & ~low))
            continue;
        if (first & low) {
            so_far = utf8_range(b, since, first, first | low, n, next, so_far);
            return utf8_range(b, since, (first | low) + 1, last, n, next, so_far);
        }
        if ((last & low) != low) {
            so_far = utf8_range(b, since, first, (last & ~low) - 1, n, next, so_far);
            return utf8_range(b, since, last & ~low, last, n, next, so_far);
        }
    }
    char lo[4], hi[4];
    pp_utf8_encode(first, lo);
    pp_utf8_encode(last, hi);
    uint32_t at = next;
    for (size_t i = n; i-- > 0;)
        at = range_node(b, since, (uint8_t)lo[i], (uint8_t)hi[i], at);
    return either(b, so_far, at);
}

static uint32_t emit_class(struct pp_builder *b, const struct pp_gx *x, uint32_t next)
{
    static const int32_t lengths[] = {0x7F, 0x7FF, 0xFFFF, LAST_CHAR}; /* the last character of 1, 2, 3, 4 bytes */
    const size_t since = b->n_nodes;
    uint32_t all = UINT32_MAX;
    for (uint32_t i = 0; i < x->b && !b->code; i++) {
        int32_t first = b->chars[x->a + i].first;
        const int32_t last = b->chars[x->a + i].last;
        for (size_t n = 0; n < 4 && first <= last; n++) {
            if (first > lengths[n])
                continue;
            const int32_t end = last < lengths[n] ? last : lengths[n];
            all = utf8_range(b, since, first, end, n + 1, next, all);
            first = end + 1;
        }
    }
    return all == UINT32_MAX ? node(b, PP_NODE_FAIL, 0, 0, 0, 0) : all;
}

static uint32_t emit(struct pp_builder *b, uint32_t expr, uint32_t next, unsigned depth);

/* A rule of its own for an expression that is repeated so often that copies would take too much. */
static uint32_t as_rule(struct pp_builder *b, uint32_t expr)
{
    const uint32_t rule = pp_gb_rule(b, NULL, 0);
    pp_gb_define(b, rule, expr);
    return pp_gb_call(b, rule);
}

/* How many nodes an expression takes, roughly; counting ends at `most`. */
static uint32_t size_of(const struct pp_builder *b, uint32_t expr, uint32_t most)
{
    const struct pp_gx *x = &b->exprs[expr];
    uint32_t n = 0;
    switch (x->kind) {
    case BYTES:
        return x->b;
    case CLASS:
        return x->b == 1 && b->chars[x->a].last < 0x80 ? 1 : x->b + 12;
    case SEQ:
    case ALT:
        for (; (x->kind == SEQ || x->kind == ALT) && n < most; x = &b->exprs[x->b])
            n += 1 + size_of(b, x->a, most - n);
        return n < most ? n + size_of(b, (uint32_t)(x - b->exprs), most - n) : n;
    case REPEAT:
        n = size_of(b, x->a, most) + 1;
        return x->c == UINT32_MAX ? n * (x->b ? x->b + 1 : 1) : n * x->c;
    default:
        return 1;
    }
}

/* Notes which of the places in a counted repetition are alike for short texts: those that are far from the minimum and
 * from the maximum, and those that have reached the minimum and are far from the maximum. places [n]: after 0, 1 ...
 * n - 1 repetitions. */
static void note_alike(struct pp_builder *b, const uint32_t *places, uint32_t n, const struct pp_gx *x, uint32_t rule)
{
    const uint32_t least = x->b, most = x->c;
    for (uint32_t i = 1; i < n; i++) {
        const bool far = most == UINT32_MAX || most - i > PP_ALIKE_BYTES;
        const uint32_t other = i < least && least - i > PP_ALIKE_BYTES ? 0 : i > least ? least : i;
        if (!far || other == i || other >= n)
            continue;
        if (pp_grow(&b->alike, &b->cap_alike, b->n_alike + 1, sizeof *b->alike) != 0) {
            no_memory(b);
            return;
        }
        b->alike[b->n_alike++] = (struct pp_alike){places[i], places[other], rule};
    }
}

static uint32_t emit_repeat(struct pp_builder *b, const struct pp_gx *x, uint32_t next, unsigned depth)
{
    enum { COPIES_MOST = 256, SIZE_MOST = 1 << 12 };
    const uint32_t least = x->b, most = x->c;
    uint32_t copies = most == UINT32_MAX ? least : most, each = x->a, at = next, *places = NULL;
    const bool many = copies > 2 * PP_ALIKE_BYTES;
    if (many || (copies > 1 && size_of(b, each, SIZE_MOST) > 1 &&
                 size_of(b, each, SIZE_MOST) * (uint64_t)copies > COPIES_MOST))
        each = as_rule(b, each);
    if (many && !b->code && !(places = pp_malloc(copies * sizeof *places)))
        no_memory(b);
    if (most == UINT32_MAX) {
        at = node(b, PP_NODE_SPLIT, 0, 0, 0, next);
        const uint32_t body = emit(b, each, at, depth);
        if (!b->code)
            b->nodes[at].a = body;
        if (copies) { /* the body is the last of them, too */
            at = body;
            copies--;
        }
    }
    for (uint32_t i = copies; i > 0 && !b->code; i--) {
        at = emit(b, each, at, depth);
        if (most != UINT32_MAX && i > least)
            at = node(b, PP_NODE_SPLIT, 0, 0, at, next);
        if (places)
            places[i - 1] = at;
    }
    if (places && !b->code)
        note_alike(b, places, copies, x, b->exprs[each].a);
    pp_free(places);
    return at;
}

static uint32_t emit(struct pp_builder *b, uint32_t expr, uint32_t next, unsigned depth)
{
    if (b->code)
        return 0;
    if (depth > 4 * PP_GRAMMAR_DEPTH_MOST) {
        pp_gb_fail(b, PP_ERR_UNSUPPORTED, "the grammar is nested too deeply");
        return 0;
    }
    const struct pp_gx x = b->exprs[expr];
    uint32_t at = next;
    switch (x.kind) {
    case EMPTY:
        return next;
    case BYTES:
        for (uint32_t i = x.b; i-- > 0;) {
            const unsigned byte = (uint8_t)b->bytes.data[x.a + i];
            at = node(b, PP_NODE_RANGE, byte, byte, at, 0);
        }
        return at;
    case CLASS:
        return emit_class(b, &x, next);
    case SEQ: {
        /* what comes first is compiled last: the list is turned round, iteratively, as it may be long */
        uint32_t n = 0, e = expr;
        for (; b->exprs[e].kind == SEQ; e = b->exprs[e].b)
            n++;
        uint32_t *parts = pp_malloc(n * sizeof *parts);
        if (!parts) {
            no_memory(b);
            return 0;
        }
        n = 0;
        for (e = expr; b->exprs[e].kind == SEQ; e = b->exprs[e].b)
            parts[n++] = b->exprs[e].a;
        at = emit(b, e, at, depth + 1);
        while (n-- > 0)
            at = emit(b, parts[n], at, depth + 1);
        pp_free(parts);
        return at;
    }
    case ALT: {
        uint32_t e = expr;
        for (at = UINT32_MAX; b->exprs[e].kind == ALT && !b->code; e = b->exprs[e].b)
            at = either(b, at, emit(b, b->exprs[e].a, next, depth + 1));
        return either(b, at, emit(b, e, next, depth + 1));
    }
    case REPEAT:
        return emit_repeat(b, &x, next, depth + 1);
    case CALL:
        return node(b, PP_NODE_CALL, 0, 0, next, x.a);
    case TOKEN:
        return node(b, PP_NODE_TOKEN, 0, 0, next, x.a);
    case NOT_TOKEN:
        return node(b, PP_NODE_NOT_TOKEN, 0, 0, next, x.a);
    default:
        return node(b, PP_NODE_FAIL, 0, 0, 0, 0);
    }
}

/* --- checks ------------------------------------------------------------------------------------------------------ */

static const char *name_of(const struct pp_builder *b, uint32_t rule)
{
    return b->rules[rule].name ? b->rules[rule].name : "(a repetition)";
}

/* Work space for walks over all nodes, all arrays [n_nodes] but where it says otherwise. */
struct walk {
    uint32_t *stack, *next_waiting, *sources, *owner;
    uint32_t *first_waiting;    /* [n_rules]: nodes that call this rule and wait for what is known of it */
    uint32_t *first_source;     /* [n_nodes + 1] */
    uint8_t *seen, *returns;
    size_t n;
};

static bool walk_init(struct walk *w, size_t n_nodes, size_t n_rules)
{
    *w = (struct walk){0};
    w->stack = pp_calloc(n_nodes + n_rules + 1, sizeof *w->stack);
    w->next_waiting = pp_calloc(n_nodes, sizeof *w->next_waiting);
    w->sources = pp_calloc(2 * n_nodes, sizeof *w->sources);
    w->owner = pp_calloc(n_nodes, sizeof *w->owner);
    w->first_waiting = pp_calloc(n_rules, sizeof *w->first_waiting);
    w->first_source = pp_calloc(n_nodes + 2, sizeof *w->first_source);
    w->seen = pp_calloc(n_nodes, 1);
    w->returns = pp_calloc(n_nodes, 1);
    return w->stack && w->next_waiting && w->sources && w->owner && w->first_waiting && w->first_source && w->seen &&
           w->returns;
}

static void walk_free(struct walk *w)
{
    pp_free(w->stack);
    pp_free(w->next_waiting);
    pp_free(w->sources);
    pp_free(w->owner);
    pp_free(w->first_waiting);
    pp_free(w->first_source);
    pp_free(w->seen);
    pp_free(w->returns);
}

static void push(struct walk *w, uint32_t at)
{
    if (w->seen[at])
        return;
    w->seen[at] = 1;
    w->stack[w->n++] = at;
}

/* Which rules may match nothing: from the first node of each, over what takes no byte. Afterwards seen[] holds the
 * nodes that are reached so. */
static void find_nullable(struct pp_grammar *g, struct walk *w)
{
    memset(w->seen, 0, g->n_nodes);
    memset(w->first_waiting, 0, g->n_rules * sizeof *w->first_waiting);
    for (uint32_t r = 0; r < g->n_rules; r++) {
        push(w, g->starts[r]);
        while (w->n) {
            const uint32_t at = w->stack[--w->n];
            const struct pp_node *x = &g->nodes[at];
            if (x->kind == PP_NODE_SPLIT) {
                push(w, x->a);
                push(w, x->b);
            } else if (x->kind == PP_NODE_CALL && g->nullable[x->b]) {
                push(w, x->a);
            } else if (x->kind == PP_NODE_CALL) {
                w->next_waiting[at] = w->first_waiting[x->b];
                w->first_waiting[x->b] = at;
            } else if (x->kind == PP_NODE_ACCEPT && at && !g->nullable[x->b]) {
                g->nullable[x->b] = true;
                for (uint32_t i = w->first_waiting[x->b]; i; i = w->next_waiting[i])
                    push(w, g->nodes[i].a);
            }
        }
    }
}

/* Which nodes lead to the end of their rule, walking backwards from the ends. */
static void find_live(struct pp_grammar *g, struct walk *w)
{
    memset(w->first_waiting, 0, g->n_rules * sizeof *w->first_waiting);
    for (uint32_t i = 1; i < g->n_nodes; i++) {
        const struct pp_node *x = &g->nodes[i];
        if (x->kind == PP_NODE_CALL) {
            w->next_waiting[i] = w->first_waiting[x->b];
            w->first_waiting[x->b] = i;
        }
        if (x->kind == PP_NODE_ACCEPT || x->kind == PP_NODE_FAIL)
            continue;
        w->first_source[x->a + 2]++;
        if (x->kind == PP_NODE_SPLIT)
            w->first_source[x->b + 2]++;
    }
    for (uint32_t i = 2; i < g->n_nodes + 2; i++)
        w->first_source[i] += w->first_source[i - 1];
    for (uint32_t i = 1; i < g->n_nodes; i++) {
        const struct pp_node *x = &g->nodes[i];
        if (x->kind == PP_NODE_ACCEPT || x->kind == PP_NODE_FAIL)
            continue;
        w->sources[w->first_source[x->a + 1]++] = i;
        if (x->kind == PP_NODE_SPLIT)
            w->sources[w->first_source[x->b + 1]++] = i;
    }
    bool *ends = g->nullable; /* used for this first: the rule can end */
    memset(w->seen, 0, g->n_nodes);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == PP_NODE_ACCEPT)
            push(w, i);
    while (w->n) {
        const uint32_t at = w->stack[--w->n];
        g->nodes[at].live = true;
        for (uint32_t k = w->first_source[at]; k < w->first_source[at + 1]; k++) {
            const uint32_t s = w->sources[k];
            if (g->nodes[s].kind == PP_NODE_CALL && !ends[g->nodes[s].b])
                w->returns[s] = 1;
            else
                push(w, s);
        }
        const uint32_t rule = w->owner[at];
        if (at == 0 || ends[rule] || g->starts[rule] != at)
            continue;
        ends[rule] = true;
        for (uint32_t i = w->first_waiting[rule]; i; i = w->next_waiting[i])
            if (w->returns[i])
                push(w, i);
    }
    memset(g->nullable, 0, g->n_rules * sizeof *g->nullable);
}

/* A rule that calls itself before any byte was taken would have to be followed forever. The calls that find_nullable
 * has reached are the edges of a graph in which a cycle is looked for. Returns a rule on a cycle, or UINT32_MAX. */
static uint32_t find_left_recursion(const struct pp_grammar *g, struct walk *w)
{
    uint32_t *first = w->first_source, *path = w->stack, *at = w->sources; /* no longer needed otherwise */
    memset(first, 0, (g->n_nodes + 2) * sizeof *first);
    memset(w->first_waiting, 0, g->n_rules * sizeof *w->first_waiting);
    for (uint32_t i = 1; i < g->n_nodes; i++)
        if (w->seen[i] && g->nodes[i].kind == PP_NODE_CALL && g->nodes[i].live) {
            w->next_waiting[i] = w->first_waiting[w->owner[i]];
            w->first_waiting[w->owner[i]] = i;
        }
    uint8_t *state = w->returns; /* 1: on the path, 2: done */
    memset(state, 0, g->n_nodes);
    for (uint32_t r = 0; r < g->n_rules; r++) {
        size_t depth = 0;
        if (state[r])
            continue;
        path[depth] = r;
        at[depth++] = w->first_waiting[r];
        state[r] = 1;
        while (depth) {
            const uint32_t call = at[depth - 1];
            if (!call) {
                state[path[--depth]] = 2;
                continue;
            }
            at[depth - 1] = w->next_waiting[call];
            const uint32_t callee = g->nodes[call].b;
            if (state[callee] == 1)
                return callee;
            if (state[callee])
                continue;
            state[callee] = 1;
            path[depth] = callee;
            at[depth++] = w->first_waiting[callee];
        }
    }
    return UINT32_MAX;
}

static enum pp_code check(const struct pp_builder *b, struct pp_grammar *g, bool named, struct pp_error *err)
{
    struct walk w;
    enum pp_code code = walk_init(&w, g->n_nodes, g->n_rules) ? PP_OK : pp_fail_nomem(err, "the grammar");
    if (!code) {
            for (uint32_t i = 1; i < g->n_nodes; i++)
                if (g->nodes[i].kind == PP_NODE_ACCEPT)
                    w.owner[i] = g->nodes[i].b;
        for (uint32_t i = 2; i < g->n_nodes; i++)
            if (g->nodes[i].kind != PP_NODE_ACCEPT)
                w.owner[i] = w.owner[i - 1];
        find_live(g, &w);
        for (uint32_t r = 0; r < g->n_rules && !code; r++)
            if (!g->nodes[g->starts[r]].live && (named || r == 0))
                code = named ? pp_fail(err, PP_ERR_FORMAT, "the rule \"%.80s\" can never end: give it an alternative "
                                                           "that does not need itself", name_of(b, r))
                             : pp_fail(err, PP_ERR_FORMAT, "%s", "");
    }
    if (!code) {
        find_nullable(g, &w);
        const uint32_t r = find_left_recursion(g, &w);
        if (r != UINT32_MAX)
            code = pp_fail(err, PP_ERR_FORMAT, "the rule \"%.80s\" is left-recursive: it begins with itself; write a "
                                               "repetition, such as x (\"+\" x)*, instead", name_of(b, r));
    }
    walk_free(&w);
    return code;
}

/* --- compiling --------------------------------------------------------------------------------------------------- */

/* A repetition of what may be empty could be over at once, wherever it is. */
static bool make_alike(const struct pp_builder *b, struct pp_grammar *g)
{
    if (!b->n_alike)
        return true;
    g->alike = pp_malloc(g->n_nodes * sizeof *g->alike);
    for (uint32_t i = 0; g->alike && i < g->n_nodes; i++)
        g->alike[i] = i;
    for (size_t i = 0; g->alike && i < b->n_alike; i++)
        if (!g->nullable[b->alike[i].rule])
            g->alike[b->alike[i].node] = b->alike[i].other;
    return g->alike;
}

static void make_classes(struct pp_grammar *g)
{
    bool begins[257] = {true};
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == PP_NODE_RANGE)
            begins[g->nodes[i].lo] = begins[g->nodes[i].hi + 1] = true;
    unsigned class = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        class += byte > 0 && begins[byte];
        g->classes[byte] = (uint8_t)class;
    }
    g->n_classes = class + 1;
}

static void emit_rules(struct pp_builder *b, uint32_t **starts)
{
    size_t cap = 0;
    node(b, PP_NODE_ACCEPT, 0, 0, 0, UINT32_MAX);
    for (uint32_t r = 0; r < b->n_rules && !b->code; r++) { /* repetitions add rules as it goes */
        const uint32_t end = node(b, PP_NODE_ACCEPT, 0, 0, 0, r);
        if (pp_grow(starts, &cap, r + 1, sizeof **starts) != 0) {
            no_memory(b);
            return;
        }
        uint32_t start = emit(b, b->rules[r].expr, end, 0);
        /* a start of its own, which nothing within the rule leads back to */
        (*starts)[r] = node(b, PP_NODE_SPLIT, 0, 0, start, start);
    }
}

enum pp_code pp_gb_compile(struct pp_builder *b, bool named, struct pp_grammar **out, struct pp_error *err)
{
    struct pp_grammar *g = pp_calloc(1, sizeof *g);
    *out = NULL;
    if (!g)
        return pp_fail_nomem(err, "the grammar");
    emit_rules(b, &g->starts);
    g->nodes = b->nodes;
    g->n_nodes = (uint32_t)b->n_nodes;
    g->n_rules = (uint32_t)b->n_rules;
    b->nodes = NULL;
    b->n_nodes = b->cap_nodes = 0;
    g->nullable = pp_calloc(g->n_rules + 1, sizeof *g->nullable);
    enum pp_code code = b->code ? b->code : g->nullable ? PP_OK : pp_fail_nomem(err, "the grammar");
    if (b->code && err)
        *err = b->err;
    if (!code)
        code = check(b, g, named, err);
    if (!code && !make_alike(b, g))
        code = pp_fail_nomem(err, "the grammar");
    if (code) {
        pp_grammar_free(g);
        return code;
    }
    make_classes(g);
    g->tokens = b->tokens;
    g->n_tokens = (uint32_t)b->n_tokens;
    b->tokens = NULL;
    b->n_tokens = b->cap_tokens = 0;
    *out = g;
    return PP_OK;
}

void pp_grammar_free(struct pp_grammar *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_tokens; i++)
        pp_free((char *)g->tokens[i].text);
    pp_free(g->tokens);
    pp_free(g->nodes);
    pp_free(g->starts);
    pp_free(g->nullable);
    pp_free(g->alike);
    pp_free(g);
}
