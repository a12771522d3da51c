// Host arrays for the programs of cuda_programs.h, and comparisons of results.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ir/evaluate.h"
#include "ir/function.h"
#include "ir/launch.h"

namespace tilewright::testing_support {

/// Multiples of 1/8 in [0, 1] (integers 0 to 8): their products and sums are exact in f32.
struct ProgramArrays {
    struct alignas(16) Word {
        std::byte bytes[16];
    };
    ProgramArrays(const ir::Function& function,
                  const std::vector<std::vector<std::int64_t>>& extents) {
        std::uint64_t random = 12345;
        for (std::size_t i = 0; i < extents.size(); ++i) {
            const DType dtype = function.ref_type(function.parameters()[i]).dtype;
            std::int64_t size = 1;
            for (std::int64_t extent : extents[i]) size *= extent;
            sizes.push_back(size);
            const auto bytes = static_cast<std::size_t>(size * size_of(dtype));
            memory.emplace_back(bytes / 16 + 2);
            auto* data = reinterpret_cast<std::byte*>(memory.back().data());
            for (std::int64_t e = 0; e < size; ++e) {
                random = random * 6364136223846793005ull + 1442695040888963407ull;
                const int value = static_cast<int>(random >> 40) % 9;
                ir::write_element(dtype, data + e * size_of(dtype),
                                  is_float(dtype) ? ir::encode(dtype, value / 8.0)
                                                  : ir::encode_int(dtype, value));
            }
            ir::RefArgument ref;
            ref.data = data;
            std::int64_t stride = 1;
            for (std::size_t d = extents[i].size(); d-- > 0;) {
                ref.extents[d] = extents[i][d];
                ref.strides[d] = stride;
                stride *= extents[i][d];
            }
            arguments.refs.push_back(ref);
        }
    }
    double value(const ir::Function& function, std::size_t array, std::int64_t element) const {
        const DType dtype = function.ref_type(function.parameters()[array]).dtype;
        return ir::decode(
            dtype, ir::read_element(dtype, static_cast<std::byte*>(arguments.refs[array].data) +
                                               element * size_of(dtype)));
    }

    /// Fills the last array, the output, with NaN (integers: -1), to show what no program stores.
    void poison_output() {
        std::memset(memory.back().data(), 0xff, memory.back().size() * sizeof(Word));
    }

    std::vector<std::vector<Word>> memory;
    std::vector<std::int64_t> sizes;
    ir::Arguments arguments;
};

/// The largest difference over the largest magnitude of an array; NaN if only one side is NaN.
inline double relative_error(const ir::Function& function, std::size_t array,
                             const ProgramArrays& expected, const ProgramArrays& got) {
    double worst = 0, largest = 1e-30;
    for (std::int64_t e = 0; e < expected.sizes[array]; ++e) {
        const double want = expected.value(function, array, e),
                     have = got.value(function, array, e);
        if (std::isnan(want) != std::isnan(have)) return std::nan("");
        if (std::isnan(want)) continue;
        worst = std::max(worst, std::abs(want - have));
        largest = std::max(largest, std::abs(want));
    }
    return worst / largest;
}

}  // namespace tilewright::testing_support
