// What of a compiled program is slow, and why.
#include "cpu/slow_paths.h"

#include <fmt/format.h>

#include <cstdlib>
#include <set>
#include <variant>

#include "cpu/simd/kernels.h"

namespace tilewright::cpu {
namespace {

std::string scalar_kernels_reason() {
    const char* const wanted = std::getenv("TILEWRIGHT_TARGET");
    return wanted != nullptr && *wanted != '\0'
               ? fmt::format("TILEWRIGHT_TARGET={} asks for them", wanted)
               : "this build and machine have none for AVX2, AVX-512 or NEON";
}

/// True when a chain's operation is the scalar table's in a table for vectors.
bool is_scalar(const StripOp& op, const Kernels& scalar) {
    if (op.super != Super::none || op.function == nullptr || op.stored_ref >= 0) return false;
    if (op.op == ir::Op::bitcast || op.op == ir::Op::broadcast) return false;
    const DType in = op.in[op.op == ir::Op::select ? 1 : 0].dtype;
    switch (op.kind) {
        case StripOp::Kind::map:
            return op.function == scalar.elementwise(op.op, in, op.out.dtype, false) ||
                   op.function == scalar.elementwise(op.op, in, op.out.dtype, true);
        case StripOp::Kind::reduce_rows:
            return op.function == scalar.reduce_rows(op.reduction, in);
        case StripOp::Kind::reduce_lanes:
            return op.function == scalar.reduce_lanes(op.reduction, in);
    }
    return false;
}

}  // namespace

std::vector<std::string> slow_paths(const Program& program) {
    const Kernels& scalar = *find_kernels("scalar");
    const bool all_scalar = program.kernels->vector_bytes == scalar.vector_bytes;
    std::set<std::string> loops, gathers;
    const auto note_gather = [&](const Access& access) {
        if (access.gathers) gathers.insert(fmt::format("`{}`", program.refs[access.ref].name));
    };
    for (const Instruction& instruction : program.code) {
        if (const auto* chain = std::get_if<Chain>(&instruction)) {
            for (const StripOp& op : chain->ops)
                if (!all_scalar && is_scalar(op, scalar))
                    loops.insert(fmt::format("{} of {}", op.name(), name(op.in[0].dtype)));
        } else if (const auto* load = std::get_if<Load>(&instruction)) {
            note_gather(load->access);
        } else if (const auto* store = std::get_if<Store>(&instruction)) {
            note_gather(store->access);
        }
    }
    std::vector<std::string> result;
    if (all_scalar)
        result.push_back(fmt::format("scalar kernels, since {}", scalar_kernels_reason()));
    if (!loops.empty())
        result.push_back(
            fmt::format("{} element by element, since `{}` has no vector kernels for that",
                        fmt::join(loops, ", "), program.kernels->name));
    if (!gathers.empty())
        result.push_back(
            fmt::format("{} read or written element by element, since the indices are tiles or a "
                        "mask chooses",
                        fmt::join(gathers, ", ")));
    if (program.in_order)
        result.emplace_back(
            "programs run one after the other, since atomics depend on their order");
    return result;
}

}  // namespace tilewright::cpu
