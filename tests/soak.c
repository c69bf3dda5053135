/* soak.c - a day of chatting in some minutes: `make test-long`.
 *
 *   soak FOLDER [HOURS]
 *
 * A random user (random_user.h) does as much in each simulated hour as one who acts every quarter of a minute. After
 * each hour a line tells what the program holds; at the end it must not be more than after the warm-up: memory, open
 * files, threads, and the files of the KV snapshots within their quota. The database grows by what was said, and only
 * by that. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/random_user.h"

enum { ACTS_AN_HOUR = 240, WARM_UP = 6, SLACK_KB = 24 << 10 };

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
    struct holdings warm = {0}, now = {0};
    int hours = argc > 2 ? atoi(argv[2]) : 24;
    if (argc < 2 || hours <= WARM_UP) {
        fprintf(stderr, "usage: soak FOLDER [HOURS, more than %d]\n", WARM_UP);
        return 2;
    }
    random_user_begin(&user, argv[1], 1);
    for (int hour = 1; hour <= hours; hour++) {
        for (int i = 0; i < ACTS_AN_HOUR; i++)
            random_user_act(&user);
        now = look(&user);
        if (hour == WARM_UP)
            warm = now;
        printf("hour %2d: %6ld KB resident, %3ld files, %2ld threads, snapshots %7.1f MB, database %6.2f MB, "
               "%d messages\n",
               hour, now.rss_kb, now.files, now.threads, now.snapshots_mb, now.database_mb, user.said);
        fflush(stdout);
    }
    bool bad = grew("memory, KB", warm.rss_kb, now.rss_kb, SLACK_KB);
    bad |= grew("open files", warm.files, now.files, 4);
    bad |= grew("threads", warm.threads, now.threads, 2);
    bad |= !pp_controller_free(user.c);
    puts(bad ? "FAILED" : "ok");
    return bad;
}
