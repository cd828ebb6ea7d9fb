#include "common/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct core {
    hwloc_obj_t object; /* hwloc's, lives as long as the topology */
    uint32_t numa;      /* dense number of its memory node */
    uint32_t turn;      /* how many cores of the same memory node come before it */
};

struct topology {
    hwloc_topology_t hwloc;
    struct core *cores; /* in the order of thread indexes */
    uint32_t core_count;
    uint32_t numa_count;
    bool bindable;
};

static int core_compare(const void *left, const void *right)
{
    const struct core *a = left, *b = right;
    if (a->turn != b->turn)
        return a->turn < b->turn ? -1 : 1;
    return a->numa < b->numa ? -1 : a->numa > b->numa;
}

/* Number the memory nodes in order of appearance, and deal the cores out node by node. */
static void cores_arrange(struct topology *topology)
{
    for (uint32_t i = 0; i < topology->core_count; i++) {
        struct core *core = &topology->cores[i];
        /* High-bandwidth memory adds a second node to the same cores: the first stands for both. */
        int node = hwloc_bitmap_first(core->object->nodeset);
        core->numa = topology->numa_count;
        for (uint32_t j = 0; j < i; j++) {
            if (hwloc_bitmap_first(topology->cores[j].object->nodeset) == node) {
                core->numa = topology->cores[j].numa;
                core->turn++;
            }
        }
        if (core->numa == topology->numa_count)
            topology->numa_count++;
    }
    qsort(topology->cores, topology->core_count, sizeof(*topology->cores), core_compare);
}

static int cores_find(struct topology *topology, struct error *error)
{
    /* Some virtual machines show processors and no cores. */
    hwloc_obj_type_t type = HWLOC_OBJ_CORE;
    int count = hwloc_get_nbobjs_by_type(topology->hwloc, type);
    if (count <= 0) {
        type = HWLOC_OBJ_PU;
        count = hwloc_get_nbobjs_by_type(topology->hwloc, type);
    }
    if (count <= 0)
        return error_set(error, ERR_SYSTEM, "hwloc finds no processor that may be used");

    topology->cores = calloc((size_t)count, sizeof(*topology->cores));
    if (!topology->cores)
        return error_set(error, ERR_MEMORY, "no memory for %d cores", count);
    topology->core_count = (uint32_t)count;
    for (int i = 0; i < count; i++)
        topology->cores[i].object = hwloc_get_obj_by_type(topology->hwloc, type, (unsigned)i);
    cores_arrange(topology);
    return 0;
}

static int hwloc_open(struct topology *topology, const char *synthetic, struct error *error)
{
    if (hwloc_topology_init(&topology->hwloc)) {
        topology->hwloc = NULL;
        return error_set(error, ERR_MEMORY, "hwloc cannot begin");
    }
    if (synthetic) {
        if (hwloc_topology_set_synthetic(topology->hwloc, synthetic))
            return error_set(error, ERR_INVALID, "hwloc does not understand \"%s\"", synthetic);
    } else if (hwloc_topology_set_flags(topology->hwloc,
                                        HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM |
                                            HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING)) {
        return error_set_errno(error, errno, "hwloc refuses its flags");
    }
    if (hwloc_topology_load(topology->hwloc))
        return error_set_errno(error, errno, "hwloc cannot read the machine's topology");
    topology->bindable = !synthetic;
    return 0;
}

int topology_open(struct topology **topology, const char *synthetic, struct error *error)
{
    struct topology *opened = calloc(1, sizeof(*opened));
    if (!opened)
        return error_set(error, ERR_MEMORY, "no memory for the topology");
    int code = hwloc_open(opened, synthetic, error);
    if (!code)
        code = cores_find(opened, error);
    if (code) {
        topology_close(opened);
        return code;
    }
    *topology = opened;
    return 0;
}

void topology_close(struct topology *topology)
{
    if (!topology)
        return;
    if (topology->hwloc)
        hwloc_topology_destroy(topology->hwloc);
    free(topology->cores);
    free(topology);
}

uint32_t topology_core_count(const struct topology *topology)
{
    return topology->core_count;
}

uint32_t topology_numa_count(const struct topology *topology)
{
    return topology->numa_count;
}

uint32_t topology_core_numa(const struct topology *topology, uint32_t index)
{
    return topology->cores[index % topology->core_count].numa;
}

int topology_bind_thread(const struct topology *topology, uint32_t index, struct error *error)
{
    uint32_t core = index % topology->core_count;
    if (!topology->bindable)
        return error_set(error, ERR_UNSUPPORTED, "core %u is not one of this machine", core);
    if (hwloc_set_cpubind(topology->hwloc, topology->cores[core].object->cpuset,
                          HWLOC_CPUBIND_THREAD) == 0)
        return 0;
    if (errno == ENOSYS || errno == EXDEV || errno == EPERM)
        return error_set(error, ERR_UNSUPPORTED, "this system does not let a thread be bound");
    return error_set_errno(error, errno, "binding a thread to core %u", core);
}

const char *topology_describe(const struct topology *topology, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%u core%s, %u NUMA node%s", topology->core_count,
             topology->core_count == 1 ? "" : "s", topology->numa_count,
             topology->numa_count == 1 ? "" : "s");
    return text;
}
