// Generated CUDA, on the host emulation of a thread block, gives the results of the reference
// machine: random programs, and programs for each path of code generation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/interpreter.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "lang/trace.h"
#include "run/executable.h"
#include "tests/cuda/emulate.h"
#include "tests/run/cuda_arrays.h"
#include "tests/run/cuda_programs.h"
#include "tests/run/random_products.h"
#include "tests/support/portable_program.h"
#include "tests/support/seeds.h"
#include "tests/support/sources.h"
#include "tilewright/lang.h"

namespace tilewright {
namespace {

using tilewright::testing::difference;
using tilewright::testing::PortableProgram;
using Buffers = std::vector<std::vector<std::byte>>;

TEST(CudaEmulated, RandomProgramsGiveWhatTheReferenceGives) {
    TW_REQUIRE_SOURCES();
    constexpr std::uint64_t kTogether = 20;  // compiled at once
    const tilewright::testing::Seeds seeds = tilewright::testing::seeds(60);
    for (std::uint64_t begin = seeds.begin; begin < seeds.end; begin += kTogether) {
        const std::uint64_t end = std::min(seeds.end, begin + kTogether);
        std::vector<PortableProgram> programs;
        std::vector<ir::Function> prepared;
        std::vector<Buffers> buffers;
        std::vector<cuda::Generated> kernels;
        for (std::uint64_t seed = begin; seed < end; ++seed) {
            SCOPED_TRACE(fmt::format("TILEWRIGHT_TEST_SEED={}", seed));
            programs.push_back(tilewright::testing::portable_program(seed));
            buffers.push_back(tilewright::testing::portable_buffers(programs.back(), seed));
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
                << "TILEWRIGHT_TEST_SEED=" << begin + i << "\n"
                << ir::print(programs[i].function);
        }
    }
}

TEST(CudaEmulated, RandomProductsGiveWhatTheTileMachineGives) {
    TW_REQUIRE_SOURCES();
    const tilewright::testing::Seeds seeds = tilewright::testing::seeds(12);
    std::vector<testing_support::CudaProgram> programs;
    std::vector<ir::Function> functions, prepared;
    std::vector<std::unique_ptr<testing_support::ProgramArrays>> expected, got;
    std::vector<cuda::Generated> kernels;
    for (std::uint64_t seed = seeds.begin; seed < seeds.end; ++seed) {
        programs.push_back(testing_support::RandomProduct(seed).program());
        SCOPED_TRACE(programs.back().name);
        functions.push_back(ir::parse(programs.back().text));
        const ir::Function& function = functions.back();
        for (auto* arrays : {&expected, &got}) {
            arrays->push_back(std::make_unique<testing_support::ProgramArrays>(
                function, programs.back().extents));
            arrays->back()->arguments.grid = function.grid;
            arrays->back()->poison_output();
        }
        run::make_host_executable(function)->run(expected.back()->arguments);
        cuda::Target target = cuda::target_of("sm_90a");
        prepared.push_back(cuda::prepare(function));
        target.facts = cuda::facts_of(prepared.back(), got.back()->arguments,
                                      cuda::schedule::may_copy(function, target.arch));
        kernels.push_back(cuda::schedule::generate_best(function, target));
    }
    const testing_support::EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < kernels.size(); ++i) {
        cuda::LaunchArguments arguments(prepared[i], got[i]->arguments, &kernels[i]);
        emulated.run(i, arguments, static_cast<unsigned>(i));
        EXPECT_EQ(
            relative_error(functions[i], programs[i].extents.size() - 1, *expected[i], *got[i]), 0)
            << programs[i].name << "\n"
            << programs[i].text;
    }
}

TEST(CudaEmulated, ProgramsOfEveryPathGiveWhatTheReferenceGives) {
    TW_REQUIRE_SOURCES();
    const auto programs = testing_support::cuda_programs();
    std::vector<ir::Function> functions, prepared;
    std::vector<cuda::Generated> kernels;
    std::vector<std::size_t> of;
    for (std::size_t i = 0; i < programs.size(); ++i) {
        SCOPED_TRACE(programs[i].name);
        // Only one product in three; a GPU runs them all.
        functions.push_back(ir::parse(programs[i].text));
        const bool cut = programs[i].name.find("cut") != std::string::npos;
        const bool always = cut || programs[i].name.find("rows") != std::string::npos;
        for (bool vectors : {true, false}) {
            if (!always && (i % 3 != 0 || (!vectors && i % 4 != 0))) continue;
            if (cut && vectors) continue;  // rows of 257 halves are not aligned
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

// Loops whose induction variable would wrap after the last iteration: plain, with loads that are
// issued an iteration ahead into registers, and with copies streamed into shared memory.
TEST(CudaEmulated, LoopsWithHugeStepsEnd) {
    TW_REQUIRE_SOURCES();
    const std::string bounds = R"(
  %low = constant 0 : i64
  %high = constant 9223372036854775807 : i64
  %step = constant 4611686018427387904 : i64
  %one = constant 1 : i64
)";
    const std::vector<testing_support::CudaProgram> programs = {
        {"plain",
         "func @plain(%z: ref<i64[4]>) grid [] {" + bounds + R"(
  %n = for_loop %iv = %low, %high, %step carry (%c = %low) : i64 {
    store %z[%c], %iv
    %d = add %c, %one : i64
    yield %d
  }
  %last = constant 3 : i64
  store %z[%last], %n
  yield
})",
         {{4}}},
        {"ahead",
         "func @ahead(%x: ref<f32[4, 256]>, %z: ref<f32[4, 256]>) grid [] {" + bounds + R"(
  %n = for_loop %iv = %low, %high, %step carry (%c = %low) : i64 {
    %t = load %x[%iv, %low : 256] : f32[256]
    store %z[%c, %low : 256], %t
    %d = add %c, %one : i64
    yield %d
  }
  yield
})",
         {{4, 256}, {4, 256}}},
        {"streamed",
         "func @streamed(%a: ref<f16[32, 64]>, %b: ref<f16[64, 32]>, %z: ref<f32[32, 32]>) grid [] "
         "num_stages 4 {" +
             bounds + R"(
  %zero = constant 0 : f32[32, 32]
  %sum = for_loop %iv = %low, %high, %step carry (%c = %zero) : f32[32, 32] {
    %x = load %a[%low : 32, %iv : 32] : f16[32, 32]
    %y = load %b[%iv : 32, %low : 32] : f16[32, 32]
    %d = dot %x, %y, %c : f32[32, 32]
    yield %d
  }
  store %z[%low : 32, %low : 32], %sum
  yield
})",
         {{32, 64}, {64, 32}, {32, 32}},
         1e-6}};
    std::vector<ir::Function> functions, prepared;
    std::vector<cuda::Generated> kernels;
    for (const auto& program : programs) {
        functions.push_back(ir::parse(program.text));
        prepared.push_back(cuda::prepare(functions.back()));
        cuda::Target target = cuda::target_of("sm_80");
        target.facts.assign(program.extents.size(), {.vectors = true, .dense = true});
        kernels.push_back(cuda::generate(prepared.back(), target));
        ASSERT_NE(kernels.back().source.find("next_index("), std::string::npos) << program.name;
    }
    EXPECT_NE(kernels[1].source.find("// the next iteration's"), std::string::npos);
    EXPECT_NE(kernels[2].source.find("of 4 stages"), std::string::npos);
    const testing_support::EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < programs.size(); ++i) {
        testing_support::ProgramArrays expected(functions[i], programs[i].extents),
            got(functions[i], programs[i].extents);
        cpu::interpret(functions[i], expected.arguments);
        cuda::LaunchArguments arguments(prepared[i], got.arguments);
        emulated.run(i, arguments, 0);
        for (std::size_t a = 0; a < programs[i].extents.size(); ++a) {
            EXPECT_LE(relative_error(functions[i], a, expected, got), programs[i].relative)
                << programs[i].name << " array " << a;
        }
    }
}

// Sorting, indices and user-defined operators: loops over scratch memory, slices and
// concatenations.
TEST(CudaEmulated, SortsAndCombines) {
    TW_REQUIRE_SOURCES();
    using Role = lang::Parameter::Role;
    const auto array = [](const char* name, Role role, DType dtype,
                          std::vector<std::int64_t> extents) {
        return lang::Parameter{name, role, dtype, std::move(extents), {}, -1, role == Role::output};
    };
    struct Case {
        ir::Function function;
        std::vector<std::vector<std::int64_t>> extents;
    };
    std::vector<Case> cases;
    // Lines that are filled up to a power of two, words of every kind; counts of which runs of 8,
    // 16, 32 and 64 are kept, and for which whole lines are sorted.
    const std::tuple<DType, std::int64_t, std::int64_t> inputs[] = {
        {f32, 77, 5}, {bf16, 96, 13}, {i64, 77, 20}, {u8, 5, 5}, {f64, 300, 40}, {i32, 500, 1}};
    for (const auto& [dtype, n, count] : inputs) {
        lang::Signature signature;
        signature.parameters = {array("x", Role::input, dtype, {3, n}),
                                array("places", Role::output, i32, {3, n}),
                                array("down", Role::output, dtype, {3, n}),
                                array("top", Role::output, dtype, {3, count}),
                                array("first", Role::output, i32, {3, count})};
        cases.push_back(
            {lang::trace(kernel("order",
                                [k = count](Ref x, Ref places, Ref down, Ref top, Ref first) {
                                    places.store(argsort(x.load()));
                                    down.store(sort(x.load(), 0, true));
                                    const auto [values, at] = top_k(x.load(), k);
                                    top.store(values);
                                    first.store(at);
                                }),
                         signature),
             {{3, n}, {3, n}, {3, n}, {3, count}, {3, count}}});
    }
    lang::Signature signature;
    signature.parameters = {
        array("m", Role::input, i32, {3, 77}), array("c", Role::input, i32, {3, 77}),
        array("up", Role::output, i32, {3, 77}), array("all", Role::output, i32, {77})};
    const auto then = [](auto f, auto g) {
        return std::pair(f.first * g.first, f.second * g.first + g.second);
    };
    cases.push_back({lang::trace(kernel("maps",
                                        [=](Ref m, Ref c, Ref up, Ref all) {
                                            const auto maps = std::pair(m.load(), c.load());
                                            up.store(associative_scan(then, maps, 1, true).second);
                                            all.store(reduce(then, maps).second);
                                        }),
                                 signature),
                     {{3, 77}, {3, 77}, {3, 77}, {77}}});
    std::vector<ir::Function> prepared;
    std::vector<cuda::Generated> kernels;
    for (const Case& made : cases) {
        prepared.push_back(cuda::prepare(made.function));
        cuda::Target target = cuda::target_of("sm_90a");
        target.facts.assign(made.extents.size(), {true, true});
        kernels.push_back(cuda::generate(prepared.back(), target));
    }
    const testing_support::EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        testing_support::ProgramArrays expected(cases[i].function, cases[i].extents),
            got(cases[i].function, cases[i].extents);
        cpu::interpret(cases[i].function, expected.arguments);
        cuda::LaunchArguments arguments(prepared[i], got.arguments);
        emulated.run(i, arguments, 1);
        for (std::size_t a = 0; a < cases[i].extents.size(); ++a) {
            EXPECT_EQ(relative_error(cases[i].function, a, expected, got), 0)
                << cases[i].function.name << " array " << a;
        }
    }
}

TEST(CudaEmulated, KernelsPrintScalarsAndTilesOfEveryKind) {
    TW_REQUIRE_SOURCES();
    std::vector<cuda::Generated> kernels;
    std::vector<ir::Function> prepared;
    for (const DType dtype : {f32, bf16, f8e5m2, f64, u8, i64, boolean}) {
        const bool truth = dtype == boolean;
        prepared.push_back(ir::parse(fmt::format(R"(
func @print() grid [] {{
  %n = constant {2} : {0}
  %i = iota axis 1 : i32[2, 3]
  %j = iota axis 0 : i32[2, 3]
  %two = constant 2 : i32[2, 3]
  %k = {1} %j, %two : {3}[2, 3]
  %x = cast %i : {0}[2, 3]
  %t = cast %k : {0}[2, 3]
  debug_print %n, %x, %t text "{{}} of \"%\": {{}}, {{}}!\n"
  yield
}}
)",
                                                 name(dtype), truth ? "lt" : "mul",
                                                 truth ? "true" : "3", truth ? "bool" : "i32")));
        kernels.push_back(cuda::generate(prepared.back(), cuda::target_of("sm_90a")));
    }
    const testing_support::EmulatedKernels emulated(kernels);
    for (std::size_t i = 0; i < kernels.size(); ++i) {
        cuda::LaunchArguments arguments(prepared[i], {});
        ::testing::internal::CaptureStdout();
        emulated.run(i, arguments, static_cast<unsigned>(i));
        EXPECT_EQ(::testing::internal::GetCapturedStdout(),
                  i < 6 ? "3 of \"%\": [0, 1, 2, 0, 1, 2], [0, 0, 0, 2, 2, 2]!\n\n"
                        : "1 of \"%\": [0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1]!\n\n")
            << kernels[i].source;
    }
}

}  // namespace
}  // namespace tilewright
