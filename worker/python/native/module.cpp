/* The Python module: what shoal.torch._native takes in its place of _work, for tensors in memory
 * that lie as the library takes them. A call that is none for it returns None, and starts nothing.
 */
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "worker/python/native/bell.hpp"
#include "worker/python/native/work.hpp"

namespace shoal_native
{

namespace
{

using Started = c10::intrusive_ptr<Work>; /* null: None */

/* Dense, in memory, in row-major order, and the elements themselves. Not of a class of Python's. */
bool take(PyObject *object, at::Tensor *tensor)
{
    if (!THPVariable_CheckExact(object))
        return false;
    *tensor = THPVariable_Unpack(object);
    return tensor->layout() == at::kStrided && tensor->device().is_cpu() &&
           tensor->is_contiguous() && !tensor->is_conj() && !tensor->is_neg();
}

/* A list with one tensor, as torch.distributed gives it. */
bool take_one(const py::handle &list, at::Tensor *tensor)
{
    return PyList_CheckExact(list.ptr()) && PyList_GET_SIZE(list.ptr()) == 1 &&
           take(PyList_GET_ITEM(list.ptr(), 0), tensor);
}

/* A list with one tensor for each rank, all of one type. */
bool take_listed(PyObject *list, int size, std::vector<at::Tensor> *tensors)
{
    if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) != size)
        return false;
    tensors->resize(static_cast<size_t>(size));
    for (int i = 0; i < size; i++)
        if (!take(PyList_GET_ITEM(list, i), &(*tensors)[static_cast<size_t>(i)]) ||
            (*tensors)[static_cast<size_t>(i)].scalar_type() != (*tensors)[0].scalar_type())
            return false;
    return true;
}

std::optional<shoal_dtype> dtype_of(const at::Tensor &tensor)
{
    switch (tensor.scalar_type()) {
    case at::kFloat:
        return SHOAL_F32;
    case at::kDouble:
        return SHOAL_F64;
    case at::kHalf:
        return SHOAL_F16;
    case at::kBFloat16:
        return SHOAL_BF16;
    case at::kChar:
        return SHOAL_I8;
    case at::kByte:
        return SHOAL_U8;
    case at::kInt:
        return SHOAL_I32;
    case at::kLong:
        return SHOAL_I64;
    default:
        return std::nullopt;
    }
}

/* Bytes are moved of any type, as itself where possible: every rank says the same. */
shoal_dtype moved_dtype(const at::Tensor &tensor)
{
    return dtype_of(tensor).value_or(SHOAL_U8);
}

size_t moved_count(const at::Tensor &tensor)
{
    auto count = static_cast<size_t>(tensor.numel());
    return dtype_of(tensor) ? count : count * tensor.element_size();
}

/* torch numbers its operations as the library does, up to the last of those. */
std::optional<shoal_op> op_of(const c10d::ReduceOp &op)
{
    static_assert(int(c10d::ReduceOp::SUM) == int(SHOAL_SUM) &&
                      int(c10d::ReduceOp::AVG) == int(SHOAL_AVG) &&
                      int(c10d::ReduceOp::PRODUCT) == int(SHOAL_PROD) &&
                      int(c10d::ReduceOp::MIN) == int(SHOAL_MIN) &&
                      int(c10d::ReduceOp::MAX) == int(SHOAL_MAX) &&
                      int(c10d::ReduceOp::BAND) == int(SHOAL_BAND) &&
                      int(c10d::ReduceOp::BOR) == int(SHOAL_BOR) &&
                      int(c10d::ReduceOp::BXOR) == int(SHOAL_BXOR),
                  "torch numbers its operations in another way");
    int number = static_cast<int>(static_cast<c10d::ReduceOp::RedOpType>(op));
    if (number > int(SHOAL_BXOR))
        return std::nullopt;
    return static_cast<shoal_op>(number);
}

/* Options of a call: false when they are something else, which the Python backend knows. */
template <typename Options> bool take_options(const py::handle &given, Options *options)
{
    if (given.is_none())
        return true;
    py::detail::make_caster<Options> caster;
    if (!caster.load(given, false))
        return false;
    *options = py::detail::cast_op<Options &>(caster);
    return true;
}

class Collectives : public Group
{
  public:
    using Group::Group;

    Started all_reduce(const py::handle &list, const py::handle &given)
    {
        at::Tensor tensor;
        c10d::AllreduceOptions options;
        if (failed || !take_one(list, &tensor) || !take_options(given, &options))
            return {};
        auto dtype = dtype_of(tensor);
        auto op = op_of(options.reduceOp);
        if (!dtype || !op)
            return {};
        void *data = tensor.data_ptr();
        auto count = static_cast<size_t>(tensor.numel());
        return start("all_reduce", options.timeout, {{tensor}, {tensor}},
                     [&](shoal_request **request) {
                         return session->library->all_reduce(handle, data, data, count, *dtype, *op,
                                                             request);
                     });
    }

    Started reduce(const py::handle &list, const py::handle &given)
    {
        at::Tensor tensor;
        c10d::ReduceOptions options;
        if (failed || given.is_none() || !take_one(list, &tensor) || !take_options(given, &options))
            return {};
        auto dtype = dtype_of(tensor);
        auto op = op_of(options.reduceOp);
        if (!dtype || !op)
            return {};
        void *data = tensor.data_ptr();
        auto count = static_cast<size_t>(tensor.numel());
        return start("reduce", options.timeout, {{tensor}, {tensor}}, [&](shoal_request **request) {
            return session->library->reduce(handle, data, data, count, *dtype, *op,
                                            static_cast<int>(options.rootRank), request);
        });
    }

    Started broadcast(const py::handle &list, const py::handle &given)
    {
        at::Tensor tensor;
        c10d::BroadcastOptions options;
        if (failed || given.is_none() || !take_one(list, &tensor) || !take_options(given, &options))
            return {};
        return start(
            "broadcast", options.timeout, {{tensor}, {tensor}}, [&](shoal_request **request) {
                return session->library->broadcast(handle, tensor.data_ptr(), moved_count(tensor),
                                                   moved_dtype(tensor),
                                                   static_cast<int>(options.rootRank), request);
            });
    }

    Started barrier(const py::handle &given)
    {
        c10d::BarrierOptions options;
        if (failed || !take_options(given, &options))
            return {};
        return start("barrier", options.timeout, {}, [&](shoal_request **request) {
            return session->library->barrier(handle, request);
        });
    }

    /* lists: [[Tensor for each rank]] */
    Started all_gather(const py::handle &lists, const py::handle &list, const py::handle &given)
    {
        at::Tensor tensor;
        c10d::AllgatherOptions options;
        std::vector<at::Tensor> outputs;
        if (failed || !take_one(list, &tensor) || !take_options(given, &options) ||
            !PyList_CheckExact(lists.ptr()) || PyList_GET_SIZE(lists.ptr()) != 1 ||
            !take_listed(PyList_GET_ITEM(lists.ptr(), 0), size, &outputs) ||
            outputs[0].scalar_type() != tensor.scalar_type() ||
            outputs[static_cast<size_t>(rank)].numel() != tensor.numel())
            return {};
        std::vector<void *> places;
        std::vector<size_t> counts;
        for (const auto &output : outputs) {
            places.push_back(output.data_ptr());
            counts.push_back(moved_count(output));
        }
        return gather("all_gather", options.timeout, tensor, places, counts,
                      {{tensor}, outputs, outputs.size()});
    }

    Started all_gather_into_tensor(PyObject *out, PyObject *in, const py::handle &given)
    {
        at::Tensor output, tensor;
        c10d::AllgatherOptions options;
        if (failed || !take(out, &output) || !take(in, &tensor) || !take_options(given, &options) ||
            !parts_of(output, tensor))
            return {};
        std::vector<size_t> counts(static_cast<size_t>(size), moved_count(tensor));
        auto places = places_in<void *>(output, tensor);
        return gather("all_gather_into_tensor", options.timeout, tensor, places, counts,
                      {{tensor}, {output}});
    }

    Started reduce_scatter_tensor(PyObject *out, PyObject *in, const py::handle &given)
    {
        at::Tensor output, tensor;
        c10d::ReduceScatterOptions options;
        if (failed || !take(out, &output) || !take(in, &tensor) || !take_options(given, &options) ||
            !parts_of(tensor, output))
            return {};
        auto dtype = dtype_of(output);
        auto op = op_of(options.reduceOp);
        if (!dtype || !op)
            return {};
        std::vector<size_t> counts(static_cast<size_t>(size), moved_count(output));
        auto places = places_in<const void *>(tensor, output);
        return start("reduce_scatter_tensor", options.timeout, {{tensor}, {output}},
                     [&](shoal_request **request) {
                         return session->library->reduce_scatter_v(handle, places.data(),
                                                                   output.data_ptr(), counts.data(),
                                                                   *dtype, *op, request);
                     });
    }

    /* Parts of equal sizes, by the first dimension. */
    Started all_to_all_single(PyObject *out, PyObject *in, const py::handle &output_sizes,
                              const py::handle &input_sizes, const py::handle &given)
    {
        at::Tensor output, tensor;
        c10d::AllToAllOptions options;
        if (failed || !take(out, &output) || !take(in, &tensor) || !take_options(given, &options) ||
            py::len(output_sizes) || py::len(input_sizes) ||
            output.scalar_type() != tensor.scalar_type() || !rows(output) || !rows(tensor))
            return {};
        at::Tensor in_part = tensor.narrow(0, 0, tensor.size(0) / size);
        at::Tensor out_part = output.narrow(0, 0, output.size(0) / size);
        std::vector<size_t> in_counts(static_cast<size_t>(size), moved_count(in_part));
        std::vector<size_t> out_counts(static_cast<size_t>(size), moved_count(out_part));
        auto from = places_in<const void *>(tensor, in_part);
        auto to = places_in<void *>(output, out_part);
        return start("all_to_all_single", options.timeout, {{tensor}, {output}},
                     [&](shoal_request **request) {
                         return session->library->all_to_all_v(
                             handle, from.data(), in_counts.data(), to.data(), out_counts.data(),
                             moved_dtype(tensor), request);
                     });
    }

  private:
    bool parts_of(const at::Tensor &whole, const at::Tensor &part) const
    {
        return whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * size;
    }

    bool rows(const at::Tensor &tensor) const
    {
        return tensor.dim() > 0 && tensor.size(0) % size == 0;
    }

    /* Where each rank's part of `whole` lies. */
    template <typename Place>
    std::vector<Place> places_in(const at::Tensor &whole, const at::Tensor &part) const
    {
        std::vector<Place> places;
        auto *first = static_cast<char *>(whole.data_ptr());
        for (size_t i = 0; i < static_cast<size_t>(size); i++)
            places.push_back(first + i * part.nbytes());
        return places;
    }

    /* places, counts: where each rank's tensor goes. */
    Started gather(const char *verb, Milliseconds limit, const at::Tensor &tensor,
                   const std::vector<void *> &places, const std::vector<size_t> &counts,
                   Tensors &&used)
    {
        return start(verb, limit, std::move(used), [&](shoal_request **request) {
            return session->library->all_gather_v(handle, tensor.data_ptr(), places.data(),
                                                  counts.data(), moved_dtype(tensor), request);
        });
    }

    template <typename Start>
    Started start(const char *verb, Milliseconds limit, Tensors &&used, const Start &call)
    {
        auto tensors = std::make_shared<const Tensors>(std::move(used));
        if (!session->open())
            return {};
        py::gil_scoped_release released;
        session->expire_oldest();
        auto operation = std::make_shared<Operation>(shared_from_this(), verb,
                                                     limit.count() > 0 ? limit : timeout, tensors);
        shoal_request *request;
        int code = call(&request);
        if (code < 0)
            throw session->library->error(code);
        operation->begin(request);
        return c10::make_intrusive<Work>(std::move(operation), std::move(tensors));
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
        .def(
            "wait_on_host", [](Work &work) { wait(work, std::nullopt); }, Released())
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
        .def("all_gather_into_tensor",
             [](Collectives &group, const py::object &output, const py::object &tensor,
                const py::object &options) {
                 return group.all_gather_into_tensor(output.ptr(), tensor.ptr(), options);
             })
        .def("reduce_scatter_tensor",
             [](Collectives &group, const py::object &output, const py::object &tensor,
                const py::object &options) {
                 return group.reduce_scatter_tensor(output.ptr(), tensor.ptr(), options);
             })
        .def("all_to_all_single", [](Collectives &group, const py::object &output,
                                     const py::object &tensor, const py::object &output_sizes,
                                     const py::object &input_sizes, const py::object &options) {
            return group.all_to_all_single(output.ptr(), tensor.ptr(), output_sizes, input_sizes,
                                           options);
        });
}
