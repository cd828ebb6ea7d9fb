#include "worker/python/native/work.hpp"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <pybind11/pybind11.h>

#include <unistd.h>

#include <algorithm>

namespace shoal_native
{

namespace
{

std::exception_ptr thrown(const Error &error)
{
    return std::make_exception_ptr(error);
}

c10::TypePtr type_of(const Tensors &tensors)
{
    c10::TypePtr list = c10::ListType::create(c10::TensorType::get());
    return tensors.list_length ? c10::ListType::create(list) : list;
}

c10::IValue value_of(const Tensors &tensors)
{
    if (!tensors.list_length)
        return c10::IValue(tensors.results);
    c10::List<c10::List<at::Tensor>> lists;
    for (size_t i = 0; i < tensors.results.size(); i += tensors.list_length) {
        c10::List<at::Tensor> list;
        for (size_t j = i; j < i + tensors.list_length; j++)
            list.push_back(tensors.results[j]);
        lists.push_back(list);
    }
    return c10::IValue(lists);
}

/* Raise what Ctrl-C asks for, where Python's main thread waits: no other thread gets signals. */
void look_for_signals()
{
    if (getpid() != gettid() || !Py_IsInitialized())
        return;
    pybind11::gil_scoped_acquire held;
    if (PyErr_CheckSignals() == 0)
        return;
    python_error raised;
    raised.persist();
    throw raised;
}

/* Ends of operations: what a future is told, once all of its operations are published. */
struct Ends {
    explicit Ends(size_t count) : left(count)
    {
    }

    /* Whether this was the last. */
    bool add(const Error *error)
    {
        std::lock_guard<std::mutex> held(lock);
        if (error && !failure)
            failure = thrown(*error);
        return --left == 0;
    }

    std::mutex lock;
    size_t left;
    std::exception_ptr failure; /* the first one; not changed after the last */
};

} // namespace

Work::Work(Operations operations, std::shared_ptr<const Tensors> tensors)
    : operations(std::move(operations)), tensors(std::move(tensors))
{
}

c10::intrusive_ptr<Work> Work::join(const std::vector<c10::intrusive_ptr<Work>> &works)
{
    Operations operations;
    Tensors tensors;
    for (const auto &work : works) {
        operations.insert(operations.end(), work->operations.begin(), work->operations.end());
        const auto &results = work->tensors->results;
        tensors.results.insert(tensors.results.end(), results.begin(), results.end());
    }
    return c10::make_intrusive<Work>(std::move(operations),
                                     std::make_shared<const Tensors>(std::move(tensors)));
}

Work::~Work()
{
    try {
        for (const auto &operation : operations)
            if (!operation->published() && session().own_process())
                operation->watch();
    } catch (const std::exception &) {
        /* No thread, no memory: it is complete with the next one that is waited for. */
    }
}

Session &Work::session() const
{
    return *operations.front()->group->session;
}

bool Work::published() const
{
    return std::all_of(operations.begin(), operations.end(),
                       [](const auto &operation) { return operation->published(); });
}

bool Work::isCompleted()
{
    session().check_process();
    return std::all_of(operations.begin(), operations.end(),
                       [](const auto &operation) { return operation->advance(Milliseconds(0)); });
}

bool Work::isSuccess() const
{
    return published() && !exception();
}

std::exception_ptr Work::exception() const
{
    for (const auto &operation : operations)
        if (operation->published() && operation->failure())
            return thrown(*operation->failure());
    return nullptr;
}

int Work::sourceRank() const
{
    if (!tensors->source)
        throw Error(SHOAL_EINVALID, "the work is not of a receive from any rank");
    for (const auto &operation : operations)
        operation->wait(std::nullopt, look_for_signals);
    return *tensors->source;
}

std::vector<at::Tensor> Work::result()
{
    wait(kNoTimeout);
    return tensors->results;
}

void Work::synchronize()
{
    wait(kNoTimeout);
}

void Work::abort()
{
    throw Error(SHOAL_EUNSUPPORTED, "a collective cannot be aborted alone");
}

bool Work::wait(std::chrono::milliseconds timeout)
{
    auto limit = timeout.count() > 0 ? std::optional<Milliseconds>(timeout) : std::nullopt;
    wait_for(limit);
    return true;
}

void Work::wait_for(std::optional<Milliseconds> timeout, std::optional<Milliseconds> in_all)
{
    if (!timeout) {
        for (const auto &operation : operations)
            operation->wait(std::nullopt, look_for_signals);
        return;
    }
    Clock::time_point end = Clock::now() + *timeout;
    try {
        for (const auto &operation : operations)
            operation->wait_until(end, in_all ? in_all : timeout, look_for_signals);
    } catch (const Error &why) {
        end_receive(why);
        throw;
    }
}

void Work::end_receive(const Error &why)
{
    for (const auto &operation : operations)
        operation->end_receive(why);
}

void Work::chain()
{
    std::lock_guard<std::mutex> held(making);
    if (!chained)
        chained = std::make_shared<std::atomic<bool>>(false);
    *chained = true;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture()
{
    session().check_process();
    std::unique_lock<std::mutex> held(making);
    if (future)
        return future;
    if (!chained)
        chained = std::make_shared<std::atomic<bool>>(false);
    future = c10::make_intrusive<c10::ivalue::Future>(type_of(*tensors));
    bool late = published();
    auto ends = std::make_shared<Ends>(operations.size());
    /* Not this: the Work may be gone by then. */
    auto told = [future = future, chained = chained, tensors = tensors, late, ends,
                 session = operations.front()->group->session](const Error *error) {
        if (!ends->add(error))
            return;
        auto complete = [future, tensors, why = ends->failure] {
            if (why)
                future->setError(why);
            else
                future->markCompleted(value_of(*tensors));
        };
        if (*chained && !late)
            session->call(complete);
        else
            complete();
    };
    auto made = future;
    held.unlock(); /* to watch may be to complete others, and to run what hangs on them */
    for (const auto &operation : operations)
        operation->watch(told);
    return made;
}

} // namespace shoal_native
