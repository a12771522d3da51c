// Structural equality of functions.
#include <bit>
#include <cmath>
#include <map>

#include "ir/print.h"

namespace tilewright::ir {
namespace {

class Comparison {
  public:
    Comparison(const Function& a, const Function& b) : a_(a), b_(b) {}

    bool run() {
        return a_.grid == b_.grid && a_.hints == b_.hints &&
               same_definitions(a_.body.arguments, b_.body.arguments) &&
               same_body(a_.body, b_.body);
    }

  private:
    bool same_type(Value a, Value b) const {
        if (a_.is_ref(a) != b_.is_ref(b)) return false;
        return a_.is_ref(a) ? a_.ref_type(a) == b_.ref_type(b) : a_.type(a) == b_.type(b);
    }

    bool same_definitions(const std::vector<Value>& a, const std::vector<Value>& b) {
        if (a.size() != b.size()) return false;
        for (std::size_t i = 0; i < a.size(); ++i) {
            if (!same_type(a[i], b[i])) return false;
            matching_[a[i]] = b[i];
        }
        return true;
    }

    bool same_uses(const std::vector<Value>& a, const std::vector<Value>& b) const {
        if (a.size() != b.size()) return false;
        for (std::size_t i = 0; i < a.size(); ++i) {
            const auto match = matching_.find(a[i]);
            if (match == matching_.end() || match->second != b[i]) return false;
        }
        return true;
    }

    static bool same_callee(const std::shared_ptr<const Function>& a,
                            const std::shared_ptr<const Function>& b) {
        return a == b || (a && b && Comparison(*a, *b).run());
    }

    bool same_attributes(const Instruction& a, const Instruction& b) const {
        if (a.attributes.index() != b.attributes.index()) return false;
        if (const auto* call = std::get_if<CallAttributes>(&a.attributes))
            return same_callee(call->callee, b.get<CallAttributes>().callee);
        if (const auto* scan = std::get_if<CombineAttributes>(&a.attributes)) {
            const auto& other = b.get<CombineAttributes>();
            return scan->axis == other.axis && scan->reverse == other.reverse &&
                   same_callee(scan->combine, other.combine);
        }
        if (a.op == Op::constant && is_float(a_.type(a.result()).dtype)) {
            const auto left = a.get<ConstantAttributes>().bits;
            const auto right = b.get<ConstantAttributes>().bits;
            // All NaNs are equal, whatever their bits.
            return left == right || (std::isnan(std::bit_cast<double>(left)) &&
                                     std::isnan(std::bit_cast<double>(right)));
        }
        return a.attributes == b.attributes;
    }

    bool same_body(const Block& a, const Block& b) {
        if (a.body.size() != b.body.size()) return false;
        for (std::size_t i = 0; i < a.body.size(); ++i) {
            const Instruction& left = a.body[i];
            const Instruction& right = b.body[i];
            if (left.op != right.op || !same_uses(left.operands, right.operands)) return false;
            if (!same_definitions(left.results, right.results)) return false;
            if (!same_attributes(left, right)) return false;
            if (left.blocks.size() != right.blocks.size()) return false;
            for (std::size_t j = 0; j < left.blocks.size(); ++j) {
                if (!same_definitions(left.blocks[j].arguments, right.blocks[j].arguments) ||
                    !same_body(left.blocks[j], right.blocks[j])) {
                    return false;
                }
            }
        }
        return true;
    }

    const Function& a_;
    const Function& b_;
    std::map<Value, Value> matching_;
};

}  // namespace

bool equal(const Function& a, const Function& b) {
    return a.name == b.name && Comparison(a, b).run();
}

}  // namespace tilewright::ir
