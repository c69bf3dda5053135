/* schema.c - JSON Schema (draft 7, and what later drafts share with it) as a grammar.
 *
 * A schema is flattened to facts: what its keywords, $ref and allOf say together about one value. anyOf and oneOf make
 * several of them, one for each choice. Every set of facts becomes an expression, and each place of the schema a rule,
 * so that schemas may refer to themselves.
 *
 * A grammar accepts no text that the schema refuses. It may accept fewer: properties come in the schema's order, an
 * object with `properties` has no others unless additionalProperties says so, and the type follows from the keywords
 * where none is given. What cannot be expressed is an error that names the keyword; doc/grammar.md has the list. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/schema_int.h"

enum { SCHEMAS_MOST = 24, CHOICES_MOST = 512, ALTS_MOST = 6, DEPTH_MOST = 120, REFS_MOST = 64, PARTS_MOST = 12 };

/* Schemas that hold together for one value. */
struct all_of {
    const cJSON *s[SCHEMAS_MOST];
    int n;
};

struct facts {
    unsigned types, groups;     /* groups: types that keywords are about */
    bool typed;                 /* the types were given */
    struct pp_bounds bounds;
    double least_chars, most_chars, least_items, most_items, least_props, most_props; /* most: INFINITY for no limit */
    const cJSON *pattern, *format, *values[PARTS_MOST]; /* values: lists of enum, or a const */
    int n_values;
    const cJSON *arrays[PARTS_MOST], *objects[PARTS_MOST]; /* schemas with keywords about arrays, objects */
    int n_arrays, n_objects;
    const cJSON *alts[ALTS_MOST]; /* anyOf and oneOf that are not chosen from yet */
    const cJSON *chosen[PARTS_MOST]; /* ... that a choice was made from */
    int n_alts, n_chosen;
};
struct choices {
    struct facts *f;            /* [n] */
    int *member;                /* of the oneOf that was expanded last */
    size_t n, cap, cap_member;
};

struct memo {
    struct all_of key;
    uint32_t rule;
};
struct lengths {
    uint32_t least, most, rule;
};
struct maker {
    struct pp_builder b;
    const cJSON *root;
    const char *name;
    struct memo *memos;
    size_t n_memos, cap_memos;
    uint32_t space;             /* white space; PP_GX_EMPTY: not made yet */
    struct lengths *strings;    /* [n_strings]: rules of strings without other restrictions */
    size_t n_strings, cap_strings;
    unsigned depth, work;
};

/* --- errors ------------------------------------------------------------------------------------------------------ */

static void escape_pointer(struct pp_buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '~' || *s == '/')
            pp_buf_str(out, *s == '~' ? "~0" : "~1");
        else
            pp_buf_char(out, *s);
    }
}

static bool find_pointer(const cJSON *at, const cJSON *sought, struct pp_buf *out, unsigned depth)
{
    const size_t len = out->len;
    const cJSON *child;
    int i = 0;
    if (at == sought)
        return true;
    if (depth > 500)
        return false;
    cJSON_ArrayForEach(child, at)
    {
        pp_buf_char(out, '/');
        if (child->string)
            escape_pointer(out, child->string);
        else
            pp_buf_fmt(out, "%d", i);
        i++;
        if (find_pointer(child, sought, out, depth + 1))
            return true;
        if (out->data)
            out->data[out->len = len] = '\0';
    }
    return false;
}

/* An error about a keyword; its place is told by a JSON pointer. */
static void wrong(struct maker *m, enum pp_code code, const cJSON *keyword, const char *what)
{
    struct pp_buf pointer = {0};
    if (m->b.code)
        return;
    find_pointer(m->root, keyword, &pointer, 0);
    pp_gb_fail(&m->b, code, "%.100s: #%.150s: %s", m->name, pp_buf_cstr(&pointer), what);
    pp_buf_free(&pointer);
}

/* --- flattening -------------------------------------------------------------------------------------------------- */

static unsigned type_named(const char *name)
{
    static const struct {
        const char *name;
        unsigned types;
    } types[] = {{"null", PP_JSON_NULL},     {"boolean", PP_JSON_BOOL},    {"object", PP_JSON_OBJECT},
                 {"array", PP_JSON_ARRAY},   {"string", PP_JSON_STRING},   {"number", PP_JSON_NUMBER},
                 {"integer", PP_JSON_INTEGER}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (name && strcmp(name, types[i].name) == 0)
            return types[i].types;
    return 0;
}

static unsigned types_of(struct maker *m, const cJSON *k)
{
    unsigned types = 0;
    const cJSON *item;
    if (cJSON_IsString(k))
        types = type_named(k->valuestring);
    cJSON_ArrayForEach(item, k)
    {
        const unsigned t = cJSON_IsString(item) ? type_named(item->valuestring) : 0;
        if (!t)
            wrong(m, PP_ERR_FORMAT, item, "there is no such type");
        types |= t;
    }
    if (!types)
        wrong(m, PP_ERR_FORMAT, k, "there is no such type");
    return types;
}

static unsigned type_of(const cJSON *v)
{
    return cJSON_IsNull(v) ? PP_JSON_NULL : cJSON_IsBool(v) ? PP_JSON_BOOL : cJSON_IsObject(v) ? PP_JSON_OBJECT
           : cJSON_IsArray(v)  ? PP_JSON_ARRAY
           : cJSON_IsString(v) ? PP_JSON_STRING
           : v->valuedouble == floor(v->valuedouble) ? PP_JSON_INTEGER
                                                     : PP_JSON_FRACTION;
}

static bool is_schema(const cJSON *s)
{
    return cJSON_IsObject(s) || cJSON_IsBool(s);
}

/* What "#/a/b" refers to. A schema with an $id on the way would change what references below it mean. */
static const cJSON *resolve(struct maker *m, const cJSON *ref)
{
    const char *at = cJSON_IsString(ref) ? ref->valuestring : "";
    const cJSON *s = m->root;
    if (at[0] != '#' || (at[1] && at[1] != '/')) {
        wrong(m, PP_ERR_UNSUPPORTED, ref, "only references within the schema can be followed, such as #/definitions/x");
        return NULL;
    }
    for (at++; *at == '/' && s;) {
        struct pp_buf name = {0};
        for (at++; *at && *at != '/'; at++) {
            unsigned code;
            if (*at == '~' && (at[1] == '0' || at[1] == '1'))
                pp_buf_char(&name, *++at == '0' ? '~' : '/');
            else if (*at == '%' && sscanf(at + 1, "%2x", &code) == 1 && code && at[2])
                pp_buf_char(&name, (char)code), at += 2;
            else
                pp_buf_char(&name, *at);
        }
        if (cJSON_IsArray(s))
            s = cJSON_GetArrayItem(s, atoi(pp_buf_cstr(&name)));
        else
            s = pp_json_member(s, pp_buf_cstr(&name));
        pp_buf_free(&name);
        if (s && cJSON_IsString(pp_json_member(s, "$id"))) {
            wrong(m, PP_ERR_UNSUPPORTED, pp_json_member(s, "$id"), "$id within a schema is not supported");
            return NULL;
        }
    }
    if (!s || !is_schema(s))
        wrong(m, PP_ERR_FORMAT, ref, "this reference leads to no schema");
    return s;
}

static bool count_of(struct maker *m, const cJSON *k, double *out)
{
    if (!cJSON_IsNumber(k) || k->valuedouble < 0 || k->valuedouble != floor(k->valuedouble)) {
        wrong(m, PP_ERR_FORMAT, k, "this must be a whole number, not negative");
        return false;
    }
    *out = k->valuedouble;
    return true;
}

/* minLength, maxLength and the like: narrows the facts least .. most. */
static void count_bound(struct maker *m, const cJSON *k, double *least, double *most)
{
    const bool is_min = k->string[1] == 'i';
    double v;
    if (!count_of(m, k, &v))
        return;
    if (is_min && v > *least)
        *least = v;
    if (!is_min && v < *most)
        *most = v;
}

static void add_bound(struct maker *m, const cJSON *k, struct pp_bounds *r, bool is_min, bool excluded)
{
    const double v = k->valuedouble;
    if (!cJSON_IsNumber(k)) {
        wrong(m, cJSON_IsBool(k) ? PP_ERR_UNSUPPORTED : PP_ERR_FORMAT, k, "this must be a number");
    } else if (is_min && (!r->has_min || v > r->min || (v == r->min && excluded))) {
        r->has_min = true;
        r->min = v;
        r->above = excluded;
    } else if (!is_min && (!r->has_max || v < r->max || (v == r->max && excluded))) {
        r->has_max = true;
        r->max = v;
        r->below = excluded;
    }
}

static void remember(struct maker *m, const cJSON **list, int *n, int most, const cJSON *s, const cJSON *k)
{
    for (int i = 0; i < *n; i++)
        if (list[i] == s)
            return;
    if (*n == most)
        wrong(m, PP_ERR_UNSUPPORTED, k, "too many schemas are combined here");
    else
        list[(*n)++] = s;
}

static void flatten(struct maker *m, const cJSON *s, struct facts *f, unsigned depth);

/* `not` for what complements of types can express. */
static void flatten_not(struct maker *m, const cJSON *k, struct facts *f)
{
    const cJSON *only = k->child;
    if (cJSON_IsFalse(k))
        return;
    if (cJSON_IsTrue(k) || (cJSON_IsObject(k) && !only)) {
        f->types = 0;
        return;
    }
    if (!cJSON_IsObject(k) || only->next || strcmp(only->string, "type") != 0) {
        wrong(m, PP_ERR_UNSUPPORTED, k, "not is supported only for types: {\"not\": {\"type\": ...}}");
        return;
    }
    const unsigned types = types_of(m, only);
    if ((types & PP_JSON_NUMBER) == PP_JSON_INTEGER) {
        wrong(m, PP_ERR_UNSUPPORTED, k, "not integer cannot be expressed");
        return;
    }
    f->types &= ~types;
    f->typed = true;
}

static bool is_empty_or_true(const cJSON *k)
{
    return cJSON_IsTrue(k) || ((cJSON_IsObject(k) || cJSON_IsArray(k)) && !k->child);
}

/* Keywords that would need what a grammar cannot do, unless they have no effect. */
static bool is_unsupported(const cJSON *k)
{
    static const char *const names[] = {
        "patternProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas",
        "if", "contains", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "disallow",
        "extends", "divisibleBy"};
    if (strcmp(k->string, "uniqueItems") == 0)
        return !cJSON_IsFalse(k);
    if (strcmp(k->string, "multipleOf") == 0)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(k->string, names[i]) == 0)
            return !is_empty_or_true(k) || strcmp(names[i], "contains") == 0 || names[i][0] == '$' ||
                   strcmp(names[i], "if") == 0;
    return false;
}

static void flatten_array_of_all(struct maker *m, const cJSON *k, struct facts *f, unsigned depth)
{
    const cJSON *item;
    if (!cJSON_IsArray(k) || !k->child)
        wrong(m, PP_ERR_FORMAT, k, "this must be a list of schemas");
    cJSON_ArrayForEach(item, k)
        flatten(m, item, f, depth);
}

static void flatten_keyword(struct maker *m, const cJSON *s, const cJSON *k, struct facts *f, unsigned depth)
{
    const char *name = k->string;
    unsigned group = 0;
#define IS(text) (strcmp(name, text) == 0)
    if (IS("type")) {
        f->types &= types_of(m, k);
        f->typed = true;
    } else if (IS("enum") || IS("const")) {
        if (IS("enum") && !cJSON_IsArray(k))
            wrong(m, PP_ERR_FORMAT, k, "this must be a list of values");
        remember(m, f->values, &f->n_values, PARTS_MOST, k, k);
    } else if (IS("allOf")) {
        flatten_array_of_all(m, k, f, depth);
    } else if (IS("anyOf") || IS("oneOf")) {
        if (!cJSON_IsArray(k) || !k->child)
            wrong(m, PP_ERR_FORMAT, k, "this must be a list of schemas");
        for (int i = 0; i < f->n_chosen; i++)
            if (f->chosen[i] == k)
                wrong(m, PP_ERR_UNSUPPORTED, k, "a choice that leads back to itself is not supported");
        remember(m, f->alts, &f->n_alts, ALTS_MOST, k, k);
    } else if (IS("$ref")) {
        const cJSON *target = resolve(m, k);
        if (target)
            flatten(m, target, f, depth);
    } else if (IS("not")) {
        flatten_not(m, k, f);
    } else if (IS("minimum") || IS("exclusiveMinimum")) {
        add_bound(m, k, &f->bounds, true, name[0] == 'e');
        group = PP_JSON_NUMBER;
    } else if (IS("maximum") || IS("exclusiveMaximum")) {
        add_bound(m, k, &f->bounds, false, name[0] == 'e');
        group = PP_JSON_NUMBER;
    } else if (IS("minLength") || IS("maxLength")) {
        count_bound(m, k, &f->least_chars, &f->most_chars);
        group = PP_JSON_STRING;
    } else if (IS("pattern") || IS("format")) {
        const cJSON **which = IS("pattern") ? &f->pattern : &f->format;
        if (!cJSON_IsString(k))
            wrong(m, PP_ERR_FORMAT, k, "this must be a string");
        else if (*which && strcmp((*which)->valuestring, k->valuestring) != 0)
            wrong(m, PP_ERR_UNSUPPORTED, k, "a second pattern or format for the same string is not supported");
        *which = k;
        group = PP_JSON_STRING;
    } else if (IS("minItems") || IS("maxItems")) {
        count_bound(m, k, &f->least_items, &f->most_items);
        group = PP_JSON_ARRAY;
    } else if (IS("items") || IS("prefixItems") || IS("additionalItems")) {
        remember(m, f->arrays, &f->n_arrays, PARTS_MOST, s, k);
        group = PP_JSON_ARRAY;
    } else if (IS("minProperties") || IS("maxProperties")) {
        count_bound(m, k, &f->least_props, &f->most_props);
        group = PP_JSON_OBJECT;
    } else if (IS("properties") || IS("required") || IS("additionalProperties")) {
        remember(m, f->objects, &f->n_objects, PARTS_MOST, s, k);
        group = PP_JSON_OBJECT;
    } else if (IS("$id") && s != m->root) {
        wrong(m, PP_ERR_UNSUPPORTED, k, "$id within a schema is not supported");
    } else if (is_unsupported(k) && !(IS("if") && !pp_json_member(s, "then") && !pp_json_member(s, "else"))) {
        wrong(m, PP_ERR_UNSUPPORTED, k, "a grammar cannot express this keyword; remove it, or check the answer "
                                        "afterwards");
    }
#undef IS
    f->groups |= group;
}

static void flatten(struct maker *m, const cJSON *s, struct facts *f, unsigned depth)
{
    const cJSON *k;
    if (m->b.code)
        return;
    if (depth > REFS_MOST) {
        wrong(m, PP_ERR_UNSUPPORTED, s, "references and allOf are nested too deeply, or in a circle");
        return;
    }
    if (cJSON_IsTrue(s))
        return;
    if (cJSON_IsFalse(s)) {
        f->types = 0;
        f->typed = true;
        return;
    }
    if (!cJSON_IsObject(s)) {
        wrong(m, PP_ERR_FORMAT, s, "a schema must be an object, true or false");
        return;
    }
    cJSON_ArrayForEach(k, s)
        flatten_keyword(m, s, k, f, depth + 1);
}

/* --- choices ----------------------------------------------------------------------------------------------------- */

static bool disjoint(struct maker *m, const struct facts *a, const struct facts *b, unsigned depth);

static void add_choice(struct maker *m, struct choices *out, const struct facts *f, int member)
{
    if (m->b.code)
        return;
    if (out->n == CHOICES_MOST) {
        pp_gb_fail(&m->b, PP_ERR_UNSUPPORTED, "%.100s: anyOf and oneOf are combined in more than %d ways", m->name,
                   CHOICES_MOST);
        return;
    }
    if (pp_grow(&out->f, &out->cap, out->n + 1, sizeof *out->f) != 0 ||
        pp_grow(&out->member, &out->cap_member, out->n + 1, sizeof *out->member) != 0) {
        pp_gb_fail(&m->b, PP_ERR_NOMEM, "out of memory for the grammar");
        return;
    }
    out->member[out->n] = member;
    out->f[out->n++] = *f;
}

static void choices_free(struct choices *c)
{
    pp_free(c->f);
    pp_free(c->member);
}

/* All combinations of what anyOf and oneOf leave open. The choices of a oneOf must exclude each other: a grammar cannot
 * tell that a second one fits, too. */
static void choose(struct maker *m, const struct facts *f, struct choices *out, int member, unsigned depth)
{
    if (m->b.code || depth > 2 * ALTS_MOST + REFS_MOST)
        return;
    if (!f->n_alts) {
        add_choice(m, out, f, member);
        return;
    }
    struct facts *each = pp_malloc(sizeof *each);
    struct choices own = {0};
    const cJSON *alt = f->alts[f->n_alts - 1], *item;
    int i = 0;
    if (!each) {
        pp_gb_fail(&m->b, PP_ERR_NOMEM, "out of memory for the grammar");
        return;
    }
    cJSON_ArrayForEach(item, alt)
    {
        *each = *f;
        each->n_alts--;
        remember(m, each->chosen, &each->n_chosen, PARTS_MOST, alt, alt);
        flatten(m, item, each, 1);
        choose(m, each, &own, i++, depth + 1);
    }
    for (size_t x = 0; strcmp(alt->string, "oneOf") == 0 && x < own.n && !m->b.code; x++)
        for (size_t y = 0; y < x && !m->b.code; y++)
            if (own.member[x] != own.member[y] &&
                !(disjoint(m, &own.f[x], &own.f[y], 0) && disjoint(m, &own.f[y], &own.f[x], 0)))
                wrong(m, PP_ERR_UNSUPPORTED, alt, "a value could fit several of these schemas, which oneOf forbids; "
                                                  "use anyOf, or tell them apart by a required property with a const");
    for (size_t x = 0; x < own.n; x++)
        add_choice(m, out, &own.f[x], member);
    choices_free(&own);
    pp_free(each);
}

static void facts_of(struct maker *m, const struct all_of *all, struct choices *out)
{
    struct facts *f = pp_calloc(1, sizeof *f);
    if (!f) {
        pp_gb_fail(&m->b, PP_ERR_NOMEM, "out of memory for the grammar");
        return;
    }
    *f = (struct facts){.types = PP_JSON_ANY, .most_chars = INFINITY, .most_items = INFINITY, .most_props = INFINITY};
    if (++m->work > 100000)
        pp_gb_fail(&m->b, PP_ERR_UNSUPPORTED, "%.100s is too complicated for a grammar", m->name);
    for (int i = 0; i < all->n; i++)
        flatten(m, all->s[i], f, 0);
    choose(m, f, out, 0, 0);
    pp_free(f);
}

/* The types of what is generated: where none is given, those that the keywords are about. */
static unsigned made_types(const struct facts *f)
{
    return f->typed || f->n_values || !f->groups ? f->types : f->types & f->groups;
}

/* --- parts of arrays and objects --------------------------------------------------------------------------------- */

static void all_add(struct maker *m, struct all_of *all, const cJSON *s)
{
    for (int i = 0; i < all->n; i++)
        if (all->s[i] == s)
            return;
    if (all->n == SCHEMAS_MOST)
        wrong(m, PP_ERR_UNSUPPORTED, s, "too many schemas are combined here");
    else
        all->s[all->n++] = s;
}

/* What one schema says about the item at this index; NULL: nothing. */
static const cJSON *item_schema(const cJSON *s, int index, bool *prefixed)
{
    const cJSON *prefix = pp_json_member(s, "prefixItems"), *items = pp_json_member(s, "items"), *rest = items;
    if (!prefix && cJSON_IsArray(items)) { /* draft 7 */
        prefix = items;
        rest = pp_json_member(s, "additionalItems");
    }
    *prefixed = prefix && index < cJSON_GetArraySize(prefix);
    return *prefixed ? cJSON_GetArrayItem(prefix, index) : rest;
}

static struct all_of item_all(struct maker *m, const struct facts *f, int index, bool *prefixed)
{
    struct all_of all = {.n = 0};
    *prefixed = false;
    for (int i = 0; i < f->n_arrays; i++) {
        bool one;
        const cJSON *s = item_schema(f->arrays[i], index, &one);
        *prefixed = *prefixed || one;
        if (s)
            all_add(m, &all, s);
    }
    return all;
}

static struct all_of property_all(struct maker *m, const struct facts *f, const char *name)
{
    struct all_of all = {.n = 0};
    for (int i = 0; i < f->n_objects; i++) {
        const cJSON *own = name ? pp_json_member(pp_json_member(f->objects[i], "properties"), name) : NULL;
        const cJSON *more = pp_json_member(f->objects[i], "additionalProperties");
        if (own || more)
            all_add(m, &all, own ? own : more);
    }
    return all;
}

/* Whether objects have no other properties than those that are named. */
static bool is_closed(const struct facts *f)
{
    bool named = false, opened = false;
    for (int i = 0; i < f->n_objects; i++) {
        const cJSON *more = pp_json_member(f->objects[i], "additionalProperties");
        if (cJSON_IsFalse(more))
            return true;
        opened = opened || more;
        named = named || pp_json_member(f->objects[i], "properties");
    }
    return named && !opened;
}

static bool is_required(const struct facts *f, const char *name)
{
    const cJSON *item;
    for (int i = 0; i < f->n_objects; i++)
        cJSON_ArrayForEach(item, pp_json_member(f->objects[i], "required"))
            if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0)
                return true;
    return false;
}

static bool has_property(const struct facts *f, const char *name)
{
    for (int i = 0; i < f->n_objects; i++)
        if (pp_json_member(pp_json_member(f->objects[i], "properties"), name))
            return true;
    return false;
}

/* --- values that fit --------------------------------------------------------------------------------------------- */

static bool fits_all(struct maker *m, const struct all_of *all, const cJSON *v, unsigned depth);

static size_t characters(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

/* Whether a string matches what a maker of expressions describes. */
static bool string_matches(struct maker *m, const cJSON *v, const cJSON *pattern, const cJSON *format)
{
    struct pp_builder b;
    struct pp_grammar *g = NULL;
    struct pp_error err;
    uint32_t least, most;
    const char *bad = NULL;
    bool yes = false;
    char *text = cJSON_PrintUnformatted(v);
    pp_gb_init(&b);
    const uint32_t rule = pp_gb_rule(&b, NULL, 0);
    uint32_t x = pattern ? pp_schema_pattern(&b, pattern->valuestring, &least, &most, &bad)
                         : pp_schema_format(&b, format->valuestring);
    pp_gb_define(&b, rule, pp_gb_seq(&b, pp_gb_str(&b, "\""), pp_gb_seq(&b, x, pp_gb_str(&b, "\""))));
    if (!text || bad || pp_gb_compile(&b, false, &g, &err) || pp_grammar_matches(g, text, strlen(text), &yes, &err))
        yes = false;
    if (bad)
        wrong(m, PP_ERR_UNSUPPORTED, pattern, bad);
    pp_grammar_free(g);
    pp_gb_free(&b);
    cJSON_free(text);
    return yes;
}

static bool array_fits(struct maker *m, const struct facts *f, const cJSON *v, unsigned depth)
{
    const int n = cJSON_GetArraySize(v);
    bool prefixed;
    if (n < f->least_items || n > f->most_items)
        return false;
    for (int i = 0; i < n; i++) {
        const struct all_of all = item_all(m, f, i, &prefixed);
        if (!fits_all(m, &all, cJSON_GetArrayItem(v, i), depth))
            return false;
    }
    return true;
}

static bool object_fits(struct maker *m, const struct facts *f, const cJSON *v, unsigned depth)
{
    const cJSON *item;
    const int n = cJSON_GetArraySize(v);
    if (n < f->least_props || n > f->most_props)
        return false;
    for (int i = 0; i < f->n_objects; i++)
        cJSON_ArrayForEach(item, pp_json_member(f->objects[i], "required"))
            if (!cJSON_IsString(item) || !pp_json_member(v, item->valuestring))
                return false;
    cJSON_ArrayForEach(item, v)
    {
        const struct all_of all = property_all(m, f, item->string);
        if (!fits_all(m, &all, item, depth))
            return false;
    }
    return true;
}

static bool in_values(const cJSON *k, const cJSON *v)
{
    const cJSON *item;
    if (strcmp(k->string, "const") == 0)
        return cJSON_Compare(k, v, true);
    cJSON_ArrayForEach(item, k)
        if (cJSON_Compare(item, v, true))
            return true;
    return false;
}

/* Whether a value fits; not narrowed as what is generated. */
static bool fits(struct maker *m, const struct facts *f, const cJSON *v, unsigned depth)
{
    const unsigned type = type_of(v);
    const struct pp_bounds *r = &f->bounds;
    if (!(f->types & type))
        return false;
    for (int i = 0; i < f->n_values; i++)
        if (!in_values(f->values[i], v))
            return false;
    if (type & PP_JSON_NUMBER)
        return (!r->has_min || v->valuedouble > r->min || (v->valuedouble == r->min && !r->above)) &&
               (!r->has_max || v->valuedouble < r->max || (v->valuedouble == r->max && !r->below));
    if (type == PP_JSON_STRING) {
        const double n = (double)characters(v->valuestring);
        return n >= f->least_chars && n <= f->most_chars && (!f->pattern || string_matches(m, v, f->pattern, NULL)) &&
               (!f->format || string_matches(m, v, NULL, f->format));
    }
    return type == PP_JSON_ARRAY ? array_fits(m, f, v, depth) : type != PP_JSON_OBJECT || object_fits(m, f, v, depth);
}

static bool fits_all(struct maker *m, const struct all_of *all, const cJSON *v, unsigned depth)
{
    struct choices c = {0};
    bool yes = false;
    if (depth > DEPTH_MOST) {
        wrong(m, PP_ERR_UNSUPPORTED, v, "this value is nested too deeply");
        return false;
    }
    if (!all->n)
        return true;
    facts_of(m, all, &c);
    for (size_t i = 0; i < c.n && !yes; i++)
        yes = fits(m, &c.f[i], v, depth + 1);
    choices_free(&c);
    return yes;
}

/* --- choices that exclude each other ----------------------------------------------------------------------------- */

static bool all_disjoint(struct maker *m, const struct all_of *x, const struct all_of *y, unsigned depth)
{
    struct choices a = {0}, b = {0};
    bool yes = x->n && y->n;
    if (yes) {
        facts_of(m, x, &a);
        facts_of(m, y, &b);
    }
    for (size_t i = 0; i < a.n && yes; i++)
        for (size_t k = 0; k < b.n && yes; k++)
            yes = disjoint(m, &a.f[i], &b.f[k], depth);
    choices_free(&a);
    choices_free(&b);
    return yes && !m->b.code;
}

/* Whether f has values of its own, none of which fits g. */
static bool values_disjoint(struct maker *m, const struct facts *f, const struct facts *g)
{
    const cJSON *k = f->n_values ? f->values[0] : NULL, *item;
    if (!k)
        return false;
    if (strcmp(k->string, "const") == 0)
        return !fits(m, f, k, 0) || !fits(m, g, k, 0);
    cJSON_ArrayForEach(item, k)
        if (fits(m, f, item, 0) && fits(m, g, item, 0))
            return false;
    return true;
}

/* An object of a never fits b: b needs a property that a never has, or both have one whose values differ. */
static bool objects_disjoint(struct maker *m, const struct facts *a, const struct facts *b, unsigned depth)
{
    const cJSON *item;
    for (int i = 0; i < b->n_objects; i++) {
        cJSON_ArrayForEach(item, pp_json_member(b->objects[i], "required"))
            if (cJSON_IsString(item) && is_closed(a) && !has_property(a, item->valuestring) &&
                !is_required(a, item->valuestring))
                return true;
        cJSON_ArrayForEach(item, pp_json_member(b->objects[i], "properties"))
        {
            const char *name = item->string;
            if (!has_property(a, name) || !(is_required(a, name) || is_required(b, name)))
                continue;
            const struct all_of x = property_all(m, a, name), y = property_all(m, b, name);
            if (all_disjoint(m, &x, &y, depth + 1))
                return true;
        }
    }
    return false;
}

/* Whether no value that is made for a fits b; false: not known. */
static bool disjoint(struct maker *m, const struct facts *a, const struct facts *b, unsigned depth)
{
    unsigned common = made_types(a) & b->types;
    if (!common || values_disjoint(m, a, b) || values_disjoint(m, b, a))
        return true;
    if (depth > 8)
        return false;
    if (common & PP_JSON_OBJECT && objects_disjoint(m, a, b, depth))
        common &= ~(unsigned)PP_JSON_OBJECT;
    if (a->least_items > b->most_items || a->most_items < b->least_items)
        common &= ~(unsigned)PP_JSON_ARRAY;
    if (a->least_chars > b->most_chars || a->most_chars < b->least_chars)
        common &= ~(unsigned)PP_JSON_STRING;
    const struct pp_bounds *r = &a->bounds, *s = &b->bounds;
    if ((r->has_min && s->has_max && (r->min > s->max || (r->min == s->max && (r->above || s->below)))) ||
        (r->has_max && s->has_min && (r->max < s->min || (r->max == s->min && (r->below || s->above)))))
        common &= ~(unsigned)PP_JSON_NUMBER;
    return !common;
}

/* --- expressions ------------------------------------------------------------------------------------------------- */

static uint32_t make(struct maker *m, const struct all_of *all);

static uint32_t str(struct maker *m, const char *s)
{
    return pp_gb_str(&m->b, s);
}

static uint32_t seq(struct maker *m, uint32_t x, uint32_t y)
{
    return pp_gb_seq(&m->b, x, y);
}

/* Nothing, a blank, or a new line with an indentation: enough for any layout, and never endless. */
static uint32_t space(struct maker *m)
{
    struct pp_chars blank[] = {{' ', ' '}, {'\t', '\t'}};
    if (!m->space) {
        const uint32_t indent = pp_gb_repeat(&m->b, pp_gb_class(&m->b, blank, 2, false), 0, 20);
        const uint32_t rule = pp_gb_rule(&m->b, NULL, 0);
        pp_gb_define(&m->b, rule, pp_gb_alt(&m->b, PP_GX_EMPTY, pp_gb_alt(&m->b, str(m, " "),
                                                                          seq(m, str(m, "\n"), indent))));
        m->space = pp_gb_call(&m->b, rule);
    }
    return m->space;
}

static uint32_t comma(struct maker *m)
{
    return seq(m, str(m, ","), space(m));
}

/* All digits of a number; cJSON prints 15. */
static uint32_t number_literal(struct maker *m, double v)
{
    char text[40];
    int digits = v == floor(v) && fabs(v) < 1e16 ? 0 : 1;
    snprintf(text, sizeof text, "%.0f", v + 0.0);
    for (; digits && digits < 18; digits = strtod(text, NULL) == v ? 0 : digits + 1)
        snprintf(text, sizeof text, "%.*g", digits, v);
    return str(m, text);
}

/* A value as it is written, but for white space. */
static uint32_t literal(struct maker *m, const cJSON *v, unsigned depth)
{
    const cJSON *item;
    uint32_t x = PP_GX_EMPTY;
    if (depth > DEPTH_MOST) {
        wrong(m, PP_ERR_UNSUPPORTED, v, "this value is nested too deeply");
        return x;
    }
    if (cJSON_IsNumber(v))
        return number_literal(m, v->valuedouble);
    if (!cJSON_IsObject(v) && !cJSON_IsArray(v)) {
        char *text = cJSON_PrintUnformatted(v);
        x = text ? str(m, text) : x;
        if (!text)
            pp_gb_fail(&m->b, PP_ERR_NOMEM, "out of memory for the grammar");
        cJSON_free(text);
        return x;
    }
    const int n = cJSON_GetArraySize(v);
    for (int i = n; i-- > 0;) {
        item = cJSON_GetArrayItem(v, i);
        uint32_t part = literal(m, item, depth + 1);
        if (cJSON_IsObject(v)) {
            cJSON *key = cJSON_CreateStringReference(item->string);
            part = seq(m, key ? literal(m, key, depth + 1) : PP_GX_EMPTY, seq(m, str(m, ":"), seq(m, space(m), part)));
            if (!key)
                pp_gb_fail(&m->b, PP_ERR_NOMEM, "out of memory for the grammar");
            cJSON_Delete(key);
        }
        x = seq(m, i ? comma(m) : PP_GX_EMPTY, seq(m, part, x));
    }
    const char *ends = cJSON_IsArray(v) ? "[]" : "{}";
    x = n ? seq(m, space(m), seq(m, x, space(m))) : space(m);
    return seq(m, pp_gb_bytes(&m->b, ends, 1), seq(m, x, pp_gb_bytes(&m->b, ends + 1, 1)));
}

static uint32_t make_values(struct maker *m, const struct facts *f)
{
    const cJSON *k = f->values[0], *item;
    uint32_t x = PP_GX_NEVER;
    if (strcmp(k->string, "const") == 0)
        return fits(m, f, k, 0) ? literal(m, k, 0) : x;
    cJSON_ArrayForEach(item, k)
        if (fits(m, f, item, 0))
            x = pp_gb_alt(&m->b, literal(m, item, 0), x);
    return x;
}

static uint32_t limit_of(struct maker *m, double v)
{
    if (v != INFINITY && v > PP_GRAMMAR_REPEAT_MOST)
        pp_gb_fail(&m->b, PP_ERR_UNSUPPORTED, "%.100s: more than %d items, characters or properties cannot be counted",
                   m->name, PP_GRAMMAR_REPEAT_MOST);
    return v == INFINITY ? UINT32_MAX : v > PP_GRAMMAR_REPEAT_MOST ? 0 : (uint32_t)v;
}

/* Strings of the same lengths share a rule, and so what is known about tokens within it. The quotes are part of it: a
 * rule that could end after every character would be left by nearly all tokens. */
static uint32_t make_any_string(struct maker *m, uint32_t least, uint32_t most)
{
    for (size_t i = 0; i < m->n_strings; i++)
        if (m->strings[i].least == least && m->strings[i].most == most)
            return pp_gb_call(&m->b, m->strings[i].rule);
    const uint32_t rule = pp_gb_rule(&m->b, NULL, 0);
    const uint32_t quote = str(m, "\"");
    pp_gb_define(&m->b, rule, seq(m, quote, seq(m, pp_schema_chars(&m->b, least, most), quote)));
    if (pp_grow(&m->strings, &m->cap_strings, m->n_strings + 1, sizeof *m->strings) != 0)
        pp_gb_fail(&m->b, PP_ERR_NOMEM, "out of memory for the grammar");
    else
        m->strings[m->n_strings++] = (struct lengths){least, most, rule};
    return pp_gb_call(&m->b, rule);
}

static uint32_t make_string(struct maker *m, const struct facts *f)
{
    const uint32_t quote = str(m, "\"");
    const char *bad = NULL;
    uint32_t x, least = 0, most = UINT32_MAX;
    if (f->least_chars > f->most_chars)
        return PP_GX_NEVER;
    if (f->format && (f->pattern || f->least_chars > 0 || f->most_chars < INFINITY)) {
        wrong(m, PP_ERR_UNSUPPORTED, f->format, "format with pattern, minLength or maxLength is not supported");
        return PP_GX_NEVER;
    }
    if (f->pattern) {
        x = pp_schema_pattern(&m->b, f->pattern->valuestring, &least, &most, &bad);
        if (bad)
            wrong(m, PP_ERR_UNSUPPORTED, f->pattern, bad);
        else if (least < f->least_chars || (f->most_chars < INFINITY && most > f->most_chars))
            wrong(m, PP_ERR_UNSUPPORTED, f->pattern, "pattern together with minLength or maxLength is supported only "
                                                     "if all that it matches is as long as that");
    } else if (f->format) {
        x = pp_schema_format(&m->b, f->format->valuestring);
        if (x == PP_GX_NEVER)
            wrong(m, PP_ERR_UNSUPPORTED, f->format, "unknown format; there are date, time, date-time, duration, uuid, "
                                                    "ipv4, hostname, email and uri");
    } else {
        return make_any_string(m, limit_of(m, f->least_chars), limit_of(m, f->most_chars));
    }
    return seq(m, quote, seq(m, x, quote));
}

static uint32_t make_array(struct maker *m, const struct facts *f)
{
    const uint32_t least = limit_of(m, f->least_items), most = limit_of(m, f->most_items);
    uint32_t items[200], x;
    uint32_t n = 0;
    bool prefixed = true;
    if (f->least_items > f->most_items)
        return PP_GX_NEVER;
    struct all_of all = item_all(m, f, 0, &prefixed);
    while (prefixed && n < most && !m->b.code) {
        if (n == sizeof items / sizeof *items) {
            pp_gb_fail(&m->b, PP_ERR_UNSUPPORTED, "%.100s: an array has more than 200 items of their own", m->name);
            break;
        }
        items[n++] = make(m, &all);
        all = item_all(m, f, (int)n, &prefixed);
    }
    const uint32_t rest = n < most ? make(m, &all) : PP_GX_NEVER;
    const uint32_t more = most == UINT32_MAX ? most : most - n;
    if (n == 0) {
        const uint32_t others = pp_gb_repeat(&m->b, seq(m, comma(m), rest), least > 1 ? least - 1 : 0,
                                             most == UINT32_MAX ? most : most ? most - 1 : 0);
        x = most ? seq(m, rest, seq(m, others, space(m))) : PP_GX_EMPTY;
        x = least ? x : pp_gb_optional(&m->b, x);
    } else {
        x = pp_gb_repeat(&m->b, seq(m, comma(m), rest), least > n ? least - n : 0, more);
        for (uint32_t i = n; i-- > 0;) {
            x = seq(m, i ? comma(m) : PP_GX_EMPTY, seq(m, items[i], x));
            x = i == 0 ? seq(m, x, space(m)) : x;
            x = least > i ? x : pp_gb_optional(&m->b, x);
        }
    }
    return seq(m, str(m, "["), seq(m, space(m), seq(m, x, str(m, "]"))));
}

/* The properties of an object, in order. */
struct names {
    const char **name;      /* [n] */
    size_t n, cap;
};

static void add_name(struct maker *m, struct names *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->name[i], name) == 0)
            return;
    if (list->n == 2000)
        pp_gb_fail(&m->b, PP_ERR_UNSUPPORTED, "%.100s: an object has more than 2000 properties", m->name);
    else if (pp_grow(&list->name, &list->cap, list->n + 1, sizeof *list->name) != 0)
        pp_gb_fail(&m->b, PP_ERR_NOMEM, "out of memory for the grammar");
    else
        list->name[list->n++] = name;
}

static struct names names_of(struct maker *m, const struct facts *f)
{
    struct names list = {0};
    const cJSON *k, *item;
    for (int i = 0; i < f->n_objects; i++) {
        k = pp_json_member(f->objects[i], "properties");
        if (k && !cJSON_IsObject(k))
            wrong(m, PP_ERR_FORMAT, k, "this must be an object of schemas");
        cJSON_ArrayForEach(item, k)
            add_name(m, &list, item->string);
    }
    for (int i = 0; i < f->n_objects; i++) {
        k = pp_json_member(f->objects[i], "required");
        if (k && !cJSON_IsArray(k))
            wrong(m, PP_ERR_FORMAT, k, "this must be a list of names");
        cJSON_ArrayForEach(item, k)
        {
            if (!cJSON_IsString(item))
                wrong(m, PP_ERR_FORMAT, item, "this must be a property's name");
            else
                add_name(m, &list, item->valuestring);
        }
    }
    return list;
}

static uint32_t key_and_value(struct maker *m, uint32_t key, uint32_t value)
{
    return seq(m, key, seq(m, str(m, ":"), seq(m, space(m), value)));
}

/* Rules for what may follow from each property on: first[i] before any, later[i] after one. A list of optional
 * properties would double with each of them if it were written out. */
static uint32_t make_properties(struct maker *m, const struct facts *f, const struct names *list, uint32_t others,
                                bool needs_one)
{
    const uint32_t more = pp_gb_repeat(&m->b, seq(m, comma(m), others), 0, UINT32_MAX);
    uint32_t first = pp_gb_optional(&m->b, seq(m, others, more)), later = more;
    if (needs_one)
        first = seq(m, others, more);
    for (size_t i = list->n; i-- > 0 && !m->b.code;) {
        const struct all_of all = property_all(m, f, list->name[i]);
        cJSON *name = cJSON_CreateStringReference(list->name[i]);
        const uint32_t rule = pp_gb_rule(&m->b, NULL, 0), next = pp_gb_call(&m->b, rule);
        const uint32_t key = name ? literal(m, name, 0) : PP_GX_EMPTY;
        cJSON_Delete(name);
        pp_gb_define(&m->b, rule, later);
        const uint32_t entry_rule = pp_gb_rule(&m->b, NULL, 0), entry = pp_gb_call(&m->b, entry_rule);
        pp_gb_define(&m->b, entry_rule, key_and_value(m, key, make(m, &all)));
        const bool required = is_required(f, list->name[i]);
        first = pp_gb_alt(&m->b, seq(m, entry, next), required ? PP_GX_NEVER : first);
        later = pp_gb_alt(&m->b, seq(m, comma(m), seq(m, entry, next)), required ? PP_GX_NEVER : next);
    }
    return first;
}

static uint32_t make_object(struct maker *m, const struct facts *f)
{
    struct names list = names_of(m, f);
    const bool closed = is_closed(f);
    size_t n_required = 0;
    uint32_t others = PP_GX_NEVER;
    for (size_t i = 0; i < list.n; i++)
        n_required += is_required(f, list.name[i]);
    if (!closed) {
        const struct all_of all = property_all(m, f, NULL);
        const uint32_t quote = str(m, "\""), rule = pp_gb_rule(&m->b, NULL, 0);
        pp_gb_define(&m->b, rule, seq(m, quote, seq(m, pp_schema_other_keys(&m->b, list.name, list.n), quote)));
        others = key_and_value(m, pp_gb_call(&m->b, rule), make(m, &all));
    }
    const bool needs_one = f->least_props == 1 && !n_required;
    uint32_t x = PP_GX_NEVER;
    if (f->most_props < 1)
        x = n_required || f->least_props > 0 ? PP_GX_NEVER : PP_GX_EMPTY;
    else if (f->least_props > (double)n_required && !needs_one)
        pp_gb_fail(&m->b, PP_ERR_UNSUPPORTED, "%.100s: minProperties is supported only up to the number of required "
                                              "properties, or 1", m->name);
    else if (f->most_props < INFINITY && !(closed && f->most_props >= (double)list.n) && list.n)
        pp_gb_fail(&m->b, PP_ERR_UNSUPPORTED, "%.100s: maxProperties is not supported together with properties",
                   m->name);
    else if (f->most_props < INFINITY && !list.n)
        x = seq(m, others, pp_gb_repeat(&m->b, seq(m, comma(m), others), 0, limit_of(m, f->most_props - 1)));
    else
        x = make_properties(m, f, &list, others, needs_one);
    if (f->most_props >= 1 && f->most_props < INFINITY && !list.n && !needs_one)
        x = pp_gb_optional(&m->b, x);
    pp_free(list.name);
    return seq(m, str(m, "{"), seq(m, space(m), seq(m, x, seq(m, space(m), str(m, "}")))));
}

static uint32_t make_number(struct maker *m, const struct facts *f, unsigned types)
{
    if (!pp_schema_bounds_fit(&f->bounds)) {
        pp_gb_fail(&m->b, PP_ERR_UNSUPPORTED, "%.100s: numbers of more than 16 digits are not supported", m->name);
        return PP_GX_NEVER;
    }
    if ((types & PP_JSON_NUMBER) == PP_JSON_INTEGER)
        return pp_schema_integer(&m->b, &f->bounds);
    return pp_schema_number(&m->b, &f->bounds);
}

static uint32_t make_choice(struct maker *m, const struct facts *f)
{
    const unsigned types = made_types(f);
    uint32_t x = PP_GX_NEVER;
    if (f->n_values)
        return make_values(m, f);
    if (types & PP_JSON_NULL)
        x = pp_gb_alt(&m->b, str(m, "null"), x);
    if (types & PP_JSON_BOOL)
        x = pp_gb_alt(&m->b, str(m, "true"), pp_gb_alt(&m->b, str(m, "false"), x));
    if (types & PP_JSON_NUMBER)
        x = pp_gb_alt(&m->b, make_number(m, f, types), x);
    if (types & PP_JSON_STRING)
        x = pp_gb_alt(&m->b, make_string(m, f), x);
    if (types & PP_JSON_ARRAY)
        x = pp_gb_alt(&m->b, make_array(m, f), x);
    if (types & PP_JSON_OBJECT)
        x = pp_gb_alt(&m->b, make_object(m, f), x);
    return x;
}

static bool same_all(const struct all_of *x, const struct all_of *y)
{
    return x->n == y->n && memcmp(x->s, y->s, (size_t)x->n * sizeof *x->s) == 0;
}

/* A call of the rule for a value that fits all of these schemas. */
static uint32_t make(struct maker *m, const struct all_of *all)
{
    struct choices c = {0};
    uint32_t x = PP_GX_NEVER;
    for (size_t i = 0; i < m->n_memos; i++)
        if (same_all(&m->memos[i].key, all))
            return pp_gb_call(&m->b, m->memos[i].rule);
    if (m->b.code)
        return x;
    if (++m->depth > DEPTH_MOST || m->n_memos > 20000 ||
        pp_grow(&m->memos, &m->cap_memos, m->n_memos + 1, sizeof *m->memos) != 0) {
        pp_gb_fail(&m->b, m->depth > DEPTH_MOST || m->n_memos > 20000 ? PP_ERR_UNSUPPORTED : PP_ERR_NOMEM,
                   "%.100s is too large or too deeply nested for a grammar", m->name);
        return x;
    }
    const uint32_t rule = pp_gb_rule(&m->b, NULL, 0);
    m->memos[m->n_memos++] = (struct memo){.key = *all, .rule = rule};
    facts_of(m, all, &c);
    for (size_t i = 0; i < c.n && !m->b.code; i++)
        x = pp_gb_alt(&m->b, make_choice(m, &c.f[i]), x);
    choices_free(&c);
    pp_gb_define(&m->b, rule, x);
    m->depth--;
    return pp_gb_call(&m->b, rule);
}

/* --- the whole --------------------------------------------------------------------------------------------------- */

static enum pp_code make_grammar(struct maker *m, struct pp_grammar **out, struct pp_error *err)
{
    struct all_of all = {.s = {m->root}, .n = 1};
    static const cJSON object = {.type = cJSON_String, .string = (char *)"type", .valuestring = (char *)"object"};
    static const cJSON any_object = {.type = cJSON_Object, .child = (cJSON *)&object};
    pp_gb_init(&m->b);
    pp_gb_rule(&m->b, NULL, 0);
    if (cJSON_IsObject(m->root) && !m->root->child) /* who asks for {} wants an object */
        all.s[0] = &any_object;
    pp_gb_define(&m->b, 0, make(m, &all));
    enum pp_code code = m->b.code;
    if (code && err)
        *err = m->b.err;
    if (!code && (code = pp_gb_compile(&m->b, false, out, err)) == PP_ERR_FORMAT)
        code = pp_fail(err, PP_ERR_FORMAT, "%.100s: no value fits this schema", m->name);
    pp_gb_free(&m->b);
    pp_free(m->memos);
    pp_free(m->strings);
    return code;
}

enum pp_code pp_grammar_from_schema(const char *json, size_t n, const char *name, struct pp_grammar **out,
                                    struct pp_error *err)
{
    struct maker m = {.name = name};
    cJSON *root = NULL;
    const char *end = NULL;
    *out = NULL;
    if (n > PP_GRAMMAR_TEXT_MOST)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "%.100s is too large for a schema: more than %d KiB", name,
                       PP_GRAMMAR_TEXT_MOST >> 10);
    enum pp_code code = pp_json_parse(json, n, name, &end, &root, err);
    if (code)
        return code;
    while (root && end < json + n && strchr(" \t\r\n", *end))
        end++;
    if (!root || end != json + n)
        code = pp_fail(err, PP_ERR_FORMAT, "%.100s is not JSON%s", name, root ? ": more text follows its value" : "");
    else if (pp_json_has_nul(json, n))
        code = pp_fail(err, PP_ERR_FORMAT, "%.100s: " PP_JSON_NUL_TEXT, name);
    else if (!is_schema(root))
        code = pp_fail(err, PP_ERR_FORMAT, "%.100s: a schema must be an object, true or false", name);
    m.root = root;
    if (!code)
        code = make_grammar(&m, out, err);
    cJSON_Delete(root);
    return code;
}
