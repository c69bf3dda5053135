/* read_test.c - how fast this machine reads memory: the limit to which decode is compared.
 *
 * Threads take pieces of a buffer that no cache holds, and sum its words. The ways differ in how many streams a thread
 * reads at a time, and whether it prefetches; which is best depends on the machine, and the limit is the best of
 * all. */
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/memory.h"
#include "engine/base/topology.h"
#include "engine/bench.h"
#include "engine/pool.h"

enum { PIECE = 1 << 20, LINE = 64, AHEAD = 2048 };

typedef uint64_t words __attribute__((vector_size(32)));
typedef uint64_t piece_fn(const uint8_t *p, int n_streams, int ahead);

struct pp_read_test {
    struct pp_pool *pool;
    uint8_t *data;          /* [n_pieces, PIECE], mapped */
    int n_pieces;
    piece_fn *read;
    double best;            /* bytes per second */
    /* of the current way */
    int n_streams, ahead;
    atomic_uint_fast64_t sum; /* keeps the compiler from dropping the reads */
};

/* Compiled once for every CPU and once for AVX2. */
#define READ_PIECE(name, attribute)                                                                                    \
    attribute static uint64_t name(const uint8_t *p, int n_streams, int ahead)                                         \
    {                                                                                                                  \
        words sum[4] = {{0}};                                                                                          \
        size_t part = (size_t)(PIECE / n_streams);                                                                     \
        for (size_t at = 0; at < part; at += 2 * LINE)                                                                 \
            for (int s = 0; s < n_streams; s++) {                                                                      \
                const uint8_t *from = p + (size_t)s * part + at;                                                       \
                const words *w = (const words *)__builtin_assume_aligned(from, LINE);                                  \
                if (ahead) {                                                                                           \
                    __builtin_prefetch(from + ahead);                                                                  \
                    __builtin_prefetch(from + ahead + LINE);                                                           \
                }                                                                                                      \
                for (int i = 0; i < 4; i++)                                                                            \
                    sum[i] += w[i];                                                                                    \
            }                                                                                                          \
        sum[0] += sum[1] + sum[2] + sum[3];                                                                            \
        return sum[0][0] + sum[0][1] + sum[0][2] + sum[0][3];                                                          \
    }

READ_PIECE(read_piece_plain, )
#if defined(__x86_64__)
READ_PIECE(read_piece_avx2, __attribute__((target("avx2"))))
#endif

static piece_fn *best_reader(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return read_piece_avx2;
#endif
    return read_piece_plain;
}

static void read_item(void *arg, int part, int item, int thread)
{
    struct pp_read_test *t = arg;
    (void)part, (void)thread;
    atomic_fetch_add_explicit(&t->sum, t->read(t->data + (size_t)item * PIECE, t->n_streams, t->ahead),
                              memory_order_relaxed);
}

static void touch_item(void *arg, int part, int item, int thread)
{
    struct pp_read_test *t = arg;
    (void)part, (void)thread;
    memset(t->data + (size_t)item * PIECE, item | 1, PIECE);
}

size_t pp_read_test_bytes(void)
{
    const size_t least = (size_t)384 << 20;
    struct pp_topology t;
    pp_topology_read(NULL, NULL, &t);
    const uint64_t wanted = 2 * (uint64_t)pp_topology_cache_bytes(NULL, &t), most = pp_memory_free() / 4;
    const uint64_t bytes = wanted < least ? least : wanted;
    return (size_t)(bytes < most ? bytes : most);
}

enum pp_code pp_read_test_new(int n_threads, size_t bytes, struct pp_read_test **out, struct pp_error *err)
{
    *out = NULL;
    struct pp_read_test *t = pp_calloc(1, sizeof *t);
    if (!t)
        return pp_fail_nomem(err, "the read test");
    t->n_pieces = bytes / PIECE > 4096 ? 4096 : bytes < PIECE ? 1 : (int)(bytes / PIECE);
    t->read = best_reader();
    /* a page after the last piece for prefetches */
    t->data = mmap(NULL, (size_t)t->n_pieces * PIECE + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                   0);
    if (t->data == MAP_FAILED) {
        t->data = NULL;
        pp_read_test_free(t);
        return pp_fail_nomem(err, "the read test");
    }
    madvise(t->data, (size_t)t->n_pieces * PIECE, MADV_HUGEPAGE); /* if possible: the best case counts */
    enum pp_code code = pp_pool_new(n_threads, &t->pool, err);
    if (code) {
        pp_read_test_free(t);
        return code;
    }
    pp_pool_run(t->pool, touch_item, t, &t->n_pieces, 1);
    *out = t;
    return PP_OK;
}

void pp_read_test_free(struct pp_read_test *t)
{
    if (!t)
        return;
    pp_pool_free(t->pool);
    if (t->data)
        munmap(t->data, (size_t)t->n_pieces * PIECE + 4096);
    pp_free(t);
}

double pp_read_test_run(struct pp_read_test *t)
{
    for (int way = 0; way < 8; way++) {
        t->n_streams = 1 << way / 2;
        t->ahead = way % 2 ? AHEAD : 0;
        uint64_t start = pp_now_ns();
        pp_pool_run(t->pool, read_item, t, &t->n_pieces, 1);
        uint64_t ns = pp_now_ns() - start;
        double rate = (double)t->n_pieces * PIECE * 1e9 / (double)(ns ? ns : 1);
        if (rate > t->best)
            t->best = rate;
    }
    return t->best;
}
