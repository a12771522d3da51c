// Programs without roles as CUDA C++: copies of tiles of arrays to shared memory by cp.async.
#include <array>

#include "cuda/schedule/array_access.h"
#include "cuda/schedule/thread_printer.h"

namespace tilewright::cuda::schedule {
namespace {

/// The text of a copy's bounds and addresses, of its pieces of 16 bytes.
struct CopyText {
    std::string pointer;     ///< to the first element
    std::string uniform;     ///< condition of all pieces
    std::string inside;      ///< of a piece's row
    std::string valid;       ///< bytes of a piece inside of the array; "": all
    std::string row_offset;  ///< of a piece from the pointer, in elements
    std::string row_stride, rows_inside;
    std::array<std::string, 2> windows;  ///< of rows, of columns
    /// Rows are equally far apart and counted from 0.
    bool regular = true;
};

}  // namespace

void ThreadPrinter::copy_tile(const Instruction& made) {
    const ArrayAccess access(p_, made);
    const Parameter& array = access.array;
    const ir::Shape shape = copied_shape(access);
    const int bytes = size_of(array.dtype), per_piece = 16 / bytes, rank = shape.rank();
    const std::int64_t row_bytes = made.number("row_bytes"), pieces_per_row = row_bytes / 16,
                       rows = covered_rows(shape), pieces = rows * pieces_per_row;
    const int threads = 32 * p_.warps();
    const int step = static_cast<int>(threads / pieces_per_row);  // rows between a thread's pieces
    CopyText text;
    text.pointer = data_text(array);
    for (std::size_t d = 0; d < access.sizes.size(); ++d) {
        const int dim = static_cast<int>(d);
        const std::string stride = stride_text(array, dim), extent = extent_text(array, dim),
                          start = index(access.indices[d]);
        text.pointer += stride == "1" ? " + " + start : fmt::format(" + ({}) * {}", start, stride);
        const bool proved = access.bound(d) == Bound::none;
        if (access.is_scalar(d)) {
            if (!proved) {
                text.uniform =
                    both(text.uniform, fmt::format("static_cast<u64>({}) < {}", start, extent));
            }
            continue;
        }
        const int axis = access.axis[d];
        const std::int64_t known = array.extents[d], size = access.size(d), by = access.step(d);
        const bool padded = cover(size).size() != size;
        const std::string position = axis == rank - 1 ? fmt::format("piece * {}", per_piece)
                                     : rank == 3      ? (axis == 0 ? "outer" : "inner")
                                                      : "row";
        std::string window;
        if (!proved && by == 1) {
            window = fmt::format("w{}", dim);
            text.windows[axis == rank - 1 ? 1 : 0] +=
                fmt::format("const Window {} = window({}, {}, {});", window, start, extent, size);
        }
        if (axis == rank - 1) {
            if (!window.empty() &&
                (known == ir::kDynamic || known % per_piece != 0 || size % per_piece != 0)) {
                text.valid =
                    fmt::format("{}.valid({}, {}) * {}", window, position, per_piece, bytes);
            } else if (!window.empty()) {
                text.valid = fmt::format("{}.contains({}) ? 16 : 0", window, position);
            } else if (padded) {
                text.valid = fmt::format("Window{{0, {}}}.valid({}, {}) * {}", size, position,
                                         per_piece, bytes);
            }
            continue;
        }
        text.row_stride = stride;
        text.row_offset += fmt::format(
            " + {} * {}", by == 1 ? position : fmt::format("{} * {}ll", position, by), stride);
        // Rows are counted from 0 where the tile cannot begin before the array.
        text.regular = text.regular && by == 1 && !padded && access.bound(d) != Bound::both;
        std::string bound;
        if (!window.empty()) {
            text.rows_inside = fmt::format("count_inside({}, {}, {})", start, extent, size);
            bound = fmt::format("{}.contains({})", window, position);
        } else if (!proved) {
            bound = fmt::format("static_cast<u64>({} + {} * {}ll) < {}{}", start, position, by,
                                extent, padded ? fmt::format(" && {} < {}", position, size) : "");
        } else if (padded) {
            bound = fmt::format("{} < {}", position, size);
        }
        text.inside = both(text.inside, bound);
    }
    std::string to = made.symbol("to");
    if (made.has("slotted")) {
        to += fmt::format(" + {} * {}u", registers(access.values[0]).front(), rows * row_bytes);
    }
    const std::string swizzled =
        fmt::format("memory_address + {} + swizzled<{}, {}>(row, piece * 16)", to, row_bytes,
                    made.number("group"));
    line("{{");
    ++depth_;
    if (!text.uniform.empty()) line("const bool ok = {};", text.uniform);
    line("auto* const from = {};", text.pointer);
    if (!text.windows[1].empty()) line("{}", text.windows[1]);
    // The swizzle repeats after 8 rows, so that a thread's pieces are equally far apart in both
    // memories, every piece or every `phases`-th one.
    const int phases = step % 8 == 0 ? 1 : step > 0 && 8 % step == 0 ? 8 / step : 0;
    const int count = static_cast<int>(pieces / threads);
    if (text.regular && rank == 2 && threads % pieces_per_row == 0 && pieces % threads == 0 &&
        phases > 0 && count % phases == 0) {
        if (!text.uniform.empty()) {
            text.rows_inside =
                fmt::format("ok ? {} : 0",
                            text.rows_inside.empty() ? fmt::format("{}", rows) : text.rows_inside);
        }
        line("const int row = threadIdx.x / {0}, piece = threadIdx.x % {0};", pieces_per_row);
        const auto to_of = [&](int phase) {
            return phases == 1 ? std::string("to") : fmt::format("to{}", phase);
        };
        for (int phase = 0; phase < phases; ++phase) {
            const std::string row = phase == 0 ? "row" : fmt::format("row + {}", phase * step);
            line("const u32 {} = memory_address + {} + swizzled<{}, {}>({}, piece * 16);",
                 to_of(phase), to, row_bytes, made.number("group"), row);
        }
        line("auto* const rows_from = from + piece * {}{};", per_piece, text.row_offset);
        if (!text.valid.empty()) line("const int bytes = {};", text.valid);
        if (!text.rows_inside.empty()) line("const int rows = {};", text.rows_inside);
        // A warp that copies a tile by itself would have dozens of copies: most of the text to
        // compile, and no faster than some at a time.
        constexpr int kMost = 16, kAtOnce = 8;
        const int at_once = count > kMost && count % kAtOnce == 0 ? kAtOnce : count;
        const bool loops = at_once < count;
        if (loops) {
            line("#pragma unroll 1");
            line("for (int past = 0; past < {}; past += {}) {{", count * step, at_once * step);
            ++depth_;
        }
        const std::string whole = text.valid.empty() ? "16" : "bytes";
        for (int i = 0; i < at_once; ++i) {
            const std::string target =
                loops ? fmt::format("{} + past * {}", i / phases * phases * step * row_bytes,
                                    row_bytes)
                      : fmt::format("{}", i / phases * phases * step * row_bytes);
            const std::string row =
                loops ? fmt::format("(past + {})", i * step) : fmt::format("{}", i * step);
            line("ptx::cp_async_16({} + {}, rows_from + {} * {}, {});", to_of(i % phases), target,
                 row, text.row_stride,
                 text.rows_inside.empty() ? whole
                                          : fmt::format("row < rows - {} ? {} : 0", row, whole));
        }
        if (loops) {
            --depth_;
            line("}}");
        }
    } else {
        if (!text.windows[0].empty()) line("{}", text.windows[0]);
        if (!text.uniform.empty()) text.inside = both("ok", text.inside);
        line("#pragma unroll");
        line("for (int i = 0; i < {}; ++i) {{", (pieces + threads - 1) / threads);
        ++depth_;
        line("const int at = threadIdx.x + i * {};", threads);
        if (pieces % threads != 0) line("if (at >= {}) break;", pieces);
        line("const int row = at / {0}, piece = at % {0};", pieces_per_row);
        if (rank == 3) {
            line("const int outer = row / {0}, inner = row % {0};", cover(shape[1]).size());
        }
        const std::string size = text.valid.empty() && text.inside.empty() ? "16"
                                 : text.valid.empty() ? text.inside + " ? 16 : 0"
                                 : text.inside.empty()
                                     ? text.valid
                                     : fmt::format("{} ? ({}) : 0", text.inside, text.valid);
        line("ptx::cp_async_16({}, from + piece * {}{}, {});", swizzled, per_piece, text.row_offset,
             size);
        --depth_;
        line("}}");
    }
    --depth_;
    line("}}");
}

}  // namespace tilewright::cuda::schedule
