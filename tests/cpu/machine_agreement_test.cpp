// Property test: portable random programs give the same on the tile machine as on the reference
// machine, as built, optimised, printed and parsed, and have nothing that the checked mode reports.
// docs/testing.md says how to rerun a seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>

#include "cpu/interpreter.h"
#include "cpu/machine.h"
#include "cpu/simd/kernels.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "tests/support/portable_program.h"
#include "tests/support/tolerance.h"

namespace tilewright::cpu {
namespace {

using tilewright::testing::PortableProgram;
using Buffers = std::vector<std::vector<std::byte>>;

/// The seeds to run: TILEWRIGHT_TEST_SEED alone, or the first TILEWRIGHT_TEST_PROGRAMS ones.
std::vector<std::uint64_t> seeds() {
    if (const char* seed = std::getenv("TILEWRIGHT_TEST_SEED")) {
        return {std::strtoull(seed, nullptr, 10)};
    }
    const char* count = std::getenv("TILEWRIGHT_TEST_PROGRAMS");
    std::vector<std::uint64_t> result(count == nullptr ? 500 : std::strtoull(count, nullptr, 10));
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = i;
    return result;
}

/// The first element that differs by more than its array allows; empty when there is none.
std::string difference(const PortableProgram& program, const Buffers& expected,
                       const Buffers& got) {
    for (std::size_t a = 0; a < program.arrays.size(); ++a) {
        const auto& array = program.arrays[a];
        const auto size = static_cast<std::size_t>(size_of(array.dtype));
        for (std::size_t i = 0; i < expected[a].size(); i += size) {
            const std::byte* want = expected[a].data() + i;
            const std::byte* have = got[a].data() + i;
            const double error = is_float(array.dtype)
                                     ? tilewright::testing::ulp_distance(array.dtype, want, have)
                                 : std::equal(want, want + size, have) ? 0
                                                                       : INFINITY;
            if (!(error <= array.ulps)) {
                const auto value = [&](const std::byte* element) {
                    return ir::print_element(array.dtype, ir::read_element(array.dtype, element));
                };
                return fmt::format(
                    "parameter %{} element {}: expected {} but got {}, {} ulp off, "
                    "allowed {}",
                    a, i / size, value(want), value(have), error, array.ulps);
            }
        }
    }
    return "";
}

/// What goes wrong with the program of a seed; empty when all agree.
std::string disagreement(std::uint64_t seed) {
    const PortableProgram program = tilewright::testing::portable_program(seed);
    ir::verify(program.function);
    const Buffers start = tilewright::testing::portable_buffers(program, seed);
    Buffers expected = start;
    interpret(program.function, arguments_of(program, expected));

    CheckOptions options;
    options.bounds = false;  // lanes outside that read 0 are no accident in these programs
    for (const auto& array : program.arrays) options.outputs.push_back(array.is_output);
    Buffers checked = start;
    interpret_checked(program.function, arguments_of(program, checked), options);
    if (const auto text = difference(program, expected, checked); !text.empty()) {
        return "in checked mode: " + text;
    }

    const auto on_machine = [&](const ir::Function& function) {
        Buffers buffers = start;
        run(*compile(function), arguments_of(program, buffers));
        return difference(program, expected, buffers);
    };
    if (const auto text = on_machine(program.function); !text.empty()) return "as built: " + text;

    ir::Function optimised = program.function;
    ir::optimise(optimised);
    ir::verify(optimised);
    if (const auto text = on_machine(optimised); !text.empty()) return "optimised: " + text;

    const ir::Function parsed = ir::parse(ir::print(program.function));
    Buffers again = start;
    interpret(parsed, arguments_of(program, again));
    if (const auto text = difference(program, expected, again); !text.empty()) {
        return "printed and parsed, on the reference machine: " + text;
    }
    return "";
}

/// A run that asks for a table which this machine lacks skips all its tests.
class AskedTable : public ::testing::Environment {
    void SetUp() override {
        const char* table = std::getenv("TILEWRIGHT_TARGET");
        if (table != nullptr && find_kernels(table) == nullptr)
            GTEST_SKIP() << "no kernel table " << table << " here";
    }
};
const ::testing::Environment* const kAskedTable =
    ::testing::AddGlobalTestEnvironment(new AskedTable);

TEST(MachineAgreement, PortablePrograms) {
    const std::vector<std::uint64_t> all = seeds();
    for (const std::uint64_t seed : all) {
        std::string text;
        try {
            text = disagreement(seed);
        } catch (const std::exception& error) {
            text = error.what();
        }
        if (text.empty()) continue;
        ADD_FAILURE() << "TILEWRIGHT_TEST_SEED=" << seed << " with table " << kernels().name << ": "
                      << text;
        if (all.size() == 1) {
            std::cerr << ir::print(tilewright::testing::portable_program(seed).function);
        }
    }
}

TEST(MachineAgreement, ProgramsCoverEveryOp) {
    std::set<ir::Op> seen;
    const auto look = [&](const auto& self, const ir::Function& function) -> void {
        ir::walk(function.body, [&](const ir::Instruction& instruction) {
            seen.insert(instruction.op);
            if (instruction.op == ir::Op::call) {
                self(self, *instruction.get<ir::CallAttributes>().callee);
            }
        });
    };
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        look(look, tilewright::testing::portable_program(seed).function);
    }
    for (int i = 0; i < ir::kNumOps; ++i) {
        const auto op = static_cast<ir::Op>(i);
        // Exchanges depend on the order of programs, and debug ops have no result.
        const bool left_out = op == ir::Op::atomic_xchg || op == ir::Op::atomic_cas ||
                              op == ir::Op::debug_print || op == ir::Op::debug_check;
        EXPECT_NE(seen.count(op) != 0, left_out) << ir::name(op);
    }
}

}  // namespace
}  // namespace tilewright::cpu
