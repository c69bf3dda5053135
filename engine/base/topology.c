#include "engine/base/topology.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* "0-3,8,10-11\n" */
static void read_cpu_list(const char *path, cpu_set_t *out)
{
    CPU_ZERO(out);
    FILE *f = fopen(path, "re");
    int first, last;
    while (f && fscanf(f, "%d", &first) == 1) {
        int c = fgetc(f);
        last = first;
        if (c == '-' && fscanf(f, "%d", &last) == 1)
            c = fgetc(f);
        for (int cpu = first; cpu >= 0 && cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET((size_t)cpu, out);
        if (c != ',')
            break;
    }
    if (f)
        fclose(f);
}

static int by_id(const void *a, const void *b)
{
    return ((const struct pp_node *)a)->id - ((const struct pp_node *)b)->id;
}

/* "node12" -> 12; -1 for any other name. */
static int node_id(const char *name)
{
    char *end;
    if (strncmp(name, "node", 4) != 0 || name[4] < '0' || name[4] > '9')
        return -1;
    long id = strtol(name + 4, &end, 10);
    return *end || id > INT_MAX ? -1 : (int)id;
}

static void read_nodes(const char *dir, const cpu_set_t *allowed, struct pp_topology *t)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && t->n_nodes < PP_MAX_NODES && (e = readdir(d));) {
        struct pp_node *n = &t->nodes[t->n_nodes];
        char path[PATH_MAX];
        n->id = node_id(e->d_name);
        if (n->id < 0 || snprintf(path, sizeof path, "%s/%s/cpulist", dir, e->d_name) >= (int)sizeof path)
            continue;
        read_cpu_list(path, &n->cpus);
        CPU_AND(&n->cpus, &n->cpus, allowed);
        n->n_cpus = CPU_COUNT(&n->cpus);
        if (n->n_cpus) /* nodes may have only memory */
            t->n_nodes++;
    }
    if (d)
        closedir(d);
    qsort(t->nodes, (size_t)t->n_nodes, sizeof t->nodes[0], by_id);
}

void pp_topology_read(const char *dir, const cpu_set_t *allowed, struct pp_topology *out)
{
    cpu_set_t own;
    *out = (struct pp_topology){0};
    if (!allowed) {
        CPU_ZERO(&own);
        if (sched_getaffinity(0, sizeof own, &own) != 0 || CPU_COUNT(&own) == 0)
            CPU_SET(0, &own);
        allowed = &own;
    }
    out->n_cpus = CPU_COUNT(allowed);
    int quota = dir ? INT_MAX : pp_cpu_quota(NULL, NULL);
    out->n_at_once = quota < out->n_cpus ? quota : out->n_cpus;
    read_nodes(dir ? dir : "/sys/devices/system/node", allowed, out);
    int known = 0;
    for (int i = 0; i < out->n_nodes; i++)
        known += out->nodes[i].n_cpus;
    if (known == out->n_cpus)
        return;
    out->n_nodes = 1; /* nothing is known: the machine counts as one node */
    out->nodes[0] = (struct pp_node){.n_cpus = out->n_cpus, .cpus = *allowed};
}

/* --- caches ---------------------------------------------------------------------------------------------------- */

/* "32768K\n", as the kernel writes it. */
static size_t read_cache_size(const char *path)
{
    FILE *f = fopen(path, "re");
    unsigned long kib = 0;
    if (f && fscanf(f, "%luK", &kib) != 1)
        kib = 0;
    if (f)
        fclose(f);
    return kib < SIZE_MAX / 1024 ? (size_t)kib * 1024 : 0;
}

size_t pp_topology_cache_bytes(const char *dir, const struct pp_topology *t)
{
    size_t bytes = 0;
    cpu_set_t seen, sharers;
    CPU_ZERO(&seen);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char path[PATH_MAX];
        bool ours = false;
        for (int i = 0; i < t->n_nodes; i++)
            ours = ours || CPU_ISSET((size_t)cpu, &t->nodes[i].cpus);
        if (!ours || CPU_ISSET((size_t)cpu, &seen))
            continue;
        const char *at = dir ? dir : "/sys/devices/system/cpu";
        if (snprintf(path, sizeof path, "%s/cpu%d/cache/index3/shared_cpu_list", at, cpu) >= (int)sizeof path)
            continue;
        read_cpu_list(path, &sharers);
        CPU_OR(&seen, &seen, &sharers);
        if (snprintf(path, sizeof path, "%s/cpu%d/cache/index3/size", at, cpu) < (int)sizeof path)
            bytes += read_cache_size(path);
    }
    return bytes;
}

/* --- quotas ---------------------------------------------------------------------------------------------------- */

/* A group's cpu.max: "max 100000", or microseconds of processor time and of the period that they are for. */
static int group_quota(const char *root, const char *group)
{
    char path[PATH_MAX];
    long long quota, period;
    int n = INT_MAX;
    if (snprintf(path, sizeof path, "%s%s/cpu.max", root, group) >= (int)sizeof path)
        return n;
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0 && quota / period < INT_MAX - 1)
        n = (int)((quota + period - 1) / period);
    if (f)
        fclose(f);
    return n;
}

/* The path after "0::" in /proc/self/cgroup, "" for the root. */
static void own_group(const char *file, char *group, size_t size)
{
    FILE *f = fopen(file, "re");
    char line[PATH_MAX];
    *group = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "0::/", 4) == 0) {
            line[strcspn(line, "\n")] = 0;
            snprintf(group, size, "%s", line + 3);
            break;
        }
    if (f)
        fclose(f);
}

int pp_cpu_quota(const char *root, const char *self)
{
    char group[PATH_MAX];
    root = root ? root : "/sys/fs/cgroup";
    own_group(self ? self : "/proc/self/cgroup", group, sizeof group);
    if (strstr(group, "/..")) /* from another name space */
        *group = 0;
    for (int least = INT_MAX;;) { /* a group is also limited by its parents */
        int n = group_quota(root, group);
        char *last = strrchr(group, '/');
        least = n < least ? n : least;
        if (!last)
            return least;
        *last = 0;
    }
}

int pp_topology_node_of(const struct pp_topology *t, int cpu)
{
    for (int i = 0; cpu >= 0 && cpu < CPU_SETSIZE && i < t->n_nodes; i++)
        if (CPU_ISSET((size_t)cpu, &t->nodes[i].cpus))
            return i;
    return 0;
}

/* --- memory ---------------------------------------------------------------------------------------------------- */

enum { MODE_PREFERRED = 1, MODE_INTERLEAVE = 3, FLAG_MOVE = 1 << 1, MOST_NODES = 1024 };

struct node_mask {
    unsigned long words[MOST_NODES / (8 * sizeof(long))];
};

static void add_node(struct node_mask *m, int id)
{
    if (id >= 0 && id < MOST_NODES)
        m->words[(size_t)id / (8 * sizeof(long))] |= 1ul << (size_t)id % (8 * sizeof(long));
}

/* mbind(2) without its library. */
static void bind_pages(void *addr, size_t bytes, int mode, const struct node_mask *mask)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)addr + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)addr + bytes) / page * page;
    if (begin < end)
        (void)!syscall(SYS_mbind, begin, end - begin, mode, mask->words, (unsigned long)MOST_NODES, FLAG_MOVE);
}

void pp_memory_prefer(void *addr, size_t bytes, int id)
{
    struct node_mask mask = {{0}};
    add_node(&mask, id);
    bind_pages(addr, bytes, MODE_PREFERRED, &mask);
}

void pp_memory_interleave(void *addr, size_t bytes, const struct pp_topology *t)
{
    struct node_mask mask = {{0}};
    for (int i = 0; i < t->n_nodes; i++)
        add_node(&mask, t->nodes[i].id);
    bind_pages(addr, bytes, MODE_INTERLEAVE, &mask);
}
