// `tilewright bench cpu`: the suite of kernels compared with plain loops from the same compiler.
#include <fmt/format.h>

#include <cmath>

#include "cli/bench/cases.h"
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
    for (auto* more : {stencil_cases, index_cases})
        for (SuiteCase& next : more(small)) cases.push_back(std::move(next));
    return cases;
}

namespace {

void run_plain(const SuiteCase& c) {
    PlainArgs args;
    for (std::size_t i = 0; i < c.inputs.size(); ++i) args.in[i] = c.inputs[i].raw();
    args.out[0] = c.plain_output.raw();
    std::copy(c.sizes.begin(), c.sizes.end(), args.size);
    const std::int64_t threads = c.threads ? cpu::num_threads() : 1;
    if (threads == 1) return c.loop(args, 0, c.units);
    // A few parts for each thread, as a careful programmer would choose.
    const std::int64_t parts = std::min(c.units, 4 * threads);
    cpu::parallel_for(parts, [&](std::int64_t i) {
        c.loop(args, c.units * i / parts, c.units * (i + 1) / parts);
    });
}

/// The largest difference from the plain loop's results, divided by the largest of those.
double difference(const SuiteCase& c) {
    const Tensor ours = c.output.to(f64), theirs = c.plain_output.to(f64);
    double most = 0, largest = 0;
    for (std::int64_t i = 0; i < ours.size(); ++i) {
        const double a = ours.data<double>()[i], b = theirs.data<double>()[i];
        largest = std::max(largest, std::abs(b));
        if (!(std::abs(a - b) <= most)) most = std::abs(a - b);
    }
    return largest > 0 ? most / largest : most;
}

}  // namespace

void bench_cpu(const BenchOptions& options, Report& report) {
    const Roof roof = copy_bandwidth(std::size_t{options.small ? 1U : 256U} << 20);
    const PlainLoops& plain = plain_loops();
    if (options.out) *options.out << "plain loops compiled for " << plain.level << "\n\n";
    double logarithms = 0, least = HUGE_VAL;
    int count = 0;
    for (const SuiteCase& c : cpu_suite(options.small)) {
        if (!options.only.empty() && c.name.find(options.only) == std::string::npos) continue;
        report.print();
        const auto ours = [&] { c.call.into({c.output}, c.inputs); };
        // Compared after the first calls: arrays that are added to are zero only before those.
        ours();
        run_plain(c);
        const double error = options.check ? difference(c) : 0;
        const Variant tiles = timed("tilewright", ours),
                      loop = timed("plain", [&] { run_plain(c); });
        const double once = tiles.sample();
        std::vector<Variant> variants = {tiles, loop};
        if (c.bytes > 0) variants.push_back(as_long_as(roof, once));
        const std::vector<double> seconds =
            interleave(variants, {options.least_rounds, 50, options.seconds, c.name});
        for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
            Row& row = report.add({});
            row.case_name = c.name;
            row.operation = "forward";
            row.impl = variants[i].name;
            row.ms = seconds[i] * 1e3;
            if (c.bytes > 0) {
                row.gbs = c.bytes / seconds[i] * 1e-9;
                row.roof = c.bytes / seconds[i] / (roof.amount / seconds[2]);
                row.roof_name = roof.name;
            } else {
                row.tflops = c.flops / seconds[i] * 1e-12;
            }
        }
        Row& row = report.last();
        row.baseline = "plain";
        row.ratio = seconds[1] / seconds[0];
        if (options.check) {
            row.error = error;
            row.ok = error <= c.tolerance;
        }
        logarithms += std::log(*row.ratio);
        least = std::min(least, *row.ratio);
        ++count;
    }
    report.print();
    if (count == 0)
        user_error("bench cpu", "expected --case to be part of a case's name but got {}",
                   options.only);
    if (options.out)
        *options.out << fmt::format("\n{} kernels: geometric mean {:.2f} x plain, least {:.2f}\n",
                                    count, std::exp(logarithms / count), least);
}

}  // namespace tilewright::cli
