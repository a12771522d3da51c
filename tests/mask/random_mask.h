// Random dense masks with typical structure: bands, rectangles, specks.
#pragma once

#include <cstdint>
#include <random>

#include "tests/support/googletest.h"
#include "tilewright/tensor.h"

namespace tilewright::testing {

/// bool (B, H, Q, KV); the same for the same seed.
inline Tensor random_dense_mask(std::uint64_t seed, std::int64_t batch, std::int64_t heads,
                                std::int64_t q_len, std::int64_t kv_len) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::int64_t n) {
        return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    };
    Tensor mask = Tensor::zeros(boolean, {batch, heads, q_len, kv_len});
    auto* bytes = static_cast<unsigned char*>(mask.raw());
    for (std::int64_t head = 0; head < batch * heads; ++head, bytes += q_len * kv_len) {
        for (std::int64_t shape = 1 + below(4); shape > 0; --shape) {
            const std::int64_t kind = below(3), value = below(4) != 0;
            std::int64_t q0 = below(q_len), q1 = below(q_len), k0 = below(kv_len),
                         k1 = below(kv_len);
            if (q0 > q1) std::swap(q0, q1);
            if (k0 > k1) std::swap(k0, k1);
            const std::int64_t width = below(kv_len) - kv_len / 4;
            for (std::int64_t q = 0; q < q_len; ++q) {
                for (std::int64_t kv = 0; kv < kv_len; ++kv) {
                    const bool hit = kind == 0   ? q - kv <= width && kv - q <= width
                                     : kind == 1 ? q >= q0 && q <= q1 && kv >= k0 && kv <= k1
                                                 : random() % 64 == 0;
                    if (hit) bytes[q * kv_len + kv] = static_cast<unsigned char>(value);
                }
            }
        }
    }
    return mask;
}

}  // namespace tilewright::testing
