#include "engine/arch/arch.h"

#include <string.h>

#include "engine/arch/families.h"

static const struct pp_arch *const families[] = {
    &pp_arch_llama,
};

const struct pp_arch *pp_arch_at(size_t i)
{
    return i < sizeof families / sizeof *families ? families[i] : NULL;
}

const struct pp_arch *pp_arch_by_name(const char *name)
{
    const struct pp_arch *a;
    for (size_t i = 0; (a = pp_arch_at(i)); i++)
        if (strcmp(a->name, name) == 0)
            return a;
    return NULL;
}

const struct pp_arch *pp_arch_by_class(const char *hf_class)
{
    const struct pp_arch *a;
    for (size_t i = 0; (a = pp_arch_at(i)); i++)
        for (const char *const *c = a->hf_classes; *c; c++)
            if (strcmp(*c, hf_class) == 0)
                return a;
    return NULL;
}

void pp_arch_list(struct pp_buf *out)
{
    const struct pp_arch *a;
    for (size_t i = 0; (a = pp_arch_at(i)); i++)
        pp_buf_fmt(out, "%s%s", i ? ", " : "", a->name);
}

/* --- names --------------------------------------------------------------------------------------------- */

enum { MAX_LAYER_DIGITS = 4 };

/* Matches name against "before{}after"; on success *rest is what follows and *layer points at the digits (NULL if
 * the pattern has no {}). */
static bool match(const char *pattern, const char *name, const char **layer, size_t *layer_len, const char **rest)
{
    const char *hole = strstr(pattern, "{}");
    size_t before = hole ? (size_t)(hole - pattern) : strlen(pattern);
    *layer = NULL;
    *layer_len = 0;
    if (strncmp(name, pattern, before) != 0)
        return false;
    name += before;
    if (hole) {
        size_t digits = strspn(name, "0123456789"), after = strlen(hole + 2);
        bool leading_zero = digits > 1 && name[0] == '0'; /* two names for one layer */
        if (digits == 0 || digits > MAX_LAYER_DIGITS || leading_zero || strncmp(name + digits, hole + 2, after) != 0)
            return false;
        *layer = name;
        *layer_len = digits;
        name += digits + after;
    }
    *rest = name;
    return true;
}

static bool is_suffix(const char *s)
{
    return strcmp(s, ".weight") == 0 || strcmp(s, ".bias") == 0;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

enum pp_name_match pp_arch_gguf_name(const struct pp_arch *a, const char *hf, struct pp_buf *gguf,
                                     enum pp_row_order *rows)
{
    const char *layer, *rest;
    size_t layer_len;
    pp_buf_clear(gguf);
    for (const struct pp_arch_name *n = a->names; n->hf; n++) {
        if (!match(n->hf, hf, &layer, &layer_len, &rest) || !is_suffix(rest))
            continue;
        const char *hole = strstr(n->gguf, "{}");
        if (hole) {
            pp_buf_add(gguf, n->gguf, (size_t)(hole - n->gguf));
            pp_buf_add(gguf, layer, layer_len);
            pp_buf_str(gguf, hole + 2);
        } else {
            pp_buf_str(gguf, n->gguf);
        }
        pp_buf_str(gguf, rest);
        if (rows)
            *rows = n->rows;
        return PP_NAME_FOUND;
    }
    for (const char *const *end = a->ignored; *end; end++)
        if (ends_with(hf, *end))
            return PP_NAME_IGNORED;
    return PP_NAME_UNKNOWN;
}

enum pp_row_order pp_arch_rows(const struct pp_arch *a, const char *gguf_name)
{
    const char *layer, *rest;
    size_t layer_len;
    for (const struct pp_arch_name *n = a->names; n->hf; n++)
        if (match(n->gguf, gguf_name, &layer, &layer_len, &rest) && is_suffix(rest))
            return n->rows;
    return PP_ROWS_SAME;
}

/* Within a head Hugging Face pairs dimension i with i + head_dim / 2; GGUF's llama puts the two side by side. */
int64_t pp_hf_row(int64_t gguf_row, int64_t head_dim)
{
    int64_t head = gguf_row / head_dim, in = gguf_row % head_dim;
    return head * head_dim + in % 2 * (head_dim / 2) + in / 2;
}

int64_t pp_gguf_row(int64_t hf_row, int64_t head_dim)
{
    int64_t head = hf_row / head_dim, in = hf_row % head_dim;
    return head * head_dim + in % (head_dim / 2) * 2 + in / (head_dim / 2);
}
