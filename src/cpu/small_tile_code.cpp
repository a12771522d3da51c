// What chains on small tiles do, row by row without loops, as steps of straight-line code.
#include "cpu/small_tile_code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "cpu/execute.h"
#include "cpu/simd/x86_opcodes.h"
#include "cpu/small_chain.h"
#include "cpu/vector_code.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers
using ir::Op;

/// Writes the code of one chain, row by row without loops.
class ChainCompiler : public SmallChain {
  public:
    ChainCompiler(VectorCode& code, const Program& program, const Chain& chain,
                  const KnownSlots& known)
        : SmallChain(program, chain, known, code.lanes()), code_(code) {}

    bool compile() {
        if (!is_known()) return false;
        values_.resize(chain_.ops.size());
        for (row_ = 0; row_ < chain_.rows; ++row_) {
            for (op_ = 0; op_ < chain_.ops.size(); ++op_) {
                if (!compile_op(chain_.ops[op_])) return false;
            }
        }
        for (const auto& [at, sums] : sums_) {
            for (std::int64_t v = 0; v < vectors_; ++v)
                code_.store(place(chain_.ops[at].out, 0, v), sums[static_cast<std::size_t>(v)],
                            lanes(v));
        }
        return !failed_;
    }

  private:
    using Value = VectorCode::Value;
    /// What an op has made of the row: a vector or mask for each vector of the row.
    using Values = std::vector<Value>;

    int lanes(std::int64_t v) const { return is_tail(v) ? tail_ : code_.lanes(); }
    VectorCode::Address place(const StripSource& source, std::int64_t row, std::int64_t v) {
        const Address at = address(source, row, v);
        return {at.base, at.offset};
    }
    std::optional<std::uint64_t> known_slot(const StripSource& in) const {
        const auto found = in.home == Home::slot ? known_.find(in.index) : known_.end();
        return found == known_.end() ? std::nullopt : std::optional(found->second);
    }

    // ---- Operands.

    VectorCode::InView in_view(const StripSource& source, std::int64_t v) const {
        return {source.index, source.view_row_axis, row_, v * vector_lanes_};
    }
    Value words(const StripOp& op, std::size_t k, std::int64_t v) {
        const StripSource& in = op.in[k];
        if (!is_word(in.dtype)) failed_ = true;
        if (const std::size_t made = maker(in); made < chain_.ops.size())
            return made_value(made, v);
        if (const auto slot = known_slot(in)) return code_.splat(static_cast<std::int32_t>(*slot));
        if (in.home == Home::view) return code_.load(in_view(in, v), lanes(v));
        const VectorCode::Address from = place(in, row_, v);
        if (failed_) return code_.splat(0);
        if (in.home == Home::constant) return constant(from.offset, in.lane_stride == 0);
        return in.lane_stride == 0 ? code_.broadcast(from) : code_.load(from, lanes(v));
    }
    Value made_value(std::size_t made, std::int64_t v) {
        const Values& values = values_[made];
        if (!values.empty()) return values[static_cast<std::size_t>(v)];
        failed_ = true;
        return code_.splat(0);
    }
    /// The program's constants are known.
    Value constant(std::int32_t offset, bool spread) {
        VectorCode::Words words{};
        const std::vector<std::byte>& data = program_.constants;
        const std::size_t start = static_cast<std::size_t>(offset),
                          end = std::min(start + sizeof(words), data.size());
        if (end < start + sizeof(words[0])) failed_ = true;
        if (!failed_) std::memcpy(words.data(), data.data() + start, end - start);
        return spread ? code_.splat(words[0]) : code_.constant(words);
    }
    Value mask(const StripOp& op, std::size_t k, std::int64_t v) {
        const StripSource& in = op.in[k];
        if (in.dtype != DType::boolean) failed_ = true;
        if (const std::size_t made = maker(in); made < chain_.ops.size())
            return made_value(made, v);
        const auto slot = known_slot(in);
        if (slot) return code_.mask((*slot & 0xFF) != 0 ? code_.lanes() : 0);
        const VectorCode::Address from = place(in, row_, v);
        if (failed_) return code_.mask(0);
        return in.lane_stride == 0 ? code_.broadcast_mask(from) : code_.load_mask(from, lanes(v));
    }

    // ---- Results.

    void keep(const StripOp& op, Values values) {
        if (op.out.home != Home::strip) {
            for (std::int64_t v = 0; v < vectors_; ++v) {
                const Value value = values[static_cast<std::size_t>(v)];
                const VectorCode::Address to = place(op.out, row_, v);
                op.out.dtype == DType::boolean ? code_.store_mask(to, value, lanes(v))
                                               : code_.store(to, value, lanes(v));
            }
        }
        values_[op_] = std::move(values);
    }

    // ---- Ops.

    bool compile_op(const StripOp& op) {
        if (failed_) return false;
        if (op.stored_ref >= 0) return store(op);
        if (op.super == Super::affine_select) return affine_select(op);
        if (op.super != Super::none) return false;
        const bool sums = op.reduction == ir::Reduction::sum && op.in[0].dtype == DType::f32 &&
                          op.out.dtype == DType::f32;
        switch (op.kind) {
            case StripOp::Kind::map:
                return map(op);
            case StripOp::Kind::reduce_lanes:
                return sums && sum_lanes(op);
            case StripOp::Kind::reduce_rows:
                return sums && op.in[0].lane_stride == 1 && op.out.lane_stride == 1 && sum_rows(op);
            default:
                return false;
        }
    }

    bool store(const StripOp& op) {
        for (std::int64_t v = 0; v < vectors_; ++v)
            code_.store(in_view(op.out, v), words(op, 0, v), lanes(v));
        return !failed_;
    }

    bool map(const StripOp& op) {
        if (!is_map(op)) return false;
        Values values;
        for (std::int64_t v = 0; v < vectors_ && !failed_; ++v) values.push_back(map(op, v));
        if (!failed_) keep(op, std::move(values));
        return !failed_;
    }
    Value map(const StripOp& op, std::int64_t v) {
        const DType in = op.in[static_cast<std::size_t>(op.num_inputs) - 1].dtype;
        const bool masks = op.out.dtype == DType::boolean;
        if (op.op == Op::select)
            return code_.blend(mask(op, 0, v), words(op, 1, v), words(op, 2, v));
        if (masks && !is_word(in)) {
            const auto logic = op.op == Op::bitwise_and  ? VectorCode::Logic::both
                               : op.op == Op::bitwise_or ? VectorCode::Logic::either
                                                         : VectorCode::Logic::one;
            return code_.logic(logic, mask(op, 0, v), mask(op, 1, v));
        }
        const Value a = words(op, 0, v);
        if (is_root(op)) return code_.unary(kSqrt, a);
        if (is_conversion(op)) return code_.unary(kToFloat, a);
        const Value b = words(op, 1, v);
        if (masks)
            return code_.compare(in == DType::f32 ? kCompareFloats : kCompareWords, a, b,
                                 predicate(op.op, in == DType::f32));
        return is_fma(op) ? code_.fma(a, b, words(op, 2, v))
                          : code_.binary(*arithmetic(op.op, in), a, b);
    }

    /// A form at row and lane 0 in all lanes.
    std::optional<Value> base(const Affine& form, bool limited) {
        if (auto known = known_base(form)) {
            if (limited) known = std::clamp(*known, -kMostOfForm, kMostOfForm);
            return code_.splat(static_cast<std::int32_t>(*known));
        }
        encoder_ = Encoder(false);
        if (!load_base(form)) return {};
        if (limited) limit_base();
        VectorCode::Setup setup{encoder_.code(), {}};
        for (const Affine::Term& term : form.terms)
            setup.reads.push_back({{rsi, 8 * static_cast<std::int32_t>(term.slot)}, 4});
        return code_.form(std::move(setup));
    }
    Value add_steps(Value base, const Affine& form, std::int64_t v) {
        return code_.binary(kAddWords, base, code_.constant(steps(form, v)));
    }

    /// out = form >= 0 ? in[0] : value. Words that may wrap around are compared as such. Other sums
    /// fit 64 bits, and beyond 2^30 the tile's few elements do not change the sign.
    bool affine_select(const StripOp& op) {
        if (!is_gentle_select(op)) return false;
        const Affine& form = op.affine;
        const bool wraps = !form.words.empty();
        const auto first = base(wraps ? form.words[0] : form, !wraps),
                   second = wraps ? base(form.words[1], false) : first;
        if (!first || !second) return false;
        const Value otherwise =
            code_.splat(std::bit_cast<std::int32_t>(static_cast<float>(op.immediate[3])));
        Values values;
        for (std::int64_t v = 0; v < vectors_; ++v) {
            const Value sign = add_steps(*first, wraps ? form.words[0] : form, v);
            const Value negative =
                wraps ? code_.compare(kCompareWords, sign, add_steps(*second, form.words[1], v),
                                      predicate(form.strict ? Op::le : Op::lt, false))
                      : code_.signs(sign);
            values.push_back(code_.blend(negative, otherwise, words(op, 0, v)));
        }
        keep(op, std::move(values));
        return !failed_;
    }

    /// In the order of the vector kernels: vectors first, then the halves of one.
    bool sum_lanes(const StripOp& op) {
        if (op.in[0].lane_stride == 0) return false;
        const Value sum = sum_of_vectors(op);
        if (failed_) return false;
        const bool together = chain_.rows >= 4 && op.out.row_stride == 1;
        together ? sum_with_rows(op, sum) : sum_alone(op, sum);
        return !failed_;
    }
    /// The row's vectors as one: whole ones in groups of four, of each of which there is a sum;
    /// other vectors in the first sum and those that are not whole in the second.
    Value sum_of_vectors(const StripOp& op) {
        const auto add = [&](Value a, Value b) {
            return a < 0 ? b : b < 0 ? a : code_.binary(kAdd, a, b);
        };
        const std::int64_t grouped = chain_.lanes / vector_lanes_ / 4 * 4;
        std::array<Value, 4> sums = {-1, -1, -1, -1};
        for (std::int64_t v = 0; v < vectors_; ++v) {
            Value part = words(op, 0, v);
            if (is_tail(v)) part = code_.first_lanes(part, tail_);
            Value& sum = sums[static_cast<std::size_t>(is_tail(v) ? 1 : v < grouped ? v % 4 : 0)];
            sum = add(sum, part);
        }
        return add(add(sums[0], sums[1]), add(sums[2], sums[3]));
    }
    // Kernels begin with zero, or add one: a sum is never -0.

    void sum_alone(const StripOp& op, Value sum) {
        // Each half of 128-bit quarters, then of words, comes to the front.
        if (has_halves()) {
            sum = code_.binary(kAdd, sum, code_.binary(kHalves, sum, sum, 1));
        } else {
            for (const int order : {0x4E, 0xB1})
                sum = code_.binary(kAdd, sum, code_.binary(kQuarters, sum, sum, order));
        }
        for (const int order : {0x4E, 0xB1})
            sum = code_.binary(kAdd, sum, code_.unary(kSwapWords, sum, order));
        code_.store_element(place(op.out, row_, 0), code_.add_zero(sum));
    }

    /// A vector has two parts of 128 bits, and not four.
    bool has_halves() const { return vector_lanes_ == 8; }

    /// The sums of as many rows as a vector has lanes, or fewer: what is left of two rows after
    /// half of their lanes were added to the other half fills one vector. `level` i holds such a
    /// vector of 2^i rows.
    struct RowSums {
        std::array<Value, 4> level = {-1, -1, -1, -1};  ///< of which AVX2 needs three
    };
    void sum_with_rows(const StripOp& op, Value sum) {
        RowSums& rows = row_sums_[op_];
        const std::int64_t in_vector = row_ % vector_lanes_;
        const bool last = row_ + 1 == chain_.rows || in_vector + 1 == vector_lanes_;
        const std::size_t levels = has_halves() ? 3 : 4;
        std::size_t level = 0;
        for (; level < levels; ++level) {
            const Value first = rows.level[level];
            if (first < 0 && !last) break;
            // A place without a row repeats the other one.
            sum = join(first < 0 ? sum : first, sum, 4 - levels + level);
            rows.level[level] = -1;
        }
        if (!last) {
            rows.level[level] = sum;
            return;
        }
        // Row r has come to lane `place[r]`.
        VectorCode::Words order{};
        for (std::int32_t r = 0; r < vector_lanes_; ++r)
            order[static_cast<std::size_t>(r)] =
                has_halves() ? (r & 1) * 4 + r / 2 : (r & 3) * 4 + (r >> 3 & 1) * 2 + (r >> 2 & 1);
        sum = code_.binary(kPermute, code_.constant(order), code_.add_zero(sum));
        code_.store(place(op.out, row_ - in_vector, 0), sum, static_cast<int>(in_vector) + 1);
    }
    /// The halves of both added: of 256 bits, of 128, of pairs of words, of words.
    Value join(Value first, Value second, std::size_t level) {
        constexpr std::array<int, 4> kLower = {0x44, 0x88, 0x44, 0x88},
                                     kUpper = {0xEE, 0xDD, 0xEE, 0xDD};
        const bool halves = has_halves() && level == 1;
        const Opcode opcode = halves ? kHalves : level < 2 ? kQuarters : kPairs;
        const Value lower = code_.binary(opcode, first, second, halves ? 0x20 : kLower[level]),
                    upper = code_.binary(opcode, first, second, halves ? 0x31 : kUpper[level]);
        return code_.binary(kAdd, lower, upper);
    }

    bool sum_rows(const StripOp& op) {
        Values& sums = sums_[op_];
        for (std::int64_t v = 0; v < vectors_; ++v) {
            if (row_ == 0) sums.push_back(code_.splat(0));
            Value& sum = sums[static_cast<std::size_t>(v)];
            sum = code_.binary(kAdd, sum, words(op, 0, v));
        }
        return !failed_;
    }

    VectorCode& code_;
    std::vector<Values> values_;               ///< of each op, in this row
    std::map<std::size_t, Values> sums_;       ///< over rows
    std::map<std::size_t, RowSums> row_sums_;  ///< over lanes
};

}  // namespace

bool add_chain(VectorCode& code, const Program& program, const Chain& chain,
               const KnownSlots& known) {
    return ChainCompiler(code, program, chain, known).compile();
}

bool add_copy(VectorCode& code, const Program& program, const Move& move) {
    const Tile &in = move.in, &out = move.out;
    const int lane = out.lane_axis;
    if (out.home != Home::buffer || lane < 0 ||
        (in.dtype != DType::f32 && in.dtype != DType::i32) || move.in_start != kOrigin ||
        move.out_start != kOrigin || move.in_step != kUnitSteps)
        return false;
    int row = -1;
    for (int axis = 0; axis < move.box.rank(); ++axis) {
        if (axis == lane || move.box[axis] == 1) continue;
        if (row >= 0) return false;
        row = axis;
    }
    const auto at = static_cast<std::size_t>(std::max(row, 0)),
               along = static_cast<std::size_t>(lane);
    const std::int64_t rows = row < 0 ? 1 : move.box[row], lanes = move.box[lane];
    const bool view = in.home == Home::view && in.group == 1 && in.offset == 0 &&
                      in.unit_axis >= 0 && in.view_axis[along] == in.unit_axis;
    const bool buffer = in.home == Home::buffer && in.lane_axis == lane && lanes <= in.width;
    if ((!view && !buffer) || lanes > out.width || lanes > kPanelLanes ||
        rows * lanes > kMostSmallElements)
        return false;
    const auto place = [&](const Tile& tile, std::int64_t r, std::int64_t l) {
        const std::int64_t element = tile.offset + (row < 0 ? 0 : r * tile.stride[at]) + l;
        return VectorCode::Address{
            rdi, static_cast<std::int32_t>(program.buffers[tile.index].offset + 4 * element)};
    };
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t l = 0; l < lanes; l += code.lanes()) {
            const int count = static_cast<int>(std::min<std::int64_t>(code.lanes(), lanes - l));
            const VectorCode::InView from{in.index, row < 0 ? -1 : in.view_axis[at], r, l};
            code.store(place(out, r, l),
                       view ? code.load(from, count) : code.load(place(in, r, l), count), count);
        }
    }
    return true;
}

}  // namespace tilewright::cpu
