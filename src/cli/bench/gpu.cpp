// `tilewright bench --device cuda`: our kernels compared with PyTorch's in the same rounds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/bench/baseline.h"
#include "cli/bench/cases.h"
#include "cli/bench/flex_cases.h"
#include "cli/bench/gpu_checks.h"
#include "cli/bench/gpu_peers.h"
#include "cli/builtin.h"
#include "run/to_array.h"
#include "support/accuracy.h"
#include "support/check.h"
#include "tilewright/attention.h"
#include "tilewright/mask.h"
#include "tilewright/masks.h"
#include "tilewright/run.h"

namespace tilewright::cli {
namespace {

/// Measures both passes of a problem.
void bench_problem(GpuBench& bench, const std::string& case_name, const AttentionInputs& in,
                   const AttentionOptions& on_gpu, double pairs, double block_pairs, bool backward,
                   const Check& check, const std::function<std::vector<GpuPeer>(bool)>& peers) {
    const auto work = static_cast<double>(in.q.dim(3) + in.v.dim(3));
    const AttentionOutput out = attention(in.q, in.k, in.v, on_gpu);
    Row& forward =
        bench.measure({case_name, "forward", [&] { attention(in.q, in.k, in.v, on_gpu); },
                       2 * work * pairs, false, 2 * work * block_pairs, peers(false)});
    check(false, forward);
    if (!backward) return;
    Row& back = bench.measure({case_name, "backward",
                               [&] { attention_backward(in.q, in.k, in.v, out, in.dout, on_gpu); },
                               5 * work * pairs, false, 5 * work * block_pairs, peers(true)});
    check(true, back);
}

/// "f32 tf32": the dtype, and the precision of products if one is given.
std::string dtype_name(const BenchOptions& options) {
    const std::string dtype(name(options.dtype));
    return options.precision.empty() ? dtype : dtype + " " + options.precision;
}

MakeRandom random_of(GpuBench& bench) {
    return [&bench](const Tensor::Dims& shape, std::uint32_t seed) {
        return bench.random(shape, seed);
    };
}

/// The options for a GPU: the mask as data, built once; captures on the GPU.
AttentionOptions with_data(const FlexCase& gpu_case, const FlexCase& host_case,
                           const FlexSizes& sizes, const BenchOptions& options) {
    AttentionOptions result = gpu_case.options;
    result.deterministic = options.deterministic;
    result.engine = options.engine;
    result.precision = options.precision;
    result.autotune = options.autotune;
    if (host_case.options.mask.defined()) {
        result.mask = {};
        result.block_mask = create_block_mask(host_case.options.mask, sizes.batch, sizes.heads,
                                              gpu_case.q_len, gpu_case.kv_len);
    }
    return result;
}

nlohmann::json flex_job(const GpuBench& bench, const FlexCase& c, const FlexSizes& sizes,
                        bool backward) {
    nlohmann::json job = bench.job("flex", backward);
    describe_case(c, sizes, job);
    return job;
}

struct Shape {
    std::int64_t batch, heads, length, head_dim;
    bool causal;
};

/// The shapes for the options' head dimension and causality.
std::vector<Shape> shapes_of(const BenchOptions& options) {
    const std::int64_t dim = options.head_dim.value_or(128);
    std::vector<Shape> all = {{4, 16, 8192, 128, false}, {4, 16, 8192, 128, true},
                              {2, 16, 16384, 64, false}, {2, 16, 16384, 64, true},
                              {2, 8, 8192, 256, false},  {2, 8, 8192, 256, true}};
    if (options.sweep) {
        all.clear();
        constexpr std::int64_t kTokens = 32768;
        for (const bool causal : {false, true}) {
            for (const std::int64_t length :
                 {512, 1000, 1024, 2048, 4095, 4096, 8192, 10007, 16384, 32768, 65536, 131072}) {
                all.push_back(
                    {std::max<std::int64_t>(1, kTokens / length), 16, length, dim, causal});
            }
        }
    }
    if (options.sweep_head_dim) {
        all.clear();
        for (std::int64_t d = 8; d <= 256; d += 8)
            all.push_back({2, 16, 8192, d, options.causal.value_or(false)});
    }
    std::vector<Shape> shapes;
    for (const Shape& shape : all) {
        const bool fits = (!options.head_dim || dim == shape.head_dim) &&
                          (!options.causal || *options.causal == shape.causal);
        if (fits) shapes.push_back(shape);
    }
    if (shapes.empty()) shapes.push_back({4, 16, 8192, dim, options.causal.value_or(false)});
    return shapes;
}

/// A case of `bench flex` on both sides.
struct FlexProblem {
    FlexCase host, gpu;
};

/// A check of two heads, at a length that the CPU computes in a moment and at which the case's mask
/// still hides something.
Check check_of_case(GpuBench& bench, FlexSizes sizes,
                    const std::function<FlexProblem(const FlexSizes&)>& make) {
    if (!bench.options().check) return [](bool, Row&) {};
    constexpr std::int64_t kUsual = 1024;
    const std::int64_t longest = std::max(kUsual, make(sizes).host.check_length);
    sizes.batch = 1;
    sizes.kv_heads = sizes.kv_heads == sizes.heads ? 2 : 1;
    sizes.heads = 2;
    sizes.length = std::min(sizes.length, longest);
    sizes.kv_length = std::min(sizes.kv_length, longest);
    const FlexProblem small = make(sizes);
    const AttentionInputs in = attention_inputs(random_of(bench), small.host, sizes);
    return check_all(in, with_data(small.gpu, small.host, sizes, bench.options()),
                     small.host.options);
}

/// Whether FlashAttention-3 or -4 has what a case of the notebook needs (bench/flash_attention.py).
bool flash_attention_has(const std::string& peer, const std::string& flex_case) {
    const auto is_one_of = [&](std::initializer_list<const char*> names) {
        return std::any_of(names.begin(), names.end(),
                           [&](const char* name) { return flex_case == name; });
    };
    return is_one_of({"noop", "causal", "sliding_window", "soft_cap"}) ||
           (peer == "fa4" && is_one_of({"document", "alibi_table", "alibi_computed"}));
}

/// What a case of the notebook is compared with. `flop` is that of a pair that attends.
std::vector<GpuPeer> flex_peers(const GpuBench& bench, const FlexCase& c, const FlexSizes& sizes,
                                bool backward, double flop) {
    std::vector<GpuPeer> peers{{"torch-flex", flex_job(bench, c, sizes, backward)}};
    const auto through = [&](const char* backend) {
        nlohmann::json job = flex_job(bench, c, sizes, backward);
        job["backend"] = backend;
        return job;
    };
    for (const char* peer : {"fa3", "fa4"}) {
        if (flash_attention_has(peer, c.name)) peers.push_back({peer, through(peer)});
    }
    // The other rows of the notebook's test_mask.
    const double all = static_cast<double>(c.q_len) * static_cast<double>(c.kv_len);
    const Density causal = density(create_block_mask(masks::causal(), 1, 1, c.q_len, c.kv_len));
    peers.push_back(
        {"fa2-causal", through("fa2-causal"), flop * causal.pairs, flop * causal.blocks});
    if (c.name != "noop") {
        peers.push_back({"sdpa-mask", through("sdpa-mask"), flop * all, flop * all});
    }
    return peers;
}

}  // namespace

void bench_attention_gpu(const BenchOptions& options, Report& report) {
    GpuBench bench(options, report);
    for (const Shape& s : shapes_of(options)) {
        FlexSizes sizes;
        sizes.batch = options.batch.value_or(s.batch);
        sizes.heads = options.heads.value_or(s.heads);
        sizes.kv_heads = options.kv_heads.value_or(sizes.heads);
        sizes.length = options.seq_len.value_or(s.length);
        sizes.kv_length = options.kv_len.value_or(sizes.length);
        sizes.head_dim = s.head_dim;
        const FlexCase c = text_case(options.mask, options.score, sizes);
        AttentionOptions on_host = c.options;
        on_host.causal = s.causal;
        AttentionOptions on_gpu = with_data(c, c, sizes, options);
        on_gpu.causal = s.causal;
        Mod visible = mask_of(c.options);
        if (s.causal && c.options.mask.defined()) visible = visible & masks::causal();
        if (s.causal && !c.options.mask.defined()) visible = masks::causal();
        const Density density_of =
            density(create_block_mask(visible, 1, sizes.heads, sizes.length, sizes.kv_length));
        const auto units = static_cast<double>(sizes.batch * sizes.heads);
        const bool plain = options.mask.empty() && options.score.empty();
        const auto peers = [&](bool backward) {
            std::vector<GpuPeer> result;
            if (!plain) return result;
            for (const char* backend :
                 {"cudnn", "fa2", "fa3", "fa4", "xla", "pallas", "pallas-mgpu", "triton"}) {
                nlohmann::json job = bench.job("attention", backward);
                job.update({{"backend", backend},
                            {"batch", sizes.batch},
                            {"heads", sizes.heads},
                            {"kv_heads", sizes.kv_heads},
                            {"seq_len", sizes.length},
                            {"kv_len", sizes.kv_length},
                            {"head_dim", sizes.head_dim},
                            {"causal", s.causal}});
                result.push_back({backend, job});
            }
            // Compiled for each length, so that sweeps include it only if asked for.
            if (!options.sweep || options.baseline == "torch-flex") {
                FlexCase same;
                same.name = s.causal ? "causal" : "noop";
                same.q_len = sizes.length;
                same.kv_len = sizes.kv_length;
                result.push_back({"torch-flex", flex_job(bench, same, sizes, backward)});
            }
            return result;
        };
        const std::string case_name = fmt::format(
            "B{} H{}{} S{}{} D{}{} {}{}", sizes.batch, sizes.heads,
            sizes.kv_heads == sizes.heads ? "" : fmt::format("/{}", sizes.kv_heads), sizes.length,
            sizes.kv_length == sizes.length ? "" : fmt::format("x{}", sizes.kv_length),
            sizes.head_dim, s.causal ? " causal" : "", dtype_name(options),
            c.name.empty() ? "" : " " + c.name);
        const AttentionInputs in = attention_inputs(random_of(bench), sizes);
        Check check = [](bool, Row&) {};
        if (options.check && (plain || sizes.length <= 16384)) {
            check = check_first_head(in, on_gpu, on_host);
        }
        bench_problem(bench, case_name, in, on_gpu, density_of.pairs * units, 0, options.backward,
                      check, peers);
    }
}

void bench_flex_gpu(const BenchOptions& options, Report& report) {
    GpuBench bench(options, report);
    FlexSizes sizes;
    sizes.batch = options.batch.value_or(16);
    sizes.heads = options.heads.value_or(16);
    sizes.kv_heads = options.kv_heads.value_or(sizes.heads);
    sizes.length = options.seq_len.value_or(8192);
    sizes.kv_length = options.kv_len.value_or(sizes.length);
    sizes.head_dim = options.head_dim.value_or(64);
    const bool texts = !options.mask.empty() || !options.score.empty();
    std::vector<std::string> names = flex_case_names();
    if (!options.only.empty()) names = {options.only};
    if (texts) names = {""};
    const auto make = [&](const std::string& name, FlexSizes at) -> FlexProblem {
        const auto on = [&](Device device) {
            at.device = device;
            return texts ? text_case(options.mask, options.score, at) : flex_case(name, at);
        };
        return {on({}), on(options.device)};
    };
    const auto at_size = [&](const std::string& name) -> std::pair<FlexProblem, FlexSizes> {
        FlexProblem problem = make(name, sizes);
        FlexSizes at = sizes;
        if (problem.host.options.cu_seqlens.defined()) at.batch = 1;
        return {std::move(problem), at};
    };
    constexpr std::size_t kTogether = 7;  // cases whose peers are compiled in parallel
    for (std::size_t n = 0; n < names.size(); ++n) {
        if (n % kTogether == 0 && !texts && bench.wants("torch-flex")) {
            std::vector<nlohmann::json> jobs;
            for (std::size_t i = n; i < std::min(n + kTogether, names.size()); ++i) {
                const auto [c, at] = at_size(names[i]);
                for (const bool backward : {false, true}) {
                    jobs.push_back(flex_job(bench, c.host, at, backward));
                }
            }
            prepare_torch_baselines(jobs);
        }
        const auto [problem, at] = at_size(names[n]);
        const FlexCase& host = problem.host;
        const BlockMask visible =
            create_block_mask(mask_of(host.options), 1, at.heads, host.q_len, host.kv_len);
        if (options.picture) *options.out << visible.to_string({10, 20}, 1) << '\n';
        const Density density_of = host.options.cu_seqlens.defined()
                                       ? packed_density(host.options.cu_seqlens)
                                       : density(visible);
        const auto units = static_cast<double>(at.batch * at.heads);
        const auto peers = [&, &at = at](bool backward) {
            std::vector<GpuPeer> result;
            if (!texts) {
                const double flop = (backward ? 10 : 4) * static_cast<double>(at.head_dim) * units;
                result = flex_peers(bench, host, at, backward, flop);
            }
            if (!options.front_end.empty()) {
                nlohmann::json job = flex_job(bench, host, at, backward);
                job["front_end"] = "tilewright.torch";
                result.push_back({GpuBench::kThroughTorch, std::move(job)});
            }
            return result;
        };
        bench_problem(
            bench, host.name, attention_inputs(random_of(bench), host, at),
            with_data(problem.gpu, host, at, options), density_of.pairs * units,
            density_of.blocks * units, true,
            check_of_case(bench, at, [&](const FlexSizes& small) { return make(names[n], small); }),
            peers);
        report.print();
    }
}

void bench_decode_gpu(const BenchOptions& options, Report& report) {
    GpuBench bench(options, report);
    struct Shape {
        std::int64_t batch, heads, kv_heads, kv_len;
    };
    std::vector<Shape> shapes = {{64, 32, 8, 8192}, {1, 32, 8, 131072}};
    if (options.batch || options.heads || options.kv_heads || options.kv_len) {
        const std::int64_t heads = options.heads.value_or(32);
        shapes = {{options.batch.value_or(1), heads, options.kv_heads.value_or(heads),
                   options.kv_len.value_or(32768)}};
    }
    const std::int64_t q_len = options.seq_len.value_or(1), dim = options.head_dim.value_or(128);
    AttentionOptions on_gpu;
    on_gpu.precision = options.precision;
    for (const Shape& s : shapes) {
        const FlexSizes sizes{s.batch, s.heads, s.kv_heads, q_len, s.kv_len, dim};
        const AttentionInputs in = attention_inputs(random_of(bench), sizes);
        std::vector<GpuPeer> peers;
        for (const char* backend : {"cudnn", "fa2", "fa3", "fa4", "xla"}) {
            nlohmann::json job = bench.job("attention", false);
            job.update({{"backend", backend},
                        {"batch", s.batch},
                        {"heads", s.heads},
                        {"kv_heads", s.kv_heads},
                        {"seq_len", q_len},
                        {"kv_len", s.kv_len},
                        {"head_dim", dim},
                        {"causal", false}});
            peers.push_back({backend, job});
        }
        Row& row =
            bench.measure({fmt::format("decode B{} H{}/{} L{} S{} D{} {}", s.batch, s.heads,
                                       s.kv_heads, q_len, s.kv_len, dim, dtype_name(options)),
                           "forward", [&] { attention(in.q, in.k, in.v, on_gpu); },
                           static_cast<double>(in.k.nbytes() + in.v.nbytes()), true, 0, peers});
        if (options.check) check_first_head(in, on_gpu, {})(false, row);
    }
}

void bench_matmul_gpu(const BenchOptions& options, Report& report) {
    GpuBench bench(options, report);
    const std::int64_t n = options.seq_len.value_or(8192);
    const Tensor x = bench.random({n, n}, 1), y = bench.random({n, n}, 2);
    const Call product = matmul(n, n, n);
    const Tensor z = Tensor::empty(options.dtype, {n, n}, options.device);
    nlohmann::json job = bench.job("matmul", false);
    job.update({{"m", n}, {"n", n}, {"k", n}});
    nlohmann::json by_triton = job, by_mosaic = job;
    by_triton["backend"] = "triton";
    by_mosaic["backend"] = "pallas-mgpu";
    Row& row = bench.measure(
        {fmt::format("matmul {0} x {0} x {0} {1}", n, name(options.dtype)),
         "forward",
         [&] {
             product.into({z}, {x, y});
         },
         2 * std::pow(static_cast<double>(n), 3),
         false,
         0,
         {{"torch", job}, {"xla", job}, {"pallas-mgpu", by_mosaic}, {"triton", by_triton}}});
    if (options.check) {  // two rows
        const Array a = to_array(x.slice(0, n / 2, 2).contiguous()), b = to_array(y),
                    c = to_array(z.slice(0, n / 2, 2).contiguous());
        double error = 0, largest = 0;
        for (std::int64_t i = 0; i < 2; ++i)
            for (std::int64_t j = 0; j < n; j += 17) {
                double sum = 0;
                for (std::int64_t k = 0; k < n; ++k) sum += a.data[i * n + k] * b.data[k * n + j];
                const double off = std::abs(sum - c.data[i * n + j]);
                if (!(off <= error)) error = off;
                largest = std::max(largest, std::abs(sum));
            }
        row.error = error;
        row.ok = error <= 4 * epsilon(options.dtype) * largest + 1e-5 * static_cast<double>(n);
    }
}

}  // namespace tilewright::cli
