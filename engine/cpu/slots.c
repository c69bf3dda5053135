/* slots.c - allocates the memory of a plan's slots according to their live ranges.
 *
 * Most slots are needed only in a few stages of a layer: queries, keys and values are dead when the feed-forward part
 * begins. A slot is live from the stage that writes all of it to the last stage that reads that value. Slots that are
 * never live at the same stage may share memory in an arena. Values that only an epilogue reads (the two factors of
 * SwiGLU, the summand of the residual stream) need no slot: threads keep them in scratch (project.c). Slots that are
 * written only after SELECT have rows only for the batch's outputs, so that the logits of a long prompt never exist all
 * at once. They use the part of the arena that is free by then, or separate memory if a pass has more outputs than fit.
 *
 * The system allocates the arena's pages when rows first touch them, so that small batches take little memory. It is
 * asked for huge pages: a product with many rows touches one or two pages per row, and with small pages these are more
 * than the TLB holds (512 rows of F16, 2 and 16 threads: prefill is 5 % faster in the median of ten pairs). */
#include <string.h>
#include <sys/mman.h>

#include "engine/base/mem.h"
#include "engine/cpu/program.h"

/* Output rows that there is room for from the start: with a large vocabulary, a row of logits takes half a megabyte. */
enum { FEW_OUTPUTS = 8 };

enum use { UNUSED = 0, READS = 1, WRITES = 2 };

/* Whether an operation adds to its `out` slot instead of overwriting it. */
static bool adds_to(enum pp_op_kind kind)
{
    return kind == PP_OP_ADD || kind == PP_OP_SPREAD || kind == PP_OP_WRITE_STREAMS;
}

/* How a row operation uses a whole slot. Writing only a part of it, or updating it, keeps the old value alive, and
 * counts as reading. */
static unsigned row_op_use(const struct pp_cpu *c, const struct row_op *r, int slot)
{
    unsigned use = UNUSED;
    if (slot == whole_slot(c, r->in) || slot == whole_slot(c, r->in2))
        use |= READS;
    if (slot == whole_slot(c, r->out))
        use |= slot == r->out && !adds_to(r->kind) && !(use & READS) ? WRITES : READS;
    return use;
}

static bool recurrence_reads(const struct pp_cpu *c, const struct pp_recurrence *r, int slot)
{
    return slot == whole_slot(c, r->q) || slot == whole_slot(c, r->k) || slot == whole_slot(c, r->v) ||
           slot == whole_slot(c, r->decay) || (r->beta >= 0 && slot == whole_slot(c, r->beta)) ||
           (r->kind == PP_RECUR_RWKV7 && slot == whole_slot(c, r->removal_key));
}

/* How a stage uses a slot, which must be a whole one. */
static enum use use_in(const struct pp_cpu *c, const struct stage *s, int slot)
{
    unsigned use = UNUSED;
    if (s->kind == STAGE_ATTEND)
        use |= slot == whole_slot(c, s->q) || slot == whole_slot(c, s->k) || slot == whole_slot(c, s->v) ? READS
                                                                                                         : UNUSED;
    if (s->kind == STAGE_COMPRESS)
        use |= slot == whole_slot(c, s->in) || slot == whole_slot(c, s->in2) ? READS : UNUSED;
    if (s->kind == STAGE_KEEP)
        use |= slot == whole_slot(c, s->k) ? READS : UNUSED;
    if (s->kind == STAGE_PICK)
        use |= slot == whole_slot(c, s->q) || slot == whole_slot(c, s->k) || slot == whole_slot(c, s->head_weights)
                   ? READS : UNUSED;
    if (s->kind == STAGE_POOL)
        use |= slot == whole_slot(c, s->in) ? READS : UNUSED;
    if (s->kind == STAGE_CONVOLVE && s->row_taps >= 0)
        use |= slot == whole_slot(c, s->row_taps) ? READS : UNUSED;
    if (s->kind == STAGE_CONVOLVE)
        use |= slot == whole_slot(c, s->in) || slot == whole_slot(c, s->in2) || slot == whole_slot(c, s->gate) ? READS
                                                                                                               : UNUSED;
    if (s->kind == STAGE_RECUR || s->kind == STAGE_SCAN)
        use |= slot == whole_slot(c, s->in) || recurrence_reads(c, s->recurrence, slot) ? READS : UNUSED;
    if (s->kind == STAGE_SELECT)
        return slot == s->in ? READS : UNUSED; /* it moves rows within the slot */
    for (int i = 0; i < s->n_row_ops; i++)
        use |= row_op_use(c, &s->row_ops[i], slot);
    if ((s->kind == STAGE_PROJECT || s->kind == STAGE_HEADS || s->kind == STAGE_EXPERTS) &&
        slot == whole_slot(c, s->in))
        use |= READS;
    if (s->kind == STAGE_EXPERTS && slot == s->router)
        use |= READS;
    if (s->kind == STAGE_PROJECT && !s->epilogue)
        for (int p = 0; p < s->n_projections; p++)
            use |= slot == s->projections[p].out ? WRITES : UNUSED;
    if (s->kind == STAGE_PROJECT && slot == s->norm_out)
        use |= WRITES;
    if (slot == s->out)
        use |= s->epilogue == EPILOGUE_ADD ? READS : WRITES; /* EPILOGUE_ADD updates the slot */
    return (enum use)use;
}

/* Live ranges, as bits per slot and stage. */
struct liveness {
    size_t words;      /* words per slot, for 64 stages each */
    uint64_t *at;      /* [n_slots][words]: the stage uses the slot, or its value is read later */
    uint64_t *after;   /* [n_slots][words]: the value that the slot has after the stage is read later */
};

static bool bit_of(const struct liveness *l, const uint64_t *bits, int slot, int stage)
{
    return bits[(size_t)slot * l->words + (size_t)stage / 64] >> stage % 64 & 1;
}

static bool alive_at(const struct liveness *l, int slot, int i)
{
    return bit_of(l, l->at, slot, i);
}

/* Whether the value that the slot has after stage i is read later. */
static bool needed_after(const struct liveness *l, int slot, int i)
{
    return bit_of(l, l->after, slot, i);
}

static void find_lives_of(const struct pp_cpu *c, struct liveness *l, int slot)
{
    uint64_t *at = l->at + (size_t)slot * l->words, *after = l->after + (size_t)slot * l->words;
    bool needed = false;
    for (int i = c->n_stages - 1; i >= 0; i--) {
        const enum use use = use_in(c, &c->stages[i], slot);
        const uint64_t bit = (uint64_t)1 << i % 64;
        after[i / 64] |= needed ? bit : 0;
        at[i / 64] |= needed || use != UNUSED ? bit : 0;
        if (use != UNUSED)
            needed = use & READS;
    }
}

static bool find_lives(const struct pp_cpu *c, struct liveness *l)
{
    l->words = (size_t)c->n_stages / 64 + 1;
    l->at = pp_calloc((size_t)c->n_slots * l->words, sizeof *l->at);
    l->after = pp_calloc((size_t)c->n_slots * l->words, sizeof *l->after);
    for (int i = 0; l->at && l->after && i < c->n_slots; i++)
        find_lives_of(c, l, i);
    return l->at && l->after;
}

/* Where a slot is allocated: nowhere, if it is unused; in the arena, with all rows; or with rows for outputs only. */
enum place { NOWHERE, IN_ARENA, OUTPUTS };

static enum place place_of(const struct pp_cpu *c, int slot)
{
    enum place place = NOWHERE;
    for (int i = 0; i < c->n_stages; i++) {
        enum use use = use_in(c, &c->stages[i], slot);
        if (use != UNUSED && !(c->stages[i].selected && use == WRITES))
            return IN_ARENA;
        if (use != UNUSED)
            place = OUTPUTS;
    }
    return place;
}

static bool live_together(const struct liveness *l, int a, int b)
{
    for (size_t w = 0; w < l->words; w++)
        if (l->at[(size_t)a * l->words + w] & l->at[(size_t)b * l->words + w])
            return true;
    return false;
}

/* The layout of the arena, in floats per row. */
struct arena {
    int64_t *offset;   /* [n_slots]; -1: not in the arena */
    enum place *place; /* [n_slots] */
    int64_t width;
    struct liveness lives;
};

static bool overlaps(const struct pp_cpu *c, const struct arena *a, int slot, int64_t at, int64_t width)
{
    return a->offset[slot] >= 0 && at < a->offset[slot] + c->strides[slot] && a->offset[slot] < at + width;
}

/* The lowest offset at which a slot does not overlap any placed slot that is live together with it. */
static int64_t find_offset(const struct pp_cpu *c, const struct arena *a, int slot)
{
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int other = 0; other < c->n_slots; other++)
            if (overlaps(c, a, other, at, c->strides[slot]) && live_together(&a->lives, slot, other)) {
                at = a->offset[other] + c->strides[other];
                moved = true;
            }
    }
    return at;
}

/* The widest slot of the arena that is not placed yet; -1: all are placed. */
static int widest_left(const struct pp_cpu *c, const struct arena *a)
{
    int widest = -1;
    for (int i = 0; i < c->n_slots; i++)
        if (a->offset[i] < 0 && a->place[i] == IN_ARENA && (widest < 0 || c->strides[i] > c->strides[widest]))
            widest = i;
    return widest;
}

/* Places the widest slots first, so that narrow ones fill the gaps. */
static void lay_out(const struct pp_cpu *c, struct arena *a)
{
    for (int i = 0; i < c->n_slots; i++)
        a->offset[i] = -1;
    for (int slot; (slot = widest_left(c, a)) >= 0;) {
        a->offset[slot] = find_offset(c, a, slot);
        int64_t end = a->offset[slot] + c->strides[slot];
        a->width = end > a->width ? end : a->width;
    }
}

/* --- free parts of the arena -------------------------------------------------------------------------------- */

typedef bool stage_test(const struct stage *s);

static bool is_attention(const struct stage *s) { return s->kind == STAGE_ATTEND; }
static bool is_selected(const struct stage *s) { return s->selected || s->kind == STAGE_SELECT; }

static bool lives_at(const struct pp_cpu *c, const struct liveness *l, int slot, stage_test *test)
{
    for (int i = 0; i < c->n_stages; i++)
        if (test(&c->stages[i]) && alive_at(l, slot, i))
            return true;
    return false;
}

/* The width from `at` to the next slot that is live at a stage for which `test` is true. */
static int64_t gap_from(const struct pp_cpu *c, const struct arena *a, int64_t at, stage_test *test)
{
    int64_t end = a->width;
    for (int i = 0; i < c->n_slots; i++)
        if (overlaps(c, a, i, at, end - at) && lives_at(c, &a->lives, i, test))
            end = a->offset[i] > at ? a->offset[i] : at;
    return end - at;
}

/* The widest part of the arena that is free at all stages for which `test` is true; it begins at the arena's start, or
 * where a slot ends. *floats: its size, for all rows. */
static float *find_gap(const struct pp_cpu *c, const struct arena *a, stage_test *test, int64_t *floats)
{
    int64_t best = 0, width = gap_from(c, a, 0, test);
    for (int i = 0; i < c->n_slots; i++) {
        if (a->offset[i] < 0)
            continue;
        int64_t at = a->offset[i] + c->strides[i], after = gap_from(c, a, at, test);
        if (after > width) {
            best = at;
            width = after;
        }
    }
    *floats = c->max_rows * width;
    return c->arena + c->max_rows * best;
}

/* --- outputs -------------------------------------------------------------------------------------------------- */

static int64_t output_width(const struct pp_cpu *c)
{
    int64_t width = 0;
    for (int i = 0; i < c->n_slots; i++)
        width += place_of(c, i) == OUTPUTS ? c->strides[i] : 0;
    return width;
}

/* Lays out the slots for outputs as consecutive arrays of n rows, from `at` on. */
static void point_at_outputs(struct pp_cpu *c, float *at, int n)
{
    for (int i = 0; i < c->n_slots; i++)
        if (place_of(c, i) == OUTPUTS) {
            c->slots[i] = at;
            at += n * c->strides[i];
        }
    c->max_outputs = n;
}

bool pp_cpu_slots_outputs(struct pp_cpu *c, int n)
{
    int64_t width = output_width(c);
    float *p = width ? pp_cpu_memory_take(c, n * width, sizeof *p) : NULL;
    if (!width) { /* an encoder's outputs are in slots with all rows */
        c->max_outputs = c->max_rows;
        return true;
    }
    if (!p)
        return false;
    if (c->outputs)
        c->memory -= (uint64_t)(c->max_outputs * width) * sizeof *p;
    pp_free(c->outputs);
    c->outputs = p;
    point_at_outputs(c, p, n);
    return true;
}

static bool place_outputs(struct pp_cpu *c, const struct arena *a)
{
    int64_t floats, width = output_width(c);
    float *gap = find_gap(c, a, is_selected, &floats);
    int64_t fit = width ? floats / width : 0, few = c->max_rows < FEW_OUTPUTS ? c->max_rows : FEW_OUTPUTS;
    if (fit < few)
        return pp_cpu_slots_outputs(c, (int)few);
    point_at_outputs(c, gap, fit < c->max_rows ? (int)fit : c->max_rows);
    return true;
}

/* --- life ----------------------------------------------------------------------------------------------------- */

/* Maps the arena, as fresh pages of the system, which are zeros. */
static bool take_arena(struct pp_cpu *c, const struct arena *a)
{
    c->arena_bytes = (size_t)(c->max_rows * a->width) * sizeof *c->arena;
    void *p = mmap(NULL, c->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return false;
    madvise(p, c->arena_bytes, MADV_HUGEPAGE);
    c->arena = p;
    c->memory += c->arena_bytes;
    for (int i = 0; i < c->n_slots; i++)
        if (a->offset[i] >= 0)
            c->slots[i] = c->arena + c->max_rows * a->offset[i];
    return true;
}

/* Whether the converted form of an input fits in its slot: it is either quantised or split, not both, and if split it
 * consists of whole blocks. */
static bool fits_in_place(const struct stage *s)
{
    return !s->split || (!s->quantize && s->projections[0].w.n_cols % PP_BF16_BLOCK == 0);
}

static void mark_in_place(struct pp_cpu *c, const struct liveness *l)
{
    for (int i = 0; i < c->n_stages; i++) {
        struct stage *s = &c->stages[i];
        s->in_place = s->kind == STAGE_PROJECT && !s->plain && !s->norm.weight && !s->selected && s->in != s->out &&
                      whole_slot(c, s->in) == s->in && !needed_after(l, s->in, i) && fits_in_place(s);
    }
}

/* Whether product kernels read rows of this slot. An input with a norm is read from scratch instead. */
static bool is_multiplied(const struct pp_cpu *c, int slot)
{
    for (int i = 0; i < c->n_stages; i++) {
        const struct stage *s = &c->stages[i];
        if (s->kind == STAGE_PROJECT && !s->norm.weight && whole_slot(c, s->in) == slot)
            return true;
    }
    return false;
}

static int64_t stride_of(const struct pp_cpu *c, int slot)
{
    const int whole = whole_slot(c, slot);
    const int64_t width = pp_cpu_padded(c->model->plan.slots[whole].width);
    return is_multiplied(c, whole) ? pp_odd_lines(width, sizeof(float)) : width;
}

bool pp_cpu_slots_new(struct pp_cpu *c)
{
    const struct pp_plan *plan = &c->model->plan;
    size_t n = (size_t)plan->n_slots;
    struct arena a = {.offset = pp_calloc(n, sizeof *a.offset), .place = pp_calloc(n, sizeof *a.place)};
    c->n_slots = plan->n_slots;
    c->slots = pp_calloc(n, sizeof *c->slots);
    c->strides = pp_calloc(n, sizeof *c->strides);
    bool good = c->slots && c->strides && a.offset && a.place && find_lives(c, &a.lives);
    for (int i = 0; good && i < c->n_slots; i++) {
        c->strides[i] = stride_of(c, i);
        a.place[i] = place_of(c, i);
    }
    if (good)
        lay_out(c, &a);
    good = good && take_arena(c, &a) && place_outputs(c, &a);
    if (good) {
        c->attention_room = find_gap(c, &a, is_attention, &c->attention_floats);
        mark_in_place(c, &a.lives);
    }
    for (int i = 0; good && i < c->n_slots; i++)
        if (whole_slot(c, i) != i && c->slots[whole_slot(c, i)])
            c->slots[i] = c->slots[whole_slot(c, i)] + plan->slots[i].at;
    pp_free(a.offset);
    pp_free(a.place);
    pp_free(a.lives.at);
    pp_free(a.lives.after);
    return good;
}

void pp_cpu_slots_free(struct pp_cpu *c)
{
    if (c->arena)
        munmap(c->arena, c->arena_bytes);
    pp_free(c->outputs);
    pp_free(c->slots);
    pp_free(c->strides);
}
