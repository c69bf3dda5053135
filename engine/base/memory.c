#include "engine/base/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static atomic_bool checks = true;
static _Atomic uint64_t pretended;

void pp_memory_check(bool on) { atomic_store(&checks, on); }
bool pp_memory_checks(void) { return atomic_load(&checks); }
void pp_memory_pretend(uint64_t bytes) { atomic_store(&pretended, bytes); }

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- control groups ---------------------------------------------------------------------------------------------- */

/* The names that the two versions of control groups use. */
struct version {
    const char *folder, *limit, *used;
    const char *file_pages[2]; /* in memory.stat */
};

static const struct version versions[] = {
    {"", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}},
};

/* The number in a file, or after a word at the beginning of a line. UINT64_MAX: none ("max"). */
static uint64_t number_in(const char *folder, const char *file, const char *word)
{
    char path[4400], line[256];
    uint64_t n = UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "re");
    while (f && n == UINT64_MAX && fgets(line, sizeof line, f)) {
        const size_t len = word ? strlen(word) : 0;
        char *end, *at = line + len;
        if (word && (strncmp(line, word, len) != 0 || *at != ' '))
            continue;
        const unsigned long long v = strtoull(at, &end, 10);
        n = end > at ? v : UINT64_MAX;
        if (!word)
            break;
    }
    if (f)
        fclose(f);
    return n;
}

static uint64_t room_in(const char *folder, const struct version *v)
{
    const uint64_t limit = number_in(folder, v->limit, NULL);
    uint64_t used = number_in(folder, v->used, NULL);
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        const uint64_t pages = number_in(folder, "memory.stat", v->file_pages[i]);
        used -= pages != UINT64_MAX ? least(pages, used) : 0;
    }
    return used < limit ? limit - used : 0;
}

/* The smallest room of the group and its parents. In a container outer groups are invisible, and the root is the
 * container's own. */
static uint64_t room_up_from(const char *root, const struct version *v, const char *group)
{
    char folder[4096];
    uint64_t room = UINT64_MAX;
    const int top = snprintf(folder, sizeof folder, "%s%s", root, v->folder);
    const int n = snprintf(folder, sizeof folder, "%s%s%s", root, v->folder, group);
    if (n < 0 || n >= (int)sizeof folder || strstr(group, "/.."))
        return room;
    for (;;) {
        room = least(room, room_in(folder, v));
        char *slash = strrchr(folder + top, '/');
        if (!slash)
            return room;
        *slash = 0;
    }
}

/* A line "4:memory:/path" or "0::/path" of n bytes. */
static uint64_t room_of_line(const char *root, const char *line, size_t n)
{
    char copy[2048], *names, *group;
    if (n >= sizeof copy)
        return UINT64_MAX;
    memcpy(copy, line, n);
    copy[n] = 0;
    if (!(names = strchr(copy, ':')) || !(group = strchr(names + 1, ':')))
        return UINT64_MAX;
    *group++ = 0;
    return !names[1]                          ? room_up_from(root, &versions[0], group)
           : strcmp(names + 1, "memory") == 0 ? room_up_from(root, &versions[1], group)
                                              : UINT64_MAX;
}

uint64_t pp_memory_group_room(const char *root, const char *groups)
{
    uint64_t room = UINT64_MAX;
    while (*groups) {
        const size_t n = strcspn(groups, "\n");
        room = least(room, room_of_line(root, groups, n));
        groups += n + (groups[n] == '\n');
    }
    return room;
}

static uint64_t own_group_room(void)
{
    char groups[8192];
    FILE *f = fopen("/proc/self/cgroup", "re");
    const size_t n = f ? fread(groups, 1, sizeof groups - 1, f) : 0;
    groups[n] = 0;
    if (f)
        fclose(f);
    return pp_memory_group_room("/sys/fs/cgroup", groups);
}

/* --- all of it --------------------------------------------------------------------------------------------------- */

uint64_t pp_memory_free(void)
{
    const uint64_t pretence = atomic_load(&pretended);
    unsigned long long kb = 0;
    if (pretence)
        return pretence;
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1)
            break;
    if (f)
        fclose(f);
    const uint64_t machine = kb ? kb * 1024 : (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return least(machine, own_group_room());
}

uint64_t pp_memory_allowed(void)
{
    struct rlimit most;
    return getrlimit(RLIMIT_AS, &most) == 0 && most.rlim_cur != RLIM_INFINITY ? most.rlim_cur : UINT64_MAX;
}

uint64_t pp_memory_room(void)
{
    const uint64_t allowed = pp_memory_allowed();
    unsigned long long pages = 0;
    FILE *f = allowed != UINT64_MAX ? fopen("/proc/self/statm", "re") : NULL;
    if (f && fscanf(f, "%llu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    const uint64_t used = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return allowed == UINT64_MAX ? allowed : used < allowed ? allowed - used : 0;
}
