/* The Backend that torch has for a group of shoal's. */
#ifndef SHOAL_NATIVE_BACKEND_H
#define SHOAL_NATIVE_BACKEND_H

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "worker/python/native/collectives.hpp"

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
#define SHOAL_TORCH_HAS_ERRORS
#endif

namespace shoal_native
{

/* Collectives is asked for each collective first, without Python's lock; the group's part in Python
 * (class Member of shoal.torch._member), whose methods have the same names as here, does what
 * Collectives cannot do, and what is rare. Any thread may call, with Python's lock or without it.
 *
 * Methods without `override` are not in every torch that this is built for. */
class __attribute__((visibility("hidden"))) Backend final : public c10d::Backend
{
  public:
    using Started = c10::intrusive_ptr<c10d::Work>;
    using List = std::vector<at::Tensor>;
    using Lists = std::vector<List>;

    /* member: its part in Python. */
    Backend(std::shared_ptr<Collectives> collectives, py::object member);
    ~Backend() override;
    Backend(const Backend &) = delete;
    Backend &operator=(const Backend &) = delete;

    const std::string getBackendName() const override
    {
        return "shoal";
    }
    bool supportsSplitting() const override
    {
        return true;
    }
    virtual bool supportsCoalescing() const
    {
        return true;
    }
    virtual bool supportsShrinking() const
    {
        return true;
    }
    /* Memory of the CPU can be had, whose device has no number. */
    virtual bool supportsTensorAlloc(c10::DeviceIndex device)
    {
        return device < 0;
    }
    /* Make a tensor in the arena (memory.hpp). */
    virtual at::Tensor allocateTensor(long size, at::TensorOptions options = {});

    Started broadcast(List &tensors, const c10d::BroadcastOptions &options) override;
    Started allreduce(List &tensors, const c10d::AllreduceOptions &options) override;
    Started allreduce_sparse(List &tensors, const c10d::AllreduceOptions &options) override;
    Started allreduce_coalesced(List &tensors,
                                const c10d::AllreduceCoalescedOptions &options) override;
    Started reduce(List &tensors, const c10d::ReduceOptions &options) override;
    Started allgather(Lists &outputs, List &tensors,
                      const c10d::AllgatherOptions &options) override;
    Started _allgather_base(at::Tensor &output, at::Tensor &tensor,
                            const c10d::AllgatherOptions &options) override;
    Started allgather_coalesced(Lists &outputs, List &tensors,
                                const c10d::AllgatherOptions &options) override;
    Started allgather_into_tensor_coalesced(List &outputs, List &tensors,
                                            const c10d::AllgatherOptions &options) override;
    Started gather(Lists &outputs, List &tensors, const c10d::GatherOptions &options) override;
    Started scatter(List &outputs, Lists &tensors, const c10d::ScatterOptions &options) override;
    Started reduce_scatter(List &outputs, Lists &tensors,
                           const c10d::ReduceScatterOptions &options) override;
    Started _reduce_scatter_base(at::Tensor &output, at::Tensor &tensor,
                                 const c10d::ReduceScatterOptions &options) override;
    Started reduce_scatter_tensor_coalesced(List &outputs, List &tensors,
                                            const c10d::ReduceScatterOptions &options) override;
    Started alltoall_base(at::Tensor &output, at::Tensor &tensor,
                          std::vector<int64_t> &output_sizes, std::vector<int64_t> &input_sizes,
                          const c10d::AllToAllOptions &options) override;
    Started alltoall(List &outputs, List &tensors, const c10d::AllToAllOptions &options) override;
    Started send(List &tensors, int peer, int tag) override;
    Started recv(List &tensors, int peer, int tag) override;
    Started recvAnysource(List &tensors, int tag) override;
    Started barrier(const c10d::BarrierOptions &options) override;
    void monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks) override;

    /* Begin and end a batch: what is started between the two calls has one Work. */
    void startCoalescing() override;
    Started endCoalescing() override;

    void setSequenceNumberForGroup() override;
    uint64_t getSequenceNumberForGroup() override;

    virtual void setTimeout(Milliseconds timeout);
    virtual c10::intrusive_ptr<Options> getBackendOptions();
    /* ranks: of this group, in the order in which the new group has them. */
    virtual c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store,
                                                    const std::vector<int> &ranks,
                                                    const c10::intrusive_ptr<Options> &options);
    /* Make a job with ranks that are in no job of this group. */
    virtual c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store> &store,
                                                    const c10::intrusive_ptr<Options> &options,
                                                    const int &rank, const int &size);
    virtual c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t> &without, int flags,
                                                     const c10::intrusive_ptr<Options> &options);
    /* Fail what is under way; every thread that waits for it goes on at once. A group that is the
     * whole job leaves it, so that the other ranks learn of it. */
    virtual void abort();
    /* Take no more calls. The last group of a job that shuts down leaves the job. */
    virtual void shutdown();
#ifdef SHOAL_TORCH_HAS_ERRORS
    virtual c10d::ErrorType getError();
#endif

    const std::shared_ptr<Collectives> collectives;
    py::object member; /* in need of Python's lock */

  private:
    Started add(Started work, bool native);
    template <typename Call, typename... Arguments>
    Started start(const Call &native, const char *method, const Arguments &...arguments);
    template <typename... Arguments>
    Started in_python(const char *method, const Arguments &...arguments);
    template <typename Result, typename... Arguments>
    Result ask(const char *method, const Arguments &...arguments);
    void give_up_batch(const std::string &why);

    py::object last_receive; /* from any rank, in Python: its object knows the source */
    std::mutex lock;         /* of what follows; nothing is called under it */
    bool batching = false;
    std::vector<Started> batch;
    bool batch_is_native = true;
    std::optional<std::string> refused; /* why the batch that was begun last is none */
};

} // namespace shoal_native

#endif
