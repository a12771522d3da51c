// Users' CUDA kernels: evaluates their options for a signature.
#include "tilewright/cuda_kernel.h"

#include <algorithm>
#include <set>
#include <utility>

#include "run/cuda_attributes.h"
#include "run/cuda_plan.h"
#include "support/check.h"
#include "support/memo.h"

namespace tilewright {
namespace {

using Kind = AttributeType::Kind;

std::string type_in_cuda(const CudaKernelOptions& options, DType dtype) {
    const auto found = options.types.find(dtype);
    if (found != options.types.end()) return found->second;
    switch (dtype) {
        case DType::boolean:
            return "bool";
        case DType::i8:
            return "signed char";
        case DType::u8:
            return "unsigned char";
        case DType::i16:
            return "short";
        case DType::u16:
            return "unsigned short";
        case DType::i32:
            return "int";
        case DType::u32:
            return "unsigned";
        case DType::i64:
            return "long long";
        case DType::u64:
            return "unsigned long long";
        case DType::f32:
            return "float";
        case DType::f64:
            return "double";
        default:
            return fmt::format("tw::{}", name(dtype));
    }
}

std::array<std::int64_t, 3> three(const std::string& op, const std::string& what,
                                  const std::vector<std::int64_t>& extents) {
    if (extents.empty() || extents.size() > 3) {
        user_error(op, "expected one to three extents of {} but got [{}]", what,
                   fmt::join(extents, ", "));
    }
    std::array<std::int64_t, 3> result{1, 1, 1};
    std::copy(extents.begin(), extents.end(), result.begin());
    return result;
}

std::int64_t bytes_of(const std::string& op, const std::string& what,
                      const std::vector<std::int64_t>& extents, std::int64_t most) {
    if (extents.size() != 1 || extents[0] < 0 || extents[0] > most) {
        user_error(op, "expected {} of 0 to {} bytes but got [{}]", what, most,
                   fmt::join(extents, ", "));
    }
    return extents[0];
}

/// Each name must be unique, and a C++ identifier, because messages and generated checks use it.
void check_names(const std::string& op, const CudaKernelOptions& options) {
    std::set<std::string> known;
    const auto add = [&](const std::string& name) {
        const bool plain =
            !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
            std::all_of(name.begin(), name.end(),
                        [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
        if (!plain)
            user_error(op, "expected a name of an input, output or attribute but got '{}'", name);
        if (!known.insert(name).second) {
            user_error(op,
                       "expected every input, output and attribute to have its own name but "
                       "got `{}` twice",
                       name);
        }
    };
    for (const std::string& name : options.inputs) add(name);
    for (const std::string& name : options.outputs) add(name);
    for (const KernelAttribute& attribute : options.attributes) add(attribute.name);
    for (const CudaLaunch& launch : options.launches) {
        for (const std::string& argument : launch.template_arguments) {
            if (known.contains(argument)) continue;
            user_error(op,
                       "expected the name of an input, output or attribute as template "
                       "argument of {} but got '{}'",
                       launch.kernel, argument);
        }
    }
}

}  // namespace

AttributeType AttributeType::enumeration(
    std::vector<std::pair<std::string, std::int32_t>> enumerators) {
    AttributeType type(DType::i32);
    type.kind = Kind::enumeration;
    type.enumerators = std::move(enumerators);
    return type;
}

AttributeType AttributeType::dtype() {
    AttributeType type(DType::i32);
    type.kind = Kind::dtype;
    return type;
}

AttributeType AttributeType::structure(std::string name,
                                       std::vector<std::pair<std::string, DType>> fields) {
    AttributeType type(DType::i32);
    type.kind = Kind::structure;
    type.name = std::move(name);
    type.fields = std::move(fields);
    return type;
}

struct [[gnu::visibility("hidden")]] CudaKernel::State {
    using Key = std::pair<std::vector<std::int64_t>, KernelAttributes>;
    static constexpr std::size_t kMostPlans = 256;

    std::string source, name;
    CudaKernelOptions options;
    mutable Memo<Key, CudaPlan> plans{"plans of CUDA kernels", kMostPlans};

    State(std::string s, std::string n, CudaKernelOptions o)
        : source(std::move(s)), name(std::move(n)), options(std::move(o)) {}

    /// Adds the values of all attributes to `signature`.
    void complete(KernelSignature & signature) const;
    std::string template_argument(const KernelSignature& signature,
                                  const std::vector<TensorType>& outputs, const std::string& name)
        const;
    run::PlannedLaunch launch_of(const CudaLaunch& launch, const KernelSignature& signature,
                                 const std::vector<TensorType>& outputs, bool nothing) const;
    run::PlanData make(KernelSignature signature) const;
};

void CudaKernel::State::complete(KernelSignature& signature) const {
    KernelAttributes given = std::exchange(signature.attributes, {});
    for (const KernelAttribute& attribute : options.attributes) {
        const auto found = given.find(attribute.name);
        if (attribute.function) {
            if (found != given.end()) {
                user_error(name,
                           "expected no value of the attribute `{}`, which is computed from "
                           "the inputs, but got {}",
                           attribute.name, run::to_string(found->second));
            }
            signature.attributes.emplace(attribute.name, attribute.function(signature));
        } else if (found != given.end()) {
            signature.attributes.emplace(attribute.name, found->second);
            given.erase(found);
        } else if (attribute.value) {
            signature.attributes.emplace(attribute.name, *attribute.value);
        } else {
            user_error(name, "expected a value of the attribute `{}` but it is missing",
                       attribute.name);
        }
        // Bad values are refused here, before functions see them.
        run::planned_attribute(name, attribute, signature.attributes.at(attribute.name));
    }
    if (given.empty()) return;
    std::vector<std::string> names;
    for (const KernelAttribute& attribute : options.attributes) {
        if (!attribute.function) names.push_back(attribute.name);
    }
    user_error(name, "expected attributes among ({}) but got `{}`",
               names.empty() ? "it has none" : fmt::format("{}", fmt::join(names, ", ")),
               given.begin()->first);
}

std::string CudaKernel::State::template_argument(const KernelSignature& signature,
                                                 const std::vector<TensorType>& outputs,
                                                 const std::string& argument) const {
    for (std::size_t i = 0; i < options.inputs.size(); ++i) {
        if (options.inputs[i] == argument) return type_in_cuda(options, signature.inputs[i].dtype);
    }
    for (std::size_t i = 0; i < options.outputs.size(); ++i) {
        if (options.outputs[i] == argument) return type_in_cuda(options, outputs[i].dtype);
    }
    const auto found =
        std::find_if(options.attributes.begin(), options.attributes.end(),
                     [&](const KernelAttribute& one) { return one.name == argument; });
    const AttributeValue& value = signature.attributes.at(argument);
    if (found->type.kind == Kind::dtype) {
        return type_in_cuda(options, run::dtype_value(name, *found, value));
    }
    return run::template_number(name, *found, value);
}

run::PlannedLaunch CudaKernel::State::launch_of(const CudaLaunch& launch,
                                                const KernelSignature& signature,
                                                const std::vector<TensorType>& outputs,
                                                bool nothing) const {
    run::PlannedLaunch planned;
    std::vector<std::string> arguments;
    for (const std::string& argument : launch.template_arguments) {
        arguments.push_back(template_argument(signature, outputs, argument));
    }
    planned.kernel = launch.kernel;
    if (!arguments.empty()) planned.kernel += fmt::format("<{}>", fmt::join(arguments, ", "));
    planned.grid = three(name, "the grid", launch.grid.of(signature));
    planned.block = three(name, "the block", launch.block.of(signature));
    planned.cluster = three(name, "the cluster", launch.cluster.of(signature));
    planned.shared_bytes =
        bytes_of(name, "shared memory", launch.shared.of(signature), std::int64_t{1} << 20);
    if (options.batch_in_grid && planned.grid[2] != 1) {
        user_error(name,
                   "expected a grid of at most two axes, since batches are the third, but "
                   "got [{}]",
                   fmt::join(planned.grid, ", "));
    }
    if (nothing) planned.grid = {1, 1, 1};  // it is not launched
    run::check_launch(name, planned);
    return planned;
}

run::PlanData CudaKernel::State::make(KernelSignature signature) const {
    complete(signature);
    run::PlanData plan;
    plan.name = name;
    plan.file = options.file.empty() ? name + ".cu" : options.file;
    plan.source = source;
    for (const auto& [file, text] : options.headers) plan.headers.push_back({file, text});
    plan.options = options.options;
    plan.batch_in_grid = options.batch_in_grid;
    plan.clear_workspace = options.clear_workspace;
    for (std::size_t i = 0; i < options.inputs.size(); ++i) {
        plan.inputs.push_back({options.inputs[i], signature.inputs[i]});
    }
    const std::vector<TensorType> outputs = options.out_type(signature);
    if (outputs.size() != options.outputs.size()) {
        user_error(name, "expected the types of {} outputs ({}) but got {}", options.outputs.size(),
                   fmt::join(options.outputs, ", "), outputs.size());
    }
    bool nothing = true;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        bool empty = false;
        for (const std::int64_t extent : outputs[i].shape) {
            if (extent < 0) {
                user_error(name, "expected extents of 0 or more of the output `{}` but got {}",
                           options.outputs[i], tilewright::to_string(outputs[i]));
            }
            empty |= extent == 0;
        }
        nothing &= empty;
        plan.outputs.push_back({options.outputs[i], outputs[i]});
    }
    if (options.workspace.given()) {
        plan.workspace_bytes =
            bytes_of(name, "a workspace", options.workspace.of(signature), std::int64_t{1} << 40);
    }
    std::set<std::string> in_templates;
    for (const CudaLaunch& launch : options.launches) {
        in_templates.insert(launch.template_arguments.begin(), launch.template_arguments.end());
        plan.launches.push_back(launch_of(launch, signature, outputs, nothing));
    }
    for (const KernelAttribute& attribute : options.attributes) {
        if (!attribute.passed || in_templates.contains(attribute.name)) continue;
        plan.attributes.push_back(
            run::planned_attribute(name, attribute, signature.attributes.at(attribute.name)));
    }
    if (options.cpu) {
        CpuFunction cpu = options.cpu(signature);
        if (cpu.ir.empty() == cpu.entry.empty()) {
            user_error(name,
                       "expected IR text, or the entry of a library, as the function for the "
                       "CPU but got {}",
                       cpu.ir.empty() ? "neither" : "both");
        }
        plan.cpu = std::move(cpu);
    }
    return plan;
}

void run::check_launch(const std::string& op, const PlannedLaunch& launch) {
    constexpr std::int64_t kMostX = (std::int64_t{1} << 31) - 1, kMostYz = 65535;
    constexpr std::int64_t kMostThreads = 1024, kMostThreadsZ = 64;
    for (std::size_t axis = 0; axis < 3; ++axis) {
        const std::int64_t most = axis == 0 ? kMostX : kMostYz;
        if (launch.grid[axis] < 1 || launch.grid[axis] > most) {
            user_error(op, "expected a grid of 1 to {} blocks along {} but got [{}]", most,
                       "xyz"[axis], fmt::join(launch.grid, ", "));
        }
        if (launch.block[axis] < 1 || (axis == 2 && launch.block[axis] > kMostThreadsZ)) {
            user_error(op, "expected a block of 1 to {} threads along {} but got [{}]",
                       axis == 2 ? kMostThreadsZ : kMostThreads, "xyz"[axis],
                       fmt::join(launch.block, ", "));
        }
        if (launch.cluster[axis] < 1 || launch.grid[axis] % launch.cluster[axis] != 0) {
            user_error(op, "expected clusters that divide the grid [{}] but got [{}]",
                       fmt::join(launch.grid, ", "), fmt::join(launch.cluster, ", "));
        }
    }
    for (const std::int64_t threads : launch.block) {
        if (threads <= kMostThreads) continue;
        user_error(op, "expected a block of at most {} threads but got [{}]", kMostThreads,
                   fmt::join(launch.block, ", "));
    }
    if (launch.block[0] * launch.block[1] * launch.block[2] > kMostThreads) {
        user_error(op, "expected a block of at most {} threads but got [{}]", kMostThreads,
                   fmt::join(launch.block, ", "));
    }
}

CudaKernel::CudaKernel(std::string source, std::string name, CudaKernelOptions options) {
    if (name.empty()) user_error("cuda_kernel", "expected the name of a kernel but got ''");
    if (source.find_first_not_of(" \t\r\n") == std::string::npos) {
        user_error(name, "expected CUDA C++ as source but got an empty text");
    }
    if (options.outputs.empty() || !options.out_type) {
        user_error(name,
                   "expected the names of outputs and a function of their types but got none");
    }
    if (options.launches.empty()) options.launches.push_back({.kernel = name});
    for (CudaLaunch& launch : options.launches) {
        if (launch.kernel.empty()) launch.kernel = name;
    }
    for (const std::string& option : options.options) {
        // NVRTC keeps this setting for whatever else the process compiles.
        if (option.find("Ofast-compile") != std::string::npos)
            user_error(name, "expected options that hold for one compilation but got {}", option);
    }
    check_names(name, options);
    for (const KernelAttribute& attribute : options.attributes) {
        run::check_attribute_type(name, attribute);
    }
    state_ = std::make_shared<const State>(std::move(source), std::move(name), std::move(options));
}

CudaPlan CudaKernel::plan(const std::vector<TensorType>& inputs,
                          const KernelAttributes& attributes) const {
    const CudaKernelOptions& options = state_->options;
    if (inputs.size() != options.inputs.size()) {
        user_error(state_->name, "expected {} inputs ({}) but got {}", options.inputs.size(),
                   fmt::join(options.inputs, ", "), inputs.size());
    }
    State::Key key{{}, attributes};
    for (const TensorType& type : inputs) {
        key.first.push_back(static_cast<std::int64_t>(type.dtype));
        key.first.push_back(std::ssize(type.shape));
        key.first.insert(key.first.end(), type.shape.begin(), type.shape.end());
    }
    return state_->plans.get(key, [&] {
        return CudaPlan(
            std::make_shared<const CudaPlan::State>(state_->make({inputs, attributes})));
    });
}

void CudaKernel::into(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                      const KernelAttributes& attributes) const {
    std::vector<TensorType> types;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].defined()) {
            user_error(
                state_->name, "expected an array as `{}` but got none",
                i < state_->options.inputs.size() ? state_->options.inputs[i] : std::to_string(i));
        }
        types.push_back({inputs[i].dtype(), inputs[i].shape()});
    }
    std::vector<Tensor> arrays = inputs;
    arrays.insert(arrays.end(), outputs.begin(), outputs.end());
    plan(types, attributes).run(arrays);
}

std::vector<Tensor> CudaKernel::run(const std::vector<Tensor>& inputs,
                                    const KernelAttributes& attributes) const {
    std::vector<TensorType> types;
    for (const Tensor& input : inputs) types.push_back({input.dtype(), input.shape()});
    const CudaPlan plan = this->plan(types, attributes);
    const Device device = inputs.empty() ? Device{} : inputs[0].device();
    std::vector<Tensor> arrays = inputs;
    for (const TensorType& type : plan.outputs()) {
        arrays.push_back(Tensor::empty(type.dtype, type.shape, device));
    }
    plan.run(arrays);
    return {arrays.begin() + std::ssize(inputs), arrays.end()};
}

Tensor CudaKernel::operator()(const std::vector<Tensor>& inputs,
                              const KernelAttributes& attributes) const {
    std::vector<Tensor> outputs = run(inputs, attributes);
    if (outputs.size() != 1) {
        user_error(state_->name, "expected one output for a call but it has {}; use run",
                   outputs.size());
    }
    return outputs[0];
}

const std::string& CudaKernel::name() const {
    return state_->name;
}
const CudaKernelOptions& CudaKernel::options() const {
    return state_->options;
}

CudaKernel cuda_kernel(std::string source, std::string name, CudaKernelOptions options) {
    return {std::move(source), std::move(name), std::move(options)};
}

}  // namespace tilewright
