/* sampler.c - the sampling chain, one function per link, in the order in which they are applied.
 *
 * The final choice is the Gumbel-max trick: argmax over log p + noise is a draw from p. Because the noise depends only
 * on (seed, position, token), a seed gives the same text however the logits were computed: alone, in a batch, or while
 * checking a draft. */
#include "engine/sampler.h"

#include <math.h>
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
    s->counts = pp_calloc((size_t)n_vocab, sizeof *s->counts);
    enum pp_code code = !s->logits || !s->counts ? pp_fail_nomem(err, "the sampler")
                                                 : pp_candidates_init(&s->candidates, s->n_vocab, err);
    if (code)
        pp_sampler_free(s);
    return code;
}

void pp_sampler_free(struct pp_sampler *s)
{
    pp_free(s->logits);
    pp_candidates_free(&s->candidates);
    pp_free(s->counts);
    *s = (struct pp_sampler){0};
}

/* --- penalties, bias ------------------------------------------------------------------------------------------- */

/* Repetition (CTRL, arXiv 1909.05858): positive logits of tokens seen are divided, negative ones multiplied. Frequency
 * subtracts in proportion to how often a token was seen, presence once. */
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
            continue; /* done at its first occurrence */
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
                           "--logit-bias names token %d, but this model has tokens 0 to %lld; `pippin tokenize` "
                           "prints the ids of a text", s->bias[i].token, (long long)n_vocab - 1);
    return PP_OK;
}

static void logit_bias(struct pp_sampler *s, const struct pp_sampling *p)
{
    for (int i = 0; i < p->n_bias; i++)
        if (p->bias[i].token >= 0 && p->bias[i].token < s->n_vocab)
            s->logits[p->bias[i].token] += p->bias[i].bias;
}

static void suppress(struct pp_sampler *s)
{
    for (size_t i = 0; i < s->n_suppressed; i++)
        if (s->suppressed[i] >= 0 && s->suppressed[i] < s->n_vocab)
            s->logits[s->suppressed[i]] = -INFINITY;
}

static void only_allowed(struct pp_sampler *s)
{
    for (int32_t i = 0; i < s->n_vocab; i += 64) {
        const uint64_t word = s->allowed[i / 64];
        const int32_t n = s->n_vocab - i < 64 ? s->n_vocab - i : 64;
        for (int32_t k = 0; k < n && word != UINT64_MAX; k++)
            if (!(word >> k & 1))
                s->logits[i + k] = -INFINITY;
    }
}

/* --- candidates ------------------------------------------------------------------------------------------------ */

/* Min-p: the smallest logit that is still at least p times as likely as the best (arXiv 2407.01082). */
static float min_p_logit(const struct pp_candidates *c, float p)
{
    return p <= 0.0f ? -INFINITY : p < 1.0f ? c->largest + logf(p) : c->largest;
}

/* Top-p: the number of best candidates whose probabilities add up to p (nucleus sampling, arXiv 1904.09751). */
static int32_t top_p(const struct pp_candidate *c, int32_t n, float p)
{
    double total = 0, sum = 0;
    if (p >= 1.0f)
        return n;
    for (int32_t i = 0; i < n; i++)
        total += exp((double)(c[i].logit - c[0].logit));
    for (int32_t i = 0; i < n; i++) {
        sum += exp((double)(c[i].logit - c[0].logit));
        if (sum >= (double)p * total)
            return i + 1;
    }
    return n;
}

static int32_t min_p(const struct pp_candidate *c, int32_t n, float min_logit)
{
    int32_t kept = 1;
    while (kept < n && c[kept].logit >= min_logit)
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

/* Gumbel noise -log(-log u) of (seed, position, token), u uniform in (0, 1), in three steps: a hash of seed and
 * position for all tokens, 53 bits of u for each token, and the noise they make. */
static uint64_t noise_of(uint64_t seed, int64_t position)
{
    return mix(mix(seed) ^ (uint64_t)position);
}

static uint64_t noise_bits(uint64_t noise, int32_t token)
{
    return mix(noise ^ (uint64_t)(uint32_t)token) >> 11;
}

static double gumbel(uint64_t bits)
{
    double u = ((double)bits + 0.5) * 0x1p-53;
    return -log(-log(u));
}

/* bounded by u < 1 - 2^-54 */
#define LARGEST_NOISE 37.5

/* The inverse of gumbel(): smaller values of noise_bits() give less noise than `needed`. It is a part in a million too
 * low, to allow for the rounding of logarithms. */
static uint64_t min_bits(double needed)
{
    return needed > -3.0 ? (uint64_t)(exp(-exp(-needed)) * (1.0 - 1e-6) * 0x1p53) : 0;
}

/* The two best scores so far. */
struct scores {
    double best, second;
};

static void consider(struct pp_choice *c, struct scores *s, int32_t token, double score)
{
    if (score > s->best) {
        s->second = s->best;
        c->second = c->token;
        s->best = score;
        c->token = token;
    } else if (score > s->second) {
        s->second = score;
        c->second = token;
    }
}

static struct pp_choice finish_choice(struct pp_choice choice, const struct scores *s, int32_t most_likely)
{
    if (choice.token < 0) /* all scores are NaN */
        choice.token = most_likely;
    choice.margin = (float)(s->best - s->second);
    return choice;
}

/* Draws from c [n], best first. Stops at a candidate that could not win with the largest noise: those after it could
 * not either. */
static struct pp_choice choose(const struct pp_candidate *c, int32_t n, const struct pp_sampling *p, int64_t position)
{
    const uint64_t noise = noise_of(p->seed, position);
    struct pp_choice choice = {.token = -1, .second = -1};
    struct scores s = {-INFINITY, -INFINITY};
    for (int32_t i = 0; i < n; i++) {
        double score = (double)c[i].logit / (double)p->temp;
        if (score + LARGEST_NOISE < s.best)
            break;
        consider(&choice, &s, c[i].token, score + gumbel(noise_bits(noise, c[i].token)));
    }
    return finish_choice(choice, &s, c[0].token);
}

/* Draws from all tokens with a logit of at least `min_logit`. A block is skipped if the noise that its largest logit
 * would need to come second is impossible; within a block, comparing noise_bits() with that bound saves the logarithms
 * of nearly all tokens. */
static struct pp_choice choose_from_all(const struct pp_candidates *c, const struct pp_sampling *p, float min_logit,
                                        int64_t position)
{
    const uint64_t noise = noise_of(p->seed, position);
    struct pp_choice choice = {.token = -1, .second = -1};
    struct scores s = {-INFINITY, -INFINITY};
    int32_t likely = 0;
    for (int32_t block = 0; block < c->n_blocks; block++) {
        const int32_t first = block * PP_LOGIT_BLOCK, end = pp_candidates_block_end(c, first);
        const float top = c->block_tops[block];
        const double needed = s.second - (double)top / (double)p->temp;
        if (needed > LARGEST_NOISE || !(top >= min_logit))
            continue;
        uint64_t bits_needed = min_bits(needed);
        for (int32_t i = first; i < end; i++) {
            const uint64_t bits = noise_bits(noise, i);
            if (bits < bits_needed || !(c->logits[i] >= min_logit) || c->logits[i] == -INFINITY)
                continue;
            likely = c->logits[i] > c->logits[likely] ? i : likely;
            consider(&choice, &s, i, (double)c->logits[i] / (double)p->temp + gumbel(bits));
            bits_needed = min_bits(s.second - (double)top / (double)p->temp);
        }
    }
    return finish_choice(choice, &s, likely);
}

static struct pp_choice most_likely(struct pp_candidates *c)
{
    const int32_t n = pp_candidates_best(c, 2);
    return (struct pp_choice){.token = n > 0 ? c->list[0].token : -1,
                              .second = n > 1 ? c->list[1].token : -1,
                              .margin = n > 1 ? c->list[0].logit - c->list[1].logit : INFINITY};
}

static bool changes_logits(const struct pp_sampling *p)
{
    return p->n_bias > 0 || p->repeat_penalty != 1.0f || p->frequency_penalty != 0.0f || p->presence_penalty != 0.0f;
}

/* Without top-k, min-p and top-p amount to a smallest logit, and nothing has to be sorted. */
static struct pp_choice filter_and_choose(struct pp_candidates *c, const struct pp_sampling *p, int64_t position)
{
    const float min_logit = min_p_logit(c, p->min_p);
    if (p->top_k <= 0 || p->top_k >= c->n) {
        const float nucleus = p->top_p < 1.0f ? pp_candidates_nucleus(c, p->top_p) : -INFINITY;
        return choose_from_all(c, p, fmaxf(min_logit, nucleus), position);
    }
    const int32_t k = pp_candidates_best(c, p->top_k);
    return choose(c->list, min_p(c->list, top_p(c->list, k, p->top_p), min_logit), p, position);
}

struct pp_choice pp_sampler_choose(struct pp_sampler *s, const struct pp_sampling *p, const float *logits,
                                   const int32_t *history, int64_t n_history)
{
    if (changes_logits(p) || s->n_suppressed || s->allowed) {
        memcpy(s->logits, logits, (size_t)s->n_vocab * sizeof *logits);
        penalties(s, p, history, n_history);
        logit_bias(s, p);
        suppress(s);
        if (s->allowed)
            only_allowed(s);
        logits = s->logits;
    }
    pp_candidates_set(&s->candidates, logits, s->n_vocab);
    if (s->candidates.largest == -INFINITY)
        return (struct pp_choice){.token = -1, .second = -1};
    return p->temp <= 0.0f ? most_likely(&s->candidates) : filter_and_choose(&s->candidates, p, n_history);
}
