/* sampler.c - the sampling chain, one function per link, in the order in which they are applied.
 *
 * The final choice is the Gumbel-max trick: argmax over log p + noise is a draw from p. Because the noise depends only
 * on (seed, position, token), a seed gives the same text however the logits were computed: alone, in a batch, or while
 * checking a draft. */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

struct pp_sampling pp_sampling_default(void)
{
    return (struct pp_sampling){
        .temp = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.0f, .penalty_last_n = 64};
}

enum pp_code pp_sampler_init(struct pp_sampler *s, int64_t n_vocab, struct pp_error *err)
{
    *s = (struct pp_sampler){.n_vocab = (int32_t)n_vocab};
    s->logits = pp_malloc((size_t)n_vocab * sizeof *s->logits);
    s->candidates = pp_malloc((size_t)n_vocab * sizeof *s->candidates);
    s->counts = pp_calloc((size_t)n_vocab, sizeof *s->counts);
    if (!s->logits || !s->candidates || !s->counts) {
        pp_sampler_free(s);
        return pp_fail_nomem(err, "the sampler");
    }
    return PP_OK;
}

void pp_sampler_free(struct pp_sampler *s)
{
    pp_free(s->logits);
    pp_free(s->candidates);
    pp_free(s->counts);
    *s = (struct pp_sampler){0};
}

/* --- penalties, bias ------------------------------------------------------------------------------------------- */

/* Repetition (CTRL, arXiv 1909.05858): positive logits of tokens seen are divided, negative ones multiplied. Frequency
 * takes off in proportion to how often a token was seen, presence once. */
static void penalties(struct pp_sampler *s, const struct pp_sampling *p, const int32_t *history, int64_t n)
{
    int64_t last = p->penalty_last_n < 0 ? n : p->penalty_last_n;
    int64_t begin = n > last ? n - last : 0;
    if (p->repeat_penalty == 1.0f && p->frequency_penalty == 0.0f && p->presence_penalty == 0.0f)
        return;
    for (int64_t i = begin; i < n; i++)
        if (history[i] >= 0 && history[i] < s->n_vocab)
            s->counts[history[i]]++;
    for (int64_t i = begin; i < n; i++) {
        int32_t t = history[i];
        if (t < 0 || t >= s->n_vocab || s->counts[t] == 0)
            continue; /* done at its first place */
        float *l = &s->logits[t];
        *l = *l > 0 ? *l / p->repeat_penalty : *l * p->repeat_penalty;
        *l -= (float)s->counts[t] * p->frequency_penalty + p->presence_penalty;
        s->counts[t] = 0;
    }
}

enum pp_code pp_sampling_check(const struct pp_sampling *s, int64_t n_vocab, struct pp_error *err)
{
    for (int i = 0; i < s->n_bias; i++)
        if (s->bias[i].token < 0 || s->bias[i].token >= n_vocab)
            return pp_fail(err, PP_ERR_USAGE,
                           "--logit-bias is of token %d, and this model has tokens 0 to %lld; `pippin tokenize` gives "
                           "the ids of a text", s->bias[i].token, (long long)n_vocab - 1);
    return PP_OK;
}

static void logit_bias(struct pp_sampler *s, const struct pp_sampling *p)
{
    for (int i = 0; i < p->n_bias; i++)
        if (p->bias[i].token >= 0 && p->bias[i].token < s->n_vocab)
            s->logits[p->bias[i].token] += p->bias[i].bias;
}

/* --- candidates ------------------------------------------------------------------------------------------------ */

/* Larger logits first; equal ones by token, so that the order is total. */
static int better(const struct pp_candidate *a, const struct pp_candidate *b)
{
    return a->logit != b->logit ? a->logit > b->logit : a->token < b->token;
}

static int compare(const void *a, const void *b)
{
    return better(a, b) ? -1 : better(b, a) ? 1 : 0;
}

/* A heap whose root is the worst candidate. */
static void sift_down(struct pp_candidate *heap, int n, int i)
{
    for (;;) {
        int worst = i, left = 2 * i + 1, right = left + 1;
        if (left < n && better(&heap[worst], &heap[left]))
            worst = left;
        if (right < n && better(&heap[worst], &heap[right]))
            worst = right;
        if (worst == i)
            return;
        struct pp_candidate t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

enum { LOOK = 32 };

/* Whether one of x[0 .. LOOK) is greater than `least`; a NaN never is. A loop that compilers make vector code of: what
 * looks at every logit costs as much as a small model's layer. */
static bool any_above(const float *x, float least)
{
    int any = 0;
    for (int i = 0; i < LOOK; i++)
        any |= x[i] > least;
    return any;
}

/* The k best of all logits (k <= 0: all), best first. Returns how many. */
static int top_k(struct pp_sampler *s, const float *logits, int k)
{
    int n = s->n_vocab;
    struct pp_candidate *c = s->candidates;
    if (k <= 0 || k > n)
        k = n;
    for (int i = 0; i < k; i++) /* NaN, which has no place in an order, counts as forbidden */
        c[i] = (struct pp_candidate){i, isnan(logits[i]) ? -INFINITY : logits[i]};
    if (k < n) {
        for (int i = k / 2 - 1; i >= 0; i--)
            sift_down(c, k, i);
        for (int i = k; i < n; i++) {
            while (i + LOOK <= n && !any_above(logits + i, c[0].logit))
                i += LOOK;
            if (i == n || !(logits[i] > c[0].logit)) /* on equal logits the earlier token is better and already there */
                continue;
            c[0] = (struct pp_candidate){i, logits[i]};
            sift_down(c, k, 0);
        }
    }
    qsort(c, (size_t)k, sizeof *c, compare);
    return k;
}

/* The fewest candidates whose probabilities reach p together (nucleus sampling, arXiv 1904.09751). */
static int top_p(const struct pp_candidate *c, int n, float p)
{
    double total = 0, sum = 0;
    if (p >= 1.0f)
        return n;
    for (int i = 0; i < n; i++)
        total += exp((double)(c[i].logit - c[0].logit));
    for (int i = 0; i < n; i++) {
        sum += exp((double)(c[i].logit - c[0].logit));
        if (sum >= (double)p * total)
            return i + 1;
    }
    return n;
}

/* Candidates at least p times as likely as the best (arXiv 2407.01082). */
static int min_p(const struct pp_candidate *c, int n, float p)
{
    if (p <= 0.0f)
        return n;
    float least = c[0].logit + logf(p);
    int kept = 1;
    while (kept < n && c[kept].logit >= least)
        kept++;
    return kept;
}

/* --- the choice ------------------------------------------------------------------------------------------------ */

/* The finalizer of splitmix64: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Gumbel noise -log(-log u) of (seed, position, token), u uniform in (0, 1). */
static double gumbel(uint64_t seed, int64_t position, int32_t token)
{
    uint64_t h = mix(mix(mix(seed) ^ (uint64_t)position) ^ (uint64_t)(uint32_t)token);
    double u = ((double)(h >> 11) + 0.5) * 0x1p-53;
    return -log(-log(u));
}

/* Takes a score into the two best. */
static void consider(struct pp_choice *c, double *second, double *best, int32_t token, double score)
{
    if (score > *best) {
        *second = *best;
        c->second = c->token;
        *best = score;
        c->token = token;
    } else if (score > *second) {
        *second = score;
        c->second = token;
    }
}

static struct pp_choice choose(const struct pp_candidate *c, int n, const struct pp_sampling *p, int64_t position)
{
    /* u < 1 - 2^-54 bounds the noise: a candidate that could not win even with the largest noise need not draw any.
     * They are sorted, so the rest cannot either. */
    const double largest_noise = 37.5;
    struct pp_choice made = {.token = -1, .second = -1};
    double best = -INFINITY, second = -INFINITY;
    for (int i = 0; i < n; i++) {
        double score = (double)c[i].logit / (double)p->temp;
        if (score + largest_noise < best)
            break;
        consider(&made, &second, &best, c[i].token, score + gumbel(p->seed, position, c[i].token));
    }
    if (made.token < 0) /* scores that are no numbers: the most likely one */
        made.token = c[0].token;
    made.margin = (float)(best - second);
    return made;
}

static struct pp_choice most_likely(const float *logits, int32_t n)
{
    struct pp_choice made = {.token = -1, .second = -1};
    float best = -INFINITY, second = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        while (i + LOOK <= n && !any_above(logits + i, second))
            i += LOOK;
        if (i == n)
            break;
        if (logits[i] > best) {
            second = best;
            made.second = made.token;
            best = logits[i];
            made.token = i;
        } else if (logits[i] > second) {
            second = logits[i];
            made.second = i;
        }
    }
    made.margin = best - second;
    return made;
}

static bool changes_logits(const struct pp_sampling *p)
{
    return p->n_bias > 0 || p->repeat_penalty != 1.0f || p->frequency_penalty != 0.0f || p->presence_penalty != 0.0f;
}

struct pp_choice pp_sampler_choose(struct pp_sampler *s, const struct pp_sampling *p, const float *logits,
                                   const int32_t *history, int64_t n_history)
{
    if (changes_logits(p)) {
        memcpy(s->logits, logits, (size_t)s->n_vocab * sizeof *logits);
        penalties(s, p, history, n_history);
        logit_bias(s, p);
        logits = s->logits;
    }
    if (p->temp <= 0.0f)
        return most_likely(logits, s->n_vocab);
    int n = top_k(s, logits, p->top_k);
    if (s->candidates[0].logit == -INFINITY)
        return (struct pp_choice){.token = -1, .second = -1};
    n = top_p(s->candidates, n, p->top_p);
    n = min_p(s->candidates, n, p->min_p);
    return choose(s->candidates, n, p, n_history);
}
