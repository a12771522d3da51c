// Blocks of attention's tile programs by measurement.
#include "attention/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "run/fastest.h"
#include "support/debug_log.h"

namespace tilewright::attn {
namespace {

/// Blocks worth a trial: the usual ones first.
std::vector<Config> candidates(const Problem& p, const AttentionBlocks& wish) {
    constexpr AttentionBlocks kTrials[] = {{64, 128},  {64, 64},   {128, 128},
                                           {256, 128}, {128, 256}, {32, 128}};
    std::vector<Config> configs;
    for (const AttentionBlocks& trial : kTrials) {
        Problem sized = p;
        sized.use_blocks({wish.q > 0 ? wish.q : trial.q, wish.kv > 0 ? wish.kv : trial.kv});
        const Config config{{"q", sized.options.block_q}, {"kv", sized.options.block_k}};
        const bool known = std::any_of(configs.begin(), configs.end(), [&](const Config& other) {
            return other.values() == config.values();
        });
        if (!known) configs.push_back(config);
    }
    return configs;
}

/// What the time of a pass depends on, but for the numbers in the arrays.
std::string key_of(const Problem& p, const char* pass) {
    const tiles::Options& o = p.options;
    return fmt::format("attention {} {} {} {} {} {} {} {} {} {}\n{}", pass, p.query.type_name(),
                       p.key.type_name(), p.value.type_name(), o.causal, o.window_left,
                       o.window_right, p.block_mask.defined(), p.sinks.defined(),
                       p.features.segments, p.features.key());
}

AttentionBlocks blocks_of(const Config& config) {
    return {config["q"], config["kv"]};
}

}  // namespace

AttentionBlocks tuned_blocks(const Problem& problem, const char* pass, const AttentionBlocks& wish,
                             const std::function<void(const AttentionBlocks&)>& run) {
    constexpr std::int64_t kFewQueries = 16;  // nothing to choose
    if (!problem.autotune || problem.query_length < kFewQueries) return wish;
    if (wish.q > 0 && wish.kv > 0) return wish;
    const std::vector<Config> configs = candidates(problem, wish);
    if (configs.size() == 1) return blocks_of(configs.front());
    static std::mutex mutex;
    static std::map<std::string, AttentionBlocks> chosen;
    std::string key = key_of(problem, pass);
    const std::string entry =
        fmt::format("{}\n{} {}", key, configs.front().to_string(), configs.size());
    const std::scoped_lock lock(mutex);
    const auto known = chosen.find(entry);
    if (known != chosen.end()) return known->second;
    const std::size_t best = run::fastest(configs, key, [&](const Config& config) {
        return run::warm_seconds([&] { run(blocks_of(config)); });
    });
    debug_log("attention", "{} of {}: blocks {} are the fastest of {}", pass,
              problem.query.type_name(), configs[best].to_string(), configs.size());
    return chosen[entry] = blocks_of(configs[best]);
}

}  // namespace tilewright::attn
