// Calls of kernels: checks, traces once per signature and launches.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "ir/passes/retile.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "run/call_state.h"
#include "run/recorder.h"
#include "support/check.h"
#include "support/debug_log.h"
#include "tilewright/program.h"

namespace tilewright {

namespace detail {

namespace {

/// The tensor without its batch dimension, as the kernel sees it.
Tensor without_dim(const Tensor& tensor, int axis) {
    auto shape = tensor.shape();
    auto strides = tensor.strides();
    shape.erase(shape.begin() + axis);
    strides.erase(strides.begin() + axis);
    // Only the type matters, so the base pointer of the batch will do.
    return Tensor::from_data(tensor.raw(), tensor.dtype(), shape, strides, {}, tensor.device());
}

}  // namespace

Device device_of(std::span<const Tensor> inputs) {
    for (const Tensor& input : inputs) {
        if (input.defined()) return input.device();
    }
    return {};
}

CallState::CallState(Kernel kernel, CallOptions options, std::vector<Batching> batchings)
    : kernel_(options.name.empty() ? std::move(kernel) : kernel.renamed(options.name)),
      options_(std::move(options)),
      batchings_(std::move(batchings)) {
    check_options();
}

CallState::Shapes CallState::shapes(std::span<const Tensor> inputs) const {
    // From the outermost batch inwards, remove the dimension that each vmap added.
    std::vector<Tensor> inner;
    if (!batchings_.empty()) inner.assign(inputs.begin(), inputs.end());
    std::vector<std::int64_t> batch_sizes;
    for (auto batching = batchings_.rbegin(); batching != batchings_.rend(); ++batching) {
        if (batching->in_axes.size() != inner.size()) {
            user_error("vmap", "expected in_axes to name an axis for each of {} inputs but got {}",
                       inner.size(), batching->in_axes.size());
        }
        std::int64_t size = -1;
        for (std::size_t i = 0; i < inner.size(); ++i) {
            const int axis = batching->in_axes[i];
            if (axis == kNotMapped || !inner[i].defined()) continue;
            if (axis < 0 || axis >= inner[i].rank()) {
                user_error("vmap", "expected a batch axis of `{}` ({}) but got {}",
                           argument_name(i), inner[i].type_name(), axis);
            }
            const std::int64_t extent = inner[i].dim(axis);
            if (size >= 0 && extent != size) {
                user_error("vmap", "expected `{}` to have batch extent {} along axis {} but got {}",
                           argument_name(i), size, axis, inner[i].type_name());
            }
            size = extent;
            inner[i] = without_dim(inner[i], axis);
        }
        if (size < 0) user_error("vmap", "expected at least one mapped input but got none");
        batch_sizes.push_back(size);
    }
    const std::span<const Tensor> kernels = batchings_.empty() ? inputs : inner;
    Shapes result{options_.grid.extents(kernels), options_.out_type.types(kernels),
                  options_.interpret || checked(), device_of(inputs)};
    if (result.checked && result.device.kind == Device::Kind::cuda) {
        user_error(
            "call",
            "expected inputs in CPU memory in the checked mode, which runs there, but they are "
            "on {}; compute-sanitizer checks kernels on a GPU",
            to_string(result.device));
    }
    for (std::int64_t extent : result.grid) {
        if (extent < 0) {
            user_error("call", "expected grid extents >= 0 for kernel `{}` but got [{}]",
                       kernel_.name(), fmt::join(result.grid, ", "));
        }
    }
    result.grid.insert(result.grid.begin(), batch_sizes.begin(), batch_sizes.end());
    for (std::size_t b = 0; b < batchings_.size(); ++b) {
        const std::size_t out_axes = batchings_[b].out_axes.size();
        if (out_axes != 0 && out_axes != result.outputs.size()) {
            user_error("vmap",
                       "expected out_axes to name an axis for each of {} outputs but got {}",
                       result.outputs.size(), out_axes);
        }
        for (std::size_t o = 0; o < result.outputs.size(); ++o) {
            auto& shape = result.outputs[o].shape;
            const int axis = axis_of(batchings_[b].out_axes, o, 0);
            if (axis < 0 || axis > std::ssize(shape)) {
                user_error("vmap", "expected a batch axis in [0, {}] for output {} but got {}",
                           shape.size(), o, axis);
            }
            shape.insert(shape.begin() + axis, batch_sizes[batchings_.size() - 1 - b]);
        }
    }
    return result;
}

std::vector<int> CallState::batch_axes(std::size_t argument, std::size_t num_inputs) const {
    std::vector<int> axes;
    for (auto batching = batchings_.rbegin(); batching != batchings_.rend(); ++batching) {
        axes.push_back(argument < num_inputs
                           ? axis_of(batching->in_axes, argument, kNotMapped)
                           : axis_of(batching->out_axes, argument - num_inputs, 0));
    }
    return axes;
}

std::vector<std::int64_t> CallState::traced_shape(std::size_t argument, std::size_t num_inputs,
                                                  const std::vector<std::int64_t>& shape) const {
    const auto found = options_.dynamic.find(static_cast<int>(argument));
    if (found == options_.dynamic.end()) return shape;
    const std::vector<int> batches = batch_axes(argument, num_inputs);
    std::vector<std::int64_t> traced = shape;
    for (std::size_t d = 0; d < shape.size(); ++d) {
        // The caller counts dimensions without those of batches.
        auto inner = static_cast<int>(d);
        bool is_batch = false;
        for (int axis : batches) {
            is_batch |= axis == inner;
            if (is_batch) break;
            if (axis != kNotMapped && axis < inner) --inner;
        }
        const auto& free_dims = found->second;
        if (!is_batch && std::find(free_dims.begin(), free_dims.end(), inner) != free_dims.end()) {
            traced[d] = kDynamic;
        }
    }
    return traced;
}

bool CallState::is_sequential(std::size_t axis) const {
    const auto inner = static_cast<int>(axis) - static_cast<int>(batchings_.size());
    return std::find(options_.sequential.begin(), options_.sequential.end(), inner) !=
           options_.sequential.end();
}

template <typename Put>
void CallState::put_key(std::span<const Tensor> inputs, const Shapes& shapes, Put&& put) const {
    put(shapes.checked);
    put(shapes.device.kind == Device::Kind::cpu ? -1 : shapes.device.index);
    const auto add = [&](std::size_t argument, std::int64_t dtype,
                         const std::vector<std::int64_t>& shape) {
        put(dtype);
        put(std::ssize(shape));
        if (options_.dynamic.empty()) {
            for (const std::int64_t extent : shape) put(extent);
        } else {
            for (const std::int64_t extent : traced_shape(argument, inputs.size(), shape))
                put(extent);
        }
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const bool defined = inputs[i].defined();
        add(i, defined ? static_cast<std::int64_t>(inputs[i].dtype()) : -1, inputs[i].shape());
    }
    for (std::size_t o = 0; o < shapes.outputs.size(); ++o) {
        const TensorType& type = shapes.outputs[o];
        add(inputs.size() + o, static_cast<std::int64_t>(type.dtype), type.shape);
    }
    // A dynamic dimension may change the grid, so then only sequential extents are compiled in.
    for (std::size_t axis = 0; axis < shapes.grid.size(); ++axis) {
        const bool fixed = options_.dynamic.empty() || is_sequential(axis);
        put(fixed ? shapes.grid[axis] : kDynamic);
    }
}

CallState::Key CallState::key(std::span<const Tensor> inputs, const Shapes& shapes) const {
    Key key;
    put_key(inputs, shapes, [&](std::int64_t number) { key.push_back(number); });
    return key;
}

bool CallState::is_key(const Key& key, std::span<const Tensor> inputs, const Shapes& shapes) const {
    std::size_t at = 0;
    bool same = true;
    put_key(inputs, shapes, [&](std::int64_t number) {
        same = same && at < key.size() && key[at] == number;
        ++at;
    });
    return same && at == key.size();
}

lang::Signature CallState::signature(std::span<const Tensor> inputs, const Shapes& shapes) const {
    lang::Signature signature;
    using Role = lang::Parameter::Role;
    const auto add = [&](Role role, const TensorType& type, BlockSpec spec, std::size_t index) {
        lang::Parameter parameter;
        const std::size_t argument = signature.parameters.size();
        const char* const kRoles[] = {"input", "output", "scratch"};
        parameter.name = argument < kernel_.parameter_names().size()
                             ? kernel_.parameter_names()[argument]
                             : fmt::format("{}{}", kRoles[static_cast<std::size_t>(role)], index);
        parameter.role = role;
        parameter.dtype = type.dtype;
        parameter.extents = type.shape;
        parameter.writable = role != Role::input;
        if (role != Role::scratch && !spec.is_absent()) {
            parameter.extents = traced_shape(argument, inputs.size(), type.shape);
            // The spec describes the array without its batches: add them back, innermost first.
            const std::vector<int> axes = batch_axes(argument, inputs.size());
            auto rank = static_cast<int>(type.shape.size());
            for (int axis : axes) rank -= axis != kNotMapped;
            for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
                spec = batched_spec(spec, rank, *axis);
                rank += *axis != kNotMapped;
            }
        }
        parameter.spec = std::move(spec);
        signature.parameters.push_back(std::move(parameter));
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].defined()) {
            const BlockSpec spec = i < options_.in.size() ? options_.in[i] : BlockSpec();
            add(Role::input, {inputs[i].dtype(), inputs[i].shape()}, spec, i);
        } else {
            add(Role::input, {}, BlockSpec::absent(), i);
        }
    }
    for (std::size_t o = 0; o < shapes.outputs.size(); ++o) {
        const BlockSpec spec = o < options_.out.size() ? options_.out[o] : BlockSpec();
        add(Role::output, shapes.outputs[o], spec, o);
    }
    for (std::size_t s = 0; s < options_.scratch.size(); ++s) {
        add(Role::scratch, options_.scratch[s], BlockSpec(), s);
    }
    for (std::size_t a = 0; a < options_.aliases.size(); ++a) {
        const Alias& alias = options_.aliases[a];
        const auto group = static_cast<int>(a);
        signature.parameters[alias.input].alias_group = group;
        signature.parameters[inputs.size() + alias.output].alias_group = group;
    }
    signature.grid = shapes.grid;
    for (std::size_t axis = 0; axis < shapes.grid.size(); ++axis) {
        if (is_sequential(axis)) {
            signature.sequential.push_back(static_cast<int>(axis));
        } else if (!options_.dynamic.empty()) {
            signature.grid[axis] = kDynamic;
        }
    }
    signature.hidden_axes = static_cast<int>(batchings_.size());
    signature.hints = {options_.num_warps, options_.num_stages};
    signature.checked = shapes.checked;
    return signature;
}

ir::Function CallState::trace(std::span<const Tensor> inputs, bool whole) const {
    check_inputs(inputs);
    const Shapes now = shapes(inputs);
    check_arguments(inputs, now);
    check_aliases(inputs, now);
    ir::Function function = lang::trace(kernel_, signature(inputs, now));
    ir::verify(function);
    const bool on_cpu = now.device.kind == Device::Kind::cpu && !now.checked;
    if (on_cpu && !whole && options_.tile_rows > 0) {
        ir::retile(function, {.max_tile_elements = options_.tile_rows * options_.tile_lanes,
                              .rows = options_.tile_rows,
                              .columns = options_.tile_lanes});
    }
    return function;
}

std::shared_ptr<const run::Executable> CallState::executable(std::span<const Tensor> inputs,
                                                             const Shapes& shapes) {
    const std::scoped_lock lock(mutex_);
    // Most calls are like the one before, and small ones notice what it takes to build a key.
    if (!compiled_.empty() && is_key(compiled_.front()->key, inputs, shapes))
        return compiled_.front()->executable;
    Key wanted = key(inputs, shapes);
    const auto found = std::find_if(compiled_.begin(), compiled_.end(),
                                    [&](const auto& entry) { return entry->key == wanted; });
    if (found != compiled_.end()) {
        std::rotate(compiled_.begin(), found, found + 1);
        return compiled_.front()->executable;
    }
    constexpr std::size_t kMostTraces = 256;  // beyond that, the least recently used is dropped
    if (compiled_.size() == kMostTraces) compiled_.pop_back();
    constexpr std::size_t kManyTraces = 16;
    if (compiled_.size() % kManyTraces == kManyTraces - 1) {
        debug_log(kernel_.name(),
                  "slow path: traced and compiled for the {}th set of shapes; name dimensions that "
                  "change in `dynamic`",
                  compiled_.size() + 1);
    }
    ir::Function function = trace(inputs);
    static const bool always = [] {
        const char* text = std::getenv("TILEWRIGHT_DEBUG_IR");
        return text && *text != '\0' && std::string_view(text) != "0";
    }();
    if (options_.debug || always) fmt::print(stderr, "{}", ir::print(function));
    std::vector<bool> undefined;
    for (const Tensor& input : inputs) {
        if (input.defined()) undefined.push_back(false);
    }
    for (std::size_t o = 0; o < shapes.outputs.size(); ++o) {
        undefined.push_back(
            std::none_of(options_.aliases.begin(), options_.aliases.end(),
                         [&](const Alias& alias) { return alias.output == static_cast<int>(o); }));
    }
    const auto machine = shapes.checked     ? run::Machine::checked
                         : options_.profile ? run::Machine::profiled
                                            : run::Machine::native;
    auto compiled = std::make_unique<Compiled>(Compiled{
        std::move(wanted),
        run::make_executable(std::move(function), machine, std::move(undefined), shapes.device)});
    compiled_.insert(compiled_.begin(), std::move(compiled));
    return compiled_.front()->executable;
}

std::vector<Tensor> CallState::new_outputs(std::span<const Tensor> inputs,
                                           const Shapes& shapes) const {
    std::vector<Tensor> outputs(shapes.outputs.size());
    for (const Alias& alias : options_.aliases) outputs[alias.output] = inputs[alias.input];
    for (std::size_t o = 0; o < outputs.size(); ++o) {
        const TensorType& type = shapes.outputs[o];
        if (!outputs[o].defined()) {
            outputs[o] = Tensor::empty(type.dtype, type.shape, shapes.device);
        }
    }
    return outputs;
}

void CallState::check_outputs(std::span<const Tensor> given, const Shapes& shapes) const {
    if (given.size() != shapes.outputs.size()) {
        user_error("call", "expected {} outputs for kernel `{}` but got {}", shapes.outputs.size(),
                   kernel_.name(), given.size());
    }
    for (std::size_t o = 0; o < given.size(); ++o) {
        if (!given[o].defined() || given[o].dtype() != shapes.outputs[o].dtype ||
            given[o].shape() != shapes.outputs[o].shape) {
            user_error("call", "expected output {} of kernel `{}` to be {} but got {}", o,
                       kernel_.name(), to_string(shapes.outputs[o]), given[o].type_name());
        }
        if (!(given[o].device() == shapes.device)) {
            user_error("call", "expected output {} on {}, where the inputs are, but it is on {}", o,
                       to_string(shapes.device), to_string(given[o].device()));
        }
    }
}

std::vector<Tensor> CallState::run(std::span<const Tensor> inputs, std::span<const Tensor> given,
                                   bool ahead) {
    check_inputs(inputs);
    Shapes now = shapes(inputs);
    const bool has_inputs = std::any_of(inputs.begin(), inputs.end(),
                                        [](const Tensor& input) { return input.defined(); });
    if (!has_inputs && !given.empty()) now.device = device_of(given);
    check_aliases(inputs, now);
    const std::shared_ptr<const run::Executable> program = executable(inputs, now);
    std::vector<Tensor> made;
    std::span<const Tensor> outputs = given;
    if (given.empty()) {
        made = new_outputs(inputs, now);
        outputs = made;
    } else {
        check_outputs(given, now);
    }

    // Checked before anything is written.
    if (!given.empty() || !options_.aliases.empty()) check_overlap(inputs, outputs);

    // An aliased input is read from the memory of its output.
    std::vector<Tensor> moved;
    std::span<const Tensor> sources = inputs;
    if (!options_.aliases.empty()) {
        moved.assign(inputs.begin(), inputs.end());
        sources = moved;
    }
    for (const Alias& alias : options_.aliases) {
        Tensor& source = moved[alias.input];
        const Tensor& target = outputs[alias.output];
        if (source.raw() != target.raw() || source.strides() != target.strides()) {
            if (!ahead) target.copy_from(source);
            source = target;
        }
    }
    ir::Arguments arguments;
    arguments.refs.reserve(sources.size() + outputs.size());
    const auto add = [&](const Tensor& tensor) {
        if (!tensor.defined()) return;
        ir::RefArgument ref;
        ref.data = tensor.raw();
        std::copy(tensor.shape().begin(), tensor.shape().end(), ref.extents.begin());
        std::copy(tensor.strides().begin(), tensor.strides().end(), ref.strides.begin());
        arguments.refs.push_back(ref);
    };
    for (const Tensor& tensor : sources) add(tensor);
    for (const Tensor& tensor : outputs) add(tensor);
    arguments.grid.reserve(now.grid.size());
    for (std::size_t axis = 0; axis < now.grid.size(); ++axis) {
        if (!is_sequential(axis)) arguments.grid.push_back(now.grid[axis]);
    }
    if (ahead)
        program->compile_ahead(arguments);
    else
        run::launch(program, arguments, sources, outputs);
    return made;
}

Profile CallState::profile() const {
    std::shared_ptr<const run::Executable> last;
    {
        const std::scoped_lock lock(mutex_);
        if (!compiled_.empty()) last = compiled_.front()->executable;
    }
    if (last) {
        if (auto profile = last->profile()) return *std::move(profile);
    }
    user_error("profile",
               "expected a run of kernel `{}` before, of a call made with profile = true, on a CPU",
               kernel_.name());
}

int CallState::num_traces() const {
    const std::scoped_lock lock(mutex_);
    return static_cast<int>(compiled_.size());
}

}  // namespace detail

Call::Call(Kernel kernel, CallOptions options)
    : state_(std::make_shared<detail::CallState>(std::move(kernel), std::move(options),
                                                 std::vector<detail::Batching>())) {}

std::vector<Tensor> Call::run(const std::vector<Tensor>& inputs) const {
    return state_->run(inputs, {}, false);
}

void Call::into(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs) const {
    if (outputs.empty()) user_error("call", "expected output tensors but got none");
    state_->run(inputs, outputs, false);
}

void Call::compile_ahead(const std::vector<Tensor>& outputs,
                         const std::vector<Tensor>& inputs) const {
    if (outputs.empty()) user_error("call", "expected output tensors but got none");
    state_->run(inputs, outputs, true);
}

Tensor Call::single(std::vector<Tensor> results) const {
    check_output_count(results.size(), 1);
    return std::move(results.front());
}

void Call::check_output_count(std::size_t have, std::size_t want) const {
    if (have == want) return;
    user_error("call",
               "expected kernel `{}` to have {} output{} but it has {}; see outputs<N> and run",
               kernel().name(), want, want == 1 ? "" : "s", have);
}

std::string Call::ir(const std::vector<Tensor>& inputs, bool lines) const {
    return ir::print(state_->trace(inputs), lines);
}

std::string Call::explain(const std::vector<Tensor>& inputs, const std::string& arch) const {
    return explain_text(ir(inputs, true), arch);
}

std::string Call::page(const std::vector<Tensor>& inputs, const std::string& arch) const {
    return program_page(ir(inputs, true), arch);
}

std::string Call::bytecode(const std::vector<Tensor>& inputs) const {
    return program_text(ir(inputs), ProgramForm::bytecode);
}

std::string Call::cuda(const std::vector<Tensor>& inputs, const std::string& arch) const {
    return program_text(ir::print(state_->trace(inputs, true)), ProgramForm::cuda, arch);
}

std::string Call::ptx(const std::vector<Tensor>& inputs, const std::string& arch) const {
    return program_text(ir::print(state_->trace(inputs, true)), ProgramForm::ptx, arch);
}

Profile Call::profile() const {
    return state_->profile();
}

int Call::num_traces() const {
    return state_->num_traces();
}
const CostEstimate& Call::cost() const {
    return state_->options().cost;
}
const Kernel& Call::kernel() const {
    return state_->kernel();
}
const CallOptions& Call::options() const {
    return state_->options();
}

namespace {

std::atomic<bool>& checked_flag() {
    static std::atomic<bool> flag = [] {
        const char* text = std::getenv("TILEWRIGHT_CHECKED");
        return text && *text != '\0' && std::string_view(text) != "0";
    }();
    return flag;
}

}  // namespace

void set_checked(bool on) {
    checked_flag() = on;
}
bool checked() {
    return checked_flag();
}

Call call(Kernel kernel, CallOptions options) {
    return Call(std::move(kernel), std::move(options));
}

}  // namespace tilewright
