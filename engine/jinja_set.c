/* jinja_set.c - sets, and views of dicts where they behave like sets. Templates cannot write sets: they get one by
 * subtracting from the keys or items of a dict, and from methods of such a set.
 *
 * A set's members are in insertion order, as a list without duplicates; Python's have no order. */
#include <string.h>

#include "engine/jinja_ast.h"
#include "engine/jinja_eval.h"

bool jinja_is_set(struct jinja_value v)
{
    return v.kind == JINJA_SET || (v.kind == JINJA_VIEW && strcmp(v.list->name, "dict_values") != 0);
}

/* For membership tests: the members as keys of a dict, unless they are items, whose values need not be hashable. */
struct members {
    const struct jinja_list *list;
    struct jinja_dict *keys; /* or NULL */
};

static struct members members_of(struct jinja *j, struct jinja_value v)
{
    struct members m = {.list = jinja_iterate(j, v)};
    if (v.kind == JINJA_VIEW && strcmp(v.list->name, "dict_items") == 0)
        return m;
    m.keys = jinja_dict(j);
    for (size_t i = 0; i < m.list->n; i++)
        jinja_dict_set(j, m.keys, m.list->items[i], jinja_none());
    return m;
}

static bool has(struct jinja *j, const struct members *m, struct jinja_value v)
{
    if (m->keys)
        return jinja_dict_find(j, m->keys, v) != NULL;
    for (size_t i = 0; i < m->list->n; i++)
        if (jinja_equal(j, m->list->items[i], v))
            return true;
    return false;
}

/* Whether all members of a are in b. */
static bool within(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    const struct members m = members_of(j, b);
    const struct jinja_list *list = jinja_iterate(j, a);
    for (size_t i = 0; i < list->n; i++)
        if (!has(j, &m, list->items[i]))
            return false;
    return true;
}

bool jinja_sets_equal(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    return a.list->n == b.list->n && within(j, a, b);
}

bool jinja_sets_ordered(struct jinja *j, int op, struct jinja_value a, struct jinja_value b)
{
    const size_t n_a = a.list->n, n_b = b.list->n;
    switch (op) {
    case JINJA_OP_LT: return n_a < n_b && within(j, a, b);
    case JINJA_OP_LE: return n_a <= n_b && within(j, a, b);
    case JINJA_OP_GT: return n_a > n_b && within(j, b, a);
    default: return n_a >= n_b && within(j, b, a);
    }
}

/* --- making them ---------------------------------------------------------------------------------------- */

/* A set while it is built. */
struct making {
    struct jinja_list *list;
    struct jinja_dict *seen;
};

static struct making begin(struct jinja *j)
{
    return (struct making){.list = jinja_list(j), .seen = jinja_dict(j)};
}

static void put(struct jinja *j, struct making *m, struct jinja_value v)
{
    if (jinja_dict_find(j, m->seen, v))
        return;
    jinja_dict_set(j, m->seen, v, jinja_none());
    jinja_push(j, m->list, v);
}

/* The members of a that are (wanted) or are not in `in`. */
static struct jinja_value chosen(struct jinja *j, struct jinja_value a, struct jinja_value in, bool wanted)
{
    struct making out = begin(j);
    const struct jinja_list *list = jinja_iterate(j, a), *others = jinja_iterate(j, in);
    struct jinja_dict *keys = jinja_dict(j);
    for (size_t i = 0; i < others->n; i++)
        jinja_dict_set(j, keys, others->items[i], jinja_none());
    for (size_t i = 0; i < list->n; i++)
        if ((jinja_dict_find(j, keys, list->items[i]) != NULL) == wanted)
            put(j, &out, list->items[i]);
    return jinja_wrap(JINJA_SET, out.list);
}

static struct jinja_value united(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    struct making out = begin(j);
    const struct jinja_list *lists[] = {jinja_iterate(j, a), jinja_iterate(j, b)};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < lists[k]->n; i++)
            put(j, &out, lists[k]->items[i]);
    return jinja_wrap(JINJA_SET, out.list);
}

struct jinja_value jinja_sets_subtract(struct jinja *j, struct jinja_value a, struct jinja_value b)
{
    return chosen(j, a, b, false);
}

/* --- methods ------------------------------------------------------------------------------------------------ */

#define METHOD(id)                                                                                                    \
    static struct jinja_value id(struct jinja *j, struct jinja_value self, const struct jinja_value *arg,             \
                                 const struct jinja_args *args)
#define UNUSED (void)j, (void)self, (void)arg, (void)args

static void no_names(struct jinja *j, const struct jinja_args *args)
{
    if (args->n_named)
        jinja_fail(j, "methods of sets take no arguments with names");
}

METHOD(set_copy) { UNUSED; return united(j, self, jinja_undefined()); }

METHOD(set_union)
{
    UNUSED;
    struct jinja_value made = set_copy(j, self, arg, args);
    no_names(j, args);
    for (size_t i = 0; i < args->n_pos; i++)
        made = united(j, made, args->pos[i]);
    return made;
}

METHOD(set_intersection)
{
    UNUSED;
    struct jinja_value made = set_copy(j, self, arg, args);
    no_names(j, args);
    for (size_t i = 0; i < args->n_pos; i++)
        made = chosen(j, made, args->pos[i], true);
    return made;
}

METHOD(set_difference)
{
    UNUSED;
    struct jinja_value made = set_copy(j, self, arg, args);
    no_names(j, args);
    for (size_t i = 0; i < args->n_pos; i++)
        made = chosen(j, made, args->pos[i], false);
    return made;
}

METHOD(set_symmetric_difference)
{
    UNUSED;
    const struct jinja_value other = united(j, arg[0], jinja_undefined());
    return united(j, chosen(j, self, other, false), chosen(j, other, self, false));
}

METHOD(set_isdisjoint)
{
    UNUSED;
    const struct members m = members_of(j, self);
    const struct jinja_list *list = jinja_iterate(j, arg[0]);
    for (size_t i = 0; i < list->n; i++)
        if (has(j, &m, list->items[i]))
            return jinja_bool(false);
    return jinja_bool(true);
}

METHOD(set_issubset)
{
    UNUSED;
    return jinja_bool(within(j, self, united(j, arg[0], jinja_undefined())));
}

METHOD(set_issuperset)
{
    UNUSED;
    return jinja_bool(within(j, united(j, arg[0], jinja_undefined()), self));
}

const struct jinja_builtin jinja_set_methods[] = {
    {"copy", set_copy, "", 0},
    {"union", set_union, NULL, 0},
    {"intersection", set_intersection, NULL, 0},
    {"difference", set_difference, NULL, 0},
    {"symmetric_difference", set_symmetric_difference, "other", 1},
    {"isdisjoint", set_isdisjoint, "other", 1},
    {"issubset", set_issubset, "other", 1},
    {"issuperset", set_issuperset, "other", 1},
    {NULL, NULL, NULL, 0},
};

const struct jinja_builtin jinja_view_methods[] = {
    {"isdisjoint", set_isdisjoint, "other", 1},
    {NULL, NULL, NULL, 0},
};
