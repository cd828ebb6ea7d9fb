#include "worker/programs/shoalrun/beside.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The library lies here, seen from a program in bin. */
#define JAX_LIBRARY "../lib/libshoal-mpitrampoline.so"

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

int beside_find_jax_library(char path[PATH_MAX], struct error *error)
{
    beside_find(JAX_LIBRARY, R_OK, path);
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!library)
        return error_set(error, ERR_SYSTEM, "the library for JAX cannot be loaded: %s", dlerror());
    dlclose(library);
    return 0;
}
