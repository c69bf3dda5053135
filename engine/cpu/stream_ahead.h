/* stream_ahead.h - software prefetching of weights, every byte of which is used once.
 *
 * What helps depends on the processor's own prefetchers:
 *
 * - Intel's follow a stream only to the end of its 4 KiB page and keep few lines of one page in flight. So while the
 *   lines of one span of eight pages are used in order, the lines of the next span are prefetched from its eight pages
 *   in turn: eight streams, and still each line once. Measured on two cores of a Sapphire Rapids, reading alone:
 *   24 GB/s without, 28 from 16 KiB ahead, 29, 33 and 35 with two, four and eight pages, of 38 with eight streams per
 *   thread.
 *   Or near by: each line 2 KiB ahead, within its page or the next, after the load of another. Whole models on two
 *   cores with AVX-512, tokens/s with eight pages and near by: on a Granite Rapids Q8_0 26.3 and 28.2, Q4_0 47.7 and
 *   49.6, on an Emerald Rapids 26 and 21, 47 and 36. A virtual machine does not let one tell these two apart, so passes
 *   are timed (stream_choice.h).
 *   Or eight groups of 16 rows side by side, two lines of each in turn, each prefetching the one 2 KiB ahead
 *   (matmul_vnni_beside.h): reading alone on two cores of an Emerald Rapids, medians of 45 turns, 34.0 GB/s where eight
 *   pages give 30.7; four lines of each 33.7, one line 34.4, twelve groups 33.8, four 30.1; a whole block, eight lines,
 *   no more than pages.
 * - AMD's do well with lines prefetched early, into L2, and badly with many pages. Measured on one core of a Zen 4, one
 *   row of Q4_0: 11 GB/s without, 15 with eight pages, 19 from 6 KiB ahead, 27 from 16 KiB ahead. Another Zen 4 is
 *   faster from 8 KiB ahead, kernels alone on two cores with AVX-512, medians of 80 turns, GB/s: Q6_K 41.3 and 43.7,
 *   Q4_K 39.7 and 41.7, of 48 in a read test. Where its memory is at its fastest, prefetching into L2 helps no more
 *   than none, and bursts of eight lines delay loads: there each line is prefetched by itself, 4 KiB ahead, into L1.
 *   Kernels alone, one row, 300 MB of weights in huge pages, best of 15 turns of each, GB/s, from 8 KiB ahead, eight
 *   lines and one line from 4 KiB ahead: Q6_K 44, 45 and 53, Q4_K 50, 52 and 54, Q4_0 49, 48 and 53, Q8_0 43, 51 and
 *   57, of 56 to 62 in a read test; from 3 and 6 KiB ahead Q6_K 51 and 47, Q4_0 49 and 55. Where memory is slow all of
 *   these reach its limit. Several rows, which take longer for the same bytes, lose by it: 4 rows of Q6_K 50 and 32,
 *   8 rows of Q8_0 39 and 29. AVX2's kernels, which compute longer for a line, lose with all types but Q8_0: Q6_K 54
 *   and 29. Passes try both.
 * - A Zen 5 wants it later and into L1. Kernels alone on two cores with AVX-512, one row, 16 KiB ahead into L2 and
 *   4 KiB ahead into L1, GB/s: Q4_0 41.2 and 47.6, Q4_K 38.0 and 44.2, Q6_K 39.5 and 43.4, Q8_0 36.2 and 41.0, Q2_K
 *   22.9 and 39.8, of 48 to 52 in a read test; 3 and 5 KiB, and 4 KiB into L2, lay between. Where its memory is faster,
 *   several rows want it from 6 KiB ahead: 2, 4, 6 and 12 KiB, four rows of Q4_0 39.6, 45.5, 47.3 and 47.7, of Q4_K
 *   36.0, 45.0, 47.7 and 48.7, eight of Q8_0 39.7, 51.1, 53.4 and 52.1; to one row it makes no difference, or where
 *   memory is slow it loses a little.
 * - A Zen 3's own prefetchers are best left alone, if they have several streams to follow: four groups of 16 rows side
 *   by side, block by block, without prefetches. Kernels alone with AVX2 on two cores, one row, medians of 31 to 41
 *   turns, GB/s: Q8_0 26.4 with one group from 16 KiB ahead, 29.3 with two, 31.4 with four, of 31.5 in a read test;
 *   28.1 with four and prefetches. Q4_0 24.3 and 27.4 of 29.6, F16 (four rows side by side) 25.9 and 26.6. K-quants
 *   lose: Q4_K 26.2 and 25.7, Q6_K 26.1 and 20.7. It is what passes with AVX2 try besides the processor's default
 *   (stream_choice.h). */
#ifndef PP_CPU_STREAM_AHEAD_H
#define PP_CPU_STREAM_AHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/cpu/matmul.h"
#include "engine/cpu/pack.h"

/* The processor's default; set before main, by its maker and family. */
extern enum pp_stream_way pp_stream_way;

/* How products with m of these activation rows prefetch. */
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

/* The same for block b of a group of n blocks, whose heads, `head` bytes each, precede the bodies of `body` bytes, both
 * cache-line aligned. Far prefetches are early enough if they advance by the average bytes per block. Near ones would
 * come late: the bodies in use are ahead of that pace by the heads that are left, 4 KiB at the beginning of 4,096
 * columns of Q4_0. So they follow bodies and heads as two streams. Two cores of a Zen 5, 4,096 columns, GB/s with one,
 * four and eight rows: Q4_0 35.8, 33.9 and 23.3 as one stream, 45.5, 45.2 and 27.5 as two; Q8_0 54.7, 37.0 and 30.9,
 * 53.1, 43.3 and 43.4. */
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

/* Prefetches one line where R rows of row_bytes are read side by side; call once per line, `at` being its offset in
 * `row`. As above: into L2, F16 weights come at 33 GB/s on two cores of a Zen 4, into L1 at 24. On a Zen 5 eight rows
 * side by side, each prefetched 1 KiB ahead, come at 50 to 56 GB/s (medians of nine turns, 2,048 to 5,632 columns), two
 * rows from 4 KiB ahead at 41 to 50, eight prefetching the next eight at 45 to 49; with two activation rows 52 to 57,
 * 39 to 44 and 43 to 50. Four rows from 2 KiB ahead lie between. */
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
