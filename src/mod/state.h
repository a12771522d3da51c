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

/// The scalar parameters of every mod; in a score mod they follow the score.
inline constexpr std::array kPositions{"b", "h", "q", "kv"};

}  // namespace mod

struct detail::ModState {
    Mod::Kind kind;
    std::string name;
    Mod::Body body;
    std::shared_ptr<const ir::Function> parsed = {};      ///< of a mod from IR text
    std::vector<Capture> captures = {};                   ///< of a mod from IR text
    std::string text = {};                                ///< of a mod from IR text
    std::shared_ptr<const ir::Function> derivative = {};  ///< written by the caller; null: none
    std::vector<ir::GatherGradient> gathers = {};         ///< gathers of that derivative

    mutable std::mutex mutex = {};
    mutable std::map<std::pair<DType, bool>, mod::Traced> traced = {};
};

}  // namespace tilewright
