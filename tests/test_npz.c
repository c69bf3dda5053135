/* test_npz.c - MLX's first format of adapters: arrays in a zip archive, as Python and MLX write them and as they are
 * when damaged or made to harm. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/adapter_file.h"
#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/lora.h"
#include "engine/npz.h"
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/adapter_run.h"
#include "tests/support.h"

/* --- archives -------------------------------------------------------------------------------------------------- */

/* An archive while it is written. */
struct zip {
    struct pp_buf bytes, list;
    int n;
};

/* What is wrong with, or special about, a member. */
struct oddity {
    int method, flags;
    bool crc, overlap, beyond, other_name, big, larger;
};

static void put(struct pp_buf *b, uint64_t value, int n)
{
    for (int i = 0; i < n; i++)
        pp_buf_char(b, (char)(uint8_t)(i < 8 ? value >> 8 * i : 0));
}

/* The checksum by its definition, the remainder of a division of polynomials. */
static uint32_t checksum(const uint8_t *data, size_t n)
{
    uint32_t rest = UINT32_MAX;
    for (size_t i = 0; i < 8 * n; i++) {
        const uint32_t bit = (rest ^ (uint32_t)data[i / 8] >> i % 8) & 1;
        rest = rest >> 1 ^ (bit ? 0xedb88320u : 0);
    }
    return ~rest;
}

/* Like Python's zipfile with force_zip64: the member's own header has no sizes but an extra field with them. */
static void add_member(struct zip *z, const char *name, const struct pp_buf *data, const struct oddity *odd)
{
    const size_t at = odd->overlap ? 0 : z->bytes.len, n = strlen(name);
    const uint32_t crc = checksum((const uint8_t *)data->data, data->len) + odd->crc;
    const uint64_t size = odd->big ? UINT32_MAX : data->len + (odd->beyond ? 100000 : 0);
    put(&z->bytes, 0x04034b50, 4);
    put(&z->bytes, 45, 2);
    put(&z->bytes, 0, 2 + 2 + 4);
    put(&z->bytes, crc, 4);
    put(&z->bytes, UINT64_MAX, 8);
    put(&z->bytes, n, 2);
    put(&z->bytes, 20, 2);
    pp_buf_str(&z->bytes, name);
    if (odd->other_name)
        z->bytes.data[z->bytes.len - 1] ^= 1;
    put(&z->bytes, 1, 2);
    put(&z->bytes, 16, 2);
    put(&z->bytes, data->len, 8);
    put(&z->bytes, data->len, 8);
    pp_buf_add(&z->bytes, data->data, data->len);
    put(&z->list, 0x02014b50, 4);
    put(&z->list, 45 | 45 << 16, 4);
    put(&z->list, (uint64_t)odd->flags, 2);
    put(&z->list, (uint64_t)odd->method, 2);
    put(&z->list, 0, 4);
    put(&z->list, crc, 4);
    put(&z->list, size + odd->larger, 4);
    put(&z->list, size, 4);
    put(&z->list, n, 2);
    put(&z->list, 0, 2 + 2 + 2 + 2 + 4);
    put(&z->list, at, 4);
    pp_buf_str(&z->list, name);
    z->n++;
}

/* An array as MLX writes it, with the spaces that it puts in its header. */
static struct pp_buf array_of(const char *type, const char *order, const char *shape, const void *data, size_t n)
{
    struct pp_buf text = {0}, b = {0};
    pp_buf_fmt(&text, "{'descr': '%s', 'fortran_order': %s, 'shape': (%s)}", type, order, shape);
    while ((text.len + 11) % 16)
        pp_buf_char(&text, ' ');
    pp_buf_char(&text, '\n');
    pp_buf_str(&b, "\x93NUMPY\x01");
    pp_buf_char(&b, 0);
    put(&b, text.len, 2);
    pp_buf_add(&b, text.data, text.len);
    pp_buf_add(&b, data, n);
    pp_buf_free(&text);
    return b;
}

static const struct oddity plain = {0};

static void add_array(struct zip *z, const char *name, const char *type, const char *order, const char *shape,
                      const void *data, size_t n, const struct oddity *odd)
{
    struct pp_buf b = array_of(type, order, shape, data, n);
    add_member(z, name, &b, odd);
    pp_buf_free(&b);
}

/* Appends the list and the record at the end. */
static void end_zip(struct zip *z, int n, int64_t moved, const char *comment)
{
    const size_t at = z->bytes.len;
    pp_buf_add(&z->bytes, z->list.data, z->list.len);
    put(&z->bytes, 0x06054b50, 4);
    put(&z->bytes, 0, 4);
    put(&z->bytes, (uint64_t)n, 2);
    put(&z->bytes, (uint64_t)n, 2);
    put(&z->bytes, z->list.len, 4);
    put(&z->bytes, (uint64_t)((int64_t)at + moved), 4);
    put(&z->bytes, strlen(comment), 2);
    pp_buf_str(&z->bytes, comment);
    pp_buf_free(&z->list);
}

static const char *write_bytes(const void *data, size_t n)
{
    const char *path = fresh_path("arrays.npz");
    struct pp_error err;
    assert_ok(pp_write_file(path, data, n, 0600, &err), err);
    return path;
}

static const char *write_zip(struct zip *z, const char *comment)
{
    end_zip(z, z->n, 0, comment);
    const char *path = write_bytes(z->bytes.data, z->bytes.len);
    pp_buf_free(&z->bytes);
    return path;
}

static const float six[6] = {1, -2, 0.5f, 4, 1024, -0.25f};

/* --- reading --------------------------------------------------------------------------------------------------- */

static void values(const struct pp_safetensors *s, const char *name, int64_t rows, int64_t cols, const float *expected)
{
    const struct pp_tensor *t = pp_safetensors_find(s, name);
    float row[8];
    assert_non_null(t);
    assert_int_equal(t->ne[0], cols);
    assert_int_equal(t->ne[1], rows);
    for (int64_t r = 0; r < rows; r++) {
        pp_dequantize_row(t->type, (const uint8_t *)t->data + (size_t)r * pp_type_row_bytes(t->type, cols), row, cols);
        for (int64_t i = 0; i < cols; i++)
            assert_true(row[i] == expected[r * cols + i]);
    }
}

/* All types, both orders of the values, one and two dimensions, and headers as NumPy writes them. */
static void arrays(void **state)
{
    const uint16_t halves[6] = {0x3c00, 0xc000, 0x3800, 0x4400, 0x6400, 0xb400};
    const uint16_t brains[6] = {0x3f80, 0xc000, 0x3f00, 0x4080, 0x4480, 0xbe80};
    const float turned[6] = {1, 4, -2, 1024, 0.5f, -0.25f};
    static const char *const comments[] = {"", "made by hand: PK\x05\x06"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct zip z = {0};
        struct pp_buf image = {0};
        struct pp_safetensors *s;
        struct pp_error err;
        add_array(&z, "a.lora_a.npy", "<f4", "False", "2, 3, ", six, sizeof six, &plain);
        add_array(&z, "b.npy", "<f2", "False", "2, 3", halves, sizeof halves, &plain);
        add_array(&z, "c.npy", "<V2", "False", "2, 3, ", brains, sizeof brains, &plain);
        add_array(&z, "d.npy", "<f4", "True", "2, 3, ", turned, sizeof turned, &plain);
        add_array(&z, "e.npy", "<f4", "True", "6, ", six, sizeof six, &plain);
        const char *path = write_zip(&z, comments[i]);
        assert_ok(pp_npz_read(path, &image, &err), err);
        assert_ok(pp_safetensors_open_memory(image.data, image.len, path, &s, &err), err);
        assert_int_equal(pp_safetensors_n(s), 5);
        values(s, "a.lora_a", 2, 3, six);
        values(s, "b", 2, 3, six);
        values(s, "c", 2, 3, six);
        values(s, "d", 2, 3, six);
        values(s, "e", 1, 6, six);
        pp_safetensors_close(s);
        pp_buf_free(&image);
    }
}

static void refuses(const char *path, enum pp_code code, const char *words)
{
    struct pp_buf image = {0};
    struct pp_error err = {0};
    const enum pp_code got = pp_npz_read(path, &image, &err);
    if (got != code || !strstr(err.text, words))
        fail_msg("code %d, \"%s\": not %d, \"%s\"", (int)got, err.text, (int)code, words);
    pp_buf_free(&image);
}

static void refuses_member(const struct oddity *odd, enum pp_code code, const char *words)
{
    struct zip z = {0};
    add_array(&z, "first.npy", "<f4", "False", "2, 3", six, sizeof six, &plain);
    add_array(&z, "first.npy" + (odd->overlap ? 0 : 1), "<f4", "False", "2, 3", six, sizeof six, odd);
    refuses(write_zip(&z, ""), code, words);
}

static void refuses_array(const char *type, const char *order, const char *shape, enum pp_code code, const char *words)
{
    struct zip z = {0};
    add_array(&z, "first.npy", type, order, shape, six, sizeof six, &plain);
    refuses(write_zip(&z, ""), code, words);
}

static void hostile_members(void **state)
{
    (void)state;
    refuses_member(&(struct oddity){.method = 8}, PP_ERR_UNSUPPORTED, "irst is compressed or encrypted; save the file");
    refuses_member(&(struct oddity){.flags = 1}, PP_ERR_UNSUPPORTED, "irst is compressed or encrypted");
    refuses_member(&(struct oddity){.big = true}, PP_ERR_UNSUPPORTED, "is stored in the format for more than 4 GB");
    refuses_member(&(struct oddity){.crc = true}, PP_ERR_FORMAT, "irst does not match its checksum");
    refuses_member(&(struct oddity){.overlap = true}, PP_ERR_FORMAT, "members overlap");
    refuses_member(&(struct oddity){.beyond = true}, PP_ERR_FORMAT, "damaged or truncated");
    refuses_member(&(struct oddity){.other_name = true}, PP_ERR_FORMAT, "damaged or truncated");
    refuses_member(&(struct oddity){.larger = true}, PP_ERR_FORMAT, "damaged or truncated");
    refuses_array("<f8", "False", "3", PP_ERR_UNSUPPORTED, "first is not F32, F16 or BF16");
    refuses_array(">f4", "False", "2, 3", PP_ERR_UNSUPPORTED, "first is not F32, F16 or BF16");
    refuses_array("<f4", "True", "1, 2, 3", PP_ERR_UNSUPPORTED, "first has 3 dimensions in Fortran's order");
    static const char *const shapes[] = {"2, 4", "", "-2, -3", "6, 1, 1, 1, 1", "2, 3, 0", "4294967302, 3",
                                         "0, 18446744073709551615", "18446744073709551617, 6", "x", "2 3 ,,("};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        refuses_array("<f4", "False", shapes[i], PP_ERR_FORMAT, "first has a shape that does not match its size");
    refuses_array("<f4", "Maybe', 'shape': (2", "9", PP_ERR_FORMAT, "first has a shape");
    struct zip z = {0};
    struct pp_buf text = {0};
    pp_buf_str(&text, "no array");
    add_member(&z, "notes.txt", &text, &plain);
    refuses(write_zip(&z, ""), PP_ERR_FORMAT, "a member that is not an array");
    z = (struct zip){0};
    add_member(&z, "notes.npy", &text, &plain);
    refuses(write_zip(&z, ""), PP_ERR_FORMAT, "notes is not an array in NumPy's format");
    pp_buf_free(&text);
}

static void hostile_ends(void **state)
{
    struct zip whole = {0};
    (void)state;
    add_array(&whole, "first.npy", "<f4", "False", "2, 3", six, sizeof six, &plain);
    struct pp_buf members = {0}, list = {0};
    pp_buf_add(&members, whole.bytes.data, whole.bytes.len);
    pp_buf_add(&list, whole.list.data, whole.list.len);
    end_zip(&whole, 1, 0, "");
    for (size_t n = 0; n < whole.bytes.len; n++)
        refuses(write_bytes(whole.bytes.data, n), PP_ERR_FORMAT, "damaged or truncated");
    static const struct {
        int n;
        int64_t moved;
        enum pp_code code;
    } ends[] = {{2, 0, PP_ERR_FORMAT},  {1, -1, PP_ERR_FORMAT}, {1, 1, PP_ERR_FORMAT},
                {1, INT32_MAX, PP_ERR_FORMAT}, {UINT16_MAX, 0, PP_ERR_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct zip z = {0};
        pp_buf_add(&z.bytes, members.data, members.len);
        pp_buf_add(&z.list, list.data, list.len);
        end_zip(&z, ends[i].n, ends[i].moved, "");
        refuses(write_bytes(z.bytes.data, z.bytes.len), ends[i].code,
                ends[i].code == PP_ERR_FORMAT ? "damaged or truncated" : "65,534 members");
        pp_buf_free(&z.bytes);
    }
    for (size_t at = 0; at < whole.bytes.len; at++) /* any other byte: an error or the file without harm */
        for (int value = 0; value < 256; value += 85) {
            struct pp_buf image = {0};
            struct pp_error err;
            const char old = whole.bytes.data[at];
            whole.bytes.data[at] = (char)value;
            pp_npz_read(write_bytes(whole.bytes.data, whole.bytes.len), &image, &err);
            pp_buf_free(&image);
            whole.bytes.data[at] = old;
        }
    pp_buf_free(&members);
    pp_buf_free(&list);
    pp_buf_free(&whole.bytes);
}

/* --- adapters -------------------------------------------------------------------------------------------------- */

/* Writes an adapter of two modules as MLX had it and as it has it; A by columns, as after transposing gradients. */
static void write_both(const struct tiny_shape *s, const char *config, const char **npz, const char **now)
{
    static const int modules[] = {0, 2};
    struct folder f = {.random = 77};
    struct zip z = {0};
    char name[160], shape[64], path[512];
    for (int i = 0; i < 2; i++) {
        int64_t n_in, n_out;
        folder_sizes(s, modules[i], &n_in, &n_out);
        for (int half = 0; half < 2; half++) {
            const int64_t rows = half ? 8 : n_in, cols = half ? n_out : 8;
            snprintf(name, sizeof name, "%s.lora_%c", folder_modules[modules[i]].hf, half ? 'b' : 'a');
            const float *values = folder_add(&f, name, rows, cols, 0, 0.05f);
            float *turned = pp_malloc((size_t)(rows * cols) * sizeof *turned);
            for (int64_t k = 0; k < rows * cols; k++)
                turned[k % cols * rows + k / cols] = values[k];
            snprintf(shape, sizeof shape, "%lld, %lld, ", (long long)rows, (long long)cols);
            snprintf(name, sizeof name, "%s.lora_%c.npy", folder_modules[modules[i]].hf, half ? 'b' : 'a');
            add_array(&z, name, "<f4", half ? "False" : "True", shape, half ? values : turned,
                      (size_t)(rows * cols) * sizeof *turned, &plain);
            pp_free(turned);
        }
    }
    *now = folder_write(&f, config, "adapters.safetensors");
    *npz = fresh_path("npz");
    assert_int_equal(mkdir(*npz, 0700), 0);
    snprintf(path, sizeof path, "%s/adapters.npz", *npz);
    assert_int_equal(rename(write_zip(&z, ""), path), 0);
    folder_empty(&f);
}

static void write_config(const char *folder, const char *name, const char *text)
{
    char path[512];
    struct pp_error err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(pp_write_file(path, text, strlen(text), 0600, &err), err);
}

/* Without a configuration the scale is MLX's default, and known to be assumed; with one it is what its versions of that
 * time multiplied by. */
static void adapters(void **state)
{
    static const struct {
        const char *config;
        float scale;
        bool assumed;
    } cases[] = {
        {NULL, 20, true},
        {"{\"lora_layers\": 16}", 20, true},
        {"{\"lora_parameters\": {\"rank\": 8}}", 20, true},
        {"{\"lora_parameters\": {\"scale\": 7}}", 7, false},
        {"{\"lora_parameters\": {\"rank\": 8, \"alpha\": 16, \"scale\": 10, \"dropout\": 0.0}}", 20, false},
        {"{\"lora_parameters\": {\"alpha\": 4, \"scale\": 10}}", 5, false},
    };
    const struct tiny_shape s = biased_shape(PP_TYPE_F32);
    struct run r = open_run(tiny_model(&s), 1);
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *npz, *now;
        struct pp_adapter *a, *b;
        struct pp_adapter_file *f;
        char config[80];
        snprintf(config, sizeof config, "{\"lora_parameters\":{\"rank\":8,\"scale\":%g}}", (double)cases[i].scale);
        write_both(&s, config, &npz, &now);
        if (cases[i].config)
            write_config(npz, "adapter_config.json", cases[i].config);
        assert_true(pp_is_adapter(npz));
        assert_ok(pp_adapter_load(r.model, npz, &a, &err), err);
        assert_ok(pp_adapter_load(r.model, now, &b, &err), err);
        assert_memory_equal(&a->identity, &b->identity, sizeof a->identity);
        assert_true(pp_adapter_info(a)->assumed_scale == (cases[i].assumed ? 20.0f : 0.0f));
        assert_true(pp_adapter_info(b)->assumed_scale == 0.0f);
        pp_adapter_free(a);
        pp_adapter_free(b);
        assert_ok(pp_adapter_file_peek(npz, &f, &err), err);
        assert_int_equal(pp_adapter_file_n(f), 2);
        pp_adapter_file_close(f);
        if (i)
            continue;
        write_config(npz, "config.json", "{}"); /* MLX wrote it into the current folder, perhaps a model's */
        assert_false(pp_is_adapter(npz));
        write_config(npz, "adapter_config.json", "{\"lora_parameters\": {\"scale\": 7, \"alpha\": \"x\"}}");
        assert_int_equal(pp_adapter_load(r.model, npz, &a, &err), PP_ERR_FORMAT);
        assert_non_null(strstr(err.text, "alpha is not a number"));
    }
    close_run(&r);
}

static void out_of_memory(void **state)
{
    struct zip z = {0};
    enum pp_code code = PP_ERR_NOMEM;
    (void)state;
    add_array(&z, "a.npy", "<f4", "True", "2, 3", six, sizeof six, &plain);
    add_array(&z, "b.npy", "<f4", "False", "2, 3", six, sizeof six, &plain);
    const char *path = write_zip(&z, "");
    for (uint64_t nth = 1; code; nth++) {
        struct pp_buf image = {0};
        struct pp_error err = {0};
        pp_mem_fail_at(nth, 0);
        code = pp_npz_read(path, &image, &err);
        pp_mem_fail_at(0, 0);
        assert_true(!code || code == PP_ERR_NOMEM);
        pp_buf_free(&image);
        assert_true(nth < 1000);
    }
}

TEST_GROUP(npz)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays),   cmocka_unit_test(hostile_members), cmocka_unit_test(hostile_ends),
        cmocka_unit_test(adapters), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
