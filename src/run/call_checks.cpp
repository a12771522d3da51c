// Checks of a call before it traces or launches.
#include <algorithm>
#include <vector>

#include "run/call_state.h"
#include "run/overlap.h"
#include "support/check.h"

namespace tilewright::detail {

void CallState::check_options() const {
    for (const auto& [name, hint] : {std::pair("num_warps", options_.num_warps),
                                     std::pair("num_stages", options_.num_stages)}) {
        if (hint < 0 || hint > ir::CompileHints::kMax) {
            user_error("call", "expected {} from 0 to {} for kernel `{}` but got {}", name,
                       ir::CompileHints::kMax, kernel_.name(), hint);
        }
    }
    if (const int warps = options_.num_warps; (warps & (warps - 1)) != 0)
        user_error("call", "expected num_warps of kernel `{}` to be a power of two but got {}",
                   kernel_.name(), warps);
    constexpr std::int64_t kMostTile = 65536;
    const auto [rows, lanes] = std::pair(options_.tile_rows, options_.tile_lanes);
    if (rows < 0 || lanes < 0 || rows > kMostTile || lanes > kMostTile || (rows > 0) != (lanes > 0))
        user_error("call",
                   "expected tile_rows and tile_lanes of kernel `{}` both from 1 to {}, or both 0, "
                   "but got {} and {}",
                   kernel_.name(), kMostTile, rows, lanes);
    for (const TensorType& scratch : options_.scratch) {
        constexpr double kMost = std::int64_t{1} << 40;
        double elements = 1;
        for (std::int64_t extent : scratch.shape) {
            elements *= static_cast<double>(extent);
            if (extent < 0 || elements > kMost) {
                user_error("call",
                           "expected scratch of kernel `{}` of extents of at least 0 and at most "
                           "2^40 elements but got {}",
                           kernel_.name(), to_string(scratch));
            }
        }
    }
    const auto& axes = options_.sequential;
    for (auto axis = axes.begin(); axis != axes.end(); ++axis) {
        if (std::find(axes.begin(), axis, *axis) != axis) {
            user_error("call", "expected each `sequential` axis of kernel `{}` once but got {}",
                       kernel_.name(), fmt::join(axes, ", "));
        }
    }
    for (const auto& [argument, dims] : options_.dynamic) {
        if (argument < 0 || std::any_of(dims.begin(), dims.end(), [](int d) { return d < 0; })) {
            user_error("call",
                       "expected `dynamic` of kernel `{}` to count arguments and dimensions from 0 "
                       "but got {}: {}",
                       kernel_.name(), argument, fmt::join(dims, ", "));
        }
    }
}

std::string CallState::argument_name(std::size_t argument) const {
    const auto& names = kernel_.parameter_names();
    return argument < names.size() ? names[argument] : fmt::format("argument {}", argument);
}

void CallState::check_inputs(std::span<const Tensor> inputs) const {
    if (inputs.size() < options_.in.size()) {
        user_error("call", "expected at least {} input{} for kernel `{}` but got {}",
                   options_.in.size(), options_.in.size() == 1 ? "" : "s", kernel_.name(),
                   inputs.size());
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const bool wants_none = i < options_.in.size() && options_.in[i].is_absent();
        if (wants_none && inputs[i].defined()) {
            user_error("call", "expected no tensor for `{}`, whose spec is absent, but got {}",
                       argument_name(i), inputs[i].type_name());
        }
        if (inputs[i].defined() && !(inputs[i].device() == device_of(inputs))) {
            user_error(
                "call", "expected all inputs on one device but `{}` is on {} and others on {}",
                argument_name(i), to_string(inputs[i].device()), to_string(device_of(inputs)));
        }
        if (inputs[i].rank() > ir::kMaxRefRank) {
            user_error("call", "expected `{}` to have rank <= {} but got {}", argument_name(i),
                       ir::kMaxRefRank, inputs[i].type_name());
        }
    }
}

void CallState::check_arguments(std::span<const Tensor> inputs, const Shapes& shapes) const {
    if (options_.out.size() > shapes.outputs.size()) {
        user_error("call", "expected at most {} output specs (the number of outputs) but got {}",
                   shapes.outputs.size(), options_.out.size());
    }
    for (int axis : options_.sequential) {
        const auto inner = static_cast<int>(shapes.grid.size() - batchings_.size());
        if (axis < 0 || axis >= inner) {
            user_error("call", "expected sequential axes of the {}-dimensional grid but got {}",
                       inner, axis);
        }
    }
    const auto num_inputs = static_cast<int>(inputs.size());
    for (const auto& [argument, dims] : options_.dynamic) {
        const int output = argument - num_inputs;
        if (output >= std::ssize(shapes.outputs)) {
            user_error("call",
                       "expected `dynamic` of kernel `{}` to name one of {} inputs and {} outputs "
                       "but got argument {}",
                       kernel_.name(), num_inputs, shapes.outputs.size(), argument);
        }
        const std::size_t at = argument;
        if (output < 0 && !inputs[at].defined()) continue;
        const Tensor::Dims& shape = output < 0 ? inputs[at].shape() : shapes.outputs[output].shape;
        auto rank = static_cast<int>(shape.size());
        for (int axis : batch_axes(at, inputs.size())) rank -= axis != kNotMapped;
        for (int d : dims) {
            if (d < rank) continue;
            user_error("call",
                       "expected `dynamic` of kernel `{}` to name dimensions of `{}` below its "
                       "rank, {}, but got {}",
                       kernel_.name(), argument_name(at), rank, d);
        }
    }
}

void CallState::check_aliases(std::span<const Tensor> inputs, const Shapes& shapes) const {
    for (const Alias& alias : options_.aliases) {
        const std::size_t in = alias.input;
        const std::size_t out = alias.output;
        if (alias.input < 0 || alias.output < 0 || in >= inputs.size() ||
            out >= shapes.outputs.size() || !inputs[in].defined()) {
            user_error("call",
                       "expected an alias between present arguments but got input {} and "
                       "output {}",
                       alias.input, alias.output);
        }
        for (const Batching& batching : batchings_) {
            const int in_axis = axis_of(batching.in_axes, in, kNotMapped),
                      out_axis = axis_of(batching.out_axes, out, 0);
            if (in_axis != out_axis) {
                user_error("vmap",
                           "expected one axis for input {} and output {}, which share memory, but "
                           "got {} and {}",
                           alias.input, alias.output, in_axis, out_axis);
            }
        }
        const auto again = [&](const Alias& other) {
            return &other != &alias && (other.input == alias.input || other.output == alias.output);
        };
        if (std::any_of(options_.aliases.begin(), options_.aliases.end(), again)) {
            user_error("call",
                       "expected each input and output in one alias but input {} or output {} is "
                       "in several",
                       alias.input, alias.output);
        }
        const TensorType given{inputs[in].dtype(), inputs[in].shape()};
        if (!(given == shapes.outputs[out])) {
            user_error("call",
                       "expected `{}` to have the type of output {}, {}, which it is aliased "
                       "to, but got {}",
                       argument_name(in), out, to_string(shapes.outputs[out]), to_string(given));
        }
    }
}

void CallState::check_overlap(std::span<const Tensor> inputs,
                              std::span<const Tensor> outputs) const {
    const auto aliased = [&](std::size_t in, std::size_t out) {
        return std::any_of(
            options_.aliases.begin(), options_.aliases.end(), [&](const Alias& alias) {
                return alias.input == static_cast<int>(in) && alias.output == static_cast<int>(out);
            });
    };
    for (std::size_t o = 0; o < outputs.size(); ++o) {
        const run::ByteRange range = run::byte_range(outputs[o]);
        if (outputs[o].read_only() || run::overlaps_itself(outputs[o])) {
            run::check_writable("call", fmt::format("output {} of kernel `{}`", o, kernel_.name()),
                                outputs[o]);
        }
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            if (run::byte_range(inputs[i]).meets(range) && !aliased(i, o) &&
                run::overlap(inputs[i], outputs[o])) {
                user_error("call",
                           "expected output {} of kernel `{}` apart from `{}` but they share "
                           "memory; declare an alias to update in place",
                           o, kernel_.name(), argument_name(i));
            }
        }
        for (std::size_t p = 0; p < o; ++p) {
            if (run::overlap(outputs[p], outputs[o])) {
                user_error("call",
                           "expected outputs {} and {} of kernel `{}` apart but they share "
                           "memory",
                           p, o, kernel_.name());
            }
        }
    }
}

}  // namespace tilewright::detail
