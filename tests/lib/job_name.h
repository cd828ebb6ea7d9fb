/* Names of jobs for tests in which it matters which node is a job's home. */
#ifndef TESTS_LIB_JOB_NAME_H
#define TESTS_LIB_JOB_NAME_H

#include <stdint.h>

/* A name "STEM-N" of a job whose home is the node `home` of `count`. */
void job_name_with_home(char name[64], const char *stem, uint32_t home, uint32_t count);

#endif
