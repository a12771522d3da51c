// How long the threads of a process waited for a core: what other work does to a measurement.
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

namespace tilewright::cli {

/// Seconds that the threads of a process (0: this one) were ready to run and did not, all together,
/// since they exist. 0 where the system does not say (other than Linux).
double waited_seconds(pid_t process = 0);

/// An execution and the share of its time that threads waited for cores.
struct Sample {
    double seconds = 0, waited = 0;
};

/// The most that a sample may wait to count as undisturbed.
constexpr double kUndisturbed = 0.01;

/// Samples that are at least kept, if none is undisturbed.
constexpr int kLeastSamples = 3;

/// The undisturbed samples. If they are fewer than a quarter of all, that quarter that waited
/// least.
std::vector<Sample> least_disturbed(std::vector<Sample> samples);

}  // namespace tilewright::cli
