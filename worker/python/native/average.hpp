/* The communication hook of shoal's DistributedDataParallel. */
#ifndef SHOAL_NATIVE_AVERAGE_H
#define SHOAL_NATIVE_AVERAGE_H

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <map>
#include <set>
#include <string>

#include "worker/python/native/work.hpp"

namespace shoal_native
{

/* The averages of a wrapper's buckets: started as each is full, waited for where the backward pass
 * ends. That thread then moves the data itself: torch's own wait for a future would leave it to
 * another, which is to be woken for each bucket. */
class Averages : public std::enable_shared_from_this<Averages>
{
  public:
    /* static_graph: of the wrapper. torch then looks at the results of the first pass where the
     * last bucket has been started, so that they are waited for there. */
    Averages(c10::intrusive_ptr<c10d::ProcessGroup> group, bool static_graph);

    c10::intrusive_ptr<c10::ivalue::Future> start(c10d::GradBucket &bucket);
    /* Wait for the averages of a pass that has raised, which write into the buckets. */
    void settle();
    /* Have the script's hook do what start() does, from now on. */
    void hand_over(std::unique_ptr<c10d::CommHookInterface> hook);
    /* The script's hook, or null. */
    c10d::CommHookInterface *script_hook() const
    {
        return script.get();
    }
    /* Return figures of the last backward pass: "buffers" and "bytes" that were sent;
     * "communication_ns", while one of them was not known to be complete; "exposed_ns", while it
     * was waited for. */
    std::map<std::string, uint64_t> statistics() const;

  private:
    struct Bucket {
        c10::intrusive_ptr<Work> work;
        c10::intrusive_ptr<c10::ivalue::Future> future;
        at::Tensor average;
        Clock::time_point began;
        std::optional<Clock::time_point> ended;

        void complete(const std::exception_ptr &why); /* why: null, it is well */
    };
    struct Numbers {
        uint64_t buffers = 0, bytes = 0;
        Clock::duration communication{}, exposed{};
    };

    void begin();
    void look();
    void finish();
    void forget(const c10::intrusive_ptr<c10d::Work> &work);
    void count(const std::vector<Bucket> &buckets, Clock::time_point waited_from);

    const c10::intrusive_ptr<c10d::ProcessGroup> group;
    const bool static_graph;
    mutable std::mutex lock;
    std::vector<Bucket> under_way;
    std::vector<c10::intrusive_ptr<c10d::Work>> others; /* torch waits for them; of this pass */
    std::set<int> finishing; /* backward passes at whose ends finish() is called */
    Numbers step, last;
    std::unique_ptr<c10d::CommHookInterface> script; /* not changed while a pass runs */
};

/* The hook itself, which is the reducer's. */
class Average final : public c10d::CommHookInterface
{
  public:
    explicit Average(std::shared_ptr<Averages> averages) : averages(std::move(averages))
    {
    }
    c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket &bucket) override
    {
        auto *script = averages->script_hook();
        return script ? script->runHook(bucket) : averages->start(bucket);
    }
    at::Tensor parseHookResult(const c10::IValue &result) override
    {
        auto *script = averages->script_hook();
        return script ? script->parseHookResult(result)
                      : c10d::detail::parseCppCommHookResult(result);
    }

  private:
    const std::shared_ptr<Averages> averages;
};

} // namespace shoal_native

#endif
