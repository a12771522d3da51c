// CPU memory for tensors.
#include "run/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define TW_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TW_ADDRESS_SANITIZER 1
#endif
#endif

namespace tilewright::run {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// The C library itself keeps the memory of smaller blocks.
constexpr std::size_t kLeastKept = std::size_t{1} << 20;
constexpr std::size_t kMostBlocks = 64;
#ifdef TW_ADDRESS_SANITIZER
constexpr std::size_t kMostKept = 0;
#else
constexpr std::size_t kMostKept = std::size_t{1} << 30;
#endif

bool has_huge_pages(std::size_t bytes) {
    return bytes >= 2 * kHugePage;
}

std::align_val_t alignment(std::size_t bytes) {
    return std::align_val_t{has_huge_pages(bytes) ? kHugePage : 64};
}

/// Lets the system take back the pages of an unused block when memory runs short. For small pages
/// this costs as much as it saves.
void offer_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#ifdef __linux__
    static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_FREE);
#endif
}

}  // namespace

HostMemory::HostMemory(std::size_t most_kept) : most_kept_(most_kept) {
    blocks_.reserve(kMostBlocks + 1);
}

std::shared_ptr<void> HostMemory::allocate(std::size_t bytes) {
    Block block = take(bytes);
    if (!block.memory) block = from_system(bytes);
    if (!block.memory) {
        release();
        block = from_system(bytes);
    }
    if (!block.memory) return nullptr;
    return {block.memory, [this, block](void*) { give_back(block); }};
}

HostMemory::Block HostMemory::take(std::size_t bytes) {
    if (bytes < kLeastKept) return {};
    const std::scoped_lock lock(mutex_);
    auto best = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
        const bool fits = block->size >= bytes && block->size - bytes <= bytes / 4 &&
                          alignment(block->size) >= alignment(bytes);
        // Of blocks of equal size the most recent one, whose pages most likely still exist.
        if (fits && (best == blocks_.end() || block->size <= best->size)) best = block;
    }
    if (best == blocks_.end()) return {};
    const Block block = *best;
    blocks_.erase(best);
    kept_ -= block.size;
    return block;
}

void HostMemory::give_back(Block block) {
    if (block.size < kLeastKept || block.size > most_kept_) return to_system(block);
    if (has_huge_pages(block.size)) offer_pages(block.memory, block.size);
    const std::scoped_lock lock(mutex_);
    blocks_.push_back(block);
    kept_ += block.size;
    while (kept_ > most_kept_ || blocks_.size() > kMostBlocks) {
        kept_ -= blocks_.front().size;
        to_system(blocks_.front());
        blocks_.erase(blocks_.begin());
    }
}

void HostMemory::release() {
    const std::scoped_lock lock(mutex_);
    std::ranges::for_each(blocks_, to_system);
    blocks_.clear();
    kept_ = 0;
}

std::size_t HostMemory::kept() const {
    const std::scoped_lock lock(mutex_);
    return kept_;
}

HostMemory::Block HostMemory::from_system(std::size_t bytes) {
    void* const memory = ::operator new(bytes, alignment(bytes), std::nothrow);
#ifdef __linux__
    // The first access to thousands of small pages takes longer than a memory-bound kernel. A
    // system without huge pages ignores the advice.
    if (memory && has_huge_pages(bytes)) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return {memory, bytes};
}

void HostMemory::to_system(const Block& block) {
    ::operator delete(block.memory, alignment(block.size));
}

HostMemory& host_memory() {
    // Never destroyed: tensors in static variables may outlive it.
    static HostMemory& memory = *new HostMemory(kMostKept);
    return memory;
}

}  // namespace tilewright::run
