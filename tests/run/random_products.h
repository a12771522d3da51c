// Random tile programs around matrix products, for GPUs: dtypes, orders, blocks, sizes that fit
// nothing, loops or whole bands, batches, a second product, and what follows the sum.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/run/cuda_programs.h"

namespace tilewright::testing_support {

/// Every value is a small multiple of 1/8 and every sum exact in f32, so that results are equal
/// bit by bit, however products are ordered.
class RandomProduct {
  public:
    explicit RandomProduct(std::uint64_t seed) : random_(seed) {
        choose();
        program_.name = fmt::format("product of seed {}: {} {}x{}x{} blocks {}x{}", seed, in_, m_,
                                    n_, k_, bm_, bn_);
        write();
    }

    const CudaProgram& program() const { return program_; }

  private:
    std::int64_t any(std::initializer_list<std::int64_t> values) {
        return *(values.begin() + static_cast<std::ptrdiff_t>(random_() % values.size()));
    }
    bool chance(unsigned percent) { return random_() % 100 < percent; }

    /// Up to two blocks and a bit, often no multiple of anything.
    std::int64_t extent(std::int64_t block) {
        const auto size =
            1 + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(2 * block + 40));
        return chance(50) ? (size + 7) / 8 * 8 : chance(40) ? 2 * block : size;
    }

    void choose() {
        static constexpr std::array<const char*, 8> kDTypes = {"bf16", "bf16", "f16",    "f16",
                                                               "f32",  "i8",   "f8e4m3", "bf16"};
        in_ = kDTypes[random_() % kDTypes.size()];
        sums_ = in_ == "i8" ? "i32" : "f32";
        static constexpr std::array<const char*, 3> kOut = {"f32", "bf16", "f16"};
        out_ = in_ == "i8" ? "i32" : kOut[random_() % kOut.size()];
        bm_ = any({16, 64, 64, 128, 128, 128, 128, 256});
        bn_ = any({32, 64, 64, 64, 128, 128, 128, 256});
        m_ = extent(bm_);
        n_ = extent(bn_);
        step_ = any({32, 64, 64, 64, 64, 128});
        k_ = chance(70) ? 8 * any({1, 8, 9, 16, 17, 24, 25, 32, 37, 50}) : extent(128);
        transpose_a_ = chance(30);
        transpose_b_ = chance(50);
        batched_ = chance(20);
        loop_ = chance(60);
    }

    void line(std::string_view text) { (body_ += text) += '\n'; }

    std::string ref(std::string_view name, std::string_view dtype, std::vector<std::int64_t> dims,
                    bool batched) {
        if (batched) dims.insert(dims.begin(), kBatch);
        refs_ += fmt::format("{}%{}: ref<{}[{}]>", refs_.empty() ? "" : ", ", name, dtype,
                             fmt::join(dims, ", "));
        program_.extents.push_back(dims);
        return fmt::format("%{}[{}", name, batched ? "%pb, " : "");
    }

    /// A load of rows x columns of an operand, whose inner dimension starts at %p or at %zero.
    void load(std::string_view name, const std::string& at, bool transposed, bool left,
              std::int64_t depth, std::string_view start) {
        const std::string outer = left ? fmt::format("%i : {}", bm_) : fmt::format("%j : {}", bn_);
        const std::string inner = fmt::format("{} : {}", start, depth);
        const std::int64_t across = left ? bm_ : bn_;
        const bool outer_first = left != transposed;
        line(fmt::format("%{} = load {}{}, {}] : {}[{}, {}]", name, at, outer_first ? outer : inner,
                         outer_first ? inner : outer, in_, outer_first ? across : depth,
                         outer_first ? depth : across));
    }

    std::string dot(std::string_view a, std::string_view b, std::string_view sum) {
        return fmt::format("dot %{}, %{}{}{}{}{} : {}", a, b, sum,
                           transpose_a_ ? " transpose_a" : "", transpose_b_ ? " transpose_b" : "",
                           in_ == "f32" ? " precision tf32" : "", tile(sums_));
    }

    std::string tile(std::string_view dtype) const {
        return fmt::format("{}[{}, {}]", dtype, bm_, bn_);
    }
    std::string constant(std::string_view dtype, std::string_view value) {
        const std::string name = fmt::format("%c{}", ++names_);
        line(fmt::format("{} = constant {} : {}", name, value, tile(dtype)));
        return name;
    }
    std::string next(std::string_view text) {
        const std::string name = fmt::format("%e{}", ++names_);
        line(fmt::format("{} = {}", name, text));
        return name;
    }

    std::string product() {
        const std::string x =
            ref("x", in_, transpose_a_ ? std::vector{k_, m_} : std::vector{m_, k_}, batched_);
        const std::string y =
            ref("y", in_, transpose_b_ ? std::vector{n_, k_} : std::vector{k_, n_}, batched_);
        if (!loop_) {
            load("a", x, transpose_a_, true, k_, "%zero");
            load("b", y, transpose_b_, false, k_, "%zero");
            return next(dot("a", "b", ""));
        }
        const std::string init = constant(sums_, "0");
        line(fmt::format("%steps = constant {} : i64\n%kk = constant {} : i64",
                         (k_ + step_ - 1) / step_, step_));
        const std::string sum = fmt::format("%e{}", ++names_);
        line(fmt::format("{} = for_loop %t = %zero, %steps, %one carry (%acc = {}) : {} {{", sum,
                         init, tile(sums_)));
        line("%p = mul %t, %kk : i64");
        load("a", x, transpose_a_, true, step_, "%p");
        load("b", y, transpose_b_, false, step_, "%p");
        line("%d = " + dot("a", "b", ", %acc"));
        line("yield %d\n}");
        return sum;
    }

    /// A product of other arrays is added.
    std::string second(const std::string& sum) {
        const std::int64_t depth = any({8, 64, 100});
        const std::string x = ref(
            "x2", in_, transpose_a_ ? std::vector{depth, m_} : std::vector{m_, depth}, batched_);
        const std::string y = ref(
            "y2", in_, transpose_b_ ? std::vector{n_, depth} : std::vector{depth, n_}, batched_);
        load("a2", x, transpose_a_, true, depth, "%zero");
        load("b2", y, transpose_b_, false, depth, "%zero");
        return next(dot("a2", "b2", ", " + sum));
    }

    /// A vector along rows (axis 0) or columns, or a whole tile, as sums.
    std::string read(int kind) {
        const std::string dtype = sums_ == "i32" ? "i32" : chance(50) ? in_ : "f32";
        const std::string name = fmt::format("r{}", ++names_);
        if (kind == 2) {
            const std::string at = ref(name, dtype, {m_, n_}, false);
            const std::string whole =
                next(fmt::format("load {}%i : {}, %j : {}] : {}", at, bm_, bn_, tile(dtype)));
            return as_sums(whole, dtype);
        }
        const std::int64_t extent = kind == 0 ? bm_ : bn_;
        const std::string at = ref(name, dtype, {kind == 0 ? m_ : n_}, false);
        std::string line_ = next(fmt::format("load {}%{} : {}] : {}[{}]", at, kind == 0 ? "i" : "j",
                                             extent, dtype, extent));
        const std::string shape =
            kind == 0 ? fmt::format("[{}, 1]", bm_) : fmt::format("[1, {}]", bn_);
        line_ = next(fmt::format("expand_dims {} axis {} : {}{}", line_, 1 - kind, dtype, shape));
        line_ = next(fmt::format("broadcast {} : {}", line_, tile(dtype)));
        return as_sums(line_, dtype);
    }
    std::string as_sums(const std::string& value, const std::string& dtype) {
        return dtype == sums_ ? value : next(fmt::format("cast {} : {}", value, tile(sums_)));
    }

    /// rows >= columns, as a tile of bool.
    std::string lower_triangle() {
        const std::string shape = tile("i64");
        const auto positions = [&](int axis, const char* first) {
            const std::string lanes = next(fmt::format("iota axis {} : {}", axis, shape));
            const std::string start = next(fmt::format("broadcast {} : {}", first, shape));
            return next(fmt::format("add {}, {} : {}", lanes, start, shape));
        };
        const std::string rows = positions(0, "%i"), columns = positions(1, "%j");
        return next(fmt::format("ge {}, {} : {}", rows, columns, tile("bool")));
    }

    std::string epilogue(std::string value) {
        const std::string shape = tile(sums_);
        for (std::int64_t steps = any({0, 0, 1, 2, 3, 4}); steps > 0; --steps) {
            switch (random_() % 8) {
                case 0:
                case 1:
                case 2:
                    value = next(fmt::format("add {}, {} : {}", value,
                                             read(static_cast<int>(random_() % 3)), shape));
                    break;
                case 3:
                    value = next(fmt::format("mul {}, {} : {}", value,
                                             constant(sums_, sums_ == "i32" ? "3" : "0.5"), shape));
                    break;
                case 4:
                    value =
                        next(fmt::format("max {}, {} : {}", value, constant(sums_, "2"), shape));
                    break;
                case 5:
                    value =
                        next(fmt::format("min {}, {} : {}", value, constant(sums_, "20"), shape));
                    break;
                case 6:
                    value = next(fmt::format("neg {} : {}", value, shape));
                    break;
                default:
                    value = next(fmt::format("select {}, {}, {} : {}", lower_triangle(), value,
                                             constant(sums_, "-1"), shape));
            }
        }
        return value;
    }

    void write() {
        line("%zero = constant 0 : i64\n%one = constant 1 : i64");
        line("%pi = program_id axis 0 : i64\n%pj = program_id axis 1 : i64");
        if (batched_) line("%pb = program_id axis 2 : i64");
        line(fmt::format("%bm = constant {} : i64\n%bn = constant {} : i64", bm_, bn_));
        line("%i = mul %pi, %bm : i64\n%j = mul %pj, %bn : i64");
        std::string value = product();
        if (chance(20)) value = second(value);
        value = epilogue(value);
        // A cast to the same dtype is no instruction.
        if (out_ != sums_) value = next(fmt::format("cast {} : {}", value, tile(out_)));
        const std::string mask = chance(20) ? " mask " + lower_triangle() : "";
        const std::string z = ref("z", out_, {m_, n_}, batched_);
        line(fmt::format("store {}%i : {}, %j : {}], {}{}", z, bm_, bn_, value, mask));
        line("yield");
        program_.text =
            fmt::format("func @product({}) grid [{}, {}{}] {{\n{}}}\n", refs_, (m_ + bm_ - 1) / bm_,
                        (n_ + bn_ - 1) / bn_, batched_ ? fmt::format(", {}", kBatch) : "", body_);
    }

    static constexpr std::int64_t kBatch = 2;

    std::mt19937_64 random_;
    CudaProgram program_;
    std::string in_, sums_, out_, refs_, body_;
    std::int64_t m_ = 0, n_ = 0, k_ = 0, bm_ = 0, bn_ = 0, step_ = 0;
    bool transpose_a_ = false, transpose_b_ = false, batched_ = false, loop_ = false;
    int names_ = 0;
};

}  // namespace tilewright::testing_support
