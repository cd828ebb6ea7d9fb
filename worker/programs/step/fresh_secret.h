/* A secret that the daemons of one run share, made for that run. Calls common/base. */
#ifndef WORKER_PROGRAMS_STEP_FRESH_SECRET_H
#define WORKER_PROGRAMS_STEP_FRESH_SECRET_H

#include "common/base/error.h"

#define FRESH_SECRET_BYTES 65 /* 64 hexadecimal digits and the end */

/* Make one of 32 random bytes. ERR_SYSTEM. */
int fresh_secret(char secret[FRESH_SECRET_BYTES], struct error *error);

#endif
