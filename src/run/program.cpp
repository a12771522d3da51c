// Tile programs given as IR text.
#include "tilewright/program.h"

#include <algorithm>
#include <set>

#include "ir/parse.h"
#include "ir/passes/batch.h"
#include "ir/passes/effects.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "run/executable.h"
#include "run/overlap.h"
#include "run/recorder.h"
#include "support/check.h"

namespace tilewright {

struct Program::State {
    std::string name;
    Device device;
    std::vector<Parameter> parameters;
    std::vector<std::int64_t> grid;
    std::shared_ptr<const run::Executable> executable;
};

namespace {

std::vector<Program::Parameter> parameters_of(const ir::Function& kernel) {
    std::set<ir::Value> writes;
    for (const ir::Instruction& instruction : kernel.body.body) {
        writes.merge(ir::effects(instruction).writes);
    }
    std::vector<Program::Parameter> result;
    for (const ir::Value value : kernel.parameters()) {
        if (!kernel.is_ref(value)) {
            user_error("program", "expected Refs as parameters of `{}` but got `{}`, a {}",
                       kernel.name, kernel.value_name(value), ir::to_string(kernel.type(value)));
        }
        const ir::RefType& type = kernel.ref_type(value);
        if (type.space == ir::Space::scratch) continue;
        result.push_back({kernel.value_name(value),
                          {type.dtype, type.extents},
                          ir::may_write(kernel, writes, value),
                          type.alias_group});
    }
    return result;
}

bool fits(const TensorType& wanted, const Tensor& array) {
    if (!array.defined() || array.dtype() != wanted.dtype) return false;
    return std::equal(wanted.shape.begin(), wanted.shape.end(), array.shape().begin(),
                      array.shape().end(),
                      [](std::int64_t want, std::int64_t n) { return want < 0 || want == n; });
}

void check_arrays(const std::string& name, const std::vector<Program::Parameter>& parameters,
                  std::span<const Tensor> arrays, Device device) {
    if (arrays.size() != parameters.size()) {
        user_error(name, "expected {} arrays but got {}", parameters.size(), arrays.size());
    }
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        const Program::Parameter& parameter = parameters[i];
        if (!fits(parameter.type, arrays[i])) {
            user_error(name, "expected `{}` to be {} but got {}", parameter.name,
                       to_string(parameter.type), arrays[i].type_name());
        }
        if (!(arrays[i].device() == device)) {
            user_error(name, "expected `{}` on {} but it is on {}", parameter.name,
                       to_string(device), to_string(arrays[i].device()));
        }
        if (parameter.written) {
            run::check_writable(name, fmt::format("`{}`", parameter.name), arrays[i]);
        }
        for (std::size_t j = 0; j < i; ++j) {
            const Program::Parameter& other = parameters[j];
            const bool shared =
                parameter.alias_group >= 0 && parameter.alias_group == other.alias_group;
            if ((parameter.written || other.written) && !shared &&
                run::overlap(arrays[i], arrays[j])) {
                user_error(name,
                           "expected `{}` apart from `{}` but they share memory; give them one "
                           "alias group to update in place",
                           parameter.name, other.name);
            }
        }
    }
}

}  // namespace

Program::Program(std::string_view ir, ProgramOptions options) {
    auto state = std::make_shared<State>();
    ir::Function kernel = ir::parse(ir);
    state->name = kernel.name;
    state->device = options.device;
    state->parameters = parameters_of(kernel);
    state->grid = kernel.grid;
    if (std::find(kernel.grid.begin(), kernel.grid.end(), ir::kDynamic) != kernel.grid.end()) {
        user_error("program", "expected a grid of static extents for `{}` but got a free one",
                   kernel.name);
    }
    if (options.checked && options.device.kind != Device::Kind::cpu) {
        user_error("program", "expected the CPU for the checked mode but got {}",
                   to_string(options.device));
    }
    options.undefined.resize(state->parameters.size(), false);
    state->executable = run::make_executable(std::move(kernel),
                                             options.checked   ? run::Machine::checked
                                             : options.profile ? run::Machine::profiled
                                                               : run::Machine::native,
                                             std::move(options.undefined), options.device);
    state_ = std::move(state);
}

void Program::run(std::span<const Tensor> arrays) const {
    check_arrays(state_->name, state_->parameters, arrays, state_->device);
    ir::Arguments arguments;
    arguments.grid = state_->grid;
    for (const Tensor& array : arrays) {
        ir::RefArgument ref;
        ref.data = array.raw();
        std::copy(array.shape().begin(), array.shape().end(), ref.extents.begin());
        std::copy(array.strides().begin(), array.strides().end(), ref.strides.begin());
        arguments.refs.push_back(ref);
    }
    run::launch(state_->executable, arguments, arrays, {});
}

const std::vector<Program::Parameter>& Program::parameters() const {
    return state_->parameters;
}

Profile Program::profile() const {
    if (auto profile = state_->executable->profile()) return *std::move(profile);
    user_error("profile", "expected a run of `{}` made with ProgramOptions::profile before",
               state_->name);
}

const std::string& Program::name() const {
    return state_->name;
}

std::string batched_ir(std::string_view ir, const std::vector<bool>& mapped, std::int64_t size) {
    if (size < 0) user_error("batched_ir", "expected a size >= 0 but got {}", size);
    ir::Function kernel = ir::parse(ir);
    ir::add_batch(kernel, mapped, size);
    ir::verify(kernel);
    return ir::print(kernel);
}

}  // namespace tilewright
