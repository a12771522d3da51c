// Caches of masks and of their plans.
#include "attention/mask_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mask/score_region.h"
#include "mod/traced.h"
#include "run/cuda_memory.h"
#include "run/machine.h"
#include "run/recorder.h"
#include "support/debug_log.h"
#include "support/memo.h"

namespace tilewright::attn {
namespace {

/// The most recently used masks, by size and the text that they are built from.
BlockMask kept(const std::string& text, const MaskSize& size, auto make) {
    using Masks = Memo<std::pair<MaskSize, std::string>, BlockMask>;
    static auto* const kMasks = new Masks("masks of mods", 64, [](const BlockMask& mask) {
        return static_cast<std::size_t>(mask.nbytes());
    });
    return kMasks->get({size, text}, make);
}

BlockMask built(const Mod& mod, const MaskSize& size) {
    run::interrupt_recording();
    return create_block_mask(mod, size.batch, size.heads, size.q_len, size.kv_len);
}

}  // namespace

BlockMask mask_of_mod(const Mod& mod, const MaskSize& size) {
    const mod::Traced& traced = mod::trace(mod);
    if (traced.captures.empty()) return kept(traced.text, size, [&] { return built(mod, size); });
    debug_log("attention",
              "slow path: the mask reads arrays and is built anew in every call; "
              "create_block_mask builds it once");
    return built(mod, size);
}

std::optional<BlockMask> mask_of_score_mod(const Mod& mod, const MaskSize& size) {
    const auto visible = mask::visible_region(mod);
    if (!visible) return std::nullopt;
    const auto make = [&] {
        run::interrupt_recording();
        return *mask::mask_of_scores(mod, size.batch, size.heads, size.q_len, size.kv_len);
    };
    return visible->arrays.empty() ? kept(visible->text, size, make) : make();
}

BlockMask mask_of_sequences(const std::vector<std::int64_t>& starts,
                            const std::vector<std::int64_t>& kv_starts, std::int64_t left,
                            std::int64_t right) {
    const std::string key =
        fmt::format("sequences {} of keys {} window {} {}", fmt::join(starts, ","),
                    fmt::join(kv_starts, ","), left, right);
    const MaskSize size{1, 1, starts.back(), kv_starts.back()};
    return kept(key, size, [&] {
        const auto numbers = [](const std::vector<std::int64_t>& of, auto number) {
            std::vector<std::int32_t> values;
            for (std::size_t n = 0; n + 1 < of.size(); ++n) {
                values.insert(values.end(), static_cast<std::size_t>(of[n + 1] - of[n]), number(n));
            }
            return Tensor::from_vector(values, {std::ssize(values)});
        };
        const auto number = [](std::size_t n) { return static_cast<std::int32_t>(n); };
        const auto shift = [&](std::size_t n) {
            return static_cast<std::int32_t>(starts[n] - kv_starts[n]);
        };
        const Capture ids = capture(numbers(starts, number), "sequence", false),
                      kv_ids = capture(numbers(kv_starts, number), "kv_sequence", false),
                      shifts = capture(numbers(starts, shift), "shift", false);
        const Mod attends = [=](auto, auto, auto q, auto kv) {
            auto inside = ids[q] == kv_ids[kv];
            const auto ahead = kv - q + shifts[q];
            if (left >= 0) inside = inside & (ahead >= -left);
            if (right >= 0) inside = inside & (ahead <= right);
            return inside;
        };
        return built(attends, size);
    });
}

BlockMask intersection(const BlockMask& a, const BlockMask& b) {
    using State = mask::BlockMaskState;
    using Key = std::pair<Identity<const State>, Identity<const State>>;
    static auto* const kKnown = new Memo<Key, BlockMask>("intersections of masks", kWhileAlive);
    return kKnown->get({Identity(a.state()), Identity(b.state())}, [&] {
        kKnown->take_if([](const Key& key, const BlockMask&) {
            return key.first.is_gone() || key.second.is_gone();
        });
        return a & b;
    });
}

std::shared_ptr<const mask::MaskPlan> plan_on(Device device, const BlockMask& mask,
                                              const mask::PlanOptions& options) {
    auto plan = mask::plan(mask, options);
    if (device.kind == Device::Kind::cpu) return plan;
    using Copy = std::shared_ptr<const mask::MaskPlan>;
    using Key = std::pair<int, Identity<const mask::MaskPlan>>;
    static auto* const kCopies = new Memo<Key, Copy>(
        "plans of masks on GPUs", kWhileAlive,
        [](const Copy& copy) { return static_cast<std::size_t>(copy->nbytes()); });
    const Key key{device.index, Identity(plan)};
    if (const std::optional<Copy> known = kCopies->find(key)) {
        run::keep_for_graph(*known);
        return *known;
    }
    run::expect_no_capture("attention", "the mask to be on the GPU");
    kCopies->take_if([](const Key& other, const Copy&) { return other.second.is_gone(); });
    auto moved = std::make_shared<mask::MaskPlan>(*plan);
    Tensor* const parts[] = {&moved->headers, &moved->partial, &moved->full, &moved->bits};
    std::vector<Tensor> copies =
        run::own_copies(std::vector{plan->headers, plan->partial, plan->full, plan->bits}, device);
    for (std::size_t i = 0; i < copies.size(); ++i) *parts[i] = std::move(copies[i]);
    debug_log("attention", "a mask of {} bytes is copied to {}", plan->nbytes(), to_string(device));
    return kCopies->put(key, std::move(moved));
}

}  // namespace tilewright::attn
