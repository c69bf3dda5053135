#include "engine/kv.h"

#include <string.h>

#include "engine/base/word.h"
#include "engine/quant.h"

static const char *const kv_names[] = {[PP_KV_Q8] = "q8",   [PP_KV_F16] = "f16",   [PP_KV_F32] = "f32",
                                       [PP_KV_FP8] = "fp8", [PP_KV_Q4_0] = "q4_0", [PP_KV_Q8_0] = "q8_0"};

const char *pp_kv_type_name(enum pp_kv_type t)
{
    return kv_names[t];
}

int pp_kv_type_by_name(const char *name)
{
    for (int i = 0; i < (int)(sizeof kv_names / sizeof kv_names[0]); i++)
        if (pp_casecmp(name, kv_names[i]) == 0)
            return i;
    return -1;
}

static int round_up(int n, int to)
{
    return (n + to - 1) / to * to;
}

/* Bytes of K or V for a page's positions, each padded to `pad` values, and of their scales. */
struct room {
    size_t values, scales;
};

static struct room room_of(const struct pp_kv_layout *l, int pad)
{
    const size_t n = (size_t)l->slots * (size_t)pad;
    switch (l->type) {
    case PP_KV_F32: return (struct room){n * sizeof(float), 0};
    case PP_KV_F16: return (struct room){n * sizeof(uint16_t), 0};
    case PP_KV_FP8: return (struct room){n, (size_t)l->slots * sizeof(uint16_t)};
    case PP_KV_Q4_0: return (struct room){n / 2, n / PP_KV_BLOCK * sizeof(uint16_t)};
    case PP_KV_Q8:
    case PP_KV_Q8_0: break;
    }
    return (struct room){n, n / (size_t)l->scale_dims * sizeof(uint16_t)};
}

static void lay_out(struct pp_kv_layout *l)
{
    const int pad_to = pp_kv_integers(l) ? PP_KV_BLOCK : PP_KV_GROUP, both = l->head_dim | l->v_dim;
    if (!l->slots) {
        l->slots = PP_PAGE_TOKENS;
        l->stride = 1;
    }
    l->head_pad = round_up(l->head_dim, pad_to);
    l->v_pad = round_up(l->v_dim, pad_to);
    if (pp_kv_integers(l)) {
        l->rotate = both & -both; /* the largest power of two that divides both: Hadamard transforms of this size */
        if (l->rotate < 16)
            l->rotate = 0; /* too short to spread outliers */
        l->scale_dims = PP_KV_BLOCK;
        if (l->type == PP_KV_Q8 && l->rotate > PP_KV_BLOCK)
            l->scale_dims = l->rotate < PP_KV_MOST_SCALED ? l->rotate : PP_KV_MOST_SCALED;
    }
    const struct room k = room_of(l, l->head_pad), v = room_of(l, l->v_pad);
    l->k_scales = k.values;
    l->v = l->v_in_k ? 0 : k.values + k.scales;
    l->v_scales = l->v + v.values;
    l->v_bytes = v.values + v.scales;
    l->head_bytes = k.values + k.scales + (l->v_in_k ? 0 : l->v_bytes);
    l->page_bytes = l->head_bytes * (size_t)l->n_layer * (size_t)l->n_head_kv;
}

void pp_kv_layout_init_values(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int n_head_kv, int head_dim,
                              int v_dim)
{
    *l = (struct pp_kv_layout){.type = type, .n_layer = n_layer, .n_head_kv = n_head_kv, .head_dim = head_dim,
                               .v_dim = v_dim};
    lay_out(l);
}

void pp_kv_layout_init_latent(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int n_head_kv, int head_dim,
                              int v_dim)
{
    *l = (struct pp_kv_layout){.type = type, .n_layer = n_layer, .n_head_kv = n_head_kv, .head_dim = head_dim,
                               .v_in_k = true, .v_dim = v_dim};
    lay_out(l);
}

void pp_kv_layout_init_compressed(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int head_dim)
{
    pp_kv_layout_init_latent(l, type, n_layer, 1, head_dim, head_dim);
    l->kind = PP_TIER_COMPRESSED;
}

void pp_kv_layout_init_index(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int head_dim)
{
    *l = (struct pp_kv_layout){.kind = PP_TIER_INDEX, .type = type == PP_KV_F32 ? PP_KV_F32 : PP_KV_F16,
                               .n_layer = n_layer, .n_head_kv = 1, .head_dim = head_dim, .v_in_k = true};
    lay_out(l);
}

void pp_kv_layout_set_stride(struct pp_kv_layout *l, int64_t stride)
{
    l->stride = stride;
    l->slots = stride < PP_PAGE_TOKENS ? round_up(PP_PAGE_TOKENS / (int)stride, PP_KV_GROUP) : PP_KV_GROUP;
    lay_out(l);
}

void pp_kv_layout_init_rows(struct pp_kv_layout *l, int n_layer, int width)
{
    *l = (struct pp_kv_layout){.kind = PP_TIER_ROWS, .type = PP_KV_F32, .n_layer = n_layer, .n_head_kv = 1,
                               .stride = 1, .slots = PP_PAGE_TOKENS,
                               .head_dim = width, .head_pad = round_up(width, PP_KV_GROUP), .v_in_k = true};
    l->head_bytes = room_of(l, l->head_pad).values;
    l->k_scales = l->v = l->v_scales = l->head_bytes; /* no scales, no V */
    l->page_bytes = l->head_bytes * (size_t)n_layer;
}

enum { STEPS_WORDS = 16 }; /* room for the number of steps, so that what follows is aligned to a vector */

/* Bytes of a head's part of a layer's states; state_key_bytes: of a key head's. */
static size_t state_bytes(const struct pp_state_shape *s)
{
    const size_t values = (size_t)s->value_dim, keys = (size_t)s->key_dim, inputs = (size_t)s->n_inputs;
    if (inputs)
        return (2 * keys * values + PP_PAGE_TOKENS * inputs + STEPS_WORDS) * sizeof(float);
    return (keys + PP_PAGE_TOKENS) * values * sizeof(float) + PP_PAGE_TOKENS * sizeof(double);
}

static size_t state_key_bytes(const struct pp_state_shape *s)
{
    return s->n_inputs ? 0 : (size_t)s->key_dim * PP_PAGE_TOKENS * sizeof(float);
}

void pp_kv_layout_init_state(struct pp_kv_layout *l, int n_layer, const struct pp_state_shape *shape)
{
    *l = (struct pp_kv_layout){.kind = PP_TIER_STATE, .type = PP_KV_F32, .n_layer = n_layer, .n_head_kv = 1,
                               .stride = 1, .slots = PP_PAGE_TOKENS,
                               .head_dim = shape->value_dim, .head_pad = shape->value_dim, .v_in_k = true,
                               .state = *shape};
    l->head_bytes = (size_t)shape->n_key_head * state_key_bytes(shape) + (size_t)shape->n_head * state_bytes(shape);
    l->k_scales = l->v = l->v_scales = l->head_bytes; /* no scales, no V */
    l->page_bytes = l->head_bytes * (size_t)n_layer;
}

static float *state_at(const struct pp_kv_layout *l, uint8_t *page, int layer, int head)
{
    const struct pp_state_shape *s = &l->state;
    return (float *)(void *)(page + pp_kv_head_offset(l, layer, 0) + (size_t)s->n_key_head * state_key_bytes(s) +
                             (size_t)head * state_bytes(s));
}

struct pp_kv_steps pp_kv_steps_head(const struct pp_kv_layout *l, uint8_t *page, int layer, int head)
{
    const struct pp_state_shape *s = &l->state;
    struct pp_kv_steps h = {.start = state_at(l, page, layer, head)};
    h.latest = h.start + s->key_dim * s->value_dim;
    h.inputs = h.latest + s->key_dim * s->value_dim;
    h.n = (int32_t *)(void *)(h.inputs + PP_PAGE_TOKENS * s->n_inputs);
    return h;
}

struct pp_kv_state pp_kv_state_head(const struct pp_kv_layout *l, uint8_t *page, int layer, int head)
{
    const struct pp_state_shape *s = &l->state;
    struct pp_kv_state h = {.start = state_at(l, page, layer, head)};
    h.u = h.start + s->key_dim * s->value_dim;
    h.decay = (double *)(void *)(h.u + PP_PAGE_TOKENS * s->value_dim);
    return h;
}

/* from, to: where a layer begins in its page. */
static void copy_steps_position(const struct pp_kv_layout *l, uint8_t *from, int from_slot, uint8_t *to, int to_slot)
{
    const struct pp_state_shape *s = &l->state;
    const size_t inputs = (size_t)s->n_inputs, values = (size_t)s->key_dim * (size_t)s->value_dim;
    for (int i = 0; i < s->n_head; i++) {
        const struct pp_kv_steps x = pp_kv_steps_head(l, from, 0, i), y = pp_kv_steps_head(l, to, 0, i);
        memmove(y.inputs + (size_t)to_slot * inputs, x.inputs + (size_t)from_slot * inputs, inputs * sizeof *y.inputs);
        if (from_slot == 0 && to_slot == 0)
            memmove(y.start, x.start, values * sizeof *y.start);
        *y.n = -1;
    }
}

/* The same for any kind of state. */
static void copy_state_position(const struct pp_kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to,
                                int to_slot)
{
    const struct pp_state_shape *s = &l->state;
    const size_t values = (size_t)s->value_dim;
    uint8_t *source = (uint8_t *)(uintptr_t)from; /* only read */
    if (s->n_inputs) {
        copy_steps_position(l, source, from_slot, to, to_slot);
        return;
    }
    for (int k = 0; k < s->n_key_head; k++) {
        const float *x = pp_kv_state_keys(l, source, 0, k);
        float *y = pp_kv_state_keys(l, to, 0, k);
        for (int d = 0; d < s->key_dim; d++)
            y[d * PP_PAGE_TOKENS + to_slot] = x[d * PP_PAGE_TOKENS + from_slot];
    }
    for (int i = 0; i < s->n_head; i++) {
        const struct pp_kv_state x = pp_kv_state_head(l, source, 0, i), y = pp_kv_state_head(l, to, 0, i);
        memmove(y.u + (size_t)to_slot * values, x.u + (size_t)from_slot * values, values * sizeof *y.u);
        y.decay[to_slot] = x.decay[from_slot];
        if (from_slot == 0 && to_slot == 0)
            memmove(y.start, x.start, (size_t)s->key_dim * values * sizeof *y.start);
    }
}

/* Copies `count` elements of `size` bytes, `stride` bytes apart. Where attention picks positions this is a part of
 * every row's work: with a constant size the compiler makes single moves. */
static inline __attribute__((always_inline)) void copy_elements(const uint8_t *src, uint8_t *dst, size_t count,
                                                                const size_t size, size_t stride)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t element = 0;
        memcpy(&element, src + i * stride, size);
        memcpy(dst + i * stride, &element, size);
    }
}

static void copy_lane(const uint8_t *src, size_t from, uint8_t *dst, size_t to, size_t count, size_t size,
                      size_t stride)
{
    src += from * size;
    dst += to * size;
    if (size == 4)
        copy_elements(src, dst, count, 4, stride);
    else if (size == 2)
        copy_elements(src, dst, count, 2, stride);
    else
        copy_elements(src, dst, count, 1, stride);
}

void pp_kv_copy_head_position(const struct pp_kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to,
                              int to_slot)
{
    size_t pad = (size_t)l->head_pad, v_pad = (size_t)l->v_pad, fs = (size_t)from_slot, ts = (size_t)to_slot;
    size_t fg = fs / PP_KV_GROUP, fl = fs % PP_KV_GROUP, tg = ts / PP_KV_GROUP, tl = ts % PP_KV_GROUP;
    size_t size = 1;
    if (l->kind == PP_TIER_STATE) {
        copy_state_position(l, from, from_slot, to, to_slot);
        return;
    }
    if (l->kind == PP_TIER_ROWS) {
        memmove(to + ts * pad * sizeof(float), from + fs * pad * sizeof(float), pad * sizeof(float));
        return;
    }
    switch (l->type) {
    case PP_KV_Q8:
    case PP_KV_Q8_0:
    case PP_KV_Q4_0: {
        const size_t n_scales = pad / (size_t)l->scale_dims, scales = n_scales * PP_KV_GROUP * 2;
        pad /= l->type == PP_KV_Q4_0 ? 2 : 1; /* bytes of values */
        v_pad /= l->type == PP_KV_Q4_0 ? 2 : 1;
        copy_lane(from + fg * pad * PP_KV_GROUP, fl, to + tg * pad * PP_KV_GROUP, tl, pad / 4, 4, 4 * PP_KV_GROUP);
        copy_lane(from + l->k_scales + fg * scales, fl, to + l->k_scales + tg * scales, tl, n_scales, 2,
                  2 * PP_KV_GROUP);
        if (l->v_in_k)
            return;
        copy_lane(from + l->v + fs / 2 * 2 * v_pad, fs % 2, to + l->v + ts / 2 * 2 * v_pad, ts % 2, v_pad, 1, 2);
        copy_lane(from + l->v_scales, fs, to + l->v_scales, ts, (size_t)(l->v_pad / l->scale_dims), 2,
                  2 * PP_PAGE_TOKENS);
        return;
    }
    case PP_KV_FP8:
        copy_lane(from + l->k_scales, fs, to + l->k_scales, ts, 1, 2, 0);
        if (!l->v_in_k)
            copy_lane(from + l->v_scales, fs, to + l->v_scales, ts, 1, 2, 0);
        break;
    case PP_KV_F16: size = 2; break;
    case PP_KV_F32: size = 4; break;
    }
    size_t group = pad * PP_KV_GROUP * size;
    copy_lane(from + fg * group, fl, to + tg * group, tl, pad, size, size * PP_KV_GROUP);
    if (!l->v_in_k)
        memmove(to + l->v + ts * v_pad * size, from + l->v + fs * v_pad * size, v_pad * size);
}

/* Bytes of n values of K. */
static size_t k_bytes(const struct pp_kv_layout *l, size_t n)
{
    return l->type == PP_KV_F32 ? 4 * n : l->type == PP_KV_F16 ? 2 * n : l->type == PP_KV_Q4_0 ? n / 2 : n;
}

/* Bytes of scales for a group of K. */
static size_t scale_bytes(const struct pp_kv_layout *l)
{
    const size_t each = PP_KV_GROUP * sizeof(uint16_t);
    return pp_kv_integers(l) ? (size_t)(l->head_pad / l->scale_dims) * each : l->type == PP_KV_FP8 ? each : 0;
}

void pp_kv_copy_slots(const struct pp_kv_layout *l, const uint8_t *from, int from_slot,
                      const struct pp_kv_layout *to_l, uint8_t *to, int to_slot, int n)
{
    const size_t values = k_bytes(l, (size_t)l->head_pad * PP_KV_GROUP), scales = scale_bytes(l);
    const size_t fg = (size_t)from_slot / PP_KV_GROUP, fl = (size_t)from_slot % PP_KV_GROUP;
    const size_t tg = (size_t)to_slot / PP_KV_GROUP, tl = (size_t)to_slot % PP_KV_GROUP;
    const uint8_t *k = from + fg * values, *d = from + l->k_scales + fg * scales;
    uint8_t *to_k = to + tg * values, *to_d = to + to_l->k_scales + tg * scales;
    if (n == PP_KV_GROUP) {
        memcpy(to_k, k, values);
        memcpy(to_d, d, scales);
        return;
    }
    const size_t size = pp_kv_integers(l) || l->type == PP_KV_F32 ? 4 : l->type == PP_KV_F16 ? 2 : 1;
    copy_lane(k, fl, to_k, tl, values / PP_KV_GROUP / size, size, size * PP_KV_GROUP);
    copy_lane(d, fl, to_d, tl, scales / PP_KV_GROUP / 2, 2, 2 * PP_KV_GROUP);
}

void pp_kv_copy_position(const struct pp_kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to, int to_slot)
{
    const int64_t shared = l->stride < PP_PAGE_TOKENS ? l->stride : PP_PAGE_TOKENS; /* tokens of a page that share a
                                                                                       slot */
    if ((from_slot + 1) % shared != 0)
        return;
    from_slot /= (int)shared;
    to_slot /= (int)shared;
    for (size_t h = 0; h < (size_t)l->n_layer * (size_t)l->n_head_kv; h++)
        pp_kv_copy_head_position(l, from + h * l->head_bytes, from_slot, to + h * l->head_bytes, to_slot);
}

/* A byte of E4M3. */
static float from_e4m3(uint8_t b)
{
    return 256 * pp_f16_to_f32((uint16_t)((b & 0x80) << 8 | (b & 0x7F) << 7)); /* E4M3's bits, shifted into F16, are
                                                                                  1/256 of its value */
}

/* One value of K (dimension d) or V. In a K element of integers, values of 4 or 8 dimensions lie together, then 16
 * positions. */
static float load_k(const struct pp_kv_layout *l, const uint8_t *head, int slot, int d)
{
    const size_t pad = (size_t)l->head_pad, group = (size_t)(slot / PP_KV_GROUP), lane = (size_t)(slot % PP_KV_GROUP);
    const size_t at = (group * pad + (size_t)d) * PP_KV_GROUP + lane;
    const uint16_t *scales = (const uint16_t *)(const void *)(head + l->k_scales);
    const size_t quad = (size_t)d / 4, eight = (size_t)d / 8;
    switch (l->type) {
    case PP_KV_F32: return ((const float *)(const void *)head)[at];
    case PP_KV_F16: return pp_f16_to_f32(((const uint16_t *)(const void *)head)[at]);
    case PP_KV_FP8: return from_e4m3(head[at]) * (pp_f16_to_f32(scales[slot]) / 256);
    case PP_KV_Q8:
    case PP_KV_Q8_0:
    case PP_KV_Q4_0: break;
    }
    const size_t dims = (size_t)l->scale_dims;
    const float scale = pp_f16_to_f32(scales[(group * (pad / dims) + (size_t)d / dims) * PP_KV_GROUP + lane]);
    if (pp_kv_bytes(l))
        return (float)(head[((group * pad / 4 + quad) * PP_KV_GROUP + lane) * 4 + (size_t)d % 4] - 128) * scale;
    const uint8_t both = head[((group * pad / 8 + eight) * PP_KV_GROUP + lane) * 4 + (size_t)d % 4];
    return (float)((d % 8 < 4 ? both & 15 : both >> 4) - 8) * scale;
}

static float load_v(const struct pp_kv_layout *l, const uint8_t *head, int slot, int d)
{
    const size_t pad = (size_t)l->v_pad, at = (size_t)slot * pad + (size_t)d, pair = (size_t)slot / 2;
    const uint8_t *v = head + l->v;
    const uint16_t *scales = (const uint16_t *)(const void *)(head + l->v_scales);
    const size_t block = (size_t)d / PP_KV_BLOCK, of_block = (size_t)d % PP_KV_BLOCK;
    switch (l->type) {
    case PP_KV_F32: return ((const float *)(const void *)v)[at];
    case PP_KV_F16: return pp_f16_to_f32(((const uint16_t *)(const void *)v)[at]);
    case PP_KV_FP8: return from_e4m3(v[at]) * (pp_f16_to_f32(scales[slot]) / 256);
    case PP_KV_Q8:
    case PP_KV_Q8_0:
    case PP_KV_Q4_0: break;
    }
    const float scale = pp_f16_to_f32(scales[(size_t)(d / l->scale_dims) * PP_PAGE_TOKENS + (size_t)slot]);
    if (pp_kv_bytes(l))
        return (float)(int8_t)v[(pair * pad + (size_t)d) * 2 + (size_t)slot % 2] * scale;
    const uint8_t both = v[(pair * pad / 2 + block * 16 + of_block % 16) * 2 + (size_t)slot % 2];
    return (float)((of_block < 16 ? both & 15 : both >> 4) - 8) * scale;
}

void pp_kv_load_head_position(const struct pp_kv_layout *l, const uint8_t *head, int slot, float *k, float *v)
{
    for (int d = 0; d < l->head_dim; d++)
        k[d] = load_k(l, head, slot, d);
    for (int d = 0; d < l->v_dim && !l->v_in_k; d++)
        v[d] = load_v(l, head, slot, d);
}

struct pp_hash128 pp_page_identity(const struct pp_hash128 *parent, const struct pp_sha256 *kv_key,
                                   const int32_t *tokens)
{
    struct {
        struct pp_hash128 parent;
        struct pp_sha256 key;
        int32_t tokens[PP_PAGE_TOKENS];
    } in;
    memset(&in, 0, sizeof in);
    if (parent)
        in.parent = *parent;
    in.key = *kv_key;
    memcpy(in.tokens, tokens, sizeof in.tokens);
    return pp_hash128(&in, sizeof in);
}
