#include "common/base/unmapped.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OVERFLOW_DEFAULT 65534u
#define USERS UINT64_C(0xffffffff) /* all numbers but -1 */
#define MAP_BYTES 16384            /* 340 lines are the most */

void unmapped_parse(struct unmapped *unmapped, const char *map, const char *overflow)
{
    uint64_t mapped = 0, inside, outside, count;
    int length = 0;
    while (sscanf(map, "%" SCNu64 " %" SCNu64 " %" SCNu64 "%n", &inside, &outside, &count,
                  &length) == 3) {
        mapped += count <= USERS ? count : 0;
        map += length;
    }
    char *end;
    unsigned long uid = strtoul(overflow, &end, 10);
    unmapped->any = mapped < USERS;
    unmapped->uid = end == overflow ? OVERFLOW_DEFAULT : (uint32_t)uid;
}

/* Read a file of /proc as text. False: the file is not there. */
static bool file_read(const char *path, char *text, size_t room)
{
    size_t used = 0;
    ssize_t got = 1;
    text[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno != ENOENT;
    while (got > 0 && used + 1 < room) {
        got = read(fd, text + used, room - 1 - used);
        used += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    text[used] = '\0';
    return true;
}

void unmapped_read(struct unmapped *unmapped)
{
    char map[MAP_BYTES], overflow[32];
    *unmapped = (struct unmapped){.any = false};
    if (!file_read("/proc/self/uid_map", map, sizeof(map)))
        return;
    file_read("/proc/sys/kernel/overflowuid", overflow, sizeof(overflow));
    unmapped_parse(unmapped, map, overflow);
}
