// Packs the arguments of a call.
#include "cuda/codegen/launch_arguments.h"

#include <algorithm>

#include "support/check.h"

namespace tilewright::cuda {
namespace {

constexpr std::uint64_t kVectorBytes = 16;

}  // namespace

std::vector<RefFacts> facts_of(const ir::Function& kernel, const ir::Arguments& arguments) {
    std::vector<RefFacts> facts;
    for (ir::Value parameter : kernel.parameters()) {
        if (!kernel.is_ref(parameter)) continue;
        const ir::RefType& type = kernel.ref_type(parameter);
        if (type.space != ir::Space::global) continue;
        const ir::RefArgument& ref = arguments.refs.at(facts.size());
        const auto bytes = static_cast<std::uint64_t>(size_of(type.dtype));
        bool vectors =
            type.rank() > 0 && reinterpret_cast<std::uintptr_t>(ref.data) % kVectorBytes == 0;
        for (int dim = 0; dim < type.rank() && vectors; ++dim) {
            const auto d = static_cast<std::size_t>(dim);
            const std::int64_t stride = ref.strides[d];
            if (dim == type.rank() - 1) {
                vectors = stride == 1;
            } else if (ref.extents[d] > 1) {
                vectors = static_cast<std::uint64_t>(stride) * bytes % kVectorBytes == 0;
            }
        }
        bool dense = vectors;
        std::int64_t expected = 1;
        for (int dim = type.rank() - 1; dim >= 0 && dense; --dim) {
            const auto d = static_cast<std::size_t>(dim);
            dense = ref.extents[d] == 1 || ref.strides[d] == expected;
            expected *= ref.extents[d];
        }
        facts.push_back({vectors, dense});
    }
    return facts;
}

std::vector<RefFacts> facts_of_dense(const ir::Function& kernel) {
    ir::Arguments arguments;
    for (ir::Value parameter : kernel.parameters()) {
        if (!kernel.is_ref(parameter)) continue;
        const ir::RefType& type = kernel.ref_type(parameter);
        if (type.space != ir::Space::global) continue;
        ir::RefArgument ref;
        std::int64_t stride = 1;
        for (int dim = type.rank() - 1; dim >= 0; --dim) {
            const auto d = static_cast<std::size_t>(dim);
            const std::int64_t extent = type.extents[d];
            ref.extents[d] = extent == ir::kDynamic ? std::int64_t{kVectorBytes} : extent;
            ref.strides[d] = stride;
            stride *= ref.extents[d];
        }
        arguments.refs.push_back(ref);
    }
    return facts_of(kernel, arguments);
}

LaunchArguments::LaunchArguments(const ir::Function& kernel, const ir::Arguments& arguments) {
    std::vector<std::size_t> starts;
    std::size_t next_ref = 0, next_scalar = 0;
    for (ir::Value parameter : kernel.parameters()) {
        if (!kernel.is_ref(parameter)) continue;
        const ir::RefType& type = kernel.ref_type(parameter);
        if (type.space != ir::Space::global) continue;
        starts.push_back(words_.size());
        const ir::RefArgument& ref = arguments.refs.at(next_ref++);
        words_.push_back(reinterpret_cast<std::uintptr_t>(ref.data));
        const auto rank = static_cast<std::size_t>(type.rank());
        for (const auto* values : {&ref.extents, &ref.strides}) {
            for (std::size_t d = 0; d < std::max<std::size_t>(rank, 1); ++d) {
                words_.push_back(d < rank ? static_cast<std::uint64_t>((*values)[d]) : 1);
            }
        }
    }
    for (ir::Value parameter : kernel.parameters()) {
        if (kernel.is_ref(parameter)) continue;
        starts.push_back(words_.size());
        words_.push_back(arguments.scalars.at(next_scalar++));
    }
    for (std::size_t axis = 0; axis < kernel.grid.size(); ++axis) {
        const std::int64_t extent =
            axis < arguments.grid.size() ? arguments.grid[axis] : kernel.grid[axis];
        starts.push_back(words_.size());
        words_.push_back(static_cast<std::uint64_t>(extent));
        if (__builtin_mul_overflow(programs_, extent, &programs_)) {
            user_error(kernel.name, "expected fewer than 2^31 programs but got a larger grid");
        }
    }
    for (std::size_t start : starts) parameters_.push_back(&words_[start]);
}

}  // namespace tilewright::cuda
