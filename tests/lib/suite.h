/* Functions that every test program shares: running a Check suite, and skipping with a reason. */
#ifndef TESTS_LIB_SUITE_H
#define TESTS_LIB_SUITE_H

#include <check.h>

/* Run the suite, print Check's totals line, free it. Returns the exit status for main. */
int suite_main(Suite *suite);

/* Print "SKIP <name>: <reason>", which scripts/run-tests.sh counts. The caller returns then. */
void suite_skip(const char *name, const char *reason, ...) __attribute__((format(printf, 2, 3)));

/* A folder of this test's own under TMPDIR or /tmp; removed with everything in it by
 * suite_remove_directory, or when the program ends, if the test has failed before. The caller frees
 * the string. */
char *suite_make_directory(void);
void suite_remove_directory(char *directory);

#endif
