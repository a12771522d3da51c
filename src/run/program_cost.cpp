// What a run of a program costs: operations and bytes over its grid.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "ir/evaluate.h"
#include "ir/parse.h"
#include "support/check.h"
#include "tilewright/program.h"

namespace tilewright {
namespace {

using ir::Op;

/// Counts for a part of a program; `exact` is false if a branch or loop depends on data.
struct Count {
    double flops = 0, transcendentals = 0, read = 0, written = 0;
    bool exact = true;

    void add(const Count& other, double times = 1) {
        flops += times * other.flops;
        transcendentals += times * other.transcendentals;
        read += times * other.read;
        written += times * other.written;
        exact = exact && other.exact;
    }
};

bool is_transcendental(Op op) {
    const ir::FunctionInfo* const function = ir::function_info(op);
    return function != nullptr && function->work != ir::Work::little;
}

bool is_arithmetic(Op op) {
    switch (op) {
        case Op::neg:
        case Op::abs:
        case Op::add:
        case Op::sub:
        case Op::mul:
        case Op::div:
        case Op::min:
        case Op::max:
        case Op::clamp:
        case Op::fma:
            return true;
        default:
            return false;
    }
}

/// Counts one program of the grid, evaluating scalar integers that do not depend on data.
class Counter {
  public:
    Counter(const ir::Function& function, const std::vector<std::int64_t>& program)
        : function_(function), program_(program) {}

    Count block(const ir::Block& block) {
        Count total;
        for (const ir::Instruction& instruction : block.body) total.add(count(instruction));
        return total;
    }

  private:
    using Known = std::optional<std::uint64_t>;

    Known known(ir::Value value) const {
        const auto found = scalars_.find(value);
        return found == scalars_.end() ? Known() : found->second;
    }
    std::optional<std::int64_t> integer(ir::Value value) const {
        const Known bits = known(value);
        if (!bits) return {};
        return static_cast<std::int64_t>(*bits);
    }

    Count count(const ir::Instruction& instruction) {
        switch (instruction.op) {
            case Op::for_loop:
                return loop(instruction);
            case Op::while_loop:
                return while_loop(instruction);
            case Op::if_else:
                return branch(instruction);
            case Op::load:
            case Op::store:
            case Op::atomic_add:
            case Op::atomic_max:
            case Op::atomic_min:
            case Op::atomic_xchg:
            case Op::atomic_cas:
                return access(instruction);
            default:
                break;
        }
        if (!instruction.results.empty()) follow(instruction);
        return arithmetic(instruction);
    }

    /// Evaluates an instruction on scalars, unless it depends on data.
    void follow(const ir::Instruction& instruction) {
        const ir::Value result = instruction.result();
        if (function_.is_ref(result)) return;
        const ir::Type& type = function_.type(result);
        if (!type.is_scalar()) return;
        scalars_.erase(result);
        if (instruction.op == Op::constant) {
            scalars_[result] = instruction.get<ir::ConstantAttributes>().bits;
        } else if (instruction.op == Op::program_id || instruction.op == Op::num_programs) {
            const std::size_t axis = instruction.get<ir::AxisAttributes>().axis;
            scalars_[result] = static_cast<std::uint64_t>(
                instruction.op == Op::program_id ? program_[axis] : function_.grid[axis]);
        } else if (instruction.op == Op::extent) {
            const std::int64_t extent = function_.ref_type(instruction.operands[0])
                                            .extents[instruction.get<ir::AxisAttributes>().axis];
            if (extent != ir::kDynamic) scalars_[result] = static_cast<std::uint64_t>(extent);
        } else if (ir::is_elementwise(instruction.op) && instruction.op != Op::bitcast) {
            std::uint64_t operands[3] = {};
            for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
                const Known operand = known(instruction.operands[i]);
                if (!operand) return;
                operands[i] = *operand;
            }
            const ir::Value in = instruction.operands[instruction.op == Op::select ? 1 : 0];
            scalars_[result] =
                ir::evaluate(instruction.op, function_.type(in).dtype, type.dtype, operands);
        }
    }

    Count arithmetic(const ir::Instruction& instruction) const {
        Count result;
        if (instruction.results.empty() || function_.is_ref(instruction.result())) return result;
        const ir::Type& type = function_.type(instruction.result());
        if (!is_float(type.dtype)) return result;
        const auto size = static_cast<double>(type.shape.size());
        if (instruction.op == Op::dot) {
            const auto& attributes = instruction.get<ir::DotAttributes>();
            const ir::Shape& a = function_.type(instruction.operands[0]).shape;
            result.flops =
                2 * size * static_cast<double>(a[a.rank() - (attributes.transpose_a ? 2 : 1)]);
        } else if (instruction.op == Op::reduce || instruction.op == Op::scan) {
            const ir::Shape& x = function_.type(instruction.operands[0]).shape;
            const bool logs =
                instruction.get<ir::ReduceAttributes>().kind == ir::Reduction::logsumexp;
            (logs ? result.transcendentals : result.flops) = static_cast<double>(x.size());
        } else if (is_transcendental(instruction.op)) {
            result.transcendentals = size;
        } else if (is_arithmetic(instruction.op)) {
            result.flops =
                (instruction.op == Op::fma || instruction.op == Op::clamp ? 2 : 1) * size;
        } else if (const ir::Function* const mod = ir::callee_of(instruction)) {
            const ir::Function& callee = *mod;
            result.add(Counter(callee, {}).block(callee.body), size);
        }
        return result;
    }

    /// Bytes of the lanes inside the array, masked or not.
    Count access(const ir::Instruction& instruction) const {
        const ir::RefType& ref = function_.ref_type(instruction.operands[0]);
        Count result;
        if (ref.space == ir::Space::scratch) return result;
        const auto& indices = instruction.get<ir::AccessAttributes>().indices;
        double lanes = 1;
        bool counted_tiles = false;
        for (std::size_t d = 0; d < indices.size(); ++d) {
            const ir::Value operand = instruction.operands[d + 1];
            if (indices[d].kind == ir::Index::Kind::tile) {
                // Index tiles count once, together: the largest has their broadcast shape.
                if (!counted_tiles) {
                    double most = 1;
                    for (std::size_t e = d; e < indices.size(); ++e) {
                        if (indices[e].kind != ir::Index::Kind::tile) continue;
                        most = std::max(
                            most, static_cast<double>(
                                      function_.type(instruction.operands[e + 1]).shape.size()));
                    }
                    lanes *= most;
                    counted_tiles = true;
                }
                continue;
            }
            const bool is_slice = indices[d].kind == ir::Index::Kind::slice;
            const std::int64_t size = is_slice ? indices[d].size : 1;
            const std::int64_t stride = is_slice ? std::max<std::int64_t>(indices[d].stride, 1) : 1;
            const auto start = integer(operand);
            const std::int64_t extent = ref.extents[d];
            double inside = static_cast<double>(size);
            if (start && extent != ir::kDynamic) {
                const auto before = [&](std::int64_t end) {  // number of elements below `end`
                    const double n =
                        std::ceil(static_cast<double>(end - *start) / static_cast<double>(stride));
                    return std::clamp(n, 0.0, static_cast<double>(size));
                };
                inside = before(extent) - before(0);
            }
            lanes *= inside;
        }
        const double bytes = lanes * size_of(ref.dtype);
        if (instruction.op != Op::store) result.read = bytes;
        if (instruction.op != Op::load) result.written = bytes;
        return result;
    }

    Count loop(const ir::Instruction& instruction) {
        const auto low = integer(instruction.operands[0]);
        const auto high = integer(instruction.operands[1]);
        const auto step = integer(instruction.operands[2]);
        const ir::Block& body = instruction.blocks[0];
        if (!low || !high || !step || *step <= 0) {
            forget(body);
            Count once = block(body);
            once.exact = false;
            return once;
        }
        const std::int64_t trips =
            *high > *low ? (*high - *low + *step - 1) / *step : std::int64_t{0};
        Count total;
        if (trips == 0) return total;
        // Without branches, counts that are equal in the first, middle and last iteration are equal
        // in all, because starts of slices and bounds of inner loops change in one direction.
        bool branches = false;
        ir::walk(body, [&](const ir::Instruction& inner) { branches |= inner.op == Op::if_else; });
        const auto at = [&](std::int64_t i) {
            forget(body);
            scalars_[body.arguments[0]] = static_cast<std::uint64_t>(*low + i * *step);
            return block(body);
        };
        const auto same = [](const Count& a, const Count& b) {
            return a.flops == b.flops && a.transcendentals == b.transcendentals &&
                   a.read == b.read && a.written == b.written;
        };
        const Count first = at(0);
        constexpr std::int64_t kFew = 3;
        if (trips > kFew && !branches && same(first, at(trips / 2)) && same(first, at(trips - 1))) {
            total.add(first, static_cast<double>(trips));
            return total;
        }
        constexpr std::int64_t kMost = 4096;
        const std::int64_t counted = std::min(trips, kMost);
        for (std::int64_t i = 0; i < counted; ++i) {
            total.add(at(i * trips / counted),
                      static_cast<double>(trips) / static_cast<double>(counted));
        }
        total.exact = total.exact && counted == trips;
        return total;
    }

    Count while_loop(const ir::Instruction& instruction) {
        Count once;
        for (const ir::Block& part : instruction.blocks) {
            forget(part);
            once.add(block(part));
        }
        once.exact = false;
        return once;
    }

    Count branch(const ir::Instruction& instruction) {
        const Known condition = known(instruction.operands[0]);
        if (condition) return block(instruction.blocks[*condition != 0 ? 0 : 1]);
        Count dearer = block(instruction.blocks[0]);
        const Count other = block(instruction.blocks[1]);
        if (other.flops + other.read + other.written > dearer.flops + dearer.read + dearer.written)
            dearer = other;
        dearer.exact = false;
        return dearer;
    }

    void forget(const ir::Block& body) {
        for (const ir::Value argument : body.arguments) scalars_.erase(argument);
    }

    const ir::Function& function_;
    const std::vector<std::int64_t>& program_;
    std::map<ir::Value, std::uint64_t> scalars_;
};

}  // namespace

ProgramCost program_cost(std::string_view text) {
    const ir::Function function = ir::parse(text);
    double programs = 1;
    for (const std::int64_t extent : function.grid) {
        if (extent == ir::kDynamic)
            user_error("cost", "expected a grid of static extents for `{}` but got a free one",
                       function.name);
        programs *= static_cast<double>(extent);
    }
    // Of a large grid, only every k-th program is counted.
    constexpr double kMost = 4096;
    const double counted = std::min(programs, kMost);
    Count total;
    for (double i = 0; i < counted; ++i) {
        auto linear = static_cast<std::int64_t>(i * programs / counted);
        std::vector<std::int64_t> program(function.grid.size());
        for (std::size_t axis = program.size(); axis-- > 0;) {
            program[axis] = linear % function.grid[axis];
            linear /= function.grid[axis];
        }
        total.add(Counter(function, program).block(function.body), programs / counted);
    }
    ProgramCost cost{total.flops, total.transcendentals,
                     total.read,  total.written,
                     0,           total.exact && counted == programs};
    std::set<ir::Value> used;
    ir::walk(function.body, [&](const ir::Instruction& instruction) {
        used.insert(instruction.operands.begin(), instruction.operands.end());
    });
    for (const ir::Value parameter : function.parameters()) {
        if (!function.is_ref(parameter) || !used.contains(parameter)) continue;
        const ir::RefType& type = function.ref_type(parameter);
        if (type.space == ir::Space::scratch) continue;
        double bytes = size_of(type.dtype);
        for (const std::int64_t extent : type.extents) {
            if (extent == ir::kDynamic) cost.exact = false;
            bytes *= static_cast<double>(std::max<std::int64_t>(extent, 1));
        }
        cost.array_bytes += bytes;
    }
    return cost;
}

}  // namespace tilewright
