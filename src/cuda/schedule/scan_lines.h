// How a thread's registers follow each other in a scan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/schedule/program.h"

namespace tilewright::cuda::schedule {

/// Registers of a scan that are neighbours along its axis, in its order: a thread has those between
/// two lanes. Other registers have what lies beyond all lanes of the warp, or beyond all warps.
struct ScanLine {
    bool begins = false;   ///< nothing stands before it but what other threads have
    bool follows = false;  ///< it comes after the one before in the same warp
    bool first = false;    ///< no other warp stands between it and the beginning of its line
    std::vector<int> registers;
};
/// How many totals each warp has of these lines.
std::size_t totals_of_warp(const std::vector<ScanLine>& lines);
inline constexpr std::int64_t kScanSlot = 8;  ///< bytes for a thread's total of a line
/// How many of the bases move along an axis.
int count_along(const Layout& layout, const std::vector<std::uint64_t>& bases, int axis);
/// Are the totals of warps combined by the lanes of each warp, one total a lane? Only where all
/// lanes of a warp have one total; with few warps, a thread has them in fewer steps one after the
/// other.
constexpr bool joins_in_lanes(int lanes, int warps) {
    return lanes == 5 && warps > 2;
}
/// The warp, among those of an axis with the last number `last`, whose total a lane takes then.
std::string total_of_lane(int last, bool reverse);
/// Neighbours along an axis in a thread's registers.
std::int64_t neighbours_along(const Layout& layout, int axis);
/// How many tiles a scan scans, or joins. With `totals`, as many results follow: what each line
/// combines to, in every thread that has a part of it.
std::size_t scanned_tiles(const Instruction& scan);
Layout totals_layout(const Layout& layout, int axis);
std::vector<ScanLine> lines_of_scan(const Layout& layout, const Instruction& scan);

}  // namespace tilewright::cuda::schedule
