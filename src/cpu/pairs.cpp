// Lets strip chains write the pairs of rows that dots of bf16 read.
#include "cpu/pairs.h"

#include <map>

#include "cpu/def_use.h"

namespace tilewright::cpu {
namespace {

class PairWriter {
  public:
    PairWriter(Region& region, const Program& program)
        : kernels_(*program.kernels), uses_(region) {}

    void run(Region& region) {
        std::map<std::uint32_t, StripOp*> makers;  // of this straight run of instructions
        std::map<std::uint32_t, const Chain*> chains;
        std::erase_if(region, [&](Node& node) {
            if (node.kind != Node::Kind::instruction) {
                makers.clear();
                for (Region& inner : node.regions) run(inner);
                return false;
            }
            if (auto* chain = std::get_if<Chain>(&node.instruction)) {
                for (StripOp& op : chain->ops) {
                    if (op.out.home != Home::buffer) continue;
                    makers[op.out.index] = &op;
                    chains[op.out.index] = chain;
                }
            }
            const auto* interleave = std::get_if<Interleave>(&node.instruction);
            if (!interleave || interleave->in.home != Home::buffer) return false;
            const std::uint32_t rounded = interleave->in.index;
            const auto maker = makers.find(rounded);
            return maker != makers.end() && uses_.uses(rounded) == 1 &&
                   uses_.writes(rounded) == 1 &&
                   write(*chains[rounded], *maker->second, *interleave);
        });
    }

  private:
    /// The function that computes `op` and writes pairs; nullptr if there is none.
    StripFunction function_for(const StripOp& op) const {
        if (op.kind != StripOp::Kind::map || op.stored_ref >= 0) return nullptr;
        if (op.super == Super::exp2_sum) return kernels_.super.exp2_sum_pairs;
        const bool rounds = op.super == Super::none && op.op == ir::Op::cast &&
                            op.out.dtype == DType::bf16 && op.in[0].dtype == DType::f32 &&
                            op.in[0].lane_stride == 1;
        return rounds ? kernels_.interleave_pairs(DType::f32) : nullptr;
    }

    /// Makes `op` write what `interleave` would make of its result; false where it cannot.
    bool write(const Chain& chain, StripOp& op, const Interleave& interleave) const {
        const Tile &in = interleave.in, &out = interleave.out;
        const bool whole = in.shape[0] == 1 && in.shape[1] == chain.rows && chain.rows % 2 == 0 &&
                           in.shape[2] == chain.lanes && in.lane_axis == 2 &&
                           in.width == chain.width && op.out.dtype == in.dtype &&
                           op.out.offset == in.offset && op.out.row_stride == in.stride[1];
        // Panels of the same width, or all lanes in one.
        const bool same_panels = out.lane_axis == 2 && out.width == chain.width;
        const bool one_panel = out.lane_axis == 2 && out.width >= chain.lanes;
        const StripFunction function = function_for(op);
        if (!whole || function == nullptr || !(same_panels || one_panel)) return false;
        op.function = function;
        op.super = op.super == Super::none ? Super::round_pairs : Super::exp2_sum_pairs;
        // A row of pairs fills two rows of bf16, in which strides and offset are counted.
        op.out.dtype = DType::bf16;
        op.out.index = out.index;
        op.out.offset = 2 * out.offset;
        op.out.row_stride = out.stride[1];
        op.out.panel_stride = 2 * (same_panels ? out.panel_stride : chain.width);
        op.padded = false;
        return true;
    }

    const Kernels& kernels_;
    const DefUse uses_;  ///< before any change made here
};

}  // namespace

void write_pairs(Region& region, const Program& program) {
    PairWriter(region, program).run(region);
}

}  // namespace tilewright::cpu
