// How tile programs run a call: what they are compiled for, and their blocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "attention/tiles/features.h"
#include "attention/tiles/options.h"

namespace tilewright::attn::tiles {

/// The configuration of a call, or of one of its packed sequences.
struct TilesConfig : EngineConfig {
    Options options;
    Features features;
    /// Forward: few queries attend to every key, which are split over programs.
    bool decode = false;
    /// With a mask as data: programs may have up to so many queries, as the mask decides; 0: those
    /// of `options`.
    std::int64_t most_queries = 0;
    /// Backward: the score mod's, and batches and kv heads that run at once.
    ScoreDerivative derivative;
    std::string derivative_key;
    std::int64_t batches_at_once = 0, heads_at_once = 0;
    /// Of packed sequences: the hints by which each chooses its blocks.
    std::optional<AttentionBlocks> each_sequence;

    Config numbers() const override;
};

/// What the programs of a call are compiled for besides sizes.
Features features_of(const AttentionSpec& spec);

/// The configuration of a call with such features: of the whole call, where the spec is that of a
/// packed sequence. UserError for captures whose gradients no program adds up.
std::shared_ptr<TilesConfig> choose(const AttentionSpec& spec, const Features& features);

/// Configurations worth measuring, the one that is chosen without a measurement first; one where
/// there is nothing to choose.
std::vector<ConfigPtr> trials(const AttentionSpec& spec);

/// Options of the backward's main program.
Options backward_options(const AttentionSpec& spec, const TilesConfig& config);

/// Options and blocks of the forward on a GPU in programs of warps, which can repair results.
Options repair_options(const AttentionSpec& spec, const Features& features);

/// True when a mod reads captured arrays in blocks of the program's pairs.
inline bool loads_blocks(const Features& features) {
    return !features.score.loads.empty() || !features.mask.loads.empty();
}

}  // namespace tilewright::attn::tiles
