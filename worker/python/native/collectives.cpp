#include "worker/python/native/collectives.hpp"

#include <algorithm>

namespace shoal_native
{

namespace
{

using List = Collectives::List;
using Lists = Collectives::Lists;

/* While it lives, the job is not closed. */
struct Starting {
    explicit Starting(Session &session) : session(session), entered(session.enter())
    {
    }
    Starting(const Starting &) = delete;
    ~Starting()
    {
        if (entered)
            session.leave();
    }

    Session &session;
    const bool entered;
};

template <typename Options> int root_of(const Options &options)
{
    return static_cast<int>(options.rootRank);
}

bool same_types(const Lists &lists, const List &tensors)
{
    return std::equal(lists.begin(), lists.end(), tensors.begin(), tensors.end(),
                      [](const List &list, const at::Tensor &tensor) {
                          return list[0].scalar_type() == tensor.scalar_type();
                      });
}

/* Name the tensors of a call whose results come in lists, one for each tensor. */
Tensors listed(const List &tensors, const Lists &outputs)
{
    Tensors used{tensors, {}, outputs.empty() ? 0 : outputs[0].size()};
    for (const auto &list : outputs)
        used.results.insert(used.results.end(), list.begin(), list.end());
    return used;
}

/* Name the tensors of a call that takes lists, one for each output. */
Tensors from_lists(const List &outputs, const Lists &tensors)
{
    Tensors used{outputs, outputs};
    for (const auto &list : tensors)
        used.used.insert(used.used.end(), list.begin(), list.end());
    return used;
}

Tensors in_place(const List &tensors)
{
    return {tensors, tensors};
}

std::vector<Parts> parts_of_each(const Lists &lists)
{
    std::vector<Parts> parts;
    for (const auto &list : lists)
        parts.push_back(parts_of(list));
    return parts;
}

std::vector<Parts> equal_parts_of(const List &wholes, int size)
{
    std::vector<Parts> parts;
    for (const auto &whole : wholes)
        parts.push_back(parts_of(whole, size));
    return parts;
}

} // namespace

Collectives::Started Collectives::all_reduce(const List &tensors,
                                             const c10d::AllreduceOptions &options)
{
    std::vector<Reduction> as;
    if (failed || !take_list(tensors) || !take_reduction(tensors, options.reduceOp, &as))
        return {};
    return start(tensors.size(), "all_reduce", options.timeout, in_place(tensors),
                 [&](size_t i, shoal_request **request) {
                     void *data = tensors[i].data_ptr();
                     size_t count = moved_count(tensors[i]);
                     return session->library->all_reduce(handle, data, data, count, as[i].dtype,
                                                         as[i].op, request);
                 });
}

Collectives::Started Collectives::reduce(const List &tensors, const c10d::ReduceOptions &options)
{
    std::vector<Reduction> as;
    if (failed || !take_list(tensors) || !take_reduction(tensors, options.reduceOp, &as))
        return {};
    return start(tensors.size(), "reduce", options.timeout, in_place(tensors),
                 [&](size_t i, shoal_request **request) {
                     void *data = tensors[i].data_ptr();
                     size_t count = moved_count(tensors[i]);
                     return session->library->reduce(handle, data, data, count, as[i].dtype,
                                                     as[i].op, root_of(options), request);
                 });
}

Collectives::Started Collectives::broadcast(const List &tensors,
                                            const c10d::BroadcastOptions &options)
{
    if (failed || !take_list(tensors))
        return {};
    return start(tensors.size(), "broadcast", options.timeout, in_place(tensors),
                 [&](size_t i, shoal_request **request) {
                     return session->library->broadcast(
                         handle, tensors[i].data_ptr(), moved_count(tensors[i]),
                         moved_dtype(tensors[i]), root_of(options), request);
                 });
}

Collectives::Started Collectives::barrier(const c10d::BarrierOptions &options)
{
    if (failed)
        return {};
    return start(1, "barrier", options.timeout, {}, [&](size_t, shoal_request **request) {
        return session->library->barrier(handle, request);
    });
}

Collectives::Started Collectives::all_gather(const Lists &outputs, const List &tensors,
                                             const c10d::AllgatherOptions &options)
{
    if (failed || !take_list(tensors) || !take_lists(outputs, tensors.size(), size) ||
        !fit(outputs, tensors))
        return {};
    return gather_all("all_gather", options.timeout, tensors, parts_of_each(outputs),
                      listed(tensors, outputs));
}

Collectives::Started Collectives::all_gather_into_tensors(const List &outputs, const List &tensors,
                                                          const c10d::AllgatherOptions &options)
{
    if (failed || !take_list(outputs) || !take_list(tensors) || !fit(outputs, tensors))
        return {};
    return gather_all("all_gather_into_tensor", options.timeout, tensors,
                      equal_parts_of(outputs, size), {tensors, outputs});
}

Collectives::Started Collectives::reduce_scatter(const List &outputs, const Lists &tensors,
                                                 const c10d::ReduceScatterOptions &options)
{
    if (failed || !take_list(outputs) || !take_lists(tensors, outputs.size(), size) ||
        !fit(tensors, outputs))
        return {};
    return scatter_sums("reduce_scatter", options, outputs, parts_of_each(tensors),
                        from_lists(outputs, tensors));
}

Collectives::Started Collectives::reduce_scatter_tensors(const List &outputs, const List &tensors,
                                                         const c10d::ReduceScatterOptions &options)
{
    if (failed || !take_list(outputs) || !take_list(tensors) || !fit(tensors, outputs))
        return {};
    return scatter_sums("reduce_scatter_tensor", options, outputs, equal_parts_of(tensors, size),
                        from_lists(outputs, {tensors}));
}

Collectives::Started Collectives::gather(const Lists &outputs, const List &tensors,
                                         const c10d::GatherOptions &options)
{
    bool is_root = options.rootRank == rank;
    if (failed || !take_list(tensors) ||
        (is_root && (!take_lists(outputs, tensors.size(), size) || !same_types(outputs, tensors))))
        return {};
    const Lists &places = is_root ? outputs : Lists();
    std::vector<Parts> parts = parts_of_each(places);
    return start(tensors.size(), "gather", options.timeout, listed(tensors, places),
                 [&](size_t i, shoal_request **request) {
                     return session->library->gather_v(
                         handle, tensors[i].data_ptr(), moved_count(tensors[i]),
                         is_root ? parts[i].places.data() : nullptr,
                         is_root ? parts[i].counts.data() : nullptr, moved_dtype(tensors[i]),
                         root_of(options), request);
                 });
}

Collectives::Started Collectives::scatter(const List &outputs, const Lists &tensors,
                                          const c10d::ScatterOptions &options)
{
    bool is_root = options.rootRank == rank;
    if (failed || !take_list(outputs) ||
        (is_root && (!take_lists(tensors, outputs.size(), size) || !same_types(tensors, outputs))))
        return {};
    const Lists &given = is_root ? tensors : Lists();
    std::vector<Parts> parts = parts_of_each(given);
    return start(outputs.size(), "scatter", options.timeout, from_lists(outputs, given),
                 [&](size_t i, shoal_request **request) {
                     return session->library->scatter_v(
                         handle, is_root ? parts[i].places.data() : nullptr,
                         is_root ? parts[i].counts.data() : nullptr, outputs[i].data_ptr(),
                         moved_count(outputs[i]), moved_dtype(outputs[i]), root_of(options),
                         request);
                 });
}

Collectives::Started Collectives::all_to_all(const List &outputs, const List &tensors,
                                             const c10d::AllToAllOptions &options)
{
    if (failed || !take_listed(outputs, size) || !take_listed(tensors, size) ||
        outputs[0].scalar_type() != tensors[0].scalar_type())
        return {};
    return exchange("all_to_all", options, parts_of(tensors), parts_of(outputs),
                    moved_dtype(tensors[0]), {tensors, outputs});
}

Collectives::Started Collectives::all_to_all_single(const at::Tensor &output,
                                                    const at::Tensor &tensor,
                                                    const std::vector<int64_t> &output_sizes,
                                                    const std::vector<int64_t> &input_sizes,
                                                    const c10d::AllToAllOptions &options)
{
    Parts from, to;
    if (failed || !take(output) || !take(tensor) || output.scalar_type() != tensor.scalar_type() ||
        !take_rows(output, size, output_sizes, &to) || !take_rows(tensor, size, input_sizes, &from))
        return {};
    return exchange("all_to_all_single", options, from, to, moved_dtype(tensor),
                    {{tensor}, {output}});
}

Collectives::Started Collectives::send(const List &tensors, int peer, int tag)
{
    if (failed || !take_list(tensors))
        return {};
    return start(
        tensors.size(), "send to rank ", timeout, in_place(tensors),
        [&](size_t i, shoal_request **request) {
            return session->library->send(handle, tensors[i].data_ptr(), moved_count(tensors[i]),
                                          moved_dtype(tensors[i]), peer, tag, request);
        },
        peer);
}

Collectives::Started Collectives::recv(const List &tensors, int peer, int tag)
{
    if (failed || !take_list(tensors))
        return {};
    return start(
        tensors.size(), "recv from rank ", timeout, in_place(tensors),
        [&](size_t i, shoal_request **request) {
            return session->library->recv(handle, tensors[i].data_ptr(), moved_count(tensors[i]),
                                          moved_dtype(tensors[i]), peer, tag, request);
        },
        peer, true);
}

Collectives::Started Collectives::recv_any(const List &tensors, int tag)
{
    if (failed || !take_list(tensors) || tensors.size() != 1)
        return {};
    Tensors used = in_place(tensors);
    used.source = std::make_shared<int>(-1);
    int *source = used.source.get();
    return start(
        1, "recv from any rank of the group", timeout, std::move(used),
        [&](size_t i, shoal_request **request) {
            return session->library->recv_any(handle, tensors[i].data_ptr(),
                                              moved_count(tensors[i]), moved_dtype(tensors[i]), tag,
                                              source, request);
        },
        -1, true);
}

/* Whether this rank's part in each list is as large as its tensor. */
bool Collectives::fit(const Lists &lists, const List &tensors) const
{
    auto own = static_cast<size_t>(rank);
    for (size_t i = 0; i < lists.size(); i++)
        if (lists[i][own].numel() != tensors[i].numel())
            return false;
    return same_types(lists, tensors);
}

/* Whether each whole has a part for each rank. */
bool Collectives::fit(const List &wholes, const List &parts) const
{
    return std::equal(wholes.begin(), wholes.end(), parts.begin(), parts.end(),
                      [this](const at::Tensor &whole, const at::Tensor &part) {
                          return whole.scalar_type() == part.scalar_type() &&
                                 whole.numel() == part.numel() * size;
                      });
}

/* parts: where each rank's tensor goes. */
Collectives::Started Collectives::gather_all(const char *verb, Milliseconds limit,
                                             const List &tensors, const std::vector<Parts> &parts,
                                             Tensors &&used)
{
    return start(
        tensors.size(), verb, limit, std::move(used), [&](size_t i, shoal_request **request) {
            return session->library->all_gather_v(handle, tensors[i].data_ptr(),
                                                  parts[i].places.data(), parts[i].counts.data(),
                                                  moved_dtype(tensors[i]), request);
        });
}

/* parts: what is for each rank. */
Collectives::Started Collectives::scatter_sums(const char *verb,
                                               const c10d::ReduceScatterOptions &options,
                                               const List &outputs, const std::vector<Parts> &parts,
                                               Tensors &&used)
{
    std::vector<Reduction> as;
    if (!take_reduction(outputs, options.reduceOp, &as))
        return {};
    return start(outputs.size(), verb, options.timeout, std::move(used),
                 [&](size_t i, shoal_request **request) {
                     return session->library->reduce_scatter_v(
                         handle, parts[i].places.data(), outputs[i].data_ptr(),
                         parts[i].counts.data(), as[i].dtype, as[i].op, request);
                 });
}

Collectives::Started Collectives::exchange(const char *verb, const c10d::AllToAllOptions &options,
                                           const Parts &from, const Parts &to, shoal_dtype dtype,
                                           Tensors &&used)
{
    return start(1, verb, options.timeout, std::move(used), [&](size_t, shoal_request **request) {
        return session->library->all_to_all_v(handle, from.places.data(), from.counts.data(),
                                              to.places.data(), to.counts.data(), dtype, request);
    });
}

/* call(i, request) starts request i of `count`. */
template <typename Start>
Collectives::Started Collectives::start(size_t count, const char *verb, Milliseconds limit,
                                        Tensors &&used, const Start &call, int peer, bool receives)
{
    auto tensors = std::make_shared<const Tensors>(std::move(used));
    session->expire_oldest();
    Starting starting(*session);
    if (!starting.entered)
        return {};
    ++sequence;
    Call said{verb, peer, limit.count() > 0 ? limit : timeout.load(), receives};
    Operations operations;
    operations.reserve(count);
    for (size_t i = 0; i < count; i++) {
        auto operation = std::make_shared<Operation>(shared_from_this(), said, tensors);
        shoal_request *request;
        int code = call(i, &request);
        if (code < 0) {
            Error error = session->library->error(code);
            leave(operations, error);
            throw error;
        }
        operation->begin(request);
        operations.push_back(std::move(operation));
    }
    return c10::make_intrusive<Work>(std::move(operations), std::move(tensors));
}

/* Let the operations go on that were started of a call that could not be started as a whole; other
 * ranks may wait for the rest. */
void Collectives::leave(const Operations &operations, const Error &why)
{
    if (operations.empty())
        return;
    fail(why);
    for (const auto &operation : operations)
        operation->watch();
}

} // namespace shoal_native
