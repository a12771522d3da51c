// Elementwise programs on one thread, alternating with a memcpy of the bytes that must move.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/cpu/fma_peak.h"
#include "cpu/machine.h"
#include "tilewright/lang.h"
#include "tilewright/norm.h"
#include "tilewright/run.h"

namespace {

using namespace tilewright;

constexpr std::int64_t kRows = 8192, kColumns = 4096;

double median(std::vector<double> values) {
    std::nth_element(values.begin(),
                     values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

Tensor random_tensor(const Tensor::Dims& shape) {
    Tensor x = Tensor::empty(f32, shape);
    auto* data = x.data<float>();
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < x.size(); ++i) {
        state = state * 1664525 + 1013904223;
        data[i] = static_cast<float>(state >> 8) * 0x1p-23F - 1;
    }
    return x;
}

/// Times `work`, which must move `bytes`, alternating with memcpy.
void report(const std::string& name, double bytes, const std::function<void()>& work) {
    static const Tensor from = random_tensor({kRows, kColumns}),
                        to = random_tensor({kRows, kColumns});
    work();
    std::vector<double> ours, copies;
    for (int round = 0; round < 7; ++round) {
        const double start = bench::seconds();
        work();
        const double between = bench::seconds();
        std::memcpy(to.data<float>(), from.data<float>(), static_cast<std::size_t>(from.nbytes()));
        copies.push_back(bench::seconds() - between);
        ours.push_back(between - start);
    }
    const double copy_rate = 2 * static_cast<double>(from.nbytes()) / median(copies);
    fmt::print("{:28} {:8.2f} ms {:6.2f} GB/s {:5.0f}% of copy\n", name, median(ours) * 1e3,
               bytes / median(ours) * 1e-9, 100 * bytes / median(ours) / copy_rate);
}

/// A call on x and y of one shape, in blocks of 8 rows.
Call row_call(const char* name, const std::function<Tile(Tile)>& f, std::int64_t n) {
    CallOptions options;
    options.grid = [](std::span<const Tensor> in) {
        return std::vector<std::int64_t>{in[0].dim(0) / 8};
    };
    options.out_type = [](std::span<const Tensor> in) {
        return std::vector<TensorType>{{in[0].dtype(), in[0].shape()}};
    };
    return call(kernel(name, {"x", "y"},
                       [=](Ref x, Ref y) {
                           const Tile first = program_id(0) * 8;
                           for_loop(first, first + 8, [&](Tile r) {
                               y.at(r, ds(0, n)).store(f(x.at(r, ds(0, n)).load()));
                           });
                       }),
                options);
}

}  // namespace

int main() {
    cpu::set_num_threads(1);
    const Tensor x = random_tensor({kRows, kColumns}), dy = random_tensor({kRows, kColumns}),
                 weight = random_tensor({kColumns}), y = random_tensor({kRows, kColumns});
    const auto bytes = static_cast<double>(x.nbytes());
    const NormOutput rms = rms_norm(x, weight), layer = layer_norm(x, weight, weight);
    const NormGradients rms_grad = rms_norm_backward(rms, weight, dy),
                        layer_grad = layer_norm_backward(layer, weight, weight, dy);
    const auto row = [&](const char* name, const std::function<Tile(Tile)>& f) {
        const Call c = row_call(name, f, kColumns);
        if (std::getenv("TILEWRIGHT_BENCH_LIST")) {
            fmt::print("{}\n", c.ir({x}));
        }
        report(name, 2 * bytes, [&] { c.into({y}, {x}); });
    };
    row("copy", [](Tile t) { return t; });
    row("scale", [](Tile t) { return t * 2.0; });
    row("softmax", [](Tile t) {
        const Tile weights = exp(t - max(t));
        return weights * (1.0 / sum(weights));
    });
    report("rms_norm", 2 * bytes, [&] { rms_norm_into(rms, x, weight); });
    report("rms_norm backward", 3 * bytes,
           [&] { rms_norm_backward_into(rms_grad, rms, weight, dy); });
    report("layer_norm", 2 * bytes, [&] { layer_norm_into(layer, x, weight, weight); });
    report("layer_norm backward", 3 * bytes,
           [&] { layer_norm_backward_into(layer_grad, layer, weight, weight, dy); });
    return 0;
}
