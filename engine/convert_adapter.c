/* convert_adapter.c - converts adapter folders of PEFT and MLX to GGUF; and what convert_peft.c shares. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/adapter_file.h"
#include "engine/adapter_file_int.h"
#include "engine/arch/arch.h"
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/convert.h"
#include "engine/convert_adapter_int.h"
#include "engine/convert_experts.h"
#include "engine/export.h"
#include "engine/gguf.h"
#include "engine/hf_form.h"
#include "engine/lora.h"
#include "engine/quant.h"
#include "engine/source.h"
#include "engine/state_order.h"

/* --- the model it belongs to -------------------------------------------------------------------------------- */

/* The path of the folder that contains an adapter; pp_free. */
static char *parent_of(const char *adapter)
{
    size_t n = strlen(adapter);
    while (n > 1 && adapter[n - 1] == '/')
        n--;
    struct pp_buf path = {0};
    struct stat st;
    pp_buf_add(&path, adapter, n);
    if (!path.bad && stat(pp_buf_cstr(&path), &st) == 0 && S_ISDIR(st.st_mode)) {
        pp_buf_str(&path, "/..");
        return pp_buf_take(&path);
    }
    while (n > 0 && adapter[n - 1] != '/')
        n--;
    pp_buf_clear(&path);
    pp_buf_add(&path, n ? adapter : ".", n ? n : 1);
    return pp_buf_take(&path);
}

/* Opens the model that an adapter belongs to: the one that the caller names, otherwise the one that the adapter names
 * if that is a path, otherwise the adapter's parent folder. */
static enum pp_code find_base(const struct pp_adapter_file *f, const char *src, const char *wanted,
                              struct pp_source **base, struct pp_error *err)
{
    const char *named = pp_adapter_file_base(f);
    if (wanted)
        return pp_source_open(wanted, base, err);
    if (named && *named && pp_source_open(named, base, NULL) == PP_OK)
        return PP_OK; /* usually it is the name of a repository */
    char *parent = parent_of(src);
    enum pp_code code = parent ? pp_source_open(parent, base, err) : pp_fail_nomem(err, "a file name");
    pp_free(parent);
    if (code == PP_ERR_NOT_FOUND)
        return pp_fail(err, PP_ERR_USAGE,
                       "converting %s needs the model it was trained on; give it with --base",
                       src);
    return code;
}

enum pp_code pp_convert_open_base(const struct pp_adapter_file *f, const char *src, const char *wanted,
                                  struct pp_source **base, struct pp_error *err)
{
    enum pp_code code = find_base(f, src, wanted, base, err);
    if (code || !(code = pp_source_check_adapters(*base, err)))
        return code;
    pp_source_close(*base);
    *base = NULL;
    return code;
}

enum pp_code pp_convert_check_adapter(const struct pp_adapter_file *f, const struct pp_source *base,
                                      struct pp_error *err)
{
    const enum pp_code code = pp_adapter_file_check_invocation(f, pp_source_hparams(base)->n_vocab,
                                                               pp_source_path(base), err);
    return code ? code : pp_adapter_file_check_values(f, err);
}

/* The model's family: names in an adapter's folder may fit several. */
const struct pp_arch *pp_convert_arch(const struct pp_source *base)
{
    return pp_arch_by_name(pp_source_hparams(base)->arch);
}

/* The sizes of kv_b, which models with latent attention hold as one matrix of keys and one of values
 * (pp_split_heads). */
static bool sizes_of_heads(const struct pp_source *base, const char *name, struct pp_tensor *w)
{
    static const char end[] = ".attn_kv_b.weight";
    const struct pp_hparams *hp = pp_source_hparams(base);
    char keys[PP_HF_NAME];
    if (!pp_ends_with(name, end))
        return false;
    snprintf(keys, sizeof keys, "%.*s.attn_k_b.weight", (int)(strlen(name) - strlen(end)), name);
    const int64_t l = strncmp(name, "blk.", 4) == 0 ? strtoll(name + 4, NULL, 10) : 0;
    const struct pp_latent_shape shape = pp_latent_shape(hp, l > 0 && l < hp->n_layer ? l : 0);
    *w = (struct pp_tensor){.n_dims = 2, .ne = {shape.rank, shape.n_head * (shape.n_key + shape.n_value), 1, 1}};
    return pp_source_tensor(base, keys);
}

/* name: one of the target's matrices (pp_adapter_matrices). */
enum pp_code pp_convert_check_fit(const struct pp_source *base, const struct pp_adapter_target *t, int part,
                                  const char *name, struct pp_error *err)
{
    const struct pp_tensor *w = pp_source_tensor(base, name);
    if (!w && pp_adapter_is_of_experts(name)) { /* files have all experts of a kind in one tensor */
        char stack[256];
        pp_stack_name(name, stack);
        w = pp_source_tensor(base, stack);
    }
    if (!w && strcmp(name, "output.weight") == 0)
        w = pp_source_tensor(base, "token_embd.weight"); /* the output is tied to the embeddings */
    struct pp_tensor of_heads;
    if (!w && sizes_of_heads(base, name, &of_heads))
        w = &of_heads;
    if (!w)
        return pp_fail(err, PP_ERR_MISMATCH, "the adapter changes %s, which %s does not have", name,
                       pp_source_path(base));
    const bool norm = w->n_dims == 1;
    const int64_t n_in = norm ? 0 : w->ne[t->embedding ? 1 : 0], n_out = w->ne[norm || t->embedding ? 0 : 1];
    if (t->n_in != n_in || pp_adapter_part_outputs(t, pp_source_hparams(base), part) != n_out)
        return pp_fail(err, PP_ERR_MISMATCH, "the adapter's %s is %lld x %lld, but in %s %s is %lld x %lld", t->name,
                       (long long)t->n_out, (long long)t->n_in, pp_source_path(base),
                       strcmp(name, t->name) == 0 ? "it" : name, (long long)n_out, (long long)n_in);
    return PP_OK;
}

enum pp_code pp_convert_fail_form(const char *name, struct pp_error *err)
{
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the adapter changes %s, which is stored differently in folders and GGUF "
                                            "files of this family; converting it is not supported", name);
}

/* --- rearranged tensors ------------------------------------------------------------------------------------- */

void pp_copies_free(struct pp_copies *c)
{
    for (size_t i = 0; c->tensors && i < c->n; i++)
        pp_free((void *)(uintptr_t)c->tensors[i].data);
    pp_free(c->tensors);
}

/* A transposed matrix of floats. c must have room, so that pointers to its tensors stay valid. */
const struct pp_tensor *pp_copies_transposed(struct pp_copies *c, const struct pp_tensor *t, struct pp_error *err)
{
    const size_t size = (size_t)pp_type_info(t->type)->block_bytes;
    const int64_t rows = t->ne[1], cols = t->ne[0];
    uint8_t *data = c->n < c->cap ? pp_malloc(t->size) : NULL;
    if (!data) {
        pp_fail_nomem(err, t->name);
        return NULL;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++)
            memcpy(data + (size_t)(i * rows + r) * size, (const uint8_t *)t->data + (size_t)(r * cols + i) * size,
                   size);
    struct pp_tensor *to = &c->tensors[c->n++];
    *to = *t;
    to->ne[0] = rows;
    to->ne[1] = cols;
    to->data = data;
    return to;
}

/* Permutes n pieces of `size` bytes: piece i becomes piece from[i] of `there`. */
static void move_pieces(uint8_t *to, const uint8_t *there, const int32_t *from, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * size, there + (size_t)from[i] * size, size);
}

/* n rows of t: row r is t's row from[r]. c must have room. */
static const struct pp_tensor *moved(struct pp_copies *c, const struct pp_tensor *t, const int32_t *from, int64_t n,
                                     struct pp_error *err)
{
    const size_t row_bytes = pp_type_row_bytes(t->type, t->ne[0]);
    uint8_t *data = c->n < c->cap ? pp_malloc((size_t)n * row_bytes) : NULL;
    if (!data) {
        pp_fail_nomem(err, t->name);
        return NULL;
    }
    move_pieces(data, t->data, from, n, row_bytes);
    struct pp_tensor *to = &c->tensors[c->n++];
    *to = *t;
    to->ne[1] = n;
    to->size = (size_t)n * row_bytes;
    to->data = data;
    return to;
}

bool pp_convert_is_float(uint32_t type)
{
    return type == PP_TYPE_F32 || type == PP_TYPE_F16 || type == PP_TYPE_BF16;
}

/* Permutes the columns of a matrix of floats. c must have room. */
const struct pp_tensor *pp_copies_moved_columns(struct pp_copies *c, const struct pp_tensor *t, const int32_t *from,
                                                struct pp_error *err)
{
    const size_t size = (size_t)pp_type_info(t->type)->block_bytes, row_bytes = (size_t)t->ne[0] * size;
    uint8_t *data = c->n < c->cap && pp_convert_is_float(t->type) ? pp_malloc(t->size) : NULL;
    if (!data) {
        if (pp_convert_is_float(t->type))
            pp_fail_nomem(err, t->name);
        else
            pp_fail(err, PP_ERR_UNSUPPORTED, "the columns of %s cannot be reordered: it is %s", t->name,
                    pp_type_info(t->type)->name);
        return NULL;
    }
    for (int64_t r = 0; r < t->ne[1]; r++)
        move_pieces(data + (size_t)r * row_bytes, (const uint8_t *)t->data + (size_t)r * row_bytes, from, t->ne[0],
                    size);
    struct pp_tensor *to = &c->tensors[c->n++];
    *to = *t;
    to->data = data;
    return to;
}

/* A norm's vector with `added` added to each value, in F32; its data are new (pp_free). NULL: out of memory. */
uint8_t *pp_convert_shifted(const struct pp_tensor *t, float added, struct pp_tensor *to)
{
    const int64_t n = t->ne[0];
    float *f = pp_malloc((size_t)n * sizeof *f);
    if (!f)
        return NULL;
    pp_dequantize_row(t->type, t->data, f, n);
    for (int64_t i = 0; i < n; i++)
        f[i] += added;
    *to = *t;
    to->type = PP_TYPE_F32;
    to->size = (size_t)n * sizeof *f;
    to->data = f;
    return (uint8_t *)f;
}

/* For a matrix whose heads GGUF files order differently from folders: the row, or column, of the old file for each of
 * the new one; pp_free. *from NULL: another matrix. */
enum pp_code pp_convert_find_heads(const struct pp_source *base, const struct pp_adapter_target *t, const char *name,
                                   bool to_gguf, int32_t **from, bool *columns, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(base);
    struct pp_state_order order;
    *from = NULL;
    *columns = false;
    if (!t->rank || !pp_state_order(hp, name, &order))
        return PP_OK;
    const int64_t n = order.columns ? t->n_in : t->n_out;
    const bool pairs = !pp_convert_arch(base)->gguf_neox && pp_arch_rows(pp_convert_arch(base), name) != PP_ROWS_SAME;
    if (!(*from = pp_malloc((size_t)n * sizeof **from)))
        return pp_fail_nomem(err, name);
    *columns = order.columns;
    if (!pairs && !pp_adapter_is_by_rows(t) && pp_state_rows(&order, n, order.to_gguf != to_gguf, *from))
        return PP_OK;
    pp_free(*from);
    *from = NULL;
    return pp_fail(err, PP_ERR_UNSUPPORTED, "the adapter changes %s, whose heads are in a different order in folders "
                                            "and GGUF files; converting it is not supported", name);
}

/* Makes a tensor of floats [n_rows, n_cols] in a float type. c must have room. NULL: out of memory. */
const struct pp_tensor *pp_copies_made(struct pp_copies *c, const char *name, const float *f, int64_t n_cols,
                                       int64_t n_rows, uint32_t type)
{
    const size_t row_bytes = pp_type_row_bytes(type, n_cols);
    uint8_t *data = c->n < c->cap ? pp_malloc(row_bytes * (size_t)n_rows) : NULL;
    struct pp_error err;
    if (!data || pp_quantize_rows(type, f, data, n_rows, n_cols, NULL, &err)) {
        pp_free(data);
        return NULL;
    }
    struct pp_tensor *to = &c->tensors[c->n++];
    *to = (struct pp_tensor){.name = name, .type = type, .n_dims = 2, .ne = {n_cols, n_rows, 1, 1}, .data = data,
                             .size = row_bytes * (size_t)n_rows};
    return to;
}

struct pp_copies pp_copies_new(size_t n)
{
    struct pp_copies c = {.tensors = pp_calloc(n, sizeof *c.tensors)};
    c.cap = c.tensors ? n : 0;
    return c;
}

/* --- to GGUF ------------------------------------------------------------------------------------------------- */

/* Refuses what GGUF cannot express. */
static enum pp_code check_plain(const struct pp_adapter_target *t, struct pp_error *err)
{
    const char *what = t->magnitude.data                           ? "DoRA's magnitudes"
                       : t->ia3.data                               ? "IA3's scales"
                       : t->bias.data || t->b_bias.data            ? "trained biases"
                       : t->tokens.data                            ? "tokens with rows of their own"
                       : t->weight.data && t->weight.n_dims == 2   ? "a matrix in place of the model's"
                                                                   : NULL;
    return what ? pp_fail(err, PP_ERR_UNSUPPORTED, "the adapter has %s for %s, which a GGUF adapter cannot hold", what,
                          t->name)
                : PP_OK;
}

/* GGUF has one alpha for all matrices, and divides it by the rank of each; if a target's scale differs from that, the
 * ratio goes into its B. This is the alpha of the first matrix with a scale that is not 0: readers take 0 to mean
 * unscaled. */
static float file_alpha(const struct pp_adapter_file *f)
{
    const float given = pp_adapter_file_alpha(f);
    for (size_t i = 0; i < pp_adapter_file_n(f); i++) {
        const struct pp_adapter_target *t = pp_adapter_file_at(f, i);
        const float alpha = t->scale * (float)t->rank;
        if (alpha != 0.0f)
            return fabsf(alpha - given) <= 1e-6f * fabsf(given) ? given : alpha;
    }
    return given != 0.0f ? given : 1.0f;
}

static bool changes_nothing(const struct pp_adapter_file *f)
{
    bool nothing = true;
    for (size_t i = 0; i < pp_adapter_file_n(f); i++) {
        const struct pp_adapter_target *t = pp_adapter_file_at(f, i);
        nothing = nothing && !t->weight.data && (!t->rank || t->scale == 0.0f);
    }
    return nothing;
}

static float rest_of_scale(const struct pp_adapter_target *t, float alpha)
{
    float rest = t->scale * (float)t->rank / alpha;
    return fabsf(rest - 1.0f) < 1e-6f ? 1.0f : rest;
}

struct to_gguf {
    const struct pp_adapter_file *file;
    const struct pp_source *base;
    float alpha;
    int wanted;
    bool permuted;              /* rows of q and k are permuted to GGUF's order */
    struct pp_export_item *items;
    size_t n;
    struct pp_buf names;
    struct pp_copies copies;
    struct pp_expert_groups experts;
    struct pp_join *joins;      /* [n_joins]: matrices of which targets change parts */
    size_t n_joins;
    struct pp_adapter_target output; /* what an adapter of the embeddings does to the output */
};

static void add_item(struct to_gguf *g, const char *name, const char *end, const struct pp_tensor *from,
                     int64_t head_dim, float factor)
{
    uint32_t type = g->wanted >= 0 ? (uint32_t)g->wanted : factor == 1.0f ? from->type : PP_TYPE_F32;
    g->items[g->n++] = (struct pp_export_item){
        .from = from, .type = type, .head_dim = head_dim, .factor = factor};
    pp_buf_fmt(&g->names, "%s%s%c", name, end, 0);
}

/* Lists both parts of a target that folders have as a whole by keys and the model's file as two matrices. */
static enum pp_code list_keys(struct to_gguf *g, const struct pp_adapter_target *t, const struct pp_by_keys *keys,
                              const struct pp_tensor *a, const struct pp_tensor *b, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(g->base);
    const int stem = (int)(strlen(t->name) - strlen(keys->whole));
    for (int part = 0; part < 2; part++) {
        const int64_t n = pp_key_part_rows(hp, keys->kinds[part]);
        int32_t *from = pp_malloc((size_t)n * sizeof *from);
        char name[PP_HF_NAME];
        for (int64_t r = 0; from && r < n; r++)
            from[r] = (int32_t)pp_key_part_row(hp, keys->kinds[part], r);
        const struct pp_tensor *rows = from ? moved(&g->copies, b, from, n, err) : NULL;
        pp_free(from);
        if (!rows)
            return pp_fail_nomem(err, t->name);
        snprintf(name, sizeof name, "%.*s%s", stem, t->name, keys->parts[part]);
        add_item(g, name, ".lora_a", a, 0, 1.0f);
        add_item(g, name, ".lora_b", rows, 0, rest_of_scale(t, g->alpha));
    }
    return PP_OK;
}

/* Finds such a whole for a target, and checks its size. */
static const struct pp_by_keys *find_parts(const struct pp_source *base, const struct pp_adapter_target *t)
{
    const struct pp_hparams *hp = pp_source_hparams(base);
    for (int i = 0; i < PP_BY_KEYS; i++) {
        const struct pp_by_keys *k = &pp_by_keys[i];
        const char *end = pp_name_ending(t->name, k->whole);
        char name[PP_HF_NAME];
        if (!end || pp_source_tensor(base, t->name))
            continue;
        snprintf(name, sizeof name, "%.*s%s", (int)(end - t->name), t->name, k->parts[0]);
        const struct pp_tensor *w = pp_source_tensor(base, name);
        return w && w->ne[0] == t->n_in &&
                       t->n_out == pp_key_part_rows(hp, k->kinds[0]) + pp_key_part_rows(hp, k->kinds[1])
                   ? k
                   : NULL;
    }
    return NULL;
}

/* Lists the outputs of one matrix of a fused module. */
static enum pp_code list_part(struct to_gguf *g, const struct pp_adapter_target *t, int part, const char *name,
                              const struct pp_tensor *a, const struct pp_tensor *b, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(g->base);
    const bool pairs = g->permuted && pp_arch_rows(pp_convert_arch(g->base), name) != PP_ROWS_SAME;
    const int64_t n = pp_adapter_part_outputs(t, hp, part);
    int32_t *from;
    bool columns;
    const enum pp_code code = pp_convert_find_heads(g->base, t, name, true, &from, &columns, err);
    if (code)
        return code;
    if (pp_adapter_is_by_rows(t)) {
        if (!(from = pp_malloc((size_t)n * sizeof *from)))
            return pp_fail_nomem(err, name);
        pp_adapter_outputs(t, hp, part, pairs ? PP_PAIRS_TO_GGUF : PP_PAIRS_SAME, from);
    }
    if (from && columns)
        a = pp_copies_moved_columns(&g->copies, a, from, err);
    else if (from)
        b = moved(&g->copies, b, from, n, err);
    pp_free(from);
    if (!a || !b)
        return err ? err->code : PP_ERR_NOMEM;
    add_item(g, name, ".lora_a", a, 0, 1.0f);
    add_item(g, name, ".lora_b", b, pairs && !pp_adapter_is_by_rows(t) ? hp->head_dim : 0, rest_of_scale(t, g->alpha));
    return PP_OK;
}

/* The matrix in the model's file that contains this one's rows, or NULL. name: the part's, which has n_out rows. */
static const struct pp_tensor *find_whole(const struct pp_source *base, const char *name, int64_t n_out, int *place)
{
    const struct pp_tensor *own = pp_source_tensor(base, name);
    char whole[PP_HF_NAME];
    struct pp_join_way way = {0};
    struct pp_rows rows;
    *place = pp_adapter_whole_name(name, whole, &way);
    const struct pp_tensor *w = *place < 0 || way.keys ? NULL : pp_source_tensor(base, whole);
    const bool fits = w && (!own || own == w) && w->ne[1] != n_out &&
                      pp_hf_part_rows(way.form, pp_source_hparams(base), w->ne[1], *place, &rows) &&
                      rows.n_rows == n_out;
    return fits ? w : NULL;
}

/* Records that a target changes a part of such a matrix. */
static enum pp_code note_part(struct to_gguf *g, const struct pp_adapter_target *t, int part, const char *name,
                              const struct pp_tensor *whole, int place, struct pp_error *err)
{
    size_t i = 0;
    while (i < g->n_joins && strcmp(g->joins[i].name, whole->name) != 0)
        i++;
    if (i == g->n_joins)
        snprintf(g->joins[g->n_joins++].name, PP_HF_NAME, "%s", whole->name);
    return pp_join_add(&g->joins[i], place, name, t, part)
               ? PP_OK
               : pp_fail(err, PP_ERR_FORMAT, "the adapter has %s twice", name);
}

/* Lists a target's tensors. A of the embeddings is transposed, to a row for each token, like the table. */
static enum pp_code list_target(struct to_gguf *g, const struct pp_adapter_target *t, struct pp_error *err)
{
    char names[PP_ADAPTER_MATRICES][PP_HF_NAME];
    const int n = pp_adapter_matrices(t, names);
    enum pp_code code = check_plain(t, err);
    if (!code && !pp_adapter_form_fits(t))
        code = pp_convert_fail_form(t->name, err);
    bool of_whole[PP_ADAPTER_MATRICES] = {false};
    const struct pp_by_keys *keys = t->rank ? find_parts(g->base, t) : NULL;
    for (int part = 0; part < n && !code && !keys; part++) {
        const int64_t n_out = pp_adapter_part_outputs(t, pp_source_hparams(g->base), part);
        int place;
        const struct pp_tensor *whole = t->rank ? find_whole(g->base, names[part], n_out, &place) : NULL;
        of_whole[part] = whole != NULL;
        code = whole ? note_part(g, t, part, names[part], whole, place, err)
                     : pp_convert_check_fit(g->base, t, part, names[part], err);
    }
    if (code)
        return code;
    const float added = pp_hf_added(t->form);
    struct pp_tensor *norm = added != 0.0f ? &g->copies.tensors[g->copies.n] : NULL;
    if (norm && !pp_convert_shifted(&t->weight, added, norm))
        return pp_fail_nomem(err, t->name);
    g->copies.n += norm != NULL;
    if (t->weight.data)
        add_item(g, t->name, "", norm ? norm : &t->weight, 0, 1.0f);
    if (!t->rank || pp_is_of_group(t, g->base, true))
        return PP_OK;
    const struct pp_tensor *a = t->a_transposed != t->embedding ? pp_copies_transposed(&g->copies, &t->a, err) : &t->a;
    const struct pp_tensor *b = a && t->b_transposed ? pp_copies_transposed(&g->copies, &t->b, err) : &t->b;
    if (!a || !b)
        return err ? err->code : PP_ERR_NOMEM;
    if (keys)
        return list_keys(g, t, keys, a, b, err);
    for (int part = 0; part < n && !code; part++)
        if (!of_whole[part])
            code = list_part(g, t, part, names[part], a, b, err);
    return code;
}

/* Lists a group of experts' matrices. */
static enum pp_code list_experts(struct to_gguf *g, const struct pp_expert_group *of, struct pp_error *err)
{
    struct pp_tensor halves[2];
    const float rest = of->scale * (float)of->rank / g->alpha, factor = fabsf(rest - 1.0f) < 1e-6f ? 1.0f : rest;
    const enum pp_code code = pp_expert_group_tensors(of, false, halves, err);
    if (code)
        return code;
    for (int half = 0; half < 2; half++) {
        struct pp_tensor *to = &g->copies.tensors[g->copies.n++];
        *to = halves[half];
        to->name = of->name;
        add_item(g, of->name, half ? ".lora_b" : ".lora_a", to, 0, half ? factor : 1.0f);
    }
    return PP_OK;
}

static enum pp_code list_join(struct to_gguf *g, const struct pp_join *j, struct pp_error *err)
{
    const struct pp_tensor *w = pp_source_tensor(g->base, j->name);
    struct pp_join_way way = {.from = g->permuted ? PP_PAIRS_TO_GGUF : PP_PAIRS_SAME};
    struct pp_joined joined = {0};
    char whole[PP_HF_NAME];
    uint32_t type;
    for (int i = 0; i < PP_JOINED_PARTS; i++)
        if (j->of[i])
            pp_adapter_whole_name(j->names[i], whole, &way);
    pp_join_rank(j, &type);
    const enum pp_code code = pp_join_make(j, pp_source_hparams(g->base), &way, w->ne[0], w->ne[1], &joined, err);
    if (code)
        return code;
    const float rest = joined.scale * (float)joined.rank / g->alpha, factor = fabsf(rest - 1.0f) < 1e-6f ? 1.0f : rest;
    const struct pp_tensor *a = pp_copies_made(&g->copies, j->name, joined.a, w->ne[0], joined.rank, type);
    const struct pp_tensor *b = a ? pp_copies_made(&g->copies, j->name, joined.b, joined.rank, w->ne[1], type) : NULL;
    pp_joined_free(&joined);
    if (!b)
        return pp_fail_nomem(err, j->name);
    add_item(g, j->name, ".lora_a", a, 0, 1.0f);
    add_item(g, j->name, ".lora_b", b, 0, factor);
    return PP_OK;
}

/* Whether the table of embeddings is also the model's output matrix. */
static bool is_output(const struct pp_source *base)
{
    const struct pp_tensor *table = pp_source_tensor(base, "token_embd.weight"),
                           *output = pp_source_tensor(base, "output.weight");
    return table && (!output || pp_lora_is_tied(table, output));
}

static enum pp_code list_targets(struct to_gguf *g, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < pp_adapter_file_n(g->file) && !code; i++) {
        const struct pp_adapter_target *t = pp_adapter_file_at(g->file, i);
        code = list_target(g, t, err);
        if (!code && t->embedding && t->tied && t->rank && is_output(g->base)) {
            pp_adapter_as_output(t, &g->output);
            code = list_target(g, &g->output, err);
        }
    }
    if (!code)
        code = pp_expert_groups_make(g->file, g->base, true, &g->experts, err);
    for (size_t i = 0; i < g->experts.n && !code; i++)
        code = list_experts(g, &g->experts.g[i], err);
    for (size_t i = 0; i < g->n_joins && !code; i++)
        code = list_join(g, &g->joins[i], err);
    if (!code && g->names.bad)
        code = pp_fail_nomem(err, "the list of tensors");
    const char *name = g->names.data;
    for (size_t i = 0; i < g->n && !code; i++, name += strlen(name) + 1)
        g->items[i].name = name;
    return code;
}

static enum pp_code write_gguf(struct to_gguf *g, const char *dst, const struct pp_convert_options *opt,
                               struct pp_error *err)
{
    struct pp_gguf_writer *w = NULL;
    enum pp_code code = pp_gguf_writer_new(dst, &w, err);
    if (!code) {
        const struct pp_arch *arch = pp_convert_arch(g->base);
        pp_gguf_add_text(w, "general.architecture", arch->file_name ? arch->file_name : arch->name);
        pp_gguf_add_text(w, "general.type", "adapter");
        pp_gguf_add_text(w, "adapter.type", "lora");
        pp_gguf_add_text(w, "general.name", pp_adapter_file_name(g->file));
        pp_gguf_add_f32(w, "adapter.lora.alpha", g->alpha);
        pp_gguf_add_u32(w, "general.quantization_version", 2);
        size_t n;
        const int32_t *invocation = pp_adapter_file_invocation(g->file, &n);
        if (n)
            pp_gguf_add_u32_array(w, "adapter.alora.invocation_tokens", (const uint32_t *)invocation, n);
        code = pp_export_items(w, g->items, g->n, opt, err);
    }
    if (!code)
        code = pp_adapter_file_check(g->file, err);
    if (!code)
        code = pp_gguf_writer_finish(w, err);
    pp_gguf_writer_free(w);
    return code;
}

static enum pp_code to_gguf(const struct pp_adapter_file *f, const struct pp_source *base, const char *dst, int wanted,
                            const struct pp_convert_options *opt, struct pp_error *err)
{
    const size_t n = pp_adapter_file_n(f);
    struct to_gguf g = {
        .file = f, .base = base, .alpha = file_alpha(f), .wanted = wanted,
        .permuted = pp_adapter_file_hf_order(f) && !pp_convert_arch(base)->gguf_neox,
        .items = pp_calloc((1 + 2 * PP_ADAPTER_MATRICES) * n, sizeof *g.items),
        .copies = pp_copies_new(2 * (1 + PP_ADAPTER_MATRICES) * n),
        .joins = pp_calloc(PP_ADAPTER_MATRICES * n, sizeof *g.joins),
    };
    enum pp_code code = g.items && g.joins && g.copies.tensors ? PP_OK : pp_fail_nomem(err, "the list of tensors");
    if (!code)
        code = list_targets(&g, err);
    if (!code && changes_nothing(f))
        code = pp_fail(err, PP_ERR_UNSUPPORTED, "the adapter's alpha is 0, so it has no effect");
    if (!code)
        code = write_gguf(&g, dst, opt, err);
    pp_free(g.items);
    pp_buf_free(&g.names);
    pp_copies_free(&g.copies);
    pp_expert_groups_free(&g.experts);
    pp_free(g.joins);
    return code;
}

enum pp_code pp_convert_adapter(const char *src, const char *dst, int wanted, const struct pp_convert_options *opt,
                                struct pp_error *err)
{
    struct pp_adapter_file *f;
    struct pp_source *base;
    enum pp_code code = pp_adapter_file_open(src, &f, err);
    if (code)
        return code;
    if (!pp_adapter_file_hf_order(f))
        code = pp_fail(err, PP_ERR_USAGE, "%s is a GGUF adapter; give a folder name as the target to convert it to a "
                                          "PEFT folder", src);
    if (!code)
        code = pp_convert_open_base(f, src, opt ? opt->base : NULL, &base, err);
    if (!code) {
        pp_adapter_file_close(f); /* opened again for the family */
        code = pp_adapter_file_open_for(src, pp_source_hparams(base), &f, err);
        if (!code)
            code = pp_convert_check_adapter(f, base, err);
        if (!code)
            code = to_gguf(f, base, dst, wanted, opt, err);
        pp_source_close(base);
    }
    pp_adapter_file_close(f);
    return code;
}
