// Copies of index math, one for each reader.
#include "cuda/schedule/materialise.h"

#include <algorithm>

#include "cuda/schedule/tools.h"

namespace tilewright::cuda::schedule {
namespace {

class Materialisation {
  public:
    explicit Materialisation(Program& program) : p_(program), old_(program), index_(program) {}

    void run() {
        // Definitions are looked up in the program before the pass.
        p_.body = block(old_.body);
        remove_unused(p_);
    }

  private:
    Block block(const Block& from) {
        Block to;
        to.arguments = from.arguments;
        for (const Instruction& made : from.body) {
            Instruction same = made;
            for (std::size_t i = 0; i < made.blocks.size(); ++i)
                same.blocks[i] = block(made.blocks[i]);
            const bool is_index = std::any_of(made.results.begin(), made.results.end(),
                                              [&](Value value) { return index_.contains(value); });
            if (is_index) continue;
            std::map<Value, Value> copies;
            for (Value& operand : same.operands) operand = copy(operand, to, copies);
            to.body.push_back(std::move(same));
        }
        return to;
    }

    /// A reader's tiles of one shape share a layout and a copy; lines may lie along either axis.
    Value copy(Value value, Block& to, std::map<Value, Value>& copies) {
        if (!index_.contains(value)) return value;
        if (const auto known = copies.find(value); known != copies.end()) return known->second;
        Instruction same = *uses_.definition(value);
        for (Value& operand : same.operands) operand = copy(operand, to, copies);
        same.results = {p_.add(ValueType(old_.type(value)))};
        const Value result = same.result();
        to.body.push_back(std::move(same));
        if (old_.type(value).type.shape.rank() > 1) copies[value] = result;
        return result;
    }

    Program& p_;
    const Program old_;
    IndexTiles index_;
    Uses uses_{old_};
};

}  // namespace

IndexTiles::IndexTiles(const Program& program) {
    each_instruction(program.body, [&](const Instruction& made) {
        if (made.op != Op::tile || made.results.size() != 1 || !made.blocks.empty()) return;
        if (!program.is_tile(made.result())) return;
        const bool source = made.is(ir::Op::constant) || made.is(ir::Op::iota);
        const bool view = made.is(ir::Op::broadcast) || made.is(ir::Op::expand_dims);
        if (!source && !view && !is_pointwise(made.tile)) return;
        const bool follows = std::all_of(
            made.operands.begin(), made.operands.end(),
            [&](Value operand) { return !program.is_tile(operand) || values_.contains(operand); });
        if (follows) values_.insert(made.result());
    });
}

void materialise(Program& program) {
    Materialisation(program).run();
}

}  // namespace tilewright::cuda::schedule
