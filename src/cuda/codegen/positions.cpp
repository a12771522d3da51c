// Coordinates as sums of runs of bits of `lane` and `warp`.
#include "cuda/codegen/positions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace tilewright::cuda {
namespace {

/// The terms of an axis that the bits of `variable` add: runs of consecutive bits of the variable
/// that are consecutive bits of the coordinate.
void add_terms(Names& terms, const Layout& layout, const std::vector<std::uint64_t>& bases,
               int axis, const char* variable) {
    for (std::size_t bit = 0; bit < bases.size();) {
        const auto stride = static_cast<std::uint64_t>(layout.unpack(bases[bit])[axis]);
        if (stride == 0) {
            ++bit;
            continue;
        }
        std::size_t end = bit + 1;
        while (end < bases.size() && static_cast<std::uint64_t>(layout.unpack(bases[end])[axis]) ==
                                         stride << (end - bit)) {
            ++end;
        }
        std::string part = bit == 0 ? variable : fmt::format("{} >> {}", variable, bit);
        if (end != bases.size())
            part = fmt::format("({} & {})", part, (1 << (end - bit)) - 1);
        else if (bit != 0)
            part = "(" + part + ")";
        if (stride != 1) part = fmt::format("{} * {}", part, stride);
        terms.push_back(std::move(part));
        bit = end;
    }
}

}  // namespace

Names numbered(const std::string& base, int count) {
    if (count == 1) return {base};
    Names names;
    names.reserve(count);
    for (int r = 0; r < count; ++r) names.push_back(fmt::format("{}_{}", base, r));
    return names;
}

std::string plus(const std::string& text, std::int64_t constant) {
    if (text == "0") return fmt::format("{}", constant);
    return constant == 0 ? text : fmt::format("({} + {})", text, constant);
}

std::string owner(const Layout& layout) {
    Names parts;
    if (const unsigned lanes = layout.copied_lanes()) {
        parts.push_back(lanes == 31 ? "lane == 0" : fmt::format("(lane & {}) == 0", lanes));
    }
    if (const unsigned warps = layout.copied_warps()) {
        parts.push_back(warps + 1 == static_cast<unsigned>(layout.warps())
                            ? "warp == 0"
                            : fmt::format("(warp & {}) == 0", warps));
    }
    return fmt::format("{}", fmt::join(parts, " && "));
}

std::string both(const std::string& a, const std::string& b) {
    return a.empty() ? b : b.empty() ? a : a + " && " + b;
}

std::string where(const std::string& condition) {
    return condition.empty() ? "" : fmt::format("if ({}) ", condition);
}

std::string Positions::thread(const Layout& layout, int axis) {
    for (const Known& one : known_) {
        if (one.axis == axis && one.lane == layout.lane && one.warp == layout.warp &&
            one.shape == layout.shape) {
            return one.name;
        }
    }
    Names terms;
    add_terms(terms, layout, layout.lane, axis, "lane");
    add_terms(terms, layout, layout.warp, axis, "warp");
    std::string name =
        terms.empty() ? "0" : variable(fmt::format("{}", fmt::join(terms, " + ")), false);
    known_.push_back({layout.lane, layout.warp, layout.shape, axis, name});
    return name;
}

std::string Positions::inside(const Layout& layout, int reg) {
    if (!layout.has_phantoms()) return "";
    std::string text;
    const Coordinates at = layout.register_coordinates(reg);
    for (int axis = 0; axis < layout.shape.rank(); ++axis) {
        if (!layout.has_phantoms(axis)) continue;
        text = both(text, fmt::format("{} < {}", of(layout, axis, at[axis]), layout.shape[axis]));
    }
    return text;
}

std::string Positions::variable(const std::string& text, bool is_address) {
    const auto found = names_.find(text);
    if (found != names_.end()) return found->second;
    const std::string name = fmt::format("at{}", all_.size());
    names_.emplace(text, name);
    all_.push_back({name, text, is_address});
    return name;
}

}  // namespace tilewright::cuda
