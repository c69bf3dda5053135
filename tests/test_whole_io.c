/* test_whole_io.c - reads and writes that a signal or a full pipe interrupts are continued, and errors give the reason;
 * naming files. */
#include "engine/base/whole_io.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "tests/support.h"

enum { N = 1 << 20 };

static uint8_t byte_at(size_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

static volatile sig_atomic_t n_signals;

static void on_signal(int number)
{
    (void)number;
    n_signals++;
}

struct reader {
    int fd;
    size_t n, wrong;
};

/* Reads slowly, so that the pipe is full most of the time. */
static void *read_all(void *arg)
{
    struct reader *r = arg;
    uint8_t piece[4096];
    for (ssize_t n; (n = read(r->fd, piece, sizeof piece)) > 0;) {
        for (ssize_t i = 0; i < n; i++)
            r->wrong += piece[i] != byte_at(r->n++);
        usleep(200);
    }
    return NULL;
}

static void interrupted(void **state)
{
    const struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    const struct sigaction interrupts = {.sa_handler = on_signal}; /* without SA_RESTART */
    struct sigaction before;
    sigset_t alarm;
    uint8_t *data = pp_malloc(N);
    struct reader r = {0};
    int ends[2];
    pthread_t thread;
    (void)state;
    assert_non_null(data);
    for (size_t i = 0; i < N; i++)
        data[i] = byte_at(i);
    assert_int_equal(pipe(ends), 0);
    r.fd = ends[0];
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL); /* for the reader */
    assert_int_equal(pthread_create(&thread, NULL, read_all, &r), 0);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    assert_int_equal(sigaction(SIGALRM, &interrupts, &before), 0);
    setitimer(ITIMER_REAL, &often, NULL);
    const bool good = pp_write_whole(ends[1], data, N);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    close(ends[1]);
    pthread_join(thread, NULL);
    close(ends[0]);
    pp_free(data);
    assert_true(good);
    assert_true(n_signals > 0);
    assert_int_equal(r.n, N);
    assert_int_equal(r.wrong, 0);
}

static void at_places(void **state)
{
    const char *path = test_path("places");
    char got[16] = "";
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    (void)state;
    assert_true(fd >= 0);
    assert_true(pp_write_at(fd, "world", 5, 6));
    assert_true(pp_write_at(fd, "hello ", 6, 0));
    assert_true(pp_read_at(fd, got, 11, 0));
    assert_string_equal(got, "hello world");
    errno = 0;
    assert_false(pp_read_at(fd, got, 6, 6)); /* one byte more than there is */
    assert_int_equal(errno, EIO);
    assert_int_equal(pp_read_some_at(fd, got, 6, 6), 5);
    assert_int_equal(pp_read_some_at(fd, got, 6, 100), 0);
    close(fd);
    unlink(path);
}

static void full(void **state)
{
    const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    (void)state;
    assert_true(fd >= 0);
    errno = 0;
    assert_false(pp_write_whole(fd, "x", 1));
    assert_int_equal(errno, ENOSPC);
    assert_false(pp_write_at(-1, "x", 1, 0));
    assert_int_equal(errno, EBADF);
    assert_false(pp_read_at(-1, &(char){0}, 1, 0));
    assert_int_equal(errno, EBADF);
    close(fd);
}

/* A pipe to which nobody writes is not waited for. */
static void regular_files_only(void **state)
{
    const char *pipe_name = test_path("a-pipe"), *none[] = {pipe_name, "/dev/zero", "/"};
    (void)state;
    assert_int_equal(mkfifo(pipe_name, 0600), 0);
    for (int i = 0; i < 3; i++) {
        errno = 0;
        assert_null(pp_open_regular(none[i]));
        assert_int_equal(errno, EINVAL);
    }
    assert_null(pp_open_regular("/proc/nonexistent"));
    assert_int_equal(errno, ENOENT);
    FILE *f = pp_open_regular("/etc/passwd");
    assert_non_null(f);
    assert_true(fgetc(f) != EOF);
    fclose(f);
}

static bool holds(const char *path, const char *text)
{
    char *data;
    size_t n;
    const bool same = pp_read_file(path, 100, &data, &n, NULL) == PP_OK && strcmp(data, text) == 0;
    pp_free(data);
    return same;
}

/* A temporary file is renamed, or stays under its old name. */
static void names(void **state)
{
    char temp[300], path[300];
    struct pp_error err;
    (void)state;
    snprintf(temp, sizeof temp, "%s", test_path("temp"));
    snprintf(path, sizeof path, "%s", test_path("name"));
    assert_int_equal(pp_write_file(path, "old", 3, 0600, NULL), PP_OK);
    assert_int_equal(pp_write_file(temp, "new", 3, 0600, NULL), PP_OK);
    assert_int_equal(pp_name_new_file(temp, path, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "exists"));
    assert_true(holds(temp, "new") && holds(path, "old"));
    assert_int_equal(pp_write_new_file(path, "newer", 5, 0600, NULL), PP_ERR_IO);
    assert_true(holds(path, "old"));
    assert_int_equal(pp_name_file(temp, test_path("nowhere/name"), &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "No such file"));
    assert_true(holds(temp, "new"));
    assert_int_equal(pp_name_file(temp, path, NULL), PP_OK);
    assert_true(holds(path, "new") && access(temp, F_OK) != 0);
    unlink(path);
    assert_int_equal(pp_write_file(temp, "new", 3, 0600, NULL), PP_OK);
    assert_int_equal(pp_name_new_file(temp, path, NULL), PP_OK);
    assert_true(holds(path, "new") && access(temp, F_OK) != 0);
    unlink(path);
}

/* A link's target is written, whether it exists or not; links stay links. */
static void links(void **state)
{
    char link[300], other[300], target[300];
    struct pp_error err;
    struct stat st;
    (void)state;
    snprintf(link, sizeof link, "%s", test_path("link"));
    snprintf(other, sizeof other, "%s", test_path("other-link"));
    snprintf(target, sizeof target, "%s", test_path("target/file"));
    assert_int_equal(symlink("other-link", link), 0);
    assert_int_equal(symlink("target/file", other), 0);
    assert_int_equal(pp_write_file(link, "new", 3, 0600, &err), PP_ERR_IO); /* its folder does not exist */
    assert_non_null(strstr(err.text, "target/file"));
    assert_int_equal(pp_check_target(link, &err), PP_ERR_IO);
    assert_int_equal(mkdir(test_path("target"), 0700), 0);
    assert_int_equal(pp_check_target(link, &err), PP_OK);
    assert_int_equal(pp_write_file(link, "new", 3, 0600, &err), PP_OK);
    assert_true(holds(target, "new"));
    assert_int_equal(pp_write_file(link, "newer", 5, 0600, &err), PP_OK);
    assert_true(holds(target, "newer"));
    assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode) && lstat(other, &st) == 0 && S_ISLNK(st.st_mode));
    unlink(target);
    rmdir(test_path("target"));
    unlink(other);
    assert_int_equal(symlink("link", other), 0); /* each links to the other */
    assert_int_equal(pp_write_file(link, "x", 1, 0600, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "a circular symbolic link"));
    unlink(other);
    unlink(link);
    assert_int_equal(symlink("/dev/full", link), 0);
    assert_int_equal(pp_write_file(link, "x", 1, 0600, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, "device"));
    unlink(link);
}

/* Errors name a file by its final name, not by that of the temporary file. */
static void own_name(void **state)
{
    char name[257], path[600];
    struct pp_error err;
    (void)state;
    memset(name, 'n', sizeof name - 1); /* longer than a name may be, although the temporary file's name is not */
    name[sizeof name - 1] = 0;
    snprintf(path, sizeof path, "%s/%s", test_tmpdir(), name);
    assert_int_equal(pp_write_file(path, "x", 1, 0600, &err), PP_ERR_IO);
    assert_non_null(strstr(err.text, strerror(ENAMETOOLONG)));
    assert_null(strstr(err.text, ".tmp"));
}

/* Too little memory is no error of the file: more memory, or a higher limit, would help. */
static void larger_than_memory(void **state)
{
    char path[64];
    struct pp_map map;
    struct pp_error err;
    (void)state;
    const int fd = memfd_create("large", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)1 << 50) != 0)
        skip();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(pp_map_open(path, &map, &err), PP_ERR_NOMEM);
    assert_non_null(strstr(err.text, "ulimit -v"));
    close(fd);
}

/* A file's name at the beginning of an error is cut between characters, wherever that is. */
static void long_prefixes(void **state)
{
    (void)state;
    for (int shift = 0; shift < 4; shift++) {
        struct pp_error err;
        char name[512] = "abc";
        for (size_t n = (size_t)shift; n + 4 < sizeof name; n += 4)
            memcpy(name + n, "\xf0\x9f\x98\x80", 5);
        pp_fail(&err, PP_ERR_FORMAT, "is damaged");
        assert_int_equal(pp_fail_prefix(&err, "%s", name), PP_ERR_FORMAT);
        assert_true(pp_utf8_valid(err.text, strlen(err.text)));
        assert_non_null(strstr(err.text, ": is damaged"));
    }
}

/* A precision in a format does not cut a character either, wherever the text around it ends; whole text stays, in other
 * encodings, too. */
static void precisions(void **state)
{
    static const char face[] = "\xf0\x9f\x98\x80", name[] = "a\xc3\xa9" "b\xe2\x82\xac" "c\xf0\x9f\x98\x80" "d";
    struct pp_error err;
    struct pp_buf b = {0};
    char out[16], tight[8];
    (void)state;
    for (int n = 0; n <= (int)strlen(name); n++) {
        char fmt[32];
        const size_t whole = pp_utf8_complete(name, (size_t)n);
        snprintf(fmt, sizeof fmt, "<%%.%ds>", n);
        assert_int_equal(pp_utf8_print(out, sizeof out, fmt, name), whole + 2);
        assert_memory_equal(out + 1, name, whole);
        assert_string_equal(out + 1 + whole, ">");
        const size_t room = sizeof tight - 2 < whole ? pp_utf8_complete(name, sizeof tight - 2) : whole;
        const bool ends = (size_t)n + 2 < sizeof tight;
        assert_int_equal(pp_utf8_print(tight, sizeof tight, fmt, name), 1 + room + ends);
        assert_true(pp_utf8_valid(tight, strlen(tight)));
    }
    pp_fail(&err, PP_ERR_FORMAT, "tensor %.5s lies, %.2f", "ab\xf0\x9f\x98\x80", 1.5);
    assert_string_equal(err.text, "tensor ab lies, 1.50");
    pp_buf_fmt(&b, "%s|%.3s|%.1s", face, face, "\xc3\xa9");
    assert_string_equal(pp_buf_cstr(&b), "\xf0\x9f\x98\x80||");
    assert_int_equal(b.len, 6);
    pp_buf_free(&b);
    pp_fail(&err, PP_ERR_IO, "cannot open %s", "caf\xe9.gguf"); /* nothing was cut */
    assert_string_equal(err.text, "cannot open caf\xe9.gguf");
}

/* Line breaks in a text are shown, or at least removed. */
static void a_line(void **state)
{
    static const struct {
        const char *text, *line;
        size_t cap;
    } cases[] = {{"one", "one", 4},       {"a\nb", "a\xE2\x90\x8A" "b", 6},    {"a\nb", "a b", 5},
                 {"\t\r", "\xE2\x90\x89\xE2\x90\x8D", 7}, {"\t\r", "  ", 6}, {"", "", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *s = pp_malloc(cases[i].cap); /* so that one byte too many is noticed */
        snprintf(s, cases[i].cap, "%s", cases[i].text);
        pp_utf8_line(s, cases[i].cap);
        assert_string_equal(s, cases[i].line);
        pp_free(s);
    }
}

TEST_GROUP(whole_io)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interrupted),
        cmocka_unit_test(at_places),
        cmocka_unit_test(full),
        cmocka_unit_test(regular_files_only),
        cmocka_unit_test(names),
        cmocka_unit_test(links),
        cmocka_unit_test(own_name),
        cmocka_unit_test(larger_than_memory),
        cmocka_unit_test(long_prefixes),
        cmocka_unit_test(precisions),
        cmocka_unit_test(a_line),
    };
    return cmocka_run_group_tests_name("whole_io", tests, NULL, NULL);
}
