// `tilewright bench norm --device cuda`.
#include <fmt/format.h>

#include "cli/bench/baseline.h"
#include "cli/bench/cases.h"
#include "cli/bench/gpu_peers.h"
#include "cli/builtin.h"
#include "cli/softmax.h"
#include "run/to_array.h"
#include "support/accuracy.h"
#include "tilewright/norm.h"
#include "tilewright/run.h"

namespace tilewright::cli {
namespace {

/// Measures the norms and softmax of `count` rows of length n.
class NormBench {
  public:
    NormBench(GpuBench& bench, std::int64_t count, std::int64_t n)
        : bench_(bench), options_(bench.options()), count_(count), n_(n) {}

    /// The jobs for the peer that was asked for.
    std::vector<nlohmann::json> jobs() const {
        std::vector<nlohmann::json> result;
        for (const auto& [program, backward] : kOperations) {
            for (const GpuPeer& peer : peers(program, backward)) result.push_back(peer.job);
        }
        return result;
    }

    void run() {
        const Tensor x = bench_.random({count_, n_}, 1), dy = bench_.random({count_, n_}, 2),
                     weight = bench_.random({n_}, 3), bias = bench_.random({n_}, 4);
        y_ = Tensor::empty(options_.dtype, x.shape(), options_.device);
        x_ = x;
        // Compares results on a few rows with f64 on the CPU.
        const auto few = [](const Tensor& tensor) {
            return tensor.slice(0, 0, 2).contiguous().to(Device{});
        };
        const auto check = [&](Row& row, const Tensor& ours, auto run) {
            if (!options_.check) return;
            const Array exact = to_array(run(f64)), plain = to_array(run(options_.dtype));
            row.error = largest_error(to_array(few(ours)), exact);
            row.ok = *row.error <= allowed_error(plain, exact, options_.dtype);
        };
        const auto at = [&](const Tensor& tensor, DType dtype) {
            return tensor.to(Device{}).to(dtype);
        };
        const auto rms_on_host = [&](DType dtype) {
            return rms_norm(at(few(x), dtype), at(weight, dtype));
        };
        const auto layer_on_host = [&](DType dtype) {
            return layer_norm(at(few(x), dtype), at(weight, dtype), at(bias, dtype));
        };
        const NormOutput rms = rms_norm(x, weight);
        check(measure("rms_norm", false, 2, [&] { rms_norm_into(rms, x, weight); }), rms.y,
              [&](DType dtype) { return rms_on_host(dtype).y; });
        const NormGradients rms_grad = rms_norm_backward(rms, weight, dy);
        check(measure("rms_norm", true, 3,
                      [&] { rms_norm_backward_into(rms_grad, rms, weight, dy); }),
              rms_grad.x, [&](DType dtype) {
                  return rms_norm_backward(rms_on_host(dtype), at(weight, dtype),
                                           at(few(dy), dtype))
                      .x;
              });
        const NormOutput layer = layer_norm(x, weight, bias);
        check(measure("layer_norm", false, 2, [&] { layer_norm_into(layer, x, weight, bias); }),
              layer.y, [&](DType dtype) { return layer_on_host(dtype).y; });
        const NormGradients layer_grad = layer_norm_backward(layer, weight, bias, dy);
        check(measure("layer_norm", true, 3,
                      [&] { layer_norm_backward_into(layer_grad, layer, weight, bias, dy); }),
              layer_grad.x, [&](DType dtype) {
                  return layer_norm_backward(layer_on_host(dtype), at(weight, dtype),
                                             at(bias, dtype), at(few(dy), dtype))
                      .x;
              });
        if (n_ > kLongestSoftmax) return;
        const Call soft = softmax(n_, true);
        measure("softmax", false, 2, [&] { soft.into({y_}, {x}); });
    }

  private:
    static constexpr std::pair<const char*, bool> kOperations[] = {{"rms_norm", false},
                                                                   {"rms_norm", true},
                                                                   {"layer_norm", false},
                                                                   {"layer_norm", true},
                                                                   {"softmax", false}};
    static constexpr std::int64_t kLongestSoftmax = 32768;

    std::vector<GpuPeer> peers(const char* program, bool backward) const {
        nlohmann::json job = bench_.job(program, backward);
        job.update({{"rows", count_}, {"n", n_}});
        if (options_.baseline != "torch-compile") return {{"torch", job}, {"xla", job}};
        job["compiled"] = true;
        return {{"torch-compile", job}};
    }

    Row& measure(const char* program, bool backward, double arrays, std::function<void()> work) {
        const auto bytes = static_cast<double>(x_.nbytes());
        return bench_.measure(
            {fmt::format("{} {} x {} {}", program, count_, n_, name(options_.dtype)),
             backward ? "backward" : "forward", std::move(work), arrays * bytes, true, 0,
             peers(program, backward), [&] { y_.copy_from(x_); }, 2 * bytes});
    }

    GpuBench& bench_;
    BenchOptions options_;
    std::int64_t count_, n_;
    Tensor x_, y_;
};

}  // namespace

void bench_norm_gpu(const BenchOptions& options, Report& report) {
    GpuBench bench(options, report);
    std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
        {options.seq_len.value_or(16384), options.head_dim.value_or(8192)}};
    if (options.sweep) {
        shapes = {{16384, 128},  {16384, 1024}, {32768, 1024}, {16384, 4096},
                  {16384, 8192}, {4096, 16384}, {4096, 32768}, {512, 262144}};
    }
    std::vector<nlohmann::json> jobs;
    for (const auto& [count, n] : shapes) {
        for (const nlohmann::json& job : NormBench(bench, count, n).jobs()) jobs.push_back(job);
    }
    if (options.baseline == "torch-compile") prepare_torch_baselines(jobs);
    for (const auto& [count, n] : shapes) NormBench(bench, count, n).run();
}

}  // namespace tilewright::cli
