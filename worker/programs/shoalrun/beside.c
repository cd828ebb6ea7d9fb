#include "worker/programs/shoalrun/beside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void beside_find(const char *file, int mode, char path[PATH_MAX])
{
    char own[PATH_MAX], joined[2 * PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    if (length > 0) {
        own[length] = 0;
        char *slash = strrchr(own, '/');
        if (slash) {
            slash[1] = 0;
            snprintf(joined, sizeof(joined), "%s%s", own, file);
            if (realpath(joined, path) && access(path, mode) == 0)
                return;
        }
    }
    const char *name = strrchr(file, '/');
    snprintf(path, PATH_MAX, "%s", name ? name + 1 : file);
}
