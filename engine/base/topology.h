/* topology.h - the memory nodes of the machine and the CPUs beside each: where a thread is near to which memory.
 *
 * Read from /sys/devices/system/node, or from a folder made like it, so that tests can have any machine they like. */
#ifndef PP_BASE_TOPOLOGY_H
#define PP_BASE_TOPOLOGY_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stddef.h>

enum { PP_MAX_NODES = 16 };

struct pp_topology {
    int n_cpus;             /* that may be used, of all nodes; at least 1 */
    int n_at_once;          /* of those, as many as a quota of processor time lets run at once; at least 1 */
    int n_nodes;            /* with such CPUs, ascending by id; at least 1 */
    struct pp_node {
        int id;
        int n_cpus;
        cpu_set_t cpus;
    } nodes[PP_MAX_NODES];
};

/* dir: NULL for this machine's. allowed: the CPUs that count; NULL: those that this process may use. CPUs of no node
 * known count as one node's with the id 0; so does everything where nothing can be read. The quota is looked at for
 * this machine only. Any thread. */
void pp_topology_read(const char *dir, const cpu_set_t *allowed, struct pp_topology *out);
/* How many CPUs the quotas of processor time that this process stands under are worth, rounded up; INT_MAX: there are
 * none. A container of two CPUs may see all sixty-four, and is stopped for a while whenever it uses more. root: the
 * hierarchy of control groups (version 2), NULL for /sys/fs/cgroup; self: what /proc/self/cgroup says, NULL to read
 * it. */
int pp_cpu_quota(const char *root, const char *self);
/* Bytes of the third-level caches that these CPUs have together: one that several share counts once; 0: nothing is
 * said. dir: like /sys/devices/system/cpu; NULL: that. */
size_t pp_topology_cache_bytes(const char *dir, const struct pp_topology *t);
/* Index of the node that this CPU belongs to, 0 if none. */
int pp_topology_node_of(const struct pp_topology *t, int cpu);

/* Memory that has pages asks for them, and pages that are there are moved, to one node (preferred: a full node is no
 * error) or evenly over all. addr, bytes: any; only whole pages within are meant. The system may refuse; then the pages
 * stay where they are. See mbind(2). */
void pp_memory_prefer(void *addr, size_t bytes, int node_id);
void pp_memory_interleave(void *addr, size_t bytes, const struct pp_topology *t);

#endif
