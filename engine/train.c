/* train.c - a training run: its options, its memory, and one step. */
#include "engine/train.h"

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/memory.h"
#include "engine/engine_int.h"
#include "engine/rope.h"
#include "engine/train_int.h"

enum { MAX_RANK = 1024, MAX_BATCH = 4096, MAX_THREADS = 512, LEAST_HEAD_ROWS = 32, MOST_HEAD_ROWS = 1024 };
static const int64_t HEAD_FLOATS = 1 << 23; /* of logits computed at a time, unless that means too few rows */

/* --- options -------------------------------------------------------------------------------------------------- */

static const char *const target_names[PP_TRAIN_TARGETS] = {"q", "k", "v", "o", "gate", "up", "down"};

const char *pp_train_target_name(enum pp_train_target t)
{
    return target_names[t];
}

/* The target with this name of n bytes, with or without "_proj"; -1: none. */
static int target_by_name(const char *word, size_t n)
{
    static const char proj[] = "_proj";
    if (n > sizeof proj - 1 && strncmp(word + n - (sizeof proj - 1), proj, sizeof proj - 1) == 0)
        n -= sizeof proj - 1;
    for (int i = 0; i < PP_TRAIN_TARGETS; i++)
        if (strlen(target_names[i]) == n && strncmp(target_names[i], word, n) == 0)
            return i;
    return -1;
}

enum pp_code pp_train_targets_parse(const char *list, unsigned *targets, struct pp_error *err)
{
    static const char between[] = ", ";
    *targets = 0;
    for (const char *p = list + strspn(list, between); *p; p += strspn(p, between)) {
        size_t n = strcspn(p, between);
        int i = target_by_name(p, n);
        if (n == 3 && strncmp(p, "all", 3) == 0)
            *targets = (1u << PP_TRAIN_TARGETS) - 1;
        else if (i < 0)
            return pp_fail(err, PP_ERR_USAGE,
                           "unknown projection \"%.*s\"; choose from q, k, v, o, gate, up, down and all",
                           (int)(n < 40 ? n : 40), p);
        else
            *targets |= 1u << i;
        p += n;
    }
    if (!*targets)
        return pp_fail(err, PP_ERR_USAGE, "give the projections to train: q, k, v, o, gate, up, down, or all");
    return PP_OK;
}

struct pp_train_options pp_train_options_default(void)
{
    return (struct pp_train_options){
        .rank = 16,
        .alpha = 32,
        .targets = (1u << PP_TRAIN_TARGETS) - 1,
        .lr = 2e-4f,
        .warmup = 0.05f,
        .weight_decay = 0.01f,
        .clip = 1,
        .batch = 8,
        .accumulate = 1,
        .epochs = 3,
    };
}

static bool within(float x, float least, float most)
{
    return x >= least && x <= most; /* false for NaN */
}

static enum pp_code check_options(const struct pp_train_options *o, struct pp_error *err)
{
    const char *what = NULL;
    if (o->rank < 1 || o->rank > MAX_RANK)
        what = "the rank must be from 1 to 1024";
    else if (!within(o->alpha, 1e-6f, 1e6f))
        what = "alpha must be a positive number, usually the rank or twice the rank";
    else if (!o->targets || o->targets >> PP_TRAIN_TARGETS)
        what = "there are no projections to train";
    else if (!within(o->lr, 1e-12f, 100))
        what = "the learning rate must be a positive number, such as 2e-4";
    else if (!within(o->warmup, 0, 1))
        what = "the warm-up must be a fraction of the steps, from 0 to 1";
    else if (!within(o->weight_decay, 0, 10) || !within(o->clip, 0, 1e9f))
        what = "weight decay (0.01) and gradient clipping (1) must not be negative";
    else if (o->batch < 1 || o->batch > MAX_BATCH || o->accumulate < 1 || o->accumulate > MAX_BATCH)
        what = "a batch must have 1 to 4096 examples, and a step 1 to 4096 batches";
    else if (o->steps < 0 || o->steps > 1 << 30 || (!o->steps && (o->epochs < 1 || o->epochs > 1 << 20)))
        what = "a training needs at least one epoch or one step";
    return what ? pp_fail(err, PP_ERR_USAGE, "%s", what) : PP_OK;
}

/* --- memory --------------------------------------------------------------------------------------------------- */

/* Divides one block of memory; without a block only counts. */
struct arena {
    char *memory;
    size_t used;
};

static void *take(struct arena *a, size_t count, size_t size)
{
    void *at = a->memory ? a->memory + a->used : NULL;
    a->used += (count * size + 63) / 64 * 64;
    return at;
}

static float *take_floats(struct arena *a, const struct pp_trainer *t, int64_t per_row)
{
    return take(a, (size_t)t->max_rows * (size_t)per_row, sizeof(float));
}

static void take_values(struct arena *a, const struct pp_trainer *t, struct pp_train_activations *v)
{
    float **wide[] = {&v->h1, &v->mid, &v->h2};
    for (int i = 0; i < 3; i++)
        *wide[i] = take_floats(a, t, t->n_embd);
    v->q = take_floats(a, t, t->n_q);
    v->k = take_floats(a, t, t->n_kv);
    v->v = take_floats(a, t, t->n_kv);
    v->att = take_floats(a, t, t->n_q);
    v->gate = take_floats(a, t, t->n_ff);
    v->up = take_floats(a, t, t->n_ff);
    v->act = take_floats(a, t, t->n_ff);
    for (int i = 0; i < PP_TRAIN_TARGETS; i++)
        v->u[i] = take_floats(a, t, t->opt.targets >> i & 1 ? t->opt.rank : 0);
}

static void take_batch(struct arena *a, const struct pp_trainer *t, struct pp_train_batch *b)
{
    int32_t **lists[] = {&b->tokens, &b->pos, &b->target, &b->learnt};
    for (int i = 0; i < 4; i++)
        *lists[i] = take(a, (size_t)t->max_rows, sizeof(int32_t));
    b->seq_first = take(a, (size_t)t->opt.batch + 1, sizeof(int32_t));
}

/* The last n_kept layers get values of their own, since the backward pass needs those first. */
static void take_layers(struct arena *a, struct pp_trainer *t)
{
    struct pp_train_activations shared = {0};
    const bool keeps_all = t->info.n_kept == t->n_layers;
    t->x = take(a, (size_t)t->n_layers + 1, sizeof *t->x);
    t->values = take(a, (size_t)t->n_layers, sizeof *t->values);
    if (!keeps_all)
        take_values(a, t, &shared);
    for (int l = 0; l <= t->n_layers; l++) {
        float *x = take_floats(a, t, t->n_embd);
        struct pp_train_activations own = shared;
        if (l < t->n_layers && l >= t->n_layers - t->info.n_kept)
            take_values(a, t, &own);
        if (!a->memory)
            continue;
        t->x[l] = x;
        if (l < t->n_layers)
            t->values[l] = own;
    }
}

static void lay_out(struct arena *a, struct pp_trainer *t)
{
    float **params[] = {&t->params, &t->grad, &t->m, &t->v};
    for (int i = 0; i < 4; i++)
        *params[i] = take(a, t->n_params, sizeof(float));
    take_layers(a, t);
    take_batch(a, t, &t->batch);
    t->dx = take_floats(a, t, t->n_embd);
    t->dh = take_floats(a, t, t->n_embd);
    t->datt = take_floats(a, t, t->n_q);
    t->dq = take_floats(a, t, t->n_q);
    t->dk = take_floats(a, t, t->n_kv);
    t->dv = take_floats(a, t, t->n_kv);
    t->dact = take_floats(a, t, t->n_ff);
    t->dup = take_floats(a, t, t->n_ff);
    t->du = take_floats(a, t, (int64_t)PP_TRAIN_TARGETS * t->opt.rank);
    t->hidden = take(a, (size_t)(t->head_rows * t->n_embd), sizeof(float));
    t->dhidden = take(a, (size_t)(t->head_rows * t->n_embd), sizeof(float));
    t->logits = take(a, (size_t)(t->head_rows * t->n_vocab), sizeof(float));
    t->row_loss = take(a, (size_t)t->max_rows, sizeof *t->row_loss);
    t->cos_sin = take(a, (size_t)(t->max_seq * t->rope_dim), sizeof(float));
    t->cos_sin_back = take(a, (size_t)(t->max_seq * t->rope_dim), sizeof(float));
    t->scratch = take(a, t->scratch_each * (size_t)t->info.n_threads, sizeof(float));
    t->norms = take(a, t->n_params / PP_TRAIN_CHUNK + 1, sizeof *t->norms);
    t->order = take(a, t->data->n, sizeof *t->order);
}

static size_t bytes_with(struct pp_trainer *t, int n_kept)
{
    struct arena a = {0};
    t->info.n_kept = n_kept;
    lay_out(&a, t);
    return a.used;
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Keeps the values of as many layers as fit in half of the free memory, so that weights stay in memory, or in the
 * memory allowed. Refuses early what does not fit with none kept. */
static enum pp_code choose_kept(struct pp_trainer *t, struct pp_error *err)
{
    const uint64_t here = least_of(pp_memory_free(), pp_memory_allowed());
    const uint64_t most = t->opt.memory ? t->opt.memory : here / 10 * 9;
    const uint64_t wish = t->opt.memory ? t->opt.memory : here / 2;
    const size_t none = bytes_with(t, 0), all = bytes_with(t, t->n_layers);
    if (none > most)
        return pp_fail(err, PP_ERR_NOMEM,
                       "this training needs %.0f MB in addition to the model, but only %.0f MB may be used; give a "
                       "smaller --batch, --max-length or --rank",
                       ceil((double)none / 1e6), (double)most / 1e6);
    int n = all <= wish ? t->n_layers : 0;
    while (n < t->n_layers && bytes_with(t, n + 1) <= wish)
        n++;
    t->info.bytes = bytes_with(t, n);
    return PP_OK;
}

/* Fills cosines and sines as the engine does for a context as long as the longest example. */
static enum pp_code fill_rope(struct pp_trainer *t, struct pp_error *err)
{
    const int64_t half = t->rope_dim / 2;
    float magnitude, *factors = NULL, *freq = pp_malloc((size_t)t->rope_dim * sizeof *freq);
    enum pp_code code = freq ? pp_rope_factors(t->model->source, t->max_seq, &factors, err)
                             : pp_fail_nomem(err, "the rotations");
    if (!code)
        pp_rope_frequencies(pp_source_hparams(t->model->source), t->max_seq, factors, freq, &magnitude);
    for (int64_t pos = 0; pos < t->max_seq && !code; pos++)
        for (int64_t i = 0; i < half; i++) {
            const int64_t at = pos * t->rope_dim + 2 * i;
            const float angle = (float)pos * freq[i];
            t->cos_sin[at] = t->cos_sin_back[at] = cosf(angle) * magnitude;
            t->cos_sin[at + 1] = sinf(angle) * magnitude;
            t->cos_sin_back[at + 1] = -t->cos_sin[at + 1];
        }
    pp_free(factors);
    pp_free(freq);
    return code;
}

static enum pp_code prepare_memory(struct pp_trainer *t, struct pp_error *err)
{
    const size_t limit = INT32_MAX / 64;
    size_t rows = pp_train_max_rows(t->data, t->opt.batch), longest = t->data->info.longest;
    if (t->validation) {
        size_t v = pp_train_max_rows(t->validation, t->opt.batch);
        rows = v > rows ? v : rows;
        longest = t->validation->info.longest > longest ? t->validation->info.longest : longest;
    }
    if (rows > limit)
        return pp_fail(err, PP_ERR_NOMEM, "a pass of %zu tokens is too large; give a smaller --batch", rows);
    t->max_rows = (int)rows;
    t->max_seq = (int)longest;
    int64_t head = HEAD_FLOATS / t->n_vocab;
    head = head < LEAST_HEAD_ROWS ? LEAST_HEAD_ROWS : head > MOST_HEAD_ROWS ? MOST_HEAD_ROWS : head;
    t->head_rows = (int)(head < t->max_rows ? head : t->max_rows);
    t->scratch_each = PP_PRODUCT_SCRATCH + pp_train_attention_scratch(t->max_seq);
    enum pp_code code = choose_kept(t, err);
    if (code)
        return code;
    struct arena a = {.memory = t->memory = pp_aligned(64, t->info.bytes)};
    if (!t->memory)
        return pp_fail(err, PP_ERR_NOMEM, "out of memory: this training needs %.0f MB in addition to the model",
                       ceil((double)t->info.bytes / 1e6));
    lay_out(&a, t);
    return fill_rope(t, err);
}

/* --- making one ----------------------------------------------------------------------------------------------- */

static void count_steps(struct pp_trainer *t)
{
    const int64_t each = (int64_t)t->opt.batch * t->opt.accumulate;
    t->info.steps_per_epoch = ((int64_t)t->data->n + each - 1) / each;
    t->info.n_steps = t->opt.steps ? t->opt.steps : t->info.steps_per_epoch * t->opt.epochs;
    t->info.n_layers = t->n_layers;
    t->info.n_params = t->n_params;
    t->info.n_threads = pp_pool_n(t->pool);
}

static enum pp_code check_length(const struct pp_trainer *t, struct pp_error *err)
{
    const struct pp_hparams *hp = pp_source_hparams(t->model->source);
    /* up to where scores do not grow */
    const int64_t most = hp->attn_temperature != 0.0f ? hp->rope_orig_ctx : hp->n_ctx_train;
    const size_t checked = t->validation ? t->validation->info.longest : 0;
    const size_t longest = t->data->info.longest > checked ? t->data->info.longest : checked;
    if ((int64_t)longest <= most)
        return PP_OK;
    return pp_fail(err, PP_ERR_USAGE, "examples have up to %zu tokens, but the model's context is %lld; give a "
                                      "smaller --max-length",
                   longest, (long long)most);
}

enum pp_code pp_trainer_new(const struct pp_model *m, const struct pp_train_data *data,
                            const struct pp_train_data *validation, const struct pp_train_options *opt,
                            struct pp_trainer **out, struct pp_error *err)
{
    enum pp_isa isa = PP_ISA_SCALAR;
    *out = NULL;
    enum pp_code code = check_options(opt, err);
    if (!code)
        code = pp_choose_kernels(opt->kernels, &isa, err);
    if (code)
        return code;
    struct pp_trainer *t = pp_calloc(1, sizeof *t);
    if (!t)
        return pp_fail_nomem(err, "the training");
    t->model = m;
    t->data = data;
    t->validation = validation;
    t->opt = *opt;
    t->ops = pp_cpu_ops(isa);
    t->train_ops = pp_train_ops(isa);
    t->scale = opt->alpha / (opt->rslora ? sqrtf((float)opt->rank) : (float)opt->rank);
    t->first_validation = t->first_loss = (double)NAN;
    t->order_epoch = -1;
    code = pp_train_take_model(t, err);
    if (!code)
        code = check_length(t, err);
    if (!code)
        code = pp_pool_new(opt->n_threads > 0 ? opt->n_threads : MAX_THREADS, &t->pool, err);
    if (!code) {
        count_steps(t);
        code = prepare_memory(t, err);
    }
    if (code) {
        pp_trainer_free(t);
        return code;
    }
    pp_train_init_params(t);
    *out = t;
    return PP_OK;
}

void pp_trainer_free(struct pp_trainer *t)
{
    if (!t)
        return;
    pp_pool_free(t->pool);
    pp_free(t->memory);
    pp_free(t->vectors);
    pp_free(t->layers);
    pp_free(t);
}

const struct pp_train_info *pp_trainer_info(const struct pp_trainer *t)
{
    return &t->info;
}

int64_t pp_trainer_step_number(const struct pp_trainer *t)
{
    return t->step;
}

/* --- a step --------------------------------------------------------------------------------------------------- */

/* Finds the examples first .. end - 1, in the epoch's order, of the current step. */
static void find_examples(struct pp_trainer *t, size_t *first, size_t *end)
{
    const int64_t epoch = t->step / t->info.steps_per_epoch, within_epoch = t->step % t->info.steps_per_epoch;
    const size_t each = (size_t)t->opt.batch * (size_t)t->opt.accumulate;
    if (t->order_epoch != epoch) {
        pp_train_shuffle(t->opt.seed, PP_STREAM_EPOCH + (uint64_t)epoch, t->order, t->data->n);
        t->order_epoch = epoch;
    }
    *first = (size_t)within_epoch * each;
    *end = *first + each < t->data->n ? *first + each : t->data->n;
}

/* Runs one pass over examples first .. end - 1, and adds their gradient. */
static enum pp_code pass(struct pp_trainer *t, size_t first, size_t end, float weight, double *loss,
                         const struct pp_cancel *cancel, struct pp_error *err)
{
    pp_train_batch_clear(&t->batch);
    for (size_t i = first; i < end; i++)
        pp_train_batch_add(&t->batch, t->data, &t->data->examples[t->order[i]]);
    enum pp_code code = pp_train_forward(t, cancel, err);
    if (!code)
        *loss += pp_train_loss(t, weight);
    return code ? code : pp_train_backward(t, cancel, err);
}

static enum pp_code all_passes(struct pp_trainer *t, size_t first, size_t end, struct pp_train_step *done,
                               const struct pp_cancel *cancel, struct pp_error *err)
{
    size_t n_learnt = 0, batch = (size_t)t->opt.batch;
    enum pp_code code = PP_OK;
    done->loss = 0;
    done->n_tokens = 0;
    for (size_t i = first; i < end; i++) {
        n_learnt += (size_t)t->data->examples[t->order[i]].n_learnt;
        done->n_tokens += (size_t)t->data->examples[t->order[i]].n;
    }
    memset(t->grad, 0, t->n_params * sizeof *t->grad);
    for (size_t i = first; i < end && !code; i += batch)
        code = pass(t, i, i + batch < end ? i + batch : end, 1.0f / (float)n_learnt, &done->loss, cancel, err);
    done->loss /= (double)n_learnt;
    return code;
}

enum pp_code pp_trainer_step(struct pp_trainer *t, const struct pp_cancel *cancel, struct pp_train_step *done,
                             struct pp_error *err)
{
    struct pp_train_step own;
    size_t first, end;
    done = done ? done : &own;
    find_examples(t, &first, &end);
    enum pp_code code = all_passes(t, first, end, done, cancel, err);
    if (code)
        return code;
    done->grad_norm = pp_train_grad_norm(t);
    done->lr = (double)pp_train_rate(t, t->step);
    if (!isfinite(done->loss) || !isfinite(done->grad_norm))
        return pp_fail(err, PP_ERR_FORMAT,
                       "the loss of step %lld is NaN or infinite: give a smaller --lr, or check the model's weights",
                       (long long)t->step + 1);
    double clip = (double)t->opt.clip;
    pp_train_adamw(t, (float)done->lr, clip > 0 && done->grad_norm > clip ? (float)(clip / done->grad_norm) : 1.0f);
    if (t->step == 0)
        t->first_loss = done->loss;
    t->step++;
    return PP_OK;
}

enum pp_code pp_trainer_validate(struct pp_trainer *t, const struct pp_train_data *data, const struct pp_cancel *cancel,
                                 double *loss, struct pp_error *err)
{
    size_t batch = (size_t)t->opt.batch;
    double sum = 0;
    data = data ? data : t->validation;
    if (data->info.longest > (size_t)t->max_seq || pp_train_max_rows(data, t->opt.batch) > (size_t)t->max_rows)
        return pp_fail(err, PP_ERR_USAGE, "these examples are longer than those that the training was made for");
    for (size_t first = 0; first < data->n; first += batch) {
        pp_train_batch_clear(&t->batch);
        for (size_t i = first; i < data->n && i < first + batch; i++)
            pp_train_batch_add(&t->batch, data, &data->examples[i]);
        enum pp_code code = pp_train_forward(t, cancel, err);
        if (code)
            return code;
        sum += pp_train_loss(t, 0);
    }
    *loss = sum / (double)data->info.n_learnt;
    return PP_OK;
}
