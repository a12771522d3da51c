// The contents of a plan for a user's CUDA kernel, all of which its text holds.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/runtime/compiler.h"
#include "cuda/runtime/kernel.h"
#include "tilewright/cuda_kernel.h"
#include "tilewright/program.h"

namespace tilewright::run {

struct PlannedArray {
    std::string name;
    TensorType type;  ///< of a single batch element
};

/// A parameter that is passed by value.
struct PlannedAttribute {
    std::string name;
    std::string check;  ///< a C++ condition on `P`, the parameter's type
    std::string wants;  ///< the same in words: "an f32"
    std::string bytes;
};

struct PlannedLaunch {
    std::string kernel;  ///< including template arguments: "f<float, 3>"
    std::array<std::int64_t, 3> grid{1, 1, 1}, block{1, 1, 1}, cluster{1, 1, 1};
    std::int64_t shared_bytes = 0;
};

struct PlannedBatch {
    std::int64_t size = 0;
    std::vector<bool> mapped;  ///< for each input; outputs always are
};

struct PlanData {
    std::string name, file, source;
    std::vector<cuda::Header> headers;
    std::vector<std::string> options;
    std::vector<PlannedArray> inputs, outputs;
    std::optional<std::int64_t> workspace_bytes;
    bool clear_workspace = false, batch_in_grid = false;
    std::vector<PlannedAttribute> attributes;
    std::vector<PlannedLaunch> launches;
    std::optional<CpuFunction> cpu;
    std::vector<PlannedBatch> batches;  ///< innermost first
};

std::string to_text(const PlanData& plan);
PlanData parse_plan(std::string_view text);

/// The source, followed by checks of the kernels' parameters, and how to compile it.
cuda::CompileRequest compile_request(const PlanData& plan, const std::string& arch);

/// UserError unless a GPU allows this many blocks and threads.
void check_launch(const std::string& op, const PlannedLaunch& launch);

}  // namespace tilewright::run

namespace tilewright {

struct CudaPlan::State {
    explicit State(run::PlanData data);

    run::PlanData plan;
    std::string text;
    std::vector<TensorType> inputs, outputs;  ///< including batch dimensions

    mutable std::mutex mutex;
    mutable std::map<int, std::vector<cuda::Kernel>> kernels;  ///< by device
    mutable std::optional<Program> program;                    ///< for the CPU
};

}  // namespace tilewright
