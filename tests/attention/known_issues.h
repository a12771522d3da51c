// Shared by the tests of known issues.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "support/accuracy.h"
#include "tests/attention/definition.h"
#include "tilewright/attention.h"

namespace tilewright::known_issues {

inline std::vector<float> values(const Tensor& x) {
    return x.to_vector<float>();
}

struct Shape {
    std::int64_t batch = 1, heads = 1, kv_heads = 1, length = 70, kv_length = 70, dim = 16;
    DType dtype = f32;
};

/// A block mask in `options` stands for `mask`, the mod that it was made from.
inline void expect_definition(const Shape& shape, const AttentionOptions& options,
                              const Mod& mask = {}) {
    attn::check({.options = options,
                 .mask = mask,
                 .dtype = shape.dtype,
                 .batch = shape.batch,
                 .heads = shape.heads,
                 .kv_heads = shape.kv_heads,
                 .length = shape.length,
                 .kv_length = shape.kv_length,
                 .head_dim = shape.dim,
                 .value_dim = shape.dim,
                 .bounds = 2});
}

inline void expect_near(const Tensor& ours, const Tensor& expected, double tolerance) {
    const double error = largest_error(to_array(ours), to_array(expected));
    EXPECT_TRUE(error <= tolerance) << error;
}

}  // namespace tilewright::known_issues
