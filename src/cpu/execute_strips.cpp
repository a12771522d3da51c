// Runs strip chains and reductions over rows. A JIT would replace execute(Frame&, const Chain&).
#include <algorithm>
#include <cstring>

#include "cpu/execute.h"

namespace tilewright::cpu {
namespace {

/// A StripSource with its address and strides filled in.
struct Resolved {
    std::byte* data = nullptr;
    std::int64_t panel_bytes = 0;
    std::int64_t row_bytes = 0;  ///< from one strip to the next, per row
    std::int64_t row_stride = 0;
    std::int64_t lane_stride = 0;

    std::byte* at(std::int64_t panel, std::int64_t row) const {
        return data + panel * panel_bytes + row * row_bytes;
    }
};

Resolved resolve_source(const Frame& frame, const StripSource& source) {
    const std::int64_t element = size_of(source.dtype);
    Resolved result;
    result.data = frame.address(source.home, source.index) + source.offset * element;
    result.panel_bytes = source.panel_stride * element;
    result.row_stride = source.row_stride;
    if (source.view_row_axis >= 0) {
        result.row_stride =
            frame.views[source.index].stride[static_cast<std::size_t>(source.view_row_axis)];
    }
    result.row_bytes = source.home == Home::strip ? 0 : result.row_stride * element;
    result.lane_stride = source.lane_stride;
    return result;
}

void fill(std::byte* data, std::int64_t count, int element, std::uint64_t bits) {
    for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(data + i * element, &bits, static_cast<std::size_t>(element));
    }
}

}  // namespace

void execute(Frame& frame, const Chain& chain) {
    std::array<std::array<Resolved, 4>, Chain::kMaxOps> inputs;
    std::array<Resolved, Chain::kMaxOps> outputs, sums;
    const std::size_t num_ops = chain.ops.size();
    for (std::size_t i = 0; i < num_ops; ++i) {
        const StripOp& op = chain.ops[i];
        for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
            inputs[i][k] = resolve_source(frame, op.in[k]);
        }
        outputs[i] = resolve_source(frame, op.out);
        if (op.sum.home != Home::none) sums[i] = resolve_source(frame, op.sum);
        if (op.kind == StripOp::Kind::reduce_lanes) {
            fill(outputs[i].data, chain.rows, size_of(op.out.dtype), op.identity);
        }
    }
    for (std::int64_t panel = 0, first = 0; first < chain.lanes; ++panel, first += chain.width) {
        const std::int64_t lanes = std::min(chain.width, chain.lanes - first);
        for (std::size_t i = 0; i < num_ops; ++i) {
            const StripOp& op = chain.ops[i];
            if (sums[i].data) {
                fill(sums[i].at(panel, 0), lanes, size_of(op.sum.dtype), op.identity);
            }
            if (op.kind != StripOp::Kind::reduce_rows) continue;
            fill(outputs[i].at(panel, 0), lanes, size_of(op.out.dtype), op.identity);
        }
        for (std::int64_t row = 0; row < chain.rows; row += chain.strip_rows) {
            Strip strip;
            strip.rows = std::min(chain.strip_rows, chain.rows - row);
            strip.lanes = lanes;
            for (std::size_t i = 0; i < num_ops; ++i) {
                const StripOp& op = chain.ops[i];
                for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
                    const Resolved& in = inputs[i][k];
                    strip.in[k] = {in.at(panel, row), in.row_stride, in.lane_stride};
                }
                strip.out = outputs[i].at(panel, row);
                strip.out_row_stride = outputs[i].row_stride;
                strip.padded = op.padded;
                strip.accumulator = sums[i].data ? sums[i].at(panel, 0) : nullptr;
                std::copy(op.immediate.begin(), op.immediate.end(), strip.immediate);
                op.function(strip);
            }
        }
    }
}

void execute(Frame& frame, const ReduceRows& reduce) {
    const Resolved in = resolve_source(frame, reduce.in);
    const Resolved out = resolve_source(frame, reduce.out);
    for (std::int64_t panel = 0, first = 0; first < reduce.lanes; ++panel, first += reduce.width) {
        const std::int64_t lanes = std::min(reduce.width, reduce.lanes - first);
        for (std::int64_t o = 0; o < reduce.outer; ++o) {
            for (std::int64_t i = 0; i < reduce.inner; ++i) {
                Strip strip;
                strip.rows = reduce.extent;
                strip.lanes = lanes;
                strip.in[0] = {in.at(panel, o * reduce.extent * reduce.inner + i),
                               in.row_stride * reduce.inner, in.lane_stride};
                strip.out = out.at(panel, o * reduce.inner + i);
                strip.out_row_stride = out.row_stride;
                fill(static_cast<std::byte*>(strip.out), lanes, size_of(reduce.out.dtype),
                     reduce.identity);
                reduce.function(strip);
            }
        }
    }
}

}  // namespace tilewright::cpu
