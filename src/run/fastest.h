// The fastest of a few configurations, measured once and kept on disk.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tilewright/run.h"

namespace tilewright::run {

/// The index of the config with the smallest `seconds(config)` on a device, from the disk cache if
/// a device of the same model has chosen among the same configs for `key` before. Configs that
/// throw a UserError are left out; if all do, the first error is thrown.
std::size_t fastest(const std::vector<Config>& configs, const std::string& key,
                    const Device& device, const std::function<double(const Config&)>& seconds);

/// What timings on a device depend on besides its model and this process may change: the number of
/// threads and the kernels of a CPU.
std::string machine_state(const Device& device);

/// Seconds of a warm call of `function`, whose work runs on `device`: the smallest of a few,
/// because noise only adds time. A first call compiles and is not measured. On a GPU several calls
/// are queued at a time, so that the launches of short kernels do not count.
double warm_seconds(const Device& device, const std::function<void()>& function);

}  // namespace tilewright::run
