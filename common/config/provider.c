#include "common/config/provider.h"

#include <string.h>

#define PROVIDERS(each)                                                                            \
    each("efa", "efa", false, true) each("verbs", "verbs", true, true)                             \
        each("tcp", "tcp", true, true) each("tcp;ofi_rxm", "tcp;ofi_rxm", false, false)            \
            each("verbs;ofi_rxm", "verbs;ofi_rxm", false, false)                                   \
                each("tcp:rdm", "tcp", false, false) each("shm", "shm", false, false)

#define ROW(name, provider, connected, automatic) {name, provider, connected, automatic},
#define NAME(name, provider, connected, automatic) name,

const struct provider providers[] = {PROVIDERS(ROW)};

const size_t provider_count = sizeof(providers) / sizeof(providers[0]);

const char *const provider_choices[] = {"auto", PROVIDERS(NAME) NULL};

const struct provider *provider_find(const char *name)
{
    for (size_t i = 0; i < provider_count; i++) {
        if (strcmp(providers[i].name, name) == 0)
            return &providers[i];
    }
    return NULL;
}
