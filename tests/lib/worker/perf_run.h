/* shoalperf as a user runs it, under shoalrun and over real daemons, its rows checked. */
#ifndef TESTS_LIB_WORKER_PERF_RUN_H
#define TESTS_LIB_WORKER_PERF_RUN_H

/* Every type; and with every operation: 4 floating types by 5 operations and 8 integer types by 11.
 */
#define PERF_TYPES 12
#define PERF_PAIRS 108

/* Runs "shoalrun <shape> -- shoalperf <words>", both split at blanks, and fails the test unless it
 * ends with 0 and every row is JSON with no wrong element. Returns how many rows there were. */
int perf_rows_measured(const char *shape, const char *words);

#endif
