/* test_io.c - the io thread, which writes to the store: order, promptness, and that nothing is lost when the disk
 * refuses. */
#include "tests/support.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "src/event.h"
#include "src/io.h"

static struct pp_error err;

struct fixture {
    char path[300];
    struct pp_queue *events;
    struct pp_io *io;
    struct pp_store *store; /* another connection to the same file, as another program would have */
    int64_t session;
};

static void set_up(struct fixture *f, size_t queue)
{
    static int n;
    snprintf(f->path, sizeof f->path, "%s/io-%d/pippin.db", test_tmpdir(), n++);
    assert_ok(pp_queue_new(queue, &f->events, &err), err);
    assert_ok(pp_io_start(f->path, f->events, &f->io, &err), err);
    assert_ok(pp_store_open(f->path, &f->store, &err), err);
    struct pp_session s = {.title = "t"};
    assert_ok(pp_store_session_add(f->store, &s, &err), err);
    f->session = s.id;
}

static void tear_down(struct fixture *f)
{
    pp_io_stop(f->io, NULL);
    for (struct pp_event *e; (e = pp_queue_try_pop(f->events));)
        pp_event_free(e);
    pp_queue_free(f->events);
    pp_store_close(f->store);
}

static int64_t new_answer(struct fixture *f, const char *text)
{
    struct pp_message m = {.session = f->session, .role = PP_ROLE_ASSISTANT, .state = PP_MESSAGE_PARTIAL,
                           .content = (char *)(uintptr_t)text, .content_len = strlen(text)};
    assert_ok(pp_store_message_add(f->store, &m, &err), err);
    return m.id;
}

/* Waits until the message has this text; false after ms. */
static bool reads(struct fixture *f, int64_t id, const char *text, enum pp_message_state state, int ms)
{
    for (uint64_t until = pp_now_ns() + (uint64_t)ms * 1000000u;;) {
        struct pp_message m;
        assert_ok(pp_store_message_get(f->store, id, &m, &err), err);
        bool same = strcmp(m.content, text) == 0 && m.state == state;
        pp_message_clear(&m);
        if (same || pp_now_ns() >= until)
            return same;
        usleep(5000);
    }
}

/* --- jobs -------------------------------------------------------------------------------------------------------- */

struct counted {
    struct pp_job job;
    int number;
};

static int ran[64], n_ran;             /* written by the io thread; read after a job came back */
static atomic_int n_released;

static void run_counted(struct pp_job *job, struct pp_store *store)
{
    struct pp_session s;
    job->code = pp_store_session_latest(store, &s, &job->err);
    pp_session_clear(&s);
    ran[n_ran++] = ((struct counted *)(void *)job)->number;
}

static void release_counted(struct pp_job *job)
{
    atomic_fetch_add(&n_released, 1);
    pp_free(job);
}

static void done_counted(struct pp_job *job, void *controller)
{
    *(int *)controller = ((struct counted *)(void *)job)->number;
    pp_free(job);
}

static void post_counted(struct fixture *f, int number, bool with_done)
{
    struct counted *c = pp_calloc(1, sizeof *c);
    assert_non_null(c);
    c->job = (struct pp_job){.run = run_counted, .done = with_done ? done_counted : NULL, .release = release_counted};
    c->number = number;
    pp_io_post(f->io, &c->job);
}

static void jobs_in_order(void **state)
{
    (void)state;
    struct fixture f;
    n_ran = 0;
    n_released = 0;
    set_up(&f, 64);
    for (int i = 0; i < 20; i++)
        post_counted(&f, i, true);
    for (int i = 0; i < 20; i++) {
        int number = -1;
        struct pp_event *e = pp_queue_pop(f.events, 5000);
        assert_non_null(e);
        assert_int_equal(e->type, PP_EVENT_JOB);
        assert_int_equal(e->job->code, PP_OK);
        e->job->done(e->job, &number);
        e->job = NULL;
        pp_event_free(e);
        assert_int_equal(number, i);
    }
    for (int i = 0; i < 20; i++)
        assert_int_equal(ran[i], i);
    post_counted(&f, 99, false); /* no answer is wanted: the thread releases it */
    tear_down(&f);
    assert_int_equal(n_released, 1);
}

/* If nobody takes events off the queue, jobs still run, answers are still saved, and nothing leaks. */
static void stopped_terminal(void **state)
{
    (void)state;
    struct fixture f;
    n_ran = 0;
    n_released = 0;
    set_up(&f, 2);
    int64_t a = new_answer(&f, "");
    for (int i = 0; i < 10; i++)
        post_counted(&f, i, true);
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, "saved", 5);
    pp_io_answer_end(f.io, a, PP_MESSAGE_COMPLETE, NULL, 1);
    assert_true(reads(&f, a, "saved", PP_MESSAGE_COMPLETE, 3000));
    int number = -1;
    for (int i = 0; i < 5; i++) { /* events are taken again: the backlog comes in order */
        struct pp_event *e = pp_queue_pop(f.events, 3000);
        assert_non_null(e);
        e->job->done(e->job, &number);
        e->job = NULL;
        pp_event_free(e);
        assert_int_equal(number, i);
    }
    tear_down(&f);
    assert_int_equal(n_ran, 10);
    assert_int_equal(n_released, 5);
}

/* --- answers ----------------------------------------------------------------------------------------------------- */

static void streaming_answer(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 8);
    int64_t a = new_answer(&f, ""), b = new_answer(&f, "begun, ");
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, "one ", 4);
    pp_io_answer_add(f.io, b, PP_PART_ANSWER, "and ", 4);
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, "two", 3);
    assert_true(reads(&f, a, "one two", PP_MESSAGE_PARTIAL, 1000)); /* within a second, before the end */
    assert_true(reads(&f, b, "begun, and ", PP_MESSAGE_PARTIAL, 500)); /* the text that was there before is kept */
    uint64_t before = pp_now_ns();
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, " three", 6);
    pp_io_answer_end(f.io, a, PP_MESSAGE_COMPLETE, "{\"x\":1}", 3);
    assert_true(reads(&f, a, "one two three", PP_MESSAGE_COMPLETE, 500));
    assert_true(pp_now_ns() - before < 400 * 1000000ull); /* the end of an answer is written at once */
    struct pp_message m;
    assert_ok(pp_store_message_get(f.store, a, &m, &err), err);
    assert_string_equal(m.stats, "{\"x\":1}");
    assert_int_equal(m.n_tokens, 3);
    pp_message_clear(&m);

    pp_io_answer_add(f.io, a, PP_PART_ANSWER, " four", 5); /* it is continued later */
    pp_io_answer_add(f.io, b, PP_PART_ANSWER, "on", 2);
    pp_io_answer_end(f.io, b, PP_MESSAGE_CANCELLED, NULL, 0);
    pp_io_stop(f.io, NULL); /* writes what is left */
    assert_true(reads(&f, a, "one two three four", PP_MESSAGE_COMPLETE, 0) ||
                reads(&f, a, "one two three four", PP_MESSAGE_PARTIAL, 0));
    assert_true(reads(&f, b, "begun, and on", PP_MESSAGE_CANCELLED, 0));
    assert_ok(pp_io_start(f.path, f.events, &f.io, &err), err);

    assert_ok(pp_store_session_delete(f.store, f.session, &err), err);
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, "gone", 4); /* the conversation was deleted: that is no error, and no
                                                             reason to try for ever */
    pp_io_answer_end(f.io, a, PP_MESSAGE_COMPLETE, NULL, 0);
    pp_io_stop(f.io, NULL);
    assert_null(pp_queue_try_pop(f.events));
    assert_ok(pp_io_start(f.path, f.events, &f.io, &err), err);
    tear_down(&f);
}

struct writer {
    struct fixture *f;
    int64_t message;
};

static void *stream(void *arg)
{
    struct writer *w = arg;
    for (int i = 0; i < 2000; i++)
        pp_io_answer_add(w->f->io, w->message, PP_PART_ANSWER, i % 2 ? "b" : "a", 1);
    pp_io_answer_end(w->f->io, w->message, PP_MESSAGE_COMPLETE, NULL, 2000);
    return NULL;
}

static void many_writers(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 8);
    pthread_t threads[3];
    struct writer writers[3];
    char expected[2001] = "";
    for (int i = 0; i < 2000; i++)
        expected[i] = i % 2 ? 'b' : 'a';
    for (int i = 0; i < 3; i++) {
        writers[i] = (struct writer){&f, new_answer(&f, "")};
        assert_int_equal(pthread_create(&threads[i], NULL, stream, &writers[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++)
        assert_true(reads(&f, writers[i].message, expected, PP_MESSAGE_COMPLETE, 5000));
    tear_down(&f);
}

/* A child streams and is killed; what it had handed over a second before must be there. */
static void killed_while_streaming(void **state)
{
    (void)state;
    struct fixture f;
    int status;
    set_up(&f, 8);
    int64_t a = new_answer(&f, "");
    pp_io_stop(f.io, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct pp_error e;
        struct pp_io *io;
        if (pp_io_start(f.path, f.events, &io, &e) != PP_OK)
            _exit(1);
        for (;; usleep(1000))
            pp_io_answer_add(io, a, PP_PART_ANSWER, "t", 1);
    }
    usleep(1600 * 1000);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    struct pp_message m;
    assert_ok(pp_store_message_get(f.store, a, &m, &err), err);
    assert_true(m.content_len > 100);
    assert_int_equal(m.state, PP_MESSAGE_PARTIAL);
    pp_message_clear(&m);
    assert_ok(pp_io_start(f.path, f.events, &f.io, &err), err);
    tear_down(&f);
}

static int n_recovered; /* how often saving had worked again after errors */

static int count_errors(struct pp_queue *events, int wait_ms, enum pp_code *code)
{
    int n = 0;
    for (struct pp_event *e; (e = pp_queue_pop(events, wait_ms)); pp_event_free(e)) {
        if (e->type == PP_EVENT_UNSAVED && e->err.code == PP_OK)
            n_recovered++;
        if ((e->type != PP_EVENT_IO_ERROR && e->type != PP_EVENT_UNSAVED) || e->err.code == PP_OK)
            continue;
        n++;
        *code = e->err.code;
    }
    return n;
}

/* Limits the size of files, in place of a full disk; in a child, because the limit applies to the whole process. */
static int with_a_full_disk(struct fixture *f, int64_t a)
{
    enum { BIG = 3 << 20 };
    struct pp_error e;
    struct pp_io *io;
    struct rlimit old, tight = {1 << 20, RLIM_INFINITY};
    enum pp_code code = PP_OK;
    char *text = pp_malloc(BIG);
    signal(SIGXFSZ, SIG_IGN);
    if (!text || pp_io_start(f->path, f->events, &io, &e) != PP_OK || getrlimit(RLIMIT_FSIZE, &old) != 0)
        return 1;
    memset(text, 'x', BIG);
    tight.rlim_max = old.rlim_max;
    if (setrlimit(RLIMIT_FSIZE, &tight) != 0)
        return 2;
    pp_io_answer_add(io, a, PP_PART_ANSWER, text, BIG);
    pp_io_answer_end(io, a, PP_MESSAGE_COMPLETE, NULL, 5);
    /* within 2.5 seconds it tries several times, and reports the error once */
    if (count_errors(f->events, 2500, &code) != 1 || code != PP_ERR_IO || n_recovered)
        return 3;
    pp_io_answer_add(io, a, PP_PART_ANSWER, "tail", 4); /* more text arrives in the meantime */
    if (setrlimit(RLIMIT_FSIZE, &old) != 0) /* room again */
        return 4;
    for (int i = 0; i < 40; i++, usleep(100000)) {
        struct pp_message m;
        struct pp_store *st;
        if (pp_store_open(f->path, &st, &e) != PP_OK || pp_store_message_get(st, a, &m, &e) != PP_OK)
            return 5;
        bool whole = m.content_len == BIG + 4 && m.state == PP_MESSAGE_COMPLETE &&
            memcmp(m.content + BIG, "tail", 4) == 0;
        pp_message_clear(&m);
        pp_store_close(st);
        if (!whole)
            continue;
        if (!pp_io_stop(io, NULL) || count_errors(f->events, 0, &code) != 0 || n_recovered != 1)
            return 6;
        /* if the disk stays full, pp_io_stop() reports it */
        if (setrlimit(RLIMIT_FSIZE, &tight) != 0 || pp_io_start(f->path, f->events, &io, &e) != PP_OK)
            return 8;
        pp_io_answer_add(io, a, PP_PART_ANSWER, text, BIG);
        pp_free(text);
        return pp_io_stop(io, NULL) ? 9 : 0;
    }
    return 7;
}

static void full_disk(void **state)
{
    (void)state;
    struct fixture f;
    int status;
    set_up(&f, 8);
    int64_t a = new_answer(&f, "");
    pp_io_stop(f.io, NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(with_a_full_disk(&f, a));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_ok(pp_io_start(f.path, f.events, &f.io, &err), err);
    tear_down(&f);
}

/* --- the end ----------------------------------------------------------------------------------------------------- */

static int n_waited, n_gone;

static void note_waiting(const char *what)
{
    n_waited++;
    assert_string_equal(what, "a nap");
}

static void nap(struct pp_job *job, struct pp_store *store)
{
    (void)job, (void)store;
    usleep(300000);
}

/* Quitting reports what it waits for, if that takes long. */
static void waited_for(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 8);
    struct pp_io_ending ending = {.ms = 20, .waiting = note_waiting};
    n_waited = 0;
    for (int i = 0; i < 2; i++) {
        struct counted *c = pp_calloc(1, sizeof *c);
        assert_non_null(c);
        c->job = (struct pp_job){.run = nap, .release = release_counted, .what = "a nap"};
        pp_io_post(f.io, &c->job);
        assert_true(pp_io_stop(f.io, &ending));
        assert_int_equal(n_waited, 1);
        ending.ms = 5000;
        assert_ok(pp_io_start(f.path, f.events, &f.io, &err), err);
    }
    tear_down(&f);
}

static void read_last(void *user, struct pp_store *st)
{
    struct pp_message m;
    n_gone++;
    assert_ok(pp_store_message_get(st, *(int64_t *)user, &m, &err), err);
    assert_string_equal(m.content, "begun, and ended");
    assert_int_equal(m.state, PP_MESSAGE_COMPLETE);
    pp_message_clear(&m);
}

/* Nothing is saved to a database file that was deleted; its contents, and what was to be added, can still be
 * exported. */
static void deleted_database(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, 8);
    int64_t a = new_answer(&f, "begun, ");
    const struct pp_io_ending ending = {.gone = read_last, .user = &a};
    n_gone = 0;
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, "and ", 4);
    assert_true(reads(&f, a, "begun, and ", PP_MESSAGE_PARTIAL, 2000));
    assert_int_equal(unlink(f.path), 0);
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, "ended", 5);
    pp_io_answer_end(f.io, a, PP_MESSAGE_COMPLETE, NULL, 0);
    assert_false(pp_io_stop(f.io, &ending));
    assert_int_equal(n_gone, 1);
    assert_ok(pp_io_start(f.path, f.events, &f.io, &err), err); /* a new database */
    tear_down(&f);
}

/* --- beginning and ending -------------------------------------------------------------------------------------- */

static void bad_database(void **state)
{
    (void)state;
    struct pp_queue *events;
    struct pp_io *io = NULL;
    assert_ok(pp_queue_new(4, &events, &err), err);
    assert_int_equal(pp_io_start("/dev/null/pippin.db", events, &io, &err), PP_ERR_IO);
    assert_null(io);
    pp_queue_free(events);
}

static void events(void **state)
{
    (void)state;
    struct pp_event *e = pp_event_new(PP_EVENT_TEXT);
    assert_non_null(e);
    assert_int_equal(e->type, PP_EVENT_TEXT);
    e->text = pp_strdup("text");
    e->info = pp_calloc(1, sizeof *e->info);
    struct counted *c = pp_calloc(1, sizeof *c);
    assert_non_null(c);
    c->job.release = release_counted;
    e->job = &c->job;
    n_released = 0;
    pp_event_free(e); /* frees all that it owns, or the leak checker would complain */
    assert_int_equal(n_released, 1);
    pp_event_free(NULL);
}

/* Reasoning is stored next to the text; text can be reclassified as reasoning, also in an answer that is being
 * continued. */
static void reasoning(void **state)
{
    struct fixture f;
    struct pp_message m;
    (void)state;
    set_up(&f, 8);
    int64_t a = new_answer(&f, "");
    pp_io_answer_add(f.io, a, PP_PART_REASONING, "one ", 4);
    pp_io_answer_add(f.io, a, PP_PART_REASONING, "two", 3);
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, "three", 5);
    pp_io_answer_end(f.io, a, PP_MESSAGE_CANCELLED, NULL, 3);
    assert_true(reads(&f, a, "three", PP_MESSAGE_CANCELLED, 3000));
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, " four", 5);
    pp_io_answer_add(f.io, a, PP_PART_TEXT_WAS_REASONING, "", 0);
    pp_io_answer_add(f.io, a, PP_PART_REASONING, " five", 5);
    pp_io_answer_add(f.io, a, PP_PART_ANSWER, "six", 3);
    pp_io_answer_end(f.io, a, PP_MESSAGE_COMPLETE, NULL, 6);
    assert_true(reads(&f, a, "six", PP_MESSAGE_COMPLETE, 3000));
    assert_ok(pp_store_message_get(f.store, a, &m, &err), err);
    assert_string_equal(m.reasoning, "one twothree four five");
    pp_message_clear(&m);
    tear_down(&f);
}

/* Continues an answer with the reasoning "new"; with taken_back it arrives as text and is then reclassified. */
static void write_new(struct fixture *f, int64_t answer, bool taken_back)
{
    pp_io_answer_add(f->io, answer, taken_back ? PP_PART_ANSWER : PP_PART_REASONING, "new", 3);
    if (taken_back)
        pp_io_answer_add(f->io, answer, PP_PART_TEXT_WAS_REASONING, "", 0);
    pp_io_answer_end(f->io, answer, PP_MESSAGE_COMPLETE, NULL, 3);
}

/* Whichever allocation fails, either the whole answer is saved, or it is reported that a part is lost. */
static void check_no_memory(bool taken_back)
{
    const uint64_t most = taken_back ? 20 : 60; /* with taken_back only the first pieces differ */
    struct fixture f;
    set_up(&f, 64);
    for (uint64_t nth = 1; nth <= most; nth++) {
        struct pp_message m;
        const int64_t a = new_answer(&f, "");
        const struct pp_answer_text before = {"", 0, "old ", 4};
        assert_ok(pp_store_message_write(f.store, a, &before, PP_MESSAGE_CANCELLED, NULL, 0, &err), err);
        pp_mem_fail_at(nth, 0);
        write_new(&f, a, taken_back);
        const bool saved = pp_io_stop(f.io, NULL);
        pp_mem_fail_at(0, 0);
        enum pp_code code = PP_OK;
        const bool told = !saved || count_errors(f.events, 0, &code) > 0;
        assert_ok(pp_store_message_get(f.store, a, &m, &err), err);
        const bool whole = strcmp(m.reasoning, "old new") == 0 && !*m.content && m.state == PP_MESSAGE_COMPLETE;
        if (!whole && (!told || strncmp(m.reasoning, "old ", 4) != 0))
            fail_msg("allocation %d: \"%s\", %s", (int)nth, m.reasoning, told ? "told" : "not told");
        pp_message_clear(&m);
        assert_ok(pp_io_start(f.path, f.events, &f.io, &err), err);
    }
    tear_down(&f);
}

static void no_memory(void **state)
{
    (void)state;
    check_no_memory(false);
    check_no_memory(true);
}

TEST_GROUP(io)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_in_order), cmocka_unit_test(stopped_terminal), cmocka_unit_test(streaming_answer),
        cmocka_unit_test(many_writers),  cmocka_unit_test(full_disk),        cmocka_unit_test(killed_while_streaming),
        cmocka_unit_test(waited_for),
        cmocka_unit_test(deleted_database),
        cmocka_unit_test(bad_database),     cmocka_unit_test(events),
        cmocka_unit_test(reasoning),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("io", tests, NULL, NULL);
}
