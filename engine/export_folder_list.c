/* export_folder_list.c - lists the tensors of a folder, from which of ours each is made, and their names. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/export_folder_int.h"
#include "engine/hf.h"
#include "engine/hf_form.h"
#include "engine/name_index.h"

/* The line of the family's tables for this tensor, and its name in the new folder; or NULL. */
static const struct pp_arch_name *line_of(const struct folder *f, const char *gguf_name, struct pp_buf *name)
{
    return pp_arch_hf_name(f->arch, pp_source_hparams(f->s), gguf_name, f->opt->bits != 0, name);
}

/* A dense layer after the model, which the source has in a module's folder; that is copied. */
static bool is_of_module(const struct folder *f, const struct pp_tensor *t)
{
    bool dense = false;
    for (const cJSON *module = f->modules ? f->modules->child : NULL; module; module = module->next)
        dense = dense || pp_hf_module_is_dense(module);
    return dense && strncmp(t->name, "dense_", strlen("dense_")) == 0;
}

static bool is_made_norm(const struct folder *f, const struct pp_tensor *t)
{
    return pp_source_hparams(f->s)->query_scale != 0.0f &&
           (strstr(t->name, ".attn_q_norm.") || strstr(t->name, ".attn_k_norm."));
}

/* Tensors that folders have in config.json or elsewhere instead, or that nothing uses. */
static bool is_left_out(const struct folder *f, const struct pp_tensor *t)
{
    return is_of_module(f, t) || pp_is_after_layers(pp_source_hparams(f->s), t->name) ||
           pp_is_unused_first_mix(pp_source_hparams(f->s), t->name) ||
           pp_is_for_pictures(pp_source_hparams(f->s), t->name) || is_made_norm(f, t) ||
           strcmp(t->name, pp_skip_shares) == 0 || strncmp(t->name, "rope_factors_", strlen("rope_factors_")) == 0 ||
           strcmp(t->name, "rope_freqs.weight") == 0;
}

static enum pp_code fail_place(const struct folder *f, const char *name)
{
    return pp_fail(f->err, PP_ERR_UNSUPPORTED, "tensor %.200s of the family %s cannot be stored in a model folder",
                   name,
                   f->arch->name);
}

/* A quantised tensor becomes three, which are named after the module. */
static enum pp_code name_item(const struct folder *f, struct item *item, const struct pp_buf *name)
{
    static const char weight[] = ".weight";
    size_t n = name->len;
    if (name->bad)
        return pp_fail_nomem(f->err, "a tensor's name");
    if (n >= NAME)
        return fail_place(f, item->from->name);
    if (item->bits && n > strlen(weight) && pp_ends_with(name->data, weight))
        n -= strlen(weight);
    else
        item->bits = 0;
    snprintf(item->name, sizeof item->name, "%.*s", (int)n, name->data);
    return PP_OK;
}

/* The partner with which a tensor is fused: of a gate the value, of keys the values, of queries their gates, of an
 * index's queries its key. Only that key may have fewer rows. */
static const struct pp_tensor *partner_of(const struct folder *f, const struct pp_tensor *t)
{
    static const char *const pairs[][2] = {{".indexer.q_proj.", ".indexer.k_proj."},
                                            {".ffn_gate", ".ffn_up"}, {".attn_k.", ".attn_v."},
                                            {".attn_q.", ".attn_gate."},
                                            {".filter_1_last.", ".filter_1."}, {".filter_2_last.", ".filter_2."},
                                            {".attn_qk_mix_last.", ".attn_qk_mix."}};
    enum { N_PAIRS = sizeof pairs / sizeof *pairs };
    char name[NAME];
    const char *at = NULL;
    int i = 0;
    while (i < N_PAIRS && !(at = strstr(t->name, pairs[i][0]))) /* gates: alone, exps, shexp */
        i++;
    if (!at)
        return NULL;
    snprintf(name, sizeof name, "%.*s%s%s", (int)(at - t->name), t->name, pairs[i][1], at + strlen(pairs[i][0]));
    const struct pp_tensor *other = pp_source_tensor(f->s, name);
    const bool alike = other && other->ne[0] == t->ne[0] && (i == 0 || memcmp(other->ne, t->ne, sizeof t->ne) == 0);
    return alike ? other : NULL;
}

static void transpose(struct item *item)
{
    const int64_t n = item->ne[0];
    item->order = TRANSPOSED;
    item->ne[0] = item->ne[1];
    item->ne[1] = n;
}

/* A factor that undoes a file's division of weights, for models that halve the residual stream after every
 * rescale_every layers; 0: none. */
static float divided_by(const struct pp_hparams *hp, const char *name)
{
    const bool added = strstr(name, ".time_mix_output.weight") || strstr(name, ".channel_mix_value.weight");
    const int64_t l = strncmp(name, "blk.", 4) == 0 ? strtol(name + 4, NULL, 10) : 0;
    return hp->rescale_every && added ? ldexpf(1, (int)(l / hp->rescale_every)) : 0;
}

enum { N_MIXES = 6 }; /* of RWKV; RWKV 6 has one less */

/* Whether a folder's tensor of this form is two of ours. */
static bool holds_two(enum pp_hf_form form)
{
    switch (form) {
    case PP_HF_EXPERTS_INTERLEAVED:
    case PP_HF_EXPERTS_HALVES:
    case PP_HF_BIASES_INTERLEAVED:
    case PP_HF_TWO_TAPS_4D:
    case PP_HF_TWO_TAPS_3D:
    case PP_HF_INTERLEAVED:
    case PP_HF_HALVES:
    case PP_HF_INDEXER_Q_K:
    case PP_HF_HALVES_BY_HEAD:
        return true;
    default:
        return false;
    }
}

/* Sets what is done to each value. */
static void shape_values(const struct folder *f, struct item *item, enum pp_hf_form form)
{
    const float added = pp_hf_added(form);
    if (added != 0.0f)
        item->add = -added;
    item->times = divided_by(pp_source_hparams(f->s), item->from->name);
    if (form == PP_HF_ONE_MINUS)
        item->add = item->times = -1;
    if (form == PP_HF_EXP_4D)
        item->log_sign = 1;
    if (form == PP_HF_MINUS_EXP || form == PP_HF_MINUS_EXP_COLUMN || form == PP_HF_MINUS_EXP_4D)
        item->log_sign = -1;
}

static void flatten(struct item *item)
{
    item->n_dims = 1;
    item->ne[0] *= item->ne[1];
    item->ne[1] = 1;
}

/* Sets the dimensions in the folder, where one row may have values of two of our tensors. */
static void shape_dims(const struct folder *f, struct item *item, enum pp_hf_form form)
{
    switch (form) {
    case PP_HF_AFTER_RESERVED:
        item->order = RESERVED; /* no position uses them, so their values do not matter */
        item->ne[1] += pp_source_hparams(f->s)->n_reserved_positions;
        break;
    case PP_HF_COLUMN:
    case PP_HF_MINUS_EXP_COLUMN:
    case PP_HF_VECTOR_OR_ROW:
    case PP_HF_FLAT_GROUPS:
        flatten(item);
        break;
    case PP_HF_MINUS_EXP_4D:
    case PP_HF_EXP_4D:
        item->n_dims = 4;
        break;
    case PP_HF_EXPERTS_HALVES:
    case PP_HF_EXPERTS_INTERLEAVED:
        transpose(item);
        item->side_by_side = form == PP_HF_EXPERTS_HALVES;
        item->ne[0] *= 2;
        break;
    case PP_HF_TRANSPOSED:
    case PP_HF_EXPERTS_TRANSPOSED:
        transpose(item);
        break;
    case PP_HF_MIX_W1:
    case PP_HF_MIX_W2:
        transpose(item);
        item->mix_rows = item->from->ne[1] * item->from->ne[2] / (N_MIXES - 1);
        break;
    case PP_HF_EXPERTS_FLAT_TRANSPOSED:
        transpose(item);
        item->n_dims = 2;
        break;
    case PP_HF_EXPERTS_FLAT:
    case PP_HF_ONE_ROW:
        item->n_dims = 2;
        break;
    case PP_HF_TWO_TAPS_4D:
    case PP_HF_TWO_TAPS_3D:
        item->taps = true;
        item->taps_last = form == PP_HF_TWO_TAPS_3D;
        item->ne[0] *= 2;
        break;
    case PP_HF_BIASES_INTERLEAVED:
        item->ne[0] *= 2;
        break;
    case PP_HF_CONV_BY_HEAD:
        item->unit_dims = true;
        break;
    case PP_HF_SCALAR:
        item->n_dims = 0;
        break;
    case PP_HF_VECTOR_3D:
    case PP_HF_ONE_MINUS:
        item->n_dims = 3;
        break;
    case PP_HF_CONV:
    case PP_HF_CONV_3D:
        item->n_dims = 3;
        item->ne[2] = item->ne[1] * item->ne[2] * item->ne[3];
        item->ne[1] = item->ne[3] = 1;
        item->taps_then_one = f->opt->bits != 0;
        break;
    case PP_HF_STATE_HEAD_ROWS:
        item->row = pp_source_hparams(f->s)->state_key_dim;
        break;
    case PP_HF_QKV_FUSED_BY_GROUP:
        item->order = BY_HEAD;
        break;
    default:
        break;
    }
}

/* Adds the partner's rows, after those of `from` or alternating with them. */
static void add_rows(const struct folder *f, struct item *item, enum pp_hf_form form)
{
    item->ne[1] += item->with->ne[1];
    item->order = form == PP_HF_HALVES || form == PP_HF_INDEXER_Q_K ? CONCATENATED : KEYS_VALUES;
    if (form == PP_HF_INTERLEAVED) { /* as if each row were a head */
        item->head_dim = 1;
        item->n_head_kv = item->from->ne[1];
    }
    if (form == PP_HF_HALVES_BY_HEAD)
        item->halves = !pp_source_hparams(f->s)->rope_neox && !f->arch->hf_pairs;
}

/* Permutes heads back to the folder's order of rotated pairs. */
static void order_heads(struct item *item)
{
    item->order = BY_HALVES;
    if (item->n_dims == 2 && strstr(item->from->name, "_norm.")) { /* of heads: values of each head are permuted */
        item->row = item->ne[0];
        flatten(item);
    }
}

static enum pp_code shape_item(const struct folder *f, struct item *item, enum pp_hf_form form,
                               enum pp_row_order rows)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    item->head_dim = hp->head_dim;
    item->n_head = hp->n_head;
    item->n_head_kv = hp->n_head_kv;
    if (holds_two(form) && !(item->with = partner_of(f, item->from)))
        return pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s lacks its counterpart", item->from->name);
    if (form == PP_HF_AFTER_RESERVED && !hp->n_reserved_positions)
        return pp_fail(f->err, PP_ERR_UNSUPPORTED, "folders of the family %s need rows of %.200s that this file lacks",
                       f->arch->name, item->from->name);
    if (form == PP_HF_STATE_HEAD_ROWS && (item->n_dims != 1 || item->ne[0] % hp->state_key_dim != 0))
        return pp_fail(f->err, PP_ERR_FORMAT, "the size of tensor %.200s does not match the heads", item->from->name);
    item->reordered = pp_source_gguf(f->s) && pp_state_order(hp, item->from->name, &item->heads);
    shape_values(f, item, form);
    shape_dims(f, item, form);
    const bool interleaved_matrices = form == PP_HF_INTERLEAVED && item->n_dims == 2;
    if (form == PP_HF_HALVES || form == PP_HF_INDEXER_Q_K || form == PP_HF_HALVES_BY_HEAD || interleaved_matrices)
        add_rows(f, item, form);
    else if (form == PP_HF_INTERLEAVED)
        item->ne[0] *= 2;
    const bool by_rows = form == PP_HF_HALVES_BY_HEAD || interleaved_matrices;
    if (!by_rows && !hp->rope_neox && !f->arch->hf_pairs && rows != PP_ROWS_SAME)
        order_heads(item);
    return PP_OK;
}

/* Checks that permuted rows belong to whole heads. */
static enum pp_code check_heads(const struct folder *f, const struct item *item)
{
    const struct pp_tensor *t = item->from;
    const int64_t n = item->reordered && item->heads.columns ? t->ne[0] : t->ne[t->n_dims > 1];
    bool good = n > 0;
    if (item->reordered)
        good = n == pp_state_order_rows(&item->heads);
    else if (item->order == BY_HEAD)
        good = n == (item->n_head + 2 * item->n_head_kv) * item->head_dim;
    else if (item->order == KEYS_VALUES)
        good = n == item->n_head_kv * item->head_dim || n == item->n_head * item->head_dim;
    else if (item->order == BY_HALVES)
        good = item->first_row % item->head_dim == 0 && item->ne[item->n_dims > 1] % item->head_dim == 0;
    return good ? PP_OK : pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s has %lld rows, which is not a whole number of "
                                                         "heads",
                                  t->name, (long long)n);
}

uint32_t pp_folder_float_type(const struct folder *f, const struct pp_tensor *t)
{
    if (t->type == PP_TYPE_I32)
        return PP_TYPE_I32;
    const uint32_t type = t->rows && t->rows->form == PP_FORM_FLOATS ? t->rows->stored_type : t->type;
    if (f->opt->out_type)
        return (uint32_t)pp_type_by_name(f->opt->out_type);
    return type == PP_TYPE_F32 || type == PP_TYPE_BF16 ? type : PP_TYPE_F16;
}

static bool is_wanted_in_groups(const struct folder *f, const struct pp_tensor *t)
{
    return f->opt->bits && t->n_dims >= 2 && t->type != PP_TYPE_I32 && !pp_export_keeps_f32(t) &&
           !strstr(t->name, ".filter_") && t->ne[0] % f->group == 0;
}

static uint64_t reserve_bytes(struct folder *f, uint64_t size)
{
    f->data_size += size;
    return f->data_size - size;
}

/* Other readers allow no gaps, and ours needs aligned floats: so values of four bytes come first, including words of
 * integers. */
static void place_items(struct folder *f)
{
    for (int half = 0; half < 2; half++)
        for (size_t i = 0; i < f->n; i++) {
            struct item *item = &f->items[i];
            const uint64_t n = (uint64_t)(item->ne[0] * n_rows_of(item));
            const uint64_t size = (uint64_t)pp_type_info(item->type)->block_bytes;
            if (item->bits && !half)
                item->at = reserve_bytes(f, n * (uint64_t)item->bits / 8);
            if (!item->bits && half == (size == 2))
                item->at = reserve_bytes(f, n * size);
            if (item->bits && half) {
                item->scales_at = reserve_bytes(f, 2 * (n / (uint64_t)f->group));
                item->biases_at = reserve_bytes(f, 2 * (n / (uint64_t)f->group));
            }
        }
}

/* Rows, or of a vector elements, of a tensor. */
struct part {
    int64_t first, n;
};

/* Lists what tensor t becomes, or only a part of it, such as a matrix of a stack, which is called by_name then. */
static enum pp_code list_item(struct folder *f, const struct pp_tensor *t, const char *by_name,
                              const struct part *part)
{
    struct pp_buf name = {0};
    struct item *item = &f->items[f->n];
    const bool stacked = t->n_dims > 2 && by_name == t->name;
    const struct pp_arch_name *line = line_of(f, by_name, &name);
    *item = (struct item){.from = t, .type = pp_folder_float_type(f, t),
                          .bits = is_wanted_in_groups(f, t) ? f->opt->bits : 0,
                          .first_row = part ? part->first : 0, .n_dims = stacked ? 3 : t->n_dims > 1 ? 2 : 1,
                          .ne = {t->ne[0], t->ne[1], stacked ? t->ne[2] : 1, 1}};
    if (part)
        item->ne[t->n_dims > 1] = part->n;
    if (item->bits && item->type == PP_TYPE_F32)
        item->type = PP_TYPE_F16;
    enum pp_code code = line ? name_item(f, item, &name) : fail_place(f, t->name);
    if (!code)
        code = shape_item(f, item, line->form, line->rows);
    if (!code)
        code = check_heads(f, item);
    pp_buf_free(&name);
    if (!code && item->bits && (item->order == TRANSPOSED || item->with))
        code = fail_place(f, t->name);
    f->n += !code;
    return code;
}

/* n pieces of `rows` rows each, where folders have a tensor of n_dims for each: a number stands before the `end` of
 * their names. */
static enum pp_code list_pieces(struct folder *f, const struct pp_tensor *t, const char *end, int64_t n, int64_t rows,
                                int n_dims)
{
    const int stem = (int)(strlen(t->name) - strlen(end));
    enum pp_code code = PP_OK;
    for (int64_t i = 0; i < n && !code; i++) {
        char name[NAME];
        snprintf(name, sizeof name, "%.*s.%lld.weight", stem, t->name, (long long)i);
        code = list_item(f, t, name, &(struct part){i * rows, rows});
        if (!code && n_dims == 1)
            f->items[f->n - 1].n_dims = 1;
    }
    return code;
}

/* A stack of experts: a matrix of each. */
static enum pp_code list_experts(struct folder *f, const struct pp_tensor *t)
{
    const bool shared = strstr(t->name, "_chexps.weight");
    return list_pieces(f, t, shared ? "exps.weight" : "_exps.weight", t->ne[2], t->ne[1], 2);
}

/* RWKV's vectors that files have in one tensor. */
static bool is_of_mixes(const struct folder *f, const struct pp_tensor *t)
{
    return pp_source_hparams(f->s)->rwkv && strstr(t->name, ".time_mix_lerp_fused.weight");
}

static enum pp_code list_mixes(struct folder *f, const struct pp_tensor *t)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const int64_t n = hp->rwkv6 || !hp->rwkv_ranks[3] ? N_MIXES - 1 : N_MIXES; /* without gates, too */
    if (t->ne[1] * t->ne[2] * t->ne[3] != n)
        return fail_place(f, t->name);
    const enum pp_code code = list_pieces(f, t, "_fused.weight", n, 1, 1);
    for (size_t i = 1; i <= (size_t)n && !code; i++)
        f->items[f->n - i].n_dims = 3; /* [1, 1, n_embd] */
    return code;
}

/* A vector that folders store as the product of a norm and a matrix of one row: the matrix gets the values, the norm
 * ones. */
static bool is_score(const struct folder *f, const struct pp_tensor *t)
{
    return pp_source_hparams(f->s)->attn_res_block && strstr(t->name, "_res_score.weight");
}

static enum pp_code list_score(struct folder *f, const struct pp_tensor *t)
{
    char name[NAME];
    enum pp_code code = list_item(f, t, t->name, NULL);
    if (code)
        return code;
    f->items[f->n - 1].n_dims = 2; /* [1, n_embd] */
    snprintf(name, sizeof name, "%.*s.ones.weight", (int)(strlen(t->name) - strlen(".weight")), t->name);
    if (!(code = list_item(f, t, name, NULL)))
        f->items[f->n - 1].ones = true;
    return code;
}

/* Norms of heads that folders store as a vector for each head. */
static bool is_by_head(const struct folder *f, const struct pp_tensor *t)
{
    struct pp_buf name = {0};
    const bool norm = strstr(t->name, ".attn_q_norm.weight") || strstr(t->name, ".attn_k_norm.weight");
    const bool split = norm && t->n_dims == 2 && !line_of(f, t->name, &name);
    pp_buf_free(&name);
    return split;
}

static enum pp_code list_heads(struct folder *f, const struct pp_tensor *t)
{
    return list_pieces(f, t, ".weight", t->ne[1], 1, 1);
}

static const char fused[] = ".attn_qkv.";

/* Fused q, k and v, in a family whose folders have them separately. */
static bool is_fused(const struct folder *f, const struct pp_tensor *t)
{
    struct pp_buf name = {0};
    const bool apart = strstr(t->name, fused) && !line_of(f, t->name, &name);
    pp_buf_free(&name);
    return apart;
}

static enum pp_code list_qkv(struct folder *f, const struct pp_tensor *t)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const int64_t n_q = hp->n_head * hp->head_dim, n_kv = hp->n_head_kv * hp->head_dim;
    const struct part parts[] = {{0, n_q}, {n_q, n_kv}, {n_q + n_kv, n_kv}};
    const char *at = strstr(t->name, fused);
    enum pp_code code = PP_OK;
    if (t->n_dims > 2 || t->ne[t->n_dims > 1] != n_q + 2 * n_kv)
        return pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s does not have %lld rows", t->name,
                       (long long)(n_q + 2 * n_kv));
    for (int i = 0; i < 3 && !code; i++) {
        char name[NAME];
        snprintf(name, sizeof name, "%.*s.attn_%c.%s", (int)(at - t->name), t->name, "qkv"[i], at + strlen(fused));
        code = list_item(f, t, name, &parts[i]);
    }
    return code;
}

/* The line of the family's fused q, k and v matrix, which GGUF has separately; or NULL. name: its name in the layer of
 * t. */
static const struct pp_arch_name *find_joined(const struct folder *f, const struct pp_tensor *t, struct pp_buf *name)
{
    static const char *const kinds[] = {".attn_q.", ".attn_k.", ".attn_v."};
    const char *at = NULL;
    char whole[NAME];
    for (int i = 0; i < 3 && !at; i++)
        at = strstr(t->name, kinds[i]);
    if (!at)
        return NULL;
    snprintf(whole, sizeof whole, "%.*s%s%s", (int)(at - t->name), t->name, fused, at + strlen(kinds[0]));
    const struct pp_arch_name *line = line_of(f, whole, name);
    const bool apart = line && (line->form == PP_HF_QKV_STACKED || line->form == PP_HF_QKV_BY_GROUP ||
                                line->form == PP_HF_QKV_IN_PIECES);
    return apart ? line : NULL;
}

static bool is_joined(const struct folder *f, const struct pp_tensor *t)
{
    struct pp_buf name = {0};
    const bool joined = find_joined(f, t, &name) != NULL;
    pp_buf_free(&name);
    return joined;
}

/* Lists one item for all three, at q's turn. */
static enum pp_code list_joined(struct folder *f, const struct pp_tensor *t)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const char *at = strstr(t->name, ".attn_q.");
    struct pp_buf name = {0};
    struct item *item = &f->items[f->n];
    if (!at)
        return PP_OK;
    if (f->opt->bits || t->n_dims != 2)
        return fail_place(f, t->name);
    const struct pp_arch_name *line = find_joined(f, t, &name);
    *item = (struct item){.from = t, .type = pp_folder_float_type(f, t), .order = QKV, .form = line->form, .n_dims = 2,
                          .halves = !hp->rope_neox && !f->arch->hf_pairs,
                          .ne = {t->ne[0], (hp->n_head + 2 * hp->n_head_kv) * hp->head_dim, 1, 1}};
    enum pp_code code = name_item(f, item, &name);
    pp_buf_free(&name);
    for (int i = 0; i < 3 && !code; i++) {
        char own[NAME];
        snprintf(own, sizeof own, "%.*s.attn_%c.%s", (int)(at - t->name), t->name, "qkv"[i], at + strlen(".attn_q."));
        const struct pp_tensor *each = item->qkv[i] = pp_source_tensor(f->s, own);
        if (!each || each->n_dims != 2 || each->ne[0] != t->ne[0] ||
            each->ne[1] != (i ? hp->n_head_kv : hp->n_head) * hp->head_dim)
            code = pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s is missing, or has another shape", own);
    }
    f->n += !code;
    return code;
}

/* The index in pp_by_keys of the whole of which a tensor of a layer with states is a part, or -1; *stem: length of the
 * name's common beginning. */
static int number_of_states(const struct folder *f, const struct pp_tensor *t, int *stem)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const int64_t l = strncmp(t->name, "blk.", 4) == 0 ? strtol(t->name + 4, NULL, 10) : -1;
    if (!hp->n_state_head || hp->mamba || l < 0 || l >= hp->n_layer || !(hp->layer[l] & PP_LAYER_RECURRENT))
        return -1;
    for (int i = 0; i < PP_BY_KEYS; i++) {
        const char *first = strstr(t->name, pp_by_keys[i].parts[0]), *second = strstr(t->name, pp_by_keys[i].parts[1]);
        struct pp_buf name = {0};
        char whole[NAME], own[NAME];
        if (!first && !second)
            continue;
        *stem = (int)((first ? first : second) - t->name);
        snprintf(whole, sizeof whole, "%.*s%s", *stem, t->name, pp_by_keys[i].whole);
        snprintf(own, sizeof own, "%.*s%s", *stem, t->name, pp_by_keys[i].parts[0]);
        /* if the family's files have used the name for both, folders have no such whole */
        const bool joined = line_of(f, whole, &name) && !line_of(f, own, &name);
        pp_buf_free(&name);
        return joined ? i : -1;
    }
    return -1;
}

static bool is_of_states(const struct folder *f, const struct pp_tensor *t)
{
    int stem;
    return number_of_states(f, t, &stem) >= 0;
}

/* Lists one item for both parts, at the first one's turn. */
static enum pp_code list_states(struct folder *f, const struct pp_tensor *t)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    int stem = 0;
    const int i = number_of_states(f, t, &stem);
    const int64_t n_first = pp_key_part_rows(hp, pp_by_keys[i].kinds[0]);
    const int64_t n_second = pp_key_part_rows(hp, pp_by_keys[i].kinds[1]);
    struct pp_buf name = {0};
    struct item *item = &f->items[f->n];
    char own[NAME];
    if (!strstr(t->name, pp_by_keys[i].parts[0]))
        return PP_OK;
    snprintf(own, sizeof own, "%.*s%s", stem, t->name, pp_by_keys[i].parts[1]);
    const struct pp_tensor *second = pp_source_tensor(f->s, own);
    if (!second || t->n_dims != 2 || second->n_dims != 2 || t->ne[1] != n_first || second->ne[1] != n_second ||
        second->ne[0] != t->ne[0])
        return pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s lacks its %.40s, or that has the wrong size", t->name,
                       own);
    snprintf(own, sizeof own, "%.*s%s", stem, t->name, pp_by_keys[i].whole);
    if (f->opt->bits || !line_of(f, own, &name)) {
        pp_buf_free(&name);
        return fail_place(f, t->name);
    }
    *item = (struct item){.from = t, .with = second, .type = pp_folder_float_type(f, t), .order = BY_KEY, .n_dims = 2,
                          .ne = {t->ne[0], n_first + n_second, 1, 1}};
    enum pp_code code = name_item(f, item, &name);
    pp_buf_free(&name);
    f->n += !code;
    return code;
}

/* Whether the tensor is written together with another one. */
static bool is_second(const struct folder *f, const struct pp_tensor *t)
{
    struct pp_buf name = {0};
    const struct pp_arch_name *line = line_of(f, t->name, &name);
    const bool tap = line && (line->form == PP_HF_TWO_TAPS_4D || line->form == PP_HF_TWO_TAPS_3D) &&
                     !strstr(t->name, "_last.");
    const bool second = line && line->second && (strstr(t->name, ".ffn_up") || strstr(t->name, ".attn_v.") || tap ||
                                                 strstr(t->name, ".attn_gate.") || strstr(t->name, ".indexer.k_proj."));
    pp_buf_free(&name);
    return second;
}

/* Matrices of heads, in families whose folders have those of keys and of values in one. */
static bool is_of_heads(const struct folder *f, const struct pp_tensor *t)
{
    struct pp_buf name = {0};
    const bool kind = strstr(t->name, ".attn_k_b.weight") || strstr(t->name, ".attn_v_b.weight");
    const bool apart = kind && !line_of(f, t->name, &name);
    pp_buf_free(&name);
    return apart;
}

/* Lists one item for both, at the keys' turn. */
static enum pp_code list_of_heads(struct folder *f, const struct pp_tensor *t)
{
    const char *at = strstr(t->name, ".attn_k_b.weight");
    struct joined *joined = &f->joined[f->n_joined];
    char name[NAME];
    if (!at)
        return PP_OK;
    if (f->n_joined == (size_t)pp_source_hparams(f->s)->n_layer) /* more than there are layers */
        return fail_place(f, t->name);
    snprintf(name, sizeof name, "%.*s.attn_v_b.weight", (int)(at - t->name), t->name);
    enum pp_code code = pp_join_heads(t, pp_source_tensor(f->s, name), pp_source_hparams(f->s), &joined->t,
                                      &joined->rows, f->err);
    snprintf(name, sizeof name, "%.*s.attn_kv_b.weight", (int)(at - t->name), t->name);
    f->n_joined++;
    return code ? code : list_item(f, &joined->t, name, NULL);
}

/* Whether folders store a stack as separate matrices: they have names for these only. */
static bool is_split(const struct folder *f, const struct pp_tensor *t)
{
    const bool end = strstr(t->name, "_exps.weight") || strstr(t->name, "_chexps.weight");
    struct pp_buf name = {0};
    const bool split = t->n_dims == 3 && end && !line_of(f, t->name, &name);
    pp_buf_free(&name);
    return split;
}

/* GGUF files of some families have the embeddings twice, folders once. */
static bool is_embeddings(const struct folder *f, const struct pp_tensor *t)
{
    const struct pp_tensor *e = pp_source_tensor(f->s, "token_embd.weight");
    return f->arch->gguf_untied && strcmp(t->name, "output.weight") == 0 && e && e->type == t->type && !t->rows &&
           !e->rows && e->size == t->size && memcmp(e->data, t->data, t->size) == 0;
}

/* Checks that no two tensors have the same name in the folder. */
static enum pp_code check_names(const struct folder *f)
{
    struct pp_name_index index = {0};
    enum pp_code code = pp_name_index_init(&index, f->n) ? PP_OK : pp_fail_nomem(f->err, "the list of tensors");
    for (size_t i = 0; i < f->n && !code; i++)
        if (!pp_name_index_add(&index, f->items[i].name, strlen(f->items[i].name)))
            code = pp_fail(f->err, PP_ERR_FORMAT, "tensors %.200s and another would both be named %.200s",
                           f->items[i].from->name, f->items[i].name);
    pp_name_index_free(&index);
    return code;
}

enum pp_code pp_folder_list(struct folder *f)
{
    const size_t n = pp_source_n_tensors(f->s);
    size_t most = n;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < n; i++) {
        const struct pp_tensor *t = pp_source_tensor_at(f->s, i);
        most += 2 + (size_t)t->ne[2] + (is_by_head(f, t) ? (size_t)t->ne[1] : 0) + (is_of_mixes(f, t) ? N_MIXES : 0);
    }
    f->items = pp_calloc(most, sizeof *f->items);
    f->joined = pp_calloc((size_t)pp_source_hparams(f->s)->n_layer, sizeof *f->joined);
    if (!f->items || !f->joined)
        return pp_fail_nomem(f->err, "the list of tensors");
    f->tied = !pp_source_tensor(f->s, "output.weight");
    for (size_t i = 0; i < n && !code; i++) {
        const struct pp_tensor *t = pp_source_tensor_at(f->s, i);
        if (is_embeddings(f, t))
            f->tied = true;
        else if (!is_left_out(f, t) && !is_second(f, t))
            code = is_split(f, t)       ? list_experts(f, t)
                   : is_by_head(f, t)   ? list_heads(f, t)
                   : is_joined(f, t)    ? list_joined(f, t)
                   : is_of_heads(f, t)  ? list_of_heads(f, t)
                   : is_of_states(f, t) ? list_states(f, t)
                   : is_of_mixes(f, t)  ? list_mixes(f, t)
                   : is_score(f, t)     ? list_score(f, t)
                   : is_fused(f, t)     ? list_qkv(f, t)
                                        : list_item(f, t, t->name, NULL);
    }
    if (!code)
        code = check_names(f);
    place_items(f);
    return code;
}
