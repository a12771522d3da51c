// Chooses the lane axis of every tile value by a small cost model.
#include "cpu/layout.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "cpu/picks.h"
#include "cpu/simd/kernels.h"

namespace tilewright::cpu {

using ir::Op;
using ir::Value;

bool is_vector(const ir::Shape& shape) {
    int long_axes = 0;
    for (const std::int64_t dim : shape.dims()) long_axes += dim != 1;
    return long_axes <= 1;
}

int long_axis(const ir::Shape& shape) {
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        if (shape[axis] != 1) return axis;
    }
    return shape.rank() - 1;
}

int contiguous_axis(const ir::AccessAttributes& access, const ir::Shape& shape) {
    const bool slice = !access.indices.empty() &&
                       access.indices.back().kind == ir::Index::Kind::slice &&
                       access.indices.back().stride == 1;
    return slice ? shape.rank() - 1 : -1;
}

bool feeds_only_dots(const std::vector<const ir::Instruction*>& users, Value value) {
    return !users.empty() && std::all_of(users.begin(), users.end(), [&](const auto* user) {
        const bool operand =
            user->op == Op::dot && (user->operands.size() < 3 || user->operands[2] != value);
        return operand;
    });
}

std::vector<std::vector<const ir::Instruction*>> users_of(const ir::Function& function) {
    std::vector<std::vector<const ir::Instruction*>> users(function.num_values());
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        for (const Value operand : instruction.operands) users[operand.id].push_back(&instruction);
    });
    return users;
}

DotRoles dot_roles(const ir::Function& function, const ir::Instruction& dot, int lane) {
    const auto& attributes = dot.get<ir::DotAttributes>();
    const int rank = function.type(dot.result()).shape.rank();
    DotRoles roles;
    roles.lanes_are_m = lane == rank - 2;
    roles.vector = dot.operands[roles.lanes_are_m ? 0 : 1];
    roles.broadcast = dot.operands[roles.lanes_are_m ? 1 : 0];
    const bool transposed = roles.lanes_are_m ? attributes.transpose_a : attributes.transpose_b;
    roles.vector_axis = roles.lanes_are_m == transposed ? rank - 1 : rank - 2;
    const bool other_transposed =
        roles.lanes_are_m ? attributes.transpose_b : attributes.transpose_a;
    roles.broadcast_k_axis = roles.lanes_are_m == other_transposed ? rank - 1 : rank - 2;
    return roles;
}

bool has_few_rows(const ir::Shape& result, int lane) {
    constexpr std::int64_t kFewRows = 8;
    return result.rank() == 2 && result[1 - lane] <= kFewRows;
}

DotForm dot_form(const ir::Function& function, const ir::Instruction& dot) {
    using enum DType;
    const ir::Type& a = function.type(dot.operands[0]);
    const int rank = a.shape.rank();
    const bool transposed = dot.get<ir::DotAttributes>().transpose_a;
    const std::int64_t k = a.shape[transposed ? rank - 2 : rank - 1];
    switch (a.dtype) {
        case bf16:
        case f8e4m3:
        case f8e5m2:
            if (k % 2 == 0 && kernels().gemm_bf16_pairs != nullptr) return {bf16, 2};
            return {f32, 1};
        case f16:
            return {f32, 1};
        case i8:
        case u8:
            if (k % 4 == 0 && kernels().gemm_i8_quads != nullptr) return {a.dtype, 4};
            [[fallthrough]];
        case i16:
            if (k % 2 == 0 && kernels().gemm_i16_pairs != nullptr) return {i16, 2};
            return {i32, 1};
        case u16:
            return {i32, 1};
        default:
            return {a.dtype, 1};
    }
}

bool wants_k_contiguous(const DotForm& form) {
    return kernels().wants_k_contiguous && form.group > 1 && form.element != DType::i16;
}

namespace {

// Relative costs of handling one element, in passes over it:
constexpr double kTranspose = 1.0;     // when loading or storing
constexpr double kConvert = 1.5;       // from one tile layout to another
constexpr double kCopy = 0.25;         // along the lanes
constexpr double kUnpackedRows = 0.1;  // the vector operand of a dot read in place
constexpr double kHorizontalReduce = 0.5;
constexpr double kHorizontalScan = 0.5;
constexpr double kProducts = 1.0 / 16;  // one multiplication in a dot whose lanes are wasted
constexpr double kUnknownTrips = 16;
constexpr double kMaxTrips = 64;
constexpr std::size_t kMaxCombinations = 512;

class UnionFind {
  public:
    explicit UnionFind(std::size_t size) : parent_(size) {
        std::iota(parent_.begin(), parent_.end(), std::size_t{0});
    }
    std::size_t find(std::size_t x) {
        while (parent_[x] != x) x = parent_[x] = parent_[parent_[x]];
        return x;
    }
    void join(std::size_t a, std::size_t b) { parent_[find(a)] = find(b); }

  private:
    std::vector<std::size_t> parent_;
};

class LaneAssignment {
  public:
    explicit LaneAssignment(const ir::Function& function)
        : function_(function),
          users_(users_of(function)),
          definitions_(function),
          axes_(function.num_values() * ir::kMaxTileRank),
          values_(function.num_values()),
          lane_(function.num_values(), 0),
          weight_of_(function.num_values(), 1) {
        ir::walk(function.body, [&](const ir::Instruction& instruction) {
            if (instruction.op != Op::constant) return;
            const auto bits = instruction.get<ir::ConstantAttributes>().bits;
            constants_[instruction.result()] = static_cast<std::int64_t>(bits);
        });
    }

    std::vector<LaneChoice> run() {
        visit(function_.body, 1);
        collect_components();
        search();
        std::vector<LaneChoice> result(function_.num_values());
        for (std::uint32_t id = 0; id < result.size(); ++id) {
            if (!function_.is_ref(Value{id})) result[id].axis = lane_[id];
        }
        for (const Component& component : components_) {
            const std::int64_t width = panel_width(component);
            for (const std::uint32_t id : component.values) result[id].width = width;
        }
        return result;
    }

  private:
    using Shape = ir::Shape;

    /// An instruction whose cost depends on lane axes, and how often it runs.
    struct Priced {
        const ir::Instruction* instruction;
        double weight;
    };

    /// Values whose lane axes are chosen together: one choice per class of axes.
    struct Component {
        std::vector<std::uint32_t> values;
        std::vector<std::size_t> classes;
        std::size_t choice = 0;
    };

    const Shape& shape(Value value) const { return function_.type(value).shape; }
    bool has_layout(Value value) const {
        return !function_.is_ref(value) && !is_vector(shape(value)) && !is_lazy(value);
    }
    bool is_lazy(Value value) const { return lazy_.contains(value); }

    void link(Value a, int axis_a, Value b, int axis_b) {
        if (!has_layout(a) || !has_layout(b)) return;
        if (shape(a)[axis_a] == 1 || shape(b)[axis_b] == 1) return;
        axes_.join(a.id * ir::kMaxTileRank + static_cast<std::size_t>(axis_a),
                   b.id * ir::kMaxTileRank + static_cast<std::size_t>(axis_b));
        values_.join(a.id, b.id);
    }
    void link(Value a, Value b) {
        if (function_.is_ref(a) || function_.is_ref(b)) return;
        if (shape(a).rank() != shape(b).rank()) return;
        for (int axis = 0; axis < shape(a).rank(); ++axis) link(a, axis, b, axis);
    }

    void visit(const ir::Block& block, double weight) {
        for (const ir::Instruction& instruction : block.body) visit(instruction, weight);
    }

    void visit(const ir::Instruction& instruction, double weight) {
        const auto& operands = instruction.operands;
        for (const Value result : instruction.results) {
            weight_of_[result.id] = weight;
            if (instruction.op == Op::constant || instruction.op == Op::iota) continue;
            if (!shape(result).rank()) continue;
            lane_[result.id] = long_axis(shape(result));
        }
        switch (instruction.op) {
            case Op::load: {
                const Value result = instruction.result();
                if (feeds_only_dots(users_[result.id], result)) lazy_.insert(result);
                priced_.push_back({&instruction, weight});
                return;
            }
            case Op::store:
                priced_.push_back({&instruction, weight});
                return;
            case Op::reduce:
            case Op::scan: {
                const int axis = instruction.get<ir::ReduceAttributes>().axis;
                const bool drops = instruction.op == Op::reduce;
                for (int a = 0; a < shape(operands[0]).rank(); ++a) {
                    if (drops && a == axis) continue;
                    link(operands[0], a, instruction.result(), a - (drops && a > axis));
                }
                if (drops && pick_form(function_, definitions_, instruction))
                    picks_.insert(instruction.result());
                priced_.push_back({&instruction, weight});
                return;
            }
            case Op::dot:
                made_by_dot_.insert(instruction.result());
                if (operands.size() > 2) link(operands[2], instruction.result());
                priced_.push_back({&instruction, weight});
                return;
            case Op::expand_dims: {
                const int at = instruction.get<ir::AxisAttributes>().axis;
                for (int a = 0; a < shape(operands[0]).rank(); ++a) {
                    link(operands[0], a, instruction.result(), a + (a >= at));
                }
                return;
            }
            case Op::transpose: {
                const auto& from = instruction.get<ir::PermutationAttributes>().permutation;
                for (std::size_t a = 0; a < from.size(); ++a) {
                    link(operands[0], from[a], instruction.result(), static_cast<int>(a));
                }
                return;
            }
            case Op::reshape:
                return link_reshape(operands[0], instruction.result());
            case Op::for_loop:
                return visit_for(instruction, weight);
            case Op::while_loop: {
                for (const ir::Block& block : instruction.blocks) {
                    for (std::size_t i = 0; i < operands.size(); ++i) {
                        link(operands[i], block.arguments[i]);
                        start(block.arguments[i]);
                    }
                    visit(block, weight * kUnknownTrips);
                }
                for (std::size_t i = 0; i < operands.size(); ++i) {
                    link(operands[i], instruction.blocks[1].terminator().operands[i]);
                    link(operands[i], instruction.results[i]);
                }
                return;
            }
            case Op::if_else:
                for (const ir::Block& block : instruction.blocks) {
                    visit(block, weight);
                    for (std::size_t i = 0; i < instruction.results.size(); ++i) {
                        link(block.terminator().operands[i], instruction.results[i]);
                    }
                }
                return;
            default:
                break;
        }
        if (instruction.op == Op::associative_scan) {
            for (std::size_t i = 0; i < instruction.results.size(); ++i) {
                link(operands[0], operands[i]);
                link(operands[0], instruction.results[i]);
            }
            priced_.push_back({&instruction, weight});
            return;
        }
        const bool along = ir::is_elementwise(instruction.op) || instruction.op == Op::broadcast ||
                           instruction.op == Op::slice || instruction.op == Op::concatenate ||
                           instruction.op == Op::random_bits;
        if (!along) return;
        for (const Value operand : operands) {
            for (const Value result : instruction.results) link(operand, result);
        }
    }

    void start(Value argument) {
        if (!function_.is_ref(argument) && shape(argument).rank() > 0) {
            lane_[argument.id] = long_axis(shape(argument));
        }
    }

    void visit_for(const ir::Instruction& loop, double weight) {
        const ir::Block& body = loop.blocks[0];
        for (std::size_t i = 0; i < loop.results.size(); ++i) {
            const Value argument = body.arguments[i + 1];
            start(argument);
            link(loop.operands[i + 3], argument);
            link(argument, loop.results[i]);
            link(argument, body.terminator().operands[i]);
        }
        visit(body, weight * trips(loop));
    }

    double trips(const ir::Instruction& loop) const {
        std::array<std::int64_t, 3> bounds{};
        for (std::size_t i = 0; i < 3; ++i) {
            const auto found = constants_.find(loop.operands[i]);
            if (found == constants_.end()) return kUnknownTrips;
            bounds[i] = found->second;
        }
        if (bounds[2] <= 0) return kUnknownTrips;
        const double count = static_cast<double>(ceil_div(bounds[1] - bounds[0], bounds[2]));
        return std::clamp(count, 1.0, kMaxTrips);
    }

    /// Links the long axes of both shapes where they have equal extents in equal order.
    void link_reshape(Value from, Value to) {
        std::vector<int> a, b;
        for (int axis = 0; axis < shape(from).rank(); ++axis) {
            if (shape(from)[axis] != 1) a.push_back(axis);
        }
        for (int axis = 0; axis < shape(to).rank(); ++axis) {
            if (shape(to)[axis] != 1) b.push_back(axis);
        }
        if (a.size() != b.size()) return;
        for (std::size_t i = 0; i < a.size(); ++i) {
            if (shape(from)[a[i]] != shape(to)[b[i]]) return;
        }
        for (std::size_t i = 0; i < a.size(); ++i) link(from, a[i], to, b[i]);
    }

    /// Panels of 64 lanes for dots and sums over rows; wider ones where rows are few, so that a
    /// strip has enough elements to be worth its dispatch; else whole rows, as in arrays.
    std::int64_t panel_width(const Component& component) const {
        constexpr std::int64_t kManyRows = 16;
        std::int64_t rows = 1, lanes = 1;
        bool reduces_rows = false;
        for (const std::uint32_t id : component.values) {
            const auto& users = users_[id];
            const bool multiplied = std::any_of(
                users.begin(), users.end(), [](const auto* user) { return user->op == Op::dot; });
            if (multiplied || made_by_dot_.contains(Value{id})) return kPanelLanes;
            reduces_rows |= std::any_of(users.begin(), users.end(), [&](const auto* user) {
                return user->op == Op::reduce &&
                       user->template get<ir::ReduceAttributes>().axis != lane_[id];
            });
            const Shape& dims = shape(Value{id});
            lanes = std::max(lanes, dims[lane_[id]]);
            rows = std::max(rows, dims.size() / std::max<std::int64_t>(dims[lane_[id]], 1));
        }
        if (rows >= kManyRows && !reduces_rows)
            return std::min(ceil_div(lanes, kPanelLanes) * kPanelLanes, kStripElements);
        const std::int64_t panels = kStripElements / (rows * kPanelLanes);
        return kPanelLanes * std::max<std::int64_t>(panels, 1);
    }

    // ---- Costs.

    double size(Value value) const { return static_cast<double>(shape(value).size()); }

    double cost(const Priced& priced) const {
        const ir::Instruction& instruction = *priced.instruction;
        switch (instruction.op) {
            case Op::load: {
                const Value result = instruction.result();
                if (!has_layout(result)) return 0;
                return priced.weight * access_cost(instruction, result);
            }
            case Op::store: {
                const auto& access = instruction.get<ir::AccessAttributes>();
                const Value value = instruction.operands[1 + access.indices.size()];
                if (function_.is_ref(value) || !has_layout(value)) return 0;
                return priced.weight * access_cost(instruction, value);
            }
            case Op::reduce:
            case Op::scan: {
                const Value operand = instruction.operands[0];
                if (!has_layout(operand)) return 0;
                if (lane_[operand.id] != instruction.get<ir::ReduceAttributes>().axis) return 0;
                if (instruction.op == Op::scan)
                    return priced.weight * kHorizontalScan * size(operand);
                const bool picks = picks_.contains(instruction.result());
                return priced.weight * kHorizontalReduce *
                       size(picks ? instruction.result() : operand);
            }
            case Op::associative_scan: {
                const Value result = instruction.results[0];
                if (lane_[result.id] != instruction.get<ir::CombineAttributes>().axis) return 0;
                return priced.weight * kHorizontalScan * size(result) *
                       static_cast<double>(instruction.results.size());
            }
            default:
                return dot_cost(instruction, priced.weight);
        }
    }

    double access_cost(const ir::Instruction& instruction, Value value) const {
        const int axis = contiguous_axis(instruction.get<ir::AccessAttributes>(), shape(value));
        return size(value) * (axis == lane_[value.id] ? kCopy : kTranspose);
    }

    double dot_cost(const ir::Instruction& dot, double weight) const {
        const auto& attributes = dot.get<ir::DotAttributes>();
        const Value result = dot.result(), a = dot.operands[0];
        const int rank = shape(result).rank();
        const int lane = is_vector(shape(result)) ? long_axis(shape(result)) : lane_[result.id];
        const auto [lanes_are_m, vector, other, wanted, other_k] = dot_roles(function_, dot, lane);
        const bool by_rows = lane >= rank - 2 && has_few_rows(shape(result), lane) &&
                             function_.type(vector).dtype == DType::f32;
        double total = operand_cost(vector, wanted, weight, by_rows);
        if (lane < rank - 2) return total + size(result) * weight * kConvert;
        const std::int64_t lanes = shape(result)[lane];
        const double k =
            static_cast<double>(shape(a)[attributes.transpose_a ? rank - 2 : rank - 1]);
        const double wasted = static_cast<double>(ceil_div(lanes, 16) * 16) /
                                  std::max(1.0, static_cast<double>(lanes)) -
                              1;
        total += weight * kProducts * wasted * k * size(result);
        if (wants_k_contiguous(dot_form(function_, dot))) {
            total += contiguous_cost(other, other_k);
        } else if (is_lazy(other) && function_.type(other).dtype != function_.type(result).dtype) {
            total += kCopy * size(other) * weight_of_[other.id];
        }
        return total;
    }

    double operand_cost(Value vector, int wanted, double weight, bool by_rows) const {
        if (is_lazy(vector)) {
            const int rank = shape(vector).rank();
            const bool in_place = wanted == rank - 1 || by_rows;
            return size(vector) *
                   (in_place ? kUnpackedRows * weight : kTranspose * weight_of_[vector.id]);
        }
        if (!has_layout(vector) || lane_[vector.id] == wanted) return 0;
        return size(vector) * kConvert * weight_of_[vector.id];
    }

    /// The cost of an operand whose elements must be contiguous along `axis`.
    double contiguous_cost(Value operand, int axis) const {
        const bool lazy = is_lazy(operand);
        if (!lazy && !has_layout(operand)) return 0;
        if (axis == (lazy ? shape(operand).rank() - 1 : lane_[operand.id])) return 0;
        return size(operand) * (lazy ? kTranspose : kConvert) * weight_of_[operand.id];
    }

    double total_cost() const {
        double total = 0;
        for (const Priced& priced : priced_) total += cost(priced);
        return total;
    }

    // ---- Search.

    void collect_components() {
        std::map<std::size_t, Component> components;
        for (std::uint32_t id = 0; id < function_.num_values(); ++id) {
            const Value value{id};
            if (function_.is_ref(value) || !has_layout(value)) continue;
            Component& component = components[values_.find(id)];
            component.values.push_back(id);
            for (int axis = shape(value).rank() - 1; axis >= 0; --axis) {
                if (shape(value)[axis] == 1) continue;
                const std::size_t axis_class = class_of(id, axis);
                auto& classes = component.classes;
                if (std::find(classes.begin(), classes.end(), axis_class) == classes.end()) {
                    classes.push_back(axis_class);
                }
            }
        }
        for (auto& [root, component] : components) {
            components_.push_back(std::move(component));
            apply(components_.back());
        }
    }

    std::size_t class_of(std::uint32_t id, int axis) {
        return axes_.find(id * ir::kMaxTileRank + static_cast<std::size_t>(axis));
    }

    /// Values without the chosen class keep their last long axis.
    void apply(const Component& component) {
        for (const std::uint32_t id : component.values) {
            const Shape& dims = shape(Value{id});
            lane_[id] = long_axis(dims);
            for (int axis = 0; axis < dims.rank(); ++axis) {
                const bool chosen = class_of(id, axis) == component.classes[component.choice];
                if (dims[axis] != 1 && chosen) lane_[id] = axis;
            }
        }
    }

    void search() {
        std::size_t combinations = 1;
        for (const Component& component : components_) {
            combinations = std::min(combinations * component.classes.size(), kMaxCombinations + 1);
        }
        double best = total_cost();
        if (combinations <= kMaxCombinations) {
            std::vector<std::size_t> chosen(components_.size(), 0);
            for (std::size_t n = 1; n < combinations; ++n) {
                advance();
                const double next = total_cost();
                if (next >= best) continue;
                best = next;
                for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = components_[i].choice;
            }
            for (std::size_t i = 0; i < chosen.size(); ++i) choose(components_[i], chosen[i]);
            return;
        }
        // Too many to try all: one component at a time, until the cost stops falling.
        for (bool improved = true; improved;) {
            improved = false;
            for (Component& component : components_) {
                const std::size_t before = component.choice;
                std::size_t winner = before;
                for (std::size_t i = 0; i < component.classes.size(); ++i) {
                    choose(component, i);
                    const double next = total_cost();
                    if (next >= best) continue;
                    best = next;
                    winner = i;
                    improved = true;
                }
                choose(component, winner);
            }
        }
    }

    void choose(Component& component, std::size_t choice) {
        component.choice = choice;
        apply(component);
    }

    /// Counts through all combinations like an odometer.
    void advance() {
        for (Component& component : components_) {
            if (component.choice + 1 < component.classes.size()) {
                return choose(component, component.choice + 1);
            }
            choose(component, 0);
        }
    }

    const ir::Function& function_;
    std::vector<std::vector<const ir::Instruction*>> users_;
    ir::Definitions definitions_;
    UnionFind axes_, values_;
    std::vector<int> lane_;
    std::vector<double> weight_of_;  ///< how often the definition runs
    std::set<Value> made_by_dot_;
    std::set<Value> picks_;  ///< sums of one element
    std::set<Value> lazy_;   ///< loads that only dots read, without a layout of their own
    std::map<Value, std::int64_t> constants_;
    std::vector<Priced> priced_;
    std::vector<Component> components_;
};

}  // namespace

std::vector<LaneChoice> assign_lanes(const ir::Function& function) {
    return LaneAssignment(function).run();
}

}  // namespace tilewright::cpu
