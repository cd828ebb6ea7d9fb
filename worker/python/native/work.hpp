/* torch's Work for an operation. */
#ifndef SHOAL_NATIVE_WORK_H
#define SHOAL_NATIVE_WORK_H

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "worker/python/native/operation.hpp"

namespace shoal_native
{

/* Tensors that a collective uses, and those that are its Work's value. */
struct Tensors {
    std::vector<at::Tensor> used;
    std::vector<at::Tensor> results;
    size_t list_length = 0; /* of the lists that the results come in; 0: they come in none */
};

class Work : public c10d::Work
{
  public:
    Work(std::shared_ptr<Operation> operation, std::shared_ptr<const Tensors> tensors);
    /* An operation that nobody holds any more goes on. */
    ~Work() override;
    Work(const Work &) = delete;
    Work &operator=(const Work &) = delete;

    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    void synchronize() override;
    bool wait(std::chrono::milliseconds timeout) override;
    void abort() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

    /* The future is given to Python: what is hung on it may wait for other operations, and has a
     * thread of its own. */
    void chain();
    /* As wait(); between: called twice a second. */
    void wait_for(std::optional<Milliseconds> timeout, const std::function<void()> &between);

  private:
    const std::shared_ptr<Operation> operation;
    const std::shared_ptr<const Tensors> tensors;
    std::mutex making; /* of the future */
    std::shared_ptr<std::atomic<bool>> chained;
    c10::intrusive_ptr<c10::ivalue::Future> future;
};

} // namespace shoal_native

#endif
