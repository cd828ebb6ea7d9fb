#include "worker/python/native/memory.hpp"

namespace shoal_native
{

namespace
{

void *take_bytes(Session &session, size_t bytes)
{
    if (bytes == 0 || !session.job || !session.enter())
        return nullptr;
    void *memory = session.library->alloc(session.job, bytes);
    if (!memory) {
        TORCH_WARN_ONCE("shoal: a tensor that torch asked for is not in the arena, and collectives "
                        "copy it: ",
                        session.library->error_text());
    }
    session.leave();
    return memory;
}

} // namespace

at::Tensor allocate(Session &session, int64_t size, const at::TensorOptions &options)
{
    void *memory = options.device().is_cpu() && size > 0
                       ? take_bytes(session, static_cast<size_t>(size) * options.dtype().itemsize())
                       : nullptr;
    if (!memory)
        return at::empty({size}, options);
    /* The library outlives the tensor, and the job's memory lives as long as a piece of it. */
    auto give_back = [library = session.library, job = session.job](void *given) {
        library->free(job, given);
    };
    return at::from_blob(memory, {size}, give_back, options);
}

} // namespace shoal_native
