/* Users that have no number in this process's user namespace (user_namespaces(7)). The kernel gives
 * one number for all of them, kernel.overflowuid, so whoever has it here may be anybody: it
 * identifies nobody. Calls nothing. */
#ifndef COMMON_BASE_UNMAPPED_H
#define COMMON_BASE_UNMAPPED_H

#include <stdbool.h>
#include <stdint.h>

struct unmapped {
    bool any;     /* there may be such users */
    uint32_t uid; /* their number, which one that is mapped may have too */
};

/* Read them for this process. A kernel without user namespaces has no such users. */
void unmapped_read(struct unmapped *unmapped);
/* Fill *unmapped from the texts of /proc/self/uid_map and /proc/sys/kernel/overflowuid. Lines of
 * the map that make no sense map nobody; an `overflow` of "" stands for the kernel's default,
 * 65534. */
void unmapped_parse(struct unmapped *unmapped, const char *map, const char *overflow);

#endif
