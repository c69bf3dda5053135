/* slots.c - the memory of a plan's slots.
 *
 * Most slots are needed for a few stages of a layer only: queries, keys and values are done with when the feed-forward
 * part begins. A slot lives from a stage that writes it whole to the last one that reads that; slots that live at no
 * stage together may lie in the same place of one arena. What only feeds an epilogue (the halves of SwiGLU, what is
 * added to the residual stream) needs no slot: threads keep it beside them (project.c). Slots that are written behind
 * SELECT have rows for the outputs only: the logits of a long prompt are never all there. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/cpu/program.h"

enum use { UNUSED = 0, READS = 1, WRITES = 2 };

static enum use use_in(const struct stage *s, int slot)
{
    unsigned use = UNUSED;
    if (s->kind == STAGE_ATTEND)
        use |= slot == s->q || slot == s->k || slot == s->v ? READS : UNUSED;
    if (s->kind == STAGE_SELECT)
        return slot == s->in ? READS : UNUSED; /* moves rows inside the slot */
    if (s->kind == STAGE_PROJECT && slot == s->in)
        use |= READS;
    if (s->kind == STAGE_PROJECT && !s->swiglu && !s->add)
        for (int p = 0; p < s->n_projections; p++)
            use |= slot == s->projections[p].out ? WRITES : UNUSED;
    if (s->kind == STAGE_PROJECT && slot == s->norm_out)
        use |= WRITES;
    if (slot == s->out)
        use |= s->add ? READS : WRITES; /* what is added to stays alive */
    return (enum use)use;
}

/* Whether what is in the slot behind stage i is read later. */
static bool needed_after(const struct pp_cpu *c, int slot, int i)
{
    while (++i < c->n_stages) {
        enum use use = use_in(&c->stages[i], slot);
        if (use & READS)
            return true;
        if (use & WRITES)
            return false;
    }
    return false;
}

static bool alive_at(const struct pp_cpu *c, int slot, int i)
{
    return use_in(&c->stages[i], slot) != UNUSED || needed_after(c, slot, i);
}

/* What the slot is for: nothing, all rows, or outputs. */
enum place { NOWHERE, IN_ARENA, OUTPUTS };

static enum place place_of(const struct pp_cpu *c, int slot)
{
    enum place place = NOWHERE;
    for (int i = 0; i < c->n_stages; i++) {
        enum use use = use_in(&c->stages[i], slot);
        if (use != UNUSED && !(c->stages[i].selected && use == WRITES))
            return IN_ARENA;
        if (use != UNUSED)
            place = OUTPUTS;
    }
    return place;
}

static bool share_a_stage(const struct pp_cpu *c, int a, int b)
{
    for (int i = 0; i < c->n_stages; i++)
        if (alive_at(c, a, i) && alive_at(c, b, i))
            return true;
    return false;
}

/* The lowest place for slot i beside those placed before. offset: in floats a row. */
static int64_t find_offset(const struct pp_cpu *c, int slot, const int *placed, int n_placed, const int64_t *offset)
{
    int64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k < n_placed; k++) {
            int other = placed[k];
            if (at < offset[other] + c->strides[other] && offset[other] < at + c->strides[slot] &&
                share_a_stage(c, slot, other)) {
                at = offset[other] + c->strides[other];
                moved = true;
            }
        }
    }
    return at;
}

/* The widest slots first, so that the narrow ones fill what is left. Sets offset [n_slots]; returns floats a row. */
static int64_t lay_out(const struct pp_cpu *c, const enum place *places, int *placed, int64_t *offset)
{
    int64_t width = 0;
    int n = 0;
    for (int i = 0; i < c->n_slots; i++) {
        int at = n;
        if (places[i] != IN_ARENA)
            continue;
        for (; at > 0 && c->strides[placed[at - 1]] < c->strides[i]; at--)
            placed[at] = placed[at - 1];
        placed[at] = i;
        n++;
    }
    for (int k = 0; k < n; k++) {
        offset[placed[k]] = find_offset(c, placed[k], placed, k, offset);
        int64_t end = offset[placed[k]] + c->strides[placed[k]];
        width = end > width ? end : width;
    }
    return width;
}

static bool take_slots(struct pp_cpu *c, enum place *places, int *placed, int64_t *offset)
{
    for (int i = 0; i < c->n_slots; i++)
        places[i] = place_of(c, i);
    int64_t width = lay_out(c, places, placed, offset);
    if (!(c->arena = pp_cpu_memory_take(c, c->max_rows * width, sizeof(float))))
        return false;
    for (int i = 0; i < c->n_slots; i++) {
        if (places[i] == IN_ARENA)
            c->slots[i] = c->arena + c->max_rows * offset[i];
        else if (places[i] == OUTPUTS &&
                 !(c->slots[i] = pp_cpu_memory_take(c, c->max_outputs * c->strides[i], sizeof(float))))
            return false;
    }
    return true;
}

static void mark_in_place(struct pp_cpu *c)
{
    for (int i = 0; i < c->n_stages; i++) {
        struct stage *s = &c->stages[i];
        s->in_place = s->kind == STAGE_PROJECT && !s->plain && !s->norm && !s->selected && s->in != s->out &&
                      !needed_after(c, s->in, i);
    }
}

bool pp_cpu_slots_new(struct pp_cpu *c)
{
    const struct pp_plan *plan = &c->model->plan;
    size_t n = (size_t)plan->n_slots;
    c->n_slots = plan->n_slots;
    c->slots = pp_calloc(n, sizeof *c->slots);
    c->strides = pp_calloc(n, sizeof *c->strides);
    enum place *places = pp_calloc(n, sizeof *places);
    int *placed = pp_calloc(n, sizeof *placed);
    int64_t *offset = pp_calloc(n, sizeof *offset);
    bool good = c->slots && c->strides && places && placed && offset;
    for (int i = 0; good && i < c->n_slots; i++)
        c->strides[i] = (plan->slot_width[i] + 15) / 16 * 16;
    good = good && take_slots(c, places, placed, offset);
    mark_in_place(c);
    pp_free(places);
    pp_free(placed);
    pp_free(offset);
    return good;
}

static bool is_in_arena(const struct pp_cpu *c, int slot)
{
    return place_of(c, slot) != OUTPUTS;
}

void pp_cpu_slots_free(struct pp_cpu *c)
{
    for (int i = 0; c->slots && i < c->n_slots; i++)
        if (!is_in_arena(c, i))
            pp_free(c->slots[i]);
    pp_free(c->arena);
    pp_free(c->slots);
    pp_free(c->strides);
}

bool pp_cpu_slots_outputs(struct pp_cpu *c, int n)
{
    for (int i = 0; i < c->n_slots; i++) {
        if (is_in_arena(c, i))
            continue;
        float *p = pp_cpu_memory_take(c, n * c->strides[i], sizeof *p);
        if (!p)
            return false; /* some slots are larger than they need be: no harm */
        c->memory -= (uint64_t)(c->max_outputs * c->strides[i]) * sizeof *p;
        pp_free(c->slots[i]);
        c->slots[i] = p;
    }
    c->max_outputs = n;
    return true;
}
