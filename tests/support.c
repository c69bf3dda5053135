#include "tests/support.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *testdata(const char *relative)
{
    static char paths[8][PATH_MAX], root[PATH_MAX]; /* absolute, because tests make symbolic links to them */
    static unsigned next;
    const char *given = getenv("PIPPIN_TESTDATA");
    struct stat st;
    if (!given || !*given)
        given = "../shared/testdata";
    if (!realpath(given, root)) {
        fprintf(stderr, "skip: no test data at %s (needed: %s)\n", given, relative);
        return NULL;
    }
    char *path = paths[next++ % 8];
    int n = snprintf(path, sizeof paths[0], "%s/%s", root, relative);
    if (n >= (int)sizeof paths[0] || stat(path, &st) != 0)
        fail_msg("test data folder %s is there, but %s is not", root, relative);
    return path;
}

const char *architecture(const char *name)
{
    char relative[128];
    snprintf(relative, sizeof relative, "architectures/%s", name);
    const char *path = testdata(relative);
    if (!path)
        skip();
    return path ? path : "";
}

static char tmpdir[64];
static pid_t tmpdir_owner;

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_tmpdir(void)
{
    if (getpid() == tmpdir_owner)
        nftw(tmpdir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *test_tmpdir(void)
{
    if (!tmpdir[0]) {
        strcpy(tmpdir, "/tmp/pippin-test-XXXXXX");
        if (!mkdtemp(tmpdir)) {
            perror("mkdtemp");
            abort();
        }
        tmpdir_owner = getpid();
        atexit(remove_tmpdir);
    }
    return tmpdir;
}

enum { KEPT_PATHS = 32 };

const char *test_path(const char *name)
{
    static char paths[KEPT_PATHS][300];
    static unsigned next;
    char *path = paths[next++ % KEPT_PATHS];
    snprintf(path, sizeof paths[0], "%s/%s", test_tmpdir(), name);
    return path;
}

const char *fresh_path(const char *name)
{
    static char paths[KEPT_PATHS][300];
    static unsigned next;
    char *path = paths[next % KEPT_PATHS];
    snprintf(path, sizeof paths[0], "%s/%u-%s", test_tmpdir(), next++, name);
    return path;
}
