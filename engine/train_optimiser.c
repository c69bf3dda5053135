/* train_optimiser.c - initial values of A and B, and how gradients change them. */
#include <math.h>
#include <string.h>

#include "engine/train_int.h"

static const double TAU = 6.283185307179586;
static const float BETA1 = 0.9f, BETA2 = 0.999f, EPSILON = 1e-8f;

/* A is uniform within 1 / sqrt(n_in), as in PEFT (kaiming_uniform with a = sqrt(5)); B is zero, so that the adapter
 * begins without any effect. */
void pp_train_init_params(struct pp_trainer *t)
{
    memset(t->params, 0, t->n_params * sizeof *t->params);
    memset(t->m, 0, t->n_params * sizeof *t->m);
    memset(t->v, 0, t->n_params * sizeof *t->v);
    for (int l = 0; l < t->n_layers; l++)
        for (int i = 0; i < PP_TRAIN_TARGETS; i++) {
            const struct pp_train_linear *lin = &t->layers[l].linear[i];
            const uint64_t stream = PP_STREAM_INIT + (uint64_t)(l * PP_TRAIN_TARGETS + i);
            const float bound = 1.0f / sqrtf((float)lin->n_in);
            for (int64_t k = 0; lin->learnt && k < t->opt.rank * lin->n_in; k++) {
                uint64_t bits = pp_train_random(t->opt.seed, stream, (uint64_t)k) >> 40; /* 24 bits */
                t->params[lin->a + (size_t)k] = bound * ((float)bits / 8388608.0f - 1.0f);
            }
        }
}

static int n_chunks(const struct pp_trainer *t)
{
    return (int)((t->n_params + PP_TRAIN_CHUNK - 1) / PP_TRAIN_CHUNK);
}

static size_t chunk_end(const struct pp_trainer *t, size_t begin)
{
    return t->n_params - begin < PP_TRAIN_CHUNK ? t->n_params : begin + PP_TRAIN_CHUNK;
}

static void norm_item(void *arg, int part, int item, int thread)
{
    (void)part, (void)thread;
    struct pp_trainer *t = arg;
    size_t begin = (size_t)item * PP_TRAIN_CHUNK, end = chunk_end(t, begin);
    double sum = 0;
    for (size_t i = begin; i < end; i++)
        sum += (double)t->grad[i] * (double)t->grad[i];
    t->norms[item] = sum;
}

double pp_train_grad_norm(struct pp_trainer *t)
{
    double sum = 0;
    pp_train_run_items(t, n_chunks(t), norm_item, t);
    for (int i = 0; i < n_chunks(t); i++)
        sum += t->norms[i];
    return sqrt(sum);
}

float pp_train_rate(const struct pp_trainer *t, int64_t step)
{
    const double n = (double)t->info.n_steps, warm = rint((double)t->opt.warmup * n), at = (double)step;
    if (at < warm)
        return (float)((double)t->opt.lr * (at + 1) / warm);
    return (float)((double)t->opt.lr * 0.5 * (1 + cos(TAU / 2 * (at - warm) / (n > warm ? n - warm : 1))));
}

struct adamw {
    struct pp_trainer *t;
    float lr, decay, grad_factor, m_factor, v_factor;
};

/* m = b1 m + (1 - b1) g    v = b2 v + (1 - b2) g^2    w -= lr (m^ / (sqrt(v^) + eps) + decay w), where m^ and v^ are m
 * and v corrected for their initial zeros. */
static void adamw_item(void *arg, int part, int item, int thread)
{
    (void)part, (void)thread;
    const struct adamw *a = arg;
    struct pp_trainer *t = a->t;
    size_t begin = (size_t)item * PP_TRAIN_CHUNK, end = chunk_end(t, begin);
    for (size_t i = begin; i < end; i++) {
        float g = t->grad[i] * a->grad_factor;
        t->m[i] = BETA1 * t->m[i] + (1 - BETA1) * g;
        t->v[i] = BETA2 * t->v[i] + (1 - BETA2) * (g * g);
        float move = t->m[i] * a->m_factor / (sqrtf(t->v[i] * a->v_factor) + EPSILON);
        t->params[i] -= a->lr * (move + a->decay * t->params[i]);
    }
}

void pp_train_adamw(struct pp_trainer *t, float lr, float grad_factor)
{
    const double n = (double)(t->step + 1);
    struct adamw a = {.t = t, .lr = lr, .decay = t->opt.weight_decay, .grad_factor = grad_factor,
                      .m_factor = (float)(1 / (1 - pow((double)BETA1, n))),
                      .v_factor = (float)(1 / (1 - pow((double)BETA2, n)))};
    pp_train_run_items(t, n_chunks(t), adamw_item, &a);
}
