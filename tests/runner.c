/* runner.c - runs all groups, or those named on the command line; prints a closing line that says how many passed.
 * --list prints the names. */
#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"
#include "tests/support.h"

static struct test_group *groups;

void test_register(struct test_group *g)
{
    struct test_group **p = &groups;
    while (*p && strcmp((*p)->name, g->name) < 0)
        p = &(*p)->next;
    g->next = *p;
    *p = g;
}

static bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc < 2;
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const struct test_group *g = groups; g; g = g->next)
            printf("%s\n", g->name);
        return 0;
    }
    pp_memory_check(false); /* models of zeros may be larger than the machine's memory */
    for (struct test_group *g = groups; g; g = g->next) {
        if (!wanted(g->name, argc, argv))
            continue;
        if (g->run() == 0) {
            passed++;
        } else {
            failed++;
            printf("FAILED group %s\n", g->name);
        }
    }
    if (passed + failed == 0)
        printf("no such test group\n");
    printf("%d passed, %d failed\n", passed, failed);
    return failed || passed == 0;
}
