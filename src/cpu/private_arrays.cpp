// Copies of small arrays that programs only accumulate into.
#include "cpu/private_arrays.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ir/access.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

std::optional<ir::Reduction> reduction_of(ir::Op atomic) {
    switch (atomic) {
        case ir::Op::atomic_add:
            return ir::Reduction::sum;
        case ir::Op::atomic_max:
            return ir::Reduction::max;
        case ir::Op::atomic_min:
            return ir::Reduction::min;
        default:
            return std::nullopt;
    }
}

/// out = combine(out, in) for all elements from dimension `dim` on.
void combine(StripFunction function, int element, const ir::RefArgument& in,
             const ir::RefArgument& out, std::size_t dim, std::size_t rank, std::int64_t from,
             std::int64_t to) {
    const std::int64_t in_stride = in.strides[dim], out_stride = out.strides[dim];
    const std::int64_t extent = rank == 0 ? 1 : in.extents[dim];
    if (dim + 1 < rank) {
        for (std::int64_t i = 0; i < extent; ++i)
            combine(function, element, in, out, dim + 1, rank, from + i * in_stride,
                    to + i * out_stride);
        return;
    }
    Strip strip;
    const bool together = in_stride == 1 && out_stride == 1;
    strip.rows = together ? 1 : extent;
    strip.lanes = together ? extent : 1;
    std::byte* const at = static_cast<std::byte*>(out.data) + to * element;
    strip.in[0] = {at, out_stride, 1};
    strip.in[1] = {static_cast<const std::byte*>(in.data) + from * element, in_stride, 1};
    strip.out = at;
    strip.out_row_stride = out_stride;
    function(strip);
}

}  // namespace

std::vector<PrivateRef> private_refs(const ir::Function& function) {
    std::map<ir::Value, std::optional<PrivateRef>> found;  // nullopt: of several kinds
    std::map<ir::Value, int> reads;
    std::set<ir::Value> atomics;
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        for (const ir::Value operand : instruction.operands) ++reads[operand];
    });
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        if (!ir::is_access(instruction.op)) return;
        const ir::Value ref = instruction.operands[0];
        const ir::RefType& type = function.ref_type(ref);
        const bool plain = instruction.op == ir::Op::load || instruction.op == ir::Op::store;
        if (!plain) atomics.insert(ref);
        const auto reduction = reduction_of(instruction.op);
        std::optional<PrivateRef> wanted;
        if (reduction && !is_float(type.dtype) && type.space == ir::Space::global &&
            reads[instruction.result()] == 0) {
            wanted = PrivateRef{0, *reduction, type.dtype};
        }
        const auto [place, first] = found.try_emplace(ref, wanted);
        const bool same = wanted && place->second && wanted->reduction == place->second->reduction;
        if (!first && !same) place->second = std::nullopt;
    });
    std::vector<PrivateRef> result;
    std::uint32_t index = 0;
    for (const ir::Value parameter : function.parameters()) {
        if (!function.is_ref(parameter)) continue;
        const auto place = found.find(parameter);
        bool wanted = place != found.end() && place->second.has_value();
        const int group = function.ref_type(parameter).alias_group;
        for (const auto& [other, kind] : found) {
            const bool aliases =
                other != parameter && group >= 0 && function.ref_type(other).alias_group == group;
            wanted = wanted && !aliases;
        }
        if (wanted) {
            result.push_back(*place->second);
            result.back().ref = index;
        }
        ++index;
    }
    // All or none: atomics on other arrays could not tell whether theirs has a copy.
    if (result.size() != atomics.size()) result.clear();
    return result;
}

PrivateArrays::PrivateArrays(const Program& program, const ir::Arguments& arguments)
    : program_(program) {
    for (const PrivateRef& ref : program.private_refs) {
        const RefSlot& slot = program.refs[ref.ref];
        const ir::RefArgument& shared = arguments.refs[slot.argument];
        std::int64_t count = 1;
        for (std::size_t dim = 0; dim < slot.type.extents.size(); ++dim)
            count *= shared.extents[dim];
        arrays_.push_back({ref, shared, count});
    }
    const bool small = std::all_of(arrays_.begin(), arrays_.end(), [](const Array& array) {
        return array.count > 0 && array.count <= kMostBytes / size_of(array.ref.dtype);
    });
    if (!small) arrays_.clear();
}

void PrivateArrays::begin(std::vector<std::byte>& memory, std::vector<PrivateArray>& own) const {
    std::int64_t bytes = 0;
    for (const Array& array : arrays_) bytes += array.count * size_of(array.ref.dtype);
    memory.resize(bytes);
    own.resize(arrays_.size());
    std::byte* next = memory.data();
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
        const Array& array = arrays_[i];
        const DType dtype = array.ref.dtype;
        own[i] = {array.ref.ref, array.shared};
        ir::RefArgument& copy = own[i].argument;
        copy.data = next;
        std::int64_t stride = 1;
        for (std::size_t dim = program_.refs[array.ref.ref].type.extents.size(); dim-- > 0;) {
            copy.strides[dim] = stride;
            stride *= copy.extents[dim];
        }
        for (std::int64_t e = 0; e < array.count; ++e, next += size_of(dtype))
            ir::write_element(dtype, next, ir::identity(array.ref.reduction, dtype));
    }
}

void PrivateArrays::end(const std::vector<PrivateArray>& own) {
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
        const Array& array = arrays_[i];
        const ir::Op op = array.ref.reduction == ir::Reduction::sum   ? ir::Op::add
                          : array.ref.reduction == ir::Reduction::max ? ir::Op::max
                                                                      : ir::Op::min;
        const DType dtype = array.ref.dtype;
        combine(program_.kernels->elementwise(op, dtype, dtype, false), size_of(dtype),
                own[i].argument, array.shared, 0, program_.refs[array.ref.ref].type.extents.size(),
                0, 0);
    }
}

}  // namespace tilewright::cpu
