// Runs plans of CUDA kernels: their launches on a GPU, or the function given for the CPU.
#include "run/cuda_plan.h"

#include <dlfcn.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "cuda/runtime/device.h"
#include "cuda/runtime/stream.h"
#include "run/cuda_memory.h"
#include "run/overlap.h"
#include "support/check.h"
#include "support/debug_log.h"
#include "tilewright/cpu_function.h"
#include "tilewright/dlpack.h"

namespace tilewright {
namespace run {
namespace {

std::int64_t size_of_shape(const std::vector<std::int64_t>& shape) {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// The types of whole arrays with their leading batch dimensions, outermost first.
std::vector<TensorType> types_with_batches(const PlanData& plan, bool inputs) {
    std::vector<TensorType> types;
    const std::vector<PlannedArray>& arrays = inputs ? plan.inputs : plan.outputs;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        TensorType type = arrays[i].type;
        for (const PlannedBatch& batch : plan.batches) {
            if (!inputs || batch.mapped[i]) type.shape.insert(type.shape.begin(), batch.size);
        }
        types.push_back(std::move(type));
    }
    return types;
}

/// Byte stride of each array along each batch; 0 where it has none.
std::vector<std::vector<std::int64_t>> batch_steps(const PlanData& plan) {
    std::vector<std::vector<std::int64_t>> steps;
    const std::size_t inputs = plan.inputs.size();
    for (std::size_t i = 0; i < inputs + plan.outputs.size(); ++i) {
        const TensorType& type = i < inputs ? plan.inputs[i].type : plan.outputs[i - inputs].type;
        std::int64_t bytes = size_of_shape(type.shape) * size_of(type.dtype);
        std::vector<std::int64_t>& of_array = steps.emplace_back();
        for (const PlannedBatch& batch : plan.batches) {
            const bool mapped = i >= inputs || batch.mapped[i];
            of_array.push_back(mapped ? bytes : 0);
            if (mapped) bytes *= batch.size;
        }
    }
    return steps;
}

/// Calls `body(offsets)` for each element of the batches from `first` on; offsets are in bytes, one
/// for each array.
template <typename Body>
void for_each_element(const PlanData& plan, std::size_t first, Body body) {
    const auto steps = batch_steps(plan);
    std::vector<std::int64_t> place(plan.batches.size(), 0), offsets(steps.size());
    for (std::size_t b = first; b < plan.batches.size(); ++b) {
        if (plan.batches[b].size == 0) return;
    }
    while (true) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            offsets[i] = 0;
            for (std::size_t b = first; b < place.size(); ++b) {
                offsets[i] += place[b] * steps[i][b];
            }
        }
        body(offsets);
        std::size_t b = first;
        for (; b < place.size() && ++place[b] == plan.batches[b].size; ++b) place[b] = 0;
        if (b >= place.size()) return;
    }
}

const std::string& array_name(const PlanData& plan, std::size_t i) {
    return i < plan.inputs.size() ? plan.inputs[i].name : plan.outputs[i - plan.inputs.size()].name;
}

/// A kernel's arguments, to which the driver takes pointers.
class Parameters {
  public:
    template <typename T>
    void add(const T& value) {
        add(&value, sizeof(T));
    }
    void add(const void* bytes, std::size_t size) {
        std::memcpy(values_.emplace_back(size / sizeof(std::max_align_t) + 1).data(), bytes, size);
    }
    std::vector<void*> pointers() {
        std::vector<void*> pointers;
        for (auto& value : values_) pointers.push_back(value.data());
        return pointers;
    }

  private:
    std::vector<std::vector<std::max_align_t>> values_;
};

/// The layout of `tw::batched` in device code.
struct Batched {
    void* data;
    std::int64_t stride;  ///< in elements
};

constexpr std::int64_t kMostInZ = 65535;

class GpuRun {
  public:
    GpuRun(const PlanData& plan, const std::vector<cuda::Kernel>& kernels, int device)
        : plan_(plan), kernels_(kernels), device_(device) {}

    void run(std::span<const Tensor> arrays) const {
        cuda::check_stream(plan_.name, device_);
        // The innermost batch is the z axis of the grid if batches are in the grid.
        const bool grid_axis = plan_.batch_in_grid && !plan_.batches.empty();
        const std::int64_t size = grid_axis ? plan_.batches[0].size : 1;
        const std::int64_t together = std::min(size, kMostInZ);
        if (size == 0) return;
        Tensor workspace;
        if (plan_.workspace_bytes) {
            workspace = Tensor::empty(u8, {together * workspace_step()}, Device::cuda(device_));
        }
        const auto steps = batch_steps(plan_);
        for_each_element(plan_, grid_axis ? 1 : 0, [&](const std::vector<std::int64_t>& offsets) {
            for (std::int64_t done = 0; done < size; done += together) {
                const std::int64_t now = std::min(together, size - done);
                if (plan_.clear_workspace && workspace.nbytes() > 0) {
                    clear_on_gpu(workspace.raw(), workspace.nbytes(), device_);
                }
                Parameters parameters;
                for (std::size_t i = 0; i < arrays.size(); ++i) {
                    const std::int64_t step = grid_axis ? steps[i][0] : 0;
                    auto* const data =
                        static_cast<std::byte*>(arrays[i].raw()) + offsets[i] + done * step;
                    add_pointer(parameters, data, step / size_of(arrays[i].dtype()));
                }
                if (plan_.workspace_bytes) {
                    add_pointer(parameters, workspace.raw(), grid_axis ? workspace_step() : 0);
                }
                launch_all(std::move(parameters), now);
            }
        });
    }

  private:
    /// Bytes from the workspace of a batch element to the next, which is aligned as well.
    std::int64_t workspace_step() const { return (*plan_.workspace_bytes + 255) / 256 * 256; }

    void add_pointer(Parameters& parameters, void* data, std::int64_t stride) const {
        if (plan_.batch_in_grid) return parameters.add(Batched{data, stride});
        parameters.add(data);
    }

    void launch_all(Parameters parameters, std::int64_t batch) const {
        for (const PlannedAttribute& attribute : plan_.attributes) {
            parameters.add(attribute.bytes.data(), attribute.bytes.size());
        }
        const std::vector<void*> pointers = parameters.pointers();
        for (std::size_t i = 0; i < plan_.launches.size(); ++i) {
            const PlannedLaunch& planned = plan_.launches[i];
            cuda::LaunchShape shape;
            for (std::size_t axis = 0; axis < 3; ++axis) {
                shape.grid[axis] = static_cast<unsigned>(planned.grid[axis]);
                shape.block[axis] = static_cast<unsigned>(planned.block[axis]);
                shape.cluster[axis] = static_cast<unsigned>(planned.cluster[axis]);
            }
            if (plan_.batch_in_grid) shape.grid[2] = static_cast<unsigned>(batch);
            cuda::launch(kernels_[i], shape, pointers, cuda::current_stream());
        }
    }

    const PlanData& plan_;
    const std::vector<cuda::Kernel>& kernels_;
    int device_;
};

tw_cpu_function find_function(const std::string& op, const CpuFunction& cpu) {
    // Never closed: calls may run until the process ends.
    void* const library =
        dlopen(cpu.library.empty() ? nullptr : cpu.library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* const why = dlerror();
        user_error(op, "expected a shared library with its CPU function but got {}",
                   why == nullptr ? cpu.library : why);
    }
    void* const function = dlsym(library, cpu.entry.c_str());
    if (function == nullptr) {
        user_error(op, "expected the CPU function `{}` in {} but it is not there", cpu.entry,
                   cpu.library.empty() ? "this process" : cpu.library);
    }
    return reinterpret_cast<tw_cpu_function>(function);
}

/// The arrays of one element of the batch.
std::vector<Tensor> element_of(const PlanData& plan, std::span<const Tensor> arrays,
                               const std::vector<std::int64_t>& offsets) {
    std::vector<Tensor> parts;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        const std::size_t inputs = plan.inputs.size();
        const TensorType& type = i < inputs ? plan.inputs[i].type : plan.outputs[i - inputs].type;
        parts.push_back(Tensor::from_data(static_cast<std::byte*>(arrays[i].raw()) + offsets[i],
                                          type.dtype, type.shape, {}, arrays[i].owner()));
    }
    return parts;
}

void call_function(const PlanData& plan, tw_cpu_function function,
                   const std::vector<Tensor>& arrays) {
    std::vector<std::shared_ptr<DLManagedTensorVersioned>> kept;
    std::vector<DLTensor> views;
    const auto add = [&](const Tensor& array) {
        kept.emplace_back(array.to_dlpack_versioned(),
                          [](DLManagedTensorVersioned* managed) { managed->deleter(managed); });
        views.push_back(kept.back()->dl_tensor);
    };
    for (const Tensor& array : arrays) add(array);
    if (plan.workspace_bytes) {
        const Tensor workspace = Tensor::empty(u8, {*plan.workspace_bytes});
        if (plan.clear_workspace && *plan.workspace_bytes > 0) workspace.fill(0);
        add(workspace);
    }
    Parameters values;
    for (const PlannedAttribute& attribute : plan.attributes) {
        values.add(attribute.bytes.data(), attribute.bytes.size());
    }
    const std::vector<void*> pointers = values.pointers();
    const char* const problem =
        function(views.data(), static_cast<std::int32_t>(views.size()), pointers.data());
    if (problem != nullptr) user_error(plan.name, "{}", problem);
}

}  // namespace
}  // namespace run

CudaPlan::State::State(run::PlanData data)
    : plan(std::move(data)),
      text(run::to_text(plan)),
      inputs(run::types_with_batches(plan, true)),
      outputs(run::types_with_batches(plan, false)) {}

CudaPlan::CudaPlan(std::string_view text)
    : state_(std::make_shared<const State>(run::parse_plan(text))) {}

const std::string& CudaPlan::name() const {
    return state_->plan.name;
}
const std::string& CudaPlan::text() const {
    return state_->text;
}
const std::vector<TensorType>& CudaPlan::inputs() const {
    return state_->inputs;
}
const std::vector<TensorType>& CudaPlan::outputs() const {
    return state_->outputs;
}
bool CudaPlan::has_cpu() const {
    return state_->plan.cpu.has_value();
}

namespace {

void check_planned_arrays(const run::PlanData& plan, const std::vector<TensorType>& inputs,
                          const std::vector<TensorType>& outputs, std::span<const Tensor> arrays) {
    if (arrays.size() != inputs.size() + outputs.size()) {
        user_error(plan.name, "expected {} inputs and {} outputs but got {} arrays", inputs.size(),
                   outputs.size(), arrays.size());
    }
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        const TensorType& type = i < inputs.size() ? inputs[i] : outputs[i - inputs.size()];
        const std::string& name = run::array_name(plan, i);
        if (!arrays[i].defined() || arrays[i].dtype() != type.dtype ||
            arrays[i].shape() != type.shape) {
            user_error(plan.name, "expected `{}` to be {} but got {}", name, to_string(type),
                       arrays[i].defined() ? arrays[i].type_name() : "none");
        }
        if (!(arrays[i].device() == arrays[0].device())) {
            user_error(plan.name, "expected `{}` on {}, where `{}` is, but it is on {}", name,
                       to_string(arrays[0].device()), run::array_name(plan, 0),
                       to_string(arrays[i].device()));
        }
        if (i < inputs.size()) continue;
        run::check_writable(plan.name, fmt::format("`{}`", name), arrays[i]);
        for (std::size_t j = 0; j < i; ++j) {
            if (run::overlap(arrays[i], arrays[j])) {
                user_error(plan.name, "expected `{}` apart from `{}` but they share memory", name,
                           run::array_name(plan, j));
            }
        }
    }
}

/// A pointer to the host or another GPU would fault and make the process's CUDA context unusable.
void check_addresses(const run::PlanData& plan, std::span<const Tensor> arrays, int device) {
    if (run::is_told_addresses()) return;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        if (arrays[i].size() == 0) continue;
        const std::string& name = run::array_name(plan, i);
        const int owner =
            cuda::device_of(reinterpret_cast<std::uintptr_t>(arrays[i].raw()), name.c_str());
        if (owner != device) {
            user_error(plan.name, "expected `{}` in the memory of cuda:{} but it is in cuda:{}'s",
                       name, device, owner);
        }
    }
}

}  // namespace

void CudaPlan::run(std::span<const Tensor> arrays) const {
    const run::PlanData& plan = state_->plan;
    check_planned_arrays(plan, state_->inputs, state_->outputs, arrays);
    // Dense copies of arrays with gaps; those of outputs are copied back.
    std::vector<Tensor> dense(arrays.begin(), arrays.end());
    bool nothing = true;
    for (std::size_t i = 0; i < dense.size(); ++i) {
        const bool is_output = i >= state_->inputs.size();
        if (is_output) nothing = nothing && dense[i].size() == 0;
        if (dense[i].is_contiguous()) continue;
        debug_log(plan.name, "slow path: `{}` is copied, since it has gaps or another order",
                  run::array_name(plan, i));
        dense[i] = is_output ? Tensor::empty(dense[i].dtype(), dense[i].shape(), dense[i].device())
                             : dense[i].contiguous();
    }
    if (nothing) return;
    const Device device = dense.back().device();
    if (device.kind == Device::Kind::cuda) {
        check_addresses(plan, dense, device.index);
        const std::vector<cuda::Kernel>* kernels = nullptr;
        {
            const std::scoped_lock lock(state_->mutex);
            auto [place, is_new] = state_->kernels.try_emplace(device.index);
            if (place->second.empty()) {
                const cuda::CompileRequest request =
                    run::compile_request(plan, cuda::device_info(device.index).arch());
                std::vector<cuda::Kernel> loaded;
                for (const run::PlannedLaunch& launch : plan.launches) {
                    loaded.push_back(cuda::load_kernel(request, launch.kernel.c_str(),
                                                       static_cast<int>(launch.shared_bytes),
                                                       device.index));
                }
                place->second = std::move(loaded);
            }
            kernels = &place->second;  // map nodes do not move
        }
        run::GpuRun(plan, *kernels, device.index).run(dense);
    } else if (!plan.cpu) {
        user_error(plan.name,
                   "expected arrays on a GPU, since the kernel has no function for the CPU, but "
                   "got arrays on the CPU");
    } else if (!plan.cpu->ir.empty()) {
        std::optional<Program> program;
        {
            const std::scoped_lock lock(state_->mutex);
            if (!state_->program) state_->program.emplace(plan.cpu->ir);
            program = state_->program;
        }
        run::for_each_element(plan, 0, [&](const std::vector<std::int64_t>& offsets) {
            program->run(run::element_of(plan, dense, offsets));
        });
    } else {
        const tw_cpu_function function = run::find_function(plan.name, *plan.cpu);
        run::for_each_element(plan, 0, [&](const std::vector<std::int64_t>& offsets) {
            run::call_function(plan, function, run::element_of(plan, dense, offsets));
        });
    }
    for (std::size_t i = state_->inputs.size(); i < dense.size(); ++i) {
        if (dense[i].raw() != arrays[i].raw()) arrays[i].copy_from(dense[i]);
    }
}

CudaPlan CudaPlan::batched(const std::vector<bool>& mapped, std::int64_t size) const {
    run::PlanData plan = state_->plan;
    if (mapped.size() != plan.inputs.size()) {
        user_error(plan.name, "expected to know which of {} inputs are mapped but got {} answers",
                   plan.inputs.size(), mapped.size());
    }
    if (size < 0) user_error(plan.name, "expected a batch of size 0 or more but got {}", size);
    plan.batches.push_back({size, mapped});
    return CudaPlan(std::make_shared<const State>(std::move(plan)));
}

std::string CudaPlan::ptx(const std::string& arch) const {
    return cuda::compile(run::compile_request(state_->plan, arch)).ptx;
}

}  // namespace tilewright
