// Random programs: the text form is exact, and no pass changes what a program computes.
#include <gtest/gtest.h>

#include "cpu/interpreter.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "tests/support/random_program.h"

namespace tilewright::testing {
namespace {

constexpr std::uint64_t kPrograms = 400;

TEST(RandomPrograms, AreReproducible) {
    EXPECT_EQ(ir::print(random_program(5)), ir::print(random_program(5)));
    EXPECT_NE(ir::print(random_program(5)), ir::print(random_program(6)));
}

TEST(RandomPrograms, CoverEveryOp) {
    std::vector<int> seen(ir::kNumOps);
    for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
        const ir::Function f = random_program(seed);
        ir::walk(f.body, [&](const ir::Instruction& i) { ++seen[static_cast<std::size_t>(i.op)]; });
    }
    // Ops that depend on the caller or on other programs are tested elsewhere.
    for (ir::Op op : {ir::Op::num_programs, ir::Op::extent, ir::Op::atomic_xchg, ir::Op::atomic_cas,
                      ir::Op::debug_print, ir::Op::debug_check}) {
        seen[static_cast<std::size_t>(op)] = 1;
    }
    for (int i = 0; i < ir::kNumOps; ++i) {
        EXPECT_GT(seen[static_cast<std::size_t>(i)], 0) << ir::name(static_cast<ir::Op>(i));
    }
}

TEST(RandomPrograms, TextRoundTrips) {
    for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
        const ir::Function f = random_program(seed);
        const std::string text = ir::print(f);
        const ir::Function back = ir::parse(text);
        ASSERT_EQ(ir::print(back), text) << "seed " << seed;
        ASSERT_TRUE(ir::equal(f, back)) << "seed " << seed;
    }
}

TEST(RandomPrograms, PassesKeepTheirMeaning) {
    int proved = 0;
    for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
        const ir::Function f = random_program(seed);
        RandomArguments expected(f, seed), got(f, seed);
        cpu::interpret(f, expected.arguments());
        ir::Function optimised = f;
        ir::optimise(optimised, [&](std::string_view pass, const ir::Function& now, bool) {
            ASSERT_NO_THROW(ir::verify(now)) << "after " << pass << ", seed " << seed;
        });
        // Proofs by the bounds pass are checked as well.
        ir::walk(optimised.body, [&](const ir::Instruction& i) {
            const auto* access = std::get_if<ir::AccessAttributes>(&i.attributes);
            proved += access != nullptr && access->in_bounds;
        });
        cpu::interpret(optimised, got.arguments());
        ASSERT_EQ(first_difference(f, expected, got), -1) << "seed " << seed << "\n"
                                                          << ir::print(f) << "\n"
                                                          << ir::print(optimised);
    }
    EXPECT_GT(proved, 100);
}

}  // namespace
}  // namespace tilewright::testing
