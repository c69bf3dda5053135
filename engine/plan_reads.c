/* plan_reads.c - whether a value of a plan is still read. Backends fuse operations, and drop results that nothing
 * reads. */
#include "engine/plan.h"

/* The values of a slot within its base slot. */
struct range {
    int base;
    int64_t from, to;
};

static struct range range_of(const struct pp_plan *p, int slot)
{
    const struct pp_slot *s = &p->slots[slot];
    return (struct range){s->base, s->at, s->at + s->width};
}

static bool overlap(const struct pp_plan *p, int a, struct range r)
{
    if (a < 0)
        return false;
    const struct range x = range_of(p, a);
    return x.base == r.base && x.from < r.to && r.from < x.to;
}

/* Values of slot b written up to `done`: how far they are after slot a is written, too. */
static int64_t written(const struct pp_plan *p, int a, int b, int64_t done)
{
    if (a < 0)
        return done;
    const struct pp_slot *x = &p->slots[a], *y = &p->slots[b];
    const int64_t end = x->at + x->width;
    return x->base == y->base && x->at <= done && end > done ? end : done;
}

static bool recurrence_reads(const struct pp_plan *p, const struct pp_recurrence *r, struct range range)
{
    return overlap(p, r->q, range) || overlap(p, r->k, range) || overlap(p, r->v, range) ||
           overlap(p, r->decay, range) || overlap(p, r->beta, range) ||
           (r->kind == PP_RECUR_RWKV7 && overlap(p, r->removal_key, range));
}

static bool op_reads(const struct pp_plan *p, const struct pp_op *op, struct range range)
{
    const bool adds = op->kind == PP_OP_ADD || op->kind == PP_OP_SPREAD || op->kind == PP_OP_WRITE_STREAMS;
    return overlap(p, op->in, range) || overlap(p, op->in2, range) || (adds && overlap(p, op->out, range)) ||
           (op->kind == PP_OP_PICK && overlap(p, op->in3, range)) ||
           (op->kind == PP_OP_RECUR && recurrence_reads(p, &p->recurrences[op->recurrence], range));
}

bool pp_plan_op_reads(const struct pp_plan *p, const struct pp_op *op, int slot)
{
    return slot >= 0 && op_reads(p, op, range_of(p, slot));
}

/* A slot that is written again holds another value: layers of other widths use the same memory. */
bool pp_plan_reads(const struct pp_plan *p, int slot, int from)
{
    struct range rest = range_of(p, slot); /* parts may be written one by one */
    for (int i = from; i < p->n_ops; i++) {
        if (op_reads(p, &p->ops[i], rest))
            return true;
        rest.from = written(p, p->ops[i].out, slot, rest.from);
        if (rest.from >= rest.to)
            return false;
    }
    return false;
}
