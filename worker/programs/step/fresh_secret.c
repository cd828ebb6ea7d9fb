#include "worker/programs/step/fresh_secret.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/types.h>

int fresh_secret(char secret[FRESH_SECRET_BYTES], struct error *error)
{
    unsigned char random[(FRESH_SECRET_BYTES - 1) / 2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return error_set_errno(error, errno, "cannot get random bytes");
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(secret + 2 * i, 3, "%02x", random[i]);
    return 0;
}
