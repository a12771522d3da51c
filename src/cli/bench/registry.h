// The list of all benchmarks: operations of `tilewright bench`, and programs of bench/.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/cases.h"

namespace tilewright::cli {

/// An operation that `tilewright bench` measures.
struct Benchmark {
    std::string name, what;
    void (*on_cpu)(const BenchOptions&, Report&);
    void (*on_gpu)(const BenchOptions&, Report&);  ///< null if there is none
    std::vector<std::string> reads;  ///< options that it uses, of those that others ignore
};

/// Files of bench/ that measure something else, or that a benchmark starts.
struct BenchmarkFiles {
    std::vector<std::string> files;
    std::string what, run_by;  ///< a command line
};

/// All operations by name.
const std::vector<Benchmark>& benchmarks();
std::vector<std::string> benchmark_names();
const std::vector<BenchmarkFiles>& benchmark_files();

/// What `tilewright bench --list` prints.
std::string benchmark_list();

}  // namespace tilewright::cli
