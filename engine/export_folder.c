/* export_folder.c - a model as a folder: config.json, the vocabulary's files and one model.safetensors, as transformers
 * reads it or, with affine groups of integers, as MLX does. Memory: a slice of rows; the file is written in place.
 *
 * MLX's form (mlx/backend/cpu/quantized.cpp): per group of a row w = scale * q + bias, q a stream of bits from the
 * lowest on. */
#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/arch/arch.h"
#include "engine/base/buf.h"
#include "engine/base/cancel.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/convert.h"
#include "engine/export.h"
#include "engine/gguf.h"
#include "engine/hf.h"
#include "engine/mlx_groups.h"
#include "engine/name_index.h"
#include "engine/quant.h"
#include "engine/quant_blocks.h"
#include "engine/rows.h"
#include "engine/source.h"
#include "engine/tensor_forms.h"
#include "engine/text.h"

enum { SLICE = 1 << 20, MAX_COPY = 256 << 20, NAME = 240 };

/* How the values of a tensor of ours go into one of the file. */
enum order {
    AS_THEY_ARE,
    BY_HALVES,  /* rows of q and k, from GGUF's order to Hugging Face's; of a bias elements */
    BY_HEAD,    /* rows of q, k and v of one head after the other; likewise */
    TURNED,     /* columns become rows */
    ONE_BEHIND, /* the rows of a gate, then those of the value */
    QKV,        /* those of q, k and v, in the order that `form` says */
    BY_KEY,     /* of what goes into states, `from`, and of the gates, `with`, those of one key after the other */
};

/* One tensor of the file, or three of it if it is quantised. */
struct item {
    const struct pp_tensor *from;
    const struct pp_tensor *with; /* whose rows, or in rows of biases elements, take turns with those, or come behind
                                     them; or NULL */
    bool side_by_side;          /* TURNED: they come behind them in each row, and do not take turns */
    const struct pp_tensor *qkv[3]; /* QKV */
    enum pp_hf_form form;
    bool reordered;             /* heads of states go from GGUF's order to the folder's */
    struct pp_state_order heads;
    bool halves;                /* whose rows of q and k go from GGUF's order to Hugging Face's */
    char name[NAME];            /* without ".weight" if it is quantised */
    uint32_t type;              /* of floats; quantised: of scales and biases */
    int bits;                   /* 0: floats */
    enum order order;
    int64_t head_dim, n_head, n_head_kv; /* BY_HALVES, BY_HEAD */
    int64_t first_row;          /* of `from`, of a vector the first element: an expert's, or of q, k or v */
    float add;                  /* to every value */
    bool logs;                  /* of every value, without its minus, the logarithm */
    int n_dims;                 /* as it is written, the fastest first */
    int64_t ne[PP_MAX_DIMS];
    int64_t row;                /* of a vector that is a matrix in the new folder: values of its rows; 0: it is none */
    bool last_of_one;           /* of [n, 1, taps] the last two dimensions change places */
    uint64_t at, scales_at, biases_at; /* in the data */
};

struct folder {
    const struct pp_source *s;
    const struct pp_arch *arch;
    const struct pp_convert_options *opt;
    const char *dst;
    int64_t group;              /* MLX */
    struct item *items;
    size_t n;
    bool tied;                  /* the output is the embeddings */
    struct joined {
        struct pp_tensor t;
        struct pp_rows rows;
    } *joined;                  /* [n_joined]: matrices of heads, of two of ours each */
    size_t n_joined;
    cJSON *config;
    uint64_t data_size, data_at;
    char *temp, *path;
    int fd;
    struct pp_error *err;
};

static enum pp_code fail_write(const struct folder *f)
{
    return pp_fail(f->err, PP_ERR_IO, "cannot write %s: %s", f->path, strerror(errno));
}

/* --- what is written --------------------------------------------------------------------------------------------- */

static int64_t n_rows_of(const struct item *item)
{
    return item->ne[1] * item->ne[2];
}

/* The line of the family's tables that has this tensor, and what it is called in the new folder; or NULL. */
static const struct pp_arch_name *line_of(const struct folder *f, const char *gguf_name, struct pp_buf *name)
{
    return pp_arch_hf_name(f->arch, pp_source_hparams(f->s), gguf_name, f->opt->bits != 0, name);
}

/* Ours that folders have in config.json instead, or that nobody uses. */
static bool is_left_out(const struct folder *f, const struct pp_tensor *t)
{
    return pp_is_behind_layers(pp_source_hparams(f->s), t->name) ||
           pp_is_of_first_values(pp_source_hparams(f->s), t->name) ||
           strncmp(t->name, "rope_factors_", strlen("rope_factors_")) == 0 ||
           strcmp(t->name, "rope_freqs.weight") == 0;
}

static enum pp_code fail_place(const struct folder *f, const char *name)
{
    return pp_fail(f->err, PP_ERR_UNSUPPORTED, "tensor %.200s of the family %s has no place in a model folder", name,
                   f->arch->name);
}

/* Quantised, what there are three of is called by the module's name. */
static enum pp_code name_item(const struct folder *f, struct item *item, const struct pp_buf *name)
{
    static const char weight[] = ".weight";
    size_t n = name->len;
    if (name->bad)
        return pp_fail_nomem(f->err, "a tensor's name");
    if (n >= NAME)
        return fail_place(f, item->from->name);
    if (item->bits && n > strlen(weight) && strcmp(name->data + n - strlen(weight), weight) == 0)
        n -= strlen(weight);
    else
        item->bits = 0;
    snprintf(item->name, sizeof item->name, "%.*s", (int)n, name->data);
    return PP_OK;
}

/* The other one of a gate and a value, or of keys and values, that are one tensor. */
static const struct pp_tensor *other_of(const struct folder *f, const struct pp_tensor *t)
{
    static const char *const pairs[][2] = {{".ffn_gate", ".ffn_up"}, {".attn_k.", ".attn_v."}};
    char name[NAME];
    int i = 0;
    const char *at = strstr(t->name, pairs[0][0]); /* alone, exps, shexp */
    if (!at)
        at = strstr(t->name, pairs[i = 1][0]);
    if (!at)
        return NULL;
    snprintf(name, sizeof name, "%.*s%s%s", (int)(at - t->name), t->name, pairs[i][1], at + strlen(pairs[i][0]));
    const struct pp_tensor *other = pp_source_tensor(f->s, name);
    return other && memcmp(other->ne, t->ne, sizeof t->ne) == 0 ? other : NULL;
}

static void turn(struct item *item)
{
    const int64_t n = item->ne[0];
    item->order = TURNED;
    item->ne[0] = item->ne[1];
    item->ne[1] = n;
}

static enum pp_code shape_item(const struct folder *f, struct item *item, enum pp_hf_form form,
                               enum pp_row_order rows)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const bool halves = form == PP_HF_EXPERTS_HALVES_TURNED, behind = form == PP_HF_HALVES;
    const bool in_turns = form == PP_HF_EXPERTS_GATE_UP || form == PP_HF_BIASES_GATE_UP || halves;
    item->head_dim = hp->head_dim;
    item->n_head = hp->n_head;
    item->n_head_kv = hp->n_head_kv;
    if ((in_turns || behind) && !(item->with = other_of(f, item->from)))
        return pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s has no like beside it", item->from->name);
    if (form == PP_HF_BEHIND_RESERVED)
        return pp_fail(f->err, PP_ERR_UNSUPPORTED, "folders of the family %s hold rows of %.200s that this one lacks",
                       f->arch->name, item->from->name);
    if (form == PP_HF_PLUS_ONE)
        item->add = -1;
    item->logs = form == PP_HF_MINUS_EXP || form == PP_HF_MINUS_EXP_COLUMN;
    if (form == PP_HF_COLUMN || form == PP_HF_MINUS_EXP_COLUMN || form == PP_HF_FLAT ||
        form == PP_HF_GROUPS) {
        item->n_dims = 1;
        item->ne[0] *= item->ne[1];
        item->ne[1] = 1;
    }
    item->reordered = pp_source_gguf(f->s) && pp_state_order(hp, item->from->name, &item->heads);
    if (form == PP_HF_TURNED || form == PP_HF_EXPERTS_TURNED || form == PP_HF_EXPERTS_GATE_UP ||
        form == PP_HF_EXPERTS_FLAT_TURNED || halves)
        turn(item);
    if (form == PP_HF_EXPERTS_FLAT || form == PP_HF_EXPERTS_FLAT_TURNED)
        item->n_dims = 2;
    item->side_by_side = halves;
    if (form == PP_HF_ONE_ROW)
        item->n_dims = 2;
    if (form == PP_HF_NUMBER)
        item->n_dims = 0;
    if (form == PP_HF_CHANNELS) {
        item->n_dims = 3;
        item->ne[2] = item->ne[1];
        item->ne[1] = 1;
        item->last_of_one = f->opt->bits != 0;
    }
    if (form == PP_HF_HEADS && (item->n_dims != 1 || item->ne[0] % hp->state_key_dim != 0))
        return pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s has another size than all heads", item->from->name);
    if (form == PP_HF_HEADS)
        item->row = hp->state_key_dim;
    if (form == PP_HF_QKV_BY_HEAD)
        item->order = BY_HEAD;
    if (in_turns)
        item->ne[0] *= 2;
    if (behind) {
        item->ne[1] *= 2;
        item->order = ONE_BEHIND;
    }
    if (!hp->rope_neox && !f->arch->hf_pairs && rows != PP_ROWS_SAME)
        item->order = BY_HALVES;
    return PP_OK;
}

/* Rows that go elsewhere go by heads: the tensor has those of whole heads, or of all. */
static enum pp_code check_heads(const struct folder *f, const struct item *item)
{
    const struct pp_tensor *t = item->from;
    const int64_t n = item->reordered && item->heads.columns ? t->ne[0] : t->ne[t->n_dims > 1];
    const struct pp_state_order *o = &item->heads;
    bool good = n > 0;
    if (item->reordered)
        good = n == o->first + o->size * o->n_keys * o->share;
    else if (item->order == BY_HEAD)
        good = n == (item->n_head + 2 * item->n_head_kv) * item->head_dim;
    else if (item->order == BY_HALVES)
        good = item->first_row % item->head_dim == 0 && item->ne[item->n_dims > 1] % item->head_dim == 0;
    return good ? PP_OK : pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s has %lld rows, which is no number of heads",
                                  t->name, (long long)n);
}

static uint32_t float_type(const struct folder *f, const struct pp_tensor *t)
{
    const uint32_t type = t->rows && t->rows->form == PP_FORM_FLOATS ? t->rows->type_there : t->type;
    if (f->opt->out_type)
        return (uint32_t)pp_type_by_name(f->opt->out_type);
    return type == PP_TYPE_F32 || type == PP_TYPE_BF16 ? type : PP_TYPE_F16;
}

static bool is_wanted_in_groups(const struct folder *f, const struct pp_tensor *t)
{
    return f->opt->bits && t->n_dims >= 2 && !pp_export_keeps_f32(t) && t->ne[0] % f->group == 0;
}

static uint64_t take(struct folder *f, uint64_t size)
{
    f->data_size += size;
    return f->data_size - size;
}

/* Other readers allow no gaps, and ours wants floats at multiples of their size: so those of four bytes come first, and
 * words of integers with them. */
static void place_items(struct folder *f)
{
    for (int half = 0; half < 2; half++)
        for (size_t i = 0; i < f->n; i++) {
            struct item *item = &f->items[i];
            const uint64_t n = (uint64_t)(item->ne[0] * n_rows_of(item));
            const uint64_t size = (uint64_t)pp_type_info(item->type)->block_bytes;
            if (item->bits && !half)
                item->at = take(f, n * (uint64_t)item->bits / 8);
            if (!item->bits && half == (size == 2))
                item->at = take(f, n * size);
            if (item->bits && half) {
                item->scales_at = take(f, 2 * (n / (uint64_t)f->group));
                item->biases_at = take(f, 2 * (n / (uint64_t)f->group));
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
    *item = (struct item){.from = t, .type = float_type(f, t), .bits = is_wanted_in_groups(f, t) ? f->opt->bits : 0,
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
    if (!code && item->bits && (item->order == TURNED || item->with))
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

enum { N_MIXES = 6 };

/* RWKV's vectors that files have in one tensor. */
static bool is_of_mixes(const struct folder *f, const struct pp_tensor *t)
{
    return pp_source_hparams(f->s)->rwkv && strstr(t->name, ".time_mix_lerp_fused.weight");
}

static enum pp_code list_mixes(struct folder *f, const struct pp_tensor *t)
{
    if (t->ne[1] * t->ne[2] * t->ne[3] != N_MIXES)
        return fail_place(f, t->name);
    const enum pp_code code = list_pieces(f, t, "_fused.weight", N_MIXES, 1, 1);
    for (size_t i = 1; i <= N_MIXES && !code; i++)
        f->items[f->n - i].n_dims = 3; /* [1, 1, n_embd] */
    return code;
}

/* Norms of heads, of which each has its own, where folders have a vector of each. */
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

/* q, k and v in one, where folders of the family have them apart. */
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

/* The line of the family's matrix of q, k and v, which it has apart in GGUF; or NULL. name: what it is called of the
 * layer of t. */
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
    const bool apart = line && (line->form == PP_HF_QKV_STACKED || line->form == PP_HF_QKV_BY_GROUP);
    return apart ? line : NULL;
}

static bool is_joined(const struct folder *f, const struct pp_tensor *t)
{
    struct pp_buf name = {0};
    const bool joined = find_joined(f, t, &name) != NULL;
    pp_buf_free(&name);
    return joined;
}

/* One item for all three, when it is the turn of q. */
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
    *item = (struct item){.from = t, .type = float_type(f, t), .order = QKV, .form = line->form, .n_dims = 2,
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

/* Queries, keys and values of states, and gates beside them, where folders have them by keys, in one. */
static bool is_of_states(const struct folder *f, const struct pp_tensor *t)
{
    struct pp_buf name = {0};
    const bool kind = strstr(t->name, ".attn_qkv.weight") || strstr(t->name, ".attn_gate.weight");
    const bool apart = kind && pp_source_hparams(f->s)->n_state_head && !line_of(f, t->name, &name);
    pp_buf_free(&name);
    return apart;
}

/* One item for both, when it is the turn of the former. */
static enum pp_code list_states(struct folder *f, const struct pp_tensor *t)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const int64_t keys = hp->n_state_key_head * hp->state_key_dim, values = hp->n_state_head * hp->state_value_dim;
    const char *at = strstr(t->name, ".attn_qkv.weight");
    struct pp_buf name = {0};
    struct item *item = &f->items[f->n];
    char own[NAME];
    if (!at)
        return PP_OK;
    snprintf(own, sizeof own, "%.*s.attn_gate.weight", (int)(at - t->name), t->name);
    const struct pp_tensor *gate = pp_source_tensor(f->s, own);
    if (!gate || t->n_dims != 2 || gate->n_dims != 2 || t->ne[1] != 2 * keys + values || gate->ne[1] != values ||
        gate->ne[0] != t->ne[0])
        return pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s has no gate beside it, or another size", t->name);
    snprintf(own, sizeof own, "%.*s.ssm_in.weight", (int)(at - t->name), t->name);
    if (f->opt->bits || !line_of(f, own, &name)) {
        pp_buf_free(&name);
        return fail_place(f, t->name);
    }
    *item = (struct item){.from = t, .with = gate, .type = float_type(f, t), .order = BY_KEY, .n_dims = 2,
                          .ne = {t->ne[0], 2 * (keys + values), 1, 1}};
    enum pp_code code = name_item(f, item, &name);
    pp_buf_free(&name);
    f->n += !code;
    return code;
}

/* Whether the tensor is written where another one is. */
static bool is_second(const struct folder *f, const struct pp_tensor *t)
{
    struct pp_buf name = {0};
    const struct pp_arch_name *line = line_of(f, t->name, &name);
    const bool second = line && line->second && (strstr(t->name, ".ffn_up") || strstr(t->name, ".attn_v."));
    pp_buf_free(&name);
    return second;
}

/* Matrices of heads, where folders have those of keys and of values in one. */
static bool is_of_heads(const struct folder *f, const struct pp_tensor *t)
{
    struct pp_buf name = {0};
    const bool kind = strstr(t->name, ".attn_k_b.weight") || strstr(t->name, ".attn_v_b.weight");
    const bool apart = kind && !line_of(f, t->name, &name);
    pp_buf_free(&name);
    return apart;
}

/* One item for both, when it is the turn of the keys. */
static enum pp_code list_of_heads(struct folder *f, const struct pp_tensor *t)
{
    const char *at = strstr(t->name, ".attn_k_b.weight");
    struct joined *joined = &f->joined[f->n_joined];
    char name[NAME];
    if (!at)
        return PP_OK;
    if (f->n_joined == (size_t)pp_source_hparams(f->s)->n_layer) /* of layers that there are none of */
        return fail_place(f, t->name);
    snprintf(name, sizeof name, "%.*s.attn_v_b.weight", (int)(at - t->name), t->name);
    enum pp_code code = pp_join_heads(t, pp_source_tensor(f->s, name), pp_source_hparams(f->s), &joined->t,
                                      &joined->rows, f->err);
    snprintf(name, sizeof name, "%.*s.attn_kv_b.weight", (int)(at - t->name), t->name);
    f->n_joined++;
    return code ? code : list_item(f, &joined->t, name, NULL);
}

/* A stack that folders have no name for, but for its matrices. */
static bool is_split(const struct folder *f, const struct pp_tensor *t)
{
    const bool end = strstr(t->name, "_exps.weight") || strstr(t->name, "_chexps.weight");
    struct pp_buf name = {0};
    const bool split = t->n_dims == 3 && end && !line_of(f, t->name, &name);
    pp_buf_free(&name);
    return split;
}

/* GGUF files of some families hold the embeddings twice where folders hold them once. */
static bool is_embeddings(const struct folder *f, const struct pp_tensor *t)
{
    const struct pp_tensor *e = pp_source_tensor(f->s, "token_embd.weight");
    return f->arch->gguf_untied && strcmp(t->name, "output.weight") == 0 && e && e->type == t->type && !t->rows &&
           !e->rows && e->size == t->size && memcmp(e->data, t->data, t->size) == 0;
}

/* Whatever a file calls its tensors, no two become one. */
static enum pp_code check_names(const struct folder *f)
{
    struct pp_name_index index = {0};
    enum pp_code code = pp_name_index_init(&index, f->n) ? PP_OK : pp_fail_nomem(f->err, "the list of tensors");
    for (size_t i = 0; i < f->n && !code; i++)
        if (!pp_name_index_add(&index, f->items[i].name, strlen(f->items[i].name)))
            code = pp_fail(f->err, PP_ERR_FORMAT, "tensor %.200s would be called %.200s, as another one is",
                           f->items[i].from->name, f->items[i].name);
    pp_name_index_free(&index);
    return code;
}

static enum pp_code list_items(struct folder *f)
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
                   : is_fused(f, t)     ? list_qkv(f, t)
                                        : list_item(f, t, t->name, NULL);
    }
    if (!code)
        code = check_names(f);
    place_items(f);
    return code;
}

/* --- the header -------------------------------------------------------------------------------------------------- */

static void describe(struct pp_buf *b, const char *name, const char *end, const char *dtype, int n_dims,
                     const int64_t *shape, uint64_t at, uint64_t size)
{
    pp_buf_fmt(b, ",\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", name, end, dtype);
    for (int d = 0; d < n_dims; d++)
        pp_buf_fmt(b, "%s%lld", d ? "," : "", (long long)shape[d]);
    pp_buf_fmt(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + size));
}

static void describe_item(const struct folder *f, const struct item *item, struct pp_buf *b)
{
    const char *dtype = pp_type_info(item->type)->name;
    const uint64_t n = (uint64_t)(item->ne[0] * n_rows_of(item));
    const int last = item->n_dims - 1;
    int64_t shape[PP_MAX_DIMS];
    for (int d = 0; d < item->n_dims; d++)
        shape[d] = item->ne[last - d];
    if (item->n_dims == 2)
        shape[0] = n_rows_of(item); /* of a stack, too */
    if (item->last_of_one) {
        shape[1] = item->ne[0];
        shape[2] = 1;
    }
    if (item->row) {
        shape[0] = item->ne[0] / item->row;
        shape[1] = item->row;
    }
    if (!item->bits) {
        describe(b, item->name, "", dtype, item->row ? 2 : item->n_dims, shape, item->at,
                 n * (uint64_t)pp_type_info(item->type)->block_bytes);
        return;
    }
    const uint64_t n_groups = n / (uint64_t)f->group;
    shape[last] = item->ne[0] * item->bits / 32;
    describe(b, item->name, ".weight", "U32", item->n_dims, shape, item->at, n * (uint64_t)item->bits / 8);
    shape[last] = item->ne[0] / f->group;
    describe(b, item->name, ".scales", dtype, item->n_dims, shape, item->scales_at, 2 * n_groups);
    describe(b, item->name, ".biases", dtype, item->n_dims, shape, item->biases_at, 2 * n_groups);
}

static enum pp_code put(const struct folder *f, const void *data, size_t size, uint64_t at)
{
    for (size_t done = 0; done < size;) {
        const ssize_t n = pwrite(f->fd, (const char *)data + done, size - done, (off_t)(at + done));
        if (n <= 0 && errno != EINTR)
            return fail_write(f);
        done += n > 0 ? (size_t)n : 0;
    }
    return PP_OK;
}

/* The data begin at a multiple of 8, and so does every tensor. */
static enum pp_code write_header(struct folder *f)
{
    struct pp_buf b = {0};
    for (int i = 0; i < 8; i++)
        pp_buf_char(&b, 0);
    pp_buf_fmt(&b, "{\"__metadata__\":{\"format\":\"%s\"}", f->opt->bits ? "mlx" : "pt");
    for (size_t i = 0; i < f->n; i++)
        describe_item(f, &f->items[i], &b);
    pp_buf_char(&b, '}');
    while (!b.bad && b.len % 8)
        pp_buf_char(&b, ' ');
    const uint64_t length = b.len - 8;
    for (int i = 0; i < 8 && !b.bad; i++)
        b.data[i] = (char)(uint8_t)(length >> 8 * i);
    f->data_at = b.len;
    enum pp_code code = b.bad ? pp_fail_nomem(f->err, f->path) : put(f, b.data, b.len, 0);
    if (!code && ftruncate(f->fd, (off_t)(f->data_at + f->data_size)) != 0)
        code = fail_write(f);
    pp_buf_free(&b);
    return code;
}

/* --- groups of integers ------------------------------------------------------------------------------------------ */

/* Whether the integers of a tensor stay as they are. */
static bool keeps_blocks(const struct folder *f, const struct item *item)
{
    const struct pp_tensor *t = item->from;
    return item->bits == 4 && f->group == 32 && item->type == PP_TYPE_F16 &&
           (t->type == PP_TYPE_Q4_0 || t->type == PP_TYPE_Q4_1) && (!t->rows || t->rows->as_blocks) &&
           !(item->reordered && item->heads.columns);
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

/* Room for a slice. */
struct room {
    float *floats;              /* [rows, n_cols] */
    float *row;                 /* [n_cols] */
    uint8_t *blocks;            /* [rows, bytes of a row as it is stored] */
    uint8_t *out;
    uint16_t *scales, *biases;  /* [rows, groups] */
};

static enum pp_code read_blocks(const struct item *item, int64_t row, int64_t n, uint8_t *to, struct pp_error *err)
{
    const size_t bytes = pp_type_row_bytes(item->from->type, item->from->ne[0]);
    if (item->from->rows)
        return pp_rows_read(item->from->rows, row, n, to, err);
    memcpy(to, (const uint8_t *)item->from->data + (size_t)row * bytes, (size_t)n * bytes);
    return PP_OK;
}

/* Which row of ours, or element of a bias, row r of the new tensor is. */
static int64_t row_of(const struct item *item, int64_t r)
{
    const int64_t dim = item->head_dim;
    if (item->reordered && !item->heads.columns)
        return pp_state_row(&item->heads, r);
    if (item->order == BY_HALVES)
        return pp_gguf_row(r, dim);
    if (item->order != BY_HEAD)
        return r;
    const int64_t each = item->n_head / item->n_head_kv, group = r / dim / (each + 2), j = r / dim % (each + 2);
    const int64_t head = j < each ? group * each + j : item->n_head + (j - each) * item->n_head_kv + group;
    return head * dim + r % dim;
}

/* Rows first .. first + n - 1 of the new tensor; in another order they are read one by one. */
static enum pp_code read_rows(const struct folder *f, const struct item *item, int64_t first, int64_t n,
                              const struct room *room)
{
    const int64_t n_cols = item->from->ne[0], run = item->order == AS_THEY_ARE && !item->reordered ? n : 1;
    const size_t bytes = pp_type_row_bytes(item->from->type, n_cols);
    enum pp_code code = PP_OK;
    for (int64_t r = 0; r < n && !code; r += run) {
        const int64_t row = item->first_row + row_of(item, first + r);
        code = keeps_blocks(f, item) ? read_blocks(item, row, run, room->blocks + (size_t)r * bytes, f->err)
                                     : pp_tensor_floats(item->from, row, run, room->floats + r * n_cols, f->err);
    }
    for (int64_t i = 0; item->add != 0.0f && i < n * n_cols; i++)
        room->floats[i] += item->add;
    for (int64_t i = 0; item->logs && i < n * n_cols; i++)
        room->floats[i] = logf(-room->floats[i]);
    if (!code && item->reordered && item->heads.columns)
        pp_state_columns(&item->heads, room->floats, n, n_cols, room->row);
    return code;
}

static enum pp_code write_groups(const struct folder *f, const struct item *item, int64_t first, int64_t n,
                                 const struct room *room)
{
    const int64_t n_cols = item->from->ne[0], n_groups = n_cols / f->group;
    const size_t row_bytes = (size_t)(n_cols * item->bits / 8), group_bytes = (size_t)(f->group * item->bits / 8);
    const uint8_t *block = room->blocks;
    for (int64_t g = 0; g < n * n_groups; g++) {
        uint8_t *q = room->out + (size_t)g * group_bytes;
        if (keeps_blocks(f, item))
            block = pp_mlx_group_of_block(item->from->type, block, q, &room->scales[g], &room->biases[g]);
        else
            pp_mlx_group_of_floats(item->bits, item->type, room->floats + g * f->group, f->group, q, &room->scales[g],
                                   &room->biases[g]);
    }
    const size_t size = 2 * (size_t)(n * n_groups);
    const uint64_t before = 2 * (uint64_t)(first * n_groups);
    if (!pp_row_finite(item->type, room->scales, n * n_groups) ||
        !pp_row_finite(item->type, room->biases, n * n_groups))
        return pp_fail(f->err, PP_ERR_FORMAT, "tensor %s holds values that are no numbers, or too large for %s",
                       item->name, pp_type_info(item->type)->name);
    enum pp_code code = put(f, room->out, (size_t)n * row_bytes, f->data_at + item->at + (uint64_t)first * row_bytes);
    if (!code)
        code = put(f, room->scales, size, f->data_at + item->scales_at + before);
    return code ? code : put(f, room->biases, size, f->data_at + item->biases_at + before);
}

static enum pp_code write_floats(const struct folder *f, const struct item *item, int64_t first, int64_t n,
                                 const struct room *room)
{
    const int64_t n_cols = item->ne[0];
    const size_t row_bytes = pp_type_row_bytes(item->type, n_cols);
    enum pp_code code = pp_quantize_rows(item->type, room->floats, room->out, n, n_cols, NULL, f->err);
    return code ? code : put(f, room->out, (size_t)n * row_bytes, f->data_at + item->at + (uint64_t)first * row_bytes);
}

/* --- matrices of others ------------------------------------------------------------------------------------------- */

/* Rows of a new matrix. */
struct span {
    int64_t matrix, first, n;
};

/* Every `step`-th value of rows of the new matrix, from `begin` on, is of tensor t. row: room for one of t. */
static enum pp_code spread(const struct item *item, const struct pp_tensor *t, struct span s, int64_t begin,
                           int64_t step, float *row, float *to, struct pp_error *err)
{
    enum pp_code code = PP_OK;
    for (int64_t r = 0; r < s.n && !code; r++, to += item->ne[0]) {
        code = pp_tensor_floats(t, s.matrix * item->ne[1] + s.first + r, 1, row, err);
        for (int64_t c = 0; c < t->ne[0] && !code; c++)
            to[row_of(item, c) * step + begin] = row[c];
    }
    return code;
}

/* Likewise, of columns of t. rows: room for so many of t. */
static enum pp_code spread_columns(const struct folder *f, const struct item *item, const struct pp_tensor *t,
                                   struct span s, int64_t begin, int64_t step, float *rows, int64_t n_at_once,
                                   float *to)
{
    const int64_t n_rows = t->ne[1];
    enum pp_code code = PP_OK;
    for (int64_t r = 0, n; r < n_rows && !code; r += n) {
        n = n_at_once < n_rows - r ? n_at_once : n_rows - r;
        code = pp_tensor_floats(t, s.matrix * n_rows + r, n, rows, f->err);
        for (int64_t i = 0; i < n && !code; i++)
            for (int64_t c = 0; c < s.n; c++)
                to[c * item->ne[0] + (r + i) * step + begin] = rows[i * t->ne[0] + s.first + c];
        pp_source_let_go(f->s, t, s.matrix * n_rows + r, n);
    }
    return code;
}

/* The elements of a bias of q, k or v go where the rows go; a column becomes a vector. */
static enum pp_code arrange(const struct item *item, float *row, float *to, struct pp_error *err)
{
    enum pp_code code = pp_tensor_floats(item->from, 0, item->from->ne[1], row, err);
    for (int64_t i = 0; i < item->ne[0] && !code; i++)
        to[i] = item->logs ? logf(-row[row_of(item, i)]) : row[item->first_row + row_of(item, i)];
    return code;
}

/* The rows of a matrix of the gates, then those of the values. */
static enum pp_code one_behind(const struct item *item, struct span s, float *to, struct pp_error *err)
{
    const int64_t each = item->from->ne[1], end = s.first + s.n;
    const int64_t n = s.first >= each ? 0 : end < each ? s.n : each - s.first;
    enum pp_code code = n ? pp_tensor_floats(item->from, s.matrix * each + s.first, n, to, err) : PP_OK;
    if (code || n == s.n)
        return code;
    return pp_tensor_floats(item->with, s.matrix * each + s.first + n - each, s.n - n, to + n * item->ne[0], err);
}

static enum pp_code join_qkv(const struct folder *f, const struct item *item, struct span s, float *to)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    enum pp_code code = PP_OK;
    for (int64_t r = 0, in; r < s.n && !code; r++) {
        const int part = pp_hf_qkv_row(item->form, hp, s.first + r, &in);
        const int64_t row = item->halves && part < 2 ? pp_gguf_row(in, hp->head_dim) : in;
        code = pp_tensor_floats(item->qkv[part], row, 1, to + r * item->ne[0], f->err);
    }
    return code;
}

/* Of each key its query's rows, then its own, those of its values, and of their gates. */
static enum pp_code join_by_key(const struct folder *f, const struct item *item, struct span s, float *to)
{
    const struct pp_hparams *hp = pp_source_hparams(f->s);
    const int64_t n = hp->n_state_key_head, key = hp->state_key_dim;
    const int64_t value = hp->n_state_head / n * hp->state_value_dim;
    enum pp_code code = PP_OK;
    for (int64_t r = s.first; r < s.first + s.n && !code; r++, to += item->ne[0]) {
        const int64_t k = r / (2 * (key + value)), j = r % (2 * (key + value));
        const int64_t row = j < key             ? k * key + j
                            : j < 2 * key         ? (n + k) * key + j - key
                            : j < 2 * key + value ? 2 * n * key + k * value + j - 2 * key
                                                  : k * value + j - 2 * key - value;
        code = pp_tensor_floats(j < 2 * key + value ? item->from : item->with, row, 1, to, f->err);
    }
    return code;
}

/* What matrix m was made of. */
static void let_go_of_matrix(const struct folder *f, const struct item *item, int64_t m)
{
    const struct pp_tensor *const of[] = {item->from, item->with, item->qkv[0], item->qkv[1], item->qkv[2]};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i] && m < of[i]->ne[2])
            pp_source_let_go(f->s, of[i], m * of[i]->ne[1], of[i]->ne[1]);
}

/* rows: room for n_at_once of the old matrix, or for a vector. */
static enum pp_code make_span(const struct folder *f, const struct item *item, struct span s, float *rows,
                              int64_t n_at_once, float *to)
{
    const bool turned = item->order == TURNED;
    const int64_t step = item->with && !item->side_by_side ? 2 : 1, behind = item->side_by_side ? item->ne[0] / 2 : 1;
    const struct pp_tensor *const of[] = {item->from, item->with};
    enum pp_code code = PP_OK;
    if (item->n_dims == 1)
        return arrange(item, rows, to, f->err);
    if (item->order == QKV)
        return join_qkv(f, item, s, to);
    if (item->order == ONE_BEHIND)
        return one_behind(item, s, to, f->err);
    if (item->order == BY_KEY)
        return join_by_key(f, item, s, to);
    for (int i = 0; i < 2 && of[i] && !code; i++)
        code = turned ? spread_columns(f, item, of[i], s, i ? behind : 0, step, rows, n_at_once, to)
                      : spread(item, of[i], s, i ? behind : 0, step, rows, to, f->err);
    return code;
}

/* Rows of the new matrix at a time. Of what is turned more, as all of the old one is read for them. */
static enum pp_code write_spans(const struct folder *f, const struct item *item)
{
    const int64_t n_cols = item->ne[0], n_rows = item->ne[1], slice = item->order == TURNED ? 2 * SLICE : SLICE;
    const int64_t step = slice / n_cols > 0 ? slice / n_cols : 1, most = step < n_rows ? step : n_rows;
    const size_t n = (size_t)(n_cols * most);
    struct room room = {.floats = pp_calloc(n, sizeof(float)), .out = pp_calloc(n, 4)};
    const int64_t all = item->from->ne[1], few = SLICE / item->from->ne[0] > 0 ? SLICE / item->from->ne[0] : 1;
    const int64_t n_at_once = item->n_dims == 1 || all < few ? all : item->order == TURNED ? few : 1;
    float *rows = pp_calloc((size_t)(item->from->ne[0] * n_at_once), sizeof *rows);
    enum pp_code code = room.floats && room.out && rows ? PP_OK : pp_fail_nomem(f->err, item->name);
    for (int64_t m = 0; m < item->ne[2]; m++)
        for (int64_t first = 0; first < n_rows && !code; first += most) {
            const struct span s = {m, first, most < n_rows - first ? most : n_rows - first};
            if (pp_cancelled(f->opt->cancel))
                code = pp_fail(f->err, PP_ERR_CANCELLED, "stopped; no model was written");
            if (!code)
                code = make_span(f, item, s, rows, n_at_once, room.floats);
            if (!code)
                code = write_floats(f, item, m * n_rows + first, s.n, &room);
            let_go_of_matrix(f, item, m);
        }
    pp_free(room.floats);
    pp_free(room.out);
    pp_free(rows);
    return code;
}

static enum pp_code write_item(const struct folder *f, const struct item *item)
{
    const int64_t n_cols = item->ne[0], n_rows = n_rows_of(item);
    const int64_t step = SLICE / n_cols > 0 ? SLICE / n_cols : 1, most = step < n_rows ? step : n_rows;
    const size_t n = (size_t)(most * n_cols);
    const bool part = item->n_dims == 1 && item->ne[0] != item->from->ne[0];
    const bool made = item->order == TURNED || item->order == QKV || item->with;
    if (made || (item->n_dims == 1 && (item->order != AS_THEY_ARE || item->reordered)) || part)
        return write_spans(f, item);
    struct room room = {.floats = pp_calloc(n, sizeof(float)), .blocks = pp_calloc(n, 1), .out = pp_calloc(n, 4),
                        .row = pp_calloc((size_t)n_cols, sizeof(float)), .scales = pp_calloc(n, 2),
                        .biases = pp_calloc(n, 2)};
    enum pp_code code = room.floats && room.row && room.blocks && room.out && room.scales && room.biases
                            ? PP_OK : pp_fail_nomem(f->err, item->name);
    for (int64_t first = 0; first < n_rows && !code; first += most) {
        const int64_t m = most < n_rows - first ? most : n_rows - first;
        if (pp_cancelled(f->opt->cancel))
            code = pp_fail(f->err, PP_ERR_CANCELLED, "stopped; no model was written");
        if (!code)
            code = read_rows(f, item, first, m, &room);
        if (!code)
            code = item->bits ? write_groups(f, item, first, m, &room) : write_floats(f, item, first, m, &room);
        pp_source_let_go(f->s, item->from, item->first_row + first, m);
    }
    pp_free(room.floats);
    pp_free(room.row);
    pp_free(room.blocks);
    pp_free(room.out);
    pp_free(room.scales);
    pp_free(room.biases);
    return code;
}

static enum pp_code write_items(const struct folder *f)
{
    const size_t total = pp_source_bytes(f->s);
    size_t done = 0;
    enum pp_code code = PP_OK;
    for (size_t i = 0; i < f->n && !code; i++) {
        if (f->opt->progress)
            f->opt->progress(f->opt->user, f->items[i].name, done, total);
        code = write_item(f, &f->items[i]);
        done += pp_type_row_bytes(f->items[i].from->type, f->items[i].ne[0]) * (size_t)n_rows_of(&f->items[i]);
    }
    return code ? code : pp_source_check(f->s, f->err);
}

static enum pp_code write_tensors(struct folder *f)
{
    struct pp_buf name = {0};
    pp_buf_fmt(&name, "model.safetensors.%ld.tmp", (long)getpid());
    f->path = pp_path_join(f->dst, "model.safetensors");
    f->temp = name.bad ? NULL : pp_path_join(f->dst, pp_buf_cstr(&name));
    pp_buf_free(&name);
    if (!f->path || !f->temp)
        return pp_fail_nomem(f->err, "a file name");
    f->fd = open(f->temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0)
        return fail_write(f);
    enum pp_code code = write_header(f);
    if (!code)
        code = write_items(f);
    if (!code && fsync(f->fd) != 0)
        code = fail_write(f);
    close(f->fd);
    if (!code && rename(f->temp, f->path) != 0)
        code = fail_write(f);
    if (code)
        unlink(f->temp);
    return code;
}

/* --- config.json ------------------------------------------------------------------------------------------------- */

static enum pp_code write_text(const struct folder *f, const char *name, const char *text, size_t n)
{
    char *path = pp_path_join(f->dst, name);
    if (!path)
        return pp_fail_nomem(f->err, "a file name");
    enum pp_code code = pp_write_file(path, text, n, 0666, f->err);
    pp_free(path);
    return code;
}

static enum pp_code make_config(struct folder *f, const struct pp_tokenizer *t)
{
    static const char *const gone[] = {"quantization", "quantization_config", "dtype"};
    static const char *const types[] = {[PP_TYPE_F32] = "float32", [PP_TYPE_F16] = "float16"};
    enum pp_code code = pp_export_config(f->s, t, f->tied, &f->config, f->err);
    cJSON *json = f->config;
    if (code)
        return code;
    for (int i = 0; i < 3; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(json, gone[i]);
    for (int i = 0; i < 2 && f->opt->bits; i++) { /* MLX writes both */
        cJSON *q = cJSON_AddObjectToObject(json, gone[i]);
        cJSON_AddNumberToObject(q, "group_size", (double)f->group);
        cJSON_AddNumberToObject(q, "bits", f->opt->bits);
    }
    const struct pp_tensor *e = pp_source_tensor(f->s, "token_embd.weight");
    const uint32_t type = e ? float_type(f, e) : PP_TYPE_F32;
    pp_config_put_text(json, "torch_dtype", type == PP_TYPE_BF16 ? "bfloat16" : types[type]);
    return PP_OK;
}

static enum pp_code write_config(const struct folder *f)
{
    char *text = cJSON_Print(f->config);
    enum pp_code code = text ? write_text(f, "config.json", text, strlen(text)) : pp_fail_nomem(f->err, "config.json");
    cJSON_free(text);
    return code;
}

/* --- the vocabulary ---------------------------------------------------------------------------------------------- */

static enum pp_code copy_file(const struct folder *f, const char *name)
{
    const char *folder = pp_source_folder(f->s);
    char *text, *path;
    size_t n;
    if (!pp_file_exists(folder, name))
        return PP_OK;
    if (!(path = pp_path_join(folder, name)))
        return pp_fail_nomem(f->err, "a file name");
    enum pp_code code = pp_read_file(path, MAX_COPY, &text, &n, f->err);
    pp_free(path);
    if (code)
        return code;
    code = write_text(f, name, text, n);
    pp_free(text);
    return code;
}

static int is_tiktoken(const struct dirent *d)
{
    static const char end[] = ".tiktoken";
    const size_t n = strlen(d->d_name);
    return d->d_name[0] != '.' && n > strlen(end) && strcmp(d->d_name + n - strlen(end), end) == 0;
}

static enum pp_code copy_tiktoken(const struct folder *f)
{
    struct dirent **found;
    const int n = scandir(pp_source_folder(f->s), &found, is_tiktoken, alphasort);
    enum pp_code code = PP_OK;
    for (int i = 0; i < n; i++) {
        code = code ? code : copy_file(f, found[i]->d_name);
        free(found[i]);
    }
    if (n >= 0)
        free(found);
    return code;
}

/* The modules of sentence-transformers, of which those with a folder of their own have a config.json there. */
static enum pp_code copy_modules(const struct folder *f)
{
    static const char modules_file[] = "modules.json";
    cJSON *modules;
    if (!pp_file_exists(pp_source_folder(f->s), modules_file))
        return PP_OK;
    enum pp_code code = pp_hf_modules(pp_source_folder(f->s), &modules, f->err);
    if (code)
        return code;
    for (const cJSON *module = modules->child; module && !code; module = module->next) {
        const char *path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(module, "path"));
        char name[NAME];
        char *folder = path && *path ? pp_path_join(f->dst, path) : NULL;
        if (!path || !*path)
            continue;
        snprintf(name, sizeof name, "%s/config.json", path);
        if (!folder)
            code = pp_fail_nomem(f->err, "a file name");
        else if (mkdir(folder, 0777) != 0 && errno != EEXIST)
            code = pp_fail(f->err, PP_ERR_IO, "cannot make the folder %s: %s", folder, strerror(errno));
        else
            code = copy_file(f, name);
        pp_free(folder);
    }
    cJSON_Delete(modules);
    return code ? code : copy_file(f, modules_file);
}

static enum pp_code write_vocabulary(const struct folder *f, const struct pp_tokenizer *t)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json",
                                        "merges.txt", "special_tokens_map.json", "added_tokens.json",
                                        "chat_template.jinja", "chat_template.json", "generation_config.json",
                                        "vocab.txt", "tiktoken.model", "config_sentence_transformers.json",
                                        "sentence_bert_config.json", "rwkv_vocab_v20230424.txt"};
    const char *chat = pp_source_chat_template(f->s);
    enum pp_code code = PP_OK;
    for (size_t i = 0; pp_source_folder(f->s) && i < sizeof files / sizeof *files && !code; i++)
        code = copy_file(f, files[i]);
    if (!code && pp_source_folder(f->s))
        code = copy_tiktoken(f);
    if (pp_source_folder(f->s))
        return code ? code : copy_modules(f);
    if (t)
        code = pp_tokenizer_to_folder(t, f->dst, f->err);
    return !code && chat ? write_text(f, "chat_template.jinja", chat, strlen(chat)) : code;
}

/* --- the folder -------------------------------------------------------------------------------------------------- */

/* 64 as MLX has it; 32 where that divides more, or keeps 4-bit blocks as they are. */
static int64_t group_size(const struct folder *f)
{
    for (size_t i = 0; i < pp_source_n_tensors(f->s); i++) {
        const struct pp_tensor *t = pp_source_tensor_at(f->s, i);
        if (t->n_dims >= 2 && !pp_export_keeps_f32(t) &&
            (t->ne[0] % 64 != 0 || (f->opt->bits == 4 && (t->type == PP_TYPE_Q4_0 || t->type == PP_TYPE_Q4_1))))
            return 32;
    }
    return 64;
}

static enum pp_code check_options(const struct folder *f)
{
    const int type = f->opt->out_type ? pp_type_by_name(f->opt->out_type) : PP_TYPE_F16;
    if (type != PP_TYPE_F32 && type != PP_TYPE_F16 && type != PP_TYPE_BF16)
        return pp_fail(f->err, PP_ERR_USAGE, "the floats of a folder can be F32, F16 or BF16, not \"%.40s\"",
                       f->opt->out_type);
    if (f->opt->bits != 0 && f->opt->bits != 4 && f->opt->bits != 8)
        return pp_fail(f->err, PP_ERR_USAGE, "MLX folders are written with 4 or 8 bits, not %d", f->opt->bits);
    return PP_OK;
}

static enum pp_code make_folder(const struct folder *f)
{
    struct stat st;
    if (mkdir(f->dst, 0777) != 0 && errno != EEXIST)
        return pp_fail(f->err, PP_ERR_IO, "cannot make the folder %s: %s", f->dst, strerror(errno));
    if (stat(f->dst, &st) != 0 || !S_ISDIR(st.st_mode))
        return pp_fail(f->err, PP_ERR_USAGE, "%s is not a folder; name another", f->dst);
    if (pp_file_exists(f->dst, "config.json") || pp_file_exists(f->dst, "model.safetensors"))
        return pp_fail(f->err, PP_ERR_USAGE, "there is a model in %s already; name another folder", f->dst);
    return PP_OK;
}

enum pp_code pp_convert_to_folder(const char *src, const char *dst, const struct pp_convert_options *opt,
                                  struct pp_error *err)
{
    struct folder f = {.opt = opt, .dst = dst, .err = err};
    struct pp_source *s;
    struct pp_tokenizer *t = NULL;
    enum pp_code code = pp_source_open(src, &s, err);
    if (code)
        return code;
    f.s = s;
    f.arch = pp_arch_by_name(pp_source_hparams(s)->arch);
    f.group = group_size(&f);
    code = check_options(&f);
    if (!code)
        code = list_items(&f);
    if (!code && !pp_source_folder(s) && (code = pp_tokenizer_from_source(s, &t, err)) == PP_ERR_NOT_FOUND)
        code = PP_OK;
    if (!code)
        code = make_config(&f, t);
    if (!code)
        code = make_folder(&f);
    if (!code)
        code = write_vocabulary(&f, t);
    if (!code)
        code = write_tensors(&f);
    if (!code)
        code = write_config(&f); /* last: without it the folder is no model */
    cJSON_Delete(f.config);
    pp_tokenizer_free(t);
    pp_free(f.items);
    pp_free(f.joined);
    pp_free(f.temp);
    pp_free(f.path);
    pp_source_close(s);
    return code;
}
