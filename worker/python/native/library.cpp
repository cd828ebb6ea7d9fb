#include "worker/python/native/library.hpp"

#include <pybind11/pybind11.h>

#include <dlfcn.h>

namespace shoal_native
{

namespace
{

template <typename Function> void find(void *handle, const char *name, Function *function)
{
    void *found = dlsym(handle, name);
    if (!found)
        throw Error(SHOAL_EUNSUPPORTED, std::string("libshoal has no ") + name);
    *function = reinterpret_cast<Function>(found);
}

} // namespace

PyObject *Error::python_type()
{
    try {
        auto made = pybind11::module_::import("shoal.errors").attr("make_error")(code, what());
        return pybind11::type::handle_of(made).ptr(); /* the module keeps its classes */
    } catch (pybind11::error_already_set &error) {
        return error.type().inc_ref().ptr(); /* a reference for good, since torch takes none */
    }
}

Library::Library(const std::string &path)
{
    /* The package keeps it loaded, so this one is never closed. */
    void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        throw Error(SHOAL_EUNSUPPORTED, std::string("cannot load libshoal: ") + dlerror());
    find(handle, "shoal_all_reduce", &all_reduce);
    find(handle, "shoal_reduce", &reduce);
    find(handle, "shoal_broadcast", &broadcast);
    find(handle, "shoal_barrier", &barrier);
    find(handle, "shoal_all_gather_v", &all_gather_v);
    find(handle, "shoal_reduce_scatter_v", &reduce_scatter_v);
    find(handle, "shoal_all_to_all_v", &all_to_all_v);
    find(handle, "shoal_gather_v", &gather_v);
    find(handle, "shoal_scatter_v", &scatter_v);
    find(handle, "shoal_send", &send);
    find(handle, "shoal_recv", &recv);
    find(handle, "shoal_recv_any", &recv_any);
    find(handle, "shoal_wait", &wait);
    find(handle, "shoal_request_on_complete", &on_complete);
    find(handle, "shoal_request_free", &request_free);
    find(handle, "shoal_alloc", &alloc);
    find(handle, "shoal_free", &free);
    find(handle, "shoal_error_text", &error_text);
    find(handle, "shoal_result_name", &result_name);
}

std::string Library::waits_for() const
{
    std::string text = error_text(), before = " ms have passed: ";
    size_t found = text.find(before);
    return found == std::string::npos ? text : text.substr(found + before.size());
}

Error Library::error(int code) const
{
    std::string text = error_text(), name = result_name(code);
    if (text.empty())
        return Error(code, name);
    /* Once, where the text begins with the name. */
    bool said = text.rfind(name, 0) == 0 || text.rfind("the " + name, 0) == 0;
    return Error(code, said ? text : name + ": " + text);
}

} // namespace shoal_native
