// Caches of masks and of their plans.
#include "attention/mask_cache.h"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/runtime/device.h"
#include "cuda/runtime/stream.h"
#include "mask/score_region.h"
#include "mod/traced.h"
#include "run/cuda_memory.h"
#include "run/recorder.h"
#include "support/debug_log.h"

namespace tilewright::attn {
namespace {

/// The masks used last, by the text of what they are built from and their size.
BlockMask kept(const std::string& text, const MaskSize& size, auto make) {
    struct Entry {
        std::pair<std::string, MaskSize> key;
        BlockMask mask;
    };
    constexpr std::size_t kMost = 64;
    static std::mutex mutex;
    static auto* const kEntries = new std::list<Entry>;  // used last first; never destroyed
    const std::scoped_lock lock(mutex);
    for (auto entry = kEntries->begin(); entry != kEntries->end(); ++entry) {
        if (entry->key.second != size || entry->key.first != text) continue;
        kEntries->splice(kEntries->begin(), *kEntries, entry);
        return entry->mask;
    }
    kEntries->push_front({{text, size}, make()});
    if (kEntries->size() > kMost) kEntries->pop_back();
    return kEntries->front().mask;
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

BlockMask intersection(const BlockMask& a, const BlockMask& b) {
    using State = mask::BlockMaskState;
    struct Entry {
        std::weak_ptr<const State> a, b;
        BlockMask both;
    };
    static std::mutex mutex;
    static auto* const kEntries = new std::list<Entry>;
    const std::scoped_lock lock(mutex);
    kEntries->remove_if([](const Entry& entry) { return entry.a.expired() || entry.b.expired(); });
    for (const Entry& entry : *kEntries) {
        if (entry.a.lock() == a.state() && entry.b.lock() == b.state()) return entry.both;
    }
    return kEntries->emplace_front(Entry{a.state(), b.state(), a & b}).both;
}

std::shared_ptr<const mask::MaskPlan> plan_on(Device device, const BlockMask& mask,
                                              const mask::PlanOptions& options) {
    auto plan = mask::plan(mask, options);
    if (device.kind == Device::Kind::cpu) return plan;
    using Copies = std::map<
        std::pair<const mask::MaskPlan*, int>,
        std::pair<std::weak_ptr<const mask::MaskPlan>, std::shared_ptr<const mask::MaskPlan>>>;
    static std::mutex mutex;
    static auto* const kCopies = new Copies;
    const std::scoped_lock lock(mutex);
    auto& [original, copy] = (*kCopies)[{plan.get(), device.index}];
    if (copy && original.lock() == plan) return copy;
    cuda::expect_no_capture("attention", "the mask to be on the GPU");
    const auto is_gone = [](const auto& entry) {
        return entry.second.second && entry.second.first.expired();
    };
    if (std::any_of(kCopies->begin(), kCopies->end(), is_gone)) {
        // Any stream may still read them.
        const cuda::ContextScope scope(device.index);
        cuda::driver().check(cuda::driver().cuCtxSynchronize(), "waiting for a GPU");
        std::erase_if(*kCopies, is_gone);
    }
    const run::OwnCudaMemory own;
    auto moved = std::make_shared<mask::MaskPlan>(*plan);
    for (Tensor* tensor : {&moved->headers, &moved->partial, &moved->full, &moved->bits}) {
        *tensor = tensor->to(device);
    }
    debug_log("attention", "a mask of {} bytes is copied to {}", plan->nbytes(), to_string(device));
    auto& entry = (*kCopies)[{plan.get(), device.index}];
    entry = {plan, moved};
    return moved;
}

}  // namespace tilewright::attn
