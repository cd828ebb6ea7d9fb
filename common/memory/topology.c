#include "common/memory/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/env.h"

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

static int core_compare(const void *one, const void *other)
{
    const struct core *a = one, *b = other;
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

/* Components of hwloc that would ask libraries of other kinds, which load drivers and start
 * threads. */
static const char *const plugins[] = {"pci", "opencl", "cuda", "nvml", "rsmi", "levelzero", "gl"};

void topology_prepare_environment(void)
{
    env_set_default("HWLOC_PLUGINS_PATH", "");
}

static int hwloc_open(struct topology *topology, const char *synthetic, struct error *error)
{
    if (hwloc_topology_init(&topology->hwloc)) {
        topology->hwloc = NULL;
        return error_set(error, ERR_MEMORY, "hwloc cannot begin");
    }
    /* GPUs and network interfaces, as the system shows them; without them a machine is as good. */
    hwloc_topology_set_io_types_filter(topology->hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    for (size_t i = 0; i < sizeof(plugins) / sizeof(plugins[0]); i++)
        hwloc_topology_set_components(topology->hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                      plugins[i]);
    if (synthetic && synthetic[0] == '<') {
        if (hwloc_topology_set_xmlbuffer(topology->hwloc, synthetic, (int)strlen(synthetic) + 1))
            return error_set(error, ERR_INVALID, "hwloc does not understand this XML");
    } else if (synthetic) {
        if (hwloc_topology_set_synthetic(topology->hwloc, synthetic))
            return error_set(error, ERR_INVALID, "hwloc does not understand \"%s\"", synthetic);
    } else if (hwloc_topology_set_flags(topology->hwloc,
                                        HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM |
                                            HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING)) {
        return error_set_errno(error, errno, "hwloc refuses its flags");
    }
    /* One reader of XML sees at once that it is none, the other when the topology is loaded. */
    if (hwloc_topology_load(topology->hwloc))
        return synthetic
                   ? error_set(error, ERR_INVALID, "hwloc cannot read what was described")
                   : error_set_errno(error, errno, "hwloc cannot read the machine's topology");
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

/* --- GPUs ----------------------------------------------------------------------------------- */

#define GPUS_DESCRIBED 16u
#define VENDOR_NVIDIA 0x10de
#define CLASS_DISPLAY 0x03 /* the upper byte of a PCI class */

static bool is_gpu(hwloc_obj_t object)
{
    const struct hwloc_pcidev_attr_s *pci = &object->attr->pcidev;
    return object->type == HWLOC_OBJ_PCI_DEVICE && pci->vendor_id == VENDOR_NVIDIA &&
           pci->class_id >> 8 == CLASS_DISPLAY;
}

/* How far down in the tree both are still together. */
static int common_depth(hwloc_obj_t a, hwloc_obj_t b)
{
    int depth = 0;
    for (hwloc_obj_t up = a; up; up = up->parent) {
        for (hwloc_obj_t other = b; other; other = other->parent) {
            if (other != up)
                continue;
            for (; up->parent; up = up->parent)
                depth++;
            return depth;
        }
    }
    return 0;
}

static void find_nic(const struct topology *topology, hwloc_obj_t gpu, char *name, size_t room)
{
    int nearest = -1;
    name[0] = '\0';
    for (hwloc_obj_t device = NULL;
         (device = hwloc_get_next_osdev(topology->hwloc, device)) != NULL;) {
        if (device->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK || !device->name)
            continue;
        int depth = common_depth(gpu, device);
        if (depth > nearest) {
            nearest = depth;
            snprintf(name, room, "%s", device->name);
        }
    }
}

uint32_t topology_gpus(const struct topology *topology, struct topology_gpu *gpus, uint32_t room)
{
    uint32_t count = 0;
    for (hwloc_obj_t device = NULL;
         (device = hwloc_get_next_pcidev(topology->hwloc, device)) != NULL;) {
        const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
        if (!is_gpu(device) || count++ >= room)
            continue;
        struct topology_gpu *gpu = &gpus[count - 1];
        snprintf(gpu->address, sizeof(gpu->address), "%04x:%02x:%02x.%01x", pci->domain & 0xffffu,
                 pci->bus, pci->dev, pci->func & 0xfu);
        hwloc_obj_t above = hwloc_get_non_io_ancestor_obj(topology->hwloc, device);
        /* Above several nodes it is near none of them. */
        gpu->numa_node = above && above->nodeset && hwloc_bitmap_weight(above->nodeset) == 1
                             ? hwloc_bitmap_first(above->nodeset)
                             : -1;
        find_nic(topology, device, gpu->nic, sizeof(gpu->nic));
    }
    return count;
}

static size_t append(char *text, size_t room, size_t used, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static size_t append(char *text, size_t room, size_t used, const char *format, ...)
{
    va_list arguments;
    if (used >= room)
        return used;
    va_start(arguments, format);
    int length = vsnprintf(text + used, room - used, format, arguments);
    va_end(arguments);
    return used + (length > 0 ? (size_t)length : 0);
}

const char *topology_describe(const struct topology *topology, char *text, size_t text_bytes)
{
    struct topology_gpu gpus[GPUS_DESCRIBED];
    uint32_t count = topology_gpus(topology, gpus, GPUS_DESCRIBED);
    size_t used = append(text, text_bytes, 0, "%u core%s, %u NUMA node%s", topology->core_count,
                         topology->core_count == 1 ? "" : "s", topology->numa_count,
                         topology->numa_count == 1 ? "" : "s");
    for (uint32_t i = 0; i < count && i < GPUS_DESCRIBED; i++) {
        used = append(text, text_bytes, used, ", GPU %s (", gpus[i].address);
        if (gpus[i].numa_node >= 0)
            used = append(text, text_bytes, used, "NUMA node %d", gpus[i].numa_node);
        else
            used = append(text, text_bytes, used, "no NUMA node");
        if (gpus[i].nic[0])
            used = append(text, text_bytes, used, ", nearest to %s", gpus[i].nic);
        used = append(text, text_bytes, used, ")");
    }
    return text;
}
