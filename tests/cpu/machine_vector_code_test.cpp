// Random steps on vectors do, as machine code, what they say: with few registers, too.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/simd/executable_code.h"
#include "cpu/simd/kernels.h"
#include "cpu/vector_code.h"
#include "tests/support/seeds.h"

namespace tilewright::cpu {
namespace {

using namespace x86;

/// Steps, and what they give: every one is done at once on vectors and memory of the model.
class RandomSteps {
  public:
    RandomSteps(unsigned seed, int lanes) : random_(seed), lanes_(lanes), code_(pool_, lanes) {
        for (std::size_t i = 0; i < kWords; ++i) memory_[i] = word();
        for (std::size_t i = 0; i < kFlags; ++i) flags_[i] = pick(2) == 0;
        start_ = memory_;
        start_flags_ = flags_;
        for (int i = 0; i < 4; ++i) load();
        mask();
    }

    void step() {
        code_.set_early(pick(3) == 0);
        switch (pick(17)) {
            case 0:
                return constant();
            case 1:
                return load();
            case 2:
            case 3:
                return binary();
            case 4:
                return unary();
            case 5:
                return fma();
            case 6:
                return blend();
            case 7:
            case 8:
                return lane();
            case 9:
                return compare();
            case 10:
                return logic();
            case 11:
            case 12:
                return store();
            case 13:
                return flags();
            case 14:
                return shuffle();
            case 15:
                return broadcast();
            default:
                return gather();
        }
    }

    void finish() {
        // All that is still in registers and on the stack is read.
        for (std::size_t i = 0; i < values_.size() && i < kWords / 16; i += 1 + values_.size() / 40)
            store_at(16 * i, i, lanes_);
        auto code = code_.encode();
        ASSERT_TRUE(code);
        code->insert(code->end(), {0xC5, 0xF8, 0x77, 0xC3});  // vzeroupper, ret
        const ExecutableCode executable(*code);
        std::vector<std::byte> arena(sizeof start_ + sizeof start_flags_ + 64);
        std::memcpy(arena.data(), start_.data(), sizeof start_);
        std::memcpy(arena.data() + sizeof start_, start_flags_.data(), sizeof start_flags_);
        const auto function = reinterpret_cast<decltype(MachineCode::function)>(executable.data());
        function(arena.data(), nullptr, program_.constants.data(), nullptr);
        std::memcpy(start_.data(), arena.data(), sizeof start_);
        std::memcpy(start_flags_.data(), arena.data() + sizeof start_, sizeof start_flags_);
        for (std::size_t i = 0; i < kWords; ++i) {
            ASSERT_EQ(start_[i], memory_[i]) << "word " << i;
        }
        EXPECT_EQ(start_flags_, flags_);
    }

  private:
    using Words = VectorCode::Words;
    static constexpr std::size_t kWords = 512, kFlags = 64;
    struct Known {
        VectorCode::Value value;
        Words words;
    };
    struct Mask {
        VectorCode::Value value;
        int bits;
    };

    std::size_t pick(std::size_t below) { return random_() % below; }
    std::int32_t word() { return static_cast<std::int32_t>(random_() % 65) - 32; }
    const Known& any() {
        return values_[values_.size() - 1 - pick(std::min<std::size_t>(values_.size(), 40))];
    }
    const Mask& any_mask() {
        return masks_[masks_.size() - 1 - pick(std::min<std::size_t>(masks_.size(), 12))];
    }
    void keep(VectorCode::Value value, const Words& words) { values_.push_back({value, words}); }
    template <typename Make>
    void keep_each(VectorCode::Value value, const Make& make) {
        Words words{};
        for (std::size_t l = 0; l < lanes(); ++l) words[l] = make(l);
        keep(value, words);
    }
    std::size_t lanes() const { return static_cast<std::size_t>(lanes_); }
    static VectorCode::Address at(std::size_t index) {
        return {rdi, static_cast<std::int32_t>(4 * index)};
    }
    static VectorCode::Address flag_at(std::size_t index) {
        return {rdi, static_cast<std::int32_t>(4 * kWords + index)};
    }
    std::size_t place() { return 4 * pick((kWords - 16) / 4); }

    void constant() {
        Words words{};
        for (std::size_t l = 0; l < lanes(); ++l) words[l] = word();
        if (pick(4) == 0) words.fill(words[0]);
        keep(code_.constant(words), words);
    }
    void load() {
        const std::size_t from = place();
        keep_each(code_.load(at(from), lanes_), [&](std::size_t l) { return memory_[from + l]; });
    }
    void broadcast() {
        const std::size_t from = pick(kWords);
        keep_each(code_.broadcast(at(from)), [&](std::size_t) { return memory_[from]; });
    }
    void binary() {
        constexpr std::array kOps = {ir::Op::add, ir::Op::sub, ir::Op::mul, ir::Op::min,
                                     ir::Op::max};
        const ir::Op op = kOps[pick(kOps.size())];
        const Known a = any(), b = any();
        keep_each(code_.binary(*arithmetic_opcode(op, DType::i32), a.value, b.value),
                  [&](std::size_t l) {
                      const auto x = static_cast<std::uint32_t>(a.words[l]),
                                 y = static_cast<std::uint32_t>(b.words[l]);
                      return op == ir::Op::add   ? static_cast<std::int32_t>(x + y)
                             : op == ir::Op::sub ? static_cast<std::int32_t>(x - y)
                             : op == ir::Op::mul ? static_cast<std::int32_t>(x * y)
                             : op == ir::Op::min ? std::min(a.words[l], b.words[l])
                                                 : std::max(a.words[l], b.words[l]);
                  });
    }
    void unary() {
        const Known a = any();
        keep_each(code_.unary(kToFloat, a.value), [&](std::size_t l) {
            return std::bit_cast<std::int32_t>(static_cast<float>(a.words[l]));
        });
    }
    /// Of small numbers, as others may be NaN.
    void fma() {
        std::array<Known, 3> in;
        for (Known& each : in) {
            const Known a = any();
            const auto small =
                code_.binary(*arithmetic_opcode(ir::Op::min, DType::i32),
                             code_.binary(*arithmetic_opcode(ir::Op::max, DType::i32), a.value,
                                          code_.splat(-99)),
                             code_.splat(99));
            keep_each(code_.unary(kToFloat, small), [&](std::size_t l) {
                const auto value = static_cast<float>(std::clamp(a.words[l], -99, 99));
                return std::bit_cast<std::int32_t>(value);
            });
            each = values_.back();
        }
        if (pick(4) == 0) in[1] = in[0];
        if (pick(4) == 0) in[2] = in[0];
        keep_each(code_.fma(in[0].value, in[1].value, in[2].value), [&](std::size_t l) {
            const auto number = [&](std::size_t k) { return std::bit_cast<float>(in[k].words[l]); };
            return std::bit_cast<std::int32_t>(std::fma(number(0), number(1), number(2)));
        });
    }
    void blend() {
        const Mask m = any_mask();
        const Known a = any(), b = any();
        keep_each(code_.blend(m.value, a.value, b.value),
                  [&](std::size_t l) { return (m.bits >> l & 1) != 0 ? a.words[l] : b.words[l]; });
    }
    void lane() {
        const Known a = any();
        const std::size_t which = pick(lanes());
        keep_each(code_.lane(a.value, static_cast<int>(which)),
                  [&](std::size_t) { return a.words[which]; });
    }
    void mask() {
        const int bits = static_cast<int>(random_()) & ((1 << lanes_) - 1);
        masks_.push_back({code_.mask_of_bits(bits), bits});
    }
    void compare() {
        if (pick(3) == 0) return mask();
        const Known a = any(), b = any();
        if (pick(6) == 0) {
            int bits = 0;
            for (std::size_t l = 0; l < lanes(); ++l) bits |= (a.words[l] < 0) << l;
            return masks_.push_back({code_.signs(a.value), bits});
        }
        constexpr std::array kPredicates = {0, 1, 2, 4, 5, 6};
        const int predicate = kPredicates[pick(kPredicates.size())];
        int bits = 0;
        for (std::size_t l = 0; l < lanes(); ++l) {
            const auto x = a.words[l], y = b.words[l];
            const std::array<bool, 7> is = {x == y, x<y, x <= y, false, x != y, x >= y, x> y};
            bits |= is[static_cast<std::size_t>(predicate)] << l;
        }
        masks_.push_back({code_.compare(kCompareWords, a.value, b.value, predicate), bits});
    }
    void logic() {
        const Mask a = any_mask(), b = any_mask();
        using Logic = VectorCode::Logic;
        const std::array kAll = {std::pair{Logic::both, a.bits & b.bits},
                                 std::pair{Logic::either, a.bits | b.bits},
                                 std::pair{Logic::one, a.bits ^ b.bits}};
        const auto& [how, bits] = kAll[pick(kAll.size())];
        masks_.push_back({code_.logic(how, a.value, b.value), bits});
    }
    void store_at(std::size_t to, std::size_t which, int count) {
        code_.store(at(to), values_[which].value, count);
        for (std::size_t l = 0; l < static_cast<std::size_t>(count); ++l)
            memory_[to + l] = values_[which].words[l];
    }
    void store() {
        if (pick(4) == 0) {
            const Known a = any();
            const std::size_t to = pick(kWords);
            code_.store_element(at(to), a.value);
            memory_[to] = a.words[0];
            return;
        }
        const auto count = pick(2) == 0 ? lanes() : 1 + pick(lanes());
        store_at(place(), pick(values_.size()), static_cast<int>(count));
    }
    void flags() {
        const std::size_t place = 8 * pick((kFlags - 16) / 8 + 1);
        if (pick(2) == 0) {
            const auto count = pick(2) == 0 ? lanes() : 1 + pick(lanes());
            const Mask m = any_mask();
            code_.store_mask(flag_at(place), m.value, static_cast<int>(count));
            for (std::size_t l = 0; l < count; ++l) flags_[place + l] = m.bits >> l & 1;
            return;
        }
        int bits = 0;
        if (pick(2) == 0) {
            for (std::size_t l = 0; l < lanes(); ++l) bits |= flags_[place + l] << l;
            return masks_.push_back({code_.load_mask(flag_at(place), lanes_), bits});
        }
        bits = flags_[place] != 0 ? (1 << lanes_) - 1 : 0;
        masks_.push_back({code_.broadcast_mask(flag_at(place)), bits});
    }
    void shuffle() {
        const Known a = any(), b = any();
        if (pick(2) == 0) {
            const int order = static_cast<int>(random_() & 0xFF);
            return keep_each(code_.binary(kPairs, a.value, b.value, order), [&](std::size_t l) {
                const auto from = static_cast<std::size_t>(order >> (2 * (l & 3)) & 3);
                return (l % 4 < 2 ? a : b).words[l / 4 * 4 + from];
            });
        }
        Words order{};
        for (std::size_t l = 0; l < lanes(); ++l)
            order[l] = static_cast<std::int32_t>(pick(lanes()));
        keep_each(code_.binary(kPermute, code_.constant(order), a.value),
                  [&](std::size_t l) { return a.words[static_cast<std::size_t>(order[l])]; });
    }
    /// A column of rows that are vectors of their own.
    void gather() {
        const std::size_t stride = 16, from = pick(4) * stride, column = pick(lanes());
        for (std::size_t row = 0; row < lanes(); ++row) {
            if (pick(3) > 0) store_at(from + row * stride, pick(values_.size()), lanes_);
        }
        const auto found = code_.gathered(at(from + column), stride, lanes_);
        if (!found) return;
        keep_each(*found, [&](std::size_t l) { return memory_[from + column + l * stride]; });
    }

    Program program_;
    ConstantPool pool_{program_};
    std::mt19937 random_;
    int lanes_;
    VectorCode code_;
    std::array<std::int32_t, kWords> memory_{}, start_{};
    std::array<std::uint8_t, kFlags> flags_{}, start_flags_{};
    std::vector<Known> values_;
    std::vector<Mask> masks_;
};

class MachineVectorCode : public ::testing::TestWithParam<const char*> {};

TEST_P(MachineVectorCode, RandomSteps) {
    const Kernels* const table = find_kernels(GetParam());
    if (table == nullptr || !wants_machine_code()) GTEST_SKIP() << "no code of this kind here";
    const tilewright::testing::Seeds seeds = tilewright::testing::seeds(300);
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        RandomSteps steps(static_cast<unsigned>(seed), table->vector_bytes / 4);
        const std::size_t count = 10 + seed * 7 % 190;
        for (std::size_t i = 0; i < count; ++i) steps.step();
        steps.finish();
        ASSERT_FALSE(::testing::Test::HasFailure()) << "TILEWRIGHT_TEST_SEED=" << seed;
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, MachineVectorCode, ::testing::Values("avx2", "avx512"),
                         [](const auto& table) { return std::string(table.param); });

}  // namespace
}  // namespace tilewright::cpu
