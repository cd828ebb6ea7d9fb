/* The cores and memory nodes of this machine, as far as this process may use them: what a cgroup,
 * a container or an affinity mask takes away is not there. For binding reduce threads near the
 * memory that they sum. A share of processor time (a cgroup's cpu.max) takes no core away. Calls
 * common/base. */
#ifndef COMMON_MEMORY_TOPOLOGY_H
#define COMMON_MEMORY_TOPOLOGY_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

struct topology;

/* Keep hwloc from loading plugins (unless HWLOC_PLUGINS_PATH is set), which it would do whether or
 * not they are used. A daemon calls this while the process has one thread and before it opens a
 * topology. With plugins come libraries of graphics and XML: 2.7 MiB of resident memory, a twelfth
 * of the start. */
void topology_prepare_environment(void);

/* Look at this machine or, when `synthetic` is not NULL, at the machine that it describes in
 * hwloc's words ("numa:2 core:4 pu:2", or hwloc's XML), on which nothing can be bound. *topology is
 * the caller's to close. Returns 0, ERR_INVALID (the description), ERR_MEMORY or ERR_SYSTEM. */
int topology_open(struct topology **topology, const char *synthetic, struct error *error);
void topology_close(struct topology *topology); /* NULL is allowed */

/* Physical cores (one, however many hardware threads it has), and the memory nodes that they are
 * nearest to; at least 1 each. */
uint32_t topology_core_count(const struct topology *topology);
uint32_t topology_numa_count(const struct topology *topology);

/* The memory node, 0 .. numa_count-1, of the core that thread `index` is bound to. Indexes go round
 * the memory nodes, so that few threads use the memory of all of them, and begin again after the
 * last core: any index will do. */
uint32_t topology_core_numa(const struct topology *topology, uint32_t index);

/* Bind the calling thread to that core. Several threads may call it at once. Returns 0,
 * ERR_UNSUPPORTED (the system cannot, or does not let us) or ERR_SYSTEM; the thread then runs
 * where it did, which is slower and no harm. */
int topology_bind_thread(const struct topology *topology, uint32_t index, struct error *error);

/* A GPU, by its PCI address; what of the rest is not known is -1 and "". */
struct topology_gpu {
    char address[16];
    int numa_node; /* as the system numbers them */
    char nic[32];  /* the network interface whose way to it is shortest */
};
/* The number of GPUs; of the first `room` of them what they are. */
uint32_t topology_gpus(const struct topology *topology, struct topology_gpu *gpus, uint32_t room);

/* "8 cores, 2 NUMA nodes, GPU 0000:1b:00.0 (NUMA node 0, nearest to eth0)": for the log and the
 * status. Returns text; cut when it does not fit. */
const char *topology_describe(const struct topology *topology, char *text, size_t text_bytes);

#endif
