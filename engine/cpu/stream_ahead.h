/* stream_ahead.h - software prefetching of weights, every byte of which is used once.
 *
 * What helps depends on the processor's own prefetchers:
 *
 * - Intel's follow a stream only to the end of its 4 KiB page and keep few lines of one page in flight. So while the
 *   lines of one span of eight pages are used in order, the lines of the next span are prefetched alternately from
 *   its eight pages: eight streams, and still each line once (PP_STREAM_PAGES). Measured on two cores of a Sapphire
 *   Rapids that only read: 24 GB/s without prefetching, 28 from 16 KiB ahead, 29, 33 and 35 with two, four and eight
 *   pages; 38 if each thread has eight streams to read.
 *   Alternatively nearby lines are prefetched (PP_WAY_NEAR): after the load of a line, the line 2 KiB ahead, in the
 *   same page or the next. Whole models on two cores with AVX-512, tokens/s with eight pages and with nearby lines:
 *   Granite Rapids, Q8_0 26.3 and 28.2, Q4_0 47.7 and 49.6; Emerald Rapids, 26 and 21, 47 and 36. On a virtual
 *   machine these two processors cannot be told apart, so passes are timed (stream_choice.h).
 *   Alternatively eight groups of 16 rows are read interleaved, two lines of each at a time, each prefetching the
 *   line 2 KiB ahead (PP_WAY_BESIDE, matmul_vnni_beside.h). Two cores of an Emerald Rapids that only read, medians
 *   of 45 runs: 34.0 GB/s, and 30.7 with eight pages. Variants: four lines of each group 33.7, one line 34.4, twelve
 *   groups 33.8, four groups 30.1; a whole block, eight lines, is no faster than pages.
 * - AMD's do well with lines prefetched early, into L2, and badly with many pages. One core of a Zen 4, one row of
 *   Q4_0: 11 GB/s without prefetching, 15 with eight pages, 19 from 6 KiB ahead, 27 from 16 KiB ahead. Another Zen 4
 *   is faster with 8 KiB (PP_STREAM_LESS_FAR) than with 16: kernels by themselves on two cores with AVX-512, medians
 *   of 80 runs, GB/s from 16 and 8 KiB ahead: Q6_K 41.3 and 43.7, Q4_K 39.7 and 41.7; a read test reaches 48.
 *   When that machine's memory is at its fastest, prefetching into L2 is no better than none, and bursts of eight
 *   lines delay loads. It is then best to prefetch line by line, 4 KiB ahead into L1 (PP_STREAM_LINES). Kernels by
 *   themselves, one row, 300 MB of weights in huge pages, best of 15 runs each, GB/s with eight lines from 8 KiB
 *   ahead, eight lines from 4 KiB ahead, and single lines from 4 KiB ahead: Q6_K 44, 45 and 53, Q4_K 50, 52 and 54,
 *   Q4_0 49, 48 and 53, Q8_0 43, 51 and 57; a read test reaches 56 to 62. Single lines from 3 and 6 KiB ahead: Q6_K
 *   51 and 47, Q4_0 49 and 55. When memory is slow, all of these reach its limit. Several rows, which compute longer
 *   for the same bytes, are slower with single lines: 4 rows of Q6_K 50 and 32, 8 rows of Q8_0 39 and 29. So are
 *   AVX2's kernels, which compute longer for a line, with all types except Q8_0: Q6_K 54 and 29. Passes try both.
 * - On a Zen 5, prefetching is best done later and into L1 (PP_STREAM_SOON). Kernels by themselves on two cores with
 *   AVX-512, one row, GB/s with 16 KiB ahead into L2 and 4 KiB ahead into L1: Q4_0 41.2 and 47.6, Q4_K 38.0 and
 *   44.2, Q6_K 39.5 and 43.4, Q8_0 36.2 and 41.0, Q2_K 22.9 and 39.8; a read test reaches 48 to 52. 3 and 5 KiB into
 *   L1, and 4 KiB into L2, lay between. On machines with faster memory, several rows are best with 6 KiB: GB/s with
 *   2, 4, 6 and 12 KiB, four rows of Q4_0 39.6, 45.5, 47.3 and 47.7, of Q4_K 36.0, 45.0, 47.7 and 48.7, eight rows
 *   of Q8_0 39.7, 51.1, 53.4 and 52.1. For one row 6 KiB makes no difference, or is slightly slower if memory is
 *   slow.
 * - A Zen 3's own prefetchers do best without help if they have several streams to follow: four groups of 16 rows
 *   are read interleaved, block by block, without prefetching (PP_WAY_BESIDE). Kernels by themselves with AVX2 on
 *   two cores, one row, medians of 31 to 41 runs, GB/s: Q8_0 26.4 with one group from 16 KiB ahead, 29.3 with two
 *   groups, 31.4 with four, 28.1 with four and prefetching; a read test reaches 31.5. One group and four groups:
 *   Q4_0 24.3 and 27.4 (read test 29.6), F16, with four rows interleaved, 25.9 and 26.6. K-quants are slower: Q4_K
 *   26.2 and 25.7, Q6_K 26.1 and 20.7. Passes with AVX2 try this in addition to the processor's default
 *   (stream_choice.h). */
#ifndef PP_CPU_STREAM_AHEAD_H
#define PP_CPU_STREAM_AHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/cpu/matmul.h"
#include "engine/cpu/pack.h"

/* The processor's default, chosen by its vendor and family before main() runs. */
extern enum pp_stream_way pp_stream_way;

/* How a product with m rows of these activations prefetches weights. */
static inline __attribute__((always_inline)) enum pp_stream_way stream_way_of(const struct pp_acts *x, int64_t m)
{
    return x->way == PP_WAY_SOON && m == 1    ? PP_STREAM_SOON
           : x->way == PP_WAY_LINES && m <= 2 ? PP_STREAM_LINES
           : x->way == PP_WAY_LESS_FAR        ? PP_STREAM_LESS_FAR
                                              : pp_stream_way;
}

enum { PP_SOON_AHEAD = 6144, PP_LINES_AHEAD = 4096 };

/* Call for each piece [p, p + bytes) of a stream once, in order. Prefetches eight lines whenever the stream enters the
 * next 512 bytes, which costs a handful of instructions; or line by line. Prefetching beyond the end of memory is
 * harmless. */
static inline __attribute__((always_inline)) void stream_ahead(const void *p, size_t bytes,
                                                               enum pp_stream_way how)
{
    enum { LINE = 64, PAGE = 4096, PAGES = 8, STEP = PAGES * LINE, SPAN = PAGES * PAGE };
    enum { FAR = 16384, LESS_FAR = 8192 };
    const uintptr_t end = (uintptr_t)p + bytes;
    if (how == PP_STREAM_LINES) {
        for (uintptr_t line = ((uintptr_t)p + LINE - 1) / LINE * LINE; line < end; line += LINE)
            __builtin_prefetch((const void *)(line + PP_LINES_AHEAD), 0, 3);
        return;
    }
    uintptr_t at = ((uintptr_t)p + STEP - 1) / STEP * STEP;
    for (; at < end; at += STEP) {
        if (how == PP_STREAM_PAGES) {
            uintptr_t next = at / SPAN * SPAN + SPAN + at % SPAN / PAGES;
            _Pragma("GCC unroll 8") for (int i = 0; i < PAGES; i++)
                __builtin_prefetch((const void *)(next + (uintptr_t)(i * PAGE)), 0, 3);
        } else if (how == PP_STREAM_SOON) {
            _Pragma("GCC unroll 8") for (int i = 0; i < PAGES; i++)
                __builtin_prefetch((const void *)(at + PP_SOON_AHEAD + (uintptr_t)(i * LINE)), 0, 3);
        } else {
            const uintptr_t far = how == PP_STREAM_LESS_FAR ? LESS_FAR : FAR;
            _Pragma("GCC unroll 8") for (int i = 0; i < PAGES; i++)
                __builtin_prefetch((const void *)(at + far + (uintptr_t)(i * LINE)), 0, 2);
        }
    }
}

/* The same for block b of a group of n blocks that stores all heads (scales), `head` bytes each, before all bodies,
 * `body` bytes each, both aligned to cache lines. Far prefetches are early enough if they advance by the average bytes
 * per block. Near prefetches would be late: the body in use is further on than this average position, by the bytes of
 * the heads that are not used yet, 4 KiB at the beginning of 4,096 columns of Q4_0. So they treat bodies and heads as
 * two streams. Two cores of a Zen 5, 4,096 columns, GB/s with one, four and eight rows: Q4_0 35.8, 33.9 and 23.3 as one
 * stream, 45.5, 45.2 and 27.5 as two; Q8_0 54.7, 37.0 and 30.9 as one, 53.1, 43.3 and 43.4 as two. */
static inline __attribute__((always_inline)) void stream_ahead_apart(const uint8_t *group, size_t head, size_t body,
                                                                     size_t n, size_t b, enum pp_stream_way how)
{
    enum { LINE = 64, HEADS_AHEAD = 16 /* blocks */ };
    if (how != PP_STREAM_SOON && how != PP_STREAM_LINES) {
        stream_ahead(group + (head + body) * b, head + body, how);
        return;
    }
    const size_t heads = (head * n + LINE - 1) / LINE * LINE;
    const size_t ahead = how == PP_STREAM_SOON ? PP_SOON_AHEAD : PP_LINES_AHEAD;
    const bool ends = (n - b) * body <= ahead; /* prefetch the next group's bodies then, behind its heads */
    stream_ahead(group + heads + body * b + (ends ? heads : 0), body, how);
    if (head * b % LINE < head) {
        const size_t at = b + HEADS_AHEAD;
        __builtin_prefetch(group + (at < n ? head * at : heads + body * n + head * (at - n)), 0, 3);
    }
}

/* The same for block b of a group of one of the types with heads and bodies. */
static inline __attribute__((always_inline)) void stream_blocks_ahead(uint32_t type, const uint8_t *group,
                                                                      int64_t n_cols, int64_t b,
                                                                      enum pp_stream_way how)
{
    const struct pp_pack_shape s = pp_pack_shape(type);
    const size_t n = (size_t)(n_cols / PP_ACT_BLOCK);
    if (s.block == PP_ACT_BLOCK) {
        stream_ahead_apart(group, (size_t)(PP_GROUP_ROWS * s.head), (size_t)(PP_GROUP_ROWS * s.body), n, (size_t)b,
                           how);
    } else { /* heads are few */
        const size_t pace = pp_pack_group_bytes(type, n_cols) / n;
        stream_ahead(group + pace * (size_t)b, pace, how);
    }
}

/* Prefetches the line `ahead` bytes after address `at`, but not before the vector `loaded` has been loaded: the
 * compiler would move a plain prefetch to the front of its basic block, where many of them together delay loads. 1, 3
 * and 4 KiB ahead made no difference. */
enum { PP_NEAR_AHEAD = 2048 };
#if defined(__x86_64__) && !defined(STREAM_NEAR)
#define STREAM_NEAR(loaded, at, ahead)                                                                                 \
    __asm__ volatile("prefetcht0 %1" : "+v"(loaded) : "m"(*(const char *)((uintptr_t)(at) + (ahead))))
#endif

/* Prefetches one line, if R weight rows of row_bytes each are read interleaved. Call once per line, `at` being its
 * offset in `row`. F16 weights are read at 33 GB/s on two cores of a Zen 4 if prefetched into L2, at 24 into L1. On a
 * Zen 5, GB/s (medians of nine runs, 2,048 to 5,632 columns) with one and with two activation rows: eight interleaved
 * rows, each prefetched 1 KiB ahead, 50 to 56 and 52 to 57; two rows, 4 KiB ahead, 41 to 50 and 39 to 44; eight rows
 * that prefetch the next eight, 45 to 49 and 43 to 50. Four rows, 2 KiB ahead, lie between. */
static inline __attribute__((always_inline)) void stream_line(const uint8_t *row, size_t at, size_t row_bytes,
                                                              const size_t R, enum pp_stream_way how)
{
    if (how == PP_STREAM_SOON) {
        const size_t next = at + 8192 / R;
        const uintptr_t line = (uintptr_t)row + (next < row_bytes ? next : next + (R - 1) * row_bytes);
        __builtin_prefetch((const void *)line, 0, 3);
        return;
    }
    const uintptr_t line = (uintptr_t)row + at + R * row_bytes;
    if (how == PP_STREAM_PAGES)
        __builtin_prefetch((const void *)line, 0, 3);
    else
        __builtin_prefetch((const void *)line, 0, 2);
}

#endif
