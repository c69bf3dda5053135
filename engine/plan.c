#include "engine/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch/arch.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"

static enum pp_tier_kind kind_of(const struct pp_op *op)
{
    switch (op->kind) {
    case PP_OP_PICK:
        return PP_TIER_INDEX;
    case PP_OP_CONVOLVE:
    case PP_OP_POOL:
    case PP_OP_COMPRESS:
        return PP_TIER_ROWS;
    case PP_OP_RECUR:
        return PP_TIER_STATE;
    case PP_OP_KV_STORE:
        return op->stride && op->in2 < 0 ? PP_TIER_COMPRESSED : PP_TIER_ATTENTION;
    default:
        return PP_TIER_ATTENTION;
    }
}

/* A tier for what this operation keeps in the cache; its layers are not counted yet. */
static struct pp_tier_plan tier_for(const struct pp_plan *p, const struct pp_hparams *hp, const struct pp_op *op)
{
    if (op->kind == PP_OP_CONVOLVE)
        return (struct pp_tier_plan){.kind = PP_TIER_ROWS, .window = op->window, .n_head_kv = 1,
                                     .head_dim = (int)p->slots[op->in].width};
    if (op->kind == PP_OP_POOL)
        return (struct pp_tier_plan){.kind = PP_TIER_ROWS, .window = op->period, .n_head_kv = 1,
                                     .head_dim = (int)p->slots[op->in].width};
    if (op->kind == PP_OP_COMPRESS) {
        const int64_t width = p->slots[op->in].width, blocks = width / p->slots[op->out].width;
        return (struct pp_tier_plan){.kind = PP_TIER_ROWS, .window = blocks * op->stride, .n_head_kv = 1,
                                     .head_dim = (int)(2 * width), .stride = op->stride};
    }
    if (kind_of(op) == PP_TIER_COMPRESSED)
        return (struct pp_tier_plan){.kind = PP_TIER_COMPRESSED, .n_head = 1, .n_head_kv = 1,
                                     .head_dim = (int)p->slots[op->in].width, .stride = op->stride};
    if (op->kind == PP_OP_RECUR) { /* a row needs the page of the position before it, like a window of 2 */
        const struct pp_state_shape *shape = &p->recurrences[op->recurrence].shape;
        return (struct pp_tier_plan){.kind = PP_TIER_STATE, .window = 2, .n_head_kv = 1,
                                     .head_dim = shape->value_dim, .state = *shape};
    }
    if (op->kind == PP_OP_PICK) {
        const int64_t dim = p->slots[op->in2].width;
        return (struct pp_tier_plan){.kind = PP_TIER_INDEX, .n_head = (int)(p->slots[op->in].width / dim),
                                     .n_head_kv = 1, .head_dim = (int)dim, .top_k = op->count,
                                     .block = op->period, .pooled = op->pooled, .n_local = op->local,
                                     .stride = op->stride};
    }
    const struct pp_layer_shape shape = pp_layer_shape(hp, op->layer);
    const bool sparse = hp->n_local_blocks && !(hp->dense_attn_step && (op->layer + 1) % hp->dense_attn_step == 0);
    return (struct pp_tier_plan){.kind = PP_TIER_ATTENTION, .window = op->window,
                                 .n_first = op->window ? hp->n_meta_tokens : 0,
                                 .n_head = (int)shape.n_head,
                                 .n_head_kv = (int)shape.n_head_kv,
                                 .head_dim = (int)pp_key_width(hp, shape.head_dim),
                                 .v_dim = (int)shape.v_dim,
                                 .latent_dim = (int)(hp->compressed ? shape.head_dim
                                                                     : pp_latent_shape(hp, op->layer).rank),
                                 .top_k = op->count, .block = op->period, .pooled = op->pooled, .stride = op->stride,
                                 .n_local_blocks = sparse ? hp->n_local_blocks : 0,
                                 .vert_stride = sparse ? hp->vert_stride : 0};
}

static bool same_state(const struct pp_state_shape *a, const struct pp_state_shape *b)
{
    return a->n_key_head == b->n_key_head && a->n_head == b->n_head && a->key_dim == b->key_dim &&
           a->value_dim == b->value_dim && a->n_inputs == b->n_inputs;
}

/* Apart from the number of layers. */
static bool same_tier(const struct pp_tier_plan *a, const struct pp_tier_plan *b)
{
    return a->kind == b->kind && a->window == b->window && a->n_first == b->n_first &&
           a->n_head == b->n_head && a->n_head_kv == b->n_head_kv && a->head_dim == b->head_dim &&
           a->v_dim == b->v_dim && a->latent_dim == b->latent_dim && a->top_k == b->top_k && a->block == b->block &&
           a->pooled == b->pooled && a->n_local == b->n_local &&
           a->stride == b->stride && a->n_local_blocks == b->n_local_blocks && a->vert_stride == b->vert_stride &&
           same_state(&a->state, &b->state);
}

/* Adds the tier if there is none like it yet. -1: there are too many. */
static int find_tier(struct pp_plan *p, const struct pp_tier_plan *like)
{
    int t = 0;
    while (t < p->n_tiers && !same_tier(&p->tiers[t], like))
        t++;
    if (t == PP_MAX_TIERS)
        return -1;
    if (t == p->n_tiers)
        p->tiers[p->n_tiers++] = *like;
    return t;
}

static bool uses_cache(const struct pp_op *op)
{
    return op->kind == PP_OP_KV_STORE || op->kind == PP_OP_ATTENTION || op->kind == PP_OP_PICK ||
           op->kind == PP_OP_CONVOLVE || op->kind == PP_OP_POOL || op->kind == PP_OP_COMPRESS ||
           op->kind == PP_OP_RECUR;
}

/* Points attention over compressed blocks at their keys, which its layer stored before. */
static void find_compressed(struct pp_plan *p)
{
    const struct pp_op *keys = NULL;
    for (int i = 0; i < p->n_ops; i++) {
        struct pp_op *op = &p->ops[i];
        if (op->kind == PP_OP_KV_STORE && kind_of(op) == PP_TIER_COMPRESSED)
            keys = op;
        if (op->kind == PP_OP_ATTENTION && op->stride && keys) {
            op->from_tier = keys->tier;
            op->from_layer = keys->tier_layer;
        }
    }
}

/* The index within its tier of an operation's layer. Operations that store begin a new one; attention reads the one
 * begun last, or another layer's (`seen`). */
static int place_in(struct pp_tier_plan *tier, const struct pp_op *op)
{
    if (op->kind != PP_OP_ATTENTION)
        return tier->n_layer++;
    return op->seen ? op->seen - 1 : tier->n_layer - 1;
}

enum pp_code pp_plan_place_layers(const struct pp_source *s, struct pp_plan *p, struct pp_error *err)
{
    p->n_tiers = 0;
    for (enum pp_tier_kind kind = PP_TIER_ATTENTION; kind <= PP_TIER_COMPRESSED; kind++)
        for (int i = 0; i < p->n_ops; i++) {
            struct pp_op *op = &p->ops[i];
            if (!uses_cache(op) || kind_of(op) != kind)
                continue;
            const struct pp_tier_plan like = tier_for(p, pp_source_hparams(s), op);
            if ((op->tier = find_tier(p, &like)) < 0)
                return pp_fail(err, PP_ERR_UNSUPPORTED,
                               "%s: the layers have more than %d different shapes, attention windows or convolution "
                               "lengths",
                               pp_source_path(s), PP_MAX_TIERS);
            struct pp_tier_plan *tier = &p->tiers[op->tier];
            op->tier_layer = place_in(tier, op);
            if (op->tier_layer < 0 || op->tier_layer >= tier->n_layer)
                return pp_fail(err, PP_ERR_FORMAT, "%s: layer %d shares keys and values with an earlier layer, but no "
                                                   "earlier layer matches it", pp_source_path(s), op->layer);
        }
    find_compressed(p);
    return PP_OK;
}

bool pp_plan_has_states(const struct pp_plan *plan)
{
    bool compresses = false;
    for (int t = 0; t < plan->n_tiers; t++)
        compresses = compresses || plan->tiers[t].kind == PP_TIER_COMPRESSED || plan->tiers[t].n_local_blocks;
    return plan->n_recurrences > 0 || compresses;
}

/* --- building --------------------------------------------------------------------------------------------------- */

enum pp_code pp_plan_build(const struct pp_source *s, struct pp_plan *plan, struct pp_error *err)
{
    const struct pp_arch *arch = pp_arch_by_name(pp_source_hparams(s)->arch); /* known, since pp_source_open looked it
                                                                                 up */
    *plan = (struct pp_plan){0};
    plan->encoder = pp_arch_encodes(arch);
    enum pp_code code = arch->encoder ? pp_plan_encoder(s, arch->encoder, plan, err)
                                      : pp_plan_decoder(s, &arch->decoder, plan, err);
    if (!code && plan->bad)
        code = pp_fail_nomem(err, "the model's plan");
    if (!code)
        code = pp_plan_check_used(s, plan, err);
    if (!code)
        code = pp_plan_place_layers(s, plan, err);
    if (code)
        pp_plan_free(plan);
    return code;
}

void pp_plan_free(struct pp_plan *p)
{
    pp_free(p->ops);
    pp_free(p->linears);
    pp_free(p->slots);
    pp_free(p->experts);
    pp_free(p->heads);
    pp_free(p->recurrences);
    for (int i = 0; i < p->n_owned; i++)
        pp_free(p->owned[i]);
    pp_free(p->owned);
    *p = (struct pp_plan){0};
}

/* Makes room for one more item of `size` bytes at the end of *n, and counts it. False: out of memory; sets p->bad. */
static bool grow_by_one(struct pp_plan *p, void *items, int *n, int *cap, size_t size)
{
    size_t c = (size_t)*cap;
    if (p->bad || pp_grow(items, &c, (size_t)*n + 1, size) != 0) {
        p->bad = true;
        return false;
    }
    *cap = (int)c;
    (*n)++;
    return true;
}

int pp_plan_slot(struct pp_plan *p, int64_t width)
{
    if (!grow_by_one(p, &p->slots, &p->n_slots, &p->cap_slots, sizeof *p->slots))
        return 0;
    p->slots[p->n_slots - 1] = (struct pp_slot){.width = width, .base = p->n_slots - 1};
    return p->n_slots - 1;
}

int pp_plan_part(struct pp_plan *p, int slot, int64_t at, int64_t width)
{
    int part = pp_plan_slot(p, width);
    if (!p->bad) {
        p->slots[part].base = slot;
        p->slots[part].at = at;
    }
    return part;
}

void pp_plan_add(struct pp_plan *p, struct pp_op op)
{
    if (grow_by_one(p, &p->ops, &p->n_ops, &p->cap_ops, sizeof *p->ops))
        p->ops[p->n_ops - 1] = op;
}

/* Formats the arguments after fmt into an array. */
#define FORMAT(to, fmt)                        \
    do {                                       \
        va_list ap;                            \
        va_start(ap, fmt);                     \
        vsnprintf(to, sizeof(to), fmt, ap);    \
        va_end(ap);                            \
    } while (0)

static const struct pp_tensor *fail_shape(const struct pp_source *s, const struct pp_tensor *t, const int64_t need[3],
                                          struct pp_error *err)
{
    char have[80], want[80];
    const int64_t *ne = t->ne;
    snprintf(have, sizeof have, "%lld x %lld", (long long)ne[1], (long long)ne[0]);
    snprintf(want, sizeof want, "%lld x %lld", (long long)need[1], (long long)need[0]);
    if (ne[2] != 1 || need[2] != 1) {
        snprintf(have, sizeof have, "%lld x %lld x %lld", (long long)ne[2], (long long)ne[1], (long long)ne[0]);
        snprintf(want, sizeof want, "%lld x %lld x %lld", (long long)need[2], (long long)need[1], (long long)need[0]);
    }
    pp_fail(err, PP_ERR_FORMAT, "%s: tensor %s has %s values, but %s are needed", pp_source_path(s), t->name, have,
            want);
    return NULL;
}

/* Stacks only: a list of matrices is checked by its first one. */
static bool check_count(const struct pp_source *s, const char *name, int64_t n, struct pp_error *err)
{
    if (n < 1)
        pp_fail(err, PP_ERR_FORMAT,
                "%s: %lld matrices %s are needed, which is impossible; the file is damaged: download it again",
                pp_source_path(s), (long long)n, name);
    return n >= 1;
}

/* rows 0: a vector; matrices 0: one matrix */
static const struct pp_tensor *checked_tensor(const struct pp_source *s, const char *name, int64_t matrices,
                                              int64_t rows, int64_t cols, struct pp_error *err)
{
    const struct pp_tensor *t = pp_source_tensor(s, name);
    if (!t) {
        pp_fail(err, PP_ERR_FORMAT, "%s: tensor %s is missing; the file is incomplete: download it again",
                pp_source_path(s),
                name);
        return NULL;
    }
    const int64_t need[3] = {cols, rows ? rows : 1, matrices ? matrices : 1};
    if (t->n_dims != (matrices ? 3 : rows ? 2 : 1) || memcmp(t->ne, need, sizeof need) != 0)
        return fail_shape(s, t, need, err);
    const struct pp_type_info *info = pp_type_info(t->type);
    if (!info->runnable) {
        pp_fail(err, PP_ERR_UNSUPPORTED,
                "%s: tensor %s has type %s, which pippin cannot run yet; convert the model to Q4_K_M or Q8_0",
                pp_source_path(s), name, info->name ? info->name : "unknown");
        return NULL;
    }
    return t;
}

const struct pp_tensor *pp_plan_tensor(const struct pp_source *s, int64_t rows, int64_t cols, struct pp_error *err,
                                       const char *fmt, ...)
{
    char name[96];
    FORMAT(name, fmt);
    return checked_tensor(s, name, 0, rows, cols, err);
}

const struct pp_tensor *pp_plan_table(const struct pp_source *s, int64_t rows, int64_t cols, struct pp_error *err,
                                      const char *fmt, ...)
{
    char name[96];
    FORMAT(name, fmt);
    const struct pp_tensor *t = pp_source_tensor(s, name);
    if (t && t->type == PP_TYPE_I32 && t->n_dims == 2 && t->ne[0] == cols && t->ne[1] == rows)
        return t;
    pp_fail(err, PP_ERR_FORMAT, "%s: tensor %s is missing, or not %lld x %lld integers", pp_source_path(s), name,
            (long long)rows, (long long)cols);
    return NULL;
}

const struct pp_tensor *pp_plan_stack(const struct pp_source *s, int64_t n, int64_t rows, int64_t cols,
                                      struct pp_error *err, const char *fmt, ...)
{
    char name[96];
    FORMAT(name, fmt);
    return checked_tensor(s, name, n, rows, cols, err);
}

int pp_plan_linear(struct pp_plan *p, const struct pp_source *s, int64_t n_out, int64_t n_in, struct pp_error *err,
                   const char *fmt, ...)
{
    char base[80], name[96];
    FORMAT(base, fmt);
    snprintf(name, sizeof name, "%s.weight", base);
    const struct pp_tensor *w = pp_source_tensor(s, name), *b = NULL;
    const bool is_vector = n_out == 1 && w && w->n_dims == 1; /* files may store a matrix of one row as a vector */
    w = checked_tensor(s, name, 0, is_vector ? 0 : n_out, n_in, err);
    if (!w)
        return -1;
    for (int i = 0; i < p->n_linears; i++)
        if (p->linears[i].w == w)
            return i;
    snprintf(name, sizeof name, "%s.bias", base);
    if (pp_source_tensor(s, name) && !(b = checked_tensor(s, name, 0, 0, n_out, err)))
        return -1;
    if (!grow_by_one(p, &p->linears, &p->n_linears, &p->cap_linears, sizeof *p->linears))
        return 0; /* `bad` is reported by pp_plan_build */
    p->linears[p->n_linears - 1] = (struct pp_linear){.w = w, .b = b, .index = p->n_linears - 1};
    return p->n_linears - 1;
}

/* n zeroed items that the plan owns; NULL: out of memory, *err says so. */
static void *make(struct pp_plan *p, int64_t n, size_t size, struct pp_error *err)
{
    void *memory = pp_calloc((size_t)n, size);
    if (!memory || !grow_by_one(p, &p->owned, &p->n_owned, &p->cap_owned, sizeof *p->owned)) {
        p->bad = true;
        pp_free(memory);
        pp_fail_nomem(err, "the model's plan");
        return NULL;
    }
    return p->owned[p->n_owned - 1] = memory;
}

/* A vector of n numbers: `value` in [first, end), 0 elsewhere. */
static const struct pp_tensor *make_vector(struct pp_plan *p, const char *name, int64_t n, int64_t first, int64_t end,
                                           float value, struct pp_error *err)
{
    struct pp_tensor *t = make(p, 1, sizeof *t, err);
    float *numbers = make(p, n, sizeof *numbers, err);
    if (!t || !numbers)
        return NULL;
    for (int64_t i = first; i < end && i < n; i++)
        numbers[i] = value;
    *t = (struct pp_tensor){.name = name, .type = PP_TYPE_F32, .n_dims = 1, .ne = {n, 1, 1, 1}, .data = numbers,
                            .size = (size_t)n * sizeof *numbers};
    return t;
}

const struct pp_tensor *pp_plan_ones(struct pp_plan *p, int64_t n, struct pp_error *err)
{
    return make_vector(p, "ones", n, 0, n, 1, err);
}

const struct pp_tensor *pp_plan_numbers(struct pp_plan *p, int64_t n, float **numbers, struct pp_error *err)
{
    const struct pp_tensor *t = make_vector(p, "numbers", n, 0, 0, 0, err);
    *numbers = t ? (float *)(uintptr_t)t->data : NULL; /* made above, so writable */
    return t;
}

const struct pp_tensor *pp_plan_number_rows(struct pp_plan *p, int64_t rows, int64_t cols, float **numbers,
                                            struct pp_error *err)
{
    struct pp_tensor *t = (struct pp_tensor *)(uintptr_t)pp_plan_numbers(p, rows * cols, numbers, err); /* writable */
    if (t) {
        t->n_dims = 2;
        t->ne[0] = cols;
        t->ne[1] = rows;
    }
    return t;
}

const struct pp_tensor *pp_plan_suppress(struct pp_plan *p, const struct pp_hparams *hp, struct pp_error *err)
{
    const struct pp_tensor *t = make_vector(p, "silence", hp->n_vocab, 0, 0, 0, err);
    float *numbers = t ? (float *)(uintptr_t)t->data : NULL; /* made above, so writable */
    for (int k = 0; t && k < PP_SUPPRESSED_RANGES; k++)
        for (int64_t i = hp->suppressed[k].first; i < hp->suppressed[k].end && i < hp->n_vocab; i++)
            numbers[i] = -1e30f;
    return t;
}

const struct pp_tensor *pp_plan_sinusoids(struct pp_plan *p, int64_t n_positions, int64_t n, bool fairseq,
                                          struct pp_error *err)
{
    enum { LEAST = 4, MOST = 1 << 28, RESERVED = 2 }; /* the first two rows of fairseq's tables are no positions */
    const int64_t half = n / 2;
    if (n < LEAST || n % 2 != 0 || n_positions > MOST / n) {
        pp_fail(err, PP_ERR_UNSUPPORTED, "sinusoids of %lld positions in %lld values are not supported",
                (long long)n_positions, (long long)n);
        return NULL;
    }
    const struct pp_tensor *flat = make_vector(p, "sinusoids", n_positions * n, 0, 0, 0, err);
    if (!flat)
        return NULL;
    struct pp_tensor *t = (struct pp_tensor *)(uintptr_t)flat; /* made above, so writable */
    float *to = (float *)(uintptr_t)t->data;
    const float step = (float)(log(10000) / (double)(fairseq ? half - 1 : half));
    for (int64_t row = 0; row < n_positions; row++)
        for (int64_t i = 0; i < half; i++) { /* float arithmetic, as in the code that made the tables for training */
            const float angle = (float)(row + (fairseq ? RESERVED : 0)) * expf((float)i * -step);
            to[row * n + i] = sinf(angle);
            to[row * n + half + i] = cosf(angle);
        }
    t->n_dims = 2;
    t->ne[0] = n;
    t->ne[1] = n_positions;
    return t;
}

const struct pp_tensor *pp_plan_matrix_of(struct pp_plan *p, const struct pp_tensor *t, int64_t i,
                                          struct pp_error *err)
{
    struct pp_tensor *m = make(p, 1, sizeof *m, err);
    if (!m)
        return NULL;
    *m = *t;
    m->n_dims = 2;
    m->ne[2] = m->ne[3] = 1;
    m->size = pp_type_row_bytes(t->type, t->ne[0]) * (size_t)t->ne[1];
    m->data = (const uint8_t *)t->data + m->size * (size_t)i;
    return m;
}

const struct pp_tensor *pp_plan_row(struct pp_plan *p, const struct pp_tensor *t, int64_t row, struct pp_error *err)
{
    const size_t bytes = pp_type_row_bytes(t->type, t->ne[0]);
    struct pp_tensor *r = make(p, 1, sizeof *r, err);
    if (!r)
        return NULL;
    *r = (struct pp_tensor){.name = t->name, .type = t->type, .n_dims = 1, .ne = {t->ne[0], 1, 1, 1},
                            .data = (const uint8_t *)t->data + (size_t)row * bytes, .size = bytes};
    return r;
}

/* The values of a tensor, row after row, as a matrix. */
static const struct pp_tensor *as_matrix(struct pp_plan *p, const struct pp_tensor *t, int64_t rows, int64_t cols,
                                         struct pp_error *err)
{
    struct pp_tensor *matrix = make(p, 1, sizeof *matrix, err);
    if (!matrix)
        return NULL;
    *matrix = *t;
    matrix->n_dims = 2;
    matrix->ne[0] = cols;
    matrix->ne[1] = rows;
    matrix->ne[2] = matrix->ne[3] = 1;
    return matrix;
}

const struct pp_tensor *pp_plan_flat(struct pp_plan *p, const struct pp_source *s, int64_t rows, int64_t cols,
                                     struct pp_error *err, const char *fmt, ...)
{
    char name[96];
    FORMAT(name, fmt);
    const struct pp_tensor *t = pp_source_tensor(s, name);
    const bool fits = t && t->ne[0] == cols && (t->ne[1] == rows || t->ne[2] == rows || t->ne[3] == rows) &&
                      (t->ne[1] == 1) + (t->ne[2] == 1) + (t->ne[3] == 1) >= 2 && !t->rows;
    if (!fits || t->n_dims == 2 || !pp_type_info(t->type)->runnable)
        return checked_tensor(s, name, 0, rows, cols, err);
    return as_matrix(p, t, rows, cols, err);
}

const struct pp_tensor *pp_plan_rows(struct pp_plan *p, const struct pp_source *s, int64_t rows, int64_t cols,
                                     struct pp_error *err, const char *fmt, ...)
{
    char name[96];
    FORMAT(name, fmt);
    const struct pp_tensor *t = pp_source_tensor(s, name);
    const bool apart = t && t->n_dims == 2;
    t = checked_tensor(s, name, 0, apart ? rows : 0, apart ? cols : rows * cols, err);
    if (!t || apart)
        return t;
    if (t->rows || cols % pp_type_info(t->type)->block_elements != 0) {
        pp_fail(err, PP_ERR_UNSUPPORTED, "%s: tensor %s has type %s, in which its %lld parts cannot be separated",
                pp_source_path(s), name, pp_type_info(t->type)->name, (long long)rows);
        return NULL;
    }
    return as_matrix(p, t, rows, cols, err);
}

const struct pp_tensor *const *pp_plan_tables(struct pp_plan *p, const struct pp_source *s, const char *whole,
                                              int64_t *n, int64_t width, struct pp_error *err, const char *fmt, ...)
{
    char base[80], name[112];
    FORMAT(base, fmt);
    const struct pp_tensor *one = pp_source_tensor(s, whole);
    *n = one ? 1 : *n;
    if (!check_count(s, base, *n, err))
        return NULL;
    const struct pp_tensor **tables = make(p, *n, sizeof *tables, err);
    if (!tables)
        return NULL;
    for (int64_t i = 0, n_rows = 0; i < *n; i++) {
        snprintf(name, sizeof name, "%s.%lld.weight", base, (long long)i);
        const struct pp_tensor *t = pp_source_tensor(s, one ? whole : name);
        n_rows = i ? n_rows : t ? t->ne[1] : 1;
        if (!(tables[i] = checked_tensor(s, one ? whole : name, 0, n_rows, width, err)))
            return NULL;
    }
    return tables;
}

/* Zeros [n, n_taps]: the taps of a convolution. */
static float *make_taps(struct pp_plan *p, const char *name, int64_t n, int64_t n_taps, const struct pp_tensor **made,
                        struct pp_error *err)
{
    struct pp_tensor *t = make(p, 1, sizeof *t, err);
    float *taps = make(p, n * n_taps, sizeof *taps, err);
    *made = NULL;
    if (!t || !taps)
        return NULL;
    *t = (struct pp_tensor){.name = name, .type = PP_TYPE_F32, .n_dims = 2, .ne = {n_taps, n, 1, 1}, .data = taps,
                            .size = (size_t)(n * n_taps) * sizeof *taps};
    *made = t;
    return taps;
}

const struct pp_tensor *pp_plan_shift(struct pp_plan *p, int64_t n, struct pp_error *err)
{
    const struct pp_tensor *t;
    float *taps = make_taps(p, "shift", n, 2, &t, err);
    for (int64_t i = 0; taps && i < n; i++) {
        taps[2 * i] = 1;
        taps[2 * i + 1] = -1;
    }
    return t;
}

const struct pp_tensor *pp_plan_last(struct pp_plan *p, struct pp_error *err)
{
    const struct pp_tensor *t;
    float *taps = make_taps(p, "last", 1, 2, &t, err);
    if (taps)
        taps[0] = 1;
    return t;
}

const struct pp_tensor *pp_plan_history(struct pp_plan *p, int64_t n, struct pp_error *err)
{
    const struct pp_tensor *t;
    float *taps = make_taps(p, "history", n, n + 1, &t, err);
    for (int64_t i = 0; taps && i < n; i++)
        taps[i * (n + 1) + n - 1 - i] = 1;
    return t;
}

void pp_plan_linear_bias(struct pp_plan *p, int linear, const struct pp_tensor *bias)
{
    if (!p->bad && linear >= 0)
        p->linears[linear].b = bias;
}

/* --- experts ---------------------------------------------------------------------------------------------------- */

/* Makes a tensor of each matrix of a stack. */
static bool slice(struct pp_plan *p, const struct pp_tensor *stack, int n, const struct pp_tensor **matrices,
                  struct pp_error *err)
{
    enum { NAME = 112 };
    struct pp_tensor *slices = make(p, n, sizeof *slices, err);
    char *names = make(p, n, NAME, err);
    for (int e = 0; slices && names && e < n; e++) {
        char *name = names + e * NAME;
        snprintf(name, NAME, "%.96s[%d]", stack->name, e);
        slices[e] = (struct pp_tensor){.name = name, .type = stack->type, .n_dims = 2,
                                       .ne = {stack->ne[0], stack->ne[1], 1, 1}, .size = stack->size / (size_t)n};
        slices[e].data = (const uint8_t *)stack->data + (size_t)e * slices[e].size;
        matrices[e] = &slices[e];
    }
    return slices && names;
}

const struct pp_tensor *const *pp_plan_matrices(struct pp_plan *p, const struct pp_source *s, int n, int64_t n_out,
                                                int64_t n_in, struct pp_error *err, const char *fmt, ...)
{
    char base[80], name[112];
    FORMAT(base, fmt);
    if (!check_count(s, base, n, err))
        return NULL;
    const struct pp_tensor **matrices = make(p, n, sizeof *matrices, err);
    if (!matrices)
        return NULL;
    snprintf(name, sizeof name, "%s.0.weight", base);
    const bool apart = pp_source_tensor(s, name) != NULL;
    for (int e = 0; apart && e < n; e++) {
        snprintf(name, sizeof name, "%s.%d.weight", base, e);
        if (!(matrices[e] = checked_tensor(s, name, 0, n_out, n_in, err)))
            return NULL;
    }
    if (apart)
        return matrices;
    snprintf(name, sizeof name, "%s%sexps.weight", base, pp_ends_with(base, "_ch") ? "" : "_");
    const struct pp_tensor *stack = checked_tensor(s, name, n, n_out, n_in, err);
    return stack && slice(p, stack, n, matrices, err) ? matrices : NULL;
}

/* --- heads ------------------------------------------------------------------------------------------------------- */

int pp_plan_heads(struct pp_plan *p, const struct pp_source *s, int n, int64_t n_out, int64_t n_in,
                  struct pp_error *err, const char *fmt, ...)
{
    char name[96];
    FORMAT(name, fmt);
    if (!check_count(s, name, n, err))
        return -1;
    const struct pp_tensor *stack = pp_source_tensor(s, name);
    const bool flat = stack && stack->n_dims == 2; /* some converters store the heads' matrices as one */
    stack = checked_tensor(s, name, flat ? 0 : n, flat ? n * n_out : n_out, n_in, err);
    if (!stack)
        return -1;
    const struct pp_tensor **matrices = make(p, n, sizeof *matrices, err);
    if (!matrices || !slice(p, stack, n, matrices, err))
        return -1;
    if (!grow_by_one(p, &p->heads, &p->n_heads, &p->cap_heads, sizeof *p->heads)) {
        pp_fail_nomem(err, "the model's plan");
        return -1;
    }
    for (int h = 0; h < n; h++)
        ((struct pp_tensor *)(uintptr_t)matrices[h])->ne[1] = n_out; /* made by slice, so writable */
    p->heads[p->n_heads - 1] = (struct pp_heads){.n = n, .w = matrices};
    return p->n_heads - 1;
}

int pp_plan_experts(struct pp_plan *p, const struct pp_experts *e)
{
    if (!grow_by_one(p, &p->experts, &p->n_experts, &p->cap_experts, sizeof *p->experts))
        return 0;
    p->experts[p->n_experts - 1] = *e;
    p->experts[p->n_experts - 1].first_target = p->n_expert_targets;
    p->n_expert_targets += PP_EXPERT_KINDS * pp_experts_matrices(e);
    return p->n_experts - 1;
}

int pp_plan_n_targets(const struct pp_plan *p)
{
    return p->n_linears + p->n_expert_targets;
}

int pp_plan_expert_target(const struct pp_plan *p, const struct pp_experts *of, enum pp_expert_kind kind, int e)
{
    return p->n_linears + of->first_target + (int)kind * pp_experts_matrices(of) + e;
}

bool pp_plan_is_expert_down(const struct pp_plan *p, int index)
{
    for (int i = 0; i < p->n_experts; i++) {
        const struct pp_experts *x = &p->experts[i];
        const int first = pp_plan_expert_target(p, x, PP_EXPERT_DOWN, 0);
        if (x->up && index >= first && index < first + pp_experts_matrices(x))
            return true;
    }
    return false;
}

struct pp_linear pp_plan_target(const struct pp_plan *p, int index)
{
    if (index < p->n_linears)
        return p->linears[index];
    int i = p->n_experts - 1;
    while (p->n_linears + p->experts[i].first_target > index)
        i--;
    const struct pp_experts *x = &p->experts[i];
    const struct pp_tensor *const *const w[PP_EXPERT_KINDS] = {x->gate, x->up, x->down};
    const struct pp_tensor *const b[PP_EXPERT_KINDS] = {x->gate_b, x->up_b, x->down_b};
    const int n = pp_experts_matrices(x), in = index - p->n_linears - x->first_target, kind = in / n;
    return (struct pp_linear){.w = w[kind] ? w[kind][in % n] : NULL, .b = b[kind], .index = index, .row = in % n};
}

int pp_plan_recurrence(struct pp_plan *p, const struct pp_recurrence *r)
{
    if (!grow_by_one(p, &p->recurrences, &p->n_recurrences, &p->cap_recurrences, sizeof *p->recurrences))
        return 0;
    p->recurrences[p->n_recurrences - 1] = *r;
    return p->n_recurrences - 1;
}
