/* grammar_state.c - see grammar_state.h. */
#include "engine/grammar_state.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

enum { HOLE = 0, ROOT = 1 };            /* frames */
enum { UNKNOWN = -2 };
enum { DEPTH_MOST = 2000 };             /* rules that begin with each other */
#define TEMP 0x80000000u                /* frames of the closure that is computed are numbered from here on */
enum { TRIM_FROM = 16 << 20, BYTES_MOST = 128 << 20 };
enum { WORK_MOST = 1 << 25 };           /* items looked at for one token: a second, thousands of times what is usual */

/* --- failures ---------------------------------------------------------------------------------------------------- */

static int32_t no_memory(struct pp_matcher *m)
{
    m->code = pp_fail_nomem(&m->err, "the grammar's states");
    return PP_STATE_FAILED;
}

static int32_t too_ambiguous(struct pp_matcher *m)
{
    m->code = pp_fail(&m->err, PP_ERR_UNSUPPORTED,
                      "the grammar is too ambiguous here: too many of its rules could be meant at once; make rules end "
                      "with something that cannot begin what follows");
    return PP_STATE_FAILED;
}

/* --- interning --------------------------------------------------------------------------------------------------- */

static uint64_t hash_items(const struct pp_item *items, size_t n)
{
    uint64_t h = 0x9E3779B97F4A7C15u + n;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ ((uint64_t)items[i].node << 32 | items[i].frame)) * 0xBF58476D1CE4E5B9u;
        h ^= h >> 29;
    }
    return h;
}

/* Makes the table twice as large. */
static bool table_grow(struct pp_table *t)
{
    const size_t cap = t->n_slots ? 2 * t->n_slots : 256;
    struct pp_table_slot *slots = pp_calloc(cap, sizeof *slots);
    if (!slots)
        return false;
    for (size_t i = 0; i < t->n_slots; i++) {
        size_t at = t->slots[i].hash & (cap - 1);
        while (t->slots[i].number && slots[at].number)
            at = (at + 1) & (cap - 1);
        if (t->slots[i].number)
            slots[at] = t->slots[i];
    }
    pp_free(t->slots);
    t->slots = slots;
    t->n_slots = cap;
    return true;
}

static int compare_items(const void *x, const void *y)
{
    const struct pp_item *a = x, *b = y;
    const uint32_t p = a->node != b->node ? a->node : a->frame, q = a->node != b->node ? b->node : b->frame;
    return p < q ? -1 : p > q;
}

/* Sorts and removes duplicates. */
static size_t sort_items(struct pp_item *items, size_t n)
{
    size_t kept = 0;
    if (n > 1)
        qsort(items, n, sizeof *items, compare_items);
    for (size_t i = 0; i < n; i++)
        if (!kept || compare_items(&items[kept - 1], &items[i]) != 0)
            items[kept++] = items[i];
    return kept;
}

static bool same_items(const struct pp_item *a, const struct pp_item *b, size_t n)
{
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

static size_t bytes_used(const struct pp_matcher *m)
{
    return m->n_items * sizeof *m->items + m->n_links * sizeof *m->links + m->n_frames * sizeof *m->frames +
           m->n_states * (sizeof *m->states + m->g->n_classes * sizeof *m->next);
}

static uint32_t intern_frame(struct pp_matcher *m, const struct pp_item *links, size_t n);

/* Its callers' frames are older, so that theirs are known. */
static bool find_alike(struct pp_matcher *m, uint32_t frame)
{
    const struct pp_frame f = m->frames[frame];
    struct pp_item *links = pp_malloc(f.n * sizeof *links);
    bool other = false;
    if (!links)
        return false;
    for (uint32_t i = 0; i < f.n; i++) {
        const struct pp_item x = m->links[f.first + i];
        links[i] = (struct pp_item){m->g->alike[x.node], m->frames[x.frame].alike};
        other = other || links[i].node != x.node || links[i].frame != x.frame;
    }
    const uint32_t alike = other ? intern_frame(m, links, sort_items(links, f.n)) : frame;
    pp_free(links);
    if (alike == UINT32_MAX)
        return false;
    m->frames[frame].alike = alike;
    return true;
}

/* The number of the frame with these sorted links; UINT32_MAX on failure. */
static uint32_t intern_frame(struct pp_matcher *m, const struct pp_item *links, size_t n)
{
    struct pp_table *t = &m->frame_table;
    if (2 * m->n_frames >= t->n_slots && !table_grow(t)) {
        no_memory(m);
        return UINT32_MAX;
    }
    const uint64_t hash = hash_items(links, n);
    size_t at = hash & (t->n_slots - 1);
    for (; t->slots[at].number; at = (at + 1) & (t->n_slots - 1)) {
        const struct pp_frame *f = &m->frames[t->slots[at].number - 1];
        if (f->n == n && same_items(m->links + f->first, links, n))
            return t->slots[at].number - 1;
    }
    if (pp_grow(&m->links, &m->cap_links, m->n_links + n, sizeof *m->links) != 0 ||
        pp_grow(&m->frames, &m->cap_frames, m->n_frames + 1, sizeof *m->frames) != 0) {
        no_memory(m);
        return UINT32_MAX;
    }
    const uint32_t frame = (uint32_t)m->n_frames;
    m->frames[frame] = (struct pp_frame){.first = (uint32_t)m->n_links, .n = (uint32_t)n, .alike = frame};
    memcpy(m->links + m->n_links, links, n * sizeof *links);
    m->n_links += n;
    t->slots[at] = (struct pp_table_slot){hash, (uint32_t)++m->n_frames};
    if (m->g->alike && frame > ROOT && !find_alike(m, frame)) {
        no_memory(m);
        return UINT32_MAX;
    }
    return frame;
}

static int32_t intern_state(struct pp_matcher *m, const struct pp_item *items, size_t n)
{
    struct pp_table *t = &m->state_table;
    const unsigned classes = m->g->n_classes;
    if (2 * m->n_states >= t->n_slots && !table_grow(t))
        return no_memory(m);
    const uint64_t hash = hash_items(items, n);
    size_t at = hash & (t->n_slots - 1);
    for (; t->slots[at].number; at = (at + 1) & (t->n_slots - 1)) {
        const struct pp_state *s = &m->states[t->slots[at].number - 1];
        if (s->n == n && same_items(m->items + s->first, items, n))
            return (int32_t)t->slots[at].number - 1;
    }
    if (pp_grow(&m->items, &m->cap_items, m->n_items + n, sizeof *m->items) != 0 ||
        pp_grow(&m->states, &m->cap_states, m->n_states + 1, sizeof *m->states) != 0 ||
        pp_grow(&m->next, &m->cap_next, (m->n_states + 1) * classes, sizeof *m->next) != 0)
        return no_memory(m);
    struct pp_state *s = &m->states[m->n_states];
    *s = (struct pp_state){.first = (uint32_t)m->n_items, .n = (uint32_t)n};
    if (n)
        memcpy(m->items + m->n_items, items, n * sizeof *items);
    m->n_items += n;
    for (size_t i = 0; i < n; i++) {
        const enum pp_node_kind kind = m->g->nodes[items[i].node].kind;
        s->ends = s->ends || (!items[i].node && items[i].frame == ROOT);
        s->pops = s->pops || (!items[i].node && items[i].frame == HOLE);
        s->tokens = s->tokens || kind == PP_NODE_TOKEN || kind == PP_NODE_NOT_TOKEN;
    }
    for (unsigned c = 0; c < classes; c++)
        m->next[m->n_states * classes + c] = n ? UNKNOWN : PP_STATE_DEAD;
    t->slots[at] = (struct pp_table_slot){hash, (uint32_t)++m->n_states};
    return (int32_t)m->n_states - 1;
}

/* --- closures ---------------------------------------------------------------------------------------------------- */

static void closure_begin(struct pp_matcher *m)
{
    m->n_found = 0;
    for (size_t i = 0; i < m->n_temps; i++)
        m->temp_of_rule[m->temps[i].rule] = 0;
    m->n_temps = m->n_temp_links = m->n_scratch = 0;
    if (++m->generation == 0) {
        memset(m->seen, 0, m->n_seen * sizeof *m->seen);
        m->generation = 1;
    }
}

static size_t seen_slot(const struct pp_matcher *m, struct pp_item x)
{
    uint64_t h = ((uint64_t)x.node << 32 | x.frame) * 0x9E3779B97F4A7C15u;
    return (size_t)(h >> 32) & (m->n_seen - 1);
}

static bool seen_grow(struct pp_matcher *m)
{
    uint64_t *grown = pp_calloc(2 * m->n_seen, sizeof *grown);
    if (!grown)
        return false;
    pp_free(m->seen);
    m->seen = grown;
    m->n_seen *= 2;
    for (size_t i = 0; i < m->n_found; i++) {
        size_t at = seen_slot(m, m->found[i]);
        while (m->seen[at])
            at = (at + 1) & (m->n_seen - 1);
        m->seen[at] = (uint64_t)m->generation << 32 | i;
    }
    return true;
}

static bool add(struct pp_matcher *m, uint32_t node, uint32_t frame)
{
    const struct pp_item x = {node, frame};
    if (!m->g->nodes[node].live)
        return true;
    if (++m->work > WORK_MOST) {
        too_ambiguous(m);
        return false;
    }
    size_t at = seen_slot(m, x);
    for (; m->seen[at] >> 32 == m->generation; at = (at + 1) & (m->n_seen - 1)) {
        const struct pp_item *y = &m->found[(uint32_t)m->seen[at]];
        if (y->node == node && y->frame == frame)
            return true;
    }
    if (m->n_found >= PP_ITEMS_MOST) {
        too_ambiguous(m);
        return false;
    }
    if (pp_grow(&m->found, &m->cap_found, m->n_found + 1, sizeof *m->found) != 0) {
        no_memory(m);
        return false;
    }
    m->seen[at] = (uint64_t)m->generation << 32 | m->n_found;
    m->found[m->n_found++] = x;
    if (2 * m->n_found >= m->n_seen && !seen_grow(m)) {
        no_memory(m);
        return false;
    }
    return true;
}

/* Goes on after the end of the rule of an interned frame. */
static bool add_returns(struct pp_matcher *m, uint32_t frame)
{
    const struct pp_frame f = m->frames[frame];
    for (uint32_t i = 0; i < f.n; i++)
        if (!add(m, m->links[f.first + i].node, m->links[f.first + i].frame))
            return false;
    return true;
}

static bool add_call(struct pp_matcher *m, const struct pp_node *call, uint32_t frame)
{
    const uint32_t rule = call->b;
    uint32_t temp = m->temp_of_rule[rule];
    if (!temp) {
        if (pp_grow(&m->temps, &m->cap_temps, m->n_temps + 1, sizeof *m->temps) != 0) {
            no_memory(m);
            return false;
        }
        m->temps[m->n_temps++] = (struct pp_temp){.rule = rule};
        temp = m->temp_of_rule[rule] = (uint32_t)m->n_temps;
    }
    if (pp_grow(&m->temp_links, &m->cap_temp_links, m->n_temp_links + 1, sizeof *m->temp_links) != 0) {
        no_memory(m);
        return false;
    }
    m->temp_links[m->n_temp_links++] =
        (struct pp_temp_link){.to = {call->a, frame}, .before = m->temps[temp - 1].last};
    m->temps[temp - 1].last = (uint32_t)m->n_temp_links;
    return add(m, m->g->starts[rule], TEMP + temp - 1) && (!m->g->nullable[rule] || add(m, call->a, frame));
}

/* Follows everything that takes no byte. A rule that ends where it began has matched nothing, which add_call has gone
 * on from already. */
static bool follow(struct pp_matcher *m)
{
    for (size_t i = 0; i < m->n_found; i++) {
        const struct pp_item x = m->found[i];
        const struct pp_node *node = &m->g->nodes[x.node];
        bool good = true;
        if (node->kind == PP_NODE_SPLIT)
            good = add(m, node->a, x.frame) && add(m, node->b, x.frame);
        else if (node->kind == PP_NODE_CALL)
            good = add_call(m, node, x.frame);
        else if (node->kind == PP_NODE_ACCEPT && x.node && x.frame < TEMP)
            good = add_returns(m, x.frame);
        if (!good)
            return false;
    }
    return true;
}

static bool scratch_add(struct pp_matcher *m, const struct pp_item *items, size_t n)
{
    if (m->n_scratch + n > 4 * (size_t)PP_ITEMS_MOST) {
        too_ambiguous(m);
        return false;
    }
    if (pp_grow(&m->scratch, &m->cap_scratch, m->n_scratch + n, sizeof *items) != 0) {
        no_memory(m);
        return false;
    }
    if (n)
        memcpy(m->scratch + m->n_scratch, items, n * sizeof *items);
    m->n_scratch += n;
    m->work += n;
    return true;
}

/* The interned frame of a temporary one, whose callers, and theirs, are resolved first: there is no cycle, as no rule
 * is left-recursive. UINT32_MAX on failure. */
static uint32_t resolve(struct pp_matcher *m, uint32_t frame, unsigned depth)
{
    if (frame < TEMP)
        return frame;
    const uint32_t temp = frame - TEMP;
    if (m->temps[temp].done)
        return m->temps[temp].frame;
    if (depth > DEPTH_MOST) {
        too_ambiguous(m);
        return UINT32_MAX;
    }
    const size_t begin = m->n_scratch;
    for (uint32_t i = m->temps[temp].last; i; i = m->temp_links[i - 1].before) {
        const uint32_t node = m->temp_links[i - 1].to.node;
        const uint32_t caller = resolve(m, m->temp_links[i - 1].to.frame, depth + 1);
        const struct pp_item link = {node, caller};
        if (caller == UINT32_MAX)
            return UINT32_MAX;
        const struct pp_frame *f = &m->frames[caller];
        const bool tail = node && m->g->nodes[node].kind == PP_NODE_ACCEPT;
        if (!(tail ? scratch_add(m, m->links + f->first, f->n) : scratch_add(m, &link, 1)))
            return UINT32_MAX;
    }
    const size_t n = sort_items(m->scratch + begin, m->n_scratch - begin);
    const uint32_t interned = intern_frame(m, m->scratch + begin, n);
    m->n_scratch = begin;
    m->temps[temp].frame = interned;
    m->temps[temp].done = true;
    return interned;
}

/* The state of all items that were added since closure_begin. */
static int32_t closure_end(struct pp_matcher *m)
{
    if (!follow(m))
        return PP_STATE_FAILED;
    size_t n = 0;
    for (size_t i = 0; i < m->n_found; i++) {
        const enum pp_node_kind kind = m->g->nodes[m->found[i].node].kind;
        if (kind != PP_NODE_RANGE && kind != PP_NODE_TOKEN && kind != PP_NODE_NOT_TOKEN && m->found[i].node)
            continue;
        const uint32_t frame = resolve(m, m->found[i].frame, 0);
        if (frame == UINT32_MAX)
            return PP_STATE_FAILED;
        m->found[n++] = (struct pp_item){m->found[i].node, frame};
    }
    n = sort_items(m->found, n);
    m->n_found = 0;
    if (bytes_used(m) > BYTES_MOST)
        return too_ambiguous(m);
    return intern_state(m, m->found, n);
}

/* --- steps ------------------------------------------------------------------------------------------------------- */

static int32_t compute_step(struct pp_matcher *m, int32_t state, unsigned byte)
{
    const struct pp_state s = m->states[state];
    closure_begin(m);
    for (uint32_t i = 0; i < s.n; i++) {
        const struct pp_item x = m->items[s.first + i];
        const struct pp_node *node = &m->g->nodes[x.node];
        if (node->kind == PP_NODE_RANGE && byte >= node->lo && byte <= node->hi && !add(m, node->a, x.frame))
            return PP_STATE_FAILED;
    }
    m->work += s.n;
    const int32_t next = closure_end(m);
    if (next >= 0)
        m->next[(size_t)state * m->g->n_classes + m->g->classes[byte]] = next;
    return next;
}

int32_t pp_matcher_step(struct pp_matcher *m, int32_t state, unsigned byte)
{
    if (state < 0)
        return PP_STATE_FAILED;
    const int32_t next = m->next[(size_t)state * m->g->n_classes + m->g->classes[byte]];
    return next >= 0 ? next : compute_step(m, state, byte);
}

int32_t pp_matcher_text(struct pp_matcher *m, int32_t state, const char *s, size_t n)
{
    for (size_t i = 0; i < n && state > 0; i++)
        state = pp_matcher_step(m, state, (uint8_t)s[i]);
    return state;
}

int32_t pp_matcher_start(struct pp_matcher *m)
{
    closure_begin(m);
    return add(m, m->g->starts[0], ROOT) ? closure_end(m) : PP_STATE_FAILED;
}

int32_t pp_matcher_returned(struct pp_matcher *m, uint32_t frame)
{
    closure_begin(m);
    return add_returns(m, frame) ? closure_end(m) : PP_STATE_FAILED;
}

int32_t pp_matcher_hole(struct pp_matcher *m, int32_t state, uint32_t frame)
{
    const struct pp_state s = m->states[state];
    closure_begin(m);
    for (uint32_t i = 0; i < s.n; i++) {
        const struct pp_item x = m->items[s.first + i];
        if (x.frame == frame && x.node && !add(m, x.node, HOLE))
            return PP_STATE_FAILED;
    }
    return closure_end(m);
}

int32_t pp_matcher_alike(struct pp_matcher *m, int32_t state)
{
    if (!m->g->alike || state <= 0)
        return state;
    const struct pp_state s = m->states[state];
    m->n_scratch = 0;
    if (!scratch_add(m, m->items + s.first, s.n))
        return PP_STATE_FAILED;
    for (uint32_t i = 0; i < s.n; i++)
        m->scratch[i].frame = m->frames[m->scratch[i].frame].alike;
    return intern_state(m, m->scratch, sort_items(m->scratch, s.n));
}

int32_t pp_matcher_token(struct pp_matcher *m, int32_t state, int32_t token, const char *s, size_t n,
                         const int32_t *ids)
{
    const int32_t by_text = n ? pp_matcher_text(m, state, s, n) : PP_STATE_DEAD;
    if (state < 0 || by_text < 0 || !m->states[state].tokens)
        return state < 0 ? state : by_text;
    const struct pp_state from = m->states[state], to = m->states[by_text];
    closure_begin(m);
    for (uint32_t i = 0; i < to.n; i++)
        if (!add(m, m->items[to.first + i].node, m->items[to.first + i].frame))
            return PP_STATE_FAILED;
    for (uint32_t i = 0; i < from.n; i++) {
        const struct pp_item x = m->items[from.first + i];
        const struct pp_node *node = &m->g->nodes[x.node];
        const bool takes = (node->kind == PP_NODE_TOKEN && ids[node->b] == token) ||
                           (node->kind == PP_NODE_NOT_TOKEN && ids[node->b] != token);
        if (takes && !add(m, node->a, x.frame))
            return PP_STATE_FAILED;
    }
    return closure_end(m);
}

bool pp_matcher_over(const struct pp_matcher *m, int32_t state)
{
    const struct pp_state *s = state > 0 ? &m->states[state] : NULL;
    return s && s->ends && s->n == 1;
}

/* --- life -------------------------------------------------------------------------------------------------------- */

/* The hole, the root's frame, and the dead state get their numbers. */
static bool begin_interned(struct pp_matcher *m)
{
    const struct pp_item hole = {0, HOLE}, root = {0, ROOT};
    m->n_items = m->n_states = m->n_links = m->n_frames = 0;
    if (m->state_table.slots)
        memset(m->state_table.slots, 0, m->state_table.n_slots * sizeof *m->state_table.slots);
    if (m->frame_table.slots)
        memset(m->frame_table.slots, 0, m->frame_table.n_slots * sizeof *m->frame_table.slots);
    return intern_frame(m, &hole, 1) == HOLE && intern_frame(m, &root, 1) == ROOT &&
           intern_state(m, NULL, 0) == PP_STATE_DEAD;
}

enum pp_code pp_matcher_init(struct pp_matcher *m, const struct pp_grammar *g, struct pp_error *err)
{
    *m = (struct pp_matcher){.g = g, .n_seen = 1024};
    m->seen = pp_calloc(m->n_seen, sizeof *m->seen);
    m->temp_of_rule = pp_calloc(g->n_rules, sizeof *m->temp_of_rule);
    if (m->seen && m->temp_of_rule && begin_interned(m))
        return PP_OK;
    pp_matcher_free(m);
    return pp_fail_nomem(err, "the grammar's states");
}

void pp_matcher_free(struct pp_matcher *m)
{
    pp_free(m->items);
    pp_free(m->states);
    pp_free(m->next);
    pp_free(m->links);
    pp_free(m->frames);
    pp_free(m->state_table.slots);
    pp_free(m->frame_table.slots);
    pp_free(m->found);
    pp_free(m->seen);
    pp_free(m->temp_of_rule);
    pp_free(m->temps);
    pp_free(m->temp_links);
    pp_free(m->scratch);
    *m = (struct pp_matcher){0};
}

/* Copies the frames that *keep needs, callers first: a frame's callers have smaller numbers. */
static bool copy_frames(struct pp_matcher *m, const struct pp_matcher *old, uint32_t *number)
{
    for (uint32_t f = 2; f < old->n_frames; f++) {
        const struct pp_frame *x = &old->frames[f];
        if (!number[f])
            continue;
        m->n_scratch = 0;
        if (!scratch_add(m, old->links + x->first, x->n))
            return false;
        for (uint32_t i = 0; i < x->n; i++)
            m->scratch[i].frame = number[m->scratch[i].frame];
        number[f] = intern_frame(m, m->scratch, sort_items(m->scratch, x->n));
        if (number[f] == UINT32_MAX)
            return false;
    }
    return true;
}

bool pp_matcher_trim(struct pp_matcher *m, int32_t *keep)
{
    if (bytes_used(m) < TRIM_FROM || *keep < 0)
        return false;
    struct pp_matcher now;
    uint32_t *number = pp_calloc(m->n_frames, sizeof *number);
    if (!number || pp_matcher_init(&now, m->g, NULL)) {
        pp_free(number);
        return false;
    }
    const struct pp_state s = m->states[*keep];
    for (uint32_t i = 0; i < s.n; i++)
        number[m->items[s.first + i].frame] = 1;
    for (size_t f = m->n_frames; f-- > 2;)
        for (uint32_t i = 0; number[f] && i < m->frames[f].n; i++)
            number[m->links[m->frames[f].first + i].frame] = 1;
    number[HOLE] = HOLE;
    number[ROOT] = ROOT;
    int32_t kept = PP_STATE_FAILED;
    if (copy_frames(&now, m, number)) {
        now.n_scratch = 0;
        if (scratch_add(&now, m->items + s.first, s.n)) {
            for (uint32_t i = 0; i < s.n; i++)
                now.scratch[i].frame = number[now.scratch[i].frame];
            kept = intern_state(&now, now.scratch, sort_items(now.scratch, s.n));
        }
    }
    pp_free(number);
    if (kept < 0) {
        pp_matcher_free(&now);
        return false;
    }
    now.work = m->work;
    pp_matcher_free(m);
    *m = now;
    *keep = kept;
    return true;
}

/* --- whole texts ------------------------------------------------------------------------------------------------- */

enum pp_code pp_grammar_matches(const struct pp_grammar *g, const char *text, size_t n, bool *matches,
                                struct pp_error *err)
{
    struct pp_matcher m;
    *matches = false;
    if (pp_matcher_init(&m, g, err))
        return PP_ERR_NOMEM;
    int32_t state = pp_matcher_start(&m);
    for (size_t i = 0; i < n && state > 0; i++) {
        m.work = 0;
        state = pp_matcher_step(&m, state, (uint8_t)text[i]);
        pp_matcher_trim(&m, &state);
    }
    const enum pp_code code = state < 0 ? m.code : PP_OK;
    if (code && err)
        *err = m.err;
    *matches = state > 0 && m.states[state].ends;
    pp_matcher_free(&m);
    return code;
}
