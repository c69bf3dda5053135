/* route.c - the router of a mixture of experts: chooses each row's experts and their weights, and assigns places
 * (struct routing), so that the rows of one expert are consecutive and its matrices are multiplied by all of them at
 * once. */
#include <math.h>
#include <string.h>

#include "engine/cpu/program.h"

/* The index of the largest of n numbers that are not taken; of equal ones, the first; a NaN only if there is nothing
 * else. */
static int largest(const float *v, const uint8_t *excluded, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!excluded[i] && (best < 0 || v[i] > v[best] || (isnan(v[best]) && !isnan(v[i]))))
            best = i;
    return best;
}

/* The score by which a group is chosen: its largest expert's, or the sum of the two largest. */
static float score_group(const float *score, int n, bool by_largest)
{
    uint8_t excluded[PP_MAX_EXPERTS] = {0};
    const int first = largest(score, excluded, n);
    excluded[first] = 1;
    return n > 1 && !by_largest ? score[first] + score[largest(score, excluded, n)] : score[first];
}

/* Marks as taken the experts of all groups except the n_groups_used with the largest scores. */
static void exclude_groups(const struct experts *x, const float *score, uint8_t *excluded)
{
    const int size = x->n / x->n_groups;
    float groups[PP_MAX_EXPERTS];
    uint8_t chosen[PP_MAX_EXPERTS] = {0};
    for (int g = 0; g < x->n_groups; g++)
        groups[g] = score_group(score + g * size, size, x->groups_by_largest);
    for (int i = 0; i < x->n_groups_used; i++)
        chosen[largest(groups, chosen, x->n_groups)] = 1;
    for (int e = 0; e < x->n; e++)
        excluded[e] = !chosen[e / size];
}

/* Chooses the n_used experts with the largest scores, in descending order. */
static void choose(const struct experts *x, const float *score, int32_t *choice)
{
    uint8_t excluded[PP_MAX_EXPERTS] = {0};
    if (x->n_groups)
        exclude_groups(x, score, excluded);
    for (int j = 0; j < x->n_used; j++) {
        choice[j] = largest(score, excluded, x->n);
        excluded[choice[j]] = 1;
    }
}

/* The weights of the chosen experts: the softmax over the chosen logits, or their probabilities in the softmax over
 * all. */
static void weigh_softmax(const struct experts *x, const float *logits, const int32_t *choice, float *weight)
{
    const float top = logits[choice[0]];
    float sum = 0;
    for (int e = 0; x->no_renorm && e < x->n; e++)
        sum += expf(logits[e] - top);
    for (int j = 0; j < x->n_used; j++) {
        weight[j] = expf(logits[choice[j]] - top);
        sum += x->no_renorm ? 0 : weight[j];
    }
    for (int j = 0; j < x->n_used; j++)
        weight[j] = weight[j] / sum * x->scale;
}

/* sqrt(softplus(x)); softplus(x) is x itself where exp would overflow. */
static float sqrt_softplus(float x)
{
    return sqrtf(x > 20 ? x : log1pf(expf(x)));
}

/* Computes each expert's score: the sigmoid of its logit, sqrt(softplus(logit)), or its probability in the softmax over
 * all experts. */
static void score_all(const struct experts *x, const float *logits, float *part)
{
    float top = -INFINITY, sum = 0;
    for (int e = 0; e < x->n; e++)
        top = fmaxf(top, logits[e]);
    for (int e = 0; e < x->n; e++) {
        part[e] = x->sqrt_softplus ? sqrt_softplus(logits[e])
                  : x->sigmoids    ? 1 / (1 + expf(-logits[e]))
                                   : expf(logits[e] - top);
        sum += part[e];
    }
    for (int e = 0; !x->sigmoids && !x->sqrt_softplus && e < x->n; e++)
        part[e] /= sum;
}

/* The weights of the chosen experts, computed from the scores of score_all(). */
static void weigh_scores(const struct experts *x, const float *part, const int32_t *choice, float *weight)
{
    float sum = 0;
    for (int j = 0; j < x->n_used; j++)
        sum += part[choice[j]];
    for (int j = 0; j < x->n_used; j++)
        weight[j] = (x->no_renorm ? part[choice[j]] : part[choice[j]] / fmaxf(sum, 1e-20f)) * x->scale;
}

/* SparseMixer: chooses expert after expert; the weight of each comes from a softmax that leaves out the logits that are
 * far below the largest remaining one. */
static void sparse_mixer(const struct experts *x, const float *logits, int32_t *choice, float *weight)
{
    uint8_t excluded[PP_MAX_EXPERTS] = {0};
    for (int j = 0; j < x->n_used; j++) {
        const int best = choice[j] = largest(logits, excluded, x->n);
        const float top = logits[best];
        float sum = 0;
        for (int e = 0; e < x->n; e++)
            if (!excluded[e] && !((top - logits[e]) / fmaxf(fabsf(logits[e]), top) > 2 * x->mixer_jitter))
                sum += expf(logits[e] - top);
        weight[j] = x->scale / sum;
        excluded[best] = 1;
    }
}

/* Chooses a row's experts and computes their weights. Softmax and sigmoid are monotonic, so without a choice bias the
 * logits themselves are compared; that also tells large ones apart, whose sigmoids are all 1. */
static void choose_experts(const struct experts *x, int64_t token, const float *logits, int32_t *choice, float *weight)
{
    if (x->mixer_jitter != 0.0f) {
        sparse_mixer(x, logits, choice, weight);
        return;
    }
    const bool plain = !x->choice_bias && !x->n_groups, chosen = x->table != NULL;
    if (chosen)
        memcpy(choice, x->table + token * x->n_used, (size_t)x->n_used * sizeof *choice);
    else if (plain)
        choose(x, logits, choice);
    if (plain && !chosen && !x->sigmoids && !x->sqrt_softplus) {
        weigh_softmax(x, logits, choice, weight);
        return;
    }
    float part[PP_MAX_EXPERTS], score[PP_MAX_EXPERTS];
    score_all(x, logits, part);
    for (int e = 0; e < x->n && !plain; e++)
        score[e] = part[e] + (x->choice_bias ? x->choice_bias[e] : 0);
    if (!plain && !chosen)
        choose(x, score, choice);
    weigh_scores(x, part, choice, weight);
}

/* Assigns the places: experts ascending, and within each expert its rows ascending. */
static void sort_places(const struct experts *x, struct routing *r, int m)
{
    const int n_pairs = m * x->n_used;
    memset(r->count, 0, (size_t)x->n_matrices * sizeof *r->count);
    for (int i = 0; i < n_pairs; i++)
        if (r->choice[i] >= 0)
            r->count[r->choice[i]]++;
    r->n_active = r->n_places = 0;
    for (int e = 0; e < x->n_matrices; e++) {
        if (!r->count[e])
            continue;
        r->active[r->n_active] = e;
        r->first[r->n_active++] = r->n_places;
        r->n_places += r->count[e];
        r->count[e] = r->n_places - r->count[e]; /* the expert's next place */
    }
    r->first[r->n_active] = r->n_places;
    for (int i = 0; i < n_pairs; i++) {
        r->place[i] = r->choice[i] < 0 ? -1 : r->count[r->choice[i]]++;
        if (r->place[i] >= 0)
            r->row[r->place[i]] = i / x->n_used;
    }
}

/* Merges those of a row's experts that share matrices: the first one gets the sum of the weights. */
static void merge_shared(const struct experts *x, int32_t *choice, float *weight)
{
    for (int j = 0; j < x->n_used; j++) {
        int first = 0;
        choice[j] /= x->share;
        while (choice[first] != choice[j])
            first++;
        if (first == j)
            continue;
        weight[first] += weight[j];
        choice[j] = -1;
    }
}

/* Removes the experts without matrices from a row's choice; returns the sum of the weights of those that return their
 * input. */
static float remove_idle(const struct experts *x, int32_t *choice, const float *weight)
{
    float sum = 0;
    for (int j = 0; j < x->n_used; j++) {
        if (choice[j] < x->n_matrices)
            continue;
        sum += x->zero_output ? 0 : weight[j];
        choice[j] = -1;
    }
    return sum;
}

/* The token by which a row's experts are looked up in the table; 0 for rows whose input is not a token. */
static int64_t token_of(const struct pp_cpu *c, const struct stage *s, int row)
{
    const int64_t token = batch_row(c, s, row)->token;
    return token >= 0 && token < s->experts->n_tokens ? token : 0;
}

void pp_cpu_route_row(const struct pp_cpu *c, const struct stage *s, int row)
{
    const struct experts *x = s->experts;
    const struct routing *r = &c->routing;
    int32_t *choice = r->choice + row * x->n_used;
    float *weight = r->weight + row * x->n_used;
    choose_experts(x, token_of(c, s, row), slot_row(c, s->router, row), choice, weight);
    for (int j = 0; x->scales && j < x->n_used; j++)
        if (choice[j] < x->n_matrices * x->share)
            weight[j] *= x->scales[choice[j]];
    if (x->share > 1)
        merge_shared(x, choice, weight);
    if (x->idle)
        r->idle_weight[row] = remove_idle(x, choice, weight);
}

void pp_cpu_route_places(struct pp_cpu *c, const struct stage *s, int m)
{
    const struct experts *x = s->experts;
    struct routing *r = &c->routing;
    sort_places(x, r, m);
    for (int i = 0; x->weighted_inputs && i < m * x->n_used; i++) {
        if (r->place[i] >= 0)
            r->input_weight[r->place[i]] = r->weight[i];
        r->weight[i] = 1;
    }
}
