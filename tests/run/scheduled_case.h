// Kernels of the scheduled form on the host emulation, with the reference machine's results, and
// with faults.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "cpu/interpreter.h"
#include "cuda/codegen/launch_arguments.h"
#include "cuda/schedule/print_cuda.h"
#include "cuda/schedule/schedule.h"
#include "ir/parse.h"
#include "tests/cuda/emulate.h"
#include "tests/run/cuda_arrays.h"
#include "tests/run/cuda_programs.h"
#include "tests/run/scheduled_programs.h"

namespace tilewright::testing_support {

/// A program with its arrays, the reference results, and its kernel.
struct Case {
    explicit Case(const CudaProgram& of, bool copies = false,
                  std::optional<cuda::schedule::Choice> choice = std::nullopt,
                  bool without_wgmma = false)
        : program(of),
          function(ir::parse(of.text)),
          expected(function, of.extents),
          got(function, of.extents) {
        expected.arguments.grid = got.arguments.grid =
            program.grid.empty() ? function.grid : program.grid;
        expected.poison_output();
        cpu::interpret(function, expected.arguments);
        cuda::Target target = cuda::target_of(without_wgmma ? "sm_80" : "sm_90a");
        target.facts = cuda::facts_of(function, got.arguments, copies);
        target.choice = choice;
        if (without_wgmma) {
            function = cuda::prepare(std::move(function));
            kernel = cuda::generate(function, target);
        } else {
            kernel = cuda::schedule::print_cuda(cuda::schedule::schedule(function, target));
        }
    }
    /// The error of the last array, the output, which is poisoned before the run.
    double error(const EmulatedKernels& emulated, std::size_t index, unsigned seed) {
        got.poison_output();
        cuda::LaunchArguments arguments(function, got.arguments, &kernel);
        emulated.run(index, arguments, seed);
        return relative_error(function, program.extents.size() - 1, expected, got);
    }

    CudaProgram program;
    ir::Function function;
    ProgramArrays expected, got;
    cuda::Generated kernel;
};

/// Products whose rows and columns of tiles end in the middle of a block, of a tile, of a pair.
inline std::vector<CudaProgram> uneven_products() {
    const std::string relu =
        "%e = expand_dims %bias axis 0 : bf16[1, 256]\n%b2 = broadcast %e : bf16[128, 256]\n"
        "%bf = cast %b2 : f32[128, 256]\n%s = add %d, %bf : f32[128, 256]\n"
        "%zero = constant 0 : f32[128, 256]\n%g = max %s, %zero : f32[128, 256]\n"
        "%q = cast %g : bf16[128, 256]";
    const std::string rest = with_shapes(
        "%fr = cast %rest : f32TILE\n%s = add %d, %fr : f32TILE\n%q = cast %s : bf16TILE", 128,
        256);
    const std::string wide =
        with_shapes("%fr = cast %rest : f32TILE\n%q = add %d, %fr : f32TILE", 128, 256);
    const std::string positions = with_shapes(
        "%r = iota axis 0 : i32TILE\n%c = iota axis 1 : i32TILE\n%below = ge %r, %c : boolTILE\n"
        "%none = constant 0 : f32TILE\n%g = select %below, %d, %none : f32TILE\n"
        "%q = cast %g : bf16TILE",
        128, 256);
    return {product({"uneven", 328, 520, 200, 256, 256}),
            product({.name = "with a bias",
                     .m = 200,
                     .n = 648,
                     .k = 328,
                     .bm = 128,
                     .bn = 256,
                     .epilogue = relu,
                     .bias = true}),
            product({.name = "transposed",
                     .m = 392,
                     .n = 264,
                     .k = 136,
                     .bm = 64,
                     .bn = 64,
                     .out = "f32",
                     .transpose_a = true,
                     .transpose_b = true}),
            product({.name = "tf32",
                     .m = 392,
                     .n = 264,
                     .k = 136,
                     .bm = 64,
                     .bn = 64,
                     .in = "f32",
                     .out = "f32",
                     .tolerance = 2e-3}),
            product({.name = "with a residual",
                     .m = 392,
                     .n = 648,
                     .k = 136,
                     .bm = 128,
                     .bn = 256,
                     .epilogue = rest,
                     .rest = true}),
            product({.name = "f32 residual of f16",
                     .m = 392,
                     .n = 648,
                     .k = 136,
                     .bm = 128,
                     .bn = 256,
                     .in = "f16",
                     .out = "f32",
                     .epilogue = wide,
                     .rest = true}),
            product({.name = "positions of rows and columns",
                     .m = 392,
                     .n = 648,
                     .k = 136,
                     .bm = 128,
                     .bn = 256,
                     .epilogue = positions}),
            product({.name = "integers",
                     .m = 392,
                     .n = 648,
                     .k = 400,
                     .bm = 128,
                     .bn = 256,
                     .in = "i8",
                     .out = "i32",
                     .transpose_b = true})};
}

/// Whether a kernel is wrong or does not end under one of a few schedules of threads.
inline bool is_caught(Case& of, const EmulatedKernels& emulated, std::size_t index) {
    for (unsigned seed = 1; seed <= 4; ++seed) {
        const pid_t child = ::fork();
        if (child == 0) {
            // Hides the emulation's report on a fault that was injected on purpose.
            if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(2);
            ::_exit(of.error(emulated, index, seed) <= of.program.relative ? 0 : 1);
        }
        int status = 0;
        ::waitpid(child, &status, 0);
        if (status != 0) return true;
    }
    return false;
}

/// A kernel and its texts with one fault each.
class Faults {
  public:
    explicit Faults(const CudaProgram& program,
                    std::optional<cuda::schedule::Choice> choice = std::nullopt,
                    bool without_wgmma = false)
        : of(program, false, choice, without_wgmma), source(of.kernel.source) {
        kernels.push_back(of.kernel);
        names.emplace_back("none");
    }
    /// Replaces the next occurrence of `words` after `from` by `by`.
    void plant(const char* name, const std::string& words, const std::string& by,
               std::size_t from) {
        const std::size_t at = source.find(words, from);
        ASSERT_NE(at, std::string::npos) << words << "\n" << source;
        add(name, at, words.size(), by);
    }
    /// Removes the line of the next occurrence of `words`.
    void leave_out(const char* name, const std::string& words, std::size_t from) {
        const std::size_t at = source.find(words, from);
        ASSERT_NE(at, std::string::npos) << words << "\n" << source;
        const std::size_t begin = source.rfind('\n', at) + 1;
        add(name, begin, source.find('\n', at) + 1 - begin, "");
    }
    void expect_all_seen() {
        const EmulatedKernels emulated(kernels);
        for (std::size_t i = 0; i < kernels.size(); ++i) {
            EXPECT_EQ(is_caught(of, emulated, i), i > 0) << names[i];
        }
    }

    Case of;
    const std::string source;

  private:
    void add(const char* name, std::size_t at, std::size_t size, const std::string& by) {
        kernels.push_back(of.kernel);
        kernels.back().source.replace(at, size, by);
        names.emplace_back(name);
    }

    std::vector<cuda::Generated> kernels;
    std::vector<std::string> names;
};

}  // namespace tilewright::testing_support
