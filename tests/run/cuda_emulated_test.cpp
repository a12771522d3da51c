// Generated CUDA gives what the reference machine gives, on the host emulation of a thread block:
// random programs, and programs for each path of code generation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "cpu/interpreter.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "tests/cuda/emulate.h"
#include "tests/run/cuda_arrays.h"
#include "tests/run/cuda_programs.h"
#include "tests/support/portable_program.h"
#include "tests/support/tolerance.h"

namespace tilewright {
namespace {

using tilewright::testing::PortableProgram;
using Buffers = std::vector<std::vector<std::byte>>;

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
                return fmt::format("array {} element {}: expected {} but got {}, {} ulp off", a,
                                   i / size, value(want), value(have), error);
            }
        }
    }
    return "";
}

std::vector<std::uint64_t> seeds() {
    if (const char* seed = std::getenv("TILEWRIGHT_TEST_SEED")) {
        return {std::strtoull(seed, nullptr, 10)};
    }
    const char* count = std::getenv("TILEWRIGHT_TEST_PROGRAMS");
    std::vector<std::uint64_t> result(count == nullptr ? 20 : std::strtoull(count, nullptr, 10));
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = i;
    return result;
}

TEST(CudaEmulated, RandomProgramsGiveWhatTheReferenceGives) {
    constexpr std::size_t kTogether = 20;  // compiled at once
    const std::vector<std::uint64_t> all = seeds();
    for (std::size_t begin = 0; begin < all.size(); begin += kTogether) {
        const std::size_t end = std::min(all.size(), begin + kTogether);
        std::vector<PortableProgram> programs;
        std::vector<ir::Function> prepared;
        std::vector<Buffers> buffers;
        std::vector<cuda::Generated> kernels;
        for (std::size_t i = begin; i < end; ++i) {
            SCOPED_TRACE(fmt::format("TILEWRIGHT_TEST_SEED={}", all[i]));
            programs.push_back(tilewright::testing::portable_program(all[i]));
            buffers.push_back(tilewright::testing::portable_buffers(programs.back(), all[i]));
            prepared.push_back(cuda::prepare(programs.back().function));
            cuda::Target target = cuda::target_of("sm_90a");
            target.facts =
                cuda::facts_of(prepared.back(), arguments_of(programs.back(), buffers.back()));
            kernels.push_back(cuda::generate(prepared.back(), target));
        }
        const testing_support::EmulatedKernels emulated(kernels);
        for (std::size_t i = 0; i < programs.size(); ++i) {
            Buffers expected = buffers[i], got = buffers[i];
            cpu::interpret(programs[i].function, arguments_of(programs[i], expected));
            cuda::LaunchArguments arguments(prepared[i], arguments_of(programs[i], got));
            emulated.run(i, arguments, static_cast<unsigned>(i));
            EXPECT_EQ(difference(programs[i], expected, got), "")
                << "TILEWRIGHT_TEST_SEED=" << all[begin + i] << "\n"
                << ir::print(programs[i].function);
        }
    }
}

TEST(CudaEmulated, ProgramsOfEveryPathGiveWhatTheReferenceGives) {
    const auto programs = testing_support::cuda_programs();
    std::vector<ir::Function> functions, prepared;
    std::vector<cuda::Generated> kernels;
    std::vector<std::size_t> of;
    for (std::size_t i = 0; i < programs.size(); ++i) {
        SCOPED_TRACE(programs[i].name);
        // One in three here: a GPU runs them all.
        functions.push_back(ir::parse(programs[i].text));
        for (bool vectors : {true, false}) {
            if (i % 3 != 0 || (!vectors && i % 4 != 0)) continue;
            prepared.push_back(cuda::prepare(functions.back()));
            cuda::Target target = cuda::target_of("sm_90a");
            target.facts.assign(programs[i].extents.size(), {vectors, vectors});
            kernels.push_back(cuda::generate(prepared.back(), target));
            of.push_back(i);
        }
    }
    const testing_support::EmulatedKernels emulated(kernels);
    for (std::size_t v = 0; v < kernels.size(); ++v) {
        const auto& program = programs[of[v]];
        const ir::Function& function = functions[of[v]];
        testing_support::ProgramArrays expected(function, program.extents),
            got(function, program.extents);
        cpu::interpret(function, expected.arguments);
        cuda::LaunchArguments arguments(prepared[v], got.arguments);
        emulated.run(v, arguments, static_cast<unsigned>(v));
        for (std::size_t a = 0; a < program.extents.size(); ++a) {
            EXPECT_TRUE(relative_error(function, a, expected, got) <= program.relative)
                << program.name << (v == 0 || of[v - 1] != of[v] ? " vectors" : " strides")
                << " array " << a << ": " << relative_error(function, a, expected, got);
        }
    }
}

}  // namespace
}  // namespace tilewright
