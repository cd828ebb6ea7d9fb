/* The table of facts (tests/lib/cuda/cuda_facts.h) of our own declarations. */
#include "tests/lib/cuda/cuda_facts.h"
#include "worker/device/cuda_driver.h"

#ifdef SHOAL_CUDA_TOOLKIT
#error "this file is built without the toolkit's cuda.h"
#endif

struct cuda_facts cuda_facts_own(void)
{
    static const struct cuda_fact table[] = {CUDA_FACTS};
    return (struct cuda_facts){table, sizeof(table) / sizeof(table[0])};
}
