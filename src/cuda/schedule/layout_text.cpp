// Text of sums of weighted bits.
#include "cuda/schedule/layout_text.h"

#include <fmt/format.h>

#include "support/check.h"

namespace tilewright::cuda::schedule {
namespace {

/// The text of a weighted sum of bits of `index`; neighbouring bits with neighbouring weights are
/// one term.
std::string weighted(const std::string& index, const std::vector<std::int64_t>& weights) {
    std::string text;
    for (std::size_t bit = 0; bit < weights.size();) {
        if (weights[bit] == 0) {
            ++bit;
            continue;
        }
        std::size_t end = bit + 1;
        while (end < weights.size() && weights[end] == weights[end - 1] * 2) ++end;
        std::string term = index;
        if (bit > 0) term = fmt::format("{} / {}", term, 1 << bit);
        if (end < weights.size()) term = fmt::format("{} % {}", term, 1 << (end - bit));
        if (weights[bit] != 1) term = fmt::format("{} * {}", term, weights[bit]);
        text += (text.empty() ? "" : " + ") + term;
        bit = end;
    }
    return text.empty() ? "0" : "(" + text + ")";
}

}  // namespace

std::string thread_coordinate(const Layout& layout, int axis, const std::string& warp) {
    const auto weights = [&](const std::vector<std::uint64_t>& bases) {
        std::vector<std::int64_t> result;
        for (std::uint64_t basis : bases) {
            result.push_back(layout.unpack(basis)[axis]);
        }
        return result;
    };
    const std::string lanes = weighted("lane", weights(layout.lane));
    const std::string warps = weighted(warp, weights(layout.warp));
    return fmt::format("static_cast<int>({} + {})", lanes, warps);
}

std::string register_coordinate(const Layout& layout, int axis, const std::string& index) {
    TW_ASSERT(layout.registers() == 1 << layout.reg.size(), "repeats");
    std::vector<std::int64_t> weights;
    for (std::uint64_t basis : layout.reg) {
        weights.push_back(layout.unpack(basis)[axis]);
    }
    return weighted(index, weights);
}

std::string source_register(const Layout& view, const Layout& source, int dropped,
                            const std::string& index) {
    TW_ASSERT(view.registers() == 1 << view.reg.size(), "repeats");
    std::vector<std::int64_t> weights;
    for (std::size_t bit = 0; bit < view.reg.size(); ++bit) {
        const Coordinates of_view = view.register_coordinates(1 << bit);
        Coordinates at{};
        int axis = 0;
        for (int a = 0; a < view.shape.rank(); ++a) {
            if (a == dropped) continue;
            const std::size_t to = axis++;
            at[to] = source.shape[to] == 1 ? 0 : of_view[a];
        }
        const int found = source.find_register(at);
        TW_ASSERT(found >= 0, "a view moves elements");
        weights.push_back(found);
    }
    return weighted(index, weights);
}

}  // namespace tilewright::cuda::schedule
