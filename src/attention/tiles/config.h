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
    /// Forward: few queries attend to every key, and the keys are split over programs.
    bool decode = false;
    /// With a mask as data: the mask decides how many queries a program has, up to this many; 0: as
    /// `options` says.
    std::int64_t most_queries = 0;
    /// Forward with a mask as data: programs of warpgroups, for masks whose blocks are mostly
    /// whole.
    std::optional<Options> warpgroups;
    /// Backward: the score mod's derivative, and how many batches and kv heads run at once.
    ScoreDerivative derivative;
    std::string derivative_key;
    std::int64_t batches_at_once = 0, heads_at_once = 0;
    /// Packed sequences: the hints from which each sequence chooses its blocks.
    std::optional<AttentionBlocks> each_sequence;

    Config numbers() const override;
};

/// What the programs of a call are compiled for, apart from sizes.
Features features_of(const AttentionSpec& spec);

/// The configuration of a call with these features; for a packed sequence, the features are those
/// of the whole call. UserError for captures whose gradients no program can sum.
std::shared_ptr<TilesConfig> choose(const AttentionSpec& spec, const Features& features);

/// Configurations worth measuring, beginning with the one that is chosen without a measurement; a
/// single one if there is nothing to choose.
std::vector<ConfigPtr> trials(const AttentionSpec& spec);

/// Options of the backward's main program.
Options backward_options(const AttentionSpec& spec, const TilesConfig& config);

/// Options and blocks of the forward pass on a GPU in programs for warps, which can repair results.
Options repair_options(const AttentionSpec& spec, const Features& features);

/// True if a mod reads captured arrays in blocks that match the program's pairs.
inline bool loads_blocks(const Features& features) {
    return !features.score.loads.empty() || !features.mask.loads.empty();
}

}  // namespace tilewright::attn::tiles
