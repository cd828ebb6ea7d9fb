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

/* Of this process. A kernel without user namespaces has none. */
void unmapped_read(struct unmapped *unmapped);
/* The same from what /proc/self/uid_map and /proc/sys/kernel/overflowuid have; what makes no sense
 * maps nobody, and "" stands for the kernel's default. */
void unmapped_parse(struct unmapped *unmapped, const char *map, const char *overflow);

#endif
