/* A benchmark's program, which prints one line of JSON. A failure in here fails the test. */
#ifndef TESTS_LIB_BENCH_PROGRAM_H
#define TESTS_LIB_BENCH_PROGRAM_H

#include <jansson.h>

/* Run argv, the program and its arguments up to NULL. Return what it printed, to be freed with
 * json_decref(). */
json_t *bench_program_run(const char *const argv[]);
/* A figure of it, by its name. */
double bench_program_number(const json_t *row, const char *key);
/* Run argv, which must end with exit status 2 and have `expected` in its errors. */
void bench_program_refuses(const char *const argv[], const char *expected);

#endif
