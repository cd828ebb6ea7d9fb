/* libshoal as the Python package has loaded it, and its errors as C++ exceptions. */
#ifndef SHOAL_NATIVE_LIBRARY_H
#define SHOAL_NATIVE_LIBRARY_H

#include <torch/csrc/Exceptions.h>

#include <string>

#include "worker/shoal.h"

namespace shoal_native
{

/* A call of the library failed, or something that is said like it. `code` is of shoal_result. In
 * Python it is the class of shoal.errors for that code, whichever way through torch it took. */
class Error : public torch::PyTorchError
{
  public:
    Error(int code, const std::string &text) : torch::PyTorchError(text), code(code)
    {
    }
    /* Return the error's type in Python. torch holds Python's lock, and asks where an exception
     * would end the process. An exception that Python raises here, such as Ctrl-C, takes the
     * error's place. */
    PyObject *python_type() override;

    int code;
};

/* The calls that this module makes, found by name: which file they are in is the package's to say.
 */
struct Library {
    /* path: what the package has loaded. Throws Error when it has not all of the calls. */
    explicit Library(const std::string &path);

    /* Return the error of the call that just failed with this code in this thread. */
    Error error(int code) const;
    /* Return what the request waits for whose wait has just timed out in this thread. */
    std::string waits_for() const;

    decltype(&::shoal_all_reduce) all_reduce;
    decltype(&::shoal_reduce) reduce;
    decltype(&::shoal_broadcast) broadcast;
    decltype(&::shoal_barrier) barrier;
    decltype(&::shoal_all_gather_v) all_gather_v;
    decltype(&::shoal_reduce_scatter_v) reduce_scatter_v;
    decltype(&::shoal_all_to_all_v) all_to_all_v;
    decltype(&::shoal_gather_v) gather_v;
    decltype(&::shoal_scatter_v) scatter_v;
    decltype(&::shoal_send) send;
    decltype(&::shoal_recv) recv;
    decltype(&::shoal_recv_any) recv_any;
    decltype(&::shoal_wait) wait;
    decltype(&::shoal_request_on_complete) on_complete;
    decltype(&::shoal_request_free) request_free;
    decltype(&::shoal_alloc) alloc;
    decltype(&::shoal_free) free;
    decltype(&::shoal_error_text) error_text;
    decltype(&::shoal_result_name) result_name;
};

} // namespace shoal_native

#endif
