// Tails of loops over the inner dimension.
#include "cuda/schedule/join_iterations.h"

#include <algorithm>
#include <array>

#include "cuda/schedule/tools.h"
#include "support/integer.h"

namespace tilewright::cuda::schedule {
namespace {

/// The load of a dot's operand, and the Ref's dimension that the dot contracts.
struct Operand {
    const Instruction* load = nullptr;
    std::size_t dim = 0;
    std::int64_t size = 0;
};

class Joining {
  public:
    explicit Joining(Program& program) : p_(program), uses_(program) {}

    void run() {
        auto& body = p_.body.body;
        const auto is_dot = [](const Instruction& made) { return made.is(ir::Op::dot); };
        const auto is_loop = [](const Instruction& made) { return made.is(ir::Op::for_loop); };
        const auto loop = std::find_if(body.begin(), body.end(), is_loop);
        const auto dot = std::find_if(body.begin(), body.end(), is_dot);
        if (dot == body.end()) return;
        if (loop == body.end()) {
            if (std::count_if(body.begin(), body.end(), is_dot) == 1) {
                wrap(static_cast<std::size_t>(dot - body.begin()));
            }
        } else if (dot > loop) {
            join(*loop, *dot);
        }
        remove_unused(p_);
    }

  private:
    Operand operand(const Instruction& dot, int side) const {
        Operand result;
        bool transposed = dot.has(side == 0 ? "transpose_a" : "transpose_b");
        result.load = uses_.definition(dot.operands[side]);
        if (result.load != nullptr && result.load->is(ir::Op::transpose)) {
            transposed = !transposed;
            result.load = uses_.definition(result.load->operands[0]);
        }
        if (result.load == nullptr || !result.load->is(ir::Op::load)) return {};
        const ir::Shape& shape = p_.type(result.load->result()).type.shape;
        if (shape.rank() != 2) return {};
        int axis = (side == 0) != transposed ? 1 : 0;
        result.size = shape[axis];
        const std::vector<std::int64_t>& sizes = result.load->list("index");
        for (result.dim = 0; result.dim < sizes.size(); ++result.dim) {
            if (sizes[result.dim] != 0 && axis-- == 0) break;
        }
        return result;
    }

    /// Does the array end where a load from `start` on ends?
    bool ends(const Operand& operand, std::int64_t start) const {
        const Parameter& ref = p_.ref(operand.load->symbol("of"));
        return ref.extents[operand.dim] != ir::kDynamic &&
               ref.extents[operand.dim] <= start + operand.size;
    }

    void join(Instruction& loop, const Instruction& tail) {
        if (tail.operands.size() < 3) return;
        const auto at = std::find(loop.results.begin(), loop.results.end(), tail.operands[2]);
        const auto low = constant_of(p_, loop.operands[0]),
                   high = constant_of(p_, loop.operands[1]),
                   step = constant_of(p_, loop.operands[2]);
        if (at == loop.results.end() || uses_.count(*at) != 1 || !low || !high || !step) return;
        if (*low >= *high || *step <= 0 || (*high - *low) % *step != 0) return;
        const Block& body = loop.blocks[0];
        const Value last = body.body.back().operands[at - loop.results.begin()];
        const Instruction* const dot = uses_.definition(last);
        if (dot == nullptr || !dot->is(ir::Op::dot)) return;
        for (int side = 0; side < 2; ++side) {
            const Operand wide = operand(*dot, side), narrow = operand(tail, side);
            if (wide.load == nullptr || narrow.load == nullptr || wide.dim != narrow.dim ||
                wide.load->symbol("of") != narrow.load->symbol("of") || wide.size != *step ||
                narrow.size > wide.size || !ends(narrow, *high)) {
                return;
            }
            for (std::size_t i = 0; i < wide.load->operands.size(); ++i) {
                const Value in_loop = wide.load->operands[i], after = narrow.load->operands[i];
                if (i == wide.dim ? in_loop != body.arguments[0] || constant_of(p_, after) != *high
                                  : in_loop != after) {
                    return;
                }
            }
        }
        const Value result = *at, tail_result = tail.result();
        each_instruction(loop.blocks[0], [&](Instruction& made) {
            std::erase_if(made.attributes,
                          [](const Attribute& one) { return one.name == "in_bounds"; });
        });
        Block constants;
        const Value end = append_constant(p_, constants, *high + *step);
        loop.operands[1] = end;
        auto& all = p_.body.body;
        std::erase_if(all, [&](const Instruction& made) {
            return !made.results.empty() && made.result() == tail_result;
        });
        replace(p_.body, tail_result, result);
        all.insert(all.begin(), constants.body.begin(), constants.body.end());
    }

    void wrap(std::size_t place) {
        Instruction dot = p_.body.body[place];
        if (dot.operands.size() > 2) return;
        std::array<Operand, 2> sides = {operand(dot, 0), operand(dot, 1)};
        // An iteration covers the 128 bytes of the swizzle.
        const std::int64_t chunk = 128 / size_of(p_.type(dot.operands[0]).type.dtype);
        for (const Operand& side : sides) {
            if (side.load == nullptr) return;
            const auto start = constant_of(p_, side.load->operands[side.dim]);
            if (side.size % chunk != 0 && (side.size > chunk || !start || !ends(side, *start))) {
                return;
            }
        }
        Block before;
        const Value low = append_constant(p_, before, 0), high = append_constant(p_, before, 1);
        const ValueType type = p_.type(dot.result());
        const Value init = p_.add(type);
        before.body.push_back(make(ir::Op::constant, {}, {init}));
        before.body.back().attributes.push_back({"is", Attribute::Kind::element, {0}, "0"});
        Block inner;
        const Value carry = p_.add(type);
        inner.arguments = {p_.add({false, {DType::i64, {}}, {}}), carry};
        for (std::size_t s = 0; s < 2; ++s) {
            Instruction load = *sides[s].load;
            const Value old = load.result();
            ValueType wide = p_.type(old);
            const std::int64_t size = ceil_div(sides[s].size, chunk) * chunk;
            int axis = 0;
            for (std::size_t d = 0; d < sides[s].dim; ++d) axis += load.list("index")[d] != 0;
            wide.type.shape[axis] = size;
            for (Attribute& one : load.attributes) {
                if (one.name == "index") one.numbers[sides[s].dim] = size;
            }
            std::erase_if(load.attributes,
                          [](const Attribute& one) { return one.name == "in_bounds"; });
            load.results = {p_.add(wide)};
            if (dot.operands[s] != old) {  // a transpose in between is folded into the dot
                const char* const flag = s == 0 ? "transpose_a" : "transpose_b";
                if (dot.has(flag)) {
                    std::erase_if(dot.attributes,
                                  [&](const Attribute& one) { return one.name == flag; });
                } else {
                    dot.flag(flag);
                }
            }
            dot.operands[s] = load.result();
            inner.body.push_back(std::move(load));
        }
        const Value result = dot.result(), sum = p_.add(type);
        dot.operands.push_back(carry);
        dot.results = {sum};
        inner.body.push_back(std::move(dot));
        inner.body.push_back(make(ir::Op::yield, {sum}));
        Instruction loop = make(ir::Op::for_loop, {low, high, high, init}, {result});
        loop.blocks.push_back(std::move(inner));
        p_.body.body[place] = std::move(loop);
        const auto at = p_.body.body.begin() + place;
        p_.body.body.insert(at, before.body.begin(), before.body.end());
    }

    Program& p_;
    Uses uses_;
};

}  // namespace

void join_iterations(Program& program) {
    Joining(program).run();
}

}  // namespace tilewright::cuda::schedule
