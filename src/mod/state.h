// The state of a Mod.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mod/traced.h"
#include "tilewright/mod.h"

namespace tilewright {

namespace mod {

/// The scalar parameters of every mod, after the score of a score mod.
inline constexpr std::array kPositions{"b", "h", "q", "kv"};

}  // namespace mod

struct detail::ModState {
    Mod::Kind kind;
    std::string name;
    Mod::Body body;
    std::shared_ptr<const ir::Function> parsed = {};      ///< of a mod from text
    std::vector<Capture> captures = {};                   ///< likewise
    std::string text = {};                                ///< likewise
    std::shared_ptr<const ir::Function> derivative = {};  ///< of the caller's own
    std::vector<ir::GatherGradient> gathers = {};         ///< of it

    mutable std::mutex mutex = {};
    mutable std::map<std::pair<DType, bool>, mod::Traced> traced = {};
};

}  // namespace tilewright
