// Chooses configurations of attention by measurement.
#include "attention/tune.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "run/fastest.h"
#include "run/machine.h"
#include "support/debug_log.h"
#include "support/memo.h"

namespace tilewright::attn {
namespace {

/// Everything that the time of a call depends on, except the numbers in the arrays.
std::string key_of(const Engine& engine, AttentionSpec spec, const AttentionBuffers& buffers) {
    spec.device.index = 0;  // GPUs of one kind share measurements
    std::string key = fmt::format("attention {} {}", name(engine.id()), to_string(spec));
    for (const Tensor* tensor : {&buffers.query, &buffers.key, &buffers.value}) {
        key += fmt::format(" {}", fmt::join(tensor->strides(), ","));
    }
    for (const CaptureSpec& capture : spec.score.captures)
        key += capture.differentiable ? '1' : '0';
    // With the same total, packed sequences differ by how many there are of each length, rounded to
    // a power of two.
    for (const auto* starts : {&buffers.starts, &buffers.kv_starts}) {
        std::map<int, int> lengths;
        for (std::size_t n = 1; n < starts->size(); ++n) {
            const auto length = static_cast<std::uint64_t>((*starts)[n] - (*starts)[n - 1]);
            ++lengths[static_cast<int>(std::bit_width(length))];
        }
        for (const auto& [bits, count] : lengths) key += fmt::format(" {}x{}", count, bits);
    }
    // Masks of one size differ by how much they leave.
    if (spec.block_mask) key += fmt::format(" masked {:.0f}%", buffers.block_mask.sparsity());
    return key + '\n' + spec.score.text + '\n' + spec.mask.text;
}

}  // namespace

ConfigPtr configuration(const Engine& engine, const AttentionSpec& spec,
                        const AttentionBuffers& buffers,
                        const std::function<void(const EngineConfig&)>& run) {
    if (!spec.autotune) return engine.choose(spec);
    const std::vector<ConfigPtr> trials = engine.trials(spec);
    if (trials.size() == 1) return trials.front();
    std::vector<Config> numbers;
    for (const ConfigPtr& trial : trials) numbers.push_back(trial->numbers());
    static std::mutex mutex;
    static auto* const kChosen = new Memo<std::string, std::size_t>("blocks of attention", 4096);
    const std::string key = key_of(engine, spec, buffers);
    std::string entry = to_string(spec.device) + ' ' + run::machine_state(spec.device) + '\n' + key;
    for (const Config& trial : numbers) entry += '\n' + trial.to_string();
    const std::scoped_lock lock(mutex);
    if (const auto known = kChosen->find(entry)) return trials[*known];
    if (spec.on_gpu() && run::is_capturing()) {
        debug_log("attention", "no autotuning of {} while a graph is captured", name(spec.pass));
        return trials.front();
    }
    const std::size_t best = run::fastest(numbers, key, spec.device, [&](const Config& config) {
        const auto place = static_cast<std::size_t>(&config - numbers.data());
        return run::warm_seconds(spec.device, [&] { run(*trials[place]); });
    });
    debug_log("attention", "{}: {} is the fastest of {}", to_string(spec),
              numbers[best].to_string(), trials.size());
    return trials[kChosen->put(entry, best)];
}

}  // namespace tilewright::attn
