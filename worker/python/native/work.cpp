#include "worker/python/native/work.hpp"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

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

} // namespace

Work::Work(std::shared_ptr<Operation> operation, std::shared_ptr<const Tensors> tensors)
    : operation(std::move(operation)), tensors(std::move(tensors))
{
}

Work::~Work()
{
    try {
        if (!operation->published() && operation->group->session->own_process())
            operation->watch();
    } catch (const std::exception &) {
        /* No thread, no memory: it is complete with the next one that is waited for. */
    }
}

bool Work::isCompleted()
{
    operation->group->session->check_process();
    return operation->advance(Milliseconds(0));
}

bool Work::isSuccess() const
{
    return operation->published() && !operation->failure();
}

std::exception_ptr Work::exception() const
{
    if (!operation->published() || !operation->failure())
        return nullptr;
    return thrown(*operation->failure());
}

int Work::sourceRank() const
{
    throw Error(SHOAL_EINVALID, "the work is not of a receive from any rank");
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
    wait_for(limit, [] {});
    return true;
}

void Work::wait_for(std::optional<Milliseconds> timeout, const std::function<void()> &between)
{
    operation->wait(timeout, between);
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
    operation->group->session->check_process();
    std::lock_guard<std::mutex> held(making);
    if (future)
        return future;
    if (!chained)
        chained = std::make_shared<std::atomic<bool>>(false);
    future = c10::make_intrusive<c10::ivalue::Future>(type_of(*tensors));
    bool late = operation->published();
    /* Not this: the Work may be gone by then. */
    operation->watch([future = future, chained = chained, tensors = tensors, late,
                      session = operation->group->session](const Error *error) {
        auto complete = [future, tensors, why = error ? thrown(*error) : nullptr] {
            if (why)
                future->setError(why);
            else
                future->markCompleted(value_of(*tensors));
        };
        if (*chained && !late)
            session->call(complete);
        else
            complete();
    });
    return future;
}

} // namespace shoal_native
