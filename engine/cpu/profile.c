#include "engine/cpu/profile.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

struct pp_cpu_profile {
    struct pp_profile sum;           /* everything that is not counted per thread: passes, bytes, multiply-adds */
    uint8_t *kinds;                  /* [n_stages] */
    struct thread_lines {
        _Alignas(64) uint64_t nested; /* ns of the current item that were counted under another kind */
        struct {
            uint64_t ns, items;
        } lines[PP_PROFILE_COUNT];
    } *threads;                      /* [n threads] */
};

/* Whether stage i prepares attention: from it to the next ATTEND stage, no stage has an epilogue, mixes experts or
 * selects rows. (In latent attention several stages are in between.) */
static bool comes_before_attention(const struct pp_cpu *c, int i)
{
    for (; i < c->n_stages && c->stages[i].kind != STAGE_ATTEND; i++)
        if (c->stages[i].epilogue || c->stages[i].kind == STAGE_EXPERTS || c->stages[i].kind == STAGE_SELECT)
            return false;
    return i < c->n_stages;
}

/* The purpose of a projection stage, inferred from the stages around it, because stages have no names. */
static enum pp_profile_kind projection_kind(const struct pp_cpu *c, int i)
{
    const struct stage *s = &c->stages[i];
    if (s->selected)
        return PP_PROFILE_LOGITS;
    if (comes_before_attention(c, i))
        return PP_PROFILE_QKV;
    if (i > 0 && (c->stages[i - 1].kind == STAGE_ATTEND || c->stages[i - 1].kind == STAGE_HEADS))
        return PP_PROFILE_ATTN_OUT;
    return s->epilogue == EPILOGUE_GATE || s->epilogue == EPILOGUE_APPLY ? PP_PROFILE_GATE_UP
           : s->epilogue == EPILOGUE_ADD                               ? PP_PROFILE_DOWN
                                                                       : PP_PROFILE_OTHER;
}

static enum pp_profile_kind stage_kind(const struct pp_cpu *c, int i)
{
    switch (c->stages[i].kind) {
    case STAGE_EMBED:
        return PP_PROFILE_EMBED;
    case STAGE_PROJECT:
        return projection_kind(c, i);
    case STAGE_HEADS:
        return i > 0 && c->stages[i - 1].kind == STAGE_ATTEND ? PP_PROFILE_ATTN_OUT : PP_PROFILE_QKV;
    case STAGE_COMPRESS:
    case STAGE_KEEP:
    case STAGE_PICK:
    case STAGE_ATTEND:
    case STAGE_RECUR:
    case STAGE_SCAN:
        return PP_PROFILE_ATTENTION;
    case STAGE_EXPERTS:
        return PP_PROFILE_DOWN;
    default:
        return PP_PROFILE_OTHER;
    }
}

static void free_profile(struct pp_cpu_profile *p)
{
    if (!p)
        return;
    pp_free(p->kinds);
    pp_free(p->threads);
    pp_free(p);
}

enum pp_code pp_cpu_profile(struct pp_cpu *c, bool on, struct pp_error *err)
{
    free_profile(c->profile);
    c->profile = NULL;
    if (!on)
        return PP_OK;
    size_t n_threads = (size_t)pp_pool_n(c->pool), bytes = n_threads * sizeof(struct thread_lines);
    struct pp_cpu_profile *p = pp_calloc(1, sizeof *p);
    if (p) {
        p->kinds = pp_malloc((size_t)c->n_stages);
        p->threads = pp_aligned(64, bytes);
    }
    if (!p || !p->kinds || !p->threads) {
        free_profile(p);
        return pp_fail_nomem(err, "the profile");
    }
    memset(p->threads, 0, bytes);
    for (int i = 0; i < c->n_stages; i++)
        p->kinds[i] = (uint8_t)stage_kind(c, i);
    c->profile = p;
    return PP_OK;
}

/* --- while a pass runs --------------------------------------------------------------------------------------- */

static enum pp_profile_kind experts_kind(enum experts_phase phase)
{
    switch (phase) {
    case EXPERTS_PREPARE:
    case EXPERTS_PREPARE_DOWN:
        return PP_PROFILE_PREPARE;
    case EXPERTS_GATE_UP:
        return PP_PROFILE_GATE_UP;
    case EXPERTS_DOWN:
        return PP_PROFILE_DOWN;
    case EXPERTS_CHOOSE:
    case EXPERTS_PLACE:
    case EXPERTS_SUM:
        break;
    }
    return PP_PROFILE_ROUTE;
}

static enum pp_profile_kind part_kind(const struct pp_cpu *c, const struct part *part)
{
    if (part->stage->kind == STAGE_PROJECT && part->phase == 0)
        return PP_PROFILE_PREPARE;
    if ((part->stage->kind == STAGE_ATTEND || part->stage->kind == STAGE_PICK) && part->phase == 0)
        return PP_PROFILE_STORE;
    if (part->stage->kind == STAGE_EXPERTS)
        return experts_kind((enum experts_phase)part->phase);
    return (enum pp_profile_kind)c->profile->kinds[part->stage - c->stages];
}

static void timed_items(void *arg, int part, int first, int end, int thread)
{
    struct pp_cpu *c = arg;
    struct thread_lines *t = &c->profile->threads[thread];
    enum pp_profile_kind kind = part_kind(c, &c->parts[part]);
    t->nested = 0;
    uint64_t begin = pp_now_ns();
    pp_cpu_run_items(arg, part, first, end, thread);
    t->lines[kind].ns += pp_now_ns() - begin - t->nested;
    t->lines[kind].items++;
}

uint64_t pp_cpu_profile_begin(const struct pp_cpu *c)
{
    return c->profile ? pp_now_ns() : 0;
}

void pp_cpu_profile_prepared(struct pp_cpu *c, int thread, uint64_t begin)
{
    if (!begin)
        return;
    struct thread_lines *t = &c->profile->threads[thread];
    uint64_t ns = pp_now_ns() - begin;
    t->nested += ns;
    t->lines[PP_PROFILE_PREPARE].ns += ns;
    t->lines[PP_PROFILE_PREPARE].items++;
}

/* Counts the bytes of the K and V that are read, once for each sequence, and for every row two multiply-adds per
 * dimension (for the score and for the sum) with each position that it attends to. */
static void count_attention(const struct pp_cpu *c, const struct stage *s, struct pp_profile_line *line)
{
    const struct pp_hparams *hp = pp_source_hparams(c->model->source);
    const struct pp_batch *b = c->batch;
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    uint64_t one_layer = kv->page_bytes / PP_PAGE_TOKENS / (uint64_t)kv->n_layer;
    for (int i = 0; i < b->n; i++) {
        uint64_t n_kv = (uint64_t)b->rows[i].slot + 1, window = (uint64_t)c->attend[s->tier].window;
        if (window && n_kv > window)
            n_kv = window;
        const uint64_t top_k = (uint64_t)c->attend[s->tier].top_k, stride = (uint64_t)c->attend[s->tier].stride;
        const uint64_t blocks = stride ? ((uint64_t)b->rows[i].slot + 1) / stride : 0;
        if (top_k && !stride && n_kv > top_k)
            n_kv = top_k;
        n_kv += top_k && blocks > top_k ? top_k : blocks;
        line->macs += 2 * n_kv * (uint64_t)(hp->n_head * hp->head_dim);
        if (i + 1 == b->n || b->rows[i + 1].pages[s->tier] != b->rows[i].pages[s->tier])
            line->bytes += n_kv * one_layer;
    }
}

/* Counts each row's experts. Bytes are counted as if no rows shared an expert, up to those of all experts. */
static void count_experts(const struct experts *x, uint64_t m, struct pp_profile_line lines[PP_PROFILE_COUNT])
{
    const uint64_t pairs = m * (uint64_t)x->n_used, n = (uint64_t)x->n_matrices, read = pairs < n ? pairs : n;
    const uint64_t macs = (uint64_t)(x->n_in * x->n_ff) * pairs;
    if (!x->up) {
        lines[PP_PROFILE_DOWN].bytes += read * x->down->weight->t->size;
        lines[PP_PROFILE_DOWN].macs += (uint64_t)(x->n_in * x->n_out) * pairs;
        return;
    }
    lines[PP_PROFILE_GATE_UP].bytes += read * ((x->gate ? x->gate->weight->t->size : 0) + x->up->weight->t->size);
    lines[PP_PROFILE_GATE_UP].macs += (x->gate ? 2 : 1) * macs;
    lines[PP_PROFILE_DOWN].bytes += read * x->down->weight->t->size;
    lines[PP_PROFILE_DOWN].macs += macs;
}

/* Counts what choosing positions reads and multiplies: the indexer's keys of all positions or blocks. Rows that see at
 * most top_k of them need no choice. */
static void count_picks(const struct pp_cpu *c, const struct stage *s, struct pp_profile_line *line)
{
    const struct pp_kv_layout *kv = &c->attend[s->tier].kv;
    for (int i = 0; i < c->batch->n; i++) {
        const uint64_t n = (uint64_t)(pp_cpu_row_length(&c->batch->rows[i]) / kv->stride);
        if (n <= (uint64_t)c->pick.top_k)
            continue;
        line->macs += n * (uint64_t)(c->attend[s->tier].group * kv->head_dim);
        line->bytes += n * (kv->head_bytes / (size_t)kv->slots);
    }
}

/* Bytes and multiply-adds of the pass, stage by stage. */
static void count_work(struct pp_cpu *c)
{
    struct pp_cpu_profile *p = c->profile;
    for (int i = 0; i < c->n_stages; i++) {
        const struct stage *s = &c->stages[i];
        struct pp_profile_line *line = &p->sum.lines[p->kinds[i]];
        uint64_t m = (uint64_t)(s->selected ? c->batch->n_outputs : c->batch->n);
        if (s->kind == STAGE_ATTEND)
            count_attention(c, s, line);
        if (s->kind == STAGE_PICK)
            count_picks(c, s, line);
        if (s->kind == STAGE_EXPERTS)
            count_experts(s->experts, m, p->sum.lines);
        for (int h = 0; m && h < s->n_heads; h++) {
            line->bytes += s->heads[h].weight->t->size;
            line->macs += (uint64_t)(s->heads[h].w.n_rows * s->heads[h].w.n_cols) * m;
        }
        for (int k = 0; s->kind == STAGE_PROJECT && m && k < s->n_projections; k++) {
            const struct pp_tensor *w = c->model->plan.linears[s->projections[k].linear].w;
            line->bytes += w->size;
            line->macs += (uint64_t)(w->ne[0] * w->ne[1]) * m;
        }
    }
}

void pp_cpu_profile_run(struct pp_cpu *c)
{
    struct pp_cpu_profile *p = c->profile;
    uint64_t begin = pp_now_ns();
    pp_cpu_begin_alone(c, timed_items);
    pp_pool_run_parts(c->pool, timed_items, c, c->work, c->n_parts);
    p->sum.ns += pp_now_ns() - begin;
    p->sum.passes++;
    p->sum.rows += (uint64_t)c->batch->n;
    count_work(c);
}

void pp_cpu_profile_get(const struct pp_cpu *c, struct pp_profile *out)
{
    *out = (struct pp_profile){.n_threads = pp_pool_n(c->pool)};
    if (!c->profile)
        return;
    *out = c->profile->sum;
    out->n_threads = pp_pool_n(c->pool);
    uint64_t worked = 0, all = out->ns * (uint64_t)out->n_threads;
    for (int t = 0; t < out->n_threads; t++)
        for (int k = 0; k < PP_PROFILE_COUNT; k++) {
            out->lines[k].ns += c->profile->threads[t].lines[k].ns;
            out->lines[k].items += c->profile->threads[t].lines[k].items;
            worked += c->profile->threads[t].lines[k].ns;
        }
    out->lines[PP_PROFILE_WAIT].ns = all > worked ? all - worked : 0;
}
