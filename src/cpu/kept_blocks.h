// Operands of dots that a thread interleaves once for several programs of the grid.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "cpu/bytecode.h"

namespace tilewright::cpu {

/// Marks the interleaves of blocks of arrays that nothing else reads, if only dots read the
/// results, and these dots: a thread then keeps the results (see KeptBlocks). The buffer remains
/// for blocks that are not kept.
void keep_blocks(Program& program);

/// What one interleave made of blocks of its array, while a thread runs programs that differ only
/// along the last axis of the grid: with attention, all blocks of queries read the same values. A
/// block that is needed for the second time is kept, since most blocks of other programs, as
/// products of matrices, are needed once.
class KeptBlocks {
  public:
    explicit KeptBlocks(std::int64_t bytes) : bytes_(bytes), most_(kMostBytes / bytes) {}

    /// Forgets all blocks.
    void clear() {
        ++row_;
        count_ = num_known_ = 0;
        current_ = nullptr;
    }
    /// Makes the block of what is at `from` the current one; true if it is there already. Otherwise
    /// it is to be written there, or to the buffer if `current` is nullptr.
    bool find(const std::byte* from);
    /// The block that dots read; nullptr: it is in the buffer.
    std::byte* current() const { return current_; }
    void leave() { current_ = nullptr; }

  private:
    static constexpr std::size_t kAlignment = 64;
    static constexpr std::int64_t kMostBytes = std::int64_t{2} << 20;  // most fits a cache
    static constexpr std::size_t kEntries = 256;                       // a power of two
    struct Free {
        void operator()(std::byte* memory) const {
            ::operator delete (memory, std::align_val_t{kAlignment});
        }
    };
    /// A place in the array: of this row of the grid if `row` is the current one.
    struct Entry {
        const std::byte* from = nullptr;
        std::uint64_t row = 0;
        std::byte* block = nullptr;
    };

    std::byte* next_block();

    std::int64_t bytes_, most_;  ///< of a block; blocks
    std::uint64_t row_ = 1;
    std::array<Entry, kEntries> entries_{};
    std::size_t num_known_ = 0;
    std::vector<std::unique_ptr<std::byte, Free>> blocks_;
    std::int64_t count_ = 0;  ///< blocks in use
    std::byte* current_ = nullptr;
};

}  // namespace tilewright::cpu
