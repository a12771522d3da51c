// `tilewright bench cpu`: the suite of kernels compared with plain loops from the same compiler.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/bench/cases.h"
#include "cli/bench/cpu_peers.h"
#include "cli/bench/cpu_suite.h"
#include "cli/bench/waiting.h"
#include "cli/builtin.h"
#include "cpu/machine.h"
#include "support/check.h"

namespace tilewright::cli {

SuiteCase suite_case(std::string name, Call call, PlainLoop loop, std::vector<SuiteInput> inputs,
                     const TensorType& output) {
    return {.name = std::move(name),
            .call = std::move(call),
            .loop = loop,
            .make_inputs = std::move(inputs),
            .output_type = output};
}

void SuiteCase::prepare() {
    for (const SuiteInput& make : make_inputs) inputs.push_back(make());
    plain_output = Tensor::zeros(output_type.dtype, output_type.shape);
    output = updated ? inputs.at(*updated) : Tensor::zeros(output_type.dtype, output_type.shape);
}

SuiteInput random_input(DType dtype, Tensor::Dims shape, std::uint32_t seed) {
    return [=] { return random_values(dtype, shape, seed); };
}

SuiteInput zero_input(DType dtype, Tensor::Dims shape) {
    return [=] { return Tensor::zeros(dtype, shape); };
}

std::vector<SuiteCase> cpu_suite(bool small) {
    std::vector<SuiteCase> cases = row_cases(small);
    for (auto* more : {stencil_cases, index_cases, product_cases})
        for (SuiteCase& next : more(small)) cases.push_back(std::move(next));
    return cases;
}

namespace {

void run_plain(const SuiteCase& c) {
    PlainArgs args;
    for (std::size_t i = 0; i < c.inputs.size(); ++i) args.in[i] = c.inputs[i].raw();
    args.out[0] = c.plain_output.raw();
    std::copy(c.sizes.begin(), c.sizes.end(), args.size);
    const std::int64_t threads = cpu::num_threads();
    if (threads == 1) return c.loop(args, 0, c.units);
    const std::int64_t parts = std::min(c.units, c.parts * threads);
    cpu::parallel_for(parts, [&](std::int64_t i) {
        c.loop(args, c.units * i / parts, c.units * (i + 1) / parts);
    });
}

/// The largest difference between results, divided by the largest of the second ones.
double difference(const Tensor& first, const Tensor& second) {
    const Tensor ours = first.to(f64), theirs = second.to(f64);
    double most = 0, largest = 0;
    for (std::int64_t i = 0; i < ours.size(); ++i) {
        const double a = ours.data<double>()[i], b = theirs.data<double>()[i];
        largest = std::max(largest, std::abs(b));
        if (!(std::abs(a - b) <= most)) most = std::abs(a - b);
    }
    return largest > 0 ? most / largest : most;
}

/// The call with tiles in place of whole blocks, chosen by measurement among some sizes, with the
/// fastest one's description; nullopt where blocks as they are have been fastest.
struct BestTiles {
    Call call;
    std::string description;
};

std::optional<BestTiles> best_tiles(const SuiteCase& c) {
    constexpr std::int64_t kRows[] = {1, 4, 16, 64}, kLanes[] = {64, 256, 1024, 4096};
    // What retiling leaves as it is, or makes the same of, is measured once.
    std::set<std::string> known = {c.call.ir(c.inputs)};
    const auto with = [&](std::int64_t rows, std::int64_t lanes) {
        CallOptions options = c.call.options();
        options.tile_rows = rows;
        options.tile_lanes = lanes;
        return tilewright::call(c.call.kernel(), std::move(options));
    };
    std::vector<Config> configs = {{{"rows", 0}, {"lanes", 0}}};
    for (const std::int64_t rows : kRows) {
        for (const std::int64_t lanes : kLanes) {
            try {
                if (!known.insert(with(rows, lanes).ir(c.inputs)).second) continue;
            } catch (const UserError&) {
                continue;  // a block that cannot be cut
            }
            configs.push_back({{"rows", rows}, {"lanes", lanes}});
        }
    }
    if (configs.size() == 1) return {};
    const Tuned tuned = autotune(configs, c.name + ", bench cpu")(
        [&](const Config& config) { return with(config["rows"], config["lanes"]); });
    const Config best = tuned.best_config(c.inputs);
    if (best["rows"] == 0) return {};
    return BestTiles{tuned.best(c.inputs),
                     fmt::format("tiles of {} x {}", best["rows"], best["lanes"])};
}

/// Is the result of these tiles that of the plain loop's first run?
bool agrees(const BestTiles& tiles, const SuiteCase& c) {
    std::vector<Tensor> inputs = c.inputs;
    if (c.updated) inputs[*c.updated] = zero_input(c.output_type.dtype, c.output_type.shape)();
    return difference(tiles.call.run(inputs).front(), c.plain_output) <= c.tolerance;
}

/// How many times as fast the tile programs are as another implementation.
struct Summary {
    double logarithms = 0, least = HUGE_VAL;
    std::string slowest;  ///< the case of the least
    int count = 0;

    void add(double ratio, const std::string& name) {
        logarithms += std::log(ratio);
        if (ratio < least) slowest = name;
        least = std::min(least, ratio);
        ++count;
    }
    std::string text(const std::string& impl) const {
        return fmt::format("{} kernels: geometric mean {:.2f} x {}, least {:.2f} ({})\n", count,
                           std::exp(logarithms / count), impl, least, slowest);
    }
};

}  // namespace

void bench_cpu(const BenchOptions& options, Report& report) {
    const Roof roof = copy_bandwidth(std::size_t{options.small ? 1U : 256U} << 20);
    const PlainLoops& plain = plain_loops();
    if (options.out) *options.out << "plain loops compiled for " << plain.level << "\n";
    Peers others(options.baseline, options.out);
    for (const auto& [library, version] : others.versions()) report.add_peer(library, version);
    if (options.out) *options.out << '\n';
    // In the order in which they are printed.
    std::vector<std::pair<std::string, Summary>> summaries = {{"plain", {}}};
    for (const std::string& library : Peers::names()) summaries.push_back({library, {}});
    Summary defaults;  // compared with the best tiles
    for (SuiteCase& c : cpu_suite(options.small)) {
        if (!options.only.empty() && c.name.find(options.only) == std::string::npos) continue;
        report.print();
        c.prepare();
        // Compared after the first calls: arrays that are added to are zero only before those.
        const std::vector<Peer> peers = others.prepare(c);
        const auto ours = [&] { c.call.into({c.output}, c.inputs); };
        ours();
        run_plain(c);
        std::vector<Variant> variants = {timed("plain", [&] { run_plain(c); })};
        std::vector<std::optional<double>> errors = {std::nullopt};
        for (const Peer& peer : peers) {
            variants.push_back(peer.variant);
            errors.emplace_back();
            if (options.check) errors.back() = difference(peer.output, c.plain_output);
        }
        variants.push_back(timed("tilewright", ours));
        errors.emplace_back();
        if (options.check) errors.back() = difference(c.output, c.plain_output);
        const std::size_t rows = variants.size();
        if (c.bytes > 0) variants.push_back(as_long_as(roof, variants.back().sample()));
        const std::optional<BestTiles> best =
            options.autotune ? best_tiles(c) : std::optional<BestTiles>();
        const bool tiles_agree = !best || !options.check || agrees(*best, c);
        if (best)
            variants.push_back(timed("tiles", [&] { best->call.into({c.output}, c.inputs); }));
        double waited = 0;
        const std::vector<double> seconds =
            interleave(variants, {options.least_rounds, 50, options.seconds, c.name}, &waited);
        for (std::size_t i = 0; i < rows; ++i) {
            Row& row = report.add({});
            row.case_name = c.name;
            row.operation = "forward";
            row.impl = variants[i].name;
            row.ms = seconds[i] * 1e3;
            if (c.bytes > 0) {
                row.gbs = c.bytes / seconds[i] * 1e-9;
                row.roof = c.bytes / seconds[i] / (roof.amount / seconds[rows]);
                row.roof_name = roof.name;
            } else {
                row.tflops = c.flops / seconds[i] * 1e-12;
            }
            if (i > 0) {
                row.baseline = "plain";
                row.ratio = seconds[0] / seconds[i];
            }
            if (errors[i]) {
                // Other libraries may add in another order.
                const double tolerance = i + 1 < rows ? std::max(c.tolerance, 1e-5) : c.tolerance;
                row.error = errors[i];
                row.ok = *errors[i] <= tolerance;
            }
            if (waited > kUndisturbed) row.waited = waited;
            if (options.autotune && i + 1 == rows) {
                row.best_ratio = best ? std::max(1.0, seconds[i] / seconds.back()) : 1;
                row.best_hints = best ? best->description : "blocks as they are";
                row.ok = row.ok && tiles_agree;
                defaults.add(1 / *row.best_ratio, c.name);
            }
            for (auto& [impl, summary] : summaries)
                if (impl == row.impl) summary.add(seconds[i] / seconds[rows - 1], c.name);
        }
        // Frees the arrays.
        c.inputs.clear();
        c.output = c.plain_output = Tensor();
    }
    report.print();
    if (summaries[0].second.count == 0)
        user_error("bench cpu", "expected --case to be part of a case's name but got {}",
                   options.only);
    if (!options.out) return;
    *options.out << '\n';
    for (const auto& [impl, summary] : summaries)
        if (summary.count > 0) *options.out << summary.text(impl);
    if (defaults.count > 0)
        *options.out << fmt::format(
            "blocks as they are take at most {:.2f} of the best found ({}), geometric mean "
            "{:.2f}\n",
            1 / defaults.least, defaults.slowest, std::exp(-defaults.logarithms / defaults.count));
}

}  // namespace tilewright::cli
