// Scans and reductions with the user's operator.
#include "tilewright/lang/combine.h"

#include <bit>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ir/access.h"
#include "lang/tracer.h"
#include "support/debug_log.h"

namespace tilewright::detail {

using ir::Op;
using lang::Tracer;

namespace {

/// The elements as values with a common length along one axis.
class Elements {
  public:
    Elements(Tracer& tracer, const char* op, const Operands& elements, int axis)
        : tracer_(tracer), op_(op) {
        if (elements.empty()) user_error(op, "expected at least one tile but got none");
        const int rank = tracer.shape(elements.front()).rank();
        if (axis < -rank || axis >= rank) {
            user_error(op, "expected an axis in [{}, {}) but got {}", -rank, rank, axis);
        }
        axis_ = axis < 0 ? axis + rank : axis;
        length_ = tracer.shape(elements.front())[axis_];
        for (const Operand& element : elements) {
            const ir::Shape shape = tracer.shape(element);
            if (shape.rank() != rank || shape[axis_] != length_) {
                user_error(op, "expected tiles of rank {} and {} elements along axis {} but got {}",
                           rank, length_, axis_, ir::to_string(shape));
            }
            values_.push_back(tracer.value(element));
        }
    }

    Tracer& tracer() const { return tracer_; }
    int axis() const { return axis_; }
    std::int64_t length() const { return length_; }
    const std::vector<ir::Value>& values() const { return values_; }

    /// `count` elements of each tile from `first` on, every `step`-th.
    std::vector<ir::Value> part(const std::vector<ir::Value>& values, std::int64_t first,
                                std::int64_t count, std::int64_t step = 1) const {
        std::vector<ir::Value> parts;
        for (const ir::Value value : values) {
            const ir::Shape shape = tracer_.type(value).shape;
            ir::SliceAttributes slice;
            for (int a = 0; a < shape.rank(); ++a) {
                const bool cut = a == axis_;
                slice.starts.push_back(cut ? first : 0);
                slice.sizes.push_back(cut ? count : shape[a]);
                slice.strides.push_back(cut ? step : 1);
            }
            parts.push_back(tracer_.builder().slice(value, slice));
        }
        return parts;
    }

    std::vector<ir::Value> joined(const std::vector<ir::Value>& first,
                                  const std::vector<ir::Value>& second) const {
        std::vector<ir::Value> results;
        for (std::size_t i = 0; i < first.size(); ++i) {
            results.push_back(
                tracer_.builder().concatenate(std::array{first[i], second[i]}, axis_));
        }
        return results;
    }

    /// combine(before, after) with the types of `before`: literals take them, tiles must have them.
    std::vector<ir::Value> combined(const Combine& combine, const std::vector<ir::Value>& before,
                                    const std::vector<ir::Value>& after) const {
        const Operands results = combine(wrapped(before), wrapped(after));
        if (results.size() != before.size()) {
            user_error(op_, "expected combine to return {} values but got {}", before.size(),
                       results.size());
        }
        std::vector<ir::Value> values;
        for (std::size_t i = 0; i < results.size(); ++i) {
            const ir::Type& type = tracer_.type(before[i]);
            const bool literal = results[i].is_literal();
            const ir::Value value =
                literal ? tracer_.literal(results[i], type.dtype, op_) : tracer_.value(results[i]);
            const ir::Type got = tracer_.type(value);
            if (!(got == type) && !(got.dtype == type.dtype && got.is_scalar())) {
                user_error(op_, "expected combine to return {} for value {} but got {}",
                           ir::to_string(type), i, ir::to_string(got));
            }
            values.push_back(tracer_.broadcast(value, type.shape, op_));
        }
        return values;
    }

    Tiles wrapped(const std::vector<ir::Value>& values) const {
        Tiles tiles;
        for (const ir::Value value : values) tiles.push_back(tracer_.wrap(value));
        return tiles;
    }

  private:
    Tracer& tracer_;
    const char* op_;
    int axis_ = 0;
    std::int64_t length_ = 0;
    std::vector<ir::Value> values_;
};

/// The first step of a scan in steps: neighbours combined, while the user's function is traced.
struct FirstStep {
    std::vector<ir::Instruction> made;
    std::size_t slices = 0;  ///< instructions before those of the function
    std::vector<ir::Value> before, after, results;
};

FirstStep first_step(const Elements& of, const Combine& combine, bool reverse) {
    Tracer& tracer = of.tracer();
    const Tracer::Scope scope(tracer);
    FirstStep step;
    ir::Block block;
    tracer.builder().push_block(block);
    try {
        step.before = of.part(of.values(), 0, of.length() - 1);
        step.after = of.part(of.values(), 1, of.length() - 1);
        if (reverse) std::swap(step.before, step.after);
        step.slices = block.body.size();
        step.results = of.combined(combine, step.before, step.after);
    } catch (...) {
        tracer.builder().pop_block();
        throw;
    }
    tracer.builder().pop_block();
    step.made = std::move(block.body);
    return step;
}

/// What a function does on tiles in the first step, taken apart into what it does with one element
/// of each.
class ElementwiseMod {
  public:
    ElementwiseMod(Tracer& tracer, const FirstStep& step) : tracer_(tracer) {
        auto mod = std::make_shared<ir::Function>();
        mod->name = "combine";
        mod_ = mod.get();
        ir::Builder builder(*mod);
        builder_ = &builder;
        for (const auto& [values, side] : {std::pair(&step.before, 'a'), {&step.after, 'b'}}) {
            for (std::size_t i = 0; i < values->size(); ++i) {
                const ir::Value value = (*values)[i];
                element_[value] = mod->add_parameter(ir::Type{tracer.type(value).dtype, {}},
                                                     fmt::format("{}{}", side, i));
            }
        }
        for (std::size_t i = step.slices; i < step.made.size(); ++i) {
            if (!add(step.made[i])) {
                location_ = step.made[i].location;
                return;
            }
        }
        std::vector<ir::Value> yielded;
        for (const ir::Value value : step.results) {
            if (!find(value)) return;
            yielded.push_back(element_.at(value));
        }
        builder.yield(yielded);
        result_ = std::move(mod);
    }

    /// nullptr for functions that do more than arithmetic on elements and scalars.
    const std::shared_ptr<const ir::Function>& mod() const { return result_; }
    /// Scalars of the kernel that the mod takes.
    const std::vector<ir::Value>& captured() const { return captured_; }
    /// Why there is no mod, and the line, if one is to blame.
    const std::string& reason() const { return reason_; }
    const ir::Location& location() const { return location_; }

  private:
    /// True when the value is an element, or a scalar of the kernel, which becomes a parameter.
    bool find(ir::Value value) {
        if (element_.contains(value)) return true;
        const ir::Function& kernel = tracer_.function();
        if (kernel.is_ref(value) || !kernel.type(value).is_scalar()) {
            reason_ = fmt::format("its function uses a tile from outside of it, {}",
                                  kernel.is_ref(value) ? ir::to_string(kernel.ref_type(value))
                                                       : ir::to_string(kernel.type(value)));
            return false;
        }
        element_[value] =
            mod_->add_parameter(kernel.type(value), fmt::format("c{}", captured_.size()));
        captured_.push_back(value);
        return true;
    }

    bool add(const ir::Instruction& made) {
        const bool is_elementwise = ir::is_elementwise(made.op) || made.op == Op::constant;
        if (!is_elementwise && made.op != Op::broadcast) {
            reason_ =
                fmt::format("its function has `{}`, which is not elementwise", ir::name(made.op));
            return false;
        }
        for (const ir::Value operand : made.operands) {
            if (!find(operand)) return false;
        }
        if (made.op == Op::broadcast) {
            element_[made.result()] = element_.at(made.operands[0]);
            return true;
        }
        ir::Instruction scalar;
        scalar.op = made.op;
        scalar.attributes = made.attributes;
        scalar.location = made.location;
        for (const ir::Value operand : made.operands)
            scalar.operands.push_back(element_.at(operand));
        const ir::Type type{tracer_.type(made.result()).dtype, {}};
        element_[made.result()] = builder_->append(std::move(scalar), &type).at(0);
        return true;
    }

    Tracer& tracer_;
    ir::Function* mod_ = nullptr;
    ir::Builder* builder_ = nullptr;
    std::map<ir::Value, ir::Value> element_;  ///< of the kernel's values, in the mod
    std::vector<ir::Value> captured_;
    std::shared_ptr<const ir::Function> result_;
    std::string reason_;
    ir::Location location_;
};

/// The shape in which all elements are scanned together, if there is one.
std::optional<ir::Shape> joint_shape(const Elements& of) {
    std::optional<ir::Shape> joint = ir::Shape();
    for (const ir::Value value : of.values()) {
        if (joint) joint = ir::joint_shape(*joint, of.tracer().type(value).shape);
    }
    return joint;
}

std::vector<ir::Value> scanned(const Elements& of, const ir::Shape& joint,
                               const ElementwiseMod& combine, bool reverse) {
    Tracer& tracer = of.tracer();
    ir::Builder& builder = tracer.builder();
    std::vector<ir::Value> operands;
    for (const ir::Value value : of.values()) operands.push_back(builder.broadcast(value, joint));
    operands.insert(operands.end(), combine.captured().begin(), combine.captured().end());
    std::vector<ir::Value> results =
        builder.associative_scan(combine.mod(), operands, of.axis(), reverse);
    for (std::size_t i = 0; i < results.size(); ++i) {
        const ir::Shape shape = tracer.type(of.values()[i]).shape;
        if (shape == joint) continue;
        ir::SliceAttributes slice;
        slice.sizes.assign(shape.dims().begin(), shape.dims().end());
        slice.starts.assign(slice.sizes.size(), 0);
        slice.strides.assign(slice.sizes.size(), 1);
        results[i] = builder.slice(results[i], slice);
    }
    return results;
}

// After the step with `reach`, every element combines the last 2 * reach elements up to itself.
std::vector<ir::Value> scanned_in_steps(const Elements& of, FirstStep first, const Combine& combine,
                                        bool reverse) {
    std::vector<ir::Instruction>& body = of.tracer().builder().block().body;
    body.insert(body.end(), std::make_move_iterator(first.made.begin()),
                std::make_move_iterator(first.made.end()));
    const std::int64_t length = of.length();
    std::vector<ir::Value> now = of.values();
    for (std::int64_t reach = 1; reach < length; reach *= 2) {
        std::vector<ir::Value> combined = std::move(first.results);
        if (reach > 1) {
            const auto low = of.part(now, 0, length - reach);
            const auto high = of.part(now, reach, length - reach);
            combined = of.combined(combine, reverse ? high : low, reverse ? low : high);
        }
        now = reverse ? of.joined(combined, of.part(now, length - reach, reach))
                      : of.joined(of.part(now, 0, reach), combined);
    }
    return now;
}

void log_steps(const Elements& of, const std::string& reason, const ir::Location& at) {
    const auto steps = std::bit_width(static_cast<std::uint64_t>(of.length() - 1));
    debug_log(of.tracer().function().name, "slow path: associative_scan in {} step{}, since {}{}",
              steps, steps == 1 ? "" : "s", reason,
              at.file.empty() ? "" : fmt::format(" (at {}:{})", at.file, at.line));
}

}  // namespace

Tiles associative_scan(const Combine& combine, const Operands& elements, int axis, bool reverse,
                       std::source_location location) {
    Tracer& tracer = Tracer::current("associative_scan", location);
    return tracer.at(location, [&] {
        const Elements of(tracer, "associative_scan", elements, axis);
        if (of.length() <= 1) return of.wrapped(of.values());
        const ir::Location here = tracer.location();
        FirstStep first = first_step(of, combine, reverse);
        tracer.builder().set_location(here);
        const auto joint = joint_shape(of);
        if (joint) {
            const ElementwiseMod mod(tracer, first);
            if (mod.mod()) return of.wrapped(scanned(of, *joint, mod, reverse));
            log_steps(of, mod.reason(), mod.location().file.empty() ? here : mod.location());
        } else {
            log_steps(of, "its tiles have no shape in common", here);
        }
        return of.wrapped(scanned_in_steps(of, std::move(first), combine, reverse));
    });
}

// Combines neighbours until one element is left; an odd one at the end is carried over.
Tiles reduce(const Combine& combine, const Operands& elements, int axis, bool keepdims,
             std::source_location location) {
    Tracer& tracer = Tracer::current("reduce", location);
    return tracer.at(location, [&] {
        const Elements of(tracer, "reduce", elements, axis);
        std::int64_t length = of.length();
        if (length == 0) {
            user_error("reduce", "expected at least one element along axis {} but got none",
                       of.axis());
        }
        std::vector<ir::Value> now = of.values();
        for (; length > 1; length = (length + 1) / 2) {
            const std::int64_t pairs = length / 2;
            auto next = of.combined(combine, of.part(now, 0, pairs, 2), of.part(now, 1, pairs, 2));
            if (length % 2 != 0) next = of.joined(next, of.part(now, length - 1, 1));
            now = std::move(next);
        }
        if (!keepdims) {
            for (ir::Value& value : now) {
                value =
                    tracer.builder().reshape(value, tracer.type(value).shape.without(of.axis()));
            }
        }
        return of.wrapped(now);
    });
}

}  // namespace tilewright::detail
