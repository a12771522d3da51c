// Memory of CPUs for tensors: large blocks are kept for the tensors to come.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace tilewright::run {

/// Blocks that no tensor uses, so that the next tensor of about their size takes one over. Memory
/// new from the system would be cleared, page by page, at its first touch: longer than a kernel at
/// the speed of memory runs. The system may take back the huge pages of kept blocks when memory
/// runs short. Any thread may call.
class HostMemory {
  public:
    /// Keeps at most `most_kept` bytes in 64 blocks; what was given back first goes first.
    explicit HostMemory(std::size_t most_kept);
    ~HostMemory() { release(); }
    HostMemory(const HostMemory&) = delete;
    HostMemory& operator=(const HostMemory&) = delete;

    /// At least `bytes` >= 1 with any contents, aligned to 64 bytes, those of 4 MiB and more to
    /// huge pages; null when there is no memory. The owner must not outlive this object.
    std::shared_ptr<void> allocate(std::size_t bytes);

    /// Returns all kept blocks to the system.
    void release();

    /// The bytes kept, and the most.
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
    std::vector<Block> blocks_;  // the oldest first; never grows, which could fail
    std::size_t kept_ = 0;
};

/// The memory of all CPU tensors; lives until the process ends. Keeps 1 GiB; with the
/// address sanitizer nothing, so that it sees uses of freed memory.
HostMemory& host_memory();

}  // namespace tilewright::run
