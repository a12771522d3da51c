// Fair timing: interleaved variants, compared by medians; results print as a table or JSON.
#pragma once

#include <sys/types.h>

#include <functional>
#include <iosfwd>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tilewright::cli {

/// Something to time. `sample` runs it and returns the seconds of one execution.
struct Variant {
    std::string name;
    std::function<double()> sample;
    pid_t process = 0;  ///< the process that runs it; 0: this one
};

/// A variant that times `work` in this process; short work repeats within a sample until it lasts
/// `least` seconds. The first call warms up and is not counted.
Variant timed(std::string name, std::function<void()> work, double least = 0.01);

struct Budget {
    int least_rounds = 5;
    int most_rounds = 50;
    double seconds = 1.5;    ///< rounds are added until all together have lasted this long
    std::string label = {};  ///< label of the progress bar
};

/// Median seconds of each variant. Every round runs every variant once, in turn, so that changes of
/// the clock rate and load from other processes affect all of them. With several threads, which are
/// timed by the wall clock, only those samples count in which no thread waited for a core that
/// other work had, or else those that waited least, and there are up to three times as many rounds.
/// `waited`, if given, receives the largest share of time that a sample that counts waited.
std::vector<double> interleave(std::span<const Variant> variants, const Budget& budget = {},
                               double* waited = nullptr);

double median(std::vector<double> values);

/// One line of a benchmark.
struct Row {
    std::string case_name;  ///< "B1 H8 S4096 D64 causal f32"
    std::string operation;  ///< forward, backward, build or compile
    std::string impl;       ///< ours, or a baseline's name
    double ms = 0;
    std::optional<double> tflops, gbs;
    std::optional<double> sustained;      ///< tflops or gbs during a second without pauses
    std::optional<double> tflops_blocks;  ///< counting whole blocks of the mask
    std::optional<double> roof;  ///< fraction of the machine's limit measured in the same rounds
    std::string roof_name = {};  ///< that limit: "FMA peak", "memcpy"
    std::optional<std::string> baseline;
    std::optional<double> ratio;       ///< the baseline's ms divided by ours
    std::optional<double> best_ratio;  ///< ms divided by that of the best schedule hints
    std::string best_hints = {};       ///< which those are: "tiles of 8 x 256"
    std::optional<double>
        waited;  ///< share of time that threads waited for cores, on busy machines
    std::optional<double> sm_mhz;  ///< clock rate of a GPU's multiprocessors under this load
    std::optional<double> error;   ///< largest difference from the reference
    bool ok = true;
};

/// The rows of a run, printed under the names of their cases as soon as they are complete, so that
/// measurements are visible even if the run is interrupted. Lines have at most 100 columns, except
/// for names.
class Report {
  public:
    using Completed = std::function<void(const Report&)>;

    /// Prints to `out`, unless it is null. `completed` is called whenever some rows are complete.
    explicit Report(std::ostream* out, Completed completed = {})
        : out_(out), completed_(std::move(completed)) {}

    /// Appends a row, to be filled in until the next one is added or printed.
    Row& add(Row row);
    /// The row that was added last.
    Row& last() { return rows_.back(); }
    /// Prints the rows that were not printed yet.
    void print();
    const std::vector<Row>& rows() const { return rows_; }
    /// Notes the version of another library, or why it has no rows, for the JSON.
    void add_peer(const std::string& library, const std::string& version) {
        peers_[library] = version;
    }
    const std::map<std::string, std::string>& peers() const { return peers_; }

  private:
    std::ostream* out_;
    Completed completed_;
    std::vector<Row> rows_;
    std::map<std::string, std::string> peers_;
    std::size_t printed_ = 0;
    std::string case_;  ///< the case whose name was printed last
};

/// {"version", "date" (UTC), "machine", "device", "options", "complete", "rows": [...]}. `options`
/// are the arguments of the program; an incomplete run was interrupted after these rows. "peers",
/// if there are any, are the versions of other libraries, or why they have no rows.
std::string to_json(const std::string& device, const std::vector<std::string>& options,
                    std::span<const Row> rows, bool complete,
                    const std::map<std::string, std::string>& peers = {});

/// "AMD EPYC 9B45, 2 threads": the "device" of the JSON.
std::string device_name();

}  // namespace tilewright::cli
