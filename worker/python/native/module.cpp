/* The Python module: what shoal.torch._native takes in its place of _work, for tensors in memory
 * that lie as the library takes them. A call that is none for it returns None, and starts nothing.
 */
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "worker/python/native/bell.hpp"
#include "worker/python/native/tensors.hpp"
#include "worker/python/native/work.hpp"

namespace shoal_native
{

namespace
{

using Started = c10::intrusive_ptr<Work>; /* null: None */

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

class Collectives : public Group
{
  public:
    using Group::Group;

    Started all_reduce(const py::handle &list, const py::handle &given)
    {
        std::vector<at::Tensor> tensors;
        std::vector<Reduction> as;
        c10d::AllreduceOptions options;
        c10d::AllreduceCoalescedOptions coalesced;
        if (failed || !take_list(list.ptr(), &tensors))
            return {};
        if (!take_options(given, &options)) {
            if (!take_options(given, &coalesced))
                return {};
            options = coalesced;
        }
        if (!take_reduction(tensors, options.reduceOp, &as))
            return {};
        return start(tensors.size(), "all_reduce", options.timeout, {tensors, tensors},
                     [&](size_t i, shoal_request **request) {
                         void *data = tensors[i].data_ptr();
                         auto count = static_cast<size_t>(tensors[i].numel());
                         return session->library->all_reduce(handle, data, data, count, as[i].dtype,
                                                             as[i].op, request);
                     });
    }

    Started reduce(const py::handle &list, const py::handle &given)
    {
        std::vector<at::Tensor> tensors;
        std::vector<Reduction> as;
        c10d::ReduceOptions options;
        if (failed || given.is_none() || !take_list(list.ptr(), &tensors) ||
            !take_options(given, &options) || !take_reduction(tensors, options.reduceOp, &as))
            return {};
        return start(tensors.size(), "reduce", options.timeout, {tensors, tensors},
                     [&](size_t i, shoal_request **request) {
                         void *data = tensors[i].data_ptr();
                         auto count = static_cast<size_t>(tensors[i].numel());
                         return session->library->reduce(handle, data, data, count, as[i].dtype,
                                                         as[i].op, root_of(options), request);
                     });
    }

    Started broadcast(const py::handle &list, const py::handle &given)
    {
        std::vector<at::Tensor> tensors;
        c10d::BroadcastOptions options;
        if (failed || given.is_none() || !take_list(list.ptr(), &tensors) ||
            !take_options(given, &options))
            return {};
        return start(tensors.size(), "broadcast", options.timeout, {tensors, tensors},
                     [&](size_t i, shoal_request **request) {
                         return session->library->broadcast(
                             handle, tensors[i].data_ptr(), moved_count(tensors[i]),
                             moved_dtype(tensors[i]), root_of(options), request);
                     });
    }

    Started barrier(const py::handle &given)
    {
        c10d::BarrierOptions options;
        if (failed || !take_options(given, &options))
            return {};
        return start(1, "barrier", options.timeout, {}, [&](size_t, shoal_request **request) {
            return session->library->barrier(handle, request);
        });
    }

    /* lists: for each tensor one with a tensor for each rank */
    Started all_gather(const py::handle &lists, const py::handle &list, const py::handle &given)
    {
        std::vector<at::Tensor> tensors;
        std::vector<std::vector<at::Tensor>> outputs;
        c10d::AllgatherOptions options;
        if (failed || !take_list(list.ptr(), &tensors) || !take_options(given, &options) ||
            !take_lists(lists.ptr(), tensors.size(), size, &outputs) || !fit(outputs, tensors))
            return {};
        std::vector<Parts> parts;
        for (const auto &places : outputs)
            parts.push_back(parts_of(places));
        return gather_all("all_gather", options.timeout, tensors, parts, listed(tensors, outputs));
    }

    Started all_gather_into_tensors(const py::handle &out, const py::handle &in,
                                    const py::handle &given)
    {
        std::vector<at::Tensor> outputs, tensors;
        c10d::AllgatherOptions options;
        if (failed || !take_list(out.ptr(), &outputs) || !take_list(in.ptr(), &tensors) ||
            !take_options(given, &options) || !fit(outputs, tensors))
            return {};
        return gather_whole(options, outputs, tensors);
    }

    Started all_gather_into_tensor(const py::handle &out, const py::handle &in,
                                   const py::handle &given)
    {
        std::vector<at::Tensor> outputs(1), tensors(1);
        c10d::AllgatherOptions options;
        if (failed || !take(out.ptr(), &outputs[0]) || !take(in.ptr(), &tensors[0]) ||
            !take_options(given, &options) || !fit(outputs, tensors))
            return {};
        return gather_whole(options, outputs, tensors);
    }

    /* lists: for each output one with a tensor for each rank */
    Started reduce_scatter(const py::handle &list, const py::handle &lists, const py::handle &given)
    {
        std::vector<at::Tensor> outputs;
        std::vector<std::vector<at::Tensor>> tensors;
        c10d::ReduceScatterOptions options;
        if (failed || !take_list(list.ptr(), &outputs) || !take_options(given, &options) ||
            !take_lists(lists.ptr(), outputs.size(), size, &tensors) || !fit(tensors, outputs))
            return {};
        std::vector<Parts> parts;
        for (const auto &places : tensors)
            parts.push_back(parts_of(places));
        Tensors used{outputs, outputs};
        for (const auto &places : tensors)
            used.used.insert(used.used.end(), places.begin(), places.end());
        return scatter_sums("reduce_scatter", options, outputs, parts, std::move(used));
    }

    Started reduce_scatter_tensors(const py::handle &out, const py::handle &in,
                                   const py::handle &given)
    {
        std::vector<at::Tensor> outputs, tensors;
        c10d::ReduceScatterOptions options;
        if (failed || !take_list(out.ptr(), &outputs) || !take_list(in.ptr(), &tensors) ||
            !take_options(given, &options) || !fit(tensors, outputs))
            return {};
        return scatter_whole(options, outputs, tensors);
    }

    Started reduce_scatter_tensor(const py::handle &out, const py::handle &in,
                                  const py::handle &given)
    {
        std::vector<at::Tensor> outputs(1), tensors(1);
        c10d::ReduceScatterOptions options;
        if (failed || !take(out.ptr(), &outputs[0]) || !take(in.ptr(), &tensors[0]) ||
            !take_options(given, &options) || !fit(tensors, outputs))
            return {};
        return scatter_whole(options, outputs, tensors);
    }

    /* lists: on the root, for each tensor one with a tensor for each rank */
    Started gather(const py::handle &lists, const py::handle &list, const py::handle &given)
    {
        std::vector<at::Tensor> tensors;
        std::vector<std::vector<at::Tensor>> outputs;
        c10d::GatherOptions options;
        if (failed || given.is_none() || !take_list(list.ptr(), &tensors) ||
            !take_options(given, &options) ||
            (is_root(options) && (!take_lists(lists.ptr(), tensors.size(), size, &outputs) ||
                                  !same_types(outputs, tensors))))
            return {};
        std::vector<Parts> parts(tensors.size());
        for (size_t i = 0; i < outputs.size(); i++)
            parts[i] = parts_of(outputs[i]);
        return start(tensors.size(), "gather", options.timeout, listed(tensors, outputs),
                     [&](size_t i, shoal_request **request) {
                         return session->library->gather_v(
                             handle, tensors[i].data_ptr(), moved_count(tensors[i]),
                             outputs.empty() ? nullptr : parts[i].places.data(),
                             outputs.empty() ? nullptr : parts[i].counts.data(),
                             moved_dtype(tensors[i]), root_of(options), request);
                     });
    }

    /* lists: on the root, for each output one with a tensor for each rank */
    Started scatter(const py::handle &list, const py::handle &lists, const py::handle &given)
    {
        std::vector<at::Tensor> outputs;
        std::vector<std::vector<at::Tensor>> tensors;
        c10d::ScatterOptions options;
        if (failed || given.is_none() || !take_list(list.ptr(), &outputs) ||
            !take_options(given, &options) ||
            (is_root(options) && (!take_lists(lists.ptr(), outputs.size(), size, &tensors) ||
                                  !same_types(tensors, outputs))))
            return {};
        std::vector<Parts> parts(outputs.size());
        Tensors used{outputs, outputs};
        for (size_t i = 0; i < tensors.size(); i++) {
            parts[i] = parts_of(tensors[i]);
            used.used.insert(used.used.end(), tensors[i].begin(), tensors[i].end());
        }
        return start(outputs.size(), "scatter", options.timeout, std::move(used),
                     [&](size_t i, shoal_request **request) {
                         return session->library->scatter_v(
                             handle, tensors.empty() ? nullptr : parts[i].places.data(),
                             tensors.empty() ? nullptr : parts[i].counts.data(),
                             outputs[i].data_ptr(), moved_count(outputs[i]),
                             moved_dtype(outputs[i]), root_of(options), request);
                     });
    }

    Started all_to_all(const py::handle &out, const py::handle &in, const py::handle &given)
    {
        std::vector<at::Tensor> outputs, tensors;
        c10d::AllToAllOptions options;
        if (failed || !take_listed(out.ptr(), size, &outputs) ||
            !take_listed(in.ptr(), size, &tensors) || !take_options(given, &options) ||
            outputs[0].scalar_type() != tensors[0].scalar_type())
            return {};
        Parts from = parts_of(tensors), to = parts_of(outputs);
        return exchange("all_to_all", options, from, to, moved_dtype(tensors[0]),
                        {tensors, outputs});
    }

    /* Parts of these sizes, by the first dimension. */
    Started all_to_all_single(const py::handle &out, const py::handle &in,
                              const py::handle &output_sizes, const py::handle &input_sizes,
                              const py::handle &given)
    {
        at::Tensor output, tensor;
        Parts from, to;
        c10d::AllToAllOptions options;
        if (failed || !take(out.ptr(), &output) || !take(in.ptr(), &tensor) ||
            !take_options(given, &options) || output.scalar_type() != tensor.scalar_type() ||
            !take_rows(output, size, output_sizes, &to) ||
            !take_rows(tensor, size, input_sizes, &from))
            return {};
        return exchange("all_to_all_single", options, from, to, moved_dtype(tensor),
                        {{tensor}, {output}});
    }

    Started send(const py::handle &list, int peer, int tag)
    {
        std::vector<at::Tensor> tensors;
        if (failed || !take_list(list.ptr(), &tensors))
            return {};
        return start(
            tensors.size(), "send to rank ", timeout, {tensors, tensors},
            [&](size_t i, shoal_request **request) {
                return session->library->send(handle, tensors[i].data_ptr(),
                                              moved_count(tensors[i]), moved_dtype(tensors[i]),
                                              peer, tag, request);
            },
            peer);
    }

    Started recv(const py::handle &list, int peer, int tag)
    {
        std::vector<at::Tensor> tensors;
        if (failed || !take_list(list.ptr(), &tensors))
            return {};
        return start(
            tensors.size(), "recv from rank ", timeout, {tensors, tensors},
            [&](size_t i, shoal_request **request) {
                return session->library->recv(handle, tensors[i].data_ptr(),
                                              moved_count(tensors[i]), moved_dtype(tensors[i]),
                                              peer, tag, request);
            },
            peer);
    }

  private:
    template <typename Options> static int root_of(const Options &options)
    {
        return static_cast<int>(options.rootRank);
    }

    template <typename Options> bool is_root(const Options &options) const
    {
        return options.rootRank == rank;
    }

    static bool same_types(const std::vector<std::vector<at::Tensor>> &lists,
                           const std::vector<at::Tensor> &tensors)
    {
        return std::equal(lists.begin(), lists.end(), tensors.begin(), tensors.end(),
                          [](const std::vector<at::Tensor> &list, const at::Tensor &tensor) {
                              return list[0].scalar_type() == tensor.scalar_type();
                          });
    }

    /* Whether this rank's part in each list is as large as its tensor. */
    bool fit(const std::vector<std::vector<at::Tensor>> &lists,
             const std::vector<at::Tensor> &tensors) const
    {
        auto own = static_cast<size_t>(rank);
        for (size_t i = 0; i < lists.size(); i++)
            if (lists[i][own].numel() != tensors[i].numel())
                return false;
        return same_types(lists, tensors);
    }

    /* Whether each whole has a part for each rank. */
    bool fit(const std::vector<at::Tensor> &wholes, const std::vector<at::Tensor> &parts) const
    {
        return std::equal(wholes.begin(), wholes.end(), parts.begin(), parts.end(),
                          [this](const at::Tensor &whole, const at::Tensor &part) {
                              return whole.scalar_type() == part.scalar_type() &&
                                     whole.numel() == part.numel() * size;
                          });
    }

    /* What comes in lists, one for each tensor. */
    static Tensors listed(const std::vector<at::Tensor> &tensors,
                          const std::vector<std::vector<at::Tensor>> &outputs)
    {
        Tensors used{tensors, {}, outputs.empty() ? 0 : outputs[0].size()};
        for (const auto &list : outputs)
            used.results.insert(used.results.end(), list.begin(), list.end());
        return used;
    }

    Started gather_whole(const c10d::AllgatherOptions &options,
                         const std::vector<at::Tensor> &outputs,
                         const std::vector<at::Tensor> &tensors)
    {
        std::vector<Parts> parts;
        for (const auto &output : outputs)
            parts.push_back(parts_of(output, size));
        return gather_all("all_gather_into_tensor", options.timeout, tensors, parts,
                          {tensors, outputs});
    }

    /* parts: where each rank's tensor goes. */
    Started gather_all(const char *verb, Milliseconds limit, const std::vector<at::Tensor> &tensors,
                       const std::vector<Parts> &parts, Tensors &&used)
    {
        return start(tensors.size(), verb, limit, std::move(used),
                     [&](size_t i, shoal_request **request) {
                         return session->library->all_gather_v(
                             handle, tensors[i].data_ptr(), parts[i].places.data(),
                             parts[i].counts.data(), moved_dtype(tensors[i]), request);
                     });
    }

    Started scatter_whole(const c10d::ReduceScatterOptions &options,
                          const std::vector<at::Tensor> &outputs,
                          const std::vector<at::Tensor> &tensors)
    {
        std::vector<Parts> parts;
        for (const auto &tensor : tensors)
            parts.push_back(parts_of(tensor, size));
        Tensors used{outputs, outputs};
        used.used.insert(used.used.end(), tensors.begin(), tensors.end());
        return scatter_sums("reduce_scatter_tensor", options, outputs, parts, std::move(used));
    }

    /* parts: what is for each rank. */
    Started scatter_sums(const char *verb, const c10d::ReduceScatterOptions &options,
                         const std::vector<at::Tensor> &outputs, const std::vector<Parts> &parts,
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

    Started exchange(const char *verb, const c10d::AllToAllOptions &options, const Parts &from,
                     const Parts &to, shoal_dtype dtype, Tensors &&used)
    {
        return start(1, verb, options.timeout, std::move(used),
                     [&](size_t, shoal_request **request) {
                         return session->library->all_to_all_v(handle, from.places.data(),
                                                               from.counts.data(), to.places.data(),
                                                               to.counts.data(), dtype, request);
                     });
    }

    /* call(i, request) starts request i of `count`. */
    template <typename Start>
    Started start(size_t count, const char *verb, Milliseconds limit, Tensors &&used,
                  const Start &call, int peer = -1)
    {
        auto tensors = std::make_shared<const Tensors>(std::move(used));
        py::gil_scoped_release released;
        session->expire_oldest();
        Starting starting(*session);
        if (!starting.entered)
            return {};
        Call said{verb, peer, ++sequence, limit.count() > 0 ? limit : timeout};
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

    /* What has been started of a call that could not be started as a whole goes on by itself; other
     * ranks may wait for the rest. */
    void leave(const Operations &operations, const Error &why)
    {
        if (operations.empty())
            return;
        fail(why);
        for (const auto &operation : operations)
            operation->watch();
    }
};

/* Ctrl-C, when Python's main thread waits. */
void look_for_signals()
{
    py::gil_scoped_acquire held;
    if (PyErr_CheckSignals() < 0)
        throw py::error_already_set();
}

bool wait(Work &work, std::optional<Milliseconds> timeout)
{
    auto limit = timeout && timeout->count() > 0 ? timeout : std::nullopt;
    work.wait_for(limit, look_for_signals);
    return true;
}

/* Error as the class that the package has for its code. */
void translate(std::exception_ptr pointer)
{
    try {
        if (pointer)
            std::rethrow_exception(pointer);
    } catch (const Error &error) {
        py::object made =
            py::module_::import("shoal.errors").attr("make_error")(error.code, error.what());
        PyErr_SetObject(py::type::handle_of(made).ptr(), made.ptr());
    }
}

py::object failure_of(const Collectives &group)
{
    auto error = group.failure();
    if (!error)
        return py::none();
    return py::module_::import("shoal.errors").attr("make_error")(error->code, error->what());
}

} // namespace

} // namespace shoal_native

PYBIND11_MODULE(shoal_native, module)
{
    using namespace shoal_native;
    using Released = py::call_guard<py::gil_scoped_release>;

    py::module_::import("torch._C._distributed_c10d");
    py::register_exception_translator(translate);
    module.attr("version") = std::to_string(SHOAL_VERSION_MAJOR) + "." +
                             std::to_string(SHOAL_VERSION_MINOR) + "." +
                             std::to_string(SHOAL_VERSION_PATCH);

    py::class_<Session, std::shared_ptr<Session>>(module, "Session")
        .def(py::init([](const std::string &path) {
                 return std::make_shared<Session>(std::make_shared<const Library>(path));
             }),
             py::arg("path"))
        .def("settle", &Session::settle, Released())
        .def("close", &Session::close, Released())
        .def("release", &Session::release, Released());

    py::class_<Bell>(module, "Bell")
        .def(py::init([](const std::shared_ptr<Session> &session) {
            return std::make_unique<Bell>(session->library);
        }))
        .def("descriptor", &Bell::descriptor)
        .def("clear", &Bell::clear)
        .def(
            "hang_on",
            [](const Bell &bell, size_t request) {
                bell.hang_on(reinterpret_cast<shoal_request *>(request));
            },
            Released());

    py::class_<Work, c10::intrusive_ptr<Work>, c10d::Work> work(module, "Work");
    work.def("wait_in_python", &wait, py::arg("timeout") = py::none(), Released())
        .def("chain", &Work::chain, Released())
        /* torch's own wait with Python's lock held, for which others may have to wait. */
        .def(
            "synchronize", [](Work &work) { wait(work, std::nullopt); }, Released())
        .def(
            "result",
            [](Work &work) {
                wait(work, std::nullopt);
                return work.result();
            },
            Released());
    module.def("join", &Work::join);
    /* The base class's is a function of Python's by now (_work.py), which def() would not overload.
     */
    work.attr("wait") = work.attr("__dict__")["wait_in_python"];

    py::class_<Collectives, std::shared_ptr<Collectives>>(module, "Group")
        .def(py::init([](std::shared_ptr<Session> session, size_t handle, int rank, int size,
                         std::string name, std::string ranks, Milliseconds timeout) {
            return std::make_shared<Collectives>(std::move(session),
                                                 reinterpret_cast<shoal_group *>(handle), rank,
                                                 size, std::move(name), std::move(ranks), timeout);
        }))
        .def("next_number", [](Collectives &group) { return ++group.sequence; })
        .def("number", [](Collectives &group) { return group.sequence.load(); })
        .def("set_number", [](Collectives &group, uint64_t number) { group.sequence = number; })
        .def("failure", &failure_of)
        .def("all_reduce", &Collectives::all_reduce)
        .def("reduce", &Collectives::reduce)
        .def("broadcast", &Collectives::broadcast)
        .def("barrier", &Collectives::barrier)
        .def("all_gather", &Collectives::all_gather)
        .def("all_gather_into_tensor", &Collectives::all_gather_into_tensor)
        .def("all_gather_into_tensors", &Collectives::all_gather_into_tensors)
        .def("reduce_scatter", &Collectives::reduce_scatter)
        .def("reduce_scatter_tensor", &Collectives::reduce_scatter_tensor)
        .def("reduce_scatter_tensors", &Collectives::reduce_scatter_tensors)
        .def("gather", &Collectives::gather)
        .def("scatter", &Collectives::scatter)
        .def("all_to_all", &Collectives::all_to_all)
        .def("all_to_all_single", &Collectives::all_to_all_single)
        .def("send", &Collectives::send)
        .def("recv", &Collectives::recv);
}
