/* The system tells of a device its memory node and how fast its link is. Calls nothing. */
#ifndef WORKER_DEVICE_DEVICE_SYSTEM_H
#define WORKER_DEVICE_DEVICE_SYSTEM_H

#include <stdint.h>

/* devices: a folder like /sys/bus/pci/devices (NULL: that one). address: of PCI. */

/* The memory node on which memory for the device should lie. -1 when it is not known, as on a
 * machine with one node. */
int device_system_node(const char *devices, const char *address);
/* Return the most bytes a second that the device's link carries one way. 0: the system does not
 * know, as on some virtual machines. */
uint64_t device_system_link_rate(const char *devices, const char *address);

/* Ask that pages of this memory, which begins on a page, be taken from the node when they are
 * touched for the first time. A wish: where the system does not know of nodes, nothing happens. */
void device_system_prefer(void *memory, uint64_t bytes, int node);

#endif
