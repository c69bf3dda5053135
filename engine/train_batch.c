/* train_batch.c - the examples of a pass as rows, concatenated; and random orders of examples. */
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/train_int.h"

/* splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators), its i-th output. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

uint64_t pp_train_random(uint64_t seed, uint64_t stream, uint64_t i)
{
    return mix(mix(mix(seed) ^ stream) + i * 0x9E3779B97F4A7C15u);
}

void pp_train_shuffle(uint64_t seed, uint64_t stream, uint32_t *order, size_t n)
{
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)(pp_train_random(seed, stream, i) % i);
        uint32_t moved = order[j];
        order[j] = order[i - 1];
        order[i - 1] = moved;
    }
}

void pp_train_batch_clear(struct pp_train_batch *b)
{
    b->n_rows = b->n_seqs = b->n_learnt = 0;
    b->seq_first[0] = 0;
}

void pp_train_batch_add(struct pp_train_batch *b, const struct pp_train_data *d, const struct pp_example *e)
{
    const int32_t *tokens = d->tokens + e->first;
    const uint8_t *learnt = d->learnt + e->first;
    for (int32_t i = 0; i < e->n; i++) {
        int r = b->n_rows + i;
        bool wanted = i + 1 < e->n && learnt[i + 1];
        b->tokens[r] = tokens[i];
        b->pos[r] = i;
        b->target[r] = wanted ? tokens[i + 1] : -1;
        if (wanted)
            b->learnt[b->n_learnt++] = r;
    }
    b->n_rows += e->n;
    b->seq_first[++b->n_seqs] = b->n_rows;
}

static int longest_first(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

size_t pp_train_max_rows(const struct pp_train_data *d, int batch)
{
    size_t rows = 0;
    int32_t *lengths = pp_malloc((d->n + 1) * sizeof *lengths);
    if (!lengths)
        return d->info.longest * (size_t)batch; /* as if all were as long as the longest */
    for (size_t i = 0; i < d->n; i++)
        lengths[i] = d->examples[i].n;
    qsort(lengths, d->n, sizeof *lengths, longest_first);
    for (size_t i = 0; i < d->n && i < (size_t)batch; i++)
        rows += (size_t)lengths[i];
    pp_free(lengths);
    return rows;
}
