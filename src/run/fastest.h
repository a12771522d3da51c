// The fastest of a few configurations, measured once and remembered on disk.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "tilewright/run.h"

namespace tilewright::run {

/// The place of the config with the least `seconds(config)`, from the disk cache where this CPU has
/// chosen among the same configs for `key` before. Configs that throw a UserError are left out; if
/// all do, the first error is thrown.
std::size_t fastest(const std::vector<Config>& configs, const std::string& key,
                    const std::function<double(const Config&)>& seconds);

/// Seconds of one warm call of `function`: the smallest of a few, as noise only ever adds. It is
/// called once before, which compiles.
double warm_seconds(const std::function<void()>& function);

}  // namespace tilewright::run
