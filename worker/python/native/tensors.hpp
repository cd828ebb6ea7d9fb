/* Arguments of torch's calls, as the library takes them. A function that takes something returns
 * false where this module cannot handle it: the group's part in Python knows it. */
#ifndef SHOAL_NATIVE_TENSORS_H
#define SHOAL_NATIVE_TENSORS_H

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <optional>
#include <vector>

#include "worker/shoal.h"

namespace shoal_native
{

/* Take a tensor that is dense, in memory, in row-major order, has the elements themselves, and is
 * of no class of Python's. */
bool take(const at::Tensor &tensor);
/* Take at least one tensor, each as take() does. */
bool take_list(const std::vector<at::Tensor> &tensors);
/* Take a list with one tensor for each of `size` ranks, all of one type. */
bool take_listed(const std::vector<at::Tensor> &tensors, int size);
/* Take `count` such lists. */
bool take_lists(const std::vector<std::vector<at::Tensor>> &lists, size_t count, int size);

/* Return the type of a tensor that the library can reduce; for complex numbers, which are pairs,
 * that of their parts. */
std::optional<shoal_dtype> dtype_of(const at::Tensor &tensor);
/* Bytes are moved of any type, as itself where possible: every rank says the same. A reduction has
 * the same count. */
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
/* Parts by the first dimension, of these sizes; none: equal ones. */
bool take_rows(const at::Tensor &whole, int size, std::vector<int64_t> sizes, Parts *parts);

} // namespace shoal_native

#endif
