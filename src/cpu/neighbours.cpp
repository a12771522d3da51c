// Finds programs of the grid that may run as one, and runs them.
#include "cpu/neighbours.h"

#include <algorithm>
#include <span>

namespace tilewright::cpu {
namespace {

/// Where rows of so many bytes follow each other, memory is read as fast as it can be.
constexpr std::int64_t kLongRow = std::int64_t{16} << 10;

/// So many rows of programs are worth their beginning.
constexpr std::int64_t kManyRows = 64;

/// So many bytes of an operand are worth their thread's beginning: 2 us if it is awake, and more
/// than 10 if it is not. An element's function takes as long as the second number of bytes.
constexpr std::int64_t kWorthAThread = std::int64_t{128} << 10, kBytesOfAFunction = 8;

/// What an op adds to the bytes of an element.
std::int64_t cost_of(const StripOp& op) {
    const bool maps = op.kind == StripOp::Kind::map && op.stored_ref < 0;
    const ir::FunctionInfo* const function = maps ? ir::function_info(op.op) : nullptr;
    return function != nullptr && function->work != ir::Work::little ? kBytesOfAFunction : 0;
}

/// True for a chain that one fused run does on rows of any length, lane by lane.
bool goes_along_rows(const Chain& chain) {
    if (chain.fused.size() != 1) return false;
    const FusedRun& run = chain.fused[0];
    return run.first == 0 && run.last == chain.ops.size() && run.joins_panels && run.repeats &&
           run.forms.empty() && run.reductions.empty();
}

/// True for a chain that is one scan down the rows of an array, stored to another.
bool scans_rows(const Chain& chain) {
    if (!chain.fused.empty() || chain.ops.size() != 2) return false;
    const StripOp &scan = chain.ops[0], &store = chain.ops[1];
    return scan.kind == StripOp::Kind::scan_rows && scan.in[0].home == Home::view &&
           scan.in[0].lane_stride == 1 && store.stored_ref >= 0 && store.num_inputs == 1 &&
           store.writer == 0 && chain.rows > 1;
}

/// The same with the user's function, by code that goes along rows of any length.
bool scans_rows(const CombineScan& scan) {
    const auto in_array = [](const StripSource& place) {
        return place.home == Home::view && place.lane_stride == 1;
    };
    return scan.down_rows != nullptr && scan.outer == 1 && scan.inner == 1 &&
           std::all_of(scan.in.begin(), scan.in.end(), in_array) &&
           std::all_of(scan.out.begin(), scan.out.end(), [&](const StripSource& out) {
               return out.home == Home::none || in_array(out);
           });
}

}  // namespace

Neighbours::Neighbours(const Program& program)
    : program_(program), varying_(program.initial_slots.size()), ref_of_view_(program.num_views) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < program.code.size(); ++i) {
        const Instruction& instruction = program.code[i];
        if (const auto* chain = std::get_if<Chain>(&instruction)) {
            if (at != 0 || i == 0 || !(goes_along_rows(*chain) || scans_rows(*chain))) return;
            at = i;
        } else if (const auto* scan = std::get_if<CombineScan>(&instruction)) {
            if (at != 0 || i == 0 || !scans_rows(*scan)) return;
            at = i;
        } else if (const auto* load = std::get_if<LoadView>(&instruction)) {
            array_views_.push_back(load->view);
            ref_of_view_[load->view] = load->access.ref;
        } else if (const auto* to = std::get_if<StoreView>(&instruction)) {
            array_views_.push_back(to->view);
            ref_of_view_[to->view] = to->access.ref;
        } else if (const auto* store = std::get_if<Store>(&instruction)) {
            if (store->view < 0) return;
        } else if (const auto* op = std::get_if<ScalarOp>(&instruction)) {
            compute(*op);
        } else if (const auto* move = std::get_if<ScalarMove>(&instruction)) {
            if (varying_[move->from]) varying_[move->to] = true;
        } else if (const auto* query = std::get_if<ScalarQuery>(&instruction)) {
            if (query->op == ir::Op::program_id) varying_[query->out] = true;
        } else if (const auto* part = std::get_if<SubView>(&instruction)) {
            ref_of_view_[part->view] = ref_of_view_[part->from];
        } else if (!std::holds_alternative<Halt>(instruction)) {
            return;
        }
    }
    if (at == 0) return;
    if (const auto* chain = std::get_if<Chain>(&program.code[at])) {
        if (!add(*chain)) return;
    } else if (!add(std::get<CombineScan>(program.code[at]))) {
        return;
    }
    cost_ = std::max<std::int64_t>(cost_, 1);
    at_ = at;
}

bool Neighbours::add(const Chain& chain) {
    rows_ = chain.rows;
    lanes_ = chain.lanes;
    scans_ = scans_rows(chain);
    if (scans_ && !(add(chain.ops[0].in[0]) && add(chain.ops[1].out))) return false;
    const auto operands =
        scans_ ? std::span<const FusedRun::Operand>() : std::span(chain.fused[0].operands);
    for (const FusedRun::Operand& operand : operands) {
        if (operand.temporary >= 0) continue;
        const StripOp& op = chain.ops[operand.op];
        if (!add(operand.input < 0 ? op.out : op.in[operand.input])) return false;
    }
    cost_ = rows_ * lanes_ * widest_;
    for (const StripOp& op : chain.ops) cost_ += rows_ * lanes_ * cost_of(op);
    return true;
}

bool Neighbours::add(const CombineScan& scan) {
    rows_ = scan.extent;
    lanes_ = scan.lanes;
    scans_ = true;
    slots_ = scan.splats;
    for (const auto* places : {&scan.in, &scan.out}) {
        for (const StripSource& place : *places) {
            if (place.home != Home::none && !add(place)) return false;
        }
    }
    cost_ = rows_ * lanes_ * widest_;
    return true;
}

void Neighbours::compute(const ScalarOp& op) {
    const auto varying = std::count_if(op.in.begin(), op.in.begin() + op.num_inputs,
                                       [&](std::uint32_t slot) { return varying_[slot]; });
    if (varying == 0) return;
    varying_[op.out] = true;
    const bool sum = op.op == ir::Op::add || op.op == ir::Op::sub;
    const bool linear = sum || (op.op == ir::Op::mul && varying == 1);
    linear_ = linear_ && linear && op.dtype == DType::i64;
}

bool Neighbours::add(const StripSource& source) {
    widest_ = std::max(widest_, size_of(source.dtype));
    if (source.home == Home::view) {
        operands_.push_back({source.index, 0, size_of(source.dtype), source.view_lane_axis >= 0,
                             source.view_row_axis});
    } else if (source.home == Home::slot) {
        slots_.push_back(source.index);
    } else {
        return false;
    }
    return true;
}

std::int64_t Neighbours::most(std::int64_t programs, int threads) const {
    if (at_ == 0) return 1;
    // Scans need long rows more than threads need groups to choose from.
    const std::int64_t for_each_thread = scans_ ? 1 : 4;
    const std::int64_t fair = threads == 1
                                  ? programs
                                  : std::max(programs / (for_each_thread * threads),
                                             std::min(programs / threads, kWorthAThread / cost_));
    const std::int64_t worth = rows_ == 1 ? kManyRows
                               : scans_   ? kScannedLanes / lanes_
                                          : kLongRow / (lanes_ * widest_);
    return std::max<std::int64_t>(std::min(worth, fair), 1);
}

int Neighbours::threads(std::int64_t programs, int most) const {
    if (at_ == 0 || scans_ || programs >= most * (kWorthAThread / cost_ + 1)) return most;
    return static_cast<int>(std::clamp<std::int64_t>(programs * cost_ / kWorthAThread, 1, most));
}

bool Neighbours::all_in_arrays(const Frame& frame) const {
    return std::all_of(array_views_.begin(), array_views_.end(),
                       [&](std::uint32_t view) { return frame.views[view].in_array; });
}

void Neighbours::begin_call(const ir::Arguments& arguments) {
    if (at_ == 0) return;
    bool same = layout_.size() == arguments.grid.size() + arguments.refs.size() * 2 * kDims &&
                std::equal(arguments.grid.begin(), arguments.grid.end(), layout_.begin()) &&
                arguments.scalars == scalars_;
    std::size_t at = arguments.grid.size();
    for (const ir::RefArgument& ref : arguments.refs) {
        if (!same) break;
        same = std::equal(ref.extents.begin(), ref.extents.end(), &layout_[at]) &&
               std::equal(ref.strides.begin(), ref.strides.end(), &layout_[at + kDims]);
        at += 2 * kDims;
    }
    if (same) return;
    groups_.clear();
    layout_ = arguments.grid;
    for (const ir::RefArgument& ref : arguments.refs) {
        layout_.insert(layout_.end(), ref.extents.begin(), ref.extents.end());
        layout_.insert(layout_.end(), ref.strides.begin(), ref.strides.end());
    }
    scalars_ = arguments.scalars;
}

std::int64_t Neighbours::known(const Frame& frame, std::int64_t first, std::int64_t most) {
    const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& other) {
        return other.first == first && other.most == most;
    });
    if (group == groups_.end()) return 0;
    down_ = group->down;
    for (std::size_t i = 0; i < operands_.size(); ++i) operands_[i].step = group->steps[i];
    first_views_ = group->views;
    for (std::size_t v = 0; v < first_views_.size(); ++v) {
        first_views_[v].data =
            static_cast<std::byte*>(frame.refs[ref_of_view_[v]].data) + group->at[v];
    }
    first_slots_ = group->slots;
    return group->n;
}

void Neighbours::keep(const Frame& frame, std::int64_t first, std::int64_t most, std::int64_t n) {
    if (groups_.size() == kMostGroups) return;
    Group group{first, most, n, down_, {}, first_views_, {}, first_slots_};
    for (const Operand& operand : operands_) group.steps.push_back(operand.step);
    for (std::size_t v = 0; v < first_views_.size(); ++v) {
        group.at.push_back(first_views_[v].data -
                           static_cast<std::byte*>(frame.refs[ref_of_view_[v]].data));
    }
    groups_.push_back(std::move(group));
}

bool Neighbours::begin(Frame& frame) {
    execute_before(frame, at_);
    if (!all_in_arrays(frame)) return false;
    first_views_.assign(frame.views, frame.views + program_.num_views);
    first_slots_.assign(frame.slots, frame.slots + program_.initial_slots.size());
    return true;
}

bool Neighbours::follows(Frame& frame, std::int64_t n) {
    execute_before(frame, at_);
    if (!all_in_arrays(frame)) return false;
    for (const std::uint32_t slot : slots_) {
        if (frame.slots[slot] != first_slots_[slot]) return false;
    }
    bool along = true, down = rows_ > 1 && !scans_;
    for (Operand& operand : operands_) {
        const View& view = frame.views[operand.view];
        const View& first = first_views_[operand.view];
        const std::int64_t moved = reinterpret_cast<std::intptr_t>(view.data) -
                                   reinterpret_cast<std::intptr_t>(first.data);
        if (n == 1) {
            operand.step = moved;
            const std::int64_t across = operand.has_lanes ? lanes_ : 0,
                               below = operand.row_axis >= 0
                                           ? rows_ * first.stride[operand.row_axis]
                                           : 0;
            along &= rows_ == 1 ? moved % operand.element == 0 : moved == across * operand.element;
            down &= moved == below * operand.element;
            if (!along && !down) return false;
        }
        if (moved != n * operand.step || view.stride != first.stride) return false;
    }
    if (n == 1) down_ = !along;
    return true;
}

void Neighbours::run(Frame& frame, std::int64_t n) {
    std::copy(first_views_.begin(), first_views_.end(), frame.views);
    std::copy(first_slots_.begin(), first_slots_.end(), frame.slots);
    if (const auto* scan = std::get_if<CombineScan>(&program_.code[at_])) {
        if (combine_.in.empty()) combine_ = *scan;
        combine_.lanes = n * lanes_;
        execute(frame, combine_);
        return finish_stores(frame);
    }
    if (chain_.ops.empty()) chain_ = std::get<Chain>(program_.code[at_]);
    chain_.lanes = lanes_;
    chain_.rows = rows_;
    if (down_) {
        chain_.rows = n * rows_;
    } else if (rows_ == 1) {
        chain_.rows = n;
        for (StripOp& op : chain_.ops) {
            set_row_stride(op.out);
            std::for_each(op.in.begin(), op.in.begin() + op.num_inputs,
                          [&](StripSource& in) { set_row_stride(in); });
        }
    } else {
        chain_.lanes = n * lanes_;
        if (scans_) chain_.width = kScannedLanes;
    }
    execute(frame, chain_);
    finish_stores(frame);
}

void Neighbours::set_row_stride(StripSource& source) const {
    if (source.home != Home::view) return;
    for (const Operand& operand : operands_) {
        if (operand.view == source.index) source.row_stride = operand.step / operand.element;
    }
}

}  // namespace tilewright::cpu
