// The cost of each instruction of a program: time, executions, work.
#include "cpu/profile.h"

#include <algorithm>
#include <atomic>

#include "cpu/bytecode.h"

namespace tilewright::cpu {
namespace {

/// Elements of the panels x rows x lanes space of a chain.
double elements(const Chain& chain) {
    return static_cast<double>(chain.rows) * static_cast<double>(chain.lanes);
}

double bytes(const Access& access) {
    return static_cast<double>(access.shape.size()) * size_of(access.dtype);
}

/// Bytes of a tile that is in an array, each element counted once.
double bytes(const Tile& tile) {
    if (tile.home != Home::view) return 0;
    double count = size_of(tile.dtype);
    for (int axis = 0; axis < tile.shape.rank(); ++axis) {
        if (tile.view_axis[axis] >= 0) count *= static_cast<double>(tile.shape[axis]);
    }
    return count;
}

double bytes(const Chain& chain, const StripSource& source) {
    if (source.home != Home::view) return 0;
    const double rows =
        source.view_row_axis >= 0 || source.row_stride != 0 ? static_cast<double>(chain.rows) : 1;
    const double lanes = source.lane_stride != 0 ? static_cast<double>(chain.lanes) : 1;
    return rows * lanes * size_of(source.dtype);
}

/// Float operations per element.
double flops(const StripOp& op) {
    if (op.stored_ref >= 0 || !is_float(op.in[0].dtype)) return 0;
    const double sum = op.sum.home == Home::none ? 0 : 1;
    if (op.super != Super::none) return op.super_info().flops + sum;
    if (op.kind != StripOp::Kind::map) return 1;
    switch (op.op) {
        case ir::Op::cast:
        case ir::Op::bitcast:
        case ir::Op::broadcast:
        case ir::Op::select:
        case ir::Op::eq:
        case ir::Op::ne:
        case ir::Op::lt:
        case ir::Op::le:
        case ir::Op::gt:
        case ir::Op::ge:
            return 0;
        case ir::Op::fma:
        case ir::Op::clamp:
            return 2;
        default:
            return 1;
    }
}

struct WorkOf {
    template <typename Other>
    Work operator()(const Other&) const {
        return {};
    }
    Work operator()(const Chain& chain) const {
        Work work;
        std::vector<const StripSource*> read;
        for (const StripOp& op : chain.ops) {
            if (op.function != nullptr || op.super != Super::none)
                work.flops += flops(op) * elements(chain);
            for (std::size_t i = 0; i < static_cast<std::size_t>(op.num_inputs); ++i) {
                const bool known = std::any_of(read.begin(), read.end(), [&](const auto* other) {
                    return *other == op.in[i];
                });
                if (known) continue;
                read.push_back(&op.in[i]);
                work.bytes += bytes(chain, op.in[i]);
            }
            work.bytes += bytes(chain, op.out);
        }
        return work;
    }
    Work operator()(const ReduceRows& reduce) const {
        const double count = static_cast<double>(reduce.outer) *
                             static_cast<double>(reduce.extent) *
                             static_cast<double>(reduce.inner) * static_cast<double>(reduce.lanes);
        return {is_float(reduce.in.dtype) ? count : 0,
                reduce.in.home == Home::view ? count * size_of(reduce.in.dtype) : 0,
                {}};
    }
    Work operator()(const ArgReduce& reduce) const { return {0, bytes(reduce.in), {}}; }
    Work operator()(const SortLines& sort) const { return {0, bytes(sort.in), {}}; }
    Work operator()(const ScanRows& scan) const {
        const double count = static_cast<double>(scan.outer) * static_cast<double>(scan.extent) *
                             static_cast<double>(scan.inner) * static_cast<double>(scan.lanes);
        return {is_float(scan.in.dtype) ? count : 0,
                scan.in.home == Home::view ? count * size_of(scan.in.dtype) : 0,
                {}};
    }
    Work operator()(const CombineScan& scan) const {
        const double count = static_cast<double>(scan.outer) * static_cast<double>(scan.extent) *
                             static_cast<double>(scan.inner) * static_cast<double>(scan.lanes);
        Work work;
        for (const StripOp& op : scan.combine.ops) work.flops += flops(op) * count;
        for (const StripSource& in : scan.in)
            work.bytes += in.home == Home::view ? count * size_of(in.dtype) : 0;
        for (const StripSource& out : scan.out)
            work.bytes += out.home == Home::view ? count * size_of(out.dtype) : 0;
        return work;
    }
    Work operator()(const Move& move) const {
        const double box = static_cast<double>(move.box.size()) * size_of(move.in.dtype);
        return {0, move.in.home == Home::view ? box : 0, {}};
    }
    Work operator()(const Interleave& interleave) const { return {0, bytes(interleave.in), {}}; }
    Work operator()(const Dot& dot) const {
        const auto in_word = size_of(dot.broadcast.dtype) / size_of(dot.element);
        return {2 * static_cast<double>(dot.batch) * static_cast<double>(dot.m) *
                    static_cast<double>(dot.n) * static_cast<double>(dot.k * in_word),
                bytes(dot.broadcast) + bytes(dot.vector) + bytes(dot.out), dot.element};
    }
    Work operator()(const Load& load) const {
        if (load.factor.home == Home::none) return {0, bytes(load.access), {}};
        return {2 * static_cast<double>(load.access.shape.size()), 2 * bytes(load.access),
                DType::f32};
    }
    Work operator()(const Store& store) const {
        // With a view, the preceding chain usually has stored already.
        return {0, store.view < 0 ? bytes(store.access) : 0, {}};
    }
    Work operator()(const Atomic& atomic) const { return {0, 2 * bytes(atomic.access), {}}; }
};

}  // namespace

std::vector<Work> work_of(const Program& program) {
    std::vector<Work> result;
    result.reserve(program.code.size());
    for (const Instruction& instruction : program.code)
        result.push_back(std::visit(WorkOf{}, instruction));
    return result;
}

Profile::Totals Profile::totals() const {
    const std::scoped_lock lock(mutex_);
    Totals result = rest_;
    result.timings = timings_;
    return result;
}

std::size_t Profile::room() const {
    const std::scoped_lock lock(mutex_);
    return kMostEvents - std::min(kMostEvents, rest_.events.size());
}

void Profile::add(const Totals& part) {
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = 0; i < timings_.size(); ++i) {
        timings_[i].executions += part.timings[i].executions;
        timings_[i].nanoseconds += part.timings[i].nanoseconds;
        timings_[i].copies += part.timings[i].copies;
    }
    rest_.nanoseconds += part.nanoseconds;
    rest_.programs += part.programs;
    const std::size_t room = kMostEvents - std::min(kMostEvents, rest_.events.size());
    const std::size_t kept = std::min(room, part.events.size());
    rest_.events.insert(rest_.events.end(), part.events.begin(), part.events.begin() + kept);
    rest_.left_out += part.left_out + static_cast<std::int64_t>(part.events.size() - kept);
}

Stopwatch::Stopwatch(Profile& profile) : profile_(profile) {
    static std::atomic<std::int32_t> next{1};
    static thread_local const std::int32_t number = next++;
    thread_ = number;
    part_.timings.resize(profile.num_instructions());
    room_ = profile.room();
}

}  // namespace tilewright::cpu
