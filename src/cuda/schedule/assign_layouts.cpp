// Layouts by propagation to a fixed point.
#include "cuda/schedule/assign_layouts.h"

#include <fmt/format.h>

namespace tilewright::cuda::schedule {
namespace {

class Assignment {
  public:
    explicit Assignment(Program& program) : p_(program) {}

    void run() {
        for (changed_ = true; changed_;) {
            changed_ = false;
            each_instruction(p_.body, [&](Instruction& made) { propagate(made); });
        }
        each_instruction(p_.body, [&](const Instruction& made) { expect_layouts(made); });
    }

  private:
    void give(Value value, const Layout& given) {
        if (!p_.is_tile(value)) return;
        const Layout layout = given;  // of a value that may move
        auto& own = p_.type(value).layout;
        if (!own) {
            own = layout;
            changed_ = true;
        } else if (!(*own == layout)) {
            throw Refused(fmt::format("a tile %{} is wanted in two layouts", p_.value_name(value)));
        }
    }

    void propagate(Instruction& made) {
        if (made.is(Op::zeros) || made.is(Op::fresh)) {
            const Value tile = made.result();
            give(tile, sums_layout(p_, p_.type(tile).type.shape, groups_of(p_, made)));
        } else if (made.is(Op::clear) || made.is(Op::wgmma)) {
            same({made.operands[0], made.result()});
            if (made.is(Op::wgmma)) {
                give(made.result(),
                     sums_layout(p_, p_.type(made.result()).type.shape, groups_of(p_, made)));
            }
            if (made.has("registers")) {
                const Value packed = *Product(made).registers;
                const ir::Type& type = p_.type(packed).type;
                give(packed, size_of(type.dtype) == 4 ? fragments_layout(p_, type.shape)
                                                      : accumulator_layout(type.shape, p_.groups));
            }
        } else if (made.is(Op::share)) {
            const Value tile = made.operands[0];
            give(tile, accumulator_layout(p_.type(tile).type.shape, p_.groups));
        } else if (made.is(Op::pack)) {
            same({made.operands[0], made.result()});
        } else if (made.is(ir::Op::for_loop)) {
            const Block& body = made.blocks[0];
            for (std::size_t i = 0; i < made.results.size(); ++i) {
                same({made.operands[3 + i], body.arguments[1 + i], made.results[i],
                      body.body.back().operands[i]});
            }
        } else if (made.is(ir::Op::store) && made.has("masked")) {
            same({made.operands.back(), made.operands[made.operands.size() - 2]});
        } else if (made.op != Op::tile || made.results.size() != 1) {
            return;
        } else if (is_pointwise(made.tile) || is_gather(made)) {
            std::vector<Value> all = made.operands;
            all.push_back(made.result());
            same(all);
        } else if (made.is(ir::Op::reduce)) {
            if (const auto& from = p_.type(made.operands[0]).layout) {
                give(made.result(), from->without(static_cast<int>(made.number("axis"))));
            }
        } else {
            if (made.is(ir::Op::expand_dims)) {
                if (const auto& from = p_.type(made.operands[0]).layout) {
                    give(made.result(), from->with_inserted(static_cast<int>(made.number("axis"))));
                }
            }
            if (const auto& layout = p_.type(made.result()).layout) view(made, *layout);
        }
    }

    void same(const std::vector<Value>& values) {
        for (Value value : values) {
            const std::optional<Layout> layout = p_.type(value).layout;
            if (!layout) continue;
            for (Value other : values) give(other, *layout);
            return;
        }
    }

    void view(const Instruction& made, const Layout& layout) {
        if (made.is(ir::Op::broadcast)) {
            const ir::Shape& from = p_.type(made.operands[0]).type.shape;
            if (from.rank() != 0) give(made.operands[0], layout.narrowed(from));
        } else if (made.is(ir::Op::expand_dims)) {
            give(made.operands[0], layout.without(static_cast<int>(made.number("axis"))));
        }
    }

    void expect_layouts(const Instruction& made) const {
        if (made.is(ir::Op::transpose)) {
            throw Refused("it transposes a tile that is no operand of a dot");
        }
        if (made.is(ir::Op::reduce)) expect_reduction(made);
        for (Value result : made.results) {
            if (p_.is_tile(result) && !p_.type(result).layout && !is_operand(result)) {
                throw Refused(
                    fmt::format("a tile %{} has nothing to do with a dot", p_.value_name(result)));
            }
        }
    }

    /// Each row of the tile is within one warp.
    void expect_reduction(const Instruction& made) const {
        const ir::Type& type = p_.type(made.operands[0]).type;
        const bool kind = made.has("sum") || made.has("max") || made.has("min");
        if (!kind || (type.dtype != DType::f32 && type.dtype != DType::i32)) {
            throw Refused(fmt::format("it reduces {} by another operation than sum, max and min",
                                      tilewright::name(type.dtype)));
        }
        if (type.shape.rank() != 2 || made.number("axis") != 1 || p_.groups[1] != 1) {
            throw Refused("it reduces along another axis than rows");
        }
    }

    bool is_operand(Value value) const {
        bool found = false;
        each_instruction(p_.body, [&](const Instruction& made) {
            found |= made.is(Op::read_fragments) && made.operands[0] == value;
            if (!made.is(Op::wgmma)) return;
            const std::size_t n = made.operands.size();
            found |= (n > 1 && made.operands[n - 2] == value) || made.operands[n - 1] == value;
        });
        return found;
    }

    Program& p_;
    bool changed_ = false;
};

}  // namespace

void assign_layouts(Program& program) {
    Assignment(program).run();
    program.level = Level::laid_out;
}

}  // namespace tilewright::cuda::schedule
