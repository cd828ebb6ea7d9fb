/* Sums of what lies in the place, in rank order: the daemon's bits. */
#include <fenv.h>
#include <string.h>

#include "worker/meeting/meeting_private.h"

/* Bytes that are summed at once for a caller whose memory is not aligned. */
#define UNALIGNED_BYTES 4096u

_Static_assert(MEETING_RANKS_MAX <= REDUCE_MAX_INPUTS, "one pass reduces all");

/* The caller may round as it likes, or flush subnormals; the daemon does not. */
#if defined(__x86_64__)
/* Value of the one register of <fenv.h> that kernels use; to save the rest takes as long as a small
 * collective. */
#define MXCSR_DEFAULT 0x1f80u

typedef unsigned arithmetic;

static arithmetic arithmetic_begin(void)
{
    arithmetic callers = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(MXCSR_DEFAULT);
    return callers;
}

static void arithmetic_end(const arithmetic *callers)
{
    __builtin_ia32_ldmxcsr(*callers);
}
#else
typedef fenv_t arithmetic;

static arithmetic arithmetic_begin(void)
{
    arithmetic callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    return callers;
}

static void arithmetic_end(const arithmetic *callers)
{
    fesetenv(callers);
}
#endif

void meeting_sum(const struct meeting *meeting, const struct meeting_ask *ask, const void *in[],
                 uint64_t count, void *out[], unsigned outputs)
{
    arithmetic callers = arithmetic_begin();
    reduce_run(meeting->kernels, &(struct reduction){.dtype = (enum dtype)ask->dtype,
                                                     .op = (enum reduce_op)ask->op,
                                                     .divisor = meeting->size,
                                                     .inputs = meeting->size,
                                                     .outputs = outputs,
                                                     .count = count,
                                                     .in = in,
                                                     .out = out});
    arithmetic_end(&callers);
}

void meeting_sum_to(const struct meeting *meeting, const struct meeting_ask *ask, const void *in[],
                    uint64_t count, uint8_t *to)
{
    uint64_t element_bytes = dtype_bytes(ask->dtype);
    void *out[1] = {to};
    if ((uintptr_t)to % element_bytes == 0) {
        meeting_sum(meeting, ask, in, count, out, 1);
        return;
    }
    _Alignas(64) uint8_t piece[UNALIGNED_BYTES];
    const void *at[MEETING_RANKS_MAX];
    uint64_t at_once = sizeof(piece) / element_bytes;
    out[0] = piece;
    for (uint64_t done = 0; done < count; done += at_once) {
        uint64_t some = count - done < at_once ? count - done : at_once;
        for (uint32_t i = 0; i < meeting->size; i++)
            at[i] = (const uint8_t *)in[i] + done * element_bytes;
        meeting_sum(meeting, ask, at, some, out, 1);
        memcpy(to + done * element_bytes, piece, some * element_bytes);
    }
}
