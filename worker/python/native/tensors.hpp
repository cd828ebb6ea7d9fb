/* What torch calls with, as the library takes it. A function that takes something returns false
 * where that is none for this module: the Python backend knows it. */
#ifndef SHOAL_NATIVE_TENSORS_H
#define SHOAL_NATIVE_TENSORS_H

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <vector>

#include "worker/shoal.h"

namespace shoal_native
{

/* Dense, in memory, in row-major order, and the elements themselves. Not of a class of Python's. */
bool take(PyObject *object, at::Tensor *tensor);
/* A list of tensors: with one, but for what is coalesced. */
bool take_list(PyObject *list, std::vector<at::Tensor> *tensors);
/* A list with one tensor for each of `size` ranks, all of one type. */
bool take_listed(PyObject *list, int size, std::vector<at::Tensor> *tensors);
/* A list of `count` such lists. */
bool take_lists(PyObject *lists, size_t count, int size,
                std::vector<std::vector<at::Tensor>> *tensors);

/* Of those that the library can reduce. */
std::optional<shoal_dtype> dtype_of(const at::Tensor &tensor);
/* Bytes are moved of any type, as itself where possible: every rank says the same. */
shoal_dtype moved_dtype(const at::Tensor &tensor);
size_t moved_count(const at::Tensor &tensor);

struct Reduction {
    shoal_dtype dtype;
    shoal_op op;
};
/* One for each tensor. */
bool take_reduction(const std::vector<at::Tensor> &tensors, const c10d::ReduceOp &op,
                    std::vector<Reduction> *reductions);

/* Where the parts for or from each rank lie, and their elements, for the library's lists. */
struct Parts {
    std::vector<void *> places;
    std::vector<size_t> counts;
};
Parts parts_of(const std::vector<at::Tensor> &tensors);
/* `size` equal parts of a tensor, one after the other. */
Parts parts_of(const at::Tensor &whole, int size);
/* Parts by the first dimension, of the sizes that are given; none: equal ones. */
bool take_rows(const at::Tensor &whole, int size, const py::handle &given, Parts *parts);

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

} // namespace shoal_native

#endif
