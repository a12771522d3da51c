// The operands and results of scans with the user's function, and the function applied to rows.
#include "cpu/scan_operands.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tilewright::cpu {

ScanOperands::ScanOperands(Frame& frame, const CombineScan& scan)
    : frame_(frame), scan_(scan), n_(scan.in.size()) {
    std::byte* work = frame.address(scan.work.home, scan.work.index);
    const auto take = [&](std::int64_t bytes) {
        return std::exchange(work, work + ceil_div(bytes, std::int64_t{64}) * 64);
    };
    for (std::size_t i = 0; i < n_; ++i) {
        ScanValue& value = values_[i];
        value.element = size_of(scan.in[i].dtype);
        resolve_source(frame, scan.in[i], value.in);
        value.wanted = scan.out[i].home != Home::none;
        value.carried = scan.carried[i];
        if (value.wanted) resolve_source(frame, scan.out[i], value.out);
        if (scan.out[i].home == Home::view)
            value.streams = frame.views[scan.out[i].index].streams && scan.stream[i];
        if (value.streams) frame.streamed = true;
        value.transpose = scan.transpose[i];
        value.stream = value.streams ? scan.stream[i] : nullptr;
        value.rows = take(CombineScan::kRowElements * value.element);
        value.totals = take(6 * CombineScan::kSegments * value.element);
        value.line = take(CombineScan::kLineElements * value.element);
        value.segment = take(CombineScan::kSteps * value.element);
    }
    temporaries_ = work;
}

void ScanOperands::combine(const Chain& chain, const AllRows& before, const AllRows& after,
                           const AllRows& out, std::int64_t rows, std::int64_t lanes, bool in_place,
                           std::int64_t rows_ahead) const {
    if (rows <= 0) return;
    const auto place = [&](const StripSource& source) -> Rows {
        if (source.home == Home::slot)
            return {reinterpret_cast<std::byte*>(frame_.slots + source.index), 0};
        if (source.home == Home::view) return out[source.index];
        if (source.index < n_) return before[source.index];
        if (source.index < 2 * n_) return after[source.index - n_];
        return {temporaries_ + static_cast<std::int64_t>(source.index - 2 * n_) *
                                   CombineScan::kTemporaryLanes * 8,
                0};
    };
    const FusedKernels& kernels = frame_.program->kernels->fused;
    if (!chain.fused.empty() &&
        (lanes % kernels.lanes == 0 || (!in_place && lanes > kernels.lanes)))
        return run_fused(chain, chain.fused[0], place, rows, lanes, rows_ahead);
    for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t lane = 0; lane < lanes; lane += CombineScan::kTemporaryLanes)
            run_ops(chain, place, row, lane, std::min(lanes - lane, CombineScan::kTemporaryLanes));
    }
}

template <typename Place>
void ScanOperands::run_fused(const Chain& chain, const FusedRun& run, const Place& place,
                             std::int64_t rows, std::int64_t lanes, std::int64_t rows_ahead) const {
    const FusedKernels& kernels = frame_.program->kernels->fused;
    Temporaries temporaries;
    FusedCall call;
    call.steps = run.steps.data();
    call.rows = rows;
    call.blocks = lanes / kernels.lanes;
    call.lanes = lanes;
    call.num_affine = call.num_reductions = call.num_prefetches = 0;
    call.num_operands = run.operands.size();
    for (std::size_t i = 0; i < run.operands.size(); ++i) {
        const FusedRun::Operand& operand = run.operands[i];
        FusedOperand& to = call.operands[i];
        if (operand.temporary >= 0) {
            auto& temporary = temporaries.blocks[static_cast<std::size_t>(operand.temporary)];
            to = {reinterpret_cast<std::byte*>(temporary.data()), 0, 0, false};
            continue;
        }
        const StripOp& op = chain.ops[operand.op];
        const StripSource& source =
            operand.input < 0 ? op.out : op.in[static_cast<std::size_t>(operand.input)];
        const Rows at = place(source);
        const std::int64_t lane_bytes = source.lane_stride * size_of(source.dtype);
        to = {at.data, at.bytes, lane_bytes, false};
        const bool comes_after =
            source.home == Home::buffer && source.index >= n_ && source.index < 2 * n_;
        if (rows_ahead > 0 && comes_after && call.num_prefetches < FusedCall::kMaxPrefetches)
            call.prefetches[call.num_prefetches++] = {i, rows_ahead * at.bytes,
                                                      kernels.lanes * lane_bytes};
    }
    (run.compiled ? run.compiled : kernels.run)(call);
}

/// Some lanes of one row, op by op.
template <typename Place>
void ScanOperands::run_ops(const Chain& chain, const Place& place, std::int64_t row,
                           std::int64_t lane, std::int64_t lanes) const {
    const auto address = [&](const StripSource& source) {
        const Rows at = place(source);
        const bool is_temporary = source.home == Home::buffer && source.index >= 2 * n_;
        const std::int64_t skipped = is_temporary ? 0 : lane * source.lane_stride;
        return at.data + row * at.bytes + skipped * size_of(source.dtype);
    };
    for (const StripOp& op : chain.ops) {
        Strip strip;
        strip.rows = 1;
        strip.lanes = lanes;
        for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k)
            strip.in[k] = {address(op.in[k]), 0, op.in[k].lane_stride};
        strip.out = address(op.out);
        op.function(strip);
    }
}

void ScanOperands::gather(const ScanValue& value, std::int64_t row, std::int64_t lane,
                          std::int64_t count, std::byte* to) const {
    if (value.in.lane_stride == 0) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, value.in.at(0, row), static_cast<std::size_t>(value.element));
        return fill(to, count, static_cast<int>(value.element), bits);
    }
    for (std::int64_t done = 0; done < count;) {
        std::int64_t part = count - done;
        if (!follows(value.in, value.element, lane + done, part))
            part = scan_.width - (lane + done) % scan_.width;
        std::memcpy(to + done * value.element, at(value.in, value.element, row, lane + done),
                    static_cast<std::size_t>(part * value.element));
        done += part;
    }
}

void ScanOperands::scatter(const ScanValue& value, std::int64_t row, std::int64_t lane,
                           std::int64_t count, const std::byte* from) const {
    for (std::int64_t done = 0; done < count;) {
        std::int64_t part = count - done;
        if (!follows(value.out, value.element, lane + done, part))
            part = scan_.width - (lane + done) % scan_.width;
        store(value, at(value.out, value.element, row, lane + done), from + done * value.element,
              part);
        done += part;
    }
}

void ScanOperands::store(const ScanValue& value, std::byte* to, const std::byte* from,
                         std::int64_t lanes) {
    if (!value.streams) {
        std::memcpy(to, from, static_cast<std::size_t>(lanes * value.element));
        return;
    }
    Strip strip;
    strip.rows = 1;
    strip.lanes = lanes;
    strip.in[0] = {from, 0, 1};
    strip.out = to;
    value.stream(strip);
}

void ScanOperands::transpose(const ScanValue& value, std::int64_t rows, std::int64_t lanes,
                             const std::byte* from, std::int64_t from_stride, std::byte* to,
                             std::int64_t to_stride) {
    Strip strip;
    strip.rows = rows;
    strip.lanes = lanes;
    strip.in[0] = {from, from_stride, 1};
    strip.out = to;
    strip.out_row_stride = to_stride;
    value.transpose(strip);
}

}  // namespace tilewright::cpu
