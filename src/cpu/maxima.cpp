// Makes products find the maxima of their results.
#include "cpu/maxima.h"

#include <cstddef>
#include <variant>

namespace tilewright::cpu {
namespace {

/// The reduction of a chain that does nothing but find the maximum of the rows of `dot`; nullptr
/// for other chains.
const StripOp* maximum_of(const Chain& chain, const Dot& dot) {
    if (chain.ops.size() != 1) return nullptr;
    const StripOp& op = chain.ops[0];
    const StripSource& in = op.in[0];
    const Tile& made = dot.out;
    const bool is_maximum = op.kind == StripOp::Kind::reduce_rows &&
                            op.reduction == ir::Reduction::max && op.sum.home == Home::none &&
                            op.out.home == Home::buffer && op.out.dtype == DType::f32;
    const bool reads_all = made.home == Home::buffer && in.home == Home::buffer &&
                           in.index == made.index && in.dtype == DType::f32 &&
                           in.offset == made.offset && in.row_stride == made.stride[1] &&
                           in.lane_stride == 1 && made.shape[0] == 1 &&
                           chain.rows == made.shape[1] && chain.lanes == made.shape[2];
    const bool same_panels =
        made.lane_axis == 2 && made.width == chain.width && in.panel_stride == made.panel_stride;
    return is_maximum && reads_all && same_panels ? &op : nullptr;
}

}  // namespace

void find_maxima(Region& region, const Program& program) {
    if (!program.kernels->finds_maxima) return;
    for (std::size_t i = 0; i < region.size(); ++i) {
        for (Region& inner : region[i].regions) find_maxima(inner, program);
        auto* const dot = std::get_if<Dot>(&region[i].instruction);
        if (!dot || dot->function != program.kernels->gemm_bf16_pairs || i + 1 == region.size())
            continue;
        const auto* const chain = std::get_if<Chain>(&region[i + 1].instruction);
        const StripOp* const maximum = chain ? maximum_of(*chain, *dot) : nullptr;
        if (!maximum) continue;
        dot->maxima = maximum->out;
        region.erase(region.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
}

}  // namespace tilewright::cpu
