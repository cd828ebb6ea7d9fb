/* torch's Work for operations: one, but where a call makes several requests. */
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

using Operations = std::vector<std::shared_ptr<Operation>>;

/* Tensors that a collective uses, and those that are its Work's value. */
struct Tensors {
    std::vector<at::Tensor> used;
    std::vector<at::Tensor> results;
    size_t list_length = 0; /* of the lists that the results come in; 0: they come in none */
    std::shared_ptr<int> source = nullptr; /* of a receive from any rank: set when it is complete */
};

class Work : public c10d::Work
{
  public:
    /* operations: at least one, of one session. */
    Work(Operations operations, std::shared_ptr<const Tensors> tensors);
    /* One for what all of these stand for. works: at least one. */
    static c10::intrusive_ptr<Work> join(const std::vector<c10::intrusive_ptr<Work>> &works);
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
    /* Wait as wait() does; without a timeout as long as the operations may take. in_all: the
     * timeout of a wait for several, of which `timeout` is left. */
    void wait_for(std::optional<Milliseconds> timeout,
                  std::optional<Milliseconds> in_all = std::nullopt);
    /* End the receives among its operations: a wait for them, or one beside them, has timed out. */
    void end_receive(const Error &why);

  private:
    Session &session() const;
    bool published() const;

    const Operations operations;
    const std::shared_ptr<const Tensors> tensors;
    std::mutex making; /* of the future */
    std::shared_ptr<std::atomic<bool>> chained;
    c10::intrusive_ptr<c10::ivalue::Future> future;
};

} // namespace shoal_native

#endif
