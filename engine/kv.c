#include "engine/kv.h"

#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#include "engine/base/mem.h"

static const char *const kv_names[] = {[PP_KV_Q8_0] = "q8_0", [PP_KV_F16] = "f16", [PP_KV_F32] = "f32",
                                       [PP_KV_FP8] = "fp8", [PP_KV_Q4_0] = "q4_0"};

const char *pp_kv_type_name(enum pp_kv_type t)
{
    return kv_names[t];
}

int pp_kv_type_by_name(const char *name)
{
    for (int i = 0; i < (int)(sizeof kv_names / sizeof kv_names[0]); i++)
        if (strcasecmp(name, kv_names[i]) == 0)
            return i;
    return -1;
}

static int round_up(int n, int to)
{
    return (n + to - 1) / to * to;
}

void pp_kv_layout_init(struct pp_kv_layout *l, enum pp_kv_type type, int n_layer, int n_head_kv, int head_dim)
{
    *l = (struct pp_kv_layout){.type = type, .n_layer = n_layer, .n_head_kv = n_head_kv, .head_dim = head_dim};
    size_t positions = PP_PAGE_TOKENS, values, scales = 0;
    l->head_pad = round_up(head_dim, pp_kv_integers(l) ? PP_KV_BLOCK : PP_KV_GROUP);
    values = positions * (size_t)l->head_pad;
    switch (type) {
    case PP_KV_F32: values *= sizeof(float); break;
    case PP_KV_F16: values *= sizeof(uint16_t); break;
    case PP_KV_FP8: scales = positions * sizeof(uint16_t); break;
    case PP_KV_Q8_0: scales = values / PP_KV_BLOCK * sizeof(uint16_t); break;
    case PP_KV_Q4_0: scales = values / PP_KV_BLOCK * sizeof(uint16_t); values /= 2; break;
    }
    if (pp_kv_integers(l)) {
        l->rotate = head_dim & -head_dim; /* the largest power of two that divides it */
        if (l->rotate < 16)
            l->rotate = 0; /* too short to spread anything */
    }
    l->k_scales = values;
    l->v = values + scales;
    l->v_scales = l->v + values;
    l->head_bytes = l->v_scales + scales;
    l->page_bytes = l->head_bytes * (size_t)n_layer * (size_t)n_head_kv;
}

/* `count` elements of `size` bytes, `stride` bytes apart, beginning at lane `from` and `to`. */
static void copy_lane(const uint8_t *src, size_t from, uint8_t *dst, size_t to, size_t count, size_t size,
                      size_t stride)
{
    for (size_t i = 0; i < count; i++)
        memmove(dst + to * size + i * stride, src + from * size + i * stride, size);
}

void pp_kv_copy_head_position(const struct pp_kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to,
                              int to_slot)
{
    size_t pad = (size_t)l->head_pad, fs = (size_t)from_slot, ts = (size_t)to_slot;
    size_t fg = fs / PP_KV_GROUP, fl = fs % PP_KV_GROUP, tg = ts / PP_KV_GROUP, tl = ts % PP_KV_GROUP;
    size_t n_blocks = pad / PP_KV_BLOCK, scales = n_blocks * PP_KV_GROUP * 2, size = 1;
    switch (l->type) {
    case PP_KV_Q8_0:
    case PP_KV_Q4_0:
        pad /= l->type == PP_KV_Q4_0 ? 2 : 1; /* bytes */
        copy_lane(from + fg * pad * PP_KV_GROUP, fl, to + tg * pad * PP_KV_GROUP, tl, pad / 4, 4, 4 * PP_KV_GROUP);
        copy_lane(from + l->k_scales + fg * scales, fl, to + l->k_scales + tg * scales, tl, n_blocks, 2,
                  2 * PP_KV_GROUP);
        copy_lane(from + l->v + fs / 2 * 2 * pad, fs % 2, to + l->v + ts / 2 * 2 * pad, ts % 2, pad, 1, 2);
        copy_lane(from + l->v_scales, fs, to + l->v_scales, ts, n_blocks, 2, 2 * PP_PAGE_TOKENS);
        return;
    case PP_KV_FP8:
        copy_lane(from + l->k_scales, fs, to + l->k_scales, ts, 1, 2, 0);
        copy_lane(from + l->v_scales, fs, to + l->v_scales, ts, 1, 2, 0);
        break;
    case PP_KV_F16: size = 2; break;
    case PP_KV_F32: size = 4; break;
    }
    size_t group = pad * PP_KV_GROUP * size;
    copy_lane(from + fg * group, fl, to + tg * group, tl, pad, size, size * PP_KV_GROUP);
    memmove(to + l->v + ts * pad * size, from + l->v + fs * pad * size, pad * size);
}

void pp_kv_copy_position(const struct pp_kv_layout *l, const uint8_t *from, int from_slot, uint8_t *to, int to_slot)
{
    for (size_t h = 0; h < (size_t)l->n_layer * (size_t)l->n_head_kv; h++)
        pp_kv_copy_head_position(l, from + h * l->head_bytes, from_slot, to + h * l->head_bytes, to_slot);
}

struct pp_kv_pool {
    struct pp_kv_layout layout;
    uint8_t *base;        /* reserved: n_pages * stride */
    size_t stride;        /* page_bytes rounded up to 64 */
    int32_t n_pages;
    int32_t n_fresh;      /* pages below this were used before */
    int32_t n_used;
    int32_t *refs;        /* [n_pages] */
    pp_page_id *free_list; /* [n_pages], n_free in use */
    int32_t n_free;
};

enum pp_code pp_kv_pool_new(const struct pp_kv_layout *l, uint64_t limit, struct pp_kv_pool **out, struct pp_error *err)
{
    *out = NULL;
    size_t stride = (l->page_bytes + 63) / 64 * 64;
    uint64_t n = limit / stride;
    if (n < 1)
        n = 1;
    if (n > INT32_MAX / 2)
        n = INT32_MAX / 2;
    struct pp_kv_pool *p = pp_calloc(1, sizeof *p);
    if (!p)
        return pp_fail_nomem(err, "the KV cache");
    p->layout = *l;
    p->stride = stride;
    p->n_pages = (int32_t)n;
    p->refs = pp_calloc((size_t)n, sizeof *p->refs);
    p->free_list = pp_malloc((size_t)n * sizeof *p->free_list);
    p->base = mmap(NULL, (size_t)n * stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p->base == MAP_FAILED)
        p->base = NULL;
    if (!p->refs || !p->free_list || !p->base) {
        pp_kv_pool_free(p);
        return pp_fail(err, PP_ERR_NOMEM,
                       "cannot reserve %.1f GB for the KV cache; use a smaller --ctx-size or --kv-memory",
                       (double)n * (double)stride / 1e9);
    }
    *out = p;
    return PP_OK;
}

void pp_kv_pool_free(struct pp_kv_pool *p)
{
    if (!p)
        return;
    if (p->base)
        munmap(p->base, (size_t)p->n_pages * p->stride);
    pp_free(p->refs);
    pp_free(p->free_list);
    pp_free(p);
}

const struct pp_kv_layout *pp_kv_pool_layout(const struct pp_kv_pool *p)
{
    return &p->layout;
}

uint64_t pp_kv_pool_used(const struct pp_kv_pool *p)
{
    return (uint64_t)p->n_used;
}

uint64_t pp_kv_pool_total(const struct pp_kv_pool *p)
{
    return (uint64_t)p->n_pages;
}

pp_page_id pp_page_take(struct pp_kv_pool *p)
{
    pp_page_id id;
    if (p->n_free > 0)
        id = p->free_list[--p->n_free];
    else if (p->n_fresh < p->n_pages)
        id = p->n_fresh++;
    else
        return PP_NO_PAGE;
    p->refs[id] = 1;
    p->n_used++;
    return id;
}

void pp_page_retain(struct pp_kv_pool *p, pp_page_id id)
{
    p->refs[id]++;
}

void pp_page_release(struct pp_kv_pool *p, pp_page_id id)
{
    if (--p->refs[id] == 0) {
        p->free_list[p->n_free++] = id;
        p->n_used--;
    }
}

int pp_page_refs(const struct pp_kv_pool *p, pp_page_id id)
{
    return p->refs[id];
}

uint8_t *pp_page_data(const struct pp_kv_pool *p, pp_page_id id)
{
    return p->base + (size_t)id * p->stride;
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
