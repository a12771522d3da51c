// Lines of registers along the axis of a scan.
#include "cuda/schedule/scan_lines.h"

#include <fmt/format.h>

#include <algorithm>
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
    const std::int64_t of_lanes = neighbours_along(layout, number)
                                  << count_along(layout, layout.lane, number);
    const int warps = count_along(layout, layout.warp, number);
    // What all warps have together.
    const std::int64_t of_warps =
        warps == 0 ? of_lanes : layout.unpack(layout.warp[0])[axis] << warps;
    std::vector<ScanLine> result;
    for (const auto& [rest, members] : lines) {
        bool begins = true;
        std::int64_t part = 0, run = 0, first_run = 0;
        for (const auto& [along, r] : members) {
            const std::int64_t at = layout.register_coordinates(r)[axis];
            if (begins) first_run = at / of_warps;
            if (begins || at / of_lanes != part) {
                const bool follows = !begins && warps > 0 && at / of_warps == run;
                result.push_back({begins, follows, at / of_warps == first_run, {}});
            }
            result.back().registers.push_back(r);
            begins = false;
            part = at / of_lanes;
            run = at / of_warps;
        }
    }
    return result;
}

std::size_t totals_of_warp(const std::vector<ScanLine>& lines) {
    return static_cast<std::size_t>(std::count_if(
        lines.begin(), lines.end(), [](const ScanLine& line) { return !line.follows; }));
}

}  // namespace tilewright::cuda::schedule
