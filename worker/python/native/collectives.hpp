/* The collectives of a group over torch's tensors, as operations of the library. */
#ifndef SHOAL_NATIVE_COLLECTIVES_H
#define SHOAL_NATIVE_COLLECTIVES_H

#include <vector>

#include "worker/python/native/tensors.hpp"
#include "worker/python/native/work.hpp"

namespace shoal_native
{

/* Each call starts one collective and returns its Work. It returns null, and has started nothing,
 * where the tensors do not lie as the library takes them, where the library does not know the type
 * or the operation, and where the group has failed: the group's part in Python knows what to do.
 * Throws Error where the library refuses the call. */
class Collectives : public Group
{
  public:
    using Group::Group;
    using Started = c10::intrusive_ptr<Work>;
    using List = std::vector<at::Tensor>;
    using Lists = std::vector<List>; /* for each tensor one list, with a tensor for each rank */

    Started all_reduce(const List &tensors, const c10d::AllreduceOptions &options);
    Started reduce(const List &tensors, const c10d::ReduceOptions &options);
    Started broadcast(const List &tensors, const c10d::BroadcastOptions &options);
    Started barrier(const c10d::BarrierOptions &options);
    Started all_gather(const Lists &outputs, const List &tensors,
                       const c10d::AllgatherOptions &options);
    /* Each output has room for all ranks' tensors, one after the other. */
    Started all_gather_into_tensors(const List &outputs, const List &tensors,
                                    const c10d::AllgatherOptions &options);
    Started reduce_scatter(const List &outputs, const Lists &tensors,
                           const c10d::ReduceScatterOptions &options);
    Started reduce_scatter_tensors(const List &outputs, const List &tensors,
                                   const c10d::ReduceScatterOptions &options);
    /* outputs: none but on the root */
    Started gather(const Lists &outputs, const List &tensors, const c10d::GatherOptions &options);
    /* tensors: none but on the root */
    Started scatter(const List &outputs, const Lists &tensors, const c10d::ScatterOptions &options);
    Started all_to_all(const List &outputs, const List &tensors,
                       const c10d::AllToAllOptions &options);
    /* Parts of these sizes, by the first dimension; no sizes: equal parts. */
    Started all_to_all_single(const at::Tensor &output, const at::Tensor &tensor,
                              const std::vector<int64_t> &output_sizes,
                              const std::vector<int64_t> &input_sizes,
                              const c10d::AllToAllOptions &options);
    Started send(const List &tensors, int peer, int tag);
    Started recv(const List &tensors, int peer, int tag);
    /* One tensor, from whichever rank sends first: the Work's sourceRank(). */
    Started recv_any(const List &tensors, int tag);

  private:
    bool fit(const Lists &lists, const List &tensors) const;
    bool fit(const List &wholes, const List &parts) const;
    Started gather_all(const char *verb, Milliseconds limit, const List &tensors,
                       const std::vector<Parts> &parts, Tensors &&used);
    Started scatter_sums(const char *verb, const c10d::ReduceScatterOptions &options,
                         const List &outputs, const std::vector<Parts> &parts, Tensors &&used);
    Started exchange(const char *verb, const c10d::AllToAllOptions &options, const Parts &from,
                     const Parts &to, shoal_dtype dtype, Tensors &&used);
    template <typename Start>
    Started start(size_t count, const char *verb, Milliseconds limit, Tensors &&used,
                  const Start &call, int peer = -1, bool receives = false);
    void leave(const Operations &operations, const Error &why);
};

} // namespace shoal_native

#endif
