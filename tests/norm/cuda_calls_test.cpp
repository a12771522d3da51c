// The norms on GPU tensors against the CPU's results, on a GPU or on the stand-in for one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <tuple>
#include <utility>

#include "tests/cuda/test_support.h"
#include "tests/support/accuracy.h"
#include "tilewright/norm.h"

namespace tilewright {
namespace {

using testing::expect_accurate;
using testing::random_tensor;

/// Compares both norms and their gradients with f64; parameters and dy have their own dtype.
void check(DType dtype, DType parameters, std::int64_t rows, std::int64_t n) {
    SCOPED_TRACE(fmt::format("{} with {}, {} x {}", name(dtype), name(parameters), rows, n));
    const Device gpu = Device::cuda();
    const Tensor x = random_tensor(dtype, {rows, n}, 1),
                 residual = random_tensor(dtype, {rows, n}, 5),
                 weight = random_tensor(parameters, {n}, 2),
                 bias = random_tensor(parameters, {n}, 3),
                 dy = random_tensor(parameters, {rows, n}, 4);
    const auto expect = [&](const char* what, const Tensor& ours, const Tensor& exact,
                            const Tensor& plain) {
        EXPECT_EQ(ours.device(), gpu);
        EXPECT_EQ(ours.dtype(), plain.dtype()) << what;
        expect_accurate(what, ours, to_array(exact), to_array(plain), ours.dtype());
    };
    const auto run = [&](bool exactly, Device device) {
        const auto at = [&](const Tensor& tensor) {
            return tensor.to(exactly ? f64 : tensor.dtype()).to(device);
        };
        const NormOutput rms = rms_norm(at(x), at(weight));
        const NormOutput layer =
            layer_norm(at(x), at(weight), at(bias), {.residual = at(residual)});
        return std::tuple(rms, layer, rms_norm_backward(rms, at(weight), at(dy)),
                          layer_norm_backward(layer, at(weight), at(bias), at(dy), at(residual)));
    };
    const auto [rms, layer, rms_grads, layer_grads] = run(false, gpu);
    const auto [plain_rms, plain_layer, plain_rms_grads, plain_layer_grads] = run(false, {});
    const auto [exact_rms, exact_layer, exact_rms_grads, exact_layer_grads] = run(true, {});
    expect("rms y", rms.y, exact_rms.y, plain_rms.y);
    expect("rms inverse", rms.inverse_deviation, exact_rms.inverse_deviation,
           plain_rms.inverse_deviation);
    expect("layer y", layer.y, exact_layer.y, plain_layer.y);
    expect("layer sum", layer.sum, exact_layer.sum, plain_layer.sum);
    expect("rms dx", rms_grads.x, exact_rms_grads.x, plain_rms_grads.x);
    expect("rms dweight", rms_grads.weight, exact_rms_grads.weight, plain_rms_grads.weight);
    expect("layer dx", layer_grads.x, exact_layer_grads.x, plain_layer_grads.x);
    expect("layer dweight", layer_grads.weight, exact_layer_grads.weight, plain_layer_grads.weight);
    expect("layer dbias", layer_grads.bias, exact_layer_grads.bias, plain_layer_grads.bias);
}

void check(DType dtype, std::int64_t rows, std::int64_t n) {
    check(dtype, dtype, rows, n);
}

TEST(CudaCalls, NormsGiveWhatTheCpuGives) {
    TW_REQUIRE_GPU();
    check(f32, 5, 96);
    check(bf16, f32, 5, 96);
    check(f64, 5, 96);
    if (std::getenv("TW_FAKE_GPU") != nullptr) return;
    for (DType dtype : {f32, f16, bf16}) {
        check(dtype, 300, 1000);
        check(dtype, 7, 8192);
        check(dtype, 300, 256);   // rows share tiles
        check(dtype, 140, 2048);  // fewer rows per tile
        check(dtype, 3, 16384);   // sums in scratch memory, or rows in pieces
        check(dtype, 3, 32768);
        check(dtype, 3, 70001);  // rows in pieces
        check(dtype, 1, 1);
    }
    // As models are trained in mixed precision, narrow weights, and f64.
    const std::pair<DType, DType> mixed[] = {{bf16, f32}, {f16, f32}, {f32, bf16}, {f64, f64}};
    for (const auto& [dtype, parameters] : mixed) {
        check(dtype, parameters, 300, 1000);
        check(dtype, parameters, 140, 2048);
        check(dtype, parameters, 7, 8192);
        check(dtype, parameters, 3, 70001);
    }
    EXPECT_EQ(rms_norm(Tensor::empty(f32, {0, 8}, Device::cuda())).y.device(), Device::cuda());
}

}  // namespace
}  // namespace tilewright
