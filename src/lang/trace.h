// Traces a kernel under the signature of a call into tile IR.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/function.h"
#include "tilewright/lang/kernel.h"

namespace tilewright::lang {

/// One Ref of a kernel, as a call describes it.
struct Parameter {
    enum class Role : std::uint8_t { input, output, scratch };

    std::string name;
    Role role = Role::input;
    DType dtype = f32;
    std::vector<std::int64_t> extents;  ///< kDynamic if changes need no retrace; static for scratch
    BlockSpec spec;
    int alias_group = -1;  ///< parameters with the same non-negative group share memory
    bool writable = true;
};

/// Everything that a trace depends on besides the kernel itself.
struct Signature {
    std::vector<Parameter> parameters;  ///< inputs, outputs, scratch
    std::vector<std::int64_t> grid;     ///< kDynamic allowed on parallel axes
    std::vector<int> sequential;        ///< grid axes that run in order inside one program
    int hidden_axes = 0;                ///< leading grid axes that program_id does not count
    ir::CompileHints hints;
    bool checked = false;  ///< emit checks of traced indices against their blocks
};

/// Traces the kernel and returns its function. The parameters are the present Refs in order; the
/// grid holds the parallel axes. UserErrors name the parameter and the user's line.
ir::Function trace(const Kernel& kernel, const Signature& signature);

/// Traces a mod: a function of scalars that returns one scalar.
ir::Function trace_mod(std::string name, std::span<const DType> parameters,
                       const std::function<Tile(std::span<const Tile>)>& mod);

}  // namespace tilewright::lang
