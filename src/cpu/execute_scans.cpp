// Runs scans with the user's function: along one row in registers or in segments, along many rows
// side by side, and down rows.
#include <algorithm>
#include <array>
#include <cstring>

#include "cpu/scan_operands.h"
#include "cpu/simd/scan_compiler.h"

namespace tilewright::cpu {
namespace {

constexpr std::int64_t kSegments = CombineScan::kSegments, kSteps = CombineScan::kSteps;

class Scan : ScanOperands {
  public:
    Scan(Frame& frame, const CombineScan& scan) : ScanOperands(frame, scan) {}

    void run() {
        if (!scan_.along_lanes) return down_rows();
        const std::int64_t rows = scan_.outer * scan_.inner;
        // Long rows are read one after the other.
        constexpr std::int64_t kManyRows = 16, kLongRow = 4096;
        if (runs_in_registers()) {
            // Prefetchers follow one direction: in reverse, the last row comes first.
            for (std::int64_t i = 0; i < rows; ++i)
                row_in_registers(scan_.reverse ? rows - 1 - i : i);
            return;
        }
        if (rows >= kManyRows && scan_.lanes <= kLongRow) return many_rows(rows);
        for (std::int64_t row = 0; row < rows; ++row) along_row(row);
    }

  private:
    // ---- One row: vectors in registers.

    static constexpr std::int64_t kVector = 16;  ///< lanes

    bool runs_in_registers() const {
        // In reverse, only the last vector may have lanes before the row.
        bool joined = true;
        for (std::size_t i = 0; i < n_; ++i) {
            const ScanValue& value = values_[i];
            joined = joined && follows(value.in, value.element, 0, scan_.lanes) &&
                     (!value.wanted || follows(value.out, value.element, 0, scan_.lanes));
        }
        return scan_.in_registers != nullptr &&
               (joined || !scan_.reverse || scan_.lanes % kVector == 0);
    }

    void row_in_registers(std::int64_t row) const {
        ScanArguments arguments;
        for (std::size_t i = 0; i < scan_.splats.size(); ++i)
            arguments.splats[i] = reinterpret_cast<std::byte*>(frame_.slots + scan_.splats[i]);
        arguments.is_first = 1;
        // Operands that are one element for all lanes are read from a line of it again and again.
        std::int64_t longest = scan_.lanes;
        for (std::size_t i = 0; i < n_; ++i) {
            if (values_[i].in.lane_stride != 0) continue;
            longest = CombineScan::kLineElements;
            gather(values_[i], row, 0, std::min(longest, scan_.lanes + kVector), values_[i].line);
        }
        for (std::int64_t done = 0; done < scan_.lanes;) {
            std::int64_t count = std::min(scan_.lanes - done, longest);
            std::int64_t lane = scan_.reverse ? scan_.lanes - done - count : done;
            for (std::size_t i = 0; i < n_; ++i) {
                const ScanValue& value = values_[i];
                if (follows(value.in, value.element, lane, count) &&
                    (!value.wanted || follows(value.out, value.element, lane, count)))
                    continue;
                const std::int64_t end = scan_.lanes - done;  // in reverse
                count = scan_.reverse ? (end - 1) % scan_.width + 1
                                      : std::min(count, scan_.width - done % scan_.width);
                lane = scan_.reverse ? end - count : done;
            }
            vectors(arguments, row, scan_.reverse ? lane + count - kVector : lane, count / kVector,
                    0xFFFF);
            if (const std::int64_t rest = count % kVector; rest > 0) {
                const std::int64_t bits = (std::int64_t{1} << rest) - 1;
                vectors(arguments, row, scan_.reverse ? lane + rest - kVector : lane + count - rest,
                        1, scan_.reverse ? bits << (kVector - rest) : bits);
            }
            done += count;
        }
    }

    /// Vectors of a row from `lane` on, up or down.
    void vectors(ScanArguments& arguments, std::int64_t row, std::int64_t lane, std::int64_t count,
                 std::int64_t lanes) const {
        if (count == 0) return;
        bool streams = lanes == 0xFFFF;
        for (std::size_t i = 0; i < n_; ++i) {
            const ScanValue& value = values_[i];
            // The lanes of a vector before the row are not accessed.
            const std::int64_t inside = std::max<std::int64_t>(lane, 0);
            const std::int64_t before = (inside - lane) * value.element;
            arguments.in[i] =
                value.in.lane_stride == 0
                    ? value.line + (scan_.reverse ? (count - 1) * kVector : 0) * value.element
                    : at(value.in, value.element, row, inside) - before;
            if (!value.wanted) continue;
            arguments.out[i] = at(value.out, value.element, row, inside) - before;
            streams = streams && value.streams &&
                      reinterpret_cast<std::intptr_t>(arguments.out[i]) % 64 == 0;
        }
        arguments.vectors = count;
        arguments.lanes = lanes;
        arguments.streams = streams;
        scan_.in_registers(&arguments);
        arguments.is_first = 0;
    }

    // ---- One row: segments side by side.

    /// Segment w of a piece of `steps` * kSegments elements is column w of the rows.
    void along_row(std::int64_t row) {
        const std::int64_t whole = kSteps * kSegments, length = scan_.lanes;
        bool first = true;
        for (std::int64_t done = 0; done < length; first = false) {
            const std::int64_t count = std::min(whole, length - done);
            const std::int64_t steps = ceil_div(count, kSegments);
            const std::int64_t lane = scan_.reverse ? length - done - count : done;
            // A last piece is filled up where the scan has passed.
            const std::int64_t missing = steps * kSegments - count;
            const std::int64_t skipped = scan_.reverse ? missing : 0;
            for (std::size_t i = 0; i < n_; ++i) {
                const ScanValue& value = values_[i];
                const std::byte* from = nullptr;
                if (missing == 0 && value.in.lane_stride != 0 &&
                    follows(value.in, value.element, lane, count)) {
                    from = at(value.in, value.element, row, lane);
                } else {
                    gather(value, row, lane, count, value.line + skipped * value.element);
                    std::byte* const rest =
                        value.line + (scan_.reverse ? 0 : count * value.element);
                    for (std::int64_t k = 0; k < missing; ++k)
                        std::memcpy(rest + k * value.element, value.line + skipped * value.element,
                                    static_cast<std::size_t>(value.element));
                    from = value.line;
                }
                transpose(value, kSegments, steps, from, steps, value.row(0).data, kSegments);
            }
            prefetch(row, scan_.reverse ? lane - whole : lane + count, whole);
            scan_segments(steps, first);
            for (std::size_t i = 0; i < n_; ++i) {
                const ScanValue& value = values_[i];
                if (!value.wanted) continue;
                const bool direct = missing == 0 && !value.streams &&
                                    follows(value.out, value.element, lane, count);
                std::byte* const to = direct ? at(value.out, value.element, row, lane) : value.line;
                transpose(value, steps, kSegments, value.row(0).data, kSegments, to, steps);
                if (!direct) scatter(value, row, lane, count, value.line + skipped * value.element);
            }
            done += count;
        }
    }

    /// Lanes of a row, while others are scanned.
    void prefetch(std::int64_t row, std::int64_t lane, std::int64_t count) const {
        if (lane < 0 || lane + count > scan_.lanes) return;
        constexpr std::int64_t kLine = 64;
        for (std::size_t i = 0; i < n_; ++i) {
            const ScanValue& value = values_[i];
            if (value.in.lane_stride == 0 || !follows(value.in, value.element, lane, count))
                continue;
            const std::byte* const next = at(value.in, value.element, row, lane);
            for (std::int64_t byte = 0; byte < count * value.element; byte += kLine)
                __builtin_prefetch(next + byte);
        }
    }

    /// Scans the columns of `steps` rows, each of which follows the one before (or, in reverse,
    /// after) it, and all of which follow the carry, unless they are the `first`.
    void scan_segments(std::int64_t steps, bool first) {
        const auto down = [&](std::int64_t r) {
            return each([&](const ScanValue& value) {
                return scan_.reverse ? value.row(steps - 1 - r).back() : value.row(r);
            });
        };
        combine(scan_.combine, down(0), down(1), down(1), steps - 1, kSegments, true);
        const AllRows totals = down(steps - 1);
        // The totals of columns follow kSegments elements that are of no use, in reverse they are
        // followed by them; the carry is next to them.
        const auto lane_of_totals = [&](const ScanValue& value, int half, std::int64_t lane) {
            return Rows{value.totals + (half * 3 * kSegments + kSegments + lane) * value.element,
                        0};
        };
        const std::int64_t carry_lane = scan_.reverse ? kSegments : -1;
        for (std::size_t i = 0; i < n_; ++i) {
            const auto bytes = static_cast<std::size_t>(kSegments * values_[i].element);
            std::memcpy(lane_of_totals(values_[i], 0, 0).data, totals[i].data, bytes);
        }
        if (!first) {
            // Only the first total follows the carry.
            const std::int64_t at = scan_.reverse ? kSegments - 1 : 0;
            const auto carry = each([&](const ScanValue& value) {
                return Rows{lane_of_totals(value, 0, carry_lane).data, 0};
            });
            const auto one =
                each([&](const ScanValue& value) { return lane_of_totals(value, 0, at); });
            combine(scan_.combine, carry, one, one, 1, 1, true);
        }
        static_assert(kSegments == 64, "an even number of steps ends in the first half");
        int half = 0;
        for (std::int64_t reach = 1; reach < kSegments; reach *= 2, half = 1 - half) {
            const auto now = each([&](const ScanValue& v) { return lane_of_totals(v, half, 0); });
            const auto next =
                each([&](const ScanValue& v) { return lane_of_totals(v, 1 - half, 0); });
            const auto before = each([&](const ScanValue& value) {
                return lane_of_totals(value, half, scan_.reverse ? reach : -reach);
            });
            combine(scan_.combine, before, now, next, 1, kSegments, false);
            for (std::size_t i = 0; i < n_; ++i) {
                const std::int64_t kept =
                    (scan_.reverse ? kSegments - reach : 0) * values_[i].element;
                std::memcpy(next[i].data + kept, now[i].data + kept,
                            static_cast<std::size_t>(reach * values_[i].element));
            }
        }
        for (std::size_t i = 0; i < n_ && first; ++i) keep_first(values_[i], steps, true);
        const auto carries = each([&](const ScanValue& value) {
            return lane_of_totals(value, 0, scan_.reverse ? 1 : -1);
        });
        const auto rows = each([&](const ScanValue& value) { return value.row(0); });
        combine(scan_.last, carries, rows, rows, steps, kSegments, true);
        for (std::size_t i = 0; i < n_; ++i) {
            if (first) keep_first(values_[i], steps, false);
            std::memcpy(lane_of_totals(values_[i], 0, carry_lane).data,
                        lane_of_totals(values_[i], 0, scan_.reverse ? 0 : kSegments - 1).data,
                        static_cast<std::size_t>(values_[i].element));
        }
    }

    /// Nothing comes before the first column: saves it, or puts it back.
    void keep_first(const ScanValue& value, std::int64_t steps, bool saves) const {
        const auto element = static_cast<std::size_t>(value.element);
        const std::int64_t column = scan_.reverse ? kSegments - 1 : 0;
        for (std::int64_t r = 0; r < steps; ++r) {
            std::byte* const inside = value.row(r).data + column * value.element;
            std::byte* const saved = value.segment + r * value.element;
            std::memcpy(saves ? saved : inside, saves ? inside : saved, element);
        }
    }

    // ---- Many rows side by side.

    void many_rows(std::int64_t rows) {
        for (std::int64_t row = 0; row < rows; row += kSegments)
            rows_side_by_side(row, std::min(kSegments, rows - row));
    }

    /// Row 1 + s of the work memory has lane s of all rows; the carry is before or after those.
    void rows_side_by_side(std::int64_t row, std::int64_t count) {
        const std::int64_t length = scan_.lanes;
        const std::int64_t pieces = ceil_div(length, kSteps);
        for (std::int64_t k = 0; k < pieces; ++k) {
            const std::int64_t lane = (scan_.reverse ? pieces - 1 - k : k) * kSteps;
            const std::int64_t steps = std::min(kSteps, length - lane);
            for (std::size_t i = 0; i < n_; ++i) load_columns(values_[i], row, count, lane, steps);
            const bool has_carry = k > 0;
            const auto down = [&](std::int64_t r) {
                return each([&](const ScanValue& value) {
                    return scan_.reverse ? value.row(steps + 1 - r).back() : value.row(r);
                });
            };
            if (has_carry)
                combine(scan_.in_turn, down(0), down(1), down(1), steps, kSegments, true);
            else
                combine(scan_.in_turn, down(1), down(2), down(2), steps - 1, kSegments, true);
            const std::int64_t next_steps =
                scan_.reverse ? kSteps : std::min(kSteps, length - lane - kSteps);
            for (std::size_t i = 0; i < n_; ++i) {
                const ScanValue& value = values_[i];
                if (value.wanted) store_columns(value, row, count, lane, steps);
                const Rows carry = value.row(scan_.reverse ? next_steps + 1 : 0);
                std::memcpy(carry.data, down(steps)[i].data,
                            static_cast<std::size_t>(kSegments * value.element));
            }
        }
    }

    void load_columns(const ScanValue& value, std::int64_t row, std::int64_t count,
                      std::int64_t lane, std::int64_t steps) const {
        const Resolved& in = value.in;
        std::byte* const to = value.row(1).data;
        if (in.lane_stride != 0 && follows(in, value.element, lane, steps)) {
            return transpose(value, count, steps, at(in, value.element, row, lane),
                             in.row_bytes / value.element, to, kSegments);
        }
        for (std::int64_t r = 0; r < count; ++r)
            gather(value, row + r, lane, steps, value.line + r * kSteps * value.element);
        transpose(value, count, steps, value.line, kSteps, to, kSegments);
    }

    void store_columns(const ScanValue& value, std::int64_t row, std::int64_t count,
                       std::int64_t lane, std::int64_t steps) const {
        const std::byte* const from = value.row(1).data;
        if (!value.streams && follows(value.out, value.element, lane, steps)) {
            return transpose(value, steps, count, from, kSegments,
                             at(value.out, value.element, row, lane),
                             value.out.row_bytes / value.element);
        }
        transpose(value, steps, count, from, kSegments, value.line, kSteps);
        for (std::int64_t r = 0; r < count; ++r)
            scatter(value, row + r, lane, steps, value.line + r * kSteps * value.element);
    }

    // ---- Down rows, by code that keeps vectors in registers.

    bool runs_down() const {
        return scan_.down_rows != nullptr &&
               std::all_of(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(n_),
                           [](const ScanValue& value) { return value.in.lane_stride != 0; });
    }
    /// From the row `row` on, after which every other one of `inner` follows.
    void down_in_registers(std::int64_t row, std::int64_t lane, std::int64_t lanes) const {
        const std::int64_t sign = scan_.reverse ? -1 : 1;
        if (scan_.reverse) row += (scan_.extent - 1) * scan_.inner;
        ScanDownArguments arguments;
        for (std::size_t i = 0; i < scan_.splats.size(); ++i)
            arguments.splats[i] = reinterpret_cast<std::byte*>(frame_.slots + scan_.splats[i]);
        arguments.carries = values_[0].rows;
        arguments.rows = scan_.extent - 1;
        bool streams = true, contiguous = true;
        std::array<const std::byte*, ScanShape::kMostValues> in;
        std::array<std::byte*, ScanShape::kMostValues> out;
        for (std::size_t i = 0; i < n_; ++i) {
            const ScanValue& value = values_[i];
            const std::int64_t bytes = lanes * value.element;
            in[i] = at(value.in, value.element, row, lane);
            arguments.in_step[i] = sign * scan_.inner * value.in.row_bytes;
            contiguous = contiguous && scan_.inner * value.in.row_bytes == bytes;
            arguments.out_step[i] = 0;
            out[i] = nullptr;
            if (!value.carried) continue;
            // The first row is as it is.
            std::memcpy(carry(i), in[i], static_cast<std::size_t>(bytes));
            if (!value.wanted) continue;
            out[i] = at(value.out, value.element, row, lane);
            arguments.out_step[i] = sign * scan_.inner * value.out.row_bytes;
            store(value, out[i], carry(i), lanes);
            contiguous = contiguous && scan_.inner * value.out.row_bytes == bytes;
            streams = streams && value.streams &&
                      (reinterpret_cast<std::intptr_t>(out[i]) | arguments.out_step[i]) % 64 == 0;
        }
        arguments.streams = streams;
        const auto run = [&](void (*code)(void*), std::int64_t from, std::int64_t mask) {
            for (std::size_t i = 0; i < n_; ++i) {
                arguments.in[i] = in[i] + arguments.in_step[i] + from * 4;
                arguments.out[i] = out[i] ? out[i] + arguments.out_step[i] + from * 4 : nullptr;
            }
            arguments.carries = carry(0) + from * 4;
            arguments.lanes = mask;
            code(&arguments);
        };
        std::int64_t done = 0;
        // Rows that follow each other are read as fast as memory can be; so are, in turn, few long
        // rows of several arrays.
        constexpr std::int64_t kFewRows = 128;
        if (!contiguous && scan_.down_columns != nullptr && (n_ == 1 || scan_.extent > kFewRows)) {
            // Rows of several arrays share cache sets.
            const std::int64_t rows_ahead = n_ == 1 ? 6 : 2;
            arguments.ahead = rows_ahead * arguments.in_step[0] / 4;
            for (; done + scan_.column_lanes <= lanes; done += scan_.column_lanes)
                run(scan_.down_columns, done, 0xFFFF);
        }
        if (const std::int64_t vectors = (lanes - done) / kVector; vectors > 0) {
            arguments.vectors = vectors;
            arguments.first = scan_.reverse ? (vectors - 1) * kVector : 0;
            run(scan_.down_rows, done, 0xFFFF);
            done += vectors * kVector;
        }
        if (const std::int64_t rest = lanes - done; rest > 0) {
            arguments.vectors = 1;
            arguments.first = 0;
            arguments.streams = 0;
            run(scan_.down_rows, done, (std::int64_t{1} << rest) - 1);
        }
    }
    /// Where the carries of a value are: in the rows of all values.
    std::byte* carry(std::size_t i) const {
        static_assert(ScanDownArguments::kCarryBytes == 4 * CombineScan::kRowElements);
        return values_[0].rows + static_cast<std::int64_t>(i) * ScanDownArguments::kCarryBytes;
    }

    // ---- Down rows.

    void down_rows() {
        const bool in_registers = runs_down();
        const std::int64_t kLanes = in_registers ? CombineScan::kRowElements : 512;
        for (std::int64_t lane = 0; lane < scan_.lanes;) {
            std::int64_t lanes = std::min(kLanes, scan_.lanes - lane);
            for (std::size_t i = 0; i < n_; ++i) {
                const ScanValue& value = values_[i];
                const bool one_piece =
                    follows(value.in, value.element, lane, lanes) &&
                    (!value.wanted || follows(value.out, value.element, lane, lanes));
                if (!one_piece) lanes = std::min(lanes, scan_.width - lane % scan_.width);
            }
            for (std::int64_t o = 0; o < scan_.outer; ++o) {
                for (std::int64_t i = 0; i < scan_.inner; ++i) {
                    const std::int64_t row = o * scan_.extent * scan_.inner + i;
                    in_registers ? down_in_registers(row, lane, lanes) : down(row, lane, lanes);
                }
            }
            lane += lanes;
        }
    }

    /// Results that are not kept, or go past the caches, are made in work memory, some rows at a
    /// time, after the row with the carry.
    void down(std::int64_t row, std::int64_t lane, std::int64_t lanes) {
        const std::int64_t at_once =
            std::min(CombineScan::kRowElements / lanes - 1, CombineScan::kLineElements / lanes);
        constexpr std::int64_t kRowsAhead = 4;
        const std::int64_t sign = scan_.reverse ? -1 : 1;
        if (scan_.reverse) row += (scan_.extent - 1) * scan_.inner;
        for (std::int64_t done = 0; done < scan_.extent;) {
            const std::int64_t count = std::min(at_once, scan_.extent - done);
            AllRows before, after, out;
            for (std::size_t i = 0; i < n_; ++i) {
                const ScanValue& value = values_[i];
                const std::int64_t line_bytes = lanes * value.element;
                const std::int64_t first = row + sign * done * scan_.inner;
                after[i] = {at(value.in, value.element, first, lane),
                            sign * scan_.inner * value.in.row_bytes};
                if (value.in.lane_stride == 0) {
                    for (std::int64_t r = 0; r < count; ++r)
                        gather(value, first + r * sign * scan_.inner, lane, lanes,
                               value.line + r * line_bytes);
                    after[i] = {value.line, line_bytes};
                }
                if (!value.carried) continue;
                if (in_place(value)) {
                    out[i] = {at(value.out, value.element, first, lane),
                              sign * scan_.inner * value.out.row_bytes};
                    before[i] = out[i].moved(-1);
                } else {
                    before[i] = {value.rows, line_bytes};
                    out[i] = before[i].moved(1);
                }
            }
            std::int64_t copied = 0;
            if (done == 0) {
                copied = 1;
                for (std::size_t i = 0; i < n_; ++i) {
                    after[i] = after[i].moved(1);
                    if (!values_[i].carried) continue;
                    std::memcpy(out[i].data, after[i].moved(-1).data,
                                static_cast<std::size_t>(lanes * values_[i].element));
                    before[i] = before[i].moved(1);
                    out[i] = out[i].moved(1);
                }
            }
            combine(scan_.in_turn, before, after, out, count - copied, lanes, false, kRowsAhead);
            for (std::size_t i = 0; i < n_; ++i) {
                const ScanValue& value = values_[i];
                if (!value.carried || in_place(value)) continue;
                const std::int64_t line_bytes = lanes * value.element;
                for (std::int64_t r = 0; r < count && value.wanted; ++r) {
                    store(value,
                          at(value.out, value.element, row + sign * (done + r) * scan_.inner, lane),
                          value.rows + (1 + r) * line_bytes, lanes);
                }
                std::memcpy(value.rows, value.rows + count * line_bytes,
                            static_cast<std::size_t>(line_bytes));
            }
            done += count;
        }
    }
    static bool in_place(const ScanValue& value) { return value.wanted && !value.streams; }
};

}  // namespace

void execute(Frame& frame, const CombineScan& scan) {
    Scan(frame, scan).run();
}

}  // namespace tilewright::cpu
