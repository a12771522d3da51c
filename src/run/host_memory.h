// CPU memory for tensors: large blocks are kept for later tensors.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace tilewright::run {

/// Keeps unused blocks for the next tensor of about their size. The system clears new memory page
/// by page at its first access, which takes longer than a memory-bound kernel. The system may take
/// back the huge pages of kept blocks when memory runs short. Thread-safe.
class HostMemory {
  public:
    /// Keeps at most `most_kept` bytes in 64 blocks; drops those that were returned first.
    explicit HostMemory(std::size_t most_kept);
    ~HostMemory() { release(); }
    HostMemory(const HostMemory&) = delete;
    HostMemory& operator=(const HostMemory&) = delete;

    /// At least `bytes` >= 1 of uninitialised memory, aligned to 64 bytes, from 4 MiB on to huge
    /// pages; null if there is no memory. The owner must not outlive this object.
    std::shared_ptr<void> allocate(std::size_t bytes);

    /// Returns all kept blocks to the system.
    void release();

    /// Bytes kept at present, and at most.
    [[nodiscard]] std::size_t kept() const;
    [[nodiscard]] std::size_t most_kept() const { return most_kept_; }

  private:
    struct Block {
        void* memory = nullptr;
        std::size_t size = 0;
    };

    [[nodiscard]] Block take(std::size_t bytes);
    void give_back(Block block);
    static Block from_system(std::size_t bytes);
    static void to_system(const Block& block);

    const std::size_t most_kept_;
    mutable std::mutex mutex_;
    std::vector<Block> blocks_;  // oldest first; reserved, because growing could fail
    std::size_t kept_ = 0;
};

/// The memory of all CPU tensors; lives until the process ends. Keeps up to 1 GiB, but nothing
/// under the address sanitizer, so that it detects uses of freed memory.
HostMemory& host_memory();

}  // namespace tilewright::run
