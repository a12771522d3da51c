// Runs strip chains and reductions over rows. A JIT would replace execute(Frame&, const Chain&).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>

#include "cpu/execute.h"
#include "cpu/execute_affine.h"
#include "cpu/execute_ranges.h"
#include "cpu/resolve.h"
#include "ir/evaluate.h"

namespace tilewright::cpu {
namespace {

/// Sets the form's immediates for one strip; true when the form is >= 0 on all of the strip.
bool set_affine(Strip& strip, const Affine& affine, std::int64_t base) {
    strip.immediate[0] = static_cast<double>(base);
    strip.immediate[1] = static_cast<double>(affine.row);
    strip.immediate[2] = static_cast<double>(affine.lane);
    const std::int64_t lowest = base + std::min<std::int64_t>(0, affine.row * (strip.rows - 1)) +
                                std::min<std::int64_t>(0, affine.lane * (strip.lanes - 1));
    return lowest >= 0;
}

/// An op of a chain with its operands' addresses and the function that runs it this time.
struct ResolvedOp {
    std::array<Resolved, 4> in;
    Resolved out, sum;
    StripFunction function;  ///< nullptr: another op does it, or a Store after the chain
    // Of affine superinstructions:
    std::int64_t base;
    const Frame* wraps;  ///< nullptr unless words may wrap around
    bool padded;
};

/// The rows and lanes of a strip.
struct Part {
    std::int64_t panel, row, lane;  ///< where it starts
    std::int64_t rows, lanes;
    bool along_rows = false;  ///< a scan down rows goes through memory row by row
    bool streams = false;     ///< its results go past the caches
};

/// Runs one op on the lanes of a strip from `skipped` on.
void run_op(const StripOp& op, const ResolvedOp& resolved, const Part& part, std::int64_t skipped) {
    if (!resolved.function) return;
    const auto moved = [&](std::byte* data, DType dtype, std::int64_t stride) {
        return data + skipped * stride * size_of(dtype);
    };
    Strip strip;
    strip.rows = part.rows;
    strip.lanes = part.lanes - skipped;
    for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
        const Resolved& in = resolved.in[k];
        strip.in[k] = {moved(in.at(part.panel, part.row), op.in[k].dtype, in.lane_stride),
                       in.row_stride, in.lane_stride};
    }
    const bool across = op.kind == StripOp::Kind::reduce_lanes;
    strip.out = moved(resolved.out.at(part.panel, part.row), op.out.dtype, across ? 0 : 1);
    strip.out_row_stride = resolved.out.row_stride;
    strip.padded = resolved.padded;
    if (resolved.sum.data) {
        strip.accumulator = op.kind == StripOp::Kind::scan_lanes
                                ? resolved.sum.at(0, part.row)
                                : moved(resolved.sum.at(part.panel, 0), op.sum.dtype, 1);
    }
    std::copy(op.immediate.begin(), op.immediate.end(), strip.immediate);
    if (op.kind == StripOp::Kind::scan_rows) {
        strip.immediate[2] = part.along_rows;
        strip.immediate[3] = part.streams;
    }
    if (op.is_affine()) {
        if (resolved.wraps != nullptr)
            return run_wrapping(*resolved.wraps, op, strip, part.row, part.lane + skipped);
        const std::int64_t base =
            resolved.base + part.row * op.affine.row + (part.lane + skipped) * op.affine.lane;
        // In most strips nothing is masked; in place, there is then nothing to do.
        const bool all = set_affine(strip, op.affine, base) && op.super == Super::affine_select;
        if (all && strip.out == strip.in[0].data) return;
    }
    resolved.function(strip);
}

/// True when the rows of an operand are so far apart and so short that hardware prefetchers do not
/// predict them: they are prefetched some rows ahead.
bool is_scattered(const StripSource& source, std::int64_t row_bytes, std::int64_t bytes) {
    constexpr std::int64_t kFar = 2048, kLong = 1024;
    return source.home == Home::view && (row_bytes > kFar || row_bytes < -kFar) && bytes <= kLong;
}

/// Prefetches the rows of an operand in one strip.
void prefetch(const StripSource& source, const Resolved& resolved, const Part& part) {
    constexpr std::int64_t kLine = 64;
    const std::int64_t bytes = part.lanes * resolved.lane_stride * size_of(source.dtype);
    if (!is_scattered(source, resolved.row_bytes, bytes)) return;
    for (std::int64_t row = part.row; row < part.row + part.rows; ++row) {
        const std::byte* const at = resolved.at(part.panel, row);
        for (std::int64_t byte = 0; byte < bytes; byte += kLine) __builtin_prefetch(at + byte);
    }
}

/// True when a fused run can do `lanes` lanes: whole blocks, or a last block that overlaps another.
bool covers(const FusedRun& run, std::int64_t block, std::int64_t lanes) {
    return lanes % block == 0 || (run.repeats && lanes > block);
}

/// True when a form that is `base` where a part starts stays within 32 bits on all of the part.
bool fits_32_bits(std::int64_t base, const Affine& form, const Part& part) {
    constexpr std::int64_t kMost = std::int64_t{1} << 29;  // of each of three terms
    const auto size = [](std::int64_t x) { return x < 0 ? -x : x; };
    return size(base) <= kMost && size(form.row) <= kMost / part.rows &&
           size(form.lane) <= kMost / part.lanes;
}

/// Fills in the call of a fused run on a strip, apart from what is prefetched; false where
/// positions are too large. `resolved(op, k)` gives input k of an op, or its result (-1).
template <typename Resolve>
bool prepare_fused(const Frame& frame, const Chain& chain, const FusedRun& run, const Part& part,
                   Resolve&& resolved, Temporaries& temporaries, FusedCall& call) {
    const FusedKernels& kernels = frame.program->kernels->fused;
    call.steps = run.steps.data();
    call.rows = part.rows;
    call.blocks = part.lanes / kernels.lanes;
    call.lanes = run.repeats ? part.lanes : call.blocks * kernels.lanes;
    call.num_prefetches = 0;
    call.num_affine = run.forms.size();
    for (std::size_t i = 0; i < run.forms.size(); ++i) {
        const Affine& form = run.forms[i];
        const std::int64_t base =
            base_of(frame, form) + part.row * form.row + part.lane * form.lane;
        // Positions beyond 32 bits, and words that wrap around, are left to the ops themselves.
        if (!fits_32_bits(base, form, part) || !words_fit(frame, form, chain.rows, chain.lanes))
            return false;
        call.affine[i] = {static_cast<std::int32_t>(base), static_cast<std::int32_t>(form.row),
                          static_cast<std::int32_t>(form.lane)};
    }
    call.num_operands = run.operands.size();
    for (std::size_t i = 0; i < run.operands.size(); ++i) {
        const FusedRun::Operand& operand = run.operands[i];
        FusedOperand& to = call.operands[i];
        if (operand.temporary >= 0) {
            auto& temporary = temporaries.blocks[operand.temporary];
            to = {reinterpret_cast<std::byte*>(temporary.data()), 0, 0, false};
            continue;
        }
        const bool result = operand.input < 0;
        const StripOp& op = chain.ops[operand.op];
        const Resolved& from = resolved(operand.op, operand.input);
        const std::int64_t element = size_of(result ? op.out.dtype : op.in[operand.input].dtype);
        const std::int64_t lane_bytes = (result ? 1 : from.lane_stride) * element;
        to = {from.at(part.panel, part.row), from.row_stride * element, lane_bytes,
              result && op.stored_ref >= 0 && frame.views[op.out.index].streams};
    }
    call.num_reductions = run.reductions.size();
    for (std::size_t i = 0; i < run.reductions.size(); ++i) {
        const Resolved& out = resolved(run.reductions[i], -1);
        call.reductions[i] = {chain.ops[run.reductions[i]].reduction,
                              reinterpret_cast<float*>(out.at(part.panel, part.row)),
                              out.row_stride};
    }
    return true;
}

/// Prefetches the rows that are `rows_ahead` rows after those of the operands that `wanted`
/// chooses.
template <typename Wanted>
void prefetch_rows(const Frame& frame, const Chain& chain, const FusedRun& run,
                   std::int64_t rows_ahead, FusedCall& call, Wanted&& wanted) {
    // Parts of a view share most of their rows.
    std::array<std::uint32_t, FusedCall::kMaxPrefetches> fetched;
    std::size_t num_fetched = 0;
    for (std::size_t i = 0; i < run.operands.size(); ++i) {
        const FusedRun::Operand& operand = run.operands[i];
        if (operand.temporary >= 0 || operand.input < 0) continue;
        const StripSource& in = chain.ops[operand.op].in[operand.input];
        const FusedOperand& from = call.operands[i];
        if (call.num_prefetches == FusedCall::kMaxPrefetches) break;
        if (!wanted(in, from)) continue;
        const auto& parts = frame.program->parts;
        const auto found = parts.find(in.index);
        const std::uint32_t whole = found == parts.end() ? in.index : found->second.from;
        const auto last = fetched.begin() + static_cast<std::ptrdiff_t>(num_fetched);
        if (std::find(fetched.begin(), last, whole) != last) continue;
        fetched[num_fetched++] = whole;
        call.prefetches[call.num_prefetches++] = {
            i, rows_ahead * from.row_bytes, frame.program->kernels->fused.lanes * from.lane_bytes};
    }
}

/// Does a fused run on a strip; returns the lanes done: none where positions are too large.
template <typename Resolve>
std::int64_t run_fused(const Frame& frame, const Chain& chain, const FusedRun& run,
                       const Part& part, Resolve&& resolved) {
    const FusedKernels& kernels = frame.program->kernels->fused;
    if (part.lanes < kernels.lanes) return 0;
    FusedCall call;
    Temporaries temporaries;
    if (!prepare_fused(frame, chain, run, part, resolved, temporaries, call)) return 0;
    for (const std::size_t prefetched : run.prefetches) {
        const FusedRun::Operand& operand = run.operands[prefetched];
        const StripSource& in = chain.ops[operand.op].in[operand.input];
        const std::int64_t ahead = frame.views[in.index].ahead;
        if (ahead == 0) continue;
        call.prefetches[call.num_prefetches++] = {prefetched, ahead,
                                                  kernels.lanes * size_of(in.dtype)};
    }
    constexpr std::int64_t kRowsAhead = 8;
    prefetch_rows(frame, chain, run, kRowsAhead, call,
                  [&](const StripSource& in, const FusedOperand& from) {
                      const std::int64_t bytes = call.blocks * kernels.lanes * from.lane_bytes;
                      return is_scattered(in, from.row_bytes, bytes);
                  });
    (run.compiled ? run.compiled : kernels.run)(call);
    return call.lanes;
}

/// A fused run that is called for parts of a strip.
struct MovedRun {
    const FusedRun* run = nullptr;
    FusedCall call;
    Temporaries temporaries;
    std::array<std::byte*, FusedCall::kMaxOperands> first;
    std::array<std::int32_t, FusedCall::kMaxAffine> base;
    std::size_t num_prefetches = 0;

    template <typename Resolve>
    bool prepare(const Frame& frame, const Chain& chain, const FusedRun& of, const Part& part,
                 Resolve&& resolved) {
        run = &of;
        if (!prepare_fused(frame, chain, of, part, resolved, temporaries, call)) return false;
        for (std::size_t i = 0; i < call.num_operands; ++i) first[i] = call.operands[i].data;
        for (std::size_t i = 0; i < call.num_affine; ++i) base[i] = call.affine[i].base;
        // Ranges that are read end where others are filled, at which hardware prefetchers stop. The
        // arrays may be in the caches unless results go past them.
        const auto operands = std::span(call.operands).first(call.num_operands);
        if (std::any_of(operands.begin(), operands.end(), std::mem_fn(&FusedOperand::streams))) {
            prefetch_rows(frame, chain, of, 1, call,
                          [](const StripSource& in, const FusedOperand& from) {
                              return in.home == Home::view && from.row_bytes != 0;
                          });
        }
        num_prefetches = call.num_prefetches;
        return true;
    }
    void execute(const FusedKernels& kernels, std::int64_t row, const RangeRows::Range& range) {
        call.rows = 1;
        call.blocks = range.lanes / kernels.lanes;
        call.lanes = range.lanes;
        constexpr std::int64_t kMostFetched = 8192;  // lanes: longer rows would leave the L2 cache
        call.num_prefetches = range.lanes <= kMostFetched ? num_prefetches : 0;
        for (std::size_t i = 0; i < call.num_operands; ++i) {
            FusedOperand& operand = call.operands[i];
            operand.data = first[i] + row * operand.row_bytes + range.lane * operand.lane_bytes;
        }
        for (std::size_t i = 0; i < call.num_affine; ++i) {
            FusedCall::Index& form = call.affine[i];
            form.base =
                static_cast<std::int32_t>(base[i] + row * form.row + range.lane * form.lane);
        }
        (run->compiled ? run->compiled : kernels.run)(call);
    }
};

/// Does a fused run row by row: where its conditions have one result each in whole blocks, by the
/// runs in which they are decided. False, with nothing done, where positions are too large.
template <typename Resolve>
bool run_in_ranges(const Frame& frame, const Chain& chain, const FusedRun& run, const Part& part,
                   Resolve&& resolved) {
    const FusedKernels& kernels = frame.program->kernels->fused;
    std::array<MovedRun, RangeRows::kMostResults + 1> runs;
    const std::size_t undecided = run.by_conditions.size();
    if (!runs[undecided].prepare(frame, chain, run, part, resolved)) return false;
    std::array<std::int64_t, RangeRows::kMostTests> bases;
    std::size_t num_bases = 0;
    for (const auto& condition : run.conditions) {
        for (const FusedRun::RangeTest& test : condition) {
            bases[num_bases] = base_of(frame, test.form);
            if (!fits_32_bits(bases[num_bases++], test.form, part) ||
                !words_fit(frame, test.form, chain.rows, chain.lanes))
                return false;
        }
    }
    RangeRows ranges(run, bases, part.lanes, kernels.lanes);
    for (std::int64_t row = 0; row < part.rows; ++row) {
        for (const RangeRows::Range& range : ranges.of_row(row)) {
            MovedRun& moved = runs[range.which];
            // Its forms are among those of the run as it is.
            if (moved.run == nullptr)
                moved.prepare(frame, chain, run.by_conditions[range.which], part, resolved);
            moved.execute(kernels, row, range);
        }
    }
    return true;
}

/// A store copies its operand to the array, or makes the op that computes the operand write there.
void resolve_store(Frame& frame, const Chain& chain, ResolvedOp* ops, std::size_t at) {
    const StripOp& op = chain.ops[at];
    const View& view = frame.views[op.out.index];
    // Scans wait for their additions, not for memory: one more pass would cost more than it saves.
    const bool scan = op.writer >= 0 && chain.ops[static_cast<std::size_t>(op.writer)].scans();
    if (view.streams && op.stream && !scan) {
        ops[at].function = op.stream;
        frame.streamed = true;
    } else if (op.writer >= 0) {
        ResolvedOp& writer = ops[op.writer];
        writer.out = ops[at].out;
        writer.padded = false;
        ops[at].function = nullptr;
    } else if (op.num_inputs > 1 && !view.in_array) {
        ops[at].function = nullptr;
    }
}

/// Rows of so many blocks are worth being divided.
constexpr std::int64_t kRangeBlocks = 4;

/// A chain that is one fused run as a whole resolves only the run's operands. Returns false, with
/// nothing done, where lanes are left to the ops themselves.
bool run_whole(Frame& frame, const Chain& chain) {
    const FusedRun& run = chain.fused[0];
    const std::int64_t block = frame.program->kernels->fused.lanes;
    const std::int64_t width = run.joins_panels ? chain.lanes : chain.width;
    const std::int64_t last_panel = (chain.lanes - 1) % width + 1;
    if (last_panel < chain.lanes && width % block != 0) return false;
    const bool in_ranges =
        !run.conditions.empty() && width >= chain.lanes && chain.lanes >= kRangeBlocks * block;
    if (!covers(run, block, last_panel) || (!run.forms.empty() && !in_ranges)) return false;
    for (const std::size_t i : run.reductions) {
        const StripOp& op = chain.ops[i];
        fill(resolve_source(frame, op.out).data, chain.rows, size_of(op.out.dtype), op.identity);
    }
    for (const StripOp& op : chain.ops) {
        if (op.stored_ref >= 0 && frame.views[op.out.index].streams) frame.streamed = true;
    }
    Resolved last;
    const auto resolved = [&](std::size_t op, int k) -> const Resolved& {
        const StripOp& of = chain.ops[op];
        resolve_source(frame, k < 0 ? of.out : of.in[k], last);
        return last;
    };
    for (std::int64_t panel = 0, first = 0; first < chain.lanes; ++panel, first += width) {
        const std::int64_t lanes = std::min(width, chain.lanes - first);
        const Part part{panel, 0, first, chain.rows, lanes};
        if (!in_ranges)
            run_fused(frame, chain, run, part, resolved);
        else if (!run_in_ranges(frame, chain, run, part, resolved))
            return false;
    }
    return true;
}

/// True for a chain on few elements: one strip, whose ops go one by one.
bool is_one_strip(const Chain& chain) {
    return chain.fused.empty() && chain.lanes <= chain.width && chain.rows <= chain.strip_rows &&
           chain.lanes > 0 && chain.rows > 0 &&
           std::none_of(chain.ops.begin(), chain.ops.end(),
                        [](const StripOp& op) { return op.stored_ref >= 0; });
}

/// Runs an op of such a chain, without a table of addresses: they are needed once.
void run_alone(const Frame& frame, const Chain& chain, const StripOp& op) {
    Strip strip;
    strip.rows = chain.rows;
    strip.lanes = chain.lanes;
    Resolved place;
    for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
        resolve_source(frame, op.in[k], place);
        strip.in[k] = {place.data, place.row_stride, place.lane_stride};
    }
    resolve_source(frame, op.out, place);
    strip.out = place.data;
    strip.out_row_stride = place.row_stride;
    strip.padded = op.padded;
    if (op.kind == StripOp::Kind::reduce_rows) {
        fill(place.data, chain.lanes, size_of(op.out.dtype), op.identity);
    } else if (op.kind == StripOp::Kind::reduce_lanes) {
        fill(place.data, chain.rows, size_of(op.out.dtype), op.identity);
    }
    if (op.sum.home != Home::none) {
        resolve_source(frame, op.sum, place);
        const bool by_rows = op.kind == StripOp::Kind::scan_lanes;
        fill(place.data, by_rows ? chain.rows : chain.lanes, size_of(op.sum.dtype), op.identity);
        strip.accumulator = place.data;
    }
    if (op.super != Super::none || op.scans()) {
        std::copy(op.immediate.begin(), op.immediate.end(), strip.immediate);
        if (op.is_affine() && !words_fit(frame, op.affine, chain.rows, chain.lanes))
            return run_wrapping(frame, op, strip, 0, 0);
        if (op.is_affine() && set_affine(strip, op.affine, base_of(frame, op.affine)) &&
            op.super == Super::affine_select && strip.out == strip.in[0].data)
            return;
    }
    op.function(strip);
}

/// True for a chain of scans of this kind whose panels follow each other in memory, as those from
/// array to array, so that more lanes than a panel has are done at once.
bool joins_panels(const Chain& chain, std::span<const ResolvedOp> ops, StripOp::Kind kind) {
    if (!chain.fused.empty()) return false;
    const auto follow = [&](const Resolved& place, DType dtype) {
        return chain.lanes <= chain.width ||
               place.panel_bytes == chain.width * place.lane_stride * size_of(dtype);
    };
    bool scans = false;
    for (std::size_t i = 0; i < chain.ops.size(); ++i) {
        const StripOp& op = chain.ops[i];
        if (!ops[i].function) continue;
        if (op.kind != kind || !follow(ops[i].in[0], op.in[0].dtype) ||
            !follow(ops[i].out, op.out.dtype))
            return false;
        // There is room for the carries of that many lanes; logsumexp does not wait for memory.
        if (kind == StripOp::Kind::scan_rows &&
            (op.in[0].home != Home::view || op.reduction == ir::Reduction::logsumexp))
            return false;
        scans = true;
    }
    return scans;
}

/// Makes the panels of operands `width` lanes wide.
void set_width(const Chain& chain, std::span<ResolvedOp> ops, std::int64_t width) {
    for (std::size_t i = 0; i < chain.ops.size(); ++i) {
        const StripOp& op = chain.ops[i];
        ops[i].in[0].panel_bytes = width * ops[i].in[0].lane_stride * size_of(op.in[0].dtype);
        ops[i].out.panel_bytes = width * ops[i].out.lane_stride * size_of(op.out.dtype);
    }
}

}  // namespace

void execute(Frame& frame, const Chain& chain) {
    if (is_one_strip(chain)) {
        for (const StripOp& op : chain.ops) run_alone(frame, chain, op);
        return;
    }
    const bool whole = chain.fused.size() == 1 && chain.fused[0].first == 0 &&
                       chain.fused[0].last == chain.ops.size();
    if (whole && run_whole(frame, chain)) return;
    std::array<ResolvedOp, Chain::kMaxOps> ops;
    const std::size_t num_ops = chain.ops.size();
    for (std::size_t i = 0; i < num_ops; ++i) {
        const StripOp& op = chain.ops[i];
        for (std::size_t k = 0; k < static_cast<std::size_t>(op.num_inputs); ++k) {
            resolve_source(frame, op.in[k], ops[i].in[k]);
        }
        resolve_source(frame, op.out, ops[i].out);
        ops[i].function = op.function;
        ops[i].padded = op.padded;
        if (op.is_affine()) {
            ops[i].base = base_of(frame, op.affine);
            const bool fit = words_fit(frame, op.affine, chain.rows, chain.lanes);
            ops[i].wraps = fit ? nullptr : &frame;
        }
        ops[i].sum.data = nullptr;
        if (op.sum.home != Home::none) resolve_source(frame, op.sum, ops[i].sum);
        if (op.kind == StripOp::Kind::reduce_lanes) {
            fill(ops[i].out.data, chain.rows, size_of(op.out.dtype), op.identity);
        } else if (op.kind == StripOp::Kind::scan_lanes) {
            fill(ops[i].sum.data, chain.rows, size_of(op.sum.dtype), op.identity);
        }
        if (op.stored_ref >= 0) resolve_store(frame, chain, ops.data(), i);
    }
    const auto resolved = [&](std::size_t op, int k) -> const Resolved& {
        return k < 0 ? ops[op].out : ops[op].in[static_cast<std::size_t>(k)];
    };
    const auto place = [](Chain::Order order, std::int64_t i, std::int64_t count) {
        return order == Chain::Order::backward ? count - 1 - i : i;
    };
    // Most small tiles are one strip, and a division takes as long as a row of one.
    const auto parts = [](std::int64_t all, std::int64_t each) {
        return all <= each ? std::min<std::int64_t>(all, 1) : ceil_div(all, each);
    };
    // Scans along lanes do whole rows: each part of a row would begin with a rounded carry. Scans
    // down rows go along many lanes of a row before the next one.
    const std::span all(ops.data(), num_ops);
    const bool whole_rows = joins_panels(chain, all, StripOp::Kind::scan_lanes);
    const bool along_rows = joins_panels(chain, all, StripOp::Kind::scan_rows);
    std::int64_t width = chain.width, strip_rows = chain.strip_rows;
    if (whole_rows) width = chain.lanes;
    if (along_rows) {
        width = std::min(chain.lanes, kScannedLanes);
        strip_rows = chain.rows;
        set_width(chain, all, width);
    }
    const bool streams =
        along_rows && std::all_of(chain.ops.begin(), chain.ops.end(), [&](const StripOp& op) {
            return op.stored_ref < 0 || frame.views[op.out.index].streams;
        });
    frame.streamed = frame.streamed || streams;
    // Memory is read towards falling addresses where the rows are.
    const Chain::Order row_order =
        chain.row_order == Chain::Order::any ? chain.lane_order : chain.row_order;
    const std::int64_t panels = parts(chain.lanes, width);
    const std::int64_t strips = parts(chain.rows, strip_rows);
    for (std::int64_t p = 0; p < panels; ++p) {
        const std::int64_t panel = place(chain.lane_order, p, panels);
        const std::int64_t first = panel * width;
        const std::int64_t lanes = std::min(width, chain.lanes - first);
        for (std::size_t i = 0; i < num_ops; ++i) {
            const StripOp& op = chain.ops[i];
            if (ops[i].sum.data && op.kind != StripOp::Kind::scan_lanes) {
                fill(ops[i].sum.at(panel, 0), lanes, size_of(op.sum.dtype), op.identity);
            }
            if (op.kind != StripOp::Kind::reduce_rows) continue;
            fill(ops[i].out.at(panel, 0), lanes, size_of(op.out.dtype), op.identity);
        }
        for (std::int64_t strip = 0; strip < strips; ++strip) {
            const std::int64_t row = place(row_order, strip, strips) * strip_rows;
            const Part part{panel, row,        first,  std::min(strip_rows, chain.rows - row),
                            lanes, along_rows, streams};
            Part next = part;
            if (row_order == Chain::Order::backward) {
                next.rows = std::min(part.row, strip_rows);
                next.row -= next.rows;
            } else {
                next.row += part.rows;
                next.rows = std::clamp<std::int64_t>(chain.rows - next.row, 0, strip_rows);
            }
            auto run = chain.fused.begin();
            for (std::size_t i = 0; i < num_ops;) {
                if (run == chain.fused.end() || run->first != i) {
                    for (std::size_t k = 0; k < static_cast<std::size_t>(chain.ops[i].num_inputs);
                         ++k)
                        prefetch(chain.ops[i].in[k], ops[i].in[k], next);
                    run_op(chain.ops[i], ops[i], part, 0);
                    ++i;
                    continue;
                }
                const std::int64_t done = run_fused(frame, chain, *run, part, resolved);
                for (; i < run->last; ++i) {
                    if (done < lanes) run_op(chain.ops[i], ops[i], part, done);
                }
                ++run;
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

void execute(Frame& frame, const ScanRows& scan) {
    const Resolved in = resolve_source(frame, scan.in);
    const Resolved out = resolve_source(frame, scan.out);
    const Resolved carried = resolve_source(frame, scan.carried);
    Strip strip;
    strip.rows = scan.extent;
    strip.out_row_stride = out.row_stride * scan.inner;
    strip.accumulator = carried.data;
    strip.immediate[0] = scan.reverse;
    strip.immediate[1] = scan.exclusive;
    for (std::int64_t panel = 0, first = 0; first < scan.lanes; ++panel, first += scan.width) {
        strip.lanes = std::min(scan.width, scan.lanes - first);
        for (std::int64_t o = 0; o < scan.outer; ++o) {
            for (std::int64_t i = 0; i < scan.inner; ++i) {
                const std::int64_t row = o * scan.extent * scan.inner + i;
                strip.in[0] = {in.at(panel, row), in.row_stride * scan.inner, in.lane_stride};
                strip.out = out.at(panel, row);
                fill(carried.data, strip.lanes, size_of(scan.carried.dtype), scan.identity);
                scan.function(strip);
            }
        }
    }
}

}  // namespace tilewright::cpu
