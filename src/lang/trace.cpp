// Traces a kernel under the signature of a call into tile IR.
#include "lang/trace.h"

#include <algorithm>
#include <functional>
#include <map>

#include "ir/passes/range_ops.h"
#include "lang/tracer.h"

namespace tilewright::lang {

namespace {

std::string quoted(const Kernel& kernel, const Parameter& parameter) {
    return fmt::format("`{}` of kernel `{}`", parameter.name, kernel.name());
}

/// Ranges of the values that an index map computes, as far as it has no control flow.
class IndexRanges {
  public:
    explicit IndexRanges(Tracer& tracer, std::span<const Tile> grid_indices)
        : tracer_(tracer), seen_(instructions().size()) {
        // An extent that is known only at the call is at most the largest that can run.
        constexpr std::int64_t kMost = std::int64_t{1} << 40;
        for (std::size_t axis = 0; axis < grid_indices.size(); ++axis) {
            const std::int64_t extent = tracer.grid[axis].extent;
            ranges_[tracer.use(grid_indices[axis])] = ir::Interval::integers(
                0, extent == kDynamic ? kMost : std::max<std::int64_t>(extent - 1, 0));
        }
    }

    ir::Interval of(ir::Value value) {
        const auto known = [&](ir::Value operand) {
            const auto found = ranges_.find(operand);
            return found != ranges_.end() ? found->second
                                          : ir::Interval::all(tracer_.type(operand).dtype);
        };
        for (; seen_ < instructions().size(); ++seen_) {
            const ir::Instruction& instruction = instructions()[seen_];
            if (instruction.results.size() != 1) continue;
            ranges_[instruction.result()] =
                ir::result_range(tracer_.function(), instruction, known);
        }
        return known(value);
    }

  private:
    const std::vector<ir::Instruction>& instructions() { return tracer_.builder().block().body; }

    Tracer& tracer_;
    std::size_t seen_;
    std::map<ir::Value, ir::Interval> ranges_;
};

/// What a parameter's index map returns: one index per dimension of its array.
std::vector<Operand> block_indices(const Kernel& kernel, const Parameter& parameter,
                                   std::span<const Tile> grid_indices) {
    const std::size_t rank = parameter.extents.size();
    const auto& index_map = parameter.spec.index_map();
    if (!index_map) return std::vector<Operand>(rank, Operand(0));
    const int arity = parameter.spec.arity();
    if (arity >= 0 && arity != std::ssize(grid_indices)) {
        user_error("call",
                   "expected the index map of {} to take {} indices (one per grid axis) "
                   "but it takes {}",
                   quoted(kernel, parameter), grid_indices.size(), arity);
    }
    std::vector<Operand> indices = index_map(grid_indices).indices;
    if (indices.size() != rank) {
        user_error("call", "expected the index map of {} to return {} indices but got {}",
                   quoted(kernel, parameter), rank, indices.size());
    }
    return indices;
}

/// The view of a parameter's array that this program works on.
View block_view(Tracer& tracer, const Kernel& kernel, const Parameter& parameter, ir::Value ref,
                std::span<const Tile> grid_indices) {
    View view{ref, parameter.name, parameter.writable, {}};
    const std::size_t rank = parameter.extents.size();
    view.indices.resize(rank);
    if (parameter.spec.is_whole()) {
        for (std::size_t d = 0; d < rank; ++d) view.indices[d].size = parameter.extents[d];
        return view;
    }
    const auto& block = parameter.spec.shape();
    if (block.size() != rank) {
        user_error("call",
                   "expected a block shape of rank {} for {}, an array of rank {}, but got rank {}",
                   rank, quoted(kernel, parameter), rank, block.size());
    }
    IndexRanges ranges(tracer, grid_indices);
    const std::vector<Operand> indices = block_indices(kernel, parameter, grid_indices);
    for (std::size_t d = 0; d < rank; ++d) {
        const BlockDim& dim = block[d];
        ArrayIndex& index = view.indices[d];
        if (dim.kind == BlockDim::Kind::whole) {
            index.size = parameter.extents[d];
            continue;
        }
        if (dim.size <= 0 && !(dim.size == 0 && parameter.extents[d] == 0)) {
            user_error("call", "expected a positive block size in dimension {} of {} but got {}", d,
                       quoted(kernel, parameter), dim.size);
        }
        index.size = dim.size;
        index.is_block = dim.size != parameter.extents[d];
        const bool is_origin = indices[d].is_literal() && indices[d].integer() == 0 &&
                               indices[d].kind() != Operand::Kind::floating;
        if (dim.kind == BlockDim::Kind::squeezed) index.kind = ir::Index::Kind::scalar;
        if (is_origin && dim.kind != BlockDim::Kind::squeezed) continue;
        index.start = tracer.index(
            indices[d], "call",
            fmt::format("index {} of the index map of {}", d, quoted(kernel, parameter)));
        if (dim.kind == BlockDim::Kind::blocked) {
            index.start = tracer.scaled_index(index.start, dim.size, ranges.of(index.start));
        }
    }
    return view;
}

/// Emits a loop for each remaining sequential axis, then the body of the kernel.
void emit_programs(Tracer& tracer, std::span<const int> sequential,
                   const std::function<void()>& emit_body) {
    if (sequential.empty()) return emit_body();
    auto& axis = tracer.grid[sequential.front()];
    tracer.builder().for_loop(tracer.index_constant(0), tracer.index_constant(axis.extent),
                              tracer.index_constant(1), {},
                              [&](ir::Value iv, std::span<const ir::Value>) {
                                  axis.index = iv;
                                  emit_programs(tracer, sequential.subspan(1), emit_body);
                                  return std::vector<ir::Value>();
                              });
}

/// Removes scratch that a loop body asked for when it was traced into a discarded block.
void drop_unused_scratch(ir::Function& function) {
    std::vector<bool> used(function.num_values(), false);
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        for (ir::Value operand : instruction.operands) used[operand.id] = true;
    });
    std::erase_if(function.body.arguments, [&](ir::Value parameter) {
        return !used[parameter.id] && function.is_ref(parameter) &&
               function.ref_type(parameter).space == ir::Space::scratch;
    });
}

/// "3: 1 input, 2 outputs, 0 scratch".
std::string counted(const std::vector<Parameter>& parameters) {
    const auto of = [&](Parameter::Role role) {
        return std::count_if(parameters.begin(), parameters.end(),
                             [&](const Parameter& each) { return each.role == role; });
    };
    const auto inputs = of(Parameter::Role::input), outputs = of(Parameter::Role::output);
    return fmt::format("{}: {} input{}, {} output{}, {} scratch", parameters.size(), inputs,
                       inputs == 1 ? "" : "s", outputs, outputs == 1 ? "" : "s",
                       of(Parameter::Role::scratch));
}

}  // namespace

ir::Function trace(const Kernel& kernel, const Signature& signature) {
    if (kernel.arity() >= 0 && kernel.arity() != std::ssize(signature.parameters)) {
        user_error("call", "expected {} Ref{} for kernel `{}` but got {}", kernel.arity(),
                   kernel.arity() == 1 ? "" : "s", kernel.name(), counted(signature.parameters));
    }
    const std::size_t num_names = kernel.parameter_names().size();
    if (num_names != 0 && num_names != signature.parameters.size()) {
        user_error("call", "expected {} Refs for kernel `{}`, as many as it has names, but got {}",
                   num_names, kernel.name(), counted(signature.parameters));
    }
    Tracer tracer(kernel.name());
    tracer.checked = signature.checked;
    tracer.hidden_axes = signature.hidden_axes;
    ir::Function& function = tracer.function();
    function.hints = signature.hints;

    std::vector<ir::Value> refs;
    for (const Parameter& parameter : signature.parameters) {
        if (parameter.spec.is_absent()) {
            if (parameter.role == Parameter::Role::output) {
                Tracer::with_line(parameter.spec.location(), [&] {
                    user_error("call",
                               "expected a block of output {} but its spec is absent; only inputs "
                               "may be left out",
                               quoted(kernel, parameter));
                });
            }
            refs.emplace_back();
            continue;
        }
        ir::RefType type{parameter.dtype, parameter.extents, ir::Space::global,
                         parameter.alias_group};
        if (parameter.role == Parameter::Role::scratch) type.space = ir::Space::scratch;
        refs.push_back(function.add_parameter(std::move(type), parameter.name));
    }
    std::vector<int> sequential = signature.sequential;
    std::sort(sequential.begin(), sequential.end());
    for (std::size_t axis = 0; axis < signature.grid.size(); ++axis) {
        Tracer::GridAxis grid_axis;
        grid_axis.extent = signature.grid[axis];
        if (std::find(sequential.begin(), sequential.end(), static_cast<int>(axis)) ==
            sequential.end()) {
            grid_axis.axis = static_cast<int>(function.grid.size());
            function.grid.push_back(grid_axis.extent);
        }
        tracer.grid.push_back(grid_axis);
    }

    emit_programs(tracer, sequential, [&] {
        std::vector<Tile> grid_indices;
        for (const auto& axis : tracer.grid) {
            grid_indices.push_back(tracer.wrap(tracer.program_index(axis)));
        }
        std::vector<Ref> views;
        for (std::size_t p = 0; p < signature.parameters.size(); ++p) {
            const Parameter& parameter = signature.parameters[p];
            if (parameter.spec.is_absent()) {
                views.push_back(tracer.add_view({{}, parameter.name, false, {}}));
            } else {
                views.push_back(tracer.add_view(tracer.at(parameter.spec.location(), [&] {
                    return block_view(tracer, kernel, parameter, refs[p], grid_indices);
                })));
            }
        }
        try {
            kernel(views);
        } catch (const std::bad_function_call&) {
            user_error("call", "expected kernel `{}` to have a body but it holds an empty function",
                       kernel.name());
        }
    });
    tracer.builder().yield({});
    drop_unused_scratch(function);
    return std::move(function);
}

ir::Function trace_mod(std::string name, std::span<const DType> parameters,
                       const std::function<Tile(std::span<const Tile>)>& mod) {
    Tracer tracer(std::move(name));
    std::vector<Tile> arguments;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
        arguments.push_back(tracer.wrap(
            tracer.function().add_parameter(ir::Type{parameters[p], {}}, fmt::format("a{}", p))));
    }
    const ir::Value result = tracer.use(mod(arguments));
    if (!tracer.type(result).is_scalar()) {
        user_error("mod", "expected a scalar result but got {}",
                   ir::to_string(tracer.type(result)));
    }
    tracer.builder().yield(std::vector{result});
    return std::move(tracer.function());
}

}  // namespace tilewright::lang
