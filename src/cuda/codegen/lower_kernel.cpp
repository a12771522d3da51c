// Parameters and scratch around the body of a kernel.
#include "cuda/codegen/lower_kernel.h"

#include <algorithm>

#include "cuda/codegen/element_text.h"
#include "cuda/codegen/lower_memory.h"
#include "cuda/codegen/lower_operations.h"
#include "cuda/codegen/notes.h"
#include "cuda/schedule/register_names.h"
#include "support/integer.h"

namespace tilewright::cuda {
namespace {

using ir::Value;

void program_ids(Lowering& cx) {
    if (cx.function.grid.empty()) return;
    schedule::Instruction& ids = cx.append(schedule::Op::program_ids);
    if (cx.workspace) ids.flag("workspace");
    if (cx.plan.launch.last_first) ids.flag("last_first");
}

/// Places the scratch Refs, in the buffers `scratch` or in the workspace; returns the bytes of
/// the latter.
std::int64_t place_scratch(Lowering& cx, std::vector<int>& scratch) {
    constexpr std::int64_t kAlignment = 128;
    std::int64_t total = 0;
    std::vector<std::pair<Value, std::int64_t>> in_workspace;  // offsets
    for (Value parameter : cx.function.parameters()) {
        if (!cx.function.is_ref(parameter) ||
            cx.function.ref_type(parameter).space != ir::Space::scratch)
            continue;
        const ir::RefType& ref = cx.function.ref_type(parameter);
        std::int64_t bytes = size_of(ref.dtype);
        for (std::int64_t extent : ref.extents) bytes *= extent;
        if (cx.workspace) {
            in_workspace.emplace_back(parameter, total);
            total += ceil_div(bytes, kAlignment) * kAlignment;
            continue;
        }
        const int id = cx.buffer(std::max<std::int64_t>(bytes, 1));
        cx.append(schedule::Op::place_scratch)
            .with_symbol("of", ref_name(cx, parameter))
            .with_symbol("uses", buffer_name(id));
        scratch.push_back(id);
    }
    for (const auto& [parameter, offset] : in_workspace) {
        cx.append(schedule::Op::place_scratch)
            .with_symbol("of", ref_name(cx, parameter))
            .with("at", offset)
            .with("stride", total);
    }
    return total;
}

}  // namespace

LoweredKernel lower_kernel(const KernelFacts& facts, const Plan& plan, const Target& target,
                           bool workspace, int blocks) {
    Lowering cx(facts, plan, target, workspace, blocks);
    LoweredKernel lowered;
    Generated& generated = lowered.generated;
    std::string scalar_parameters;
    for (Value parameter : cx.function.parameters()) {
        schedule::Parameter& made = cx.program.parameters.emplace_back();
        made.name = ref_name(cx, parameter);
        if (cx.function.is_ref(parameter)) {
            const ir::RefType& ref = cx.function.ref_type(parameter);
            made.is_ref = true;
            made.dtype = ref.dtype;
            made.extents = ref.extents;
            made.vectors = cx.facts.has_vectors(parameter);
            made.dense = cx.facts.is_dense(parameter);
            made.scratch = ref.space == ir::Space::scratch;
            if (ref.space == ir::Space::scratch) continue;
            lowered.parameters += fmt::format(", const __grid_constant__ Array<{}, {}> {}",
                                              storage_type(ref.dtype), ref.rank(), made.name);
            ++generated.num_refs;
        } else {
            const std::string name = fmt::format("v{}", parameter.id);
            const DType dtype = cx.type(parameter).dtype;
            made.dtype = dtype;
            made.value = cx.program.add({false, cx.type(parameter), {}}, name);
            scalar_parameters += fmt::format(", const u64 {}", schedule::bits_name(made));
            cx.hold(parameter, {cx.scalar_layout(), made.value});
            ++generated.num_scalars;
        }
    }
    lowered.parameters += scalar_parameters;
    for (std::size_t axis = 0; axis < cx.function.grid.size(); ++axis) {
        lowered.parameters += fmt::format(", const i64 grid{}", axis);
    }
    if (cx.workspace) lowered.parameters += ", const u64 workspace, const u32 first_program";
    lowered.parameters.erase(0, 2);
    std::vector<int> scratch;
    generated.workspace_bytes = place_scratch(cx, scratch);
    program_ids(cx);
    if (blocks > 1) {
        cx.append(schedule::Op::meet).flag("begin");
        cx.blocks_begin = true;
    }
    lower_block(cx, cx.function.body);
    cx.begin_operation("yield");
    for (int id : scratch) cx.touch(id);  // lives to the end
    for (int id : cx.exchanged) cx.touch(id);

    generated.notes = notes_of(cx.facts, cx.plan, cx.workspace);
    generated.num_axes = static_cast<int>(cx.function.grid.size());
    generated.threads = 32 * cx.warps / blocks;
    generated.cluster = blocks;
    generated.name = "kernel_";
    for (char c : cx.function.name)
        generated.name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    constexpr int kMostThreads = 512;  // with 128 registers each
    if (blocks > 1) {
        lowered.launch_bounds = fmt::format(", {}", std::max(1, kMostThreads / generated.threads));
    } else if (cx.plan.launch.blocks > 0) {
        lowered.launch_bounds = fmt::format(", {}", cx.plan.launch.blocks);
    }
    lowered.program = std::move(cx.program);
    return lowered;
}

}  // namespace tilewright::cuda
