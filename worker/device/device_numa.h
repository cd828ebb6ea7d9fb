/* The memory node that a device is attached to, on which memory for it should lie. Calls nothing.
 */
#ifndef WORKER_DEVICE_DEVICE_NUMA_H
#define WORKER_DEVICE_DEVICE_NUMA_H

#include <stdint.h>

/* The memory node of the device with this PCI address, by the system's own account, a folder like
 * /sys/bus/pci/devices (NULL: that one). -1 when it is not known, as on a machine with one node. */
int device_numa_find(const char *devices, const char *address);

/* Ask that pages of this memory, which begins on a page, be taken from the node when they are
 * touched for the first time. A wish: where the system does not know of nodes, nothing happens. */
void device_numa_prefer(void *memory, uint64_t bytes, int node);

#endif
