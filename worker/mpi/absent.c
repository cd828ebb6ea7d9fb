#include "worker/mpi/absent.h"

#include "worker/mpi/process.h"

int absent_called(int number)
{
    char text[MPI_ERROR_BYTES];
    int error = MPI_ERROR_ABSENT + number;
    process_error_text(error, text);
    process_say(text);
    return error;
}
