// The Hopper backward kernels: refusals and, on a Hopper GPU, gradients of all kinds of problems
// against the f64 reference.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/attention/sm90_backward_gpu.h"

namespace tilewright::attn::sm90 {
namespace {

TEST(Sm90Backward, RefusesByName) {
    const BackwardInputs good =
        backward_inputs_of({.heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 70});
    EXPECT_NO_THROW(check_backward(good));
    const auto expect = [&](auto change, const std::string& text) {
        BackwardInputs bad = good;
        change(bad);
        try {
            check_backward(bad);
            FAIL() << "accepted, but expected: " << text;
        } catch (const UserError& error) {
            EXPECT_EQ(error.what(), "[attention (sm90)] " + text);
        }
    };
    expect([](auto& i) { i.dtype = DType::f64; },
           "query: expected bf16 or f16 elements but got f64");
    expect([](auto& i) { i.key.shape[1] = 3; },
           "key: expected a number of heads that divides query's but got 3");
    expect([](auto& i) { i.grad_out.shape[2] = 99; }, "grad_out: expected 100 rows but got 99");
    expect([](auto& i) { i.grad_query.shape[1] = 2; }, "grad_query: expected 4 heads but got 2");
    expect([](auto& i) { i.grad_key.strides[2] = 4; },
           "grad_key: expected strides that are multiples of 8 elements but got 4");
    expect([](auto& i) { i.grad_value.address += 2; },
           "grad_value: expected an address that is a multiple of 16 but got 3145730");
    expect([](auto& i) { i.lse = 0; },
           "lse: expected an address that is a multiple of 4 but got 0");
    expect([](auto& i) { i.grad_lse = 6; },
           "grad_lse: expected an address that is a multiple of 4 but got 6");
    expect([](auto& i) { i.workspace = 128; },
           "workspace: expected an address that is a multiple of 256 but got 128");
    expect([](auto& i) { i.scale = INFINITY; }, "scale: expected a finite number but got inf");
    // For head_dim > 128, dQ is summed by tiles of queries.
    const auto widen = [](BackwardInputs& i) {
        for (DeviceTensor* tensor : {&i.query, &i.key, &i.grad_query, &i.grad_key}) {
            const std::int64_t rows = tensor->shape[2];
            tensor->shape[3] = 192;
            tensor->strides = {tensor->shape[1] * rows * 192, rows * 192, 192, 1};
        }
    };
    expect(
        [&](auto& i) {
            widen(i);
            i.mask = DeviceMask{.q_len = 100, .kv_len = 70, .by_key = true};
        },
        "query_mask: expected lists for tiles of queries beside a mask where head_dim > 128 but "
        "got "
        "none");
    expect(
        [&](auto& i) {
            widen(i);
            i.query_mask = DeviceMask{.q_len = 100, .kv_len = 70};
        },
        "query_mask: expected lists for tiles of queries beside a mask where head_dim > 128 but "
        "got "
        "others");
}

TEST_F(Sm90BackwardGpu, HeadDimensions) {
    for (std::int64_t dim = 8; dim <= 256; dim += dim < 128 ? 24 : 32) {
        for (bool causal : {false, true}) {
            check({.heads = 2,
                   .kv_heads = 2,
                   .q_len = 300,
                   .kv_len = 300,
                   .dim = dim,
                   .value_dim = dim,
                   .causal = causal},
                  /*deterministic=*/causal);
        }
    }
    check({.q_len = 300, .kv_len = 300, .dim = 64, .value_dim = 64});
    check({.q_len = 300, .kv_len = 300, .dim = 96, .value_dim = 96});
    check({.q_len = 300, .kv_len = 300, .dim = 72, .value_dim = 128, .causal = true});
    check({.q_len = 300, .kv_len = 300, .dim = 128, .value_dim = 40});
    check({.q_len = 300, .kv_len = 300, .dim = 64, .value_dim = 128});
    check({.q_len = 300, .kv_len = 300, .dim = 192, .value_dim = 128, .causal = true});
    check({.q_len = 300, .kv_len = 300, .dim = 72, .value_dim = 248}, /*deterministic=*/true);
}

TEST_F(Sm90BackwardGpu, HalfPrecision) {
    for (std::int64_t dim : {64, 96, 128}) {
        check({.dtype = DType::f16,
               .heads = 2,
               .kv_heads = 2,
               .q_len = 300,
               .kv_len = 400,
               .dim = dim,
               .value_dim = dim,
               .causal = dim == 128});
    }
}

// At least two keys: with one, dQ and dK are 0 and what is left is rounding.
TEST_F(Sm90BackwardGpu, OddLengths) {
    for (std::int64_t q_len : {1, 63, 81, 200}) {
        for (std::int64_t kv_len : {2, 79, 128, 257}) {
            for (bool causal : {false, true}) {
                check({.heads = 2,
                       .kv_heads = 1,
                       .q_len = q_len,
                       .kv_len = kv_len,
                       .causal = causal,
                       .diagonal = 1},
                      /*deterministic=*/kv_len == 257);
            }
        }
    }
}

// Diagonals that leave rows, keys, tiles, or everything fully masked.
TEST_F(Sm90BackwardGpu, Diagonals) {
    for (std::int64_t diagonal : {-1000, -130, -1, 1, 77, 1000}) {
        for (std::int64_t dim : {64, 128}) {
            check({.heads = 2,
                   .kv_heads = 2,
                   .q_len = 300,
                   .kv_len = 450,
                   .dim = dim,
                   .value_dim = dim,
                   .causal = true,
                   .diagonal = diagonal},
                  /*deterministic=*/dim == 64, /*with_grad_lse=*/true);
        }
    }
}

TEST_F(Sm90BackwardGpu, Windows) {
    for (std::int64_t window : {1, 63, 130, 1000}) {
        for (bool deterministic : {false, true}) {
            check({.heads = 2,
                   .kv_heads = 2,
                   .q_len = 500,
                   .kv_len = 450,
                   .causal = true,
                   .window = window},
                  deterministic);
            check({.q_len = 300,
                   .kv_len = 600,
                   .dim = 64,
                   .value_dim = 64,
                   .causal = true,
                   .diagonal = 90,
                   .window = window},
                  deterministic);
        }
        check({.q_len = 400, .kv_len = 300, .window = window});  // no upper bound
    }
}

TEST_F(Sm90BackwardGpu, GroupedHeadsAndLayouts) {
    check({.batch = 2,
           .heads = 6,
           .kv_heads = 2,
           .q_len = 200,
           .kv_len = 300,
           .causal = true,
           .diagonal = 100,
           .rows_before_heads = true});
    check({.batch = 2,
           .heads = 6,
           .kv_heads = 1,
           .q_len = 150,
           .kv_len = 200,
           .dim = 64,
           .value_dim = 64,
           .rows_before_heads = true},
          /*deterministic=*/true);
}

TEST_F(Sm90BackwardGpu, ScalesOfAnySign) {
    for (double scale : {0.3, -0.1}) {
        check({.q_len = 200, .kv_len = 300, .causal = true, .diagonal = 100, .scale = scale});
    }
}

}  // namespace
}  // namespace tilewright::attn::sm90
