#include "worker/python/native/average.hpp"

#include <ATen/core/jit_type.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>

namespace shoal_native
{

namespace
{

constexpr int NO_PASS = -1;

uint64_t nanoseconds(Clock::duration time)
{
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

} // namespace

Averages::Averages(c10::intrusive_ptr<c10d::ProcessGroup> group, bool static_graph)
    : group(std::move(group)), static_graph(static_graph)
{
}

c10::intrusive_ptr<c10::ivalue::Future> Averages::start(c10d::GradBucket &bucket)
{
    if (bucket.getIndex() == 0)
        begin();
    look();
    std::vector<at::Tensor> tensors{bucket.getBufferRef()};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp(c10d::ReduceOp::AVG);
    Clock::time_point began = Clock::now();
    auto started = group->allreduce(tensors, options);
    auto work = c10::dynamic_intrusive_pointer_cast<Work>(started);
    int pass = torch::autograd::get_current_graph_task_id();
    bool waits = work && pass != NO_PASS;
    std::unique_lock<std::mutex> held(lock);
    step.buffers++;
    step.bytes += tensors[0].is_sparse() ? 0 : tensors[0].nbytes();
    if (!waits) {
        others.push_back(started);
        last = step;
        held.unlock();
        return started->getFuture();
    }
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    under_way.push_back({std::move(work), future, tensors[0], began, std::nullopt});
    if (!static_graph && finishing.insert(pass).second)
        torch::autograd::Engine::get_default_engine().queue_callback(
            [self = shared_from_this()] { self->finish(); });
    held.unlock();
    if (static_graph && bucket.isLast())
        finish();
    return future;
}

void Averages::Bucket::complete(const std::exception_ptr &why)
{
    if (why)
        future->setError(why);
    else
        future->markCompleted(average);
}

void Averages::begin()
{
    settle(); /* a pass that has raised has left some, where no forward pass came in between */
    std::lock_guard<std::mutex> held(lock);
    finishing.clear();
    step = Numbers();
}

void Averages::settle()
{
    for (;;) {
        std::unique_lock<std::mutex> held(lock);
        c10::intrusive_ptr<c10d::Work> work;
        if (!under_way.empty())
            work = under_way.front().work;
        else if (!others.empty())
            work = others.front();
        else
            return;
        held.unlock();
        try {
            work->wait();
        } catch (const Error &) {
            /* The group has failed, and says so when it is next used. */
        }
        held.lock();
        forget(work);
    }
}

/* Have nobody wait for one that is over. The lock is held. */
void Averages::forget(const c10::intrusive_ptr<c10d::Work> &work)
{
    others.erase(std::remove(others.begin(), others.end(), work), others.end());
    auto bucket = std::find_if(under_way.begin(), under_way.end(),
                               [&](const Bucket &it) { return it.work == work; });
    if (bucket == under_way.end())
        return;
    bucket->complete(work->exception());
    under_way.erase(bucket);
}

void Averages::hand_over(std::unique_ptr<c10d::CommHookInterface> hook)
{
    settle();
    script = std::move(hook);
}

/* Note which of them are complete by now. */
void Averages::look()
{
    std::lock_guard<std::mutex> held(lock);
    for (auto &bucket : under_way)
        if (!bucket.ended && bucket.work->isCompleted())
            bucket.ended = Clock::now();
}

void Averages::finish()
{
    std::vector<Bucket> buckets;
    {
        std::lock_guard<std::mutex> held(lock);
        buckets.swap(under_way);
    }
    std::exception_ptr why;
    Clock::time_point waited_from = Clock::now();
    for (auto &bucket : buckets) {
        try {
            if (!why)
                bucket.work->wait_for(std::nullopt);
        } catch (...) {
            why = std::current_exception();
        }
        if (!bucket.ended)
            bucket.ended = Clock::now();
    }
    count(buckets, waited_from);
    for (auto &bucket : buckets)
        bucket.complete(why);
}

/* Begins are in order; ends need not be. */
void Averages::count(const std::vector<Bucket> &buckets, Clock::time_point waited_from)
{
    std::lock_guard<std::mutex> held(lock);
    Clock::time_point counted = Clock::time_point::min();
    for (const auto &bucket : buckets) {
        Clock::time_point from = std::max(bucket.began, counted);
        if (*bucket.ended > from)
            step.communication += *bucket.ended - from;
        counted = std::max(counted, *bucket.ended);
    }
    if (counted > waited_from)
        step.exposed += counted - waited_from;
    last = step;
}

std::map<std::string, uint64_t> Averages::statistics() const
{
    std::lock_guard<std::mutex> held(lock);
    return {{"buffers", last.buffers},
            {"bytes", last.bytes},
            {"communication_ns", nanoseconds(last.communication)},
            {"exposed_ns", nanoseconds(last.exposed)}};
}

} // namespace shoal_native
