// Packs the arguments of a call.
#include "cuda/codegen/launch_arguments.h"

#include <algorithm>

#include "support/check.h"
#include "support/integer.h"

namespace tilewright::cuda {
namespace {

constexpr std::uint64_t kVectorBytes = 16;

/// RefFacts::copy_bytes of an array.
int copy_bytes(const ir::RefType& type, const ir::RefArgument& ref) {
    if (type.rank() == 0 || ref.strides[type.rank() - 1] != 1) return 0;
    std::uint64_t multiples = reinterpret_cast<std::uintptr_t>(ref.data) | kVectorBytes;
    for (int dim = 0; dim < type.rank(); ++dim) {
        const std::size_t d = dim;
        if (ref.extents[d] == 0) return 0;
        if (ref.extents[d] == 1 || dim == type.rank() - 1) continue;
        multiples |= static_cast<std::uint64_t>(ref.strides[d]) *
                     static_cast<std::uint64_t>(size_of(type.dtype));
    }
    const auto alignment = static_cast<int>(multiples & -multiples);
    return alignment == 8 || alignment == 4 ? alignment : 0;
}

}  // namespace

std::vector<RefFacts> facts_of(const ir::Function& kernel, const ir::Arguments& arguments,
                               bool copies) {
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
            const std::size_t d = dim;
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
            const std::size_t d = dim;
            dense = ref.extents[d] == 1 || ref.strides[d] == expected;
            expected *= ref.extents[d];
        }
        constexpr std::int64_t kMostExtent = std::int64_t{1} << 30;
        constexpr std::int64_t kMostStride = std::int64_t{1} << 40;  // bytes
        bool tensor = vectors;
        for (int dim = 0; dim < type.rank() && tensor; ++dim) {
            const std::size_t d = dim;
            tensor = ref.extents[d] > 0 && ref.extents[d] < kMostExtent &&
                     (ref.extents[d] == 1 ||
                      (ref.strides[d] > 0 && ref.strides[d] < kMostStride / size_of(type.dtype)));
        }
        facts.push_back({vectors, dense, tensor, copies ? copy_bytes(type, ref) : 0});
    }
    return facts;
}

std::vector<RefFacts> facts_of_dense(const ir::Function& kernel, bool copies) {
    ir::Arguments arguments;
    for (ir::Value parameter : kernel.parameters()) {
        if (!kernel.is_ref(parameter)) continue;
        const ir::RefType& type = kernel.ref_type(parameter);
        if (type.space != ir::Space::global) continue;
        ir::RefArgument ref;
        std::int64_t stride = 1;
        for (int dim = type.rank() - 1; dim >= 0; --dim) {
            const std::size_t d = dim;
            const std::int64_t extent = type.extents[d];
            ref.extents[d] = extent == ir::kDynamic ? std::int64_t{kVectorBytes} : extent;
            ref.strides[d] = stride;
            stride *= ref.extents[d];
        }
        arguments.refs.push_back(ref);
    }
    return facts_of(kernel, arguments, copies);
}

LaunchArguments::LaunchArguments(const ir::Function& kernel, const ir::Arguments& arguments,
                                 const Generated* generated) {
    const std::vector<std::int64_t>& grid =
        generated != nullptr && !generated->grid.empty() ? generated->grid : kernel.grid;
    std::vector<std::size_t> starts;
    std::size_t next_ref = 0, next_scalar = 0;
    for (ir::Value parameter : kernel.parameters()) {
        if (!kernel.is_ref(parameter)) continue;
        const ir::RefType& type = kernel.ref_type(parameter);
        if (type.space != ir::Space::global) continue;
        starts.push_back(words_.size());
        const ir::RefArgument& ref = arguments.refs.at(next_ref++);
        words_.push_back(reinterpret_cast<std::uintptr_t>(ref.data));
        const std::size_t rank = type.rank();
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
    for (std::size_t axis = 0; axis < grid.size(); ++axis) {
        // Kernels of the scheduled form may count their tiles otherwise than the call its blocks.
        const bool own = &grid != &kernel.grid && grid[axis] != ir::kDynamic;
        const std::int64_t extent =
            axis < arguments.grid.size() && !own ? arguments.grid[axis] : grid[axis];
        starts.push_back(words_.size());
        words_.push_back(static_cast<std::uint64_t>(extent));
        if (__builtin_mul_overflow(programs_, extent, &programs_)) {
            user_error(kernel.name, "expected fewer than 2^31 programs but got a larger grid");
        }
    }
    for (std::size_t start : starts) parameters_.push_back(&words_[start]);
    if (generated != nullptr) add_maps(kernel, arguments, *generated);
}

void LaunchArguments::add_maps(const ir::Function& kernel, const ir::Arguments& arguments,
                               const Generated& generated) {
    std::vector<const ir::RefType*> types;
    for (ir::Value parameter : kernel.parameters()) {
        if (kernel.is_ref(parameter)) types.push_back(&kernel.ref_type(parameter));
    }
    for (const MapParameter& map : generated.maps) {
        const std::size_t index = map.ref;
        const ir::RefArgument& ref = arguments.refs.at(index);
        TensorMapRequest request;
        request.dtype = types.at(index)->dtype;
        request.tf32 = map.tf32;
        request.rank = static_cast<int>(map.box.size());
        request.address = reinterpret_cast<std::uintptr_t>(ref.data);
        request.swizzle = Swizzle::bytes128;
        std::int64_t last = 1;  // the stride taken for an extent of 1
        for (std::size_t d = 0; d < map.box.size(); ++d) {
            const std::size_t from = map.box.size() - 1 - d;
            const std::int64_t stride = ref.extents[from] == 1 && d > 0 ? last : ref.strides[from];
            request.extents[d] = static_cast<std::uint64_t>(ref.extents[from]);
            request.strides[d] = static_cast<std::uint64_t>(stride) *
                                 static_cast<std::uint64_t>(size_of(request.dtype));
            request.box[d] = static_cast<std::uint32_t>(map.box[from]);
            constexpr std::int64_t kVector = 16;
            last = std::max(last, ceil_div(stride * ref.extents[from], kVector) * kVector);
        }
        maps_.push_back(request);
    }
}

}  // namespace tilewright::cuda
