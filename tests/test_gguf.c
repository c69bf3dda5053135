/* test_gguf.c - the reader and writer of GGUF: round trips, damaged files, block sizes of types, and how the writer
 * replaces files. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/gguf.h"
#include "engine/safetensors.h"
#include "tests/support.h"

/* --- files made by hand, byte by byte, so that the reader is not tested against the writer alone ---------------- */

static void put(struct pp_buf *b, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        pp_buf_char(b, (char)(uint8_t)(v >> (8 * i)));
}

static void put_str(struct pp_buf *b, const char *s)
{
    put(b, strlen(s), 8);
    pp_buf_str(b, s);
}

static void put_header(struct pp_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    pp_buf_str(b, "GGUF");
    put(b, version, 4);
    put(b, n_tensors, 8);
    put(b, n_kv, 8);
}

static void put_tensor(struct pp_buf *b, const char *name, uint64_t ne0, uint64_t ne1, uint32_t type, uint64_t offset)
{
    put_str(b, name);
    put(b, 2, 4);
    put(b, ne0, 8);
    put(b, ne1, 8);
    put(b, type, 4);
    put(b, offset, 8);
}

static void pad(struct pp_buf *b, size_t extra)
{
    while (b->len % 32)
        pp_buf_char(b, 0);
    for (size_t i = 0; i < extra; i++)
        pp_buf_char(b, (char)i);
}

/* A copy of exactly the right size, so that the address sanitiser sees every byte read too many. */
static enum pp_code open_exact(const char *data, size_t n, struct pp_error *err)
{
    struct pp_gguf *g;
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, data, n);
    enum pp_code code = pp_gguf_open_memory(copy, n, "test file", &g, err);
    if (code == PP_OK) { /* whatever is accepted must be readable */
        uint64_t sum = 0;
        for (size_t i = 0; i < pp_gguf_n_tensors(g); i++) {
            const struct pp_tensor *t = pp_gguf_tensor_at(g, i);
            for (size_t k = 0; k < t->size; k++)
                sum += ((const uint8_t *)t->data)[k];
            assert_ptr_equal(pp_gguf_tensor(g, t->name), t);
        }
        for (size_t i = 0; i < pp_gguf_n_kv(g); i++) {
            struct pp_str raw = pp_gguf_kv_raw(g, i);
            for (size_t k = 0; k < raw.len; k++)
                sum += (uint8_t)raw.data[k];
        }
        assert_true(sum < UINT64_MAX);
    } else {
        assert_null(g);
    }
    pp_gguf_close(g);
    free(copy);
    return code;
}

static void assert_refused(struct pp_buf *b, enum pp_code want, const char *text)
{
    struct pp_error err = {0};
    assert_false(b->bad);
    enum pp_code code = open_exact(b->data, b->len, &err);
    if (code != want || !strstr(err.text, text))
        fail_msg("wanted code %d with \"%s\", got %d: %s", (int)want, text, (int)code, err.text);
    pp_buf_free(b);
}

/* --- round trip -------------------------------------------------------------------------------------------- */

static struct pp_gguf_writer *write_sample(const char *path)
{
    static const struct pp_str words[] = {{"one", 3}, {"", 0}, {"a\0b", 3}, {"\xff\xfe", 2}};
    static const float floats[] = {0.5f, -1e30f};
    static const int32_t ints[] = {-1, 0, INT32_MAX};
    struct pp_gguf_writer *w;
    struct pp_error err;
    assert_ok(pp_gguf_writer_new(path, &w, &err), err);
    pp_gguf_add_str(w, "general.architecture", "test", 4);
    pp_gguf_add_u32(w, "a.u32", UINT32_MAX);
    pp_gguf_add_u64(w, "a.u64", UINT64_MAX);
    pp_gguf_add_u64(w, "a.u64.small", 7);
    pp_gguf_add_f32(w, "a.f32", 0.1f);
    pp_gguf_add_bool(w, "a.yes", true);
    pp_gguf_add_bool(w, "a.no", false);
    pp_gguf_add_str(w, "a.empty", "", 0);
    pp_gguf_add_str_array(w, "a.words", words, 4);
    pp_gguf_add_f32_array(w, "a.floats", floats, 2);
    pp_gguf_add_i32_array(w, "a.ints", ints, 3);
    pp_gguf_add_i32_array(w, "a.none", NULL, 0);
    pp_gguf_add_tensor(w, "t.f32", PP_TYPE_F32, 2, (int64_t[]){3, 2});
    pp_gguf_add_tensor(w, "t.q8", PP_TYPE_Q8_0, 1, (int64_t[]){32});
    pp_gguf_add_tensor(w, "t.f16", PP_TYPE_F16, 3, (int64_t[]){1, 2, 3});
    return w;
}

static void finish_sample(struct pp_gguf_writer *w)
{
    struct pp_error err;
    uint8_t bytes[24 + 34 + 12];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i + 1);
    assert_ok(pp_gguf_writer_begin(w, &err), err);
    assert_ok(pp_gguf_write(w, bytes, 5, &err), err);      /* pieces that end within tensors, or span two */
    assert_ok(pp_gguf_write(w, bytes + 5, 40, &err), err);
    assert_ok(pp_gguf_write(w, bytes + 45, sizeof bytes - 45, &err), err);
    assert_ok(pp_gguf_writer_finish(w, &err), err);
    pp_gguf_writer_free(w);
}

static void assert_word(const struct pp_gguf *g, const char *key, size_t i, const char *want, size_t len)
{
    struct pp_str s;
    assert_true(pp_gguf_array_string(g, key, i, &s));
    assert_int_equal(s.len, len);
    assert_memory_equal(s.data, want, len);
}

/* A required entry that is missing or of another type is named in the error. */
static void check_needed(const struct pp_gguf *g)
{
    struct pp_error err;
    int64_t i = 0;
    float f = 0;
    assert_int_equal(pp_gguf_need_int(g, "a.u64.small", &i, &err), PP_OK);
    assert_int_equal(i, 7);
    assert_int_equal(pp_gguf_need_int(g, "a.f32", &i, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "a.f32"));
    assert_int_equal(pp_gguf_need_float(g, "a.f32", &f, &err), PP_OK);
    assert_true(f == 0.1f);
    assert_int_equal(pp_gguf_need_float(g, "a.missing", &f, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "a.missing"));
    assert_true(f == 0.1f);
}

static void check_sample(const struct pp_gguf *g)
{
    int64_t i = 0;
    double d = 0;
    bool yes = false, no = true;
    struct pp_str s;
    enum pp_gguf_type type;
    size_t n;
    assert_true(pp_gguf_int(g, "a.u32", &i) && i == UINT32_MAX);
    assert_false(pp_gguf_int(g, "a.u64", &i)); /* too large */
    assert_true(pp_gguf_int(g, "a.u64.small", &i) && i == 7);
    assert_true(pp_gguf_float(g, "a.f32", &d) && (float)d == 0.1f);
    assert_true(pp_gguf_float(g, "a.u64.small", &d) && d == 7.0);
    assert_false(pp_gguf_int(g, "a.f32", &i));
    check_needed(g);
    assert_true(pp_gguf_bool(g, "a.yes", &yes) && yes);
    assert_true(pp_gguf_bool(g, "a.no", &no) && !no);
    assert_true(pp_gguf_string(g, "a.empty", &s) && s.len == 0);
    assert_false(pp_gguf_string(g, "a.u32", &s));
    assert_false(pp_gguf_has(g, "a.missing"));
    assert_true(pp_gguf_array(g, "a.words", &type, &n) && type == PP_GGUF_STRING && n == 4);
    assert_word(g, "a.words", 0, "one", 3);
    assert_word(g, "a.words", 1, "", 0);
    assert_word(g, "a.words", 2, "a\0b", 3);
    assert_word(g, "a.words", 3, "\xff\xfe", 2);
    assert_false(pp_gguf_array_string(g, "a.words", 4, &s));
    assert_false(pp_gguf_array_string(g, "a.ints", 0, &s));
    assert_true(pp_gguf_array_float(g, "a.floats", 1, &d) && (float)d == -1e30f);
    assert_true(pp_gguf_array_int(g, "a.ints", 0, &i) && i == -1);
    assert_true(pp_gguf_array_int(g, "a.ints", 2, &i) && i == INT32_MAX);
    assert_false(pp_gguf_array_int(g, "a.ints", 3, &i));
    assert_true(pp_gguf_array(g, "a.none", &type, &n) && type == PP_GGUF_I32 && n == 0);
    const struct pp_tensor *t = pp_gguf_tensor(g, "t.q8");
    assert_non_null(t);
    assert_int_equal(t->size, 34);
    assert_int_equal(((const uint8_t *)t->data)[0], 25);
    t = pp_gguf_tensor(g, "t.f16");
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->ne[2], 3);
    assert_int_equal(((const uint8_t *)t->data)[11], 70);
    assert_null(pp_gguf_tensor(g, "t.none"));
}

static void test_round_trip(void **state)
{
    struct pp_gguf *g;
    struct pp_error err;
    (void)state;
    finish_sample(write_sample(test_path("sample.gguf")));
    assert_ok(pp_gguf_open(test_path("sample.gguf"), &g, &err), err);
    check_sample(g);
    /* copies the entries, value by value */
    struct pp_gguf_writer *w;
    assert_ok(pp_gguf_writer_new(test_path("copy.gguf"), &w, &err), err);
    for (size_t i = 0; i < pp_gguf_n_kv(g); i++)
        pp_gguf_add_copy(w, g, i);
    for (size_t i = 0; i < pp_gguf_n_tensors(g); i++) {
        const struct pp_tensor *t = pp_gguf_tensor_at(g, i);
        pp_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne);
    }
    finish_sample(w);
    pp_gguf_close(g);
    assert_ok(pp_gguf_open(test_path("copy.gguf"), &g, &err), err);
    check_sample(g);
    pp_gguf_close(g);
}

static void test_writer_protects(void **state)
{
    struct pp_error err;
    struct stat st;
    struct pp_gguf_writer *w;
    const char *path = test_path("protect.gguf");
    (void)state;
    assert_ok(pp_write_file(path, "old", 3, 0644, &err), err);
    w = write_sample(path);
    assert_ok(pp_gguf_writer_begin(w, &err), err);
    assert_int_equal(pp_gguf_writer_finish(w, &err), PP_ERR_USAGE); /* no tensor was written */
    pp_gguf_writer_free(w);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3); /* the old file is untouched */
    w = write_sample(path);
    pp_gguf_add_tensor(w, "odd", PP_TYPE_Q4_0, 1, (int64_t[]){33});
    assert_int_equal(pp_gguf_writer_begin(w, &err), PP_ERR_UNSUPPORTED);
    pp_gguf_writer_free(w);
    assert_ok(pp_gguf_writer_new("/proc/nonexistent/folder/x.gguf", &w, &err), err);
    assert_int_equal(pp_gguf_writer_begin(w, &err), PP_ERR_IO);
    pp_gguf_writer_free(w);
}

/* A path that is not a regular file is not replaced; it is refused before anything is written. */
static void test_writer_replaces_files_only(void **state)
{
    const char *pipe = test_path("pipe");
    struct pp_error err;
    struct stat st;
    (void)state;
    assert_int_equal(mkfifo(pipe, 0600), 0);
    struct pp_gguf_writer *w = write_sample(pipe);
    assert_int_equal(pp_gguf_writer_begin(w, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "it is a device or a pipe"));
    pp_gguf_writer_free(w);
    assert_int_equal(stat(pipe, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    unlink(pipe);
    w = write_sample(test_tmpdir());
    assert_int_equal(pp_gguf_writer_begin(w, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "it is a folder"));
    pp_gguf_writer_free(w);

    int ends[2]; /* the target of a link like "pipe:[12345]" is no file name */
    char by_number[40], says[100];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    snprintf(by_number, sizeof by_number, "/dev/fd/%d", ends[1]);
    snprintf(says, sizeof says, "cannot write %s: it is a device or a pipe; give a file", by_number);
    w = write_sample(by_number);
    assert_int_equal(pp_gguf_writer_begin(w, &err), PP_ERR_IO);
    assert_string_equal(err.text, says);
    pp_gguf_writer_free(w);
    assert_int_equal(pp_check_target(by_number, &err), PP_ERR_IO);
    assert_string_equal(err.text, says);
    assert_int_equal(pp_write_file(by_number, "x", 1, 0600, &err), PP_ERR_IO);
    assert_string_equal(err.text, says);
    close(ends[0]);
    close(ends[1]);

    assert_int_equal(symlink("target.gguf", test_path("link.gguf")), 0); /* the link stays a link */
    finish_sample(write_sample(test_path("link.gguf")));
    assert_true(lstat(test_path("link.gguf"), &st) == 0 && S_ISLNK(st.st_mode));
    assert_true(lstat(test_path("target.gguf"), &st) == 0 && S_ISREG(st.st_mode));
    unlink(test_path("link.gguf"));
    unlink(test_path("target.gguf"));
}

/* Partial files that a killed process left are removed when the file is written again, but not those that another
 * process may still be writing. */
static void test_writer_removes_left(void **state)
{
    static const struct { const char *ending; bool old, locked, goes; } cases[] = {
        {".123.tmp", true, false, true},    {".124.tmp", false, false, false}, {".125.tmp", true, true, false},
        {".12x.tmp", true, false, false},   {"..tmp", true, false, false},     {".126.tmp2", true, false, false},
        {"2.127.tmp", true, false, false},  {".tmp", true, false, false},
    };
    enum { N = sizeof cases / sizeof *cases };
    const struct timespec long_ago[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    const char *path = test_path("again.gguf");
    char left[N][300];
    int fd[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        snprintf(left[i], sizeof left[i], "%s%s", path, cases[i].ending);
        fd[i] = open(left[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd[i] >= 0);
        if (cases[i].old)
            assert_int_equal(futimens(fd[i], long_ago), 0);
        if (cases[i].locked)
            assert_int_equal(flock(fd[i], LOCK_EX | LOCK_NB), 0);
    }
    finish_sample(write_sample(path));
    for (int i = 0; i < N; i++) {
        if ((access(left[i], F_OK) != 0) != cases[i].goes)
            fail_msg("%s %s", left[i], cases[i].goes ? "stayed" : "went");
        close(fd[i]);
        unlink(left[i]);
    }
}

/* A name of 255 bytes leaves no room for a suffix. */
static void test_temporary_of_long_name(void **state)
{
    char name[256], path[700];
    const char *const beginnings[] = {"", "n", "nn"}; /* two-byte letters, at either alignment */
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s", beginnings[i]);
        while (strlen(name) < 253)
            strcat(name, "ö");
        snprintf(path, sizeof path, "%s/%s", test_tmpdir(), name);
        char *temp = pp_temporary_name(path);
        const char *entry = strrchr(temp, '/') + 1;
        assert_true(strlen(entry) + strlen("-journal") <= NAME_MAX);
        assert_true(pp_utf8_valid(entry, strlen(entry)));
        assert_true(pp_is_temporary_of(entry, name));
        assert_false(pp_is_temporary_of(entry, "n"));
        pp_free(temp);
        finish_sample(write_sample(path));
        assert_int_equal(unlink(path), 0);
    }
    char *temp = pp_temporary_name("a/short");
    assert_int_equal(strncmp(temp, "a/short.", 8), 0);
    assert_true(pp_is_temporary_of(temp + 2, "short"));
    pp_free(temp);
}

/* --- hostile files ----------------------------------------------------------------------------------------- */

static void read_sample(char **data, size_t *n)
{
    struct pp_error err;
    finish_sample(write_sample(test_path("sample.gguf")));
    assert_ok(pp_read_file(test_path("sample.gguf"), 1 << 20, data, n, &err), err);
}

static void test_truncated(void **state)
{
    char *data;
    size_t n;
    struct pp_error err;
    (void)state;
    read_sample(&data, &n);
    assert_ok(open_exact(data, n, &err), err);
    size_t padding = 32 - 12; /* the padding after the last tensor may be missing */
    for (size_t cut = 0; cut < n - padding; cut++)
        assert_int_not_equal(open_exact(data, cut, &err), PP_OK);
    assert_ok(open_exact(data, n - padding, &err), err);
    pp_free(data);
}

static void test_flipped(void **state)
{
    static const uint8_t masks[] = {0x01, 0x80, 0xff};
    char *data;
    size_t n;
    (void)state;
    read_sample(&data, &n);
    for (size_t i = 0; i < n; i++)
        for (size_t m = 0; m < 3; m++) { /* no crash, no hang; some flips are harmless */
            data[i] = (char)((uint8_t)data[i] ^ masks[m]);
            open_exact(data, n, NULL);
            data[i] = (char)((uint8_t)data[i] ^ masks[m]);
        }
    pp_free(data);
}

static void test_out_of_memory(void **state)
{
    char *data;
    size_t n;
    struct pp_error err;
    enum pp_code code = PP_ERR_NOMEM;
    (void)state;
    read_sample(&data, &n);
    for (uint64_t at = 1; code != PP_OK && at < 100; at++) {
        pp_mem_fail_at(at, 0);
        code = open_exact(data, n, &err);
        pp_mem_fail_at(0, 0);
        assert_true(code == PP_OK || code == PP_ERR_NOMEM);
    }
    assert_int_equal(code, PP_OK);
    pp_free(data);
}

static void test_bad_headers(void **state)
{
    struct pp_buf b = {0};
    (void)state;
    pp_buf_str(&b, "GGML and some more bytes than a header has");
    assert_refused(&b, PP_ERR_FORMAT, "not a GGUF file");
    put_header(&b, 1, 0, 0);
    assert_refused(&b, PP_ERR_UNSUPPORTED, "version 1");
    put_header(&b, 3u << 24, 0, 0);
    assert_refused(&b, PP_ERR_UNSUPPORTED, "big-endian");
    put_header(&b, 3, (uint64_t)1 << 63, 0);
    pad(&b, 64);
    assert_refused(&b, PP_ERR_FORMAT, "more tensors");
    put_header(&b, 3, 0, (uint64_t)1 << 63);
    pad(&b, 64);
    assert_refused(&b, PP_ERR_FORMAT, "more metadata");
    put_header(&b, 3, UINT64_MAX, UINT64_MAX);
    assert_refused(&b, PP_ERR_FORMAT, "more metadata");
}

/* A file with one metadata entry of the given type, whose value the caller appends. */
static void begin_kv(struct pp_buf *b, const char *key, uint32_t type)
{
    put_header(b, 3, 0, 1);
    put_str(b, key);
    put(b, type, 4);
}

static void test_bad_metadata(void **state)
{
    struct pp_buf b = {0};
    (void)state;
    begin_kv(&b, "k", 13);
    put(&b, 0, 8);
    assert_refused(&b, PP_ERR_FORMAT, "unknown type");
    begin_kv(&b, "k", PP_GGUF_BOOL);
    put(&b, 2, 1);
    assert_refused(&b, PP_ERR_FORMAT, "neither 0 nor 1");
    begin_kv(&b, "k", PP_GGUF_STRING);
    put(&b, UINT64_MAX, 8);
    assert_refused(&b, PP_ERR_FORMAT, "beyond the end of the file");
    begin_kv(&b, "", PP_GGUF_U32);
    put(&b, 0, 4);
    assert_refused(&b, PP_ERR_FORMAT, "key");
    begin_kv(&b, "bad \xff key", PP_GGUF_U32);
    put(&b, 0, 4);
    assert_refused(&b, PP_ERR_FORMAT, "key");
    begin_kv(&b, "escape \x1b[2J", PP_GGUF_U32);
    put(&b, 0, 4);
    assert_refused(&b, PP_ERR_FORMAT, "key");
    put_header(&b, 3, 0, 1);
    put(&b, (uint64_t)1 << 62, 8);
    pad(&b, 32);
    assert_refused(&b, PP_ERR_FORMAT, "key");
    put_header(&b, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put_str(&b, "twin");
        put(&b, PP_GGUF_U8, 4);
        put(&b, 1, 1);
    }
    assert_refused(&b, PP_ERR_FORMAT, "\"twin\" occurs twice");
}

static void test_bad_arrays(void **state)
{
    struct pp_buf b = {0};
    (void)state;
    for (uint32_t element = 0; element <= 13; element++) {
        begin_kv(&b, "k", PP_GGUF_ARRAY);
        put(&b, element, 4);
        put(&b, ((uint64_t)1 << 63) + 1, 8); /* times the element's size this wraps around to something small */
        put(&b, 0, 8);
        if (element == PP_GGUF_ARRAY)
            assert_refused(&b, PP_ERR_UNSUPPORTED, "array of arrays");
        else
            assert_refused(&b, PP_ERR_FORMAT, "array");
    }
    begin_kv(&b, "k", PP_GGUF_ARRAY);
    put(&b, PP_GGUF_STRING, 4);
    put(&b, 2, 8);
    put_str(&b, "fine");
    put(&b, 100, 8);
    pp_buf_str(&b, "too short");
    assert_refused(&b, PP_ERR_FORMAT, "string in an array");
}

static void test_bad_tensors(void **state)
{
    static const struct {
        uint64_t ne0, ne1;
        uint32_t type;
        uint64_t offset;
        enum pp_code code;
        const char *text;
    } cases[] = {
        {4, 2, PP_TYPE_F32, 64, PP_ERR_FORMAT, "are missing"},
        {4, 2, PP_TYPE_F32, UINT64_MAX - 31, PP_ERR_FORMAT, "beyond the end of the file"},
        {4, 2, PP_TYPE_F32, 8, PP_ERR_FORMAT, "not aligned"},
        {4, 9, PP_TYPE_F32, 0, PP_ERR_FORMAT, "are missing"},
        {0, 2, PP_TYPE_F32, 0, PP_ERR_FORMAT, "impossible"},
        {4, 0, PP_TYPE_F32, 0, PP_ERR_FORMAT, "impossible"},
        {33, 1, PP_TYPE_Q8_0, 0, PP_ERR_FORMAT, "impossible for Q8_0"},
        {(uint64_t)1 << 62, 4, PP_TYPE_F32, 0, PP_ERR_FORMAT, "impossible"},
        {(uint64_t)1 << 32, (uint64_t)1 << 32, PP_TYPE_F32, 0, PP_ERR_FORMAT, "impossible"},
        {UINT64_MAX, 1, PP_TYPE_F32, 0, PP_ERR_FORMAT, "impossible"},
        {4, 2, 5, 0, PP_ERR_UNSUPPORTED, "type 5"},
        {4, 2, UINT32_MAX, 0, PP_ERR_UNSUPPORTED, "does not know"},
    };
    struct pp_buf b = {0};
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_header(&b, 3, 1, 0);
        put_tensor(&b, "t", cases[i].ne0, cases[i].ne1, cases[i].type, cases[i].offset);
        pad(&b, 64);
        assert_refused(&b, cases[i].code, cases[i].text);
    }
    put_header(&b, 2, 2, 0); /* version 2 has the same form */
    put_tensor(&b, "t", 4, 2, PP_TYPE_F32, 0);
    put_tensor(&b, "u", 4, 2, PP_TYPE_F32, 32);
    pad(&b, 64);
    assert_ok(open_exact(b.data, b.len, &err), err);
    pp_buf_free(&b);
    put_header(&b, 3, 2, 0);
    put_tensor(&b, "t", 4, 3, PP_TYPE_F32, 0);
    put_tensor(&b, "u", 4, 2, PP_TYPE_F32, 32);
    pad(&b, 64);
    assert_refused(&b, PP_ERR_FORMAT, "overlap");
    put_header(&b, 3, 2, 0);
    put_tensor(&b, "t", 4, 2, PP_TYPE_F32, 0);
    put_tensor(&b, "t", 4, 2, PP_TYPE_F32, 32);
    pad(&b, 64);
    assert_refused(&b, PP_ERR_FORMAT, "t occurs twice");
    put_header(&b, 3, 1, 0);
    put_str(&b, "t");
    put(&b, 5, 4);
    pad(&b, 64);
    assert_refused(&b, PP_ERR_FORMAT, "5 dimensions");
}

static void test_alignment(void **state)
{
    static const struct {
        uint32_t alignment;
        bool good;
    } cases[] = {{0, false}, {1, false}, {8, true}, {24, false}, {64, true}, {1u << 31, false}};
    struct pp_buf b = {0};
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_header(&b, 3, 1, 1);
        put_str(&b, "general.alignment");
        put(&b, PP_GGUF_U32, 4);
        put(&b, cases[i].alignment, 4);
        put_tensor(&b, "t", 4, 2, PP_TYPE_F32, 0);
        pad(&b, 128);
        if (cases[i].good)
            assert_ok(open_exact(b.data, b.len, &err), err);
        else
            assert_int_equal(open_exact(b.data, b.len, &err), PP_ERR_FORMAT);
        pp_buf_free(&b);
    }
}

static void test_no_tensors(void **state)
{
    struct pp_buf b = {0};
    struct pp_error err;
    (void)state;
    begin_kv(&b, "tokenizer.ggml.model", PP_GGUF_STRING);
    put_str(&b, "gpt2");
    assert_ok(open_exact(b.data, b.len, &err), err);
    pp_buf_free(&b);
}

/* --- types ------------------------------------------------------------------------------------------------- */

/* Each reference file holds 64 blocks of its type. */
static void test_block_sizes(void **state)
{
    static const char *const names[] = {
        "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M",
        "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4",
    };
    struct pp_safetensors *s;
    struct pp_error err;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char file[64];
        snprintf(file, sizeof file, "quants/%s.safetensors", names[i]);
        const char *path = testdata(file);
        if (!path)
            skip();
        assert_ok(pp_safetensors_open(path, &s, &err), err);
        int type = pp_type_by_name(names[i]);
        assert_true(type >= 0);
        int64_t weights = pp_safetensors_find(s, "values")->ne[0];
        assert_int_equal(pp_type_row_bytes((uint32_t)type, weights), pp_safetensors_find(s, "blocks")->ne[0]);
        pp_safetensors_close(s);
    }
}

static void test_types(void **state)
{
    (void)state;
    assert_int_equal(pp_type_by_name("q4_k"), PP_TYPE_Q4_K);
    assert_int_equal(pp_type_by_name("Q9"), -1);
    assert_null(pp_type_info(UINT32_MAX)->name);
    assert_null(pp_type_info(31)->name);
    assert_int_equal(pp_type_row_bytes(PP_TYPE_Q4_K, 512), 288);
    assert_int_equal(pp_type_row_bytes(PP_TYPE_Q4_K, 128), 0);
    assert_int_equal(pp_type_row_bytes(PP_TYPE_F32, INT64_MAX), 0);
    assert_int_equal(pp_type_row_bytes(PP_TYPE_F32, -4), 0);
    size_t runnable = 0;
    for (uint32_t t = 0; t < PP_TYPE_LIMIT; t++)
        runnable += pp_type_info(t)->runnable != 0;
    assert_int_equal(runnable, 25);
}

TEST_GROUP(gguf)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_writer_protects), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_flipped),      cmocka_unit_test(test_out_of_memory),   cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_metadata), cmocka_unit_test(test_bad_arrays),      cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_alignment),    cmocka_unit_test(test_no_tensors),      cmocka_unit_test(test_block_sizes),
        cmocka_unit_test(test_types),        cmocka_unit_test(test_writer_replaces_files_only),
        cmocka_unit_test(test_writer_removes_left),
        cmocka_unit_test(test_temporary_of_long_name),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
