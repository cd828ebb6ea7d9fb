/* Memory of the job's arena as torch's tensors. */
#ifndef SHOAL_NATIVE_MEMORY_H
#define SHOAL_NATIVE_MEMORY_H

#include <ATen/ATen.h>

#include "worker/python/native/operation.hpp"

namespace shoal_native
{

/* Make a tensor of `size` elements in the arena, where the daemon reads and writes it: collectives
 * copy nothing. It may outlive the job. Where there is no room, which is said once, it is in
 * ordinary memory, and so is one on a device or of a job that is closed. */
at::Tensor allocate(Session &session, int64_t size, const at::TensorOptions &options);

} // namespace shoal_native

#endif
