// Programs that have to run in order, shared among threads by the elements that they accumulate
// into.
#include "cpu/divided_atomics.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <variant>

#include "cpu/index_walker.h"
#include "ir/access.h"
#include "ir/passes/effects.h"

namespace tilewright::cpu {
namespace {

/// What an element costs where each has an index of its own, as a multiple of one that is done
/// together with its neighbours.
constexpr double kAlone = 16;

/// Bytes of neighbours that one thread owns: where another one writes close by, prefetchers take
/// away lines that this one writes to.
constexpr std::int64_t kApart = 4096;

/// So much is worth beginning a thread.
constexpr double kWorthAThread = 1 << 15;

/// True where the index of each element is read from a tile.
bool by_element(const Access& access) {
    return std::any_of(access.indices.begin(), access.indices.end(), [&](const AccessIndex& index) {
        if (index.kind != ir::Index::Kind::tile) return false;
        const int axis = access.shape.rank() - 1 - index.tile_axis;
        return axis >= 0 && axis < index.tile.shape.rank() && index.tile.shape[axis] > 1;
    });
}

double cost(const Access& access) {
    return static_cast<double>(access.shape.size()) * (by_element(access) ? kAlone : 1);
}

/// True when a function does nothing that other threads notice but atomics on one array, which
/// nothing else reads.
bool only_accumulates(const ir::Function& function) {
    std::set<ir::Value> loaded, changed;
    for (const ir::Instruction& instruction : function.body.body) {
        if (!instruction.blocks.empty() || ir::effects(instruction).debug) return false;
        if (instruction.op == ir::Op::call) {
            const auto reads = ir::effects(instruction).reads;
            loaded.insert(reads.begin(), reads.end());
        }
        if (!ir::is_access(instruction.op)) continue;
        if (instruction.op == ir::Op::store) return false;
        (instruction.op == ir::Op::load ? loaded : changed).insert(instruction.operands[0]);
    }
    return changed.size() == 1 && std::none_of(loaded.begin(), loaded.end(), [&](ir::Value ref) {
               return ir::may_write(function, changed, ref);
           });
}

}  // namespace

std::optional<DividedAtomics> divided_atomics(const ir::Function& function,
                                              const Program& program) {
    if (!program.in_order || !only_accumulates(function)) return std::nullopt;
    DividedAtomics result;
    double others = 0;
    for (const Instruction& instruction : program.code) {
        if (const auto* atomic = std::get_if<Atomic>(&instruction)) {
            const Access& access = atomic->access;
            if (atomic->out.home != Home::none || access.indices.empty() ||
                access.indices[0].kind == ir::Index::Kind::slice ||
                program.refs[access.ref].argument < 0)
                return std::nullopt;
            result.ref = access.ref;
            result.cost += cost(access);
        } else if (const auto* chain = std::get_if<Chain>(&instruction)) {
            others += static_cast<double>(chain->rows * chain->lanes) *
                      static_cast<double>(chain->ops.size());
        } else if (const auto* load = std::get_if<Load>(&instruction)) {
            if (load->factor.home != Home::none) return std::nullopt;
            others += cost(load->access);
        } else if (const auto* move = std::get_if<Move>(&instruction)) {
            others += static_cast<double>(move->box.size());
        } else if (!std::holds_alternative<ScalarOp>(instruction) &&
                   !std::holds_alternative<ScalarMove>(instruction) &&
                   !std::holds_alternative<ScalarQuery>(instruction) &&
                   !std::holds_alternative<LoadView>(instruction) &&
                   !std::holds_alternative<SubView>(instruction) &&
                   !std::holds_alternative<Halt>(instruction)) {
            return std::nullopt;
        }
    }
    constexpr double kFew = 0.25;
    if (others > kFew * result.cost) return std::nullopt;
    return result;
}

Division divide(const Program& program, const ir::Arguments& arguments, std::int64_t num_programs,
                int threads) {
    Division result;
    if (!program.divided) return result;
    const RefSlot& slot = program.refs[program.divided->ref];
    const ir::RefArgument& array = arguments.refs[static_cast<std::size_t>(slot.argument)];
    // Elements with different first indices must differ.
    std::int64_t span = 0;
    for (std::size_t dim = 1; dim < slot.type.extents.size(); ++dim)
        span += std::max<std::int64_t>(array.extents[dim] - 1, 0) * std::abs(array.strides[dim]);
    const std::int64_t step = std::abs(array.strides[0]);
    if (step <= span) return result;
    while ((step * size_of(slot.type.dtype)) << result.shift < kApart) ++result.shift;
    const double worth = program.divided->cost * static_cast<double>(num_programs) / kWorthAThread;
    const std::int64_t sets =
        std::min<std::int64_t>(array.extents[0] >> result.shift, Ownership::kSets);
    result.threads = static_cast<int>(
        std::max(1.0, std::min({worth, static_cast<double>(sets), static_cast<double>(threads)})));
    return result;
}

bool is_scattered(Frame& frame) {
    const auto& code = frame.program->code;
    const auto first = std::find_if(code.begin(), code.end(), [](const Instruction& instruction) {
        return std::holds_alternative<Atomic>(instruction);
    });
    const Access& access = std::get<Atomic>(*first).access;
    const ir::RefArgument& array = frame.refs[access.ref];
    const int element = size_of(access.dtype);
    constexpr std::int64_t kSmall = std::int64_t{1} << 20;
    if (!by_element(access) || array.extents[0] * std::abs(array.strides[0]) * element > kSmall)
        return false;
    execute_before(frame, static_cast<std::size_t>(first - code.begin()));
    const Walker walker(frame, access, last_axis(access));
    std::int64_t last = -1, near = 0, all = 0;
    walker.for_each([&](const Coordinates& c, std::int64_t count) {
        walker.each(
            c, count,
            [&](std::int64_t, std::int64_t offset) {
                const std::int64_t piece = offset * element / kApart;
                near += piece == last ? 1 : 0;
                last = piece;
                ++all;
            },
            [](std::int64_t) {});
    });
    return 4 * near < 3 * all;
}

Ownership Division::of(int thread) const {
    Ownership result{0, shift};
    for (int set = thread; set < Ownership::kSets; set += threads)
        result.sets |= std::uint32_t{1} << set;
    return result;
}

}  // namespace tilewright::cpu
