// Writes cpu/simd/compiled_runs.inl: the fused runs that norms and softmax are lowered to.
//
// usage: generate_compiled_runs FILE            writes it
//        generate_compiled_runs --check FILE status 1 if it differs from what would be written
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/builtin.h"
#include "cpu/bytecode.h"
#include "cpu/machine.h"
#include "cpu/simd/kernels.h"
#include "ir/parse.h"
#include "ir/passes/pipeline.h"
#include "norm/programs.h"

namespace tilewright::cli {
namespace {

using cpu::FusedKey;
using cpu::FusedPlace;
using cpu::FusedShape;
using ir::Op;
using Kind = FusedPlace::Kind;

constexpr int kCurrent = 0, kDiffers = 1, kFailed = 2, kNoRuns = 77;

std::string text_of(DType dtype) {
    return fmt::format("DType::{}", name(dtype));
}

std::string text_of(const FusedPlace& place) {
    if (place.kind == Kind::temporary) return fmt::format("kept({})", place.temporary);
    return place.kind == Kind::splat ? "kSplat" : "kInLanes";
}

/// A step in terms of the functions of vector_compiled_runs.cpp; nullopt if they do not cover it.
std::optional<std::string> step_text(const FusedShape& shape) {
    const FusedKey& key = shape.key;
    const FusedPlace &first = shape.place[0], &second = shape.place[1];
    switch (key.op) {
        case Op::load:
        case Op::store: {
            const bool loads = key.op == Op::load;
            if (first.kind == Kind::temporary)
                return fmt::format("{}({})", loads ? "take" : "keep", first.temporary);
            if (first.kind != Kind::lanes || size_of(key.in) > 4 || !is_float(key.in)) return {};
            return fmt::format("{}({})", ir::name(key.op), text_of(key.in));
        }
        case Op::reduce:
            if (key.reduction != ir::Reduction::sum && key.reduction != ir::Reduction::max)
                return {};
            return fmt::format("reduce(ir::Reduction::{})", ir::name(key.reduction));
        case Op::add:
        case Op::sub:
        case Op::mul:
            if (key.in != DType::f32 || key.out != DType::f32) return {};
            if (key.value == FusedKey::kBoth) return fmt::format("both(Op::{})", ir::name(key.op));
            return fmt::format("binary(Op::{}, {}{})", ir::name(key.op), text_of(first),
                               key.value == 0 ? "" : fmt::format(", {}", key.value));
        case Op::fma:
            if (key.in != DType::f32 || key.value != 0) return {};
            return fmt::format("fma_with({}, {})", text_of(first), text_of(second));
        case Op::exp:
            return key.in == DType::f32 ? std::optional<std::string>("exponential()")
                                        : std::nullopt;
        default:
            return {};
    }
}

struct Run {
    std::vector<FusedShape> shapes;
    std::string text, programs;
};

/// Collects the runs of programs, each once.
class Runs {
  public:
    void add(const std::string& program, const Call& call, const std::vector<Tensor>& inputs) {
        ir::Function function = ir::parse(fixed(call).ir(inputs));
        ir::optimise(function);
        const std::shared_ptr<const cpu::Program> compiled = cpu::compile(function);
        for (const cpu::Instruction& instruction : compiled->code) {
            const auto* const chain = std::get_if<cpu::Chain>(&instruction);
            if (chain == nullptr) continue;
            for (const cpu::FusedRun& run : chain->fused) {
                if (run.forms.empty()) add(program, run.shapes);
            }
        }
    }

    std::string text() const {
        std::string text =
            "// Runs of steps that are functions of their own, and the programs that have them.\n"
            "// Generated: `cmake --build build --target update_compiled_runs`.\n"
            "// clang-format off\n";
        for (std::size_t i = 0; i < runs_.size(); ++i) {
            text += fmt::format("// {}\nTW_COMPILED_RUN(kRun{}{})\n", runs_[i].programs, i,
                                runs_[i].text);
        }
        return text + "// clang-format on\n";
    }

  private:
    void add(const std::string& program, const std::vector<FusedShape>& shapes) {
        std::string text;
        for (const FusedShape& shape : shapes) {
            const std::optional<std::string> step = step_text(shape);
            if (!step) return;
            text += ",\n    " + *step;
        }
        for (Run& run : runs_) {
            if (run.shapes != shapes) continue;
            if (!run.programs.ends_with(program)) run.programs += ", " + program;
            return;
        }
        runs_.push_back({shapes, text, program});
    }

    std::vector<Run> runs_;
};

/// Adds the steps for long rows, which no built-in program has.
void add_long_rows(Runs& runs, DType dtype, bool layer) {
    const std::int64_t n = 2 * norm::kLongestTile, rows = 4;
    const norm::Options options{.layer = layer,
                                .weight = true,
                                .bias = layer,
                                .n = n,
                                .eps = 1e-5,
                                .output = dtype,
                                .parts = 1};
    const Tensor x = Tensor::zeros(dtype, {rows, n}), weight = Tensor::zeros(dtype, {n}),
                 row = Tensor::zeros(f32, {rows}), none;
    const Tensor sums = Tensor::zeros(f32, {rows, norm::pieces(options)});
    const Tensor bias = layer ? weight : none, mean = layer ? row : none,
                 second = layer ? sums : none;
    const std::string label =
        fmt::format("{} of long rows {}", layer ? "layer_norm" : "rms_norm", name(dtype));
    runs.add(label, norm::row_statistics(options), {x, none});
    runs.add(label, norm::forward_long(options), {x, weight, bias, none, sums, second});
    runs.add(label, norm::row_products(options), {x, x, row, mean, weight});
    runs.add(label, norm::backward_long(options), {x, x, row, mean, weight, none, sums, second});
}

std::string compiled_runs() {
    Runs runs;
    for (const DType dtype : {f32, bf16, f16}) {
        for (const char* program :
             {"softmax", "rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward"}) {
            const Builtin built = builtin(program, dtype, false);
            runs.add(fmt::format("{} {}", program, name(dtype)), built.call, built.inputs);
        }
        for (const bool layer : {false, true}) add_long_rows(runs, dtype, layer);
    }
    return runs.text();
}

int generate(int argc, char** argv) {
    const bool checks = argc == 3 && std::string_view(argv[1]) == "--check";
    if (argc != 2 && !checks) {
        fmt::print(stderr, "usage: generate_compiled_runs [--check] FILE\n");
        return kFailed;
    }
    if (cpu::kernels().fused.run == nullptr) {
        fmt::print(stderr, "generate_compiled_runs: this machine has no fused runs\n");
        return checks ? kNoRuns : kFailed;
    }
    const std::string text = compiled_runs();
    const char* const path = argv[argc - 1];
    if (!checks) {
        std::ofstream file(path);
        file << text;
        file.close();
        return file ? kCurrent : kFailed;
    }
    std::ifstream file(path);
    if (std::string(std::istreambuf_iterator<char>(file), {}) == text) return kCurrent;
    fmt::print(stderr,
               "{}: programs of norms or softmax are lowered to other runs; after review, "
               "`cmake --build build --target update_compiled_runs`\n",
               path);
    return kDiffers;
}

}  // namespace
}  // namespace tilewright::cli

int main(int argc, char** argv) {
    return tilewright::cli::generate(argc, argv);
}
