/* Collectives under way, and the threads for those that nobody waits for. */
#ifndef SHOAL_NATIVE_OPERATION_H
#define SHOAL_NATIVE_OPERATION_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "worker/python/native/library.hpp"

namespace shoal_native
{

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

class Group;
class Operation;

/* A mark of the process that made it, which a process forked from that does not have: the kernel
 * empties its page there. To ask for the process's number in each call would be a system call. */
class OwnProcess
{
  public:
    OwnProcess();
    OwnProcess(const OwnProcess &) = delete;
    ~OwnProcess();

    bool is_own() const
    {
        return mark ? *mark != 0 : number == getpid();
    }

  private:
    volatile unsigned char *mark = nullptr; /* null: this kernel empties no page */
    const pid_t number = getpid();
};

/* The operations of a job. Its thread sleeps unless an operation is watched. Threads keep it, so
 * that it is never destroyed while they sleep in it: not in a forked child either, where they are
 * not. */
class Session : public std::enable_shared_from_this<Session>
{
  public:
    /* job: whose memory tensors may have; null: none. */
    Session(std::shared_ptr<const Library> library, shoal_job *job);

    /* False in a process that was forked from the job's. */
    bool own_process() const
    {
        return process.is_own();
    }
    /* Whether collectives may be started: its own process, and not closed. */
    bool open() const
    {
        return !stopping && own_process();
    }

    /* Throws Error where it is not. */
    void check_process() const;
    /* Around what starts operations: close() waits for it. False: it is closed. */
    bool enter();
    void leave();
    /* False: close() has not waited for it, and whoever has started it is to forget it. */
    bool add(const std::shared_ptr<Operation> &operation);
    void remove(Operation *operation);
    /* Have the thread look whether it is complete. */
    void look_at(std::shared_ptr<Operation> operation);
    /* Have the thread let its time run out. */
    void wake_at(Clock::time_point deadline);
    /* Let the time of the oldest run out, for which perhaps nobody waits. */
    void expire_oldest();
    /* Wait until nothing is under way, before the job goes on without the groups. After `at_most`
     * what is left fails with this text, and keeps its memory. Functions that call() was given are
     * waited for too, but not for ever. */
    void settle(Milliseconds at_most, const std::string &text);
    /* Have a thread do what may wait for operations; this one where there is none to be had. */
    void call(std::function<void()> what);
    /* End the threads; what is under way fails with this text. Functions that call() was given are
     * waited for, but not for ever. The library may use the operations' memory until the job is
     * closed: release() after that. */
    void close(const std::string &text);
    void release();
    /* Fail what is under way of this group with `why`; its memory is kept. */
    void give_up(const Group *group, const Error &why);

    const std::shared_ptr<const Library> library;
    shoal_job *const job;

  private:
    void run();
    void run_calls();
    Clock::time_point expire_late();
    bool quiet_but_for(std::thread::id caller) const;

    const pid_t pid;
    const OwnProcess process;
    std::mutex lock;
    std::condition_variable changed;
    std::list<std::shared_ptr<Operation>> under_way;
    std::deque<std::shared_ptr<Operation>> looks;
    Clock::time_point sleeps_until = Clock::time_point::max();
    std::atomic<bool> stopping{false};
    bool released = false;
    std::thread thread;
    std::condition_variable called, quiet;
    std::deque<std::function<void()>> calls;
    std::set<std::thread::id> calling;
    size_t idle_callers = 0;
    size_t starting = 0;
    bool forgotten = false; /* what was under way, by close() */
};

/* A process group of torch: a group of the library, and what has become of it. */
class Group : public std::enable_shared_from_this<Group>
{
  public:
    Group(std::shared_ptr<Session> session, shoal_group *handle, int rank, int size,
          std::string name, std::string ranks, Milliseconds timeout);
    virtual ~Group() = default;

    /* After it the ranks no longer agree on what comes next. The first one stays. */
    void fail(const Error &error);
    std::optional<Error> failure() const;

    const std::shared_ptr<Session> session;
    shoal_group *const handle;
    const int rank, size;
    const std::string name, ranks;     /* for errors */
    std::atomic<Milliseconds> timeout; /* of calls that say none */
    std::atomic<uint64_t> sequence{0};
    std::atomic<bool> failed{false};

  private:
    mutable std::mutex lock;
    std::optional<Error> error;
};

/* A call of torch. If it makes several requests, their operations share it. */
struct Call {
    const char *verb; /* of static duration; with a peer it ends before the peer's number */
    int peer;         /* a rank of the group; -1: none is named */
    Milliseconds timeout;
    bool receives; /* a wait whose time runs out ends it, and the group with it */
};

/* One request of the library, the memory that it uses, and how it went.
 *
 *     RUNNING --- its request is complete -------------------------> OVER
 *        |                                                            ^
 *        +--- its time runs out --> FAILED --- complete after all ----+
 *
 * To leave RUNNING is to publish how it went, by the thread that moves it. */
class Operation : public std::enable_shared_from_this<Operation>
{
  public:
    enum State { RUNNING, FAILED, OVER };

    /* kept: what holds the memory. */
    Operation(std::shared_ptr<Group> group, const Call &call, std::shared_ptr<const void> kept);

    /* Take over a request that has been started. */
    void begin(shoal_request *started);
    /* Until it is published. Throws its error, or Error after `timeout` (none: the operation's own,
     * which fails it). between: called twice a second; it may throw. */
    void wait(std::optional<Milliseconds> timeout, const std::function<void()> &between);
    /* Wait as wait() does, but until `end`, in a wait for several that had `timeout` in all. */
    void wait_until(Clock::time_point end, std::optional<Milliseconds> timeout,
                    const std::function<void()> &between);
    /* End it, if it is a receive whose wait, or that of one beside it, has timed out. */
    void end_receive(const Error &why);
    /* Move on, for at most so long; return whether it is published. *where is set to what the
     * request waits for, behind ": ", when it goes on. */
    bool advance(Milliseconds at_most, std::string *where = nullptr);
    /* Have it completed though nobody waits: `told`, if any, is called once with its error or null.
     */
    void watch(std::function<void(const Error *)> told = nullptr);
    /* Its time has run out: it fails, unless it is complete. */
    void expire();
    /* Fail the operation, and keep its memory until its request is complete after all. */
    void give_up(Error why);
    /* The library's callback: its request is complete, with this result. */
    void end(int code);
    /* The job frees the request. */
    void forget(const Error &why);

    bool published() const
    {
        return state.load(std::memory_order_acquire) != RUNNING;
    }
    /* Nothing uses its memory any more. */
    bool over() const
    {
        return state.load(std::memory_order_acquire) == OVER;
    }
    /* Once it is published. */
    const std::optional<Error> &failure() const
    {
        return error;
    }

    const std::shared_ptr<Group> group;
    const Clock::time_point deadline;
    std::list<std::shared_ptr<Operation>>::iterator place; /* the session's */

  private:
    std::string name() const;
    /* Return the error that this time has passed; limit: whose it was. */
    Error late(const char *limit, Milliseconds time, const std::string &where) const;
    void have_looked_at();
    /* Whether the request is complete. */
    bool ask_library();
    bool may_be_alone() const;
    void publish(State next, std::optional<Error> why);
    void tell();

    const Call call;
    std::shared_ptr<const void> kept;
    std::timed_mutex use; /* who holds it uses the request */
    shoal_request *request = nullptr;
    std::atomic<bool> watched{false};
    bool asked = false;  /* the library calls when the request is complete; under `use` */
    bool asking = false; /* it is being asked to, under `use` */
    bool called = false; /* it did at once, under `use` */
    std::atomic<std::thread::id> user{}; /* whoever is in the library for it, under `use` */
    std::mutex moving;                   /* of the state */
    std::atomic<State> state{RUNNING};
    std::optional<Error> error;
    std::vector<std::function<void(const Error *)>> listeners; /* under `moving` */
};

} // namespace shoal_native

#endif
