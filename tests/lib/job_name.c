#include "tests/lib/job_name.h"

#include <stdio.h>

#include "common/auth/auth.h"

void job_name_with_home(char name[64], const char *stem, uint32_t home, uint32_t count)
{
    for (uint32_t i = 0;; i++) {
        snprintf(name, 64, "%s-%u", stem, i);
        if (auth_home_of_job(name, count) == home)
            return;
    }
}
