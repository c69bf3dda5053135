/* plan_reads.c - what operations of a plan read: backends fuse, and keep no vector that nobody asks for again. */
#include "engine/plan.h"

static bool overlap(const struct pp_plan *p, int a, int b)
{
    if (a < 0 || b < 0)
        return false;
    const struct pp_slot *x = &p->slots[a], *y = &p->slots[b];
    return x->base == y->base && x->at < y->at + y->width && y->at < x->at + x->width;
}

/* How far b is written, from its first value on, that had been as far as `done`, once slot a is. */
static int64_t written(const struct pp_plan *p, int a, int b, int64_t done)
{
    if (a < 0)
        return done;
    const struct pp_slot *x = &p->slots[a], *y = &p->slots[b];
    const int64_t end = x->at + x->width;
    return x->base == y->base && x->at <= done && end > done ? end : done;
}

static bool recurrence_reads(const struct pp_plan *p, const struct pp_recurrence *r, int slot)
{
    return overlap(p, r->q, slot) || overlap(p, r->k, slot) || overlap(p, r->v, slot) ||
           overlap(p, r->decay, slot) || overlap(p, r->beta, slot) ||
           (r->kind == PP_RECUR_RWKV7 && overlap(p, r->look, slot));
}

bool pp_plan_op_reads(const struct pp_plan *p, const struct pp_op *op, int slot)
{
    const bool adds = op->kind == PP_OP_ADD || op->kind == PP_OP_SPREAD || op->kind == PP_OP_WRITE_STREAMS;
    return overlap(p, op->in, slot) || overlap(p, op->in2, slot) || (adds && overlap(p, op->out, slot)) ||
           (op->kind == PP_OP_PICK && overlap(p, op->in3, slot)) ||
           (op->kind == PP_OP_RECUR && recurrence_reads(p, &p->recurrences[op->recurrence], slot));
}

bool pp_plan_reads(const struct pp_plan *p, int slot, int from)
{
    int64_t done = p->slots[slot].at; /* parts may be written one after the other */
    for (int i = from; i < p->n_ops; i++) {
        if (pp_plan_op_reads(p, &p->ops[i], slot))
            return true;
        done = written(p, p->ops[i].out, slot, done);
        if (done >= p->slots[slot].at + p->slots[slot].width)
            return false;
    }
    return false;
}
