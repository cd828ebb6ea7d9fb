#include "worker/python/native/operation.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace shoal_native
{

namespace
{

/* Longest time that a wait lasts before the thread looks for signals such as Ctrl-C. */
constexpr Milliseconds SLICE{500};

std::string seconds(Milliseconds time)
{
    char text[32];
    snprintf(text, sizeof(text), "%g", static_cast<double>(time.count()) / 1000);
    return text;
}

/* Longest time that the end of a job waits for the callbacks that Python has hung on futures. */
constexpr std::chrono::seconds CALLS_LIMIT{5};

/* The library's thread calls it, or one that waits. */
void complete(void *argument, int result)
{
    std::unique_ptr<std::shared_ptr<Operation>> operation(
        static_cast<std::shared_ptr<Operation> *>(argument));
    (*operation)->end(result);
}

} // namespace

Group::Group(std::shared_ptr<Session> session, shoal_group *handle, int rank, int size,
             std::string name, std::string ranks, Milliseconds timeout)
    : session(std::move(session)), handle(handle), rank(rank), size(size), name(std::move(name)),
      ranks(std::move(ranks)), timeout(timeout)
{
}

void Group::fail(const Error &why)
{
    std::lock_guard<std::mutex> held(lock);
    if (!error)
        error = why;
    failed = true;
}

std::optional<Error> Group::failure() const
{
    std::lock_guard<std::mutex> held(lock);
    return error;
}

Operation::Operation(std::shared_ptr<Group> group, const Call &call,
                     std::shared_ptr<const void> kept)
    : group(std::move(group)), deadline(Clock::now() + call.timeout), call(call),
      kept(std::move(kept))
{
}

void Operation::begin(shoal_request *started)
{
    request = started;
    if (!group->session->add(shared_from_this()))
        forget(Error(SHOAL_ESTATE, "the job was closed while " + name() + " was started"));
}

std::string Operation::name() const
{
    std::string peer = call.peer < 0 ? "" : std::to_string(call.peer) + " of the group";
    return call.verb + peer + " (torch's group " + group->name + ", ranks " + group->ranks + ")";
}

void Operation::wait(std::optional<Milliseconds> limit, const std::function<void()> &between)
{
    wait_until(limit ? Clock::now() + *limit : deadline, limit, between);
}

void Operation::wait_until(Clock::time_point end, std::optional<Milliseconds> limit,
                           const std::function<void()> &between)
{
    group->session->check_process();
    while (!published()) {
        auto remaining = std::chrono::ceil<Milliseconds>(end - Clock::now());
        if (remaining.count() > 0) {
            if (!advance(std::min(remaining, SLICE)))
                between();
        } else if (!limit) {
            expire();
        } else if (std::string where; !advance(Milliseconds(0), &where)) {
            Error why = late("wait's timeout", *limit, where);
            end_receive(why);
            if (!call.receives)
                throw why;
        }
    }
    if (error)
        throw *error;
}

Error Operation::late(const char *limit, Milliseconds time, const std::string &where) const
{
    return Error(SHOAL_ETIMEOUT, "timed out: " + name() + " has not completed within " + limit +
                                     " of " + seconds(time) + " s" + where);
}

bool Operation::advance(Milliseconds at_most, std::string *where)
{
    std::unique_lock<std::timed_mutex> used(use, std::defer_lock);
    if (!(at_most.count() > 0 ? used.try_lock_for(at_most) : used.try_lock()))
        return published();
    if (!request)
        return published();
    user = std::this_thread::get_id();
    int code = group->session->library->wait(request, static_cast<int>(at_most.count()));
    user = std::thread::id();
    if (code == SHOAL_ETIMEOUT) {
        if (where)
            *where = ": " + group->session->library->waits_for();
        used.unlock();
        /* Whoever has had it watched meanwhile has found this thread at it. Only now: one that
         * comes later finds it free. */
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (watched)
            have_looked_at();
        return published();
    }
    std::optional<Error> why;
    if (code < 0)
        why = group->session->library->error(code);
    request = nullptr;
    used.unlock();
    publish(OVER, std::move(why));
    return true;
}

/* A send and its receive that do not fit fail, and nothing else. If it is the group that has failed
 * with this, its next call hears so. */
bool Operation::may_be_alone() const
{
    return error->code == SHOAL_EMISMATCH &&
           (std::strncmp(call.verb, "send ", 5) == 0 || std::strncmp(call.verb, "recv ", 5) == 0);
}

void Operation::publish(State next, std::optional<Error> why)
{
    bool first;
    std::shared_ptr<const void> unused; /* freed without the lock: tensors may call Python */
    {
        std::lock_guard<std::mutex> held(moving);
        first = state == RUNNING;
        if (state == OVER || (next == FAILED && !first))
            return;
        if (first)
            error = std::move(why);
        if (first && error && !may_be_alone())
            group->fail(*error);
        if (next == OVER)
            unused.swap(kept);
        state.store(next, std::memory_order_release);
    }
    if (first)
        tell();
    if (next == OVER)
        group->session->remove(this);
}

void Operation::tell()
{
    std::vector<std::function<void(const Error *)>> told;
    {
        std::lock_guard<std::mutex> held(moving);
        told.swap(listeners);
    }
    for (const auto &listener : told)
        listener(error ? &*error : nullptr);
}

void Operation::watch(std::function<void(const Error *)> told)
{
    if (told) {
        bool late;
        {
            std::lock_guard<std::mutex> held(moving);
            late = state != RUNNING;
            if (!late)
                listeners.push_back(told);
        }
        if (late)
            told(error ? &*error : nullptr);
    }
    if (published() || watched.exchange(true))
        return;
    group->session->wake_at(deadline);
    have_looked_at();
}

void Operation::have_looked_at()
{
    /* A thread that is at it asks when it has left. */
    std::atomic_thread_fence(std::memory_order_seq_cst);
    bool complete = false;
    {
        std::unique_lock<std::timed_mutex> used(use, std::try_to_lock);
        if (used.owns_lock() && request)
            complete = ask_library();
    }
    /* Whoever is at it now may just have found that it is not. */
    if (complete && !advance(Milliseconds(0)))
        group->session->look_at(shared_from_this());
}

bool Operation::ask_library()
{
    if (asked)
        return false;
    asked = true;
    called = false;
    auto *argument = new std::shared_ptr<Operation>(shared_from_this());
    asking = true;
    user = std::this_thread::get_id();
    if (group->session->library->on_complete(request, complete, argument) < 0) {
        delete argument; /* the job is being closed, which fails this one; or not now */
        asked = false;
    }
    user = std::thread::id();
    asking = false;
    return called;
}

void Operation::end(int code)
{
    /* Here and now: to wake another thread for it costs time that a step waits for. */
    if (user == std::this_thread::get_id()) {
        called = asking; /* else a wait for it, which returns now */
        return;
    }
    std::unique_lock<std::timed_mutex> used(use, std::try_to_lock);
    if (!used.owns_lock()) {
        /* Whoever is at it may just have found that it is not complete. */
        group->session->look_at(shared_from_this());
        return;
    }
    if (!request)
        return;
    std::optional<Error> why;
    if (code < 0)
        why = group->session->library->error(code);
    group->session->library->request_free(request);
    request = nullptr;
    used.unlock();
    publish(OVER, std::move(why));
}

void Operation::expire()
{
    /* The request may be long complete, and nobody has looked. */
    std::string where;
    if (advance(Milliseconds(0), &where))
        return;
    {
        std::unique_lock<std::timed_mutex> used(use, std::try_to_lock);
        if (used.owns_lock() && !request)
            return; /* another thread has found it complete, and publishes it now */
    }
    give_up(late("its timeout", call.timeout, where));
}

void Operation::end_receive(const Error &why)
{
    if (call.receives && why.code == SHOAL_ETIMEOUT && !published())
        give_up(why); /* nobody looks for its message any more */
}

void Operation::give_up(Error why)
{
    publish(FAILED, std::move(why));
    watched = true;
    group->session->wake_at(Clock::time_point::max());
    have_looked_at();
}

void Operation::forget(const Error &why)
{
    /* First: who waits for it would else take it again and again. */
    publish(FAILED, why);
    std::lock_guard<std::timed_mutex> used(use);
    request = nullptr;
}

OwnProcess::OwnProcess()
{
    auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        throw Error(SHOAL_EMEMORY, "out of memory for a page that a forked process finds empty");
    if (madvise(page, bytes, MADV_WIPEONFORK) != 0) { /* as in some containers */
        munmap(page, bytes);
        return;
    }
    mark = static_cast<volatile unsigned char *>(page);
    *mark = 1;
}

OwnProcess::~OwnProcess()
{
    if (mark)
        munmap(const_cast<unsigned char *>(mark), static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

Session::Session(std::shared_ptr<const Library> library, shoal_job *job)
    : library(std::move(library)), job(job), pid(getpid())
{
}

void Session::check_process() const
{
    if (!own_process())
        throw Error(SHOAL_ESTATE, "process " + std::to_string(getpid()) + " was forked from " +
                                      std::to_string(pid) + ", whose process group it cannot use");
}

bool Session::enter()
{
    std::lock_guard<std::mutex> held(lock);
    if (!open())
        return false;
    starting++;
    return true;
}

void Session::leave()
{
    std::lock_guard<std::mutex> held(lock);
    starting--;
    quiet.notify_all();
}

bool Session::add(const std::shared_ptr<Operation> &operation)
{
    std::lock_guard<std::mutex> held(lock);
    operation->place = under_way.insert(under_way.end(), operation);
    return !forgotten;
}

void Session::remove(Operation *operation)
{
    std::shared_ptr<Operation> last; /* freed without the lock */
    std::lock_guard<std::mutex> held(lock);
    if (released)
        return;
    last = *operation->place;
    under_way.erase(operation->place);
    quiet.notify_all();
}

void Session::look_at(std::shared_ptr<Operation> operation)
{
    std::lock_guard<std::mutex> held(lock);
    if (stopping)
        return;
    looks.push_back(std::move(operation));
    changed.notify_one();
}

void Session::wake_at(Clock::time_point deadline)
{
    std::lock_guard<std::mutex> held(lock);
    if (stopping)
        return;
    if (!thread.joinable()) {
        sleeps_until = deadline;
        thread = std::thread([self = shared_from_this()] { self->run(); });
    } else if (deadline < sleeps_until) {
        sleeps_until = deadline;
        changed.notify_one();
    }
}

void Session::expire_oldest()
{
    std::shared_ptr<Operation> oldest;
    {
        std::lock_guard<std::mutex> held(lock);
        if (!under_way.empty())
            oldest = under_way.front();
    }
    if (oldest && Clock::now() >= oldest->deadline)
        oldest->expire();
}

Clock::time_point Session::expire_late()
{
    std::deque<std::shared_ptr<Operation>> late;
    Clock::time_point next = Clock::time_point::max(), now = Clock::now();
    {
        std::lock_guard<std::mutex> held(lock);
        for (const auto &operation : under_way) {
            if (operation->published())
                continue;
            if (operation->deadline <= now)
                late.push_back(operation);
            else
                next = std::min(next, operation->deadline);
        }
    }
    for (const auto &operation : late)
        operation->expire();
    return next;
}

void Session::run()
{
    pthread_setname_np(pthread_self(), "shoal-native");
    std::unique_lock<std::mutex> held(lock);
    while (!stopping) {
        if (!looks.empty()) {
            std::shared_ptr<Operation> operation = std::move(looks.front());
            looks.pop_front();
            held.unlock();
            /* The operation is complete; but another thread may be at it, and just have found that
             * it is not. */
            bool over = operation->advance(SLICE);
            held.lock();
            if (!over)
                looks.push_back(operation);
            held.unlock();
            operation.reset();
            held.lock();
        } else if (sleeps_until == Clock::time_point::max()) {
            changed.wait(held);
        } else if (changed.wait_until(held, sleeps_until) == std::cv_status::timeout) {
            /* Operations that are added meanwhile are due later, or wake this thread. */
            sleeps_until = Clock::time_point::max();
            held.unlock();
            Clock::time_point next = expire_late();
            held.lock();
            sleeps_until = std::min(sleeps_until, next);
        }
    }
}

void Session::call(std::function<void()> what)
{
    {
        std::lock_guard<std::mutex> held(lock);
        calls.push_back(std::move(what));
        if (calls.size() <= idle_callers) {
            called.notify_one();
            return;
        }
        try {
            std::thread([self = shared_from_this()] { self->run_calls(); }).detach();
            return;
        } catch (const std::system_error &) {
            what = std::move(calls.back());
            calls.pop_back();
        }
    }
    what();
}

void Session::run_calls()
{
    pthread_setname_np(pthread_self(), "shoal-callbacks");
    std::unique_lock<std::mutex> held(lock);
    while (!stopping || !calls.empty()) {
        if (calls.empty()) {
            idle_callers++;
            called.wait(held);
            idle_callers--;
            continue;
        }
        std::function<void()> what = std::move(calls.front());
        calls.pop_front();
        calling.insert(std::this_thread::get_id());
        held.unlock();
        what();
        what = nullptr; /* freed without the lock: it may be Python's */
        held.lock();
        calling.erase(std::this_thread::get_id());
        quiet.notify_all();
    }
}

bool Session::quiet_but_for(std::thread::id caller) const
{
    return calls.empty() && calling.size() == calling.count(caller);
}

void Session::settle(Milliseconds at_most, const std::string &text)
{
    Clock::time_point end = Clock::now() + at_most;
    std::list<std::shared_ptr<Operation>> left;
    {
        std::lock_guard<std::mutex> held(lock);
        left = under_way;
    }
    for (const auto &operation : left) {
        while (!operation->over()) {
            auto remaining = std::chrono::ceil<Milliseconds>(end - Clock::now());
            if (remaining.count() <= 0) {
                operation->give_up(Error(SHOAL_ESTATE, text));
                break;
            }
            operation->advance(std::min(remaining, SLICE));
        }
    }
    /* Whoever has published one tells of it, which may be a call, and then removes it. */
    std::thread::id caller = std::this_thread::get_id();
    std::unique_lock<std::mutex> held(lock);
    quiet.wait_until(held, std::min(end, Clock::now() + CALLS_LIMIT), [&] {
        return quiet_but_for(caller) &&
               std::none_of(under_way.begin(), under_way.end(),
                            [](const auto &operation) { return operation->over(); });
    });
}

void Session::close(const std::string &text)
{
    std::list<std::shared_ptr<Operation>> left;
    std::thread ending;
    {
        std::unique_lock<std::mutex> held(lock);
        stopping = true;
        looks.clear();
        /* A thread whose turn it is in the library may take its time. */
        quiet.wait_for(held, CALLS_LIMIT, [&] { return starting == 0; });
        forgotten = true;
        left = under_way;
        ending.swap(thread);
        changed.notify_one();
        called.notify_all();
    }
    /* A callback that hangs on an operation may be what closes the job. */
    std::thread::id caller = std::this_thread::get_id();
    if (ending.joinable() && ending.get_id() == caller)
        ending.detach();
    else if (ending.joinable())
        ending.join();
    for (const auto &operation : left)
        operation->forget(Error(SHOAL_ESTATE, text));
    std::unique_lock<std::mutex> held(lock);
    quiet.wait_for(held, CALLS_LIMIT, [&] { return quiet_but_for(caller); });
}

void Session::give_up(const Group *group, const Error &why)
{
    std::list<std::shared_ptr<Operation>> all;
    {
        std::lock_guard<std::mutex> held(lock);
        all = under_way;
    }
    for (const auto &operation : all)
        if (operation->group.get() == group)
            operation->give_up(why);
}

void Session::release()
{
    std::list<std::shared_ptr<Operation>> left;
    std::lock_guard<std::mutex> held(lock);
    left.swap(under_way);
    released = true;
}

} // namespace shoal_native
