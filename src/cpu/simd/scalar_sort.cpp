// Sorting by the standard library: the definition, and what machines without vectors do.
#include <algorithm>
#include <numeric>

#include "cpu/simd/scalar.h"
#include "cpu/simd/sort_keys.h"

namespace tilewright::cpu {
namespace {

template <class Keys>
void sort(const SortLine& line) {
    const auto* in = static_cast<const typename Keys::Bits*>(line.in);
    auto* out = static_cast<typename Keys::Bits*>(line.out);
    auto* places = static_cast<std::int32_t*>(line.work);
    std::iota(places, places + line.length, 0);
    std::stable_sort(places, places + line.length, [&](std::int32_t a, std::int32_t b) {
        return line.descending ? Keys::key(in[b]) < Keys::key(in[a])
                               : Keys::key(in[a]) < Keys::key(in[b]);
    });
    for (std::int64_t i = 0; i < line.count; ++i) {
        if (out != nullptr) out[i] = in[places[i]];
        if (line.places != nullptr) line.places[i] = places[i];
    }
}

}  // namespace

SortFunction scalar_sort(DType dtype) {
    return with_sort_keys(dtype, [](auto keys) -> SortFunction { return sort<decltype(keys)>; });
}

}  // namespace tilewright::cpu
