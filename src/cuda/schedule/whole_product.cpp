// Recognises products that are written as loops.
#include "cuda/schedule/whole_product.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/access.h"
#include "ir/passes/dce.h"
#include "ir/passes/expand_scans.h"
#include "ir/passes/pipeline.h"

namespace tilewright::cuda::schedule {
namespace {

class Joining {
  public:
    explicit Joining(ir::Function& kernel) : f_(kernel) { define(kernel.body); }

    bool run() {
        ir::Instruction* loop = nullptr;
        for (ir::Instruction& made : f_.body.body) {
            if (made.blocks.empty()) continue;
            if (loop != nullptr || made.op != ir::Op::for_loop) return false;
            loop = &made;
        }
        return loop != nullptr && join(*loop);
    }

  private:
    void define(const ir::Block& block) {
        for (const ir::Instruction& made : block.body) {
            for (ir::Value result : made.results) definitions_[result] = &made;
            for (const ir::Block& inner : made.blocks) define(inner);
        }
    }
    const ir::Instruction* definition(ir::Value value) const {
        const auto at = definitions_.find(value);
        return at == definitions_.end() ? nullptr : at->second;
    }
    std::optional<std::int64_t> constant(ir::Value value) const {
        const ir::Instruction* const made = definition(value);
        if (made == nullptr || made->op != ir::Op::constant) return std::nullopt;
        return static_cast<std::int64_t>(made->get<ir::ConstantAttributes>().bits);
    }

    bool join(ir::Instruction& loop) {
        const ir::Block& body = loop.blocks[0];
        const auto low = constant(loop.operands[0]), high = constant(loop.operands[1]),
                   step = constant(loop.operands[2]);
        if (low != 0 || !high || !step || *high < 1 || *step < 1 || loop.results.size() != 1) {
            return false;
        }
        const ir::Value carry = body.arguments[1];
        const ir::Instruction* const dot = definition(body.terminator().operands[0]);
        const bool adds = dot != nullptr && dot->op == ir::Op::dot && dot->operands.size() == 3 &&
                          dot->operands[2] == carry;
        // Sums begin with positive zeros, so that a missing operand is the same.
        if (!adds || constant(loop.operands[3]) != 0) return false;
        std::set<ir::Value> inside;
        for (const ir::Instruction& made : body.body) {
            inside.insert(made.results.begin(), made.results.end());
            const bool pure =
                made.op != ir::Op::store && made.blocks.empty() && !made.results.empty();
            if (!pure && made.op != ir::Op::yield) return false;
            if (std::count(made.operands.begin(), made.operands.end(), carry) > 0 && &made != dot) {
                return false;
            }
        }
        inside.insert(body.arguments.begin(), body.arguments.end());
        const std::int64_t trips = (*high + *step - 1) / *step;
        std::vector<ir::Instruction> whole;
        ir::Instruction product = *dot;
        product.operands.resize(2);
        for (int side = 0; side < 2; ++side) {
            const auto operand = lengthened(*dot, side, body.arguments[0], *step, trips,
                                            loop.operands[0], inside, whole);
            if (!operand) return false;
            product.operands[side] = *operand;
        }
        product.results = loop.results;
        whole.push_back(std::move(product));
        auto& all = f_.body.body;
        const auto at = all.begin() + (&loop - all.data());
        all.insert(all.erase(at), std::make_move_iterator(whole.begin()),
                   std::make_move_iterator(whole.end()));
        return true;
    }

    /// The operand with all iterations' slices of the inner dimension.
    std::optional<ir::Value> lengthened(const ir::Instruction& dot, int side, ir::Value position,
                                        std::int64_t step, std::int64_t trips, ir::Value zero,
                                        const std::set<ir::Value>& inside,
                                        std::vector<ir::Instruction>& to) {
        const auto& flags = dot.get<ir::DotAttributes>();
        bool transposed = side == 0 ? flags.transpose_a : flags.transpose_b;
        const ir::Instruction* made = definition(dot.operands[side]);
        const ir::Instruction* turn = nullptr;
        if (made != nullptr && made->op == ir::Op::transpose) {
            turn = made;
            transposed = !transposed;
            made = definition(made->operands[0]);
        }
        if (made == nullptr || made->op != ir::Op::load) return std::nullopt;
        const ir::Access access = ir::access(*made);
        const ir::AccessShape tile = ir::access_shape(f_, *made);
        if (access.mask || access.other || tile.shape.rank() != 2) return std::nullopt;
        const int axis = (side == 0) != transposed ? 1 : 0;
        ir::Instruction load = *made;
        auto& attributes = load.get<ir::AccessAttributes>();
        for (std::size_t d = 0; d < attributes.indices.size(); ++d) {
            ir::Index& index = attributes.indices[d];
            ir::Value& begin = load.operands[1 + d];
            if (tile.axis[d] != axis || index.kind == ir::Index::Kind::scalar) {
                if (inside.contains(begin)) return std::nullopt;
                continue;
            }
            const bool slice = index.kind == ir::Index::Kind::slice && index.stride == 1;
            if (!slice || advance(begin, position, step) != index.size) return std::nullopt;
            if (__builtin_mul_overflow(index.size, trips, &index.size)) return std::nullopt;
            begin = zero;
        }
        attributes.in_bounds = false;
        ir::Type type = f_.type(made->result());
        type.shape[axis] *= trips;
        load.results = {f_.add_value(type)};
        ir::Value result = load.result();
        to.push_back(std::move(load));
        if (turn != nullptr) {
            ir::Instruction other = *turn;
            std::swap(type.shape[0], type.shape[1]);
            other.operands = {result};
            other.results = {f_.add_value(type)};
            result = other.result();
            to.push_back(std::move(other));
        }
        return result;
    }

    /// By how much a position grows in an iteration, where it is a multiple of the loop's.
    std::optional<std::int64_t> advance(ir::Value value, ir::Value position,
                                        std::int64_t step) const {
        if (value == position) return step;
        const ir::Instruction* const made = definition(value);
        if (made == nullptr || made->op != ir::Op::mul) return std::nullopt;
        for (int side = 0; side < 2; ++side) {
            const auto by = constant(made->operands[1 - side]);
            if (made->operands[side] == position && by) return *by * step;
        }
        return std::nullopt;
    }

    ir::Function& f_;
    std::map<ir::Value, const ir::Instruction*> definitions_;
};

}  // namespace

ir::Function whole_product(const ir::Function& kernel) {
    ir::Function result = kernel;
    ir::expand_scans(result);
    ir::optimise(result);
    if (Joining(result).run()) ir::dce(result);
    return result;
}

}  // namespace tilewright::cuda::schedule
