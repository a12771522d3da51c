// Property test: portable random programs give the same results on the tile machine and the
// reference machine, as built, optimised, printed and parsed, and the checked mode reports nothing.
// docs/testing.md says how to rerun a seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

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
#include "tests/support/seeds.h"

namespace tilewright::cpu {
namespace {

using tilewright::testing::difference;
using tilewright::testing::PortableProgram;
using Buffers = std::vector<std::vector<std::byte>>;

/// What goes wrong with the program of a seed; empty if all results agree.
std::string disagreement(std::uint64_t seed) {
    const PortableProgram program = tilewright::testing::portable_program(seed);
    ir::verify(program.function);
    const Buffers start = tilewright::testing::portable_buffers(program, seed);
    Buffers expected = start;
    interpret(program.function, arguments_of(program, expected));

    CheckOptions options;
    options.bounds = false;  // these programs read 0 in lanes outside on purpose
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

/// If a run asks for a table that this machine does not support, all tests are skipped.
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
    const tilewright::testing::Seeds seeds = tilewright::testing::seeds(500);
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        std::string text;
        try {
            text = disagreement(seed);
        } catch (const std::exception& error) {
            text = error.what();
        }
        if (text.empty()) continue;
        ADD_FAILURE() << "TILEWRIGHT_TEST_SEED=" << seed << " with table " << kernels().name << ": "
                      << text;
        if (seeds.end - seeds.begin == 1) {
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
