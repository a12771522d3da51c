// Checks the arguments of a call.
#include "cpu/arguments.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cpu/bytecode.h"
#include "support/check.h"

namespace tilewright::cpu {
namespace {

void check_grid(const ir::Function& kernel, const ir::Arguments& arguments) {
    if (arguments.grid.size() != kernel.grid.size()) {
        user_error(kernel.name, "expected a grid of {} axes but got {}", kernel.grid.size(),
                   arguments.grid.size());
    }
    std::int64_t programs = 1;
    for (std::size_t axis = 0; axis < kernel.grid.size(); ++axis) {
        const std::int64_t declared = kernel.grid[axis];
        const std::int64_t extent = arguments.grid[axis];
        if (extent < 0) {
            user_error(kernel.name, "expected grid axis {} to be >= 0 but got {}", axis, extent);
        }
        if (declared != ir::kDynamic && declared != extent) {
            user_error(kernel.name, "expected grid axis {} to be {} but got {}", axis, declared,
                       extent);
        }
        if (__builtin_mul_overflow(programs, extent, &programs)) {
            user_error(kernel.name, "expected fewer than 2^63 programs but got a larger grid");
        }
    }
}

void check_ref(const ir::Function& kernel, std::size_t place, const ir::RefType& type,
               const ir::RefArgument& argument) {
    const auto name = [&] {
        const std::string& hint = kernel.value_name(kernel.parameters()[place]);
        return hint.empty() ? fmt::format("ref{}", place) : hint;
    };
    bool empty = false;
    for (int dim = 0; dim < type.rank(); ++dim) {
        const std::size_t d = dim;
        const std::int64_t extent = argument.extents[d];
        if (extent < 0) {
            user_error(kernel.name, "expected extent {} of {} to be >= 0 but got {}", dim, name(),
                       extent);
        }
        if (type.extents[d] != ir::kDynamic && type.extents[d] != extent) {
            user_error(kernel.name, "expected extent {} of {} to be {} but got {}", dim, name(),
                       type.extents[d], extent);
        }
        empty = empty || extent == 0;
    }
    if (argument.data == nullptr && !empty) {
        user_error(kernel.name, "expected an array for {} but got a null pointer", name());
    }
}

/// True if the arguments fit the program; false also if that takes a closer look. Small calls
/// notice the time of the checks below, which walk the kernel.
bool fit(const Program& program, const ir::Arguments& arguments) {
    if (arguments.scalars.size() != program.scalars.size() ||
        arguments.grid.size() != program.kernel.grid.size())
        return false;
    const auto same = [](std::int64_t declared, std::int64_t extent) {
        return declared == extent && declared != ir::kDynamic;
    };
    std::int64_t programs = 1;
    for (std::size_t axis = 0; axis < arguments.grid.size(); ++axis) {
        const std::int64_t extent = arguments.grid[axis];
        if (!same(program.kernel.grid[axis], extent) ||
            __builtin_mul_overflow(programs, extent, &programs))
            return false;
    }
    std::size_t arrays = 0;
    for (const RefSlot& slot : program.refs) {
        if (slot.argument < 0) continue;
        if (++arrays > arguments.refs.size()) return false;
        const ir::RefArgument& array = arguments.refs[slot.argument];
        const std::vector<std::int64_t>& extents = slot.type.extents;
        if (array.data == nullptr ||
            !std::equal(extents.begin(), extents.end(), array.extents.begin(), same))
            return false;
    }
    return arrays == arguments.refs.size();
}

}  // namespace

void check_arguments(const Program& program, const ir::Arguments& arguments) {
    if (!fit(program, arguments)) check_arguments(program.kernel, arguments);
}

void check_arguments(const ir::Function& kernel, const ir::Arguments& arguments) {
    check_grid(kernel, arguments);
    struct Array {
        std::size_t parameter;  // its position
        const ir::RefType* type;
    };
    std::vector<Array> arrays;  // in one pass: small calls notice
    arrays.reserve(kernel.parameters().size());
    std::size_t scalars = 0;
    for (std::size_t i = 0; i < kernel.parameters().size(); ++i) {
        const ir::Value parameter = kernel.parameters()[i];
        if (!kernel.is_ref(parameter)) {
            ++scalars;
        } else if (const auto& type = kernel.ref_type(parameter); type.space == ir::Space::global) {
            arrays.push_back({i, &type});
        }
    }
    if (arrays.size() != arguments.refs.size() || scalars != arguments.scalars.size()) {
        user_error(kernel.name, "expected {} arrays and {} scalars but got {} and {}",
                   arrays.size(), scalars, arguments.refs.size(), arguments.scalars.size());
    }
    for (std::size_t i = 0; i < arrays.size(); ++i)
        check_ref(kernel, arrays[i].parameter, *arrays[i].type, arguments.refs[i]);
}

}  // namespace tilewright::cpu
