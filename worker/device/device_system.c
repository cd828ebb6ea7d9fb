#include "worker/device/device_system.h"

#include <ctype.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024u
#define LANES_MAX 64u
#define WORD_BITS (8 * sizeof(unsigned long))

/* The first line of what the system says of the device under this name; "" when there is none. */
static void say(const char *devices, const char *address, const char *name, char *text, int room)
{
    char path[PATH_MAX], lower[32];
    size_t length = strlen(address);
    text[0] = '\0';
    if (length >= sizeof(lower))
        return;
    for (size_t i = 0; i <= length; i++) /* drivers write the digits in capitals */
        lower[i] = (char)tolower((unsigned char)address[i]);
    snprintf(path, sizeof(path), "%s/%s/%s", devices ? devices : "/sys/bus/pci/devices", lower,
             name);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    if (!fgets(text, room, file))
        text[0] = '\0';
    fclose(file);
}

int device_system_node(const char *devices, const char *address)
{
    char text[32];
    int node = -1;
    say(devices, address, "numa_node", text, sizeof(text));
    if (sscanf(text, "%9d", &node) != 1)
        return -1;
    return node < 0 || (unsigned)node >= NODES_MAX ? -1 : node;
}

uint64_t device_system_link_rate(const char *devices, const char *address)
{
    char speed[32], width[32];
    unsigned tenths = 0, whole, lanes;
    say(devices, address, "max_link_speed", speed, sizeof(speed));
    say(devices, address, "max_link_width", width, sizeof(width));
    /* "32.0 GT/s PCIe": a bit each; up to 5 GT/s a byte is sent as 10 of them. */
    if (sscanf(speed, "%4u.%1u GT/s", &whole, &tenths) < 1 || !strstr(speed, "GT/s") ||
        sscanf(width, "%4u", &lanes) != 1 || lanes > LANES_MAX)
        return 0;
    return (whole * 10ull + tenths) * 100000000u / (whole > 5 ? 8 : 10) * lanes;
}

void device_system_prefer(void *memory, uint64_t bytes, int node)
{
    unsigned long nodes[NODES_MAX / WORD_BITS] = {0};
    if (node < 0)
        return;
    nodes[(unsigned)node / WORD_BITS] = 1ul << ((unsigned)node % WORD_BITS);
    /* Refused in some containers, where nothing is lost but nearness. */
    syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes, NODES_MAX, 0);
}
