#include "common/env.h"

#include <stdlib.h>

#include "common/error.h"

int env_set_default(const char *name, const char *value)
{
    return setenv(name, value, 0) == 0 ? 0 : ERR_MEMORY;
}
