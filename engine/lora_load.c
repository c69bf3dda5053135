/* lora_load.c - reads and converts all that an adapter's file changes. First all targets are checked against the model,
 * and memory is laid out for what will be held; then several threads convert the matrices, each of them by one
 * thread. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/adapter_file.h"
#include "engine/adapter_join.h"
#include "engine/base/mem.h"
#include "engine/base/word.h"
#include "engine/lora.h"
#include "engine/model.h"
#include "engine/name_index.h"
#include "engine/pool.h"
#include "engine/state_order.h"
#include "engine/tensor_forms.h"

/* Limits a sum of ranks over adapters and projections, for which work space is allocated. */
enum { MAX_RANK = PP_LOW_RANK_MAX };
/* Models with at least this many parameters hold adapters in F16 instead of Q8_0: the extra bytes are few compared with
 * their weights. */
static const int64_t LARGE_MODEL = 4000000000;

/* A matrix that is changed: one of a target's matrices (pp_adapter_matrices). */
struct job {
    const struct pp_adapter_target *target;
    int part;
    int linear;
    bool tokens; /* only rows of it are replaced (trainable tokens) */
    const struct pp_by_keys *keys; /* the target is a whole by keys (qkv) of which this is a part; or NULL */
    const struct pp_join *join;    /* this matrix is a whole of which several targets change parts; `target` is NULL
                                      then. Or NULL */
    bool of_heads;                 /* the model has no such matrix, but a part of it in each of its matrices of heads
                                      `at` */
    struct pp_lora_heads_at at;
};

/* A thread's own data. */
struct hand {
    struct pp_lora_room room;
    int failed;              /* the first of its jobs that failed; none: the number of jobs */
    struct pp_error error;   /* and why */
};

struct loading {
    struct pp_adapter *a;
    const struct pp_adapter_file *file;
    bool exact;
    struct job *jobs;        /* [n] */
    int n;
    struct pp_join *joins;   /* [n_joins]: targets whose matrices are one in the model, */
    int *joined;             /* and the index of that matrix */
    int n_joins;
    struct pp_adapter_target *split; /* [n_split]: copies of targets whose matrix is several in the model */
    int n_split;
    struct hand *hands;      /* [threads] */
    /* For adapters of experts: the names of the experts' matrices, and the index of each in pp_plan_target. */
    struct pp_name_index experts;
    char (*names)[PP_HF_NAME];
    int *targets;
};

/* --- checked against the model --------------------------------------------------------------------------------- */

/* The index of a linear; -1: there is none. In a model with tied embeddings, "output.weight" is found as the
 * embeddings' matrix; an adapter of either leaves the other unchanged. */
static int linear_by_name(const struct pp_plan *plan, const char *name)
{
    const bool is_output = strcmp(name, "output.weight") == 0;
    int tied = -1;
    for (int i = 0; i < plan->n_linears; i++) {
        if (strcmp(plan->linears[i].w->name, name) == 0)
            return i;
        if (is_output && strcmp(plan->linears[i].w->name, "token_embd.weight") == 0)
            tied = i;
    }
    return tied;
}

/* Collects the names of the experts' matrices. */
static enum pp_code name_experts(struct loading *l, struct pp_error *err)
{
    const struct pp_plan *plan = &l->a->model->plan;
    const size_t n = (size_t)plan->n_expert_targets;
    if (!l->a->of_experts)
        return PP_OK;
    l->names = pp_calloc(n, sizeof *l->names);
    l->targets = pp_calloc(n, sizeof *l->targets);
    if (!l->names || !l->targets || !pp_name_index_init(&l->experts, n))
        return pp_fail_nomem(err, "an adapter");
    for (int i = plan->n_linears; i < pp_plan_n_targets(plan); i++) {
        const struct pp_tensor *w = pp_plan_target(plan, i).w;
        char *name = l->names[l->experts.n];
        if (!w)
            continue;
        pp_matrix_name(w->name, name, sizeof *l->names);
        l->targets[l->experts.n] = i;
        if (!pp_name_index_add(&l->experts, name, strlen(name)))
            return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s changes experts, and this model uses %s several times; "
                           PP_LORA_MERGE, l->a->path, name);
    }
    return PP_OK;
}

/* The index in pp_plan_target; -1: there is none. */
static int target_by_name(const struct loading *l, const char *name)
{
    const size_t i = pp_name_index_find(&l->experts, name, strlen(name));
    return i != SIZE_MAX ? l->targets[i] : linear_by_name(&l->a->model->plan, name);
}

/* Whether a tensor holds one kind of latent attention's heads, which can only be changed together (lora_heads.c), or
 * groups of heads (DeepSeek V4), which cannot be changed at all. */
static bool is_of_heads(const char *name)
{
    return strstr(name, ".attn_k_b.") || strstr(name, ".attn_v_b.") || strstr(name, ".attn_output_a.");
}

/* Whether the file orders the heads of a matrix otherwise than the model; *order: how. */
static bool is_reordered(const struct pp_model *m, const char *name, bool hf, struct pp_state_order *order)
{
    return pp_state_order(pp_source_hparams(m->source), name, order) && order->to_gguf != hf;
}

/* Checks that the tensor in a folder and the matrix that the model computes with are of forms that can be matched. */
static enum pp_code check_form(const struct pp_model *m, const struct pp_adapter *a,
                               const struct pp_adapter_target *t, bool hf, struct pp_error *err)
{
    struct pp_state_order order;
    if (is_reordered(m, t->name, hf, &order) && order.columns && (t->weight.data || t->ia3_input))
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "adapter %s changes %s, whose heads are in a different order in this model's %s, which is not "
                       "supported; use it with the %s", a->path, t->name, hf ? "GGUF file" : "folder",
                       hf ? "folder" : "GGUF file");
    if (t->form == PP_HF_SCALED && !pp_hf_has_scales(pp_source_hparams(m->source)))
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "adapter %s changes %s, which is scaled when folders of the family %s are loaded, by a factor "
                       "that this model does not give; use it with the folder that it was made for", a->path, t->name,
                       m->info.arch);
    const bool by_rows = t->form == PP_HF_SCALED || t->form == PP_HF_HALF_NEGATED; /* forms that scale rows: B can be
                                                                                   scaled alike, other parts cannot */
    if (pp_adapter_form_fits(t) ||
        (by_rows && !t->weight.data && !t->tokens.data && !t->bias.data && !t->b_bias.data))
        return PP_OK;
    return pp_fail(err, PP_ERR_UNSUPPORTED,
                   "adapter %s changes %s, which models of the family %s store in a different form than pippin "
                   "computes with; "
                   PP_LORA_MERGE, a->path, t->name, m->info.arch);
}

/* Outputs of the job's matrix in its target; 0: the target has another shape. */
static int64_t part_outputs(const struct job *job, const struct pp_hparams *hp)
{
    const struct pp_adapter_target *t = job->target;
    if (!job->keys)
        return pp_adapter_part_outputs(t, hp, job->part);
    const int64_t n[2] = {pp_key_part_rows(hp, job->keys->kinds[0]), pp_key_part_rows(hp, job->keys->kinds[1])};
    return t->n_out == n[0] + n[1] ? n[job->part] : 0;
}

/* Finds a whole matrix by keys that the model holds as two; parts: their names. NULL: it is none. */
static const struct pp_by_keys *find_by_keys(const struct pp_plan *plan, const char *name, char parts[2][PP_HF_NAME])
{
    for (int i = 0; i < PP_BY_KEYS; i++) {
        const struct pp_by_keys *k = &pp_by_keys[i];
        if (!pp_ends_with(name, k->whole) || linear_by_name(plan, name) >= 0)
            continue;
        for (int p = 0; p < 2; p++)
            snprintf(parts[p], PP_HF_NAME, "%.*s%s", (int)(strlen(name) - strlen(k->whole)), name, k->parts[p]);
        return linear_by_name(plan, parts[0]) >= 0 ? k : NULL;
    }
    return NULL;
}

/* The index of the model's matrix of which the job's matrix, called `name`, is a part; *place: which part. -1: none. */
static int find_whole(const struct loading *l, const char *name, const struct job *job, int *place)
{
    const struct pp_model *m = l->a->model;
    const struct pp_adapter_target *t = job->target;
    const int own = target_by_name(l, name);
    char whole[PP_HF_NAME];
    struct pp_join_way way = {0};
    struct pp_rows rows = {0};
    *place = pp_adapter_whole_name(name, whole, &way);
    const int linear = *place < 0 ? -1 : linear_by_name(&m->plan, whole);
    if (linear < 0 || (own >= 0 && own != linear) || !t->n_out)
        return -1;
    const struct pp_tensor *w = m->plan.linears[linear].w;
    const int64_t n_out = part_outputs(job, pp_source_hparams(m->source));
    if (way.keys)
        rows.n_rows = pp_key_part_rows(pp_source_hparams(m->source), way.keys->kinds[*place]);
    else if (!pp_hf_part_rows(way.form, pp_source_hparams(m->source), w->ne[1], *place, &rows))
        return -1;
    return rows.n_rows == n_out && n_out != w->ne[1] ? linear : -1;
}

/* Whether by its name this is a part of one of the model's matrices. */
static bool is_part(const struct loading *l, const char *name)
{
    char whole[PP_HF_NAME];
    struct pp_join_way way;
    return pp_adapter_whole_name(name, whole, &way) >= 0 && linear_by_name(&l->a->model->plan, whole) >= 0;
}

/* Records that the job's target changes this part of a matrix. */
static enum pp_code join_target(struct loading *l, const char *name, const struct job *job, int linear, int place,
                                struct pp_error *err)
{
    const struct pp_adapter_target *t = job->target;
    struct pp_adapter *a = l->a;
    int i = 0;
    if (t->weight.data || t->tokens.data || t->ia3_input || t->form == PP_HF_SCALED)
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "adapter %s %s %s, but %s has it in one matrix with others; " PP_LORA_MERGE, a->path,
                       t->ia3_input               ? "scales the input of"
                       : t->form == PP_HF_SCALED ? "changes" : "replaces", name, a->model->info.name);
    while (i < l->n_joins && l->joined[i] != linear)
        i++;
    const bool is_new = i == l->n_joins;
    struct pp_join *j = &l->joins[i];
    if (is_new) {
        char whole[PP_HF_NAME];
        struct pp_join_way way;
        pp_adapter_whole_name(name, whole, &way);
        snprintf(j->name, sizeof j->name, "%s", whole);
        l->joined[l->n_joins++] = linear;
    }
    if ((is_new && a->targets[linear].in_file) || !pp_join_add(j, place, name, t, job->part))
        return pp_fail(err, PP_ERR_FORMAT, "adapter %s has %s twice", a->path, name);
    a->targets[linear].in_file = true;
    return PP_OK;
}

/* Makes the jobs of joined matrices, once all targets are known. */
static enum pp_code finish_joins(struct loading *l, struct pp_error *err)
{
    for (int i = 0; i < l->n_joins; i++) {
        uint32_t type;
        const int64_t rank = pp_join_rank(&l->joins[i], &type);
        if (rank > MAX_RANK)
            return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s: %s has rank %lld together; at most %d can be run",
                           l->a->path, l->joins[i].name, (long long)rank, MAX_RANK);
        l->a->targets[l->joined[i]].rank = (int)rank;
        l->jobs[l->n++] = (struct job){.linear = l->joined[i], .join = &l->joins[i]};
    }
    return PP_OK;
}

/* If the file has one matrix for several of the model's, returns a copy of the target that says so; otherwise the
 * target. */
static const struct pp_adapter_target *split_target(struct loading *l, const struct pp_adapter_target *t)
{
    static const char qkv[] = ".attn_qkv.weight";
    const struct pp_plan *plan = &l->a->model->plan;
    char gate[PP_HF_NAME], parts[3][PP_HF_NAME];
    const char *up = strstr(t->name, ".ffn_up.weight");
    struct pp_adapter_target *own = &l->split[l->n_split];
    *own = *t;
    if (pp_ends_with(t->name, qkv) && linear_by_name(plan, t->name) < 0 && pp_hf_qkv_names(t->name, parts) &&
        linear_by_name(plan, parts[1]) >= 0 && (t->form == PP_HF_SAME || t->form == PP_HF_QKV_FUSED_BY_GROUP)) {
        own->form = t->form == PP_HF_SAME ? PP_HF_QKV_STACKED : PP_HF_QKV_BY_GROUP;
        l->n_split++;
        return own;
    }
    const int linear = up && t->form == PP_HF_SAME && !t->second ? linear_by_name(plan, t->name) : -1;
    if (linear < 0 || t->n_out != 2 * plan->linears[linear].w->ne[1])
        return t;
    snprintf(gate, sizeof gate, "%.*s.ffn_gate.weight", (int)(up - t->name), t->name);
    if (linear_by_name(plan, gate) < 0)
        return t;
    own->name = plan->linears[linear_by_name(plan, gate)].w->name;
    own->second = plan->linears[linear].w->name;
    own->form = PP_HF_HALVES;
    l->n_split++;
    return own;
}

/* name: of the job's matrix. */
static enum pp_code check_target(const struct loading *l, const char *name, struct job *job, struct pp_error *err)
{
    const struct pp_adapter *a = l->a;
    const struct pp_model *m = a->model;
    const struct pp_adapter_target *t = job->target;
    job->linear = target_by_name(l, name);
    /* other matrices read this input, too */
    const bool shared = t->ia3_input && !pp_plan_is_expert_down(&m->plan, job->linear);
    if (job->linear >= m->plan.n_linears && (t->weight.data || shared))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s %s %s, a matrix of an expert; " PP_LORA_MERGE, a->path,
                       t->weight.data ? "replaces" : "scales the input of", name);
    if (job->linear < 0 && is_of_heads(name))
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "adapter %s changes %s, keys or values alone of latent attention's heads, or groups of heads; "
                       "adapters of these are not supported", a->path, name);
    if (job->linear < 0 && t->ia3_input && is_part(l, name))
        return pp_fail(err, PP_ERR_UNSUPPORTED,
                       "adapter %s scales the input of %s, but %s has it in one matrix with others; " PP_LORA_MERGE,
                       a->path, name, m->info.name);
    if (job->linear < 0)
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s changes %s, which %s does not have; it was made for another model", a->path, name,
                       m->info.name);
    const struct pp_tensor *w = pp_plan_target(&m->plan, job->linear).w;
    const int64_t n_out = part_outputs(job, pp_source_hparams(m->source));
    if ((t->n_in && t->n_in != w->ne[0]) || (t->n_out && n_out != w->ne[1]))
        return pp_fail(err, PP_ERR_MISMATCH,
                       "adapter %s: %s is for a matrix of %lld x %lld, but in %s %s is %lld x %lld", a->path,
                       t->name, (long long)(t->n_out ? t->n_out : w->ne[1]), (long long)(t->n_in ? t->n_in : w->ne[0]),
                       m->info.name, strcmp(name, t->name) == 0 ? "it" : name, (long long)w->ne[1],
                       (long long)w->ne[0]);
    if (a->targets[job->linear].in_file)
        return pp_fail(err, PP_ERR_FORMAT, "adapter %s has %s twice", a->path, name);
    if (t->rank > MAX_RANK)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s: %s has rank %lld; at most %d can be run", a->path, t->name,
                       (long long)t->rank, MAX_RANK);
    return PP_OK;
}

/* --- where it is held -------------------------------------------------------------------------------------------- */

static bool is_q8(const struct pp_model *m, const struct pp_tensor *w)
{
    return pp_pack_needed(w->type) && m->info.n_params < LARGE_MODEL && w->ne[0] % PP_ACT_BLOCK == 0;
}

static uint32_t held_type(const struct pp_model *m, const struct pp_tensor *w, bool exact, float most)
{
    const float most_f16 = 65504.0f;
    return exact ? PP_TYPE_F32 : is_q8(m, w) ? PP_TYPE_Q8_0 : most < most_f16 ? PP_TYPE_F16 : PP_TYPE_F32;
}

/* Lays all halves out in one piece of memory, in the order in which a token reads them: all A, then all B. The type of
 * halves next to float weights depends on their values, so there is room for the largest; unused pages cost nothing. */
static enum pp_code make_room(struct pp_adapter *a, bool exact, struct pp_error *err)
{
    size_t bytes = 0;
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < a->n_targets; i++) {
            struct pp_lora_target *t = &a->targets[i];
            t->arena_at[half] = bytes;
            if (!t->rank)
                continue;
            const struct pp_tensor *w = pp_plan_target(&a->model->plan, i).w;
            const uint32_t type = exact || !is_q8(a->model, w) ? PP_TYPE_F32 : PP_TYPE_Q8_0;
            bytes += pp_lora_held_bytes(w, t->rank, type, half);
        }
    return bytes ? pp_lora_arena_new(a, bytes, err) : PP_OK;
}

/* --- matrices ---------------------------------------------------------------------------------------------------- */

/* The factor of a row in the model: a number, or -1 where a head rotates the other way. */
static float row_scale(const struct pp_hparams *hp, enum pp_hf_form form, const char *name, int64_t row)
{
    if (form == PP_HF_HALF_NEGATED)
        return row % hp->head_dim < hp->head_dim / 2 ? 1 : -1;
    return pp_hf_row_scale(hp, name, row);
}

/* Applies to B what W's rows were multiplied by when they were read. */
static enum pp_code scale_rows(const struct loading *l, const struct job *job, const struct pp_tensor *w,
                               struct pp_lora_halves *halves, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(l->a->model->source);
    const int64_t rank = job->target->rank;
    float *b = (float *)(uintptr_t)halves->values[1]; /* in the work space */
    for (int64_t r = 0; r < w->ne[1]; r++)
        for (int64_t k = 0; k < rank; k++)
            b[r * rank + k] *= row_scale(hp, job->target->form, w->name, r);
    return pp_lora_find_largest(l->a, w->name, rank * w->ne[0], rank * w->ne[1], halves, err);
}

/* Reads A and B, and converts them. */
static enum pp_code load_halves(const struct loading *l, const struct job *job, const struct pp_lora_orders *orders,
                                struct pp_lora_room *room, struct pp_lora_halves *halves, struct pp_error *err)
{
    const struct pp_tensor *w = pp_plan_target(&l->a->model->plan, job->linear).w;
    enum pp_code code =
        job->tokens ? pp_lora_token_halves(l->a, job->target, w, room, halves, err)
                    : pp_lora_read(l->a, job->target, w->ne[1], orders, room, halves, err);
    if (!code && (job->target->form == PP_HF_SCALED || job->target->form == PP_HF_HALF_NEGATED))
        code = scale_rows(l, job, w, halves, err);
    if (code)
        return code;
    const float *most = halves->most;
    const uint32_t type = held_type(l->a->model, w, l->exact, most[0] > most[1] ? most[0] : most[1]);
    return pp_lora_hold(l->a, job->linear, type, halves, room, err);
}

/* Finds where outputs and inputs of the job's matrix are in the file; the orders are in the work space. */
static enum pp_code find_orders(const struct loading *l, const struct job *job, struct pp_lora_room *room,
                                struct pp_lora_orders *orders, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(l->a->model->source);
    struct pp_state_order heads;
    const struct pp_tensor *w = pp_plan_target(&l->a->model->plan, job->linear).w;
    const bool hf = pp_adapter_file_hf_order(l->file);
    const enum pp_row_order order = pp_arch_rows(pp_arch_by_name(hp->arch), w->name);
    const bool pairs = hf != hp->rope_neox && order != PP_ROWS_SAME;
    const bool reordered = !job->keys && is_reordered(l->a->model, w->name, hf, &heads);
    const bool inputs = reordered && heads.columns;
    const int64_t n = inputs ? w->ne[0] : w->ne[1];
    *orders = (struct pp_lora_orders){0};
    if (pairs && order == PP_ROWS_QKV)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s changes %s, whose rows are in a different order in this "
                                                "model's %s, which is not supported; use it with the %s", l->a->path,
                                                w->name,
                       hf ? "GGUF file" : "folder", hf ? "folder" : "GGUF file");
    if (!reordered && !job->keys && (!job->target->n_out || (!pairs && !pp_adapter_is_by_rows(job->target))))
        return PP_OK;
    int32_t *rows = pp_lora_order_room(room, n);
    if (!rows)
        return pp_fail_nomem(err, "an adapter");
    *(inputs ? &orders->inputs : &orders->outputs) = rows;
    for (int64_t r = 0; job->keys && r < n; r++)
        rows[r] = (int32_t)pp_key_part_row(hp, job->keys->kinds[job->part], r);
    if (job->keys)
        return PP_OK;
    if (!reordered)
        pp_adapter_outputs(job->target, hp, job->part, !pairs ? PP_PAIRS_SAME : hf ? PP_PAIRS_TO_GGUF : PP_PAIRS_TO_HF,
                           rows);
    else if (pairs || !pp_state_rows(&heads, n, true, rows))
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s: the heads of %s are in an order that is not supported",
                       l->a->path, w->name);
    return PP_OK;
}

/* Loads a matrix of which several targets change parts. */
static enum pp_code load_joined(const struct loading *l, const struct job *job, struct pp_lora_room *room,
                                struct pp_error *err)
{
    struct pp_adapter *a = l->a;
    const struct pp_hparams *hp = pp_source_hparams(a->model->source);
    const struct pp_tensor *w = pp_plan_target(&a->model->plan, job->linear).w;
    const bool hf = pp_adapter_file_hf_order(l->file), pairs = hf != hp->rope_neox;
    char whole[PP_HF_NAME];
    struct pp_join_way way = {.from = !pairs ? PP_PAIRS_SAME : hf ? PP_PAIRS_TO_GGUF : PP_PAIRS_TO_HF};
    struct pp_joined joined = {0};
    for (int i = 0; i < PP_JOINED_PARTS; i++)
        if (job->join->of[i])
            pp_adapter_whole_name(job->join->names[i], whole, &way);
    struct pp_lora_target *own = &a->targets[job->linear];
    struct pp_lora_halves halves = {0};
    enum pp_code code = own->rank ? pp_join_make(job->join, hp, &way, w->ne[0], w->ne[1], &joined, err) : PP_OK;
    if (code)
        return code;
    own->scale = joined.scale;
    if (own->rank) {
        halves.values[0] = joined.a;
        halves.values[1] = joined.b;
        code = pp_lora_find_largest(a, job->join->name, joined.rank * w->ne[0], joined.rank * w->ne[1], &halves, err);
    }
    if (!code && own->rank)
        code = pp_lora_hold(a, job->linear,
                            held_type(a->model, w, l->exact, fmaxf(halves.most[0], halves.most[1])), &halves, room,
                            err);
    if (!code)
        code = pp_lora_load_joined_kinds(a, job->linear, job->join, &way, &halves, err);
    const bool product = halves.most[0] != 0.0f && halves.most[1] != 0.0f;
    if (!code && !(pp_lora_kinds_idle(own, w->ne[0], w->ne[1]) && (own->scale == 0.0f || !product)))
        atomic_store_explicit(&a->acts, true, memory_order_relaxed);
    pp_joined_free(&joined);
    return code;
}

static enum pp_code load_matrix(const struct loading *l, const struct job *job, struct pp_lora_room *room,
                                struct pp_error *err)
{
    struct pp_adapter *a = l->a;
    const struct pp_adapter_target *t = job->target;
    const struct pp_tensor *w = pp_plan_target(&a->model->plan, job->linear).w;
    const struct pp_lora_target *own = &a->targets[job->linear];
    struct pp_lora_halves halves = {0};
    struct pp_lora_orders orders;
    enum pp_code code = find_orders(l, job, room, &orders, err);
    if (!code && (t->rank || job->tokens))
        code = load_halves(l, job, &orders, room, &halves, err);
    if (!code && t->weight.data)
        code = pp_lora_load_matrix(a, job->linear, t, orders.outputs, err);
    if (!code)
        code = pp_lora_load_kinds(a, job->linear, t, orders.outputs, &halves, err);
    const bool product = halves.most[0] != 0.0f && halves.most[1] != 0.0f;
    if (!code && !(pp_lora_kinds_idle(own, w->ne[0], w->ne[1]) && (own->scale == 0.0f || !product)))
        atomic_store_explicit(&a->acts, true, memory_order_relaxed);
    return code;
}

static enum pp_code load_heads(const struct loading *l, const struct job *job, struct pp_lora_room *room,
                               struct pp_error *err)
{
    return pp_lora_load_heads(l->a, job->target, &job->at, l->exact, room, err);
}

static void do_job(void *arg, int part, int item, int thread)
{
    const struct loading *l = arg;
    struct hand *h = &l->hands[thread];
    struct pp_error err;
    (void)part;
    const struct job *job = &l->jobs[item];
    const enum pp_code code = (job->join       ? load_joined
                               : job->of_heads ? load_heads
                                               : load_matrix)(l, job, &h->room, &err);
    if (code && item < h->failed) {
        h->failed = item;
        h->error = err;
    }
}

/* More than one thread if the work takes longer than a millisecond or two. */
static int threads_for(const struct loading *l)
{
    enum { MOST = 8 };
    const size_t few_bytes = 2 << 20;
    size_t bytes = 0;
    for (int i = 0; i < l->n; i++) {
        const struct job *job = &l->jobs[i];
        const struct pp_adapter_target *const *of = job->join ? job->join->of : &job->target;
        for (int k = 0; k < (job->join ? PP_JOINED_PARTS : 1); k++)
            if (of[k])
                bytes += of[k]->a.size + of[k]->b.size + of[k]->weight.size +
                         (of[k]->magnitude.data ? (size_t)of[k]->n_out * (size_t)of[k]->n_in : 0); /* a DoRA reads W */
    }
    return bytes > few_bytes ? MOST : 1;
}

static enum pp_code do_jobs(struct loading *l, struct pp_error *err)
{
    struct pp_pool *pool;
    enum pp_code code = pp_pool_new(threads_for(l), &pool, err);
    if (code)
        return code;
    const int n = pp_pool_n(pool);
    if ((l->hands = pp_calloc((size_t)n, sizeof *l->hands))) {
        for (int i = 0; i < n; i++)
            l->hands[i].failed = l->n;
        pp_pool_run(pool, do_job, l, &l->n, 1);
    } else {
        code = pp_fail_nomem(err, "an adapter");
    }
    pp_pool_free(pool);
    int first = l->n;
    for (int i = 0; l->hands && i < n; i++) {
        if (l->hands[i].failed < first) {
            first = l->hands[i].failed;
            code = l->hands[i].error.code;
            if (err)
                *err = l->hands[i].error;
        }
        pp_lora_room_free(&l->hands[i].room);
    }
    pp_free(l->hands);
    return code;
}

/* --- all of it --------------------------------------------------------------------------------------------------- */

/* Adds a job for replaced rows of the output matrix, which may be the embeddings (tied). */
static enum pp_code list_output_tokens(struct loading *l, const struct pp_adapter_target *t, struct pp_error *err)
{
    struct pp_adapter *a = l->a;
    struct job job = {.target = t, .tokens = true, .linear = linear_by_name(&a->model->plan, "output.weight")};
    struct pp_lora_target *own = job.linear >= 0 ? &a->targets[job.linear] : NULL;
    const enum pp_code code =
        !own ? pp_fail(err, PP_ERR_MISMATCH, "adapter %s changes %s, which %s does not have", a->path, t->name,
                       a->model->info.name)
             : pp_lora_check_output_tokens(a, t, pp_plan_target(&a->model->plan, job.linear).w, err);
    if (code)
        return code;
    if (own->in_file)
        return pp_fail(err, PP_ERR_UNSUPPORTED, "adapter %s changes the output, and replaces tokens of it; that is not "
                       "supported", a->path);
    own->in_file = true;
    own->rank = (int)t->tokens.ne[1];
    own->scale = 1.0f;
    l->jobs[l->n++] = job;
    return PP_OK;
}

/* Loads what changes the table of embeddings. */
static enum pp_code load_embeddings(struct loading *l, const struct pp_adapter_target *t, struct pp_error *err)
{
    struct pp_adapter *a = l->a;
    enum pp_code code = t->weight.data ? pp_lora_load_table(a, t, err) : PP_OK;
    if (!code && t->tokens.data)
        code = pp_lora_load_tokens(a, t, pp_lora_table(&a->model->plan), err);
    const int output = linear_by_name(&a->model->plan, "output.weight");
    if (!code && t->tokens.data && output >= 0 && !pp_adapter_file_output_tokens(l->file) &&
        pp_lora_is_tied(pp_lora_table(&a->model->plan), pp_plan_target(&a->model->plan, output).w))
        code = list_output_tokens(l, t, err); /* PEFT keeps them tied */
    return code || !t->rank ? code : pp_lora_load_embedding(a, t, err);
}

/* Whether an adapter of the embeddings changes the output, too, because that is the same matrix. */
static bool changes_output(const struct loading *l, const struct pp_adapter_target *t)
{
    const struct pp_plan *plan = &l->a->model->plan;
    const int output = linear_by_name(plan, "output.weight");
    return t->tied && t->rank && output >= 0 && !pp_adapter_file_find(l->file, "output.weight") &&
           pp_lora_is_tied(pp_lora_table(plan), plan->linears[output].w);
}

/* Loads a norm or the table of embeddings; adds jobs for matrices. */
static enum pp_code list_target(struct loading *l, const struct pp_adapter_target *t, struct pp_error *err)
{
    struct pp_adapter *a = l->a;
    char names[PP_ADAPTER_MATRICES][PP_HF_NAME];
    enum pp_code code = check_form(a->model, a, t, pp_adapter_file_hf_order(l->file), err);
    if (code)
        return code;
    if (t->weight.n_dims == 1 || ((t->weight.data || t->bias.data) && pp_ends_with(t->name, "norm.weight")))
        return pp_lora_load_norm(a, t, err);
    if (t->embedding) {
        code = load_embeddings(l, t, err);
        if (code || !changes_output(l, t))
            return code;
        pp_adapter_as_output(t, &l->split[l->n_split]);
        t = &l->split[l->n_split++];
    }
    if (t->tokens.data)
        return list_output_tokens(l, t, err);
    struct job heads = {.target = t, .of_heads = true};
    if (pp_lora_find_heads(&a->model->plan, t->name, &heads.at)) {
        code = pp_lora_list_heads(a, t, &heads.at, err);
        if (!code)
            l->jobs[l->n++] = heads;
        return code;
    }
    t = split_target(l, t);
    const struct pp_by_keys *keys = find_by_keys(&a->model->plan, t->name, names);
    const int n = keys ? 2 : pp_adapter_matrices(t, names);
    for (int part = 0; part < n && !code; part++) {
        struct job job = {.target = t, .part = part, .keys = keys};
        int place;
        const int whole = find_whole(l, names[part], &job, &place);
        if (whole >= 0) {
            code = join_target(l, names[part], &job, whole, place, err);
            continue;
        }
        code = check_target(l, names[part], &job, err);
        if (code)
            return code;
        struct pp_lora_target *own = &a->targets[job.linear];
        own->in_file = true;
        own->rank = (int)t->rank;
        own->scale = t->scale;
        l->jobs[l->n++] = job;
    }
    return code;
}

enum pp_code pp_lora_load_targets(struct pp_adapter *a, const struct pp_adapter_file *f, bool exact,
                                  struct pp_error *err)
{
    const size_t n = pp_adapter_file_n(f);
    struct loading l = {
        .a = a, .file = f, .exact = exact, .jobs = pp_calloc(n * PP_ADAPTER_MATRICES, sizeof *l.jobs),
        .joins = pp_calloc(n * PP_ADAPTER_MATRICES, sizeof *l.joins),
        .joined = pp_calloc(n * PP_ADAPTER_MATRICES, sizeof *l.joined), .split = pp_calloc(n + 1, sizeof *l.split),
    };
    enum pp_code code = l.jobs && l.joins && l.joined && l.split ? name_experts(&l, err)
                                                                 : pp_fail_nomem(err, "an adapter");
    for (size_t i = 0; i < n && !code; i++)
        code = list_target(&l, pp_adapter_file_at(f, i), err);
    if (!code)
        code = finish_joins(&l, err);
    if (!code)
        code = make_room(a, exact, err);
    if (!code && l.n)
        code = do_jobs(&l, err);
    for (int i = a->model->plan.n_linears; i < a->n_targets && !code; i++)
        a->scales_experts |= a->targets[i].input != NULL;
    pp_name_index_free(&l.experts);
    pp_free(l.names);
    pp_free(l.targets);
    pp_free(l.joins);
    pp_free(l.joined);
    pp_free(l.split);
    pp_free(l.jobs);
    return code;
}
