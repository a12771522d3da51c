// Proofs that accesses stay inside their arrays.
#include "ir/passes/bounds.h"

#include "ir/access.h"
#include "ir/passes/affine.h"

namespace tilewright::ir {
namespace {

class Prover {
  public:
    explicit Prover(Function& function) : function_(function), forms_(function) {}

    BoundsReport run() {
        block(function_.body);
        return report_;
    }

  private:
    void block(Block& block) {
        for (Instruction& instruction : block.body) {
            if (is_access(instruction.op)) visit(instruction);
            if (instruction.op == Op::for_loop) forms_.enter_loop(instruction);
            for (Block& inner : instruction.blocks) this->block(inner);
            forms_.define(instruction);
        }
    }

    void visit(Instruction& instruction) {
        auto& attributes = instruction.get<AccessAttributes>();
        if (attributes.in_bounds) return;
        attributes.in_bounds = inside(instruction);
        ++(attributes.in_bounds ? report_.proved : report_.unproved);
    }

    bool inside(const Instruction& instruction) {
        const Access operands = access(instruction);
        const auto& indices = instruction.get<AccessAttributes>().indices;
        for (std::size_t i = 0; i < indices.size(); ++i) {
            const Index& index = indices[i];
            const std::int64_t reach = index.kind == Index::Kind::slice && index.size > 0
                                           ? (index.size - 1) * index.stride
                                           : 0;
            const Affine first = forms_.value(operands.indices[i]);
            const auto room = add(forms_.extent(operands.ref, static_cast<int>(i)), first, -1);
            const auto left = room ? add(*room, Affine{{}, -1 - reach}) : std::nullopt;
            if (!forms_.non_negative(first) || !left || !forms_.non_negative(*left)) return false;
        }
        return true;
    }

    Function& function_;
    AffineAnalysis forms_;
    BoundsReport report_;
};

}  // namespace

BoundsReport bounds(Function& function) {
    return Prover(function).run();
}

}  // namespace tilewright::ir
