/* The functions of MPI that are not here, by their names (names.txt). */
#ifndef WORKER_MPI_ABSENT_H
#define WORKER_MPI_ABSENT_H

/* Constants that nothing here uses have values from here on, each its own. */
#define ABSENT_VALUE 100000

/* Made by names.awk. */
extern const char *const absent_names[];
extern const int absent_count;

/* Say on stderr that function number `number` is not here. Returns its error. */
int absent_called(int number);

#endif
