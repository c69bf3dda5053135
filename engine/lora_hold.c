/* lora_hold.c - A and B of an adapter, from the file's tensors to what the kernels read. Loading should be too short to
 * notice, so the values are read from the mapped file once and converted while they are in the cache. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/adapter_file.h"
#include "engine/adapter_join.h"
#include "engine/arch/arch.h"
#include "engine/base/mem.h"
#include "engine/lora.h"
#include "engine/model.h"
#include "engine/quant.h"

/* Parts of the work space. */
enum { HALF_A, HALF_B, ROW, QUANTS, SCALES, SUMS, ROWS, TRANSPOSED, ORDER };

/* A part of the work space of at least this size, aligned to 64 bytes; NULL: out of memory. */
static void *room_for(struct pp_lora_room *r, int part, size_t bytes)
{
    if (bytes > r->bytes[part]) {
        pp_free(r->parts[part]);
        r->parts[part] = pp_aligned(64, bytes);
        r->bytes[part] = r->parts[part] ? bytes : 0;
    }
    return r->parts[part];
}

void pp_lora_room_free(struct pp_lora_room *r)
{
    for (int i = 0; i < PP_LORA_ROOMS; i++)
        pp_free(r->parts[i]);
}

/* --- floats ---------------------------------------------------------------------------------------------------- */

typedef int32_t ints __attribute__((vector_size(16)));
enum { INTS = 4 };

/* *most: the largest of |x| and its old value; false: x holds NaN or infinity. Bit patterns are compared: without the
 * sign they order floats as integers, with infinity and NaN at the end. */
static bool find_largest(const float *x, int64_t n, float *most)
{
    enum { APART = 4 };
    const int32_t infinity = 0x7f800000;
    ints largest[APART] = {0};
    float rest[APART * INTS] = {0};
    for (int64_t i = 0; i < n; i += APART * INTS) {
        const bool whole = n - i >= APART * INTS;
        if (!whole)
            memcpy(rest, x + i, (size_t)(n - i) * sizeof *x);
        for (int k = 0; k < APART; k++) {
            ints bits;
            memcpy(&bits, (whole ? x + i : rest) + k * INTS, sizeof bits);
            bits &= INT32_MAX;
            const ints above = bits > largest[k];
            largest[k] = (bits & above) | (largest[k] & ~above);
        }
    }
    int32_t all;
    memcpy(&all, most, sizeof all);
    for (int k = 0; k < APART * INTS; k++)
        all = largest[k / INTS][k % INTS] > all ? largest[k / INTS][k % INTS] : all;
    memcpy(most, &all, sizeof *most);
    return all < infinity;
}

static void to_floats(uint32_t type, const uint8_t *from, int64_t n, float *to)
{
    if (type == PP_TYPE_F16)
        pp_cpu_ops(pp_isa_best())->widen(from, n, to);
    else
        pp_dequantize_row(type, from, to, n);
}

/* Reads n rows of a tensor: those that become rows r to r + n - 1 of the result. */
static void read_rows(const struct pp_tensor *t, const struct pp_adapter_columns *columns, pp_lora_order order,
                      int64_t r, int64_t n, float *to)
{
    const size_t row_bytes = pp_type_row_bytes(t->type, t->ne[0]);
    const uint8_t *data = t->data;
    const bool some = columns && columns->n;
    if (!order && !some) /* consecutive rows, without gaps */
        to_floats(t->type, data + (size_t)r * row_bytes, n * t->ne[0], to);
    for (int64_t i = 0; (order || some) && i < n; i++) {
        const uint8_t *row = data + (size_t)pp_lora_file_row(order, r + i) * row_bytes;
        if (some)
            pp_adapter_values(t->type, row, columns, to + i * columns->n);
        else
            to_floats(t->type, row, t->ne[0], to + i * t->ne[0]);
    }
}

/* Rows to read at a time, so that their values stay in the L1 cache. */
static int64_t rows_at_once(int64_t n)
{
    const int64_t floats = 4096;
    return n < floats ? floats / n : 1;
}

/* Values of a row, after columns are selected. */
static int64_t width_of(const struct pp_tensor *t, const struct pp_adapter_columns *columns)
{
    return columns && columns->n ? columns->n : t->ne[0];
}

/* n_out: rows of the result; order: where these are in the file; columns: those to read, or NULL: all. If transposed, t
 * holds columns of the result; row: [ne[0]], work space for that. */
static enum pp_code read_tensor(const struct pp_adapter *a, const struct pp_tensor *t,
                                const struct pp_adapter_columns *columns, bool transposed, int64_t n_out,
                                pp_lora_order order, float *row, float *out, float *most, struct pp_error *err)
{
    const int64_t n = width_of(t, columns), rows = transposed ? t->ne[1] : n_out;
    const int64_t most_rows = transposed ? 1 : rows_at_once(n);
    *most = 0;
    for (int64_t r = 0; r < rows; r += most_rows) {
        const int64_t n_rows = rows - r < most_rows ? rows - r : most_rows;
        float *to = transposed ? row : out + r * n;
        read_rows(t, columns, transposed ? NULL : order, r, n_rows, to);
        if (!find_largest(to, n_rows * n, most))
            return pp_fail(err, PP_ERR_FORMAT,
                           "adapter %s: %.200s contains NaN or infinity; the file is damaged: download it again",
                           a->path, t->name);
        for (int64_t i = 0; transposed && i < n_out; i++)
            out[i * rows + r] = row[pp_lora_file_row(order, i)];
    }
    return PP_OK;
}

/* Puts the columns of A [rank, n_in] into the model's order. row: [n_in], work space. */
static void move_columns(float *a, int64_t rank, int64_t n_in, pp_lora_order order, float *row)
{
    for (int64_t k = 0; k < rank; k++, a += n_in) {
        memcpy(row, a, (size_t)n_in * sizeof *row);
        for (int64_t i = 0; i < n_in; i++)
            a[i] = row[order[i]];
    }
}

enum pp_code pp_lora_read(const struct pp_adapter *a, const struct pp_adapter_target *t, int64_t n_out,
                          const struct pp_lora_orders *orders, struct pp_lora_room *room, struct pp_lora_halves *out,
                          struct pp_error *err)
{
    const struct pp_tensor *const tensors[2] = {&t->a, &t->b};
    const struct pp_adapter_columns *const columns[2] = {&t->a_columns, &t->b_columns};
    const bool transposed[2] = {t->a_transposed, t->b_transposed};
    enum pp_code code = PP_OK;
    for (int half = 0; half < 2 && !code; half++) {
        const struct pp_tensor *from = tensors[half];
        const size_t row = (size_t)width_of(from, columns[half]) * sizeof(float);
        const size_t all = row * (size_t)from->ne[1]; /* cannot overflow: it fits in a file */
        float *to = room_for(room, half ? HALF_B : HALF_A, all);
        float *one = transposed[half] ? room_for(room, ROW, row) : NULL;
        out->values[half] = to;
        code = to && (one || !transposed[half])
                   ? read_tensor(a, from, columns[half], transposed[half], half ? n_out : t->rank,
                                 half ? orders->outputs : NULL, one, to, &out->most[half], err)
                   : pp_fail_nomem(err, "an adapter");
        if (!code && !half && orders->inputs) {
            one = room_for(room, ROW, (size_t)t->n_in * sizeof *one);
            if (one)
                move_columns(to, t->rank, t->n_in, orders->inputs, one);
            else
                code = pp_fail_nomem(err, "an adapter");
        }
    }
    return code;
}

enum pp_code pp_lora_find_largest(const struct pp_adapter *a, const char *name, int64_t n_a, int64_t n_b,
                                  struct pp_lora_halves *halves, struct pp_error *err)
{
    halves->most[0] = halves->most[1] = 0;
    if (find_largest(halves->values[0], n_a, &halves->most[0]) &&
        find_largest(halves->values[1], n_b, &halves->most[1]))
        return PP_OK;
    return pp_fail(err, PP_ERR_FORMAT,
                   "adapter %s: its data for %.200s contains NaN or infinity; the file is damaged: download it again",
                   a->path, name);
}

bool pp_lora_halves_room(struct pp_lora_room *room, int64_t n_a, int64_t n_b, float *halves[2])
{
    halves[0] = room_for(room, HALF_A, (size_t)n_a * sizeof(float));
    halves[1] = room_for(room, HALF_B, (size_t)n_b * sizeof(float));
    return halves[0] && halves[1];
}

int32_t *pp_lora_order_room(struct pp_lora_room *room, int64_t n)
{
    return room_for(room, ORDER, (size_t)n * sizeof(int32_t));
}

enum pp_code pp_lora_floats(const struct pp_adapter *a, const struct pp_tensor *t, bool transposed, float **out,
                            struct pp_error *err)
{
    const size_t bytes = (size_t)t->ne[0] * sizeof **out;
    float *row = pp_malloc(bytes), most;
    *out = pp_malloc(bytes * (size_t)t->ne[1]);
    const enum pp_code code = *out && row ? read_tensor(a, t, NULL, transposed, t->ne[!transposed], NULL, row, *out,
                                                        &most, err)
                                          : pp_fail_nomem(err, "an adapter");
    pp_free(row);
    return code;
}

/* --- held forms ------------------------------------------------------------------------------------------------ */

void pp_lora_q8_row(const float *x, int64_t n, int8_t *q, float *d, int32_t *sum, uint8_t *to)
{
    pp_matmul_kernels(pp_isa_best())->quantize(x, n, false, q, d, sum);
    for (int64_t i = 0; i < n / PP_ACT_BLOCK; i++, to += sizeof(uint16_t) + PP_ACT_BLOCK) {
        const uint16_t scale = pp_f32_to_f16(d[i]);
        memcpy(to, &scale, sizeof scale);
        memcpy(to + sizeof scale, q + i * PP_ACT_BLOCK, PP_ACT_BLOCK);
    }
}

/* Quantises A to rows of Q8_0 and packs them. */
static bool pack_a(const float *a, int64_t rank, int64_t n_in, uint8_t *out, struct pp_lora_room *room)
{
    const size_t n_blocks = (size_t)(n_in / PP_ACT_BLOCK), row_bytes = pp_type_row_bytes(PP_TYPE_Q8_0, n_in);
    uint8_t *rows = room_for(room, ROWS, (size_t)rank * row_bytes);
    int8_t *q = room_for(room, QUANTS, (size_t)n_in);
    float *d = room_for(room, SCALES, n_blocks * sizeof *d);
    int32_t *sum = room_for(room, SUMS, n_blocks * sizeof *sum);
    if (!rows || !q || !d || !sum)
        return false;
    for (int64_t k = 0; k < rank; k++)
        pp_lora_q8_row(a + k * n_in, n_in, q, d, sum, rows + (size_t)k * row_bytes);
    pp_pack_rows(PP_TYPE_Q8_0, rows, rank, n_in, 0, rank, out);
    return true;
}

typedef float four __attribute__((vector_size(16)));

/* Transposes 4 x 4 values: to[k][r] = from[r][k]. */
static void transpose_four(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
    four x[4], y[4];
    for (int r = 0; r < 4; r++)
        memcpy(&x[r], from + r * from_stride, sizeof x[r]);
    y[0] = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    y[1] = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    y[2] = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    y[3] = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(y[0], y[2], 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(y[0], y[2], 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(y[1], y[3], 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(y[1], y[3], 2, 3, 6, 7);
    for (int k = 0; k < 4; k++)
        memcpy(to + k * to_stride, &x[k], sizeof x[k]);
}

/* Transposes a block's rows of B, padded with zeros: [4][rank][16]. */
static void transpose_block(const float *b, int64_t n_rows, int rank, float *out)
{
    enum { WIDTH = PP_LOW_RANK_ROWS / 4 };
    for (int r = 0; r < PP_LOW_RANK_ROWS; r += 4) {
        float *to = out + r / WIDTH * rank * WIDTH + r % WIDTH;
        int k = 0;
        for (; r + 4 <= n_rows && k + 4 <= rank; k += 4)
            transpose_four(b + (int64_t)r * rank + k, rank, to + k * WIDTH, WIDTH);
        for (; k < rank; k++)
            for (int i = 0; i < 4; i++)
                to[k * WIDTH + i] = r + i < n_rows ? b[(int64_t)(r + i) * rank + k] : 0;
    }
}

/* Quantises a row of B to integers. Returns its scale, or 0 if it is too small for float16. */
static float whole_row(const float *b, int rank, float to_unit, int8_t *q)
{
    const float half_of_least = 0x1p-25f; /* half of the smallest float16 */
    const float round = 12582912.0f; /* 1.5 * 2^23: rounds to nearest even */
    float largest = 0;
    for (int k = 0; k < rank; k++)
        largest = fabsf(b[k]) > largest ? fabsf(b[k]) : largest;
    const float d = largest * to_unit / 127.0f, inverse = d > half_of_least ? to_unit / d : 0.0f;
    for (int k = 0; k < rank; k++)
        q[k] = (int8_t)((b[k] * inverse + round) - round);
    return inverse > 0.0f ? d : 0.0f;
}

/* A block's rows of B in Q8_0 (ops.h). q: [rank + 3], work space whose last three values are 0. */
static void whole_block(const float *b, int64_t n_rows, int rank, float to_unit, int8_t *q, uint8_t *to)
{
    enum { OFFSET = 128 };
    float d[PP_LOW_RANK_ROWS] = {0};
    uint8_t *values = to + PP_LOW_RANK_ROWS * sizeof(uint16_t);
    memset(values, OFFSET, pp_low_rank_block_bytes(PP_TYPE_Q8_0, rank) - sizeof(uint16_t[PP_LOW_RANK_ROWS]));
    for (int r = 0; r < PP_LOW_RANK_ROWS && r < n_rows; r++) {
        d[r] = whole_row(b + (int64_t)r * rank, rank, to_unit, q);
        for (int k = 0; k < rank; k += 4) {
            uint32_t bytes;
            memcpy(&bytes, q + k, sizeof bytes);
            bytes ^= OFFSET * 0x01010101u; /* adds 128 to each byte, as none is -128 */
            memcpy(values + (size_t)k * PP_LOW_RANK_ROWS + 4 * r, &bytes, sizeof bytes);
        }
    }
    pp_floats_to_f16(d, (uint16_t *)(void *)to, PP_LOW_RANK_ROWS);
}

enum pp_code pp_lora_lay_out_b(const float *b, int64_t n_out, struct pp_low_rank *out, uint8_t *to, float most,
                               struct pp_lora_room *room, struct pp_error *err)
{
    const int rank = out->rank;
    const size_t block_bytes = pp_low_rank_block_bytes(out->type, rank), n = (size_t)rank * PP_LOW_RANK_ROWS;
    float *transposed = room_for(room, TRANSPOSED, n * sizeof *transposed);
    int8_t *q = room_for(room, QUANTS, (size_t)rank + 3);
    int exponent = 0;
    if (!transposed || !q)
        return pp_fail_nomem(err, "an adapter");
    frexpf(most, &exponent); /* scales of rows are float16, so small values get a common exponent */
    out->unit = ldexpf(1.0f, exponent > -100 ? exponent : -100);
    out->data = to;
    memset(q + rank, 0, 3);
    for (int64_t r = 0; r < n_out; r += PP_LOW_RANK_ROWS, to += block_bytes) {
        if (out->type == PP_TYPE_Q8_0) {
            whole_block(b + r * rank, n_out - r, rank, 1.0f / out->unit, q, to);
            continue;
        }
        transpose_block(b + r * rank, n_out - r, rank, transposed);
        if (out->type == PP_TYPE_F32)
            memcpy(to, transposed, block_bytes);
        else
            pp_floats_to_f16(transposed, (uint16_t *)(void *)to, (int64_t)n);
    }
    return PP_OK;
}

static size_t half_bytes(const struct pp_tensor *w, int rank, uint32_t type, int half)
{
    const int64_t n_blocks = (w->ne[1] + PP_LOW_RANK_ROWS - 1) / PP_LOW_RANK_ROWS;
    return half                   ? (size_t)n_blocks * pp_low_rank_block_bytes(type, rank)
           : type == PP_TYPE_Q8_0 ? pp_pack_bytes(type, rank, w->ne[0])
                                  : (size_t)rank * pp_type_row_bytes(type, w->ne[0]);
}

size_t pp_lora_held_bytes(const struct pp_tensor *w, int rank, uint32_t type, int half)
{
    return (half_bytes(w, rank, type, half) + 63) / 64 * 64;
}

/* Large arenas use huge pages: fewer faults while loading, and each token reads all of it. These are mapped separately,
 * since the allocator may return memory that was used before, in small pages, and that ends within a page. */
enum pp_code pp_lora_arena_new(struct pp_adapter *a, size_t bytes, struct pp_error *err)
{
    const size_t large = PP_LARGE_PAGE;
    if (bytes < large) {
        a->arena = pp_aligned(64, bytes);
        return a->arena ? PP_OK : pp_fail_nomem(err, "an adapter");
    }
    const size_t whole = (bytes + large - 1) / large * large, mapped = whole + large;
    uint8_t *room = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return pp_fail_nomem(err, "an adapter");
    a->mapping = room;
    a->mapped_bytes = mapped;
    a->arena = room + (0 - (uintptr_t)room) % large;
    madvise(a->arena, whole, MADV_HUGEPAGE);
    return PP_OK;
}

void pp_lora_arena_free(struct pp_adapter *a)
{
    if (a->mapping)
        munmap(a->mapping, a->mapped_bytes);
    else
        pp_free(a->arena);
}

enum pp_code pp_lora_hold(struct pp_adapter *a, int linear, uint32_t type, const struct pp_lora_halves *from,
                          struct pp_lora_room *room, struct pp_error *err)
{
    const struct pp_tensor *w = pp_plan_target(&a->model->plan, linear).w;
    struct pp_lora_target *t = &a->targets[linear];
    const float *down = from->values[0];
    const int64_t n_in = w->ne[0];
    t->a_bytes = half_bytes(w, t->rank, type, 0);
    t->b_bytes = half_bytes(w, t->rank, type, 1);
    t->a_data = a->arena + t->arena_at[0];
    t->b_data = a->arena + t->arena_at[1];
    if (type == PP_TYPE_Q8_0 && !pack_a(down, t->rank, n_in, t->a_data, room))
        return pp_fail_nomem(err, "an adapter");
    if (type == PP_TYPE_F16)
        pp_floats_to_f16(down, t->a_data, t->rank * n_in);
    else if (type == PP_TYPE_F32)
        memcpy(t->a_data, down, t->a_bytes);
    t->a = (struct pp_matrix){.type = type, .n_rows = t->rank, .n_cols = n_in, .data = t->a_data, .alone = true};
    t->b = (struct pp_low_rank){.type = type, .rank = t->rank};
    return pp_lora_lay_out_b(from->values[1], w->ne[1], &t->b, t->b_data, from->most[1], room, err);
}
