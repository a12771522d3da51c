// Finds selects whose conditions hold for ranges of lanes, and decides them.
#include "cpu/fuse_ranges.h"

#include <algorithm>

namespace tilewright::cpu {
namespace {

using ir::Op;
using Tests = std::vector<FusedRun::RangeTest>;

constexpr std::size_t kMostSelects = 2, kMostTests = 8, kNone = ~std::size_t{0};

bool makes_value(const StripOp& op) {
    return op.kind == StripOp::Kind::map && op.stored_ref < 0;
}

/// The op of a run, before op `at`, that makes `source`; kNone: none does.
std::size_t maker(const std::vector<StripOp>& ops, std::size_t first, std::size_t at,
                  const StripSource& source) {
    if (source.home != Home::buffer) return kNone;
    for (std::size_t p = at; p-- > first;) {
        if (makes_value(ops[p]) && ops[p].out.home == Home::buffer &&
            ops[p].out.index == source.index)
            return p;
    }
    return kNone;
}

class Finder {
  public:
    Finder(const Chain& chain, std::size_t first, const DefUse& uses, const Program& program)
        : ops_(chain.ops), first_(first), uses_(uses), program_(program) {}

    /// Adds the tests that make `source`, an operand of op `at`; false if there is anything else.
    bool add_tests(std::size_t at, const StripSource& source, Tests& tests) const {
        const std::size_t made = maker(ops_, first_, at, source);
        if (made == kNone) return add_vector(source, tests);
        const StripOp& op = ops_[made];
        if (op.super != Super::none || op.out.dtype != DType::boolean) return false;
        const bool joins =
            op.op == Op::bitwise_and || op.op == Op::bitwise_or || op.op == Op::bitwise_xor;
        if (joins) {
            if (!add_tests(made, op.in[0], tests) || !add_tests(made, op.in[1], tests))
                return false;
            tests.push_back({op.op, {}});
            return true;
        }
        return add_comparison(op, tests);
    }

    /// Both values may be read anywhere in the run: nothing there writes to them.
    bool may_move(std::size_t at, const StripSource& source) const {
        return source.home == Home::view || source.home == Home::slot ||
               source.home == Home::constant || maker(ops_, first_, at, source) != kNone;
    }

  private:
    bool add_comparison(const StripOp& op, Tests& tests) const {
        if (op.num_inputs != 2) return false;
        for (const int side : {0, 1}) {
            const DType dtype = op.in[static_cast<std::size_t>(side)].dtype;
            if (dtype != DType::i32 && dtype != DType::i64) return false;
        }
        if (op.op == Op::eq || op.op == Op::ne) {
            auto form = affine_difference(op.in[0], op.in[1], uses_.makers(), program_);
            if (!form) return false;
            tests.push_back({op.op, std::move(*form)});
            return true;
        }
        auto form = affine_condition(op, uses_.makers(), program_);
        if (!form) return false;
        tests.push_back({Op::ge, std::move(*form)});
        return true;
    }
    /// A comparison of a vector in another chain, whose elements may be along rows or lanes here.
    bool add_vector(const StripSource& source, Tests& tests) const {
        const auto found = uses_.makers().find(source.index);
        if (source.home != Home::buffer || found == uses_.makers().end()) return false;
        const StripOp& op = found->second;
        const bool vector = op.kind == StripOp::Kind::map && op.super == Super::none &&
                            op.out.row_stride == 0 && op.out.lane_stride == 1 &&
                            op.out.dtype == DType::boolean;
        if (!vector || source.offset != op.out.offset || !add_comparison(op, tests)) return false;
        Affine& form = tests.back().form;
        if (form.row != 0) return false;
        form = along(std::move(form), source.row_stride, source.lane_stride);
        return true;
    }

    const std::vector<StripOp>& ops_;
    const std::size_t first_;
    const DefUse& uses_;
    const Program& program_;
};

/// Removes a select: what reads it reads input `chosen` of it. False where that is not what the
/// select would have read.
bool decide(DecidedOps& decided, std::size_t first, std::size_t last, std::size_t select,
            int chosen) {
    std::vector<StripOp>& ops = decided.ops;
    const StripSource value = ops[select].in[static_cast<std::size_t>(chosen)];
    const std::size_t made = maker(ops, first, select, value);
    const auto own = decided.origins.find({select, chosen});
    const FusedRun::Operand from =
        own != decided.origins.end() ? own->second : FusedRun::Operand{select, chosen, -1};
    std::vector<std::pair<std::size_t, std::size_t>> readers;
    for (std::size_t r = select + 1; r < last; ++r) {
        for (std::size_t k = 0; k < static_cast<std::size_t>(ops[r].num_inputs); ++k) {
            if (maker(ops, first, r, ops[r].in[k]) == select) readers.emplace_back(r, k);
        }
    }
    // A result that later ops change in place is theirs, too.
    const StripSource out = ops[select].out;
    ops[select].out = {};
    ops[select].out.index = ~std::uint32_t{0};  // no buffer
    for (const auto& [r, k] : readers) {
        StripSource& in = ops[r].in[k];
        if (!(in == out) || maker(ops, first, r, value) != made) return false;
        in = value;
        decided.origins[{r, static_cast<int>(k)}] = from;
    }
    return true;
}

}  // namespace

std::optional<RangeSelects> find_range_selects(const Chain& chain, std::size_t first,
                                               std::size_t last,
                                               const std::vector<bool>& is_external,
                                               const DefUse& uses, const Program& program) {
    const Finder finder(chain, first, uses, program);
    RangeSelects result;
    struct Choice {
        std::size_t op;
        int yes, no;
    };
    std::vector<Choice> selects;
    std::size_t tests_left = kMostTests;
    for (std::size_t t = first; t < last && selects.size() < kMostSelects; ++t) {
        const StripOp& op = chain.ops[t];
        if (!makes_value(op) || op.op != Op::select || is_external[t]) continue;
        Tests tests;
        const bool affine = op.super == Super::affine_select;
        if (affine)
            tests.push_back({Op::ge, op.affine});
        else if (op.super != Super::none || !finder.add_tests(t, op.in[0], tests))
            continue;
        const Choice choice = {t, affine ? 0 : 1, affine ? 1 : 2};
        if (tests.size() > tests_left ||
            !finder.may_move(t, op.in[static_cast<std::size_t>(choice.yes)]) ||
            !finder.may_move(t, op.in[static_cast<std::size_t>(choice.no)]))
            continue;
        tests_left -= tests.size();
        selects.push_back(choice);
        result.conditions.push_back(std::move(tests));
    }
    if (selects.empty()) return {};
    for (std::size_t results = 0; results < std::size_t{1} << selects.size(); ++results) {
        DecidedOps decided{chain.ops, {}};
        for (std::size_t i = 0; i < selects.size(); ++i) {
            const int chosen = (results >> i & 1) != 0 ? selects[i].yes : selects[i].no;
            if (!decide(decided, first, last, selects[i].op, chosen)) return {};
        }
        result.by_conditions.push_back(std::move(decided));
    }
    return result;
}

}  // namespace tilewright::cpu
