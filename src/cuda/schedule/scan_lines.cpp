// Lines of registers along the axis of a scan.
#include "cuda/schedule/scan_lines.h"

#include <fmt/format.h>

#include <map>

namespace tilewright::cuda::schedule {

int count_along(const Layout& layout, const std::vector<std::uint64_t>& bases, int axis) {
    int count = 0;
    for (const std::uint64_t basis : bases) count += layout.unpack(basis)[axis] != 0 ? 1 : 0;
    return count;
}

std::string total_of_lane(int last, bool reverse) {
    return reverse ? fmt::format("{0} - (lane & {0})", last) : fmt::format("(lane & {})", last);
}

std::int64_t neighbours_along(const Layout& layout, int axis) {
    std::int64_t count = 1;
    for (bool more = true; more;) {
        more = false;
        for (const std::uint64_t basis : layout.reg) {
            if (layout.unpack(basis)[static_cast<std::size_t>(axis)] != count) continue;
            count *= 2;
            more = true;
        }
    }
    return count;
}

std::size_t scanned_tiles(const Instruction& scan) {
    return scan.has("totals") ? scan.results.size() / 2 : scan.results.size();
}

Layout totals_layout(const Layout& layout, int axis) {
    std::vector<std::int64_t> extents(layout.shape.dims().begin(), layout.shape.dims().end());
    extents[static_cast<std::size_t>(axis)] = 1;
    return layout.narrowed(ir::Shape(std::span<const std::int64_t>(extents)));
}

std::vector<ScanLine> lines_of_scan(const Layout& layout, const Instruction& scan) {
    const auto axis = static_cast<std::size_t>(scan.number("axis"));
    const bool reverse = scan.has("reverse");
    std::map<Coordinates, std::map<std::int64_t, int>> lines;
    for (int r = 0; r < layout.registers(); ++r) {
        Coordinates at = layout.register_coordinates(r);
        const std::int64_t along = reverse ? -at[axis] : at[axis];
        at[axis] = 0;
        lines[at][along] = r;
    }
    const int number = static_cast<int>(axis);
    const std::int64_t run =
        neighbours_along(layout, number)
        << (count_along(layout, layout.lane, number) + count_along(layout, layout.warp, number));
    std::vector<ScanLine> result;
    for (const auto& [rest, members] : lines) {
        std::int64_t last = INT64_MIN;
        for (const auto& [along, r] : members) {
            const std::int64_t repeat = layout.register_coordinates(r)[axis] / run;
            if (repeat != last) result.push_back({last == INT64_MIN, {}});
            result.back().registers.push_back(r);
            last = repeat;
        }
    }
    return result;
}

}  // namespace tilewright::cuda::schedule
