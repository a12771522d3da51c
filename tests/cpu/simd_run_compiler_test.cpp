// Compiled runs give what their steps give one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cpu/simd/kernels.h"
#include "cpu/simd/run_compiler.h"
#include "tilewright/system.h"

namespace tilewright::cpu {
namespace {

using ir::Op;
using Kind = FusedPlace::Kind;

constexpr std::int64_t kRows = 3, kBlocks = 2, kLanes = 64 * kBlocks + 17;

class RunCompiler : public testing::TestWithParam<const Kernels*> {
  protected:
    void SetUp() override {
        if (!GetParam()->fused.run) GTEST_SKIP() << "no fused runs";
        const FusedShape load{{Op::load, DType::f32}, {FusedPlace{Kind::lanes}}};
        if (!compile({&load, 1})) GTEST_SKIP() << "no code at run time";
    }

    static auto compile(std::span<const FusedShape> shapes) -> decltype(compile_run(shapes, 64)) {
        return compile_run(shapes, GetParam()->vector_bytes);
    }
};

/// Steps at random, and memory for their operands.
struct RandomRun {
    explicit RandomRun(unsigned seed)
        : random(seed), dtype(pick(4) == 0 ? DType::i32 : DType::f32) {
        add({Op::load, dtype}, {pick(5) == 0 ? Kind::splat : Kind::lanes});
        const int count = 1 + pick(14);
        for (int i = 0; i < count; ++i) add_step();
        if (pick(3) == 0 && kept > 0) add({Op::load, DType::f32}, {Kind::temporary});
        add({Op::store, dtype}, {Kind::lanes});
    }

    int pick(int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); }

    void add(const FusedKey& key, std::vector<Kind> kinds) {
        FusedShape shape{key, {}};
        for (std::size_t k = 0; k < kinds.size(); ++k) {
            shape.place[k].kind = kinds[k];
            if (kinds[k] == Kind::temporary) shape.place[k].temporary = pick(kept);
            if (kinds[k] == Kind::lanes && key.op != Op::store) share_lanes(shape.place[k]);
            ++num_operands;
        }
        shapes.push_back(shape);
    }
    /// Makes an operand the lanes of an earlier one from some lane on, or one that later ones may
    /// share.
    void share_lanes(FusedPlace& place) {
        if (pick(2) == 0) return;
        if (bases.empty() || pick(4) == 0) {
            bases.push_back(num_operands);
            place.base = num_operands;
            return;
        }
        place.base = bases[static_cast<std::size_t>(pick(static_cast<int>(bases.size())))];
        place.shift = pick(FusedPlace::kMostShift + 1);
    }
    Kind other() {
        const int chosen = pick(5);
        return chosen == 0 ? Kind::splat : chosen < 3 && kept > 0 ? Kind::temporary : Kind::lanes;
    }
    void add_step() {
        const int chosen = pick(10);
        if (chosen == 0 && kept < 4) {
            ++kept;
            add({Op::store, DType::f32}, {Kind::temporary});
            shapes.back().place[0].temporary = kept - 1;
        } else if (chosen == 1) {
            add({Op::load, dtype}, {other()});
        } else if (chosen == 2) {
            add({Op::store, dtype}, {Kind::lanes});
        } else if (chosen < 5 && dtype == DType::f32) {
            add({Op::fma, dtype, dtype, pick(3)}, {other(), other()});
        } else if (chosen == 5 && dtype == DType::f32) {
            add({Op::sqrt, dtype, dtype}, {});
        } else {
            constexpr Op kOps[] = {Op::add, Op::sub, Op::mul, Op::min, Op::max, Op::div};
            const Op op = kOps[pick(dtype == DType::f32 ? 6 : 5)];
            if (pick(6) == 0) return add({op, dtype, dtype, FusedKey::kBoth}, {});
            add({op, dtype, dtype, pick(2)}, {other()});
        }
    }

    /// The bits of everything that is stored by `run`, which is given a call with these operands.
    template <typename Run>
    std::vector<float> results(const Kernels& kernels, const Run& run) const {
        std::mt19937 numbers(7);
        const auto number = [&] {
            const auto n = static_cast<float>(static_cast<int>(numbers() % 33) - 16) / 4;
            const bool odd = dtype == DType::f32 && numbers() % 16 == 0;
            if (!odd) return n;
            return n > 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
        };
        std::vector<FusedStep> steps;
        std::vector<std::vector<float>> arrays;
        FusedCall call;
        call.rows = kRows;
        call.blocks = kBlocks;
        call.lanes = kLanes;
        call.num_operands = call.num_affine = call.num_reductions = call.num_prefetches = 0;
        std::vector<std::vector<float>> temporaries(4, std::vector<float>(64));
        arrays.reserve(FusedCall::kMaxOperands);
        for (const FusedShape& shape : shapes) {
            FusedStep step;
            step.function = kernels.fused.step(shape);
            for (std::size_t k = 0; k < 2; ++k) {
                const FusedPlace& place = shape.place[k];
                if (place.kind == Kind::none) continue;
                FusedOperand& operand = call.operands[call.num_operands];
                step.operand[k] = static_cast<std::uint8_t>(call.num_operands++);
                step.walks[k] = place.kind == Kind::lanes ? -1 : 0;
                if (place.kind == Kind::temporary) {
                    auto& block = temporaries[static_cast<std::size_t>(place.temporary)];
                    operand = {reinterpret_cast<std::byte*>(block.data()), 0, 0, false};
                    continue;
                }
                const auto own = static_cast<int>(call.num_operands) - 1;
                if (place.base >= 0 && place.base != own) {
                    operand = call.operands[static_cast<std::size_t>(place.base)];
                    operand.data += 4 * place.shift;
                    continue;
                }
                // Rows that begin anywhere, further apart than they are long.
                const std::int64_t more = place.base < 0 ? 0 : FusedPlace::kMostShift;
                const std::int64_t stride =
                    kLanes + more + static_cast<std::int64_t>(numbers() % 5);
                const auto first = static_cast<std::int64_t>(numbers() % 7);
                auto& array = arrays.emplace_back(static_cast<std::size_t>(kRows * stride + first));
                for (float& x : array) x = number();
                operand = {reinterpret_cast<std::byte*>(array.data() + first), 4 * stride,
                           place.kind == Kind::lanes ? 4 : 0, false};
            }
            steps.push_back(step);
        }
        FusedStep end;
        end.function = kernels.fused.step({{Op::yield}});
        steps.push_back(end);
        call.steps = steps.data();
        run(call);
        std::vector<float> all;
        for (const auto& array : arrays) all.insert(all.end(), array.begin(), array.end());
        return all;
    }

    std::mt19937 random;
    DType dtype;
    int kept = 0, num_operands = 0;
    std::vector<int> bases;  ///< operands whose lanes others may share
    std::vector<FusedShape> shapes;
};

TEST_P(RunCompiler, GivesWhatStepsGive) {
    const Kernels& kernels = *GetParam();
    int compiled = 0;
    for (unsigned seed = 0; seed < 600; ++seed) {
        const RandomRun random(seed);
        const auto function = compile(random.shapes);
        if (!function) continue;
        ++compiled;
        const std::vector<float> expected = random.results(kernels, kernels.fused.run);
        const std::vector<float> actual = random.results(kernels, function);
        for (std::size_t i = 0; i < expected.size(); ++i) {
            const bool both_nan = std::isnan(expected[i]) && std::isnan(actual[i]);
            if (both_nan) continue;
            ASSERT_EQ(std::bit_cast<std::uint32_t>(expected[i]),
                      std::bit_cast<std::uint32_t>(actual[i]))
                << "run " << seed << ", element " << i << ": " << actual[i] << " where steps give "
                << expected[i];
        }
    }
    EXPECT_GT(compiled, 450);
}

TEST_P(RunCompiler, MakesARunOnce) {
    const RandomRun random(1);
    EXPECT_EQ(compile(random.shapes), compile(random.shapes));
}

TEST_P(RunCompiler, LeavesWhatItDoesNotKnow) {
    const FusedShape load{{Op::load, DType::f32}, {FusedPlace{Kind::lanes}}},
        exp{{Op::exp, DType::f32, DType::f32}, {}}, narrow{{Op::load, DType::bf16}, load.place};
    EXPECT_EQ(compile(std::vector{load, exp}), nullptr);
    EXPECT_EQ(compile(std::vector{narrow}), nullptr);
}

TEST(RunCompilerSwitch, TurnsMachineCodeOff) {
    const char* const jit = std::getenv("TILEWRIGHT_JIT");
    if (jit == nullptr || std::string(jit) != "0") GTEST_SKIP() << "TILEWRIGHT_JIT is not 0";
    const FusedShape load{{Op::load, DType::f32}, {FusedPlace{Kind::lanes}}};
    EXPECT_EQ(compile_run({&load, 1}, 32), nullptr);
    EXPECT_EQ(compile_run({&load, 1}, 64), nullptr);
}

/// Steps of rms_norm, which the build lists, and which are no machine code: a sum over lanes.
TEST(CompiledRuns, AreThoseOfNormsAndTakeSlicesOfARow) {
    std::vector<FusedShape> shapes = {{{Op::load, DType::f32}, {FusedPlace{Kind::lanes}}},
                                      {{Op::mul, DType::f32}, {FusedPlace{Kind::lanes}}},
                                      {{Op::reduce, DType::f32}, {}}};
    for (const Kernels* table : available_kernels()) {
        if (!table->fused.run) continue;
        const auto run = table->fused.compiled(shapes);
        EXPECT_NE(run, nullptr) << table->name;
        std::vector<FusedShape> slices = shapes;
        slices[0].place[0].base = slices[1].place[0].base = 0;
        slices[1].place[0].shift = 1;
        EXPECT_EQ(table->fused.compiled(slices), run) << table->name;
        slices[1].key.op = Op::max;
        EXPECT_EQ(table->fused.compiled(slices), nullptr) << table->name;
    }
}

INSTANTIATE_TEST_SUITE_P(Tables, RunCompiler, testing::ValuesIn(available_kernels()),
                         [](const auto& table) { return std::string(table.param->name); });

/// Fills the memo of runs, and so comes last: tests with parameters run in their order here.
class RunCompilerMemo : public testing::TestWithParam<int> {};

TEST_P(RunCompilerMemo, KeepsFourThousandRuns) {
    const FusedShape load{{Op::load, DType::f32}, {FusedPlace{Kind::lanes}}};
    const int bytes = kernels().vector_bytes;
    if (!kernels().fused.run || !compile_run({&load, 1}, bytes)) {
        GTEST_SKIP() << "no code at run time";
    }
    for (unsigned seed = 0; seed < 5000; ++seed) compile_run(RandomRun(seed).shapes, bytes);
    const auto counts = cache_counts();
    const auto runs = std::find_if(counts.begin(), counts.end(), [](const CacheCount& each) {
        return each.name == "machine code of CPU programs";
    });
    ASSERT_NE(runs, counts.end());
    EXPECT_EQ(runs->entries, 4096U);
    EXPECT_EQ(runs->evictions, 0U);
    EXPECT_NE(compile_run({&load, 1}, bytes), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Last, RunCompilerMemo, testing::Values(0));

}  // namespace
}  // namespace tilewright::cpu
