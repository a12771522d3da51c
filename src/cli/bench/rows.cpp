// Rows of benchmarks on CPUs.
#include "cli/bench/rows.h"

#include "cli/bench/baseline.h"
#include "cpu/machine.h"
#include "run/to_array.h"
#include "support/accuracy.h"
#include "support/check.h"

namespace tilewright::cli {

Row& add_rows(const Measured& m, const BenchOptions& options, Report& report) {
    report.print();
    const Variant ours = timed(m.impl, m.work);
    std::vector<Variant> variants = {ours, as_long_as(m.roof, ours.sample())};
    if (m.baseline) variants.push_back(*m.baseline);
    const std::vector<double> seconds = interleave(
        variants, {options.least_rounds, 50, options.seconds, m.case_name + " " + m.operation});
    const auto row = [&](const std::string& impl, double time) {
        Row result;
        result.case_name = m.case_name;
        result.operation = m.operation;
        result.impl = impl;
        result.ms = time * 1e3;
        (m.bandwidth ? result.gbs : result.tflops) = m.amount / time * (m.bandwidth ? 1e-9 : 1e-12);
        result.roof = m.amount / time / (m.roof.amount / seconds[1]);
        result.roof_name = m.roof.name;
        return result;
    };
    if (m.baseline) report.add(row(m.baseline->name, seconds[2]));
    Row& result = report.add(row(m.impl, seconds[0]));
    if (m.baseline) {
        result.baseline = m.baseline->name;
        result.ratio = seconds[2] / seconds[0];
    }
    return result;
}

Roof compute_roof(DType dtype) {
    return dtype == bf16 ? dot_peak_bf16() : fma_peak_f32();
}

void set_error(Row& row, const Tensor& ours, const Array& exact, const Array& plain, DType dtype,
               const Array& sizes) {
    row.error = largest_error(to_array(ours), exact);
    row.ok = *row.error <= allowed_error(plain, exact, dtype, sizes);
}

std::optional<Variant> python_variant(const BenchOptions& options, nlohmann::json job) {
    if (options.baseline.empty()) return {};
    if (options.baseline != "torch" && options.baseline != "xla")
        user_error("bench", "expected --baseline torch or xla but got {}", options.baseline);
    job["dtype"] = name(options.dtype);
    job["threads"] = cpu::num_threads();
    return python_baseline(job, options.baseline);
}

}  // namespace tilewright::cli
