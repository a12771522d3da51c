// Blocks of attention by measurement.
#include "attention/tune.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/runtime/stream.h"
#include "run/fastest.h"
#include "support/debug_log.h"
#include "support/memo.h"

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

/// Packed sequences by their number and the longest of them, as powers of two: each batch has
/// lengths of its own, and is not to be measured anew.
std::string packing_of(const std::vector<std::int64_t>& starts) {
    std::int64_t longest = 1;
    for (std::size_t n = 1; n < starts.size(); ++n) {
        longest = std::max(longest, starts[n] - starts[n - 1]);
    }
    return fmt::format("{} of {}", std::bit_ceil(starts.size()),
                       std::bit_ceil(static_cast<std::uint64_t>(longest)));
}

/// What the time of a pass depends on, but for the numbers in the arrays.
std::string key_of(const Problem& p, const char* pass) {
    const tiles::Options& o = p.options;
    std::string key = fmt::format("attention {}", pass);
    const auto add = [&](const char* name, const auto& value) {
        key += fmt::format(" {}={}", name, value);
    };
    for (const Tensor* tensor : {&p.query, &p.key, &p.value}) {
        key += fmt::format(" {}/{}", tensor->type_name(), fmt::join(tensor->strides(), ","));
    }
    for (const Tensor& tensor : p.captured) key += ' ' + tensor.type_name();
    add("causal", o.causal);
    add("left", o.window_left);
    add("right", o.window_right);
    add("scaled", o.scale > 0);
    add("deterministic", p.deterministic);
    add("gradient", p.gradient);
    add("wanted", fmt::format("{:d}{:d}{:d}", o.query_gradient, o.key_gradient, o.value_gradient));
    for (const bool wanted : p.differentiable()) key += wanted ? '1' : '0';
    add("max_scores", p.max_scores);
    add("checked", o.interpret);
    add("sinks", p.sinks.defined());
    add("segments", p.features.segments);
    add("lengths", p.kv_lengths.defined());
    if (p.packed()) {
        add("packed", packing_of(p.starts) + " by " + packing_of(p.kv_starts));
    }
    // Masks of one size differ by what they leave.
    if (p.block_mask.defined()) add("masked", fmt::format("{:.0f}%", p.block_mask.sparsity()));
    return key + '\n' + p.features.key();
}

AttentionBlocks blocks_of(const Config& config) {
    return {config["q"], config["kv"]};
}

}  // namespace

std::size_t tuned(const Problem& problem, const char* pass, const std::vector<Config>& trials,
                  const std::function<void(std::size_t)>& run) {
    if (!problem.autotune || trials.size() == 1) return 0;
    static std::mutex mutex;
    static auto* const kChosen = new Memo<std::string, std::size_t>("blocks of attention", 4096);
    const std::string key = key_of(problem, pass);
    std::string entry = run::machine_state(problem.device) + '\n' + key;
    for (const Config& trial : trials) entry += '\n' + trial.to_string();
    const std::scoped_lock lock(mutex);
    if (const auto known = kChosen->find(entry)) return *known;
    if (problem.on_gpu() && cuda::is_capturing()) {
        debug_log("attention", "no autotuning of {} while a graph is captured", pass);
        return 0;
    }
    const auto place_of = [&](const Config& config) {
        return static_cast<std::size_t>(&config - trials.data());
    };
    const std::size_t best = run::fastest(trials, key, problem.device, [&](const Config& config) {
        return run::warm_seconds(problem.device, [&] { run(place_of(config)); });
    });
    debug_log("attention", "{} of {}: {} is the fastest of {}", pass, problem.query.type_name(),
              trials[best].to_string(), trials.size());
    return kChosen->put(entry, best);
}

AttentionBlocks tuned_blocks(const Problem& problem, const char* pass, const AttentionBlocks& wish,
                             const std::function<void(const AttentionBlocks&)>& run) {
    constexpr std::int64_t kFewQueries = 16;  // nothing to choose
    if (!problem.autotune || problem.on_gpu() || problem.query_length < kFewQueries) return wish;
    if (wish.q > 0 && wish.kv > 0) return wish;
    const std::vector<Config> configs = candidates(problem, wish);
    return blocks_of(configs[tuned(problem, pass, configs,
                                   [&](std::size_t trial) { run(blocks_of(configs[trial])); })]);
}

}  // namespace tilewright::attn
