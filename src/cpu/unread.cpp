// Follows the result of a product to the chain that reads it first, along instructions without a
// jump among them.
#include "cpu/unread.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "cpu/operands.h"

namespace tilewright::cpu {
namespace {

class Finder {
  public:
    explicit Finder(Program& program) : program_(program) {
        for (const Instruction& instruction : program.code) {
            visit_operands(instruction, [&](Home home, std::uint32_t index, Use use) {
                if (home == Home::buffer && use == Use::read) ++reads_[index];
            });
            const auto target = [&](const auto& jump) { targets_.insert(jump.target); };
            if (const auto* jump = std::get_if<Jump>(&instruction)) target(*jump);
            if (const auto* jump = std::get_if<JumpUnless>(&instruction)) target(*jump);
            if (const auto* test = std::get_if<LoopTest>(&instruction)) target(*test);
            if (const auto* next = std::get_if<LoopNext>(&instruction)) target(*next);
        }
    }

    void run() {
        for (std::size_t at = 0; at < program_.code.size(); ++at) {
            const auto* const dot = std::get_if<Dot>(&program_.code[at]);
            if (dot && dot->function == program_.kernels->gemm_bf16_pairs) mark(at);
        }
    }

  private:
    static constexpr std::size_t kMostForms = 4;

    /// Finds the unread elements of the product at `at`.
    void mark(std::size_t at) {
        const Dot dot = std::get<Dot>(program_.code[at]);
        const bool plain = dot.batch == 1 && !dot.accumulate && dot.out.home == Home::buffer &&
                           dot.out.lane_axis == 2 && dot.maxima.home == Home::none;
        if (!plain) return;
        std::set<std::uint32_t> written, read;  // slots, from the product on
        for (std::size_t next = at + 1; next < program_.code.size() && !targets_.contains(next);
             ++next) {
            bool touched = false;
            std::set<std::uint32_t> to, from;
            visit_operands(program_.code[next], [&](Home home, std::uint32_t index, Use use) {
                touched |= home == Home::buffer && index == dot.out.index;
                if (home == Home::slot) (use == Use::read ? from : to).insert(index);
            });
            if (touched) {
                const auto* const chain = std::get_if<Chain>(&program_.code[next]);
                std::vector<Affine> forms = chain ? conditions(dot, *chain) : std::vector<Affine>();
                std::erase_if(forms, [&](const Affine& form) { return reads(form, written); });
                if (forms.size() > kMostForms) forms.resize(kMostForms);
                std::get<Dot>(program_.code[at]).unread = std::move(forms);
                return;
            }
            if (!goes_on(program_.code[next])) break;
            const auto disjoint = [](const auto& a, const auto& b) {
                return std::none_of(a.begin(), a.end(),
                                    [&](auto slot) { return b.contains(slot); });
            };
            // Positions are often computed after the product: they come before it where they can.
            const bool moves = (std::holds_alternative<ScalarOp>(program_.code[next]) ||
                                std::holds_alternative<ScalarQuery>(program_.code[next])) &&
                               disjoint(to, written) && disjoint(to, read) &&
                               disjoint(from, written);
            if (moves) {
                move_up(program_.code, at, next);
                move_up(program_.lines, at, next);
                ++at;
            } else {
                written.merge(to);
                read.merge(from);
            }
        }
    }
    template <typename T>
    static void move_up(std::vector<T>& list, std::size_t to, std::size_t from) {
        const auto first = list.begin() + static_cast<std::ptrdiff_t>(to);
        const auto moved = list.begin() + static_cast<std::ptrdiff_t>(from);
        std::rotate(first, moved, moved + 1);
    }
    static bool goes_on(const Instruction& next) {
        return std::holds_alternative<ScalarOp>(next) || std::holds_alternative<ScalarMove>(next) ||
               std::holds_alternative<ScalarQuery>(next) ||
               std::holds_alternative<LoadView>(next) || std::holds_alternative<SubView>(next) ||
               std::holds_alternative<StoreView>(next) || std::holds_alternative<Chain>(next) ||
               std::holds_alternative<Interleave>(next) || std::holds_alternative<Dot>(next) ||
               std::holds_alternative<Move>(next);
    }

    static bool reads(const Affine& form, const std::set<std::uint32_t>& slots) {
        const auto has = [&](const Affine& part) {
            return std::any_of(part.terms.begin(), part.terms.end(),
                               [&](const Affine::Term& term) { return slots.contains(term.slot); });
        };
        return has(form) || std::any_of(form.words.begin(), form.words.end(), has);
    }

    static bool is_result(const StripSource& source, const Dot& dot, const Chain& chain) {
        const Tile& made = dot.out;
        return source.home == Home::buffer && source.index == made.index &&
               source.dtype == made.dtype && source.offset == made.offset &&
               source.row_stride == made.stride[1] && source.lane_stride == 1 &&
               source.panel_stride == made.panel_stride && chain.width == made.width &&
               chain.rows == made.shape[1] && chain.lanes == made.shape[2];
    }

    static bool touches(const StripOp& op, std::uint32_t buffer) {
        const auto is = [&](const StripSource& source) {
            return source.home == Home::buffer && source.index == buffer;
        };
        return std::any_of(op.in.begin(), op.in.begin() + op.num_inputs, is) || is(op.out) ||
               is(op.sum);
    }
    static std::ptrdiff_t count_reads(const Chain& chain, const StripSource& of) {
        std::ptrdiff_t count = 0;
        for (const StripOp& op : chain.ops) {
            count += std::count_if(
                op.in.begin(), op.in.begin() + op.num_inputs,
                [&](const StripSource& in) { return in.home == of.home && in.index == of.index; });
        }
        return count;
    }

    /// Forms of which one is negative where the chain reads nothing of the result.
    std::vector<Affine> conditions(const Dot& dot, const Chain& chain) const {
        std::vector<Affine> of_gradient = gradient_conditions(dot, chain);
        if (!of_gradient.empty()) return of_gradient;
        const std::uint32_t buffer = dot.out.index;
        std::vector<Affine> forms;
        StripSource value;      // of the last select
        bool replaced = false;  // the buffer holds what a select made of the result
        for (const StripOp& op : chain.ops) {
            const auto reads = [&](const StripSource& source) {
                return std::any_of(op.in.begin(), op.in.begin() + op.num_inputs,
                                   [&](const StripSource& in) {
                                       return in.home == source.home && in.index == source.index;
                                   });
            };
            const bool selects = op.super == Super::affine_select;
            const bool takes = forms.empty() ? is_result(op.in[0], dot, chain)
                                             : op.in[0] == value &&
                                                   (op.out == value || is_read_once(chain, value));
            if (selects && takes) {
                forms.push_back(op.affine);
                value = op.out;
                replaced |= is_result(op.out, dot, chain);
                continue;
            }
            if (forms.empty() && !touches(op, buffer)) continue;
            // What else reads the buffer may read all of it, and what else reads the value needs
            // the elements that a further select would replace.
            if (!replaced && touches(op, buffer)) return {};
            if (reads(value)) break;
        }
        if (!replaced && reads_.at(buffer) != 1) return {};
        return forms;
    }
    bool is_read_once(const Chain& chain, const StripSource& value) const {
        const bool inside = count_reads(chain, value) == 1;
        return inside && (value.home == Home::strip ||
                          (value.home == Home::buffer && reads_.at(value.index) == 1));
    }

    /// The same of a run that makes score gradients, whose function gives 0 for hidden pairs
    /// whatever it reads.
    std::vector<Affine> gradient_conditions(const Dot& dot, const Chain& chain) const {
        const std::uint32_t buffer = dot.out.index;
        const std::int64_t block = program_.kernels->fused.lanes;
        for (const FusedRun& run : chain.fused) {
            if (run.compiled != program_.kernels->super.gradient_pairs || !run.compiled) continue;
            const auto operand = [&](std::size_t i) {
                return chain.ops[run.operands[i].op]
                    .in[static_cast<std::size_t>(run.operands[i].input)];
            };
            const bool is_operand =
                is_result(operand(0), dot, chain) || is_result(operand(2), dot, chain);
            const bool whole = chain.lanes % block == 0 && chain.width % block == 0;
            StripSource made;
            made.home = Home::buffer;
            made.index = buffer;
            // Only the run may read it, which keeps its own values in the same buffers.
            const bool only = count_reads(chain, made) == reads_.at(buffer) && run.first == 0 &&
                              run.last == chain.ops.size();
            if (is_operand && whole && only) return run.forms;
        }
        return {};
    }

    Program& program_;
    std::map<std::uint32_t, int> reads_;  // of buffers
    std::set<std::size_t> targets_;
};

}  // namespace

void find_unread(Program& program) {
    if (program.kernels->gemm_bf16_pairs) Finder(program).run();
}

}  // namespace tilewright::cpu
