// Writes the machine code of chains on small tiles for AVX2, vector by vector without loops.
#include <algorithm>
#include <bit>
#include <map>

#include "cpu/simd/x86_opcodes.h"
#include "cpu/small_chain.h"

namespace tilewright::cpu {
namespace {

using namespace x86;  // opcodes and registers
using ir::Op;

constexpr std::int64_t kVectorLanes = 8;

constexpr Opcode kToFloat{1, 0, 0x5B}, kAddWords{1, 1, 0xFE}, kAnd{1, 1, 0xDB}, kOr{1, 1, 0xEB},
    kXor{1, 1, 0xEF}, kEqualWords{1, 1, 0x76}, kGreaterWords{1, 1, 0x66}, kBlend{3, 1, 0x4A},
    kWidenBytes{2, 1, 0x31}, kUpperHalf{3, 1, 0x39}, kPackWords{1, 1, 0x6B},
    kPackHalves{1, 1, 0x63}, kAbsoluteBytes{2, 1, 0x1C}, kMaskedStore{2, 1, 0x2E},
    kSwapHalves{3, 1, 0x06}, kSwapWords{3, 1, 0x04};

/// Values are in ymm0 to ymm9, what steps need in the others.
constexpr int kScratch = 10;

/// Writes the code of one chain. All ops are done on a vector before the next one: there are few
/// registers. Booleans are words with all bits set or clear.
class ChainCompilerAvx2 : public SmallChain {
  public:
    ChainCompilerAvx2(const Program& program, const Chain& chain, ConstantPool& pool,
                      const KnownSlots& known)
        : SmallChain(program, chain, pool, known, false, kScratch), values_(chain.ops.size(), -1) {}

    /// `keeps`: operands that are the same for all rows have registers of their own.
    std::optional<std::vector<std::uint8_t>> compile(bool keeps) {
        if (!is_known(false)) return std::nullopt;
        if (keeps && (!keep_bases() || !keep_operands())) return std::nullopt;
        for (row_ = 0; row_ < chain_.rows; ++row_) {
            for (vector_ = 0; vector_ < vectors_; ++vector_) {
                for (op_ = 0; op_ < chain_.ops.size(); ++op_) {
                    if (!compile_op(chain_.ops[op_]) || failed_) return std::nullopt;
                    drop_read();
                }
                for (int& value : values_) give_back(value);
            }
        }
        for (const auto& [at, registers] : sums_) {
            for (vector_ = 0; vector_ < vectors_; ++vector_)
                store_words(registers[static_cast<std::size_t>(vector_)],
                            address(chain_.ops[at].out, 0, vector_));
        }
        if (failed_) return std::nullopt;
        return encoder_.code();
    }

  private:
    // ---- Registers.

    void give_back(int& value) {
        if (value >= 0) free_.push_back(value);
        value = -1;
    }
    /// Gives back what no later op reads.
    void drop_read() {
        for (std::size_t made = 0; made <= op_; ++made) {
            if (values_[made] >= 0 && is_done(made)) give_back(values_[made]);
        }
    }
    /// Registers that steps are left with when others keep operands.
    static constexpr std::size_t kWorking = 6;

    // ---- Operands.

    bool keep_operands() {
        if (chain_.rows == 1) return true;
        for (const StripOp& op : chain_.ops) {
            for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
                const StripSource& in = op.in[k];
                const bool same = in.lane_stride == 0;
                const std::size_t needed = same ? 1 : static_cast<std::size_t>(vectors_);
                if (in.row_stride != 0 || in.home == Home::strip || is_written(in) ||
                    free_.size() < needed + kWorking || kept_register(in, 0) >= 0)
                    continue;
                std::vector<int> registers;
                for (vector_ = 0; vector_ < vectors_; ++vector_) {
                    if (same && vector_ > 0) {
                        registers.push_back(registers[0]);
                        continue;
                    }
                    registers.push_back(take(free_));
                    load(in, registers.back());
                }
                kept_.emplace_back(in, std::move(registers));
            }
        }
        return !failed_;
    }
    /// The bases of forms are the same for all vectors.
    bool keep_bases() {
        for (op_ = 0; op_ < chain_.ops.size(); ++op_) {
            const StripOp& op = chain_.ops[op_];
            if (op.super != Super::affine_select || !op.affine.words.empty() ||
                free_.size() <= kWorking)
                continue;
            if (!is_gentle_select(op) || !load_base(op.affine)) return false;
            limit_base();
            const int base = take(free_);
            splat(base, rcx);
            bases_[op_] = base;
        }
        return true;
    }
    void load(const StripSource& in, int to) {
        in.dtype == DType::boolean ? load_mask(in, to) : load_words(in, to);
    }
    void load_words(const StripSource& in, int to) {
        const Address from = address(in, row_, vector_);
        encoder_.vector_memory(in.lane_stride == 0 ? kBroadcast : kLoad, to, 0, from.base,
                               from.offset);
    }
    void load_mask(const StripSource& in, int to) {
        const Address from = address(in, row_, vector_);
        const int zero = kScratch + 4;
        if (in.lane_stride == 0) {
            encoder_.fixed({0x0F, 0xB6, 0x80 | from.base});  // movzx eax, byte
            encoder_.word(from.offset);
            splat(to, rax);
        } else {
            encoder_.vector_memory(kWidenBytes, to, 0, from.base, from.offset);
        }
        encoder_.vector(kXor, zero, zero, zero);
        encoder_.vector(kGreaterWords, to, to, zero);
    }
    void splat(int to, Gpr word) {
        encoder_.move_word(to, word);
        encoder_.vector(kBroadcastLane, to, 0, to);
    }
    /// Operand k: where it is, or loaded to `to`.
    int operand(const StripOp& op, std::size_t k, int to) {
        const StripSource& in = op.in[k];
        if (const std::size_t made = maker(in); made < chain_.ops.size()) {
            if (values_[made] < 0 || chain_.ops[made].out.dtype != in.dtype) failed_ = true;
            return std::max(values_[made], 0);
        }
        if (const int kept = kept_register(in, vector_); kept >= 0) return kept;
        load(in, to);
        return to;
    }
    int words(const StripOp& op, std::size_t k) {
        if (!is_word(op.in[k].dtype)) failed_ = true;
        return operand(op, k, kScratch + static_cast<int>(k));
    }
    int mask(const StripOp& op, std::size_t k, int to) {
        if (op.in[k].dtype != DType::boolean) failed_ = true;
        return operand(op, k, to);
    }

    // ---- Results.

    std::int32_t tail_words() {
        std::array<std::int32_t, ConstantPool::kLanes> words{};
        std::fill_n(words.begin(), tail_, -1);
        return pool_.at(words);
    }
    void store_words(int from, Address to) {
        if (!is_tail(vector_)) {
            encoder_.vector_memory(kStore, from, 0, to.base, to.offset);
            return;
        }
        const int lanes = kScratch + 5;
        encoder_.vector_memory(kLoad, lanes, 0, rdx, tail_words());
        encoder_.vector_memory(kMaskedStore, from, lanes, to.base, to.offset);
    }
    /// As bytes, by way of rax.
    void store_mask(int from, Address to) {
        const int part = kScratch + 4;
        encoder_.vector(kUpperHalf, from, 0, part);
        encoder_.immediate(1);
        encoder_.vector(kPackWords, part, from, part);
        encoder_.vector(kPackHalves, part, part, part);
        encoder_.vector(kAbsoluteBytes, part, 0, part);
        encoder_.move_to_rax(part);
        if (!is_tail(vector_)) return encoder_.store(to.base, to.offset, rax);
        for (const int bytes : {4, 2, 1}) {
            if ((tail_ & bytes) == 0) continue;
            if (bytes == 2) encoder_.fixed({0x66});
            encoder_.fixed({bytes == 1 ? 0x88 : 0x89, 0x80 | to.base});  // mov
            encoder_.word(to.offset);
            encoder_.fixed({0x48, 0xC1, 0xE8, 8 * bytes});  // shr rax
            to.offset += bytes;
        }
    }
    void keep(const StripOp& op, int value) {
        if (op.out.home != Home::strip) {
            const Address to = address(op.out, row_, vector_);
            op.out.dtype == DType::boolean ? store_mask(value, to) : store_words(value, to);
        }
        values_[op_] = value;
    }

    // ---- Ops.

    bool compile_op(const StripOp& op) {
        if (op.super == Super::affine_select) return affine_select(op);
        if (op.super != Super::none) return false;
        const bool sums = op.reduction == ir::Reduction::sum && op.in[0].dtype == DType::f32 &&
                          op.out.dtype == DType::f32;
        switch (op.kind) {
            case StripOp::Kind::map:
                return map(op);
            case StripOp::Kind::reduce_lanes:
                return sums && op.in[0].lane_stride != 0 && sum_lanes(op);
            case StripOp::Kind::reduce_rows:
                return sums && op.in[0].lane_stride == 1 && op.out.lane_stride == 1 && sum_rows(op);
            default:
                return false;
        }
    }

    bool map(const StripOp& op) {
        if (!is_map(op)) return false;
        const DType in = op.in[static_cast<std::size_t>(op.num_inputs) - 1].dtype;
        const int to = take(free_);
        if (failed_) return false;
        if (op.op == Op::select) {
            const int condition = mask(op, 0, kScratch + 3);
            const int yes = words(op, 1), no = words(op, 2);
            blend(to, no, yes, condition);
        } else if (op.out.dtype == DType::boolean && is_word(in)) {
            compare(op, to, in);
        } else if (op.out.dtype == DType::boolean) {
            const int a = mask(op, 0, kScratch + 3), b = mask(op, 1, kScratch + 5);
            encoder_.vector(op.op == Op::bitwise_and  ? kAnd
                            : op.op == Op::bitwise_or ? kOr
                                                      : kXor,
                            to, a, b);
        } else if (is_root(op)) {
            encoder_.vector(kSqrt, to, 0, words(op, 0));
        } else if (is_conversion(op)) {
            encoder_.vector(kToFloat, to, 0, words(op, 0));
        } else if (is_fma(op)) {
            const int a = words(op, 0), b = words(op, 1), c = words(op, 2);
            encoder_.vector(kMove, to, 0, a);
            encoder_.vector(kFma213, to, b, c);
        } else {
            const int a = words(op, 0), b = words(op, 1);
            encoder_.vector(*arithmetic(op.op, in), to, a, b);
        }
        keep(op, to);
        return !failed_;
    }
    /// to = mask ? yes : no.
    void blend(int to, int no, int yes, int mask) {
        encoder_.vector(kBlend, to, no, yes);
        encoder_.immediate(mask << 4);
    }
    /// Words have instructions for `==` and `>` alone.
    void compare(const StripOp& op, int to, DType in) {
        const int a = words(op, 0), b = words(op, 1);
        if (in == DType::f32) {
            encoder_.vector(kCompareFloats, to, a, b);
            encoder_.immediate(predicate(op.op, true));
            return;
        }
        const bool equality = op.op == Op::eq || op.op == Op::ne;
        const bool less = op.op == Op::lt || op.op == Op::ge;
        encoder_.vector(equality ? kEqualWords : kGreaterWords, to, less ? b : a, less ? a : b);
        if (op.op != Op::ne && op.op != Op::le && op.op != Op::ge) return;
        const int ones = kScratch + 5;
        encoder_.vector(kEqualWords, ones, ones, ones);
        encoder_.vector(kXor, to, to, ones);
    }

    /// to = the form in the lanes of the vector, from its base.
    void add_steps(int to, int base, const Affine& form) {
        encoder_.vector_memory(kAddWords, to, base, rdx, pool_.at(steps(form, vector_)));
    }
    /// out = form >= 0 ? in[0] : value. Words that may wrap around are compared as such.
    bool affine_select(const StripOp& op) {
        if (!is_gentle_select(op)) return false;
        const Affine& form = op.affine;
        const int base = kScratch + 4, sign = kScratch + 3, otherwise = kScratch + 2,
                  second_base = kScratch + 5, second = kScratch + 1;
        const bool wraps = !form.words.empty();
        const auto known = bases_.find(op_);
        if (wraps) {
            if (!load_base(form.words[1])) return false;
            splat(second_base, rcx);
        }
        if (known == bases_.end()) {
            if (!load_base(wraps ? form.words[0] : form)) return false;
            if (!wraps) limit_base();
            splat(base, rcx);
        }
        const auto value = std::bit_cast<std::int32_t>(static_cast<float>(op.immediate[3]));
        encoder_.vector_memory(kLoad, otherwise, 0, rdx, pool_.splat(value));
        const int to = take(free_);
        if (failed_) return false;
        add_steps(sign, known == bases_.end() ? base : known->second, wraps ? form.words[0] : form);
        const int chosen = words(op, 0);
        if (!wraps) {
            blend(to, chosen, otherwise, sign);  // reads signs alone
        } else {
            add_steps(second, second_base, form.words[1]);
            encoder_.vector(kGreaterWords, sign, form.strict ? sign : second,
                            form.strict ? second : sign);
            form.strict ? blend(to, otherwise, chosen, sign) : blend(to, chosen, otherwise, sign);
        }
        keep(op, to);
        return !failed_;
    }

    /// In the order of the vector kernels: whole vectors in groups of four, of each of which there
    /// is a sum; other vectors in the first sum and those that are not whole in the second.
    bool sum_lanes(const StripOp& op) {
        auto [found, inserted] = row_sums_.try_emplace(op_);
        auto& sums = found->second;
        if (inserted) sums.fill(-1);
        const std::int64_t whole = chain_.lanes / kVectorLanes, grouped = whole / 4 * 4;
        const auto which = static_cast<std::size_t>(is_tail(vector_)    ? 1
                                                    : vector_ < grouped ? vector_ % 4
                                                                        : 0);
        int from = words(op, 0);
        if (is_tail(vector_)) {
            encoder_.vector_memory(kAnd, kScratch, from, rdx, tail_words());
            from = kScratch;
        }
        if (sums[which] < 0) {
            sums[which] = take(free_);
            if (failed_) return false;
            encoder_.vector(kMove, sums[which], 0, from);
        } else {
            encoder_.vector(kAdd, sums[which], sums[which], from);
        }
        if (vector_ + 1 < vectors_) return true;
        for (const auto& [first, second] :
             {std::pair{0U, 1U}, std::pair{2U, 3U}, std::pair{0U, 2U}})
            join(sums[first], sums[second]);
        const int sum = sums[0], part = kScratch + 4;
        encoder_.vector(kSwapHalves, part, sum, sum);
        encoder_.immediate(1);
        encoder_.vector(kAdd, sum, sum, part);
        for (const int order : {0x4E, 0xB1}) {
            encoder_.vector(kSwapWords, part, 0, sum);
            encoder_.immediate(order);
            encoder_.vector(kAdd, sum, sum, part);
        }
        // Kernels begin with zero, or add one: a sum is never -0.
        encoder_.vector(kXor, part, part, part);
        encoder_.vector(kAdd, sum, sum, part);
        const Address to = address(op.out, row_, 0);
        encoder_.vector_memory(kStoreScalar, sum, 0, to.base, to.offset);
        give_back(sums[0]);
        return !failed_;
    }
    void join(int& first, int& second) {
        if (second < 0) return;
        if (first < 0) {
            std::swap(first, second);
            return;
        }
        encoder_.vector(kAdd, first, first, second);
        give_back(second);
    }

    bool sum_rows(const StripOp& op) {
        auto& sums = sums_[op_];
        const auto at = static_cast<std::size_t>(vector_);
        if (row_ == 0) {
            sums.push_back(take(free_));
            if (failed_) return false;
            encoder_.vector(kXor, sums[at], sums[at], sums[at]);
        }
        encoder_.vector(kAdd, sums[at], sums[at], words(op, 0));
        return !failed_;
    }

    std::int64_t vector_ = 0;
    std::vector<int> values_;                             ///< of each op, in this vector
    std::map<std::size_t, int> bases_;                    ///< of forms
    std::map<std::size_t, std::vector<int>> sums_;        ///< over rows
    std::map<std::size_t, std::array<int, 4>> row_sums_;  ///< over lanes
};

}  // namespace

std::optional<std::vector<std::uint8_t>> small_tile_code_avx2(const Program& program,
                                                              const Chain& chain,
                                                              ConstantPool& pool,
                                                              const KnownSlots& known) {
    if (auto code = ChainCompilerAvx2(program, chain, pool, known).compile(true)) return code;
    return ChainCompilerAvx2(program, chain, pool, known).compile(false);
}

}  // namespace tilewright::cpu
