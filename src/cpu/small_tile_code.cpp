// Writes the machine code of chains on small tiles, row by row without loops.
#include "cpu/small_tile_code.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "cpu/simd/x86_opcodes.h"
#include "cpu/small_chain.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers
using ir::Op;

constexpr std::int64_t kVectorLanes = ConstantPool::kLanes;

constexpr Opcode kBroadcastWord{2, 1, 0x7C}, kToFloat{1, 0, 0x5B}, kBlend{2, 1, 0x65},
    kCompareWords{3, 1, 0x1F}, kSigns{2, 2, 0x39}, kAddWords{1, 1, 0xFE}, kWidenBytes{2, 1, 0x31},
    kNarrowWords{2, 2, 0x31}, kTest{2, 1, 0x27}, kQuarters{3, 1, 0x23}, kSwapWords{3, 1, 0x04},
    kPairs{1, 0, 0xC6}, kPermute{2, 1, 0x16}, kBroadcastByte{2, 1, 0x78}, kTestBytes{2, 1, 0x26};
constexpr int kTail = 1;  ///< mask of the lanes of a row's last vector

/// Values of 32 bits from zmm0 on, what steps need from here on; masks from k2 to k7.
constexpr int kScratch = 26, kFirstMask = 2, kMasks = 8;

/// Writes the code of one chain, row by row without loops.
class ChainCompiler : public SmallChain {
  public:
    ChainCompiler(const Program& program, const Chain& chain, ConstantPool& pool)
        : SmallChain(program, chain, pool, true, kScratch) {
        for (int mask = kMasks - 1; mask >= kFirstMask; --mask) free_masks_.push_back(mask);
    }

    /// `keeps`: operands that are the same for all rows have registers of their own.
    std::optional<std::vector<std::uint8_t>> compile(bool keeps) {
        if (!is_known()) return std::nullopt;
        if (tail_ != 0) set_mask(kTail, tail_);
        if (keeps) keep_operands();
        for (row_ = 0; row_ < chain_.rows; ++row_) {
            for (op_ = 0; op_ < chain_.ops.size(); ++op_) {
                if (!compile_op(chain_.ops[op_])) return std::nullopt;
                drop_read();
            }
            for (auto& value : values_) give_back(value);
        }
        for (const auto& [at, registers] : sums_) {
            for (std::int64_t v = 0; v < vectors_; ++v)
                store_words(registers[static_cast<std::size_t>(v)],
                            address(chain_.ops[at].out, 0, v), v);
        }
        if (failed_) return std::nullopt;
        return encoder_.code();
    }

  private:
    /// What an op has made of the row: words or masks, one register for each vector.
    struct Value {
        bool masks = false;
        std::vector<int> registers;
    };

    // ---- Registers.

    Value new_value(bool masks) {
        Value value{masks, {}};
        for (std::int64_t v = 0; v < vectors_; ++v)
            value.registers.push_back(take(masks ? free_masks_ : free_));
        return value;
    }
    void give_back(Value& value) {
        auto& free = value.masks ? free_masks_ : free_;
        free.insert(free.end(), value.registers.begin(), value.registers.end());
        value.registers.clear();
    }
    /// Gives back what no later op reads.
    void drop_read() {
        for (std::size_t made = 0; made <= op_ && made < values_.size(); ++made) {
            if (values_[made].registers.empty()) continue;
            if (is_done(made)) give_back(values_[made]);
        }
    }
    // ---- Operands.

    /// Loads what every row reads again, as long as there are registers to spare.
    void keep_operands() {
        constexpr std::size_t kWorking = 14, kWorkingMasks = 4;
        if (chain_.rows == 1) return;
        for (const StripOp& op : chain_.ops) {
            for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
                const StripSource& in = op.in[k];
                const bool masks = in.dtype == DType::boolean;
                const std::size_t left = masks ? free_masks_.size() : free_.size();
                const std::size_t needed =
                    static_cast<std::size_t>(vectors_) + (masks ? kWorkingMasks : kWorking);
                if (in.row_stride != 0 || in.home == Home::strip || is_written(in) ||
                    left < needed || kept_register(in, 0) >= 0)
                    continue;
                Value value = new_value(masks);
                for (std::int64_t v = 0; v < vectors_; ++v) {
                    const int to = value.registers[static_cast<std::size_t>(v)];
                    masks ? void(mask(op, k, v, to)) : load_words(in, v, to);
                }
                kept_.emplace_back(in, std::move(value.registers));
            }
        }
    }
    void load_words(const StripSource& in, std::int64_t v, int to) {
        const Address from = address(in, row_, v);
        encoder_.vector_memory(in.lane_stride == 0 ? kBroadcast : kLoad, to, 0, from.base,
                               from.offset);
    }

    /// The words of operand k, vector v: where they are, or loaded to a register of its own.
    int words(const StripOp& op, std::size_t k, std::int64_t v) {
        const StripSource& in = op.in[k];
        if (!is_word(in.dtype)) failed_ = true;
        const std::size_t made = maker(in);
        if (made < chain_.ops.size()) return made_register(made, v, false);
        if (const int kept = kept_register(in, v); kept >= 0) return kept;
        const int to = kScratch + static_cast<int>(k);
        load_words(in, v, to);
        return to;
    }
    int made_register(std::size_t made, std::int64_t v, bool masks) {
        const Value& value = values_[made];
        if (value.masks != masks || value.registers.empty()) {
            failed_ = true;
            return 0;
        }
        return value.registers[static_cast<std::size_t>(v)];
    }
    /// The mask of operand k, or one loaded to `to`.
    int mask(const StripOp& op, std::size_t k, std::int64_t v, int to) {
        const StripSource& in = op.in[k];
        if (in.dtype != DType::boolean) failed_ = true;
        const std::size_t made = maker(in);
        if (made < chain_.ops.size()) return made_register(made, v, true);
        if (const int kept = kept_register(in, v); kept >= 0) return kept;
        const Address from = address(in, row_, v);
        const int bytes = kScratch + 3;
        if (in.lane_stride == 0) {
            // One byte: more of them may come from several stores, for which a load has to wait.
            encoder_.vector_memory(kBroadcastByte, bytes, 0, from.base, from.offset);
            encoder_.vector(kTestBytes, to, bytes, bytes);
            return to;
        }
        encoder_.vector_memory(kWidenBytes, bytes, 0, from.base, from.offset);
        encoder_.vector(kTest, to, bytes, bytes);
        return to;
    }

    // ---- Results.

    void store_words(int from, Address to, std::int64_t v) {
        encoder_.vector_memory(kStore, from, 0, to.base, to.offset, is_tail(v) ? kTail : 0);
    }
    void store_mask(int from, Address to, std::int64_t v) {
        const int ones = kScratch + 3;
        encoder_.vector_memory(kLoad, ones, 0, rdx, pool_.splat(1), from | kZeros);
        encoder_.vector_memory(kNarrowWords, ones, 0, to.base, to.offset, is_tail(v) ? kTail : 0);
    }
    void keep(const StripOp& op, Value value) {
        if (op.out.home != Home::strip) {
            for (std::int64_t v = 0; v < vectors_; ++v) {
                const int from = value.registers[static_cast<std::size_t>(v)];
                const Address to = address(op.out, row_, v);
                value.masks ? store_mask(from, to, v) : store_words(from, to, v);
            }
        }
        values_.resize(chain_.ops.size());
        values_[op_] = std::move(value);
    }

    // ---- Ops.

    bool compile_op(const StripOp& op) {
        if (failed_) return false;
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

    bool map(const StripOp& op) {
        if (!is_map(op)) return false;
        const DType in = op.in[static_cast<std::size_t>(op.num_inputs) - 1].dtype;
        const int compared = predicate(op.op, in == DType::f32);
        const bool masks = op.out.dtype == DType::boolean;
        const auto opcode = arithmetic(op.op, in);
        const int logical = op.op == Op::bitwise_and   ? 0x41
                            : op.op == Op::bitwise_or  ? 0x45
                            : op.op == Op::bitwise_xor ? 0x47
                                                       : 0;
        Value value = new_value(masks);
        if (failed_) return false;
        const int spare = masks || op.op == Op::select ? take(free_masks_) : 0;
        const int other = logical != 0 && masks ? take(free_masks_) : 0;
        if (failed_) return false;
        for (std::int64_t v = 0; v < vectors_; ++v) {
            const int to = value.registers[static_cast<std::size_t>(v)];
            if (masks && is_word(in)) {
                const int a = words(op, 0, v), b = words(op, 1, v);
                encoder_.vector(in == DType::f32 ? kCompareFloats : kCompareWords, to, a, b);
                encoder_.immediate(compared);
            } else if (masks) {
                const int a = mask(op, 0, v, spare), b = mask(op, 1, v, other);
                encoder_.fixed({0xC5, 0x84 | (~a & 15) << 3, logical, 0xC0 | to << 3 | b});
            } else if (op.op == Op::select) {
                const int condition = mask(op, 0, v, spare);
                const int yes = words(op, 1, v), no = words(op, 2, v);
                encoder_.vector(kBlend, to, no, yes, condition);
            } else if (is_root(op)) {
                encoder_.vector(kSqrt, to, 0, words(op, 0, v));
            } else if (is_conversion(op)) {
                encoder_.vector(kToFloat, to, 0, words(op, 0, v));
            } else if (is_fma(op)) {
                const int a = words(op, 0, v), b = words(op, 1, v), c = words(op, 2, v);
                encoder_.vector(kMove, to, 0, a);
                encoder_.vector(kFma213, to, b, c);
            } else {
                const int a = words(op, 0, v), b = words(op, 1, v);
                encoder_.vector(*opcode, to, a, b);
            }
        }
        if (spare != 0) free_masks_.push_back(spare);
        if (other != 0) free_masks_.push_back(other);
        keep(op, std::move(value));
        return !failed_;
    }
    /// to = the form in the lanes of vector v, from its base.
    void add_steps(int to, int base, const Affine& form, std::int64_t v) {
        encoder_.vector_memory(kAddWords, to, base, rdx, steps(form, v));
    }

    /// out = form >= 0 ? in[0] : value. Words that may wrap around are compared as such. Other sums
    /// fit 64 bits, and beyond 2^30 the tile's few elements do not change the sign.
    bool affine_select(const StripOp& op) {
        if (!is_gentle_select(op)) return false;
        const Affine& form = op.affine;
        const int base = kScratch + 4, sign = kScratch + 3, otherwise = kScratch + 2,
                  second_base = kScratch + 5, second = kScratch + 1;
        const bool wraps = !form.words.empty();
        if (wraps) {
            if (!load_base(form.words[1])) return false;
            encoder_.vector(kBroadcastWord, second_base, 0, rcx);
        }
        if (!load_base(wraps ? form.words[0] : form)) return false;
        if (!wraps) limit_base();
        encoder_.vector(kBroadcastWord, base, 0, rcx);
        const auto value = std::bit_cast<std::int32_t>(static_cast<float>(op.immediate[3]));
        encoder_.vector_memory(kLoad, otherwise, 0, rdx, pool_.splat(value));
        Value result = new_value(false);
        const int negative = take(free_masks_);
        if (failed_) return false;
        for (std::int64_t v = 0; v < vectors_; ++v) {
            add_steps(sign, base, wraps ? form.words[0] : form, v);
            if (wraps) {
                add_steps(second, second_base, form.words[1], v);
                encoder_.vector(kCompareWords, negative, sign, second);
                encoder_.immediate(predicate(form.strict ? Op::le : Op::lt, false));
            } else {
                encoder_.vector(kSigns, negative, 0, sign);
            }
            encoder_.vector(kBlend, result.registers[static_cast<std::size_t>(v)], words(op, 0, v),
                            otherwise, negative);
        }
        free_masks_.push_back(negative);
        keep(op, std::move(result));
        return !failed_;
    }

    /// In the order of the vector kernels: whole vectors in groups of four, then the halves.
    bool sum_lanes(const StripOp& op) {
        if (vectors_ > 4 || op.in[0].lane_stride == 0) return false;
        const int sum = sum_of_vectors(op);
        if (failed_) return false;
        const bool together = chain_.rows >= 4 && op.out.row_stride == 1;
        return together ? sum_with_rows(op, sum) : sum_alone(op, sum);
    }
    /// The row's vectors as one, in a register of its own.
    int sum_of_vectors(const StripOp& op) {
        const int sum = take(free_), part = kScratch + 4;
        const std::int64_t whole = chain_.lanes / kVectorLanes;
        if (whole == 4) {
            const int second = loaded(op, 1, part);
            encoder_.vector(kAdd, sum, words(op, 0, 0), second);
            const int third = loaded(op, 2, part);
            encoder_.vector(kAdd, part, third, words(op, 0, 3));
            encoder_.vector(kAdd, sum, sum, part);
            return sum;
        }
        for (std::int64_t v = 0; v < vectors_; ++v) {
            const int to = v == 0 ? sum : part;
            const bool masked = is_tail(v);
            if (v > 0 && !masked) {
                encoder_.vector(kAdd, sum, sum, words(op, 0, v));
                continue;
            }
            encoder_.vector(kMove, to, 0, words(op, 0, v), masked ? kTail | kZeros : 0);
            if (v > 0) encoder_.vector(kAdd, sum, sum, part);
        }
        return sum;
    }
    int loaded(const StripOp& op, std::int64_t v, int to) {
        encoder_.vector(kMove, to, 0, words(op, 0, v));
        return to;
    }
    /// Kernels begin with zero, or add one: a sum is never -0.
    void end_sum(int sum) {
        const int zero = kScratch + 4;
        encoder_.vector(kZero, zero, zero, zero);
        encoder_.vector(kAdd, sum, sum, zero);
    }
    bool sum_alone(const StripOp& op, int sum) {
        const int part = kScratch + 4;
        // Each half of 128-bit quarters, then of words, comes to the front.
        for (const int order : {0x4E, 0xB1}) {
            encoder_.vector(kQuarters, part, sum, sum);
            encoder_.immediate(order);
            encoder_.vector(kAdd, sum, sum, part);
        }
        for (const int order : {0x4E, 0xB1}) {
            encoder_.vector(kSwapWords, part, 0, sum);
            encoder_.immediate(order);
            encoder_.vector(kAdd, sum, sum, part);
        }
        end_sum(sum);
        const Address to = address(op.out, row_, 0);
        encoder_.vector_memory(kStoreScalar, sum, 0, to.base, to.offset);
        free_.push_back(sum);
        return !failed_;
    }

    /// The sums of up to 16 rows: what is left of two rows after half of their lanes were added to
    /// the other half fills one vector. `level` i holds such a vector of 2^i rows.
    struct RowSums {
        std::array<int, 4> level = {-1, -1, -1, -1};
    };
    bool sum_with_rows(const StripOp& op, int sum) {
        RowSums& rows = row_sums_[op_];
        const std::int64_t in_vector = row_ % kVectorLanes;
        const bool last = row_ + 1 == chain_.rows || in_vector + 1 == kVectorLanes;
        std::size_t level = 0;
        for (; level < rows.level.size(); ++level) {
            int& first = rows.level[level];
            if (first < 0 && !last) break;
            // A place without a row repeats the other one.
            join(first < 0 ? sum : first, sum, level);
            if (first < 0) continue;
            free_.push_back(sum);
            sum = std::exchange(first, -1);
        }
        if (!last) {
            rows.level[level] = sum;
            return true;
        }
        end_sum(sum);
        // Row r has come to lane `place[r]`.
        std::array<std::int32_t, kVectorLanes> place;
        for (std::int32_t r = 0; r < kVectorLanes; ++r)
            place[static_cast<std::size_t>(r)] = (r & 3) * 4 + (r >> 3 & 1) * 2 + (r >> 2 & 1);
        const int order = kScratch + 4;
        encoder_.vector_memory(kLoad, order, 0, rdx, pool_.at(place));
        encoder_.vector(kPermute, sum, order, sum);
        const Address to = address(op.out, row_ - in_vector, 0);
        int mask = 0;
        if (in_vector + 1 < kVectorLanes) {
            mask = take(free_masks_);
            if (failed_) return false;
            set_mask(mask, in_vector + 1);
            free_masks_.push_back(mask);
        }
        encoder_.vector_memory(kStore, sum, 0, to.base, to.offset, mask);
        free_.push_back(sum);
        return !failed_;
    }
    /// first = the halves of both added: of 256 bits, of 128, of pairs of words, of words.
    void join(int first, int second, std::size_t level) {
        constexpr std::array<int, 4> kLower = {0x44, 0x88, 0x44, 0x88},
                                     kUpper = {0xEE, 0xDD, 0xEE, 0xDD};
        const Opcode opcode = level < 2 ? kQuarters : kPairs;
        const int lower = kScratch + 4, upper = kScratch + 5;
        encoder_.vector(opcode, lower, first, second);
        encoder_.immediate(kLower[level]);
        encoder_.vector(opcode, upper, first, second);
        encoder_.immediate(kUpper[level]);
        encoder_.vector(kAdd, first, lower, upper);
    }
    void set_mask(int mask, std::int64_t lanes) {
        encoder_.fixed({0xB8});  // mov eax, lanes
        encoder_.word((1 << lanes) - 1);
        encoder_.fixed({0xC5, 0xF8, 0x92, 0xC0 | mask << 3});  // kmovw
    }

    bool sum_rows(const StripOp& op) {
        auto& sums = sums_[op_];
        if (sums.empty()) sums = new_value(false).registers;
        if (failed_) return false;
        for (std::int64_t v = 0; v < vectors_; ++v) {
            const int sum = sums[static_cast<std::size_t>(v)];
            if (row_ == 0) encoder_.vector(kZero, sum, sum, sum);
            encoder_.vector(kAdd, sum, sum, words(op, 0, v));
        }
        return !failed_;
    }

    std::vector<int> free_masks_;
    std::vector<Value> values_;                     ///< of each op, in this row
    std::map<std::size_t, std::vector<int>> sums_;  ///< over rows
    std::map<std::size_t, RowSums> row_sums_;       ///< over lanes
};

}  // namespace

std::optional<std::vector<std::uint8_t>> small_tile_code(const Program& program, const Chain& chain,
                                                         ConstantPool& pool) {
    if (auto code = ChainCompiler(program, chain, pool).compile(true)) return code;
    return ChainCompiler(program, chain, pool).compile(false);
}

}  // namespace tilewright::cpu
