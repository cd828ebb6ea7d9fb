#include "worker/python/native/backend.hpp"

#include "worker/python/native/memory.hpp"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

namespace shoal_native
{

namespace
{

using Started = Backend::Started;

/* Throw what Python has raised in the form that torch's C++ takes along without Python's lock. */
[[noreturn]] void raise(py::error_already_set &error)
{
    error.restore();
    python_error raised;
    raised.persist();
    throw raised;
}

template <typename Pointer> std::optional<Milliseconds> timeout_in(const Pointer &options)
{
    return options ? std::optional<Milliseconds>(options->timeout) : std::nullopt;
}

/* Return the factor of PREMUL_SUM, by which each rank multiplies its tensor before the sum; none
 * for another operation. */
std::optional<at::Tensor> factor_of(const c10d::ReduceOp &op)
{
    if (static_cast<c10d::ReduceOp::RedOpType>(op) != c10d::ReduceOp::PREMUL_SUM)
        return std::nullopt;
    const auto *factor = static_cast<const c10d::NCCLPreMulSumSupplement *>(op.supplement_.get());
    if (!factor)
        throw Error(SHOAL_EINVALID, "PREMUL_SUM without a factor");
    return factor->tensor_factor.defined() ? factor->tensor_factor.reshape({})
                                           : at::scalar_tensor(factor->double_factor, at::kDouble);
}

template <typename Options> Options as_sum(const Options &options)
{
    Options sum = options;
    sum.reduceOp = c10d::ReduceOp(c10d::ReduceOp::SUM);
    return sum;
}

/* Return the factor by which a tensor is multiplied: one of its type where that is the same number.
 * Throws where the products would be no numbers of its type. */
at::Tensor factor_for(const at::Tensor &tensor, const at::Tensor &factor)
{
    if (tensor.layout() != c10::kStrided)
        throw Error(SHOAL_EINVALID, "PREMUL_SUM of a sparse tensor; shoal takes dense tensors");
    at::ScalarType type = tensor.scalar_type();
    if (!at::isIntegralType(type, true) && at::can_cast(factor.scalar_type(), type))
        return factor;
    if (at::isIntegralType(type, false) && !factor.is_complex()) {
        at::Tensor whole = factor.to(type);
        if (whole.to(at::kDouble).equal(factor.to(at::kDouble)))
            return whole;
    }
    throw Error(SHOAL_EINVALID, "PREMUL_SUM of " + std::string(c10::toString(type)) +
                                    " by a factor that is no number of that type: convert the "
                                    "tensor, or divide after the sum");
}

void scale(const Backend::List &tensors, const at::Tensor &factor)
{
    Backend::List factors; /* all of them first: one that is refused leaves all as they are */
    for (const auto &tensor : tensors)
        factors.push_back(factor_for(tensor, factor));
    for (size_t i = 0; i < tensors.size(); i++)
        tensors[i].detach().mul_(factors[i]);
}

Backend::List scaled(const Backend::List &tensors, const at::Tensor &factor)
{
    Backend::List products;
    for (const auto &tensor : tensors) {
        at::Tensor by = factor_for(tensor, factor);
        products.push_back(tensor.detach().clone().mul_(by));
    }
    return products;
}

} // namespace

Backend::Backend(std::shared_ptr<Collectives> collectives, py::object member)
    : c10d::Backend(collectives->rank, collectives->size), collectives(std::move(collectives)),
      member(std::move(member))
{
    init();
}

Backend::~Backend()
{
    if (!Py_IsInitialized()) {
        member.release();
        last_receive.release();
        return;
    }
    py::gil_scoped_acquire held;
    last_receive = py::object();
    member = py::object();
}

/* Note a collective that has been started: a batch that has been begun takes it in. */
Started Backend::add(Started work, bool native)
{
    std::lock_guard<std::mutex> held(lock);
    if (batching) {
        batch.push_back(work);
        batch_is_native = batch_is_native && native;
    }
    return work;
}

/* Drop the batch, of which one call was refused. Its caller perhaps never ends it, so nothing is
 * kept for that. */
void Backend::give_up_batch(const std::string &why)
{
    std::vector<Started> unused; /* freed without the lock */
    std::lock_guard<std::mutex> held(lock);
    if (!batching)
        return;
    batching = false;
    unused.swap(batch);
    refused = "the batch is not whole: " + why;
}

template <typename Result, typename... Arguments>
Result Backend::ask(const char *method, const Arguments &...arguments)
{
    py::gil_scoped_acquire held;
    try {
        py::object said = member.attr(method)(arguments...);
        if constexpr (!std::is_void_v<Result>)
            return said.template cast<Result>();
    } catch (py::error_already_set &error) {
        raise(error);
    }
}

template <typename... Arguments>
Started Backend::in_python(const char *method, const Arguments &...arguments)
{
    Started work;
    try {
        py::gil_scoped_acquire held;
        try {
            py::object made = member.attr(method)(arguments...);
            work = made.cast<Started>();
            if (std::string("recv_anysource") == method)
                last_receive = std::move(made);
        } catch (py::error_already_set &error) {
            raise(error);
        }
    } catch (const std::exception &error) {
        give_up_batch(error.what());
        throw;
    }
    return add(std::move(work), false);
}

/* native: asks Collectives. Where those return null the Member's method is called instead. */
template <typename Call, typename... Arguments>
Started Backend::start(const Call &native, const char *method, const Arguments &...arguments)
{
    Collectives::Started work;
    try {
        work = native();
    } catch (const std::exception &error) {
        give_up_batch(error.what());
        throw;
    }
    return work ? add(std::move(work), true) : in_python(method, arguments...);
}

Started Backend::broadcast(List &tensors, const c10d::BroadcastOptions &options)
{
    return start([&] { return collectives->broadcast(tensors, options); }, "broadcast", tensors,
                 options);
}

Started Backend::allreduce(List &tensors, const c10d::AllreduceOptions &options)
{
    if (auto factor = factor_of(options.reduceOp)) {
        scale(tensors, *factor);
        return allreduce(tensors, as_sum(options));
    }
    return start([&] { return collectives->all_reduce(tensors, options); }, "allreduce", tensors,
                 options);
}

Started Backend::allreduce_sparse(List &tensors, const c10d::AllreduceOptions &options)
{
    return in_python("allreduce", tensors, options);
}

Started Backend::allreduce_coalesced(List &tensors, const c10d::AllreduceCoalescedOptions &options)
{
    return allreduce(tensors, options);
}

Started Backend::reduce(List &tensors, const c10d::ReduceOptions &options)
{
    if (auto factor = factor_of(options.reduceOp)) {
        bool is_root = options.rootRank == getRank();
        List products = is_root ? tensors : scaled(tensors, *factor);
        if (is_root)
            scale(tensors, *factor);
        return reduce(products, as_sum(options));
    }
    return start([&] { return collectives->reduce(tensors, options); }, "reduce", tensors, options);
}

Started Backend::allgather(Lists &outputs, List &tensors, const c10d::AllgatherOptions &options)
{
    return start([&] { return collectives->all_gather(outputs, tensors, options); }, "allgather",
                 outputs, tensors, options);
}

Started Backend::_allgather_base(at::Tensor &output, at::Tensor &tensor,
                                 const c10d::AllgatherOptions &options)
{
    List outputs{output}, tensors{tensor};
    return allgather_into_tensor_coalesced(outputs, tensors, options);
}

/* outputs[r][i] is rank r's tensors[i]. */
Started Backend::allgather_coalesced(Lists &outputs, List &tensors,
                                     const c10d::AllgatherOptions &options)
{
    Lists turned(tensors.size());
    for (const auto &of_rank : outputs)
        for (size_t i = 0; i < turned.size() && i < of_rank.size(); i++)
            turned[i].push_back(of_rank[i]);
    return allgather(turned, tensors, options);
}

Started Backend::allgather_into_tensor_coalesced(List &outputs, List &tensors,
                                                 const c10d::AllgatherOptions &options)
{
    return start([&] { return collectives->all_gather_into_tensors(outputs, tensors, options); },
                 "allgather_into_tensor_coalesced", outputs, tensors, options);
}

Started Backend::gather(Lists &outputs, List &tensors, const c10d::GatherOptions &options)
{
    return start([&] { return collectives->gather(outputs, tensors, options); }, "gather", outputs,
                 tensors, options);
}

Started Backend::scatter(List &outputs, Lists &tensors, const c10d::ScatterOptions &options)
{
    return start([&] { return collectives->scatter(outputs, tensors, options); }, "scatter",
                 outputs, tensors, options);
}

Started Backend::reduce_scatter(List &outputs, Lists &tensors,
                                const c10d::ReduceScatterOptions &options)
{
    if (auto factor = factor_of(options.reduceOp)) {
        Lists products;
        for (const auto &list : tensors)
            products.push_back(scaled(list, *factor));
        return reduce_scatter(outputs, products, as_sum(options));
    }
    return start([&] { return collectives->reduce_scatter(outputs, tensors, options); },
                 "reduce_scatter", outputs, tensors, options);
}

Started Backend::_reduce_scatter_base(at::Tensor &output, at::Tensor &tensor,
                                      const c10d::ReduceScatterOptions &options)
{
    List outputs{output}, tensors{tensor};
    return reduce_scatter_tensor_coalesced(outputs, tensors, options);
}

Started Backend::reduce_scatter_tensor_coalesced(List &outputs, List &tensors,
                                                 const c10d::ReduceScatterOptions &options)
{
    if (auto factor = factor_of(options.reduceOp)) {
        List products = scaled(tensors, *factor);
        return reduce_scatter_tensor_coalesced(outputs, products, as_sum(options));
    }
    return start([&] { return collectives->reduce_scatter_tensors(outputs, tensors, options); },
                 "reduce_scatter_tensor_coalesced", outputs, tensors, options);
}

Started Backend::alltoall_base(at::Tensor &output, at::Tensor &tensor,
                               std::vector<int64_t> &output_sizes,
                               std::vector<int64_t> &input_sizes,
                               const c10d::AllToAllOptions &options)
{
    return start(
        [&] {
            return collectives->all_to_all_single(output, tensor, output_sizes, input_sizes,
                                                  options);
        },
        "alltoall_base", output, tensor, output_sizes, input_sizes, options);
}

Started Backend::alltoall(List &outputs, List &tensors, const c10d::AllToAllOptions &options)
{
    return start([&] { return collectives->all_to_all(outputs, tensors, options); }, "alltoall",
                 outputs, tensors, options);
}

Started Backend::send(List &tensors, int peer, int tag)
{
    return start([&] { return collectives->send(tensors, peer, tag); }, "send", tensors, peer, tag);
}

Started Backend::recv(List &tensors, int peer, int tag)
{
    return start([&] { return collectives->recv(tensors, peer, tag); }, "recv", tensors, peer, tag);
}

Started Backend::recvAnysource(List &tensors, int tag)
{
    return start([&] { return collectives->recv_any(tensors, tag); }, "recv_anysource", tensors,
                 tag);
}

Started Backend::barrier(const c10d::BarrierOptions &options)
{
    return start([&] { return collectives->barrier(options); }, "barrier", options);
}

void Backend::monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all_ranks)
{
    auto timeout = options.timeout == c10d::kUnsetTimeout
                       ? std::nullopt
                       : std::optional<Milliseconds>(options.timeout);
    ask<void>("monitored_barrier", timeout, wait_all_ranks);
}

void Backend::startCoalescing()
{
    std::vector<Started> unused; /* freed without the lock */
    std::lock_guard<std::mutex> held(lock);
    unused.swap(batch);
    batching = batch_is_native = true;
    refused.reset();
}

Started Backend::endCoalescing()
{
    std::vector<Started> works;
    bool all_native;
    {
        std::lock_guard<std::mutex> held(lock);
        if (refused)
            throw Error(SHOAL_ESTATE, *std::exchange(refused, std::nullopt));
        works.swap(batch);
        batching = false;
        all_native = batch_is_native && !works.empty();
    }
    if (!all_native)
        return in_python("all_of", works);
    std::vector<c10::intrusive_ptr<Work>> ours;
    for (const auto &work : works)
        ours.push_back(c10::static_intrusive_pointer_cast<Work>(work));
    return Work::join(ours);
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options)
{
    return allocate(*collectives->session, size, options);
}

void Backend::setSequenceNumberForGroup()
{
    collectives->sequence = 0;
}

uint64_t Backend::getSequenceNumberForGroup()
{
    return collectives->sequence;
}

void Backend::setTimeout(Milliseconds timeout)
{
    ask<void>("set_timeout", timeout);
}

c10::intrusive_ptr<Backend::Options> Backend::getBackendOptions()
{
    return c10::make_intrusive<Options>(getBackendName(), collectives->timeout.load());
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store> &store,
                                                 const std::vector<int> &ranks,
                                                 const c10::intrusive_ptr<Options> &options)
{
    return ask<c10::intrusive_ptr<c10d::Backend>>("split", store, ranks, timeout_in(options));
}

c10::intrusive_ptr<c10d::Backend> Backend::merge(const c10::intrusive_ptr<c10d::Store> &store,
                                                 const c10::intrusive_ptr<Options> &options,
                                                 const int &rank, const int &size)
{
    return ask<c10::intrusive_ptr<c10d::Backend>>("merge", store, rank, size, timeout_in(options));
}

c10::intrusive_ptr<c10d::Backend> Backend::shrink(const std::vector<int64_t> &without, int,
                                                  const c10::intrusive_ptr<Options> &options)
{
    return ask<c10::intrusive_ptr<c10d::Backend>>("shrink", without, timeout_in(options));
}

void Backend::abort()
{
    ask<void>("abort");
}

void Backend::shutdown()
{
    ask<void>("shutdown");
}

#ifdef SHOAL_TORCH_HAS_ERRORS
c10d::ErrorType Backend::getError()
{
    auto error = collectives->failure();
    if (!error)
        return c10d::ErrorType::SUCCESS;
    return error->code == SHOAL_ETIMEOUT ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::REMOTE_ERROR;
}
#endif

} // namespace shoal_native
