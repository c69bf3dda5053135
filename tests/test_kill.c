/* test_kill.c - SIGKILL at random moments of chatting, forking, and switching models and adapters (tests/kill_child.c).
 * Afterwards the database is sound, nothing that was typed is lost, and the saved state is either correct or refused:
 * going on from it yields, token for token, what a program without saved state yields. */
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "src/branch.h"
#include "src/event.h"
#include "src/paths.h"
#include "src/worker.h"
#include "tests/patience.h"
#include "tests/support.h"

#define STARTER "engine/starter/starter-Q4_K_M.gguf"
#define DRAFT "engine/starter/starter-draft-Q4_0.gguf"

extern char **environ;

enum { KILLS = 100, CHECKED = 1 /* conversations checked after each kill, the newest */ };

static struct {
    char folder[200], db[240], cache[240];
    int restored, refused, compared, told;
} run;

/* --- the child -------------------------------------------------------------------------------------------- */

static void path_of_child(char *path, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", path, cap - 16);
    assert_true(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/kill-child");
}

/* Lets the child run for ms milliseconds, from its start or, if `told`, from its first report, as on a slow machine it
 * may have done nothing by then. Its reports are in *journal. */
static void live_and_die(int seed, int ms, bool told, struct pp_buf *journal)
{
    char program[600], number[16], *args[] = {program, run.folder, number, NULL};
    int fds[2];
    pid_t pid;
    path_of_child(program, sizeof program);
    snprintf(number, sizeof number, "%d", seed);
    assert_int_equal(pipe(fds), 0);
    posix_spawn_file_actions_t io;
    posix_spawn_file_actions_init(&io);
    posix_spawn_file_actions_adddup2(&io, fds[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&io, fds[0]);
    assert_int_equal(posix_spawn(&pid, program, &io, NULL, args, environ), 0);
    posix_spawn_file_actions_destroy(&io);
    close(fds[1]);
    struct pollfd word = {.fd = fds[0], .events = POLLIN};
    assert_true(!told || poll(&word, 1, TEST_PATIENCE_MS) == 1);
    usleep((useconds_t)ms * 1000);
    int status;
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0); /* it never ends by itself */
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    char text[4096];
    for (ssize_t n; (n = read(fds[0], text, sizeof text)) > 0;)
        pp_buf_add(journal, text, (size_t)n);
    close(fds[0]);
}

/* --- the database ----------------------------------------------------------------------------------------- */

static int64_t ask_number(sqlite3 *db, const char *sql, const char *argument)
{
    sqlite3_stmt *stmt;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &stmt, NULL), SQLITE_OK);
    if (argument)
        sqlite3_bind_text(stmt, 1, argument, -1, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(stmt), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(stmt, 0);
    sqlite3_finalize(stmt);
    return n;
}

static void database_is_sound(struct pp_buf *journal)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(run.db, &db), SQLITE_OK);
    assert_int_equal(ask_number(db, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'", NULL),
                     0);
    assert_int_equal(ask_number(db, "SELECT count(*) FROM pragma_foreign_key_check", NULL), 0);
    char *save = NULL, *line = journal->len ? strtok_r(journal->data, "\n", &save) : NULL;
    for (; line; line = strtok_r(NULL, "\n", &save)) {
        assert_memory_equal(line, "S ", 2);
        if (ask_number(db, "SELECT count(*) FROM message WHERE content = ?1", line + 2) < 1) /* a fork has it twice */
            fail_msg("lost: %s", line + 2);
        run.told++;
    }
    sqlite3_close(db);
}

/* --- going on --------------------------------------------------------------------------------------------- */

struct side {
    struct pp_queue *events;
    struct pp_io *io;
    struct pp_backend *backend;
    char model[64];
    uint64_t request;
    struct pp_buf text;
    struct pp_stats stats;
};

static struct side cold[2]; /* without saved state; one for each model */

static void open_side(struct side *s, const char *model, const char *cache)
{
    struct pp_error err;
    assert_ok(pp_queue_new(1024, &s->events, &err), err);
    assert_ok(pp_io_start(run.db, s->events, &s->io, &err), err);
    assert_ok(pp_worker_start(s->events, s->io, cache, &s->backend, &err), err);
    struct pp_load_request r = {.model = model, .engine = {.n_threads = 2, .n_ctx = 1024}};
    s->backend->ops->load(s->backend, &r);
}

static void close_side(struct side *s)
{
    s->backend->ops->close(s->backend);
    for (bool closed = false; !closed;) {
        struct pp_event *e = pp_queue_pop(s->events, TEST_PATIENCE_MS);
        assert_non_null(e);
        closed = e->type == PP_EVENT_CLOSED;
        pp_event_free(e);
    }
    s->backend->ops->free(s->backend);
    pp_queue_close(s->events);
    pp_io_stop(s->io, NULL);
    for (struct pp_event *e; (e = pp_queue_try_pop(s->events));)
        pp_event_free(e);
    pp_queue_free(s->events);
    pp_buf_free(&s->text);
    *s = (struct side){0};
}

static const char *answer(struct side *s, struct pp_generate_request r)
{
    pp_buf_clear(&s->text);
    r.request = ++s->request;
    s->backend->ops->generate(s->backend, &r);
    for (;;) {
        struct pp_event *e = pp_queue_pop(s->events, TEST_PATIENCE_MS);
        assert_non_null(e);
        enum pp_event_type type = e->type;
        if (type == PP_EVENT_TEXT)
            pp_buf_add(&s->text, e->text, e->text_len);
        else if (type == PP_EVENT_NOTICE)
            run.refused += strstr(e->text, "saved") != NULL;
        else if (type == PP_EVENT_DONE) {
            s->stats = e->stats;
            if (e->err.code != PP_OK)
                fail_msg("no answer: %s", e->err.text);
        }
        pp_event_free(e);
        if (type == PP_EVENT_DONE)
            return pp_buf_cstr(&s->text);
    }
}

/* The conversation as it was left, with one more question if it does not end with one. */
static char *messages_of(struct pp_store *st, const struct pp_session *session)
{
    struct pp_message *list;
    struct pp_branch b = {0};
    size_t n;
    struct pp_error err;
    assert_ok(pp_store_branch(st, session->head, &list, &n, &err), err);
    assert_true(pp_branch_assign(&b, list, n));
    pp_message_list_free(list, n);
    while (b.n > 12) { /* the context is small */
        pp_buf_free(&b.items[0].text);
        memmove(b.items, b.items + 1, --b.n * sizeof *b.items);
    }
    if (!b.n || b.items[b.n - 1].msg.role == PP_ROLE_ASSISTANT)
        assert_non_null(pp_branch_append(&b, PP_ROLE_USER, "And then?", 9));
    char *json = pp_branch_json(&b, b.n, session->system);
    assert_non_null(json);
    pp_branch_free(&b);
    return json;
}

static void goes_on_as_cold(struct pp_store *st, const struct pp_session *session)
{
    bool small = strstr(session->model, "draft") != NULL;
    struct side warm = {0}, *reference = &cold[small];
    struct pp_adapter_choice bard = {.path = "engine/starter/bard.gguf", .scale = 1};
    if (!session->head)
        return;
    char *messages = messages_of(st, session);
    if (!reference->backend)
        open_side(reference, small ? DRAFT : STARTER, NULL);
    open_side(&warm, small ? DRAFT : STARTER, run.cache);
    struct pp_generate_request r = {.session_key = session->key, .messages_json = messages,
                                    .sampling = pp_sampling_default(), .max_tokens = 16};
    if (strstr(session->adapters, "bard.gguf") && !small) {
        r.adapters = &bard;
        r.n_adapters = 1;
    }
    for (int i = 0; i < 2; i++) {
        r.sampling.temp = i ? 0.8f : 0;
        r.sampling.seed = 7;
        struct pp_generate_request plain = r;
        plain.temporary = true;
        assert_string_equal(answer(&warm, r), answer(reference, plain));
        run.restored += warm.stats.restored_tokens > 0;
        run.compared++;
    }
    close_side(&warm);
    pp_free(messages);
}

static void check_conversations(void)
{
    struct pp_store *st;
    struct pp_session *list;
    struct pp_error err;
    size_t n;
    assert_ok(pp_store_open(run.db, &st, &err), err);
    assert_ok(pp_store_session_page(st, NULL, false, CHECKED, &list, &n, &err), err);
    for (size_t i = 0; i < n; i++)
        goes_on_as_cold(st, &list[i]);
    pp_session_list_free(list, n);
    pp_store_close(st);
}

static void killed_at_any_moment(void **state)
{
    const char *wanted = getenv("PIPPIN_KILLS");
    int kills = wanted ? atoi(wanted) : KILLS;
    uint32_t dice = 12345;
    struct pp_error err;
    (void)state;
    snprintf(run.folder, sizeof run.folder, "%s/kill", test_tmpdir());
    snprintf(run.db, sizeof run.db, "%s/pippin.db", run.folder);
    snprintf(run.cache, sizeof run.cache, "%s/cache", run.folder);
    assert_ok(pp_make_dirs(run.folder, &err), err);
    for (int i = 0; i < kills; i++) {
        struct pp_buf journal = {0};
        dice = dice * 1664525u + 1013904223u;
        live_and_die(i, 60 + (int)(dice >> 8) % 300, i % 2 == 1, &journal);
        if (access(run.db, F_OK) == 0) {
            database_is_sound(&journal);
            check_conversations();
        }
        pp_buf_free(&journal);
    }
    for (int i = 0; i < 2; i++)
        if (cold[i].backend)
            close_side(&cold[i]);
    print_message("%d kills: %d messages told to be safe, %d answers compared, %d from a saved state, %d refused\n",
                  kills, run.told, run.compared, run.restored, run.refused);
    assert_true(run.told > kills / 2);
    assert_true(run.compared > kills / 2);
    assert_true(run.restored > 0);
}

TEST_GROUP(kill)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_at_any_moment)};
    return cmocka_run_group_tests_name("kill", tests, NULL, NULL);
}
