// Arrays for random programs, and comparison of the results of two runs.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/evaluate.h"
#include "tests/support/random.h"
#include "tests/support/random_program.h"

namespace tilewright::testing {
namespace {

using namespace ir;

std::uint64_t random_element(DType dtype, Random& random) {
    if (dtype == boolean) return random.chance(50);
    if (!is_float(dtype)) {
        if (random.chance(10)) return wrap_to(dtype, random.bits());
        return wrap_to(dtype, static_cast<std::uint64_t>(random.between(-8, 8)));
    }
    const double odd[] = {0.0, -0.0, std::numeric_limits<double>::infinity(),
                          -std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::quiet_NaN()};
    if (random.chance(4)) return encode(dtype, random.pick(odd));
    return encode(dtype, static_cast<double>(random.between(-4096, 4096)) / 512);
}

}  // namespace

RandomArguments::RandomArguments(const Function& kernel, std::uint64_t seed) {
    Random random(seed);
    arguments_.grid = kernel.grid;
    for (std::int64_t& extent : arguments_.grid) {
        if (extent == kDynamic) extent = random.between(1, 3);
    }
    for (Value parameter : kernel.parameters()) {
        if (!kernel.is_ref(parameter)) {
            arguments_.scalars.push_back(random_element(kernel.type(parameter).dtype, random));
            continue;
        }
        const RefType& type = kernel.ref_type(parameter);
        if (type.space == Space::scratch) continue;
        RefArgument ref;
        std::int64_t elements = 1;
        for (std::size_t i = type.extents.size(); i-- > 0;) {
            ref.extents[i] = type.extents[i] == kDynamic ? random.between(0, 9) : type.extents[i];
            ref.strides[i] = elements;
            elements *= ref.extents[i];
        }
        const auto size = static_cast<std::size_t>(size_of(type.dtype));
        // One spare element: an empty array still has an address.
        arrays_.emplace_back((static_cast<std::size_t>(elements) + 1) * size);
        for (std::int64_t i = 0; i < elements; ++i) {
            write_element(type.dtype, arrays_.back().data() + static_cast<std::size_t>(i) * size,
                          random_element(type.dtype, random));
        }
        arguments_.refs.push_back(ref);
    }
    for (std::size_t i = 0; i < arrays_.size(); ++i) arguments_.refs[i].data = arrays_[i].data();
}

int first_difference(const Function& kernel, const RandomArguments& a, const RandomArguments& b,
                     double relative) {
    int index = 0;
    for (Value parameter : kernel.parameters()) {
        if (!kernel.is_ref(parameter)) continue;
        const RefType& type = kernel.ref_type(parameter);
        if (type.space == Space::scratch) continue;
        const auto& left = a.arrays()[static_cast<std::size_t>(index)];
        const auto& right = b.arrays()[static_cast<std::size_t>(index)];
        const auto size = static_cast<std::size_t>(size_of(type.dtype));
        for (std::size_t at = 0; at + size <= left.size(); at += size) {
            const std::uint64_t x = read_element(type.dtype, left.data() + at);
            const std::uint64_t y = read_element(type.dtype, right.data() + at);
            if (x == y) continue;
            if (!is_float(type.dtype)) return index;
            const double u = decode(type.dtype, x), v = decode(type.dtype, y);
            if (u == v || (std::isnan(u) && std::isnan(v))) continue;
            const double tolerance = relative * std::max(std::fabs(u), std::fabs(v));
            if (!(std::fabs(u - v) <= tolerance) || std::isinf(tolerance)) return index;
        }
        ++index;
    }
    return -1;
}

}  // namespace tilewright::testing
