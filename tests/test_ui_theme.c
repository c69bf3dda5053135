/* test_ui_theme.c - theme files and the reduction of colours; settings and history files. */
#include "tests/support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/paths.h"
#include "ui/history.h"
#include "ui/settings.h"
#include "ui/theme.h"

static enum pp_code parse(const char *text, struct pp_theme *t, struct pp_error *err)
{
    FILE *f = fmemopen((char *)text, strlen(text), "r");
    assert_non_null(f);
    enum pp_code code = pp_theme_parse(f, "x.theme", t, err);
    fclose(f);
    return code;
}

static void good_theme(void **state)
{
    (void)state;
    struct pp_theme t;
    struct pp_error err;
    assert_ok(parse("name = Test\n[palette]\nink = #102030\n[styles]\ntext = ink on 236\nuser = bright-red bold\n"
                    "code = on blue italic underline\nselected = reverse\nstatus = default\n", &t, &err), err);
    assert_string_equal(t.title, "Test");
    assert_int_equal(t.looks[PP_SLOT_TEXT].fg.kind, PP_COLOR_RGB);
    assert_int_equal(t.looks[PP_SLOT_TEXT].fg.value, 0x102030);
    assert_int_equal(t.looks[PP_SLOT_TEXT].bg.value, 236);
    assert_int_equal(t.looks[PP_SLOT_USER].fg.value, 9);
    assert_int_equal(t.looks[PP_SLOT_USER].flags, PP_BOLD);
    assert_int_equal(t.looks[PP_SLOT_USER].bg.value, 236); /* from its parent */
    assert_int_equal(t.looks[PP_SLOT_CODE].fg.value, 0x102030);
    assert_int_equal(t.looks[PP_SLOT_CODE].bg.value, 4);
    assert_int_equal(t.looks[PP_SLOT_CODE].flags, PP_ITALIC | PP_UNDERLINE);
    assert_int_equal(t.looks[PP_SLOT_CODE_LABEL].bg.value, 4); /* from its grandparent */
    assert_int_equal(t.looks[PP_SLOT_STATUS].fg.kind, PP_COLOR_DEFAULT);
}

static void bad_themes(void **state)
{
    static const struct { const char *text, *expect; } table[] = {
        {"[styles]\ntext = red\nuser = blurple\n", "x.theme, line 3: 'blurple'"},
        {"[styles]\nnothing = red\n", "line 2: there is no style 'nothing'"},
        {"[styles]\ntext = red on\n", "line 2: a background"},
        {"[styles]\ntext = #12345\n", "line 2: '#12345'"},
        {"[styles]\ntext = 256\n", "line 2: '256'"},
        {"[palette]\na = bold\n", "line 2: 'bold' is not a colour"},
        {"[colours]\na = red\n", "line 2: there is no section"},
        {"title = x\n", "line 1: 'title'"},
        {"[styles]\nthis is not INI\n", "line 2: "},
        {"[styles\n", "line 1: "},
        {"[styles]\nthis is not INI\ntext = blurple\n", "line 2: this is not NAME = VALUE"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct pp_theme t;
        struct pp_error err;
        assert_int_equal(parse(table[i].text, &t, &err), PP_ERR_FORMAT);
        if (!strstr(err.text, table[i].expect))
            fail_msg("'%s' does not say '%s'", err.text, table[i].expect);
        assert_int_equal(t.looks[PP_SLOT_STATUS].flags, PP_REVERSE); /* the theme is usable all the same */
    }
}

/* Lines longer than inih's buffer are not mistaken for two lines; a comment may be that long. */
static void long_lines(void **state)
{
    (void)state;
    char text[1000], x[301], bold[301];
    struct pp_theme t;
    struct pp_error err;
    memset(x, 'x', 300);
    x[300] = 0;
    for (int i = 0; i < 60; i++)
        memcpy(bold + 5 * i, "bold ", 6);
    snprintf(text, sizeof text, "# %s\nname = Long\n[styles]\n ; %s\ntext = red\n# %s", x, x, x);
    assert_ok(parse(text, &t, &err), err);
    assert_string_equal(t.title, "Long");
    assert_int_equal(t.looks[PP_SLOT_TEXT].fg.value, 1);
    snprintf(text, sizeof text, "# %s\n[styles]\ncode = blue\ntext = %sred\n", x, bold);
    assert_int_equal(parse(text, &t, &err), PP_ERR_FORMAT);
    assert_non_null(strstr(err.text, "x.theme, line 4: the line is too long: 'text = bold "));
    snprintf(text, sizeof text, "[styles]\ncode = %.164s blue\n", bold); /* just fits */
    assert_ok(parse(text, &t, &err), err);
    assert_int_equal(t.looks[PP_SLOT_CODE].fg.value, 4);
}

static void binary_bytes(void **state)
{
    (void)state;
    struct pp_theme t;
    struct pp_error err;
    char text[] = "name = X\n[styles]\ntext = red\0blue\n";
    FILE *f = fmemopen(text, sizeof text - 1, "r");
    assert_non_null(f);
    assert_int_equal(pp_theme_parse(f, "x.theme", &t, &err), PP_ERR_FORMAT);
    fclose(f);
    assert_string_equal(err.text, "x.theme, line 3: this is not text.");
}

static void every_theme_in_the_folder_is_good(void **state)
{
    (void)state;
    struct pp_paths paths = {.themes = "themes"};
    struct pp_error err;
    struct pp_theme t;
    char(*ids)[64];
    size_t n;
    assert_ok(pp_theme_list(&paths, &ids, &n, &err), err);
    assert_true(n >= 6);
    for (size_t i = 0; i < n; i++) {
        assert_ok(pp_theme_load(&paths, ids[i], &t, &err), err);
        assert_string_equal(t.id, ids[i]);
    }
    pp_free(ids);
    assert_int_equal(pp_theme_load(&paths, "nosuch", &t, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "dark, "));
    assert_int_equal(pp_theme_load(&paths, "../Makefile", &t, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_theme_load(&paths, "/dev/zero", &t, &err), PP_ERR_NOT_FOUND);
    assert_int_equal(pp_theme_load(&paths, "/etc/passwd", &t, &err), PP_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "NAME.theme"));
    assert_int_equal(pp_theme_load(&paths, "./gone.theme", &t, &err), PP_ERR_NOT_FOUND);
    assert_string_equal(err.text, "there is no file ./gone.theme");
    assert_ok(pp_theme_load(&paths, "themes/dark.theme", &t, &err), err);
    const char *pipe = test_path("pipe.theme"); /* opening it must not block */
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(pp_theme_load(&paths, pipe, &t, &err), PP_ERR_NOT_FOUND);
}

/* A user's theme that cannot be opened is reported; the built-in theme of that name does not replace it. */
static void closed_themes(void **state)
{
    static const char *const ids[] = {"dark", "gone"};
    struct pp_paths paths = {.themes = "themes"};
    struct pp_error err;
    struct pp_theme t;
    char path[700];
    (void)state;
    snprintf(paths.config, sizeof paths.config, "%s", test_path("closed"));
    snprintf(path, sizeof path, "%s/themes", paths.config);
    assert_ok(pp_make_dirs(path, &err), err);
    snprintf(path, sizeof path, "%s/themes/dark.theme", paths.config);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/themes/gone.theme", paths.config);
    assert_int_equal(symlink("/proc/nonexistent", path), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pp_theme_load(&paths, ids[i], &t, &err), PP_ERR_IO);
        assert_non_null(strstr(err.text, i ? strerror(ENOENT) : "not a regular file"));
    }
    assert_ok(pp_theme_load(&paths, "light", &t, &err), err);
}

static void colors(void **state)
{
    (void)state;
    const struct pp_color red = {PP_COLOR_RGB, 0xFF0000}, grey = {PP_COLOR_RGB, 0x808080},
        index = {PP_COLOR_INDEX, 196},
                          bright = {PP_COLOR_INDEX, 12}, none = {PP_COLOR_DEFAULT, 0};
    assert_int_equal(pp_color_reduce(red, 256), 196);
    assert_int_equal(pp_color_reduce(grey, 256), 244);
    assert_int_equal(pp_color_reduce(red, 16), 9);
    assert_int_equal(pp_color_reduce(red, 8), 1);
    assert_int_equal(pp_color_reduce(red, 1 << 24), 0xFF0000);
    assert_int_equal(pp_color_reduce(index, 256), 196);
    assert_int_equal(pp_color_reduce(index, 8), 1);
    assert_int_equal(pp_color_reduce(bright, 16), 12);
    assert_int_equal(pp_color_reduce(bright, 8), 4);
    assert_int_equal(pp_color_reduce(none, 256), -1);
    assert_int_equal(pp_color_reduce(red, 2), -1);
}

static void settings(void **state)
{
    (void)state;
    char path[256];
    struct pp_settings back;
    struct pp_error err;
    snprintf(path, sizeof path, "%s/ui.ini", test_tmpdir());
    pp_settings_load(path, &back);
    assert_string_equal(back.theme, "");
    assert_ok(pp_save_setting_line(path, "theme = dark\n", &err), err);
    assert_ok(pp_save_setting_line(path, "raw = yes\n", &err), err);
    assert_ok(pp_save_setting_line(path, "theme = harbour\n", &err), err);
    pp_settings_load(path, &back);
    assert_string_equal(back.theme, "harbour");
    assert_true(back.raw);
    static const char unlike[] = "theme=old\n themes = 1\n; theme\ntheme\t= x\ntint = yes";
    assert_ok(pp_write_file(path, unlike, strlen(unlike), 0600, &err), err);
    assert_ok(pp_save_setting_line(path, "theme = new\n", &err), err);
    char *text;
    size_t n;
    assert_ok(pp_read_file(path, 100, &text, &n, &err), err);
    assert_string_equal(text, " themes = 1\n; theme\ntint = yes\ntheme = new\n");
    pp_free(text);
}

struct entries {
    int n;
    char last[64];
};

static void count_entry(void *user, const char *text)
{
    struct entries *e = user;
    e->n++;
    snprintf(e->last, sizeof e->last, "%s", text);
}

/* Pipes in place of our files are neither waited for nor written to. */
static void pipes_for_files(void **state)
{
    const char *path = test_path("pipe-of-settings");
    struct pp_settings s = {.raw = true};
    struct entries e = {0};
    struct pp_error err;
    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    pp_settings_load(path, &s);
    assert_false(s.raw);
    assert_int_equal(pp_history_load(path, count_entry, &e, &err), PP_ERR_FORMAT);
    assert_int_equal(pp_history_append(path, "words", &err), PP_ERR_IO);
    assert_int_equal(e.n, 0);
}

static void history(void **state)
{
    (void)state;
    char path[256];
    struct entries e = {0};
    struct pp_error err;
    struct stat st;
    snprintf(path, sizeof path, "%s/history", test_tmpdir());
    assert_ok(pp_history_load(path, count_entry, &e, &err), err);
    assert_int_equal(e.n, 0);
    for (int i = 0; i < 9000; i++)
        assert_ok(pp_history_append(path, "words", &err), err);
    assert_ok(pp_history_append(path, "two\nlines \\n and \\", &err), err);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    off_t before = st.st_size;
    assert_ok(pp_history_load(path, count_entry, &e, &err), err);
    assert_int_equal(e.n, PP_HISTORY_ENTRIES);
    assert_string_equal(e.last, "two\nlines \\n and \\");
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size < before); /* shortened to the entries that are used */
    assert_int_equal(st.st_mode & 0777, 0600);
    e.n = 0;
    assert_ok(pp_history_load(path, count_entry, &e, &err), err);
    assert_int_equal(e.n, PP_HISTORY_ENTRIES);
    assert_string_equal(e.last, "two\nlines \\n and \\");
    /* An entry that a full disk cut off does not spoil others. */
    snprintf(path, sizeof path, "%s/cut history", test_tmpdir());
    assert_ok(pp_write_file(path, "one\ncut o", 9, 0600, &err), err);
    assert_ok(pp_history_append(path, "two", &err), err);
    assert_ok(pp_history_append(path, "three", &err), err);
    e.n = 0;
    assert_ok(pp_history_load(path, count_entry, &e, &err), err);
    assert_int_equal(e.n, 4);
    assert_string_equal(e.last, "three");
}

static void ignore_entry(void *user, const char *text)
{
    (void)user, (void)text;
}

/* In a process of its own: writes `n` entries, and loads the history now and then, which shortens a long file. */
static void write_and_start(const char *path, int who, int n)
{
    char text[64];
    bool good = true;
    for (int i = 0; i < n && good; i++) {
        snprintf(text, sizeof text, "%d %d, and as many more words as an entry may have", who, i);
        good = pp_history_append(path, text, NULL) == PP_OK &&
               (i % 100 != 0 || pp_history_load(path, ignore_entry, NULL, NULL) == PP_OK);
    }
    _exit(good ? 0 : 1);
}

/* Several programs write, each of which shortens the file now and then: no entry is missing between those that
 * remain. */
static void shared_history(void **state)
{
    enum { WRITERS = 3, EACH = 5000 };
    (void)state;
    const char *path = test_path("shared-history");
    int last[WRITERS], status, who, i;
    pid_t pid[WRITERS];
    for (who = 0; who < WRITERS; who++) {
        last[who] = -1;
        pid[who] = fork();
        if (pid[who] == 0)
            write_and_start(path, who, EACH);
        assert_true(pid[who] > 0);
    }
    for (who = 0; who < WRITERS; who++) {
        assert_int_equal(waitpid(pid[who], &status, 0), pid[who]);
        assert_int_equal(status, 0);
    }
    FILE *f = fopen(path, "r");
    int n = 0;
    assert_non_null(f);
    for (; fscanf(f, "%d %d%*[^\n]", &who, &i) == 2; n++) {
        assert_in_range(who, 0, WRITERS - 1);
        if (last[who] >= 0)
            assert_int_equal(i, last[who] + 1);
        last[who] = i;
    }
    assert_true(feof(f));
    fclose(f);
    assert_true(n < WRITERS * EACH); /* the file was shortened */
    assert_true(n >= PP_HISTORY_ENTRIES);
    for (who = 0; who < WRITERS; who++) /* if a writer finished long before the others, all its entries may be gone */
        assert_true(last[who] == EACH - 1 || last[who] == -1);
}

/* While another process holds the lock, an entry is written all the same; the file is shortened the next time. */
static void kept_history(void **state)
{
    (void)state;
    const char *path = test_path("kept-history");
    struct entries e = {0};
    struct pp_error err;
    struct stat st, then;
    for (int i = 0; i < 9000; i++)
        assert_ok(pp_history_append(path, "words", &err), err);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_ok(pp_history_append(path, "last", &err), err);
    assert_int_equal(stat(path, &st), 0);
    assert_ok(pp_history_load(path, count_entry, &e, &err), err);
    assert_int_equal(stat(path, &then), 0);
    assert_true(then.st_size == st.st_size);
    close(fd);
    e.n = 0;
    assert_ok(pp_history_load(path, count_entry, &e, &err), err);
    assert_int_equal(e.n, PP_HISTORY_ENTRIES);
    assert_string_equal(e.last, "last");
    assert_int_equal(stat(path, &then), 0);
    assert_true(then.st_size < st.st_size);
}

/* No entry is lost that is written while the process that holds the lock replaces the file by another one. */
static void renamed_history(void **state)
{
    (void)state;
    const char *path = test_path("renamed-history"), *other = test_path("renamed-history-new");
    const struct timespec moment = {.tv_nsec = 200000000};
    struct entries e = {0};
    struct pp_error err;
    int status;
    assert_ok(pp_history_append(path, "first", &err), err);
    assert_ok(pp_history_append(other, "first", &err), err);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        nanosleep(&moment, NULL);
        _exit(rename(other, path) == 0 ? 0 : 1);
    }
    assert_ok(pp_history_append(path, "last", &err), err);
    close(fd);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_ok(pp_history_load(path, count_entry, &e, &err), err);
    assert_int_equal(e.n, 2);
    assert_string_equal(e.last, "last");
}

/* Writes the number of an entry without the lock to the file of that name, as a process does that has waited long
 * enough. */
static bool write_unlocked(const char *path, int number)
{
    char line[64];
    struct stat opened, there;
    const int n = snprintf(line, sizeof line, "%d and some words more\n", number);
    do { /* if the name meant another file meanwhile, the process that wrote that file has not seen the entry */
        const int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
        const bool good = fd >= 0 && write(fd, line, (size_t)n) == n && fstat(fd, &opened) == 0;
        if (fd >= 0)
            close(fd);
        if (!good || stat(path, &there) != 0)
            return false;
    } while (opened.st_ino != there.st_ino);
    return true;
}

/* Entries written without waiting while the file is being rewritten are in the new file. */
static void history_while_rewritten(void **state)
{
    enum { N = 20000 };
    static bool seen[N];
    (void)state;
    const char *path = test_path("history-rewritten");
    struct pp_error err;
    int status, number, first = N, missing = 0;
    assert_ok(pp_history_append(path, "begun", &err), err);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bool good = true;
        for (int i = 0; i < N && good; i++) {
            good = write_unlocked(path, i);
            nanosleep(&(struct timespec){.tv_nsec = 1}, NULL);
        }
        _exit(good ? 0 : 1);
    }
    while (waitpid(pid, &status, WNOHANG) == 0)
        assert_ok(pp_history_load(path, ignore_entry, NULL, &err), err);
    assert_int_equal(status, 0);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fscanf(f, "%d%*[^\n]", &number) == 1) {
        assert_in_range(number, 0, N - 1);
        seen[number] = true;
        first = number < first ? number : first;
    }
    assert_true(feof(f));
    fclose(f);
    assert_true(first > 0 && first < N); /* it was shortened */
    for (int i = first; i < N; i++)
        missing += !seen[i];
    assert_int_equal(missing, 0);
}

/* A disk that takes only the beginning of an entry: the reason is reported. */
static void full_history(void **state)
{
    (void)state;
    char path[256];
    struct pp_error err;
    struct rlimit before, little;
    snprintf(path, sizeof path, "%s/full-history", test_tmpdir());
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 6;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    errno = 0;
    const enum pp_code code = pp_history_append(path, "twelve words", &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(code, PP_ERR_IO);
    assert_non_null(strstr(err.text, strerror(EFBIG)));
}

/* With eight colours grey was black, which is invisible on a black console. */
static void grey_is_seen(void **state)
{
    const struct pp_color grey = {PP_COLOR_INDEX, 8}, black = {PP_COLOR_INDEX, 0}, dark = {PP_COLOR_RGB, 0x303030},
                          red = {PP_COLOR_INDEX, 9}, own = {PP_COLOR_DEFAULT, 0};
    (void)state;
    assert_int_equal(pp_color_reduce_on(grey, -1, 8), -1);
    assert_int_equal(pp_color_reduce_on(dark, -1, 8), -1);
    assert_int_equal(pp_color_reduce_on(dark, 0, 8), 7);
    assert_int_equal(pp_color_reduce_on(black, -1, 8), 0); /* explicitly black */
    assert_int_equal(pp_color_reduce_on(black, 0, 8), 7);
    assert_int_equal(pp_color_reduce_on(red, 1, 8), 0);
    assert_int_equal(pp_color_reduce_on(red, 0, 8), 1);
    assert_int_equal(pp_color_reduce_on(own, 0, 8), -1);
    assert_int_equal(pp_color_reduce_on(grey, -1, 16), 8);
    assert_int_equal(pp_color_reduce_on(grey, 8, 16), 8); /* themes for 16 colours choose by themselves */
}

TEST_GROUP(ui_theme)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grey_is_seen), cmocka_unit_test(long_lines), cmocka_unit_test(binary_bytes),
        cmocka_unit_test(good_theme), cmocka_unit_test(bad_themes), cmocka_unit_test(every_theme_in_the_folder_is_good),
        cmocka_unit_test(colors), cmocka_unit_test(settings), cmocka_unit_test(pipes_for_files),
        cmocka_unit_test(history), cmocka_unit_test(closed_themes), cmocka_unit_test(shared_history),
        cmocka_unit_test(kept_history), cmocka_unit_test(renamed_history),
        cmocka_unit_test(history_while_rewritten), cmocka_unit_test(full_history),
    };
    return cmocka_run_group_tests_name("ui_theme", tests, NULL, NULL);
}
