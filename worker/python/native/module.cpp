/* The Python module: the names that shoal.torch has for this folder's classes. */
#include <torch/csrc/distributed/c10d/python_comm_hook.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "worker/python/native/average.hpp"
#include "worker/python/native/backend.hpp"
#include "worker/python/native/bell.hpp"

namespace shoal_native
{

namespace
{

bool wait(Work &work, std::optional<Milliseconds> timeout, std::optional<Milliseconds> in_all)
{
    work.wait_for(timeout && timeout->count() > 0 ? timeout : std::nullopt, in_all);
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
    } catch (python_error &error) {
        error.restore();
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
        .def(py::init([](const std::string &path, size_t job) {
                 return std::make_shared<Session>(std::make_shared<const Library>(path),
                                                  reinterpret_cast<shoal_job *>(job));
             }),
             py::arg("path"), py::arg("job") = 0)
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
    work.def("wait_in_python", &wait, py::arg("timeout") = py::none(),
             py::arg("in_all") = py::none(), Released())
        .def(
            "end_receive",
            [](Work &work, const std::string &text) {
                work.end_receive(Error(SHOAL_ETIMEOUT, text));
            },
            Released())
        .def("chain", &Work::chain, Released())
        /* torch's own wait with Python's lock held, for which others may have to wait. */
        .def(
            "synchronize", [](Work &work) { work.wait_for(std::nullopt); }, Released())
        .def(
            "result",
            [](Work &work) {
                work.wait_for(std::nullopt);
                return work.result();
            },
            Released());
    work.def("source_rank_in_python", &Work::sourceRank, Released());
    for (const char *name : {"_source_rank", "source_rank"})
        work.attr(name) = work.attr("__dict__")["source_rank_in_python"];
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
        .def("all_reduce", &Collectives::all_reduce, py::arg("tensors"),
             py::arg("options") = c10d::AllreduceOptions(), Released())
        .def("count", [](Collectives &group) { ++group.sequence; })
        .def("number", [](Collectives &group) { return group.sequence.load(); })
        .def("set_number", [](Collectives &group, uint64_t number) { group.sequence = number; })
        .def("set_timeout", [](Collectives &group, Milliseconds time) { group.timeout = time; })
        .def("failure", &failure_of)
        .def("fail", [](Collectives &group, int code,
                        const std::string &text) { group.fail(Error(code, text)); })
        .def(
            "give_up",
            [](Collectives &group, int code, const std::string &text) {
                group.session->give_up(&group, Error(code, text));
            },
            Released());

    py::class_<Averages, std::shared_ptr<Averages>>(module, "Averages")
        .def("settle", &Averages::settle, Released())
        .def("hand_over",
             [](Averages &averages, py::object state, py::object hook) {
                 auto script = std::make_unique<c10d::PythonCommHook>(std::move(state), hook);
                 py::gil_scoped_release released;
                 averages.hand_over(std::move(script));
             })
        .def("statistics", &Averages::statistics);
    module.def("average_gradients",
               [](c10d::Reducer &reducer, c10d::ProcessGroup &group, bool static_graph) {
                   auto averages = std::make_shared<Averages>(
                       c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&group), static_graph);
                   reducer.register_comm_hook(std::make_unique<Average>(averages));
                   return averages;
               });

    py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>> backend(module, "Backend");
    backend
        .def(py::init([](std::shared_ptr<Collectives> collectives, py::object member) {
            return c10::make_intrusive<Backend>(std::move(collectives), std::move(member));
        }))
        .def_readonly("member", &Backend::member)
        .def_property_readonly("options", &Backend::getBackendOptions);
#ifdef SHOAL_TORCH_HAS_ERRORS
    backend.def("get_error", &Backend::getError);
#endif
}
