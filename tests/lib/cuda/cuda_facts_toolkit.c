/* The table of facts (tests/lib/cuda/cuda_facts.h) of the CUDA Toolkit's cuda.h, against which the
 * compiler holds our declarations of functions here; an empty one where there is no toolkit. */
#include "tests/lib/cuda/cuda_facts.h"

#ifdef SHOAL_CUDA_TOOLKIT
#include "worker/device/cuda_driver.h"

/* The forms of cuMemcpyBatchAsync are types only, so no declaration is held against the toolkit's.
 */
#if CUDA_VERSION >= 13000
#define BATCH cuda_batch_13000
#else
#define BATCH cuda_batch_12080
#endif
_Static_assert(__builtin_types_compatible_p(__typeof__(&cuMemcpyBatchAsync), BATCH),
               "cuMemcpyBatchAsync has another type");

struct cuda_facts cuda_facts_toolkit(void)
{
    static const struct cuda_fact table[] = {CUDA_FACTS};
    return (struct cuda_facts){table, sizeof(table) / sizeof(table[0])};
}
#else
struct cuda_facts cuda_facts_toolkit(void)
{
    return (struct cuda_facts){NULL, 0};
}
#endif
