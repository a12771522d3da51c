// Times our work and its peers on a GPU in rounds.
#include "cli/bench/gpu_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <ostream>
#include <string_view>
#include <thread>

#include "cli/bench/baseline.h"
#include "cli/bench/gpu_timing.h"
#include "cli/builtin.h"
#include "support/check.h"
#include "tilewright/run.h"

namespace tilewright::cli {
namespace {

/// A variant that lets the GPU cool down before each sample.
Variant after_rest(Variant variant) {
    static constexpr std::chrono::milliseconds kRest(400);
    return {variant.name, [sample = std::move(variant.sample)] {
                std::this_thread::sleep_for(kRest);
                return sample();
            }};
}

/// Median seconds of one execution during half a second, after half a second of the same load.
double sustained_seconds(const Variant& variant) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kHalf(500);
    const Clock::time_point start = Clock::now();
    std::vector<double> samples;
    while (samples.empty() || Clock::now() - start < 2 * kHalf) {
        const double seconds = variant.sample();
        if (Clock::now() - start >= kHalf) samples.push_back(seconds);
    }
    return median(samples);
}

}  // namespace

Tensor GpuBench::random(const Tensor::Dims& shape, std::uint32_t seed) {
    Tensor& result = random_[{shape, seed}];
    if (result.defined()) return result;
    Tensor::Dims part = shape;
    if (shape.size() == 4) part[0] = 1;
    const Tensor values = random_values(f32, part, seed).to(options_.device).to(options_.dtype);
    if (part == shape) return result = values;
    result = Tensor::empty(options_.dtype, shape, options_.device);
    for (std::int64_t b = 0; b < shape[0]; ++b) result.slice(0, b, 1).copy_from(values);
    return result;
}

Row& GpuBench::measure(const GpuWork& m) {
    report_.print();
    const auto clocks = std::make_shared<std::vector<double>>();
    std::vector<Variant> variants = {timed("tilewright", m.work, clocks)};
    std::map<std::string, const GpuPeer*> peers;
    for (const GpuPeer& peer : m.peers) {
        add_peer(peer, variants);
        peers[peer.name] = &peer;
    }
    if (m.copy) variants.push_back(timed("copy", m.copy, nullptr));
    const Budget budget{options_.least_rounds, 50, options_.seconds,
                        m.case_name + " " + m.operation};
    std::vector<Variant> rested = variants;
    for (Variant& variant : rested) {
        if (options_.sustained) variant = after_rest(std::move(variant));
    }
    std::vector<double> seconds = interleave(rested, budget);
    const std::vector<double> burst_clocks = *clocks;
    double copy = 0;
    if (m.copy) {
        copy = seconds.back();
        seconds.pop_back();
        variants.pop_back();
    }
    Row* last = nullptr;
    for (std::size_t i = variants.size(); i-- > 0;) {
        Row row;
        row.case_name = m.case_name;
        row.operation = m.operation;
        row.impl = variants[i].name;
        row.ms = seconds[i] * 1e3;
        const auto peer = peers.find(row.impl);
        const bool has_own = peer != peers.end() && peer->second->amount > 0;
        const double amount = has_own ? peer->second->amount : m.amount;
        const double blocks = has_own ? peer->second->blocks : m.blocks;
        (m.bandwidth ? row.gbs : row.tflops) = amount / seconds[i] * (m.bandwidth ? 1e-9 : 1e-12);
        if (blocks > 0) row.tflops_blocks = blocks / seconds[i] * 1e-12;
        if (options_.sustained) {
            row.sustained = amount / sustained_seconds(variants[i]) * (m.bandwidth ? 1e-9 : 1e-12);
        }
        last = &report_.add(std::move(row));
    }
    Row& ours = *last;
    if (copy > 0) {
        ours.roof = m.amount / seconds[0] / (m.copied / copy);
        ours.roof_name = "device copy";
    }
    if (variants.size() > 1) {
        ours.baseline = variants[1].name;
        ours.ratio = seconds[1] / seconds[0];
    }
    if (const double mhz = median(burst_clocks); mhz > 0) {
        ours.sm_mhz = mhz;
        const double peak = tensor_flops_per_cycle(options_.device) * mhz * 1e6;
        if (!m.bandwidth && peak > 0 && size_of(options_.dtype) == 2) {
            ours.roof = m.amount / seconds[0] / peak;
            ours.roof_name = "tensor peak";
        }
    }
    return ours;
}

nlohmann::json GpuBench::job(const char* operation, bool backward) const {
    nlohmann::json result = {{"operation", operation},
                             {"direction", backward ? "backward" : "forward"},
                             {"dtype", name(options_.dtype)},
                             {"device", to_string(options_.device)},
                             {"threads", 1}};
    if (options_.graph_calls > 0) result["graph"] = options_.graph_calls;
    if (!options_.precision.empty()) result["precision"] = options_.precision;
    return result;
}

bool GpuBench::wants(const std::string& peer) const {
    constexpr std::string_view kByName[] = {"xla",    "fa3",    "fa4",        "torch-compile",
                                            "triton", "pallas", "pallas-mgpu"};
    const bool by_name =
        std::find(std::begin(kByName), std::end(kByName), peer) != std::end(kByName);
    const std::string asked = "," + options_.baseline + ",";
    return asked.find("," + peer + ",") != std::string::npos ||
           (options_.baseline == "auto" && !by_name) || peer == kThroughTorch;
}

Variant GpuBench::timed(const char* name, const std::function<void()>& work,
                        std::shared_ptr<std::vector<double>> clocks) const {
    return options_.graph_calls > 0
               ? timed_in_graph(name, work, options_.graph_calls, options_.device, clocks)
               : timed_on_gpu(name, work, options_.device, clocks);
}

void GpuBench::add_peer(const GpuPeer& peer, std::vector<Variant>& variants) {
    if (!wants(peer.name) || no_torch_) return;
    if (options_.baseline != "auto") {
        variants.push_back(python_baseline(peer.job, peer.name));
        return;
    }
    Baseline baseline = try_python_baseline(peer.job, peer.name);
    if (baseline.variant) {
        variants.push_back(*std::move(baseline.variant));
        return;
    }
    *options_.out << fmt::format("no rows of {}: {}\n", peer.name, baseline.refusal);
    no_torch_ = baseline.for_all_cases;
}

}  // namespace tilewright::cli
