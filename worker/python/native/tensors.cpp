#include "worker/python/native/tensors.hpp"

#include <algorithm>

namespace shoal_native
{

bool take(const at::Tensor &tensor)
{
    return tensor.layout() == at::kStrided && tensor.device().is_cpu() && tensor.is_contiguous() &&
           !tensor.is_conj() && !tensor.is_neg() && !tensor.key_set().has(c10::DispatchKey::Python);
}

bool take_list(const std::vector<at::Tensor> &tensors)
{
    return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), take);
}

bool take_listed(const std::vector<at::Tensor> &tensors, int size)
{
    return tensors.size() == static_cast<size_t>(size) && take_list(tensors) &&
           std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor &tensor) {
               return tensor.scalar_type() == tensors[0].scalar_type();
           });
}

bool take_lists(const std::vector<std::vector<at::Tensor>> &lists, size_t count, int size)
{
    return lists.size() == count &&
           std::all_of(lists.begin(), lists.end(), [&](const std::vector<at::Tensor> &list) {
               return take_listed(list, size);
           });
}

std::optional<shoal_dtype> dtype_of(const at::Tensor &tensor)
{
    switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kComplexFloat:
        return SHOAL_F32;
    case at::kDouble:
    case at::kComplexDouble:
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
    case at::kShort:
        return SHOAL_I16;
    case at::kUInt16:
        return SHOAL_U16;
    case at::kUInt32:
        return SHOAL_U32;
    case at::kUInt64:
        return SHOAL_U64;
    default:
        return std::nullopt;
    }
}

shoal_dtype moved_dtype(const at::Tensor &tensor)
{
    return dtype_of(tensor).value_or(SHOAL_U8);
}

/* Return how many of those are in an element. */
static size_t moved_units(const at::Tensor &tensor)
{
    if (!dtype_of(tensor))
        return tensor.element_size();
    return tensor.is_complex() ? 2 : 1;
}

size_t moved_count(const at::Tensor &tensor)
{
    return static_cast<size_t>(tensor.numel()) * moved_units(tensor);
}

namespace
{

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

} // namespace

bool take_reduction(const std::vector<at::Tensor> &tensors, const c10d::ReduceOp &op,
                    std::vector<Reduction> *reductions)
{
    auto code = op_of(op);
    for (const auto &tensor : tensors) {
        auto dtype = dtype_of(tensor);
        if (!dtype || !code)
            return false;
        if (tensor.is_complex() && *code != SHOAL_SUM && *code != SHOAL_AVG)
            return false;
        reductions->push_back({*dtype, *code});
    }
    return true;
}

Parts parts_of(const std::vector<at::Tensor> &tensors)
{
    Parts parts;
    for (const auto &tensor : tensors) {
        parts.places.push_back(tensor.data_ptr());
        parts.counts.push_back(moved_count(tensor));
    }
    return parts;
}

Parts parts_of(const at::Tensor &whole, int size)
{
    Parts parts;
    auto *first = static_cast<char *>(whole.data_ptr());
    size_t bytes = whole.nbytes() / static_cast<size_t>(size);
    for (size_t i = 0; i < static_cast<size_t>(size); i++)
        parts.places.push_back(first + i * bytes);
    parts.counts.assign(static_cast<size_t>(size), moved_count(whole) / static_cast<size_t>(size));
    return parts;
}

bool take_rows(const at::Tensor &whole, int size, std::vector<int64_t> sizes, Parts *parts)
{
    if (whole.dim() == 0)
        return false;
    int64_t length = whole.size(0), row = 1, sum = 0;
    for (int64_t i = 1; i < whole.dim(); i++)
        row *= whole.size(i);
    if (sizes.empty() && length % size == 0)
        sizes.assign(static_cast<size_t>(size), length / size);
    if (sizes.size() != static_cast<size_t>(size))
        return false;
    size_t unit = moved_units(whole);
    auto *first = static_cast<char *>(whole.data_ptr());
    for (int64_t rows : sizes) {
        if (rows < 0 || rows > length - sum)
            return false;
        parts->places.push_back(first + static_cast<size_t>(sum * row) * whole.element_size());
        parts->counts.push_back(static_cast<size_t>(rows * row) * unit);
        sum += rows;
    }
    return sum == length;
}

} // namespace shoal_native
