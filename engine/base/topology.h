/* topology.h - the machine's NUMA nodes and their CPUs: which memory is near to a thread.
 *
 * Read from /sys/devices/system/node, or from a folder like it, so that tests can have any machine they want. */
#ifndef PP_BASE_TOPOLOGY_H
#define PP_BASE_TOPOLOGY_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stddef.h>

enum { PP_MAX_NODES = 16 };

struct pp_topology {
    int n_cpus;             /* usable, of all nodes; at least 1 */
    int n_at_once;          /* how many of those a quota of processor time lets run at once; at least 1 */
    int n_nodes;            /* nodes with such CPUs, ascending by id; at least 1 */
    struct pp_node {
        int id;
        int n_cpus;
        cpu_set_t cpus;
    } nodes[PP_MAX_NODES];
};

/* dir: NULL for this machine's. allowed: the CPUs that count; NULL: those that this process may use. CPUs of no known
 * node count as those of one node with the id 0, as all do if nothing can be read. The quota is read for this machine
 * only. Any thread. */
void pp_topology_read(const char *dir, const cpu_set_t *allowed, struct pp_topology *out);
/* The quotas of processor time that apply to this process, in CPUs, rounded up; INT_MAX: there are none. A container
 * limited to two CPUs may see all sixty-four, and is stopped for a while whenever it uses more. root: the hierarchy of
 * control groups (version 2), NULL for /sys/fs/cgroup; self: the content of /proc/self/cgroup, NULL to read it. */
int pp_cpu_quota(const char *root, const char *self);
/* Bytes of all third-level caches of these CPUs; a shared one counts once; 0: unknown. dir: like
 * /sys/devices/system/cpu; NULL: that. */
size_t pp_topology_cache_bytes(const char *dir, const struct pp_topology *t);
/* Index of the node that this CPU belongs to, 0 if none. */
int pp_topology_node_of(const struct pp_topology *t, int cpu);

/* Puts memory on one node (preferred: a full node is no error), or evenly on all; pages that exist are moved, others
 * will be allocated there. addr, bytes: any; only whole pages within are affected. If the system refuses, pages stay
 * where they are. See mbind(2). */
void pp_memory_prefer(void *addr, size_t bytes, int node_id);
void pp_memory_interleave(void *addr, size_t bytes, const struct pp_topology *t);

#endif
