/* The memory that the ranks of a node share for results: made here, written by the engine alone. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/control/ground/control_internal.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif
/* Whoever has the descriptor cannot change this. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int control_segment_make(uint64_t bytes, bool writable, uint8_t **base, int *descriptor,
                         struct error *error)
{
    if (bytes > INT64_MAX)
        return error_set(error, ERR_MEMORY, "%" PRIu64 " bytes of shared memory", bytes);
    int memory = memfd_create("shoal-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0)
        return error_set_errno(error, errno, "cannot make shared memory (memfd_create)");
    int code = 0;
    void *mapped = MAP_FAILED;
    if (ftruncate(memory, (off_t)bytes) < 0)
        code =
            error_set_errno(error, errno, "cannot size shared memory to %" PRIu64 " bytes", bytes);
    if (code == 0) {
        mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        if (mapped == MAP_FAILED)
            code = error_set(error, ERR_MEMORY, "cannot map %" PRIu64 " bytes of shared memory: %s",
                             bytes, strerror(errno));
    }
    /* After the engine's mapping: from here on it can only be read. */
    int seals = writable ? SEALS : SEALS | F_SEAL_FUTURE_WRITE;
    if (code == 0 && fcntl(memory, F_ADD_SEALS, seals) < 0)
        code = errno == EINVAL ? error_set(error, ERR_UNSUPPORTED,
                                           "this system cannot keep shared memory from being "
                                           "written to (F_SEAL_FUTURE_WRITE, Linux 5.1)")
                               : error_set_errno(error, errno, "cannot seal shared memory");
    if (code != 0) {
        if (mapped != MAP_FAILED)
            munmap(mapped, bytes);
        close(memory);
        return code;
    }
    *base = mapped;
    *descriptor = memory;
    return 0;
}
