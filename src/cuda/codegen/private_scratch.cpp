// Scratch that needs no barriers.
#include "cuda/codegen/private_scratch.h"

#include <algorithm>
#include <optional>

namespace tilewright::cuda {

using ir::Instruction;
using ir::Op;
using ir::Value;

namespace {

bool is_private(const KernelFacts& facts, const Layouts& layouts, Value ref) {
    if (facts.function().ref_type(ref).space != ir::Space::scratch) return false;
    std::optional<Layout> layout;
    bool result = true;
    ir::walk(facts.function().body, [&](const Instruction& each) {
        if (!ir::is_access(each.op) || each.operands[0] != ref) return;
        const ir::Access access = ir::access(each);
        const bool load = each.op == Op::load;
        result = result && (load || each.op == Op::store) && !access.mask &&
                 std::all_of(access.indices.begin(), access.indices.end(),
                             [&](Value index) { return facts.is_constant(index, 0); });
        if (!result) return;
        const Layout own =
            home_of(facts, layouts, load ? each.result() : facts.before_rounding(access.values[0]));
        if (!layout) layout = own;
        result = own.shape == layout->shape && own.lane == layout->lane &&
                 own.warp == layout->warp && own.copied_lanes() == 0 && own.copied_warps() == 0;
    });
    return result;
}

}  // namespace

std::set<Value> private_scratch(const KernelFacts& facts, const Layouts& layouts) {
    std::set<Value> result;
    for (Value parameter : facts.function().parameters()) {
        if (facts.function().is_ref(parameter) && is_private(facts, layouts, parameter)) {
            result.insert(parameter);
        }
    }
    return result;
}

}  // namespace tilewright::cuda
