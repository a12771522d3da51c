// Candidates of a kernel, their names, and what they are measured on.
#include "run/tune_kernel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string_view>
#include <utility>

#include "cuda/schedule/choices.h"
#include "cuda/schedule/prepare.h"
#include "ir/passes/effects.h"
#include "ir/print.h"
#include "run/cuda_memory.h"
#include "run/fastest.h"
#include "support/check.h"

namespace tilewright::run {
namespace {

std::vector<ir::Value> global_refs(const ir::Function& kernel) {
    std::vector<ir::Value> refs;
    for (const ir::Value parameter : kernel.parameters()) {
        if (kernel.is_ref(parameter) && kernel.ref_type(parameter).space == ir::Space::global) {
            refs.push_back(parameter);
        }
    }
    return refs;
}

std::set<ir::Value> written(const ir::Function& kernel) {
    std::set<ir::Value> writes;
    for (const ir::Instruction& made : kernel.body.body) writes.merge(ir::effects(made).writes);
    return writes;
}

/// "matmul bf16[4096, 4096] bf16[4096, 4096] bf16[4096, 4096]"
std::string title(const ir::Function& kernel) {
    std::string text = kernel.name;
    for (const ir::Value ref : global_refs(kernel)) {
        const ir::RefType& type = kernel.ref_type(ref);
        std::string extents;
        for (const std::int64_t extent : type.extents) {
            extents += extents.empty() ? "" : ", ";
            extents += extent == ir::kDynamic ? "?" : fmt::format("{}", extent);
        }
        text += fmt::format(" {}[{}]", name(type.dtype), extents);
    }
    return text;
}

Config tile_config(const KernelChoice& choice) {
    if (!choice.product) {
        return {{"num_warps", choice.num_warps}, {"num_stages", choice.num_stages}};
    }
    const cuda::schedule::Tile& tile = choice.product->tile;
    return {{"rows", tile.rows},
            {"columns", tile.columns},
            {"pairs", static_cast<std::int64_t>(tile.pairs)},
            {"turns", tile.turns ? 1 : 0},
            {"parts", choice.product->parts}};
}

Config order_config(const KernelChoice& choice) {
    return {{"group", choice.product->group}, {"stages", choice.product->stages}};
}

/// Warps and stages of a kernel without wgmma, the compiler's own choice first.
std::vector<KernelChoice> plain_choices(const ir::Function& kernel) {
    std::vector<KernelChoice> choices;
    // Numbers that the caller gave stay.
    for (const int warps : {0, 4, 8, 16}) {
        if (kernel.hints.num_warps != 0 && warps != 0) continue;
        for (const int stages : {0, 2, 4}) {
            if (kernel.hints.num_stages != 0 && stages != 0) continue;
            choices.push_back({{}, warps, stages});
        }
    }
    return choices;
}

std::atomic<int> told{-1};  // by tune_kernels; -1: nothing

}  // namespace

bool tunes_kernels() {
    if (told >= 0) return told > 0;
    const char* const text = std::getenv("TILEWRIGHT_AUTOTUNE");
    return text != nullptr && *text != '\0' && std::string_view(text) != "0";
}

void tune_kernels(bool on) {
    told = on ? 1 : 0;
}

bool is_tunable(const ir::Function& kernel) {
    return cuda::schedule::has_tiles_to_choose(kernel);
}

std::vector<std::int64_t> timing_key(const ir::Function& kernel, const ir::Arguments& arguments) {
    constexpr std::int64_t kLine = 128;  // bytes of a cache line
    std::vector<std::int64_t> key;
    const std::vector<ir::Value> refs = global_refs(kernel);
    for (std::size_t i = 0; i < refs.size(); ++i) {
        const ir::RefType& type = kernel.ref_type(refs[i]);
        const bool is_static =
            std::count(type.extents.begin(), type.extents.end(), ir::kDynamic) == 0;
        for (int d = 0; d < type.rank(); ++d) {
            const std::int64_t stride = arguments.refs.at(i).strides[d];
            // Strides follow from extents that vary; where rows begin in a cache line matters.
            key.push_back(is_static || stride <= 1 ? stride : stride * size_of(type.dtype) % kLine);
            if (type.extents[d] != ir::kDynamic) continue;
            const auto extent = static_cast<std::uint64_t>(arguments.refs[i].extents[d]);
            key.push_back(static_cast<std::int64_t>(std::bit_ceil(extent)));
        }
    }
    return key;
}

double TrialTimes::seconds(const std::function<void()>& work) {
    using Clock = std::chrono::steady_clock;
    constexpr double kBurst = 0.003;  // seconds
    constexpr int kRounds = 7, kMostCalls = 100;
    const auto time_of = [&](const Replay& replay) {
        replay.wait();
        const auto start = Clock::now();
        replay.launch();
        replay.wait();
        return std::chrono::duration<double>(Clock::now() - start).count() / calls_;
    };
    const bool is_first = !first_;
    if (is_first) {
        first_.emplace(work, 1, device_);
        time_of(*first_);
        calls_ = static_cast<int>(std::clamp<double>(kBurst / time_of(*first_), 1, kMostCalls));
        first_.emplace(work, calls_, device_);
        time_of(*first_);
    }
    std::optional<Replay> own;
    if (!is_first) own.emplace(work, calls_, device_);
    if (own) time_of(*own);
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
        const double first = time_of(*first_);
        times.push_back(own ? time_of(*own) / first : first);
    }
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    const double median = times[kRounds / 2];
    if (is_first) first_seconds_ = median;
    return is_first ? median : median * first_seconds_;
}

std::string why_not_measurable(const ir::Function& kernel) {
    for (const ir::Value ref : global_refs(kernel)) {
        if (kernel.ref_type(ref).alias_group >= 0) {
            return fmt::format("`{}` may share memory with another array", kernel.value_name(ref));
        }
    }
    return {};
}

TrialArguments::TrialArguments(const ir::Function& kernel, const ir::Arguments& arguments,
                               int device)
    : arguments_(arguments) {
    const std::set<ir::Value> writes = written(kernel);
    const std::vector<ir::Value> refs = global_refs(kernel);
    for (std::size_t i = 0; i < refs.size(); ++i) {
        if (!writes.contains(refs[i])) continue;
        const ir::RefType& type = kernel.ref_type(refs[i]);
        ir::RefArgument& array = arguments_.refs.at(i);
        // The elements that the array reaches, before and after its first one.
        std::int64_t before = 0, after = 0;
        bool empty = false;
        for (int d = 0; d < type.rank(); ++d) {
            empty |= array.extents[d] == 0;
            const std::int64_t reach = (array.extents[d] - 1) * array.strides[d];
            (reach < 0 ? before : after) += reach;
        }
        if (empty) continue;
        const std::int64_t size = size_of(type.dtype), bytes = (after - before + 1) * size;
        // The copy begins where the array begins among 256 bytes.
        const auto first = reinterpret_cast<std::uintptr_t>(array.data) + before * size;
        const auto offset = static_cast<std::int64_t>(first % 256);
        Tensor copy = Tensor::empty(u8, {bytes + offset}, Device::cuda(device));
        auto* const to = static_cast<std::byte*>(copy.raw()) + offset;
        copy_memory(to, Device::cuda(device), reinterpret_cast<const void*>(first),
                    Device::cuda(device), bytes);
        array.data = to - before * size;
        copies_.push_back(std::move(copy));
    }
}

KernelChoice fastest_choice(const ir::Function& kernel, const cuda::Target& target,
                            const std::vector<std::int64_t>& key, const Device& device,
                            const std::function<void(const std::vector<KernelChoice>&)>& prepare,
                            const std::function<double(const KernelChoice&)>& seconds) {
    std::string text = fmt::format("kernel {}, autotune\n{}{}", title(kernel), ir::print(kernel),
                                   fmt::join(key, " "));
    for (const cuda::RefFacts& facts : target.facts) {
        text += fmt::format(" {:d}{:d}{:d}{}", facts.vectors, facts.dense, facts.tensor,
                            facts.copy_bytes);
    }
    text += fmt::format("\nNVRTC {}", cuda::nvrtc_report().version);
    const auto fastest_of = [&](const std::vector<KernelChoice>& choices, const char* of,
                                Config (*config_of)(const KernelChoice&)) {
        if (choices.size() == 1) return choices.front();
        std::vector<Config> configs;
        for (const KernelChoice& choice : choices) configs.push_back(config_of(choice));
        bool prepared = false;
        return choices[fastest(configs, text + of, device, [&](const Config& config) {
            if (!std::exchange(prepared, true)) prepare(choices);
            return seconds(choices[&config - configs.data()]);
        })];
    };
    std::vector<KernelChoice> choices;
    for (const auto& product : cuda::schedule::choices_of(kernel, target)) {
        choices.push_back({product});
    }
    if (choices.empty()) return fastest_of(plain_choices(kernel), "", tile_config);
    const KernelChoice best = fastest_of(choices, "\ntiles", tile_config);
    text += '\n' + tile_config(best).to_string();
    choices.clear();
    for (const auto& product : cuda::schedule::refinements_of(kernel, target, *best.product)) {
        choices.push_back({product});
    }
    return fastest_of(choices, "\norder", order_config);
}

}  // namespace tilewright::run
