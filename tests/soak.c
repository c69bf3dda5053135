/* soak.c - a day of chatting in some minutes: `make test-long`.
 *
 *   soak FOLDER [HOURS]
 *
 * In each simulated hour a random user (random_user.h) acts as often as once every 15 seconds. After each hour, when
 * the last answers are complete, a line tells what the program occupies. In the second half of the day that may be
 * hardly more than in the first: memory, open files, threads. The database grows with the messages, the snapshots up to
 * their quota. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/random_user.h"

enum { ACTS_AN_HOUR = 240, LEAST_HOURS = 4, SLACK_KB = 8 << 10 };

struct holdings {
    long rss_kb, files, threads;
    double snapshots_mb, database_mb;
};

static long number_of(const char *file, const char *name)
{
    char line[256];
    long n = -1;
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            n = strtol(line + strlen(name), NULL, 10);
    if (f)
        fclose(f);
    return n;
}

/* Entries of a folder, and the bytes of its files. */
static long entries(const char *folder, double *bytes)
{
    long n = 0;
    struct stat st;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        n += e->d_name[0] != '.';
        if (fstatat(dirfd(d), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            *bytes += (double)st.st_size;
    }
    if (d)
        closedir(d);
    return n;
}

static struct holdings look(const struct random_user *u)
{
    char folder[600];
    double unused = 0, snapshots = 0;
    struct stat st = {0};
    struct holdings h = {.rss_kb = number_of("/proc/self/status", "VmRSS:"),
                         .threads = number_of("/proc/self/status", "Threads:"),
                         .files = entries("/proc/self/fd", &unused)};
    snprintf(folder, sizeof folder, "%s/kv", u->paths.cache);
    entries(folder, &snapshots);
    stat(u->paths.db, &st);
    h.snapshots_mb = snapshots / 1e6;
    h.database_mb = (double)st.st_size / 1e6;
    return h;
}

static void list_files(void)
{
    char path[64], target[256];
    for (int fd = 0; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n > 0)
            printf("  %3d %.*s\n", fd, (int)n, target);
    }
}

/* Each answer in a conversation that was left keeps a lock file open. */
static void wait_for_answers(struct random_user *u)
{
    while (pp_controller_n_elsewhere(u->c) > 0 || pp_controller_status(u->c)->state != PP_STATE_IDLE)
        random_user_pump(u, 10);
}

/* The store's thread releases locks, and may be late: waits a moment if more files are open than in the hour with the
 * fewest. */
static struct holdings look_when_settled(struct random_user *u)
{
    enum { MOST_LOOKS = 300 };
    static long fewest;
    struct holdings h = look(u);
    for (int i = 0; i < MOST_LOOKS && h.files > fewest + 1; i++) {
        random_user_pump(u, 10);
        h = look(u);
    }
    fewest = !fewest || h.files < fewest ? h.files : fewest;
    return h;
}

static long max(long a, long b) { return a > b ? a : b; }

static void keep_most(struct holdings *most, const struct holdings *h)
{
    most->rss_kb = max(most->rss_kb, h->rss_kb);
    most->files = max(most->files, h->files);
    most->threads = max(most->threads, h->threads);
    most->snapshots_mb = h->snapshots_mb > most->snapshots_mb ? h->snapshots_mb : most->snapshots_mb;
}

static bool grew(const char *what, long before, long after, long slack)
{
    if (after <= before + slack)
        return false;
    printf("GREW: %s from %ld to %ld\n", what, before, after);
    return true;
}

int main(int argc, char **argv)
{
    static struct random_user user;
    struct holdings half[2] = {0};
    int hours = argc > 2 ? atoi(argv[2]) : 24;
    if (argc < 2 || hours < LEAST_HOURS) {
        fprintf(stderr, "usage: soak FOLDER [HOURS, at least %d]\n", LEAST_HOURS);
        return 2;
    }
    random_user_begin(&user, argv[1], 1);
    for (int hour = 1; hour <= hours; hour++) {
        for (int i = 0; i < ACTS_AN_HOUR; i++)
            random_user_act(&user);
        wait_for_answers(&user);
        struct holdings now = look_when_settled(&user);
        keep_most(&half[hour > hours / 2], &now);
        printf("hour %2d: %6ld KB resident, %3ld files, %2ld threads, snapshots %7.1f MB, database %6.2f MB, "
               "%d messages\n",
               hour, now.rss_kb, now.files, now.threads, now.snapshots_mb, now.database_mb, user.said);
        fflush(stdout);
    }
    bool bad = grew("memory, KB", half[0].rss_kb, half[1].rss_kb, SLACK_KB);
    if (grew("open files", half[0].files, half[1].files, 2)) {
        list_files();
        bad = true;
    }
    bad |= grew("snapshots, MB", (long)((double)user.options.snapshot_quota / 1e6), (long)half[1].snapshots_mb, 0);
    bad |= grew("threads", half[0].threads, half[1].threads, 1);
    bad |= !pp_controller_free(user.c);
    puts(bad ? "FAILED" : "ok");
    return bad;
}
