/* test_worker_snapshots.c - the snapshots that the local backend keeps on disk, and its policy for them. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/paths.h"
#include "src/snapshots.h"
#include "src/worker_int.h"
#include "tests/support.h"
#include "tests/talk.h"

static void test_snapshot_path(void **state)
{
    char path[64];
    (void)state;
    pp_snapshot_base("/c", "0123456789abcdef", path, sizeof path);
    assert_string_equal(path, "/c/kv/0123456789abcdef");
    pp_snapshot_base("/c", "../x", path, sizeof path);
    assert_string_equal(path, "");
    pp_snapshot_base("/c", "", path, sizeof path);
    assert_string_equal(path, "");
    pp_snapshot_base("/c", "0123456789abcdef", path, 10);
    assert_string_equal(path, "");
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void make_old_again(const char *path, int seconds)
{
    struct timespec t[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    assert_int_equal(utimensat(0, path, t, 0), 0);
}

static void make_old(const char *path, int seconds)
{
    struct pp_error err;
    assert_ok(pp_write_file(path, "0123456789", 10, 0600, &err), err);
    make_old_again(path, seconds);
}

/* The conversations that were not used for the longest time are removed first, with all their files. */
static void test_make_room(void **state)
{
    static const char *const endings[] = {".manifest", ".pack", ".kv", ".manifest.12.tmp"};
    char path[3][4][340], base[3][300], folder[260], other[300];
    struct pp_error err;
    (void)state;
    snprintf(folder, sizeof folder, "%s/room/kv", test_tmpdir());
    assert_ok(pp_make_dirs(folder, &err), err);
    for (int i = 0; i < 3; i++) {
        snprintf(base[i], sizeof base[i], "%s/%d%d", folder, i, i);
        for (int k = 0; k < 4; k++) {
            snprintf(path[i][k], sizeof path[i][k], "%.300s%s", base[i], endings[k]);
            make_old(path[i][k], 1000 + i);
        }
    }
    snprintf(other, sizeof other, "%s/notes.txt", folder);
    make_old(other, 1);
    pp_snapshot_touch(base[0]); /* now the second one is the oldest */
    snprintf(base[1], sizeof base[1], "%s/aa", folder);
    assert_int_equal(pp_snapshot_largest(test_tmpdir(), 8), 0);
    snprintf(other, sizeof other, "%s/room", test_tmpdir());
    assert_int_equal(pp_snapshot_largest(other, 8), 40);
    assert_int_equal(truncate(path[1][1], 1000), 0);
    make_old_again(path[1][1], 1001);
    assert_int_equal(pp_snapshot_largest(other, 2), 40); /* of the two used last */
    assert_int_equal(pp_snapshot_largest(other, 3), 1030);
    make_old(path[1][1], 1001);
    snprintf(other, sizeof other, "%s/notes.txt", folder);
    assert_false(pp_snapshot_make_room(base[1], 121, 120));
    assert_true(pp_snapshot_make_room(base[1], 40, 160)); /* fits */
    assert_true(exists(path[1][0]));
    assert_true(pp_snapshot_make_room(base[2], 40, 120)); /* a conversation's own files do not count; a partial file is
                                                             removed */
    assert_true(exists(path[1][1]));
    assert_true(exists(path[2][1]));
    assert_false(exists(path[2][2]));
    assert_false(exists(path[2][3]));
    assert_true(pp_snapshot_make_room(base[2], 50, 120));
    for (int k = 0; k < 4; k++) {
        assert_true(exists(path[0][k]));
        assert_false(exists(path[1][k]));
    }
    assert_true(pp_snapshot_make_room(base[2], 119, 120));
    assert_false(exists(path[0][0]));
    assert_true(exists(path[2][0]));
    assert_true(exists(other));
}

/* Megabytes of memory that this process has touched. */
static long touched(void)
{
    char line[200];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "re");
    assert_non_null(f);
    while (kb < 0 && fgets(line, sizeof line, f))
        (void)!sscanf(line, "RssAnon: %ld kB", &kb);
    fclose(f);
    return kb / 1024;
}

/* Soon after the model is loaded, memory for the largest conversation on the disk is ready. */
static void test_room(void **state)
{
    enum { MB = 96 };
    const char *target = testdata("starter/target");
    char path[300];
    struct pp_error err;
    (void)state;
    if (!target)
        skip();
    for (int quiet = 0; quiet < 2; quiet++) {
        talk_begin(256);
        snprintf(path, sizeof path, "%s/kv", talk.cache);
        assert_ok(pp_make_dirs(path, &err), err);
        snprintf(path, sizeof path, "%s/kv/ab.pack", talk.cache);
        assert_ok(pp_write_file(path, "", 0, 0600, &err), err);
        assert_int_equal(truncate(path, (off_t)MB << 20), 0);
        talk.quota = quiet ? PP_SNAPSHOTS_OFF : 0;
        const long before = touched();
        assert_int_equal(talk_load(target, NULL, 65536, NULL), PP_OK);
        for (int i = 0; i < (quiet ? 10 : 3000) && touched() < before + MB - 8; i++)
            usleep(20000);
        assert_int_equal(touched() >= before + MB - 8, !quiet);
        talk_end();
    }
}

static void restart_with_starter(void)
{
    talk_stop();
    pp_io_stop(talk.io, NULL); /* all files are written now */
    struct pp_error err;
    assert_ok(pp_io_start(talk.db, talk.events, &talk.io, &err), err);
    talk_start();
    assert_int_equal(talk_load(testdata("starter/target"), NULL, 1024, NULL), PP_OK);
}

static char *file_of_session(const char *ending)
{
    static char paths[2][680];
    static int n;
    char base[PP_SNAPSHOT_PATH];
    pp_snapshot_base(talk.cache, talk.session.key, base, sizeof base);
    snprintf(paths[++n % 2], sizeof paths[0], "%s%s", base, ending);
    return paths[n % 2];
}

static void test_snapshots(void **state)
{
    char *data;
    size_t size;
    struct pp_error err;
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    talk.backend->ops->leave(talk.backend, talk.session.key);
    assert_string_equal(talk_answer(r), HELLO_ANSWER); /* left, but its pages are still cached */
    assert_int_equal(talk.done.stats.cached_tokens, talk.done.stats.prompt_tokens - 1);
    restart_with_starter();
    for (int i = 0; i < 2; i++) {
        struct stat st;
        assert_int_equal(stat(file_of_session(i ? ".pack" : ".manifest"), &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    assert_string_equal(talk_answer(r), HELLO_ANSWER); /* restored: nothing is computed again */
    assert_string_equal(talk.notice, "");
    assert_int_equal(talk.done.stats.cached_tokens, talk.done.stats.prompt_tokens - 1);
    assert_int_equal(talk.done.stats.restored_tokens, talk.done.stats.prompt_tokens);

    /* it is read ahead while the user types, for the conversation on the screen only */
    restart_with_starter();
    talk.backend->ops->prepare(talk.backend, &r);
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    assert_int_equal(talk.done.stats.restored_tokens, talk.done.stats.prompt_tokens);
    restart_with_starter();
    talk.backend->ops->show(talk.backend, talk.session.key);
    talk.backend->ops->prepare(talk.backend, &r);
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    assert_int_equal(talk.done.stats.restored_tokens, 0); /* it had been read before */
    assert_int_equal(talk.done.stats.cached_tokens, talk.done.stats.prompt_tokens - 1);
    assert_string_equal(talk.notice, "");

    /* a damaged snapshot is refused with a reason, and the answer is the same */
    restart_with_starter();
    assert_ok(pp_read_file(file_of_session(".pack"), 1u << 28, &data, &size, &err), err);
    memset(data + 4096, 1, 3);
    assert_ok(pp_write_file(file_of_session(".pack"), data, size, 0600, &err), err);
    pp_free(data);
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    assert_non_null(strstr(talk.notice, "damaged"));
    assert_int_equal(talk.done.stats.cached_tokens, 0);
    restart_with_starter();
    talk.notice[0] = 0;
    assert_string_equal(talk_answer(r), HELLO_ANSWER); /* the snapshot saved then is good */
    assert_string_equal(talk.notice, "");
    assert_int_equal(talk.done.stats.restored_tokens, talk.done.stats.prompt_tokens);

    talk.backend->ops->forget(talk.backend, talk.session.key);
    restart_with_starter();
    assert_false(exists(file_of_session(".manifest")));
    assert_false(exists(file_of_session(".pack")));

    r.temporary = true;
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    talk.backend->ops->leave(talk.backend, talk.session.key);
    restart_with_starter();
    assert_false(exists(file_of_session(".manifest")));
    talk_end();
}

/* A snapshot that cannot be written is reported once, in one line, and the chat goes on. */
static void test_not_kept(void **state)
{
    struct pp_error err;
    char folder[240];
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    snprintf(folder, sizeof folder, "%s/kv", talk.cache);
    assert_ok(pp_make_dirs(talk.cache, &err), err);
    assert_ok(pp_write_file(folder, "a file", 6, 0600, &err), err); /* in place of a folder that cannot be written to */
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    talk_wait_notice("KV caches of conversations are not saved");
    for (int i = 0; i < 3; i++) {
        assert_string_equal(talk_answer(r), HELLO_ANSWER);
        assert_string_equal(talk.notice, "");
    }
    unlink(folder);
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    restart_with_starter();
    assert_true(exists(file_of_session(".manifest")));
    talk.backend->ops->forget(talk.backend, talk.session.key);

    static const uint64_t quotas[] = {PP_SNAPSHOTS_OFF, 1000};
    for (int k = 0; k < 2; k++) {
        talk.quota = quotas[k];
        restart_with_starter();
        assert_string_equal(talk_answer(r), HELLO_ANSWER);
        talk_wait_notice("--snapshot-quota");
        for (int i = 0; i < 2; i++) {
            assert_string_equal(talk_answer(r), HELLO_ANSWER);
            assert_string_equal(talk.notice, "");
        }
        talk.quota = 0;
        restart_with_starter();
        assert_false(exists(file_of_session(".manifest")));
    }
    talk_end();
}

/* Waits for the thread that computes the model's identity, then sets its outcome, or that there is none yet. */
static void set_identity(bool done, enum pp_code code)
{
    struct shared_model *s = ((struct pp_worker *)talk.backend)->target;
    pthread_mutex_lock(&s->lock);
    while (!s->done)
        pthread_cond_wait(&s->known, &s->lock);
    s->done = done;
    s->code = code ? pp_fail(&s->err, code, "the file was cut short") : code;
    pthread_mutex_unlock(&s->lock);
}

/* A model that cannot be read to its end has no identity: no conversation is saved, which is reported once. */
static void test_no_identity(void **state)
{
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    set_identity(true, PP_ERR_IO);
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    talk_wait_notice("conversations are not saved: the file was cut short");
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    assert_string_equal(talk.notice, "");
    talk_end();
}

/* Quitting waits for the identity once, however many conversations need it. */
static void test_identity_at_the_end(void **state)
{
    enum { CONVERSATIONS = 4, ONE_WAIT_MS = 3000 };
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    set_identity(false, PP_OK);
    for (int i = 0; i < CONVERSATIONS; i++) {
        char key[17];
        snprintf(key, sizeof key, "%016x", i + 1);
        r.session_key = key;
        assert_string_equal(talk_answer(r), HELLO_ANSWER);
    }
    pp_worker_patience = 1;
    const uint64_t before = pp_now_ns();
    talk_end();
    assert_in_range((pp_now_ns() - before) / 1000000, ONE_WAIT_MS - 500, (CONVERSATIONS - 1) * ONE_WAIT_MS);
}

/* A conversation that begins like another one shares its pages. */
static void test_sharing(void **state)
{
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    struct pp_generate_request r = talk_request(HELLO);
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    r.session_key = "feedfeedfeedfeed";
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    assert_int_equal(talk.done.stats.cached_tokens, talk.done.stats.prompt_tokens - 1);
    /* Pages are shared; at most the page into which both write is copied. */
    assert_in_range(talk.done.stats.kv_copied_bytes, 0, talk.done.stats.page_bytes);
    assert_string_equal(talk_answer(r), HELLO_ANSWER); /* regenerated: at most the page that is just being saved is
                                                          copied */
    assert_in_range(talk.done.stats.kv_copied_bytes, 0, talk.done.stats.page_bytes);
    for (int i = 0; i < 12; i++) { /* more conversations than slots */
        char key[17];
        snprintf(key, sizeof key, "%016x", i + 1);
        r.session_key = key;
        assert_string_equal(talk_answer(r), HELLO_ANSWER);
    }
    talk_end();
}

/* Alternative answers of a conversation under different adapters: that the snapshot was made under other adapters is
 * expected, and not reported. */
static void test_beside(void **state)
{
    (void)state;
    if (!talk_begin_starter(256, false))
        return;
    const struct pp_adapter_choice bard = {.path = testdata("starter/lora-bard"), .scale = 1};
    struct pp_generate_request r = talk_request(HELLO), under = r;
    under.adapters = &bard;
    under.n_adapters = 1;
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    restart_with_starter();
    assert_string_equal(talk_answer(r), HELLO_ANSWER);
    assert_int_equal(talk.done.stats.restored_tokens, talk.done.stats.prompt_tokens);
    talk_post(r);
    talk_post(under);
    for (int done = 0; done < 2;) {
        struct pp_event *e = talk_next();
        if (e->type == PP_EVENT_NOTICE)
            fail_msg("%s", e->text);
        done += e->type == PP_EVENT_DONE;
        pp_event_free(e);
    }
    talk_end();
}

TEST_GROUP(worker_snapshots)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snapshot_path),
        cmocka_unit_test(test_make_room),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_not_kept),
        cmocka_unit_test(test_no_identity),
        cmocka_unit_test(test_identity_at_the_end),
        cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_beside),
    };
    return cmocka_run_group_tests_name("worker_snapshots", tests, NULL, NULL);
}
