/* jinja_filters_seq.c - filters on sequences and dicts: sorting, selecting, mapping, folding. */
#include <string.h>

#include "engine/jinja_ast.h"
#include "engine/jinja_filters.h"

/* --- keys by which sort, map and others see an element -------------------------------------------------- */

static bool all_digits(struct jinja_value s)
{
    for (uint32_t i = 0; i < s.n; i++)
        if (s.s[i] < '0' || s.s[i] > '9')
            return false;
    return s.n > 0 && s.n < 10;
}

static struct jinja_value part_key(struct jinja_value part)
{
    int64_t i = 0;
    if (!all_digits(part))
        return part;
    for (uint32_t k = 0; k < part.n; k++)
        i = i * 10 + (part.s[k] - '0');
    return jinja_int(i);
}

/* v itself if there is no attribute; otherwise v[attribute], where a string may be a path: "address.city" or
 * "pair.0". */
static struct jinja_value element_key(struct jinja *j, struct jinja_value v, struct jinja_value attribute,
                                      struct jinja_value otherwise)
{
    bool has_default = jinja_given(otherwise) && otherwise.kind != JINJA_NONE;
    if (!jinja_given(attribute) || attribute.kind == JINJA_NONE)
        return v;
    if (attribute.kind != JINJA_STRING) {
        v = jinja_item(j, v, attribute);
        return has_default && v.kind == JINJA_UNDEFINED ? otherwise : v;
    }
    const struct jinja_list *path = jinja_split(j, attribute, jinja_cstr("."), -1, false);
    for (size_t i = 0; i < path->n; i++) {
        v = jinja_item(j, v, part_key(path->items[i]));
        if (has_default && v.kind == JINJA_UNDEFINED)
            v = otherwise;
    }
    return v;
}

static struct jinja_value fold_case(struct jinja *j, struct jinja_value v, bool case_sensitive)
{
    return v.kind == JINJA_STRING && !case_sensitive ? jinja_lower(j, v) : v;
}

/* The key to sort by: a tuple, with several values if the attribute has commas. A single value is in a tuple, too,
 * since tuples compare only the first difference: equal values without an order, such as none, do not fail then. */
static struct jinja_value sort_key(struct jinja *j, struct jinja_value v, struct jinja_value attribute,
                                   bool case_sensitive)
{
    struct jinja_value none = {0};
    struct jinja_list *keys = jinja_list(j);
    if (attribute.kind != JINJA_STRING || !memchr(attribute.s, ',', attribute.n)) {
        jinja_push(j, keys, fold_case(j, element_key(j, v, attribute, none), case_sensitive));
        return jinja_wrap(JINJA_TUPLE, keys);
    }
    const struct jinja_list *names = jinja_split(j, attribute, jinja_cstr(","), -1, false);
    for (size_t i = 0; i < names->n; i++)
        jinja_push(j, keys, fold_case(j, element_key(j, v, names->items[i], none), case_sensitive));
    return jinja_wrap(JINJA_TUPLE, keys);
}

static void reverse_pairs(struct jinja_pair *pairs, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        struct jinja_pair pair = pairs[i];
        pairs[i] = pairs[n - 1 - i];
        pairs[n - 1 - i] = pair;
    }
}

/* Sorts values by their keys. Equal ones keep their order, also when descending. */
static struct jinja_value sorted(struct jinja *j, struct jinja_pair *pairs, size_t n, bool descending)
{
    struct jinja_list *out = jinja_list(j);
    if (descending)
        reverse_pairs(pairs, n);
    jinja_sort_pairs(j, pairs, n);
    if (descending)
        reverse_pairs(pairs, n);
    for (size_t i = 0; i < n; i++)
        jinja_push(j, out, pairs[i].value);
    return jinja_wrap(JINJA_LIST, out);
}

JINJA_FILTER(sort)
{
    JINJA_UNUSED;
    const struct jinja_list *list = jinja_iterate(j, self);
    struct jinja_pair *pairs = jinja_alloc(j, list->n * sizeof *pairs);
    for (size_t i = 0; i < list->n; i++) {
        pairs[i].key = sort_key(j, list->items[i], arg[2], jinja_truth(arg[1]));
        pairs[i].value = list->items[i];
    }
    return sorted(j, pairs, list->n, jinja_truth(arg[0]));
}

JINJA_FILTER(dictsort)
{
    JINJA_UNUSED;
    struct jinja_value by = jinja_arg_str(j, arg[1], "key");
    bool by_value = jinja_equals_cstr(by, "value");
    jinja_require_defined(j, self);
    if (self.kind != JINJA_DICT || (!by_value && !jinja_equals_cstr(by, "key")))
        jinja_fail(j, "dictsort needs a dict, and sorts by key or value");
    const struct jinja_dict *d = self.dict;
    struct jinja_pair *pairs = jinja_alloc(j, d->n * sizeof *pairs);
    for (size_t i = 0; i < d->n; i++) {
        pairs[i].key = fold_case(j, by_value ? d->pairs[i].value : d->pairs[i].key, jinja_truth(arg[0]));
        pairs[i].value = jinja_pair_tuple(j, d->pairs[i].key, d->pairs[i].value);
    }
    return sorted(j, pairs, d->n, jinja_truth(arg[2]));
}

JINJA_FILTER(groupby)
{
    JINJA_UNUSED;
    const struct jinja_list *list = jinja_iterate(j, self);
    struct jinja_list *groups = jinja_list(j), *group = NULL;
    struct jinja_pair *pairs = jinja_alloc(j, list->n * sizeof *pairs);
    for (size_t i = 0; i < list->n; i++) {
        pairs[i].key = fold_case(j, element_key(j, list->items[i], arg[0], arg[1]), jinja_truth(arg[2]));
        pairs[i].value = list->items[i];
    }
    jinja_sort_pairs(j, pairs, list->n);
    for (size_t i = 0; i < list->n; i++) {
        if (i == 0 || !jinja_equal(j, pairs[i].key, pairs[i - 1].key)) {
            group = jinja_list(j);
            struct jinja_value name = element_key(j, pairs[i].value, arg[0], arg[1]);
            struct jinja_value pair = jinja_pair_tuple(j, name, jinja_wrap(JINJA_LIST, group));
            pair.list->name = "group";
            jinja_push(j, groups, pair);
        }
        jinja_push(j, group, pairs[i].value);
    }
    return jinja_wrap(JINJA_LIST, groups);
}

/* Jinja's filters are generators, which check their input only when they are walked: until then nothing fails. */
static bool fails_when_walked(struct jinja *j, struct jinja_value v, const char *filter, bool dict_only,
                              struct jinja_value *iter)
{
    const bool walkable = jinja_is_list(v) || v.kind == JINJA_STRING || v.kind == JINJA_BYTES;
    if (v.kind == JINJA_DICT || v.kind == JINJA_UNDEFINED || (walkable && !dict_only))
        return false;
    struct jinja_list *list = jinja_list(j);
    struct jinja_text why = {0};
    jinja_add_str(j, &why, filter);
    jinja_add_str(j, &why, dict_only ? " needs a dict, not a " : " does not work for a ");
    jinja_add_str(j, &why, jinja_type_name(v));
    jinja_add_char(j, &why, 0);
    list->name = why.p;
    *iter = jinja_wrap(JINJA_ITER, list);
    return true;
}

JINJA_FILTER(unique)
{
    JINJA_UNUSED;
    struct jinja_value iter;
    if (fails_when_walked(j, self, "unique", false, &iter))
        return iter;
    const struct jinja_list *list = jinja_iterate(j, self);
    struct jinja_list *out = jinja_list(j);
    struct jinja_dict *seen = jinja_dict(j);
    for (size_t i = 0; i < list->n; i++) {
        struct jinja_value none = {0};
        struct jinja_value key = fold_case(j, element_key(j, list->items[i], arg[1], none), jinja_truth(arg[0]));
        if (jinja_dict_find(j, seen, key))
            continue;
        jinja_dict_set(j, seen, key, jinja_none());
        jinja_push(j, out, list->items[i]);
    }
    return jinja_wrap(JINJA_ITER, out);
}

/* sign 1: the largest, -1: the smallest; the first of equals. */
static struct jinja_value extreme(struct jinja *j, struct jinja_value self, const struct jinja_value *arg, int sign)
{
    const struct jinja_list *list = jinja_iterate(j, self);
    struct jinja_value best = jinja_undefined(), best_key = best;
    for (size_t i = 0; i < list->n; i++) {
        struct jinja_value none = {0};
        struct jinja_value key = fold_case(j, element_key(j, list->items[i], arg[1], none), jinja_truth(arg[0]));
        if (i == 0 || jinja_compare(j, key, best_key) * sign > 0) {
            best = list->items[i];
            best_key = key;
        }
    }
    return best;
}

JINJA_FILTER(min) { JINJA_UNUSED; return extreme(j, self, arg, -1); }
JINJA_FILTER(max) { JINJA_UNUSED; return extreme(j, self, arg, 1); }

/* --- selecting and mapping ------------------------------------------------------------------------------ */

static struct jinja_args rest_of(const struct jinja_args *args, size_t skip)
{
    struct jinja_args rest = *args;
    bool some = rest.n_pos > skip;
    rest.pos = some ? rest.pos + skip : NULL;
    rest.n_pos = some ? rest.n_pos - skip : 0;
    return rest;
}

/* Arguments: with attributes its name first; then the name of a test and its arguments, or nothing for truth. */
static struct jinja_value select_items(struct jinja *j, struct jinja_value self, const struct jinja_args *args,
                                       bool by_attribute, bool wanted)
{
    struct jinja_list *out = jinja_list(j);
    struct jinja_value attribute = {0}, none = {0};
    if (jinja_truth(self) && fails_when_walked(j, self, wanted ? "select" : "reject", false, &none))
        return none;
    const struct jinja_list *list = jinja_truth(self) ? jinja_iterate(j, self) : out;
    size_t skip = by_attribute;
    if (by_attribute) {
        if (args->n_pos == 0)
            jinja_fail(j, "selectattr and rejectattr need the name of an attribute");
        attribute = args->pos[0];
    }
    const struct jinja_builtin *test = NULL;
    if (args->n_pos > skip) {
        struct jinja_value name = jinja_arg_str(j, args->pos[skip], "");
        test = jinja_find_test(name.s, name.n);
        if (!test)
            jinja_fail(j, "there is no test '%.*s'", jinja_shown(name.s, name.n), name.s);
    }
    struct jinja_args rest = rest_of(args, skip + 1);
    jinja_work(j, list->n * 16);
    for (size_t i = 0; i < list->n; i++) {
        struct jinja_value v = element_key(j, list->items[i], attribute, none);
        if (jinja_truth(test ? jinja_invoke(j, test, v, &rest) : v) == wanted)
            jinja_push(j, out, list->items[i]);
    }
    return jinja_wrap(JINJA_ITER, out);
}

JINJA_FILTER(select) { JINJA_UNUSED; return select_items(j, self, args, false, true); }
JINJA_FILTER(reject) { JINJA_UNUSED; return select_items(j, self, args, false, false); }
JINJA_FILTER(selectattr) { JINJA_UNUSED; return select_items(j, self, args, true, true); }
JINJA_FILTER(rejectattr) { JINJA_UNUSED; return select_items(j, self, args, true, false); }

static struct jinja_value named(const struct jinja_args *args, const char *name)
{
    for (size_t i = 0; i < args->n_named; i++)
        if (jinja_equals_cstr(args->named[i].key, name))
            return args->named[i].value;
    return (struct jinja_value){0};
}

/* map(attribute=..., default=...) or map("filter", its arguments). */
JINJA_FILTER(map)
{
    JINJA_UNUSED;
    struct jinja_list *out = jinja_list(j);
    struct jinja_value iter;
    if (jinja_truth(self) && fails_when_walked(j, self, "map", false, &iter))
        return iter;
    const struct jinja_list *list = jinja_truth(self) ? jinja_iterate(j, self) : out;
    struct jinja_value attribute = named(args, "attribute"), otherwise = named(args, "default");
    const struct jinja_builtin *filter = NULL;
    if (args->n_pos) {
        struct jinja_value name = jinja_arg_str(j, args->pos[0], "");
        filter = jinja_find_filter(name.s, name.n);
        if (!filter)
            jinja_fail(j, "there is no filter '%.*s'", jinja_shown(name.s, name.n), name.s);
    } else if (!jinja_given(attribute)) {
        jinja_fail(j, "map needs a filter or an attribute");
    }
    struct jinja_args rest = rest_of(args, 1);
    jinja_enter(j);
    for (size_t i = 0, n = list->n; i < n; i++)
        jinja_push(j, out, filter ? jinja_invoke(j, filter, list->items[i], &rest)
                                  : element_key(j, list->items[i], attribute, otherwise));
    jinja_leave(j);
    return jinja_wrap(JINJA_ITER, out);
}

/* --- taking, joining, folding --------------------------------------------------------------------------- */

JINJA_FILTER(list)
{
    JINJA_UNUSED;
    const struct jinja_list *from = jinja_iterate(j, self);
    struct jinja_list *out = jinja_list(j);
    jinja_work(j, from->n * 16);
    for (size_t i = 0; i < from->n; i++)
        jinja_push(j, out, from->items[i]);
    return jinja_wrap(JINJA_LIST, out);
}

JINJA_FILTER(items)
{
    JINJA_UNUSED;
    struct jinja_value iter;
    if (self.kind == JINJA_UNDEFINED)
        return jinja_wrap(JINJA_ITER, jinja_list(j));
    if (fails_when_walked(j, self, "items", true, &iter))
        return iter;
    struct jinja_list *out = jinja_list(j);
    for (size_t i = 0; i < self.dict->n; i++)
        jinja_push(j, out, jinja_pair_tuple(j, self.dict->pairs[i].key, self.dict->pairs[i].value));
    return jinja_wrap(JINJA_ITER, out);
}

JINJA_FILTER(first)
{
    JINJA_UNUSED;
    if (self.kind == JINJA_ITER) { /* takes one and leaves the rest */
        struct jinja_list *list = self.list;
        if (list->name)
            jinja_fail(j, "%s", list->name);
        if (list->n == 0)
            return jinja_undefined();
        list->n--;
        list->cap = 0; /* items no longer begins at its allocation */
        return *list->items++;
    }
    const struct jinja_list *list = jinja_iterate(j, self);
    return list->n ? list->items[0] : jinja_undefined();
}

JINJA_FILTER(last)
{
    JINJA_UNUSED;
    if (self.kind == JINJA_ITER)
        jinja_fail(j, "last does not work on a generator; put |list before it");
    if (self.kind == JINJA_SET)
        jinja_fail(j, "a set has no last member; sort it");
    const struct jinja_list *list = jinja_iterate(j, self);
    return list->n ? list->items[list->n - 1] : jinja_undefined();
}

JINJA_FILTER(reverse)
{
    JINJA_UNUSED;
    struct jinja_list *out = jinja_list(j);
    const struct jinja_list *list = jinja_iterate(j, self);
    jinja_work(j, list->n * 16);
    for (size_t i = list->n; i > 0; i--)
        jinja_push(j, out, list->items[i - 1]);
    if (self.kind == JINJA_STRING)
        return jinja_join(j, jinja_str("", 0), out);
    /* What cannot be walked backwards, such as the result of select, has become a list by now. */
    return jinja_wrap(self.kind == JINJA_ITER || self.kind == JINJA_SET ? JINJA_LIST : JINJA_ITER, out);
}

struct jinja_value jinja_join_html(struct jinja *j, struct jinja_value sep, const struct jinja_list *parts)
{
    struct jinja_list *escaped = jinja_list(j);
    for (size_t i = 0; i < parts->n; i++)
        jinja_push(j, escaped, jinja_as_html(j, parts->items[i]));
    struct jinja_value v = jinja_join(j, jinja_as_html(j, sep), escaped);
    v.flag = 1;
    return v;
}

/* If autoescape is on and one element is marked as HTML, so is the result, and the others are escaped. */
static struct jinja_value join(struct jinja *j, struct jinja_value sep, const struct jinja_list *list)
{
    bool html = j->autoescape && sep.flag;
    for (size_t i = 0; j->autoescape && i < list->n; i++)
        html |= list->items[i].kind == JINJA_STRING && list->items[i].flag;
    return html ? jinja_join_html(j, sep, list) : jinja_join(j, sep, list);
}

JINJA_FILTER(join)
{
    JINJA_UNUSED;
    struct jinja_value sep = jinja_given(arg[0]) ? jinja_to_string(j, arg[0]) : jinja_str("", 0), none = {0};
    const struct jinja_list *list = jinja_iterate(j, self);
    if (!jinja_given(arg[1]))
        return join(j, sep, list);
    struct jinja_list *keys = jinja_list(j);
    for (size_t i = 0; i < list->n; i++)
        jinja_push(j, keys, element_key(j, list->items[i], arg[1], none));
    return join(j, sep, keys);
}

/* Looks random, but picks the same at each rendering, so that an answer to the same messages begins with the same
 * prompt. */
JINJA_FILTER(random)
{
    JINJA_UNUSED;
    if (self.kind != JINJA_ITER && jinja_length(j, self) == 0)
        return jinja_undefined();
    if (self.kind == JINJA_DICT || self.kind == JINJA_VIEW || self.kind == JINJA_SET || self.kind == JINJA_ITER)
        jinja_fail(j, "random needs a list or a string, not a %s", jinja_type_name(self));
    const struct jinja_list *list = jinja_iterate(j, self);
    j->random = j->random * 1664525u + 1013904223u;
    return list->items[(uint64_t)j->random * list->n >> 32];
}

JINJA_FILTER(sum)
{
    JINJA_UNUSED;
    struct jinja_value total = jinja_given(arg[1]) ? arg[1] : jinja_int(0), none = {0};
    const struct jinja_list *list = jinja_iterate(j, self);
    if (total.kind == JINJA_STRING)
        jinja_fail(j, "sum does not add strings; use join");
    jinja_work(j, list->n * 16);
    for (size_t i = 0; i < list->n; i++)
        total = jinja_operate(j, JINJA_OP_ADD, total, element_key(j, list->items[i], arg[0], none));
    return total;
}

/* Rows of a given length; the last is padded if there is a value for that. */
JINJA_FILTER(batch)
{
    JINJA_UNUSED;
    struct jinja_value iter;
    if (fails_when_walked(j, self, "batch", false, &iter))
        return iter;
    const struct jinja_list *list = jinja_iterate(j, self);
    struct jinja_list *out = jinja_list(j), *row = NULL;
    int64_t n = jinja_arg_int(j, arg[0], 0);
    if (n < 1)
        jinja_fail(j, "batch needs a length of 1 or more");
    for (size_t i = 0; i < list->n; i++) {
        if (!row || row->n == (size_t)n) {
            row = jinja_list(j);
            jinja_push(j, out, jinja_wrap(JINJA_LIST, row));
        }
        jinja_push(j, row, list->items[i]);
    }
    bool fill = row && jinja_given(arg[1]) && arg[1].kind != JINJA_NONE;
    while (fill && row->n < (size_t)n) {
        jinja_work(j, 16);
        jinja_push(j, row, arg[1]);
    }
    return jinja_wrap(JINJA_ITER, out);
}

/* A given number of columns; the first ones are one longer if it does not divide. */
JINJA_FILTER(slice)
{
    JINJA_UNUSED;
    struct jinja_value iter;
    if (fails_when_walked(j, self, "slice", false, &iter))
        return iter;
    const struct jinja_list *list = jinja_iterate(j, self);
    struct jinja_list *out = jinja_list(j);
    int64_t slices = jinja_arg_int(j, arg[0], 0);
    if (slices < 1 || slices > JINJA_MAX_RANGE)
        jinja_fail(j, "slice needs a number of slices from 1 to %d", JINJA_MAX_RANGE);
    size_t each = list->n / (size_t)slices, longer = list->n % (size_t)slices, at = 0;
    for (size_t k = 0; k < (size_t)slices; k++) {
        struct jinja_list *column = jinja_list(j);
        for (size_t end = at + each + (k < longer); at < end; at++)
            jinja_push(j, column, list->items[at]);
        if (jinja_given(arg[1]) && arg[1].kind != JINJA_NONE && k >= longer)
            jinja_push(j, column, arg[1]);
        jinja_push(j, out, jinja_wrap(JINJA_LIST, column));
    }
    return jinja_wrap(JINJA_ITER, out);
}

const struct jinja_builtin jinja_sequence_filters[] = {
    {"batch", filter_batch, "linecount fill_with", 1},
    {"dictsort", filter_dictsort, "case_sensitive by reverse", 0},
    {"first", filter_first, "", 0},
    {"groupby", filter_groupby, "attribute default case_sensitive", 1},
    {"items", filter_items, "", 0},
    {"join", filter_join, "d attribute", 0},
    {"last", filter_last, "", 0},
    {"list", filter_list, "", 0},
    {"map", filter_map, NULL, 0},
    {"max", filter_max, "case_sensitive attribute", 0},
    {"min", filter_min, "case_sensitive attribute", 0},
    {"random", filter_random, "", 0},
    {"reject", filter_reject, NULL, 0},
    {"rejectattr", filter_rejectattr, NULL, 0},
    {"reverse", filter_reverse, "", JINJA_KEEPS},
    {"select", filter_select, NULL, 0},
    {"selectattr", filter_selectattr, NULL, 0},
    {"slice", filter_slice, "slices fill_with", 1},
    {"sort", filter_sort, "reverse case_sensitive attribute", 0},
    {"sum", filter_sum, "attribute start", 0},
    {"unique", filter_unique, "case_sensitive attribute", 0},
    {NULL, NULL, NULL, 0},
};
