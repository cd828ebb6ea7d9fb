#include "worker/device/device_numa.h"

#include <ctype.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024u
#define WORD_BITS (8 * sizeof(unsigned long))

int device_numa_find(const char *devices, const char *address)
{
    char path[PATH_MAX], lower[32];
    size_t length = strlen(address);
    int node = -1;
    if (length >= sizeof(lower))
        return -1;
    for (size_t i = 0; i <= length; i++) /* drivers write the digits in capitals */
        lower[i] = (char)tolower((unsigned char)address[i]);
    snprintf(path, sizeof(path), "%s/%s/numa_node", devices ? devices : "/sys/bus/pci/devices",
             lower);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    char text[32] = "";
    if (!fgets(text, sizeof(text), file) || sscanf(text, "%9d", &node) != 1)
        node = -1;
    fclose(file);
    return node < 0 || (unsigned)node >= NODES_MAX ? -1 : node;
}

void device_numa_prefer(void *memory, uint64_t bytes, int node)
{
    unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
    if (node < 0)
        return;
    nodes[(unsigned)node / WORD_BITS] = 1ul << ((unsigned)node % WORD_BITS);
    /* Refused in some containers, where nothing is lost but nearness. */
    syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes, NODES_MAX, 0);
}
