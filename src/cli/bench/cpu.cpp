// `tilewright bench cpu`: the suite of kernels compared with plain loops from the same compiler.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/bench/cases.h"
#include "cli/bench/cpu_peers.h"
#include "cli/bench/cpu_suite.h"
#include "cpu/machine.h"
#include "support/check.h"

namespace tilewright::cli {

SuiteCase suite_case(std::string name, Call call, PlainLoop loop, std::vector<Tensor> inputs,
                     const TensorType& output) {
    return {.name = std::move(name),
            .call = std::move(call),
            .inputs = std::move(inputs),
            .output = Tensor::zeros(output.dtype, output.shape),
            .plain_output = Tensor::zeros(output.dtype, output.shape),
            .loop = loop};
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
    for (SuiteCase& c : cpu_suite(options.small)) {
        if (!options.only.empty() && c.name.find(options.only) == std::string::npos) continue;
        report.print();
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
        const std::vector<double> seconds =
            interleave(variants, {options.least_rounds, 50, options.seconds, c.name});
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
}

}  // namespace tilewright::cli
